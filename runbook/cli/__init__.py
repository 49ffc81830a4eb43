"""The command line: `runbook COMMAND`; each command's code is imported only when it is called."""

import difflib
import importlib
import sys
from typing import NoReturn

import click

from runbook import __version__
from runbook.core.errors import RunbookError
from runbook.core.visible_text import protected_terminal

COMMANDS = {
    "check": (
        "runbook.cli.plan:check",
        "Say everything that is wrong with a run file, or that nothing is.",
    ),
    "plan": (
        "runbook.cli.plan:plan",
        "Compute sizes, layout, memory and time; nothing is submitted.",
    ),
    "rehearse": (
        "runbook.cli.plan:rehearse",
        "Train one step of a run at full size on fake tensors; no GPU.",
    ),
    "why": (
        "runbook.cli.plan:why",
        "Where one value comes from, and what it is called in the documents.",
    ),
    "render": ("runbook.cli.plan:render", "Write the job scripts of a run; needs no cluster."),
    "run": (
        "runbook.cli.run:run",
        "Run the phases as notebooks, each recorded; finished ones are not repeated.",
    ),
    "lab": (
        "runbook.cli.plan:lab",
        "Step through the notebooks of a run in JupyterLab, in copies of one's own.",
    ),
    "status": ("runbook.cli.run:status", "Every run, or one: phases, jobs, key numbers."),
    "cancel": (
        "runbook.cli.run:cancel",
        "End the running jobs of a run, with all their processes.",
    ),
    "logs": (
        "runbook.cli.report:logs",
        "Show the log of a run's job, or read any training log into records.",
    ),
    "explain": (
        "runbook.cli.report:explain",
        "Say why a training is slower than expected, from its log.",
    ),
    "report": (
        "runbook.cli.report:report",
        "Write the HTML report of a run again and say where it is.",
    ),
    "note": (
        "runbook.cli.report:note",
        "Write a note into the logbook of a run, or show the logbook.",
    ),
    "verify": (
        "runbook.cli.report:verify",
        "Find every file of a run that was changed after it was recorded.",
    ),
    "compare": ("runbook.cli.report:compare", "Set runs side by side, and fail on a regression."),
    "sample": ("runbook.cli.run:sample", "Let a trained model continue a text."),
    "evaluate": (
        "runbook.tools.evaluate.command:evaluate",
        "Score a run's weights: minimal pairs, held-out text, tasks.",
    ),
    "export": (
        "runbook.cli.run:export",
        "Write a run's weights as a Hugging Face folder (safetensors).",
    ),
    "import": (
        "runbook.cli.run:import_",
        "Begin a run with weights of Hugging Face or Megatron-LM.",
    ),
    "adopt": (
        "runbook.cli.plan:adopt",
        "Turn someone's job script into a run file; tell what it has of known errors.",
    ),
    "data": (
        "runbook.cli.data:data",
        "Tokenize, verify and show training data without a notebook.",
    ),
    "drill": (
        "runbook.cli.plan:drill",
        "Break a small training on purpose, in twenty ways, and judge its end.",
    ),
    "init": (
        "runbook.cli.plan:init",
        "Make a folder a project: the notebooks, and every parameter file.",
    ),
    "doctor": ("runbook.cli.plan:doctor", "Check what this machine has and lacks."),
}
EXTRAS = {
    "jupyter": "IPython ipykernel jupyter_client jupyter_core jupyterlab latex2mathml matplotlib nbclient nbconvert "
    "nbformat pandas papermill",
    "data": "backports fastokens msgspec numpy pyarrow requests sentencepiece tokenizers",
    "train": "tensorboard",
    "mlflow": "mlflow",
    "trackio": "trackio",
    "evaluation": "lm_eval",
}
"""What is imported where it is needed, by the extra that installs it; no command imports torch."""

ALL = ("jupyter", "data", "train")
"""What the extra `all` installs: everything that `runbook run` needs."""


class LazyGroup(click.Group):
    """A group whose commands are imported on use, so that `runbook --help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, imported now; `resolve_command` has let no other name through."""
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command meant; an unknown one is rejected, with the closest valid names."""
        if args and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, 2)
            if near:
                meant = f"Did you mean {' or '.join(near)}?"
            else:
                meant = f"There are {', '.join(COMMANDS)}."
            ctx.fail(f"There is no command {args[0]!r}. {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list under --help, from the table above, without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="runbook")
def cli() -> None:
    """Pre-train GPT-3 by notebooks that plan, run and prove each step.

    RUN is the name of a file in params/, or a path to one; RUN:VARIANT names a set of overrides.
    """


def which_extra(error: ModuleNotFoundError) -> str:
    """The remedy for a package that only an extra installs; what no extra brings is our own bug and raised again."""
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages.split()), "")
    if not extra:
        raise error
    remedy = f"install the {extra} extra: pip install 'gpt3-runbook[{extra}]'"
    if extra in ALL:
        remedy = f"pip install 'gpt3-runbook[all]' brings all that a run needs, 'gpt3-runbook[{extra}]' this one"
    return f"the package {package} is missing; {remedy}"


def main() -> None:
    """Entry point: a RunbookError is shown as its text alone, with its own exit code.

    What other people wrote (scripts, notes, logs) is shown without characters that steer the terminal.
    """
    with protected_terminal():
        _run_command()


def _run_command() -> NoReturn:
    try:
        # named here, as click would name it `python -m runbook`, or `python -m pytest` where a test calls it
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
    except OSError as error:  # a full disk, a folder that may not be written
        where = f"{error.filename}: " if error.filename else ""
        _end(
            f"Error: {where}{error.strerror or error}. Free space or rights there, then do it again.",
            1,
        )


def _end(text: str, code: int) -> NoReturn:
    click.echo(text, err=True)
    sys.exit(code)
