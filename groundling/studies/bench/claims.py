"""Claims of jobs by locked files, for several processes or machines that share a bench's folder."""

from __future__ import annotations

import fcntl
import os

from groundling.runs.jobs import Job
from groundling.studies.bench.protocol import BenchFolder


class FileClaims:
    """Claims of jobs by locked files, which a killed process releases; as a context, releases all at its end."""

    def __init__(self, folder: BenchFolder) -> None:
        self.folder = folder
        self.held: dict[str, int] = {}

    def __enter__(self) -> FileClaims:
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self.held.values():
            os.close(handle)
        self.held.clear()

    def take(self, job: Job) -> bool:
        """Lock a job's file; False if another process has locked it. On disks without locks every job can be taken."""
        path = self.folder.job(job.name).with_suffix(".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        except OSError:
            pass
        self.held[job.name] = handle
        return True

    def release(self, job: Job) -> None:
        """Unlock a job's file."""
        os.close(self.held.pop(job.name))
