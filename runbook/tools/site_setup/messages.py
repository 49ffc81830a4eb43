"""Messages about a new site or run file, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class SiteSetupMessage(Message):
    """Messages about a new site or run file."""

    DEFAULT_QUEUE = "the default"
    DEVICE_MEMORY_OPEN = (
        "--device {device}: this name does not determine the memory. Write {choices}."
    )
    GIVEN_BY_OPTION = "given by --{option}"
    MEMORY_BY_DATASHEET = "of one device, from its datasheet"
    MPIEXEC = "one process per GPU; PBS has no other way to start processes on other nodes"
    NGPUS = "requested in `select`, next to ncpus; directives.select adds to it"
    NODES_OF_DEVICES = "{nodes} of {devices} x {device}"
    NODES_OF_KIND = "of this kind, {source}"
    NOT_A_SITE_NAME = (
        "--site {cluster_wish_name}: a name may have letters, digits, '.', '_' and '-', and at "
        "most 80 characters."
    )
    NO_SCHEDULER_ON_PATH = "neither sbatch (Slurm) nor qsub (PBS) is on the PATH here"
    NO_SUCH_DEVICE = "--device {device}: no such device in the table of peaks. Nearest: {near}."
    NO_SUCH_RECIPE = (
        "--model {model}: there is no recipe of this name. Available: {recipes}. For other models "
        "in params/models.yaml, use their names in a run file."
    )
    ONE_OF_DEVICES = "{source}: one of {devices}"
    PEAKS_BY_DATASHEET = "of one device, dense, from its datasheet"
    PROGRAM_ON_PATH = "{program} is on the PATH of the machine that runbook init ran on"
    PROCESSES_PER_NODE = "processes per node, each with its share of the cores; 1 or 2 for a start"
    SCHEDULER_CALLS_IT = "{source} calls it {device}"
    TORCHRUN = "one task per node, which starts one process per GPU"
    SCHEDULER_WAS_ASKED = "The scheduler was asked: {answer}"
