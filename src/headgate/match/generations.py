"""The loop that keeps one run in force and replaces it without a gap.

Its states, in terms of the two runs it may hold (`active` and `rejected` come from the dispatchers, see
docs/spec/match-link.md):

    in force   candidate   what happens next
    --------   ---------   -------------------------------------------------------------------------------------
    none       none        start one from the dispatchers' offsets (`resume`)
    none       starting    wait for `active`
    yes        none        filters changed: the run goes on to them, where it can
    yes        none        it cannot, or the run is old: start one beside it, from the log's end
    yes        starting    `active`: the candidate is in force, the older run stops

A run that dies or is rejected leaves its place; the next start waits, longer with every failure. Filters that change
while a candidate starts, or while the run in force goes on to others, wait for its `active`: replacing candidates as
fast as filters change would let none ever come into force. Then the newest are taken up, at once when they are quiet,
and later while they keep changing.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from headgate.match.driver_link import LinkAddress, Message
from headgate.match.errors import DriverLinkError, RunFailedError, SparkGoneError
from headgate.objects.kinds.routing import RoutingTable
from headgate.observe import metrics
from headgate.outbox.link_format import RunActive, RunRejected
from headgate_api import limits
from headgate_api.errors import UnavailableError

_log = structlog.get_logger(__name__)


class RoutingSource(Protocol):
    """What the matcher needs of the objects' store (`Store`)."""

    def data_version(self) -> int:
        """A number that differs after every commit; cheap."""

    def desired_generation(self) -> int: ...

    def snapshot(self) -> RoutingTable: ...


class DispatcherLink(Protocol):
    """What it needs of the driver connections (`driver_link.DriverLinks`, which says what each call does)."""

    @property
    def address(self) -> LinkAddress: ...

    def resume(self) -> dict[int, int]: ...

    def started(self, run: int, generation: int) -> None: ...

    def receive(self, timeout_s: float) -> Iterable[Message]: ...

    def close(self) -> None: ...


class Run(Protocol):
    """What it needs of a run (`query.SparkRun`, which says what each call does); `generation` is that of its start."""

    number: int
    generation: int

    @property
    def alive(self) -> bool: ...

    def failure(self) -> str: ...

    def stop(self) -> None: ...


class Runner(Protocol):
    """What it needs of Spark (`runner.SparkRunner`)."""

    def ends(self) -> dict[int, int]:
        """Where every partition of the log ends now."""

    def start(self, table: RoutingTable, number: int, start: Mapping[int, int], link: LinkAddress) -> Run:
        """Start a run of a table's filters; RunFailedError when it cannot."""

    def change(self, number: int, table: RoutingTable) -> bool:
        """Have a run go on to a table's filters, of which its dispatchers will tell; False when it cannot."""


def fresh_run_number() -> int:
    """Above the numbers of every process before this one, which the dispatchers may still know."""
    return time.time_ns() // 1_000_000


class Settling:
    """Tells when a number has stopped changing, or has changed long enough to be taken up anyway.

    The longer taking one up took the last time, the longer both are for the next one: MATCH_QUIET_S_MAX at most, and
    MATCH_CHANGING_S_MAX.
    """

    def __init__(self) -> None:
        self._value: int | None = None
        self._settled: int | None = None
        self._since = self._changed = 0.0
        self._quiet_s = limits.MATCH_QUIET_S_MAX
        self._changing_s = limits.MATCH_CHANGING_S_MIN

    def taken_up(self, took_s: float) -> None:
        self._quiet_s = min(max(limits.MATCH_QUIET_S_MIN, took_s), limits.MATCH_QUIET_S_MAX)
        changing_s = max(limits.MATCH_CHANGING_S_MIN, limits.MATCH_CHANGING_STARTS * took_s)
        self._changing_s = min(changing_s, limits.MATCH_CHANGING_S_MAX)

    def has_settled(self, value: int, settled: int, now: float) -> bool:
        """Whether `value`, as it is now, is to be taken up in place of `settled`."""
        if value == settled:
            self._value = None
            return False
        if self._value is None or self._settled != settled:
            self._since, self._settled = now, settled
        if self._value != value:
            self._value, self._changed = value, now
        return self.remaining_s(now) <= 0

    def remaining_s(self, now: float) -> float:
        """How long until it settles, if it does not change again."""
        if self._value is None:
            return math.inf
        return min(self._changed + self._quiet_s, self._since + self._changing_s) - now


class Backoff:
    """The pause before the next run starts, longer with every failure."""

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def failed(self, now: float) -> float:
        pause = float(min(limits.MATCH_RETRY_S_MAX, limits.MATCH_RETRY_S_MIN * 2**self._failures))
        self._failures = min(self._failures + 1, 32)
        self._until = now + pause
        return pause

    def reset(self) -> None:
        self._failures = 0

    def over(self, now: float) -> bool:
        return now >= self._until


@dataclass(frozen=True, slots=True)
class _Change:
    """Filters that the run in force goes on to, asked for at `since`."""

    generation: int
    since: float
    targets: int


class Matcher:
    """Keeps one run in force; see the module. One thread calls `run`.

    Args:
        connect: Opens the driver connections; DriverLinkError while a dispatcher is not there.
        on_active: Writes down the generation that has taken over; what it refuses, the next step tries again.
        on_ready: Called with True when a run has come into force, with False when none is any more.
        on_note: Called with what it does or lacks, in a line for people.
        on_settled: Called when no run has been replaced for RUN_SETTLED_S.
        first_run: Number of the first run: above every number that a living dispatcher knows.
    """

    def __init__(
        self,
        routing: RoutingSource,
        runner: Runner,
        connect: Callable[[], DispatcherLink],
        *,
        on_active: Callable[[int], object],
        on_ready: Callable[[bool], None] = lambda _: None,
        on_note: Callable[[str], None] = lambda _: None,
        on_step: Callable[[], None] = lambda: None,
        on_settled: Callable[[], object] = lambda: None,
        first_run: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._routing = routing
        self._runner = runner
        self._connect = connect
        self._on_active = on_active
        self._on_ready = on_ready
        self._on_note = on_note
        self._on_step = on_step
        self._on_settled = on_settled
        self._next_run = first_run
        self._clock = clock
        self._link: DispatcherLink | None = None
        self._in_force: Run | None = None
        self._generation = 0  # that of the run in force
        self._change: _Change | None = None  # what it goes on to
        self._candidate: Run | None = None
        self._started_at: dict[int, float] = {}  # run -> when it was started
        self._targets: dict[int, int] = {}  # run -> triggers in its table
        self._active_at: float | None = None
        self._settles_at = math.inf
        self._checked_at = 0.0
        self._has_stopped = False
        self._desired = 0
        self._seen_version: int | None = None
        self._announced: int | None = None
        self._ready = False
        self._settling = Settling()
        self._backoff = Backoff()

    def run(self, stop: threading.Event) -> None:
        """Match until `stop` is set; then every run is stopped. SparkGoneError: this process cannot match any more."""
        try:
            while not stop.is_set():
                self.step(stop.wait)
        finally:
            self._set_ready(False)
            for run in (self._candidate, self._in_force):
                if run is not None:
                    self._stop(run)
            if self._link is not None:
                self._link.close()

    def step(self, pause: Callable[[float], object]) -> None:
        """Receive what the dispatcher sends (for MATCH_POLL_S at most), then look at everything once."""
        self._on_step()
        try:
            if self._link is None:
                self._link = self._connect()
                _log.info("connected to the dispatchers", address=repr(self._link.address))
            for message in self._link.receive(self._wait_s()):
                self._receive(message)
            self._announce()
            self._check_runs()
            self._start_if_due(self._link)
        except DriverLinkError as error:
            self._link_lost(error)
            pause(limits.MATCH_RETRY_S_MIN)
        except UnavailableError as error:
            self._failed("unavailable", error.message)
        metrics.RUNS.labels("in_force").set(self._in_force is not None)
        metrics.RUNS.labels("starting").set(self._candidate is not None)

    # --- what happens to runs ---------------------------------------------------------------------

    def _receive(self, message: Message) -> None:
        match message:
            case RunActive(run=number, generation=generation):
                if self._candidate is not None and self._candidate.number == number:
                    self._take_over(self._candidate)
                elif self._in_force is not None and self._in_force.number == number:
                    self._go_on(self._in_force, generation)
            case RunRejected(run=number, reason=reason):
                run = self._forget(number)
                if run is not None:
                    self._stop(run)
                    # A broken connection is all that the dispatcher saw; Spark may know why it broke.
                    self._failed("rejected", "; ".join(filter(None, (reason, run.failure()))), run)

    def _take_over(self, run: Run) -> None:
        older, self._in_force, self._candidate, self._change = self._in_force, run, None, None
        self._active_at = self._clock()
        self._settles_at = self._active_at + limits.RUN_SETTLED_S
        metrics.RUNS_STARTED.labels("active").inc()
        try:
            self._comes_into_force(run, run.generation, self._started_at[run.number], self._targets[run.number])
        finally:
            self._set_ready(True)
            if older is not None:
                self._stop(older)

    def _go_on(self, run: Run, generation: int) -> None:
        change = self._change
        if change is not None and generation >= change.generation:
            self._change = None
            self._comes_into_force(run, change.generation, change.since, change.targets)

    def _comes_into_force(self, run: Run, generation: int, since: float, targets: int) -> None:
        self._generation = generation
        metrics.GENERATION.set(generation)
        metrics.TARGETS.set(targets)
        took_s = self._clock() - since
        self._settling.taken_up(took_s)
        _log.info("a generation of filters is in force", run=run.number, generation=generation, took_s=round(took_s, 3))
        self._on_note(f"generation {generation} in force by run {run.number}")
        self._announce()

    def _announce(self) -> None:
        """Write down what is in force; when the store refuses, the next step tries again."""
        if self._in_force is not None and self._announced != self._generation:
            self._on_active(self._generation)
            self._announced = self._generation

    def _check_runs(self) -> None:
        now = self._clock()
        if now - self._checked_at < limits.RUN_CHECK_S:
            return
        if self._has_stopped and self._candidate is None:
            self._has_stopped = False
            gc.collect()  # the JVM keeps a stopped run's tables until Python lets go of their DataFrames (cycles)
        if now >= self._settles_at and self._candidate is None:
            self._settles_at = math.inf
            self._on_settled()
        self._checked_at = now
        for run in (self._in_force, self._candidate):
            if run is not None and not run.alive:
                self._forget(run.number)
                self._failed("died", run.failure() or "the query ended", run)
                self._stop(run)
        late, since = self._candidate, now
        if late is not None:
            since = self._started_at[late.number]
        elif self._change is not None:
            late, since = self._in_force, self._change.since
        if late is not None and now - since > limits.CANDIDATE_S_MAX:
            # It runs without an error and never comes to the newer filters: no new one would ever be in force.
            self._forget(late.number)
            self._failed("stuck", f"not in force after {limits.CANDIDATE_S_MAX:.0f} s", late)
            self._stop(late)

    def _start_if_due(self, link: DispatcherLink) -> None:
        now = self._clock()
        version = self._routing.data_version()
        if version != self._seen_version:
            self._desired, self._seen_version = self._routing.desired_generation(), version
        running = self._in_force
        newest = self._newest()
        has_settled = newest is not None and self._settling.has_settled(self._desired, newest, now)
        if self._is_busy(now):
            return
        if running is None:
            self._start(link, link.resume)
        elif has_settled:
            self._take_up(link, running)
        elif now - self._started_at[running.number] >= limits.RUN_AGE_S_MAX:
            _log.info("starts the next run before the batch of this one ends", run=running.number)
            self._start(link, self._runner.ends)

    def _is_busy(self, now: float) -> bool:
        """Whether filters that change have to wait, however quiet they are."""
        return self._candidate is not None or self._change is not None or not self._backoff.over(now)

    def _wait_s(self) -> float:
        """How long to wait for a message before the next look."""
        now = self._clock()
        remaining_s = math.inf if self._is_busy(now) else self._settling.remaining_s(now)
        return min(limits.MATCH_POLL_S, max(limits.MATCH_QUIET_S_MIN, remaining_s))

    def _newest(self) -> int | None:
        """The newest generation that a run has or was asked for."""
        if self._candidate is not None:
            return self._candidate.generation
        if self._change is not None:
            return self._change.generation
        return None if self._in_force is None else self._generation

    def _take_up(self, link: DispatcherLink, running: Run) -> None:
        """Have the run in force go on to the newest filters, or start one of them beside it."""
        table = self._snapshot()
        if table is None:
            return
        began = self._clock()
        try:
            if self._runner.change(running.number, table):
                self._change = _Change(table.generation, began, len(table.targets))
                return
        except RunFailedError as error:
            self._failed("refused", error.message)
            return
        self._start_of(table, link, self._runner.ends)

    def _start(self, link: DispatcherLink, start: Callable[[], Mapping[int, int]]) -> None:
        table = self._snapshot()
        if table is not None:
            self._start_of(table, link, start)

    def _snapshot(self) -> RoutingTable | None:
        """Everything routed; None while some filters are being compiled anew."""
        table = self._routing.snapshot()
        if table.plans_outdated:
            # Every event would be a candidate of each of them: better to wait some seconds.
            self._on_note(f"waits for the control process, which has {table.plans_outdated} filters to compile anew")
            return None
        return table

    def _start_of(self, table: RoutingTable, link: DispatcherLink, start: Callable[[], Mapping[int, int]]) -> None:
        number, self._next_run = self._next_run, self._next_run + 1
        offsets = start()
        began = self._clock()
        _log.info(
            "starts a run of the match query", run=number, generation=table.generation, targets=len(table.targets)
        )
        try:
            run = self._runner.start(table, number, offsets, link.address)
        except RunFailedError as error:
            self._failed("refused", error.message)
            return
        self._candidate = run
        self._started_at[number] = began
        self._targets[number] = len(table.targets)
        link.started(number, run.generation)

    def _forget(self, number: int) -> Run | None:
        for run in (self._candidate, self._in_force):
            if run is not None and run.number == number:
                if run is self._candidate:
                    self._candidate = None
                else:
                    self._in_force = self._change = None
                    self._set_ready(False)
                return run
        return None

    def _stop(self, run: Run) -> None:
        self._started_at.pop(run.number, None)
        self._targets.pop(run.number, None)
        self._has_stopped = True
        try:
            run.stop()
        except (RunFailedError, SparkGoneError) as error:
            _log.warning("run did not stop", run=run.number, reason=error.message)

    # --- what goes wrong --------------------------------------------------------------------------

    def _link_lost(self, error: DriverLinkError) -> None:
        """Without a dispatcher no run counts: all stop, and a new one starts where the dispatchers are."""
        runs = [run for run in (self._candidate, self._in_force) if run is not None]
        self._candidate = self._in_force = self._change = None
        self._set_ready(False)
        if self._link is None:
            _log.debug("waiting for the dispatchers", reason=error.message)
        else:
            self._link.close()
            self._link = None
            self._failed("link", error.message)
        for run in runs:
            self._stop(run)

    def _failed(self, outcome: str, reason: str, run: Run | None = None) -> None:
        now = self._clock()
        if self._active_at is not None and now - self._active_at >= limits.MATCH_STABLE_S:
            self._backoff.reset()
            self._active_at = None  # once: what fails from here on counts again
        metrics.RUNS_STARTED.labels(outcome).inc()
        retry_s = self._backoff.failed(now)
        kept = self._in_force
        still = f"generation {kept.generation} stays in force" if kept is not None else "no query in force"
        self._on_note(f"{still}; {outcome}: {reason}; next try in {retry_s:.1f} s")
        _log.warning("matching interrupted", outcome=outcome, reason=reason, run=run and run.number, retry_s=retry_s)

    def _set_ready(self, ready: bool) -> None:
        if ready != self._ready:
            self._ready = ready
            self._on_ready(ready)
