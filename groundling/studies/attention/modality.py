"""How much a model looks at, and depends on, text and image (CLIP-TD, Section 5.1 and Figures 2 to 4), as a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from groundling.core.batch import Example, Sample
from groundling.core.errors import InputError
from groundling.data.samples import Changed, Samples, thinned
from groundling.models.clip import load_frozen_clip
from groundling.runs.report import TableRow, counted, table
from groundling.runs.run import Run, say_notes
from groundling.settings.objectives import Targeted, teacher_inputs
from groundling.studies.attention import attribution, selected_words
from groundling.studies.attention.ablation import (
    GIVEN,
    OWN,
    Given,
    Measured,
    in_other_order,
    strangers,
    undefined,
    with_images,
    with_texts,
    without_looks,
    without_words,
)
from groundling.studies.attention.attending import inputs_of, read_all
from groundling.studies.attention.attribution import Explained
from groundling.studies.attention.commands import ModalityConfig, check_modality
from groundling.studies.attention.importance import (
    KINDS,
    Drawn,
    Importance,
    Looks,
    compared,
    drawn_means,
    told,
)
from groundling.studies.attention.passes import Consumer, Look, Pass, partners
from groundling.studies.attention.settings import Attending
from groundling.studies.attention.subjects import (
    Outcome,
    Subject,
    examples_of,
    reads_pixels,
    subject_of,
)
from groundling.teachers.clip import ClipTeacher
from groundling.vision_language.single_stream import SingleStream

COMPLETE = 0.05
"""Up to which share of the change in an answer attributions may miss it and count as complete."""
CLOSE = 0.01
"""Up to how much they may miss it anyhow: of a change of nearly nothing, a share says nothing."""
MOSTLY = 0.9
"""Share of examples of which attributions ought to be complete."""
COUNTED = "layers and heads count from 0"
SHUFFLED = Given(image="shuffled")
SWAPPED = Given(image="swapped")
Told = dict[str, Any]


def modality(config: ModalityConfig, out: str | Path) -> dict[str, Any]:
    """Modality importance by layer and head, and what attention cannot tell, of one model or two, in `out`.

    Writes `result.json`, prints its tables, and returns what it holds. Of several processes each reads its share.

    Raises:
        InputError: A model reads no regions or gives no attention, a file is missing or malformed, examples have no
            labels where their answers are asked for, or settings do not fit the model.
    """
    check_modality(config, out)
    settings = asdict(config)
    del settings["processes"]  # results do not depend on them
    run = Run(out, "modality", settings, _inputs(config), config.attending.cpu)
    result = run.result
    if result is None:
        analysis = _Analysis(config, run.state.device)
        read_all(analysis.passes, plan, config, config.processes)
        result = run.finish(analysis.result())
    say_notes(result["notes"])
    if run.state.is_main_process:
        print(_tables(result))
    return result


def _inputs(config: ModalityConfig) -> dict[str, str | Path]:
    return {
        "other": config.other,
        "data": config.data,
        **teacher_inputs(config.teacher, Targeted(teacher_images=config.teacher_images)),
        **inputs_of(config.attending),
    }


def plan(config: ModalityConfig, device: torch.device) -> list[Pass]:
    """Every pass of every model."""
    return _Analysis(config, device).passes


class _Analysis:
    """One model or two, and the examples that both read."""

    def __init__(self, config: ModalityConfig, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.seed = config.attending.seed
        settings = [config.attending]
        if config.other:
            settings.append(replace(config.attending, model=config.other, untrained=False))
        subjects = [subject_of(one, config.outcome, device, config.trust) for one in settings]
        every, remarks = examples_of(config, subjects[0])
        self.examples = thinned(every, config.most_examples)
        self.images = images_of(self.examples)
        self.few = thinned(self.examples, config.explained or len(self.examples))
        """Those that are looked at word by word."""
        self.notes = [*remarks, *(note for subject in subjects for note in subject.notes)]
        if len(self.examples) < len(every):
            self.notes.append(f"{len(self.examples):,} of {len(every):,} examples, evenly spaced")
        self.models = [
            _Model(self, one, subject) for one, subject in zip(settings, subjects, strict=True)
        ]

    @property
    def passes(self) -> list[Pass]:
        """All that models are asked."""
        return [one for model in self.models for one in model.passes]

    def result(self) -> Told:
        """What `result.json` holds, once all passes are read."""
        config = self.config
        drawn = [model.importance() for model in self.models]
        told_of = [
            model.about(one.numbers()) for model, one in zip(self.models, drawn, strict=True)
        ]
        result: Told = {"data": config.data, "task": config.task, "query": config.query}
        result |= {"examples": len(self.examples), "images": len(set(self.images))}
        result |= {"counted": COUNTED, "models": told_of}
        result["difference"] = self._difference(drawn)
        result["selected_words"] = _Words(self).about() if config.teacher else None
        result["notes"] = list(dict.fromkeys(self.notes))
        return result

    def _difference(self, drawn: Sequence[Drawn]) -> Told | None:
        if len(drawn) < 2:
            return None
        one, other = drawn
        if not np.allclose(one.uniform[0], other.uniform[0]):
            self.notes.append(
                "the two models read the examples as different numbers of places, so that masses differ for that "
                "alone; compare their ratios to even attention"
            )
        return compared(one, other)

    def means(self, values: np.ndarray) -> np.ndarray:
        """Means of numbers of all examples with resamples, see `drawn_means`."""
        return drawn_means(values, self.images, self.seed)

    def means_of_few(self, values: np.ndarray) -> np.ndarray:
        """The same of the few."""
        return drawn_means(values, images_of(self.few), self.seed)

    def by_layer(self, values: np.ndarray, layers: Sequence[int]) -> Told:
        """Means of numbers (few, layers + 1), the last one of the mean of layers."""
        drawn = self.means_of_few(values)
        rows = [{"layer": layer, **told(drawn[:, place])} for place, layer in enumerate(layers)]
        known = int(np.isfinite(values[:, -1]).sum())
        return {"by_layer": rows, "mean_of_layers": told(drawn[:, -1]), "examples": known}


class _Model:
    """One model, and all that it is asked; its numbers are there once `passes` are read."""

    def __init__(self, whole: _Analysis, attending: Attending, subject: Subject) -> None:
        self.whole = whole
        self.source = attending.model
        self.untrained = attending.untrained
        self.subject = subject
        self.config = whole.config
        self.masses = Importance(self.config.query)
        self.looks = Looks()
        self.answers: dict[Given, Measured] = {}
        self.why_not: dict[Given, str] = {}
        self.explained: Explained | None = None
        outcome = subject.outcome
        if self.config.other_inputs and outcome is not None:
            self._ask_beside_other_inputs(outcome)
        explains = self.config.explained and outcome is not None and not reads_pixels(subject)
        if explains and outcome is not None:
            self._explain(outcome)

    @property
    def passes(self) -> list[Pass]:
        """All of them."""
        passes: list[Pass] = [self._look(self.masses, self.whole.examples), *self.answers.values()]
        if self.explained is not None:
            passes.append(self.explained)
        if self.explained is not None or self.config.teacher:
            passes.append(self._look(self.looks, self.whole.few))
        return passes

    def _look(self, consumer: Consumer, examples: Sequence[Example]) -> Look:
        samples = partial(self.subject.samples, examples)
        return Look(self.subject.model, samples, [consumer], self.config.attending.at_once)

    def about(self, numbers: Told) -> Told:
        """What `result.json` says of it; `numbers` are those of its attention."""
        return {
            "model": self.source,
            "untrained": self.untrained,
            "kind": self.subject.model.kind,
            **numbers,
            "inputs": self._other_inputs() if self.config.other_inputs else None,
            "attribution": self._attribution() if self.config.explained else None,
        }

    def importance(self) -> Drawn:
        """Its masses, with resamples."""
        if not self.masses.layers.numbers:
            raise InputError("no layer of this model attends to text and regions alike")
        if self.masses.dropped:
            pieces = counted(self.masses.dropped, "piece")
            self.whole.notes.append(f"{pieces} cut off from texts that did not fit (--max-length)")
        return Drawn(self.masses, self.whole.images, self.whole.seed)

    # -- other inputs --------------------------------------------------------------------------------------------------

    def _ask_beside_other_inputs(self, outcome: Outcome) -> None:
        self._check_labels()
        model = self.subject.model
        for given in GIVEN:
            reason = undefined(given, outcome, self.subject.form, self.whole.examples)
            if reason:
                self.why_not[given] = reason
                continue
            samples = partial(self._given, outcome, given)
            at_once = self.config.attending.at_once
            self.answers[given] = Measured(model, outcome, samples, at_once)

    def _other_inputs(self) -> Told:
        """What becomes of its answers beside other inputs."""
        outcome = self.subject.outcome
        if outcome is None:
            return {"undefined": "the model has no head that says how text and image match"}
        values = {given: answers.values for given, answers in self.answers.items()}
        own = values[OWN]
        rows = []
        for given in GIVEN:
            row: Told = {"given": given.name, "image": given.image, "text": given.text}
            if given in self.why_not:
                rows.append(row | {"undefined": self.why_not[given]})
                continue
            means = self.whole.means(values[given])
            changes = self.whole.means(values[given] - own)
            row["values"] = [told(means[:, place]) for place in range(len(outcome.names))]
            row["changes"] = [told(changes[:, place]) for place in range(len(outcome.names))]
            rows.append(row)
        self._note_same_images(values)
        without = int((~np.isfinite(own[:, 0])).sum())
        return {"measures": list(outcome.names), "without_right_answer": without, "rows": rows}

    def _note_same_images(self, values: Mapping[Given, np.ndarray]) -> None:
        """Says why two rows are equal that are asked apart."""
        shuffled, swapped = values[SHUFFLED], values.get(SWAPPED)
        if swapped is not None and np.array_equal(shuffled, swapped, equal_nan=True):
            self.whole.notes.append(
                f"{self.source}: {SHUFFLED.name} and {SWAPPED.name} are the same input to this model, as images "
                "differ in nothing but looks: all have as many regions, and their boxes are equal (as in a grid), or "
                "the model reads no boxes"
            )

    def _check_labels(self) -> None:
        """Raises InputError if a fine-tuned model's answers are asked for, and nobody knows the right ones."""
        form = self.subject.form
        labels = [example.label for example in self.whole.examples]
        picks = form is not None and any(example.gold for example in self.whole.examples)
        if form is not None and None in labels and not picks:
            raise InputError(
                f"{self.config.data}: examples have no labels; pass --no-other-inputs --explained 0, or labelled data"
            )

    def _given(self, outcome: Outcome, given: Given) -> Samples:
        """The examples as the model is given them."""
        examples = self.whole.examples
        seed = self.whole.seed
        partner: Mapping[str, str] | None = None
        if given.image in ("shuffled", "swapped"):
            partner = partners([name for one in examples for name in one.images], seed)
        if given.image == "swapped" and partner is not None:
            examples = with_images(examples, partner)
        if given.text == "swapped":
            examples = with_texts(examples, strangers(examples, seed))
        shuffled = partner if given.image == "shuffled" else None
        model = self.subject.model
        samples = outcome.put(self.subject.samples(examples, shuffled))
        kept = model.special
        if given.image == "blank":
            samples = Changed(samples, without_looks(model.sizes.regions))
        if given.text == "blank":
            samples = Changed(samples, without_words(kept))
        if given.text == "shuffled":
            samples = Changed(samples, in_other_order(kept, seed))
        return samples

    # -- attribution ---------------------------------------------------------------------------------------------------

    def _explain(self, outcome: Outcome) -> None:
        self._check_labels()

        def samples() -> Samples:
            return outcome.put(self.subject.samples(self.whole.few))

        model, config = self.subject.model, self.config
        assert isinstance(model, SingleStream)  # no other has an outcome
        self.explained = Explained(
            model, outcome, samples, config.attending.at_once, config.line_points
        )

    @cached_property
    def rows(self) -> list[Sample]:
        """The few as the model reads them."""
        samples = self.subject.samples(self.whole.few)
        return list(samples.get(range(len(samples)), ()))

    def _attribution(self) -> Told:
        """Integrated gradients, whether they are complete, and whether attention agrees with them."""
        outcome = self.subject.outcome
        if outcome is None:
            return {"undefined": "the model has no head whose answer could be explained"}
        if self.explained is None:
            return {"undefined": "the model reads pixels, and only stored features are explained"}
        found = self.explained.attributions
        looks = self.looks.by_sample.rows
        agreeing = np.stack(
            [
                attribution.agreement(looks[place], one, row)
                for place, (one, row) in enumerate(zip(found, self.rows, strict=True))
            ]
        )
        layers = self.looks.layers.numbers
        return {
            "explains": outcome.explains,
            "examples": len(found),
            "line_points": self.config.line_points,
            **self._completeness(found),
            "text_share": told(self.whole.means_of_few(text_share(found))),
            "agreement": {
                "words": self.whole.by_layer(agreeing[..., 0], layers),
                "regions": self.whole.by_layer(agreeing[..., 1], layers),
            },
        }

    def _completeness(self, found: Sequence[attribution.Attribution]) -> Told:
        """How much attributions miss."""
        change = np.abs([one.change for one in found])
        rest = np.abs([one.rest for one in found])
        complete = float((rest <= np.maximum(COMPLETE * change, CLOSE)).mean())
        if complete < MOSTLY:
            self.whole.notes.append(
                f"{self.source}: integrated gradients miss more than {COMPLETE:.0%} of the change, and more than "
                f"{CLOSE}, in {1 - complete:.0%} of examples; double --line-points ({self.config.line_points}) until "
                "`complete` stays"
            )
        return {
            "complete": round(complete, 6),
            "rest_median": round(float(np.median(rest)), 6),
            "rest_worst": round(float(rest.max()), 6),
            "change_mean_size": round(float(change.mean()), 6),
        }


@dataclass
class _Words:
    """Whether attention goes to the words that CLIP-TD's teacher selects."""

    whole: _Analysis

    def about(self) -> Told:
        """What `result.json` says of it."""
        config = self.whole.config
        models = self.whole.models
        teacher = self._teacher(models[0].subject.samples(self.whole.few))
        worths = selected_words.worths(teacher, models[0].rows, config.attending.at_once)
        attentions = [_attention_of_words(model, worths) for model in models]
        scores = [
            np.stack(
                [
                    selected_words.agreement(*one, config.words)
                    for one in zip(each, worths, strict=True)
                ]
            )
            for each in attentions
        ]
        result: Told = {
            "teacher": config.teacher,
            "words": config.words,
            "relevance": config.relevance,
        }
        result["examples"] = len(worths)
        result["models"] = [
            {
                "ranks": self.whole.by_layer(one[..., 0], model.looks.layers.numbers),
                "overlap": self.whole.by_layer(one[..., 1], model.looks.layers.numbers),
            }
            for one, model in zip(scores, models, strict=True)
        ]
        result["overlap_by_chance"] = told(self.whole.means_of_few(scores[0][:, -1, 2]))
        result["difference"] = None
        if len(scores) == 2:
            change = self.whole.means_of_few(scores[1][:, -1, :2] - scores[0][:, -1, :2])
            result["difference"] = {"ranks": told(change[:, 0]), "overlap": told(change[:, 1])}
        place = _worth_showing(worths)
        result["shown"] = selected_words.shown(worths[place], [each[place] for each in attentions])
        return result

    def _teacher(self, samples: Samples) -> ClipTeacher:
        config = self.whole.config
        source = config.teacher
        clip = load_frozen_clip(source)
        options = Targeted(
            teacher_images=config.teacher_images, words=config.words, relevance=config.relevance
        )
        teacher = ClipTeacher(clip, {"clip_words"}, options)
        teacher.to(self.whole.device).fit(samples)
        return teacher


def _attention_of_words(model: _Model, worths: Sequence[selected_words.Worth]) -> list[np.ndarray]:
    """A model's attention to each word of each of the few."""
    looks = model.looks.by_sample.rows
    return [
        selected_words.attention_of_words(looks[place], sample, len(worth.words))
        for place, (sample, worth) in enumerate(zip(model.rows, worths, strict=True))
    ]


def images_of(examples: Sequence[Example]) -> list[str]:
    """What each example is resampled with: its image, or its images together."""
    return [" ".join(example.images) for example in examples]


def text_share(found: Sequence[attribution.Attribution]) -> np.ndarray:
    """How much of the size of all shares (N,) falls to words; NaN where all are 0."""
    words = np.array([np.abs(one.pieces).sum() for one in found])
    regions = np.array([np.abs(one.regions).sum() for one in found])
    with np.errstate(invalid="ignore"):
        return np.asarray(words / (words + regions))


ENOUGH = 4
"""Words that may be selected, of a text that is worth showing."""


def _worth_showing(worths: Sequence[selected_words.Worth]) -> int:
    return next((n for n, one in enumerate(worths) if one.candidates.sum() >= ENOUGH), 0)


# -- tables ------------------------------------------------------------------------------------------------------------


def _tables(result: Told) -> str:
    """Everything as text."""
    parts = [f"{result['examples']:,} examples of {result['images']:,} images; {COUNTED}"]
    for model in result["models"]:
        parts += _of_model(model, result["query"])
    if result["difference"]:
        parts += _of_difference(result)
    if result["selected_words"]:
        names = [_name(model) for model in result["models"]]
        parts += _of_words(result["selected_words"], names)
    return "\n\n".join(parts)


def _name(model: Told) -> str:
    """What tables call a model."""
    return f"{model['model']} (random weights)" if model["untrained"] else str(model["model"])


def _cell(number: Told) -> str:
    """A number with its interval."""
    if number["mean"] is None:
        return "-"
    return f"{number['mean']:.3f} [{number['low']:.3f}, {number['high']:.3f}]"


def _percent(number: Told) -> str:
    """A share with its interval, in per cent."""
    if number["mean"] is None:
        return "-"
    mean, low, high = (100 * number[key] for key in ("mean", "low", "high"))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def _layer_rows(rows: Sequence[Told], names: Sequence[str]) -> list[TableRow]:
    return [
        {"layer": str(row["layer"])} | {name: _percent(row[name]) for name in names} for row in rows
    ]


def _of_model(model: Told, query: str) -> list[str]:
    """A model's own tables."""
    names = [*KINDS, "gap"]
    rows = _layer_rows(model["by_layer"], names)
    rows.append({"layer": "all"} | {name: _percent(model["overall"][name]) for name in names})
    even = {name: _percent(model["uniform"][name]) for name in KINDS}
    rows.append({"layer": "even attention"} | even | {"gap": ""})
    ratio = {name: _cell(model["ratio"][name]) for name in KINDS}
    rows.append({"layer": "all / even"} | ratio | {"gap": ""})
    asked = "[CLS]" if query == "cls" else "all places"
    parts = [
        f"{_name(model)}: attention of {asked}, % (95 % intervals over images)\n\n{table(rows)}"
    ]
    if model["inputs"]:
        parts.append(_of_inputs(model["inputs"]))
    if model["attribution"]:
        parts.append(_of_attribution(model["attribution"]))
    return parts


def _of_inputs(inputs: Told) -> str:
    title = "how much the answer depends on image and text"
    if "undefined" in inputs:
        return f"{title}: {inputs['undefined']}"
    rows: list[TableRow] = []
    for row in inputs["rows"]:
        cells = {"given": row["given"]}
        for place, name in enumerate(inputs["measures"]):
            is_there = "undefined" not in row
            cells[name] = f"{row['values'][place]['mean']:.4f}" if is_there else "-"
            change = _cell(row["changes"][place]) if is_there else "-"
            cells["change" if place == 0 else f"change of {name}"] = change
        rows.append(cells)
    reasons = [
        f"{row['given']}: not asked, because {row['undefined']}"
        for row in inputs["rows"]
        if "undefined" in row
    ]
    return "\n".join([title, "", table(rows), *reasons])


def _of_attribution(found: Told) -> str:
    title = "integrated gradients"
    if "undefined" in found:
        return f"{title}: {found['undefined']}"
    words = found["agreement"]["words"]["mean_of_layers"]
    regions = found["agreement"]["regions"]["mean_of_layers"]
    return "\n".join(
        [
            f"{title} of the {found['explains']}, {found['examples']:,} examples, {found['line_points']} points",
            f"  complete within {100 * COMPLETE:.0f} % or {CLOSE}: {100 * found['complete']:.1f} % of examples",
            f"  share of the text: {_percent(found['text_share'])} %",
            f"  rank correlation with [CLS]'s attention, words: {_cell(words)}, regions: {_cell(regions)}",
        ]
    )


def _of_difference(result: Told) -> list[str]:
    """The second model less the first."""
    found = result["difference"]
    names = [*KINDS, "gap"]
    rows = _layer_rows(found.get("by_layer", ()), names)
    rows.append({"layer": "all"} | {name: _percent(found["overall"][name]) for name in names})
    one, other = (_name(model) for model in result["models"])
    relative = found["relative"]
    lines = [
        f"{other} less {one}, percentage points",
        "",
        table(rows),
        f"change in the size of the gap: {_percent(relative['gap_size'])} % of it; in visual mass: "
        f"{_percent(relative['visual'])} % of it",
    ]
    return ["\n".join(lines)]


def _of_words(found: Told, names: Sequence[str]) -> list[str]:
    """Attention to words against the teacher's scores, and one text."""
    rows: list[TableRow] = []
    for source, model in zip(names, found["models"], strict=True):
        ranks, overlap = (model[name]["mean_of_layers"] for name in ("ranks", "overlap"))
        rows.append({"": source, "rank correlation": _cell(ranks), "overlap": _percent(overlap)})
    chance = _percent(found["overlap_by_chance"])
    rows.append({"": "by chance", "rank correlation": "0.0", "overlap": chance})
    shown = []
    for word in found["shown"]["words"]:
        cells = {"word": word["word"], "score": "-"}
        if word["score"] is not None:
            cells["score"] = f"{word['score']:.3f}"
        for source, attention in zip(names, word["attention"], strict=True):
            cells[f"attention of {source}, %"] = f"{100 * attention:.2f}"
        shown.append(cells)
    title = f"[CLS]'s attention to words against the scores by which {found['teacher']} selects {found['words']}"
    return [f"{title}\n\n{table(rows)}", f"{found['shown']['text']}\n\n{table(shown)}"]
