"""Which code made a record: commit of the project, versions of what was installed.

commit_of(project) -> str      versions() -> dict[str, str]
"""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

from runbook import shell
from runbook.errors import ProgramError

PACKAGES = (
    "gpt3-runbook",
    "torch",
    "megatron-core",
    "deepspeed",
    "numpy",
    "tokenizers",
    "fastokens",
    "pydantic",
    "ipykernel",
    "nbclient",
    "nbconvert",
    "papermill",
)
"""Packages whose version can change a result or a record; those that are not installed are left out."""


def versions() -> dict[str, str]:
    """Versions of Python, system and packages, without importing any of them."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit_of(project: Path) -> str:
    """The commit of the project's repository, with `-dirty` where tracked files differ; empty where it is not in git.

    Where git is missing or refuses (a repository of another owner), the commit is read from git's files instead; then
    nothing is said about differences.
    """
    git = next((folder / ".git" for folder in (project, *project.parents) if (folder / ".git").exists()), None)
    if git is None:
        return ""
    try:
        # GIT_OPTIONAL_LOCKS=0: looking must not take the index's lock from a commit that is being made.
        said = shell.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=project,
            env={"GIT_OPTIONAL_LOCKS": "0"},
            timeout=20,
        )
        return said.out.strip()
    except ProgramError:
        return _commit_in_files(git)


def _commit_in_files(git: Path) -> str:
    try:
        if git.is_file():  # a worktree or submodule: "gitdir: <folder>"
            git = (git.parent / git.read_text().partition(":")[2].strip()).resolve()
        head = (git / "HEAD").read_text().strip()
        return _follow(git, head.partition(":")[2].strip()) if head.startswith("ref:") else head
    except OSError:
        return ""


def _follow(git: Path, reference: str) -> str:
    shared = git / "commondir"
    common = (git / shared.read_text().strip()).resolve() if shared.exists() else git
    for folder in (git, common):
        if (folder / reference).exists():
            return (folder / reference).read_text().strip()
    packed = common / "packed-refs"
    lines = packed.read_text().splitlines() if packed.exists() else []
    return next((line.split()[0] for line in lines if line.split()[1:] == [reference]), "")
