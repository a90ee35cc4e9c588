from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from headgate.auth.context import USER
from headgate.auth.user import authenticated
from headgate.filter.skipping.prune import FilterValueRule
from headgate.log.format import Codec
from headgate.objects.api import http
from headgate.objects.api.admission import Admission
from headgate.objects.kinds.decode import check_shape, decode_object
from headgate.objects.kinds.managers import WriteOptions
from headgate.objects.kinds.patches import merge_patch
from headgate.objects.kinds.specs import DEFAULT_RULE, LogRule, log_rule
from headgate_api.errors import InvalidInputError
from headgate_api.limits import (
    DECODE_BYTES_INLINE,
    DECODE_CONTAINERS_INLINE,
    OBJECT_BYTES_INLINE,
    OBJECT_DEPTH_MAX,
    VALUE_CHARS_MAX,
)
from headgate_api.objects.bodies import FieldValidation, Read, decode_as, decode_json, decode_yaml, yaml_documents
from headgate_api.objects.errors import InvalidObjectError, MalformedObjectError
from headgate_api.objects.kinds import (
    FILTER_ANNOTATION,
    FILTERS_ANNOTATION,
    ORDER_ANNOTATION,
    Broker,
    Kind,
    LogSpec,
    ObjectKey,
    Trigger,
)
from tests.objects.support import broker, trigger
from tests.support import times

REF = {"kind": "Service", "apiVersion": "v1", "name": "svc"}


def refused(admission: Admission, kind: Kind, document: dict[str, Any]) -> dict[str, str]:
    """Field -> message of everything that is wrong with a document."""
    with pytest.raises(InvalidObjectError) as error:
        admission.create(kind, document)
    return {cause.field: cause.message for cause in error.value.causes}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"subscriber": {}}, "spec.subscriber"),
        ({"subscriber": {"uri": "ftp://host/x"}}, "spec.subscriber.uri"),
        ({"subscriber": {"uri": "/relative"}}, "spec.subscriber.uri"),
        ({"subscriber": {"uri": "http://"}}, "spec.subscriber.uri"),
        ({"subscriber": {"uri": "http://host:99999/"}}, "spec.subscriber.uri"),
        ({"subscriber": {"uri": "http://user:secret@host/"}}, "spec.subscriber.uri"),
        ({"subscriber": {"uri": "http://host/#part"}}, "spec.subscriber.uri"),
        ({"subscriber": {"uri": "http://host/\r\nX: y"}}, "spec.subscriber.uri"),
        ({"subscriber": {"uri": "http://host/" + "x" * 2048}}, "spec.subscriber.uri"),
        ({"subscriber": {"uri": 7}}, "spec.subscriber.uri"),
        ({"subscriber": {"ref": REF | {"name": ""}}}, "spec.subscriber.ref.name"),
        ({"subscriber": {"ref": REF, "CACerts": "x"}}, "spec.subscriber.CACerts"),
        ({"broker": "No Such"}, "spec.broker"),
        ({"delivery": {"deadLetterSink": {}}}, "spec.delivery.deadLetterSink"),
        ({"delivery": {"deadLetterSink": {"uri": "ftp://x/"}}}, "spec.delivery.deadLetterSink.uri"),
        (
            {"delivery": {"deadLetterSink": {"uri": "http://x/", "audience": "a\nb"}}},
            "spec.delivery.deadLetterSink.audience",
        ),
        ({"delivery": {"format": "xml"}}, "spec.delivery.format"),
        ({"delivery": {"order": "sorted"}}, "spec.delivery.order"),
        ({"delivery": {"onFilterError": "retry"}}, "spec.delivery.onFilterError"),
        ({"delivery": {"onExpired": "keep"}}, "spec.delivery.onExpired"),
        ({"delivery": {"ttl": "PT0S"}}, "spec.delivery.ttl"),
        ({"delivery": {"ttl": "P31D"}}, "spec.delivery.ttl"),
        ({"delivery": {"ttl": "10m"}}, "spec.delivery.ttl"),
        ({"delivery": {"delay": "P8D"}}, "spec.delivery.delay"),
        ({"delivery": {"delay": "1h"}}, "spec.delivery.delay"),
        ({"delivery": {"parallelism": 0}}, "spec.delivery.parallelism"),
        ({"delivery": {"parallelism": 257}}, "spec.delivery.parallelism"),
        ({"delivery": {"format": "batch", "batchSize": 0}}, "spec.delivery.batchSize"),
        ({"delivery": {"batchSize": 5}}, "spec.delivery.batchSize"),
        ({"delivery": {"rateLimit": 0}}, "spec.delivery.rateLimit"),
        ({"delivery": {"rateLimit": 2_000_000.5}}, "spec.delivery.rateLimit"),
        ({"delivery": {"batchWait": "PT1S"}}, "spec.delivery.batchWait"),
        ({"delivery": {"format": "batch", "batchWait": "PT2M"}}, "spec.delivery.batchWait"),
        ({"delivery": {"retryAfterMax": "P2D"}}, "spec.delivery.retryAfterMax"),
        ({"filters": {}}, "spec.filters"),
        ({"filters": ["ce.type"]}, "spec.filters[0]"),
        ({"filters": [{}]}, "spec.filters[0]"),
        (
            {"filters": [{"exact": {"type": "a"}}, {"any": [{"cel": "true"}, {"prefix": {"type": ""}}]}]},
            "spec.filters[1].any[1].prefix.type",
        ),
        ({"filters": [{"cel": "ce.type ="}]}, "spec.filters[0].cel"),
        ({"filters": [{"cel": "true"}], "filter": {"cel": "1 +"}}, "spec.filter.cel"),
        ({"delivery": {"retry": -1}}, "spec.delivery.retry"),
        ({"delivery": {"retry": True}}, "spec.delivery.retry"),
        ({"delivery": {"retry": 1_001}}, "spec.delivery.retry"),
        ({"delivery": {"backoffPolicy": "cubic"}}, "spec.delivery.backoffPolicy"),
        ({"delivery": {"backoffDelay": "200ms"}}, "spec.delivery.backoffDelay"),
        ({"delivery": {"timeout": "PT0S"}}, "spec.delivery.timeout"),
        ({"delivery": {"timeout": "PT1H"}}, "spec.delivery.timeout"),
        ({"filter": {"expression": "ce.type =="}}, "spec.filter.expression"),
        ({"filter": {"expresion": "true"}}, "spec.filter.expresion"),
        (
            {"filter": {"pulsar": {"property": "a", "operator": "IN", "values": [1, True]}}},
            "spec.filter.pulsar.values[1]",
        ),
        ({"filter": {"pulsar": "CAE="}}, "spec.filter.pulsar.op1"),
        ({"filter": {"attributes": {"type": None}}}, "spec.filter.attributes.type"),
        ({"filter": "true"}, "spec.filter"),
    ],
)
def test_a_broken_rule_names_its_field(admission: Admission, spec: dict[str, Any], field: str) -> None:
    assert field in refused(admission, Kind.TRIGGER, trigger(**spec))


def test_an_invalid_filter_says_where(admission: Admission) -> None:
    causes = refused(admission, Kind.TRIGGER, trigger(filter={"expression": "ce.type == 'a' &&& true"}))
    message = causes["spec.filter.expression"]
    assert "at character" in message
    assert "^" in message


@pytest.mark.parametrize(
    ("spec", "field", "value"),
    [
        ({"filter": {"cel": 7}}, "spec.filter.cel", "7"),
        ({"filter": {"nosuch": {"a": [1, True]}}}, "spec.filter.nosuch", '{"a":[1,true]}'),
        ({"filter": {"cel": "true", "jms": "a = 1"}}, "spec.filter", '{"cel":"true","jms":"a = 1"}'),
        ({"filter": {"attributes": {"a": 7}}}, "spec.filter.attributes.a", "7"),
        ({"filters": [{"exact": {"type": 5}}]}, "spec.filters[0].exact.type", "5"),
        ({"filters": [{"all": []}]}, "spec.filters[0].all", "[]"),
        ({"filters": {"a": 1}}, "spec.filters", '{"a":1}'),
        ({"filter": [1]}, "spec.filter", "[1]"),
        ({"delivery": {"retry": "x"}}, "spec.delivery.retry", '"x"'),
        ({"subscriber": "http://x"}, "spec.subscriber", '"http://x"'),
        ({"filter": {"nosuch": "a" * 9 * VALUE_CHARS_MAX}}, "spec.filter.nosuch", '"aaa'),
        ({"filter": {"nosuch": list(range(VALUE_CHARS_MAX))}}, "spec.filter.nosuch", "[0,1,2"),
    ],
)
def test_a_cause_shows_the_value_that_was_given(
    admission: Admission, spec: dict[str, object], field: str, value: str
) -> None:
    assert refused(admission, Kind.TRIGGER, trigger(**spec))[field].startswith(f"Invalid value: {value}")


def test_several_broken_rules_are_told_at_once(admission: Admission) -> None:
    document = trigger("Not_A_Name", broker="No-Such", filter={"expression": "1"}, delivery={"retry": -1})
    assert set(refused(admission, Kind.TRIGGER, document)) == {
        "metadata.name",
        "spec.broker",
        "spec.delivery.retry",
        "spec.filter.expression",
    }


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({}, "metadata.name"),
        ({"name": "A"}, "metadata.name"),
        ({"name": "a" * 254}, "metadata.name"),
        ({"name": "a", "namespace": "apis"}, "metadata.namespace"),
        ({"name": "a", "namespace": "a.b"}, "metadata.namespace"),
        ({"name": "a", "labels": {"bad key": "x"}}, "metadata.labels"),
        ({"name": "a", "labels": {"key": "bad value"}}, "metadata.labels"),
        ({"name": "a", "labels": {"key": 1}}, "metadata.labels[...]"),
        ({"name": "a", "annotations": {"a/b/c": "x"}}, "metadata.annotations"),
        ({"name": "a", "ownerReferences": [{"name": "x"}]}, "metadata.ownerReferences"),
        ({"name": "a", "annotations": {"headgate.dev/delivery.order": "maybe"}}, None),
    ],
)
def test_metadata_is_validated(admission: Admission, metadata: dict[str, Any], field: str | None) -> None:
    causes = refused(admission, Kind.TRIGGER, trigger() | {"metadata": metadata})
    assert field in causes or (field is None and "headgate.dev/delivery.order" in str(causes))


def test_unknown_fields(admission: Admission) -> None:
    document = trigger(brokr="x") | {"extra": 1}
    with pytest.raises(MalformedObjectError, match=r'strict decoding error: unknown field "spec.brokr"'):
        admission.create(Kind.TRIGGER, document)
    warned = admission.create(Kind.TRIGGER, document, WriteOptions(validation=FieldValidation.WARN))
    assert sorted(warned.warnings) == ['unknown field "extra"', 'unknown field "spec.brokr"']
    document["metadata"] = {"name": "t2"}
    assert admission.create(Kind.TRIGGER, document, WriteOptions(validation=FieldValidation.IGNORE)).warnings == ()


@pytest.mark.parametrize("validation", list(FieldValidation))
def test_no_validation_level_lets_a_filter_fail_open(admission: Admission, validation: FieldValidation) -> None:
    for spec in ({"filter": {"expresion": "false"}}, {"filters": [{"exakt": {"type": "a"}}]}, {"filters": [{}]}):
        with pytest.raises(InvalidObjectError):
            admission.create(Kind.TRIGGER, trigger(**spec), WriteOptions(validation=validation))


def test_what_typed_clients_send_is_taken(admission: Admission) -> None:
    document = trigger(filters=[], delivery=None, filter={"attributes": {"type": "a"}}) | {"status": {}}
    document["metadata"] |= {"creationTimestamp": None, "managedFields": [{"x": 1}], "finalizers": []}
    made = admission.create(Kind.TRIGGER, document).obj
    assert isinstance(made, Trigger)
    assert made.spec.filter == {"attributes": {"type": "a"}}


def test_an_update_that_would_erase_a_filter_unseen_is_refused(admission: Admission) -> None:
    key = ObjectKey(Kind.TRIGGER, "default", "t1")
    made = admission.create(Kind.TRIGGER, trigger(filter={"expression": "ce.type == 'a'"})).obj
    shown = made.metadata.annotations[FILTER_ANNOTATION]
    # As kn does: what it does not know is gone, annotations come back.
    update = trigger(filter={})
    update["metadata"]["annotations"] = {FILTER_ANNOTATION: shown}
    with pytest.raises(InvalidObjectError, match="would erase"):
        admission.replace(key, update)
    # Another filter is what the user wants; so is none, when the annotation went too.
    update["spec"]["filter"] = {"attributes": {"type": "b"}}
    assert FILTER_ANNOTATION not in admission.replace(key, update).obj.metadata.annotations
    admission.replace(key, trigger(filter={"expression": "ce.type == 'a'"}))
    assert admission.replace(key, trigger()).outcome == "configured"


def test_an_update_that_would_erase_filters_unseen_is_refused(admission: Admission) -> None:
    key = ObjectKey(Kind.TRIGGER, "default", "t1")
    made = admission.create(Kind.TRIGGER, trigger(filters=[{"not": {"exact": {"type": "a"}}}])).obj
    update = trigger()
    update["metadata"]["annotations"] = dict(made.metadata.annotations)
    with pytest.raises(InvalidObjectError, match="would erase") as refused:
        admission.replace(key, update)
    assert [cause.field for cause in refused.value.causes] == ["spec.filters"]
    update["metadata"]["annotations"].pop(FILTERS_ANNOTATION)
    assert admission.replace(key, update).outcome == "configured"


def test_who_orders_a_trigger_hears_of_what_order_is_kept(admission: Admission) -> None:
    by_annotation = trigger("t2")
    by_annotation["metadata"]["annotations"] = {ORDER_ANNOTATION: "ordered"}
    for document in (trigger(delivery={"order": "ordered"}), by_annotation):
        (warning,) = admission.create(Kind.TRIGGER, document).warnings
        assert "partitionkey" in warning
    unordered = trigger("t3", delivery={"order": "unordered"})
    unordered["metadata"]["annotations"] = {ORDER_ANNOTATION: "ordered"}
    assert admission.create(Kind.TRIGGER, unordered).warnings == ()


def test_advice_comes_as_warnings(admission: Admission) -> None:
    deprecated = admission.create(Kind.TRIGGER, trigger(filter={"sourceAndType": {"type": "a"}}))
    assert deprecated.warnings == ("spec.filter.sourceAndType: sourceAndType is deprecated, write attributes instead",)
    filters = [{"any": [{"cel": "false"}, {"not": {"sourceAndType": {"type": "a"}}}]}]
    overridden = admission.create(Kind.TRIGGER, trigger("t2", filter={"cel": "true"}, filters=filters))
    assert overridden.warnings[0].startswith("spec.filter has no effect beside spec.filters")
    assert overridden.warnings[1].startswith("spec.filters[0].any[1].not.sourceAndType: ")
    assert admission.create(Kind.TRIGGER, trigger("t3", filter={"cel": "true"}, filters=[])).warnings == ()


@pytest.mark.parametrize("document", [None, [], "x", {}, {"kind": "Trigger"}, {"kind": "Broker", "apiVersion": "v1"}])
def test_no_object_at_all(document: object) -> None:
    with pytest.raises(MalformedObjectError):
        decode_object(Kind.TRIGGER, document)


def test_immutable_fields(admission: Admission) -> None:
    admission.create(Kind.BROKER, broker("b", config={"kind": "ConfigMap", "name": "c", "apiVersion": "v1"}))
    admission.create(Kind.TRIGGER, trigger())
    key = ObjectKey(Kind.BROKER, "default", "b")
    for patch, field in (
        ({"spec": {"config": {"name": "d"}}}, "spec.config"),
        ({"spec": {"config": None}}, "spec.config"),
        ({"spec": {"log": {"filterValue": "source"}}}, "spec.log.filterValue"),
        ({"metadata": {"annotations": {"eventing.knative.dev/broker.class": "Other"}}}, "broker.class"),
    ):
        with pytest.raises(InvalidObjectError, match=rf"{field}.*field is immutable"):
            admission.merge(key, patch)
    with pytest.raises(InvalidObjectError, match=r"spec.broker.*field is immutable"):
        admission.merge(ObjectKey(Kind.TRIGGER, "default", "t1"), {"spec": {"broker": "b"}})


@pytest.mark.parametrize(
    ("log", "field"),
    [
        ({"filterSizeBytes": 15}, "spec.log.filterSizeBytes"),
        ({"filterSizeBytes": 256}, "spec.log.filterSizeBytes"),
        ({"compression": "gzip"}, "spec.log.compression"),
        ({"filterValue": "ce.type =="}, "spec.log.filterValue"),
        ({"filterValue": "data.a == 1"}, "spec.log.filterValue"),
        ({"filterValue": "nobody.knows"}, "spec.log.filterValue"),
        ({"filterValue": "string(publish_time)"}, "spec.log.filterValue"),
    ],
)
def test_a_broker_s_log_is_validated(admission: Admission, log: dict[str, Any], field: str) -> None:
    assert refused(admission, Kind.BROKER, broker("b", log=log)).keys() == {field}


@pytest.mark.parametrize("size", [16, 255])
def test_what_a_broker_says_of_its_log_is_kept(admission: Admission, size: int) -> None:
    log = {"filterSizeBytes": size, "filterValue": "data.customer.id", "compression": "zstd"}
    kept = admission.create(Kind.BROKER, broker("b", log=log)).obj
    assert isinstance(kept, Broker)
    assert log_rule(kept.spec.log) == LogRule(FilterValueRule("data.customer.id", ""), size, Codec.ZSTD)
    assert log_rule(None) == log_rule(LogSpec()) == DEFAULT_RULE


def nested(depth: int) -> object:
    value: object = "x"
    for _ in range(depth):
        value = {"a": value}
    return value


def test_bodies_are_bounded() -> None:
    check_shape(nested(OBJECT_DEPTH_MAX - 1))
    with pytest.raises(MalformedObjectError, match="deeper"):
        check_shape(nested(OBJECT_DEPTH_MAX))
    with pytest.raises(MalformedObjectError, match="lists and objects"):
        decode_json(b"[" * 100_000)
    with pytest.raises(MalformedObjectError, match="JSON"):
        decode_json(b"[" * 10_000)
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for letter, before in zip("bcdefgh", "abcdefg", strict=True):
        bomb += f"{letter}: &{letter} [{', '.join([f'*{before}'] * 10)}]\n"
    with pytest.raises(MalformedObjectError, match="more than"):
        check_shape(decode_yaml(bomb.encode()))
    with pytest.raises(MalformedObjectError):
        check_shape(decode_yaml(b"&a [*a]"))


def test_a_yaml_body_of_too_many_values_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate_api.objects.bodies.OBJECT_NODES_MAX", 101)
    with pytest.raises(MalformedObjectError, match="more than 101 values"):
        decode_yaml(b"[\n" + b"1," * 101 + b"}: no YAML")
    assert decode_yaml(b"[" + b"{a: 1}," * 50 + b"]") == [{"a": 1}] * 50


def test_merge_keys_are_refused_in_a_body_and_taken_in_a_file() -> None:
    bomb = "a0: &a0 {x: 1, y: 2}\n"
    for number in range(1, 12):
        bomb += f"a{number}: &a{number} {{<<: [{', '.join([f'*a{number - 1}'] * 10)}]}}\n"
    with pytest.raises(MalformedObjectError, match=r"merge keys .* at line 2"):
        decode_yaml(bomb.encode())
    assert decode_yaml(b'a: &a {b: 1}\nc: *a\n"<<": d') == {"a": {"b": 1}, "c": {"b": 1}, "<<": "d"}
    assert list(yaml_documents(b"a: &a {b: 1}\nc: {<<: *a}")) == [{"a": {"b": 1}, "c": {"b": 1}}]


@pytest.mark.parametrize(
    "text",
    ["a: .nan", "a: .inf", "1: x", "a: !!binary aGk=", "a: !!set {x}", 'a: "\\ud800"', "a: 0xffffffffffffffffff"],
)
def test_what_json_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(MalformedObjectError):
        check_shape(decode_yaml(text.encode()))


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "\xff", "a: *b", "--- a\n--- b", "a: 1\na: 2", "!!int x", "!x y"])
def test_what_is_no_yaml_is_said_so(text: str) -> None:
    with pytest.raises(MalformedObjectError):
        decode_yaml(text.encode("latin-1"))


def test_yaml_dates_stay_text() -> None:
    assert decode_yaml(b"a: 2026-01-02\nb: 2026-01-02T03:04:05Z") == {"a": "2026-01-02", "b": "2026-01-02T03:04:05Z"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    ["metadata", "spec", "filter", "subscriber", "delivery", "name", "uri", "ref", "broker", "kind"]
)
HOSTILE = st.recursive(JSON, lambda inner: st.dictionaries(FIELDS, inner, max_size=4), max_leaves=12)


@settings(max_examples=times(12, 100))
@given(document=HOSTILE, kind=st.sampled_from(list(Kind)), validation=st.sampled_from(list(FieldValidation)))
def test_any_document_is_an_object_or_an_error_of_ours(
    document: object, kind: Kind, validation: FieldValidation
) -> None:
    if isinstance(document, dict):
        document = {**document, "kind": kind.value, "apiVersion": "eventing.knative.dev/v1"}
    try:
        decoded = decode_object(kind, document, field_validation=validation)
    except (MalformedObjectError, InvalidObjectError):
        return
    assert decoded.obj.kind == kind


@given(target=JSON, patch=JSON)
def test_merge_patch_is_idempotent(target: object, patch: object) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_as_rfc_7396_shows_it(target: object, patch: object, result: object) -> None:
    assert merge_patch(target, patch) == result


def test_turns_of_bodies_go_round_by_namespace_and_user(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    order: list[bytes] = []

    def held(body: bytes, _: FieldValidation) -> Read:
        order.append(body.strip())
        begun.set()
        assert go_on.wait(30)
        return Read({})

    monkeypatch.setattr(http, "decode_json", held)

    def asked(namespace: str, user: str) -> Request:
        return Request(
            {"type": "http", "headers": [], "path_params": {"namespace": namespace}, USER: authenticated(user)}
        )

    def large(name: bytes) -> bytes:
        return name.ljust(OBJECT_BYTES_INLINE + 1)

    async def work() -> None:
        loud, quiet = asked("loud", "eve"), asked("quiet", "ann")
        many = [asyncio.create_task(http.decoded(loud, large(b"eve"))) for _ in range(20)]
        try:
            assert await asyncio.to_thread(begun.wait, 30)
            few = [asyncio.create_task(http.decoded(quiet, large(b"ann"))) for _ in range(2)]
            few.append(asyncio.create_task(http.decoded(asked("loud", "bob"), large(b"bob"))))
            await asyncio.sleep(0)
        finally:
            go_on.set()
        await asyncio.gather(*many, *few)

    asyncio.run(work())
    assert len(order) == 23
    assert {b"ann", b"bob"} <= set(order[:5])


def test_a_body_of_ours_that_takes_long_is_decoded_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    beside: list[bool] = []

    def watched(body: bytes, type_: Any, problem: str) -> Any:
        beside.append(threading.current_thread() is not threading.main_thread())
        return decode_as(body, type_, problem)

    monkeypatch.setattr(http, "decode_as", watched)
    request = Request({"type": "http", "headers": [], "path_params": {"namespace": "ns"}})
    small = b'{"a": [1]}'
    long = b'{"a": ["%b"]}' % (b"x" * DECODE_BYTES_INLINE)
    complex_ = b'{"a": [%b]}' % b",".join([b"[]"] * DECODE_CONTAINERS_INLINE)
    found = [
        asyncio.run(http.decoded_as(request, body, dict[str, Any], "the body")) for body in (small, long, complex_)
    ]
    assert [len(one["a"]) for one in found] == [1, 1, DECODE_CONTAINERS_INLINE]
    assert beside == [False, True, True]
    with pytest.raises(InvalidInputError, match="the body: "):
        asyncio.run(http.decoded_as(request, long[:-1], dict[str, Any], "the body"))
