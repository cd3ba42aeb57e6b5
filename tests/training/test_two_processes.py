"""Two processes, on a machine each, that share a batch do what one process does with all of it."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import PartialState
from safetensors.torch import load_file, save_file
from tiny import homes, toys
from tiny.objectives import assert_close, still, weights
from torch import nn
from transformers import CLIPImageProcessorPil

from groundling.cli import main
from groundling.commands.regions import COMMAND as regions
from groundling.commands.regions import RegionsConfig
from groundling.core.batch import Batch, EncoderOutput, Example, collate
from groundling.core.output_types import Classification
from groundling.core.rng import generator
from groundling.data import corpora
from groundling.data.corpora import corpus_samples, write_shard
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.clip import ClipDualEncoder, ClipImageTower, make_clip_text_tower
from groundling.models.frozen_clip import FrozenClip
from groundling.objectives import Objective
from groundling.objectives.caption_to_image import Cap2Img
from groundling.objectives.contrastive import ClipContrastiveLoss
from groundling.objectives.feature_distillation import ContrastiveDistillation
from groundling.objectives.grounded_space import GroundedSpace
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.supervised import SupervisedObjective
from groundling.objectives.xdbert import ClipTokenClassification, SameSentencePrediction
from groundling.settings.fields import make_settings
from groundling.settings.objectives import TargetedDistillationSettings, TrainingStepSettings
from groundling.settings.training import TrainingArguments
from groundling.teachers import feature_cache as cache
from groundling.teachers.clip import ClipTeacher
from groundling.teachers.feature_cache import FeatureCache, TeacherDataset, TeacherSet
from groundling.teachers.text import ClipTextTeacher
from groundling.training.batch_sampler import DataSource
from groundling.training.fit import HeldOutLoss
from groundling.training.loop import train
from groundling.training.training_steps import VillaStep
from groundling.vision_language.uniter import uniter

STEPS = 4
KEPT = {"clip_image", "clip_text", "clip_words", "clip_word"}
CONFIG = TrainingArguments(steps=STEPS, batch=8, lr=1e-4, cpu=True, log_every=1, save_every=2)


def adapt(out: Path) -> None:
    """XDBERT and distillation."""
    model = toys.cross_modal(dropout=0.0)
    sizes = model.sizes._replace(teacher=24)
    torch.manual_seed(3)
    objectives = [
        MaskedLM(sizes, mask_id=4, joint=True),
        SameSentencePrediction(sizes),
        ClipTokenClassification(sizes),
        ContrastiveDistillation(sizes),
    ]
    tokens = toys.clip_words()
    teacher = ClipTextTeacher(make_clip_text_tower(toys.clip(tokens)), tokens, max_windows=1)
    finish(
        still(model),
        objectives,
        TeacherDataset(toys.both_sides(32, max_windows=1), teacher, FeatureCache()),
        out,
    )
    held = [DataSource(TeacherDataset(toys.both_sides(19, max_windows=1), teacher, FeatureCache()))]
    found = HeldOutLoss("texts", held, model, objectives, (), CONFIG).measure()
    homes.put(out / f"held-{os.environ.get('RANK', '0')}.json", json.dumps(found))


def contrast(out: Path) -> None:
    """CLIP, whose negatives come from the other process too."""
    tokens = toys.clip_words()
    model = ClipDualEncoder(toys.clip(tokens), tokens)
    finish(still(model), [ClipContrastiveLoss(model.sizes)], toys.Pictures(tokens), out)


def cached(out: Path) -> None:
    """CLIP, with the negatives of both processes' two micro-batches: as in one batch of one process."""
    tokens = toys.clip_words()
    model = ClipDualEncoder(toys.clip(tokens), tokens)
    parts = int(os.environ.get("WORLD_SIZE", "1"))
    config = replace(CONFIG, gradient_accumulation_steps=parts, cached_negatives=True)
    finish(still(model), [ClipContrastiveLoss(model.sizes)], toys.Pictures(tokens), out, config)


def ground(out: Path) -> None:
    """Similarities and negatives among the captions of both processes; 31 captions of seven images."""
    model = toys.cross_modal(dropout=0.0).text
    sizes = model.sizes._replace(teacher_image=20)
    torch.manual_seed(3)
    objectives = [GroundedSpace(sizes, grounded_size=16), Cap2Img(sizes)]
    finish(still(model), objectives, toys.caption_pairs(31, 5, max_length=12), out)


def keep(out: Path) -> None:
    """A teacher's features of images and texts, in shards of two."""
    tokens = toys.clip_words()
    clip = toys.clip(tokens)
    square = CLIPImageProcessorPil(
        size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
    )
    image = ClipImageTower(clip.vision_model, clip.visual_projection, square)
    photos = out.parent / f"photos-{os.environ.get('RANK', '0')}"
    for number in range(5):
        homes.picture(photos / f"{number}.png", (9 * number, 200, 30))
    options = TargetedDistillationSettings(teacher_images=str(photos))
    teacher = ClipTeacher(FrozenClip(image, make_clip_text_tower(clip), tokens), KEPT, options)
    texts = [
        Example(f"m{n}", text, images=(f"{n % 5}",)) for n, text in enumerate(toys.sentences()[:13])
    ]
    before = cache.SHARD
    cache.SHARD = 2
    samples, _ = TeacherSet([teacher], FeatureCache(out)).wrap(
        TextDataset(texts, TextRowEncoder(toys.bert_words(), 40))
    )
    cache.SHARD = before
    assert collate(samples.get(range(13), [generator(0)] * 13)).features.keys() == KEPT


def tokens(out: Path) -> None:
    """Micro-batches of so many tokens, with dropout: one process accumulates those of both."""
    model = toys.cross_modal(dropout=0.1)
    torch.manual_seed(3)
    objectives = [MaskedLM(model.sizes, mask_id=4, joint=True)]
    accumulate = 2 // int(os.environ.get("WORLD_SIZE", "1"))
    config = replace(CONFIG, batch_tokens=300, gradient_accumulation_steps=accumulate)
    finish(model, objectives, toys.both_sides(32, max_windows=1), out, config)


class AnswerEntropy(Objective):
    """Entropy of the task's answer where the task is sure, as it is in some micro-batches alone; without a count."""

    name = "entropy"

    def count(self, batch: Batch) -> dict[str, int]:
        return {}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, torch.Tensor]:
        logs = encoded.heads["supervised"].log_softmax(-1)
        sure = logs[logs.exp().amax(-1) > 0.53]
        return {"entropy": (sure.exp() * sure).sum(-1).mean()} if len(sure) else {}


def seeing() -> tuple[nn.Module, SupervisedObjective]:
    words = toys.bert_words()
    torch.manual_seed(9)
    model = uniter(toys.bert(len(words)), words, width=12)
    return model, SupervisedObjective(model.sizes, output_type=Classification(("no", "yes")))


def villa(out: Path) -> None:
    """Several passes of a micro-batch."""
    model, task = seeing()
    step = VillaStep(TrainingStepSettings(adversarial_lr=0.1))
    finish(still(model), [still(task)], toys.seen(24), out, training_step=step)


def gate(out: Path) -> None:
    """A term that one process has and the other has not."""
    model, task = seeing()
    finish(still(model), [still(task), AnswerEntropy(model.sizes)], toys.seen(24), out)


class LossOfSome(SupervisedObjective):
    """The task's loss on every fourth sample or so, so that some micro-batches have no term."""

    def count(self, batch: Batch) -> dict[str, int]:
        return {"task": len(self.chosen(batch))}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, torch.Tensor]:
        chosen = self.chosen(batch)
        logits = encoded.heads["supervised"][chosen]
        labels = batch.labels["label"][chosen]
        return {"task": self.output_type.loss(logits, labels)} if chosen else {}

    def chosen(self, batch: Batch) -> list[int]:
        """Places of the samples in the batch."""
        return [place for place, name in enumerate(batch.ids) if sum(name.encode()) % 4 == 0]


def scarce(out: Path) -> None:
    """A micro-batch without any term on one process, and on both."""
    model, task = seeing()
    task = LossOfSome(model.sizes, output_type=task.output_type)
    finish(still(model), [still(task)], toys.seen(24), out, replace(CONFIG, batch=2))


def finish(
    model: nn.Module,
    objectives: list,
    data: object,
    out: Path,
    config: TrainingArguments = CONFIG,
    **options: object,
) -> None:
    result = train(model, objectives, data, config, out, **options)
    if os.environ.get("RANK", "0") == "0":
        (out / "dropped").write_text(str(result["truncated_tokens"]))
        save_file(weights(model, objectives), out / "end.safetensors")


def read(out: Path) -> None:
    """A text's shards, which one machine makes, because both see the folder."""
    rank = int(os.environ.get("RANK", "0"))

    def write(*arguments) -> None:
        write_shard(*arguments)
        homes.put(out / f"made-{rank}" / str(arguments[2]), "")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpora, "SMALLEST", 300)
        patch.setattr(corpora, "write_shard", write)
        text = homes.put(out / f"text-{rank}.txt", "\n".join(toys.sentences()[:60]))
        inputs = TextRowEncoder(toys.bert_words(), 40)
        samples = corpus_samples([text], "lines", inputs, out / "texts")
    rows = [sample.text.input_ids.tolist() for sample in samples.get(range(len(samples)))]
    homes.put(out / f"rows-{rank}.json", json.dumps(rows))


def given_photos(folder: Path) -> None:
    homes.home(folder / "vit", toys.vit(), None)
    CLIPImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder / "vit")
    for number in range(5):
        homes.noise(folder / f"photos/{number}.png", (40, 30), number)


def extract(out: Path) -> None:
    """A store of regions, of which each machine writes every other shard."""
    given = out.parent / "given"
    sizes = {"grid": 2, "batch": 2, "shard_size": 2, "cpu": torch.accelerator.is_available()}
    config = make_settings(
        RegionsConfig, images=str(given / "photos"), backbone=str(given / "vit"), **sizes
    )
    result = regions(config, out)
    homes.put(Path(f"{out}-{os.environ.get('RANK', 0)}.json"), json.dumps(result))


def _rank(folder: str) -> None:
    assert os.environ["LOCAL_WORLD_SIZE"] == "1"
    PartialState(cpu=True)  # as every run begins
    keep(Path(folder) / "kept")
    adapt(Path(folder) / "adapt")
    contrast(Path(folder) / "contrast")
    cached(Path(folder) / "cached")
    ground(Path(folder) / "ground")
    tokens(Path(folder) / "tokens")
    villa(Path(folder) / "villa")
    gate(Path(folder) / "gate")
    scarce(Path(folder) / "scarce")
    read(Path(folder) / "read")
    extract(Path(folder) / "extract")
    assert torch.distributed.get_world_size() == 2
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two(two_machines, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    given_photos(folder / "given")
    two_machines(_rank, str(folder))
    return folder


@pytest.mark.parametrize("run", [adapt, contrast, cached, ground, tokens, villa, gate, scarce])
def test_two_processes_equal_one(run, two, tmp_path):
    run(tmp_path)
    one, other = tmp_path, two / run.__name__
    logs = [homes.log_of(folder) for folder in (one, other)]
    # The main process alone writes the log.
    assert [line["step"] for line in logs[1]] == [*range(1, STEPS + 1)]
    if run is gate:  # a micro-batch is another one here, and so are those that have its term
        assert any("entropy" in line for line in logs[1])
        for line in logs[1]:  # a term without a count is used as it is
            assert line["loss"] == pytest.approx(line["task"] + line.get("entropy", 0), abs=1e-6)
        return
    for a, b in zip(*logs, strict=True):
        assert a == pytest.approx(b, rel=1e-5, abs=1e-5)
    assert (one / "dropped").read_text() == (other / "dropped").read_text()
    assert run in (villa, scarce) or int((one / "dropped").read_text()) > 0
    first, second = (load_file(folder / "end.safetensors") for folder in (one, other))
    assert_close(first, second, 3e-5)


def test_two_processes_measure_the_same_loss_as_one(two, tmp_path):
    adapt(tmp_path)
    files = tmp_path / "held-0.json", two / "adapt/held-0.json", two / "adapt/held-1.json"
    one, first, second = (json.loads(file.read_text()) for file in files)
    assert first == second
    assert first == pytest.approx(one, rel=1e-4)


def test_two_processes_keep_the_features_that_one_keeps(two, tmp_path):
    keep(tmp_path / "kept")
    shards = [
        len(list((tmp_path / "kept").glob(f"{name}-*/shard-*")))
        for name in ("clip_images", "clip_words")
    ]
    assert shards == [3, 7]
    assert homes.digests(two / "kept") == homes.digests(tmp_path / "kept")


def test_two_machines_read_what_one_reads_and_make_no_shard_twice(two, tmp_path):
    read(tmp_path)
    one = (tmp_path / "rows-0.json").read_text()
    assert [(two / "read" / f"rows-{rank}.json").read_text() for rank in (0, 1)] == [one, one]
    made = [file.name for file in (two / "read").glob("made-*/*")]
    assert sorted(made) == sorted(file.name for file in (tmp_path / "made-0").iterdir())
    assert len(made) > 5


def test_two_machines_extract_the_same_bytes_as_one(two):
    extract(two / "alone")
    alone, together = homes.digests(two / "alone"), homes.digests(two / "extract")
    assert alone | {"result.json": ""} == together | {"result.json": ""}
    results = [json.loads((two / f"extract-{rank}.json").read_text()) for rank in (0, 1)]
    assert results[0] == results[1] == json.loads((two / "extract/result.json").read_text())


STUBS = {
    "scontrol": "echo 127.0.0.1",
    "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
    "srun": """for node in 0 1; do
    SLURM_NODEID=$node GROUNDLING_CACHE=$PWD/cache-$node "$@" & started="$started $!"
done
for one in $started; do wait $one || exit 1; done""",
}
"""What Slurm's nodes have, on one machine whose two nodes share the working folder alone."""


def test_torchrun_starts_a_command_that_trains_as_one_process_does(tmp_path: Path) -> None:
    """With the sbatch file of docs/running.md: the launcher's own rendezvous and environment."""
    student, text = homes.student(tmp_path / "bert"), homes.text(tmp_path / "text.txt", 24)
    words = ["adapt", "--student", str(student), "--text", str(text), "--arm", "mlm"]
    words += ["--batch", "8", "--steps", "2", "--log-every", "1", "--cpu", "--out"]
    for name, lines in STUBS.items():
        homes.put(tmp_path / "bin" / name, f"#!/bin/bash\n{lines}\n").chmod(0o755)
    page = (Path(__file__).parents[2] / "docs/running.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    job = {"SLURM_JOB_ID": str(homes.free_port()), "SLURM_JOB_NODELIST": "n[0-1]"}
    environment = {
        **os.environ,
        **job,
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
    }
    launch = ["bash", str(homes.put(tmp_path / "nodes.sbatch", script))]
    command = [*launch, *words, str(tmp_path / "two")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for node in (0, 1):
        assert list((tmp_path / f"cache-{node}").glob("texts/*/manifest.json"))
    assert main([*words, str(tmp_path / "one"), "--gradient-accumulation-steps", "2"]) == 0
    two, one = (homes.log_of(tmp_path / name) for name in ("two", "one"))
    assert len(one) == 2
    for a, b in zip(two, one, strict=True):
        assert a == pytest.approx(b, rel=1e-5)
