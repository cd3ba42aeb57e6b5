"""`groundling predict`: predict with a fine-tuned model; writes your file with answers added."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from groundling.command_line import Command, OutputFile
from groundling.data.tables import ROWS
from groundling.runs.folder import check_file, json_safe, json_text, write_whole
from groundling.runs.progress import CommandContext, is_main_process
from groundling.settings.fields import InputKind, Settings, required, settings
from groundling.settings.input_settings import PredictionColumns, SavedModelSettings

if TYPE_CHECKING:
    from groundling.prediction.predictions import InputRow


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
    """Raises InputError for an `out` that is not a table, or exists already."""
    check_file(out, ROWS, is_new=True)


FIRST = 5
"""Number of skipped rows named in the result."""


def predict(config: PredictConfig, work: CommandContext) -> dict[str, Any]:
    """Write `config.data` with the model's answers to the file `work.out`; returns counts.

    All rows are kept in order. Columns are the data's own, then `answer`, `choice` (its text, for
    multiple choice), `x1`, `y1`, `x2`, `y2` (of a region, in pixels) and `probability`, and the
    same with `_2`, `_3` for the next best; all get the prefix `predicted_`, repeated if necessary,
    if the data has a column of one of these names. In a tsv, tabs and newlines of a cell become spaces.
    """
    from groundling.prediction.fine_tuned import load_saved
    from groundling.prediction.predictions import prediction_columns

    saved = config.saved_model
    model = load_saved(saved)
    inputs = model.image_inputs(
        saved.regions,
        saved.images,
        allow_region_mismatch=saved.allow_region_mismatch,
        decode=config.skip_bad,
    )
    rows = model.read_rows(Path(config.data), config.split, config.columns, inputs)
    truncated = model.predict_rows(rows, inputs, config.top_k, config.skip_bad)
    names = prediction_columns(model.form, config.top_k)
    text = _format_table(work.out.suffix, rows, names)
    if is_main_process():
        write_whole(work.out, text)
    work.note(*model.notes)
    faulty = [row for row in rows if row.fault]
    return {
        "answers": str(work.out),
        "model": str(model.folder),
        "rows": len(rows),
        "answered": len(rows) - len(faulty),
        "skipped": len(faulty),
        "skipped_first": [f"{row.where}: {row.fault}" for row in faulty[:FIRST]],
        "truncated_tokens": truncated,
    }


def _format_table(ending: str, rows: Sequence[InputRow], names: Sequence[str]) -> str:
    from groundling.prediction.predictions import prediction_cells

    header = list(dict.fromkeys(name for row in rows for name in row.cells))
    prefix = ""
    while any(f"{prefix}{name}" in header for name in names):
        prefix += "predicted_"
    lines = []
    for row in rows:
        cells = prediction_cells(row.prediction, names)
        own = {f"{prefix}{name}": value for name, value in cells.items()}
        lines.append(json_safe({**row.cells, **own}))
    if ending == ".jsonl":
        return "".join(json_text(line, ensure_ascii=False) + "\n" for line in lines)
    every = [*header, *(f"{prefix}{name}" for name in names)]
    table = [every, *([_cell(line.get(name)) for name in every] for line in lines)]
    if ending == ".tsv":  # in which quotes are text, so no cell can hold a separator
        plain = [[re.sub("\r\n|[\t\n\r]", " ", cell) for cell in cells] for cells in table]
        return "".join("\t".join(cells) + "\n" for cells in plain)
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(table)
    return buffer.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json_text(value, ensure_ascii=False)


COMMAND = Command(
    "predict",
    "predict with a fine-tuned model: write your file with the answers added",
    "groundling.commands.predict:predict",
    {"_own": PredictConfig()},
    title="Use",
    example="groundling predict --model runs/mine --data my.csv --out answers.csv",
    common_flags="model data images regions top-k model-seed cpu",
    file="answers.csv",
    validate=check,
    output=OutputFile(),
)
