"""HTTP download of one file: resumed by Range, retried with back-off, checked before it gets its name.

requests moves the bytes: redirects, proxies, TLS, tokens kept from other hosts. Retries are ours, because urllib3's do
not resume a file that was cut, and do not stop all threads when a server answers 429.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from runbook.core.errors import DataError
from runbook.tokens.sources.dataset_files import RemoteFile, content_fault
from runbook.tokens.sources.input_files import path_inside

if TYPE_CHECKING:
    import requests

_log = logging.getLogger(__name__)

CHUNK = 1 << 20
_RETRIED = (408, 409, 425, 500, 502, 503, 504, *range(520, 525))
_WINDOW = re.compile(r"(?:^|;)\s*t=(\d+)")
_T = TypeVar("_T")


@dataclass(frozen=True)
class RetryLimits:
    """How many failures a source may have, and how long it may keep us waiting."""

    attempts: int = 8  # in a row that bring no byte
    first_wait: float = 1.0  # seconds after the first failure; doubled each time
    longest_wait: float = 60.0  # of one back-off; a server's own Retry-After may be longer
    limit: float = 3600.0  # seconds that one file may wait for 429 answers in all; the Hub's windows last 300
    silence: float = 60.0  # seconds without a byte until a connection counts as dead


class GivenUpError(DataError):
    """A file that could not be fetched; its text is the reason."""


class _LostError(Exception):
    """The answer did not come, or not to its end; the next attempt goes on from there."""


class _WrongContentError(Exception):
    """What came is not the file that was asked for."""


class _BusyError(Exception):
    """The server asks to wait so many seconds."""


@dataclass
class Fetcher:
    """Fetches files into one folder; used by many threads, which all stop while a server answers 429 to one."""

    folder: Path
    token: str = ""
    limits: RetryLimits = field(default_factory=RetryLimits)
    received: int = 0  # bytes that arrived, without those that turned out useless
    stop: threading.Event = field(default_factory=threading.Event)
    _resume_at: float = 0.0  # on the monotonic clock; until then no thread asks
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fetch(self, file: RemoteFile) -> None:
        """Bring one file, whole and checked, to its name; GivenUpError says why it could not be."""
        target = path_inside(self.folder, file.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        self._keep_trying(lambda: self._fetch_rest(file, part), part)
        _tag(part).unlink(missing_ok=True)
        part.rename(target)

    def get(self, url: str) -> tuple[bytes, str]:
        """A small answer, such as a page of a list, and the address of the next page; retried in the same way."""

        def body_and_next() -> tuple[bytes, str]:
            with self._answer(url, {}) as response:
                return response.content, response.links.get("next", {}).get("url", "")

        try:
            return self._keep_trying(body_and_next)
        except GivenUpError as error:
            raise DataError(f"{url}: {error}") from None

    def _keep_trying(self, attempt: Callable[[], _T], part: Path | None = None) -> _T:
        fruitless = num_wrong = 0
        waited, reason = 0.0, ""
        while fruitless < self.limits.attempts:
            while (left := self._resume_at - time.monotonic()) > 0:
                self._sleep(left + random.uniform(0, min(1.0, left)))
            self._sleep(0)
            before = _size(part)
            try:
                return attempt()
            except _BusyError as error:
                (seconds,) = error.args
                waited, reason = waited + seconds, "429"
                if waited > self.limits.limit:
                    raise GivenUpError(f"the server still answers 429 after {waited:.0f} s of waiting") from None
                _log.info("429, waiting %.0f s", seconds)
                with self._lock:
                    self._resume_at = max(self._resume_at, time.monotonic() + seconds)
            except _WrongContentError as error:
                num_wrong, reason = num_wrong + 1, str(error)
                if part is not None:
                    self._count(-_size(part))
                    part.unlink(missing_ok=True)
                    _tag(part).unlink(missing_ok=True)
                if num_wrong == 2:  # the file at the source is wrong, not the way here
                    raise GivenUpError(f"{reason}, twice") from None
            except _LostError as error:
                reason = str(error)
                fruitless = 0 if _size(part) > before else fruitless + 1
                longest = min(self.limits.longest_wait, self.limits.first_wait * 2 ** max(0, fruitless - 1))
                self._sleep(random.uniform(longest / 2, longest))
        raise GivenUpError(f"{reason} ({self.limits.attempts} tries in a row brought nothing)")

    def _sleep(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise GivenUpError("stopped")

    def _count(self, count: int) -> None:
        with self._lock:
            self.received += count

    def _fetch_rest(self, file: RemoteFile, part: Path) -> None:
        """Ask once, from where the part ends, and check what there is then."""
        size = _size(part)
        if not size or size != file.bytes:
            self._append(file, part, size)
        size = _size(part)
        if size < file.bytes:
            raise _LostError(f"{size} bytes came, {file.bytes} expected")
        if fault := content_fault(part, file):
            raise _WrongContentError(fault)

    def _append(self, file: RemoteFile, part: Path, size: int) -> None:
        tag = _tag(part).read_text() if _tag(part).exists() else ""
        headers = {"Accept-Encoding": "identity"}
        if size and (tag or file.sha256):
            headers |= {"Range": f"bytes={size}-"} | ({"If-Range": tag} if tag else {})
        with self._answer(file.url, headers) as response:
            content_range = response.headers.get("Content-Range", "")
            if response.status_code == 416:
                if content_range == f"bytes */{size}":
                    return  # the part was whole already
                raise _WrongContentError(f"{size} bytes are there, and the source answers {content_range!r}")
            resumed = response.status_code == 206
            if resumed and not content_range.startswith(f"bytes {size}-"):
                raise _LostError(f"asked for bytes from {size} and got {content_range}")
            if not resumed:
                self._count(-size)
            tag = response.headers.get("ETag", "")
            is_weak = tag == "" or tag.startswith("W/")
            _tag(part).write_text(response.headers.get("Last-Modified", "") if is_weak else tag)
            promised, received = int(response.headers.get("Content-Length", -1)), 0
            response.raw.enforce_content_length = False  # or urllib3 would drop the last bytes before a cut
            with part.open("ab" if resumed else "wb") as out:
                while chunk := response.raw.read(CHUNK):
                    out.write(chunk)
                    received += len(chunk)
                    self._count(len(chunk))
                    self._sleep(0)
            if received < promised:
                raise _LostError(f"the connection was cut after {received} of {promised} bytes")

    @contextmanager
    def _answer(self, url: str, headers: dict[str, str]) -> Iterator[requests.Response]:
        """The answer to a GET whose status is good (or 416); others, and lost connections, as errors of ours."""
        import requests
        from urllib3.exceptions import HTTPError

        if not url.startswith(("https://", "http://")):
            raise GivenUpError(f"{url} is neither http nor https")
        headers = headers | {"User-Agent": "gpt3-runbook"}
        try:
            with requests.get(
                url, headers=headers, auth=self._authorize, stream=True, timeout=self.limits.silence
            ) as response:
                if not response.ok and response.status_code != 416:
                    raise self._refusal(response)
                yield response
        except (requests.RequestException, HTTPError) as error:
            raise _LostError(str(error)) from error

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the token; requests takes it off again where a redirect names another host."""
        if self.token:
            request.headers["Authorization"] = f"Bearer {self.token}"
        return request

    def _refusal(self, response: requests.Response) -> Exception:
        from urllib3.util import Retry

        status, reason = response.status_code, f"HTTP {response.status_code} {response.reason}"
        seconds = Retry().get_retry_after(response.raw)  # a number or a date
        if window := _WINDOW.search(response.headers.get("RateLimit", "")):  # the Hub's
            seconds = float(window[1]) + 1
        if status == 429 or (status == 503 and seconds is not None):
            return _BusyError(self.limits.longest_wait if seconds is None else seconds)
        if status in _RETRIED:
            return _LostError(reason)
        return GivenUpError(reason + ("; is a token needed (HF_TOKEN)?" if status in (401, 403) else ""))


def _size(part: Path | None) -> int:
    return part.stat().st_size if part is not None and part.exists() else 0


def _tag(part: Path) -> Path:
    """Where the source's name for this version of the file is kept, so that two versions are never joined."""
    return part.with_name(part.name + ".tag")
