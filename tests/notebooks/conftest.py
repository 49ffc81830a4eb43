"""One toy project and one undisturbed run for all notebook tests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from toy_project import SECRET, Listener, Toy, wait_until


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """Create the project. At the end, end the processes that a failed test left running."""
    toy = Toy(tmp_path_factory.mktemp("toy") / "project")
    toy.ask_for_a_secret()
    yield toy
    toy.end_all()


@pytest.fixture(scope="session")
def campaign(toy: Toy, tmp_path_factory) -> SimpleNamespace:
    """Run `runbook run local` from plan to analysis, and call it again while the first call runs."""
    runs = tmp_path_factory.mktemp("campaign")
    folder = runs / "local"
    with Listener(SECRET) as listener:
        first = toy.start("runbook", "run", "local", "--runs", runs)
        wait_until(lambda: (folder / "jobs").exists(), 240, "the smoke test is submitted")
        second = toy.run(runs)
        text, _ = first.communicate(timeout=900)
    return SimpleNamespace(
        runs=runs,
        folder=folder,
        code=first.returncode,
        text=text,
        pid=first.pid,
        second=second,
        left=toy.processes(),
        listener=listener,
    )


@pytest.fixture(scope="session")
def samples_of_masters() -> Path:
    """Return the master notebooks in the repository."""
    return Path(__file__).parents[2] / "notebooks"
