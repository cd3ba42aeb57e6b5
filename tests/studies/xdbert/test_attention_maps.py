"""The diversity of attention maps: known values, other libraries' values, no padding, a planted difference."""

import json
import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import scipy
import torch
from scipy.spatial.distance import jensenshannon
from tiny import homes, toys

from groundling.core.batch import Example, collate
from groundling.core.errors import InputError
from groundling.models.cross_modal import load_cross_modal_encoder
from groundling.studies.xdbert import diversity as attention
from groundling.studies.xdbert.commands import ATTENTION as attend
from groundling.studies.xdbert.commands import AttentionConfig
from groundling.studies.xdbert.diversity import MEASURES, attention_report

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
    assert attention.compute_measures(np.eye(5), none, none)[:4] == pytest.approx(
        [0, math.log(2), 5, 1]
    )
    marks = np.arange(5) < 2, np.arange(5) == 3
    assert attention.compute_measures(np.full((4, 5), 0.2), *marks) == pytest.approx(
        [1, 0, 1, 1 / 4, 2 / 5, 1 / 5]
    )
    two_kinds = np.eye(2)[[0, 1, 0, 1]]  # 4 of 6 pairs are apart
    assert attention.pairwise_js(two_kinds) == pytest.approx(math.log(2) * 4 / 6)
    assert attention.distinct_argmax(two_kinds) == 0.5


def test_measures_are_those_of_scipy():
    found = some_maps(2, 3, 7, 11)  # layers and heads go through together
    entropies, js, rank = (
        attention.row_entropy(found),
        attention.pairwise_js(found),
        attention.effective_rank(found),
    )
    for at in np.ndindex(2, 3):
        rows = found[at]
        assert entropies[at] == pytest.approx(
            scipy.stats.entropy(rows, axis=1).mean() / math.log(11)
        )
        assert js[at] == pytest.approx(
            np.mean([jensenshannon(rows[i], rows[j]) ** 2 for i in range(7) for j in range(i)])
        )
        assert rank[at] == pytest.approx(math.exp(scipy.stats.entropy(scipy.linalg.svdvals(rows))))
        assert attention.distinct_argmax(rows) == len(set(rows.argmax(1))) / 7
    assert attention.column_mass(found, np.arange(11) % 4 == 0) == pytest.approx(
        found[..., [0, 4, 8]].sum(-1).mean(-1)
    )


def test_what_is_no_map_is_refused_and_what_has_no_value_is_nan():
    for wrong in (
        np.ones(3) / 3,
        np.ones((2, 3)),
        np.zeros((0, 3)),
        np.full((2, 2), np.nan),
        [[1.5, -0.5]],
    ):
        with pytest.raises(InputError, match="attention map"):
            attention.row_entropy(wrong)
    assert np.isnan(attention.pairwise_js([[0.5, 0.5]])) and np.isnan(
        attention.row_entropy([[1.0], [1.0]])
    )


@torch.no_grad()
def test_weights_are_those_the_layer_uses(whole):
    cross, batch = whole.cross[0].text_cross, collate(toys.both_sides(4).get(range(4)))
    text, clip = whole.eval().text(batch).text, batch.clip.flatten_states(whole.clip(batch.clip)[0])
    found = []
    whole(
        batch, attention=lambda m: found.append(m.weights) if m.name == "text over clip" else None
    )
    values = cross.value(clip).unflatten(-1, (cross.heads, -1)).transpose(1, 2)
    mixed = cross.norm(text + cross.out((found[0] @ values).transpose(1, 2).flatten(2)))
    torch.testing.assert_close(mixed, cross(text, clip, batch.clip.key_mask), atol=1e-5, rtol=1e-4)
    assert len(found) == 2


def test_padding_never_counts_and_order_and_mode_are_kept(whole):
    whole.train()
    short = toys.examples(8)
    together, uniform, shapes = attention.diversity(whole, [LONG, *short])
    assert whole.training and together.shape == (9, 2, 2, 6) and (shapes[0] > shapes[1:]).all()
    for number, example in enumerate(short, 1):
        alone, flat, shape = attention.diversity(whole, [example])
        np.testing.assert_allclose(together[number], alone[0], rtol=1e-4)
        assert (shapes[number] == shape[0]).all() and (uniform[number] == flat[0]).all()


def test_rows_columns_and_stop_words(whole):
    example = Example("x", "a dog isn't on the beach", text_pair="the cat waits")
    _, text, clip, maps = next(attention.attention_maps(whole, [example]))
    assert (
        maps.shape == (2, 2, len(text.input_ids) - 3, len(clip.input_ids))
        and clip.special_tokens_mask.sum() == 4
    )  # without [CLS] and [SEP]s
    np.testing.assert_allclose(maps.sum(-1), 1, rtol=1e-5)
    words = ["a", "dog", "isn", "'", "t", "on", "the", "beach", "the", "cat", "waits"]
    stop = np.array([w >= 0 and words[w] in {"a", "isn", "t", "on", "the"} for w in clip.word_ids])
    scores, uniform, _ = attention.diversity(whole, [example])
    assert scores[0, ..., 4] == pytest.approx(maps[..., clip.special_tokens_mask].sum(-1).mean(-1))
    assert scores[0, ..., 5] == pytest.approx(maps[..., stop].sum(-1).mean(-1))
    assert uniform[0, 4:] == pytest.approx([4 / len(clip.input_ids), stop.mean()])


def test_a_planted_difference_is_found_and_none_where_there_is_none(whole, flat):
    examples = toys.examples(40)
    found = attention.compare_maps(
        whole, flat, [*examples, *examples, Example("empty", "")], draws=500, min_texts=40
    )
    assert (found["texts"], found["left_out"]) == (40, 1)
    rows = {(row["measure"], row["layer"]): row for row in found["measures"]}
    for row in (rows[name, 1] for name in MEASURES[:4]):
        assert row["b"] == pytest.approx(row["uniform"], abs=1e-5)
        assert row["difference"] == pytest.approx(row["b"] - row["a"])
        assert row["low"] <= row["difference"] <= row["high"] and row["low"] * row["high"] > 0
    assert rows["row_entropy", 1]["low"] > 0 > rows["pairwise_js", 1]["high"]
    same = attention.compare_maps(whole, whole, examples, draws=20, min_texts=40)
    assert all(row["low"] == row["difference"] == row["high"] == 0 for row in same["measures"])
    ours, theirs = (
        attention.diversity(model, examples)[0][:, 0, :, 1].mean(1) for model in (whole, flat)
    )
    paired = scipy.stats.bootstrap(
        (theirs - ours,), np.mean, method="percentile", rng=0
    ).confidence_interval
    js = rows["pairwise_js", 1]
    assert (js["low"], js["high"]) == pytest.approx(tuple(paired), rel=0.05)


def test_every_head_keeps_its_own_values(whole, flat):
    # C7
    examples = toys.examples(12)
    result = attention.compare_maps(whole, flat, examples, draws=20, min_texts=12)
    scores = attention.diversity(flat, examples).scores
    for row in result["measures"]:
        place = MEASURES.index(row["measure"])
        for side in ("a", "b"):
            assert len(row["heads"][side]) == 2
            assert np.mean(row["heads"][side]) == pytest.approx(row[side])
        assert row["heads"]["b"] == pytest.approx(scores[:, row["layer"] - 1, :, place].mean(0))
    first = result["measures"][0]["heads"]
    assert first["a"][0] != pytest.approx(first["a"][1])


def test_report_of_two_folders(whole, flat, tmp_path):
    folders = tmp_path / "with", tmp_path / "without$$"
    for folder, model in zip(folders, (whole, flat), strict=True):
        folder.mkdir()
        model.export(folder)
    report = attention_report(
        *map(load_cross_modal_encoder, folders), FEW, tmp_path / "out", draws=20, min_texts=12
    )
    assert (
        report["measures"]
        == attention.compare_maps(whole, flat, FEW, draws=20, min_texts=12)["measures"]
    )
    assert json.loads((tmp_path / "out" / "attention.json").read_text()) == report
    assert "<svg" in (tmp_path / "out" / "attention.svg").read_text()


def test_a_picture_may_have_rows_of_special_tokens(whole, flat):
    """A11: Table 9's maps have a row of [CLS]; the numbers are of the text's own tokens all the same."""
    plain, all_rows = (
        next(attention.attention_maps(whole, [LONG], special=special)) for special in (False, True)
    )
    own = ~plain.text.special_tokens_mask
    assert all_rows.weights.shape[2] == len(own)
    np.testing.assert_allclose(all_rows.weights[:, :, own], plain.weights)
    image = attention.heat_maps(whole, flat, LONG, special=True).axes[0].images[0]
    np.testing.assert_array_equal(image.get_array(), all_rows.weights[0, 0])


def test_pairs_of_a_task_are_compared(whole, flat, tmp_path):
    """A11: Table 9 shows a pair of RTE."""
    folders = tmp_path / "with", tmp_path / "without"
    for folder, model in zip(folders, (whole, flat), strict=True):
        folder.mkdir()
        model.export(folder)
    config = AttentionConfig(model=str(folders[0]), other=str(folders[1]), special_tokens=True)
    for wrong in (config, replace(config, task="glue/rte"), replace(config, data="glue")):
        with pytest.raises(InputError, match=r"needs text=FILE .*, or task with data"):
            attend(wrong, tmp_path / "out")
    data = homes.rte(tmp_path / "glue")
    config = replace(config, task="glue/rte", data=str(data), limit=4)
    with pytest.raises(InputError, match=r"4 distinct texts of two or more tokens.*at least 200"):
        attend(config, tmp_path / "out")


def test_heat_maps_share_one_scale(whole, flat):
    for example in (Example("x", "a $2 dog $$ on the beach 🎈"), LONG):
        *panels, bar = attention.heat_maps(whole, flat, example, head=1).axes
        images = [axes.images[0] for axes in panels]
        assert len(images) == 4 and len({image.get_clim() for image in images}) == 1
        _, text, clip, maps = next(attention.attention_maps(whole, [example]))
        np.testing.assert_array_equal(images[0].get_array(), maps[0, 1])
        assert images[0].get_clim()[0] == 0 and images[0].get_clim()[1] >= maps[:, 1].max()
        assert any(line.get_ydata()[0] == 1 / len(clip.input_ids) for line in bar.lines)
        for ticks, number in (
            (panels[0].get_xticks(), len(clip.input_ids)),
            (panels[0].get_yticks(), sum(~text.special_tokens_mask)),
        ):
            assert len(ticks) == (number if number <= 60 else 0)


def test_what_cannot_be_compared_is_refused_in_one_line(whole, tmp_path):
    shallow, other = deepcopy(whole), deepcopy(whole)
    shallow.cross, other.clip_tokenizer = (
        shallow.cross[:1],
        toys.clip_tokenizer(["zzz"], 514),
    )  # letters only
    for call, words in (
        (lambda: attention.compare_maps(whole, whole, FEW), "12 distinct texts.*at least 200"),
        (
            lambda: attention.compare_maps(whole, whole, [], min_texts=0),
            "0 distinct texts.*at least 2",
        ),
        (
            lambda: attention.compare_maps(whole, shallow, FEW, min_texts=2),
            "maps differ in shape: expected equal tokenizers and layers",
        ),
        (
            lambda: attention.compare_maps(whole, other, FEW, min_texts=2),
            "maps differ in shape",
        ),
        (
            lambda: attention.diversity(whole, [Example("c", "a", choices=("b", "c"))]),
            "example c is multiple choice",
        ),
        (lambda: load_cross_modal_encoder(tmp_path), "cross_layers.safetensors"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
