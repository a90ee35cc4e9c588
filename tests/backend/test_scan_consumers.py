"""The consumers of Kafka that scans share, without Kafka: who scans little keeps what it has fetched."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import TopicConsumer
from headgate.backend.kafka.scan import KafkaLog, ScanConsumers
from headgate.shares import Shares
from headgate_api.limits import KAFKA_SCAN_CONSUMERS_MAX, READ_THREADS
from tests.backend.stores import kafka_config


def test_many_scans_of_one_namespace_take_no_consumer_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the turns that the readers' threads give: as many at the same time as there are threads."""
    made: list[object] = []

    def reader(*_: object, **__: object) -> object:
        made.append(object())
        return made[-1]

    monkeypatch.setattr(TopicConsumer, "committed", reader)
    consumers = ScanConsumers(cast(KafkaConfig, None))
    waiting = Shares[str]()
    for number in range(3 * KAFKA_SCAN_CONSUMERS_MAX):
        waiting.add("loud", "eve", f"eve{number}")
    waiting.add("quiet", "ann", "ann")
    in_turn: list[tuple[str, Any]] = []
    kept = {"ann": list[bool](), "eve": list[bool]()}
    for _ in range(20 * KAFKA_SCAN_CONSUMERS_MAX):
        scan = waiting.pop_next()
        consumer, is_kept = consumers.take(scan)  # never refused: there are fewer threads than consumers
        kept[scan[:3]].append(is_kept)
        in_turn.append((scan, consumer))
        if len(in_turn) == READ_THREADS or not len(waiting):
            scan, consumer = in_turn.pop(0)
            consumers.give(scan, consumer, keep=True)
            waiting.add(*(("quiet", "ann") if scan == "ann" else ("loud", "eve")), scan)
    assert len(made) == KAFKA_SCAN_CONSUMERS_MAX > READ_THREADS
    assert len(kept["ann"]) > KAFKA_SCAN_CONSUMERS_MAX
    assert kept["ann"] == [False] + [True] * (len(kept["ann"]) - 1)
    assert not all(kept["eve"][3 * KAFKA_SCAN_CONSUMERS_MAX :]), "who scans much takes turns with them"


def test_a_topic_that_does_not_say_its_offsets_yet_is_asked_again() -> None:
    """As one that was just made."""
    log, told = KafkaLog(kafka_config("127.0.0.1:9", "x."), "stop"), [-1001, 7]

    def list_offsets(asked: dict[Any, Any], **_: object) -> dict[Any, Future[Any]]:
        offset, answers = told.pop(0), {place: Future[Any]() for place in asked}
        for answer in answers.values():
            answer.set_result(SimpleNamespace(offset=offset))
        return answers

    log._admin.raw = cast(Any, SimpleNamespace(list_offsets=list_offsets))
    assert log.end_offsets() == {0: 7, 1: 7}
