"""Kernels that could not be compiled are reported, because a slower step must not look like a
planned one.
"""

import pytest

torch = pytest.importorskip("torch")

from runbook.plan_file.schema import read_plan  # noqa: E402
from runbook.training.kernels import compile_faults  # noqa: E402

from . import specs  # noqa: E402


def failing_backend(graph, inputs):
    raise RuntimeError("no C compiler here")


def test_a_function_that_torch_cannot_compile_is_named_once_with_the_error(monkeypatch):
    from torch import _dynamo

    monkeypatch.setattr(_dynamo.config, "suppress_errors", True)
    collector = compile_faults.watch_compiler()

    @torch.compile(backend=failing_backend)
    def add_one(values):
        return values + 1

    assert add_one(torch.ones(2)).tolist() == [2.0, 2.0]
    assert add_one(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    (message,) = collector.take()
    assert "add_one" in message and message.endswith("RuntimeError: no C compiler here")
    assert collector.take() == []


@pytest.mark.parametrize(
    ("kernels", "is_gpu", "fault", "says"),
    [
        ("auto", True, "Triton is not installed", True),
        ("auto", True, "", False),
        ("plain", True, "Triton is not installed", False),
        ("auto", False, "Triton needs a GPU", False),
    ],
)
def test_auto_that_falls_back_says_so(tmp_path, monkeypatch, kernels, is_gpu, fault, says):
    monkeypatch.setattr(compile_faults, "on_gpu", lambda: is_gpu)
    monkeypatch.setattr(compile_faults, "triton_fault", lambda: fault)
    plan = specs.write_plan(tmp_path, specs.spec(tuning={"kernels": kernels}))
    reason = compile_faults.slower_kernels(read_plan(plan, "04-training"))
    assert bool(reason) is says and fault in (reason or fault)


@pytest.mark.parametrize(
    ("rank", "reason", "says"),
    [
        (0, "no compiler", True),
        (1, "no compiler", False),
        (1, "the driver is too old", True),
        (1, "", False),
    ],
)
def test_one_rank_says_what_holds_for_all(rank, reason, says):
    """If every rank reported a fault on all ranks, thousands of equal lines would hide the rest.

    A fault of a single rank is reported by that rank.
    """
    assert compile_faults.is_said_by(rank, reason, first_reason="no compiler") is says
