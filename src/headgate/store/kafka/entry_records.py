"""Events on their way into the store as Kafka records. Pure."""

from __future__ import annotations

from itertools import zip_longest

from headgate.errors import TooLargeError
from headgate.ingress.encode import Entries
from headgate.limits import KAFKA_RECORD_BYTES_MAX
from headgate.store.kafka.records import KafkaRecord, encode_record


def records_of(entries: Entries) -> list[KafkaRecord]:
    """The records of some events, each small enough for the topic.

    Raises:
        TooLargeError: One is not.
    """
    found = []
    for event, produced in zip_longest(entries.events, entries.produced):
        record = encode_record(entries.broker, event, produced)
        if record.size_bytes > KAFKA_RECORD_BYTES_MAX:
            raise TooLargeError(
                f"an event of {record.size_bytes} bytes is over the {KAFKA_RECORD_BYTES_MAX} of a record"
            )
        found.append(record)
    return found
