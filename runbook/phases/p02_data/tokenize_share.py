"""Program that 02-data jobs run (`python -m`).

It produces some of the shards, or all missing shards.
"""

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from runbook import params
from runbook.core.errors import JobError, RunbookError
from runbook.params import Settings
from runbook.phases.messages import PhaseMessage
from runbook.phases.token_inputs import token_groups, tokenize_options
from runbook.runs.run_files import read_plan_file
from runbook.tokens.pipeline.tokenize import num_cores, prepare, prepare_share

_log = logging.getLogger(__name__)


def tokenize(settings: Settings, folder: Path, share: tuple[int, int] | None) -> None:
    """Produce the shards that this task is responsible for, in every pair of token files.

    Without `share`, produce every missing shard and join the shards.
    """
    options = tokenize_options(settings)
    if share is not None:
        options = replace(options, workers=workers_of(settings))
    for inputs, prefix in token_groups(settings, read_plan_file(folder).data, folder):
        if share is None:
            manifest = prepare(inputs, prefix, options)
            _log.info("%s: %d tokens", prefix.name, manifest.tokens)
        else:
            num_made, num_shards = prepare_share(inputs, prefix, share, options)
            _log.info(
                "%s: share %d of %d, %d of its %d shards were missing",
                prefix.name,
                *share,
                num_made,
                num_shards,
            )


RANK_VARIABLES = ("SLURM_PROCID", "PMIX_RANK", "PMI_RANK", "PALS_RANKID", "OMPI_COMM_WORLD_RANK")
"""Variables with the task number, as set by srun and by mpiexec from MPICH, PALS and Open MPI."""


def share_of(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return (index, count) for this task among all tasks in the job array.

    Return None if this task does everything.

    >>> share_of({"RUNBOOK_ELEMENT": "1", "RUNBOOK_ELEMENTS": "2", "RUNBOOK_TASKS": "4",
    ... "SLURM_PROCID": "3"})
    (7, 8)
    """
    elements = int(environment.get("RUNBOOK_ELEMENTS", "1"))
    tasks = int(environment.get("RUNBOOK_TASKS", "1"))
    if elements * tasks < 2:
        return None
    task = 0
    if tasks > 1:
        task = _task_number(environment, tasks)
    element = int(environment.get("RUNBOOK_ELEMENT", "0"))
    return element * tasks + task, elements * tasks


def _task_number(environment: Mapping[str, str], tasks: int) -> int:
    """Return the task number within the array element.

    Raise `JobError` if no variable contains it.
    """
    for name in RANK_VARIABLES:
        if environment.get(name):
            return int(environment[name])

    raise JobError(
        PhaseMessage.SHARE_UNKNOWN, tasks=tasks, rank_variables=", ".join(RANK_VARIABLES)
    )


def workers_of(settings: Settings) -> int:
    """Return how many processes this task uses.

    This is `data.workers`, the cores requested for the task, or its share of the cores in the node.
    """
    job = settings.run.jobs.data
    if settings.run.data.workers or job.tasks_per_node < 2:
        return settings.run.data.workers
    return job.cpus_per_task or max(1, num_cores() // job.tasks_per_node)


def main() -> int:
    """Tokenize the part for this task, in a run folder. The arguments are `PROJECT [--join]`.

    Variables set by the queue define the part. With --join, do all the remaining work.
    """
    logging.basicConfig(
        level=logging.INFO,
        format="%(message)s",
        stream=sys.stdout,
    )
    folder = Path.cwd()
    try:
        share = None
        if "--join" not in sys.argv:
            share = share_of(os.environ)
        settings = params.load(str(folder / "run.yaml"), project=Path(sys.argv[1]))
        tokenize(settings, folder, share)
    except RunbookError as error:
        _log.error("%s", error)
        return error.exit_code

    return 0


if __name__ == "__main__":
    sys.exit(main())
