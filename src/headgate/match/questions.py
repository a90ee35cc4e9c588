"""What do the filters of a broker ask of an event, and under which keys do their rows stand?

A *question* lists the places that the broker's filters look at, the parts of keys made of them, and the keys. The
event's answer (`connector/.../ask/`) is its keys and what stands at the places. So an event costs what its own
broker's filters cost, and the Spark plan holds nothing of a broker: only *patterns*, the residual comparisons of a
conjunction without their places, of which thousands of shapes share some dozens.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import msgspec

from headgate.filter.plan import (
    CompiledFilter,
    Constant,
    ConstantKind,
    KeyKind,
    KeyPart,
    Place,
    PlanRow,
    Residual,
    Root,
)
from headgate.limits import BROKER_KEYS_MAX
from headgate.match.keys import Secrets, broker_state, digest, key_state, row_check, row_key
from headgate.match.reads import columns_of
from headgate.match.shapes import SCAN, Fit, Shape, choose, fit, readable_part, usable

Pattern = tuple[Residual, ...]
"""Residual comparisons, each at a form of `ANYWHERE`, sorted."""
ANYWHERE: Final = Place(Root.DATA, ())
"""Stands for the place of a residual in a pattern; its form is that of the real one."""

Row = tuple[object, ...]
"""row_key, row_check, target, exact, the number of each residual's place, each residual's constant if it takes one."""

_KINDS: Final = (KeyKind.STRING, KeyKind.NUMBER, KeyKind.BOOL, KeyKind.PREFIX, KeyKind.SUFFIX)
"""Numbered as in `ask/Question.java`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One broker's question and its rows.

    Attributes:
        state: Where the chain of the broker's keys starts, int64.
        question: JSON, as `ask/Question.java` reads it.
        columns: Columns of the log that hold what is asked.
        rows: By pattern.
    """

    state: int
    question: str
    columns: frozenset[str]
    rows: dict[Pattern, list[Row]]


def ask(broker: str, targets: Sequence[tuple[int, CompiledFilter]], secrets: Secrets) -> Asked:
    """The question of a broker's filters, and their rows; costs some 5 us a row."""
    return _Asker(broker, secrets).asked(targets)


def takes_constant(test: Residual) -> bool:
    """Whether a residual compares with a constant that is stored in the row."""
    return test.kind not in {ConstantKind.NULL, ConstantKind.NONE}


def key_number(key: tuple[KeyPart, ...], secrets: Secrets) -> int:
    """The number of a kind of key, int64: the same in every generation, and nobody can make two that are equal."""
    text = msgspec.json.encode([(part.place, part.kind, part.length) for part in key])
    salt = secrets.seed.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=salt).digest(), "little", signed=True)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the rows of one signature become rows of the table.

    Attributes:
        pattern: Their pattern.
        key: For each part of the key, its index among a row's key constants.
        state: Where the chain of their keys starts, after the broker and the key's number.
        exact: Whether nothing of the conjunction was lost.
        places: The number of each residual's place.
        constants: Indexes of the stored constants among a row's, by pattern.
    """

    pattern: Pattern
    key: tuple[int, ...]
    state: int
    exact: bool
    places: tuple[int, ...]
    constants: tuple[int, ...]

    def row(self, target: int, row: PlanRow, secrets: Secrets) -> Row:
        digests = [digest(row.key[i], secrets) for i in self.key]
        constants = [_stored(row.constants[i]) for i in self.constants]
        key, check = row_key(self.state, digests), row_check(secrets, digests)
        return (key, check, target, self.exact, *self.places, *constants)


class _Asker:
    """Numbers places, parts and keys as they come, and makes the rows."""

    def __init__(self, broker: str, secrets: Secrets) -> None:
        self._secrets = secrets
        self._state = broker_state(secrets.seed, broker)
        self._places: dict[Place, int] = {}
        self._parts: dict[KeyPart, int] = {}
        self._keys: dict[tuple[KeyPart, ...], int] = {}
        self._fits: dict[tuple[int, bool], Fit] = {}  # by identity: to hash a signature costs more than all else here

    def asked(self, targets: Sequence[tuple[int, CompiledFilter]]) -> Asked:
        rows = [(target, row, self._fit(row)) for target, compiled in targets for row in compiled.rows]
        uses = Counter(id(own) for _, _, own in rows)
        shapes: Counter[Shape] = Counter()
        for own in self._fits.values():
            shapes[Shape(own.shape.key)] += uses[id(own)]
        chosen = choose(shapes, shapes_max=BROKER_KEYS_MAX)
        plans = {id(own): self._plan(own, chosen[Shape(own.shape.key)]) for own in self._fits.values()}
        made: dict[Pattern, list[Row]] = {}
        for target, row, own in rows:
            plan = plans[id(own)]
            made.setdefault(plan.pattern, []).append(plan.row(target, row, self._secrets))
        return Asked(self._state, self._question(), frozenset(chain.from_iterable(map(columns_of, self._places))), made)

    def _fit(self, row: PlanRow) -> Fit:
        identity = id(row.signature), usable(row)
        own = self._fits.get(identity)
        if own is None:
            own = readable_part(row.signature) if identity[1] else Fit(SCAN, (), (), exact=False)
            self._fits[identity] = own
        return own

    def _plan(self, own: Fit, chosen: Shape) -> _Plan:
        key = fit(Fit(Shape(own.shape.key), own.key, (), own.exact), chosen)
        parts = key.shape.key
        number = self._keys.get(parts)
        if number is None:
            number = self._keys[parts] = key_number(parts, self._secrets)
            for part in parts:
                self._parts.setdefault(part, len(self._parts))
                self._place(part.place)
        tests = sorted(
            (replace(test, place=replace(ANYWHERE, form=test.place.form)), index, test.place)
            for index, test in zip(own.residual, own.shape.residual, strict=True)
        )
        return _Plan(
            pattern=tuple(test for test, _, _ in tests),
            key=key.key,
            state=key_state(self._state, number),
            exact=key.exact,
            places=tuple(self._place(place) for _, _, place in tests),
            constants=tuple(index for test, index, _ in tests if takes_constant(test)),
        )

    def _place(self, place: Place) -> int:
        return self._places.setdefault(place, len(self._places))

    def _question(self) -> str:
        parts = [(self._places[part.place], _KINDS.index(part.kind), part.length) for part in self._parts]
        keys = [(number, [self._parts[part] for part in key]) for key, number in self._keys.items()]
        places = [(place.root, place.form, place.path) for place in self._places]
        return msgspec.json.encode({"places": places, "parts": parts, "keys": keys}).decode()


def _stored(constant: Constant | tuple[Constant, ...]) -> object:
    """A constant as its column holds it: numbers as doubles."""
    match constant:
        case tuple():
            return [_stored(item) for item in constant]
        case bool() | str():
            return constant
        case int():
            return float(constant)
        case _:
            return constant
