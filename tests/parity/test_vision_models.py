"""Single-stream models against Hugging Face's VisualBERT, a plain BERT, and plain restatements without padding."""

from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import toys
from tiny.homes import home
from torch import nn
from transformers import BertConfig, BertModel, VisualBertConfig, VisualBertForPreTraining

from groundling.commands.info.parameters import count_parameters
from groundling.core.batch import RegionRow, collate
from groundling.core.errors import InputError
from groundling.models.attention import PositionKind
from groundling.vision_language import uniter as uniter_file
from groundling.vision_language import visualbert as visualbert_file
from groundling.vision_language import vlbert as vlbert_file
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.single_stream import (
    JOIN,
    add_token_types,
    load_released_weights,
    read_weights,
)
from groundling.vision_language.uniter import UniterEmbeddings, uniter
from groundling.vision_language.visualbert import VisualBertEmbeddings, visualbert
from groundling.vision_language.vlbert import VLBertEmbeddings, vlbert

WIDTH = 12
KINDS = {
    "visualbert": visualbert,
    "late": partial(visualbert, early=False),
    "vlbert": vlbert,
    "uniter": uniter,
}
close = partial(torch.testing.assert_close, rtol=0, atol=1e-5)


def randomise(module):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


def count(*modules):
    return sum(p.numel() for p in nn.ModuleList(modules).parameters())


def built(kind, tokenizer, random=True, **options):
    model = KINDS[kind](toys.bert(len(tokenizer)), tokenizer, width=WIDTH, **options).eval()
    torch.manual_seed(3)
    if random:
        randomise(nn.ModuleList([model.join, model.fusion or nn.Identity()]))
    return model


def paired(text_only, images=1, named=False, masked=False):
    """Four samples of different lengths, one a pair, of 5, 2, 7 and 3 regions; `named`: some words name regions."""
    rng, out = np.random.default_rng(0), []
    for sample, r in zip(text_only.get([0, 7, 50, 3]), (5, 2, 7, 3), strict=True):
        text, number = sample.text, np.arange(r)
        if named:  # words 1 and 3 name region 1, words 4 and 5 region 0
            named_by = np.full(max(text.word_ids.max() + 1, 6), -1)
            named_by[[1, 3]], named_by[[4, 5]] = 1, 0
            text = replace(
                text, region_index=np.where(text.word_ids < 0, -1, named_by[text.word_ids])
            )
        corner, side = rng.uniform(0, 0.5, (2, r, 2)).astype(np.float32)
        features = rng.normal(size=(r, WIDTH)).astype(np.float32)
        boxes = np.concatenate([corner, corner + side], 1)
        hidden = number % 3 == 2 if masked else None
        features[number % 3 == 2] *= not masked  # as the objective leaves them
        regions = RegionRow(
            features, boxes, corner[:, 0], number * images // r, number == 0, masked=hidden
        )
        out.append(replace(sample, text=text, regions=regions))
    return out


@pytest.mark.parametrize(("images", "named"), [(1, False), (2, False), (1, True)])
@torch.no_grad()
def test_visualbert_is_hf(images, named, text_only, bert_tokenizer, tmp_path, capsys):
    sizes = {"vocab_size": len(bert_tokenizer), "max_position_embeddings": 64}
    sizes |= {"visual_embedding_dim": WIDTH, **toys.SMALL, **toys.SPREAD}
    config = VisualBertConfig(**sizes)
    theirs = VisualBertForPreTraining(config).eval()
    randomise(theirs.visual_bert.embeddings)
    home(tmp_path, theirs, bert_tokenizer)
    model, batch = load_encoder(tmp_path), collate(paired(text_only, images, named))
    assert "not used: cls.predictions" in capsys.readouterr().out
    text, regions, alignment = batch.text, batch.regions, None
    assert not text.attention_mask.all() and not regions.mask.all()
    assert regions.image_index.max() == images - 1
    if named:
        alignment, tokens = torch.full((4, 7, 20), -1), 0
        for b, r in product(range(4), (0, 1)):
            own = (text.region_index[b] == r).nonzero()[:, 0].tolist()
            first = [t for t in own if text.word_ids[b, t] != text.word_ids[b, t - 1]]
            alignment[b, r, : len(first)] = torch.tensor(first)
            tokens += len(own)
        assert tokens > (alignment >= 0).sum() > 12, "some words have several tokens"
    expected = theirs.visual_bert(
        input_ids=text.input_ids,
        attention_mask=text.attention_mask.long(),
        token_type_ids=text.token_type_ids,
        visual_embeds=regions.features,
        visual_attention_mask=regions.mask.long(),
        visual_token_type_ids=regions.image_index,
        image_text_alignment=alignment,
    )
    found, inside = model(batch), torch.cat([text.attention_mask, regions.mask], 1)
    close(torch.cat([found.text, found.visual], 1)[inside], expected.last_hidden_state[inside])
    close(found.pooler_output, expected.pooler_output)
    assert found.visual.std() > 0.3


@torch.no_grad()
def test_vlbert_begins_as_bert(text_only, bert_tokenizer):
    model = built("vlbert", bert_tokenizer, random=False)
    plain = toys.bert(len(bert_tokenizer)).eval()
    batch = collate(paired(text_only))
    ids, mask, types = (
        getattr(batch.text, name) for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    expected = plain(ids, mask.long(), types).last_hidden_state[mask]
    for regions in (batch.regions, None):
        seen = replace(batch, regions=regions)
        joined = model.join(model.text.encoder.embeddings, seen)
        assert torch.equal(joined.states[:, joined.text], plain.embeddings(ids, types))
        joined.mask[:, joined.text.stop :] = False
        close(model.encode(joined)[:, joined.text][mask], expected)
        assert (model(seen).text[mask] - expected).abs().max() > 0.01  # [END] counts


def restated_vlbert(join, table, text, regions):
    """One sample's embedded sequence, without padding."""
    place, rows = table.position_embeddings.weight, table.token_type_embeddings.weight
    looks, names = [], []
    each = zip(regions.boxes, regions.features, regions.masked, strict=True)
    for (x1, y1, x2, y2), feature, masked in each:
        places = (x1 + x2) * 50, (y1 + y2) * 50, (x2 - x1) * 100, (y2 - y1) * 100
        angles = [torch.tensor([at / 1000 ** (k / 256) for k in range(256)]) for at in places]
        numbers = [wave(angle) for angle in angles for wave in (torch.sin, torch.cos)]
        look = torch.cat([*numbers, join.mask_visual[0] if masked else feature])
        looks.append(join.visual(look).relu())
        names.append((join.mask_word if masked else join.image_word)[0])
    end = len(text.input_ids)
    # The whole image is region 0.
    sees = torch.stack([looks[max(0, r)] for r in text.region_index.tolist()])
    words = table.word_embeddings(text.input_ids) + join.norm_text(sees)
    words = words + place[:end] + rows[text.token_type_ids]
    after = torch.stack(names) + join.norm_region(torch.stack(looks)) + place[end] + rows[2]
    return table.LayerNorm(torch.cat([words, after, join.end + place[end + 1] + rows[2]]))


def restated_uniter(join, table, text, regions):
    place, rows = table.position_embeddings.weight, table.token_type_embeddings.weight
    words = table.word_embeddings(text.input_ids) + rows[0] + place[: len(text.input_ids)]
    out = [table.LayerNorm(words)]
    each = zip(regions.boxes, regions.features, regions.masked, strict=True)
    for (x1, y1, x2, y2), feature, masked in each:
        box = torch.stack([x1, y1, x2, y2, x2 - x1, y2 - y1, (x2 - x1) * (y2 - y1)])
        look = join.feature_norm(join.feature(feature + masked * join.mask.weight[1]))
        out.append(join.norm(look + join.box_norm(join.box(box)) + rows[1])[None])
    return torch.cat(out)


def first_row(part):
    return SimpleNamespace(**{name: x[0] for name, x in vars(part).items() if x is not None})


@pytest.mark.parametrize(
    ("kind", "restated"), [("vlbert", restated_vlbert), ("uniter", restated_uniter)]
)
@torch.no_grad()
def test_join_is_its_plain_restatement(kind, restated, text_only, bert_tokenizer):
    model = built(kind, bert_tokenizer)
    samples = paired(text_only, named=kind == "vlbert", masked=True)
    batch = collate(samples)
    bert, found = model.text.encoder, model(batch)
    for b in range(4):
        words, seen = batch.text.attention_mask[b], batch.regions.mask[b]
        alone = collate([samples[b]])
        text, regions = (first_row(part) for part in (alone.text, alone.regions))
        states = restated(model.join, bert.embeddings, text, regions)
        expected = bert.encoder(states[None]).last_hidden_state[0]
        both = torch.cat([found.text[b, words], found.visual[b, seen]])
        close(both, expected[: len(both)], atol=2e-5)


@torch.no_grad()
def test_segments_of_uniter(text_only, bert_tokenizer):
    bert, batch = toys.bert(len(bert_tokenizer)).eval(), collate(paired(text_only, images=2))
    table, regions = bert.embeddings.token_type_embeddings, batch.regions
    before = table.weight.clone()
    add_token_types(bert, [1, 0])
    assert torch.equal(table.weight, before[[0, 1, 1, 0]])
    nn.init.normal_(table.weight)
    join = UniterEmbeddings(bert, WIDTH, text_types=(0, 3), image_types=(1, 2))
    plain = UniterEmbeddings(bert, WIDTH)
    plain.load_state_dict(join.state_dict())
    found = join(bert.embeddings, batch)
    words = bert.embeddings(batch.text.input_ids, 3 * batch.text.token_type_ids)
    assert torch.equal(found.states[:, found.text], words)
    one = replace(regions, image_index=0 * regions.image_index)
    first = plain(bert.embeddings, replace(batch, regions=one))
    same = (found.states == first.states).all(-1)[:, found.regions]
    assert torch.equal(same, regions.image_index == 0)
    with pytest.raises(InputError, match="a sample has more than the 1 images of this model"):
        plain(bert.embeddings, batch)


def places_of(sample, tokens, regions, added):
    """What the places of a sample's sequence hold, padded to so many tokens and regions."""
    held = []
    for flags, kinds, count in (
        (sample.text.special_tokens_mask, (PositionKind.TOKEN, PositionKind.SPECIAL), tokens),
        (sample.regions.is_whole_image, (PositionKind.REGION, PositionKind.WHOLE_IMAGE), regions),
    ):
        own = [kinds[int(flag)] for flag in flags]
        held += [*own, *[PositionKind.PADDING] * (count - len(own))]
    return [*held, *[PositionKind.ADDED] * added]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_maps_say_what_their_rows_and_columns_are(kind, text_only, bert_tokenizer):
    model, samples = built(kind, bert_tokenizer), paired(text_only)
    batch = collate(samples)
    tokens, regions = batch.text.input_ids.shape[1], batch.regions.mask.shape[1]
    added = int(kind == "vlbert")  # its [END]
    numbers = [*range(tokens), *range(regions), *range(added)]
    maps = []
    model(batch, attention=maps.append)
    assert [(one.name, one.layer) for one in maps] == [
        ("self", n) for n in range(2 + (kind == "late"))
    ]
    for one in maps:
        over_text = kind == "late" and one is not maps[-1]
        size = tokens if over_text else tokens + regions + added
        assert one.rows is one.columns and one.weights.shape == (4, 2, size, size)
        close(one.weights.sum(-1), torch.ones(4, 2, size))
        for b, sample in enumerate(samples):
            holds = one.columns.kinds[b]
            assert holds.tolist() == places_of(sample, tokens, regions, added)[:size]
            assert not one.weights[b, :, :, holds == PositionKind.PADDING].any()
            assert one.columns.indices[b].tolist() == numbers[:size]
    alone = []
    model(replace(batch, regions=None), attention=alone.append)
    assert len(alone) == 2
    for one in alone:
        assert one.weights.shape[-1] == tokens + added
        assert one.columns.kinds[0].tolist()[tokens:] == [PositionKind.ADDED] * added


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_text_alone_and_export(kind, text_only, bert_tokenizer, tmp_path):
    model, samples = built(kind, bert_tokenizer), paired(text_only, named=kind != "uniter")
    batch, texts = collate(samples), collate([replace(s, regions=None) for s in samples])
    out, plain = model(texts), model.text(texts)
    same = torch.equal(out.text, plain.text) and torch.equal(out.pooler_output, plain.pooler_output)
    assert (out.visual, same) == (None, kind != "vlbert")
    assert model.max_length == (62 if kind == "vlbert" else 64)
    assert (model.sizes.visual, model.sizes.regions) == (32, WIDTH)
    model.export(tmp_path)
    stock, report = BertModel.from_pretrained(tmp_path / "bert", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    again = load_encoder(tmp_path).eval()
    for one in (batch, texts):
        found, expected = again(one), model(one)
        assert torch.equal(found.text, expected.text)
        assert torch.equal(found.pooler_output, expected.pooler_output)
    parts = count_parameters(str(tmp_path))["components"]
    assert parts["text"] == count(stock) and list(parts)[1:] == ["join", "fusion"][: len(parts) - 1]
    (tmp_path / JOIN).write_text('{"kind": "nobert", "early": true, "options": {}}')
    with pytest.raises(InputError, match="unknown kind 'nobert'"):
        load_encoder(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_learns(kind, text_only, bert_tokenizer):
    model = built(kind, bert_tokenizer, random=False).train()
    samples = paired(text_only, masked=True)
    if kind == "vlbert":  # texts stand among the pairs in pre-training
        samples.append(replace(samples[0], regions=samples[0].regions.take(slice(0))))
    batch = collate(samples)
    for _ in range(2):  # VL-BERT's visual path opens with the first step
        out = model.zero_grad() or model(batch)
        (out.text.pow(3).sum() + out.visual.pow(3).sum() + out.pooler_output.sum()).backward()
        torch.optim.SGD(model.parameters(), 1e-4).step()
    assert not [name for name, parameter in model.named_parameters() if not parameter.grad.any()]
    if kind == "vlbert":
        none = replace(batch.regions, is_whole_image=~batch.regions.mask)
        with pytest.raises(InputError, match="the whole image"):
            model(replace(batch, regions=none))


SIZES = {
    "visualbert-base": (111450624, [109482240, 1573632 + 393216 + 1536]),
    "visualbert-large": (337766400, [335141888, 2098176 + 524288 + 2048]),
    "uniter-base": (109898752, [108310272, 1588480]),
    "uniter-large": (335695872, [333579264, 2116608]),
    # VL-BERT's core has [END] and both visual LayerNorms, 5 vectors, which here are the join's.
    "vlbert-base": (
        114491515,
        [108896256 - 3840, 3146496 + 3 * 768 + 2048 + 3840, 622650, 1821761],
    ),
    "vlbert-large": (
        342071675,
        [334098432 - 5120, 4195328 + 3 * 1024 + 2048 + 5120, 1082170, 2690625],
    ),
}


@pytest.mark.parametrize("preset", SIZES)
def test_published_sizes(preset):
    total, parts = SIZES[preset]
    found = count_parameters(preset)
    assert found["total"] == total == sum(parts)
    assert list(found["components"].values()) == parts


def test_sizes_of_variants(bert_tokenizer):
    with torch.device("meta"):
        bert = BertModel(BertConfig())
        found = [
            count(bert, VisualBertEmbeddings(bert, *options))
            for options in ((1024,), (512,), (2048, True))
        ]
        assert count(visualbert(bert, bert_tokenizer, early=False)) == 118538496
    assert found == [110664192, 110270976, 111455232]


@pytest.mark.parametrize(
    ("kind", "names", "outer", "heads"),
    [
        (
            "visualbert",
            visualbert_file.RELEASED,
            "bert.bert.",
            ["bert.cls.predictions.bias", "detector.backbone.0.weight"],
        ),
        (
            "vlbert",
            vlbert_file.RELEASED,
            "module.vlbert.",
            ["module.image_feature_extractor.backbone.a", "vlbert.mlm_head.b"],
        ),
        ("uniter", uniter_file.RELEASED, "uniter.", ["cls.predictions.bias", "itm_output.weight"]),
    ],
)
def test_weights_of_the_authors(kind, names, outer, heads, bert_tokenizer, tmp_path, capsys):
    model, other = built(kind, bert_tokenizer), built(kind, bert_tokenizer, random=False)
    prefixes = names.renamed_prefixes.items()
    checkpoint = {name: torch.ones(1) for name in heads}
    for name, value in model.state_dict().items():
        fitting = [(ours, theirs) for theirs, ours in prefixes if name.startswith(ours)]
        ours, theirs = max(fitting, key=lambda pair: len(pair[0]))
        rest = name.removeprefix(ours).replace("LayerNorm.bias", "LayerNorm.beta")
        checkpoint[outer + theirs + rest] = value + 1

    def load(weights):
        torch.save({"state_dict": weights, "epoch": 1}, tmp_path / "a.bin")
        return load_released_weights(other, tmp_path / "a.bin", names)

    assert load(checkpoint) == heads
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value + 1), name
    parts = ", ".join(head.rpartition(".")[0] for head in heads)
    assert f"not used: {parts};" in capsys.readouterr().out
    lost = f"{outer}encoder.layer.0.output.dense.weight"
    for weights, message in (
        ({**checkpoint, "strange.weight": torch.ones(1)}, r"Unexpected key.*strange\.weight"),
        ({k: v for k, v in checkpoint.items() if k != lost}, r"Missing key.*encoder\.layer\.0"),
    ):
        with pytest.raises(InputError, match=message):
            load(weights)


def test_a_checkpoint_of_code_is_not_opened(tmp_path):
    torch.save({"w": VLBertEmbeddings}, tmp_path / "code.th")
    with pytest.raises(InputError, match="not loadable as tensors only"):
        read_weights(tmp_path / "code.th")
