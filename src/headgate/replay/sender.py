"""Sending of replays: a page of the log at a time to one target, at a rate, by the target's own rules.

The next position is written down when all events of a page have ended, so a restart repeats a page at most. What was
tried in vain is written down with each failure: a restart gives no event more attempts than the rules do.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec
import structlog

from headgate.auth.authorizer import NOTHING
from headgate.auth.user import ANONYMOUS_NAME, User, authenticated
from headgate.delivery.attempt_service import AttemptService, OutgoingMessage, Recipient
from headgate.delivery.circuit import Rate, Subscriber
from headgate.delivery.events import EventGoneError, Events, SharedEvent, encoded
from headgate.delivery.given_up import DeadLetterQueue, give_up
from headgate.delivery.journal import Origin
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import Fate, left_s
from headgate.delivery.verdicts import gives, transformed
from headgate.event.hops import place_root
from headgate.filter.cel.errors import EvaluationError
from headgate.filter.compile.plan import Verdict
from headgate.objects.api.grants import Grants
from headgate.objects.kinds.routing import Target
from headgate.observe import metrics
from headgate.observe.logs import Recurring, tell_failure
from headgate.outbox.shards import WHOLE, Shard
from headgate.replay.store import EXTENSION, Replay, ReplayProgress, ReplaySpec, ReplayState, ReplayStore
from headgate.scan.pages import Located, RuleOf, Scanner, ScanRequest
from headgate.storage.commit import Committer
from headgate.storage.threads import Threads, cancel_all
from headgate_api import limits
from headgate_api.errors import HeadgateError, NotFoundError, UnavailableError
from headgate_api.event.names import path_of

_P = ParamSpec("_P")
_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


class ReplayTargetError(NotFoundError):
    """The trigger or the broker of a replay is gone."""

    code = "replay-target"


class ReplayRightError(HeadgateError):
    """Who began a replay has no right to the events of its broker any more."""

    code = "replay-right"


class Replaying:
    """Does the replays, on the dispatcher's event loop. `trigger` finds "namespace/name" as routing has it now.

    A replay of a user below a ceiling sends what is below that, and below the one that he has now; it fails when he has
    none of the broker's events any more. `rights` is None where nobody is asked who he is.
    """

    def __init__(
        self,
        path: Path,
        *,
        scanner: Scanner,
        events: Events,
        service: AttemptService,
        dead_letters: DeadLetterQueue,
        trigger: Callable[[str], Target | None],
        rule_of: RuleOf,
        rights: Grants | None = None,
        shard: Shard = WHOLE,
        committer: Committer | None = None,
    ) -> None:
        self._rights = rights
        self._scanner = scanner
        self._events = events
        self._service = service
        self._dead_letters = dead_letters
        self._trigger = trigger
        self._rule_of = rule_of
        self._clocks = service.clocks
        self._store = ReplayStore(path, shard, committer)
        self._thread = Threads("replays")
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        """Set when a replay was made or has ended."""

    async def create(self, spec: ReplaySpec) -> Replay:
        """A new replay, which begins at once. Raises PlacesTakenError when as many as may have not ended."""
        replay = await self._thread.run(self._store.create, spec)
        self._changed.set()
        return replay

    async def cancel(self, id_: int) -> bool:
        """End a replay, unless it has ended; whether it was ended by this."""
        ended = await self._thread.run(self._store.end, id_, ReplayState.CANCELLED)
        self._changed.set()
        return ended

    async def page(self, namespace: str) -> list[Replay]:
        return await self._thread.run(self._store.page, namespace)

    async def get(self, namespace: str, id_: int) -> Replay | None:
        return await self._thread.run(self._store.get, namespace, id_)

    async def run(self) -> None:
        """Works until it is cancelled; what is unfinished goes on in the next process."""
        try:
            while True:
                self._changed.clear()
                self._adjust(await self._stored(self._store.running, limits.REPLAYS_RUNNING_MAX))
                await self._changed.wait()
        finally:
            await cancel_all(self._tasks.values())

    def close(self) -> None:
        self._thread.close()
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
        run, spec, progress = _Run(replay), replay.spec, replay.progress
        state, problem = ReplayState.DONE, ""
        while any(progress.positions[partition] < end for partition, end in spec.end.items()):
            before = progress
            try:
                progress = await self._page(run)
            except HeadgateError as error:
                if error.retriable:  # a reader that restarts, a busy store
                    await asyncio.sleep(limits.REPLAY_RETRY_S)
                    continue
                state, problem = ReplayState.FAILED, error.message
                break
            run.start_page(progress)
            await self._stored(self._store.advance, replay.id, progress)
            if run.ceiling == NOTHING:  # so the rest of the page was not sent
                state, problem = ReplayState.FAILED, _without_right(spec)
                break
            if progress == before:  # the log does not reach to where it did
                await asyncio.sleep(limits.REPLAY_RETRY_S)
        await self._stored(self._store.end, replay.id, state, problem)
        _log.info("a replay has ended", replay=replay.id, state=state.value, problem=problem)

    async def _stored(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Does it with the file, again and again while the disk is full or fails: no page goes on without its place."""
        tries = Recurring(_log, "replays cannot be read or written, they wait", sqlite3.OperationalError)
        while True:
            with tries.attempt():
                return await self._thread.run(work, *args, **kwargs)
            await asyncio.sleep(limits.REPLAY_RETRY_S)

    async def _page(self, run: _Run) -> ReplayProgress:
        spec, progress = run.spec, run.page
        target, ceiling = self._target(spec), await self._ceiling_now(run)
        if ceiling == NOTHING:
            raise ReplayRightError(_without_right(spec))
        rule = await asyncio.to_thread(self._rule_of, spec.broker)
        if rule is None:
            raise ReplayTargetError(f"the broker {path_of(spec.broker)!r} of which it was asked for is gone")
        filters = (target.filter.cel, target.filter.ceiling) if target is not None else ()
        parts = [f"({cel})" for cel in dict.fromkeys((*filters, spec.cel, ceiling)) if cel]
        count_max = limits.FIND_COUNT_MAX if spec.dry_run else limits.REPLAY_PAGE_EVENTS
        start = {partition: at for partition, at in progress.positions.items() if at < spec.end[partition]}
        end = {partition: spec.end[partition] for partition in start}
        request = ScanRequest(spec.broker, rule, " && ".join(parts) or None, start, end, count_max, spec.owner)
        page = await self._scanner.scan_page(request)
        results = Counter[str]() if spec.dry_run else await self._send_all(run, target, page.found)
        return ReplayProgress(
            progress.positions | page.positions,
            progress.matched + len(page.found),
            progress.delivered + results["delivered"],
            progress.dead_lettered + results["dead_lettered"],
            progress.failed + results["failed"],
            progress.lost + results["lost"],
            progress.errors + page.errors + results["error"],
        )

    async def _ceiling_now(self, run: _Run) -> str:
        """The ceiling that the right of who began it has now, as it was a second ago at most; empty for none."""
        spec, now = run.spec, asyncio.get_running_loop().time()
        if self._rights is not None and spec.groups and now >= run.judged_at + limits.REPLAY_RETRY_S:
            run.ceiling = await asyncio.to_thread(_ceiling_of, self._rights, spec)
            run.judged_at = now
        return run.ceiling

    async def _may_send(self, run: _Run, to: Target | None, event: SharedEvent) -> bool:
        """Whether rights give an event now: some time may have passed since it was found."""
        while True:
            try:
                ceiling = await self._ceiling_now(run)
                break
            except UnavailableError:
                await asyncio.sleep(limits.REPLAY_RETRY_S)
        return gives(ceiling, event) and (to is None or gives(to.filter.ceiling, event))

    def _target(self, spec: ReplaySpec) -> Target | None:
        if not spec.trigger:
            return None
        target = self._trigger(f"{spec.namespace}/{spec.trigger}")
        if target is None:
            raise ReplayTargetError(f"there is no trigger {spec.namespace}/{spec.trigger} with an address")
        return target

    async def _resumed(self, spec: ReplaySpec, delivery: Delivery) -> None:
        """Waits for as long as the trigger is paused; that is no time in which the event was tried."""
        while spec.trigger and (target := self._trigger(f"{spec.namespace}/{spec.trigger}")) and target.paused:
            delivery.since = None
            await asyncio.sleep(limits.REPLAY_RETRY_S)

    async def _send_all(self, run: _Run, target: Target | None, found: list[Located]) -> Counter[str]:
        """All of a page; says how many have ended how."""
        results: Counter[str] = Counter()
        if target is not None:
            run.subscriber = self._service.subscribers.of(target)
            to = Recipient.subscriber_of(run.subscriber, Origin.REPLAY)
        else:
            owner = run.spec.owner
            to = Recipient(url=run.spec.url, origin=Origin.REPLAY, sender=authenticated(owner) if owner else None)
        permits = asyncio.Semaphore(1 if to.rules.ordered else to.rules.parallelism)

        async def one(where: Located) -> None:
            try:
                result = await self._send(run, to, target, where)
            finally:
                permits.release()
            results[result] += 1
            metrics.REPLAYED.labels(result).inc()

        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            for where in sorted(found):
                now = loop.time()
                wait_s = run.pace.wait_s(now)
                run.pace.take(now)
                if wait_s:
                    await asyncio.sleep(wait_s)
                await permits.acquire()
                group.create_task(one(where))
        return results

    async def _send(self, run: _Run, to: Recipient, target: Target | None, where: Located) -> str:
        """One event until it has ended; says how."""
        try:
            found = await self._events.load(where.partition, where.offset)
            stored = transformed(target, found) if target is not None else found
        except EventGoneError:
            return "lost"
        except EvaluationError:
            return "error"
        event = msgspec.structs.replace(stored.event, extensions={**stored.event.extensions, EXTENSION: str(run.id)})
        root = f"replay-{run.id}-{place_root(event, where.partition, where.offset)}"
        headers, body = encoded(event, root, to.rules.format, reply=bool(to.replies_to))
        message = OutgoingMessage(headers, body, event, event, root)
        delivery = Delivery(_position(run.id, where), where.partition, where.offset, Verdict.MATCH)
        if (tried := run.retries.get(delivery.position)) is not None:
            delivery.resume(tried)
            await self._pause(to, delivery)
        while True:
            await self._resumed(run.spec, delivery)
            if not await self._may_send(run, target, found):
                return "foreign"
            outcome = await self._service.send_in_turn(to, delivery, message)
            decision = self._service.settle(to, delivery, outcome, self._clocks.now())
            if decision.fate is not Fate.AGAIN:
                break
            delivery.due_us = self._clocks.now_us() + int(decision.pause_s * 1e6)
            run.retries[delivery.position] = delivery.tried()
            await self._stored(self._store.advance, run.id, run.progress())
            await self._pause(to, delivery)
        run.retries.pop(delivery.position, None)
        if decision.fate is Fate.DELIVERED:
            return "delivered"
        if target is None:
            return "failed"
        marked = SharedEvent(stored.broker, event, stored.append_time_us, original=stored.original)
        return await give_up(self._dead_letters, target, delivery, marked, outcome, now_us=self._clocks.now_us())

    async def _pause(self, to: Recipient, delivery: Delivery) -> None:
        await asyncio.sleep(left_s(to.rules, delivery.failures, delivery.due_us, now_us=self._clocks.now_us()))


def _ceiling_of(rights: Grants, spec: ReplaySpec) -> str:
    """What the right of who began a replay gives of its events now; empty: all, NOTHING: none. Blocking."""
    rights.refresh()
    user = User(spec.owner or ANONYMOUS_NAME, spec.groups)
    if not (spec.ceiling or rights.authorizer.has_ceilings(user, "")):
        return ""
    return rights.ceiling_on(user, path_of(spec.broker))


def _without_right(spec: ReplaySpec) -> str:
    return f"{spec.owner or 'who began it'} has no right to the events of {path_of(spec.broker)} any more"


def _position(replay: int, where: Located) -> int:
    """Stands for the row of the outbox that a replayed event does not have: another one for each replay, below 0."""
    name = f"{replay}:{where.partition}:{where.offset}".encode()
    return -1 - (int.from_bytes(blake2b(name, digest_size=8).digest()) >> 1)


class _Run:
    """A replay that runs; `page` is how far it was when its page began, `retries` what of it was tried in vain."""

    def __init__(self, replay: Replay) -> None:
        self.id = replay.id
        self.spec = replay.spec
        self.ceiling, self.judged_at = "", float("-inf")
        self.pace = Rate(replay.spec.rate_per_s, burst_s=0.0)
        self.subscriber: Subscriber | None = None  # kept from page to page
        self.start_page(replay.progress)

    def start_page(self, progress: ReplayProgress) -> None:
        self.page = progress
        self.retries = {tried.position: tried for tried in progress.retries}

    def progress(self) -> ReplayProgress:
        return msgspec.structs.replace(self.page, retries=tuple(self.retries.values()))
