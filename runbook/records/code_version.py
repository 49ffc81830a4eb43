"""Determines which code wrote a record: the commit, and the versions of Python and packages."""

import contextlib
import platform
from importlib import metadata
from pathlib import Path

from runbook.core import shell
from runbook.core.errors import ProgramError

PACKAGES = (
    *(
        "gpt3-runbook",
        "torch",
        "megatron-core",
        "deepspeed",
        "numpy",
        "tokenizers",
        "fastokens",
        "pydantic",
    ),
    *("ipykernel", "nbclient", "nbconvert", "papermill"),
)
"""Packages whose version can change a result or a record.

Packages that are not installed are left out.
"""


def versions() -> dict[str, str]:
    """Return the Python, system and package versions. No package is imported."""
    versions_by_name = {"python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions_by_name[name] = metadata.version(name)

    return versions_by_name


def commit_of(project: Path) -> str:
    """Return the commit of the project repository, or an empty string if git does not report one.

    The result ends with `-dirty` if tracked files differ from the commit. git refuses to read a
    clone that belongs to a different user. Inside a container, a clone may seem to belong to
    somebody other than the user, so git is told to trust the clone that contains this code.
    """
    trusted = f"safe.directory={Path(__file__).parents[2]}"
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    # Take no optional lock, because this query must not compete with a commit in progress.
    environment = {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        finished = shell.run(
            ["git", "-c", trusted, *describe],
            cwd=project,
            env=environment,
            timeout=20,
        )
    except ProgramError:
        return ""

    return finished.out.strip()
