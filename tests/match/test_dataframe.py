"""Hostile values, one by one: Spark reads an event as cel-cpp does."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import (
    SCAN_CANDIDATE,
    CompiledFilter,
    ConstantKind,
    KeyKind,
    KeyPart,
    Op,
    Operand,
    PlanRow,
    Residual,
    Root,
    Signature,
    Verdict,
)
from headgate.match.dataframe import extraction, match_events
from headgate.match.key_specs import BrokerTable
from headgate.match.keys import Secrets, digest
from headgate.match.table import MARK, build_table
from headgate_api.event import json_text
from headgate_api.event.model import DataKind, Event, ExtensionValue
from headgate_api.limits import JSON_DEPTH_MAX
from tests.filter.reference.rows import like
from tests.filter.strategies import string_literal
from tests.match.frames import BROKER, frame_of, match, share_atoms, verdicts
from tests.support import times

pytestmark = pytest.mark.spark

LINES = ("*(", "BroadcastExchange", "InMemory", "LocalTableScan", "RowScan")
"""What a line of a plan may begin with: generated code, and what comes to it."""

TYPE = Operand(Root.CE, ("type",))


def event(
    data: str | None = None, kind: DataKind = DataKind.JSON, extensions: dict[str, ExtensionValue] | None = None
) -> Event:
    return Event(
        specversion="1.0",
        id="1",
        source="/a",
        type="t",
        data_kind=DataKind.NONE if data is None else kind,
        data=None if data is None else data.encode(),
        extensions=extensions or {},
    )


@dataclass(frozen=True)
class Case:
    """Filters of a broker of their own, asked of events: Spark decides every pair exactly as CEL does.

    Attributes:
        is_decided: Whether nothing is left to CEL.
    """

    events: Sequence[Event]
    filters: Sequence[str]
    is_decided: bool = True


NUMBERS = ["0", "-0", "-0.0", "5", "5.0", "5e0", "50e-1", "-5", "0.1", "1e-400", "1.7e308", "1E+2", "100"]
TEXTS = [
    *["5", "5.0", "-5", "true", "false", "null", "[", "{}", "[1]", "[x", "5x", "-", ".", "1e5"],
    "",
    "a\nb",
    "12\n",
]
JSON_TEXTS = [*NUMBERS, "true", "false", "null", "[]", "[5]", "{}", '{"x":5}', r'"\u0035"', r'"a\"b\\"']
JSON_TEXTS += map(json.dumps, TEXTS)
ORDERS = ("<", "<=", ">", ">=")


def types_are_told_apart() -> Iterator[Case]:
    events = [event(f'{{"v":{value}}}') for value in JSON_TEXTS] + [event("{}"), event()]
    constants = ["5", "5.0", "-0.0", "100u", "0.1", "true", "false", "null"]
    constants += map(json.dumps, ("5", "true", "{}", "", "a\nb"))
    # Once with a key, once as a residual, where a wrong type is false and a missing value an error.
    filters = [f"data.v == {constant}" for constant in constants]
    filters += [f"data.v != {constant}" for constant in constants]
    filters += [f"!(data.v in [{constant}, {constant}])" for constant in constants if constant != "null"]
    yield Case(events, filters)


def a_place_of_which_only_a_string_is_asked() -> Iterator[Case]:
    events = [event(f'{{"v":{value}}}') for value in JSON_TEXTS] + [event("{}")]
    strings = [string_literal(text) for text in ("5", "true", "[1]", "{}", "", "5x", 'a"b\\', "12\n")]
    yield Case(events, [f"data.v == {text}" for text in strings])
    yield Case(events, [f"data.v != {text}" for text in strings] + ["has(data.v) && data.v != 'x'"])
    yield Case(events, [f"data.v < {text}" for text in strings] + [f"data.v >= {text}" for text in strings])
    yield Case(events, [f"data.v.{call}('5')" for call in ("startsWith", "endsWith", "contains")])


def order_of_every_type() -> Iterator[Case]:
    events = [event(f'{{"v":{value}}}') for value in JSON_TEXTS] + [event("{}")]
    pairs = product(ORDERS, ("5", "0.0", "-5.0", "'5'", "'é'", "true", "false"))
    yield Case(events, [f"data.v {operator} {constant}" for operator, constant in pairs])


def strings_are_ordered_by_their_bytes() -> Iterator[Case]:
    texts = ["", "a", "aa", "b", "Z", "é", "e\u0301", "\uffff", "😀", "\x7f", "~", " ", '"', "\\"]
    events = [event(json.dumps({"v": text}, ensure_ascii=number % 2 == 0)) for number, text in enumerate(texts)]
    yield Case(events, [f"data.v {operator} {string_literal(text)}" for operator, text in product(ORDERS, texts)])


def roots_that_are_no_object() -> Iterator[Case]:
    texts = [
        "[]",
        '[{"v":"a"}]',
        '"a"',
        '"{\\"v\\":\\"a\\"}"',
        "5",
        "null",
        "true",
        ' \t\r\n{"v":"a"} ',
        "{}",
        '{"v":null}',
    ]
    events = [event(text) for text in texts]
    events += [event('{"v":"a"}', DataKind.TEXT), event('{"v":"a"}', DataKind.BINARY), event()]
    presence = ["has(data.v)", "!has(data.v)"]
    yield Case(events, ["data.v == 'a'", "data.v != 'a'", "data.v < 'b'", "data.v == null", *presence])
    yield Case(events, ["data.v == 'a'", "data.v.startsWith('a')"])
    yield Case(events, ["has(data.v.w)", "!has(data.v.w)", *presence])


def parents_that_are_no_object() -> Iterator[Case]:
    inner = ["{}", '{"s":"a"}', '{"s":null}', '{"s":5}', "null", "5", '"a"', "[]", '[{"s":"a"}]', '{"s":{"t":"a"}}']
    events = [event(f'{{"o":{text},"z":"a"}}') for text in inner] + [event("{}")]
    filters = ["data.o.s == 'a'", "data.o.s != 'a'", "has(data.o.s)", "!has(data.o.s)", "has(data.o)", "data.z == 'a'"]
    yield Case(events, filters)
    yield Case(events, ["data.o.s == 'a'", "data.z != 'b'"])
    # One place is a leaf and a parent at once.
    yield Case(events, [*filters, "data.o == 'a'", "data.o != 5", "data.o.s.t == 'a'", "has(data.o.s.t)"])


def names_are_taken_literally() -> Iterator[Case]:
    names = [
        "a.b",
        "a b",
        "a'b",
        'a"b',
        "a`b",
        "a,b:c<d>",
        "é😀",
        "select",
        "Name",
        "name",
        "$",
        "0",
        "",
        " ",
        "\\",
        "a\nb",
    ]
    everything = json.dumps({name: f"v{number}" for number, name in enumerate(names)})
    events = [event(everything), event(json.dumps({"a": {"b": "v0"}})), event("{}")]
    filters = [f"data[{string_literal(name)}] == 'v{number}'" for number, name in enumerate(names)]
    yield Case(events, filters)
    yield Case(events, [f"data.o[{string_literal(name)}] != 'x'" for name in names])
    yield Case(events, [f"data[{string_literal(name)}] == {number}" for number, name in enumerate(names)])


def json_at_its_limits() -> Iterator[Case]:
    deep = JSON_DEPTH_MAX - 1
    texts = [
        f'{{"x":{"[" * deep}{"]" * deep},"v":"a"}}',
        f'{{"x":{"[" * deep}{"]" * deep},"v":"5"}}',
        f'{{"{"n" * 50_000}":1,"v":"5"}}',
        f'{{"x":0.{"1" * 998},"v":"5"}}',
        f'{{"x":"{"s" * 1_000_000}","v":"5"}}',
        f'{{"x":"{"😀" * 200_000}","v":"é"}}',
    ]
    for text in texts:
        json_text.parse(text.encode())
        json_text.check_depth(text.encode())
    filters = ["data.v == 'a'", "data.v == '5'", "data.v == 'é'", "data.v != 'a'"]
    yield Case([event(text) for text in texts], filters)


def extensions_are_cut_out_of_their_text() -> Iterator[Case]:
    values: list[ExtensionValue] = [
        "",
        "a",
        "5",
        "true",
        'a"b',
        'x\\","tenant":"b',
        "\\",
        "{}",
        "}",
        ",",
        "é😀",
        '"tenant":"b"',
    ]
    values += [0, 5, -5, 2**31 - 1, True, False]
    events = [event(extensions={"tenant": value}) for value in values]
    events += [event(extensions={"first": value, "tenant": "b", "zz": 'y"'}) for value in values]
    events += [event(extensions={"first": value}) for value in values] + [event()]
    constants = [
        *(string_literal(value) if isinstance(value, str) else json.dumps(value) for value in values),
        "null",
        "5.0",
    ]
    yield Case(events, [f"ce.tenant == {constant}" for constant in constants])
    yield Case(events, [f"ce.tenant != {constant}" for constant in constants] + ["has(ce.tenant)", "!has(ce.first)"])
    yield Case(events, [f"ce.tenant {operator} {c}" for operator in ("<", ">=") for c in ("5", "'a'", "true")])
    yield Case(
        events, ["ce.tenant.startsWith('a')", "ce.tenant.endsWith('b')", "ce.tenant.contains('\"')", "ce.tenant"]
    )


def attributes() -> Iterator[Case]:
    events = [
        event(),
        Event(
            specversion="0.3",
            id="5",
            source="s",
            type="true",
            subject="x",
            time="2026-11-21T10:00:00Z",
            dataschema="u:",
        ),
    ]
    names = ["specversion", "id", "source", "type", "subject", "dataschema", "datacontenttype", "nosuch"]
    tests = ["== 'x'", "!= 'x'", "== 5", "!= 5", "!= null", "== true", "< 'y'", "> 5"]
    filters = [f"ce.{name} {test}" for name in names for test in tests]
    filters += [f"{negation}has(ce.{name})" for name in [*names, "time"] for negation in ("", "!")]
    yield Case(events, filters, is_decided=False)


def the_text_of_a_time() -> Iterator[Case]:
    sent = ["2018-04-26T14:48:09+02:00", "2018-04-26T12:48:09Z", "2018-04-26T12:48:09.000Z", None]
    events = [Event("1.0", "1", "/a", "t", time=time) for time in sent]
    filters = [
        f"ce['@time'] == '{sent[0]}'",
        f"ce['@time'] != '{sent[1]}'",
        f"ce['@time'] in ['{sent[1]}', '{sent[2]}'] && ce.time == timestamp('{sent[0]}')",
        "ce['@time'].startsWith('2018') && ce['@time'].endsWith('Z')",
        "ce['@time'].contains('+02') || ce['@time'].lowerAscii().endsWith('9z')",
        "size(ce['@time']) > 20 && ce['@time'] < '2018-04-26T13'",
        "has(ce.time) && ce['@time'] >= '2018'",
    ]
    yield Case(events, filters)


CASES: Final = {
    f"{made.__name__.replace('_', ' ')} {number}": case
    for made in (
        types_are_told_apart,
        a_place_of_which_only_a_string_is_asked,
        order_of_every_type,
        strings_are_ordered_by_their_bytes,
        roots_that_are_no_object,
        parents_that_are_no_object,
        names_are_taken_literally,
        json_at_its_limits,
        extensions_are_cut_out_of_their_text,
        attributes,
        the_text_of_a_time,
    )
    for number, case in enumerate(made())
}


@pytest.fixture(scope="module", params=["residuals", "shared atoms"])
def said(spark: SparkSession, request: pytest.FixtureRequest) -> dict[tuple[str, int, int], Verdict]:
    """By case, number of the event and number of the filter; all in one query, in which every case is a broker.

    Once every comparison that is not looked up is one of a row, and once as many as may be are shared.
    """
    with share_atoms() if request.param == "shared atoms" else nullcontext():
        return said_of_cases(spark)


def said_of_cases(spark: SparkSession) -> dict[tuple[str, int, int], Verdict]:
    events = [(name, number, one) for name, case in CASES.items() for number, one in enumerate(case.events)]
    filters = [(name, number, text) for name, case in CASES.items() for number, text in enumerate(case.filters)]
    table = build_table(spark, ((target, name, compile_cel(text)) for target, (name, _, text) in enumerate(filters)))
    frame = frame_of(spark, [one for *_, one in events], [name for name, *_ in events])
    found = {}
    for (offset, target), verdict in verdicts(frame, table).items():
        (name, event_number, _), (of, filter_number, _) = events[offset], filters[target]
        assert name == of
        found[name, event_number, filter_number] = verdict
    frame.unpersist()
    return found


@pytest.mark.parametrize("name", CASES)
def test_spark_decides_as_cel_does(said: dict[tuple[str, int, int], Verdict], name: str) -> None:
    case = CASES[name]
    for (number, one), (target, text) in product(enumerate(case.events), enumerate(case.filters)):
        truth, verdict = program(text).evaluate(one).kind, said.get((name, number, target))
        about = f"{text} on {one.data!r} {one.extensions}: CEL {truth.name}, Spark {verdict!r}"
        if verdict is Verdict.CANDIDATE and not case.is_decided:
            continue
        assert (verdict is Verdict.MATCH) == (truth is OutcomeKind.TRUE), about
        assert verdict is not Verdict.ERROR or truth is OutcomeKind.ERROR, about


def searched(spark: SparkSession, pairs: list[tuple[str, str]], *, is_pattern: bool) -> list[bool]:
    """What `headgate.search` says of each text and what is wanted of it."""
    frame = spark.createDataFrame(list(enumerate(pairs)), "n int, pair struct<text: string, wanted: string>")
    said = F.call_function("headgate.search", "pair.text", "pair.wanted", F.lit(is_pattern))
    return [row.said for row in frame.select("n", said.alias("said")).orderBy("n").collect()]


def test_texts_are_searched_exactly(spark: SparkSession) -> None:
    rng = random.Random(7)

    def some(of: list[str], count_max: int) -> str:
        return "".join(rng.choices(of, k=rng.randint(0, count_max)))

    letters, wide, special = ["a", "a", "a", "b"], ["a", "\xe9", "\u20ac", "\U0001f600"], ["a", "%", "_", "\\"]
    pairs = [
        (some(of, texts), some([*of, "%", "_", "%"], patterns))
        for of in (letters, wide)
        for texts, patterns in [(12, 8)] * 400 + [(1_500, 60)] * 20
    ]
    pairs += [(some(special, 12), some(["a", "\\%", "\\_", "\\\\", "%", "_"], 8)) for _ in range(400)]
    # One letter over and over: where a search by tries goes on in another way.
    texts = ["a" * rng.randint(300, 1_500) + some(wide, 9) for _ in range(times(20, 60))]
    hard = [(text, "a" * rng.randint(30, 200) + some(letters, 4)) for text in texts]
    pairs += [(text, f"%{wanted[:9]}_{wanted[9:]}{some(['_', '%'], 2)}%") for text, wanted in hard]
    assert searched(spark, pairs, is_pattern=True) == [like(text, pattern) for text, pattern in pairs]
    hard += [(text, wanted[:5]) for text, wanted in pairs]
    assert searched(spark, hard, is_pattern=False) == [wanted in text for text, wanted in hard]


def test_no_text_makes_a_search_slow(spark: SparkSession) -> None:
    text = "a" * 1_000_000 + "c"
    stat = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/stat")

    def processor_s() -> float:  # not the clock: the machine may be busy
        return sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    before = processor_s()
    holds = [(text, "a" * 16_000 + "b")] * 5
    likes = [(text, "%" + "a" * 900 + "b%c"), (text, "%a_" + "a" * 900 + "_b%c")] * 5
    assert not any([*searched(spark, holds, is_pattern=False), *searched(spark, likes, is_pattern=True)])
    assert processor_s() - before < 10, "less than a second; by tries at every byte more than 15"


@pytest.mark.parametrize("context", [nullcontext, share_atoms])
def test_integers_beyond_a_double_are_never_decided_wrongly(
    spark: SparkSession, context: Callable[[], AbstractContextManager[None]]
) -> None:
    edge = 2**53
    numbers = [edge - 1, edge, edge + 1, edge + 2, 2**63 - 1, 2**63, 2**64 - 1, -edge, -edge - 1, -(2**63)]
    events = [event(f'{{"v":{number}}}') for number in numbers] + [
        event('{"v":9007199254740993.0}'),
        event('{"v":1e19}'),
    ]
    place = Operand(Root.DATA, ("v",))
    key = Signature((KeyPart(place, KeyKind.NUMBER),), ())
    operators = {"==": (Op.EQ, False), "!=": (Op.EQ, True), "<": (Op.LT, False), ">=": (Op.GE, False)}
    filters = []
    for number in numbers:
        constant = str(number) if number < 2**63 else f"{number}u"
        filters.append(CompiledFilter(f"data.v == {constant}", (PlanRow(key, (number,), ()),)))
        for operator, (op, negated) in operators.items():
            residual = Signature((), (Residual(place, op, ConstantKind.NUMBER, negated),))
            filters.append(CompiledFilter(f"data.v {operator} {constant}", (PlanRow(residual, (), (number,)),)))
    with context():
        said = match(spark, events, filters)
    undecided = 0
    for (offset, one), (target, made) in product(enumerate(events), enumerate(filters)):
        truth, verdict = program(made.cel).evaluate(one).kind, said.get((offset, target))
        undecided += verdict is Verdict.CANDIDATE
        if verdict is not Verdict.CANDIDATE:
            assert (verdict is Verdict.MATCH) == (truth is OutcomeKind.TRUE), f"{made.cel} on {one.data!r}: {verdict}"
    assert 0 < undecided < len(events) * len(filters) / 4


# --- the join ---------------------------------------------------------------------------------------------------------


def test_python_computes_the_keys_that_spark_computes(spark: SparkSession) -> None:
    rng = random.Random(1)
    texts = ["", "é", "😀", *("".join(rng.choices("aZ09.é😀\x7f", k=length)) for length in range(80))]
    numbers = [0.0, -0.0, 1.0, -1.5, 5e-324, 1e300, float(2**53), -float(2**63), 123456789012345.0, 0.1]
    rows = [(text, rng.choice(numbers), rng.random() < 0.5) for text in texts] + [("x", n, True) for n in numbers]
    kinds = (KeyKind.STRING, KeyKind.NUMBER, KeyKind.BOOL)
    parts = tuple(KeyPart(Operand(Root.DATA, (name,)), kind) for name, kind in zip("tnf", kinds, strict=True))
    filters = [
        CompiledFilter("", (PlanRow(Signature(parts, ()), (text, number, flag), ()),)) for text, number, flag in rows
    ]
    table = build_table(spark, ((number, "ns/é", one) for number, one in enumerate(filters)))
    events = [event(json.dumps({"t": text, "n": number, "f": flag})) for text, number, flag in rows]
    extracted = frame_of(spark, events, "ns/é").select("offset", extraction(table).alias("a"))
    keyed = extracted.select("offset", "a.keys", "a.checks", F.explode("a.keys").alias("key"))
    joined = keyed.join(F.broadcast(table.rows), F.col("key") == F.col("row_key"))
    answers = joined.orderBy("offset").select("keys", "checks").collect()
    broker = BrokerTable("ns/é", table.secrets)
    broker.change(dict(enumerate(filters)))
    made = broker.rows[()]
    expected = {target: (row[0], row[1]) for row, targets in made.items() for target in targets}
    assert dict(enumerate((keys[0], checks[0] & 0xFFFF_FFFF) for keys, checks in answers)) == expected
    assert [bool(checks[0] >> 32) for _, checks in answers] == [abs(number) >= 2**53 for _, number, _ in rows]


def test_equal_constants_have_one_digest() -> None:
    secrets = Secrets(5, 7)
    assert digest(1, secrets) == digest(1.0, secrets) != digest(True, secrets)
    assert digest(0, secrets) == digest(-0.0, secrets) != digest(False, secrets)


def test_a_key_that_is_not_there_finds_nothing(spark: SparkSession) -> None:
    place = Operand(Root.DATA, ("v",))
    kinds = {KeyKind.STRING: "a", KeyKind.NUMBER: 5, KeyKind.BOOL: True, KeyKind.PREFIX: "éb", KeyKind.SUFFIX: "b😀"}
    filters = []
    for kind, constant in kinds.items():
        part = KeyPart(place, kind, 2 if kind in {KeyKind.PREFIX, KeyKind.SUFFIX} else 0)
        filters.append(CompiledFilter("", (PlanRow(Signature((part,), ()), (constant,), ()),)))
    data = ['"a"', "5", "5.0", "true", '"éb"', '"ébc"', '"é"', '"b😀"', '"ab😀"', '"😀"', "null", "[]", "{}", '""']
    said = match(spark, [event(f'{{"v":{text}}}') for text in data] + [event()], filters)
    found = {(data[offset], list(kinds)[target]) for offset, target in said}
    assert set(said.values()) == {Verdict.MATCH}
    assert found == {
        ('"a"', KeyKind.STRING),
        ("5", KeyKind.NUMBER),
        ("5.0", KeyKind.NUMBER),
        ("true", KeyKind.BOOL),
        ('"éb"', KeyKind.PREFIX),
        ('"ébc"', KeyKind.PREFIX),
        ('"b😀"', KeyKind.SUFFIX),
        ('"ab😀"', KeyKind.SUFFIX),
    }


def test_brokers_do_not_see_each_other(spark: SparkSession) -> None:
    everything = compile_cel("true")
    some = compile_cel("ce.type == 't'")
    table = build_table(spark, [(1, "a/x", everything), (2, "a/x", some), (3, "b/x", everything), (4, "a/y", some)])
    frame = frame_of(spark, [event()] * 3, ["a/x", "b/x", "a"])
    assert set(verdicts(frame, table)) == {(0, 1), (0, 2), (1, 3)}


def test_no_filters_at_all(spark: SparkSession) -> None:
    table = build_table(spark, [])
    assert verdicts(frame_of(spark, [event('{"a":1}')]), table) == {}


def test_what_the_matcher_does_not_read_is_a_candidate(spark: SparkSession) -> None:
    texts = ["data == 5", 'ce["a\\"b"] == "x"', "data.a == data.b"]
    filters = [*map(compile_cel, texts), CompiledFilter("", (PlanRow(SCAN_CANDIDATE, (), ()),))]
    assert match(spark, [event("{}")], filters) == {(0, target): Verdict.CANDIDATE for target in range(len(filters))}


def test_the_plan_is_one_join_in_generated_code(spark: SparkSession) -> None:
    filters = [
        "ce.type == 't' && data.a.b > 5",
        "data.s != 'x'",
        "ce.tenant.startsWith('a')",
        "data.n in [1, 2]",
        "true",
    ]
    table = build_table(spark, ((number, BROKER, compile_cel(text)) for number, text in enumerate(filters)))
    plan = match_events(frame_of(spark, [event()]), table)._jdf.queryExecution().executedPlan().toString()
    assert plan.count("BroadcastHashJoin") == 1
    assert "BroadcastExchange" not in plan  # the rows have been broadcast before
    assert plan.count("static_invoke(dev.headgate.connector.keys.KeyExtraction.invoke(") == 1
    assert not [name for name in ("Sort", "Aggregate", "Python", "Subquery", "Window", "Arrow") if name in plan]
    for line in plan.splitlines():
        assert line.lstrip(" :+-").startswith(LINES), line


def test_filters_that_are_equal_share_a_row_and_each_is_answered(spark: SparkSession) -> None:
    texts = [
        'ce.type == "t" && data.n in [1, 2]',
        'data.n in [2, 1] && "t" == ce.type',
        'ce.type == "t" && data.n in [1]',
    ]
    filters = [*map(compile_cel, texts), compile_cel(texts[0])]
    table = build_table(spark, [*((number, BROKER, one) for number, one in enumerate(filters)), (9, "x/y", filters[0])])
    shared = sorted(sorted(row.targets) for row in table.rows.collect())
    assert shared == [[-1], [0, 1, 2, 3], [0, 1, 3], [9], [9]]  # a row for each constant of `in`
    frame = frame_of(spark, [event('{"n":1}'), event('{"n":2}'), event('{"n":3}')])
    everyone = {(0, target): Verdict.MATCH for target in (0, 1, 2, 3)}
    assert verdicts(frame, table) == everyone | {(1, target): Verdict.MATCH for target in (0, 1, 3)}


def test_with_marks_every_event_ends_with_one_even_where_nobody_wants_it(spark: SparkSession) -> None:
    texts = ["data.n in [1, 2]", "ce.type == 't' && data.n > 1", "data.n == 1"]
    table = build_table(spark, ((number, BROKER, compile_cel(text)) for number, text in enumerate(texts)))
    wanted: list[list[int]] = [[], [0, 2], [0, 1], [1], *[[]] * 4]
    events = [event(f'{{"n":{number}}}') for number in range(4)]
    frame = frame_of(spark, events * 2, [BROKER] * 4 + ["without/filters/1"] * 4)
    answer = match_events(frame, table, marks=True)
    rows = [tuple(row) for row in answer.drop("partition").collect()]
    assert rows == sorted(rows, key=lambda row: row[0])
    for offset, expected in enumerate(wanted):
        *targets, mark = [target for one, target, _ in rows if one == offset]
        assert (sorted(targets), mark) == (expected, MARK)
    assert MARK not in {target for _, target in verdicts(frame, table)}
    frame.unpersist()
    plan = answer._jdf.queryExecution().executedPlan().toString()
    for line in plan.splitlines():
        assert line.lstrip(" :+-").startswith(LINES), line
