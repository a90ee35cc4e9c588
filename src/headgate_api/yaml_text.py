"""YAML text as plain values: the events of libyaml's parser, bounded while they come, with the types of YAML 1.2.

libyaml leaves the meaning of scalars to its caller: `no`, `1:30` and a date stay the text that was written. The parser
holds the interpreter for one event at a time, so a body that is read in a thread holds up no other thread for longer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml
from yaml.cyaml import CParser
from yaml.error import Mark, MarkedYAMLError, YAMLError

from headgate_api.errors import InvalidInputError
from headgate_api.limits import YAML_DIRECTIVES_MAX

_TAGS: Final = "tag:yaml.org,2002:"
_MERGE: Final = "<<"
_WIDTH: Final = 2**31 - 1
"""No text is folded."""
_DIRECTIVE: Final = re.compile(r"^%", re.MULTILINE)
_BOOLEANS: Final = {text: text[0] in "tT" for text in ("true", "True", "TRUE", "false", "False", "FALSE")}
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_FLOAT: Final = re.compile(
    r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|[-+]?\.[0-9_]+(?:[eE][-+][0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)"
    r"|\.(?:nan|NaN|NAN)"
)
_INTEGER: Final = re.compile(r"[-+]?0b[01_]+|[-+]?0o?[0-7_]+|[-+]?[0-9][0-9_]*|[-+]?0x[0-9a-fA-F_]+")
_BASES: Final = {"0b": 2, "0o": 8, "0x": 16}


class YamlTextError(InvalidInputError):
    """A text is no YAML, or not what was expected of it; the message has the line."""

    code = "malformed-yaml"


@dataclass(frozen=True, slots=True)
class YamlLimits:
    """What a text may hold."""

    depth: int  # levels of nesting, aliases written out
    values: int | None  # of all documents together, aliases written out; None for as many as there are
    merges: bool  # whether merge keys (`<<`) are taken: a chain of them grows tenfold for every 65 bytes


def _invalid(problem: str, mark: Mark) -> MarkedYAMLError:
    """A rule of ours that the text breaks at a place."""
    return MarkedYAMLError(problem=problem, problem_mark=mark)


def documents(body: bytes, bounds: YamlLimits) -> Iterator[object]:
    """The documents of a text in UTF-8 that are not empty; raises YamlTextError for no YAML, and over its bounds."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise YamlTextError(f"the text is no UTF-8: {error.reason} at byte {error.start}") from error
    if len(_DIRECTIVE.findall(text)) > YAML_DIRECTIVES_MAX:
        raise YamlTextError(f"the text has more than {YAML_DIRECTIVES_MAX} lines that begin with %")
    try:
        for document in _Builder(bounds).documents(text):
            if document is not None:
                yield document
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise YamlTextError(f"the text is no YAML: {error.problem or error.context}{place}") from error
    except YAMLError as error:
        raise YamlTextError(f"the text is no YAML: {error}") from error


def only_document(body: bytes, bounds: YamlLimits) -> object:
    """The document of a text that has one; raises YamlTextError as `documents`, and for another number of them."""
    found = list(documents(body, bounds))
    if len(found) != 1:
        raise YamlTextError(f"the text holds {len(found)} documents, expected one")
    return found[0]


@dataclass(slots=True)
class _Open:
    """A list or an object whose end has not come."""

    value: dict[Any, Any] | list[Any]
    mark: Mark
    anchor: str | None  # its name for aliases
    size: int = 1  # values in it and itself, aliases written out
    height: int = 1  # levels below it and itself
    has_key: bool = False  # an object's next value belongs to `key`
    key: object = None
    merged: list[dict[Any, Any]] | None = None  # objects that merge keys named, in their order


class _Builder:
    """The values of one text. Nothing in it is recursive: a deep text costs no stack."""

    def __init__(self, bounds: YamlLimits) -> None:
        self._bounds = bounds
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[object, int, int]] = {}
        self._root: object = None
        self._count = 0
        self._merge = object()

    def documents(self, text: str) -> Iterator[object]:
        parser = CParser(text)
        while True:
            event = parser.get_event()
            match event:
                case yaml.ScalarEvent():
                    self._scalar(event)
                case yaml.MappingStartEvent():
                    self._begin(event, {}, "map")
                case yaml.SequenceStartEvent():
                    self._begin(event, [], "seq")
                case yaml.CollectionEndEvent():
                    self._end()
                case yaml.AliasEvent():
                    self._alias(event)
                case yaml.DocumentStartEvent():
                    self._root = None
                    self._anchors.clear()
                case yaml.DocumentEndEvent():
                    yield self._root
                case yaml.StreamEndEvent():
                    return

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        is_key = self._awaits_key()
        plain = event.implicit[0] and event.tag is None
        value: object
        if plain and event.value == _MERGE and is_key:
            value = self._merge
        elif plain:
            value = _made(_plain, event.value, event.start_mark)
        elif event.tag is None or event.tag == "!":
            value = event.value
        else:
            kind = event.tag.removeprefix(_TAGS)
            if kind not in _TAGGED:
                raise _invalid(f"the tag {event.tag[:80]!r} is not supported", event.start_mark)
            value = _made(_TAGGED[kind], event.value, event.start_mark)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, 1, 1)
        self._add(value, 1, 1, event.start_mark)

    def _begin(self, event: yaml.CollectionStartEvent, value: dict[Any, Any] | list[Any], kind: str) -> None:
        if event.tag not in (None, "!", _TAGS + kind):
            raise _invalid(f"the tag {event.tag[:80]!r} is not supported", event.start_mark)
        if self._awaits_key():
            raise _invalid("a key must be one word or text", event.start_mark)
        if event.anchor is not None:
            self._anchors.pop(event.anchor, None)  # an alias inside what it names is none
        self._take(1, 1, event.start_mark)
        self._open.append(_Open(value, event.start_mark, event.anchor))

    def _end(self) -> None:
        ended = self._open.pop()
        if ended.merged is not None and isinstance(ended.value, dict):
            for one in ended.merged:  # an object's own keys win, then those of the first
                for key, value in one.items():
                    ended.value.setdefault(key, value)
        if ended.anchor is not None:
            self._anchors[ended.anchor] = (ended.value, ended.size, ended.height)
        self._put(ended.value, ended.size, ended.height, ended.mark)

    def _alias(self, event: yaml.AliasEvent) -> None:
        found = self._anchors.get(event.anchor)
        if found is None:
            raise _invalid(f"there is no {event.anchor!r} that the alias could mean", event.start_mark)
        if self._awaits_key() and isinstance(found[0], dict | list):
            raise _invalid("a key must be one word or text", event.start_mark)
        self._add(*found, event.start_mark)

    def _awaits_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].value, dict) and not self._open[-1].has_key

    def _add(self, value: object, size: int, height: int, mark: Mark) -> None:
        if self._awaits_key():
            around = self._open[-1]
            if value is self._merge:
                if not self._bounds.merges:
                    raise _invalid("merge keys (<<) are not supported", mark)
                if around.merged is not None:
                    raise _invalid("there are two merge keys (<<)", mark)
            elif value in around.value:
                raise _invalid(f"the key {str(value)[:40]!r} is there twice", mark)
            around.has_key, around.key = True, value
            return
        self._take(size, height, mark)
        self._put(value, size, height, mark)

    def _take(self, size: int, height: int, mark: Mark) -> None:
        """Counts values, and refuses those that are too many or too deep."""
        self._count += size
        if self._bounds.values is not None and self._count > self._bounds.values:
            raise _invalid(f"it has more than {self._bounds.values} values", mark)
        if len(self._open) + height > self._bounds.depth:
            raise _invalid(f"it nests deeper than {self._bounds.depth} levels", mark)

    def _put(self, value: object, size: int, height: int, mark: Mark) -> None:
        if not self._open:
            self._root = value
            return
        around = self._open[-1]
        around.size += size
        around.height = max(around.height, height + 1)
        if isinstance(around.value, list):
            around.value.append(value)
            return
        if around.key is self._merge:
            around.merged = _merged(value, mark)
        else:
            around.value[around.key] = value
        around.has_key = False


def _merged(value: object, mark: Mark) -> list[dict[Any, Any]]:
    named = value if isinstance(value, list) else [value]
    objects = [one for one in named if isinstance(one, dict)]
    if len(objects) != len(named):
        raise _invalid("a merge key (<<) takes an object or a list of objects", mark)
    return objects


def _made(make: Callable[[str], object], text: str, mark: Mark) -> object:
    try:
        return make(text)
    except (ValueError, KeyError) as error:
        raise _invalid(f"{text[:40]!r} is no such value", mark) from error


def _plain(text: str) -> object:
    """A scalar without quotes and tag, by what it looks like."""
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text[0] in "-+.0123456789":
        if _INTEGER.fullmatch(text):
            return _integer(text)
        if _FLOAT.fullmatch(text):
            return _float(text)
    return text


def _integer(text: str) -> int:
    digits = text.replace("_", "")
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    base = _BASES.get(digits[:2], 10)
    return sign * int(digits if base == 10 else digits[2:], base)


def _float(text: str) -> float:
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


_TAGGED: Final[dict[str, Callable[[str], object]]] = {
    "str": str,
    "timestamp": str,
    "null": lambda _: None,
    "bool": _BOOLEANS.__getitem__,
    "int": _integer,
    "float": _float,
}
"""Tags of scalars that JSON's types have room for."""


class _Writer(yaml.CSafeDumper):  # type: ignore[misc]  # has no types
    """Writes texts so that they are read as texts, here and by readers of YAML 1.1; several lines as a block."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        try:
            is_plain = text != "" and _plain(text) == text
        except ValueError:  # a number of too many digits
            is_plain = False
        style = None if is_plain else '"'
        style = "|" if "\n" in text else style
        return self.represent_scalar(f"{_TAGS}str", text, style)


_Writer.add_representer(str, _Writer.represent_text)


def written(value: object) -> str:
    """A value of JSON as a document of YAML, its names in their order."""
    return str(yaml.dump(value, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=_WIDTH))
