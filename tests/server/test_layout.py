"""The number of dispatchers changes whole or not at all, whenever the change is broken off."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from headgate.server import datadir
from headgate.server.datadir import LayoutError, arrange, by_cores, settled
from headgate.settings import Settings
from headgate.storage.files import DispatcherDirectory


def spread(before: Sequence[DispatcherDirectory], after: Sequence[DispatcherDirectory]) -> None:
    """A rewriting: the letters of all old files, dealt out."""
    letters = sorted("".join((own.path / "letters").read_text() for own in before))
    for number, own in enumerate(after):
        (own.path / "letters").write_text("".join(letters[number :: len(after)]))


def nothing(before: Sequence[DispatcherDirectory], after: Sequence[DispatcherDirectory]) -> None:
    raise AssertionError("there is nothing to write anew")


def held(data: Path) -> list[str]:
    """What each dispatcher has."""
    count = json.loads((data / "dispatcher" / "layout.json").read_text())["dispatchers"]
    assert sorted(path.name for path in (data / "dispatcher").iterdir()) == [*map(str, range(count)), "layout.json"]
    return [(data / "dispatcher" / str(number) / "letters").read_text() for number in range(count)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Of two dispatchers."""
    arrange(tmp_path, 2, nothing)
    for number, letters in enumerate(("ace", "bdf")):
        (tmp_path / "dispatcher" / str(number) / "letters").write_text(letters)
    return tmp_path


def test_a_new_one_is_empty_and_the_same_number_changes_nothing(data: Path) -> None:
    arrange(data, 2, nothing)
    assert held(data) == ["ace", "bdf"]


def test_another_number_writes_everything_anew(data: Path) -> None:
    arrange(data, 3, spread)
    assert held(data) == ["ad", "be", "cf"]
    arrange(data, 1, spread)
    assert held(data) == ["abcdef"]
    assert [path.name for path in data.iterdir()] == ["dispatcher"]


def test_a_disk_that_refuses_leaves_all_as_it_was(data: Path) -> None:
    def full(before: Sequence[DispatcherDirectory], after: Sequence[DispatcherDirectory]) -> None:
        (after[0].path / "letters").write_text("a")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        arrange(data, 1, full)
    assert held(data) == ["ace", "bdf"]
    arrange(data, 1, spread)
    assert held(data) == ["abcdef"]


def killed(data: Path, step: int) -> bool:
    """Changes to three in a process that ends at once before its file operation `step`; whether it came so far."""
    child = os.fork()
    if child == 0:
        steps = iter(range(step))

        def hook(event: str, _: object) -> None:
            if event.startswith(("os.", "open", "shutil.")) and next(steps, None) is None:
                os._exit(9)

        sys.addaudithook(hook)
        try:
            arrange(data, 3, spread)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 9


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("wanted", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_it_may_be_killed_at_any_instant(tmp_path: Path, wanted: int) -> None:
    step = 0
    while True:
        data = tmp_path / str(step)
        data.mkdir()
        arrange(data, 2, nothing)
        for number, letters in enumerate(("ace", "bdf")):
            (data / "dispatcher" / str(number) / "letters").write_text(letters)
        was_killed = killed(data, step)
        arrange(data, wanted, spread)
        assert sorted("".join(held(data))) == list("abcdef"), step
        assert [path.name for path in data.iterdir()] == ["dispatcher"], step
        if not was_killed:
            break
        step += 1
    assert step > 30


def test_a_dispatcher_that_is_missing_is_refused(data: Path) -> None:
    (data / "dispatcher" / "1").rename(data / "elsewhere")
    for number in (1, 2, 3):
        with pytest.raises(LayoutError, match="dispatcher/1"):
            arrange(data, number, spread)


@pytest.mark.parametrize("text", [None, "", "{}", '{"dispatchers": 0}', '{"dispatchers": "2"}'])
def test_a_layout_that_nobody_has_written_is_refused(data: Path, text: str | None) -> None:
    path = data / "dispatcher" / "layout.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(LayoutError):
        arrange(data, 2, spread)


def test_an_old_one_alone_is_not_thrown_away(data: Path) -> None:
    (data / "dispatcher").rename(data / "dispatcher.old")
    with pytest.raises(LayoutError, match="is missing"):
        arrange(data, 2, spread)
    assert (data / "dispatcher.old" / "0" / "letters").read_text() == "ace"


def test_without_a_setting_it_is_what_it_was_and_at_first_by_cores(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(datadir.os, "cpu_count", lambda: 12)
    assert settled(Settings(data=tmp_path)).dispatchers == 3
    arrange(tmp_path, 2, nothing)
    assert settled(Settings(data=tmp_path)).dispatchers == 2
    assert settled(Settings(data=tmp_path, dispatchers=1)).dispatchers == 1
    assert [by_cores(cores) for cores in (1, 2, 4, 8, 1_000)] == [1, 1, 1, 2, 16]
