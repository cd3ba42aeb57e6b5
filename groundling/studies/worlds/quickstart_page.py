"""What the quickstart found: the table on the screen, the sentences, and the page with figures."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from groundling.runs.charts import Panel, panels
from groundling.runs.folder import read_json
from groundling.runs.report import Picture, Section, TableRow, in_two_widths, write_report
from groundling.studies.worlds.probe import LEARNED, READOUT

VISUAL = {"world/truth": "attribute true/false", "world/odd": "odd one out"}
"""Probes of looks by name, and what the table calls them."""
READ_OUT = {READOUT: "odd one out, read out"}
"""The same for what is read from the nouns' states without any fine-tuning."""
LINEAR = {
    "linear/colour": "colour",
    "linear/shape": "shape",
    "linear/size": "size",
    "linear/texture": "texture",
}
"""The same for linear probes of the nouns' states."""
TEXTUAL = {"world/category": "category", "world/order": "word order"}
"""The same for category and word order, which are known from text alone."""
SEES = 0.6
"""An arm sees what a visual probe asks if its accuracy is at least this; guessing is 0.5."""
NOTHING = "learned nothing"
"""What is said of fine-tuned probes none of which left its plateau: no accuracy, for nothing was measured."""
SHOWN = 8
"""Scenes in the report."""
Found = Mapping[str, Any]
"""What a probe found: accuracies `test` and `dev`, `chance`, that of guessing, and each seed's of fine-tuned ones."""
Arms = Mapping[str, Mapping[str, Found]]
"""What was found of each arm, by probe."""


ABOUT = {
    "MLM only (control)": "reads the text, and learns to fill in its masked words (MLM)",
    "XDBERT as published": "the same, and reads it together with the teacher's text tower",
    "L1": "the same as the control, and brings its states near the teacher's features",
    "contrastive": "the same as the control, and tells the teacher's features of its own text from those of others",
    "contrastive, blind teacher": "as contrastive, from a teacher whose images showed nouns with other looks each time",
}
"""What each arm does, in words."""
TERMS = {
    "arm": "One way to adapt the text encoder. All arms start from the same one and read the same text for as long.",
    "attribute true/false": "After fine-tuning: is “the zib is red .” true?",
    "odd one out": "After fine-tuning: is “the p looks like the q , not the r .” true?",
    "odd one out, read out": "The same questions without any fine-tuning: linear probes read each noun's colour, "
    "shape, size and texture, and two nouns are as alike as the number of these that they are read to share.",
    "colour, shape, size, texture": "A linear probe reads the attribute from the encoder's state at the noun.",
    "category": "After fine-tuning: does the verb of “she eats the zib .” fit the noun? Only text tells.",
    "word order": "After fine-tuning: are two words of the sentence exchanged? Only text tells.",
    "seed": "Fine-tuning draws a new layer and an order of examples. Each small dot is one such draw; ± is their "
    "standard deviation. World, teachers and encoders have one seed here: several worlds are in docs/results.md.",
    NOTHING: f"The probe's training loss never fell below {100 * LEARNED:.0f} % of what guessing costs. Its accuracy "
    "would be that of guessing, but of the arm's knowledge it says nothing: longer fine-tuning might find some.",
    "guessing": "The best single answer to all questions.",
    "blind teacher": "It saw the same scenes with every noun's look redrawn each time. Whatever its student gains does "
    "not come from images.",
}
"""What the words of the page mean."""


def table_rows(arms: Arms, split: str = "test") -> list[dict[str, str]]:
    """One row per arm and one for guessing; accuracies on nouns of `split`, which no probe was fitted on."""
    columns = VISUAL | READ_OUT | LINEAR | TEXTUAL
    rows = []
    for name, scores in arms.items():
        row = {"arm": name}
        for test, label in columns.items():
            row[label] = _cell(scores[test], split)
        rows.append(row)
    guessing = {"arm": "guessing"}
    any_arm = next(iter(arms.values()))  # the nouns are the same for all
    for test, label in columns.items():
        guessing[label] = f"{any_arm[test]['chance']:.2f}"
    return [*rows, guessing]


def _cell(found: Found, split: str) -> str:
    """An accuracy, with its standard deviation over probe seeds, and how many of them learned anything if not all."""
    if found[split] is None:
        return NOTHING
    cell = f"{found[split]:.2f}"
    if found.get(f"{split}_sd") is not None:
        cell += f" ± {found[f'{split}_sd']:.2f}"
    learned = found.get("learned", ())
    if not all(learned):
        cell += f" ({sum(learned)} of {len(learned)})"
    return cell


def verdict(arms: Arms, split: str = "test") -> str:
    """What the table shows, in plain words, against the control that saw the same text without a teacher."""
    control, *others = arms
    parts = []
    for name in others:
        compared = [
            f"{label} {_beside(arms, name, test, split)}"
            for test, label in (VISUAL | TEXTUAL).items()
        ]
        parts.append(f"{name}: {sight(arms, name, split)} ({', '.join(compared)})")
    return f"Against {control}, on nouns never described to it. " + "; ".join(parts) + "."


def _beside(arms: Arms, name: str, test: str, split: str) -> str:
    """An arm's accuracy and the control's."""
    control, own = (
        NOTHING if one[test][split] is None else f"{one[test][split]:.2f}"
        for one in (next(iter(arms.values())), arms[name])
    )
    return f"{NOTHING}, as the control" if own == control == NOTHING else f"{own} against {control}"


def _difference(arms: Arms, name: str, test: str, split: str) -> str:
    """What an arm's accuracy has more than the control's; if a side learned nothing, which."""
    control = next(iter(arms.values()))[test][split]
    own = arms[name][test][split]
    if own is None:
        return NOTHING
    return f"control {NOTHING}" if control is None else f"{own - control:+.2f}"


def sight(arms: Arms, name: str, split: str = "test") -> str:
    """Whether an arm sees what its visual probes ask."""
    found = [arms[name][test][split] for test in VISUAL]
    seen = [accuracy is not None and accuracy >= SEES for accuracy in found]
    if all(seen):
        return "sees"
    if any(seen):
        return "sees in part"
    return "does not see"


# -- the page ----------------------------------------------------------------------------------------------------------


def write_page(out: Path, result: Mapping[str, Any]) -> None:
    """Write `out/report.html` and `out/report.png` of a quickstart's `result`."""
    arms = result["arms"]
    control = next(iter(arms))
    asked = VISUAL | READ_OUT | TEXTUAL
    write_report(
        out / "report.html",
        "Does a text encoder learn to see?",
        [
            Section("What each arm does, and what comes of it", rows=_arm_rows(arms)),
            Section("Accuracy on nouns that no probe was fitted on", rows=table_rows(arms)),
            Section(
                "Differences from the control",
                [f"Accuracy less that of {control}, on the same nouns."],
                rows=_difference_rows(arms),
            ),
            Section("Questions", FIGURE, figure=_figure(arms, asked, out / "report.png")),
            Section("Attributes read from the noun's own state", figure=_figure(arms, LINEAR)),
            Section("What the teacher sees", pictures=_scenes(out / "world")),
            Section("How well the teacher sees", rows=_recall_rows(result["retrieval"])),
        ],
        [
            "Every noun has a look that only images show, and a category that only text shows. A CLIP teacher sees "
            "the images; the text encoder reads text that never tells a noun's look. Each arm adapts it for the same "
            "number of steps on the same text.",
            _summary(arms),
        ],
        notes=_footer(out, result),
        terms=TERMS,
    )


FIGURE = (
    "A row for each arm. The large mark and the number are the mean, small dots are the seeds of fine-tuning, and the "
    "dashed line is guessing.",
)


def _summary(arms: Arms) -> str:
    """Which arms see, in a few words each."""
    groups = {"sees": "See what no text tells", "sees in part": "See it in part"}
    groups["does not see"] = "Do not see it"
    told = []
    for word, group in groups.items():
        names = [name for name in arms if sight(arms, name) == word]
        if names:
            told.append(f"{group}: {'; '.join(names)}.")
    return " ".join(told)


def _arm_rows(arms: Arms) -> list[TableRow]:
    """What each arm does, and whether it sees."""
    return [
        {"arm": name, "what it does": ABOUT.get(name, ""), "on unseen nouns": sight(arms, name)}
        for name in arms
    ]


def _difference_rows(arms: Arms) -> list[TableRow]:
    """A row for each arm but the first, which is the control."""
    rows: list[TableRow] = []
    for name in list(arms)[1:]:
        row = {"arm": name}
        for test, label in (VISUAL | READ_OUT | LINEAR | TEXTUAL).items():
            row[label] = _difference(arms, name, test, "test")
        rows.append(row)
    return rows


def _figure(arms: Arms, probes: Mapping[str, str], path: Path | None = None) -> str:
    """Test accuracies of all arms, and as PNG at `path`."""
    shown = []
    for test, label in probes.items():
        scores = {name: _seeds(found[test]) for name, found in arms.items()}
        words = dict.fromkeys(arms, NOTHING)
        chance = next(iter(arms.values()))[test]["chance"]
        shown.append(Panel(label, chance, scores, words))

    told = []
    for test, label in probes.items():
        cells = [f"{name} {_cell(found[test], 'test')}" for name, found in arms.items()]
        told.append(f"{label}: {', '.join(cells)}")
    return in_two_widths(
        partial(panels, shown), "Accuracy on unseen nouns. " + "; ".join(told), path
    )


def _seeds(found: Found) -> list[float]:
    """The accuracies of all seeds that learned something, or the one that there is."""
    if "learned" not in found:
        return [found["test"]]
    by_seed = zip(found["scores"]["test"], found["learned"], strict=True)
    return [score for score, has_learned in by_seed if has_learned]


def _recall_rows(retrieval: Mapping[str, float]) -> list[TableRow]:
    """Recall on unseen scenes, a row for each direction."""
    rows: list[TableRow] = []
    for way, asked in (
        ("text_to_image", "image of a caption"),
        ("image_to_text", "caption of an image"),
    ):
        row = {"what is looked for": asked}
        for name, value in retrieval.items():
            rank = name.removeprefix(f"{way}_r@")
            if rank != name:
                row["found first" if rank == "1" else f"among the first {rank}"] = f"{value:.1f} %"
        row["unseen scenes"] = f"{retrieval['images']:,.0f}"
        rows.append(row)
    return rows


def _footer(out: Path, result: Mapping[str, Any]) -> list[str]:
    about = read_json(out / "config.json")
    today = datetime.now(UTC).date().isoformat()
    return [
        f"World and weights of seed {result['seed']}; {result['seconds']:.0f} seconds in all; {today}; groundling "
        f"{about['versions']['groundling']}, commit {about['commit'][:12]}. Another processor rounds otherwise, so its "
        "numbers differ a little."
    ]


def _scenes(world: Path) -> list[Picture]:
    """The first images as PNG, each with its captions."""
    content = read_json(world / "captions_train.json")
    captions: dict[int, list[str]] = {}
    for note in content["annotations"]:
        captions.setdefault(note["image_id"], []).append(note["caption"])
    scenes = []
    for image in content["images"][:SHOWN]:
        png = (world / "images" / image["file_name"]).read_bytes()
        scenes.append(Picture(png, "\n".join(captions[image["id"]])))
    return scenes
