"""`runbook logs`: the log of a run's job, or any training log read into records."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runbook.analysis.parsers import ParsedLog, parse_files, write_csv, write_json
from runbook.errors import DataError

if TYPE_CHECKING:
    from runbook.analysis.exports import Target


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="RUN | FILE...")
@click.option("--follow", is_flag=True, help="RUN: go on showing what its job writes.")
@click.option("--json", "as_json", is_flag=True, help="FILE: one JSON object with every record.")
@click.option("--csv", "as_csv", is_flag=True, help="FILE: one line a record.")
@click.option(
    "--to",
    default="",
    metavar="PLACE",
    help="Export: FILE.csv, FILE.parquet, tensorboard:DIR, mlflow:URI or trackio:PROJECT.",
)
@click.option(
    "--phase", default="04-training", show_default=True, metavar="PHASE", help="RUN: which training's metrics."
)
@click.option(
    "--runs", type=click.Path(file_okay=False, path_type=Path), help="Where run folders lie (default: runs/)."
)
def logs(
    targets: tuple[str, ...], follow: bool, as_json: bool, as_csv: bool, to: str, phase: str, runs: Path | None
) -> None:
    """Show the log of a RUN's newest job, or read log FILEs of any known program into records.

    Several files are one run, in the order given; gz, xz and zst are unpacked. With --json, --csv or --to, RUN stands
    for the metrics of its training. Exit code 1 where no record was found.
    """
    if as_json + as_csv + bool(to) > 1:
        raise click.UsageError("--json, --csv and --to exclude each other.")
    a_run = len(targets) == 1 and not _is_file(targets[0])
    if follow or (a_run and not (as_json or as_csv or to)):
        from runbook.phases.follow import show_log

        show_log(targets[0], runs, follow=follow, say=click.echo)
        return
    target = _target(to) if to else None
    log = parse_files(_metrics(targets[0], phase, runs) if a_run else [Path(target) for target in targets])
    if target is not None:
        from runbook.analysis.exports import export

        click.echo(export(log, target, name=Path(targets[0]).name))
        return
    if as_json:
        write_json(log, sys.stdout)
    elif as_csv:
        write_csv(log, sys.stdout)
    else:
        click.echo(summary(log))
    if not log.records:
        raise DataError(
            f"No record was found in {', '.join(targets)}: "
            + ("; ".join(log.notes) if log.notes else f"{log.unread_lines} lines, none of a program this version knows")
            + ". Give the log of the last rank, where Megatron prints its lines, as it was written."
        )


def _is_file(target: str) -> bool:
    return Path(target).exists() or "/" in target or "." in target


def _target(word: str) -> Target:
    from runbook.analysis.exports import parse_target

    return parse_target(word)


def _metrics(run: str, phase: str, runs: Path | None) -> list[Path]:
    """The files that the trainer of a run wrote."""
    from runbook.params.schema import phase_name
    from runbook.phases.plan_file import read_plan_file
    from runbook.phases.status import run_folder

    try:
        chosen = phase_name(phase)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    folder = run_folder(run, runs)
    spec = read_plan_file(folder)["phases"].get(chosen)
    if spec is None:
        raise click.UsageError(f"{chosen} trains nothing: give --phase 03-smoke-test or 04-training.")
    files = [folder / spec["log"][name] for name in ("metrics", "validation")]
    return [file for file in files if file.exists()] or files[:1]


def summary(log: ParsedLog) -> str:
    """A log in a few lines for people: what it is, where it begins and ends, what is special, what failed."""
    lines = [f"{log.format}: {len(log.records)} records in {log.segments} segments, {log.unread_lines} lines not read"]
    if log.records:
        first, last = log.records[0], log.records[-1]
        lines.append(f"  iterations {first.iteration} to {last.iteration}")
        losses = [record for record in log.records if record.loss is not None]
        if losses:
            ends = [f"{record.loss:.4g} ({log.source(record)})" for record in (losses[0], losses[-1])]
            lines.append(f"  loss {' to '.join(ends)}")
        seconds = [record.seconds for record in log.records if record.seconds and "all_skipped" not in record.states]
        if seconds:
            lines.append(f"  step time {statistics.median(seconds):.4g} s (median of {len(seconds)}, warm-up included)")
        rates = [record for record in log.records if record.tflops is not None]
        if rates:
            middle = statistics.median(record.tflops or 0.0 for record in rates)
            lines.append(f"  {middle:.4g} TFLOP/s/device (median; convention {rates[-1].tflops_convention})")
        for state, count in Counter(state for record in log.records for state in record.states).most_common():
            lines.append(f"  {count} x {state}")
    if log.validation:
        one = log.validation[-1]
        lines.append(f"  {len(log.validation)} evaluations, last {one.loss:.4g} ({log.source(one)})")
    lines += [f"  note: {note}" for note in log.notes]
    for failure in log.failures:
        lines.append(f"  FAILURE {failure.name} ({failure.count} x, first at line {failure.line}): {failure.evidence}")
        lines.append(f"    {failure.remedy}")
    return "\n".join(lines)
