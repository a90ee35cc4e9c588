import json
import re
import subprocess
import sys

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate_api.event.json_text import (
    AmbiguousJsonError,
    MalformedJsonError,
    check_depth,
    decode_strictly,
    parse,
    repeated_members,
)
from headgate_api.limits import JSON_DEPTH_MAX, JSON_NAME_CHARS_MAX, JSON_NUMBER_CHARS_MAX
from tests.event.strategies import json_bytes, texts
from tests.support import times


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"{",
        b"[1,]",
        b"{'a': 1}",
        b'{"a": 1} x',
        b"NaN",
        b"-Infinity",
        b"[NaN]",
        b"01",
        b"1.",
        b"+1",
        b'"\x01"',
        b'"\x00"',
        b'"\\x"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf{}",
        '"a"'.encode("utf-16"),
        b'["\\ud800", ]',
    ],
)
def test_not_json(text):
    with pytest.raises(MalformedJsonError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (b'{"a": 1, "a": 1}', "'a' twice"),
        (b'{"a":1,"a":2}', "'a' twice"),
        (b'[{"x": {"b": [], "c": 1, "b": []}}]', "'[0].x.b' twice"),
        (b'{"a":1,"\\u0061":2}', "'a' twice"),
        (b'{"a" :1, "a" :2, "b": 3}', "'a' twice"),
        (b'{"":1,"":2}', "'' twice"),
        # an escaped colon appears where the dropped member's colon disappears
        (b'{"a":1,"a":2,"b":"\\u003a"}', "'a' twice"),
        (b'{"a":1,"a":2,"b":"\\u003A"}', "'a' twice"),
        (b'{"a":"\\ud800","a":2}', "lone surrogate"),
        (b'"\\u0000"', "U+0000"),
        (b'{"a\\u0000": 1}', "U+0000"),
        (b'"\\\\\\u0000"', "U+0000"),
        (b'"\\ud800"', "lone surrogate"),
        (b'"\\udc00\\ud800"', "lone surrogate"),
        (b'{"\\ud83d": 1}', "lone surrogate"),
        (b"1e400", "number"),
        (b"[-1e400]", "number"),
        (b"9" * 5000, "number"),
        (b"[" * 100_000, "deeper"),
        (b'{"a":' * 100_000, "deeper"),
    ],
)
def test_ambiguous(text, rule):
    with pytest.raises(AmbiguousJsonError, match=re.escape(rule)):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 1}]}',
        b'{"a:": ":", ":": "::", "b": "\\u003a\\u003A:"}',
        b'{"a":"\\":","b":"x\\":y"}',
        b'"\\\\u0000"',
        b'"\\\\\\\\u0000 u0000 \\u00001"'.replace(b"\\u00001", b"\\u0001"),
        b'"\\ud83d\\ude00"',
        b"[1e308, -0.0, 1E-400, 18446744073709551616, -9223372036854775809]",
        b" \t\r\n null \n",
        b'"\x7f\xc2\x85\xef\xbf\xbe"',
    ],
)
def test_taken(text):
    assert parse(text) == json.loads(text)


def first_duplicate(text):
    found = []

    def hook(pairs):
        names = [name for name, _ in pairs]
        found.extend(name for name in names if names.count(name) > 1)
        return dict(pairs)

    json.loads(text, object_pairs_hook=hook)
    return found


def member(name_and_text):
    name, text = name_and_text
    return json.dumps(name, ensure_ascii=len(name) % 2 == 0) + (" :" if len(text) % 2 else ":") + text


objects = st.recursive(
    st.one_of(texts.map(json.dumps), st.sampled_from(["1", "1.50", "null", '"\\u003a"', '":"', '"a:b"'])),
    lambda inner: st.lists(st.tuples(st.sampled_from(["a", "b", ":", "", 'q"']), inner), max_size=4).map(
        lambda members: "{" + ",".join(map(member, members)) + "}"
    ),
    max_leaves=10,
)


@given(objects)
@example('{"a":1,"a":2,"b":"\\u003a"}')
def test_a_duplicate_is_found_exactly_when_there_is_one(text):
    if first_duplicate(text):
        with pytest.raises(AmbiguousJsonError, match="twice"):
            parse(text.encode())
    else:
        parse(text.encode())


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (b'{"spec": {"filter": 1, "filter": 2, "filters": [{"exact": {"a": 1, "a": 2}}]}, "spec": {}}',
         ["spec.filter", "spec.filters[0].exact.a", "spec"]),
        (b'{"":{"":1,"":2}}', ["."]),
        (b'{"a":"\\u003a","b":{"a":1}}', []),
        (b'{"%s":{"a":1,"a":2}}' % (b"n" * 999), ["n" * 64 + ".a"]),
        (b"[" * 900 + b'{"a":1,"a":2}' + b"]" * 900, ["[0]" * 900 + ".a"]),
    ],
)  # fmt: skip
def test_every_repeated_member_has_its_path(text, paths):
    assert list(repeated_members(text, msgspec.json.decode(text))) == paths


def test_a_typed_text_repeats_no_member_either():
    assert decode_strictly(b'{"a":{"b":1}}', dict[str, dict[str, int]]) == {"a": {"b": 1}}
    with pytest.raises(AmbiguousJsonError, match=r"'a\.b' twice"):
        decode_strictly(b'{"a":{"b":1,"b":1}}', dict[str, dict[str, int]])
    with pytest.raises(msgspec.ValidationError, match=r"\$\[\.\.\.\]"):
        decode_strictly(b'{"a":"b"}', dict[str, int])


@given(json_bytes())
def test_what_the_standard_library_wrote_is_read_as_it_reads_it(text):
    assert parse(text) == json.loads(text)


@pytest.mark.parametrize(
    ("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'["]]]]\\"",', b"]"), (b'[[],{"[":"{"},', b"]")]
)
@pytest.mark.parametrize("with_pyarrow", [True, False])
def test_depth_is_counted_exactly(opening, closing, with_pyarrow, monkeypatch):
    if not with_pyarrow:  # as in headgate-client
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    allowed = opening * (JSON_DEPTH_MAX - 1) + b"[]" + closing * (JSON_DEPTH_MAX - 1)
    parse(allowed)
    check_depth(allowed)
    over = opening * JSON_DEPTH_MAX + b"[]" + closing * JSON_DEPTH_MAX
    with pytest.raises(AmbiguousJsonError, match="deeper than 1000"):
        check_depth(over)


@pytest.mark.parametrize("inside", [b'{"a":1,"a":1}', b'{"%b":1}' % (b"x" * 50_001), b'"\\ud800"'])
def test_what_only_a_second_look_finds_too_deep_is_refused_as_such(inside):
    step = times(8, 1) if inside.count(b"a") > 1 else 1  # it names the place, which is long
    for depth in range(4 * JSON_DEPTH_MAX - 120, 4 * JSON_DEPTH_MAX, step):
        with pytest.raises(AmbiguousJsonError):
            parse(b"[" * depth + inside + b"]" * depth)


@pytest.mark.parametrize("with_pyarrow", [True, False])
def test_brackets_side_by_side_or_in_strings_are_not_depth(with_pyarrow, monkeypatch):
    if not with_pyarrow:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    check_depth(b"[" + b",".join([b"[]"] * 10_000) + b"]")
    check_depth(b'"' + b"[" * 10_000 + b'"')


@pytest.mark.parametrize("number", ["0." + "1" * 998, "-0." + "1" * 997, "1e" + "0" * 997 + "1"])
def test_a_number_may_be_long_but_not_longer_than_every_parser_takes(number):
    assert len(number) == JSON_NUMBER_CHARS_MAX
    parse(f'{{"n":[{number},1]}}'.encode())
    with pytest.raises(AmbiguousJsonError, match="1000 characters"):
        parse(f'{{"n":[{number[:-1]}01,1]}}'.encode())
    parse(f'{{"n":"{number}{number}","\\"{number}":1}}'.encode())


@pytest.mark.parametrize(
    ("character", "units"), [("n", 1), ("é", 1), ("😀", 2), ('\\"', 1), ("\\u00e9", 1), ("\\\\", 1)]
)
def test_a_name_may_be_long_but_not_longer_than_every_parser_takes(character, units):
    name = character * (JSON_NAME_CHARS_MAX // units)
    parse(f'{{"a":{{"{name}":1}}}}'.encode())
    with pytest.raises(AmbiguousJsonError, match="50000 characters"):
        parse(f'{{"a":{{"{name}n":1}}}}'.encode())
    parse(f'{{"a":"{name}n"}}'.encode())


DEEP = b"[" * (JSON_DEPTH_MAX - 1) + b"[]" + b"]" * (JSON_DEPTH_MAX - 1)
ENTRIES = {
    "a part of the server": """
import os
from headgate.server import child
from headgate.server.__main__ import main
from headgate.settings import Settings
os.environ |= child.environment(Settings(), bytes(32))
try:
    main()  # of a part that there is not
except SystemExit:
    pass
from headgate_api.event.json_text import parse
parse(deep)
""",
    "the command": """
sys.argv[1:] = ["filter", "dialects"]
from headgate_cli.main import main
try:
    main()
except SystemExit:
    pass
from headgate_api.event.json_text import parse
parse(deep)
""",
    "a program that publishes and reads": """
import msgspec
from headgate_client import values
from headgate_api.event.model import DataKind, Event
value = values.json_of(Event("1.0", "1", "/a", "t", data_kind=DataKind.JSON, data=deep))
assert values._json_bytes(value) == deep
""",
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_process_reads_documents_as_deep_as_allowed(entry):
    start = "import sys\ndeep = sys.stdin.buffer.read()\nassert sys.getrecursionlimit() == 1_000\n"
    command = [sys.executable, "-c", start + ENTRIES[entry], "nothing"]
    done = subprocess.run(command, input=DEEP, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
