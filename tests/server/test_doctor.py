"""`headgate doctor`: what it finds where something is wrong, and that it changes nothing."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headgate.objects.store.store import Store
from headgate.server import doctor
from headgate.settings import Settings
from headgate.testing.server import free_port
from headgate_cli.main import app
from tests.commands import headgate

HEADGATE = Path(sys.executable).with_name("headgate")
Found = dict[str, dict[str, str]]


def examined(data: Path, *options: str, **environment: str) -> tuple[int, Found]:
    """Exit status, and the findings by what they are of."""
    listen = ("--listen", f"127.0.0.1:{free_port()}", "--grpc", "off")
    status, out, said = headgate("doctor", "--json", "--data", data, *listen, *options, **environment)
    assert said == ""
    return status, found_in(out)


def found_in(out: str) -> Found:
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) >= 8
    return {one["check"]: one for one in lines}


def test_a_machine_that_runs_these_tests_can_run_a_server(tmp_path: Path) -> None:
    status, found = examined(tmp_path / "data")
    assert status == 0, found
    assert found["java"]["message"].startswith("Java ")
    assert found["fdatasync"]["message"].endswith(" ms")
    assert {one["verdict"] for one in found.values()} <= {"ok", "warning"}
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_is_taken_and_java_that_is_missing_are_failures(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        status, found = examined(tmp_path, "--listen", f"127.0.0.1:{port}", JAVA_HOME=str(tmp_path))
    assert status == 1
    assert {check for check, one in found.items() if one["verdict"] == "failure"} == {"--listen", "java"}
    assert found["--listen"]["message"] == f"cannot listen on 127.0.0.1:{port}: Address already in use"
    assert "JAVA_HOME" in found["java"]["hint"]


def test_the_address_of_the_own_server_that_runs_is_no_failure(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock, socket.create_server(("127.0.0.1", 0)) as server:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status, found = examined(tmp_path, "--listen", f"127.0.0.1:{server.getsockname()[1]}")
    assert status == 0
    assert found["--listen"]["message"].endswith("is taken, and the server of this data directory runs")


def test_a_directory_that_cannot_be_written_is_a_failure() -> None:
    status, found = examined(Path("/proc/headgate"))
    assert status == 1
    assert found["fdatasync"]["verdict"] == "failure"
    assert "/proc" in found["fdatasync"]["message"]


@pytest.mark.parametrize("place", ["file", "file/data", "link"])
def test_what_can_be_no_directory_is_a_failure(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    status, found = examined(tmp_path / place)
    assert status == 1
    assert found["data"]["message"] == f"{tmp_path / place.split('/')[0]} is no directory"


def test_a_full_disk_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> float:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(doctor, "_sync_ms", full)
    (found,) = (one for one in doctor.findings(Settings(data=tmp_path)) if one.check == "fdatasync")
    assert (found.verdict, found.hint) == ("failure", "make room there, or choose another one with --data")


def test_one_address_for_two_things_is_a_failure(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    status, found = examined(tmp_path, "--listen", address, "--grpc", address)
    assert status == 1
    assert (found["--listen"]["verdict"], found["--grpc"]["verdict"]) == ("ok", "failure")


@contextmanager
def closed(folder: Path) -> Iterator[None]:
    """This user may not look into a directory; root becomes nobody for that."""
    user = os.geteuid()
    folder.chmod(0)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o700)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("doctor", "cannot be read: "),
        ("upgrade --check", "cannot be read: "),
        ("health", "no server answers in"),
        ("backup create -", "cannot be read: "),
    ],
)
def test_a_data_directory_of_another_user_is_told(tmp_path: Path, command: str, said: str) -> None:
    folder = tmp_path / "closed"
    (folder / "data").mkdir(parents=True)
    arguments = [*command.split(), "--data", str(folder / "data")]
    CliRunner().invoke(app, arguments)  # imports what nobody may not read
    with closed(folder):
        done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, type(done.exception)) == (1, SystemExit), done.exception
    assert said in done.output
    assert "user" in done.output


def test_few_files_are_a_warning(tmp_path: Path) -> None:
    # A shell sets the limit: code of ours between fork and exec would run beside the threads of gRPC, which ends some.
    command = (
        f"ulimit -n 1024; exec {HEADGATE} doctor --json --data {tmp_path} --listen 127.0.0.1:{free_port()} --grpc off"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    found = found_in(done.stdout)
    assert found["open files"]["verdict"] == "warning"
    assert "LimitNOFILE" in found["open files"]["hint"]


def test_a_file_system_in_memory_is_a_warning() -> None:
    """The system's own table says which file systems those are; one that may be written has them all checked."""
    places = [Path("/dev/shm"), Path("/run"), Path("/tmp")]
    writable = [place for place in places if place.is_dir() and os.access(place, os.W_OK)]
    for place in writable:
        in_memory = doctor.filesystem_of(place) in {"tmpfs", "ramfs"}
        status, found = examined(place)
        assert status == 0
        assert ("which loses all events with the power" in found["fdatasync"].get("hint", "")) == in_memory, place


def test_the_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    (tmp_path / "in memory" / "deeper").mkdir(parents=True)
    mounts = tmp_path / "mounts"
    escaped = str(tmp_path).replace("\\", "\\134").replace(" ", "\\040")
    mounts.write_text(
        f"/dev/sda / ext4 rw 0 0\ntmpfs {escaped}/in\\040memory tmpfs rw 0 0\nproc /proc proc rw 0 0\n"
        f"/dev/sdb {escaped}/hidden xfs rw 0 0\nramfs {escaped}/hidden ramfs rw 0 0\n"
    )
    kinds = {
        name: doctor.filesystem_of(tmp_path / name, mounts) for name in ("", "in memory", "in memory/deeper", "hidden")
    }
    assert kinds == {"": "ext4", "in memory": "tmpfs", "in memory/deeper": "tmpfs", "hidden": "ramfs"}
    assert doctor.filesystem_of(tmp_path, tmp_path / "none") == ""


def test_a_setting_that_does_not_do_is_told() -> None:
    status, _, said = headgate("doctor", "--listen", "here")
    assert status == 1
    assert said.startswith("error: --listen: ")
    assert "hint: " in said


def test_a_database_that_has_lost_commits_is_a_failure(tmp_path: Path) -> None:
    def said() -> tuple[str, str, str]:
        (one,) = (one for one in doctor.findings(Settings(data=tmp_path)) if one.check == "databases")
        return one.verdict, one.message, one.hint

    path = tmp_path / "control.db"
    Store.open(path).close()
    assert said() == ("ok", "1 have everything that was committed to them", "")
    path.unlink()
    verdict, message, hint = said()
    assert (verdict, message) == ("failure", f"{path} is missing, but 1 commits were made to it")
    assert "--accept-lost control.db" in hint
