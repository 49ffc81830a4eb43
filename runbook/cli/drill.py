"""`runbook drill`: the command line of the package `runbook_drills`, which breaks a small training on purpose."""

import json
import signal
import sys
import tempfile
import time
from pathlib import Path

import click

from runbook.cli.options import FILE


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a list of objects with name, verdict, detail, fault and more."
)
@click.option("--list", "only_list", is_flag=True, help="Name the drills and what each does; nothing is started.")
@click.option("--log", type=FILE, help="Keep here what the trainings say.")
@click.option("--page", type=FILE, help="Write the results there as a page of Markdown.")
@click.option(
    "--again",
    is_flag=True,
    help="Retry a failed drill once. The report shows both attempts; the second decides the exit code.",
)
def drill(
    names: tuple[str, ...], as_json: bool, only_list: bool, log: Path | None, page: Path | None, again: bool
) -> int:
    """Break a small training on this machine on purpose, and see that it ends as it should; no NAME: all twenty.

    NAME is a drill's name, its number or its words. It works in a temporary folder on two to four processes without a
    GPU, needs the train extra, and leaves no process behind. Exit code 1 if a drill fails.
    """
    from runbook.records.twin import commit_of
    from runbook_drills import report, table

    meant = table.chosen_drills(names)
    if only_list:
        rows = [{"name": name, "fault": table.summary(name)} for name in meant]
        click.echo(json.dumps(rows, indent=1) if as_json else "\n".join(f"{r['name']:24} {r['fault']}" for r in rows))
        return 0
    if page and not page.absolute().parent.is_dir():
        raise click.UsageError(f"--page: {page.absolute().parent} is no folder; make it first.")
    verdicts = []
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended
    with log.open("w") if log else tempfile.TemporaryFile("w") as stream:
        for verdict in table.do_attempts(meant, stream, again=again):
            verdicts.append(verdict)
            if not as_json:
                click.echo(report.verdict_line(verdict))
    verdicts.sort(key=lambda verdict: meant.index(verdict.name))  # a second attempt follows the first
    if page:
        date = time.strftime("%Y-%m-%d", time.gmtime())
        page.write_text(report.page_text(verdicts, date, commit_of(Path(__file__).parent)))
    if as_json:
        click.echo(json.dumps([verdict.as_dict() for verdict in verdicts], indent=1))
    else:
        click.echo(f"{report.score(verdicts)} (of {len(table.DRILLS)} drills that there are)")
    last = {verdict.name: verdict.verdict for verdict in verdicts}
    return 0 if set(last.values()) <= {"pass"} else 1
