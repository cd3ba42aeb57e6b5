"""Any model whose attention is looked at, examples as it reads them, and passes by one process or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.data.regions.inputs import UNTIED, RegionInputs, Seen, manifests
from groundling.data.regions.paired import Mark, Store
from groundling.data.regions.pictures import Picture, pictures_of
from groundling.data.regions.stores import SeveralStores
from groundling.data.samples import Samples, TextSamples
from groundling.data.shards import Part
from groundling.models.kinds import RegionReader
from groundling.runs.jobs import Job, run_jobs
from groundling.settings.inputs import RegionInput
from groundling.studies.attention.grounding import pointing
from groundling.studies.attention.models.patches import PatchReader, PatchStore
from groundling.studies.attention.passes import OtherLooks, Pass, partners, read_here, untrained
from groundling.studies.attention.settings import Attending
from groundling.vision_language.loading import design_of, load_student
from groundling.vision_language.single_stream import SingleStream


class Attended:
    """A model of text and regions, on its device, and the regions that it reads."""

    def __init__(self, config: Attending, device: torch.device) -> None:
        """Raises InputError if the model reads no regions, or others than it is given."""
        self.config = config
        model = load_student(config.model, config.kind, config.join)
        if not isinstance(model, RegionReader):
            raise InputError(
                f"{config.model}: this model reads no regions; expected a VisualBERT, VL-BERT or UNITER, such as "
                "`groundling pretrain` leaves one, or a VisualBERT, LXMERT or ViLT of transformers"
            )
        settings = RegionInput(
            config.regions,
            config.images,
            config.most_regions,
            other_regions=config.other_regions,
            tags=config.tags,
        )
        self.inputs = RegionInputs(settings, called=UNTIED)
        self.inputs.check_pixels(model, config.model)
        self.store: SeveralStores | None = None
        if isinstance(model, PatchReader):
            _refuse_regions(config)
        elif not config.regions:
            raise InputError(f"{config.model}: this model reads regions; pass --regions STORE")
        else:
            self.inputs.check(model)
            self.store = self.inputs.stores()
        if config.untrained:
            untrained(model, config.seed)
        if isinstance(model, SingleStream):
            # A text alone or a pair is read as in pre-training.
            design_of(model, config.join).ready(model, (), True)
        self.model = model.to(device).eval()

    def mark(self, usual: Mark) -> Mark:
        """Which of its regions are right: a task's own rule, of patches `pointing`."""
        return pointing if isinstance(self.model, PatchReader) else usual

    def samples(self, examples: Sequence[Example], others: bool = False) -> Samples:
        """Examples as the model reads them; `others`: beside the looks of other images, see `OtherLooks`.

        Raises InputError if an example has no image, or an image no regions.
        """
        model = self.model
        text, _ = model.inputs(self.config.max_length)
        texts = TextSamples(self.inputs.told(examples), text, keep=0)  # each is read once
        files: dict[str, Picture] = {}
        if model.reads != "features":
            files = pictures_of(texts, self.config.images, "a model that reads pixels")
        store: Store | None = self.store
        if isinstance(model, PatchReader):
            store = PatchStore(model, files)
        assert store is not None  # only patches have none
        partner: dict[str, str] = {}
        if others:
            partner = partners(
                [image for one in examples for image in one.images], self.config.seed
            )
            store = OtherLooks(store, partner)
        shown = {image: files[partner.get(image, image)] for image in files}
        samples = self.inputs.samples(texts, model, Seen(store, shown))
        empty = [image for images in samples.images for image in images if not store.count(image)]
        if empty:
            names = " ".join(self.config.regions)
            raise InputError(
                f"{names}: {empty[0]!r} has no region, and so have {len(set(empty)) - 1} other images; make a store "
                "in which every image has one, or leave these images out"
            )
        return samples


def _refuse_regions(config: Attending) -> None:
    """Raises InputError for settings of regions, which a model that reads patches has none of."""
    for name, given in (
        ("--regions", config.regions),
        ("--most-regions", config.most_regions),
        ("--other-regions", config.other_regions),
    ):
        if given:
            raise InputError(
                f"{config.model}: this model reads patches of photos, no regions; leave {name} out"
            )


def inputs_of(config: Attending) -> dict[str, str | Path]:
    """The model, images and stores that an analysis reads, whose hashes tell its run from others."""
    return {"model": config.model, "images": config.images, **manifests(config.regions)}


# -- passes ------------------------------------------------------------------------------------------------------------

Config = TypeVar("Config")

Plan = Callable[[Config, torch.device], Sequence[Pass]]
"""A command's passes, from its settings and a device; a function of a module, as other processes are sent it."""


def read_all(
    passes: Sequence[Pass], plan: Plan[Config], config: Config, processes: int = 1
) -> None:
    """Do all passes of a command: by this process, by those of torchrun, or by so many that are started here.

    `plan` makes the same passes of `config` in these. Raises InputError for torchrun and `processes` at once.
    """
    state = PartialState()
    if processes == 1:
        read_here(passes)
        return
    if state.num_processes > 1:
        raise InputError("torchrun and --processes both start processes; leave one of them out")
    parts = [Part(rank, processes) for rank in range(processes)]
    told = (plan, config, state.device.type)
    jobs = [Job(f"part {one.rank + 1}", _share, (*told, one)) for one in parts]
    shares = run_jobs(jobs, processes, lambda line: None)
    for number, one in enumerate(passes):
        one.merge([shares[job.name][number] for job in jobs])


def _share(plan: Plan[Config], config: Config, device: str, part: Part) -> list[Any]:
    """What one process's share of every pass has said."""
    passes = plan(config, PartialState(cpu=device == "cpu").device)
    for one in passes:
        one.read(part)
    return [one.kept() for one in passes]
