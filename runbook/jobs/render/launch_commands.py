"""Directives of a job, and the commands that start its processes.

The commands are a step program, a container and a process starter.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from runbook.core.errors import JobError, ParamsError
from runbook.core.units import show_clock
from runbook.jobs.messages import JobMessage
from runbook.jobs.render.templating import environment_groups, quote
from runbook.params import Job, Settings
from runbook.params.schema.run_file import JOB_SECTIONS
from runbook.params.schema.site import Site

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

    Each option is on its own line, with its value. A job with spare nodes, or one that goes on
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


WARNING_SECONDS = 300
"""Warning that a job gets before its time limit, so that it can save.

A checkpoint of 2.4 TB takes minutes.
"""


def warn_after(job: Job) -> int:
    """Return the seconds after which a job requests its own stop.

    A queue may give no warning. 0 if the job is too short for one.
    """
    if job.walltime > 2 * WARNING_SECONDS:
        return job.walltime - WARNING_SECONDS
    return 0


def queue_values(
    settings: Settings,
    phase: str,
    job: Job,
    *,
    devices: bool = True,
) -> dict[str, object]:
    """Return the values for the template of any queued job. `phase` names it in the queue."""
    directives = slurm_directives if settings.site.scheduler == "slurm" else pbs_directives
    return {
        "directives": directives(settings, phase, job, devices=devices),
        "run": settings.name,
        "site": settings.site,
        "job": job,
        "environment": environment_groups(settings),
    }


def slurm_directives(
    settings: Settings,
    phase: str,
    job: Job,
    *,
    devices: bool = True,
) -> list[str]:
    """Return the lines of #SBATCH, sorted.

    Output goes to the job's folder, where the job is submitted from. A site's directive stands
    unless we set the same.
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
        "array": _array_range(job),
        "signal": f"B:USR1@{WARNING_SECONDS}" if warn_after(job) else "",
    }
    if devices and site.hardware.device != "cpu" and site.devices_directive:
        prefix = "gpu:" if site.devices_directive == "gres" else ""
        values[site.devices_directive] = f"{prefix}{job.devices_per_node}"

    ours = {name: value for name, value in values.items() if value}
    directives = {**site.directives, **ours}
    return [_slurm_line(name, value) for name, value in sorted(directives.items())]


def _slurm_line(name: str, value: object) -> str:
    is_flag = value is True or value == ""
    option = f"#SBATCH --{_plain(name, name)}"
    if is_flag:
        return option
    return f"{option}={_plain(name, value)}"


def _array_range(job: Job) -> str:
    """Return the numbers of an array's elements, or an empty text if the job is no array."""
    return f"0-{job.array - 1}" if job.array > 1 else ""


def pbs_directives(
    settings: Settings,
    phase: str,
    job: Job,
    *,
    devices: bool = True,
) -> list[str]:
    """Return the lines of #PBS: letters first, then resources by -l, each sorted.

    A site's directives of one letter (k, W) are letters, its others are resources.
    """
    _refuse_what_pbs_lacks(job)
    letters = _pbs_letters(settings, phase, job)
    resources = _pbs_resources(settings, phase, job, devices)
    letter_lines = [_pbs_letter_line(letter, value) for letter, value in sorted(letters.items())]
    resource_lines = []
    for name, value in sorted(resources.items()):
        if value:
            resource_lines.append(f"#PBS -l {_plain(name, name)}={_plain(name, value)}")

    return letter_lines + resource_lines


def _refuse_what_pbs_lacks(job: Job) -> None:
    if job.qos:
        raise ParamsError(JobMessage.PBS_WITHOUT_QOS, qos=job.qos)

    if job.reservation:
        raise ParamsError(JobMessage.PBS_RESERVATION, reservation=job.reservation)


def _pbs_letters(settings: Settings, phase: str, job: Job) -> dict[str, str]:
    """Return the options of one letter.

    A site may change `-k` and `-r`, but not what the job itself says.

    `-k doe` writes out and err in their place while the job runs; by default PBS copies them there
    at its end.
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
        "J": _array_range(job),
    }
    from_job = {letter: value for letter, value in from_job.items() if value}
    return {**defaults, **from_site, **from_job}


def _pbs_letter_line(letter: str, value: str) -> str:
    if value:
        return f"#PBS -{letter} {_plain(letter, value)}"
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
        # By default, PBS may place the work of two nodes on one that has enough cores.
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
    """Return the resources of each node, after `select=<nodes>`.

    The site's own `select` wins over what is computed; a number of cores in the run file wins over
    the site.
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
    """Return a size in PBS's notation.

    >>> _pbs_memory("480G"), _pbs_memory("1024")
    ('480gb', '1024mb')
    """
    match = re.fullmatch(r"([1-9]\d*)([KMGT]?)B?", text.upper())
    if match is None:
        raise ParamsError(JobMessage.NOT_A_PBS_SIZE, text=text)

    return f"{match[1]}{match[2].lower() or 'm'}b"


def _plain(name: str, value: object) -> str:
    text = str(value)
    if not re.fullmatch(r"[A-Za-z0-9_.,:/@%+=*\[\]-]+", text):
        raise ParamsError(JobMessage.NOT_A_DIRECTIVE_WORD, name=name, text=text)

    return text
