"""Commands used to start the processes in a job.

Each command consists of a process starter, a container and a program.
"""

from collections.abc import Sequence
from pathlib import PurePosixPath

from runbook.core.errors import JobError, ParamsError
from runbook.jobs.messages import JobMessage
from runbook.jobs.render.queue_scripts import NodeCount, mpiexec_words
from runbook.jobs.render.quoting import quote
from runbook.jobs.schedulers import get_queue_scripts
from runbook.params import Job, Settings

COPIED_PYTHON = 'bash "$RUNBOOK_JOB_FOLDER/python.sh"'
"""Python for jobs that run from a copy of their environment; see templates/python.sh.j2."""


def python_command(settings: Settings) -> str:
    """Return the command words used to start Python for the training processes."""
    if settings.run.jobs.environment_copy:
        return COPIED_PYTHON
    return quote(settings.site.python or "python3")


RANK_SCRIPT = '"$job/rank.sh"'
"""The script run by each process. It sets the rank, binds the process to cores and trains."""
_LINE_END = " \\\n  "


def training_command(
    settings: Settings,
    job: Job,
    variables: Sequence[str],
    mounts: Sequence[str],
    *,
    with_fewer_nodes: bool = False,
) -> str:
    """Return the command used to run rank.sh on all nodes of the job.

    Each option is on its own line, with its value. A job chooses its nodes at run time if it has
    spare nodes or may continue `with_fewer_nodes`.
    """
    site = settings.site
    count = NodeCount(job.nodes, varies=with_fewer_nodes)
    inner = [*_inside(settings, mounts), *_starter(settings, job, count), RANK_SCRIPT]
    if site.launcher == "mpiexec":
        starter = mpiexec_words(settings, job, job.devices_per_node, count)
        return _LINE_END.join([*starter, *inner])

    step = get_queue_scripts(site).training_starter(
        settings, job, count, chooses_nodes=job.spares > 0 or with_fewer_nodes
    )
    container = _pyxis(settings, variables, mounts)
    return _LINE_END.join([*step, *container, *inner])


def single_command(settings: Settings, argv: Sequence[str], mounts: Sequence[str]) -> str:
    """Return the command for the only process of a one-node job, in the training container."""
    step = ["srun --nodes=1 --ntasks=1"] if settings.site.container.kind == "pyxis" else []
    pyxis = _pyxis(settings, ["PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED"], mounts)
    program = " ".join(map(quote, argv))
    return _LINE_END.join([*step, *pyxis, *_inside(settings, mounts), program])


def one_process_command(settings: Settings, argv: Sequence[str], mounts: Sequence[str]) -> str:
    """Return the command for one process on a job's first node, in the training container."""
    program = " ".join(map(quote, argv))
    if settings.site.container.kind != "pyxis":
        return _LINE_END.join([*_inside(settings, mounts), program])
    pyxis = _pyxis(settings, ["PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED"], mounts)
    starter = 'srun --overlap --nodes=1 --ntasks=1 --nodelist="${SLURMD_NODENAME:-$host}"'
    return _LINE_END.join([starter, *pyxis, program])


REMOVAL_SECONDS = 60
"""Seconds within which a node must remove the copies in its memory."""


def near_removal_command(settings: Settings, argv: Sequence[str], mounts: Sequence[str]) -> str:
    """Return the command for one process on the node `$node`, in the training container."""
    starter = get_queue_scripts(settings.site).on_one_node(REMOVAL_SECONDS)
    pyxis = _pyxis(settings, ["PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED"], mounts)
    program = " ".join(map(quote, argv))
    return _LINE_END.join([starter, *pyxis, *_inside(settings, mounts), program])


RUNG_SCRIPT = 'bash "$job/rung.sh"'
"""Script to run on each node of the preflight job; see templates/rung.sh.j2."""


def rung_command(
    settings: Settings,
    job: Job,
    rung: str,
    variables: Sequence[str],
    mounts: Sequence[str],
) -> str:
    """Return the command for one process on each node, in the training container."""
    inner = [*_inside(settings, mounts), f"{RUNG_SCRIPT} {rung}"]
    queue = get_queue_scripts(settings.site)
    container = _pyxis(settings, variables, mounts) if queue.has_container_option else []
    return _LINE_END.join([*queue.on_each_node_to_answer(settings, job, container), *inner])


def node_command(settings: Settings, job: Job) -> str:
    """Return the command to run the site set-up, outside the container, once on each node."""
    starter = get_queue_scripts(settings.site).on_nodes(settings, job, 1)
    return _LINE_END.join([*starter, 'bash "$job/node.sh"'])


def copy_command(settings: Settings, job: Job, action: str) -> str:
    """Return the command to create or remove the environment copy on each node of a job.

    `action` is --unpack or --remove.
    """
    program = f"{COPIED_PYTHON} {action}"
    if settings.site.scheduler == "local":
        return program
    starter = get_queue_scripts(settings.site).on_each_node(settings, job)
    return _LINE_END.join([*starter, program])


def removal_where_nodes_answer(settings: Settings, job: Job) -> str:
    """Return the command to remove the copy from the `trusted` nodes.

    The job may have lost its other nodes.
    """
    program = f"{COPIED_PYTHON} --remove"
    queue = get_queue_scripts(settings.site)
    return _LINE_END.join(queue.on_trusted_nodes(settings, job, program))


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
        # The image sets these variables too, and its values would override those in the job.
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
    """Return the command words used to start the ranks on a node.

    The command runs torchrun or deepspeed with the interpreter that has the trainer, because the
    plain commands `torchrun` and `deepspeed` may belong to a different installation on PATH.
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
    """Return the path to the image on the nodes.

    If jobs.image_copy names a folder, this is the path to the copy on each node.
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
