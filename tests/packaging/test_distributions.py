"""The installed distributions: no file belongs to two of them, and none is missing."""

from __future__ import annotations

import importlib.metadata
import re
from collections import defaultdict
from collections.abc import Iterable

from tests.support import REPOSITORY

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


def test_no_two_distributions_install_the_same_file() -> None:
    assert shared_files(_locked()) == {}


def test_no_file_of_a_distribution_is_missing() -> None:
    """One is when a distribution that installed the same file was removed; a new environment has it again."""
    missing = [
        f"{distribution.metadata['Name']}: {path}"
        for distribution in _locked()
        for path in distribution.files or ()
        if path.suffix != ".pyc" and not path.locate().exists()
    ]
    assert missing == [], "remove .venv, then run make setup"
