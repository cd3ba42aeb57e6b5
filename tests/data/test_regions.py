"""Regions of one's own images, and of the field's files."""

import json
import pickle
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from tiny.homes import Killed, digests, never, picture, put
from tiny.regions import (
    FEATURES,
    PIXELS,
    SHARES,
    SOFT,
    SURE,
    b64,
    bottom_up,
    imported,
    instances,
    lmdb,
    lxmert,
    msgpack,
    npz,
    seeing_models,
    some,
    store,
    vlbert,
)

import groundling.vision as extracting
from groundling.commands.regions import COMMAND as regions
from groundling.commands.regions import RegionsConfig
from groundling.core.errors import InputError
from groundling.data.images import image_id
from groundling.data.regions import RegionStore, RegionWriter, clip_boxes
from groundling.data.regions.annotations import grid_boxes
from groundling.data.regions.imports import import_regions
from groundling.data.shards import Record, ShardWriter
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.input_settings import DetectionSettings
from groundling.vision import Backbone, Detector, select_boxes
from groundling.vision_language.end_to_end import roi_align


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return seeing_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Seven images of three sizes, one of them turned by EXIF, and a corrupt one."""
    folder = tmp_path / "photos"
    for n, size in enumerate([(40, 30), (40, 30), (24, 48), (40, 30), (24, 48), (33, 35)]):
        noise = np.random.default_rng(n).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        put(folder / f"{n}.png", b"")
        Image.fromarray(noise).resize(size).save(folder / f"{n}.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20), (10, 200, 10)).save(
        put(folder / "sub" / "turned.jpg", b""), exif=exif
    )
    put(folder / "broken.png", (folder / "0.png").read_bytes()[:60])
    return folder


# -- RoIAlign --------------------------------------------------------------------------------------------------------


def plain(features: np.ndarray, box: np.ndarray, size: int, sampling: int) -> np.ndarray:
    """RoIAlign of one image (C, H, W) and box as the definition says, in loops."""
    c, h, w = features.shape
    (x1, y1, x2, y2), out = box - 0.5, np.zeros((c, size, size))

    def value(y: float, x: float) -> np.ndarray:
        if not (-1 <= y <= h and -1 <= x <= w):
            return np.zeros(c)
        y, x = min(max(y, 0), h - 1), min(max(x, 0), w - 1)
        top, left = min(int(y), h - 1), min(int(x), w - 1)
        total = np.zeros(c)
        for row, share in ((top, 1 - (y - top)), (min(top + 1, h - 1), y - top)):
            for column, part in ((left, 1 - (x - left)), (min(left + 1, w - 1), x - left)):
                total += share * part * features[:, row, column]
        return total

    for i in range(size):
        for j in range(size):
            for a in range(sampling):
                for b in range(sampling):
                    y = y1 + (y2 - y1) * (i + (a + 0.5) / sampling) / size
                    x = x1 + (x2 - x1) * (j + (b + 0.5) / sampling) / size
                    out[:, i, j] += value(y, x) / sampling**2
    return out


@pytest.mark.parametrize("sampling", [1, 2])
@pytest.mark.parametrize("size", [1, 3])
def test_roi_align_is_what_loops_give(size, sampling):
    """In the image, at its border, beyond it, and smaller than a pixel."""
    features = torch.randn(2, 3, 5, 8)
    boxes = torch.tensor(
        [[0, 0, 8, 5], [1.3, 0.6, 4.9, 3.2], [-3, -2, 3, 2], [7.6, 4.7, 8, 5], [6, 3, 12, 9.5]]
    )
    got = roi_align(features, [boxes, boxes[:2] * 0.9], size, 1.0, sampling)
    first, second = features.double().numpy()
    want = [plain(first, box, size, sampling) for box in boxes.double().numpy()]
    want += [plain(second, box * 0.9, size, sampling) for box in boxes[:2].double().numpy()]
    torch.testing.assert_close(got, torch.from_numpy(np.stack(want)).float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        roi_align(features, [boxes / 4, boxes[:2] * 0.225], size, 4, sampling), got
    )


def test_roi_align_gives_the_values_of_another_implementation():
    """ONNX Runtime 1.31, operator RoiAlign, half_pixel (what torchvision's aligned=True is exported to)."""
    features = ((torch.arange(40) * 7) % 11).float().view(1, 1, 5, 8)
    boxes = torch.tensor([[0, 0, 8, 5], [1.3, 0.6, 4.9, 3.2], [-0.8, -0.7, 3, 2], [7.2, 4.1, 8, 5]])
    first = [4.20312, 5.73438, 4.29688, 6.0]
    rest = [5.18719, 4.83125, 6.25, 4.55, 0.4375, 4.9375, 1.2625, 5.66023, 8.125, 8.825, 8.3, 9.0]
    got = roi_align(features, [boxes], 2, 1.0, 2)
    torch.testing.assert_close(got.flatten(), torch.tensor(first + rest), atol=2e-5, rtol=0)


# -- boxes and features ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "classes"), [("detr", 5), ("rt", 4)])
def test_a_detector_gives_sorted_boxes_with_a_distribution_over_real_classes(
    models, photos, name, classes
):
    images = [Image.open(photos / f"{n}.png").convert("RGB") for n in (0, 1)]
    detector = Detector(DetectionSettings(detector=models[name], min_boxes=3, iou_threshold=1.0))
    assert detector.names == [f"LABEL_{i}" for i in range(classes)]
    found = detector(images)
    with torch.no_grad():
        logits = detector.model(**detector.processor(images=images, return_tensors="pt")).logits
    scores = logits.softmax(-1)[..., :-1] if name == "detr" else logits.sigmoid()
    for one, score in zip(found, scores, strict=True):
        assert (np.diff(one.confidence) <= 0).all()
        np.testing.assert_allclose(one.classes.sum(1), 1, rtol=1e-5)
        assert one.classes.shape == (len(one.boxes), classes)
        assert one.confidence[0] == pytest.approx(score.max().item(), rel=1e-5)
        assert clip_boxes(one.boxes)[1].all()
    alone = detector(images[1:])[0]
    np.testing.assert_allclose(alone.boxes, found[1].boxes, atol=1e-5)


def test_boxes_are_kept_as_for_bottom_up_attention():
    boxes = np.array(
        [[0, 0, 1, 1], [0, 0, 1, 0.9], [0, 0, 0.1, 0.1], [0.5, 0.5, 1, 1], [0, 0.5, 0.4, 1]]
    )
    sure = np.array([0.3, 0.9, 0.1, 0.25, 0.15])
    for settings, kept in (
        ({"min_boxes": 1}, [1, 3]),
        ({"min_boxes": 3}, [1, 3, 4]),
        ({"min_boxes": 10}, [1, 3, 4, 2]),
        ({"min_boxes": 1, "max_boxes": 1}, [1]),
        ({"min_boxes": 1, "iou_threshold": 1}, [1, 0, 3]),
    ):
        assert select_boxes(boxes, sure, DetectionSettings(**settings)).tolist() == kept
    assert grid_boxes(2).boxes.tolist() == [
        [0, 0, 0.5, 0.5],
        [0.5, 0, 1, 0.5],
        [0, 0.5, 0.5, 1],
        [0.5, 0.5, 1, 1],
    ]


@pytest.mark.parametrize(
    ("name", "side"), [("resnet", 64), ("vit", 0), ("vit", 24), ("vision", 0), ("clip", 24)]
)
def test_features_of_a_region_are_those_of_its_place(models, name, side):
    """They do not depend on the batch, and the whole image has the mean of the map."""
    backbone = Backbone(models[name], side)
    assert backbone.target((40, 30)) == {0: (16, 16), 24: (32, 24), 64: (96, 64)}[side]
    images = [
        Image.fromarray(np.random.default_rng(n).integers(0, 256, (30, 40, 3), np.uint8))
        for n in range(2)
    ]
    boxes = np.array([[0, 0, 0.5, 1], [0.5, 0, 1, 1], [0, 0, 1, 1]], np.float32)
    both = backbone(images, [boxes[:1], boxes])[1]
    assert both.shape == (3, {"resnet": 24}.get(name, 32))
    np.testing.assert_allclose(backbone(images[1:], [boxes[1:]])[0], both[1:], atol=1e-4)
    assert np.abs(both[0] - both[1]).max() > 1e-4
    if name == "vision":
        scaled = np.asarray(images[1].resize((16, 16), Image.Resampling.BICUBIC), np.float32)
        pixels = torch.from_numpy((scaled / 255 - backbone.mean) / backbone.std).permute(2, 0, 1)
        vision = hf.CLIPVisionModel.from_pretrained(models[name])
        states = vision(pixels[None]).last_hidden_state[0, 1:].mean(0).detach().numpy()
        np.testing.assert_allclose(both[2], states, atol=1e-5, rtol=1e-4)


# -- one's own images ------------------------------------------------------------------------------------------------


def test_three_lines_for_ones_own_images(models, photos, tmp_path):
    config = make_settings(
        RegionsConfig,
        images=str(photos),
        detector=models["detr"],
        backbone=models["vit"],
        min_boxes=4,
        add_whole_image=True,
    )
    result = regions(config, tmp_path / "store")
    store = RegionStore(tmp_path / "store")
    assert (result["images"], result["skipped"], len(store), store.width) == (7, 1, 7, 32)
    assert store.ids == [*"012345", "sub/turned"]
    assert store.size("sub/turned") == (20, 30)
    row = store["sub/turned"]
    assert row.is_whole_image.tolist() == [True] + [False] * (len(row.boxes) - 1)
    assert row.boxes[0].tolist() == [0, 0, 1, 1]
    assert row.features.shape == (len(row.boxes), 32) and row.classes.shape[1] == 5
    assert not row.classes[0].any() and row.classes[1:].sum(1) == pytest.approx(1, abs=2e-3)
    assert {array.dtype for array in (row.features, row.boxes, row.classes)} == {np.dtype("f4")}
    assert (np.diff(row.confidence) <= 0).all() and "broken" not in store
    manifest = json.loads((tmp_path / "store" / "manifest.json").read_text())
    assert manifest["model"] == {"backbone": models["vit"], "detector": models["detr"]}
    assert manifest["skipped"][0].startswith("broken: does not decode")
    assert manifest["class_names"][0] == "LABEL_0"
    assert manifest["counts"]["regions"] == result["regions"]
    assert not store.background  # a detector's "nothing" is left out
    other = replace_settings(config, shortest_edge=24)
    with pytest.raises(
        InputError, match=r"holds another run \(config.shortest_edge: 0 there, 24 now\)"
    ):
        regions(other, tmp_path / "store")
    regions(other, tmp_path / "other")
    assert RegionStore(tmp_path / "other").manifest["preprocessing"] != manifest["preprocessing"]


def test_a_killed_extraction_goes_on_to_the_same_bytes(
    models, photos, tmp_path, monkeypatch, in_process
):
    config = make_settings(
        RegionsConfig,
        images=str(photos),
        detector=models["rt"],
        backbone=models["resnet"],
        shortest_edge=64,
        shard_size=2,
    )
    regions(config, tmp_path / "whole")
    write, calls = RegionWriter.write, iter(range(9))

    def dying(self: RegionWriter, number: int, *rest: object) -> None:
        if next(calls) == 2:
            raise Killed
        write(self, number, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(RegionWriter, "write", dying)
        with pytest.raises(Killed):
            regions(config, tmp_path / "killed")
    with pytest.raises(InputError, match="not a complete store"):
        RegionStore(tmp_path / "killed")
    with pytest.raises(InputError, match=r"photos: images, not a region store"):
        RegionStore(photos)
    put(tmp_path / "killed" / "shard-00002.safetensors.partial", b"half of a shard")
    regions(replace_settings(config, processes=2), tmp_path / "killed")
    assert digests(tmp_path / "killed") == {
        **digests(tmp_path / "whole"),
        "result.json": digests(tmp_path / "killed")["result.json"],
    }
    monkeypatch.setattr(extracting, "Extractor", None)  # a finished store needs no model
    assert regions(config, tmp_path / "whole")["images"] == 7


def test_annotated_boxes_keep_their_order_and_name_what_is_wrong(models, photos, tmp_path):
    boxes = [[4, 3, 20, 15], [0, 0, 40, 30.2], [1, 1, 0, 5], [30, 20, 20, 5]]
    notes = [(7, (18, 3)[number % 2], box) for number, box in enumerate(boxes)]
    file = instances(tmp_path / "a.json", {7: "0.png", 1: "1.png"}, *notes)
    config = make_settings(
        RegionsConfig, images=str(photos), boxes=str(file), backbone=models["vit"]
    )
    result = regions(config, tmp_path / "store")
    assert (result["images"], result["skipped"], result["boxes_left_out"]) == (1, 1, 2)
    store = RegionStore(tmp_path / "store")
    np.testing.assert_allclose(store["0"].boxes, [[0.1, 0.1, 0.6, 0.6], [0, 0, 1, 1]], atol=1e-6)
    assert store["0"].classes.tolist() == [[0, 1], [1, 0]]
    assert store["0"].confidence.tolist() == [1, 1]
    assert store.manifest["skipped"] == ["1: no box in this image"]
    assert store.manifest["class_names"] == ["car", "dog"]
    assert not store.in_annotated_order("0")  # some are left out
    whole = instances(tmp_path / "d.json", {7: "0.png"}, *notes[:2])
    ordered = replace_settings(config, boxes=str(whole), add_whole_image=True)
    regions(ordered, tmp_path / "d")
    assert RegionStore(tmp_path / "d").in_annotated_order("0")
    gone = instances(tmp_path / "b.json", {7: "0.png", 0: "gone.png"}, notes[0])
    with pytest.raises(InputError, match=r"gone.png: no such image .* pass skip_missing"):
        regions(replace_settings(config, boxes=str(gone)), tmp_path / "b")
    lenient = replace_settings(config, boxes=str(gone), skip_missing=True)
    assert regions(lenient, tmp_path / "b")["skipped"] == 1
    turned = instances(tmp_path / "c.json", {7: "0.png"}, notes[0], size=(30, 40))
    with pytest.raises(
        InputError, match=r"no image can be stored \(0: 40x30 pixels, but annotated as 30x40\)"
    ):
        regions(replace_settings(config, boxes=str(turned)), tmp_path / "c")
    shares = instances(tmp_path / "e.json", {7: "0.png"}, (7, 3, [0.1, 0.1, 0.5, 0.5]))
    with pytest.raises(InputError, match=r"e\.json: .* not shares of the image"):
        regions(replace_settings(config, boxes=str(shares)), tmp_path / "e")


def test_settings_that_cannot_be_are_refused_in_one_line(models, photos, tmp_path):
    config = make_settings(RegionsConfig, images=str(photos), backbone=models["vit"])
    twice = instances(tmp_path / "twice.json", {7: "0.png", 0: "0.png"})
    for changes, message in (
        ({"images": ""}, "needs either images=FOLDER or imports=FILE"),
        ({"images": "nowhere"}, "nowhere: no such "),
        ({"shard_size": 0}, "greater than or equal to 1"),
        ({"grid": 2, "boxes": "x.json"}, "both give the boxes"),
        ({"boxes": str(twice)}, "0.png is listed twice"),
        ({"detector": models["resnet"]}, "resnet: "),
        ({"backbone": "nowhere", "grid": 2}, "nowhere: no "),
    ):
        with pytest.raises(InputError, match=message):
            regions(replace_settings(config, **changes), tmp_path / "out")


def test_two_files_of_one_name_are_one_image(models, tmp_path):
    for name in ("a.png", "a.bmp", "b.png"):
        picture(tmp_path / "in" / name)
    regions(
        make_settings(RegionsConfig, images=str(tmp_path / "in"), grid=2, backbone=models["vit"]),
        tmp_path / "out",
    )
    store = RegionStore(tmp_path / "out")
    assert store.ids == ["a", "b"] and store["a"].classes is None and len(store["a"].boxes) == 4
    assert store.manifest["skipped"] == ["a.png: same id as a.bmp; the first one counts"]


# -- the store -------------------------------------------------------------------------------------------------------


def test_a_store_gives_back_what_was_written_from_any_place_and_process(tmp_path):
    made = {f"{n}{'x' * n}": some(f"{n}{'x' * n}", n + 1, soft=4) for n in range(7)}
    writer = RegionWriter(tmp_path, 3)
    writer.fill((name, lambda one=one: one) for name, one in made.items())
    writer.fill((name, never) for name in made)  # what is there is not read again
    writer.close({"model": "none"})
    store = pickle.loads(pickle.dumps(RegionStore(tmp_path)))
    assert len(list(tmp_path.glob("shard-*"))) == 3 and (store.width, store.classes) == (6, 4)
    for name in reversed(made):
        row, want = store[name], made[name]
        np.testing.assert_allclose(row.features, want.features, rtol=2**-11, atol=1e-6)
        np.testing.assert_allclose(row.classes, want.classes, rtol=2**-10, atol=1e-6)
        np.testing.assert_array_equal(row.boxes, want.boxes)
        assert not row.image_index.any() and not row.is_whole_image.any()
    with pytest.raises(InputError, match="no image 'y' among 7"):
        store["y"]


def test_a_store_knows_what_made_its_features(models, photos, tmp_path):  # F4
    def made(name: str, **changes: object) -> RegionStore:
        config = make_settings(RegionsConfig, images=str(photos), backbone=models["vit"], grid=2)
        regions(replace_settings(config, **changes), tmp_path / name)
        return RegionStore(tmp_path / name)

    first = made("first")
    assert len(first.identity) == 64
    assert "16 x 16" in first.origin and first.origin.startswith("vit at ")
    assert made("boxes", grid=3).identity == first.identity  # the same backbone under other boxes
    moved = shutil.copytree(models["vit"], tmp_path / "elsewhere")
    assert made("moved", backbone=str(moved)).identity == first.identity
    others = [made("side", shortest_edge=24), made("model", backbone=models["vision"])]
    trained = hf.ViTModel.from_pretrained(moved)
    with torch.no_grad():
        trained.layernorm.bias += 1
    trained.save_pretrained(moved)
    others.append(made("trained", backbone=str(moved)))
    assert len({first.identity, *(store.identity for store in others)}) == 4


def test_values_that_no_store_may_hold_are_skipped_and_named(tmp_path):  # E5
    soft = some("soft", soft=4)
    changes = {
        "confidence": {"confidence": np.array([0.5, np.nan, 0.1])},
        "boxes": {"boxes": np.array([[0, 0, 1, 1.2]] * 3)},
        "features": {"features": np.full((3, 6), 1e6)},
        "classes": {"classes": np.array([[0.5, 0.5, 0, 0], [1, 0, 0, 0], [0, -0.5, 0, 0]])},
        "shares": {"classes": np.array([[0.5, 0.5, 0, 0], [0.6, 0.6, 0, 0], [0, 0, 0, 0]])},
        "sure": {"confidence": np.array([1.5, 1, 1])},
    }
    bad = [replace(soft, id=name, **changed) for name, changed in changes.items()]
    writer = RegionWriter(tmp_path)
    writer.fill((one.id, lambda one=one: one) for one in [soft, *bad])
    assert writer.close({})["skipped"] == [
        "confidence: confidence of region 1 outside 0..1, or not finite",
        "boxes: boxes of region 0 outside 0..1, or not finite",
        "features: features of region 0 are not finite in half precision",
        "classes: classes of region 2 outside 0..1, or not finite",
        "shares: classes of region 1 add up to more than 1",
        "sure: confidence of region 0 outside 0..1, or not finite",
    ]
    assert RegionStore(tmp_path).ids == ["soft"]


def test_shards_of_something_else_are_no_region_store(tmp_path):
    writer = ShardWriter(tmp_path)
    writer.write(0, [Record("a", {"sentence": np.zeros((1, 4), np.float32)})])
    writer.close({})
    with pytest.raises(InputError, match="not a region store"):
        RegionStore(tmp_path)


# -- the field's files -----------------------------------------------------------------------------------------------


def like_the_rest(store: RegionStore, name: str, order: tuple[int, ...] = (1, 0)) -> None:
    row = store[name]
    np.testing.assert_allclose(row.boxes, SHARES[list(order)], atol=1e-3)
    np.testing.assert_allclose(row.features, FEATURES[list(order)])


def test_lxmerts_tsv(tmp_path):
    cut, broken = lxmert("cut").rsplit("\t", 2)[0] + "\n", lxmert("broken")[:-9] + "\n"
    first, small = lxmert("COCO_1"), lxmert("small", 5, 5)
    text = "\ufeff" + first + cut + lxmert("COCO_2") + first + broken + small
    store, result = imported(tmp_path / "out", put(tmp_path / "x_obj36.tsv", text))
    like_the_rest(store, "COCO_1")
    assert store.ids == ["COCO_1", "COCO_2"] and store.size("COCO_2") == (40, 30)
    assert store["COCO_1"].confidence.tolist() == [0.5, 0.25]
    classes = store["COCO_1"].classes
    assert classes.argmax(1).tolist() == [7, 5] and classes.shape == (2, 1600)
    assert result["boxes_left_out"] == 2
    assert store.manifest["skipped"] == [
        "cut: line 2: damaged, or of another layout (ValueError: not enough values to unpack (expected 10, got 8))",
        "COCO_1: repeated; the first one is used",
        "broken: line 5: damaged, or of another layout (ValueError: buffer size must be a multiple of element size)",
        "small: line 6: all 3 boxes are empty or outside the image",
    ]


def test_bottom_up_attentions_tsv(tmp_path):
    store, _ = imported(tmp_path / "out", put(tmp_path / "trainval.tsv.0", bottom_up("9")))
    like_the_rest(store, "9", (0, 1))
    assert store["9"].confidence.tolist() == [1, 1] and store["9"].classes is None
    with pytest.raises(InputError, match=r"no.tsv: nothing to import; expected a TSV"):
        import_regions([put(tmp_path / "no.tsv", "a\tb\n")])


def test_uniters_npz(tmp_path):
    folder = tmp_path / "npz"
    put(folder / "coco_train2014_000000000009.npz", npz())
    put(folder / "bad.npz", npz()[:-50])
    np.savez(folder / "pickled.npz", features=np.array([{}], object), norm_bb=FEATURES, conf=SURE)
    store, result = imported(tmp_path / "out", folder)
    like_the_rest(store, "coco_train2014_000000000009")
    np.testing.assert_allclose(store[store.ids[0]].classes, SOFT[[1, 0]])
    assert store.manifest["background"] == "column 0" and store.background
    assert store.size(store.ids[0]) == (0, 0)
    assert result["skipped"] == 2


def sized(count: int) -> dict[str, np.ndarray]:
    """UNITER's arrays of boxes with confidences 0, .1, .2 and so on, out of order."""
    order = np.random.default_rng(0).permutation(count)
    boxes = np.tile(np.array([0, 0, 0.5, 0.5, 0.5, 0.5], np.float32), (count, 1))
    features = np.stack([order, order + 1], 1).astype(np.float32)
    return {"norm_bb": boxes, "features": features, "conf": (order / 10).astype(np.float32)}


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ({}, 8),
        ({"filter_imports": True, "min_boxes": 1}, 5),  # .7 to .3: .2 is not above .2
        ({"filter_imports": True, "min_boxes": 6}, 6),
        ({"filter_imports": True}, 8),  # fewer than ten
        ({"filter_imports": True, "min_boxes": 1, "score_threshold": 0.5}, 2),
        ({"filter_imports": True, "min_boxes": 6, "max_boxes": 3}, 3),
    ],
)
def test_imports_keep_the_boxes_that_a_detector_would(tmp_path, flags, kept):  # F7
    arrays = {name: array.astype(np.float32) for name, array in sized(8).items()}
    soft = np.stack([1 - arrays["conf"], arrays["conf"]], 1)
    put(tmp_path / "in" / "a.npz", npz(**arrays, soft_labels=soft))
    kept_boxes, result = imported(tmp_path / "out", tmp_path / "in", **flags)
    row = kept_boxes["a"]
    np.testing.assert_allclose(row.confidence, np.arange(7, 7 - kept, -1) / 10, rtol=1e-6)
    assert row.features[:, 0].tolist() == list(range(7, 7 - kept, -1))
    assert len(row.boxes) == len(row.classes) == kept == result["regions"]


def test_a_filter_of_boxes_needs_files_with_confidences(tmp_path):
    store(tmp_path / "store", ["a"])
    for given, message in (
        (put(tmp_path / "plain.tsv", bottom_up("9")), "stored .* no confidences for `filter_imp"),
        (tmp_path / "store", "`filter_imports` apply to files"),
    ):
        with pytest.raises(InputError, match=message):
            imported(tmp_path / f"{given.stem}-out", given, filter_imports=True)


def test_vlberts_json(tmp_path):
    put(tmp_path / "in" / "12.json", vlbert(image_box_feature=b64([9, 9, 9, 9])))
    put(tmp_path / "in" / "13.json", "{}")
    store, _ = imported(tmp_path / "out", tmp_path / "in")
    row = store["12"]
    assert row.is_whole_image.tolist() == [True, False, False]
    assert row.features[0].tolist() == [9] * 4
    assert row.confidence.tolist() == [1, 0.5, 0.25]
    assert store.manifest["skipped"][0].startswith("13: ")
    flags = {"filter_imports": True, "min_boxes": 1, "max_boxes": 1}
    store, _ = imported(tmp_path / "one", tmp_path / "in", **flags)
    assert store["12"].confidence.tolist() == [1, 0.5]


def test_lmdb(tmp_path):
    pytest.importorskip("lmdb"), pytest.importorskip("msgpack")
    both = {"one.npz": npz(), "two.npz": msgpack(), "__keys__": b'["one.npz"]'}
    store, _ = imported(tmp_path / "store", lmdb(tmp_path / "a", both))
    assert store.ids == ["one", "two"]
    for name in store.ids:
        like_the_rest(store, name)
    for values in ({"keys": b"x", "1": b"y"}, {"1": pickle.dumps({})}):
        with pytest.raises(InputError, match=r"no image can be stored .*another layout"):
            imported(tmp_path / f"no{len(values)}", lmdb(tmp_path / f"b{len(values)}", values))


def test_unknown_files_are_refused(tmp_path, monkeypatch):
    for name in ("features.pkl", "features.h5", "features.zip"):
        with pytest.raises(InputError, match=r"expected a TSV of .*pickles run code"):
            import_regions([put(tmp_path / name, b"\x80\x04.")])
    with pytest.raises(InputError, match="nothing to import;"):
        import_regions([tmp_path])
    put(tmp_path / "base/data.mdb", b"")
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(InputError, match=r"needs lmdb; pip install 'groundling\[regions\]'"):
        next(import_regions([tmp_path / "base"])[1])


SKIPPED = [
    (npz(conf=np.array([0.25, np.nan, 0.9])), "confidence of region 1 outside"),
    (npz(features=FEATURES * 1e-9), "all features are 0 in half precision"),
    (npz(norm_bb=np.full((3, 6), np.nan)), "all 3 boxes are empty"),
    (npz(norm_bb=np.full((3, 6), 2.0)), "all 3 boxes are empty"),
    (
        lxmert("wrong").replace(b64([5, 7, 9], "<i8"), b64([5, 1600, 9], "<i8")),
        "line 2: an object's class is outside 0..1599",
    ),
    (lxmert("wrong").replace(b64(PIXELS), b64(SHARES)), "line 2: expected boxes in pixels"),
]


@pytest.mark.parametrize(("wrong", "message"), SKIPPED)
def test_imports_skip_what_no_store_may_hold(tmp_path, wrong, message):  # E5
    if isinstance(wrong, str):
        source = put(tmp_path / "a.tsv", lxmert("good") + wrong)
    else:
        source = put(tmp_path / "in/good.npz", npz()).parent
        put(source / "wrong.npz", wrong)
    store, _ = imported(tmp_path / "out", source)
    assert store.ids == ["good"]
    (reason,) = store.manifest["skipped"]
    assert reason.startswith("wrong: ") and message in reason


def test_only_the_ending_of_a_picture_is_no_part_of_its_id():
    files = (
        "a/1.jpg",
        "1.JPEG",
        "v1.2/photo1",
        "img.0001",
        "img.0001.webp",
        "https://a.com/1",
        ".jpg",
    )
    ids = ["a/1", "1", "v1.2/photo1", "img.0001", "img.0001", "https://a.com/1", ".jpg"]
    assert list(map(image_id, files)) == ids
