"""`runbook init`: turn a folder into a project, with a site and a run file on request."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runbook.cli.messages import CliMessage

if TYPE_CHECKING:
    from runbook.tools.site_setup.draft_site import ClusterWish
    from runbook.tools.site_setup.published_trainings import Recipe


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--site",
    default="",
    metavar="NAME",
    help="Also write params/sites/NAME.yaml and params/NAME.yaml.",
)
@click.option(
    "--scheduler",
    type=click.Choice(["slurm", "pbs"]),
    help="Default: slurm or pbs, whichever is installed here.",
)
@click.option(
    "--device",
    default="",
    metavar="NAME",
    help="The GPUs, such as A100-40GB, or cpu (default: ask the scheduler).",
)
@click.option(
    "--devices-per-node",
    type=click.IntRange(1),
    metavar="N",
    help="GPUs per node (default: ask the scheduler).",
)
@click.option(
    "--cores-per-node",
    type=click.IntRange(1),
    metavar="N",
    help="CPU cores per node that a job may use (default: ask the scheduler).",
)
@click.option(
    "--model",
    default="",
    metavar="NAME",
    help="Also write a run file with the values from a published training run, each with its "
    "source: 125m to 175b, llama-3-8b, llama-3-70b.",
)
def init(
    folder: Path,
    site: str,
    model: str,
    **site_options: Any,
) -> None:
    """Turn DIR into a project: the seven notebooks, and params/ with every run, site and model.

    No file is replaced. With --site, the command also writes a site file for your cluster and a
    first run file, from what its scheduler reports (sinfo; qstat and pbsnodes). An unknown value is
    marked FILL_IN, and check refuses the file until you replace it.
    """
    from runbook.phases.notebook_copies import make_project
    from runbook.tools.site_setup.draft_site import ClusterWish, check_cluster_wish
    from runbook.tools.site_setup.published_trainings import find_recipe

    recipe = find_recipe(model) if model else None
    stated = {key: value for key, value in site_options.items() if value}
    cluster_wish = ClusterWish(site, **stated)
    if site:
        check_cluster_wish(cluster_wish)
    elif stated:
        raise click.UsageError(
            "--scheduler, --device, --devices-per-node and --cores-per-node describe a site: name "
            "it with --site."
        )

    written, existing = make_project(folder, clone=bool(site))
    existing_note = ""
    if existing:
        existing_note = CliMessage.PROJECT_KEPT.fill(number=len(existing))
    if written or existing:
        click.echo(
            CliMessage.PROJECT_WRITTEN.fill(
                folder=folder, number=len(written), existing=existing_note
            )
        )
    if recipe:
        _write_recipe(folder, recipe, site)
    if site:
        _write_site(folder, cluster_wish)
    elif not recipe:
        click.echo(CliMessage.NEXT_STEP.fill(change_folder=_change_folder(folder)))


def _change_folder(folder: Path) -> str:
    """Return the command that changes to a folder, or an empty string if it is the current one."""
    if folder.resolve() == Path.cwd():
        return ""
    return f"cd {shlex.quote(str(folder))}; "


def _write_recipe(folder: Path, recipe: "Recipe", site: str) -> None:
    from runbook.tools.site_setup.published_trainings import LOCAL_SITE, write_recipe

    path, is_written = write_recipe(folder, recipe, site or LOCAL_SITE)
    state = "written" if is_written else CliMessage.KEPT.fill()
    click.echo(f"{path}: {state}")
    click.echo(
        f"It trains on the shipped text at site {site or LOCAL_SITE}: set data.dataset, site and "
        f"jobs.training.nodes in it. Next: {_change_folder(folder)}runbook plan {path.stem} --search; "
        f"runbook check {path.stem}"
    )


def _write_site(folder: Path, cluster_wish: "ClusterWish") -> None:
    from runbook.tools.site_setup.draft_site import write_site

    site = cluster_wish.name
    draft = write_site(folder, cluster_wish)
    for path in (draft.site, draft.run):
        if path in draft.written:
            state = "written"
        else:
            state = CliMessage.KEPT.fill()

        click.echo(f"{path}: {state}")

    if draft.source:
        click.echo(CliMessage.DRAFTED_FROM.fill(source=draft.source))
    else:
        click.echo(CliMessage.NO_SCHEDULER_ANSWERED.fill())

    if draft.silence:
        click.echo(f"Not answered: {draft.silence}")
    fill = ""
    if draft.marked:
        fill = CliMessage.FILL_IN_VALUES.fill(marked=draft.marked, site=draft.site)
    click.echo(
        f"Next: {fill}{_change_folder(folder)}runbook check {site}; runbook render {site} --out scripts; "
        f"runbook run {site}"
    )
