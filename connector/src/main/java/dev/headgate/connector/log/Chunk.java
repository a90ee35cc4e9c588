package dev.headgate.connector.log;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.vector.types.pojo.Schema;

/** One chunk whose checksums are right: its header, and its body in memory until it is closed. */
public final class Chunk implements AutoCloseable {
  public final ChunkHeader header;
  /** The segment's; the same object for all chunks of a segment. */
  public final Schema schema;

  private final ArrowBuf payload;

  Chunk(ChunkHeader header, Schema schema, ArrowBuf payload) {
    this.header = header;
    this.schema = schema;
    this.payload = payload;
  }

  ByteBuffer body() {
    return payload.nioBuffer(header.bodyAt(), header.bodyBytes()).order(ByteOrder.LITTLE_ENDIAN);
  }

  /** A part of the body that shares its memory; whoever keeps it retains it. */
  ArrowBuf slice(long at, long length) {
    return payload.slice(header.bodyAt() + at, length);
  }

  @Override
  public void close() {
    payload.close();
  }
}
