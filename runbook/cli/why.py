"""`runbook why`: explain a key and where its value comes from."""

import click

from runbook.cli.options import AS_JSON, SET
from runbook.cli.output import show


@click.command()
@click.argument("run_name", metavar="RUN")
@click.argument("key")
@SET
@AS_JSON
def why(
    run_name: str,
    key: str,
    set_words: tuple[str, ...],
    as_json: bool,
) -> None:
    """Explain what KEY means, where its value in RUN comes from, and what the documents call it."""
    from runbook.phases.key_explanation import why_facts, why_text

    if as_json:
        show({"values": why_facts(run_name, key, set_words)})
    else:
        click.echo(why_text(run_name, key, set_words))
