"""One server with users and a shop full of objects for all tests of the console, and a browser for each file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.console.browser import Console, launched, opened
from tests.console.shop import Shop, filled, running
from tests.support import times

MANY = times(1_000, 10_000)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with running(tmp_path_factory.mktemp("console"), MANY) as found:
        filled(found)
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for longer: while Playwright is there, its event loop runs in this thread, and nobody can run another one."""
    with sync_playwright() as playwright:
        running = launched(playwright)
        yield running
        running.close()


@pytest.fixture
def visitor(shop: Shop, browser: Browser) -> Iterator[Console]:
    """The console, where nobody has signed in yet."""
    with opened(browser, shop.server.url) as console:
        yield console


@pytest.fixture(scope="module")
def window(shop: Shop, browser: Browser) -> Iterator[Console]:
    """One for all tests that may do everything: to load the console is more work than most of them are."""
    with opened(browser, shop.server.url) as console:
        console.sign_in(shop.admin)
        yield console


@pytest.fixture
def console(window: Console) -> Iterator[Console]:
    """The console of one who may do everything."""
    yield window
    window.check()
