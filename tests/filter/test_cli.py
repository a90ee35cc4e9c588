"""`headgate filter`: results on stdout, faults on stderr, no server needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headgate.filter.cel.evaluate import program
from headgate_cli.main import filters as app

EVENTS = [
    {"specversion": "1.0", "id": "1", "source": "/a", "type": "order.created", "data": {"amount": 150}},
    {"specversion": "1.0", "id": "2", "source": "/a", "type": "order.created", "data": {"amount": "x"}},
    {"specversion": "1.0", "id": "3", "source": "/a", "type": "other", "data": {"amount": 150}},
]
LINES = "\n".join(json.dumps(event) for event in EVENTS) + "\n\n"
CEL = 'ce.type.startsWith("order.") && data.amount > 100'
run = CliRunner().invoke


@pytest.fixture
def events(tmp_path: Path) -> str:
    path = tmp_path / "events.jsonl"
    path.write_text(LINES)
    return str(path)


def test_says_true_false_or_the_error_of_each_event(events: str) -> None:
    result = run(app, ["test", "--cel", CEL, events])
    assert result.exit_code == 0
    first, second, third = result.stdout.splitlines()
    assert (first, third) == ("true", "false")
    assert second.startswith("error: ")


def test_reads_events_from_stdin_and_writes_json() -> None:
    result = run(app, ["test", "--cel", CEL, "--json", "--explain"], input=LINES)
    assert result.exit_code == 0
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(item["line"], item["id"], item["outcome"], item["decided"]["part"]) for item in found] == [
        (1, "1", "true", CEL),
        (2, "2", "error", "data.amount > 100"),
        (3, "3", "false", 'ce.type.startsWith("order.")'),
    ]
    assert found[2]["decided"]["value"] == "false"
    assert "error" in found[1]
    assert "error" not in found[0]


def test_explains_each_event_by_the_part_that_decided(events: str) -> None:
    third = run(app, ["test", "--cel", CEL, "--explain", events]).stdout.splitlines()[2]
    assert third == 'false\t(decided by ce.type.startsWith("order."))'


@pytest.mark.parametrize("given", ["text", "file"])
def test_takes_a_filter_object(events: str, tmp_path: Path, given: str) -> None:
    text = '{"attributes": {"type": "other"}}'
    (tmp_path / "filter.json").write_text(text)
    result = run(app, ["test", "--filter-json", text if given == "text" else str(tmp_path / "filter.json"), events])
    assert result.stdout.splitlines() == ["false", "false", "true"]


def test_takes_a_list_of_filters(events: str) -> None:
    result = run(app, ["test", "--filter-json", '[{"not": {"prefix": {"type": "ord"}}}]', events])
    assert result.stdout.splitlines() == ["false", "false", "true"]
    refused = run(app, ["explain", "--filter-json", '[{"any": [{"exact": {}}]}]'])
    assert refused.exit_code == 2
    assert "filters[0].any[0].exact: is empty" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cel", "ce.type = 'a'"], "unexpected '='"),
        (["--cel", "1"], "true or false"),
        (["--filter-json", '{"attributes": {"Type": "a"}}'], "filter.attributes.Type"),
        (["--filter-json", "{"], "no JSON object"),
        (["--filter-json", "nosuchfile"], "nosuchfile"),
        (["--cel", "true", "--filter-json", "{}"], "either"),
        ([], "either"),
    ],
)
def test_refuses_an_invalid_filter(events: str, arguments: list[str], message: str) -> None:
    for command in (["test", events], ["explain"]):
        result = run(app, [*command, *arguments])
        assert result.exit_code == 2
        assert result.stdout == ""
        assert message in result.stderr


def test_an_error_has_a_caret_and_a_hint() -> None:
    lines = run(app, ["explain", "--cel", "ce.type = 'a'"]).stderr.splitlines()
    assert lines[1:] == ["ce.type = 'a'", "        ^", "hint: equality is written with =="]


def test_explain_says_what_other_engines_take_otherwise() -> None:
    given = json.dumps({"cesql": "type = 'a' OR type = 'b' AND source = 'c'"})
    explained = run(app, ["explain", "--filter-json", given])
    assert explained.exit_code == 0
    assert explained.stderr.startswith("advice: spec.filter.cesql: AND and OR ")


def test_explain_takes_the_expression_as_it_is() -> None:
    assert run(app, ["explain", CEL]).stdout == run(app, ["explain", "--cel", CEL]).stdout
    twice = run(app, ["explain", CEL, "--cel", CEL])
    assert (twice.exit_code, "given twice" in twice.stderr) == (2, True)


@pytest.mark.parametrize(
    ("one", "other", "relation", "says"),
    [
        ('ce.type == "a"', '[{"exact": {"type": "a"}}]', "equal", "equal: both are true of the same events"),
        ('ce.type == "ab"', 'ce.type.startsWith("a")', "implies", "the first is within the second"),
        ("data.n > 1", "data.n > 2", "implied", "the second is within the first"),
        ('{"attributes": {"type": "a"}}', 'ce.type == "b"', "disjoint", "disjoint: no event makes both true"),
        ('ce.type.matches("a[0-9]b")', 'ce.type.matches("[c-f]x")', "unknown", "unknown: nothing is sure of the two"),
    ],
)
def test_compares(one: str, other: str, relation: str, says: str) -> None:
    found = run(app, ["compare", one, other])
    assert (found.exit_code, found.stdout.startswith(says)) == (0, True), found.stdout
    assert json.loads(run(app, ["compare", one, other, "--json"]).stdout) == {"relation": relation}


def test_filters_that_overlap_are_shown_an_event_of_both() -> None:
    both = ("compare", "data.a == 1", 'ce.type == "a" || data.b')
    event = {"specversion": "1.0", "id": "1", "source": "/example", "type": "a", "data": {"a": 1}}
    found = run(app, [*both])
    assert found.stdout.startswith("they overlap: both are true of the event ")
    assert json.loads(found.stdout.partition(" event ")[2]) == event
    assert json.loads(run(app, [*both, "--json"]).stdout) == {"relation": "overlaps", "example": event}


def test_what_is_compared_is_a_filter() -> None:
    refused = run(app, ["compare", "true", "ce.type =="])
    assert (refused.exit_code, "ce.type ==" in refused.stderr) == (2, True), refused.stderr


def test_names_the_line_of_an_invalid_event() -> None:
    result = run(app, ["test", "--cel", "true"], input=json.dumps(EVENTS[0]) + '\n{"id": 1}\n')
    assert result.exit_code == 2
    assert result.stdout == "true\n"
    assert "line 2" in result.stderr


def test_explains() -> None:
    result = run(app, ["explain", "--cel", f"{CEL} || data.l.exists(x, x == ce.id)"])
    assert result.exit_code == 0
    text = result.stdout
    lines = [line.split("  ") for line in text.splitlines()]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines if line[0] == "" and len(line) > 1]
    assert rows == [
        ["1", "match", 'ce.type.startsWith("order.")', "data.amount > 100"],
        ["2", "candidate", "none: a scan", "nothing"],
    ]
    assert "note        candidate: data.l.exists(x, x == ce.id)" in text
    assert "cost        1 look-up and 1 comparison an event" in text


def test_explains_what_reading_skips() -> None:
    def skipped(*arguments: str) -> str:
        lines = run(app, ["explain", *arguments]).stdout.splitlines()
        return next(line for line in lines if line.startswith("skipped")).split(maxsplit=1)[1]

    assert skipped("--cel", "ce.type in ['b', 'a'] && data.x") == 'chunks without ce.type "a", "b"'
    assert skipped("--cel", "ce.type == 'b'", "--filter-value", "ce.tenant").startswith("nothing")
    assert skipped("--cel", "ce.tenant == 'b'", "--filter-value", "ce.tenant") == 'chunks without ce.tenant "b"'
    assert "times" in skipped("--cel", "ce.time > timestamp('2020-01-01T00:00:00Z')")
    refused = run(app, ["explain", "--cel", "true", "--filter-value", "ce."])
    assert (refused.exit_code, "--filter-value" in refused.stderr) == (2, True)


def test_explains_as_json() -> None:
    found = json.loads(
        run(app, ["explain", "--json", "--filter-json", '{"attributes": {"type": "a", "subject": ""}}']).stdout
    )
    assert found == {
        "cel": 'ce.type == "a" && has(ce.subject)',
        "decided_by": "matcher",
        "rows": [{"verdict": "match", "index": ['ce.type == "a"'], "compare": ["has(ce.subject)"]}],
        "signatures": 1,
        "cost": {"lookups": 1, "scans": 0, "steps": 7},
        "skips": {
            "filter_value": "ce.type",
            "values": ["a"],
            "time_range_us": None,
            "published_us": None,
            "says": 'chunks without ce.type "a"',
        },
        "notes": [],
    }


def test_events_are_tried_as_if_stored_at_a_time() -> None:
    asked = ["test", "--cel", 'publish_time >= timestamp("2026-01-31T12:00:00Z")']
    line = LINES.splitlines()[0]
    assert run(app, [*asked, "--publish-time", "2026-01-31T11:59:59Z"], input=line).stdout == "false\n"
    assert run(app, [*asked, "--publish-time", "2026-01-31T12:00:00Z"], input=line).stdout == "true\n"
    assert run(app, asked, input=line).stdout == "true\n", "now"
    refused = run(app, [*asked, "--publish-time", "noon"], input=line)
    assert (refused.exit_code, "--publish-time 'noon' is no time" in refused.stderr) == (2, True)


def test_explains_what_never_matches() -> None:
    assert "false for every event" in run(app, ["explain", "--cel", "false"]).stdout


def test_traces() -> None:
    result = run(app, ["test", "--cel", CEL, "--trace"], input=LINES.splitlines()[1])
    assert result.exit_code == 0
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[1] == f"  {CEL}"
    assert lines[2] == "  " + " " * CEL.index("data.amount") + "^" * len("data.amount > 100")
    values = dict(line[2:].strip().rsplit("  ", 1) for line in lines[3:])
    assert {part.strip(): value for part, value in values.items()} == {
        CEL: "error: No matching overloads found : _>_(string, int64)",
        'ce.type.startsWith("order.")': "true",
        "ce.type": '"order.created"',
        "data.amount > 100": "error: No matching overloads found : _>_(string, int64)",
        "data.amount": '"x"',
    }


def test_traces_as_json() -> None:
    found = json.loads(run(app, ["test", "--cel", CEL, "--trace", "--json"], input=LINES.splitlines()[2]).stdout)
    (decided,) = [part for part in found["trace"]["parts"] if part["decided"]]
    assert CEL[decided["start"] : decided["end"]] == 'ce.type.startsWith("order.")'
    assert decided["value"] == "false"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--from", "attributes", '{"type": "a", "tenant": ""}'], 'ce.type == "a" && has(ce.tenant)'),
        (["--from", "prefix", '{"type": "a."}'], 'ce.type.startsWith("a.")'),
        (["--from", "cel", "1 < data.n"], "1 < data.n"),
        (["--from", "cel", "1 < data.n", "--canonical"], "data.n > 1"),
        (["--from", "filters", '[{"exact": {"type": "a"}}, {"suffix": {"source": "b"}}]'], None),
        (['{"attributes": {"type": "a"}}'], 'ce.type == "a"'),
    ],
)
def test_converts(arguments: list[str], expected: str | None) -> None:
    result = run(app, ["convert", "--to", "cel", *arguments])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == expected or expected is None
    assert program(result.stdout.strip())


def test_converts_a_file_and_stdin(tmp_path: Path) -> None:
    (tmp_path / "filter.cel").write_text("ce.type == 'a'\n")
    assert run(app, ["convert", "--from", "cel", str(tmp_path / "filter.cel")]).stdout == "ce.type == 'a'\n"
    assert run(app, ["convert", "--from", "cel", "-"], input="true\n").stdout == "true\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "cel", "ce.type = 'a'"], "unexpected '='"),
        (["--from", "nosuch", "true"], "unknown dialect"),
        (["--from", "cel", "--to", "sql", "true"], "sql"),
        (["--from", "attributes", "{"], "no JSON"),
        (["--from", "attributes", '{"Type": "a"}'], "attributes.Type"),
        (["--from", "filter", "true"], "object"),
    ],
)
def test_refuses_to_convert(arguments: list[str], message: str) -> None:
    result = run(app, ["convert", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
