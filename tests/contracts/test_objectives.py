"""What every objective promises, checked on each one of the package; then what each is for."""

import inspect
import math
from collections import Counter
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, replace
from functools import partial
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import toys
from tiny.objectives import TokenStates, in_processes, weights
from torch import Tensor, nn

from groundling.core.batch import (
    IGNORE,
    Batch,
    EncoderOutput,
    Example,
    OutputSizes,
    Sample,
    collate,
)
from groundling.core.errors import InputError
from groundling.core.output_types import Classification, MultipleChoice
from groundling.core.registry import public_modules
from groundling.core.rng import generator
from groundling.data.captions import IS_PAIR
from groundling.data.samples import ClipRowEncoder, TextDataset, TextRowEncoder
from groundling.models.sentence_modules import make_sentence_modules
from groundling.models.text_encoder import TextEncoder
from groundling.objectives import Objective, ObjectiveContext, built_in_objectives
from groundling.objectives.contrastive import ClipContrastiveLoss, info_nce
from groundling.objectives.feature_distillation import (
    ContrastiveDistillation,
    FeatureDistillation,
    L1Distillation,
)
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.supervised import SupervisedObjective
from groundling.objectives.xdbert import (
    RELEASED_SLOTS,
    ClipTokenClassification,
    SameSentencePrediction,
)
from groundling.settings.fields import (
    make_settings,
    replace_settings,
    setting_fields,
    setting_values,
)
from groundling.settings.objectives import ObjectiveSettings
from groundling.settings.training import TrainingArguments
from groundling.teachers.feature_cache import FeatureCache, TeacherDataset
from groundling.teachers.text import ClipTextTeacher, FrozenCopy
from groundling.training.batch_sampler import BatchPlan, DataSource, MicroBatchDataset, plan_batches
from groundling.training.loop import PlainTrainingStep, train


def is_abstract(kind: type[Objective]) -> bool:
    return inspect.isabstract(kind) or not kind.name


KINDS = {
    name: cls
    for module in (*public_modules("objectives"), *public_modules("methods"))
    for name, cls in inspect.getmembers(module, inspect.isclass)
    if issubclass(cls, Objective) and cls.__module__ == module.__name__ and not is_abstract(cls)
}
FROZEN = {"FrozenProbe"}
"""Objectives that leave the encoder as it is."""
TINY = {"vokenizer_layers": 2, "vokenizer_frozen": False, "voken_control": "shuffled"}
TINY |= {"option": ("probe_width=64",)}
"""Settings for models of two layers, of which every parameter is trained."""


def context_for(kind: type[Objective], model) -> ObjectiveContext:
    """All that a run gives: teachers of two widths, unless the objective needs one, words and a task."""
    task = Classification(("no", "yes"))
    if "features.clip_similarity" in kind.required_fields:
        task = MultipleChoice(("0", "1"))
    settings = make_settings(ObjectiveSettings, **TINY)
    for width in (20, 24):
        sizes = model.sizes._replace(teacher=24, teacher_image=width, classes=5)
        context = ObjectiveContext(sizes, toys.bert_words(), settings, output_type=task)
        with suppress(InputError):
            kind.from_context(context)
            break
    return context


def test_objectives_are_found_by_unique_names():
    assert {"mlm", "joint_mlm", "match", "l1", "td_image"} <= set(built_in_objectives())
    for folder in ("objectives", "methods"):
        assert set(built_in_objectives(folder).values()) <= set(KINDS.values())
    assert all(cls.name for cls in KINDS.values()), "the key of its random stream and of the log"


@pytest.fixture(scope="session")
def taught(_clip):
    from groundling.models.clip import make_clip_text_tower

    teacher = ClipTextTeacher(make_clip_text_tower(_clip()), toys.clip_words())
    return TeacherDataset(toys.both_sides(48), teacher, FeatureCache())


class Case:
    """An objective with a model and data that give it all it needs."""

    def __init__(self, kind: type[Objective], model, samples) -> None:
        if kind.reads_layers:
            model = deepcopy(model)
            model.return_layers()
        self.model, self.samples = model.eval(), samples
        torch.manual_seed(3)
        self.context = context_for(kind, model)
        torch.manual_seed(3)
        self.objective = kind.from_context(self.context).eval()
        if kind.__name__ == "SigmoidContrast":
            torch.nn.init.zeros_(self.objective.bias)  # as below

    def sample(self, index: int, epoch: int = 0) -> Sample:
        rng = generator(0, epoch, self.samples.ids[index], self.objective.name)

        def other() -> Sample:
            return self.samples.get([int(rng.integers(len(self.samples)))], [rng])[0]

        plain = self.samples.get([index], [generator(0, epoch, "sample")])[0]
        return self.objective.corrupt(plain, rng, other)

    def batch(self, *indices: int) -> Batch:
        return collate([self.sample(i) for i in indices])

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        return dict(self.objective(self.model(batch), batch))


@pytest.fixture(scope="session")
def cases() -> dict[str, tuple[toys.Copier, TextDataset]]:
    """Each objective's model and parts, and its samples, which tests share."""
    return {}


@pytest.fixture
def case(request, taught, pictures, cases):
    def make(name: str) -> Case:
        kind = KINDS[name]
        fields = {field.partition(".")[2] or field for field in kind.required_fields}
        fields |= {field.partition(".")[2] for field in kind.optional_fields}
        beside = lambda samples: samples  # noqa: E731
        if fields & {"clip_image", "clip_text", "clip_words"}:
            same = context_for(kind, toys.seer()).sizes.teacher_image == 24
            beside = partial(toys.Clip, image_width=24) if same else toys.Clip
        if "teacher_states" in fields:
            beside = TokenStates
        if "voken" in fields:
            beside = toys.Vokens
        if "mlm_logits" in fields:
            beside = partial(toys.Clip, vocabulary=len(toys.bert_words()))
        if "clip_similarity" in fields:
            return Case(kind, toys.seer(), toys.Clip(toys.seen(choices=("a dog", "no cat"))))
        if "regions" in fields:
            return Case(kind, toys.seer(), beside(toys.seen()))
        if "initial_sentence_embedding" in fields:
            return Case(kind, *moved(request.getfixturevalue("student")()))
        is_dual = "image" in fields  # the label of a dual encoder's pairs
        model = request.getfixturevalue("towers" if is_dual else "cross")
        if is_dual:
            model.start_sigmoid()
            torch.nn.init.zeros_(model.logit_bias)  # from -10, losses of negatives would be tiny
        if IS_PAIR in fields:
            return Case(kind, model, toys.caption_pairs())
        return Case(kind, model, beside(pictures if is_dual else taught))

    def copy(name: str) -> Case:
        if name not in cases:
            made = make(name)
            samples, made.samples = made.samples, None
            cases[name] = toys.Copier(made), samples
        copier, samples = cases[name]
        made = copier()
        made.samples = samples
        return made

    return copy


def moved(text) -> tuple[TextEncoder, TeacherDataset]:
    """A sentence encoder that is no longer what it was, beside what it said then."""
    text.set_sentence_modules(make_sentence_modules("mean", text.sizes.text, 40))
    samples = TeacherDataset(
        TextDataset(toys.examples(), TextRowEncoder(text.tokenizer, 40)),
        FrozenCopy(text),
        FeatureCache(),
    )
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in text.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return text, samples


every = pytest.mark.parametrize("name", KINDS)
LENGTHS = (0, 7, 12, 31)


# -- the contract ----------------------------------------------------------------------------------------------------
@every
def test_terms_are_finite_scalars_that_are_counted(name, case):
    c = case(name)
    batch = c.batch(*LENGTHS)
    batch.require(c.objective.required_fields, name)
    terms, guessing = c.terms(batch), c.objective.guessing_losses(len(batch))
    assert terms
    for term, value in terms.items():
        assert value.ndim == 0, term
        assert value.isfinite(), term
        # A loss is positive, unless one that knows nothing is 0: minus a correlation.
        assert value > 0 or (guessing.get(term) == 0 and value < 0), term
    counts = c.objective.count(batch)
    assert counts.keys() == terms.keys()
    assert all(isinstance(n, int) and n > 0 for n in counts.values())


@every
def test_counts_add_up(name, case):
    c = case(name)
    alone = [Counter(c.objective.count(c.batch(i))) for i in LENGTHS]
    assert sum(alone, Counter()) == Counter(c.objective.count(c.batch(*LENGTHS)))


@every
def test_what_a_head_reads_is_counted_and_scored(name, case):
    """An inner step divides by `count_logits`; what was read before the losses is what they score."""
    c = case(name)
    batch = c.batch(*LENGTHS)
    encoded = c.model(batch)
    answer = c.objective.compute_logits(encoded, batch)
    if answer is None:
        has_none = {"MaskedLM", "ImageTextMatching", "MaskedRegionModeling", "SupervisedObjective"}
        assert name not in has_none
        return
    logits = c.objective.comparison_logits(answer)
    assert logits.ndim == 2 and len(logits) == c.objective.count_logits(batch) > 0
    alone = c.objective(encoded, batch)
    read = c.objective(replace(encoded, heads={c.objective.name: answer}), batch)
    assert all(torch.equal(alone[term], read[term]) for term in alone)


@every
def test_gradient_reaches_head_and_encoder(name, case):
    c = case(name)
    c.model.train(), c.objective.train()
    sum(c.terms(c.batch(*LENGTHS)).values()).backward()
    head = [p.grad for p in c.objective.parameters()]
    assert all(g is not None and g.isfinite().all() for g in head)
    assert all(g.any() for g in head if g.ndim > 1)
    body = [p.grad for p in c.model.parameters() if p.grad is not None]
    assert all(g.isfinite().all() for g in body)
    reached = sum(bool(g.any()) for g in body)
    assert reached == 0 if name in FROZEN else reached > 10


SIGNS = {"Cap2Img", "SharedProjectionDistillation"}
"""Objectives with hinges or absolute values, whose gradient jumps where a rounded number changes its sign."""
ON_A_GPU = [
    pytest.param(
        "cuda", half, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="GPU")
    )
    for half in (False, True)
]


@every
@pytest.mark.parametrize(("device", "half"), [("cpu", True), *ON_A_GPU])
def test_a_device_agrees_with_the_processor(name, device, half, case):
    """Losses and the whole gradient: in fp32 up to the order of sums, in bf16 within its eight bits, layer by layer."""
    c = case(name)
    batch = c.batch(*LENGTHS)
    found = []
    for place, cast in (("cpu", False), (device, half)):
        parts = torch.nn.ModuleList([deepcopy(c.model), deepcopy(c.objective)]).to(place)
        moved = batch.to(place)
        with torch.autocast(place, torch.bfloat16, enabled=cast):
            terms = parts[1](parts[0](moved), moved)
            loss = torch.stack([terms[key].float() for key in sorted(terms)])
        loss.sum().backward()
        flat = [p.grad.flatten() for p in parts.parameters() if p.grad is not None]
        found.append((loss.detach().cpu(), torch.cat(flat).float().cpu()))
    (loss, gradient), (other, its_gradient) = found
    signs = 3 if name in SIGNS else 1
    loss_bound, bound = (0.1, 0.12 * signs) if half else (1e-4, 1e-3)
    torch.testing.assert_close(other, loss, rtol=loss_bound, atol=1e-4)
    assert float((its_gradient - gradient).norm()) <= bound * float(gradient.norm())


PADDING = {
    "input_ids": 7,
    "special_tokens_mask": 1,
    "word_ids": -1,
    "features": 9,
    "boxes": 1,
    "confidence": 1,
    "classes": 1,
    "masked": 1,
    "words": 9,
    "clip_words": 9,
    "clip_word": -1,
    "voken": 7,
    "teacher_states": 9,
    "mlm_logits": 9,
}
"""Ids and numbers that would show if they were read; all other padding is 0."""
OF_ROWS = {"clip_image", "clip_text", "clip_similarity", "sentence", "initial_sentence_embedding"}
"""Features without a padded axis."""


def pad(value: Tensor, fill: float, by: int = 5) -> Tensor:
    """Values (N, T, ...) with more columns."""
    return F.pad(value, (0, 0) * (value.ndim - 2) + (0, by), value=fill)


def padded(part, **changes):
    """A dataclass of tensors (N, T, ...), each with padding."""
    values = {key: value for key, value in vars(part).items() if isinstance(value, Tensor)}
    wide = {key: pad(value, PADDING.get(key, 0)) for key, value in values.items()}
    return replace(part, **wide | changes)


def widen(batch: Batch) -> Batch:
    """The same samples with more padding everywhere."""
    clip, regions, words = batch.clip, batch.regions, batch.word_type_ids
    if clip is not None:
        rows, length = clip.key_mask.shape
        place = torch.arange(rows * length).view(rows, length)
        moved = (place + torch.arange(rows)[:, None] * 5).flatten()[clip.flat_position]
        span = min(5, toys.WINDOW - clip.input_ids.shape[1])  # a tower has no more positions
        clip = replace(
            clip,
            input_ids=pad(clip.input_ids, 7, span),
            attention_mask=pad(clip.attention_mask, False, span),
            flat_position=pad(moved, 0, span),
            key_mask=pad(clip.key_mask, 0),
            special_tokens_mask=pad(clip.special_tokens_mask, 1),
            word_ids=pad(clip.word_ids, -1),
        )
    fills = {key: PADDING.get(key, 0) for key in batch.features.keys() - OF_ROWS}
    return replace(
        batch,
        text=None if batch.text is None else padded(batch.text),
        clip=clip,
        regions=None if regions is None else padded(regions),
        labels={k: pad(x, IGNORE) if x.ndim >= 2 else x for k, x in batch.labels.items()},
        features={k: pad(x, fills[k]) if k in fills else x for k, x in batch.features.items()},
        word_type_ids=None if words is None else pad(words, -1),
    )


@every
def test_padding_changes_nothing(name, case):
    c = case(name)
    batch = c.batch(*LENGTHS)
    wide = widen(batch)
    assert c.objective.count(batch) == c.objective.count(wide)
    before, after = c.terms(batch), c.terms(wide)
    for term in before:
        torch.testing.assert_close(before[term], after[term], rtol=1e-5, atol=1e-5)


@every
def test_what_depends_on_the_rest_of_a_micro_batch_says_so(name, case):
    """Sums of parts are those of the whole, unless the objective has in-batch negatives."""
    c = case(name)
    together = c.terms(c.batch(*LENGTHS))
    alone = [c.terms(c.batch(i)) for i in LENGTHS]
    halves = [c.terms(c.batch(*some)) for some in (LENGTHS[:2], LENGTHS[2:])]
    for term, value in together.items():
        if c.objective.in_batch_negatives:
            assert abs(value - sum(half[term] for half in halves)) > 1e-2
        else:
            torch.testing.assert_close(value, sum(a[term] for a in alone), rtol=1e-5, atol=1e-5)


GATHERING = [name for name, kind in KINDS.items() if kind.in_batch_negatives]


@pytest.mark.parametrize("name", GATHERING)
@torch.no_grad()
def test_negatives_come_from_all_processes(name, case):
    """The sums of two processes are those of one with the whole micro-batch."""
    c = case(name)
    together = c.terms(c.batch(*LENGTHS))
    batches = [c.batch(*some) for some in (LENGTHS[:1], LENGTHS[1:])]
    modules = [kind.__module__ for kind in KINDS[name].__mro__]
    # each with a model of its own: a hook of one thread would end the other's pass, too
    calls = [partial(case(name).terms, batch) for batch in batches]
    one, other = in_processes(modules, *calls)
    for term, value in together.items():
        torch.testing.assert_close(one[term] + other[term], value, rtol=1e-5, atol=1e-5)


class Doubled:
    """Samples whose features are float64."""

    def __init__(self, samples) -> None:
        self.samples = samples
        self.ids, self.lengths, self.images = samples.ids, samples.lengths, samples.images

    def __len__(self) -> int:
        return len(self.samples)

    def get(self, indices, rngs=()) -> list[Sample]:
        return [sample.each_row(self.double) for sample in self.samples.get(indices, rngs)]

    def double(self, row: Sample) -> Sample:
        exact = {
            name: value.astype(float) if value.dtype == np.float32 else value
            for name, value in row.features.items()
        }
        return replace(row, features=exact)


@pytest.mark.parametrize("name", GATHERING)
def test_cached_gradients_are_those_of_one_batch(name, case, tmp_path, monkeypatch):
    """Loss and gradients of eight samples in micro-batches of two, in float64."""
    strided = BatchPlan.micro_batch

    def in_order(
        plan, step, place, places
    ):  # the vokenizer's negative depends on the order of rows
        *source, indices = strided(plan, step, 0, 1)
        return *source, np.array_split(indices, places)[place]

    monkeypatch.setattr(BatchPlan, "micro_batch", in_order)
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    c = case(name)
    monkeypatch.setattr(nn.Module, "train", lambda module: module)  # stays without dropout
    plain = TrainingArguments(
        steps=1,
        batch=8,
        optimizer="sgd",
        momentum=0,
        lr=1,
        weight_decay=0,
        max_grad_norm=0,
        cpu=True,
    )
    parts = replace(plain, gradient_accumulation_steps=4)
    found = []
    for number, config in enumerate([plain, replace(parts, cached_negatives=True), parts]):
        model, objective = deepcopy(c.model).double(), deepcopy(c.objective).double()
        before = weights(model, [objective])
        result = train(model, [objective], Doubled(c.samples), config, tmp_path / str(number))
        after = weights(model, [objective])
        change = torch.cat([(before[one] - after[one]).flatten() for one in before])
        found.append((result["train_metrics"], change))
    (whole, gradient), (joined, cached), (split, other) = found
    assert joined == pytest.approx(whole, rel=1e-12, abs=1e-12)
    torch.testing.assert_close(cached, gradient, rtol=1e-12, atol=1e-12)
    assert split != pytest.approx(whole, rel=1e-3), "fewer negatives are another loss"
    assert (other - gradient).abs().max() > 1e-4 * gradient.abs().max() > 0


def same(a: Sample, b: Sample) -> bool:
    """Do two samples have equal inputs and labels?"""
    for part in fields(Sample):
        x, y = getattr(a, part.name), getattr(b, part.name)
        if part.name in {"labels", "features"}:
            if x.keys() != y.keys() or not all(np.array_equal(x[k], y[k]) for k in x):
                return False
        elif part.name in {"text", "clip", "regions"}:
            if x is not None and not all(np.array_equal(vars(x)[k], vars(y)[k]) for k in vars(x)):
                return False
        elif part.name == "choices":
            if not all(same(*rows) for rows in zip(x, y, strict=True)):
                return False
        elif not np.array_equal(x, y):
            return False
    return True


@every
def test_corruption_follows_from_its_key(name, case):
    c = case(name)
    plain = [c.samples.get([i], [generator("x")])[0] for i in range(len(c.samples))]
    kept = deepcopy(plain)
    one = [c.sample(i) for i in range(32)]
    again = [c.sample(i) for i in reversed(range(32))][::-1]
    assert all(map(same, one, again)), "same key, same corruption, in any order"
    if KINDS[name].corrupt is not Objective.corrupt:
        other = [c.sample(i, epoch=1) for i in range(32)]
        assert sum(map(same, one, other)) < 20, "another epoch, another corruption"
        assert all(map(same, plain, kept)), "corrupt copies, it does not write"


@every
def test_unscored_positions_contribute_nothing(name, case):
    """Gradient with respect to each state the model gave: none in padding, none where a label says IGNORE."""
    c = case(name)
    batch = c.batch(*LENGTHS)
    with torch.no_grad():
        encoded = c.model(batch)
    leaves = {
        f.name: getattr(encoded, f.name).clone().requires_grad_()
        for f in fields(EncoderOutput)
        if isinstance(getattr(encoded, f.name), Tensor)
    }
    if encoded.encode_again is not None:  # a second pass gives the leaf, too
        leaves["encode_again"] = lambda *_: leaves["text"]
    sum(c.objective(replace(encoded, **leaves), batch).values()).backward()
    other = batch.regions.mask if batch.regions is not None else batch.clip and batch.clip.key_mask
    masks = {"text": batch.text and batch.text.attention_mask, "visual": other}
    masks |= {f"joint_{side}": mask for side, mask in masks.items()}
    touched = 0
    for state, mask in masks.items():
        if state in leaves and leaves[state].grad is not None:
            gradient = leaves[state].grad
            touched += bool(gradient.any())
            assert not gradient[~mask].any(), f"{state}: padding is scored"
            labels = batch.labels.get(c.objective.name)
            if labels is not None and labels.ndim == 2:
                scored = labels != IGNORE
                assert not gradient[~scored].any(), f"{state}: a position without a label is scored"
                assert gradient[scored].abs().sum(-1).all(), f"{state}: a labelled position is not"
    pooled = ("pooler_output", "sentence_embedding", "text_embeds")
    reaches = touched or any(leaves[k].grad is not None for k in pooled if k in leaves)
    assert reaches != (name in FROZEN)


@every
def test_settings_arrive_by_their_names(name, case):
    """Each setting of the class, changed in a run, reaches the objective; its weight scales the given one."""
    c, kind, weighed = case(name), KINDS[name], []
    for setting, info in setting_fields(kind.Settings).items():
        default = getattr(kind.Settings(), setting)
        others = [one for one in get_args(info.annotation) if one != default]
        others += [not default] if isinstance(default, bool) else []
        others += [default + 1] if type(default) is int else []
        others += [0.31] if isinstance(default, float) else []
        others += ["another"] if info.annotation is str else []
        assert others, f"{setting}: no other value is known for {info.annotation}"
        changed, values = others[0], {setting: others[0]}
        groups = {"settings": c.context.settings, "cross_modal": c.context.cross_modal}
        place = "cross_modal" if setting in setting_values(c.context.cross_modal) else "settings"
        if setting not in setting_values(*groups.values()):  # declared in the method's own file
            values = {"option": (*c.context.settings.option, f"{setting}={changed}")}
        given = replace(c.context, **{place: replace_settings(groups[place], **values)})
        made = kind.from_context(given)
        assert getattr(made.settings, setting) == changed, setting
        if made.weight != c.objective.weight:
            assert made.weight == changed
            weighed.append(setting)
    parts = vars(c.objective).get("part_weights", ())
    assert set(weighed) == {
        one for one in setting_fields(kind.Settings) if one[-7:] == "_weight"
    } - {f"{part.rpartition('_')[2]}_weight" for part in parts}


@every
def test_a_later_run_starts_from_all_of_it_or_from_a_part(name, case):
    objective = case(name).objective
    saved = {id(p) for one in objective.saved_modules().values() for p in one.parameters()}
    own = {id(p) for p in objective.parameters()}
    assert saved <= own
    assert saved == own or KINDS[name].saved_modules is not Objective.saved_modules


def test_labels_describe_the_swapped_side(cross, taught):
    """Labels of `clip_tokens` are the tokens of the text that `match` swapped in, in whatever order they are given."""
    objectives = [
        ClipTokenClassification(cross.sizes, rate=0.5),
        MaskedLM(cross.sizes, mask_id=4),
        SameSentencePrediction(cross.sizes, negatives=1.0),
    ]
    plan = plan_batches([DataSource(taught)], [], TrainingArguments(batch=16, steps=1), 1)
    batch = MicroBatchDataset(plan, objectives, 1, 0, 1)[0]
    scored = batch.labels["clip_tokens"] != IGNORE
    assert scored.any()
    assert torch.equal(batch.labels["clip_tokens"][scored], toys.clip_ids(batch)[scored])
    own = collate(taught.get([taught.ids.index(i) for i in batch.ids], ()))
    texts = [
        [toys.clip_ids(one)[b, one.clip.key_mask[b]] for b in range(16)] for one in (batch, own)
    ]
    changed = 16 - sum(map(torch.equal, *texts))
    assert changed == 16 - int(batch.labels["match"].sum()) > 8
    # Text, words and the teacher's features stay those of the sample's own text.
    assert torch.equal(batch.word_type_ids, own.word_type_ids)
    assert torch.equal(batch.features["sentence"], own.features["sentence"])


# -- masked language modelling ---------------------------------------------------------------------------------------
def draws(objective: Objective, sample: Sample, count: int) -> list[Sample]:
    def other() -> Sample:
        raise AssertionError("masking needs no other sample")

    return [objective.corrupt(sample, generator(0, n), other) for n in range(count)]


def masking(**options) -> MaskedLM:
    return MaskedLM(OutputSizes(text=32, input_embeddings=(300, 32)), mask_id=4, **options)


def alone(words, text: str) -> Sample:
    """A sample of this text."""
    return TextDataset([Example("a", text)], TextRowEncoder(words, 8)).get([0])[0]


def within(hits: int, of: int, share: float) -> bool:
    """Inside five standard deviations of a binomial."""
    return abs(hits - of * share) < 5 * math.sqrt(of * share * (1 - share))


@pytest.mark.parametrize("scheme", ["bert", "released"])
@pytest.mark.parametrize("whole_word", [False, True])
def test_masking_restated(scheme, whole_word, samples):
    """Choice, fate and stand-in; a whole word has one choice and one fate, and a stand-in for each token."""
    allowed = list(range(5, 300))
    options = {"mask_scheme": scheme, "whole_word": whole_word, "mask_rate": 0.3}
    sample = samples.get([7])[0]
    row = sample.text
    count = len(row.input_ids)
    first = [list(row.word_ids).index(word) for word in row.word_ids]  # of each token's word
    random_below = 0.2 if scheme == "bert" else 0.19
    fates = Counter()
    for number, drawn in enumerate(draws(masking(replacements=allowed, **options), sample, 100)):
        rng = generator(0, number)
        choice, fate, stand_in = rng.random(count), rng.random(count), rng.choice(allowed, count)
        if whole_word:
            choice, fate = choice[first], fate[first]
        chosen = ~row.special_tokens_mask & (choice < 0.3)
        if not chosen.any() and not whole_word:
            chosen = ~row.special_tokens_mask & (choice == choice[~row.special_tokens_mask].min())
        for place, token in enumerate(row.input_ids):
            name = (
                "kept" if fate[place] < 0.1 else "random" if fate[place] < random_below else "mask"
            )
            expected = {"kept": token, "random": stand_in[place], "mask": 4}[name]
            assert drawn.text.input_ids[place] == (expected if chosen[place] else token)
            fates[name] += chosen[place]
        assert (
            drawn.labels["masked_lm"].tolist() == np.where(chosen, row.input_ids, IGNORE).tolist()
        )
    assert len(+fates) == 3


def test_a_short_text_has_one_masked_token_and_an_empty_one_none(bert_tokenizer):
    for drawn in draws(masking(), alone(bert_tokenizer, "a"), 20):
        assert (drawn.labels["masked_lm"] != IGNORE).tolist() == [False, True, False]
    for drawn in draws(masking(), alone(bert_tokenizer, ""), 5):
        assert (drawn.labels["masked_lm"] == IGNORE).all()


def test_whole_words_need_not_be_masked(bert_tokenizer):
    """VL-BERT's code forces no mask; a step of texts without any still has a loss, of nothing."""
    objective = masking(whole_word=True)
    drawn = draws(objective, alone(bert_tokenizer, "a"), 200)
    plain = [one for one in drawn if (one.labels["masked_lm"] == IGNORE).all()]
    assert within(200 - len(plain), 200, 0.15)
    batch = collate(plain[:3])
    assert objective.count(batch) == {"mlm": 0}
    states = torch.zeros(3, 3, 32, requires_grad=True)
    encoded = EncoderOutput(text=states, input_embeddings=torch.ones(300, 32))
    loss = objective(encoded, batch)["mlm"]
    loss.backward()
    assert loss.item() == 0 and not states.grad.any()


@pytest.mark.parametrize("joint", [False, True])
@torch.no_grad()
def test_gathering_first_equals_scoring_everything(joint, cross, taught):
    """Head on the masked positions alone = head everywhere, then select."""
    case = Case(MaskedLM, cross, taught)
    case.objective = MaskedLM(cross.sizes, mask_id=4, joint=joint)
    batch = case.batch(*LENGTHS)
    encoded = cross(batch)
    states = encoded.joint_text if joint else encoded.text
    logits = case.objective.head(states, encoded.input_embeddings)  # (B, T, vocabulary)
    labels = batch.labels["masked_lm"].flatten()
    expected = F.cross_entropy(logits.flatten(0, 1), labels, reduction="sum")
    torch.testing.assert_close(case.objective(encoded, batch)["mlm"], expected)


# -- same-sentence prediction ----------------------------------------------------------------------------------------
def swapped(objective: SameSentencePrediction, samples, index: int, key: int) -> Sample:
    rng = generator(1, key)
    other = lambda: samples.get([int(rng.integers(len(samples)))], [rng])[0]  # noqa: E731
    return objective.corrupt(samples.get([index], ())[0], rng, other)


def test_match_labels_are_balanced_and_true(taught, cross):
    objective = SameSentencePrediction(cross.sizes)
    labels = []
    for n in range(2000):
        own = taught.get([n % 48], ())[0]
        drawn = swapped(objective, taught, n % 48, n)
        label = int(drawn.labels["match"])
        assert label == int(np.array_equal(drawn.clip.input_ids, own.clip.input_ids))
        assert drawn.text is own.text
        assert drawn.word_type_ids is own.word_type_ids
        labels.append(label)
    # Half, and one in 48 of the others drew itself.
    assert within(sum(labels), 2000, 0.5 + 0.5 / 48)
    never = SameSentencePrediction(cross.sizes, negatives=0.0)
    assert all(int(swapped(never, taught, 0, n).labels["match"]) for n in range(20))


def test_hard_negatives_share_more_tokens(taught, cross):
    def shared(hard: int) -> float:
        objective = SameSentencePrediction(cross.sizes, negatives=1.0, hard_negatives=hard)
        found = []
        for n in range(150):
            rows = taught.get([n % 48], ())[0], swapped(objective, taught, n % 48, n)
            mine, theirs = (set(row.clip.input_ids) for row in rows)
            found += [len(mine & theirs) / len(mine | theirs)] * (mine != theirs)
        assert len(found) > 100
        return sum(found) / len(found)

    assert shared(8) > 1.3 * shared(0)


def test_equal_texts_match(cross, bert_tokenizer, clip_tokenizer):
    """And a corpus of one text has no negatives."""
    inputs = TextRowEncoder(bert_tokenizer, 40), ClipRowEncoder(clip_tokenizer, toys.WINDOW)
    twins = [Example("a", "a wet dog"), Example("b", "a wet dog")]
    objective = SameSentencePrediction(cross.sizes, negatives=1.0)
    for examples in (twins, twins[:1]):
        texts = TextDataset(examples, *inputs)
        assert all(int(swapped(objective, texts, 0, n).labels["match"]) for n in range(20))


def test_an_online_teacher_never_reads_a_swapped_text(cross, samples, tower, tmp_path):
    """Features are of the sample's own text, though `match` swaps the other side."""
    sizes = cross.sizes._replace(teacher=24)
    seen = []

    class Spy(PlainTrainingStep):
        def __call__(self, micro):
            seen.append(micro.batch)
            return super().__call__(micro)

    teacher = ClipTextTeacher(*tower())
    samples = TeacherDataset(samples, teacher)
    objectives = [SameSentencePrediction(sizes, negatives=1.0), ContrastiveDistillation(sizes)]
    config = TrainingArguments(steps=1, batch=16, cpu=True)
    train(cross, objectives, samples, config, tmp_path, teachers=[teacher], training_step=Spy())
    own = collate(teacher.inputs(samples.samples.get([samples.ids.index(i) for i in seen[0].ids])))
    torch.testing.assert_close(seen[0].features["sentence"], teacher.features(own)["sentence"])


# -- CLIP tokens -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("targets", ["real", "released"])
def test_scored_clip_tokens(targets, samples, cross):
    """Real tokens, at least one; or in the released code every one of nine padded windows' slots."""
    objective = ClipTokenClassification(cross.sizes, clip_targets=targets)
    sample = samples.get([7])[0]
    row, special = sample.clip, sample.clip.special_tokens_mask
    assert int(row.window_index.max()) + 1 == 2 and RELEASED_SLOTS == 693
    scored, padding = np.zeros(len(special), int), 0
    for drawn in draws(objective, sample, 2000):
        label = drawn.labels["clip_tokens"]
        here = label != IGNORE
        assert here.any() and np.array_equal(label[here], row.input_ids[here])
        assert drawn.clip is row, "nothing is hidden"
        assert ("clip_padding" in drawn.labels) == (targets == "released")
        scored += here
        padding += int(drawn.labels.get("clip_padding", 0))
    free = int((~special).sum())
    if targets == "real":
        assert not scored[special].any()
        assert within(scored.sum(), 2000 * free, 0.15 + 0.85**free / free)
    else:
        assert within(scored[special].sum(), 2000 * int(special.sum()), 0.15)
        assert within(padding, 2000 * (RELEASED_SLOTS - len(special)), 0.15)


def test_released_loss_is_the_sum_over_all_scored_slots(cross, taught):
    case = Case(ClipTokenClassification, cross, taught)
    case.objective = ClipTokenClassification(cross.sizes, clip_targets="released").eval()
    batch = case.batch(*LENGTHS)
    encoded = cross(batch)
    found = case.objective(encoded, batch)["clip_tokens"]
    count, expected = 0, 0.0
    for b in range(len(batch)):
        states, table = encoded.joint_visual[b], encoded.clip_input_embeddings
        logits = case.objective.head(states, table).log_softmax(-1)
        for place, label in enumerate(batch.labels["clip_tokens"][b].tolist()):
            if label != IGNORE:
                expected, count = expected - logits[place, label], count + 1
        end = int(batch.clip.key_mask[b].sum()) - 1
        extra = int(batch.labels["clip_padding"][b])
        expected, count = expected - extra * logits[end, 0], count + extra
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    assert case.objective.count(batch) == {"clip_tokens": count}


# -- contrast and distillation ---------------------------------------------------------------------------------------
def test_info_nce_by_hand():
    anchors = F.normalize(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), dim=-1)
    others = F.normalize(torch.tensor([[1.0, 1.0], [0.8, 0.6], [1.0, 0.1], [0.0, 1.0]]), dim=-1)
    same = torch.zeros(3, 4, dtype=torch.bool)
    same[0, 3] = same[0, 1] = True  # (0, 1) is anchor 0's own positive: it stays
    found = info_nce(anchors, others, start=1, scale=2.0, is_same=same)
    expected = 0.0
    for n in range(3):
        kept = [m for m in range(4) if m == n + 1 or not same[n, m]]
        scores = {m: 2.0 * float(anchors[n] @ others[m]) for m in kept}
        expected -= scores[n + 1] - math.log(sum(math.exp(s) for s in scores.values()))
    assert float(found) == pytest.approx(expected, abs=1e-5)


@torch.no_grad()
def test_contrast_is_clips_own_loss_without_shared_images(towers, pictures):
    objective = ClipContrastiveLoss(towers.sizes)
    batch = collate(pictures.get([0, 2, 4, 9]))  # four pictures
    encoded = towers(batch)
    found = objective(encoded, batch)["clip"]
    pixels = (batch.pixels.float() / 255 - towers.mean) / towers.std
    theirs = towers.clip(
        input_ids=batch.clip.input_ids,
        attention_mask=batch.clip.attention_mask.long(),
        pixel_values=pixels,
        return_loss=True,
    )
    torch.testing.assert_close(found / 4, theirs.loss, rtol=0, atol=1e-5)


@torch.no_grad()
def test_two_captions_of_a_picture_are_no_negatives(towers, pictures):
    objective = ClipContrastiveLoss(towers.sizes)
    pair, single = collate(pictures.get([0, 1])), collate(pictures.get([0, 2]))
    nothing = pytest.approx(0, abs=1e-6)
    assert float(objective(towers(pair), pair)["clip"]) == nothing
    assert float(objective(towers(single), single)["clip"]) > 1e-3


def test_the_scale_is_bounded(towers, pictures):
    batch = collate(pictures.get([0, 2, 4]))
    with torch.no_grad():
        towers.clip.logit_scale.fill_(10.0)
    found = ClipContrastiveLoss(towers.sizes)(towers(batch), batch)["clip"]
    encoded = replace(towers(batch), scale=torch.tensor(100.0))
    torch.testing.assert_close(found, ClipContrastiveLoss(towers.sizes)(encoded, batch)["clip"])


def by_hand(
    objective: FeatureDistillation, encoded: EncoderOutput, batch: Batch
) -> dict[str, float]:
    """The terms of FeatureDistillation with loops, from its description alone."""
    items: dict[str, list] = {"sentence": [], "word": []}
    for b in range(len(batch)):
        tokens = batch.text.word_ids[b].tolist()
        special = batch.text.special_tokens_mask[b].tolist()
        inner = [t for t in range(len(tokens)) if not special[t]]
        state = encoded.text[b, 0]
        if objective.settings.pooling == "mean":
            state = encoded.text[b, inner].mean(0)
        words = tuple(w for w in batch.word_type_ids[b].tolist() if w >= 0)
        student = objective.project["sentence"](state)
        items["sentence"].append((student, batch.features["sentence"][b], words))
        masked = batch.labels.get("masked_lm")
        for k, number in enumerate(words):
            own = [t for t, w in enumerate(tokens) if w == k]
            hidden = masked is not None and any(masked[b, t] != IGNORE for t in own)
            if own and not hidden and batch.features["has"][b, k]:
                student = objective.project["word"](encoded.text[b, own].mean(0))
                items["word"].append((student, batch.features["words"][b, k], number))
    out = {}
    for part, found in items.items():
        total = 0.0
        for student, teacher, number in found:
            if objective.name == "l1":
                if objective.settings.l1_targets == "unit":
                    student, teacher = student / student.norm(), teacher / teacher.norm()
                total += float((student - teacher).abs().sum())
                continue
            others = [one for _, one, theirs in found if one is teacher or theirs != number]
            own, *scores = (
                float(F.cosine_similarity(student, one, dim=0)) / objective.settings.temperature
                for one in (teacher, *others)
            )
            total -= own - math.log(sum(map(math.exp, scores)))
        out[f"{objective.name}_{part}"] = total * objective.part_weights[part]
        assert objective.count(batch)[f"{objective.name}_{part}"] == len(found)
    return out


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5, "pooling": "mean", "sentence_weight": 0.5, "word_weight": 3.0},
        {"kind": L1Distillation},
        {"kind": L1Distillation, "l1_targets": "unit", "pooling": "mean"},
    ],
)
@torch.no_grad()
def test_distill_by_hand(options, masked, cross, taught):
    options = dict(options)
    sizes = cross.sizes._replace(teacher=24)
    torch.manual_seed(6)
    kind = options.pop("kind", ContrastiveDistillation)
    objective = kind(sizes, **options).eval()
    chosen = taught.get([0, 7, 12], ())
    chosen.append(replace(chosen[0], id="twin"))  # an equal text is no negative
    if masked:
        chosen = [draws(MaskedLM(sizes, mask_id=4, mask_rate=0.3), s, 1)[0] for s in chosen]
    batch = collate(chosen)
    encoded = cross(batch)
    expected = by_hand(objective, encoded, batch)
    found = objective(encoded, batch)
    assert found.keys() == expected.keys()
    for term in found:
        assert float(found[term]) == pytest.approx(expected[term], rel=1e-4), term
    words = torch.cat([w[w >= 0] for w in batch.word_type_ids])
    assert len(words.unique()) < len(words), "some words stand in several texts"
    alone = kind(sizes, sentence_weight=0.0)
    assert alone(encoded, batch).keys() == alone.count(batch).keys() == {f"{kind.name}_word"}


# -- the teacher -----------------------------------------------------------------------------------------------------
def test_teacher_features_by_hand(tower, samples, clip_tokenizer):
    clip, _ = tower()
    teacher = ClipTextTeacher(clip, clip_tokenizer, standardise=False)
    batch = collate(teacher.inputs(samples.get([0, 7])))
    found = teacher.features(batch)
    states, pooled = clip(batch.clip)
    own = [int(n) for n in (batch.clip.row_index == 1).nonzero()]
    assert len(own) > 1
    torch.testing.assert_close(found["sentence"][1], pooled[own].mean(0))
    for b in range(2):
        joined = batch.clip.flatten_states(states)[b]
        for k in range(int((batch.word_type_ids[b] >= 0).sum())):
            tokens = (batch.clip.word_ids[b] == k).nonzero().flatten()
            assert bool(found["has"][b, k]) == bool(len(tokens))
            if len(tokens):  # the last token alone has seen the whole word
                torch.testing.assert_close(found["words"][b, k], joined[tokens[-1]])
    assert not found["sentence"].requires_grad


def test_teacher_features_are_standardised(tower, samples):
    teacher = ClipTextTeacher(*tower()).fit(samples)
    inputs = [teacher.inputs(samples.get([i])) for i in range(len(samples))]
    every = [teacher.features(collate(one)) for one in inputs]
    sentences = torch.cat([f["sentence"] for f in every])
    words = torch.cat([f["words"][f["has"]] for f in every])
    for found in (sentences, words):
        torch.testing.assert_close(found.mean(0), torch.zeros(24), atol=1e-4, rtol=0)
        torch.testing.assert_close(found.std(0), torch.ones(24), atol=1e-3, rtol=0)


# -- supervised ------------------------------------------------------------------------------------------------------
def test_supervised_uses_the_encoders_own_pooler(student, text_only):
    form = Classification(("no", "yes"))
    for name, has in (("bert", True), ("electra", False)):
        model = student(name)
        objective = SupervisedObjective(model.sizes, output_type=form).eval()
        assert (objective.head.pooler is None) is has
        batch = collate(text_only.get([0, 1, 2]))
        encoded = model(batch)
        pooled = encoded.pooler_output
        if not has:
            pooled = torch.tanh(objective.head.pooler.dense(encoded.text[:, 0]))
        found = objective.outputs(encoded, batch)
        torch.testing.assert_close(found, objective.head.classify(pooled))
