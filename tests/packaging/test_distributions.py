"""The installed distributions: no file belongs to two of them, and none is missing."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

import headgate_api
from tests.support import REPOSITORY

_INSTALLS_ANOTHERS = re.compile(
    r"""(?:\b(?:(?:pip|pipx|uv|tool)\s+(?:install|add|run)|uvx)|--from)  # a command that installs,
        (?:\s+(?:-\S+|dist|"[^"]*"|\\))*\s+  # its options,
        ['"]?headgate(?![\w/.-])              # and the name, alone or with an extra
        |\bheadgate\[cluster""",
    re.VERBOSE,
)
"""The package `headgate` of the public registry is somebody else's."""
_LOCKED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==", re.MULTILINE)


def _locked() -> list[importlib.metadata.Distribution]:
    """The distributions of requirements/dev.txt that this platform has, and their files."""
    names = _LOCKED.findall((REPOSITORY / "requirements" / "dev.txt").read_text())
    found = {re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(): one for one in importlib.metadata.distributions()}
    return [found[name] for name in names if name in found]


def shared_files(distributions: Iterable[importlib.metadata.Distribution]) -> dict[str, list[str]]:
    """The files that more than one distribution installs, and which these are.

    Where there is one, the order of installation decides whose copy is there, and removing one damages the other.
    """
    owners: dict[str, list[str]] = defaultdict(list)
    for distribution in distributions:
        for path in {str(path) for path in distribution.files or ()}:
            owners[path].append(distribution.metadata["Name"])
    assert len(owners) > 1_000, "the records were not read"
    return {path: names for path, names in owners.items() if len(names) > 1}


@pytest.mark.slow
def test_no_two_distributions_install_the_same_file() -> None:
    assert shared_files(_locked()) == {}


def test_no_file_of_a_distribution_is_missing() -> None:
    """One is when a distribution that installed the same file was removed; a new environment has it again."""
    missing = [
        f"{distribution.metadata['Name']}: {path}"
        for distribution in _locked()
        for path in distribution.files or ()
        if path.suffix != ".pyc" and not Path(path.locate()).exists()
    ]
    assert missing == [], "remove .venv, then run make setup"


def test_the_name_in_messages_is_that_of_the_package() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert headgate_api.DISTRIBUTION == project["name"] != "headgate"


@pytest.mark.parametrize(
    ("line", "is_fault"),
    [
        ("pip install headgate", True),
        ("pip install 'headgate[cluster]'", True),
        ("uvx --find-links dist --from headgate headgate demo", True),
        ('pipx install --pip-args "--find-links dist" headgate', True),
        ("uv add headgate", True),
        ("pip install headgate-broker", False),
        ("pip install dist/headgate_client-*.whl", False),
        ("pip install --no-deps dist/headgate*.whl", False),
        ("uvx --find-links dist --from headgate-broker headgate demo", False),
    ],
)
def test_a_line_that_installs_the_package_of_others_is_found(line: str, is_fault: bool) -> None:
    assert bool(_INSTALLS_ANOTHERS.search(line)) == is_fault


def test_no_file_tells_anybody_to_install_the_package_of_others() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    faults = [
        f"{name}: {found[0]}"
        for name in listed.splitlines()
        if name != "tests/packaging/test_distributions.py" and (REPOSITORY / name).is_file()
        for found in _INSTALLS_ANOTHERS.finditer((REPOSITORY / name).read_text(errors="replace"))
    ]
    assert faults == []
