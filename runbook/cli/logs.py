"""`runbook logs`: show the log from a job, or any training log, as records."""

import sys
from dataclasses import replace
from pathlib import Path

import click

from runbook.cli.messages import CliMessage
from runbook.cli.options import RUNS, training_phase_option
from runbook.core.errors import DataError, ParamsError
from runbook.log_readers.read import parse_files
from runbook.log_readers.record import ParsedLog
from runbook.plan_file.schema import PhasePlan
from runbook.tools.logs.exports import export, write_csv, write_json, write_mllog
from runbook.tools.logs.log_summary import summary


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="RUN | FILE...")
@click.option("--follow", is_flag=True, help="With RUN: keep showing the job's output.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, with every record of a FILE."
)
@click.option("--csv", "as_csv", is_flag=True, help="With FILE: print one CSV line per record.")
@click.option(
    "--to",
    default="",
    metavar="PLACE",
    help="Export: FILE.csv, FILE.parquet, tensorboard:DIR, mlflow:URI or trackio:PROJECT; for a RUN "
    "also mllog:FILE.",
)
@training_phase_option("With RUN: use the metrics of this phase.")
@RUNS
def logs(
    targets: tuple[str, ...],
    follow: bool,
    as_json: bool,
    as_csv: bool,
    to: str,
    phase: str,
    runs: Path | None,
) -> None:
    """Show the log of RUN's newest job, or parse log FILEs from any known program.

    Several files are one run, in the order given; gz, xz and zst are unpacked. With --json, --csv
    or --to, RUN means the metrics from its training. Exit code 1 if no record, no evaluation and no
    known failure was found.
    """
    outputs = [as_json, as_csv, bool(to)]
    if outputs.count(True) > 1:
        raise click.UsageError(CliMessage.ONE_LOG_OUTPUT.fill())
    first_target = targets[0]
    is_run = len(targets) == 1 and _names_run(first_target, runs)
    if follow or (is_run and not any(outputs)):
        from runbook.runs.status import show_log

        show_log(first_target, runs, follow=follow, say=click.echo)
        return

    training = _training(first_target, phase, runs) if is_run else None
    if training is not None and to.startswith(MLLOG):
        click.echo(write_mllog(training, Path(to.removeprefix(MLLOG))))
        return

    files = [Path(target) for target in targets] if training is None else _metrics(training)
    log = parse_files(files)
    if to:
        click.echo(export(log, to, name=Path(first_target).name))
        return

    _print_log(log, as_json=as_json, as_csv=as_csv)
    _require_records(log, targets)


MLLOG = "mllog:"
"""Prefix for an export target in MLPerf format. This export needs a run with a plan."""


def _print_log(log: ParsedLog, *, as_json: bool, as_csv: bool) -> None:
    if as_json:
        write_json(log, sys.stdout)
    elif as_csv:
        write_csv(log, sys.stdout)
    else:
        click.echo(summary(log))


def _names_run(target: str, runs: Path | None) -> bool:
    """Return whether a word names a run: its name, or the path to its folder.

    A word that contains neither a dot nor a slash, and is not a file, is taken as a run name. A
    word with a dot (`gpt-1.3b`, `train.log`) names a run only if there is a folder or a run file
    for it.
    """
    if (Path(target) / "run.yaml").exists():
        return True
    if Path(target).exists() or "/" in target:
        return False
    return "." not in target or _is_run(target, runs)


def _is_run(name: str, runs: Path | None) -> bool:
    """Return whether a run with this name has a folder or a run file."""
    from runbook.params.project import find_run_file
    from runbook.runs.status import run_folder

    try:
        run_folder(name, runs)
    except ParamsError:
        try:
            find_run_file(name)
        except ParamsError:
            return False
    return True


def _require_records(log: ParsedLog, targets: tuple[str, ...]) -> None:
    """Raise `DataError` if a log has no record, evaluation, MLPerf fact or known failure."""
    has_facts = log.facts is not None and any(vars(log.facts).values())
    has_failure = bool(log.failures) or _hides_effects(log)
    if log.records or log.validation or has_facts or has_failure:
        return
    unread = f"{log.unread_lines} lines, none of them from a program that this version knows"
    reason = "; ".join(log.notes) or unread
    raise DataError(CliMessage.NO_RECORD_IN_LOGS, targets=", ".join(targets), reason=reason)


def _hides_effects(log: ParsedLog) -> bool:
    """Return whether the first error in a log explains the known failures that follow it."""
    return log.first_error is not None and log.first_error.explains_effects


def _training(run: str, phase: str, runs: Path | None) -> PhasePlan:
    """Return the plan for training in a run, with its paths below the run folder."""
    from runbook.runs.run_files import read_plan_file
    from runbook.runs.status import run_folder

    folder = run_folder(run, runs)
    return replace(read_plan_file(folder).phases[phase], root=folder)


def _metrics(spec: PhasePlan) -> list[Path]:
    """Return the metrics files that the trainer wrote. Raise `DataError` if there are none."""
    metrics = spec.path(spec.log.metrics)
    validation = spec.path(spec.log.validation)
    written = [file for file in (metrics, validation) if file.exists()]
    if not written:
        raise DataError(CliMessage.NO_METRICS_YET, path=metrics, phase=spec.phase)
    return written
