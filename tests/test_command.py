"""The `headgate` command imports what the command at hand needs, and has every command that its modules define."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_group
from typer.testing import CliRunner

import headgate.cli
import headgate_cli
from headgate_cli import lazy
from headgate_cli.lazy import LazyGroup
from headgate_cli.main import COMMANDS, app

NOBODY = "http://127.0.0.1:1"
HEAVY = {"pyspark", "pyarrow", "grpc", "cel_expr_python", "google.protobuf", "starlette", "uvicorn", "structlog"}
CORE = {"headgate_api", "headgate_api.errors", "headgate_cli", "headgate_cli.lazy", "headgate_cli.main"}
CALL = (
    "import sys; from headgate_cli.main import main; sys.argv = ['headgate', *sys.argv[1:]]\n"
    "try: main()\n"
    "finally: print(*sys.modules)"
)
CALLS = """
import sys
from headgate_cli.main import main
server, *commands = sys.argv[1:]
for command in commands:
    sys.argv = ["headgate", *command.split(), "--server", server]
    try:
        main()
    except SystemExit:
        print(*sys.modules)
"""
ASKING = (
    *("send --type t", "tail", "consume s", "seek s --to earliest", "why 1 --trigger t", "trace 1", "lint"),
    *("apply -f broker.yaml", "get triggers", "deadletter list", "replay list", "subscription describe s"),
)


def _loaded(*arguments: str) -> set[str]:
    """The modules that a command has imported by its end."""
    command = [sys.executable, "-c", CALL, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_the_version_imports_no_command() -> None:
    loaded = _loaded("--version")
    assert {name for name in loaded if name.startswith("headgate")} == CORE
    assert not (HEAVY | {"rich", "asyncio"}) & loaded


def test_help_imports_no_command() -> None:
    assert {name for name in _loaded("--help") if name.startswith("headgate")} == CORE
    assert not _loaded("filter", "--help") & {"headgate.cli.filter_tools", "headgate_cli.backtest"}


def test_the_supervisor_of_a_server_imports_nothing_of_what_serves() -> None:
    program = "import sys, headgate.cli.serve; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"pyspark", "grpc", "cel_expr_python", "google.protobuf", "starlette"}.intersection(done.stdout.split())


def test_a_command_that_asks_the_server_imports_none_of_it(tmp_path: Path) -> None:
    """All in one process, after each of which the modules are looked at."""
    (tmp_path / "broker.yaml").write_text("apiVersion: eventing.knative.dev/v1\nkind: Broker\nmetadata: {name: b}\n")
    command = [sys.executable, "-c", CALLS, NOBODY, *ASKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.stderr.count("error: no server at") == len(ASKING), "one did not come as far as to ask"
    loaded = dict(zip(ASKING, map(str.split, done.stdout.splitlines()), strict=True))
    assert [command for command, modules in loaded.items() if not HEAVY.isdisjoint(modules)] == []


def test_the_version_costs_little_more_than_typer() -> None:
    """In seconds of CPU, the least of three runs; all commands together would be five times as much."""

    def cpu_s(*arguments: str) -> float:
        program = (
            "import resource, subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]], stdout=2, check=True);"
            "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
        )
        runs = [
            subprocess.run([sys.executable, "-c", program, *arguments], check=True, capture_output=True, timeout=60)
            for _ in range(3)
        ]
        return min(float(run.stdout) for run in runs)

    headgate_program = str(Path(sys.executable).with_name("headgate"))
    assert cpu_s(headgate_program, "--version") < 2 * cpu_s("-c", "import typer, rich")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_helps(name: str) -> None:
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0, done.output
    assert f"Usage: headgate {name}" in done.output


def test_help_lists_each_command_with_the_first_paragraph_of_its_own_help() -> None:
    listed = list(_groups())
    assert {name for _, name in listed} > {"serve", "backtest"}
    for group, name in listed:
        said = " ".join((group.loaded(name).help or "").partition("\n\n")[0].split())
        assert group.commands[name].help == said


def test_the_help_of_each_command_has_an_example() -> None:
    waiting: list[tuple[str, Any]] = [("headgate", get_group(app))]
    shown = 0
    while waiting:
        name, command = waiting.pop()
        words = getattr(command, "commands", {})
        below = command.loaded if isinstance(command, LazyGroup) else words.get
        waiting += [(f"{name} {word}", below(word)) for word in words]
        if not words or (command.invoke_without_command and not command.no_args_is_help):
            text = " ".join((command.help or "").split())
            assert f"{name} " in text.partition("Example")[2] + " ", name
            shown += 1
    assert shown > 40


def _groups() -> Iterator[tuple[LazyGroup, str]]:
    """Each command of a table, at any depth, with its group."""
    groups = [get_group(app)]
    while groups:
        if isinstance(group := groups.pop(), LazyGroup):
            for name in group.table:
                yield group, name
                groups.append(group.loaded(name))


def test_a_command_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in headgate-client, which lists all commands (tests/packaging/test_client_wheel.py runs them there)."""
    monkeypatch.setattr(lazy, "find_spec", lambda module: None if module == "headgate" else find_spec(module))
    done = CliRunner().invoke(app, ["serve", "--data", "x"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "error: headgate serve needs the package headgate-broker\nhint: pip install headgate-broker\n"
    shown = CliRunner().invoke(app, ["--help"]).output
    assert shown.index("serve ") > shown.index("need the package headgate-broker") > shown.index("send ")


def test_every_app_of_a_module_is_a_command_or_all_its_commands_are() -> None:
    places = {group.table[name][0] for group, name in _groups()}
    apps = 0
    modules = [
        found.name
        for package in (headgate.cli, headgate_cli)
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    ]
    for name in modules:
        for attribute, own in vars(importlib.import_module(name)).items():
            if isinstance(own, typer.Typer) and own is not app and f"{name}:{attribute}" not in places:
                names = {one.callback.__name__ for one in own.registered_commands if one.callback}
                assert {f"{name}:{command}" for command in names} <= places
            apps += isinstance(own, typer.Typer)
    assert apps > 8


def test_a_name_that_is_nearly_one_is_told() -> None:
    done = CliRunner().invoke(app, ["sent"])
    assert done.exit_code == 2
    assert "Did you mean 'send'?" in done.output


class Asked:
    """What a command asks of a server that has one thing of everything."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
        self.bodies: list[dict[str, object]] = []
        monkeypatch.setattr(f"headgate_cli.{module}.request", self._answer)

    def _answer(self, server: str, method: str, path: str, *, body: dict[str, object] | None = None) -> object:
        if method == "POST":
            self.bodies.append(body or {})
        return {"id": 1, "state": "done", "count": 1, "matched": 1, "eventsTotal": 1}


def test_a_replay_below_a_ceiling_is_told_without_what_other_events_count_in(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"id": 7, "broker": "shop/orders", "trigger": "billing", "url": "", "matched": 3, "delivered": 2}
    one |= {"deadLettered": 1, "failed": 0}
    states = iter(["running", "running", "done", "running"])
    monkeypatch.setattr("headgate_cli.redelivery._POLL_S", 0.0)
    monkeypatch.setattr(
        "headgate_cli.redelivery.request",
        lambda *_, **__: one | {"items": [one | {"state": "done"}], "state": next(states, "done")},
    )
    said = CliRunner().invoke(app, ["replay", "--target", "billing", "--dry-run"])
    assert said.stdout == "3 events would be sent to billing\n"
    assert "found 3 events" in said.stderr
    assert CliRunner().invoke(app, ["replay", "--target", "billing"]).stdout == "replay 7 has begun\n"
    head, row = CliRunner().invoke(app, ["replay", "list"]).stdout.splitlines()
    assert dict(zip(head.split(), row.split(), strict=True)) | {"PASSED": "-", "TOTAL": "-", "MATCHED": "3"} == dict(
        zip(head.split(), row.split(), strict=True)
    )


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_dry_run_of_a_replay_is_one(monkeypatch: pytest.MonkeyPatch, is_dry: bool) -> None:
    asked = Asked(monkeypatch, "redelivery")
    done = CliRunner().invoke(app, ["replay", "--target", "billing", *(["--dry-run"] if is_dry else [])])
    assert done.exit_code == 0, done.output
    assert [body["dryRun"] for body in asked.bodies] == [is_dry]


@pytest.mark.parametrize(("options", "answer", "count"), [([], "n\n", 0), ([], "y\n", 1), (["--yes"], "", 1)])
def test_dead_letters_are_discarded_by_who_means_it(
    monkeypatch: pytest.MonkeyPatch, options: list[str], answer: str, count: int
) -> None:
    asked = Asked(monkeypatch, "redelivery")
    done = CliRunner().invoke(app, ["deadletter", "discard", "4711", *options], input=answer)
    assert done.exit_code == (0 if count else 1), done.output
    assert len(asked.bodies) == count
