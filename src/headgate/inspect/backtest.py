"""Backtests: how many stored events a filter would have taken, by hour, beside a second one and the broker's triggers.

One request counts a bounded piece of the log and says where to go on, so a long backtest holds nothing on the server.
Who asks adds the pages up (`BacktestResult`): first those of the filter, then, with a second one, that one's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.auth.authorizer import OPEN, Authorizer
from headgate.auth.routes import READ
from headgate.filter.compile.request import condition
from headgate.filter.tools.ceiling import joined
from headgate.objects.api.http import JSON, decoded_as, json_response, read_body, while_connected
from headgate.objects.api.queries import path_named, user_of
from headgate.objects.kinds.specs import ServedBroker
from headgate.objects.store.store import Store
from headgate.objects.views.object_reader import ObjectReader
from headgate.scan.counting import HOUR_US, CountPage, CountRequest
from headgate.scan.pages import Scanner
from headgate.scan.source import EARLIEST, NEXT, ReadableLog, start_offsets
from headgate.shares import FairPlaces
from headgate_api import positions
from headgate_api.backtest import BacktestPage, BacktestRequest, HourCount, TriggerOverlap
from headgate_api.errors import InvalidInputError
from headgate_api.event import rfc3339
from headgate_api.event.names import namespace_of
from headgate_api.limits import BACKTEST_SHARE_MIN, BACKTEST_TRIGGERS_MAX, BACKTESTS_MAX
from headgate_api.objects.errors import ObjectNotFoundError
from headgate_api.objects.kinds import OWN_API_VERSION, Kind
from headgate_api.positions import PositionError

_FILTER: Final = "filter"
_AGAINST: Final = "against"
_SAME: Final = frozenset(CountPage.__struct_fields__).intersection(BacktestPage.__struct_fields__) - {"hours"}
"""What a page of counts and its answer call the same."""
_OF_THE_LOG: Final = ("errors", "chunks_read", "chunks_skipped")
"""What a page of counts tells of events that the filter does not take."""
_NEXT_HINT: Final = "give back what the server gave as next"
_PATH: Final = f"/apis/{OWN_API_VERSION}/namespaces/{{namespace}}/brokers/{{name}}/backtest"
_CLIENT_GONE: Final = 499  # nobody sees it


@dataclass(frozen=True, slots=True)
class _Progress:
    """What `next` says: the count of the filter `of` goes from `first` to `end`, and is at `at`, by partition."""

    of: str
    first: Mapping[int, int]
    at: Mapping[int, int]
    end: Mapping[int, int]

    @property
    def stored(self) -> int:
        return sum(end - self.first[partition] for partition, end in self.end.items())

    @property
    def passed(self) -> int:
        return sum(at - self.first[partition] for partition, at in self.at.items())

    def token(self) -> str:
        return "/".join((self.of, *map(positions.write, (self.first, self.at, self.end))))


class Backtests:
    """Answers requests."""

    def __init__(
        self, store: Store | ObjectReader, log: ReadableLog, counter: Scanner, *, authorizer: Authorizer = OPEN
    ) -> None:
        self._authorizer = authorizer
        self._store = store
        self._log = log
        self._counter = counter
        self._places = FairPlaces("backtests", "BACKTESTS_MAX", BACKTESTS_MAX)

    def routes(self) -> Iterator[Route]:
        yield Route(_PATH, self._handle, methods=["POST"])

    async def _handle(self, request: Request) -> Response:
        body = await read_body(request, frozenset({JSON, ""}))
        wanted = await decoded_as(request, body, BacktestRequest, "the request")
        broker = path_named(request)
        user = user_of(request)
        ceiling = self._authorizer.ceiling(user, READ.on(broker))
        page = await while_connected(request.receive, self.page(broker, wanted, user.name, ceiling))
        return Response(status_code=_CLIENT_GONE) if page is None else json_response(page)

    async def page(self, broker: str, request: BacktestRequest, user: str = "", ceiling: str = "") -> BacktestPage:
        """The next piece, of the broker `namespace/name`; PositionError if a place in the request is another log's.

        Below a ceiling, CEL, nothing is told of other events: not how many were looked at, and where the filter failed.
        """
        with self._places.held(namespace_of(broker), user):
            return await self._page(broker, request, user, ceiling)

    async def _page(self, broker: str, request: BacktestRequest, user: str, ceiling: str) -> BacktestPage:
        if not BACKTEST_SHARE_MIN <= request.share <= 1:
            raise InvalidInputError(f"share {request.share} is not in {BACKTEST_SHARE_MIN}..1")
        served = await asyncio.to_thread(self._store.served, broker)
        if served is None:
            raise ObjectNotFoundError(Kind.BROKER, broker.partition("/")[2])
        filters = await asyncio.to_thread(_conditions, request, ceiling)
        progress = await asyncio.to_thread(self._progress, request)
        is_first = progress.of == _FILTER
        if not is_first and not filters[_AGAINST]:
            raise InvalidInputError("next belongs to a backtest with against", hint=_NEXT_HINT)
        names, texts = await asyncio.to_thread(self._triggers, served) if is_first and request.triggers else ([], [])
        left_out, texts = max(0, len(texts) - BACKTEST_TRIGGERS_MAX), texts[:BACKTEST_TRIGGERS_MAX]
        counted = await self._counter.count_page(
            CountRequest(
                broker=served.identity,
                rule=served.rule.value,
                cel=filters[progress.of],
                beside=filters[_AGAINST if is_first else _FILTER] or None,
                only_examples=not is_first,
                others=tuple(texts),
                first=dict(progress.first),
                start=dict(progress.at),
                end=dict(progress.end),
                share=request.share,
                user=user,
            )
        )
        if ceiling:
            for name in _OF_THE_LOG:
                setattr(counted, name, 0)
        now = _Progress(progress.of, progress.first, counted.positions, progress.end)
        return _answer(now, counted, names, left_out, has_second=bool(filters[_AGAINST]))

    def _triggers(self, served: ServedBroker) -> tuple[list[str], list[str]]:
        """Names and CEL texts of the broker's triggers; blocking."""
        routed = self._store.snapshot().targets.values()
        targets = [one for one in routed if one.broker == served.identity and one.pull is None]
        targets.sort(key=lambda one: one.name)
        return [one.name for one in targets], [one.filter.cel for one in targets]

    def _progress(self, request: BacktestRequest) -> _Progress:
        """Where to go on; blocking."""
        ends = start_offsets(self._log, NEXT)
        if not request.next:
            kept, wanted, end = (start_offsets(self._log, place) for place in (EARLIEST, request.from_, request.to))
            first = {partition: min(max(at, kept[partition]), ends[partition]) for partition, at in wanted.items()}
            end = {partition: max(first[partition], min(at, ends[partition])) for partition, at in end.items()}
            return _Progress(_FILTER, first, first, end)
        of, _, rest = request.next.partition("/")
        parts = [positions.parse(part) for part in rest.split("/")]
        if of not in (_FILTER, _AGAINST) or len(parts) != 3 or any(part.keys() != ends.keys() for part in parts):
            raise PositionError(f"{request.next[:64]!r} is no next of a backtest of this log", hint=_NEXT_HINT)
        first, at, end = parts
        if any(not first[one] <= at[one] <= end[one] <= ends[one] for one in ends):
            raise PositionError(f"{request.next[:64]!r} is behind the end of this log", hint=_NEXT_HINT)
        return _Progress(of, first, at, end)


def _conditions(request: BacktestRequest, ceiling: str) -> dict[str, str]:
    """Canonical CEL of both filters, below a ceiling; blocking."""
    if not request.filter:
        raise InvalidInputError("the request has no filter", hint="CEL text, or an object as in spec.filter")
    written = {_FILTER: condition(request.filter, _FILTER), _AGAINST: condition(request.against, _AGAINST)}
    return {name: joined(cel, ceiling) if cel else "" for name, cel in written.items()}


def _answer(now: _Progress, counted: CountPage, names: list[str], left_out: int, *, has_second: bool) -> BacktestPage:
    hours = [
        HourCount(f"{rfc3339.text(hour * HOUR_US)[:13]}:00Z", taken) for hour, taken in sorted(counted.hours.items())
    ]
    following = now
    if now.passed >= now.stored:
        following = _Progress(_AGAINST, now.first, now.first, now.end)
    is_last = following is not now and (now.of == _AGAINST or not has_second)
    return BacktestPage(
        of=now.of,
        stored=now.stored,
        passed=now.passed,
        hours=hours,
        triggers=[TriggerOverlap(name, both) for name, both in zip(names, counted.others, strict=False)],
        triggers_left_out=left_out,
        next="" if is_last else following.token(),
        **{name: getattr(counted, name) for name in _SAME},
    )
