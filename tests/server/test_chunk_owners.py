"""Chunks find the front that owns their partition, of this server or of another one; doors open for servers alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headgate.event.arrow import StoredEvent, from_batch_all, to_batch
from headgate.ingress.front_link import FrontUnavailableError
from headgate.ingress.producers import NumbersMovedError
from headgate.log.group_commit import Sifted
from headgate.log.writer import Encoded, Numbers
from headgate.server.peers import chunk_owners, partition_owners
from headgate.server.peers.chunk_owners import (
    PASS,
    PATH,
    ChunkOwners,
    NoWriterError,
    PassRefusedError,
)
from headgate.server.peers.local_http import PartUnavailableError, answering, ask
from headgate.server.peers.servers import PeerServers
from headgate.settings import Settings
from headgate_api.errors import HeadgateError, OverloadedError, TooLargeError, UnavailableError
from headgate_api.event.model import Event
from headgate_api.limits import SERVER_PASS_CHECKS_MAX
from tests.certificates import Authority

WINDOWS = {"shop/once/u1": 60_000_000}
NUMBERS = [Numbers("shop/once/u1", "p", 1 << 61, -1, (1 << 64) - 2)]
ANSWER = Sifted([7, 3], [False, True])


def chunk(*ids: str) -> Encoded:
    rows = [StoredEvent("shop/once/u1", Event("1.0", one, "/s", "t")) for one in ids]
    return Encoded(to_batch(rows), ["v" for _ in ids], windows=WINDOWS, sizes={"shop": 5}, numbers=NUMBERS)


async def nothing(_: Scope, __: Receive, send: Send) -> None:
    await Response(b"the API", 404)(_, __, send)


class Passes:
    """Of all servers; `good` is one that is known once it was looked for."""

    def __init__(self) -> None:
        self.shown, self.good = b"good", {b"good"}
        self.known: set[bytes] = set()
        self.checked = self.refusals = 0

    def show(self) -> bytes:
        return self.shown

    def refused(self) -> None:
        self.refusals += 1

    def is_known(self, shown: bytes) -> bool:
        return shown in self.known

    def check(self, shown: bytes) -> bool:
        self.checked += 1
        if shown == b"unsure":
            raise UnavailableError("no Kafka")
        self.known |= self.good & {shown}
        return shown in self.good


class World:
    """Servers by their URLs, whose addresses are sockets of this folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.announced: dict[int, str] = {}
        self.stored: list[tuple[str, int, list[str]]] = []
        self.error: HeadgateError | None = None
        self.passes = Passes()

    def place(self, url: str, *, as_itself: bool = False) -> Path:
        return self.folder / f"{url.rpartition('/')[2]}.tcp"

    def peers(self, url: str) -> PeerServers:
        class Peers:
            own_url = url
            place = staticmethod(self.place)

        return cast(PeerServers, Peers())

    def settings(self, name: str) -> Settings:
        return Settings(data=self.folder / name, fronts=2, grpc="off", kafka="127.0.0.1:1", role="front")

    def front(self, name: str, number: int, owned: set[int]) -> ChunkOwners:
        def store(partition: int, given: Encoded, size_bytes: int) -> Awaitable[Sifted] | None:
            assert size_bytes > 0
            return self.store(f"{name}/{number}", partition, given) if partition in owned else None

        peers = self.peers(f"http://{name}")
        return ChunkOwners(self.settings(name), number, lambda: self.announced, peers, self.passes, self.passes, store)

    async def store(self, front: str, partition: int, given: Encoded) -> Sifted:
        if self.error is not None:
            raise self.error
        assert (given.windows, given.sizes, given.numbers) == (WINDOWS, {"shop": 5}, NUMBERS)
        self.stored.append((front, partition, [row.event.id for row in from_batch_all(given.batch)]))
        return ANSWER

    def announce(self, name: str, partition: int) -> None:
        self.announced[partition] = f"http://{name}"

    @asynccontextmanager
    async def serving(self, name: str, *fronts: ChunkOwners) -> AsyncIterator[None]:
        """Fronts of a server; the first one has its address."""
        async with AsyncExitStack() as stack:
            for number, one in enumerate(fronts):
                own = Starlette(routes=[one.route()])
                await stack.enter_async_context(answering(own, self.settings(name).front_socket(number)))
            await stack.enter_async_context(answering(fronts[0].door(nothing), self.place(f"http://{name}")))
            yield


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(partition_owners, "PARTITION_OWNER_S_MAX", 0.5)
    return World(tmp_path)


def test_a_chunk_goes_to_its_owner_wherever_that_is(world: World) -> None:
    async def run() -> None:
        here, sibling = world.front("a", 0, {0}), world.front("a", 1, {1})
        there, far = world.front("b", 0, {2}), world.front("b", 1, {3})
        async with world.serving("a", here, sibling), world.serving("b", there, far):
            for partition, name in enumerate(["a", "a", "b", "b"]):
                world.announce(name, partition)
                assert await here.forward(partition, chunk("x", "y")) == ANSWER
        assert world.stored == [(f"{name}/{n % 2}", n, ["x", "y"]) for n, name in enumerate(["a", "a", "b", "b"])]

    asyncio.run(run())


def test_an_owner_that_is_none_any_more_is_not_asked_again(world: World) -> None:
    async def run() -> None:
        here, there = world.front("a", 0, set()), world.front("b", 0, {0})
        async with world.serving("a", here, world.front("a", 1, set())), world.serving("b", there):
            with pytest.raises(NoWriterError):
                await here.forward(0, chunk("x"))
            world.announce("a", 0)  # it began to take the partition over, and does not have it yet
            with pytest.raises(NoWriterError):
                await here.forward(0, chunk("x"))
            forwarding = asyncio.create_task(here.forward(0, chunk("x")))
            await asyncio.sleep(0)
            world.announce("b", 0)
            assert await forwarding == ANSWER
        with pytest.raises(PartUnavailableError):
            await here.forward(0, chunk("x"))

    asyncio.run(run())


def test_a_server_shows_its_own_certificate_where_clients_must_have_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("server", ("127.0.0.1",))
    files = {"tls_cert": own.certificate, "tls_key": own.key, "tls_ca": authority.path}
    shows = PeerServers(Settings(data=tmp_path, **files, tls_client_ca=authority.path))
    first = shows.place("https://b:1", as_itself=True)
    assert shows.place("https://b:1", as_itself=True) == first
    assert shows.place("https://b:1").tls is not first.tls, "for its clients it shows what they have shown"
    os.utime(own.certificate, ns=(0, 0))
    assert shows.place("https://b:1", as_itself=True) != first, "the file has changed"
    own.certificate.unlink()
    with pytest.raises(OSError, match="server"):
        shows.place("https://b:1", as_itself=True)
    optional = PeerServers(Settings(data=tmp_path, **files, tls_client_ca=authority.path, tls_client_auth="optional"))
    assert optional.place("https://b:1", as_itself=True) == optional.place("https://b:1")
    assert optional.place("http://b:1", as_itself=True).tls is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TooLargeError("too large"), TooLargeError),
        (OverloadedError("too many"), OverloadedError),
        (NumbersMovedError("another stream"), NumbersMovedError),
        (UnavailableError("no Kafka"), FrontUnavailableError),
    ],
)
def test_what_the_owner_refuses_is_refused_so(world: World, error: HeadgateError, kind: type[HeadgateError]) -> None:
    async def run() -> None:
        here, there = world.front("a", 0, set()), world.front("b", 0, {0})
        world.announce("b", 0)
        world.error = error
        async with world.serving("b", there):
            with pytest.raises(kind, match=error.message):
                await here.forward(0, chunk("x"))

    asyncio.run(run())


def test_the_door_opens_for_servers_alone(world: World) -> None:
    async def run() -> None:
        there = world.front("b", 0, {0})
        message = chunk_owners._message(0, chunk("x"))
        async with world.serving("b", there):

            async def status(body: bytes, *words: bytes, path: str = PATH, method: str = "POST") -> int:
                given = [(PASS, one) for one in words]
                return (await ask(world.place("http://b"), method, path, body, given)).status

            assert [await status(message, b"good") for _ in range(3)] == [200] * 3
            assert world.passes.checked == 1
            for words in ([], [b""], [b"bad"], [b"good", b"good"], [b"unsure"]):
                assert await status(message, *words) == 403, words
            many = await asyncio.gather(*(status(message, b"bad") for _ in range(2 * SERVER_PASS_CHECKS_MAX)))
            assert set(many) == {403}
            assert await status(b"", b"good", method="GET") == 404
            assert await status(message, b"good", path="/apis/headgate.dev/v1/chunks") == 404
            for broken in (b"", message[:7], message[:20], message[: len(message) // 2], b"\xff" * 100):
                assert await status(broken, b"good") == 500, broken
            world.passes.shown = b"forgotten"
            world.announce("b", 0)
            with pytest.raises(PassRefusedError):
                await world.front("a", 0, set()).forward(0, chunk("y"))
            assert world.passes.refusals == 1
        assert [ids for _, _, ids in world.stored] == [["x"]] * 3

    asyncio.run(run())
