"""Any model whose attention is looked at, examples as it reads them, and its controls: other images, random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from groundling.core.batch import Example, RegionRow
from groundling.core.errors import InputError
from groundling.core.keyed import generator, seed_of
from groundling.data.images import Picture
from groundling.data.regions.inputs import UNTIED, RegionInputs, Seen
from groundling.data.regions.paired import Mark, Store
from groundling.data.regions.pictures import pictures_of
from groundling.data.regions.stores import SeveralStores
from groundling.data.samples import Samples, TextSamples
from groundling.models.kinds import RegionReader, Student
from groundling.settings.inputs import RegionInput
from groundling.studies.attention.commands import Attending
from groundling.studies.attention.grounding import pointing
from groundling.studies.attention.models.patches import PatchReader, PatchStore
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


# -- controls ----------------------------------------------------------------------------------------------------------


def partners(images: Sequence[str], seed: int) -> dict[str, str]:
    """Another image for every image, each the other of exactly one; the same for the same seed and images.

    Raises InputError for fewer than two images.
    """
    different = list(dict.fromkeys(images))
    if len(different) < 2:
        raise InputError(
            f"{len(different)} image: there is no other one to show instead; at least 2 are needed "
            "(--no-other-images or --no-other-inputs leaves this control out)"
        )
    order = generator(seed, "partners").permutation(len(different))
    # Along one circle nobody meets itself.
    others = np.roll(order, 1)
    return {different[one]: different[other] for one, other in zip(order, others, strict=True)}


class OtherLooks:
    """A store in which every image keeps its boxes and shows what is seen in another image's.

    So a caption is read beside as many regions in the same places, whose looks it does not describe: what a head finds
    then, it finds by where and how large regions are, and by which come first. If the other image has fewer regions,
    they come again.
    """

    def __init__(self, store: Store, partner: Mapping[str, str]) -> None:
        """`partner`: whose looks each image gets, see `partners`."""
        self.store = store
        self.partner = partner
        self.count = store.count
        self.size = store.size
        self.in_annotated_order = store.in_annotated_order
        self.behind = store.behind

    def __contains__(self, image: object) -> bool:
        return image in self.store

    def __getitem__(self, image: str) -> RegionRow:
        """The image's regions with the features of its partner's."""
        row = self.store[image]
        other = self.store[self.partner[image]]
        own_places = np.flatnonzero(~row.whole)
        places = np.flatnonzero(~other.whole)
        if not len(places):
            places = np.arange(len(other))
        features = row.features.copy()
        features[own_places] = other.features[np.resize(places, len(own_places))]
        if row.whole.any():
            # Without a whole image of its own, the other's regions stand for it, as in `with_whole_image`.
            whole = other.features[other.whole] if other.whole.any() else other.features
            features[row.whole] = whole.mean(0)
        return replace(row, features=features)


def untrained(model: Student, seed: int = 0) -> Student:
    """The model itself with random weights in place of its own, drawn as BERT's are; its CNN, if any, stays.

    A control: what such a model's heads find, training has not taught them.
    """
    draws = torch.Generator().manual_seed(seed_of(seed, "untrained"))
    for name, part in model.named_modules():
        if name.startswith("cnn."):
            continue
        if isinstance(part, nn.Linear | nn.Embedding):
            values = torch.randn(part.weight.shape, generator=draws) * 0.02
            part.weight.data.copy_(values)
        if isinstance(part, nn.Linear) and part.bias is not None:
            part.bias.data.zero_()
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()
    for weight in model.of_patches() if isinstance(model, PatchReader) else ():
        weight.data.copy_(torch.randn(weight.shape, generator=draws) * 0.02)
    return model
