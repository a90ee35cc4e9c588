"""Pictures of every page of the console: at two widths, in both colours, of an empty, a full and a broken server.

    python -m scripts.screenshots FOLDER
    python -m scripts.screenshots FOLDER --states full --widths 400 --colours dark --pages event,trigger

A picture is FOLDER/STATE-WIDTH-COLOUR-PAGE.png and shows the whole page. What does not fit the window, what axe-core
finds, and what the browser complained of is printed; the exit status is 1 then. The server is a real one, with the
matcher of the tests; `broken` is the full one after it was killed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect, sync_playwright
from tests.console.browser import Console, launched, opened
from tests.console.shop import SHOP, Shop, filled, running

from headgate.server.parts import MATCHER_VARIABLE

WIDTHS: Final = {1280: 800, 400: 800}
"""Of the window, with its height."""
COLOURS: Final = ("light", "dark")
STATES: Final = ("empty", "full", "broken")
ORDERS: Final = f"{SHOP}/orders"
PAGES: Final[Mapping[str, tuple[str, dict[str, str]]]] = {
    "overview": ("overview", {}),
    "playground": ("playground", {"namespace": SHOP}),
    "events": ("events", {"broker": ORDERS}),
    "event": (f"events/{ORDERS}/ord-1", {}),
    "event-dead": (f"events/{ORDERS}/lost-1", {}),
    "triggers": ("triggers", {"namespace": SHOP}),
    "trigger": (f"triggers/{SHOP}/gold-orders", {}),
    "trigger-lost": (f"triggers/{SHOP}/lost", {}),
    "trigger-yaml": (f"triggers/{SHOP}/gold-orders", {"tab": "yaml"}),
    "new-trigger": ("new-trigger", {"namespace": SHOP}),
    "new-broker": ("new-broker", {"namespace": SHOP}),
    "new-subscription": ("new-subscription", {"namespace": SHOP}),
    "brokers": ("brokers", {"namespace": SHOP}),
    "broker": (f"brokers/{ORDERS}", {}),
    "subscriptions": ("subscriptions", {"namespace": SHOP}),
    "subscription": (f"subscriptions/{SHOP}/large-orders", {}),
    "dead-letters": ("dead-letters", {"namespace": SHOP}),
    "catalogue": ("catalogue", {"broker": ORDERS}),
    "chunks": ("chunks", {"broker": ORDERS, "filter": 'ce.type == "order.lost"'}),
    "nowhere": ("nowhere", {}),
}
"""The path and query of each."""
OF_A_SHOP: Final = frozenset(
    ["event", "event-dead", "trigger", "trigger-lost", "trigger-yaml", "broker", "subscription"]
)
"""What an empty server does not have."""
RESTED_MS: Final = 700


def grown(shop: Shop) -> None:
    """More of everything, and troubles of every kind."""
    server, to = shop.server, shop.subscriber
    troubled = [(f"warehouse-{number}", 'ce.type == "order.paid"', to.url("down")) for number in range(1, 13)]
    troubled += [("audit", 'ce.type.startsWith("order.")', to.url("audit"))]
    troubled += [("nobody-listens", 'ce.type == "order.paid"', "http://127.0.0.1:9/")]
    for name, cel, uri in troubled:
        rules = {"retry": 1, "backoffDelay": "PT0.2S", "deadLetterSink": {"uri": "http://127.0.0.1:9/"}}
        if name == "audit":
            rules = {"retry": 3, "backoffDelay": "PT0.3S", "deadLetterSink": {"uri": to.url("kept")}}
        spec = {"broker": "orders", "filter": {"expression": cel}, "subscriber": {"uri": uri}, "delivery": rules}
        server.create("triggers", SHOP, name, spec)
    for number in range(30):
        spec = {
            "broker": "orders",
            "filter": {"cel": f'ce.type == "order.paid" && data.shelf == {number}'},
            "subscriber": {"uri": to.url("shelf")},
        }
        server.create("triggers", SHOP, f"shelf-{number:02}", spec)
    server.wait_trigger_ready(SHOP, "shelf-29")
    to.answers["down"] = (503, b'{"error": "the warehouse is closed"}')
    to.answers["audit"] = lambda delivery: (500, b"disk full") if len(delivery.body) % 3 else (200, b"written down")
    for number in range(60):
        data = {"total": 20.0 * number, "tier": ("basic", "gold")[number % 2], "shelf": number % 40}
        data["note"] = "a long word about this order, " * (number % 4)
        shop.publish({"id": f"order-{number:04}-{'c5fe' * 6}", "data": data, "subject": f"orders/{number}"})
    shop.publish({"id": "ord-1b", "type": "order.paid", "data": {"tier": "gold", "total": "many"}})
    time.sleep(12)  # seconds: until the retries have ended, and the history of the overview has a point


def states(shop: Shop, wanted: list[str]) -> Iterator[str]:
    """Brings the server into each state in turn."""
    yield "empty"
    if wanted == ["empty"]:
        return
    filled(shop)
    grown(shop)
    yield "full"
    if "broken" in wanted:
        shop.server.kill()
        yield "broken"


def pictures(consoles: Mapping[str, Console], state: str, name: str, folder: Path) -> Iterator[str]:
    """Takes the picture of a page in every window; gives what is wrong with it."""
    path, query = PAGES[name]
    for console in consoles.values():
        console.go(path, **query)
    next(iter(consoles.values())).page.wait_for_timeout(RESTED_MS)
    for window, console in consoles.items():
        page = console.page
        expect(page.locator("main")).to_be_visible()
        page.screenshot(path=folder / f"{state}-{window}-{name}.png", full_page=True)
        wrong = [f"{one['id']}: {one['nodes'][0]['html'][:160]}" for one in Axe().run(page).response["violations"]]
        wide, inner = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        wrong += [f"{wide} px wide in a window of {inner} px"] if wide > inner else []
        for said in (*wrong, *console.complaints):
            yield f"{state}-{window}-{name}: {said}"
        console.complaints.clear()


def windows(browser: Browser, url: str, stack: ExitStack, options: argparse.Namespace) -> dict[str, Console]:
    """A window of each width and colour, by `WIDTH-COLOUR`."""
    found = {}
    for width in options.widths:
        for colour in options.colours:
            console = stack.enter_context(opened(browser, url))
            console.page.set_viewport_size({"width": width, "height": WIDTHS[width]})
            console.page.emulate_media(color_scheme=colour, reduced_motion="reduce")
            found[f"{width}-{colour}"] = console
    return found


def taken(shop: Shop, browser: Browser, options: argparse.Namespace) -> int:
    """Takes all of them; returns how many things are wrong."""
    wrong = 0
    with ExitStack() as stack:
        consoles = windows(browser, shop.server.url, stack, options)
        for window, console in consoles.items():
            console.page.goto(f"{shop.server.url}/ui/")
            expect(console.page.get_by_label("Token")).to_be_visible()
            console.page.screenshot(path=options.folder / f"empty-{window}-sign-in.png")
            console.sign_in(shop.admin)
        for state in states(shop, options.states):
            if state not in options.states:
                continue
            if state == "broken":  # what the page that was open shows now
                for window, console in consoles.items():
                    expect(console.page.get_by_text("has not answered since")).to_be_visible()
                    console.page.screenshot(path=options.folder / f"broken-{window}-stayed.png", full_page=True)
            for name in options.pages:
                if state == "empty" and name in OF_A_SHOP:
                    continue
                for said in pictures(consoles, state, name, options.folder):
                    print(said)
                    wrong += 1
            if state == "full":
                for console in consoles.values():
                    expect(console.go("overview").get_by_role("region", name="Parts")).to_be_visible()
    return wrong


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, every in (("states", STATES), ("colours", COLOURS), ("pages", tuple(PAGES))):
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), default=list(every))
    parser.add_argument("--widths", type=lambda text: [int(one) for one in text.split(",")], default=list(WIDTHS))
    return parser.parse_args()


def _main() -> int:
    options = _arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault(MATCHER_VARIABLE, "tests.plain_matcher")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-pictures-")))
        shop = stack.enter_context(running(folder, 0))
        browser = launched(stack.enter_context(sync_playwright()))
        wrong = taken(shop, browser, options)
        browser.close()
    print(f"pictures are in {options.folder}" + (f"; {wrong} things are wrong" if wrong else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(_main())
