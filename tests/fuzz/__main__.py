"""`python -m tests.fuzz --n 10000`: damaged files for every reader."""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from tiny import toys  # noqa: E402, F401 - keeps libraries offline and on one thread, before they load

# isort: split
import readers  # noqa: E402
import trials  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--n", type=int, default=1000, help="mutations, evenly over the readers")
    parser.add_argument("--seed", type=int, default=0)
    names = list(readers.readers(readers.LazyFixture(Path())))
    parser.add_argument("--reader", choices=names, help="this one alone")
    given = parser.parse_args()
    names = [given.reader] if given.reader else names
    with tempfile.TemporaryDirectory() as folder:
        each = -(-given.n // len(names))
        say = partial(print, flush=True)
        counts, findings = trials.run(names, each, given.seed, Path(folder), say)
    ended = ", ".join(f"{count:,} {what}" for what, count in counts.most_common())
    print(
        f"{counts.total():,} mutations of {len(names)} readers: {ended}; {len(findings):,} findings"
    )
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
