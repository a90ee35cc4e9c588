"""The topic `runs` in the hands of the matcher that leads: it takes numbers for runs, and hears what becomes of them.

Its writer is transactional, and a newer one fences it. A run's number is written, and committed, before anything else
knows of the run. So a driver that stood still while another one took its place cannot take a number any more, and
every number that it took before is known to the one that follows, which declares all of them over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import structlog

from headgate.errors import HeadgateError
from headgate.match.driver_link import Message
from headgate.store.config import KafkaConfig
from headgate.store.kafka.fenced_writer import FencedWriter, Office
from headgate.store.kafka.lost_topics import TopicLostError
from headgate.store.kafka.records import RecordError
from headgate.store.kafka.run_ledger import RunLedger
from headgate.store.kafka.run_records import (
    GenerationInForce,
    RunOver,
    RunRecord,
    RunStarted,
    decode_run_record,
    encode_run_record,
)
from headgate.store.kafka.state_reader import StateTopicReader
from headgate.store.kafka.state_record import StateRecord

if TYPE_CHECKING:
    from confluent_kafka import Message as KafkaMessage

_log = structlog.get_logger(__name__)


class MatcherLeadLostError(HeadgateError):
    """This process may not start runs: another matcher has taken the lead, or Kafka has failed in a write."""

    code = "matcher-lead-lost"


class RunsLostError(TopicLostError):
    """The topic `runs` has lost its end while it was read."""

    code = "runs-lost"


def _fenced(hint: str) -> MatcherLeadLostError:
    return MatcherLeadLostError("another matcher has taken the lead", hint=hint)


_OFFICE: Final = Office(
    topic="runs", name="matcher", doing="runs cannot be written", unsure="the next leader reads it", fenced=_fenced
)


class RunRegistry:
    """The topic `runs` as the driver has it; blocking, for one thread.

    Making one fences every earlier one, in whichever process.

    Args:
        config: Of the deployment.
        partitions: How many partitions the topic `outbox` has.

    Raises:
        UnavailableError: Kafka does not answer, or the topic is not there.
        InvalidInputError: The library is missing, or an option is none of its own.
    """

    def __init__(self, config: KafkaConfig, partitions: int) -> None:
        self._ledger = RunLedger(partitions)
        self._next = 0
        self._reader = StateTopicReader(config, "runs", RunsLostError)
        try:
            self._writer = FencedWriter(config, _OFFICE)  # from here on every number that was taken can be read
            self._news()
        except BaseException:
            self.close()
            raise

    @property
    def newest_run(self) -> int:
        """The highest number that a driver has taken; 0 before the first."""
        return self._ledger.newest_run

    def started(self, run: int, generation: int, start: Mapping[int, int]) -> None:
        """Takes a number.

        Raises:
            MatcherLeadLostError: This driver may take none any more.
        """
        self._write(RunStarted(run, generation, dict(start)))

    def over(self, run: int, generation: int) -> None:
        """A run has ended.

        Raises:
            MatcherLeadLostError: This driver may write no more.
        """
        self._write(RunOver(run, generation))

    def in_force(self, generation: int) -> None:
        """A generation counts in every outbox partition.

        Raises:
            MatcherLeadLostError: This driver may write no more.
        """
        self._write(GenerationInForce(generation))

    def news(self, timeout_s: float) -> list[Message]:
        """What was decided about runs, as soon as there is any; none after this time.

        Raises:
            UnavailableError: Kafka does not answer.
        """
        return self._news() if self._reader.comes(self._next, timeout_s) else []

    def _news(self) -> list[Message]:
        end = self._reader.end()
        messages: list[Message] = []
        for record in self._reader.records(self._next, end):
            messages += self._take(record)
        self._next = max(self._next, end)
        return messages

    def _take(self, record: KafkaMessage) -> list[Message]:
        try:
            return self._ledger.take(decode_run_record(record.key(), record.value()))
        except RecordError as error:
            _log.warning("a record of the topic runs is passed over", offset=record.offset(), error=error.message)
            return []

    def _write(self, record: RunRecord) -> None:
        if self._writer.is_failed:
            raise MatcherLeadLostError("Kafka has failed in an earlier write of this driver")
        try:
            self._writer.send([StateRecord(*encode_run_record(record))])
            self._writer.commit()
        except MatcherLeadLostError:
            raise
        except HeadgateError as error:
            raise MatcherLeadLostError(f"the lead is given up: {error.message}", hint=error.hint) from error

    def close(self) -> None:
        """Gives everything back; idempotent."""
        self._reader.close()
        if hasattr(self, "_writer"):
            self._writer.close()
