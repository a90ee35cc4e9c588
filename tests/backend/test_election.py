"""One process leads: others stand by, and one of them takes over when it stops, is killed, or stands still."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from clusters.kafka import Kafka

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.election import Election, Loss
from headgate.backend.kafka.matcher_leadership import is_followed
from headgate_api.errors import InvalidInputError
from tests.backend.stores import deployed
from tests.support import eventually

pytestmark = pytest.mark.kafka
WAIT_S_MAX = 60.0
PROGRAM = """
import sys, threading
from headgate.backend.kafka.election import Election
from tests.backend.stores import kafka_config
say = lambda text: print(text, flush=True)
lost = lambda reason: say(f"lost: {reason}")
config = kafka_config(sys.argv[1], sys.argv[2])
own = {"on_gained": lambda: say("gained"), "on_lost": lost, "name": "other"}
Election(config, topic="runs", group="matcher", **own).run(threading.Event())
"""


class Candidate:
    """One that runs in a thread of this process."""

    def __init__(self, config: KafkaConfig) -> None:
        self.told: list[str] = []
        self.changed = threading.Condition()
        self.election = Election(
            config, topic="runs", group="matcher", on_gained=lambda: self._tell("gained"), on_lost=self._tell
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.election.run, args=(self._stop,))
        self._thread.start()

    def _tell(self, what: str) -> None:
        with self.changed:
            self.told.append(what)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S_MAX), self.told

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S_MAX)
        assert not self._thread.is_alive()
        assert not self.election.leads


@pytest.fixture
def config(kafka: Kafka) -> KafkaConfig:
    return deployed(kafka, "runs")


@pytest.fixture
def other(config: KafkaConfig) -> Iterator[subprocess.Popen[str]]:
    """Another process, which leads."""
    command = [sys.executable, "-c", PROGRAM, config.bootstrap, config.topic_prefix]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_said(process, "gained\n")
            yield process
        finally:
            process.kill()


def wait_said(process: subprocess.Popen[str], wanted: str) -> None:
    """Reads lines until one is this; the others are of the log."""
    assert process.stdout is not None
    for line in process.stdout:
        if line == wanted:
            return
    raise AssertionError(f"the other process ended before it said {wanted!r}")


def test_who_stops_hands_the_lead_over_at_once(config: KafkaConfig) -> None:
    first = Candidate(config)
    first.wait(lambda: first.told == ["gained"])
    second = Candidate(config)
    try:
        eventually(lambda: second.election.is_decided)
        assert second.told == [], "it knows that another one leads, before it ever led"
        before = time.monotonic()
        first.stop()
        second.wait(lambda: second.told == ["gained"])
        took_s = time.monotonic() - before
        assert len(first.told) == 2
        assert first.told[-1] in (Loss.GIVEN_AWAY, Loss.ENDS)
        assert second.election.leads
        print(f"handed over in {took_s:.1f} s")
    finally:
        second.stop()


@pytest.mark.slow
def test_a_killed_leader_is_followed_after_its_session(config: KafkaConfig, other: subprocess.Popen[str]) -> None:
    stand_by = Candidate(config)
    try:
        eventually(lambda: stand_by.election.is_decided)
        assert not stand_by.election.leads
        before = time.monotonic()
        other.kill()
        assert is_followed(config, "other"), "it is a member until its session ends"
        assert not is_followed(config, "a third one")
        stand_by.wait(lambda: stand_by.told == ["gained"])
        assert not is_followed(config, "other")
        print(f"followed after {time.monotonic() - before:.1f} s")
    finally:
        stand_by.stop()


@pytest.mark.slow
def test_a_leader_that_stood_still_learns_that_it_leads_no_more(
    config: KafkaConfig, other: subprocess.Popen[str]
) -> None:
    stand_by = Candidate(config)
    try:
        other.send_signal(signal.SIGSTOP)
        stand_by.wait(lambda: stand_by.told == ["gained"])
        other.send_signal(signal.SIGCONT)
        wait_said(other, f"lost: {Loss.SILENT}\n")
        assert stand_by.told == ["gained"], "the one that came back took the lead again"
    finally:
        stand_by.stop()


def test_an_option_that_is_none_is_an_error(config: KafkaConfig) -> None:
    wrong = config.model_copy(update={"options": {"no.such.option": "1"}})
    with pytest.raises(InvalidInputError, match=r"no\.such\.option"):
        Election(wrong, topic="runs", group="matcher", on_gained=lambda: None, on_lost=lambda _reason: None)
