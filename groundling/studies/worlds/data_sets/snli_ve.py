"""The world as SNLI-VE: hypotheses that an image entails, contradicts, or leaves open."""

from __future__ import annotations

from numpy.random import Generator

from groundling.studies.worlds.data_sets.captions import marked_captions, without_marks
from groundling.studies.worlds.data_sets.writer import (
    BalancedText,
    DataSetWriter,
    JsonObject,
    draw_statement,
    matching_objects,
)
from groundling.studies.worlds.world import Scene

LABELS = ("contradiction", "entailment", "neutral")


def draw_hypothesis(rng: Generator) -> BalancedText[str]:
    """Draw a hypothesis; it is neutral if no object of the image has the mentioned attribute values."""
    statement = draw_statement(rng)

    def answer_of(scene: Scene) -> str | None:
        if not all(matching_objects(scene, look) for look in statement.mentioned):
            return "neutral"
        true = statement.holds(scene)
        if true is None:
            return None
        return "entailment" if true else "contradiction"

    return BalancedText(f"{statement.subject} is {statement.predicate} .", LABELS, answer_of)


def write_snli_ve(files: DataSetWriter) -> None:
    """Write all splits; each hypothesis has three images, one per label."""
    for split in ("train", "dev", "test"):
        rows: list[JsonObject] = []
        for each in files.balanced_texts("snli_ve", split, draw_hypothesis):
            for label, scene in zip(each.claim.answers, each.scenes, strict=True):
                name = f"{scene.image_id:010d}.jpg"
                number = int(each.rng.integers(5))
                premise = without_marks(marked_captions(files, scene)[number])
                files.images[name] = scene
                files.texts.add(premise)
                row = {
                    "Flikr30kID": name,
                    "captionID": f"{name}#{number}",
                    "pairID": f"{name}#{number}r{each.number}{label[0]}",
                    "sentence1": premise,
                    "sentence2": each.claim.text,
                    "gold_label": label,
                    "annotator_labels": [label],
                }
                rows.append(row)
        files.write_rows(f"snli_ve/snli_ve_{split}.jsonl", *rows)
