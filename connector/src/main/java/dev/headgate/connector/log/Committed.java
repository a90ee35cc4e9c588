package dev.headgate.connector.log;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * The end of a partition: the memory-mapped file by which the writer publishes it.
 *
 * <p>A partition that no writer has opened yet has no such file, or a shorter one: it is empty, and may be read again. The mapping
 * (64 bytes) lives until it is garbage collected.
 */
public final class Committed {
  private static final int BYTES = 64;
  private static final VarHandle I64 =
      MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);

  private final Path file;
  private ByteBuffer map;

  public Committed(Path partition) {
    this.file = partition.resolve("committed");
  }

  /** The next offset: everything below it is durable. A reader never passes it. */
  public long next() throws IOException {
    return word(0);
  }

  /** The first offset that retention has kept. */
  public long first() throws IOException {
    return word(8);
  }

  private long word(int at) throws IOException {
    if (map == null && !attach()) {
      return 0;
    }
    return (long) I64.getVolatile(map, at);
  }

  private boolean attach() throws IOException {
    try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ)) {
      if (channel.size() >= BYTES) {
        map = channel.map(FileChannel.MapMode.READ_ONLY, 0, BYTES);
      }
    } catch (NoSuchFileException e) {
      return false;
    }
    return map != null;
  }
}
