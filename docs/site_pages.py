"""Hooks of `mkdocs build`: what lies above `docs/`, README.md above all, is part of the site, too."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
"""Files beside `docs/` that become pages, and what these are called."""
AS_THEY_ARE = ("CITATION.cff", "examples/*.ipynb")
"""Files that pages link to, to be downloaded."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files from above, with links as they are from within `docs/`."""
    root = Path(config.docs_dir).parent
    for name, page in PAGES.items():
        text = (root / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, there in PAGES.items():
            text = text.replace(f"]({other}", f"]({there}")
        files.append(File.generated(config, page, content=text))
    for path in sorted(path for pattern in AS_THEY_ARE for path in root.glob(pattern)):
        place = path.relative_to(root).as_posix()
        files.append(File.generated(config, place, content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links from `docs/` to what lies above lead to the pages that were made of it."""
    for name, page in PAGES.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return markdown
