"""Filters that are to take as long as may be, and events for them: each is refused or evaluated within the goal."""

from __future__ import annotations

import json
from functools import cache

from headgate.filter.cel.evaluate import EventView
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import EVENT_BYTES_MAX

MIB = EVENT_BYTES_MAX


def event(data: object, **attributes: str) -> EventView:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    assert len(text) <= MIB
    view = EventView(Event("1.0", "1", "/a", "t", data_kind=DataKind.JSON, data=text, extensions=dict(attributes)))
    # Decoding an event is paid for once, by whoever sends it; here it is the filters' turn.
    assert view.activation
    return view


@cache
def events() -> dict[str, EventView]:
    """By name; made when they are asked for: that takes a second and 200 MB."""
    return {
        "long text": event({"s": "ab" * (MIB // 2 - 20), "l": [1], "m": {}}),
        "bits": event({"s": "".join("ab"[n * n % 7 > 3] for n in range(MIB - 100)), "l": ["a"], "m": {}}),
        "many texts": event({"s": "a", "l": ["a"] * (MIB // 4 - 20), "m": {}}),
        "many numbers": event({"s": "a", "l": [1] * (MIB // 2 - 30), "m": {}}),
        "many members": event({"s": "a", "l": [], "m": {str(n): n for n in range(60_000)}}),
        "ten thousand": event({"s": "a", "l": list(range(9_999)), "m": {}}),
        "two thousand": event({"s": "ab" * 1_000, "l": ["abab" * 20] * 2_000, "m": {}}),
        "lists of lists": event({"s": "a", "l": [[[1] * 20] * 20] * 200, "m": {}}),
        "many objects": event({"s": "a", "l": [{}] * 90_000, "m": {}}),
        "objects of objects": event({"s": "a", "l": [{"x": [{}] * 300, "m": [{"x": [2]}] * 30}] * 300, "m": {}}),
        "small": event({"s": "abc", "l": [1, 2, 3], "m": {"k": "v"}}),
    }


def nested(text: str, depth: int, kind: str = "all") -> str:
    for level in range(depth):
        text = f"data.l.{kind}(x{level}, {text})"
    return text


REFUSED: dict[str, tuple[str, str]] = {
    "brackets": ("[" * 8_000, "FILTER_NODES_MAX"),
    "closed brackets": ("[" * 500 + "]" * 500, "FILTER_DEPTH_MAX"),
    "negated parentheses": ("!(" * 500 + "true" + ")" * 500, "FILTER_DEPTH_MAX"),
    "comparisons without spaces": ("||".join(f"data.a=={n}" for n in range(1_100)), "FILTER_NODES_MAX"),
    "conditionals": ("true ? (" * 900 + "true" + ") : false" * 900, "FILTER_DEPTH_MAX"),
    "a literal of a megabyte": ('ce.type == "' + "a" * MIB + '"', "FILTER_CHARACTERS_MAX"),
    "an open literal of a megabyte": ('"' + "\\" * MIB, "FILTER_CHARACTERS_MAX"),
    "many small comparisons": (" || ".join(f"data.a{n} == {n}" for n in range(60_000)), "FILTER_CHARACTERS_MAX"),
    "a list of lists": ("data == [" + ",".join(["[" + "[],[]," * 40 + "]"] * 60) + "]", "FILTER_NODES_MAX"),
    "a long list": (f"data.n in [{','.join(map(str, range(1_200)))}]", "FILTER_LIST_ITEMS_MAX"),
    "a long map": ("data == {" + ",".join(f"{n}:1" for n in range(1_100)) + "}", "FILTER_LIST_ITEMS_MAX"),
    "macros nested five deep": (nested("x0 == x1", 5), "FILTER_COST_MAX"),
    "macros in macros' ranges": ("data.l" + ".map(x, data.l.map(y, x + y))" * 3 + " == []", ""),
    "doubling": ("size([data]" + ".map(a, a + a)" * 10 + ") == 1", "FILTER_GROWTH_MAX"),
    "doubling text": ("[data.s]" + ".map(a, a + a)" * 12 + ' == [""]', "FILTER_GROWTH_MAX"),
    "replace grows": ('data.s.replace("a", data.s).size() > 1', "FILTER_GROWTH_MAX"),
    "replace with nothing to find": ('data.s.replace("", "aaaaaaaaaaaaaaaaaaaaaaaaaaaa"' + 80 * "a" + ') == ""', ""),
    "replace again and again": ("data.s" + '.replace("a", "aaaaaaaa")' * 4 + ' == ""', "FILTER_GROWTH_MAX"),
    "join grows": ('data.l.join(data.s) == ""', "FILTER_GROWTH_MAX"),
    "split and join": ('data.s.split("").join(data.s) == ""', "FILTER_GROWTH_MAX"),
    "split, join and again": ("data.s" + '.split("").join("aaaaaaaaaaaaaaa")' * 3 + ' == ""', "FILTER_GROWTH_MAX"),
    "format grows": ('"%s%s%s%s".format([data, data, data, data])' + '.replace("a", "aaaaaaaa") == ""', ""),
    "constants alone": ("[1,2,3,4,5,6,7,8,9]" + ".map(x, [1,2,3,4,5,6,7,8,9].map(y, x + y))" * 6 + " == []", ""),
    "a huge program": ('ce.type.matches("((a{100}){10})' + "(b{1000})" * 20 + '")', "FILTER_REGEX_INSTRUCTIONS_MAX"),
    "unicode classes": ('ce.type.matches(r"' + r"\pL" * 300 + '")', "FILTER_REGEX_INSTRUCTIONS_MAX"),
    "repeated unicode classes": (r'ce.type.matches(r"\p{Greek}{500}")', "FILTER_REGEX_INSTRUCTIONS_MAX"),
    "a long pattern": ('ce.type.matches("' + "(a|b)*" * 500 + '")', "FILTER_REGEX_CHARACTERS_MAX"),
    "an invalid repetition": ('ce.type.matches("(((a{100}){100}){100})")', ""),
    "look-ahead": ('ce.type.matches("(?=a)b")', ""),
    "a pattern of the event": ("ce.type.matches(data.s)", ""),
    "a NUL": ('ce.type == "a\0b"', ""),
    "half a surrogate": ('ce.type == "\ud800"', ""),
    "a bidirectional override outside of a text": ("ce.type == \u202e'a'", ""),
    "a full-width operator": ("ce.type \uff1d\uff1d 'a'", ""),
    "spaces alone": ("\u3000" * 5_000, ""),
    "a comment alone": ("//" + "a" * 10_000, ""),
}
"""Text, and the limit that its refusal names (none: it is refused for what it is)."""

EVALUATED: dict[str, str] = {
    "not": "!" * 10_000 + "true",
    "minus": "-" * 10_000 + "1 == 1",
    "comparisons without spaces": "||".join(f"data.a=={n}" for n in range(220)),
    "different comparisons": "||".join(f"data.a{n}=={n}" for n in range(220)),
    "lists of numbers": "||".join(f"data.a{n} in [{','.join('1' * 900)}]" for n in range(2)),
    "a list of texts": f"ce.type in [{','.join(repr(str(n)) for n in range(1_000))}]",
    "nested stars": 'data.s.matches("^(a*)*$")',
    "nested pluses": 'data.s.matches("^(x+x+)+y$")',
    "alternatives": 'data.s.matches("^(a|a|b|ab)*c$")',
    "many optionals": 'data.s.matches("' + "a?" * 200 + "a" * 200 + '")',
    "states explode": 'data.s.matches("[ab]*a[ab]{100}c")',
    "states explode quietly": 'data.s.matches("(a|b)*a(a|b){18}c")',
    "a pattern in a macro": 'data.l.exists(x, x.matches("' + "b" * 900 + '"))',
    "a pattern over the text in a macro": 'data.l.exists(x, data.s.matches("b+c$"))',
    "a unicode class": r'data.s.matches(r"^\pL+$")',
    "a unicode class in a macro": r'data.l.exists(x, x.matches(r"^\pL+$"))',
    "a search in a macro": 'data.l.all(x, !data.s.contains("aaaaaaaaac"))',
    "a copy in every round": "data.l.map(x, x).size() > 0",
    "a filter in every round": "data.l.filter(x, true).size() > 0",
    "maps on maps": "data.l.map(x, x).map(x, x).map(x, x).filter(x, true).size() > 0",
    "a map in a macro": "data.l.all(x, data.l.map(y, y).size() > 0)",
    "macros nested twice": nested("x0 == x1", 2),
    "macros nested five deep": "[0]" + ".map(a, [a, a].map(b, [b].map(c, [c].map(d, [d].map(e, e)))))" + " == []",
    "a map of maps": 'data.m.all(k, data.m[k] >= 0 && data.m.exists(j, j == "59999"))',
    "in a macro": "data.l.all(x, x in data.l)",
    "whole against whole": "data == data && data.l == data.l && data.m == data.m",
    "a list on itself": "(data.l + data.l).size() > 0",
    "split into characters": 'data.s.split("").size() > 0',
    "split and map": 'data.s.split("").map(c, c + c).size() > 0',
    "split by text": 'data.s.split("b").size() > 0',
    "join": 'data.l.join(",").size() > 0',
    "replace": 'data.s.replace("a", "bb").size() > 0',
    "replace nothing": 'data.s.replace("", "-").size() > 0',
    "replace chained": "data.s" + '.replace("a", "b").replace("b", "a")' * 2 + ".size() > 0",
    "lower case chained": "data.s" + ".lowerAscii().upperAscii()" * 7 + ".size() > 0",
    "reverse chained": "data.s" + ".reverse()" * 14 + ".size() > 0",
    "trim": "data.s.trim().size() > 0",
    "quote": "strings.quote(data.s).size() > 0",
    "index": 'data.s.indexOf("abababababababababababababababac") > 0',
    "characters by number": " && ".join(f'data.s.charAt({n}) != "x"' for n in range(0, 1_000_000, 8_000)),
    "format": '"%s %s %s".format([data.s, data.l, data.m]).size() > 0',
    "a precision": '"%.1000f %.1000e".format([1.5, 1.5]).size() > 0',
    "a precision beyond all": '"%.999999999f".format([1.5]).size() > 0',
    "a hundred searches": " || ".join(f'data.s.contains("{"ab" * 20}{n}")' for n in range(100)),
    "a hundred patterns": " || ".join(f'data.s.matches("(a|b)+{n}$")' for n in range(100)),
    "functions in Python": " || ".join(f'json.values(data, ["l"]).exists(v, v == "{n}")' for n in range(20)),
    "conditions after conditions": "".join(f"data.a{n} ? data.b{n} : " for n in range(14)) + "true",
    "conditions in conditions": "(data.b ? " * 10 + "true" + " : data.c)" * 10,
    "conjunctions that multiply": " && ".join(f"(data.a{n} == 1 || data.b{n} > 2)" for n in range(60)),
    "lists that multiply": " && ".join(f"data.a{n} in [{','.join(map(str, range(40)))}]" for n in range(24)),
    "texts that look alike": "ce.type == 'ａ' || ce.type == 'а' || ce.type == 'e\u0301' || ce.type == 'é'",
    "combining marks": 'data.s.contains("a' + "\u0301" * 5_000 + '")',
    "emoji": '"' + "👩‍👩‍👧‍👦" * 1_000 + '".size() > 0 && data.s.contains("👩‍👩‍👧‍👦")',
    "numbers at the edge": "data.n == 18446744073709551615u || "
    "data.n == -9223372036854775808 || data.n == 1e308 * 10.0",
    "values of every object": 'json.objects(data, ["l"]).exists(o, json.values(o, ["x"]).exists(v, v == 1))',
    "objects in objects": 'json.objects(data, ["l"]).exists(o, json.objects(o, ["m"]).exists(p, json.values(p, ["x"])'
    ".exists(v, v == 1)))",
    "division": "1 / (data.n - data.n) == 0",
    "overflow": "9223372036854775807 + data.n == 0",
    "whitespace": " " * 8_000 + "true" + "\n" * 8_000,
}


def _negated(value: dict[str, object], times: int) -> dict[str, object]:
    for _ in range(times):
        value = {"not": value}
    return value


PREDICATE: dict[str, object] = {"property": "a", "operator": "EQUALS", "value": "b"}
OBJECTS: list[dict[str, object]] = [
    {"attributes": {f"a{n}": "b" for n in range(5_000)}},
    {"attributes": {"a" * 200_000: "b"}},
    {"attributes": {"type": "a" * 200_000}},
    {"expression": "(" * 200_000},
    {"a" * 200_000: {}},
    {"jms": "(" * 16_000},
    {"jms": "NOT " * 4_000},
    {"jms": "-" * 16_000},
    {"jms": "a OR " * 3_000},
    {"jms": "a+" * 8_000},
    {"jms": "a*(b+" * 3_000},
    {"jms": "'a" * 8_000},
    {"jms": "'" * 16_001},
    {"jms": "1" * 16_000},
    {"jms": "0x" + "f" * 16_000},
    {"jms": "x LIKE '" + "_" * 16_000 + "'"},
    {"jms": "x LIKE '" + "%a" * 7_900 + "'"},
    {"jms": " AND ".join(f"(a{n} = 1 OR b{n} <> 'x')" for n in range(190))},
    {"jms": "a = '" + "b" * MIB + "'"},
    {"cesql": "(" * 16_000},
    {"cesql": "NOT " * 4_000},
    {"cesql": "-" * 16_000},
    {"cesql": "ABS(" * 4_000},
    {"cesql": "'" * 16_001},
    {"cesql": "a OR " * 3_000},
    {"cesql": "TRUE" + " AND TRUE OR TRUE" * 900},
    {"cesql": " OR ".join(f"a{n} = 't'" for n in range(1_000))},
    {"cesql": "(" * 12 + "x" + " IN (y, z, w, v))" * 12},
    {"cesql": "x IN (" + ",".join(["y"] * 900) + ")"},
    {"cesql": "type LIKE '" + "%_a" * 5_000 + "'"},
    {"cesql": "CONCAT(" + ",".join(["LOWER(a)"] * 900) + ") = 'x'"},
    {"cesql": "type = '" + "x" * MIB + "'"},
    {"pulsar": _negated(PREDICATE, 900)},
    {"pulsar": {"or": [{"not": PREDICATE}] * 1_000}},
    {"pulsar": {"or": [{"and": [{"not": PREDICATE}] * 1_000}] * 1_000}},
    {"pulsar": {"property": "a", "operator": "LIKE", "value": "_" * 16_000}},
    {"pulsar": {"property": "a", "operator": "CONTAINS_ANY", "values": [f"x{n}" for n in range(1_000)]}},
    {"pulsar": {"property": "a", "operator": "IN", "values": ["b"] * 100_000}},
    {"pulsar": {"property": "a", "operator": "EQUALS", "value": "b" * MIB}},
    {"pulsar": {"eventTime": {}, "operator": "IN", "values": list(range(1_000))}},
    {"tags": {f"alltag{n}": str(n) for n in range(1_000)}},
    {"tags": {"anytag": "b" * MIB}},
    {"eventPattern": "[" * 16_000},
    {"eventPattern": '{"a":' * 3_000 + "[1]" + "}" * 3_000},
    {"eventPattern": {"detail": {"a": [f"v{n}" for n in range(100_000)]}}},
    {"eventPattern": {"detail": {"$or": [{"a": {"b": [n]}} for n in range(100)], "a": {"c": [1]}}}},
    {"eventPattern": {"detail": {"a": ["b" * MIB]}}},
    {"eventPattern": {"detail": {"a": [{"wildcard": "*a" * 8_000}]}}},
]
"""What a trigger cannot have as its filter, of every dialect."""

LISTS: list[list[object]] = [
    [{"exact": {"type": "a"}}] * 100_000,
    [{"any": [{"exact": {"type": "a"}}] * 100_000}],
    [{"cel": "(" * 1_000}] * 200,
    [{"cel": " && ".join(["data.a == 1"] * 200)}] * 200,
    [{"exact": {f"a{n}": "b" for n in range(900)}}] * 200,
    [{"prefix": {"type": "a" * MIB}}],
    [_negated({"exact": {"type": "a"}}, 900)],
]
"""What a subscription cannot have as its filters."""
