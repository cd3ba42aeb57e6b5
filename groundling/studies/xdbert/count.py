"""How often words and pieces occur in captions: the table by which `groundling grounded` tells what is visual."""

from __future__ import annotations

from pathlib import Path

from groundling.core.errors import InputError
from groundling.data.captions.captions import Wanted, caption_lines
from groundling.models.loading import load_tokenizer
from groundling.runs.folder import disk_errors, write_json
from groundling.runs.hashing import data_hash
from groundling.studies.xdbert.commands import CountsConfig
from groundling.studies.xdbert.word_counts import count_pieces, count_words, vocabulary_hash


def count(config: CountsConfig, out: str | Path) -> str:
    """Count caption files into the JSON table that `Grounding.read` reads; returns a sentence that says how much.

    The table tells where it comes from: a hash of every caption file and of the tokenizer's vocabulary. Raises
    InputError if a file or the tokenizer cannot be read, or `out` cannot be written.
    """
    tokenizer = load_tokenizer(config.tokenizer)
    captions: list[str] = []
    wanted = Wanted(config.caption_splits, config.columns).of(config.captions)
    for file, own in zip(config.captions, wanted, strict=True):
        captions += caption_lines(file, own.splits, own.columns)
    pieces = count_pieces(captions, tokenizer)
    words = count_words(captions)
    provenance = {
        "files": {str(file): data_hash(file) for file in config.captions},
        "tokenizer": {
            "source": config.tokenizer,
            "vocabulary_sha256": vocabulary_hash(tokenizer),
        },
        "captions": len(captions),
    }
    out = Path(out)
    if out.is_dir():
        raise InputError(f"{out}: is a folder; --out names the file of the table")
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, {"provenance": provenance, "pieces": pieces, "words": words})
    return f"{out}: {len(pieces):,} pieces and {len(words):,} words of {len(captions):,} captions"
