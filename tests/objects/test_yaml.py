"""YAML bodies: the values that texts stand for, and how little of a hostile one is read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.auth import configuration as auth_configuration
from headgate.backend import config_file
from headgate_api import kubeconfig, yaml_text
from headgate_api.errors import HeadgateError
from headgate_api.limits import MANIFEST_DEPTH_MAX, OBJECT_DEPTH_MAX, OBJECT_NODES_MAX, YAML_DIRECTIVES_MAX
from headgate_api.objects import manifests
from headgate_api.objects.bodies import decode_yaml, yaml_documents
from headgate_api.objects.errors import MalformedObjectError

SCALARS = {
    # What YAML 1.1 would make something else of.
    **{text: text for text in ("no", "yes", "on", "off", "y", "n", "No", "1:30", "12:30:45", "=", "-_", "_1")},
    **{text: text for text in ("2026-01-02", "2026-01-02T03:04:05Z", "2026-01-02 03:04:05")},
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False, "tRUE": "tRUE",
    "null": None, "Null": None, "NULL": None, "~": None, "": None, "nULL": "nULL",
    "0": 0, "-0": 0, "+7": 7, "017": 17, "0o17": 15, "0x1F": 31, "-0x1f": -31, "0b101": 5, "1_000": 1000, "08": 8,
    "0o8": "0o8", "0x": "0x", "0xg": "0xg", "1-2": "1-2", "+": "+",
    "1.5": 1.5, "-1.5e3": -1500.0, "1e3": 1000.0, ".5": 0.5, "1.": 1.0, "1_0.5": 10.5, ".5e3": ".5e3", ".5e+3": 500.0,
    ".": ".", "..": "..", "1.2.3": "1.2.3", "e3": "e3", ".info": ".info",
    "!!str 1": "1", '!!int "3"': 3, "!!float 3": 3.0, '!!bool "true"': True, "!!null x": None, "! 1": "1",
    "!!timestamp 2026-01-02": "2026-01-02", "'1'": "1", '"no"': "no", '"\\x41\\u0042\\/"': "AB/", "'it''s'": "it's",
    "|\n  x\n  y": "x\ny\n", ">-\n  x\n  y": "x y", "x\n  y": "x y", "1 # one": 1, "a#b": "a#b",
    "http://x/y?z#f": "http://x/y?z#f", "{b: c, d: [e, 1]}": {"b": "c", "d": ["e", 1]}, "\n- b\n- c": ["b", "c"],
    "{b}": {"b": None}, "!!map {b: 1}": {"b": 1}, "!!seq [1]": [1], "&x 1": 1,
}  # fmt: skip


@pytest.mark.parametrize("text", SCALARS)
def test_values_have_the_types_of_yaml_1_2(text: str) -> None:
    found = decode_yaml(f"a: {text}\n".encode())
    assert isinstance(found, dict)
    assert (type(found["a"]), found) == (type(SCALARS[text]), {"a": SCALARS[text]})


def test_not_a_number_and_infinity() -> None:
    found = decode_yaml(b"[.nan, .inf, -.INF]")
    assert [str(value) for value in found] == ["nan", "inf", "-inf"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "at line 2, column 1"),
        ("a: 1\na: 2", "the key 'a' is there twice at line 2, column 1"),
        ("? [a]\n: b", "a key must be one word or text at line 1, column 3"),
        ("{a: 1}: b", "a key must be one word or text"),
        ("a: &k [1]\n*k : b", "a key must be one word or text at line 2"),
        ("&a [*a]", "there is no 'a' that the alias could mean"),
        ("- &a 1\n- &a [*a]", "there is no 'a'"),
        ("--- &a 1\n--- *a", "undefined alias|there is no 'a'"),
        ("a: !!int x", "'x' is no such value at line 1, column 4"),
        ("a: !!bool no", "'no' is no such value"),
        ("a: !!binary aGk=", "the tag 'tag:yaml.org,2002:binary' is not supported at line 1, column 4"),
        ("a: !!set {x}", "tag:yaml.org,2002:set"),
        ("a: !!python/object:os.system {}", "is not supported"),
        ("a: " + "1" * 5000, "is no such value"),
        ("a: \x00", "."),
    ],
)
def test_what_is_refused_says_where(text: str, said: str) -> None:
    with pytest.raises(MalformedObjectError, match=said):
        decode_yaml(text.encode())


def test_aliases_stand_for_what_they_name() -> None:
    assert decode_yaml(b"a: &x {b: [1]}\nc: *x\n") == {"a": {"b": [1]}, "c": {"b": [1]}}
    assert decode_yaml(b"- &x 1\n- &x 2\n- *x") == [1, 2, 2]
    assert decode_yaml(b"- &x k\n- {*x : 1}") == ["k", {"k": 1}]


def test_merge_keys_of_a_file() -> None:
    (found,) = yaml_documents(b"a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], z: 3}\nd: {x: 0, <<: *b}")
    assert isinstance(found, dict)
    assert found["c"] == {"x": 1, "y": 1, "z": 3}
    assert found["d"] == {"x": 0, "y": 2, "z": 2}
    for text in (b"{<<: 1}", b"{<<: [{}, 1]}", b"{<<: {}, <<: {}}"):
        with pytest.raises(MalformedObjectError, match="merge key"):
            list(yaml_documents(text))


def test_a_file_has_several_documents() -> None:
    assert list(yaml_documents(b"---\na: 1\n---\n---\n# nothing\n---\n- b\n...\n")) == [{"a": 1}, ["b"]]
    assert list(yaml_documents(b"")) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(value=JSON.filter(lambda value: value is not None))
def test_json_is_yaml(value: object) -> None:
    assert decode_yaml(json.dumps(value).replace(r"\ud", r"\\ud").encode()) == json.loads(
        json.dumps(value).replace(r"\ud", r"\\ud")
    )


@given(body=st.binary(max_size=60) | st.text(alphabet="[]{}:,-?&*a1<! \n'\"#%|>", max_size=40).map(str.encode))
def test_any_text_is_a_value_or_an_error_of_ours(body: bytes) -> None:
    for read in (decode_yaml, lambda text: list(yaml_documents(text))):
        with contextlib.suppress(MalformedObjectError):
            read(body)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The events that were taken from the parser."""
    events: list[object] = []

    class Counting(yaml_text.CParser):  # type: ignore[misc]
        def get_event(self) -> object:
            events.append(super().get_event())
            return events[-1]

    monkeypatch.setattr(yaml_text, "CParser", Counting)
    return events


@pytest.mark.parametrize("unit", [b"[", b"[\n", b"- ", b"a: {b: ", b"{a: "])
def test_a_deep_body_is_not_read_on(unit: bytes, taken: list[object]) -> None:
    with pytest.raises(
        MalformedObjectError, match=rf"deeper than {OBJECT_DEPTH_MAX} levels|mapping values|expected ','"
    ):
        decode_yaml(unit * (200_000 // len(unit)))
    assert len(taken) <= 2 * OBJECT_DEPTH_MAX + 5


@pytest.mark.parametrize(
    "body",
    [b"[" + b"1," * 100_000, b"- 1\n" * 60_000, b"---\n" * 60_000, b"- &a 1\n" + b"- *a\n" * 40_000, b"{a: 1},"],
)
def test_a_body_of_many_values_is_not_read_on(body: bytes, taken: list[object]) -> None:
    with pytest.raises(MalformedObjectError):
        decode_yaml(body)
    assert len(taken) <= 3 * OBJECT_NODES_MAX + 10


def test_aliases_count_as_often_as_they_stand_for_something(taken: list[object]) -> None:
    bomb = "a0: &a0 [1, 2]\n"
    for number in range(1, 12):
        bomb += f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]\n"
    with pytest.raises(MalformedObjectError, match=f"more than {OBJECT_NODES_MAX} values"):
        decode_yaml(bomb.encode())
    assert len(taken) < 100
    chain = "- &a0 [1]\n" + "".join(f"- &a{n} [*a{n - 1}]\n" for n in range(1, 100))
    with pytest.raises(MalformedObjectError, match="deeper than"):
        decode_yaml(chain.encode())


def test_directives_are_bounded_before_anything_is_parsed(taken: list[object]) -> None:
    tags = b"".join(b"%%TAG !a%d! tag:x,1:\n" % number for number in range(YAML_DIRECTIVES_MAX + 1))
    with pytest.raises(MalformedObjectError, match="lines that begin with %"):
        decode_yaml(tags + b"---\na: 1")
    assert taken == []
    assert decode_yaml(b"%YAML 1.1\n---\na: yes\n") == {"a": "yes"}


def test_levels_up_to_the_bound_are_taken() -> None:
    deep = OBJECT_DEPTH_MAX - 1
    assert decode_yaml(b"[" * deep + b"1" + b"]" * deep) is not None
    with pytest.raises(MalformedObjectError):
        decode_yaml(b"[" * (deep + 1) + b"1" + b"]" * (deep + 1))
    deep = MANIFEST_DEPTH_MAX - 1
    assert list(yaml_documents(b"[" * deep + b"1" + b"]" * deep))


KUBECONFIG = """\
apiVersion: v1
kind: Config
contexts: [{name: a, context: {cluster: a}}]
clusters:
- name: a
  cluster:
    server: https://127.0.0.1:1
    server: https://127.0.0.1:2
"""
ISSUERS = """\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer: {url: "https://issuer.example.com", audiences: [headgate]}
  claimMappings: {username: {claim: sub, prefix: ""}}
  claimValidationRules: [{claim: team, requiredValue: shop}]
  claimValidationRules: [{claim: env, requiredValue: prod}]
"""


@pytest.mark.parametrize(
    ("read", "text", "line"),
    [
        (auth_configuration.read, ISSUERS, 7),
        (lambda path: kubeconfig.read_context("a", str(path)), KUBECONFIG, 8),
        (config_file.read, "listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n", 2),
        (lambda path: list(manifests.read_path(path)), "kind: Broker\nspec: {}\nspec: {}\n", 3),
    ],
    ids=["authentication-config", "kubeconfig", "headgate.yaml", "manifests"],
)
def test_no_part_of_a_file_takes_the_place_of_another(
    tmp_path: Path, read: Callable[[Path], object], text: str, line: int
) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(HeadgateError, match=rf"file\.yaml.*is there twice at line {line}, column "):
        read(path)
    lines = text.splitlines(keepends=True)
    path.write_text("".join(lines[: line - 1] + lines[line:]))
    read(path)


def test_every_file_is_read_by_this_reader() -> None:
    """PyYAML's loaders keep the last of two values of one key, and say nothing."""
    package = Path(yaml_text.__file__).parent
    loading = {str(file.relative_to(package)) for file in package.rglob("*.py") if "yaml.load" in file.read_text()}
    assert loading == set()
