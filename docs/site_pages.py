"""Hooks of `mkdocs build`: files above `docs/`, notebooks, the Python API and all commands are pages of the site."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
"""Files beside `docs/` that become pages, and the names of the pages."""
NOTEBOOKS = ("ground_an_encoder", "ask_your_photos")
"""Notebooks in `examples/`, which are pages and files to download."""
DOWNLOADS = ("CITATION.cff", "examples/*.ipynb")
"""Files that pages link to for download."""
SUMMARY = 200
"""Most characters that llms.txt says of a page."""
HELP_WIDTH = "80"
"""Columns of the commands' help on the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the API's page and the files above `docs/`, with links relative to `docs/`."""
    root = Path(config.docs_dir).parent
    sys.path[:0] = [config.docs_dir]
    from make_api import page as api_page

    files.append(File.generated(config, "api.md", content=api_page()))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    for name in NOTEBOOKS:
        content = notebook_page(root / f"examples/{name}.ipynb")
        files.append(File.generated(config, f"tutorials/{name}.md", content=content))
    for name, page in PAGES.items():
        text = (root / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, target in PAGES.items():
            text = text.replace(f"]({other}", f"]({target}")
        files.append(File.generated(config, page, content=text))
    for path in sorted(path for pattern in DOWNLOADS for path in root.glob(pattern)):
        place = path.relative_to(root).as_posix()
        files.append(File.generated(config, place, content=path.read_bytes()))
    files.append(File.generated(config, "llms.txt", content=llms_page(files, config)))
    return files


def llms_page(files: Files, config: MkDocsConfig) -> str:
    """The site for language models (llmstxt.org): every page of the navigation with its address and first sentence."""
    parts = [f"# {config.site_name}", f"> {config.site_description}", "Begin with `agents/`."]
    for entry in config.nav or ():
        ((title, pages),) = entry.items()
        rows = pages if isinstance(pages, list) else [entry]
        lines = []
        for (name, path), *_ in map(dict.items, rows):
            file = files.get_file_from_path(path)
            assert file is not None, path
            about = first_sentence(file.content_string)
            lines.append(f"- [{name}]({file.url})" + (f": {about}" if about else ""))
        parts.append(f"## {title}\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def first_sentence(text: str) -> str:
    """The first sentence of a page's first paragraph, without links; empty if there is none or a long one."""
    plain = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", text)
    paragraphs = (" ".join(one.split()) for one in plain.split("\n\n"))
    first = next(
        (one for one in paragraphs if re.match(r"[\w`*]", one) and not one.startswith("Measured ")),
        "",
    )
    sentence = re.split(r"(?<=\w[.?])\s(?=[A-Z`])", first, maxsplit=1)[0]
    return sentence if len(sentence) <= SUMMARY else ""


def commands_page() -> str:
    """Every command with all of its flags, as `--help-all` prints them, under the titles of `groundling --help`."""
    os.environ["COLUMNS"] = HELP_WIDTH
    from groundling.command_line import COMMANDS
    from groundling.command_line.flags import command_help

    parts = [
        "# Commands",
        "Every command and every flag, as `groundling COMMAND --help-all` prints them. `--help` shows the flags that "
        "most people use.",
    ]
    titles = dict.fromkeys(command.title for command in COMMANDS.values())
    for title in titles:
        parts.append(f"## {title}")
        for name, command in COMMANDS.items():
            if command.title == title:
                parts.append(f"### {name}\n\n```text\n{command_help(command, shows_all=True)}\n```")
    return "\n\n".join(parts) + "\n"


def notebook_page(path: Path) -> str:
    """A notebook's cells and their outputs as a page, with a link to the notebook below its title."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text.replace("](../docs/", "](../"))
            continue
        parts.append(f"```python\n{text}\n```")
        parts += [shown(one, cell["metadata"].get("alt", "")) for one in cell["outputs"]]
    parts.insert(1, f"[Download the notebook](../examples/{path.name}) to run it.")
    return "\n\n".join(parts) + "\n"


def shown(output: Mapping[str, Any], alt: str) -> str:
    """An output of a cell in Markdown: a picture, whose description is `alt`, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"![{alt}](data:image/png;base64,{''.join(data['image/png'].split())})"
    text = "".join(output.get("text") or data["text/plain"])
    return f"```text\n{text.rstrip()}\n```"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Point links from `docs/` to files above it to the pages made from them."""
    for name, page in PAGES.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return markdown
