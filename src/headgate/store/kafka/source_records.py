"""Records of foreign topics: what each becomes in the topic `events`, or in `refused` with the reason. Pure.

A record is decoded by the CloudEvents Kafka binding alone, as strictly as HTTP. It goes to the partition of its event's
partition key, else of the record's key, else of its own partition: either way what was in order stays in order.

Headers of a refused record, behind those that it had:

| header | what it holds |
|---|---|
| `headgate_topic`, `headgate_partition`, `headgate_offset` | where it was read |
| `headgate_broker` | identity of the broker that was to get it |
| `headgate_reason` | why it was refused |
| `headgate_dropped` | what had no room, or cannot be written: `value`, `headers`, or both; else absent |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.errors import HeadgateError
from headgate.event.errors import EventTooLargeError
from headgate.event.hops import forgery
from headgate.event.http import canonical
from headgate.event.kafka import Header, decode_record
from headgate.event.kafka_headers import BROKER
from headgate.event.model import Event
from headgate.ingress.partitions import partition_of_key
from headgate.limits import KAFKA_RECORD_BYTES_MAX
from headgate.store.kafka.records import KafkaRecord, encode_record

TOPIC: Final = "headgate_topic"
PARTITION: Final = "headgate_partition"
OFFSET: Final = "headgate_offset"
REASON: Final = "headgate_reason"
DROPPED: Final = "headgate_dropped"
_OURS: Final = frozenset({TOPIC, PARTITION, OFFSET, REASON, DROPPED, BROKER})
_REASON_BYTES_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class ForeignRecord:
    """A record of a topic that others write.

    Attributes:
        topic: Where it was read.
        partition: Likewise.
        offset: Likewise.
        key: Of Kafka; None without one.
        value: Likewise.
        headers: In order; None where a name is no UTF-8.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] | None


@dataclass(frozen=True, slots=True)
class AdmittedRecord:
    """A record that becomes an event.

    Attributes:
        partition: Of the topic `events`.
        record: What is written there.
    """

    partition: int
    record: KafkaRecord


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that is no valid event, or one that the source may not send.

    Attributes:
        record: What is written to the topic `refused`.
        reason: Why.
    """

    record: KafkaRecord
    reason: str


def admit(
    found: ForeignRecord, broker: str, partitions: int, check: Callable[[Event], None] = lambda _: None
) -> AdmittedRecord | RefusedRecord:
    """What becomes of a record.

    Args:
        found: The record.
        broker: Identity of the broker that is to get it.
        partitions: Of the topic `events`.
        check: Raises HeadgateError for an event that the source may not send.
    """
    try:
        if found.headers is None:
            raise HeadgateError("the name of a header is no UTF-8")
        event = decode_record(found.headers, found.value)
        if (forged := forgery(event)) is not None:
            raise forged
        check(event)
        record = encode_record(broker, event)
        if record.size_bytes > KAFKA_RECORD_BYTES_MAX:
            raise EventTooLargeError(f"a stored event must not be larger than {KAFKA_RECORD_BYTES_MAX} bytes")
    except HeadgateError as error:
        return RefusedRecord(_refused(found, broker, error.message), error.message)
    return AdmittedRecord(partition_of_key(_key(found, event), partitions), record)


def _key(found: ForeignRecord, event: Event) -> str | bytes:
    key = event.extensions.get("partitionkey")
    if key is not None and key != "":
        return canonical(key)
    return found.key or f"{found.topic}/{found.partition}"


def _refused(found: ForeignRecord, broker: str, reason: str) -> KafkaRecord:
    place = [
        (TOPIC, found.topic.encode()),
        (PARTITION, b"%d" % found.partition),
        (OFFSET, b"%d" % found.offset),
        (BROKER, broker.encode()),
        (REASON, reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore").encode()),
    ]
    own = [(name, value) for name, value in found.headers or () if name not in _OURS]
    lost = [] if found.headers is not None else ["headers"]
    for dropped in (lost, [*lost, "value"], ["value", "headers"]):
        record = KafkaRecord(
            found.key if found.key is None or len(found.key) < KAFKA_RECORD_BYTES_MAX // 2 else None,
            None if "value" in dropped else found.value,
            [
                *((name, value or b"") for name, value in own if "headers" not in dropped),
                *place,
                *([(DROPPED, ",".join(dropped).encode())] if dropped else []),
            ],
        )
        if record.size_bytes <= KAFKA_RECORD_BYTES_MAX:
            break
    return record
