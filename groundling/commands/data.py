"""Commands on data: `data check`, `data show` and `data partition`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

from groundling.command_line import Command
from groundling.core.errors import InputError
from groundling.core.registry import resolve
from groundling.runs.folder import check_file, disk_errors, write_whole
from groundling.runs.outputs import NoOutput, OutputFile
from groundling.runs.progress import CommandContext
from groundling.settings.fields import InputKind, Settings, at_least, required
from groundling.settings.input_settings import CaptionColumns, TableTaskSettings


@dataclass(frozen=True)
class CheckConfig(Settings):
    """Which folder is looked through."""

    folder: Annotated[str, InputKind.FOLDER, required] = ""
    """Folder of data in any layout that the library reads; nothing in it is changed. Exit status 1 if anything is \
wrong with it."""
    columns: CaptionColumns = field(default_factory=CaptionColumns)
    own: TableTaskSettings = field(default_factory=TableTaskSettings)


def data_check(config: CheckConfig, work: CommandContext) -> int:
    """Print what the folder holds and its faults; exit status 1 if there are any, else 0."""
    from groundling.check import check
    from groundling.check.checked_folder import ColumnFlags

    if config.own.label and not config.own.text:
        raise InputError("data check: --text and --label are of one file; pass both or none")
    report = check(Path(config.folder), ColumnFlags(config.columns, config.own))
    print(f"{config.folder}: {report.layout}")
    for line in [*report.lines, *report.files]:
        print(f"  {line}")
    for line in report.problems:
        print(f"  problem: {line}", file=sys.stderr)
    return 0 if report.ok else 1


CHECK = Command(
    "data check",
    "what is wrong with a folder of data, before any training",
    "groundling.commands.data:data_check",
    {"_own": CheckConfig()},
    title="Data",
    example="groundling data check my_data",
    common_flags="folder text label image",
    positional=("--folder",),
    prints_output=True,
    output=NoOutput(),
)


# `groundling data show`: a photo with the boxes that a region store has of it.


@dataclass(frozen=True)
class ShowConfig(Settings):
    """Which image of a region store is shown."""

    store: Annotated[str, InputKind.FOLDER, required] = ""
    """Region store: the folder that `groundling regions` wrote."""
    image: Annotated[str, required] = ""
    """The image's id in the store, its file name, or its file."""
    images: Annotated[str, InputKind.FOLDER] = ""
    """Folder of the photos; empty: the one that the store was made of."""


MARK = "groundling data show"
"""What a picture of ours says of the software that made it."""


def data_show(config: ShowConfig, work: CommandContext) -> dict[str, Any]:
    """Write the photo of an image with the boxes that a store has of it as a PNG; returns what each box is.

    Raises InputError for what cannot be read, and for a file in the way.
    """
    from PIL.PngImagePlugin import PngInfo

    from groundling.vision.show import show_for_command

    path = work.out
    _check_place(path)
    found = show_for_command(config.store, config.image, config.images)
    about = PngInfo()
    about.add_text("Software", MARK)
    drawn = BytesIO()
    found.picture.save(drawn, "PNG", pnginfo=about)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, drawn.getvalue())
    work.note(*found.notes)
    return {"out": str(path), "image": found.id, "regions": found.regions}


def _check_place(path: Path) -> None:
    """Raises InputError for a file that is no PNG, or one that is there and was not written by this command."""
    from PIL import Image

    check_file(path, (".png", ".PNG"))
    if not path.exists():
        return
    try:
        with Image.open(path) as picture:
            ours = picture.info.get("Software") == MARK
    except OSError:
        ours = False
    if not ours:
        raise InputError(f"{path}: exists already, and is none of `{MARK}`; choose another --out")


SHOW = Command(
    "data show",
    "a photo with the boxes that a region store has of it",
    "groundling.commands.data:data_show",
    {"_own": ShowConfig()},
    title="Data",
    example="groundling data show runs/store cat --out cat.png",
    common_flags="store image images",
    positional=("--store", "--image"),
    file="regions.png",
    out_help="PNG file to write; an older picture of this command is replaced, any other file is left alone.",
    output=OutputFile(),
)


# `groundling data partition`: a few training examples of every stratum, as a hashed list that others reproduce.


@dataclass(frozen=True)
class PartitionConfig(Settings):
    """Which training examples a few-shot partition takes."""

    task: Annotated[str, InputKind.TASK, required] = ""
    """Task by name, e.g. vcr/answer, or MODULE:NAME of your own."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """Folder with the task's official files."""
    per_stratum: Annotated[int, at_least(0), required] = 0
    """Examples of each stratum."""
    stratify_by: Literal["auto", "total", "label", "category", "question-type", "answer"] = "auto"
    """Strata. auto: VCR's question category, a classification's label, otherwise the whole split as one (total); \
question-type and answer are VQA's."""
    seed: Annotated[int, at_least(0)] = 0
    """Draws another partition; more examples of the same seed include the fewer."""
    allow_fewer: bool = False
    """Take all of a stratum that has fewer."""


def check_partition(config: PartitionConfig, out: str | Path) -> None:
    """Raises InputError without a task, data or a number, for a task that there is not, and a folder in the way."""
    check_file(out)


def partition(config: PartitionConfig, work: CommandContext) -> str:
    """Write the partition's manifest to the file `work.out`; returns a line for every stratum.

    Raises:
        InputError: Settings are missing, a stratum is too small, or a file cannot be read or written.
    """
    from groundling.tasks import Task
    from groundling.tasks.splits import NEVER, partition_manifest, write_manifest

    folder = Path(config.data)
    task = resolve("tasks", Task, config.task).with_answers_of(folder)
    content = partition_manifest(
        task, folder, config.per_stratum, config.seed, config.stratify_by, config.allow_fewer
    )
    write_manifest(work.out, content)
    total = content["examples"]
    lines = [f"{work.out}: {len(content['ids']):,} of {total:,} examples by {content['by']}"]
    for name, sizes in sorted(content["strata"].items()):
        share = sizes["examples"] / total
        drawn = "never drawn" if name in NEVER else f"{sizes['drawn']:,} drawn"
        lines.append(f"  {name}: {sizes['examples']:,} ({share:.1%}), {drawn}")
    return "\n".join(lines)


PARTITION = Command(
    "data partition",
    "a few training examples of every stratum, as a hashed list that others reproduce",
    "groundling.commands.data:partition",
    {"_own": PartitionConfig()},
    title="Data",
    example="groundling data partition --task vcr/answer --data vcr_data --per-stratum 100 --out few.json",
    common_flags="task data per-stratum stratify-by seed",
    validate=check_partition,
    output=OutputFile(),
)
