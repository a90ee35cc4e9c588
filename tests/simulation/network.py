"""The network of a schedule: subscribers and dead-letter sinks that fail, and the way in for replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.delivery.retry import Answer, Outcome
from headgate_api.event.model import Event
from tests.simulation.ledger import PARTITIONS, Attempt
from tests.simulation.virtual import Disk

if TYPE_CHECKING:
    from headgate.delivery.post import PostOptions
    from tests.simulation.world import World


class Subscribers:
    """The network, as one life of the dispatcher has it."""

    def __init__(self, world: World, life: int, disk: Disk) -> None:
        self._world = world
        self._life = life
        self._disk = disk

    async def post(
        self,
        url: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        timeout_s: float,
        options: PostOptions | None = None,
    ) -> Outcome:
        world, number = self._world, int(url.rpartition("/")[2])
        ids = _ids(dict(headers), body)
        if url.startswith("http://sink/"):
            return await self._sink(number, ids, timeout_s)
        now = world.loop.now
        attempts = [
            Attempt(self._life, number, world.ids[id_], now, members=len(ids), wall_us=world.latest_us()) for id_ in ids
        ]
        world.ledger.attempts += attempts
        world.flying[number] = world.flying.get(number, 0) + 1
        most = world.ledger.parallel_max
        most[number] = max(most.get(number, 0), world.flying[number])
        try:
            outcome = await self._answer(number, ids, timeout_s)
        finally:
            world.flying[number] -= 1
        if self._disk.dead:
            await asyncio.sleep(3_600)  # nobody is there to hear it
        for attempt in attempts:
            attempt.ended_at, attempt.outcome = world.loop.now, outcome
        if outcome.reply is not None:
            for attempt in attempts:
                attempt.stored = False
        return outcome

    async def _answer(self, number: int, ids: list[str], timeout_s: float) -> Outcome:
        world, rng = self._world, self._world.rng
        delay_s = rng.uniform(0.0005, 0.05)
        if world.poison and any(int(id_.strip("er")) % world.poison == 1 for id_ in ids if id_[0] == "e"):
            await asyncio.sleep(delay_s)
            return Outcome(400, body=b"never")
        mood = "well" if world.healthy else world.mood(number)
        match mood:
            case "down":
                return Outcome(0, "connection", "refused", unsent=True)
            case "hangs":
                await asyncio.sleep(timeout_s)
                return Outcome(0, "timeout")
            case "refuses":
                await asyncio.sleep(delay_s)
                return Outcome(rng.choice([301, 400, 403, 413]))
            case "slow":
                delay_s = rng.uniform(0.0, 1.5 * timeout_s)
            case "flaky":
                fault = rng.choice(["500", "429", "reset", "protocol", "malformed", "none", "none"])
                if fault != "none":
                    await asyncio.sleep(delay_s)
                    return _FAULTS[fault]
            case _:
                pass
        if delay_s > timeout_s:
            await asyncio.sleep(timeout_s)
            return Outcome(0, "timeout")
        await asyncio.sleep(delay_s)
        if number == 1 and ids[0][0] == "e" and rng.random() < 0.2:
            headers = [("ce-specversion", "1.0"), ("ce-id", f"r{next(world.numbers)}")]
            return Outcome(200, reply=Answer(headers, b""))
        return Outcome(rng.choice([200, 202, 204]))

    async def _sink(self, number: int, ids: list[str], timeout_s: float) -> Outcome:
        world, rng = self._world, self._world.rng
        await asyncio.sleep(rng.uniform(0.001, 0.05))
        if not world.healthy and rng.random() < 0.4:
            return rng.choice([Outcome(503), Outcome(0, "connection"), Outcome(400)])
        if not self._disk.dead:
            world.ledger.at_sink.update((number, id_) for id_ in ids)
        return Outcome(202)


_FAULTS = {
    "500": Outcome(500),
    "429": Outcome(429, retry_after="1"),
    "reset": Outcome(0, "connection", "reset"),
    "protocol": Outcome(0, "protocol"),
    "malformed": Outcome(200, "reply-malformed"),
}


def _ids(headers: dict[str, str], body: bytes) -> list[str]:
    kind = headers.get("content-type", "")
    if kind.startswith("application/cloudevents-batch"):
        return [item["id"] for item in json.loads(body)]
    if kind.startswith("application/cloudevents"):
        return [json.loads(body)["id"]]
    return [headers["ce-id"]]


def _replied(attempt: Attempt, event_id: str) -> bool:
    """Whether an attempt was answered with the event of this id."""
    reply = attempt.outcome.reply if attempt.outcome else None
    return reply is not None and ("ce-id", event_id) in reply.headers


class Front:
    """The way in for replies."""

    def __init__(self, world: World, disk: Disk) -> None:
        self._world = world
        self._disk = disk

    async def __aenter__(self) -> Front:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def post(
        self,
        url: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        timeout_s: float,
        options: PostOptions | None = None,
    ) -> Outcome:
        world, named = self._world, dict(headers)
        answered = [attempt for attempt in world.ledger.attempts if _replied(attempt, named["ce-id"])]
        for attempt in answered:
            attempt.ended_at = None  # nobody knows yet what came of it
        await asyncio.sleep(world.rng.uniform(0.0005, 0.02))
        if self._disk.dead:
            await asyncio.sleep(3_600)
        event = Event("1.0", named["ce-id"], "/reply", "reply", extensions={"headgatehops": named["headgate-hops"]})
        stored = world.append(world.rng.randrange(PARTITIONS), [event])
        for attempt in answered:
            attempt.stored, attempt.ended_at = stored, world.loop.now
        if not stored:
            return Outcome(503)
        world.ledger.replies.append(event.id)
        return Outcome(202)
