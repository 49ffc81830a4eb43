"""A killed run continues from copies in node memory, bit for bit. A damaged copy is reported and
skipped.
"""

import shutil
import signal

import pytest

from runbook.plan_file.resume_sources import near_partner
from runbook.plan_file.schema import read_plan
from runbook.training.near.places import training_name

from . import specs
from .near_faults import KILLED_AFTER

pytestmark = pytest.mark.training

ITERATIONS = 7
SHARED = 3
"""The iteration of the checkpoint on the shared file system."""


def content(memory, **options):
    """Return the plan of two ranks that count as being on separate nodes."""
    saving = {"interval": SHARED, "near_interval": 1, "near_folder": f"{memory}/node-$RANK"}
    return specs.spec(**{"copies": 2, "iterations": ITERATIONS, "checkpoint": saving, **options})


def files(folder, node):
    """Return the complete copies on a node, by iteration and rank."""
    copies = {}
    for path in folder.glob(f"memory/node-{node}/runbook-near-*/*/iter_*.rank_?????"):
        iteration, rank = path.name.removeprefix("iter_").split(".rank_")
        copies[int(iteration), int(rank)] = path
    return copies


def losses(metrics):
    return {line["iteration"]: (line["loss"], line["grad_norm"]) for line in metrics}


def kill_and_copy(zygote, folder, corpus, **options):
    """Train until the copies of a step are complete on both nodes, and kill all ranks."""
    (folder / "data").symlink_to(corpus)
    plan = content(folder / "memory", **options)
    job = zygote.start(folder, plan, patch="training.near_faults:die_after_copies").wait()
    assert job.codes == [-signal.SIGKILL] * 2, job.err
    for node in (0, 1):
        assert set(files(folder, node)) == {(step, rank) for step in (4, 5) for rank in (0, 1)}
    return folder


@pytest.fixture(scope="module")
def killed(zygote, corpus, tmp_path_factory):
    return kill_and_copy(zygote, tmp_path_factory.mktemp("killed"), corpus)


@pytest.fixture(scope="module")
def undisturbed(zygote, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "data").symlink_to(corpus)
    job = zygote.train(folder, content(folder / "memory"))
    assert job.code == 0, job.err
    assert not files(folder, 0) and not files(folder, 1)
    return losses(job.metrics)


def copy_of(killed, folder):
    """Return a copy of a killed run with its nodes' memory.

    The copies in node memory are renamed, because their names depend on the path to the run.
    """
    shutil.copytree(killed, folder, symlinks=True)
    plan = content(folder / "memory")
    name = training_name(read_plan(specs.write_plan(folder, plan), "04-training"))
    for path in folder.glob("memory/node-?/runbook-near-*/*"):
        path.rename(path.with_name(name))
    return folder


def flip_bit(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def go_on(zygote, folder, undisturbed, **options):
    """Train to the end, and return the event about the resume."""
    job = zygote.train(folder, content(folder / "memory", **options))
    assert job.code == 0, job.err
    assert losses(job.metrics) == undisturbed
    assert not files(folder, 0) and not files(folder, 1)
    return job.events("resumed")[-1]


def test_a_start_takes_the_newest_copies_of_its_own_nodes(zygote, killed, tmp_path, undisturbed):
    resumed = go_on(zygote, copy_of(killed, tmp_path / "again"), undisturbed)
    assert (resumed["iteration"], resumed["source"]) == (KILLED_AFTER, "near own")


def test_a_rank_whose_node_is_lost_gets_its_state_from_the_partner(
    zygote, killed, tmp_path, undisturbed
):
    folder = copy_of(killed, tmp_path / "again")
    shutil.rmtree(folder / "memory" / "node-0")
    resumed = go_on(zygote, folder, undisturbed)
    assert (resumed["iteration"], resumed["source"]) == (KILLED_AFTER, near_partner([0]))


def test_damaged_copies_are_named_and_older_ones_taken(zygote, killed, tmp_path, undisturbed):
    folder = copy_of(killed, tmp_path / "again")
    damaged = [files(folder, 1)[5, 1], files(folder, 0)[5, 1]]
    flip_bit(damaged[0], -100)
    flip_bit(damaged[1], 3000)
    files(folder, 1)[4, 1].write_bytes(b"cut off")
    resumed = go_on(zygote, folder, undisturbed)
    assert (resumed["iteration"], resumed["source"]) == (4, near_partner([1]))
    named = [
        event["message"]
        for event in specs.metrics(folder, "events.jsonl")
        if event["event"] == "near_broken"
    ]
    for path in (*damaged, files(folder, 1).get((4, 1), damaged[0])):
        assert sum(str(path) in message for message in named) == 1


@pytest.mark.rotate(5)
@pytest.mark.parametrize(
    "options",
    [
        {"copies": 1, "tensor": 2, "precision": "bf16", "model": {"dropout": 0.1}},
        {"copies": 1, "pipeline": 2, "virtual_pipeline": 2},
        {"precision": "bf16", "tuning": {"overlap_gradients": True, "overlap_weights": True}},
        {"engine": "deepspeed", "zero_stage": 3},
        {"engine": "deepspeed", "zero_stage": 1, "precision": "bf16"},
    ],
    ids=["tp2 dropout", "pp2 interleaved", "overlapping bf16", "deepspeed 3", "deepspeed 1"],
)
def test_each_layout_goes_on_bit_for_bit(options, zygote, corpus, tmp_path):
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders:
        folder.mkdir()
    whole, killed = folders
    (whole / "data").symlink_to(corpus)
    job = zygote.train(whole, content(whole / "memory", **options))
    assert job.code == 0, job.err
    kill_and_copy(zygote, killed, corpus, **options)
    shutil.rmtree(killed / "memory" / "node-1")
    resumed = go_on(zygote, killed, losses(job.metrics), **options)
    assert (resumed["iteration"], resumed["source"]) == (KILLED_AFTER, near_partner([1]))


def test_without_a_good_copy_the_shared_checkpoint_is_taken(zygote, killed, tmp_path, undisturbed):
    folder = copy_of(killed, tmp_path / "again")
    for node in (0, 1):
        for path in files(folder, node).values():
            flip_bit(path, -1)
    resumed = go_on(zygote, folder, undisturbed)
    assert (resumed["iteration"], resumed["source"]) == (SHARED, "shared")


def test_a_node_without_room_trains_on_without_copies(zygote, run):
    plan = content(run / "memory", iterations=2)
    job = zygote.train(run, plan, patch="training.near_faults:full_memory")
    assert job.code == 0, job.err
    (off,) = job.events("near_off")
    assert "copies need" in off["message"] and off["message"] in job.out
    assert not job.events("near_saved")
