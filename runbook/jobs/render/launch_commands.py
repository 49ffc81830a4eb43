"""The commands that start a job's processes: step program, container, process starter, as words of the shell."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from runbook.core.errors import JobError, ParamsError
from runbook.jobs.render.templating import quote
from runbook.params import Job, Settings

RANK_SCRIPT = '"$job/rank.sh"'
"""What each process runs: it learns its rank, takes its cores and becomes the training program."""
_LINE_END = " \\\n  "


def training_command(settings: Settings, job: Job, variables: Sequence[str], mounts: Sequence[str]) -> str:
    """Everything between the job's script and rank.sh, on all its nodes; a line for each option with its value."""
    site = settings.site
    inner = [*_inside(settings, mounts), *_starter(settings, job), RANK_SCRIPT]
    if site.launcher == "mpiexec":
        return _LINE_END.join([*_mpiexec(settings, job, job.devices_per_node), *inner])
    if site.scheduler == "pbs":
        raise JobError(
            f"site {site.site}: launcher {site.launcher} needs srun on every node, which PBS does not have. "
            "Set the site's launcher to mpiexec."
        )
    return _LINE_END.join([*_srun(settings, job, job.tasks_per_node), *_pyxis(settings, variables, mounts), *inner])


def single_command(settings: Settings, argv: Sequence[str], mounts: Sequence[str]) -> str:
    """One process of a job on one node, in the container that the training runs in."""
    step = ["srun --nodes=1 --ntasks=1"] if settings.site.container.kind == "pyxis" else []
    pyxis = _pyxis(settings, ["PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED"], mounts)
    return _LINE_END.join([*step, *pyxis, *_inside(settings, mounts), " ".join(map(quote, argv))])


def node_command(settings: Settings, job: Job) -> str:
    """One process on each node, outside the container, for what the site does before a training."""
    starter = _mpiexec if settings.site.scheduler == "pbs" else _srun
    return _LINE_END.join([*starter(settings, job, 1), 'bash "$job/node.sh"'])


def _srun(settings: Settings, job: Job, tasks: int) -> list[str]:
    site = settings.site
    argv = [
        "srun",
        f"--nodes={job.nodes}",
        f"--ntasks={job.nodes * tasks}",
        f"--ntasks-per-node={tasks}",
        "--kill-on-bad-exit=1",
    ]
    if job.cpus_per_task:
        argv.append(f"--cpus-per-task={job.cpus_per_task * job.tasks_per_node // tasks}")
    masks = site.binding.cpu_masks[: job.devices_per_node]
    if masks and site.launcher == "srun" and tasks == job.devices_per_node:
        argv.append(quote("--cpu-bind=mask_cpu:" + ",".join(f"0x{mask}" for mask in masks)))
    return [*argv, *(quote(option) for option in site.step_options)]


def _mpiexec(settings: Settings, job: Job, tasks: int) -> list[str]:
    site = settings.site
    argv = ["mpiexec", f"-n {job.nodes * tasks}", f"--ppn {tasks}", '--hostfile "$job/hostfile"']
    lists = site.binding.cpu_lists[: job.devices_per_node]
    if lists and tasks == job.devices_per_node:
        argv.append(f"--cpu-bind {quote('list:' + ':'.join(lists))}")
    return [*argv, *(quote(option) for option in site.step_options)]


def _pyxis(settings: Settings, variables: Sequence[str], mounts: Sequence[str]) -> list[str]:
    container = settings.site.container
    if container.kind != "pyxis":
        return []
    inside = ",".join(['"$PWD:$PWD"', *(quote(_mount(mount)) for mount in mounts)])
    options = [f"--container-image={_image(settings)}", f"--container-mounts={inside}", '--container-workdir="$PWD"']
    options.append("--container-mount-home" if container.home else "--no-container-mount-home")
    if variables:
        # What the image sets by itself would win over the job's own value of these.
        options.append(f"--container-env={','.join(sorted(variables))}")
    return [*options, *(quote(option) for option in container.options)]


def _inside(settings: Settings, mounts: Sequence[str]) -> list[str]:
    container = settings.site.container
    if container.kind != "singularity":
        return []
    binds = [f"--bind {quote(_mount(mount))}" for mount in mounts]
    home = [] if container.home else ["--no-home"]
    options = [quote(option) for option in container.options]
    return ["singularity exec", '--bind "$PWD"', *binds, '--pwd "$PWD"', *home, *options, _image(settings)]


def _starter(settings: Settings, job: Job) -> list[str]:
    if settings.site.launcher == "torchrun":
        return [
            "torchrun",
            f"--nnodes={job.nodes}",
            f"--nproc-per-node={job.devices_per_node}",
            '--rdzv-id="$job_number"',
            "--rdzv-backend=c10d",
            '--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"',
            "--no-python bash",
        ]
    if settings.site.launcher == "deepspeed":
        if job.nodes > 1:
            raise JobError(
                f"jobs asks for {job.nodes} nodes, but the deepspeed launcher reaches other nodes by ssh without a "
                "password, which queues do not give. Set the site's launcher to torchrun, or nodes to 1."
            )
        argv = ["deepspeed", f"--num_gpus={job.devices_per_node}", '--master_port="$MASTER_PORT"']
        return [*argv, "--no_local_rank", "--no_python bash"]
    return ["bash"]


def _image(settings: Settings) -> str:
    container = settings.site.container
    if container.image:
        return quote(image_on_nodes(settings))
    if container.variable:
        return f'"${{{container.variable}}}"'
    raise ParamsError(
        f"site {settings.site.site} runs jobs in a container, and no image is named. Set jobs.image to a file or a "
        "registry reference."
    )


def image_on_nodes(settings: Settings) -> str:
    """The image as the nodes open it: their own copy where jobs.image_copy names a folder for it."""
    image, folder = settings.site.container.image, settings.run.jobs.image_copy.rstrip("/")
    if not folder or not image:
        return image
    if not image.startswith("/"):
        raise ParamsError(
            f"jobs.image_copy={folder}: {image} is no file that could be copied to the nodes. Leave jobs.image_copy "
            "empty, or set jobs.image to a .sqsh or .sif file."
        )
    return f"{folder}/{PurePosixPath(image).name}"


def _mount(mount: str) -> str:
    outside, _, inside = mount.partition(":")
    text = f"{outside}:{inside or outside}"
    if text.count(":") > 1 or "," in text:
        raise ParamsError(
            f"{mount!r} cannot be mounted: ',' and ':' separate mounts. Rename the folder, or link to it under "
            "another name."
        )
    if not PurePosixPath(outside).is_absolute():
        raise ParamsError(f"{mount!r} cannot be mounted: a mount is an absolute path. Write it from /.")
    return text
