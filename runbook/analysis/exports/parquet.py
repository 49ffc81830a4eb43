"""Parquet: one row a record, unknown values null, how it was read in the file's own metadata."""

from __future__ import annotations

import json
from pathlib import Path

from runbook.analysis.exports.curves import NUMBERS, TEXTS, WHOLE, column
from runbook.analysis.parsers.record import ParsedLog


def write_parquet(log: ParsedLog, path: Path) -> None:
    """Write beside its place and rename; needs the data extra (pyarrow)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {name: pa.int64() for name in WHOLE} | {name: pa.float64() for name in NUMBERS}
    kinds |= {name: pa.string() for name in TEXTS}
    told = {
        "format": log.format,
        "files": json.dumps(log.files),
        "units": json.dumps(NUMBERS),
        "notes": json.dumps(log.notes),
    }
    schema = pa.schema([pa.field(name, kind) for name, kind in kinds.items()], metadata=told)
    table = pa.table({name: pa.array(column(log, name), kind) for name, kind in kinds.items()}, schema=schema)
    part = path.with_name(path.name + ".part")
    pq.write_table(table, part, compression="zstd")
    part.replace(path)
