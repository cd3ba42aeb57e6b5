"""What audits found (E1, E5 to E15) and the fuzzer after them, as far as no other file has a test of that name."""

import json
import os
import pickle
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from math import nan
from pathlib import Path
from zipfile import ZipFile

import homes
import numpy as np
import pytest
import standins
import torch
import toys
import vcr_files
from homes import put, table
from PIL import Image
from safetensors.torch import load_file

from groundling.check.folder import check
from groundling.commands.data_show import COMMAND as data_show
from groundling.commands.data_show import ShowConfig
from groundling.commands.push.run import _card, _described
from groundling.commands.sweep.file import read_sweep
from groundling.core.errors import InputError
from groundling.core.find import named
from groundling.data.captions.captions import read_captions
from groundling.data.captions.samples import decode
from groundling.data.images import read_picture
from groundling.data.regions.imports import import_regions
from groundling.data.regions.store import first_fault
from groundling.data.tables import lines_of
from groundling.models.loading import load_config, load_processor
from groundling.models.text import load_text_encoder
from groundling.runs.folder import clear_prepared, finished, open_run, read_log
from groundling.runs.jobs import Job, _result
from groundling.runs.run import ended
from groundling.settings.inputs import OwnFile
from groundling.studies.attention.figures import figures_of
from groundling.studies.clip_td.implicit import text_only_run
from groundling.studies.clip_td.vcr import _files
from groundling.tasks import Task
from groundling.tasks.table import own_task
from groundling.training.teaching import place_of_features
from groundling.training.watched import means_by_epoch
from groundling.vision_language.loading import load_student
from groundling.vision_language.single_stream import described_join
from groundling.vision_language.uniter import uniter


def test_e1_pictures_are_read_in_their_full_range_and_turned_everywhere(tmp_path: Path) -> None:
    shades = np.arange(96, dtype=np.uint16).reshape(8, 12) * 600
    Image.fromarray(shades).save(tmp_path / "a.png")
    read = np.asarray(read_picture(tmp_path / "a.png"))
    assert np.array_equal(read[..., 0], shades >> 8)
    homes.noise(tmp_path / "b.png", (9, 12))
    exif = Image.Exif()
    exif[0x0112] = 6
    homes.noise(tmp_path / "turned.png", (9, 12), exif=exif)
    turned = np.rot90(np.asarray(read_picture(tmp_path / "b.png")), -1)
    assert np.array_equal(np.asarray(read_picture(tmp_path / "turned.png")), turned)
    assert not np.array_equal(decode(tmp_path / "turned.png", 8), decode(tmp_path / "b.png", 8))


def test_e1_e15_data_check_reads_pictures_as_commands_do(tmp_path: Path) -> None:
    Image.fromarray(np.ones((8, 8), np.float32)).save(tmp_path / "x.tiff")
    (tmp_path / "x.tiff").rename(tmp_path / "x.jpg")
    homes.picture(tmp_path / "fine.jpg")
    assert "x.jpg: does not decode as an image" in check(tmp_path).problems[0]
    with pytest.raises(InputError, match="its pixels are fractions"):
        read_picture(tmp_path / "x.jpg")


def test_e13_a_pipe_among_pictures_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.jpg")
    homes.picture(tmp_path / "fine.jpg")
    with pytest.raises(InputError, match="is no ordinary file"):
        read_picture(tmp_path / "x.jpg")
    assert "x.jpg: does not decode as an image" in check(tmp_path).problems[0]


def test_e5_class_shares_that_add_up_to_more_than_one_are_told() -> None:
    shares = np.full((2, 4), 0.25, np.float32)
    assert first_fault({"classes": shares}) == ""
    shares[1] = 0.5
    assert first_fault({"classes": shares}) == "classes of region 1 add up to more than 1"


@pytest.mark.parametrize("name", ["CoLA/train.tsv", "Flickr8k.token.txt", "train.txt"])
def test_e6_an_old_macs_lines_are_not_one_line(name: str, tmp_path: Path) -> None:
    line = {"CoLA/train.tsv": "x\t1\t\tIt rains.", "train.txt": "1000092795"}
    path = put(tmp_path / name, "\r".join([line.get(name, "1.jpg#0\tA dog.")] * 3))
    reads = {
        "CoLA/train.tsv": lambda: named("tasks", Task, "glue/cola").read(tmp_path, "train"),
        "Flickr8k.token.txt": lambda: read_captions(path).images,
        "train.txt": lambda: named("tasks", Task, "flickr30k").read(tmp_path, "train"),
    }
    with pytest.raises(InputError, match="lines end in carriage returns alone"):
        reads[name]()


def test_e6_a_list_of_answers_that_fits_no_question_is_refused(tmp_path: Path) -> None:
    asked = {"question_id": 1, "image_id": 1, "question": "is it red ?"}
    said = {"question_id": 1, "answers": [{"answer": "yes"}] * 10}
    said |= {"answer_type": "yes/no", "question_type": "is it"}
    put(
        tmp_path / "v2_OpenEnded_mscoco_train2014_questions.json",
        json.dumps({"questions": [asked]}),
    )
    put(tmp_path / "v2_mscoco_train2014_annotations.json", json.dumps({"annotations": [said]}))
    path = put(tmp_path / "trainval_label2ans.json", json.dumps(["yes", "no"]))
    task = named("tasks", Task, "vqa")
    assert len(task.at(tmp_path).read(tmp_path, "train")) == 1
    put(path, json.dumps(["Ja", "Nein"]))
    with pytest.raises(InputError, match=r"label2ans.json: holds no answer that people gave"):
        task.at(tmp_path).read(tmp_path, "train")


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_e7_two_columns_of_one_name_are_refused(ending: str, tmp_path: Path) -> None:
    rows = [("text", "y", "y"), ("a dog", "yes", "no"), ("a cat", "no", "yes")]
    text = table(*rows) if ending == "csv" else "".join("\t".join(row) + "\n" for row in rows)
    path = put(tmp_path / f"a.{ending}", text)
    with pytest.raises(InputError, match="2 columns are called 'y'; rename all but one"):
        own_task(path, OwnFile(text="text", label="y"))


@pytest.mark.parametrize("label", [True, ["yes"], {"is": "yes"}, None, float("nan")])
def test_e7_labels_that_are_neither_text_nor_number_are_refused(
    label: object, tmp_path: Path
) -> None:
    rows = [{"text": "a dog", "y": "no"}, {"text": "a cat", "y": label}]
    path = put(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"a.jsonl, line 2: (no )?field 'y'"):
        own_task(path, OwnFile(text="text", label="y"))


def test_e13_a_process_that_is_ended_from_outside_is_told() -> None:
    future: Future[None] = Future()
    future.set_exception(BrokenProcessPool())
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(InputError, match=r"^part 2: its process was"),
    ):
        _result(Job("part 2", print, ()), future, pool)


def test_e13_damaged_pages_of_an_lmdb_do_not_end_the_process(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path), map_size=1 << 22) as base, base.begin(write=True) as view:
        for number in range(300):
            view.put(f"{number}".encode(), bytes(40))
    path = tmp_path / "data.mdb"
    content = bytearray(path.read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 + 16 : page * 4096 + 400] = b"\xff" * 384  # where the nodes are
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"data.mdb: .*; copy it again"):
        list(import_regions(tmp_path)[1])


def test_e14_a_zero_byte_is_no_text(tmp_path: Path) -> None:
    path = put(tmp_path / "a.txt", b"fine\n" + bytes(512))
    with pytest.raises(InputError, match=r"a.txt, line 2: a zero byte; damaged"):
        lines_of(path)


def test_e14_a_message_is_one_line_whatever_it_quotes() -> None:
    assert str(InputError("a\nb\x1b[31m\tc")) == "a b [31m c"


def test_e14_a_log_is_read_but_for_a_last_line_that_a_kill_cut_off(tmp_path: Path) -> None:
    path = put(tmp_path / "log.jsonl", '{"step": 1, "loss": NaN}\n{"step": 2, "lo')
    assert [line["step"] for line in read_log(path)] == [1]
    for damage in ("[1]", "{}", '{"step": "1"}', '{"step": 1, "loss": []}', "[" * 10**5):
        put(path, f'{damage}\n{{"step": 2}}\n')
        with pytest.raises(InputError, match=r"log.jsonl, line 1: not a line of a log"):
            read_log(path)


def test_e14_heads_without_end_are_not_drawn() -> None:
    head = {"attention": "self", "layer": 0, "head": 10**12, "accuracy": 1.0, "active": True}
    with pytest.raises(InputError, match="expected numbers of heads from 0 to 999"):
        figures_of({"heads": [head], "chance": {"value": 1.0}})


def test_e14_sizes_that_no_model_has_are_told_before_one_is_built(tmp_path: Path) -> None:
    folder = homes.student(tmp_path / "student")
    about = json.loads((folder / "config.json").read_text())
    for name in ("num_hidden_layers", "hidden_size"):
        put(folder / "config.json", json.dumps(about | {name: 10**12}))
        with pytest.raises(InputError, match=f"config.json says {name} = 1000000000000, expected"):
            load_config(folder)


def test_e11_pickled_weights_are_never_opened(tmp_path: Path) -> None:
    folder = homes.student(tmp_path / "student")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"pytorch_model.bin: a pickle, which is never opened"):
        load_text_encoder(folder)


def test_e15_data_check_tells_what_commands_refuse(tmp_path: Path) -> None:
    standins.pairs(tmp_path)
    path = tmp_path / "blimp/wh_island.jsonl"
    put(path, "{" + path.read_text())
    assert f"{path}, line 1: not valid JSON" in check(tmp_path / "blimp").problems[0]
    standins.store(tmp_path / "store", ["a", "b"])
    path = tmp_path / "store/features-00000.npy"
    content = path.read_bytes()
    put(path, content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    assert check(tmp_path / "store").problems == [f"{path}: changed since it was written (SHA-256)"]
    vcr_files.folder(tmp_path / "vcr")
    assert check(tmp_path / "vcr").ok


def test_e14_a_log_whose_steps_cover_nothing_or_go_back(tmp_path: Path) -> None:
    log = put(
        tmp_path / "log.jsonl",
        '{"step": 0, "loss": 9}\n{"step": 2, "loss": 1}\n{"step": 2, "loss": 9}\n',
    )
    assert means_by_epoch(log, ["loss"], 2) == {"loss": [1.0]}
    put(log, '{"step": 2, "loss": 1}\n{"step": 1, "loss": 1}\n')
    with pytest.raises(
        InputError, match=r"log.jsonl, line 2: step 1 after step 2; delete the line"
    ):
        read_log(log)


def test_e14_a_zip_of_a_version_to_come_is_refused(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("1.json", "{}")
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[content.index(b"PK\1\2") + 6] = 148
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(InputError, match=r"a.zip: not a readable zip file \(zip file version 14.8"):
        list(import_regions(tmp_path / "a.zip")[1])


def test_e14_a_sweep_with_a_number_of_thousands_of_digits(tmp_path: Path) -> None:
    for damage in ("9" * 5000, "[" * 10**4):
        path = put(tmp_path / "s.toml", f"seeds = {damage}\n")
        with pytest.raises(InputError, match=r"s.toml: a number of too many digits, or nested"):
            read_sweep(path)


def test_e14_a_number_that_no_float_holds_is_no_line_of_a_log(tmp_path: Path) -> None:
    log = put(tmp_path / "log.jsonl", '{"step": 1, "loss": 1' + "0" * 400 + "}\n")
    with pytest.raises(InputError, match=r"log.jsonl, line 1: not a line of a log"):
        read_log(log)


def test_e14_what_a_model_folder_says_of_pixels_and_regions_is_looked_at(tmp_path: Path) -> None:
    folder = homes.seeing_clip(tmp_path / "clip")
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"image_mean": 0.5}))
    with pytest.raises(
        InputError,
        match=r"clip: no image processor there, preprocessor_config.json is missing or damaged",
    ):
        load_processor(folder)
    put(
        tmp_path / "join.json",
        '{"kind": "uniter", "early": true, "options": {}, "regions_from": [[]]}',
    )
    with pytest.raises(InputError, match="'regions_from' is no object"):
        described_join(tmp_path)


def test_e14_what_commands_wrote_is_looked_at_before_it_is_taken(tmp_path: Path) -> None:
    out = open_run(tmp_path / "run", "finetune", {"steps": 1}, {})
    put(out / "log.jsonl", "")
    put(out / "config.json", "[]")
    with pytest.raises(InputError, match=r"config.json: not the settings of a run"):
        open_run(out, "finetune", {"steps": 1}, {})
    put(out / "seed-0/predictions_val.jsonl", "")
    task = named("tasks", Task, "vcr/answer")
    put(out / "seed-0/result.json", json.dumps({"task": task.name}))
    with pytest.raises(InputError, match=r"settings of a run"):
        text_only_run(out / "seed-0/predictions_val.jsonl")
    with pytest.raises(InputError, match=r"result.json: expected a whole number in 'seed'"):
        _files(str(out), task, "val")
    with pytest.raises(InputError, match=r"result.json: not as its run wrote it .KeyError: 'last'"):
        ended(out / "seed-0", lambda done: done["last"]["loss"])
    put(out / "seed-0/result.json", json.dumps({"trained_on": 1}))
    with pytest.raises(InputError, match=r"result.json: 'trained_on' is 1, expected a list"):
        finished(out / "seed-0")
    put(
        out / "config.json",
        json.dumps({"kind": "adapt", "config": 1, "inputs": {}, "versions": {}}),
    )
    with pytest.raises(InputError, match=r"run: config.json or result.json is not as a run writes"):
        _card("me/it", out, out, _described(out), {})


def test_e14_a_model_folder_is_named_whatever_is_wrong_in_it(tmp_path: Path) -> None:
    uniter(toys.bert(len(homes.words())), homes.words(), 8).export(tmp_path)
    about = json.loads((tmp_path / "join.json").read_text())
    about["options"] |= {"text_types": [0, 9]}
    put(tmp_path / "join.json", json.dumps(about))
    with pytest.raises(InputError, match=f"{tmp_path}: the join does not fit .*segments"):
        load_student(tmp_path)
    folder = homes.home(tmp_path / "modern", toys.modernbert(len(homes.words())), homes.words())
    about = json.loads((folder / "config.json").read_text())
    put(folder / "config.json", json.dumps(about | {"classifier_activation": "geLu"}))
    with pytest.raises(InputError, match=f"{folder}: a modernbert model with the unknown act"):
        load_student(folder)


@pytest.mark.parametrize("score", [nan, 1.5, -1, 10**400, "1"])
def test_e5_a_share_of_people_is_from_0_to_1(score: object, tmp_path: Path) -> None:
    asked = {"question_id": 1, "img_id": "COCO_val2014_000000000042", "sent": "is it red ?"}
    put(tmp_path / "trainval_label2ans.json", json.dumps(["yes", "no"]))
    path = put(tmp_path / "minival.json", json.dumps([asked | {"label": {"yes": score}}]))
    with pytest.raises(InputError, match=r"minival.json, questions\[0\]: .* numbers from 0 to 1"):
        named("tasks", Task, "vqa/minival").read(tmp_path, "minival")
    put(path, "[]")
    assert f"{path}: expected a list of questions" in check(tmp_path).problems[0]


def test_e15_data_check_tells_of_sizes_and_splits_that_readers_refuse(tmp_path: Path) -> None:
    image = {"id": 1, "file_name": "1.jpg", "width": 2**31, "height": 8}
    note = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 4, 4]}
    coco = {"images": [image], "annotations": [note], "categories": [{"id": 1, "name": "dog"}]}
    put(tmp_path / "boxes/instances.json", json.dumps(coco))
    assert "no whole numbers of pixels" in check(tmp_path / "boxes").problems[0]
    image["width"] = 8
    put(tmp_path / "refs/instances.json", json.dumps(coco))
    ref = {"split": "trein", "ann_id": 1, "image_id": 1}
    refs = [ref | {"sentences": [{"sent_id": 1, "sent": "the dog"}]}]
    put(tmp_path / "refs/refs(umd).p", pickle.dumps(refs, 0))
    told = check(tmp_path / "refs").problems
    assert any("splits beside train, val" in one and "trein" in one for one in told), told


def test_e10_a_kill_leaves_no_half_picture_and_no_features_behind_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes.noise(tmp_path / "photos/a.png", (16, 16))
    standins.store(tmp_path / "store", ["a"])
    config = ShowConfig(str(tmp_path / "store"), "a", str(tmp_path / "photos"))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            data_show(config, tmp_path / "out.png")
    assert data_show(config, tmp_path / "out.png")["image"] == "a"  # nothing is in its way
    for kept in (place_of_features("", tmp_path / "run"), tmp_path / "run/prepared/texts"):
        put(kept / "x.npy", "")
    clear_prepared(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
