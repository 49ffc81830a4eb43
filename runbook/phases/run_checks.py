"""Checks the plan for a run against all rules (`runbook check`)."""

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
from runbook.phases.phase_steps import TOKENIZE
from runbook.phases.run_plan import load_plan
from runbook.phases.token_inputs import input_files, text_home
from runbook.planning import Check
from runbook.records.done_marks import read_mark
from runbook.runs.consent import command_checks
from runbook.runs.run_folder import runs_folder
from runbook.runs.run_names import named_run
from runbook.tokens.sources.dataset_files import token_prefixes
from runbook.tokens.sources.documents import is_blank


def run_checks(run: str, set_words: Sequence[str]) -> tuple[str, list[Check]]:
    """Return the run name and every rule that the plan was checked against.

    Values that other YAML readers would interpret differently are also listed.
    """
    settings, plan = load_plan(run, set_words)
    file = find_run_file(named_run(run).run)
    # papermill -f would read these values in the run file differently. Our own reader, which every
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

    A text that cannot be read breaks a run on this machine. For a run on a cluster it is only a
    warning, because this machine may not see folders on the cluster. Once 02-data has made the
    token files, the text is no longer needed.
    """
    is_tokenized = read_mark(runs_folder(settings.project) / settings.name, TOKENIZE) is not None
    must_be_here = settings.site.scheduler == "local" and not is_tokenized
    checks = []
    for text in settings.texts:
        if text.folder:
            name = "02-data: data.folder"
        elif text.dataset.kind == "local":
            name = f"02-data: folder of {text.name}"
        else:
            continue

        problem = ""
        value = ""
        try:
            files = _files_of(settings, text)
            folder = text.folder or text_home(settings, text)
            value = f"{counted(len(files), 'file')} in {folder}"
            if _are_blank(files):
                problem = PhaseMessage.TEXT_IS_EMPTY.fill(files=value)
        except DataError as error:
            problem = str(error)

        # 02-data downloads missing files for other kinds of text.
        is_downloaded = text.dataset.kind in ("download", TOKENIZED)
        verdict = "pass"
        if problem:
            verdict = "fail" if must_be_here and not is_downloaded else "warn"
        rule = PhaseMessage.FOLDER_IS_READABLE.fill()
        checks.append(Check(name, verdict, problem or value, rule))

    return checks


def _are_blank(files: Sequence[Path]) -> bool:
    """Return whether all files are blank. False for token files, which are named by a prefix."""
    return all(file.is_file() and is_blank(file) for file in files)


def _files_of(settings: Settings, text: TextShare) -> list[Path]:
    """Return the files with a text, or the prefixes for its token files."""
    if text.dataset.kind != TOKENIZED:
        return input_files(settings, text)
    home = text_home(settings, text)
    return token_prefixes(text.dataset, project=settings.project, folder=str(home))


def check_text(name: str, checks: Sequence[Check]) -> str:
    """Return the checks for a run as a table, and how many need attention."""
    counts = Counter(check.verdict for check in checks)
    open_parts = []
    if counts["warn"]:
        open_parts.append(PhaseMessage.TO_BE_LOOKED_AT.fill(number=counts["warn"]))
    if counts["unknown"]:
        open_parts.append(f"{counts['unknown']} still unknown")

    if counts["fail"]:
        end = PhaseMessage.RULES_BROKEN.fill(number=counts["fail"])
    elif open_parts:
        end = PhaseMessage.NO_RULE_BROKEN.fill(open_parts=" and ".join(open_parts))
    else:
        end = PhaseMessage.EVERYTHING_FITS.fill()

    return f"{CheckTable(checks).as_text()}\n{name}: {end}"
