"""Every reader of a file that a user gives: how to write a small valid one, and how the library reads it.

What `read` returns is all that a command would learn from the files: two readings are compared by it.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tiny import homes, standins, toys, vcr_files, wordnets
from tiny.corpora import corpus_lines
from tiny.homes import put, table

from groundling.cli import main
from groundling.commands.adapt.evaluation import read_pairs
from groundling.core.errors import InputError
from groundling.core.output_types import Classification
from groundling.core.registry import resolve
from groundling.data.captions import keep_listed, read_captions
from groundling.data.image_samples import decode_image
from groundling.data.regions.annotations import read_detections, read_vcr_objects
from groundling.data.regions.imports import _read_coco, _read_stills, import_regions
from groundling.data.regions.store import to_stored
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
from groundling.prediction.model_description import FILE as DESCRIPTION
from groundling.prediction.model_description import ModelDescription, read_description
from groundling.prediction.predictions import read_predictions
from groundling.runs.checkpoints import Checkpoints, Counters
from groundling.runs.folder import open_run, read_json, read_result
from groundling.runs.run import RunFolder
from groundling.settings.input_settings import ClipAdapterSettings, TableTaskSettings
from groundling.stats import finished_runs
from groundling.stats import verdict_report as judging
from groundling.stats.linear_probes import read_nouns
from groundling.studies.attention.figures import figures_of
from groundling.studies.attention.models.clip import load_clip_towers
from groundling.studies.bench.engine import read_job
from groundling.studies.clip_td import combined_runs as ensemble
from groundling.studies.clip_td import combined_runs as vcr
from groundling.studies.clip_td import shift as implicit
from groundling.studies.clip_td.explicit_mitigation import WordNet
from groundling.studies.clip_td.shortcut_mitigation import read_losses
from groundling.studies.clip_td.vcr_files import read_lines
from groundling.studies.knowledge.minimal_pairs import read_minimal_pairs
from groundling.studies.knowledge.visual_facts import open_facts
from groundling.studies.knowledge.winoground import read_winoground
from groundling.studies.knowledge.word_similarity import read_word_pairs
from groundling.studies.worlds.tasks import questions_in
from groundling.studies.xdbert.grounded import (
    GroundedTokens,
    count_tokens,
    count_words,
    vocabulary_hash,
)
from groundling.tasks import Task
from groundling.tasks.flickr_entities import read_captions as entity_captions
from groundling.tasks.splits import partition_manifest, read_manifest, write_manifest
from groundling.tasks.table import table_task
from groundling.tasks.vcr import ANSWER
from groundling.training import held_out_loss as watched
from groundling.vision.boxes import read_annotated_boxes
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.single_stream import read_weights
from groundling.vision_language.uniter import uniter
from groundling.vision_language.visualbert import visualbert
from groundling.vision_language.vlbert import vlbert

ARM_JOB = {
    "key": "k",
    "name": "objects 0: l1, method, seed 0",
    "run": {
        "method": "l1",
        "arm": "method",
        "texts": "t",
        "family": "objects",
        "world": 0,
        "seed": 0,
    },
    "about": {"data": "text", "steps": 0, "texts": "t", "weight": "w", "grid": [0.1, 1.0]},
    "control": "objects 0: text control t, seed 0",
    "weight": 0.1,
    "cost": {
        **{"steps": 2, "samples": 4, "epochs": [0.5], "seconds": 1.0, "memory_mb": 9},
        "extra_parameters": 0,
    },
    "model": {"path": "m", "sha256": "h"},
}
"""The result file of an arm of an experiment."""


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
    "vqa": ("vqa", ("train", "val")),
    "nlvr2": ("nlvr2", ("train", "dev")),
    "snli-ve": ("snli_ve", ("train", "dev")),
    "refcoco+": ("refcoco+", ("train", "val")),
    "flickr30k": ("flickr30k", ("train", "val")),
}
"""By task: its folder of a rendered world's, and splits."""
WORLD_FLAGS = [
    "--limit-train",
    "24",
    "--limit-dev",
    "24",
    "--world.scenes",
    "0",
    "--world.dev-scenes",
    "0",
]
PIXELS = (".png", ".jpg")


class LazyFixture:
    """What takes more than a moment to make, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tasks(self) -> Path:
        return self.once(
            "tasks", lambda out: main(["data", "make-tasks", *WORLD_FLAGS, "--out", str(out)])
        )

    def world(self) -> Path:
        flags = ["--nouns", "24", "--dev-nouns", "6", "--test-nouns", "8", "--scenes", "8"]
        flags += ["--dev-scenes", "4", "--sentences", "60", "--dev-sentences", "8"]
        return self.once(
            "world", lambda out: main(["data", "make-world", *flags, "--out", str(out)])
        )

    def shop(self) -> Path:
        return self.once("shop", _shop)

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        place = self.folder / name
        if not place.exists():
            make(place)
        return place


def _shop(place: Path) -> None:
    """The stand-ins of documents that more than one reader begins with."""
    for make in (
        standins.texts,
        standins.looks,
        standins.glue,
        standins.own_images,
        standins.pairs,
        standins.flickr8k,
        standins.coco,
        standins.others_regions,
    ):
        make(place)


def readers(shelf: LazyFixture) -> dict[str, Reader]:
    """All readers by name."""
    return {
        **_texts(shelf),
        **_captions(shelf),
        **_tasks(shelf),
        **_regions(shelf),
        **_models(shelf),
        **_runs(shelf),
        **_probes(shelf),
        **_pictures(shelf),
    }


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
    made: dict[str, Reader] = {
        "text": Reader(
            written("a.txt", "\n".join(said) + "\n"), lambda place: corpus_lines(place / "a.txt")
        ),
        "similarity pairs": Reader(
            written(
                "a.tsv",
                "".join(f"{a}\t{b}\t{n}\n" for n, (a, b) in enumerate(pairwise(said))),
            ),
            lambda place: read_pairs(place / "a.tsv"),
            checked=False,
        ),
    }
    for ending, missing in ((".gz", ""), (".zst", "pyarrow"), (".parquet", "pyarrow")):
        if not missing or find_spec(missing):
            made[f"text {ending}"] = Reader(
                partial(_packed, ending=ending, said=said),
                partial(_lines, name=f"a.txt{ending}"),
                checked=False,
            )
    columns = TableTaskSettings(text="question", label="answer", image="photo")
    for ending, text in own.items():
        made[f"own {ending}"] = Reader(
            written(f"a.{ending}", text),
            partial(_own, name=f"a.{ending}", columns=columns),
        )
        made[f"rows to answer {ending}"] = Reader(
            written(f"a.{ending}", text),
            partial(_asked_rows, name=f"a.{ending}"),
            checked=False,
        )
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


def _lines(place: Path, name: str) -> object:
    return corpus_lines(place / name)


def _asked_rows(place: Path, name: str) -> object:
    """What `predict` reads of each row; it hands the other columns on."""
    header, rows = read_all_columns(place / name, ("question", "photo"))
    try:
        return [header, [row_texts(row, ("question", "photo")) for _, row in rows]]
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def _own(place: Path, name: str, columns: TableTaskSettings) -> object:
    task = table_task(place / name, columns)
    return [task.form, *(task.read(place / name, split) for split in ("train", "dev"))]


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
    files = {
        "COCO": ("c.json", _coco),
        "Karpathy": ("dataset_coco.json", copied(shelf.shop, "dataset_coco.json")),
        "Flickr8k": ("Flickr8k.token.txt", copied(shelf.shop, "Flickr8k.token.txt")),
        "Conceptual": ("cc_train.tsv", copied(shelf.shop, "cc_train.tsv")),
        "csv": ("c.csv", written("c.csv", table(("caption", "image"), *said))),
        "tsv": (
            "c.tsv",
            written("c.tsv", "caption\timage\n" + "".join(f"{a}\t{b}\n" for a, b in said)),
        ),
        "jsonl": ("c.jsonl", written("c.jsonl", rows_of(*objects))),
        "json": ("c.json", written("c.json", json.dumps(objects))),
        "imagefolder jsonl": ("metadata.jsonl", written("metadata.jsonl", rows_of(*listed))),
    }
    made = {
        f"captions {name}": Reader(
            make,
            partial(
                _caption_file, name=file, splits=("train", "restval") if name == "Karpathy" else ()
            ),
        )
        for name, (file, make) in files.items()
    }
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
    made["captions as text"] = Reader(_coco, lambda place: corpus_lines(place / "c.json"))
    return made


def _coco(place: Path) -> None:
    images = [(1, "1.jpg"), (2, "2.jpg")]
    homes.coco(place / "c.json", images, [(1, "a dog"), (2, "a cat"), (1, "it")])


def _caption_file(place: Path, name: str, splits: tuple[str, ...]) -> object:
    return read_captions(place / name, splits).images


def _sidecars(place: Path) -> None:
    for number in range(3):
        homes.picture(place / f"{number}.jpg")
        if number:
            put(place / f"{number}.txt", f"a dog number {number}\n")
    put(place / "0.json", json.dumps({"caption": "a cat"}))


# -- tasks -------------------------------------------------------------------------------------------------------------


def _tasks(shelf: LazyFixture) -> dict[str, Reader]:
    made = {}
    for name, (folder, splits) in TASK_SPLITS.items():
        made[name] = Reader(
            copied(shelf.tasks, folder), partial(_task, name=name, splits=splits), kept=PIXELS
        )
    made["vcr"] = Reader(
        lambda place: vcr_files.folder(place, 4, 4),
        partial(_task, name="vcr", splits=("train", "val")),
    )
    glue = {"rte": "RTE", "cola": "CoLA", "sts-b": "STS-B", "qqp": "QQP", "mnli": "MNLI"}
    glue |= {"mrpc": "MRPC", "sst-2": "SST-2", "qnli": "QNLI", "wnli": "WNLI"}
    for name, folder in glue.items():
        dev = "dev_matched" if name == "mnli" else "dev"
        made[f"glue/{name}"] = Reader(
            partial(_glue, folder=folder, splits=("train", dev)),
            partial(_task, name=f"glue/{name}", splits=("train", dev)),
        )
    swag = "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
    swag += 'A dog ran.,He,"barks, twice.",b,c,d,2\nA cat sat.,It,a,b,c,d,0\n'
    made["swag"] = Reader(
        lambda place: [put(place / f"{split}.csv", swag) for split in ("train", "val")],
        partial(_task, name="swag", splits=("train", "val")),
    )
    full = "sent1,sent2,gold-ending,distractor-0,distractor-1,distractor-2,distractor-3\n"
    full += 'A dog ran.,He,"barks, twice.",b,c,d,\nA cat sat.,It,a,b,c,d,e\n'
    made["swag/full"] = Reader(
        lambda place: [put(place / f"{split}_full.csv", full) for split in ("train", "val")],
        partial(_task, name="swag/full", splits=("train", "val")),
    )
    made["VQA lists of LXMERT"] = Reader(
        _lxmert_lists, partial(_task, name="vqa/minival", splits=("minival", "nominival"))
    )
    for name, by, held in (("refcocog", "umd", "test"), ("refcocog/google", "google", "val")):
        made[name] = Reader(
            partial(_refs, shelf=shelf, by=by, held=held),
            partial(_task, name=name, splits=("train", held)),
            kept=PIXELS,
        )
    clear = table(
        ("id", "excerpt", "target"),
        *[(f"p{n}", text, n / 10) for n, text in enumerate(toys.sentences()[:20])],
    )
    made["readability"] = Reader(
        written("train.csv", clear), partial(_task, name="readability", splits=("train", "dev"))
    )
    made["entities' captions"] = Reader(
        copied(shelf.tasks, "flickr30k"),
        lambda place: list(entity_captions(place, "train")),
        kept=PIXELS,
    )
    made["instances"] = Reader(
        copied(shelf.tasks, "refcoco+/instances.json"),
        lambda place: read_annotated_boxes(place / "instances.json"),
    )
    made["detections"] = Reader(
        _detections,
        lambda place: read_detections(place / "dets.json", read_json(place / "dets.json")),
        checked=False,
    )
    made["VCR's metadata"] = Reader(
        _metadata, lambda place: read_vcr_objects(place / "1.json"), checked=False
    )
    made["partition"] = Reader(
        partial(_partition, shelf=shelf),
        lambda place: _chosen(read_manifest(place / "part.json")),
        checked=False,
    )
    made["lines to shift"] = Reader(
        lambda place: vcr_files.folder(place, 1, 4),
        lambda place: [line.item for line in read_lines(place, "val")],
        checked=False,
    )
    made["VCR's losses"] = Reader(
        _losses, lambda place: read_losses(place / "losses.jsonl"), checked=False
    )
    return made


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


def _refs(place: Path, shelf: LazyFixture, by: str, held: str) -> None:
    """The same expressions under another partition's name, in the form of pickles that are text."""
    copied(shelf.tasks, "refcoco+")(place)
    path = place / "refs(unc).p"
    refs = pickle.loads(path.read_bytes())
    path.unlink()
    for ref in refs:
        ref["split"] = "train" if ref["split"] == "train" else held
    put(place / f"refs({by}).p", pickle.dumps(refs, 0))


def _glue(place: Path, folder: str, splits: tuple[str, ...]) -> None:
    said = toys.sentences()
    rows = {
        "RTE": "index\tsentence1\tsentence2\tlabel\n"
        + "".join(f"{n}\t{said[n]}\t{said[-n]}\t{'not_' * (n % 2)}entailment\n" for n in range(4)),
        "CoLA": "".join(f"x\t{n % 2}\t\t{said[n]}\n" for n in range(4)),
        "STS-B": "sentence1\tsentence2\tscore\n"
        + "".join(f"{said[n]}\t{said[-n]}\t{n}\n" for n in range(4)),
        "QQP": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        + "".join(f"{n}\t1\t2\t{said[n]}\t{said[-n]}\t{n % 2}\n" for n in range(4)),
        "MRPC": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        + "".join(f"{n % 2}\t1\t2\t{said[n]}\t{said[-n]}\n" for n in range(4)),
        "SST-2": "sentence\tlabel\n" + "".join(f"{said[n]}\t{n % 2}\n" for n in range(4)),
        "QNLI": "index\tquestion\tsentence\tlabel\n"
        + "".join(f"{n}\t{said[n]}\t{said[-n]}\t{'not_' * (n % 2)}entailment\n" for n in range(4)),
        "WNLI": "index\tsentence1\tsentence2\tlabel\n"
        + "".join(f"{n}\t{said[n]}\t{said[-n]}\t{n % 2}\n" for n in range(4)),
        "MNLI": "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
        + "".join(f"{n}\t{said[n]}\t{said[-n]}\tneutral\tneutral\n" for n in range(4)),
    }
    for split in splits:
        put(place / folder / f"{split}.tsv", rows[folder])


def _detections(place: Path) -> None:
    found = [
        {"image_id": n, "box": [1, 1, 5, 6], "score": 0.5, "category_id": 1, "category_name": "dog"}
        for n in range(4)
    ]
    put(place / "dets.json", json.dumps(found))


def _metadata(place: Path) -> None:
    about = {
        "boxes": [[1, 1, 9, 9, 0.9], [2, 2, 9, 9, 0.8]],
        "segms": [[[[1, 1], [9, 1], [9, 9]]], []],
    }
    put(
        place / "1.json",
        json.dumps(about | {"names": ["person", "dog"], "width": 16, "height": 16}),
    )


def _partition(place: Path, shelf: LazyFixture) -> None:
    source = shelf.once("vcr files", vcr_files.folder)
    place.mkdir(parents=True)
    write_manifest(
        place / "part.json", partition_manifest(resolve("tasks", Task, "vcr"), source, 1, 0)
    )


def _chosen(content: dict[str, Any]) -> object:
    """What a command takes of a partition."""
    return [content["ids"], content.get("task"), content.get("files")]


def _losses(place: Path) -> None:
    rows = [{"annot_id": f"val-{n}", "answer_losses": [[0.5, 1.0]] * 4} for n in range(3)]
    put(place / "losses.jsonl", rows_of(*rows))


# -- regions -----------------------------------------------------------------------------------------------------------


def _regions(shelf: LazyFixture) -> dict[str, Reader]:
    made = {
        "regions npz": Reader(copied(shelf.shop, "coco_train2014"), _imported),
        "regions json": Reader(_vlbert, _imported),
        "regions tsv": Reader(
            copied(shelf.shop, "trainval_resnet101_faster_rcnn_genome_36.tsv"),
            lambda place: _imported(place / "trainval_resnet101_faster_rcnn_genome_36.tsv"),
        ),
        "regions LXMERT": Reader(
            lambda place: put(place / "a_obj36.tsv", standins._lxmert("a") + standins._lxmert("b")),
            lambda place: _imported(place / "a_obj36.tsv"),
        ),
        "regions lmdb": Reader(partial(_lmdb, pack=_as_npz), _imported),
        "regions lmdb of msgpack": Reader(partial(_lmdb, pack=_as_msgpack), _imported),
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
    return made


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
    boxes = np.array([[0, 0, 8, 8], [4, 4, 16, 16]], "<f4")
    for number in range(3):
        features = np.random.default_rng(number).normal(size=(2, 8)).astype("<f4")
        entry = {"image_w": 16, "image_h": 16, "num_boxes": 2}
        entry |= {"boxes": standins._base64(boxes), "features": standins._base64(features)}
        put(place / f"{number}.json", json.dumps(entry))


def _lmdb(place: Path, pack: Callable[[dict[str, np.ndarray]], bytes]) -> None:
    import lmdb

    place.mkdir(parents=True)
    boxes = np.array([[0, 0, 0.5, 0.5, 0.5, 0.5], [0.25, 0.25, 1, 1, 0.75, 0.75]], np.float32)
    with lmdb.open(str(place), map_size=1 << 22) as base, base.begin(write=True) as view:
        for name in ("a", "b", "c"):
            features = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float16)
            arrays = {"features": features, "norm_bb": boxes, "conf": np.float32([0.9, 0.8])}
            view.put(f"{name}.npz".encode(), pack(arrays))
    (place / "lock.mdb").unlink()


def _as_npz(arrays: dict[str, np.ndarray]) -> bytes:
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


def _as_msgpack(arrays: dict[str, np.ndarray]) -> bytes:
    """As msgpack-numpy has arrays."""
    entry = {
        name: {"nd": True, "type": one.dtype.str, "shape": one.shape, "data": one.tobytes()}
        for name, one in arrays.items()
    }
    return import_module("msgpack").packb(entry)


# -- models ------------------------------------------------------------------------------------------------------------


def _models(shelf: LazyFixture) -> dict[str, Reader]:
    made = {
        "text encoder": (homes.student, load_encoder),
        "sentence encoder": (homes.sentence_encoder, load_encoder),
        "newer sentence encoder": (partial(homes.sentence_encoder, layout=6), load_encoder),
        "CLIP": (homes.seeing_clip, _both_towers),
        "CLIP with looks": (homes.seeing_clip, load_clip_towers),
        "ViLT": (homes.vilt, load_encoder),
        "VisualBERT": (partial(_single_stream, make=visualbert), load_encoder),
        "VL-BERT": (partial(_single_stream, make=vlbert), load_encoder),
        "UNITER": (partial(_single_stream, make=uniter), load_encoder),
        "LXMERT": (_lxmert, load_encoder),
        "RoBERTa": (
            lambda place: homes.home(place, toys.roberta(600), toys.roberta_words()),
            load_encoder,
        ),
        "ModernBERT": (
            lambda place: homes.home(place, toys.modernbert(len(homes.words())), homes.words()),
            load_encoder,
        ),
        "XDBERT": (_crossmodal, load_encoder),
        "CLIP-BERT": (_clip_bert, load_encoder),
        "adapter": (partial(_adapter, shelf=shelf), load_encoder),
        "encoder with a head": (_with_head, _head),
    }
    found = {
        name: Reader(make, partial(_weighed, load=load), checked=False)
        for name, (make, load) in made.items()
    }
    found["tokenizer"] = Reader(
        lambda place: homes.home(place, None, homes.words()),
        lambda place: _cut(load_tokenizer(place)),
        checked=False,
    )
    found["image processor"] = Reader(
        _processor,
        lambda place: load_processor(place)(Image.linear_gradient("L").convert("RGB"))[
            "pixel_values"
        ],
        checked=False,
    )
    found["released weights"] = Reader(
        _released,
        lambda place: {
            path.name: {name: value for name, value in read_weights(path).items()}
            for path in sorted(place.iterdir())
        },
        checked=False,
    )
    found["what a model answers"] = Reader(_describe, read_description, checked=False)
    found["fine-tuned model"] = Reader(partial(_tuned, shelf=shelf), _opened_model, checked=False)
    found["fine-tuned model of another's task"] = Reader(
        partial(_tuned, shelf=shelf, told=False), _opened_model, checked=False
    )
    return found


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


def _single_stream(place: Path, make: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    make(toys.bert(len(homes.words())), homes.words(), 8).export(place)


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


def _tuned(place: Path, shelf: LazyFixture, told: bool = True) -> None:
    """A model with its head; if its answers are not `told`, the task's module alone knows their form."""
    shutil.copytree(shelf.once("fine-tuned", _fine_tuned) / "run/seed-0/model", place)
    if not told:
        path = place / DESCRIPTION
        path.write_text(json.dumps(json.loads(path.read_text()) | {"form": None}))


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
    heads = {
        "measure": "accuracy",
        "heads": [
            {"attention": "self", "layer": n, "head": n, "accuracy": 10.0 * n, "active": True}
            for n in range(3)
        ],
        "confidence": {"value": 7.5},
        "chance": {"value": 3.0},
    }
    row = {
        kind: {"mean": 0.2, "low": 0.1, "high": 0.3} for kind in ("visual", "textual", "special")
    }
    model = {"model": "a", "layers": [0], "by_layer": [{"layer": 0, **row}], "uniform": row}
    model["by_head"] = {kind: [[0.2, 0.1]] for kind in row}
    return {
        "checkpoint": Reader(_checkpoint, _resumed, checked=False),
        "result": Reader(written("result.json", json.dumps(heads)), read_result, checked=False),
        "arm": Reader(
            written("arm.json", json.dumps(ARM_JOB)),
            lambda place: read_job(place / "arm.json"),
            checked=False,
        ),
        "finished runs": Reader(
            _finished, lambda place: finished_runs.collect_runs("a", place), checked=False
        ),
        "predictions": Reader(
            lambda place: _answers(place / "p.jsonl"),
            lambda place: read_predictions(place / "p.jsonl"),
            checked=False,
        ),
        "log": Reader(
            written("log.jsonl", rows_of(*[{"step": n, "loss": 1 / n} for n in (2, 4, 6)])),
            lambda place: watched.means_by_epoch(place / "log.jsonl", ["loss"], 3),
            checked=False,
        ),
        "figures of heads": Reader(
            written("result.json", json.dumps(heads)), _drawn, checked=False
        ),
        "figures of syntax": Reader(
            written(
                "result.json",
                json.dumps({"relations": [{"relation": "det", "phrase_is": "head", **heads}]}),
            ),
            _drawn,
            checked=False,
        ),
        "figures of modality": Reader(
            written("result.json", json.dumps({"models": [model]})), _drawn, checked=False
        ),
        "run folder": Reader(_run_folder, _opened, checked=False),
        "a run's settings": Reader(_run_folder, _about_run, checked=False),
        "finished seeds": Reader(_finished, _resumed_seeds, checked=False),
        "answers and rationales": Reader(
            partial(_vcr_run, shelf=shelf), partial(_vcr_read, shelf=shelf), checked=False
        ),
        "counts": Reader(_counts, _counted, checked=False),
    }


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
        put(place / f"seed-{seed}/log.jsonl", rows_of({"step": 1, "loss": 0.5}))
        _answers(place / f"seed-{seed}/predictions_dev.jsonl")


def _run_folder(place: Path) -> None:
    open_run(place, "adapt", {"steps": 3, "train": {"lr": 0.5}}, {"text": "somebody/text"})
    put(place / "log.jsonl", "")
    put(place / "seed-0/result.json", json.dumps({"task": ANSWER.name, "seed": 0}))


def _opened(place: Path) -> object:
    """Whether the same command goes on there."""
    settings = {"steps": 3, "train": {"lr": 0.5}}
    return open_run(place, "adapt", settings, {"text": "somebody/text"}).name == place.name


def _about_run(place: Path) -> object:
    """What other commands want to know of a run: the page of a verdict, and `data shift`."""
    seed = implicit.text_only_run(place / "seed-0" / "predictions_val.jsonl")
    return [judging._source(place / "seed-0"), seed]


def _vcr_run(place: Path, shelf: LazyFixture) -> None:
    """A finished seed of a run on VCR's answers."""
    data = shelf.once("vcr files", vcr_files.folder)
    rows = [
        {"id": one.id, "official": one.official_id, "prediction": 1, "outputs": [0.0, 1.5, 1, -2]}
        for one in ANSWER.read(data, "val")
    ]
    put(place / "seed-0/result.json", json.dumps({"task": ANSWER.name, "seed": 0}))
    put(place / "seed-0/predictions_val.jsonl", rows_of(*rows))


def _vcr_read(place: Path, shelf: LazyFixture) -> object:
    task = ANSWER
    files = vcr._files(str(place), task, "val")
    if not files:
        raise InputError(f"{place}: no finished seed")  # as the command, of both runs
    examples = task.read(shelf.once("vcr files", vcr_files.folder), "val")
    return [
        [number, vcr._file_trained_on(file, "val"), vcr._predictions(file, examples)]
        for number, file in files.items()
    ]


def _resumed_seeds(place: Path) -> object:
    """What a fine-tuning takes of the seeds that it did before, and an ensemble and a verdict of those of any run."""
    task = resolve("tasks", Task, "glue/rte")
    places = sorted(place.glob("seed-*"))
    runs = [RunFolder(one).result for one in places]
    collected = finished_runs.collect_runs("a", place)
    return [runs, collected, ensemble.members_of(str(place), task.name)]


def _answers(path: Path) -> None:
    rows = [
        {
            "id": f"rte-dev-{n}",
            "official": str(n),
            "prediction": n % 2,
            "label": 1,
            "outputs": [0.5, n % 2],
        }
        for n in range(4)
    ]
    put(path, rows_of(*rows))


def _drawn(place: Path) -> object:
    """As the command, which names the file."""
    content = read_json(place / "result.json")
    try:
        return sorted(figures_of(content))
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def _counts(place: Path) -> None:
    said = toys.sentences()[:8]
    about = {"tokenizer": {"source": "x", "vocabulary_sha256": vocabulary_hash(homes.words())}}
    content = {"provenance": about, "tokens": count_tokens(said, homes.words())}
    put(place / "counts.json", json.dumps(content | {"words": count_words(said)}))


def _counted(place: Path) -> object:
    read = GroundedTokens.read(place / "counts.json", homes.words(), 1)
    return [dict(read.tokens), dict(read.words), read.ratio(toys.sentences()[0], None)]


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
    parses += "2\tsee\tsee\tVERB\tVB\t_\t0\troot\t_\t_\n3\tdogs\tdog\tNOUN\tNNS\t_\t2\tobj\t_\tSpaceAfter=No\n"
    parses += (
        "4\t.\t.\tPUNCT\t.\t_\t2\tpunct\t_\t_\n\n# image = 8\n1\tvin\t_\t_\t_\t_\t0\troot\t_\t_\n\n"
    )
    return {
        "CoDa": Reader(
            copied(shelf.shop, "coda"), lambda place: open_facts(place / "annotations.jsonl")
        ),
        "Memory Colors": Reader(
            written("memory_colors.jsonl", rows_of(*memory)),
            lambda place: open_facts(place / "memory_colors.jsonl"),
        ),
        "ViComTe": Reader(
            written(
                "distributions/color-dist.jsonl",
                rows_of({name: [*counts, *[0] * 9] for name, counts in nouns.items()}),
            ),
            lambda place: open_facts(place / "distributions/color-dist.jsonl"),
        ),
        "VEC": Reader(
            written("mass.json", rows_of(*masses)),
            lambda place: open_facts(place / "mass.json"),
            checked=False,
        ),
        "spatial commonsense": Reader(
            written("data.json", rows_of(*positions)),
            lambda place: open_facts(place / "data.json"),
            checked=False,
        ),
        "ImageNetVC": Reader(
            written("color.csv", table(("question", "answer"), ("What hue?", "red"))),
            lambda place: open_facts(place / "color.csv"),
            checked=False,
        ),
        "feature norms": Reader(
            written("norms.dat", norms),
            lambda place: open_facts(place / "norms.dat"),
            checked=False,
        ),
        "word similarity": Reader(
            written("pairs.txt", "dog\tcat\t5.5\ndog\tball\t2\ncat\tball\t1\n"),
            lambda place: read_word_pairs(place / "pairs.txt"),
            checked=False,
        ),
        "BLiMP": Reader(copied(shelf.shop, "blimp"), read_minimal_pairs),
        "EWoK": Reader(copied(shelf.shop, "ewok"), read_minimal_pairs),
        "own pairs": Reader(
            written("p.csv", own), lambda place: read_minimal_pairs(place / "p.csv")
        ),
        "Winoground": Reader(
            copied(shelf.shop, "winoground"), read_winoground, checked=False, kept=PIXELS
        ),
        "CoNLL-U": Reader(
            written("a.conllu", parses),
            lambda place: read_parses(place / "a.conllu"),
            checked=False,
        ),
        "WordNet": Reader(lambda place: wordnets.write(place), _looked_up, checked=False),
        "probes": Reader(
            partial(_probe_files, shelf=shelf),
            lambda place: _asked(place),
            checked=False,
        ),
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
        [net.most_frequent(word) for word in WORDS],
        [net.first_synset(word, pos) for word in WORDS for pos in "nv"],
    ]


# -- pictures ----------------------------------------------------------------------------------------------------------


def _pictures(shelf: LazyFixture) -> dict[str, Reader]:
    def make(place: Path, ending: str, mode: str) -> None:
        place.mkdir(parents=True)
        pixels = np.random.default_rng(0).integers(0, 256, (12, 9, 3), dtype=np.uint8)
        image = Image.fromarray(pixels)
        if mode == "I;16":
            image = Image.fromarray(np.arange(108, dtype=np.uint16).reshape(12, 9) * 600)
        elif mode != "RGB":
            image = image.convert(mode)
        exif = image.getexif()
        exif[0x0112] = 6  # turned
        options = {"exif": exif} if ending in ("jpg", "png", "webp") else {}
        image.save(place / f"a.{ending}", **options)

    kinds = {"jpg": "RGB", "png": "RGB", "gif": "P", "bmp": "RGB", "webp": "RGB"}
    made = {
        f"picture {ending}": Reader(
            partial(make, ending=ending, mode=mode),
            lambda place, name=f"a.{ending}": decode_image(place / name, 8),
        )
        for ending, mode in kinds.items()
    }
    made["picture of 16 bits"] = Reader(
        partial(make, ending="png", mode="I;16"), lambda place: decode_image(place / "a.png", 8)
    )
    return made


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
