"""Pages of `verdict`, `quickstart` and `report` in a real browser, on a telephone and a large screen, light or dark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browsing
import pytest
from PIL import Image
from tiny.results import ROWS, both, full, judge_folders, write_runs, write_training

from groundling.command_line import write_run_report
from groundling.runs.folder import write_json
from groundling.stats.verdict import SeedRuns
from groundling.studies.bench.quickstart import write_report
from groundling.studies.bench.report import NO_PROBE

NASTY = "<b>arm</b> & $x$ <script>alert(1)</script>"
LONG = "an-arm-" + 12 * "with-a-long-name-"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A verdict on names that no page must trip over, and two metrics."""
    folder = tmp_path_factory.mktemp("judged")
    groups = {"BERT": folder / "a", NASTY: folder / "b", LONG: folder / "c"}
    for gain, place in zip((0.0, 0.1, 0.0), groups.values(), strict=True):
        for task, metric in (("glue/rte", "accuracy"), ("readability", "rmse")):
            made: SeedRuns = both(gain)[1]
            write_runs(place, made, task, metric)
    judge_folders(groups, folder / "out", lambda _: None, published={"BERT": {"glue/rte": 66.43}})
    return folder / "out" / "verdict.html"


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quickstart's page on numbers that nobody computed."""
    folder = tmp_path_factory.mktemp("quick")
    (folder / "world" / "images").mkdir(parents=True)
    images = [{"id": number, "file_name": f"{number}.png"} for number in range(8)]
    notes = [{"image_id": number % 8, "caption": f"{NASTY} {number}"} for number in range(16)]
    for image in images:
        Image.new("RGB", (32, 32), "red").save(folder / "world/images" / str(image["file_name"]))
    content = {"images": images, "annotations": notes}
    (folder / "world" / "captions_train.json").write_text(json.dumps(content))
    write_json(
        folder / "config.json", {"versions": {"groundling": "1.2"}, "commit": "0123456789abcdef"}
    )
    write_report(folder, full())
    return folder / "report.html"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run and its control, with names that no page must trip over."""
    folder = tmp_path_factory.mktemp("trained")
    control = write_training(folder / "control", [3.0, 2.9], arm=NASTY)
    write_run_report(write_training(folder / "run", [3.0, 1.5], arm=LONG), control)
    return folder / "run" / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if browsing.found() is None:
        pytest.skip(browsing.NONE)
    with browsing.opened() as session:
        yield session


def shown(browser: Any, path: Path, pixels: int, scheme: str = "light") -> Any:
    """A function that asks the page in a window of this width."""
    size = {"width": pixels, "height": 800, "deviceScaleFactor": 1, "mobile": pixels < 500}
    colours = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", colours)
    browser.get(path.as_uri())
    return lambda script: browser.execute_script(f"return {script}")


EVERY = "[...document.querySelectorAll('body *')].filter((one) => !one.closest('.wide > *'))"
"""Elements of the page, without what scrolls: the contents of tables and figures."""
CUT = (
    f"{EVERY}.filter((one) => one.className != 'wide' && one.clientWidth"
    " && one.scrollWidth > one.clientWidth + 1).map((one) => one.outerHTML)"
)
"""Elements whose contents are wider than they are."""


@pytest.mark.parametrize("name", ["judged", "quick", "trained"])
@pytest.mark.parametrize("pixels", [360, 1600])
def test_nothing_is_wider_than_the_page(name, pixels, browser, request):
    page = shown(browser, request.getfixturevalue(name), pixels)
    boxes = f"{EVERY}.map((one) => one.getBoundingClientRect())"
    assert page("innerWidth") == pixels
    assert page(f"Math.max(...{boxes}.map((one) => one.right))") <= pixels
    assert page(f"Math.min(...{boxes}.map((one) => one.left))") >= 0
    assert page("document.documentElement.scrollWidth") <= pixels
    assert page(CUT) == []
    assert page("document.querySelectorAll('.wide > svg').length") == {"judged": 2, "quick": 1}.get(
        name, 0
    )
    loose = (
        "[...document.querySelectorAll('table, svg')].filter((one) => !one.closest('.wide')).length"
    )
    assert page(loose) == 0


@pytest.mark.parametrize("name", ["judged", "quick", "trained"])
def test_ink_is_readable_in_light_and_dark(name, browser, request):
    ink = "getComputedStyle(document.querySelector('svg')).fill"
    paper = "getComputedStyle(document.body).backgroundColor"
    seen = {}
    for scheme in ("light", "dark"):
        page = shown(browser, request.getfixturevalue(name), 1600, scheme)
        seen[scheme] = (page(ink), page(paper))
    assert seen["light"] == ("rgb(28, 33, 38)", "rgb(255, 255, 255)")
    assert seen["dark"] == ("rgb(232, 234, 237)", "rgb(20, 23, 26)")


def test_a_verdict_says_what_was_compared(judged: Path, browser: Any) -> None:
    page = shown(browser, judged, 1600)
    text = page("document.body.innerText")
    assert "66.43" in text
    assert "277 examples, 5 seeds" in page(
        "document.querySelector('svg').outerHTML + document.body.innerHTML"
    )
    assert text.index("against BERT on glue/rte") < text.index(
        "Differences"
    )  # sentences come first
    terms = page("[...document.querySelectorAll('dt')].map((one) => one.textContent)")
    assert {"95 % interval", "permutation p", "wins"} <= set(terms)


def test_a_quickstart_has_a_row_for_each_arm(quick: Path, browser: Any) -> None:
    page = shown(browser, quick, 1600)
    tables = page(
        "[...document.querySelectorAll('table')].map((one) => [...one.rows].map((row) => row.innerText))"
    )
    assert len(tables[0]) == 3 + len(ROWS)  # the heading, guessing and the noise
    assert NO_PROBE in tables[0][2] and "0.81" in page("document.body.innerText")
    captions = page("[...document.querySelectorAll('figcaption')].map((one) => one.innerText)")
    assert captions[0] == f"{NASTY} 0\n{NASTY} 8"
    below = """[...document.querySelectorAll('figure')].every((one) => one.lastElementChild.getBoundingClientRect().top
        >= one.firstElementChild.getBoundingClientRect().bottom)"""
    assert page(below)


def test_texts_stay_texts_and_nothing_is_loaded(
    judged: Path, quick: Path, trained: Path, browser: Any
) -> None:
    for path in (judged, quick, trained):
        page = shown(browser, path, 1600)
        assert page("document.querySelectorAll('body b, script').length") == 0
        assert NASTY in page("document.body.innerText")
    requests = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [
        one["params"]["request"]["url"]
        for one in requests
        if one["method"] == "Network.requestWillBeSent"
    ]
    assert {url.partition(":")[0] for url in sent} == {"file", "data"}
    assert browser.get_log("browser") == []
