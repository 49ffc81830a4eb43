import json
import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest
from suite.messages import containing, refuses

from runbook.core import shell
from runbook.core.errors import ProgramError
from runbook.core.messages import CoreMessage
from runbook.core.processes import identify, wait_until

HOSTILE = [
    "two words",
    "$(touch made)",
    "`touch made`",
    "; touch made",
    'it\'s "quoted"',
    "line\nbreak",
    "ünï→code",
    "-n",
    "",
]


def test_words_reach_the_program_exactly_as_they_are(tmp_path):
    program = "import sys, json; print(json.dumps(sys.argv[1:]))"
    said = shell.run([sys.executable, "-IS", "-c", program, *HOSTILE], cwd=tmp_path)
    assert __import__("json").loads(said.out) == HOSTILE
    assert list(tmp_path.iterdir()) == []


def test_a_finished_program_has_its_words_and_code():
    argv = ("sh", "-c", "echo out; echo err >&2; exit 3")
    said = shell.run(list(argv), check=False)
    assert (said.out, said.err, said.exit_code) == ("out\n", "err\n", 3)
    assert said.argv == argv


def test_a_failure_is_told_with_the_programs_own_last_words():
    with refuses(ProgramError, CoreMessage.PROGRAM_FAILED, exit_code="exit code 4") as caught:
        shell.run(["sh", "-c", "for i in $(seq 100); do echo line $i >&2; done; exit 4"])
    numbers = re.findall(r"^  line (\d+)$", caught.value.values["last_words"], re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(81, 101))
    assert str(caught.value).endswith("  line 100")


def test_what_a_program_said_on_standard_output_is_told_when_it_said_nothing_else():
    with refuses(
        ProgramError,
        CoreMessage.PROGRAM_FAILED,
        exit_code="exit code 1",
        last_words="\nIts last lines of output:\n  only this",
    ):
        shell.run(["sh", "-c", "echo only this; exit 1"])


def test_a_silent_failure_says_so():
    with refuses(
        ProgramError,
        CoreMessage.PROGRAM_FAILED,
        command="false",
        exit_code="exit code 1",
        last_words=" It printed nothing.",
    ):
        shell.run(["false"])


def test_a_missing_program_is_named_with_the_remedy(tmp_path):
    with refuses(
        ProgramError,
        CoreMessage.PROGRAM_NOT_FOUND,
        program="sbatch-nowhere",
        where="it is in no folder of PATH",
    ):
        shell.run(["sbatch-nowhere"])
    (tmp_path / "plain").write_text("not executable")
    with refuses(
        ProgramError,
        CoreMessage.PROGRAM_NOT_FOUND,
        program=containing("plain"),
        where="that file is missing or not executable",
    ):
        shell.run([str(tmp_path / "plain")])
    with refuses(ProgramError, CoreMessage.PROGRAM_NOT_FOUND, where="it is in no folder of PATH"):
        shell.run(["ls"], env={"PATH": str(tmp_path)})


def test_a_file_that_is_no_program_is_told(tmp_path):
    program = tmp_path / "broken"
    program.write_bytes(b"\x7fELF but not really")
    program.chmod(0o755)
    with refuses(ProgramError, CoreMessage.PROGRAM_NOT_STARTED, reason="Exec format error"):
        shell.run([str(program)])


def test_a_missing_folder_is_told(tmp_path):
    with refuses(
        ProgramError, CoreMessage.NO_FOLDER_TO_RUN_IN, folder=containing("nowhere"), program="ls"
    ):
        shell.run(["ls"], cwd=tmp_path / "nowhere")


def test_a_nul_character_is_refused():
    with refuses(ProgramError, CoreMessage.NUL_CHARACTER):
        shell.run(["echo", "a\0b"])


def test_a_command_as_one_text_is_our_own_bug():
    command = "ls -l"
    with pytest.raises(AssertionError) as caught:
        shell.run(command)
    assert repr(command) in str(caught.value)


def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path):
    script = "echo started; sleep 300 & echo $! > child; wait"
    with refuses(
        ProgramError,
        CoreMessage.PROGRAM_TIMED_OUT,
        timeout=3.0,
        last_words="\nIts last lines of output:\n  started",
    ):
        shell.run(["sh", "-c", script], timeout=3.0, cwd=tmp_path)
    child = int((tmp_path / "child").read_text())
    assert wait_until(lambda: identify(child) is None, 60), "the child outlived its killed parent"


def test_the_environment_is_ours_with_changes(monkeypatch):
    monkeypatch.setenv("KEPT", "kept")
    monkeypatch.setenv("REMOVED", "still here")
    program = "import os, json; print(json.dumps(dict(os.environ)))"
    said = shell.run([sys.executable, "-IS", "-c", program], env={"ADDED": "a b", "REMOVED": None})
    environment = json.loads(said.out)
    assert (environment["KEPT"], environment["ADDED"]) == ("kept", "a b")
    assert "REMOVED" not in environment


def test_input_is_given_and_otherwise_empty():
    assert shell.run(["cat"], input="ünï\n").out == "ünï\n"
    assert shell.run(["cat"]).out == ""


def test_bytes_that_are_not_text_do_not_break_us():
    assert shell.run(["printf", r"a\377b"]).out == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.jobs
def test_a_detached_program_is_nobodys_child_and_leads_its_own_session(tmp_path):
    out = tmp_path / "out file"
    err = tmp_path / "err"
    out.write_text("earlier\n")
    program = 'echo $0 "$1" $MARK; cat; echo to err >&2; sleep 300; true'
    pid = shell.start_detached(
        ["sh", "-c", program, "$(x)", "a b"], cwd=tmp_path, out=out, err=err, env={"MARK": "m"}
    )
    try:
        process = psutil.Process(pid)
        assert wait_until(
            lambda: err.read_text() != "", 60
        )  # until its exec is complete, Linux shows an empty environment
        assert os.getsid(pid) == pid
        assert process.ppid() != os.getpid()
        assert pid not in [child.pid for child in psutil.Process().children(recursive=True)]
        assert process.environ()["MARK"] == "m"
        assert process.cwd() == str(tmp_path)
        assert out.read_text() == "earlier\n$(x) a b m\n"
        assert err.read_text() == "to err\n"
    finally:
        os.killpg(pid, signal.SIGKILL)


def test_a_program_that_cannot_be_detached_is_told(tmp_path):
    with refuses(
        ProgramError,
        CoreMessage.DETACHED_NOT_STARTED,
        command="true",
        last_words=containing("\nIts last lines of output:\n", "nowhere"),
    ):
        shell.start_detached(
            ["true"], cwd=tmp_path, out=tmp_path / "nowhere" / "out", err=tmp_path / "err"
        )


def test_last_lines_of_a_long_text():
    assert shell.last_lines("a\nb\nc\n\n\n", 2) == "b\nc"
    assert shell.last_lines("") == ""


def test_only_this_module_starts_programs():
    package = Path(shell.__file__).parents[1]
    others = [
        path
        for path in package.rglob("*.py")
        # The trainer is independent; node_checks and packed_environment run on nodes with only
        # plain Python. A rank whose fork server has ended execs the program that it should have
        # run.
        if path.name not in ("shell.py", "fork_server.py")
        and not {"training", "node_checks", "packed_environment"} & {*path.parts}
    ]
    assert len(others) > 10
    for path in others:
        text = path.read_text(encoding="utf-8")
        for word in (
            "import subprocess",
            "os.system(",
            "os.popen(",
            "shell=True",
            "os.exec",
            "os.spawn",
        ):
            assert word not in text, f"{path} has {word!r}"


def test_each_line_of_a_followed_program_comes_before_it_ends(tmp_path):
    said = []

    def say(line):
        said.append(line)
        (tmp_path / "go").write_text("")  # the program waits for it

    code = shell.follow(
        ["sh", "-c", "echo one; until [ -e go ]; do sleep 0.01; done; echo two >&2; exit 3"],
        say=say,
        timeout=60,
        cwd=tmp_path,
    )
    assert (said, code) == (["one", "two"], 3)


def test_what_a_followed_program_leaves_behind_is_ended(tmp_path):
    said = []
    argv = ["sh", "-c", "sleep 600 & echo $!"]
    assert shell.follow(argv, say=said.append, timeout=60, cwd=tmp_path) == 0
    assert wait_until(lambda: not psutil.pid_exists(int(said[0])), 30)


def test_a_followed_program_that_takes_too_long_is_killed(tmp_path):
    assert shell.follow(["sleep", "600"], say=str, timeout=0.1, cwd=tmp_path) == -9
