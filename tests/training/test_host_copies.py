"""Copies of the training state on the host, in memory that is pinned once and used by every save."""

import mmap

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from suite.messages import count_of  # noqa: E402

from runbook.training import host_copies  # noqa: E402
from runbook.training.messages import TrainingMessage  # noqa: E402


class Pins:
    """The memory that a GPU's driver was asked to pin, by address."""

    def __init__(self, works=True):
        self.works = works
        self.pinned = {}
        self.num_pins = 0

    def pin(self, address, num_bytes):
        self.num_pins += 1
        if self.works:
            self.pinned[address] = num_bytes
        return self.works

    def unpin(self, address):
        del self.pinned[address]


@pytest.fixture
def pins(monkeypatch):
    monkeypatch.setattr(host_copies, "SLAB_BYTES", 2**20)
    monkeypatch.setattr(host_copies, "FIRST_SLAB_BYTES", 2**17)
    return Pins()


STATE = [
    torch.rand(300, 700),
    torch.rand(7).bfloat16(),
    torch.rand(1000, 1000),  # larger than a slab
    torch.rand(64, 64).t(),
    torch.rand(0, 5),
    torch.tensor(2.5),
    torch.rand(400, 400),
]


def test_copies_are_equal_and_each_has_a_storage_of_its_own_size(pins):
    copies = host_copies.PinnedCopies(pins.pin, pins.unpin)
    made = [copies.copy(tensor) for tensor in STATE]
    assert all(torch.equal(*pair) for pair in zip(made, STATE, strict=True))
    assert all(copy.is_contiguous() for copy in made)
    # The torch writer clones tensors that are part of a larger storage.
    assert all(copy.untyped_storage().nbytes() == copy.nbytes for copy in made)
    assert all(copies.has(copy) for copy in made if copy.numel())
    assert not any(copies.has(tensor) for tensor in STATE)
    assert copies.has(made[0][100:200])


def test_the_next_save_pins_nothing_and_writes_over_the_last(pins):
    copies = host_copies.PinnedCopies(pins.pin, pins.unpin)
    first = [copies.copy(tensor) for tensor in STATE]
    places = [copy.data_ptr() for copy in first]
    num_pins = pins.num_pins
    copies.begin_save()
    doubled = [2 * tensor for tensor in STATE]
    second = [copies.copy(tensor) for tensor in doubled]
    assert all(torch.equal(*pair) for pair in zip(second, doubled, strict=True))
    assert [copy.data_ptr() for copy in second] == places
    assert pins.num_pins == num_pins == len(pins.pinned)
    assert sum(pins.pinned.values()) == copies.num_bytes


def test_little_memory_is_left_over(pins):
    copies = host_copies.PinnedCopies(pins.pin, pins.unpin)
    layer = [
        2048,
        262_144,
        2048,
        196_608,
        786_432,
        2048,
        524_288,
    ]  # the weights of a small layer, in bytes
    for _ in range(12):
        for num_bytes in layer:
            copies.copy(torch.empty(num_bytes, dtype=torch.uint8))
    assert copies.num_bytes < 1.2 * 12 * sum(layer)


def test_a_small_state_pins_little_and_a_large_one_in_large_pieces(pins):
    copies = host_copies.PinnedCopies(pins.pin, pins.unpin)
    copies.copy(torch.empty(1000, dtype=torch.uint8))
    assert copies.num_bytes == 2**17
    for _ in range(50):
        copies.copy(torch.empty(2**16, dtype=torch.uint8))
    assert sorted(pins.pinned.values())[:4] == [2**17, 2**17, 2**18, 2**19]
    assert max(pins.pinned.values()) == 2**20


def test_memory_is_unpinned_before_it_goes(pins):
    copies = host_copies.PinnedCopies(pins.pin, pins.unpin)
    copy = copies.copy(STATE[0])
    assert pins.pinned
    del copies
    assert not pins.pinned
    assert torch.equal(copy, STATE[0])


def test_where_nothing_can_be_pinned_copies_are_made_all_the_same(pins, capfd):
    pins.works = False
    copies = host_copies.PinnedCopies(pins.pin, pins.unpin)
    assert all(torch.equal(copies.copy(tensor), tensor) for tensor in STATE)
    output = "".join(capfd.readouterr())
    assert count_of(output, TrainingMessage.NOT_PINNED) == 1


def test_slabs_are_whole_pages(pins):
    copies = host_copies.PinnedCopies(pins.pin, pins.unpin)
    copies.copy(torch.empty(2**20 + 1, dtype=torch.uint8))
    assert all(
        address % mmap.PAGESIZE == 0 and size % mmap.PAGESIZE == 0
        for address, size in pins.pinned.items()
    )


def test_the_host_waits_for_every_gibibyte_that_is_freed_behind_queued_work(monkeypatch):
    copies = host_copies.HostCopies()
    waits = []
    monkeypatch.setattr(copies, "wait", lambda: waits.append(setattr(copies, "_under_way", 0)))
    for _ in range(40):
        copies.let_go(100 * 2**20)
    assert len(waits) == 3
