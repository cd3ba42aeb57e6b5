"""A photo that was replaced by one of another shape is not what stored boxes are drawn on."""

from pathlib import Path

import homes
import pytest
import toys

from groundling.core.errors import InputError
from groundling.data.regions.store import Found, RegionWriter
from groundling.studies.attention.commands import LookConfig
from groundling.studies.attention.look import looked_at


def test_stored_boxes_are_not_drawn_on_a_photo_of_another_shape(tmp_path: Path) -> None:
    (tmp_path / "seer").mkdir()
    toys.seer().export(tmp_path / "seer")
    homes.picture(tmp_path / "one.jpg", size=(60, 40))
    row = toys.regions(3, 3)
    writer = RegionWriter(tmp_path / "store")
    writer.write(0, [Found("one", (60, 40), row.boxes, row.confidence, row.features, row.classes)])
    writer.close({"class_names": list("abcde")})
    config = LookConfig(
        model=(str(tmp_path / "seer"),),
        regions=(str(tmp_path / "store"),),
        image=str(tmp_path / "one.jpg"),
        text="a red dog runs",
        cpu=True,
    )
    assert len(looked_at(config).entries) == 1
    homes.picture(tmp_path / "one.jpg", size=(120, 80))  # scaled: boxes are shares
    assert len(looked_at(config).entries) == 1
    homes.picture(tmp_path / "one.jpg", size=(40, 60))
    with pytest.raises(InputError) as caught:
        looked_at(config)
    told = str(caught.value)
    assert f"{tmp_path}/one.jpg: 40 x 60 pixels, but its regions are of an image of 60 x 40" in told
    assert str(tmp_path / "store") in told
