package dev.headgate.connector.log;

import java.io.ByteArrayInputStream;
import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import java.util.zip.CRC32C;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.Schema;

/** One open segment file: its schema, and positional reads that leave no state behind. */
final class Segment implements Closeable {
  private static final int HEADER_BYTES = 16;
  private static final int ALIGNMENT = 64;
  private static final int MAGIC = 'H' | 'G' << 8 | 'S' << 16 | '1' << 24;
  private static final int SCHEMA_BYTES_MAX = 1 << 20;
  private static final Pattern NAME = Pattern.compile("(\\d{20})\\.seg");

  final Path file;
  final long firstOffset;
  final Schema schema;
  final long chunksAt;
  private final FileChannel channel;

  private Segment(Path file, FileChannel channel, long firstOffset) throws IOException {
    this.file = file;
    this.firstOffset = firstOffset;
    this.channel = channel;
    ByteBuffer head = ByteBuffer.allocate(HEADER_BYTES).order(ByteOrder.LITTLE_ENDIAN);
    if (read(head, 0) < HEADER_BYTES || head.getInt(0) != MAGIC || crc(head.array(), 12) != head.getInt(12)) {
      throw new CorruptLogException(file, 0, "no valid segment header");
    }
    int schemaBytes = head.getInt(4);
    if (schemaBytes < 0 || schemaBytes > SCHEMA_BYTES_MAX) {
      throw new CorruptLogException(file, 4, "a schema of " + schemaBytes + " bytes");
    }
    byte[] message = new byte[schemaBytes];
    if (read(ByteBuffer.wrap(message), HEADER_BYTES) < schemaBytes || crc(message, schemaBytes) != head.getInt(8)) {
      throw new CorruptLogException(file, HEADER_BYTES, "wrong checksum of the schema");
    }
    this.schema =
        MessageSerializer.deserializeSchema(new ReadChannel(Channels.newChannel(new ByteArrayInputStream(message))));
    this.chunksAt = (HEADER_BYTES + (long) schemaBytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  }

  /** The segment whose first record has `firstOffset`; NoSuchFileException when there is none. */
  static Segment open(Path partition, long firstOffset) throws IOException {
    Path file = partition.resolve(String.format("%020d.seg", firstOffset));
    FileChannel channel = FileChannel.open(file, StandardOpenOption.READ);
    try {
      return new Segment(file, channel, firstOffset);
    } catch (IOException | RuntimeException e) {
      channel.close();
      throw e;
    }
  }

  /** The first offsets of a partition's segments, ascending; other names are ignored. */
  static long[] firstOffsets(Path partition) throws IOException {
    try (Stream<Path> files = Files.list(partition)) {
      return files
          .map(file -> NAME.matcher(file.getFileName().toString()))
          .filter(Matcher::matches)
          .mapToLong(name -> Long.parseLong(name.group(1)))
          .sorted()
          .toArray();
    }
  }

  private static int crc(byte[] bytes, int length) {
    CRC32C crc = new CRC32C();
    crc.update(bytes, 0, length);
    return (int) crc.getValue();
  }

  /** Fills `into` from byte `at` on, as far as the file goes; returns how many bytes that were. */
  int read(ByteBuffer into, long at) throws IOException {
    int start = into.position();
    while (into.hasRemaining()) {
      if (channel.read(into, at + into.position() - start) < 0) {
        break;
      }
    }
    return into.position() - start;
  }

  @Override
  public void close() throws IOException {
    channel.close();
  }
}
