"""A rendered world in which looks show only in images and categories only in text, in the field's file formats."""

from groundling.studies.worlds.commands import DEV_IMAGES, WorldConfig
from groundling.studies.worlds.scenes import Scene, Thing
from groundling.studies.worlds.world import World

__all__ = ["DEV_IMAGES", "Scene", "Thing", "World", "WorldConfig"]
