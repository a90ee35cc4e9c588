"""The summary of a deployment, or of one namespace: parts, rates, backlog, and what needs a person's attention.

    GET /apis/headgate.dev/v1/summary                   all of it
    GET /apis/headgate.dev/v1/namespaces/NS/summary     what is in one namespace, and nothing of the others

The history is in the memory of the process of the objects, so every front of a server answers with the same one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.deadletters.store import DeadLetterCount
from headgate.objects.api.http import json_response
from headgate.objects.store.attention import ObjectTrouble
from headgate.objects.store.store import Store
from headgate.observe.history import NumbersHistory, Rates
from headgate.observe.logs import Recurring
from headgate.server import ready
from headgate.server.peers.dispatcher_group import DispatcherReach
from headgate.server.peers.target_stats import SUMMARY, SUMMARY_OF_NAMESPACE, BacklogCount, Undelivered, undelivered
from headgate.settings import Settings
from headgate_api.event import rfc3339
from headgate_api.limits import ATTENTION_MAX, HISTORY_POINT_S, RATE_WINDOW_S
from headgate_api.objects.kinds import Kind

_KEPT: Final = "kept"
_log = structlog.get_logger(__name__)


class PartView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process of a server; `note` is only for those who may see all, `server` its URL where there are several."""

    name: str
    ready: bool
    note: str = ""
    server: str = ""


class HistoryView(msgspec.Struct, frozen=True, rename={"begin": "from"}):
    """Points of `seconds` each from `begin` on, the oldest first; see `observe.history.Rates`."""

    seconds: float
    begin: str
    received: list[float]
    delivered: list[float]
    failed: list[float]
    p50: list[float | None]
    p99: list[float | None]


class DeadLetterTotals(msgspec.Struct, frozen=True):
    """Dead letters, and those of them that wait for a person."""

    count: int
    kept: int


class DeadLetterTrouble(msgspec.Struct, frozen=True):
    """A trigger that has dead letters which wait for a person."""

    kind: str
    namespace: str
    name: str
    reason: str
    count: int
    message: str


class SummaryView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The answer.

    Of the last minute: `rates` a second, and `latency` in seconds, empty without deliveries. `objects` are counted by
    plural; `attention` has at most ATTENTION_MAX of `attention_total`.
    """

    namespace: str = ""
    time: str
    ready: bool
    parts: list[PartView]
    history: HistoryView
    rates: dict[str, float]
    latency: dict[str, float | None] = {}
    backlog: BacklogCount
    objects: dict[str, int]
    dead_letters: DeadLetterTotals
    attention: list[ObjectTrouble | DeadLetterTrouble]
    attention_total: int


def parts_of(settings: Settings, server: str = "") -> list[PartView]:
    """The processes of this server as they are now; reads their files."""
    return [PartView(part.name, one.ready, one.note, server) for part, one in ready.states(settings).items()]


class SummaryApi:
    """The handlers. `parts` may block; `letters`: each dispatcher's `deadletters.db`, for when it does not answer."""

    def __init__(
        self,
        store: Store,
        parts: Callable[[], Iterable[PartView]],
        dispatchers: DispatcherReach,
        history: NumbersHistory,
        letters: Sequence[Path] = (),
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._parts = parts
        self._dispatchers = dispatchers
        self._history = history
        self._letters = letters
        self._clock_s = clock_s

    def routes(self) -> Iterator[Route]:
        yield Route(SUMMARY, self._summary, methods=["GET"])
        yield Route(SUMMARY_OF_NAMESPACE, self._summary, methods=["GET"])

    async def _summary(self, request: Request) -> Response:
        found = await undelivered(self._dispatchers, request, self._letters)
        return json_response(await run_in_threadpool(self._view, request.path_params.get("namespace"), found))

    def _view(self, namespace: str | None, found: Undelivered) -> SummaryView:
        parts = list(self._parts())
        letters = found.letters
        conditions, count = self._store.attention.read(namespace, ATTENTION_MAX)
        kept: list[ObjectTrouble | DeadLetterTrouble] = [_kept(one) for one in letters.items if one.state == _KEPT]
        last = self._history.last(namespace, RATE_WINDOW_S)
        objects = self._store.attention.counts(namespace)
        return SummaryView(
            namespace=namespace or "",
            time=_shown(self._clock_s()),
            ready=all(part.ready for part in parts),
            parts=parts if namespace is None else [PartView(part.name, part.ready) for part in parts],
            history=_history(*self._history.points(namespace)),
            rates={"received": last.received, "delivered": last.delivered, "failed": last.failed},
            latency={} if last.p50 is None else {"p50": last.p50, "p99": last.p99},
            backlog=found.backlog,
            objects={kind.plural: objects.get(kind, 0) for kind in (Kind.BROKER, Kind.TRIGGER, Kind.SUBSCRIPTION)},
            dead_letters=DeadLetterTotals(letters.total, letters.kept),
            attention=[*kept, *conditions][:ATTENTION_MAX],
            attention_total=count + len(kept),
        )


async def keep(history: NumbersHistory) -> None:
    """Takes the points of a history until it is cancelled."""
    samples = Recurring(_log, "the history of numbers cannot be kept", OSError)
    while True:
        with samples.attempt():
            await asyncio.to_thread(history.sample)
        await asyncio.sleep(HISTORY_POINT_S)


def _kept(one: DeadLetterCount) -> DeadLetterTrouble:
    noun = "dead letter is" if one.count == 1 else "dead letters are"
    message = f"{one.count:,} {noun} kept; the reason of the last one: {one.reason}"
    return DeadLetterTrouble("DeadLetters", one.namespace, one.trigger, "Kept", one.count, message)


def _history(begin_s: float, points: list[Rates]) -> HistoryView:
    return HistoryView(
        HISTORY_POINT_S,
        _shown(begin_s),
        [round(one.received, 3) for one in points],
        [round(one.delivered, 3) for one in points],
        [round(one.failed, 3) for one in points],
        [one.p50 for one in points],
        [one.p99 for one in points],
    )


def _shown(time_s: float) -> str:
    return rfc3339.text(int(time_s * 1e6), "milliseconds")
