"""What a job asks of the queue, as the first lines of its script: sorted, each value one plain word."""

import re

from runbook.core.errors import ParamsError
from runbook.core.units import show_clock
from runbook.jobs.render.templating import environment_groups
from runbook.params import Job, Settings
from runbook.params.schema.run_file import JOB_SECTIONS
from runbook.params.schema.site import Site

WARNING_SECONDS = 300
"""How long before its time limit a job is told, so that it saves; a 2.4 TB checkpoint takes minutes."""


def warn_after(job: Job) -> int:
    """Seconds after which a job asks itself to stop, where its queue gives no warning; 0: it is too short for that."""
    return job.walltime - WARNING_SECONDS if job.walltime > 2 * WARNING_SECONDS else 0


def queue_values(settings: Settings, phase: str, job: Job, *, devices: bool = True) -> dict[str, object]:
    """What the template of any job of a queue is filled with; `phase` names it in the queue."""
    directives = slurm_directives if settings.site.scheduler == "slurm" else pbs_directives
    return {
        "directives": directives(settings, phase, job, devices=devices),
        "run": settings.name,
        "site": settings.site,
        "job": job,
        "environment": environment_groups(settings),
    }


def slurm_directives(settings: Settings, phase: str, job: Job, *, devices: bool = True) -> list[str]:
    """Lines of #SBATCH. Output goes to the job's folder, where the job is submitted from."""
    site = settings.site
    values: dict[str, object] = {
        "job-name": f"{settings.name}-{phase}", "nodes": job.nodes, "ntasks-per-node": job.tasks_per_node,
        "cpus-per-task": job.cpus_per_task, "mem": job.memory, "partition": job.partition, "account": job.account,
        "qos": job.qos, "reservation": job.reservation, "time": show_clock(job.walltime) if job.walltime else "",
        "output": "out", "error": "err", "open-mode": "append", "requeue": True,
        "array": f"0-{job.array - 1}" if job.array > 1 else "",
        "signal": f"B:USR1@{WARNING_SECONDS}" if warn_after(job) else "",
    }  # fmt: skip
    if devices and site.hardware.device != "cpu" and site.devices_directive:
        prefix = "gpu:" if site.devices_directive == "gres" else ""
        values[site.devices_directive] = f"{prefix}{job.devices_per_node}"
    values = {**site.directives, **{name: value for name, value in values.items() if value}}
    return [
        f"#SBATCH --{_plain(name, name)}" + ("" if value is True or value == "" else f"={_plain(name, value)}")
        for name, value in sorted(values.items())
    ]


def pbs_directives(settings: Settings, phase: str, job: Job, *, devices: bool = True) -> list[str]:
    """Lines of #PBS: resources by -l, the rest by letters, where a site's own words of one letter (k, W) go too.

    `-k doe` writes out and err in their place while the job runs; by default PBS copies them there at its end.
    """
    site = settings.site
    if job.qos:
        raise ParamsError(
            f"jobs.<phase>.qos={job.qos}: PBS has no quality of service. Leave it empty, and name the queue in "
            "jobs.<phase>.partition."
        )
    if job.reservation:
        raise ParamsError(
            f"jobs.<phase>.reservation={job.reservation}: in PBS a reservation is a queue (pbs_rstat shows its name). "
            "Leave this empty, and set jobs.<phase>.partition to that queue."
        )
    given = {"k": "doe", "r": "y", **{name: value for name, value in site.directives.items() if len(name) == 1}}
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
        resources.setdefault("place", "scatter")  # by default PBS puts two nodes' work on one that has the cores
    section = next(section for name, section in JOB_SECTIONS.items() if phase.startswith(name))
    asked = bool(getattr(settings.run.jobs, section).cpus_per_task)
    resources["select"] = f"{job.nodes}{_chunk(settings.site, job, devices, asked)}"
    resources["walltime"] = show_clock(job.walltime) if job.walltime else resources.get("walltime", "")
    return [
        f"#PBS -{letter}" + (f" {_plain(letter, value)}" if value else "") for letter, value in sorted(letters.items())
    ] + [f"#PBS -l {_plain(name, name)}={_plain(name, value)}" for name, value in sorted(resources.items()) if value]


def _chunk(site: Site, job: Job, devices: bool, asked: bool) -> str:
    """What each node gives, after `select=<nodes>`; the site's own `select` wins over what is computed.

    `asked`: the run file itself says how many cores, which wins over the site.
    """
    chunk = {part.partition("=")[0]: part for part in site.directives.get("select", "").split(":") if part}
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
            f"jobs.<phase>.memory: {text!r} is not a size that PBS knows. Write a number with K, M, G or T, such as "
            "480G; leave it empty for what the queue gives (PBS has no word for all of a node's memory)."
        )
    return f"{match[1]}{match[2].lower() or 'm'}b"


def _plain(name: str, value: object) -> str:
    text = str(value)
    if not re.fullmatch(r"[A-Za-z0-9_.,:/@%+=*\[\]-]+", text):
        raise ParamsError(
            f"{name}: {text!r} cannot stand in a line for the queue, which has no quotes: use letters, digits and "
            "_ . , : / @ % + = * [ ] - only."
        )
    return text
