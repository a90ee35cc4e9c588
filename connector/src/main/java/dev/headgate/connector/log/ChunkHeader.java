package dev.headgate.connector.log;

import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.zip.CRC32C;

/**
 * The 64 bytes in front of every chunk (docs/spec/log-format.md).
 *
 * @param bloomBytes 0 when the chunk stores no filter
 * @param hashes the filter's k
 * @param unfiltered whether the chunk holds a record without filter value
 */
public record ChunkHeader(
    int bloomBytes,
    int hashes,
    boolean unfiltered,
    long firstOffset,
    int count,
    int bodyBytes,
    long appendTimeUs,
    int bloomCrc,
    int payloadCrc) {
  static final int BYTES = 64;
  static final int BLOOM_BYTES_MAX = 255;
  private static final int MAGIC = 'H' | 'G' << 8 | 'C' << 16 | '1' << 24;
  private static final int BLOOM_BYTES_MIN = 16;
  private static final int HASHES_MAX = 16;
  private static final int BODY_BYTES_MAX = 1 << 29;
  private static final int CODEC_MAX = 2;

  /** Reads a header at the buffer's start; `file` and `at` only name the place of what is wrong. */
  static ChunkHeader parse(ByteBuffer head, Path file, long at) throws CorruptLogException {
    if (head.getInt(0) != MAGIC) {
      throw new CorruptLogException(file, at, "no chunk magic");
    }
    CRC32C crc = new CRC32C();
    crc.update(head.duplicate().position(0).limit(60));
    if ((int) crc.getValue() != head.getInt(60)) {
      throw new CorruptLogException(file, at, "wrong checksum of a chunk header");
    }
    ChunkHeader header =
        new ChunkHeader(
            head.get(5) & 0xff,
            head.get(6) & 0xff,
            (head.get(7) & 1) != 0,
            head.getLong(8),
            head.getInt(16),
            head.getInt(20),
            head.getLong(24),
            head.getInt(52),
            head.getInt(56));
    // Codec and the three zero bytes behind it are one little-endian word.
    int codec = head.getInt(48);
    if (head.get(4) != BYTES || (head.get(7) & ~1) != 0 || codec < 0 || codec > CODEC_MAX || !header.isSound()) {
      throw new CorruptLogException(file, at, "a chunk header with values that the format does not know");
    }
    return header;
  }

  /** Whether the bytes at `at` begin as every chunk does. */
  static boolean mayStart(ByteBuffer bytes, int at) {
    return bytes.getInt(at) == MAGIC;
  }

  private boolean isSound() {
    boolean filter =
        bloomBytes == 0
            ? hashes == 0
            : bloomBytes >= BLOOM_BYTES_MIN && hashes >= 1 && hashes <= HASHES_MAX;
    boolean body = bodyBytes >= 0 && bodyBytes <= BODY_BYTES_MAX && bodyBytes % 8 == 0;
    return filter && body && firstOffset >= 0 && count >= 1;
  }

  /** The offset behind the chunk's last record. */
  public long end() {
    return firstOffset + count;
  }

  /** Where the body starts inside the payload: the filter is padded to a multiple of 8. */
  int bodyAt() {
    return (bloomBytes + 7) & ~7;
  }

  int payloadBytes() {
    return bodyAt() + bodyBytes;
  }
}
