"""Models of transformers for inspection: their outputs and attention equal those of transformers'
own call.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import homes, toys
from tiny.homes import put
from tiny.regions import store
from transformers import (
    BertTokenizer,
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
    AttentionBatch,
    RegionModel,
    SampleArrays,
    consume_attention,
    shuffle_images,
)
from groundling.studies.attention.page.inspected_model import InspectedModel
from groundling.vision_language.loading import load_encoder

NAMES = [f"image{n}" for n in range(4)]


@pytest.fixture(scope="module")
def words() -> BertTokenizer:
    return toys.bert_words()


@pytest.fixture(scope="module")
def visualbert(tmp_path_factory: pytest.TempPathFactory, words: BertTokenizer) -> Path:
    torch.manual_seed(0)
    sizes = {"max_position_embeddings": 64, "visual_embedding_dim": 12, **toys.SMALL, **toys.SPREAD}
    model = VisualBertForPreTraining(VisualBertConfig(vocab_size=len(words), **sizes))
    return homes.home(tmp_path_factory.mktemp("visualbert"), model, words)


@pytest.fixture(scope="module")
def lxmert(tmp_path_factory: pytest.TempPathFactory, words: BertTokenizer) -> Path:
    return homes.home(tmp_path_factory.mktemp("lxmert"), toys.lxmert(words), words)


def batch_of(count: int = 5) -> Batch:
    return collate(toys.seen(count).get(range(count), ()))


def maps_of(model: torch.nn.Module, batch: Batch) -> dict[str, list[AttentionMap]]:
    found: dict[str, list[AttentionMap]] = {}
    with torch.no_grad():
        model(batch, lambda one: found.setdefault(one.name, []).append(one))
    return found


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_maps_of_visualbert_are_transformers_own(visualbert: Path) -> None:
    theirs = VisualBertForPreTraining.from_pretrained(
        visualbert, attn_implementation="eager"
    ).eval()
    batch = batch_of()
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
    maps = maps_of(load_encoder(visualbert), batch)["self"]
    inside = torch.cat([batch.text.attention_mask, batch.regions.mask], 1)
    assert len(maps) == len(expected) == 2 and not inside.all()
    for one, other in zip(maps, expected, strict=True):
        rows = one.weights.transpose(1, 2)[inside]
        close(rows, other.transpose(1, 2)[inside])
        assert ((one.columns.kinds == PositionKind.PADDING) == ~inside).all()


class MapMaxima(SampleArrays):
    """The maximum of every map of text over regions."""

    def consume(self, seen: AttentionBatch, one: AttentionMap) -> None:
        if one.name == "text over regions":
            self.put(seen.places, one.layer, one.weights.amax((1, 2, 3)).numpy())


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(tmp_path_factory.mktemp("guests") / "store", NAMES)


def test_an_lxmert_takes_part_in_a_pass(lxmert: Path, regions: Path) -> None:
    device = torch.device("cpu")
    config = make_settings(AnalysedModelSettings, model=str(lxmert), regions=str(regions))
    examples = [Example(str(n), toys.sentences()[n], images=(NAMES[n],)) for n in range(4)]
    attended = RegionModel(config, device)
    partner = shuffle_images(NAMES, 0)
    seen = []
    for others in (False, True):
        kept = MapMaxima()
        consume_attention(
            attended.model, attended.samples(examples, partner if others else None), kept, 3
        )
        assert kept.stacked().shape == (4, 2)
        seen.append(kept.stacked())
    assert (seen[0] != seen[1]).all(), "looks of other images"
    kept = MapMaxima()
    other = RegionModel(
        make_settings(
            AnalysedModelSettings, model=str(lxmert), regions=str(regions), untrained=True
        ),
        device,
    )  # type: ignore[arg-type]
    consume_attention(other.model, other.samples(examples), kept)
    assert (kept.stacked() != seen[0]).all()


def test_the_page_shows_an_lxmert_in_both_directions(
    lxmert: Path, regions: Path, tmp_path: Path
) -> None:
    config = VisualizeConfig(regions=str(regions))
    shown = InspectedModel(str(lxmert), "cpu", config)
    example = Example("own", toys.sentences()[0], images=(NAMES[0],))
    view = shown.view(example, homes.picture(tmp_path / f"{NAMES[0]}.jpg", size=(60, 40)))
    blocks = {(one.name, one.number): list(one.blocks) for one in view.layers}
    assert blocks == {
        **{("text", number): [("words", "words")] for number in range(4)},
        **{("text over regions", number): [("words", "boxes")] for number in range(2)},
        **{("regions over text", number): [("boxes", "words")] for number in range(2)},
    }
    seen = shown._image_inputs(NAMES[0], tmp_path / f"{NAMES[0]}.jpg")
    batch = collate(list(shown._samples(example, seen).get([0], ())))
    maps = maps_of(load_encoder(lxmert), batch)
    for layer in view.layers:
        for (_, columns), block in layer.blocks.items():
            assert block.shape[2] == len(view.words if columns == "words" else view.boxes.boxes)
            name = layer.name if " over " in layer.name else f"{layer.name} over {layer.name}"
            own = maps[name][layer.number].weights[0]
            assert block.sum() == pytest.approx(float(own.sum()) * block.shape[1] / own.shape[1])


def test_what_guests_cannot_be_asked_is_one_line(
    lxmert: Path, visualbert: Path, regions: Path, tmp_path: Path
) -> None:
    captions = [f"{toys.sentences()[n]}\t{NAMES[n % 4]}.jpg" for n in range(8)]
    data = str(put(tmp_path / "captions.tsv", "\n".join(captions) + "\n"))
    given = {"data": data, "regions": str(regions), "cpu": True, "ig_examples": 0}
    config = make_settings(ModalityConfig, model=str(lxmert), **given)
    with pytest.raises(InputError, match="two-stream"):
        MODALITY(config, tmp_path / "a")
    config = make_settings(ModalityConfig, model=str(visualbert), **given)
    (model,) = MODALITY(config, tmp_path / "b")["models"]
    assert model["inputs"]["measures"][0].startswith("log-probability"), "HF's own head of words"
    narrow = str(store(tmp_path / "narrow", NAMES, width=6))
    for folder in (lxmert, visualbert):
        with pytest.raises(InputError, match="12"):
            RegionModel(
                make_settings(AnalysedModelSettings, model=str(folder), regions=narrow),
                torch.device("cpu"),
            )
