"""The parts of job scripts that are specific to Slurm: #SBATCH lines, srun, and variables."""

from collections.abc import Sequence

from runbook.core.units import show_clock
from runbook.jobs.render.queue_scripts import (
    TRUSTED_COUNT,
    TRUSTED_NAMES,
    WARNING_SECONDS,
    NodeCount,
    QueueScripts,
    array_range,
    plain,
    warn_after,
)
from runbook.jobs.render.quoting import quote
from runbook.params import Job, Settings


class SlurmScripts(QueueScripts):
    """The requests, starters and shell expressions for Slurm jobs."""

    announces_end = True
    can_leave_out_nodes = True
    has_container_option = True
    data_job_takes_cores_of_queue = True
    submit = "sbatch"
    cancel = "scancel"
    submit_folder = "${SLURM_SUBMIT_DIR:?is not set: submit this script with sbatch}"
    job_number = "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}"
    passes_variables = (
        "unset SLURM_EXPORT_ENV # set by sbatch --export=NONE: tasks would start without this "
        "script's variables"
    )
    array_index = "${SLURM_ARRAY_TASK_ID:?}"
    hosts = 'scontrol show hostnames "$SLURM_JOB_NODELIST"'
    time_left = '$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%L 2>/dev/null || true)'
    tasks_need_hosts = False
    failed_step_line = "^srun: .*Terminating (StepId|job step)"

    def directives(
        self,
        settings: Settings,
        phase: str,
        job: Job,
        *,
        devices: bool = True,
    ) -> list[str]:
        """Return the #SBATCH lines, sorted.

        Each job is submitted from its own folder, and its output is written there. A site's
        directive is kept unless we set the same directive.
        """
        site = settings.site
        values: dict[str, object] = {
            "job-name": f"{settings.name}-{phase}",
            "nodes": job.nodes,
            "ntasks-per-node": job.tasks_per_node,
            "cpus-per-task": job.cpus_per_task,
            "mem": job.memory,
            "partition": job.partition,
            "account": job.account,
            "qos": job.qos,
            "reservation": job.reservation,
            "time": show_clock(job.walltime) if job.walltime else "",
            "output": "out",
            "error": "err",
            "open-mode": "append",
            "requeue": True,
            "no-kill": job.spares > 0 or job.min_nodes > 0,
            "array": array_range(job),
            "signal": f"B:USR1@{WARNING_SECONDS}" if warn_after(job) else "",
        }
        if devices and site.hardware.device != "cpu" and site.devices_directive:
            prefix = "gpu:" if site.devices_directive == "gres" else ""
            values[site.devices_directive] = f"{prefix}{job.devices_per_node}"

        ours = {name: value for name, value in values.items() if value}
        directives = {**site.directives, **ours}
        return [_slurm_line(name, value) for name, value in sorted(directives.items())]

    def on_nodes(
        self,
        settings: Settings,
        job: Job,
        tasks: int,
        count: NodeCount | None = None,
    ) -> list[str]:
        """Return the srun command to start this many tasks on each node."""
        return _srun(settings, job, tasks, count)

    def on_each_node(self, settings: Settings, job: Job) -> list[str]:
        """Return the srun command to start one task per node.

        A failed task does not end the others.
        """
        return [
            word.replace("--kill-on-bad-exit=1", "--kill-on-bad-exit=0")
            for word in _srun(settings, job, 1)
        ]

    def on_each_node_to_answer(
        self,
        settings: Settings,
        job: Job,
        container: Sequence[str],
    ) -> list[str]:
        """Return the srun command to run a check on each node.

        A node that cannot start the check must not end the check on other nodes before they answer.
        """
        arguments = []
        for word in _srun(settings, job, 1):
            if not word.startswith("--kill-on-bad-exit"):
                arguments.append(word)

        return [*arguments, "--kill-on-bad-exit=0", *container]

    def on_trusted_nodes(self, settings: Settings, job: Job, program: str) -> list[str]:
        """Return the srun command to start a program on only the nodes in `trusted`."""
        command = self.on_each_node(settings, job)
        command[1:4] = [
            f"--nodes={TRUSTED_COUNT}",
            f"--ntasks={TRUSTED_COUNT}",
            "--ntasks-per-node=1",
        ]
        return [*command, f"--nodelist={TRUSTED_NAMES}", program]

    def on_one_node(self, seconds: int) -> str:
        """Return the srun command used to start a process on `$node` while the job steps run."""
        where = '--nodes=1 --ntasks=1 --nodelist="$node"'
        return f"timeout {seconds} srun --overlap {where}"

    def training_starter(
        self,
        settings: Settings,
        job: Job,
        count: NodeCount,
        *,
        chooses_nodes: bool,
    ) -> list[str]:
        """Return the srun command to start a launcher on each node, or each rank."""
        step = _srun(settings, job, job.tasks_per_node, count)
        if chooses_nodes:
            step.append('--nodelist="$step_nodes"')
        return step

    def task_starter(self, job: Job) -> list[str]:
        """Return the srun command to start the tasks. A failed task does not end the others."""
        num_tasks = job.nodes * job.tasks_per_node
        parts = [
            "srun",
            f"--nodes={job.nodes}",
            f"--ntasks={num_tasks}",
            f"--ntasks-per-node={job.tasks_per_node}",
            "--kill-on-bad-exit=0",
        ]
        if job.tasks_per_node > 1 and job.cpus_per_task:
            # Since Slurm 22.05, srun does not inherit cpus-per-task from sbatch.
            parts.append(f"--cpus-per-task={job.cpus_per_task}")
        elif not job.cpus_per_task:
            # If no number of cores were given, Slurm would bind each task to one core. With this
            # option, the tasks share the node cores.
            parts.append("--cpu-bind=none")

        return parts


def _srun(
    settings: Settings,
    job: Job,
    tasks: int,
    count: NodeCount | None = None,
) -> list[str]:
    site = settings.site
    count = count or NodeCount(job.nodes)
    argv = [
        "srun",
        f"--nodes={count.times(1)}",
        f"--ntasks={count.times(tasks)}",
        f"--ntasks-per-node={tasks}",
        "--kill-on-bad-exit=1",
    ]
    if job.cpus_per_task:
        argv.append(f"--cpus-per-task={job.cpus_per_task * job.tasks_per_node // tasks}")
    masks = site.binding.cpu_masks[: job.devices_per_node]
    if masks and site.launcher == "srun" and tasks == job.devices_per_node:
        argv.append(quote("--cpu-bind=mask_cpu:" + ",".join(f"0x{mask}" for mask in masks)))
    return [*argv, *(quote(option) for option in site.step_options)]


def _slurm_line(name: str, value: object) -> str:
    is_flag = value is True or value == ""
    option = f"#SBATCH --{plain(name, name)}"
    if is_flag:
        return option
    return f"{option}={plain(name, value)}"
