package dev.headgate.connector.log;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * Where does a partition end? The memory-mapped file by which the writer publishes it.
 *
 * <p>The mapping lives until it is garbage collected: 64 bytes, one for each open reader.
 */
public final class Committed {
  private static final int BYTES = 64;
  private static final VarHandle I64 =
      MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);

  private final ByteBuffer map;

  private Committed(ByteBuffer map) {
    this.map = map;
  }

  public static Committed open(Path partition) throws IOException {
    Path file = partition.resolve("committed");
    if (!Files.exists(file)) {
      throw new IOException("no log partition at " + partition + ": it has no file 'committed' (nothing has opened it for writing yet)");
    }
    try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ)) {
      if (channel.size() < BYTES) {
        throw new CorruptLogException(file, channel.size(), "the file has fewer than " + BYTES + " bytes");
      }
      return new Committed(channel.map(FileChannel.MapMode.READ_ONLY, 0, BYTES));
    }
  }

  /** The next offset: everything below it is durable. A reader never passes it. */
  public long next() {
    return (long) I64.getVolatile(map, 0);
  }

  /** The first offset that retention has kept. */
  public long first() {
    return (long) I64.getVolatile(map, 8);
  }
}
