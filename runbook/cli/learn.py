"""`runbook learn`: measure the nodes on a site, and write the results into the site file."""

import difflib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runbook.cli.options import RUNS, WAIT
from runbook.cli.signals import released_by_signals

if TYPE_CHECKING:
    from runbook.phases.p01_environment.preflight.learned_site import LearnedSite


@click.command()
@click.argument("site", metavar="SITE")
@click.option(
    "--run",
    "run_name",
    default="",
    metavar="RUN",
    help="Run on this site whose job measures the nodes (default: the run with the site's name).",
)
@click.option("--write", "is_written", is_flag=True, help="Write the values into the site file.")
@WAIT
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: lessons, gaps, defect."
)
@RUNS
def learn(
    site: str,
    run_name: str,
    is_written: bool,
    wait_minutes: float,
    as_json: bool,
    runs: Path | None,
) -> int:
    """Measure the nodes of SITE, and show how they differ from the site file; --write updates it.

    The command runs the checks of `runbook preflight`. A comment after each value gives the date,
    the job and the nodes. Values that could not be measured are listed with the reason. Exit code 1
    if a check found a defect.
    """
    from runbook.phases.p01_environment.doctor import learn_about
    from runbook.runs.run_folder import RUNS_VARIABLE

    if runs is not None:
        os.environ[RUNS_VARIABLE] = str(runs.absolute())

    def report(text: str) -> None:
        click.echo(f"learn: {text}", err=True)

    with released_by_signals():
        path, learned = learn_about(site, run_name or site, report, 60 * wait_minutes)
    old_text = path.read_text(encoding="utf-8")
    new_text = _with_lessons(old_text, learned)
    if as_json:
        click.echo(json.dumps(learned.as_dict(), indent=1))
    else:
        click.echo(_summary(path, old_text, new_text, learned))

    if is_written and learned.defect:
        click.echo(
            "Nothing was written: values from nodes with a defect do not describe the site.",
            err=True,
        )
    elif is_written and new_text != old_text:
        _write_checked(path, old_text, new_text, run_name or site)
        click.echo(f"{path}: written.", err=True)
    elif new_text != old_text:
        click.echo("Nothing was written. Use --write to write these values.", err=True)

    return 1 if learned.defect else 0


def _with_lessons(text: str, learned: "LearnedSite") -> str:
    """Return the site file as text, updated with each measured value that is new or differs."""
    from runbook.params.site_lines import set_value

    date = time.strftime("%Y-%m-%d")
    for lesson in learned.lessons:
        if lesson.is_new:
            comment = f"measured {date} by {learned.job}: {lesson.evidence}"
            text = set_value(text, lesson.path, lesson.value, comment)

    return text


def _write_checked(
    path: Path,
    old_text: str,
    new_text: str,
    run_name: str,
) -> None:
    """Write the site file.

    If a run cannot be read with it, restore the old file and raise the error.
    """
    from runbook import params
    from runbook.core.errors import ParamsError
    from runbook.core.files import write_text

    write_text(path, new_text)
    try:
        params.load(run_name)
    except ParamsError:
        write_text(path, old_text)
        raise


def _summary(
    path: Path,
    old_text: str,
    new_text: str,
    learned: "LearnedSite",
) -> str:
    """Return the result as readable text.

    The text lists the differences, the values that agree, and those still unknown.
    """
    lines = _difference(path, old_text, new_text)
    agreeing = [lesson.name for lesson in learned.lessons if not lesson.is_new]
    if agreeing:
        lines.append(f"Already in the file: {', '.join(agreeing)}.")
    lines.append("Not learned:")
    lines += [f"  {gap.name}: {gap.reason}" for gap in learned.gaps]
    if learned.defect:
        lines.append(f"First defect, after which nothing was measured: {learned.defect}")
    return "\n".join(lines)


def _difference(path: Path, old_text: str, new_text: str) -> list[str]:
    """Return a diff between the texts as lines, or a line to say that they are equal."""
    if old_text == new_text:
        return [f"{path}: the measured values agree with the file."]
    old_lines: Sequence[str] = old_text.splitlines()
    new_lines: Sequence[str] = new_text.splitlines()
    return list(
        difflib.unified_diff(
            old_lines,
            new_lines,
            str(path),
            f"{path} (measured)",
            "",
            "",
            1,
            "",
        )
    )
