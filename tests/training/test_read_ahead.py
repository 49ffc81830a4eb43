"""Batches that a thread reads ahead: the same batches in the same order, errors at their place, and
an end without waiting.
"""

import threading
import warnings

import pytest
import torch

from runbook.plan_file.errors import TrainingError
from runbook.training.sample_order import DataParallelShare

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # megatron-core warns when it is imported
    from runbook.training.batch_reader import PIECE_TOKENS, ReadAhead
    from runbook.training.engines.engine import DATA, StepClock

COPIES = 2
COPY = 1
MICRO = 2
END = 240
STRIDE = COPIES * MICRO


class Text:
    """A dataset in which `broken` cannot be read, and reading past `gate` waits until it is opened."""

    def __init__(self, broken=-1, gate=END + 1000):
        self.broken, self.gate, self.open, self.reached = (
            broken,
            gate,
            threading.Event(),
            threading.Event(),
        )
        self.read = []
        self.error = TrainingError("this sample cannot be read")

    def __getitem__(self, index):
        if index == self.broken:
            raise self.error
        if index >= self.gate:
            self.reached.set()
            assert self.open.wait(60)
        self.read.append(index)
        return index


class Reader:
    """Reads a micro-batch like BatchReader."""

    share = DataParallelShare(MICRO, COPIES, COPY)
    device = torch.device("cpu")

    def __init__(self):
        self.clock = StepClock()

    def deliver(self, read):
        with self.clock.during(DATA):
            return read()

    def read(self, text, indices):
        return {"tokens": torch.tensor([text[index] for index in indices])}


@pytest.fixture
def ahead():
    """Return a function that creates readers, and close these readers after the test.

    Each piece has this many micro-batches.
    """
    readers = []

    def make(piece=3):
        readers.append(ReadAhead(Reader(), PIECE_TOKENS // piece, END))
        assert readers[-1].piece == piece
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


def test_a_gpu_that_the_thread_cannot_use_is_an_error_of_the_step(ahead, monkeypatch):
    """Otherwise the thread would end without a word, and the step would wait for it forever."""

    def refuse(device):
        raise RuntimeError("CUDA error: the device is lost")

    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    reader = ahead()
    reader._reader.device = torch.device("cuda")
    # The step itself would otherwise copy the batch to the GPU.
    monkeypatch.setattr(reader._reader, "deliver", lambda read: read(), raising=False)
    with pytest.raises(RuntimeError, match="the device is lost"):
        list(reader.step(None, 0, 1))


def numbers(batches):
    return [batch["tokens"].tolist() for batch in batches]


def right(first, count):
    starts = (first + number * STRIDE + COPY * MICRO for number in range(count))
    return [[start, start + 1] for start in starts]


@pytest.mark.parametrize("piece", [1, 3, 16])
def test_the_samples_are_those_of_a_reader_without_a_thread_wherever_the_training_goes(
    ahead, piece
):
    reader = ahead(piece)
    text = Text()
    other = Text()
    # A batch ramp-up, a skipped step, a rollback, another text, its end, and more steps than
    # planned.
    steps = [
        (0, 1, text),
        (4, 2, text),
        (12, 8, text),
        (76, 8, text),
        (12, 4, text),
        (28, 5, text),
        (48, 2, other),
        (END - 8, 2, text),
        (END, 3, text),
        (END + 12, 1, text),
    ]
    for first, count, dataset in steps:
        assert numbers(reader.step(dataset, first, count)) == right(first, count)


def test_the_thread_reads_while_the_step_computes_and_no_further_than_two_pieces(ahead):
    reader = ahead()
    text = Text(gate=22)
    batches = reader.step(text, 0, 8)
    assert numbers([next(batches), next(batches)]) == right(0, 2)
    assert text.reached.wait(60), "the step asks for nothing now"
    assert len(text.read) == 5 * MICRO, "all before the gate"
    text.open.set()
    assert numbers(batches) == right(8, 6)
    assert max(text.read) <= 12 * STRIDE


def test_nothing_is_read_beyond_the_end_of_the_training(ahead):
    reader = ahead()
    text = Text()
    assert numbers(reader.step(text, END - 8, 2)) == right(END - 8, 2)
    reader.close()
    reader._thread.join(60)
    assert not reader._thread.is_alive() and max(text.read) == END - 1


def test_an_error_of_the_data_comes_where_the_sample_is_needed_and_in_its_own_words(ahead):
    reader = ahead(16)
    text = Text(broken=14)
    batches = reader.step(text, 0, 8)
    assert numbers([next(batches), next(batches), next(batches)]) == right(0, 3)
    with pytest.raises(TrainingError) as caught:
        next(batches)
    assert str(caught.value) == str(text.error)
    text.broken = -1
    assert numbers(reader.step(text, 12, 3)) == right(12, 3)


def test_it_ends_while_a_read_does_not_and_waiting_for_it_counts(ahead):
    reader = ahead()
    text = Text(gate=4)
    batches = reader.step(text, 0, 2)
    next(batches)
    assert text.reached.wait(60)
    clock = reader._reader.clock
    clock.take()
    opened = threading.Timer(0.2, text.open.set)
    opened.start()
    next(batches)
    assert clock.take()[DATA] > 0.1
    text.open.clear()
    text.reached.clear()
    batches = reader.step(text, 100, 1)  # read again at another position, and stuck there
    threading.Thread(target=next, args=(batches,), daemon=True).start()
    assert text.reached.wait(60)
    reader.close()
    text.open.set()
    reader._thread.join(60)
    assert not reader._thread.is_alive()
