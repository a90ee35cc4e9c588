"""What stops `headgate serve` before anything is started is told in one sentence with a remedy."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.cli.serve import exit_status
from headgate.server import datadir, listening, preflight
from headgate.settings import Settings
from headgate.testing.server import free_port
from headgate_api.errors import InvalidInputError
from tests.commands import refused, serve

HEADGATE = Path(sys.executable).with_name("headgate")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_taken_port_is_told(tmp_path: Path, taken: int) -> None:
    """By a process of its own, which shows that nothing else is said."""
    command = [HEADGATE, "serve", "--data", tmp_path / "data", "--listen", f"127.0.0.1:{taken}", "--grpc", "off"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    error, hint = refused(done.stderr.splitlines())
    assert (done.returncode, done.stdout) == (1, "")
    assert error == f"error: cannot listen on 127.0.0.1:{taken}: Address already in use"
    assert "--listen" in hint
    assert not (tmp_path / "data").exists(), "nothing has been begun"


def test_a_taken_port_of_grpc_is_told(tmp_path: Path, taken: int) -> None:
    status, lines = serve(tmp_path / "data", "--grpc", f"127.0.0.1:{taken}")
    error, hint = refused(lines)
    assert (status, error) == (1, f"error: cannot listen on 127.0.0.1:{taken}: Address already in use")
    assert "--grpc" in hint


def test_one_port_for_both_is_told(tmp_path: Path) -> None:
    both = f"127.0.0.1:{free_port()}"
    status, lines = serve(tmp_path / "data", "--listen", both, "--grpc", both)
    assert (status, "--grpc" in refused(lines)[1]) == (1, True)


def test_an_address_of_another_machine_is_told(tmp_path: Path) -> None:
    status, lines = serve(tmp_path / "data", "--listen", "192.0.2.1:8080", "--allow-anonymous")
    assert (status, refused(lines)[0]) == (1, "error: cannot listen on 192.0.2.1:8080: Cannot assign requested address")


def test_an_address_that_this_user_may_not_have_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No restart helps: the status says so. Tests may run as root, who may have any address."""

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(socket.socket, "bind", denied)
    with pytest.raises(listening.AddressDeniedError, match="Permission denied") as caught:
        listening.bind("127.0.0.1", 80, "--listen")
    assert exit_status(caught.value) == 78
    assert exit_status(listening.AddressError("taken")) == 1


def test_a_full_disk_may_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(datadir.DataDirectoryError, match="No space left") as caught:
        datadir.owned(Settings(data=tmp_path / "data")).__enter__()
    assert exit_status(caught.value) == 1


def test_a_key_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    status, lines = serve(tmp_path / "data", "--tls-cert", str(tmp_path / "none"), "--tls-key", str(tmp_path / "none"))
    error, _ = refused(lines)
    assert (status, str(tmp_path / "none") in error) == (78, True)


def test_a_machine_without_java_is_told(tmp_path: Path) -> None:
    status, lines = serve(tmp_path / "data", PATH=str(tmp_path))
    error, hint = refused(lines)
    assert (status, error) == (78, "error: no Java on the PATH")
    assert "JAVA_HOME" in hint


def test_a_data_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    status, lines = serve(tmp_path / "f" / "d")
    error, hint = refused(lines)
    assert status == 78
    assert error == f"error: the data directory {tmp_path}/f/d cannot be used: Not a directory"
    assert "--data" in hint


def test_a_data_directory_of_another_server_is_told(tmp_path: Path) -> None:
    with datadir.owned(Settings(data=tmp_path)):
        status, lines = serve(tmp_path)
    error, _ = refused(lines)
    assert (status, error) == (1, f"error: another server uses the data directory {tmp_path}")


@pytest.mark.parametrize(("length", "fits"), [(107, True), (108, False)])
def test_a_data_directory_whose_sockets_cannot_be_opened_is_refused(tmp_path: Path, length: int, fits: bool) -> None:
    """And one that is not refused has sockets that can be."""
    longest = Settings(data=tmp_path).dispatcher_socket(0)
    data = tmp_path / ("d" * (length - len(os.fsencode(longest)) - 1))
    settings = Settings(data=data, dispatchers=1)
    assert len(os.fsencode(settings.dispatcher_socket(0))) == length
    settings.run_directory.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        if fits:
            preflight.check_settings(settings)
            listener.bind(str(settings.dispatcher_socket(0)))
        else:
            with pytest.raises(InvalidInputError, match="has 108 bytes, and a socket's path may have 107") as refusal:
                preflight.check_settings(settings)
            assert refusal.value.hint.startswith("a shorter --data, or a relative one")
            with pytest.raises(OSError, match="too long"):
                listener.bind(str(settings.dispatcher_socket(0)))
