"""Key specs: what key extraction reads of a broker's events, and the rows of the table that its keys meet.

A broker's *key spec* lists the operands that its plans compare, the parts of keys made of them, and the keys.
Key extraction (`connector/.../keys/`) makes the keys of an event by it, and the values of the operands. So an event
costs what its own broker's filters cost, and the Spark plan holds nothing of a broker: only *patterns*, the residual
comparisons of a conjunction without their operands, of which thousands of signatures share some dozens.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

import msgspec

from headgate.filter.cel.build import TIME_TEXT
from headgate.filter.compile.plan import (
    CompiledFilter,
    Constant,
    ConstantKind,
    Form,
    KeyKind,
    KeyPart,
    Operand,
    PlanRow,
    Residual,
    Root,
    Signature,
)
from headgate.match.keys import Secrets, broker_state, digest, key_state, row_check, row_key
from headgate_api.event.attributes import CONTEXT_ATTRIBUTES
from headgate_api.limits import BROKER_KEYS_MAX

# --- the limit of keys ----------------------------------------------------------------------------
# Every kind of key that a broker's filters are looked up by is made of each of its events, so there may be only so
# many. However many clients send, every row finds a key: rows over the limit are looked up by less (one part of their
# key, or the broker alone) and are candidates. Fewer conditions let more events through, never fewer.

_COARSE_SHARE: Final = 4
"""One in so many keys is a coarse one, once there are more than fit."""
_USEFULNESS: Final = (KeyKind.STRING, KeyKind.NUMBER, KeyKind.PREFIX, KeyKind.SUFFIX, KeyKind.BOOL)
"""Kinds of key parts, the one that lets the fewest events through first."""

Key = tuple[KeyPart, ...]
"""The parts of one kind of key."""
SCAN: Final[Key] = ()
"""Every event of the broker."""


def choose(rows_by_key: Mapping[Key, int], *, keys_max: int) -> dict[Key, Key]:
    """For every key the one that its rows are looked up by; at most `keys_max` different ones.

    The keys with the most rows stay themselves. For the others, the coarse keys that most of their rows could use are
    kept, and each row takes the most useful of those.
    """
    ranked = sorted(rows_by_key, key=lambda key: (-rows_by_key[key], key))
    if len(ranked) <= keys_max:
        return {key: key for key in ranked}
    coarse_max = max(1, keys_max // _COARSE_SHARE)
    whole, rest = ranked[: keys_max - coarse_max], ranked[keys_max - coarse_max :]
    chosen = {key: key for key in whole}
    uses: Counter[Key] = Counter()
    for key in rest:
        uses.update(dict.fromkeys(_coarser(key), rows_by_key[key]))
    by_use = sorted(uses.keys() - chosen.keys(), key=lambda key: (-uses[key], key))
    kept = {*whole, *by_use[: coarse_max - 1], SCAN}
    for key in rest:
        chosen[key] = next((coarse for coarse in _coarser(key) if coarse in kept), SCAN)
    return chosen


def _coarser(key: Key) -> tuple[Key, ...]:
    """The key and its parts one by one, the most useful first; the scan is not among them."""
    singles = [(part,) for part in sorted(key, key=_rank)]
    return tuple(dict.fromkeys([key, *singles])) if key else ()


def _rank(part: KeyPart) -> tuple[int, int, bool, KeyPart]:
    return _USEFULNESS.index(part.kind), -part.length, part.operand.root is not Root.CE, part


# --- key specs ------------------------------------------------------------------------------------

Pattern = tuple[Residual, ...]
"""Residual comparisons, each at a form of `ANYWHERE`, sorted."""
ANYWHERE: Final = Operand(Root.DATA, ())
"""Stands for the operand of a residual in a pattern; its form is that of the real one."""

Row = tuple[object, ...]
"""row_key, row_check, exact, the number of each residual's operand, each residual's constant if it takes one."""
Rows = dict[Pattern, dict[Row, list[int]]]
"""By pattern, each row with its targets. Tables share what did not change: never changed in place."""
_Parts = list[tuple[Pattern, Row]]
"""What a filter is in the table."""

_KINDS: Final = (KeyKind.STRING, KeyKind.NUMBER, KeyKind.BOOL, KeyKind.PREFIX, KeyKind.SUFFIX)
"""Numbered as in `keys/KeySpec.java`."""


@dataclass(frozen=True, slots=True)
class BrokerTable:
    """One broker's key spec and its rows.

    `changed` has the keys of rows that the builder's table before did not have so, and of those that only it had.
    """

    state: int  # where the chain of the broker's keys starts, int64
    key_spec: str  # JSON, as `keys/KeySpec.java` reads it
    columns: frozenset[str]  # those of the log that hold its operands
    rows: Rows  # by pattern, each row with the targets whose filters have it: equal filters are compared once
    changed: frozenset[object] = field(compare=False)


def takes_constant(test: Residual) -> bool:
    """Whether a residual compares with a constant that is stored in the row."""
    return test.kind not in {ConstantKind.NULL, ConstantKind.NONE}


def key_number(key: tuple[KeyPart, ...], secrets: Secrets) -> int:
    """The number of a kind of key, int64: the same in every generation, and no client can make two that are equal."""
    text = msgspec.json.encode([(part.operand, part.kind, part.length) for part in key])
    salt = secrets.seed.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=salt).digest(), "little", signed=True)


@dataclass(frozen=True, slots=True)
class _SignatureRows:
    """How the rows of one signature become rows of the table."""

    pattern: Pattern
    key: tuple[int, ...]  # for each part of the key, its index among a row's key constants
    state: int  # where the chain of their keys starts, after the broker and the key's number
    exact: bool
    operands: tuple[int, ...]  # the number of each residual's operand
    constants: tuple[int, ...]  # indexes of the stored constants among a row's, by pattern

    def row(self, row: PlanRow, secrets: Secrets) -> Row:
        digests = [digest(row.key[i], secrets) for i in self.key]
        constants = [_stored(row.constants[i]) for i in self.constants]
        key, check = row_key(self.state, digests), row_check(secrets, digests)
        return (key, check, self.exact, *self.operands, *constants)


class BrokerTableBuilder:
    """Builds the table of one broker for one generation after the other: numbers operands, parts and keys as they come.

    Only changed filters cost anything. What no filter uses any more is forgotten when half of the filters are others.
    """

    def __init__(self, broker: str, secrets: Secrets) -> None:
        self._broker = broker
        self._secrets = secrets
        self._state = broker_state(secrets.seed, broker)
        self._rows: Rows = {}
        self._forget()

    def _forget(self) -> None:
        self._operands: dict[Operand, int] = {}
        self._parts: dict[KeyPart, int] = {}
        self._keys: dict[tuple[KeyPart, ...], int] = {}
        # By identity: to hash a signature costs more than all else here. The signature is kept, so that it stays one.
        self._signatures: dict[int, tuple[Signature, _SignatureRows]] = {}
        self._patterns: dict[Pattern, Pattern] = {}  # each once, so that they can be told apart by identity
        self._made: dict[int, tuple[CompiledFilter, _Parts]] = {}
        self._gone = 0

    def build(self, targets: Sequence[tuple[int, CompiledFilter]]) -> BrokerTable:
        """The key spec of all filters of the broker, and their rows; costs some 5 us a new row."""
        before, now = self._made, {target for target, _ in targets}
        new = [(target, one) for target, one in targets if (old := before.get(target)) is None or old[0] is not one]
        gone = [*(before.keys() - now), *(target for target, _ in new if target in before)]
        left = [(target, before[target][1]) for target in gone]
        self._gone += len(gone)
        from_nothing = len(new) == len(targets) or 2 * self._gone > len(targets)
        if from_nothing:
            self._forget()
            new = list(targets)
        if not self._add(new):
            from_nothing = True
            self._forget()
            new = list(targets)
            uses = Counter(row.signature.key for _, compiled in targets for row in compiled.rows)
            self._add(new, choose(uses, keys_max=BROKER_KEYS_MAX))
        made = self._made
        self._made = {target: made[target] for target, _ in targets}
        joined = _grouped((target, made[target][1]) for target, _ in new)
        if from_nothing:
            changed = frozenset(chain(_keys(self._rows), _keys(joined)))
            self._rows = joined
        else:
            leaving = _grouped(left)
            changed = frozenset(chain(_keys(leaving), _keys(joined)))
            self._rows = _replaced(self._rows, leaving, joined)
        columns = frozenset(chain.from_iterable(map(columns_of, self._operands)))
        table = BrokerTable(self._state, self._key_spec(), columns, self._rows, changed)
        if self._coarse:
            self._forget()  # which keys are left depends on all filters together
        return table

    def _add(self, targets: Sequence[tuple[int, CompiledFilter]], chosen: Mapping[Key, Key] | None = None) -> bool:
        """Make the rows of these filters; False when there are more kinds of keys than there may be."""
        self._coarse = chosen is not None
        for target, compiled in targets:
            made = []
            for row in compiled.rows:
                plan = self._rows_of(row, chosen)
                made.append((plan.pattern, plan.row(row, self._secrets)))
            self._made[target] = compiled, made
            if len(self._keys) > BROKER_KEYS_MAX:
                return False
        return True

    def _rows_of(self, row: PlanRow, chosen: Mapping[Key, Key] | None) -> _SignatureRows:
        identity = id(row.signature)
        known = self._signatures.get(identity)
        if known is None:
            own = row.signature.key
            known = row.signature, self._signature_rows(row.signature, own if chosen is None else chosen[own])
            self._signatures[identity] = known
        return known[1]

    def _signature_rows(self, signature: Signature, parts: Key) -> _SignatureRows:
        number = self._keys.get(parts)
        if number is None:
            number = self._keys[parts] = key_number(parts, self._secrets)
            for part in parts:
                self._parts.setdefault(part, len(self._parts))
                self._operand(part.operand)
        tests = sorted(
            (replace(test, operand=replace(ANYWHERE, form=test.operand.form)), index, test.operand)
            for index, test in enumerate(signature.residual)
        )
        pattern = tuple(test for test, _, _ in tests)
        whole = parts == signature.key
        indexes = range(len(parts)) if whole else map(signature.key.index, parts)
        return _SignatureRows(
            pattern=self._patterns.setdefault(pattern, pattern),
            key=tuple(indexes),
            state=key_state(self._state, number),
            exact=signature.exact and whole,
            operands=tuple(self._operand(operand) for _, _, operand in tests),
            constants=tuple(index for test, index, _ in tests if takes_constant(test)),
        )

    def _operand(self, operand: Operand) -> int:
        return self._operands.setdefault(operand, len(self._operands))

    def _key_spec(self) -> str:
        parts = [(self._operands[part.operand], _KINDS.index(part.kind), part.length) for part in self._parts]
        keys = [(number, [self._parts[part] for part in key]) for key, number in self._keys.items()]
        operands = [(operand.root, operand.form, _steps(operand)) for operand in self._operands]
        return msgspec.json.encode({"operands": operands, "parts": parts, "keys": keys}).decode()


def _grouped(filters: Iterable[tuple[int, _Parts]]) -> Rows:
    rows: Rows = {}
    known: dict[int, dict[Row, list[int]]] = {}  # by the pattern's identity: to hash it costs more than all else
    for target, some in filters:
        for pattern, row in some:
            of_pattern = known.get(id(pattern))
            if of_pattern is None:
                of_pattern = known[id(pattern)] = rows.setdefault(pattern, {})
            sharing = of_pattern.get(row)
            if sharing is None:
                of_pattern[row] = [target]
            else:
                sharing.append(target)
    return rows


def _replaced(rows: Rows, leaving: Rows, joined: Rows) -> Rows:
    """The rows after some targets have left and others have joined; what is not concerned is shared, not copied."""
    after = dict(rows)
    for pattern in leaving.keys() | joined.keys():
        some = dict(after.get(pattern, {}))
        for row, targets in leaving.get(pattern, {}).items():
            gone = set(targets)
            left = [target for target in some.pop(row) if target not in gone]
            if left:
                some[row] = left
        for row, targets in joined.get(pattern, {}).items():
            some[row] = [*some.get(row, ()), *targets]
        if some:
            after[pattern] = some
        else:
            del after[pattern]
    return after


def _keys(rows: Rows) -> Iterator[object]:
    return (row[0] for some in rows.values() for row in some)


def _steps(operand: Operand) -> tuple[str, ...]:
    """The names on the way to a value: a member of an extension stands below it. No plan names one with an escape."""
    if operand.root is Root.CE and operand.form is not Form.NAMED:
        return tuple(attribute_of(operand).split("."))
    return operand.path


def _stored(constant: Constant | tuple[Constant, ...]) -> object:
    """A constant as its column holds it: numbers as doubles."""
    match constant:
        case tuple():
            return tuple(map(_stored, constant))
        case bool() | str():
            return constant
        case int():
            return float(constant)
        case _:
            return constant


def columns_of(operand: Operand) -> tuple[str, ...]:
    """The columns of the log that hold an operand."""
    if operand.root is Root.DATA:
        return ("data",)
    if operand.root is Root.PUBLISH_TIME:
        return ("append_time_us",)
    if operand.form is Form.TIME:
        return ("time", "time_us")
    if operand.form is Form.NAMED:
        return ("extensions",)
    attribute = attribute_of(operand)
    return (attribute,) if attribute in CONTEXT_ATTRIBUTES else ("extensions",)


def attribute_of(operand: Operand) -> str:
    """The attribute whose value is read: filters have another name for the text of `ce.time`."""
    return "time" if operand.path[0] == TIME_TEXT else operand.path[0]
