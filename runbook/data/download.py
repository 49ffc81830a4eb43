"""A dataset's files: parallel, resumed, checked; at the end the list of what is missing is empty, or the call fails."""

from __future__ import annotations

import fcntl
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runbook.data.fetching import Fetcher, Gate, GivenUpError, Patience
from runbook.data.inputs import inside
from runbook.data.progress import Progress
from runbook.data.remote import RemoteFile, remote_files
from runbook.data.s5cmd import fetch_s3, s3_files
from runbook.data.sources import dataset_folder, file_fault
from runbook.errors import DataError, HeldError
from runbook.params.dataset import Dataset, SourceFile
from runbook.params.secrets import resolve_secret
from runbook.units import show_bytes

SHOWN = 20


@dataclass(frozen=True)
class Downloaded:
    """What a download found and fetched."""

    folder: Path
    files: int
    bytes: int
    fetched: int
    """Files that this call fetched; the others were there."""

    retries: int
    seconds: float


def download(
    dataset: Dataset,
    *,
    project: Path,
    folder: str = "",
    workers: int = 8,
    patience: Patience | None = None,
    check_space: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> Downloaded:
    """Fetch the files of a dataset that are not there yet; what is there at its known size is not fetched again.

    Raises:
        DataError: the list cannot be had, the disk is too small, or files are missing at the end (each by name).
        HeldError: another download to this folder is running.
    """
    home = dataset_folder(dataset, project=project, folder=folder)
    token = resolve_secret(dataset.token) if dataset.token else ""
    fetcher = Fetcher(home, token=token, patience=patience or Patience())
    files = s3_files(dataset) if dataset.url.startswith("s3://") else remote_files(dataset, fetcher.get)
    home.mkdir(parents=True, exist_ok=True)
    with _held(home):
        return fetch_all(files, fetcher, workers=workers, check_space=check_space, progress=progress)


def fetch_all(
    files: list[RemoteFile],
    fetcher: Fetcher,
    *,
    workers: int = 8,
    check_space: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> Downloaded:
    """Fetch files that are not there; see `download`."""
    began = time.monotonic()
    missing = [file for file in files if not _is_there(fetcher.folder, file)]
    if check_space:
        _refuse_small_disk(fetcher.folder, missing)
    tally = _Tally(files, missing, fetcher.folder, workers, began)
    fetcher.took, fetcher.retried = tally.took, tally.retried
    faults: dict[str, str] = {}
    if any(file.url.startswith("s3://") for file in missing):

        def tell(arrived: int) -> None:
            tally.arrived(arrived)
            if progress is not None:
                progress(tally.now("download"))

        faults = fetch_s3(missing, fetcher.folder, workers, tell)
        tally.all_done(len(missing) - len(faults), len(faults))
    else:
        _in_threads(missing, fetcher, workers, tally, faults, progress)
    for file in files:
        listed = SourceFile(path=file.path, bytes=file.bytes)
        if file.path not in faults and (fault := file_fault(fetcher.folder, listed)):
            faults[file.path] = fault.removeprefix(f"{file.path}: ")
    if faults:
        shown = "\n".join(f"  {path}: {why}" for path, why in sorted(faults.items())[:SHOWN])
        more = f"\n  ... and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise DataError(
            f"{len(faults)} of {len(files)} files are missing in {fetcher.folder}:\n{shown}{more}\n"
            "What arrived is kept: run the same command again, and it fetches only these."
        )
    size = sum(inside(fetcher.folder, file.path).stat().st_size for file in files)
    if progress is not None:
        progress(tally.now("done"))
    return Downloaded(fetcher.folder, len(files), size, len(missing), tally.num_retries, time.monotonic() - began)


def _in_threads(
    missing: list[RemoteFile],
    fetcher: Fetcher,
    workers: int,
    tally: _Tally,
    faults: dict[str, str],
    progress: Callable[[Progress], None] | None,
) -> None:
    left = iter(missing)
    running: dict[Future[None], RemoteFile] = {}
    with ThreadPoolExecutor(max_workers=workers) as pool, _stopping(fetcher.gate):
        while True:
            while len(running) < workers and (file := next(left, None)) is not None:
                running[pool.submit(fetcher.fetch, file)] = file
            if not running:
                return
            finished, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in finished:
                file = running.pop(future)
                try:
                    future.result()
                    tally.done()
                except GivenUpError as error:
                    faults[file.path] = str(error)
                    tally.failed()
                except OSError as error:
                    raise DataError(
                        f"writing {file.path} below {fetcher.folder} failed: {error.strerror or error}. What arrived "
                        "is kept: make room and run the same command again."
                    ) from error
            if progress is not None:
                progress(tally.now("download"))


@contextmanager
def _stopping(gate: Gate) -> Iterator[None]:
    """However this ends, Ctrl-C as well: threads that wait or read stop at their next chunk."""
    try:
        yield
    finally:
        gate.stop.set()


class _Tally:
    """Counts for the progress line; called from many threads."""

    def __init__(
        self, files: list[RemoteFile], missing: list[RemoteFile], folder: Path, workers: int, began: float
    ) -> None:
        self._lock = threading.Lock()
        self._files = len(files)
        self._done = len(files) - len(missing)
        self._total = sum(file.bytes for file in files)
        there = {file.path for file in files} - {file.path for file in missing}
        self._before = sum(inside(folder, path).stat().st_size for path in there)
        self._workers = workers
        self._began = began
        self._got = 0
        self._failures = 0
        self.num_retries = 0

    def took(self, count: int) -> None:
        with self._lock:
            self._got += count

    def arrived(self, count: int) -> None:
        self._got = count

    def retried(self) -> None:
        with self._lock:
            self.num_retries += 1

    def done(self) -> None:
        self._done += 1

    def failed(self) -> None:
        self._failures += 1

    def all_done(self, done: int, failed: int) -> None:
        self._done += done
        self._failures += failed

    def now(self, stage: str) -> Progress:
        seconds = time.monotonic() - self._began
        rate = max(0, self._got) / max(seconds, 1e-9)
        left = self._total - self._before - self._got
        return Progress(
            stage=stage,
            files=self._done,
            files_total=self._files,
            bytes=self._before + self._got,
            bytes_total=max(self._total, self._before + self._got),
            text_bytes=0,
            documents=0,
            tokens=0,
            seconds=seconds,
            mb_per_second=rate / 1e6,
            eta_seconds=left / rate if self._total and rate and left >= 0 else None,
            workers=self._workers,
            failures=self._failures,
        )


def _is_there(folder: Path, file: RemoteFile) -> bool:
    """A file has its name only after it was checked, so its size is enough to know it again."""
    return not file_fault(folder, SourceFile(path=file.path, bytes=file.bytes), checksums=False)


def _refuse_small_disk(folder: Path, missing: list[RemoteFile]) -> None:
    parts = (inside(folder, file.path) for file in missing)
    have = sum(part.stat().st_size for path in parts if (part := path.with_name(path.name + ".part")).exists())
    needed = sum(file.bytes for file in missing) - have
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"{show_bytes(needed)} in {len(missing)} files are still to be fetched to {folder}, and {show_bytes(free)} "
            "are free. Make room, or give another folder; --no-check-space begins all the same."
        )


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    with (folder / ".download.lock").open("ab") as lock:
        try:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeldError(f"another download to {folder} is running; wait for it, or end it") from None
        except OSError:
            pass  # a filesystem without locks
        yield
