"""`runbook nodes`: list bad nodes on a site, or make a node available again."""

import json
import os
import time
from pathlib import Path

import click

from runbook.cli.messages import CliMessage
from runbook.cli.options import RUNS
from runbook.plan_file.bad_node_lifetimes import FoundBy


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
@click.option("--because", default="", metavar="TEXT", help="Why the node is left out.")
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
    """Show the bad nodes of RUN's site, which the next job excludes, with the evidence.

    A node is added after a failed preflight, a job failure caused by the node, a slow rank, or a
    rank that computed wrong numbers (training.replay_interval). Each entry expires. Slurm jobs get
    --exclude. PBS cannot exclude nodes, so they are named before the job is submitted.
    """
    from runbook import params
    from runbook.display import Table
    from runbook.runs import bad_nodes
    from runbook.runs.run_folder import RUNS_VARIABLE
    from runbook.runs.run_names import named_run

    if bool(added) != bool(because):
        raise click.UsageError("--add NODE and --because TEXT must be given together.")
    if runs is not None:
        os.environ[RUNS_VARIABLE] = str(runs.absolute())
    named = named_run(run_name)
    settings = params.load(named.run, set_words=named.set_words)
    if added and settings.site.scheduler == "local":
        raise click.UsageError(CliMessage.ONE_NODE_ALONE.fill(site=settings.site.site))
    path = bad_nodes.bad_nodes_file(settings)
    if forgiven:
        names = () if "all" in forgiven else forgiven
        done = bad_nodes.forgive_nodes(path, names)
        click.echo(
            (f"Forgiven: {', '.join(done) or 'none of these nodes was marked as bad'}."), err=True
        )

    bad_nodes.report_bad_nodes(
        settings,
        added,
        FoundBy.PERSON,
        because,
        "",
    )
    rows = bad_nodes.bad_node_rows(bad_nodes.read_bad_nodes(path, time.time()))
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    elif rows:
        click.echo(Table(rows, title=f"Bad nodes of {settings.site.site}").as_text())
    else:
        click.echo(CliMessage.NO_BAD_NODE.fill(site=settings.site.site))
