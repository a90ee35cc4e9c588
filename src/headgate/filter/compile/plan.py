"""Plans: what a filter needs of an event, as rows of a join.

A filter is a disjunction of conjunctions (`filter/cel/rewrite.py`). A conjunction's *shape* is its `Signature`; its
constants are one `PlanRow`. The matcher's query depends on the set of signatures only; the rows are data of
its broadcast table (TriggerMan's expression signatures: Hanson et al., ICDE 1999).

Verdicts of the rows of one (event, filter) merge by `Verdict` precedence: any MATCH wins, else any CANDIDATE, else
any ERROR. That is CEL's commutative `||` with "perhaps" in the middle.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from headgate.filter.cel.budget import UNBOUNDED_BYTES
from headgate_api.event.attributes import REQUIRED_ATTRIBUTES
from headgate_api.limits import FILTER_COST_COMPARED, FILTER_COST_EVALUATED

PLAN_VERSION: Final = 2
"""Raised by hand when some filter gets another plan or a plan another meaning: older plans are compiled anew."""

Constant = str | int | float | bool | None
"""A CEL constant as Python has it; `None` is CEL's null. CEL's uint is an int here: numbers compare across types.

Two integers compare exactly; as soon as one of two numbers is a double, cel-cpp compares both as doubles. Beyond 2**53
an int constant so equals the double nearest to it, and of the integers that share this double only itself. The compiler
writes an integral double as an int and never makes a constant of a double beyond 2**53.
"""


class Root(StrEnum):
    """Where a path starts."""

    CE = "ce"
    DATA = "data"
    PUBLISH_TIME = "publish_time"


class Form(StrEnum):
    """What is taken of the value at a path before anything is compared with it.

    A value of a wrong type is an error (no text, number or flag, and `==` is an error too), with VALUE alone `==` is
    false. See `DOUBTFUL` and `MANY` for what two groups of them have in common.
    """

    VALUE = "value"  # the value itself
    LOWER = "lower"  # x.lowerAscii(): a string
    UPPER = "upper"  # x.upperAscii(): a string
    SIZE = "size"  # size(x): code points of a string, items of a list, members of a map
    TYPE = "type"  # the name of type(x): "string", "int", "null_type", ...
    TIME = "time"  # a time: microseconds since 1970 as a number, an instant that lies between two is in doubt
    TO_INT = "int"  # int(x): a number
    TO_DOUBLE = "double"  # double(x): a number
    TO_STRING = "string"  # string(x): a string
    INTEGER = "integer"  # x where it is an int, so that arithmetic with an int is none but an error for any other type
    PRESENT = "present"  # has(x), a boolean; an error where has() is one
    ELEMENTS = "elements"  # the items of a list, each a value; a missing list is an error
    ELEMENTS_LOWER = "elements_lower"  # their lowerAscii()
    VALUES = "values"  # json.values(data, path): scalars at a path, through arrays on the way; never an error
    VALUES_LOWER = "values_lower"  # their lowerAscii()
    NAMED = "named"  # of `ce`: extensions whose names begin with the one name of the path; never an error


DOUBTFUL: Final = frozenset(
    {
        *(Form.TYPE, Form.TO_INT, Form.TO_DOUBLE, Form.TO_STRING, Form.INTEGER),
        *(Form.ELEMENTS, Form.ELEMENTS_LOWER, Form.VALUES, Form.VALUES_LOWER, Form.NAMED),
    }
)
"""Forms that the matcher does not know of every event. Where it does not, a residual is CANDIDATE, and the value in a
key is `DOUBT_TEXT`, `DOUBT_NUMBER` or, of a boolean, nothing: a filter has a further row that such an event meets."""

MANY: Final = frozenset({Form.ELEMENTS, Form.ELEMENTS_LOWER, Form.VALUES, Form.VALUES_LOWER, Form.NAMED})
"""Forms of any number of values: an event makes one key for each. The residual `Op.EXISTS` says the comparison once
more and exactly, so a matcher may leave such a key part out and loses nothing but speed. It looks at so many values of
one operand (`keys/KeySpec.java: ITEMS_MAX`), and is in doubt about an event with more."""

DOUBT_TEXT: Final = "\0"
DOUBT_NUMBER: Final = float("inf")
"""What stands in a key where the value is not known: neither is ever a constant of a filter or a value of an event."""


@dataclass(frozen=True, slots=True, order=True)
class Operand:
    """The side of a comparison that is read from an event: `ce.type`, `ce.tenant`, `data.user.tier`, `size(data.x)`.

    `path` has the names from the root on, taken literally: exactly one for `CE`, the attribute's whole name, dots and
    all; none for `DATA` means the data itself; always none for `PUBLISH_TIME`, which has the form `TIME` alone.
    """

    root: Root
    path: tuple[str, ...]
    form: Form = Form.VALUE

    @property
    def is_required(self) -> bool:
        """Whether it is an attribute that every event has: reading it is never an error."""
        return self.root is Root.CE and self.path[0] in REQUIRED_ATTRIBUTES and self.form is Form.VALUE


class Verdict(IntEnum):
    """What the matcher can say about an (event, target) pair; the higher number wins when rows merge."""

    ERROR = 1
    CANDIDATE = 2
    MATCH = 3


class KeyKind(StrEnum):
    """How the value at an operand becomes part of a join key."""

    STRING = "string"  # the value is this string
    NUMBER = "number"  # the value is numerically equal, see `Constant`; -0.0 == 0.0
    BOOL = "bool"  # the value is this boolean
    PREFIX = "prefix"  # the first `length` code points of the string value
    SUFFIX = "suffix"  # the last `length` code points of the string value


@dataclass(frozen=True, slots=True, order=True)
class KeyPart:
    """One indexed comparison of a signature; `length` (code points) is set for PREFIX and SUFFIX, else 0."""

    operand: Operand
    kind: KeyKind
    length: int = 0

    @property
    def doubt(self) -> str | float:
        """What stands for a value that the matcher does not know."""
        return DOUBT_NUMBER if self.kind is KeyKind.NUMBER else DOUBT_TEXT

    def is_doubt(self, constant: Constant) -> bool:
        return self.operand.form in DOUBTFUL and constant == self.doubt


class Op(StrEnum):
    """A residual comparison: three-valued, where NULL stands for a CEL error.

    A missing value is an error for every op except `HAS`. Types other than the constant's: `EQ` and `IN` give false,
    the others give an error (CEL's "no such overload").
    """

    EQ = "eq"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    STARTS = "starts"
    ENDS = "ends"
    CONTAINS = "contains"
    LIKE = "like"  # the constant is a pattern for the whole string: `%` is any text, `_` any code point, `\\` escapes
    IN = "in"  # the row's constant is a tuple of constants of one kind
    HAS = "has"  # CEL's has(): a missing parent is an error; takes no constant
    EXISTS = "exists"  # of an operand of MANY values, one passes all of `Residual.probes`; see `Probe`


class ConstantKind(StrEnum):
    """The type of a residual's constant: decides which column of the broadcast table holds it."""

    STRING = "string"
    NUMBER = "number"
    BOOL = "bool"
    NULL = "null"
    NONE = "none"  # HAS


@dataclass(frozen=True, slots=True, order=True)
class Probe:
    """One comparison inside `Op.EXISTS`, of each value with a constant of the residual's kind.

    `op` is EQ, LT, LE, GT, GE, STARTS, ENDS, CONTAINS, LIKE; HAS, without a constant: the value is of the residual's
    kind; or IN, which takes all constants, and beside which only HAS may stand.
    """

    op: Op
    negated: bool = False  # CEL's `!` around it
    lenient: bool = False  # a value of another kind is false (before the negation) and no error


@dataclass(frozen=True, slots=True, order=True)
class Residual:
    """One comparison that is not indexed; `negated` is CEL's `!` around it (an error stays an error).

    `probes` are of `Op.EXISTS` alone: they hold together for one value; with none, it is enough that there is one. The
    row's constant is then a tuple of constants of `kind`, in the order of the probes that take one; empty for NULL.
    """

    operand: Operand
    op: Op
    kind: ConstantKind
    negated: bool = False
    probes: tuple[Probe, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Signature:
    """The shape of a conjunction. Every key starts with the event's broker, which is not written here."""

    key: tuple[KeyPart, ...]  # indexed parts, sorted; empty: every event of the broker is looked at (a scan)
    residual: tuple[Residual, ...]  # comparisons on the joined row, sorted
    exact: bool = True  # residual TRUE is MATCH and NULL ERROR; False: something could not be said, both are CANDIDATE


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One conjunction: a signature with its constants, in the order of `signature.key` and `signature.residual`."""

    signature: Signature
    key: tuple[Constant, ...]
    constants: tuple[Constant | tuple[Constant, ...], ...]

    @property
    def is_of_doubt(self) -> bool:
        """Whether only events meet it whose value at an operand of the key the matcher does not know."""
        return any(part.is_doubt(constant) for part, constant in zip(self.signature.key, self.key, strict=True))


SCAN_CANDIDATE = Signature(key=(), residual=(), exact=False)
"""The shape of last resort: every event of the broker is a CANDIDATE, cel-cpp decides."""


@dataclass(frozen=True, slots=True)
class CompiledFilter:
    """A filter as everything after admission sees it.

    `sure_bytes` are attributes and data of the largest event on which cel-cpp surely evaluates the filter. It may
    refuse a larger one as too costly; a MATCH of such an event is settled by cel-cpp before its delivery. `ceiling` is
    what the right to a broker's events lets through: canonical CEL that is a part of `cel`, empty for no bound.
    """

    cel: str  # canonical CEL text: the meaning, and the key of every cache. "true" for a trigger without a filter
    rows: tuple[PlanRow, ...]  # conjunctions; empty when the filter is false for every event
    notes: tuple[str, ...] = ()  # why a conjunction is CANDIDATE or a scan, for people; empty when an index decides
    sure_bytes: int = UNBOUNDED_BYTES
    ceiling: str = ""
    within: str = ""  # how the filter stands to its ceiling, see `filter/tools/ceiling.py`; empty without one


# --- cost -----------------------------------------------------------------------------------------


class Scans(NamedTuple):
    """Rows that no look-up finds: comparisons in the matcher, evaluations by cel-cpp, for every event of the broker."""

    compared: int
    evaluated: int


def scans_of(plan: CompiledFilter) -> Scans:
    """The rows of a plan that every event of the broker meets; a filter that takes every event asks nothing."""
    rows = [row for row in plan.rows if not row.signature.key]
    compared = sum(row.signature.exact and bool(row.signature.residual) for row in rows)
    return Scans(compared, sum(not row.signature.exact for row in rows))


def filter_cost(plan: CompiledFilter) -> int:
    """The rows of a plan in the matcher's table, where a row that every event meets counts as many."""
    compared, evaluated = scans_of(plan)
    looked_up = len(plan.rows) - compared - evaluated
    return looked_up + compared * FILTER_COST_COMPARED + evaluated * FILTER_COST_EVALUATED
