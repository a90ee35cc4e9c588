"""Chromium, and the console in it: signs in, goes to pages, measures them and keeps pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Playwright, expect

from tests.support import DEPTH, REPOSITORY, executable

PICTURES = REPOSITORY / "build" / "screenshots"
PATIENCE_MS = 60_000
COLOURS = ("light", "dark")
"""Those of a page; the gate looks at each page in one of them."""
_ARGUMENTS = (
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_FRAMES = """seconds => new Promise(done => {
  const gaps = []; let last = performance.now(); const end = last + 1000 * seconds;
  const frame = now => { gaps.push(now - last); last = now; now < end ? requestAnimationFrame(frame) : done(gaps) };
  requestAnimationFrame(frame);
})"""

expect.set_options(timeout=PATIENCE_MS)


def launched(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(executable_path=executable("chromium"), args=list(_ARGUMENTS))


@dataclass(frozen=True)
class Frames:
    """How long frames took, in milliseconds."""

    median: float
    longest: float


@dataclass
class Console:
    """A page of the console, and what the browser complained of."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def sign_in(self, token: str) -> None:
        self.page.goto(f"{self.url}/ui/")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.get_by_role("navigation", name="Pages")).to_be_visible()

    def go(self, path: str, **query: object) -> Page:
        """To a page, without loading the console anew: the token is in its memory."""
        fragment = f"#/{path}" + (f"?{urlencode(query)}" if query else "")
        self.page.evaluate("fragment => { location.hash = fragment }", fragment)
        return self.page

    def title(self, text: str) -> None:
        expect(self.page.get_by_role("heading", level=1)).to_contain_text(text)

    def looks_right(self, name: str) -> None:
        """The page in both colours: no violation of accessibility, nothing that does not fit, and a picture is kept."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        for colour in COLOURS if DEPTH != "gate" else (COLOURS[len(name) % 2],):
            self.page.emulate_media(color_scheme=colour)
            expect(self.page.locator("main")).to_be_visible()
            found = Axe().run(self.page).response["violations"]
            said = [(one["id"], [node["html"][:160] for node in one["nodes"]]) for one in found]
            assert not said, f"{name}, {colour}: {said}"
            wide = self.page.evaluate("document.documentElement.scrollWidth > innerWidth")
            assert not wide, f"{name} is wider than the window"
            self.page.screenshot(path=PICTURES / f"{name}-{colour}.png")

    def check(self) -> None:
        """The browser had nothing to complain of since it was asked before."""
        complaints, self.complaints[:] = list(self.complaints), []
        assert not complaints, complaints

    def frames(self, seconds: float) -> Frames:
        """Frames of the next seconds."""
        gaps = sorted(self.page.evaluate(_FRAMES, seconds))
        return Frames(gaps[len(gaps) // 2], gaps[-1])


@contextmanager
def opened(browser: Browser, url: str) -> Iterator[Console]:
    """A window of its own. No script of a page may fail, and nothing may be loaded that the policy forbids."""
    # A colour on its way to another one is not the colour that a person reads.
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    console = Console(page, url)

    def note(message: Any) -> None:
        # The browser's own line for an answer of 4xx; the page shows it.
        if message.type == "error" and "Failed to load resource" not in message.text:
            console.complaints.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: console.complaints.append(str(error)))
    page.on("dialog", lambda dialog: console.complaints.append(f"a dialog: {dialog.message}"))
    try:
        yield console
    finally:
        context.close()
    console.check()
