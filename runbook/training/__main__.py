"""`python -m runbook.training plan.json [--phase 04-training]`: run one rank in a training job."""

import argparse
import atexit
import logging
import os
import sys
import warnings
from pathlib import Path

from runbook.plan_file.errors import FAILED, CodedError, TrainingError
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import PhasePlan, read_plan
from runbook.training.health import injected_faults
from runbook.training.health.heartbeat import HeartbeatWriter
from runbook.training.health.stopping import StopConditions
from runbook.training.health.watchdog import make_watchdog
from runbook.training.messages import TrainingMessage
from runbook.training.ranks import Ranks, die_with_launcher, on_gpu, ranks_from, use_planned_device


def train_rank(
    spec: PhasePlan,
    ranks: Ranks,
    stopping: StopConditions,
    until: int = 0,
) -> int:
    """Train, and return the exit code. Errors are recorded in events.jsonl before they are raised.

    Training stops after step `until` and does not save. If `until` is 0, it runs to the planned
    end.
    """
    stopping.limit_seconds = spec.limits.exit_duration_seconds
    # megatron-core warns at import that Apex and Transformer Engine are missing. This trainer uses
    # CausalAttention instead.
    warnings.filterwarnings("ignore", module=r"megatron\..*")
    # megatron-core 0.16 also warns that the CPU random state changed while the GPU random state was
    # forked (on a CPU both are the same), and 0.19 warns about future changes.
    logging.getLogger("megatron.core").setLevel(logging.ERROR)
    # A CUDA build of torch warns if it finds a CUDA toolkit but no GPU. The trainer builds no CUDA
    # kernels on such a machine.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    # torch 2.13 deprecates names used in megatron-core 0.16.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    warnings.filterwarnings("ignore", "Please use DTensor instead", FutureWarning)
    from runbook.plan_file import trainer_requirements
    from runbook.plan_file.fewer_replicas import plan_of_attempt
    from runbook.training import cpu, process_groups
    from runbook.training.training_log import TrainingLog

    injected_faults.armed = injected_faults.faults_from(os.environ, ranks.rank)
    use_planned_device(spec.device)
    spec = plan_of_attempt(spec, ranks.world_size)
    trainer_requirements.check(
        spec, ranks.world_size, fp16=on_gpu() or injected_faults.armed.has("fp16")
    )
    cpu.answer_for_cpu()
    log = TrainingLog(spec, ranks)
    watchdog = make_watchdog(spec, ranks, os.environ)
    try:
        if watchdog:
            watchdog.start()
        process_groups.join_process_group(ranks, spec.limits.process_group_timeout_seconds)
        if watchdog:
            watchdog.join()
        process_groups.make_parallel_groups(spec)
        from runbook.training.checkpoints import state
        from runbook.training.loop import TrainingLoop

        spec = log.spec = state.keep_checkpoint_padding(spec)
        if watchdog:
            heartbeat = watchdog.heartbeat
        else:
            heartbeat = HeartbeatWriter(ranks.rank)

        code = TrainingLoop(spec, log, stopping, heartbeat, until).train()
    except Exception as error:
        message_code = error.code if isinstance(error, CodedError) else ""
        log.event("failed", message=f"{type(error).__name__}: {error}", code=message_code)
        if isinstance(error, RuntimeError) and "gloo" in str(error):
            raise TrainingError(TrainingMessage.RANK_GONE, error=error) from None

        raise
    finally:
        if watchdog:
            watchdog.stop()
        log.close()

    process_groups.leave_process_groups()
    return code


def main() -> int:
    """Run this rank, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m runbook.training", description=__doc__)
    parser.add_argument(
        "plan", type=Path, help="plan.json of the run; the paths in it are relative to its folder"
    )
    parser.add_argument(
        "--phase", default=FULL, help="phase to train: 04-training or 03-smoke-test"
    )
    parser.add_argument(
        "--until",
        type=int,
        default=0,
        help=(
            "end after this step without saving (runbook replay); 0: at the end of the training run"
        ),
    )
    arguments = parser.parse_args()
    # Registered first in order to run last, after any traceback has been printed
    atexit.register(leave, FAILED)
    # Set up before the slow imports, to catch signals while they run
    stopping = StopConditions()
    rank = 0
    try:
        ranks = ranks_from(os.environ)
        rank = ranks.rank
        die_with_launcher(ranks)
        spec = read_plan(arguments.plan, arguments.phase)
        # Before torch allocates memory, ask for 2 MiB pages for large tensors, if the kernel offers
        # them.
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

        return train_rank(spec, ranks, stopping, arguments.until)
    except TrainingError as error:
        if rank == 0 or not error.on_all_ranks:
            sys.stderr.write(f"rank {rank}: {error}\n" if rank else f"{error}\n")
        return error.exit_code


def leave(code: int) -> None:
    """Exit at once.

    After a failure, the exit handlers of torch and gloo might wait for ranks that are no longer
    running.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
