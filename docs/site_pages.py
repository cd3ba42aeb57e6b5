"""Hooks of `mkdocs build`: files above `docs/` and the page of the Python API are part of the site too."""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
"""Files beside `docs/` that become pages, and the names of the pages."""
DOWNLOADS = ("CITATION.cff", "examples/*.ipynb")
"""Files that pages link to for download."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the API's page and the files above `docs/`, with links relative to `docs/`."""
    root = Path(config.docs_dir).parent
    sys.path[:0] = [config.docs_dir]
    from make_api import page as api_page

    files.append(File.generated(config, "api.md", content=api_page()))
    for name, page in PAGES.items():
        text = (root / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, target in PAGES.items():
            text = text.replace(f"]({other}", f"]({target}")
        files.append(File.generated(config, page, content=text))
    for path in sorted(path for pattern in DOWNLOADS for path in root.glob(pattern)):
        place = path.relative_to(root).as_posix()
        files.append(File.generated(config, place, content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Point links from `docs/` to files above it to the pages made from them."""
    for name, page in PAGES.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return markdown
