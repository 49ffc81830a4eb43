"""Translates directives for ten queues (#SBATCH, #PBS, #BSUB ...) to keys in the run file."""

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from runbook.core.units import show_clock
from runbook.frameworks.option_rows import whole
from runbook.jobs.request_names import REQUESTS, RequestKind, walltime_seconds
from runbook.jobs.script_directives import Directive
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.script import Word

JOB = "jobs.training"


def _walltime_of(queue: str) -> Callable[[str], str]:
    """Return a function to convert a time limit for a queue to the run file format.

    The function raises `ValueError` if its text is not a time limit.

    >>> clock = _walltime_of("slurm")
    >>> clock("30"), clock("1-00:00:00"), clock("01:00:00"), clock('"45:00"')
    ('00:30:00', '24:00:00', '01:00:00', '00:45:00')
    """

    def clock(text: str) -> str:
        seconds = walltime_seconds(queue, text.strip('"'))
        if not seconds:
            raise ValueError(text)
        return show_clock(seconds)

    return clock


def _devices(text: str) -> int:
    """Return the device count, which is the last number in a string such as gpu:a100:4.

    Raise `ValueError` if there is no number.
    """
    numbers = re.findall(r"\d+", text)
    if not numbers:
        raise ValueError(text)
    return int(numbers[-1])


def _devices_of_lsf(text: str) -> int:
    """Return the devices in `-gpu "num=4:mode=shared"`.

    Raise `ValueError` if the text has no number.
    """
    match = re.search(r"num=(\d+)", text)
    if match is None:
        raise ValueError(text)
    return int(match[1])


def _nodes_of_shape(text: str) -> int:
    """Return how many nodes `node=4x4x3` (Fujitsu) or a plain number requests."""
    return math.prod(int(edge) for edge in text.partition(":")[0].split("x"))


OptionTable: TypeAlias = dict[str, tuple[str, Callable[[str], object]]]
"""For each queue option, our key and the function used to read the option value."""

_KEYS = {
    RequestKind.NODES: f"{JOB}.nodes",
    RequestKind.PARTITION: f"{JOB}.partition",
    RequestKind.ACCOUNT: "jobs.account",
    RequestKind.WALLTIME: f"{JOB}.walltime",
}
"""Our key for each request that all queues have."""
_FURTHER_OPTIONS: dict[str, OptionTable] = {
    "slurm": {
        "qos": (f"{JOB}.qos", str),
        "reservation": (f"{JOB}.reservation", str),
        "gpus-per-node": (f"{JOB}.devices_per_node", _devices),
        "gres": (f"{JOB}.devices_per_node", _devices),
        "ntasks-per-node": (f"{JOB}.tasks_per_node", whole),
        "cpus-per-task": (f"{JOB}.cpus_per_task", whole),
        "mem": (f"{JOB}.memory", str),
    },
    "lsf": {"gpu": (f"{JOB}.devices_per_node", _devices_of_lsf)},
    "oar": {"gpu": (f"{JOB}.devices_per_node", whole)},
}
"""Options that only some queues have."""


def _options_of(queue: str) -> OptionTable:
    """Return the queue options that a run file has a key for."""
    nodes_reader = _nodes_of_shape if queue == "pjm" else whole
    readers = {RequestKind.NODES: nodes_reader, RequestKind.WALLTIME: _walltime_of(queue)}
    options = dict(_FURTHER_OPTIONS.get(queue, {}))
    for name, request in REQUESTS[queue].items():
        if request in _KEYS:
            options[name] = (_KEYS[request], readers.get(request, str))
    return options


_TABLES = {queue: _options_of(queue) for queue in REQUESTS}
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
"""Queues that no site here uses.

Of their requests, only the number of nodes and the time limit are adopted.
"""
_OUR_DIRECTIVES = json.loads(
    Path(__file__).with_name("directives.json").read_text(encoding="utf-8")
)


def take_directives(directives: Sequence[Directive], findings: Findings) -> None:
    """Adopt the values in script directives.

    Values already in the site file, or always set by the runbook, are not adopted.
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
    """Adopt the nodes in `select` for PBS. The resources per node belong in the site file."""
    line = directive.line
    nodes, resources = _nodes_and_resources(directive.value)
    findings.read(f"{JOB}.nodes", Word(nodes, line), "#PBS -l select", whole)
    if resources and resources != findings.site.directives.get("select"):
        text = f"#PBS -l select={directive.value}"
        findings.leave_to_site(line, text, "directives.select", resources)


def _nodes_and_resources(request: str) -> tuple[str, str]:
    """Return how many nodes a PBS request asks for, and the resources on each node.

    A request for more than one node type is returned unchanged, because it contains more than one
    number.

    >>> _nodes_and_resources("4:ppn=8"), _nodes_and_resources("4:ppn=8+2:ppn=4")
    (('4', 'ppn=8'), ('4:ppn=8+2:ppn=4', ''))
    """
    if "+" in request:
        return request, ""
    nodes, _, resources = request.partition(":")
    return nodes, resources


_TORQUE = ("pbs", "msub")
"""Queues that accept `-l nodes=` as in Torque."""


def _take_torque_nodes(directive: Directive, findings: Findings) -> None:
    """Adopt the nodes in `-l nodes=4:ppn=8`, and report the resources per node."""
    line = directive.line
    sign = f"{_SIGNS[directive.queue]}-l nodes".replace("--", "-")
    nodes, resources = _nodes_and_resources(directive.value)
    findings.read(f"{JOB}.nodes", Word(nodes, line), sign, whole)
    if resources:
        findings.leave_to_site(line, f"{sign}={directive.value}", "directives", resources)


def drop_defaults(findings: Findings, one_task: bool) -> None:
    """Drop values that a job gets by default, to keep only the others in the run file."""
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
