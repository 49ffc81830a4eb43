"""`runbook logs`: the log of a run's job, or any training log read into records."""

import json
import statistics
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import click

from runbook.cli.options import EXISTING_FILE, RUNS, SET, phase_option
from runbook.core.errors import DataError
from runbook.plan_file.schema import PhasePlan
from runbook.results.log_readers.exports import write_csv, write_json
from runbook.results.log_readers.read import parse_files
from runbook.results.log_readers.record import ParsedLog
from runbook.results.metrics import find_alarms


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="RUN | FILE...")
@click.option("--follow", is_flag=True, help="RUN: go on showing what its job writes.")
@click.option("--json", "as_json", is_flag=True, help="FILE: one JSON object with every record.")
@click.option("--csv", "as_csv", is_flag=True, help="FILE: one line a record.")
@click.option(
    "--to",
    default="",
    metavar="PLACE",
    help="Export: FILE.csv, FILE.parquet, tensorboard:DIR, mlflow:URI or trackio:PROJECT; of a RUN also mllog:FILE.",
)
@phase_option("RUN: which training's metrics.")
@RUNS
def logs(
    targets: tuple[str, ...], follow: bool, as_json: bool, as_csv: bool, to: str, phase: str, runs: Path | None
) -> None:
    """Show the log of a RUN's newest job, or read log FILEs of any known program into records.

    Several files are one run, in the order given; gz, xz and zst are unpacked. With --json, --csv or --to, RUN stands
    for the metrics of its training. Exit code 1 where neither a record nor an evaluation was found.
    """
    if as_json + as_csv + bool(to) > 1:
        raise click.UsageError("--json, --csv and --to exclude each other.")
    a_run = len(targets) == 1 and not (Path(targets[0]).exists() or set("/.") & set(targets[0]))
    if follow or (a_run and not (as_json or as_csv or to)):
        from runbook.workflow.status import show_log

        show_log(targets[0], runs, follow=follow, say=click.echo)
        return
    if to.startswith("mllog:") and a_run:
        from runbook.results.log_readers.exports import write_mllog

        click.echo(write_mllog(_training(targets[0], phase, runs), Path(to.removeprefix("mllog:"))))
        return
    files = _metrics(_training(targets[0], phase, runs)) if a_run else [Path(target) for target in targets]
    if to:
        from runbook.results.log_readers.exports import export

        click.echo(export(parse_files(files), to, name=Path(targets[0]).name))
        return
    log = parse_files(files)
    if as_json:
        write_json(log, sys.stdout)
    elif as_csv:
        write_csv(log, sys.stdout)
    else:
        click.echo(summary(log))
    if not (log.records or log.validation or (log.facts and any(vars(log.facts).values()))):
        raise DataError(
            f"No record was found in {', '.join(targets)}: "
            + ("; ".join(log.notes) if log.notes else f"{log.unread_lines} lines, none of a program this version knows")
            + ". Give the log of the last rank, where Megatron prints its lines, as it was written."
        )


def _training(run: str, phase: str, runs: Path | None) -> PhasePlan:
    """What was planned for a run's training; its paths start from the run's folder."""
    from runbook.workflow.run_files import read_plan_file
    from runbook.workflow.status import run_folder

    folder = run_folder(run, runs)
    spec = read_plan_file(folder).phases.get(phase)
    if spec is None:
        raise click.UsageError(f"{phase} trains nothing: give --phase 03-smoke-test or 04-training.")
    return replace(spec, root=folder)


def _metrics(spec: PhasePlan) -> list[Path]:
    """The files that the trainer wrote."""
    files = [spec.path(spec.log.metrics), spec.path(spec.log.validation)]
    return [file for file in files if file.exists()] or files[:1]


def summary(log: ParsedLog) -> str:
    """A log in a few lines for people: what it is, where it begins and ends, what is special, what failed."""
    segments = f"{log.segments} segment{'s' * (log.segments != 1)}"
    lines = [f"{log.format}: {len(log.records)} records in {segments}, {log.unread_lines} lines not read"]
    if log.records:
        lines.append(f"  iterations {log.records[0].iteration} to {log.records[-1].iteration}")
        if losses := [record for record in log.records if record.loss is not None]:
            ends = [f"{record.loss:.4g} ({log.source(record)})" for record in (losses[0], losses[-1])]
            lines.append(f"  loss {' to '.join(ends)}")
        if seconds := [
            record.seconds for record in log.records if record.seconds and "all_skipped" not in record.states
        ]:
            lines.append(f"  step time {statistics.median(seconds):.4g} s (median of {len(seconds)}, warm-up included)")
        if rates := [(record.tflops, record.tflops_convention) for record in log.records if record.tflops is not None]:
            middle = statistics.median(tflops for tflops, _ in rates)
            lines.append(f"  {middle:.4g} TFLOP/s/device (median; convention {rates[-1][1]})")
        for state, count in Counter(state for record in log.records for state in record.states).most_common():
            lines.append(f"  {count} x {state}")
    if log.validation:
        one = log.validation[-1]
        lines.append(f"  {len(log.validation)} evaluations, last {one.loss:.4g} ({log.source(one)})")
    if log.facts:
        lines.append(
            "  MLPerf: " + ", ".join(f"{name} {fact}" for name, fact in vars(log.facts).items() if fact is not None)
        )
    lines += [f"  ALARM {one.kind}, iteration {one.since}: {one.evidence}" for one in find_alarms(log.records)]
    lines += [f"  note: {note}" for note in log.notes]
    for failure in log.failures:
        lines.append(f"  FAILURE {failure.name} ({failure.count} x, first at line {failure.line}): {failure.evidence}")
        lines.append(f"    {failure.remedy}")
    return "\n".join(lines)


@click.command()
@click.argument("log", metavar="LOG", type=EXISTING_FILE)
@click.argument("run", metavar="[RUN]", default="")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object: expected, reached, gap, parts, first_causes ..."
)
@SET
def explain(log: Path, run: str, as_json: bool, set_words: tuple[str, ...]) -> None:
    """Say why a training is slower than expected: the gap in parts, each with its sign and what would mend it.

    LOG is a training's log, whole or an excerpt, also a command line, a YAML file or a question in words. What it does
    not say is taken from RUN or --set: accelerator=H100 n_accel=16 parallel.tensor=8 reached.tflops=130
    expected.tflops=420 (or .mfu, .tokens_per_second of a device, .seconds of a step).
    """
    from runbook import params
    from runbook.workflow.analysis import explain_log

    explanation = explain_log(log, params.load(run) if run else None, set_words)
    click.echo(json.dumps(explanation.as_dict(), indent=1) if as_json else explanation.as_table().as_text())
