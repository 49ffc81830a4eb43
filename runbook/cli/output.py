"""Output of commands: text or JSON."""

import json
from typing import Any

import click


def show(content: Any) -> None:
    """Print text unchanged, and anything else as JSON."""
    if not isinstance(content, str):
        content = json.dumps(content, indent=1, ensure_ascii=False)
    click.echo(content)
