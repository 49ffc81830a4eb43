"""`runbook check`, `plan`, `rehearse`, `why`, `render`, `doctor`, `drill`: a run and its machine before a job."""

import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from runbook.cli.options import FILE, FOLDER, SET, phase_option


@click.command()
@click.argument("run_name", metavar="RUN")
@SET
def check(run_name: str, set_words: tuple[str, ...]) -> None:
    """Say everything that is wrong with RUN: keys, types, ranges, layout, memory, queue. Nothing is written."""
    from runbook.workflow.plan_commands import check_text

    click.echo(check_text(run_name, set_words))


@click.command()
@click.argument("run_name", metavar="RUN", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print plan.json, or predictions as a JSON list.")
@click.option(
    "--predict",
    "table",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Instead of a run: predict the speed of each row of a table with the columns of published_results.csv.",
)
@click.option(
    "--search", "searching", is_flag=True, help="Rank the layouts that fit the nodes of RUN; nothing changes."
)
@SET
def plan(run_name: str, as_json: bool, table: Path | None, searching: bool, set_words: tuple[str, ...]) -> None:
    """Compute sizes, layout, memory and time of RUN; nothing is written or submitted."""
    if bool(run_name) == bool(table):
        raise click.UsageError("give either RUN or --predict FILE.csv")
    if table:
        from runbook.workflow.plan_commands import predict_file, predictions_text

        predictions = predict_file(table)
        _show([one.as_dict() for one in predictions] if as_json else predictions_text(predictions))
        return
    if searching:
        from runbook.workflow.plan_commands import search_run

        found = search_run(run_name, set_words)
        _show(found.as_dict() if as_json else found.as_text())
        return
    from runbook.workflow.plan_commands import load_plan, plan_text
    from runbook.workflow.run_files import with_prompt_ids

    settings, made = load_plan(run_name, set_words, measured=True)
    _show(with_prompt_ids(settings, made).as_dict() if as_json else plan_text(settings, made))


def _show(content: Any) -> None:
    """Text as it is, anything else as JSON."""
    click.echo(content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False))


@click.command()
@click.argument("run_name", metavar="RUN")
@phase_option("A training phase.")
@click.option("--ranks", default="", metavar="0,8", help="These ranks, instead of the first of each pipeline stage.")
@click.option(
    "--upstream",
    "checkout",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    metavar="CHECKOUT",
    help="Instead: start the documents' own program of this folder by the rendered rank.sh, tiny, on CPUs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything that was counted.")
@click.option("--pictures", type=FOLDER, help="Draw memory over a step and the schedule of all stages in this folder.")
@SET
def rehearse(
    run_name: str,
    phase: str,
    ranks: str,
    checkout: Path | None,
    as_json: bool,
    pictures: Path | None,
    set_words: tuple[str, ...],
) -> int:
    """Train one step of RUN at full size on fake tensors: memory, work, time and messages of each stage.

    The very trainer runs, rank by rank, as on the cluster; nothing is computed, sent or written. Needs torch, no GPU.
    Exit code 1 if a stage does not fit into its device, or if the program of CHECKOUT fails.
    """
    if checkout:
        from runbook.workflow.prerequisites.upstream import start_upstream

        trial = start_upstream(
            run_name, set_words, phase=phase, checkout=checkout, say=lambda text: click.echo(text, err=True)
        )
        _show(trial.as_dict() if as_json else trial.as_text())
        return 0 if trial.works else 1
    from runbook.workflow.prerequisites.rehearsal import rehearse_run

    if not all(word.strip().isdecimal() for word in ranks.split(",") if ranks):
        raise click.UsageError(f"--ranks {ranks!r}: give numbers with commas between them, for example 0,8")
    found = rehearse_run(
        run_name,
        set_words,
        phase=phase,
        ranks=[int(word) for word in ranks.split(",") if ranks],
        say=lambda text: click.echo(text, err=True),
    )
    click.echo(json.dumps(found.as_dict(), indent=1) if as_json else found.as_text())
    for path in found.save_figures(pictures) if pictures else ():
        click.echo(path, err=True)
    return 0 if found.fits else 1


@click.command()
@click.argument("run_name", metavar="RUN")
@click.argument("key")
@SET
def why(run_name: str, key: str, set_words: tuple[str, ...]) -> None:
    """Where the value of KEY in RUN comes from, its names in the documents, and what the plan makes of it."""
    from runbook.workflow.plan_commands import why_text

    click.echo(why_text(run_name, key, set_words))


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option("--out", required=True, type=FOLDER, help="Folder to write into.")
@click.option("--placeholders", is_flag=True, help="Mark required values that were not given in capitals.")
@SET
def render(run_name: str, out: Path, placeholders: bool, set_words: tuple[str, ...]) -> None:
    """Write OUT/<phase>/job.sh and arguments.json for each phase of RUN that submits a job; needs no cluster."""
    from runbook.workflow.plan_commands import render_all

    for path in render_all(run_name, set_words, out, placeholders=placeholders):
        click.echo(path)


@click.command()
@click.argument("run_name", metavar="[RUN]", required=False, default="")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a list of objects with name, status, message, rule and remedy."
)
@SET
def doctor(run_name: str, as_json: bool, set_words: tuple[str, ...]) -> int:
    """Check what this machine has and lacks, and with RUN what its site has: each row with rule and remedy.

    With RUN: required values, modules, scheduler, image, space against the plan, and a probe that is started as the
    trainer is: GPUs, network devices, clocks, a sum over all ranks, writing. Exit code 1 if a check fails.
    """
    from runbook.display import CheckTable
    from runbook.workflow.prerequisites.doctor import all_checks, run_checks

    checks = run_checks(run_name, set_words) if run_name else all_checks()
    rows = [{**asdict(check), "status": check.verdict, "message": check.value} for check in checks]
    _show(rows if as_json else CheckTable(checks).as_text())
    return 1 if any(check.verdict == "fail" for check in checks) else 0


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a list of objects with name, verdict, detail, fault and more."
)
@click.option("--list", "only_list", is_flag=True, help="Name the drills and what each does; nothing is started.")
@click.option("--log", type=FILE, help="Keep here what the trainings say.")
@click.option("--page", type=FILE, help="Write the results there as a page of Markdown.")
@click.option(
    "--again",
    is_flag=True,
    help="Retry a failed drill once. The report shows both attempts; the second decides the exit code.",
)
def drill(
    names: tuple[str, ...], as_json: bool, only_list: bool, log: Path | None, page: Path | None, again: bool
) -> int:
    """Break a small training on this machine on purpose, and see that it ends as it should; no NAME: all twenty.

    NAME is a drill's name, its number or its words. It works in a temporary folder on two to four processes without a
    GPU, needs the train extra, and leaves no process behind. Exit code 1 if a drill fails.
    """
    from runbook.records.twin import commit_of
    from runbook_drills import report, table

    meant = table.chosen_drills(names)
    if only_list:
        rows = [{"name": name, "fault": table.summary(name)} for name in meant]
        click.echo(json.dumps(rows, indent=1) if as_json else "\n".join(f"{r['name']:24} {r['fault']}" for r in rows))
        return 0
    if page and not page.absolute().parent.is_dir():
        raise click.UsageError(f"--page: {page.absolute().parent} is no folder; make it first.")
    verdicts = []
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended
    with log.open("w") if log else tempfile.TemporaryFile("w") as stream:
        for verdict in table.do_attempts(meant, stream, again=again):
            verdicts.append(verdict)
            if not as_json:
                click.echo(report.verdict_line(verdict))
    verdicts.sort(key=lambda verdict: meant.index(verdict.name))  # a second attempt follows the first
    if page:
        date = time.strftime("%Y-%m-%d", time.gmtime())
        page.write_text(report.page_text(verdicts, date, commit_of(Path(__file__).parent)))
    if as_json:
        click.echo(json.dumps([verdict.as_dict() for verdict in verdicts], indent=1))
    else:
        click.echo(f"{report.score(verdicts)} (of {len(table.DRILLS)} drills that there are)")
    last = {verdict.name: verdict.verdict for verdict in verdicts}
    return 0 if set(last.values()) <= {"pass"} else 1
