"""Jobs of processes of their own, which import nothing that takes seconds."""

from __future__ import annotations

import threading
from pathlib import Path

from groundling.core.errors import InputError


def thread_that_stays() -> None:
    """Leave a thread that would keep a process for ever."""
    threading.Thread(target=threading.Event().wait).start()


def note(path: str, name: str) -> str:
    """A job that leaves a line in a file."""
    with Path(path).open("a") as file:
        file.write(name + "\n")
    return name


def refuse(reason: str) -> None:
    """A job that ends as a user's mistake does."""
    raise InputError(reason)
