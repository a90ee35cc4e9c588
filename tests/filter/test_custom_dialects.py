"""Dialects that an installed package brings: really installed, into a folder of their own, seen by a fresh Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import pytest

from headgate.filter.dialects import custom
from headgate.objects.store.plans import filter_compiler
from tests.support import REPOSITORY

PROGRAM = """
import json, sys
from headgate_api.objects.kinds import Metadata, Subscription, SubscriptionSpec
from headgate.objects.store.plans import filter_compiler
from headgate.objects.kinds.specs import compiler_input, field_as_written
from headgate_api.errors import HeadgateError
from headgate.filter.compile.compiler import compile_filter

print(json.dumps(filter_compiler().version), flush=True)
for line in sys.stdin:
    given = json.loads(line)
    spec = SubscriptionSpec(consumer_filter=given.pop("by", ""), consumer_metadata=given.pop("of", {}), **given)
    subscription = Subscription(api_version="", kind="Subscription", metadata=Metadata(), spec=spec)
    try:
        answer = {"cel": compile_filter(*compiler_input(subscription)).cel}
    except HeadgateError as error:
        field = field_as_written(subscription, error.field)
        answer = {"field": field, "reason": error.reason, "hint": error.hint, "limit": error.limit}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of a Python that has the fixture package installed."""
    target = tmp_path_factory.mktemp("site")
    package = REPOSITORY / "tests" / "fixtures" / "acme_dialects"
    install = ["uv", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--offline"]
    subprocess.run(
        [
            Path(sys.executable).parent / install[0],
            *install[1:],
            "--python",
            sys.executable,
            "--target",
            target,
            package,
        ],
        check=True,
        capture_output=True,
    )
    return {**os.environ, "PYTHONPATH": str(target)}


class Compiler:
    """A process that compiles the filters of subscriptions, one a line; a consumer filter's name and metadata are `by`
    and `of`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.version = self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def __call__(self, *given: dict[str, Any]) -> list[dict[str, Any]]:
        assert self._process.stdin
        answers = []
        for one in given:
            self._process.stdin.write(json.dumps(one) + "\n")
            self._process.stdin.flush()
            answers.append(self._answer())
        return answers


@pytest.fixture(scope="module")
def compiled(environment: dict[str, str]) -> Iterator[Compiler]:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield Compiler(process)


def test_an_installed_dialect_is_used_like_the_others(compiled: Compiler) -> None:
    wanted = {"regions": {"in": ["us", "eu"]}}
    alone, element = compiled({"filter": wanted}, {"filters": [{"not": wanted}]})
    assert alone == {"cel": 'has(ce.region) && ce.region in ["eu", "us"]'}
    assert element == {"cel": '!has(ce.region) || !(ce.region in ["eu", "us"])'}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"regions": {"in": ["eu", 5]}}, ".regions.in[1]", "5 is not of type 'string'"),
    ({"regions": {}}, ".regions", "'in' is a required property"),
    ({"regions": {"in": ["moon"]}}, ".regions", "there is no region on the moon"),
    ({"raises": "x"}, ".raises", "the dialect raises of acme-dialects 1.2 failed: KeyError: 'x'"),
    ({"exits": "x"}, ".exits", "failed: SystemExit: x"),
    ({"number": "x"}, ".number", "gave int, not CEL text"),
    ({"empty": "x"}, ".empty", "gave an empty text"),
    ({"long": "x"}, ".long", "FILTER_CHARACTERS_MAX"),
    ({"cheeky": {"a": 1}}, ".cheeky", "gave dict, not CEL text"),
    ({"cheeky": "data.x + 1"}, ".cheeky", "a filter is true or false"),
    ({"broken": "x"}, ".broken", "unexpected"),
    ({"misnamed": "x"}, ".misnamed", "calls itself 'regions'"),
    ({"nosuch": "x"}, ".nosuch", "cannot be imported: AttributeError"),
    ({"nodialect": "x"}, ".nodialect", "is no CustomDialect but str"),
    ({"badschema": "x"}, ".badschema", "has no valid JSON schema"),
    ({"farschema": "x"}, ".farschema", "has a JSON schema that cannot be used"),
    ({"bad-name": "x"}, ".bad-name", "has a name that no field can have"),
    ({"absent": "x"}, ".absent", "unknown field"),
]


def test_what_goes_wrong_in_a_package_is_a_refusal(compiled: Compiler) -> None:
    answers = compiled(*({"filter": value} for value, _, _ in REFUSED))
    for (value, field, said), refused in zip(REFUSED, answers, strict=True):
        assert refused["field"] == f"filter{field}", value
        assert said in refused["reason"], value


def test_a_name_of_ours_stays_ours(compiled: Compiler) -> None:
    ours, exact = compiled({"filter": {"attributes": {"type": "a"}}}, {"filters": [{"exact": {"type": "a"}}]})
    assert ours == exact == {"cel": 'ce.type == "a"'}


def test_a_slow_dialect_is_left_alone(compiled: Compiler) -> None:
    first, second, other = compiled(
        {"filter": {"slow": "2.5"}}, {"filter": {"slow": "0"}}, {"filter": {"regions": {"in": ["eu"]}}}
    )
    assert "took longer than 1 s" in first["reason"]
    assert first["limit"] == "CUSTOM_DIALECT_S_MAX"
    assert "acme-dialects 1.2" in first["hint"]
    assert "still busy" in second["reason"]
    assert "cel" in other


def test_a_dialect_that_got_no_thread_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    dialect = custom.CustomDialect("regions", {}, lambda value: f"data.region == '{value}'")
    one = custom.Installed("regions", "acme-dialects 1.2", (), taken=False)
    monkeypatch.setattr(custom.Installed, "load", lambda self: dialect)
    with monkeypatch.context() as patched:
        patched.setattr(Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError):
            one("eu", "")
    assert one("eu", "") == "data.region == 'eu'"


def test_the_command_lists_them(environment: dict[str, str]) -> None:
    program = """
from headgate_cli.main import app
for more in [], ["--json"]:
    app(["filter", "dialects", *more], standalone_mode=False)
"""
    done = subprocess.run([sys.executable, "-c", program], env=environment, text=True, capture_output=True, check=True)
    lines = done.stdout.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("{"))
    rows = {line.split()[0]: line for line in lines[:begin]}
    assert rows["regions"].endswith("acme-dialects 1.2")
    assert (
        "broken: the dialect attributes of acme-dialects 1.2 has the name of one of Headgate's own"
        in rows["attributes"]
    )
    assert "cannot be imported" in rows["nosuch"]
    by_name = {row["name"]: row for row in map(json.loads, lines[begin:])}
    assert by_name["regions"]["schema"]["description"] == "Regions that are wanted."
    assert by_name["cel"] == {"name": "cel", "package": "headgate", "fault": ""}


def test_another_version_of_a_package_is_another_compiler(compiled: Compiler) -> None:
    assert compiled.version != filter_compiler().version


@pytest.mark.parametrize(
    ("name", "metadata", "expected"),
    [
        ("", {"team": "x"}, 'ce.a == "b"'),
        ("tags", {"team": "x"}, 'ce.a == "b"'),
        ("teams", {"team": "x"}, 'ce.a == "b" && ce.team == "x"'),
        ("teams", {}, ["consumerMetadata", "'team' is a required property"]),
        ("teams", {"team": "none"}, ["consumerMetadata", "team none consumes nothing"]),
        ("rude", {"team": "x"}, ["consumerMetadata", "ends too early"]),
        ("nosuch", {"team": "x"}, ["consumerFilter", "there is no consumer filter 'nosuch'"]),
    ],
)
def test_a_consumer_filter_is_made_of_metadata(
    compiled: Compiler, name: str, metadata: dict[str, str], expected: str | list[str]
) -> None:
    (found,) = compiled({"by": name, "of": metadata, "filter": {"cel": "ce.a == 'b'"}})
    if isinstance(expected, str):
        assert found == {"cel": expected}
    else:
        assert found["field"] == expected[0]
        assert expected[1] in found["reason"]
