"""A replay below a ceiling sends what the right of its maker gives then and now, and ends where there is none."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

from headgate.auth.authorizer import NOTHING
from headgate.auth.user import ANONYMOUS_NAME, User
from headgate.objects.api.grants import Grants
from headgate.replay.store import ReplayState
from headgate_api import limits
from headgate_api.errors import UnavailableError
from tests.delivery.harness import EventLog, Request, Routes, Subscriber, log, run, running, target
from tests.delivery.test_ceiling import below
from tests.replay.test_sender import asked, fill, names, progress_of, replays, state_of
from tests.support import until

__all__ = ["log"]
EVENTS = range(40)


class Rights:
    """Of one user to every broker; `ceiling` is what his right has now."""

    def __init__(self, ceiling: str = "", *, is_bound: bool = True) -> None:
        self.ceiling = ceiling
        self.is_bound = is_bound
        self.fails = 0
        self.asked: list[tuple[User, str]] = []
        self.authorizer = self

    def refresh(self) -> None:
        if self.fails:
            self.fails -= 1
            raise UnavailableError("busy")

    def has_ceilings(self, _user: User, _namespace: str) -> bool:
        return self.is_bound

    def ceiling_on(self, user: User, broker: str) -> str:
        self.asked.append((user, broker))
        return self.ceiling


def spec(**more: object) -> Any:
    return asked(owner="blue", groups=("team",), **more)


def given(rights: Rights) -> dict[str, Any]:
    return {"rights": cast(Grants, rights)}


def test_it_keeps_below_the_newest_ceiling_and_ends_without_a_right(
    tmp_path: Path, log: EventLog, monkeypatch: Any
) -> None:
    monkeypatch.setattr(limits, "REPLAY_RETRY_S", 0.0)  # asked anew for each event
    fill(log)
    rights = Rights("data.n < 20")

    async def take(request: Request) -> tuple[int, bytes]:
        if request.id == "e9":
            rights.ceiling = "data.n >= 12"
        if request.id == "e15":
            rights.fails, rights.ceiling = 3, NOTHING
        return 202, b""

    async def work() -> None:
        async with Subscriber(take) as subscriber, replays(tmp_path) as store:
            routes = Routes(target(1, subscriber.url, ordered=True))
            async with running(tmp_path, routes, **given(rights)) as worker:
                replay = await worker.dispatcher.deliveries.replays.create(
                    spec(trigger="t1", cel="data.n < 20", ceiling="data.n < 20", end={0: 21, 1: 20})
                )
                await until(lambda: state_of(store, replay) is not ReplayState.RUNNING)
                found = store.get("default", replay.id)
            assert found is not None
            assert sorted(subscriber.ids) == names(*range(10), *range(12, 16))
            assert (found.state, found.problem) == (
                ReplayState.FAILED,
                "blue has no right to the events of default/default any more",
            )
            assert rights.asked[0] == (User("blue", ("team",)), "default/default")

    run(work())


def test_a_page_is_looked_for_below_the_ceiling_of_now(tmp_path: Path, log: EventLog) -> None:
    """What is counted is below that of then, too, though the right has become wider."""
    fill(log)

    async def work() -> None:
        async with Subscriber() as subscriber, replays(tmp_path) as store:
            for ceiling, then, wanted in (
                ("data.n >= 30", "", range(30, 40)),
                ("data.n >= 30", "data.n < 35", range(30, 35)),
                ("", "data.n < 5", range(5)),
            ):
                rights, subscriber.requests = Rights(ceiling), []
                async with running(tmp_path, Routes(), **given(rights)) as worker:
                    replay = await worker.dispatcher.deliveries.replays.create(
                        spec(url=subscriber.url, cel=then, ceiling=then)
                    )
                    await until(lambda replay=replay: state_of(store, replay) is ReplayState.DONE)
                assert sorted(subscriber.ids) == names(*wanted)
                assert progress_of(store, replay).matched == len(wanted)

    run(work())


def test_who_has_no_ceiling_is_asked_for_nothing(tmp_path: Path, log: EventLog) -> None:
    fill(log)

    async def work() -> None:
        async with Subscriber() as subscriber, replays(tmp_path) as store:
            free, nobody = Rights(NOTHING, is_bound=False), Rights(NOTHING)
            for rights, more in ((free, {"owner": "blue", "groups": ("team",)}), (nobody, {})):
                subscriber.requests.clear()
                async with running(tmp_path, Routes(), **given(rights)) as worker:
                    one = asked(url=subscriber.url, **more)
                    replay = await worker.dispatcher.deliveries.replays.create(one)
                    await until(lambda replay=replay: state_of(store, replay) is ReplayState.DONE)
                assert sorted(subscriber.ids) == names(*EVENTS)
                assert rights.asked == []
            nameless = asked(url=subscriber.url, groups=("system:unauthenticated",), ceiling="data.n > 1")
            anybody = Rights("data.n > 1")
            async with running(tmp_path, Routes(), **given(anybody)) as worker:
                replay = await worker.dispatcher.deliveries.replays.create(nameless)
                await until(lambda: state_of(store, replay) is ReplayState.DONE)
            assert anybody.asked[0][0].name == ANONYMOUS_NAME

    run(work())


def test_a_trigger_gets_what_its_own_ceiling_of_now_gives(tmp_path: Path, log: EventLog) -> None:
    """Its rows may be older: the ceiling is written first, and then the filter is compiled anew."""
    fill(log)

    async def work() -> None:
        async with Subscriber() as subscriber, replays(tmp_path) as store:
            plain = target(1, subscriber.url, cel="data.n < 10")
            newer = dataclasses.replace(plain, filter=dataclasses.replace(plain.filter, ceiling="data.n >= 5"))
            assert newer.filter.cel == plain.filter.cel != below(plain, "data.n >= 5").filter.cel
            async with running(tmp_path, Routes(newer)) as worker:
                replay = await worker.dispatcher.deliveries.replays.create(asked(trigger="t1"))
                await until(lambda: state_of(store, replay) is ReplayState.DONE)
            assert sorted(subscriber.ids) == names(*range(5, 10))
            assert progress_of(store, replay).matched == 5

    run(work())
