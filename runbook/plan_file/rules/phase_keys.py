"""The run-file keys of a phase's values."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Keys:
    """Run-file keys of a phase's values; the smoke test has its own."""

    tensor: str = "parallel.tensor"
    pipeline: str = "parallel.pipeline"
    micro_batch: str = "training.micro_batch"
    global_batch: str = "training.global_batch"
    sequence_length: str = "training.sequence_length"
    iterations: str = "training.iterations"
    warmup_iterations: str = "training.warmup_iterations"
    job: str = "jobs.training"


FULL_KEYS = Keys()
DEEPSPEED = ("deepspeed", "megatron-deepspeed")
"""Training programs in which DeepSpeed manages gradients and optimizer states."""
