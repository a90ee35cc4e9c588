"""Dead letters of several dispatchers: one list in pages that stay correct, and selections that reach everybody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.auth.authorizer import NOTHING
from headgate.auth.context import USER
from headgate.auth.user import ANONYMOUS, User, authenticated
from headgate.deadletters.api import DeadLettersApi
from headgate.deadletters.own import LetterRights, OpaqueIds, OwnLetters
from headgate.deadletters.sink_sender import DeadLetters
from headgate.deadletters.store import DeadLetterState, DeadLetterStore
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.store.store import Store
from headgate.outbox.shards import Shard
from headgate.server import child
from headgate.server.authentication import UsersOfFronts
from headgate.server.peers import local_http
from headgate.server.peers.dead_letters import DeadLettersFront
from headgate.server.peers.dispatcher_group import DispatcherGroup, DispatcherReach, LocalDispatchers
from headgate.server.peers.partition_owners import PartitionOwners
from headgate.server.peers.servers import PeerServers
from headgate.server.processes.kafka.partition_answers import partitions_api
from headgate.settings import Settings
from headgate.storage.files import directories_of
from headgate.testing.server import free_port
from tests.deadletters.letters import letter
from tests.deadletters.test_api import BASE
from tests.delivery.harness import attempt_service, event, target

BLUE = replace(authenticated("blue"), ceiling=NOTHING)
IDS = OpaqueIds(bytes(range(32)))
Reaching = Callable[[Path, list[list[Route]]], contextlib.AbstractAsyncContextManager[DispatcherReach]]
"""Serves the routes of dispatchers, by their numbers."""


@dataclass
class World:
    """The front's handlers, and what the dispatchers behind them have."""

    app: Starlette
    stores: list[DeadLetterStore]
    stack: contextlib.AsyncExitStack
    user: User = ANONYMOUS

    async def ask(self, method: str, path: str, body: object = None, **query: object) -> tuple[int, Any]:
        sent: list[Any] = []
        data = b"" if body is None else json.dumps(body).encode()

        async def receive() -> Any:
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json"), (b"authorization", b"Bearer theirs")]
        text = urlencode(query).encode()
        scope = {"type": "http", "method": method, "path": path, "query_string": text, "headers": headers}
        await self.app(scope | {USER: self.user}, receive, send)
        return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent))

    async def listed(self, **query: object) -> list[list[int]]:
        """The ids of all pages of a list."""
        pages: list[list[int]] = []
        more: dict[str, object] = {}
        while True:
            status, answer = await self.ask("GET", BASE, **query, **more)
            assert status == 200, answer
            pages.append([item["id"] for item in answer["items"]])
            if "next" not in answer:
                return pages
            more = {"after": answer["next"], "ceiling": answer["ceiling"]}

    async def changed(self, what: str, **selection: object) -> list[int]:
        """The counts of all pages of a redrive or discard."""
        counts: list[int] = []
        while True:
            status, answer = await self.ask("POST", f"{BASE}/{what}", selection)
            assert status == 200, answer
            counts.append(answer["count"])
            if "next" not in answer:
                return counts
            selection |= {"after": answer["next"], "ceiling": answer["ceiling"]}

    @property
    def ids(self) -> list[int]:
        return sorted(
            one.id for store in self.stores for one in store.reader.summaries("TRUE", (), after=0, limit=10_000)
        )


class Owned:
    """A partition that a process has."""

    def __init__(self, api: ASGIApp) -> None:
        self.api = api


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, port: int) -> AsyncIterator[None]:
    """Another server's front."""
    server = child.UvicornServer(uvicorn.Config(app, port=port, lifespan="off", log_config=None))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def beside_each_other(data: Path, apis: list[list[Route]]) -> AsyncIterator[DispatcherReach]:
    """The dispatchers of one server."""
    settings = Settings(data=data, dispatchers=len(apis))
    async with contextlib.AsyncExitStack() as stack:
        for number, routes in enumerate(apis):
            app = UsersOfFronts(Starlette(routes=routes, exception_handlers=ERROR_HANDLERS))
            await stack.enter_async_context(local_http.answering(app, settings.dispatcher_socket(number)))
        yield LocalDispatchers(settings)


@contextlib.asynccontextmanager
async def on_two_servers(data: Path, apis: list[list[Route]], user: User = ANONYMOUS) -> AsyncIterator[DispatcherReach]:
    """The owners of partitions of the outbox, in turn on this server and on another; each was elsewhere before.

    The other one's gate knows the client as this user.
    """
    async with contextlib.AsyncExitStack() as stack:
        ports = [free_port(), free_port()]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        now = {number: urls[number % 2] for number in range(len(apis))}
        looks = iter([{number: urls[(number + 1) % 2] for number in now}])
        reaches = []
        for one in (0, 1):
            settings = Settings(data=data / str(one), listen=urls[one].removeprefix("http://"), grpc="off")
            owned = {number: Owned(Router(routes)) for number, routes in enumerate(apis) if number % 2 == one}
            answering = local_http.answering(UsersOfFronts(partitions_api(owned)), settings.dispatcher_socket(0))
            await stack.enter_async_context(answering)
            reaches.append(PartitionOwners(settings, len(apis), lambda: next(looks, now), PeerServers(settings)))
        group = DispatcherGroup(reaches[1], cast(Store, None))
        routes = reaches[1].routes(list(DeadLettersFront(group).routes()))
        front = Starlette(routes=routes, exception_handlers=ERROR_HANDLERS)

        async def known(scope: Scope, receive: Receive, send: Send) -> None:
            await front(scope | {USER: user}, receive, send)

        await stack.enter_async_context(serving(known, ports[1]))
        yield reaches[0]


@contextlib.asynccontextmanager
async def world(data: Path, counts: tuple[int, ...], reaching: Reaching) -> AsyncIterator[World]:
    """Dispatchers with so many dead letters each; whoever has a ceiling has those of even numbers."""
    async with contextlib.AsyncExitStack() as stack:
        stores: list[DeadLetterStore] = []
        apis: list[list[Route]] = []
        for number, own in enumerate(directories_of(data, len(counts))):
            shard = Shard(number, len(counts))
            store = stack.enter_context(contextlib.closing(DeadLetterStore(own.dead_letters, shard)))
            kept = [
                letter(n, state=DeadLetterState.KEPT, event=event(n, data=b'{"n":%d}' % n), died_us=1)
                for n in range(counts[number])
            ]
            store.apply(kept, [], [])
            stores.append(store)
            dead_letters = DeadLetters(
                own.dead_letters,
                attempt_service(None),
                lambda id_: target(id_, "http://x/"),
                shard,
                find_trigger=lambda name: target(9, "http://x/") if name == "default/heir" else None,
            )
            stack.push_async_callback(dead_letters.close)
            apis.append(list(DeadLettersApi(own.dead_letters, dead_letters, cast(LetterRights, Even())).routes()))
        group = DispatcherGroup(await stack.enter_async_context(reaching(data, apis)), cast(Store, None))
        front = Starlette(routes=list(DeadLettersFront(group).routes()), exception_handlers=ERROR_HANDLERS)
        yield World(front, stores, stack)


class Even:
    """What a user below a ceiling has."""

    async def of(self, user: User) -> OwnLetters:
        assert user.name == BLUE.name
        return OwnLetters(lambda _: "data.n % 2 == 0", IDS, 9)


def run(
    counts: tuple[int, ...], work: Callable[[World], Awaitable[None]], reaching: Reaching = beside_each_other
) -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:  # paths of Unix sockets are short
            async with world(Path(folder), counts, reaching) as made:
                await work(made)

    asyncio.run(main())


@pytest.mark.parametrize("counts", [(0,), (7,), (5, 5), (0, 9), (12, 1, 3)])
@pytest.mark.parametrize("limit", [1, *(pytest.param(one, marks=pytest.mark.slow) for one in (2, 7)), 3, 1_000])
def test_pages_show_every_dead_letter_once_in_order(counts: tuple[int, ...], limit: int) -> None:
    async def work(made: World) -> None:
        pages = await made.listed(limit=limit)
        assert [id_ for page in pages for id_ in page] == made.ids
        newest = await made.listed(limit=limit, newest="true")
        assert [id_ for page in newest for id_ in page] == made.ids[::-1]
        assert len(made.ids) == sum(counts)
        assert all(len(page) == limit for page in pages[:-1])
        assert len(pages[-1]) <= limit

    run(counts, work)


@pytest.mark.parametrize("limit", [1, 2, 1_000])
def test_those_of_several_dispatchers_come_in_the_order_in_which_they_died(limit: int) -> None:
    """Ids have an order in each of them alone."""

    async def work(made: World) -> None:
        for number, store in enumerate(made.stores):
            store.apply([letter(99 + n, died_us=1_000 * n - number) for n in range(1, 4)], [], [])
        pages = await made.listed(limit=limit)
        first, second = (
            [one.id for one in store.reader.summaries("TRUE", (), after=0, limit=9)] for store in made.stores
        )
        wanted = [id_ for pair in zip(second, first, strict=True) for id_ in pair]
        assert [id_ for page in pages for id_ in page] == wanted
        newest = await made.listed(limit=limit, newest="true")
        assert [id_ for page in newest for id_ in page] == wanted[::-1]

    run((0, 0), work)


def test_pages_with_a_filter_go_through_all(tmp_path: Path) -> None:
    async def work(made: World) -> None:
        pages = await made.listed(limit=2, filter="ce.id == 'e3'")
        assert sorted(id_ for page in pages for id_ in page) == [7, 8]  # the fourth of each

    run((6, 5), work)


@pytest.mark.parametrize(
    "counts", [(7,), (12, 1, 3), *(pytest.param(one, marks=pytest.mark.slow) for one in ((5, 5), (0, 9)))]
)
@pytest.mark.parametrize("limit", [1, pytest.param(3, marks=pytest.mark.slow), 1_000])
@pytest.mark.parametrize("what", ["redrive", "redrive/heir", "discard"])
def test_a_selection_reaches_everybody_once(counts: tuple[int, ...], limit: int, what: str) -> None:
    async def work(made: World) -> None:
        assert sum(await made.changed(what, limit=limit)) == sum(counts)
        assert (await made.changed(what)) == [0]
        left = {one.state for store in made.stores for one in store.reader.summaries("TRUE", (), after=0, limit=99)}
        assert left == (set() if what == "discard" else {"redriving"})

    run(counts, work)


@pytest.mark.parametrize(("limit", "status"), [("2", 200), ("0", 400), ("1001", 400), ("x", 400)])
def test_counts_have_no_more_rows_than_wanted(limit: str, status: int) -> None:
    async def work(made: World) -> None:
        found, answer = await made.ask("GET", f"{BASE}/counts", limit=limit)
        assert found == status, answer
        if status == 200:
            assert len(answer["items"]) <= int(limit)
            assert answer["total"] == 12

    run((5, 7), work)


def test_what_dies_meanwhile_is_not_of_the_selection() -> None:
    async def work(made: World) -> None:
        _, first = await made.ask("POST", f"{BASE}/discard", {"limit": 2})
        assert (first["count"], first["next"]) == (2, "1.2")
        for store in made.stores:
            store.apply([letter(100, state=DeadLetterState.KEPT)], [], [])
        rest = {"limit": 1_000, "after": first["next"], "ceiling": first["ceiling"]}
        assert (await made.ask("POST", f"{BASE}/discard", rest))[1] == {"count": 18 - 2}
        assert len(made.ids) == 2

    run((15, 3), work)


@pytest.mark.parametrize("what", ["redrive", "redrive/heir", "discard"])
def test_an_id_that_nobody_has_is_an_error_and_nothing_is_done(what: str) -> None:
    async def work(made: World) -> None:
        ids = [1, 2, 4, 99, 4711]
        status, answer = await made.ask("POST", f"{BASE}/{what}", {"ids": ids})
        assert (status, "99, 4711" in answer["message"]) == (404, True)
        assert (await made.ask("POST", f"{BASE}/{what}", {"ids": [3], "state": "redriving"}))[1]["count"] == 0
        assert await made.changed(what, ids=ids[:3]) == [3]

    run((3, 3), work)


def test_one_is_shown_whoever_has_it() -> None:
    async def work(made: World) -> None:
        for id_ in made.ids:
            status, answer = await made.ask("GET", f"{BASE}/{id_}")
            assert (status, answer["id"]) == (200, id_)
        status, answer = await made.ask("GET", f"{BASE}/99")
        assert (status, "no dead letter 99" in answer["message"]) == (404, True)
        assert (await made.ask("GET", f"{BASE}/x"))[0] == 400

    run((2, 3), work)


def test_owners_of_partitions_on_two_servers_answer_as_dispatchers_of_one() -> None:
    """Each partition is looked for where it was before, and found where it is."""

    async def work(made: World) -> None:
        first = made.ids[:4]
        assert await made.ask("POST", f"{BASE}/known", {"ids": [*first, 4711]}) == (200, {"known": first})
        assert [id_ for page in await made.listed(limit=3) for id_ in page] == made.ids
        for id_ in first:
            status, answer = await made.ask("GET", f"{BASE}/{id_}")
            assert (status, answer["id"]) == (200, id_)
        status, answer = await made.ask("POST", f"{BASE}/discard", {"ids": [first[0], 4711]})
        assert (status, "no dead letter 4711" in answer["message"]) == (404, True)
        assert await made.changed("discard", ids=first) == [4]
        status, answer = await made.ask("POST", f"{BASE}/redrive/nobody", {})
        assert (status, "no trigger 'nobody'" in answer["message"]) == (404, True)
        assert sum(await made.changed("redrive/heir", limit=6)) == 12 - 4
        left = {one.state for store in made.stores for one in store.reader.summaries("TRUE", (), after=0, limit=99)}
        assert left == {"redriving"}

    run((4, 3, 5), work, on_two_servers)


@pytest.mark.parametrize("reaching", [beside_each_other, partial(on_two_servers, user=BLUE)], ids=["one", "two"])
@pytest.mark.parametrize("limit", [1, 3, 1_000])
def test_a_user_below_a_ceiling_has_a_part_of_each_and_knows_them_by_other_ids(reaching: Reaching, limit: int) -> None:
    """Every dispatcher, on whichever server, judges by his right, and by the same numbers."""

    async def work(made: World) -> None:
        whole, made.user = set(made.ids), BLUE
        pages = await made.listed(limit=limit)
        assert all(len(page) == limit for page in pages[:-1])
        found = [id_ for page in pages for id_ in page]
        meant = list(map(IDS.meant, found))
        own = {one.id for store in made.stores for one in store.reader.summaries("TRUE", (), after=0, limit=99)}
        own = {id_ for id_ in own if any(_is_even(store, id_) for store in made.stores)}
        assert (len(found), set(meant)) == (len(own), own)
        assert (len(own), own < whole) == (7, True)
        assert (await made.ask("GET", f"{BASE}/counts"))[1]["total"] == 7
        for id_ in found:
            status, answer = await made.ask("GET", f"{BASE}/{id_}")
            assert (status, answer["id"]) == (200, id_)
        for other in (*sorted(whole - own), *map(IDS.shown, whole - own)):
            assert (await made.ask("GET", f"{BASE}/{other}"))[0] == 404
        assert (await made.ask("POST", f"{BASE}/known", {"ids": [*found, *whole]}))[1]["known"] == sorted(found)
        assert await made.changed("discard", ids=found[:3]) == [3]
        assert sum(await made.changed("redrive/heir", limit=limit)) == 4
        assert whole - set(made.ids) == set(map(IDS.meant, found[:3]))

    run((4, 3, 5), work, reaching)


def _is_even(store: DeadLetterStore, id_: int) -> bool:
    found = store.reader.get(id_)
    return found is not None and found.position % 2 == 0


@pytest.mark.parametrize("after", ["1", "1.2.3", "1.x", "-1.2", "²." + "1", "9" * 30 + ".1"])
def test_a_place_of_no_page_is_refused(after: str) -> None:
    async def work(made: World) -> None:
        status, answer = await made.ask("GET", BASE, after=after)
        assert (status, "is no place" in answer["message"]) == (400, True)

    run((2, 3), work)


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": "x"}, {"nosuch": 1}, {"ids": 1}, {"state": "x"}])
def test_a_query_that_cannot_be_meant_is_refused(query: dict[str, object]) -> None:
    async def work(made: World) -> None:
        assert (await made.ask("GET", BASE, **query))[0] == 400

    run((2, 3), work)


def test_a_dispatcher_that_is_away_is_no_empty_one(tmp_path: Path) -> None:
    async def work() -> None:
        group = DispatcherGroup(LocalDispatchers(Settings(data=tmp_path, dispatchers=2)), cast(Store, None))
        app = Starlette(routes=list(DeadLettersFront(group).routes()), exception_handlers=ERROR_HANDLERS)
        made = World(app, [], contextlib.AsyncExitStack())
        for path in (BASE, f"{BASE}/1"):
            assert (await made.ask("GET", path))[0] == 503
        assert (await made.ask("POST", f"{BASE}/discard", {}))[0] == 503

    asyncio.run(work())
