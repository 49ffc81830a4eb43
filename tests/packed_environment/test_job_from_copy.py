"""Jobs on this machine that run Python from a copy.

Their trainer has only a few lines, because the test is about the job.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from packed_environment.conftest import PROJECT, Packed, in_use
from suite.messages import says

from runbook.core import processes
from runbook.core.files import read_lines
from runbook.jobs.job_folder import JobFolder
from runbook.jobs.local import LocalScheduler
from runbook.jobs.messages import JobMessage, JobReason
from runbook.jobs.render.training_job import ENVIRONMENT_FILE, render_job, write_job
from runbook.packed_environment.messages import CopyMessage
from runbook.packed_environment.node_copy import copies_folder
from runbook.params import Settings
from runbook.params.schema.entries import Dataset, Model
from runbook.params.schema.run_file import Jobs, Run
from runbook.params.schema.site import Hardware, Site

pytestmark = pytest.mark.jobs
PHASE = "04-training"
TRAINER = r"""import answers, runbook, sys
sys.stdout.write(f"{sys.prefix} {answers.__file__} {runbook.__file__}\n")
"""
"""Both ranks write to one unbuffered file, so each line is a single write, unlike with `print`."""


def write_trainer(packed: Packed) -> None:
    """Add a trainer to the package that prints where it runs."""
    folder = packed.package / "runbook" / "training"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "__main__.py").write_text(TRAINER)
    # Without a copy, it is found like an editable install.
    (packed.packages / "clone.pth").write_text(f"{packed.package}\n")
    packed.manifest = packed.pack()


class CopiedJob:
    """A job of two ranks in a separate folder."""

    def __init__(self, packed: Packed, **jobs: object) -> None:
        model = Model(label="tiny", layers=4, hidden=128, heads=4, source="test")
        settings = Settings(
            run=Run(
                run="bench", model="tiny", jobs=Jobs(environment_copy=str(packed.disk), **jobs)
            ),
            site=Site(
                site="local",
                title="This machine",
                scheduler="local",
                hardware=Hardware(device="cpu", devices_per_node=2),
            ),
            model=model,
            smoke_model=model,
            smoke_model_name="tiny",
            dataset=Dataset(title="Corpus", kind="corpus", licence="CC0", source="test"),
            origins={},
            project=PROJECT,
        )
        spec = SimpleNamespace(  # what the job reads from a plan
            phase=PHASE,
            parallel=SimpleNamespace(world_size=2),
            limits=SimpleNamespace(process_group_timeout_seconds=600),
            log=SimpleNamespace(events="events.jsonl"),
            deepspeed=None,
        )
        python = packed.environment / "bin" / "python"
        plan = SimpleNamespace(phases={PHASE: spec})
        rendered = render_job(settings, plan, PHASE, python=str(python), package=PROJECT)
        files = rendered.files | {ENVIRONMENT_FILE: packed.manifest.as_text()}
        self.folder = JobFolder(packed.root / "run" / "jobs" / PHASE)
        write_job(self.folder, replace(rendered, files=files))

    def run(self) -> int | None:
        """Run the job to completion, and return its exit code."""
        scheduler = LocalScheduler()
        scheduler.submit(self.folder)
        assert processes.wait_until(lambda: scheduler.state(self.folder).final, 120), self.err
        return scheduler.state(self.folder).exit_code

    @property
    def out(self) -> str:
        return self.folder.out.read_text()

    @property
    def err(self) -> str:
        return self.folder.err.read_text()


def run_python(job: CopiedJob, *words: str, **environment: str) -> subprocess.CompletedProcess:
    """Start Python as a rank of a job does."""
    return subprocess.run(
        ["bash", str(job.folder.path / "python.sh"), *words],
        env={**os.environ, "RUNBOOK_JOB_FOLDER": str(job.folder.path), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def runs_from_copy(log: str, copy: Path) -> bool:
    """Return whether a log says that Python runs from this copy."""
    where = JobMessage.FROM_COPY.fill(copy=copy)
    return JobMessage.PYTHON_RUNS.fill(where=where) in log


def runs_from_shared(log: str) -> bool:
    """Return whether a log says that Python runs from the shared environment."""
    where = JobMessage.FROM_SHARED.fill()
    return JobMessage.PYTHON_RUNS.fill(where=where) in log


@pytest.fixture
def ready(packed: Packed) -> Packed:
    write_trainer(packed)
    return packed


def test_both_ranks_run_from_the_copy_which_is_gone_afterwards(ready):
    job = CopiedJob(ready)
    assert job.run() == 0, job.err
    copy = copies_folder(str(ready.disk)) / ready.manifest.name
    for line in job.out.splitlines():
        prefix, module, package = line.split()
        assert prefix == str(copy / "environment")
        assert module.startswith(f"{copy}/environment/lib/")
        assert package == f"{copy}/package/runbook/__init__.py"
    assert len(job.out.splitlines()) == 2
    assert runs_from_copy(job.err, copy)
    assert not copy.exists()
    (event,) = read_lines(ready.root / "run" / "events.jsonl")
    assert (event["nodes"], event["nodes_with_copy"]) == (1, 1)


def test_a_copy_that_is_kept_serves_the_next_job(ready):
    assert CopiedJob(ready, environment_keep=True).run() == 0
    (ready.root / "run" / "jobs").rename(ready.root / "first")
    ready.archive.unlink()
    job = CopiedJob(ready, environment_keep=True)
    assert job.run() == 0
    copy = copies_folder(str(ready.disk)) / ready.manifest.name
    assert says(job.err, CopyMessage.PRESENT, folder=copy)
    assert (copy / "ready").exists()


def test_a_second_job_starts_while_the_first_one_trains(ready):
    assert CopiedJob(ready, environment_keep=True).run() == 0
    (ready.root / "run" / "jobs").rename(ready.root / "first")
    job = CopiedJob(ready)
    copy = copies_folder(str(ready.disk)) / ready.manifest.name
    with in_use(copy):
        assert job.run() == 0, job.err
    assert runs_from_copy(job.err, copy)
    assert CopyMessage.COPY_IN_USE.fill(copy=copy) in job.err


def test_a_damaged_archive_is_named_and_the_shared_environment_used(ready):
    ready.archive.write_bytes(b"damaged")
    job = CopiedJob(ready)
    assert job.run() == 0, job.err
    assert {line.split()[0] for line in job.out.splitlines()} == {str(ready.environment)}
    assert "damaged archive" in job.err
    assert runs_from_shared(job.err)


def test_ranks_of_two_environments_are_refused(ready):
    ready.archive.write_bytes(b"damaged")
    (ready.packages / "answers.py").write_text("ANSWER = 43\n")
    job = CopiedJob(ready)
    assert job.run() == 2
    assert job.out == ""
    assert JobReason.COPY_CHANGED.fill() in job.folder.reason.read_text()


def test_a_job_by_hand_without_a_manifest_runs_as_before(ready):
    job = CopiedJob(ready)
    (job.folder.path / ENVIRONMENT_FILE).unlink()
    assert job.run() == 0, job.err
    assert {line.split()[0] for line in job.out.splitlines()} == {str(ready.environment)}


def test_the_answer_of_the_node_is_kept_with_the_job(ready):
    job = CopiedJob(ready)
    job.run()
    answer = json.loads((job.folder.path / "environment.jsonl").read_text())
    assert answer["state"] == "unpacked"
    assert answer["files"] == ready.manifest.files
    assert sys.prefix not in answer["folder"]


def test_ranks_run_the_interpreter_that_was_packed(packed):
    """bin/ in the environment may have a python3 with another version next to python3.X."""
    other = packed.environment / "bin" / "python3"
    other.unlink()
    other.write_text("#!/bin/sh\necho another version\n")
    other.chmod(0o755)
    link = packed.environment / "bin" / "python"
    link.unlink()
    link.symlink_to(sys.executable)
    packed.manifest = packed.pack()
    job = CopiedJob(packed)
    ended = run_python(job, "-c", "import sys; print(sys.executable)")
    copy = copies_folder(str(packed.disk)) / packed.manifest.name
    assert ended.stdout == f"{copy / packed.manifest.python}\n", ended.stderr


def shadow_timeout(packed: Packed, lines: str) -> str:
    """Return a PATH with a `timeout` that answers instead of the program that creates the copy."""
    folder = packed.root / "programs"
    folder.mkdir()
    program = folder / "timeout"
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_a_copy_that_is_removed_at_each_start_is_no_reason_to_run_unchecked_files(packed):
    path = shadow_timeout(packed, """echo '{"node": "a", "state": "present"}'""")
    ended = run_python(CopiedJob(packed), "-c", "print(1)", PATH=path)
    copy = copies_folder(str(packed.disk)) / packed.manifest.name
    assert (ended.returncode, ended.stdout) == (2, "")
    assert JobMessage.COPY_REMOVED_TWICE.fill(copy=copy) in ended.stderr


def test_a_shared_environment_that_was_compared_is_used(packed):
    path = shadow_timeout(packed, """echo '{"node": "a", "state": "shared"}'""")
    ended = run_python(CopiedJob(packed), "-c", "print(1)", PATH=path)
    assert (ended.returncode, ended.stdout) == (0, "1\n")
    assert runs_from_shared(ended.stderr)


def test_a_file_system_that_hangs_ends_the_rank(packed):
    path = shadow_timeout(packed, "exit 124")
    ended = run_python(CopiedJob(packed), "-c", "print(1)", PATH=path)
    assert (ended.returncode, ended.stdout) == (124, "")
    assert JobMessage.NO_COPY_IN_TIME.fill(seconds=1800) in ended.stderr


def test_unpacking_that_hangs_leaves_the_line_of_its_node(packed):
    path = shadow_timeout(packed, "exit 124")
    node = {"SLURMD_NODENAME": "n7"}
    ended = run_python(CopiedJob(packed), "--unpack", PATH=path, **node)
    assert ended.returncode == 124
    assert JobMessage.NO_COPY_IN_TIME.fill(seconds=1800) in ended.stderr
    answer = json.loads(ended.stdout)
    assert (answer["node"], answer["state"]) == ("n7", "timed out")


def test_a_rank_does_not_wait_again_for_a_node_whose_unpacking_hung(packed):
    job = CopiedJob(packed)
    hangs = shadow_timeout(packed, 'echo asked >>"$RUNBOOK_JOB_FOLDER/asked"; exit 124')
    node = {"SLURMD_NODENAME": "n7"}
    ended = run_python(job, "--unpack", PATH=hangs, **node)
    (job.folder.path / "environment.jsonl").write_text(ended.stdout)
    again = run_python(job, "-c", "print(1)", PATH=hangs, **node)
    assert (again.returncode, again.stdout) == (124, "")
    assert JobMessage.NO_COPY_IN_TIME.fill(seconds=1800) in again.stderr
    other = run_python(job, "-c", "print(1)", PATH=hangs, SLURMD_NODENAME="n77")
    assert other.returncode == 124
    assert (job.folder.path / "asked").read_text().splitlines() == ["asked", "asked"]


def plant(packed: Packed, folder: Path) -> None:
    """Create a copy as if somebody else had written it. Its Python prints that."""
    copy = folder / packed.manifest.name
    python = copy / packed.manifest.python
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho planted\n")
    python.chmod(0o755)
    (copy / "ready").write_text(f"{packed.manifest.sha256}\n")
    copy.with_name(f"{copy.name}.lock").touch()


def test_no_rank_follows_a_link_to_a_planted_copy(packed, tmp_path):
    plant(packed, tmp_path / "planted")
    root = copies_folder(str(packed.disk))
    root.symlink_to(tmp_path / "planted")
    job = CopiedJob(packed)
    ended = run_python(job, "-c", "print(1)")
    assert ended.stdout == "1\n", ended.stderr
    assert CopyMessage.FOLDER_IS_A_LINK.fill(root=root) in ended.stderr
    assert run_python(job, "--remove").returncode == 0
    assert (tmp_path / "planted" / packed.manifest.name / "ready").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_no_rank_runs_a_copy_of_somebody_else(packed):
    root = copies_folder(str(packed.disk))
    plant(packed, root)
    os.chown(root, 65_534, 65_534)
    job = CopiedJob(packed)
    ended = run_python(job, "-c", "print(1)")
    assert ended.stdout == "1\n", ended.stderr
    assert CopyMessage.FOLDER_OF_SOMEBODY_ELSE.fill(root=root) in ended.stderr
    assert run_python(job, "--remove").returncode == 0
