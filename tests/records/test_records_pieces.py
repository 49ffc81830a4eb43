"""Streams, cells, origins, sockets and signals, each tested separately."""

from __future__ import annotations

import os
import signal
import sys
import tempfile

import pytest
from suite.messages import containing, refuses

from runbook.core import shell
from runbook.core.errors import RecordError
from runbook.records import code_version
from runbook.records.code_version import commit_of
from runbook.records.engine.client import LONGEST_SOCKET, Streams, as_terminal, private_folder
from runbook.records.engine.execution_end import NotebookInterrupted, NotebookStopped, SignalTrap
from runbook.records.messages import RecordMessage
from runbook.records.session import CellStates, MasterCell, read_master


def _output(name, text):
    return {"output_type": "stream", "name": name, "text": text}


def _feed(streams, outputs, name, text):
    if not streams.add(outputs, name, text):
        outputs.append(_output(name, text))
        streams.watch(outputs[-1])


def test_alternating_streams_become_one_output_each_and_never_cross_another_output():
    streams = Streams()
    outputs = []
    for n in range(1000):
        _feed(streams, outputs, "stdout", f"{n}\n")
        _feed(streams, outputs, "stderr", f"\r{n} %")
    outputs.append({"output_type": "display_data"})
    _feed(streams, outputs, "stdout", "after")
    streams.end_cell()
    assert [output.get("name") for output in outputs] == ["stdout", "stderr", None, "stdout"]
    assert outputs[0]["text"].splitlines() == [str(n) for n in range(1000)]
    assert outputs[1]["text"] == "999 %"
    assert outputs[3]["text"] == "after"


def test_text_after_a_save_in_the_middle_still_joins():
    streams = Streams()
    outputs = []
    _feed(streams, outputs, "stdout", "10 %")
    streams.flush()
    _feed(streams, outputs, "stdout", "\r20 %\n")
    streams.flush()
    assert [output["text"] for output in outputs] == ["20 %\n"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a\rb", "b"),
        ("a\r\nb", "a\nb"),
        ("100 %\r", "100 %\r"),
        ("\x08\x08", "\x08\x08"),
        ("x\n\ry", "x\ny"),
        ("one\ntwo\rthree\nfour", "one\nthree\nfour"),
    ],
)
def test_text_is_left_as_on_a_terminal(text, left):
    assert as_terminal(text) == left


def test_equal_cells_are_told_apart_by_order_and_strangers_left_out():
    states = CellStates(
        (MasterCell("a", "step()"), MasterCell("b", "step()"), MasterCell("c", "end()"))
    )
    assert states.mark("step() \n", "completed") == "a"
    assert states.mark("step()", "failed") == "b"
    assert states.mark("step()", "completed") == "b"
    assert states.mark("run = 'toy'", "completed") == ""
    assert states.mark("end(1)", "completed", cell_id="c") == "c", (
        "JupyterLab names the cell even when it was edited"
    )
    assert [cell.state for cell in states.as_cells()] == ["completed", "completed", "completed"]


def test_master_that_is_missing_has_no_cells_and_a_broken_one_is_refused(tmp_path):
    assert read_master(tmp_path / "none.ipynb") == ()
    (tmp_path / "broken.ipynb").write_text("{}")
    with refuses(RecordError, RecordMessage.NOT_A_NOTEBOOK, notebook=containing("broken.ipynb")):
        read_master(tmp_path / "broken.ipynb")


def test_commit_is_what_git_says(tmp_path, monkeypatch):
    def git(*words):
        names = {
            f"GIT_{who}_{what}": "x@y"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        return shell.run(
            ["git", *words], cwd=tmp_path, env=names | {"GIT_CONFIG_GLOBAL": os.devnull}
        ).out.strip()

    inside = tmp_path / "project"
    inside.mkdir()
    assert commit_of(inside) == ""
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert commit_of(inside) == commit
    (tmp_path / "file").write_text("2")
    assert commit_of(inside) == f"{commit}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert commit_of(inside) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another owner")
def test_the_clone_that_the_code_runs_from_may_belong_to_another(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    shell.run(["git", "init", "-q"], cwd=tmp_path)
    commit = [
        "git",
        "-c",
        "user.name=x",
        "-c",
        "user.email=x@y",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "one",
    ]
    shell.run(commit, cwd=tmp_path)
    shell.run(["chown", "-R", "12345", str(tmp_path)])
    assert commit_of(tmp_path) == ""
    module_file = tmp_path / "runbook" / "records" / "code_version.py"
    monkeypatch.setattr(code_version, "__file__", str(module_file))
    assert len(commit_of(tmp_path)) == 40


def test_sockets_find_a_short_folder(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = private_folder()
    assert folder is not None
    assert len(str(folder / "k-5")) <= LONGEST_SOCKET
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()


def test_signal_is_kept_until_the_notebook_is_saved_and_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    called = []
    with SignalTrap() as trap:
        trap.on_signal = lambda: called.append(trap.received)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert called == [signal.SIGTERM], "the first one counts"
        assert trap.reason() == RecordMessage.STOPPED_BY_SIGTERM.fill()
        error = trap.error()
    assert isinstance(error, NotebookStopped)
    assert error.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert NotebookInterrupted.number == 2


def test_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalTrap() as trap:
            os.kill(os.getpid(), signal.SIGHUP)
        assert trap.received == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_importing_the_engine_stays_light():
    """papermill imports every registered engine when it starts, whichever is used."""
    heavy = {"nbconvert", "torch", "pandas", "pydantic", "runbook.planning"}
    words = "import sys, runbook.records.engine.papermill_engine as e; "
    words += f"print(sorted({heavy} & set(sys.modules)), e.RunbookEngine.__name__)"
    assert shell.run([sys.executable, "-c", words]).out.strip() == "[] RunbookEngine"
