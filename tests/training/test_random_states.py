"""A checkpoint restores the random states in the megatron-core tracker, even if CUDA graphs advance
them.
"""

import io

import pytest

torch = pytest.importorskip("torch")
random = pytest.importorskip("megatron.core.tensor_parallel.random")

from runbook.training.checkpoints import state  # noqa: E402


class Device:
    """A GPU's default generator, which megatron-core replaces while it forks its random states."""

    def __init__(self):
        self.generator = torch.Generator()

    def get_state(self, device="cuda", clone=False, graph_safe=False):
        if not graph_safe:
            return self.generator.get_state()
        return self.generator.clone_state() if clone else self.generator

    def set_state(self, new, device=-1, graph_safe=False):
        if graph_safe:
            self.generator = new
        else:
            self.generator.set_state(new)


@pytest.fixture
def tracker(monkeypatch, request):
    """Return megatron-core's own tracker with a generator on the host."""
    device = Device()
    monkeypatch.setattr(random, "_get_cuda_rng_state", device.get_state)
    monkeypatch.setattr(random, "_set_cuda_rng_state", device.set_state)
    monkeypatch.setattr(torch.cuda, "get_rng_state", device.get_state)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: device.generator.manual_seed(seed))
    # PyTorch for CPUs lacks it, and the tracker checks for it.
    monkeypatch.setattr(torch.cuda.CUDAGraph, "register_generator_state", None, raising=False)
    tracker = random.CudaRNGStatesTracker(use_cudagraphable_rng=request.param)
    tracker.device = device
    tracker.add("model-parallel-rng", 5)
    tracker.add("data-parallel-rng", 6)
    monkeypatch.setattr(state, "get_cuda_rng_tracker", lambda: tracker)
    return tracker


def drawn(tracker, name="model-parallel-rng"):
    with tracker.fork(name):
        return torch.rand(3, generator=tracker.device.generator).tolist()


def through_a_file(content):
    """Return an object as a checkpoint restores it, which accepts only data."""
    file = io.BytesIO()
    torch.save([content], file)
    file.seek(0)
    (loaded,) = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("tracker", [False, True], indirect=True, ids=["states", "generators"])
def test_the_numbers_after_a_resume_are_those_after_the_save(tracker):
    drawn(tracker)
    saved = through_a_file(state.tracker_states())
    expected = [drawn(tracker), drawn(tracker, "data-parallel-rng"), drawn(tracker)]
    generators = tracker.get_states()
    state.restore_tracker_states(saved)
    assert [drawn(tracker), drawn(tracker, "data-parallel-rng"), drawn(tracker)] == expected
    if (
        tracker.use_cudagraphable_rng
    ):  # a captured graph draws from the objects that it was captured with
        assert all(tracker.get_states()[name] is generators[name] for name in generators)


@pytest.mark.parametrize("tracker", [True], indirect=True)
def test_a_saved_state_does_not_change_with_the_training(tracker):
    saved = state.tracker_states()
    before = {name: tensor.clone() for name, tensor in saved.items()}
    drawn(tracker)
    assert all(torch.equal(saved[name], before[name]) for name in saved)
