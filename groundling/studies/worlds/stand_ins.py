"""Small stand-ins for a recipe's data and weights, with which the whole recipe runs in a minute.

Stand-ins for data come from a small rendered world; those for text tasks have its sentences in the layouts of GLUE,
SWAG and READ.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import torch
from transformers import ConvNextImageProcessorPil, ResNetConfig, ResNetModel

from groundling.commands.regions import COMMAND as REGIONS
from groundling.commands.regions import RegionsConfig
from groundling.commands.train_clip import CLIP_TRAINING, TrainClipConfig
from groundling.commands.train_clip import COMMAND as TEACH
from groundling.core.errors import InputError, require_known
from groundling.core.output_types import Classification
from groundling.core.rng import derive_seed
from groundling.data.regions import RegionStore
from groundling.data.tables import lines_of
from groundling.models.text_encoder import TextEncoder, new_encoder
from groundling.recipes import Input, slug
from groundling.recipes.plan import LENGTH, SIDE
from groundling.runs.folder import json_text, read_json, whole_folder, write_whole
from groundling.settings.fields import make_settings
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.data_sets import write_tasks
from groundling.studies.worlds.world import World
from groundling.tasks import Task
from groundling.tasks.texts import ENDINGS, KAGGLE, READABILITY, REGULAR, TASKS, GlueLayout
from groundling.tasks.vqa import read_questions
from groundling.vision_language.end_to_end import make_end_to_end_model
from groundling.vision_language.loading import load_encoder, make_vision_language_model
from groundling.vision_language.single_stream import get_bert

EXAMPLES = 32
"""Maximum number of examples per split; with fewer scenes, VCR would have none."""
WORLD = WorldConfig(nouns=24, dev_nouns=6, test_nouns=8, size=SIDE, control_images=False)
CLIP = TrainClipConfig(
    size=SIDE,
    patch_size=8,
    vision_tower=(32, 1),
    text_tower=(32, 1),
    projection_dim=32,
    vocab_size=600,
    context_length=77,
    untrained=True,
)
DATA = {
    "vqa": "vqa",
    "vcr": "vcr",
    "nlvr2": "nlvr2",
    "refcoco+": "refcoco+",
    "flickr30k": "flickr30k",
    "snli-ve": "snli_ve",
    "captions": "captions_train2014.json",
    "images": "images",
    "text": "texts.txt",
}
"""Kinds of data from the rendered world, and their places below `write_tasks`' folder."""
JOINS = ("uniter", "visualbert", "vlbert")
"""Architectures whose stand-in is a tiny untrained BERT with this architecture's embeddings."""
TEXT_TASKS: Mapping[str, Task] = {task.name: task for task in (*TASKS, REGULAR, READABILITY)}
"""Text tasks by name."""
ROWS = 8
"""Number of examples per split."""
PASSAGES = 40
"""Number of passages of READ; their ids decide which are held out."""


def make_stand_ins(sources: Sequence[Input], folder: Path) -> dict[str, Input]:
    """By the sources' names: inputs whose paths are stand-ins in `folder`, or their future places.

    Existing stand-ins are reused. Raises InputError for a kind without stand-in.
    """
    cache = _StandInCache(folder, {source.kind for source in sources})
    stand_ins = {}
    for source in sources:
        if source.kind:
            path = cache.path(source.kind, source.name)
            if source.made_by is not None:
                print(f"note: {source.name}: uses a stand-in instead of `{source.made_by.command}`")
            made = replace(source, path=str(path), made_by=None)
        elif source.made_by is None:
            raise InputError(f"{source.name}: a stand-in needs a `kind`; add one")
        else:
            made = replace(source, path=str(folder / "made" / Path(source.path).name))
        stand_ins[source.name] = made
    return stand_ins


class _StandInCache:
    """Stand-ins, created on first use."""

    def __init__(self, folder: Path, kinds: Collection[str]) -> None:
        """The world is written as the given `kinds` of data, and as captions, from which CLIP's tokens are learned."""
        self.folder = folder
        self.names = {"captions", *kinds} - TEXT_TASKS.keys()
        self.world = folder / "world"

    def path(self, kind: str, name: str) -> Path:
        """Path of a kind's stand-in; raises InputError for an unknown kind."""
        if not (self.world / "tasks.json").exists():
            write_tasks(World(WORLD), self.world, EXAMPLES, EXAMPLES, self.names)
            _name_persons(self.world / DATA["vcr"])
            if "vqa" in self.names:
                _cut_val(self.world / DATA["vqa"])
        if kind in ("captions", "text"):
            return self.own_copy(kind, name)
        if kind in DATA:
            return self.world / DATA[kind]
        if kind in TEXT_TASKS:
            return self.text_task(kind)
        makers: Mapping[str, Callable[[], Path]] = {
            "regions": self.store,
            "bert": self.bert,
            "clip": self.clip,
            "resnet": self.resnet,
            "wordnet": self.wordnet,
            "detections": self.detections,
            "vlbert-pixels": self.pixels,
            **{join: partial(self.join, join) for join in JOINS},
        }
        require_known(kind, [*DATA, *makers, *TEXT_TASKS], f"{name}: kind = {kind!r}")
        return makers[kind]()

    def own_copy(self, kind: str, name: str) -> Path:
        """A copy of the file for each name, since a recipe may read several together or hold one out."""
        source = self.world / DATA[kind]
        path = self.folder / f"{slug(name)}{source.suffix}"
        write_whole(path, source.read_bytes())
        return path

    def text_task(self, name: str) -> Path:
        """Sentences of the world as a text task, with labels that are independent of them."""

        def write(folder: Path) -> None:
            folder.mkdir()
            sentences = cycle(lines_of(self.world / DATA["text"]))
            _write_task(TEXT_TASKS[name], sentences, folder)

        return _made(self.folder / "text-tasks" / slug(name), write)

    def bert(self) -> Path:
        folder = self.folder / "bert"
        new_encoder(self.world / "texts.txt", folder, seed=0, layers=1, positions=2 * LENGTH)
        return folder

    def clip(self) -> Path:
        out = self.folder / "clip"
        settings = replace(
            CLIP,
            captions=str(self.world / DATA["captions"]),
            images=str(self.world / DATA["images"]),
        )
        TEACH(settings, replace(CLIP_TRAINING, cpu=True), out)
        return out / "model"

    def store(self) -> Path:
        """Regions of all images, the whole image first, in the order of VCR's tags."""
        out = self.folder / "regions"
        settings = make_settings(
            RegionsConfig,
            images=str(self.world / DATA["images"]),
            boxes=(str(self.world / "instances.json"),),
            backbone=str(self.clip()),
            add_whole_image=True,
            cpu=True,
        )
        REGIONS(settings, out)
        return out

    def resnet(self) -> Path:
        def write(folder: Path) -> None:
            torch.manual_seed(derive_seed(0, "resnet"))
            config = ResNetConfig(
                embedding_size=8,
                hidden_sizes=[8, 16, 16, 32],
                depths=[1, 1, 1, 1],
                layer_type="bottleneck",
            )
            ResNetModel(config).save_pretrained(folder)
            ConvNextImageProcessorPil(size={"shortest_edge": SIDE}).save_pretrained(folder)

        return _made(self.folder / "resnet", write)

    def wordnet(self) -> Path:
        """A WordNet without words, with which no text is edited."""
        folder = self.folder / "wordnet"
        folder.mkdir(exist_ok=True)
        for ending in ("noun", "verb", "adj", "adv"):
            for name in (f"data.{ending}", f"index.{ending}"):
                write_whole(folder / name, "  1 WordNet 3.0 Copyright  \n")
            write_whole(folder / f"{ending}.exc", "")
        for name in ("cntlist.rev", "index.sense", "lexnames"):
            write_whole(folder / name, "")
        return folder

    def detections(self) -> Path:
        """RefCOCO+'s annotated boxes as detections with score 0.5."""
        path = self.folder / "detections.json"
        annotated = read_json(self.world / DATA["refcoco+"] / "instances.json")
        parts = {"image_id": "image_id", "box": "bbox", "category_id": "category_id"}
        detections = [
            {**{name: one[theirs] for name, theirs in parts.items()}, "score": 0.5}
            for one in annotated["annotations"]
        ]
        write_whole(path, json_text(detections))
        return path

    def join(self, name: str) -> Path:
        def write(folder: Path) -> None:
            store = RegionStore(self.store())
            model = make_vision_language_model(self._student(), name, store.width)
            model.regions_provenance = store.provenance
            model.export(folder)

        return _made(self.folder / name, write)

    def pixels(self) -> Path:
        def write(folder: Path) -> None:
            parts = get_bert(self._student())
            make_end_to_end_model(*parts, str(self.resnet()), SIDE).export(folder)

        return _made(self.folder / "vlbert-pixels", write)

    def _student(self) -> TextEncoder:
        torch.manual_seed(derive_seed(0, "stand-in"))
        student = load_encoder(str(self.bert()))
        assert isinstance(student, TextEncoder)
        return student


def _made(folder: Path, write: Callable[[Path], None]) -> Path:
    """A folder, which is written whole unless it exists."""
    if not folder.exists():
        with whole_folder(folder.parent) as partial:
            write(partial / folder.name)
    return folder


def _cut_val(vqa: Path) -> None:
    """Split VQA's val in two, as LXMERT's lists."""
    questions = read_questions(vqa, "val")
    for name, part in (("minival", questions[::2]), ("nominival", questions[1::2])):
        rows = [
            {"question_id": one.id, "sent": one.text, "img_id": one.image, "label": one.scores}
            for one in part
        ]
        write_whole(vqa / f"{name}.json", json_text(rows))


def _name_persons(vcr: Path) -> None:
    """Rename the objects of VCR's stand-in to persons, which shortcut mitigation edits."""
    for path in [*vcr.glob("*.jsonl"), *vcr.glob("vcr1images/*/*.json")]:
        text = path.read_text(encoding="utf-8")
        write_whole(path, text.replace('["thing", "thing"]', '["person", "person"]'))


def _write_task(task: Task, sentences: Iterator[str], folder: Path) -> None:
    if isinstance(task.read, GlueLayout):
        for split in (task.train, *task.dev):
            _write_glue(task.read, sentences, task.read.path(folder, split))
    elif task is REGULAR:
        for split in (task.train, *task.dev):
            rows = [[*islice(sentences, 2 + len(ENDINGS)), number % 4] for number in range(ROWS)]
            _write_csv(folder / f"{split}.csv", ["sent1", "sent2", *ENDINGS, "label"], rows)
    else:
        passages = [[f"p{number}", next(sentences), number / 10] for number in range(PASSAGES)]
        _write_csv(folder / "train.csv", KAGGLE, passages)


def _write_glue(reader: GlueLayout, sentences: Iterator[str], path: Path) -> None:
    columns = reader.columns_without_header or (*reader.texts, reader.label)
    lines = [] if reader.columns_without_header else ["\t".join(columns)]
    form = reader.form
    scores = [str(value / 2) for value in range(10)]
    labels = form.labels if isinstance(form, Classification) else scores
    for number in range(ROWS):
        row = dict.fromkeys(columns, "-")
        row |= {name: next(sentences) for name in reader.texts}
        row[reader.label] = labels[number % len(labels)]
        lines.append("\t".join(row[name] for name in columns))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
