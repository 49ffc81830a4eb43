"""Progress as each kind of reader sees it, with a simulated clock and with real kernels."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import sys

import nbformat
import papermill
import pytest

from runbook.display import Place, Progress
from runbook.display.messages import DisplayMessage

WORK = """from runbook.display import Progress
import time
progress = Progress("data", total=40, unit="documents")
for n in range(41):
    progress.update(done=n, rate=f"{n} MB/s")
    time.sleep(0.05)
progress.finish(done=40, loss=3.5)"""


def amount(done: int, total: int, unit: str = "") -> str:
    """Return the progress that a picture shows."""
    percent = 100 * done / total
    return DisplayMessage.AMOUNT_DONE.fill(done=done, total=total, unit=unit, percent=percent)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def _run(place, capsys, seconds=60, step=0.1):
    clock = Clock()
    progress = Progress(
        "training", total=seconds / step, unit="iterations", place=place, clock=clock
    )
    for n in range(round(seconds / step)):
        progress.update(done=n, loss=1.0 / (n + 1))
        clock.now += step
    progress.finish(done=seconds / step)
    return capsys.readouterr().out


def test_a_pipe_gets_a_line_now_and_then_and_the_end(capsys):
    lines = _run(Place.PIPE, capsys).splitlines()
    assert len(lines) == 7
    assert lines[0].split(", ") == [f"training: {amount(0, 600, ' iterations')}", "loss 1"]
    assert re.match(r"training: 1\d\d of 600 iterations \(1[78] %\), loss 0\.00", lines[1])
    assert lines[-1].startswith(
        "training (after 1 min): 600 of 600 iterations (100 %), loss 0.0016"
    )


def test_a_terminal_gets_one_line_redrawn(capsys):
    out = _run(Place.TERMINAL, capsys, seconds=5)
    assert out.count("\n") == 1
    assert 5 <= out.count("\r") <= 7
    assert "[####" in out
    last = out.split("\r")[-1]
    assert last.startswith("training (after 5.00 s): 50 of 50 iterations (100 %)")


@pytest.mark.parametrize(("seconds", "shown"), [(4.5e-05, "set-up: "), (0.5, "set-up (after 0.5")])
def test_a_duration_is_shown_only_if_something_took_time(seconds, shown):
    moments = iter([0.0, *[seconds] * 9])
    progress = Progress("set-up", place=Place.PIPE, clock=lambda: next(moments))
    progress.finish()
    assert progress.as_text().startswith(shown)


def test_facts_are_kept_until_replaced_and_an_unknown_total_shows_no_bar():
    progress = Progress("watch", place=Place.PIPE)
    progress.update(job="12", state="PENDING")
    progress.update(done=3, state="RUNNING", **{"tokens/s": 9000})
    title, _, facts = progress.as_text().partition(": ")
    assert title == "watch"
    assert facts.split(", ") == ["3", "job 12", "state RUNNING", "tokens/s 9000"]
    assert "width:" not in progress.as_html()
    progress.update(total=4, note="<script>")
    assert "width:75.0%" in progress.as_html()
    assert "<script>" not in progress.as_html()


def test_an_error_inside_is_part_of_the_last_picture(capsys):
    with pytest.raises(ValueError), Progress("data", total=2, place=Place.PIPE) as progress:
        progress.update(done=1)
        raise ValueError
    assert progress.facts["stopped by"] == "ValueError"
    out = capsys.readouterr().out
    assert amount(1, 2) in out and out.rstrip().endswith("ValueError")
    with Progress("data", total=2, place=Place.PIPE) as progress:
        progress.finish(done=2)
    assert capsys.readouterr().out.count(amount(2, 2)) == 1, "finished once"


def test_a_real_terminal_is_recognised(tmp_path):
    """Run under a pseudo-terminal, as for a person at a terminal."""
    script = tmp_path / "script.py"
    script.write_text(
        "from runbook.display import where_we_are, show_checks\n"
        "from runbook.core.checks import Check\n"
        "print(where_we_are())\nshow_checks([Check('a', 'fail', '1', '2')])\n"
    )
    leader, follower = pty.openpty()
    child = os.spawnve(
        os.P_NOWAIT,
        "/bin/sh",
        ["sh", "-c", f"{sys.executable} {script} > {os.ttyname(follower)}"],
        {
            **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
            "TERM": "xterm",
        },
    )
    os.waitpid(child, 0)
    said = os.read(leader, 10_000).decode()
    os.close(leader)
    os.close(follower)
    assert said.startswith("terminal")
    assert "\x1b[1;33m✗ fail\x1b[0m" in said


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """Return a function that executes one cell with a papermill engine, and returns its outputs and
    log lines."""

    def execute(engine, **environment):
        source = tmp_path / "in.ipynb"
        cell = nbformat.v4.new_code_cell(WORK)
        master = nbformat.v4.new_notebook(cells=[cell])
        master.metadata.kernelspec = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        nbformat.write(master, source)
        logger = logging.getLogger("papermill")
        lines = _Lines()
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        logger.addHandler(lines)
        logger.setLevel(logging.INFO)
        try:
            made = papermill.execute_notebook(
                str(source),
                str(tmp_path / "out.ipynb"),
                engine_name=engine,
                progress_bar=False,
                log_output=True,
            )
        finally:
            logger.removeHandler(lines)
        return made.cells[0].outputs, lines.lines

    return execute


def _is_final(output):
    text = output.data["text/plain"]
    html = output.data["text/html"]
    assert text.startswith("data (after ")
    assert f"{amount(40, 40, ' documents')}, rate 40 MB/s, loss 3.5" in text
    assert "width:100.0%" in html
    return True


@pytest.mark.notebooks
def test_our_engine_saves_one_final_picture_and_its_log_shows_life(executed):
    outputs, lines = executed("runbook")
    assert len(outputs) == 1
    assert _is_final(outputs[0])
    told = [line for line in lines if line.startswith("data")]
    assert told[0].startswith("data: 0 of 40 documents (0 %)")
    assert amount(40, 40, " documents") in told[-1]


@pytest.mark.notebooks
def test_stock_papermill_logs_printed_lines_because_it_does_not_log_updates(executed):
    outputs, lines = executed("nbclient")
    assert _is_final(outputs[0])
    assert [output.output_type for output in outputs] == [
        "display_data",
        *["stream"] * (len(outputs) - 1),
    ]
    assert any(amount(40, 40, " documents") in line for line in lines)


@pytest.mark.notebooks
def test_a_browser_gets_the_final_picture_anew_and_the_old_one_emptied(executed):
    """Server-side execution in JupyterLab loses updates, so the last picture must not be an update."""
    outputs, _ = executed("nbclient", JPY_SESSION_NAME="04-training.ipynb")
    assert [output.data["text/html"] == "" for output in outputs] == [True, False]
    assert _is_final(outputs[1])


class _Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def test_where_we_are_in_a_plain_test_is_a_pipe(monkeypatch):
    from runbook.display import where_we_are

    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert where_we_are() is Place.PIPE
