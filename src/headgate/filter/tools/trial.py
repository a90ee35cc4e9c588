"""Trials of a filter, as requests over HTTP bring them: on events, explained, or converted to CEL; and the dialects.

Everything in an answer is bounded: events, the rows shown, and the time and size of traces.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headgate.filter.cel.errors import EvaluationError, FilterError
from headgate.filter.cel.evaluate import EventView, OutcomeKind, Program, program
from headgate.filter.cel.transform import apply_transform, check_transform
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.plan import CompiledFilter
from headgate.filter.compile.request import filter_of, spec_of
from headgate.filter.dialects import CUSTOM, DIALECTS, to_cel
from headgate.filter.dialects.subscriptions import NAMES
from headgate.filter.skipping.prune import FILTER_VALUE
from headgate.filter.tools.advice import Advice, advice
from headgate.filter.tools.explain import Cost, ExplainedRow, explain
from headgate.filter.tools.trace import Part, trace
from headgate_api.errors import HeadgateError, InvalidInputError
from headgate_api.event import rfc3339
from headgate_api.event.json_format import decode_event, encode_event
from headgate_api.limits import (
    FILTER_TRACES_BYTES_MAX,
    FILTER_TRACES_S_MAX,
    FILTER_TRIAL_EVENTS_MAX,
    FILTER_TRIAL_ROWS_MAX,
)

_INVALID: Final = "invalid"
"""The outcome of what is no event."""
_Spec = tuple[Mapping[str, object] | None, Sequence[object]]


class FilterRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A filter in one of the ways in which people write it."""

    filter: str | dict[str, object] | None = None  # CEL text, or an object as in `spec.filter`
    filters: list[object] | None = None  # a list as in `spec.filters`; it may stand beside `filter`
    dialect: str = ""  # a dialect by its name, with its value in `text`; beside the others it is refused
    text: object = None  # the value, or its JSON text

    def spec(self) -> _Spec:
        """As `spec.filter` and `spec.filters`; raises InvalidInputError for none or two of them, and FilterError."""
        given = self.filter is not None or self.filters is not None
        if given == bool(self.dialect):
            hint = 'one of {"filter": "ce.type == \'a\'"}, {"filters": [...]}, {"dialect": "cesql", "text": "..."}'
            raise InvalidInputError(f"the request has {'two filters' if given else 'no filter'}", hint=hint)
        if self.dialect:
            return spec_of(self.dialect, self.text)
        return None if self.filter is None else filter_of(self.filter), self.filters or []


class ExplainRequest(FilterRequest, frozen=True):
    """A filter that is to be explained."""

    filter_value: str = FILTER_VALUE


class TrialRequest(ExplainRequest, frozen=True):
    """A filter that is to be tried on events."""

    events: list[msgspec.Raw] = []  # in the JSON format
    stored_at: str = ""  # when they were stored, RFC 3339; empty for now
    transform: str = ""  # as in `spec.transform`; empty for none
    trace: bool = True
    explain: bool = False  # whether it holds the explanation of the filter


class ConvertedFilter(msgspec.Struct, frozen=True):
    """A filter in CEL: as its dialect translates it, and `canonical`, as the matcher uses it."""

    cel: str
    canonical: str


class ExplanationView(msgspec.Struct, frozen=True, rename="camel"):
    """A `FilterExplanation` as the API shows it, with remarks on how the filter is written."""

    cel: str
    decided_by: str
    rows: tuple[ExplainedRow, ...]
    rows_left_out: int  # rows beyond FILTER_TRIAL_ROWS_MAX
    signatures: int
    cost: Cost
    skips: dict[str, object]
    notes: tuple[str, ...]
    advice: tuple[Advice, ...]


class TraceView(msgspec.Struct, frozen=True):
    """A `Trace` without what the whole answer says once."""

    caret: str
    parts: tuple[Part, ...]
    left_out: bool = msgspec.field(name="leftOut")


class TrialResult(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a filter says of one event."""

    index: int
    outcome: str  # `true`, `false`, `error`, or `invalid` for what is no event
    id: str = ""
    error: str = ""  # why it is an error, or no event
    hint: str = ""
    decided: dict[str, str] | None = None
    trace: msgspec.Raw | None = None
    sent: msgspec.Raw | None = None  # where it is true: the event that the transform makes
    transform_error: str = ""  # why the transform makes none


class TrialAnswer(ConvertedFilter, frozen=True, rename="camel", omit_defaults=True):
    """What a filter says of events."""

    text: str  # the text to which the places of parts refer
    counts: dict[str, int]  # events by outcome
    results: list[TrialResult]
    traces_left_out: int = 0  # results without the parts that were asked for: too long, or too large
    explanation: ExplanationView | None = None


def convert_filter(request: FilterRequest) -> ConvertedFilter:
    """The filter in CEL; FilterError when it is refused, InvalidInputError when the request has none."""
    spec = request.spec()
    return ConvertedFilter(to_cel(*spec), compile_filter(*spec).cel)


def explain_filter(request: ExplainRequest) -> ExplanationView:
    """How it is matched; raises as `convert_filter` does."""
    spec = request.spec()
    return _explained(compile_filter(*spec), spec, request.filter_value)


def try_filter(request: TrialRequest) -> TrialAnswer:
    """What it says of events; raises as `convert_filter` does."""
    if len(request.events) > FILTER_TRIAL_EVENTS_MAX:
        raise InvalidInputError(
            f"{len(request.events)} events are over the limit of {FILTER_TRIAL_EVENTS_MAX} (FILTER_TRIAL_EVENTS_MAX)"
        )
    stored_us = rfc3339.micros(request.stored_at) if request.stored_at else int(time.time() * 1e6)
    if stored_us is None:
        raise InvalidInputError("storedAt is no RFC 3339 time", hint="2026-01-31T09:30:00Z")
    spec = request.spec()
    compiled = compile_filter(*spec)
    if request.transform:
        check_transform(request.transform)
    trial = _Trial(to_cel(*spec), program(compiled.cel), request.transform, stored_us, traced=request.trace)
    results = [trial.result(index, bytes(raw)) for index, raw in enumerate(request.events)]
    counts = dict.fromkeys((*(kind.name.lower() for kind in OutcomeKind), _INVALID), 0)
    for one in results:
        counts[one.outcome] += 1
    return TrialAnswer(
        cel=trial.cel,
        canonical=compiled.cel,
        text=trial.text,
        counts=counts,
        results=results,
        traces_left_out=trial.left_out,
        explanation=_explained(compiled, spec, request.filter_value) if request.explain else None,
    )


class _Trial:
    def __init__(self, cel: str, tested: Program, transform: str, stored_us: int, *, traced: bool) -> None:
        self.cel = self.text = cel
        self.left_out = 0
        self._tested = tested
        self._transform = transform  # empty for none
        self._stored_us = stored_us
        self._traced = traced
        self._ends_s = time.monotonic() + FILTER_TRACES_S_MAX
        self._left_bytes = FILTER_TRACES_BYTES_MAX

    def result(self, index: int, body: bytes) -> TrialResult:
        try:
            view = EventView(decode_event(body), self._stored_us)
        except HeadgateError as error:
            return TrialResult(index, _INVALID, error=error.message, hint=error.hint)
        outcome = self._tested.evaluate_view(view)
        decided, shown = None, None
        if self._traced and self._left_bytes > 0 and time.monotonic() < self._ends_s:
            traced = trace(self.cel, view)
            self.text = traced.text
            decided = {"part": traced.decided_text, "value": traced.decided.value}
            shown = msgspec.Raw(msgspec.json.encode(TraceView(traced.caret, traced.parts, traced.left_out)))
            self._left_bytes -= len(bytes(shown))
        elif self._traced:
            self.left_out += 1
        sent, fault = None, ""
        if self._transform and outcome.kind is OutcomeKind.TRUE:
            try:
                sent = msgspec.Raw(encode_event(apply_transform(self._transform, view)))
            except EvaluationError as error:
                fault = error.message
        kind = outcome.kind.name.lower()
        return TrialResult(index, kind, view.event.id, outcome.message, "", decided, shown, sent, fault)


def _explained(compiled: CompiledFilter, spec: _Spec, filter_value: str) -> ExplanationView:
    try:
        found = explain(compiled, filter_value=filter_value)
    except FilterError as error:
        raise error.at_field("filterValue") from None
    return ExplanationView(
        cel=found.cel,
        decided_by=found.decided_by,
        rows=found.rows[:FILTER_TRIAL_ROWS_MAX],
        rows_left_out=max(0, len(found.rows) - FILTER_TRIAL_ROWS_MAX),
        signatures=found.signatures,
        cost=found.cost,
        skips={
            "filterValue": found.skips.filter_value,
            "values": found.skips.values,
            "timeRangeUs": found.skips.time_range_us,
            "publishedUs": found.skips.published_us,
            "says": found.skips.says,
        },
        notes=found.notes,
        advice=advice(*spec),
    )


# --- the dialects ---------------------------------------------------------------------------------

EXAMPLES: Final[Mapping[str, object]] = {
    "cel": 'ce.type == "order.paid" && data.total > 100',
    "expression": 'ce.type.startsWith("order.") && has(data.total)',
    "attributes": {"type": "order.paid", "source": "/shop"},
    "sourceAndType": {"type": "order.paid", "source": "/shop"},
    "cesql": "type = 'order.paid' AND subject LIKE 'shop/%'",
    "jms": "type = 'order.paid' AND subject IN ('a', 'b')",
    "pulsar": {"property": "type", "operator": "EQUALS", "value": "order.paid"},
    "tags": {"anytag1": "gold"},
    "eventPattern": {"detail-type": ["order.paid"], "detail": {"total": [{"numeric": [">", 100]}]}},
    "exact": {"type": "order.paid"},
    "prefix": {"type": "order."},
    "suffix": {"type": ".paid"},
    "all": [{"exact": {"type": "order.paid"}}, {"cesql": "subject LIKE 'shop/%'"}],
    "any": [{"exact": {"type": "order.paid"}}, {"exact": {"type": "order.sent"}}],
    "not": {"prefix": {"type": "test."}},
}
"""A value of each of Headgate's dialects; each compiles."""


class DialectView(msgspec.Struct, frozen=True, omit_defaults=True, rename={"places": "in"}):
    """A dialect."""

    name: str
    package: str
    places: tuple[str, ...]  # `filter` and `filters`, or `filters` alone
    value: str = ""  # `text` or `json`; empty where its package alone knows
    example: object = None  # a value; None without one
    fault: str = ""  # why it cannot be used; empty when it can
    schema: Mapping[str, object] | None = None  # JSON schema of its values, as its package has it


class DialectList(msgspec.Struct, frozen=True):
    """All of them."""

    dialects: list[DialectView]


def dialect_list() -> DialectList:
    """Headgate's dialects and those of installed packages, which it imports: may block."""
    found = []
    for name in (*DIALECTS, *NAMES):
        if name not in CUSTOM or CUSTOM[name].taken:
            example = EXAMPLES[name]
            value = "text" if isinstance(example, str) else "json"
            places = ("filters",) if name in NAMES else ("filter", "filters")
            found.append(DialectView(name, "headgate", places, value, example))
    for name, custom in CUSTOM.items():
        fault = custom.fault()
        schema = None if fault else custom.load().schema
        found.append(DialectView(name, custom.package, ("filter", "filters"), fault=fault, schema=schema))
    return DialectList(found)
