"""The HTTP client of deliveries against subscribers that misbehave: real sockets, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from headgate.delivery.post import HttpTransport, PostOptions
from headgate.delivery.retry import Outcome
from headgate.objects.kinds.credentials import ClientTls
from headgate_api import limits
from tests.certificates import Authority
from tests.delivery.harness import run
from tests.support import until

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 202 OK\r\ncontent-length: 0\r\n\r\n"


class Peer:
    """A subscriber that does what a test says, connection by connection."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self.port = 0
        self.connections = 0
        self.closed = 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            try:
                await self._talk(reader, writer)
            finally:
                self.closed += 1
                writer.transport.abort()


@pytest.fixture
def certified(tmp_path: Path) -> tuple[ssl.SSLContext, PostOptions]:
    """What a subscriber shows by TLS, and how it is trusted."""
    ca = Authority(tmp_path)
    pair = ca.issue("subscriber")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    return context, PostOptions(tls=ClientTls(ca_certs=ca.path.read_text()))


@contextlib.contextmanager
def blocking_peer(context: ssl.SSLContext, answer: bytes) -> Iterator[str]:
    """The URL of a subscriber that answers each connection's request, and then never reads or closes it."""
    kept = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = context.wrap_socket(server.accept()[0], server_side=True)
                    kept.append(connection)
                    while not connection.recv(1 << 16).endswith(b"{}"):
                        pass
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://localhost:{server.getsockname()[1]}/"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in kept:
                connection.close()


@contextlib.asynccontextmanager
async def subscriber(talk: Talk) -> AsyncIterator[tuple[Peer, Callable[..., Awaitable[Outcome]]]]:
    """The peer, and a function that posts to it by one transport."""
    peer = Peer(talk)
    server = await asyncio.start_server(peer._serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{peer.port}/"

    async with HttpTransport() as transport:

        async def post(
            body: bytes = b"{}", timeout_s: float = 20.0, headers: tuple[tuple[str, str], ...] = ()
        ) -> Outcome:
            return await transport.post(url, [("ce-id", "1"), *headers], body, timeout_s)

        try:
            yield peer, post
        finally:
            server.close()
            for task in peer.tasks:
                task.cancel()
            await asyncio.gather(*peer.tasks, return_exceptions=True)
    await asyncio.sleep(0)  # the transports close


async def request(reader: asyncio.StreamReader) -> bytes:
    """Reads one request; gives its head."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(length)
    return head


def always(answer: bytes, *, close: bool = False) -> Talk:
    """Answers every request with these bytes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request(reader)
            writer.write(answer)
            await writer.drain()
            if close:
                return

    return talk


async def closed(peer: Peer, count: int) -> None:
    """Waits until the client has closed so many connections."""
    async with asyncio.timeout(10):
        while peer.closed < count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        b"HTTP/1.1 204 None\r\n\r\n",
        b"HTTP/1.1 304 Same\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-trailer: y\r\n\r\n",
        b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Go\r\n\r\n" + OK,
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\nx",
    ],
    ids=["length", "204", "304", "chunked", "interim", "1.0 kept"],
)
def test_a_connection_takes_the_next_request_where_the_answer_has_an_end(answer: bytes) -> None:
    async def work() -> None:
        async with subscriber(always(answer)) as (peer, post):
            statuses = [(await post()).status for _ in range(3)]
            assert len(set(statuses)) == 1
            assert statuses[0] in (200, 202, 204, 304)
            assert peer.connections == 1

    run(work())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 202 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.0 202 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 202 OK\r\n\r\nuntil the end",
        b"HTTP/1.1 202 OK\r\ntransfer-encoding: gzip\r\n\r\nuntil the end",
    ],
    ids=["close", "1.0", "no length", "not chunked"],
)
def test_a_connection_that_ends_with_its_answer_is_not_used_again(answer: bytes) -> None:
    async def work() -> None:
        async with subscriber(always(answer, close=True)) as (peer, post):
            assert [(await post()).status for _ in range(3)] == [202, 202, 202]
            assert peer.connections == 3

    run(work())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 202 OK\r\nx: " + b"y" * (2 * limits.ANSWER_HEAD_BYTES_MAX),
        b"HTTP/1.1 100 Go\r\n\r\n" * limits.ANSWER_HEAD_BYTES_MAX,
        b"HTTP/1.1 202 OK\r\n" + b"a: b\r\n" * (limits.ANSWER_HEADERS_MAX + 1) + b"\r\n",
        b"HTTP/1.1 202 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * limits.ANSWER_HEAD_BYTES_MAX,
        b"HTTP/1.1 202 OK\r\ntransfer-encoding: chunked\r\n\r\n1;" + b"x" * (2 * limits.ANSWER_HEAD_BYTES_MAX),
        b"HTTP/1.1 101 Switch\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 202 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 202 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"HTTP/1.1 202 OK\r\ncontent-length: -1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
    ],
    ids=["long", "interim", "many", "trailers", "extension", "upgrade", "lengths", "smuggled", "negative", "tls"],
)
def test_an_answer_that_is_no_http_or_does_not_end_is_a_failed_attempt(answer: bytes) -> None:
    async def work() -> None:
        async with subscriber(always(answer)) as (peer, post):
            outcome = await post()
            assert (outcome.status, outcome.reason, outcome.unsent) == (0, "protocol", False)
            assert len(outcome.detail) < limits.ATTEMPT_DETAIL_CHARS_MAX
            await closed(peer, 1)

    run(work())


@pytest.mark.parametrize("end", [b"\r\n", b"\n"], ids=["CR LF", "LF"])
def test_a_folded_header_line_and_a_bare_line_feed_are_taken(end: bytes) -> None:
    """RFC 9112, sections 5.2 and 2.2."""
    lines = [
        b"HTTP/1.1 200 OK",
        b"ce-id: 1",
        b"ce-subject: one",
        b" two",
        b"\tthree",
        b"content-length:",
        b" 2",
        b"",
        b"ab",
    ]

    async def work() -> None:
        async with subscriber(always(end.join(lines))) as (peer, post):
            for _ in range(2):
                reply = (await post()).reply
                assert reply is not None
                assert (dict(reply.headers)["ce-subject"], reply.body) == ("one two three", b"ab")
            assert peer.connections == 1

    run(work())


@pytest.mark.parametrize("value", [b"a\0b", b"a\x01b", b"a\x7fb", b"\xc3\xa9"])
def test_a_header_of_a_reply_that_is_no_text_makes_it_malformed(value: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n"

    async def work() -> None:
        async with subscriber(always(head + b"ce-id: " + value + b"\r\n\r\n")) as (_, post):
            outcome = await post()
            assert (outcome.status, outcome.reason, outcome.reply) == (200, "reply-malformed", None)
        async with subscriber(always(head + b"x-other: " + value + b"\r\nce-id: 1\r\n\r\n")) as (_, post):
            assert (await post()).reply is not None

    run(work())


@pytest.mark.parametrize(
    ("status", "coding", "is_coded"),
    [
        *((200, f"content-encoding: {coding}", True) for coding in ("gzip", "GZIP", "identity, br", "zstd")),
        *((409, f"content-encoding: {coding}", True) for coding in ("gzip", "deflate")),
        *((status, "transfer-encoding: gzip, chunked", True) for status in (200, 409)),
        *((status, "content-encoding: identity", False) for status in (200, 409)),
        *((status, "transfer-encoding: Chunked", False) for status in (200, 409)),
    ],
)
def test_a_body_in_a_coding_that_was_not_asked_for_counts_for_nothing(status: int, coding: str, is_coded: bool) -> None:
    body = b"2\r\n{}\r\n0\r\n\r\n"
    if coding.startswith("content"):
        coding, body = f"{coding}\r\ncontent-length: 2", b"{}"
    heads: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            heads.append(await request(reader))
            ce = b"ce-id: 1\r\n" if status == 200 else b"retry-after: 3\r\n"
            writer.write(b"HTTP/1.1 %d X\r\n" % status + ce + coding.encode() + b"\r\n\r\n" + body)

    async def work() -> None:
        async with subscriber(talk) as (peer, post):
            outcome = await post()
            assert b"\r\naccept-encoding: identity\r\n" in heads[0]
            assert outcome.status == status
            if status == 200 and is_coded:
                assert (outcome.reason, outcome.reply) == ("reply-malformed", None)
                assert "identity" in outcome.detail
            elif status == 200:
                assert outcome.reply is not None
                assert outcome.reply.body == b"{}"
            else:
                assert (outcome.reason, b"identity" in outcome.body, outcome.body == b"{}") == (
                    "",
                    is_coded,
                    not is_coded,
                )
            await post()
            assert peer.connections == 1

    run(work())


def test_an_answer_that_is_read_and_coded_is_no_answer() -> None:
    """Such as that of a token endpoint."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}"

    async def work() -> None:
        async with subscriber(always(answer)) as (peer, _), HttpTransport() as transport:
            url = f"http://127.0.0.1:{peer.port}/"
            outcome = await transport.post(url, [], b"", 20.0, PostOptions(kept_bytes=100))
            assert (outcome.reason, "gzip" in outcome.detail) == ("protocol", True)
            assert (await transport.post(url, [], b"", 20.0)).reason == ""

    run(work())


def test_a_body_without_an_end_is_cut_off_and_its_status_counts() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 503 No\r\nretry-after: 7\r\n\r\n")
        while True:
            writer.write(b"z" * 65_536)
            await writer.drain()

    async def work() -> None:
        async with subscriber(flood) as (peer, post):
            outcome = await post()
            assert (outcome.status, outcome.retry_after) == (503, "7")
            assert outcome.body == b"z" * limits.ERROR_BODY_BYTES_MAX
            await closed(peer, 1)

    run(work())


def test_a_reply_in_tiny_pieces_takes_no_more_memory_than_its_length() -> None:
    pieces = 50_000
    head = b"HTTP/1.1 200 OK\r\nce-id: 1\r\ntransfer-encoding: chunked\r\n\r\n"
    reply = head + b"2\r\nab\r\n" * pieces + b"0\r\n\r\n"

    async def work() -> None:
        async with subscriber(always(reply)) as (_, post):
            limit = len(reply) + 8 * 2 * pieces
            tracemalloc.start()
            try:
                outcome = await post()
                assert outcome.reply is not None
                assert outcome.reply.body == b"ab" * pieces
                assert tracemalloc.get_traced_memory()[1] < limit
            finally:
                tracemalloc.stop()

    run(work())


def test_an_answer_before_the_whole_request_counts_and_ends_the_connection() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Large\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        await asyncio.Event().wait()

    async def work() -> None:
        async with subscriber(refuse) as (peer, post):
            body = bytes(64 << 20)  # more than the system's buffers hold
            for count in (1, 2):
                assert (await post(body)).status == 413
                assert peer.connections == count

    run(work())


def test_a_refusal_before_the_whole_request_was_read_ends_a_tls_connection(
    certified: tuple[ssl.SSLContext, PostOptions],
) -> None:
    context, options = certified
    connections = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with contextlib.suppress(ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Large\r\ncontent-length: 0\r\n\r\n")
            await asyncio.sleep(10)
        writer.transport.abort()

    async def work() -> None:
        server = await asyncio.start_server(refuse, "127.0.0.1", 0, ssl=context)
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}/"
        async with HttpTransport() as transport:
            outcomes = [await transport.post(url, [], bytes(8 << 20), 5.0, options) for _ in range(2)]
        server.close()
        assert [outcome.status for outcome in outcomes] == [413, 413]
        assert connections == 2

    run(work())


@pytest.mark.parametrize(
    ("answer", "status", "reason"), [(b"HTTP/1.1 413 Large\r\n\r\nno", 413, ""), (b"", 0, "connection")]
)
def test_nothing_is_sent_to_who_answers_no_more(answer: bytes, status: int, reason: str) -> None:
    async def half_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.write_eof()
        await asyncio.Event().wait()

    async def work() -> None:
        async with subscriber(half_close) as (_, post):
            outcome = await post(bytes(64 << 20), timeout_s=8.0)  # more than the system's buffers hold
            assert (outcome.status, outcome.reason) == (status, reason)

    run(work())


def test_what_a_subscriber_sends_unasked_is_no_answer_to_the_next_request() -> None:
    async def split(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK + b"HTTP/1.1 500 Forged\r\ncontent-length: 0\r\n\r\n")
        await asyncio.Event().wait()

    async def later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK)
        await asyncio.sleep(0.05)
        writer.write(b"HTTP/1.1 500 Forged\r\ncontent-length: 0\r\n\r\n")
        await asyncio.Event().wait()

    async def work(talk: Talk) -> None:
        async with subscriber(talk) as (peer, post):
            for count in (1, 2, 3):
                assert (await post()).status == 202
                async with asyncio.timeout(10):
                    while peer.connections < count:
                        await asyncio.sleep(0.01)
                await asyncio.sleep(0.2)
            assert peer.connections == 3

    run(work(split))
    run(work(later))


@pytest.mark.parametrize(
    ("first_s", "second_s", "answered", "expected"),
    [(20.0, 0.05, False, "timeout"), (0.5, 1.0, False, "timeout"), (0.5, 20.0, True, "")],
    ids=["shorter", "longer", "answered after the first one's time"],
)
def test_each_request_of_a_connection_has_its_own_time(
    first_s: float, second_s: float, answered: bool, expected: str
) -> None:
    async def main() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await request(reader)
            writer.write(OK)
            await request(reader)
            await asyncio.sleep(2 * first_s if answered else 60)
            writer.write(OK)
            await reader.read()

        async with subscriber(talk) as (peer, post):
            assert (await post(timeout_s=first_s)).status == 202
            async with asyncio.timeout(10):
                assert (await post(timeout_s=second_s)).reason == expected
            assert peer.connections == 1

    run(main())


@pytest.mark.parametrize(
    ("first_words", "aborts", "connections", "status"),
    [(b"", False, 2, 202), (b"", True, 2, 202), (b"H", False, 1, 0), (b"HTTP/1.1 103 Hints\r\n\r\n", False, 1, 0)],
    ids=["closed", "reset", "a byte of an answer", "an interim answer"],
)
def test_a_request_into_a_kept_connection_that_ends_without_an_answer_goes_into_a_new_one(
    first_words: bytes, aborts: bool, connections: int, status: int
) -> None:
    bodies: list[bytes] = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK)
        head = await reader.readuntil(b"\r\n\r\n")
        bodies.append(head)
        writer.write(first_words)
        if aborts:  # what is unread makes the system send a reset
            writer.transport.abort()

    async def work() -> None:
        async with subscriber(once) as (peer, post):
            assert (await post()).status == 202
            outcome = await post(bytes(8 << 20) if aborts else b"{}")
            assert (outcome.status, outcome.reason) == (status, "" if status else "connection")
            assert peer.connections == connections
            assert len(bodies) == 1

    run(work())


def test_who_answers_tls_with_plain_http_is_told_so() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad\r\n\r\n")
        await writer.drain()

    async def work() -> None:
        async with subscriber(plain) as (peer, _), HttpTransport() as transport:
            outcome = await transport.post(f"https://127.0.0.1:{peer.port}/", [], b"{}", 20.0)
            assert (outcome.reason, outcome.unsent) == ("tls", True)

    run(work())


@pytest.mark.parametrize(("is_kept", "connections"), [(False, 1), (True, 2)])
def test_a_new_connection_that_ends_without_an_answer_is_a_failed_attempt(is_kept: bool, connections: int) -> None:
    answers = [OK] if is_kept else []

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        while answers:
            writer.write(answers.pop())
            await request(reader)

    async def work() -> None:
        async with subscriber(deaf) as (peer, post):
            if is_kept:
                assert (await post()).status == 202
            outcome = await post()
            assert (outcome.status, outcome.reason) == (0, "connection")
            assert peer.connections == connections

    run(work())


def test_the_second_connection_of_a_request_has_what_is_left_of_its_time() -> None:
    answers = [OK]

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        if not answers:
            await asyncio.Event().wait()
        writer.write(answers.pop())
        await request(reader)
        await asyncio.sleep(0.4)

    async def work() -> None:
        async with subscriber(slow) as (peer, post):
            assert (await post()).status == 202
            began = asyncio.get_running_loop().time()
            outcome = await post(timeout_s=1.0)
            assert (outcome.reason, peer.connections) == ("timeout", 2)
            assert asyncio.get_running_loop().time() - began < 1.3

    run(work())


def test_an_attempt_that_is_cancelled_closes_its_connection_and_no_other() -> None:
    answers = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request(reader)
            await answers.wait()
            writer.write(OK)

    async def work() -> None:
        async with subscriber(slow) as (peer, post):
            first, second = (asyncio.create_task(post()) for _ in range(2))
            async with asyncio.timeout(10):
                while peer.connections < 2:
                    await asyncio.sleep(0.01)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            answers.set()
            assert (await second).status == 202
            assert (await post()).status == 202
            assert peer.connections == 2

    run(work())


def test_a_connection_that_was_closed_while_it_was_idle_is_not_used() -> None:
    """The loop is held meanwhile, so that nobody has heard of it when the next request is due."""

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK)
        await writer.drain()
        writer.write_eof()
        await asyncio.Event().wait()

    async def work() -> None:
        async with subscriber(once) as (peer, post):
            for _ in range(3):
                assert (await post()).status == 202
                await asyncio.sleep(0.05)
            assert peer.connections == 3

    run(work())


def test_a_name_that_ends_with_a_dot_is_that_of_its_certificate(certified: tuple[ssl.SSLContext, PostOptions]) -> None:
    context, options = certified
    ends_here = b"HTTP/1.1 202 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

    async def addresses(host: str, port: int) -> list[str]:
        assert host == "localhost."
        return ["127.0.0.1"]

    async def work(url: str) -> None:
        async with HttpTransport(resolve=addresses) as transport:
            outcome = await transport.post(url.replace("localhost", "localhost."), [], b"{}", 20.0, options)
            assert (outcome.status, outcome.detail) == (202, "")

    with blocking_peer(context, ends_here) as url:
        run(work(url))


def test_an_address_that_is_silent_leaves_time_for_the_next_one() -> None:
    async def addresses(host: str, port: int) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    async def work() -> None:
        async with subscriber(always(OK)) as (peer, _):
            with contextlib.ExitStack() as stack:
                silent = stack.enter_context(socket.create_server(("127.0.0.2", peer.port), backlog=0))
                for _ in range(4):  # more than it takes: further ones get no answer
                    waiting = stack.enter_context(socket.socket())
                    waiting.setblocking(False)
                    waiting.connect_ex(silent.getsockname())
                async with HttpTransport(resolve=addresses) as transport:
                    outcome = await transport.post(f"http://two.example:{peer.port}/", [], b"{}", 6.0)
            assert outcome.status == 202

    run(work())


@pytest.mark.parametrize("value", ["a\r\nx-forged: 1", "a\nb", "a\rb", "a\0b"])
def test_no_header_ends_before_its_line_does(value: str) -> None:
    async def work() -> None:
        async with subscriber(always(OK)) as (peer, post):
            outcome = await post(headers=(("x-header", value),))
            assert (outcome.status, outcome.reason) == (0, "url")
            assert peer.connections == 0

    run(work())


def test_a_head_says_who_sends_and_where_to() -> None:
    heads: list[bytes] = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            heads.append(await request(reader))
            writer.write(OK)

    async def work() -> None:
        async with subscriber(keep) as (_, post):
            await post()
            await post(headers=(("user-agent", "other"),))

    run(work())
    lines = [head.decode().split("\r\n") for head in heads]
    assert lines[0][0] == "POST / HTTP/1.1"
    assert [line.partition(":")[0] for line in lines[0][1:-2]] == [
        "host",
        "accept",
        "accept-encoding",
        "content-length",
        "ce-id",
        "user-agent",
    ]
    assert [[line for line in one if line.startswith("user-agent")] for one in lines] == [
        ["user-agent: headgate"],
        ["user-agent: other"],
    ]


def test_a_tls_connection_that_has_ended_is_not_held_open_by_its_peer(
    certified: tuple[ssl.SSLContext, PostOptions],
) -> None:
    context, options = certified
    answer = b"HTTP/1.1 202 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

    async def work(url: str) -> None:
        async with HttpTransport() as transport:
            for _ in range(3):
                assert (await transport.post(url, [], b"{}", 20.0, options)).status == 202
            async with asyncio.timeout(5):
                await until(lambda: not transport._pools.opened)

    with blocking_peer(context, answer) as url:
        run(work(url))
