"""Readings of an encoder: in worlds linear probes, masked LM and fine-tuned questions; elsewhere published sets."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BatchEncoding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from groundling.command_line import COMMANDS, ResumableRun
from groundling.commands.adapt.evaluation import read_pairs
from groundling.core.batch import IGNORE, require
from groundling.core.errors import InputError
from groundling.core.metrics import SPEARMAN
from groundling.core.registry import resolve, resolve_builtin
from groundling.core.rng import generator
from groundling.data.images import open_image
from groundling.data.samples import backend_tokenizer
from groundling.data.tables import lines_of
from groundling.models.frozen_clip import load_frozen_clip
from groundling.models.loading import is_causal, load_config, load_tokenizer
from groundling.models.sentence_modules import make_sentence_modules
from groundling.models.text_encoder import load_text_encoder
from groundling.prediction.similarity import sentence_vectors
from groundling.runs.folder import data_hash, decoded_json, read_json, write_whole
from groundling.runs.jobs import use_cpu
from groundling.settings.fields import replace_settings
from groundling.settings.training import TrainingArguments
from groundling.stats.linear_probes import (
    TEXTUAL,
    AttributeRows,
    fit_probes,
    noun_states,
    read_nouns,
    score_readout,
)
from groundling.studies.bench.commands import RealBenchConfig
from groundling.studies.bench.protocol import MAX_LENGTH, Files, key_of
from groundling.tasks import Task

LINE_MASK_RATE = 0.15
"""Share of masked tokens in the held-out masked-LM loss."""
VISUAL = "visual"
"""The mean of the linear readings of the visual attributes."""
CHOICE = "choice"
"""The part by which weights are chosen: of a world dev nouns and cross-validated train nouns, of facts half of the
nouns."""
READOUT = "readout odd"
"""Odd-one-out questions, answered from the linear probes of the visual attributes."""
MASKED_LM = "masked LM"
"""Mean loss in nats of masked tokens of held-out text."""
CAUSAL_LM = "causal LM"
"""Of a decoder, in its place: that of every token of held-out text but a line's first."""
FOLDS = 5
"""Folds of the train nouns' cross-validation."""
LINES = 64
"""Lines, or images, per forward pass."""

PAIRS = "minimal pairs"
"""Share of test sentences that the language model prefers: to themselves with two words swapped, and to the same noun
with a verb and an ending of another category; the mean of both."""
PAIRS_FILE = "pairs.tsv"
"""File of a world's minimal pairs."""

Reading = dict[str, Any]
"""Accuracies `train`, `dev` and `test`, and the majority class's `chance`; losses have `test` alone. Of a published set
also its `measure`, the name of its `set` and `same_items`, the sets that share items with it; `groups`, what is
resampled, with their `items`, or `cosines` and `ratings`."""


def run_quietly(
    name: str, out: Path, training: TrainingArguments | None = None, **settings: Any
) -> dict[str, Any]:
    """The result of a command, which prints nothing."""
    command = COMMANDS[name]
    own = replace_settings(command.settings["_own"], **settings)
    with redirect_stdout(io.StringIO()):
        found: dict[str, Any] = command(own, *([training] if training else []), out)
    return found


# -- in worlds ---------------------------------------------------------------------------------------------------------
def linear_readings(states: np.ndarray, rows: AttributeRows, world: Path) -> dict[str, Reading]:
    """Readings by name: each attribute, the mean of the visual ones, and the readout of odd-one-out questions.

    `states` (nouns, D) belong to `rows`. On train nouns, accuracy is cross-validated.
    """
    readings: dict[str, Reading] = {}
    probes = fit_probes(states, rows)
    for name, probe in probes.items():
        readings[name] = {"train": probe.cross_validate(FOLDS), **probe.score()}
    visual = [name for name, probe in probes.items() if probe.column != TEXTUAL]
    readings[VISUAL] = {
        part: mean(readings[name][part] for name in visual)
        for part in ("train", "dev", "test", "chance")
    }
    counts = {part: sum(row["split"] == part for row in rows) for part in ("train", "dev")}
    right = sum(readings[VISUAL][part] * count for part, count in counts.items())
    readings[VISUAL][CHOICE] = right / sum(counts.values())
    odd = resolve_builtin("tasks", Task, "world/odd")
    names = [row["noun"] for row in rows]
    visual_probes = [probes[name] for name in visual]
    answers = {
        split: score_readout(visual_probes, names, odd.read(world, split))
        for split in ("dev", "test")
    }
    readings[READOUT] = {**answers, "chance": 0.5}
    return readings


def read_nouns_of(model: Path, out: Path, world: Path) -> dict[str, Reading]:
    """Linear readings of an encoder's states at the nouns of a world; nothing is written to `out`."""
    rows = read_nouns(world)
    encoder = load_text_encoder(str(model))
    return linear_readings(noun_states(encoder, rows, MAX_LENGTH), rows, world)


def read_encoder(model: Path, out: Path, world: Path, encoder: Path) -> dict[str, Reading]:
    """Linear readings of a model; its held-out loss of masked or causal LM and minimal pairs, None without a head.

    `out`: folder of the run that scores the pairs. Raises InputError for a model that is not the handed-over `encoder`
    with other weights.
    """
    check_plain(model, encoder)
    readings = read_nouns_of(model, out, world)
    is_decoder = is_causal(load_config(model))
    name, loss_of = (CAUSAL_LM, causal_lm_loss) if is_decoder else (MASKED_LM, masked_lm_loss)
    loss = loss_of(model, world / "corpus" / "dev.txt")
    readings[name] = {"test": loss}
    right = None if loss is None else minimal_pair_accuracy(model, world / PAIRS_FILE, out)
    readings[PAIRS] = {"test": right, "chance": 0.5}
    return readings


def write_grammar_pairs(world: Path) -> None:
    """Write a world's minimal pairs, from the test sentences of the questions "order" and "category".

    Order: a sentence, and itself with two words swapped. Category: a noun with a verb and an ending of its own
    category, and with those of another one; in the strict sense these are no minimal pairs, as several words differ.
    """
    nouns = {row["noun"] for row in read_nouns(world)}
    lines = ["good\tbad\tgroup"]
    for name in ("order", "category"):
        task = resolve_builtin("tasks", Task, f"world/{name}")
        good: dict[tuple[str, ...], list[str]] = {}
        bad: dict[tuple[str, ...], list[str]] = {}
        for example in task.read(world, "test"):
            words = example.text.split()
            shared = words if name == "order" else nouns.intersection(words)
            (good if example.label else bad).setdefault(tuple(sorted(shared)), []).append(
                example.text
            )
        for words_of_pair in sorted(good):
            texts = good[words_of_pair], bad.get(words_of_pair, [])
            # Several orders of the same words would not say which belong together.
            if name == "category" or len(texts[0]) == len(texts[1]) == 1:
                lines += [f"{one}\t{other}\t{name}" for one, other in zip(*texts, strict=False)]
    write_whole(world / PAIRS_FILE, "\n".join(lines) + "\n")


def minimal_pair_accuracy(model: Path, pairs: Path, out: Path) -> float:
    """Share of pairs of which the model prefers the good one, by (pseudo-)log-likelihood; mean of both groups."""
    source = str(pairs)
    result = run_quietly(
        "pairs", out, model=str(model), data=source, max_length=MAX_LENGTH, cpu=True
    )
    return float(result["scores"]["overall"]["mean of paradigms"]["accuracy"])


def read_text_tower(files: Files) -> dict[str, Reading]:
    """Linear readings of the teacher's own text embeddings of each noun's sentence."""
    rows = read_nouns(files.private)
    clip = load_frozen_clip(files.places["teacher"])
    tokens = [row for row, _ in clip.tokenize([row["sentence"] for row in rows])]
    return linear_readings(clip.embed_texts(tokens).cpu().numpy(), rows, files.private)


def nouns_of_images(world: Path) -> dict[int, list[str]]:
    """The nouns that each of a world's training images shows, by image id; images without a noun are left out."""
    shown: dict[int, list[str]] = {}
    for note in read_json(world / "instances_train.json")["annotations"]:
        if note["noun"]:
            shown.setdefault(note["image_id"], []).append(note["noun"])
    return shown


@torch.no_grad()
def read_image_tower(files: Files) -> dict[str, Reading]:
    """Linear readings of the teacher's embeddings of images: the mean over the images that show a noun.

    The images are those handed over, on which the teacher was trained. A noun that none of them shows gets the mean
    of the other nouns.
    """
    rows = read_nouns(files.private)
    tower = require(load_frozen_clip(files.places["teacher"]).image, "image", "a teacher's images")
    shown = nouns_of_images(files.private)
    images = [one for one in read_json(files.places["captions"])["images"] if one["id"] in shown]
    by_noun: dict[str, list[np.ndarray]] = {}
    for start in range(0, len(images), LINES):
        some = images[start : start + LINES]
        paths = [files.places["images"] / one["file_name"] for one in some]
        pixels = torch.from_numpy(np.stack([tower.preprocess(_read_image(path)) for path in paths]))
        embedded = torch.nn.functional.normalize(tower.projection(tower(pixels)), dim=-1)
        for one, state in zip(some, embedded.numpy(), strict=True):
            for noun in shown[one["id"]]:
                by_noun.setdefault(noun, []).append(state)
    means: dict[str, np.ndarray] = {
        noun: np.stack(states).mean(axis=0) for noun, states in by_noun.items()
    }
    unseen: np.ndarray = np.stack(list(means.values())).mean(axis=0)
    states = [means.get(row["noun"], unseen) for row in rows]
    return linear_readings(np.stack(states), rows, files.private)


def _read_image(path: Path) -> Image.Image:
    with open_image(path) as image:
        return image.convert("RGB")


def masked_lm_loss(model: Path, text: Path) -> float | None:
    """Mean loss of masked tokens, with the same masks for every model; None for a model without a head."""
    filler, loading = AutoModelForMaskedLM.from_pretrained(model, output_loading_info=True)
    if any("predictions" in name or "lm_head" in name for name in loading["missing_keys"]):
        return None
    tokenizer = AutoTokenizer.from_pretrained(model)

    def mask(inputs: BatchEncoding, special: torch.Tensor, first: int) -> torch.Tensor:
        ordinary = (special == 0) & (inputs["attention_mask"] == 1)
        masked = torch.stack([_mask(row, first + place) for place, row in enumerate(ordinary)])
        labels = inputs["input_ids"].masked_fill(~masked, IGNORE)
        inputs["input_ids"] = inputs["input_ids"].masked_fill(masked, tokenizer.mask_token_id)
        return labels

    return _mean_loss(filler, tokenizer, text, mask)


def causal_lm_loss(model: Path, text: Path) -> float | None:
    """Mean loss of every token but a line's first, special ones included; None for a text without any."""

    def shift(inputs: BatchEncoding, special: torch.Tensor, first: int) -> torch.Tensor:
        inputs.pop("token_type_ids", None)  # GPT-2 would add word embeddings for them
        next_ids = inputs["input_ids"].roll(-1, 1)
        is_read = inputs["attention_mask"].roll(-1, 1).bool()
        is_read[:, -1] = False
        return next_ids.masked_fill(~is_read, IGNORE)

    decoder = AutoModelForCausalLM.from_pretrained(model)
    return _mean_loss(decoder, AutoTokenizer.from_pretrained(model), text, shift)


@torch.no_grad()
def _mean_loss(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: Path,
    label: Callable[[BatchEncoding, torch.Tensor, int], torch.Tensor],
) -> float | None:
    """Mean loss over a text's lines; None if nothing is scored.

    `label` returns the labels (N, T) of a batch's inputs, which it may change, given its special tokens (N, T) and
    the number of its first line.
    """
    model.eval()
    lines = list(lines_of(text))
    total, count = 0.0, 0
    for start in range(0, len(lines), LINES):
        inputs = tokenizer(
            lines[start : start + LINES],
            padding=True,
            truncation=True,
            max_length=MAX_LENGTH,
            return_tensors="pt",
            return_special_tokens_mask=True,
        )
        labels = label(inputs, inputs.pop("special_tokens_mask"), start)
        logits = model(**inputs).logits
        total += float(
            torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum"
            )
        )
        count += int((labels != IGNORE).sum())
    return total / count if count else None


def _mask(ordinary: torch.Tensor, line: int) -> torch.Tensor:
    """(T,) bool: the masked tokens of a line, at least one of the `ordinary` ones, drawn by the line's number."""
    places = ordinary.nonzero().flatten().numpy()
    if not len(places):
        return torch.zeros_like(ordinary)
    drawn = generator("bench", "masked LM", line).permutation(places)
    masked = torch.zeros_like(ordinary)
    masked[torch.from_numpy(drawn[: max(1, round(LINE_MASK_RATE * len(places)))])] = True
    return masked


def fine_tuned(
    model: Path, out: Path, world: Path, how: Mapping[str, tuple[int, TrainingArguments]]
) -> dict[str, Reading]:
    """Accuracies of fine-tuned questions by name; `test` is the mean over the seeds that trained, None if none did.

    `how`: by question, the number of seeds and the settings of training.
    """
    readings: dict[str, Reading] = {}
    for question, (seeds, training) in how.items():
        found = run_quietly(
            "probe",
            out / question,
            training,
            model=str(model),
            data=str(world),
            seeds=seeds,
            questions=(question,),
            max_length=MAX_LENGTH,
        )
        own = found[f"world/{question}"]
        kept = {name: own[name] for name in ("dev", "test", "test_sd", "chance")}
        readings[question] = kept | {"scores": own["scores"]["test"], "trained": own["learned"]}
    return readings


# -- is what a method exports the starting encoder with other weights? -------------------------------------------------
NOT_COMPARED = {"architectures", "dtype", "transformers_version", "_name_or_path"}
"""Settings of a model's configuration that do not change its states."""


def check_plain(model: Path, encoder: Path) -> None:
    """Raises InputError for an exported model that is not the starting encoder with other weights."""
    sources = str(model), str(encoder)
    changed, config = (load_config(one).to_dict() for one in sources)
    differing = [
        name for name in {*changed, *config} - NOT_COMPARED if changed.get(name) != config.get(name)
    ]
    own, handed = (backend_tokenizer(load_tokenizer(one)).to_str() for one in sources)
    if own != handed:
        differing.append("the tokenizer")
    if differing:
        raise InputError(
            f"{model}: is not the starting encoder with other weights: it differs in "
            f"{', '.join(sorted(differing))}; no verdict is possible"
        )


# -- published sets ----------------------------------------------------------------------------------------------------
SetKind = Literal["facts", "words", "retention", "pairs", "task"]
COMMAND_OF = {"facts": "probe-facts", "words": "probe-words", "pairs": "pairs"}
"""The command that reads a set of this kind."""
KEY = 6
"""Characters of a set's hash in its name."""
GAINS = ("facts", "words")
"""Kinds of readings in which a method may gain; the others are its price."""
SPEARMANS = "Spearman of cosine"
"""Measure of word pairs and of text pairs."""
DEVIATIONS = "correlation of deviations"
"""Measure of the linear mode: predicted against people's answers, both less the mean noun's."""


@dataclass(frozen=True)
class SetReader:
    """A file of items, or a task, on which every encoder is read."""

    kind: SetKind
    source: str
    """The file, or the task's name."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Settings of the command that reads it, by name."""
    data: str = ""
    """A task's folder."""
    halves: bool = False
    """Of facts: whether weights are chosen on one half of the nouns, so that only the other one is reported."""

    @property
    def name(self) -> str:
        """Its name in jobs, which does not depend on where the file is."""
        path = Path(self.source)
        place = "" if self.kind == "task" else f"{self.kind} {path.resolve().parent.name} "
        return f"{place}{self.source if self.kind == 'task' else path.stem} {self.key[:KEY]}"

    @cached_property
    def key(self) -> str:
        """Hash of its content, and of how it is read."""
        parts = [self.kind, data_hash(self.data or self.source), self.settings]
        parts += map(data_hash, self._files_beside())
        return key_of(*parts, *([CHOICE] if self.halves else []))

    def _files_beside(self) -> list[str | Path]:
        """The files that the command reads beside a file of facts, such as templates."""
        if self.kind != "facts":
            return []
        command = COMMANDS[COMMAND_OF[self.kind]]
        assert isinstance(command.output, ResumableRun)
        inputs = command.output.inputs(replace_settings(command.settings["_own"], data=self.source))
        return [inputs[name] for name in inputs if name.startswith("data:")]

    def check(self) -> None:
        """Read the whole set, without an encoder; raises InputError if it cannot be read."""
        if self.kind == "retention":
            read_pairs(self.source)
        elif self.kind == "task":
            task = resolve("tasks", Task, self.source)
            for split in (task.train, *task.dev) if self.data != "hub" else ():
                task.read(Path(self.data), split)
        else:
            command = COMMANDS[COMMAND_OF[self.kind]]
            given = {"data": self.source, "cpu": True, **dict(self.settings)}
            own = replace_settings(command.settings["_own"], **given)
            command.rehearse([own, "set"])

    def read(self, model: Path, out: Path, encoder: Path, cpu: bool) -> dict[str, Reading]:
        """The readings of a model by name; `out` is the folder of the command that reads it.

        Raises InputError for a model that is not the handed-over `encoder` with other weights.
        """
        check_plain(model, encoder)
        if self.kind == "retention":
            found = _read_retention(self.source, model, cpu)
        else:
            readers: dict[str, Callable[[SetReader, str, Path], dict[str, Reading]]] = {
                "facts": partial(_facts, cpu=cpu),
                "words": partial(_words, cpu=cpu),
                "pairs": _pairs,
                "task": _task,
            }
            found = readers[self.kind](self, str(model), out)
        is_gain = self.kind in GAINS
        return {name: {"same_items": [], **one, "gain": is_gain} for name, one in found.items()}


def set_readers(settings: RealBenchConfig) -> list[SetReader]:
    """The sets of a bench, gains first."""
    modes = (("modes", settings.modes),)
    limit = (("limit", settings.pair_limit), ("cpu", settings.cpu))
    tuned = (
        *(("seeds", settings.task_seeds), ("limit_train", settings.limit_train)),
        ("cpu", settings.cpu),
    )
    sets = [SetReader("facts", file, modes, halves=settings.tune) for file in settings.facts]
    sets += [SetReader("words", file) for file in settings.words]
    if settings.retention_pairs:
        sets.append(SetReader("retention", settings.retention_pairs))
    sets += [SetReader("pairs", file, limit) for file in settings.minimal_pairs]
    return sets + [SetReader("task", name, tuned, settings.data) for name in settings.tasks]


def _facts(one: SetReader, model: str, out: Path, cpu: bool) -> dict[str, Reading]:
    """A reading for each mode and relation."""
    settings = dict(one.settings)
    result = run_quietly("probe-facts", out, model=model, data=one.source, cpu=cpu, **settings)
    about = result.get("set", {})
    readings = {}
    for mode in settings["modes"]:
        relations = result[mode]["relations"]
        rows = _json_lines(out / f"scores_{mode}.jsonl")
        for relation, groups in relations.items():
            name = about.get("name", Path(one.source).stem)
            name += f" {relation}" if len(relations) > 1 else ""
            of_relation = [row for row in rows if row["relation"] == relation]
            measure = _fact_measure(mode, about, groups["all"])
            if measure == "spearman" and all(row[measure] is None for row in of_relation):
                measure = "accuracy"  # ViComTe's pairs, each with one right answer
            field = "deviations" if measure == DEVIATIONS else measure
            own = [row for row in of_relation if row.get(field) is not None]
            if not own:
                raise InputError(
                    f"{one.source}: {measure} is undefined for every fact of {name}, {mode}; leave it out"
                )
            chosen = [row[field] for row in own if one.halves and _is_for_choice(row["subject"])]
            own = [row for row in own if not (one.halves and _is_for_choice(row["subject"]))]
            items = [row[field] for row in own]
            if not items or (one.halves and not chosen):
                raise InputError(f"{one.source}: {name} has too few nouns for two halves")
            readings[f"{name}, {mode}"] = {
                "measure": measure,
                "test": mean(items),
                **({CHOICE: mean(chosen)} if chosen else {}),
                "chance": groups["all"].get("chance") if measure == "accuracy" else None,
                "same_items": about.get("same_items", []),
                "set": name,
                "groups": [row["subject"].lower() for row in own],
                "items": items,
            }
    return readings


def _is_for_choice(noun: str) -> bool:
    """Whether weights are chosen on a noun; the same in every set."""
    return bool(generator("bench", CHOICE, noun.lower()).integers(2))


def _fact_measure(mode: str, about: Mapping[str, Any], scores: Mapping[str, Any]) -> str:
    """The measure of a set's paper, or for the linear mode the one that predicting the mean does not inflate."""
    if mode == "linear":
        # Facts whose options differ have no common distribution.
        same_options = "spearman" in scores["from"]["state"]
        return DEVIATIONS if same_options else "accuracy"
    first = about.get("measure", "accuracy").partition(",")[0].lower()
    return {"spearman": "spearman", "map": "map"}.get(first, "accuracy")


def _json_lines(path: Path) -> list[dict[str, Any]]:
    return [decoded_json(str(path), line) for line in lines_of(path)]


def _words(one: SetReader, model: str, out: Path, cpu: bool) -> dict[str, Reading]:
    """The last layer's correlation, which is not selected on the set; of norms that of the first dimension."""
    result = run_quietly("probe-words", out, model=model, data=(one.source,), cpu=cpu)
    for name, by_dimension in result.get("ratings", {}).items():
        dimension, found = next(iter(by_dimension.items()))
        rows = _json_lines(out / "ratings.jsonl")
        reading = {
            "measure": found["set"]["measure"],
            "test": found["spearman"],
            "same_items": found["set"]["same_items"],
            "set": name,
            "groups": [row["word"] for row in rows],
            "cosines": [row["predicted"][dimension] for row in rows],
            "ratings": [row["ratings"][dimension] for row in rows],
        }
        return {f"{name} {dimension}, last layer": reading}
    ((name, found),) = result["sets"].items()
    rows = _json_lines(out / "pairs.jsonl")
    reading = {
        "measure": SPEARMANS,
        "test": found["last"]["spearman"],
        "same_items": found.get("set", {}).get("same_items", []),
        "set": name,
        "groups": [" ".join(row["words"]) for row in rows],
        "cosines": [row["cosine"] for row in rows],
        "ratings": [row["rating"] for row in rows],
    }
    return {f"{name}, last layer": reading}


def _read_retention(source: str, model: Path, cpu: bool) -> dict[str, Reading]:
    """Text pairs: cosines of the encoder's own sentence vectors, or of mean states of a plain encoder."""
    pairs = read_pairs(source)
    text = load_text_encoder(str(model))
    text.to(torch.device("cpu") if use_cpu(cpu) else torch.accelerator.current_accelerator())
    sentence = text.sentence or make_sentence_modules("mean", text.sizes.text, text.max_length)
    sides = zip(*pairs.texts, strict=True)
    one, other = (sentence_vectors(text, sentence, list(side))[0] for side in sides)
    cosines = torch.nn.functional.cosine_similarity(one, other).double().numpy()
    reading = {
        "measure": SPEARMANS,
        "test": float(SPEARMAN.compute(cosines, pairs.similarities)),
        "set": "STS-B",
        "groups": [f"{left}\t{right}" for left, right in pairs.texts],
        "cosines": cosines.round(6).tolist(),
        "ratings": pairs.similarities.tolist(),
    }
    return {"STS-B" if Path(source).is_dir() else Path(source).stem: reading}


def _pairs(one: SetReader, model: str, out: Path) -> dict[str, Reading]:
    result = run_quietly("pairs", out, model=model, data=one.source, **dict(one.settings))
    rows = _json_lines(out / "items.jsonl")
    rule = next(iter(result["chance"]))
    items = [row["model"][rule] for row in rows]
    name = Path(one.source).stem
    reading = {
        "measure": rule,
        "test": mean(items),
        "chance": result["chance"][rule],
        "set": name,
        "groups": [f"{row['paradigm']} {row['id']}" for row in rows],
        "items": items,
    }
    return {f"minimal pairs {name}": reading}


def _task(one: SetReader, model: str, out: Path) -> dict[str, Reading]:
    """The median over fine-tuning seeds, with the settings of `finetune`."""
    own = dict(one.settings)
    training = replace(COMMANDS["finetune"].settings["_train"], cpu=own.pop("cpu"))
    own |= {"model": model, "task": one.source, "data": one.data, "save_model": False}
    result = run_quietly("finetune", out, training, **own)
    split = next(iter(result["median"]))
    measure = result["headline"]
    value = result["median"][split][measure]
    if value is None:
        raise InputError(f"{out}: {measure} is undefined for a seed")
    seeds = result["scores"][split][measure]
    return {one.source: {"measure": measure, "test": value, "set": one.source, "seeds": seeds}}


def shared_sets(readings: Sequence[Reading]) -> list[tuple[str, str]]:
    """Pairs of read sets that share items, each once, in order of names."""
    names = {one["set"] for one in readings}
    pairs = {
        tuple(sorted((one["set"], other)))
        for one in readings
        for other in one["same_items"]
        if other in names and other != one["set"]
    }
    return sorted((one, other) for one, other in pairs)
