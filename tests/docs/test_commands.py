"""What pages show and needs no server does what they say: commands, objects, programs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headgate.filter.compile.compiler import compile_cel
from headgate.objects.api.admission import Admission
from headgate.objects.api.bootstrap import load
from headgate.objects.store.store import Store
from headgate_cli import objects as cli_objects
from headgate_cli import redelivery as cli_redelivery
from headgate_cli.main import app
from tests.docs.commands import OUTPUT, stable, steps
from tests.inspect.stored_orders import fill
from tests.support import REPOSITORY


@pytest.mark.parametrize("name", ["fast-filter", pytest.param("backtest", marks=pytest.mark.slow)])
def test_the_commands_print_what_the_page_shows(name: str, tmp_path: Path) -> None:
    if name == "backtest":
        fill(tmp_path / "headgate-data", chunks=200, most=400)
    blocks = steps(REPOSITORY / f"docs/howto/{name}.md")
    assert blocks
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120"}
    for typed, shown in zip(blocks[::2], blocks[1::2], strict=True):
        assert typed.is_command
        assert shown.title == OUTPUT
        done = subprocess.run(["bash", "-c", typed.text], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert stable(done.stdout) == stable(shown.text), done.stderr


def test_the_dialects_of_the_page_give_filters() -> None:
    page = (REPOSITORY / "docs/howto/dialect.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for program in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(program, names)
    assert compile_cel(names["REGIONS"].to_cel(["eu", "us"])).rows
    assert compile_cel(names["TEAMS"].to_cel({"team": 'a "b"'})).rows


def fences(language: str) -> list[str]:
    """The blocks of a language on all pages."""
    pages = [page.read_text(encoding="utf-8") for page in sorted((REPOSITORY / "docs").rglob("*.md"))]
    return [
        text for page in pages for text in re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    ]


def test_the_objects_of_the_pages_are_accepted(tmp_path: Path) -> None:
    shown = [
        text for text in fences("yaml") if re.search(r"^apiVersion: .*(knative|headgate)\.dev/", text, re.MULTILINE)
    ]
    assert {kind for text in shown for kind in re.findall(r"^kind: (\w+)", text, re.MULTILINE)} >= {
        "Trigger",
        "Subscription",
    }
    for number, text in enumerate(shown):
        (tmp_path / f"{number}.yaml").write_text(text)
    store = Store.open(tmp_path / "control.db")
    assert load(Admission(store), tmp_path) == {"created": len(shown)}
    store.close()


def test_the_way_of_dead_letters_to_a_url_is_typed_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's commands, and what they ask the server for; its object is accepted above."""
    page = (REPOSITORY / "docs/howto/send-again.md").read_text(encoding="utf-8")
    way = page.partition("### To a URL")[2].partition("\n### ")[0]
    (shown,) = re.findall(r"^```yaml\n# repair.yaml\n(.*?)^```", way, re.MULTILINE | re.DOTALL)
    (commands,) = re.findall(r"^```sh\n(.*?)^```", way, re.MULTILINE | re.DOTALL)
    (tmp_path / "repair.yaml").write_text(shown)
    monkeypatch.chdir(tmp_path)
    asked: list[tuple[str, str, object]] = []

    def answer(_: str, method: str, path: str, body: object = None, **__: object) -> dict[str, object]:
        asked.append((method, path, body))
        if "/triggerapplies?" in path:
            return {"items": [{"name": "repair", "outcome": "created", "warnings": []}]}
        return {"count": 2, "gone": 0, "items": [], "metadata": {}}

    for module in (cli_objects, cli_redelivery):
        monkeypatch.setattr(module, "request", answer)
    for command in commands.splitlines():
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, (command, done.output)
    assert [(method, path.partition("?")[0].rpartition("namespaces/")[2]) for method, path, _ in asked] == [
        ("POST", "default/triggerapplies"),
        ("POST", "default/deadletters/redrive/repair"),
        ("GET", "default/deadletters"),
        ("DELETE", "default/triggers/repair"),
    ]


def test_the_programs_of_the_pages_are_python() -> None:
    programs = fences("python")
    assert len(programs) > 5
    for number, program in enumerate(programs):
        compile(program, f"program {number}", "exec")
