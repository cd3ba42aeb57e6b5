"""Visual inference: is a sentence true of two images (NLVR2), does an image entail it (SNLI-VE)?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groundling.core.batch import Example
from groundling.core.errors import InputError, raise_first, require_nonempty
from groundling.core.metrics import ACCURACY
from groundling.core.output_types import Classification
from groundling.data.tables import lines_of, read_json_lines
from groundling.tasks import Task, check_labelled_alike

NLVR2_SOURCE = "Suhr et al. 2019, NLVR2, github.com/lil-lab/nlvr"
NLVR2_FORM = Classification(("False", "True"))
PARTS = ("balanced", "unbalanced")
"""Subsets, each with a file of identifiers."""


def _nlvr2_file(folder: Path, split: str) -> Path:
    return Path(folder) / f"{split}.json"


def _nlvr2(folder: Path, split: str) -> list[Example]:
    path = _nlvr2_file(folder, split)
    examples: dict[str, Example] = {}
    repeated = []
    for where, row in read_json_lines(path, ("identifier", "sentence")):
        identifier = row["identifier"]
        if identifier.count("-") != 3:
            raise InputError(f"{where}: {identifier!r}; expected split-set-pair-sentence")
        if identifier in examples:
            repeated.append(f"{where}: repeated identifier {identifier}")
        pair = "-".join(identifier.split("-")[:3])
        examples[identifier] = Example(
            f"nlvr2-{identifier}",
            row["sentence"],
            label=_label(where, row, split),
            images=(f"{pair}-img0", f"{pair}-img1"),
            official_id=identifier,
        )
    require_nonempty(examples, f"{path}: contains no examples")
    check_labelled_alike(path, [example.label is None for example in examples.values()])
    raise_first(repeated)
    return list(examples.values())


def _label(where: str, row: Mapping[str, Any], split: str) -> int | None:
    """The label of a line; it may be missing in test splits, whose labels were secret until 2022."""
    if "label" not in row and split.startswith("test"):
        return None
    return NLVR2_FORM.parse_label(str(row.get("label")).capitalize(), where)


def consistency(correct: Mapping[str, bool]) -> float:
    """Consistency: the share of sentences that are right on all their image pairs.

    `correct` states by identifier, split-set-pair-sentence, whether the prediction is right.

    Source: lil-lab/nlvr, nlvr2/eval/metrics.py.
    """
    sentences: dict[tuple[str, str, str], bool] = {}
    for identifier, is_right in correct.items():
        split, group, _, sentence = identifier.split("-")
        key = (split, group, sentence)
        sentences[key] = is_right and sentences.get(key, True)
    return sum(sentences.values()) / len(sentences)


def _extra(
    folder: Path, split: str, officials: Sequence[str], answers: Sequence[str]
) -> dict[str, float]:
    predictions = dict(zip(officials, answers, strict=True))
    labels = {}
    for example in _nlvr2(folder, split):
        if example.label is not None:
            labels[example.official_id] = NLVR2_FORM.format_prediction(int(example.label))
    if not labels:
        return {}
    missing = [identifier for identifier in labels if identifier not in predictions]
    raise_first([f"nlvr2: no prediction for {identifier} of {split}" for identifier in missing])
    right = {identifier: predictions[identifier] == label for identifier, label in labels.items()}
    scores = {"consistency": consistency(right)}
    for part in PARTS:
        listing = Path(folder) / f"{part}_{split}_identifiers.txt"
        if not listing.is_file():
            continue
        identifiers = lines_of(listing)
        unknown = [identifier for identifier in identifiers if identifier not in right]
        raise_first([f"{listing}: {identifier!r} is not in {split}.json" for identifier in unknown])
        right_here = {identifier: right[identifier] for identifier in identifiers}
        scores[f"{part} accuracy"] = sum(right_here.values()) / len(right_here)
        scores[f"{part} consistency"] = consistency(right_here)
    return scores


def _submission(officials: Sequence[str], answers: Sequence[str]) -> str:
    pairs = zip(officials, answers, strict=True)
    return "".join(f"{identifier},{answer}\n" for identifier, answer in pairs)


NLVR2_TEST = {"test1": "nlvr2_test1.csv", "test2": "nlvr2_test2.csv"}
NLVR2 = Task(
    "nlvr2",
    NLVR2_FORM,
    _nlvr2,
    (ACCURACY,),
    NLVR2_SOURCE,
    test=NLVR2_TEST,
    submission_format=_submission,
    file=_nlvr2_file,
    official_scores=_extra,
)
"""test1 is Test-P in papers, and test2 is Test-U, which was unpublished then."""


SNLI_VE_SOURCE = "Xie et al. 2019, SNLI-VE, github.com/necla-ml/SNLI-VE"
SNLI_VE_FORM = Classification(("entailment", "neutral", "contradiction"))
"""Classes in GLUE's order, since SNLI-VE defines none."""
IMAGE_KEYS = ("Flikr30kID", "Flickr30K_ID", "Flickr30kID")
"""Keys of the image id: in the distributed files (sic), in the generator script, and in relabelled versions."""
UNDECIDED = "-"
"""Label of a line on which the annotators disagree."""


def _snli_ve_file(folder: Path, split: str) -> Path:
    return Path(folder) / f"snli_ve_{split}.jsonl"


def _snli_ve(folder: Path, split: str) -> list[Example]:
    """Examples in file order, without the lines whose annotators disagree (`-`).

    The premise is the image; its caption `sentence1` is not used. Image ids are Flickr30k's file names without .jpg.

    Raises InputError if a line lacks a field, has an unknown label or a repeated pairID, or no example is left.
    """
    path = _snli_ve_file(folder, split)
    examples = []
    line_of: dict[str, int] = {}
    repeated = []
    for number, (where, row) in enumerate(
        read_json_lines(path, ("pairID", "sentence2", "gold_label")), 1
    ):
        pair = row["pairID"]
        if pair in line_of:
            repeated.append(f"{where}: repeated pairID {pair}, first in line {line_of[pair]}")
        line_of[pair] = number
        image = _image(where, row)
        if row["gold_label"] == UNDECIDED:
            continue
        examples.append(
            Example(
                f"snli-ve-{split}-{pair}",
                row["sentence2"],
                label=SNLI_VE_FORM.parse_label(row["gold_label"], where),
                images=(image,),
                official_id=pair,
            )
        )
    require_nonempty(examples, f"{path}: contains no examples")
    raise_first(repeated)
    return examples


def _image(where: str, row: Mapping[str, object]) -> str:
    for name in map(row.get, IMAGE_KEYS):
        if isinstance(name, str):
            return name.removesuffix(".jpg")
    raise InputError(f"{where}: no image; expected one of {', '.join(IMAGE_KEYS)}")


SNLI_VE = Task(
    "snli-ve",
    SNLI_VE_FORM,
    _snli_ve,
    (ACCURACY,),
    SNLI_VE_SOURCE,
    dev=("dev", "test"),
    file=_snli_ve_file,
)
