"""A real OpenID provider, `oidc-provider` of npm, which has passed the certification of the OpenID Foundation.

Its version and the hashes of its packages are fixed by `tests/fixtures/oidc/package-lock.json`. npm installs it once
below `build/`.
"""

from __future__ import annotations

import base64
import fcntl
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

from headgate.testing import free_port
from tests.support import REPOSITORY, executable

_SOURCE = REPOSITORY / "tests" / "fixtures" / "oidc"
_INSTALLED = REPOSITORY / "build" / "oidc-provider"
AUDIENCE = "urn:headgate"


class Provider:
    """Runs on a port of loopback; a context manager. `url` is the issuer."""

    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._running: subprocess.Popen[str] | None = None

    def __enter__(self) -> Provider:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        folder = _installed()
        command = [executable("node"), str(folder / "provider.mjs"), str(self._port)]
        self._running = subprocess.Popen(
            command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._running.stdout is not None
        assert self._running.stdout.readline() == "listening\n"

    def stop(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.communicate()
            self._running = None

    def token(self, client: str = "ci.writers", audience: str = AUDIENCE) -> str:
        """An access token by client credentials; the group is behind the dot of the client's name."""
        form = {"grant_type": "client_credentials", "resource": audience, "scope": "events"}
        secret = base64.b64encode(f"{client}:secret".encode()).decode()
        request = urllib.request.Request(
            f"{self.url}/token", urllib.parse.urlencode(form).encode(), {"authorization": f"Basic {secret}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(json.load(answer)["access_token"])

    def rotate(self) -> None:
        """New keys take the place of the old ones."""
        urllib.request.urlopen(f"{self.url}/rotate", b"", timeout=60).close()

    def configuration(self) -> str:
        """Kubernetes' file for a server that trusts it."""
        return f"""\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: {self.url}
    audiences: ["{AUDIENCE}"]
  claimMappings:
    username: {{claim: sub, prefix: "oidc:"}}
    groups: {{expression: "claims.groups.map(g, 'oidc:' + g)"}}
    extra: [{{key: example.com/client, valueExpression: claims.client_id}}]
"""


def _installed() -> Path:
    """The folder of the provider with its packages."""
    npm = executable("npm")
    _INSTALLED.mkdir(parents=True, exist_ok=True)
    with (_INSTALLED / ".lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted, mark = (_SOURCE / "package-lock.json").read_bytes(), _INSTALLED / ".installed"
        for name in ("package.json", "package-lock.json", "provider.mjs"):
            shutil.copy(_SOURCE / name, _INSTALLED / name)
        if not mark.exists() or mark.read_bytes() != wanted:
            command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
            subprocess.run(command, cwd=_INSTALLED, check=True, timeout=240)
            mark.write_bytes(wanted)
    return _INSTALLED
