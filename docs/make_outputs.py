"""Run the commands of docs/first_steps.md unchanged on rendered data, and paste their output below them; or notebooks.

    python docs/make_outputs.py                         # run, and write the page
    python docs/make_outputs.py --check                 # run, and fail if the page has different numbers
    python docs/make_outputs.py --folder runs/first-steps    # keep the written files
    python docs/make_outputs.py --notebooks             # run examples/*.ipynb instead (pip install nbclient ipykernel)

The commands are those in the ```bash blocks of the sections in `SECTIONS`, from top to bottom. The ```console blocks
show output: `$ ` and the beginning of a command, then lines of its output, where `...` replaces omitted lines or the
rest of a line. Pasting replaces each line by the printed line that is the same except for its numbers.
`$ head -N FILE` shows lines of a file.

Nothing is downloaded. The hub ids in the commands are small models in a folder that replaces the hub's cache:
`bert-base-uncased` is an untrained BERT of three layers, `openai/clip-vit-base-patch32` a CLIP trained here in a
minute. Everything takes about ten minutes on one core. `--check` accepts numbers that differ by less than a tenth, or
.1: processors round differently, and training small models amplifies this. Whole numbers must be the same.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import os
import random
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).with_name("first_steps.md")
NOTEBOOKS = Path(__file__).parents[1] / "examples"
SECTIONS = {
    "I have a text encoder": "text",
    "I have photos and questions": "photos",
    "I want to test a claim": "text",
}
"""Headings whose commands run, and the folder of each: the last section compares runs of the first."""
SKIPPED = ("groundling run recipes/real.py ",)
"""Beginnings of commands that need data from elsewhere."""
ELLIPSIS = "..."
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?|\bnan\b")
SHARE, DISTANCE = 0.1, 0.1
"""How much fractions may differ: as a share of the printed number, or absolutely."""
BLOCK = re.compile(r"^```(bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONTINUED = re.compile(r"\\\n\s*")


class StaleError(Exception):
    """The page shows output that its commands do not print."""


class Block(NamedTuple):
    """A block of commands, or of output."""

    kind: str
    text: str
    start: int
    """Where the text starts in the page."""


def blocks_of(page: str, heading: str) -> list[Block]:
    """The blocks of one section, in their order."""
    found = re.search(rf"^## {re.escape(heading)}\n", page, re.MULTILINE)
    if found is None:
        raise StaleError(f"no section is called {heading!r}")
    end = page.find("\n## ", found.end())
    stop = len(page) if end < 0 else end
    blocks = BLOCK.finditer(page, found.end(), stop)
    return [Block(match[1], match[2], match.start(2)) for match in blocks]


def commands_of(block: Block) -> list[str]:
    """The groundling commands in a block, one per line."""
    lines = CONTINUED.sub("", block.text).splitlines()
    ours = [line for line in lines if line.startswith("groundling ")]
    return [line.partition("  #")[0].strip() for line in ours if not line.startswith(SKIPPED)]


def paste_output(shown: str, printed: str) -> str:
    """The lines that a block shows below its command, with the numbers printed now.

    Raises StaleError if no later printed line is the same except for its numbers.
    """
    lines = printed.splitlines()
    place = 0
    new = []
    for line in shown.splitlines():
        if line.strip() == ELLIPSIS:
            new.append(line)
            continue
        is_prefix = line.rstrip().endswith(ELLIPSIS)
        expected = _shape(line.rstrip().removesuffix(ELLIPSIS))
        for number in range(place, len(lines)):
            shape = _shape(lines[number])
            if shape == expected or (is_prefix and shape.startswith(expected)):
                break
        else:
            raise StaleError(
                f"{line.strip()!r} is not printed; the command prints {len(lines)} lines"
            )
        place = number + 1
        now = lines[number]
        if is_prefix:
            now = _cut(now, expected) + ELLIPSIS
        new.append(now)
    return "".join(f"{line}\n" for line in new)


def _shape(line: str) -> str:
    """A line without its numbers and the spaces that align them."""
    return re.sub(r"\s+", " ", NUMBER.sub("0", line)).strip()


def _cut(line: str, shape: str) -> str:
    """The beginning of a line that has a shape, without cutting a number."""
    ends = [end for end in range(len(line) + 1) if _shape(line[:end]) == shape]
    return line[: ends[-1]]


def differences(old: str, new: str) -> list[str]:
    """Differences between two versions: a line for each number that differs by more than rounding explains."""
    found = []
    for before, after in itertools.zip_longest(old.splitlines(), new.splitlines(), fillvalue=""):
        numbers = (NUMBER.findall(before), NUMBER.findall(after))
        same_shape = _shape(before) == _shape(after) and len(numbers[0]) == len(numbers[1])
        if not same_shape or not all(map(_close, *numbers)):
            found.append(f"{before.strip()!r}: now {after.strip()!r}")
    return found


def _close(old: str, new: str) -> bool:
    if old == new:
        return True
    if not ({*".e"} & set(old) and {*".e"} & set(new)):
        return False
    a, b = (float(text.replace(",", "")) for text in (old, new))
    return abs(a - b) <= max(DISTANCE, SHARE * abs(a))


# -- models and files that the page names ----------------------------------------------------------------------------

PHOTOS, MORE = 300, 8
"""Number of photos with questions, and of other photos."""
TEXTS = 2000
EXAMPLES = {"train": 400, "dev": 200}
"""Examples of each task in GLUE's layout."""


def render(folder: Path) -> None:
    """Make a world in `folder/world`, and the models that replace the hub's in `folder/hub`; existing ones are kept."""
    from groundling.cli import main

    world = folder / "world"
    if world.exists():
        return
    sizes = "--limit-train 1200 --limit-dev 200 --world.scenes 3000 --world.dev-scenes 200 --no-world.control-images"
    training = "--size 32 --patch-size 8 --vision-tower 128 3 --text-tower 64 2 --projection-dim 64"
    training += " --vocab-size 1000 --context-length 20 --no-flip --max-shift 0.03"
    training += " --steps 700 --batch 128 --lr 1e-3 --cpu"
    captions = f"--captions {world}/captions_train2014.json --images {world}/images"
    for command in (
        f"data make-tasks {sizes} --out {world}",
        f"train-clip {captions} {training} --out {folder}/teacher",
    ):
        with redirect_stdout(io.StringIO()):
            status = main(shlex.split(command))
        if status:
            sys.exit(f"failed: groundling {command}")
    put_into_hub(folder / "hub", "bert-base-uncased", world / "bert")
    put_into_hub(folder / "hub", "openai/clip-vit-base-patch32", folder / "teacher" / "model")


def put_into_hub(hub: Path, name: str, model: Path) -> None:
    """Copy a model's folder into the hub's cache under an id."""
    place = hub / f"models--{name.replace('/', '--')}"
    commit = 40 * "0"
    (place / "refs").mkdir(parents=True, exist_ok=True)
    (place / "refs" / "main").write_text(commit)
    shutil.copytree(model, place / "snapshots" / commit, dirs_exist_ok=True)


def put_files(folder: Path, world: Path) -> None:
    """Write the user's files that the page names, from the world's: photos, captions, questions, text, examples."""
    draw = random.Random(0)
    captions = captions_of(world / "captions_train2014.json")
    red = [photo for photo, some in captions.items() if is_red(some)]
    rest = [photo for photo in captions if photo not in {*red}]
    photos = [
        photo for pair in zip(red, rest, strict=False) for photo in pair
    ]  # equally many yes and no
    mine, others = photos[:PHOTOS], photos[PHOTOS : PHOTOS + MORE]
    for name, some in (("my_photos", mine), ("new_photos", others)):
        (folder / name).mkdir(parents=True)
        for photo in some:
            shutil.copy(world / "images" / photo, folder / name)
    shutil.copy(world / "images" / others[0], folder / "new_photos" / "pier.jpg")
    lines = [f"{text}\t{photo}\n" for photo in mine for text in captions[photo]]
    (folder / "my_captions.tsv").write_text("".join(lines))
    write_questions(folder / "my_questions.csv", mine, captions, True)
    write_questions(folder / "new_questions.csv", others, captions, False)
    texts = [text for some in captions.values() for text in some]
    (folder / "my_text.txt").write_text("".join(f"{text}\n" for text in texts[:TEXTS]))
    write_pairs(folder, captions, texts, draw)


def captions_of(path: Path) -> dict[str, list[str]]:
    """Each photo's captions, by its file name in the image folder."""
    content = json.loads(path.read_text())
    file_of = {image["id"]: image["file_name"] for image in content["images"]}
    found: dict[str, list[str]] = {}
    for note in content["annotations"]:
        found.setdefault(file_of[note["image_id"]], []).append(note["caption"])
    return found


def write_questions(
    path: Path,
    photos: Sequence[str],
    captions: Mapping[str, Sequence[str]],
    labelled: bool,
) -> None:
    """Write a table that asks whether something in each photo is red, according to its captions."""
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["question", "photo", *(["answer"] if labelled else [])])
        for photo in photos:
            answer = "yes" if is_red(captions[photo]) else "no"
            table.writerow(["is something red ?", photo, *([answer] if labelled else [])])


def is_red(captions: Sequence[str]) -> bool:
    """Whether one of the captions contains the word red."""
    return any("red" in caption.split() for caption in captions)


def write_pairs(
    folder: Path, captions: Mapping[str, Sequence[str]], texts: Sequence[str], draw: random.Random
) -> None:
    """Write RTE (captions of one photo or of two), CoLA (captions in order or shuffled) and `my.csv`."""
    photos = [photo for photo, some in captions.items() if len(some) > 1]
    start = 0
    for split, count in EXAMPLES.items():
        rows = ["index\tsentence1\tsentence2\tlabel"]
        sentences = []
        for number, photo in enumerate(photos[start : start + count]):
            first, second = captions[photo][:2]
            label = "entailment"
            if number % 2:
                second, label = draw.choice(texts), "not_entailment"
            rows.append(f"{number}\t{first}\t{second}\t{label}")
            words = first.split()
            if number % 2:
                draw.shuffle(words)
            sentences.append(f"world\t{1 - number % 2}\t\t{' '.join(words)}")
        for task, lines in (("RTE", rows), ("CoLA", sentences)):
            file = folder / "glue_data" / task / f"{split}.tsv"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{line}\n" for line in lines))
        start += count
    with (folder / "my.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["question", "answer", "y"])
        for number, photo in enumerate(photos[: EXAMPLES["train"]]):
            first, second = captions[photo][:2]
            table.writerow([first, draw.choice(texts) if number % 2 else second, 1 - number % 2])


# -- running -----------------------------------------------------------------------------------------------------------


def outputs(commands: Sequence[str], folder: Path) -> Iterator[tuple[str, str]]:
    """Run each command in a folder, and return it with its stdout; exits if one fails."""
    from groundling.cli import main

    for command in commands:
        stdout = io.StringIO()
        print(f"$ {command}", file=sys.stderr, flush=True)
        with chdir(folder), redirect_stdout(stdout):
            status = main(shlex.split(command)[1:])
        if status:
            sys.exit(f"failed with status {status}: {command}")
        yield command, stdout.getvalue()


def output_of(line: str, printed: Mapping[str, str], folder: Path) -> str:
    """The output of a console block's command; raises StaleError unless exactly one command begins so."""
    shows = re.fullmatch(r"head -(\d+) (\S+)", line)
    if shows:
        lines = (folder / shows[2]).read_text().splitlines(keepends=True)
        return "".join(lines[: int(shows[1])])
    begin = line.removesuffix(ELLIPSIS).rstrip()
    matches = [
        output
        for command, output in printed.items()
        if command == line or (line.endswith(ELLIPSIS) and command.startswith(begin))
    ]
    if len(matches) != 1:
        raise StaleError(f"{len(matches)} commands match {line!r}")
    return matches[0]


def with_outputs(page: str, heading: str, printed: Mapping[str, str], folder: Path) -> str:
    """The page with the output of a section's commands pasted into its console blocks."""
    for block in reversed(blocks_of(page, heading)):  # earlier blocks keep their positions
        if block.kind != "console":
            continue
        first, _, shown = block.text.partition("\n")
        line = first.removeprefix("$ ")
        output = output_of(line, printed, folder)
        new = output if line.startswith("head ") else paste_output(shown, output)
        end = block.start + len(block.text)
        page = f"{page[: block.start]}{first}\n{new}{page[end:]}"
    return page


def run(page: str, folder: Path) -> str:
    """The page with the current output of its commands, which run below `folder`."""
    render(folder)
    for heading, name in SECTIONS.items():
        place = folder / name
        if not place.exists():
            put_files(place, folder / "world")
        commands = [
            command
            for block in blocks_of(page, heading)
            if block.kind == "bash"
            for command in commands_of(block)
        ]
        page = with_outputs(page, heading, dict(outputs(commands, place)), place)
    return page


# -- notebooks ---------------------------------------------------------------------------------------------------------
def executed(path: Path, folder: Path) -> str:
    """A notebook's file with the outputs of its cells, run in `folder`; not stderr, which has progress and notes."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    about = book.metadata.copy()
    NotebookClient(
        book,
        timeout=None,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    book.metadata = about  # the kernel adds its version
    for cell in book.cells:
        outputs = [one for one in cell.get("outputs", ()) if one.get("name") != "stderr"]
        for one in outputs:
            if "image/png" in one.get("data", {}):  # the text names an address in memory
                one.data = {"image/png": one.data["image/png"]}
        if cell.cell_type == "code":
            cell.outputs = outputs
    return nbformat.writes(book) + "\n"


def printed_by(book: str) -> str:
    """All text of a notebook's outputs."""
    outputs = [one for cell in json.loads(book)["cells"] for one in cell.get("outputs", ())]
    texts = (one.get("text") or one["data"].get("text/plain", "") for one in outputs)
    return "\n".join("".join(text) for text in texts)


def main() -> None:
    """Run everything as described above."""
    flags = argparse.ArgumentParser(description="Paste the output of the page's commands.")
    flags.add_argument(
        "--check", action="store_true", help="change nothing, and fail if the numbers differ"
    )
    flags.add_argument(
        "--notebooks",
        action="store_true",
        help="run the notebooks of examples/ instead of the page",
    )
    flags.add_argument("--folder", default="", help="folder to run in; empty: a temporary folder")
    options = flags.parse_args()
    pages = sorted(NOTEBOOKS.glob("*.ipynb")) if options.notebooks else [PAGE]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        # Set before any model library is imported, so that the library uses only this cache.
        os.environ |= {"HF_HUB_CACHE": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}
        for page in pages:
            renew(page, folder, options.check)


def renew(page: Path, folder: Path, checks: bool) -> None:
    """Write a page or notebook with its outputs, or exit if `checks` and the numbers differ."""
    old = page.read_text(encoding="utf-8")
    try:
        new = run(old, folder) if page == PAGE else executed(page, folder)
    except StaleError as error:
        sys.exit(f"{page.name}: {error}")
    if not checks:
        page.write_text(new, encoding="utf-8")
        return
    shown = (old, new) if page == PAGE else (printed_by(old), printed_by(new))
    found = differences(*shown)
    for line in found:
        print(line)
    if found:
        sys.exit(f"{page.name} does not show the numbers that its commands print")


if __name__ == "__main__":
    main()
