"""An OpenID provider to try Headgate with: `oidc-provider` of npm, which the OpenID Foundation has certified.

Run it with `python -m examples.openid_provider`; it needs Node.js. npm installs it once below `build/`, in the version
that `examples/openid/package-lock.json` fixes. A client gets a token by client credentials (its secret is `secret`),
and the token's claim `groups` holds its group. It is for one machine: its keys are new at each start.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).resolve().with_name("openid")
_INSTALLED = _SOURCE.parent.parent / "build" / "oidc-provider"
_INSTALL_S_MAX = 240
CLIENTS = {"root": "platform", "ann": "team-a", "bob": "team-b"}
"""Clients, each with its group."""


def command(port: int, clients: Mapping[str, str]) -> list[str]:
    """What starts the provider, which prints a line when it listens; installs it first.

    Args:
        port: Of loopback.
        clients: Groups by the names of clients.

    Raises:
        SystemExit: Node.js is missing.
    """
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        raise SystemExit("error: the OpenID provider needs Node.js and npm\nhint: apt-get install nodejs npm")
    return [node, str(_installed() / "provider.mjs"), str(port), *(f"{name}={clients[name]}" for name in clients)]


def _installed() -> Path:
    """The folder of the provider with its packages."""
    _INSTALLED.mkdir(parents=True, exist_ok=True)
    with (_INSTALLED / ".lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted, mark = (_SOURCE / "package-lock.json").read_bytes(), _INSTALLED / ".installed"
        for name in ("package.json", "package-lock.json", "provider.mjs"):
            shutil.copy(_SOURCE / name, _INSTALLED / name)
        if not mark.exists() or mark.read_bytes() != wanted:
            install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
            subprocess.run(install, cwd=_INSTALLED, check=True, timeout=_INSTALL_S_MAX)
            mark.write_bytes(wanted)
    return _INSTALLED


def main() -> None:
    """Serves until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9100)
    with contextlib.suppress(KeyboardInterrupt):
        subprocess.run(command(parser.parse_args().port, CLIENTS), check=False)


if __name__ == "__main__":
    main()
