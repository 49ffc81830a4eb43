"""`runbook logs`, `explain`, `report`, `note`, `verify`, `compare`: what runs left behind, and logs of any program."""

import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import click

from runbook.core.errors import DataError
from runbook.log_readers.read import parse_files
from runbook.log_readers.record import ParsedLog
from runbook.plan_file.schema import PhasePlan
from runbook.results.failures.finder import Failure
from runbook.results.metrics import find_alarms
from runbook.runs.command_options import (
    EXISTING_FILE,
    FILE,
    FOLDER,
    RUNS,
    SET,
    NumberRange,
    on_run_folder,
    phase_option,
)
from runbook.tools.logs.exports import export, write_csv, write_json, write_mllog


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
    targets: tuple[str, ...],
    follow: bool,
    as_json: bool,
    as_csv: bool,
    to: str,
    phase: str,
    runs: Path | None,
) -> None:
    """Show the log of a RUN's newest job, or read log FILEs of any known program into records.

    Several files are one run, in the order given; gz, xz and zst are unpacked. With --json, --csv or --to, RUN stands
    for the metrics of its training. Exit code 1 where neither a record nor an evaluation was found.
    """
    if as_json + as_csv + bool(to) > 1:
        raise click.UsageError("--json, --csv and --to exclude each other.")
    a_run = len(targets) == 1 and not (Path(targets[0]).exists() or set("/.") & set(targets[0]))
    if follow or (a_run and not (as_json or as_csv or to)):
        from runbook.runs.status import show_log

        show_log(targets[0], runs, follow=follow, say=click.echo)
        return
    if to.startswith("mllog:") and a_run:
        click.echo(write_mllog(_training(targets[0], phase, runs), Path(to.removeprefix("mllog:"))))
        return
    if a_run:
        files = _metrics(_training(targets[0], phase, runs))
    else:
        files = [Path(target) for target in targets]
    if to:
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
            + (
                "; ".join(log.notes)
                if log.notes
                else f"{log.unread_lines} lines, none of a program this version knows"
            )
            + ". Give the log of the last rank, where Megatron prints its lines, as it was written."
        )


def _training(run: str, phase: str, runs: Path | None) -> PhasePlan:
    """What was planned for a run's training; its paths start from the run's folder."""
    from runbook.runs.run_files import read_plan_file
    from runbook.runs.status import run_folder

    folder = run_folder(run, runs)
    spec = read_plan_file(folder).phases.get(phase)
    if spec is None:
        raise click.UsageError(
            f"{phase} trains nothing: give --phase 03-smoke-test or 04-training."
        )
    return replace(spec, root=folder)


def _metrics(spec: PhasePlan) -> list[Path]:
    """The files that the trainer wrote."""
    files = [spec.path(spec.log.metrics), spec.path(spec.log.validation)]
    return [file for file in files if file.exists()] or files[:1]


def summary(log: ParsedLog) -> str:
    """A log in a few lines for people: what it is, where it begins and ends, what is special, what failed."""
    segments = f"{log.segments} segment{'s' * (log.segments != 1)}"
    lines = [
        f"{log.format}: {len(log.records)} records in {segments}, {log.unread_lines} lines not read"
    ]
    if log.records:
        lines.append(f"  iterations {log.records[0].iteration} to {log.records[-1].iteration}")
        if losses := [record for record in log.records if record.loss is not None]:
            ends = [
                f"{record.loss:.4g} ({log.source(record)})" for record in (losses[0], losses[-1])
            ]
            lines.append(f"  loss {' to '.join(ends)}")
        if seconds := [
            record.seconds
            for record in log.records
            if record.seconds and "all_skipped" not in record.states
        ]:
            lines.append(
                f"  step time {statistics.median(seconds):.4g} s (median of {len(seconds)}, warm-up included)"
            )
        if rates := [
            (record.tflops, record.tflops_convention)
            for record in log.records
            if record.tflops is not None
        ]:
            middle = statistics.median(tflops for tflops, _ in rates)
            lines.append(f"  {middle:.4g} TFLOP/s/device (median; convention {rates[-1][1]})")
        for state, count in Counter(
            state for record in log.records for state in record.states
        ).most_common():
            lines.append(f"  {count} x {state}")
    if log.validation:
        one = log.validation[-1]
        lines.append(
            f"  {len(log.validation)} evaluations, last {one.loss:.4g} ({log.source(one)})"
        )
    if log.facts:
        lines.append(
            "  MLPerf: "
            + ", ".join(
                f"{name} {fact}" for name, fact in vars(log.facts).items() if fact is not None
            )
        )
    lines += [
        f"  ALARM {one.kind}, iteration {one.since}: {one.evidence}"
        for one in find_alarms(log.records)
    ]
    lines += [f"  note: {note}" for note in log.notes]
    for failure in log.failures:
        lines += failure_lines(failure, is_cause=failure is log.cause)
    return "\n".join(lines)


def failure_lines(failure: Failure, *, is_cause: bool) -> Iterator[str]:
    """Yield a failure for people: what it is, the line that shows it, what to do."""
    label = "CAUSE" if is_cause else failure.level.upper()
    if failure.overcome:
        label = "OVERCOME"
    who = "" if failure.rank is None else f", rank {failure.rank}"
    where = f" on {failure.host}" if failure.host else ""
    place = f"{failure.count} x, first at line {failure.line}{who}{where}"
    yield f"  {label} {failure.name} ({place}): {failure.evidence}"
    if is_cause or not failure.overcome:
        yield f"    {failure.remedy}"
    if is_cause:
        yield f"    Then: {failure.decision.advice}"
    if failure.also:
        yield f"    Or {failure.also}: {failure.check}"


@click.command()
@click.argument("log", metavar="LOG", type=EXISTING_FILE)
@click.argument("run", metavar="[RUN]", default="")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object: expected, reached, gap, parts, first_causes ...",
)
@SET
def explain(log: Path, run: str, as_json: bool, set_words: tuple[str, ...]) -> int:
    """Say why a training is slower than expected: the gap in parts, each with its sign and what would mend it.

    LOG is a training's log, whole or an excerpt, also a command line, a YAML file or a question in words. What it does
    not say is taken from RUN or --set: accelerator=H100 n_accel=16 parallel.tensor=8 reached.tflops=130
    expected.tflops=420 (or .mfu, .tokens_per_second of a device, .seconds of a step). Exit code 1 if nothing was
    found that explains anything.
    """
    from runbook import params
    from runbook.tools.speed.gap import explain_log

    explanation = explain_log(log, params.load(run) if run else None, set_words)
    click.echo(
        json.dumps(explanation.as_dict(), indent=1) if as_json else explanation.as_table().as_text()
    )
    return 0 if explanation.parts else 1


@click.command()
@click.option(
    "--redact",
    is_flag=True,
    help="A copy without users, hosts, accounts, paths and buckets, to send outside.",
)
@click.option(
    "--file",
    "notebooks",
    multiple=True,
    type=EXISTING_FILE,
    metavar="NOTEBOOK",
    help="First file a notebook that was executed and saved in JupyterLab, or by stock papermill, among the records.",
)
@click.option(
    "--out",
    type=FOLDER,
    help="With --redact: an empty folder for the copy (default: redacted/ in the run's folder, replaced).",
)
@click.option(
    "--tables",
    type=FOLDER,
    metavar="DIR",
    help="Write results, plan versus actual and every step to DIR: CSV and Parquet, and tables in Markdown and LaTeX.",
)
@on_run_folder
def report(
    folder: Path, redact: bool, notebooks: tuple[Path, ...], out: Path | None, tables: Path | None
) -> None:
    """Write the report of RUN again from its files, and say where it is: index.html, and report.html with all of it."""
    from runbook.phases.report import file_notebook, write_report, write_tables
    from runbook.tools.redact.redacted_copy import write_redacted

    if out is not None and not redact:
        raise click.UsageError(
            "--out goes with --redact; without it, the report is written to the run's folder."
        )
    for notebook in notebooks:
        click.echo(file_notebook(notebook, folder))
    page = write_redacted(folder, out) if redact else write_report(folder)
    click.echo(page)
    for path in write_tables(folder, tables) if tables else ():
        click.echo(path)


@click.command()
@on_run_folder
@click.argument("words", metavar="[TEXT]", nargs=-1)
def note(folder: Path, words: tuple[str, ...]) -> None:
    """Write TEXT into the logbook of RUN, also while it runs; `-` reads it from standard input.

    Without TEXT: show the logbook, which the run writes itself, with what people have noted.
    """
    from runbook.records import logbook

    if words:
        click.echo(
            logbook.add_note(folder, sys.stdin.read() if words == ("-",) else " ".join(words))
        )
    elif logbook.write_logbook(folder):
        click.echo((folder / logbook.LOGBOOK).read_text(encoding="utf-8"), nl=False)
    else:
        click.echo(f"Nothing has happened in {folder.name} yet.")


@click.command()
@on_run_folder
def verify(folder: Path) -> int:
    """Find every file of RUN that was changed, lost or added after it was recorded. Exit code 1 if there is one."""
    from runbook.core.checks import counted
    from runbook.records.manifest import split_unrecorded, verify_run
    from runbook.records.run_state import read_run

    findings = verify_run(folder)
    run = read_run(folder)
    findings, unrecorded = split_unrecorded(findings, is_running=run.state == "running")
    for finding in findings:
        click.echo(str(finding))
    for finding in unrecorded:
        click.echo(f"not recorded yet: {finding.file}")
    if unrecorded:
        files = counted(len(unrecorded), "file")
        click.echo(
            f"{folder}: {run.phase} is running, and {files} of it will be recorded when it ends. "
            "Verify again then."
        )
    text = "nothing was changed after it was recorded."
    if findings:
        text = counted(len(findings), "finding")
    click.echo(f"{folder}: {text}")
    return 1 if findings else 0


@click.command()
@click.argument("run_names", metavar="RUN RUN...", nargs=-1, required=True)
@phase_option("Which training is compared.")
@click.option(
    "--slower",
    type=NumberRange(0.0),
    default=0.05,
    show_default=True,
    help="Share of the first run's tokens/s that may be lost.",
)
@click.option(
    "--worse",
    type=NumberRange(0.0),
    default=0.01,
    show_default=True,
    help="Share by which the loss may be higher at equal tokens.",
)
@click.option(
    "--memory",
    type=NumberRange(0.0),
    default=0.10,
    show_default=True,
    help="Share by which the memory may grow.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object: verdict, tolerance, checks and tables.",
)
@click.option(
    "--figure",
    type=FILE,
    help="Draw the losses over tokens and over time into FILE.svg, .png or .pdf.",
)
@RUNS
def compare(
    run_names: tuple[str, ...],
    phase: str,
    runs: Path | None,
    as_json: bool,
    figure: Path | None,
    **shares: float,
) -> int:
    """Set runs side by side; each is compared with the first. Exit code 1 if one is worse than allowed."""
    from runbook.display import CheckTable
    from runbook.results.compare import Tolerance, read_run
    from runbook.results.compare import compare as compared
    from runbook.runs.status import run_folder

    if len(run_names) < 2:
        raise click.UsageError("Name at least two runs.")
    if figure is not None and figure.suffix not in (".svg", ".png", ".pdf"):
        raise click.UsageError(f"--figure {figure}: the name ends with .svg, .png or .pdf.")
    tolerance = Tolerance(shares["slower"], shares["worse"], shares["memory"])
    folders = [run_folder(name, runs) for name in run_names]
    facts = [read_run(folder, phase) for folder in folders]
    result = compared(facts, tolerance)
    if figure is not None:
        from runbook.results.figures.drawing import save
        from runbook.results.figures.run_figures import comparison_figure

        save(comparison_figure({fact.name: fact.history for fact in facts}), figure)
    verdict, code = ("pass", 0) if result.passed else ("fail", 1)
    tables = {
        "parameters": result.parameters,
        "metrics": result.metrics,
        "environment": result.environment,
    }
    if as_json:
        checks = [asdict(check) for check in result.checks]
        content = {"verdict": verdict, "tolerance": asdict(tolerance), "checks": checks}
        click.echo(
            json.dumps(
                content | {name: list(table.rows) for name, table in tables.items()}, indent=1
            )
        )
        return code
    for table in tables.values():
        click.echo(table.as_text() + "\n")
    click.echo(CheckTable(result.checks).as_text())
    click.echo(f"Verdict: {verdict} (each compared with {facts[0].name})")
    return code
