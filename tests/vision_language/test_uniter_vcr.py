"""UNITER on VCR as its authors released it: parts, segments, words for persons, second stage, one model for both."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import homes, toys
from tiny.homes import STEPS, log_of, put
from tiny.regions import store
from tiny.tasks import VCR_OBJECTS, task_texts, unlabelled_texts, vcr_line
from transformers import BertConfig, BertModel

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.core.batch import IGNORE, Example, OutputSizes, Sample, collate
from groundling.core.errors import InputError
from groundling.core.output_types import Classification, MultipleChoice, OpenAnswer, RegionSelection
from groundling.core.registry import resolve
from groundling.data.regions.samples import truncate_to_budget
from groundling.data.samples import MultiVersionTextDataset, TextDataset, TextRowEncoder
from groundling.models.heads import HEADS
from groundling.models.task_heads import HeadContext, PairPooler
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.supervised import SupervisedObjective
from groundling.objectives.targeted_distillation import TargetedTextDistillation
from groundling.settings.fields import make_settings, replace_settings
from groundling.studies.clip_td.commands import VCR as vcr
from groundling.studies.clip_td.commands import VcrJointScoreConfig
from groundling.tasks import Task
from groundling.tasks.vcr import ANSWER, BOTH, RATIONALE, q_to_ar, read_items, select_part
from groundling.vision_language import Architecture
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.single_stream import SingleStreamModel
from groundling.vision_language.uniter import (
    PERSONS,
    UniterBinaryChoiceHead,
    UniterEmbeddings,
    uniter,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vcr")
    homes.student(folder / "bert")
    put(folder / "vcr/train.jsonl", "".join(vcr_line(n) for n in range(8)))
    put(folder / "vcr/val.jsonl", "".join(vcr_line(n) for n in range(6)))
    put(folder / "vcr/test.jsonl", "".join(vcr_line(n, labelled=False) for n in range(2)))
    store(folder / "store", [f"m/{n}" for n in range(8)], objects=3)
    names = [f"{n:03d}" for n in range(8)]
    store(folder / "captioned", names)
    put(folder / "some.token.txt", "".join(f"{name}.jpg#0\ta dog and a car\n" for name in names))
    return folder


@pytest.fixture(scope="module")
def first_stage(place: Path) -> Path:
    config = make_settings(
        PretrainConfig,
        architecture="uniter",
        model=str(place / "bert"),
        regions=str(place / "captioned"),
        captions=str(place / "some.token.txt"),
    )
    pretrain(config, replace(STEPS, steps=6, batch=4), place / "first")
    return place / "first" / "model"


def second_stage(place: Path, first: Path, **changes: object) -> PretrainConfig:
    settings: dict[str, Any] = {
        "architecture": "uniter",
        "model": str(first),
        "regions": str(place / "store"),
        "task": "vcr",
        "data": str(place / "vcr"),
    }
    return make_settings(PretrainConfig, **(settings | changes))


def tiny(**sizes: int) -> SingleStreamModel:
    words = toys.bert_words()
    return uniter(toys.bert(len(words), **sizes), words, width=12)


def ready(pretraining: bool = False) -> SingleStreamModel:
    model = tiny()
    model.prepare([Example("a", "b", object_names=("person",))], pretraining)
    return model


def rationale(place: Path) -> Example:
    """Item 1: "Jessie saw a car ? Casey did ." and its four reasons."""
    return RATIONALE.read(place / "vcr", "val")[1]


def test_the_loss_is_a_mean_over_choices(place: Path) -> None:
    """As released (model/vcr.py: cross_entropy with reduction="mean"), and as distillation terms are."""
    model = ready()
    examples = ANSWER.read(place / "vcr", "val")
    batch = collate(TextDataset(examples, model.inputs(60)[0]).get(range(3), []))
    form = MultipleChoice(("0", "1", "2", "3"))
    head = UniterBinaryChoiceHead(HeadContext(model.sizes, form))
    task = SupervisedObjective(model.sizes, output_type=form, head=head)
    encoded = model(batch)
    is_right = torch.nn.functional.one_hot(batch.labels["label"], 4).view(-1)
    released = torch.nn.functional.cross_entropy(head(encoded, batch), is_right)
    counts = task.count(batch)
    found = task(encoded, batch)["task"] / counts["task"]
    torch.testing.assert_close(found, released)
    distilled = TargetedTextDistillation(model.sizes._replace(teacher=5))
    assert counts["task"] == distilled.count(batch)["td_text"] == task.count_logits(batch) == 12


@pytest.mark.parametrize("pretraining", [False, True])
def test_parts_segments_and_words_by_hand(place: Path, pretraining: bool) -> None:
    model = ready(pretraining)
    text, _ = model.inputs(60)
    example = rationale(place)
    assert (example.text, example.part_starts) == ("Jessie saw a car ? Casey did .", (19,))
    words = model.text.tokenizer
    person = [words.convert_tokens_to_ids(word) for word in PERSONS]
    assert person == list(range(len(words) - 81, len(words)))

    def tokens(text: str) -> list[int]:
        return words(text, add_special_tokens=False)["input_ids"]

    question = [person[2], *tokens("saw a car ?")]
    answer = [person[0], *tokens("did .")]
    reason = [*tokens("it is"), person[2], *tokens(".")]
    start, end = words.cls_token_id, words.sep_token_id
    expected = [start, *question, end, *answer, end, *reason, end]
    (sample,) = TextDataset([example], text).get([0])
    row = sample.choices[0].text
    assert row.input_ids.tolist() == expected
    # Release: a separator has the segment of what follows it; in its second stage, of what it closes.
    q, a, r = [0] * len(question), [1] * len(answer), [2] * len(reason)
    follows = [0, *q, 1, *a, 2, *r, 2]
    closes = [0, *q, 0, *a, 1, *r, 2]
    assert row.part_index.tolist() == (closes if pretraining else follows)
    # BERT's two segments: the second text with its separator.
    assert row.token_type_ids.tolist() == [0] * (len(q) + len(a) + 3) + [1] * (len(r) + 1)
    ends = [0, len(q) + 1, len(q) + len(a) + 2, len(expected) - 1]
    assert np.flatnonzero(row.special_tokens_mask).tolist() == ends
    assert row.region_index[row.input_ids == person[2]].tolist() == [2, 2]
    assert row.region_index[row.input_ids == person[0]].tolist() == [0]
    # Words count on through all parts, as in a row of BERT's.
    plain = TextDataset([example], TextRowEncoder(toys.bert_words(), 64)).get([0])[0].choices[0]
    assert plain.text.part_index is None and max(plain.text.token_type_ids) == 1
    assert set(row.word_ids) == set(plain.text.word_ids)
    assert np.array_equal(sample.choices[0].word_type_ids, plain.word_type_ids)
    bert = model.text.encoder.eval()
    rows = torch.tensor([0, 2, 3])[torch.from_numpy(row.part_index)]
    told = bert.embeddings(torch.from_numpy(row.input_ids)[None], rows[None])[0]
    states = model.eval().join(bert.embeddings, collate([sample])).states[0]
    torch.testing.assert_close(states[: len(expected)], told)


def test_too_long_a_text_loses_tokens_of_its_longest_part(place: Path) -> None:
    text, _ = ready().inputs(60)
    example = rationale(place)

    def read() -> Sample:
        return TextDataset([example], text).get([0])[0].choices[0]

    full = read().text
    text.max_length = len(full.input_ids) - 4
    cut = read()
    assert (len(cut.text.input_ids), cut.truncated_tokens) == (len(full.input_ids) - 4, 4)
    before, after = (
        Counter(one.part_index[~one.special_tokens_mask].tolist()) for one in (full, cut.text)
    )
    cut_parts = [number for number in before if after[number] < before[number]]
    assert all(after[number] >= max(after.values()) - 1 for number in cut_parts)
    assert before.most_common(1)[0][0] in cut_parts and cut.text.special_tokens_mask.sum() == 4
    text.max_length = 6
    with pytest.raises(InputError, match=r"no room for 3 parts; raise max_length"):
        read()


def test_a_text_cut_to_a_budget_keeps_the_parts_of_its_tokens(place: Path) -> None:
    text, _ = ready().inputs(60)
    (whole,) = TextDataset([rationale(place)], text).get([0])
    cut, regions = truncate_to_budget(whole, toys.regions(0, 10), 20)
    fields = ("input_ids", "special_tokens_mask", "word_ids", "token_type_ids", "region_index")
    for short, long in zip(cut.rows, whole.rows, strict=True):
        kept = [*range(len(short.text.input_ids) - 1), len(long.text.input_ids) - 1]
        for field in (*fields, "part_index"):
            assert np.array_equal(vars(short.text)[field], vars(long.text)[field][kept]), field
    batch = collate([cut.each_row(lambda row: replace(row, regions=regions))])
    assert batch.text.part_index.shape == batch.text.input_ids.shape


def test_only_tags_of_persons_become_words() -> None:
    names = ("person", *["car"] * 80, "person")
    tags = ((0, 5, 0), (6, 9, 1), (10, 15, 81))
    many = Example("a", "Casey car Riley", region_tags=tags, object_names=names)
    model = ready()
    (sample,) = TextDataset([many], model.inputs(60)[0]).get([0])
    words = model.text.tokenizer
    found = [one for one in sample.text.input_ids if one >= len(words) - 81]
    assert found == [words.convert_tokens_to_ids("person_0")]


def test_segments_and_words_are_added_once_and_kept(tmp_path: Path) -> None:
    model = tiny()
    words, rows = len(model.text.tokenizer), model.word_embeddings().weight.clone()
    segments = model.text.encoder.embeddings.token_type_embeddings.weight.clone()
    model.prepare([Example("a", "b", object_count=2)], False)
    assert len(model.text.tokenizer) == words  # nobody says what the objects are
    for _ in range(2):
        model.prepare([Example("a", "b"), Example("c", "d", object_names=("car",))], False)
    table = model.text.encoder.embeddings.token_type_embeddings.weight
    assert torch.equal(table, segments[[0, 1, 0, 0]])
    wide = (words + 81, rows.shape[1])
    assert model.sizes.input_embeddings == model.text.sizes.input_embeddings == wide
    assert torch.equal(model.word_embeddings().weight[:words], rows)
    assert len(model.word_embeddings().weight[words:].unique(dim=0)) == 81
    for _ in range(2):
        model.add_images(2)
    wider = model.text.encoder.embeddings.token_type_embeddings.weight
    assert torch.equal(wider, torch.stack([*table, table[1]]))
    options = model.join.options
    assert (options["text_types"], options["image_types"]) == ([0, 2, 3], [1, 4])
    model.export(tmp_path)
    again = load_encoder(tmp_path)
    assert again.text.tokenizer.convert_tokens_to_ids("person_80") == words + 80
    assert again.inputs(20)[0].persons == model.inputs(20)[0].persons
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("hidden", "layers", "total"), [(768, 12, 111_149_826), (1024, 24, 337_888_258)]
)
def test_on_vcr_it_has_the_released_size(hidden: int, layers: int, total: int) -> None:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": 4 * hidden}
    with torch.device("meta"):
        bert = BertModel(BertConfig(vocab_size=28_996, num_attention_heads=hidden // 64, **sizes))
        model = SingleStreamModel(bert, toys.bert_words(), UniterEmbeddings(bert))
        # A tokenizer of 28,996 tokens is not at hand: the table grows by what the words add to this one.
        model.prepare([Example("c", "d", object_names=("person",))], False)
        bert.resize_token_embeddings(28_996 + 81, mean_resizing=False)
        head = UniterBinaryChoiceHead(HeadContext(model.sizes, MultipleChoice(tuple("0123"))))
    parts = [*model.parameters(), *head.parameters()]
    assert sum(parameter.numel() for parameter in parts) == total


def test_every_part_has_a_masked_token(place: Path) -> None:
    text, _ = ready().inputs(60)
    (sample,) = TextDataset([rationale(place)], text).get([0])
    row = sample.choices[0]
    part = row.text.part_index

    rare, often = (
        MaskedLM(OutputSizes(text=8, input_embeddings=(400, 8)), mask_rate=rate)
        for rate in (1e-6, 0.99)
    )

    def masked(one: Sample, seed: int, mlm: MaskedLM = rare) -> np.ndarray:
        changed = mlm.corrupt(one, np.random.default_rng(seed), lambda: one)
        return np.flatnonzero(changed.labels["masked_lm"] != IGNORE)

    drawn = [masked(row, seed) for seed in range(30)]
    assert all(part[places].tolist() == [0, 1, 2] for places in drawn)
    assert not any(row.text.special_tokens_mask[places].any() for places in drawn)
    assert len({tuple(places) for places in drawn}) > 10
    plain = replace(row, text=replace(row.text, part_index=None))
    assert all(len(masked(plain, seed)) == 1 for seed in range(30))
    assert len(masked(row, 0, often)) > 8


@pytest.mark.parametrize(
    ("task", "form"),
    [
        ("vqa", OpenAnswer(("a", "b"))),
        ("snli-ve", Classification(("n", "y"))),
        ("vcr", MultipleChoice(("0", "1"))),
        ("refcoco+", RegionSelection("regions", "ce")),
    ],
)
def test_heads_have_no_dropout_as_in_the_release(task: str, form: Any) -> None:
    """model/vqa.py, ve.py, vcr.py and re.py: the layers of the encoder alone drop out."""
    heads = resolve("vision_language", Architecture, "uniter").heads
    head = heads[task](HeadContext(tiny().sizes, form)).train()
    assert not any(part.p for part in head.modules() if isinstance(part, torch.nn.Dropout))


def test_pairs_of_images_are_pooled_as_released() -> None:
    """Linears N(0, 0.02), the attentions' input as PyTorch's; dropout on the pooling weights, too."""
    torch.manual_seed(0)
    pooler = PairPooler(256, dropout=0.5)
    spread = (2 / (256 + 3 * 256)) ** 0.5  # Xavier's
    linears = [part.weight for part in (pooler.mix[0], pooler.score, pooler.read[0].out_proj)]
    for weight, std in (*((one, 0.02) for one in linears), (pooler.read[1].in_proj_weight, spread)):
        assert float(weight.detach().std()) == pytest.approx(std, rel=0.2)
    states, mask = torch.randn(4, 5, 256), torch.ones(4, 5, dtype=torch.bool)
    mask[1, 3:] = mask[2, 4:] = False
    steady = pooler.eval()(states, mask)
    for row in range(4):  # one of a pair reads the other, both without padding
        mine, theirs = (states[number][mask[number]] for number in (row, row ^ 1))
        read, _ = pooler.read[row % 2](mine, theirs, theirs)
        mixed = pooler.mix(torch.cat([mine, read], 1))
        pooled = pooler.score(mixed).relu().softmax(0).T @ mixed
        half = steady[row // 2].view(2, 256)[row % 2]
        torch.testing.assert_close(half, pooled[0], rtol=0, atol=1e-5)
    for part in (*pooler.read, pooler.mix[2]):  # nothing but the pooling weights is dropped
        part.dropout = part.p = 0.0
    runs = pooler.train()(states[:2].repeat(200, 1, 1), mask[:2].repeat(200, 1))
    assert runs.std(0).amax() > 0
    torch.testing.assert_close(runs.mean(0), steady[0], atol=0.05, rtol=0.3)


def test_both_are_one_task_whose_ids_tell_them_apart(place: Path) -> None:
    assert resolve("tasks", Task, "vcr") is BOTH
    examples = BOTH.read(place / "vcr", "val")
    ids = [e.official_id for e in examples]
    assert len(examples) == len({e.id for e in examples}) == len(set(ids))
    for part, task in (("answer", ANSWER), ("rationale", RATIONALE)):
        own = task.read(place / "vcr", "val")
        mine = [e for e in examples if e.official_id.startswith(part)]
        assert mine == [replace(e, official_id=f"{part}/{e.official_id}") for e in own]
    secret = [e.official_id for e in BOTH.read(place / "vcr", "test")]
    assert secret[:3] == ["answer/v-0", "answer/v-1", "rationale/v-0-a0"] and len(secret) == 10
    said = dict(zip(ids, np.random.default_rng(0).integers(4, size=len(ids)).tolist(), strict=True))
    told = BOTH.official(place / "vcr", "val", list(said), list(said.values()))
    split = [select_part(part, said) for part in ("answer", "rationale")]
    assert told == q_to_ar(*split, read_items(place / "vcr", "val"))


def test_mistakes_with_a_run_on_both(place: Path, tmp_path: Path) -> None:
    runs = VcrJointScoreConfig(data=str(place / "vcr"), both=str(tmp_path / "run"))

    def refusal(config: VcrJointScoreConfig) -> str:
        return homes.refused(vcr, config, tmp_path / "out")

    assert "has both; leave it out" in refusal(replace(runs, answers="a"))
    put(tmp_path / "run/seed-0/result.json", json.dumps({"task": "vcr/answer", "seed": 0}))
    assert "a run of vcr/answer, expected one of vcr" in refusal(runs)
    put(tmp_path / "run/seed-0/result.json", json.dumps({"task": "vcr", "seed": 0}))
    one = {"id": "x", "official": "answer/v-0", "prediction": 0, "outputs": [1, 0, 0, 0]}
    put(tmp_path / "run/seed-0/predictions_val.jsonl", json.dumps(one) + "\n")
    assert "predictions are not of the same examples: vcr-answer-v-1 (11 such)" in refusal(runs)


def test_the_second_stage_has_its_own_mix_and_goes_on_from_the_first(place, first_stage, tmp_path):
    steps = replace(STEPS, steps=24, batch=4)
    result = pretrain(second_stage(place, first_stage), steps, tmp_path / "second")
    assert result["objectives"] == ["masked_lm", "masked_regions", "regress_regions"]
    kinds = Counter(name for row in log_of(tmp_path / "second") for name in row)
    assert kinds["sentence_image"] == 0 and kinds["mlm"] > kinds["masked_regions"] > 0
    model = load_encoder(tmp_path / "second/model")
    before = load_encoder(first_stage)
    assert model.sizes.input_embeddings[0] == before.sizes.input_embeddings[0] + 81
    assert model.join.options["text_types"] == [0, 2, 3]
    still = replace(steps, steps=1, lr=1e-30)
    pretrain(second_stage(place, first_stage), still, tmp_path / "still")
    one, other = (load_file(folder / HEADS) for folder in (first_stage, tmp_path / "still/model"))
    for name, value in one.items():
        if name.startswith("sentence_image"):
            assert name not in other
            continue
        torch.testing.assert_close(other[name][: len(value)], value, msg=name)
        added = other[name][len(value) :]
        assert len(added) == (81 if name.endswith(("predictions.bias", "decoder.bias")) else 0)
        assert added.abs().sum() < 1e-9


def test_right_texts_are_question_answer_and_reason(place: Path) -> None:
    texts = {example.id: example for example in task_texts(BOTH, place / "vcr", tags=True)}
    assert len(texts) == 16
    answer, reason = texts["vcr-answer-v-5"], texts["vcr-rationale-v-5"]
    assert (answer.text, answer.text_pair) == ("Jessie saw a car ?", "Casey did .")
    assert (reason.text, reason.text_pair) == ("Jessie saw a car ? Casey did .", "a red one .")
    assert (reason.part_starts, reason.object_names) == ((19,), tuple(VCR_OBJECTS))
    assert reason.choice_region_tags == ((),) and answer.choice_region_tags == (((0, 5, 0),),)
    bare = {example.id: example for example in task_texts(BOTH, place / "vcr")}
    assert not bare["vcr-rationale-v-5"].region_tags and not bare["vcr-rationale-v-5"].object_count


def test_any_answer_is_drawn_evenly_and_no_label_is_told(place: Path, tmp_path: Path) -> None:
    put(tmp_path / "train.jsonl", "".join(vcr_line(n, answer=(n + 1) % 4) for n in range(8)))
    versions = unlabelled_texts(BOTH, place / "vcr", tags=True)
    assert versions == unlabelled_texts(BOTH, tmp_path, tags=True)
    assert task_texts(BOTH, place / "vcr") != task_texts(BOTH, tmp_path)
    texts = MultiVersionTextDataset(versions, ready().inputs(60)[0])
    assert len(texts) == len(set(texts.ids)) == 16 and texts.images[8] == ("m/0",)
    drawn = Counter()
    for seed in range(640):
        (sample,) = texts.get([8], [np.random.default_rng(seed)])
        assert sample.id == texts.ids[8] and not sample.labels
        drawn[sample.example.text, sample.example.text_pair] += 1
    assert len(drawn) == 16 and min(drawn.values()) > 15 and max(drawn.values()) < 75


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step_mix": (2.0, 1.0)}, "masked_lm, regress_regions, masked_regions or hard_"),
        ({"caption_splits": ("train",)}, "caption_splits=train: applies only to captions"),
        ({"image_list": "list.txt"}, "image_list=list.txt: applies only to captions"),
        (
            {"model": "bert", "architecture": "visualbert", "step_mix": (1.0,)},
            "none, every step trains all objectives",
        ),
        (
            {"task": "", "data": "", "captions": "some.token.txt", "task_answers": "any"},
            "task_answers=any: applies only to task",
        ),
        ({"data": "secret"}, "KeyError: 'answer_label'"),
    ],
)
def test_mistakes_in_a_second_stage(changes, message, place, first_stage, tmp_path):
    put(place / "secret/train.jsonl", "".join(vcr_line(n, labelled=False) for n in range(8)))
    named = {name: changes.get(name) for name in ("model", "captions", "data")}
    files = {name: str(place / file) for name, file in named.items() if file}

    def run() -> None:
        pretrain(second_stage(place, first_stage, **(changes | files)), STEPS, tmp_path / "out")

    assert message in homes.refused(run)


@pytest.mark.parametrize("kind", ["text", "uniter"])
def test_a_model_learns_both_and_is_scored_in_one_run(kind, place, tmp_path):
    config = make_settings(
        FinetuneConfig,
        model=str(place / "bert"),
        task="vcr",
        data=str(place / "vcr"),
        submit=True,
        max_length=60,
    )
    if kind != "text":
        seeing = {"architecture": kind, "regions": str(place / "store"), "save_model": True}
        config = replace_settings(config, **seeing)
    result = finetune(config, replace(STEPS, steps=3, batch=4), tmp_path / "run")
    scores = result["official"]["val"]
    assert set(scores) == {"Q->A", "QA->R", "Q->AR"}
    mean = pytest.approx((scores["Q->A"] + scores["QA->R"]) / 2)
    assert result["median"]["val"] == {"accuracy": mean}
    assert scores["Q->AR"] <= min(scores["Q->A"], scores["QA->R"])
    runs = VcrJointScoreConfig(data=str(place / "vcr"), both=str(tmp_path / "run"))
    assert vcr(runs, tmp_path / "joint")["median"] == scores
    (file,) = vcr(replace(runs, split="test"), tmp_path / "server")["files"]
    head, *lines = Path(file).read_text().splitlines()
    assert [one.split(",")[0] for one in lines] == ["v-0", "v-1"] and head.count(",") == 20
    predictions = homes.answers(tmp_path / "run/seed-0/predictions_test.jsonl")
    assert len(predictions) == 2 + 2 * 4
    if kind == "uniter":
        plain = replace_settings(config, linear_head=True)
        finetune(plain, replace(STEPS, steps=1, batch=4), tmp_path / "plain")
        for run, types in (("run", [0, 2, 3]), ("plain", [0, 0])):
            model = load_encoder(tmp_path / run / "seed-0/model")
            assert model.join.options["text_types"] == types
