"""Finds parameter files in a project: run files, sites, variants."""

import os
from dataclasses import dataclass
from pathlib import Path

from runbook.core.errors import ParamsError
from runbook.core.nearest_names import nearest_names
from runbook.params.messages import ParamsMessage
from runbook.params.yaml12 import read_file

PROJECT_VARIABLE = "RUNBOOK_PROJECT"
"""Environment variable with the project folder, for commands and kernels that run outside it."""


def project_root(start: Path | None = None) -> Path:
    """Return the nearest folder, from `start` upwards, that contains params/models.yaml.

    Without `start`, search from $RUNBOOK_PROJECT if it is set, or else from the working folder.
    """
    named = os.environ.get(PROJECT_VARIABLE, "") if start is None else ""
    first = (start or Path(named or os.curdir)).resolve()
    for folder in (first, *first.parents):
        if (folder / "params" / "models.yaml").is_file():
            return folder

    where = f"{PROJECT_VARIABLE}={named}" if named else str(first)
    raise ParamsError(
        ParamsMessage.NOT_IN_A_PROJECT, where=where, project_variable=PROJECT_VARIABLE
    )


def remember_project(project: Path) -> None:
    """Let this process and its children use a project that is not above the working folder.

    A papermill kernel runs in the folder from which papermill was started. Later cells read run
    files, which refer to models and sites in the project.
    """
    try:
        is_found = project_root() == project
    except ParamsError:
        is_found = False

    if not is_found:
        os.environ[PROJECT_VARIABLE] = str(project)


@dataclass(frozen=True)
class RunFile:
    """An existing run file, with its project and variant."""

    path: Path
    variant: str
    project: Path

    @property
    def stem(self) -> str:
        """Return the value that the key `run` in the file must have."""
        return self.path.stem

    @property
    def shown_name(self) -> str:
        """Return the run's name for messages. A recorded run is named like its folder."""
        return self.path.parent.name if self.is_record else self.stem

    @property
    def where(self) -> str:
        """Return the file name as shown to people."""
        return shown_path(self.path, self.project)

    @property
    def is_record(self) -> bool:
        """Return whether the file is the run.yaml from an earlier run."""
        return self.path.name == "run.yaml"

    @property
    def variants_path(self) -> Path:
        """Return the path to the file with the variants of the run."""
        return self.path.parent / "variants" / f"{self.stem}.yaml"


def shown_path(path: Path, project: Path) -> str:
    """Return a path relative to the project if it is inside the project, or else unchanged.

    A link that leads to itself also stays unchanged: Python 3.11 and 3.12 cannot resolve it.
    """
    try:
        return path.resolve().relative_to(project.resolve()).as_posix()
    except (ValueError, RuntimeError, OSError):
        return str(path)


def run_names(project: Path) -> list[str]:
    """Return the run names, which are the file stems in params/."""
    skip = {"models", "datasets"}
    return sorted(
        path.stem for path in (project / "params").glob("*.yaml") if path.stem not in skip
    )


def site_names(project: Path) -> list[str]:
    """Return the site names."""
    return sorted(path.stem for path in (project / "params" / "sites").glob("*.yaml"))


def variant_names(run: str, project: Path | None = None) -> list[str]:
    """Return the variants of a run, in file order.

    The result is empty if there is no such file.
    """
    file = find_run_file(run, project)
    path = file.variants_path
    if not path.is_file():
        return []
    return list(read_file(path, shown_path(path, file.project)).values)


def find_run_file(name: str, project: Path | None = None) -> RunFile:
    """Return the run file that `name` refers to: a stem in params/, `stem:variant`, or a path."""
    if not name.strip():
        raise ParamsError(ParamsMessage.NO_RUN_NAMED)

    word, variant = _split_variant(name.strip())
    if "/" in word or "\\" in word or word.endswith((".yaml", ".yml")):
        return _by_path(word, variant, project)
    root = (project or project_root()).resolve()
    path = root / "params" / f"{word}.yaml"
    names = run_names(root)
    if word in names:
        return RunFile(path, variant, root)
    if Path(word).suffix and Path(word).is_file():
        raise ParamsError(ParamsMessage.NOT_A_RUN_FILE, word=word)
    near = nearest_names(word, names)
    if near:
        hint = f"Did you mean {' or '.join(near)}?"
    else:
        hint = f"The runs are: {', '.join(names) or 'none yet'}."

    raise ParamsError(ParamsMessage.NO_SUCH_RUN, word=word, path=shown_path(path, root), hint=hint)


def _split_variant(name: str) -> tuple[str, str]:
    """Split a name into a run and a variant, which is empty if the colon is part of a path."""
    word, colon, variant = name.rpartition(":")
    has_variant = bool(colon and word)
    if not has_variant or "/" in variant or Path(name).exists():
        return name, ""
    return word, variant


def _by_path(word: str, variant: str, project: Path | None) -> RunFile:
    path = Path(word).expanduser()
    if not path.exists() and not path.is_absolute():
        # Notebook kernels work in notebooks/, so a relative path is also tried from the project and
        # from its params/.
        root = project or project_root()
        for candidate in (root / path, root / "params" / path):
            if candidate.exists():
                path = candidate
                break

    if path.is_file() and path.suffix not in (".yaml", ".yml"):
        raise ParamsError(ParamsMessage.NOT_A_RUN_FILE, word=word)
    if not path.exists():
        near = _similar_run_files(Path(word), project)
        suggestion = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ParamsError(ParamsMessage.NO_SUCH_RUN_FILE, word=word, suggestion=suggestion)

    if project is None:
        try:
            project = project_root(path.resolve().parent)
        except ParamsError:
            project = project_root()

    return RunFile(path.resolve(), variant, project.resolve())


def _similar_run_files(missing: Path, project: Path | None) -> list[str]:
    """Return the paths of run files with a similar name, in the form in which they can be given.

    A name without a folder is also looked up in params/.
    """
    folders = [missing.parent]
    if not missing.parent.name:
        folders.append(Path("params"))
    root = project or project_root()
    paths: list[str] = []
    for folder in folders:
        place = folder.expanduser()
        if not place.is_dir():
            place = root / place
        names = sorted(neighbor.name for neighbor in place.glob("*.y*ml"))
        paths += [str(folder / name) for name in nearest_names(missing.name, names)]

    return paths
