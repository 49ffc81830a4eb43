"""Commands that start the processes of a job: a step program, a container and a process starter."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from runbook.core.errors import JobError, ParamsError
from runbook.jobs.messages import JobMessage
from runbook.jobs.render.templating import quote
from runbook.params import Job, Settings

COPIED_PYTHON = 'bash "$RUNBOOK_JOB_FOLDER/python.sh"'
"""The interpreter of a job that runs from a copy of its environment: see templates/python.sh.j2."""


def python_command(settings: Settings) -> str:
    """Return the words that start the interpreter of a training's processes."""
    if settings.run.jobs.environment_copy:
        return COPIED_PYTHON
    return quote(settings.site.python or "python3")


RANK_SCRIPT = '"$job/rank.sh"'
"""The script of each process: it finds its rank, binds its cores and starts the training."""
_LINE_END = " \\\n  "


@dataclass(frozen=True)
class NodeCount:
    """The number of nodes of a command, or a variable of the job if it may have fewer."""

    nodes: int
    varies: bool = False

    def times(self, tasks: int) -> str:
        """Return this many tasks per node as a bash expression."""
        if not self.varies:
            return str(self.nodes * tasks)
        if tasks == 1:
            return '"$num_nodes"'
        return f'"$((num_nodes * {tasks}))"'


def training_command(
    settings: Settings,
    job: Job,
    variables: Sequence[str],
    mounts: Sequence[str],
    *,
    with_fewer_nodes: bool = False,
) -> str:
    """Return everything between the job's script and rank.sh, on all its nodes.

    Each option is on its own line, with its value. A job with spare nodes, or one that continues
    `with_fewer_nodes`, chooses its nodes when it runs.
    """
    site = settings.site
    count = NodeCount(job.nodes, varies=with_fewer_nodes)
    inner = [*_inside(settings, mounts), *_starter(settings, job, count), RANK_SCRIPT]
    if site.launcher == "mpiexec":
        starter = _mpiexec(settings, job, job.devices_per_node, count)
        return _LINE_END.join([*starter, *inner])

    if site.scheduler == "pbs":
        raise JobError(JobMessage.PBS_WITHOUT_SRUN, site=site.site, launcher=site.launcher)

    step = _srun(settings, job, job.tasks_per_node, count)
    if job.spares or with_fewer_nodes:
        step.append('--nodelist="$step_nodes"')
    container = _pyxis(settings, variables, mounts)
    return _LINE_END.join([*step, *container, *inner])


def single_command(settings: Settings, argv: Sequence[str], mounts: Sequence[str]) -> str:
    """Return the command of one process of a job on one node, in the container of the training."""
    step = ["srun --nodes=1 --ntasks=1"] if settings.site.container.kind == "pyxis" else []
    pyxis = _pyxis(settings, ["PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED"], mounts)
    program = " ".join(map(quote, argv))
    return _LINE_END.join([*step, *pyxis, *_inside(settings, mounts), program])


def one_process_command(settings: Settings, argv: Sequence[str], mounts: Sequence[str]) -> str:
    """Return the command of one process on a job's first node, in the training's container."""
    program = " ".join(map(quote, argv))
    if settings.site.container.kind != "pyxis":
        return _LINE_END.join([*_inside(settings, mounts), program])
    pyxis = _pyxis(settings, ["PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED"], mounts)
    starter = 'srun --overlap --nodes=1 --ntasks=1 --nodelist="${SLURMD_NODENAME:-$host}"'
    return _LINE_END.join([starter, *pyxis, program])


PROBE_SECONDS = 30
"""Time within which a node must start one process.

Slurm waits 10 s for one without power.
"""


def probe_command(settings: Settings) -> str:
    """Return the command that succeeds if the node `$node` of a job can start a process."""
    if settings.site.scheduler == "pbs":
        return f'timeout {PROBE_SECONDS} mpiexec -n 1 --ppn 1 --hosts "$node" true'
    where = '--nodes=1 --ntasks=1 --nodelist="$node"'
    return f"timeout {PROBE_SECONDS} srun --overlap {where} true"


def near_removal_command(settings: Settings, argv: Sequence[str], mounts: Sequence[str]) -> str:
    """Return the command of one process on the node `$node`, in the training's container."""
    if settings.site.scheduler == "pbs":
        starter = 'timeout 60 mpiexec -n 1 --ppn 1 --hosts "$node"'
    else:
        starter = 'timeout 60 srun --overlap --nodes=1 --ntasks=1 --nodelist="$node"'

    pyxis = _pyxis(settings, ["PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED"], mounts)
    program = " ".join(map(quote, argv))
    return _LINE_END.join([starter, *pyxis, *_inside(settings, mounts), program])


RUNG_SCRIPT = 'bash "$job/rung.sh"'
"""The script that each node of the preflight job runs: see templates/rung.sh.j2."""


def rung_command(
    settings: Settings,
    job: Job,
    rung: str,
    variables: Sequence[str],
    mounts: Sequence[str],
) -> str:
    """Return the command of one process on each node, in the container of the training."""
    inner = [*_inside(settings, mounts), f"{RUNG_SCRIPT} {rung}"]
    if settings.site.scheduler == "pbs":
        return _LINE_END.join([*_mpiexec(settings, job, 1), *inner])
    container = _pyxis(settings, variables, mounts)
    # A node that cannot start the program must not end the others before they answer.
    arguments = []
    for word in _srun(settings, job, 1):
        if not word.startswith("--kill-on-bad-exit"):
            arguments.append(word)

    return _LINE_END.join([*arguments, "--kill-on-bad-exit=0", *container, *inner])


def node_command(settings: Settings, job: Job) -> str:
    """Return the command of the site's set-up: one process per node, outside the container."""
    starter = _mpiexec if settings.site.scheduler == "pbs" else _srun
    return _LINE_END.join([*starter(settings, job, 1), 'bash "$job/node.sh"'])


def copy_command(settings: Settings, job: Job, action: str) -> str:
    """Return the command that makes or removes the copy of the environment on each node of a job.

    `action` is --unpack or --remove.
    """
    program = f"{COPIED_PYTHON} {action}"
    if settings.site.scheduler == "local":
        return program
    starter = _mpiexec if settings.site.scheduler == "pbs" else _srun_each_node
    return _LINE_END.join([*starter(settings, job, 1), program])


def removal_where_nodes_answer(settings: Settings, job: Job) -> str:
    """Return the command that removes the copy on the job's `trusted` nodes.

    The job may have lost other nodes.
    """
    program = f"{COPIED_PYTHON} --remove"
    names = '"$(IFS=,; echo "${trusted[*]}")"'
    count = '"${#trusted[@]}"'
    if settings.site.scheduler == "pbs":
        command = ["mpiexec", f"-n {count}", "--ppn 1", f"--hosts {names}"]
        command += [quote(option) for option in settings.site.step_options]
        return _LINE_END.join([*command, program])

    command = _srun_each_node(settings, job, 1)
    command[1:4] = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
    return _LINE_END.join([*command, f"--nodelist={names}", program])


def _srun_each_node(settings: Settings, job: Job, tasks: int) -> list[str]:
    """Return srun with one task per node, in which a failed task does not end the others."""
    arguments = _srun(settings, job, tasks)
    return [word.replace("--kill-on-bad-exit=1", "--kill-on-bad-exit=0") for word in arguments]


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


def _mpiexec(
    settings: Settings,
    job: Job,
    tasks: int,
    count: NodeCount | None = None,
) -> list[str]:
    site = settings.site
    count = count or NodeCount(job.nodes)
    argv = ["mpiexec", f"-n {count.times(tasks)}", f"--ppn {tasks}", '--hostfile "$job/hostfile"']
    lists = site.binding.cpu_lists[: job.devices_per_node]
    if lists and tasks == job.devices_per_node:
        argv.append(f"--cpu-bind {quote('list:' + ':'.join(lists))}")
    return [*argv, *(quote(option) for option in site.step_options)]


def _pyxis(settings: Settings, variables: Sequence[str], mounts: Sequence[str]) -> list[str]:
    container = settings.site.container
    if container.kind != "pyxis":
        return []
    inside = ",".join(['"$PWD:$PWD"', *(quote(_mount(mount)) for mount in mounts)])
    options = [
        f"--container-image={_image(settings)}",
        f"--container-mounts={inside}",
        '--container-workdir="$PWD"',
    ]
    options.append("--container-mount-home" if container.home else "--no-container-mount-home")
    if variables:
        # The image's own values of these would override the job's.
        options.append(f"--container-env={','.join(sorted(variables))}")

    return [*options, *(quote(option) for option in container.options)]


def _inside(settings: Settings, mounts: Sequence[str]) -> list[str]:
    container = settings.site.container
    if container.kind != "singularity":
        return []
    binds = [f"--bind {quote(_mount(mount))}" for mount in mounts]
    home = [] if container.home else ["--no-home"]
    options = [quote(option) for option in container.options]
    return [
        "singularity exec",
        '--bind "$PWD"',
        *binds,
        '--pwd "$PWD"',
        *home,
        *options,
        _image(settings),
    ]


def _starter(settings: Settings, job: Job, count: NodeCount) -> list[str]:
    """Return the command words that start a node's ranks.

    They are torchrun or deepspeed, run by the interpreter that has the trainer.

    The bare names `torchrun` and `deepspeed` are another installation's where PATH has one.
    """
    python = python_command(settings)
    if settings.site.launcher == "torchrun":
        return [
            f"{python} -m torch.distributed.run",
            f"--nnodes={count.times(1)}",
            f"--nproc-per-node={job.devices_per_node}",
            '--rdzv-id="$job_number"',
            "--rdzv-backend=c10d",
            '--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"',
            "--no-python bash",
        ]

    if settings.site.launcher == "deepspeed":
        if job.nodes > 1:
            raise JobError(JobMessage.LAUNCHER_NEEDS_SSH, nodes=job.nodes)

        return [
            f"{python} -m deepspeed.launcher.runner",
            f"--num_gpus={job.devices_per_node}",
            '--master_port="$MASTER_PORT"',
            "--no_local_rank",
            "--no_python bash",
        ]

    return ["bash"]


def _image(settings: Settings) -> str:
    container = settings.site.container
    if container.image:
        return quote(image_on_nodes(settings))
    if container.variable:
        return f'"${{{container.variable}}}"'
    raise ParamsError(JobMessage.NO_IMAGE, site=settings.site.site)


def image_on_nodes(settings: Settings) -> str:
    """Return the image as the nodes open it.

    It is their own copy where jobs.image_copy names a folder for it.
    """
    image = settings.site.container.image
    folder = settings.run.jobs.image_copy.rstrip("/")
    if not folder or not image:
        return image
    if not image.startswith("/"):
        raise ParamsError(JobMessage.IMAGE_NOT_A_FILE, folder=folder, image=image)

    return f"{folder}/{PurePosixPath(image).name}"


def _mount(mount: str) -> str:
    outside, _, inside = mount.partition(":")
    text = f"{outside}:{inside or outside}"
    if text.count(":") > 1 or "," in text:
        raise ParamsError(JobMessage.MOUNT_WITH_SEPARATOR, mount=mount)

    if not PurePosixPath(outside).is_absolute():
        raise ParamsError(JobMessage.MOUNT_NOT_ABSOLUTE, mount=mount)

    return text
