"""The stages in the benchmark, in order, and the jobs in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.gpu_stages.job import DEEPSPEED, PLAIN, TORCH, TRAINER, Job

PARTS_VARIABLE = "RUNBOOK_KERNEL_PARTS"
"""The environment variable that lists which trainer GPU kernels to use in this benchmark, separated
by commas. If it is not set, all are used.
"""
PARTS = ("norm", "linear", "cross_entropy", "layers")
KERNELS = "compiled"
"""The `training.kernels` value that stands for kernels that can be selected one by one."""


def environment(*, rehearsal: bool) -> list[Job]:
    """Return the job that examines the machine."""
    return [Job("environment", "machine", "environment:look", 90, 10, imports=TORCH)]


def ceilings(*, rehearsal: bool) -> list[Job]:
    """Return the job that measures the highest speeds on the device."""
    size = {"rehearsal": rehearsal}
    return [Job("ceilings", "products and copies", "ceilings:measure", 60, 10, size, imports=TORCH)]


def correctness(*, rehearsal: bool) -> list[Job]:
    """Return training runs with both engines. Their losses are compared with those on a CPU."""
    size = "rehearsal" if rehearsal else "full"
    trainings = {
        "size": size,
        "precisions": ["bf16"] if rehearsal else ["bf16", "fp32"],
        "kernels": [""] if rehearsal else [KERNELS, "plain"],
    }
    zero = {"size": size, "stages": [1] if rehearsal else [0, 1, 2, 3]}
    stage = "correctness"
    return [
        Job(stage, "megatron-core", "trainings:megatron", 75, 15, trainings),
        Job(stage, "deepspeed", "trainings:deepspeed", 60, 15, zero, imports=DEEPSPEED),
    ]


def throughput_job(
    stage: str,
    name: str,
    *,
    rehearsal: bool,
    parts: str | None = None,
    profile: bool = False,
    seconds: float = 60,
    **options: Any,
) -> Job:
    """Return a job that times a program. Without `parts`, the trainer uses all its kernels."""
    if rehearsal:
        options |= {"shape": "rehearsal", "micro_batch": 1, "num_micro_batches": 2}
    program = options["program"]
    if program == "ours":
        options.setdefault("kernels", "plain" if parts == "" else KERNELS)
        needs = "" if parts == "" else "triton"
        imports = DEEPSPEED if options.get("engine") == "deepspeed" else TRAINER
    else:
        imports = PLAIN
        needs = "compile" if "compiled" in program else ""
    return Job(
        stage,
        name,
        "throughput:measure",
        seconds,
        15,
        {"options": options, "profile": profile},
        imports,
        {} if parts is None else {PARTS_VARIABLE: parts},
        needs,
    )


def model_1_3b(*, rehearsal: bool) -> list[Job]:
    """Return the 1.3B jobs.

    They time the trainer without its GPU kernels, then with each part alone, then the plain
    programs.
    """
    common: dict[str, Any] = {"rehearsal": rehearsal, "shape": "1.3b"}
    stage = "1.3b"
    jobs = [
        throughput_job(stage, "plain kernels", program="ours", parts="", profile=True, **common)
    ]
    for number, part in enumerate(PARTS):
        jobs.append(
            throughput_job(
                stage,
                f"+ {part}",
                program="ours",
                parts=",".join(PARTS[: number + 1]),
                profile=number == len(PARTS) - 1,
                **common,
            )
        )
    for program in ("even-compiled", "compiled", "plain"):
        jobs.append(
            throughput_job(
                stage,
                f"PyTorch {program}",
                program=program,
                profile=program == "even-compiled",
                **common,
            )
        )
    return jobs[:1] + jobs[4:6] if rehearsal else jobs


def batches(*, rehearsal: bool) -> list[Job]:
    """Return the 1.3B jobs with different micro-batches, with the same or fewer tokens per step."""
    jobs = []
    for micro_batch, count in ((8, 4), (16, 2), (2, 16), (4, 2)):
        jobs.append(
            throughput_job(
                "batches",
                f"micro-batch {micro_batch} x {count}",
                rehearsal=rehearsal,
                program="ours",
                shape="1.3b",
                micro_batch=micro_batch,
                num_micro_batches=count,
            )
        )
    return [] if rehearsal else jobs


def shapes(*, rehearsal: bool) -> list[Job]:
    """Return the 125M and 350M jobs."""
    if rehearsal:
        return []
    jobs = []
    for shape, micro_batch in (("125m-2k", 16), ("350m", 8)):
        common: dict[str, Any] = {
            "rehearsal": False,
            "shape": shape,
            "micro_batch": micro_batch,
            "num_micro_batches": 4,
        }
        jobs += [
            throughput_job("shapes", f"{shape} ours", program="ours", **common),
            throughput_job("shapes", f"{shape} plain kernels", program="ours", parts="", **common),
            throughput_job(
                "shapes",
                f"{shape} PyTorch",
                program="even-compiled",
                **common,
            ),
        ]
    return jobs


def large(*, rehearsal: bool) -> list[Job]:
    """Return the 6.7B job, for a GPU with more than 100 GiB."""
    if rehearsal:
        return []
    common: dict[str, Any] = {"rehearsal": False, "shape": "6.7b", "micro_batch": 1, "seconds": 120}
    return [
        throughput_job("6.7b", "ours", program="ours", **common),
        throughput_job("6.7b", "PyTorch", program="even-compiled", **common),
    ]


def saving(*, rehearsal: bool) -> list[Job]:
    """Return the jobs in which the complete trainer saves and resumes 1.3B."""
    options: dict[str, Any] = {"program": "ours", "shape": "1.3b", "kernels": KERNELS}
    if rehearsal:  # its 38 steps would take minutes in the Triton interpreter
        options |= {"shape": "rehearsal", "micro_batch": 1, "num_micro_batches": 2}
        options["kernels"] = "plain"
    arguments = {"options": options}
    return [Job("saving", "saves and resume", "saving:measure", 170, 60, arguments)]


def precision(*, rehearsal: bool) -> list[Job]:
    """Return the 1.3B jobs with fp16, recomputation, fp8 and DeepSpeed."""
    common: dict[str, Any] = {"rehearsal": rehearsal, "program": "ours", "shape": "1.3b"}
    size = {"size": "rehearsal" if rehearsal else "full"}
    stage = "precision"
    eight_bits = {"options": {"program": "ours", "shape": "1.3b", "fp8": "tensorwise"}}
    if rehearsal:
        eight_bits["options"]["shape"] = "rehearsal"
    jobs = [
        Job(stage, "fp16", "trainings:fp16", 40, 10, size),
        throughput_job(stage, "recompute full", recompute="full", **common),
        throughput_job(stage, "recompute selective", recompute="selective", **common),
        *(
            throughput_job(
                stage, f"DeepSpeed ZeRO {zero}", engine="deepspeed", zero_stage=zero, **common
            )
            for zero in (1, 2, 3)
        ),
        Job(stage, "fp8", "precision:fp8", 40, 10, eight_bits),
        Job(stage, "fp8, losses", "trainings:eight_bits", 40, 10, size),
    ]
    return [jobs[0], *jobs[-2:]] if rehearsal else jobs


def repeats(*, rehearsal: bool) -> list[Job]:
    """Return 1.3B jobs that repeat earlier jobs, the best one twice.

    The spread between their rows is the noise in every comparison.
    """
    common: dict[str, Any] = {"rehearsal": rehearsal, "program": "ours", "shape": "1.3b"}
    jobs = [
        throughput_job("repeats", "all kernels", profile=True, **common),
        throughput_job("repeats", "plain kernels", parts="", **common),
        throughput_job(
            "repeats",
            "PyTorch even-compiled",
            **(common | {"program": "even-compiled"}),
        ),
        throughput_job("repeats", "all kernels, again", **common),
    ]
    return [] if rehearsal else jobs


def several_ranks(*, rehearsal: bool) -> list[Job]:
    """Return training runs in which several ranks share the one GPU."""
    arguments = {
        "size": "rehearsal" if rehearsal else "full",
        "ranks_at_once": 2 if rehearsal else 20,
    }
    jobs = [
        Job("ranks", "several ranks", "ranks:train", 330, 60, arguments),
        Job("ranks", "copies in node memory", "ranks:near", 160, 40, arguments),
    ]
    return jobs[:1] if rehearsal else jobs


STAGES: dict[str, Callable[..., list[Job]]] = {
    "environment": environment,
    "ceilings": ceilings,
    "correctness": correctness,
    "ranks": several_ranks,
    "1.3b": model_1_3b,
    "batches": batches,
    "shapes": shapes,
    "6.7b": large,
    "saving": saving,
    "precision": precision,
    "repeats": repeats,
}


def jobs_of(stages: list[str], *, rehearsal: bool, named: Sequence[str] = ()) -> list[Job]:
    """Return the jobs in these stages, in stage order.

    With `named`, return only jobs whose stage and name contain one of these texts.
    """
    jobs = [job for stage in stages for job in STAGES[stage](rehearsal=rehearsal)]
    if not named:
        return jobs
    return [job for job in jobs if any(text in f"{job.stage} {job.name}" for text in named)]
