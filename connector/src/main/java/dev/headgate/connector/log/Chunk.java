package dev.headgate.connector.log;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.compression.CommonsCompressionFactory;
import org.apache.arrow.flatbuf.BodyCompression;
import org.apache.arrow.flatbuf.Buffer;
import org.apache.arrow.flatbuf.FieldNode;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.TypeLayout;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.compression.NoCompressionCodec;
import org.apache.arrow.vector.ipc.message.ArrowBodyCompression;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;

/** One chunk whose checksums are right: its header and its body in memory. Close it when its vectors are no longer read. */
public final class Chunk implements AutoCloseable {
  private static final int CONTINUATION = 0xffffffff;

  public final ChunkHeader header;
  private final Schema schema;
  private final ArrowBuf payload;

  Chunk(ChunkHeader header, Schema schema, ArrowBuf payload) {
    this.header = header;
    this.schema = schema;
    this.payload = payload;
  }

  /**
   * Vectors of the named columns only, in that order: a column that is not asked for is neither sliced nor decompressed.
   *
   * <p>Uncompressed vectors share the chunk's memory by reference count, so that either may be closed first.
   */
  public VectorSchemaRoot columns(List<String> names, BufferAllocator allocator) throws IOException {
    ByteBuffer body = payload.nioBuffer(header.bodyAt(), header.bodyBytes());
    body.order(ByteOrder.LITTLE_ENDIAN);
    int metadataBytes = body.getInt(4);
    Message message = body.getInt(0) == CONTINUATION ? Message.getRootAsMessage(slice(body, 8, metadataBytes)) : null;
    if (message == null || message.headerType() != MessageHeader.RecordBatch) {
      throw new IOException("the chunk of offset " + header.firstOffset() + " holds no Arrow record batch");
    }
    RecordBatch batch = (RecordBatch) message.header(new RecordBatch());
    long buffersAt = header.bodyAt() + 8L + metadataBytes;

    List<Field> fields = new ArrayList<>();
    List<ArrowFieldNode> nodes = new ArrayList<>();
    List<ArrowBuf> buffers = new ArrayList<>();
    for (String name : names) {
      int index = schema.getFields().indexOf(schema.findField(name));
      fields.add(schema.getFields().get(index));
      FieldNode node = batch.nodes(index);
      nodes.add(new ArrowFieldNode(node.length(), node.nullCount()));
      int first = schema.getFields().subList(0, index).stream().mapToInt(Chunk::bufferCount).sum();
      for (int i = first; i < first + bufferCount(fields.get(fields.size() - 1)); i++) {
        Buffer buffer = batch.buffers(i);
        buffers.add(payload.slice(buffersAt + buffer.offset(), buffer.length()));
      }
    }
    VectorSchemaRoot root = VectorSchemaRoot.create(new Schema(fields), allocator);
    try (ArrowRecordBatch selected = new ArrowRecordBatch(header.count(), nodes, buffers, compression(batch))) {
      new VectorLoader(root, CommonsCompressionFactory.INSTANCE).load(selected);
      return root;
    } catch (RuntimeException e) {
      root.close();
      throw e;
    }
  }

  /** Columns of the log are flat (no lists, no structs): a field is one node and its own buffers. */
  private static int bufferCount(Field field) {
    return TypeLayout.getTypeBufferCount(field.getType());
  }

  private static ArrowBodyCompression compression(RecordBatch batch) {
    BodyCompression compression = batch.compression();
    return compression == null
        ? NoCompressionCodec.DEFAULT_BODY_COMPRESSION
        : new ArrowBodyCompression(compression.codec(), compression.method());
  }

  private static ByteBuffer slice(ByteBuffer from, int at, int length) {
    return from.slice(at, length).order(ByteOrder.LITTLE_ENDIAN);
  }

  @Override
  public void close() {
    payload.close();
  }
}
