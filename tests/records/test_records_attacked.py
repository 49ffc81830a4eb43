"""Records under adverse conditions: no space for the notebook, two writers, a clock that was set
back, a stop between notebooks.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from notebook_project import BIN, PHASE, WORK, Project
from suite.messages import containing, refuses, says

from runbook.cli.messages import CliMessage
from runbook.core.errors import RecordError
from runbook.core.messages import CoreMessage
from runbook.params.secrets import mask
from runbook.records import session as sessions
from runbook.records.engine.execute import execute_phase
from runbook.records.manifest import earlier_records, verify_run
from runbook.records.messages import RecordMessage
from runbook.records.phase_record import find_phase_record

LOUD = "print('x' * 400_000)"
"""A cell whose output makes its notebook larger than `LIMIT`."""
LIMIT = 200
"""Maximum file size in these tests, in KiB, as `ulimit -f` takes it in bash."""
PHASE_IN_A_PROCESS = """
import logging, sys
from pathlib import Path
from runbook.core.errors import RunbookError
from runbook.records.engine.execute import execute_phase
logging.basicConfig(level=logging.INFO, format='%(message)s')
try:
    outcome = execute_phase(Path(sys.argv[1]), Path(sys.argv[2]), "02-data", {})
except RunbookError as error:
    print(error)
    sys.exit(error.exit_code)
print(outcome)
"""


def with_small_files(
    project: Project, notebook, *, kilobytes: int
) -> subprocess.CompletedProcess[str]:
    """Execute a phase while no file can grow beyond a size, as with a full disk or quota."""
    words = [sys.executable, "-c", PHASE_IN_A_PROCESS, str(notebook), str(project.run_folder)]
    limited = ["bash", "-c", f'ulimit -f {kilobytes}; exec "$@"', "bash", *words]
    environment = {**os.environ, "IPYTHONDIR": str(project.root / "ipython")}
    return subprocess.run(
        limited, capture_output=True, text=True, cwd=project.root, env=environment, timeout=900
    )


@pytest.mark.notebooks
def test_no_room_for_the_notebook_is_told_and_recorded_and_the_phase_goes_on_with_room_again(
    tmp_path,
):
    """Also set the clock back, so that the second execution finds a record with a future time."""
    project = Project(tmp_path)
    notebook = project.notebook(WORK, LOUD, "print('still here')")
    done = with_small_files(project, notebook, kilobytes=LIMIT)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    too_large = {
        "path": containing("02-data.ipynb"),
        "reason": os.strerror(errno.EFBIG),
    }
    assert says(done.stdout, CoreMessage.NOT_WRITTEN, **too_large)
    assert said.count(NOT_SAVED) == 1
    assert "still here" in said, "a full disk in the middle ends no notebook"
    record = find_phase_record(project.run_folder, PHASE)
    assert (str(record.state), record.verdict) == ("failed", "fail")
    assert says(record.reason, CoreMessage.NOT_WRITTEN, **too_large)
    assert record.results == {"tokens": 1024, "loss": 2.718281828}, "what was reached is kept"
    assert not list(project.run_folder.rglob("*.part"))

    path = project.record(".json")
    later = "2099-01-01T00:00:00.000000Z"
    path.write_text(path.read_text().replace(record.started, later))
    os.utime(path, (4e9, 4e9))
    outcome = execute_phase(notebook, project.run_folder, PHASE, {})
    assert (outcome.state, outcome.exit_code) == ("done", 0), outcome
    assert find_phase_record(project.run_folder, PHASE).started < later
    assert (
        next(one.name for one in earlier_records(project.run_folder, PHASE))
        == "02-data-20990101T000000Z.json"
    )
    assert verify_run(project.run_folder) == []


NOT_SAVED = RecordMessage.NOT_SAVED_AND_GOES_ON.value.partition("{error}")[0].strip()


def settings_of(project: Project) -> SimpleNamespace:
    return SimpleNamespace(project=project.root, name="toy", parameters=dict)


def test_of_two_writers_the_later_one_has_the_record_and_the_earlier_writes_nothing_over_it(
    tmp_path,
):
    project = Project(tmp_path)
    project.notebook(WORK)
    first = sessions.Session(settings_of(project), PHASE, project.run_folder)
    first.add_results({"tokens": 1})
    second = sessions.Session(settings_of(project), PHASE, project.run_folder)
    second.add_results({"tokens": 2})
    with refuses(
        RecordError,
        RecordMessage.RECORD_OF_ANOTHER_EXECUTION,
        phase=PHASE,
        recorded_start=second.started,
        started=first.started,
    ):
        first.finish()
    second.finish()
    assert find_phase_record(project.run_folder, PHASE).results == {"tokens": 2}
    assert [
        json.loads(one.read_text())["started"] for one in earlier_records(project.run_folder, PHASE)
    ] == [first.started]


def test_a_clock_that_was_set_back_costs_no_record(tmp_path, monkeypatch):
    project = Project(tmp_path)
    project.notebook(WORK)
    monkeypatch.setattr(sessions, "utc_now", lambda: "2099-01-01T00:00:00.000000Z")
    sessions.Session(settings_of(project), PHASE, project.run_folder).finish()
    monkeypatch.undo()
    again = sessions.Session(settings_of(project), PHASE, project.run_folder)
    again.add_results({"tokens": 2})
    again.finish()
    assert find_phase_record(project.run_folder, PHASE).results == {"tokens": 2}
    assert len(earlier_records(project.run_folder, PHASE)) == 1


def test_a_record_that_cannot_be_written_after_a_cell_is_told_and_written_after_the_next(
    tmp_path, caplog
):
    project = Project(tmp_path)
    project.notebook(WORK)
    session = sessions.Session(settings_of(project), PHASE, project.run_folder)
    ended = SimpleNamespace(
        error_before_exec=None, error_in_exec=None, info=SimpleNamespace(raw_cell="1", cell_id="")
    )
    part = project.record(".json").with_name(f".{PHASE}.json.{os.getpid()}.part")
    part.symlink_to("/dev/full")
    session.add_results({"tokens": 3})
    session._after_cell(ended)
    full = CoreMessage.NOT_WRITTEN.fill(
        path=project.record(".json"), reason=os.strerror(errno.ENOSPC)
    )
    assert RecordMessage.RECORD_NOT_UP_TO_DATE.fill(error=full) in caplog.text
    assert find_phase_record(project.run_folder, PHASE).results == {}
    session._after_cell(ended)
    assert find_phase_record(project.run_folder, PHASE).results == {"tokens": 3}


def test_a_token_that_was_typed_or_printed_is_in_no_record(tmp_path):
    token = "hf_" + "Ab3d" * 8
    project = Project(tmp_path)
    notebook = project.notebook(f"token = '{token}'", f"print('{token}')")
    from runbook.records import notebook_file

    assert token in notebook.read_text()
    assert token not in notebook_file.notebook_text(notebook_file.read_notebook(notebook))
    session = sessions.Session(settings_of(project), PHASE, project.run_folder)
    said = f"I was given {token}."
    session.add_results({"said": said})
    session.finish()
    record = json.loads(project.record(".json").read_text())
    assert record["results"]["said"] == mask(said)
    assert token not in project.record(".json").read_text()


STOPPED_BETWEEN = """
import os
from runbook.phases import runner as run
from runbook.records.engine.execute import Outcome
def phase(request, settings, plan, folder, name, say):
    say(f"{name} was done")
    if name == "01-environment":
        os.kill(os.getpid(), int(os.environ["STOP_BY"]))
    return Outcome("done", 0, "", None)
run.run_phase = phase
from runbook.cli import main
main()
"""


@pytest.mark.parametrize(("number", "code"), [(15, 143), (1, 129)])
def test_a_stop_between_two_notebooks_gives_the_lock_back(tmp_path, number, code):
    words = [sys.executable, "-c", STOPPED_BETWEEN, "run", "local", "--runs", str(tmp_path)]
    environment = {**os.environ, "STOP_BY": str(number)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    assert "02-data" not in done.stdout
    stopped = CliMessage.RUN_STOPPED_BY_SIGNAL.fill(signal=signal.Signals(number).name)
    assert done.stderr.splitlines() == [stopped]
    assert not list(tmp_path.rglob("lock.json*")) and not list(tmp_path.rglob("*.part"))
    again = subprocess.run(
        [BIN / "runbook", "status", "local", "--runs", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stderr


STOPPED_AT_FIRST = {
    "importing": """
class Stopped:
    def find_spec(self, name, path=None, target=None):
        if name == "runbook.phases.runner":
            signal.raise_signal(signal.SIGTERM)
sys.meta_path.insert(0, Stopped())
""",
    "planning": """
from runbook.runs import this_machine
this_machine.make_plan_here = lambda *values: signal.raise_signal(signal.SIGTERM)
""",
}
"""Programs that stop `runbook run` before its first notebook."""


@pytest.mark.parametrize("moment", STOPPED_AT_FIRST)
def test_a_stop_before_the_first_notebook_is_answered_in_one_line(tmp_path, moment):
    program = (
        f"import signal, sys\n{STOPPED_AT_FIRST[moment]}\nfrom runbook.cli import main; main()"
    )
    words = [sys.executable, "-c", program, "run", "local", "--runs", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stdout) == (143, "")
    assert done.stderr.splitlines() == [CliMessage.RUN_STOPPED_BY_SIGNAL.fill(signal="SIGTERM")]
