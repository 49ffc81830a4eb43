"""`runbook explain`: why a training run is slower than expected."""

import json
from pathlib import Path

import click

from runbook.cli.options import EXISTING_FILE, SET


@click.command()
@click.argument("log", metavar="LOG", type=EXISTING_FILE)
@click.argument("run", metavar="[RUN]", default="")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: expected, reached, gap, parts, first_causes ...",
)
@SET
def explain(
    log: Path,
    run: str,
    as_json: bool,
    set_words: tuple[str, ...],
) -> int:
    """Explain why a training run is slower than expected: the gap in parts, each with evidence and remedy.

    LOG is a training log or part of one, a command line, a YAML file, or a question in words. Facts
    that LOG does not state are taken from RUN or --set: accelerator=H100 n_accel=16
    parallel.tensor=8 reached.tflops=130 expected.tflops=420 (or .mfu, .tokens_per_second per
    device, .seconds per step). The exit code is 1 if nothing can be explained.
    """
    from runbook import params
    from runbook.tools.speed.gap import explain_log

    explanation = explain_log(log, params.load(run) if run else None, set_words)
    if as_json:
        click.echo(json.dumps(explanation.as_dict(), indent=1))
    else:
        click.echo(explanation.as_table().as_text())

    return 0 if explanation.parts else 1
