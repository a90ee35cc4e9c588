package dev.headgate.connector.kafka;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** The header `headgate_outbox` of events and of progress (docs/spec/outbox-topic.md). */
final class OutboxHeader {
  static final String NAME = "headgate_outbox";

  private static final byte EVENT = 1;
  private static final byte PASSED = 2;
  private static final int HEAD_BYTES = 30;
  private static final int TARGET_BYTES = 5;

  private final OutboxSettings settings;

  OutboxHeader(OutboxSettings settings) {
    this.settings = settings;
  }

  /** Of an event, for some targets: `count` of `rows` from `from` on, each as `OutboxRows` packs it. */
  byte[] event(int partition, long offset, long appendTimeUs, long[] rows, int from, int count, boolean more) {
    ByteBuffer header = head(EVENT, more, partition, offset, Long.BYTES + count * TARGET_BYTES);
    header.putLong(appendTimeUs);
    for (int i = from; i < from + count; i++) {
      header.putInt(OutboxRows.target(rows[i])).put(OutboxRows.verdict(rows[i]));
    }
    return header.array();
  }

  /** Every event below `passed` has been matched, and its records are acknowledged. */
  byte[] passed(int partition, long passed) {
    return head(PASSED, false, partition, passed, 0).array();
  }

  private ByteBuffer head(byte kind, boolean flag, int partition, long offset, int more) {
    ByteBuffer header = ByteBuffer.allocate(HEAD_BYTES + more).order(ByteOrder.LITTLE_ENDIAN);
    header.put(kind).put((byte) (flag ? 1 : 0)).putLong(settings.run()).putLong(settings.generation());
    return header.putInt(partition).putLong(offset);
  }
}
