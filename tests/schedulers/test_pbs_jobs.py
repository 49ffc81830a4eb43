"""The PBS adapter with a stand-in on the PATH (pbs_stand_in.py, which is not PBS), and mpiexec for real."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.errors import JobError
from runbook.params import load
from runbook.params.settings import Settings
from runbook.render import Task, render_task, write_job
from runbook.render.folder import JobFolder
from runbook.schedulers import processes, queue
from runbook.schedulers.base import State, next_job_folder
from runbook.schedulers.pbs import Pbs
from runbook.schedulers.queue import QueueScheduler

pytestmark = pytest.mark.jobs
PROJECT = Path(__file__).parents[2]


@pytest.fixture
def pbs(tmp_path, monkeypatch) -> QueueScheduler:
    home = tmp_path / "stand-in"
    home.mkdir()
    for name in ("qsub", "qstat", "qselect", "qdel", "qsig"):
        program = home / name
        text = (Path(__file__).parent / "pbs_stand_in.py").read_text()
        program.write_text(f"#!{sys.executable} -S\n{text}")
        program.chmod(0o755)
    monkeypatch.setenv("PBS_STAND_IN", str(home))
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    monkeypatch.setattr(queue, "ASK_SECONDS", 0.0)
    yield QueueScheduler(Pbs())
    for path in home.glob("*.json"):
        for pid in json.loads(path.read_text())["pids"]:
            if (Path("/proc") / str(pid) / "environ").exists():
                os.killpg(pid, 9)


@pytest.fixture
def settings() -> Settings:
    """Polaris' run on a site with this machine's programs only."""
    words = ["jobs.account=project", "jobs.stage=/stage", "jobs.data.partition=debug"]
    own = load("polaris-25b", set_words=words, project=PROJECT)
    directives = {"place": "scatter"}
    return replace(own, site=own.site.model_copy(update={"environment": {}, "directives": directives}))


def task(run_folder: Path, settings: Settings, *argv: str, array: int = 0, **options) -> JobFolder:
    jobs = settings.run.jobs
    data = jobs.data.model_copy(update={"array": array})
    settings = replace(settings, run=settings.run.model_copy(update={"jobs": jobs.model_copy(update={"data": data})}))
    folder = next_job_folder(run_folder, "02-data")
    write_job(folder, render_task(settings, "02-data", Task("a test", argv, **options), Path("/nowhere")))
    return folder


def end_of(pbs: QueueScheduler, folder: JobFolder) -> State:
    assert processes.wait_until(lambda: pbs.state(folder).final, 60), pbs.state(folder)
    return pbs.state(folder).state


def test_a_job_is_submitted_and_its_end_is_known_by_its_files_and_by_the_history(pbs, tmp_path, settings):
    folder = task(tmp_path / "a run", settings, "false")
    assert pbs.submit(folder) == "pbs-1700"
    assert json.loads(folder.record.read_text())["queue_id"] == "1700.stand-in"
    assert end_of(pbs, folder) is State.FAILED
    assert pbs.state(folder).reason == "ended with exit code 1"
    folder.exit_code.unlink()  # as where the disk was full at the end
    folder.heartbeat.unlink()
    assert processes.wait_until(lambda: pbs.state(folder).final, 60)
    assert pbs.state(folder).reason == "F (Exit_status 1), partition debug, on localhost"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "#PBS -l walltime=02:00:00",
            r"walltime of 2 h .* limit of queue debug, 1 h .*resources_max.walltime=01:00:00",
        ),
        ("#PBS -l select=3", r"3 nodes are more than queue debug gives a job, 2"),
        ("#PBS -q nowhere", r"there is no queue nowhere; there are debug, prod"),
        ("#PBS -A nobody", r"refused .*account nobody is not allowed to submit"),
    ],
)
def test_what_the_queue_cannot_give_is_refused_and_leaves_nothing(pbs, tmp_path, settings, line, words):
    folder = task(tmp_path / "a run", settings, "true")
    folder.script.write_text(f"#!/bin/bash\n#PBS -q debug\n{line}\ntrue\n")
    with pytest.raises(JobError, match=f"(?s){words}"):
        pbs.submit(folder)
    assert not folder.record.exists() and not list((tmp_path / "stand-in").glob("*.json"))


def test_a_server_that_is_down_is_no_end_of_a_job(pbs, tmp_path, settings):
    folder = task(tmp_path / "a run", settings, "sleep", "300")
    pbs.submit(folder)
    assert processes.wait_until(lambda: pbs.state(folder).state is State.RUNNING and folder.heartbeat.exists(), 60)
    (tmp_path / "stand-in" / "down").touch()
    assert pbs.state(folder).state is State.RUNNING  # it gives a sign of life
    folder.heartbeat.write_text("1 1 another-boot\n")
    status = pbs.state(folder)
    assert status.state is State.UNKNOWN and "cannot connect to server" in status.reason
    with pytest.raises(JobError, match=r"(?s)nothing was submitted.*cannot connect to server"):
        pbs.submit(JobFolder(task(tmp_path / "other", settings, "true").path))
    (tmp_path / "stand-in" / "down").unlink()
    assert pbs.cancel(folder).state is State.CANCELLED


def test_a_submission_whose_answer_was_lost_is_found_and_not_doubled(pbs, tmp_path, settings):
    (tmp_path / "stand-in" / "lost").touch()
    folder = task(tmp_path / "a run", settings, "sleep", "300")
    assert pbs.submit(folder) == "pbs-1700"
    assert pbs.submit(folder) == "pbs-1700"
    assert len(list((tmp_path / "stand-in").glob("*.json"))) == 1
    assert pbs.cancel(folder).state is State.CANCELLED


def test_an_array_and_what_waits_for_all_of_it(pbs, tmp_path, settings):
    good = task(tmp_path / "a run", settings, "true", array=2, is_array=True)
    pbs.submit(good)
    join = task(tmp_path / "b run", settings, "true")
    pbs.submit(join, after=[good])
    assert (end_of(pbs, join), end_of(pbs, good)) == (State.DONE, State.DONE)
    bad = task(tmp_path / "c run", settings, "bash", "-c", "exit $RUNBOOK_ELEMENT", array=2, is_array=True)
    pbs.submit(bad)
    never = task(tmp_path / "d run", settings, "true")
    pbs.submit(never, after=[bad])
    assert (end_of(pbs, never), end_of(pbs, bad)) == (State.CANCELLED, State.FAILED)
    assert not never.started.exists()


@pytest.mark.skipif(shutil.which("mpiexec") is None, reason="mpiexec is not installed (Debian: mpich)")
def test_mpiexec_starts_a_program_once_on_each_host(pbs, tmp_path, settings):
    folder = task(tmp_path / "a run", settings, "bash", "-c", 'echo "rank ${PMI_RANK-none}"', on_each_node=True)
    pbs.submit(folder)
    assert end_of(pbs, folder) is State.DONE, folder.err.read_text()
    assert folder.out.read_text() == "rank 0\n"
