"""Tells from heartbeats which ranks hang, are slow or are healthy. Injected faults are off unless
requested.
"""

import contextlib
import dataclasses
import doctest
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from suite.messages import containing, refuses

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.hang_limits import HangLimits
from runbook.plan_file.schema import parse
from runbook.plan_file.slow_ranks import ExchangedTimes, StragglerDetector
from runbook.tools.drills import faults as drilled_faults
from runbook.tools.drills.bench import read_heartbeats
from runbook.tools.drills.messages import DrillMessage
from runbook.training.health import heartbeat, injected_faults, stopping, watchdog
from runbook.training.health.heartbeat import (
    Heartbeat,
    HeartbeatFile,
    HeartbeatWriter,
    uptime,
)
from runbook.training.health.stacks import STACK_SIGNAL, ask_for_stacks
from runbook.training.health.stopping import StopConditions
from runbook.training.health.watchdog import (
    find_hangs,
    make_watchdog,
    message_key,
    overslept,
    silent_ranks,
)
from runbook.training.messages import TrainingMessage
from runbook.training.ranks import Ranks

from . import specs


def beat(rank=0, **values):
    """Return the heartbeat of a rank that has been stuck in a step for longer than the limit."""
    values = {
        "step": 5,
        "steps": 4,
        "activity": "step",
        "where": "loop.py:9 item",
        "still": 400.0,
        "limit": 360.0,
    } | values
    age = values.pop("age", 0.0)
    return Heartbeat(rank, "n1", 100 + rank, 1, uptime=uptime() - age, **values)


def ranks(*entered, **values):
    """Return heartbeats from ranks that have entered this many collectives in one group."""
    return [beat(rank, entered={"0": count}, **values) for rank, count in enumerate(entered)]


def named(beats):
    return [hang.beat.rank for hang in find_hangs(beats)]


def test_a_rank_without_a_sign_of_life_hangs_whatever_it_last_did():
    for activity in ("step", "saving", "starting"):
        beats = [beat(0), beat(1, age=361, activity=activity), beat(2, age=359)]
        assert [(hang.beat.rank, hang.why) for hang in silent_ranks(beats)] == [
            (1, TrainingMessage.NO_SIGN_OF_LIFE.fill())
        ]


@pytest.mark.parametrize("activity", ["step", "evaluating", "saving", "starting", "between"])
def test_the_rank_that_entered_fewer_collectives_is_the_one_wherever_the_others_wait(activity):
    assert named(ranks(9, 9, 8, 9, activity=activity)) == [2]


def test_as_long_as_one_rank_gets_on_nobody_hangs():
    beats = ranks(9, 9, 8, 9)
    beats[0].still = 1.0
    assert named(beats) == []


def test_a_rank_that_waits_for_another_one_itself_is_not_the_cause():
    """Ranks 0 and 1 share matrices, and so do 2 and 3. Ranks 0 and 2 share gradients, and so do 1
    and 3. Rank 1 computes, rank 0 waits for it, and ranks 2 and 3 wait for both.
    """
    beats = [
        beat(0, entered={"t0": 5, "d0": 3}),
        beat(1, entered={"t0": 4, "d1": 3}),
        beat(2, entered={"t1": 6, "d0": 4}),
        beat(3, entered={"t1": 6, "d1": 4}),
    ]
    assert named(beats) == [1]


def test_a_stage_that_has_not_sent_keeps_the_next_one_waiting():
    """Stage 1 waits for data that stage 0 has not sent. A rank that has sent more than was received
    does not need to wait.
    """
    first = beat(0, entered={message_key("p", "send", 0, 1): 3, message_key("q", "send", 0, 2): 9})
    assert named(
        [first, beat(1, entered={message_key("p", "recv", 1, 0): 4}), beat(2, entered={})]
    ) == [0]
    ahead = [
        beat(0, entered={message_key("p", "send", 0, 1): 5}),
        beat(1, entered={message_key("p", "recv", 1, 0): 4}),
    ]
    assert named(ahead) == []


def test_where_all_have_entered_as_many_it_is_the_one_that_is_still_inside():
    """If no rank is inside a collective, none waits for another. All may be reading from a slow
    disk, or evaluating for a long time.
    """
    beats = ranks(9, 9, 9)
    beats[1].where = "data.py:7 read"
    assert named(beats) == []
    beats[2].inside = True
    assert named(beats) == [2]
    for beat_ in beats:
        beat_.inside = True  # all of them synchronize for the first time
    assert named(beats) == []


class Simulated:
    """Four ranks on a simulated clock. The others wait for the last rank for nine tenths of every
    activity.
    """

    def __init__(self, monkeypatch, timeout=600.0):
        self.clock = 1000.0
        monkeypatch.setattr(heartbeat, "uptime", lambda: self.clock)
        self.writers = []
        for rank in range(4):
            self.writers.append(HeartbeatWriter(rank, HangLimits(timeout)))
            self.writers[-1].entered = lambda rank=rank: {"0": self.entered[rank]}
        self.entered = [0] * 4
        self.named = []
        self.longest_wait = 0.0

    def do(self, seconds, begin):
        """Simulate an activity that takes this long: all ranks except 3 wait in a collective after
        a tenth of it.
        """
        for writer in self.writers:
            begin(writer)
        for count, share in ((0, 0.1), (1, 0.9)):
            self.entered = [self.entered[rank] + (count if rank < 3 else 0) for rank in range(4)]
            end = self.clock + share * seconds
            while self.clock < end:
                self.look()
                self.clock += seconds / 50
        self.entered = [max(self.entered)] * 4

    def look(self):
        beats = [writer.current() for writer in self.writers]
        self.longest_wait = max(self.longest_wait, min(one.still for one in beats))
        self.named += named(beats)

    def step(self, number, seconds):
        self.do(seconds, lambda writer: writer.step(number))

    def hang(self, seconds):
        """Let rank 3 hang. Return what is reported, and after how long."""
        self.entered = [count + (rank < 3) for rank, count in enumerate(self.entered)]
        begun = self.clock
        while not self.named and self.clock < begun + seconds:
            self.look()
            self.clock += 1
        return sorted(set(self.named)), self.clock - begun


@pytest.mark.parametrize(
    ("seconds", "first", "limit"),
    [(1, 60, 360), (60, 300, 360), (400, 420, 1200), (600, 500, 1800)],
)
def test_no_legitimate_step_or_evaluation_is_a_hang_and_a_hang_is_found_on_a_simulated_clock(
    monkeypatch, seconds, first, limit
):
    """Simulate steps that take up to 600 s, a longer first step, and a 20-minute evaluation.

    Then rank 3 stops in a step.
    """
    job = Simulated(monkeypatch)
    job.step(1, first)
    for number in range(2, 12):
        job.step(number, seconds)
    with contextlib.ExitStack() as stack:
        batches = -(-1200 // seconds)
        job.do(1200, lambda writer: stack.enter_context(writer.during("evaluating", batches)))
    job.step(12, seconds)
    assert not job.named and job.longest_wait > 0.8 * seconds
    for writer in job.writers:
        writer.step(13)
    found, after = job.hang(3000)
    assert found == [3] and after == pytest.approx(limit, abs=seconds * 3 / 50 + 2)


def test_a_slow_first_step_is_forgotten_once_others_are_measured():
    limits = HangLimits(600.0)
    assert limits.limit("step") == 540
    for seconds in (900, 2, 2):
        limits.measured("step", seconds)
        assert limits.limit("step") == 2700
    limits.measured("step", 2)
    assert limits.limit("step") == 360
    assert limits.limit("evaluating", 1000) == 2000 and limits.limit("saving") == 540


def windows(*seconds_of_ranks, stages=1):
    """Return the findings of several checks, each after 10 steps in which each rank computed this
    many seconds per step.
    """
    detector = StragglerDetector(stages)
    found = []
    count = len(seconds_of_ranks[0])
    detector.look(
        ExchangedTimes(1, 1, [9.0] * (count - 1) + [99.0]), 0.0
    )  # the first step compiles
    for number, seconds in enumerate(seconds_of_ranks):
        for part in (1, 2):  # two exchanges of five steps form a window
            times = ExchangedTimes(10 * number + 5 * part + 1, 5, [*seconds])
            found += detector.look(times, 5.0 * number + (1 if part == 1 else 5))
    return [(slow.rank, slow.value, slow.usual) for slow in found]


def test_a_rank_that_is_slow_three_times_in_a_row_is_told_once():
    assert windows(*[(0.1, 0.1, 0.2)] * 3) == [(2, 0.2, 0.1)]
    assert windows(*[(0.1, 0.1, 0.2)] * 5) == [(2, 0.2, 0.1)]
    assert windows(*[(0.1, 0.2)] * 3) == [(1, 0.2, 0.1)]


def test_one_slow_window_or_an_even_run_is_no_alarm():
    assert windows(*[(0.1, 0.1, 0.2)] * 2, (0.1, 0.1, 0.1), *[(0.1, 0.1, 0.2)] * 2) == []
    assert windows(*[(0.1, 0.11, 0.12)] * 9) == []
    assert windows(*[(0.1,)] * 9) == []


@pytest.mark.parametrize(
    ("times", "named"), [(1.2, False), (1.45, False), (1.5, False), (1.55, True), (2.0, True)]
)
def test_a_rank_is_slow_above_one_and_a_half_times_the_middle(times, named):
    """Drill 09 tests the same threshold with ranks that take 1.2 and 2 times as long."""
    assert [rank for rank, *_ in windows(*[(0.1, 0.1, 0.1 * times)] * 3)] == [2] * named


def test_ranks_of_different_stages_are_not_compared():
    assert windows(*[(0.1, 0.1, 0.3, 0.3)] * 5, stages=2) == []


def test_heartbeats_of_a_machine_are_written_in_place_and_read_back(tmp_path):
    file = HeartbeatFile(tmp_path / "ranks", range(8, 12))
    file.open()
    writers = [HeartbeatWriter(rank, None, file) for rank in (11, 8)]
    for writer in writers:
        writer.step(7)
        writer.write()
    own = {read.rank: read for read in file.read()}
    assert sorted(own) == [8, 11] and own[8].where and -1 < own[8].age < 60
    assert (own[11].step, own[11].activity, own[11].pid) == (7, "step", os.getpid())
    assert {
        rank: beat["pid"] for rank, beat in read_heartbeats(tmp_path / "ranks").items()
    } == dict.fromkeys(own, os.getpid())
    assert not (tmp_path / "ranks").exists()
    content = bytearray(file.path.read_bytes())
    content[20] ^= 1
    file.path.write_bytes(content)
    assert [read.rank for read in file.read()] == [11]
    file.close(remove=True)
    assert read_heartbeats(tmp_path / "ranks") == {}


def test_a_heartbeat_of_a_process_that_ended_is_nobody_s(tmp_path):
    file = HeartbeatFile(tmp_path, range(2))
    file.open()
    file.write(
        dataclasses.replace(
            beat(0, age=20), pid=os.getpid(), start=heartbeat.process_start_ticks(os.getpid())
        )
    )
    file.write(beat(1, age=20))  # from an earlier job in this folder, which was killed
    assert [read.rank for read in file.read()] == [0]
    file.close(remove=True)


def test_asked_by_signal_a_rank_writes_the_stacks_of_all_threads():
    writer = HeartbeatWriter(0)
    writer.open()
    waiting = threading.Event()
    other = threading.Thread(target=waiting.wait, name="other", daemon=True)
    other.start()
    os.kill(os.getpid(), STACK_SIGNAL)
    waiting.set()
    other.join(60)
    text = Path(writer.current().stacks).read_text()
    assert "test_asked_by_signal" in text and text.count("hread 0x") >= 2
    writer.close()


CALLS_DEEPLY = """
import sys, threading, time
from runbook.training.health.heartbeat import HeartbeatWriter
def call(depth):
    return call(depth - 1) if depth else 0
def work_for_ever():
    while True:
        call(400)
writer = HeartbeatWriter(0)
writer.open()
threading.Thread(target=work_for_ever, name="reader", daemon=True).start()
for _ in range(300):
    writer.write_stacks()
sys.stdout.write(open(writer.current().stacks).read())
"""
"""A rank with a thread that frees frames all the time. 300 requests by signal end it with SIGSEGV,
because the frames are read while the thread frees them.
"""


def test_a_rank_whose_threads_go_on_survives_writing_its_stacks():
    argv = [sys.executable, "-c", CALLS_DEEPLY]
    child = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, (child.returncode, child.stderr[-2000:])
    lines = child.stdout.splitlines()
    assert "[MainThread] (most recent call first)" in lines[0]
    [reader] = [number for number, line in enumerate(lines) if "[reader]" in line]
    assert "in write_stacks" in "\n".join(lines[:reader])
    assert "in work_for_ever" in "\n".join(lines[reader:])


def test_a_watch_that_outlives_its_stop_writes_no_stacks_and_does_not_fail():
    """`Watchdog.stop` waits 5 s for its thread, which may wait longer for another rank's stacks."""
    writer = HeartbeatWriter(0)
    writer.open()
    writer.close()
    writer.write_stacks()


def test_a_stuck_rank_is_not_asked_by_signal_and_a_silent_one_is(monkeypatch, tmp_path):
    """Answering a signal can crash a rank whose other threads are still running. The other ranks
    then lose it before the hang is reported.
    """
    asked = []
    monkeypatch.setattr(watchdog, "ask_for_stacks", lambda pid, *_: asked.append(pid) or "asked")
    written = tmp_path / "written"
    written.write_text("of its own\n")
    environment = {"RUNBOOK_JOB_FOLDER": str(tmp_path)}
    watch = make_watchdog(
        parse(specs.spec(), tmp_path), Ranks(1, 2, 1, "srun", "n1", 1), environment
    )
    other = dataclasses.replace(beat(0), pid=os.getpid(), stacks=str(written))
    assert watch._stacks(other, is_silent=False) == ["of its own"]
    assert asked == []
    assert watch._stacks(other, is_silent=True) == ["asked"]
    assert asked == [os.getpid()]
    assert (tmp_path / "ranks" / "0.stack").read_text() == "asked"


def test_a_rank_writes_its_stacks_each_time_that_it_gets_stuck(monkeypatch, tmp_path):
    written = []
    environment = {"RUNBOOK_JOB_FOLDER": str(tmp_path)}
    watch = make_watchdog(
        parse(specs.spec(), tmp_path), Ranks(1, 2, 1, "srun", "n1", 1), environment
    )
    monkeypatch.setattr(watch.heartbeat, "write_stacks", lambda: written.append(len(written)))
    for still, count in ((0, 0), (100, 1), (101, 1), (0, 1), (100, 2)):
        watch._show_stacks(beat(1, still=still, limit=50))
        assert len(written) == count


WRITES_SLOWLY = """
import faulthandler, fcntl, os, sys, threading, time
PIPE_BYTES = 4096
pipe = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
faulthandler.register(int(sys.argv[2]), file=pipe, all_threads=True)
def sleep_below(depth):
    if depth:
        sleep_below(depth - 1)
    else:
        time.sleep(600)
for _ in range(4):
    threading.Thread(target=sleep_below, args=(90,), daemon=True).start()
print("ready", flush=True)
sleep_below(90)
"""
"""A rank whose stacks have about 25,000 bytes. Only 4,096 fit into the pipe, so the rank waits for
a reader before it has written them all.
"""


def test_stacks_are_whole_however_slowly_a_rank_writes_them(tmp_path: Path):
    """A rank may wait for a core between two lines of its stacks.

    An earlier version mistook such a rank for finished.
    """
    pipe = tmp_path / "pipe"
    shown = tmp_path / "stacks"
    os.mkfifo(pipe)
    argv = [sys.executable, "-c", WRITES_SLOWLY, pipe, str(int(STACK_SIGNAL))]

    def read_with_a_pause() -> None:
        with pipe.open("rb") as stream, shown.open("ab", buffering=0) as copy:
            copy.write(stream.read1(1024))
            time.sleep(0.3)  # far longer than the pause that once counted as the end
            while content := stream.read1(4096):
                copy.write(content)

    threading.Thread(target=read_with_a_pause, daemon=True).start()
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        text = ask_for_stacks(child.pid, shown, seconds=60)
        child.kill()
    assert len(text) > 10_000


def test_a_watch_that_did_not_run_itself_judges_nobody_for_a_while():
    """When a suspended job continues, the heartbeats of all ranks are old."""
    assert not overslept(100.0, 100.5, limit=12)
    assert not overslept(100.0, 160.0, limit=360)
    assert overslept(100.0, 107.0, limit=12)


def test_without_a_job_folder_there_is_no_watch():
    spec = parse(specs.spec(), specs.Path())
    ranks = Ranks(1, 2, 1, "torchrun", "127.0.0.1", 29500)
    assert make_watchdog(spec, ranks, {}) is None
    watch = make_watchdog(
        spec, ranks, {heartbeat.FOLDER_VARIABLE: "/jobs/04-training", "LOCAL_WORLD_SIZE": "2"}
    )
    assert list(watch.local) == [0, 1]
    alone = make_watchdog(
        spec,
        ranks,
        {heartbeat.FOLDER_VARIABLE: "/jobs/04-training", "LOCAL_WORLD_SIZE": "nonsense"},
    )
    assert list(alone.local) == [1]


def test_a_rank_says_what_collective_it_is_in_while_it_is_stuck_and_not_once_it_got_on(
    monkeypatch, tmp_path
):
    clock = [1000.0]
    written = []
    monkeypatch.setattr(heartbeat, "uptime", lambda: clock[0])
    monkeypatch.setattr(
        watchdog, "write_collectives", lambda path: written.append(path) or f"in {len(written)}"
    )
    environment = {"RUNBOOK_JOB_FOLDER": str(tmp_path)}
    watch = make_watchdog(
        parse(specs.spec(), tmp_path), Ranks(1, 2, 1, "srun", "n1", 1), environment
    )
    watch._reports = object()
    for step, seconds, shown in (
        (1, 0, ""),
        (0, 600, "in 1"),
        (0, 1, "in 1"),
        (2, 0, ""),
        (0, 3000, "in 2"),
    ):
        if step:
            watch.heartbeat.step(step)
        clock[0] += seconds
        own = watch.heartbeat.current()
        watch._show_collectives(own)
        assert own.collectives == shown
    assert written == [tmp_path / "ranks" / "1.collectives.json"] * 2


def test_on_a_gpu_nccl_records_and_torch_writes_the_record_into_the_job_unless_the_job_says_otherwise(
    monkeypatch, tmp_path
):
    names = (
        "FR_BUFFER_SIZE",
        "NCCL_TRACE_BUFFER_SIZE",
        "NCCL_DUMP_ON_TIMEOUT",
        "FR_DUMP_TEMP_FILE",
    )
    for name in (*names, "NCCL_DEBUG_INFO_TEMP_FILE"):
        monkeypatch.setenv(f"TORCH_{name}", "")  # removed after the test, even if the code sets it
        monkeypatch.delenv(f"TORCH_{name}")
    environment = {"RUNBOOK_JOB_FOLDER": str(tmp_path)}
    for gpu, values in (
        (False, [None] * 4),
        (True, ["2000", None, "1", f"{tmp_path}/torch-collectives-"]),
    ):
        monkeypatch.setattr(watchdog, "on_gpu", lambda gpu=gpu: gpu)
        watch = make_watchdog(
            parse(specs.spec(), tmp_path), Ranks(0, 1, 0, "alone", "", 0), environment
        )
        watch.start()
        watch.stop()
        assert [os.environ.get(f"TORCH_{name}") for name in names] == values
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "50")
    watchdog.switch_recorder_on(tmp_path)
    assert os.environ["TORCH_FR_BUFFER_SIZE"] == "50"


def test_of_nccl_s_record_the_oldest_collective_under_way_is_shown():
    def entry(number, state, *, retired, name="nccl:_all_gather_base", p2p=0):
        numbers = {"collective_seq_id": number, "p2p_seq_id": p2p, "is_p2p": bool(p2p)}
        return {
            **numbers,
            "profiling_name": name,
            "process_group": ["3", "dp"],
            "state": state,
            "retired": retired,
        }

    assert watchdog.describe_collectives([]) == ""
    done = [entry(5, "completed", retired=True), entry(6, "completed", retired=False)]
    under_way = [
        entry(6, "started", retired=False, name="nccl:send 0->1", p2p=9),
        entry(7, "scheduled", retired=False),
    ]
    group = {"group": 3, "purpose": "dp"}
    oldest = TrainingMessage.COLLECTIVE.fill(name="nccl:send 0->1", number=9, **group)
    newest = TrainingMessage.COLLECTIVE.fill(name="nccl:_all_gather_base", number=6, **group)
    in_oldest = TrainingMessage.IN_COLLECTIVE.fill(collective=oldest, state="started")
    after_newest = TrainingMessage.AFTER_COLLECTIVE.fill(collective=newest)
    assert watchdog.describe_collectives(done + under_way) == f"{in_oldest}, {after_newest}"


def test_the_process_groups_wait_longer_where_measured_steps_take_long(monkeypatch, tmp_path):
    """A shorter timeout would end a rank that the watchdog allows to continue, or end a hung rank
    before the watchdog has reported it.
    """
    raised = []
    clock = [1000.0]
    monkeypatch.setattr(watchdog, "raise_timeouts", raised.append)
    monkeypatch.setattr(heartbeat, "uptime", lambda: clock[0])
    watch = make_watchdog(
        parse(specs.spec(), tmp_path), Ranks(1, 2, 1, "srun", "n1", 1), {"RUNBOOK_JOB_FOLDER": "/j"}
    )
    watch._reports = object()
    for number, seconds in enumerate((10, 10, 10, 13, 40), start=1):
        watch.heartbeat.step(number)
        watch._raise_timeouts(watch.heartbeat.current().limit)
        clock[0] += seconds
    watch.heartbeat.step(6)
    watch._raise_timeouts(watch.heartbeat.current().limit)
    assert raised == [
        pytest.approx(3 * 13 / 0.6),
        pytest.approx(3 * 40 / 0.6),
    ]  # the planned 60 s are enough for steps of 10 s


def test_a_group_that_keeps_its_own_limit_is_left_out(tmp_path):
    """The loss of a partner for copies is noticed after a minute, however long a step takes."""
    import torch

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        default = torch.distributed.group.WORLD
        minute = timedelta(seconds=60)
        kept = torch.distributed.new_group(
            [0], timeout=minute, backend="gloo", group_desc=watchdog.KEEPS_ITS_TIMEOUT
        )
        watchdog.raise_timeouts(5000)
        cpu = torch.device("cpu")
        limits = [group._get_backend(cpu).options._timeout for group in (default, kept)]
        assert limits == [timedelta(seconds=5000), minute]
    finally:
        torch.distributed.destroy_process_group()


class TestStopping:
    @pytest.fixture
    def stop(self, monkeypatch):
        handlers = {number: signal.getsignal(number) for number in stopping.SIGNALS}
        clock = [1000.0]
        monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        monkeypatch.setenv(stopping.SECONDS_LEFT_VARIABLE, "600")
        yield StopConditions(), clock
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def test_before_the_limit_a_reserve_of_two_measured_saves_is_kept(self, stop):
        stopping_, clock = stop
        stopping_.stepped(1.0)
        assert stopping_.reserve() == 2 * 30 + 2  # a twentieth of 600 s until a save was measured
        stopping_.saved(50.0)
        stopping_.saved(20.0)
        assert stopping_.reserve() == 2 * 50 + 2
        clock[0] += 497
        assert stopping_.stop_request() == 0
        clock[0] += 1
        assert stopping_.stop_request() == -1
        assert stopping_.reason(-1) == "time_limit"

    def test_an_exit_duration_is_told_as_such(self, stop):
        stopping_, clock = stop
        stopping_.limit_seconds = 100
        clock[0] += 100
        assert (stopping_.stop_request(), stopping_.reason(-1)) == (-1, "exit_duration")
        assert stopping_.reason(15) == "SIGTERM"


class TestFaults:
    def test_without_the_variable_there_is_none(self):
        nothing = injected_faults.faults_from({}, 0)
        nothing.step(1)
        nothing.save("begin")
        assert nothing.loss(3.0, 1) == 3.0

    def test_a_fault_is_for_its_rank_step_and_job(self):
        environment = {injected_faults.VARIABLE: "spike:rank=1,step=9,job=04-training,factor=4"}
        job = {heartbeat.FOLDER_VARIABLE: "/runs/x/jobs/04-training"}
        assert injected_faults.faults_from(environment | job, 1).loss(2.0, 9) == 8.0
        assert injected_faults.faults_from(environment | job, 1).loss(2.0, 8) == 2.0
        assert injected_faults.faults_from(environment | job, 0).loss(2.0, 9) == 2.0
        assert (
            injected_faults.faults_from(
                environment | {heartbeat.FOLDER_VARIABLE: "/j/04-training-2"}, 1
            ).loss(2.0, 9)
            == 2.0
        )

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("slow:rank=1,factor=2", 0.04),
            ("slow:rank=1,factor=1.2", 0.02 * 1.2),
            ("slow:seconds=0.12", 0.14),
            ("slow:seconds=0.12; slow:rank=1,factor=2", 0.28),
            ("slow:seconds=0.12; slow:rank=1,factor=1.2", 0.14 * 1.2),
        ],
    )
    def test_a_slow_rank_takes_as_many_times_as_long_as_it_is_told(
        self, monkeypatch, text, seconds
    ):
        """Slow down a step of 0.02 s, on a clock that advances only by sleeping and computing."""
        clock = [100.0]
        moved = SimpleNamespace(
            monotonic=lambda: clock[0], sleep=lambda by: clock.__setitem__(0, clock[0] + by)
        )
        monkeypatch.setattr(drilled_faults, "time", moved)
        slow = injected_faults.faults_from({injected_faults.VARIABLE: text}, 1)
        begins = []
        for step in range(1, 6):
            slow.step(step)
            begins.append(clock[0])
            clock[0] += 0.02
        assert [later - one for one, later in pairwise(begins)] == pytest.approx([seconds] * 4)

    @pytest.mark.parametrize("text", ["boom", "kill:when=3", "kill;boom"])
    def test_what_is_no_fault_is_refused_by_name(self, text):
        with refuses(
            RefusedError,
            DrillMessage.NOT_A_FAULT,
            variable="RUNBOOK_FAULTS",
            kinds=containing("kill, stop"),
        ):
            injected_faults.faults_from({injected_faults.VARIABLE: text}, 0)

    def test_examples_in_docstrings_are_true(self):
        assert doctest.testmod(drilled_faults).failed == doctest.testmod(heartbeat).failed == 0


@pytest.mark.parametrize(
    "answer", ["", "[]", '{"entries": [{"of": "another version"}]}', RuntimeError("no recorder")]
)
def test_a_record_of_collectives_that_cannot_be_read_does_not_end_the_watch(
    monkeypatch, tmp_path, answer
):
    def dump():
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("torch._C._distributed_c10d._dump_fr_trace_json", dump)
    assert watchdog.write_collectives(tmp_path / "ranks" / "1.collectives.json") == ""
