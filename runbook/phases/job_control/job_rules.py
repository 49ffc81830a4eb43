"""Rules for a phase's job: when it may start, whether another follows, and which training that continues.

What follows a job, in this order: a finished one is done; one that a person ended stays ended; one that saved and
stopped, or vanished, goes on; a failure that would repeat stops at once; the same failure twice at one step stops;
everything else is started again while the budget of restarts without a new step lasts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from runbook.core import processes
from runbook.core.checks import judge
from runbook.core.errors import JobError
from runbook.core.files import iterate_lines, read_lines, write_text
from runbook.jobs import job_folder
from runbook.jobs.job_end import FROM_OUTSIDE, MAY_PASS, WILL_REPEAT, EndCause, JobEnd, job_end
from runbook.jobs.job_folder import JobFolder, JobState, JobStatus, log_tail
from runbook.phases.open_phase import VERSIONS, OpenPhase, checksums_of_step, phase_fingerprint
from runbook.plan_file.checkpoint_folder import METADATA, folder_name, saved_iterations
from runbook.plan_file.errors import REFUSED, STOPPED
from runbook.plan_file.identity import same_training
from runbook.plan_file.json_records import as_json
from runbook.plan_file.schema import PhasePlan, parse
from runbook.planning import FULL, SMOKE, Check
from runbook.results.failures import kinds
from runbook.results.failures.finder import Failure, find_cause, find_failures
from runbook.results.failures.rule import Level, NextStep
from runbook.runs import run_files

JobEvent = Mapping[str, Any]
"""A line of the run's events.jsonl."""
GATE = "smoke/gate.json"
TOKENIZE = "02-data--tokenize"
TOKENS = "token files"
RECOVERY_SECONDS = 120.0
"""Wait after a node was out of reach. A job submitted at once would get the same node, which Slurm takes out of service
after SlurmdTimeout: 300 s by default, less than the waits of the default three restarts."""
_CAUSE_OF = {cause.value: cause for cause in WILL_REPEAT} | {
    kinds.DATA.name: EndCause.FILE_MISSING,
    kinds.ABI.name: EndCause.MODULE_MISSING,
    kinds.BUILD.name: EndCause.MODULE_MISSING,
    kinds.UNREACHED.name: EndCause.NODE_UNREACHED,
}
"""The cause of each known failure about which a restart depends, by the failure's name."""
ERROR_LINE = re.compile(r"(?:rank \d+: )?[A-Za-z_.]*(?:Error|Exception|Interrupt)\b")


def apply_waiver(
    open_phase: OpenPhase, gate: Check, key: str = "training.smoke.waived_by"
) -> Check:
    """The gate's verdict; a failed one becomes a warning where a person took it upon themselves.

    The name stands in the record of this phase and, with the time and the account, once in events.jsonl.
    """
    if gate.verdict == "pass":
        return gate
    name = open_phase.settings.value(key).strip()
    if not name:
        hint = f"; or name who decides to train all the same: --set {key}=NAME, which is recorded"
        return replace(gate, rule=gate.rule + hint)
    account = processes.user_name()
    result_name = gate.name.replace(" ", "_")
    open_phase.session.add_results(
        {f"{result_name}_waived_by": name, f"{result_name}_waived_as": account}
    )
    facts = {"by": name, "account": account, "check": gate.name, "gate": gate.value}
    waived = {"event": "gate_waived", "phase": open_phase.phase, **facts}
    events = read_lines(open_phase.folder / open_phase.phase_plan.log.events)
    if not any(waived.items() <= event.items() for event in events):
        open_phase.append_event("gate_waived", **facts)
    return replace(
        gate, verdict="warn", value=f"{gate.value}; waived by {name} (account {account})"
    )


def readiness_checks(open_phase: OpenPhase, *, by_content: bool = True) -> list[Check]:
    """What has to pass before the phase's job is submitted; by content, every byte of the token files is read."""
    is_training = open_phase.phase == FULL  # the smoke test needs no smoke test
    gates = [apply_waiver(open_phase, gate_check(open_phase))] if is_training else []
    return [*gates, data_check(open_phase, by_content=by_content)]


def require_ready(open_phase: OpenPhase) -> None:
    """Raise `JobError` where the job may not be submitted, whatever a cell above has shown.

    Token files that passed in this notebook are not read a second time: their sizes are compared.
    """
    passed = open_phase.session.verdict(TOKENS) == "pass"
    checks = readiness_checks(open_phase, by_content=not passed)
    failed = [check for check in checks if check.verdict not in ("pass", "warn")]
    if failed:
        reasons = [f"{check.name}: {check.value} (rule: {check.rule})" for check in failed]
        raise JobError(f"{open_phase.phase}: nothing was submitted. {'; '.join(reasons)}")


def gate_check(open_phase: OpenPhase) -> Check:
    """The smoke test's verdict, for the smoke test that the plan now asks for."""
    rule = f"{SMOKE} passed with these parameters"
    path = open_phase.folder / GATE
    if not path.exists():
        return Check("smoke test", "fail", "not done", f"{rule}; run {SMOKE}.ipynb first")
    gate = json.loads(path.read_text())
    run_again = f"{rule}; run {SMOKE}.ipynb again"
    digest = phase_fingerprint(open_phase.settings, open_phase.plan, open_phase.folder, SMOKE)
    if gate["fingerprint"] != digest:
        return Check("smoke test", "fail", "done with other parameters", run_again)
    if run_files.step_status(open_phase.folder, SMOKE).lost_an_output:
        return Check("smoke test", "fail", "changed after it was judged", run_again)
    return Check("smoke test", gate["verdict"], gate["verdict"], rule)


def data_check(open_phase: OpenPhase, *, by_content: bool = True) -> Check:
    """The token files as the data phase made them."""
    if open_phase.phase_plan.data.mock:
        return Check(
            TOKENS, "pass", "mock data", "token ids are made up while training: there are no files"
        )
    mark = run_files.read_mark(open_phase.folder, TOKENIZE)
    rule = "02-data made the token files and they are unchanged"
    if mark is None:
        return Check(TOKENS, "fail", "not made", f"{rule}; run 02-data.ipynb first")
    fault = run_files.what_is_missing(open_phase.folder, TOKENIZE, by_content=by_content)
    return judge(TOKENS, not fault, fault or f"{len(mark.outputs)} files", rule)


class Action(StrEnum):
    """What follows a job."""

    DONE = "done"
    GO_ON = "go on"
    STOP = "stop"


@dataclass(frozen=True)
class Attempt:
    """One job of a phase, ended."""

    job: str
    end: JobEnd
    began_at: int | None
    """The step after which it began; None: it did not come so far."""
    reached: int
    """The newest step of the training when it had ended."""
    reason: str = ""
    """The job's own sentence about its end. For people: nothing is decided by it."""
    failure: str = ""
    """Signature of the failure, equal when the same failure happens again. Empty: nothing failed."""
    evidence: str = ""
    remedy: str = ""
    bad_nodes: tuple[str, ...] = ()
    """Nodes that the failure is to be blamed on, where another node would not have it."""

    @property
    def failing_step(self) -> int | None:
        """The step it was in when it ended."""
        return None if self.began_at is None else max(self.began_at, self.reached) + 1

    @property
    def made_a_step(self) -> bool:
        """Whether it came further than where it began."""
        return self.began_at is not None and self.reached > self.began_at

    def failed_like(self, other: Attempt) -> bool:
        """Whether both failed alike at one step. What comes from outside is no sign of that: the budget bounds it."""
        if self.end.cause is None or self.end.cause in FROM_OUTSIDE or self.failing_step is None:
            return False
        alike = self.end.cause is other.end.cause and self.failure == other.failure
        return alike and self.failing_step == other.failing_step


@dataclass(frozen=True)
class Decision:
    """What follows, and why."""

    action: Action
    why: str
    wait_seconds: float = 0.0
    """Before the next job: how long the cluster is given to recover."""


def decide_restart(attempts: Sequence[Attempt], budget: int) -> Decision:
    """Decide what follows the last of these jobs.

    `budget` is how many jobs in a row may end without a new step.

    >>> stopped = Attempt("04-training", JobEnd(JobState.STOPPED, 75), began_at=0, reached=8)
    >>> decide_restart([stopped], 3).action
    <Action.GO_ON: 'go on'>
    """
    last = attempts[-1]
    if last.end.state is JobState.DONE:
        return Decision(Action.DONE, "finished")
    reason = _reason_to_stop(attempts) or _reason_of_budget(attempts, budget)
    if reason:
        return Decision(Action.STOP, reason)
    is_unreached = last.end.cause is EndCause.NODE_UNREACHED
    wait_seconds = RECOVERY_SECONDS if is_unreached else 0.0
    return Decision(Action.GO_ON, last.failure or last.reason, wait_seconds)


def _reason_to_stop(attempts: Sequence[Attempt]) -> str:
    """Return why no job may follow the last one, whatever the budget. Empty where one may."""
    last = attempts[-1]
    end = last.end
    if end.state in (JobState.CANCELLED, JobState.UNKNOWN):
        return f"it is {end.state}: a person decides"
    if end.state is JobState.TIMEOUT and end.exit_code != STOPPED:
        return "it ran into its time limit without having saved; save more often"
    if end.exit_code == REFUSED:
        return "what was asked for was refused, and would be again"
    if end.cause in WILL_REPEAT:
        return f"{end.cause}: it would happen again"
    for earlier in attempts[:-1]:
        if earlier.failed_like(last):
            both = f"{earlier.job} and {last.job}: {last.failure}"
            return (
                f"the same failure twice at step {last.failing_step} ({both}): this is no accident"
            )
    may_pass = end.cause in MAY_PASS
    if end.state is JobState.FAILED and not may_pass and not last.made_a_step:
        return "it failed before its first step, and would again"
    return ""


def _reason_of_budget(attempts: Sequence[Attempt], budget: int) -> str:
    """Return why the budget of jobs without a new step is used up. Empty where it is not."""
    furthest_step = 0
    jobs_without_progress = 0
    for attempt in attempts:
        if attempt.reached > furthest_step:
            jobs_without_progress = 0
        else:
            jobs_without_progress += 1
        furthest_step = max(furthest_step, attempt.reached)
    if jobs_without_progress <= budget:
        return ""
    return (
        f"{jobs_without_progress} jobs in a row made no new step "
        f"(jobs.training.restarts is {budget})"
    )


def read_attempt(folder: JobFolder, status: JobStatus, metrics: Path, events: Path) -> Attempt:
    """Read how a job ended from its status, its logs and the run's files."""
    job_events = _events_of_job(read_lines(events), folder.path.name)
    started = _newest_event(job_events, "started")
    began_at = int(started.get("from_iteration", 0)) if started else None
    reached = began_at or 0
    for row in iterate_lines(metrics):
        is_step = isinstance(row.get("iteration"), int)
        # A job that never started has no segment; then the newest step of the training counts.
        if is_step and (not started or row.get("segment") == started.get("segment")):
            reached = int(row["iteration"])
    attempt = Attempt(
        job=folder.path.name,
        end=job_end(status, None),
        began_at=began_at,
        reached=reached,
        reason=status.reason,
    )
    failure = _find_failure(folder, status, job_events)
    if failure is None:
        return attempt
    return replace(
        attempt,
        end=job_end(status, failure.cause),
        failure=failure.signature,
        evidence=failure.evidence,
        remedy=failure.remedy,
        bad_nodes=failure.bad_nodes,
    )


def _events_of_job(events: Sequence[JobEvent], job: str) -> Sequence[JobEvent]:
    """Return the events since the job was submitted for the last time. Empty where it never was."""
    for index in reversed(range(len(events))):
        event = events[index]
        if event.get("event") == "submitted" and event.get("job") == job:
            return events[index:]
    return []


def _newest_event(events: Sequence[JobEvent], name: str) -> JobEvent | None:
    """Return the newest event of this name, or None where there is none."""
    return next((event for event in reversed(events) if event.get("event") == name), None)


@dataclass(frozen=True)
class _JobFailure:
    """Why a job failed: what decides, and what a person reads."""

    cause: EndCause
    signature: str
    """Equal when the same failure happens again."""
    evidence: str
    remedy: str = ""
    bad_nodes: tuple[str, ...] = ()


def _find_failure(
    folder: JobFolder, status: JobStatus, events: Sequence[JobEvent]
) -> _JobFailure | None:
    """Return why a job failed, or None where nothing failed."""
    if status.state in (JobState.DONE, JobState.STOPPED, JobState.CANCELLED):
        return None
    hang = next((event for event in events if event.get("event") == "hang"), None)
    if hang:
        where = f"rank {hang.get('rank')} on {hang.get('host')} in {hang.get('where', '')}"
        remedy = f"See {hang.get('stacks')}."
        return _JobFailure(EndCause.HUNG, EndCause.HUNG, where, remedy)
    if job_end(status).was_killed:
        remedy = "If nobody did it, look for memory in the node's log (dmesg)."
        return _JobFailure(EndCause.KILLED, EndCause.KILLED, status.reason, remedy)
    lines = [*log_tail(folder.err, 400), *log_tail(folder.out, 400)]
    cause = find_cause(find_failures(lines))
    if cause is not None and _is_decisive(cause):
        return _known_failure(cause, folder)
    error = _last_error(lines)
    if not error and cause is not None:
        return _known_failure(cause, folder)
    error = error or status.reason
    signature = re.sub(r"\d+", "N", error)[:200]
    return _JobFailure(EndCause.OTHER, signature, error[:300])


def _last_error(lines: Sequence[str]) -> str:
    """Return the last line that names an exception. Empty where no line does."""
    for line in reversed(lines):
        if ERROR_LINE.match(line.strip()):
            return line.strip()
    return ""


def _is_decisive(failure: Failure) -> bool:
    """Tell whether a failure says more than the last error of the program does."""
    if failure.level is Level.SYMPTOM:
        return failure.decision is NextStep.FIX_FIRST
    return failure.level is Level.CAUSE


def _known_failure(failure: Failure, folder: JobFolder) -> _JobFailure:
    cause = _CAUSE_OF.get(failure.name, EndCause.OTHER)
    bad_nodes = _blamed_nodes(failure, nodes_of_job(folder))
    return _JobFailure(cause, failure.name, failure.evidence, failure.remedy, bad_nodes)


def _blamed_nodes(failure: Failure, nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the node of the job that a failure is about, where another node would not have it."""
    if failure.decision is not NextStep.RETRY_OTHER_NODE:
        return ()
    short_name = failure.host.partition(".")[0]
    return tuple(node for node in nodes if node.partition(".")[0] == short_name)


def nodes_of_job(folder: JobFolder) -> list[str]:
    """Return the nodes that a job recorded. Empty where it recorded none."""
    return job_folder.read_text(folder.hostfile).split()


def slow_nodes(
    events: Sequence[JobEvent], job: str, nodes: Sequence[str], ranks_per_node: int
) -> dict[str, str]:
    """Return the nodes of ranks that a job reported as slow, each with the alarm's evidence."""
    slow = {}
    for event in _events_of_job(events, job):
        rank = event.get("rank")
        is_slow = event.get("event") == "alarm" and event.get("kind") == "slow rank"
        if is_slow and isinstance(rank, int) and rank // ranks_per_node < len(nodes):
            slow[nodes[rank // ranks_per_node]] = str(event.get("evidence", ""))
    return slow


def started_path(folder: Path, phase: str) -> Path:
    """Where the fingerprint of the training whose outputs lie in the folder is kept."""
    return folder / "steps" / f"{phase}--train.started"


def was_started_from(open_phase: OpenPhase, digest: str) -> bool:
    """Whether the outputs in the run's folder come from these inputs."""
    started = started_path(open_phase.folder, open_phase.phase)
    return started.exists() and started.read_text().partition("\n")[0] == digest


def note_start(open_phase: OpenPhase, digest: str) -> None:
    """Keep from which inputs the training was started, for the jobs that come later."""
    facts = json.dumps({"inputs": _inputs(open_phase), "phase": as_json(open_phase.phase_plan)})
    write_text(started_path(open_phase.folder, open_phase.phase), f"{digest}\n{facts}\n")


def _inputs(open_phase: OpenPhase) -> dict[str, Any]:
    """What makes it another training, whatever its plan: our version of the phase, and the tokens."""
    return {
        "version": VERSIONS[open_phase.phase],
        "data": checksums_of_step(open_phase.folder, "02-data--tokenize"),
    }


def _started_phase(open_phase: OpenPhase) -> PhasePlan | None:
    """The plan of the training whose outputs are in the folder; None where its inputs are others, or not known."""
    started = started_path(open_phase.folder, open_phase.phase)
    if not started.exists():
        return None
    # The first line is the fingerprint, the second the inputs and the plan.
    text = started.read_text().partition("\n")[2]
    facts = json.loads(text) if text else {}
    if facts.get("inputs") != _inputs(open_phase):
        return None
    return parse(facts["phase"])


def why_continued(open_phase: OpenPhase) -> str:
    """Why the next job goes on with what lies in the folder although inputs changed, and what that means.

    Empty where it is another training, where nothing was saved, or where nothing is left to train: it begins again.
    """
    # The one phase that may be prolonged: a smoke test is judged from its first step on.
    if open_phase.phase != FULL or open_phase.settings.run.training.framework != "runbook":
        return ""
    before = _started_phase(open_phase)
    now = open_phase.phase_plan
    checkpoints = open_phase.folder / now.checkpoint.folder
    saved = max(saved_iterations(checkpoints), default=0)
    if before is None or not same_training(before, now) or not 0 < saved < now.duration.iterations:
        return ""
    old = _shown_values(before)
    new = _shown_values(now)
    changed = ", ".join(
        f"{name} {old[name]} -> {new[name]}" for name in old if old[name] != new[name]
    )
    sentences = [
        f"The training goes on from its checkpoint of iteration {saved:,}: {changed or 'replanned'}."
    ]
    if before.duration.iterations != now.duration.iterations:
        try:
            metadata = json.loads((checkpoints / folder_name(saved) / METADATA).read_text())
            consumed = int(metadata["consumed_samples"])
        except (OSError, ValueError, KeyError, TypeError):  # the trainer judges it
            consumed = saved * now.batch.global_
        sentences.append(_rate_text(before, now, consumed))
    if before.engine != now.engine:
        sentences.append(
            "Each engine's optimizer state is its own: the weights are taken up, and Adam begins anew."
        )
    return " ".join([*sentences, "To begin anew instead: runbook run with --redo training."])


def _shown_values(phase_plan: PhasePlan) -> dict[str, str]:
    parallel = phase_plan.parallel
    return {
        "iterations": f"{phase_plan.duration.iterations:,}",
        "engine": phase_plan.engine,
        "micro-batch": f"{phase_plan.batch.micro:,}",
        "tensor": f"{parallel.tensor:,}",
        "pipeline": f"{parallel.pipeline:,}",
        "virtual_pipeline": f"{parallel.virtual_pipeline:,}",
        "data": f"{parallel.data:,}",
        "zero_stage": f"{parallel.zero_stage:,}",
    }


def _rate_text(before: PhasePlan, now: PhasePlan, consumed: int) -> str:
    if before.learning_rate == now.learning_rate or before.learning_rate.schedule == "constant":
        return "The learning rate does not depend on the length: the losses are those of one undisturbed training."
    next_samples = consumed + now.batch.global_
    old = before.learning_rate.at(next_samples)
    new = now.learning_rate.at(next_samples)
    return (
        f"The learning rate follows the new length from there: {new:.3g} in the next step, where the old plan had "
        f"{old:.3g}. The steps before were made by the old one, so the losses are not those of a training planned for "
        f"{now.duration.iterations:,} from its start; training.decay_samples={before.learning_rate.decay_samples} "
        f"would keep the old rate."
    )
