"""Group commit: what waited while a chunk was written becomes the next chunk, so many submits share one fsync.

Accumulating (on the event loop) and writing (in a thread of its own) are two things, with one bounded queue between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

import structlog

from headgate.errors import HeadgateError, OverloadedError, TooLargeError, UnavailableError, own_copy
from headgate.limits import COMMIT_BATCH_BYTES_MAX
from headgate.log.errors import LogUnavailableError
from headgate.log.writer import Encoded
from headgate.observe.metrics import CHUNK_RECORDS

_log = structlog.get_logger(__name__)
T = TypeVar("T", bound=Sized)
"""What one submit brings: anything that knows how many records it is."""


class Appender(Protocol):
    """What group commit needs of a writer; `PartitionWriter` is one."""

    def append(self, chunk: Encoded) -> int:
        """Stores a chunk durably; returns the offset of its first record."""
        ...

    def probe(self) -> None:
        """Proves that chunks can be stored now.

        Raises:
            LogUnavailableError: They cannot.
        """
        ...


class SubmitChain:
    """Submits that may not overtake each other: once one has failed, those behind it fail as well, untried.

    `problem` says why the first of them failed; None while none has. Whoever sets it ends the chain.
    """

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


class _Submit(Generic[T]):
    __slots__ = ("chain", "done", "items", "size_bytes")

    def __init__(self, items: T, size_bytes: int, chain: SubmitChain | None, done: asyncio.Future[int]) -> None:
        self.items = items
        self.size_bytes = size_bytes
        self.chain = chain
        self.done = done

    def fail(self, error: BaseException) -> None:
        """Nothing of it is stored."""
        if self.chain is not None:
            self.chain.end(error)
        if not self.done.done():
            self.done.set_exception(own_copy(error))


class GroupCommit(Generic[T]):
    """Turns concurrent submits into few durable chunks. Belongs to the event loop that first submits.

    Args:
        writer: Called in one thread, never twice at a time. Its owner closes it, after `close()`.
        encode: Makes a chunk of the items of several submits, in order. Pure; called in that thread. When it fails for
            a group, each submit of the group is tried alone, so that no submit fails for another one's items.
        queue_items_max: Items that may wait or be in the making; beyond it, or `queue_bytes_max`, submits are refused.
        batch_items_max: Items of one chunk, unless one submit alone has more; `batch_bytes_max` likewise.
    """

    def __init__(
        self,
        writer: Appender,
        encode: Callable[[Sequence[T]], Encoded],
        *,
        queue_items_max: int,
        queue_bytes_max: int,
        batch_items_max: int,
        batch_bytes_max: int = COMMIT_BATCH_BYTES_MAX,
    ) -> None:
        self._writer = writer
        self._encode = encode
        self._queue_items_max = queue_items_max
        self._queue_bytes_max = queue_bytes_max
        self._batch_items_max = batch_items_max
        self._batch_bytes_max = batch_bytes_max
        self._waiting: deque[_Submit[T]] = deque()
        self._suspects: deque[_Submit[T]] = deque()
        """Of a group that could not be encoded: each is tried alone, before any that waits."""
        self._items = 0
        self._bytes = 0
        self._chunks = CHUNK_RECORDS.labels("events")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log-commit")
        self._idle = asyncio.Event()
        """Nothing waits and nothing is being written."""
        self._idle.set()
        self._closing = False
        self._problem = ""

    @property
    def problem(self) -> str:
        """Why the log takes no records, as the last chunk or probe found; empty when it does."""
        return self._problem

    @property
    def queue_items(self) -> int:
        """Items that wait or are being written."""
        return self._items

    def enqueue(self, items: T, size_bytes: int, chain: SubmitChain | None = None) -> asyncio.Future[int]:
        """Have items stored, behind all that were enqueued before. The items of one submit stay together, in order.

        Cancelled before its chunk is begun, a submit stores nothing; later, it stores all.

        Args:
            items: At least one; not changed until they are stored.
            size_bytes: About the bytes that they take.
            chain: Of this submit; None when it depends on no other.

        Returns:
            Is done when the items are durable: the offset of the first, the others follow.

            Or it fails, and nothing was stored: with OverloadedError when the queue is full now, TooLargeError when the
            submit alone is more than it takes, LogUnavailableError when the log does not take records now, is closing,
            or has not stored one before it in its chain.
        """
        if not len(items):
            raise ValueError("a submit has at least one item")
        loop = asyncio.get_running_loop()
        submit = _Submit(items, size_bytes, chain, loop.create_future())
        try:
            self._admit(len(items), size_bytes, chain)
        except HeadgateError as error:
            submit.fail(error)
            return submit.done
        self._items += len(items)
        self._bytes += size_bytes
        self._waiting.append(submit)
        if self._idle.is_set():
            self._idle.clear()
            loop.call_soon(self._write_next, loop)  # behind whatever else the loop has read by now: one chunk has all
        return submit.done

    def _admit(self, count: int, size_bytes: int, chain: SubmitChain | None) -> None:
        if chain is not None and chain.problem is not None:
            raise chain.behind()
        if self._closing:
            raise LogUnavailableError("the log is closing")
        if count > self._queue_items_max or size_bytes > self._queue_bytes_max:
            raise TooLargeError(
                f"{count} records of {size_bytes} bytes at once are over the queue's "
                f"{self._queue_items_max} records or {self._queue_bytes_max} bytes",
                hint="send fewer records at a time",
            )
        if self._items + count > self._queue_items_max or self._bytes + size_bytes > self._queue_bytes_max:
            raise OverloadedError(f"{self._items} records wait for the disk already", hint="try again later")

    async def probe(self) -> None:
        """Find out whether a log that refused its last chunk takes records again; nothing where it did not."""
        if not self._problem or not self._idle.is_set() or self._closing:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._writer.probe)
        except UnavailableError as error:
            self._problem = str(error)
        else:
            self._problem = ""

    async def close(self) -> None:
        """Refuse new submits, store those that wait, end the thread; idempotent."""
        self._closing = True
        await self._idle.wait()
        self._thread.shutdown()

    def _write_next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Has the thread write the next group; without one, the next submit begins again."""
        group = self._take()
        if not group:
            self._idle.set()
            return
        # Our own hop back instead of run_in_executor: its future would cost one more turn of the loop.
        self._thread.submit(self._append, group).add_done_callback(
            lambda done: loop.call_soon_threadsafe(self._written, loop, group, done)
        )

    def _take(self) -> list[_Submit[T]]:
        while self._suspects:
            submit = self._suspects.popleft()
            if not self._has_failed(submit):
                return [submit]
        group: list[_Submit[T]] = []
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

    def _has_failed(self, submit: _Submit[T]) -> bool:
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

    def _release(self, submit: _Submit[T]) -> None:
        self._items -= len(submit.items)
        self._bytes -= submit.size_bytes

    def _written(self, loop: asyncio.AbstractEventLoop, group: list[_Submit[T]], done: Future[int]) -> None:
        """The thread has written a group, or failed: its submits learn so."""
        error = done.exception()
        if error is None:
            self._problem = ""
            first = done.result()
            for submit in group:
                self._release(submit)
                if not submit.done.done():
                    submit.done.set_result(first)
                first += len(submit.items)
        elif len(group) > 1 and not isinstance(error, UnavailableError):
            self._suspects.extend(group)
        else:
            if isinstance(error, UnavailableError):
                self._report(str(error))
            for submit in group:
                self._release(submit)
                submit.fail(error)
        self._write_next(loop)

    def _report(self, problem: str) -> None:
        """Keeps why nothing is stored, and logs it when it is new: once for a full disk, not for each request."""
        if problem != self._problem:
            _log.error("the log takes nothing", problem=problem)
        self._problem = problem

    def _append(self, group: list[_Submit[T]]) -> int:
        chunk = self._encode([submit.items for submit in group])
        first = self._writer.append(chunk)
        self._chunks.observe(chunk.batch.num_rows)
        return first
