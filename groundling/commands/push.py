"""`groundling push`: upload a run's model to the Hugging Face hub, with a model card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from groundling.command_line import COMMANDS, SHARED, Command
from groundling.core.errors import InputError, convert_errors
from groundling.models.hub import check_repository
from groundling.runs.folder import read_json, read_result
from groundling.runs.outputs import NoOutput
from groundling.runs.progress import CommandContext
from groundling.settings.fields import InputKind, Settings, at_least, required
from groundling.settings.training import PushToHubSettings


@dataclass(frozen=True)
class PushConfig(Settings):
    """Run whose model is uploaded to the Hugging Face hub."""

    run: Annotated[str, InputKind.FOLDER, required] = ""
    """Run folder of `adapt`, `train-clip`, `pretrain` or `finetune`."""
    to: Annotated[str, required] = ""
    """OWNER/NAME of the repository; created if it does not exist."""
    model_seed: Annotated[int, at_least(-1)] = -1
    """Run of `finetune`: seed whose model is uploaded; -1: the seed with the best development \
score."""
    private: bool = False
    """Make a new repository private; otherwise the owner's default applies, usually public. An \
existing repository keeps its visibility."""


def push(config: PushConfig, work: CommandContext) -> dict[str, Any]:
    """Upload a finished run's model to `config.to`; returns its address."""
    return upload_run(config)


def upload_run(config: PushConfig) -> dict[str, Any]:
    """Upload a finished run's model to `config.to`; returns its address.

    Raises InputError if the run has not finished, saved no model, or the hub refuses the upload.
    """
    from groundling.prediction.predictions import choose_seed_models

    check_repository(config.to)
    seed = None if config.model_seed < 0 else config.model_seed
    folder = Path(config.run)
    model = choose_seed_models(folder, seed).folder
    run = _read_run_config(folder)
    result = read_result(folder)
    if result is None:
        raise InputError(
            f"{folder}: the run has not finished (no result.json); run its command again to finish it"
        )
    text = _card(config.to, folder, model, run, result)
    url = _upload(model, text, config.to, config.private)
    return {"pushed": str(model), "to": url}


def push_after_run(out: str, sharing: PushToHubSettings) -> None:
    """Upload the model of a finished run in `out`; raises InputError, which tells how to retry, if
    that fails.
    """
    config = PushConfig(run=out, to=sharing.push_to_hub, private=sharing.private)
    try:
        upload_run(config)
    except InputError as error:
        raise InputError(
            f"{out}: the run is finished and saved, but the upload failed ({error}); retry with "
            f"`groundling push {out} --to {sharing.push_to_hub}`"
        ) from None


def _read_run_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a run folder; raises InputError if it is not a run that saves a model."""
    run = read_json(folder / "config.json")
    commands = [name for name, one in COMMANDS.items() if SHARED.keys() <= one.settings.keys()]
    is_run = isinstance(run, dict) and {"kind", "config", "inputs", "versions"} <= run.keys()
    if not is_run or run["kind"] not in commands:
        raise InputError(f"{folder}: expected the run folder of {', '.join(commands)}")
    return {"commit": "unknown", **run}


def _card(name: str, folder: Path, model: Path, run: dict[str, Any], result: dict[str, Any]) -> str:
    """The model card; raises InputError if config.json or result.json has been changed since the
    run.
    """
    from groundling.runs.model_card import card

    settings = COMMANDS[run["kind"]].settings
    with convert_errors(f"{folder}: config.json or result.json is malformed"):
        return card(name, model, run, result, (settings["_own"], settings["_train"]))


def _upload(model: Path, text: str, to: str, is_private: bool) -> str:
    """Upload the model; returns its address."""
    from huggingface_hub import HfApi

    api = HfApi()
    # The hub's HTTP client, and with it the exception, differs between versions.
    with convert_errors(f"{to}: the hub refused the upload", errors=Exception):
        # None: the owner's default applies, and an existing repository keeps its visibility.
        private = True if is_private else None
        url = api.create_repo(to, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=to,
            folder_path=model,
            ignore_patterns=["README.md"],
            commit_message="Upload with groundling",
        )
        api.upload_file(
            repo_id=to,
            path_or_fileobj=text.encode(),
            path_in_repo="README.md",
            commit_message="Add model card",
        )
    return str(url)


COMMAND = Command(
    "push",
    "upload a run's model to the Hugging Face hub, with a model card",
    "groundling.commands.push:push",
    {"_own": PushConfig()},
    title="Use",
    example="groundling push runs/my_clip --to my-name/my-clip",
    common_flags="run to model-seed private",
    positional=("--run",),
    output=NoOutput(),
)
