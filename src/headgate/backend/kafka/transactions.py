"""Transactions: the one producer that writes records of Kafka all or none, until a newer one of its name fences it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import BOUNDED_SEND, Delivered, TopicProducer, library
from headgate.backend.kafka.records import KafkaRecord
from headgate_api.errors import HeadgateError, UnavailableError
from headgate_api.limits import KAFKA_TRANSACTION_S_MAX, OBJECT_RECORDS_BYTES_MAX

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, TopicPartition

ANY_PARTITION: Final = -1
"""The record's key decides."""


class NameTakenError(UnavailableError):
    """A newer producer of Kafka has our name."""

    code = "kafka-name-taken"


def name_taken(doing: str) -> Callable[[str], HeadgateError]:
    """Makes the error of a process that no other one should ever replace; see `FencedName.fenced`."""
    hint = "it stood still for too long, or another process has its name: each server has a data directory of its own"
    return lambda _: NameTakenError(f"{doing}: Kafka knows a newer producer of this name", hint=hint)


def fenced_by(kind: Callable[..., HeadgateError], message: str, hint: str = "") -> Callable[[str], HeadgateError]:
    """Makes an error of a kind with the hint that is told, else with this one; see `FencedName.fenced`."""
    return lambda told: kind(message, hint=told or hint)


@dataclass(frozen=True, slots=True)
class FencedName:
    """A name under which only the newest writer may write, and where.

    Attributes:
        topic: By its name in `TopicsConfig`.
        transactional_id: Without the prefix of topics.
        doing: What fails, as the beginning of a sentence.
        unsure: What to do where it is not known whether a transaction is stored.
        fenced: Makes the error of a writer that is not the newest; takes a hint, which may be empty.
    """

    topic: str
    transactional_id: str
    doing: str
    unsure: str
    fenced: Callable[[str], HeadgateError]
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int = 0


@dataclass(frozen=True, slots=True)
class EventRecords:
    """Events that are stored together, by partition; of a numbered producer, with the newest number by partition."""

    parts: Mapping[int, Sequence[KafkaRecord]]
    newest: Mapping[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))


class FencedWriter:
    """Writes in transactions until a newer one of its name is made, in whichever process; blocking, for one thread.

    Making a writer ends what an earlier one left open: when it is made, everything that was ever committed can be read.
    After an error of Kafka (`is_failed`) a writer is used no more: what is on its way could come into a later
    transaction of it. What Kafka refuses is an UnavailableError, or, once a newer writer was made, what
    `FencedName.fenced` makes.
    """

    def __init__(self, config: KafkaConfig, name: FencedName) -> None:
        self._config = config
        self._name = name
        self.is_failed = False
        timeout_ms = round(KAFKA_TRANSACTION_S_MAX * 1_000)
        own = {
            "transactional.id": config.topic(name.transactional_id),
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            **BOUNDED_SEND,
            "queue.buffering.max.kbytes": OBJECT_RECORDS_BYTES_MAX >> 10,
        }
        self._producer = TopicProducer(config, name.doing, own)
        with self._errors():
            self._producer.raw.init_transactions(KAFKA_TRANSACTION_S_MAX)

    def send(self, records: Iterable[KafkaRecord], copies: Iterable[tuple[str, KafkaRecord]] = ()) -> int:
        """Begins a transaction and sends records to the name's partition; the offset of the last one, -1 without one.

        `copies` go to the first partition of other topics, by their names in `TopicsConfig`.
        """
        topic, partition = self._name.topic, self._name.partition
        own = ((topic, partition, record) for record in records)
        stored = self.send_records(chain(own, ((other, 0, record) for other, record in copies)))
        offsets = stored.get((topic, partition))
        return offsets[-1] if offsets else -1

    def send_records(self, records: Iterable[tuple[str, int, KafkaRecord]]) -> Mapping[tuple[str, int], Sequence[int]]:
        """Begins a transaction and sends its records; every in-sync copy has them when this returns.

        Each comes with its topic, by its name in `TopicsConfig`, and its partition, which may be ANY_PARTITION. Returns
        the offsets of each topic and partition, in order. What `records` raises aborts the transaction and is raised
        here; the writer goes on. After an error of Kafka nothing is stored.
        """
        kafka, headers = library(), self._name.headers
        reports = defaultdict[tuple[str, int], Delivered](Delivered)
        with self._errors():
            self._producer.raw.begin_transaction()
            try:
                for topic, partition, record in records:
                    own = record if not headers else replace(record, headers=[*headers, *record.headers])
                    self._producer.send(self._config.topic(topic), partition, own, reports[topic, partition])
            except kafka.KafkaException:
                raise
            except BaseException:
                self._producer.raw.abort_transaction(KAFKA_TRANSACTION_S_MAX)
                raise
            error = self._producer.flush(KAFKA_TRANSACTION_S_MAX, reports.values())
        if error is not None:
            raise self._failed(error)
        return {place: report.offsets for place, report in reports.items()}

    def send_events(self, group: Iterable[EventRecords]) -> Mapping[tuple[str, int], Sequence[int]]:
        """Begins a transaction and sends events to the topic `events`; see `send_records`."""
        return self.send_records(
            ("events", partition, record)
            for each in group
            for partition, records in each.parts.items()
            for record in records
        )

    def add_places(self, places: Sequence[TopicPartition], group: object) -> None:
        """Makes commits of a consumer group, by its `consumer_group_metadata`, part of the transaction that is open."""
        with self._errors():
            self._producer.raw.send_offsets_to_transaction(list(places), group, KAFKA_TRANSACTION_S_MAX)

    def commit(self) -> None:
        """Makes the records of the transaction readable, all of them or none; after an error it is not known which."""
        with self._errors(self._name.unsure):
            self._producer.raw.commit_transaction(KAFKA_TRANSACTION_S_MAX)

    def abort(self) -> None:
        with self._errors():
            self._producer.raw.abort_transaction(KAFKA_TRANSACTION_S_MAX)

    @contextmanager
    def _errors(self, hint: str = "") -> Iterator[None]:
        """Turns the library's errors into ours. A fatal one, such as a fence, may come out of a callback of ours."""
        try:
            yield
        except library().KafkaException as error:
            raise self._failed(error.args[0], hint) from error
        except SystemError as error:  # the library loses a fatal error that meets a callback
            raise self._failed(None, hint) from error

    def _failed(self, error: KafkaError | None, hint: str = "") -> HeadgateError:
        """Ours for an error of the library; None for a fatal one that it has lost."""
        kafka = library().KafkaError
        self.is_failed = True
        with suppress(library().KafkaException, SystemError):  # the fatal error once more
            self._producer.raw.poll(0)  # brings what the connections report
        if error is None or error.code() == kafka._FATAL:  # a record hears only that there is one
            error = self._fatal() or error
        if error is None:
            return UnavailableError(
                f"{self._name.doing}: the client for Kafka has failed", hint=hint or "try again later"
            )
        if error.code() in (kafka._FENCED, kafka.PRODUCER_FENCED, kafka.INVALID_PRODUCER_EPOCH):
            return self._name.fenced(hint)
        problem = self._producer.error(error)
        if hint and isinstance(problem, UnavailableError):
            return type(problem)(problem.message, hint=hint)
        return problem

    def _fatal(self) -> KafkaError | None:
        """The fatal error, which the library says again when a transaction is asked for."""
        try:
            self._producer.raw.abort_transaction(KAFKA_TRANSACTION_S_MAX)
        except library().KafkaException as error:
            found: KafkaError = error.args[0]
            return found
        return None

    def close(self) -> None:
        """Drops what was not sent. An open transaction ends with the next writer, or with its own time."""
        with suppress(library().KafkaException):
            self._producer.raw.purge()
