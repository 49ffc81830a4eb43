"""The command line as one program: command groups, and how an error ends it."""

import atexit
import contextlib
import difflib
import gc
import shutil
import signal
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from runbook import __version__
from runbook.cli.commands import COMMANDS, Group, load_command
from runbook.cli.extras import which_extra
from runbook.cli.messages import CliMessage
from runbook.cli.output import drop_output, open_closed_streams
from runbook.cli.replaced_modules import which_file
from runbook.core.column_widths import LINE_LIMIT
from runbook.core.errors import RunbookError
from runbook.core.visible_text import protected_terminal, replace_unprintable

OBJECTS_BEFORE_COLLECTION = 50_000
"""How many new objects there must be before Python collects garbage."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used, so that `runbook --help` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all command names, in the order in which they are usually needed."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command.

        `resolve_command` has rejected names that do not exist.
        """
        return load_command(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the user typed.

        Reject an unknown command with the closest valid names.
        """
        if args and args[0] not in COMMANDS:
            close_names = difflib.get_close_matches(args[0], COMMANDS, 2)
            if close_names:
                hint = f"Did you mean {' or '.join(close_names)}?"
            else:
                hint = CliMessage.THERE_ARE_COMMANDS.fill(commands=", ".join(COMMANDS))

            ctx.fail(CliMessage.NO_SUCH_COMMAND.fill(command=args[0], hint=hint))

        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the arguments. This prints the help, too."""
        with _ended_by_closed_pipe():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _ended_by_closed_pipe():
            return super().invoke(ctx)

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


@contextlib.contextmanager
def _ended_by_closed_pipe() -> Iterator[None]:
    """Exit as if killed by SIGPIPE if nobody reads the output any longer.

    click would end with 1, which means that the command failed.
    """
    try:
        yield
    except BrokenPipeError:
        drop_output()
        raise click.exceptions.Exit(128 + signal.SIGPIPE) from None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="runbook")
def cli() -> None:
    """Pre-train GPT-3 with notebooks that plan, run and verify each step.

    RUN is the name of a file in params/, or a path to one; RUN:VARIANT names a set of overrides.
    """


def run() -> None:
    """Run the command line. Print only the text of a RunbookError, and use its exit code.

    Text that other people wrote (scripts, notes, logs) is shown without terminal control
    characters.
    """
    # Imports create many objects and no garbage. With the default threshold, 700, the collector
    # would scan them again and again, which takes a tenth of the run time of a short command.
    gc.set_threshold(OBJECTS_BEFORE_COLLECTION)
    open_closed_streams()
    replace_unprintable()
    # Otherwise Python would scan all these objects three times at exit.
    atexit.register(gc.freeze)
    with protected_terminal(), _tables_within_the_terminal():
        _run_command()


@contextlib.contextmanager
def _tables_within_the_terminal() -> Iterator[None]:
    """Fit tables to the terminal width. Output that is no terminal gets whole lines."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    token = LINE_LIMIT.set(columns)
    try:
        yield
    finally:
        LINE_LIMIT.reset(token)


def _run_command() -> NoReturn:
    try:
        # Give the program name: click would otherwise show `python -m runbook`, or `python -m
        # pytest` in a test.
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
    except ModuleNotFoundError as error:
        _end(f"Error: {which_extra(error)}", 1)
    except ImportError as error:
        _end(f"Error: {which_file(error)}", 1)
    except OSError as error:
        # For example a full disk, or a folder without write permission
        where = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or error
        _end(f"Error: {where}{reason}. Free space or fix the permissions there, then try again.", 1)


def _end(text: str, code: int) -> NoReturn:
    click.echo(text, err=True)
    sys.exit(code)
