"""A real training run on this machine, from a copied environment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from packed_environment.thin_environment import make_thin_environment
from suite.messages import containing, says

from runbook import params
from runbook.core.files import read_lines
from runbook.jobs import get_scheduler
from runbook.jobs.job_folder import JobFolder, JobState, latest_job_folder
from runbook.jobs.messages import JobMessage
from runbook.packed_environment.messages import CopyMessage
from runbook.packed_environment.node_copy import copies_folder
from runbook.phases.job_control import job_step, training_jobs
from runbook.phases.open_phase import OpenPhase, open_run_phase
from runbook.phases.phase_steps import TOKENIZE
from runbook.phases.training_results import read_results
from runbook.records.logbook import make_entry
from runbook.runs.run_folder import RUNS_VARIABLE
from runbook.runs.step import write_mark
from runbook.tools.drills.bench import write_project, write_tokens

pytestmark = [pytest.mark.training, pytest.mark.jobs]
PHASE = "04-training"
WORDS = ("site=cold", "training.iterations=6", "training.rehearsal_waived_by=the tests")


class LocalRun:
    """A run in the project for drills, launched here."""

    def __init__(self, root: Path, name: str, *words: str) -> None:
        settings = params.load("drill", set_words=[*WORDS, *words, f"as={name}"], project=root)
        self.settings = settings
        self.open_phase: OpenPhase = open_run_phase(settings, PHASE)
        self.folder = self.open_phase.folder
        write_tokens(self.folder / self.open_phase.phase_plan.data.train[0].prefix)
        write_mark(self.folder, TOKENIZE, 1, "the tests", [])
        training = self.open_phase.training
        training_job = training_jobs.training_step(training, self.open_phase.session)
        job_step.launch(training_job)
        training_jobs.watch(training, training_job)

    @property
    def job(self) -> JobFolder:
        folder = latest_job_folder(self.folder, PHASE)
        assert folder is not None
        return folder

    def losses(self) -> list[tuple[int, float]]:
        return [
            (row["iteration"], row["loss"]) for row in read_lines(self.folder / "metrics.jsonl")
        ]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("packed")
    write_project(folder, make_thin_environment(folder / "venv"))
    site = folder / "params" / "sites" / "cold.yaml"
    warm = folder / "params" / "sites" / "local.yaml"
    site.write_text(warm.read_text().replace("site: local", "site: cold"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUNS_VARIABLE, str(folder / "runs"))
        yield folder


@pytest.fixture(scope="module")
def shared(root) -> LocalRun:
    return LocalRun(root, "shared")


@pytest.fixture(scope="module")
def copied(root) -> LocalRun:
    return LocalRun(root, "copied", f"jobs.environment_copy={root}/disk")


def test_the_losses_are_those_of_the_shared_environment(copied, shared):
    assert copied.losses() == shared.losses()
    assert len(copied.losses()) == 6
    assert get_scheduler(copied.settings.site).state(copied.job).state is JobState.DONE


def test_the_log_and_the_record_say_where_python_ran(copied, root):
    log = copied.job.err.read_text()
    copy = copies_folder(f"{root}/disk")
    assert says(log, CopyMessage.UNPACKED, folder=containing(f"{copy}/"))
    where = JobMessage.FROM_COPY.fill(copy=f"{copy}/")
    assert JobMessage.PYTHON_RUNS.fill(where=where) in log
    (event,) = [
        event
        for event in read_lines(copied.folder / "events.jsonl")
        if event["event"] == "environment_copied"
    ]
    assert (event["nodes"], event["nodes_with_copy"], event["folder"]) == (1, 1, f"{root}/disk")
    assert f"{root}/disk" in make_entry(event).text
    assert re.findall(r"(\d+) of (\d+) node", make_entry(event).text) == [("1", "1")]
    results = read_results(copied.folder, copied.open_phase.plan, PHASE).results()
    assert results["environment_copies"] == 1
    assert results["environment_copy_seconds"] == event["seconds"]


def test_the_job_keeps_the_manifest_that_it_was_submitted_with(copied):
    manifest = json.loads((copied.job.path / "environment.json").read_text())
    (answer,) = read_lines(copied.job.path / "environment.jsonl")
    assert Path(answer["folder"]).name == manifest["sha256"][:16]


def test_nothing_stays_on_the_disk(copied, root):
    left = [path.name for path in copies_folder(f"{root}/disk").iterdir()]
    assert [name for name in left if not name.endswith(".lock")] == []


def test_a_shared_run_has_nothing_of_it(shared):
    assert not (shared.job.path / "python.sh").exists()
    assert (
        "environment_copies"
        not in read_results(shared.folder, shared.open_phase.plan, PHASE).results()
    )
