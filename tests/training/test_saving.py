"""Saving in the background, keeping every nth checkpoint, and reading checkpoints that somebody
else may have made.
"""

import errno
import hashlib
import importlib
import json
import os
import pickle
import shutil
import warnings
from pathlib import Path

import pytest
from suite.messages import containing, says

from runbook.training.checkpoints import folders
from runbook.training.messages import TrainingMessage

from . import specs

pytestmark = pytest.mark.training

BESIDE = {"interval": 2, "keep": 2, "asynchronous": True}


@pytest.fixture(scope="module")
def waiting(zygote, corpus, tmp_path_factory):
    """Train a run of 6 iterations that waits for its saves."""
    return trained(zygote, corpus, tmp_path_factory.mktemp("waiting"), {"interval": 2, "keep": 2})


def trained(zygote, corpus, folder, checkpoint, **options):
    (folder / "data").symlink_to(corpus)
    job = zygote.train(folder, specs.spec(copies=2, checkpoint=checkpoint), **options)
    assert job.code == 0, job.err
    return job


def weights(folder, iteration):
    """Return checksums for the shards, which contain all the numbers in a checkpoint."""
    files = json.loads(
        (folder / "checkpoints" / f"iter_{iteration:07d}" / "metadata.json").read_text()
    )["files"]
    return {name: digest for name, digest in files.items() if name.endswith(".distcp")}


def test_a_save_beside_the_training_holds_the_very_state_of_its_step(
    waiting, zygote, corpus, tmp_path
):
    beside = trained(zygote, corpus, tmp_path, BESIDE, patch="training.killing:slow_writer")
    assert [line["loss"] for line in beside.metrics] == [line["loss"] for line in waiting.metrics]
    for iteration in (4, 6):
        assert weights(tmp_path, iteration) == weights(waiting.folder, iteration)
    events = beside.events("saved")
    assert [event["iteration"] for event in events] == [2, 4, 6]
    assert all(0 < event["stall_seconds"] <= event["seconds"] for event in events)
    assert beside.metrics[2]["time"] < events[0]["time"], (
        "the third step was done before the save of the second ended"
    )
    assert waiting.metrics[2]["time"] > waiting.events("saved")[0]["time"]
    assert beside.err == ""


def test_a_kill_while_it_is_written_leaves_the_one_before(waiting, zygote, corpus, tmp_path):
    (tmp_path / "data").symlink_to(corpus)
    killed = zygote.train(
        tmp_path, specs.spec(copies=2, checkpoint=BESIDE), patch="training.killing:between_shards"
    )
    assert 0 not in killed.codes
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert "iter_0000002" in names and "iter_0000004" not in names and "iter_0000004.part" in names
    again = zygote.train(tmp_path, specs.spec(copies=2, checkpoint=BESIDE))
    assert again.code == 0, again.err
    assert again.metrics[-1]["loss"] == waiting.metrics[-1]["loss"]


def test_a_full_disk_beside_the_training_ends_it_with_the_reason(zygote, run):
    content = specs.spec(copies=2, iterations=60, checkpoint=BESIDE)
    job = zygote.train(run, content, patch="training.killing:no_room")
    assert job.code == 1
    assert says(
        job.err,
        TrainingMessage.CHECKPOINT_NOT_WRITTEN,
        checkpoint=run / "checkpoints" / "iter_0000002",
    )
    assert [path.name for path in (run / "checkpoints").iterdir()] == []


class Evil:
    """A pickle that creates a folder on the machine of whoever reads it."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def reseal(folder):
    """Write matching checksums for a changed checkpoint, as its maker could."""
    path = folder / folders.METADATA
    metadata = json.loads(path.read_text())
    del metadata["seal"]
    metadata["files"] = {name: folders.sha256(folder / name) for name in metadata["files"]}
    path.write_text(json.dumps({**metadata, "seal": folders._seal(metadata)}))


@pytest.mark.parametrize("file", [".metadata", "common.pt"])
def test_a_checkpoint_that_would_run_code_is_refused(file, waiting, zygote, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(waiting.folder, folder, symlinks=True)
    checkpoint = folder / "checkpoints" / "iter_0000006"
    (checkpoint / "torch_dist" / file).write_bytes(pickle.dumps(Evil(tmp_path / "owned")))
    reseal(checkpoint)
    job = zygote.train(
        folder, specs.spec(copies=2, iterations=8, checkpoint={"resume_changed": True})
    )
    assert job.code in (1, 2) and not (tmp_path / "owned").exists()
    if file == ".metadata":
        is_named = says(job.err, TrainingMessage.METADATA_RUNS_CODE, module="posix", name="mkdir")
    else:
        is_named = says(job.err, TrainingMessage.MORE_THAN_DATA, path=containing("common.pt"))
    assert job.code == 2 and is_named and "Traceback" not in job.err


def test_an_object_among_the_shards_that_would_run_code_is_refused(zygote, corpus, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    extra = {"EVIL": str(tmp_path / "owned")}
    trained(zygote, corpus, folder, {}, extra=extra, patch="training.poison:random_state")
    job = zygote.train(
        folder, specs.spec(copies=2, iterations=8, checkpoint={"resume_changed": True})
    )
    assert job.code in (1, 2)
    assert says(job.err, TrainingMessage.ENTRY_MORE_THAN_DATA, key=containing("random"))
    assert not (tmp_path / "owned").exists()


def tell_what_is_read_for_sums():
    """Record the name of every file that is read for its checksum."""
    from runbook.training.checkpoints import folders

    whole = folders.sha256

    def told(path):
        with Path("read_for_sums").open("a") as stream:
            stream.write(f"{path.name}\n")
        return whole(path)

    folders.sha256 = told


def test_shards_are_summed_up_while_they_are_written(zygote, run):
    job = zygote.train(
        run,
        specs.spec(copies=2, iterations=2),
        patch="training.test_saving:tell_what_is_read_for_sums",
    )
    assert job.code == 0, job.err
    read = set((run / "read_for_sums").read_text().split())
    assert read and not any(name.endswith(".distcp") for name in read)
    (folder,) = (run / "checkpoints").glob("iter_*")
    sums = json.loads((folder / "metadata.json").read_text())["files"]
    shards = {name for name in sums if name.endswith(".distcp")}
    assert len(shards) == 2
    assert all(
        hashlib.sha256((folder / name).read_bytes()).hexdigest() == sums[name] for name in shards
    )


def save_as_on_a_gpu():
    """Copy the state to memory that is kept, as on a GPU, and let each rank write four files."""
    torch_dist = importlib.import_module("runbook.training.checkpoints.torch_dist")
    state = importlib.import_module("runbook.training.checkpoints.state")
    torch_dist.on_gpu = state.on_gpu = lambda: True
    torch_dist.FILE_BYTES = 2**16
    copies = importlib.import_module("runbook.training.host_copies")
    copies.SLAB_BYTES = 2**18
    engine = importlib.import_module("runbook.training.engines.engine")
    engine.make_host_copies = lambda: copies.PinnedCopies(lambda *_: True, lambda _: None)
    torch = importlib.import_module("torch")
    torch.Tensor.is_pinned = lambda tensor, *_: tensor.device.type == "cpu"


def no_room_for_the_third():
    """Make the disk full when the third thread of rank 1 writes."""
    save_as_on_a_gpu()
    writer = importlib.import_module("runbook.training.checkpoints.torch_dist").ShardWriter
    write = writer._write_file

    def without_room(self, part):
        if part[0] == 2 and os.environ["RANK"] == "1":
            raise OSError(28, "No space left on device")
        return write(self, part)

    writer._write_file = without_room


def described_tensors(folder):
    """Return how a checkpoint describes its tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns when it is imported
        content = pickle.loads((folder / "torch_dist" / ".metadata").read_bytes())
    described = content.state_dict_metadata.values()
    tensors = [tensor for tensor in described if hasattr(tensor, "properties")]
    assert tensors
    return tensors


def test_a_training_resumes_from_what_was_copied_to_kept_memory_and_written_by_threads(
    waiting, zygote, corpus, tmp_path
):
    job = trained(zygote, corpus, tmp_path, BESIDE, patch="training.test_saving:save_as_on_a_gpu")
    for iteration in (4, 6):
        sums = weights(tmp_path, iteration)
        assert len(sums) == 8
        folder = tmp_path / "checkpoints" / f"iter_{iteration:07d}"
        assert all(
            hashlib.sha256((folder / name).read_bytes()).hexdigest() == sums[name] for name in sums
        )
    # megatron-core loads into tensors with these properties, which may not be on the host.
    assert not any(tensor.properties.pin_memory for tensor in described_tensors(folder))
    shutil.rmtree(folder)
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("4\n")
    again = zygote.train(tmp_path, specs.spec(copies=2, checkpoint=BESIDE))
    assert again.code == 0 and job.err == again.err == ""
    assert [line["loss"] for line in again.metrics[6:]] == [
        line["loss"] for line in waiting.metrics[4:]
    ]


def test_a_full_disk_in_one_of_several_threads_ends_the_save(zygote, run):
    content = specs.spec(copies=2, iterations=60, checkpoint=BESIDE)
    job = zygote.train(run, content, patch="training.test_saving:no_room_for_the_third")
    assert job.code == 1
    assert says(
        job.err,
        TrainingMessage.CHECKPOINT_NOT_WRITTEN,
        error=containing(os.strerror(errno.ENOSPC)),
    )
    assert [path.name for path in (run / "checkpoints").iterdir()] == []
