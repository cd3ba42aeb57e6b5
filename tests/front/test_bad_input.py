"""Whatever is wrong with what the user gave: one line that names it, status 2, and nothing of worth is lost."""

import errno
import json
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any

import homes
import pytest
import torch
import toys
from homes import (
    STEPS,
    coco,
    digests,
    dying,
    home,
    never,
    picture,
    put,
    rte,
    training_with,
    words,
)
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tensorboard.summary.writer.record_writer import RecordWriter
from transformers import AutoModel, BertTokenizer

from groundling.cli import main
from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.commands.adapt import run as adapting
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune import run as tuning
from groundling.commands.pretrain import PretrainConfig
from groundling.core.batch import Example
from groundling.core.errors import InputError, first_line, in_one_line, reading
from groundling.data.corpora.files import corpus
from groundling.data.samples import TextInput, TextSamples
from groundling.models.loading import load_config, load_processor, load_tokenizer, load_weights
from groundling.runs import checkpoints as checkpoint
from groundling.runs.checkpoints import Counters
from groundling.runs.folder import read_json
from groundling.runs.run import Run
from groundling.settings.fields import changed, configured


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sound folders and files: student, teacher, text.txt, glue."""
    folder = tmp_path_factory.mktemp("given")
    homes.student(folder / "student")
    homes.teacher(folder / "teacher")
    homes.text(folder / "text.txt")
    rte(folder / "glue")
    return folder


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`refusal(arguments)` is the only line on stderr but for notes; status 2, nothing on stdout."""

    def call(*arguments: object) -> str:
        capsys.readouterr()
        assert main([str(a) for a in arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        lines = [line for line in err.splitlines() if not line.startswith("note: ")]
        assert len(lines) == 1 and lines[0].startswith("groundling: "), err
        assert err.endswith(f"{lines[0]}\n")
        return f"{lines[0]}\n"

    return call


def adapting_with(given: Path, out: Path, **changes: object) -> list[object]:
    flags = {
        "student": given / "student",
        "teacher": given / "teacher",
        "text": given / "text.txt",
        "steps": 2,
        "batch": 4,
        "max-length": 40,
        "out": out,
    } | changes
    return ["adapt", "--cpu", *(x for name, value in flags.items() for x in (f"--{name}", value))]


def tuning_with(given: Path, out: Path, **changes: object) -> list[object]:
    flags = {
        "model": given / "student",
        "task": "glue/rte",
        "data": given / "glue",
        "steps": 1,
        "batch": 4,
        "out": out,
    }
    return [
        "finetune",
        "--cpu",
        *(x for name, value in (flags | changes).items() for x in (f"--{name}", value)),
    ]


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("t.txt", None, "t.txt: no such file"),
        ("t.txt", b"", "t.txt: the file is empty"),
        ("t.txt", b" \n\n", "t.txt: the file is empty"),
        ("t.txt", b"fine\ncaf\xe9\n", "t.txt, line 2: not UTF-8 (byte 0xe9)"),
        ("c.json", None, "c.json: no such file or folder"),
        ("c.json", b'{"images": [],\n"annotations": [', "c.json, line 2: not valid JSON"),
        (
            "c.json",
            b'{"images": []}',
            "c.json: not COCO captions; expected the keys `images` and `annotations`",
        ),
        (
            "c.json",
            b'{"images": [{"id": 1}], "annotations": []}',
            "images[0] has no `id` or no `file_name`",
        ),
        (
            "x.token.txt",
            b"1.jpg#0\tA dog.\n2.jpg A cat.\n",
            "token.txt, line 2: expected file#number<TAB>caption",
        ),
        ("x.tsv", b"A dog.\t1.jpg\nA cat.\n", "x.tsv, line 2: expected caption<TAB>image file"),
    ],
)
def test_text_that_cannot_be_read(
    name: str,
    content: bytes | None,
    complaint: str,
    given: Path,
    tmp_path: Path,
    refusal: Callable[..., str],
) -> None:
    path = tmp_path / name
    if content is not None:
        put(path, content)
    line = refusal(*adapting_with(given, tmp_path / "out", text=path))
    assert complaint in line
    assert str(path) in line


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("16\tA dog.\tA cat.", "line 18: 3 fields, expected 4"),
        (
            "16\tA dog.\tA cat.\tmaybe",
            "line 18: label 'maybe' is none of entailment, not_entailment",
        ),
    ],
)
def test_a_broken_row_of_a_task(
    row: str, complaint: str, given: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    path = rte(tmp_path / "glue") / "RTE" / "train.tsv"
    put(path, path.read_text() + row + "\n")
    line = refusal(*tuning_with(given, tmp_path / "out", data=tmp_path / "glue"))
    assert f"{path}, {complaint}" in line


@pytest.mark.parametrize("kind", ["garbage", "cut short", "missing"])
def test_images_that_are_broken_or_missing(
    kind: str, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    for n in (1, 2, 3):
        picture(tmp_path / "images" / f"{n}.png", size=(64, 64))
    bad = tmp_path / "images" / "2.png"
    if kind == "missing":
        bad.unlink()
    else:
        put(bad, b"no image" if kind == "garbage" else bad.read_bytes()[:60])
    captions = coco(
        tmp_path / "c.json", [(n, f"{n}.png") for n in (1, 2, 3)], [(n, "a dog") for n in (1, 2, 3)]
    )
    line = refusal(
        "teach",
        "--captions",
        captions,
        "--images",
        tmp_path / "images",
        "--cpu",
        "--steps",
        1,
        "--batch",
        2,
        "--size",
        16,
        "--vision",
        32,
        1,
        "--text",
        32,
        1,
        "--vocabulary",
        520,
        "--out",
        tmp_path / "out",
    )
    if kind == "missing":
        assert "1 of 3 captioned images are missing, the first is 2.png" in line
        assert "--skip-missing" in line
    else:
        assert f"{bad}: does not decode as an image" in line


# -- model folders ---------------------------------------------------------------------------------------------------


def no_tokenizer(folder: Path) -> str:
    home(folder, toys.bert(len(words())), None)
    return "no tokenizer"


def no_config(folder: Path) -> str:
    home(folder, None, words())
    return "config.json is missing"


def no_weights(folder: Path) -> str:
    (homes.student(folder) / "model.safetensors").unlink()
    return "the weights could not be loaded"


def cut_short(folder: Path) -> str:
    path = homes.student(folder) / "model.safetensors"
    put(path, path.read_bytes()[: path.stat().st_size // 2])
    return "the weights could not be loaded"


def corrupt(folder: Path) -> str:
    put(homes.student(folder) / "model.safetensors", b"no tensors in here")
    return "the weights could not be loaded"


def other_sizes(folder: Path) -> str:
    config = json.loads((homes.student(folder) / "config.json").read_text())
    put(folder / "config.json", json.dumps(config | {"num_hidden_layers": 3}))
    return "weights are missing, the first is encoder.layer.2"


def not_finite(folder: Path) -> str:
    path = homes.student(folder) / "model.safetensors"
    weights = load_file(path)
    weights["encoder.layer.1.output.dense.bias"][3] = float("nan")
    save_file(weights, path, {"format": "pt"})
    return "weights of encoder.layer.1.output.dense.bias are no numbers"


def no_mask(folder: Path) -> str:
    home(folder, toys.bert(400), toys.siglip_words())
    return "no mask token"


def small_table(folder: Path) -> str:
    home(folder, toys.bert(50), words())
    return f"the tokenizer knows {len(words())} pieces, the encoder 50"


def not_a_text_encoder(folder: Path) -> str:
    home(folder, toys.vit(), words())
    return "a vit model is no text encoder"


def with_a_decoder(folder: Path) -> str:
    home(folder, toys.t5(len(words())), words())
    return "a t5 model is no text encoder"


def two_towers(folder: Path) -> str:
    homes.teacher(folder)
    return "a clip model is no text encoder"


def nowhere(folder: Path) -> str:
    return "no model found there"


BROKEN = [
    no_tokenizer,
    no_config,
    no_weights,
    cut_short,
    corrupt,
    other_sizes,
    not_finite,
    small_table,
    not_a_text_encoder,
    with_a_decoder,
    nowhere,
]


@pytest.mark.parametrize("broken", [*BROKEN, no_mask, two_towers])
def test_a_broken_student(
    broken: Callable[[Path], str], given: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    complaint = broken(tmp_path / "broken")
    line = refusal(*adapting_with(given, tmp_path / "out", student=tmp_path / "broken", arm="mlm"))
    assert complaint in line
    assert str(tmp_path / "broken") in line


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_model_to_tune(
    broken: Callable[[Path], str], given: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    complaint = broken(tmp_path / "broken")
    line = refusal(*tuning_with(given, tmp_path / "out", model=tmp_path / "broken"))
    assert complaint in line
    assert str(tmp_path / "broken") in line


def test_a_broken_teacher(given: Path, tmp_path: Path, refusal: Callable[..., str]) -> None:
    line = refusal(*adapting_with(given, tmp_path / "a", teacher=given / "student"))
    assert f"{given / 'student'}: a bert model is no CLIP-like teacher" in line
    line = refusal(
        *adapting_with(
            given, tmp_path / "b", teacher=home(tmp_path / "t", toys.clip(homes.pieces()), None)
        )
    )
    assert f"{tmp_path / 't'}: no tokenizer" in line


EVIL = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
from transformers import BertConfig as Evil
"""


@pytest.mark.parametrize(
    ("file", "kind", "said"),
    [
        ("config.json", {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil"}}, "custom"),
        ("config.json", {"model_type": "bert", "auto_map": {"AutoModel": "evil.Evil"}}, ""),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}}, ""),
        ("preprocessor_config.json", {"auto_map": {"AutoImageProcessor": "evil.Evil"}}, "custom"),
    ],
)
def test_e11_code_that_a_folder_brings_is_never_run(
    file: str, kind: dict, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stock class is taken where there is one; else one line, and nobody is asked anything."""
    monkeypatch.setattr("builtins.input", never)
    folder = homes.student(tmp_path / "evil")
    put(folder / "evil.py", EVIL)
    old = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    old.pop("tokenizer_class", None)
    put(folder / file, json.dumps(old | kind))
    told = []
    for load in (load_config, load_tokenizer, partial(load_weights, AutoModel), load_processor):
        try:
            load(folder)
        except InputError as error:
            told.append(str(error))
    assert not list(tmp_path.rglob("ran"))
    assert not [line for line in told if "\n" in line or str(folder) not in line]
    assert any("contains custom code" in line for line in told) == bool(said)


def test_the_same_command_works_once_the_input_is_mended(
    given: Path, tmp_path: Path, refusal: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    home(tmp_path / "student", toys.bert(len(words())), words())
    (tmp_path / "student" / "config.json").unlink()
    command = adapting_with(given, tmp_path / "out", student=tmp_path / "student", arm="mlm")
    assert "config.json is missing" in refusal(*command)
    homes.student(tmp_path / "student")
    assert main([str(x) for x in command]) == 0, capsys.readouterr().err


# -- what a message quotes of a library ------------------------------------------------------------------------------


def test_an_error_is_quoted_in_one_short_line() -> None:
    error = OSError("\n  first  line\nsecond line " + 200 * "x")
    assert first_line(error) == "first  line"
    assert in_one_line(error).startswith("first line second line xxx")
    assert (len(in_one_line(error)), len(first_line(ValueError(200 * "y")))) == (160, 160)
    assert (first_line(KeyError()), in_one_line(KeyError())) == ("KeyError", "")


# -- settings --------------------------------------------------------------------------------------------------------


TUNE = ["finetune", "--model", "STUDENT", "--data", "GLUE", "--task", "glue/rte"]
SEEING = ["pretrain", "--student", "STUDENT", "--regions", "R", "--captions", "C"]


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["adapt"], "needs --student"),
        (["adapt", "--student", "x"], "needs --teacher"),
        (
            ["adapt", "--student", "x", "--arm", "mlm+nonsense"],
            "'nonsense' is none of mlm, xdbert, l1, contrastive",
        ),
        (["adapt", "--student", "STUDENT", "--arm", "mlm"], "--text"),
        (["teach"], "needs --captions"),
        (["finetune"], "needs --model"),
        (
            ["finetune", "--model", "STUDENT", "--data", "x", "--task", "glue/x"],
            "no task is called 'glue/x'",
        ),
        (
            ["finetune", "--model", "STUDENT", "--data", "absent", "--task", "glue/rte"],
            "absent: no such folder or file of data",
        ),
        (
            [*TUNE, "--label", "y"],
            "--label y makes a task of your own file; leave it or --task out",
        ),
        ([*TUNE, "--blind"], "--blind is about regions; pass --regions STORE or leave it out"),
        ([*TUNE, "--most-regions", "3"], "--most-regions is about regions; pass --regions STORE"),
        (["probe"], "needs --model"),
        (
            ["probe", "--model", "STUDENT", "--data", "GLUE"],
            "nothing to ask; expected a folder `probes`",
        ),
        (["compare", "--arms", "mlm"], "needs --tasks and --data"),
        (
            ["compare", "--arms", "nonsense", "--tasks", "glue/rte", "--data", "GLUE"],
            "'nonsense' is none of",
        ),
        (["data", "world", "--nouns", "3"], "--nouns = 3, expected 4 to 1000"),
        (["info", "nonsense"], "nonsense: neither a model folder nor a preset"),
        (
            [*SEEING, "--budget", "-1"],
            "--budget = -1, expected at least 0",
        ),
        (
            [*SEEING, "--most-regions", "-1"],
            "--most-regions = -1, expected at least 0",
        ),
        (
            [
                "finetune",
                "--model",
                "STUDENT",
                "--data",
                "GLUE",
                "--task",
                "cola",
                "--max-train=-1",
            ],
            "--max-train = -1, expected at least 0",
        ),
    ],
)
def test_settings_that_are_missing_or_unknown(
    command: list[str], complaint: str, given: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    names = {"STUDENT": str(given / "student"), "GLUE": str(given / "glue")}
    out = [] if command[0] == "info" else ["--out", str(tmp_path / "out")]
    assert complaint in refusal(*[names.get(word, word) for word in command], *out)


NUMBERS = {
    "td_weight": (nan, -0.1, inf),
    "td_temperature": (nan, inf, 0.0, -1.0),
    "temperature": (nan, inf, 0.0, -0.07),
    "distill_weight": (nan, -1.0),
    "distill_warmup": (-1,),
    "sentence": (inf,),
    "word": (-0.5,),
    "words": (0,),
    "max_windows": (-1,),
    "cache_gb": (nan, -1.0),
    "mask_rate": (1.5, nan),
    "adversarial_size": (nan,),
}


@pytest.mark.parametrize("kind", [AdaptConfig, PretrainConfig, FinetuneConfig])
def test_numbers_out_of_range_are_told_by_their_flag(kind: Any) -> None:
    configured(kind, cache_gb=inf, td_weight=0.0)
    for name, values in NUMBERS.items():
        for value in values:
            with pytest.raises(InputError) as told:
                configured(kind, **{name: value})
            flag = f"--{name.replace('_', '-')} = {value}, expected "
            assert str(told.value).startswith(flag)


@pytest.mark.parametrize(
    "arguments",
    [
        ["teach", "--window", "2"],
        ["teach", "--patch", "0"],
        ["teach", "--shift", "1.5"],
        ["teach", "--text", "64", "-1"],
        ["finetune", "--max-length", "-1"],
        ["regions", "--overlap", "1.5"],
        ["regions", "--most", "0"],
        ["similarity", "--draws", "0"],
        ["quickstart", "--scale", "0.0"],
        ["compare", "--adapt.max-texts", "-1"],
    ],
)
def test_e8_e13_ranges_are_told_before_anything_starts(
    arguments: list[str], tmp_path: Path, refusal: Callable[..., str]
) -> None:
    told = refusal(*arguments, "--out", tmp_path / "out")
    assert told.startswith(f"groundling: {arguments[1]} = {' '.join(arguments[2:])}, expected ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["adapt", "--student", "S", "--arm", "mlm"],
        ["pretrain", "--student", "S", "--regions", "R", "--captions", "C"],
        TUNE,
    ],
)
def test_a_weight_that_is_no_number_is_told_before_anything_starts(
    command: list[str], tmp_path: Path, refusal: Callable[..., str]
) -> None:
    told = refusal(*command, "--td-weight", "nan", "--out", str(tmp_path / "out"))
    assert told == "groundling: --td-weight = nan, expected at least 0\n"
    assert not (tmp_path / "out").exists()


def test_numbers_of_a_sweep_are_told_by_their_table(
    tmp_path: Path, refusal: Callable[..., str]
) -> None:
    file = put(
        tmp_path / "s.toml", '[variants.a]\nmodel = "x"\n[tasks."glue/rte"]\ntd_weight = -1.0\n'
    )
    told = refusal("sweep", "--file", file, "--out", str(tmp_path / "out"))
    assert '[tasks."glue/rte"]: td_weight = -1.0, expected at least 0' in told


def test_fewer_texts_than_a_batch(given: Path, tmp_path: Path, refusal: Callable[..., str]) -> None:
    line = refusal(*adapting_with(given, tmp_path / "out", arm="mlm", batch=41))
    assert "40 samples are fewer than one batch of 41; lower --batch" in line


def test_a_length_that_leaves_no_room_for_text(
    given: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str], tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "groundling.data.corpora.files.fitting", never
    )  # with no room it would never end
    assert "max" in refusal(*adapting_with(given, tmp_path / "out", arm="mlm", **{"max-length": 2}))


@pytest.mark.parametrize(
    ("pair", "length"), [(None, -1), (None, 0), (None, 1), (None, 2), ("a cat", 2), ("a cat", 3)]
)
def test_a_text_is_never_longer_than_it_may_be(pair: str | None, length: int) -> None:
    """Without room, the tokenizers' truncation silently keeps the whole text."""

    def made() -> None:
        TextSamples([Example("a", "a dog", pair=pair)], TextInput(toys.bert_words(), length)).get(
            [0]
        )

    with pytest.raises(InputError, match=f"--max-length {length}: no room") as told:
        made()
    assert "\n" not in str(told.value)


# -- text longer than the encoder ------------------------------------------------------------------------------------


def test_finetune_cuts_long_texts_and_counts_what_it_cut(given: Path, tmp_path: Path) -> None:
    sentence = " ".join(toys.sentences()[:6])
    rte(tmp_path / "glue", count=8, sentence=sentence)
    made, tokenizer = toys.sentences(), words()
    lengths = [len(tokenizer(sentence, made[-1 - i])["input_ids"]) for i in range(8)]
    expected = sum(
        length - 64 for length in lengths
    )  # the encoder has 64 positions, --max-length says 128
    assert min(lengths) > 64
    config = configured(
        FinetuneConfig, model=str(given / "student"), task="glue/rte", data=str(tmp_path / "glue")
    )
    result = finetune(config, replace(STEPS, steps=1, batch=8), tmp_path / "out")
    assert result["dropped_pieces"] == expected


def test_adapt_splits_long_texts_and_loses_nothing(given: Path, tmp_path: Path) -> None:
    made = toys.sentences()
    long = [" ".join(made[i : i + 8]) for i in range(0, 64, 8)] + made[64:72]
    path = put(tmp_path / "long.txt", "\n".join(long))
    examples = corpus([path], "lines", load_tokenizer(given / "student"), 64)
    assert "".join("".join(e.text for e in examples).split()) == "".join("".join(long).split())
    config = configured(
        AdaptConfig, student=str(given / "student"), arm="mlm", text=(str(path),), max_length=128
    )
    result = adapt(config, STEPS, tmp_path / "out")
    assert result["texts"] == len(examples) > len(long)
    assert result["dropped_pieces"] == 0


def packed(path: Path) -> None:
    struct.unpack("<i", path.read_bytes())


def zipped(path: Path) -> None:
    zipfile.ZipFile(path)


def coded(path: Path) -> None:
    path.read_text(encoding="utf-8")


def endless(path: Path) -> None:
    endless(path)


def huge(path: Path) -> None:
    raise MemoryError


@pytest.mark.parametrize("read", [packed, zipped, coded, endless, huge, Path.iterdir])
def test_e14_what_a_reader_stumbles_over_is_one_line_that_names_the_file(
    read: Callable[[Path], Any], tmp_path: Path
) -> None:
    file = put(tmp_path / "damaged", b"\xff")
    with pytest.raises(InputError) as told, reading(file):
        list(read(file))
    assert str(told.value).startswith(f"{file}: cannot be read (")
    with (
        pytest.raises(InputError, match="gone: no such file; make it"),
        reading("gone", "; make it"),
    ):
        Path("gone").read_bytes()


def test_e14_what_the_system_refuses_is_one_line_that_names_the_file(
    given: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Callable[..., str],
) -> None:
    file = put(tmp_path / "damaged", b"\xff")
    monkeypatch.setattr(adapting, "corpus_samples", lambda *_: list(file.iterdir()))
    line = refusal(*adapting_with(given, tmp_path / "out", arm="mlm"))
    assert line.startswith(f"groundling: {file}: cannot be read or written (")


def test_e14_json_is_bounded_in_depth_and_numbers(tmp_path: Path) -> None:
    for hostile in ("[" * 10**5, "9" * 5000, "[1" + "0" * 5000 + "]"):
        file = put(tmp_path / "a.json", hostile)
        with pytest.raises(InputError, match=r"a.json: nested too deep, or a number of too many"):
            read_json(file)


# -- weights that are no numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [adapting_with, tuning_with])
def test_e3_weights_that_are_no_numbers_are_not_exported(
    command: Callable[..., list[object]],
    given: Path,
    tmp_path: Path,
    refusal: Callable[..., str],
) -> None:
    """The update of the last step overflows, which no loss is there to tell; a second try says the same."""
    changes: dict[str, object] = {"arm": "mlm"} if command is adapting_with else {}
    arguments = command(given, tmp_path / "out", steps=1, lr=1e38, warmup=0, **changes)
    for _ in range(2):
        line = refusal(*arguments)
        assert "step 1: weights of model." in line
        assert "so no model is written; lower --lr" in line
    assert not list(tmp_path.rglob("model"))
    assert not list(tmp_path.rglob("result.json"))
    assert not list(tmp_path.rglob("state.safetensors"))


# -- a full disk -----------------------------------------------------------------------------------------------------


def full_disk() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def safetensors_full_disk() -> SafetensorError:
    return SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    )


@pytest.fixture
def control(given: Path) -> AdaptConfig:
    return configured(
        AdaptConfig,
        student=str(given / "student"),
        arm="mlm",
        text=(str(given / "text.txt"),),
        max_length=40,
    )


@pytest.fixture(scope="session")
def whole(given: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights of an undisturbed run."""
    out = tmp_path_factory.mktemp("whole")
    config = configured(
        AdaptConfig,
        student=str(given / "student"),
        arm="mlm",
        text=(str(given / "text.txt"),),
        max_length=40,
    )
    adapt(config, STEPS, out)
    return load_file(out / "model" / "model.safetensors")


def same(out: Path, whole: dict[str, torch.Tensor]) -> bool:
    found = load_file(out / "model" / "model.safetensors")
    return found.keys() == whole.keys() and all(torch.equal(found[k], whole[k]) for k in whole)


@pytest.mark.parametrize("full", [full_disk, safetensors_full_disk])
def test_the_disk_fills_up_during_a_checkpoint(
    full: Callable[[], Exception],
    control: AdaptConfig,
    whole: dict,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, calls = tmp_path / "out", []

    def save(tensors: dict, path: Path) -> None:
        calls.append(path)
        if len(calls) == 2:
            Path(path).write_bytes(b"half")
            raise full()
        save_file(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", save)
        with pytest.raises(InputError, match="step-000000002: cannot be written") as error:
            adapt(control, STEPS, out)
    assert "\n" not in str(error.value)
    assert "No space left on device" in str(error.value)
    folder = out / "checkpoints" / "step-000000001"
    assert len(load_file(folder / "state.safetensors")) > 50
    assert json.loads((folder / "counters.json").read_text())["step"] == 1
    assert not (out / "checkpoints" / "step-000000002").exists()

    with monkeypatch.context() as patch:
        step = dying(3)  # two steps are left, so it does not die
        patch.setattr(adapting, "train", training_with(step))
        assert adapt(control, STEPS, out)["steps"] == 3
    assert step.calls == 2
    assert same(out, whole)
    assert [line["step"] for line in homes.log_of(out)] == [1, 2, 3]


@pytest.mark.parametrize(("at", "named"), [(1, "tensorboard"), (3, "log.jsonl")])
def test_e14_the_disk_fills_up_under_tensorboards_writer(
    at: int,
    named: str,
    control: AdaptConfig,
    whole: dict,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its file is written in a thread, whose errors nobody may see as a traceback, nor miss."""
    written = []

    def write(self: RecordWriter, event: bytes) -> None:
        written.append(event)
        if len(written) >= at:
            raise full_disk()

    with monkeypatch.context() as patch:
        patch.setattr(RecordWriter, "write", write)
        with pytest.raises(InputError, match=f"out/{named}: cannot be written .No space left"):
            adapt(control, STEPS, tmp_path / "out")
    assert "Traceback" not in capfd.readouterr().err
    adapt(control, STEPS, tmp_path / "out")
    assert same(tmp_path / "out", whole)
    assert [line["step"] for line in homes.log_of(tmp_path / "out")] == [1, 2, 3]


def full_json(patch: pytest.MonkeyPatch) -> None:
    real = Path.write_text

    def write(path: Path, *arguments: object, **options: object) -> int:
        if path.name == "result.json.partial":
            path.write_bytes(b"{")
            raise full_disk()
        return real(path, *arguments, **options)

    patch.setattr(Path, "write_text", write)


def full_card(patch: pytest.MonkeyPatch) -> None:
    real = Path.write_text

    def write(path: Path, *arguments: object, **options: object) -> int:
        if path.name == "README.md":
            raise full_disk()
        return real(path, *arguments, **options)

    patch.setattr(Path, "write_text", write)


def full_export(patch: pytest.MonkeyPatch) -> None:
    def save(*_: object, **__: object) -> None:
        raise safetensors_full_disk()

    patch.setattr("transformers.modeling_utils.safe_save_file", save)


def full_tokenizer(patch: pytest.MonkeyPatch) -> None:
    def save(*_: object, **__: object) -> None:
        raise full_disk()

    patch.setattr(BertTokenizer, "save_pretrained", save)


@pytest.mark.parametrize("fill", [full_json, full_card, full_export, full_tokenizer])
def test_the_disk_fills_up_at_the_end(
    fill: Callable[[pytest.MonkeyPatch], None],
    control: AdaptConfig,
    whole: dict,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        fill(patch)
        with pytest.raises(
            InputError, match=r"cannot be written .*No space left on device"
        ) as error:
            adapt(control, STEPS, out)
    assert "\n" not in str(error.value)
    assert str(out) in str(error.value)
    assert not (out / "result.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(adapting, "train", training_with(never))  # all steps are done
        adapt(control, STEPS, out)
    assert same(out, whole)
    assert json.loads((out / "result.json").read_text())["steps"] == 3


def test_a_full_disk_is_one_line_on_the_command_line(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str]
) -> None:
    def save(*_: object) -> None:
        raise full_disk()

    monkeypatch.setattr(checkpoint, "save_file", save)
    line = refusal(*adapting_with(given, tmp_path / "out", arm="mlm"))
    assert "cannot be written (No space left on device)" in line


def test_e12_a_model_folder_is_there_as_a_whole_or_not_at_all(
    control: AdaptConfig, whole: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill after the weights, before the tokenizer; what an earlier try left is replaced."""

    def killed(*_: object, **__: object) -> None:
        raise homes.Killed

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(BertTokenizer, "save_pretrained", killed)
        with pytest.raises(homes.Killed):
            adapt(control, STEPS, out)
    assert not (out / "model").exists()
    put(out / "model" / "old.bin", "of an earlier version")
    adapt(control, STEPS, out)
    assert same(out, whole)
    assert not (out / "model" / "old.bin").exists()
    assert not list(out.glob(".partial"))


# -- checkpoints that were damaged -----------------------------------------------------------------------------------


def flipped(path: Path) -> None:
    """One bit in the middle of the last tensor."""
    content = bytearray(path.read_bytes())
    content[-50] ^= 4
    put(path, bytes(content))


def halved(path: Path) -> None:
    put(path, path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    put(path, "{}")


@pytest.fixture(scope="module")
def stopped(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run leaves that is killed in its third and last step."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    config = configured(
        AdaptConfig,
        student=str(given / "student"),
        arm="mlm",
        text=(str(given / "text.txt"),),
        max_length=40,
    )
    homes.kill(adapt, config, STEPS, out, at=3)
    return out


@pytest.mark.parametrize("damage", [flipped, halved, emptied, Path.unlink])
@pytest.mark.parametrize("file", ["state.safetensors", "counters.json", "checksums.json"])
def test_e2_a_damaged_checkpoint_is_told_and_the_one_before_taken(
    file: str,
    damage: Callable[[Path], None],
    stopped: Path,
    control: AdaptConfig,
    tmp_path: Path,
) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    states = sorted((out / "checkpoints").glob("step-*"))
    damage(states[-1] / file)
    restored: list[Any] = []
    module = torch.nn.Linear(1, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "_load", lambda state, *_: restored.append(state) or Counters(1))
        found = checkpoint.Checkpoints(out / "checkpoints")
        found.restore(module, torch.optim.SGD(module.parameters()))
        damage(states[-2] / file)
        with pytest.raises(InputError, match=r"the state cannot be read .*, and no other is whole"):
            found.restore(module, torch.optim.SGD(module.parameters()))
    assert restored == [states[-2]]


def test_e2_a_run_goes_on_from_the_older_checkpoint_to_the_same_weights(
    stopped: Path, control: AdaptConfig, whole: dict, tmp_path: Path, capsys: Any
) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    flipped(out / "checkpoints/step-000000002/state.safetensors")
    adapt(control, STEPS, out)
    said = capsys.readouterr().err
    assert "step-000000002/state.safetensors: the state cannot be read (damaged" in said
    assert "; going on from step 1, the checkpoint before\n" in said
    assert same(out, whole)
    assert [line["step"] for line in homes.log_of(out)] == [1, 2, 3]


# -- folders of other runs -------------------------------------------------------------------------------------------


def test_a_folder_belongs_to_one_run(
    control: AdaptConfig, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    mine = put(tmp_path / "text.txt", (given / "text.txt").read_bytes())
    control = replace(control, text=(str(mine),))
    result = adapt(control, STEPS, out)
    before = digests(out)
    monkeypatch.setattr(adapting, "train", never)
    monkeypatch.setattr(tuning, "train", never)
    assert adapt(control, STEPS, out) == result == json.loads((out / "result.json").read_text())

    for config, training, difference in (
        (control, replace(STEPS, lr=2e-3), "lr: 0.001 there, 0.002 now"),
        (changed(control, mask_rate=0.3), STEPS, "mask_rate: 0.15 there, 0.3 now"),
        (
            replace(control, arm="joint_mlm", teacher=str(given / "teacher")),
            STEPS,
            "arm: mlm there, joint_mlm now",
        ),
    ):
        with pytest.raises(InputError, match="holds another run") as error:
            adapt(config, training, out)
        assert difference in str(error.value)
        assert str(out) in str(error.value)
    with pytest.raises(InputError, match="kind: adapt there, finetune now"):
        finetune(
            configured(
                FinetuneConfig,
                model=str(given / "student"),
                task="glue/rte",
                data=str(given / "glue"),
            ),
            STEPS,
            out,
        )
    put(mine, mine.read_text() + "one more line\n")
    with pytest.raises(InputError, match=r"sha256: [0-9a-f]{64} there, [0-9a-f]{64} now"):
        adapt(control, STEPS, out)
    assert digests(out) == before


def test_foreign_files_are_left_alone(control: AdaptConfig, tmp_path: Path) -> None:
    put(tmp_path / "thesis" / "chapter1.tex", "years of work")
    put(tmp_path / "file", "not even a folder")
    for name in ("thesis", "file"):
        with pytest.raises(
            InputError,
            match=f"{name}: exists and is no run folder of groundling; choose another --out",
        ):
            adapt(control, STEPS, tmp_path / name)
    assert set(digests(tmp_path)) == {"thesis/chapter1.tex", "file"}
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "years of work"


def test_a_folder_that_another_run_took_gets_no_result(tmp_path: Path) -> None:
    """Until a run has written more than its settings, other settings may replace them."""
    first = Run(tmp_path / "out", "test", {"seed": 0}, {}, cpu=True)
    second = Run(tmp_path / "out", "test", {"seed": 1}, {}, cpu=True)
    with pytest.raises(InputError, match=r"out: taken by another run .*seed: 1 there, 0 now"):
        first.finish({"from": 0})
    assert second.finish({"from": 1}) == second.result


HOLDS = """
import os, sys
from pathlib import Path
from groundling.runs.folder import hold
held = hold(Path(sys.argv[1]))
os.write(1, b"held\\n" if os.fork() else b"forked\\n")
sys.stdin.read()  # the fork, like a data loader's worker, outlives its parent
"""


def test_e12_a_folder_is_held_by_one_process_until_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    arguments = [sys.executable, "-c", HOLDS, str(tmp_path / "out")]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        # A fork lets go of the folder before it says so.
        assert {other.stdout.readline(), other.stdout.readline()} == {"held\n", "forked\n"}
        with pytest.raises(InputError, match="out: another process is writing there now"):
            Run(tmp_path / "out", "test", {}, {}, cpu=True)
        assert not list((tmp_path / "out").iterdir())
        other.kill()
        other.wait()
        first = Run(tmp_path / "out", "test", {}, {}, cpu=True)
        assert Run(tmp_path / "out", "test", {}, {}, cpu=True).folder == first.folder


def test_settings_that_were_never_whole_are_as_good_as_none(
    control: AdaptConfig, whole: dict, tmp_path: Path
) -> None:
    """A run was killed while it wrote them."""
    put(tmp_path / "out/config.json.partial", "{")
    adapt(control, STEPS, tmp_path / "out")
    assert same(tmp_path / "out", whole)


def test_an_empty_folder_is_as_good_as_none(
    control: AdaptConfig, whole: dict, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    adapt(control, STEPS, tmp_path / "out")
    assert same(tmp_path / "out", whole)
    shutil.rmtree(tmp_path / "out" / "checkpoints", ignore_errors=True)
    AutoModel.from_pretrained(tmp_path / "out" / "model")


@pytest.mark.parametrize(
    ("command", "made"), [(adapting_with, "model"), (tuning_with, "seed-0/model")]
)
def test_e9_a_finished_run_whose_model_is_gone_says_how_to_make_it_again(
    command: Callable[..., list[object]], made: str, given: Path, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "out"
    changes: dict[str, object] = {"arm": "mlm"} if command is adapting_with else {}
    arguments = [str(one) for one in command(given, out, **changes)]
    assert main(arguments) == 0
    before = digests(out / made)
    shutil.rmtree(out / made)
    capsys.readouterr()
    assert main(arguments) == 0
    result = (out / made).with_name("result.json")
    said = (
        f"finished earlier, but {out / made} is gone since; delete {result}, and the same command"
    )
    assert said in capsys.readouterr().err
    result.unlink()
    assert main(arguments) == 0
    assert digests(out / made) == before
