"""The matcher on a real Kafka: generations under load, a killed driver, a driver that stood still, too few slots."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusters.kafka import Kafka
from pyspark.sql import SparkSession

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka import matcher_leadership as matcher_module
from headgate.backend.kafka.election import Election, Loss
from headgate.backend.kafka.matcher_leadership import KafkaMatcher, MatcherHooks, wait_slots
from headgate.backend.kafka.runs import follow_generations
from headgate.backend.kafka.topics import Admin
from headgate.match.errors import SparkSlotsError
from tests.backend.matcher_world import Filters, Load, Reader, Worker, check_rows, quantile, world_config
from tests.support import eventually, times

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
CHANGES = times(2, 8, 100)
"""Changes of filters."""
RATE = 200
"""Events a second."""


@pytest.fixture
def config(kafka: Kafka) -> KafkaConfig:
    config = world_config(kafka.bootstrap, f"m{uuid.uuid4().hex[:8]}.")
    Admin(config).create_missing()
    return config


class World:
    """A deployment: filters, events that come in, and a dispatcher that reads; a test adds the matcher."""

    def __init__(self, config: KafkaConfig, rate: float) -> None:
        self.config = config
        self.filters = Filters()
        self.reader = Reader(config)
        self.load = Load(config, rate, self.reader)
        self._load = Worker(self.load.run)
        self._others = [
            Worker(self.reader.run),
            Worker(lambda stop: follow_generations(config, self.filters.set_active_generation, stop)),
        ]

    def add(self, run: Callable[[threading.Event], object]) -> Worker:
        worker = Worker(run)
        self._others.append(worker)
        return worker

    def check_alive(self) -> None:
        for worker in (self._load, *self._others):
            worker.check()

    def wait(self, until: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            self.check_alive()
            return until()

        eventually(holds, what)

    def settle(self) -> None:
        """No event comes in any more, and each has reached the reader."""
        self._load.end()
        missing = list(self.load.stored)

        def all_read() -> bool:
            while missing and self.reader.has(missing[-1]):
                missing.pop()
            return not missing

        self.wait(all_read, "every event is read")

    def end(self) -> None:
        workers = (*reversed(self._others), self._load)
        for worker in workers:
            worker.stop.set()  # all of them, though one of them failed
        for worker in workers:
            worker.end()


@pytest.fixture
def world(config: KafkaConfig) -> Iterator[World]:
    world = World(config, RATE)
    yield world
    world.end()


@pytest.mark.slow
@pytest.mark.timeout(120 + 15 * CHANGES)
def test_changes_of_filters_under_load_lose_nothing(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.add(KafkaMatcher(spark, world.config, world.filters, tmp_path).run)
    world.filters.wait_active(1, world.check_alive)
    newest = list(world.load.stored)[-1]
    world.wait(lambda: world.reader.has(newest), "what came before the first run is read")
    before = len(world.load.stored)
    began = time.monotonic()
    for generation in range(2, CHANGES + 2):
        world.filters.generation = generation
        world.filters.wait_active(generation, world.check_alive)
    took_s = time.monotonic() - began
    during = list(world.load.stored)[before:]
    world.settle()
    true, counted = check_rows(world.reader, world.load.stored)
    delays = [world.reader.delays_s[place] for place in during]
    print(
        f"\n{CHANGES} changes in {took_s:.1f} s, {len(world.load.stored)} events, {true} true pairs, 0 lost, 0 wrong;"
        f" last row of an event at a reader p50 {quantile(delays, 0.5) * 1e3:.0f} ms,"
        f" p99 {quantile(delays, 0.99) * 1e3:.0f} ms"
    )
    assert true > len(world.load.stored)
    assert counted > CHANGES / 2


@pytest.mark.slow  # the election without a matcher is in test_election.py
def test_a_leader_of_which_kafka_has_not_heard_goes_on_and_one_that_gave_the_lead_away_ends(
    spark: SparkSession, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Callable[[Loss], object]] = []

    def made(*arguments: object, on_lost: Callable[[Loss], object], **more: object) -> Election:
        told.append(on_lost)
        return Election(*arguments, on_lost=on_lost, **more)

    monkeypatch.setattr(matcher_module, "Election", made)
    notes: list[str] = []
    world.add(KafkaMatcher(spark, world.config, world.filters, tmp_path, MatcherHooks(on_note=notes.append)).run)
    world.filters.wait_active(1, world.check_alive)
    told[0](Loss.SILENT)
    world.filters.generation = 2
    world.filters.wait_active(2, world.check_alive)
    assert notes.count("leads") == 1, "its loop has not ended"
    told[0](Loss.GIVEN_AWAY)
    world.wait(lambda: notes.count("leads") == 2, "the loop has ended, and begins anew: Kafka has taken nothing")
    world.settle()
    check_rows(world.reader, world.load.stored)


@pytest.mark.slow
def test_a_killed_driver_is_followed_by_the_one_that_stands_by(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.backend.matcher_program", world.config.bootstrap, world.config.topic_prefix]
    (tmp_path / "other.secret").write_text("from a file\n")
    with subprocess.Popen([*command, str(tmp_path / "other"), "1"], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert "local[5] from a file\n" in other.stdout, "master and options of the configuration reach Spark"
            assert any(line.startswith("generation 1 in force") for line in other.stdout), "the other matcher ended"
            notes: list[str] = []
            hooks = MatcherHooks(on_note=notes.append)

            def in_force() -> bool:
                return any("in force by" in note for note in notes)

            world.add(KafkaMatcher(spark, world.config, world.filters, tmp_path / "own", hooks).run)
            world.wait(lambda: any(note.startswith("stands by") for note in notes), "it stands by")
            world.wait(lambda: len(world.reader.rows) > 100, "the first one matches")
            assert not in_force()
        finally:
            other.kill()
        killed, before = time.monotonic(), len(world.load.stored)
        world.wait(in_force, "the stand-by has taken over")
        took_s = time.monotonic() - killed
    world.settle()
    true, _ = check_rows(world.reader, world.load.stored)
    silence_s = max(world.reader.delays_s[place] for place in list(world.load.stored)[before:])
    print(f"\nin force after {took_s:.1f} s, {silence_s:.1f} s of silence, {true} true pairs, 0 lost, 0 wrong")


def test_too_few_slots_end_the_matcher_with_what_to_do(
    spark: SparkSession, config: KafkaConfig, tmp_path: Path
) -> None:
    wait_slots(spark, 2, threading.Event())
    with pytest.raises(SparkSlotsError, match="Spark has 5 task slots") as caught:
        wait_slots(spark, 3, threading.Event())
    assert "local[6]" in caught.value.hint
