"""Reports whether slurm.conf on a node is the same as on the Slurm controller."""

import re
import shutil
import subprocess

from runbook.node_checks.answers import Facts
from runbook.node_checks.program_output import run_program

ANSWER_SECONDS = 12
"""Slurm clients give up after MessageTimeout, which is 10 s by default."""


def look_at_scheduler_settings() -> Facts:
    """Return whether slurm.conf here matches the one on the controller, as Slurm reports it.

    `comparison` is empty if there is no scontrol here, or if it does not answer.
    """
    program = shutil.which("scontrol")
    if program is None:
        return {"comparison": ""}
    try:
        ended = run_program([program, "show", "config"], ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return {"comparison": ""}
    return {"comparison": parse_comparison(ended.stdout)}


def parse_comparison(text: str) -> str:
    r"""Return the word after HASH_VAL in the output from `scontrol show config`.

    >>> parse_comparison("GroupUpdateTime = 600 sec\nHASH_VAL                = Match\n")
    'Match'
    >>> parse_comparison("HASH_VAL = Different Ours=0x2f0 Slurmctld=0x1a9\n")
    'Different'
    """
    match = re.search(r"^HASH_VAL\s*=\s*(\w+)", text, re.MULTILINE)
    return match[1] if match else ""
