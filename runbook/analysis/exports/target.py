"""Where an export goes, in one word: `a.csv`, `a.parquet`, `tensorboard:DIR`, `mlflow:URI`, `trackio:PROJECT`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from runbook.analysis.exports.parquet import write_parquet
from runbook.analysis.exports.tensorboard import write_events
from runbook.analysis.exports.trackers import write_mlflow, write_trackio
from runbook.analysis.parsers.output import write_csv
from runbook.analysis.parsers.record import ParsedLog
from runbook.errors import DataError

KINDS = ("csv", "parquet", "tensorboard", "mlflow", "trackio")
_FORMS = "FILE.csv, FILE.parquet, tensorboard:DIR, mlflow:URI (such as mlflow:sqlite:///runs.db), trackio:PROJECT"


@dataclass(frozen=True)
class Target:
    """A kind of export and its place."""

    kind: str
    place: str


def parse_target(word: str) -> Target:
    """What a person wrote; `DataError` names the right forms.

    >>> parse_target("out/a.csv").kind, parse_target("mlflow:sqlite:///x.db").place, parse_target("trackio:gpt3").kind
    ('csv', 'sqlite:///x.db', 'trackio')
    """
    kind, colon, place = word.partition(":")
    if colon and kind in KINDS and place:
        return Target(kind, place)
    suffix = Path(word).suffix.removeprefix(".")
    if suffix in ("csv", "parquet"):
        return Target(suffix, word)
    raise DataError(f"{word} is no place to export to. Give one of {_FORMS}.")


def export(log: ParsedLog, target: Target, *, name: str) -> str:
    """Write the records there; what was written, in words for a person."""
    if not log.records:
        raise DataError(f"There is no record to export: {'; '.join(log.notes) or 'the log holds none'}.")
    ends = [Path(file).stat().st_mtime for file in log.files if Path(file).is_file()]
    end = max(ends, default=time.time())
    if target.kind == "csv":
        _write_csv(log, Path(target.place))
    elif target.kind == "parquet":
        write_parquet(log, Path(target.place))
    elif target.kind == "tensorboard":
        write_events(log, Path(target.place), end=end)
    elif target.kind == "mlflow":
        write_mlflow(log, target.place, name=name, end=end)
    else:
        write_trackio(log, target.place, name=name)
    return f"{len(log.records)} records and {len(log.validation)} evaluations -> {target.kind}: {target.place}"


def _write_csv(log: ParsedLog, path: Path) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8", newline="") as stream:
        write_csv(log, stream)
    part.replace(path)
