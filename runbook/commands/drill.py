"""`runbook drill`: break a small training on purpose, in twenty ways, and judge how it ends."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from runbook.drills.verdict import Verdict


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a list of objects with name, verdict, detail, fault and more."
)
@click.option("--list", "only_list", is_flag=True, help="Name the drills and what each does; nothing is started.")
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), help="Keep here what the trainings say.")
@click.option(
    "--page", type=click.Path(dir_okay=False, path_type=Path), help="Write the results there as a page of Markdown."
)
@click.option("--again", is_flag=True, help="Do a drill that failed once more and count that; both are told.")
def drill(
    names: tuple[str, ...], as_json: bool, only_list: bool, log: Path | None, page: Path | None, again: bool
) -> int:
    """Break a small training on this machine on purpose, and see that it ends as it should; no NAME: all twenty.

    NAME is a drill's name, its number or its words. It works in a temporary folder on two to four processes without a
    GPU, needs the train extra, and leaves no process behind. Exit code 1 if a drill fails.
    """
    from runbook.drills.table import DRILLS, chosen, do, summary

    meant = chosen(names)
    if only_list:
        rows = [{"name": name, "fault": summary(name)} for name in meant]
        click.echo(json.dumps(rows, indent=1) if as_json else "\n".join(f"{r['name']:24} {r['fault']}" for r in rows))
        return 0
    if page and not page.absolute().parent.is_dir():
        raise click.UsageError(f"--page: {page.absolute().parent} is no folder; make it first.")
    verdicts: list[Verdict] = []
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended
    with log.open("w") if log else tempfile.TemporaryFile("w") as stream:
        for verdict in do(meant, stream):
            verdicts.append(verdict)
            tell(verdict, as_json)
        failed = {one.name: one.detail for one in verdicts if one.verdict != "pass"} if again else {}
        for second in do(list(failed), stream) if failed else ():
            both = replace(second, detail=f"at the second try (the first: {failed[second.name]}): {second.detail}")
            verdicts[[one.name for one in verdicts].index(second.name)] = both
            tell(both, as_json)
    if page:
        write_page(page, verdicts)
    if as_json:
        click.echo(json.dumps([verdict.as_dict() for verdict in verdicts], indent=1))
    else:
        passed = sum(verdict.verdict == "pass" for verdict in verdicts)
        click.echo(f"{passed} of {len(verdicts)} drills ended as they should (of {len(DRILLS)} that there are)")
    return 0 if all(verdict.verdict == "pass" for verdict in verdicts) else 1


def tell(verdict: Verdict, as_json: bool) -> None:
    """A line for people as soon as a drill has ended."""
    if not as_json:
        click.echo(f"{verdict.name:24} {verdict.verdict}  {verdict.seconds:6.1f} s  {verdict.detail}")


def write_page(path: Path, verdicts: list[Verdict]) -> None:
    """The results as a page."""
    from runbook.drills.document import page
    from runbook.records.origin import commit_of

    path.write_text(page(verdicts, time.strftime("%Y-%m-%d", time.gmtime()), commit_of(Path(__file__).parent)))
