"""`runbook init`: a project folder of one's own."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def init(folder: Path) -> int:
    """Make DIR a project: the six notebooks, and params/ with every run, site and model. No file is replaced."""
    from runbook.phases.project_folder import make_project

    made = make_project(folder)
    kept = f"; {len(made.kept)} were there and are kept as they are" if made.kept else ""
    click.echo(f"{made.folder}: {len(made.written)} files written{kept}.")
    click.echo(f"Next: cd {made.folder}; runbook run local; or open notebooks/00-plan.ipynb in JupyterLab.")
    return 0
