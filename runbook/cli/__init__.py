"""The command line: `runbook COMMAND`; each command's code is imported only when it is called."""

import atexit
import difflib
import gc
import importlib
import sys
from enum import StrEnum
from typing import NamedTuple, NoReturn

import click

from runbook import __version__
from runbook.core.errors import RunbookError
from runbook.core.visible_text import protected_terminal

OBJECTS_BEFORE_COLLECTION = 50_000
"""Number of new objects after which Python collects garbage."""


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
    place: str
    """The command's location, as module:attribute."""
    help_text: str
    """The command's line in `runbook --help`."""

    def load(self) -> click.Command:
        """Import the module of the command and return the command."""
        module_name, _, attribute = self.place.partition(":")
        module = importlib.import_module(module_name)
        command: click.Command = getattr(module, attribute)
        return command


COMMANDS = {
    "init": CommandRow(
        Group.BEGIN,
        "runbook.cli.plan:init",
        "Make a folder a project: copy the notebooks and every parameter file into it.",
    ),
    "adopt": CommandRow(
        Group.BEGIN,
        "runbook.cli.plan:adopt",
        "Turn a job script into a run file, and name its known errors.",
    ),
    "learn": CommandRow(
        Group.BEGIN,
        "runbook.cli.learn:learn",
        "Measure a site's nodes, and show what the site file should say.",
    ),
    "doctor": CommandRow(
        Group.BEGIN,
        "runbook.cli.plan:doctor",
        "Check what this machine has and lacks.",
    ),
    "preflight": CommandRow(
        Group.BEGIN,
        "runbook.cli.preflight:preflight",
        "Find what is wrong with a cluster before a job runs, and name the cause.",
    ),
    "nodes": CommandRow(
        Group.BEGIN,
        "runbook.cli.preflight:nodes",
        "Show the bad nodes that the next job leaves out; allow them again.",
    ),
    "check": CommandRow(
        Group.PLAN,
        "runbook.cli.plan:check",
        "List everything that is wrong with a run file.",
    ),
    "plan": CommandRow(
        Group.PLAN,
        "runbook.cli.plan:plan",
        "Compute sizes, layout, memory and time; nothing is submitted.",
    ),
    "why": CommandRow(
        Group.PLAN,
        "runbook.cli.plan:why",
        "Explain a key: what it means, and where its value comes from.",
    ),
    "rehearse": CommandRow(
        Group.PLAN,
        "runbook.cli.plan:rehearse",
        "Dry run: one step of a run at full size on fake tensors, without a GPU.",
    ),
    "render": CommandRow(
        Group.PLAN,
        "runbook.cli.plan:render",
        "Write the job scripts of a run, without a cluster.",
    ),
    "forecast": CommandRow(
        Group.PLAN,
        "runbook.cli.forecast:forecast",
        "Forecast a final loss from small runs, or from the first part of a loss curve.",
    ),
    "ladder": CommandRow(
        Group.PLAN,
        "runbook.cli.ladder:ladder",
        "Train small models of a run's family, and forecast the run's loss from them.",
    ),
    "pack": CommandRow(
        Group.RUN,
        "runbook.cli.pack:pack",
        "Pack the Python environment of a run's jobs, for a copy on each node.",
    ),
    "run": CommandRow(
        Group.RUN,
        "runbook.cli.run:run",
        "Run the phases as notebooks, each recorded; finished ones are not repeated.",
    ),
    "lab": CommandRow(
        Group.RUN,
        "runbook.cli.plan:lab",
        "Step through the notebooks of a run in JupyterLab, in copies of your own.",
    ),
    "status": CommandRow(
        Group.RUN,
        "runbook.cli.run:status",
        "Show every run, or one: phases, jobs, key numbers.",
    ),
    "logs": CommandRow(
        Group.RUN,
        "runbook.cli.report:logs",
        "Show the log of a run's job, or parse any training log.",
    ),
    "note": CommandRow(
        Group.RUN,
        "runbook.cli.report:note",
        "Add a note to the logbook of a run, or show the logbook.",
    ),
    "cancel": CommandRow(
        Group.RUN,
        "runbook.cli.run:cancel",
        "End the running jobs of a run, with all their processes.",
    ),
    "report": CommandRow(
        Group.JUDGE,
        "runbook.cli.report:report",
        "Rewrite the HTML report of a run and print its path.",
    ),
    "compare": CommandRow(
        Group.JUDGE,
        "runbook.cli.report:compare",
        "Compare runs, and fail on a regression.",
    ),
    "verify": CommandRow(
        Group.JUDGE,
        "runbook.cli.report:verify",
        "Find every file of a run that was changed after it was recorded.",
    ),
    "explain": CommandRow(
        Group.JUDGE,
        "runbook.cli.report:explain",
        "Explain from its log why a training is slower than expected.",
    ),
    "replay": CommandRow(
        Group.JUDGE,
        "runbook.tools.replay.command:replay",
        "Repeat one step of a run and say what differs: data, program or machine.",
    ),
    "publish": CommandRow(
        Group.JUDGE,
        "runbook.cli.report:publish",
        "Write runs as one static site, redacted on request.",
    ),
    "sample": CommandRow(
        Group.WEIGHTS,
        "runbook.cli.run:sample",
        "Let a trained model continue a text.",
    ),
    "evaluate": CommandRow(
        Group.WEIGHTS,
        "runbook.tools.evaluate.command:evaluate",
        "Score a run's weights on minimal pairs, held-out text and tasks.",
    ),
    "export": CommandRow(
        Group.WEIGHTS,
        "runbook.cli.run:export",
        "Write a run's weights as a Hugging Face folder (safetensors).",
    ),
    "import": CommandRow(
        Group.WEIGHTS,
        "runbook.cli.run:import_",
        "Start a run from weights of Hugging Face or Megatron-LM.",
    ),
    "data": CommandRow(
        Group.TOOLS,
        "runbook.cli.data:data",
        "Tokenize, verify and show training data without a notebook.",
    ),
    "drill": CommandRow(
        Group.TOOLS,
        "runbook.cli.plan:drill",
        "Break a small training on purpose in twenty ways, and check how it ends; or simulate a "
        "month of faults.",
    ),
}
"""Every command by its name, in the order of work."""

EXTRAS = {
    "jupyter": "IPython ipykernel jupyter_client jupyter_core jupyterlab latex2mathml matplotlib "
    "nbclient nbconvert nbformat pandas papermill",
    "data": "backports fastokens msgspec numpy pyarrow requests sentencepiece tokenizers",
    "train": "tensorboard",
    "forecast": "scipy",
    "mlflow": "mlflow",
    "trackio": "trackio",
    "evaluation": "lm_eval",
}
"""Packages that are imported only when needed, by the extra that installs them.

No command imports torch.
"""

ALL = ("jupyter", "data", "train", "forecast")
"""The packages of the extra `all`: everything that `runbook run` needs."""


class LazyGroup(click.Group):
    """A group whose commands are imported on use, so that `runbook --help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands in the order of work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. `resolve_command` has rejected names that do not exist."""
        return COMMANDS[cmd_name].load()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the command that was typed.

        Reject an unknown one with the closest valid names.
        """
        if args and args[0] not in COMMANDS:
            close_names = difflib.get_close_matches(args[0], COMMANDS, 2)
            if close_names:
                hint = f"Did you mean {' or '.join(close_names)}?"
            else:
                hint = f"There are {', '.join(COMMANDS)}."

            ctx.fail(f"There is no command {args[0]!r}. {hint}")

        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections of --help from `COMMANDS`, without importing a command."""
        name_width = max(len(name) for name in COMMANDS)
        for group in Group:
            rows = []
            for name, row in COMMANDS.items():
                if row.group is group:
                    rows.append((name.ljust(name_width), row.help_text))

            with formatter.section(group.value):
                formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="runbook")
def cli() -> None:
    """Pre-train GPT-3 by notebooks that plan, run and prove each step.

    RUN is the name of a file in params/, or a path to one; RUN:VARIANT names a set of overrides.
    """


def which_extra(error: ModuleNotFoundError) -> str:
    """Return the remedy for a missing package that an extra installs.

    A package that no extra installs is a bug of ours: `error` is raised again.
    """
    package = (error.name or "").partition(".")[0]
    extra = _extra_of(package)
    if not extra:
        raise error
    if extra in ALL:
        remedy = (
            "pip install 'gpt3-runbook[all]' brings all that a run needs, "
            f"'gpt3-runbook[{extra}]' this one"
        )
    else:
        remedy = f"install the {extra} extra: pip install 'gpt3-runbook[{extra}]'"

    return f"the package {package} is missing; {remedy}"


def _extra_of(package: str) -> str:
    """Return the extra that installs a package, or '' if none does."""
    for extra, packages in EXTRAS.items():
        if package in packages.split():
            return extra

    return ""


def main() -> None:
    """Run the command line. Show a RunbookError as its text alone, with its own exit code.

    Text that other people wrote (scripts, notes, logs) is shown without the characters that control
    a terminal.
    """
    # Imports make many objects and no garbage. At Python's default of 700, the collector would scan
    # them all repeatedly, which is a tenth of the time of a short command.
    gc.set_threshold(OBJECTS_BEFORE_COLLECTION)
    # Python would otherwise scan all of them three times at exit.
    atexit.register(gc.freeze)
    with protected_terminal():
        _run_command()


def _run_command() -> NoReturn:
    try:
        # Without a name, click would show `python -m runbook`, or `python -m pytest` in a test.
        sys.exit(cli.main(prog_name="runbook", standalone_mode=False) or 0)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        _end("Stopped.", 130)
    except RunbookError as error:
        _end(f"Error: {error}", error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except ModuleNotFoundError as error:
        _end(f"Error: {which_extra(error)}", 1)
    except OSError as error:
        # For example a full disk, or a folder without write permission
        where = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or error
        _end(f"Error: {where}{reason}. Free space or rights there, then do it again.", 1)


def _end(text: str, code: int) -> NoReturn:
    click.echo(text, err=True)
    sys.exit(code)
