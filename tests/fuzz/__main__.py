"""`python -m tests.fuzz --n 10000`: damaged files for every reader; `--kills 100`: runs that are killed and resumed."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from tiny import toys  # noqa: E402, F401 - keeps libraries offline and on one thread, before they load

# isort: split
from random import Random  # noqa: E402

import kills  # noqa: E402
import readers  # noqa: E402
import trials  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--n", type=int, default=1000, help="mutations, evenly over the readers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", default="", help="this one alone")
    parser.add_argument("--kills", type=int, default=0, help="kill commands so often, instead")
    parser.add_argument("--command", nargs="+", default=[], help="--kills: these alone")
    given = parser.parse_args()
    if given.kills:
        return kill(given.kills, given.seed, given.command)
    names = list(readers.readers(readers.LazyFixture(Path())))
    if given.reader and given.reader not in names:
        parser.error(f"no reader is called {given.reader!r}; there are: {', '.join(names)}")
    names = [given.reader] if given.reader else names
    with tempfile.TemporaryDirectory() as folder:
        each = -(-given.n // len(names))
        counts, findings = trials.run(names, each, given.seed, Path(folder), flushed)
    ended = ", ".join(f"{count:,} {what}" for what, count in counts.most_common())
    print(
        f"{counts.total():,} mutations of {len(names)} readers: {ended}; {len(findings):,} findings"
    )
    return int(bool(findings))


def flushed(line: str) -> None:
    print(line, flush=True)


def kill(count: int, seed: int, chosen: list[str]) -> int:
    """Kills, evenly over the commands; the last line is a summary."""
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        shelf = Path(folder) / "shelf"
        kills.stock(shelf)
        offered = kills.commands(shelf)
        chosen = chosen or list(offered)
        killers: dict[str, kills.Killer] = {}
        for number in range(count):
            name = chosen[number % len(chosen)]
            if name not in killers:
                killers[name] = kills.Killer(name, offered[name], Path(folder) / "runs")
            trial = killers[name].killed(Random(f"{seed} {name} {number}"))
            found += bool(trial.finding)
            print(
                f"{trial.command} ({trial.how}): {trial.finding or 'as if nobody had killed it'}",
                flush=True,
            )
        for killer in killers.values():
            if killer.unlike:
                print(
                    f"{killer.name}: not compared, for it differs by itself: {', '.join(killer.unlike)}"
                )
    print(f"{count:,} kills of {len(chosen)} commands: {found:,} findings")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
