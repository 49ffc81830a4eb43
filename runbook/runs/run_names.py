"""Folder names, which commands accept in place of run names.

For example, `local--quick` is the folder of `local --as quick`.
"""

import re
from dataclasses import dataclass

from runbook import params
from runbook.core.errors import ParamsError
from runbook.params.project import find_run_file, variant_names
from runbook.params.yaml12 import read_file
from runbook.runs.messages import RunMessage
from runbook.runs.run_folder import runs_folder


@dataclass(frozen=True)
class NamedRun:
    """What to pass to `params.load` to get a run, and the name from --as."""

    run: str
    """A run name, `RUN:VARIANT`, or a path."""
    as_name: str = ""

    @property
    def set_words(self) -> tuple[str, ...]:
        """The name from --as, as a --set argument for the notebooks."""
        return (f"as={self.as_name}",) if self.as_name else ()


def named_run(word: str, as_name: str = "") -> NamedRun:
    """Return the run named by a command-line argument.

    The argument is a run name, or the name of a folder that was made using --as or for a variant.
    `as_name` is the value of --as. Raise `ParamsError` if the argument names a folder and --as
    gives a different name.
    """
    if not re.fullmatch(r"[\w.-]+--[\w.-]+", word):
        return NamedRun(word, as_name)
    project = params.project_root()
    file = runs_folder(project) / word / "run.yaml"
    if word in params.run_names(project) or not file.exists():
        return NamedRun(word, as_name)
    stem = str(read_file(file, str(file)).values.get("run", ""))
    name = word.removeprefix(f"{stem}--")
    if as_name not in ("", name):
        raise ParamsError(RunMessage.NAMED_TWICE, word=word, stem=stem, name=name, as_name=as_name)

    find_run_file(stem, project)
    if name in variant_names(stem, project):
        return NamedRun(f"{stem}:{name}")
    return NamedRun(stem, name)
