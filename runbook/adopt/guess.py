"""Which machine and framework a script was written for, and which document's run a block of exports belongs to."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from runbook.adopt.interpreter import Command
from runbook.adopt.launches import Launch
from runbook.adopt.script import Script

SIGNS: dict[str, tuple[tuple[str, int], ...]] = {
    "lumi": (
        (r"\bLUMI/\d|partition/[GC]\b|\bhsn[0-3]\b|lumi_ds_pretrain", 4),
        (r"\b(standard|dev|small)-g\b", 4),
        (r"\bMIOPEN_|rocm", 1),
        (r"/pfs/lustre|/scratch/project_\d|/flash/project_\d", 3),
    ),
    "azure": (
        (r"ndv[2-6]-topo|/opt/microsoft|mlx5_ib0|04-gpt175B|ND96|AMLFS", 4),
        (r"\bSTAGE_PATH\b", 3),
        (r"SQUASHED_(PYTORCH|NEMO)_IMAGE", 2),
    ),
    "polaris": (
        (r"\bALCF\b|argonne|polaris|MODEL_SIZE_KEY|pretrain_gpt_alcf|/eagle/|\beagle\b", 4),
        (r"^#PBS|\bqsub\b|PBS_NODEFILE", 3),
        (r"\bmpiexec\b", 1),
    ),
    "aws": (
        (r"FI_EFA_|bignlp|\bpcluster\b|p4de?\b|p5\b|amazonaws|nemo-megatron", 4),
        (r"/fsx\b", 3),
        (r"FI_PROVIDER=efa", 2),
    ),
    "slurm": ((r"megatron_ds_[ms]n", 4), (r"^#SBATCH|\bsbatch\b|\bsrun\b", 1)),
}
CALLED = (
    (r"(^|/)04-gpt175B\.sh$", "azure-175b"),
    (r"(^|/)train-gpt3\.sh$", "polaris-25b"),
    (r"(^|/)(nemo-megatron[\w.-]*\.sbatch|run\.sh)$", "aws-pile-175b"),
    (r"(^|/)lumi_ds_pretrain_gpt\w*\.sh$", "lumi-13b"),
    (r"(^|/)megatron_ds_[ms]nmg\.slurm$", "slurm-oscar"),
)
"""The documents' own scripts, and the run file that each became."""
KNOBS = (
    ({"MODEL_SIZE_KEY", "MPSIZE", "PPSIZE", "SP_TYPE", "GAS", "USE_FLASH_ATTN_V2"}, "polaris-25b"),
    ({"TENSOR_MODEL_PARALLEL_SIZE", "PIPELINE_MODEL_PARALLEL_SIZE", "NUM_LAYERS", "HIDDEN_SIZE",
      "NUMBER_OF_ITERATIONS", "NUM_ATTENTION_HEADS", "CHUNKS", "STAGE_PATH"}, "azure-175b"),
    ({"MODEL_SIZE", "MAX_STEPS", "FSX_MOUNT", "IMAGE", "JOB_SUFFIX", "RUN_SH"}, "aws-pile-175b"),
    ({"mp_size", "pp_size", "num_gpus", "num_node", "batch_size", "zero_stage"}, "lumi-13b"),
)  # fmt: skip
"""Names that the documents' scripts read, for a block of exports that starts nothing."""


@dataclass(frozen=True)
class Call:
    """A document's script that is started with values for its knobs."""

    run: str
    script: str
    command: Command


RUNS = {"lumi": "lumi-13b", "azure": "azure-175b", "polaris": "polaris-25b", "aws": "aws-pile-175b"}
"""The run of each document, by its site."""


def run_of_signs(script: Script) -> str:
    """The document whose machine a page, or a script that prepares one, clearly speaks of; else empty."""
    site, score = _most_signs(script, SIGNS)
    if site == "slurm":
        return "slurm-oscar" if score >= 4 else ""
    return RUNS[site] if score >= 4 else ""


def site_of(script: Script, sites: Collection[str]) -> str:
    """The site with most signs; a Slurm script is never PBS's, and the other way round."""
    return _most_signs(script, sites)[0]


def _most_signs(script: Script, sites: Collection[str]) -> tuple[str, int]:
    pbs = any(one.queue == "pbs" for one in script.directives)
    slurm = any(one.queue == "slurm" for one in script.directives)
    scores = {}
    for site, signs in SIGNS.items():
        if site not in sites or (pbs and site != "polaris") or (slurm and site == "polaris"):
            continue
        scores[site] = sum(weight for pattern, weight in signs if re.search(pattern, script.text, re.M | re.I))
    best = max(scores.values(), default=0)
    return next((site for site, score in scores.items() if score == best and best), "slurm"), best


def framework_of(script: Script, launches: Sequence[Launch]) -> str:
    """Whose training program is started: by its own name, its options, else by the folder it lies in."""
    words = [word.text for launch in launches for word in (launch.script, *launch.arguments)]
    if any("megatron_gpt_pretraining" in word or re.match(r"(training\.)?trainer\.", word) for word in words):
        return "nemo"
    if any(re.match(r"--(deepspeed|zero[-_]stage)", word) for word in words):
        return "megatron-deepspeed"
    programs = [name for launch in launches for name in launch.programs]
    if "deepspeed" in programs or any("pretrain_gpt_alcf" in word for word in words):
        return "megatron-deepspeed"
    if re.search(r"megatron-deepspeed", " ".join(words), re.I) and not re.search("Megatron-LM", " ".join(words)):
        return "megatron-deepspeed"
    return "megatron-lm"


def calls_of(script: Script) -> list[Call]:
    """Starts of the documents' own scripts, by sbatch, qsub or themselves."""
    found = []
    for command in script.commands:
        if command.words[0].text in ("echo", "cat", "ls", "egrep", "grep", "tail", "cp", "git", "find"):
            continue
        for pattern, run in CALLED:
            called = next((word.text for word in command.words if re.search(pattern, word.text)), "")
            if called:
                found.append(Call(run, called, command))
    return found


def run_of_knobs(script: Script) -> str:
    """The run whose script reads most of the names that are set; empty where none does."""
    names = {one.name for one in script.settings} | {name for one in script.commands for name in one.environment}
    counts = {run: len(names & knobs) for knobs, run in KNOBS}
    best = max(counts.values())
    return next(run for run, count in counts.items() if count == best) if best else ""
