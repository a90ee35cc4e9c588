"""New objects by their forms, and deleting what belongs together: in a real browser, on a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Route, expect

from headgate.testing.server import ApiError
from tests.console.browser import Console
from tests.console.shop import GOLD, SHOP, Shop
from tests.support import eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@contextmanager
def narrow(console: Console) -> Iterator[None]:
    """The window of a telephone."""
    usual = console.page.viewport_size
    assert usual is not None
    console.page.set_viewport_size({"width": 400, "height": 800})
    try:
        yield
    finally:
        console.page.set_viewport_size(usual)


def is_gone(shop: Shop, kind: str, name: str) -> bool:
    try:
        shop.server.get(kind, SHOP, name)
    except ApiError as error:
        return error.status == 404
    return False


def test_a_broker_by_its_form_and_its_yaml(shop: Shop, console: Console) -> None:
    page = console.go("brokers", namespace=SHOP)
    page.get_by_role("link", name="New broker").click()
    console.title("New broker")
    said = page.get_by_role("region", name="The server says")
    page.get_by_label("Name", exact=True).fill("returns")
    page.get_by_label("Deduplication window").fill("never")
    expect(said.get_by_role("alert")).to_contain_text("deduplication")
    expect(page.get_by_role("button", name="Create")).to_be_disabled()
    page.get_by_label("Deduplication window").fill("PT10M")
    page.get_by_label("Retention").fill("P7D")
    page.get_by_label("Filter value").fill("subject")
    page.get_by_label("Attempts after the first").fill("3")
    page.get_by_label("Dead-letter sink").fill(shop.subscriber.url("sink"))
    expect(said.get_by_role("status")).to_contain_text("It can be created")
    page.get_by_role("button", name="YAML", exact=True).click()
    editor = page.get_by_label("YAML")
    written = editor.input_value()
    editor.fill("kind: Broker\nspec: [")
    page.get_by_role("button", name="Form").click()
    expect(page.get_by_role("alert")).to_contain_text("The server refuses the YAML")
    with narrow(console):
        console.looks_right("new-broker-refused")
    console.go("overview")
    console.title("Overview")
    console.go("new-broker", namespace=SHOP)  # a look at another page loses nothing
    page.get_by_role("button", name="Back to the YAML").click()
    expect(editor).to_have_value("kind: Broker\nspec: [")
    editor.fill(written.replace("retry: 3", "retry: 4\n    parallelism: 2"))
    page.get_by_role("button", name="Form").click()
    expect(page.get_by_label("Attempts after the first")).to_have_value("4")
    expect(page.locator(".besides")).to_have_text("Kept, and not shown in the form: spec.delivery.parallelism")
    page.get_by_label("Retention").fill("P8D")
    with narrow(console):
        console.looks_right("new-broker")
    expect(page.get_by_role("button", name="Create")).to_be_enabled()
    page.get_by_role("button", name="Create").press("Enter")
    console.title("returns")
    assert shop.server.get("brokers", SHOP, "returns")["spec"] == {
        "log": {"retention": "P8D", "filterValue": "subject"},
        "deduplication": {"window": "PT10M"},
        "delivery": {"retry": 4, "parallelism": 2, "deadLetterSink": {"uri": shop.subscriber.url("sink")}},
    }
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    console.title("Brokers")
    assert is_gone(shop, "brokers", "returns")


def test_a_broker_is_chosen_unless_somebody_is_about_to_type_one(shop: Shop, console: Console) -> None:
    held: list[Route] = []
    console.page.route(re.compile(r"/brokers\?limit="), lambda route: held.append(route))
    page = console.go("new-subscription", namespace=SHOP)
    broker = page.get_by_label("Broker")
    broker.focus()
    eventually(lambda: page.wait_for_timeout(20) or held)
    held.pop().continue_()
    expect(page.locator("#form-brokers option")).not_to_have_count(0)
    expect(broker).to_have_value("default")
    page.unroute_all()
    console.go("overview")
    console.go("new-subscription", namespace=SHOP)
    expect(broker).to_have_value("fast")


def test_a_subscription_by_its_form(shop: Shop, console: Console) -> None:
    page = console.go("subscriptions", namespace=SHOP)
    page.get_by_role("link", name="New subscription").click()
    console.title("New subscription")
    page.get_by_label("Name", exact=True).fill("gold-pulled")
    page.get_by_label("Broker").fill("orders")
    page.get_by_role("textbox", name="Filter", exact=True).fill(GOLD)
    expect(page.get_by_role("region", name="On the last events").get_by_role("status")).to_contain_text("matched")
    consumers = page.get_by_role("region", name="Consumers")
    consumers.get_by_label("Type").select_option("shared")
    consumers.get_by_label("Ack timeout").fill("PT1M")
    consumers.get_by_label("Filter from").fill("beginning")
    page.get_by_role("button", name="YAML", exact=True).click()
    editor = page.get_by_label("YAML")
    expect(editor).to_have_value(re.compile("filterFrom: beginning"))
    filters = 'filters:\n  - prefix: {type: "order."}\n  - suffix: {source: berlin}\n  consumerMetadata: {region: eu}'
    editor.fill(re.sub(r"filter:\n +expression: .*", filters, editor.input_value()))
    page.get_by_role("button", name="Form").click()
    expect(page.get_by_role("textbox", name="Filter", exact=True)).to_have_value(re.compile('"prefix"(.|\n)*"suffix"'))
    expect(page.get_by_label("Dialect")).to_have_value("filters")
    expect(page.locator(".besides")).to_have_text("Kept, and not shown in the form: spec.consumerMetadata")
    consumers.get_by_label("Handed out at most").fill("5")
    with narrow(console):
        console.looks_right("new-subscription")
    page.get_by_role("button", name="Create").click()
    console.title("gold-pulled")
    assert shop.server.get("subscriptions", SHOP, "gold-pulled")["spec"] == {
        "broker": "orders",
        "filters": [{"prefix": {"type": "order."}}, {"suffix": {"source": "berlin"}}],
        "type": "shared",
        "ackTimeout": "PT1M",
        "filterFrom": "beginning",
        "maxDeliveries": 5,
        "consumerMetadata": {"region": "eu"},
    }
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    console.title("Subscriptions")
    assert is_gone(shop, "subscriptions", "gold-pulled")


def test_a_broker_is_deleted_with_what_depends_on_it(shop: Shop, console: Console) -> None:
    server, nothing = shop.server, {"cel": 'ce.type == "never"'}
    to = {"uri": shop.subscriber.url("store")}
    store = server.create("brokers", SHOP, "store", {})
    server.wait_object_ready("brokers", SHOP, "store")
    address = server.get("brokers", SHOP, "store")["status"]["address"]["url"]
    here = {"ref": {"apiVersion": store["apiVersion"], "kind": "Broker", "name": "store"}}
    for name in ("store-a", "store-b"):
        server.create("triggers", SHOP, name, {"broker": "store", "filter": nothing, "subscriber": to})
    server.create("subscriptions", SHOP, "store-pulled", {"broker": "store", "filter": nothing})
    server.create("brokers", SHOP, "spare", {"delivery": {"deadLetterSink": here}})
    sunk = {"broker": "orders", "filter": nothing, "subscriber": to, "delivery": {"deadLetterSink": {"uri": address}}}
    server.create("triggers", SHOP, "sunk", sunk)
    server.create("triggers", SHOP, "forward", {"broker": "orders", "filter": nothing, "subscriber": here})
    page = console.go(f"brokers/{SHOP}/store")
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    triggers = dialog.get_by_role("region", name="2 triggers of it")
    expect(triggers).to_contain_text("store-a, store-b")
    pulled = dialog.get_by_role("region", name="1 subscription of it")
    expect(pulled.get_by_role("link")).to_have_text("store-pulled")
    sinks = dialog.get_by_role("region", name="Dead-letter sink of 2 others")
    expect(sinks).to_contain_text("broker spare, sunk")
    expect(sinks).to_contain_text("Delete 1 of them, too")
    expect(dialog.get_by_role("region", name="Subscriber of 1 other trigger")).to_contain_text("forward")
    for group in (triggers, pulled, sinks):
        group.get_by_role("checkbox").press("Space")
    with narrow(console):
        console.looks_right("delete-broker")
    dialog.get_by_role("button", name="Delete all 5").click()
    expect(dialog.get_by_role("status")).to_have_text("5 deleted")
    for one in ("trigger store-a", "trigger store-b", "subscription store-pulled", "trigger sunk", "broker store"):
        expect(dialog.locator("li", has_text=one).locator(".status.good")).to_be_visible()
    console.looks_right("deleted-broker")
    dialog.get_by_role("button", name="Close").click()
    console.title("Brokers")
    gone = {"brokers": ["store"], "triggers": ["store-a", "store-b", "sunk"], "subscriptions": ["store-pulled"]}
    assert all(is_gone(shop, kind, name) for kind, names in gone.items() for name in names)
    server.delete("triggers", SHOP, "forward")
    server.delete("brokers", SHOP, "spare")
