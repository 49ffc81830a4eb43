"""`runbook import`: start a run from weights that another program trained."""

from pathlib import Path

import click

from runbook.cli.messages import CliMessage
from runbook.cli.options import TRAINING_PHASE, on_run_folder
from runbook.cli.signals import ended_in_order


@click.command(name="import")
@click.option(
    "--from",
    "source",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with config.json and .safetensors files, or a Megatron-LM checkpoint.",
)
@TRAINING_PHASE
@on_run_folder
@ended_in_order
def import_(folder: Path, source: Path, phase: str) -> None:
    """Start RUN from another program's weights, before its first step.

    From Hugging Face (only .safetensors), the command reads gpt2, llama, mistral and qwen2 without
    a sliding window, arcee, starcoder2 and stablelm; from Megatron-LM, torch_dist folders and
    mp_rank_XX files in any layout, without running code from them. The model's values, the
    vocabulary and the tokenizer must match the run's; each difference is named. A Megatron-LM
    checkpoint has no tokenizer: make sure that it was trained with the run's.
    """
    from runbook.phases import trained_model

    began = trained_model.import_weights(folder, source, phase)
    click.echo(CliMessage.BEGINS_FROM.fill(weights=began, run=folder.name))
    if not (source / "config.json").is_file():
        click.echo(CliMessage.NO_TOKENIZER.fill())
