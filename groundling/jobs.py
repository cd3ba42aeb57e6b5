"""Independent runs side by side, one thread each: torch's threads of two busy processes get in each other's way."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from groundling.errors import InputError


@dataclass(frozen=True)
class Job:
    """A call to make when the jobs it comes after are done."""

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    after: tuple[str, ...] = ()


def _alone(parent: int) -> None:
    import torch
    from transformers.utils import logging as hf_logging

    def leave_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(
            1
        )  # a worker that outlives a killed run would write into the folder of the run that goes on

    threading.Thread(target=leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (progress bars of side-by-side runs would overwrite each other)


def run_jobs(jobs: Sequence[Job], processes: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Results by job name; listed order is priority. The first InputError of a job stops the rest and is raised."""
    results: dict[str, Any] = {}
    waiting, running, began = list(jobs), {}, {}  # type: ignore[var-annotated]
    os.environ.update(
        OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", TOKENIZERS_PARALLELISM="false"
    )
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_alone, initargs=(os.getpid(),)
    ) as pool:
        while waiting or running:
            ready = [job for job in waiting if all(name in results for name in job.after)]
            for job in ready[: processes - len(running)]:
                waiting.remove(job)
                future: Future[Any] = pool.submit(job.call, *job.arguments)
                running[future], began[job.name] = job, time.perf_counter()
            if not running:
                raise ValueError(
                    f"jobs wait for names that do not exist: {[job.name for job in waiting]}"
                )
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                try:
                    results[job.name] = future.result()
                except InputError as error:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise InputError(f"{job.name}: {error}") from None
                say(f"{job.name}: {time.perf_counter() - began[job.name]:.0f} s")
    return results
