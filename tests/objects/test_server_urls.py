"""The addresses in a broker's status, in each mode of TLS."""

from __future__ import annotations

import pytest

from headgate.objects.kinds.status import ServerUrls, broker_status
from headgate_api.objects.kinds import BROKER_CLASS_ANNOTATION, Address, Broker, Kind, Metadata

NOW = "2026-01-31T00:00:00Z"


def status_of(server: ServerUrls, **annotations: str) -> tuple[Address | None, tuple[Address, ...]]:
    broker = Broker(
        api_version=Kind.BROKER.api_version,
        kind=Kind.BROKER,
        metadata=Metadata(name="b", namespace="ns", annotations=annotations),
    )
    found = broker_status(broker, server=server, now=NOW)
    return found.address, found.addresses


def test_without_tls_there_is_one_address() -> None:
    http = Address(name="http", url="http://h:80/ns/b")
    assert status_of(ServerUrls(("http://h:80",), "CA")) == (http, ())


def test_strict_names_tls_alone() -> None:
    https = Address(name="https", url="https://h:443/ns/b", ca_certs="CA")
    assert status_of(ServerUrls(("https://h:443",), "CA")) == (https, (https,))


def test_permissive_names_both_and_prefers_plain() -> None:
    https, http = (
        Address(name="https", url="https://h:1/ns/b", ca_certs="CA"),
        Address(name="http", url="http://h:2/ns/b"),
    )
    assert status_of(ServerUrls(("https://h:1", "http://h:2"), "CA")) == (http, (https, http))


@pytest.mark.parametrize("url", ["http://h", "https://h"])
def test_a_broker_of_another_class_has_none(url: str) -> None:
    assert status_of(ServerUrls((url,)), **{BROKER_CLASS_ANNOTATION: "Kafka"}) == (None, ())
