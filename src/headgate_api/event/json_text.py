"""Checks that a JSON text means the same to every parser that will read it.

Filters are evaluated by cel-cpp on what Python decoded and by Spark on the bytes. What the two would read differently
is refused at the door: duplicate keys, U+0000 and lone surrogates in strings, numbers that no double can hold, deep
nesting, too long numbers and names. Dear checks run only where a cheap scan of the bytes finds that they could fail.
Where `headgate_native` is installed, what it finds plain breaks no rule; this module alone says what is wrong.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from itertools import accumulate
from typing import Final, NoReturn, TypeVar, overload

import msgspec

from headgate_api import limits

try:
    from headgate_native import containers as _containers
    from headgate_native import is_plain
except (ImportError, OSError):  # not there, or built for another machine: nothing but slower

    def is_plain(text: bytes) -> bool:
        """True: the text is JSON that breaks no rule of this module. False: perhaps it is, too."""
        return False

    def _containers(text: bytes) -> int:
        return len(text) - len(text.translate(None, b"[{"))  # two counts take half as long again


_NAME_CHARS_SHOWN: Final = 64
_T = TypeVar("_T")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
NUL_ESCAPED: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""Where a JSON text's string holds U+0000; a backslash that is itself escaped and then the letters u0000 are none."""
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # int8: +1, +1, -1, -1
_OF_NUMBERS: Final = b"-+.eE0123456789"
_SPACE: Final = b" \t\r\n"
_QUOTE: Final = b'"'


class MalformedJsonError(ValueError):
    """The text is not JSON (RFC 8259, UTF-8)."""


class AmbiguousJsonError(ValueError):
    """The text is JSON, but breaks a rule that makes its meaning the same everywhere; the message is the rule."""


class ComplexJsonError(AmbiguousJsonError):
    """The text has more arrays and objects than are decoded in one go: each costs as much as many bytes."""


def allow_deep_json() -> None:
    """Raises Python's recursion limit to what documents of JSON_DEPTH_MAX levels need; for the start of a process.

    msgspec and the conversion to CEL count their recursion against that limit, together with the frames of their
    callers, and its default is 1,000. These frames are small: 4,000 of them are far below the smallest thread stack.
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 4 * limits.JSON_DEPTH_MAX))


def parse(text: bytes, longest: int | None = None) -> object:
    """Decodes a JSON text and checks all rules of this module but its depth, for which see `check_depth`.

    `longest` says how many bytes a number or a name may have at most, where the caller knows.
    Raises MalformedJsonError where it is not JSON, AmbiguousJsonError where it is JSON that breaks a rule.
    """
    try:
        return _parse(text, len(text) if longest is None else longest)
    except RecursionError:  # of whichever pass over the text goes deepest
        _refuse_depth()


def _parse(text: bytes, longest: int) -> object:
    if is_complex(text):
        raise ComplexJsonError(f"JSON must not have more than {limits.JSON_CONTAINERS_MAX} arrays and objects")
    try:
        tree: object = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _refuse(text, error)
    colons_escaped = False
    if b"\\" in text and b"\\u0" in text:
        if b"\\u0000" in text and NUL_ESCAPED.search(text) is not None:
            raise AmbiguousJsonError("a string must not hold U+0000")
        colons_escaped = b"\\u003a" in text or b"\\u003A" in text
    if colons_escaped or may_repeat_a_member(text, tree):
        _refuse_repeated(_repeated(text))
    if longest > limits.JSON_NUMBER_CHARS_MAX:
        _check_lengths(text)
    return tree


def check(text: bytes) -> None:
    """Checks all rules of this module; raises what `parse` and `check_depth` raise."""
    if not is_plain(text):
        parse(text)
        check_depth(text)


def is_light(text: bytes) -> bool:
    """Whether decoding a text takes so little that an event loop can do it: by its bytes, arrays and objects."""
    size = len(text)
    if size <= 2 * limits.DECODE_CONTAINERS_INLINE:
        return True
    return size <= limits.DECODE_BYTES_INLINE and _containers(text) <= limits.DECODE_CONTAINERS_INLINE


def _without_escapes(text: bytes) -> bytes:
    """As long as the text, and its quotes alternate: one begins a string, the next one ends it."""
    return text.replace(b"\\\\", b"--").replace(b'\\"', b"--") if b"\\" in text else text


def _without_strings(text: bytes, instead: bytes = b"") -> bytes:
    return instead.join(_without_escapes(text).split(_QUOTE)[::2])


def is_complex(text: bytes) -> bool:
    """Whether a text has more arrays and objects than are decoded in one go."""
    if len(text) <= 2 * limits.JSON_CONTAINERS_MAX or _containers(text) <= limits.JSON_CONTAINERS_MAX:
        return False  # also with the brackets in its strings
    return _containers(_without_strings(text)) > limits.JSON_CONTAINERS_MAX


def check_depth(text: bytes) -> None:
    """Refuses a well-formed JSON text that is nested deeper than JSON_DEPTH_MAX, by AmbiguousJsonError."""
    if len(text) <= 2 * limits.JSON_DEPTH_MAX or _containers(text) <= limits.JSON_DEPTH_MAX:
        return
    if _deepest(_without_strings(text).translate(_STEPS, _NOT_BRACKETS)) > limits.JSON_DEPTH_MAX:
        _refuse_depth()


def _deepest(steps: bytes) -> int:
    """The largest sum of leading steps, which are int8."""
    try:
        import pyarrow as pa  # here, because clients that read events seldom need it, and it takes 0.1 s
        import pyarrow.compute as pc
    except ImportError:  # headgate-client comes without; only a server reads so much that the factor of ten matters
        return max(accumulate(memoryview(steps).cast("b")), default=0)
    numbers = pa.Array.from_buffers(pa.int8(), len(steps), [None, pa.py_buffer(steps)])
    return pc.max(pc.cumulative_sum(numbers.cast(pa.int32()))).as_py() if steps else 0


def may_repeat_a_member(text: bytes, tree: object) -> bool:
    """False: no object of the text has two members of one name.

    Every member has one colon outside its strings, and colons inside strings are kept, unless they were escaped. So
    fewer colons in the text made from the tree mean that a member was dropped for a later one of the same name.

    `text` has no escaped colons; `tree` is what msgspec made of it. A struct must leave out what was not there.
    """
    again = _encode(tree)
    return again != text and again.count(b":") != text.count(b":")


class _Members(list[tuple[str, object]]):
    """The members of an object, also those of one name."""


def repeated_members(text: bytes, tree: object) -> Iterator[str]:
    """The members that an object of a JSON text has again, as paths such as `spec.filters[0].exact`.

    `tree` is what msgspec made of it.
    """
    if b"\\u003a" in text or b"\\u003A" in text or may_repeat_a_member(text, tree):
        yield from _repeated(text)


def _repeated(text: bytes) -> Iterator[str]:
    repeats = False

    def members(pairs: list[tuple[str, object]]) -> _Members:
        nonlocal repeats
        repeats = repeats or len(dict(pairs)) < len(pairs)
        return _Members(pairs)

    root = json.loads(text.decode(), object_pairs_hook=members, parse_int=str, parse_float=str)
    if not repeats:
        return
    around = [("", _steps(root))]  # a deep text costs no stack
    while around:
        for step, again, value in around[-1][1]:
            if again:
                yield ("".join(each for each, _ in around) + step).removeprefix(".")
            if isinstance(value, list):
                around.append((step, _steps(value)))
                break
        else:
            around.pop()


def _steps(value: object) -> Iterator[tuple[str, bool, object]]:
    """What lies in an object or a list: the step there, whether the name was there before, and the value."""
    if isinstance(value, _Members):
        names: set[str] = set()
        for name, inner in value:
            yield f".{name[:_NAME_CHARS_SHOWN]}", name in names, inner
            names.add(name)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield f"[{number}]", False, inner


@overload
def decode_strictly(text: bytes, type_: type[_T]) -> _T: ...
@overload
def decode_strictly(text: bytes, type_: object) -> object: ...
def decode_strictly(text: bytes, type_: object) -> object:
    """Decodes a JSON text to a type, as msgspec does it; AmbiguousJsonError where an object has a member twice."""
    _refuse_repeated(repeated_members(text, _decode(text)))
    return msgspec.json.decode(text, type=type_)


def _check_lengths(text: bytes) -> None:
    """Refuses a well-formed JSON text with a number or a name that Spark's parser does not take."""
    if _has_long_number(text) and _has_long_number(_without_strings(text, _QUOTE)):
        raise AmbiguousJsonError(
            f"a number must not be written with more than {limits.JSON_NUMBER_CHARS_MAX} characters"
        )
    if len(text) > limits.JSON_NAME_CHARS_MAX and any(map(_is_long, _long_names(text))):
        raise AmbiguousJsonError(f"a member's name must not be longer than {limits.JSON_NAME_CHARS_MAX} characters")


def _has_long_number(text: bytes) -> bool:
    """Whether more than JSON_NUMBER_CHARS_MAX characters of numbers stand in a row: looks at one in so many places."""
    size, at = limits.JSON_NUMBER_CHARS_MAX, limits.JSON_NUMBER_CHARS_MAX
    while at < len(text):
        before, behind = text[at - size : at], text[at : at + size + 1]
        left = len(before) - len(before.rstrip(_OF_NUMBERS))
        right = len(behind) - len(behind.lstrip(_OF_NUMBERS))
        if right and left + right > size:
            return True
        at += right + size + 1 - (0 if right else left)
    return False


def _long_names(text: bytes) -> Iterator[bytes]:
    """Names of members, as written, with more than JSON_NAME_CHARS_MAX bytes: looks at one in so many places."""
    quotes = _without_escapes(text)
    at = limits.JSON_NAME_CHARS_MAX
    while at < len(quotes) and (end := quotes.find(_QUOTE, at)) >= 0:
        begin = quotes.rfind(_QUOTE, 0, at)
        is_long = begin >= 0 and end - begin > limits.JSON_NAME_CHARS_MAX + 1
        if is_long and quotes[end + 1 :].lstrip(_SPACE)[:1] == b":" and quotes.count(_QUOTE, 0, begin) % 2 == 0:
            yield text[begin : end + 1]
        at = end + 1 + limits.JSON_NAME_CHARS_MAX


def _is_long(name: bytes) -> bool:
    return len(json.loads(name).encode("utf-16-le")) // 2 > limits.JSON_NAME_CHARS_MAX


def _refuse_depth() -> NoReturn:
    raise AmbiguousJsonError(f"JSON must not be nested deeper than {limits.JSON_DEPTH_MAX}") from None


def _refuse(text: bytes, error: Exception) -> NoReturn:
    """Says why msgspec did not take the text: the standard library's parser is the more lenient one.

    It takes lone surrogates, and here also numbers of any size. What it takes is JSON, what it refuses is none.
    """
    try:
        json.loads(text.decode(), parse_int=str, parse_float=str, parse_constant=refuse_constant)
    except ValueError:
        raise MalformedJsonError(str(error)) from None
    if isinstance(error, msgspec.ValidationError):
        raise AmbiguousJsonError("a number must be within the range of a double") from None
    raise AmbiguousJsonError("a string must not hold a lone surrogate") from None


def refuse_constant(name: str) -> NoReturn:
    """What Python's parser is to do about `NaN` and its kin, which it would take."""
    raise ValueError(f"{name} is no JSON")


def _refuse_repeated(paths: Iterator[str]) -> None:
    for path in paths:
        raise AmbiguousJsonError(f"an object must not have the member {path!r} twice")


# --- where the fault is ---------------------------------------------------------------------------
# The attribute and event that made a JSON text invalid; for error messages only.


_decoder: Final = json.JSONDecoder(parse_int=str, parse_float=str)
_WHITE: Final = re.compile(r"[ \t\r\n]*")


def locate(body: bytes) -> tuple[int | None, str]:
    """Looks for the first member whose value or name `parse` has refused as ambiguous, or that appears twice.

    Gives the event's position in its batch, None outside a batch, and the attribute's name, "" where there is none; of
    a name that no attribute can have what can be shown: its begin, lone surrogates as escapes.
    """
    try:
        text = body.decode()
        start = _skip(text, 0)
        if text[start] != "[":
            return None, _shown(_find_member(text))
        for index, (_, element) in enumerate(_items(text, start)):
            if element.startswith("{"):
                name = _find_member(element)
                if name:
                    return index, _shown(name)
    except (RecursionError, ValueError, IndexError):
        pass  # nested too deep: such a text was not read to its end, so it need not even be JSON
    return None, ""


def _shown(name: str) -> str:
    return name[: limits.ATTRIBUTE_NAME_CHARS_MAX].encode(errors="backslashreplace").decode()


def _find_member(text: str) -> str:
    """The member of an object that is to blame, "" for none."""
    seen: set[str] = set()
    if not text.startswith("{", start := _skip(text, 0)):
        return ""
    for name, value in _items(text, start):
        if name in seen:
            return name
        seen.add(name)
        try:
            parse(value.encode())
            parse(json.dumps(name).encode())
        except AmbiguousJsonError:
            return name
    return ""


def _items(text: str, start: int) -> Iterator[tuple[str, str]]:
    """Members of the object, or elements of the array with the name "", that begins at `start`: their own text."""
    at = _skip(text, start + 1)
    while text[at] not in "]}":
        name = ""
        if text[start] == "{":
            name, at = _decoder.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)  # the colon
        _, end = _decoder.raw_decode(text, at)
        yield name, text[at:end]
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    match = _WHITE.match(text, at)
    return at if match is None else match.end()
