"""`groundling predict`: predict with a fine-tuned model; writes your file with answers added."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from groundling.command_line import Command
from groundling.core.errors import InputError, raise_first
from groundling.data.tables import ROWS
from groundling.runs.folder import check_file, json_safe, json_text, write_whole
from groundling.runs.outputs import OutputFile
from groundling.runs.progress import CommandContext, is_main_process
from groundling.settings.fields import InputKind, Settings, required, settings
from groundling.settings.input_settings import PredictionColumns, SavedModelSettings

if TYPE_CHECKING:
    from groundling.prediction.inputs import ImageLookup, InputRow
    from groundling.prediction.loaded_model import LoadedModel
    from groundling.prediction.predictions import Prediction, PredictionFormatter
    from groundling.tasks import Task


@settings
class PredictConfig(Settings):
    """Data to predict, and how many answers to write."""

    saved_model: SavedModelSettings = field(default_factory=SavedModelSettings)
    data: Annotated[str, InputKind.PATH, required] = ""
    """Your own csv, tsv, json or jsonl file, or a folder with the task's official files."""
    split: str = ""
    """Folder of official files: split to predict; empty: the unlabelled split if the task has \
one, else the first labelled one."""
    columns: PredictionColumns = field(default_factory=PredictionColumns)
    top_k: Annotated[int, Ge(1)] = 1
    """Number of answers to write per row, most likely first."""
    skip_bad: bool = False
    """Leave the answer of a bad row empty (a missing or broken photo, an empty text) and count \
such rows; otherwise the first is an error."""


def check(config: PredictConfig, out: str | Path) -> None:
    """Raises InputError for an `out` that is not a table, exists already, or has no parent folder."""
    out = Path(out)
    check_file(out, ROWS)
    if out.exists():
        raise InputError(f"{out}: exists already; choose another output folder, or remove it")
    if not out.parent.is_dir():
        raise InputError(f"{out}: no folder {out.parent}; create it, or choose another `out`")


BREAKS = re.compile(r"[\t\r\n]+")
"""Characters that a cell of a tab-separated file cannot hold; replaced by a space."""
FIRST = 5
"""Number of skipped rows named in the result."""


def predict(config: PredictConfig, work: CommandContext) -> dict[str, Any]:
    """Write `config.data` with the model's answers to the file `work.out`; returns counts.

    All rows are kept in order. Columns are the data's own, then `answer`, `choice` (its text, for
    multiple choice), `x1`, `y1`, `x2`, `y2` (of a region, in pixels) and `probability`, and the
    same with `_2`, `_3` for the next best; all get the prefix `predicted_`, repeated if necessary,
    if the data has a column of one of these names.

    Raises:
        InputError: A setting or a row does not fit the model.
    """
    from groundling.prediction.fine_tuned import image_lookup, load_saved, read_data_rows
    from groundling.prediction.predictions import PredictionFormatter, prediction_columns

    model = load_saved(config.saved_model)
    lookup = image_lookup(model, config.saved_model, decode=config.skip_bad)
    task, header, lines = read_data_rows(
        model, Path(config.data), config.split, config.columns, lookup
    )
    formatter = PredictionFormatter(model.form, config.top_k)
    if not config.skip_bad:
        _raise_first_fault([f"{line.where}: {line.fault}" for line in lines if line.fault])
    answers, faults, dropped = _predict_rows(model, task, lines, formatter, lookup, config.skip_bad)
    names = prediction_columns(model.form, formatter.best)
    text = _format_table(work.out.suffix, header, lines, names, answers)
    if is_main_process():
        write_whole(work.out, text)
    work.note(*model.notes)
    return {
        "answers": str(work.out),
        "model": str(model.folder),
        "rows": len(lines),
        "answered": len(lines) - len(faults),
        "skipped": len(faults),
        "skipped_first": [f"{lines[number].where}: {faults[number]}" for number in sorted(faults)][
            :FIRST
        ],
        "truncated_tokens": dropped,
    }


def _raise_first_fault(faults: Sequence[str]) -> None:
    """Raises InputError for the first bad row."""
    raise_first(faults, "; correct it, or pass skip_bad to leave its answer empty")


def _predict_rows(
    model: LoadedModel,
    task: Task,
    lines: Sequence[InputRow],
    formatter: PredictionFormatter,
    lookup: ImageLookup,
    skip_bad: bool,
) -> tuple[dict[int, Prediction], dict[int, str], int]:
    """Predictions by row, faults of the rows without one, and the number of truncated tokens."""
    faults = {number: line.fault for number, line in enumerate(lines) if line.example is None}
    examples = {n: line.example for n, line in enumerate(lines) if line.example is not None}
    numbers = list(examples)
    answers: dict[int, Prediction] = {}
    dropped = 0
    for part in model.predict_examples(list(examples.values()), lookup, task):
        new = {numbers[place]: fault for place, fault in part.faults.items()}
        if not skip_bad:
            _raise_first_fault([f"{lines[number].where}: {fault}" for number, fault in new.items()])
        faults |= new
        if part.scores is None:
            continue
        some = [examples[numbers[place]] for place in part.numbers]
        predictions = formatter.predictions(part.scores, some, part.boxes)
        answers |= {
            numbers[place]: one for place, one in zip(part.numbers, predictions, strict=True)
        }
        dropped += part.scores.truncated_tokens
    return answers, faults, dropped


def _format_table(
    ending: str,
    header: Sequence[str],
    lines: Sequence[InputRow],
    names: Sequence[str],
    answers: Mapping[int, Prediction],
) -> str:
    """The text of the file: every row's own columns, and its answers."""
    from groundling.prediction.predictions import prediction_cells

    prefix = ""
    while any(f"{prefix}{name}" in header for name in names):
        prefix += "predicted_"
    rows = []
    for number, line in enumerate(lines):
        cells = prediction_cells(answers.get(number), names)
        own = {f"{prefix}{name}": value for name, value in cells.items()}
        rows.append(json_safe({**line.cells, **own}))
    if ending == ".jsonl":
        return "".join(json_text(row, ensure_ascii=False) + "\n" for row in rows)
    every = [*header, *(f"{prefix}{name}" for name in names)]
    table = [every, *([_cell(row.get(name)) for name in every] for row in rows)]
    if ending == ".tsv":
        return "".join("\t".join(BREAKS.sub(" ", cell) for cell in row) + "\n" for row in table)
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(table)
    return buffer.getvalue()


def _cell(value: object) -> str:
    """A value as a table cell: empty for None, JSON for anything that is not text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json_text(value, ensure_ascii=False)


COMMAND = Command(
    "predict",
    "predict with a fine-tuned model: writes your file with the answers added",
    "groundling.commands.predict:predict",
    {"_own": PredictConfig()},
    title="Use",
    example="groundling predict --model runs/mine --data my.csv --out answers.csv",
    common_flags="model data images regions top-k all-seeds cpu",
    file="answers.csv",
    validate=check,
    output=OutputFile(),
)
