"""The whole plan: as one dictionary, computed without side effects, and with paths that never
collide.
"""

from __future__ import annotations

import builtins
import doctest
import importlib
import json
import pkgutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import runbook.planning
from runbook import params
from runbook.core.checks import VERDICTS, counted
from runbook.core.messages import CoreMessage
from runbook.plan_file.identity import fingerprint
from runbook.plan_file.schema import parse
from runbook.planning import Check, Plan, make_plan
from runbook.planning.make_plan import parse_plan
from runbook.planning.messages import PlanningMessage

from .conftest import TWO_CORES, build

GOLDEN = Path(__file__).parent / "local_plan.json"

SPEC_KEYS = {
    "": {
        "phase",
        "engine",
        "seed",
        "device",
        "model",
        "parallel",
        "batch",
        "duration",
        "learning_rate",
        "optimizer",
        "precision",
        "recompute",
        "data",
        "evaluation",
        "checkpoint",
        "log",
        "limits",
        "sampling",
        "fingerprint",
    },
    "model": {
        "name",
        "label",
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "ffn_hidden",
        "sequence_length",
        "positions",
        "vocabulary",
        "padded_vocabulary",
        "tied_embeddings",
        "position_embedding",
        "normalization",
        "activation",
        "biases",
        "init_std",
        "dropout",
        "parameters",
    },
    "parallel": {
        "tensor",
        "pipeline",
        "virtual_pipeline",
        "context",
        "sequence",
        "data",
        "world_size",
        "zero_stage",
    },
    "batch": {"micro", "global", "num_microbatches"},
    "duration": {"iterations", "samples", "tokens"},
    "learning_rate": {"peak", "minimum", "schedule", "warmup_samples", "decay_samples"},
    "optimizer": {"beta1", "beta2", "epsilon", "weight_decay", "clip_gradient"},
    "precision": {"format", "initial_loss_scale", "loss_scale_window"},
    "data": {"mock", "train", "validation", "test", "split", "cache"},
    "evaluation": {"interval", "iterations"},
    "checkpoint": {"folder", "interval", "keep"},
    "log": {"interval", "metrics", "validation", "samples", "events", "tensorboard"},
    "limits": {"exit_duration_seconds", "process_group_timeout_seconds"},
    "sampling": {"prompt", "prompt_ids", "tokens", "end_of_document"},
}


def local() -> Plan:
    sections = {
        "training": {
            "eval_interval": 50,
            "eval_iterations": 4,
            "save_interval": 50,
            "rehearse_stop": 60,
            "sample_prompt": "The first time",
            "exit_duration": "00:50:00",
        }
    }
    return make_plan(build(sections), TWO_CORES)


def specs(
    sections: dict[str, Any] | None = None, **others: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    phases = make_plan(build(sections, **others), TWO_CORES).as_dict()["phases"]
    return phases["03-smoke-test"], phases["04-training"]


def test_a_local_run_gives_this_plan() -> None:
    """Compare the whole plan.

    After an intended change, write the new text to local_plan.json and read its diff.
    """
    text = json.dumps(local().as_dict(), indent=1) + "\n"
    assert json.loads(text) == json.loads(GOLDEN.read_text()), text


@pytest.mark.parametrize("section", SPEC_KEYS)
def test_every_key_the_trainer_reads_is_there_and_no_other(section: str) -> None:
    for spec in specs():
        assert set(spec[section] if section else spec) == SPEC_KEYS[section]


def test_the_trainer_accepts_the_spec() -> None:
    """Read the plan with the trainer's own reader, which decides whether it is valid."""
    for spec in specs():
        assert parse(json.loads(json.dumps(spec))).fingerprint == spec["fingerprint"]


def test_specs_differ_where_the_phases_do() -> None:
    smoke, full = specs(
        {"training": {"exit_duration": "00:50:00", "sample_prompt": "The", "save_interval": 7}}
    )
    assert (smoke["limits"]["exit_duration_seconds"], full["limits"]["exit_duration_seconds"]) == (
        0,
        3000,
    )
    assert (smoke["sampling"]["prompt"], full["sampling"]["prompt"]) == ("", "The")
    assert (smoke["checkpoint"]["interval"], full["checkpoint"]["interval"]) == (0, 7)
    assert smoke["evaluation"] == {"interval": 12, "iterations": 1}
    assert full["evaluation"] == {"interval": 1000, "iterations": 10}
    quiet, _ = specs({"training": {"eval_interval": 0}})
    assert quiet["evaluation"] == {"interval": 0, "iterations": 0}


OWN_LOGS = ("metrics", "validation", "samples", "tensorboard")
"""Not events.jsonl, which is shared: each line names its phase."""


def test_smoke_and_full_training_share_no_place() -> None:
    for others in (
        {},
        {"site": {"paths": dict.fromkeys(("data", "checkpoints", "tensorboard"), "/scratch")}},
    ):
        smoke, full = specs(**others)
        for section, key in (
            ("checkpoint", "folder"),
            ("data", "cache"),
            *(("log", name) for name in OWN_LOGS),
        ):
            small, large = (PurePosixPath(spec[section][key]) for spec in (smoke, full))
            assert not small.is_relative_to(large) and not large.is_relative_to(small), (
                section,
                key,
            )
    assert full["checkpoint"]["folder"] == "/scratch/local/checkpoints"
    assert smoke["checkpoint"]["folder"] == "/scratch/local/smoke-checkpoints"
    assert full["data"]["cache"] == "/scratch/local/cache"


def test_runs_on_one_site_do_not_share_checkpoints() -> None:
    paths = {"site": {"paths": {"checkpoints": "/scratch"}}}
    folders = {specs(variant=variant, **paths)[1]["checkpoint"]["folder"] for variant in ("", "2n")}
    assert folders == {"/scratch/local/checkpoints", "/scratch/local--2n/checkpoints"}


CHANGES_LOSSES: list[dict[str, Any]] = [
    {"training": {"seed": 1}},
    {"training": {"learning_rate": 1e-3}},
    {"training": {"iterations": 101}},
    {"training": {"global_batch": 16}},
    {"training": {"precision": "fp32"}},
    {"training": {"dropout": 0.1}},
    {"training": {"init_std": 0.01}},
    {"training": {"adam_beta2": 0.99}},
    {"training": {"sequence_length": 64}},
    {"data": {"split": "9,1,0"}},
    {"data": {"dataset": "other"}},
]
CHANGES_NO_LOSS: list[dict[str, Any]] = [
    {"training": {"save_interval": 5, "keep_checkpoints": 9}},
    {"training": {"eval_interval": 5, "log_interval": 5}},
    {"training": {"sample_prompt": "The", "sample_tokens": 5}},
    {"training": {"micro_batch": 1}},
    {"training": {"recompute": "full"}},
    {"parallel": {"tensor": 2, "zero_stage": 0}, "jobs": {"training": {"nodes": 2}}},
]


@pytest.mark.parametrize("sections", CHANGES_LOSSES, ids=str)
def test_fingerprint_changes_with_what_changes_the_losses(sections: dict[str, Any]) -> None:
    assert specs(sections)[1]["fingerprint"] != specs()[1]["fingerprint"]


@pytest.mark.parametrize("sections", CHANGES_NO_LOSS, ids=str)
def test_fingerprint_stays_where_the_losses_do(sections: dict[str, Any]) -> None:
    changed = specs(sections)[1]
    before = specs()[1]
    changed["model"]["padded_vocabulary"] = before["model"]["padded_vocabulary"]
    assert fingerprint(parse(changed)) == before["fingerprint"]


def test_fingerprint_names_data_by_file_and_not_by_place() -> None:
    moved = specs(site={"paths": {"data": "/scratch"}})[1]
    assert moved["fingerprint"] == specs()[1]["fingerprint"]


def test_a_plan_is_pure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the same values always give the same plan, and that planning opens no file."""
    settings = build()

    def refuse(*args: Any, **keywords: Any) -> None:
        raise AssertionError(f"a plan opened {args}")

    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    assert make_plan(settings, TWO_CORES).as_dict() == make_plan(build(), TWO_CORES).as_dict()


def test_a_caller_cannot_change_the_plan() -> None:
    plan = local()
    plan.as_dict()["phases"]["04-training"]["batch"]["micro"] = 99
    assert plan.as_dict()["phases"]["04-training"]["batch"]["micro"] == 2


def test_labels_are_said_beside_the_counts() -> None:
    large = PlanningMessage.LABEL.fill(label="375M", rounded="64.6 M", parameters=64_633_856)
    large += PlanningMessage.LABEL_TOO_LARGE.fill(ratio=5.8)
    tiny = PlanningMessage.LABEL.fill(label="tiny", rounded="7.25 M", parameters=7_248_640)
    assert [label["text"] for label in local().as_dict()["labels"]] == [large, tiny]


def test_names_of_checks_are_unique() -> None:
    names = [check.name for check in local().checks]
    assert len(names) == len(set(names))


def test_params_local_makes_a_plan() -> None:
    """Read the shipped run file with the real loader, and plan it."""
    from runbook.params import load

    plan = make_plan(load("local"), TWO_CORES)
    spec = plan.as_dict()["phases"]["03-smoke-test"]
    assert spec["duration"] == {"iterations": 12, "samples": 48, "tokens": 49_152}
    assert spec["model"]["parameters"] == 64_633_856
    assert not [check for check in plan.checks if check.verdict == "warn"]


def test_a_check_has_one_of_four_verdicts() -> None:
    assert VERDICTS == ("pass", "fail", "warn", "unknown")
    with pytest.raises(ValueError) as caught:
        Check("x", "ok", "1", "2")
    assert str(caught.value) == CoreMessage.NO_VERDICT.fill(
        name="x", verdict="ok", verdicts=", ".join(VERDICTS)
    )


def test_a_plan_of_an_earlier_version_has_fewer_parts_of_memory_and_is_read() -> None:
    """Runs of version 0.1.0 can still be reported, sampled and exported."""
    plan = make_plan(params.load("local")).as_dict()
    for memory in plan["memory"].values():
        for name in ("likely_bytes", "likely_on_device", "on_device_bytes"):
            del memory[name]
        newer = ("recomputed", "recomputed_scores", "late_gradients", "moments", "backward_end")
        for name in newer:
            memory["fullest_stage"].pop(name, None)

    read = parse_plan(json.dumps(plan), Path("plan.json"))
    assert read.memory["04-training"].likely_bytes is None
    assert read.memory["04-training"].on_device_bytes is None
    assert read.memory["04-training"].fullest_stage.moments == 0


def test_one_failure_is_told_in_the_singular() -> None:
    from runbook.core.errors import PlanError, raise_if_failed

    raise_if_failed([Check("a", "warn", "1", "one"), Check("b", "unknown", "?", "two")])
    failed = Check("heads", "fail", "3 heads", "an even number", "Choose 4.")
    with pytest.raises(PlanError) as caught:
        raise_if_failed([failed])
    head = CoreMessage.THINGS_DO_NOT_FIT.fill(things="One thing does")
    assert str(caught.value) == f"{head}\n  1. {failed.as_text()}"
    for part in ("heads", "3 heads", "an even number", "Choose 4."):
        assert part in failed.as_text()
    assert caught.value.exit_code == 2
    assert counted(2, "node") == "2 nodes"


def test_examples_in_docstrings_hold() -> None:
    modules = [
        importlib.import_module(info.name)
        for info in pkgutil.walk_packages(runbook.planning.__path__, "runbook.planning.")
    ]
    results = [doctest.testmod(module) for module in modules]
    assert sum(result.attempted for result in results) >= 15
    assert not sum(result.failed for result in results)


def test_importing_the_plan_brings_nothing_heavy(run_python: Callable[[str], str]) -> None:
    found = run_python(
        "import sys, runbook.planning; print([m for m in ('torch', 'numpy', 'pandas') if m in sys.modules])"
    )
    assert found.strip() == "[]"
