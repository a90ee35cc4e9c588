"""A context of a kubeconfig: which server, which CA, and what to show it.

Source: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/
"""

from __future__ import annotations

import atexit
import base64
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headgate_api.errors import InvalidInputError
from headgate_api.limits import AUTH_FILE_BYTES_MAX, MANIFEST_DEPTH_MAX

_UNUSABLE_OF_USER: Final = (
    "exec",
    "auth-provider",
    "username",
    "password",
    "as",
    "as-groups",
    "as-user-extra",
    "as-uid",
)
_UNUSABLE_OF_CLUSTER: Final = ("insecure-skip-tls-verify", "proxy-url", "tls-server-name")


class KubeconfigError(InvalidInputError):
    """A kubeconfig cannot be used."""

    code = "kubeconfig"


@dataclass(frozen=True, slots=True)
class KubeContext:
    """What a context says; each text is empty where it says nothing.

    `namespace` is that of objects that do not say theirs; what follows are files, but for the token itself.
    """

    server: str
    namespace: str = ""
    cacert: str = ""
    client_cert: str = ""
    client_key: str = ""
    token: str = ""
    token_file: str = ""

    def or_else(self, other: KubeContext) -> KubeContext:
        """This, and what it does not say from the other: a certificate with its key, a token or its file."""
        certificate = self if self.client_cert or self.client_key else other
        token = self if self.token or self.token_file else other
        return KubeContext(
            self.server or other.server,
            self.namespace or other.namespace,
            self.cacert or other.cacert,
            certificate.client_cert,
            certificate.client_key,
            token.token,
            token.token_file,
        )


def read_context(name: str, paths: str | None = None) -> KubeContext:
    """A context of the kubeconfig.

    Certificates and keys that the file holds itself are put into files that go with the process. `paths` are files with
    `:` between them, of which the first that has the name counts; None for KUBECONFIG, else `~/.kube/config`. Raises
    KubeconfigError.
    """
    text = paths if paths is not None else os.environ.get("KUBECONFIG", "")
    files = [Path(one) for one in text.split(os.pathsep) if one] or [Path.home() / ".kube" / "config"]
    documents = [(path, _document(path)) for path in files if len(files) == 1 or path.exists()]
    place, context = _named(documents, "contexts", "context", name)
    folder, cluster = _named(documents, "clusters", "cluster", _text(context, "cluster", place))
    refused = next((one for one in _UNUSABLE_OF_CLUSTER if cluster.get(one)), None)
    if refused is not None:
        raise KubeconfigError(f"{folder}: the cluster has {refused}, which Headgate does not do", hint="take it out")
    server = _text(cluster, "server", folder)
    if not server:
        raise KubeconfigError(f"{folder}: the cluster of the context {name!r} has no server", hint="an https URL")
    user: Mapping[str, Any] = {}
    if wanted := _text(context, "user", place):
        place, user = _named(documents, "users", "user", wanted)
    for one in _UNUSABLE_OF_USER:
        if user.get(one):
            raise KubeconfigError(
                f"{place}: the user of the context {name!r} has {one}, which Headgate does not do",
                hint="a token, a tokenFile or a client certificate; a plugin's token can be put into --token-file",
            )
    return KubeContext(
        server.rstrip("/"),
        _text(context, "namespace", place),
        _file(cluster, "certificate-authority", folder),
        _file(user, "client-certificate", place),
        _file(user, "client-key", place),
        _text(user, "token", place),
        _path(_text(user, "tokenFile", place), place),
    )


def _document(path: Path) -> Mapping[str, Any]:
    # Here, because most commands need no YAML.
    from headgate_api.yaml_text import YamlLimits, YamlTextError, only_document

    try:
        with path.open("rb") as file:
            content = file.read(AUTH_FILE_BYTES_MAX + 1)
        if len(content) > AUTH_FILE_BYTES_MAX:
            raise KubeconfigError(f"{path} is over {AUTH_FILE_BYTES_MAX} bytes", hint="KUBECONFIG names the file")
        found = only_document(content, YamlLimits(MANIFEST_DEPTH_MAX, None, merges=True))
    except OSError as error:
        raise KubeconfigError(f"{path} cannot be read: {error.strerror}", hint="KUBECONFIG names the file") from error
    except YamlTextError as error:
        raise KubeconfigError(f"{path}: {error.message}", hint="kubectl config view shows a kubeconfig") from error
    if not isinstance(found, dict):
        raise KubeconfigError(f"{path} is no kubeconfig", hint="kubectl config view shows one")
    return found


def _named(
    documents: list[tuple[Path, Mapping[str, Any]]], plural: str, kind: str, name: str
) -> tuple[Path, Mapping[str, Any]]:
    names = []
    for path, document in documents:
        entries = document.get(plural) or []
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict):
                if entry.get("name") == name:
                    found = entry.get(kind) or {}
                    if not isinstance(found, dict):
                        raise KubeconfigError(f"{path}: the {kind} {name!r} is no object", hint="a kubeconfig")
                    return path, found
                names.append(str(entry.get("name")))
    where = ", ".join(str(path) for path, _ in documents) or "no file"
    raise KubeconfigError(
        f"{where}: there is no {kind} {name!r}", hint=f"there are: {', '.join(names[:20])}" if names else "KUBECONFIG"
    )


def _text(entry: Mapping[str, Any], key: str, place: Path) -> str:
    value = entry.get(key) or ""
    if not isinstance(value, str):
        raise KubeconfigError(f"{place}: {key} is no text", hint="put it into quotes")
    return value


def _path(text: str, place: Path) -> str:
    """A file that a kubeconfig names: relative to that."""
    return str(place.parent / text) if text else ""


def _file(entry: Mapping[str, Any], key: str, place: Path) -> str:
    """The file of a certificate or key: of the name, or made of the data beside it, which counts more."""
    data = _text(entry, f"{key}-data", place)
    if not data:
        return _path(_text(entry, key, place), place)
    try:
        content = base64.b64decode(data, validate=True)
    except ValueError as error:
        raise KubeconfigError(f"{place}: {key}-data is no Base64", hint="a file in PEM format, as Base64") from error
    folder = tempfile.mkdtemp(prefix="headgate-")  # for this user alone
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = Path(folder) / f"{key}.pem"
    made.write_bytes(content)
    return str(made)
