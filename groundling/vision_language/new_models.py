"""Makes a loaded encoder the vision-language model that a run trains."""

from __future__ import annotations

from groundling.core.errors import InputError
from groundling.data.regions.store import RegionStore
from groundling.models.formats import Encoder
from groundling.models.text_encoder import TextEncoder
from groundling.settings.input_settings import PixelInputSettings, VisualBertSettings
from groundling.vision_language.end_to_end import BUILDS, EndToEndModel, prepare_end_to_end_model
from groundling.vision_language.loading import embedding_options, make_vision_language_model
from groundling.vision_language.single_stream import SingleStreamModel


def new_vision_language_model(
    start: Encoder,
    architecture: str,
    store: RegionStore,
    images: str,
    pixels: PixelInputSettings,
    joining: VisualBertSettings,
) -> SingleStreamModel:
    """`start` as a model of an architecture that reads a store's features or, with `images`, pixels in its boxes."""
    options = embedding_options(start, architecture, joining, store)
    is_new = architecture in BUILDS and isinstance(start, TextEncoder)
    if images and (is_new or isinstance(start, EndToEndModel)):
        return prepare_end_to_end_model(start, pixels, architecture, options)
    if images:
        raise InputError(f"images={images}: {architecture} reads stored features; leave images out")
    return make_vision_language_model(start, architecture, store.width, **options)
