"""Life cycle of a run folder, for all commands: opened, resumed, finished, cleared."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from accelerate import PartialState

from groundling.runs.checkpoints import Checkpoints
from groundling.runs.folder import (
    PREPARED,
    RESULT,
    check_run_folder,
    disk_errors,
    json_safe,
    lock_folder,
    open_run,
    read_result,
    whole_folder,
    write_json,
)
from groundling.runs.jobs import use_cpu
from groundling.runs.progress import CommandContext, print_notes


class RunFolder(CommandContext):
    """A run, or a part of one, with its own folder and result; the main process writes, the others wait."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.state = PartialState()

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """The result of an earlier, finished run or part, with a note to the user; None otherwise."""
        result = read_result(self.folder)
        if result is not None:
            note = "finished earlier; nothing to do (use another output folder to run again)"
            print_notes([f"{self.folder}: {note}"])
            self._clear()
        return result

    def save(self, write: Callable[[Path], None]) -> None:
        """Call `write` with a temporary folder on the main process, then move its content to the run folder."""
        if self.state.is_main_process:
            with whole_folder(self.folder) as partial:
                write(partial)

    def end(self, result: dict[str, Any]) -> dict[str, Any]:
        """Write `result.json` with the notes and remove checkpoints; returns what is written."""
        result = self.with_notes(result)
        if self.state.is_main_process:
            write_json(self.folder / RESULT, result)
        self.state.wait_for_everyone()  # the others may still read prepared files until they arrive here
        self._clear()
        self.state.wait_for_everyone()
        return result

    def _clear(self) -> None:
        """Remove what only an unfinished run needs, which a kill may leave."""
        if self.state.is_main_process:
            Checkpoints(self.folder / "checkpoints").clear()
            shutil.rmtree(self.folder / PREPARED, ignore_errors=True)


class Run(RunFolder):
    """A command's run."""

    def __init__(
        self,
        out: str | Path,
        kind: str,
        settings: Mapping[str, Any],
        inputs: Mapping[str, str | Path],
        cpu: bool = False,
        timeout: timedelta | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """`settings`, and path, size and time of `inputs` (name to path) decide whether `out` holds this run.

        `timeout` is how long processes wait for each other instead of torch's default, and `defaults` are the values
        of settings that an older run does not have. Raises InputError if `out` holds another run, or another process
        writes there.
        """
        options = {} if timeout is None else {"timeout": timeout}
        state = PartialState(cpu=use_cpu(cpu), **options)
        folder = Path(out)
        if state.is_main_process:
            check_run_folder(folder)
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(folder)
            given = {name: path for name, path in inputs.items() if str(path)}
            open_run(folder, kind, settings, given, defaults=defaults)
        state.wait_for_everyone()
        super().__init__(folder)

    def part(self, name: str, work: Callable[[RunFolder], dict[str, Any]]) -> dict[str, Any]:
        """The result of a part, in the subfolder `name`: of an earlier call, or made now by `work`."""
        part = RunFolder(self.folder / name)
        part.folder.mkdir(parents=True, exist_ok=True)
        return part.end(work(part)) if part.result is None else part.result

    def end(self, result: dict[str, Any]) -> dict[str, Any]:
        """As in a part, but returns the result as stored."""
        stored: dict[str, Any] = json_safe(super().end(result))
        return stored
