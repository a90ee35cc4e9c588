"""Matchers of an event pattern as CEL tests of one value, which are never an error on any JSON."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from headgate.filter.cel.ast import FALSE, TRUE, Call, Compare, Comparison, In, ListOf, Literal, Name, Node, Not
from headgate.filter.cel.build import all_of, any_of, attribute, call, literal, method, one_of
from headgate.filter.dialects.eventpattern.rules import (
    Affix,
    AnythingBut,
    Cidr,
    Exact,
    IgnoreCase,
    Matcher,
    Numeric,
    Scalar,
    Wildcard,
)
from headgate_api.event import rfc3339

_NUMBER_TYPES: Final = ListOf((Name("int"), Name("uint"), Name("double")))
_SPECIAL: Final = re.compile(r"([^0-9A-Za-z_\s\u0080-\U0010ffff])")
_BESIDE_ASCII: Final = re.compile("[kKsS\u017f\u212a]")
"""Letters that simple folding makes equal to one of ASCII, or to one beyond it."""
_BOTH_CASES: Final = {letter: f"[{letter.lower()}{letter.upper()}]" for letter in "kKsS"}
_OCTET_BITS: Final = 8


def tests(value: Node, matchers: Iterable[Matcher], *, is_string: bool) -> Node:
    """Whether a matcher (no `Exists`) takes `value`; FALSE without any. `is_string`: its type need not be asked."""
    exact: dict[Scalar | tuple[type, Scalar], Literal] = {}
    others: dict[Node, None] = {}
    for matcher in matchers:
        if isinstance(matcher, Exact):
            exact[(type(matcher.value), matcher.value)] = literal(matcher.value)
        else:
            others[_test(value, matcher, is_string=is_string)] = None
    return any_of([*([one_of(value, tuple(exact.values()))] if exact else []), *others])


def _test(value: Node, matcher: Matcher, *, is_string: bool) -> Node:
    match matcher:
        case Exact():
            return one_of(value, (literal(matcher.value),))
        case Affix() | IgnoreCase() | Wildcard():
            return _of_string(value, _text_test(value, matcher), is_string=is_string)
        case Numeric(bounds):
            tested = all_of(Compare(Comparison(operator), value, literal(bound)) for operator, bound in bounds)
            if bounds[0][0] == "==":
                return tested
            return all_of((In(call("type", value), _NUMBER_TYPES), tested))
        case Cidr(network):
            return _of_string(value, _in_network(value, network), is_string=is_string)
        case AnythingBut(unwanted):
            return _negated(_any_unwanted(value, unwanted, is_string=is_string))
        case _:
            raise AssertionError(f"not asked of a value: {matcher}")


def _any_unwanted(value: Node, unwanted: tuple[Matcher, ...], *, is_string: bool) -> Node:
    """One of them matches; the type is asked once for all of them."""
    if isinstance(unwanted[0], Exact):
        return tests(value, unwanted, is_string=is_string)
    folded = [item.text.lower() for item in unwanted if isinstance(item, IgnoreCase) and item.text.isascii()]
    if len(folded) == len(unwanted):
        lowered = Call("lowerAscii", value, ())
        return _of_string(value, one_of(lowered, tuple(map(literal, folded))), is_string=is_string)
    found = any_of(_text_test(value, item) for item in unwanted if not isinstance(item, Exact))
    return _of_string(value, found, is_string=is_string)


def _negated(node: Node) -> Node:
    return TRUE if node == FALSE else FALSE if node == TRUE else Not(node)


def _of_string(value: Node, test: Node, *, is_string: bool) -> Node:
    """The test, with the type asked before it unless it is known or the test itself asks it."""
    if is_string or test == FALSE or (isinstance(test, Compare) and test.left == value):
        return test
    return all_of((Compare(Comparison.EQ, call("type", value), Name("string")), test))


def _text_test(value: Node, matcher: Matcher) -> Node:
    match matcher:
        case Affix(function, text, False):
            return method(value, function, text)
        case Affix(function, text):
            return _folded(value, text, function, *(("^", "") if function == "startsWith" else ("", "$")))
        case IgnoreCase(text):
            return _folded(value, text, "", "^", "$")
        case Wildcard(pieces):
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
    if first and last and any(first.endswith(last[:size]) for size in range(1, min(len(first), len(last)) + 1)):
        size = Compare(Comparison.GE, call("size", value), literal(len(first) + len(last)))
        return all_of((*known, size))
    return all_of(known)


def _quoted(text: str) -> str:
    """The text as a regular expression of RE2."""
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


def time_tests(matchers: Iterable[Matcher]) -> Node:
    """Whether one of the matchers takes the event's time.

    A whole timestamp is equal as an instant, and the beginning of one is a range of instants in UTC; everything else
    is asked of the time's canonical text in UTC.
    """
    return any_of(_time_test(matcher) for matcher in matchers)


def _time_test(matcher: Matcher) -> Node:
    match matcher:
        case Exact(value) if not isinstance(value, str):
            return FALSE
        case Numeric():
            return FALSE
        case AnythingBut((Exact(value), *_)) if not isinstance(value, str):
            return TRUE
        case Exact(str(text)) if rfc3339.micros(text) is not None:
            return _compared(Comparison.EQ, text)
        case Affix("startsWith", text, False):
            return _beginning(text) or _as_text(matcher)
        case AnythingBut(unwanted) if all(_is_instant(item) for item in unwanted):
            return Not(time_tests(unwanted))
        case AnythingBut((Affix("startsWith", text, False),)):
            within = _beginning(text)
            return _as_text(matcher) if within is None else Not(within)
        case _:
            return _as_text(matcher)


def _is_instant(matcher: Matcher) -> bool:
    return isinstance(matcher, Exact) and isinstance(matcher.value, str) and rfc3339.micros(matcher.value) is not None


def _as_text(matcher: Matcher) -> Node:
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
