"""What pytest knows before it collects; the fixtures are in `tiny/fixtures.py`."""

import tiny  # noqa: F401 - first: libraries stay offline and on one thread

# isort: split
import browsing
import pytest


def pytest_configure(config: pytest.Config) -> None:
    """The process that only hands tests to others (`pytest -n`) needs no fixtures, whose imports take seconds."""
    hands_on = bool(config.getoption("numprocesses", default=None))
    if not hands_on or hasattr(config, "workerinput"):
        config.pluginmanager.import_plugin("tiny.fixtures")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Nobody should take a page for tested that no browser has opened."""
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum("NO BROWSER" in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_line(f"{count} tests SKIPPED. {browsing.NONE}", red=True, bold=True)
