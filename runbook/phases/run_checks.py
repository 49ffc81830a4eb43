"""All rules for a run's plan, for `runbook check`."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from runbook.core.checks import counted
from runbook.core.errors import DataError
from runbook.display import CheckTable
from runbook.params.problems import differences
from runbook.params.project import find_run_file
from runbook.params.schema.entries import TOKENIZED, TextShare
from runbook.params.settings import Settings
from runbook.params.yaml12 import read_text
from runbook.phases.messages import PhaseMessage
from runbook.phases.run_plan import load_plan
from runbook.phases.token_inputs import input_files, text_home
from runbook.planning import Check
from runbook.runs.consent import command_checks
from runbook.runs.run_names import named_run
from runbook.tokens.sources.dataset_files import token_prefixes


def run_checks(run: str, set_words: Sequence[str]) -> tuple[str, list[Check]]:
    """Return the name of a run and every rule against which its plan was checked.

    Values that other YAML readers would interpret differently are also listed.
    """
    settings, plan = load_plan(run, set_words)
    file = find_run_file(named_run(run).run)
    # papermill -f would read these values of the run file differently. Our own reader, which every
    # command uses, reads them as intended.
    rule = PhaseMessage.SAME_IN_BOTH_YAML.fill()
    yaml_checks = []
    for difference in differences(read_text(file.path, file.where), file.where):
        name = f"YAML 1.1: {difference.key}"
        yaml_checks.append(
            Check(
                name,
                "warn",
                difference.where,
                rule,
                str(difference.rule),
            )
        )

    checks = [*yaml_checks, *command_checks(settings), *folder_checks(settings), *plan.checks]
    return settings.name, checks


def folder_checks(settings: Settings) -> list[Check]:
    """Return a check for each text that the user provides: can this machine read its files?

    A failed check is only a warning, because 02-data may run on another machine or later.
    """
    checks = []
    for text in settings.texts:
        if text.folder:
            name = "02-data: data.folder"
        elif text.dataset.kind == "local":
            name = f"02-data: folder of {text.name}"
        else:
            continue

        try:
            files = _files_of(settings, text)
            verdict = "pass"
            folder = text.folder or text_home(settings, text)
            value = f"{counted(len(files), 'file')} in {folder}"
        except DataError as error:
            verdict = "warn"
            value = str(error)

        rule = PhaseMessage.FOLDER_IS_READABLE.fill()
        checks.append(Check(name, verdict, value, rule))

    return checks


def _files_of(settings: Settings, text: TextShare) -> list[Path]:
    """Return the files of a text, or the prefixes of its token files."""
    if text.dataset.kind != TOKENIZED:
        return input_files(settings, text)
    home = text_home(settings, text)
    return token_prefixes(text.dataset, project=settings.project, folder=str(home))


def check_text(run: str, set_words: Sequence[str]) -> str:
    """Return the checks of a run as a table, and the number that need attention."""
    name, checks = run_checks(run, set_words)
    counts = Counter(check.verdict for check in checks)
    open_parts = []
    if counts["warn"]:
        open_parts.append(PhaseMessage.TO_BE_LOOKED_AT.fill(number=counts["warn"]))
    if counts["unknown"]:
        open_parts.append(f"{counts['unknown']} still unknown")
    if open_parts:
        end = PhaseMessage.NO_RULE_BROKEN.fill(open_parts=" and ".join(open_parts))
    else:
        end = PhaseMessage.EVERYTHING_FITS.fill()

    return f"{CheckTable(checks).as_text()}\n{name}: {end}"
