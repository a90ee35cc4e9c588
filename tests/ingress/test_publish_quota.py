"""Do publish quotas let through what they say, no more and no less, and does nobody else notice?"""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.ingress.intake import Intake
from headgate.ingress.partitions import Partitions
from headgate.ingress.publish_http import Ingress
from headgate.ingress.publish_quota import PublishQuotas, TokenBucket
from headgate.ingress.publish_rpc import PublishRpc
from headgate.log.group_commit import LogUnavailableError
from headgate.objects.kinds.quotas import PUBLISH_BYTES, PUBLISH_EVENTS
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.objects.store.store import Store
from headgate.observe.metrics import EVENTS_ACCEPTED, QUOTA_EVENTS, QUOTA_REFUSED, REQUESTS_REFUSED
from headgate_api.event.http import encode_binary
from headgate_api.event.json_format import encode_batch
from headgate_api.event.model import Event
from headgate_api.limits import QUOTA_RETRY_AFTER_S_MAX
from headgate_api.objects.kinds import Kind, ObjectKey
from tests.calls import served
from tests.ingress.publisher import Log, answered, opened, request, said
from tests.ingress.support import Answer, FakeLog, call, fallback
from tests.objects.quotas import limit

BROKERS = {path: ServedBroker(f"{path}/1", DEFAULT_RULE) for path in ("ns/b", "ns/other", "free/b")}
EVENT = Event("1.0", "1", "/s", "t")


class World:
    """Quotas of a real store in a front whose time the test says."""

    def __init__(self, store: Store, fronts: int = 1) -> None:
        self.store = store
        self.now_s = 1_000.0
        self.log = FakeLog()
        self.quotas = PublishQuotas(store, fronts, lambda: self.now_s)
        self.quotas.refresh()
        self.intake = Intake(Partitions([self.log]), BROKERS.get, quotas=self.quotas)
        self.ingress = Ingress(self.intake, fallback)

    def limit(self, name: str = "q", **hard: int) -> None:
        names = {"events": PUBLISH_EVENTS, "bytes": PUBLISH_BYTES}
        limit(self.store, self.quotas, {names[key]: value for key, value in hard.items()}, name=name)

    def publish(self, path: str = "/ns/b", count: int = 1) -> Answer:
        headers, body = [("content-type", "application/cloudevents-batch+json")], encode_batch([EVENT] * count)
        if count == 1:
            headers, body = encode_binary(EVENT)
        answer, _ = asyncio.run(call(self.ingress, path=path, headers=headers, pieces=(body,)))
        assert answer is not None
        return answer

    def stored_in(self, seconds: float, step_s: float = 0.01, **options: Any) -> int:
        """Events of requests that were let in while a producer tries all the time."""
        before = len(self.log.events)
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            self.publish(**options)
        return len(self.log.events) - before


@pytest.fixture(autouse=True)
def _answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals do not wait: the tests say the time."""
    monkeypatch.setattr("headgate.ingress.publish_quota.QUOTA_REFUSAL_S", 0.0)


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def test_a_producer_over_the_quota_gets_429_and_when_to_come_back(world: World) -> None:
    world.limit(events=2)
    refused = REQUESTS_REFUSED.labels("publish-quota").value, QUOTA_REFUSED.labels("ns").value
    stored, accepted = QUOTA_EVENTS.labels("ns").value, EVENTS_ACCEPTED.value
    assert [world.publish().status for _ in range(3)] == [202, 202, 429]
    answer = world.publish("/ns/other")
    assert answer.status == 429, "the quota is the namespace's"
    assert answer.headers["retry-after"] == "1"
    assert answer.problem["code"] == "publish-quota"
    assert (
        "'ns' has exceeded its quota: headgate.dev/publish-events-per-second is limited to 2"
        in answer.problem["detail"]
    )
    assert [world.publish("/free/b").status for _ in range(9)] == [202] * 9, "nobody else's"
    assert (REQUESTS_REFUSED.labels("publish-quota").value, QUOTA_REFUSED.labels("ns").value) == (
        refused[0] + 2,
        refused[1] + 2,
    )
    assert (QUOTA_EVENTS.labels("ns").value, EVENTS_ACCEPTED.value) == (stored + 2, accepted + 11)
    world.now_s += 0.6
    assert [world.publish().status for _ in range(2)] == [202, 202]
    world.now_s += 0.3
    assert world.publish().status == 429


def test_a_refusal_waits_so_that_who_does_not_slow_down_is_slowed_down(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.ingress.publish_quota.QUOTA_REFUSAL_S", 0.2)
    world.limit(events=0)
    began_s = time.monotonic()
    assert world.publish().status == 429
    assert time.monotonic() - began_s >= 0.1  # half of it


def test_in_the_long_run_the_quota_is_stored_however_large_requests_are(world: World) -> None:
    world.limit(events=50)
    world.stored_in(2.0)
    assert abs(world.stored_in(20.0) - 1_000) <= 1
    world.now_s += 60
    assert abs(world.stored_in(60.0, 0.1, count=400) - 3_000) <= 400
    world.now_s += 60
    assert world.publish(count=400).status == 202
    assert world.publish(count=400).headers["retry-after"] == "8"


def test_bytes_count_as_they_come(world: World) -> None:
    world.limit(bytes=1)
    assert world.publish().status == 202
    answer = world.publish()
    assert "publish-bytes-per-second is limited to 1" in answer.problem["detail"]
    assert 10 < int(answer.headers["retry-after"]) <= QUOTA_RETRY_AFTER_S_MAX


def test_fronts_share_a_quota(store: Store) -> None:
    fronts = [World(store, 4) for _ in range(4)]
    fronts[0].limit(events=40)
    for front in fronts:
        front.quotas.refresh()
        front.stored_in(2.0, 0.02)
    assert abs(sum(front.stored_in(10.0, 0.02) for front in fronts) - 400) <= 4


def test_a_change_counts_at_once_and_fills_no_bucket(world: World) -> None:
    world.limit(events=0)
    assert (world.publish().status, world.publish().headers["retry-after"]) == (429, str(QUOTA_RETRY_AFTER_S_MAX))
    world.limit(events=3)
    world.now_s += 0.5
    assert [world.publish().status for _ in range(3)] == [202, 202, 429]
    world.limit("wider", events=1_000)
    assert world.publish().status == 429, "the narrowest of all quotas counts"
    world.limit(events=4)
    assert world.publish().status == 429
    world.store.delete(ObjectKey(Kind.RESOURCE_QUOTA, "ns", "q"))
    world.quotas.refresh()
    world.now_s += 0.1
    assert world.publish().status == 202
    world.store.delete(ObjectKey(Kind.RESOURCE_QUOTA, "ns", "wider"))
    world.quotas.refresh()
    assert world.quotas.get("ns/b/1") is None
    assert [world.publish().status for _ in range(5)] == [202] * 5


def test_what_is_not_stored_costs_nothing(world: World) -> None:
    world.limit(events=1)
    world.log.error = LogUnavailableError("full")
    assert [world.publish().status for _ in range(3)] == [503] * 3
    world.log.error = None
    assert [world.publish().status for _ in range(2)] == [202, 429]


def test_over_grpc_a_request_is_refused_and_may_come_again(tmp_path: Path, store: Store) -> None:
    async def work() -> None:
        world, log = World(store), Log(tmp_path / "log")
        world.limit(events=3)
        rpc = PublishRpc(Intake(log.partitions, BROKERS.get, quotas=world.quotas), log.producers)
        try:
            async with served(rpc.service()) as client:
                for producer in ("", "p"):
                    stream, first = await opened(client, producer)
                    answers = []
                    for number in range(first, first + 8, 2):
                        await stream.write(request(number, 2))
                        answers.append(await stream.read())
                        if number == first + 4:
                            world.now_s += 10  # now there is room: behind a gap nothing may be stored all the same
                    codes = [said(answer)[2] for answer in answers]
                    assert codes == [0, 0, "publish-quota", 0 if not producer else "log-unavailable"]
                    assert answers[2].refused.problem.retriable
                    world.now_s += 10
                    stream, again = await opened(client, producer)
                    if producer:
                        assert again == first + 4
                        assert await answered(stream, request(again, 4)) == (again, again + 3, 0)
                    world.now_s += 10
        finally:
            await log.close()

    asyncio.run(asyncio.wait_for(work(), 60))


@given(
    st.floats(0.01, 1e7),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 10_000)), min_size=1, max_size=50),
)
def test_a_bucket_gives_what_its_rate_brings_and_a_burst(rate: float, asked: list[tuple[float, int]]) -> None:
    bucket, now_s, taken, last = TokenBucket(rate, 0.0), 0.0, 0, 0
    for pause_s, count in asked:
        now_s += pause_s
        wait_s = bucket.wait_s(now_s)
        assert wait_s >= 0
        if not wait_s:
            bucket.take(count)
            taken, last = taken + count, count
        elif wait_s < 1e6:
            later = TokenBucket(rate, now_s)
            later.inherit(bucket)
            assert later.wait_s(now_s + wait_s) == 0, "who waits as long as he is told gets in"
    assert taken - last <= rate * (now_s + 1) * (1 + 1e-9)


def test_a_bucket_of_nothing_gives_nothing() -> None:
    assert TokenBucket(0.0, 0.0).wait_s(1e9) == math.inf
