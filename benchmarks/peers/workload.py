"""The filters of the shared workload as each matcher reads them, and the truth about them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.matcher import cel_of
from headgate.filter.cel.engine import OutcomeKind, compile_expression
from headgate.filter.cel.evaluate import EventView
from headgate_api.event.json_format import decode_event

SAMPLE = 1_000
"""Events, the first ones, on which the matches are compared."""


@dataclass(frozen=True)
class Found:
    """What a matcher found in the sample.

    Attributes:
        matches: Pairs of an event and a filter.
        sum: Over these pairs of the event's number times the filter's, both from 1: it tells one pair from another.
    """

    matches: int
    sum: int


def pattern_of(neutral: dict[str, Any]) -> str:
    """A filter of the workload as a pattern of event-ruler and of quamina, on an event as `variables_of` has it."""
    made: dict[str, Any] = {}
    for predicate in neutral["all"]:
        *above, last = predicate["path"] if predicate["path"][0] == "data" else ("ce", *predicate["path"])
        place = made
        for name in above:
            place = place.setdefault(name, {})
        place[last] = _values(predicate)
    return json.dumps(made)


def _values(predicate: dict[str, Any]) -> list[Any]:
    match predicate["op"]:
        case "exact":
            return [predicate["value"]]
        case "in":
            return list(predicate["values"])
        case "range":
            return [{"numeric": [">=", predicate["ge"], "<", predicate["lt"]]}]
        case "anything_but":
            return [{"anything-but": predicate["values"]}]
        case ("prefix" | "suffix" | "exists") as op:
            return [{op: predicate["value"]}]
        case op:
            raise ValueError(op)


def variables_of(line: bytes) -> bytes:
    """An event in the JSON format as an object of the variables of CEL, `ce` and `data`.

    Matchers of patterns look at fields in the order of their names: so the attributes come before the data, which most
    filters need only for few types. With the attributes beside `data` they are up to ten times slower.
    """
    attributes = json.loads(line)
    data = attributes.pop("data")
    return json.dumps({"ce": attributes, "data": data}, separators=(",", ":")).encode()


def truth(events: Sequence[bytes], filters: Sequence[dict[str, Any]]) -> Found:
    """What cel-cpp says of these events. A filter that asks for one type is only asked about events of that type."""
    of_a_type: dict[str, list[int]] = {}
    of_all: list[int] = []
    for number, one in enumerate(filters):
        first = one["all"][0]
        exact = first["path"] == ["type"] and first["op"] == "exact"
        (of_a_type.setdefault(first["value"], []) if exact else of_all).append(number)
    compiled = [compile_expression(cel_of(one)) for one in filters]
    matches = total = 0
    for number, line in enumerate(events):
        event = decode_event(line)
        activation = EventView(event).activation
        for rule in (*of_a_type.get(event.type, ()), *of_all):
            if compiled[rule].evaluate(activation).kind is OutcomeKind.TRUE:
                matches += 1
                total += (number + 1) * (rule + 1)
    return Found(matches, total)


@dataclass(frozen=True)
class Files:
    """The files that matchers read: an event a line, a filter a line.

    Attributes:
        events: In the JSON format of CloudEvents.
        variables: The same as `variables_of` has them.
        truth: Of the first SAMPLE events.
        per_event: Matches an event in these.
    """

    events: Path
    variables: Path
    cel: Path
    patterns: Path
    truth: Found
    per_event: float


def write(folder: Path, count: int, scratch: Path) -> Files:
    """The files for so many filters of the workload in `folder`."""
    events = folder / "data" / "events.jsonl"
    filters = [json.loads(line) for line in (folder / "data" / f"filters_{count}.jsonl").read_bytes().splitlines()]
    cel, patterns, variables = (scratch / name for name in ("cel", "patterns", "variables"))
    variables.write_bytes(b"".join(variables_of(line) + b"\n" for line in events.read_bytes().splitlines()))
    cel.write_text("".join(f"{cel_of(one)}\n" for one in filters))
    patterns.write_text("".join(f"{pattern_of(one)}\n" for one in filters))
    found = truth(events.read_bytes().splitlines()[:SAMPLE], filters)
    return Files(events, variables, cel, patterns, found, found.matches / SAMPLE)
