"""The compiled part: what it finds plain breaks no rule, and no bytes harm it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given

from headgate_api.errors import EventError
from headgate_api.event import json_text
from headgate_api.event.data import kind_of
from headgate_api.event.json_format import BatchFastPath, decode_batch
from headgate_api.event.json_text import check_depth, parse
from headgate_api.event.model import DataKind
from tests.event.strategies import json_bytes
from tests.event.test_json_text import objects
from tests.support import DEPTH, REPOSITORY, SEED, executable, times

native = pytest.importorskip("headgate_native")  # tests with the fixture json_checks fail where it must be there
is_plain, containers = native.is_plain, native.containers

REAL = [
    b'{"specversion":"1.0","id":"a-1","source":"/shop","type":"order","data":{"n":[1,2.50,-0,1e5],"x":{"a":null}}}',
    b'[{"id" : "1", "data":{"a": true,\t"b":false}},\r\n {"id":"2","data":[[],{},"",[{"a":{"a":{"b":"a"}}}]]}]',
    json.dumps({"numbers": [0.1, 5e-324, 1e22, -12345678901234567890, 1.5e-07]}, indent=1).encode(),
]
BOARD = (REPOSITORY / "dashboards" / "headgate.json").read_bytes()
BYTES = [bytes([byte]) for byte in range(256)]
PIECES = [*BYTES, *(b'+ - . e E 0 1 { } [ ] : , " t null 1e99 e+9 [] {} "a" "a":1, ":'.split() * 9)]
MEMBERS = b"{%b}," % b",".join(b'"%c":1' % (48 + number) for number in range(44))
DEEP, MANY = b"[" * 31 + b"%b" + b"]" * 31, b"[[],%b]"
BOUNDS = {
    "depth": (DEEP % b"{}", DEEP % b"[[]]"),
    "containers": (MANY % b",".join([b"{}"] * 9_998), MANY % b",".join([b"{}"] * 9_999)),
    "members": tuple(json.dumps(dict.fromkeys(map(str, range(count)))).encode() for count in (64, 65)),
    "a name": tuple(b'{"%b":1}' % (b"n" * length) for length in (255, 256)),
    "a number": tuple(b"[-0.%b]" % (b"9" * length) for length in (197, 198)),
    "an exponent": (b"9" * 196 + b"E+99", b"1e100"),
    "characters below": (b'["\x20"]', b'["\x1f"]'),
    "characters above": (b'["~"]', b'["\x7f"]'),
    "escapes": (b'["/"]', b'["\\/"]'),
    "line breaks": (b'\n[\r"a"\t]\n', b'["a\n"]'),
    "names": (b'{"ab":{"ab":1},"ac":{"ab":1},"a":1,"":1}', b'{"ab":{"ab":1},"ac":{"ab":1,"ab":2}}'),
    "empty names": (b'{"":{"":1}}', b'{"":{},"":1}'),
}


def breaks_no_rule(text: bytes) -> bool:
    """What `is_plain` says, and if that is True, the other way agrees."""
    if not is_plain(text):
        return False
    parse(text)
    check_depth(text)
    assert text.isascii()
    return True


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_text_is_plain_up_to_each_bound(bound: str) -> None:
    within, beyond = BOUNDS[bound]
    assert breaks_no_rule(within)
    assert not is_plain(beyond)


@given(json_bytes() | objects.map(str.encode))
def test_a_plain_text_breaks_no_rule(text: bytes) -> None:
    breaks_no_rule(text)
    assert containers(text) == text.count(b"[") + text.count(b"{")


def spoilt(count: int) -> Iterator[bytes]:
    """Real texts, each with one or two pieces taken out, doubled or put in; or cut."""
    rng = random.Random(SEED or (None if DEPTH == "nightly" else 1))
    for _ in range(count):
        text = rng.choice(REAL)
        for _ in range(rng.randint(1, 2)):
            at = rng.randrange(len(text) + 1)
            to = at + rng.choice([0, 0, 1, 1, 2, 8])
            text = text[:at] + rng.choice([b"", text[at:to] * 2, rng.choice(PIECES)]) + text[to:]
        yield text if rng.random() < 0.9 else text[: rng.randrange(len(text) + 1)]


def test_a_spoilt_text_that_is_still_plain_breaks_no_rule() -> None:
    count = times(100_000, 100_000, 1_000_000)
    assert 0.1 < sum(map(breaks_no_rule, spoilt(count))) / count < 0.9


def outcome(body: bytes) -> tuple[object, ...]:
    try:
        return tuple(decode_batch(body))
    except EventError as error:
        return error.rule, error.index, error.attribute, error.http_status


def test_a_spoilt_batch_gives_the_same_events_or_the_same_error_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [b"[%b,%b]" % (REAL[0], text) for text in spoilt(times(5_000, 5_000, 100_000))]
    compiled = list(map(outcome, bodies))
    monkeypatch.setattr(json_text, "is_plain", lambda text: False)
    assert compiled == list(map(outcome, bodies))


def test_what_is_plain_is_not_decoded_to_look_for_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(json_text, "parse")
    assert len(BatchFastPath().read(b"[%b,%b]" % (REAL[0], REAL[0])) or ()) == 2
    assert kind_of("application/json", REAL[1]) is DataKind.JSON


@pytest.mark.parametrize(
    ("piece", "around"),
    [
        (b"[", b"%b"),
        (b'"a",', b"[%b1]"),
        (b" ", b"%b1"),
        (b"1", b"%b"),
        (b'"', b"%b"),
        (b"\0", b"%b"),
        (MEMBERS, b"[%b1]"),
    ],
)
def test_no_text_takes_long(piece: bytes, around: bytes) -> None:
    text = around % (piece * ((128 << 20) // len(piece)))
    started_s = time.process_time()
    is_plain(text)
    assert time.process_time() - started_s < 10, "ten times what it takes"


WITHOUT = """
import sys
sys.modules["headgate_native"] = None
from headgate_api.event import json_text
text = b'{"a":[{}]}' * 3_000
assert not json_text.is_plain(b"1") and json_text._containers(text) == 9_000 and json_text.is_light(text)
json_text.check(b'{"a":1}')
"""


def test_it_can_be_left_out() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)


DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include "plain_json.c"
int main(void) { /* of each text its size in decimal, a line break, and its bytes; exactly so many are allocated */
  for (size_t size; scanf("%zu", &size) == 1;) {
    Byte *text = malloc(size + 1);
    if (getchar() != '\n' || fread(text, 1, size, stdin) != size) return 2;
    text[size] = 0;
    printf("%d %zu\n", headgate_is_plain(text, size), headgate_containers(text, size));
    free(text);
  }
}
"""


@pytest.mark.slow
def test_no_bytes_make_it_read_elsewhere(tmp_path: Path) -> None:
    """By the compiler's own checks of addresses and of what the language leaves undefined."""
    (tmp_path / "driver.c").write_text(DRIVER)
    flags = ["-std=c11", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    build = [executable("cc"), *flags, f"-I{REPOSITORY / 'packaging' / 'native'}", "driver.c", "-o", "driver"]
    subprocess.run(build, cwd=tmp_path, check=True)
    texts = [*spoilt(times(20_000, 20_000, 200_000)), *(BOARD[:cut] for cut in range(0, len(BOARD), 997))]
    texts += [text for bounds in BOUNDS.values() for text in bounds]
    texts += [piece * size for piece in PIECES for size in (0, 1, 99, 9_999)]
    texts += [b'{"a":' * 20_000_000, bytes(128 << 20)]
    given_ = b"".join(b"%d\n%b" % (len(text), text) for text in texts)
    done = subprocess.run(
        [tmp_path / "driver"], input=given_, capture_output=True, env={"ASAN_OPTIONS": "detect_leaks=0"}
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    assert done.stdout == b"".join(b"%d %d\n" % (is_plain(text), containers(text)) for text in texts)
