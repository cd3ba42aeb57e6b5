"""How alike two tables of vectors are: PWCCA and SVCCA against their definitions, and mutual nearest neighbours."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg
from tiny import homes, toys
from tokenizers import Tokenizer, decoders, models
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from groundling.cli import main
from groundling.core.errors import InputError
from groundling.core.resampling import interval
from groundling.studies.xdbert import similarity as module
from groundling.studies.xdbert.commands import SimilarityConfig
from groundling.studies.xdbert.similarity import (
    canonical_correlations,
    compare_captions,
    compare_models,
    compare_tables,
    mutual_neighbors,
    neighbors_by_gallery,
    word_table,
)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def related(n: int, d1: int, d2: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    a = normal(seed, n, d1)
    return a + 2, 0.5 * a @ normal(seed + 1, d1, d2) + normal(seed + 2, n, d2) - 3


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    roberta, siglip = toys.roberta_words(), toys.siglip_words()
    homes.student(root / "bert")
    homes.teacher(root / "clip")
    homes.home(root / "electra", toys.electra(len(homes.words())), homes.words())
    homes.home(root / "roberta", toys.roberta(len(roberta)), roberta)
    homes.home(root / "siglip", toys.siglip(siglip), siglip)
    return {folder.name: str(folder) for folder in root.iterdir()}


@pytest.mark.parametrize("k", [0.25, 1.0, 100.0])
def test_one_shared_direction(k):
    noise = normal(7, 30, 3)
    a, b, c = linalg.qr(noise - noise.mean(0), mode="economic")[0].T
    found = canonical_correlations(np.stack([a, k * b], 1) + 5, np.stack([a, c], 1) - 1)
    np.testing.assert_allclose(found.rho, [1, 0], atol=1e-12)
    values = [found.mean_cca, found.pwcca_a, found.pwcca, found.pwcca_b]
    assert values == pytest.approx([0.5, 1 / (1 + k), 1 / (1 + k), 0.5])


@pytest.mark.parametrize("shape", [(60, 5, 5), (60, 4, 7), (80, 20, 1)])
def test_equals_the_generalised_eigenproblem(shape):
    """Hotelling's own way: C_ab C_bb^-1 C_ba v = rho² C_aa v, without a basis of either side."""
    a, b = related(*shape)
    found = canonical_correlations(a, b)
    for x, y, weights in ((a, b, found.weights_a), (b, a, found.weights_b)):
        x, y = x - x.mean(0), y - y.mean(0)
        squares, turns = linalg.eigh(x.T @ y @ linalg.solve(y.T @ y, y.T @ x), x.T @ x)
        r = len(found.rho)
        np.testing.assert_allclose(found.rho, np.sqrt(np.clip(squares[::-1][:r], 0, 1)), atol=1e-8)
        variates = x @ turns[:, ::-1][:, :r]
        parts = np.abs((variates / np.linalg.norm(variates, axis=0)).T @ x).sum(1)
        np.testing.assert_allclose(weights, parts / parts.sum(), atol=1e-8)


def test_a_side_that_lacks_rank_counts_with_its_true_rank():
    a, b = related(60, 4, 6)
    wide = np.hstack([a, a @ normal(3, 4, 5), np.full((60, 1), 0.1)])  # 10 columns of rank 4
    found = canonical_correlations(wide, b)
    assert found.ranks == (4, 6) and len(found.rho) == 4
    angles = linalg.subspace_angles(a - a.mean(0), b - b.mean(0))
    np.testing.assert_allclose(found.rho, np.sort(np.cos(angles))[::-1], atol=1e-8)
    assert found.mean_cca == pytest.approx(canonical_correlations(a, b).mean_cca, abs=1e-10)


def test_the_side_of_lower_rank_weights_and_a_breaks_ties():
    a, b = related(60, 7, 4)
    found, turned, own = (canonical_correlations(*pair) for pair in ((a, b), (b, a), (a, a)))
    assert [one.weighting_table for one in (found, turned, own)] == ["b", "a", "a"]
    assert found.pwcca == found.pwcca_b == pytest.approx(turned.pwcca)
    assert found.pwcca_a == pytest.approx(turned.pwcca_b) != pytest.approx(found.pwcca_b)


def test_invariances_and_float64():
    a, b = related(80, 6, 5)
    first, order = canonical_correlations(a, b), np.random.default_rng(0).permutation(80)
    mapped = canonical_correlations(a, b @ (normal(4, 5, 5) + 3 * np.eye(5)) + 10)
    other = canonical_correlations(a @ (normal(5, 6, 6) + 3 * np.eye(6)) - 4, b)
    shuffled = canonical_correlations(a[order], b[order])
    for one, name in ((mapped, "pwcca_a"), (other, "pwcca_b"), (shuffled, "pwcca")):
        assert one.mean_cca == pytest.approx(first.mean_cca, abs=1e-10)
        assert getattr(one, name) == pytest.approx(getattr(first, name), abs=1e-10)
    assert abs(mapped.pwcca_b - first.pwcca_b) > 1e-4 < abs(other.pwcca_a - first.pwcca_a)
    a, b = a.astype(np.float32), b.astype(np.float32)
    exact = canonical_correlations(a.astype(np.float64), b.astype(np.float64))
    assert np.array_equal(canonical_correlations(a, b).rho, exact.rho)


def test_svcca_is_the_mean_cca_of_principal_components():
    a, b = related(60, 6, 5)
    a = a * [30, 20, 1, 0.1, 0.1, 0.1]

    def principal(x: np.ndarray, k: int) -> np.ndarray:
        return x @ linalg.eigh(np.cov(x.T))[1][:, ::-1][:, :k]

    held = linalg.eigvalsh(np.cov(a.T))[::-1].cumsum() / np.trace(np.cov(a.T))
    assert held[0] < 0.99 <= held[1]
    expected = canonical_correlations(principal(a, 2), principal(b, 5)).mean_cca
    report = compare_tables(a, b)
    assert report["components"] == [2, 5]
    assert report["scores"]["svcca"]["value"] == pytest.approx(expected, abs=1e-9)


def test_independent_tables_reach_the_edge_of_the_null_and_no_corrected_value():
    n, d1, d2 = 1500, 150, 90
    a, b = normal(1, n, d1), normal(2, n, d2)
    report, (g1, g2) = compare_tables(a, b, draws=3), (d1 / n, d2 / n)
    edge = np.sqrt(g1 * (1 - g2)) + np.sqrt(g2 * (1 - g1))
    assert canonical_correlations(a, b).rho[0] == pytest.approx(edge, abs=0.02)
    for score in report["scores"].values():
        assert score["value"] == pytest.approx(score["null"], abs=0.02)
        assert abs(score["corrected"]) < 0.02 and 0 < score["null_sd"] < 0.02
    assert (report["n"], report["dims"], report["ranks"]) == (n, [d1, d2], [d1, d2])
    # A mean correlation by chance depends on d / n alone: .550 for 768 of 2000.
    crowded = compare_tables(normal(1, 500, 192), normal(2, 500, 192), draws=2)
    assert crowded["scores"]["mean_cca"]["null"] == pytest.approx(0.550, abs=0.005)


def test_the_null_is_permuted_keyed_and_corrects():
    a, b = related(60, 5, 4)
    report = compare_tables(a, b, draws=4, seed=3)
    orders = [module.generator(3, "null", draw).permutation(60) for draw in range(4)]
    nulls = [canonical_correlations(a, b[order]).pwcca_a for order in orders]
    score = report["scores"]["pwcca_a"]
    expected = np.mean(nulls), np.std(nulls, ddof=1)
    assert (score["null"], score["null_sd"]) == pytest.approx(expected)
    corrected = (score["value"] - score["null"]) / (1 - score["null"])
    assert score["corrected"] == pytest.approx(corrected)
    assert score["value"] == canonical_correlations(a, b).pwcca_a
    assert compare_tables(a, b, draws=4, seed=3) == report != compare_tables(a, b, draws=4, seed=4)
    full = compare_tables(a[:4], b[:4])["scores"]["mean_cca"]  # chance alone gives 1
    assert (full["value"], full["corrected"]) == (pytest.approx(1), None)


def test_bad_tables():
    good = normal(0, 9, 2)
    hole = np.where(np.arange(18).reshape(9, 2) == 7, np.nan, good)
    for a, b, expected in [
        (good, good[:8], "9 and 8 rows"),
        (good[:2], good[:2], "first table, of shape .*: expected 3 or more rows"),
        (good, hole, "second table, .* finite numbers"),
        (np.full((9, 2), 0.1), good, "first table, .* not all equal"),
        (good, good[:, :0], "not all equal"),
    ]:
        with pytest.raises(InputError, match=expected):
            compare_tables(a, b)


@pytest.mark.parametrize("name", ["bert", "electra", "clip", "roberta", "siglip"])
def test_words_are_what_a_tokenizer_keeps_whole_with_their_own_embedding(folders, name):
    words, table = word_table(folders[name])
    tokenizer = AutoTokenizer.from_pretrained(folders[name])
    model = AutoModel.from_pretrained(folders[name])
    tower = model.text_model if name in ("clip", "siglip") else model
    weights = tower.get_input_embeddings().weight.detach().numpy()
    cased = {"roberta": "zü", "siglip": "zürich"}.get(name)  # "ĠZÃ¼" and "Zürich" only
    for word, row in zip(words, table, strict=True):
        ids = tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        assert word == cased or np.array_equal(weights[ids], row[None]), word
    assert len(words) == len(set(words)) > 20
    assert {"they", "of"} <= set(words) or name in ("bert", "electra")


def test_marks_of_words(monkeypatch):
    """Word tokens, byte-level, CLIP's, SentencePiece, and a vocabulary without marks."""
    monkeypatch.setattr(module, "load_config", lambda _: SimpleNamespace(model_type="any"))
    for tokens, expected, decoder in [
        ("[UNK] unk ##cat ##dog dog the 7 7th ! Dog [unused1] café", "unk dog the café", None),
        (
            "[UNK] Ġ7 cat ĠThe ĠDog Ġthe ĠcafÃ© ## Ġ! Ġ dog Ã© Ġdog ĠÃ",
            "the café dog",
            decoders.ByteLevel(),
        ),
        (
            "[UNK] A</w> ## cat cafÃ© Ġ a</w> dog</w> cat's</w> cafÃ©</w> 7</w>",
            "a dog café",
            decoders.ByteLevel(),
        ),
        ("[UNK] cat ▁ ▁▁ ▁Café ▁dog ▁dogs!", "café dog", decoders.Metaspace()),
        ("[UNK] don't Cat dog", "cat dog", None),
    ]:
        vocabulary = {token: i for i, token in enumerate(tokens.split())}
        inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        inner.decoder = decoder
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")
        text = SimpleNamespace(encoder=torch.nn.Embedding(len(vocabulary), 1), tokenizer=tokenizer)
        text.encoder.get_input_embeddings = lambda text=text: text.encoder
        text.encoder.weight.data = torch.arange(len(vocabulary)).float()[:, None]
        monkeypatch.setattr(module, "load_text_encoder", lambda _, text=text: text)
        words, rows = word_table("somewhere")
        assert words == expected.split() and list(rows[:, 0]) == sorted(rows[:, 0])
        text.encoder.weight.data = text.encoder.weight.data[:3]
        with pytest.raises(InputError, match="tokens, but 3 word embeddings"):
            word_table("somewhere")


def compared(model: str, other: str, **settings: int) -> dict[str, Any]:
    settings = {"permutations": 2, **settings}
    return compare_models(SimilarityConfig(model=model, other=other, **settings))


def test_models_meet_on_their_shared_words(folders):
    found = compared(folders["bert"], folders["roberta"])
    (words, table), (others, other) = (word_table(folders[one]) for one in ("bert", "roberta"))
    shared = [word for word in words if word in others]
    pairs = table[[words.index(w) for w in shared]], other[[others.index(w) for w in shared]]
    assert found["n"] == found["shared"] == len(shared) > 10
    assert found["words"] == [len(words), len(others)]
    assert found["scores"] == compare_tables(*pairs, draws=2)["scores"]
    few = compared(folders["bert"], folders["roberta"], limit=5)
    assert (few["n"], few["shared"]) == (5, len(shared))
    assert few["scores"] == compare_tables(pairs[0][:5], pairs[1][:5], draws=2)["scores"]


def test_a_model_equals_itself_and_not_a_random_table(folders, monkeypatch):
    bert = folders["bert"]
    words, table = word_table("random", ["a", "b"])
    assert words == ["a", "b"] and table.shape == (2, 768)
    assert 0 <= table.min() < 0.01 < 0.99 < table.max() <= 1
    assert np.array_equal(word_table("random", ["b"])[1][0], table[1])
    own = compared(bert, bert)
    assert [row["value"] for row in own["scores"].values()] == pytest.approx([1] * 5)
    monkeypatch.setattr(module, "RANDOM_WIDTH", 4)
    found = compared(bert, "random")
    turned = compared("random", bert)
    assert (found["dims"], found["side"]) == ([32, 4], "b")
    assert (turned["dims"], turned["side"]) == ([4, 32], "a")
    assert found["n"] == len(word_table(bert)[0]) and found["scores"]["pwcca"]["corrected"] < 0.5
    assert found["scores"]["pwcca"]["value"] == pytest.approx(turned["scores"]["pwcca"]["value"])
    assert compared(bert, "random", seed=1)["scores"] != found["scores"]


def test_bad_requests(folders):
    bert, clip = folders["bert"], folders["clip"]
    for a, b, limit, expected in [
        ("random", "random", 0, "a random table needs the words of another model"),
        (bert, clip, 2, "expected 3 or more rows"),
        (bert, "nowhere", 0, "nowhere: no model found"),
    ]:
        with pytest.raises(InputError, match=expected):
            compared(a, b, limit=limit)


def test_the_command(folders, tmp_path, capsys):
    line = ["similarity", "--model", folders["bert"], "--other", folders["clip"]]
    assert main([*line, "--permutations", "2", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert json.loads(capsys.readouterr().out) == result
    assert result["published_pwcca"]["BERT / CLIP"] == 0.498


# -- Mutual nearest neighbours: by hand, against the definition row by row, galleries, and captions


def related_tables(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(n, 6))
    return a, a @ rng.normal(size=(6, 4)) + rng.normal(size=(n, 4))


def by_definition(a: np.ndarray, b: np.ndarray, k: int) -> float:
    """Huh et al. 2024: the mean of |S(a_i) and S(b_i)| / k, each S the k nearest rows by cosine."""
    shares = []
    for row in range(len(a)):
        nearest = []
        for table in (a, b):
            unit = table / np.linalg.norm(table, axis=1, keepdims=True)
            order = np.argsort(-(unit @ unit[row]), kind="stable")
            nearest.append([one for one in order if one != row][:k])
        shares.append(len(set(nearest[0]) & set(nearest[1])) / k)
    return float(np.mean(shares))


def test_neighbors_by_hand() -> None:
    # On the circle at 0, 10, 40 and 100 degrees; in the other table the last two have changed places.
    angles = np.radians([0, 10, 40, 100])
    a = np.stack([np.cos(angles), np.sin(angles)], 1) * [[1], [5], [2], [3]]
    b = a[[0, 1, 3, 2]]
    # The nearest in a: 1, 0, 1, 2; in b: 1, 0, 3, 1.
    assert mutual_neighbors(a, b, 1) == 2 / 4
    # The two nearest in a: 12, 02, 10, 21; in b: 13, 03, 31, 10.
    assert mutual_neighbors(a, b, 2) == (1 + 1 + 1 + 1) / 8
    # Of equally near rows the first count: three equal rows and one that is none's neighbour.
    equal = np.array([[1.0, 0], [1, 0], [1, 0], [0, 1]])
    assert mutual_neighbors(equal, equal, 1) == 1


@pytest.mark.parametrize("k", [1, 3, 10])
def test_the_definition_in_blocks_of_any_size(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = related_tables(90)
    wanted = by_definition(a, b, k)
    assert mutual_neighbors(a, b, k) == pytest.approx(wanted, abs=1e-12)
    assert 0 < wanted < 1 == mutual_neighbors(a, a * 3, k)
    monkeypatch.setattr(module, "BLOCK", 7 * 90)
    assert mutual_neighbors(a, b, k) == pytest.approx(wanted, abs=1e-12)


def test_galleries_are_keyed_and_unrelated_tables_at_chance() -> None:
    a, b = related_tables(1400)
    curve = neighbors_by_gallery(a, b, 5, seed=3)
    assert [(one["rows"], one["galleries"]) for one in curve] == [(256, 10), (1024, 10), (1400, 1)]
    assert curve[0]["value"] > curve[1]["value"] > curve[2]["value"] > 10 * curve[2]["chance"]
    drawn = [
        np.sort(module.generator(3, "gallery", 256, n).permutation(1400)[:256]) for n in range(10)
    ]
    values = [by_definition(a[rows], b[rows], 5) for rows in drawn[:2]]
    assert [mutual_neighbors(a[rows], b[rows], 5) for rows in drawn[:2]] == pytest.approx(values)
    every = np.array([mutual_neighbors(a[rows], b[rows], 5) for rows in drawn])
    assert curve[0]["value"] == every.mean() and curve[0]["interval"] == interval(every).tolist()
    assert curve[2]["value"] == mutual_neighbors(a, b, 5) and curve[2]["interval"] is None
    assert neighbors_by_gallery(a, b, 5, seed=3) == curve != neighbors_by_gallery(a, b, 5, seed=4)
    order = np.random.default_rng(0).permutation(1400)
    for point in neighbors_by_gallery(a, b[order], 5):
        assert point["chance"] == 5 / (point["rows"] - 1)
        assert point["value"] == pytest.approx(point["chance"], rel=0.5)
    assert neighbors_by_gallery(a[:4], b[:4])[0]["neighbors"] == 2


def two_folders(tmp_path: Path, photographs: int = 5) -> tuple[Path, Path]:
    """Captions, two of each photograph, and a folder of their vectors: texts' first number tells the photograph."""
    rows = [(f"{n}.jpg", f"caption {which} of {n}") for n in range(5) for which in "ab"]
    captions = homes.put(
        tmp_path / "some.token.txt", "".join(f"{i}#0\t{text}\n" for i, text in rows)
    )
    texts = np.stack([np.array([n // 2, n % 2, 1.0]) for n in range(10)]).astype(np.float32)
    images = related_tables(5, seed=2)[0].astype(np.float32)[:photographs]
    folder = tmp_path / "vectors"
    homes.put(folder / "texts.txt", "".join(f"{text}\n" for _, text in rows))
    homes.put(folder / "images.txt", "".join(f"{n}.jpg\n" for n in range(photographs)))
    np.save(folder / "texts.npy", texts)
    np.save(folder / "images.npy", images)
    return captions, folder


def test_captions_beside_photographs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captions, folder = two_folders(tmp_path)
    stored = f"vectors:{folder}"
    line = ["similarity", "--model", stored, "--other", stored, "--captions", str(captions)]
    assert main([*line, "--neighbors", "1", "--out", str(tmp_path / "run")]) == 0
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert json.loads(capsys.readouterr().out) == result
    first = np.load(folder / "texts.npy")[::2]  # the first caption of each photograph
    wanted = by_definition(first, np.load(folder / "images.npy"), 1)
    (point,) = result["mutual_neighbors"]
    assert (point["rows"], point["value"]) == (5, wanted) and result["n"] == 5
    few = SimilarityConfig(model=stored, other=stored, captions=str(captions), limit=4)
    assert compare_captions(few)["n"] == 4


def test_bad_requests_of_neighbors(tmp_path: Path) -> None:
    captions, folder = two_folders(tmp_path, photographs=4)
    stored = f"vectors:{folder}"
    plain = homes.put(tmp_path / "plain.txt", "a dog runs\na cat sits\n")
    for model, other, file, expected in [
        (stored, stored, captions, r"vectors: no vector of the image '4(\.jpg)?'"),
        ("bert", stored, captions, "bert: captions need vectors:FOLDER, which `embed` writes"),
        (stored, stored, plain, "plain.txt: expected captions with the image of each"),
    ]:
        with pytest.raises(InputError, match=expected) as error:
            compare_captions(SimilarityConfig(model=model, other=other, captions=str(file)))
        assert "\n" not in str(error.value)
    rows = related_tables(9)[0]
    with pytest.raises(InputError, match="9 rows have no 9 neighbours each"):
        mutual_neighbors(rows, rows, 9)
    for hole in (0, np.nan):
        damaged = np.where(np.arange(9)[:, None] == 4, hole, rows)
        with pytest.raises(InputError, match="row 4 of the tables is 0 or not finite"):
            mutual_neighbors(rows, damaged, 2)
