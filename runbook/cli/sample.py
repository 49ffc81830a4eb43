"""`runbook sample`: let a trained model continue a text."""

import json
from pathlib import Path
from typing import Any, TextIO

import click

from runbook.cli.messages import CliMessage
from runbook.cli.options import ITERATION, TRAINING_PHASE, NumberRange, on_run_folder
from runbook.cli.signals import ended_in_order
from runbook.plan_file import offline_defaults


@click.command()
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    help="Text to continue; may be repeated (default: the run's own).",
)
@click.option(
    "--prompts",
    "file",
    type=click.File(encoding="utf-8"),
    help="File with a prompt on each line; - reads standard input.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1, offline_defaults.MOST_TOKENS),
    default=offline_defaults.TOKENS,
    show_default=True,
    help="Number of tokens to write.",
)
@click.option(
    "--temperature",
    type=NumberRange(0.0, offline_defaults.HIGHEST_TEMPERATURE),
    default=offline_defaults.TEMPERATURE,
    show_default=True,
    help="0: always the most likely token.",
)
@click.option(
    "--top-p",
    type=NumberRange(0.0, 1.0),
    default=0.0,
    help="Draw from the likeliest tokens that together have this probability (default: from the "
    f"{offline_defaults.LIKELIEST_TOKENS} likeliest).",
)
@click.option(
    "--cache/--no-cache",
    default=True,
    help="Cache keys and values, or compute the whole text again for each token.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=offline_defaults.SEED,
    show_default=True,
    help="Seed; the same seed gives the same text.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object with ids and text for each prompt."
)
@ITERATION
@TRAINING_PHASE
@on_run_folder
@ended_in_order
def sample(
    folder: Path,
    phase: str,
    prompts: tuple[str, ...],
    file: TextIO | None,
    as_json: bool,
    iteration: int | None,
    **sampling_options: Any,
) -> None:
    """Let the model of RUN continue texts, with its newest complete checkpoint, on this machine."""
    from runbook.phases import trained_model

    texts = list(prompts)
    if not all(texts):
        raise click.BadParameter(CliMessage.EMPTY_PROMPT.fill(), param_hint="--prompt")

    if file:
        texts += _prompt_lines(file)
        if not texts:
            raise click.BadParameter("it has no line with a prompt", param_hint="--prompts")

    texts = texts or [""]
    samples = trained_model.sample_texts(
        folder,
        texts,
        phase,
        iteration=iteration or 0,
        **sampling_options,
    )
    for written in samples:
        if as_json:
            row = {**vars(written), "ids": list(written.ids)}
            click.echo(json.dumps(row, ensure_ascii=False))
            continue

        click.echo(f"{written.prompt}{written.continuation}")
        length = f"{len(written.ids)} tokens"
        click.echo(f"({length} from {folder.name}, iteration {written.iteration})", err=True)


def _prompt_lines(file: TextIO) -> list[str]:
    """Return the lines in a file that contain a prompt."""
    try:
        lines = file.read().splitlines()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"it is not UTF-8: {error}", param_hint="--prompts") from None

    return [line for line in lines if line.strip()]
