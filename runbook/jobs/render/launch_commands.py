"""What a job asks of its queue, and the commands that start its processes.

Step program, container, process starter.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from runbook.core.errors import JobError, ParamsError
from runbook.core.units import show_clock
from runbook.jobs.render.templating import environment_groups, quote
from runbook.params import Job, Settings
from runbook.params.schema.run_file import JOB_SECTIONS
from runbook.params.schema.site import Site

RANK_SCRIPT = '"$job/rank.sh"'
"""What each process runs: it learns its rank, takes its cores and becomes the training program."""
_LINE_END = " \\\n  "


def training_command(
    settings: Settings, job: Job, variables: Sequence[str], mounts: Sequence[str]
) -> str:
    """Everything between the job's script and rank.sh, on all its nodes.

    A line for each option with its value.
    """
    site = settings.site
    inner = [*_inside(settings, mounts), *_starter(settings, job), RANK_SCRIPT]
    if site.launcher == "mpiexec":
        return _LINE_END.join([*_mpiexec(settings, job, job.devices_per_node), *inner])
    if site.scheduler == "pbs":
        raise JobError(
            f"site {site.site}: launcher {site.launcher} needs srun on every node, which PBS does "
            "not have. Set the site's launcher to mpiexec."
        )
    return _LINE_END.join(
        [*_srun(settings, job, job.tasks_per_node), *_pyxis(settings, variables, mounts), *inner]
    )


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
    options = [
        f"--container-image={_image(settings)}",
        f"--container-mounts={inside}",
        '--container-workdir="$PWD"',
    ]
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
    return [
        "singularity exec",
        '--bind "$PWD"',
        *binds,
        '--pwd "$PWD"',
        *home,
        *options,
        _image(settings),
    ]


def _starter(settings: Settings, job: Job) -> list[str]:
    """Words that start a node's ranks.

    Of torchrun or deepspeed, by the interpreter that has the trainer.

    The bare names `torchrun` and `deepspeed` are another installation's where PATH has one.
    """
    python = quote(settings.site.python or "python3")
    if settings.site.launcher == "torchrun":
        return [
            f"{python} -m torch.distributed.run",
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
                f"jobs asks for {job.nodes} nodes, but the deepspeed launcher reaches other nodes "
                "by ssh without a password, which queues do not give. Set the site's launcher to "
                "torchrun, or nodes to 1."
            )
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
    raise ParamsError(
        f"site {settings.site.site} runs jobs in a container, and no image is named. Set "
        "jobs.image to a file or a registry reference."
    )


def image_on_nodes(settings: Settings) -> str:
    """The image as the nodes open it.

    Their own copy where jobs.image_copy names a folder for it.
    """
    image = settings.site.container.image
    folder = settings.run.jobs.image_copy.rstrip("/")
    if not folder or not image:
        return image
    if not image.startswith("/"):
        raise ParamsError(
            f"jobs.image_copy={folder}: {image} is no file that could be copied to the nodes. "
            "Leave jobs.image_copy empty, or set jobs.image to a .sqsh or .sif file."
        )
    return f"{folder}/{PurePosixPath(image).name}"


def _mount(mount: str) -> str:
    outside, _, inside = mount.partition(":")
    text = f"{outside}:{inside or outside}"
    if text.count(":") > 1 or "," in text:
        raise ParamsError(
            f"{mount!r} cannot be mounted: ',' and ':' separate mounts. Rename the folder, or "
            "link to it under another name."
        )
    if not PurePosixPath(outside).is_absolute():
        raise ParamsError(
            f"{mount!r} cannot be mounted: a mount is an absolute path. Write it from /."
        )
    return text


WARNING_SECONDS = 300
"""A job hears of its time limit this long before it ends, so that it can save.

A 2.4 TB checkpoint takes minutes.
"""


def warn_after(job: Job) -> int:
    """Seconds after which a job asks itself to stop, where its queue gives no warning; 0.

    It is too short for that.
    """
    return job.walltime - WARNING_SECONDS if job.walltime > 2 * WARNING_SECONDS else 0


def queue_values(
    settings: Settings, phase: str, job: Job, *, devices: bool = True
) -> dict[str, object]:
    """What the template of any job of a queue is filled with; `phase` names it in the queue."""
    directives = slurm_directives if settings.site.scheduler == "slurm" else pbs_directives
    return {
        "directives": directives(settings, phase, job, devices=devices),
        "run": settings.name,
        "site": settings.site,
        "job": job,
        "environment": environment_groups(settings),
    }


def slurm_directives(
    settings: Settings, phase: str, job: Job, *, devices: bool = True
) -> list[str]:
    """Lines of #SBATCH. Output goes to the job's folder, where the job is submitted from."""
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
        "array": f"0-{job.array - 1}" if job.array > 1 else "",
        "signal": f"B:USR1@{WARNING_SECONDS}" if warn_after(job) else "",
    }
    if devices and site.hardware.device != "cpu" and site.devices_directive:
        prefix = "gpu:" if site.devices_directive == "gres" else ""
        values[site.devices_directive] = f"{prefix}{job.devices_per_node}"
    values = {**site.directives, **{name: value for name, value in values.items() if value}}
    return [
        f"#SBATCH --{_plain(name, name)}"
        + ("" if value is True or value == "" else f"={_plain(name, value)}")
        for name, value in sorted(values.items())
    ]


def pbs_directives(settings: Settings, phase: str, job: Job, *, devices: bool = True) -> list[str]:
    """Lines of #PBS.

    Resources by -l, the rest by letters, where a site's own words of one letter (k, W) go too.

    `-k doe` writes out and err in their place while the job runs; by default PBS copies them there
    at its end.
    """
    site = settings.site
    if job.qos:
        raise ParamsError(
            f"jobs.<phase>.qos={job.qos}: PBS has no quality of service. Leave it empty, and name "
            "the queue in jobs.<phase>.partition."
        )
    if job.reservation:
        raise ParamsError(
            f"jobs.<phase>.reservation={job.reservation}: in PBS a reservation is a queue "
            "(pbs_rstat shows its name). Leave this empty, and set jobs.<phase>.partition to "
            "that queue."
        )
    given = {
        "k": "doe",
        "r": "y",
        **{name: value for name, value in site.directives.items() if len(name) == 1},
    }
    ours = {
        "N": f"{settings.name}-{phase}",
        "A": job.account,
        "q": job.partition,
        "o": "out",
        "e": "err",
        "J": f"0-{job.array - 1}" if job.array > 1 else "",
    }
    letters = {**given, **{letter: value for letter, value in ours.items() if value}}
    resources = {name: value for name, value in site.directives.items() if len(name) > 1}
    if job.nodes > 1:
        resources.setdefault(
            "place", "scatter"
        )  # by default PBS puts two nodes' work on one that has the cores
    section = next(section for name, section in JOB_SECTIONS.items() if phase.startswith(name))
    asked = bool(getattr(settings.run.jobs, section).cpus_per_task)
    resources["select"] = f"{job.nodes}{_chunk(settings.site, job, devices, asked)}"
    resources["walltime"] = (
        show_clock(job.walltime) if job.walltime else resources.get("walltime", "")
    )
    return [
        f"#PBS -{letter}" + (f" {_plain(letter, value)}" if value else "")
        for letter, value in sorted(letters.items())
    ] + [
        f"#PBS -l {_plain(name, name)}={_plain(name, value)}"
        for name, value in sorted(resources.items())
        if value
    ]


def _chunk(site: Site, job: Job, devices: bool, asked: bool) -> str:
    """What each node gives, after `select=<nodes>`.

    The site's own `select` wins over what is computed.

    `asked`: the run file itself says how many cores, which wins over the site.
    """
    chunk = {
        part.partition("=")[0]: part
        for part in site.directives.get("select", "").split(":")
        if part
    }
    if (site.cores_directive or asked) and job.cpus_per_task:
        name = site.cores_directive or "ncpus"
        if asked or name not in chunk:
            chunk[name] = f"{name}={job.cpus_per_task * job.tasks_per_node}"
    if devices and site.hardware.device != "cpu" and site.devices_directive == "ngpus":
        chunk.setdefault("ngpus", f"ngpus={job.devices_per_node}")
    if job.memory:
        chunk["mem"] = f"mem={_pbs_memory(job.memory)}"
    return "".join(f":{chunk[name]}" for name in sorted(chunk))


def _pbs_memory(text: str) -> str:
    """A size in PBS's form.

    >>> _pbs_memory("480G"), _pbs_memory("1024")
    ('480gb', '1024mb')
    """
    match = re.fullmatch(r"([1-9]\d*)([KMGT]?)B?", text.upper())
    if match is None:
        raise ParamsError(
            f"jobs.<phase>.memory: {text!r} is not a size that PBS knows. Write a number with K, "
            "M, G or T, such as 480G; leave it empty for what the queue gives (PBS has no word "
            "for all of a node's memory)."
        )
    return f"{match[1]}{match[2].lower() or 'm'}b"


def _plain(name: str, value: object) -> str:
    text = str(value)
    if not re.fullmatch(r"[A-Za-z0-9_.,:/@%+=*\[\]-]+", text):
        raise ParamsError(
            f"{name}: {text!r} cannot stand in a line for the queue, which has no quotes: use "
            "letters, digits and _ . , : / @ % + = * [ ] - only."
        )
    return text
