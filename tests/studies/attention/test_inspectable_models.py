"""Models of transformers for inspection equal transformers' own; patches as regions, on the page and in pointing."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import homes, toys
from tiny.homes import put
from tiny.regions import store
from torch import Tensor
from transformers import (
    CLIPImageProcessorPil,
    CLIPModel,
    ViltForMaskedLM,
    ViltImageProcessorPil,
    VisualBertConfig,
    VisualBertForPreTraining,
)

import groundling
from groundling.cli import main
from groundling.core.batch import Batch, Example, GoldBoxes, collate
from groundling.core.errors import InputError
from groundling.data.images import read_image
from groundling.data.regions.samples import RegionDataset, RegionOptions
from groundling.data.samples import TextDataset
from groundling.models.attention import AttentionMap, PositionKind
from groundling.settings.fields import make_settings
from groundling.studies.attention.commands import (
    MODALITY,
    AnalysedModelSettings,
    ModalityConfig,
    VisualizeConfig,
)
from groundling.studies.attention.inspected_models import RegionModel, randomize_weights
from groundling.studies.attention.models import (
    ClipTowers,
    PatchReader,
    PatchStore,
    Vilt,
    cut_patches,
    load_vilt,
    pointing_game,
    visible_part,
)
from groundling.studies.attention.page.views import InspectedModel
from groundling.vision_language.loading import load_encoder

TEXTS = ("a red dog runs", "two cats")
NAMES = [f"image{n}" for n in range(4)]
SIZES = ((70, 40), (33, 50))
"""Width and height of photos whose grids differ: ViLT cuts 6 x 3 patches, and 4 x 6."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ViLT, CLIP, VisualBERT and LXMERT of transformers, two photos, and a store of regions."""
    folder = tmp_path_factory.mktemp("inspected")
    homes.vilt(folder / "vilt")
    homes.seeing_clip(folder / "clip")
    for number, size in enumerate(SIZES):
        homes.noise(folder / f"photos/{number}.png", size, number)
    words = toys.bert_words()
    homes.home(folder / "lxmert", toys.lxmert(words), words)
    torch.manual_seed(0)
    sizes = {"max_position_embeddings": 64, "visual_embedding_dim": 12, **toys.SMALL, **toys.SPREAD}
    model = VisualBertForPreTraining(VisualBertConfig(vocab_size=len(words), **sizes))
    homes.home(folder / "visualbert", model, words)
    store(folder / "store", NAMES)
    return folder


def batch_of(model: PatchReader, place: Path) -> Batch:
    examples = [Example(f"{n}", text, images=(f"{n}",)) for n, text in enumerate(TEXTS)]
    texts = TextDataset(examples, model.inputs(128)[0])
    patches = PatchStore(model, {f"{n}": place / f"photos/{n}.png" for n in range(2)})
    samples = RegionDataset(texts, patches, RegionOptions(whole_image=model.reads_whole_image))
    return collate(samples.get(range(2), ()))


def told(model: Any, batch: Batch) -> tuple[Any, dict[str, list[AttentionMap]]]:
    found: dict[str, list[AttentionMap]] = {}
    with torch.no_grad():
        encoded = model(batch, lambda one: found.setdefault(one.name, []).append(one))
    return encoded, found


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


# -- equal to transformers' own ----------------------------------------------------------------------------------------
def test_vilt_is_transformers_own(place: Path, monkeypatch: Any) -> None:
    """It shuffles the patches of every photo, and pads the smaller one."""
    theirs = ViltForMaskedLM.from_pretrained(place / "vilt").vilt.eval().double()
    processor = ViltImageProcessorPil.from_pretrained(place / "vilt")
    model = load_encoder(place / "vilt").double()
    assert isinstance(model, Vilt) and model.region_source == "patches"
    batch = batch_of(model, place)
    photos = [read_image(place / f"photos/{n}.png") for n in range(2)]
    pixels = processor(images=photos, return_tensors="pt")
    assert not pixels["pixel_mask"].all() and not batch.text.attention_mask.all()
    drawn: list[Tensor] = []
    embed = theirs.embeddings.visual_embed

    def recorded(*arguments: Any, **options: Any) -> Any:
        out = embed(*arguments, **options)
        drawn.append(out[2][0])
        return out

    monkeypatch.setattr(theirs.embeddings, "visual_embed", recorded)
    texts = {"input_ids": batch.text.input_ids, "attention_mask": batch.text.attention_mask.long()}
    with torch.no_grad():
        expected = theirs(
            **texts, **pixels, token_type_ids=batch.text.token_type_ids, output_attentions=True
        )
    encoded, maps = told(model, batch)
    assert len(maps["self"]) == len(expected.attentions) == 2
    tokens = batch.text.input_ids.shape[1]
    close(encoded.pooler_output, expected.pooler_output)
    for row, (high, wide) in enumerate(((3, 6), (6, 4))):
        own = [place for place in range(tokens) if batch.text.attention_mask[row, place]]
        here = own + [tokens + n for n in range(1 + high * wide)]
        # The index of each of our patches, row by row, in their order.
        order = {(y, x): n for n, (y, x) in enumerate(drawn[0][row].tolist())}
        patches = [order[y, x] for y in range(high) for x in range(wide)]
        there = own + [tokens] + [tokens + 1 + n for n in patches]
        ours = torch.cat([encoded.text, encoded.visual], 1)
        close(ours[row, here], expected.last_hidden_state[row, there])
        for one, other in zip(maps["self"], expected.attentions, strict=True):
            close(one.weights[row][:, here][:, :, here], other[row][:, there][:, :, there])
            kinds = one.columns.kinds[row]
            assert (kinds[here] != PositionKind.PADDING).all()
            assert (kinds == PositionKind.PADDING).sum() == len(kinds) - len(here)
            assert (
                kinds[tokens] == PositionKind.IMAGE_CLASS
                and kinds[tokens + 1] == PositionKind.REGION
            )
    assert not any(part._forward_hooks for part in model.modules())


def test_clips_towers_are_transformers_own(place: Path) -> None:
    theirs = CLIPModel.from_pretrained(place / "clip", attn_implementation="eager").eval()
    processor = CLIPImageProcessorPil.from_pretrained(place / "clip")
    model = load_encoder(place / "clip", for_inspection=True)
    assert isinstance(model, ClipTowers)
    batch = batch_of(model, place)
    photos = [read_image(place / f"photos/{n}.png") for n in range(2)]
    with torch.no_grad():
        image = theirs.vision_model(
            **processor(images=photos, return_tensors="pt"), output_attentions=True
        )
        text = theirs.text_model(
            input_ids=batch.text.input_ids,
            attention_mask=batch.text.attention_mask.long(),
            output_attentions=True,
        )
    encoded, maps = told(model, batch)
    close(encoded.visual, image.last_hidden_state)
    inside = batch.text.attention_mask
    close(encoded.text[inside], text.last_hidden_state[inside])
    assert list(maps) == ["image over image", "text over text"]
    for some, expected in zip(maps.values(), (image, text), strict=True):
        assert [one.layer for one in some] == [0, 1]
        for one, other in zip(some, expected.attentions, strict=True):
            close(one.weights, other)


# -- patches -----------------------------------------------------------------------------------------------------------
def sloping(size: tuple[int, int]) -> Image.Image:
    """A photo that gets redder to the right and greener downwards."""
    x, y = ((np.arange(side) + 0.5) / side * 255 for side in size)
    red, green = np.meshgrid(x, y)
    return Image.fromarray(np.stack([red, green, 0 * red], -1).round().astype(np.uint8))


SQUARE = {"height": 64, "width": 64}
PROCESSORS = {
    "middle": CLIPImageProcessorPil(size={"shortest_edge": 64}, crop_size=SQUARE),
    "a wider middle": CLIPImageProcessorPil(size={"shortest_edge": 96}, crop_size=SQUARE),
    "squeezed": CLIPImageProcessorPil(size=SQUARE, do_center_crop=False),
    "as it is": CLIPImageProcessorPil(do_resize=False, crop_size=SQUARE),
}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("size", [(300, 200), (131, 257)])
def test_boxes_are_where_patches_are_from(name: str, size: tuple[int, int]) -> None:
    processor = PROCESSORS[name]
    made = processor(images=sloping(size), do_normalize=False, return_tensors="np")
    row = cut_patches(made["pixel_values"][0], 16, visible_part(processor, size, 64))
    assert len(row) == 17 and row.is_whole_image.tolist() == [True] + [False] * 16
    centre = (row.boxes[1:, :2] + row.boxes[1:, 2:]) / 2
    colours = row.features[1:].reshape(16, 3, 16, 16).mean((2, 3))
    np.testing.assert_allclose(colours[:, :2], centre, atol=0.012)
    if name == "as it is":  # a small photo is padded
        np.testing.assert_allclose(visible_part(processor, (32, 64), 64), [-0.5, 0, 1.5, 1])


def test_vilts_patches_cover_the_photo_and_stand_upright(place: Path, tmp_path: Path) -> None:
    model = load_vilt(place / "vilt")
    row = model.patches(sloping((300, 200)))
    assert len(row) == 1 + 4 * 6
    centre = (row.boxes[1:, :2] + row.boxes[1:, 2:]) / 2
    colours = row.features[1:].reshape(24, 3, 8, 8).mean((2, 3)) / 2 + 0.5
    np.testing.assert_allclose(colours[:, :2], centre, atol=0.03)
    turned = Image.Exif()
    turned[0x0112] = 6
    path = homes.noise(tmp_path / "turned.png", (40, 70), exif=turned)
    patches = PatchStore(model, {"a": path, "b": homes.noise(tmp_path / "narrow.png", (600, 8))})
    upright = model.patches(Image.open(path).transpose(Image.Transpose.ROTATE_270))
    np.testing.assert_array_equal(patches["a"].features, upright.features)
    assert patches.count("a") == len(upright)
    with pytest.raises(InputError, match=r"narrow\.png: .* 600 x 8 pixels"):
        patches["b"]


def test_random_weights_leave_nothing_of_patches(place: Path) -> None:
    model = load_vilt(place / "vilt")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    after = randomize_weights(model).state_dict()
    again = randomize_weights(load_vilt(place / "vilt")).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in after.items())
    kept = [name for name, value in before.items() if torch.equal(value, after[name])]
    assert all("layernorm" in name.lower() or ".bias" in name for name in kept)
    assert all(after[name].std() < 0.05 for name in after if "patch_embeddings.projection" in name)


# -- looked at ---------------------------------------------------------------------------------------------------------
def looked_at(place: Path, name: str, text: str = TEXTS[0], **settings: Any) -> Any:
    source = str(place / name)
    example = Example("own", text, images=("0",))
    config = VisualizeConfig(**settings)
    return InspectedModel(source, "cpu", config).view(example, place / "photos/0.png")


def test_vilts_words_and_patches_read_each_other(place: Path) -> None:
    view = looked_at(place, "vilt")
    assert view.boxes.are_patches and len(view.boxes.boxes) == 19 and view.boxes.is_whole_image[0]
    assert [word.text for word in view.words] == ["[CLS]", *TEXTS[0].split(), "[SEP]"]
    model = load_encoder(place / "vilt")
    one = batch_of(model, place)
    _, maps = told(model, one)
    weights = maps["self"][1].weights[0].double().numpy()
    tokens = one.text.input_ids.shape[1]
    patches = slice(tokens, tokens + 19)  # the other photo has more
    found = view.layers[1].blocks["boxes", "boxes"]
    np.testing.assert_allclose(found, weights[:, patches, patches], atol=1e-6)
    packed = view.to_json()
    assert packed["patches"] and packed["whole"] == [0]


def test_clips_towers_do_not_meet(place: Path) -> None:
    view = looked_at(place, "clip")
    assert [(one.name, one.number, list(one.blocks)) for one in view.layers] == [
        *(("image", number, [("boxes", "boxes")]) for number in (0, 1)),
        *(("text", number, [("words", "words")]) for number in (0, 1)),
    ]
    for layer in view.layers:
        for block in layer.blocks.values():
            np.testing.assert_allclose(block.sum(-1), 1, atol=1e-6)
    made = groundling.visualize(place / "clip", place / "photos/0.png", TEXTS[0], cpu=True)
    assert "separate towers" in made.models[0][1][0]
    with pytest.raises(InputError, match="of a layer whose words attend to boxes"):
        made.figure(["0-0"])


def test_a_text_without_a_photo(place: Path) -> None:
    made = groundling.visualize(place / "clip", text=TEXTS[0], cpu=True)
    (view,) = made.entries[0]["views"]
    assert view["boxes"] == [] and [one["name"] for one in view["layers"]] == ["text", "text"]
    with pytest.raises(InputError, match="vilt: this model reads photos; also pass image"):
        groundling.visualize(place / "vilt", text=TEXTS[0], cpu=True)


# -- heads and masses --------------------------------------------------------------------------------------------------
def test_a_patch_is_right_whose_centre_lies_in_a_gold_box() -> None:
    """By hand: 2 x 2 patches on 100 x 80 pixels; one centre is in the first box, one on the edge of the second."""
    row = cut_patches(np.zeros((3, 16, 16), np.float32), 8)
    gold = GoldBoxes(np.array([[0, 0, 30, 25], [70, 60, 75, 80]]), (100, 80))
    right = pointing_game(Example("a", "a dog", gold_boxes=gold), row)
    assert right.tolist() == [0, 1, 0, 0, 1]


def test_heads_are_scored_by_pointing_under_its_own_name(place, tmp_path, capsys):
    """RefCOCO+'s files about two photos, with one expression each."""
    images, notes, refs, photos = [], [], [], []
    for n, (width, height) in enumerate(SIZES):
        name = f"COCO_train2014_{n:012d}"
        photos.append(homes.noise(tmp_path / f"images/{name}.png", (width, height), n))
        images.append({"id": n, "width": width, "height": height, "file_name": f"{name}.jpg"})
        notes.append({"id": n, "image_id": n, "category_id": 1, "bbox": [0, 0, 30, 30]})
        said = [{"sent_id": n, "sent": TEXTS[n]}]
        refs.append({"split": "val", "ann_id": n, "image_id": n, "sentences": said})
    about = {"images": images, "annotations": notes, "categories": []}
    put(tmp_path / "instances.json", json.dumps(about))
    put(tmp_path / "refs(unc).p", pickle.dumps(refs, protocol=2))
    flags = ["--model", f"{place}/vilt", "--task", "refcoco+", "--data", str(tmp_path)]
    flags += ["--images", f"{tmp_path}/images", "--min-region-attention", "0", "--cpu"]
    assert main(["heads", *flags, "--out", str(tmp_path / "out")]) == 0
    assert "pointing" in capsys.readouterr().err
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert result["measure"] == "pointing" and "accuracy" not in result["heads"][0]
    chances = []
    for photo, size in zip(photos, SIZES, strict=True):
        boxes = PatchStore(load_vilt(place / "vilt"), {"a": photo})["a"].boxes[1:]
        centre = (boxes[:, :2] + boxes[:, 2:]) / 2 * size
        chances.append(((centre >= 0) & (centre <= 30)).all(1).mean())
    assert result["upper_bound"]["value"] == 100 and result["confidence"] is None
    assert result["chance"]["value"] == round(100 * np.mean(chances), 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [("visualbert", "this model needs regions"), ("vilt", "reads pixels; pass images")],
)
def test_a_model_needs_its_images(name: str, message: str, place: Path) -> None:
    with pytest.raises(InputError, match=message):
        RegionModel(AnalysedModelSettings(model=str(place / name)), torch.device("cpu"))


def test_masses_of_a_vilt(place: Path, tmp_path: Path) -> None:
    """Its class token is special, its patches are visual; its own heads are not used."""
    lines = [f"{text}\t{n}.png" for n, text in enumerate(TEXTS)]
    data = str(put(tmp_path / "captions.tsv", "\n".join(lines) + "\n"))
    given = {"model": str(place / "vilt"), "images": str(place / "photos"), "data": data}
    config = make_settings(ModalityConfig, **given, cpu=True, ig_examples=0)
    (model,) = MODALITY(config, tmp_path / "out")["models"]
    assert model["kind"] == "vilt" and model["inputs"]["undefined"]
    text = load_encoder(place / "vilt").inputs(40)[0]
    samples = TextDataset([Example("a", one) for one in TEXTS], text).get(range(2))
    tokens = [int((~one.text.special_tokens_mask).sum()) for one in samples]
    shares = [n / (n + t + 3) for n, t in zip((18, 24), tokens, strict=True)]
    assert model["uniform"]["visual"]["mean"] == pytest.approx(np.mean(shares), abs=1e-6)


# -- VisualBERT and LXMERT of transformers -----------------------------------------------------------------------------
def test_maps_of_visualbert_are_transformers_own(place: Path) -> None:
    theirs = VisualBertForPreTraining.from_pretrained(
        place / "visualbert", attn_implementation="eager"
    ).eval()
    batch = collate(toys.seen(5).get(range(5), ()))
    with torch.no_grad():
        expected = theirs.visual_bert(
            input_ids=batch.text.input_ids,
            attention_mask=batch.text.attention_mask.long(),
            token_type_ids=batch.text.token_type_ids,
            visual_embeds=batch.regions.features,
            visual_attention_mask=batch.regions.mask.long(),
            visual_token_type_ids=batch.regions.image_index,
            output_attentions=True,
        ).attentions
    maps = told(load_encoder(place / "visualbert"), batch)[1]["self"]
    inside = torch.cat([batch.text.attention_mask, batch.regions.mask], 1)
    assert len(maps) == len(expected) == 2 and not inside.all()
    for one, other in zip(maps, expected, strict=True):
        close(one.weights.transpose(1, 2)[inside], other.transpose(1, 2)[inside])
        assert ((one.columns.kinds == PositionKind.PADDING) == ~inside).all()


def test_the_page_shows_an_lxmert_in_both_directions(place: Path, tmp_path: Path) -> None:
    config = VisualizeConfig(regions=str(place / "store"))
    shown = InspectedModel(str(place / "lxmert"), "cpu", config)
    example = Example("own", toys.sentences()[0], images=(NAMES[0],))
    photo = homes.picture(tmp_path / f"{NAMES[0]}.jpg", size=(60, 40))
    view = shown.view(example, photo)
    blocks = {(one.name, one.number): list(one.blocks) for one in view.layers}
    assert blocks == {
        **{("text", number): [("words", "words")] for number in range(4)},
        **{("text over regions", number): [("words", "boxes")] for number in range(2)},
        **{("regions over text", number): [("boxes", "words")] for number in range(2)},
    }
    seen = shown._image_inputs(NAMES[0], photo)
    batch = collate(list(shown._samples(example, seen).get([0], ())))
    maps = told(load_encoder(place / "lxmert"), batch)[1]
    for layer in view.layers:
        for (_, columns), block in layer.blocks.items():
            assert block.shape[2] == len(view.words if columns == "words" else view.boxes.boxes)
            name = layer.name if " over " in layer.name else f"{layer.name} over {layer.name}"
            own = maps[name][layer.number].weights[0]
            assert block.sum() == pytest.approx(float(own.sum()) * block.shape[1] / own.shape[1])


def test_what_guests_cannot_be_asked(place: Path, tmp_path: Path) -> None:
    captions = [f"{toys.sentences()[n]}\t{NAMES[n % 4]}.jpg" for n in range(8)]
    data = str(put(tmp_path / "captions.tsv", "\n".join(captions) + "\n"))
    given = {"data": data, "regions": str(place / "store"), "cpu": True, "ig_examples": 0}
    config = make_settings(ModalityConfig, model=str(place / "lxmert"), **given)
    with pytest.raises(InputError, match="two-stream"):
        MODALITY(config, tmp_path / "a")
    config = make_settings(ModalityConfig, model=str(place / "visualbert"), **given)
    (model,) = MODALITY(config, tmp_path / "b")["models"]
    assert model["inputs"]["measures"][0].startswith("log-probability"), "HF's own head of words"
    narrow = str(store(tmp_path / "narrow", NAMES, width=6))
    for name in ("lxmert", "visualbert"):
        other = make_settings(AnalysedModelSettings, model=str(place / name), regions=narrow)
        with pytest.raises(InputError, match="12"):
            RegionModel(other, torch.device("cpu"))
