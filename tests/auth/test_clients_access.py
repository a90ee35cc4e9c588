"""What clients show: tokens from files, and contexts of a kubeconfig."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate_api.bearer import TokenSource
from headgate_api.errors import InvalidInputError
from headgate_api.kubeconfig import KubeconfigError, KubeContext, read_context


def config(folder: Path, *, user: Any = None, cluster: Any = None, name: str = "config") -> str:
    path = folder / name
    whole = {
        "clusters": [{"name": "c", "cluster": cluster or {"server": "https://headgate.example:8443/"}}],
        "users": [{"name": "u", "user": user or {"token": "t"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}],
    }
    path.write_text(yaml.safe_dump(whole))
    return str(path)


def test_a_context_says_where_and_who(tmp_path: Path) -> None:
    url = "https://headgate.example:8443"
    assert read_context("here", config(tmp_path)) == KubeContext(url, "shop", token="t")
    files = {"client-certificate": "c.pem", "client-key": "/k.pem", "tokenFile": "token"}
    cluster = {"server": url, "certificate-authority": "ca.pem"}
    found = read_context("here", config(tmp_path, user=files, cluster=cluster))
    assert found == KubeContext(
        url, "shop", str(tmp_path / "ca.pem"), str(tmp_path / "c.pem"), "/k.pem", "", str(tmp_path / "token")
    )


def test_what_the_file_holds_itself_is_put_into_private_files(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    user = {"client-certificate-data": data, "client-key-data": data, "client-key": "other"}
    found = read_context("here", config(tmp_path, user=user))
    for path in (Path(found.client_cert), Path(found.client_key)):
        assert path.read_bytes() == b"PEM"
        assert path.parent.stat().st_mode & 0o777 == 0o700


def test_the_first_file_that_has_a_name_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = config(tmp_path, user={"token": "first"})
    second = config(tmp_path, user={"token": "second"}, name="other")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{first}:{second}")
    assert read_context("here").token == "first"


@pytest.mark.parametrize(
    ("user", "cluster", "message"),
    [
        ({"exec": {"command": "aws"}}, None, "has exec, which Headgate does not do"),
        ({"auth-provider": {"name": "gcp"}}, None, "auth-provider"),
        ({"username": "u", "password": "p"}, None, "username"),
        ({"as": "root"}, None, "has as"),
        ({"token": 1}, None, "token is no text"),
        ({"client-key-data": "!"}, None, "no Base64"),
        ("text", None, "is no object"),
        (None, {"server": "https://x", "insecure-skip-tls-verify": True}, "insecure-skip-tls-verify"),
        (None, {"server": "https://x", "proxy-url": "http://p"}, "proxy-url"),
        (None, {"certificate-authority": "x"}, "has no server"),
    ],
)
def test_what_is_not_done_is_refused_by_name(user: Any, cluster: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=message):
        read_context("here", config(tmp_path, user=user, cluster=cluster))


def test_a_file_that_is_no_kubeconfig_is_told(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="there is no context 'there'") as caught:
        read_context("there", config(tmp_path))
    assert "here" in caught.value.hint
    path = tmp_path / "file"
    for content in ("[1]", "a: {", "contexts: 1"):
        path.write_text(content)
        with pytest.raises(KubeconfigError):
            read_context("here", str(path))
    with pytest.raises(KubeconfigError, match="cannot be read"):
        read_context("here", str(tmp_path / "none"))


def test_a_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    source = TokenSource(path=path)
    assert [source.token(), source.token()] == ["one", "one"]
    path.write_text("another\n")
    assert source.token() == "another"
    assert source.header("127.0.0.1", is_tls=False) == "Bearer another"
    assert TokenSource("text", path).token() == "text"


@pytest.mark.parametrize("content", [b"", b"a b", b"a\nb", b"\xff", b"x" * 20_000, b"a\x00b"])
def test_a_file_without_token_is_told(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match="holds no token"):
        TokenSource(path=path).token()


def test_a_token_stays_off_networks_in_the_clear() -> None:
    source = TokenSource("t")
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9"):
        assert source.header(host, is_tls=False)
    assert source.header("headgate.example", is_tls=True)
    for host in ("192.0.2.1", "headgate.example", "", "localhost.example"):
        with pytest.raises(InvalidInputError, match="others can read it"):
            source.header(host, is_tls=False)
    assert TokenSource().header("headgate.example", is_tls=False) == ""
