"""Methods that cannot be compared are refused; what an axis changes for a method, and what is handed over then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from groundling.core.errors import InputError
from groundling.models.text_encoder import new_encoder
from groundling.runs.folder import read_json
from groundling.studies.bench.commands import BenchConfig
from groundling.studies.bench.engine import METHOD, TEXT_CONTROL, control_stages, text_key
from groundling.studies.bench.handed import shuffle_images, thin_captions, thin_images
from groundling.studies.bench.methods import (
    MERGED_SHARE,
    BenchMethod,
    Stage,
    built_in_methods,
    find_methods,
    for_encoder,
)
from groundling.studies.bench.protocol import (
    AXES,
    BenchCondition,
    BenchFolder,
    BenchWorld,
    find_axes,
)
from groundling.studies.bench.rendered import RenderedBench, is_changed

OWN = """
from groundling.objectives import Objective
from groundling.settings.fields import Settings, settings
from groundling.studies.bench.methods import BenchMethod, Stage


@settings
class QuietSettings(Settings):
    loudness: float = 1.0


class Quiet(Objective):
    name = "quiet"
    required_fields = ("text",)
    Settings = QuietSettings

    def count(self, batch):
        return {"quiet": batch.rows}

    def forward(self, encoded, batch):
        return {"quiet": encoded.text.pow(2).mean((1, 2)).sum()}


OWN = BenchMethod("own", "p", "text", (Stage("mlm+kinds:Quiet"),))
SAME = BenchMethod("l1", "p", "text", (Stage("mlm+kinds:Quiet"),))
READ = BenchMethod("read", "p", "text", (Stage("mlm+kinds:Quiet"),), vectors=print)
"""


@pytest.fixture
def kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with objectives of one's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kinds.py").write_text(OWN)


def test_a_method_with_a_teacher_cannot_pass_for_one_of_text() -> None:
    method = BenchMethod("sneak", "p", "text", (Stage("contrastive"),))
    with pytest.raises(InputError, match="contrastive reads a teacher, so the data class is not"):
        method.check()


@pytest.mark.usefixtures("kinds")
def test_an_option_that_no_objective_reads_is_refused_before_anything_runs() -> None:
    method = BenchMethod(
        "a", "p", "text", (Stage("mlm+kinds:Quiet"),), "option:loudness", (1, 2, 3)
    )
    method.check()
    with pytest.raises(InputError, match=r"no objective reads the option 'loudnes'.*loudness"):
        replace(method, weight="option:loudnes").check()
    with pytest.raises(InputError, match=r"share.*1\.5"):
        replace(method, weight=MERGED_SHARE, grid=(1.5, 0.5, 0.1)).check()
    with pytest.raises(InputError, match="unknown key 'kd_wieght'"):
        replace(method, weight="kd_wieght").check()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"grid": (1.0, 2.0)}, "a `grid` of three values, or neither"),
        ({"grid": (1.0, 1.0, 2.0)}, "a `grid` of three values, or neither"),
        ({"weight": ""}, "or neither"),
        ({"data": "pictures"}, "expected one of text, text and teacher, captions with images"),
        (Stage("l1", ("wikipedia",)), "wikipedia: a method reads the bench's texts"),
        (Stage("l1", ("captions",)), "so its data class is not"),
        (Stage("l1", images=True), "so its data class is not"),
        (Stage("l1", batch=640), "batch = 640, the bench's is 64"),
        (Stage("l1", student="mine/encoder"), "mine/encoder: a method reads"),
        (Stage("l1", settings={"student": "mine/better"}), "student: a method reads"),
        (Stage("l1", settings={"eval_text": ("a.txt",)}), "a.txt: a method reads the bench's"),
        (Stage("l1", settings={"teacher_text": "mine/tower"}), "mine/tower: a method reads"),
        (Stage("l1", settings={"teacher_text": "stage-1/model"}), "stage-1/model: a method reads"),
        (Stage("l1", settings={"teacher_text": "stage-0/../../private"}), "private: a method"),
    ],
)
def test_methods_that_cannot_be_compared_are_refused(change: dict | Stage, match: str) -> None:
    given = {"weight": "distill_weight", "grid": (0.1, 1.0, 10.0), "stages": (Stage("l1"),)}
    own = {"stages": (change,)} if isinstance(change, Stage) else change
    with pytest.raises(InputError, match=match) as caught:
        BenchMethod(**{"name": "a", "paper": "p", "data": "text and teacher"} | given | own)
    assert "\n" not in str(caught.value)


def test_the_packages_methods() -> None:
    offered = built_in_methods()
    assert {"xdbert", "l1", "contrastive"} <= {one.name for one in find_methods(())}
    for name, method in offered.items():
        assert method.name == name
        assert sum(method.stage_steps(500)) == 500
        assert control_stages(method)[-1].arm == "mlm"
        # Only Vokenization follows the encoder's depth, which is 2 in rendered worlds.
        assert for_encoder(method, 2, True) == method
        assert (for_encoder(method, 12, True) == method) == (name != "vokenization")
    # A sentence encoder has no head, and gets none beside another objective.
    headless = {name: for_encoder(one, 2, False) for name, one in offered.items()}
    kept = {"xdbert", "clip_bert", "mlm_distillation"}
    assert {name for name, one in headless.items() if one.control == "mlm"} == kept
    assert text_key(headless["l1"]) not in {text_key(offered["l1"]), text_key(headless["mcse"])}
    # Methods that read the same texts share a control.
    assert text_key(offered["l1"]) == text_key(offered["contrastive"])
    assert text_key(offered["l1"]) != text_key(offered["xdbert"])
    # Its weight is the control's too, so another grid is another control.
    retained = [replace(offered["l1"], weight="retain_weight", grid=(0.0, 1.0, n)) for n in (5, 10)]
    assert text_key(retained[0]) != text_key(retained[1]) == text_key(offered["l1"])
    two = offered["vokenization"]
    assert [one.texts for one in control_stages(two)] == [("captions",), ("corpus",)]
    assert [one.student for one in control_stages(two)] == ["", "stage-1/model"]
    with pytest.raises(InputError, match=r"no bench method is called 'l2'.*contrastive"):
        find_methods(["l2"])


@pytest.mark.usefixtures("kinds")
def test_a_method_of_ones_own_is_named_apart_and_identified_by_its_code() -> None:
    (own,) = find_methods(["kinds:OWN"])
    assert own.is_foreign and set(own.description()["source"]) == {"kinds:OWN", "kinds:Quiet"}
    with pytest.raises(InputError, match="method=l1: another method has this name"):
        find_methods(["kinds:SAME"])
    with pytest.raises(InputError, match="method=read: a method of your own is read by its"):
        find_methods(["kinds:READ"])
    with pytest.raises(InputError, match="expected BenchMethod"):
        find_methods(["kinds:Quiet"])


# -- axes --------------------------------------------------------------------------------------------------------------
def at(name: str, value: int) -> BenchCondition:
    (axis,) = find_axes([name])
    return next(one for one in axis.conditions() if one.value == value)


def test_every_axis_has_the_benchs_own_value_among_ascending_ones() -> None:
    for axis in AXES:
        values = list(axis.values)
        assert axis.base in values and values == sorted(values)
        assert len(axis.conditions()) == len(values) - 1 > 1
        world = BenchWorld("objects", 0, axis.conditions()[0])
        assert str(world) == f"objects 0, {axis.name} {values[values[0] == axis.base]}"


def test_a_condition_has_files_of_its_own_only_where_it_differs() -> None:
    folder = BenchFolder(Path("out"))
    base = folder.world(BenchWorld("objects", 0))
    assert folder.world(BenchWorld("objects", 0, at("steps", 100))) == base
    images = folder.world(BenchWorld("objects", 0, at("images", 4)))
    for name in ("corpus", "images", "encoder", "shuffled captions"):
        assert images.places[name] == base.places[name]
    assert images.private == base.private
    own = Path("out/shared/objects-0-images-4")
    assert images.places["teacher"] == own / "making/teacher/model"
    assert images.places["captions"] == own / "handed/captions.json"
    assert images.features == own / "features"
    captions = folder.world(BenchWorld("objects", 0, at("captions", 500)))
    assert captions.places["teacher"] == base.places["teacher"]
    assert captions.features == base.features


def test_an_arm_runs_again_only_where_it_reads_what_differs() -> None:
    methods = built_in_methods()
    pair = {name: methods[name] for name in ("contrastive", "lexi_contrastive")}
    changed = {
        (axis.name, name, arm)
        for axis in AXES
        for name, method in pair.items()
        for arm in (METHOD, TEXT_CONTROL)
        if is_changed(axis.conditions()[0], method, arm)
    }
    everything = {
        (axis, name, arm)
        for axis in ("steps", "layers", "width")
        for name in pair
        for arm in (METHOD, TEXT_CONTROL)
    }
    assert changed == everything | {
        ("images", "contrastive", METHOD),
        ("images", "lexi_contrastive", METHOD),
        ("images", "lexi_contrastive", TEXT_CONTROL),
        ("captions", "lexi_contrastive", METHOD),
        ("captions", "lexi_contrastive", TEXT_CONTROL),
        ("teacher", "contrastive", METHOD),
        ("teacher", "lexi_contrastive", METHOD),
    }
    folder = BenchFolder(Path("out"))
    match = "^curve=captions: changes nothing for these methods; add another one"
    with pytest.raises(InputError, match=match):
        RenderedBench(folder, [pair["contrastive"]], BenchConfig(curve=("captions",)))
    # A method with steps of its own has no curve over steps.
    longer = replace(methods["contrastive"], name="longer", steps=900)
    with pytest.raises(InputError, match=r"^curve=steps: changes nothing"):
        RenderedBench(folder, [longer], BenchConfig(curve=("steps",)))
    own = RenderedBench(folder, [longer, methods["l1"]], BenchConfig(curve=("steps", "images")))
    at_100 = [arm.method for arm in own.arms() if arm.world.condition == at("steps", 100)]
    assert {method.name for method in at_100} == {"l1"}


def test_thinned_images_show_every_noun_equally_often_and_shuffled_ones_are_others() -> None:
    # 600 images, in turn of one noun of ten, of two, and of none.
    shown = {n: [[n % 10], [n % 10, (n + 3) % 10], []][n // 10 % 3] for n in range(600)}
    nouns = {n: [f"n{noun}" for noun in some] for n, some in shown.items() if some}
    content = {
        "images": [{"id": n, "file_name": f"{n}.png"} for n in shown],
        "annotations": [{"id": n, "image_id": n // 2, "caption": "c"} for n in range(1200)],
    }
    thinned = thin_images(content, nouns, 0.5)
    ids = [image["id"] for image in thinned["images"]]
    assert [sum(noun in shown[n] for n in ids) for noun in range(10)] == [30] * 10  # of 60
    assert sum(not shown[n] for n in ids) == 100  # of 200
    assert [note["image_id"] for note in thinned["annotations"]] == [n for n in ids for _ in "12"]
    assert len(thin_images(content, nouns, 0.01)["images"]) == 128  # a batch of the teacher

    some, fewer = (thin_captions(content, 3, share) for share in (0.5, 0.25))
    kept = [note["id"] for note in some["annotations"]]
    assert len(kept) == 600 and kept == sorted(kept)
    assert {note["id"] for note in fewer["annotations"]} < set(kept)
    described = {note["image_id"] for note in some["annotations"]}
    assert [image["id"] for image in some["images"]] == sorted(described)
    assert len(thin_captions(content, 3, 0.001)["annotations"]) == 64  # a batch

    shuffled = shuffle_images(content, 3)
    assert shuffled["annotations"] == content["annotations"]
    pairs = list(zip(content["images"], shuffled["images"], strict=True))
    assert all(one["id"] == other["id"] for one, other in pairs)
    assert all(one["file_name"] != other["file_name"] for one, other in pairs)
    assert {one["file_name"] for one in shuffled["images"]} == {f"{n}.png" for n in shown}
    assert shuffle_images(content, 3) == shuffled != shuffle_images(content, 4)


def test_an_encoder_has_the_width_and_the_layers_that_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("a b\n")
    new_encoder(tmp_path / "corpus.txt", tmp_path / "new", 0, layers=3, width=64)
    config = read_json(tmp_path / "new" / "config.json")
    sizes = ("num_hidden_layers", "hidden_size", "intermediate_size")
    assert [config[name] for name in sizes] == [3, 64, 128]


def test_the_page_lists_every_method_with_its_data_and_its_weight() -> None:
    page = (Path(__file__).parents[3] / "docs" / "bench_protocol.md").read_text(encoding="utf-8")
    section = page[page.index("\n## Methods") : page.index("\n## Controls")]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")]
    found = {row[0].strip(): tuple(cell.strip() for cell in row[1:4]) for row in rows[1:]}
    offered = built_in_methods()
    assert found == {
        name: (one.data, one.weight.removeprefix("option:"), ", ".join(f"{n:g}" for n in one.grid))
        for name, one in offered.items()
    }
