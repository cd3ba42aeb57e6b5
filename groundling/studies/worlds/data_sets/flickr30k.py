"""The world as Flickr30k Entities: captions whose phrases are marked, boxes for them, and gold parses."""

from __future__ import annotations

from groundling.data.text.parses import written
from groundling.studies.worlds.data_sets.captions import marked_captions, without_marks
from groundling.studies.worlds.data_sets.files import TaskFiles
from groundling.studies.worlds.data_sets.parses import parse_of
from groundling.studies.worlds.scenes import Scene


def write_flickr30k(files: TaskFiles) -> None:
    """Captions, boxes, parses and lists of images; a fifth of a split's examples, as each image has five captions."""
    parses: list[str] = []
    for split in ("train", "val", "test"):
        scenes = files.scenes(split)[: files.most(split) // 5]
        for scene in scenes:
            name = _name(scene)
            captions = marked_captions(files, scene)
            files.images[f"{name}.jpg"] = scene
            files.put(f"flickr30k/Sentences/{name}.txt", *captions)
            files.put(f"flickr30k/Annotations/{name}.xml", *_annotation(files, scene))
            files.texts.update(without_marks(line) for line in captions)
            for number, line in enumerate(captions):
                parses += written(parse_of(line, f"{name}#{number}"))
        files.put(f"flickr30k/{split}.txt", *[_name(scene) for scene in scenes])
        files.counts[f"flickr30k {split}"] = 5 * len(scenes)
    files.put("flickr30k/parses.conllu", *parses)


def _name(scene: Scene) -> str:
    return f"{scene.image_id:010d}"


def _annotation(files: TaskFiles, scene: Scene) -> list[str]:
    """The lines of an image's xml."""
    size = _elements({**files.shape, "depth": 3})
    lines = [f"<annotation><filename>{_name(scene)}.jpg</filename><size>{size}</size>"]
    for i in (0, 1):
        x, y, width, height = files.box(scene, i)
        # Counted from 1, the last pixel included.
        ends = {"xmin": x + 1, "ymin": y + 1, "xmax": x + width, "ymax": y + height}
        chain = f"<name>{2 * scene.image_id + i}</name>"
        lines.append(f"<object>{chain}<bndbox>{_elements(ends)}</bndbox></object>")
    lines.append("</annotation>")
    return lines


def _elements(values: dict[str, int]) -> str:
    return "".join(f"<{name}>{value}</{name}>" for name, value in values.items())
