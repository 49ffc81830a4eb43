"""`runbook adopt`: someone's sbatch or qsub script as a run file."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument(
    "scripts",
    metavar="OLD_SCRIPT...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The run file; else params/<script>.yaml.")
@click.option("--replace", is_flag=True, help="Write over a run file that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was found as one object.")
def adopt(scripts: tuple[Path, ...], out: Path | None, replace: bool, as_json: bool) -> int:
    """Read a job script, or a block of exports, and write a run file; nothing of it is run.

    Tells what could not be carried over, with its line, and which of the documents' 31 errors the script has. Further
    scripts (the ones that it starts) follow the first; those beside it are found by their names.
    """
    from runbook.phases.adopt import adopt as adopt_scripts

    report = adopt_scripts(scripts, out, replace=replace)
    click.echo(json.dumps(report.as_dict(), indent=1, ensure_ascii=False) if as_json else report.as_text())
    return 0
