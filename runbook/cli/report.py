"""`runbook logs`, `explain`, `report`, `note`, `verify`, `compare`.

These commands show what runs left behind, and logs of any program.
"""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runbook.cli.messages import CliMessage
from runbook.core.errors import DataError
from runbook.log_readers.read import parse_files
from runbook.log_readers.record import ParsedLog
from runbook.plan_file.schema import PhasePlan
from runbook.runs.command_options import (
    AS_JSON,
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
from runbook.tools.logs.summary import summary

if TYPE_CHECKING:
    from runbook.results.compare import Comparison, Tolerance


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="RUN | FILE...")
@click.option("--follow", is_flag=True, help="RUN: keep showing what its job writes.")
@click.option(
    "--json", "as_json", is_flag=True, help="FILE: print one JSON object with every record."
)
@click.option("--csv", "as_csv", is_flag=True, help="FILE: print one CSV line for each record.")
@click.option(
    "--to",
    default="",
    metavar="PLACE",
    help="Export: FILE.csv, FILE.parquet, tensorboard:DIR, mlflow:URI or trackio:PROJECT; of a RUN "
    "also mllog:FILE.",
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
    """Show the log of RUN's newest job, or parse log FILEs of any known program.

    Several files are one run, in the order given; gz, xz and zst are unpacked. With --json, --csv
    or --to, RUN stands for the metrics of its training. Exit code 1 if no record, no evaluation and
    no known failure was found.
    """
    if as_json + as_csv + bool(to) > 1:
        raise click.UsageError("--json, --csv and --to exclude each other.")
    is_run = len(targets) == 1 and _names_run(targets[0])
    reads_records = bool(as_json or as_csv or to)
    if follow or (is_run and not reads_records):
        from runbook.runs.status import show_log

        show_log(targets[0], runs, follow=follow, say=click.echo)
        return

    if to.startswith("mllog:") and is_run:
        target_file = Path(to.removeprefix("mllog:"))
        click.echo(write_mllog(_training(targets[0], phase, runs), target_file))
        return

    if is_run:
        files = _metrics(_training(targets[0], phase, runs))
    else:
        files = [Path(target) for target in targets]

    log = parse_files(files)
    if to:
        click.echo(export(log, to, name=Path(targets[0]).name))
        return

    _print_log(log, as_json=as_json, as_csv=as_csv)
    _require_records(log, targets)


def _print_log(log: ParsedLog, *, as_json: bool, as_csv: bool) -> None:
    if as_json:
        write_json(log, sys.stdout)
    elif as_csv:
        write_csv(log, sys.stdout)
    else:
        click.echo(summary(log))


def _names_run(target: str) -> bool:
    """Whether a word names a run: no such file exists, and it has no dot and no slash."""
    return not Path(target).exists() and not set("/.") & set(target)


def _require_records(log: ParsedLog, targets: tuple[str, ...]) -> None:
    """Raise `DataError` if a log has no record, evaluation, MLPerf fact or known failure."""
    has_facts = log.facts is not None and any(vars(log.facts).values())
    if log.records or log.validation or has_facts or log.failures:
        return
    unread = f"{log.unread_lines} lines, none of a program this version knows"
    reason = "; ".join(log.notes) or unread
    raise DataError(CliMessage.NO_RECORD_IN_LOGS, targets=", ".join(targets), reason=reason)


def _training(run: str, phase: str, runs: Path | None) -> PhasePlan:
    """Return the plan of a run's training phase, with its paths below the run's folder."""
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
    """Return the metrics files that the trainer wrote, or the first one's path if there is none."""
    metrics = spec.path(spec.log.metrics)
    validation = spec.path(spec.log.validation)
    written = [file for file in (metrics, validation) if file.exists()]
    return written or [metrics]


@click.command()
@click.argument("log", metavar="LOG", type=EXISTING_FILE)
@click.argument("run", metavar="[RUN]", default="")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: expected, reached, gap, parts, first_causes ...",
)
@SET
def explain(
    log: Path,
    run: str,
    as_json: bool,
    set_words: tuple[str, ...],
) -> int:
    """Explain why a training is slower than expected: the gap in parts, each with evidence and remedy.

    LOG is a training's log or an excerpt, a command line, a YAML file, or a question in words. What
    it does not say is taken from RUN or --set: accelerator=H100 n_accel=16 parallel.tensor=8
    reached.tflops=130 expected.tflops=420 (or .mfu, .tokens_per_second of a device, .seconds of a
    step). Exit code 1 if nothing can be explained.
    """
    from runbook import params
    from runbook.tools.speed.gap import explain_log

    explanation = explain_log(log, params.load(run) if run else None, set_words)
    if as_json:
        click.echo(json.dumps(explanation.as_dict(), indent=1))
    else:
        click.echo(explanation.as_table().as_text())

    return 0 if explanation.parts else 1


@click.command()
@click.option(
    "--redact",
    is_flag=True,
    help="Write a copy without users, hosts, accounts, paths and buckets, to send outside.",
)
@click.option(
    "--file",
    "notebooks",
    multiple=True,
    type=EXISTING_FILE,
    metavar="NOTEBOOK",
    help="First add a notebook to the records that JupyterLab or papermill executed and saved.",
)
@click.option(
    "--out",
    type=FOLDER,
    help="With --redact: an empty folder for the copy (default: redacted/ in the run's folder, "
    "replaced).",
)
@click.option(
    "--tables",
    type=FOLDER,
    metavar="DIR",
    help="Write results, plan versus actual and every step to DIR: CSV and Parquet, and tables in "
    "Markdown and LaTeX.",
)
@click.option(
    "--records",
    is_flag=True,
    help="Also write report-with-records.html: every cell of every notebook in one file.",
)
@on_run_folder
def report(
    folder: Path,
    redact: bool,
    notebooks: tuple[Path, ...],
    out: Path | None,
    tables: Path | None,
    records: bool,
) -> None:
    """Rewrite the report of RUN from its files, and print the paths: index.html, and report.html, one page to mail."""
    from runbook.phases.report import (
        changed_files,
        file_notebook,
        write_checked_report,
        write_tables,
    )
    from runbook.records.pages.whole_report import write_whole_report
    from runbook.tools.redact.redacted_copy import write_redacted

    if out is not None and not redact:
        raise click.UsageError(
            "--out goes with --redact; without it, the report is written to the run's folder."
        )

    for notebook in notebooks:
        click.echo(file_notebook(notebook, folder))
    if redact:
        page = write_redacted(folder, out)
    else:
        page = write_checked_report(folder)

    click.echo(page)
    for line in changed_files(folder):
        click.echo(f"{line} after it was recorded; the report says so.", err=True)
    if records:
        click.echo(write_whole_report(page.parent))
    if tables:
        for path in write_tables(folder, tables):
            click.echo(path)


@click.command()
@click.argument("site", metavar="DIR", type=FOLDER)
@click.argument("run_names", metavar="[RUN...]", nargs=-1)
@click.option(
    "--redact", is_flag=True, help="Write copies without users, hosts, accounts, paths and buckets."
)
@RUNS
def publish(
    site: Path,
    run_names: tuple[str, ...],
    redact: bool,
    runs: Path | None,
) -> None:
    """Write runs into DIR as one static site: an index that overlays their losses, and each run's pages.

    Without RUN: every run. DIR works from a file:// address, on any web server, on GitHub Pages and
    as a static Hugging Face Space. The runs that publish wrote to DIR before are replaced. Job
    scripts and logs are not copied.
    """
    from runbook.records.run_state import read_runs
    from runbook.runs.status import all_runs_folder, run_folder
    from runbook.tools.publish.site import copy_whole_run
    from runbook.tools.publish.site import publish as write_site
    from runbook.tools.redact.redacted_copy import copy_redacted

    if run_names:
        folders = [run_folder(name, runs) for name in run_names]
    else:
        all_runs = read_runs(all_runs_folder(runs))
        folders = []
        for run in all_runs:
            if (run.folder / "plan.json").exists():
                folders.append(run.folder)

    click.echo(write_site(folders, site.absolute(), copy_redacted if redact else copy_whole_run))


@click.command()
@on_run_folder
@click.argument("words", metavar="[TEXT]", nargs=-1)
def note(folder: Path, words: tuple[str, ...]) -> None:
    """Add TEXT to the logbook of RUN, also while it runs; `-` reads it from standard input.

    Without TEXT: show the logbook, with the run's own entries and people's notes.
    """
    from runbook.records import logbook

    if words:
        text = sys.stdin.read() if words == ("-",) else " ".join(words)
        click.echo(logbook.add_note(folder, text))
    elif logbook.write_logbook(folder):
        click.echo((folder / logbook.LOGBOOK).read_text(encoding="utf-8"), nl=False)
    else:
        click.echo(f"Nothing has happened in {folder.name} yet.")


@click.command()
@AS_JSON
@on_run_folder
def verify(folder: Path, as_json: bool) -> int:
    """Find every file of RUN that was changed, lost or added since it was recorded. Exit code 1 if there is one."""
    from runbook.core.checks import counted
    from runbook.records.manifest import split_unrecorded, verify_run
    from runbook.records.run_state import read_run

    findings = verify_run(folder)
    run = read_run(folder)
    findings, unrecorded = split_unrecorded(findings, is_running=run.state == "running")
    if as_json:
        content = {
            "run": run.name,
            "state": str(run.state),
            "findings": [asdict(finding) for finding in findings],
            "not_recorded": [finding.file for finding in unrecorded],
        }
        click.echo(json.dumps(content, indent=1))
        return 1 if findings else 0

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
@phase_option("The training to compare.")
@click.option(
    "--slower",
    type=NumberRange(0.0),
    default=0.05,
    show_default=True,
    help="Allowed loss of tokens/s, as a share of the first run's.",
)
@click.option(
    "--worse",
    type=NumberRange(0.0),
    default=0.01,
    show_default=True,
    help="Allowed increase of the loss at equal tokens, as a share.",
)
@click.option(
    "--memory",
    type=NumberRange(0.0),
    default=0.10,
    show_default=True,
    help="Allowed increase of memory, as a share.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: verdict, tolerance, checks and tables.",
)
@click.option(
    "--figure",
    type=FILE,
    help="Draw the losses over tokens and over time: FILE.svg, .png or .pdf.",
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
    """Compare each run with the first. Exit code 1 if one is worse than allowed."""
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

        histories = {run.name: run.history for run in facts}
        save(comparison_figure(histories), figure)

    if as_json:
        _print_comparison_as_json(result, tolerance)
    else:
        for table in (result.parameters, result.metrics, result.environment):
            click.echo(table.as_text() + "\n")
        click.echo(CheckTable(result.checks).as_text())
        click.echo(f"Verdict: {_verdict(result)} (each compared with {facts[0].name})")

    return 0 if result.passed else 1


def _print_comparison_as_json(result: "Comparison", tolerance: "Tolerance") -> None:
    content: dict[str, object] = {
        "verdict": _verdict(result),
        "tolerance": asdict(tolerance),
        "checks": [check.as_dict() for check in result.checks],
        "parameters": list(result.parameters.rows),
        "metrics": list(result.metrics.rows),
        "environment": list(result.environment.rows),
    }
    click.echo(json.dumps(content, indent=1))


def _verdict(result: "Comparison") -> str:
    return "pass" if result.passed else "fail"
