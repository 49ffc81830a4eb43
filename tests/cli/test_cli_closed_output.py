"""Commands whose output ends before they do or holds a secret, or whose input is a pipe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from suite.ports import free_port

from runbook.cli.messages import CliMessage

RUNBOOK = (sys.executable, "-m", "runbook")


def test_a_run_goes_on_after_the_reader_of_its_output_has_left(project: Path):
    reader, writer = os.pipe()
    os.close(reader)
    command = [*RUNBOOK, "run", "local", "--to", "00-plan", "--set", "model=tiny"]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")
    record = json.loads((project / "runs" / "local" / "records" / "00-plan.json").read_text())
    assert record["state"] == "done"


CLOSED_TERMINAL = """
import os, signal
from runbook.cli.signals import released_by_signals
with released_by_signals():
    os.kill(os.getpid(), signal.SIGHUP)
"""


def test_a_command_whose_terminal_is_closed_ends_with_the_code_of_its_signal():
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([sys.executable, "-c", CLOSED_TERMINAL], stderr=writer, check=False)
    os.close(writer)
    assert ended.returncode == 128 + signal.SIGHUP


@pytest.mark.parametrize("words", [["--help"], ["status", "--help"], ["status"]])
def test_a_command_whose_reader_leaves_ends_as_by_sigpipe_and_not_as_failed(words, project: Path):
    reader, writer = os.pipe()
    os.close(reader)
    command = [*RUNBOOK, *words]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_command_works_with_a_closed_stream(closed: str, project: Path):
    """Some daemons start programs without standard output or standard error."""
    program = f'exec "{sys.executable}" -m runbook status {closed}'
    ended = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("token", ["chosen-by-me", ""], ids=["token", "no-login"])
def test_jupyterlab_with_a_chosen_token_prints_its_url_without_the_token(
    token, project: Path, tmp_path: Path
):
    port = free_port()
    command = [*RUNBOOK, "lab", "local", "--no-browser", "--", "--allow-root", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", f"--IdentityProvider.token={token}"]
    environment = os.environ | {"HOME": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path)}
    output = ""
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as lab:
        assert lab.stdout is not None
        url = CliMessage.LAB_URL.fill(url=f"http://localhost:{port}/")
        while url not in output and lab.poll() is None:
            output += lab.stdout.readline()

        # JupyterLab can miss a SIGTERM that arrives while its loop starts.
        lab.kill()
        output += lab.stdout.read()

    assert url in output, output
    assert ("chosen-by-me" in output, CliMessage.LAB_LOGIN.fill() in output) == (False, bool(token))


def test_a_question_can_be_piped_to_explain(project: Path):
    """Its text is read twice, which a pipe does not allow."""
    question = "NCCL all-reduce between the nodes takes 40 % of each step on 16 H100 GPUs."
    (project / "question.txt").write_text(question)
    command = [*RUNBOOK, "explain", "--json"]
    answers = []
    for path, text in (("question.txt", ""), ("/dev/stdin", question)):
        ended = subprocess.run(
            [*command, path], input=text, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        answers.append(json.loads(ended.stdout))
    assert answers[0]["parts"] == answers[1]["parts"]
