import sys

import pytest
from scheduler_bench import Bench


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "python"
    path.write_text(
        f"#!{sys.executable} -IS\n"
        "import os, signal, sys, time\n"
        "rank = int(os.environ['RANK'])\n"
        "exec(os.environ['LINES_TO_RUN'])\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def bench(tmp_path, program, monkeypatch):
    """Provide a folder for jobs. After the test, check that no process is left behind.

    Ranks have enough time to end on their own, so that none is killed even on a slow machine. A
    test that needs the kill shortens one limit.
    """
    for name in ("LOCAL_GRACE_SECONDS", "PEERS_SECONDS", "KILLED_PEERS_SECONDS"):
        monkeypatch.setattr(f"runbook.jobs.render.training_job.{name}", 600)
    place = Bench(tmp_path / "a run", program)
    yield place
    place.close()
