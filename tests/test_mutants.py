"""The table of `scripts/mutants.py` does not rot: each mutant changes one place, and asks tests that are there."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest
from scripts import mutants
from scripts.mutants import MUTANTS, Mutant, MutantError, applied, check

from tests.support import REPOSITORY


@lru_cache
def meaning_of(path: Path) -> str:
    """A file without its comments and line ends."""
    return ast.dump(ast.parse(path.read_text()))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_and_asks_tests_that_are_there(mutant: Mutant) -> None:
    check(mutant)
    after = mutant.path.read_text().replace(mutant.text, mutant.instead)
    assert ast.dump(ast.parse(after)) != meaning_of(mutant.path)
    for test in mutant.tests.split():
        path, _, name = test.partition("::")
        assert f"def {name}(" in (REPOSITORY / path).read_text() if name else (REPOSITORY / path).exists()


def test_names_are_unique_and_every_room_has_two() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert min(Counter(mutant.room for mutant in MUTANTS).values()) >= 2


@pytest.fixture
def mutant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mutant:
    """Of a repository of its own."""
    monkeypatch.setattr(mutants, "REPOSITORY", tmp_path)
    monkeypatch.setattr(mutants, "SOURCE", tmp_path)
    found = Mutant("late", "log/writer.py", "sync()", "pass", "nothing is synced", "tests")
    found.path.parent.mkdir()
    found.path.write_text("write()\nsync()\n")
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -q -m a"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    return found


def test_a_file_is_as_it_was_whatever_happens(mutant: Mutant) -> None:
    def broken_off() -> None:
        with applied(mutant):
            assert mutant.path.read_text() == "write()\npass\n"
            raise KeyboardInterrupt

    before = mutant.path.stat()
    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert mutant.path.read_text() == "write()\nsync()\n"
    assert mutant.path.stat().st_mtime_ns == before.st_mtime_ns, "else Python takes the mutant that it has compiled"


def test_changes_that_are_not_committed_are_left_alone(mutant: Mutant) -> None:
    mutant.path.write_text("mine()\nsync()\n")
    with pytest.raises(MutantError, match="not committed"), applied(mutant):
        pass
    assert mutant.path.read_text() == "mine()\nsync()\n"


@pytest.mark.parametrize("text", ["write()\n", "sync()\nsync()\n"])
def test_a_text_that_does_not_stand_there_once_is_named(mutant: Mutant, text: str) -> None:
    mutant.path.write_text(text)
    with pytest.raises(MutantError, match=r"late: its text stands [02] times in log/writer\.py"), applied(mutant):
        pass
