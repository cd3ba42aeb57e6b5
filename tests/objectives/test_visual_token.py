"""CLIP-BERT and ViComTe's distillation: the token, the losses by hand, and runs of both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tiny import homes, toys
from tiny.homes import STEPS, log_of
from tiny.lm_families import FAMILIES, SIZES, Family
from tiny.objectives import captioned_run, tokens_of
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, CLIPModel

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.core.batch import IGNORE, Batch, EncoderOutput, OutputSizes, Tokens, collate
from groundling.core.errors import InputError
from groundling.core.rng import generator
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.attention import PositionKind
from groundling.models.clip import load_clip_image_tower
from groundling.models.text_encoder import TextEncoder
from groundling.models.visual_token import FEATURE, VisualTokenEncoder, load_visual_token_encoder
from groundling.objectives.masked_lm import MaskedLMDistillation
from groundling.settings.fields import make_settings, replace_settings
from groundling.studies.knowledge.commands import PROBE_FACTS, ProbeFactsConfig
from groundling.studies.knowledge.probing_modes import score_by_fill_mask
from groundling.studies.knowledge.visual_facts import VisualFact
from groundling.teachers.text import load_visual_token_teacher
from groundling.vision_language.loading import load_encoder

WIDTH = 6
EXACT = {"rtol": 0, "atol": 2e-6}


def encoder_of(family: Family) -> tuple[TextEncoder, Any]:
    """A family's text encoder without its head, in evaluation mode."""
    words = family.words()
    torch.manual_seed(0)
    model = family.whole(len(words)).base_model
    return TextEncoder(model, words).eval(), words


def rows(words: Any, *numbers: int, max_length: int = 30) -> Batch:
    data = TextDataset(toys.examples(), TextRowEncoder(words, max_length))
    return collate(data.get(numbers))


def with_vectors(batch: Batch, width: int = WIDTH) -> Batch:
    values = generator("vectors").normal(size=(batch.rows, width)).astype(np.float32)
    return replace(batch, features={FEATURE: torch.from_numpy(values)})


PLAIN = [name for name in FAMILIES if name in ("relu bert", "roberta", "electra", "distilbert")]


# -- the token -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PLAIN)
@torch.no_grad()
def test_the_token_has_neither_position_nor_segment(name: str) -> None:
    text, words = encoder_of(FAMILIES[name])
    model = VisualTokenEncoder(text, WIDTH).eval()
    batch = with_vectors(rows(words, 0, 7, 12))
    assert not batch.text.attention_mask.all(), "some rows are padded"
    seen: list[torch.Tensor] = []
    embeddings = text.encoder.embeddings
    hook = embeddings.register_forward_hook(lambda module, given, output: seen.append(output))
    model(batch)
    text(batch)
    hook.remove()
    with_token, without = seen
    vectors = batch.features[FEATURE] @ model.project.weight.T + model.project.bias
    torch.testing.assert_close(with_token[:, -1], embeddings.LayerNorm(vectors), **EXACT)
    inside = batch.text.attention_mask
    torch.testing.assert_close(with_token[:, :-1][inside], without[inside], **EXACT)


@pytest.mark.parametrize("name", PLAIN)
@torch.no_grad()
def test_an_empty_slot_is_the_text_encoder_and_a_full_one_is_not(name: str) -> None:
    text, words = encoder_of(FAMILIES[name])
    model = VisualTokenEncoder(text, WIDTH).eval()
    batch = rows(words, 0, 7, 12)
    inside = batch.text.attention_mask
    plain = text(batch).text
    assert torch.equal(model(batch).text, plain)
    full = with_vectors(batch)
    found = model(full)
    assert found.text.shape == plain.shape, "the visual token's state is dropped"
    assert (found.text - plain).abs()[inside].max() > 1e-3
    other = replace(full, features={FEATURE: full.features[FEATURE].flip(0)})
    moved = (model(other).text - found.text).abs().amax((1, 2))
    assert moved[0] > 1e-4 and moved[2] > 1e-4 and moved[1] < 1e-6, "each row reads its own"


@pytest.mark.parametrize(("name", "longest"), [("relu bert", 0), ("roberta", 2)])
@torch.no_grad()
def test_the_longest_text_fits(name: str, longest: int) -> None:
    text, words = encoder_of(FAMILIES[name])
    assert text.max_length == SIZES["max_position_embeddings"] - longest
    ids = torch.randint(10, 60, (1, text.max_length))
    every = torch.ones_like(ids, dtype=torch.bool)
    full = Tokens(ids, every, ~every, torch.zeros_like(ids), torch.zeros_like(ids))
    batch = replace(with_vectors(rows(words, 0)), text=full)
    assert VisualTokenEncoder(text, WIDTH).eval()(batch).text.shape[1] == text.max_length


def test_no_position_gets_a_gradient_of_the_token() -> None:
    only_token = VisualTokenEncoder(encoder_of(FAMILIES["relu bert"])[0], WIDTH)
    tables = only_token.text.encoder.embeddings
    batch = with_vectors(rows(only_token.text.tokenizer, 0))
    arguments = only_token._arguments(batch, batch.text, batch.features[FEATURE])
    names = ("inputs_embeds", "position_ids", "token_type_ids")
    embedded = tables(**{name: arguments[name] for name in names})
    (embedded[:, -1] * torch.arange(32.0)).sum().backward()
    for table in (tables.position_embeddings, tables.token_type_embeddings):
        assert table.weight.grad.abs().max() < 1e-4 * only_token.project.bias.grad.abs().max()


def test_a_new_projection_starts_as_a_linear_of_bert() -> None:
    text, _ = encoder_of(FAMILIES["relu bert"])
    model = VisualTokenEncoder(text, 2000)
    spread = text.encoder.config.initializer_range
    assert float(model.project.weight.detach().std()) == pytest.approx(spread, rel=0.05)
    electra, _ = encoder_of(FAMILIES["electra"])
    assert VisualTokenEncoder(electra, WIDTH).project.out_features == 16 != electra.sizes.text


@torch.no_grad()
def test_attention_maps_have_a_column_for_the_token() -> None:
    text, words = encoder_of(FAMILIES["relu bert"])
    model = VisualTokenEncoder(text, WIDTH).eval()
    batch = with_vectors(rows(words, 0, 7))
    maps: list[Any] = []
    model(batch, maps.append)
    length = batch.text.input_ids.shape[1]
    assert len(maps) == 2
    for one in maps:
        assert one.weights.shape[-2:] == (length + 1, length + 1)
        assert (one.columns.kinds[:, -1] == PositionKind.WHOLE_IMAGE).all()
        assert (one.weights[..., -1] > 0).all(), "every token reads it"


def test_what_has_no_token_without_a_position_is_refused() -> None:
    words = toys.bert_words()
    for made in (toys.modernbert, toys.deberta):
        with pytest.raises(InputError, match="a visual token needs one of bert"):
            VisualTokenEncoder(TextEncoder(made(len(words)), words), WIDTH)
    text = TextEncoder(toys.bert(len(words)), words)
    with pytest.raises(InputError, match="the width must be above 0"):
        VisualTokenEncoder(text, 0)
    model = VisualTokenEncoder(text, WIDTH)
    with pytest.raises(InputError, match="does not return its layers"):
        model.return_layers()
    with pytest.raises(InputError, match="the visual token was trained with another CLIP"):
        model(with_vectors(rows(words, 0), 9))


def test_a_folder_is_loaded_as_it_was(tmp_path: Path) -> None:
    words = toys.bert_words()
    model = VisualTokenEncoder(TextEncoder(toys.bert(len(words)), words), WIDTH).eval()
    model.export(tmp_path)
    again = load_encoder(tmp_path).eval()
    assert isinstance(again, VisualTokenEncoder)
    batch = with_vectors(rows(words, 0, 7))
    with torch.no_grad():
        assert torch.equal(model(batch).text, again(batch).text)
    plain = AutoModel.from_pretrained(tmp_path / "text")
    assert {*plain.state_dict()} == {*model.text.encoder.state_dict()}
    homes.student(tmp_path / "text")
    (tmp_path / "visual_token.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match=r"visual_token\.safetensors"):
        load_visual_token_encoder(tmp_path)


# -- the loss --------------------------------------------------------------------------------------------------------
class Fixed(torch.nn.Module):
    """A head whose logits are the states themselves."""

    def forward(self, states: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return states


def small(positions: str, student: list, teacher: list, masked: list) -> tuple[Any, Any, Batch]:
    """The objective, an output and a batch of logits (2, 3, K): a special token, a token, and a token or padding."""
    said, told = torch.tensor(student), torch.tensor(teacher)
    objective = MaskedLMDistillation(
        OutputSizes(text=4, input_embeddings=(said.shape[-1], 4)),
        mlm_distillation_positions=positions,
    )
    objective.head = Fixed()
    tokens = tokens_of(torch.tensor([[2, 1, 1], [2, 1, 0]]))
    labels = torch.where(torch.tensor(masked), 5, IGNORE)
    batch = Batch(
        ("a", "b"), text=tokens, labels={"masked_lm": labels}, features={"mlm_logits": told}
    )
    return objective, EncoderOutput(text=said, input_embeddings=torch.zeros(2, 4)), batch


@pytest.mark.parametrize("positions", ["tokens", "masked", "released"])
def test_the_divergence_in_numpy(positions: str) -> None:
    rng = np.random.default_rng(3)
    student, teacher = rng.normal(size=(2, 2, 3, 11)) * 2
    masked = [[False, False, True], [False, True, False]]
    objective, encoded, batch = small(positions, student.tolist(), teacher.tolist(), masked)
    scored = {
        "tokens": [(0, 1), (0, 2), (1, 1)],
        "masked": [(0, 2), (1, 1)],
        "released": [(n, t) for n in range(2) for t in range(3)],
    }[positions]
    total = 0.0
    for place in scored:
        p = np.exp(teacher[place]) / np.exp(teacher[place]).sum()
        q = np.exp(student[place]) / np.exp(student[place]).sum()
        total += sum(p[w] * (np.log(p[w]) - np.log(q[w])) for w in range(11))
    found = objective(encoded, batch)["mlm_distillation"]
    assert float(found) == pytest.approx(total, rel=1e-5)
    count = 2 if positions == "released" else len(scored)  # texts, or tokens
    assert objective.count(batch) == {"mlm_distillation": count}
    if positions == "released":  # what the released code computes
        batchmean = torch.nn.KLDivLoss(reduction="batchmean")(
            encoded.text.log_softmax(-1), batch.features["mlm_logits"].softmax(-1)
        )
        torch.testing.assert_close(found / count, batchmean, rtol=1e-5, atol=1e-5)


# -- runs ------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captions with images, plain text, a student and a CLIP."""
    root = tmp_path_factory.mktemp("clip_bert")
    captioned_run(root, "mlm")
    homes.text(root / "plain.txt", 16)
    return root


def config(place: Path, arm: str, **more: Any) -> AdaptConfig:
    given = {
        "student": str(place / "student"),
        "teacher": str(place / "clip"),
        "text": (str(place / "captions.json"),),
        "teacher_images": str(place / "photos"),
        "arm": arm,
        "max_length": 40,
        "save_joint": True,
    }
    return make_settings(AdaptConfig, **{**given, **more})


PACE = replace(STEPS, freeze_encoder_ratio=0.0)


@pytest.fixture(scope="module")
def clip_bert(place: Path) -> tuple[Path, dict[str, Any]]:
    out = place / "clip_bert"
    return out, adapt(config(place, "visual_token_mlm"), PACE, out)


def distilling(place: Path, **more: Any) -> AdaptConfig:
    teacher = str(place / "clip_bert" / "joint")
    return config(place, "mlm_distillation", mlm_teacher=teacher, save_joint=False, **more)


def test_a_run_of_clip_bert(place: Path, clip_bert: tuple[Path, dict]) -> None:
    out, result = clip_bert
    assert set(result["train_metrics"]) == {"mlm", "loss"}
    assert not [note for note in result.get("notes", ()) if "no effect" in note]
    model = load_visual_token_encoder(out / "joint")
    assert model.project.weight.shape == (32, 24)
    for name, value in AutoModel.from_pretrained(out / "model").state_dict().items():
        torch.testing.assert_close(model.text.encoder.state_dict()[name], value)
    # The plain encoder fills masks with the head that was trained: the paper's implicit mode.
    assert result["fills_masks"] == "this run's"
    whole = AutoModelForMaskedLM.from_pretrained(out / "model")
    heads = load_file(out / "joint" / "groundling_heads.safetensors")
    torch.testing.assert_close(
        whole.state_dict()["cls.predictions.bias"], heads["masked_lm.head.cls.predictions.bias"]
    )


def test_new_layers_that_train_as_the_encoder_does_are_noted(place, clip_bert, tmp_path):
    gentle = replace(PACE, freeze_encoder_ratio=0.2, head_lr=20.0)

    def noted(result: dict[str, Any]) -> bool:
        return any("are not heads" in note for note in result.get("notes", ()))

    assert noted(adapt(config(place, "visual_token_mlm"), gentle, tmp_path / "around"))
    assert not noted(adapt(config(place, "mlm", save_joint=False), gentle, tmp_path / "plain"))
    assert not noted(clip_bert[1])


def batches_of(given: AdaptConfig, out: Path, kind: type = VisualTokenEncoder) -> list[Batch]:
    """What the model reads in a run's first step."""
    seen: list[Batch] = []

    def keep(module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        if type(module) is kind:
            seen.append(arguments[0])

    hook = torch.nn.modules.module.register_module_forward_pre_hook(keep)
    try:
        adapt(given, replace(PACE, steps=1), out)
    finally:
        hook.remove()
    return seen


def test_the_image_is_read_as_clip_returns_it(place: Path) -> None:
    (batch,) = batches_of(config(place, "visual_token_mlm"), place / "watched")
    tower = load_clip_image_tower(str(place / "clip"))
    vectors = []
    for photo in sorted((place / "photos").glob("*.png")):
        with Image.open(photo) as image:
            pixels = torch.from_numpy(tower.preprocess(image.convert("RGB")))[None]
        with torch.no_grad():
            vectors.append(tower.projection(tower(pixels))[0])
    every = torch.stack(vectors)
    assert (every.norm(dim=-1) - 1).abs().min() > 1e-2, "not of unit length"
    for vector in batch.features[FEATURE]:
        assert float((every - vector).abs().amax(1).min()) < 1e-4


def test_texts_and_masks_are_those_of_the_control(place: Path) -> None:
    control = config(place, "mlm", teacher="", teacher_images="", save_joint=False)
    (other,) = batches_of(control, place / "control", TextEncoder)
    (one,) = batches_of(config(place, "visual_token_mlm"), place / "same")
    assert one.ids == other.ids
    assert torch.equal(one.text.input_ids, other.text.input_ids)
    assert torch.equal(one.labels["masked_lm"], other.labels["masked_lm"])
    assert FEATURE in one.features and not other.features


def test_texts_without_images_train_with_an_empty_slot(place: Path) -> None:
    files = (f"{place / 'captions.json'}=1", f"{place / 'plain.txt'}=1")
    out = place / "mixed"
    result = adapt(config(place, "visual_token_mlm", text=files), replace(PACE, steps=6), out)
    assert result["texts"] == 32
    assert all(line["mlm"] > 0 for line in log_of(out))
    only = config(place, "visual_token_mlm", text=(str(place / "plain.txt"),))
    with pytest.raises(InputError, match="no file has captions with their images"):
        adapt(only, PACE, place / "only")


def test_distillation_beside_texts_without_images(place: Path, clip_bert: Any) -> None:
    files = (f"{place / 'captions.json'}=1", f"{place / 'plain.txt'}=1")
    with pytest.raises(InputError, match="its lines have no images, which every objective"):
        adapt(distilling(place, text=files), PACE, place / "no")


@torch.no_grad()
def test_a_teacher_agrees_with_itself_and_reads_the_image(place: Path, clip_bert: Any) -> None:
    words = AutoTokenizer.from_pretrained(place / "student")
    teacher = load_visual_token_teacher(clip_bert[0] / "joint", words)
    batch = with_vectors(rows(words, 0, 7), 24)
    logits = teacher.features(batch)["mlm_logits"]
    assert logits.shape == (*batch.text.input_ids.shape, len(words))
    objective = MaskedLMDistillation(teacher.model.sizes, mlm_distillation_positions="released")
    objective.head.load_state_dict(teacher.head.state_dict())
    told = replace(batch, features={"mlm_logits": logits})
    blank = {"masked_lm": torch.full_like(batch.text.input_ids, IGNORE)}
    told = replace(told, labels=blank)
    same = objective(teacher.model(batch), told)["mlm_distillation"]
    assert abs(float(same)) < 1e-3
    blind = objective(teacher.model.text(batch), told)["mlm_distillation"]
    assert float(blind) > 10 * abs(float(same))
    assert teacher.features(rows(words, 0)) == {}


def test_bad_settings_are_named(place: Path, clip_bert: Any, tmp_path: Path) -> None:
    others = toys.roberta_words()
    roberta = str(homes.home(tmp_path / "roberta", toys.roberta(len(others)), others))
    headless = tmp_path / "headless"
    load_visual_token_encoder(clip_bert[0] / "joint").export(headless)
    token, distilled = config(place, "visual_token_mlm"), distilling(place)
    both = "^arm=mlm.visual_token_mlm: mlm and visual_token_mlm both mask the text"
    for start, changed, told in (
        (token, {"arm": "mlm+visual_token_mlm"}, both),
        (token, {"teacher_images": ""}, "needs teacher_images"),
        (distilled, {"mlm_teacher": ""}, "^mlm_distillation needs mlm_teacher=FOLDER, the folder"),
        (distilled, {"mlm_teacher": str(headless)}, "has no masked-LM head"),
        (distilled, {"save_joint": True}, "no cross-modal model"),
        (distilled, {"student": roberta}, "its tokenizer differs from the student's"),
    ):
        with pytest.raises(InputError, match=told):
            adapt(replace_settings(start, **changed), PACE, tmp_path / "no")


# -- inference -------------------------------------------------------------------------------------------------------
def one_fact() -> VisualFact:
    prompts = {"p": "a [MASK] dog", "q": "dog is [MASK]"}
    return VisualFact("f", "dog", "colour", ("red", "blue"), np.array([1.0, 0]), "", prompts)


@torch.no_grad()
def test_explicit_inference_by_hand(place: Path, clip_bert: Any) -> None:
    joint = clip_bert[0] / "joint"
    fact = one_fact()
    told, _ = score_by_fill_mask(joint, [fact], visual_token_clip=place / "clip")
    empty, _ = score_by_fill_mask(joint, [fact])
    implicit, _ = score_by_fill_mask(clip_bert[0] / "model", [fact])
    for template in fact.prompts:
        assert empty[0][template] == pytest.approx(implicit[0][template], abs=1e-5)
        assert np.abs(told[0][template] - empty[0][template]).max() > 1e-4
    words = AutoTokenizer.from_pretrained(place / "student")
    clip = CLIPModel.from_pretrained(place / "clip")
    tokens = AutoTokenizer.from_pretrained(place / "clip")
    whole = AutoModelForMaskedLM.from_pretrained(clip_bert[0] / "model")
    weights = load_file(joint / "visual_token.safetensors")
    embeddings = whole.bert.embeddings
    for template, prompt in fact.prompts.items():
        for option, word in enumerate(fact.options):
            count = len(words(word, add_special_tokens=False)["input_ids"])
            masks = " ".join([words.mask_token] * count)
            ids = words(prompt.replace("[MASK]", masks), return_tensors="pt")["input_ids"]
            read = tokens(prompt, return_tensors="pt")
            text = clip.text_model(**read).last_hidden_state[0, -1]
            vector = weights["weight"] @ clip.text_projection(text) + weights["bias"]
            states = torch.cat([embeddings(ids), embeddings.LayerNorm(vector)[None, None]], 1)
            for layer in whole.bert.encoder.layer:
                states = layer(states, None)
                states = states[0] if isinstance(states, tuple) else states
            logits = whole.cls(states[0, :-1][ids[0] == words.mask_token_id]).log_softmax(-1)
            own = words(word, add_special_tokens=False)["input_ids"]
            by_hand = float(np.mean([logits[i, token] for i, token in enumerate(own)]))
            assert told[0][template][option] == pytest.approx(by_hand, abs=1e-3)


def test_a_prompt_that_clip_cannot_read_whole_is_named(place: Path, clip_bert: Any) -> None:
    long = replace(one_fact(), prompts={"p": f"a [MASK] dog {'on the beach ' * 6}"})
    with pytest.raises(InputError, match="tokens too long"):
        score_by_fill_mask(clip_bert[0] / "joint", [long], visual_token_clip=place / "clip")


def test_probe_facts_reads_both_modes(place, clip_bert, tmp_path, monkeypatch):
    monkeypatch.setattr(toys, "WINDOW", 48)
    clip = str(homes.teacher(tmp_path / "clip"))
    row = {"item": "dog", "descriptor": "a", "label": "red"}
    other = {"item": "cat", "descriptor": "a", "label": "blue"}
    data = homes.put(tmp_path / "memory_colors.jsonl", f"{json.dumps(row)}\n{json.dumps(other)}\n")
    joint = str(clip_bert[0] / "joint")
    asked = ProbeFactsConfig(model=joint, data=str(data), modes=("fill-mask",))
    implicit = PROBE_FACTS(asked, tmp_path / "implicit")
    explicit = PROBE_FACTS(replace(asked, visual_token_clip=clip), tmp_path / "explicit")
    assert implicit["fill-mask"]["relations"] != explicit["fill-mask"]["relations"]
    stroop = replace(asked, modes=("stroop",))
    plain = replace(asked, model=str(place / "student"), visual_token_clip=clip)
    for told, expected in (
        (stroop, "only modes fill-mask reads; pass its encoder"),
        (replace(stroop, visual_token_clip=clip), "which only modes fill-mask reads"),
        (plain, "is no CLIP-BERT; leave it out"),
    ):
        with pytest.raises(InputError, match=expected):
            PROBE_FACTS(told, tmp_path / "no")
