"""The unit for systemd: systemd reads it without a complaint, and calls it hardened."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.server.child import FATAL_STATUS
from headgate.settings import Settings
from tests.support import REPOSITORY

UNIT = REPOSITORY / "examples" / "systemd" / "headgate.service"
EXPOSURE_MAX = 20
"""Of 100, as `systemd-analyze security` counts; a service without any hardening has 96."""


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that is here."""
    text = UNIT.read_text()
    program = "/opt/headgate/bin/headgate"
    assert f"ExecStart={program} serve" in text
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace(program, str(Path(sys.executable).with_name("headgate"))))
    return copy


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_systemd_reads_the_unit(unit: Path) -> None:
    done = analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("PrivateTmp=", "PrivateTemp="))
    assert "PrivateTemp" in analyze("verify", "--man=no", unit).stderr


def test_the_unit_is_hardened(unit: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", unit)
    assert done.returncode == 0, done.stdout[-300:]
    print(done.stdout.splitlines()[-1].strip())  # the score
    plain = unit.with_name("plain.service")
    plain.write_text(f"[Service]\nExecStart={sys.executable}\n")
    assert analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", plain).returncode != 0


def test_what_no_restart_mends_is_not_started_again() -> None:
    assert re.findall(r"^RestartPreventExitStatus=(.*)$", UNIT.read_text(), re.MULTILINE) == [str(FATAL_STATUS)]


def test_its_settings_are_settings() -> None:
    given = re.findall(r"^Environment=HEADGATE_([A-Z_]+)=", UNIT.read_text(), re.MULTILINE)
    assert given == ["DATA"]
    assert {name.lower() for name in given} <= set(Settings.model_fields)
