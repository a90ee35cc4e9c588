"""Tools of assistants without a server: bounds of answers and of calls, and what `headgate mcp` refuses to do."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate_api.errors import UnavailableError
from headgate_api.limits import MCP_ANSWER_BYTES_MAX, MCP_CALL_S_MAX, MCP_CALLS_MAX
from headgate_cli import backtest, inspection, mcp, mcp_server, objects, tools
from headgate_cli.cut import cut, written
from headgate_cli.mcp_server import Calls
from headgate_cli.tools import TOOLS, Answer, Asker, Tool
from tests.commands import headgate

NOBODY = "http://127.0.0.1:1"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=30), inner, max_size=20),
    max_leaves=60,
)


@given(JSON, st.integers(min_value=100, max_value=2_000))
def test_an_answer_fits_and_says_what_is_missing(value: Any, bytes_max: int) -> None:
    found, cuts = cut(value, bytes_max)
    assert len(written(found).encode()) <= bytes_max
    assert (found == value) is (not cuts)
    if len(written(value).encode()) <= bytes_max:
        assert found == value


def test_small_members_stay_whole_beside_a_large_one() -> None:
    value = {"id": "1", "data": {"text": "é" * 5_000, "total": 3}, "time": "now"}
    found, (said,) = cut(value, 1_000)
    assert (found["id"], found["time"], found["data"]["total"]) == ("1", "now", 3)
    assert found["data"]["text"].startswith("ééé")
    assert said.startswith("$.data.text: the first ")
    assert said.endswith(" of 5,000 characters")
    assert cut([{"n": n} for n in range(1_000)], 100)[1][0].startswith("$: the first ")


def test_what_is_deep_or_wide_costs_little() -> None:
    deep: Any = "x" * MCP_ANSWER_BYTES_MAX
    for _ in range(500):
        deep = [deep, "beside"]
    found, cuts = cut(deep, MCP_ANSWER_BYTES_MAX)
    assert len(written(found).encode()) <= MCP_ANSWER_BYTES_MAX
    assert cuts
    wide, _ = cut({f"member-{n}": n for n in range(100_000)}, MCP_ANSWER_BYTES_MAX)
    assert 1_000 < len(wide) < 100_000


def answered(tool: str, goes_on: Callable[[], bool] = lambda: False, **arguments: Any) -> list[str]:
    return TOOLS[tool].answer(Asker("http://server", "shop", goes_on), arguments)


def asking(monkeypatch: pytest.MonkeyPatch, answer: Mapping[str, Any]) -> list[str]:
    """The paths that are asked for; the server answers always the same."""
    asked: list[str] = []

    def request(_: str, __: str, path: str, **___: object) -> Any:
        asked.append(path)
        return json.loads(json.dumps(answer))

    for module in (tools, inspection, backtest, objects):
        monkeypatch.setattr(module, "request", request)
    return asked


def test_a_search_that_takes_too_long_says_where_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished = {"fate": "not-found-yet", "next": "0:7", "searchedTo": "2026-01-02T03:04:05Z"}
    asked = asking(monkeypatch, unfinished)
    text, more = answered("why", id="1", since="2026-01-01T00:00:00Z")
    assert json.loads(text) == unfinished
    assert f"{MCP_CALL_S_MAX:g} s (MCP_CALL_S_MAX)" in more
    assert more.endswith('To search on, ask with next="0:7".')
    (path,) = asked
    assert path.startswith("/apis/eventing.knative.dev/v1/namespaces/shop/brokers/default/why?id=1&since=2026-01-01")
    left = iter((True, True, False))
    assert answered("trace", lambda: next(left), id="1", next="0:9")[1] == more
    assert ["next=0%3A9" in one for one in asked[1:]] == [True, False, False]


def test_pages_of_triggers_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asking(monkeypatch, {"fate": "stored", "triggers": [], "after": "gold"})
    assert answered("why", id="1", broker="a/b", limit=3, after="bronze")[1] == (
        'The broker has more triggers: ask with after="gold".'
    )
    assert asked[0].endswith("/namespaces/a/brokers/b/why?id=1&limit=3&after=bronze")


def test_a_count_that_takes_too_long_says_how_to_ask_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    page = dict.fromkeys(("passed", "scanned", "taken", "errors", "both", "compared", "chunksRead"), 0)
    page |= {"of": "filter", "stored": 1_000_000, "hours": [], "triggers": [], "chunksSkipped": 0, "next": "on"}
    asked = asking(monkeypatch, page)
    text, more = answered("backtest", filter="true")
    assert json.loads(text)["complete"] is False
    assert "0 of 1,000,000 events" in more
    assert "sample=0.01" in more
    assert len(asked) == 1


PROGRESS = b'event: progress\nid: 0:20,1:9\ndata: {"atEnd": true, "filterErrors": 3}\n\n'


def test_events_stop_with_the_time_and_with_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions are of all partitions, also of those of which nothing was read."""
    messages = [PROGRESS]

    def lines(_: str, path: str, **__: object) -> Any:
        filter_ = "%7B%22exact%22%3A%7B%22type%22%3A%22a%22%7D%7D"
        assert path == f"/shop/default/events?from=earliest&filter={filter_}&limit=20&wait=0&follow=false&stored=true"
        yield from b"".join(messages).splitlines(keepends=True)

    def told(goes_on: Callable[[], bool] = lambda: True) -> tuple[list[str], dict[str, Any], list[str]]:
        text, *more = answered("tail", goes_on, filter={"exact": {"type": "a"}}, **{"from": "earliest"})
        answer = json.loads(text)
        return [one["id"] for one in answer["events"]], answer, more

    monkeypatch.setattr(tools, "lines", lines)
    assert told() == ([], {"events": [], "position": "0:20,1:9", "filterErrors": 3}, [])
    event = b'id: 0:%d,1:9\ndata: {"specversion": "1.0", "id": "%d", "data": "%s"}\n\n'
    messages[:0] = [event % (number + 1, number, b"x" * 10_000) for number in range(20)]
    ids, _, more = told()
    assert ids == ["0", "1", "2", "3"]
    assert more == ['There may be more events: ask with from="0:4,1:9".']
    left = iter((True, False))
    ids, _, more = told(lambda: next(left))
    assert ids == ["0", "1"]
    assert more[0].endswith('from="0:2,1:9".')
    messages[3:] = [b'event: error\ndata: {"code": "unavailable", "message": "no disk"}\n\n']
    with pytest.raises(UnavailableError, match="no disk") as caught:
        told()
    assert caught.value.hint == "read up to 0:3,1:9"


def test_tools_are_asked_with_the_names_of_the_commands() -> None:
    """An assistant that has read the pages knows them."""
    for name, tool in TOOLS.items():
        assert tool.says.count(". ") >= 1, name
        for field in msgspec.structs.fields(tool.arguments):
            assert field.encode_name in tool.schema()["properties"]


# --- calls ----------------------------------------------------------------------------------------


class Given(msgspec.Struct, frozen=True):
    """Of a tool that waits."""


def calling(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[Asker, Any], Answer], is_over: Callable[[], bool] = lambda: False
) -> Callable[[], Any]:
    monkeypatch.setattr(mcp_server, "TOOLS", {"wait": Tool("Wait", Given, run, "")})
    params = types.CallToolRequestParams(name="wait")
    calls: list[Calls] = []

    def call() -> Any:
        if not calls:
            calls.append(Calls(NOBODY, "default", is_over))
        return calls[0].call_tool(None, params)

    return call


def test_more_calls_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()

    def wait(_: Asker, __: Any) -> Answer:
        assert free.wait(30)
        return Answer("done")

    call = calling(monkeypatch, wait)

    async def work() -> list[types.CallToolResult]:
        under_way = [asyncio.create_task(call()) for _ in range(MCP_CALLS_MAX)]
        await asyncio.sleep(0)
        refused = await call()
        free.set()
        return [refused, *await asyncio.gather(*under_way), await call()]

    refused, *done = asyncio.run(work())
    assert refused.is_error
    assert refused.content[0].text == (
        f"error: {MCP_CALLS_MAX} calls are under way (MCP_CALLS_MAX)\nhint: ask again when one has ended"
    )
    assert [one.content[0].text for one in done] == ["done"] * (MCP_CALLS_MAX + 1)


def test_calls_end_when_they_are_given_up_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    began, over = threading.Event(), threading.Event()
    ends: list[BaseException | None] = []

    def wait(asker: Asker, _: Any) -> Answer:
        try:
            while asker.goes_on():
                began.set()
                time.sleep(0.001)
            ends.append(None)
        except BaseException as error:
            ends.append(error)
            raise
        return Answer("what there was")

    call = calling(monkeypatch, wait, over.is_set)

    async def work() -> types.CallToolResult:
        async with anyio.create_task_group() as under_way:
            under_way.start_soon(call)
            await anyio.to_thread.run_sync(began.wait)
            under_way.cancel_scope.cancel()
        assert [type(one) for one in ends] == [asyncio.CancelledError]
        over.set()
        return await call()

    found = asyncio.run(asyncio.wait_for(work(), 30))
    assert found.content[0].text == "what there was"


# --- the command ----------------------------------------------------------------------------------


def refused(*words: object) -> list[str]:
    said = headgate("mcp", *words)
    assert (said.exit_code, said.stdout) == (1, "")
    return said.stderr.splitlines()


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "find_spec", lambda name: None if name == "mcp_types" else find_spec(name))
    assert refused() == ["error: headgate mcp needs the extra mcp", "hint: pip install 'headgate-client[mcp]'"]


def test_options_that_make_no_sense_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mcp_server, "serve_http")
    for words in (("--listen", "127.0.0.1:1"), ("--client-token-file", "x"), ("--host-name", "x")):
        error, hint = refused(*words)
        assert error == "error: --listen, --client-token-file and --host-name are for HTTP"
        assert hint == "hint: add --http"
    for listen in (
        "",
        "8090",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "example.com:80",
        "[::1:80",
        "::1:80:",
        "::1:80",
        "[localhost]:80]",
    ):
        error, hint = refused("--http", "--listen", listen)
        assert error == f"error: --listen {listen!r} is no address and port"
        assert hint == "hint: for example 127.0.0.1:8090"
    (tmp_path / "empty").touch()
    for file, said in ((tmp_path / "nosuch", "cannot be read"), (tmp_path / "empty", "holds no token")):
        error, _ = refused("--http", "--client-token-file", file)
        assert error.startswith(f"error: --client-token-file {file} {said}")


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_beyond_this_machine_it_wants_a_token(listen: str) -> None:
    error, hint = refused("--http", "--listen", listen)
    assert error.startswith("error: everybody who reaches ")
    assert "--client-token-file FILE" in hint
