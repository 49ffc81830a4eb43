"""The results file, rewritten after every row by an atomic rename."""

from __future__ import annotations

import json
import math
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SCHEMA = 1
LOG_BYTES = 12_000
"""How many bytes to keep from standard error, for each process."""
PROFILE_BYTES = 60_000
MOST_PROFILES = 4


class Results:
    """The measurements so far, in memory and on disk."""

    def __init__(self, folder: Path, *, rehearsal: bool, commit: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._begun = time.monotonic()
        self._profiles = 0
        self.content: dict[str, Any] = {
            "schema": SCHEMA,
            "rehearsal": rehearsal,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit,
            "environment": {},
            "jobs": [],
            "rows": [],
        }
        self.write()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows so far."""
        rows: list[dict[str, Any]] = self.content["rows"]
        return rows

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """All jobs that ended or were left out so far."""
        jobs: list[dict[str, Any]] = self.content["jobs"]
        return jobs

    def add_row(self, stage: str, job: str, row: dict[str, Any]) -> None:
        """Add the row from a job and write the file."""
        if profile_text := row.pop("profile_text", ""):
            row["profile_file"] = self._write_profile(job, profile_text)
        if stage == "environment":
            self.content["environment"] |= row
        else:
            self.rows.append({"stage": stage, "job": job} | row)
        self.write()

    def add_job(self, **fields: Any) -> None:
        """Record how a job ended and write the file."""
        self.jobs.append(fields | {"at": round(time.monotonic() - self._begun, 1)})
        self.write()

    def add_log(self, name: str, text: bytes) -> None:
        """Append the last part of standard error from a process to log.txt."""
        with (self.folder / "log.txt").open("ab") as log:
            log.write(f"\n===== {name}\n".encode())
            log.write(text[-LOG_BYTES:])

    def write(self) -> None:
        """Write gpu.json by an atomic rename."""
        part = self.folder / "gpu.json.part"
        part.write_text(json.dumps(_finite(self.content), indent=1) + "\n", encoding="utf-8")
        os.replace(part, self.folder / "gpu.json")  # noqa: PTH105 - the house rule names os.replace

    def _write_profile(self, job: str, text: str) -> str:
        self._profiles += 1
        if self._profiles > MOST_PROFILES:
            return "left out: only a few files come back from the device machine"
        name = "profile-" + "".join(sign if sign.isalnum() else "-" for sign in job) + ".txt"
        (self.folder / name).write_text(text[:PROFILE_BYTES], encoding="utf-8")
        return name


def _finite(value: Any) -> Any:
    """Return the value with NaN and infinity as text, because JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return value
