"""What a training that was not run would do: speeds of the rows of a table, layouts of a run."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runbook import params
from runbook.display import Table
from runbook.errors import ParamsError
from runbook.params.catalogue import Model
from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.plan.choices import full_choice
from runbook.plan.layout import lay_out
from runbook.plan.predict import check_columns, predict_rows
from runbook.plan.schedule import duration
from runbook.plan.search import growth, search
from runbook.units import show_bytes, show_duration

SHOWN = 10
MAX_BYTES = 64 * 2**20


def predict_file(path: Path) -> list[dict[str, Any]]:
    """A prediction for each row of a table in the columns of published_results.csv; `ParamsError` for another file."""
    reader = csv.DictReader(io.StringIO(_text(path), newline=""))
    try:
        check_columns(reader.fieldnames)
        rows = list(reader)
    except csv.Error as error:
        raise ParamsError(f"{path}, line {reader.line_num}: {error}. Save the table as CSV with commas.") from error
    return [prediction.as_dict() for prediction in predict_rows(rows, _models())]


def search_run(run: str, set_words: Sequence[str]) -> dict[str, Any]:
    """Every layout of a run's training that fits its nodes, best first, and the best on more and more nodes."""
    settings = params.load(run, set_words=set_words)
    choice = full_choice(settings)
    layout = lay_out(choice)
    tokens = float(duration(choice, layout).tokens)
    found = search(choice, tokens)
    return {
        "run": settings.name,
        "device": choice.site.hardware.device,
        "nodes": choice.nodes,
        "tokens": tokens,
        "global_batch": choice.global_batch,
        "looked_at": found.looked_at,
        "did_not_fit": found.did_not_fit,
        "broke_a_rule": found.broke_a_rule,
        "reason": found.reason or None,
        "currency": choice.site.currency or None,
        "layouts": [candidate.as_dict() for candidate in found.candidates],
        "growth": [{"reason": step} if isinstance(step, str) else step.as_dict() for step in growth(choice, tokens)]
        if found.looked_at
        else [],
    }


def search_text(found: dict[str, Any]) -> str:
    """The best layouts and the growth for a terminal."""
    head = (
        f"{found['run']}: {found['looked_at']:,} layouts over {found['nodes']:,} nodes of {found['device']}; "
        f"{found['did_not_fit']:,} do not fit the memory, {found['broke_a_rule']:,} break a rule"
    )
    if found["reason"]:
        return f"{head}\nNo layout: {found['reason']}."
    best = Table([_layout_row(one, found) for one in found["layouts"][:SHOWN]], "Best layouts")
    grown = Table(
        [_layout_row(one, found) for one in found["growth"] if "reason" not in one],
        "Best layout on more nodes, with the same global batch",
        [one["reason"] for one in found["growth"] if "reason" in one],
    )
    return "\n\n".join([head, best.as_text(), grown.as_text()])


def _layout_row(one: dict[str, Any], found: dict[str, Any]) -> dict[str, str]:
    return {
        "GPUs": f"{one['devices']:,}",
        "tensor": str(one["tensor"]),
        "pipeline": str(one["pipeline"]),
        "virtual": str(one["virtual_pipeline"]),
        "copies": str(one["data"]),
        "micro": str(one["micro_batch"]),
        "recompute": one["recompute"],
        "ZeRO": str(one["zero_stage"]),
        "memory": show_bytes(one["memory_bytes"]),
        "a step": show_duration(one["seconds_per_step"]),
        "MFU": f"{one['mfu']:.1%}",
        "days": "not known" if one["days"] is None else f"{one['days']:,.3g}",
        "cost": "not known" if one["cost"] is None else f"{one['cost']:,.0f} {found['currency'] or ''}".strip(),
        "nodes in multiples of": str(one["nodes_in_multiples_of"]),
    }


def predictions_text(rows: list[dict[str, Any]]) -> str:
    """The predictions for a terminal."""
    lines = []
    for row in rows:
        speed = (
            f"{row['tokens_s_per_accel']:g} tokens/s, {row['tflops_per_accel']:g} TFLOP/s ({row['flops_convention']})"
            if row["tokens_s_per_accel"] is not None
            else f"unknown: {row['reason']}"
        )
        lines.append(f"{row['row']:4d}  {row['model']} on {row['accelerator']}: {speed}")
    return "\n".join(lines)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ParamsError(f"{path} has more than {MAX_BYTES // 2**20} MiB: that is no table of results.")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path} is not UTF-8 text (byte {error.start}). Save the table as CSV in UTF-8.") from error
    except OSError as error:
        raise ParamsError(f"{path}: {error.strerror}. Give the path of a CSV file.") from error


def _models() -> dict[str, Model]:
    catalogue = read_models(project_root())
    return {name: catalogue.get(name) for name in catalogue.names}
