"""A real OpenID provider, `oidc-provider` of npm, which has passed the certification of the OpenID Foundation."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping

from examples.openid_provider import command

from headgate.testing.server import free_port
from tests.support import executable

AUDIENCE = "urn:headgate"
CI = {"ci": "writers"}


class Provider:
    """Runs on a port of loopback; a context manager. `url` is the issuer.

    Args:
        clients: Groups by the names of clients.
        console: Where a browser comes back to that signs in; empty for none.
    """

    def __init__(self, clients: Mapping[str, str] = CI, console: str = "") -> None:
        self._clients = clients
        self._console = console
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._running: subprocess.Popen[str] | None = None

    def __enter__(self) -> Provider:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        assert executable("npm")
        self._running = subprocess.Popen(
            command(self._port, self._clients),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | ({"CONSOLE_URL": self._console} if self._console else {}),
        )
        assert self._running.stdout is not None
        assert self._running.stdout.readline() == f"listening on {self.url}\n"

    def stop(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.communicate()
            self._running = None

    def token(self, client: str = "ci", audience: str = AUDIENCE) -> str:
        """An access token by client credentials."""
        form = {"grant_type": "client_credentials", "resource": audience, "scope": "events"}
        secret = base64.b64encode(f"{client}:secret".encode()).decode()
        request = urllib.request.Request(
            f"{self.url}/token", urllib.parse.urlencode(form).encode(), {"authorization": f"Basic {secret}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(json.load(answer)["access_token"])

    def keys(self) -> list[dict[str, str]]:
        """Its public keys, as JWK."""
        with urllib.request.urlopen(f"{self.url}/jwks", timeout=60) as answer:
            return list(json.load(answer)["keys"])

    def rotate(self) -> None:
        """New keys take the place of the old ones."""
        urllib.request.urlopen(f"{self.url}/rotate", b"", timeout=60).close()

    def configuration(self, prefix: str = "oidc:") -> str:
        """Kubernetes' file for a server that trusts it; `prefix` begins the names of its users and groups."""
        return f"""\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: {self.url}
    audiences: ["{AUDIENCE}"]
  claimMappings:
    username: {{claim: sub, prefix: "{prefix}"}}
    groups: {{expression: "claims.groups.map(g, '{prefix}' + g)"}}
    extra: [{{key: example.com/client, valueExpression: claims.client_id}}]
"""
