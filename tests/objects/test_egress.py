"""Which URLs may events go to? The policy over every way to write an address, then at admission."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.objects.api.admission import Admission
from headgate.objects.kinds.egress import UrlPolicy, UrlRefusedError, ports
from headgate.server.listening import url_policy
from headgate.settings import Settings, networks_of
from headgate_api.errors import InvalidInputError
from headgate_api.objects.errors import InvalidObjectError
from headgate_api.objects.kinds import Kind
from tests.objects.support import broker, trigger

LOCAL = UrlPolicy()
PUBLIC = UrlPolicy(reach="public", own_url="http://127.0.0.1:8080")

LOOPBACK = [
    "http://127.0.0.1/",
    "http://127.1/",
    "http://0x7f.1/",
    "http://0x7f000001/",
    "http://2130706433/",
    "http://0177.0.0.1/",
    "http://017700000001/",
    "http://127.255.255.254:99/",
    "http://[::1]/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://%31%32%37.0.0.1/",
    "http://\u2460\u2461\u2466.0.0.1/",
]
PRIVATE = ["http://10.1.2.3/", "http://172.16.0.1/", "http://192.168.0.1/", "http://[fd12::1]/", "http://100.64.0.1/"]
NEVER = [
    "http://169.254.169.254/latest/meta-data",
    "http://169.254.1.1/",
    "http://0xa9fea9fe/",
    "http://[::ffff:169.254.169.254]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[fe80::1]/",
    "http://[fd00:ec2::254]/",
    "http://100.100.100.200/",
    "http://168.63.129.16/",
    "http://0.0.0.0:8080/",
    "http://0/",
    "http://[::]/",
    "http://224.0.0.1/",
    "http://[ff02::1]/",
    "http://255.255.255.255/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_x",
    "http://user@example.com/",
    "http://user:secret@example.com/",
    "//example.com/",
    "/relative",
    "http://",
    "http://example.com:99999/",
    "http://[::1/",
    "http://a..b/",
    "http://.example.com/",
    "http://example.com../",
    "http://./",
    "http://" + "a" * 64 + ".example.com/",
    "http://" + "\u00fc" * 60 + ".example.com/",
    "http://1.2.3.4.5/",
    "https:127.0.0.1",
    "http:/example.com/",
    "http:///example.com/",
    "http:/\\127.0.0.1/",
    "http://example.com\\@127.0.0.1/",
    " http://example.com/",
    "http://exa\tmple.com/",
    "http://example.com:0/",
    "http://example.com/#there",
    "http://127.0.0.1:8080/default/orders#there",
    "http://127.0.0.1:8080/default/orders%0d%0aX:%20y",
    "http://127.0.0.1:8080/default/orders%7F",
    "http://" + "a" * 3_000 + ".example/",
]
GOOD = ["http://example.com/", "https://example.com:8443/a?b=c", "http://8.8.8.8/", "http://[2606:4700::1111]/"]
GOOD += ["http://example.com./", "http://" + "a" * 63 + ".example.com/", "http://a_b/"]


def allowed(policy: UrlPolicy, url: str) -> bool:
    try:
        policy.check(url)
    except UrlRefusedError:
        return False
    return True


@pytest.mark.parametrize("url", NEVER)
@pytest.mark.parametrize("policy", [LOCAL, PUBLIC], ids=["local", "public"])
def test_what_no_policy_lets_through(policy: UrlPolicy, url: str) -> None:
    with pytest.raises(UrlRefusedError):
        policy.check(url)


@pytest.mark.parametrize("url", LOOPBACK + PRIVATE)
def test_this_machine_and_its_networks_are_local_not_public_however_they_are_written(url: str) -> None:
    assert allowed(LOCAL, url)
    assert not allowed(PUBLIC, url)


SPECIAL = ["192.88.99.1", "192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.9", "100.127.255.255"]
SPECIAL += ["2001:db8::1", "3fff::1", "2001::1", "2001:2::1", "2001:10::1", "2002:808:808::1", "100::1", "5f00::1"]
SPECIAL += ["fec0::1", "4000::1", "64:ff9b:1::808:808", "64:ff9b::c058:6301", "::ffff:192.88.99.1"]
ROUTED = ["192.0.0.9", "192.0.0.10", "192.31.196.1", "192.52.193.1", "192.175.48.1", "100.128.0.1", "192.88.98.1"]
ROUTED += ["2001:1::1", "2001:3::1", "2001:4:112::1", "2001:20::1", "2620:4f:8000::1", "64:ff9b::808:808"]


@pytest.mark.parametrize("address", SPECIAL)
def test_special_addresses_of_the_registries_are_not_public(address: str) -> None:
    assert PUBLIC.address_problem(ipaddress.ip_address(address)).endswith("is not public")


@pytest.mark.parametrize("address", ROUTED)
def test_what_the_registries_call_global_is_public(address: str) -> None:
    assert PUBLIC.address_problem(ipaddress.ip_address(address)) == ""


@pytest.mark.parametrize("url", GOOD)
def test_public_ones_are_let_through_by_both(url: str) -> None:
    assert allowed(LOCAL, url)
    assert allowed(PUBLIC, url)


def test_deny_wins_over_allow_and_allow_over_reach() -> None:
    policy = UrlPolicy(
        reach="public", allow=networks_of("10.0.0.0/8, ::1"), deny=networks_of("10.9.0.0/16, 8.8.8.0/24")
    )
    assert allowed(policy, "http://10.1.1.1/")
    assert allowed(policy, "http://[::1]/")
    assert allowed(policy, "http://[::ffff:10.1.1.1]/")
    assert not allowed(policy, "http://10.9.1.1/")
    assert not allowed(policy, "http://8.8.8.8/")
    assert not allowed(policy, "http://[::ffff:8.8.8.8]/")
    assert not allowed(policy, "http://192.168.1.1/")
    assert allowed(UrlPolicy(allow=networks_of("169.254.0.0/16")), "http://169.254.1.1/"), "who asks for it gets it"


def test_schemes_and_ports() -> None:
    policy = UrlPolicy(schemes=frozenset({"https"}), ports=ports("443, 8000-8999"))
    assert allowed(policy, "https://example.com/")
    assert allowed(policy, "https://example.com:8443/")
    assert not allowed(policy, "https://example.com:9000/")
    assert not allowed(policy, "http://example.com:8443/")


def test_brokers_of_this_server_may_always_be_sent_to_and_its_other_paths_may_not() -> None:
    assert PUBLIC.check("http://127.0.0.1:8080/ns/broker").trusted
    assert not allowed(PUBLIC, "http://127.0.0.1:8080/apis/eventing.knative.dev/v1/namespaces/default/triggers")
    assert not allowed(PUBLIC, "http://127.0.0.1:8081/ns/broker")


@given(st.integers(0, 2**32 - 1))
def test_an_ipv4_address_means_the_same_in_every_disguise(number: int) -> None:
    plain = ipaddress.IPv4Address(number)
    for policy in (LOCAL, PUBLIC):
        refused = bool(policy.address_problem(plain))
        assert allowed(policy, f"http://{plain}/") is not refused
        assert allowed(policy, f"http://{number}/") is not refused
        assert allowed(policy, f"http://[::ffff:{plain}]/") is not refused
        if refused:
            assert not allowed(policy, f"http://[64:ff9b::{plain}]/")
            assert not allowed(policy, f"http://[2002:{number >> 16:x}:{number & 0xFFFF:x}::1]/")


def test_a_refusal_is_a_cause_of_the_object(admission: Admission) -> None:
    tight = Admission(admission.store, UrlPolicy(reach="public", allow=networks_of("127.0.0.0/8")))
    bad = {"uri": "http://10.0.0.1/"}
    cases = [
        (Kind.TRIGGER, trigger(subscriber=bad), "spec.subscriber.uri"),
        (Kind.TRIGGER, trigger(delivery={"deadLetterSink": bad}), "spec.delivery.deadLetterSink.uri"),
        (Kind.BROKER, broker("b", delivery={"deadLetterSink": bad}), "spec.delivery.deadLetterSink.uri"),
    ]
    for kind, document, field in cases:
        with pytest.raises(InvalidObjectError) as caught:
            tight.create(kind, document)
        assert [cause.field for cause in caught.value.causes] == [field]
        assert "10.0.0.1 is not public" in caught.value.causes[0].message
        assert caught.value.http_status == 422
    metadata = {"subscriber": {"uri": "http://169.254.169.254/x"}}
    with pytest.raises(InvalidObjectError):
        admission.create(Kind.TRIGGER, trigger(**metadata))


def test_a_uri_relative_to_a_broker_cannot_leave_it(admission: Admission) -> None:
    tight = Admission(admission.store, PUBLIC)
    ref = {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "default"}
    with pytest.raises(InvalidObjectError):
        tight.create(Kind.TRIGGER, trigger(subscriber={"ref": ref, "uri": "//10.0.0.1/x"}))
    with pytest.raises(InvalidObjectError):
        tight.create(Kind.TRIGGER, trigger(subscriber={"ref": ref, "uri": "http://10.0.0.1/x"}))
    tight.create(Kind.TRIGGER, trigger(subscriber={"ref": ref}))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("egress_allow", "10.0.0.1/8"),
        ("egress_deny", "everything"),
        ("egress_ports", "0"),
        ("egress_ports", "90-80"),
        ("egress_ports", "http"),
        ("egress_schemes", "ftp"),
        ("egress_schemes", ""),
    ],
)
def test_settings_that_cannot_be_read_are_named(name: str, text: str) -> None:
    with pytest.raises(InvalidInputError, match=f"HEADGATE_{name.upper()}"):
        url_policy(Settings(**{name: text}))


def test_settings_make_the_policy() -> None:
    policy = url_policy(Settings(egress="public", egress_allow="10.0.0.0/8", egress_ports="443", listen="127.0.0.1:99"))
    assert policy == UrlPolicy(
        "public", networks_of("10.0.0.0/8"), ports=((443, 443),), own_url="http://127.0.0.1:99", own=policy.own
    )
    assert [(one.host, one.port, one.takes_events) for one in policy.own] == [("", 99, True), ("", 8081, False)]


API = "/apis/eventing.knative.dev/v1/namespaces/default/triggers"
CONTROL_PATHS = [
    API,
    "/api/v1/namespaces",
    "/metrics",
    "/",
    "/apis/x",
    "/ns/broker/events",
    "/ns/../apis/eventing.knative.dev/v1",
    "/%61pis/eventing.knative.dev%2Fv1%2Fnamespaces%2Fdefault%2Ftriggers",
    "/ns/broker%2Fevents",
]


@pytest.mark.parametrize("path", CONTROL_PATHS)
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "2130706433", "[::ffff:127.0.0.1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]"]
)
def test_the_servers_own_api_is_no_subscriber_however_it_is_written(host: str, path: str) -> None:
    policy = url_policy(Settings(listen="127.0.0.1:8080", egress_allow="127.0.0.0/8, ::1"))
    with pytest.raises(UrlRefusedError, match="own API"):
        policy.check(f"http://{host}:8080{path}")
    assert allowed(policy, f"http://{host}:8080/ns/broker"), "its brokers are subscribers as before"
    assert allowed(policy, f"http://{host}:8088{path}"), "another port is another program"


def test_the_grpc_port_takes_no_deliveries() -> None:
    policy = url_policy(Settings(listen="127.0.0.1:8080", grpc="127.0.0.1:8081"))
    assert not allowed(policy, "http://127.0.0.1:8081/ns/broker")
    assert allowed(url_policy(Settings(listen="127.0.0.1:8080", grpc="off")), "http://127.0.0.1:8081/ns/broker")


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "[::]:8080"])
def test_who_listens_everywhere_is_at_each_address_of_the_machine(listen: str) -> None:
    policy = url_policy(Settings(listen=listen))
    for host in ("127.0.0.1", "127.0.0.2", "[::1]"):
        assert not allowed(policy, f"http://{host}:8080{API}")
        assert allowed(policy, f"http://{host}:8080/ns/broker")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        mine = probe.getsockname()[0]
    assert not allowed(policy, f"http://{mine}:8080{API}")
    assert allowed(policy, f"http://192.0.2.1:8080{API}"), "somebody else's"


def test_who_listens_at_one_address_leaves_the_machines_others_to_others() -> None:
    assert allowed(url_policy(Settings(listen="127.0.0.1:8080")), f"http://127.0.0.2:8080{API}")


def test_a_name_that_is_listened_at_is_known_without_a_resolver() -> None:
    assert not allowed(url_policy(Settings(listen="localhost:8080")), f"http://LOCALHOST:8080{API}")


def test_a_uri_relative_to_a_broker_cannot_lead_to_the_api(admission: Admission) -> None:
    own = Admission(admission.store, url_policy(Settings(listen="127.0.0.1:8080")))
    ref = {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "default"}
    with pytest.raises(InvalidObjectError, match="own API"):
        own.create(Kind.TRIGGER, trigger(subscriber={"ref": ref, "uri": API}))
    for sink in (trigger(delivery={"deadLetterSink": {"uri": f"http://127.0.0.1:8080{API}"}}),):
        with pytest.raises(InvalidObjectError, match="own API"):
            own.create(Kind.TRIGGER, sink)
