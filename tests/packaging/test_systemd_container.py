"""The unit in a container that systemd has booted: who it runs as, that it starts, keeps its events, and stops."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY, executable

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(600)]

PYTHON = Path(f"/usr/bin/python3.{sys.version_info.minor}")
"""A Python that the unit's user can read: it sees nothing of any home."""
PROBE = r"""#!/bin/sh
# Runs in the container, as root; what it finds goes to /out.
say() { echo "$1=$2" >> /out/found; }
ready() {
  for _ in $(seq 90); do curl -fs http://127.0.0.1:8080/readyz > /dev/null && return; sleep 1; done
  say not_ready "$(systemctl is-active headgate)"
  journalctl -u headgate --no-pager > /out/journal
}
events() { curl -fs "http://127.0.0.1:8080/default/default/events?from=earliest&limit=10" | grep -c '"id":"kept"'; }
ready
main=$(systemctl show headgate -p MainPID --value)
say uid "$(awk '/^Uid:/ {print $2}' /proc/$main/status)"
say capabilities "$(awk '/^CapEff:/ {print $2}' /proc/$main/status)"
say mode "$(stat -L -c %a /var/lib/headgate)"
say status "$(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8080/default/default \
  -H 'content-type: application/cloudevents+json' -d '{"specversion":"1.0","id":"kept","source":"/s","type":"t"}')"
systemctl restart headgate
ready
say kept "$(events)"
kill -9 "$(systemctl show headgate -p MainPID --value)"
sleep 3
ready
say kept_after_kill "$(events)"
say restarts "$(systemctl show headgate -p NRestarts --value)"
systemctl stop headgate
say result "$(systemctl show headgate -p Result --value)"
say exit_status "$(systemctl show headgate -p ExecMainStatus --value)"
systemctl poweroff
"""
PROBE_UNIT = """[Unit]
After=headgate.service
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/sh /probe.sh
"""
EXTRA = f"""[Service]
Environment=PYTHONPATH=/opt/headgate/src JAVA_HOME={os.path.realpath("/usr/bin/java").removesuffix("/bin/java")}
Environment=HEADGATE_LISTEN=127.0.0.1:8080
"""
"""What a wheel would need none of: the sources stand beside the environment, and there is no /etc of the machine."""


def installed(folder: Path) -> dict[Path, str]:
    """Headgate as in /opt, with this environment's packages; what is bound where in the container."""
    program = Path(sys.executable).with_name("headgate").read_text().split("\n", 1)[1]
    home = folder / "headgate"
    for below in ("bin", "lib", "src"):
        (home / below).mkdir(parents=True)
    (home / "bin" / "python3").symlink_to(PYTHON)
    (home / "pyvenv.cfg").write_text(f"home = {PYTHON.parent}\ninclude-system-site-packages = false\n")
    (home / "bin" / "headgate").write_text(f"#!/opt/headgate/bin/python3\n{program}")
    (home / "bin" / "headgate").chmod(0o755)
    units = "/etc/systemd/system"
    texts = {
        f"{units}/probe.service": PROBE_UNIT,
        f"{units}/headgate.service.d/test.conf": EXTRA,
        "/probe.sh": PROBE,
        "/etc/nsswitch.conf": "passwd: files systemd\ngroup: files systemd\nhosts: files\n",
        "/etc/hosts": "127.0.0.1 localhost\n",  # not the machine's own name, which Spark must not need
    }
    masked = [f"{units}/{one}.service" for one in ("systemd-firstboot", "systemd-networkd-wait-online")]
    for place in masked:
        texts[place] = ""  # nobody answers its questions, and there is no network to wait for
    bound = {
        home: "/opt/headgate",
        Path(sys.prefix) / "lib": "/opt/headgate/lib",
        REPOSITORY / "src": "/opt/headgate/src",
        REPOSITORY / "examples/systemd/headgate.service": f"{units}/headgate.service",
    }
    for place, text in texts.items():
        file = folder / place.strip("/").replace("/", "-")
        file.write_text(text)
        bound[file] = place
    return bound | {one: str(one) for one in (*Path("/etc").glob("java-*"), Path("/etc/alternatives"))}


def test_the_unit_runs_in_a_container(tmp_path: Path) -> None:
    if not PYTHON.is_file() or os.geteuid() != 0:
        pytest.skip(f"a container needs root, and {PYTHON}")
    out = tmp_path / "out"
    out.mkdir()
    binds = [f"--bind-ro={source}:{place}" for source, place in installed(tmp_path).items()]
    nspawn = [executable("systemd-nspawn"), "--quiet", "--volatile=yes", "--directory=/", "--register=no"]
    nspawn += ["--keep-unit", "--private-network", *binds, f"--bind={out}:/out", "--boot"]
    nspawn += [f"systemd.wants={one}.service" for one in ("headgate", "probe")]
    done = subprocess.run(
        nspawn, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400
    )
    told = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    print(told[-4_000:], *(one.read_text()[-4_000:] for one in out.glob("journal")))
    found = dict(line.split("=", 1) for line in (out / "found").read_text().splitlines())
    assert int(found.pop("uid")) > 1_000, "it has a user of its own"
    assert found == {
        "capabilities": "0" * 16,
        "mode": "700",
        "status": "202",
        "kept": "1",
        "kept_after_kill": "1",
        "restarts": "1",
        "result": "success",
        "exit_status": "0",
    }
