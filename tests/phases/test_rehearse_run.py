"""`runbook rehearse`: the output for a person and for a program about a job rehearsed at full size."""

import dataclasses
import json
import sys

import pytest
from suite.messages import containing, refuses, says

from runbook.core import shell
from runbook.core.errors import RunbookError
from runbook.phases.messages import PhaseMessage
from runbook.phases.rehearsal import Rehearsal, rehearse_run
from runbook.phases.run_plan import load_plan
from runbook.plan_file.json_records import as_json, from_json
from runbook.planning.messages import PlanningMessage
from runbook.training.messages import TrainingMessage

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def rehearsal():
    """Rehearse both stages of a 16-GPU job in the documents' framework."""
    said = []
    found = rehearse_run(
        "slurm-oscar", ["site=azure"], say=said.append
    )  # a site whose device is known
    return found, said


def test_every_stage_and_the_last_rank_are_counted(rehearsal):
    found, said = rehearsal
    assert [(stage.stage, stage.rank) for stage in found.stages] == [(0, 0), (1, 8), (1, 15)]
    assert found.changed == ("training.framework=runbook", "training.kernels=plain")
    assert len(said) == 3
    for stage in found.stages:
        assert stage.peak_bytes == sum(stage.parts.values()) > 0
        assert stage.flops == pytest.approx(stage.planned_flops, rel=0.05)
        assert stage.planned_bytes == pytest.approx(stage.peak_bytes, rel=0.05)
        assert {kind.group for kind in stage.collectives} >= {
            "tensor",
            "pipeline",
            "data",
            "everyone",
        }
        own = sum(size for part, size in stage.parts.items() if part != "activations")
        assert own <= stage.resume_peak_bytes <= 1.3 * own
        assert stage.resume_bytes < own
    assert found.stages[0].saved_bytes > 0


def test_the_text_and_the_json_say_the_same(rehearsal):
    found, _ = rehearsal
    content = json.loads(json.dumps(as_json(found)))
    assert content["fits"] is found.fits is True
    text = found.as_text()
    assert all(finding in text for finding in content["findings"])
    assert f"{content['stages'][0]['peak_bytes'] / 2**30:.4g}" in text
    assert says(text, PhaseMessage.NOT_REHEARSED, part=containing("Transformer Engine's layers"))


def test_the_step_is_replayed_from_what_was_counted(rehearsal):
    found, _ = rehearsal
    replay = found.replay
    assert replay.microbatches == found.microbatches == 16
    assert "H100-SXM" in found.replay_basis
    assert replay.planned_seconds == pytest.approx(sum(replay.planned_parts.values()), rel=1e-3)
    forward, backward = (
        sum(one.matrices for one in passes)
        for passes in (replay.stages[0].forward, replay.stages[0].backward)
    )
    assert backward == pytest.approx(
        3 * forward, rel=0.01
    )  # twice the work, plus the forward pass again
    for parts in replay.parts:
        assert all(
            parts[name] > 0 for name in ("tensor", "pipeline", "data", "optimizer", "bubble")
        )
        assert sum(parts.values()) == pytest.approx(replay.seconds)
    assert replay.text in found.as_text()


def test_a_kept_rehearsal_gives_the_same_text_and_pictures(rehearsal, tmp_path):
    found, _ = rehearsal
    kept = from_json(
        Rehearsal, json.loads(json.dumps(as_json(found))), name="it", failure="refused:"
    )
    assert kept.as_text() == found.as_text()
    assert [path.name for path in kept.save_figures(tmp_path)] == [
        "memory.svg",
        "memory.png",
        "schedule.svg",
        "schedule.png",
    ]
    memory, schedule = kept.figures().values()
    assert [axes.get_title().partition(":")[0] for axes in memory.axes] == ["stage 1", "stage 0"]
    for axes, stage in zip(memory.axes, (found.stages[1], found.stages[0]), strict=True):
        assert [line.get_ydata()[0] * 2**30 for line in axes.lines[1:3]] == [
            stage.planned_bytes,
            found.limit_bytes,
        ]
        assert max(axes.lines[0].get_ydata()) * 2**30 == pytest.approx(stage.peak_bytes, rel=0.05)
    assert len(schedule.axes[0].get_yticks()) == 2


def test_without_a_known_device_the_reason_is_said(rehearsal):
    basis = PlanningMessage.DEVICE_NOT_IN_TABLE.of(device="GPU", site="mine", names="A100, H100")
    found = dataclasses.replace(rehearsal[0], replay=None, replay_basis=str(basis))
    assert says(found.as_text(), basis.message, **basis.values)
    assert list(found.figures()) == ["memory"]


def test_a_device_that_is_too_small_is_said(rehearsal):
    found = dataclasses.replace(rehearsal[0], limit_bytes=rehearsal[0].stages[0].peak_bytes)
    assert not found.fits
    assert any(
        finding.startswith("stage 1 (rank 8) does not fit: it needs") for finding in found.findings
    )
    assert not any(
        says(finding, PhaseMessage.STAGE_DOES_NOT_FIT, stage=0, rank=0)
        for finding in found.findings
    )


def test_a_rank_outside_the_job_is_refused():
    with refuses(RunbookError, PhaseMessage.RANK_OUTSIDE_JOB, outside=16, world_size=15):
        rehearse_run("slurm-oscar", ranks=[16])


def test_what_was_counted_can_be_kept(rehearsal):
    found, _ = rehearsal
    kept = from_json(
        Rehearsal, json.loads(json.dumps(as_json(found))), name="it", failure="refused:"
    )
    assert kept == found and kept.as_text() == found.as_text()


def test_a_software_that_is_too_old_is_told_from_a_job_that_fails(tmp_path):
    (tmp_path / "megatron").mkdir()
    reason = "older than needed"
    (tmp_path / "megatron" / "__init__.py").write_text(f"raise ImportError({reason!r})")
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(load_plan("local", ())[1].as_dict()))
    words = [
        sys.executable,
        "-m",
        "runbook.training.rehearsal",
        str(plan),
        "--ranks",
        "0",
        "--out",
        str(tmp_path / "out"),
    ]
    ended = shell.run(words, env={"PYTHONPATH": str(tmp_path)}, check=False)
    assert ended.exit_code == 3
    assert ended.err == (
        TrainingMessage.SOFTWARE_TOO_OLD.fill(
            needed=TrainingMessage.SOFTWARE_OF_REHEARSAL.fill(), error=reason
        )
    )
    assert not (tmp_path / "out").exists()


def test_messages_of_a_single_stage_are_listed_once(rehearsal):
    found, _ = rehearsal
    single = dataclasses.replace(found, stages=(found.stages[1], found.stages[2]))
    both = dataclasses.replace(found, stages=found.stages[1:2])
    (messages,) = [table for table in single.tables() if "messages a step" in table.columns]
    (once,) = [table for table in both.tables() if "messages a step" in table.columns]
    assert messages.rows == once.rows
