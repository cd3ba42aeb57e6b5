"""Any model whose attention is looked at, and examples as it reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.data.images import Picture
from groundling.data.regions.inputs import UNTIED, RegionInputs, Seen
from groundling.data.regions.paired import Mark, Store
from groundling.data.regions.pictures import pictures_of
from groundling.data.regions.stores import SeveralStores
from groundling.data.samples import Samples, TextSamples
from groundling.models.kinds import RegionReader
from groundling.settings.inputs import RegionInput
from groundling.studies.attention.commands import Attending
from groundling.studies.attention.grounding import pointing
from groundling.studies.attention.models.patches import PatchReader, PatchStore
from groundling.studies.attention.passes import OtherLooks, partners, untrained
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
