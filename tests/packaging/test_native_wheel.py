"""The package headgate-native: one wheel for every Python of a platform, or a line that says what is missing."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.packaging.wheels import build
from tests.support import REPOSITORY, executable

USE = """
import sys
sys.path.insert(0, sys.argv[1])
from headgate_api.event import json_text
print(json_text.is_plain.__code__.co_filename.startswith(sys.argv[1]), json_text.is_plain(b'{"a":1}'))
"""


def used(folder: Path) -> str:
    return subprocess.run([sys.executable, "-c", USE, folder], stdout=subprocess.PIPE, text=True, check=True).stdout


def test_it_is_built_from_the_sdist_and_loaded_by_any_python(sdist: Path, tmp_path: Path) -> None:
    executable("cc")
    done = build(sdist / "packaging" / "native", tmp_path, "--wheel")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("headgate_native-*.whl")
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "there")
    assert used(tmp_path / "there") == "True True\n"


@pytest.mark.parametrize(
    ("program", "said"), [(None, "there is no program cc"), ("echo no crti.o >&2; exit 1", "no crti.o")]
)
def test_a_build_without_a_compiler_says_what_to_do(
    program: str | None, said: str, sdist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program:
        (tmp_path / "cc").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = build(sdist / "packaging" / "native", tmp_path, "--wheel")
    assert done.returncode != 0
    assert said in done.stderr
    assert "hint: sudo apt-get install build-essential, or go without headgate-native" in done.stderr


def test_one_that_does_not_load_is_as_one_that_is_not_there(tmp_path: Path) -> None:
    """As where it was built for another C library."""
    package = tmp_path / "headgate_native"
    package.mkdir()
    source = REPOSITORY / "packaging" / "native" / "headgate_native" / "__init__.py"
    (package / "__init__.py").write_text(source.read_text())
    (package / "plain_json.so").write_bytes(b"\x7fELF")
    assert used(tmp_path) == "False False\n"
