"""`runbook run`, `status`, `cancel`, `sample`, `export`, `import`.

These commands work on a run's folder and its weights.
"""

import json
import os
from pathlib import Path
from typing import Any, TextIO

import click

from runbook.runs.command_options import (
    AS_JSON,
    FOLDER,
    RUNS,
    SET,
    NumberRange,
    on_run_folder,
    phase_option,
)


@click.command()
@click.argument("run_name", metavar="RUN")
@SET
@phase_option("First phase.", "--from", "from_phase", default="00-plan")
@phase_option("Last phase.", "--to", "to_phase", default="06-evaluation")
@phase_option(
    "Repeat this phase, and what depends on it; old results are kept.", "--redo", default=""
)
@click.option(
    "--as",
    "name",
    default="",
    metavar="NAME",
    help="Use a separate run folder, RUN--NAME, for these overrides.",
)
@click.option(
    "--all-variants",
    is_flag=True,
    help="Run every variant of params/variants/RUN.yaml, one after the other.",
)
@RUNS
@click.option(
    "--verbose", is_flag=True, help="Print all output of the notebooks, not only progress."
)
def run(
    run_name: str,
    all_variants: bool,
    runs: Path | None,
    **options: Any,
) -> int:
    """Execute the phases of RUN as notebooks, each recorded. Finished phases are verified, not repeated.

    Exit codes: 0 done, 1 failed, 2 wrong parameters or usage; if a notebook failed, papermill's own
    (138 kernel died, 143 terminated).
    """
    from runbook.phases.report import card
    from runbook.phases.runner import RunRequest, expand_variants, run_phases
    from runbook.runs.run_folder import RUNS_VARIABLE
    from runbook.runs.run_names import named_run

    if runs is not None:
        os.environ[RUNS_VARIABLE] = str(runs.absolute())
    worst = 0
    named = named_run(run_name, options.pop("name"))
    for name in expand_variants(named.run, all_variants):
        request = RunRequest(name, name=named.as_name, **options)
        outcome, folder = run_phases(request, click.echo)
        worst = worst or outcome.exit_code
        click.echo(card(folder, request.phases()))

    if all_variants:
        from runbook.phases.p05_analysis.phase import variants_of, variants_text

        click.echo(variants_text(variants_of(run_name), folder.parent, run_name))

    return worst


@click.command()
@click.argument("run_name", metavar="[RUN]", default="")
@click.option(
    "--find", "job_id", default="", metavar="JOBID", help="Find the run that submitted this job."
)
@AS_JSON
@RUNS
def status(
    run_name: str,
    job_id: str,
    as_json: bool,
    runs: Path | None,
) -> None:
    """Show every run, or the phases and jobs of one, read from the run folders."""
    from runbook.runs.status import (
        facts_of_all,
        facts_of_one,
        find_job,
        status_of_all,
        status_of_one,
    )

    if job_id:
        click.echo(find_job(job_id, runs))
    elif as_json:
        if run_name:
            facts = facts_of_one(run_name, runs)
        else:
            facts = {"runs": facts_of_all(runs)}

        click.echo(json.dumps(facts, indent=1))
    else:
        click.echo(status_of_one(run_name, runs) if run_name else status_of_all(runs))


@click.command()
@click.option(
    "--gently",
    is_flag=True,
    help="Let the jobs save and stop (exit code 75) instead of ending them at once.",
)
@on_run_folder
def cancel(folder: Path, gently: bool) -> None:
    """End the running jobs of RUN with all their processes. Nothing is deleted; `runbook run` continues from there."""
    from runbook.runs.status import cancel_jobs, scheduler_of, stop_jobs

    scheduler = scheduler_of(folder)
    if gently:
        click.echo(stop_jobs(folder, scheduler))
    else:
        click.echo(cancel_jobs(folder, scheduler))


_PHASE = phase_option("The training whose checkpoint is used: 3 or 4.")
_ITERATION = click.option(
    "--iteration", type=click.IntRange(1), help="Checkpoint of this step (default: the newest)."
)


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
    type=click.IntRange(1, 10_000),
    default=40,
    show_default=True,
    help="Number of tokens to write.",
)
@click.option(
    "--temperature",
    type=NumberRange(0.0, 10.0),
    default=0.7,
    show_default=True,
    help="0: always the likeliest token.",
)
@click.option(
    "--top-p",
    type=NumberRange(0.0, 1.0),
    default=0.0,
    help="Draw from the likeliest tokens with this share of the probability (default: from the 40 "
    "likeliest).",
)
@click.option(
    "--cache/--no-cache",
    default=True,
    help="Cache keys and values, or compute the whole text again for each token.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=1234,
    show_default=True,
    help="Seed; the same seed gives the same text.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object with ids and text for each prompt."
)
@_ITERATION
@_PHASE
@on_run_folder
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
        click.echo(f"({length} by {folder.name} after iteration {written.iteration})", err=True)


def _prompt_lines(file: TextIO) -> list[str]:
    """Return the lines of a file that have a prompt."""
    try:
        lines = file.read().splitlines()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"it is not UTF-8: {error}", param_hint="--prompts") from None

    return [line for line in lines if line.strip()]


@click.command()
@click.option("--out", required=True, type=FOLDER, help="Folder to write; it must be new or empty.")
@click.option(
    "--shard-gb",
    type=NumberRange(0.001, 1e6),
    default=5.0,
    show_default=True,
    help="Largest size of one weights file, in GB.",
)
@_ITERATION
@_PHASE
@on_run_folder
def export(
    folder: Path,
    out: Path,
    shard_gb: float,
    phase: str,
    iteration: int | None,
) -> None:
    """Write the weights of RUN as a Hugging Face folder: config, safetensors in float32, tokenizer, model card.

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
        shard_bytes,
    )
    files = f"{exported.files} file" + "s" * (exported.files > 1)
    size = f"{exported.bytes:,} bytes in {files}"
    click.echo(f"{out}: {exported.architecture}, {size}, of iteration {exported.iteration}")
    click.echo("Fill in the licence in its README.md before you pass it on.")


@click.command(name="import")
@click.option(
    "--from",
    "source",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with config.json and .safetensors files, or of a Megatron-LM checkpoint.",
)
@_PHASE
@on_run_folder
def import_(folder: Path, source: Path, phase: str) -> None:
    """Start RUN from the weights of another program, before its first step.

    From Hugging Face (only .safetensors) it reads gpt2, llama, mistral and qwen2 without a sliding
    window, arcee, starcoder2 and stablelm; from Megatron-LM, torch_dist folders and mp_rank_XX
    files of any layout, without running code from them. The model's values, the vocabulary and the
    tokenizer must be the run's; each difference is named. A Megatron-LM checkpoint has no
    tokenizer: make sure that it is the run's.
    """
    from runbook.phases import trained_model

    began = trained_model.import_weights(folder, source, phase)
    click.echo(f"{began}: the training of {folder.name} begins from it")
    if not (source / "config.json").is_file():
        click.echo(
            "The checkpoint has no tokenizer: make sure that data.tokenizer is the one it was "
            "trained with."
        )
