"""Key specs: what key extraction reads of a broker's events, and the rows of the table that its keys meet.

A broker's *key spec* lists the operands that its plans compare, the parts of keys made of them, and the keys.
Key extraction (`connector/.../keys/`) makes the keys of an event by it, and the values of the operands. So an event
costs what its own broker's filters cost, and the Spark plan holds nothing of a broker: only *patterns*, the residual
comparisons of a conjunction without their operands, of which thousands of signatures share some dozens.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
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
    Op,
    Operand,
    PlanRow,
    Residual,
    Root,
    Signature,
)
from headgate.match.keys import Secrets, broker_state, digest, key_state, row_check, row_key
from headgate_api.event.attributes import CONTEXT_ATTRIBUTES
from headgate_api.limits import BROKER_KEYS_MAX, SHARED_ATOM_FILTERS_MIN, SHARED_ATOM_SHARE, SHARED_ATOMS_MAX

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


def _test(op: Op, kind: ConstantKind, *, negated: bool = False) -> Residual:
    return Residual(ANYWHERE, op, kind, negated)


_HAS: Final = _test(Op.HAS, ConstantKind.NONE)
_ORDERS: Final = (Op.LT, Op.LE, Op.GT, Op.GE)
LIKELY: Final[tuple[Pattern, ...]] = (
    (),
    (_HAS,),
    (_test(Op.HAS, ConstantKind.NONE, negated=True),),
    *((_test(op, ConstantKind.NUMBER),) for op in _ORDERS),
    *(tuple(sorted((_test(op, ConstantKind.NUMBER), _HAS))) for op in _ORDERS),
    *((_test(op, ConstantKind.STRING),) for op in (Op.STARTS, Op.ENDS, Op.CONTAINS)),
    *((_test(op, ConstantKind.STRING, negated=True),) for op in (Op.EQ, Op.IN)),
    tuple(sorted((_test(Op.STARTS, ConstantKind.STRING), _HAS))),
)
"""All that more than half of the corpus of filters consists of."""

Row = tuple[object, ...]
"""row_key, row_check, exact, the bits of shared atoms; of each other residual the number of its operand, then of each
its constant if it takes one."""
Rows = dict[Pattern, dict[Row, list[int]]]
"""By pattern, each row with the targets whose filters have it: equal filters are compared once."""
_Parts = list[tuple[Pattern, Row]]
"""What a filter is in the table."""

_KINDS: Final = (KeyKind.STRING, KeyKind.NUMBER, KeyKind.BOOL, KeyKind.PREFIX, KeyKind.SUFFIX)
"""Numbered as in `keys/KeySpec.java`."""


def takes_constant(test: Residual) -> bool:
    """Whether a residual compares with a constant that is stored in the row."""
    return test.kind not in {ConstantKind.NULL, ConstantKind.NONE}


def key_number(key: tuple[KeyPart, ...], secrets: Secrets) -> int:
    """The number of a kind of key, int64: the same in every generation, and no client can make two that are equal."""
    text = msgspec.json.encode([(part.operand, part.kind, part.length) for part in key])
    salt = secrets.seed.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=salt).digest(), "little", signed=True)


# --- shared atoms -----------------------------------------------------------------------------------

_Atom = tuple[int, Constant | tuple[Constant, ...]]
"""A residual, by its number, and its constant."""
_COUNTED: Final = 1_024
"""Atoms that are counted at a time."""


def _can_be_shared(residual: Residual) -> bool:
    """Whether `keys/SharedAtom.java` compares it: one value that is no time."""
    return residual.op is not Op.EXISTS and residual.operand.form is not Form.TIME


class _SharedAtoms:
    """A broker's shared atoms. An event costs as much for each of them as for some rows that it meets."""

    def __init__(self) -> None:
        self.bits: dict[_Atom, int] = {}
        self._residuals: dict[Residual, int] = {}
        self._uses: dict[_Atom, int] = {}

    def numbers(self, signature: Signature) -> tuple[tuple[int, int], ...]:
        """Of the residuals that can be shared, the index in the signature and the number here."""
        return tuple(
            (index, self._residuals.setdefault(residual, len(self._residuals)))
            for index, residual in enumerate(signature.residual)
            if _can_be_shared(residual)
        )

    def count(self, atoms: Iterable[_Atom], filters: int) -> None:
        """Count these atoms of filters that come. What `filters`, all that there are then, often have is shared.

        At most `_COUNTED` are remembered: whenever there are more, each loses one of its count (Misra and Gries, 1982).
        So one that a sixteenth of the filters have is never forgotten.
        """
        uses = self._uses
        counted = set()
        for atom in atoms:
            if atom not in self.bits:
                uses[atom] = uses.get(atom, 0) + 1
                counted.add(atom)
                if len(uses) > _COUNTED:
                    self._uses = uses = {one: count - 1 for one, count in uses.items() if count > 1}
        least = max(SHARED_ATOM_FILTERS_MIN, filters // SHARED_ATOM_SHARE)
        often = [atom for atom in counted if uses.get(atom, 0) >= least]
        for atom in sorted(often, key=lambda atom: (-uses[atom], atom[0], str(atom[1]))):
            if len(self.bits) < SHARED_ATOMS_MAX:
                self.bits[atom] = 1 << len(self.bits)
                del uses[atom]

    def written(self, operands: Mapping[Operand, int]) -> Sequence[tuple[object, ...]]:
        """As `keys/SharedAtom.java` reads them, in the order of their bits."""
        residuals = list(self._residuals)
        found = []
        for number, constant in self.bits:
            test = residuals[number]
            constants = [] if not takes_constant(test) else constant if isinstance(constant, tuple) else [constant]
            found.append((operands[test.operand], test.op, test.kind, test.negated, [*map(_stored, constants)]))
        return found


@dataclass(slots=True)
class _Shape:
    """A signature of a broker's filters: which of its residuals may be shared, and its rows by those that are."""

    signature: Signature
    numbers: tuple[tuple[int, int], ...]  # see `_SharedAtoms.numbers`
    rows: dict[int, _SignatureRows]  # by the bits of the indexes of the residuals that are shared


@dataclass(frozen=True, slots=True)
class _SignatureRows:
    """How the rows of one signature become rows of the table."""

    pattern: Pattern
    key: tuple[int, ...]  # for each part of the key, its index among a row's key constants
    state: int  # where the chain of their keys starts, after the broker and the key's number
    exact: bool
    operands: tuple[int, ...]  # the number of each residual's operand
    constants: tuple[int, ...]  # indexes of the stored constants among a row's, by pattern

    def row(self, row: PlanRow, shared: int, secrets: Secrets) -> Row:
        digests = [digest(row.key[i], secrets) for i in self.key]
        constants = [_stored(row.constants[i]) for i in self.constants]
        key, check = row_key(self.state, digests), row_check(secrets, digests)
        return (key, check, self.exact, shared, *self.operands, *constants)


@dataclass(frozen=True, slots=True)
class TableChange:
    """What other filters have changed of a broker's table."""

    keys: Set[object]  # of rows that are not as before, or are gone
    patterns: Collection[Pattern]  # of rows that have come


class BrokerTable:
    """One broker's key spec and its rows, from one generation to the next; only changed filters cost anything.

    Numbers operands, parts and keys as they come. What no filter uses any more is forgotten when half of the filters
    are others. `state` is where the chain of the broker's keys starts, int64. `key_spec` is JSON, as
    `keys/KeySpec.java` reads it. `columns` are those of the log that hold its operands.
    """

    def __init__(self, broker: str, secrets: Secrets) -> None:
        self.state = broker_state(secrets.seed, broker)
        self._secrets = secrets
        self._filters: dict[int, CompiledFilter] = {}
        self._forget()

    def _forget(self) -> None:
        self.key_spec = ""
        self.columns: frozenset[str] = frozenset()
        self._described = (-1, -1, -1)  # with how many operands, keys and shared atoms
        self._operands: dict[Operand, int] = {}
        self._parts: dict[KeyPart, int] = {}
        self._keys: dict[tuple[KeyPart, ...], int] = {}
        # By identity: to hash a signature costs more than all else here. The signature is kept, so that it stays one.
        self._shapes: dict[int, _Shape] = {}
        self._shared = _SharedAtoms()
        self._patterns: dict[Pattern, Pattern] = {}  # each once, so that they can be told apart by identity
        self._made: dict[int, _Parts] = {}
        self._of_key: dict[object, list[int]] = {}  # targets that have rows of a key
        self._gone = 0
        self._coarse = False

    def __len__(self) -> int:
        """How many filters it has."""
        return len(self._filters)

    def change(self, joined: Mapping[int, CompiledFilter], left: Collection[int] = ()) -> TableChange:
        """Put filters in and take others out, by their targets; one that is replaced is in both. 5 us a new row."""
        for target in left:
            del self._filters[target]
        self._filters.update(joined)
        self._gone += len(left)
        if self._coarse or 2 * self._gone > len(self._filters):  # coarse keys depend on all filters together
            change = self._begin_anew()
        else:
            change = self._changed(joined, left)
        self._describe()
        return change

    def _changed(self, joined: Mapping[int, CompiledFilter], left: Collection[int]) -> TableChange:
        gone = self._take_out(left)
        made = self._add(joined)
        if made is not None:
            return TableChange(gone | _keys(made), _patterns(made))
        anew = self._begin_anew()
        return TableChange(gone | anew.keys, anew.patterns)

    def _begin_anew(self) -> TableChange:
        before = self._of_key.keys()
        self._forget()
        made = self._add(self._filters)
        if made is None:
            self._forget()
            uses = Counter(row.signature.key for compiled in self._filters.values() for row in compiled.rows)
            made = self._add(self._filters, choose(uses, keys_max=BROKER_KEYS_MAX))
            assert made is not None, "chosen keys are not too many"
            self._coarse = True
        return TableChange(before | self._of_key.keys(), _patterns(made))

    def _take_out(self, targets: Collection[int]) -> Set[object]:
        """Take the rows of targets out; their keys."""
        gone, keys = set(targets), _keys([self._made.pop(target) for target in targets])
        for key in keys:
            stay = [target for target in self._of_key[key] if target not in gone]
            if stay:
                self._of_key[key] = stay
            else:
                del self._of_key[key]
        return keys

    def _add(
        self, filters: Mapping[int, CompiledFilter], chosen: Mapping[Key, Key] | None = None
    ) -> Sequence[_Parts] | None:
        """Make the rows of filters; None when there are more kinds of keys than there may be."""
        atoms = chain.from_iterable(map(self._atoms, filters.values()))
        self._shared.count(atoms, len(self._filters))
        added = []
        for target, compiled in filters.items():
            made = [self._part(row, chosen) for row in compiled.rows]
            if len(self._keys) > BROKER_KEYS_MAX:
                return None
            self._made[target] = made
            for key in {row[0] for _, row in made}:
                self._of_key.setdefault(key, []).append(target)
            added.append(made)
        return added

    @property
    def rows(self) -> Rows:
        """All rows."""
        return _grouped(self._made.items())

    def rows_of(self, keys: Set[object]) -> Rows:
        """The rows of some keys."""
        targets = dict.fromkeys(chain.from_iterable(self._of_key.get(key, ()) for key in keys))
        return _grouped((target, [part for part in self._made[target] if part[1][0] in keys]) for target in targets)

    def _shape(self, row: PlanRow) -> _Shape:
        identity = id(row.signature)
        known = self._shapes.get(identity)
        if known is None:
            known = self._shapes[identity] = _Shape(row.signature, self._shared.numbers(row.signature), {})
        return known

    def _atoms(self, compiled: CompiledFilter) -> Set[_Atom]:
        """Those of a filter that can be shared."""
        return {(number, row.constants[index]) for row in compiled.rows for index, number in self._shape(row).numbers}

    def _part(self, row: PlanRow, chosen: Mapping[Key, Key] | None) -> tuple[Pattern, Row]:
        shape = self._shape(row)
        bits = taken = 0
        for index, number in shape.numbers:
            bit = self._shared.bits.get((number, row.constants[index]), 0)
            bits |= bit
            taken |= (bit > 0) << index
        plan = shape.rows.get(taken)
        if plan is None:
            own = row.signature.key
            plan = self._signature_rows(row.signature, own if chosen is None else chosen[own], taken)
            shape.rows[taken] = plan
        return plan.pattern, plan.row(row, bits, self._secrets)

    def _signature_rows(self, signature: Signature, parts: Key, shared: int) -> _SignatureRows:
        """`shared` has a bit for each residual that is asked for as a shared atom."""
        number = self._keys.get(parts)
        if number is None:
            number = self._keys[parts] = key_number(parts, self._secrets)
            for part in parts:
                self._parts.setdefault(part, len(self._parts))
                self._operand(part.operand)
        for test in signature.residual:
            self._operand(test.operand)
        tests = sorted(
            (replace(test, operand=replace(ANYWHERE, form=test.operand.form)), index, test.operand)
            for index, test in enumerate(signature.residual)
            if not shared >> index & 1
        )
        pattern = tuple(test for test, _, _ in tests)
        whole = parts == signature.key
        indexes = range(len(parts)) if whole else map(signature.key.index, parts)
        return _SignatureRows(
            pattern=self._patterns.setdefault(pattern, pattern),
            key=tuple(indexes),
            state=key_state(self.state, number),
            exact=signature.exact and whole,
            operands=tuple(self._operand(operand) for _, _, operand in tests),
            constants=tuple(index for test, index, _ in tests if takes_constant(test)),
        )

    def _operand(self, operand: Operand) -> int:
        return self._operands.setdefault(operand, len(self._operands))

    def _describe(self) -> None:
        """Write the key spec anew where filters have brought something to it."""
        described = len(self._operands), len(self._keys), len(self._shared.bits)
        if described == self._described:
            return
        self._described = described
        parts = [(self._operands[part.operand], _KINDS.index(part.kind), part.length) for part in self._parts]
        keys = [(number, [self._parts[part] for part in key]) for key, number in self._keys.items()]
        operands = [(operand.root, operand.form, _steps(operand)) for operand in self._operands]
        shared = self._shared.written(self._operands)
        written = {"operands": operands, "parts": parts, "keys": keys, "shared": shared}
        self.key_spec = msgspec.json.encode(written).decode()
        self.columns = frozenset(chain.from_iterable(map(columns_of, self._operands)))


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


def _keys(filters: Iterable[_Parts]) -> Set[object]:
    return {row[0] for parts in filters for _, row in parts}


def _patterns(filters: Iterable[_Parts]) -> Collection[Pattern]:
    return {id(pattern): pattern for parts in filters for pattern, _ in parts}.values()


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
