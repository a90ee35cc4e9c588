from __future__ import annotations

from pathlib import Path

import pytest

from headgate.storage.files import replace_whole


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    replace_whole(path, b"old")
    seen = []
    replace = Path.replace

    def look(self: Path, target: Path) -> Path:
        seen.append(path.read_bytes())
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", look)
    replace_whole(path, b"new")
    assert (seen, path.read_bytes()) == ([b"old"], b"new")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
