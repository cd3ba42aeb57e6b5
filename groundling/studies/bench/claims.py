"""Claims of jobs by locked files, for several processes or machines that share a bench's folder."""

from __future__ import annotations

from filelock import FileLock, Timeout

from groundling.runs.jobs import Job
from groundling.studies.bench.protocol import BenchFolder


class FileClaims:
    """Claims of jobs by locked files, which a killed process releases; as a context, releases all at its end."""

    def __init__(self, folder: BenchFolder) -> None:
        self.folder = folder
        self.held: dict[str, FileLock] = {}

    def __enter__(self) -> FileClaims:
        return self

    def __exit__(self, *error: object) -> None:
        for lock in self.held.values():
            lock.release()

    def take(self, job: Job) -> bool:
        """Lock a job's file; False if another process has locked it. On disks without locks every job can be taken."""
        path = self.folder.job(job.name).with_suffix(".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, thread_local=False)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return False
        except (NotImplementedError, OSError):
            pass
        self.held[job.name] = lock
        return True

    def release(self, job: Job) -> None:
        """Unlock a job's file."""
        self.held.pop(job.name).release()
