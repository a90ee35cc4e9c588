"""Which rows does a filter become? Index choice, verdict kind, bounds."""

from __future__ import annotations

import pytest

from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import program
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import (
    DOUBT_NUMBER,
    DOUBT_TEXT,
    MANY,
    SCAN_CANDIDATE,
    ConstantKind,
    Form,
    KeyKind,
    KeyPart,
    Op,
    Operand,
    PlanRow,
    Probe,
    Residual,
    Root,
    Signature,
)
from headgate.filter.tools.explain import explain
from headgate_api.limits import FILTER_CHARACTERS_MAX, FILTER_CONJUNCTIONS_MAX, FILTER_LIST_ITEMS_MAX, FILTER_ROWS_MAX

TYPE = Operand(Root.CE, ("type",))
SUBJECT = Operand(Root.CE, ("subject",))
AB = Operand(Root.DATA, ("a", "b"))
N = Operand(Root.DATA, ("n",))


def row(text: str) -> PlanRow:
    (only,) = compile_cel(text).rows
    return only


def key(text: str) -> dict[KeyPart, object]:
    only = row(text)
    return dict(zip(only.signature.key, only.key, strict=True))


def residual(text: str) -> dict[Residual, object]:
    only = row(text)
    return dict(zip(only.signature.residual, only.constants, strict=True))


@pytest.mark.parametrize(
    ("text", "part", "constant"),
    [
        ("ce.type == 'a'", KeyPart(TYPE, KeyKind.STRING), "a"),
        ("'a' == ce['type']", KeyPart(TYPE, KeyKind.STRING), "a"),
        ("data.n == 1", KeyPart(N, KeyKind.NUMBER), 1),
        ("data.n == 1.0", KeyPart(N, KeyKind.NUMBER), 1),
        ("data.n == 1u", KeyPart(N, KeyKind.NUMBER), 1),
        ("data.n == -0.0", KeyPart(N, KeyKind.NUMBER), 0),
        ("data['n'] == 1.5", KeyPart(N, KeyKind.NUMBER), 1.5),
        ("data.n == 1234567890123456789", KeyPart(N, KeyKind.NUMBER), 1234567890123456789),
        ("data.n == true", KeyPart(N, KeyKind.BOOL), True),
        ("data.n", KeyPart(N, KeyKind.BOOL), True),
        ("!data.n", KeyPart(N, KeyKind.BOOL), False),
        ("data.a.b.c == 'x'", KeyPart(Operand(Root.DATA, ("a", "b", "c")), KeyKind.STRING), "x"),
        ("data['a.b'] == 'x'", KeyPart(Operand(Root.DATA, ("a.b",)), KeyKind.STRING), "x"),
        ("ce.`in` == 'x'", KeyPart(Operand(Root.CE, ("in",)), KeyKind.STRING), "x"),
        ("ce.a.b == 'x'", KeyPart(Operand(Root.CE, ("a.b",)), KeyKind.STRING), "x"),
        ("ce.type.startsWith('order')", KeyPart(TYPE, KeyKind.PREFIX, 4), "orde"),
        ("ce.type.startsWith('é😀')", KeyPart(TYPE, KeyKind.PREFIX, 2), "é😀"),
        ("ce.type.endsWith('.created')", KeyPart(TYPE, KeyKind.SUFFIX, 8), ".created"),
        ("ce.type.matches('^order')", KeyPart(TYPE, KeyKind.PREFIX, 4), "orde"),
        ("ce.type.matches('^order$')", KeyPart(TYPE, KeyKind.STRING), "order"),
        ("ce.type.startsWith('ab') && ce.type.startsWith('abc')", KeyPart(TYPE, KeyKind.PREFIX, 3), "abc"),
        ("ce.type.endsWith('abcd') && ce.type.startsWith('a')", KeyPart(TYPE, KeyKind.PREFIX, 1), "a"),
        ("data.n in [1]", KeyPart(N, KeyKind.NUMBER), 1),
        ("!(data.n != 1)", KeyPart(N, KeyKind.NUMBER), 1),
    ],
)
def test_is_found_by_an_index(text: str, part: KeyPart, constant: object) -> None:
    assert key(text) == {part: constant}
    assert type(key(text)[part]) is type(constant)
    assert row(text).signature.exact


@pytest.mark.parametrize(
    ("text", "wanted", "constant"),
    [
        ("data.n > 1", Residual(N, Op.GT, ConstantKind.NUMBER), 1),
        ("1 > data.n", Residual(N, Op.LT, ConstantKind.NUMBER), 1),
        ("!(data.n > 1)", Residual(N, Op.LE, ConstantKind.NUMBER), 1),
        ("data.n >= 'a'", Residual(N, Op.GE, ConstantKind.STRING), "a"),
        ("data.n < true", Residual(N, Op.LT, ConstantKind.BOOL), True),
        ("data.n != 1", Residual(N, Op.EQ, ConstantKind.NUMBER, True), 1),
        ("data.n == null", Residual(N, Op.EQ, ConstantKind.NULL), None),
        ("data.n != null", Residual(N, Op.EQ, ConstantKind.NULL, True), None),
        ("!(data.n in ['a', 'b'])", Residual(N, Op.IN, ConstantKind.STRING, True), ("a", "b")),
        ("ce.type.contains('a')", Residual(TYPE, Op.CONTAINS, ConstantKind.STRING), "a"),
        ("!ce.type.startsWith('a')", Residual(TYPE, Op.STARTS, ConstantKind.STRING, True), "a"),
        ("ce.type.startsWith('')", Residual(TYPE, Op.STARTS, ConstantKind.STRING), ""),
        ("!ce.type.endsWith('a')", Residual(TYPE, Op.ENDS, ConstantKind.STRING, True), "a"),
        ("size(ce.subject) > 0", Residual(SUBJECT, Op.GT, ConstantKind.STRING), ""),
    ],
)
def test_is_decided_by_a_comparison(text: str, wanted: Residual, constant: object) -> None:
    assert residual(text) == {wanted: constant}
    assert row(text).signature.exact
    assert row(text).signature.key == ()
    assert any(note.startswith("scan") for note in compile_cel(text).notes)


@pytest.mark.parametrize(
    "text",
    [
        "data.a == data.b",
        "data.l.exists(x, x == data.s)",
        "data.l.exists_one(x, x == 1)",
        "data.l[0] == 1",
        "data.n * 2.0 == 2.0",
        "data.n * 9223372036854775807 > 2",
        "ce.type.matches('a.*b$')",
        "!ce.type.matches('^[a-z]+$')",
        "ce.type.matches('(?i)^task')",
        "ce.time > timestamp('9999-01-01T00:00:00Z')",
        "ce.time == '2020-01-01T00:00:00Z'",
        "data.n == 1e300",
        "data.n in [1, data.m]",
        "data.n in data.l",
        "data == {}",
        "'a:b' in ce",
        "'abc'.startsWith(ce.type)",
        "data.b == b'a'",
        "data.n in []",
        "'a' in ce.list",
    ],
)
def test_what_no_operator_says_is_a_candidate(text: str) -> None:
    compiled = compile_cel(text)
    assert [made.signature for made in compiled.rows] == [SCAN_CANDIDATE]
    assert any(note.startswith("candidate: ") for note in compiled.notes)


@pytest.mark.parametrize(
    ("text", "part", "constant"),
    [
        ("ce.type.lowerAscii() == 'a'", KeyPart(Operand(Root.CE, ("type",), Form.LOWER), KeyKind.STRING), "a"),
        (
            "ce.type.upperAscii().startsWith('AB')",
            KeyPart(Operand(Root.CE, ("type",), Form.UPPER), KeyKind.PREFIX, 2),
            "AB",
        ),
        ("ce.type.matches('(?i)^AB')", KeyPart(Operand(Root.CE, ("type",), Form.LOWER), KeyKind.PREFIX, 2), "ab"),
        ("size(data.n) == 2", KeyPart(Operand(Root.DATA, ("n",), Form.SIZE), KeyKind.NUMBER), 2),
        ("has(ce.subject)", KeyPart(Operand(Root.CE, ("subject",), Form.PRESENT), KeyKind.BOOL), True),
        ("!has(data.n)", KeyPart(Operand(Root.DATA, ("n",), Form.PRESENT), KeyKind.BOOL), False),
        ("'subject' in ce", KeyPart(Operand(Root.CE, ("subject",), Form.PRESENT), KeyKind.BOOL), True),
        ("has(ce.time)", KeyPart(Operand(Root.CE, ("time",), Form.PRESENT), KeyKind.BOOL), True),
        ("(ce.type == 'a') == true", KeyPart(TYPE, KeyKind.STRING), "a"),
        ("has(data.n) && data.n == 1", KeyPart(N, KeyKind.NUMBER), 1),
        (
            "has(data.a) && has(data.a.b) && data.a.b == 'x'",
            KeyPart(Operand(Root.DATA, ("a", "b")), KeyKind.STRING),
            "x",
        ),
        ("type(data.n) == string && data.n == 'x'", KeyPart(N, KeyKind.STRING), "x"),
        ("(data.b ? 'a' : 'b') == 'a'", KeyPart(Operand(Root.DATA, ("b",)), KeyKind.BOOL), True),
    ],
)
def test_a_form_is_found_by_an_index(text: str, part: KeyPart, constant: object) -> None:
    assert key(text) == {part: constant}
    assert row(text).signature == Signature((part,), ())


@pytest.mark.parametrize(
    ("text", "form", "constants"),
    [
        ("int(ce.level) == 5", Form.TO_INT, {5, DOUBT_NUMBER}),
        ("double(data.n) in [1.0, 2.5]", Form.TO_DOUBLE, {1, 2.5, DOUBT_NUMBER}),
        ("string(data.n) == '5'", Form.TO_STRING, {"5", DOUBT_TEXT}),
        ("data.n * 2 - 1 == 9", Form.INTEGER, {5, DOUBT_NUMBER}),
        ("'x' in data.n", Form.ELEMENTS, {"x", DOUBT_TEXT}),
        ("data.n.exists(t, t == 'x' || t == 'y')", Form.ELEMENTS, {"x", "y", DOUBT_TEXT}),
        ("data.n.exists(t, t.startsWith('xy'))", Form.ELEMENTS, {"xy", DOUBT_TEXT}),
        ("data.n.exists(t, t.lowerAscii() == 'x')", Form.ELEMENTS_LOWER, {"x", DOUBT_TEXT}),
        ("ce.exists(n, n.startsWith('tag') && ce[n] in ['x', 'y'])", Form.NAMED, {"x", "y", DOUBT_TEXT}),
        ("json.values(data, ['n']).exists(v, v in [1, 2])", Form.VALUES, {1, 2, DOUBT_NUMBER}),
    ],
)
def test_a_form_that_may_be_in_doubt_has_a_row_for_doubt(text: str, form: Form, constants: set[object]) -> None:
    rows = compile_cel(text).rows
    assert {made.key[0] for made in rows} == constants
    assert {part.operand.form for made in rows for part in made.signature.key} == {form}
    assert all(made.signature.exact is not made.is_of_doubt for made in rows)
    assert sum(made.is_of_doubt for made in rows) == 1
    # Whatever a key of many values finds is compared once more.
    assert all(bool(made.signature.residual) is (form in MANY) for made in rows)


@pytest.mark.parametrize(
    ("text", "wanted", "constant"),
    [
        ("size(data.n) > 2", Residual(Operand(Root.DATA, ("n",), Form.SIZE), Op.GT, ConstantKind.NUMBER), 2),
        (
            "!(double(data.n) < 2.5)",
            Residual(Operand(Root.DATA, ("n",), Form.TO_DOUBLE), Op.LT, ConstantKind.NUMBER, True),
            2.5,
        ),
        ("data.n / 10 > 2", Residual(Operand(Root.DATA, ("n",), Form.INTEGER), Op.GE, ConstantKind.NUMBER), 30),
        ("-3 * data.n < 7", Residual(Operand(Root.DATA, ("n",), Form.INTEGER), Op.GT, ConstantKind.NUMBER), -3),
        (
            "string != type(data.n)",
            Residual(Operand(Root.DATA, ("n",), Form.TYPE), Op.EQ, ConstantKind.STRING, True),
            "string",
        ),
        (
            "ce.time >= timestamp('1970-01-01T00:00:00.0000005Z') + duration('1s')",
            Residual(Operand(Root.CE, ("time",), Form.TIME), Op.GE, ConstantKind.NUMBER),
            1_000_000.5,
        ),
        (
            "timestamp('1970-01-01T00:00:01Z') == ce.time",
            Residual(Operand(Root.CE, ("time",), Form.TIME), Op.EQ, ConstantKind.NUMBER),
            1_000_000,
        ),
        (
            "data.n.all(t, t != 'x')",
            Residual(
                Operand(Root.DATA, ("n",), Form.ELEMENTS),
                Op.EXISTS,
                ConstantKind.STRING,
                True,
                (Probe(Op.EQ, lenient=True),),
            ),
            ("x",),
        ),
        (
            "json.values(data, ['n']).exists(v, type(v) in [int, uint, double] && v > 1 && v <= 5)",
            Residual(
                Operand(Root.DATA, ("n",), Form.VALUES),
                Op.EXISTS,
                ConstantKind.NUMBER,
                False,
                (Probe(Op.GT, lenient=True), Probe(Op.LE, lenient=True)),
            ),
            (1, 5),
        ),
        (
            "json.values(data, ['n']).exists(v, !(type(v) == string && (v.startsWith('a') || v.endsWith('b'))))",
            Residual(
                Operand(Root.DATA, ("n",), Form.VALUES),
                Op.EXISTS,
                ConstantKind.STRING,
                False,
                (Probe(Op.STARTS, True, True), Probe(Op.ENDS, True, True)),
            ),
            ("a", "b"),
        ),
        ("ce.type.matches('(?s)a.b')", Residual(TYPE, Op.LIKE, ConstantKind.STRING), "%a_b%"),
        (
            "size(json.values(data, ['n'])) == 0",
            Residual(Operand(Root.DATA, ("n",), Form.VALUES), Op.EXISTS, ConstantKind.NONE, True),
            (),
        ),
    ],
)
def test_a_form_is_decided_by_a_comparison(text: str, wanted: Residual, constant: object) -> None:
    assert residual(text) == {wanted: constant}
    assert row(text).signature == Signature((), (wanted,))


@pytest.mark.parametrize(
    ("text", "like"),
    [
        ("ce.type.matches('^order[.](created|paid)$')", "ce.type in ['order.created', 'order.paid']"),
        ("ce.type.matches('^(eu|us)-')", "ce.type.startsWith('eu-') || ce.type.startsWith('us-')"),
        ("ce.type.matches('.*gold.*')", "ce.type.contains('gold')"),
        (
            "ce.type.matches('^a.*b$')",
            "ce.type.startsWith('a') && ce.type.matches('^.*b$') && ce.type.matches('(?s)^a.*b$')",
        ),
        ("!ce.type.matches('^a$')", "ce.type != 'a' && ce.type.startsWith('')"),
        ("data.l.exists(t, t in ['a', 1])", "'a' in data.l || 1 in data.l"),
        ("data.l.all(t, t == 'a' && t != 'b')", "!data.l.exists(t, t != 'a' || t == 'b')"),
        (
            "json.objects(data, ['o']).exists(o, json.values(o, ['a']).exists(v, v == 1) "
            "&& json.values(o, ['b']).exists(v, v == 2))",
            "json.values(data, ['o', 'a']).exists(v, v == 1) && json.values(data, ['o', 'b']).exists(v, v == 2)",
        ),
    ],
)
def test_two_spellings_have_the_same_rows(text: str, like: str) -> None:
    assert set(compile_cel(text).rows) == set(compile_cel(like).rows)
    assert all(made.signature.exact or made.is_of_doubt for made in compile_cel(text).rows)


def test_a_candidate_keeps_what_is_certain() -> None:
    only = row("ce.type == 'a' && data.n > 1 && data.l.exists(x, x == data.m)")
    assert only.signature == Signature(
        key=(KeyPart(TYPE, KeyKind.STRING),), residual=(Residual(N, Op.GT, ConstantKind.NUMBER),), exact=False
    )
    assert (only.key, only.constants) == (("a",), (1,))


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("^ab.*c", "ab"),
        ("^ab\\\\.[c-d]", "ab."),
        ("^ab\\\\.(c+|d)", None),
        ("^abc*d", "ab"),
        ("^abc{0}d", "ab"),
        ("^ab\\\\d", "ab"),
        ("(?i)^abs.", None),
        ("^(?i)ab.", None),
        ("^éé..", "éé"),
    ],
)
def test_a_regular_expression_is_found_by_what_it_begins_with(pattern: str, prefix: str | None) -> None:
    only = row(f"ce.type.matches('{pattern}')")
    assert only.key == (() if prefix is None else (prefix,))
    assert not only.signature.exact


def test_all_equalities_are_one_key() -> None:
    only = row("data.n == 1 && ce.type == 'a' && data.b && ce.subject.startsWith('x')")
    assert [part.operand.path for part in only.signature.key] == [("type",), ("b",), ("n",)]
    assert only.key == ("a", True, 1)
    assert [test.op for test in only.signature.residual] == [Op.STARTS]


def test_order_of_writing_does_not_matter() -> None:
    one, two = (
        compile_cel("data.n > 1 && ce.type == 'a' && data.m < 2"),
        compile_cel("data.m < 2 && data.n > 1 && 'a' == ce.type"),
    )
    assert one.rows == two.rows


def test_a_list_of_constants_is_one_row_an_element() -> None:
    compiled = compile_cel("ce.type in ['b', 'a', 'b'] && data.n in [1, 'x']")
    assert {made.key for made in compiled.rows} == {("a", 1), ("b", 1), ("a", "x"), ("b", "x")}
    assert len({made.signature for made in compiled.rows}) == 2


def test_alternatives_of_one_place_are_a_list() -> None:
    text = " || ".join(f"ce.type == 't{number}'" for number in range(100))
    compiled = compile_cel(text)
    assert {made.key for made in compiled.rows} == {(f"t{number}",) for number in range(100)}
    assert all(made.signature.exact for made in compiled.rows)


def test_a_product_over_the_bound_stays_a_list() -> None:
    left, right = ([f"'{name}{number}'" for number in range(100)] for name in "ab")
    only = compile_cel(f"ce.type in [{', '.join(left)}] && data.n in [{', '.join(right)}]")
    assert len(only.rows) == 100
    assert {test.op for made in only.rows for test in made.signature.residual} == {Op.IN}
    assert all(made.signature.exact for made in only.rows)


def test_alternatives_over_the_bound_are_left_to_cel() -> None:
    wide = " || ".join(f"data.a{number} > 1" for number in range(FILTER_CONJUNCTIONS_MAX + 1))
    assert [made.signature for made in compile_cel(wide).rows] == [SCAN_CANDIDATE]
    only = row(f"ce.type == 'a' && ({wide})")
    assert only.key == ("a",)
    assert not only.signature.exact


def test_a_product_of_alternatives_over_the_bound_keeps_the_narrow_ones() -> None:
    pairs = " && ".join(f"(data.a{number} > 1 || data.b{number} > 1)" for number in range(20))
    compiled = compile_cel(f"ce.type == 'a' && {pairs}")
    assert 1 < len(compiled.rows) <= FILTER_CONJUNCTIONS_MAX
    assert all(made.key == ("a",) and not made.signature.exact for made in compiled.rows)


def test_rows_are_bounded() -> None:
    parts = [
        f"(data.x{number} > 1 && ce.type in [{', '.join(repr(f'{number}-{item}') for item in range(90))}])"
        for number in range(16)
    ]
    assert len(compile_cel(" || ".join(parts)).rows) <= FILTER_ROWS_MAX


@pytest.mark.parametrize(
    "text", ["false", "ce.type == 'a' && ce.type == 'b'", "data.n == 1 && data.n == '1'", "data.n < null"]
)
def test_what_is_never_true_has_no_rows(text: str) -> None:
    assert compile_cel(text).rows == ()


def test_integers_that_share_a_double_do_not_exclude_each_other() -> None:
    assert compile_cel("data.n == 9007199254740992 && data.n == 9007199254740993").rows


def test_true_matches_everything() -> None:
    assert row("true") == PlanRow(Signature((), ()), (), ())
    assert row("has(ce.type) || data.n") == PlanRow(Signature((), ()), (), ())


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (f"data.n in [{', '.join(map(str, range(FILTER_LIST_ITEMS_MAX + 1)))}]", "FILTER_LIST_ITEMS_MAX"),
        (f"ce.type.matches('{'a.' * 600}')", "FILTER_REGEX_CHARACTERS_MAX"),
        ("size([data]" + ".map(a, a + a)" * 8 + ") == 1", "FILTER_GROWTH_MAX"),
        ("data.l.map(x, data.s + 'a') == []", "FILTER_GROWTH_MAX"),
        ("data.all(a, data.all(b, data.all(c, a < b && b < c)))", "FILTER_COST_MAX"),
        (" && ".join(f"data.a > {number}" for number in range(1_200)), "FILTER_CHARACTERS_MAX"),
        (f"data == [{', '.join('[' + ','.join(['[]'] * 900) + ']' for _ in range(5))}]", "FILTER_NODES_MAX"),
    ],
)
def test_refuses_what_is_over_a_limit(text: str, limit: str) -> None:
    with pytest.raises(FilterError) as refused:
        compile_cel(text)
    assert refused.value.limit == limit
    assert limit in refused.value.message


@pytest.mark.parametrize(
    "text",
    ["data.l.exists(x, data.m.exists(y, x.id == y.id))", "data.s + 'a' == 'ba'", "data.l.map(x, x + 'a') == ['ba']"],
)
def test_reasonable_macros_are_below_the_limits(text: str) -> None:
    assert compile_cel(text).rows


@pytest.mark.parametrize("text", ["1", "'a'", "data.n + 1", "size(ce.type)", "ce", "[true]"])
def test_refuses_what_is_never_boolean(text: str) -> None:
    with pytest.raises(FilterError, match="true or false"):
        compile_cel(text)


@pytest.mark.parametrize("text", ["ce.type.matches('(')", "ce.type.matches('a(?=b)')"])
def test_refuses_an_invalid_regular_expression(text: str) -> None:
    with pytest.raises(FilterError, match="regular expression"):
        compile_cel(text)


def test_a_rewrite_that_the_checker_refuses_is_not_the_meaning() -> None:
    assert compile_cel("!(data.c ? 1 : data.b)").cel == "!(data.c ? 1 : data.b)"


def test_canonical_text_compiles_to_itself() -> None:
    once = compile_cel("!('a' == ce['type']) || data.n in [2, 1]")
    assert once.cel == 'ce.type != "a" || data.n in [1, 2]'
    assert compile_cel(once.cel) == once


def test_conditions_inside_conditions_cost_no_more_than_their_size() -> None:
    text = "data.z"
    for number in range(28):
        text = f"({text}) ? data.p{number} : data.q{number}"
    assert len(compile_cel(text).rows) <= FILTER_CONJUNCTIONS_MAX


def test_canonical_text_may_be_longer_than_what_was_written() -> None:
    written = f"data.n in [{','.join(str(10**14 + number) for number in range(1_000))}]"
    meaning = compile_cel(written).cel
    assert len(meaning) > FILTER_CHARACTERS_MAX > len(written)
    assert program(meaning).cel == meaning


def test_canonical_text_is_bounded() -> None:
    with pytest.raises(FilterError) as refused:
        compile_cel(f"data.s == '{chr(127) * 15_000}'")
    assert refused.value.limit == "FILTER_CANONICAL_CHARACTERS_MAX"


@pytest.mark.parametrize("text", ["data == 5", "data", "data == null", 'ce["a\\"b"] == "x"'])
def test_a_value_that_the_matcher_does_not_read_is_left_to_cel(text: str) -> None:
    compiled = compile_cel(text)
    assert [made.signature for made in compiled.rows] == [SCAN_CANDIDATE]
    assert any(note.startswith(f"candidate: {compiled.cel}: ") for note in compiled.notes)
    explanation = explain(compiled)
    assert (explanation.decided_by, explanation.cost.scans) == ("cel", 1)
    beside = compile_cel(f"ce.type == 'a' && {text}")
    assert [(made.key, made.signature.exact) for made in beside.rows] == [(("a",), False)]
