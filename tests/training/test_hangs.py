"""A hung rank among real processes, while the others wait outside every function that is known to
wait.
"""

import json

import pytest
from suite.messages import containing, says

from runbook.training.health.watchdog import describe_collectives
from runbook.training.messages import TrainingMessage

from . import hanging, specs

pytestmark = pytest.mark.training
PLACES = {
    "data": ("step", "read_data", 4),
    "compute": ("step", "compute", 1),
    "collective": ("step", "send_on_the_network", 4),
    "save": ("saving", "save", 1),
}
"""Where each hang is reported, and the number of ranks on each machine."""


@pytest.fixture(scope="module")
def jobs(zygote, tmp_path_factory):
    """Start all jobs at the same time, because they only wait."""
    jobs = {}
    # A busy machine may delay a healthy rank for some seconds.
    limits = {"process_group_timeout_seconds": 30}
    content = specs.spec(copies=4, limits=limits)
    for place, (_, _, local) in PLACES.items():
        folder = tmp_path_factory.mktemp(place)
        extra = {
            hanging.PLACE: place,
            "LOCAL_WORLD_SIZE": str(local),
            "RUNBOOK_JOB_FOLDER": str(folder / "job"),
        }
        jobs[place] = zygote.start(folder, content, patch="training.hanging:main", extra=extra)
    patch = "training.hanging:stuck_thread"
    for name, layout, extra in (
        ("training", {"copies": 2}, {"RUNBOOK_FAULTS": "hang:rank=0,step=4"}),
        ("reading", {"copies": 2}, {hanging.PLACE: "1"}),
        ("sending", {"tensor": 2, "tuning": {"broadcast_batches": True}}, {hanging.PLACE: "0"}),
    ):
        folder = tmp_path_factory.mktemp(name)
        specs.write_corpus(folder / "data" / "corpus_text_document")
        extra |= {"LOCAL_WORLD_SIZE": "2", "RUNBOOK_JOB_FOLDER": str(folder / "job")}
        content = specs.spec(**layout, limits=limits)
        jobs[name] = zygote.start(
            folder, content, patch="" if name == "training" else patch, extra=extra
        )
    return jobs


def described(name, number):
    """Return the text about a collective of all ranks."""
    return TrainingMessage.COLLECTIVE.fill(name=name, number=number, group=0, purpose="default_pg")


@pytest.mark.parametrize("place", PLACES)
def test_the_hung_rank_is_named_and_ended(jobs, place):
    job, (activity, function, _) = jobs[place], PLACES[place]
    assert job.ranks[hanging.HUNG_RANK].wait() in (-9, 70)
    [hang] = [json.loads(line) for line in (job.folder / "events.jsonl").read_text().splitlines()]
    assert (hang["event"], hang["rank"], hang["activity"], hang["step"]) == (
        "hang",
        hanging.HUNG_RANK,
        activity,
        4,
    )
    stacks = (job.folder / "job" / "ranks" / f"{hanging.HUNG_RANK}.stack").read_text()
    assert hang["stacks"].endswith("2.stack") and f"in {function}" in stacks
    newest_done = described("gloo:all_reduce", 4 if place == "save" else 3)
    in_none = TrainingMessage.IN_NO_COLLECTIVE.fill()
    after_newest = TrainingMessage.AFTER_COLLECTIVE.fill(collective=newest_done)
    assert hang["collectives"]["2"] == f"{in_none}, {after_newest}"
    waits = describe_collectives(
        json.loads((job.folder / "job" / "ranks" / "0.collectives.json").read_text())["entries"]
    )
    if place == "save":
        waited_for = {"collective": containing("gloo:broadcast")}
    else:
        waited_for = {"collective": described("gloo:all_reduce", 4)}
    assert says(waits, TrainingMessage.IN_COLLECTIVE, **waited_for)
    assert hang["collectives"].get("0", waits) == waits
    assert says(
        (job.folder / "err").read_text(),
        TrainingMessage.RANK_IS_IN,
        rank=2,
        collectives=hang["collectives"]["2"],
    )
    files = {path.name for path in (job.folder / "job" / "ranks").iterdir()}
    assert files == {
        f"{hanging.HUNG_RANK}.stack",
        *(f"{rank}.collectives.json" for rank in range(4)),
    }


def test_in_a_training_a_first_rank_that_hangs_ends_itself(jobs):
    """Rank 0 hangs, and the other rank waits in a coalesced reduction in megatron-core."""
    job = jobs["training"]
    assert job.ranks[0].wait() == 70, job.err[-2000:]
    [hang] = job.events("hang")
    assert (hang["rank"], hang["activity"], hang["step"]) == (
        0,
        "step",
        4,
    ) and "faults.py" in job.err


def test_a_rank_whose_thread_is_stuck_in_the_data_is_named_and_both_places_are_shown(jobs):
    job = jobs["reading"]
    assert job.ranks[1].wait() == -9, job.err[-2000:]
    [hang] = job.events("hang")
    assert (hang["rank"], hang["activity"], hang["step"]) == (
        1,
        "step",
        4,
    ) and "_wait_for_batch" in hang["where"]
    assert "in read_for_ever" in (job.folder / "job" / "ranks" / "1.stack").read_text()
    assert [line["iteration"] for line in job.metrics] == [1, 2, 3]


def test_a_rank_that_cannot_read_what_the_others_wait_for_is_named(jobs):
    job = jobs["sending"]
    assert job.ranks[0].wait() == 70, job.err[-2000:]
    [hang] = job.events("hang")
    assert (hang["rank"], hang["activity"], hang["step"]) == (
        0,
        "step",
        4,
    ) and "_wait_for_batch" in hang["where"]
    assert [line["iteration"] for line in job.metrics] == [1, 2, 3]


def test_the_others_wait_for_the_first_rank_s_work_on_the_text_longer_than_for_a_collective(
    zygote, run
):
    job = zygote.train(
        run, specs.spec(copies=2, iterations=2), patch="training.hanging:slow_first_rank"
    )
    assert job.code == 0, job.err[-2000:]
