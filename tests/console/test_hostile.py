"""The console against what servers, colleagues and users in a hurry do to it. No server runs: answers are canned."""

from __future__ import annotations

import base64
import json
import re
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from playwright.sync_api import Browser, Route, expect

from headgate.console.routes import headers, read_files
from tests.console.browser import Console, opened
from tests.support import times

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

URL = "http://localhost:1"
"""Nobody listens there: every request is answered by `Canned`."""
OWN = "/apis/headgate.dev/v1"
TRIGGERS = "/apis/eventing.knative.dev/v1/namespaces/shop/triggers"
TRIGGER = f"{TRIGGERS}/lamps"
EVERYTHING = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
Answer = Callable[[Route], Any]


class Canned:
    """A server that says what it is told to say: JSON, or what a function of the request makes."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.answers: dict[tuple[str, str], Any] = {
            ("GET", "/ui/sign-in.json"): {"available": True, "issuer": "", "clientId": ""},
            ("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews"): self._user,
            ("GET", f"{OWN}/selfsubjectnamespaces"): {"all": True, "namespaces": ["shop"]},
            ("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"): {
                "status": {"resourceRules": [EVERYTHING]}
            },
            ("GET", f"{OWN}/filters/dialects"): {"dialects": []},
        }
        self.token = ""
        self._files = read_files()

    def _user(self, route: Route) -> Any:
        self.token = route.request.headers.get("authorization", "")
        return {"status": {"userInfo": {"username": self.token.removeprefix("Bearer ") or "somebody"}}}

    def count(self, method: str, path: str) -> int:
        return self.asked.count((method, path))

    def handle(self, route: Route) -> None:
        request = route.request
        place = (request.method, urlsplit(request.url).path)
        self.asked.append(place)
        file = self._files.get(place[1].removeprefix("/ui/") or "index.html")
        if place not in self.answers and file is not None and place[1].startswith("/ui/"):
            route.fulfill(body=file.body, headers={**headers(""), "content-type": file.media_type})
            return
        said = self.answers.get(place, (404, {"message": f"no {place[1]}"}))
        said = said(route) if callable(said) else said
        if said is None:
            return  # the function has answered, or nobody ever does
        status, body = said if isinstance(said, tuple) else (200, said)
        text = body if isinstance(body, str) else json.dumps(body)
        route.fulfill(status=status, body=text, headers={"content-type": "application/json"})


@pytest.fixture
def canned() -> Canned:
    return Canned()


def shown(window: Console, canned: Canned) -> Console:
    """A page that asks for nothing; the console is loaded where it is not there."""
    window.page.unroute_all()
    window.page.route("**/*", canned.handle)
    window.go("nowhere") if window.page.url.startswith(URL) else window.page.goto(f"{URL}/ui/#/nowhere")
    expect(window.page.get_by_text("There is no such page")).to_be_visible()
    return window


@pytest.fixture(scope="module")
def window(browser: Browser) -> Iterator[Console]:
    """One for all tests: to load the console is more work than most of them are."""
    with opened(browser, URL) as found:
        found.page.clock.install()
        yield found


@pytest.fixture
def console(window: Console, canned: Canned) -> Iterator[Console]:
    """The console of somebody, with a clock that tests put forward."""
    yield shown(window, canned)
    window.check()


def link_of(text: str) -> str:
    """What the playground's address holds for a JSON text."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return base64.urlsafe_b64encode(packer.compress(text.encode()) + packer.flush()).decode().rstrip("=")


def trigger(version: str = "7", text: str = 'ce.type == "lamp"', **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Trigger",
        "metadata": {"name": "lamps", "namespace": "shop", "resourceVersion": version, "generation": 1, **more},
        "spec": {"broker": "orders", "filter": {"cel": text}, "subscriber": {"uri": "http://127.0.0.1:9/"}},
    }


# --- links of the playground that somebody else has made --------------------------------------------


@pytest.mark.parametrize(
    "event",
    ['{"type": {"toString": 1, "valueOf": 1}}', '{"id": "1", "source": [], "type": {}}', "[" * 100_000 + "]" * 100_000],
    ids=["no text", "lists", "deep"],
)
def test_a_link_with_events_that_are_none(console: Console, event: str) -> None:
    page = console.go("playground", s=link_of(f'{{"text": "true", "events": [{event}]}}'))
    expect(page.locator(".verdict")).to_have_count(1)
    expect(page.locator(".event-card")).to_be_visible()


def test_a_link_with_many_events(console: Console) -> None:
    page = console.go("playground", s=link_of(json.dumps({"events": [1] * 50_000})))
    expect(page.locator(".verdict")).to_have_count(100)


@pytest.mark.parametrize("text", ['"' + "a" * (8 << 20) + '"', "null", "[]", "{"], ids=["bomb", "null", "list", "cut"])
def test_a_link_that_is_a_trap(console: Console, text: str) -> None:
    page = console.go("playground", s=link_of(text))
    expect(page.get_by_role("textbox", name="Filter")).to_have_value(re.compile("order.paid"))
    expect(page.locator(".verdict")).to_have_count(5)


def test_who_leaves_the_playground_takes_no_filter_along(console: Console) -> None:
    page = console.go("playground")
    page.get_by_role("textbox", name="Filter").fill("true")
    page.evaluate("location.hash = '#/nowhere'")
    expect(page.get_by_text("There is no such page")).to_be_visible()
    page.clock.run_for(2_000)
    assert page.evaluate("location.hash") == "#/nowhere"


def test_the_address_keeps_up_with_what_is_typed(console: Console) -> None:
    page = console.go("playground")
    box = page.get_by_role("textbox", name="Filter")
    box.fill("")
    for letter in "abc == def":
        box.press_sequentially(letter)
    page.clock.run_for(2_000)
    expect(box).to_have_value("abc == def")
    page.wait_for_function("location.hash.includes('s=')")
    page.reload()
    expect(box).to_have_value("abc == def")


# --- data that is large or odd ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        {"text": "x" * (1 << 20)},
        {f"key{number}": number for number in range(10_000)},
        [[[1] * 8 for _ in range(200)] for _ in range(150)],
    ],
    ids=["text", "keys", "lists"],
)
def test_large_data_is_shown_in_part(console: Console, canned: Canned, data: Any) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/", "type": "big", "data": data, "hgposition": "0:1"}
    canned.answers["GET", "/shop/orders/events"] = json.dumps(event) + "\n"
    page = console.go("events", broker="shop/orders")
    page.locator(".tail-line .tail-head").click()
    expect(page.locator(".event-card .json")).to_contain_text("more")
    assert page.evaluate("document.querySelectorAll('main *').length") < 10_000
    assert page.evaluate("document.querySelector('main').innerHTML.length") < 1 << 20


def test_a_type_that_turns_its_letters_looks_like_no_other(console: Console, canned: Canned) -> None:
    turned = "order.\u202edlos\u202c"
    event = {"specversion": "1.0", "id": "1", "source": "/\u200bx", "type": turned, "hgposition": "0:1", "data": turned}
    canned.answers["GET", "/shop/orders/events"] = json.dumps(event) + "\n"
    page = console.go("events", broker="shop/orders")
    expect(page.locator(".tail-type")).to_have_text(r"order.\u202edlos\u202c")
    page.locator(".tail-line .tail-head").click()
    expect(page.locator(".event-card .json")).to_contain_text(r"order.\u202edlos\u202c")
    page.locator(".event-card .json button").click()
    expect(page.get_by_label("Filter in CEL")).to_have_value(r'data == "order.\u202edlos\u202c"')


def test_a_tail_that_breaks_shows_each_event_once(console: Console, canned: Canned) -> None:
    def events(*places: int) -> str:
        made = [
            {"specversion": "1.0", "id": f"e{one}", "source": "/", "type": "t", "hgposition": f"0:{one}"}
            for one in places
        ]
        return "".join(json.dumps(one) + "\n" for one in made)

    progress = json.dumps({"progress": {"position": "0:0", "atEnd": False, "eventsScanned": 0, "chunksSkipped": 0}})
    answers = iter([progress + "\n" + events(0, 1), events(0, 1, 2)])
    canned.answers["GET", "/shop/orders/events"] = lambda _: next(answers, (400, {"message": "enough"}))
    page = console.go("events", broker="shop/orders")
    expect(page.locator(".tail-line")).to_have_count(2)
    page.clock.run_for(3_000)
    expect(page.locator(".counters")).to_contain_text("3 matched")
    expect(page.locator(".tail-line")).to_have_count(3)


# --- edits ------------------------------------------------------------------------------------------


def edited(console: Console, canned: Canned) -> Any:
    """The YAML of a trigger, of which the server takes every change."""
    canned.answers["GET", TRIGGER] = trigger()
    canned.answers["PUT", TRIGGER] = trigger(text="true")
    page = console.go("triggers/shop/lamps", tab="yaml")
    editor = page.get_by_label("YAML")
    expect(editor).to_have_value(re.compile("lamps"))
    return editor


def polled(console: Console, canned: Canned) -> None:
    """The page has asked again, and shows the answer."""
    before = canned.count("GET", TRIGGER)
    while canned.count("GET", TRIGGER) < before + 2:
        console.page.clock.run_for(1_000)


def test_an_edit_outlives_the_change_of_somebody_else(console: Console, canned: Canned) -> None:
    editor = edited(console, canned)
    editor.fill(editor.input_value() + "\n# mine")
    canned.answers["GET", TRIGGER] = trigger("8", text='ce.type == "other"') | {
        "metadata": trigger("8")["metadata"] | {"generation": 2}
    }
    polled(console, canned)
    expect(editor).to_have_value(re.compile("# mine"))
    expect(console.page.get_by_text("Somebody else has changed it")).to_be_visible()
    console.page.get_by_role("button", name="Take theirs").click()
    expect(editor).to_have_value(re.compile("other"))


def test_a_new_version_of_the_same_is_no_conflict(console: Console, canned: Canned) -> None:
    editor = edited(console, canned)
    canned.answers["GET", TRIGGER] = trigger("8")
    polled(console, canned)
    expect(console.page.get_by_text("Unchanged")).to_be_visible()
    editor.fill(editor.input_value() + "\n# mine")
    canned.answers["GET", TRIGGER] = trigger("9")
    polled(console, canned)
    expect(editor).to_have_value(re.compile(r'resourceVersion: "9"[\s\S]*# mine'))


@pytest.mark.parametrize(
    "text", ["a\u2028b", "a\u2029b", "a\x85b", "a\x7fb", "\ufeffa", "a\uffffb", "a: b", "y", "'\"'"][:: times(4, 1)]
)
def test_yaml_holds_every_text(console: Console, canned: Canned, text: str) -> None:
    canned.answers["GET", TRIGGER] = trigger(text=text)
    editor = console.go("triggers/shop/lamps", tab="yaml").get_by_label("YAML")
    expect(editor).to_have_value(re.compile("lamps"))
    assert yaml.safe_load(editor.input_value())["spec"]["filter"]["cel"] == text


def test_an_edit_outlives_a_token(console: Console, canned: Canned) -> None:
    canned.answers["POST", TRIGGERS] = trigger()
    page = console.go("new-trigger", namespace="shop", tab="yaml")
    expect(page.get_by_text("The server takes this")).to_be_visible()
    canned.answers["POST", TRIGGERS] = (401, {"message": "the token has expired"})
    page.get_by_label("YAML").fill("precious: text")
    page.clock.run_for(1_000)
    console.title("Sign in")
    page.wait_for_load_state("networkidle")  # what was under way when the token was refused

    def of_the_api() -> list[tuple[str, str]]:
        return [
            one for one in canned.asked if not one[1].startswith("/ui/")
        ]  # the browser loads pictures when it likes

    asked = of_the_api()
    page.clock.run_for(60_000)
    assert of_the_api() == asked, "nothing is asked while nobody is signed in"
    canned.answers["POST", TRIGGERS] = trigger()
    page.get_by_label("Token").fill("somebody")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_label("YAML")).to_have_value("precious: text")
    canned.answers["POST", TRIGGERS] = (401, {"message": "the token has expired"})
    page.get_by_label("YAML").fill("precious: texts")
    page.clock.run_for(1_000)
    console.title("Sign in")
    canned.answers["POST", TRIGGERS] = trigger()
    page.get_by_label("Token").fill("another")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_label("YAML")).to_have_value(re.compile("my-trigger"))


def test_text_that_is_marked_closes_no_window(console: Console) -> None:
    page = console.go("playground")
    page.get_by_role("button", name="Edit events").click()
    text = page.get_by_label("Events as JSON")
    expect(text).to_be_visible()
    box = text.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(3, 3)
    page.mouse.up()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.mouse.click(3, 3)
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_window_that_is_closed_discards_nothing_more(console: Console, canned: Canned) -> None:
    base = f"{OWN}/namespaces/shop/deadletters"
    letter = {"id": 1, "namespace": "shop", "trigger": "lamps", "reason": "retries", "state": "kept", "eventId": "e"}
    group = {**letter, "count": 900, "newest": "2026-01-31T09:30:00Z"}
    canned.answers["GET", f"{base}/counts"] = {"items": [group], "total": 900}
    canned.answers["GET", base] = {"items": [letter]}
    held: list[Route] = []
    canned.answers["POST", f"{base}/discard"] = held.append
    page = console.go("dead-letters", namespace="shop")
    page.get_by_role("button", name="Discard all 900…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Discard").click()
    expect(dialog.get_by_role("button", name="Discard")).to_be_disabled()
    while not held:
        page.wait_for_timeout(10)  # the request may be on its way
    dialog.get_by_role("button", name="Stop").click()
    expect(dialog).to_have_count(0)
    for route in held:
        route.fulfill(body=json.dumps({"count": 500, "next": 500, "ceiling": 900}))
    page.clock.run_for(1_000)
    expect(page.get_by_role("button", name="Discard all 900…")).to_be_visible()
    assert canned.count("POST", f"{base}/discard") == 1


def test_a_page_of_dead_letters_that_has_none_leads_to_the_next(console: Console, canned: Canned) -> None:
    """So comes a page below a ceiling where many of others stand before one's own."""
    base = f"{OWN}/namespaces/shop/deadletters"
    letter = {"id": 9, "namespace": "shop", "trigger": "lamps", "state": "kept", "reason": "503", "attempts": 1}
    letter |= {"died": "2026-01-01T00:00:00Z", "eventId": "e9", "eventSource": "/s", "eventType": "t"}
    count = {"namespace": "shop", "trigger": "lamps", "reason": "503", "state": "kept", "count": 1}
    count |= {"oldest": letter["died"], "newest": letter["died"]}
    counts = {"items": [count], "total": 1, "kept": 1, "more": False, "partial": True}
    canned.answers["GET", f"{base}/counts"] = counts
    canned.answers["GET", base] = {"items": [], "next": "77", "ceiling": "5"}
    page = console.go("dead-letters", namespace="shop")
    expect(page.get_by_text("at least 1")).to_be_visible()
    expect(page.get_by_role("button", name="Send again all…")).to_be_visible()
    canned.answers["GET", base] = {"items": [letter]}
    page.get_by_role("button", name="Next page").click()
    expect(page.get_by_role("button", name="e9", exact=True)).to_be_visible()


def test_a_broker_stays_where_what_depends_on_it_does(console: Console, canned: Canned) -> None:
    root = "/apis/eventing.knative.dev/v1"
    broker = f"{root}/namespaces/shop/brokers/orders"
    canned.answers["GET", broker] = {"kind": "Broker", "metadata": {"name": "orders", "namespace": "shop"}}
    refused = (403, {"message": "no"})
    for path in (f"{root}/brokers", f"{OWN}/subscriptions", f"{OWN}/namespaces/shop/subscriptions"):
        canned.answers["GET", path] = refused
    canned.answers["GET", f"{root}/namespaces/shop/brokers"] = {"items": [], "metadata": {}}
    found = [trigger() | {"metadata": {"name": name, "namespace": "shop"}} for name in ("lamps", "other", "third")]
    pages = iter([{"items": found[:2], "metadata": {"continue": "more"}}, {"items": found[2:], "metadata": {}}])
    canned.answers["GET", f"{root}/triggers"] = lambda _: next(pages)
    canned.answers["DELETE", TRIGGER] = refused
    canned.answers["DELETE", f"{TRIGGERS}/other"] = (404, {"message": "it is gone"})
    canned.answers["DELETE", f"{TRIGGERS}/third"] = {}
    page = console.go("brokers/shop/orders")
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("More may depend on it")
    dialog.get_by_role("region", name="3 triggers of it").get_by_role("checkbox").check()
    dialog.get_by_role("button", name="Delete all 4").click()
    expect(dialog.get_by_role("status")).to_have_text("2 deleted, 1 not")
    expect(dialog.get_by_role("heading", name="The broker orders stays")).to_be_visible()
    expect(dialog.locator("li").first).to_have_text(re.compile("Not deleted trigger lamps no"))
    assert canned.count("DELETE", broker) == 0
    dialog.get_by_role("button", name="Close").click()
    console.title("orders")


# --- saved views ------------------------------------------------------------------------------------


def test_views_are_saved_renamed_and_removed(console: Console, canned: Canned) -> None:
    canned.answers["GET", f"{OWN}/namespaces/shop/triggerstats"] = {"items": [], "total": 0}
    canned.answers["GET", f"{OWN}/triggerstats"] = {"items": [], "total": 0}
    page = console.go("triggers", namespace="shop", search="gold", state="ready")
    views, dialog = page.get_by_role("button", name="Views…"), page.get_by_role("dialog")
    name = dialog.get_by_label("Name of what is shown now")
    views.click()
    name.fill("Gold")
    name.press("Enter")
    expect(dialog.get_by_role("link", name="Gold")).to_be_visible()
    page.reload()
    console.go("triggers")
    expect(page.get_by_label("Search names and filters")).to_have_value("")
    views.click()
    dialog.get_by_role("link", name="Gold").press("Enter")
    expect(page.get_by_label("Search names and filters")).to_have_value("gold")
    assert page.evaluate("location.hash") == "#/triggers?namespace=shop&search=gold&state=ready"
    views.click()
    expect(name).to_have_value("Gold")
    name.fill("<b>Golden</b>")
    dialog.get_by_role("button", name="Rename").click()
    expect(dialog.get_by_role("listitem")).to_have_count(1)
    expect(dialog.get_by_role("link", name="<b>Golden</b>")).to_be_visible()
    page.set_viewport_size({"width": 400, "height": 800})
    console.looks_right("views")
    page.set_viewport_size({"width": 1440, "height": 900})
    dialog.get_by_role("button", name="Remove <b>Golden</b>").click()
    expect(dialog).to_contain_text("None yet")
    page.evaluate("localStorage.clear()")


def test_views_are_bounded_and_nonsense_is_none(console: Console, canned: Canned) -> None:
    canned.answers["GET", f"{OWN}/triggerstats"] = {"items": [], "total": 0}
    dialog = console.page.get_by_role("dialog")

    def opened_with(stored: Any) -> None:
        console.page.evaluate("text => localStorage.setItem('headgate-views', text)", json.dumps(stored))
        console.go("nowhere")
        console.title("Not found")
        console.go("triggers", search="new")
        console.page.get_by_role("button", name="Views…").click()

    for stored in ({"a": 1}, [1, None, {"page": "triggers"}, {"page": "triggers", "name": "x", "query": {"a": {}}}]):
        opened_with(stored)
        expect(dialog).to_contain_text("None yet")
    one = {"page": "triggers", "query": {"search": "old"}}
    opened_with([one | {"name": f"view {number}", "query": {"search": str(number)}} for number in range(50)])
    expect(dialog.get_by_role("listitem")).to_have_count(50)
    dialog.get_by_label("Name of what is shown now").fill("one more")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("remove one first")
    expect(dialog.get_by_role("listitem")).to_have_count(50)
    console.page.evaluate("localStorage.clear()")


# --- a server that goes away ------------------------------------------------------------------------


def test_a_server_that_is_gone_before_the_first_answer(console: Console, canned: Canned) -> None:
    canned.answers["GET", "/ui/sign-in.json"] = lambda route: route.abort()
    console.page.reload()
    expect(console.page.get_by_role("alert")).to_contain_text("the server does not answer")
    console.page.goto("about:blank")


def test_a_browser_that_keeps_nothing(browser: Browser, canned: Canned) -> None:
    denied = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('', 'SecurityError') } })"
    with opened(browser, URL) as console:
        console.page.add_init_script(denied)
        page = shown(console, canned).page
        page.get_by_role("button", name="Colours").click()
        expect(page.get_by_role("button", name="Colours: light")).to_be_visible()
        canned.answers["GET", f"{OWN}/triggerstats"] = {"items": [], "total": 0}
        console.go("triggers", search="gold")
        page.get_by_role("button", name="Views…").click()
        page.get_by_label("Name of what is shown now").fill("Gold")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_contain_text("this browser keeps nothing")
        expect(page.get_by_role("dialog").get_by_role("link", name="Gold")).to_be_visible()


def test_a_server_that_never_answers_is_said_to(console: Console, canned: Canned) -> None:
    canned.answers["GET", f"{OWN}/brokerstats"] = lambda _: None
    page = console.go("brokers")
    console.title("Brokers")
    page.clock.run_for(40_000)
    expect(page.get_by_role("alert")).to_contain_text("The server has not answered since")
    assert canned.count("GET", f"{OWN}/brokerstats") < 4


def test_an_answer_that_is_no_json(console: Console, canned: Canned) -> None:
    canned.answers["GET", f"{OWN}/brokerstats"] = "<html>a proxy's page</html>"
    console.go("brokers")
    expect(console.page.get_by_role("alert")).to_contain_text("no JSON")


def test_a_seek_that_takes_long_asks_one_after_the_other(console: Console, canned: Canned) -> None:
    path = f"{OWN}/namespaces/shop/subscriptions/queue"
    canned.answers["GET", path] = trigger() | {"kind": "Subscription", "status": {}}
    canned.answers["POST", f"{path}/seek"] = lambda _: None
    canned.answers["GET", f"{path}/seek"] = lambda _: None
    page = console.go("subscriptions/shop/queue")
    page.get_by_role("button", name="Seek…").click()
    page.get_by_role("dialog").get_by_role("button", name="Seek").click()
    expect(page.get_by_role("status").get_by_text("scanned")).to_be_visible()
    page.clock.run_for(10_000)
    page.evaluate("fetch('/ui/main.js').then(() => {})")  # what was asked before it has come
    assert canned.count("GET", f"{path}/seek") == 1


def test_what_is_gone_is_not_shown_any_more(console: Console, canned: Canned) -> None:
    canned.answers["GET", TRIGGER] = trigger()
    page = console.go("triggers/shop/lamps")
    expect(page.get_by_role("button", name="Delete…")).to_be_visible()
    canned.answers["GET", TRIGGER] = (404, {"message": "there is no trigger shop/lamps"})
    polled(console, canned)
    expect(page.get_by_role("alert")).to_contain_text("there is no trigger")
    expect(page.get_by_role("button", name="Delete…")).to_have_count(0)


def test_a_tab_that_is_looked_at_again_asks_at_once(console: Console, canned: Canned) -> None:
    canned.answers["GET", TRIGGER] = trigger()
    page = console.go("triggers/shop/lamps")
    expect(page.get_by_role("button", name="Delete…")).to_be_visible()
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    page.clock.run_for(5_000)
    page.evaluate("fetch('/ui/main.js').then(() => {})")
    before, deadline_s = canned.count("GET", TRIGGER), time.monotonic() + 10  # hidden, it would ask after 30 s
    page.evaluate("delete document.hidden")
    while canned.count("GET", TRIGGER) == before:
        assert time.monotonic() < deadline_s
        # Again and again: while an answer is on its way, the page has asked already.
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_an_empty_filter_opens_in_the_playground(console: Console, canned: Canned) -> None:
    canned.answers["GET", TRIGGER] = trigger() | {"spec": {**trigger()["spec"], "filter": {}}}
    page = console.go("triggers/shop/lamps")
    page.get_by_role("button", name="Open in the playground").click()
    expect(page.get_by_role("textbox", name="Filter")).to_have_value("true")


def test_another_namespace_is_another_broker(console: Console, canned: Canned) -> None:
    page = console.go("events", broker="shop/orders", namespace="shop")
    page.get_by_label("Namespace").select_option("")
    expect(page.get_by_text("Choose a broker")).to_be_visible()


def test_a_search_of_the_log_is_made_once(console: Console, canned: Canned) -> None:
    path = "/apis/eventing.knative.dev/v1/namespaces/shop/brokers/orders/timeline"
    canned.answers["GET", path] = {"timeline": [], "next": "0:5", "searchedTo": "2026-01-31T09:30:00Z"}
    page = console.go("events/shop/orders/e1")
    expect(page.get_by_text("Not found yet")).to_be_visible()
    for _ in range(10):
        page.clock.run_for(2_000)
        page.evaluate("fetch('/ui/main.js').then(() => {})")
    assert canned.count("GET", path) <= 3


def test_a_tail_without_a_server_is_not_live(console: Console, canned: Canned) -> None:
    canned.answers["GET", "/shop/orders/events"] = lambda route: route.abort()
    page = console.go("events", broker="shop/orders")
    expect(page.locator(".counters")).to_contain_text("Not connected")
    expect(page.get_by_role("alert")).to_contain_text("The server has not answered since")


def test_a_broker_is_looked_for_when_its_name_is_written(console: Console, canned: Canned) -> None:
    page = console.go("catalogue")
    expect(page.get_by_text("Choose a broker")).to_be_visible()
    page.clock.pause_at(page.evaluate("Date.now() + 60_000"))  # it is an error if that has passed already
    for letter in "shop/orders":
        page.get_by_label("Broker").press_sequentially(letter)
        page.clock.run_for(50)
    page.clock.resume()
    catalogue = "/apis/eventing.knative.dev/v1/namespaces/shop/brokers/orders/catalogue"
    expect(page.get_by_text("No catalogue here")).to_be_visible()
    assert {path for _, path in canned.asked if path.endswith("/catalogue")} == {catalogue}


def test_a_catalogue_of_types_that_turn_their_letters(console: Console, canned: Canned) -> None:
    path = "/apis/eventing.knative.dev/v1/namespaces/shop/brokers/orders/catalogue"
    one = {"type": "a\u202eb", "source": "/x", "count": 1, "rate": 0.5, "lastSeen": "2026-01-31T09:30:00Z"}
    canned.answers["GET", path] = {"items": [one], "events": 1, "complete": True}
    page = console.go("catalogue", broker="shop/orders")
    expect(page.locator(".types .name")).to_have_text(r"a\u202eb")
    expect(page.get_by_role("region", name=r"a\u202eb")).to_be_visible()
