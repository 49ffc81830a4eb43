"""All commands. Each has a name, a group and a line in `runbook --help`."""

import importlib
import keyword
from enum import StrEnum
from typing import NamedTuple

import click


class Group(StrEnum):
    """Section in `runbook --help` that lists a command."""

    BEGIN = "Begin"
    PLAN = "Plan"
    RUN = "Run"
    JUDGE = "Judge"
    WEIGHTS = "Weights"
    TOOLS = "Tools"


class CommandRow(NamedTuple):
    """One `runbook` command, listed here so that its module need not be imported."""

    group: Group
    help_text: str
    """The line about this command in `runbook --help`."""


_HELP_BY_GROUP = {
    Group.BEGIN: {
        "init": "Turn a folder into a project: copy the notebooks and all parameter files into it.",
        "adopt": "Turn a job script into a run file, and name known errors in the script.",
        "learn": "Measure a site's nodes, and show what the site file should contain.",
        "doctor": "Check what this machine has and lacks.",
        "preflight": "Find what is wrong with a cluster before a job runs, and name the cause.",
        "nodes": "Show the bad nodes that the next job excludes, or allow them again.",
    },
    Group.PLAN: {
        "check": "List everything that is wrong with a run file.",
        "plan": "Compute sizes, layout, memory and time; nothing is submitted.",
        "why": "Explain a key: what it means, and where its value comes from.",
        "rehearse": "Dry run: one step of a run at full size on fake tensors, without a GPU.",
        "render": "Write the job scripts of a run, without a cluster.",
        "forecast": (
            "Forecast a final loss from small runs, or from the first part of a loss curve."
        ),
        "ladder": "Train small models of a run's family, and forecast the run's loss from them.",
    },
    Group.RUN: {
        "pack": "Pack the Python environment of a run's jobs, for a copy on each node.",
        "run": "Run and record the phases as notebooks; finished phases are not repeated.",
        "lab": "Step through your own copies of a run's notebooks in JupyterLab.",
        "status": "Show every run, or one: phases, jobs, key numbers.",
        "logs": "Show the log of a run's job, or parse any training log.",
        "note": "Add a note to the logbook of a run, or show the logbook.",
        "cancel": "End the running jobs of a run, with all their processes.",
    },
    Group.JUDGE: {
        "report": "Rewrite the HTML report of a run and print its path.",
        "compare": "Compare runs, and fail on a regression.",
        "verify": "List all files of a run that were changed after they were recorded.",
        "explain": "Explain from its log why a training run is slower than expected.",
        "replay": "Repeat one step of a run and report what differs: data, program or machine.",
        "publish": "Write runs to a static website, redacted on request.",
    },
    Group.WEIGHTS: {
        "sample": "Let a trained model continue a text.",
        "evaluate": "Score a run's weights on minimal pairs, held-out text and tasks.",
        "export": "Write a run's weights as a Hugging Face folder (safetensors).",
        "import": "Start a run from Hugging Face or Megatron-LM weights.",
    },
    Group.TOOLS: {
        "data": "Tokenize, verify and show training data without a notebook.",
        "drill": (
            "Break a small training run on purpose in many ways, and check how it ends; or "
            "simulate a month of faults."
        ),
    },
}
"""The line for each command in `runbook --help`, in the order in which commands are usually needed.

Command NAME is in the module `runbook/cli/NAME.py`.
"""


def _command_rows() -> dict[str, CommandRow]:
    rows = {}
    for group, help_texts in _HELP_BY_GROUP.items():
        for name, help_text in help_texts.items():
            rows[name] = CommandRow(group, help_text)

    return rows


COMMANDS = _command_rows()
"""All commands by name, in the order in which they are usually needed."""


def load_command(name: str) -> click.Command:
    """Import the module for a command, and return the command. Both have the same name."""
    # Python does not allow `import` as a module name
    name_in_python = f"{name}_" if keyword.iskeyword(name) else name
    module = importlib.import_module(f"runbook.cli.{name_in_python}")
    command: click.Command = getattr(module, name_in_python)
    return command
