"""The diversity of attention maps: known values, other libraries' values, no padding, a planted difference."""

import json
import math
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import scipy
import torch
from scipy.spatial.distance import jensenshannon
from tiny import homes, toys

from groundling.cli import main
from groundling.core.batch import Example, collate
from groundling.core.errors import InputError
from groundling.studies.xdbert import diversity as attention
from groundling.studies.xdbert.diversity import MEASURES

LONG = Example(
    "long",
    " ".join(toys.sentences()[:3]),
    text_pair="two dogs and a cat in the park, while the old men watch",
)
FEW = [Example(f"f{i}", f"{i} dogs wait") for i in range(12)]


@pytest.fixture(scope="module")
def whole():
    """Two cross-modal layers, queries so large that the maps are far from uniform."""
    model = toys.cross_modal()
    model.clip_tokenizer = toys.clip_words()
    with torch.no_grad():
        for layer in model.cross:
            layer.text_cross.query.weight.mul_(8)
    return model


@pytest.fixture(scope="module")
def flat(whole):
    """The same model, its first layer's attention uniform: no query asks for anything."""
    model = deepcopy(whole)
    with torch.no_grad():
        for parameter in model.cross[0].text_cross.query.parameters():
            parameter.zero_()
    return model


def some_maps(*shape):
    return np.random.default_rng(0).dirichlet(np.full(shape[-1], 0.3), shape[:-1])


def test_alike_and_unlike_rows():
    none = np.zeros(5, bool)
    alike = np.tile(some_maps(1, 5), (4, 1))
    assert attention.compute_measures(alike, none, none)[1:4] == pytest.approx([0, 1, 1 / 4])
    apart = attention.compute_measures(np.eye(5), none, none)
    assert apart[:4] == pytest.approx([0, math.log(2), 5, 1])
    even = attention.compute_measures(np.full((4, 5), 0.2), np.arange(5) < 2, np.arange(5) == 3)
    assert even == pytest.approx([1, 0, 1, 1 / 4, 2 / 5, 1 / 5])
    two_kinds = np.eye(2)[[0, 1, 0, 1]]  # 4 of 6 pairs are apart
    assert attention.pairwise_js(two_kinds) == pytest.approx(math.log(2) * 4 / 6)


def test_measures_are_those_of_scipy():
    found = some_maps(2, 3, 7, 11)  # layers and heads go through together
    marks = np.arange(11) % 4 == 0, np.zeros(11, bool)
    values = attention.compute_measures(found, *marks)
    for at in np.ndindex(2, 3):
        rows = found[at]
        pairs = [jensenshannon(rows[i], rows[j]) ** 2 for i in range(7) for j in range(i)]
        expected = [
            scipy.stats.entropy(rows, axis=1).mean() / math.log(11),
            np.mean(pairs),
            math.exp(scipy.stats.entropy(scipy.linalg.svdvals(rows))),
            len(set(rows.argmax(1))) / 7,
            rows[:, [0, 4, 8]].sum(-1).mean(),
            0,
        ]
        assert values[at] == pytest.approx(expected)


@pytest.mark.parametrize(
    "wrong",
    [np.ones(3) / 3, np.ones((2, 3)), np.zeros((0, 3)), np.full((2, 2), np.nan), [[1.5, -0.5]]],
)
def test_what_is_no_map_is_refused(wrong):
    with pytest.raises(InputError, match="attention map"):
        attention.compute_measures(wrong, *np.zeros((2, 3), bool))


@torch.no_grad()
def test_weights_are_those_the_layer_uses(whole):
    cross, batch = whole.cross[0].text_cross, collate(toys.both_sides(4).get(range(4)))
    text, clip = whole.eval().text(batch).text, batch.clip.flatten_states(whole.clip(batch.clip)[0])
    found = []
    whole(batch, attention=found.append)
    of_text = [one.weights for one in found if one.name == "text over clip"]
    values = cross.value(clip).unflatten(-1, (cross.heads, -1)).transpose(1, 2)
    mixed = cross.norm(text + cross.out((of_text[0] @ values).transpose(1, 2).flatten(2)))
    torch.testing.assert_close(mixed, cross(text, clip, batch.clip.key_mask), atol=1e-5, rtol=1e-4)
    assert len(of_text) == 2


def test_padding_never_counts_and_order_is_kept(whole):
    short = toys.examples(4)
    together, uniform, shapes = attention.diversity(whole.train(), [LONG, *short])
    assert together.shape == (5, 2, 2, 6) and (shapes[0] > shapes[1:]).all()
    for number, example in enumerate(short, 1):
        alone, flat, shape = attention.diversity(whole, [example])
        np.testing.assert_allclose(together[number], alone[0], rtol=1e-4)
        assert (shapes[number] == shape[0]).all() and (uniform[number] == flat[0]).all()


def test_rows_columns_and_stop_words(whole):
    example = Example("x", "a dog isn't on the beach", text_pair="the cat waits")
    _, text, clip, maps = next(attention.attention_maps(whole, [example]))
    shown = len(text.input_ids) - 3  # without [CLS] and [SEP]s
    assert maps.shape == (2, 2, shown, len(clip.input_ids))
    assert clip.special_tokens_mask.sum() == 4
    words = ["a", "dog", "isn", "'", "t", "on", "the", "beach", "the", "cat", "waits"]
    stop = np.array([w >= 0 and words[w] in {"a", "isn", "t", "on", "the"} for w in clip.word_ids])
    scores, uniform, _ = attention.diversity(whole, [example])
    assert scores[0, ..., 4] == pytest.approx(maps[..., clip.special_tokens_mask].sum(-1).mean(-1))
    assert scores[0, ..., 5] == pytest.approx(maps[..., stop].sum(-1).mean(-1))
    assert uniform[0, 4:] == pytest.approx([4 / len(clip.input_ids), stop.mean()])


@pytest.fixture
def few(monkeypatch):
    """Few texts and resamples are enough."""
    monkeypatch.setattr(attention, "MIN_TEXTS", 5)
    monkeypatch.setattr(attention, "DRAWS", 500)


@pytest.mark.usefixtures("few")
def test_a_planted_difference_is_found_and_none_where_there_is_none(whole, flat):
    examples = toys.examples(40)
    given = [*examples, *examples, Example("empty", "")]
    found = attention.compare_maps(whole, flat, given)
    assert (found["texts"], found["left_out"]) == (40, 1)
    rows = {(row["measure"], row["layer"]): row for row in found["measures"]}
    for row in (rows[name, 1] for name in MEASURES[:4]):
        assert row["b"] == pytest.approx(row["uniform"], abs=1e-5)
        assert row["difference"] == pytest.approx(row["b"] - row["a"])
        assert row["low"] <= row["difference"] <= row["high"] and row["low"] * row["high"] > 0
    assert rows["row_entropy", 1]["low"] > 0 > rows["pairwise_js", 1]["high"]
    ours, theirs = (attention.diversity(model, examples).scores for model in (whole, flat))
    for place, name in enumerate(MEASURES):
        for layer in (1, 2):
            heads = rows[name, layer]["heads"]  # each keeps its own value
            assert heads["a"] == pytest.approx(ours[:, layer - 1, :, place].mean(0))
            assert heads["b"] == pytest.approx(theirs[:, layer - 1, :, place].mean(0))
    difference = (theirs - ours)[:, 0, :, 1].mean(1)
    paired = scipy.stats.bootstrap((difference,), np.mean, method="percentile", rng=0)
    js = rows["pairwise_js", 1]
    assert (js["low"], js["high"]) == pytest.approx(tuple(paired.confidence_interval), rel=0.05)
    same = attention.compare_maps(whole, whole, examples)
    assert all(row["low"] == row["difference"] == row["high"] == 0 for row in same["measures"])


def test_a_picture_may_have_rows_of_special_tokens(whole, flat):
    """Table 9's maps have a row of [CLS]; the numbers are of the text's own tokens all the same."""
    maps = [next(attention.attention_maps(whole, [LONG], special=given)) for given in (False, True)]
    own = ~maps[0].text.special_tokens_mask
    assert maps[1].weights.shape[2] == len(own)
    np.testing.assert_allclose(maps[1].weights[:, :, own], maps[0].weights)
    image = attention.heat_maps(whole, flat, LONG, special=True).axes[0].images[0]
    np.testing.assert_allclose(image.get_array(), 100 * maps[1].weights[0, 0])


def test_heat_maps_share_one_scale(whole, flat):
    for example in (Example("x", "a $2 dog $$ on the beach 🎈"), LONG):
        *panels, bar = attention.heat_maps(whole, flat, example).axes
        images = [axes.images[0] for axes in panels]
        assert len(images) == 4 and len({image.get_clim() for image in images}) == 1
        _, text, clip, maps = next(attention.attention_maps(whole, [example]))
        np.testing.assert_allclose(images[0].get_array(), 100 * maps[0, 0])
        assert images[0].get_clim()[0] == 0 and images[0].get_clim()[1] >= 100 * maps[:, 0].max()
        assert any(line.get_ydata()[0] == 100 / len(clip.input_ids) for line in bar.lines)
        for ticks, number in (
            (panels[0].get_xticks(), len(clip.input_ids)),
            (panels[0].get_yticks(), sum(~text.special_tokens_mask)),
        ):
            assert len(ticks) == (number if number <= 60 else 0)


def test_what_cannot_be_compared_is_refused(whole, monkeypatch):
    shallow, other = deepcopy(whole), deepcopy(whole)
    shallow.cross = shallow.cross[:1]
    other.clip_tokenizer = toys.clip_tokenizer(["zzz"], 514)  # letters only
    for model, texts, least, words in (
        (whole, FEW, 200, "12 distinct texts.*at least 200"),
        (shallow, FEW, 2, "maps differ in shape: expected equal tokenizers and layers"),
        (other, FEW, 2, "maps differ in shape"),
        (whole, [Example("c", "a", choices=("b", "c"))], 2, "multiple choice"),
    ):
        monkeypatch.setattr(attention, "MIN_TEXTS", least)
        with pytest.raises(InputError, match=words):
            attention.compare_maps(whole, model, texts)


# -- the command -------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("few")
def test_the_command_compares_two_folders(whole, flat, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, model in {"with": whole, "without$$": flat}.items():
        Path(name).mkdir()
        model.export(Path(name))
    homes.text(tmp_path / "text.txt", 6)
    assert main(["info", "with", "--json"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert list(counted["components"]) == ["text", "clip", "cross"]
    assert counted["total"] == sum(part.numel() for part in whole.parameters())
    line = ["attention", "--model", "with", "--other", "without$$"]
    assert main([*line, "--text", "text.txt", "--max-length", "12", "--out", "out"]) == 0
    result = json.loads(Path("out/result.json").read_text())
    assert result["texts"] > 5
    assert {row["layer"] for row in result["measures"]} == {1, 2}
    assert "<svg" in Path("out/attention.svg").read_text()
    homes.rte(tmp_path / "glue")
    for flags, message in (
        ((), "needs text=FILE [FILE ...], or task with data"),
        (("--task", "glue/rte"), "needs text=FILE [FILE ...], or task with data"),
        (
            ("--task", "glue/rte", "--data", "glue", "--limit", "4"),
            "4 distinct texts of two or more tokens; expected at least 5",
        ),
    ):
        capsys.readouterr()
        assert main([*line, *flags, "--out", "pairs"]) == 2
        assert message in capsys.readouterr().err
