"""The parts of job scripts that are specific to PBS: #PBS lines, mpiexec, and variables."""

import re
from collections.abc import Sequence

from runbook.core.errors import JobError, ParamsError
from runbook.core.units import show_clock
from runbook.jobs.messages import JobMessage
from runbook.jobs.render.queue_scripts import (
    TRUSTED_COUNT,
    TRUSTED_NAMES,
    NodeCount,
    QueueScripts,
    array_range,
    mpiexec_words,
    plain,
)
from runbook.jobs.render.quoting import quote
from runbook.params import Job, Settings
from runbook.params.schema.run_file import JOB_SECTIONS
from runbook.params.schema.site import Site

NAME = "PBS"
TOLERANCE = "tolerate_node_failures"
"""Attribute that makes PBS keep a job if a node other than the first is lost.

Without it, PBS kills the job once it has not heard from that node for five minutes
(`$max_poll_downtime`).
"""


class PbsScripts(QueueScripts):
    """The requests, starters and shell expressions of a PBS job."""

    announces_end = False
    can_leave_out_nodes = False
    has_container_option = False
    data_job_takes_cores_of_queue = False
    submit = "qsub"
    cancel = "qdel"
    submit_folder = "${PBS_O_WORKDIR:?is not set: submit this script with qsub}"
    job_number = "${PBS_JOBID%%[!0-9]*}"
    passes_variables = ""
    array_index = "${PBS_ARRAY_INDEX:?}"
    hosts = """awk '!seen[$0]++' "$PBS_NODEFILE\""""
    time_left = '""'
    tasks_need_hosts = True
    failed_step_line = ""

    def directives(
        self,
        settings: Settings,
        phase: str,
        job: Job,
        *,
        devices: bool = True,
    ) -> list[str]:
        """Return the #PBS lines: one-letter options first, then resources with -l, each sorted.

        A site's own one-letter directives (k, W) become options, and all others become resources.
        """
        _refuse_what_pbs_lacks(job)
        letters = _pbs_letters(settings, phase, job)
        resources = _pbs_resources(settings, phase, job, devices)
        letter_lines = [
            _pbs_letter_line(letter, value) for letter, value in sorted(letters.items())
        ]
        resource_lines = []
        for name, value in sorted(resources.items()):
            if value:
                resource_lines.append(f"#PBS -l {plain(name, name)}={plain(name, value)}")

        return letter_lines + resource_lines

    def on_nodes(
        self,
        settings: Settings,
        job: Job,
        tasks: int,
        count: NodeCount | None = None,
    ) -> list[str]:
        """Return the mpiexec command to start this many tasks on each node."""
        return mpiexec_words(settings, job, tasks, count)

    def on_each_node(self, settings: Settings, job: Job) -> list[str]:
        """Return the mpiexec command to start one task per node."""
        return mpiexec_words(settings, job, 1)

    def on_each_node_to_answer(
        self,
        settings: Settings,
        job: Job,
        container: Sequence[str],
    ) -> list[str]:
        """Return the mpiexec command to run a check on each node.

        PBS needs no container option.
        """
        return mpiexec_words(settings, job, 1)

    def on_trusted_nodes(self, settings: Settings, job: Job, program: str) -> list[str]:
        """Return the mpiexec command to start a program on only the nodes in `trusted`."""
        command = ["mpiexec", f"-n {TRUSTED_COUNT}", "--ppn 1", f"--hosts {TRUSTED_NAMES}"]
        command += [quote(option) for option in settings.site.step_options]
        return [*command, program]

    def on_one_node(self, seconds: int) -> str:
        """Return the mpiexec command to start one process."""
        return f'timeout {seconds} mpiexec -n 1 --ppn 1 --hosts "$node"'

    def training_starter(
        self,
        settings: Settings,
        job: Job,
        count: NodeCount,
        *,
        chooses_nodes: bool,
    ) -> list[str]:
        """Raise `JobError`, because PBS has no built-in starter and the site must use mpiexec."""
        site = settings.site
        raise JobError(
            JobMessage.QUEUE_WITHOUT_SRUN, queue=NAME, site=site.site, launcher=site.launcher
        )

    def task_starter(self, job: Job) -> list[str]:
        """Return the mpiexec command, using the host list from the job."""
        num_tasks = job.nodes * job.tasks_per_node
        return [f"mpiexec -n {num_tasks} --ppn {job.tasks_per_node}", '--hostfile "$job/hostfile"']


def _refuse_what_pbs_lacks(job: Job) -> None:
    if job.qos:
        raise ParamsError(JobMessage.QUEUE_WITHOUT_QOS, queue=NAME, qos=job.qos)

    if job.reservation:
        raise ParamsError(JobMessage.PBS_RESERVATION, reservation=job.reservation)


def _pbs_letters(settings: Settings, phase: str, job: Job) -> dict[str, str]:
    """Return the one-letter options.

    A site may change `-k` and `-r`, but no directive set by the job.

    With `-k doe`, out and err are written in place while the job runs; by default PBS copies them
    when the job ends.
    """
    defaults = {"k": "doe", "r": "y"}
    from_site = {}
    for name, value in settings.site.directives.items():
        if len(name) == 1:
            from_site[name] = value

    from_job = {
        "N": f"{settings.name}-{phase}",
        "A": job.account,
        "q": job.partition,
        "o": "out",
        "e": "err",
        "J": array_range(job),
    }
    from_job = {letter: value for letter, value in from_job.items() if value}
    letters = {**defaults, **from_site, **from_job}
    attributes = letters.get("W", "")
    if (job.spares or job.min_nodes) and TOLERANCE not in attributes:
        letters["W"] = ",".join(filter(None, [attributes, f"{TOLERANCE}=all"]))
    return letters


def _pbs_letter_line(letter: str, value: str) -> str:
    if value:
        return f"#PBS -{letter} {plain(letter, value)}"
    return f"#PBS -{letter}"


def _pbs_resources(
    settings: Settings,
    phase: str,
    job: Job,
    devices: bool,
) -> dict[str, str]:
    site = settings.site
    resources = {}
    for name, value in site.directives.items():
        if len(name) > 1:
            resources[name] = value

    if job.nodes > 1:
        # By default, PBS may place the work for two nodes on a single node with enough cores.
        resources.setdefault("place", "scatter")

    section = next(section for name, section in JOB_SECTIONS.items() if phase.startswith(name))
    run_file_sets_cores = bool(getattr(settings.run.jobs, section).cpus_per_task)
    resources["select"] = f"{job.nodes}{_chunk(site, job, devices, run_file_sets_cores)}"
    if job.walltime:
        resources["walltime"] = show_clock(job.walltime)
    return resources


def _chunk(
    site: Site,
    job: Job,
    devices: bool,
    run_file_sets_cores: bool,
) -> str:
    """Return the resources to request on each node, after `select=<nodes>`.

    A `select` in the site file takes precedence over computed values, and the number of cores in
    the run file over that in the site file.
    """
    parts = site.directives.get("select", "").split(":")
    chunk = {part.partition("=")[0]: part for part in parts if part}
    if job.cpus_per_task and (site.cores_directive or run_file_sets_cores):
        name = site.cores_directive or "ncpus"
        cores = f"{name}={job.cpus_per_task * job.tasks_per_node}"
        if run_file_sets_cores:
            chunk[name] = cores
        else:
            chunk.setdefault(name, cores)

    if devices and site.hardware.device != "cpu" and site.devices_directive == "ngpus":
        chunk.setdefault("ngpus", f"ngpus={job.devices_per_node}")
    if job.memory:
        chunk["mem"] = f"mem={_pbs_memory(job.memory)}"
    return "".join(f":{chunk[name]}" for name in sorted(chunk))


def _pbs_memory(text: str) -> str:
    """Format a size as PBS expects it.

    >>> _pbs_memory("480G"), _pbs_memory("1024")
    ('480gb', '1024mb')
    """
    match = re.fullmatch(r"([1-9]\d*)([KMGT]?)B?", text.upper())
    if match is None:
        raise ParamsError(JobMessage.NOT_A_SIZE_OF_QUEUE, queue=NAME, text=text)

    return f"{match[1]}{match[2].lower() or 'm'}b"
