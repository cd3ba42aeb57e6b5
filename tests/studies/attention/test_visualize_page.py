"""The page of `groundling visualize` in a real browser: selection, shades and text, without network access."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import browsing
import numpy as np
import pytest
from tiny import homes

import groundling
from groundling.core.batch import Example
from groundling.studies.attention.page import AttentionPage, ImageTextPair
from groundling.studies.attention.page.views import (
    LayerView,
    ModelAnswer,
    ModelAttentionView,
    RegionBoxesView,
    WordView,
)

NASTY = "</script><b>bold</b><img src=x onerror=alert(1)>"
LONG = "w" * 300
BOXES = np.array([[0, 0, 1, 1], [0, 0, 0.5, 0.5], [0.4, 0.2, 0.9, 0.9]])
WORDS = [
    WordView("[CLS]"),
    WordView("red", 0),
    WordView("dog", 1),
    WordView(NASTY, 2),
    WordView(LONG, 3),
]
"""The first box is the whole image."""
EVEN = 1 / 8
"""Even share with five words and three boxes."""
TOKENS = [WordView("[CLS]"), WordView("the"), *WORDS[1:4]]
"""The same words for another model with other tokens."""


def weights(layer: int, head: int, words: int = 5) -> np.ndarray:
    """Attention (rows, columns) among words and 3 boxes, different everywhere; rows sum to 1."""
    rng = np.random.default_rng(10 * layer + head)
    drawn: np.ndarray = rng.dirichlet(np.ones(words + 3), words + 3)
    return drawn


def view(words: list[WordView], layers: int = 2) -> ModelAttentionView:
    count = len(words)
    made = []
    for layer in range(layers):
        every = np.stack([weights(layer, head, count) for head in range(2)])
        sides = {"words": slice(count), "boxes": slice(count, None)}
        pairs = (("words", "words"), ("words", "boxes"), ("boxes", "words"))
        blocks = {(a, b): every[:, sides[a], sides[b]] for a, b in pairs}
        even = {"words": np.full(count, EVEN), "boxes": np.full(3, EVEN)}
        made.append(LayerView("self", layer, 2, blocks, even))
    whole = np.array([True, False, False])
    return ModelAttentionView(words, RegionBoxesView(BOXES, whole, ("", "dog", "ball")), made)


def even_view() -> ModelAttentionView:
    """Five words and a grid of nine boxes, with nearly even attention."""
    even = 1 / 14
    block = np.full((1, 5, 14), even)
    block[0, 1, 5:] = [0.081, 0.06, *[0.073] * 7]
    blocks = {("words", "words"): block[..., :5], ("words", "boxes"): block[..., 5:]}
    thirds = np.arange(3) / 3
    boxes = np.array([[x, y, x + 1 / 3, y + 1 / 3] for y in thirds for x in thirds])
    layer = LayerView("self", 0, 1, blocks, {"words": np.full(5, even)})
    answer = ModelAnswer("Answer", [("<b>no</b>", 0.73), ("yes", 0.27)])
    return ModelAttentionView(
        WORDS, RegionBoxesView(boxes, np.zeros(9, bool)), [layer], answer=answer
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One pair and one model; two pairs and two models."""
    folder = tmp_path_factory.mktemp("page")
    photo = homes.picture(folder / "photo.jpg", size=(900, 600))
    alone = AttentionPage([("mine", [NASTY])])
    example = Example("own", f"red dog {NASTY} {LONG}")
    gold = np.array([[0.4, 0.2, 0.9, 0.9]])
    alone.add(ImageTextPair(example, photo, gold), [view(WORDS)])
    alone.save(folder / "alone.html")
    nearly = AttentionPage([("grid", [])])
    nearly.add(ImageTextPair(example, photo), [even_view()])
    nearly.save(folder / "even.html")
    both = AttentionPage([("a", []), ("b", [])])
    for _ in range(2):
        both.add(ImageTextPair(example, photo), [view(WORDS), view(TOKENS, 3)])
    both.save(folder / "both.html")
    made = groundling.visualize(
        [homes.vilt(folder / "vilt"), homes.seeing_clip(folder / "clip")],
        homes.noise(folder / "noise.png", (70, 40)),
        "a red dog",
        cpu=True,
    )
    made.save(folder / "patches.html")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    if browsing.found() is None:
        pytest.skip(browsing.NONE)
    with browsing.opened() as session:
        yield session


class Page:
    """A page with the queries of the tests."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.browser = browser
        browser.get(path.as_uri())

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.browser.find_elements("css selector", selector)
        return found

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(f"return {script}", *arguments)

    def shares(self, selector: str) -> list[float]:
        """The share by which every word, box or head is shaded."""
        script = "[...document.querySelectorAll(arguments[0])].map((one) => one.dataset.share)"
        return [float(share) if share else np.nan for share in self.run(script, selector)]

    def press(self, *keys: str) -> None:
        """Press keys on the focused element."""
        for key in keys:
            self.browser.switch_to.active_element.send_keys(key)

    def said(self) -> str:
        return str(self.all(".said")[0].text)

    def tell(self, command: str, **values: Any) -> None:
        self.browser.execute_cdp_cmd(f"Emulation.{command}", values)

    def wide(self, pixels: int) -> None:
        size = {"width": pixels, "height": 800, "deviceScaleFactor": 1, "mobile": pixels < 500}
        self.tell("setDeviceMetricsOverride", **size)

    def in_colours(self, scheme: str) -> None:
        self.tell("setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


@pytest.fixture
def alone(browser: Any, place: Path) -> Page:
    return Page(browser, place / "alone.html")


@pytest.fixture
def both(browser: Any, place: Path) -> Page:
    return Page(browser, place / "both.html")


WORD = ".words:not(.wholes) .word"
RIGHT, LEFT, DOWN, END, ESCAPE = "\ue014", "\ue012", "\ue015", "\ue010", "\ue00c"
"""Key codes of WebDriver."""


def near(expected: Any) -> Any:
    return pytest.approx(list(expected), abs=0.003)


def test_clicking_a_word_shades_the_boxes(alone: Page) -> None:
    words = alone.all(".word:not(.wholes .word)")
    shown = [word.get_attribute("textContent").strip()[:3] for word in words[:3]]
    assert shown == ["[CL", "red", "dog"]
    for number in (1, 2):
        words[number].click()
        expected = weights(1, 0)[number]  # the head that attends most to boxes is shown first
        assert alone.shares(".boxes .box") == near(expected[6:])
        assert alone.shares(".wholes .word") == near(expected[5:6])
        assert alone.shares(".words:not(.wholes) .word") == near(expected[:5])
    assert words[2].get_attribute("aria-pressed") == "true"
    told = f"{100 * weights(1, 0)[2][7]:.0f}"
    assert "“dog” in layer 1, head 0" in alone.said()
    assert f"box 1 (ball) {told} %" in alone.said()
    ratios = weights(1, 0)[2][6:] / EVEN
    most = max(2, *ratios)
    shades = [(ratio - 1) / (most - 1) if ratio > 1 else 1 - ratio for ratio in ratios]
    assert shaded(alone, ".boxes .box") == near(shades)
    assert [one > 1 for one in ratios] == is_more(alone, ".boxes .box")


def shaded(page: Page, selector: str) -> list[float]:
    """The intensity of each shade, for more or less than even attention."""
    script = "[...document.querySelectorAll(arguments[0])].map((one) => one.style.getPropertyValue('--share'))"
    return [float(shade) for shade in page.run(script, selector)]


def is_more(page: Page, selector: str) -> list[bool]:
    return [
        "less" not in one.get_attribute("class").split() for one in page.all(f"main {selector}")
    ]


def test_nearly_even_attention_has_hardly_a_shade(browser: Any, place: Path) -> None:
    page = Page(browser, place / "even.html")
    page.all(WORD)[1].click()
    assert page.shares(".boxes .box") == near([0.081, 0.06, *[0.073] * 7])
    assert max(shaded(page, ".boxes .box")) < 0.2
    assert is_more(page, ".boxes .box")[:2] == [True, False]
    boxes, words = (one.text for one in page.all(".legend .scale"))
    assert "even 7.1 %" in boxes and "strongest 8.1 % (1.1 × even)" in boxes
    assert "word" in words
    marks = "[...document.querySelectorAll('.legend .bar')].map((one) => one.style.getPropertyValue('--even'))"
    assert page.run(marks) == ["50.0%", "50.0%", "64.3%"], "the last: 9 of 14 places are boxes"
    assert "even would be 64 %, 7.1 % each" in page.said()
    assert "even 64 %" in page.all(".legend")[1].text
    assert "1.1 × even" in page.all(".boxes .box")[0].get_attribute("aria-label")
    assert page.all(".answer")[0].text == "Answer: <b>no</b> (73.0 %); next: yes (27.0 %)."


def test_clicking_a_box_shades_the_words(alone: Page) -> None:
    alone.all(".boxes .box")[1].click()
    assert alone.shares(".words:not(.wholes) .word") == near(weights(1, 0)[7][:5])
    assert "box 1 (ball) in layer 1, head 0" in alone.said()
    alone.press(LEFT)
    assert "box 0 (dog)" in alone.said()
    alone.all(".wholes .word")[0].click()
    assert alone.shares(WORD) == near(weights(1, 0)[5][:5])
    words = alone.all(WORD)
    words[1].click()
    alone.press(RIGHT)
    assert "“dog”" in alone.said()
    alone.press(END)
    assert alone.run("document.activeElement.textContent").startswith("www")
    stops = f"document.querySelectorAll('{WORD}[tabindex=\"0\"]').length"
    assert alone.run(stops) == 1
    alone.press(ESCAPE)
    assert "Select a word or a box" in alone.said()
    assert np.isnan(alone.shares(".boxes .box")).all()
    # Texts stay texts.
    assert words[3].text == NASTY
    assert alone.all(".note")[0].text == NASTY
    assert alone.all("main b, main i, img[src='x']") == [] and len(alone.all(".gold")) == 1


def test_heads_are_chosen_in_the_table_by_keys_and_by_name(alone: Page) -> None:
    alone.all(".words:not(.wholes) .word")[2].click()
    of_heads = [weights(layer, head)[2][6:].sum() for layer in (0, 1) for head in (0, 1)]
    cells = np.array(alone.shares(".heads button")).reshape(2, 3)
    assert list(cells[:, :2].flatten()) == near(of_heads)
    assert list(cells[:, 2]) == near([np.mean(of_heads[:2]), np.mean(of_heads[2:])])
    alone.all(".heads button")[1].click()
    assert "layer 0, head 1" in alone.said()
    alone.press(DOWN)
    assert "layer 1, head 1" in alone.said()
    alone.press(RIGHT)
    mean = (weights(1, 0)[2] + weights(1, 1)[2]) / 2
    assert alone.shares(".boxes .box") == near(mean[6:])
    assert "mean of all heads" in alone.said()
    layer, head = alone.all(".pickers select")
    head.send_keys("1")
    layer.send_keys("0")
    assert "layer 0, head 1" in alone.said()


@pytest.mark.parametrize("pixels", [360, 1600])
def test_nothing_is_wider_than_the_page(pixels: int, place: Path, browser: Any) -> None:
    for name in ("alone", "both", "patches"):
        page = Page(browser, place / f"{name}.html")
        page.wide(pixels)
        edge = "Math.max(...[...document.querySelectorAll('body *')].map((one) => one.getBoundingClientRect().right))"
        assert page.run("innerWidth") == pixels
        assert page.run(edge) <= pixels
        assert page.run("document.documentElement.scrollWidth") <= pixels


def test_dark_and_light(alone: Page) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    dark, light = "rgb(20, 23, 26)", "rgb(255, 255, 255)"
    alone.in_colours("dark")
    assert alone.run(colour) == dark
    toggle = alone.all("#tools button")[-1]
    for scheme, name, expected in (("dark", "light", light), ("light", "dark", dark)):
        alone.in_colours(scheme)
        toggle.click()
        assert (toggle.text, alone.run(colour)) == (f"Colours: {name}", expected)
    toggle.click()
    assert (toggle.text, alone.run(colour)) == ("Colours: system", light)


def test_models_side_by_side_show_the_same_word(both: Page) -> None:
    first, second = both.all(".panel")
    words = second.find_elements("css selector", ".words:not(.wholes) .word")
    words[3].click()  # `dog`, the third word of the other model
    pressed = [one.text.split()[0] for one in both.all('.words .word[aria-pressed="true"]')]
    assert pressed == ["dog", "dog"]
    boxes = both.shares(".boxes .box")
    assert boxes[:2] == near(weights(1, 0)[2][6:])
    # The head that attends most to boxes in the second model, which is another one.
    assert boxes[2:] == near(weights(0, 1)[3][6:])
    first.find_elements("css selector", ".heads button")[4].click()
    assert [said.text.split(": ")[0] for said in both.all(".said")] == [
        "“dog” in layer 1, head 1"
    ] * 2
    assert second.get_attribute("aria-label") == "b"
    both.all("#tools input")[0].click()  # each on its own
    first.find_elements("css selector", ".words:not(.wholes) .word")[1].click()
    assert len(both.all('.words .word[aria-pressed="true"]')) == 1
    both.all("#next")[0].click()
    assert both.run("state.pair") == 1 and both.all("#next")[0].get_attribute("disabled")
    both.all("#previous")[0].click()
    assert both.run("state.pair") == 0
    unnamed = """[...document.querySelectorAll('button, select, input, img, section, [role=group], [role=grid]')]
        .filter((one) => !(one.ariaLabel || one.textContent.trim() || one.alt || one.closest('label')))
        .map((one) => one.outerHTML)"""
    assert both.run(unnamed) == [] and both.all('[role="status"]')


# -- patches -----------------------------------------------------------------------------------------------------------
class PagePanel(NamedTuple):
    """A model's part of a page."""

    page: Page
    element: Any

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.element.find_elements("css selector", selector)
        return found

    def shares(self, selector: str) -> list[float]:
        script = "[...arguments[0].querySelectorAll(arguments[1])].map((one) => one.dataset.share)"
        return [float(one or "nan") for one in self.page.run(script, self.element, selector)]

    @property
    def said(self) -> str:
        return str(self.all(".said")[0].text)

    def block(self, number: int, layer: int, rows: str, columns: str) -> np.ndarray:
        """The page's attention, mean over heads, (rows, columns)."""
        script = """((number, layer, rows, columns) => {
            const { view } = panels[number];
            const all = [...view[rows].keys()];
            return all.map((index) => [...given(view, view.layers[layer], MEAN, { kind: rows, index }, columns)]);
        })(...arguments)"""
        return np.array(self.page.run(script, number, layer, rows, columns))


def panels_of(page: Page) -> list[PagePanel]:
    return [PagePanel(page, one) for one in page.all(".panel")]


def test_words_and_patches_shade_patches(browser: Any, place: Path) -> None:
    vilt, clip = panels_of(Page(browser, place / "patches.html"))
    head = vilt.all(".heads button")[2]
    head.click()  # the mean of the first layer
    assert len(vilt.all(".box")) == 18 and len(clip.all(".box")) == 4
    vilt.all(WORD)[2].click()
    expected = vilt.block(0, 0, "words", "boxes")[2]
    assert vilt.shares(".box") == near(expected[1:])
    assert vilt.shares(".wholes .word") == near(expected[:1])
    assert " to patches (patch " in vilt.said and "to the image’s class token" in vilt.said
    vilt.all(".box")[8].click()
    assert vilt.shares(".box") == near(vilt.block(0, 0, "boxes", "boxes")[9][1:])
    assert vilt.shares(WORD) == near(vilt.block(0, 0, "boxes", "words")[9])
    assert "patch 8 in layer 0" in vilt.said
    vilt.page.press(DOWN)
    assert "patch 14 in layer 0" in vilt.said, "one row of six further down"
    vilt.page.press(LEFT)
    assert "patch 13 in layer 0" in vilt.said
    # The other model's patch around its centre, if there is one: CLIP reads the centre crop.
    assert "patch 2 in layer image 0" in clip.said
    vilt.page.press(LEFT)
    assert "Select a word or a patch" in clip.said
    vilt.all(".wholes .word")[0].click()
    assert vilt.shares(".box") == near(vilt.block(0, 0, "boxes", "boxes")[0][1:])
    # Both models have a class token, so it is selected in both.
    assert clip.shares(".box") == near(clip.block(1, 0, "boxes", "boxes")[0][1:])


def test_towers_that_never_meet_show_their_own_layers(browser: Any, place: Path) -> None:
    _, clip = panels_of(Page(browser, place / "patches.html"))
    assert "separate towers" in clip.all(".note")[0].text
    clip.all(WORD)[2].click()
    assert "“red” in layer text 0" in clip.said
    assert clip.shares(WORD) == near(clip.block(1, 2, "words", "words")[2])
    assert np.isnan(clip.shares(".box")).all()
    clip.all(".box")[3].click()
    assert "patch 3 in layer image 0" in clip.said
    assert clip.shares(".box") == near(clip.block(1, 0, "boxes", "boxes")[4][1:])
    assert np.isnan(clip.shares(WORD)).all()
    rows = [one.text for one in clip.all(".heads tbody th")]
    assert rows == ["image 0", "image 1", "text 0", "text 1"]
    cells = clip.shares(".heads button")
    patches = clip.block(1, 0, "boxes", "boxes")[4][1:]
    assert cells[2] == pytest.approx(patches.sum(), abs=0.003) and cells[8] == 0


def test_no_request_leaves_the_page_and_nothing_complains(browser: Any) -> None:
    """No request by any of the tests above."""
    requests = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = {
        one["params"]["request"]["url"].partition(":")[0]
        for one in requests
        if one["method"] == "Network.requestWillBeSent"
    }
    assert urls == {"file", "data"}
    assert browser.get_log("browser") == []
