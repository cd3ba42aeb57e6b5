"""Word similarity: the formats of the sets, damaged lines, correlations by layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from tiny import homes, toys
from tiny.homes import tokens

from groundling.core.errors import InputError
from groundling.studies.knowledge.commands import PROBE_WORDS, ProbeWordsConfig
from groundling.studies.knowledge.probing_modes import WordStates
from groundling.studies.knowledge.word_similarity import (
    WordPairs,
    cosines_by_layer,
    format_words,
    read_word_pairs,
)

PAIRS = [("dog", "cat"), ("cat", "red"), ("dog", "ball")]
FORMATS = {
    "MEN_dataset_natural_form_full": "dog cat 50.000000\ncat red 9.0\ndog ball 0.5\n",
    "MEN_dataset_lemma_form_full": "dog-n cat-n 50.0\ncat-n red-j 9.0\ndog-n ball-n 0.5\n",
    "SimLex-999.txt": "word1\tword2\tPOS\tSimLex999\tconc(w1)\n"
    "dog\tcat\tN\t50\t1\ncat\tred\tA\t9\t2\ndog\tball\tN\t0.5\t9\n",
    "combined.csv": "Word 1,Word 2,Human (mean)\ndog,cat,50.00\ncat,red,9\ndog,ball,.5\n",
    "combined.tab": "Word 1\tWord 2\tHuman (mean)\ndog\tcat\t50.00\ncat\tred\t9\ndog\tball\t.5\n",
    "SimVerb-3500.txt": "dog\tcat\tV\t50\tNONE\ncat\tred\tV\t9\tNONE\ndog\tball\tV\t0.5\tSYNONYMS\n",
    "EN-RG-65.txt": "dog\tcat\t50\ncat\tred\t9\ndog\tball\t0.5\n",
    "rg65.csv": "dog;cat;50\ncat;red;9\ndog;ball;0.5\n",
    "rg-65.csv": ",word1,word2,similarity\n0,dog,cat,50\n1,cat,red,9\n2,dog,ball,0.5\n",
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_pairs(tmp_path: Path, name: str) -> None:
    found = read_word_pairs(homes.put(tmp_path / name, FORMATS[name]))
    assert found.pairs == PAIRS and found.ratings.tolist() == [50, 9, 0.5]
    assert found.name == Path(name).stem


def test_the_rating_is_the_first_number(tmp_path: Path) -> None:
    rows = [("dog", "cat", 7.5, 1.25, 9), ("dog", "bat", 3.5, 0.5, 4), ("cat", "bat", 1.5, 2, 0)]
    found = read_word_pairs(homes.put(tmp_path / "w.txt", homes.table(*rows)))
    assert found.ratings.tolist() == [7.5, 3.5, 1.5]


def test_the_number_of_pairs_names_the_set(tmp_path: Path) -> None:
    text = "".join(f"a{number} b {number}\n" for number in range(65))
    assert read_word_pairs(homes.put(tmp_path / "w.txt", text)).name == "rg-65"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dog;cat;1\ndog;bat;x\n", "line 2: not two words and a rating"),
        ("dog;cat;1\ndog;bat;inf\n", "line 2: expected 3 columns: two words and a number"),
        ("dog;cat;1\ndog;bat\n", "line 2: not two words and a rating"),
        ("dog;cat;1\ndog;bat;2;3\n", "line 2: expected 3 columns"),
        ("dog;cat;1\n;bat;2\n", "line 2: expected 3 columns: two words and a number"),
        ("dog;cat;1\ndog;bat;2\n", "2 pairs; a correlation needs three"),
        ("dog;cat;1\ndog;bat;1\ncat;bat;1\n", "3 pairs; a correlation needs three, not all rated"),
        ("left;right;how much\ndog;cat;1\n", "line 1: not two words and a rating"),
        ("dog cat\n", "line 1: not two words and a rating"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = homes.put(tmp_path / "pairs.txt", text)
    with pytest.raises(InputError) as caught:
        read_word_pairs(path)
    assert message in str(caught.value) and str(path) in str(caught.value)
    with pytest.raises(InputError, match="Is a directory"):
        read_word_pairs(tmp_path)


def test_cosines_by_hand() -> None:
    # Cosines of the first layer: 1, 0, -1; of the second: 0, 0.6, 1. Ratings rise as in neither's reverse.
    right, up, left = [1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]
    states = {"a": [right, right], "b": [right, up], "c": [up, [0.6, 0.8]], "d": [left, right]}
    found = WordStates({word: np.array(own) for word, own in states.items()}, {}, [], ["0", "1"])
    pairs = WordPairs("mine", [("a", "b"), ("a", "c"), ("a", "d")], np.array([9.0, 4.0, 1.0]))
    expected = np.array([[1, 0], [0, 0.6], [-1, 1]])
    np.testing.assert_allclose(cosines_by_layer(pairs, found), expected, atol=1e-12)


def test_the_command_reports_layers(tmp_path: Path, student: Path) -> None:
    one = homes.put(tmp_path / "one.txt", FORMATS["EN-RG-65.txt"])
    other = homes.put(tmp_path / "other.txt", "Cat;dog;1\nball;red;2\nred;dog;3\n")
    settings = ProbeWordsConfig(model=str(student), data=(str(one), str(other)))
    result = PROBE_WORDS(settings, tmp_path / "run")
    layers = result["sets"]["one"]["layers"]
    assert list(layers) == ["0", "1", "2"]
    assert result["sets"]["one"]["best"]["spearman"] == max(layers.values())
    assert result["sets"]["one"]["last"] == {"layer": "2", "spearman": layers["2"]}
    rows = homes.answers(tmp_path / "run/pairs.jsonl")
    own = [(row["cosine"], row["rating"]) for row in rows if row["set"] == "one"]
    assert len(rows) == 6 and rows[0]["words"] == ["dog", "cat"]
    assert spearmanr(own).statistic == pytest.approx(layers["2"])
    assert "other" in format_words(result)
    twice = homes.put(tmp_path / "again" / "one.txt", FORMATS["EN-RG-65.txt"])
    with pytest.raises(InputError, match="two files hold one"):
        PROBE_WORDS(
            ProbeWordsConfig(model=str(student), data=(str(one), str(twice))), tmp_path / "t"
        )


def test_a_clip_like_tower_has_one_layer(tmp_path: Path) -> None:
    clip = homes.home(tmp_path / "clip", toys.clip(tokens()), tokens())
    pairs = homes.put(tmp_path / "one.txt", FORMATS["EN-RG-65.txt"])
    result = PROBE_WORDS(ProbeWordsConfig(model=str(clip), data=(str(pairs),)), tmp_path / "run")
    assert list(result["sets"]["one"]["layers"]) == ["output"]
