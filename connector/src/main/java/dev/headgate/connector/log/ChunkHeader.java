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
    int payloadCrc) {
  static final int BYTES = 64;
  static final int BLOOM_BYTES_MAX = 255;
  private static final int MAGIC = 'H' | 'G' << 8 | 'C' << 16 | '1' << 24;
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
            head.getInt(56));
    if (head.get(4) != BYTES || header.count <= 0 || header.bodyBytes < 0 || head.get(48) > CODEC_MAX) {
      throw new CorruptLogException(file, at, "a chunk header of an unknown shape");
    }
    return header;
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
