"""Any model whose attention is looked at, and examples as it reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from groundling.batch import Example
from groundling.config import Attending
from groundling.data.paired import RegionSamples, Seeing, Store
from groundling.data.pictures import Pictured, pictures_of
from groundling.data.samples import Samples, TextSamples
from groundling.data.several_stores import SeveralStores
from groundling.errors import InputError
from groundling.grounding.passes import OtherLooks, partners, untrained
from groundling.joins.end_to_end import EndToEnd
from groundling.models.single_stream import SingleStream
from groundling.recipes.regions_of import Shelf, check_regions
from groundling.students import design_of, load_student


class Attended:
    """A model of text and regions, on its device, and the regions that it reads."""

    def __init__(self, config: Attending, device: torch.device) -> None:
        """Raises InputError if the model reads no regions, or others than the stores have."""
        self.config = config
        model = load_student(config.model, config.kind, config.join)
        if not isinstance(model, SingleStream):
            raise InputError(
                f"{config.model}: this model reads no regions; expected a VisualBERT, VL-BERT or UNITER, such as "
                "`groundling pretrain` leaves one"
            )
        reads_pixels = isinstance(model, EndToEnd)
        if reads_pixels != bool(config.images):
            told = "pixels; pass" if reads_pixels else "stored features, no pixels; leave out"
            raise InputError(f"{config.model}: this model reads {told} --images FOLDER")
        self.store: SeveralStores = Shelf(config.regions, (), "part", not reads_pixels).of("")
        if not reads_pixels:
            check_regions(self.store, model, config.other_regions)
        if config.untrained:
            untrained(model, config.seed)
        # A text alone or a pair is read as in pre-training.
        design_of(model, config.join).ready(model, (), True)
        self.model = model.to(device).eval()

    def samples(self, examples: Sequence[Example], others: bool = False) -> Samples:
        """Examples as the model reads them; `others`: beside the looks of other images, see `OtherLooks`.

        Raises InputError if an example has no image, or an image no regions.
        """
        model = self.model
        text, _ = model.inputs(self.config.max_length)
        store: Store = self.store
        partner: dict[str, str] = {}
        if others:
            partner = partners(
                [image for one in examples for image in one.images], self.config.seed
            )
            store = OtherLooks(store, partner)
        join = model.join
        seeing = Seeing(join.whole, join.last_pixel, self.config.most_regions)
        samples: Samples = RegionSamples(TextSamples(examples, text), store, seeing)
        if not isinstance(model, EndToEnd):
            return samples
        files = pictures_of(samples, self.config.images, "a model that reads pixels")
        shown = {image: files[partner.get(image, image)] for image in files}
        return Pictured(samples, shown, model.side, model.long_side)
