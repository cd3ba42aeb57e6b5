"""Jobs: in order, in processes of their own, and what is said of one that fails."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from homes import put
from tiny.jobs import note, refuse

import groundling
from groundling.core.errors import InputError
from groundling.runs.jobs import Job, run_jobs

ROOT = Path(groundling.__file__).parent.parent
PLANTED = """
from pathlib import Path
Path("ran").touch()
raise ImportError("planted")
"""
SEVERAL = """
from groundling.runs import jobs

jobs._set_up_process = abs  # of a number, which loads no torch
assert jobs.run_jobs([jobs.Job("one", len, ("a",))], 1, print) == {"one": 1}
assert list(jobs.run_parallel(len, [("bc",), ("bc",)], 2)) == [2, 2]

import os
import sys

from tiny.jobs import thread_that_stays

# Foreign code has a process of its own, which ends with it.
every = [
    jobs.Job("before", os.getpid, ()),
    jobs.Job("foreign", os.getpid, (), after=("before",), isolated=True),
    jobs.Job("slow to end", thread_that_stays, (), after=("before",), isolated=True),
    jobs.Job("after", os.getpid, (), after=("foreign",)),
]
found = jobs.run_jobs(every, 1, print)
assert found["before"] == found["after"] != found["foreign"]
try:
    os.kill(found["foreign"], 0)
except ProcessLookupError:
    pass
else:
    raise AssertionError("the process of the foreign job is still there")
for call, words, isolated in (
    (sys.exit, "SystemExit", True),
    (divmod, "TypeError", True),
    (os.abort, "was killed", True),
    (os.abort, "was killed", False),
):
    try:
        jobs.run_jobs([jobs.Job("bad", call, (), isolated=isolated)], 1, print)
    except jobs.InputError as error:
        assert str(error).startswith("bad: ") and words in str(error), error
    else:
        raise AssertionError(words)
"""
"""Without `if __name__ == "__main__":`, which processes would need that begin with the script."""


def test_workers_run_nothing_of_the_working_directory(tmp_path: Path) -> None:
    for name in ("pickle", "socket", "selectors"):
        put(tmp_path / f"data/{name}.py", PLANTED)
    script = put(tmp_path / "script.py", SEVERAL)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path / "data",
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
    )
    assert not (tmp_path / "data/ran").exists()
    assert done.returncode == 0, done.stderr
    assert (
        "TypeError: divmod expected 2 arguments" in done.stderr
    )  # for the author of the foreign code


def test_jobs_run_in_processes_in_order_and_the_first_mistake_is_named(tmp_path: Path) -> None:
    path, said = str(tmp_path / "order"), []
    jobs = [
        Job("late", note, (path, "late"), after=("second", "first")),
        Job("first", note, (path, "first")),
        Job("second", note, (path, "second")),
        Job("wrong", refuse, ("x.txt: no such file",), after=("late",)),
        Job("never", note, (path, "never"), after=("wrong",)),
    ]
    with pytest.raises(InputError, match=r"^wrong: x.txt: no such file$"):
        run_jobs(jobs, 1, said.append)
    assert Path(path).read_text().split() == ["first", "second", "late"]
    assert [line.split(":")[0] for line in said] == ["first", "second", "late"]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("processes", [1, 3])
def test_jobs_give_results_by_name(processes: int, tmp_path: Path) -> None:
    path = str(tmp_path / "order")
    jobs = [
        Job(name, note, (path, name), after=after)
        for name, after in (("c", ("b",)), ("a", ()), ("b", ()))
    ]
    assert run_jobs(jobs, processes, lambda _: None) == {"a": "a", "b": "b", "c": "c"}
    order = Path(path).read_text().split()
    assert order.index("b") < order.index("c")  # `a` may come anywhere
    with pytest.raises(ValueError, match=r"names that do not exist: \['x'\]"):
        run_jobs([Job("x", note, (path, "x"), after=("nothing",))], processes, lambda _: None)


def thread_after_a_while() -> int:
    time.sleep(0.05)
    return threading.get_ident()


@pytest.mark.usefixtures("in_process")
def test_jobs_in_this_process_run_one_at_a_time() -> None:
    jobs = [Job(name, thread_after_a_while, ()) for name in ("a", "b")]
    results = run_jobs(jobs, 2, lambda _: None)
    assert results["a"] == results["b"]
