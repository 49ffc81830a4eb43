"""`runbook preflight`: find a cluster's faults before a job meets them."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from runbook.core.checks import Check
from runbook.runs.command_options import RUNS, SET

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def released_by_signals() -> Iterator[None]:
    """Let a signal that ends this process unwind the stack.

    Locks are then released, and the job is removed from the queue.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: checks with name, verdict, value, rule, remedy and where; each "
    "node's answers.",
)
@click.option(
    "--wait",
    "wait_minutes",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    metavar="MINUTES",
    help="Take the job out of the queue if it has not started after this time.",
)
@SET
@RUNS
def preflight(
    run_name: str,
    as_json: bool,
    wait_minutes: float,
    set_words: tuple[str, ...],
    runs: Path | None,
) -> int:
    """Find the first thing that is wrong with the cluster of RUN, and its cause, in a minute or two.

    Checks that need no job come first. Then one short job checks each node in plain Python, imports
    torch in a separate process, connects the nodes by TCP, and lets the ranks use each process
    group of the plan. It stops at the first defect; a missing answer is a defect. Exit code 1 if
    there is one.
    """
    from runbook.display import CheckTable
    from runbook.phases.p01_environment.doctor import preflight as find_defect
    from runbook.runs.run_folder import RUNS_VARIABLE

    if runs is not None:
        os.environ[RUNS_VARIABLE] = str(runs.absolute())

    def report(text: str) -> None:
        click.echo(f"preflight: {text}", err=True)

    with released_by_signals():
        result = find_defect(run_name, set_words, report, 60 * wait_minutes)
    if as_json:
        click.echo(json.dumps(result.as_dict(), indent=1))
    else:
        click.echo(CheckTable(result.checks).as_text())
        click.echo(_summary(result.defect, result.not_asked))

    return 1 if result.defect else 0


def _summary(defect: Check | None, not_asked: Sequence[str]) -> str:
    """Return the last lines of the output.

    They show the first defect and its remedy, or that there was none.
    """
    if defect is None:
        return "No defect was found."
    not_asked_note = ""
    if not_asked:
        not_asked_note = f" Not asked after it: {', '.join(not_asked)}."
    return f"First defect: {defect.as_text()}{not_asked_note}"


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option(
    "--forgive",
    "forgiven",
    multiple=True,
    metavar="NODE",
    help="Use this node again; may be repeated; `all` for every node.",
)
@click.option(
    "--add", "added", multiple=True, metavar="NODE", help="Leave this node out; needs --because."
)
@click.option("--because", default="", metavar="TEXT", help="Why the node is added.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
@RUNS
def nodes(
    run_name: str,
    forgiven: tuple[str, ...],
    added: tuple[str, ...],
    because: str,
    as_json: bool,
    runs: Path | None,
) -> None:
    """Show the bad nodes of RUN's site, with the evidence; the next job leaves them out.

    A node is added by a failed preflight, a job failure that another node would not have, a slow
    rank, or a rank that computed wrong numbers (training.replay_interval). Each entry expires.
    Slurm jobs get --exclude. PBS cannot exclude nodes, so they are named before the job is
    submitted.
    """
    from runbook import params
    from runbook.display import Table
    from runbook.runs import bad_nodes
    from runbook.runs.run_folder import RUNS_VARIABLE

    if bool(added) != bool(because):
        raise click.UsageError("--add NODE and --because TEXT belong together.")
    if runs is not None:
        os.environ[RUNS_VARIABLE] = str(runs.absolute())
    settings = params.load(run_name)
    path = bad_nodes.bad_nodes_file(settings)
    if forgiven:
        names = () if "all" in forgiven else forgiven
        done = bad_nodes.forgive_nodes(path, names)
        click.echo(f"Forgiven: {', '.join(done) or 'none of these was known as bad'}.", err=True)

    bad_nodes.report_bad_nodes(
        settings,
        added,
        bad_nodes.FoundBy.PERSON,
        because,
        "",
    )
    rows = bad_nodes.bad_node_rows(bad_nodes.read_bad_nodes(path, time.time()))
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    elif rows:
        click.echo(Table(rows, title=f"Bad nodes of {settings.site.site}").as_text())
    else:
        click.echo(f"No node of {settings.site.site} is known as bad.")
