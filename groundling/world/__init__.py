"""A rendered world in which looks show only in images and categories only in text, in the field's file formats."""

from groundling.config import DEV_IMAGES, WorldConfig
from groundling.world.scenes import Scene, Thing
from groundling.world.world import World

__all__ = ["DEV_IMAGES", "Scene", "Thing", "World", "WorldConfig"]
