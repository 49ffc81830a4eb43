from __future__ import annotations

import json
import math
from array import array
from dataclasses import replace
from types import SimpleNamespace

import pytest

from runbook.params import load
from runbook.plan_file.batch import Batch
from runbook.plan_file.schema import Duration, PhasePlan
from runbook.planning import Plan, make_plan
from runbook.results.history import Event, History, RankTimes, parse_metrics

VOCABULARY = 50304


def step(iteration: int, **changes: object) -> dict[str, object]:
    record: dict[str, object] = {
        "iteration": iteration,
        "consumed_samples": 8 * iteration,
        "consumed_tokens": 1024 * iteration,
        "loss": math.log(VOCABULARY) * math.exp(-0.01 * (iteration - 1)),
        "learning_rate": 6e-4,
        "grad_norm": 1.5,
        "loss_scale": 1.0,
        "seconds": 2.0,
        "tokens_per_second": 512.0,
        "tflops_per_device": 0.25,
        "tflops_convention": "megatron-full",
        "global_batch": 8,
        "world_size": 2,
        "skipped": 0,
        "nan": 0,
        "segment": 0,
        "data_wait_seconds": 0.5,
        "memory_bytes": 10**9,
        "time": 1000.0 + 2.0 * iteration,
    }
    return record | changes


def history_of(records: list[dict[str, object]]) -> History:
    """Write step records. The time that each rank took (`rank_seconds`) goes to a separate file."""
    times = [
        RankTimes(record["iteration"], 1, record["segment"], array("d", seconds))
        for record in records
        if (seconds := record.get("rank_seconds"))
    ]
    return parse_metrics([json.dumps(record) for record in records], rank_times=times)


def saved(*iterations: int) -> list[Event]:
    return [Event("saved", iteration=n, seconds=1.0, time=1000.0 + 2.0 * n) for n in iterations]


@pytest.fixture
def make() -> SimpleNamespace:
    """Functions to build records. As a fixture, they work with every pytest import mode."""
    started = Event("started", world_size=2, segment=0, time=990.0)
    return SimpleNamespace(
        step=step, history=history_of, saved=saved, started=started, vocabulary=VOCABULARY
    )


@pytest.fixture(scope="session")
def local_plan() -> Plan:
    return make_plan(load("local"), None)


@pytest.fixture
def spec(local_plan: Plan) -> PhasePlan:
    shape = {
        "layers": 4,
        "hidden": 128,
        "heads": 4,
        "kv_heads": 4,
        "ffn_hidden": 512,
        "sequence_length": 128,
        "positions": 128,
        "vocabulary": 50257,
        "padded_vocabulary": VOCABULARY,
        "tied_embeddings": True,
        "position_embedding": "learned",
        "normalization": "layernorm",
        "activation": "gelu",
        "biases": True,
    }
    phase = local_plan.phases["03-smoke-test"]
    return replace(
        phase,
        model=replace(
            phase.model,
            shape=replace(phase.model.shape, **shape),
            name="tiny",
            parameters=7_249_000,
        ),
        parallel=replace(phase.parallel, world_size=2),
        batch=Batch(micro=2, global_=8, num_microbatches=2),
        duration=Duration(iterations=100, samples=800, tokens=102400),
    )


@pytest.fixture
def plan(local_plan: Plan, spec: PhasePlan) -> Plan:
    """Return a plan whose training phase is as short as its smoke test."""
    return replace(local_plan, phases=dict.fromkeys(("03-smoke-test", "04-training"), spec))


@pytest.fixture
def history() -> History:
    return history_of([step(n) for n in range(1, 101)])
