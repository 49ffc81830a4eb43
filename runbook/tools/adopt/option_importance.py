"""How important an option is: it changes training, matters to the site, or only affects logs."""

import re
from enum import StrEnum


class Importance(StrEnum):
    """What losing an option affects, worst first."""

    TRAINING = "changes the training"
    SITE = "matters to the site"
    LOGGING = "logging"


_LOGGING = re.compile(
    r"(log|tensorboard|wandb|timing|profile|nvtx|one-logger|record-memory|memory-snapshot"
    r"|barrier-with-L1"
    r"|exp_manager\.(create_)?(wandb|tensorboard|explicit|log)|steps_per_print"
    r"|wall_clock_breakdown|flops_profiler"
    r"|comms_logger|run\.|trainer\.(log|logger|enable_progress)).*",
    re.IGNORECASE,
)
_SITE = re.compile(
    r"(save|load|no-load|no-save|ckpt|dist-ckpt|use-dist-ckpt|async-save|data-cache|data-impl"
    r"|num-workers|dataloader"
    r"|distributed|local-rank|master|nccl|exit-|deepspeed|use-mcore|transformer-impl|manual-gc"
    r"|tp-comm|overlap|ddp"
    r"|use-tp-pp|cuda|enable-cuda|delay-|defer-|no-async|lazy-mpu|no-pipeline-parallel|no-overlap"
    r"|auto-resume"
    r"|non-persistent|ft-|straggler|check-for|retro-add|exp_manager|trainer\.(num_nodes|devices"
    r"|max_time|enable_check)"
    r"|model\.(data\.(index_mapping|num_workers)|nsys|.*overlap)|cluster|container|env_vars"
    r"|stages|base_results"
    r"|launcher_scripts|data_dir|zero_optimization\.(?!stage)|activation_checkpointing|zero_allow"
    r"|aio|autotuning"
    r"|communication_data_type|elasticity|memory_breakdown).*",
    re.IGNORECASE,
)


def importance_of(option: str) -> Importance:
    """Return how important an option is. An unknown option is assumed to change the training.

    >>> importance_of("log-throughput").value, importance_of("ckpt-format").value, importance_of("qk-layernorm").value
    ('logging', 'matters to the site', 'changes the training')
    """
    if _LOGGING.fullmatch(option):
        return Importance.LOGGING
    if _SITE.fullmatch(option):
        return Importance.SITE
    return Importance.TRAINING
