"""A parsed log as JSON or CSV, written record by record so that a million of them need little memory."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import IO

from runbook.analysis.parsers.record import KEYS, ParsedLog, Record, Validation


def write_json(log: ParsedLog, stream: IO[str]) -> None:
    """One object: format, records, validation, notes, unread_lines; null where the log does not say."""
    stream.write(f'{{"format": {json.dumps(log.format)}, "files": {json.dumps(log.files)},\n "records": [')
    names = [json.dumps(name)[1:-1] for name in log.files] or ["lines"]
    between = "\n  "
    block: list[str] = []
    for record in log.records:
        block.append(f"{between}{_object(record, names[record.file])}")
        between = ",\n  "
        if len(block) == 10_000:
            stream.write("".join(block))
            block.clear()
    stream.write("".join(block))
    rest = {
        "validation": [_validation(log, one) for one in log.validation],
        "notes": log.notes,
        "unread_lines": log.unread_lines,
        "failures": [asdict(failure) for failure in log.failures],
    }
    stream.write(f"],\n {json.dumps(rest, ensure_ascii=False)[1:]}\n")


def _object(one: Record, name: str) -> str:
    convention = f'"{one.tflops_convention}"' if one.tflops_convention else "null"
    states = json.dumps(one.states) if one.states else "[]"
    return (
        f'{{"iteration": {one.iteration}, "loss": {_text(one.loss)}, "grad_norm": {_text(one.grad_norm)}, '
        f'"learning_rate": {_text(one.learning_rate)}, "loss_scale": {_text(one.loss_scale)}, '
        f'"seconds": {_text(one.seconds)}, "samples_per_second": {_text(one.samples_per_second)}, '
        f'"tokens_per_second": {_text(one.tokens_per_second)}, "tflops": {_text(one.tflops)}, '
        f'"tflops_convention": {convention}, "skipped": {_text(one.skipped)}, "nan": {_text(one.nan)}, '
        f'"segment": {one.segment}, "states": {states}, "source": "{name}:{one.line}"}}'
    )


def _text(value: float | None) -> str:
    """JSON of a number that may be missing; NaN and infinities are no JSON and become null.

    >>> _text(1.5), _text(None), _text(float("nan"))
    ('1.5', 'null', 'null')
    """
    return "null" if value is None or value != value or value in (float("inf"), float("-inf")) else repr(value)


def _validation(log: ParsedLog, one: Validation) -> dict[str, object]:
    return {
        "iteration": one.iteration,
        "loss": one.loss,
        "perplexity": one.perplexity,
        "name": one.name,
        "source": log.source(one),
    }


def write_csv(log: ParsedLog, stream: IO[str]) -> None:
    """One line a record; an empty cell where the log does not say, several states joined by a space."""
    stream.write(",".join((*KEYS, "source")) + "\n")
    for record in log.records:
        cells = [getattr(record, key) for key in KEYS[:-1]]
        texts = ["" if cell is None else str(cell) for cell in cells]
        source = log.source(record)
        quoted = '"' + source.replace('"', '""') + '"' if "," in source or '"' in source else source
        stream.write(",".join((*texts, " ".join(record.states), quoted)) + "\n")
