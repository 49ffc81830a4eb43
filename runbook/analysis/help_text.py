"""What to do when a training fails: the known failures as one page, in markdown.

markdown() -> str      anchor("disk full") -> "disk-full"      named_in(text) -> names of known failures
"""

from __future__ import annotations

from runbook.analysis.known_failures import CLASSES, HANG, FailureClass, find_failures

TITLE = "When it fails"
HEAD = f"""# {TITLE}

<!-- Written by tools/write_help.py from runbook/analysis/known_failures.py; change it there. -->

1. Read the last words of the cell or of the command: they name the cause, the rule and a remedy.
2. `runbook logs RUN` shows what the newest job wrote; `runbook logs FILE...` reads any training log, also of another
   program, and names every failure below that it finds, with its line.
3. `runbook status RUN` says what became of each job; `runbook doctor` what this machine lacks.
4. After mending the cause run the cell or `runbook run RUN` again: what is finished is not done twice, and a training
   goes on from its newest checkpoint.
"""


def markdown() -> str:
    """The page: each known failure with the words it is known by and what to do about it."""
    return "\n".join([HEAD, *[_section(one) for one in classes()]])


def classes() -> tuple[FailureClass, ...]:
    """Every known failure, in the order of the page."""
    return (*CLASSES, HANG)


def anchor(name: str) -> str:
    """The place of a failure on the page, as GitHub and mkdocs name it.

    >>> anchor("NaN in the loss")
    'nan-in-the-loss'
    """
    return name.lower().replace(" ", "-")


def named_in(text: str) -> list[str]:
    """Names of the known failures that a text shows.

    >>> named_in("RuntimeError: [Errno 28] No space left on device")
    ['disk full']
    """
    return [failure.name for failure in find_failures(text.splitlines())]


def _section(one: FailureClass) -> str:
    words = "\n".join(f"- `{pattern}`" for pattern in one.patterns)
    remedy = one.remedy.replace("<", "&lt;")
    return f"## {one.name}\n\n{remedy}\n\nA log shows it by one of these (regular expressions):\n\n{words}\n"
