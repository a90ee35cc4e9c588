"""Reports on targets on a real Kafka: they add up from owner to owner, and a former owner changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from clusters.kafka import Kafka

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.changelog import (
    ChangelogCommitter,
    ChangelogWriter,
    PartitionFencedError,
    group_identity,
    restore,
)
from headgate.backend.kafka.target_reports import PartitionReports, follow_reports
from headgate.objects.kinds.routing import Target, TargetReport, ToldFindings
from tests.backend.dispatch_feed import made_target
from tests.backend.outbox_stream import outbox_config
from tests.backend.stores import deployed

pytestmark = pytest.mark.kafka
PARTITION = 1
WAIT_S_MAX = 60.0


@pytest.fixture
def config(kafka: Kafka) -> KafkaConfig:
    return deployed(kafka, "outbox", "changelog", "reports", like=outbox_config)


class Owner:
    """One that was given the partition: its state is what the one before it has stored."""

    def __init__(self, config: KafkaConfig, path: Path, targets: Mapping[int, Target]) -> None:
        self.writer = ChangelogWriter(config, PARTITION, group_identity(config))
        PartitionReports(path).close()
        restore(config, PARTITION, [path], threading.Event())
        self.reports = PartitionReports(path, targets.get, ChangelogCommitter(self.writer))

    def close(self) -> None:
        self.reports.close()
        self.writer.close()


class Leader:
    """Follows the topic, as the process that leads does."""

    def __init__(self) -> None:
        self.found: dict[int, ToldFindings] = {}
        self._changed = threading.Condition()

    def put(self, told: Mapping[int, ToldFindings]) -> None:
        with self._changed:
            self.found |= told
            self._changed.notify_all()

    def wait(self, target: int, errors: int) -> ToldFindings:
        with self._changed:
            done = self._changed.wait_for(lambda: self._errors(target) == errors, WAIT_S_MAX)
        assert done, self.found
        return self.found[target]

    def _errors(self, target: int) -> int | None:
        found = self.found.get(target)
        return None if found is None else found.filter_errors


@contextmanager
def leading(config: KafkaConfig) -> Iterator[Leader]:
    leader, stop = Leader(), threading.Event()
    thread = threading.Thread(target=follow_reports, args=(config, leader.put, stop))
    thread.start()
    try:
        yield leader
    finally:
        stop.set()
        thread.join()


def test_findings_add_up_from_owner_to_owner_and_a_former_one_changes_nothing(
    config: KafkaConfig, tmp_path: Path
) -> None:
    targets = {number: replace(made_target(number, "http://127.0.0.1:9/"), needs=3) for number in (1, 2)}
    with leading(config) as leader, closing(Owner(config, tmp_path / "a", targets)) as former:
        trouble = "CircuitOpen: nobody is there"
        former.reports.report([TargetReport(1, 2, "boom", "s 1", trouble), TargetReport(2, 9, "", "")])
        assert leader.wait(1, 2).trouble == trouble

        with closing(Owner(config, tmp_path / "b", targets)) as owner:
            with pytest.raises(PartitionFencedError):
                former.reports.report([TargetReport(1, 100, "late", "s 0", "Refused: 401")])
            owner.reports.forget_trouble(lambda _: True)
            owner.reports.report([TargetReport(1, 3, "", "")])
            found = leader.wait(1, 5)
            assert (found.last_error, found.trouble, found.needs) == ("boom", "", 3)
            assert leader.wait(2, 9).needs == 3

            targets[1] = replace(targets[1], needs=8)  # another filter
            del targets[2]
            owner.reports.report([TargetReport(1, 1, "other", "s 2"), TargetReport(2, 1, "", "")])
            assert leader.wait(1, 1).needs == 8
            assert owner.reports.findings().keys() == {1}
    with leading(config) as later:
        assert later.wait(1, 1).last_error == "other", "a leader that is new reads what is there"
        assert 2 not in later.found
