"""Rules of the house that no linter knows: names, docstrings, the length of files, and what texts refer to."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support import REPOSITORY

SOURCE = REPOSITORY / "src"
PACKAGES = sorted(path for path in SOURCE.iterdir() if path.is_dir())
JAVA = REPOSITORY / "connector" / "src" / "main" / "java" / "dev" / "headgate" / "connector"
LINES_MAX = 800
LONG = {"headgate_api/limits.py"}
"""A table: every limit with its reason."""


@functools.cache
def modules() -> list[str]:
    """Every module that a person wrote, by its path below `src`."""
    paths = (path for path in sorted(SOURCE.rglob("*.py")) if not path.name.endswith("_pb2.py"))
    return [str(path.relative_to(SOURCE)) for path in paths]


def texts() -> Iterator[Path]:
    """Everything that explains something: the modules and the pages."""
    yield from (SOURCE / name for name in modules())
    pages = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]
    yield from (page for page in pages if page.name != "CHANGELOG.md")


def test_no_public_class_of_a_room_has_the_name_of_another_there() -> None:
    """But for the nodes of the dialects' trees, which are called what the dialect calls them."""
    owners = defaultdict(list)
    for name in modules():
        if "/dialects/" not in name:
            for class_ in re.findall(r"^ *class ([A-Za-z]\w*)[:(\[]", (SOURCE / name).read_text(), re.MULTILINE):
                owners[tuple(name.split("/")[:-1][:2]), class_].append(name)
    assert len(owners) > 1_000, "classes were not found"
    shared = {name: files for name, files in owners.items() if len(files) > 1}
    assert shared == {}


def test_every_module_begins_with_what_it_is() -> None:
    """Not with what one may ask about it."""
    first = {name: re.match(r'r?"""(.+)', (SOURCE / name).read_text()) for name in modules()}
    assert [name for name, line in first.items() if line is None] == []
    assert [name for name, line in first.items() if line and "?" in line[1]] == []


def test_no_module_is_long() -> None:
    lines = {name: (SOURCE / name).read_text().count("\n") for name in modules()}
    assert {name for name, count in lines.items() if count > LINES_MAX} == LONG


def test_files_that_texts_name_exist() -> None:
    """`room/module.py`, seen from the text's folder, those above, the packages, the examples; `: Name` is in it."""
    named = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|java|proto|md|sh|toml))(?:: (\w+))?`")
    gone = set()
    for text in texts():
        folders = [*text.parents, *PACKAGES, SOURCE, JAVA, REPOSITORY / "examples"]
        for file, name in named.findall(text.read_text()):
            path = next((folder / file for folder in folders if (folder / file).is_file()), None)
            if path is None or name not in path.read_text():
                gone.add(f"{text.relative_to(REPOSITORY)}:{file}")
    assert gone == set()


def test_modules_that_texts_name_exist() -> None:
    """`headgate.room.module`, or a name in it."""
    gone = []
    for text in texts():
        for dotted in re.findall(r"`(headgate\w*\.\w+(?:\.\w+)+)`", text.read_text()):
            place, rest = SOURCE, dotted.split(".")
            while rest and (place / rest[0]).is_dir():
                place /= rest.pop(0)
            if place not in (SOURCE, *PACKAGES) and rest:
                module = place / f"{rest[0]}.py"
                code = module if module.is_file() else place / "__init__.py"
                if not all(re.search(rf"\b{name}\b", code.read_text()) for name in rest[code == module :]):
                    gone.append(f"{text.relative_to(REPOSITORY)}: {dotted}")
    assert gone == []
