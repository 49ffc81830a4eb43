import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import pytest
from suite.messages import containing, refuses, says

from runbook.core import locks, processes, shell
from runbook.core.errors import HeldError
from runbook.core.locks import LOCK_NAME, Holder, hold, hold_file
from runbook.core.messages import CoreMessage


def holder_of(run_folder):
    """Return the current holder of a run, or None if no live process holds it."""
    holder = locks._read(run_folder.absolute() / LOCK_NAME)
    return holder if isinstance(holder, Holder) and not locks._dead(holder) else None


HOLD = """
import sys, time
from pathlib import Path
from runbook.core.locks import hold
with hold(Path(sys.argv[1]), "training 04") as taken_over:
    print(taken_over, flush=True)
    time.sleep(float(sys.argv[2]))
"""
COUNT = """
import sys, time
from pathlib import Path
from runbook.core.locks import hold_file
folder = Path(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with hold_file(folder / "lock.json", "counting", wait_seconds=60):
        count = int((folder / "count").read_text())
        time.sleep(0.001)
        (folder / "count").write_text(str(count + 1))
"""


def write_lock(path, **changes):
    """Write a lock that an ended process might have left behind."""
    process = replace(processes.identify(os.getpid()), pid=2**22 + 1, **changes)
    holder = Holder(
        "0123456789abcdef", "training 04", "runbook run local", "ada", time.time() - 3600, process
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(holder)))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_lock_is_there_while_held_and_gone_afterwards(tmp_path):
    with hold(tmp_path / "runs" / "local", "planning") as taken_over:
        assert taken_over == ""
        content = json.loads((tmp_path / "runs" / "local" / "lock.json").read_text())
        assert content["what"] == "planning"
        assert content["process"]["pid"] == os.getpid()
        assert content["process"]["boot_id"] == processes.boot_id()
        assert holder_of(tmp_path / "runs" / "local").what == "planning"
        assert names(tmp_path / "runs" / "local") == ["lock.json"]
    assert names(tmp_path / "runs" / "local") == []
    assert holder_of(tmp_path / "runs" / "local") is None


def test_a_lock_is_given_back_after_a_failure(tmp_path):
    with pytest.raises(ZeroDivisionError), hold(tmp_path, "planning"):
        raise ZeroDivisionError
    assert names(tmp_path) == []


def test_the_second_holder_is_told_who_where_since_when_and_what_for(tmp_path):
    holder = CoreMessage.LOCK_HOLDER.of(
        pid=os.getpid(),
        host=processes.host_name(),
        purpose="training 04",
        since=containing(time.strftime("%Y-%m-%d")),
        command=containing("pytest"),
    )
    held = CoreMessage.LOCK_HELD.of(folder=tmp_path, holder=holder, advice="")
    with hold(tmp_path, "training 04"), refuses(HeldError, held), hold(tmp_path, "planning"):
        pytest.fail("held twice")


@pytest.mark.jobs
def test_a_killed_holder_is_replaced_and_the_takeover_told(tmp_path):
    out = tmp_path / "out"
    run_folder = tmp_path / "run"
    argv = [sys.executable, "-c", HOLD, str(run_folder), "300"]
    pid = shell.start_detached(argv, cwd=tmp_path, out=out, err=tmp_path / "err")
    assert processes.wait_until(lambda: out.read_text() != "", 60), (tmp_path / "err").read_text()
    holder = CoreMessage.LOCK_HOLDER.of(pid=pid, purpose="training 04")
    held = CoreMessage.LOCK_HELD.of(folder=run_folder, holder=holder)
    with refuses(HeldError, held), hold(run_folder, "a"):
        pytest.fail("held twice")
    os.kill(pid, 9)
    assert processes.wait_until(lambda: processes.identify(pid) is None, 60)
    with hold(run_folder, "planning") as taken_over:
        assert says(taken_over, CoreMessage.LOCK_HOLDER, pid=pid, purpose="training 04")
        assert says(taken_over, CoreMessage.LOCK_TAKEN_OVER, holder=containing(pid, "training 04"))
        assert holder_of(run_folder).process.pid == os.getpid()
        assert names(run_folder) == ["lock.json"]
    assert names(run_folder) == []


@pytest.mark.parametrize("changes", [{}, {"boot_id": "another"}, {"pid": os.getpid(), "start": 1}])
def test_a_dead_a_rebooted_and_a_recycled_holder_are_all_replaced(changes, tmp_path):
    process = replace(processes.identify(os.getpid()), **({"pid": 2**22 + 1} | changes))
    holder = Holder(
        "0123456789abcdef", "training 04", "runbook run local", "ada", time.time(), process
    )
    (tmp_path / "lock.json").write_text(json.dumps(asdict(holder)))
    assert holder_of(tmp_path) is None
    with hold(tmp_path, "planning") as taken_over:
        assert says(taken_over, CoreMessage.LOCK_HOLDER, pid=process.pid, user="ada")


def test_a_holder_on_another_host_is_respected_and_the_remedy_named(tmp_path):
    write_lock(tmp_path / "lock.json", host="login2", boot_id="another")
    held = CoreMessage.LOCK_HELD.of(
        holder=CoreMessage.LOCK_HOLDER.of(
            pid=4194305, user="ada", host="login2", purpose="training 04"
        ),
        advice=CoreMessage.HOLDER_ELSEWHERE.fill(
            host=processes.host_name(), path=tmp_path / "lock.json"
        ),
    )
    with refuses(HeldError, held), hold(tmp_path, "planning"):
        pytest.fail("held twice")
    assert holder_of(tmp_path).process.host == "login2"


def test_of_many_takers_of_a_stale_lock_one_wins_at_a_time(tmp_path):
    write_lock(tmp_path / "lock.json")
    inside = []
    most = []
    told = []
    gate = threading.Barrier(8)

    def take(number):
        gate.wait()
        with hold_file(tmp_path / "lock.json", f"taker {number}", wait_seconds=30) as taken_over:
            inside.append(number)
            most.append(len(inside))
            told.append(taken_over)
            time.sleep(0.005)
            inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(take, range(8)))
    assert max(most) == 1
    assert len(most) == 8
    assert len([text for text in told if text]) == 1
    assert names(tmp_path) == []


def test_a_taker_that_died_halfway_does_not_block_the_next(tmp_path):
    write_lock(tmp_path / "lock.json")
    right = tmp_path / "lock.json.0123456789abcdef"
    write_lock(right)
    content = json.loads(right.read_text()) | {"token": "fedcba9876543210"}
    right.write_text(json.dumps(content))
    with hold(tmp_path, "planning") as taken_over:
        assert "process 4194305" in taken_over
        assert names(tmp_path) == ["lock.json"]
    assert names(tmp_path) == []


def test_a_right_to_take_over_that_lives_is_respected(tmp_path):
    write_lock(tmp_path / "lock.json")
    with (
        hold_file(tmp_path / "lock.json.0123456789abcdef", "taking over"),
        pytest.raises(HeldError),
        hold(tmp_path, "planning"),
    ):
        pytest.fail("two takers")


@pytest.mark.jobs
def test_counting_by_several_processes_loses_nothing(tmp_path):
    (tmp_path / "count").write_text("0")
    write_lock(tmp_path / "lock.json")
    with ThreadPoolExecutor(3) as pool:
        argv = [sys.executable, "-c", COUNT, str(tmp_path), "20"]
        list(pool.map(lambda _: shell.run(argv), range(3)))
    assert (tmp_path / "count").read_text() == "60"
    assert names(tmp_path) == ["count"]


def test_without_hard_links_a_lock_is_created_exclusively(tmp_path, monkeypatch):
    def no_links(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with hold(tmp_path, "planning"):
        assert names(tmp_path) == ["lock.json"]
        holder = CoreMessage.LOCK_HOLDER.of(pid=os.getpid(), purpose="planning")
        held = CoreMessage.LOCK_HELD.of(folder=tmp_path, holder=holder)
        with refuses(HeldError, held), hold(tmp_path, "again"):
            pytest.fail("held twice")
    assert names(tmp_path) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"token": "../../etc/x"}', "\udcff"])
def test_a_lock_that_is_not_ours_is_left_alone_and_told(text, tmp_path):
    path = tmp_path / "lock.json"
    path.write_text(text, errors="surrogateescape")
    os.utime(path, (time.time() - 60,) * 2)
    unreadable = CoreMessage.RECORD_UNREADABLE.of(
        path=path, meaning="a lock file of runbook", remedy=containing(tmp_path, "remove that file")
    )
    with refuses(HeldError, unreadable), hold(tmp_path, "planning"):
        pytest.fail("taken")
    assert path.exists()


def test_a_lock_that_is_just_being_written_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "WRITING_SECONDS", 1.0)
    (tmp_path / "lock.json").write_text("")
    began = time.monotonic()
    unreadable = CoreMessage.RECORD_UNREADABLE.of(
        path=tmp_path / "lock.json", meaning="a lock file of runbook"
    )
    with refuses(HeldError, unreadable), hold(tmp_path, "planning"):
        pytest.fail("taken")
    assert time.monotonic() - began > 0.8


def test_a_lock_somebody_else_put_in_our_place_is_not_removed(tmp_path):
    with hold(tmp_path, "planning"):
        write_lock(tmp_path / "lock.json")
    assert (tmp_path / "lock.json").exists()
