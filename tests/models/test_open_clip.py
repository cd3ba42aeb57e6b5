"""Teachers of open_clip: how they are recognised, and the checks against open_clip itself, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import toys
from tiny.homes import put, tokens

from groundling.core.errors import InputError
from groundling.models.clip import load_clip_text_tower
from groundling.models.frozen_clip import load_frozen_clip
from groundling.models.hub import check_model, is_open_clip
from groundling.models.loading import load_config, model_type

FOLDER = os.environ.get("OPEN_CLIP_FOLDER") or str(Path(sys.prefix) / "open_clip")
"""Where `bootstrap.py test` installs open_clip beside the environment."""


def test_open_clip_itself(tmp_path: Path) -> None:
    own = {"OPEN_CLIP_FOLDER": FOLDER if Path(FOLDER).is_dir() else ""}
    probe = [sys.executable, "-c", "import open_clip"]
    if not own["OPEN_CLIP_FOLDER"] and subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("NOT TESTED: open_clip is not installed; run `python3 bootstrap.py test`")
    checks = Path(__file__).with_name("open_clip_checks.py")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'checks'}", str(checks)],
        env=os.environ | own,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:]


def test_hugging_faces_files_in_the_same_folder_are_used_and_timms_are_not(tmp_path: Path) -> None:
    put(tmp_path / "open_clip_config.json", "{}")
    assert is_open_clip(tmp_path) and model_type(tmp_path) == ""
    put(tmp_path / "config.json", '{"architecture": "vit_base_patch32_clip_224"}')
    assert is_open_clip(tmp_path)
    toys.clip(tokens()).save_pretrained(tmp_path)
    assert not is_open_clip(tmp_path)


@pytest.mark.parametrize("read", [load_config, load_clip_text_tower])
def test_where_hugging_faces_format_is_needed_it_is_asked_for(read, tmp_path: Path) -> None:
    put(tmp_path / "open_clip_config.json", "{}")
    for source in (tmp_path, "open_clip:ViT-B-32/laion2b_s34b_b79k"):
        with pytest.raises(InputError, match="can be a teacher only"):
            read(source)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    check_model("open_clip:ViT-B-32/laion2b_s34b_b79k")
    with pytest.raises(InputError, match=r"pip install 'groundling\[open_clip\]'"):
        load_frozen_clip("open_clip:ViT-B-32/laion2b_s34b_b79k")
    with pytest.raises(InputError, match="expected open_clip:NAME/TAG"):
        check_model("open_clip:ViT-B-32")
