"""The pages build without a warning, every link and every path that code or pages name resolves, prose is one way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import REPOSITORY

OUTSIDE = sorted(REPOSITORY.glob("*.md"))
SITE = sorted((REPOSITORY / "docs").rglob("*.md"))
ROOMS = ("src", "tests", "scripts", "examples", "benchmarks", "connector/src")
CODE = [
    path
    for room in ROOMS
    for path in (REPOSITORY / room).rglob("*")
    if path.suffix in (".py", ".java", ".proto", ".sh")
]
OURS = [page for page in OUTSIDE if page.name not in ("ARCHITECTURE.md", "CHANGELOG.md")] + SITE
"""The pages in which a paragraph is one line."""


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    loaded = re.findall(
        r'(?:src|href)="(https?://[^"]+\.(?:js|css|woff2?))"', (tmp_path / "site/index.html").read_text()
    )
    assert loaded == [], "the site needs the network"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S), re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: page.name)
def test_links_of_pages_outside_the_site(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_paths_of_pages_in_code() -> None:
    named = {
        (str(path.relative_to(REPOSITORY)), found)
        for path in CODE
        for found in re.findall(r"\bdocs/[\w/.-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert [one for one in named if not (REPOSITORY / one[1]).is_file()] == []


def test_paths_of_code_in_pages() -> None:
    named = {
        (page.name, found)
        for page in (*OUTSIDE, *SITE)
        for found in re.findall(
            r"`((?:src|tests|benchmarks|scripts|examples|connector|docs)/[\w/.-]+\.\w+)`",
            page.read_text(encoding="utf-8"),
        )
    }
    assert [one for one in named if not (REPOSITORY / one[1]).is_file()] == []


def test_every_row_on_other_engines_names_a_test_of_ours() -> None:
    page = (REPOSITORY / "docs/reference/interoperability.md").read_text(encoding="utf-8")
    tables = [table for table in re.split(r"\n\n", page) if re.match(r"\|.*\| test \|\n", table)]
    assert len(tables) == 8
    for row in (row for table in tables for row in table.strip().splitlines()[2:]):
        named = re.search(r"\| `(tests/[\w/]+\.py): (test_\w+)` \|$", row)
        assert named, row
        code = (REPOSITORY / named[1]).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {named[2]}\(", code, re.MULTILINE), row


@pytest.mark.parametrize("page", OURS, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_a_paragraph_is_one_line(page: Path) -> None:
    assert list(_wrapped(page.read_text(encoding="utf-8"))) == []


def _wrapped(text: str) -> Iterator[str]:
    prose = False
    for line in re.sub(r"^([ \t]*)```.*?^\1```", "```", text, flags=re.S | re.M).splitlines():
        starts = re.match(r"\s*([*-]|\d+\.) ", line)
        special = re.match(r"\s*(#|\||```|<)", line) or not line.strip()
        if prose and not starts and not special:
            yield line
        prose = not special
