"""Does the process that reads have room for as many readers as it admits?"""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.server import child
from headgate.server.parts import Role, ServerPart
from headgate.server.processes import reader
from headgate.settings import Settings
from headgate_api.limits import READERS_MAX


class StopError(Exception):
    pass


def test_every_reader_finds_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[int] = []

    def no_store(*_: object) -> None:
        raise StopError

    monkeypatch.setattr(child, "raise_file_limit", wanted.append)
    monkeypatch.setattr(child, "on_stop", lambda _: None)
    monkeypatch.setattr(reader.Store, "open", no_store)
    with pytest.raises(StopError):
        reader.run(child.Context(Settings(data=tmp_path, partitions=8), bytes(32), ServerPart(Role.READER)))
    (files,) = wanted
    assert files >= READERS_MAX * (1 + 3 * 8)  # a socket; of each partition the offsets and two segments
