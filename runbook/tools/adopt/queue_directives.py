"""Directives of ten queues (#SBATCH, #PBS, #BSUB ...), read as keys of the run file."""

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from runbook.core.units import clock_seconds, show_clock
from runbook.frameworks.options import whole
from runbook.jobs.script_directives import Directive
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.script import Word

JOB = "jobs.training"


def clock(text: str) -> str:
    """Return a Slurm time limit in the run file's format.

    A plain number means minutes. Raise `ValueError` if the text is not a time limit.

    >>> clock("30"), clock("1-00:00:00"), clock("01:00:00"), clock('"45:00"')
    ('00:30:00', '24:00:00', '01:00:00', '00:45:00')
    """
    seconds = clock_seconds(text.strip('"'))
    if not seconds:
        raise ValueError(text)
    return show_clock(seconds)


def _devices(text: str) -> int:
    """Return the device count, which is the last number in a text such as gpu:a100:4.

    Raise `ValueError` if there is no number.
    """
    numbers = re.findall(r"\d+", text)
    if not numbers:
        raise ValueError(text)
    return int(numbers[-1])


def lsf_clock(text: str) -> str:
    """Return an LSF time limit, [hours:]minutes, in the run file's format.

    >>> lsf_clock("2:00"), lsf_clock("90")
    ('02:00:00', '01:30:00')
    """
    hours, _, minutes = text.rpartition(":")
    return show_clock((int(hours or 0) * 60 + int(minutes)) * 60)


def _devices_of_lsf(text: str) -> int:
    """Return the devices of `-gpu "num=4:mode=shared"`.

    Raise `ValueError` if the text has no number.
    """
    match = re.search(r"num=(\d+)", text)
    if match is None:
        raise ValueError(text)
    return int(match[1])


def grid_clock(text: str) -> str:
    """Return a time limit of Grid Engine or Fujitsu's queue in the run file's format.

    The time limit is [[days:]hours:]minutes:seconds, or only seconds.

    >>> grid_clock("10:00:00:00"), grid_clock("75:40:00"), grid_clock("3600")
    ('240:00:00', '75:40:00', '01:00:00')
    """
    seconds = 0
    for part, unit in zip(reversed(text.split(":")), _SECONDS_OF, strict=False):
        seconds += int(part) * unit
    if not seconds:
        raise ValueError(text)
    return show_clock(seconds)


_SECONDS_OF = (1, 60, 3600, 86_400)
"""Seconds in each part of a time limit, beginning with the last part: seconds, minutes, hours,
days."""


def _nodes_of_shape(text: str) -> int:
    """Return the number of nodes in Fujitsu's `node=4x4x3`, or in a plain number."""
    return math.prod(int(edge) for edge in text.partition(":")[0].split("x"))


def oar_clock(text: str) -> str:
    """Return an OAR time limit, hours[:minutes[:seconds]], in the run file's format.

    >>> oar_clock("2"), oar_clock("1:30"), oar_clock("0:45:00")
    ('02:00:00', '01:30:00', '00:45:00')
    """
    parts = [int(part) for part in text.strip('"').split(":")]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return show_clock((hours * 60 + minutes) * 60 + seconds)


def flux_clock(text: str) -> str:
    """Return a Flux time limit in the run file's format.

    The time limit is a number with a unit, or else a number of minutes.

    >>> flux_clock("2h"), flux_clock("90m"), flux_clock("30")
    ('02:00:00', '01:30:00', '00:30:00')
    """
    match = re.fullmatch(r"(\d+)([smhd]?)", text)
    if match is None:
        raise ValueError(text)
    return show_clock(int(match[1]) * _SECONDS_OF_UNIT[match[2]])


_SECONDS_OF_UNIT = {"s": 1, "": 60, "m": 60, "h": 3600, "d": 86_400}


OptionTable: TypeAlias = dict[str, tuple[str, Callable[[str], object]]]
"""For each option of a queue, our key and the function that reads the option's value."""

_SLURM: OptionTable = {
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
_PBS: OptionTable = {
    "q": (f"{JOB}.partition", str),
    "A": ("jobs.account", str),
    "walltime": (f"{JOB}.walltime", clock),
}
_LSF: OptionTable = {
    "nnodes": (f"{JOB}.nodes", whole),
    "W": (f"{JOB}.walltime", lsf_clock),
    "q": (f"{JOB}.partition", str),
    "P": ("jobs.account", str),
    "gpu": (f"{JOB}.devices_per_node", _devices_of_lsf),
}
_SGE: OptionTable = {
    "nodes": (f"{JOB}.nodes", whole),
    "h_rt": (f"{JOB}.walltime", grid_clock),
    "q": (f"{JOB}.partition", str),
    "P": ("jobs.account", str),
    "g": ("jobs.account", str),
}
_PJM: OptionTable = {
    "nodes": (f"{JOB}.nodes", _nodes_of_shape),
    "elapse": (f"{JOB}.walltime", grid_clock),
    "rscgrp": (f"{JOB}.partition", str),
    "g": ("jobs.account", str),
}
_OAR: OptionTable = {
    "nodes": (f"{JOB}.nodes", whole),
    "host": (f"{JOB}.nodes", whole),
    "gpu": (f"{JOB}.devices_per_node", whole),
    "walltime": (f"{JOB}.walltime", oar_clock),
    "q": (f"{JOB}.partition", str),
    "project": ("jobs.account", str),
}
_COBALT: OptionTable = {
    "n": (f"{JOB}.nodes", whole),
    "nodecount": (f"{JOB}.nodes", whole),
    "t": (f"{JOB}.walltime", clock),
    "time": (f"{JOB}.walltime", clock),
    "q": (f"{JOB}.partition", str),
    "A": ("jobs.account", str),
}
_MSUB: OptionTable = {
    "N": (f"{JOB}.nodes", whole),
    "walltime": (f"{JOB}.walltime", grid_clock),
    "T": (f"{JOB}.walltime", grid_clock),
    "q": (f"{JOB}.partition", str),
    "A": ("jobs.account", str),
}
"""Options of Moab (-N is the job's name) and of CEA's Bridge (-N counts nodes, -T seconds)."""
_FLUX: OptionTable = {
    "N": (f"{JOB}.nodes", whole),
    "nodes": (f"{JOB}.nodes", whole),
    "t": (f"{JOB}.walltime", flux_clock),
    "time-limit": (f"{JOB}.walltime", flux_clock),
    "q": (f"{JOB}.partition", str),
    "queue": (f"{JOB}.partition", str),
    "B": ("jobs.account", str),
    "bank": ("jobs.account", str),
}
_DSUB: OptionTable = {
    "N": (f"{JOB}.nodes", whole),
    "q": (f"{JOB}.partition", str),
    "A": ("jobs.account", str),
}
_TABLES = {
    "slurm": _SLURM,
    "pbs": _PBS,
    "lsf": _LSF,
    "sge": _SGE,
    "pjm": _PJM,
    "oar": _OAR,
    "cobalt": _COBALT,
    "msub": _MSUB,
    "flux": _FLUX,
    "dsub": _DSUB,
}
_SIGNS = {
    "slurm": "#SBATCH --",
    "pbs": "#PBS ",
    "lsf": "#BSUB -",
    "sge": "#$ ",
    "pjm": "#PJM ",
    "oar": "#OAR -",
    "cobalt": "#COBALT -",
    "msub": "#MSUB -",
    "flux": "#flux: -",
    "dsub": "#DSUB -",
}
_OTHER_QUEUES = {
    "sge": "Grid Engine",
    "pjm": "Fujitsu's queue",
    "oar": "OAR",
    "cobalt": "Cobalt",
    "msub": "Moab or CEA's Bridge",
    "flux": "Flux",
    "dsub": "Donau",
}
"""Queues that no site here uses. Only the nodes and time of their requests are taken."""
_OUR_DIRECTIVES = json.loads(
    Path(__file__).with_name("directives.json").read_text(encoding="utf-8")
)


def take_directives(directives: Sequence[Directive], findings: Findings) -> None:
    """Take the values of a script's directives.

    Values that the site file already has, or that the runbook always sets, are not taken.
    """
    for directive in directives:
        name = directive.name
        line = directive.line
        sign = f"{_SIGNS[directive.queue]}{name}"
        table = _TABLES[directive.queue]
        text = f"{sign}={directive.value}" if directive.value else sign
        if name == "select" and directive.queue == "pbs":
            _take_select(directive, findings)
        elif name == "nodes" and directive.queue in _TORQUE:
            _take_torque_nodes(directive, findings)
        elif name in table:
            key, read = table[name]
            findings.read(key, Word(directive.value, line), sign, read)
        elif findings.site.directives.get(name) == directive.value:
            findings.does(line, text, f"{findings.site_file} asks for it")
        elif name in _OUR_DIRECTIVES:
            findings.does(line, text, _OUR_DIRECTIVES[name])
        elif directive.queue in _OTHER_QUEUES:
            queue = _OTHER_QUEUES[directive.queue]
            why = AdoptMessage.FOR_ANOTHER_QUEUE.fill(
                queue=queue, scheduler=findings.site.scheduler
            )
            findings.leave(line, text, why)
        else:
            findings.leave_to_site(line, text, "directives")
            findings.for_site("directives", name, directive.value)


def _take_select(directive: Directive, findings: Findings) -> None:
    """Take the nodes of PBS's `select`; its resources per node belong in the site file."""
    line = directive.line
    nodes, resources = _nodes_and_resources(directive.value)
    findings.read(f"{JOB}.nodes", Word(nodes, line), "#PBS -l select", whole)
    if resources and resources != findings.site.directives.get("select"):
        text = f"#PBS -l select={directive.value}"
        findings.leave_to_site(line, text, "directives.select", resources)


def _nodes_and_resources(request: str) -> tuple[str, str]:
    """Return the number of nodes in a PBS request, and the resources of each node.

    A request for several kinds of nodes is returned unchanged, because it has no single number.

    >>> _nodes_and_resources("4:ppn=8"), _nodes_and_resources("4:ppn=8+2:ppn=4")
    (('4', 'ppn=8'), ('4:ppn=8+2:ppn=4', ''))
    """
    if "+" in request:
        return request, ""
    nodes, _, resources = request.partition(":")
    return nodes, resources


_TORQUE = ("pbs", "msub")
"""Queues that accept Torque's `-l nodes=`."""


def _take_torque_nodes(directive: Directive, findings: Findings) -> None:
    """Take the nodes of `-l nodes=4:ppn=8`, and report the resources per node."""
    line = directive.line
    sign = f"{_SIGNS[directive.queue]}-l nodes".replace("--", "-")
    nodes, resources = _nodes_and_resources(directive.value)
    findings.read(f"{JOB}.nodes", Word(nodes, line), sign, whole)
    if resources:
        findings.leave_to_site(line, f"{sign}={directive.value}", "directives", resources)


def drop_defaults(findings: Findings, one_task: bool) -> None:
    """Drop values that a job gets by default, so that the run file contains only other values."""
    hardware = findings.site.hardware
    usual_tasks = 1 if one_task else findings.devices_per_node
    tasks_per_node = findings.number(f"{JOB}.tasks_per_node") or usual_tasks
    usual_values = {
        f"{JOB}.tasks_per_node": usual_tasks,
        f"{JOB}.devices_per_node": hardware.devices_per_node,
        f"{JOB}.memory": findings.site.directives.get("mem"),
        f"{JOB}.cpus_per_task": hardware.cores_per_node // max(1, tasks_per_node),
    }
    for key, usual in usual_values.items():
        if findings.value(key) == usual:
            findings.drop(key)
