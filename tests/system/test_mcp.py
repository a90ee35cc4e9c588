"""`headgate mcp` as an assistant has it: by the SDK's client, over both transports, on a real server."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from headgate.testing.server import ApiError, Server, object_of
from headgate_api.limits import MCP_ANSWER_BYTES_MAX, MCP_BODY_BYTES_MAX, MCP_ITEMS_MAX
from headgate_cli.tools import TOOLS
from tests.commands import told
from tests.support import eventually
from tests.system.assistant import PROGRAM, Assistant, by_http, by_stdio, serving
from tests.system.publishing import Publisher, broker
from tests.system.secured import Secured
from tests.system.subscriber import Subscriber

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

BROKER = "assisted"
LARGE = 100
"""Events whose data does not fit into one answer."""
HUGE = 100_000
"""Characters of an event that does not."""


@pytest.fixture(scope="module")
def orders(server: Server) -> Iterator[Server]:
    """A broker with two triggers, one delivered event, one that nobody wants, and many large ones."""
    broker(server, BROKER)
    with Subscriber() as subscriber:
        for name, filter_ in (("gold", 'ce.type == "paid" && data.total > 100'), ("never", "false")):
            spec = {"broker": BROKER, "subscriber": {"uri": subscriber.url(name)}, "filter": {"cel": filter_}}
            server.create("triggers", "default", name, spec)
        for name in ("gold", "never"):
            server.wait_trigger_ready("default", name)
        publisher = Publisher(server, f"default/{BROKER}")
        assert publisher.publish("rich", "paid", {"total": 101}) == 202
        assert publisher.publish("poor", "paid", {"total": 7}) == 202
        for number in range(LARGE):
            assert publisher.publish(f"large-{number}", "large", {"text": "x" * 1_000}) == 202
        assert publisher.publish("huge", "huge", {"text": "é" * HUGE}) == 202
        eventually(lambda: subscriber.ids("gold") == {"rich": 1})
        eventually(
            lambda: json.loads(asked(server, "why", "rich", "--trigger", "gold", "-b", BROKER))["fate"] == "ended"
        )
        yield server


@pytest.fixture(scope="module", params=["stdio", "http"])
def assistant(request: pytest.FixtureRequest, orders: Server) -> Iterator[Assistant]:
    with ExitStack() as stack:
        if request.param == "stdio":
            yield stack.enter_context(by_stdio("--server", orders.url))
        else:
            url = stack.enter_context(serving("--server", orders.url))
            yield stack.enter_context(by_http(url))


def asked(server: Server, *words: str) -> str:
    """What a command prints with --json."""
    return told(*words, "--server", server.url, "--json")


def test_an_assistant_learns_what_each_tool_is_for(assistant: Assistant) -> None:
    tools = {tool.name: tool for tool in assistant.tools().tools}
    assert list(tools) == list(TOOLS)
    for tool in tools.values():
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is True
        assert "Use it" in tool.description
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        assert all("description" in one for one in tool.input_schema["properties"].values()), tool.name


def test_tools_say_what_commands_say(assistant: Assistant, orders: Server) -> None:
    """The JSON of each is that of the command."""
    one, all_ = ("why", "poor", "--trigger", "gold", "-b", BROKER), ("why", "poor", "-b", BROKER)
    assert assistant.json("why", id="poor", trigger="gold") == json.loads(asked(orders, *one))
    assert assistant.json("why", id="poor", broker=BROKER) == json.loads(asked(orders, *all_))
    text, more = assistant.told("trace", id="rich", broker=f"default/{BROKER}")
    found = json.loads(text)
    assert more == f'There may be older events with this id: ask with next="{found["next"]}".'
    assert "has stored no event" in assistant.refused("trace", id="rich", broker=BROKER, next=found["next"])
    assert found["trace"] == json.loads(asked(orders, "trace", "rich", "-b", BROKER))
    (match,) = found["trace"]["matches"]
    assert (match["name"], match["attempts"][0]["status"]) == ("default/gold", 202)
    assert assistant.json("lint", broker=BROKER) == json.loads(asked(orders, "lint", "-b", BROKER))
    filters = ("data.total > 100", "data.total > 5")
    counted = assistant.json("backtest", broker=BROKER, filter=filters[0], against=filters[1])
    command = ("filter", "backtest", filters[0], "--against", filters[1], "-b", BROKER)
    assert counted == json.loads(asked(orders, *command))
    assert (counted["taken"], counted["against"], counted["both"]) == (1, 2, 1)
    listed = assistant.json("list", kind="eventpolicies")
    assert listed == json.loads(asked(orders, "get", "eventpolicies"))
    (text,) = assistant.told("describe", kind="trigger", name="gold")
    assert text == told("describe", "trigger", "gold", "--server", orders.url).rstrip("\n")
    converted = assistant.json("convert", dialect="cesql", text="type = 'paid'")
    assert converted["cel"] == told("filter", "convert", "--from", "cesql", "type = 'paid'").strip()
    explained = assistant.json("explain", filter={"cel": filters[0]})
    told_ = json.loads(told("filter", "explain", filters[0], "--json"))
    assert (explained["cel"], explained["cost"]) == (told_["cel"], told_["cost"])


def test_events_are_read_on_from_where_an_answer_ended(assistant: Assistant, orders: Server) -> None:
    small = "ce.type != 'huge'"
    command = asked(orders, "tail", "-b", BROKER, "--from", "earliest", "--no-follow", "--filter", small)
    lines = [line for line in map(json.loads, command.splitlines()) if "specversion" in line]
    events: list[Any] = []
    position, answers = "earliest", 0
    while len(events) < len(lines):
        text, *more = assistant.told("tail", broker=BROKER, filter=small, limit=40, **{"from": position})
        assert len(text) <= MCP_ANSWER_BYTES_MAX
        answer = json.loads(text)
        events += answer["events"]
        assert more in ([], [f'There may be more events: ask with from="{answer["position"]}".'])
        assert more or len(events) == len(lines)
        position, answers = answer["position"], answers + 1
        assert answers <= len(lines)
    assert sorted(events, key=lambda one: one["hgposition"]) == sorted(lines, key=lambda one: one["hgposition"])
    assert answers >= len(lines) // 40
    filtered = assistant.json("tail", broker=BROKER, filter="data.total > 100", **{"from": "earliest"})
    assert [one["id"] for one in filtered["events"]] == ["rich"]
    assert filtered["filterErrors"] >= 1  # of the chunks that were read: others were skipped for it


def test_a_tool_waits_for_what_comes(assistant: Assistant, orders: Server) -> None:
    start = assistant.json("tail", broker=BROKER, **{"from": "next"})["position"]
    Publisher(orders, f"default/{BROKER}").publish("late", "late")
    answer = assistant.json("tail", broker=BROKER, waitSeconds=20, filter="ce.type == 'late'", **{"from": start})
    assert [one["id"] for one in answer["events"]] == ["late"]


def test_lists_are_pages(assistant: Assistant, orders: Server) -> None:
    names: list[str] = []
    arguments: dict[str, Any] = {}
    while True:
        text, *more = assistant.told("list", kind="clusterroles", limit=4, **arguments)
        found = json.loads(text)
        names += [one["metadata"]["name"] for one in found["items"]]
        if not more:
            break
        after = found["metadata"]["continue"]
        assert more == [f"There are more clusterroles: ask with after={json.dumps(after)}."]
        arguments = {"after": after}
    whole = json.loads(asked(orders, "get", "clusterroles"))["items"]
    assert names == [one["metadata"]["name"] for one in whole]
    assert len(names) > 4


def test_what_does_not_fit_is_cut_and_said(assistant: Assistant, orders: Server) -> None:
    """A list of large objects, and one event that is larger than an answer."""
    for name in ("large-a", "large-b", "large-c"):
        body = object_of("triggers", "default", name, {"broker": BROKER, "subscriber": {"uri": "http://127.0.0.1:9/"}})
        body["metadata"] |= {"annotations": {"example.com/note": "x" * 20_000}}
        with suppress(ApiError):  # of the other transport
            orders.call("POST", orders.objects_url("triggers", "default"), body)
    text, note, *_ = assistant.told("list", kind="triggers", limit=MCP_ITEMS_MAX)
    assert len(text.encode()) <= MCP_ANSWER_BYTES_MAX
    assert f"The answer was cut to {MCP_ANSWER_BYTES_MAX} bytes (MCP_ANSWER_BYTES_MAX). $.items: the first " in note
    assert note.endswith("Ask with a smaller limit, or describe one object.")
    text, note, *_ = assistant.told("tail", broker=BROKER, filter="ce.type == 'huge'", **{"from": "earliest"})
    (event,) = json.loads(text)["events"]
    assert len(text.encode()) <= MCP_ANSWER_BYTES_MAX
    assert (event["id"], event["data"]["text"][:3]) == ("huge", "ééé")
    assert "$.events[0].data.text: the first " in note
    assert f" of {HUGE:,} characters" in note


def test_an_assistant_is_told_what_is_wrong(assistant: Assistant) -> None:
    for tool, arguments, error, hint in (
        ("why", {}, "the arguments are wrong: Object missing required field `id`", "there are: id, trigger,"),
        ("why", {"id": None}, "the arguments are wrong: Object missing required field `id`", "there are: id"),
        (
            "why",
            {"id": "1", "events": 3},
            "the arguments are wrong: Object contains unknown field `events`",
            "there are",
        ),
        ("tail", {"limit": 0}, "the arguments are wrong: Expected `int` >= 1 - at `$.limit`", "there are: broker"),
        (
            "tail",
            {"limit": 1_000},
            "the arguments are wrong: Expected `int` <= 200 - at `$.limit`",
            "there are: broker",
        ),
        ("tail", {"waitSeconds": -1}, "the arguments are wrong: Expected `float` >= 0.0 - at `$.waitSeconds`", ""),
        ("tail", {"from": "yesterday"}, "'yesterday' is no place in the log", ""),
        ("backtest", {"filter": "true", "sample": "a lot"}, "Expected `float`, got `str` - at `$.sample`", ""),
        ("backtest", {"filter": "true", "broker": "nosuch"}, "nosuch", ""),
        ("why", {"id": "x" * 5_000}, "Expected `str` of length <= 4096 - at `$.id`", ""),
        ("list", {"kind": "pods"}, "unknown kind 'pods'", "one of brokers, triggers"),
        ("describe", {"kind": "trigger", "name": "../../x"}, "", ""),
        ("describe", {"kind": "trigger", "name": "nosuch"}, "not found", "-n names another namespace"),
        ("lint", {"namespace": "nosuch"}, "there is no namespace 'nosuch'", ""),
        ("trace", {"id": "nosuch", "broker": BROKER}, "has stored no event with the id 'nosuch'", "never accepted"),
        ("explain", {"filter": "ce.type =="}, "the expression ends too early", ""),
        ("explain", {}, "the request has no filter", "one of"),
        ("convert", {"dialect": "latin", "text": "veni"}, "latin", ""),
        ("apply", {"file": "x"}, "there is no tool 'apply'", "there are: why, trace, tail"),
    ):
        said = assistant.refused(tool, **arguments)
        assert said.startswith("error: "), (tool, arguments, said)
        assert error in said, (tool, arguments, said)
        assert hint in said.partition("hint: ")[2], (tool, arguments, said)


def test_secrets_keep_their_values(assistant: Assistant, orders: Server) -> None:
    body = {"metadata": {"name": "shown"}, "type": "Opaque", "stringData": {"password": "tulip-4711"}}
    url = f"{orders.url}/api/v1/namespaces/default/secrets"
    if not any(one["metadata"]["name"] == "shown" for one in orders.call("GET", url)["items"]):
        orders.call("POST", url, {"apiVersion": "v1", "kind": "Secret", **body})
    listed = "".join(assistant.told("list", kind="secrets"))
    described = "".join(assistant.told("describe", kind="secret", name="shown"))
    value = json.loads(asked(orders, "get", "secret", "shown"))["data"]["password"]
    for said in (listed, described):
        assert "10 bytes" in said
        assert value not in said
        assert "tulip" not in said


def test_older_assistants_are_answered(orders: Server) -> None:
    """By the handshake that the protocol had first."""
    with serving("--server", orders.url) as url, by_http(url, mode="legacy") as older:
        assert older.version < "2026"
        assert older.json("lint", broker=BROKER)["filters"] >= 2


def test_a_user_has_his_own_rights_and_no_others(secured: Secured, tmp_path: Path) -> None:
    """Over HTTP, where calls come in threads of their own: the token and the CA are those of the command."""
    (tmp_path / "assistants").write_text("open-sesame\n")
    for user in ("root", "stranger"):
        (tmp_path / user).write_text(f"token-{user}\n")
    access = ("--server", secured.server.url, "--cacert", secured.folder / "ca.pem")
    given = (*access, "--token-file", tmp_path / "root", "--client-token-file", tmp_path / "assistants")
    with serving(*given) as url:
        with by_http(url, "open-sesame") as assistant:
            assert assistant.json("list", kind="brokers", all=True)["kind"] == "BrokerList"
        for token in ("", "token-root", "open-sesam"):
            assert post(url, b"{}", **({"Authorization": f"Bearer {token}"} if token else {})) == 401
    with by_stdio(*access, "--token-file", tmp_path / "stranger") as assistant:
        said = assistant.refused("list", kind="brokers", all=True)
        assert 'User "system:serviceaccount:shop2:crew" cannot list resource "brokers"' in said
        assert "cannot get resource" in assistant.refused("tail")


def post(url: str, body: bytes, **headers: str) -> int:
    """The status of a POST with a body of JSON."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
    try:
        connection.request("POST", where.path, body, {"Content-Type": "application/json"} | headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_web_pages_of_others_are_refused() -> None:
    """A name of theirs that means this machine (DNS rebinding), their scripts, and bodies without an end."""
    with serving("--server", "http://127.0.0.1:1", "--host-name", "ours.example") as url:
        port = urlsplit(url).port
        call = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
        accepting = {"Accept": "application/json, text/event-stream"}
        assert post(url, call, **accepting) == 200
        assert post(url, call, **accepting, Host=f"localhost:{port}", Origin=f"http://localhost:{port}") == 200
        assert post(url, call, **accepting, Host="ours.example") == 200
        assert post(url, call, **accepting, Host=f"evil.example:{port}") == 421
        assert post(url, call, **accepting, Origin="http://evil.example") == 403
        assert post(url, call, **accepting, Origin="http://localhost:1") == 403
        assert post(url, b" " * (MCP_BODY_BYTES_MAX + 1), **accepting) == 413


def test_an_address_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [str(PROGRAM), "mcp", "--http", "--listen", f"127.0.0.1:{port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot listen on 127.0.0.1, port {port}: ")
