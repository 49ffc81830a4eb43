"""`runbook lab`: open the notebooks for a run in JupyterLab."""

import os
from pathlib import Path

import click

from runbook.cli.messages import CliMessage
from runbook.cli.options import RUNS, SET


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("run_name", metavar="RUN")
@click.argument("words", metavar="[-- WORDS OF JUPYTERLAB]", nargs=-1, type=click.UNPROCESSED)
@click.option("--no-browser", is_flag=True, help="Only print the URL.")
@click.option("--copy-only", is_flag=True, help="Copy the notebooks; start nothing.")
@click.option(
    "--fresh",
    is_flag=True,
    help="Copy the masters again; existing copies move to lab/before-TIME.",
)
@SET
@click.option(
    "--as",
    "as_name",
    default="",
    metavar="NAME",
    help="Use a separate run folder, RUN--NAME, for these overrides.",
)
@RUNS
def lab(
    run_name: str,
    words: tuple[str, ...],
    set_words: tuple[str, ...],
    as_name: str,
    no_browser: bool,
    copy_only: bool,
    fresh: bool,
    runs: Path | None,
) -> None:
    """Open the notebooks of RUN in JupyterLab: copies in the run folder, with RUN in their parameters cell.

    Changing a copy affects no other run and nothing in git. The records are the same as with the
    masters. If you run the command again, it opens the same copies. Arguments after --
    are passed to JupyterLab: runbook lab RUN -- --port 8899 --ip 0.0.0.0
    """
    from runbook.phases.notebook_copies import (
        SETTINGS_VARIABLE,
        copies_text,
        encryption_arguments,
        make_copies,
        server_arguments,
        with_our_settings,
    )
    from runbook.runs.run_folder import RUNS_VARIABLE

    if runs is not None:
        os.environ[RUNS_VARIABLE] = str(runs.absolute())
    copies = make_copies(
        run_name,
        set_words=set_words,
        as_name=as_name,
        fresh=fresh,
    )
    click.echo(copies_text(copies))
    if copy_only:
        return
    os.environ[SETTINGS_VARIABLE] = with_our_settings(os.environ)
    from jupyterlab.labapp import LabApp
    from tornado.ioloop import IOLoop

    options = ["--Application.log_level=ERROR"]
    if no_browser:
        options.append("--no-browser")
    click.echo("JupyterLab starts; Ctrl-C ends it. Jobs that were launched continue without it.")
    if os.geteuid() == 0 and "--allow-root" not in words:
        click.echo(
            f"JupyterLab refuses to start as root. To allow it: runbook lab {run_name} -- "
            "--allow-root"
        )

    # The loop runs once the server listens at a port, which may not be the requested one.
    IOLoop.current().add_callback(_print_url)
    LabApp.launch_instance([*server_arguments(copies), *encryption_arguments(), *options, *words])


def _print_url() -> None:
    """Print the URL for the running server, unless JupyterLab has printed it with its own token.

    A token or password that the user chose is not printed, because other people may read the
    output, such as a job log, and the user may use it elsewhere, too.
    """
    from jupyter_server.serverapp import ServerApp

    server = ServerApp.instance()
    identity = server.identity_provider
    if identity.token_generated:
        return
    lines = [CliMessage.LAB_URL.fill(url=server.connection_url)]
    if identity.auth_enabled:
        lines.append(CliMessage.LAB_LOGIN.fill())
    click.echo("\n".join(lines))
