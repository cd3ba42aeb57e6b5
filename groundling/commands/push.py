"""`groundling push`: put what a run saved on Hugging Face's hub, with a card of how it was made."""

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
from groundling.settings.training import HubSettings


@dataclass(frozen=True)
class PushConfig(Settings):
    """Which run's model goes to Hugging Face's hub."""

    run: Annotated[str, InputKind.FOLDER, required] = ""
    """Run folder of `adapt`, `train-clip`, `pretrain` or `finetune`."""
    to: Annotated[str, required] = ""
    """OWNER/NAME of the repository there; made if it is not there."""
    model_seed: Annotated[int, at_least(-1)] = -1
    """Of a fine-tuning: which seed; -1: the best one on the development split."""
    private: bool = False
    """Make a new repository private; otherwise it is public, unless the owner's own default says otherwise."""


def push(config: PushConfig, work: CommandContext) -> dict[str, Any]:
    """Upload a finished run's model to `config.to`; returns where it is."""
    return upload_run(config)


def upload_run(config: PushConfig) -> dict[str, Any]:
    """Upload a finished run's model to `config.to`; returns where it is.

    Raises InputError if the run has not finished, saved no model, or the hub refuses it.
    """
    from groundling.prediction.predictions import choose_seed_models

    check_repository(config.to)
    seed = None if config.model_seed < 0 else config.model_seed
    folder = Path(config.run)
    model = choose_seed_models(folder, seed).folder
    run = _described(folder)
    result = read_result(folder)
    if result is None:
        raise InputError(
            f"{folder}: has not finished, there is no result.json; run its command to the end"
        )
    text = _card(config.to, folder, model, run, result)
    url = _sent(model, text, config.to, config.private)
    return {"pushed": str(model), "to": url}


def push_after_run(out: str, sharing: HubSettings) -> None:
    """Upload what a finished run in `out` saved; raises InputError, which says how to do it later, if that fails."""
    config = PushConfig(run=out, to=sharing.push_to_hub, private=sharing.private)
    try:
        upload_run(config)
    except InputError as error:
        raise InputError(
            f"{out}: the run is finished and saved, but not pushed ({error}); try again with "
            f"`groundling push {out} --to {sharing.push_to_hub}`"
        ) from None


def _described(folder: Path) -> dict[str, Any]:
    """What a run folder says of its run; raises InputError if that is none that saves a model."""
    run = read_json(folder / "config.json")
    there = [name for name, one in COMMANDS.items() if SHARED.keys() <= one.settings.keys()]
    is_run = isinstance(run, dict) and {"kind", "config", "inputs", "versions"} <= run.keys()
    if not is_run or run["kind"] not in there:
        raise InputError(f"{folder}: expected the run folder of {', '.join(there)}")
    return {"commit": "unknown", **run}


def _card(name: str, folder: Path, model: Path, run: dict[str, Any], result: dict[str, Any]) -> str:
    """The model's card; raises InputError if what the run's folder says of the run is no longer what was written."""
    from groundling.runs.model_card import card

    settings = COMMANDS[run["kind"]].settings
    with convert_errors(f"{folder}: config.json or result.json is not as a run writes them"):
        return card(name, model, run, result, (settings["_own"], settings["_train"]))


def _sent(model: Path, text: str, to: str, is_private: bool) -> str:
    """The address of the model after its upload."""
    from huggingface_hub import HfApi

    api = HfApi()
    # Of the HTTP client, which is another one from version to version.
    with convert_errors(f"{to}: the hub did not take it", errors=Exception):
        # Without a word about it, the owner's default holds, and a repository that is there stays as it is.
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
            commit_message="How it was made",
        )
    return str(url)


COMMAND = Command(
    "push",
    "put what a run saved on Hugging Face's hub, with a card of how it was made",
    "groundling.commands.push:push",
    {"_own": PushConfig()},
    title="Use",
    example="groundling push runs/my_clip --to my-name/my-clip",
    common_flags="run to model-seed private",
    positional=("--run",),
    output=NoOutput(),
)
