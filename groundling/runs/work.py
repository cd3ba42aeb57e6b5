"""What a command's function is handed behind its settings. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groundling.runs.progress import say_notes


class Work:
    """What a command's function is handed behind its settings."""

    def __init__(self, out: Path | None = None) -> None:
        self._out = out
        self.notes: list[str] = []
        """What the result tells beside its numbers."""

    @property
    def out(self) -> Path:
        """The file or folder that the user wants written."""
        if self._out is None:
            raise AssertionError("a command that leaves nothing has no place for it")
        return self._out

    def note(self, *notes: str) -> None:
        """Tell the user now, a line each and once for all processes, and the reader of the result."""
        say_notes(notes)
        self.notes += notes

    def with_notes(self, result: Any) -> Any:
        """A result with the notes in it, if there are any, and if it is one that can hold them."""
        return (
            {**result, "notes": self.notes} if self.notes and isinstance(result, dict) else result
        )
