"""A rank that hangs while the others wait as on a GPU: in copying a result, outside every
torch.distributed function.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch.distributed import ProcessGroup

from runbook.plan_file import schema
from runbook.plan_file.schema import read_plan
from runbook.training import process_groups
from runbook.training.health.watchdog import make_watchdog, raise_timeouts
from runbook.training.ranks import ranks_from

PLACE = "RUNBOOK_TEST_HANGS_IN"
HUNG_RANK = 2
STEP = 4


def item(work):
    """Wait for the result as `.item()` does on a GPU, where the collective was entered long before."""
    while not work.is_completed():
        time.sleep(0.01)
    work.wait()


def hang(place):
    if os.environ["RANK"] == str(HUNG_RANK) and os.environ[PLACE] == place:
        while True:
            sum(range(1000)) if place == "compute" else time.sleep(0.1)


def read_data(step):
    if step == STEP:
        hang("data")


def compute(step):
    if step == STEP:
        hang("compute")


def save():
    hang("save")


def send_on_the_network(group, *arguments):
    steps_sent.append(group)
    if len(steps_sent) == STEP:
        hang("collective")
    return sent(group, *arguments)


sent = ProcessGroup.allreduce
steps_sent = []


def main():
    """Imitate training steps, with a save at the fourth, until the others end this rank."""
    ranks = ranks_from(os.environ)
    spec = read_plan(Path(sys.argv[1]), "04-training")
    watchdog = make_watchdog(spec, ranks, os.environ)
    watchdog.start()
    process_groups.join_process_group(ranks, spec.limits.process_group_timeout_seconds)
    ProcessGroup.allreduce = send_on_the_network
    watchdog.join()
    raise_timeouts(300)  # even on a busy machine, nothing may end the ranks before the watchdog
    heartbeat = watchdog.heartbeat
    for step in range(1, 1000):
        heartbeat.step(step)
        time.sleep(0.05)
        read_data(step)
        compute(step)
        item(torch.distributed.all_reduce(torch.ones(4), async_op=True))
        if step == STEP:
            with heartbeat.during("saving"):
                save()
                item(torch.distributed.broadcast(torch.ones(4), src=0, async_op=True))
    return 0


def stuck_thread():
    """Make the thread that reads the samples of the fourth step hang.

    The rank then waits for this thread.
    """
    from runbook.training.datasets import EpochDataset

    read = EpochDataset.__getitem__

    def read_for_ever(dataset, index):
        while os.environ["RANK"] == os.environ[PLACE] and index >= (STEP - 1) * 8:
            time.sleep(0.1)
        return read(dataset, index)

    EpochDataset.__getitem__ = read_for_ever


PATIENCE_SECONDS = 6
WORK_SECONDS = 9


def slow_first_rank():
    """Make rank 0 take longer to check and order the text than the process groups' timeout."""
    from runbook.training import datasets, token_files

    for module, name in ((token_files, "check_token_files"), (datasets.EpochDataset, "_order")):
        setattr(module, name, _slow(getattr(module, name)))
    join = process_groups.join_process_group

    def join_and_be_impatient(*arguments):
        join(*arguments)
        raise_timeouts(PATIENCE_SECONDS)

    process_groups.join_process_group = join_and_be_impatient


def _slow(function):
    def slow(*arguments):
        if os.environ["RANK"] == "0":
            time.sleep(WORK_SECONDS)
        return function(*arguments)

    return slow


def thinned():
    """Let the ranks exchange their times after every second step."""
    schema.RANKS_PER_STEP = 1
