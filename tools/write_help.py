"""Write docs/when-it-fails.md from the known failures: python tools/write_help.py."""

from __future__ import annotations

from pathlib import Path

from runbook.results.log_readers.known_failures import PAGE, TITLE, FailureClass

HEAD = f"""# {TITLE}

<!-- Written by tools/write_help.py from runbook/results/log_readers/known_failures.json; change it there. -->

1. Read the last words of the cell or of the command: they name the cause, the rule and a remedy.
2. `runbook logs RUN` shows what the newest job wrote; `runbook logs FILE...` reads any training log, also of another
   program, and names every failure below that it finds, with its line.
3. `runbook status RUN` says what became of each job; `runbook doctor` what this machine lacks.
4. After mending the cause run the cell or `runbook run RUN` again: what is finished is not done twice, and a training
   goes on from its newest checkpoint.
"""


def markdown() -> str:
    """The page: each known failure with the words it is known by and what to do about it."""
    return "\n".join([HEAD, *[_section(one) for one in PAGE]])


def _section(one: FailureClass) -> str:
    words = "\n".join(f"- `{pattern}`" for pattern in one.patterns)
    remedy = one.remedy.replace("<", "&lt;")
    return f"## {one.name}\n\n{remedy}\n\nA log shows it by one of these (regular expressions):\n\n{words}\n"


if __name__ == "__main__":
    page = Path(__file__).parents[1] / "docs" / "when-it-fails.md"
    page.write_text(markdown(), encoding="utf-8")
