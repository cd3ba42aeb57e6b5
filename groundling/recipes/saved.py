"""A saved model and where it looks at images, as `predict` and `evaluate` are told of them."""

from __future__ import annotations

from accelerate import PartialState

from groundling.config import Saved
from groundling.predicting.fitted import Fitted, load
from groundling.predicting.sight import Sight


def opened(saved: Saved) -> Fitted:
    """The model that the settings name, on this process's device."""
    device = str(PartialState(cpu=saved.cpu).device)
    seed = None if saved.seed < 0 else saved.seed
    return load(saved.model, seed, detector=saved.detector, backbone=saved.backbone, device=device)


def sight_of(model: Fitted, saved: Saved, decode: bool) -> Sight:
    """Where the model looks at images; raises InputError as `Sight`."""
    return model.sight(
        saved.regions, saved.images, other_regions=saved.other_regions, decode=decode
    )
