"""`runbook drill`: break a small training run on purpose, or simulate a month of faults."""

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runbook.cli.options import FILE, SET
from runbook.cli.signals import released_by_signals

if TYPE_CHECKING:
    from runbook.params.settings import Settings
    from runbook.tools.drills.bench import DrillVerdict


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a list of objects with name, verdict, detail, fault and more.",
)
@click.option(
    "--list",
    "only_list",
    is_flag=True,
    help="List the drills and what each does; nothing is started.",
)
@click.option(
    "--campaign",
    "campaign_time",
    default="",
    metavar="TIME",
    help="Simulate faults over this time, such as 30d, for the run NAME; nothing is started.",
)
@click.option(
    "--queue",
    default="0",
    metavar="TIME",
    help="With --campaign: how long a new job waits in the queue.",
)
@click.option(
    "--person",
    default="8h",
    show_default=True,
    metavar="TIME",
    help="With --campaign: how long a person takes to act if the rules require one.",
)
@SET
@click.option("--log", type=FILE, help="Write the output from the training runs to this file.")
@click.option("--page", type=FILE, help="Write the results to this file as Markdown.")
@click.option(
    "--again",
    is_flag=True,
    help="Retry a failed drill once. The report shows both attempts; the second decides the exit "
    "code.",
)
def drill(
    names: tuple[str, ...],
    as_json: bool,
    only_list: bool,
    campaign_time: str,
    queue: str,
    person: str,
    set_words: tuple[str, ...],
    log: Path | None,
    page: Path | None,
    again: bool,
) -> int:
    """Break a small training run on this machine on purpose, and check that it ends as it should. Without NAME: all drills.

    NAME is a drill's name, its number, or words of its name. A drill works in a temporary folder on
    two to four processes without a GPU, needs the train extra, and leaves no process behind. Exit
    code 1 if a drill fails.

    With --campaign, NAME is a run. The command simulates faults at a published rate, with that
    run's watchdog limits, restart rules and save interval. It shows what spare nodes or other
    intervals would gain.
    """
    if campaign_time:
        settings = _campaign_settings(names, set_words)
        return _show_campaign(
            settings,
            campaign_time,
            queue,
            person,
            as_json=as_json,
        )

    from runbook.tools.drills import drill_list

    chosen = drill_list.chosen_drills(names)
    if only_list:
        _list_drills(chosen, as_json=as_json)
        return 0

    if page and not page.absolute().parent.is_dir():
        raise click.UsageError(
            f"--page: {page.absolute().parent} is not a folder; create it first."
        )
    verdicts = _do_drills(chosen, log, again=again, shows_lines=not as_json)
    if page:
        _write_page(verdicts, page)
    _print_verdicts(verdicts, as_json=as_json)
    # If a drill was repeated, only the second attempt counts.
    last_verdicts = {verdict.name: verdict.verdict for verdict in verdicts}
    return 0 if set(last_verdicts.values()) <= {"pass"} else 1


def _do_drills(
    chosen: Sequence[str],
    log: Path | None,
    *,
    again: bool,
    shows_lines: bool,
) -> list["DrillVerdict"]:
    """Run the drills, and return the verdicts for all attempts in drill order."""
    from runbook.tools.drills import drill_list, drill_report

    verdicts = []
    # Even after a signal, the drills end the processes that they started.
    with released_by_signals(), log.open("w") if log else tempfile.TemporaryFile("w") as stream:
        for verdict in drill_list.do_attempts(chosen, stream, again=again):
            verdicts.append(verdict)
            if shows_lines:
                click.echo(drill_report.verdict_line(verdict))

    # The sort is stable, so the second attempt at a drill follows the first.
    verdicts.sort(key=lambda verdict: chosen.index(verdict.name))
    return verdicts


def _write_page(verdicts: Sequence["DrillVerdict"], page: Path) -> None:
    """Write the results as Markdown, with the commit and the current date."""
    from runbook.records.code_version import commit_of
    from runbook.tools.drills import drill_report

    date = time.strftime("%Y-%m-%d", time.gmtime())
    commit = commit_of(Path(__file__).parent)
    page.write_text(drill_report.page_text(verdicts, date, commit))


def _print_verdicts(verdicts: Sequence["DrillVerdict"], *, as_json: bool) -> None:
    """Print all verdicts as JSON, or only the score."""
    from runbook.tools.drills import drill_list, drill_report

    if as_json:
        click.echo(json.dumps([verdict.as_dict() for verdict in verdicts], indent=1))
        return

    from runbook.tools.drills.messages import DrillMessage

    score = drill_report.score(verdicts)
    click.echo(DrillMessage.OF_ALL_DRILLS.fill(score=score, all=len(drill_list.DRILLS)))


def _list_drills(names: Sequence[str], *, as_json: bool) -> None:
    """Print the drills, each with the fault it causes."""
    from runbook.display import Table
    from runbook.tools.drills import drill_list

    rows = [{"name": name, "fault": drill_list.summary(name)} for name in names]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return

    click.echo(Table(rows).as_text())


def _campaign_settings(names: tuple[str, ...], set_words: tuple[str, ...]) -> "Settings":
    from runbook.params.run_loader import load

    if len(names) != 1:
        raise click.UsageError("--campaign takes the name of one run.")
    return load(names[0], set_words=set_words)


def _show_campaign(
    settings: "Settings",
    campaign_time: str,
    queue: str,
    person: str,
    *,
    as_json: bool,
) -> int:
    """Print a simulated campaign for a run."""
    from runbook.plan_file import json_records
    from runbook.plan_file.phase_names import FULL
    from runbook.runs.this_machine import make_plan_here
    from runbook.tools.drills.campaign import CampaignTerms, run_campaign

    terms = CampaignTerms(
        seconds=_seconds("--campaign", campaign_time),
        restarts=settings.job(FULL).restarts,
        spares=settings.job(FULL).spares,
        queue=_seconds("--queue", queue),
        person=_seconds("--person", person),
        writes_copies=settings.run.training.framework == "runbook",
    )
    campaign = run_campaign(make_plan_here(settings), terms)
    if as_json:
        click.echo(json.dumps(json_records.as_json(campaign), indent=1))
    else:
        click.echo(campaign.as_table().as_text())

    return 0


def _seconds(option: str, text: str) -> float:
    from runbook.core.units import parse_duration

    try:
        return float(parse_duration(text))
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from None
