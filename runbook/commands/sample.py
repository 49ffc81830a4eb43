"""`runbook sample`, `export`, `import`: text from a checkpoint; weights to Hugging Face's GPT-2 and from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from runbook.phases import weights
from runbook.phases.status import run_folder

_RUNS = click.option(
    "--runs", type=click.Path(file_okay=False, path_type=Path), help="Where run folders lie (default: runs/)."
)
_PHASE = click.option(
    "--phase", default=weights.TRAINED, show_default=True, metavar="PHASE", help="Whose checkpoint: 3 or 4."
)
_ITERATION = click.option("--iteration", type=click.IntRange(1), help="Of which step (default: the newest whole one).")


@click.command()
@click.argument("run")
@click.option("--prompt", default="", help="Text to continue (default: the run's own sample_prompt).")
@click.option("--tokens", type=click.IntRange(1, 10_000), default=40, show_default=True, help="How much of it.")
@click.option(
    "--temperature", type=click.FloatRange(0.0, 10.0), default=0.7, show_default=True, help="0: the likeliest."
)
@click.option("--seed", type=click.IntRange(0), default=1234, show_default=True, help="The same seed, the same text.")
@click.option("--json", "as_json", is_flag=True, help="Ids and text as one JSON object.")
@_ITERATION
@_PHASE
@_RUNS
def sample(run: str, phase: str, runs: Path | None, as_json: bool, iteration: int | None, **wish: Any) -> None:
    """Let the model of RUN continue a text, from its newest whole checkpoint, in this process's own machine."""
    folder = run_folder(run, runs)
    found = weights.sample(folder, weights.Wish(**wish, iteration=iteration or 0), _named(phase))
    if as_json:
        click.echo(json.dumps({**vars(found), "ids": list(found.ids)}, ensure_ascii=False))
        return
    click.echo(f"{found.prompt}{found.continuation}")
    click.echo(f"({len(found.ids)} tokens by {folder.name} after iteration {found.iteration})", err=True)


@click.command()
@click.argument("run")
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder to write into.")
@_ITERATION
@_PHASE
@_RUNS
def export(run: str, out: Path, phase: str, runs: Path | None, iteration: int | None) -> None:
    """Write the weights of RUN as Hugging Face's GPT-2: config.json and model.safetensors, in float32."""
    answer = weights.export(run_folder(run, runs), out, _named(phase), iteration or 0)
    size = (out / "model.safetensors").stat().st_size
    click.echo(f"{out}: config.json, model.safetensors ({size:,} bytes) of iteration {answer['iteration']}")


@click.command(name="import")
@click.argument("run")
@click.option(
    "--from",
    "source",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with config.json and .safetensors files.",
)
@_PHASE
@_RUNS
def import_(run: str, source: Path, phase: str, runs: Path | None) -> None:
    """Let RUN begin with the weights of a Hugging Face GPT-2 folder (.safetensors); only before its first step."""
    answer = weights.import_(run_folder(run, runs), source, _named(phase))
    click.echo(f"{answer['folder']}: the training of {run} begins from it")


def _named(phase: str) -> str:
    from runbook.params.schema import phase_name

    try:
        return phase_name(phase)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
