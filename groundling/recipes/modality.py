"""How much a model looks at, and depends on, text and image (CLIP-TD, Section 5.1 and Figures 2 to 4), as a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from groundling.batch import Example, Sample
from groundling.config import ModalityConfig, Targeted, check_numbers, need
from groundling.data.samples import Changed, Samples, thinned
from groundling.errors import InputError
from groundling.grounding import attribution, selected_words
from groundling.grounding.inputs import (
    GIVEN,
    OWN,
    Given,
    in_other_order,
    measured,
    strangers,
    undefined,
    with_images,
    with_texts,
    without_looks,
    without_words,
)
from groundling.grounding.modality import (
    KINDS,
    Drawn,
    Importance,
    Looks,
    compared,
    drawn_means,
    told,
)
from groundling.grounding.outcomes import Outcome
from groundling.grounding.passes import partners, stream
from groundling.models.clip import load_clip_image, load_clip_text
from groundling.recipes.attending import inputs_of
from groundling.recipes.lifecycle import Run, say_notes
from groundling.recipes.subjects import Subject, examples_of, reads_pixels, subject_of
from groundling.recipes.teaching import teacher_inputs
from groundling.report import TableRow, table
from groundling.teachers.clip import ClipTeacher
from groundling.teachers.towers import Towers

COMPLETE = 0.05
"""Up to which share of the change in an answer attributions may miss it and count as complete."""
MOSTLY = 0.9
"""Share of examples of which attributions ought to be complete."""
COUNTED = "layers and heads count from 0"
Told = dict[str, Any]


def modality(config: ModalityConfig, out: str | Path) -> dict[str, Any]:
    """Modality importance by layer and head, and what attention cannot tell, of one model or two, in `out`.

    Writes `result.json`, prints its tables, and returns what it holds. Of several processes each reads its share.

    Raises:
        InputError: A model reads no regions or gives no attention, a file is missing or malformed, examples have no
            labels where their answers are asked for, or settings do not fit the model.
    """
    need(config, "modality", "data")
    need(config.attending, "modality", "model")
    if config.teacher:
        need(config, "modality --teacher", "teacher_images")
    check_numbers(config)
    run = Run(out, "modality", asdict(config), _inputs(config), config.attending.cpu)
    result = run.result
    if result is None:
        result = run.finish(_Analysis(config, run.state.device).result())
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


class _Analysis:
    """One model or two, and the examples that both read."""

    def __init__(self, config: ModalityConfig, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.seed = config.attending.seed
        self.sources = [config.attending.model, *([config.other] if config.other else [])]
        settings = [config.attending]
        if config.other:
            settings.append(replace(config.attending, model=config.other, untrained=False))
        self.subjects = [subject_of(one, config.outcome, device) for one in settings]
        every, remarks = examples_of(config, self.subjects[0])
        self.examples = thinned(every, config.most_examples)
        self.images = images_of(self.examples)
        self.notes = [*remarks, *(note for subject in self.subjects for note in subject.notes)]
        if len(self.examples) < len(every):
            self.notes.append(f"{len(self.examples):,} of {len(every):,} examples, evenly spaced")

    def result(self) -> Told:
        """What `result.json` holds."""
        config = self.config
        drawn = [self._importance(subject) for subject in self.subjects]
        few = _Few(self)
        models = []
        for number, (subject, one) in enumerate(zip(self.subjects, drawn, strict=True)):
            told_of: Told = {"model": self.sources[number]}
            told_of["kind"] = subject.model.join.kind
            told_of |= one.numbers()
            told_of["inputs"] = self._other_inputs(subject) if config.other_inputs else None
            told_of["attribution"] = few.attribution(number) if config.explained else None
            models.append(told_of)
        result: Told = {"data": config.data, "task": config.task, "query": config.query}
        result |= {"examples": len(self.examples), "images": len(set(self.images))}
        result |= {"counted": COUNTED, "models": models}
        result["difference"] = self._difference(drawn)
        result["selected_words"] = few.selected_words() if config.teacher else None
        result["notes"] = list(dict.fromkeys(self.notes))
        return result

    def _importance(self, subject: Subject) -> Drawn:
        consumer = Importance(self.config.query)
        samples = subject.samples(self.examples)
        stream(subject.model, samples, [consumer], self.config.attending.at_once)
        if not consumer.layers.numbers:
            raise InputError("no layer of this model attends to text and regions alike")
        if consumer.dropped:
            self.notes.append(f"{consumer.dropped:,} pieces of texts did not fit and were cut off")
        return Drawn(consumer, self.images, self.seed)

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

    # -- other inputs --------------------------------------------------------------------------------------------------

    def _other_inputs(self, subject: Subject) -> Told:
        """What becomes of a model's answers beside other inputs."""
        outcome = subject.outcome
        if outcome is None:
            return {"undefined": "the model has no head that says how text and image match"}
        self.check_labels(subject)
        own = self._measured(subject, outcome, OWN)
        rows = []
        for given in GIVEN:
            reason = undefined(given, outcome, subject.form, self.examples)
            row: Told = {"given": given.name, "image": given.image, "text": given.text}
            if reason:
                rows.append(row | {"undefined": reason})
                continue
            values = own if given == OWN else self._measured(subject, outcome, given)
            means = drawn_means(values, self.images, self.seed)
            changes = drawn_means(values - own, self.images, self.seed)
            row["values"] = [told(means[:, place]) for place in range(len(outcome.names))]
            row["changes"] = [told(changes[:, place]) for place in range(len(outcome.names))]
            rows.append(row)
        without = int((~np.isfinite(own[:, 0])).sum())
        return {"measures": list(outcome.names), "without_right_answer": without, "rows": rows}

    def check_labels(self, subject: Subject) -> None:
        """Raises InputError if a fine-tuned model's answers are asked for, and nobody knows the right ones."""
        labels = [example.label for example in self.examples]
        picks = subject.form is not None and any(example.gold for example in self.examples)
        if subject.form is not None and None in labels and not picks:
            raise InputError(
                f"{self.config.data}: examples have no labels; pass --no-other-inputs --explained 0, or labelled data"
            )

    def _measured(self, subject: Subject, outcome: Outcome, given: Given) -> np.ndarray:
        samples = self._given(subject, outcome, given)
        return measured(subject.model, outcome, samples, self.config.attending.at_once)

    def _given(self, subject: Subject, outcome: Outcome, given: Given) -> Samples:
        """The examples as the model is given them."""
        examples = self.examples
        partner: Mapping[str, str] | None = None
        if given.image in ("shuffled", "swapped"):
            partner = partners([name for one in examples for name in one.images], self.seed)
        if given.image == "swapped" and partner is not None:
            examples = with_images(examples, partner)
        if given.text == "swapped":
            examples = with_texts(examples, strangers(examples, self.seed))
        shuffled = partner if given.image == "shuffled" else None
        samples = outcome.put(subject.samples(examples, shuffled))
        kept = subject.model.text.tokenizer.all_special_ids
        if given.image == "blank":
            samples = Changed(samples, without_looks(subject.model.sizes.regions))
        if given.text == "blank":
            samples = Changed(samples, without_words(kept))
        if given.text == "shuffled":
            samples = Changed(samples, in_other_order(kept, self.seed))
        return samples


@dataclass
class _Few:
    """The examples that are looked at word by word."""

    whole: _Analysis

    @cached_property
    def examples(self) -> list[Example]:
        """Some of all, evenly spaced."""
        return thinned(self.whole.examples, self.whole.config.explained or len(self.whole.examples))

    @cached_property
    def images(self) -> list[str]:
        """The image of each."""
        return images_of(self.examples)

    @cached_property
    def seen(self) -> list[tuple[Looks, list[Sample]]]:
        """Each model's attention, place by place, and the samples that it was read from."""
        found = []
        for subject in self.whole.subjects:
            samples = subject.samples(self.examples)
            looks = Looks()
            stream(subject.model, samples, [looks], self.whole.config.attending.at_once)
            found.append((looks, samples.get(range(len(samples)), ())))
        return found

    def _by_layer(self, values: np.ndarray, layers: Sequence[int]) -> Told:
        """Means of numbers (N, layers + 1), the last one of the mean of layers."""
        drawn = drawn_means(values, self.images, self.whole.seed)
        rows = [{"layer": layer, **told(drawn[:, place])} for place, layer in enumerate(layers)]
        known = int(np.isfinite(values[:, -1]).sum())
        return {"by_layer": rows, "mean_of_layers": told(drawn[:, -1]), "examples": known}

    def attribution(self, number: int) -> Told:
        """Integrated gradients of a model, whether they are complete, and whether attention agrees with them."""
        subject = self.whole.subjects[number]
        if subject.outcome is None:
            return {"undefined": "the model has no head whose answer could be explained"}
        if reads_pixels(subject):
            return {"undefined": "the model reads pixels, and only stored features are explained"}
        self.whole.check_labels(subject)
        config = self.whole.config
        samples = subject.outcome.put(subject.samples(self.examples))
        found = attribution.attributions(
            subject.model, subject.outcome, samples, config.attending.at_once, config.line_points
        )
        looks, rows = self.seen[number]
        agreeing = np.stack(
            [
                attribution.agreement(looks.by_sample.rows[place], one, row)
                for place, (one, row) in enumerate(zip(found, rows, strict=True))
            ]
        )
        change = np.array([one.change for one in found])
        rest = np.abs([one.rest for one in found])
        shares = drawn_means(text_share(found), self.images, self.whole.seed)
        complete = float((rest <= COMPLETE * np.abs(change)).mean())
        if complete < MOSTLY:
            self.whole.notes.append(
                f"{self.whole.sources[number]}: integrated gradients miss more than {COMPLETE:.0%} of the change in "
                f"{1 - complete:.0%} of examples; raise --line-points"
            )
        return {
            "explains": subject.outcome.explains,
            "examples": len(found),
            "line_points": config.line_points,
            "complete": round(complete, 6),
            "rest_median": round(float(np.median(rest)), 6),
            "rest_worst": round(float(rest.max()), 6),
            "change_mean_size": round(float(np.abs(change).mean()), 6),
            "text_share": told(shares),
            "agreement": {
                "words": self._by_layer(agreeing[..., 0], looks.layers.numbers),
                "regions": self._by_layer(agreeing[..., 1], looks.layers.numbers),
            },
        }

    def selected_words(self) -> Told:
        """Whether attention goes to the words that CLIP-TD's teacher selects."""
        config = self.whole.config
        _, rows = self.seen[0]
        teacher = self._teacher(self.whole.subjects[0].samples(self.examples))
        worths = selected_words.worths(teacher, rows, config.attending.at_once)
        attentions = []
        for looks, samples in self.seen:
            attentions.append(
                [
                    selected_words.attention_of_words(
                        looks.by_sample.rows[place], sample, len(worth.words)
                    )
                    for place, (sample, worth) in enumerate(zip(samples, worths, strict=True))
                ]
            )
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
        result["examples"] = len(rows)
        result["models"] = [
            {
                "ranks": self._by_layer(one[..., 0], looks.layers.numbers),
                "overlap": self._by_layer(one[..., 1], looks.layers.numbers),
            }
            for one, (looks, _) in zip(scores, self.seen, strict=True)
        ]
        result["overlap_by_chance"] = told(self._mean(scores[0][:, -1, 2]))
        result["difference"] = None
        if len(scores) == 2:
            change = self._mean(scores[1][:, -1, :2] - scores[0][:, -1, :2])
            result["difference"] = {"ranks": told(change[:, 0]), "overlap": told(change[:, 1])}
        place = _worth_showing(worths)
        result["shown"] = selected_words.shown(worths[place], [each[place] for each in attentions])
        return result

    def _mean(self, values: np.ndarray) -> np.ndarray:
        return drawn_means(values, self.images, self.whole.seed)

    def _teacher(self, samples: Samples) -> ClipTeacher:
        config = self.whole.config
        source = config.teacher
        towers = Towers(load_clip_image(source), *load_clip_text(source))
        options = Targeted(
            teacher_images=config.teacher_images, words=config.words, relevance=config.relevance
        )
        return ClipTeacher(towers, {"clip_words"}, options).to(self.whole.device).fit(samples)


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
        parts += _of_words(result["selected_words"])
    return "\n\n".join(parts)


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
        f"{model['model']}: attention of {asked}, % (95 % intervals over images)\n\n{table(rows)}"
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
            f"  complete within {100 * COMPLETE:.0f} %: {100 * found['complete']:.1f} % of examples",
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
    one, other = (model["model"] for model in result["models"])
    relative = found["relative"]
    lines = [
        f"{other} less {one}, percentage points",
        "",
        table(rows),
        f"change in the size of the gap: {_percent(relative['gap_size'])} % of it; in visual mass: "
        f"{_percent(relative['visual'])} % of it",
    ]
    return ["\n".join(lines)]


def _of_words(found: Told) -> list[str]:
    """Attention to words against the teacher's scores, and one text."""
    rows: list[TableRow] = []
    for number, model in enumerate(found["models"]):
        ranks, overlap = (model[name]["mean_of_layers"] for name in ("ranks", "overlap"))
        rows.append(
            {"": f"model {number}", "rank correlation": _cell(ranks), "overlap": _percent(overlap)}
        )
    chance = _percent(found["overlap_by_chance"])
    rows.append({"": "by chance", "rank correlation": "0.0", "overlap": chance})
    shown = []
    for word in found["shown"]["words"]:
        cells = {"word": word["word"], "score": "-"}
        if word["score"] is not None:
            cells["score"] = f"{word['score']:.3f}"
        for number, attention in enumerate(word["attention"]):
            cells[f"attention {number}, %"] = f"{100 * attention:.2f}"
        shown.append(cells)
    title = f"[CLS]'s attention to words against the scores by which {found['teacher']} selects {found['words']}"
    return [f"{title}\n\n{table(rows)}", f"{found['shown']['text']}\n\n{table(shown)}"]
