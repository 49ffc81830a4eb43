"""A new project folder: the notebooks and parameter files that the package ships, to change and to keep in git.

make_project(folder) -> Made      what exists there already is kept as it is
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import runbook
from runbook.errors import RunbookError

PACKAGE = Path(runbook.__file__).parent
PARTS = {"notebooks": ("*.ipynb",), "params": ("*.yaml", "*/*.yaml"), "docs": ("when-it-fails.md",)}
IGNORED = "runs/\n.ipynb_checkpoints/\n"
"""What a project does not keep in git: runs are evidence, and large."""


@dataclass(frozen=True)
class Made:
    """What was written into a project folder."""

    folder: Path
    written: tuple[Path, ...]
    kept: tuple[Path, ...]
    """Files that were there before."""


def masters() -> Path:
    """Where the shipped notebooks and parameters lie: in the installed package, or beside it in a clone."""
    for folder in (PACKAGE / "masters", PACKAGE.parent):
        if (folder / "params" / "models.yaml").is_file() and (folder / "notebooks").is_dir():
            return folder
    raise RunbookError(
        f"The notebooks are neither in {PACKAGE} nor beside it: this installation is not whole. Install it again: "
        "pip install --force-reinstall --no-deps gpt3-runbook"
    )


def make_project(folder: Path) -> Made:
    """Copy notebooks and parameters into a folder; a file that is there is not touched."""
    if folder.exists() and not folder.is_dir():
        raise RunbookError(f"{folder} is a file; a project is a folder. Name another.")
    source = masters()
    if folder.resolve() == source.resolve():
        raise RunbookError(f"{folder} is where the notebooks come from; name another folder.")
    written, kept = [], []
    for part, patterns in PARTS.items():
        for file in sorted(path for pattern in patterns for path in (source / part).glob(pattern)):
            target = folder / file.relative_to(source)
            if target.exists():
                kept.append(target)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            written.append(target)
    ignored = folder / ".gitignore"
    if not ignored.exists():
        ignored.write_text(IGNORED, encoding="utf-8")
        written.append(ignored)
    return Made(folder, tuple(written), tuple(kept))
