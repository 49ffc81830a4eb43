"""`runbook rehearse`: dry-run one step at full size, or try the document's program on CPUs."""

from functools import partial
from pathlib import Path

import click

from runbook.cli.options import AT_LEAST_1, FOLDER, SET, training_phase_option
from runbook.cli.output import show
from runbook.cli.signals import ended_in_order


@click.command()
@click.argument("run_name", metavar="RUN")
@training_phase_option("The training phase to rehearse.")
@click.option(
    "--ranks",
    default="",
    metavar="0,8",
    help="Rehearse these ranks (default: the first in each pipeline stage).",
)
@click.option(
    "--upstream",
    "checkout",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    metavar="CHECKOUT",
    help="Instead, start the document's own program in this folder with the rendered rank.sh and a "
    "tiny model on CPUs.",
)
@click.option(
    "--installed",
    is_flag=True,
    help="With --upstream: use the packages installed here, not the site's versions.",
)
@click.option(
    "--jobs",
    type=AT_LEAST_1,
    default=1,
    show_default=True,
    help="With --upstream: start the program this many times, as a chain of jobs; each must "
    "continue from the checkpoint of the previous one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all counts as JSON.")
@click.option(
    "--pictures",
    type=FOLDER,
    help="Write drawings to this folder: memory during a step, and the schedule for all stages.",
)
@SET
@ended_in_order
def rehearse(
    run_name: str,
    phase: str,
    ranks: str,
    checkout: Path | None,
    installed: bool,
    jobs: int,
    as_json: bool,
    pictures: Path | None,
    set_words: tuple[str, ...],
) -> int:
    """Train one step of RUN at full size on fake tensors: memory, work, time and communication for each stage.

    The real trainer runs, rank by rank, as on the cluster; nothing is computed, sent or written.
    The command needs torch, but no GPU. Exit code 1 if a stage does not fit its device, or if the
    program of CHECKOUT fails.
    """
    say = partial(click.echo, err=True)
    if checkout:
        from runbook.tools.try_upstream.start_upstream import start_upstream

        trial = start_upstream(
            run_name,
            set_words,
            phase=phase,
            checkout=checkout,
            say=say,
            installed=installed,
            jobs=jobs,
        )
        show(trial.as_dict() if as_json else trial.as_text())
        return 0 if trial.works else 1

    from runbook.phases.rehearsal import rehearse_run
    from runbook.plan_file.json_records import as_json as json_of

    rehearsal = rehearse_run(
        run_name,
        set_words,
        phase=phase,
        ranks=_rank_numbers(ranks),
        say=say,
    )
    show(json_of(rehearsal) if as_json else rehearsal.as_text())
    if pictures:
        for path in rehearsal.save_figures(pictures):
            click.echo(path, err=True)

    return 0 if rehearsal.fits else 1


def _rank_numbers(text: str) -> list[int]:
    """Return the ranks that an option like `--ranks 0,8` gives, or no ranks without the option."""
    if not text:
        return []
    numbers = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in numbers):
        raise click.UsageError(
            f"--ranks {text!r}: give numbers with commas between them, for example 0,8"
        )

    return [int(word) for word in numbers]
