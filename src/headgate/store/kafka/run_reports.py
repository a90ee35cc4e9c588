"""What a dispatcher writes into the topic `runs`: which runs live and count in its outbox partitions."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import structlog

from headgate.limits import LINK_RUNS_MAX
from headgate.outbox.takeover import RunRejected
from headgate.store.config import KafkaConfig
from headgate.store.kafka.library import Faults, library, made_client
from headgate.store.kafka.outbox_page import OutboxPage
from headgate.store.kafka.outbox_state import OutboxState
from headgate.store.kafka.run_records import RefusedRun, RunReport, encode_run_record, refusal, report_of

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

_log = structlog.get_logger(__name__)


class RunReports:
    """Reports the state of each outbox partition when it has changed. Nothing here blocks; for one thread.

    An owner of an `OutboxMember` calls `assigned` and `revoked` from its `OutboxListener`, and `take` with every page
    as soon as it is read, whether or not its events are delivered or committed. A report says what the log says: it
    stays true when the partition moves, and a late one of an earlier owner changes no decision (see `run_ledger.py`).

    Args:
        config: Of the deployment.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """

    def __init__(self, config: KafkaConfig) -> None:
        kafka = library()
        self._topic = config.topic("runs")
        self._faults = Faults()
        self._told: dict[int, RunReport] = {}
        self._refused: dict[int, deque[RefusedRun]] = {}
        # Without a time limit: a report that is given up would leave the matcher waiting.
        own = {"enable.idempotence": True, "acks": "all", "linger.ms": 0, "message.timeout.ms": 0}
        self._producer: Producer = made_client(kafka.Producer, config, self._faults, own)

    def assigned(self, partition: int, state: OutboxState) -> None:
        """This process has the partition now: its last owner may have died before it reported."""
        self.revoked(partition)
        self._report(partition, state)

    def take(self, page: OutboxPage) -> None:
        """Reports the partition of a page where its runs have changed."""
        partition = page.checkpoint.partition
        refused = self._refused.setdefault(partition, deque(maxlen=LINK_RUNS_MAX))
        refused.extend(refusal(each.run, each.reason) for each in page.runs if isinstance(each, RunRejected))
        self._report(partition, page.checkpoint.state)

    def revoked(self, partition: int) -> None:
        """Another process may have the partition from here on."""
        self._told.pop(partition, None)
        self._refused.pop(partition, None)

    def _report(self, partition: int, state: OutboxState) -> None:
        report = report_of(partition, state, tuple(self._refused.get(partition, ())))
        if self._told.get(partition) != report:
            key, value = encode_run_record(report)
            try:
                self._producer.produce(self._topic, value, key, 0, on_delivery=self._delivered)
                self._told[partition] = report
            except BufferError:
                _log.warning("a report on runs waits", partition=partition)  # the next page brings it
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._told.clear()  # each next page reports again
            _log.warning("a report on runs is not stored", error=self._faults.cause(error).str())

    def close(self, timeout_s: float = 0.0) -> None:
        """Waits for what is under way, at most so long, and gives the rest up."""
        self._producer.flush(timeout_s)
        self._producer.purge()
