"""04-training: the run itself, stopped once on purpose where asked, resumed, watched to its end."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from typing import Any

from runbook.analysis import gates
from runbook.analysis.history import events_named, read_events
from runbook.display import show_table, show_text
from runbook.errors import JobError
from runbook.params.schema import Framework
from runbook.phases import account, closing, jobs, samples, smoke_test, steps, trained, waiver, weights
from runbook.phases import campaign as campaigns
from runbook.phases.campaign import Campaign
from runbook.phases.data import STEP as TOKENIZE
from runbook.plan import Check
from runbook.schedulers.base import State

PHASE = "04-training"


def bind(namespace: Mapping[str, Any]) -> Campaign:
    """Check the parameters and open the record."""
    return campaigns.bind(PHASE, namespace)


def check_ready(campaign: Campaign) -> None:
    """The smoke test's verdict and the token files; a failed or absent one stops here."""
    campaign.check([waiver.applied(campaign, gate_check(campaign)), data_check(campaign)])


def launch(campaign: Campaign) -> None:
    """Submit the job, or find it."""
    jobs.launch(campaign)


def rehearse_stop(campaign: Campaign) -> None:
    """Let the job come to `training.rehearse_stop`, ask it to save and stop, submit it again."""
    at = campaign.settings.run.training.rehearse_stop
    if not at:
        show_text("training.rehearse_stop is 0: no stop is rehearsed.")
        return
    if jobs.is_done(campaign) or stops(campaign):
        show_text("This run was already stopped and resumed; it is not done twice.")
        return
    status = jobs.follow(
        campaign, lambda rows: bool(jobs.own_rows(campaign, rows[-1:])) and rows[-1]["iteration"] >= at
    )
    if status.state is State.RUNNING:
        status = jobs.stop_gently(campaign)
    if status.state is State.DONE:
        show_text(f"The job finished before it could be stopped at iteration {at}.")
        return
    if status.state is not State.STOPPED:
        raise JobError(jobs.failure_text(campaign, status))
    folder = jobs.resubmit(campaign)
    where = f"at iteration {stops(campaign)[-1]['iteration']}, saved" if stops(campaign) else "before the first step"
    show_text(f"Stopped {where}, exit code 75; goes on as jobs/{folder.path.name}.")


def watch(campaign: Campaign) -> None:
    """Follow the job to its end, resuming it where it stops."""
    jobs.watch(campaign)


def show_loss(campaign: Campaign) -> None:
    """The loss curve over all restarts."""
    trained.show_loss(campaign, [PHASE])


def show_account(campaign: Campaign) -> None:
    """Where the time went over all jobs, and what each interruption cost."""
    account.show_account(campaign)


def show_samples(campaign: Campaign) -> None:
    """What the model wrote before the first step and after the last."""
    rows = samples.rows(campaign.folder, campaign.spec, campaign.settings.run.data.tokenizer)
    if not rows:
        show_text("training.sample_prompt is empty: no sample was asked for.")
        return
    show_table(rows, title="The same prompt before and after")


def continue_text(campaign: Campaign, prompt: str = "", *, tokens: int = 40, temperature: float = 0.7) -> None:
    """Let the trained model continue a prompt of yours, in a process of its own; `runbook sample RUN` does the same."""
    if campaign.settings.run.training.framework is not Framework.RUNBOOK or importlib.util.find_spec("torch") is None:
        show_text("No text is made here: it needs a checkpoint of our own trainer, and torch in this environment.")
        return
    if not prompt and not campaign.spec["sampling"]["prompt"] and campaign.spec["sampling"]["end_of_document"] < 0:
        show_text("There is no prompt to continue: set training.sample_prompt, or give one in this cell.")
        return
    made = weights.sample(campaign.folder, weights.Wish(prompt=prompt, tokens=tokens, temperature=temperature))
    row = {"after iteration": made.iteration, "prompt": made.prompt, "continuation": made.continuation}
    show_table([row], title="From the newest checkpoint")


def judge(campaign: Campaign) -> None:
    """The rules this run is held to."""
    run = trained.read(campaign, PHASE)
    for key, value in run.results().items():
        campaign.session.result(key, value)
    checks = gates.resume_check(run.history, run.events) + own_checkpoints(campaign, run.events)
    if run.history.steps:
        checks += gates.learning_check(run.history, smallest_fall=smallest_fall(campaign))
    campaign.check(checks)


def finish(campaign: Campaign) -> None:
    """Write the record and mark the phase done."""
    closing.finish(campaign, [])


def stops(campaign: Campaign) -> list[Mapping[str, Any]]:
    """Every time this training was stopped and had saved."""
    path = campaign.folder / campaign.spec["log"]["events"]
    return events_named(trained.since_begun(read_events(path, PHASE)), "stopped") if path.exists() else []


def own_checkpoints(campaign: Campaign, events: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Whether each resume took up this training and not another that was put in its place; empty where none was."""
    resumed = events_named(events, "resumed")
    foreign = [one["folder"] for one in resumed if not one.get("same_fingerprint", True)]
    rule = "each job goes on from a checkpoint of this training; if not: runbook run {} --redo training begins anew"
    value = f"{', '.join(foreign)}: of another training" if foreign else f"{len(resumed)} resumed"
    verdict = "fail" if foreign else "pass"
    return [Check("own checkpoints", verdict, value, rule.format(campaign.settings.run.run))] if resumed else []


def smallest_fall(campaign: Campaign) -> float:
    """How far the loss has to fall: 30 % in a run of at least 100,000 tokens, else only to fall at all."""
    return 0.30 if campaign.spec["duration"]["tokens"] >= 100_000 else 0.0


def gate_check(campaign: Campaign) -> Check:
    """The smoke test's verdict, for the smoke test that the plan now asks for."""
    rule = "03-smoke-test passed with these parameters"
    path = campaign.folder / smoke_test.GATE
    if not path.exists():
        return Check("smoke test", "fail", "not done", f"{rule}; run 03-smoke-test.ipynb first")
    gate = json.loads(path.read_text())
    expected = campaigns.phase_fingerprint(campaign.settings, campaign.plan, campaign.folder, smoke_test.PHASE)
    if gate["fingerprint"] != expected:
        return Check("smoke test", "fail", "done with other parameters", f"{rule}; run 03-smoke-test.ipynb again")
    return Check("smoke test", gate["verdict"], gate["verdict"], rule)


def data_check(campaign: Campaign) -> Check:
    """The token files as the data phase made them."""
    if campaign.spec["data"]["mock"]:
        return Check("token files", "pass", "mock data", "token ids are made up while training: there are no files")
    mark = steps.read_mark(campaign.folder, TOKENIZE)
    rule = "02-data made the token files and they are unchanged"
    if mark is None:
        return Check("token files", "fail", "not made", f"{rule}; run 02-data.ipynb first")
    wrong = steps.what_is_missing(campaign.folder, TOKENIZE, mark.fingerprint)
    return Check("token files", "fail" if wrong else "pass", wrong or f"{len(mark.outputs)} files", rule)
