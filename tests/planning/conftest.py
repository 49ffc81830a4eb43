"""Settings built from the schema itself, without files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runbook.core.errors import PlanError, raise_if_failed
from runbook.params import Settings
from runbook.params.schema.entries import Dataset, Model
from runbook.params.schema.run_file import Run
from runbook.params.schema.site import Hardware, Site
from runbook.planning import Check, Machine, make_plan

TWO_CORES = Machine(cores=2, flags=frozenset({"avx512f", "avx512_bf16"}), memory_bytes=24 * 2**30)

MODELS = {
    "tiny": Model(label="tiny", layers=4, hidden=128, heads=4, sequence_length=128, source="test"),
    "375m": Model(
        label="375M",
        layers=12,
        hidden=512,
        heads=8,
        sequence_length=1024,
        positions=2048,
        source="Azure smoke model",
    ),
    "13b": Model(label="13B", layers=40, hidden=5120, heads=40, positions=2048, source="LUMI"),
    "175b": Model(label="175B", layers=96, hidden=12288, heads=96, positions=2048, source="Azure"),
}

CORPUS = Dataset(
    title="Some text",
    kind="corpus",
    licence="free",
    source="test",
    documents=100,
    tokens=500_000,
    text_bytes=2_000_000,
)


def hardware(device: str = "cpu", **values: Any) -> Hardware:
    known: dict[str, Any] = {
        "cpu": {"devices_per_node": 2},
        "H100-SXM": {
            "devices_per_node": 8,
            "device_memory": 80 * 2**30,
            "peak_tflops": {"bf16": 989.4, "fp16": 989.4},
        },
        "MI250X-GCD": {
            "devices_per_node": 8,
            "device_memory": 64 * 2**30,
            "peak_tflops": {"fp16": 191.5},
        },
    }[device]
    return Hardware(device=device, **{**known, **values})


def build(
    sections: dict[str, Any] | None = None,
    *,
    model: str | Model = "tiny",
    smoke: str | Model = "375m",
    device: str = "cpu",
    dataset: Dataset = CORPUS,
    site: dict[str, Any] | None = None,
    variant: str = "",
) -> Settings:
    """Return the settings of a small local run, overridden by the given sections."""
    values: dict[str, Any] = {
        "run": "local",
        "model": model if isinstance(model, str) else "other",
        "training": {
            "iterations": 100,
            "global_batch": 8,
            "micro_batch": 2,
            "warmup_iterations": 3,
        },
    }
    for section, content in (sections or {}).items():
        values[section] = {**values.get(section, {}), **content}
    site_values = {
        "site": "here",
        "title": "Test",
        "scheduler": "local",
        "hardware": hardware(device),
        **(site or {}),
    }
    return Settings(
        run=Run.model_validate(values),
        site=Site.model_validate(site_values),
        model=MODELS[model] if isinstance(model, str) else model,
        smoke_model=MODELS[smoke] if isinstance(smoke, str) else smoke,
        smoke_model_name=smoke if isinstance(smoke, str) else "other",
        dataset=dataset,
        origins={},
        project=Path(),
        variant=variant,
    )


@pytest.fixture
def settings() -> Callable[..., Settings]:
    return build


@pytest.fixture
def refusal() -> Callable[..., str]:
    """Return a function that returns the text of the error that refuses a plan. The test fails if
    the plan is accepted."""

    def refused(*args: Any, machine: Machine | None = TWO_CORES, **keywords: Any) -> str:
        with pytest.raises(PlanError) as caught:
            make_plan(build(*args, **keywords), machine)
        return str(caught.value)

    return refused


@pytest.fixture
def broken() -> Callable[..., tuple[Check, ...]]:
    """Return a function that returns the checks of the error that refuses a plan. The test fails if
    the plan is accepted."""

    def failed(
        *args: Any, machine: Machine | None = TWO_CORES, **keywords: Any
    ) -> tuple[Check, ...]:
        with pytest.raises(PlanError) as caught:
            make_plan(build(*args, **keywords), machine)
        return caught.value.checks

    return failed


@pytest.fixture
def verdicts() -> Callable[..., dict[str, Check]]:
    """Return a function that returns every check of an accepted plan, by name."""

    def checked(
        *args: Any, machine: Machine | None = TWO_CORES, **keywords: Any
    ) -> dict[str, Check]:
        plan = make_plan(build(*args, **keywords), machine)
        raise_if_failed(plan.checks)
        return {check.name: check for check in plan.checks}

    return checked


@pytest.fixture
def run_python() -> Callable[[str], str]:
    """Return a function that runs code in a fresh interpreter, and returns the standard output."""

    def run(code: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout

    return run
