"""The names of the server, and pages that send requests under another one."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from pydantic import ValidationError

from headgate.server import hosts as module
from headgate.server.hosts import HostCheck, HostHeaderError, Hosts, MisdirectedError
from headgate.settings import Settings
from tests.ingress.support import Answer, fallback

LOOPBACK = Hosts("127.0.0.1")


def ask(
    hosts: Hosts, *headers: tuple[str, str], method: str = "POST", path: str = "/ns/b", version: str = "1.1"
) -> Any:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    scope = {"type": "http", "http_version": version, "method": method, "path": path, "headers": raw}
    asyncio.run(HostCheck(fallback, hosts)(scope, None, send))  # type: ignore[arg-type]
    return Answer(sent)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8080", "LOCALHOST:8080", "localhost.:8080", "127.0.0.1", "127.0.0.1:1", "127.1.2.3"),
        *("[::1]", "[::1]:8080", socket.gethostname(), f"{socket.gethostname()}:8080"),
    ],
)
def test_names_and_addresses_of_this_machine_are_its_own(host: str) -> None:
    assert ask(LOOPBACK, ("host", host)).status == 299


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.nip.io", "xlocalhost", "0x7f.1"),
        *("10.0.0.5", "[fd00::1]", "2130706433", "0.0.0.0"),
    ],
)
def test_other_names_are_misdirected(host: str) -> None:
    answer = ask(LOOPBACK, ("host", host))
    assert (answer.status, answer.problem["code"], answer.headers["connection"]) == (421, "misdirected", "close")
    assert "--allowed-host" in answer.problem["hint"]
    assert ask(LOOPBACK, ("host", host), method="GET").status == 421


@pytest.mark.parametrize("path", ["/apis/eventing.knative.dev/v1", "/api", "/readyz"])
def test_the_api_answers_with_a_status(path: str) -> None:
    answer = ask(LOOPBACK, ("host", "evil.example"), path=path, method="GET")
    found = json.loads(answer.body)
    assert (answer.status, found["kind"], found["code"]) == (421, "Status", 421)
    assert "--allowed-host" in found["message"]


@pytest.mark.parametrize("path", ["/ns/b", "/apis/eventing.knative.dev/v1"])
@pytest.mark.parametrize(
    ("coding", "status"),
    [("chunked", 299), (" Chunked", 299), ("gzip, chunked", 501), ("gzip", 501), ("", 501), ("chunked, gzip", 501)],
)
def test_a_body_has_no_transfer_coding_but_chunked(path: str, coding: str, status: int) -> None:
    answer = ask(LOOPBACK, ("host", "localhost"), ("transfer-encoding", coding), path=path)
    assert answer.status == status
    if status == 501:
        assert answer.headers["connection"] == "close"
        assert b"without compression" in answer.body


@pytest.mark.parametrize("host", ["", " ", "a b", "a/b", "user@localhost", "localhost:80:80", "localhost:999999", "é"])
def test_what_is_no_host_is_a_bad_request(host: str) -> None:
    assert (ask(LOOPBACK, ("host", host)).status, ask(LOOPBACK, ("host", host)).problem["code"]) == (400, "host-header")


def test_http_1_1_wants_one_host() -> None:
    assert ask(LOOPBACK).status == 400
    assert ask(LOOPBACK, ("host", "localhost"), ("host", "localhost")).status == 400
    assert ask(LOOPBACK, version="1.0").status == 299


def test_the_address_that_is_listened_on_and_names_that_are_given() -> None:
    hosts = Hosts("10.0.0.5", allowed=Settings(allowed_host="Headgate.example.com, *.svc, [FD00::1]").allowed_hosts)
    for own in ("10.0.0.5:80", "headgate.example.com", "HEADGATE.EXAMPLE.COM.:80", "a.ns.svc", "[fd00::1]:80"):
        hosts.check(own.encode())
    for other in ("10.0.0.6", "example.com", "x.headgate.example.com", "svc", "asvc", "a.svc.example", "[fd00::2]"):
        with pytest.raises(MisdirectedError):
            hosts.check(other.encode())


@pytest.mark.parametrize("listens", ["0.0.0.0", "::"])
def test_who_listens_everywhere_has_any_address_and_no_further_name(listens: str) -> None:
    hosts = Hosts(listens)
    for own in ("10.0.0.5:8080", "[fd00::1]:8080", "localhost"):
        hosts.check(own.encode())
    for other in ("evil.example", "10.0.0.5.nip.io", "1.2.3"):
        with pytest.raises(MisdirectedError):
            hosts.check(other.encode())


def test_any_name_may_be_allowed_but_it_must_be_one() -> None:
    hosts = Hosts("127.0.0.1", allowed=Settings(allowed_host="*").allowed_hosts)
    hosts.check(b"evil.example:8080")
    with pytest.raises(HostHeaderError):
        hosts.check(b"a b")


@pytest.mark.parametrize("value", ["http://x", "a b", "x:80", "*.*", "*x", "a/b", "*."])
def test_a_setting_that_is_no_host_is_refused(value: str) -> None:
    with pytest.raises(ValidationError, match="is no host"):
        Settings(allowed_host=value)


def test_a_host_is_looked_at_once_and_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOSTS_KEPT_MAX", 8)
    looked: list[str] = []
    monkeypatch.setattr(Hosts, "_is_own", lambda _, name: not looked.append(name))
    hosts = Hosts("127.0.0.1")
    for _ in range(5):
        hosts.check(b"localhost:8080")
    assert looked == ["localhost"]
    for port in range(100):
        hosts.check(b"localhost:%d" % port)
        assert len(hosts._known) <= 8


OWN = ("host", "localhost:8080")


@pytest.mark.parametrize(
    "header",
    [
        ("origin", "http://evil.example"),
        ("origin", "http://localhost"),
        ("origin", "http://localhost:3000"),
        ("origin", "null"),
        ("origin", ""),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "QUERY"])
def test_a_write_for_another_page_is_refused(header: tuple[str, str], method: str) -> None:
    answer = ask(LOOPBACK, OWN, header, method=method)
    assert (answer.status, answer.problem["code"]) == (403, "cross-site")


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_a_read_for_another_page_is_the_browsers_to_refuse(method: str) -> None:
    headers = (OWN, ("origin", "http://evil.example"), ("sec-fetch-site", "cross-site"))
    assert ask(LOOPBACK, *headers, method=method).status == 299


@pytest.mark.parametrize(
    "headers",
    [
        [("origin", "http://localhost:8080"), ("sec-fetch-site", "same-origin")],
        [("origin", "HTTPS://LOCALHOST:8080")],
        [("sec-fetch-site", "none")],
    ],
)
def test_a_page_of_our_own_may_write(headers: list[tuple[str, str]]) -> None:
    assert ask(LOOPBACK, OWN, *headers).status == 299
