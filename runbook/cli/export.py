"""`runbook export`: write the weights from a run as a Hugging Face folder."""

from pathlib import Path

import click

from runbook.cli.options import FOLDER, ITERATION, TRAINING_PHASE, NumberRange, on_run_folder
from runbook.cli.signals import ended_in_order
from runbook.plan_file import offline_defaults


@click.command()
@click.option("--out", required=True, type=FOLDER, help="Folder to write; it must be new or empty.")
@click.option(
    "--shard-gb",
    type=NumberRange(0.001, 1e6),
    default=offline_defaults.SHARD_BYTES / 1e9,
    show_default=True,
    help="Largest size for a weights file, in GB.",
)
@ITERATION
@TRAINING_PHASE
@on_run_folder
@ended_in_order
def export(
    folder: Path,
    out: Path,
    shard_gb: float,
    phase: str,
    iteration: int | None,
) -> None:
    """Write the weights from RUN as a Hugging Face folder: config, safetensors in float32, tokenizer, model card.

    A GPT-2 model becomes GPT2LMHeadModel, a model with RoPE, RMSNorm and SwiGLU LlamaForCausalLM;
    docs/weights.md lists the others. Checkpoints of any layout and both engines are read, one
    weight in memory at a time.
    """
    from runbook.phases import trained_model

    shard_bytes = int(shard_gb * 1e9)
    exported = trained_model.export_weights(
        folder,
        out,
        phase,
        iteration or 0,
        shard_bytes=shard_bytes,
    )
    files = f"{exported.files} file" + "s" * (exported.files > 1)
    size = f"{exported.bytes:,} bytes in {files}"
    click.echo(f"{out}: {exported.architecture}, {size}, of iteration {exported.iteration}")
    click.echo("Fill in the licence in its README.md before you pass it on.")
