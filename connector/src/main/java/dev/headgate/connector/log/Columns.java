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

/**
 * Some columns of a schema, filled from one chunk after the other: a column that is not among them is neither sliced nor
 * decompressed.
 *
 * <p>Made once for a segment: making vectors costs more than filling them for a chunk of one event.
 */
public final class Columns implements AutoCloseable {
  private static final int CONTINUATION = 0xffffffff;
  private static final int PREFIX_BYTES = 8;

  /** A column's place in a record batch: its node, and its buffers. Columns are flat, one node each. */
  private record Place(int node, int firstBuffer, int buffers) {}

  private final Schema schema;
  private final List<Place> places = new ArrayList<>();
  private final VectorSchemaRoot root;
  private final VectorLoader loader;

  /** Columns `names` of `schema`, in that order; an IOException names one that it does not have. */
  public Columns(Schema schema, List<String> names, BufferAllocator allocator) throws IOException {
    this.schema = schema;
    List<String> all = schema.getFields().stream().map(Field::getName).toList();
    List<Field> fields = new ArrayList<>();
    for (String name : names) {
      int node = all.indexOf(name);
      if (node < 0) {
        throw new IOException("the log has no column '" + name + "', it has " + all);
      }
      int before = schema.getFields().subList(0, node).stream().mapToInt(Columns::buffers).sum();
      places.add(new Place(node, before, buffers(schema.getFields().get(node))));
      fields.add(schema.getFields().get(node));
    }
    this.root = VectorSchemaRoot.create(new Schema(fields), allocator);
    this.loader = new VectorLoader(root, CommonsCompressionFactory.INSTANCE);
  }

  private static int buffers(Field field) {
    return TypeLayout.getTypeBufferCount(field.getType());
  }

  /** Whether chunks of this schema can be loaded; compares objects. */
  public boolean fit(Schema other) {
    return schema == other;
  }

  /** The vectors, as the last `load` has filled them; always the same ones. */
  public VectorSchemaRoot root() {
    return root;
  }

  /** Fills the vectors from a chunk. They share its memory (by reference count) unless it is compressed. */
  public void load(Chunk chunk) throws IOException {
    ByteBuffer body = chunk.body();
    int metadataBytes = body.getInt(4);
    if (body.getInt(0) != CONTINUATION) {
      throw new IOException("the chunk of offset " + chunk.header.firstOffset() + " holds no Arrow message");
    }
    ByteBuffer metadata = body.slice(PREFIX_BYTES, metadataBytes).order(ByteOrder.LITTLE_ENDIAN);
    Message message = Message.getRootAsMessage(metadata);
    if (message.headerType() != MessageHeader.RecordBatch) {
      throw new IOException("the chunk of offset " + chunk.header.firstOffset() + " holds no Arrow record batch");
    }
    RecordBatch batch = (RecordBatch) message.header(new RecordBatch());
    List<ArrowFieldNode> nodes = new ArrayList<>();
    List<ArrowBuf> buffers = new ArrayList<>();
    for (Place place : places) {
      FieldNode node = batch.nodes(place.node);
      nodes.add(new ArrowFieldNode(node.length(), node.nullCount()));
      for (int i = place.firstBuffer; i < place.firstBuffer + place.buffers; i++) {
        Buffer buffer = batch.buffers(i);
        buffers.add(chunk.slice(PREFIX_BYTES + metadataBytes + buffer.offset(), buffer.length()));
      }
    }
    try (ArrowRecordBatch selected =
        new ArrowRecordBatch(chunk.header.count(), nodes, buffers, compression(batch))) {
      loader.load(selected);
    }
  }

  private static ArrowBodyCompression compression(RecordBatch batch) {
    BodyCompression compression = batch.compression();
    return compression == null
        ? NoCompressionCodec.DEFAULT_BODY_COMPRESSION
        : new ArrowBodyCompression(compression.codec(), compression.method());
  }

  /** Gives the memory back that the last `load` took. */
  public void clear() {
    root.clear();
  }

  @Override
  public void close() {
    root.close();
  }
}
