"""The list of commands: each name, its group and its line in `runbook --help`."""

import importlib
import keyword
from enum import StrEnum
from typing import NamedTuple

import click


class Group(StrEnum):
    """Section of `runbook --help` that lists a command."""

    BEGIN = "Begin"
    PLAN = "Plan"
    RUN = "Run"
    JUDGE = "Judge"
    WEIGHTS = "Weights"
    TOOLS = "Tools"


class CommandRow(NamedTuple):
    """One command of `runbook`, known before its code is imported."""

    group: Group
    help_text: str
    """The command's line in `runbook --help`."""


COMMANDS = {
    "init": CommandRow(
        Group.BEGIN,
        "Make a folder a project: copy the notebooks and every parameter file into it.",
    ),
    "adopt": CommandRow(
        Group.BEGIN,
        "Turn a job script into a run file, and name its known errors.",
    ),
    "learn": CommandRow(
        Group.BEGIN,
        "Measure a site's nodes, and show what the site file should say.",
    ),
    "doctor": CommandRow(
        Group.BEGIN,
        "Check what this machine has and lacks.",
    ),
    "preflight": CommandRow(
        Group.BEGIN,
        "Find what is wrong with a cluster before a job runs, and name the cause.",
    ),
    "nodes": CommandRow(
        Group.BEGIN,
        "Show the bad nodes that the next job leaves out; allow them again.",
    ),
    "check": CommandRow(
        Group.PLAN,
        "List everything that is wrong with a run file.",
    ),
    "plan": CommandRow(
        Group.PLAN,
        "Compute sizes, layout, memory and time; nothing is submitted.",
    ),
    "why": CommandRow(
        Group.PLAN,
        "Explain a key: what it means, and where its value comes from.",
    ),
    "rehearse": CommandRow(
        Group.PLAN,
        "Dry run: one step of a run at full size on fake tensors, without a GPU.",
    ),
    "render": CommandRow(
        Group.PLAN,
        "Write the job scripts of a run, without a cluster.",
    ),
    "forecast": CommandRow(
        Group.PLAN,
        "Forecast a final loss from small runs, or from the first part of a loss curve.",
    ),
    "ladder": CommandRow(
        Group.PLAN,
        "Train small models of a run's family, and forecast the run's loss from them.",
    ),
    "pack": CommandRow(
        Group.RUN,
        "Pack the Python environment of a run's jobs, for a copy on each node.",
    ),
    "run": CommandRow(
        Group.RUN,
        "Run the phases as notebooks, each recorded; finished ones are not repeated.",
    ),
    "lab": CommandRow(
        Group.RUN,
        "Step through the notebooks of a run in JupyterLab, in copies of your own.",
    ),
    "status": CommandRow(
        Group.RUN,
        "Show every run, or one: phases, jobs, key numbers.",
    ),
    "logs": CommandRow(
        Group.RUN,
        "Show the log of a run's job, or parse any training log.",
    ),
    "note": CommandRow(
        Group.RUN,
        "Add a note to the logbook of a run, or show the logbook.",
    ),
    "cancel": CommandRow(
        Group.RUN,
        "End the running jobs of a run, with all their processes.",
    ),
    "report": CommandRow(
        Group.JUDGE,
        "Rewrite the HTML report of a run and print its path.",
    ),
    "compare": CommandRow(
        Group.JUDGE,
        "Compare runs, and fail on a regression.",
    ),
    "verify": CommandRow(
        Group.JUDGE,
        "Find every file of a run that was changed after it was recorded.",
    ),
    "explain": CommandRow(
        Group.JUDGE,
        "Explain from its log why a training is slower than expected.",
    ),
    "replay": CommandRow(
        Group.JUDGE,
        "Repeat one step of a run and say what differs: data, program or machine.",
    ),
    "publish": CommandRow(
        Group.JUDGE,
        "Write runs as one static site, redacted on request.",
    ),
    "sample": CommandRow(
        Group.WEIGHTS,
        "Let a trained model continue a text.",
    ),
    "evaluate": CommandRow(
        Group.WEIGHTS,
        "Score a run's weights on minimal pairs, held-out text and tasks.",
    ),
    "export": CommandRow(
        Group.WEIGHTS,
        "Write a run's weights as a Hugging Face folder (safetensors).",
    ),
    "import": CommandRow(
        Group.WEIGHTS,
        "Start a run from weights of Hugging Face or Megatron-LM.",
    ),
    "data": CommandRow(
        Group.TOOLS,
        "Tokenize, verify and show training data without a notebook.",
    ),
    "drill": CommandRow(
        Group.TOOLS,
        "Break a small training on purpose in twenty ways, and check how it ends; or simulate a "
        "month of faults.",
    ),
}
"""Every command by its name, in the order of work.

Command NAME is in the module `runbook/cli/NAME.py`.
"""


def load_command(name: str) -> click.Command:
    """Import the module of a command and return the command. Both have its name."""
    # Python forbids `import` as a name
    name_in_python = f"{name}_" if keyword.iskeyword(name) else name
    module = importlib.import_module(f"runbook.cli.{name_in_python}")
    command: click.Command = getattr(module, name_in_python)
    return command
