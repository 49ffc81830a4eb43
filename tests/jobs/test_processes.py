import os
import signal
import subprocess
import sys

import psutil
import pytest

from runbook.core import processes
from runbook.core.processes import Standing

CHILD_IN_A_NEW_SESSION = """
import os, time
child = os.fork()
if child == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
else:
    os.waitpid(child, 0)
print("ready", flush=True)
time.sleep(300)
"""


@pytest.fixture
def sleeper():
    """Start a process in job `token-1`, and an orphaned grandchild in another session."""
    with subprocess.Popen(
        [sys.executable, "-IS", "-c", CHILD_IN_A_NEW_SESSION],
        env={**os.environ, "RUNBOOK_JOB": "token-1", "RANK": "3"},
        stdout=subprocess.PIPE,
    ) as process:
        assert [process.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
        yield process
        processes.kill_until_none(lambda: processes.process_tree("token-1"))


def test_we_are_alive_and_the_same_tomorrow():
    identity = processes.identify(os.getpid())
    assert processes.standing(identity) is Standing.ALIVE
    assert identity == processes.identify(os.getpid())
    assert (
        abs(
            psutil.Process().create_time()
            - psutil.boot_time()
            - identity.start / os.sysconf("SC_CLK_TCK")
        )
        < 2
    )


def test_a_number_no_process_has_is_nobody():
    assert processes.identify(2**22 + 1) is None
    assert processes.standing(processes.identity_of_ended(os.getpid())) is Standing.DEAD


def test_a_zombie_has_ended():
    with subprocess.Popen(["true"]) as child:  # not reaped yet
        assert processes.wait_until(
            lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, 60
        )
        assert processes.identify(child.pid) is None


def test_all_of_a_job_is_found_also_in_another_session(sleeper):
    tree = processes.process_tree("token-1")
    assert len(tree) == 2
    assert sleeper.pid in {process.pid for process in tree}
    assert len({os.getsid(process.pid) for process in tree}) == 2
    assert processes.process_tree("token") == []


def test_a_child_that_lost_the_mark_is_found_through_its_parent():
    with subprocess.Popen(
        ["sh", "-c", "env -i sleep 300 & echo $!; wait"],
        env={**os.environ, "RUNBOOK_JOB": "token-2"},
        stdout=subprocess.PIPE,
    ) as process:
        child = int(process.stdout.readline())
        assert child in {found.pid for found in processes.process_tree("token-2")}
        assert processes.kill_until_none(lambda: processes.process_tree("token-2")) == []
        assert processes.identify(child) is None


def test_a_killed_process_that_is_no_longer_found_has_ended_all_the_same(sleeper, monkeypatch):
    """A killed process takes a moment to end, for example on a slow machine."""
    process = psutil.Process(sleeper.pid)
    kills = []

    def kill_the_second_time(running, number):
        kills.append([one.pid for one in running])
        if len(kills) > 1:
            send(running, number)
        return len(running)

    send = processes.send
    monkeypatch.setattr(processes, "send", kill_the_second_time)
    found = iter([[process]])
    assert processes.kill_until_none(lambda: next(found, []), seconds=60) == []
    assert processes.identify(sleeper.pid) is None
    assert kills[:2] == [[sleeper.pid]] * 2
    monkeypatch.undo()


def test_killing_reaches_everything(sleeper):
    assert processes.kill_until_none(lambda: processes.process_tree("token-1")) == []
    assert processes.process_tree("token-1") == []
    assert sleeper.wait(60) == -signal.SIGKILL


def test_ranks_are_the_marked_children_with_a_rank(sleeper):
    assert [process.pid for process in processes.ranks(os.getpid(), "token-1")] == [sleeper.pid]
    assert processes.ranks(os.getpid(), "token-2") == []
    assert processes.ranks(2**22 + 1, "token-1") == []


def test_a_signal_to_one_that_is_gone_reaches_none(sleeper):
    process = psutil.Process(sleeper.pid)
    assert processes.send([process], signal.SIGKILL) == 1
    sleeper.wait(60)
    assert processes.send([process], signal.SIGTERM) == 0


def test_waiting_asks_at_least_once():
    assert processes.wait_until(lambda: True, 0)
    assert not processes.wait_until(lambda: False, 0)
