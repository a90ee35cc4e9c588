"""Durations, selectors, ages, forms: pure functions of a few lines."""

from __future__ import annotations

import pytest

from headgate.filter.compile.compiler import compile_cel
from headgate.objects.api.queries import Representation, field_selector, is_dry_run, label_selector, representation_of
from headgate.objects.api.tables import _written
from headgate.objects.kinds.specs import is_ordered
from headgate.objects.kinds.validate import scan_warning
from headgate_api.objects.errors import MalformedObjectError
from headgate_api.objects.kinds import Metadata
from headgate_api.objects.metadata import duration_s
from headgate_api.plain_words import human_age


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT0.2S", 0.2),
        ("PT1M30S", 90),
        ("P1D", 86_400),
        ("P1DT1H", 90_000),
        ("P2W", 1_209_600),
        ("PT0S", 0),
        ("PT0,5S", 0.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "P", "PT", "1S", "PT1", "P1Y", "P1M", "-PT1S", "PT1S ", "P1DT", "PT1.S", "PT٣S"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="ISO 8601"):
        duration_s(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("app=x", True),
        ("app==x", True),
        ("app!=x", False),
        ("app!=y", True),
        ("missing!=y", True),
        ("app", True),
        ("!app", False),
        ("!missing", True),
        ("app in (x, y)", True),
        ("app notin (x)", False),
        ("missing in (x)", False),
        ("missing notin (x)", True),
        ("app=x,tier!=gold", False),
        ("app=x, a/b = c", True),
        ("empty=", True),
    ],
)
def test_label_selectors(text: str, wanted: bool) -> None:
    selector = label_selector(text)
    assert selector is not None
    assert selector({"app": "x", "tier": "gold", "a/b": "c", "empty": ""}) is wanted


@pytest.mark.parametrize("text", ["=x", "a=b,", "a in x", "a=b c", "a,,b", "a>1", "a" * 5_000])
def test_no_label_selectors(text: str) -> None:
    with pytest.raises(MalformedObjectError):
        label_selector(text)


def test_field_selectors() -> None:
    assert field_selector("") == (None, None)
    assert field_selector("metadata.name=a,metadata.namespace==b") == ("a", "b")
    assert field_selector("metadata.name=a,metadata.name=b,metadata.name=b") == ("", None)
    assert field_selector("metadata.namespace=a,metadata.namespace=b") == (None, "")
    for text in ("spec.broker=x", "metadata.name!=a", "metadata.name"):
        with pytest.raises(MalformedObjectError):
            field_selector(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (601, "10m"),
        (10_799, "179m"),
        (18_600, "5h10m"),
        (86_400, "24h"),
        (3 * 86_400 + 4 * 3_600, "3d4h"),
        (100 * 86_400, "100d"),
        (3 * 31_536_000, "3y"),
        (9 * 31_536_000, "9y"),
    ],
)
def test_ages_as_kubectl_writes_them(seconds: int, text: str) -> None:
    assert human_age(seconds) == text


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Representation.OBJECT),
        ("*/*", Representation.OBJECT),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Representation.TABLE),
        ("application/json;as=Table;v=v1beta1;g=meta.k8s.io, application/json", Representation.OBJECT),
        ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", Representation.METADATA),
        ("application/vnd.kubernetes.protobuf,application/json;as=Table;v=v1;g=meta.k8s.io", Representation.TABLE),
        ("application/json, application/json;as=Table;v=v1;g=meta.k8s.io", Representation.OBJECT),
    ],
)
def test_forms(accept: str, form: Representation) -> None:
    assert representation_of(accept) is form


def test_dry_run() -> None:
    assert is_dry_run(["All"])
    assert not is_dry_run([])
    with pytest.raises(MalformedObjectError):
        is_dry_run(["Some"])


def test_order_is_asked_for_by_an_annotation() -> None:
    ours, kafka = "headgate.dev/delivery.order", "kafka.eventing.knative.dev/delivery.order"
    assert not is_ordered(Metadata())
    assert is_ordered(Metadata(annotations={kafka: "ordered"}))
    assert not is_ordered(Metadata(annotations={kafka: "ordered", ours: "unordered"}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data.n > 5", ["1 comparison in the matcher"]),
        ("data.n > 5 || data.m != 'x'", ["2 comparisons in the matcher"]),
        ("data.a == data.b || data.n > 5", ["1 comparison in the matcher and an evaluation by cel-cpp"]),
        ("data == 5", ["an evaluation by cel-cpp"]),
        ("data == null || data.n > 5", ["1 comparison in the matcher and an evaluation by cel-cpp"]),
        ("ce.type == 'a' && data == 5", []),
        ("ce.type == 'a' && data.n > 5", []),
        ("ce.type.startsWith('a')", []),
        ("true", []),
    ],
)
def test_a_filter_that_nothing_is_looked_up_by_says_what_it_costs(text: str, words: list[str]) -> None:
    said = scan_warning(compile_cel(text))
    assert len(said) == len(words)
    assert all(word in warning for word, warning in zip(words, said, strict=True))


@pytest.mark.parametrize(
    ("filters", "cell"),
    [
        (None, "<none>"),
        ([], "<none>"),
        ({"expression": 'ce.type == "a"'}, 'ce.type == "a"'),
        ({"cesql": "type = 'a'"}, "cesql: type = 'a'"),
        ({"attributes": {"type": "a", "tenant": ""}}, "attributes: type=a tenant="),
        ([{"cel": 'ce.type == "a"'}, {"prefix": {"type": "order."}}], 'ce.type == "a"; prefix: type=order.'),
        (
            [{"any": [{"cel": 'ce.type == "a"'}, {"not": {"exact": {"tenant": "x"}}}]}],
            'any(ce.type == "a"; not(exact: tenant=x))',
        ),
        ({"eventPattern": {"detail": {"n": [1]}}}, 'eventPattern: {"detail":{"n":[1]}}'),
        ({"cel": "true //\u001b[2J"}, '"true //\\u001b[2J"'),
    ],
)
def test_the_cell_of_a_filter_is_what_a_person_would_write(filters: object, cell: str) -> None:
    """No text in it is escaped for the sake of JSON around it; what a terminal would obey is."""
    assert _written(filters) == cell
