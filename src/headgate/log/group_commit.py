"""Group commit: what waits while a group is stored becomes the next group, so many submits share one fsync.

Accumulating (on the event loop) and storing (in a thread) are two things, with one bounded queue between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Generic, Protocol, TypeVar

import structlog

from headgate.log.errors import LogUnavailableError
from headgate.log.writer import Encoded
from headgate.observe.metrics import CHUNK_RECORDS
from headgate.storage.threads import Threads
from headgate_api.errors import HeadgateError, OverloadedError, TooLargeError, UnavailableError, own_copy
from headgate_api.limits import COMMIT_BATCH_BYTES_MAX, COMMIT_CHUNK_EVENTS_MAX

_log = structlog.get_logger(__name__)
T = TypeVar("T", bound=Sized)
"""What one submit brings: anything that knows how many events it is."""
R = TypeVar("R")
"""What it gets when it is stored."""


@dataclass(frozen=True, slots=True)
class Sifted:
    """Where the items of a submit are, an offset each, some of which a writer had before (`was_there`) and left out."""

    offsets: Sequence[int]
    was_there: Sequence[bool]


class SubmitChain:
    """Submits that may not overtake each other: once one has failed (`problem`), those behind it fail, untried."""

    __slots__ = ("problem",)

    def __init__(self) -> None:
        self.problem: HeadgateError | None = None

    def behind(self) -> HeadgateError:
        """The error of those behind it, which may be retried."""
        return LogUnavailableError(f"one before it was not stored: {self.problem.message if self.problem else ''}")

    def end(self, error: BaseException) -> None:
        """One has failed; the first error is kept."""
        if self.problem is None:
            self.problem = error if isinstance(error, HeadgateError) else LogUnavailableError(f"not stored: {error}")


class Room:
    """What may wait in one queue, or in several that share it; `behind` says in an error what they wait for."""

    def __init__(self, behind: str, items_max: int, bytes_max: int) -> None:
        self._behind = behind
        self._items_max = items_max
        self._bytes_max = bytes_max
        self.items = 0
        self._bytes = 0

    def enter(self, count: int, size_bytes: int) -> None:
        """Events begin to wait, all or none; TooLargeError when there is never room for them, OverloadedError now."""
        if count > self._items_max or size_bytes > self._bytes_max:
            raise TooLargeError(
                f"{count} events of {size_bytes} bytes at once are over the queue's "
                f"{self._items_max} events or {self._bytes_max} bytes",
                hint="send fewer events at a time",
            )
        if self.items + count > self._items_max or self._bytes + size_bytes > self._bytes_max:
            raise OverloadedError(f"{self.items} events wait for {self._behind} already", hint="try again later")
        self.items += count
        self._bytes += size_bytes

    def leave(self, count: int, size_bytes: int) -> None:
        """They are stored, or will not be."""
        self.items -= count
        self._bytes -= size_bytes


@dataclass(eq=False, slots=True)
class _Submit(Generic[T, R]):
    items: T
    size_bytes: int
    chain: SubmitChain | None
    done: asyncio.Future[R]

    def fail(self, error: BaseException) -> None:
        """Nothing of it is known to be stored."""
        if self.chain is not None:
            self.chain.end(error)
        if not self.done.done():
            self.done.set_exception(own_copy(error))


class GroupCommit(Generic[T, R]):
    """Stores what many submit in few groups, in the order in which it came. Lives on one event loop.

    Args:
        store: Stores the items of several submits, all or none; gives what each of them gets. Called in a thread, never
            twice at a time.
        threads: Of their owner, who ends them after `close`.
        room: For items that wait or are being stored; without any, submits are refused.
        batch_items_max: Items of one group, unless one submit alone has more; `batch_bytes_max` likewise.
        tries_alone: Whether each submit of a group that `store` refused is tried alone, so that none fails for another
            one's items; not after an UnavailableError, which is nobody's fault.
    """

    def __init__(
        self,
        store: Callable[[Sequence[T]], Sequence[R]],
        threads: Threads,
        room: Room,
        *,
        batch_items_max: int = COMMIT_CHUNK_EVENTS_MAX,
        batch_bytes_max: int = COMMIT_BATCH_BYTES_MAX,
        tries_alone: bool = True,
    ) -> None:
        self._store = store
        self._threads = threads
        self._room = room
        self._batch_items_max = batch_items_max
        self._batch_bytes_max = batch_bytes_max
        self._tries_alone = tries_alone
        self._waiting: deque[_Submit[T, R]] = deque()
        self._suspects: deque[_Submit[T, R]] = deque()
        """Of a group that was refused: each is tried alone, before any that waits."""
        self._idle = asyncio.Event()
        """Nothing waits and nothing is being stored."""
        self._idle.set()
        self._closing = False

    def enqueue(self, items: T, size_bytes: int, chain: SubmitChain | None = None) -> asyncio.Future[R]:
        """Have items stored, behind all that were enqueued before. The items of one submit stay together, in order.

        Returns what is done when the items are durable, with what `store` gives for them. It fails with OverloadedError
        when there is no room now, TooLargeError when there never is, LogUnavailableError when it is closing, or has not
        stored one before it in its chain; nothing was stored then. Else with what `store` has raised, for this submit
        alone.

        No item is changed until they are stored. Cancelled before its group is begun, a submit stores
        nothing; later, it stores all.
        """
        loop = asyncio.get_running_loop()
        submit = _Submit(items, size_bytes, chain, loop.create_future())
        try:
            if chain is not None and chain.problem is not None:
                raise chain.behind()
            if self._closing:
                raise LogUnavailableError("the log is closing")
            self._room.enter(len(items), size_bytes)
        except HeadgateError as error:
            submit.fail(error)
            return submit.done
        self._waiting.append(submit)
        if self._idle.is_set():
            self._idle.clear()
            loop.call_soon(self._store_next)  # behind whatever else the loop has read by now: one group has all
        return submit.done

    async def close(self) -> None:
        """Refuse new submits, store those that wait; idempotent."""
        self._closing = True
        await self._idle.wait()

    def _store_next(self) -> None:
        group = self._take()
        if not group:
            self._idle.set()
            return
        items = [submit.items for submit in group]
        self._threads.begin(partial(self._store, items), partial(self._stored, group))

    def _take(self) -> list[_Submit[T, R]]:
        while self._suspects:
            submit = self._suspects.popleft()
            if not self._has_failed(submit):
                return [submit]
        group: list[_Submit[T, R]] = []
        items = size = 0
        while self._waiting:
            submit = self._waiting[0]
            if self._has_failed(submit):
                self._waiting.popleft()
                continue
            items += len(submit.items)
            size += submit.size_bytes
            if group and (items > self._batch_items_max or size > self._batch_bytes_max):
                break
            group.append(self._waiting.popleft())
        return group

    def _has_failed(self, submit: _Submit[T, R]) -> bool:
        """Whether a submit was given up while it waited, or stands behind one that has failed; it is released then."""
        if submit.done.done():
            error: HeadgateError = LogUnavailableError("it was given up before it was stored")
        elif submit.chain is not None and submit.chain.problem is not None:
            error = submit.chain.behind()
        else:
            return False
        self._release(submit)
        submit.fail(error)
        return True

    def _release(self, submit: _Submit[T, R]) -> None:
        self._room.leave(len(submit.items), submit.size_bytes)

    def _stored(self, group: list[_Submit[T, R]], done: Future[Sequence[R]]) -> None:
        error = done.exception()
        if error is None:
            for submit, result in zip(group, done.result(), strict=True):
                self._release(submit)
                if not submit.done.done():
                    submit.done.set_result(result)
        elif self._tries_alone and len(group) > 1 and not isinstance(error, UnavailableError):
            self._suspects.extend(group)
        else:
            for submit in group:
                self._release(submit)
                submit.fail(error)
        self._store_next()


class Appender(Protocol):
    """What `ChunkCommit` needs of a writer; `PartitionWriter` is one."""

    def append(self, chunk: Encoded) -> int | Sifted:
        """Stores a chunk durably; returns the offset of its first record, the others follow, or where each is."""

    def probe(self) -> None:
        """Proves that chunks can be stored now; raises LogUnavailableError when they cannot."""


class ChunkCommit(GroupCommit[T, int | Sifted]):
    """Stores submits as chunks of a partition. Each gets what the writer returns, of its own items.

    `writer` and the pure `encode` are called in one thread. The writer's owner closes it, after `close()`.
    """

    def __init__(
        self,
        writer: Appender,
        encode: Callable[[Sequence[T]], Encoded],
        *,
        queue_items_max: int,
        queue_bytes_max: int,
        batch_items_max: int = COMMIT_CHUNK_EVENTS_MAX,
        batch_bytes_max: int = COMMIT_BATCH_BYTES_MAX,
    ) -> None:
        self._writer = writer
        self._encode = encode
        self._chunks = CHUNK_RECORDS.labels("events")
        self.problem = ""
        """Why the log takes no records, as the last chunk or probe found; empty when it does."""
        super().__init__(
            self._append,
            Threads("log-commit"),
            Room("the disk", queue_items_max, queue_bytes_max),
            batch_items_max=batch_items_max,
            batch_bytes_max=batch_bytes_max,
        )

    async def probe(self) -> None:
        """Find out whether a log that refused its last chunk takes records again; nothing where it did not."""
        if not self.problem or not self._idle.is_set() or self._closing:
            return
        try:
            await self._threads.run(self._writer.probe)
        except UnavailableError as error:
            self.problem = str(error)
        else:
            self.problem = ""

    async def close(self) -> None:
        await super().close()
        self._threads.close()

    def _append(self, submits: Sequence[T]) -> Sequence[int | Sifted]:
        chunk = self._encode(submits)
        try:
            stored = self._writer.append(chunk)
        except UnavailableError as error:
            if self.problem != str(error):  # logged once for a full disk, not for each request
                _log.error("the log takes nothing", problem=str(error))
            self.problem = str(error)
            raise
        self.problem = ""
        self._chunks.observe(chunk.batch.num_rows)
        if isinstance(stored, int):
            return list(accumulate(map(len, submits[:-1]), initial=stored))
        ends = list(accumulate(map(len, submits), initial=0))
        return [Sifted(stored.offsets[at:end], stored.was_there[at:end]) for at, end in pairwise(ends)]
