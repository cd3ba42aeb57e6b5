"""Independent runs in parallel, one thread each: torch threads of several busy processes slow each other down."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import FileLock, Timeout

from groundling.core.errors import (
    InputError,
    convert_errors,
    flatten_message,
    prefix_errors,
    printable,
)
from groundling.runs.progress import end_dry_run, print_line

if TYPE_CHECKING:
    from accelerate import PartialState

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONSAFEPATH": "1",
}
"""Environment of every job's process; must be set before torch is loaded. Without a safe path a \
`random.py` in the working directory would replace a library's module."""
MAX_PROCESSES = 16
"""Maximum number of processes that one process can supply with texts."""

KILLED = "a process was killed, perhaps for lack of memory; run the same command again to resume"

RETRY = 1.0
"""Seconds until a job that another command does is tried again."""

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """A call to make when the jobs before it are done."""

    name: str
    """Unique name."""
    call: Callable[..., Any]
    """A module-level function, which can be sent to another process."""
    arguments: tuple[Any, ...]
    """Its arguments, which are sent too."""
    after: tuple[str, ...] = ()
    """Names of jobs that must be done first."""
    isolated: bool = False
    """Whether it has a process of its own, whose modules foreign code cannot change for later jobs."""


def run_jobs(
    jobs: Sequence[Job], processes: int, log: Callable[[str], None], locks: Path | None = None
) -> dict[str, Any]:
    """Run every job, at most `processes` in parallel, and return their results by job name.

    Ready jobs start in the order of the list, none after the first error. `log` gets a line for each finished job.
    With a folder of `locks`, jobs that another command is doing, here or on another machine, are tried again later,
    so a job must return an earlier result if there is one.
    """
    held: dict[str, FileLock] = {}
    end_dry_run(f"{len(jobs):,} jobs")
    results: dict[str, Any] = {}
    waiting = list(jobs)
    running: dict[Future[Any], tuple[Job, float]] = {}
    # Each thread waits for a process of one isolated job.
    with _environment(), _pool(processes) as pool, ThreadPoolExecutor(processes) as threads:
        while waiting or running:
            ready = [job for job in waiting if results.keys() >= set(job.after)]
            if not ready and not running:
                names = [job.name for job in waiting]
                raise ValueError(f"jobs wait for names that do not exist: {names}")
            for job in ready:
                if len(running) == processes or (locks and not _take(job, locks, held)):
                    continue
                waiting.remove(job)
                if job.isolated:
                    future = threads.submit(run_alone, job.call, job.arguments)
                else:
                    future = pool.submit(job.call, *job.arguments)
                running[future] = (job, time.perf_counter())
                print_line(f"job {len(results) + len(running)} of {len(jobs)}: {job.name}")
            if not running:  # other commands do them all
                time.sleep(RETRY)
            for future in wait(running, RETRY, FIRST_COMPLETED).done:
                job, began = running.pop(future)
                with prefix_errors(job.name), convert_errors(KILLED, errors=BrokenProcessPool):
                    results[job.name] = future.result()
                if locks:
                    held.pop(job.name).release()
                log(f"{job.name}: {time.perf_counter() - began:.0f} s")
    return results


def _take(job: Job, locks: Path, held: dict[str, FileLock]) -> bool:
    """Whether no other command does the job, which this one then holds; a killed process releases its own."""
    locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(locks / f"{job.name.replace('/', '-')}.lock", thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    except (NotImplementedError, OSError):
        pass  # on a disk without locks every job can be taken
    held[job.name] = lock
    return True


def run_alone(call: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """The result of a module-level function in a new process, of which nothing is left afterwards.

    Whatever foreign code raises becomes an InputError, after its traceback on stderr.
    """
    with _pool(1) as pool:
        future = pool.submit(call, *arguments)
        pool.submit(os._exit, 0)  # does not wait for threads that the function left
        try:
            return future.result()
        except (InputError, BrokenProcessPool):
            raise
        except (Exception, SystemExit) as error:  # foreign code may end its process, too
            print(printable(str(error.__cause__)), file=sys.stderr)
            raise InputError(f"{type(error).__name__}: {flatten_message(error)}") from None


def run_parallel(
    call: Callable[..., T], argument_lists: Iterable[tuple[Any, ...]], processes: int
) -> Iterator[T]:
    """Results of a module-level function in any order; arguments are taken when a process is nearly free."""
    if processes < 2:
        yield from (call(*arguments) for arguments in argument_lists)
        return
    running: set[Future[T]] = set()
    broken = convert_errors(KILLED, errors=BrokenProcessPool)
    with _environment(), broken, _pool(processes) as pool:
        for arguments in argument_lists:
            running.add(pool.submit(call, *arguments))
            if len(running) > processes:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (one.result() for one in done)
        yield from (future.result() for future in as_completed(running))


PLUGINS = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "PARALLELISM_CONFIG")
"""What `accelerate launch` can switch on in a run's environment, and no run here was ever checked with."""


def use_cpu(cpu: bool) -> bool:
    """Whether to run on the CPU: because `cpu` asks for it, or because there is no accelerator.

    accelerate needs the answer even without an accelerator, or it does not connect the processes of torchrun.
    """
    import torch
    from accelerate.utils import parse_flag_from_env

    for plugin in PLUGINS:
        variable = f"ACCELERATE_USE_{plugin}"
        if parse_flag_from_env(variable):
            raise InputError(f"{variable}: groundling trains with plain data parallelism; unset it")
    return cpu or not torch.accelerator.is_available()


def process_state(cpu: bool, timeout: timedelta | None = None) -> PartialState:
    """This process's device, which is what `cpu` asks for whatever an earlier run had, and its place among others.

    `timeout`: how long processes that are not yet connected will wait for each other.
    """
    from accelerate.state import AcceleratorState, PartialState

    on_cpu = use_cpu(cpu)
    options = {} if timeout is None else {"timeout": timeout}
    state = PartialState(cpu=on_cpu, **options)
    if state.num_processes == 1 and state._cpu != on_cpu:
        AcceleratorState._reset_state(reset_partial_state=True)
        state = PartialState(cpu=on_cpu, **options)
    return state


def cores() -> int:
    """Number of processes that can work at once, at most as many as one process can supply."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MAX_PROCESSES)
    return min(os.cpu_count() or 1, MAX_PROCESSES)


@contextmanager
def _environment() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """New processes that do not run the main script again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        with ProcessPoolExecutor(
            processes,
            mp_context=get_context("spawn"),
            initializer=_set_up_process,
            initargs=(os.getpid(),),
        ) as pool:
            yield pool
    finally:
        sys.modules["__main__"] = script


def _set_up_process(parent: int) -> None:
    import torch
    from transformers.utils import logging as hf_logging

    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    # Progress bars of parallel runs would overwrite each other.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (stays open as long as the process lives)


def _exit_with_parent(parent: int) -> None:
    """End this process with its parent: it would write into the folder of the run that resumes a killed one."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def check_starts(processes: int, world: int) -> None:
    """Raises InputError if both `processes` and torchrun (`world`) would start processes."""
    if processes > 1 and world > 1:
        raise InputError("torchrun and processes both start processes; leave one of them out")
