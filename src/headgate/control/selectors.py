"""Kubernetes' label and field selectors."""

from __future__ import annotations

import re
from typing import Final

from headgate.control.errors import MalformedObjectError
from headgate.control.pages import BodyTest, Selector
from headgate.limits import SEARCH_CHARS_MAX, SELECTOR_CHARS_MAX

_NAME: Final = r"[A-Za-z0-9][-A-Za-z0-9_./]*"
_VALUE: Final = r"[-A-Za-z0-9_.]*"
_SET: Final = re.compile(rf"\s*({_NAME})\s+(in|notin)\s*\(([^()]*)\)\s*", re.ASCII)
_EQUAL: Final = re.compile(rf"\s*({_NAME})\s*(==|=|!=)\s*({_VALUE})\s*", re.ASCII)
_EXISTS: Final = re.compile(rf"\s*(!?)\s*({_NAME})\s*", re.ASCII)


def label_selector(text: str) -> Selector | None:
    """A predicate on labels.

    Args:
        text: For example `app=x,tier!=gold,zone in (a,b),!old`.

    Returns:
        None when it wants everything.

    Raises:
        MalformedObjectError: It is no selector.
    """
    if len(text) > SELECTOR_CHARS_MAX:
        raise MalformedObjectError(f"a selector has at most {SELECTOR_CHARS_MAX} characters")
    if not text.strip():
        return None
    tests: list[Selector] = []
    at = 0
    while at < len(text):
        at, test = _requirement(text, at)
        tests.append(test)
        if at < len(text):
            if text[at] != "," or at + 1 == len(text):
                raise _unreadable(text, at)
            at += 1
    return lambda labels: all(test(labels) for test in tests)


def _requirement(text: str, at: int) -> tuple[int, Selector]:
    for pattern, make in ((_SET, _set_test), (_EQUAL, _equal_test), (_EXISTS, _exists_test)):
        found = pattern.match(text, at)
        if found is not None and (found.end() == len(text) or text[found.end()] == ","):
            return found.end(), make(found)
    raise _unreadable(text, at)


def _set_test(found: re.Match[str]) -> Selector:
    key, wanted = found[1], found[2] == "in"
    values = frozenset(value.strip() for value in found[3].split(","))
    # As in Kubernetes, `notin` holds for an object without the label.
    return lambda labels: (labels[key] in values) is wanted if key in labels else not wanted


def _equal_test(found: re.Match[str]) -> Selector:
    key, wanted, value = found[1], found[2] != "!=", found[3]
    return lambda labels: (labels.get(key) == value) is wanted


def _exists_test(found: re.Match[str]) -> Selector:
    wanted, key = not found[1], found[2]
    return lambda labels: (key in labels) is wanted


def _unreadable(text: str, at: int) -> MalformedObjectError:
    return MalformedObjectError(f"unable to parse label selector {text!r} at character {at + 1}")


def text_search(text: str) -> BodyTest | None:
    """A predicate on an object: its name and its spec hold every word of a text, whatever the case.

    Args:
        text: Words, separated by blanks.

    Returns:
        None when it wants everything.

    Raises:
        MalformedObjectError: The text is too long.
    """
    if len(text) > SEARCH_CHARS_MAX:
        raise MalformedObjectError(f"a search has at most {SEARCH_CHARS_MAX} characters")
    words = [word.encode("utf-8", "surrogatepass") for word in text.lower().split()]
    if not words:
        return None

    def found(name: str, body: bytes) -> bool:
        # In JSON text the quotes within strings are escaped: no value of a field can pass for the begin of a spec.
        start = body.find(b'"spec":{')
        end = body.rfind(b'"status":{') if start >= 0 else 0
        written = name.encode() + b"\n" + (body[start : end if end > start else None].lower() if start >= 0 else b"")
        return all(word in written for word in words)

    return found


def field_selector(text: str) -> tuple[str | None, str | None]:
    """The exact name and namespace that a field selector asks for, None where it asks for nothing.

    Raises:
        MalformedObjectError: It asks for another field, or not by `=`.
    """
    if len(text) > SELECTOR_CHARS_MAX:
        raise MalformedObjectError(f"a selector has at most {SELECTOR_CHARS_MAX} characters")
    name = namespace = None
    for part in filter(None, text.split(",")):
        split = next((part.partition(one) for one in ("!=", "==", "=") if one in part), (part, "", ""))
        field, operator, value = map(str.strip, split)
        if field not in ("metadata.name", "metadata.namespace") or operator == "!=" or not operator:
            raise MalformedObjectError(f"field label not supported: {part!r}", hint="use metadata.name=NAME")
        # Nothing has two names or lies in two namespaces; no object has the empty name.
        if field == "metadata.name":
            name = value if name in (None, value) else ""
        else:
            namespace = value if namespace in (None, value) else ""
    return name, namespace
