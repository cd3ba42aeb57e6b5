"""VisualBERT and LXMERT of transformers: their maps, on the page, and what they cannot be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import homes, toys
from tiny.homes import put
from tiny.regions import store
from torch import Tensor
from transformers import (
    VisualBertConfig,
    VisualBertForPreTraining,
)

from groundling.core.batch import Batch, Example, collate
from groundling.core.errors import InputError
from groundling.models.attention import AttentionMap, PositionKind
from groundling.settings.fields import make_settings
from groundling.studies.attention.commands import (
    MODALITY,
    AnalysedModelSettings,
    ModalityConfig,
    VisualizeConfig,
)
from groundling.studies.attention.inspected_models import (
    RegionModel,
)
from groundling.studies.attention.page.views import InspectedModel
from groundling.vision_language.loading import load_encoder

NAMES = [f"image{n}" for n in range(4)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """VisualBERT and LXMERT of transformers, and a store of regions."""
    folder = tmp_path_factory.mktemp("inspected")
    words = toys.bert_words()
    homes.home(folder / "lxmert", toys.lxmert(words), words)
    torch.manual_seed(0)
    sizes = {"max_position_embeddings": 64, "visual_embedding_dim": 12, **toys.SMALL, **toys.SPREAD}
    model = VisualBertForPreTraining(VisualBertConfig(vocab_size=len(words), **sizes))
    homes.home(folder / "visualbert", model, words)
    store(folder / "store", NAMES)
    return folder


def told(model: Any, batch: Batch) -> tuple[Any, dict[str, list[AttentionMap]]]:
    found: dict[str, list[AttentionMap]] = {}
    with torch.no_grad():
        encoded = model(batch, lambda one: found.setdefault(one.name, []).append(one))
    return encoded, found


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_a_model_needs_its_regions(place: Path) -> None:
    with pytest.raises(InputError, match="this model needs regions"):
        RegionModel(AnalysedModelSettings(model=str(place / "visualbert")), torch.device("cpu"))


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
    given = {"data": data, "regions": str(place / "store"), "cpu": True}
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
