"""A real browser, the one that this machine has: nothing is downloaded, no driver is ours."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVERS = ("chromedriver", "/usr/lib/chromium-browser/chromedriver")
NONE = (
    "NO BROWSER: the pages of `visualize`, `verdict` and `quickstart` were not exercised; on Debian and Ubuntu: "
    "apt-get install chromium chromium-driver"
)
"""Why tests were skipped, which the end of a run says loudly."""
FLAGS = ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")


def found() -> tuple[str, str] | None:
    """The browser and its driver; None if either is missing."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = next(filter(None, map(shutil.which, DRIVERS)), None)
    return (browser, driver) if browser and driver else None


@contextmanager
def opened() -> Iterator[Any]:
    """A browser without a window, whose requests and complaints are recorded."""
    # Imported late: every process of the tests reads this module.
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    browser, driver = found()
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in FLAGS:
        options.add_argument(flag)
    if (
        os.geteuid() == 0
    ):  # Chromium's sandbox refuses to work for root, as whom containers run tests
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    session = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield session
    finally:
        session.quit()
