package dev.headgate.connector.log;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.zip.CRC32C;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reads the chunks of a partition in order, skips those that hold nothing wanted, and follows segment rolls.
 *
 * <p>What is damaged is never handed out: it ends the reading, or is passed over and logged, as the options say. Used by one thread.
 */
public final class LogReader implements Closeable {
  private static final Logger LOG = LoggerFactory.getLogger(LogReader.class);

  private final Path partition;
  private final FilterValues wanted;
  private final boolean skipsCorrupt;
  private final BufferAllocator allocator;
  /** A chunk's header and the filter behind it: what skipping a chunk needs, in one read. */
  private final ByteBuffer head =
      ByteBuffer.allocateDirect(ChunkHeader.BYTES + ChunkHeader.BLOOM_BYTES_MAX).order(ByteOrder.LITTLE_ENDIAN);

  private long position;
  private long chunksRead;
  private long chunksSkipped;
  private Segment segment;
  /** The first offset and the byte of the next chunk in `segment`. */
  private long chunkOffset;
  private long chunkAt;

  public LogReader(Path partition, long start, FilterValues wanted, boolean skipsCorrupt, BufferAllocator allocator) {
    this.partition = partition;
    this.position = start;
    this.wanted = wanted;
    this.skipsCorrupt = skipsCorrupt;
    this.allocator = allocator;
  }

  /** The first offsets of a partition's segments, ascending. */
  public static long[] segments(Path partition) throws IOException {
    return Segment.firstOffsets(partition);
  }

  /** The next offset that `next` looks at; skipped chunks advance it too. */
  public long position() {
    return position;
  }

  /** Chunks handed out so far. */
  public long chunksRead() {
    return chunksRead;
  }

  /** Chunks passed over so far because they hold nothing that is wanted. */
  public long chunksSkipped() {
    return chunksSkipped;
  }

  /**
   * The next chunk that may hold something wanted, or null when there is none below `end`, a committed offset.
   *
   * <p>The first chunk may start below the start offset (it holds it). Closing the chunk is the caller's part.
   */
  public Chunk next(long end) throws IOException {
    while (true) {
      try {
        return read(end);
      } catch (CorruptLogException damage) {
        if (!skipsCorrupt) {
          throw damage;
        }
        long before = position;
        passOver(end);
        if (position > before) {
          LOG.error("records {} to {} passed over: {}", before, position - 1, damage.getMessage());
        }
      }
    }
  }

  private Chunk read(long end) throws IOException {
    while (position < end) {
      if (segment == null) {
        seek();
        continue;
      }
      head.clear();
      int bytes = segment.read(head, chunkAt);
      if (bytes == 0) {
        roll();
        continue;
      }
      if (bytes < ChunkHeader.BYTES) {
        throw new CorruptLogException(segment.file, chunkAt, "a chunk header that is cut off");
      }
      ChunkHeader header = ChunkHeader.parse(head, segment.file, chunkAt);
      if (bytes < ChunkHeader.BYTES + header.bloomBytes()) {
        throw new CorruptLogException(segment.file, chunkAt, "a chunk that is cut off");
      }
      if (header.firstOffset() != chunkOffset) {
        throw new CorruptLogException(
            segment.file, chunkAt, "a chunk of offset " + header.firstOffset() + " where " + chunkOffset + " is due");
      }
      long at = chunkAt;
      chunkAt += ChunkHeader.BYTES + header.payloadBytes();
      chunkOffset = header.end();
      if (chunkOffset <= position) {
        continue;
      }
      boolean mayHold = wanted.mayHold(header, head, segment.file, at);
      Chunk chunk = mayHold ? read(header, at) : null;
      position = chunkOffset;
      if (mayHold) {
        chunksRead++;
        return chunk;
      }
      chunksSkipped++;
    }
    return null;
  }

  /** Moves behind what is damaged at `position`: to the next good chunk, else to the next segment, else to the end. */
  private void passOver(long end) throws IOException {
    if (segment != null && chunkOffset > position) {
      position = chunkOffset; // the header was good, and says where the next chunk is
      return;
    }
    if (segment != null && findChunk()) {
      position = Math.max(position, chunkOffset);
      return;
    }
    close();
    long from = position;
    position = Arrays.stream(Segment.firstOffsets(partition)).filter(first -> first > from && first <= end).findFirst().orElse(end);
  }

  /** Looks behind a damaged header for the next good chunk of the segment: every multiple of 8 may start one. */
  private boolean findChunk() throws IOException {
    ByteBuffer piece = ByteBuffer.allocate(1 << 20).order(ByteOrder.LITTLE_ENDIAN);
    for (long from = chunkAt + 8; ; from += piece.capacity() - ChunkHeader.BYTES) {
      piece.clear();
      int bytes = segment.read(piece, from);
      for (int at = 0; at + ChunkHeader.BYTES <= bytes; at += 8) {
        if (ChunkHeader.mayStart(piece, at) && isChunk(from + at)) {
          chunkAt = from + at;
          return true;
        }
      }
      if (bytes < piece.capacity()) {
        return false;
      }
    }
  }

  private boolean isChunk(long at) throws IOException {
    head.clear();
    segment.read(head, at);
    try {
      ChunkHeader header = ChunkHeader.parse(head, segment.file, at);
      if (header.firstOffset() <= chunkOffset) {
        return false;
      }
      read(header, at).close();
      chunkOffset = header.firstOffset();
      return true;
    } catch (CorruptLogException e) {
      return false;
    }
  }

  /** Opens the segment that holds `position`, or the first one when retention has removed that. */
  private void seek() throws IOException {
    long[] firsts = Segment.firstOffsets(partition);
    if (firsts.length == 0) {
      throw new IOException("log partition " + partition + " has no segment, yet offset " + position + " is committed");
    }
    int found = Arrays.binarySearch(firsts, position);
    open(firsts[Math.max(0, found >= 0 ? found : -found - 2)]);
    position = Math.max(position, chunkOffset);
  }

  /** The file ended though more is committed: that is in the next segment, unless retention has removed that too. */
  private void roll() throws IOException {
    long[] firsts = Segment.firstOffsets(partition);
    boolean removed = firsts.length > 0 && firsts[0] > chunkOffset;
    boolean follows = chunkOffset > segment.firstOffset && Arrays.binarySearch(firsts, chunkOffset) >= 0;
    if (!removed && !follows) {
      throw new CorruptLogException(
          segment.file, chunkAt, "nothing of offset " + chunkOffset + " here and no segment of that name, yet it is committed");
    }
    open(removed ? firsts[0] : chunkOffset);
    position = Math.max(position, chunkOffset);
  }

  private void open(long firstOffset) throws IOException {
    close();
    segment = Segment.open(partition, firstOffset);
    chunkOffset = firstOffset;
    chunkAt = segment.chunksAt;
  }

  private Chunk read(ChunkHeader header, long at) throws IOException {
    ArrowBuf payload = allocator.buffer(header.payloadBytes());
    try {
      ByteBuffer bytes = payload.nioBuffer(0, header.payloadBytes());
      if (segment.read(bytes, at + ChunkHeader.BYTES) < header.payloadBytes()) {
        throw new CorruptLogException(segment.file, at, "a chunk that is cut off");
      }
      CRC32C crc = new CRC32C();
      crc.update(bytes.flip());
      if ((int) crc.getValue() != header.payloadCrc()) {
        throw new CorruptLogException(segment.file, at, "wrong checksum of a chunk's payload");
      }
      return new Chunk(header, segment.schema, payload);
    } catch (IOException | RuntimeException e) {
      payload.close();
      throw e;
    }
  }

  @Override
  public void close() throws IOException {
    if (segment != null) {
      segment.close();
      segment = null;
    }
  }
}
