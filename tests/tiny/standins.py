"""Small stand-ins under the names that the documents give to models and data, so that their commands run as they stand.

A folder in the working directory serves as a hub id.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
import transformers as hf

from groundling.cli import main
from groundling.models.text_encoder import new_encoder
from groundling.studies.knowledge.visual_facts import COLOURS
from groundling.teachers.vectors import write_vectors
from tiny import homes, toys, vcr_files
from tiny.homes import home, put, table
from tiny.lm_families import DECODERS
from tiny.regions import b64, rt_detr
from tiny.regions import store as region_store
from tiny.tasks import json_lines

WIDTH = 32
"""Numbers of a region's features, whoever makes them."""
SIDE = 16
"""Pixels of a stand-in's picture, and of what backbones read."""
store = partial(region_store, width=WIDTH, classes=4, size=(SIDE, SIDE))
"""Writes a region store of random features."""
PHOTOS = ("holiday/beach", "holiday/sea", "cat", "dog", "house", "tree")
ASKED = (*PHOTOS, *(f"more/{number}" for number in range(6)))
"""Photos of the questions, of which two or more are held out."""
COCO = tuple(f"COCO_train2014_{number:012d}" for number in range(1, 9))
SENTENCES = 16
"""Fewest that attention maps are compared on."""
WORLD = ["--nouns", "24", "--dev-nouns", "6", "--test-nouns", "8", "--scenes", "12"]
WORLD += ["--dev-scenes", "4", "--sentences", "300", "--dev-sentences", "8"]
"""Flags of `data make-world` that make it small."""
TASKS = ["--limit-train", "32", "--limit-dev", "40"]
TASKS += ["--world.scenes", "0", "--world.dev-scenes", "0"]
"""Flags of `data make-tasks` that make it small."""


def shelf(folder: Path) -> Path:
    """All stand-ins: `all` for every document, and what only one of them takes for granted, by its name."""
    common = folder / "all"
    models(common)
    texts(common)
    looks(common)
    glue(common)
    own_images(common)
    pairs(common)
    flickr8k(common)
    coco(common)
    others_regions(common)
    tasks(common)
    teachers(folder / "teachers.md", common)
    world = json.loads((common / "instances.json").read_text())["images"]
    papers = folder / "papers.md/runs"
    store(papers / "store", COCO)
    store(papers / "nlvr2_store", [image["file_name"].rpartition(".")[0] for image in world])
    results = folder / "results.md/runs"
    put(folder / "results.md/text.txt", "\n".join(toys.sentences()[:40]) + "\n")
    shutil.copy(common / "flickr8k/train.token.txt", folder / "results.md/captions.token.txt")
    rows = [(f"{number}_f.jpg", "a dog waits") for number in range(1, 6)]
    put(folder / "results.md/photos.csv", table(("image", "text"), *rows))
    store(results / "flickr8k", [str(path.stem) for path in common.glob("flickr8k/images/*")])
    shutil.copytree(common / "minilm", results / "minilm")
    for name in ("minilm", "mpnet"):
        shutil.copytree(common / "minilm", folder / "results.md/kit" / name)
    vectors = folder / "results.md/kit/effnet/images.npy"
    vectors.parent.mkdir()
    lines = (common / "flickr8k/train.token.txt").read_text().splitlines(keepends=True)
    for part in ("train", "test"):  # page 21 keeps the captions whose image is there
        there = "".join(line for line in lines if not line.startswith("0_f"))
        put(folder / f"results.md/{part}.token.txt", there)
    rated = [(f"a dog of {n} colours", f"{n} dogs", str(n)) for n in range(6)]
    put(folder / "results.md/stsb_dev_300.tsv", "".join("\t".join(row) + "\n" for row in rated))
    for name in ("annotations.jsonl", "objects.jsonl", "templates.yaml"):
        shutil.copy(common / "coda" / name, folder / f"results.md/coda_{name}")
    shown = [f"{number}_f.jpg" for number in range(8)]
    write_vectors(vectors, shown, list(np.random.default_rng(0).normal(size=(8, 8))))
    shutil.copytree(vectors.parent, folder / "results.md/vectors")
    quickstart(common, results / "quickstart")
    shutil.copytree(results / "quickstart", folder / "reproduce.md/runs/quickstart")
    rte_pairs(folder / "papers.md/rte")
    return folder


def teachers(folder: Path, common: Path) -> None:
    """A DINOv2, the sentence encoder under its hub id, a tar shard, and a data set of `datasets`."""
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2}
    encoder = hf.Dinov2Model(hf.Dinov2Config(**sizes, image_size=SIDE, patch_size=8))
    home(folder / "facebook/dinov2-small", encoder, None)
    square = {"height": SIDE, "width": SIDE}
    processor = hf.BitImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=square)
    processor.save_pretrained(folder / "facebook/dinov2-small")
    shutil.copytree(common / "minilm", folder / "sentence-transformers/all-MiniLM-L6-v2")
    (folder / "shards").mkdir()
    with tarfile.open(folder / "shards/00000.tar", "w") as shard:
        for number, image in enumerate(sorted((common / "coco/images").rglob("*.jpg"))):
            shard.add(image, f"{number:09d}.jpg")
            caption = put(folder / "caption.txt", f"a dog of {number} colours")
            shard.add(caption, f"{number:09d}.txt")
    rows = ({"text": text} for text in toys.sentences()[:8])
    homes.lines(folder / "wikitext/train.jsonl", *rows)


def put_down(shelf: Path, page: str, place: Path) -> None:
    """Copies the stand-ins of a document to a folder."""
    for part in ("all", page):
        if (shelf / part).is_dir():
            shutil.copytree(shelf / part, place, dirs_exist_ok=True)


def models(folder: Path) -> None:
    torch.manual_seed(0)
    homes.student(folder / "bert-base-uncased")
    homes.home(
        folder / "google/electra-base-discriminator",
        toys.electra(len(homes.words())),
        homes.words(),
    )
    homes.sentence_encoder(folder / "minilm")
    words = DECODERS["gpt2"].words()
    gpt = DECODERS["gpt2"].whole(len(words))
    homes.home(folder / "openai-community/gpt2", gpt, words)
    homes.home(folder / "student", gpt, words)
    homes.home(folder / "llama-1b", DECODERS["llama"].whole(len(words)), words)
    square = {"height": SIDE, "width": SIDE}
    seeing = homes.teacher(folder / "openai/clip-vit-base-patch32")
    hf.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=square).save_pretrained(seeing)
    shutil.copytree(seeing, folder / "openai/clip-vit-base-patch16")
    homes.vilt(folder / "dandelin/vilt-b32-mlm")
    shortest = hf.ConvNextImageProcessorPil(size={"shortest_edge": SIDE})
    stages = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, WIDTH], "depths": [1, 1, 1, 1]}
    resnet = hf.ResNetModel(hf.ResNetConfig(**stages, layer_type="bottleneck"))
    for name in ("microsoft/resnet-50", "microsoft/resnet-101"):
        shortest.save_pretrained(home(folder / name, resnet, None))
    backbone(folder / "google/vit-base-patch16-224")
    detector(folder / "PekingU/rtdetr_r50vd")


def backbone(folder: Path) -> Path:
    """A ViT that looks into boxes."""
    square = {"height": SIDE, "width": SIDE}
    hf.CLIPImageProcessorPil(size=square).save_pretrained(home(folder, toys.vit(), None))
    return folder


def detector(folder: Path) -> Path:
    """A detector of 12 boxes a photo, of four classes."""
    hf.RTDetrImageProcessorPil(size={"height": 64, "width": 64}).save_pretrained(
        home(folder, rt_detr(), None)
    )
    return folder


def texts(folder: Path) -> None:
    for name in ("my_text.txt", "wiki.train.raw", "wiki.test.raw", "wiki.valid.tokens", "wiki.txt"):
        homes.text(folder / name, 24)
    put(folder / "other_text.txt", "\n".join(toys.sentences()[24:40]) + "\n")
    homes.text(folder / "sentences.txt", 205)
    passages = toys.sentences()[:80]
    rows = [(f"p{number}", text, number / 10) for number, text in enumerate(passages)]
    put(folder / "clear/train.csv", table(("id", "excerpt", "target"), *rows))


def looks(folder: Path) -> None:
    """CoDa's raw files and a distribution of ViComTe's, of as many nouns as there are folds."""
    nouns = [f"{first} {second}" for first in ("dog", "cat") for second in "abcdef"]
    objects = [
        {"class_id": noun, "ngram": noun, "object_s": noun, "areis_s": "is"}
        | {"object_pl": None, "areis_pl": None}
        for noun in nouns
    ]
    answers = [
        {"class_id": noun, "action": "submitted", "included": True}
        | {colour: (number + place) % 5 for place, colour in enumerate(COLOURS)}
        for number, noun in enumerate(nouns)
    ]
    for name, rows in (("objects", objects), ("annotations", answers)):
        put(folder / f"coda/{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    templates = [{"name": "text-masked", "templates": ["This {object_areis_s} [MASK]."]}]
    put(folder / "coda/templates.yaml", json.dumps({"templates": templates}))
    heavier = [{"obj1": "dog", "obj2": noun, "label": 1} for noun in ("cat", "ball")]
    put(folder / "vec/mass.json", "".join(json.dumps(row) + "\n" for row in heavier))
    rated = "dog\tcat\t5\ndog\tball\t2\ncat\tball\t1\n"
    put(folder / "EN-RG-65.txt", rated)
    header = "word1\tword2\tPOS\tSimLex999\n"
    rated = "red\tblue\tA\t5\nred\tdog\tA\t2\nblue\tcat\tA\t1\n"
    put(folder / "SimLex-999.txt", header + rated)
    rows = [
        f"{one}{two}".upper() + f",{n % 5},{n % 7}"
        for n, (one, two) in enumerate(product("abcdef", repeat=2))
    ]
    put(folder / "lancaster.csv", "\n".join(["Word,Auditory.mean,Visual.mean", *rows, ""]))
    counts = {noun: [number % 3, 1, *[0] * 9, number] for number, noun in enumerate(nouns)}
    put(folder / "vicomte/distributions/color-dist.jsonl", json.dumps(counts) + "\n")


def glue(folder: Path) -> None:
    said = toys.sentences()
    pairs = "".join(f"{said[n]}\t{said[n + 1]}\t{n % 5}\n" for n in range(8))
    put(folder / "my_pairs.tsv", pairs)
    for name in ("glue", "glue_data"):
        homes.rte(folder / name, 40)
        rows = [f"x\t{number % 2}\t\t{toys.sentences()[number]}" for number in range(40)]
        for split in ("train", "dev"):
            put(folder / name / "CoLA" / f"{split}.tsv", "\n".join(rows) + "\n")
        put(folder / name / "STS-B/dev.tsv", "sentence1\tsentence2\tscore\n" + pairs)
    rows = [(text, "yes", number % 2) for number, text in enumerate(toys.sentences()[:20])]
    put(folder / "my.csv", table(("question", "answer", "y"), *rows))


def pairs(folder: Path) -> None:
    """Minimal pairs as BLiMP, EWoK and a table have them, and two examples of Winoground."""
    texts = toys.sentences()[:2]
    for paradigm, field in (("causative", "syntax"), ("wh_island", "syntax")):
        rows = []
        for number, text in enumerate(texts):
            bad = " ".join(reversed(text.split()))
            row = {"sentence_good": text, "sentence_bad": bad, "UID": paradigm, "field": field}
            rows.append(row | {"linguistics_term": paradigm, "pairID": str(number)})
        put(folder / f"blimp/{paradigm}.jsonl", json_lines(*rows))
    ewok = {"Context1": "a dog", "Context2": "a cat", "Domain": "animals"}
    put(
        folder / "ewok/animals.jsonl",
        json_lines(*[ewok | {"Target1": texts[0], "Target2": texts[1]}]),
    )
    comps = {"prefix_acceptable": "a dog", "prefix_unacceptable": "a ball"}
    comps |= {"property_phrase": "runs", "negative_sample_type": "random"}
    put(folder / "comps/comps_base.jsonl", json_lines(comps))
    put(folder / "my_pairs.csv", table(("good", "bad"), ("a red dog", "dog red a")))
    rows = []
    for number in range(2):
        images = {f"image_{side}": f"ex_{number}_img_{side}" for side in (0, 1)}
        for name in images.values():
            photo(folder / f"winoground/images/{name}.png")
        rows.append({"id": number, **images, "caption_0": "a dog", "caption_1": "dog a"})
    put(folder / "winoground/examples.jsonl", json_lines(*rows))


def own_images(folder: Path) -> None:
    for name in ASKED:
        photo(folder / "my_photos" / f"{name}.jpg")
    captions = [f"a photo of a dog number {n}\t{name}.jpg" for n, name in enumerate(PHOTOS)]
    put(folder / "my_captions.tsv", "\n".join(captions) + "\n")
    for number in range(6):
        photo(folder / "my_data/photos" / f"{number}.jpg")
    rows = [(f"{n}.jpg", f"a dog and {n} cats") for n in range(6)]
    put(folder / "my_data/captions.csv", table(("photo", "caption"), *rows))
    put(folder / "my_data/README.md", "Photos and what they show.\n")
    rows = [(f"is it a dog {n} ?", f"{ASKED[n % 12]}.jpg", "yn"[n % 5 > 2]) for n in range(36)]
    put(folder / "my_questions.csv", table(("question", "photo", "answer"), *rows))
    photo(folder / "new_photos/pier.jpg")
    rows = [(f"is it a dog {n} ?", "pier.jpg") for n in range(3)]
    put(folder / "new_questions.csv", table(("question", "photo"), *rows))
    dogs(folder / "my_dogs")
    vcr_files.folder(folder / "vcr_data", train=35, val=7)
    vcr_files.write_wordnet(folder / "WordNet-3.0/dict")
    for number in range(3):
        place = folder / "vcr1images/movie" / f"{number}"
        photo(place.with_suffix(".jpg"))
        names = list(vcr_files.OBJECTS)
        boxes = [[1, 1, 9 + place, 9, 0.9] for place in range(len(names))]
        about = {"boxes": boxes, "segms": [[] for _ in names], "names": names}
        about |= {"width": SIDE, "height": SIDE}
        put(place.with_suffix(".json"), json.dumps(about))


def dogs(folder: Path) -> None:
    """docs/extending.md's task: is there a dog?"""
    for split, start, count in (("train", 0, 24), ("dev", 24, 12)):
        lines = ["text\timage\tdog"]
        for number in range(start, start + count):
            text = toys.sentences()[number]
            dog = "yes" if number % 2 else "no"
            lines.append(f"{text}\t{PHOTOS[number % len(PHOTOS)]}\t{dog}")
        put(folder / f"{split}.tsv", "\n".join(lines) + "\n")


def flickr8k(folder: Path) -> None:
    names = [f"{number}_f.jpg" for number in range(8)]
    for name in names[1:]:  # some are always missing
        photo(folder / "flickr8k/images" / name)
    captions = [f"{name}#{n}\ta dog and {n} cats in {name[0]}" for name in names for n in range(2)]
    for place in ("flickr8k/Flickr8k.token.txt", "flickr8k/train.token.txt", "Flickr8k.token.txt"):
        put(folder / place, "\n".join(captions) + "\n")
    for place in ("flickr8k/Flickr_8k.trainImages.txt", "Flickr_8k.trainImages.txt"):
        put(folder / place, "\n".join(names[:6]) + "\n")
    put(folder / "flickr8k/Flickr_8k.testImages.txt", "\n".join(names[6:]) + "\n")


def coco(folder: Path) -> None:
    """COCO's and Conceptual Captions' captions, with pictures that serve for both."""
    images = [(number, f"{name}.jpg") for number, name in enumerate(COCO)]
    captions = [(n % 8, f"a dog and {n} cats on a red chair") for n in range(16)]
    for name in ("captions_train2014.json", "captions_val2017.json"):
        homes.coco(folder / name, images, captions)
    others = [(number, f"COCO_val2014_{number:012d}.jpg") for number in (1000, 1001)]
    homes.coco(folder / "captions_val2014.json", others, [(n, "a cat") for n, _ in others])
    split = []
    for number, file in images:
        said = [{"raw": f"a {word} dog"} for word in ("red", "wet")]
        where = ("train", "restval", "train", "test")[number % 4]
        split.append({"cocoid": number, "filename": file, "split": where, "sentences": said})
    put(folder / "dataset_coco.json", json.dumps({"images": split}))
    lines = [f"train2014/{file} {number}" for number, file in images[:6]]
    put(folder / "karpathy_train_images.txt", "\n".join(lines) + "\n")
    for name in COCO:
        photo(folder / "coco/images" / f"{name}.jpg")
    rows = [f"a bus number {n}\t{name}.jpg" for n, name in enumerate(COCO)]
    put(folder / "cc_train.tsv", "\n".join([*rows, "a lost one\thttps://a.com/lost.jpg"]) + "\n")


def others_regions(folder: Path) -> None:
    """Published features, each under its own ids: UNITER's npz, VL-BERT's json, bottom-up attention's numbers."""
    rng = np.random.default_rng(0)
    boxes = np.array([[0, 0, 0.5, 0.5, 0.5, 0.5], [0.25, 0.25, 1, 1, 0.75, 0.75]], np.float32)
    names = [f"coco_train2014/{name.lower()}" for name in COCO[:3]]
    names += [f"coco_val2014/coco_val2014_{n:012d}" for n in (1000, 1001)]
    names += [f"re_coco_gt/visual_grounding_coco_gt_{n:012d}" for n in range(1, 4)]
    names += [f"re_coco_det/visual_grounding_det_coco_{n:012d}" for n in range(1, 4)]
    for split, number in (("train", 1), ("val", 2)):
        put(
            folder / f"vcr/{split}.jsonl",
            json.dumps({"img_fn": f"lsmdc_1_A/1_A@{number}.jpg"}) + "\n",
        )
        names += [f"vcr_{kind}{split}/vcr_{kind}{split}_1_A@{number}" for kind in ("", "gt_")]
    for name in names:
        features = rng.normal(size=(2, WIDTH)).astype(np.float16)
        place = folder / f"{name}.npz"
        place.parent.mkdir(exist_ok=True)
        np.savez(place, features=features, norm_bb=boxes, conf=np.float32([0.9, 0.8]))
    pixels = b64(boxes[:, :4] * SIDE)
    rows = []
    unpacked = folder / "trainval2014_resnet101_faster_rcnn_genome"
    for number in (*range(8), 1000, 1001):
        features = b64(rng.normal(size=(2, WIDTH)).astype("<f4"))
        rows.append("\t".join([str(number), str(SIDE), str(SIDE), "2", pixels, features]))
        entry = {"image_w": SIDE, "image_h": SIDE, "num_boxes": 2}
        entry |= {"boxes": pixels, "features": features}
        put(unpacked / f"{number}.json", json.dumps(entry))
    put(folder / "trainval_resnet101_faster_rcnn_genome_36.tsv", "\n".join(rows) + "\n")


def tasks(folder: Path) -> None:
    """The vision-and-language data sets, as the world has them, under the names of the real ones."""
    made = folder / "made"
    assert main(["data", "make-tasks", *TASKS, "--out", str(made)]) == 0
    for source, name in (
        ("vqa", "vqa_data"),
        ("vqa", "vqa_sample"),
        ("nlvr2", "nlvr2_data"),
        ("snli_ve", "snli_ve_data"),
    ):
        shutil.copytree(made / source, folder / name)
    shutil.copy(made / "instances.json", folder)
    referred = json.loads((made / "refcoco+/instances.json").read_text())
    found = [
        {
            "image_id": note["image_id"],
            "box": note["bbox"],
            "score": 0.5,
            "category_id": note["category_id"],
            "category_name": "",
        }
        for note in referred["annotations"]
    ]
    kinds = {kind["id"]: kind["name"] for kind in referred["categories"]}
    for one in found:
        one["category_name"] = kinds[one["category_id"]]
    put(folder / "res101_coco_minus_refer_notime_dets.json", json.dumps(found))
    shutil.rmtree(made)
    images = json.loads((folder / "instances.json").read_text())["images"]
    rows = [_lxmert(image["file_name"].rpartition(".")[0]) for image in images]
    put(folder / "train2014_obj36.tsv", "".join(row for row in rows if "val2014" not in row[:20]))
    put(folder / "val2014_obj36.tsv", "".join(row for row in rows if "val2014" in row[:20]))


def _lxmert(name: str) -> str:
    """A row of LXMERT's TSV: two boxes."""
    rng = np.random.default_rng(len(name))
    boxes = np.array([[0, 0, 9, 9], [4, 4, 15, 15]], "<f4")
    arrays = [
        np.array([3, 4], "<i8"),
        np.array([0.9, 0.8], "<f4"),
        np.array([1, 2], "<i8"),
        np.array([0.7, 0.6], "<f4"),
    ]
    codes = [b64(array, array.dtype.str) for array in arrays]
    features = rng.normal(size=(2, WIDTH)).astype("<f4")
    ends = [b64(array) for array in (boxes, features)]
    return "\t".join([name, str(SIDE), str(SIDE), *codes, "2", *ends]) + "\n"


def rte_pairs(folder: Path) -> None:
    """As many development pairs as attention maps are compared on."""
    said = toys.sentences()
    rows = [
        f"{number}\t{said[number]}\t{said[-1 - number]}\tentailment" for number in range(SENTENCES)
    ]
    put(folder / "dev.tsv", "\n".join(["index\tsentence1\tsentence2\tlabel", *rows]) + "\n")


def quickstart(common: Path, folder: Path) -> None:
    """What `groundling quickstart` leaves in a folder, as far as other commands read it."""
    assert main(["data", "make-world", *WORLD, "--out", str(folder / "world")]) == 0
    text = folder / "world/corpus/train.txt"
    new_encoder(text, folder / "encoder/model", seed=0, layers=1)
    shutil.copytree(common / "openai/clip-vit-base-patch32", folder / "teacher/model")
    flags = ["--student", str(folder / "encoder/model"), "--teacher", str(folder / "teacher/model")]
    flags += ["--text", str(text), "--max-length", "32", "--steps", "1", "--batch", "4", "--cpu"]
    assert main(["adapt", *flags, "--out", str(folder / "arms/contrastive/adapt")]) == 0


def photo(path: Path) -> None:
    homes.noise(path, (SIDE, SIDE), seed=sum(path.stem.encode()))
