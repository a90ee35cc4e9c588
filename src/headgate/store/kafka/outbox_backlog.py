"""The rows of targets that lag, read again from the topic `outbox`: one sweep serves all that wait.

A partition of the topic has everybody's records, so a target's own rows cost a walk over all. Targets that lag wait
together: a sweep begins where the one furthest behind goes on, and each target joins it as it passes its place. After
OUTBOX_SWEEP_RECORDS everybody gets what was found until there. Which records count is decided as it was the first time,
from the newest checkpoint before the place on (`outbox_walk.py`), or from where an earlier sweep has answered somebody:
who asks for one page after the other, as consumers of a subscription do, is read on where he stands.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import structlog

from headgate.errors import UnavailableError
from headgate.limits import OUTBOX_SWEEP_RECORDS, OUTBOX_SWEPT_PLACES_MAX
from headgate.outbox.reader import OutboxRow, RowPage, every_row
from headgate.store.config import KafkaConfig
from headgate.store.kafka.checkpoints import Checkpoints, KnownPlace
from headgate.store.kafka.outbox_page import OutboxEvent
from headgate.store.kafka.outbox_reader import matched_event
from headgate.store.kafka.outbox_takeover import Matched
from headgate.store.kafka.outbox_walk import OutboxWalker
from headgate.store.kafka.records import RecordError

_RETRY_S: Final = 1.0
_log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class _Request:
    """One target's wish for rows."""

    target: int
    start: int
    upto: int
    count_max: int
    wants: Callable[[int], bool]
    page: asyncio.Future[RowPage]
    rows: list[OutboxRow] = field(default_factory=list)


class TopicBacklog:
    """See `outbox.reader.Backlog`; of one outbox partition, on one event loop.

    Args:
        config: Of the deployment.
        partition: Of the topic `outbox`.
        checkpoints: Of the partition.
        on_event: Called in a thread with each event of which a row was found.
        on_removed: Called on the loop with a target, and the positions between which retention has removed records
            before it had read them.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """

    def __init__(
        self,
        config: KafkaConfig,
        partition: int,
        checkpoints: Checkpoints,
        *,
        on_event: Callable[[OutboxEvent], None],
        on_removed: Callable[[int, int, int], None],
    ) -> None:
        self._partition = partition
        self._checkpoints = checkpoints
        self._on_event = on_event
        self._on_removed = on_removed
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="backlog")
        self._lock = threading.Lock()
        self._waiting: list[_Request] = []
        self._swept: deque[KnownPlace] = deque(maxlen=OUTBOX_SWEPT_PLACES_MAX)
        self._is_sweeping = False
        self._closing = threading.Event()
        self._walker = OutboxWalker(config, self._closing)

    async def read(
        self, target: int, start: int, upto: int, count_max: int, wants: Callable[[int], bool] = every_row
    ) -> RowPage:
        """See `Backlog`."""
        if start >= upto:
            return RowPage([], upto)
        page: asyncio.Future[RowPage] = self._loop.create_future()
        with self._lock:
            self._waiting.append(_Request(target, start, upto, count_max, wants, page))
            begins, self._is_sweeping = not self._is_sweeping, True
        if begins:
            self._thread.submit(self._work).add_done_callback(self._ended)
        return await page

    async def bounds(self) -> tuple[int, int]:
        """The first position that retention has kept, and the one behind the last record.

        Raises:
            UnavailableError: Kafka does not answer.
        """
        return await self._loop.run_in_executor(self._thread, self._walker.bounds, self._partition)

    def close(self) -> None:
        """Gives everything back; nobody waits for rows any more. Blocks."""
        self._closing.set()
        self._thread.shutdown(wait=True)
        self._walker.close()

    # --- the thread -------------------------------------------------------------------------------------

    def _ended(self, done: object) -> None:
        error = done.exception()  # type: ignore[attr-defined] # a future, of a thread
        if error is not None:
            context = {"message": "reading the outbox again failed", "exception": error}
            self._loop.call_soon_threadsafe(self._loop.call_exception_handler, context)

    def _work(self) -> None:
        told = ""
        while not self._closing.is_set():
            with self._lock:
                requests, self._waiting = self._waiting, []
                self._is_sweeping = bool(requests)
            if not requests:
                return
            try:
                self._sweep(requests)
                told = ""
            except UnavailableError as error:
                if told != error.message:
                    told = error.message
                    _log.error("lagging targets wait", error=error.message, hint=error.hint, partition=self._partition)
                with self._lock:
                    self._waiting += requests
                self._closing.wait(_RETRY_S)
                continue
            with self._lock:
                self._waiting += requests  # the sweep has not come to where they begin

    def _sweep(self, requests: list[_Request]) -> None:
        """Reads once from the lowest place on; at its end `requests` holds only what is to be asked again."""
        walk = self._walker.begin(self._partition, self._known_before(min(each.start for each in requests)))
        if walk.is_cut:
            self._tell_removed(requests, walk.first)
        while requests and walk.position < min(walk.end, max(each.upto for each in requests)):
            if self._closing.is_set():
                return
            if walk.count >= OUTBOX_SWEEP_RECORDS:
                break
            place = walk.place
            for match in walk.step():  # all of them, though nobody may wait any more: who joins goes on behind them
                if self._found(match.matched, match.position, requests):
                    self._remember(place)
            with self._lock:
                joining = [each for each in self._waiting if each.start >= walk.position]
                self._waiting = [each for each in self._waiting if each.start < walk.position]
            requests += joining
        reached = walk.position
        self._remember(walk.place)
        for request in list(requests):
            if reached >= min(walk.end, request.upto):  # behind the end is nothing: what was handed over is before it
                self._answer(request, request.upto, requests)
            elif reached > request.start:
                self._answer(request, reached, requests)

    def _known_before(self, position: int) -> KnownPlace:
        """The newest place at or before a position from which on rows can be decided."""
        known = self._checkpoints.before(position)
        for place in self._swept:
            if known.position < place.position <= position:
                known = place
        return known

    def _remember(self, place: KnownPlace) -> None:
        """A sweep was here: the next one may begin here."""
        if all(one.position != place.position for one in self._swept):
            self._swept.append(place)

    def _found(self, matched: Matched, position: int, requests: list[_Request]) -> bool:
        """Gives a row to those who want it; whether somebody has all that he asked for."""
        verdicts = dict(matched.targets)
        is_new, has_answered = True, False
        for request in list(requests):
            verdict = verdicts.get(request.target)
            if verdict is None or not request.start <= position < request.upto or not request.wants(position):
                continue
            if is_new:
                is_new = False
                try:
                    self._on_event(matched_event(matched, position))
                except RecordError:
                    return False  # it was told when it was read the first time
            record = matched.record
            request.rows.append(OutboxRow(position, record.source, record.offset, verdict))
            if len(request.rows) >= request.count_max:
                self._answer(request, position + 1, requests)
                has_answered = True
        return has_answered

    def _answer(self, request: _Request, reached: int, requests: list[_Request]) -> None:
        requests.remove(request)
        page = RowPage(request.rows, reached)
        self._loop.call_soon_threadsafe(_put, request.page, page)

    def _tell_removed(self, requests: list[_Request], first: int) -> None:
        for each in requests:
            if each.start < first:
                self._loop.call_soon_threadsafe(self._on_removed, each.target, each.start, first)


def _put(page: asyncio.Future[RowPage], found: RowPage) -> None:
    if not page.done():  # else: whoever asked was broken off
        page.set_result(found)
