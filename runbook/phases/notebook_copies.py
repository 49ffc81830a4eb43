"""Copies of the shipped notebooks.

`runbook init` writes copies into a project folder, and `runbook lab` into a run folder. An
edited master changes every run executed from it, but an edited copy changes only its own
run. A copy differs from its master only in the parameters cell and the links. Its cells have the
same ids, so a record does not depend on whether a master or a copy was executed.
"""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import runbook
from runbook import params
from runbook.core.errors import ParamsError, RunbookError
from runbook.core.files import make_dated_folder, replacing, write_text
from runbook.params.problems import InvalidParams
from runbook.params.project import RunFile, find_run_file
from runbook.phases.messages import PhaseMessage
from runbook.plan_file.phase_names import PHASES
from runbook.records.manifest import COPIES
from runbook.records.session import MasterCell, read_master
from runbook.runs.run_folder import runs_folder
from runbook.runs.run_names import named_run

PACKAGE = Path(runbook.__file__).parent
COPIED = (
    *("notebooks/*.ipynb", "params/*.yaml", "params/*/*.yaml"),
    *("docs/when-it-fails.md", "docs/your-own-cluster.md"),
)
IGNORED = "runs/\n.ipynb_checkpoints/\n"
"""Files that a project keeps out of git. Runs are evidence, but they are large."""


def master_folder() -> Path:
    """Return the folder with the shipped notebooks and parameters.

    The folder is in the installed package; in a clone, it is next to the package.
    """
    for folder in (PACKAGE / "masters", PACKAGE.parent):
        if (folder / "params" / "models.yaml").is_file() and (folder / "notebooks").is_dir():
            return folder

    raise RunbookError(PhaseMessage.NOTEBOOKS_MISSING, package=PACKAGE)


def make_project(folder: Path, *, clone: bool = False) -> tuple[list[Path], list[Path]]:
    """Copy notebooks and parameters into a folder. A clone already has them.

    Return the files written and the files kept.
    """
    if folder.exists() and not folder.is_dir():
        raise RunbookError(PhaseMessage.PROJECT_IS_A_FILE, folder=folder)
    source = master_folder()
    if folder.resolve() == source.resolve():
        if clone:
            return [], []
        raise RunbookError(PhaseMessage.FOLDER_OF_THE_MASTERS, folder=folder)

    written = []
    present = []
    for pattern in COPIED:
        for file in sorted(source.glob(pattern)):
            target = folder / file.relative_to(source)
            if target.exists():
                present.append(target)
                continue

            # The next call would keep a truncated copy as if the user had made it.
            with replacing(target) as copy:
                copy.write(file.read_bytes())
            written.append(target)

    ignored = folder / ".gitignore"
    if not ignored.exists():
        ignored.write_text(IGNORED, encoding="utf-8")
        written.append(ignored)

    return written, present


@dataclass(frozen=True)
class RunNotebooks:
    """Notebooks copied for one run."""

    folder: Path
    project: Path
    written: tuple[str, ...]
    """Names of the notebooks that were just copied."""
    edited: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Existing notebooks that differ from the masters, each with the cell ids that differ.
    """
    moved: Path | None = None
    """Folder with the copies moved aside."""
    problem: str = ""
    """Why no cell can open the run; empty if it can."""


def make_copies(
    run: str,
    *,
    set_words: Sequence[str] = (),
    as_name: str = "",
    fresh: bool = False,
) -> RunNotebooks:
    """Copy the masters into the run folder, with `run` set to this run.

    An existing copy is never overwritten. `run` is a run name that `runbook run` accepts, or the
    name of a run folder. `set_words` and `as_name` are the values given to --set and --as, which
    are written into the parameters cell in the copies. `fresh` moves existing copies aside.
    """
    named = named_run(run, as_name)
    set_and_named_words = [*set_words, *named.set_words]
    file = find_run_file(named.run)
    problem = ""
    try:
        settings = params.load(named.run, set_words=set_and_named_words)
        name = settings.name
    except InvalidParams as error:
        # The model, dataset or site of an old run may have left params/.
        name = "--".join(part for part in (file.stem, file.variant or named.as_name) if part)
        if set_words or not (runs_folder(file.project) / name / "run.yaml").exists():
            raise
        problem = "\n".join(f"  {fault.text()}" for fault in error.problems)

    folder = runs_folder(file.project) / name / COPIES
    cell = {
        "run": _run_value(file, folder, file.project),
        "overrides": shlex.join(set_and_named_words),
    }
    moved = _move_aside(folder) if fresh else None
    written = []
    edited = {}
    for phase in PHASES:
        notebook = f"{phase}.ipynb"
        master = file.project / "notebooks" / notebook
        copy = folder / notebook
        text = _master_text(master, cell, os.path.relpath(file.project, folder))
        if not copy.exists():
            write_text(copy, text)
            written.append(notebook)
            continue

        if set_words:
            _refuse_other_overrides(copy, cell["overrides"])
        differing = _differing_cells(read_master(master), read_master(copy))
        if differing:
            edited[notebook] = differing

    return RunNotebooks(
        folder,
        file.project,
        tuple(written),
        edited,
        moved,
        problem,
    )


def _run_value(file: RunFile, copies: Path, project: Path) -> str:
    """Return the value for `run` that a kernel in the folder with the copies needs."""
    is_in_project = copies.resolve().is_relative_to(project)
    if is_in_project and file.path.parent == project / "params":
        run = file.stem
    else:
        # A kernel outside the project would not find the file by its name.
        run = str(file.path)

    if file.variant:
        return f"{run}:{file.variant}"
    return run


def _move_aside(folder: Path) -> Path | None:
    """Move the copies for a run into a dated folder, and return that folder.

    Return None if there is no copy.
    """
    copies = [folder / f"{phase}.ipynb" for phase in PHASES]
    present = [path for path in copies if path.exists()]
    if not present:
        return None
    moved = make_dated_folder(folder, "before")
    for path in present:
        path.rename(moved / path.name)
    return moved


def _refuse_other_overrides(copy: Path, overrides: str) -> None:
    """Raise an error if an existing copy has different overrides: --set would have no effect."""
    (cell,) = (cell for cell in read_master(copy) if cell.is_parameters)
    if f"overrides: str = {json.dumps(overrides, ensure_ascii=False)}" in cell.source:
        return
    raise ParamsError(PhaseMessage.COPY_WITH_OTHER_OVERRIDES, copy=copy, overrides=overrides)


def _master_text(master: Path, named: Mapping[str, str], to_project: str) -> str:
    """Return the text of the master, with the run in its parameters cell and adapted links."""
    try:
        content = json.loads(master.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ParamsError(PhaseMessage.MASTER_MISSING, master=master) from None

    for cell in content["cells"]:
        if "parameters" in cell["metadata"].get("tags", []):
            source = "".join(cell["source"])
            for name, value in named.items():
                source = _set_parameter(name, value, source)
            cell["source"] = source.splitlines(keepends=True)
        elif cell["cell_type"] == "markdown":
            cell["source"] = [line.replace("](../", f"]({to_project}/") for line in cell["source"]]

    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _set_parameter(name: str, value: str, source: str) -> str:
    """Return the parameters cell with a new value for one name; the comment on the line stays.

    >>> _set_parameter("run", "mine", 'run: str = "local"  # a file in params/')
    'run: str = "mine"  # a file in params/'
    """
    literal = json.dumps(value, ensure_ascii=False)
    return re.sub(rf'(?m)^({name}: str = )"[^"]*"', lambda match: match[1] + literal, source)


def _differing_cells(
    master: tuple[MasterCell, ...], copy: tuple[MasterCell, ...]
) -> tuple[str, ...]:
    """Return the ids of code cells that differ, or that only one of the notebooks has.

    Values in the parameters cell may differ.
    """
    master_code = _code_by_id(master)
    copy_code = _code_by_id(copy)
    ids = master_code | copy_code
    return tuple(id_ for id_ in ids if master_code.get(id_) != copy_code.get(id_))


def _code_by_id(cells: tuple[MasterCell, ...]) -> dict[str, str]:
    """Return the code in each cell, with an empty parameters cell, because that cell may differ."""
    return {cell.id: "" if cell.is_parameters else cell.source.strip() for cell in cells}


LAB_SETTINGS = PACKAGE / "display" / "jupyter" / "lab_settings"
"""Settings that our JupyterLab adds to those of the user.

They turn off the prompt about showing news.
"""
SETTINGS_VARIABLE = "JUPYTER_CONFIG_PATH"


def with_our_settings(environment: Mapping[str, str]) -> str:
    """Return the folders with Jupyter settings, with ours after those in the environment."""
    named = environment.get(SETTINGS_VARIABLE, "")
    return os.pathsep.join([named, str(LAB_SETTINGS)] if named else [str(LAB_SETTINGS)])


def encryption_arguments() -> list[str]:
    """Return the option that encrypts messages between JupyterLab and its kernels.

    Without it, every kernel warns that other users of the machine may read its output. The result
    is empty if the installed packages cannot encrypt.
    """
    import zmq
    from jupyter_client.manager import KernelManager

    if not (KernelManager.class_traits().get(_ENCRYPTION) and zmq.has("curve")):
        return []
    return [f"--KernelManager.{_ENCRYPTION}=auto"]


_ENCRYPTION = "transport_encryption"
"""Setting of jupyter-client (seen in 8.10); `auto` leaves kernels that cannot encrypt as they are."""


def server_arguments(copies: RunNotebooks) -> list[str]:
    """Return the options for starting JupyterLab.

    The file browser shows the whole project, the first notebook is open, and the prompt about news
    is off.
    """
    root = copies.folder
    if copies.folder.is_relative_to(copies.project):
        root = copies.project
    first = (copies.folder / f"{PHASES[0]}.ipynb").relative_to(root).as_posix()
    return [
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{first}",
        "--LabApp.news_url=None",
    ]


def copies_text(copies: RunNotebooks) -> str:
    """Describe the copies for the user."""
    lines = []
    if copies.moved:
        lines.append(f"The earlier copies are now in {copies.moved}.")
    if copies.written:
        written = len(copies.written)
        lines.append(PhaseMessage.COPIES_WRITTEN.fill(folder=copies.folder, number=written))
    num_kept = len(PHASES) - len(copies.written)
    if num_kept:
        lines.append(PhaseMessage.COPIES_KEPT.fill(folder=copies.folder, number=num_kept))
    for name, cells in copies.edited.items():
        lines.append(PhaseMessage.CELLS_DIFFER.fill(name=name, cells=", ".join(cells)))

    if copies.edited:
        lines.append(PhaseMessage.CELLS_COPIED_AGAIN.fill())
    if copies.problem:
        lines.append(PhaseMessage.COPIES_CANNOT_RUN.fill(problem=copies.problem))
    return "\n".join(lines)
