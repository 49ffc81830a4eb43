"""What a job asks of the queue, as the first lines of its script: sorted, each value one plain word."""

from __future__ import annotations

import re

from runbook.errors import ParamsError
from runbook.params import Job, Settings

_PLAIN = re.compile(r"[A-Za-z0-9_.,:/@%+=*\[\]-]+")

WARNING_SECONDS = 300
"""How long before its time limit a job is told, so that it saves; a 2.4 TB checkpoint takes minutes."""


def warn_after(job: Job) -> int:
    """Seconds after which a job asks itself to stop, where its queue gives no warning; 0: it is too short for that."""
    return job.walltime - WARNING_SECONDS if job.walltime > 2 * WARNING_SECONDS else 0


def slurm_directives(settings: Settings, phase: str, job: Job, *, devices: bool = True) -> list[str]:
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
        "time": _clock(job.walltime),
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
    lines = []
    for name, value in sorted(values.items()):
        flag = value is True or value == ""
        lines.append(f"#SBATCH --{_plain(name, name)}" + ("" if flag else f"={_plain(name, value)}"))
    return lines


def pbs_directives(settings: Settings, phase: str, job: Job, *, devices: bool = True) -> list[str]:
    """Lines of #PBS: resources by -l, the rest by letters; a site's `select` says which devices a node has."""
    site = settings.site
    resources: dict[str, object] = {"walltime": _clock(job.walltime), **site.directives}
    select = resources.pop("select", "")
    resources["select"] = f"{job.nodes}:{select}" if select else f"{job.nodes}"
    letters = {"N": f"{settings.name}-{phase}", "A": job.account, "q": job.partition, "o": "out", "e": "err", "r": "y"}
    letters["J"] = f"0-{job.array - 1}" if job.array > 1 else ""
    lines = [f"#PBS -{letter} {_plain(letter, value)}" for letter, value in sorted(letters.items()) if value]
    return lines + [
        f"#PBS -l {_plain(name, name)}={_plain(name, value)}" for name, value in sorted(resources.items()) if value
    ]


def _plain(name: str, value: object) -> str:
    text = str(value)
    if not _PLAIN.fullmatch(text):
        raise ParamsError(
            f"{name}: {text!r} cannot stand in a line for the queue, which has no quotes: use letters, digits and "
            "_ . , : / @ % + = * [ ] - only."
        )
    return text


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}" if seconds else ""
