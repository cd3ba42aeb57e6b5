"""Words of the project's former private language stay out of code, flags, recipes and documents."""

import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("groundling", "tests", "docs", "recipes", "benchmarks", "examples")
READ = {".py", ".pyi", ".md", ".toml", ".html", ".js", ".css", ".ipynb", ".yml"}

NAMES = {
    *("Taught", "Kept", "Itself", "Told", "Asked", "Looked", "Seen", "Sight", "Seeing", "Shelf"),
    *("Classroom", "Doubt", "Given", "Wanted", "Exam", "Feed", "Join", "Kind", "Part"),
}
"""Names of classes and types that say nothing of what they are."""
WORDS = re.compile(r"(?<![A-Za-z])pieces?(?![a-z])", re.IGNORECASE)
"""The field says token; SentencePiece and WordPiece keep their names."""
FLAGS = (
    *("held", "called", "at-once", "also", "horizon", "head-share", "raw-first", "other-regions"),
    *(
        "most-regions",
        "most-examples",
        "most-pairs",
        "max-texts",
        "blind",
        "join",
        "beside",
        "keep",
    ),
)
FLAG = re.compile(rf"(?<![\w-])--(?:[a-z]+\.)?(?:no-)?(?:{'|'.join(FLAGS)})(?![\w-])")
COMMAND = re.compile(r"\bgroundling (?:teach|ask|look|data world|data tasks)\b")


def files() -> list[Path]:
    """Everything that people read or write by hand; this file lists the words, so it is not read."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    return sorted(path for path in found if path.suffix in READ and path != Path(__file__))


@pytest.mark.parametrize("pattern", [WORDS, FLAG, COMMAND], ids=["words", "flags", "commands"])
def test_retired_words_are_gone(pattern: re.Pattern[str]) -> None:
    found = []
    for path in files():
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            found += [f"{path.relative_to(ROOT)}:{number}: {hit}" for hit in pattern.findall(line)]
    assert found == []


def test_retired_names_are_gone() -> None:
    found = []
    for path in files():
        if path.suffix == ".py":
            with path.open(encoding="utf-8") as stream:
                for token in tokenize.generate_tokens(stream.readline):
                    if token.type == tokenize.NAME and token.string in NAMES:
                        found.append(f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}")
    assert found == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (WORDS, "its pieces"),
        (WORDS, "dropped_pieces"),
        (WORDS, "a Piece"),
        (FLAG, "pass --held FILES"),
        (FLAG, "--adapt.max-texts 4"),
        (FLAG, "`--no-blind`"),
        (COMMAND, "groundling teach --captions c.tsv"),
    ],
)
def test_a_retired_word_is_seen(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)


@pytest.mark.parametrize("text", ["SentencePiece", "--keep-best", "--held-out", "masterpieces"])
def test_other_words_are_not(text: str) -> None:
    assert not any(pattern.search(text) for pattern in (WORDS, FLAG, COMMAND))
