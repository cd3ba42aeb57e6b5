"""Every reader of a file that a user gives: how to write a small valid one, and how the library reads it."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tiny import homes, regions, standins, toys, vcr_files
from tiny.homes import put, table
from tiny.tasks import corpus_lines

from groundling.cli import main
from groundling.commands.adapt.evaluation import read_pairs
from groundling.core.errors import InputError, prefix_errors
from groundling.core.output_types import Classification
from groundling.core.registry import resolve
from groundling.data.captions import keep_listed, read_captions
from groundling.data.image_samples import decode_image
from groundling.data.regions import to_stored
from groundling.data.regions.annotations import (
    read_annotated_boxes,
    read_detections,
    read_vcr_objects,
)
from groundling.data.regions.imports import _read_coco, _read_stills, import_regions
from groundling.data.tables import read_all_columns, row_texts
from groundling.data.text.parses import read_parses
from groundling.models.adapters import ClipFeatureAdapter, load_adapter_backbone
from groundling.models.clip import load_clip_dual_encoder, make_clip_text_tower
from groundling.models.cross_modal import CrossModalEncoder
from groundling.models.heads import LM_HEAD, LMHead, load_head, save_heads
from groundling.models.loading import load_processor, load_tokenizer, weights_sha256
from groundling.models.text_encoder import load_text_encoder
from groundling.models.visual_token import VisualTokenEncoder
from groundling.prediction.fine_tuned import load
from groundling.prediction.model_description import ModelDescription, read_description
from groundling.prediction.predictions import read_predictions
from groundling.runs.folder import read_json, read_result
from groundling.runs.run import Checkpoints, Counters
from groundling.settings.input_settings import (
    CaptionSettings,
    ClipAdapterSettings,
    TableTaskSettings,
)
from groundling.stats import verdict_report
from groundling.stats.linear_probes import read_nouns
from groundling.studies.attention.models import load_clip_towers
from groundling.studies.clip_td.explicit_mitigation import WordNet
from groundling.studies.clip_td.shift import read_losses
from groundling.studies.clip_td.vcr_files import read_lines
from groundling.studies.knowledge.minimal_pairs import read_minimal_pairs, read_winoground
from groundling.studies.knowledge.visual_facts import open_facts
from groundling.studies.knowledge.word_similarity import read_word_pairs
from groundling.studies.worlds.tasks import questions_in
from groundling.tasks import Task
from groundling.tasks.grounding import read_captions as entity_captions
from groundling.tasks.splits import partition_manifest, read_manifest, write_manifest
from groundling.tasks.table import table_task
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.single_stream import read_weights
from groundling.vision_language.visualbert import visualbert


@dataclass(frozen=True)
class Reader:
    """One reader and its files."""

    make: Callable[[Path], object]
    """Writes valid files to a new folder."""
    read: Callable[[Path], object]
    """All that is read of them; raises InputError."""
    checked: bool = True
    """Whether damage must be told, because the layout has rules."""
    kept: tuple[str, ...] = ()
    """Endings of files that are not mutated: another reader's."""


TASK_SPLITS = {
    "vqa": ("vqa", "train", "val"),
    "nlvr2": ("nlvr2", "train", "dev"),
    "snli-ve": ("snli_ve", "train", "dev"),
    "refcoco+": ("refcoco+", "train", "val"),
    "flickr30k": ("flickr30k", "train", "val"),
}
"""By task: its folder of a rendered world's, and splits."""
TASKS = "data make-tasks --limit-train 24 --limit-dev 24 --world.scenes 0 --world.dev-scenes 0"
WORLD = "data make-world --nouns 24 --dev-nouns 6 --test-nouns 8 --scenes 8 --dev-scenes 4"
PIXELS = (".png", ".jpg")


class LazyFixture:
    """What takes more than a moment to make, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tasks(self) -> Path:
        return self.once("tasks", lambda out: main([*TASKS.split(), "--out", str(out)]))

    def world(self) -> Path:
        return self.once(
            "world",
            lambda out: main(
                [*WORLD.split(), "--sentences", "60", "--dev-sentences", "8", "--out", str(out)]
            ),
        )

    def shop(self) -> Path:
        return self.once("shop", _shop)

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        place = self.folder / name
        if not place.exists():
            make(place)
        return place


SHOP = ("texts", "looks", "glue", "own_images", "pairs", "flickr8k", "coco", "others_regions")
"""The stand-ins of documents that more than one reader begins with."""


def _shop(place: Path) -> None:
    for name in SHOP:
        getattr(standins, name)(place)


def readers(shelf: LazyFixture) -> dict[str, Reader]:
    """All readers by name."""
    made: dict[str, Reader] = {}
    for some in (_texts, _captions, _tasks, _regions, _models, _runs, _probes, _pictures):
        made |= some(shelf)
    return made


def copied(source: Callable[[], Path], *names: str) -> Callable[[Path], None]:
    """Puts some files or folders of a shelf, named by paths below it, into a folder."""

    def make(place: Path) -> None:
        for name in names:
            path = source() / name
            if path.is_dir():
                shutil.copytree(path, place, dirs_exist_ok=True)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place / path.name)

    return make


def written(name: str, text: str | bytes) -> Callable[[Path], object]:
    return lambda place: put(place / name, text)


def of_file(
    name: str, content: str | Callable[[Path], object], read: Callable[[Path], object], checked=True
) -> Reader:
    """The reader of one file, which is this text or made by a function."""
    make = written(name, content) if isinstance(content, str) else content
    return Reader(make, lambda place: read(place / name), checked)


def rows_of(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# -- texts and tables --------------------------------------------------------------------------------------------------
def _texts(shelf: LazyFixture) -> dict[str, Reader]:
    said = toys.sentences()[:6]
    questions = [(f"is it {text} ?", f"{n}.jpg", "yn"[n % 2], n / 4) for n, text in enumerate(said)]
    head = ("question", "photo", "answer", "score")
    objects = [dict(zip(head, row, strict=True)) for row in questions]
    own = {
        "csv": table(head, *questions),
        "tsv": "".join("\t".join(map(str, row)) + "\n" for row in (head, *questions)),
        "json": json.dumps(objects),
        "jsonl": rows_of(*objects),
    }
    pairs = "".join(f"{a}\t{b}\t{n}\n" for n, (a, b) in enumerate(pairwise(said)))
    made = {
        "text": of_file("a.txt", "\n".join(said) + "\n", corpus_lines),
        "similarity pairs": of_file("a.tsv", pairs, read_pairs, checked=False),
    }
    for ending in (".gz", *[".zst", ".parquet"] * bool(find_spec("pyarrow"))):
        make = partial(_packed, ending=ending, said=said)
        made[f"text {ending}"] = of_file(f"a.txt{ending}", make, corpus_lines, checked=False)
    for ending, text in own.items():
        made[f"own {ending}"] = of_file(f"a.{ending}", text, _own)
        asked = of_file(f"a.{ending}", text, _asked_rows, checked=False)
        made[f"rows to answer {ending}"] = asked
    return made


def _packed(place: Path, ending: str, said: Sequence[str]) -> None:
    raw = "".join(f"{text}\n" for text in said).encode()
    path = place / f"a.txt{ending}"
    if ending == ".gz":
        put(path, gzip.compress(raw, mtime=0))
    elif ending == ".zst":
        put(path, import_module("pyarrow").compress(raw, "zstd", asbytes=True))
    else:
        place.mkdir(parents=True)
        content = import_module("pyarrow").table({"text": list(said)})
        import_module("pyarrow.parquet").write_table(content, path)


def _asked_rows(path: Path) -> object:
    """What `predict` reads of each row; it hands the other columns on."""
    header, rows = read_all_columns(path, ("question", "photo"))
    with prefix_errors(path):
        return [header, [row_texts(row, ("question", "photo")) for _, row in rows]]


def _own(path: Path) -> object:
    task = table_task(path, TableTaskSettings(text="question", label="answer", image="photo"))
    return [task.form, *(task.read(path, split) for split in ("train", "dev"))]


# -- captions ----------------------------------------------------------------------------------------------------------
def _captions(shelf: LazyFixture) -> dict[str, Reader]:
    said = [
        ("a dog", "1.jpg"),
        ("a dog again", "1.jpg"),
        ("two cats", "sub/2.png"),
        ("it, too", "3.gif"),
    ]
    objects = [{"caption": text, "image": file} for text, file in said]
    listed = [{"file_name": file, "text": text} for text, file in said]
    files: dict[str, tuple[str, str | Callable[[Path], object]]] = {
        "COCO": ("c.json", _coco),
        "Flickr8k": ("Flickr8k.token.txt", copied(shelf.shop, "Flickr8k.token.txt")),
        "Conceptual": ("cc_train.tsv", copied(shelf.shop, "cc_train.tsv")),
        "csv": ("c.csv", table(("caption", "image"), *said)),
        "tsv": ("c.tsv", "caption\timage\n" + "".join(f"{a}\t{b}\n" for a, b in said)),
        "jsonl": ("c.jsonl", rows_of(*objects)),
        "json": ("c.json", json.dumps(objects)),
        "imagefolder jsonl": ("metadata.jsonl", rows_of(*listed)),
    }
    made = {
        f"captions {name}": of_file(file, content, lambda path: read_captions(path).images)
        for name, (file, content) in files.items()
    }
    made["captions Karpathy"] = of_file(
        "dataset_coco.json",
        copied(shelf.shop, "dataset_coco.json"),
        lambda path: (
            read_captions(path, CaptionSettings(caption_splits=("train", "restval"))).images
        ),
    )
    made["captions beside images"] = Reader(
        _sidecars, lambda place: read_captions(place).images, kept=PIXELS
    )
    made["list of images"] = Reader(
        copied(shelf.shop, "flickr8k/Flickr8k.token.txt", "flickr8k/Flickr_8k.trainImages.txt"),
        lambda place: keep_listed(
            read_captions(place / "Flickr8k.token.txt").images, place / "Flickr_8k.trainImages.txt"
        ),
        checked=False,
    )
    made["captions as text"] = of_file("c.json", _coco, corpus_lines)
    return made


def _coco(place: Path) -> None:
    images = [(1, "1.jpg"), (2, "2.jpg")]
    homes.coco(place / "c.json", images, [(1, "a dog"), (2, "a cat"), (1, "it")])


def _sidecars(place: Path) -> None:
    for number in range(3):
        homes.picture(place / f"{number}.jpg")
        if number:
            put(place / f"{number}.txt", f"a dog number {number}\n")
    put(place / "0.json", json.dumps({"caption": "a cat"}))


# -- tasks -------------------------------------------------------------------------------------------------------------
def _tasks(shelf: LazyFixture) -> dict[str, Reader]:
    made = {
        name: Reader(copied(shelf.tasks, folder), _of_task(name, *splits), kept=PIXELS)
        for name, (folder, *splits) in TASK_SPLITS.items()
    }
    made["vcr"] = Reader(
        lambda place: vcr_files.folder(place, 4, 4), _of_task("vcr", "train", "val")
    )
    for name, (header, row) in GLUE.items():
        make = partial(_glue, name=name, header=header, row=row)
        made[f"glue/{name.lower()}"] = Reader(
            make, _of_task(f"glue/{name.lower()}", "train", "dev")
        )
    made["swag"] = Reader(_swag, _of_task("swag", "train", "val"))
    made["VQA lists of LXMERT"] = Reader(
        _lxmert_lists, _of_task("vqa/minival", "minival", "nominival")
    )
    rows = [(f"p{n}", text, n / 10) for n, text in enumerate(toys.sentences()[:20])]
    clear = table(("id", "excerpt", "target"), *rows)
    losses = [{"annot_id": f"val-{n}", "answer_losses": [[0.5, 1.0]] * 4} for n in range(3)]
    instances = copied(shelf.tasks, "refcoco+/instances.json")
    return made | {
        "readability": Reader(written("train.csv", clear), _of_task("readability", "train", "dev")),
        "entities' captions": Reader(
            copied(shelf.tasks, "flickr30k"),
            lambda place: list(entity_captions(place, "train")),
            kept=PIXELS,
        ),
        "instances": of_file("instances.json", instances, read_annotated_boxes),
        "detections": of_file(
            "dets.json", _detections, lambda path: read_detections(path, read_json(path)), False
        ),
        "VCR's metadata": of_file("1.json", _metadata, read_vcr_objects, checked=False),
        "partition": of_file("part.json", partial(_partition, shelf=shelf), _chosen, False),
        "lines to shift": Reader(
            lambda place: vcr_files.folder(place, 1, 4),
            lambda place: [line.item for line in read_lines(place, "val")],
            checked=False,
        ),
        "VCR's losses": of_file("losses.jsonl", rows_of(*losses), read_losses, checked=False),
    }


GLUE = {
    "RTE": ("index\tsentence1\tsentence2\tlabel\n", "{n}\t{a}\t{b}\t{no}entailment\n"),
    "CoLA": ("", "x\t{odd}\t\t{a}\n"),
    "STS-B": ("sentence1\tsentence2\tscore\n", "{a}\t{b}\t{n}\n"),
    "QQP": ("id\tquestion1\tquestion2\tis_duplicate\n", "{n}\t{a}\t{b}\t{odd}\n"),
}
"""By folder: the first line of a split, and what all others look like; the other tasks have the same reader."""
SWAG = """sent1,sent2,ending0,ending1,ending2,ending3,label
A dog ran.,He,"barks, twice.",b,c,d,2
A cat sat.,It,a,b,c,d,0
"""


def _of_task(name: str, *splits: str) -> Callable[[Path], object]:
    return partial(_task, name=name, splits=splits)


def _swag(place: Path) -> None:
    for split in ("train", "val"):
        put(place / f"{split}.csv", SWAG)


def _task(place: Path, name: str, splits: tuple[str, ...]) -> object:
    task = resolve("tasks", Task, name).with_answers_of(place)
    return [task.form, *(task.read(place, split) for split in splits)]


def _lxmert_lists(place: Path) -> None:
    for first, split in enumerate(("minival", "nominival")):
        rows = [
            {"question_id": n, "sent": f"is it {text} ?", "img_id": f"COCO_val2014_{n:012d}"}
            | {"label": {"yes": 1, "no": 0.3}}
            for n, text in enumerate(toys.sentences()[:3], 3 * first)
        ]
        put(place / f"{split}.json", json.dumps(rows))
    put(place / "trainval_label2ans.json", json.dumps(["yes", "no"]))


def _glue(place: Path, name: str, header: str, row: str) -> None:
    said = toys.sentences()
    rows = [
        row.format(n=n, a=said[n], b=said[-n], odd=n % 2, no="not_" * (n % 2)) for n in range(4)
    ]
    for split in ("train", "dev"):
        put(place / name / f"{split}.tsv", header + "".join(rows))


def _detections(place: Path) -> None:
    found = [
        {"image_id": n, "box": [1, 1, 5, 6], "score": 0.5, "category_id": 1, "category_name": "dog"}
        for n in range(4)
    ]
    put(place / "dets.json", json.dumps(found))


def _metadata(place: Path) -> None:
    about = {"names": ["person", "dog"], "width": 16, "height": 16}
    about["boxes"] = [[1, 1, 9, 9, 0.9], [2, 2, 9, 9, 0.8]]
    put(place / "1.json", json.dumps(about | {"segms": [[[[1, 1], [9, 1], [9, 9]]], []]}))


def _partition(place: Path, shelf: LazyFixture) -> None:
    source = shelf.once("vcr files", vcr_files.folder)
    place.mkdir(parents=True)
    manifest = partition_manifest(resolve("tasks", Task, "vcr"), source, 1, 0)
    write_manifest(place / "part.json", manifest)


def _chosen(path: Path) -> object:
    """What a command takes of a partition."""
    content = read_manifest(path)
    return [content["ids"], content.get("task"), content.get("files")]


# -- regions -----------------------------------------------------------------------------------------------------------
def _regions(shelf: LazyFixture) -> dict[str, Reader]:
    butd = "trainval_resnet101_faster_rcnn_genome_36.tsv"
    return {
        "regions npz": Reader(copied(shelf.shop, "coco_train2014"), _imported),
        "regions json": Reader(_vlbert, _imported),
        "regions tsv": of_file(butd, copied(shelf.shop, butd), _imported),
        "regions LXMERT": of_file(
            "a_obj36.tsv", regions.lxmert("a") + regions.lxmert("b"), _imported
        ),
        "regions lmdb": Reader(partial(_lmdb, value=regions.npz()), _imported),
        "regions lmdb of msgpack": Reader(partial(_lmdb, value=regions.msgpack()), _imported),
        "names of stills": Reader(
            lambda place: vcr_files.folder(place, 3, 3),
            lambda place: sorted(_read_stills(sorted(map(str, place.glob("*.jsonl")))).items()),
            checked=False,
        ),
        "names of imported images": Reader(
            copied(shelf.shop, "captions_train2014.json", "dataset_coco.json"),
            lambda place: [
                sorted(dict(_read_coco(path)).items()) for path in sorted(place.glob("*.json"))
            ],
            checked=False,
        ),
    }


def _imported(place: Path) -> object:
    """Every image; an image that is skipped is told by every command that imports."""
    facts, items = import_regions([place])
    images: list[object] = [{name: value for name, value in facts.items() if name != "source"}]
    faults = []
    for name, read in items:
        try:
            images.append(to_stored(read()))
        except InputError as error:
            faults.append(f"{name}: {error}")
    if faults:
        raise InputError(f"{place}: {faults[0]}")
    return images


def _vlbert(place: Path) -> None:
    for number in range(3):
        put(place / f"{number}.json", regions.vlbert())


def _lmdb(place: Path, value: bytes) -> None:
    regions.lmdb(place, {f"{name}.npz": value for name in "abc"})
    (place / "lock.mdb").unlink()


# -- models ------------------------------------------------------------------------------------------------------------
def _models(shelf: LazyFixture) -> dict[str, Reader]:
    made = {
        "text encoder": (homes.student, load_encoder),
        "sentence encoder": (homes.sentence_encoder, load_encoder),
        "CLIP": (homes.seeing_clip, _both_towers),
        "CLIP with looks": (homes.seeing_clip, load_clip_towers),
        "ViLT": (homes.vilt, load_encoder),
        "VisualBERT": (_visualbert, load_encoder),
        "LXMERT": (_lxmert, load_encoder),
        "XDBERT": (_crossmodal, load_encoder),
        "CLIP-BERT": (_clip_bert, load_encoder),
        "adapter": (partial(_adapter, shelf=shelf), load_encoder),
        "encoder with a head": (_with_head, _head),
    }
    made = {name: (make, partial(_weighed, load=load)) for name, (make, load) in made.items()}
    made |= {
        "tokenizer": (
            lambda place: homes.home(place, None, homes.words()),
            lambda place: _cut(load_tokenizer(place)),
        ),
        "image processor": (_processor, _processed),
        "released weights": (
            _released,
            lambda place: {path.name: read_weights(path) for path in sorted(place.iterdir())},
        ),
        "what a model answers": (_describe, read_description),
        "fine-tuned model": (partial(_tuned, shelf=shelf), _opened_model),
    }
    return {name: Reader(*one, checked=False) for name, one in made.items()}


def _processed(place: Path) -> object:
    picture = Image.linear_gradient("L").convert("RGB")
    return load_processor(place)(picture)["pixel_values"]


def _weighed(place: Path, load: Callable[[Path], Any]) -> object:
    model = load(place)
    if not isinstance(model, torch.nn.Module):
        return model
    cut = getattr(model, "tokenizer", None)
    return [weights_sha256(model), cut and _cut(cut)]


def _cut(tokenizer: Any) -> object:
    return [tokenizer(text)["input_ids"] for text in toys.sentences()[:3]]


def _both_towers(place: Path) -> object:
    towers, _ = load_clip_dual_encoder(place)
    return weights_sha256(towers)


def _visualbert(place: Path) -> None:
    torch.manual_seed(0)
    visualbert(toys.bert(len(homes.words())), homes.words(), 8).export(place)


def _lxmert(place: Path) -> None:
    homes.home(place, toys.lxmert(toys.bert_words()), homes.words())


def _crossmodal(place: Path) -> None:
    torch.manual_seed(0)
    text = load_text_encoder(homes.student(place.with_name(f"{place.name}-start")))
    clip = make_clip_text_tower(toys.clip(homes.tokens()))
    CrossModalEncoder(text, clip, 1, homes.tokens()).export(place)


def _clip_bert(place: Path) -> None:
    torch.manual_seed(0)
    text = load_text_encoder(homes.student(place.with_name(f"{place.name}-start")))
    VisualTokenEncoder(text, 24).export(place)


def _adapter(place: Path, shelf: LazyFixture) -> None:
    clip = shelf.once("clip", homes.seeing_clip)
    torch.manual_seed(0)
    ClipFeatureAdapter(load_adapter_backbone(str(clip)), ClipAdapterSettings(adapter="mlp")).export(
        place
    )


def _with_head(place: Path) -> None:
    homes.student(place)
    text = load_text_encoder(place)
    save_heads(place, {LM_HEAD: LMHead(text.sizes.text, text.sizes.input_embeddings)})


def _head(place: Path) -> object:
    text = load_text_encoder(place)
    head = LMHead(text.sizes.text, text.sizes.input_embeddings)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    return [load_head(place, head, LM_HEAD), weights_sha256(head)]


def _processor(place: Path) -> None:
    homes.seeing_clip(place)
    for path in place.iterdir():
        if path.name not in ("preprocessor_config.json", "config.json"):
            path.unlink()


def _fine_tuned(place: Path) -> None:
    student = homes.student(place / "bert")
    data = homes.rte(place / "glue")
    words = ["--model", str(student), "--task", "glue/rte", "--data", str(data), "--seeds", "1"]
    main(["finetune", *words, "--steps", "1", "--batch", "4", "--cpu", "--out", str(place / "run")])


def _tuned(place: Path, shelf: LazyFixture) -> None:
    shutil.copytree(shelf.once("fine-tuned", _fine_tuned) / "run/seed-0/model", place)


def _opened_model(place: Path) -> object:
    fitted = load(place, device="cpu")
    return [weights_sha256(fitted.student), fitted.task.name, fitted.form]


def _released(place: Path) -> None:
    place.mkdir(parents=True)
    weights = {"a.weight": torch.ones(3, 2), "a.bias": torch.zeros(3)}
    torch.save(weights, place / "pytorch_model.bin")
    from safetensors.torch import save_file

    save_file(weights, place / "model.safetensors")


def _describe(place: Path) -> None:
    place.mkdir(parents=True)
    ModelDescription("glue/rte", Classification(("no", "yes"))).write(place)


# -- runs --------------------------------------------------------------------------------------------------------------
def _runs(shelf: LazyFixture) -> dict[str, Reader]:
    made = {
        "predictions": of_file("p.jsonl", rows_of(*ANSWERS), read_predictions),
        "result": of_file(
            "result.json", '{"task": "a", "seed": 0}', lambda path: read_result(path.parent)
        ),
        "finished runs": Reader(_finished, partial(verdict_report.collect_runs, "a")),
        "checkpoint": Reader(_checkpoint, _resumed),
    }
    return {name: replace(reader, checked=False) for name, reader in made.items()}


def _checkpoint(place: Path) -> None:
    module, optimizer = _trained()
    states = Checkpoints(place)
    for step in (1, 2):
        module(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        states.save(module, optimizer, Counters(step=step))


def _trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = torch.nn.Linear(2, 2)
    return module, torch.optim.AdamW(module.parameters())


def _resumed(place: Path) -> object:
    module, optimizer = _trained()
    counters = Checkpoints(place).restore(module, optimizer)
    return [counters, weights_sha256(module), optimizer.state_dict()]


def _finished(place: Path) -> None:
    for seed in range(2):
        about = {"task": "glue/rte", "seed": seed, "metrics": ["accuracy"], "splits": ["dev"]}
        about |= {"scores": {"dev": {"accuracy": 0.5}}, "best": {"dev": {"accuracy": 0.5}}}
        about |= {"truncated_tokens": 0, "trained_on": ["dev"]}
        put(place / f"seed-{seed}/result.json", json.dumps(about))
        put(place / f"seed-{seed}/predictions_dev.jsonl", rows_of(*ANSWERS))


ANSWERS = [
    {"id": f"rte-dev-{n}", "official": f"{n}", "prediction": n % 2, "label": 1}
    | {"outputs": [0.5, n % 2]}
    for n in range(4)
]


# -- probes ------------------------------------------------------------------------------------------------------------
def _probes(shelf: LazyFixture) -> dict[str, Reader]:
    nouns = {"a dog": [3, 1, 0], "a cat": [0, 2, 2]}
    memory = [
        {"descriptor": "the color of", "item": f"a {n}", "label": n} for n in ("red", "black")
    ]
    masses = [{"obj1": "anvil", "obj2": n, "label": 1} for n in ("pin", "pen")]
    positions = [
        {"text": "A cook opens it.", "obj_a": "cook", "obj_b": n, "label": 2}
        for n in ("tin", "jar")
    ]
    norms = "feature type\tconcept\tfeature\tpf\nvisual perceptual\towl\tis red\t9\n"
    own = table(("good", "bad"), ("a red dog", "dog red a"), ("a cat", "cat a"))
    parses = "# text = They see dogs.\n1\tThey\tthey\tPRON\tPRP\t_\t2\tnsubj\t_\t_\n"
    parses += "2\tsee\tsee\tVERB\tVB\t_\t0\troot\t_\t_\n3\tdogs\tdog\tNOUN\tNNS\t_\t2\tobj\t_\t_\n"
    parses += "\n# image = 8\n1\tvin\t_\t_\t_\t_\t0\troot\t_\t_\n\n"
    looks = {name: [*counts, *[0] * 9] for name, counts in nouns.items()}
    files = {
        "VEC": ("mass.json", rows_of(*masses), open_facts),
        "spatial commonsense": ("data.json", rows_of(*positions), open_facts),
        "ImageNetVC": ("color.csv", "question,answer\nWhat hue?,red\n", open_facts),
        "feature norms": ("norms.dat", norms, open_facts),
        "word similarity": ("pairs.txt", "a\tb\t5.5\na\tc\t2\nb\tc\t1\n", read_word_pairs),
        "CoNLL-U": ("a.conllu", parses, read_parses),
    }
    coda = copied(shelf.shop, "coda")
    made = {name: of_file(*one, checked=False) for name, one in files.items()}
    return made | {
        "CoDa": of_file("annotations.jsonl", coda, open_facts),
        "Memory Colors": of_file("memory_colors.jsonl", rows_of(*memory), open_facts),
        "ViComTe": of_file("distributions/color-dist.jsonl", rows_of(looks), open_facts),
        "BLiMP": Reader(copied(shelf.shop, "blimp"), read_minimal_pairs),
        "EWoK": Reader(copied(shelf.shop, "ewok"), read_minimal_pairs),
        "own pairs": of_file("p.csv", own, read_minimal_pairs),
        "Winoground": Reader(
            copied(shelf.shop, "winoground"), read_winoground, checked=False, kept=PIXELS
        ),
        "WordNet": Reader(vcr_files.write_wordnet, _looked_up, checked=False),
        "probes": Reader(partial(_probe_files, shelf=shelf), _asked, checked=False),
    }


def _probe_files(place: Path, shelf: LazyFixture) -> None:
    """The first lines of a world's, so that every split still has some."""
    for path in sorted((shelf.world() / "probes").iterdir()):
        told = path.read_text(encoding="utf-8").splitlines(keepends=True)
        put(place / path.name, "".join(told if path.stem == "attribute" else told[:12]))


def _asked(place: Path) -> object:
    above = place.with_name(f"{place.name}-world")
    above.mkdir(exist_ok=True)
    link = above / "probes"
    if not link.exists():
        link.symlink_to(place)
    tasks = questions_in(above)
    found: list[object] = [read_nouns(above)] if (place / "attribute.tsv").exists() else []
    return found + [task.read(above, split) for task in tasks for split in ("train", "dev")]


WORDS = ("dog", "sits", "red", "men")


def _looked_up(place: Path) -> object:
    net = WordNet(place)
    return [
        net.version,
        [str(net.most_frequent(word)) for word in WORDS],
        [str(net.first_synset(word, pos)) for word in WORDS for pos in "nv"],
    ]


# -- pictures ----------------------------------------------------------------------------------------------------------
def _pictures(shelf: LazyFixture) -> dict[str, Reader]:
    kinds = {"jpg": "RGB", "png": "RGB", "gif": "P", "bmp": "RGB", "webp": "RGB"}
    made = {f"picture {ending}": (ending, mode) for ending, mode in kinds.items()}
    made["picture of 16 bits"] = ("png", "I;16")
    return {
        name: of_file(
            f"a.{ending}",
            partial(_picture, ending=ending, mode=mode),
            partial(decode_image, size=8),
        )
        for name, (ending, mode) in made.items()
    }


def _picture(place: Path, ending: str, mode: str) -> None:
    place.mkdir(parents=True)
    shades = np.arange(108, dtype=np.uint16).reshape(12, 9) * 600
    image = Image.fromarray(shades)
    if mode != "I;16":
        image = Image.fromarray((shades >> 8).astype(np.uint8)).convert(mode)
    exif = image.getexif()
    exif[0x0112] = 6  # turned
    can_turn = ending in ("jpg", "png", "webp")
    image.save(place / f"a.{ending}", **({"exif": exif} if can_turn else {}))


def told(value: object) -> object:
    """A reading as something that can be compared and pickled: arrays as bytes, objects as what they hold."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, torch.Tensor):
        return told(value.detach().numpy())
    if isinstance(value, str | bytes | int | type(None) | Path):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return tuple((told(key), told(one)) for key, one in value.items())
    if isinstance(value, list | tuple):
        return tuple(told(one) for one in value)
    if isinstance(value, set | frozenset):
        return tuple(sorted(map(repr, value)))
    if isinstance(value, Iterable) and not hasattr(value, "__dict__"):
        return tuple(told(one) for one in value)
    if hasattr(value, "__dict__"):
        return (type(value).__name__, told(vars(value)))
    return repr(value)
