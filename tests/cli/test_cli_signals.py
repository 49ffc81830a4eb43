"""A command that is told to end by SIGTERM first ends the programs that it started."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from runbook import params
from runbook.cli.messages import CliMessage
from runbook.display import Progress
from runbook.phases import open_phase, rehearsal, trained_model
from runbook.phases.p06_evaluation import phase as evaluation
from runbook.records.engine.execution_end import NotebookStopped
from runbook.runs.run_folder import RUNS_VARIABLE
from runbook.tokens.pipeline import tokenize
from runbook.tools.replay import again


@pytest.fixture
def run_folder(project: Path, monkeypatch) -> Path:
    monkeypatch.setenv(RUNS_VARIABLE, str(project / "runs"))
    settings = params.load("local", set_words=["model=tiny"])
    return open_phase.open_run_phase(settings, "00-plan").folder


@pytest.mark.parametrize(
    ("module", "work", "words"),
    [
        (trained_model, "sample_texts", ["sample", "local"]),
        (trained_model, "export_weights", ["export", "local", "--out", "weights"]),
        (trained_model, "import_weights", ["import", "local", "--from", "."]),
        (evaluation, "evaluate", ["evaluate", "local"]),
        (again, "replay_job", ["replay", "local", "--step", "1"]),
        (rehearsal, "rehearse_run", ["rehearse", "local"]),
        (tokenize, "prepare", ["data", "tokenize", ".", "--out", "tokens/corpus"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sigterm_unwinds_a_command_that_starts_programs(
    module, work, words, runbook, run_folder, monkeypatch
):
    unwound = []

    def start_programs(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("the signal was ignored")
        finally:
            unwound.append(work)

    monkeypatch.setattr(module, work, start_programs)
    said = runbook(*words)
    assert (said.code, unwound) == (128 + signal.SIGTERM, [work])
    assert CliMessage.STOPPED_BY_SIGNAL.fill(signal="SIGTERM") in said.err.splitlines()


def test_progress_names_the_signal_that_stopped_it():
    progress = Progress("tokenize", total=2)
    with pytest.raises(NotebookStopped), progress:
        progress.update(done=1)
        raise NotebookStopped(signal.SIGTERM)
    assert progress.facts["stopped by"] == "SIGTERM"
