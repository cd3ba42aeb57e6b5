"""The life of a run's folder, once for all recipes: opened, resumed, found finished, written, cleared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from accelerate import PartialState

from groundling.core.errors import InputError, in_one_line
from groundling.core.find import code_behind, is_outside, outside
from groundling.runs.checkpoints import Checkpoints
from groundling.runs.folder import (
    RESULT,
    clear_prepared,
    difference,
    finished,
    hold,
    open_run,
    plain,
    read_json,
    whole_folder,
    write_json,
)
from groundling.runs.jobs import on_processor


def say_notes(notes: Sequence[str]) -> None:
    """Tell the user, a line each and once for all processes, what a reader of the result must know, too."""
    if PartialState().is_main_process:
        for note in notes:
            print(f"note: {note}", file=sys.stderr)


class Run:
    """A run's folder on every process of it; the first process writes, the others wait."""

    def __init__(
        self,
        out: str | Path,
        kind: str,
        settings: Mapping[str, Any],
        inputs: Mapping[str, str | Path],
        cpu: bool = False,
        makes: Sequence[str] = (),
    ) -> None:
        """`settings` and the hashes of `inputs` (name to path) decide whether `out` holds this very run.

        So do the files of modules that settings name (MODULE:NAME), and of the user's own that these import. `makes`
        names what it leaves beside its result. Raises InputError if `out` holds another run, or another process writes
        there, or there is no such module or object.
        """
        self.makes = makes
        inputs = {**_named(inputs), **_modules(settings)}
        self.state = PartialState(cpu=on_processor(cpu))
        with self.state.main_process_first():
            is_main = self.state.is_main_process
            self.folder = open_run(out, kind, settings, inputs, is_main, self._hold)
        self._opened = self._settings()

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """What the run wrote when it finished earlier, which is told; None if it has not."""
        result = ended(self.folder)
        if result is not None:
            self.say_finished([self.folder / name for name in self.makes])
        return result

    def say_finished(self, made: Sequence[Path] = ()) -> None:
        """Tell the user why a run takes no time, and what of that which it `made` is gone since."""
        if not self.state.is_main_process:
            return
        note = "finished earlier; nothing was done (another --out makes it anew)"
        lost = [path for path in made if not path.exists()]
        if lost:
            note = f"finished earlier, but {lost[0]} is gone since; delete {lost[0].with_name(RESULT)}, "
            note += "and the same command makes it again"
        print(f"note: {self.folder}: {note}", file=sys.stderr)

    def _hold(self, folder: Path) -> None:
        """Keep other commands out of the folder; processes of one command share it, the first one holds it."""
        if self.state.is_main_process:
            self._held = hold(folder)

    def _settings(self) -> object:
        """What the folder says it is, as the process that writes there finds it."""
        return read_json(self.folder / "config.json") if self.state.is_main_process else None

    def finish(
        self, result: dict[str, Any], save: Callable[[Path], None] | None = None
    ) -> dict[str, Any]:
        """Let `save` write what the run made, then the result, which ends it; returns the result as the file has it.

        Raises InputError if another run has taken the folder, as it can until there is more than settings in it.
        """
        there = self._settings()
        if there != self._opened:
            raise InputError(
                f"{self.folder}: taken by another run in the meantime ({difference(there, self._opened, 'run')}); "
                "choose another --out"
            )
        write_result(self.folder, result, save)
        whole: dict[str, Any] = plain(result)
        return whole


def ended(folder: Path, reads: Callable[[dict[str, Any]], object] = bool) -> dict[str, Any] | None:
    """What a run in a folder wrote when it finished, without checkpoints that a kill behind it left; else None.

    `reads` takes of it what the caller will. Raises InputError if the file is damaged, or lacks something of that.
    """
    result = finished(folder)
    if result is None:
        return None
    try:
        reads(result)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{folder / RESULT}: not as its run wrote it ({type(error).__name__}: {in_one_line(error)}); "
            "delete it, and the same command makes it again"
        ) from None
    if PartialState().is_main_process:
        _clear(folder)
    return result


def _clear(folder: Path) -> None:
    """Remove what a run needed that has ended; a kill behind its end leaves it."""
    Checkpoints(folder / "checkpoints").clear()
    clear_prepared(folder)


def write_result(
    folder: Path, result: dict[str, Any], save: Callable[[Path], None] | None = None
) -> None:
    """The end of a run in a folder: what `save` makes, `result.json`, and no checkpoints any more."""
    state = PartialState()
    if state.is_main_process:
        if save is not None:
            with whole_folder(folder) as partial:
                save(partial)
        write_json(folder / RESULT, result)
    state.wait_for_everyone()  # the others may read what is prepared until they are here, too
    if state.is_main_process:
        _clear(folder)
    state.wait_for_everyone()


MODULES = (
    *("arm", "objectives", "teacher", "task", "join", "model", "kind", "inner", "keywords"),
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
            if is_outside(name):
                outside(name, object)
                files |= {f"{setting}:{one}": file for one, file in code_behind(name).items()}
    return _named(files)


def _named(inputs: Mapping[str, str | Path]) -> dict[str, str | Path]:
    """The inputs that were given at all."""
    return {name: path for name, path in inputs.items() if str(path)}
