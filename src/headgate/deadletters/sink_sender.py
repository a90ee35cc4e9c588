"""Sending of dead letters: to their sink, or, when they are redriven, to their subscriber again.

Whoever hangs holds up nobody else: a trigger's dead letters for its sink and those that are redriven are two queues. A
queue has one attempt under way until somebody answers it, and each turn begins behind the queue that was served last.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from headgate.deadletters.store import (
    Cancelled,
    DeadLetterState,
    DeadLetterStore,
    Ended,
    Reschedule,
    SendQueue,
    StoredDeadLetter,
    StorePart,
    Totals,
)
from headgate.deadletters.writing import OnWritten, PartWriter, drop
from headgate.delivery.attempt_service import DEFAULT_RULES, AttemptService, OutgoingMessage, Recipient
from headgate.delivery.authentication import Access
from headgate.delivery.circuit import Rate
from headgate.delivery.cursors import Tried
from headgate.delivery.events import as_dead_letter, encoded
from headgate.delivery.given_up import DeadLetter
from headgate.delivery.journal import Origin
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import Fate, Outcome
from headgate.delivery.verdicts import gives
from headgate.event.hops import root_of
from headgate.filter.compile.plan import Verdict
from headgate.objects.kinds.quotas import DEAD_LETTERS
from headgate.objects.kinds.routing import DeliveryRules, Target
from headgate.objects.views.shared_quotas import SharedQuotas
from headgate.observe import metrics
from headgate.observe.logs import tell_failure
from headgate.outbox.shards import WHOLE, Shard
from headgate.outbox.writer import WhenDurable, always_durable
from headgate.storage.commit import Committer
from headgate.storage.threads import Threads, cancel_all
from headgate_api import limits
from headgate_api.event.names import path_of


class DeadLetters:
    """The dead letters of a dispatcher, on one event loop; `writer` puts them into the `store`.

    `find` gives the target of an id, `find_trigger` a trigger by `namespace/name`, as routing has them now, whichever
    dispatcher's they are.
    """

    def __init__(
        self,
        path: Path,
        service: AttemptService,
        find: Callable[[int], Target | None],
        shard: Shard = WHOLE,
        committer: Committer | None = None,
        quotas: SharedQuotas | None = None,
        when_durable: WhenDurable = always_durable,
        find_trigger: Callable[[str], Target | None] = lambda _: None,
    ) -> None:
        self._service = service
        self.find = find
        self.find_trigger = find_trigger
        self._clocks = service.clocks
        self._loop = asyncio.get_running_loop()
        self._store = DeadLetterStore(path, shard, committer)
        self._store.resume(self._clocks.now_us())
        self._thread = Threads("letters")
        is_used_up = partial(quotas.is_used_up, DEAD_LETTERS) if quotas is not None else lambda _: False
        self._writer = self.writer(StorePart.DEAD, when_durable, self._written, is_used_up)
        self._busy: set[int] = set()  # dead letters under way, until what became of them is on disk
        self._by_url: Counter[str] = Counter()
        self._by_queue: Counter[SendQueue] = Counter()
        self._served = SendQueue(0, DeadLetterState.SENDING)  # the last that was
        self._answering: set[SendQueue] = set()  # somebody took, or refused, the last dead letter of these
        self._rates: dict[int, Rate] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        if quotas is not None:
            quotas.count(DEAD_LETTERS, self._writer.held)
        self._sender: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send, now that targets are known."""
        self._sender = self._loop.create_task(self._send_due())
        self._sender.add_done_callback(self._done)

    @property
    def totals(self) -> Totals:
        return self._writer.totals

    def writer(
        self,
        part: StorePart,
        when_durable: WhenDurable,
        on_written: OnWritten,
        is_used_up: Callable[[str], bool] = lambda _: False,
    ) -> PartWriter:
        """A writer of a part of the store, by the thread that alone changes it."""
        return PartWriter(self._store, self._thread, part, when_durable, on_written, is_used_up)

    async def put(self, dead_letter: DeadLetter) -> None:
        await self._writer.put(StoredDeadLetter.new(dead_letter))

    def has_room(self, namespace: str) -> bool:
        return self._writer.has_room(namespace)

    def is_over_quota(self, namespace: str) -> bool:
        return self._writer.is_over_quota(namespace)

    async def redrive(self, ids: Sequence[int], *, pace_us: int, to: Target | None = None) -> int:
        now_us = self._clocks.now_us()
        return await self._decided(partial(self._store.redrive, ids, now_us=now_us, pace_us=pace_us, to=to))

    async def discard(self, ids: Sequence[int]) -> int:
        return await self._decided(partial(self._store.discard, ids))

    async def cancel(self, ids: Sequence[int]) -> list[Cancelled]:
        """Forget events that wait for their time."""
        return await self._thread.run(self._store.cancel, ids)

    async def stored(self) -> Totals:
        """How full the store is now."""
        return await self._thread.run(self._store.totals)

    async def _decided(self, change: Callable[[], int]) -> int:
        count = await self._thread.run(change)
        self._writer.totals = await self.stored()
        self._wake.set()
        return count

    def _written(self, gone: Sequence[Ended], changed: Sequence[Reschedule], _: Totals) -> None:
        self._busy.difference_update(one.id for one in (*gone, *changed))
        self._wake.set()

    async def close(self) -> None:
        """Send nothing more, write what is known; dead letters under way are sent again by the next process."""
        tasks = [*self._tasks] if self._sender is None else [self._sender, *self._tasks]
        await cancel_all(tasks)
        try:
            await self._writer.close()
        finally:
            self._thread.close()
            self._store.close()

    # --- sending ----------------------------------------------------------------------------------------

    async def _send_due(self) -> None:
        while True:
            self._wake.clear()
            next_us = await self._start_due()
            wait_s = (next_us - self._clocks.now_us()) / 1e6
            wait_s = min(max(wait_s, limits.DEADLETTER_TURN_S), limits.DEADLETTER_SLEEP_S_MAX)
            timer = self._loop.call_later(wait_s, self._wake.set)  # wait_for may swallow a cancel
            await self._wake.wait()
            timer.cancel()

    async def _start_due(self) -> int:
        """Start what is due and has a place; returns when the next dead letter will be, a time far away without one."""
        run = self._thread.run
        now_us, next_us = self._clocks.now_us(), 1 << 62
        self._writer.totals = await run(self._store.totals)
        metrics.DEAD_LETTERS_HELD.labels("kept").set(self.totals.kept)
        metrics.DEAD_LETTERS_HELD.labels("waiting").set(self.totals.count - self.totals.kept)
        metrics.DEAD_LETTERS_BYTES.set(self.totals.bytes)
        waiting = await run(self._store.waiting)
        self._forget(waiting)
        served = self._served
        for queue in sorted(waiting, key=lambda queue: (queue <= served, queue)):
            if waiting[queue] > now_us:
                next_us = min(next_us, waiting[queue])
                continue
            if self._is_paused(queue):
                continue  # for hours perhaps: seen again after DEADLETTER_SLEEP_S_MAX
            next_us = now_us  # look again at the next turn: there may be more than there are places
            room = self._room(queue)
            if room > 0:
                for dead_letter in await run(self._store.due, queue, now_us, room, but=frozenset(self._busy)):
                    self._start(queue, dead_letter)
        return next_us

    def _forget(self, waiting: Collection[SendQueue]) -> None:
        """Nothing is remembered of queues without dead letters."""
        self._answering.intersection_update(waiting)
        redriven = {queue.target for queue in waiting if queue.state is DeadLetterState.REDRIVING}
        self._rates = {id_: rate for id_, rate in self._rates.items() if id_ in redriven}

    def _is_paused(self, queue: SendQueue) -> bool:
        """Whether a queue waits for its trigger to be resumed; what is on its way to a sink does not."""
        target = self.find(queue.target)
        return target is not None and target.paused and queue.state is DeadLetterState.REDRIVING

    def _room(self, queue: SendQueue) -> int:
        """How many more dead letters of a queue may start now."""
        target = self.find(queue.target)
        room = limits.DEADLETTER_ATTEMPTS_MAX - len(self._busy)
        most = limits.DEADLETTER_URL_ATTEMPTS_MAX
        # Each dead letter of a trigger that is gone has a sink of its own, and there is no subscriber.
        url = _address(target, queue.state) if target else None if queue.state is DeadLetterState.SENDING else ""
        if url is not None:
            room = min(room, most - self._by_url[url])
        if url != "" and queue not in self._answering:
            most = limits.DEADLETTER_UNPROVEN_ATTEMPTS_MAX
        if target is not None and queue.state is DeadLetterState.REDRIVING:
            most = min(most, 1 if target.delivery.ordered else target.delivery.parallelism)
        if (rate := self._rate(target, queue.state)) is not None:
            rested = rate.wait_s(self._loop.time()) <= 0
            room = min(room, 1 + int(rate.per_s * limits.DEADLETTER_TURN_S)) if rested else 0
        return min(room, most - self._by_queue[queue])

    def _rate(self, target: Target | None, state: DeadLetterState) -> Rate | None:
        """What paces dead letters that are redriven to a trigger; None for no bound."""
        if target is None or state is not DeadLetterState.REDRIVING or target.delivery.rate_per_s is None:
            return None
        rate = self._rates[target.id] = Rate.of(target.delivery.rate_per_s, self._rates.get(target.id))
        return rate

    def _start(self, queue: SendQueue, dead_letter: StoredDeadLetter) -> None:
        target = self.find(dead_letter.target)
        if target is not None:
            url = _address(target, dead_letter.state)
        else:
            url = dead_letter.sink if dead_letter.state is DeadLetterState.SENDING else ""
        if self._by_url[url] >= limits.DEADLETTER_URL_ATTEMPTS_MAX:
            return
        if (rate := self._rate(target, dead_letter.state)) is not None:
            now = self._loop.time()
            if rate.wait_s(now) > 0:
                return
            rate.take(now)
        self._served = queue
        self._by_url[url] += 1
        self._by_queue[queue] += 1
        self._busy.add(dead_letter.id)
        task = self._loop.create_task(self._send(dead_letter, target, url))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def _send(self, dead_letter: StoredDeadLetter, target: Target | None, url: str) -> None:
        rules = target.delivery if target else DEFAULT_RULES
        # A subscription has no subscriber: its dead letters go to the sink again.
        redriving = dead_letter.state is DeadLetterState.REDRIVING and not (target and target.pull)
        queue = SendQueue(dead_letter.target, dead_letter.state)
        to = Recipient(
            url=url,
            rules=rules,
            target=dead_letter.target,
            name=dead_letter.trigger,
            origin=Origin.REDRIVE if dead_letter.state is DeadLetterState.REDRIVING else Origin.DEAD_LETTER,
            replies_to=path_of(target.broker) if redriving and target is not None else "",
            access=(Access.to_subscriber if redriving else Access.to_sink)(target) if target is not None else None,
        )
        delivery = self._delivery(dead_letter)
        try:
            if not url:
                self._keep(dead_letter, "its trigger is gone" if redriving else "its sink has no address")
                return
            if target is not None and not _is_given(target, dead_letter):
                self._keep(dead_letter, "the right of the trigger's writer does not give its event")
                return
            message = _message(dead_letter, rules, redriving=redriving)
            outcome = await self._service.send(to, delivery, message, partial(self._heard, queue))
        finally:
            drop(self._by_url, url)
            drop(self._by_queue, queue)
        decision = self._service.settle(to, delivery, outcome, self._clocks.now())
        if decision.fate is Fate.DELIVERED:
            metrics.DEAD_LETTERS.labels("redriven" if redriving else "sent").inc()
            self._writer.end(Ended(dead_letter.id, dead_letter.state))
            return
        metrics.DEAD_LETTERS.labels("failed").inc()
        detail = outcome.detail or outcome.body.decode("utf-8", "replace").strip()
        problem = f"{url}: {outcome.reason or f'status {outcome.status}'}{f': {detail}' if detail else ''}"
        if decision.fate is Fate.AGAIN:
            state, now_us = dead_letter.state, self._clocks.now_us()
            due_us = now_us + int(decision.pause_s * 1e6)
            since_us = dead_letter.since_us or now_us
            self._writer.change(Reschedule(dead_letter.id, state, state, delivery.failures, since_us, due_us, problem))
        else:
            self._keep(dead_letter, problem)

    def _delivery(self, dead_letter: StoredDeadLetter) -> Delivery:
        """What was tried to bring it to where it goes now."""
        delivery = Delivery(dead_letter.position, dead_letter.partition, dead_letter.offset, Verdict.MATCH)
        tried_us = self._clocks.now_us() - dead_letter.since_us if dead_letter.since_us else 0
        delivery.resume(Tried(dead_letter.position, dead_letter.failures, 0, tried_us))
        delivery.started_at = self._clocks.now()
        return delivery

    def _heard(self, queue: SendQueue, outcome: Outcome) -> None:
        (self._answering.add if outcome.answered else self._answering.discard)(queue)

    def _keep(self, dead_letter: StoredDeadLetter, problem: str) -> None:
        metrics.DEAD_LETTERS.labels("stored").inc()
        facts = {"trigger": dead_letter.trigger, "dead_letter": dead_letter.id, "problem": problem}
        self._writer.tell("a dead letter is kept for a person", **facts)
        self._writer.change(Reschedule(dead_letter.id, dead_letter.state, DeadLetterState.KEPT, 0, 0, 0, problem))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        tell_failure(task, "sending dead letters failed")


def _is_given(target: Target, dead_letter: StoredDeadLetter) -> bool:
    """Whether the right by which a target gets events gives it this one: it may have been another's when it died."""
    if not target.filter.ceiling:
        return True
    event = dead_letter.as_stored
    return event is not None and gives(target.filter.ceiling, event)


def _message(dead_letter: StoredDeadLetter, rules: DeliveryRules, *, redriving: bool) -> OutgoingMessage:
    event = dead_letter.event
    if redriving:  # somebody's will: it begins anew
        root = f"redrive-{dead_letter.id}-{dead_letter.due_us}"
    else:  # to a sink that may be a broker
        event = as_dead_letter(event, dead_letter.destination, dead_letter.code, dead_letter.data)
        root = root_of(event) or f"letter-{dead_letter.id}-{dead_letter.died_us}"
    headers, body = encoded(event, root, rules.format, reply=redriving)
    return OutgoingMessage(headers, body, event, dead_letter.event, root)


def _address(target: Target, state: DeadLetterState) -> str:
    """Where dead letters of a target go that are in this state; empty when nowhere."""
    redriven = state is DeadLetterState.REDRIVING and target.pull is None
    return target.subscriber_uri if redriven else target.delivery.dead_letter_uri or ""
