"""Memory and disk that run out: the report names the rank that leaks, and the save that will fail."""

import mmap
import socket
from types import SimpleNamespace

import pytest
from suite.messages import containing, says

from runbook.plan_file import schema
from runbook.plan_file.alarms import in_bytes
from runbook.plan_file.messages import AlarmMessage
from runbook.training.health import memory_and_disk
from runbook.training.messages import TrainingMessage

from . import specs

pytestmark = pytest.mark.training


def test_the_rank_that_leaks_is_named_once_with_what_is_left(zygote, run):
    """Only one rank leaks in the first training run, and none in the second."""
    content = specs.spec(iterations=170, copies=2)
    faults = {"RUNBOOK_FAULTS": "leak:rank=0,bytes=2000000", "LOCAL_WORLD_SIZE": "2"}
    job = zygote.train(run, content, patch="training.patched:little_memory", extra=faults)
    assert job.code == 0, job.err
    (leak,) = [alarm for alarm in job.events("alarm") if alarm["kind"] == "memory leak"]
    assert (leak["metric"], leak["iteration"], leak["since"]) == ("host_memory", 80, 2)
    assert 140e6 < leak["value"] - leak["usual"] < 200e6
    growth = {
        "metric": "host memory",
        "first": in_bytes(leak["usual"]),
        "last": in_bytes(leak["value"]),
        "iterations": 78,
        "slope": in_bytes((leak["value"] - leak["usual"]) / 78),
    }
    assert says(leak["evidence"], AlarmMessage.GREW, **growth)
    steps_left = 100e6 / ((leak["value"] - leak["usual"]) / 78) / 2
    assert 23 <= steps_left < 26.5
    assert says(
        leak["evidence"],
        AlarmMessage.MEMORY_LEFT,
        growth=containing("host memory"),
        left="100 MB",
        host=socket.gethostname(),
        growing=AlarmMessage.ALL_PROCESSES_GROW.fill(processes=2),
        iteration=80 + steps_left,
    )


def test_a_healthy_training_has_no_leak_though_little_is_left(zygote, run):
    job = zygote.train(run, specs.spec(iterations=170), patch="training.patched:little_memory")
    assert job.code == 0, job.err
    assert [
        alarm for alarm in job.events("alarm") if alarm["kind"] not in ("plateau", "divergence")
    ] == []


def test_what_a_process_holds_is_measured():
    before, block = (
        memory_and_disk.host_bytes(),
        mmap.mmap(-1, 50_000_000),
    )  # not for memory that was used and freed
    for place in range(0, len(block), mmap.PAGESIZE):
        block[place] = 1
    assert (
        45e6 < memory_and_disk.host_bytes() - before < 60e6
        and len(block) < memory_and_disk.host_bytes_left()
    )
    block.close()


def test_growth_that_ends_before_the_memory_is_full_is_no_leak(monkeypatch):
    watch = memory_and_disk.MemoryWatch(schema.parse(specs.spec(iterations=10_000)))
    held = [0]
    monkeypatch.setattr(memory_and_disk, "host_bytes", lambda: held[0])
    monkeypatch.setattr(memory_and_disk, "host_bytes_left", lambda: 10_000 * 100)
    for iteration in range(1, 2001):
        held[0] = 100 * iteration // 3
        watch.look(iteration, 1.0)
    assert watch.bytes_per_step == 0.0
    for iteration in range(2001, 3001):
        held[0] += 100
        watch.look(iteration, 1.0)
    assert watch.bytes_per_step == pytest.approx(100)


def plan(**checkpoint):
    checkpoint = {"interval": 10, "keep": 2, **checkpoint}
    return schema.parse(
        specs.spec(iterations=100, model={"parameters": 1000}, checkpoint=checkpoint)
    )


@pytest.mark.parametrize(
    ("free", "kept", "checkpoint", "fails"),
    [
        (3000, [], {}, 0),  # two saves that are kept and the one being written
        (2999, [], {}, 50),
        (1000, [10, 20], {}, 0),  # each save takes the space of the one that is removed
        (999, [10, 20], {}, 30),
        (8000, [], {"keep": 9}, 0),
        (7999, [], {"keep": 9}, 100),
        (4000, [10, 20], {"keep_every": 20}, 0),  # 20, 40 and 60 are kept
        (3999, [10, 20], {"keep_every": 20}, 90),
        (500, [], {"interval": 0}, 100),
    ],
)
def test_the_first_save_without_room_is_the_one_that_will_fail(free, kept, checkpoint, fails):
    spec = plan(**checkpoint)
    assert (
        memory_and_disk.first_without_room(
            spec, memory_and_disk.next_saves(spec, 22), free, 1000, kept
        )
        == fails
    )
    assert memory_and_disk.next_saves(spec, 100) == []


def test_a_low_disk_is_reported_once_and_again_when_it_is_worse(monkeypatch, tmp_path):
    watch = memory_and_disk.DiskWatch(plan(folder=str(tmp_path / "checkpoints")))
    free = [5e9]
    monkeypatch.setattr(
        memory_and_disk.shutil, "disk_usage", lambda _: SimpleNamespace(free=free[0], total=1e11)
    )
    watch.saved(2_000_000_000)

    def look(now, iteration=5):
        free[0] = now
        watch._next_look = 0.0
        return [alarm.evidence for alarm in watch.look(iteration, 36.0)]

    assert look(7e9) == []
    (evidence,) = look(5e9)
    assert evidence == AlarmMessage.DISK_LOW.fill(
        free="5 GB",
        total="100 GB",
        folder=tmp_path / "checkpoints",
        save="2 GB",
        saves=10,
        kept=2,
        outlook=AlarmMessage.SAVE_DOES_NOT_FIT.fill(iteration=30, hours=0.25),
    )
    assert look(4.9e9) == look(5.1e9) == []
    assert len(look(1e9)) == 1 and look(1.1e9) == []
    assert look(7e9) == [] and len(look(5e9)) == 1
    watch.saved(1000)
    assert look(5e9) == [] and says(
        look(0.9e9)[0], AlarmMessage.DISK_LOW, outlook=AlarmMessage.ALL_SAVES_FIT.fill()
    )
    assert [*watch.look(5, 1.0)] == [], "not at every step"


@pytest.mark.training
def test_a_training_says_that_its_disk_will_be_full(zygote, run):
    content = specs.spec(iterations=6, checkpoint={"interval": 1, "keep": 4})
    job = zygote.train(run, content, patch="training.killing:little_space")
    assert job.code == 0, job.err
    (alarm,) = job.events("alarm")
    assert (alarm["kind"], alarm["iteration"]) == ("disk low", 2), alarm
    assert says(
        alarm["evidence"],
        AlarmMessage.DISK_LOW,
        free="6 MB",
        total="100 MB",
        folder="checkpoints",
        save=in_bytes(alarm["usual"]),
    )
    assert says(alarm["evidence"], AlarmMessage.SAVE_DOES_NOT_FIT, iteration=4)
    assert says(
        job.out,
        TrainingMessage.ALARM,
        kind="disk low",
        iteration=2,
        evidence=alarm["evidence"],
    )
    assert zygote.train(run, specs.spec(iterations=8)).events("alarm") == [alarm], (
        "nothing more with room"
    )
