"""Event patterns: what they mean on CloudEvents, what they mean on any tree, and what is refused and where."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conformance import dialects
from headgate.filter.cel.budget import static_cost
from headgate.filter.cel.engine import Activation, OutcomeKind, compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import program
from headgate.filter.cel.parsing import parse
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.dialects import to_cel
from headgate.filter.dialects.eventpattern.to_cel import pattern_to_cel
from headgate.filter.tools.advice import advice
from headgate_api.event.model import DataKind, Event, ExtensionValue
from headgate_conformance.broker import CaseStatus
from tests.support import conformance, examples

EXTENSIONS: dict[str, ExtensionValue] = {"region": "eu-west-1", "count": 5, "a": {"b": "x"}}


def event(data: Any = None, **attributes: Any) -> Event:
    made = {"specversion": "1.0", "id": "1", "source": "/a/b", "type": "order.created", "extensions": EXTENSIONS}
    body = {} if data is None else {"data": json.dumps(data).encode(), "data_kind": DataKind.JSON}
    return Event(**(made | body | attributes))


def outcome(pattern: Any, of: Event) -> OutcomeKind:
    return program(compile_filter({"eventPattern": pattern}).cel).evaluate(of).kind


def test_public_cases() -> None:
    with conformance("eventbridge.jsonl").open("rb") as file:
        results = list(dialects.event_patterns(file))
    assert len(results) >= 410
    assert [result for result in results if result.verdict is CaseStatus.FAILED] == []
    assert len([result for result in results if result.verdict is CaseStatus.KNOWN]) == 1


@pytest.mark.parametrize(
    ("pattern", "cel"),
    [
        ({"source": ["/a"]}, 'ce.source == "/a"'),
        ({"detail-type": ["a", "b"]}, 'ce.type in ["a", "b"]'),
        ({"type": ["a", {"prefix": "b."}]}, 'ce.type == "a" || ce.type.startsWith("b.")'),
        ({"subject": ["x"]}, 'has(ce.subject) && ce.subject == "x"'),
        ({"region": [{"anything-but": "x"}]}, 'has(ce.region) && !(ce.region == "x")'),
        ({"region": [{"exists": False}]}, "!has(ce.region)"),
        ({"region": [{"exists": False}, "x"]}, '!has(ce.region) || ce.region == "x"'),
        ({"in": [{"exists": True}]}, "has(ce.`in`)"),
        ({"source": [{"exists": True}]}, "true"),
        ({"source": [{"exists": False}]}, "false"),
        ({"subject": [None]}, "false"),
        (
            {"time": [{"prefix": "2017-12"}]},
            'has(ce.time) && ce.time >= timestamp("2017-12-01T00:00:00Z")'
            ' && ce.time < timestamp("2018-01-01T00:00:00Z")',
        ),
        ({"detail": {"state": ["on"]}}, 'json.values(data, ["state"]).exists(v, v == "on")'),
        ({"detail.state": ["on"]}, 'json.values(data, ["state"]).exists(v, v == "on")'),
        (
            {"data": {"n": [1, 2.5, "1", None, True]}},
            'json.values(data, ["n"]).exists(v, v in [1, 2.5, "1", null, true])',
        ),
        (
            {"detail": {"n": [{"numeric": [">", 0, "<=", 5]}]}},
            'json.values(data, ["n"]).exists(v, type(v) in [int, uint, double] && v > 0 && v <= 5)',
        ),
        (
            {"detail": {"s": [{"prefix": "a"}]}},
            'json.values(data, ["s"]).exists(v, type(v) == string && v.startsWith("a"))',
        ),
        (
            {"detail": {"s": [{"wildcard": "*/x/*"}]}},
            'json.values(data, ["s"]).exists(v, type(v) == string && v.contains("/x/"))',
        ),
        (
            {"detail": {"s": [{"anything-but": {"prefix": "a"}}]}},
            'json.values(data, ["s"]).exists(v, !(type(v) == string && v.startsWith("a")))',
        ),
        ({"detail": {"s": [{"exists": False}]}}, 'size(json.values(data, ["s"])) == 0'),
        (
            {"detail": {"user": {"id": [1], "name": ["a"]}}},
            'json.objects(data, ["user"]).exists(o, json.values(o, ["id"]).exists(v, v == 1)'
            ' && json.values(o, ["name"]).exists(v, v == "a"))',
        ),
        (
            {"source": ["/a"], "$or": [{"type": ["b"]}, {"detail": {"n": [1]}}]},
            'ce.source == "/a" && (ce.type == "b" || json.values(data, ["n"]).exists(v, v == 1))',
        ),
        (
            {"detail": {"ip": [{"cidr": "10.1.0.0/16"}]}},
            'json.values(data, ["ip"]).exists(v, type(v) == string && v.startsWith("10.1.")'
            ' && ip.within(v, "10.1.0.0/16"))',
        ),
        (
            {"detail": {"service.name": ["x"]}},
            'json.values(data, ["service.name"]).exists(v, v == "x")'
            ' || json.values(data, ["service", "name"]).exists(v, v == "x")',
        ),
    ],
)
def test_becomes_cel(pattern: Any, cel: str) -> None:
    assert to_cel({"eventPattern": pattern}) == cel
    assert to_cel({"eventPattern": json.dumps(pattern)}) == cel
    assert compile_filter({"eventPattern": pattern}).rows or cel == "false"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ({"source": ["/a/b"], "detail-type": ["order.created"]}, True),
        ({"specversion": ["1.0"]}, True),
        ({"region": [{"wildcard": "eu-*-1"}]}, True),
        ({"region": [{"wildcard": "eu-*e*-1"}]}, True),
        ({"region": [{"equals-ignore-case": "EU-WEST-1"}]}, True),
        ({"region": [{"anything-but": {"suffix": "-1"}}]}, False),
        ({"account": [{"anything-but": "1"}]}, False),
        ({"account": [{"exists": False}]}, True),
        ({"count": [5]}, True),
        ({"count": [{"numeric": [">=", 5]}]}, True),
        ({"count": [{"anything-but": {"prefix": "5"}}]}, True),
        ({"a.b": ["x"]}, True),
        ({"a.c": [{"exists": False}]}, True),
        ({"region.c": [{"exists": False}]}, True),
        ({"time": ["2022-07-13T15:48:01+02:00"]}, True),
        ({"time": [{"prefix": "2022-07-13T13:4"}]}, True),
        ({"time": [{"prefix": "2022-07-13T13:"}]}, True),
        ({"time": [{"prefix": "2022-08"}]}, False),
        ({"time": [{"anything-but": "2022-07-13T13:48:01Z"}]}, False),
        ({"time": [{"anything-but": {"prefix": "2021"}}]}, True),
        ({"time": [{"suffix": "01Z"}]}, True),
        ({"time": [1, "soon"]}, False),
        ({"detail": {"tags": ["b"]}}, True),
        ({"detail": {"tags": [{"anything-but": ["a", "b"]}]}}, False),
        ({"detail": {"items": {"sku": ["A"], "n": [2]}}}, False),
        ({"detail": {"items": {"sku": ["B"], "n": [2]}}}, True),
        ({"detail": {"items": [{"exists": True}]}}, False),
        ({"detail": {"city": [{"equals-ignore-case": "ZÜRICH"}]}}, True),
        ({"detail": {"city": [{"prefix": {"equals-ignore-case": "ZÜ"}}]}}, True),
        ({"detail": {"city": [{"wildcard": "Z*ich"}]}}, True),
        ({"detail": {"aba": [{"wildcard": "ab*ba"}]}}, False),
        ({"detail": {"star": [{"wildcard": "\\*"}]}}, True),
        ({"detail": {"dot": [{"wildcard": "a.*.c*"}]}}, False),
        ({"$or": [{"source": ["/x"]}, {"detail": {"tags": ["a"]}}]}, True),
        ({"detail": {"big": [18446744073709551615]}}, True),
        ({"detail": {"big": [{"numeric": [">", 1e18]}]}}, True),
    ],
)
def test_on_a_cloud_event(pattern: Any, expected: bool) -> None:
    data = {
        "tags": ["a", "b"],
        "items": [{"sku": "A", "n": 1}, {"sku": "B", "n": 2}],
        "city": "Zürich",
        "aba": "aba",
        "star": "*",
        "dot": "a?b.c",
        "big": 2**64 - 1,
    }
    found = outcome(pattern, event(data, time="2022-07-13T13:48:01Z"))
    assert found is (OutcomeKind.TRUE if expected else OutcomeKind.FALSE)


@pytest.mark.parametrize(
    ("pattern", "items", "expected"),
    [
        ({"x": [{"exists": False}]}, [{"x": 1}, {"y": 1}], False),
        ({"x": [{"exists": False}], "y": [1]}, [{"x": 1}, {"y": 1}], False),
        ({"x": [{"exists": False}], "a": [1]}, [{"x": 1}, {"a": 1}], True),
        ({"x": [{"exists": False}], "a": [1]}, [{"x": 1, "a": 1}, {"a": 1}], True),
        ({"x": [{"exists": False}], "y": [1]}, [{"x": 1, "y": 1}, {"y": 1}], False),
        ({"x": [{"exists": False}], "y": [{"exists": False}]}, [{"x": 1}, {"z": 1}], False),
        ({"x": [{"exists": False}, 1], "y": [2]}, [{"x": 1, "y": 2}, {"x": 3}], True),
        ({"x": [{"exists": False}, 1], "y": [2]}, [{"y": 2}, {"x": 3}], False),
    ],
)
def test_absence_in_arrays_is_what_event_ruler_answers(pattern: Any, items: Any, expected: bool) -> None:
    assert outcome({"detail": {"i": pattern}}, event({"i": items})) is OutcomeKind(expected)


LETTERS = ["s", "S", "\u017f", "k", "K", "\u212a", "\u00e9", "\u00c9", "\u00df", "\u1e9e", "ss", "\u03c3"]
LETTERS += [
    "\u03a3",
    "\u03c2",
    "i",
    "I",
    "\u0130",
    "\u0131",
    "\u00e5",
    "\u212b",
    "stra\u00dfe",
    "STRASSE",
    "STRA\u1e9eE",
]


@pytest.mark.parametrize("operator", ["equals-ignore-case", "prefix", "suffix"])
def test_ignoring_case_takes_one_text_for_another_in_both_directions(operator: str) -> None:
    def takes_it(text: str, of: str) -> bool:
        matcher = {"equals-ignore-case": text}
        pattern = {"detail": {"v": [matcher if operator == "equals-ignore-case" else {operator: matcher}]}}
        return outcome(pattern, event({"v": of})) is OutcomeKind.TRUE

    alike = {(one, other) for one in LETTERS for other in LETTERS if takes_it(one, other)}
    if operator == "equals-ignore-case":
        assert alike == {(other, one) for one, other in alike}
    assert {("k", "K"), ("\u00e9", "\u00c9"), ("stra\u00dfe", "STRA\u1e9eE"), ("\u03c3", "\u03c2")} <= alike
    assert not alike & {("s", "\u017f"), ("\u017f", "s"), ("k", "\u212a"), ("\u212a", "K"), ("stra\u00dfe", "STRASSE")}


def test_advice_names_eventbridge_where_it_compares_case_otherwise() -> None:
    pattern = {"$or": [{"type": ["a"]}, {"detail": {"v": [{"anything-but": {"equals-ignore-case": "stra\u00dfe"}}]}}]}
    for written in (pattern, json.dumps(pattern)):
        (said,) = advice({"eventPattern": written})
        assert said.reason == "EnginesDiffer"
        assert "EventBridge" in said.message
    assert advice({"eventPattern": {"detail": {"v": [{"equals-ignore-case": "abc"}, "\u00e9", 0.1]}}}) == ()


def test_data_that_is_no_json_is_an_error_as_everywhere() -> None:
    assert outcome({"detail": {"x": [{"exists": False}]}}, event()) is OutcomeKind.ERROR
    assert outcome({"source": [{"prefix": "/x"}], "detail": {"x": [1]}}, event()) is OutcomeKind.FALSE


@pytest.mark.parametrize(
    ("pattern", "field", "at"),
    [
        ("[1]", "", "[1]"),
        ("{}", "", "{}"),
        ('{"a": 1}', ".a", "1}"),
        ('{"a": [ ]}', ".a", "[ ]"),
        ('{"a": [[1]]}', ".a[0]", "[1]"),
        ('{"detail": {"a": {}}}', ".detail.a", "{}}"),
        ('{"a": ["x", {"prefix": 5}]}', ".a[1].prefix", "5}"),
        ('{"a": [{"prefix": "x", "suffix": "y"}]}', ".a[0]", '{"prefix"'),
        ('{"a": [{"Prefix": "x"}]}', ".a[0].Prefix", '"x"'),
        ('{"a": [{"numeric": [">", 1, "<", 1]}]}', ".a[0].numeric", "[>"),
        ('{"a": [{"numeric": ["=", true]}]}', ".a[0].numeric[1]", "true"),
        ('{"a": [{"wildcard": "a**"}]}', ".a[0].wildcard", '"a**"'),
        ('{"a": [{"wildcard": "a\\\\b"}]}', ".a[0].wildcard", '"a'),
        ('{"a": [{"cidr": "10.0.0.0/33"}]}', ".a[0].cidr", '"10.'),
        ('{"a": [{"anything-but": [1, "x"]}]}', ".a[0].anything-but", "[1"),
        ('{"a": [{"anything-but": {"prefix": ""}}]}', ".a[0].anything-but.prefix", '""'),
        ('{"$or": [{"source": ["x"]}]}', ".$or", "[{"),
        ('{"$or": [{"source": ["x"]}, {"prefix": ["x"]}]}', ".$or[1].prefix", '["x"]}]'),
        ('{"Detail": ["x"]}', ".Detail", '["x"]'),
        ('{"source": {"x": ["y"]}}', ".source.x", '["y"]'),
        ('{"data_base64": ["y"]}', ".data_base64", '["y"]'),
        ('{"detail": {"a.b": {"c.d": {"e.f": {"g.h": [1]}}}}}', ".detail.a.b.c.d.e.f.g.h", "[1]"),
        ('{"a": [1}', "", "}"),
        ('{"a": [{"wildcard": "a*b*c*d*e*f*g"}]}', ".a[0].wildcard", '"a*'),
    ],
)
def test_refusals_have_path_and_place(pattern: str, field: str, at: str) -> None:
    with pytest.raises(FilterError) as refused:
        compile_filter({"eventPattern": pattern})
    assert refused.value.field == f"filter.eventPattern{field}"
    assert refused.value.position is not None
    assert pattern[refused.value.position :].replace('"', "").startswith(at.replace('"', ""))
    assert refused.value.caret.endswith("^")


@pytest.mark.parametrize(
    "pattern",
    ['{"a": [1e999]}', '{"a": [1e-999]}', '{"a": [NaN]}', '{"a": [1], "a": [2]}', '{"a":' * 2000 + "[1]" + "}" * 2000],
)
def test_text_that_no_event_can_match_is_refused(pattern: str) -> None:
    with pytest.raises(FilterError) as refused:
        compile_filter({"eventPattern": pattern})
    assert refused.value.field.startswith("filter.eventPattern")


GUARDDUTY = {
    "source": ["aws.guardduty"],
    "detail-type": ["GuardDuty Finding"],
    "detail": {
        "severity": [{"numeric": [">=", 7]}],
        "resource": {
            "resourceType": ["Instance"],
            "instanceDetails": {
                "instanceType": [{"prefix": "m"}],
                "networkInterfaces": {
                    "vpcId": ["vpc-1"],
                    "securityGroups": {"groupId": ["sg-1"], "groupName": [{"anything-but": ["default"]}]},
                },
            },
        },
        "service": {
            "archived": [False],
            "action": {
                "actionType": ["NETWORK_CONNECTION"],
                "networkConnectionAction": {
                    "blocked": [False],
                    "remoteIpDetails": {
                        "country": {"countryName": [{"anything-but": ["Germany"]}]},
                        "ipAddressV4": [{"cidr": "198.51.100.0/24"}],
                    },
                },
            },
        },
    },
}
FINDING = {
    "severity": 8,
    "resource": {
        "resourceType": "Instance",
        "instanceDetails": {
            "instanceType": "m5.large",
            "tags": [{"key": f"tag-{n}", "value": "x" * 40} for n in range(20)],
            "networkInterfaces": [
                {
                    "vpcId": "vpc-1",
                    "privateIpAddresses": [{"privateIpAddress": f"10.0.{n}.{m}"} for m in range(10)],
                    "securityGroups": [{"groupName": f"group {m}", "groupId": f"sg-{m}"} for m in range(5)],
                }
                for n in range(4)
            ],
        },
    },
    "service": {
        "archived": False,
        "action": {
            "actionType": "NETWORK_CONNECTION",
            "networkConnectionAction": {
                "blocked": False,
                "remoteIpDetails": {"country": {"countryName": "Norway"}, "ipAddressV4": "198.51.100.7"},
            },
        },
        "additionalInfo": [{"name": "n" * 30, "values": list(range(10))}] * 20,
    },
}


def test_what_is_written_for_objects_in_objects_is_taken_and_evaluated_on_their_events() -> None:
    tested = program(compile_filter({"eventPattern": GUARDDUTY}).cel)
    assert len(json.dumps(FINDING)) > 5_000
    finding = {"source": "aws.guardduty", "type": "GuardDuty Finding"}
    outcome = tested.evaluate(event(FINDING, **finding))
    assert outcome.kind is OutcomeKind.TRUE, outcome.message
    assert tested.evaluate(event(FINDING | {"severity": 1}, **finding)).kind is OutcomeKind.FALSE


RUN_INSTANCES = {
    "source": ["aws.ec2"],
    "detail-type": ["AWS API Call via CloudTrail"],
    "detail": {
        "eventName": ["RunInstances"],
        "requestParameters": {
            "instancesSet": {"items": {"imageId": [{"prefix": "ami-"}], "minCount": [{"numeric": [">", 0]}]}},
            "tagSpecificationSet": {
                "items": {"resourceType": ["instance"], "tags": {"key": ["team"], "value": [{"anything-but": ["ops"]}]}}
            },
        },
    },
}
"""Over two lists, one of them in the items of a list."""


@pytest.mark.parametrize(("team", "taken"), [("web", OutcomeKind.TRUE), ("ops", OutcomeKind.FALSE)])
def test_a_pattern_over_two_lists_is_taken_and_evaluated_on_its_events(team: str, taken: OutcomeKind) -> None:
    tested = program(compile_filter({"eventPattern": RUN_INSTANCES}).cel)
    tags = [{"key": f"tag-{number}", "value": "x" * 40} for number in range(20)]
    call = {
        "eventName": "RunInstances",
        "requestParameters": {
            "instancesSet": {"items": [{"imageId": f"ami-{number}", "minCount": 1} for number in range(20)]},
            "tagSpecificationSet": {
                "items": [
                    {"resourceType": "volume", "tags": tags},
                    {"resourceType": "instance", "tags": [*tags, {"key": "team", "value": team}]},
                ]
            },
        },
    }
    outcome = tested.evaluate(event(call, source="aws.ec2", type="AWS API Call via CloudTrail"))
    assert outcome.kind is taken, outcome.message


@pytest.mark.parametrize("depth", range(1, 9))
def test_a_pattern_costs_no_multiple_for_each_of_its_levels(depth: int) -> None:
    pattern: dict[str, Any] = {"a": ["x"], "b": [{"prefix": "y"}]}
    data: dict[str, Any] = {"a": "x", "b": ["y1", "z"]}
    for _ in range(depth):
        pattern = {"a": ["x"], "b": [{"prefix": "y"}], "o": pattern}
        data = {"a": "x", "b": ["y1", "z"], "o": [data, {"a": "x"}, {"a": "z", "o": [1, 2, 3]}]}
    assert outcome({"detail": pattern}, event(data)) is OutcomeKind.TRUE
    steps = static_cost(parse(to_cel({"eventPattern": {"detail": pattern}})))
    assert steps < 3_000 * (depth + 1)


def test_written_out_alternatives_are_bounded() -> None:
    branches = [{"a": {"b": [index], "c": [index]}} for index in range(20)]
    nested: dict[str, Any] = {"$or": branches}
    for _ in range(3):
        nested = {"$or": [{"a": {"d": [1]}}, {"a": {"e": [2]}}], "x": {"$or": branches}, "a": nested}
    with pytest.raises(FilterError) as refused:
        compile_filter({"eventPattern": {"detail": {"$or": [nested, nested], "a": {"$or": branches, "f": [1]}}}})
    assert refused.value.limit == "PATTERN_FIELDS_MAX"


# --- event-ruler's own rule, written down plainly: rules without $or, values with the array elements they lie in ------

LEAVES = st.sampled_from(["x", "y"])
MATCHERS = st.lists(
    st.sampled_from([1, 2, {"anything-but": 1}, {"numeric": [">", 1]}, {"exists": False}, {"exists": True}]),
    min_size=1,
    max_size=2,
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return (
        st.dictionaries(LEAVES, MATCHERS, max_size=2)
        .flatmap(
            lambda leaves: st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2).map(
                lambda more: leaves | more
            )
        )
        .filter(bool)
    )


def pattern_objects(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    below = pattern_objects(depth - 1) if depth else st.nothing()
    plain = objects(below) if depth else st.dictionaries(LEAVES, MATCHERS, min_size=1, max_size=2)
    alternatives = st.lists(plain, min_size=2, max_size=2).map(lambda branches: {"$or": branches})
    return (
        plain
        | st.tuples(alternatives, plain).map(lambda both: both[0] | both[1])
        | st.tuples(plain, alternatives).map(lambda both: both[0] | both[1])
    )


SCALARS = st.sampled_from([1, 2, 3, "1", None])
EVENTS = st.dictionaries(
    st.sampled_from(["a", "b", "x", "y"]),
    st.recursive(
        SCALARS,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "x", "y"]), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def rules(pattern: dict[str, Any], path: tuple[str, ...], before: list[dict[Any, Any]]) -> list[dict[Any, Any]]:
    for name, value in pattern.items():
        if name == "$or":
            before = [rule for branch in value for rule in rules(branch, path, [dict(r) for r in before])]
        elif isinstance(value, dict):
            before = rules(value, (*path, name), before)
        else:
            before = [rule | {(*path, name): value} for rule in before]
    return before


def flattened(value: Any, path: tuple[str, ...], inside: dict[Any, int], where: tuple[Any, ...]) -> list[Any]:
    if isinstance(value, dict):
        return [
            field for name, inner in value.items() for field in flattened(inner, (*path, name), inside, (*where, name))
        ]
    if isinstance(value, list):
        return [
            field
            for index, inner in enumerate(value)
            for field in flattened(inner, path, inside | {where: index}, (*where, index))
        ]
    return [(path, value, inside)]


def agree(one: dict[Any, int], other: dict[Any, int]) -> bool:
    return all(other[array] == index for array, index in one.items() if array in other)


def takes(matcher: Any, value: Any) -> bool:
    match matcher:
        case {"anything-but": unwanted}:
            return value != unwanted
        case {"numeric": [_, bound]}:
            return isinstance(value, int) and value > bound
        case {"exists": wanted}:
            return bool(wanted)
        case _:
            return bool(value == matcher)


def matches(rule: dict[Any, Any], fields: list[Any]) -> bool:
    """Some choice of values, one a path that is not chosen to be absent, all from arrays' elements that agree.

    Paths are gone through in their order. What is absent is absent from what was chosen before.
    """

    def chosen(left: list[Any], inside: dict[Any, int]) -> bool:
        if not left:
            return True
        (path, matchers), *rest = left
        absent = not any(found == path and agree(inside, other) for found, _, other in fields)
        if {"exists": False} in matchers and absent and chosen(rest, inside):
            return True
        return any(
            chosen(rest, inside | other)
            for found, value, other in fields
            if found == path and agree(inside, other) and any(takes(matcher, value) for matcher in matchers)
        )

    return chosen(sorted(rule.items()), {})


@settings(max_examples=examples(100))
@given(pattern_objects(2), EVENTS)
def test_arrays_and_alternatives_as_event_ruler_has_them(pattern: dict[str, Any], data: dict[str, Any]) -> None:
    written_out = rules(pattern, (), [{}])
    assume(len(written_out) <= 16)
    text = pattern_to_cel(pattern, "pattern", dialects.whole_tree)
    found = compile_expression(text).evaluate(Activation({"ce": {}, "data": data}))
    fields = flattened(data, (), {}, ())
    expected = any(matches(rule, fields) for rule in written_out)
    assert found.kind is (OutcomeKind.TRUE if expected else OutcomeKind.FALSE), (text, found.message)
