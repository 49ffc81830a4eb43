"""Starts other programs. No other module in the package starts programs."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runbook.core.errors import ProgramError
from runbook.core.messages import CoreMessage

# How many output lines an error message repeats
TAIL_LINES = 20

# This code runs in a separate Python that exits immediately, so that our process is not the parent
# of the program. init then reaps the program, and a kernel that ends its children at shutdown does
# not find it.
_DETACH = """
import subprocess, sys
out, err = open(sys.argv[1], "ab"), open(sys.argv[2], "ab")
print(subprocess.Popen(sys.argv[3:], stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True).pid)
"""


@dataclass(frozen=True)
class Finished:
    """A program that has ended, with all its output."""

    argv: tuple[str, ...]
    exit_code: int
    out: str
    err: str


def run(
    argv: Sequence[str],
    *,
    timeout: float = 60.0,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    input: str = "",
    check: bool = True,
) -> Finished:
    r"""Run a program to completion, without a shell, and return its output.

    `env` contains changes to the environment of this process; None removes a variable. Raise
    `ProgramError`, with the command, the exit code and the end of the output, if the program is
    missing, takes longer than `timeout` seconds (its process group is then killed) or, unless
    `check` is False, ends with an exit code other than 0.

    >>> run(["printf", "%s", "$(date); two words"]).out
    '$(date); two words'
    >>> run(["ls", "/nowhere"], env={"LC_ALL": "C"}, check=False).exit_code > 0
    True
    """
    stdin = subprocess.PIPE if input else subprocess.DEVNULL
    with _start(argv, cwd, env, stdin=stdin, stderr=subprocess.PIPE) as process:
        try:
            out, err = process.communicate(input or None, timeout=timeout)
        except subprocess.TimeoutExpired as late:
            out, err = _kill_group(process)
            raise ProgramError(
                CoreMessage.PROGRAM_TIMED_OUT,
                command=shlex.join(argv),
                timeout=timeout,
                last_words=_words(err or out),
            ) from late
        except BaseException:  # Usually Ctrl-C. The program must not outlive this process.
            _kill_group(process)
            raise

    finished = Finished(tuple(argv), process.returncode, out, err)
    if check and finished.exit_code:
        raise ProgramError(
            CoreMessage.PROGRAM_FAILED,
            command=shlex.join(argv),
            exit_code=how_it_ended(finished.exit_code),
            last_words=_words(err or out),
        )

    return finished


def follow(
    argv: Sequence[str],
    *,
    say: Callable[[str], None],
    timeout: float,
    cwd: Path,
) -> int:
    """Run a program, pass on each output line as it arrives, and return the exit code.

    Kill the process group when the program ends, when it takes longer than `timeout`
    seconds, or when this process is stopped.
    """
    process = _start(
        argv,
        cwd,
        None,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )

    def end_group() -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
        # Child processes that are still running would keep the pipe open.
        _signal_group(process)

    threading.Thread(target=end_group, daemon=True).start()
    with process:
        try:
            for line in process.stdout or ():
                say(line.rstrip("\n"))
            return process.wait()
        finally:
            _signal_group(process)


def start_detached(
    argv: Sequence[str],
    *,
    cwd: Path,
    out: Path,
    err: Path,
    env: Mapping[str, str | None] | None = None,
) -> int:
    """Start a program that outlives this process, its terminal and its kernel.

    Return the process id.

    The program runs in a new session, reads no input, and appends its output to the files `out` and
    `err`.
    """
    command = _command(argv, cwd, env)
    launcher = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        _DETACH,
        str(out.absolute()),
        str(err.absolute()),
        *command,
    ]
    finished = run(
        launcher,
        cwd=cwd,
        env=env,
        check=False,
    )
    if finished.exit_code:
        raise ProgramError(
            CoreMessage.DETACHED_NOT_STARTED,
            command=shlex.join(command),
            last_words=_words(finished.err),
        )
    return int(finished.out)


def how_it_ended(exit_code: int) -> str:
    """Return a readable text with an exit code and its meaning.

    If signal N killed a program, shells report 128 + N and Python reports -N.

    >>> how_it_ended(2), how_it_ended(137), how_it_ended(-15)
    ('exit code 2', 'exit code 137 (killed by signal 9)', 'exit code -15 (killed by signal 15)')
    """
    signal_number = -exit_code if exit_code < 0 else exit_code - 128
    if 0 < signal_number < 65:
        return f"exit code {exit_code} (killed by signal {signal_number})"
    return f"exit code {exit_code}"


def last_lines(text: str, count: int = TAIL_LINES) -> str:
    """Return the last lines in a string, without empty lines at the end."""
    return "\n".join(text.rstrip().splitlines()[-count:])


def _command(
    argv: Sequence[str], cwd: Path | None, env: Mapping[str, str | None] | None
) -> list[str]:
    assert argv, "no program was named"
    assert not isinstance(argv, str), f"a command is a list of words, not the text {argv!r}"
    for word in argv:
        if "\0" in word:
            raise ProgramError(CoreMessage.NUL_CHARACTER, word=word)

    if cwd is not None and not cwd.is_dir():
        raise ProgramError(CoreMessage.NO_FOLDER_TO_RUN_IN, folder=cwd, program=argv[0])
    is_path = os.sep in argv[0]
    program = str((cwd or Path()) / argv[0]) if is_path else argv[0]
    if shutil.which(program, path=_environment(env).get("PATH")) is None:
        if is_path:
            where = "that file is missing or not executable"
        else:
            where = "it is in no folder of PATH"

        raise ProgramError(CoreMessage.PROGRAM_NOT_FOUND, program=argv[0], where=where)

    return list(argv)


def _start(
    argv: Sequence[str],
    cwd: Path | None,
    env: Mapping[str, str | None] | None,
    *,
    stdin: int,
    stderr: int,
) -> subprocess.Popen[str]:
    """Start a program in its own process group, with its output connected to a pipe."""
    try:
        return subprocess.Popen(
            _command(argv, cwd, env),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=cwd,
            env=_environment(env),
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        # The file is not a program, or there is not enough memory for another process.
        raise ProgramError(
            CoreMessage.PROGRAM_NOT_STARTED, command=shlex.join(argv), reason=error.strerror
        ) from error


def _environment(changes: Mapping[str, str | None] | None) -> dict[str, str]:
    merged: dict[str, str | None] = {**os.environ, **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


def _kill_group(leader: subprocess.Popen[str]) -> tuple[str, str]:
    """Kill a program and its children, and return their output so far."""
    _signal_group(leader)
    try:
        return leader.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        # A child process in a separate session keeps the pipes open.
        return "", ""


def _signal_group(leader: subprocess.Popen[str]) -> None:
    # The process may have ended between the decision and the signal.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)


def _words(text: str) -> str:
    tail = last_lines(text)
    if tail:
        return "\nIts last lines of output:\n" + "\n".join(
            f"  {line}" for line in tail.splitlines()
        )
    return " It printed nothing."
