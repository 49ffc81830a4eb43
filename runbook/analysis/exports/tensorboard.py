"""TensorBoard: an event file with one curve for each number, and the evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runbook.analysis.exports.curves import NUMBERS, points, wall_times
from runbook.analysis.parsers.record import ParsedLog


def write_events(log: ParsedLog, folder: Path, *, end: float) -> None:
    """Write into a folder that `tensorboard --logdir` reads; needs the train extra (tensorboard), not torch."""
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder), filename_suffix=".runbook")
    times = wall_times(log, end)
    for record, time in zip(log.records, times, strict=True):
        values = [(f"training/{NUMBERS[name]}", value) for name, value in points(record)]
        if values:
            writer.add_event(_event(record.iteration, time, values))
    last = times[-1] if times else end
    for one in log.validation:
        writer.add_event(_event(one.iteration or 0, last, [(f"{one.name}/loss (nat/token)", one.loss)]))
    writer.close()


def _event(step: int, time: float, values: list[tuple[str, float]]) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values])
    return Event(wall_time=time, step=step, summary=summary)
