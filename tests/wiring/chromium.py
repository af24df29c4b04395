"""A real Chromium: Debian's package, installed where it is missing. Playwright drives it and brings no browser of its own."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Dialog, Page, expect, sync_playwright

from tests.wiring.debian import install

WAIT_MS = 10_000


def program() -> str:
    """The path of the browser."""
    if shutil.which("chromium") is None:
        install("chromium")
    found = shutil.which("chromium")
    assert found, "apt has installed chromium, but there is no such program"
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program())
        yield browser
        browser.close()


class Tab:
    """A page in a context of its own, and whatever it said that nobody should hear: errors, dialogs, requests to elsewhere.

    The browser says of each reply that is an error that it failed; a test that provokes one names it by ``allow``."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self._context = browser.new_context(base_url=url, **options)
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.wrong: list[str] = []
        self._allowed: tuple[str, ...] = ()
        self.page.on("console", lambda said: self._tell(said.text) if said.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda fault: self._tell(f"uncaught: {fault}"))
        self.page.on("dialog", self._refuse)
        self.page.on("request", lambda asked: None if asked.url.startswith(url) else self._tell(f"asked {asked.url}"))

    def allow(self, *parts: str) -> None:
        self._allowed += parts

    def _refuse(self, dialog: Dialog) -> None:
        self._tell(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _tell(self, text: str) -> None:
        self.wrong.append(text)

    def close(self) -> None:
        self._context.close()
        left = [text for text in self.wrong if not any(part in text for part in self._allowed)]
        assert left == []
