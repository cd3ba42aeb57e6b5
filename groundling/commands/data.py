"""Commands on data: `data check`, `data show` and `data partition`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

from groundling.command_line import Command
from groundling.core.errors import InputError
from groundling.core.registry import named
from groundling.runs.folder import check_file, disk_errors, write_whole
from groundling.runs.outputs import NoOutput, OutputFile
from groundling.runs.progress import Work
from groundling.settings.fields import Input, Settings, at_least, needed
from groundling.settings.inputs import CaptionColumns, OwnFile


@dataclass(frozen=True)
class CheckConfig(Settings):
    """Which folder is looked through."""

    folder: Annotated[str, Input.FOLDER, needed] = ""
    """Folder of data in any layout that the library reads; nothing in it is changed. Exit status 1 if anything is \
wrong with it."""
    columns: CaptionColumns = field(default_factory=CaptionColumns)
    own: OwnFile = field(default_factory=OwnFile)


def data_check(config: CheckConfig, work: Work) -> int:
    """Print what the folder holds and its faults; exit status 1 if there are any, else 0."""
    from groundling.check import check
    from groundling.check.places import Flags

    if config.own.label and not config.own.text:
        raise InputError("data check: --text and --label are of one file; pass both or none")
    report = check(Path(config.folder), Flags(config.columns, config.own))
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
    common="folder text label image",
    positional=("--folder",),
    speaks=True,
    leaves=NoOutput(),
)


# `groundling data show`: a photo with the boxes that a region store has of it.


@dataclass(frozen=True)
class ShowConfig(Settings):
    """Which image of a region store is shown."""

    store: Annotated[str, Input.FOLDER, needed] = ""
    """Region store: the folder that `groundling regions` wrote."""
    image: Annotated[str, needed] = ""
    """The image's id in the store, its file name, or its file."""
    images: Annotated[str, Input.FOLDER] = ""
    """Folder of the photos; empty: the one that the store was made of."""


MARK = "groundling data show"
"""What a picture of ours says of the software that made it."""


def data_show(config: ShowConfig, work: Work) -> dict[str, Any]:
    """Write the photo of an image with the boxes that a store has of it as a PNG; returns what each box is.

    Raises InputError for what cannot be read, and for a file in the way.
    """
    from PIL.PngImagePlugin import PngInfo

    from groundling.vision.show import shown

    path = work.out
    _check_place(path)
    found = shown(config.store, config.image, config.images)
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
    common="store image images",
    positional=("--store", "--image"),
    file="regions.png",
    writes="PNG file to write; an older picture of this command is replaced, any other file is left alone.",
    leaves=OutputFile(),
)


# `groundling data partition`: a few training examples of every stratum, as a hashed list that others reproduce.


@dataclass(frozen=True)
class PartitionConfig(Settings):
    """Which training examples a few-shot partition takes."""

    task: Annotated[str, Input.TASK, needed] = ""
    """Task by name, e.g. vcr/answer, or MODULE:NAME of your own."""
    data: Annotated[str, Input.PATH, needed] = ""
    """Folder with the task's official files."""
    per: Annotated[int, at_least(0), needed] = 0
    """Examples of each stratum."""
    by: Literal["auto", "total", "label", "category", "question-type", "answer"] = "auto"
    """Strata. auto: VCR's question category, a classification's label, otherwise the whole split as one (total); \
question-type and answer are VQA's."""
    seed: Annotated[int, at_least(0)] = 0
    """Draws another partition; more examples of the same seed include the fewer."""
    allow_fewer: bool = False
    """Take all of a stratum that has fewer."""


def check_partition(config: PartitionConfig, out: str | Path) -> None:
    """Raises InputError without a task, data or a number, for a task that there is not, and a folder in the way."""
    check_file(out)


def partition(config: PartitionConfig, work: Work) -> str:
    """Write the partition's manifest to the file `work.out`; returns a line for every stratum.

    Raises:
        InputError: Settings are missing, a stratum is too small, or a file cannot be read or written.
    """
    from groundling.tasks import Task
    from groundling.tasks.splits import NEVER, manifest, write_manifest

    folder = Path(config.data)
    task = named("tasks", Task, config.task).at(folder)
    content = manifest(task, folder, config.per, config.seed, config.by, config.allow_fewer)
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
    example="groundling data partition --task vcr/answer --data vcr_data --per 100 --out few.json",
    common="task data per by seed",
    rules=check_partition,
    leaves=OutputFile(),
)
