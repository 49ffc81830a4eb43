"""#SBATCH and #PBS lines, with which a job requests resources from its queue."""

import re

from runbook.core.errors import ParamsError
from runbook.core.units import show_clock
from runbook.jobs.messages import JobMessage
from runbook.jobs.render.templating import environment_groups
from runbook.params import Job, Settings
from runbook.params.schema.run_file import JOB_SECTIONS
from runbook.params.schema.site import Site

WARNING_SECONDS = 300
"""Warning that a job gets before its time limit, so that it can save.

A checkpoint of 2.4 TB takes minutes.
"""


def warn_after(job: Job) -> int:
    """Return the seconds after which a job requests its own stop.

    A queue may give no warning. The result is 0 if the job is too short for one.
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
    directives = DIRECTIVES[settings.site.scheduler]
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

    Output goes to the job's folder, where the job is submitted from. A site's directive is kept
    unless we set the same directive.
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
    """Return the numbers of an array's elements, or an empty text if the job is not an array."""
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

    A site may change `-k` and `-r`, but not the directives of the job itself.

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


DIRECTIVES = {"slurm": slurm_directives, "pbs": pbs_directives}
"""The function that writes a job's requests, by scheduler."""
