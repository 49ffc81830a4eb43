"""`runbook publish`: publishes runs as a static website."""

from pathlib import Path

import click

from runbook.cli.options import FOLDER, RUNS


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
    from runbook.tools.publish.published_site import copy_whole_run
    from runbook.tools.publish.published_site import publish as write_site
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
