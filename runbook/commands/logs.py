"""`runbook logs`: the log of a run's job, or any training log read into records."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from pathlib import Path

import click

from runbook.analysis.parsers import ParsedLog, parse_files, write_csv, write_json
from runbook.errors import DataError


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="RUN | FILE...")
@click.option("--follow", is_flag=True, help="RUN: go on showing what its job writes.")
@click.option("--json", "as_json", is_flag=True, help="FILE: one JSON object with every record.")
@click.option("--csv", "as_csv", is_flag=True, help="FILE: one line a record.")
@click.option(
    "--runs", type=click.Path(file_okay=False, path_type=Path), help="Where run folders lie (default: runs/)."
)
def logs(targets: tuple[str, ...], follow: bool, as_json: bool, as_csv: bool, runs: Path | None) -> None:
    """Show the log of a RUN's newest job, or read log FILEs of any known program into records.

    Several files are one run, in the order given; gz and zst are unpacked. Exit code 1 where no record was found.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other.")
    if follow or (len(targets) == 1 and not _is_file(targets[0]) and not (as_json or as_csv)):
        from runbook.phases.follow import show_log

        show_log(targets[0], runs, follow=follow, say=click.echo)
        return
    log = parse_files([Path(target) for target in targets])
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
