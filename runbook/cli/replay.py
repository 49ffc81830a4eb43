"""`runbook replay RUN --step N`: trains one step again and compares it with the recorded step."""

import dataclasses
import json
import shlex
from pathlib import Path

import click

from runbook.cli.options import AS_JSON, AT_LEAST_1, on_run_folder, training_phase_option
from runbook.cli.signals import ended_in_order


@click.command()
@click.option("--step", type=AT_LEAST_1, required=True, help="The step to train again.")
@click.option("--again", is_flag=True, help="Replay a step again even if it was replayed before.")
@click.option(
    "--prepare",
    "only_prepares",
    is_flag=True,
    help="Write the folder and show each rank's command, for your own job.",
)
@training_phase_option("Training phase: 04-training or 03-smoke-test.")
@AS_JSON
@on_run_folder
@ended_in_order
def replay(
    folder: Path,
    step: int,
    again: bool,
    only_prepares: bool,
    phase: str,
    as_json: bool,
) -> None:
    """Train step N of RUN again from the nearest checkpoint, and name the first step, rank and layer that differ.

    The report says whether the data, the program or the hardware explains a difference. RUN is not
    changed. Exit code 1 if something differs. Runs record what to compare if
    training.replay_interval is set (docs/replay.md).
    """
    from runbook.tools.replay import again as replays
    from runbook.tools.replay.verdict import Verdict

    job = replays.replay_job(folder, phase, step)
    if again or not job.is_done:
        replays.prepare(job)
        if only_prepares:
            rank = shlex.join(job.command(1, launcher=False))
            click.echo(
                f"Start {job.phase.parallel.world_size} ranks as the run's job does, each with:\n\n"
                f"  {rank}\n\nThen the same command without --prepare compares."
            )
            return

        replays.train_again(job, lambda line: click.echo(line, err=True))

    comparison = replays.compare_with_run(job)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(comparison), indent=1, default=list))
    else:
        click.echo(comparison.as_text())

    if comparison.verdict is not Verdict.SAME:
        raise click.exceptions.Exit(1)
