"""Ratings of words and of pairs of words: the releases' tables, damaged lines, predictions and correlations."""

from __future__ import annotations

from pathlib import Path

import documents
import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler
from tiny import homes, toys
from tiny.homes import tokens

from groundling.core.errors import InputError
from groundling.studies.knowledge.commands import PROBE_WORDS, ProbeWordsConfig
from groundling.studies.knowledge.probe_facts import PENALTIES, assign_folds
from groundling.studies.knowledge.probing_modes import WordStates, word_states
from groundling.studies.knowledge.word_similarity import (
    WordPairs,
    WordRatings,
    cosines_by_layer,
    format_words,
    predict_ratings,
    ratings_layout,
    read_word_pairs,
    read_word_ratings,
)

WORDS = [f"{one}{other}" for one in "abcdef" for other in "uvwxyz"]


def lancaster(words: list[str], start: int = 0) -> str:
    rows = [f"{word.upper()},{n % 5 + 0.5},0,{n % 7},x" for n, word in enumerate(words, start)]
    return "\n".join(["Word,Auditory.mean,Auditory.SD,Visual.mean,Dominant.perceptual", *rows, ""])


def things(words: list[str]) -> str:
    header = "Word\tuniqueID\tproperty_lives_mean\tproperty_lives_SD\tsize_mean\twork_time_mean"
    rows = [f"{word}\t{word}1\t{n % 5}\t1\t{n % 7}\t9" for n, word in enumerate(words)]
    return "\n".join([header, *rows, ""])


def glasgow(words: list[str]) -> str:
    rows = [f"{word},{len(word)},{n % 5},1,33,{n % 7},1,33" for n, word in enumerate(words)]
    return "\n".join(["Words,Length,AROU,,,IMAG,,", ",,M,SD,N,M,SD,N", *rows, ""])


def read(path: Path) -> WordRatings:
    layout = ratings_layout(path)
    assert layout is not None
    return read_word_ratings(path, layout)


@pytest.mark.parametrize(
    ("name", "text", "dimensions", "other"),
    [
        ("lancaster", lancaster(WORDS), ("visual", "auditory"), 0.5),
        ("things", things(WORDS), ("size", "lives"), 0),
        ("glasgow", glasgow(WORDS), ("imag", "arou"), 0),
    ],
)
def test_every_release_gives_its_words(tmp_path, name, text, dimensions, other):
    found = read(homes.put(tmp_path / f"norms.{'tsv' if name == 'things' else 'csv'}", text))
    assert (found.name, found.words, found.dimensions) == (name, WORDS, dimensions)
    assert found.ratings[:, 0].tolist() == [n % 7 for n in range(36)]
    assert found.ratings[:, 1].tolist() == [n % 5 + other for n in range(36)]


def test_words_without_a_rating_or_of_several_concepts_are_left_out(tmp_path: Path) -> None:
    text = things([*WORDS, "owl", "Bat"]).replace("owl1\t1", "owl1\tNA")
    text += "bat\tbat2\t1\t1\t1\t9\nUFO\tufo\t2\t1\t2\t9\n"
    found = read(homes.put(tmp_path / "things.tsv", text))
    assert found.words == [*WORDS, "ufo"]
    assert found.left_out == {"not_rated": 1, "several_concepts": 2}


def test_the_documents_lines_are_read(tmp_path: Path) -> None:
    page = (documents.ROOT / "docs" / "probe.md").read_text()
    (block,) = [one for one in page.split("```text\n") if one.startswith("# lancaster.csv")]
    for part in block.partition("```")[0].strip().removeprefix("# ").split("\n# "):
        name, _, content = part.partition("\n")
        layout = ratings_layout(homes.put(tmp_path / name, content + "\n"))
        assert layout is not None and layout.name == Path(name).stem
        with pytest.raises(InputError, match="1 words; expected 30"):
            read_word_ratings(tmp_path / name, layout)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lancaster(WORDS) + "OWL,high,0,1,x\n", "line 38: not a word and its ratings (ValueError"),
        (lancaster(WORDS) + "OWL,inf,0,1,x\n", "line 38: 'OWL': expected a word that comes once"),
        (lancaster(WORDS) + "AU,1,0,1,x\n", "line 38: 'AU': expected a word that comes once"),
        (lancaster(WORDS) + " ,1,0,1,x\n", "line 38: '': expected a word that comes once"),
        (lancaster(WORDS) + "OWL,1,0\n", "line 38: 3 fields, expected 5"),
        (lancaster(WORDS[:20]), "20 words; expected 30, not all rated alike"),
        (lancaster(WORDS).replace("Auditory.SD", "Visual.mean"), "2 columns are called 'Visual.mean'"),
        (glasgow(WORDS).replace(",,M,SD,N,M,SD,N\n", ""), "line 2: expected a second header with M"),
        (things(WORDS).replace("lives_mean", "x").replace("size_mean", "y"), "no column of ratings"),
    ],
)  # fmt: skip
def test_a_damaged_table_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = homes.put(tmp_path / f"norms.{'tsv' if 'uniqueID' in text else 'csv'}", text)
    with pytest.raises(InputError) as caught:
        read(path)
    told = str(caught.value)
    assert message in told and str(path) in told and "\n" not in told


def test_a_word_is_predicted_from_other_words(student: Path, tmp_path: Path) -> None:
    found = read(homes.put(tmp_path / "norms.csv", lancaster(WORDS)))
    states = word_states(student, WORDS, ("a {}",)).states
    rows = np.stack([states[word] for word in WORDS])
    fold = assign_folds(WORDS, 10, 0)
    test = fold == 3
    # One fold and dimension, restated with scikit-learn.
    scale = StandardScaler().fit(rows[~test])
    ridge = RidgeCV(PENALTIES).fit(scale.transform(rows[~test]), found.ratings[~test, 1])
    wanted = ridge.predict(scale.transform(rows[test]))
    result, lines = predict_ratings(str(student), found, "a {}", 64)
    values = np.array([line["predicted"]["auditory"] for line in lines])
    assert values[test] == pytest.approx(wanted, abs=1e-5)
    whole = spearmanr(values, found.ratings[:, 1]).statistic
    assert result["auditory"]["spearman"] == pytest.approx(whole, abs=1e-4)


def test_what_states_hold_is_found_by_the_command(student: Path, tmp_path: Path) -> None:
    states = word_states(student, WORDS, ("{}",)).states
    rows = [f"{word.upper()},{n % 5},0,{states[word][3]:.5f},x" for n, word in enumerate(WORDS)]
    text = "\n".join([lancaster([]).strip(), *rows, ""])
    one = homes.put(tmp_path / "lancaster.csv", text)
    pairs = homes.put(tmp_path / "own.txt", "dog cat 5\ncat red 2\ndog ball 1\n")
    config = ProbeWordsConfig(model=str(student), data=(str(pairs), str(one)))
    result = PROBE_WORDS(config, tmp_path / "run")
    assert list(result["ratings"]["lancaster"]) == ["visual", "auditory"]
    visual, auditory = result["ratings"]["lancaster"].values()
    assert visual["spearman"] > 0.8 > 0.5 > auditory["spearman"]
    assert (visual["words"], visual["set"]["name"], visual["layer"]) == (36, "lancaster", "2")
    assert list(result["sets"]) == ["own"] and len(homes.answers(tmp_path / "run/pairs.jsonl")) == 3
    line = homes.answers(tmp_path / "run/ratings.jsonl")[0]
    assert (line["word"], line["ratings"]["auditory"]) == ("au", 0)
    assert "lancaster visual" in format_words(result) and "own" in format_words(result)
    with pytest.raises(InputError, match="two files hold lancaster"):
        PROBE_WORDS(
            ProbeWordsConfig(model=str(student), data=(str(one), str(one.with_name("again.csv")))),
            homes.put(tmp_path / "again.csv", text).parent / "twice",
        )


# -- Word similarity: the formats of the sets, damaged lines, correlations by layer

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


def test_the_command_reports_layers(tmp_path, student):
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
