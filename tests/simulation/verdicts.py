"""Was everything kept that is promised? The invariants of a schedule, judged from its ledger alone.

What a killed dispatcher had not flushed it has forgotten: only that may be repeated. So each bound is exact: a second
good answer, or an attempt over the promised number, must be covered by one that ended after the last flush of its life.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from headgate.delivery.retry import Fate, backoff_s, judge
from headgate.objects.kinds.routing import Target
from headgate.outbox.shards import dispatcher_of
from headgate_api.event import rfc3339
from headgate_api.event.attributes import DELIVERY_TIME
from tests.simulation.ledger import PARTITIONS, Attempt, Ledger
from tests.simulation.world import World

Pair = tuple[int, tuple[int, int]]
_EARLY_S = 1e-6


def faults(world: World) -> Iterator[str]:
    """Every broken promise of a schedule, in words."""
    ledger = world.ledger
    if ledger.unfinished:
        yield f"not everything ends: {ledger.unfinished}"
        return
    by_pair: dict[Pair, list[Attempt]] = defaultdict(list)
    for attempt in ledger.attempts:
        by_pair[attempt.target, attempt.key].append(attempt)
    for target, dispatcher in sorted({(a.target, ledger.lives[a.life].dispatcher) for a in ledger.attempts}):
        if dispatcher_of(target, world.dispatchers) != dispatcher:
            yield f"target {target} is not dispatcher {dispatcher}'s own"
    dropped = 0
    for number, rules in sorted(world.targets.items()):
        steady: set[tuple[int, int]] = set()
        for key in ledger.accepted:
            pair = number, key
            decided_by = world.decided_by(number, key)
            if decided_by[-1] < ledger.in_force[key]:
                yield f"{pair} was matched by filters of before"
            wanted = [world.wants(number, key, generation) for generation in decided_by]
            if pair in by_pair and not any(wanted):
                yield f"{pair} was delivered, but is not wanted"
            if all(wanted):
                steady.add(key)
            if not wanted[-1]:
                continue
            end = _end(ledger, world.targets[number], key, by_pair[pair], world.patience_s)
            dropped += end == "dropped"
            if not end:
                yield f"{pair} is lost: {_told(by_pair[pair])}"
            if due_us := _due_us(ledger, rules, key):
                yield from _waited(ledger, rules, pair, by_pair[pair], due_us)
                continue
            yield from _counted(ledger, rules, pair, by_pair[pair], world.patience_s)
        if rules.delivery.ordered and not rules.delivery.delay_us:
            yield from _in_order(ledger, rules, steady, world.patience_s)
        if ledger.parallel_max.get(number, 0) > rules.delivery.parallelism:
            yield f"target {number}: {ledger.parallel_max[number]} attempts at once"
    if ledger.dropped < dropped:
        yield f"{dropped} events were dropped, {ledger.dropped} counted"


def repeated(ledger: Ledger) -> int:
    """Good answers to events that had had one."""
    good = [(a.target, a.key) for a in ledger.attempts if _is_good(a)]
    return len(good) - len(set(good))


def _is_good(attempt: Attempt) -> bool:
    return attempt.outcome is not None and judge(attempt.outcome) is Fate.DELIVERED and attempt.stored is not False


def _is_final(attempt: Attempt) -> bool:
    """Whether the answer alone ends it: not that to a batch, whose events are sent again one by one."""
    return attempt.outcome is not None and judge(attempt.outcome) is Fate.FAILED and attempt.members == 1


def _is_split(attempt: Attempt) -> bool:
    """Whether it was a batch that was refused for good: it goes again one by one, and counts for none of them."""
    return attempt.outcome is not None and judge(attempt.outcome) is Fate.FAILED and attempt.members > 1


def _end(ledger: Ledger, target: Target, key: tuple[int, int], attempts: list[Attempt], patience_s: float) -> str:
    """How a pair ended; empty when it is lost."""
    event_id = ledger.accepted[key].id
    if any(map(_is_good, attempts)):
        return "delivered"
    exhausted = _is_exhausted(target, attempts, patience_s)
    if target.delivery.retry is None and _due_us(ledger, target, key):
        exhausted = any(attempt.ended_at is not None for attempt in attempts)  # reading it counts as time, too
    if (target.id, event_id) in ledger.buried:
        return "dead-lettered" if exhausted else ""
    if exhausted and not target.delivery.has_sink:
        return "dropped"
    return ""


def _is_exhausted(target: Target, attempts: list[Attempt], patience_s: float) -> bool:
    """Whether an event with these attempts may be given up; the time between two lives may count or not."""
    heard = [attempt for attempt in attempts if attempt.outcome is not None and attempt.ended_at is not None]
    if any(map(_is_final, heard)):
        return True
    if target.delivery.retry is not None:
        return len(heard) > target.delivery.retry
    return any((attempt.ended_at or 0.0) - attempts[0].started_at >= patience_s - _EARLY_S for attempt in heard)


def _is_forgotten(ledger: Ledger, attempt: Attempt) -> bool:
    """Whether the next life cannot know of it."""
    life = ledger.lives[attempt.life]
    return life.killed_at is not None and (attempt.ended_at is None or attempt.ended_at >= life.flushed_at)


def _unburied(ledger: Ledger, target: Target, pair: Pair, attempts: list[Attempt]) -> int:
    """In how many lives the last attempt was remembered as failed, but not that it was buried.

    An earlier life may have buried the event and been killed before it knew: the next one has to do so itself.
    """
    burials = ledger.buried.get((target.id, ledger.accepted[pair[1]].id), [])
    last = {attempt.life: attempt for attempt in attempts}
    return sum(
        ledger.lives[life].killed_at is not None
        and not any((attempt.ended_at or 0.0) <= at < ledger.lives[life].flushed_at for at in burials)
        and target.delivery.has_sink
        and not _is_good(attempt)
        and not _is_forgotten(ledger, attempt)
        for life, attempt in last.items()
    )


def _counted(ledger: Ledger, target: Target, pair: Pair, attempts: list[Attempt], patience_s: float) -> Iterator[str]:
    """Attempts and pauses as promised, repeated only what was forgotten."""
    rules = target.delivery
    forgotten = sum(_is_forgotten(ledger, attempt) for attempt in attempts)
    forgotten += _unburied(ledger, target, pair, attempts)
    # A batch refused for good goes again one by one, which each life finds out for itself.
    alone = len({attempt.life for attempt in attempts}) if rules.format == "batch" else 0
    allowed = (rules.retry or 0) + 1 + forgotten + alone
    if rules.retry is None:
        for life in {attempt.life for attempt in attempts}:
            mine = [a for a in attempts if a.life == life and not _is_split(a)]
            late = [a for a in mine[:-1] if (a.ended_at or 0.0) - mine[0].started_at > patience_s + _EARLY_S]
            if len(late) > alone:
                yield f"{pair}: tried for longer than {patience_s} s: {_told(mine)}"
    elif len(attempts) > allowed:
        yield f"{pair}: {len(attempts)} attempts, {allowed} allowed ({forgotten} forgotten): {_told(attempts)}"
    for index, attempt in enumerate(attempts[:-1]):
        ended = _is_good(attempt) or (_is_final(attempt) and not target.delivery.has_sink)
        if ended and not _is_forgotten(ledger, attempt):
            yield f"{pair} goes on after its end: {_told(attempts[index:])}"
            break
    if rules.format == "batch":
        return
    failures = 0
    for earlier, later in pairwise(attempts):
        if earlier.life != later.life:
            failures = 0
            continue
        failures += 1
        assert earlier.ended_at is not None, "a dispatcher starts an attempt only after the one before it"
        pause = later.started_at - earlier.ended_at
        if pause < backoff_s(rules, failures) - _EARLY_S:
            yield f"{pair}: a pause of {pause:.3f} s after failure {failures}"


def _due_us(ledger: Ledger, target: Target, key: tuple[int, int]) -> int:
    """When an event may go to a target at the earliest; 0 for one that need not wait."""
    delay_us, text = target.delivery.delay_us, ledger.accepted[key].extensions.get(DELIVERY_TIME)
    by_delay_us = ledger.stored_us[key] + delay_us if delay_us else 0
    return max(by_delay_us, (rfc3339.micros(text) or 0) if isinstance(text, str) else 0)


def _waited(ledger: Ledger, target: Target, pair: Pair, attempts: list[Attempt], due_us: int) -> Iterator[str]:
    """No attempt before the time; what a killed dispatcher had written of its attempts is not judged as exactly."""
    for attempt in attempts:
        if attempt.wall_us < due_us:
            yield f"{pair} is early by {(due_us - attempt.wall_us) / 1e6:.3f} s: {_told([attempt])}"
            return
    lives, retries = {attempt.life for attempt in attempts}, target.delivery.retry
    if retries is not None and len(attempts) > (retries + 2) * (len(lives) + 1):
        yield f"{pair}: {len(attempts)} attempts in {len(lives)} lives, {retries} retries: {_told(attempts)}"
    # A killed life may have put it off before its cursor said so: then the next one has it twice.
    if sum(map(_is_good, attempts)) > len(ledger.lives) + 1:
        yield f"{pair} goes on after its end: {_told(attempts)}"


def _in_order(ledger: Ledger, target: Target, steady: set[tuple[int, int]], patience_s: float) -> Iterator[str]:
    """Of each partition key, an attempt starts only when all before it have ended, in this life and ever.

    Only `steady` events have a place: a kill may have others decided anew by newer filters, out or in.
    """
    lanes: dict[tuple[int, object], list[tuple[int, int]]] = defaultdict(list)
    for partition in range(PARTITIONS):
        for key in sorted(k for k in ledger.accepted if k[0] == partition):
            if not _due_us(ledger, target, key):
                lanes[partition, ledger.accepted[key].extensions.get("partitionkey", "")].append(key)
    mine = [attempt for attempt in ledger.attempts if attempt.target == target.id]
    tried = {attempt.key for attempt in mine}
    for lane in lanes.values():
        keys = [key for key in lane if key in tried & steady]
        place = {key: index for index, key in enumerate(keys)}
        tries: dict[tuple[int, int], list[Attempt]] = defaultdict(list)
        for attempt in (a for a in mine if a.key in place):
            for before in keys[: place[attempt.key]]:
                if not _has_ended(target, tries[before], attempt, patience_s):
                    yield f"target {target.id}: {attempt.key} starts before {before} has ended: {_told(tries[before])}"
                    return
            tries[attempt.key].append(attempt)


def _has_ended(target: Target, tries: list[Attempt], later: Attempt, patience_s: float) -> bool:
    """Whether an event's attempts so far leave the way free for a later attempt of the same lane."""
    past = [a for a in tries if a.ended_at is not None and a.ended_at <= later.started_at]
    if any(a.life == later.life and a not in past and a.started_at < later.started_at for a in tries):
        return False
    if any(map(_is_good, past)) or _is_exhausted(target, past, patience_s):
        return True
    # In one batch they go together, in order.
    return any(a.started_at == later.started_at and a.members == later.members > 1 for a in tries)


def _told(attempts: list[Attempt]) -> str:
    return "; ".join(
        f"life {a.life} {a.started_at:.3f}-{'?' if a.ended_at is None else f'{a.ended_at:.3f}'}"
        f" {'' if a.outcome is None else a.outcome.status or a.outcome.reason} {'' if a.stored is None else a.stored}"
        for a in attempts
    )
