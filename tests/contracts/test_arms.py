"""What every objective that `adapt` can name promises of a run: it trains, leaves a plain encoder, and resumes."""

from dataclasses import replace
from math import isfinite
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import homes
from tiny.homes import STEPS, log_of
from tiny.objectives import captioned_run
from transformers import AutoModel

from groundling.commands.adapt import COMMAND as adapt
from groundling.models.heads import MATCHING_HEADS, TokenImageMatchingHeads, save_heads
from groundling.models.text_encoder import load_text_encoder
from groundling.objectives import built_in_objectives, find_objective
from groundling.settings.fields import replace_settings

TOGETHER = [
    "mlm+contrastive+l1",
    "mlm+nst+crd+nt_xent",
    "joint_mlm+match+clip_tokens",
    "simcse+mcse+lexi_contrastive+caption_to_image+grounded_space+td_text+td_words",
]
"""Runs of several objectives; every other one that is found has a run of its own."""
ARMS = [*TOGETHER]
for name, kind in built_in_objectives().items():
    if "regions" not in kind.required_fields and name not in "+".join(TOGETHER).split("+"):
        ARMS.append(name)
OF_TEXT = {"features.sentence", "features.teacher_states"}
"""Features of teachers that read no images."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captions of photos, a student, and every teacher: a CLIP, a CLIP-BERT, and a vokenizer that was never trained."""
    root = tmp_path_factory.mktemp("arms")
    config = captioned_run(root, "visual_token_mlm", save_joint=True, max_length=40)
    adapt(config, replace(STEPS, steps=1), root / "clip_bert")
    load_text_encoder(config.student).export(root / "vokenizer")
    torch.manual_seed(2)
    heads = TokenImageMatchingHeads(64, 24, width=6)
    save_heads(root / "vokenizer", {MATCHING_HEADS: heads})
    return root


@pytest.mark.parametrize("arm", ARMS)
def test_a_run_leaves_a_plain_encoder_and_resumes(arm: str, place: Path, tmp_path: Path) -> None:
    kinds = [find_objective(name) for name in arm.split("+")]
    fields = {field for kind in kinds for field in kind.required_fields}
    config = replace_settings(
        captioned_run(place, arm, max_length=40),
        kd_teacher=str(place / "student"),
        mlm_teacher=str(place / "clip_bert" / "joint"),
        voken_matcher=str(place / "vokenizer"),
        voken_images=str(place / "photos"),
        vokenizer_layers=2,
        crd_partition="first_batch",
        teacher_images="" if fields & OF_TEXT else str(place / "photos"),
    )
    whole, resumed = homes.whole_and_resumed(adapt, config, STEPS, tmp_path, "model")
    assert whole == resumed
    log = log_of(tmp_path / "whole")
    assert log == log_of(tmp_path / "killed")
    assert [line["step"] for line in log] == [1, 2, 3]
    assert all(isfinite(value) for line in log for value in line.values())
    terms = set(log[0]) - {"step", "epoch", "loss", "lr"}
    assert len(terms) >= len(kinds)
    before, after = (
        AutoModel.from_pretrained(folder) for folder in (config.student, tmp_path / "whole/model")
    )
    assert type(before) is type(after)
    old, new = before.state_dict(), after.state_dict()
    assert {key: value.shape for key, value in old.items()} == {
        key: value.shape for key, value in new.items()
    }
    changed = [key for key in old if not torch.equal(old[key], new[key])]
    # Vokenization's first stage trains its heads alone.
    assert (len(changed) > len(old) / 2) == (arm != MATCHING_HEADS), changed
    heads = load_file(tmp_path / "whole/model/groundling_heads.safetensors")
    assert all(value.isfinite().all() for value in heads.values())
