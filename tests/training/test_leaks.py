"""Memory leaks: named by the rank that leaks, with its numbers; silent where memory is only taken into use."""

import re

import pytest

from runbook.plan_file import schema
from runbook.training.health import memory

from . import specs

pytestmark = pytest.mark.training


def test_the_rank_that_leaks_is_named_once_with_what_is_left(zygote, run):
    """The other rank of this training trains as any healthy one does, and so does the second training."""
    content = specs.spec(iterations=170, copies=2)
    faults = {"RUNBOOK_FAULTS": "leak:rank=0,bytes=2000000", "LOCAL_WORLD_SIZE": "2"}
    job = zygote.train(run, content, patch="training.patched:little_memory", extra=faults)
    assert job.code == 0, job.err
    (leak,) = [alarm for alarm in job.events("alarm") if alarm["kind"] == "memory leak"]
    assert (leak["metric"], leak["iteration"], leak["since"]) == ("host_memory", 80, 2)
    assert 140e6 < leak["value"] - leak["usual"] < 200e6
    assert leak["evidence"].startswith("host memory grew from ")
    assert " over 78 iterations, 2" in leak["evidence"] and "MB each, steadily" in leak["evidence"]
    assert "; 100 MB are left on " in leak["evidence"]
    assert re.search(r" hours where 2 grow like this: until about iteration 10[3-6]$", leak["evidence"])


def test_a_healthy_training_has_no_leak_though_little_is_left(zygote, run):
    job = zygote.train(run, specs.spec(iterations=170), patch="training.patched:little_memory")
    assert job.code == 0, job.err
    assert [alarm for alarm in job.events("alarm") if alarm["kind"] not in ("plateau", "divergence")] == []


def test_what_a_process_holds_is_measured():
    before = memory.host_bytes()
    kept = b"x" * 50_000_000
    assert 45e6 < memory.host_bytes() - before < 60e6 and len(kept) < memory.host_bytes_left()


def test_growth_that_ends_before_the_memory_is_full_is_no_leak(monkeypatch):
    watch, held = memory.MemoryWatch(schema.parse(specs.spec(iterations=10_000))), [0]
    monkeypatch.setattr(memory, "host_bytes", lambda: held[0])
    monkeypatch.setattr(memory, "host_bytes_left", lambda: 10_000 * 100)
    for iteration in range(1, 2001):
        held[0] = 100 * iteration // 3
        watch.look(iteration, 1.0)
    assert watch.bytes_per_step == 0.0
    for iteration in range(2001, 3001):
        held[0] += 100
        watch.look(iteration, 1.0)
    assert watch.bytes_per_step == pytest.approx(100)
