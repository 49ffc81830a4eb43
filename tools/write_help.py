"""Write docs/when-it-fails.md from the known failures: python tools/write_help.py."""

from __future__ import annotations

from pathlib import Path

from runbook.results.failures.finder import examples_of
from runbook.results.failures.kinds import KINDS, TITLE
from runbook.results.failures.rule import FailureKind
from runbook.results.failures.trials import trial_of

HEAD = f"""# {TITLE}

<!-- Written by tools/write_help.py from runbook/results/failures; change it there. -->

1. Read the last lines of the cell or of the command: they name the cause, the rule and a remedy.
2. `runbook logs RUN` shows what the newest job wrote; `runbook logs FILE...` reads any training log, also of another
   program, and names every failure below that it finds, with its line. If no rule recognizes the cause, it shows the first
   error and gives no remedy.
3. `runbook status RUN` shows how each job ended, `runbook doctor` what this machine lacks.
4. Once the cause is fixed, run the cell or `runbook run RUN` again. Finished work is not repeated, and a training run
   continues from its newest checkpoint.
"""


def markdown() -> str:
    """Return the page: each known failure with its remedy, and log lines that show it."""
    return "\n".join([HEAD, *[_section(kind) for kind in KINDS]])


def _section(kind: FailureKind) -> str:
    remedy = kind.remedy.replace("<", "&lt;")
    examples = "\n".join(f"- `{line.strip()}` ({source})" for line, source in examples_of(kind))
    advice = kind.decision.advice
    advice = advice[0].upper() + advice[1:]
    trial = trial_of(kind)
    tried = "We have not tried this remedy."
    if trial:
        tried = f"Tried: {trial.how} (`{trial.place}`)."
    return f"## {kind.name}\n\n{remedy} {advice} {tried}\n\nTypical log lines:\n\n{examples}\n"


if __name__ == "__main__":
    page = Path(__file__).parents[1] / "docs" / "when-it-fails.md"
    page.write_text(markdown(), encoding="utf-8")
