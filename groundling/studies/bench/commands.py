"""Commands and settings of the bench, in rendered worlds and on a real encoder, and of the quickstart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt

from groundling.command_line import COMMANDS as COMMANDS_BY_NAME
from groundling.command_line import (
    ByPrefix,
    Command,
    CommandOutput,
    Inputs,
    ResumableRun,
    result_of,
)
from groundling.commands.adapt import ADAPTING
from groundling.core.errors import InputError, require_known
from groundling.core.registry import is_import_path, resolve_builtin
from groundling.runs.folder import open_run
from groundling.runs.progress import CommandContext
from groundling.settings.fields import (
    InputKind,
    Settings,
    refuse_settings,
    replace_settings,
    require_settings,
    required,
    setting_names,
    setting_values,
    settings,
)
from groundling.settings.input_settings import CaptionSettings

QUESTIONS = ("truth", "category", "order", "odd")
"""Questions that can be fine-tuned on."""
Family = Literal["objects", "pictograms"]
Student = Literal["masked", "causal"]
NOT_OF_CURVES = ("adapt_seeds", "probe_seeds", "probes")
"""Settings that curves do not read."""
FAMILIES: tuple[Family, ...] = ("objects", "pictograms")
"""Families of rendered worlds; no setting was tuned on the second."""
TUNING_SEED = 100
"""Seed of the world of the first family in which weights are chosen."""
PROTOCOL_VERSION = 3
"""Increases with every change after which results of two benches are not comparable."""


@settings
class ComparisonSettings(Settings):
    """What every bench compares, and what is done now."""

    method: tuple[str, ...] = ()
    """Methods: built-in names, or MODULE:NAME of your own `BenchMethod`; empty: all built-in ones."""
    adapt_seeds: Annotated[int, Ge(1)] = 2
    """Adaptation seeds of each method and control."""
    processes: Annotated[int, Ge(1)] = 2
    """Parallel runs, one thread each."""
    plan: bool = False
    """Print what will run and what is done, and stop."""
    report: bool = False
    """Run nothing; write the table, the page and bench.json of what is finished."""

    def check_methods(self) -> None:
        """Raises InputError for unknown methods of the package."""
        from groundling.studies.bench.methods import BenchMethod

        for name in self.method:
            if not is_import_path(name):
                resolve_builtin("methods", BenchMethod, name)

    def identity(self) -> dict[str, Any]:
        """Everything that results of one folder have in common."""
        raise NotImplementedError

    def inputs(self) -> Inputs:
        """Models and files by name, which identify the bench."""
        return {}


@settings
class BenchConfig(ComparisonSettings):
    """Comparison of methods that give a text encoder visual knowledge, with their controls."""

    student: Student = "masked"
    """What every method starts from: masked, a small BERT; causal, a small GPT-2 of its size, with `clm` in place of \
`mlm` everywhere. Each needs its own folder."""
    worlds: tuple[Annotated[int, Ge(0)], ...] = (0, 1, 2, 3, 4)
    """Seeds of the rendered worlds of each family; a verdict needs at least three."""
    families: tuple[Family, ...] = FAMILIES
    """Families of rendered worlds, as in `data make-world --family`; each has its own verdict. \
Weights are chosen in a world of objects."""
    probe_seeds: Annotated[int, Ge(1)] = 3
    """Fine-tuning seeds of the true/false and odd-one-out probes."""
    probes: tuple[str, ...] = ("truth", "category", "order")
    """Questions to fine-tune on: truth, category, order, odd (1,000 steps, slow)."""
    curve: tuple[str, ...] = ()
    """Instead of the whole bench: how the gain grows with images, captions, steps, layers, width, \
teacher (one or more). Runs --method, by default xdbert, contrastive and l1, and its text control, with one \
adaptation seed and linear probes only."""
    scale: Annotated[float, Gt(0)] = 1.0
    """Factor on all steps and, below 1, on the world's size. Below 1 the models learn nothing; it is for trying \
the bench."""

    def identity(self) -> dict[str, Any]:
        """The protocol and its scale, and a student that is not the first bench's."""
        student = {} if self.student == "masked" else {"student": self.student}
        return {"scale": self.scale, "protocol": PROTOCOL_VERSION, **student}


@settings
class RealBenchConfig(ComparisonSettings):
    """The bench on your own encoder: teacher, captions and images, and evaluation sets."""

    adapt_seeds: Annotated[int, Ge(1)] = 3
    """Adaptation seeds of each method and control; a verdict needs at least three."""
    student: Annotated[str, InputKind.MODEL, required] = ""
    """Text encoder from which every method starts, hub id or folder."""
    teacher: Annotated[str, InputKind.MODEL] = ""
    """Teacher, as in `adapt --teacher`: a CLIP, an image encoder, a sentence encoder, or vectors:FOLDER."""
    captions: Annotated[str, InputKind.PATH] = ""
    """Captions, in any file or folder that `train-clip` reads."""
    caption_settings: CaptionSettings = field(default_factory=CaptionSettings)
    images: Annotated[str, InputKind.FOLDER] = ""
    """Folder of the captions' images, searched recursively; a teacher of vectors needs none."""
    skip_missing: bool = False
    """Skip captions whose image is missing, and count them; otherwise a missing image is an error."""
    text: Annotated[str, InputKind.FILE] = ""
    """Plain text that methods read besides captions, one text per line; empty: the captions without their images."""
    facts: Annotated[tuple[str, ...], InputKind.PATH] = ()
    """Files of visual facts that `probe-facts` reads: Memory Colors, CoDa, ViComTe, \
ImageNetVC, VEC, spatial commonsense, feature norms."""
    modes: tuple[str, ...] = ("fill-mask", "linear")
    """How facts are probed, as in `probe-facts --modes`; fill-mask needs an encoder with a masked-LM head."""
    words: Annotated[tuple[str, ...], InputKind.PATH] = ()
    """Files of rated word pairs that `probe-words` reads: MEN, SimLex-999, WordSim-353, SimVerb-3500, RG-65."""
    retention_pairs: Annotated[str, InputKind.PATH] = ""
    """Cost: text pairs with similarities, as in `adapt --retention-pairs`: the folder of STS-B or GLUE, or a tsv."""
    minimal_pairs: Annotated[tuple[str, ...], InputKind.PATH] = ()
    """Cost: minimal pairs that `pairs` reads, such as BLiMP; needs an encoder with a masked-LM head."""
    pair_limit: Annotated[int, Ge(0)] = 0
    """Maximum number of minimal pairs per paradigm, evenly spaced; 0: all."""
    tasks: Annotated[tuple[str, ...], InputKind.OBJECT] = ()
    """Cost: tasks of GLUE to fine-tune on, e.g. glue/rte glue/cola."""
    data: Annotated[str, InputKind.DATA] = ""
    """Folder of the tasks' official files."""
    task_seeds: Annotated[int, Ge(1)] = 3
    """Fine-tuning seeds of each encoder and task."""
    limit_train: Annotated[int, Ge(0)] = 0
    """Maximum number of training examples per task, evenly spaced; 0: all."""
    tune: bool = False
    """Choose each method's weight among three values on one half of the facts' nouns, for the method and its \
controls alike, and report the other half; off: no setting is tuned, and all nouns are reported."""
    steps: Annotated[int, Ge(1)] = 1000
    """Steps of every method and control, over all of its stages together."""
    batch: Annotated[int, Ge(2)] = 64
    """Samples per step (64: MCSE, ViComTe)."""
    lr: Annotated[float, Gt(0)] = 5e-5
    """Peak learning rate (5e-5: CLIP-BERT, ViComTe; XDBERT: 1e-4; MCSE: 3e-5)."""
    max_length: Annotated[int, Ge(8)] = 64
    """Maximum tokens of a text that methods read."""
    cpu: bool = False
    """Run on the CPU even if an accelerator is available."""

    def identity(self) -> dict[str, Any]:
        """Everything that decides how methods are trained; evaluation sets may be added later."""
        changing = setting_names(ComparisonSettings) | {
            *("facts", "modes", "words", "retention_pairs", "minimal_pairs", "pair_limit"),
            *("tasks", "data", "task_seeds", "limit_train", "cpu"),
        }
        kept = {name: one for name, one in setting_values(self).items() if name not in changing}
        chosen = {"modes": self.modes} if self.tune else {}
        heads = {"head_lr": ADAPTING.head_lr, "freeze_encoder_ratio": ADAPTING.freeze_encoder_ratio}
        return kept | chosen | heads | {"protocol": PROTOCOL_VERSION}

    def inputs(self) -> Inputs:
        """Models and files by name, which identify the bench."""
        names = ("student", "teacher", "captions", "images", "text")
        facts = {f"facts:{number}": one for number, one in enumerate(self.facts) if self.tune}
        return {name: vars(self)[name] for name in names if vars(self)[name]} | facts


def check(config: BenchConfig, out: str | Path) -> None:
    """Raises InputError for unknown methods, and for a verdict in the world in which weights are chosen."""
    if config.curve:
        refuse_settings(config, "curve does not read it", *NOT_OF_CURVES)
    require_settings(config, "bench", "worlds", "families")
    for name in config.probes:
        require_known(name, QUESTIONS, f"probes: no question is called {name!r}")
    _check_families(config.families, out)
    if FAMILIES[0] in config.families and TUNING_SEED in config.worlds:
        raise InputError(
            f"worlds={TUNING_SEED}: weights are chosen in this world of {FAMILIES[0]}; expected other seeds"
        )
    config.check_methods()


def check_real(config: RealBenchConfig, out: str | Path) -> None:
    """Raises InputError for settings with which after hours nothing could be read."""
    needs = {
        "text, or captions": config.text or config.captions,
        "facts or words": config.facts or config.words,
        "modes": config.modes or not config.facts,
        "facts, on which tune chooses": config.facts or not config.tune,
        "data": config.data or not config.tasks,
    }
    for name, value in needs.items():
        if not value:
            raise InputError(f"bench-real needs {name}")
    config.check_methods()


def _check_families(names: Sequence[str], out: str | Path) -> None:
    """Raises InputError for an unknown family, which would end an experiment after hours."""
    world = COMMANDS_BY_NAME["data make-world"]
    for name in names:
        world.check_settings([replace_settings(world.settings["_own"], family=name), out])


@dataclass(frozen=True)
class BenchOutput(CommandOutput):
    """A folder that several processes and machines fill together; more methods and worlds may be added."""

    def run(
        self, function: Callable[..., Any], name: str, settings: ByPrefix, out: str | Path
    ) -> Any:
        """The command's result; raises InputError if the folder is not a bench's, or has another scale."""
        config: ComparisonSettings = settings["_own"]
        writes = not (config.plan or config.report)
        work = CommandContext(open_run(out, name, config.identity(), config.inputs(), writes))
        return work.with_notes(result_of(function, settings, work))


OUT_HELP = (
    "Bench folder; running the same command again resumes, several processes or machines may work on one folder, and "
    "commands may add methods, seeds and"
)

BENCH = Command(
    "bench",
    "compare methods that give a text encoder visual knowledge, each with its controls",
    "groundling.studies.bench.rendered:bench",
    {"_own": BenchConfig()},
    title="Bench: which method gives a text encoder visual knowledge?",
    example="groundling bench --method contrastive --worlds 0 1 2 --out runs/bench",
    common_flags="method worlds families curve plan processes",
    validate=check,
    prints_output=True,
    out_help=f"{OUT_HELP} worlds.",
    output=BenchOutput(),
)

BENCH_REAL = Command(
    "bench-real",
    "compare the bench's methods on your own encoder, teacher, captions and evaluation sets",
    "groundling.studies.bench.real:bench_real",
    {"_own": RealBenchConfig()},
    title="Bench: which method gives a text encoder visual knowledge?",
    example="groundling bench-real --student bert-base-uncased --teacher openai/clip-vit-base-patch32 "
    "--captions flickr8k/Flickr8k.token.txt --images flickr8k/images --words SimLex-999.txt --out runs/real",
    common_flags="student teacher captions images facts words method adapt-seeds plan processes",
    validate=check_real,
    prints_output=True,
    out_help=f"{OUT_HELP} sets.",
    output=BenchOutput(),
)


@settings
class QuickstartConfig(Settings):
    """The whole pipeline on a rendered world, offline, from nothing."""

    family: str = "objects"
    """Family of the world: objects, pictograms, or MODULE:NAME of your own `WorldFamily`."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the world, its scenes and the weights."""
    processes: Annotated[int, Ge(1)] = 2
    """Parallel runs, one thread each."""
    full: bool = False
    """Run XDBERT and L1 too, and a teacher with redrawn attributes, as in docs/results/01_rendered_world.md, \
which takes four times as long; off: one method that transfers visual attributes, and its text control."""
    scale: Annotated[float, Gt(0)] = 1.0
    """Factor on every number of steps; with less than 1 the models learn nothing, but the pipeline is tested."""


QUICKSTART = Command(
    "quickstart",
    "the whole pipeline on a rendered world, offline, in minutes",
    "groundling.studies.bench.quickstart:quickstart",
    {"_own": QuickstartConfig()},
    title="Worlds: the rendered world and the quickstart",
    example="groundling quickstart",
    common_flags="full family seed processes",
    validate=lambda config, out: _check_families([config.family], out),
    prints_output=True,
    output=ResumableRun(ignored_settings=("processes",), extendable=True),
)


COMMANDS = (BENCH, BENCH_REAL, QUICKSTART)
