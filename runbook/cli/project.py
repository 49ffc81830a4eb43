"""`runbook init`, `adopt`, `lab`: a project, run files from job scripts, notebooks to step through."""

import json
import os
from pathlib import Path
from typing import Any

import click

from runbook.cli.options import EXISTING_FILE, FILE, RUNS


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--site", default="", metavar="NAME", help="Also write params/sites/NAME.yaml and params/NAME.yaml.")
@click.option("--scheduler", type=click.Choice(["slurm", "pbs"]), help="Default: slurm or pbs, whichever is here.")
@click.option("--device", default="", metavar="NAME", help="The GPUs, such as A100-40GB; default: ask the scheduler.")
@click.option("--devices-per-node", type=click.IntRange(1), metavar="N", help="GPUs of a node; default: ask.")
@click.option("--cores-per-node", type=click.IntRange(1), metavar="N", help="CPUs a job may use; default: ask.")
def init(folder: Path, site: str, **wish: Any) -> None:
    """Make DIR a project: the seven notebooks, and params/ with every run, site and model. No file is replaced.

    With --site: a site file for your cluster and a first run file, from what its scheduler says (sinfo; qstat and
    pbsnodes). What nobody knows is marked FILL_IN, and check refuses it until you have said it.
    """
    from runbook.workflow.prerequisites.notebook_copies import make_project
    from runbook.workflow.prerequisites.own_cluster import ClusterWish, check_cluster_wish, write_site

    given = ClusterWish(site, **{key: value for key, value in wish.items() if value})
    if site:
        check_cluster_wish(given)
    elif given != ClusterWish(""):
        raise click.UsageError(
            "--scheduler, --device, --devices-per-node and --cores-per-node are a site's: name it by --site."
        )
    written, kept = make_project(folder, clone=bool(site))
    there = f"; {len(kept)} were there and are kept as they are" if kept else ""
    click.echo(f"{folder}: {len(written)} files written{there}.")
    if not site:
        click.echo(f"Next: cd {folder}; runbook run local; or open notebooks/00-plan.ipynb in JupyterLab.")
        return
    own = write_site(folder, given)
    for path in (own.site, own.run):
        click.echo(f"{path}: " + ("written" if path in own.written else "was there and is kept as it is"))
    click.echo(f"The scheduler here answered: {own.source or 'none'}.")
    fill = f"say the {own.marked} values marked FILL_IN in {own.site}; " if own.marked else ""
    click.echo(
        f"Next: {fill}cd {folder}; runbook check {site}; runbook render {site} --out scripts; runbook run {site}"
    )


@click.command()
@click.argument("scripts", metavar="OLD_SCRIPT...", nargs=-1, required=True, type=EXISTING_FILE)
@click.option("--out", type=FILE, help="The run file; else params/<script>.yaml.")
@click.option("--replace", is_flag=True, help="Write over a run file that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was found as one object.")
def adopt(scripts: tuple[Path, ...], out: Path | None, replace: bool, as_json: bool) -> None:
    """Turn a job script, or a block of exports, into a run file, by running it in a sandbox with stub programs.

    The sandbox has no network, no devices and none of your files except copies of the small text files next to the
    script. Reports, by line, what could not be carried over and which of the documents' known errors the script has. If
    the script starts others that are elsewhere, list them after it.
    """
    from runbook.workflow.prerequisites.adopt import adopt as adopt_scripts

    report = adopt_scripts(scripts, out, replace=replace)
    click.echo(json.dumps(report.as_dict(), indent=1, ensure_ascii=False) if as_json else report.as_text())


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("run_name", metavar="RUN")
@click.argument("words", metavar="[-- WORDS OF JUPYTERLAB]", nargs=-1, type=click.UNPROCESSED)
@click.option("--no-browser", is_flag=True, help="Only print the URL.")
@click.option("--copy-only", is_flag=True, help="Copy the notebooks; start nothing.")
@click.option("--fresh", is_flag=True, help="Copy the masters again; copies that are there move to lab/before-TIME.")
@RUNS
def lab(
    run_name: str, words: tuple[str, ...], no_browser: bool, copy_only: bool, fresh: bool, runs: Path | None
) -> None:
    """Open the notebooks of RUN in JupyterLab: copies in the run's folder, with RUN in their parameters cell.

    What you change there changes no other run and nothing in git; the records are those of the masters. Called again,
    it opens the same copies. Further words go to JupyterLab: runbook lab RUN -- --port 8899 --ip 0.0.0.0
    """
    from runbook.workflow.open_phase import RUNS_VARIABLE
    from runbook.workflow.prerequisites.notebook_copies import copies_text, make_copies, server_arguments

    if runs is not None:
        os.environ[RUNS_VARIABLE] = str(runs.absolute())
    copies = make_copies(run_name, fresh=fresh)
    click.echo(copies_text(copies))
    if copy_only:
        return
    from jupyterlab.labapp import LabApp

    own = ["--Application.log_level=ERROR", *(["--no-browser"] if no_browser else [])]
    click.echo("JupyterLab starts; Ctrl-C ends it. Jobs that were launched go on without it.")
    LabApp.launch_instance([*server_arguments(copies), *own, *words])
