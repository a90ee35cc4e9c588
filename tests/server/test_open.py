"""A server that is open to everybody is one only if somebody said so, and says it."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.requests import Request
from structlog.testing import capture_logs

from headgate.server import health, preflight
from headgate.server.listening import addresses_of, check_not_open, open_addresses
from headgate.settings import Settings
from headgate_api.errors import InvalidInputError
from tests.commands import refused, serve

TLS = {"tls_cert": "cert", "tls_key": "key"}
KNOWN = {**TLS, "tls_client_ca": "ca"}


def is_open(**given: object) -> list[str]:
    return [address.option for address in open_addresses(Settings(**given))]


def test_an_address_of_other_machines_is_refused_at_start(tmp_path: Path) -> None:
    status, lines = serve(tmp_path / "data", "--listen", "0.0.0.0:0")
    error, hint = refused(lines)
    assert status == 78
    assert error == "error: --listen 0.0.0.0:0: everybody who reaches this address could do everything"
    assert "--tls-client-ca" in hint
    assert "--allow-anonymous" in hint
    assert not (tmp_path / "data").exists()


def test_an_address_of_grpc_is_refused_at_start(tmp_path: Path) -> None:
    status, lines = serve(tmp_path / "data", "--grpc", "[::]:0")
    assert (status, refused(lines)[0][:24]) == (78, "error: --grpc [::]:0: ev")


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, []),
        ({"listen": "localhost:1", "grpc": "[::1]:2"}, []),
        ({"listen": "127.8.9.1:1"}, []),
        ({"listen": "192.0.2.1:1"}, ["--listen"]),
        ({"listen": "0.0.0.0:1", "grpc": "0.0.0.0:2"}, ["--listen", "--grpc"]),
        ({"listen": "0.0.0.0:1", "grpc": "off", **TLS}, ["--listen"]),
        ({"listen": "0.0.0.0:1", "grpc": "0.0.0.0:2", **KNOWN}, []),
        ({"listen": "0.0.0.0:1", "grpc": "off", **KNOWN, "tls_client_auth": "optional"}, []),
        ({"tls_listen": "0.0.0.0:1", "tls_mode": "permissive", **KNOWN}, []),
        ({"tls_grpc": "0.0.0.0:1", "tls_mode": "permissive", **TLS}, ["--tls-grpc"]),
        ({"listen": "0.0.0.0:1", "tls_mode": "permissive", **KNOWN}, []),
        ({"listen": "0.0.0.0:1", "grpc": "0.0.0.0:2", "token_auth_file": "tokens"}, []),
        ({"listen": "0.0.0.0:1", "authentication_config": "issuers"}, []),
        ({"listen": "0.0.0.0:1", "tls_mode": "disabled", **KNOWN}, ["--listen"]),
    ],
)
def test_open_is_what_others_reach_and_nobody_shows_who_they_are(given: dict[str, object], options: list[str]) -> None:
    assert is_open(**given) == options
    if options:
        with pytest.raises(InvalidInputError, match=options[0]):
            check_not_open(Settings(**given))
    else:
        check_not_open(Settings(**given))
    check_not_open(Settings(**given, allow_anonymous=True))


def test_who_lets_anonymous_requests_in_is_open_whatever_else_is_configured() -> None:
    tokens = {"listen": "0.0.0.0:1", "token_auth_file": "tokens", "allow_anonymous": True}
    assert is_open(**tokens) == ["--listen"]
    assert is_open(**tokens, **KNOWN, grpc="off") == []
    assert is_open(**tokens, **KNOWN, grpc="off", tls_client_auth="optional") == ["--listen"]


def test_the_processes_of_a_server_with_users_go_by_their_own_way() -> None:
    assert Settings().is_reached_plain
    assert not Settings(token_auth_file="tokens").is_reached_plain
    assert Settings(token_auth_file="tokens").has_authentication
    assert not Settings(**KNOWN, tls_mode="disabled").has_authentication


def test_files_of_users_that_do_not_work_end_the_start(tmp_path: Path) -> None:
    for option in ("--token-auth-file", "--authentication-config"):
        status, lines = serve(tmp_path / "data", option, str(tmp_path / "none"))
        assert (status, "none cannot be read" in refused(lines)[0]) == (78, True)
    status, lines = serve(tmp_path / "data", "--audit-log-path", str(tmp_path / "none" / "audit.log"))
    assert (status, "cannot be written" in refused(lines)[0]) == (78, True)
    assert not (tmp_path / "data").exists()


def readyz(settings: Settings) -> list[str]:
    (endpoint,) = [route.endpoint for route in health.routes(settings, {}) if route.path == "/readyz"]
    request = Request({"type": "http", "method": "GET", "headers": [], "query_string": b"verbose"})
    return bytes(endpoint(request).body).decode().splitlines()


def test_a_server_that_is_open_says_so(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, listen="0.0.0.0:1", allow_anonymous=True)
    told = "everybody who reaches 0.0.0.0:1 may do everything (--allow-anonymous)"
    assert f"[!]open: {told}" in readyz(settings)
    with capture_logs() as lines:
        preflight.tell_openness(settings)
    assert [(line["log_level"], line["event"]) for line in lines] == [("warning", told)]


def test_a_server_that_is_not_open_says_nothing(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, allow_anonymous=True)
    assert not [line for line in readyz(settings) if line.startswith("[!]")]
    with capture_logs() as lines:
        preflight.tell_openness(settings)
    assert lines == []


def test_the_addresses_of_each_mode() -> None:
    def shown(**given: object) -> list[tuple[str, bool]]:
        return [(address.option, address.is_tls) for address in addresses_of(Settings(**given))]

    assert shown() == [("--listen", False), ("--grpc", False)]
    assert shown(**TLS) == [("--listen", True), ("--grpc", True)]
    plain = [("--listen", False), ("--grpc", False)]
    assert shown(**TLS, tls_mode="permissive") == [*plain, ("--tls-listen", True), ("--tls-grpc", True)]
    assert shown(**TLS, tls_mode="disabled") == plain
    assert shown(**TLS, tls_mode="permissive", grpc="off", tls_grpc="off") == [plain[0], ("--tls-listen", True)]


@pytest.mark.parametrize(
    ("given", "urls", "plain"),
    [
        ({}, ["http://127.0.0.1:8080"], True),
        ({"public_url": "https://x.example/"}, ["https://x.example"], False),
        (TLS, ["https://127.0.0.1:8080"], False),
        ({**TLS, "tls_mode": "permissive"}, ["https://127.0.0.1:8443", "http://127.0.0.1:8080"], True),
        (
            {**TLS, "tls_mode": "permissive", "public_url": "https://x.example"},
            ["https://x.example", "http://127.0.0.1:8080"],
            True,
        ),
        ({"listen": "[::]:80", "allow_anonymous": True}, ["http://[::1]:80"], True),
    ],
)
def test_the_urls_of_clients(given: dict[str, object], urls: list[str], plain: bool) -> None:
    settings = Settings(**given)
    assert (list(settings.urls), settings.url, settings.is_reached_plain) == (urls, urls[-1], plain)


@pytest.mark.parametrize("url", ["x.example", "ftp://x", "https://", "https://x/path", "https://x?q"])
def test_a_public_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is no http or https URL"):
        Settings(public_url=url)
