"""The round trip: a run file that is rendered and adopted again describes the same training run."""

from __future__ import annotations

import pytest

from runbook.params import Settings, load
from runbook.phases.rendered_jobs import render_all
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import PhasePlan
from runbook.planning import make_plan
from runbook.tools.adopt.adopt_scripts import adopt

GIVEN = ("jobs.stage=/lustre/gpt", "jobs.account=lab")
RUNS = {
    "azure-175b": GIVEN[:1],
    "aws-pile-175b": ("jobs.stage=/lustre/gpt", "data.bucket=s3://bucket/tokens"),
    "lumi-13b": GIVEN,
    "polaris-25b": GIVEN,
    "slurm-oscar": ("jobs.stage=/lustre/gpt", "jobs.image=/images/pytorch.sqsh"),
}


def training(settings: Settings) -> PhasePlan:
    """Return what is trained, without folders that contain the run name."""
    return make_plan(settings).phases[FULL]


@pytest.mark.parametrize(("name", "given"), RUNS.items())
def test_a_rendered_run_is_adopted_as_the_same_run(name, given, tmp_path):
    original = load(name, set_words=given)
    render_all(name, given, tmp_path / "scripts")
    out = tmp_path / f"{name}.yaml"
    report = adopt([tmp_path / "scripts" / "jobs" / FULL / "job.sh"], out)
    assert report.check == "passes"
    again = load(str(out), set_words=given)
    assert again.site.site == original.site.site
    assert training(again) == training(original)
    assert again.job(FULL) == original.job(FULL)
    text_keys = ("data.dataset", "data.split", "data.held_out", "model", "training.framework")
    assert {key: again.value(key) for key in text_keys} == {
        key: original.value(key) for key in text_keys
    }
