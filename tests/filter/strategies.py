"""Which filters does a generated test use? Those of the events in `hostile_events.py`, so that they often match.

`random_filter(rng)` is plain and fast (15 microseconds) for tests over many pairs; `filters()` is the same as a
hypothesis strategy. `random_filter` stays inside the operators that the matcher decides by itself, `random_hard_filter`
also writes what only cel-cpp can decide.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from hypothesis import strategies as st

from tests.filter.hostile_events import (
    ATTRIBUTES,
    DATA_PATHS,
    EXTENSIONS,
    INT64_MAX,
    INT64_MIN,
    LARGE_NUMBERS,
    SMALL_NUMBERS,
    SOURCES,
    STRINGS,
    SUBJECTS,
    TIMES,
    TYPES,
    UINT64_MAX,
    Json,
    random_number,
    random_scalar,
)

_IDENTIFIERS = {"s", "n", "b", "v", "o", "k", "l", "x", "nosuch"}
COMPARISONS = ["==", "!=", "<", "<=", ">", ">="]


def string_literal(text: str) -> str:
    """`text` as a CEL string literal."""
    return json.dumps(text, ensure_ascii=False)


def literal(value: Json) -> str:
    """A JSON scalar as CEL text; integers above int64 become uint, and above uint64 double."""
    match value:
        case str():
            return string_literal(value)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() if value > UINT64_MAX or value < INT64_MIN:
            return repr(float(value))
        case int() if value > INT64_MAX:
            return f"{value}u"
        case _:
            return repr(value)


def _step(rng: random.Random, name: str) -> str:
    if name in _IDENTIFIERS and rng.random() < 0.8:
        return f".{name}"
    if name.isascii() and rng.random() < 0.5:
        return f".`{name}`"
    return f"[{string_literal(name)}]"


def data_place(rng: random.Random, path: tuple[str, ...]) -> str:
    """A path into the data, in one of its spellings."""
    return "data" + "".join(_step(rng, name) for name in path)


def attribute_place(rng: random.Random, name: str) -> str:
    """An attribute, in one of its spellings."""
    return f"ce.{name}" if name != "in" and rng.random() < 0.8 else rng.choice([f'ce["{name}"]', f"ce.`{name}`"])


def _place_and_values(rng: random.Random) -> tuple[str, list[Json]]:
    if rng.random() < 0.45:
        name = rng.choice(ATTRIBUTES)
        known: dict[str, list[Json]] = {
            "type": list(TYPES),
            "source": list(SOURCES),
            "subject": list(SUBJECTS),
            "id": ["1", "2"],
            "specversion": ["1.0", "0.3"],
        }
        scalars = {key: [one for one in values if not isinstance(one, dict)] for key, values in EXTENSIONS.items()}
        known.update({key: list[Json](values) for key, values in scalars.items()})
        return attribute_place(rng, name), known.get(name, list(STRINGS))
    path = rng.choice(DATA_PATHS)
    place = data_place(rng, path)
    if path[-1] in {"s", "for", "a.b", "é"}:
        return place, list(STRINGS)
    if path[-1] == "n":
        return place, [random_number(rng)]
    if path[-1] == "b":
        return place, [True, False]
    if path[-1] == "k":
        return place, ["a", 1, True]
    return place, [random_scalar(rng)]


def _constant(rng: random.Random, values: list[Json]) -> Json:
    value = rng.choice(values) if rng.random() < 0.85 else random_scalar(rng)
    return value if value is not None or rng.random() < 0.3 else "a"


def random_atom(rng: random.Random) -> str:
    """One comparison, call, presence test or bare boolean."""
    place, values = _place_and_values(rng)
    pick = rng.random()
    if pick < 0.42:
        constant, operator = (
            literal(_constant(rng, values)),
            "==" if rng.random() < 0.6 else rng.choice(COMPARISONS[:2]),
        )
        return f"{place} {operator} {constant}" if rng.random() < 0.8 else f"{constant} {operator} {place}"
    if pick < 0.6:
        value = _constant(rng, values)
        constant = literal("a" if value is None else value)
        operator = rng.choice(COMPARISONS[2:])
        return f"{place} {operator} {constant}" if rng.random() < 0.8 else f"{constant} {operator} {place}"
    if pick < 0.72:
        items = [literal(_constant(rng, values)) for _ in range(rng.randrange(1, 4))]
        return f"{place} in [{', '.join(items)}]"
    if pick < 0.86:
        value = rng.choice([item for item in values if isinstance(item, str)] or STRINGS)
        start = rng.randrange(len(value) + 1)
        part = value[:start] if rng.random() < 0.5 else value[start:]
        return f"{place}.{rng.choice(['startsWith', 'endsWith', 'contains'])}({string_literal(part)})"
    if pick < 0.94:
        name = rng.choice(ATTRIBUTES)
        path = rng.choice([path for path in DATA_PATHS if all(step in _IDENTIFIERS for step in path)])
        return f"has(data.{'.'.join(path)})" if rng.random() < 0.6 else f"has(ce.`{name}`)"
    return rng.choice([data_place(rng, ("b",)), data_place(rng, ("o", "b")), "ce.flag", "data.v"])


_TYPE_NAMES = ["string", "int", "uint", "double", "bool", "list", "map", "null_type"]
_PATTERNS = [
    *["^order", "^order$", "created$", "gold", "^order[.]", "^order.*$", "^order.+", "^.*created$", "^a.*b$"],
    *[
        "^(a|b)$",
        "^order\\\\.(created|cancelled)$",
        "^(order|gold)",
        "(?i)^a",
        "(?i)gold",
        "^a?b",
        "^.+$",
        "^.*$",
        "^.$",
    ],
    *[
        "(?s)^a.*b$",
        "(?s)^a.b",
        "^a(?s:.)b(?s:.*)$",
        "(?s)r.*e",
        "(?is)^A.*B$",
        "^o.*d.*$",
        "^(?s:.*)a%(?s:.)$",
        "(?s)^.{1}$",
    ],
    *["[ab]$", "^$", "^", ".*a.*", "^a..b$", "a|b", "^a$|^b$", "^order\\\\.\\\\w+$", "(?i)^order$", "^ab?c?$", "^a.b"],
]
_WILDCARDS = ["order*", "*created", "*o*", "o*d", "a*a", "*r*e*", "?", "a?b", "gold", "", "*", "o*.c*", "\\\\*", "*%?"]
_LIST_PATHS: list[tuple[str, ...]] = [
    ("l",),
    ("l",),
    ("l",),
    ("v",),
    ("s",),
    ("o", "v"),
    ("o", "o"),
    ("nosuch",),
    ("o",),
]
_VALUES_PATHS = [*_LIST_PATHS, ("l", "s"), ("o", "s"), ("o", "n"), ("s", "x"), ("l", "x"), ("é",), ("b",), ("n",)]


def _any_place(rng: random.Random) -> str:
    return _place_and_values(rng)[0]


def _text_place(rng: random.Random) -> str:
    return rng.choice([data_place(rng, ("s",)), "ce.type", "ce.subject", "ce.tenant", "data.v", _any_place(rng)])


def _part(rng: random.Random) -> str:
    value = rng.choice(STRINGS)
    return string_literal(value[: rng.randrange(len(value) + 1)])


def _small(rng: random.Random) -> str:
    return literal(rng.choice(SMALL_NUMBERS if rng.random() < 0.9 else LARGE_NUMBERS))


def _whole(rng: random.Random) -> str:
    return literal(rng.choice([0, 1, 2, -1, 3, 5, 10, -7, 100, 2**53 - 1, 2**53 + 1, INT64_MAX, INT64_MIN]))


def _double(rng: random.Random) -> str:
    return repr(float(rng.choice(SMALL_NUMBERS if rng.random() < 0.9 else LARGE_NUMBERS)))


def _instant(rng: random.Random) -> str:
    text = rng.choice([time for time in TIMES if time and not time.startswith("0000") and ":60" not in time])
    text = text if rng.random() < 0.7 else text.replace(":00Z", ":00.0000005Z")
    shift = rng.choice(["", "", " + duration('1h')", " - duration('90m')", " + duration('1ns')", " - duration('0.5s')"])
    return f"timestamp('{text}'){'' if text.startswith('9999') else shift}"


def _probe(rng: random.Random, name: str) -> str:
    """A question about one value of a list."""
    text, order = string_literal(rng.choice(STRINGS)), rng.choice(COMPARISONS)
    method = rng.choice(["startsWith", "endsWith", "contains"])
    probes = [
        *[f"{name} == {literal(random_scalar(rng))}"] * 4,
        f"{name} in [{literal(random_scalar(rng))}, {literal(random_scalar(rng))}]",
        f"!({name} in [{literal(random_scalar(rng))}, {literal(random_scalar(rng))}])",
        f"{name} != {literal(random_scalar(rng))}",
        f"{name} {order} {_small(rng)}",
        f"{name}.{method}({_part(rng)})",
        f"type({name}) == string && {name}.{method}({_part(rng)})",
        f"type({name}) == string && !{name}.{method}({_part(rng)})",
        f"!(type({name}) == string && {name}.{method}({_part(rng)}))",
        f"type({name}) in [int, uint, double] && {name} > {_small(rng)} && {name} <= {_small(rng)}",
        f"type({name}) in [int, uint, double] && !({name} > {_small(rng)})",
        f"{name} > {_small(rng)} && {name} < {_small(rng)}",
        f"type({name}) == string && {name}.lowerAscii() == {text}",
        f"{name}.lowerAscii() in [{text}, 'a']",
        f"{name}.startsWith({_part(rng)}) && {name}.endsWith({_part(rng)})",
        f"{name} in ['a', 1] || type({name}) == string && {name}.startsWith({_part(rng)})",
        f"{name} == null",
        f"type({name}) == string && {name}.startsWith('a') && {name}.endsWith('b') && size({name}) >= 2",
        f"!(type({name}) == string && ({name}.startsWith('a') || {name}.contains('o')))",
        f"type({name}) == string && {name}.matches('{rng.choice(_PATTERNS)}')",
        f"type({name}) == string && {name}.startsWith('o') && {name}.size() > 3",
        f"{name}.{method}({_part(rng)}) == true",
        f"{name} in [true, null, 'b']",
    ]
    return rng.choice(probes)


def _path_list(path: tuple[str, ...]) -> str:
    return f"[{', '.join(map(string_literal, path))}]"


def random_shape(rng: random.Random) -> str:
    """A comparison of something that is taken of a value: its case, size, type, items, ..."""
    order, method = rng.choice(COMPARISONS), rng.choice(["startsWith", "endsWith", "contains"])
    path = rng.choice(_VALUES_PATHS)
    values = f"json.values(data, {_path_list(path)})"
    items = "data." + ".".join(rng.choice(_LIST_PATHS))
    fold = rng.choice(["lowerAscii", "upperAscii"])
    sign = rng.choice("+-*/")
    integer = rng.choice(["data.n", "data.v", "ce.priority", "data.o.n"])
    shapes = [
        f"{_text_place(rng)}.{fold}() {rng.choice(COMPARISONS)} {string_literal(rng.choice(STRINGS))}",
        f"{_text_place(rng)}.{fold}() in [{_part(rng)}, 'gold']",
        f"{_text_place(rng)}.{fold}().{method}({_part(rng)})",
        f"size({rng.choice([items, _text_place(rng)])}) {order} {rng.randrange(4)}",
        f"{_text_place(rng)}.size() in [0, 2]",
        f"type({rng.choice([items, _any_place(rng)])}) {rng.choice(['==', '!='])} {rng.choice(_TYPE_NAMES)}",
        f"type({_any_place(rng)}) in [int, {rng.choice(_TYPE_NAMES)}]",
        f"type({_any_place(rng)}) == string && {_any_place(rng)} == 'a'",
        f"ce.time {order} {_instant(rng)}",
        f"{_instant(rng)} {order} ce.time",
        f"publish_time {order} {_instant(rng)}",
        f"{_instant(rng)} {order} publish_time",
        f"int({_any_place(rng)}) {order} {_whole(rng)}",
        f"double({_any_place(rng)}) {order} {_double(rng)}",
        f"string({_any_place(rng)}) {rng.choice(['==', '!=', '<'])} {string_literal(rng.choice(STRINGS))}",
        f"string({_any_place(rng)}) in ['1', 'true', 'a']",
        f"int({_any_place(rng)}) in [1, 2, 5]",
        f"{integer} {sign} {rng.choice([1, 2, -3, 1000])} {order} {_whole(rng)}",
        f"{rng.choice([1, 2, -3])} {rng.choice('+-*')} {integer} {order} {_whole(rng)}",
        f"({integer} {sign} 2 + 1) * 3 {order} {_whole(rng)}",
        f"{literal(random_scalar(rng))} in {items}",
        f"{items}.{rng.choice(['exists', 'exists', 'all'])}(t, {_probe(rng, 't')})",
        f"{values}.{rng.choice(['exists', 'exists', 'exists', 'all'])}(v, {_probe(rng, 'v')})",
        f"size({values}) {rng.choice(['> 0', '== 0', '!= 0', '>= 1'])}",
        f"json.objects(data, ['o']).exists(o, json.values(o, ['s']).exists(v, {_probe(rng, 'v')}) && "
        f"json.values(o, ['n']).exists(v, {_probe(rng, 'v')}))",
        f"{_text_place(rng)}.matches('{rng.choice(_PATTERNS)}')",
        f"{_text_place(rng)}.match('{rng.choice(_WILDCARDS)}')",
        f"!{_text_place(rng)}.match('{rng.choice(_WILDCARDS)}')",
        f"({_any_place(rng)} == 'a' ? {_any_place(rng)} : 'b') == 'a'",
        f"has(data.s) && data.s.{fold}() == 'gold'",
        f"cesql.int({attribute_place(rng, rng.choice(ATTRIBUTES))}) {order} {_whole(rng)}",
        f"cesql.{rng.choice(['bool', 'not'])}({attribute_place(rng, rng.choice(ATTRIBUTES))})",
        f"cesql.bool({attribute_place(rng, rng.choice(ATTRIBUTES))}) == {rng.choice(['true', 'false'])}",
        f"({_any_place(rng)} == 'a') {rng.choice(['==', '!='])} ({_text_place(rng)}.startsWith('a'))",
        f"ce.exists(n, n.startsWith('{rng.choice(['te', 'p', 'ta', 'fl', 't', 'x'])}') && "
        f"ce[n] in [{literal(random_scalar(rng))}, 'gold', 1, true])",
        f"!ce.exists(n, n.startsWith('te') && ce[n] == {literal(random_scalar(rng))})",
        f"has(data.l) && data.l.exists(t, t == {literal(random_scalar(rng))})",
    ]
    return rng.choice(shapes)


def random_shaped_filter(rng: random.Random, depth: int = 2) -> str:
    """A filter in which half of the atoms are `random_shape`."""
    return _combine(rng, depth, lambda rng: f"({random_shape(rng)})" if rng.random() < 0.6 else random_atom(rng))


def random_filter(rng: random.Random, depth: int = 2) -> str:
    """A filter in the operators that the matcher is to decide by itself."""
    return _combine(rng, depth, random_atom)


def random_hard_atom(rng: random.Random) -> str:
    """An atom that the matcher cannot decide (and `random_atom` now and then)."""
    if rng.random() < 0.4:
        return random_atom(rng)
    place, _ = _place_and_values(rng)
    other, _ = _place_and_values(rng)
    return rng.choice(
        [
            f"{place} == {other}",
            f"{place} < {other}",
            "data.l.exists_one(x, x == 'a')",
            "data.l.exists(x, x == data.s)",
            "data.l.exists(x, data.s == 'a')",
            "data.l.map(x, x) == ['a']",
            "data.l.filter(x, x != 'a').size() == 1",
            f"size({place}) > size({other})",
            f"{place} % 2 == 1",
            f"{place} * 2.0 > 1.0",
            f"int({place}) + 1 > 2",
            "json.values(data, ['l']).exists(v, v == 'a' && v != data.s)",
            f"{place}.matches('^a.*b$')",
            f"{place}.matches('^order')",
            f"{place}.matches('^gold$')",
            f"{place}.matches('^ab?c?$')",
            f"{place}.matches('^order[.](created|cancelled)$')",
            f"!{place}.matches('^order.created$')",
            f"{place} in data.l",
            "data.l.exists(x, x == 1)",
            "data.l.all(x, x != 'a')",
            "data.l[0] == 1",
            "'tenant' in ce",
            "'s' in data",
            "data.n + 1 > 2",
            f"string({place}) == '1'",
            f"type({place}) == int",
            "ce.time > timestamp('2021-01-01T00:00:00Z')",
            "ce.time < '2021'",
            f"publish_time {rng.choice(COMPARISONS)} {_instant(rng)}",
            f"publish_time in [{_instant(rng)}, {_instant(rng)}]",
            "publish_time.getFullYear() == 2020",
            "publish_time == ce.time",
            "data.l.exists(publish_time, publish_time == 1)",
            "ce.time == '2026-11-21T10:00:00Z'",
            "has(ce.time)",
            f"{place} in []",
            f"{place} == [1]",
            "data == {}",
            "data != 'a'",
            "has(data.s.x)",
            "ce.a.b == 'x'",
            "1 + 1 == 2",
            "'a' < 'b'",
            "true",
            "false",
            "-data.n == -1",
            f"({place} == 'a') == true",
            "'abc'.startsWith(ce.type)",
        ]
    )


def random_hard_filter(rng: random.Random, depth: int = 2) -> str:
    """A filter with anything in it."""
    return _combine(rng, depth, random_hard_atom)


def _combine(rng: random.Random, depth: int, atom: Callable[[random.Random], str]) -> str:
    pick = rng.random()
    if depth == 0 or pick < 0.3:
        return atom(rng)
    if pick < 0.58:
        return " && ".join(_nested(rng, depth - 1, atom) for _ in range(rng.randrange(2, 4)))
    if pick < 0.8:
        return " || ".join(_nested(rng, depth - 1, atom) for _ in range(rng.randrange(2, 4)))
    if pick < 0.92:
        return "!" + _nested(rng, depth - 1, atom)
    return " ".join(
        [_nested(rng, depth - 1, atom), "?", _nested(rng, depth - 1, atom), ":", _nested(rng, depth - 1, atom)]
    )


def _nested(rng: random.Random, depth: int, atom: Callable[[random.Random], str]) -> str:
    return f"({_combine(rng, depth, atom)})"


def filters(*, hard: bool = False) -> st.SearchStrategy[str]:
    """`random_filter` and `random_shaped_filter` (or `random_hard_filter`) as a hypothesis strategy."""
    randoms = st.randoms(use_true_random=False)
    if hard:
        return randoms.map(random_hard_filter)
    return st.one_of(randoms.map(random_filter), randoms.map(random_shaped_filter))
