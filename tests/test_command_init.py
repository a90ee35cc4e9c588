"""What `headgate init` writes is what a server takes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from headgate.cli.init import FILES
from headgate.settings import Settings
from headgate_api.objects.manifests import read_path
from tests.commands import headgate, told


def test_the_files_are_written_and_pass_the_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = told("init")
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.yaml")} == set(FILES)
    assert told("config", "check", "headgate.yaml") == "headgate.yaml is as it must be\n"
    documents = list(read_path(tmp_path / "objects"))
    assert [document.value["kind"] for document in documents] == ["Broker", "Trigger"]  # type: ignore[index]
    (filter_,) = [one["spec"]["filter"]["expression"] for one in map(_value, documents) if one["kind"] == "Trigger"]
    assert told("filter", "explain", filter_)
    sent = shlex.split(said.splitlines()[-1])
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "order.paid", "data": json.loads(sent[-1])}
    (tmp_path / "event.json").write_text(json.dumps(event))
    assert "true" in told("filter", "test", "--cel", filter_, "event.json")


def _value(document: object) -> dict[str, dict[str, dict[str, str]]]:
    return document.value  # type: ignore[attr-defined, no-any-return]


def test_what_is_written_is_what_holds_without_it() -> None:
    """A file that repeats the defaults goes stale when they change."""
    given = yaml.safe_load(FILES["headgate.yaml"])
    assert given.pop("manifests") == "objects"
    defaults = Settings()
    for name, value in given.items():
        assert str(getattr(defaults, name)) in (str(value), f"{value}.0"), name


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    told("init", tmp_path / "shop")
    (tmp_path / "shop" / "headgate.yaml").write_text("mine")
    said = headgate("init", tmp_path / "shop")
    assert (said.exit_code, "exists already" in said.stderr) == (1, True)
    assert (tmp_path / "shop" / "headgate.yaml").read_text() == "mine"
