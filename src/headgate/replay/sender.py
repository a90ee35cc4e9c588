"""How does history get to one target again? A page of the log at a time, at a rate, with the target's own retries.

The log is looked through by the scan, from where the last page ended; a page's events are sent, each until it has
ended (delivered, a dead letter, given up), and only then the next position is written down. So memory holds a page,
and a restart repeats a page at most: a replayed event carries the id of its replay, a subscriber can tell.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import msgspec
import structlog

from headgate import limits
from headgate.control.delivery_spec import delivery_rules
from headgate.control.routing import Target
from headgate.delivery import encoding
from headgate.delivery.clock import Clocks
from headgate.delivery.dead_letter import DeadLetter, dead_letter_of
from headgate.delivery.events import Events, SharedEvent
from headgate.delivery.journal import AttemptRecorder, Origin
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.post import Transport
from headgate.delivery.replies import Answered, Replies
from headgate.delivery.retry import Fate, is_left, judge, pause_s
from headgate.delivery.tasks import tell_failure
from headgate.errors import HeadgateError, NotFoundError
from headgate.event.hops import place_root
from headgate.event.identity import path_of
from headgate.event.trace import context_of
from headgate.filter.compile.plan import Verdict
from headgate.observe import metrics
from headgate.observe.logs import Recurring
from headgate.outbox.errors import EventGoneError
from headgate.replay.store import EXTENSION, Replay, ReplayProgress, ReplaySpec, ReplayState, ReplayStore
from headgate.scan.pages import Located, RuleOf, Scanner, ScanRequest

_DEFAULT_RULES: Final = delivery_rules(None, ordered=False)
_P = ParamSpec("_P")
_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


class ReplayTargetError(NotFoundError):
    """The trigger or the broker of a replay is gone."""

    code = "replay-target"


class Replaying:
    """Does the replays, on the dispatcher's event loop.

    Args:
        path: `replays.db`.
        scanner: Looks through the log.
        events: The log.
        transport: The HTTP client.
        replies: For what a trigger's subscriber answers.
        bury: Stores a dead letter; returns when it is on disk.
        journal: Remembers attempts for people.
        trigger: The trigger "namespace/name", as routing has it now.
        rule_of: How events get their filter values.
        clocks: Time, and the jitter of pauses.
    """

    def __init__(
        self,
        path: Path,
        *,
        scanner: Scanner,
        events: Events,
        transport: Transport,
        replies: Replies,
        bury: Callable[[DeadLetter], Awaitable[None]],
        journal: AttemptRecorder,
        trigger: Callable[[str], Target | None],
        rule_of: RuleOf,
        clocks: Clocks,
    ) -> None:
        self._scanner = scanner
        self._events = events
        self._transport = transport
        self._replies = replies
        self._bury = bury
        self._journal = journal
        self._trigger = trigger
        self._rule_of = rule_of
        self._clocks = clocks
        self._store = ReplayStore(path)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="replays")
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        """Set when a replay was made or has ended."""

    async def create(self, spec: ReplaySpec) -> Replay:
        """A new replay, which begins at once.

        Raises:
            ReplaysOverloadError: REPLAYS_MAX have not ended.
        """
        replay = await self._in_thread(self._store.create, spec)
        self._changed.set()
        return replay

    async def cancel(self, id_: int) -> bool:
        """End a replay, unless it has ended; whether it was ended by this."""
        ended = await self._in_thread(self._store.end, id_, ReplayState.CANCELLED)
        self._changed.set()
        return ended

    async def page(self, namespace: str) -> list[Replay]:
        """A namespace's replays, the newest first."""
        return await self._in_thread(self._store.page, namespace)

    async def get(self, namespace: str, id_: int) -> Replay | None:
        """One of them."""
        return await self._in_thread(self._store.get, namespace, id_)

    async def run(self) -> None:
        """Works until it is cancelled; what is unfinished goes on in the next process."""
        try:
            while True:
                self._changed.clear()
                self._adjust(await self._stored(self._store.running, limits.REPLAYS_RUNNING_MAX))
                await self._changed.wait()
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Close the file."""
        self._thread.shutdown(wait=True)
        self._store.close()

    def _adjust(self, running: list[Replay]) -> None:
        wanted = {replay.id: replay for replay in running}
        for id_ in self._tasks.keys() - wanted.keys():
            self._tasks[id_].cancel()
        for id_ in wanted.keys() - self._tasks.keys():
            task = self._tasks[id_] = asyncio.create_task(self._replay(wanted[id_]))
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks = {id_: other for id_, other in self._tasks.items() if other is not task}
        self._changed.set()
        tell_failure(task, "a replay's task failed")

    async def _replay(self, replay: Replay) -> None:
        spec, progress = replay.spec, replay.progress
        pace = _Pace(spec.rate_per_s)
        state, problem = ReplayState.DONE, ""
        while any(progress.positions[partition] < end for partition, end in spec.end.items()):
            before = progress
            try:
                progress = await self._page(replay.id, spec, progress, pace)
            except HeadgateError as error:
                if error.retriable:  # a reader that restarts, a busy store
                    await asyncio.sleep(limits.REPLAY_RETRY_S)
                    continue
                state, problem = ReplayState.FAILED, error.message
                break
            await self._stored(self._store.advance, replay.id, progress)
            if progress == before:  # the log does not reach to where it did
                await asyncio.sleep(limits.REPLAY_RETRY_S)
        await self._stored(self._store.end, replay.id, state, problem)
        _log.info("a replay has ended", replay=replay.id, state=state.value, problem=problem)

    async def _stored(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Does it with the file, again and again while the disk is full or fails: no page goes on without its place."""
        tries = Recurring(_log, "replays cannot be read or written, they wait", sqlite3.OperationalError)
        while True:
            with tries.attempt():
                return await self._in_thread(work, *args, **kwargs)
            await asyncio.sleep(limits.REPLAY_RETRY_S)

    async def _in_thread(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args, **kwargs))

    async def _page(self, id_: int, spec: ReplaySpec, progress: ReplayProgress, pace: _Pace) -> ReplayProgress:
        target = self._target(spec)
        rule = await asyncio.to_thread(self._rule_of, spec.broker)
        if rule is None:
            raise ReplayTargetError(f"the broker {path_of(spec.broker)!r} of which it was asked for is gone")
        parts = [f"({cel})" for cel in (target.filter.cel if target else "", spec.cel) if cel]
        count_max = limits.FIND_COUNT_MAX if spec.dry_run else limits.REPLAY_PAGE_EVENTS
        start = {partition: at for partition, at in progress.positions.items() if at < spec.end[partition]}
        end = {partition: spec.end[partition] for partition in start}
        request = ScanRequest(spec.broker, rule, " && ".join(parts) or None, start, end, count_max)
        page = await self._scanner.scan_page(request)
        results: Counter[str] = Counter()
        if not spec.dry_run:
            await self._send_all(id_, spec, target, page.found, pace, results)
        return ReplayProgress(
            progress.positions | page.positions,
            progress.matched + len(page.found),
            progress.delivered + results["delivered"],
            progress.dead_lettered + results["dead_lettered"],
            progress.failed + results["failed"],
            progress.lost + results["lost"],
            progress.errors + page.errors,
        )

    def _target(self, spec: ReplaySpec) -> Target | None:
        if not spec.trigger:
            return None
        target = self._trigger(f"{spec.namespace}/{spec.trigger}")
        if target is None:
            raise ReplayTargetError(f"there is no trigger {spec.namespace}/{spec.trigger} with an address")
        return target

    async def _send_all(
        self,
        id_: int,
        spec: ReplaySpec,
        target: Target | None,
        found: list[Located],
        pace: _Pace,
        results: Counter[str],
    ) -> None:
        rules = target.delivery if target is not None else _DEFAULT_RULES
        places = asyncio.Semaphore(1 if rules.ordered else rules.parallelism)

        async def one(place: Located) -> None:
            try:
                result = await self._send(id_, spec, target, place)
            finally:
                places.release()
            results[result] += 1
            metrics.REPLAYED.labels(result).inc()

        async with asyncio.TaskGroup() as group:
            for place in sorted(found):
                await pace.wait()
                await places.acquire()
                group.create_task(one(place))

    async def _send(self, id_: int, spec: ReplaySpec, target: Target | None, place: Located) -> str:
        """One event until it has ended; says how."""
        try:
            stored = await self._events.load(place.partition, place.offset)
        except EventGoneError:
            return "lost"
        extensions = {**stored.event.extensions, EXTENSION: str(id_)}
        event = msgspec.structs.replace(stored.event, extensions=extensions)
        rules = target.delivery if target is not None else _DEFAULT_RULES
        url = target.subscriber_uri if target is not None else spec.url
        root = f"replay-{id_}-{place_root(event, place.partition, place.offset)}"
        headers, body = encoding.encoded(event, root, rules.format, reply=target is not None)
        failures, began = 0, self._clocks.now()
        while True:
            outcome = await self._transport.post(url, headers, body, rules.timeout_s)
            if target is not None and outcome.reply is not None:
                answered = Answered(path_of(target.broker), event, root)
                outcome = await self._replies.store(answered, outcome.reply, context_of(event))
            fate = judge(outcome)
            reason = "" if fate is Fate.DELIVERED else outcome.label
            id_of_target = target.id if target is not None else 0
            self._journal.attempt(
                place.partition, place.offset, id_of_target, failures + 1, outcome.status, reason, Origin.REPLAY
            )
            if fate is Fate.DELIVERED:
                return "delivered"
            failures += 1
            now_us = self._clocks.now_us()
            if is_left(rules, outcome, failures, self._clocks.now() - began):
                chance = self._clocks.chance()
                await asyncio.sleep(pause_s(rules, failures, outcome, now_s=now_us / 1e6, chance=chance))
                continue
            if target is None or not target.delivery.has_sink:
                return "failed"
            delivery = Delivery(_position(id_, place), place.partition, place.offset, Verdict.MATCH)
            delivery.failures = failures
            marked = SharedEvent(stored.broker, event, stored.append_time_us)
            await self._bury(dead_letter_of(target, delivery, marked, outcome, reason=outcome.label, now_us=now_us))
            return "dead_lettered"


def _position(replay: int, place: Located) -> int:
    """What stands in a letter for the row of the outbox that a replayed event does not have.

    Below all positions of rows. Another one for each replay, whose letters are not those of the one before; the same
    one when a restart repeats a page.
    """
    name = f"{replay}:{place.partition}:{place.offset}".encode()
    return -1 - (int.from_bytes(blake2b(name, digest_size=8).digest()) >> 1)


class _Pace:
    """When the next event may go."""

    def __init__(self, rate_per_s: float) -> None:
        self._gap_s = 1.0 / rate_per_s
        self._next = 0.0

    async def wait(self) -> None:
        now = asyncio.get_running_loop().time()
        at = max(now, self._next)
        self._next = at + self._gap_s
        if at > now:
            await asyncio.sleep(at - now)
