"""What a script asks of the queue, as keys under `jobs`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from runbook.adopt.findings import Findings, whole
from runbook.adopt.marks import Word, is_known, shown
from runbook.adopt.script import Directive
from runbook.params.catalogue import Site
from runbook.units import parse_duration

JOB = "jobs.training"


def clock(text: str) -> str:
    """A time limit as the run file has it; Slurm's bare number is minutes.

    >>> clock("30"), clock("1-00:00:00"), clock("01:00:00"), clock("45:00")
    ('00:30:00', '24:00:00', '01:00:00', '00:45:00')
    """
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, (*parts, 0)[:2]
    total = parse_duration((int(days) * 24 + hours if dash else hours) * 3600 + minutes * 60 + seconds)
    return f"{total // 3600:02d}:{total % 3600 // 60:02d}:{total % 60:02d}"


def _devices(text: str) -> int:
    return int(re.findall(r"\d+", text)[-1]) if re.search(r"\d", text) else whole("")


_SLURM: dict[str, tuple[str, Callable[[str], object]]] = {
    "nodes": (f"{JOB}.nodes", whole),
    "partition": (f"{JOB}.partition", str),
    "qos": (f"{JOB}.qos", str),
    "reservation": (f"{JOB}.reservation", str),
    "time": (f"{JOB}.walltime", clock),
    "account": ("jobs.account", str),
    "gpus-per-node": (f"{JOB}.devices_per_node", _devices),
    "gres": (f"{JOB}.devices_per_node", _devices),
    "ntasks-per-node": (f"{JOB}.tasks_per_node", whole),
    "cpus-per-task": (f"{JOB}.cpus_per_task", whole),
    "mem": (f"{JOB}.memory", str),
}
_PBS: dict[str, tuple[str, Callable[[str], object]]] = {
    "q": (f"{JOB}.partition", str),
    "A": ("jobs.account", str),
    "walltime": (f"{JOB}.walltime", clock),
}
_OURS = {
    "job-name": "the run's name and the phase",
    "output": "`out` in the job's folder",
    "error": "`err` in the job's folder",
    "open-mode": "always append",
    "requeue": "always given",
    "signal": "always given where there is a time limit",
    "ntasks": "nodes x tasks on a node",
    "gpus-per-task": "all of a node's devices belong to its one task",
    "ntasks-per-gpu": "the launcher decides",
    "N": "the run's name and the phase",
    "o": "`out` in the job's folder",
    "e": "`err` in the job's folder",
    "j": "`out` and `err` are two files",
    "r": "always rerunnable",
    "V": "a job that takes its shell's environment cannot be repeated",
    "S": "bash",
}


def take_directives(directives: Sequence[Directive], findings: Findings, site: Site) -> None:
    """Values of #SBATCH and #PBS lines; what the site asks for already, or the runbook always gives, needs no key."""
    for one in directives:
        sign = f"{'#SBATCH --' if one.queue == 'slurm' else '#PBS '}{one.name}"
        table = _SLURM if one.queue == "slurm" else _PBS
        text = f"{sign}={one.value}" if one.value else sign
        if one.queue == "pbs" and one.name == "select":
            _select(one, findings, site)
        elif one.name in table:
            key, read = table[one.name]
            value = one.value
            if key.endswith("walltime"):
                value = value.strip('"')
            source = sign if is_known(value) else shown(sign)
            findings.read(key, Word(value, one.line), source, read)
        elif site.directives.get(one.name) == one.value:
            findings.does(one.line, text, f"params/sites/{site.site}.yaml asks for it")
        elif one.name in _OURS:
            findings.does(one.line, text, _OURS[one.name])
        else:
            where = f"write it under directives of params/sites/{site.site}.yaml"
            findings.leave(one.line, text, f"no key of the run file has it: {where}")


def drop_defaults(findings: Findings, site: Site, one_task: bool) -> None:
    """Leave out what a job gets anyway, so that the run file says what is special."""
    devices = findings.number(f"{JOB}.devices_per_node") or site.hardware.devices_per_node
    tasks = findings.number(f"{JOB}.tasks_per_node")
    if tasks == (1 if one_task else devices):
        findings.drop(f"{JOB}.tasks_per_node")
    if findings.number(f"{JOB}.devices_per_node") == site.hardware.devices_per_node:
        findings.drop(f"{JOB}.devices_per_node")
    if findings.value(f"{JOB}.memory") == site.directives.get("mem"):
        findings.drop(f"{JOB}.memory")
    cores = site.hardware.cores_per_node // max(1, tasks or (1 if one_task else devices))
    if findings.number(f"{JOB}.cpus_per_task") == cores:
        findings.drop(f"{JOB}.cpus_per_task")


def _select(one: Directive, findings: Findings, site: Site) -> None:
    nodes, _, rest = one.value.partition(":")
    findings.read(f"{JOB}.nodes", Word(nodes, one.line), "#PBS -l select", whole)
    if rest and rest != site.directives.get("select"):
        where = f"write it under directives.select of params/sites/{site.site}.yaml"
        findings.leave(one.line, f"#PBS -l select={one.value}", f"{rest}: {where}")
