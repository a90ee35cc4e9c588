"""A server that knows its users by tokens of a real OpenID provider and of a file, with Secrets and an audit log."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.objects.api.bootstrap import ROLES
from headgate.testing.server import Server
from tests.auth.provider import CI, Provider
from tests.certificates import Authority
from tests.commands import told
from tests.support import token_line

OWN_ROLES = [name for name in ROLES if name.startswith("headgate:")]
USERS = {
    "root": "system:masters",
    "ann": "team-a",
    "bob": "team-b",
    "eve": "nobody",
    **{name.partition(":")[2]: "nobody" for name in OWN_ROLES},
}
"""Users of the provider, each with a group; who tries what an administrator may is in it by its word alone."""
CREW, STRANGER = "system:serviceaccount:shop:crew", "system:serviceaccount:shop2:crew"
OF_FILE = {"root": "root", "ann": "ann", "bob": "bob", "crew": CREW, "stranger": STRANGER}
"""Users of the file; the token of each is `token-NAME`."""
EVERYTHING = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: everything}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: robots}
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: writers}
"""
"""What the users of test_authentication.py may do is other tests'."""


@dataclass(frozen=True)
class Secured:
    """The server, and how one comes in: `robot` is a token of the file that `headgate token create` made."""

    server: Server
    provider: Provider
    secure: ssl.SSLContext
    folder: Path
    robot: str

    def tokens(self) -> Mapping[str, str]:
        """A token of the provider for each of its users."""
        return {user: self.provider.token(user) for user in USERS}


@contextmanager
def secured_server(folder: Path) -> Iterator[Secured]:
    own = (authority := Authority(folder)).issue("server", ("127.0.0.1",))
    tokens, keys, rights = folder / "tokens.csv", folder / "secrets.key", folder / "rights"
    robot = told("token", "create", "--user", "robot", "--group", "robots", "--file", str(tokens)).strip()
    with tokens.open("a") as file:
        for name, user in OF_FILE.items():
            file.write(token_line(f"token-{name}", user, *(["system:masters"] if name == "root" else [])))
    keys.write_text(key_line("one", 1))
    keys.chmod(0o600)
    rights.mkdir()
    (rights / "everything.yaml").write_text(EVERYTHING)
    with Provider(USERS | CI) as provider:
        (folder / "authentication.yaml").write_text(provider.configuration(prefix=""))
        given = {
            "--manifests": rights,
            "--tls-cert": own.certificate,
            "--tls-key": own.key,
            "--authentication-config": folder / "authentication.yaml",
            "--token-auth-file": tokens,
            "--audit-log-path": folder / "audit.log",
            "--secrets-key-file": keys,
        }
        arguments = tuple(str(one) for pair in given.items() for one in pair)
        secure = authority.context()
        with Server(folder / "data", log=folder / "server.log", arguments=arguments, secure=secure) as server:
            server.token = "token-root"
            yield Secured(server, provider, secure, folder, robot)


def key_line(name: str, number: int) -> str:
    """A line of a file of keys for Secrets."""
    return f"{name}:{base64.b64encode(bytes([number]) * 32).decode()}\n"
