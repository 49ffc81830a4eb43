"""Signs of life: which rank hangs, which is slow, which is neither; faults are off unless asked for."""

import doctest
import os
import signal
import threading
from itertools import pairwise
from types import SimpleNamespace

import pytest

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.schema import parse
from runbook.training.health import faults, heartbeat, stopping
from runbook.training.health.heartbeat import (
    Heartbeat,
    HeartbeatWriter,
    StragglerDetector,
    StuckTimer,
    find_hangs,
    make_watchdog,
    read_heartbeat,
    uptime,
)
from runbook.training.health.stopping import StopConditions
from runbook.training.ranks import Ranks
from runbook_drills import faults as drilled_faults

from . import specs


def beat(rank=0, step=5, activity="step", waiting=True, age=0.0, computed=0.0, steps=4, stage=0, pid=100):
    where = "distributed_c10d.py:3 all_reduce" if waiting else "data.py:7 read"
    return Heartbeat(rank, "n1", pid + rank, 1, stage, step, activity, where, waiting, computed, steps, uptime() - age)


def hangs(*rounds, limit=10.0, seconds=6.0):
    """What is found at the last of several looks, `seconds` apart."""
    progress, found = StuckTimer(), []
    for number, beats in enumerate(rounds):
        found = find_hangs(beats, progress, number * seconds, limit)
    return [(one.beat.rank, one.why) for one in found]


def test_a_rank_without_a_sign_of_life_hangs_whatever_it_last_did():
    for activity in ("step", "saving", "starting"):
        assert hangs([beat(0), beat(1, age=11, activity=activity)]) == [(1, "no sign of life")]
    assert hangs([beat(0), beat(1, age=9)]) == []


def test_the_rank_that_does_not_wait_while_the_others_do_is_the_one():
    looks = [beat(0), beat(1, waiting=False)]
    assert hangs(looks, looks) == []
    assert hangs(looks, looks, looks) == [(1, "in data.py:7 read")]


def test_where_all_wait_or_none_does_nobody_is_ended():
    waiting, busy = [beat(0), beat(1)], [beat(0, waiting=False), beat(1, waiting=False)]
    assert hangs(waiting, waiting, waiting) == []
    assert hangs(busy, busy, busy) == []


def test_a_rank_alone_ends_itself():
    alone = [beat(0, waiting=False)]
    assert hangs(alone, alone, alone) == [(0, "in data.py:7 read")]


@pytest.mark.parametrize("change", [{"activity": "saving"}, {"activity": "evaluating"}, {"steps": 0}])
def test_long_saves_and_first_steps_are_no_hangs(change):
    looks = [beat(0), beat(1, waiting=False, **change)]
    assert hangs(looks, looks, looks, looks) == []


def test_as_long_as_steps_are_made_nothing_hangs():
    assert hangs(*([beat(0, step=n), beat(1, step=n, waiting=False)] for n in range(9))) == []


def windows(*seconds_of_ranks, stages=(0, 0, 0)):
    """What is found over looks at which each rank has computed so many seconds for each of 10 steps."""
    stragglers, found, total = StragglerDetector(), [], [0.0] * len(stages)
    stragglers.look([beat(r, computed=0.0, steps=0, stage=s) for r, s in enumerate(stages)], 0.0)
    for number, seconds in enumerate(seconds_of_ranks, start=1):
        total = [one + 10 * more for one, more in zip(total, seconds, strict=True)]
        beats = [beat(r, computed=total[r], steps=10 * number, stage=s) for r, s in enumerate(stages)]
        found += stragglers.look(beats, 5.0 * number)
    return [(one.rank, one.seconds_per_step, one.others_seconds_per_step) for one in found]


def test_a_rank_that_is_slow_three_times_in_a_row_is_told_once():
    assert windows(*[(0.1, 0.1, 0.2)] * 3) == [(2, 0.2, 0.1)]
    assert windows(*[(0.1, 0.1, 0.2)] * 5) == [(2, 0.2, 0.1)]


def test_one_slow_window_or_an_even_run_is_no_alarm():
    assert windows(*[(0.1, 0.1, 0.2)] * 2, (0.1, 0.1, 0.1), *[(0.1, 0.1, 0.2)] * 2) == []
    assert windows(*[(0.1, 0.11, 0.12)] * 9) == []


@pytest.mark.parametrize(("times", "named"), [(1.2, False), (1.45, False), (1.5, False), (1.55, True), (2.0, True)])
def test_a_rank_is_slow_above_one_and_a_half_times_the_middle(times, named):
    """Drill 09 holds a training at 1.2 and one at 2 times against the same threshold."""
    assert [rank for rank, *_ in windows(*[(0.1, 0.1, 0.1 * times)] * 3)] == [2] * named


def test_ranks_of_different_stages_are_not_compared():
    assert windows(*[(0.1, 0.1, 0.3)] * 5, stages=(0, 0, 1)) == []


def test_a_sign_of_life_is_written_whole_and_read_back(tmp_path):
    one = HeartbeatWriter(3, tmp_path / "ranks")
    one.open()
    one.step(7)
    one.sample()
    one.write()
    one.close()
    read = read_heartbeat(tmp_path / "ranks" / "3.json")
    assert (read.rank, read.step, read.activity, read.pid, read.start) == (
        3, 7, "step", os.getpid(), heartbeat.process_start_ticks(os.getpid()),
    )  # fmt: skip
    assert -1 < read.age < 60  # it is written in milliseconds
    (tmp_path / "ranks" / "3.json").write_text('{"rank": 3')
    assert read_heartbeat(tmp_path / "ranks" / "3.json") is None


def test_asked_by_signal_a_rank_writes_the_stacks_of_all_threads(tmp_path):
    one = HeartbeatWriter(0, tmp_path / "ranks")
    one.open()
    waiting = threading.Event()
    other = threading.Thread(target=waiting.wait, name="other", daemon=True)
    other.start()
    os.kill(os.getpid(), heartbeat.STACK_SIGNAL)
    waiting.set()
    other.join(10)
    text = (tmp_path / "ranks" / "0.stack").read_text()
    assert "test_asked_by_signal" in text and text.count("hread 0x") >= 2
    one.close()


def test_a_main_thread_that_waits_in_torch_distributed_is_known():
    source = "def all_reduce(work):\n    return work()\n"
    namespace = {}
    exec(compile(source, "/venv/torch/distributed/distributed_c10d.py", "exec"), namespace)
    one = HeartbeatWriter(0, None)
    namespace["all_reduce"](one.sample)
    assert one.current().waiting
    one.sample()
    assert not one.current().waiting


def test_a_watch_that_did_not_run_itself_judges_nobody_for_a_while():
    """A job that was suspended and goes on finds all signs of life old."""
    assert not heartbeat.overslept(100.0, 100.5, limit=12)
    assert not heartbeat.overslept(100.0, 160.0, limit=360)
    assert heartbeat.overslept(100.0, 107.0, limit=12)


def test_without_a_job_folder_there_is_no_watch():
    spec = parse(specs.spec(), specs.Path())
    ranks = Ranks(1, 2, 1, "torchrun", "127.0.0.1", 29500)
    assert make_watchdog(spec, ranks, {}) is None
    watch = make_watchdog(spec, ranks, {heartbeat.FOLDER_VARIABLE: "/jobs/04-training", "LOCAL_WORLD_SIZE": "2"})
    assert list(watch.local) == [0, 1]
    alone = make_watchdog(spec, ranks, {heartbeat.FOLDER_VARIABLE: "/jobs/04-training", "LOCAL_WORLD_SIZE": "nonsense"})
    assert list(alone.local) == [1]


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
        stopping_.limit(100)
        clock[0] += 100
        assert (stopping_.stop_request(), stopping_.reason(-1)) == (-1, "exit_duration")
        assert stopping_.reason(15) == "SIGTERM"


class TestFaults:
    def test_without_the_variable_there_is_none(self):
        nothing = faults.faults_from({}, 0)
        nothing.step(1)
        nothing.save("begin")
        assert nothing.loss(3.0, 1) == 3.0

    def test_a_fault_is_for_its_rank_step_and_job(self):
        environment = {faults.VARIABLE: "spike:rank=1,step=9,job=04-training,factor=4"}
        job = {heartbeat.FOLDER_VARIABLE: "/runs/x/jobs/04-training"}
        assert faults.faults_from(environment | job, 1).loss(2.0, 9) == 8.0
        assert faults.faults_from(environment | job, 1).loss(2.0, 8) == 2.0
        assert faults.faults_from(environment | job, 0).loss(2.0, 9) == 2.0
        assert faults.faults_from(environment | {heartbeat.FOLDER_VARIABLE: "/j/04-training-2"}, 1).loss(2.0, 9) == 2.0

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
    def test_a_slow_rank_takes_as_many_times_as_long_as_it_is_told(self, monkeypatch, text, seconds):
        """A step of 0.02 s, on a clock that only sleeping and computing move."""
        clock = [100.0]
        moved = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda by: clock.__setitem__(0, clock[0] + by))
        monkeypatch.setattr(drilled_faults, "time", moved)
        slow, begins = faults.faults_from({faults.VARIABLE: text}, 1), []
        for step in range(1, 6):
            slow.step(step)
            begins.append(clock[0])
            clock[0] += 0.02
        assert [later - one for one, later in pairwise(begins)] == pytest.approx([seconds] * 4)

    @pytest.mark.parametrize("text", ["boom", "kill:when=3", "kill;boom"])
    def test_what_is_no_fault_is_refused_by_name(self, text):
        with pytest.raises(RefusedError, match=r"RUNBOOK_FAULTS: .* is no fault; the kinds are kill, stop"):
            faults.faults_from({faults.VARIABLE: text}, 0)

    def test_examples_in_docstrings_are_true(self):
        assert doctest.testmod(drilled_faults).failed == doctest.testmod(heartbeat).failed == 0
