"""A hub that takes everything and remembers it; no test reaches the real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


class Hub:
    """Stands for `huggingface_hub.HfApi`."""

    def __init__(self, fault: str = "") -> None:
        """`fault`: what an upload fails with."""
        self.fault = fault
        self.known = True
        self.repositories: dict[str, bool | None] = {}
        self.files: dict[str, set[str]] = {}
        self.cards: dict[str, str] = {}

    def __call__(self) -> Hub:
        return self

    def whoami(self) -> dict[str, str]:
        if not self.known:
            raise OSError("Token is required, but no token found")
        return {"name": "someone"}

    def create_repo(self, repo_id: str, private: bool | None, exist_ok: bool) -> str:
        assert exist_ok
        self.repositories[repo_id] = private
        return f"https://hub.invalid/{repo_id}"

    def upload_folder(self, repo_id: str, folder_path: Path, **options: Any) -> None:
        if self.fault:
            raise RuntimeError(self.fault)
        left_out = options["ignore_patterns"]
        files = [path for path in folder_path.rglob("*") if path.is_file()]
        names = {path.relative_to(folder_path).as_posix() for path in files}
        self.files[repo_id] = names - set(left_out)

    def upload_file(
        self, repo_id: str, path_or_fileobj: bytes, path_in_repo: str, commit_message: str
    ) -> None:
        assert path_in_repo == "README.md" and commit_message
        self.cards[repo_id] = path_or_fileobj.decode()


def put_up(monkeypatch: pytest.MonkeyPatch, fault: str = "") -> Hub:
    """The hub, in place of the real one."""
    hub = Hub(fault)
    monkeypatch.setattr("huggingface_hub.HfApi", hub)
    monkeypatch.setattr("groundling.models.hub.HfApi", hub)
    monkeypatch.setattr("groundling.models.hub.is_hub_reachable", lambda: True)
    return hub
