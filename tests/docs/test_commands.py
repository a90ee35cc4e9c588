"""The commands and programs of pages that need no server do what these pages show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from headgate.filter.compile.compiler import compile_cel
from tests.docs.commands import OUTPUT, stable, steps
from tests.support import REPOSITORY


def test_the_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    blocks = steps(REPOSITORY / "docs/howto/fast-filter.md")
    assert blocks
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120"}
    for typed, shown in zip(blocks[::2], blocks[1::2], strict=True):
        assert typed.is_command
        assert shown.title == OUTPUT
        done = subprocess.run(["bash", "-c", typed.text], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert stable(done.stdout) == stable(shown.text), done.stderr


def test_the_dialects_of_the_page_give_filters() -> None:
    page = (REPOSITORY / "docs/howto/dialect.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for program in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(program, names)
    assert compile_cel(names["REGIONS"].to_cel(["eu", "us"])).rows
    assert compile_cel(names["TEAMS"].to_cel({"team": 'a "b"'})).rows
