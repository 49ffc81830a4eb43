"""#SBATCH and #PBS directives as keys under `jobs`."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from runbook.adopt.findings import Findings
from runbook.adopt.sandbox.script import Directive, Word
from runbook.core.units import clock_seconds, show_clock
from runbook.frameworks.options import whole

JOB = "jobs.training"


def clock(text: str) -> str:
    """A time limit as the run file has it; Slurm's bare number is minutes.

    >>> clock("30"), clock("1-00:00:00"), clock("01:00:00"), clock('"45:00"')
    ('00:30:00', '24:00:00', '01:00:00', '00:45:00')
    """
    if not (seconds := clock_seconds(text.strip('"'))):
        raise ValueError(text)
    return show_clock(seconds)


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
_OURS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def take_directives(directives: Sequence[Directive], findings: Findings) -> None:
    """Values of #SBATCH and #PBS lines; what the site asks for already, or the runbook always gives, needs no key."""
    for directive in directives:
        name, line = directive.name, directive.line
        sign = f"{'#SBATCH --' if directive.queue == 'slurm' else '#PBS '}{name}"
        table = _SLURM if directive.queue == "slurm" else _PBS
        text = f"{sign}={directive.value}" if directive.value else sign
        if directive.queue == "pbs" and name == "select":
            nodes, _, rest = directive.value.partition(":")
            findings.read(f"{JOB}.nodes", Word(nodes, line), "#PBS -l select", whole)
            if rest and rest != findings.site.directives.get("select"):
                findings.leave_to_site(line, f"#PBS -l select={directive.value}", "directives.select", rest)
        elif name in table:
            key, read = table[name]
            findings.read(key, Word(directive.value, line), sign, read)
        elif findings.site.directives.get(name) == directive.value:
            findings.does(line, text, f"{findings.site_file} asks for it")
        elif name in _OURS:
            findings.does(line, text, _OURS[name])
        else:
            findings.leave_to_site(line, text, "directives")


def drop_defaults(findings: Findings, one_task: bool) -> None:
    """Leave out what a job gets anyway, so that the run file says what is special."""
    hardware, devices = findings.site.hardware, findings.devices_per_node
    usual_tasks = 1 if one_task else devices
    cores = hardware.cores_per_node // max(1, findings.number(f"{JOB}.tasks_per_node") or usual_tasks)
    for key, usual in (
        ("tasks_per_node", usual_tasks),
        ("devices_per_node", hardware.devices_per_node),
        ("memory", findings.site.directives.get("mem")),
        ("cpus_per_task", cores),
    ):
        if findings.value(f"{JOB}.{key}") == usual:
            findings.drop(f"{JOB}.{key}")


def drop_ssh(findings: Findings) -> None:
    """DeepSpeed's own launcher reaches other nodes by ssh, which a queue's nodes rarely allow: torchrun instead."""
    if findings.value("jobs.launcher") == "deepspeed" and findings.number(f"{JOB}.nodes", 1) > 1:
        line = findings.carried["jobs.launcher"].line
        findings.take("jobs.launcher", "torchrun", line, "deepspeed over several nodes, which needs ssh between them")
