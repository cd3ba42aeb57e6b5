"""Single-stream models against Hugging Face's VisualBERT, a plain BERT, and plain restatements without padding."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import toys
from torch import nn
from transformers import BertConfig, BertModel, VisualBertConfig, VisualBertForPreTraining

from groundling.commands.info.parameters import count_parameters
from groundling.core.batch import RegionRow, collate
from groundling.core.errors import InputError
from groundling.models.attention import PositionKind
from groundling.vision_language import single_stream as released_weights
from groundling.vision_language import uniter as uniter_file
from groundling.vision_language import visualbert as visualbert_file
from groundling.vision_language import vlbert as vlbert_file
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.single_stream import JOIN, add_token_types
from groundling.vision_language.uniter import UniterEmbeddings, uniter
from groundling.vision_language.visualbert import VisualBertEmbeddings, visualbert
from groundling.vision_language.vlbert import VLBertEmbeddings, embed_boxes, vlbert

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
            region = np.select(
                [np.isin(text.word_ids, (1, 3)), np.isin(text.word_ids, (4, 5))], [1, 0], -1
            )
            text = replace(text, region_index=region)
        corner, side = rng.uniform(0, 0.5, (2, r, 2)).astype(np.float32)
        features, boxes = (
            rng.normal(size=(r, WIDTH)).astype(np.float32),
            np.concatenate([corner, corner + side], 1),
        )
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
    sizes = {
        "max_position_embeddings": 64,
        "visual_embedding_dim": WIDTH,
        **toys.SMALL,
        **toys.SPREAD,
    }
    theirs = VisualBertForPreTraining(
        VisualBertConfig(vocab_size=len(bert_tokenizer), **sizes)
    ).eval()
    randomise(theirs.visual_bert.embeddings)
    theirs.save_pretrained(tmp_path)
    bert_tokenizer.save_pretrained(tmp_path)
    model, batch, alignment = (
        load_encoder(tmp_path),
        collate(paired(text_only, images, named)),
        None,
    )
    assert "not used: cls.predictions" in capsys.readouterr().out
    text, regions = batch.text, batch.regions
    assert (
        not text.attention_mask.all()
        and not regions.mask.all()
        and regions.image_index.max() == images - 1
    )
    if named:
        alignment, tokens = torch.full((4, 7, 20), -1), 0
        for b, r in ((b, r) for b in range(4) for r in (0, 1)):
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
def test_variants_of_visualbert(text_only, bert_tokenizer):
    """Without early fusion (HF's own `bypass_transformer` raises: its parts are put together here), and with boxes."""
    model, batch = built("late", bert_tokenizer), collate(paired(text_only))
    bert, found, alone = model.text.encoder, model(batch), model.text(batch).text
    joined = model.join(bert.embeddings, batch)
    for b in range(4):
        t, r = batch.text.attention_mask[b], batch.regions.mask[b]
        expected = model.fusion(torch.cat([alone[b, t], joined.states[b, joined.regions][r]])[None])
        close(torch.cat([found.text[b, t], found.visual[b, r]])[None], expected)
        close(found.pooler_output[b], bert.pooler(expected)[0])
    assert (found.text - alone).abs().max() > 0.1
    boxed, plain = (
        VisualBertEmbeddings(bert, WIDTH, boxes=True),
        VisualBertEmbeddings(bert, WIDTH + 6),
    )
    plain.load_state_dict(boxed.state_dict())
    x1, y1, x2, y2 = batch.regions.boxes.unbind(-1)
    wide = torch.cat(
        [batch.regions.features, torch.stack([x1, y1, x2, y2, x2 - x1, y2 - y1], -1)], -1
    )
    wide = plain(bert.embeddings, replace(batch, regions=replace(batch.regions, features=wide)))
    close(boxed(bert.embeddings, batch).states, wide.states)


def test_geometry_of_vlbert():
    found = embed_boxes(torch.tensor([[[0.25, 0.0, 0.75, 1.0]]])).view(
        4, 2, 256
    )  # cx 50, cy 50, w 50, h 100
    golden = torch.tensor(
        [[-0.26237, -0.99967, 0.99995, 0.05134], [0.96497, -0.02581, -0.01034, 0.99868]]
    )
    close(found[:3, :, [0, 1, 128, 255]], golden.expand(3, -1, -1), atol=2e-5)
    close(found[3, :, 0], torch.tensor([-0.50637, 0.86232]), atol=2e-5)


@torch.no_grad()
def test_vlbert_begins_as_bert(text_only, bert_tokenizer):
    model, plain = (
        built("vlbert", bert_tokenizer, random=False),
        toys.bert(len(bert_tokenizer)).eval(),
    )
    text = (batch := collate(paired(text_only))).text
    expected = plain(
        text.input_ids,
        attention_mask=text.attention_mask.long(),
        token_type_ids=text.token_type_ids,
    ).last_hidden_state[text.attention_mask]
    for regions in (batch.regions, None):
        joined = model.join(model.text.encoder.embeddings, replace(batch, regions=regions))
        assert torch.equal(
            joined.states[:, joined.text], plain.embeddings(text.input_ids, text.token_type_ids)
        )
        joined.mask[:, joined.text.stop :] = False
        close(model.encode(joined)[:, joined.text][text.attention_mask], expected)
        assert (
            model(replace(batch, regions=regions)).text[text.attention_mask] - expected
        ).abs().max() > 0.01  # [END] counts


def restated_vlbert(join, table, text, regions):
    """One sample's embedded sequence, without padding."""
    place, rows, looks, names = (
        table.position_embeddings.weight,
        table.token_type_embeddings.weight,
        [],
        [],
    )
    for (x1, y1, x2, y2), feature, masked in zip(
        regions.boxes, regions.features, regions.masked, strict=True
    ):
        places = (x1 + x2) * 50, (y1 + y2) * 50, (x2 - x1) * 100, (y2 - y1) * 100
        angles = [torch.tensor([at / 1000 ** (k / 256) for k in range(256)]) for at in places]
        numbers = [wave(angle) for angle in angles for wave in (torch.sin, torch.cos)]
        looks.append(
            join.visual(torch.cat([*numbers, join.mask_visual[0] if masked else feature])).relu()
        )
        names.append((join.mask_word if masked else join.image_word)[0])
    end = len(text.input_ids)
    sees = torch.stack(
        [looks[max(0, r)] for r in text.region_index.tolist()]
    )  # the whole image is region 0
    words = (
        table.word_embeddings(text.input_ids)
        + join.norm_text(sees)
        + place[:end]
        + rows[text.token_type_ids]
    )
    after = [
        n + join.norm_region(look) + place[end] + rows[2]
        for n, look in zip(names, looks, strict=True)
    ]
    return table.LayerNorm(torch.stack([*words, *after, join.end[0] + place[end + 1] + rows[2]]))


def restated_uniter(join, table, text, regions):
    place, rows, out = table.position_embeddings.weight, table.token_type_embeddings.weight, []
    words = table.LayerNorm(
        table.word_embeddings(text.input_ids) + rows[0] + place[: len(text.input_ids)]
    )
    for (x1, y1, x2, y2), feature, masked in zip(
        regions.boxes, regions.features, regions.masked, strict=True
    ):
        box = torch.stack([x1, y1, x2, y2, x2 - x1, y2 - y1, (x2 - x1) * (y2 - y1)])
        look = join.feature_norm(join.feature(feature + masked * join.mask.weight[1]))
        out.append(join.norm(look + join.box_norm(join.box(box)) + rows[1]))
    return torch.cat([words, torch.stack(out)])


@pytest.mark.parametrize(
    ("kind", "restated"), [("vlbert", restated_vlbert), ("uniter", restated_uniter)]
)
@torch.no_grad()
def test_join_is_its_plain_restatement(kind, restated, text_only, bert_tokenizer):
    model, batch = (
        built(kind, bert_tokenizer),
        collate(paired(text_only, named=kind == "vlbert", masked=True)),
    )
    bert, found = model.text.encoder, model(batch)
    for b in range(4):
        text, regions = (
            SimpleNamespace(
                **{
                    name: x[b, (part.mask if hasattr(part, "mask") else part.attention_mask)[b]]
                    for name, x in vars(part).items()
                    if x is not None
                }
            )
            for part in (batch.text, batch.regions)
        )
        expected = bert.encoder(
            restated(model.join, bert.embeddings, text, regions)[None]
        ).last_hidden_state[0]
        both = torch.cat(
            [found.text[b, batch.text.attention_mask[b]], found.visual[b, batch.regions.mask[b]]]
        )
        close(both, expected[: len(both)], atol=2e-5)


@torch.no_grad()
def test_segments_of_uniter(text_only, bert_tokenizer):
    bert, batch = toys.bert(len(bert_tokenizer)).eval(), collate(paired(text_only, images=2))
    before, regions = bert.embeddings.token_type_embeddings.weight.clone(), batch.regions
    add_token_types(bert, [1, 0])
    assert torch.equal(bert.embeddings.token_type_embeddings.weight, before[[0, 1, 1, 0]])
    nn.init.normal_(bert.embeddings.token_type_embeddings.weight)
    join, plain = (
        UniterEmbeddings(bert, WIDTH, text_types=(0, 3), image_types=(1, 2)),
        UniterEmbeddings(bert, WIDTH),
    )
    plain.load_state_dict(join.state_dict())
    found = join(bert.embeddings, batch)
    assert torch.equal(
        found.states[:, found.text],
        bert.embeddings(batch.text.input_ids, 3 * batch.text.token_type_ids),
    )
    first = plain(
        bert.embeddings,
        replace(batch, regions=replace(regions, image_index=0 * regions.image_index)),
    )
    assert torch.equal(
        (found.states == first.states).all(-1)[:, found.regions], regions.image_index == 0
    )
    with pytest.raises(InputError, match="a sample has more than the 1 images of this model"):
        plain(bert.embeddings, batch)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_alone_or_in_a_batch_and_all_maps(kind, text_only, bert_tokenizer):
    model, samples = built(kind, bert_tokenizer), paired(text_only, masked=True)
    batch = collate(samples)
    maps = []
    seen, together, mask = (
        model(batch, attention=maps.append),
        model(batch),
        model.join(model.text.encoder.embeddings, batch).mask,
    )
    assert model.text.encoder.config._attn_implementation == "sdpa"
    close(seen.text[batch.text.attention_mask], together.text[batch.text.attention_mask])
    assert len(maps) == (3 if kind == "late" else 2)
    for number, one in enumerate(maps):
        weights = one.weights
        assert (one.name, one.layer) == ("self", number)
        close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        assert not weights.masked_select(~mask[:, None, None, : weights.shape[-1]]).any()
    assert maps[-1].weights.shape == (4, 2, mask.shape[1], mask.shape[1])
    for b, sample in enumerate(samples):
        alone = model(collate([sample]))
        for one, many in zip(
            (alone.text, alone.visual), (together.text, together.visual), strict=True
        ):
            close(many[b, : one.shape[1]], one[0])
        close(together.pooler_output[b], alone.pooler_output[0])


def places_of(sample, tokens, regions, added):
    """What the places of a sample's sequence hold, padded to so many tokens and regions."""
    text = [
        PositionKind.SPECIAL if special else PositionKind.TOKEN
        for special in sample.text.special_tokens_mask
    ]
    text += [PositionKind.PADDING] * (tokens - len(text))
    seen = [
        PositionKind.WHOLE_IMAGE if whole else PositionKind.REGION
        for whole in sample.regions.is_whole_image
    ]
    seen += [PositionKind.PADDING] * (regions - len(seen))
    return text, [*text, *seen, *[PositionKind.ADDED] * added]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_maps_say_what_their_rows_and_columns_are(kind, text_only, bert_tokenizer):
    model, samples = built(kind, bert_tokenizer), paired(text_only)
    batch = collate(samples)
    tokens, regions = batch.text.input_ids.shape[1], batch.regions.mask.shape[1]
    added = int(kind == "vlbert")  # its [END]
    maps = []
    model(batch, attention=maps.append)
    for one in maps:
        over_text = kind == "late" and one is not maps[-1]
        assert one.rows is one.columns
        size = tokens if over_text else tokens + regions + added
        assert one.weights.shape == (4, 2, size, size)
        close(one.weights.sum(-1), torch.ones(4, 2, size))
        for b, sample in enumerate(samples):
            text, every = places_of(sample, tokens, regions, added)
            holds = one.columns.kinds[b]
            assert holds.tolist() == (text if over_text else every)
            assert not one.weights[b, :, :, holds == PositionKind.PADDING].any()
            numbers = [*range(tokens), *range(regions), *range(added)]
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
    assert (model.max_length, model.sizes.visual, model.sizes.regions) == (
        62 if kind == "vlbert" else 64,
        32,
        WIDTH,
    )
    model.export(tmp_path)
    stock, report = BertModel.from_pretrained(tmp_path / "bert", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    again = load_encoder(tmp_path).eval()
    for one, other in ((model(batch), again(batch)), (out, again(texts))):
        assert torch.equal(one.text, other.text) and torch.equal(
            one.pooler_output, other.pooler_output
        )
    parts = count_parameters(str(tmp_path))["components"]
    assert parts["text"] == count(stock) and list(parts)[1:] == ["join", "fusion"][: len(parts) - 1]
    (tmp_path / JOIN).write_text('{"kind": "nobert", "early": true, "options": {}}')
    with pytest.raises(InputError, match="unknown kind 'nobert'"):
        load_encoder(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_learns(kind, text_only, bert_tokenizer):
    model, samples = (
        built(kind, bert_tokenizer, random=False).train(),
        paired(text_only, masked=True),
    )
    if kind == "vlbert":  # texts stand among the pairs in pre-training
        nothing = {name: x[:0] for name, x in vars(samples[0].regions).items() if x is not None}
        samples.append(replace(samples[0], regions=RegionRow(**nothing)))
    batch = collate(samples)
    for _ in range(2):  # VL-BERT's visual path opens with the first step
        out = model.zero_grad() or model(batch)
        (out.text.pow(3).sum() + out.visual.pow(3).sum() + out.pooler_output.sum()).backward()
        torch.optim.SGD(model.parameters(), 1e-4).step()
    assert not [name for name, parameter in model.named_parameters() if not parameter.grad.any()]
    if kind == "vlbert":
        with pytest.raises(InputError, match="the whole image"):
            model(
                replace(batch, regions=replace(batch.regions, is_whole_image=~batch.regions.mask))
            )


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


def test_published_sizes():
    for preset, (total, parts) in SIZES.items():
        found = count_parameters(preset)
        assert (
            (found["total"], list(found["components"].values()))
            == (total, parts)
            == (sum(parts), parts)
        ), preset


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
    checkpoint = {name: torch.ones(1) for name in heads}
    for name, value in model.state_dict().items():
        theirs, ours = max(
            ((t, o) for t, o in names.renamed_prefixes.items() if name.startswith(o)),
            key=lambda x: len(x[1]),
        )
        checkpoint[
            outer + theirs + name.removeprefix(ours).replace("LayerNorm.bias", "LayerNorm.beta")
        ] = value + 1
    torch.save({"state_dict": checkpoint, "epoch": 1}, tmp_path / "a.bin")
    assert released_weights.load_released_weights(other, tmp_path / "a.bin", names) == heads
    assert all(
        torch.equal(value, model.state_dict()[name] + 1)
        for name, value in other.state_dict().items()
    )
    assert (
        f"not used: {heads[0].rpartition('.')[0]}, {heads[1].rpartition('.')[0]};"
        in capsys.readouterr().out
    )
    with pytest.raises(InputError, match=r"Unexpected key.*strange\.weight"):
        released_weights.load_released_weights(
            other, {**checkpoint, "strange.weight": torch.ones(1)}, names
        )
    del checkpoint[f"{outer}encoder.layer.0.output.dense.weight"]
    with pytest.raises(InputError, match=r"Missing key.*text\.encoder\.encoder\.layer\.0"):
        released_weights.load_released_weights(other, checkpoint, names)
    torch.save({"w": VLBertEmbeddings}, tmp_path / "code.th")
    with pytest.raises(InputError, match="not loadable as tensors only"):
        released_weights.read_weights(tmp_path / "code.th")
