"""Commands and settings of the knowledge study: visual facts, word similarity, minimal pairs, Winoground."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from annotated_types import Ge

from groundling.command_line import Command, Inputs, ResumableRun
from groundling.command_line.names import input_paths
from groundling.settings.fields import InputKind, Settings, required, settings
from groundling.settings.input_settings import ImageSettings


@settings
class ProbeFactsConfig(Settings):
    """How visual knowledge of an encoder is probed."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """Text encoder or CLIP-like model: hub id or folder; for fill-mask also a CLIP-BERT, the folder \
`joint` of `adapt --arm visual_token_mlm --save-joint`."""
    visual_token_clip: Annotated[str, InputKind.MODEL] = ""
    """CLIP-BERT: CLIP-like model, hub id or folder, whose text vector of each prompt, with its \
[MASK], is the visual token (the paper's explicit mode); empty: there is no visual token."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """File of Memory Colors, CoDa (or its raw annotations.jsonl), ViComTe, VEC, spatial commonsense, ImageNetVC, \
TaxonomiGQA or feature norms (CSLB, McRae, Visual Property Norms' queries), or a world's probes/knowledge.jsonl."""
    modes: Annotated[
        tuple[Literal["fill-mask", "embedding", "stroop", "linear"], ...], required
    ] = ("fill-mask", "embedding", "stroop")
    """Probes: fill-mask (needs a masked-LM head), embedding, stroop, or linear (ridge regression, \
cross-validated over nouns)."""
    templates: Annotated[tuple[str, ...], required] = ("a {}", "there is a {} .", "i saw a {} .")
    """linear: neutral templates in which a noun, {}, is read; "{}" is the noun alone. States are \
averaged over templates."""
    layer: Annotated[int, Ge(-1)] = -1
    """linear: layer whose output represents a noun; 0: the embeddings; -1: the last layer."""
    seed: Annotated[int, Ge(0)] = 0
    """linear: seed of the folds, random features and the bootstrap over nouns."""
    max_length: Annotated[int, Ge(0)] = 64
    """Maximum tokens per sentence; a longer sentence is an error."""
    cpu: bool = False
    """Run on the CPU even if an accelerator is available."""


def probe_facts_inputs(config: ProbeFactsConfig) -> Inputs:
    """Inputs whose hashes identify a run."""
    from groundling.studies.knowledge.visual_facts import open_facts

    beside = open_facts(config.data).companion_files
    return {**input_paths(config), **{f"data:{path.name}": path for path in beside}}


PROBE_FACTS = Command(
    "probe-facts",
    "probe an encoder for visual facts: Memory Colors, CoDa, ViComTe, VEC, ImageNetVC, feature norms",
    "groundling.studies.knowledge.probe_facts:probe_facts",
    {"_own": ProbeFactsConfig()},
    title="Knowledge: what an encoder knows",
    example="groundling probe-facts --model bert-base-uncased --data coda/annotations.jsonl --out runs/ask",
    common_flags="model data modes",
    output=ResumableRun(probe_facts_inputs, ignored_settings=("cpu",)),
)


@settings
class ProbeWordsConfig(Settings):
    """Word similarity of an encoder, layer by layer, and ratings of words predicted from it."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """Text encoder or CLIP-like model: hub id or folder."""
    data: Annotated[tuple[str, ...], InputKind.PATH, required] = ()
    """Files of rated word pairs: MEN, SimLex-999, WordSim-353, SimVerb-3500, RG-65, or your own with \
two words and a rating per line; or of rated words: Lancaster, Glasgow, THINGSplus."""
    template: str = "{}"
    """Text in which a word, {}, is read; its state is the mean over its tokens."""
    max_length: Annotated[int, Ge(0)] = 64
    """Maximum tokens per text; a longer text is an error."""
    cpu: bool = False
    """Run on the CPU even if an accelerator is available."""


PROBE_WORDS = Command(
    "probe-words",
    "word similarity of an encoder by layer (MEN, SimLex ...), and norms of words predicted from it",
    "groundling.studies.knowledge.word_similarity:probe_words",
    {"_own": ProbeWordsConfig()},
    title="Knowledge: what an encoder knows",
    example="groundling probe-words --model bert-base-uncased --data MEN_dataset_natural_form_full "
    "SimLex-999.txt --out runs/words",
    common_flags="model data template",
    prints_output=True,
    output=ResumableRun(input_paths, ignored_settings=("cpu",)),
    formatter="groundling.studies.knowledge.word_similarity:format_words",
)


@settings
class PairsConfig(Settings):
    """Scoring of minimal pairs by a language model."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """Masked or causal language model: hub id or folder."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """Folder or file of BLiMP, EWoK, COMPS or WinoViz, or your own .csv, .tsv or .jsonl with columns \
good and bad (optionally group and id)."""
    other: Annotated[str, InputKind.MODEL] = ""
    """A second model on the same pairs: its accuracy, and its difference from --model's, paired by item."""
    pll: Literal["within-word", "original"] = "within-word"
    """Masked models: what is masked while a token is scored: the token and the later tokens of its word (within-word, \
Kauf and Ivanova 2023), or the token alone (original, Salazar et al. 2020)."""
    reduction: Literal["sum", "mean"] = "sum"
    """Score of a text: sum or mean of its token log-likelihoods."""
    limit: Annotated[int, Ge(0)] = 0
    """Maximum number of pairs per paradigm, evenly spaced; 0: all."""
    max_length: Annotated[int, Ge(0)] = 0
    """Maximum tokens per text; 0: the model's maximum."""
    skip_long: bool = False
    """Skip pairs with a longer text, for both models, and count them; otherwise they are an error."""
    model_seed: Annotated[int, Ge(0)] = 0
    """Training seed of the model, under which `verdict` finds the predictions."""
    cpu: bool = False
    """Run on the CPU even if an accelerator is available."""


PAIRS = Command(
    "pairs",
    "minimal-pair accuracy of a language model: BLiMP, EWoK, COMPS, WinoViz, or your own pairs",
    "groundling.studies.knowledge.minimal_pairs:pairs",
    {"_own": PairsConfig()},
    title="Knowledge: what an encoder knows",
    example="groundling pairs --model runs/control/model --other runs/seeing/model --data blimp --out "
    "runs/pairs",
    common_flags="model data other pll reduction cpu",
    prints_output=True,
    output=ResumableRun(input_paths),
    formatter="groundling.studies.knowledge.minimal_pairs:format_pairs",
)


@settings
class WinogroundConfig(Settings):
    """Model evaluated on Winoground."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """CLIP-like model: hub id or folder; with --regions a pre-trained single-stream model with a match head."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """Winoground's folder, or its examples.jsonl; a CLIP reads the images in its subfolder \
`images`, unless --images is given."""
    other: Annotated[str, InputKind.MODEL] = ""
    """A second model of either kind on the same examples: its scores, and their difference from \
--model's, paired by example."""
    image_settings: ImageSettings = field(default_factory=ImageSettings)
    max_length: Annotated[int, Ge(0)] = 128
    """Single-stream model: maximum tokens per caption. A CLIP truncates captions to its own context length."""
    cpu: bool = False
    """Run on the CPU even if an accelerator is available."""


WINOGROUND = Command(
    "winoground",
    "Winoground: match images with captions that contain the same words",
    "groundling.studies.knowledge.minimal_pairs:winoground",
    {"_own": WinogroundConfig()},
    title="Knowledge: what an encoder knows",
    example="groundling winoground --model openai/clip-vit-base-patch32 --data winoground --out "
    "runs/winoground",
    common_flags="model data other images regions cpu",
    prints_output=True,
    output=ResumableRun(input_paths),
    formatter="groundling.studies.knowledge.minimal_pairs:format_comparisons",
)


COMMANDS = (
    PROBE_FACTS,
    PROBE_WORDS,
    PAIRS,
    WINOGROUND,
)
