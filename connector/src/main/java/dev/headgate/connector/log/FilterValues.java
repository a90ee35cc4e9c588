package dev.headgate.connector.log;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Objects;
import java.util.zip.CRC32C;
import net.jpountz.xxhash.XXHash64;
import net.jpountz.xxhash.XXHashFactory;

/** The filter values of a read, hashed once: they tell which chunks may be skipped. */
public final class FilterValues {
  private static final XXHash64 XXH64 = XXHashFactory.fastestInstance().hash64();

  /** Every chunk is read. */
  public static final FilterValues ALL = new FilterValues(null, true);

  private static final int STEP = 0x9E3779B1;

  private final long[] hashes;
  private final boolean unfiltered;

  private FilterValues(long[] hashes, boolean unfiltered) {
    this.hashes = hashes;
    this.unfiltered = unfiltered;
  }

  /** Chunks that may hold one of `values`; a null or empty one asks for records without filter value. */
  public static FilterValues of(List<String> values) {
    long[] hashes =
        values.stream().filter(value -> value != null && !value.isEmpty()).mapToLong(FilterValues::hash).toArray();
    return new FilterValues(hashes, values.stream().anyMatch(value -> Objects.requireNonNullElse(value, "").isEmpty()));
  }

  private static long hash(String value) {
    byte[] bytes = value.getBytes(StandardCharsets.UTF_8);
    return XXH64.hash(bytes, 0, bytes.length, 0);
  }

  /**
   * False: the chunk holds nothing that is wanted. `head` is its header and, right behind it, its filter; `file` and `at` only name
   * the place of a filter whose checksum is wrong.
   */
  boolean mayHold(ChunkHeader header, ByteBuffer head, Path file, long at) throws CorruptLogException {
    if (hashes == null || (unfiltered && header.unfiltered())) {
      return true;
    }
    if (header.bloomBytes() == 0) {
      return false;
    }
    CRC32C crc = new CRC32C();
    crc.update(head.duplicate().position(ChunkHeader.BYTES).limit(ChunkHeader.BYTES + header.bloomBytes()));
    if ((int) crc.getValue() != header.bloomCrc()) {
      throw new CorruptLogException(file, at, "wrong checksum of a chunk's filter");
    }
    for (long hash : hashes) {
      if (contains(header, head, hash)) {
        return true;
      }
    }
    return false;
  }

  private static boolean contains(ChunkHeader header, ByteBuffer head, long hash) {
    int g = (int) hash;
    int b = (int) (hash >>> 32);
    long bits = 8L * header.bloomBytes();
    for (int i = 0; i < header.hashes(); i++) {
      int bit = (int) ((g & 0xffffffffL) * bits >>> 32);
      if ((head.get(ChunkHeader.BYTES + (bit >> 3)) & 1 << (bit & 7)) == 0) {
        return false;
      }
      g = g * STEP + b;
    }
    return true;
  }
}
