"""The audit log: which requests are in it, in which shape, and that nothing about it touches a request."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import NamedTuple

import pytest

from headgate.auth import audit
from headgate.auth.audit import AuditEntry, AuditLog, is_recorded, line_of, verb_of
from headgate.auth.errors import AuthFileError
from headgate.auth.user import authenticated
from headgate.observe.metrics import AUDIT_LINES
from tests.support import small_disk


class Wanted(NamedTuple):
    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


def entry(path: str = "/x", verb: str = "create") -> AuditEntry:
    return AuditEntry(path, "192.0.2.1", "curl/8", verb, 1_800_000_000.25)


def test_a_line_is_an_event_of_kubernetes() -> None:
    one = entry("/apis/eventing.knative.dev/v1/namespaces/shop/triggers/gold")
    one.user = authenticated("ada", ("dev",), "7", {"example.com/x": ("1",)})
    wanted = Wanted("delete", "eventing.knative.dev", "triggers", "", "shop", "gold")
    one.decided(wanted, is_allowed=True, reason='RBAC: allowed by RoleBinding "b"')
    line = line_of(one, 200, clock_s=lambda: 1_800_000_000.5)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    event = json.loads(line)
    assert len(event.pop("auditID")) == 36
    assert event == {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "stage": "ResponseComplete",
        "requestURI": "/apis/eventing.knative.dev/v1/namespaces/shop/triggers/gold",
        "verb": "delete",
        "user": {
            "username": "ada",
            "groups": ["dev", "system:authenticated"],
            "uid": "7",
            "extra": {"example.com/x": ["1"]},
        },
        "sourceIPs": ["192.0.2.1"],
        "userAgent": "curl/8",
        "objectRef": {
            "resource": "triggers",
            "namespace": "shop",
            "name": "gold",
            "apiGroup": "eventing.knative.dev",
        },
        "responseStatus": {"metadata": {}, "code": 200},
        "requestReceivedTimestamp": "2027-01-15T08:00:00.250000Z",
        "stageTimestamp": "2027-01-15T08:00:00.500000Z",
        "annotations": {
            "authorization.k8s.io/decision": "allow",
            "authorization.k8s.io/reason": 'RBAC: allowed by RoleBinding "b"',
        },
    }


def test_writes_and_refusals_are_recorded_and_reads_are_not() -> None:
    for method, recorded in (("GET", False), ("HEAD", False), ("OPTIONS", False), ("POST", True), ("DELETE", True)):
        assert is_recorded(entry(verb=verb_of(method)), 200) is recorded
    for status in (401, 403, 429):
        assert is_recorded(entry(verb="get"), status)
    assert not is_recorded(entry(verb="get"), 404)
    hidden = entry(verb="get")
    hidden.decided(Wanted("get"), is_allowed=False, reason="")
    assert is_recorded(hidden, 404)
    review = entry(verb="create")
    review.decided(Wanted("list"), is_allowed=True, reason="")
    assert not is_recorded(review, 200)


def test_hostile_texts_stay_one_line() -> None:
    one = AuditEntry("/a\nb\x00" + "c" * 9_000, "x", "agent\r\n{}" * 999, "create")
    line = line_of(one, 400, "message\n" * 999)
    assert line.count(b"\n") == 1
    assert len(line) < 8_000
    assert json.loads(line)["requestURI"].startswith("/a\nb\x00c")


def lines(path: Path) -> list[str]:
    return [json.loads(line)["requestURI"] for line in path.read_text().splitlines()]


def test_the_log_is_rotated_by_size(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for number in range(6):
        with AuditLog(path, 1, 2) as log:
            log.record(entry(f"/{number}"), 201)
    assert lines(path) == ["/5"]
    assert lines(tmp_path / "audit.log.1") == ["/4"]
    assert lines(tmp_path / "audit.log.2") == ["/3"]
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        ".audit.log.lock", "audit.log", "audit.log.1", "audit.log.2",
    ]  # fmt: skip
    assert path.stat().st_mode & 0o777 == 0o600
    with AuditLog(path, 1, 0) as log:
        log.record(entry("/6"), 201)
    assert lines(path) == ["/6"]


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with AuditLog(path, 1 << 20, 2) as log:
        path.rename(tmp_path / "moved")
        log.record(entry("/1"), 201)
    assert lines(path) == ["/1"]


def _write(path: Path, name: str) -> None:
    with AuditLog(path, 20_000, 50) as log:
        for number in range(500):
            log.record(entry(f"/{name}/{number}"), 201)


def test_several_processes_write_one_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    spawning = multiprocessing.get_context("spawn")
    processes = [spawning.Process(target=_write, args=(path, str(number))) for number in range(2)]
    for one in processes:
        one.start()
    for one in processes:
        one.join(120)
    files = [one for one in tmp_path.iterdir() if one.name.startswith("audit.log")]
    found = [line for one in files for line in lines(one)]
    assert max(one.stat().st_size for one in files) <= 20_000, "however many lines are written at once"
    assert sorted(found) == sorted(f"/{p}/{n}" for p in range(2) for n in range(500))


def test_a_full_disk_touches_no_request(tmp_path: Path) -> None:
    failed, before = AUDIT_LINES.labels("failed"), AUDIT_LINES.labels("failed").value
    with small_disk(tmp_path / "disk", 64) as disk:
        log = AuditLog(disk / "audit.log", 1 << 20, 2)
        (disk / "filler").write_bytes(b"x" * 40_000)
        for number in range(500):
            log.record(entry(f"/{number}"), 201)
        log.close()
    assert failed.value > before


def test_a_full_queue_drops_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "AUDIT_QUEUE_MAX", 0)
    dropped, before = AUDIT_LINES.labels("dropped"), AUDIT_LINES.labels("dropped").value
    with AuditLog(tmp_path / "audit.log", 1 << 20, 2) as log:
        log.record(entry(), 201)
    assert dropped.value == before + 1
    assert (tmp_path / "audit.log").read_bytes() == b""


def test_what_cannot_be_said_is_counted_and_touches_no_request(tmp_path: Path) -> None:
    failed, before = AUDIT_LINES.labels("failed"), AUDIT_LINES.labels("failed").value
    with AuditLog(tmp_path / "audit.log", 1 << 20, 2) as log:
        log.record(AuditEntry("/", "", "", "create", float("nan")), 201)
    assert failed.value == before + 1


def test_a_file_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(AuthFileError, match="--audit-log"):
        AuditLog(tmp_path / "none" / "audit.log", 1, 1)
