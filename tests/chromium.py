"""Chromium for tests of web pages, which are skipped if it is not installed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def chromium() -> Iterator[Any]:
    """Runs a browser for as long as the context is open."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: pip install 'edbatch[browser]'"
    )
    with sync_api.sync_playwright() as playwright:
        own = shutil.which("chromium") or shutil.which("google-chrome")
        try:
            found = playwright.chromium.launch(
                executable_path=own, args=["--no-sandbox"]
            )
        except sync_api.Error as error:
            pytest.skip(f"needs Chromium: {str(error).splitlines()[0]}")
        yield found
        found.close()
