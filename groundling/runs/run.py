"""The life of a run's folder, once for all commands: opened, resumed, found finished, written, cleared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from accelerate import PartialState

from groundling.core.errors import InputError, convert_errors, prefix_errors
from groundling.core.registry import files_of_object, import_object, is_import_path
from groundling.runs.checkpoints import Checkpoints
from groundling.runs.folder import (
    RESULT,
    clear_prepared,
    difference,
    json_safe,
    lock_folder,
    open_run,
    read_json,
    read_result,
    whole_folder,
    write_json,
)
from groundling.runs.jobs import use_cpu
from groundling.runs.progress import CommandContext, is_main_process, print_notes


class RunPart(CommandContext):
    """A run, or a part of one, with a folder in which it finishes by itself, on every process of it.

    The first process writes, the others wait.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.state = PartialState()

    @property
    def folder(self) -> Path:
        """Where it writes, what it can go on from among it."""
        return self.out

    def save(self, write: Callable[[Path], None]) -> None:
        """Let the first process write what was made to a folder, whose files are in the run's all at once, by name."""
        if self.state.is_main_process:
            with whole_folder(self.folder) as partial:
                write(partial)

    def end(self, result: dict[str, Any]) -> dict[str, Any]:
        """The end: `result.json`, with the notes, and no checkpoints any more; returns what is written."""
        result = self.with_notes(result)
        if self.state.is_main_process:
            write_json(self.folder / RESULT, result)
        self.state.wait_for_everyone()  # the others may read what is prepared until they are here, too
        if self.state.is_main_process:
            _clear(self.folder)
        self.state.wait_for_everyone()
        return result


class Run(RunPart):
    """A command's run."""

    def __init__(
        self,
        out: str | Path,
        kind: str,
        settings: Mapping[str, Any],
        inputs: Mapping[str, str | Path],
        cpu: bool = False,
        makes: Sequence[str] = (),
        patience: timedelta | None = None,
    ) -> None:
        """`settings` and the hashes of `inputs` (name to path) decide whether `out` holds this very run.

        So do the files of modules that settings name (MODULE:NAME), and of the user's own that these import. `makes`
        names what it leaves beside its result, `patience` is how long processes wait for each other if not as long as
        torch lets them. Raises InputError if `out` holds another run, or another process writes there, or there is no
        such module or object.
        """
        self.makes = makes
        self._parts: list[bool] = []
        """Of each part, whether it had something to do."""
        inputs = {**_named(inputs), **_modules(settings)}
        waiting = {} if patience is None else {"timeout": patience}
        state = PartialState(cpu=use_cpu(cpu), **waiting)
        with state.main_process_first():
            is_main = state.is_main_process
            folder = open_run(out, kind, settings, inputs, is_main, self._hold)
        super().__init__(folder)
        self._opened = self._settings()

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """What the run wrote when it finished earlier, which is told; None if it has not."""
        result = finished_result(self.folder)
        if result is not None:
            self.say_finished()
        return result

    def say_finished(self) -> None:
        """Tell the user why a run takes no time, and what of that which it made is gone since."""
        note = "finished earlier; nothing was done (another --out makes it anew)"
        made = [self.folder / name for name in self.makes]
        lost = [path for path in made if not path.exists()]
        if lost:
            note = f"finished earlier, but {lost[0]} is gone since; delete {lost[0].with_name(RESULT)}, "
            note += "and the same command makes it again"
        print_notes([f"{self.folder}: {note}"])

    def _hold(self, folder: Path) -> None:
        """Keep other commands out of the folder; processes of one command share it, the first one holds it."""
        if is_main_process():
            self._held = lock_folder(folder)

    def _settings(self) -> object:
        """What the folder says it is, as the process that writes there finds it."""
        return read_json(self.folder / "config.json") if self.state.is_main_process else None

    def part(
        self,
        name: str,
        work: Callable[[RunPart], dict[str, Any]],
        reads: Callable[[dict[str, Any]], object] = bool,
    ) -> dict[str, Any]:
        """The result of a part, in the folder `name` of the run's: of an earlier call, or else what `work` makes now.

        `reads` takes of an earlier one what the caller will. Raises InputError if that is damaged.
        """
        part = RunPart(self.folder / name)
        part.folder.mkdir(parents=True, exist_ok=True)
        done = finished_result(part.folder, reads)
        self._parts.append(done is None)
        return part.end(work(part)) if done is None else done

    def save(self, write: Callable[[Path], None]) -> None:
        """As a part does; raises InputError if another run has taken the folder."""
        self._check_taken()
        super().save(write)

    def end(self, result: dict[str, Any]) -> dict[str, Any]:
        """As a part does, but returns the result as the file has it; raises InputError as `save`."""
        if self._parts and not any(self._parts):
            self.say_finished()
        self._check_taken()
        whole: dict[str, Any] = json_safe(super().end(result))
        return whole

    def _check_taken(self) -> None:
        """Raises InputError if another run has taken the folder, as it can until there is more than settings in it."""
        there = self._settings()
        if there != self._opened:
            raise InputError(
                f"{self.folder}: taken by another run in the meantime ({difference(there, self._opened, 'run')}); "
                "choose another --out"
            )


def finished_result(
    folder: Path, reads: Callable[[dict[str, Any]], object] = bool
) -> dict[str, Any] | None:
    """What a run in a folder wrote when it finished, without checkpoints that a kill behind it left; else None.

    `reads` takes of it what the caller will. Raises InputError if the file is damaged, or lacks something of that.
    """
    result = read_result(folder)
    if result is None:
        return None
    advice = "; delete it, and the same command makes it again"
    with prefix_errors(folder / RESULT), convert_errors("not as its run wrote it", advice):
        reads(result)
    if PartialState().is_main_process:
        _clear(folder)
    return result


def _clear(folder: Path) -> None:
    """Remove what a run needed that has ended; a kill behind its end leaves it."""
    Checkpoints(folder / "checkpoints").clear()
    clear_prepared(folder)


MODULES = (
    *(
        "arm",
        "objectives",
        "teacher",
        "task",
        "architecture",
        "model",
        "model_format",
        "training_step",
        "keyword_extractor",
    ),
    "trust",
)
"""Settings, in whatever group, that may name objects of the user's own modules."""


def _modules(settings: Mapping[str, Any]) -> dict[str, str | Path]:
    """The files of the modules that settings name: an edited one makes another run."""
    files: dict[str, str | Path] = {}
    every = dict(settings)
    for group in settings.values():
        if isinstance(group, Mapping):
            every |= group
    for setting in MODULES:
        value = every.get(setting, "")
        names = value.split("+") if isinstance(value, str) else value
        for name in names:
            if is_import_path(name):
                import_object(name, object)
                files |= {f"{setting}:{one}": file for one, file in files_of_object(name).items()}
    return _named(files)


def _named(inputs: Mapping[str, str | Path]) -> dict[str, str | Path]:
    """The inputs that were given at all."""
    return {name: path for name, path in inputs.items() if str(path)}
