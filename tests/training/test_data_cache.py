"""The cached sample order is used only if it is unchanged, and training continues only in the order
that it began with.
"""

from __future__ import annotations

import hashlib
import json

import numpy
import pytest

from runbook.plan_file.sample_order_file import (
    CHECKSUMS,
    CachedFile,
    checksums_text,
    read_checksums,
)
from runbook.training.data_cache import CacheFault, CacheFolder, other_order

from . import specs


@pytest.fixture
def cache(tmp_path):
    """Create a sealed cache of two files."""
    for name in ("sample_index", "shuffle_index"):
        numpy.save(tmp_path / f"{name}.npy", numpy.arange(12))
    CacheFolder(tmp_path).seal()
    return tmp_path


def faults(folder, indexes=()):
    at_start = CacheFolder(folder)
    at_start.remove_faulty(indexes)
    return at_start.faults


def test_an_unchanged_cache_is_kept(cache):
    assert faults(cache) == {}
    assert set(read_checksums(cache)) == {"sample_index.npy", "shuffle_index.npy"}


def test_a_changed_order_is_removed(cache):
    """Remove a changed file although it has the same size and numpy can read it."""
    numpy.save(cache / "shuffle_index.npy", numpy.arange(12)[::-1].copy())
    assert faults(cache) == {"shuffle_index.npy": CacheFault.CHANGED}
    assert not (cache / "shuffle_index.npy").exists()
    assert (cache / "sample_index.npy").exists()


def test_a_file_without_a_checksum_is_not_trusted(cache):
    (cache / CHECKSUMS).unlink()
    assert set(faults(cache).values()) == {CacheFault.NO_CHECKSUM}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"files": 7}', '{"files": {"a": {}}}', "[" * 9999]
)
def test_a_damaged_list_of_checksums_means_that_all_is_built_again(text, cache):
    (cache / CHECKSUMS).write_text(text)
    assert set(faults(cache).values()) == {CacheFault.NO_CHECKSUM}


def test_what_is_built_again_has_its_new_checksum(cache):
    """An order that is rebuilt for a different text has different contents."""
    at_start = CacheFolder(cache)
    numpy.save(cache / "sample_index.npy", numpy.zeros(12, int))
    at_start.remove_faulty([])
    numpy.save(cache / "sample_index.npy", numpy.arange(24))
    sums = at_start.seal()
    content = (cache / "sample_index.npy").read_bytes()
    assert sums["sample_index.npy"] == hashlib.sha256(content).hexdigest()
    assert faults(cache) == {}


def test_only_files_of_the_same_name_are_compared_with_a_checkpoint():
    assert other_order({"a": "1", "b": "2"}, {"a": "1", "c": "3"}) == []
    assert other_order({"a": "1", "b": "2"}, {"a": "1", "b": "3"}) == ["b"]
    assert other_order({}, {"a": "1"}) == []


def forge(cache_folder):
    """Make every training sample the first one, and reverse the order of the samples."""
    for path in cache_folder.glob("*-train-sample_index.npy"):
        index = numpy.load(path)
        index[:] = index[:1]
        numpy.save(path, index)
    for path in cache_folder.glob("*-train-shuffle_index.npy"):
        numpy.save(path, numpy.load(path)[::-1].copy())


def cover_up(cache_folder):
    """Write checksums that match the forged files."""
    names = read_checksums(cache_folder)
    files = {
        name: CachedFile(
            (cache_folder / name).stat().st_size,
            hashlib.sha256((cache_folder / name).read_bytes()).hexdigest(),
        )
        for name in names
    }
    (cache_folder / CHECKSUMS).write_text(checksums_text(files))


@pytest.mark.training
def test_a_training_goes_on_in_the_order_it_began_with(zygote, run):
    cache_folder = run / "data" / "cache"
    whole = specs.spec(copies=2, checkpoint={"folder": "whole"})
    assert zygote.train(run, whole).code == 0
    expected = [line["loss"] for line in specs.metrics(run)]

    forge(cache_folder)
    content = specs.spec(copies=2, limits={"exit_interval": 3})
    assert zygote.train(run, content).code == 75
    events = specs.metrics(run, "events.jsonl")
    (rebuilt,) = [event for event in events if event["event"] == "data_cache_rebuilt"]
    assert len(rebuilt["files"]) == 2
    metadata = json.loads((run / "checkpoints/iter_0000003/metadata.json").read_text())
    assert metadata["data_cache"] == {
        name: file.sha256 for name, file in read_checksums(cache_folder).items()
    }

    forge(cache_folder)
    cover_up(cache_folder)
    refused = zygote.train(run, specs.spec(copies=2))
    assert refused.code == 2
    assert "shuffle_index.npy" in refused.err

    for path in cache_folder.iterdir():
        path.unlink()
    assert zygote.train(run, specs.spec(copies=2)).code == 0
    losses = [line["loss"] for line in specs.metrics(run)]
    assert losses == [*expected, *expected]
