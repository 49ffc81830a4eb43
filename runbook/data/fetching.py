"""One file over HTTP: resumed by Range, retried with back-off, patient with 429, checked before it gets its name."""

from __future__ import annotations

import email.utils
import hashlib
import http.client
import logging
import random
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from runbook.data.inputs import inside
from runbook.data.remote import RemoteFile
from runbook.errors import DataError

_log = logging.getLogger(__name__)

CHUNK = 1 << 20
MAGIC = {".zst": b"\x28\xb5\x2f\xfd", ".gz": b"\x1f\x8b", ".xz": b"\xfd7zXZ\x00", ".parquet": b"PAR1"}
_RETRIED = (408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524)
_BROKEN = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)
_WINDOW = re.compile(r"(?:^|;)\s*t=(\d+)")


@dataclass(frozen=True)
class Patience:
    """How long a source is given."""

    attempts: int = 8
    """Tries in a row that bring no byte."""

    first_wait: float = 1.0
    """Seconds after the first failure; doubled each time."""

    longest_wait: float = 60.0
    """Of one back-off; a server's own Retry-After may be longer."""

    limit: float = 3600.0
    """Seconds that one file may wait for 429 answers in all; Hub windows last five minutes."""

    silence: float = 60.0
    """Seconds without a byte until a connection counts as dead."""


class Gate:
    """Stops all threads while a server asks for patience: one 429 is an answer to all of them."""

    def __init__(self) -> None:
        self._until = 0.0
        self._lock = threading.Lock()
        self.stop = threading.Event()

    def close(self, seconds: float) -> None:
        """Let nobody ask for this long."""
        with self._lock:
            self._until = max(self._until, time.monotonic() + seconds)

    def wait(self) -> None:
        """Wait until asking is allowed; raises when the work is being given up."""
        while not self.stop.is_set():
            left = self._until - time.monotonic()
            if left <= 0:
                return
            self.stop.wait(left + random.uniform(0, min(1.0, left)))
        raise GivenUpError("stopped")

    def sleep(self, seconds: float) -> None:
        """Wait for one file only."""
        if self.stop.wait(seconds):
            raise GivenUpError("stopped")


class GivenUpError(DataError):
    """A file that could not be fetched; its text is the reason."""


@dataclass
class Fetcher:
    """Fetches files into one folder; used by many threads."""

    folder: Path
    token: str = ""
    patience: Patience = field(default_factory=Patience)
    gate: Gate = field(default_factory=Gate)
    took: Callable[[int], None] = lambda count: None
    """Called with the number of bytes that arrived, or that turned out useless (negative)."""

    retried: Callable[[], None] = lambda: None
    """Called for each failed try."""

    def fetch(self, file: RemoteFile) -> None:
        """Bring one file, whole and checked, to its name; GivenUpError says why it could not be."""
        target = inside(self.folder, file.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        fruitless = wrong = 0
        waited = 0.0
        reason = ""
        while fruitless < self.patience.attempts:
            self.gate.wait()
            before = part.stat().st_size if part.exists() else 0
            try:
                self._try(file, part)
                self._check(file, part)
            except _TooManyError as error:
                waited += error.seconds
                if waited > self.patience.limit:
                    raise GivenUpError(f"the server still answers 429 after {waited:.0f} s of waiting") from None
                _log.info("%s: 429, waiting %.0f s", file.url, error.seconds)
                self.gate.close(error.seconds)
                reason = "429"
            except _WrongContentError as error:
                part.unlink(missing_ok=True)
                _validator(part).unlink(missing_ok=True)
                wrong += 1
                reason = str(error)
                if wrong >= 2:  # twice the same: not the way here, but the file there
                    raise GivenUpError(f"{reason}, twice") from None
            except _BROKEN as error:
                reason = str(error) or type(error).__name__
                after = part.stat().st_size if part.exists() else 0
                fruitless = 0 if after > before else fruitless + 1
                self.gate.sleep(self._backoff(fruitless))
            else:
                _validator(part).unlink(missing_ok=True)
                part.rename(target)
                return
            self.retried()
        raise GivenUpError(f"{reason} ({self.patience.attempts} tries in a row brought nothing)")

    def get(self, url: str) -> tuple[bytes, str]:
        """A small answer, such as a list of files, and its Link header; retried in the same way."""
        reason = ""
        for attempt in range(self.patience.attempts):
            self.gate.wait()
            try:
                with self._open(url, {}) as response:
                    return response.read(), response.headers.get("Link", "")
            except _TooManyError as error:
                self.gate.close(error.seconds)
                reason = "429"
            except _BROKEN as error:
                reason = str(error) or type(error).__name__
                self.gate.sleep(self._backoff(attempt))
        raise DataError(f"{url}: {reason} ({self.patience.attempts} tries)")

    def _try(self, file: RemoteFile, part: Path) -> None:
        """Ask once, from where the part ends; returns when the server says that this was all."""
        have = part.stat().st_size if part.exists() else 0
        if file.bytes and have == file.bytes:
            return
        validator = _validator(part)
        headers = {"Accept-Encoding": "identity"}
        known = validator.read_text() if validator.exists() else ""
        if have and (known or file.sha256):
            headers["Range"] = f"bytes={have}-"
            if known:
                headers["If-Range"] = known
        try:
            opened = self._open(file.url, headers)
        except _BeyondEndError as error:
            if error.size == have:
                return  # the part was whole already
            raise _WrongContentError(f"{have} bytes are there, the file at the source has {error.size}") from None
        with opened as response:
            resumed = response.status == 206 and _range_start(response.headers.get("Content-Range", "")) == have
            if response.status == 206 and not resumed:
                raise http.client.HTTPException(
                    f"asked for bytes from {have} and got {response.headers['Content-Range']}"
                )
            if not resumed and have:
                self.took(-have)
            tag = response.headers.get("ETag", "")
            validator.write_text(tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", ""))
            promised = int(response.headers.get("Content-Length") or -1)
            got = 0
            with part.open("ab" if resumed else "wb") as out:
                while chunk := response.read(CHUNK):
                    out.write(chunk)
                    got += len(chunk)
                    self.took(len(chunk))
                    if self.gate.stop.is_set():
                        raise GivenUpError("stopped")
            if promised >= 0 and got < promised:
                raise http.client.HTTPException(f"the connection was cut after {got} of {promised} bytes")

    def _open(self, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        if not url.startswith(("https://", "http://")):
            raise GivenUpError(f"{url} is neither http nor https")
        request = urllib.request.Request(url, headers=headers | {"User-Agent": "gpt3-runbook"})
        if self.token:  # not sent on to the host that a redirect names
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=self.patience.silence)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        return response

    def _refused(self, error: urllib.error.HTTPError) -> Exception:
        if error.code in (429, 503) and (seconds := _asked_to_wait(error.headers)) is not None:
            return _TooManyError(seconds)
        if error.code == 429:
            return _TooManyError(self.patience.longest_wait)
        if error.code == 416:
            size = (error.headers.get("Content-Range") or "").rpartition("/")[2]
            return _BeyondEndError(int(size) if size.isdigit() else -1)
        if error.code in _RETRIED:
            return http.client.HTTPException(f"HTTP {error.code} {error.reason}")
        hint = "; is a token needed (HF_TOKEN)?" if error.code in (401, 403) else ""
        return GivenUpError(f"HTTP {error.code} {error.reason}{hint}")

    def _check(self, file: RemoteFile, part: Path) -> None:
        size = part.stat().st_size
        if file.bytes and size < file.bytes:
            raise http.client.HTTPException(f"{size} bytes came, {file.bytes} expected")
        if size == 0 or (file.bytes and size != file.bytes):
            self.took(-size)
            raise _WrongContentError(f"{size} bytes came, {file.bytes or 'more'} expected")
        with part.open("rb") as content:
            head = content.read(6)
            magic = MAGIC.get(Path(file.path).suffix, b"")
            if not head.startswith(magic):
                self.took(-size)
                raise _WrongContentError(
                    f"it begins with {head!r} and is no {Path(file.path).suffix} file (an error page?)"
                )
            if file.sha256:
                content.seek(0)
                found = hashlib.file_digest(content, "sha256").hexdigest()
                if found != file.sha256:
                    self.took(-size)
                    raise _WrongContentError(f"sha256 {found} came, {file.sha256} expected")

    def _backoff(self, fruitless: int) -> float:
        longest = min(self.patience.longest_wait, self.patience.first_wait * 2 ** max(0, fruitless - 1))
        return random.uniform(longest / 2, longest)


class _TooManyError(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"asked to wait {seconds:.0f} s")
        self.seconds = seconds


class _WrongContentError(Exception):
    pass


class _BeyondEndError(Exception):
    """416: asked to go on from a byte that the file does not have."""

    def __init__(self, size: int) -> None:
        super().__init__("416")
        self.size = size


def _asked_to_wait(headers: http.client.HTTPMessage | object) -> float | None:
    """Seconds of Retry-After (a number or a date) or of the Hub's RateLimit header."""
    get: Callable[[str], str | None] = headers.get  # type: ignore[union-attr]
    if after := get("Retry-After"):
        if after.strip().isdigit():
            return float(after)
        try:
            return max(0.0, email.utils.parsedate_to_datetime(after).timestamp() - time.time())
        except (TypeError, ValueError):
            return None
    if (window := get("RateLimit")) and (found := _WINDOW.search(window)):
        return float(found[1]) + 1
    return None


def _range_start(content_range: str) -> int:
    match = re.match(r"bytes (\d+)-", content_range)
    return int(match[1]) if match else -1


def _validator(part: Path) -> Path:
    return part.with_name(part.name + ".tag")
