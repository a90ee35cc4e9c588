"""`eventPattern`: an event pattern of Amazon EventBridge, as a JSON object or its text.

The pattern's tree is the CloudEvent in structured form: `detail` (or `data`) is the data, `detail-type` (or `type`) the
type, every other name at the top that attribute or extension. Attributes are scalars and are asked by plain CEL; paths
into the data go through arrays (`json.values`), and several fields below one member are asked of one and the same
object (`json.objects`), as event-ruler does.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from headgate.filter.cel.ast import FALSE, TRUE, Call, Compare, Comparison, ListOf, Literal, Name, Node, Not
from headgate.filter.cel.build import (
    all_of,
    any_of,
    attribute,
    call,
    exists,
    has_type,
    is_written_plainly,
    literal,
    method,
    one_of,
    present,
)
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.like import overlap
from headgate.filter.cel.unparse import unparse
from headgate.filter.dialects.eventpattern import rules
from headgate_api.event import rfc3339
from headgate_api.event.attributes import TEXT_ATTRIBUTES

Bind = Callable[[rules.Field], tuple[str, ...]]
"""Where a field of a pattern lies: `("ce", attribute)` or `("data", member, ...)`; raises FilterError for nowhere."""

_RENAMED: Final = {"detail-type": "type"}
_DATA: Final = ("detail", "data")
_DOTTED_MAX: Final = 3
"""Names with dots in one path: each may be one member or several, which doubles the paths to look at."""


def event_pattern(value: object, field: str) -> str:
    """CEL text of an `eventPattern`; FilterError for none, a name that no attribute can have, or over a limit."""
    return pattern_to_cel(value, field, cloud_event)


def pattern_to_cel(value: object, field: str, bind: Bind) -> str:
    """CEL text of a pattern whose paths are bound by `bind`."""
    items = _bound(rules.items_of(value, field), bind)
    try:
        return unparse(_all(rules.arranged(items)))
    except FilterError as error:
        raise error.at_field(field) from None


def cloud_event(field: rules.Field) -> tuple[str, ...]:
    """The tree is the CloudEvent: `detail` is the data, other names are attributes."""
    first, *rest = field.names
    for root in _DATA:
        if first == root:
            return ("data", *rest)
        if first.startswith(f"{root}."):
            return ("data", first.removeprefix(f"{root}."), *rest)
    hint = "the event's data is under detail"
    if rest:
        raise field.place.fault(f"{first} is an attribute and has no members", hint=hint)
    name = _RENAMED.get(first, first)
    if not is_written_plainly(name):
        raise field.place.fault("is no attribute name (lower-case letters and digits)", hint=hint)
    return ("ce", name)


def _bound(items: tuple[rules.Item, ...], bind: Bind) -> tuple[rules.Item, ...]:
    made: list[rules.Item] = []
    for item in items:
        if isinstance(item, rules.AnyOf):
            made.append(rules.AnyOf(tuple(_bound(branch, bind) for branch in item.branches)))
            continue
        if sum("." in name for name in item.names) > _DOTTED_MAX:
            raise item.place.fault(f"has more than {_DOTTED_MAX} names with dots on its path")
        made.append(replace(item, names=bind(item)))
    return tuple(made)


def _all(items: tuple[rules.Item, ...]) -> Node:
    """Every item holds: attributes first, they are cheapest, then the data, then alternatives."""
    fields = [item for item in items if isinstance(item, rules.Field)]
    data, members = Name("data"), [replace(f, names=f.names[1:]) for f in fields if f.names[0] == "data"]
    return all_of(
        [
            *(_attribute(field) for field in fields if field.names[0] == "ce"),
            *(_one_of(data, _choices(data, block, depth=0)) for block in _blocks(members)),
            *(any_of(map(_all, item.branches)) for item in items if isinstance(item, rules.AnyOf)),
        ]
    )


def _attribute(field: rules.Field) -> Node:
    name = field.names[1]
    asked = [one for one in field.matchers if not isinstance(one, rules.Exists) and one != rules.Exact(None)]
    value = attribute(name)
    found = time_tests(asked) if name == "time" else tests(value, asked, is_string=name in TEXT_ATTRIBUTES)
    there = present(name)
    if rules.Exists(True) in field.matchers:
        found = TRUE
    matched = FALSE if found == FALSE else all_of((there, found))
    if rules.Exists(False) not in field.matchers:
        return matched
    return TRUE if rules.Exists(True) in field.matchers else any_of((_negated(there), found))


@dataclass(frozen=True, slots=True)
class _Choice:
    """A way in which all of some fields match.

    At the paths `absent` there must be no value, in the event around, as no element of an array was chosen there.
    Nothing is `asked` where all fields are absent.
    """

    absent: tuple[tuple[str, ...], ...]
    asked: tuple[Node, ...]


def _one_of(root: Node, choices: list[_Choice]) -> Node:
    return any_of(all_of((*choice.asked, *(_absent(root, path) for path in choice.absent))) for choice in choices)


def _blocks(fields: list[rules.Field]) -> list[list[rules.Field]]:
    """Fields that are asked together, in event-ruler's order: by their paths, in UTF-16."""
    groups: dict[tuple[str, ...], list[rules.Field]] = {}
    for field in sorted(fields, key=lambda field: ".".join(field.names).encode("utf-16-be")):
        groups.setdefault(field.names[:1], []).append(field)
    blocks = []
    for group in groups.values():
        shared = _shared(group)
        blocks += [[field] for field in group if len(field.names) == shared]
        blocks += [below] if (below := [field for field in group if len(field.names) > shared]) else []
    return blocks


def _shared(fields: list[rules.Field]) -> int:
    """Names with which all of the paths begin."""
    columns = zip(*(field.names for field in fields), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda names: len(set(names)) == 1, columns))


def _choices(root: Node, fields: list[rules.Field], depth: int) -> list[_Choice]:
    """The ways in which fields that begin with the same name match below `root`.

    As in event-ruler a field is absent from what was chosen by the fields before it: from the element of the array
    where one of them has its value, from all of the elements where none has.
    """
    if len(fields) == 1:
        return _leaf(root, fields[0])
    shared = _shared(fields)
    prefix = fields[0].names[:shared]
    element = Name("o" if depth == 0 else f"o{depth + 1}")
    chosen: list[_Choice] = []
    none: tuple[tuple[str, ...], ...] | None = ()
    for block in _blocks([replace(field, names=field.names[shared:]) for field in fields]):
        choices = _choices(element, block, depth + 1)
        here = _one_of(element, choices)
        chosen = [_Choice(before.absent, (*before.asked, here)) for before in chosen]
        if none is not None:
            chosen += [_Choice((*none, *choice.absent), choice.asked) for choice in choices if choice.asked]
            absent = [choice.absent for choice in choices if not choice.asked]
            none = (*none, *absent[0]) if absent else None
    made = [
        _Choice(_below(prefix, choice.absent), (_exists("json.objects", root, prefix, element, all_of(choice.asked)),))
        for choice in chosen
    ]
    return made if none is None else [*made, _Choice(_below(prefix, none), ())]


def _below(prefix: tuple[str, ...], paths: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    return tuple((*prefix, *path) for path in paths)


def _leaf(root: Node, field: rules.Field) -> list[_Choice]:
    """One of the matchers takes one of the scalars at a path, or there is none and that is asked for."""
    matchers = [matcher for matcher in field.matchers if not isinstance(matcher, rules.Exists)]
    choices: list[_Choice] = []
    if rules.Exists(True) in field.matchers:
        sizes = [call("size", _at("json.values", root, path)) for path in _spellings(field.names)]
        choices.append(_Choice((), (any_of(Compare(Comparison.GT, size, literal(0)) for size in sizes),)))
    elif matchers:
        tested = tests(Name("v"), matchers, is_string=False)
        choices.append(_Choice((), (_exists("json.values", root, field.names, Name("v"), tested),)))
    if rules.Exists(False) in field.matchers:
        choices.append(_Choice((field.names,), ()))
    return choices


def _absent(root: Node, names: tuple[str, ...]) -> Node:
    sizes = (call("size", _at("json.values", root, path)) for path in _spellings(names))
    return all_of(Compare(Comparison.EQ, size, literal(0)) for size in sizes)


def _exists(function: str, root: Node, names: tuple[str, ...], variable: Name, condition: Node) -> Node:
    if condition == FALSE:
        return FALSE
    return any_of(exists(_at(function, root, path), variable.name, condition) for path in _spellings(names))


def _at(function: str, root: Node, names: tuple[str, ...]) -> Node:
    return call(function, root, ListOf(tuple(map(literal, names))))


def _spellings(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Paths that a written path may mean: a name with dots is one member, or one a part."""
    choices = [[(name,), tuple(name.split("."))] if "." in name else [(name,)] for name in names]
    return [tuple(itertools.chain.from_iterable(choice)) for choice in itertools.product(*choices)]


# --- matchers -------------------------------------------------------------------------------------
# As tests of one value, which are never an error on any JSON.

_SPECIAL: Final = re.compile(r"([^0-9A-Za-z_\s\u0080-\U0010ffff])")
_BESIDE_ASCII: Final = re.compile("[kKsS\u017f\u212a]")
"""Letters that simple folding makes equal to one of ASCII, or to one beyond it."""
_BOTH_CASES: Final = {letter: f"[{letter.lower()}{letter.upper()}]" for letter in "kKsS"}
_OCTET_BITS: Final = 8


def tests(value: Node, matchers: Iterable[rules.Matcher], *, is_string: bool) -> Node:
    """Whether a matcher (no `Exists`) takes `value`; FALSE without any. `is_string`: its type need not be asked."""
    exact: dict[rules.Scalar | tuple[type, rules.Scalar], Literal] = {}
    others: dict[Node, None] = {}
    for matcher in matchers:
        if isinstance(matcher, rules.Exact):
            exact[(type(matcher.value), matcher.value)] = literal(matcher.value)
        else:
            others[_test(value, matcher, is_string=is_string)] = None
    return any_of([*([one_of(value, tuple(exact.values()))] if exact else []), *others])


def _test(value: Node, matcher: rules.Matcher, *, is_string: bool) -> Node:
    match matcher:
        case rules.Exact():
            return one_of(value, (literal(matcher.value),))
        case rules.Affix() | rules.IgnoreCase() | rules.Wildcard():
            return _of_string(value, _text_test(value, matcher), is_string=is_string)
        case rules.Numeric(bounds):
            tested = all_of(Compare(Comparison(operator), value, literal(bound)) for operator, bound in bounds)
            if bounds[0][0] == "==":
                return tested
            return all_of((has_type(value, "int", "uint", "double"), tested))
        case rules.Cidr(network):
            return _of_string(value, _in_network(value, network), is_string=is_string)
        case rules.AnythingBut(unwanted):
            return _negated(_any_unwanted(value, unwanted, is_string=is_string))
        case _:
            raise AssertionError(f"not asked of a value: {matcher}")


def _any_unwanted(value: Node, unwanted: tuple[rules.Matcher, ...], *, is_string: bool) -> Node:
    """One of them matches; the type is asked once for all of them."""
    if isinstance(unwanted[0], rules.Exact):
        return tests(value, unwanted, is_string=is_string)
    folded = [item.text.lower() for item in unwanted if isinstance(item, rules.IgnoreCase) and item.text.isascii()]
    if len(folded) == len(unwanted):
        lowered = Call("lowerAscii", value, ())
        return _of_string(value, one_of(lowered, tuple(map(literal, folded))), is_string=is_string)
    found = any_of(_text_test(value, item) for item in unwanted if not isinstance(item, rules.Exact))
    return _of_string(value, found, is_string=is_string)


def _negated(node: Node) -> Node:
    return TRUE if node == FALSE else FALSE if node == TRUE else Not(node)


def _of_string(value: Node, test: Node, *, is_string: bool) -> Node:
    """The test, with the type asked before it unless it is known or the test itself asks it."""
    if is_string or test == FALSE or (isinstance(test, Compare) and test.left == value):
        return test
    return all_of((has_type(value, "string"), test))


def _text_test(value: Node, matcher: rules.Matcher) -> Node:
    match matcher:
        case rules.Affix(function, text, False):
            return method(value, function, text)
        case rules.Affix(function, text):
            return _folded(value, text, function, *(("^", "") if function == "startsWith" else ("", "$")))
        case rules.IgnoreCase(text):
            return _folded(value, text, "", "^", "$")
        case rules.Wildcard(pieces):
            return _wildcard(value, pieces)
        case _:
            raise AssertionError(f"no test of text: {matcher}")


def _folded(value: Node, text: str, name: str, begin: str, end: str) -> Node:
    """Without regard to case: ASCII text by `lowerAscii`, other text by a regular expression.

    Letters of ASCII have the case of ASCII alone: in Unicode's simple folding the Kelvin sign is a k and the long s an
    s, and a text would be equal to another that is not equal to it. All else folds as Unicode's simple folding has it.
    """
    if not text.isascii():
        folded = _BESIDE_ASCII.sub(lambda found: f"(?-i:{_BOTH_CASES.get(found[0], found[0])})", _quoted(text))
        return method(value, "matches", f"(?i){begin}{folded}{end}")
    lowered = Call("lowerAscii", value, ())
    if name:
        return method(lowered, name, text.lower())
    return Compare(Comparison.EQ, lowered, literal(text.lower()))


def _wildcard(value: Node, pieces: tuple[str, ...]) -> Node:
    first, *middle, last = pieces if len(pieces) > 1 else (pieces[0], "")
    if len(pieces) == 1:
        return Compare(Comparison.EQ, value, literal(first))
    known = [method(value, "startsWith", first)] if first else []
    known += [method(value, "endsWith", last)] if last else []
    if len(middle) == 1 and not first and not last:
        return method(value, "contains", middle[0])
    if middle:
        text = "^" + ".*".join(map(_quoted, pieces)) + "$"
        return all_of((*known, method(value, "matches", f"(?s){text}")))
    if first and last and overlap(first, last):
        size = Compare(Comparison.GE, call("size", value), literal(len(first) + len(last)))
        return all_of((*known, size))
    return all_of(known)


def _quoted(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _in_network(value: Node, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> Node:
    """An IPv4 address has one spelling, so its whole octets are a prefix that an index can find."""
    inside = call("ip.within", value, literal(str(network)))
    if network.version == 6 or network.prefixlen < _OCTET_BITS:
        return inside
    octets = str(network.network_address).split(".")[: network.prefixlen // _OCTET_BITS]
    if len(octets) == 4:
        return Compare(Comparison.EQ, value, literal(".".join(octets)))
    return all_of((method(value, "startsWith", ".".join(octets) + "."), inside))


# --- time -----------------------------------------------------------------------------------------
# `ce.time` is an instant and no text.

_TIME: Final = attribute("time")
_BEGINNING: Final = re.compile(r"([0-9]{4})(?:-|-([0-9]{2})(?:-|-([0-9]{2})(?:T|T([0-9]{2})(?::|:([0-9]{2}):?)?)?)?)?")
_STEPS: Final = (None, None, timedelta(days=1), timedelta(hours=1), timedelta(minutes=1))


def time_tests(matchers: Iterable[rules.Matcher]) -> Node:
    """Whether one of the matchers takes the event's time.

    A whole timestamp is equal as an instant, and the beginning of one is a range of instants in UTC; everything else
    is asked of the time's canonical text in UTC.
    """
    return any_of(_time_test(matcher) for matcher in matchers)


def _time_test(matcher: rules.Matcher) -> Node:
    match matcher:
        case rules.Exact(value) if not isinstance(value, str):
            return FALSE
        case rules.Numeric():
            return FALSE
        case rules.AnythingBut((rules.Exact(value), *_)) if not isinstance(value, str):
            return TRUE
        case rules.Exact(str(text)) if rfc3339.micros(text) is not None:
            return _compared(Comparison.EQ, text)
        case rules.Affix("startsWith", text, False):
            return _beginning(text) or _as_text(matcher)
        case rules.AnythingBut(unwanted) if all(_is_instant(item) for item in unwanted):
            return Not(time_tests(unwanted))
        case rules.AnythingBut((rules.Affix("startsWith", text, False),)):
            within = _beginning(text)
            return _as_text(matcher) if within is None else Not(within)
        case _:
            return _as_text(matcher)


def _is_instant(matcher: rules.Matcher) -> bool:
    text = matcher.value if isinstance(matcher, rules.Exact) else None
    return isinstance(text, str) and rfc3339.micros(text) is not None


def _as_text(matcher: rules.Matcher) -> Node:
    return tests(call("string", _TIME), (matcher,), is_string=True)


def _compared(comparison: Comparison, text: str) -> Node:
    return Compare(comparison, _TIME, call("timestamp", literal(text)))


def _beginning(text: str) -> Node | None:
    """The range of instants whose text begins so; None when it is no plain range."""
    found = _BEGINNING.fullmatch(text)
    if found is None:
        return None
    given = [int(part) for part in found.groups() if part is not None]
    year, month, day, hour, minute = given + [0, 1, 1, 0, 0][len(given) :]
    try:
        start = datetime(year, month, day, hour, minute, tzinfo=UTC)
        step = _STEPS[len(given) - 1]
        if step is not None:
            end = start + step
        else:
            end = start.replace(year=year + 1) if len(given) == 1 or month == 12 else start.replace(month=month + 1)
            end = end.replace(month=1) if len(given) == 2 and month == 12 else end
    except (ValueError, OverflowError):
        return None
    return all_of((_compared(Comparison.GE, _instant_text(start)), _compared(Comparison.LT, _instant_text(end))))


def _instant_text(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0")
