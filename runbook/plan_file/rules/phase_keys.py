"""The run-file keys that set the values for a phase."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Keys:
    """Run-file keys that set the values for a phase; the smoke test has its own."""

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
