"""The preflight: checks of a cluster in stages, up to the first defect.

Checks that need no job come first, then the stages on the nodes.
"""

import json
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import gcd
from pathlib import Path
from typing import Any

from runbook.core import shell
from runbook.core.errors import JobError, ProgramError, RecordError
from runbook.core.files import write_text
from runbook.core.units import show_duration
from runbook.jobs import get_scheduler, job_folder
from runbook.jobs.job_folder import JobFolder, JobState, JobStatus, next_job_folder
from runbook.jobs.job_request import UnusableNodes
from runbook.jobs.render.preflight_job import (
    PREFLIGHT_PHASE,
    PreflightQuestions,
    preflight_job,
    render_preflight,
)
from runbook.jobs.render.training_job import PACKAGE, RenderedJob, render_local, write_job
from runbook.jobs.schedulers import get_queue
from runbook.jobs.slurm import Slurm
from runbook.node_checks.answers import HOSTS, PEERS, TORCH, read_answers
from runbook.node_checks.shared_folder import TOKEN_NAME
from runbook.node_checks.written_files import write_error
from runbook.params import Settings
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.node_probe import ProbeAnswer, probe_checks, read_facts
from runbook.phases.p01_environment.preflight.expectations import Expectations, expectations_of
from runbook.phases.p01_environment.preflight.group_rules import (
    bandwidth_check,
    binding_check,
    cores_of_hosts,
    groups_check,
    meeting_check,
    rank_presence_check,
    transport_check,
)
from runbook.phases.p01_environment.preflight.host_rules import (
    NODE_SETUP_RULE,
    ROUTES_REMEDY,
    host_checks,
)
from runbook.phases.p01_environment.preflight.interface_rules import neighbour_text, overlap_text
from runbook.phases.p01_environment.preflight.job_answers import (
    JobAnswers,
    parse_job_answers,
)
from runbook.phases.p01_environment.preflight.launcher_output import (
    first_end,
    queue_end,
    unreached_nodes,
)
from runbook.phases.p01_environment.preflight.link_rules import link_checks
from runbook.phases.p01_environment.preflight.node_differences import differences_of
from runbook.phases.p01_environment.preflight.node_rules import ANSWERED, by_node
from runbook.phases.p01_environment.preflight.placed_check import (
    PlacedCheck,
    PlacedRule,
    PreflightCheck,
)
from runbook.phases.p01_environment.preflight.step_rules import step_end_check
from runbook.phases.p01_environment.preflight.torch_rules import torch_checks
from runbook.plan_file.bad_node_lifetimes import FoundBy
from runbook.plan_file.phase_names import ENVIRONMENT, FULL, SMOKE
from runbook.plan_file.schema import Layout
from runbook.planning import Check, Plan
from runbook.runs.bad_nodes import report_bad_nodes, without_bad_nodes

QUESTIONS = "questions"
GROUPS = "groups"
RUNGS = (HOSTS, TORCH, PEERS, GROUPS)
JUDGES = {HOSTS: host_checks, TORCH: torch_checks, PEERS: link_checks}
"""The rules for the stages that nodes answer. Ranks answer the last stage."""
ANSWERS = "environment/preflight"
"""Subfolder of the run folder that the nodes write to. It is emptied at each call."""
PROBE_FOLDER = ".preflight-{run}-{token}"
"""Folder that the nodes write to, next to the checkpoints. It is deleted after each call.

Runs of the same name may have their checkpoints in the same folder.
"""
OLD_PROBE_SECONDS = 86400.0
"""The next preflight deletes the folder that a killed one left if it is older than this."""
POLL_SECONDS = 0.3
QUEUE_SECONDS = 600.0
"""Seconds after which a job that the queue has not started is cancelled."""
LOCAL_RUNG_SECONDS = 240.0
SILENT_SECONDS = 120.0
"""The preflight gives up on a job this many seconds after the job's time limit, whatever the queue
reports.
"""
LEAVING_SECONDS = 20.0
"""How long to wait for the epilog after the job, during which a node may be drained."""
PATH_REMEDY = (
    "Let the nodes reach each other on all TCP ports (firewall of the nodes, security group, port "
    "isolation of the switch), or exclude one of them."
)
AFTER_JOB = "after the job"
SHOWN_NODES = 2
"""Number of silent nodes whose routes are read, because each takes a few seconds."""
DRAINED_RULE = PlacedRule(
    f"job ({AFTER_JOB})",
    "the nodes accept further jobs after the job has ended",
    "Ask the operators about the reason that Slurm names. slurmd's log on that node has the output "
    "of an epilog that failed.",
)
SRUN_PORTS = "SrunPortRange"
"""Setting in slurm.conf with the ports on which srun listens for the daemons of the nodes."""
WAY_BACK_SECONDS = 6
TIMED_OUT_CODE = 124
"""Exit code of timeout(1) if the time is over."""
PASSING_FAULTS = (
    PreflightCheck.FOREIGN_PROGRAMS,
    PreflightCheck.LEFT_PROGRAMS,
    PreflightCheck.HOME_FOLDER,
    PreflightCheck.KERNEL_CACHES,
    PreflightCheck.NODE_NAMES,
    PreflightCheck.STORES,
)
"""Checks whose faults the user can fix, or that may go away. Such a fault does not exclude a node
from later jobs.
"""
Report = Callable[[str], None]


@dataclass(frozen=True)
class RungResult:
    """The checks of one stage."""

    name: str
    checks: tuple[Check, ...]
    seconds: float

    @property
    def is_defect(self) -> bool:
        """Whether this stage has a defect, so that the preflight stops."""
        return any(check.verdict == "fail" for check in self.checks)


@dataclass(frozen=True)
class PreflightResult:
    """The results of the preflight up to where it stopped."""

    rungs: tuple[RungResult, ...] = ()
    not_asked: tuple[str, ...] = ()
    """Stages after the first defect."""
    job: str = ""
    """Job folder, or an empty path if no job was submitted."""
    nodes: dict[str, Any] = field(default_factory=dict)
    """Answers by node, stage and part."""
    ranks: tuple[ProbeAnswer, ...] = ()
    """The answers that ranks gave in the last stage."""

    @property
    def checks(self) -> list[Check]:
        """All checks, in the order in which they were made."""
        return [check for rung in self.rungs for check in rung.checks]

    @property
    def defect(self) -> Check | None:
        """The first failed check, or None."""
        return next((check for check in self.checks if check.verdict == "fail"), None)

    def as_dict(self) -> dict[str, object]:
        """Return the result for --json."""
        defect = self.defect
        return {
            "checks": [_check_dict(check) for check in self.checks],
            "defect": defect.name if defect else None,
            "not_asked": list(self.not_asked),
            "seconds": {rung.name: round(rung.seconds, 1) for rung in self.rungs},
            "job": self.job,
            "nodes": self.nodes,
        }


def _check_dict(check: Check) -> dict[str, object]:
    """Return a check as a dictionary.

    The dictionary includes the nodes for a check that needed a job.
    """
    return {"where": "", "nodes": [], **check.as_dict()}


def climb(
    settings: Settings,
    plan: Plan,
    folder: Path,
    questions: Sequence[Check],
    report: Report,
    wait_seconds: float = QUEUE_SECONDS,
) -> PreflightResult:
    """Run all stages up to the first defect.

    `questions` contains the checks that needed no job. `report` is called with progress messages
    for the user.
    """
    first = RungResult(QUESTIONS, (*questions, *answers_folder_checks(folder)), 0.0)
    if first.is_defect:
        return PreflightResult((first,), RUNGS)
    if settings.site.scheduler == "local":
        return _climb_here(
            settings,
            plan,
            folder,
            first,
            report,
        )

    return _climb_in_queue(
        settings,
        plan,
        folder,
        first,
        report,
        wait_seconds,
    )


def fit_layout(parallel: Layout, world_size: int) -> str:
    """Return tensor x pipeline x context sizes for this many ranks.

    The sizes are those in the plan, or the largest ones that divide the rank count.

    >>> from types import SimpleNamespace
    >>> fit_layout(SimpleNamespace(tensor=4, pipeline=8, context=1), 16)
    '4x4x1'
    """
    tensor = gcd(parallel.tensor, world_size)
    pipeline = gcd(parallel.pipeline, world_size // tensor)
    context = gcd(parallel.context, world_size // tensor // pipeline)
    return f"{tensor}x{pipeline}x{context}"


def answers_folder_checks(folder: Path) -> list[Check]:
    """Return a failed check if this machine cannot write to the folder for the answers.

    Free bytes are not enough: a disk may have no free inodes.
    """
    nearest = _existing_folder(folder / ANSWERS)
    error = write_error(nearest)
    if not error:
        return []
    check = Check(
        PreflightCheck.SHARED_FOLDER,
        "fail",
        f"{nearest}: {error}",
        "files can be written to the run's folder on this machine",
        "Delete files there (`df -i` counts inodes, `quota -s` yours), or choose another folder "
        "(--runs).",
    )
    return [check]


@contextmanager
def _answers_folder(folder: Path) -> Iterator[tuple[Path, str]]:
    """Make an empty folder for the answers, with a token that each node must read."""
    answers = folder / ANSWERS
    shutil.rmtree(answers, ignore_errors=True)
    token = secrets.token_hex(8)
    write_text(answers / TOKEN_NAME, f"{token}\n")
    yield answers, token


@contextmanager
def _outer_checkpoints(
    settings: Settings, plan: Plan, folder: Path, token: str
) -> Iterator[list[Path]]:
    """Create a folder next to the checkpoints, if they are not in the run folder.

    The result is empty if the nodes need no other folder than the run's, or if this machine cannot
    write there; another check reports that.
    """
    # The nodes get the path as written in the plan: a link's target may not exist in a container.
    existing_folder = _existing_folder(folder / plan.phases[FULL].checkpoint.folder)
    probe_folder = existing_folder / PROBE_FOLDER.format(run=settings.name, token=token)
    if existing_folder.resolve().is_relative_to(folder.resolve()):
        yield []
        return
    try:
        for left_folder in existing_folder.glob(PROBE_FOLDER.format(run=settings.name, token="*")):
            if time.time() - left_folder.stat().st_mtime > OLD_PROBE_SECONDS:
                shutil.rmtree(left_folder, ignore_errors=True)
        write_text(probe_folder / TOKEN_NAME, f"{token}\n")
    except OSError:
        yield []
        return
    try:
        yield [probe_folder]
    finally:
        shutil.rmtree(probe_folder, ignore_errors=True)


def _existing_folder(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def _probe_options(
    settings: Settings,
    plan: Plan,
    folder: Path,
    world_size: int,
) -> list[str]:
    """Return the command-line options of the probe program that each rank runs.

    The options give the folders for answers and files, the device, and the layout.
    """
    training = plan.phases[FULL]
    existing_folder = _existing_folder(folder / training.checkpoint.folder)
    return [
        *("--out", str(folder / ANSWERS)),
        *("--device", str(training.device)),
        *("--write-folder", str(existing_folder)),
        *("--layout", fit_layout(training.parallel, world_size)),
    ]


def _climb_here(
    settings: Settings,
    plan: Plan,
    folder: Path,
    first: RungResult,
    report: Report,
) -> PreflightResult:
    """Run the node stages in a process on this machine, and the last stage as a local job.

    The ranks are started in the same way as for training.
    """
    expected = expectations_of(settings, plan, walltime=0)
    host = "this machine"
    with _answers_folder(folder) as (answers_folder, token):
        argv = [sys.executable, "-m", "runbook.node_checks", HOSTS, TORCH]
        argv += ["--folder", str(answers_folder), "--token", token, "--device", expected.device]
        report("checking this machine")
        start = time.monotonic()
        environment = {"RUNBOOK_NODES": "", "PYTHONPATH": str(PACKAGE)}
        output = shell.run(
            argv,
            timeout=LOCAL_RUNG_SECONDS,
            check=False,
            env=environment,
        )
        node = next((part_answer.node for part_answer in read_answers(output.out)), host)
        answers = parse_job_answers(output.out, (node,))
        results = [first]
        for name, judge in ((HOSTS, host_checks), (TORCH, torch_checks)):
            checks = tuple(judge(answers, expected))
            results.append(RungResult(name, checks, time.monotonic() - start))
            start = time.monotonic()
            if results[-1].is_defect:
                return _result(results, answers)

        results.append(RungResult(PEERS, tuple(link_checks(answers, expected)), 0.0))
        report("starting the ranks")
        facts, ended_text = _probe_here(settings, plan, folder)
        world_size = int(plan.phases[SMOKE].parallel.world_size)
        present = rank_presence_check(facts, world_size, ended_text)
        group_checks = _group_checks(
            facts,
            world_size,
            present,
            "",
            settings,
            plan,
            expected,
        )
        results.append(RungResult(GROUPS, tuple(group_checks), time.monotonic() - start))
        return replace(_result(results, answers), ranks=tuple(facts))


def _probe_here(settings: Settings, plan: Plan, folder: Path) -> tuple[list[ProbeAnswer], str]:
    """Start the ranks with the local scheduler, in place of the trainer used in the smoke test."""
    world_size = int(plan.phases[SMOKE].parallel.world_size)
    python = settings.site.python or sys.executable
    options = _probe_options(settings, plan, folder, world_size)
    argv = [python, "-m", "runbook.training.probe", *options]
    script = render_local(settings, replace(plan.phases[SMOKE], phase=ENVIRONMENT), argv)
    # The job folder is not in jobs/, because the probe is not part of the run.
    job = JobFolder(folder / "environment" / "job")
    shutil.rmtree(job.path, ignore_errors=True)
    write_job(job, RenderedJob(script, list(argv)))
    scheduler = get_scheduler(settings.site)
    scheduler.submit(job)
    try:
        _wait_for_end(lambda: scheduler.state(job), LOCAL_RUNG_SECONDS)
    finally:
        if not scheduler.state(job).final:
            scheduler.cancel(job)

    return read_facts(folder / ANSWERS), _first_end(job)


def _wait_for_end(state: Callable[[], JobStatus], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not state().final and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _first_end(job: JobFolder) -> str:
    """Return which process in the job ended first, and how, according to stderr."""
    return first_end(job_folder.read_text(job.err))


def _result(results: Sequence[RungResult], answers: JobAnswers, job: str = "") -> PreflightResult:
    rung_names = {rung.name for rung in results}
    not_asked = tuple(name for name in RUNGS if name not in rung_names)
    return PreflightResult(tuple(results), not_asked, job, answers.as_dict())


def _climb_in_queue(
    settings: Settings,
    plan: Plan,
    folder: Path,
    first: RungResult,
    report: Report,
    wait_seconds: float,
) -> PreflightResult:
    """Submit one job that runs all stages.

    Check each stage when it ends. The first defect ends the job.
    """
    job = preflight_job(settings)
    settings, exclusion = without_bad_nodes(settings, job.nodes)
    if exclusion.as_text():
        report(exclusion.as_text())
    world_size = job.nodes * job.devices_per_node
    expected = expectations_of(settings, plan, job.walltime)
    with (
        _answers_folder(folder) as (answers_folder, token),
        _outer_checkpoints(settings, plan, folder, token) as outer_folders,
    ):
        options = tuple(_probe_options(settings, plan, folder, world_size))
        questions = PreflightQuestions((answers_folder, *outer_folders), token, options)
        rendered = render_preflight(settings, plan.phases[FULL], PACKAGE, questions)
        job_folder = next_job_folder(folder, PREFLIGHT_PHASE)
        write_job(job_folder, rendered)
        watch = QueueWatch(settings, job_folder, report, wait_seconds)
        with watch.submitted() as refused:
            if refused is not None:
                rung = RungResult("queue", (refused,), watch.seconds())
                return PreflightResult((first, rung), RUNGS, str(job_folder.path))

            results = [first]
            for name in RUNGS:
                answers, broken = watch.wait_for(name)
                checks = _checks_of(
                    name,
                    answers,
                    settings,
                    plan,
                    expected,
                    folder,
                    job_folder,
                )
                if broken is not None:
                    # The answers that the nodes wrote just before the job ended reveal more about
                    # the cause.
                    failed = [check for check in checks if check.verdict == "fail"]
                    checks = failed if failed and answers.nodes else [broken]
                    checks = with_early_end(checks, answers, name, broken)

                # If the queue ended the job, missing answers are a consequence.
                ended = watch.why_queue_ended(name)
                if ended is not None and any(check.verdict == "fail" for check in checks):
                    checks = [ended]

                checks = with_likely_cause(checks, results)
                if name == HOSTS:
                    checks = watch.with_routes(checks, answers)
                results.append(RungResult(name, tuple(checks), watch.seconds()))
                if results[-1].is_defect:
                    break

        if not any(rung.is_defect for rung in results):
            results += watch.rung_after_job()
        facts = tuple(read_facts(answers_folder))
        result = replace(_result(results, answers, str(job_folder.path)), ranks=facts)
        _report_bad_nodes(settings, result, answers, job_folder.path.name)
        return result


def _report_bad_nodes(
    settings: Settings,
    result: PreflightResult,
    answers: JobAnswers,
    job: str,
) -> None:
    """Record the nodes that a failed check blames.

    If a check blames every node, the cause is the site, and no node is recorded.
    """
    for check in result.checks:
        if check.name in PASSING_FAULTS:
            continue
        blamed = check.nodes if isinstance(check, PlacedCheck) else ()
        if check.verdict == "fail" and 0 < len(blamed) < len(answers.nodes):
            evidence = f"{check.name}: {check.value}"
            report_bad_nodes(
                settings,
                blamed,
                FoundBy.PREFLIGHT,
                evidence,
                job,
            )


def _checks_of(
    name: str,
    answers: JobAnswers,
    settings: Settings,
    plan: Plan,
    expected: Expectations,
    folder: Path,
    job: JobFolder,
) -> list[Check]:
    """Check one stage of the job."""
    if name in JUDGES:
        checks = [*JUDGES[name](answers, expected), *step_end_check(answers, name)]
        return _with_first_end(checks, job)
    planned_job = preflight_job(settings)
    world_size = planned_job.nodes * planned_job.devices_per_node
    facts = read_facts(folder / ANSWERS)
    output = job_folder.read_text(job.out)
    present = rank_presence_check(facts, world_size, _first_end(job), answers.nodes)
    # Ranks on the same core may look like a hung group, so this check comes first.
    binding = binding_check(facts, cores_of_hosts(answers))
    others = _group_checks(
        facts,
        world_size,
        present,
        output,
        settings,
        plan,
        expected,
    )
    return [binding, *others]


def with_likely_cause(checks: Sequence[Check], earlier: Sequence[RungResult]) -> list[Check]:
    """Add to the first failure how the blamed nodes differ from the others.

    The nodes were compared in an earlier stage, where most differences are only warnings.
    """
    reported = list(checks)
    failed = next((check for check in reported if check.verdict == "fail"), None)
    if failed is None:
        return reported
    nodes = failed.nodes if isinstance(failed, PlacedCheck) else ()
    compared = [check for rung in earlier for check in rung.checks]
    differences = differences_of(compared, nodes)
    if differences:
        value = PhaseMessage.LIKELY_CAUSE.fill(
            differences="; ".join(differences), value=failed.value
        )
        reported[reported.index(failed)] = replace(failed, value=value)
    return reported


def with_early_end(
    checks: Sequence[Check], answers: JobAnswers, rung: str, broken: PlacedCheck
) -> list[Check]:
    """Report how the job ended if it ended the program on a node before the last answer.

    If the first failure is only a missing answer, the end of the job takes its place, because the
    failed check says nothing about the cause. Otherwise, the end is added to the failure.
    """
    failure = checks[0]
    # A silent node's failure already contains the last error message.
    has_cause = failure == broken or failure.name.startswith(ANSWERED)
    if rung not in JUDGES or has_cause or answers.has_ended(rung):
        return list(checks)
    missing_texts = [by_node(answers.missing(rung, part)) for part in answers.parts(rung)]
    if isinstance(failure, PlacedCheck) and failure.value in missing_texts:
        value = f"{broken.value}. {failure.name}: {failure.value}"
        ending = replace(broken, value=value, nodes=failure.nodes, where=failure.where)
        return [ending, *checks[1:]]
    return [replace(failure, value=f"{failure.value}. {broken.value}"), *checks[1:]]


def _with_first_end(checks: Sequence[PlacedCheck], job: JobFolder) -> list[Check]:
    """If a node did not answer or its setup failed, add how its program ended to the failure."""
    reported: list[Check] = list(checks)
    failed = next((check for check in checks if check.verdict == "fail"), None)
    if failed is None:
        return reported
    is_about_programs = failed.name.startswith(ANSWERED) or failed.name == NODE_SETUP_RULE.name
    first_end = _first_end(job) if is_about_programs else ""
    if first_end:
        place = checks.index(failed)
        reported[place] = replace(failed, value=f"{failed.value}. {first_end}")
    return reported


def _group_checks(
    facts: Sequence[ProbeAnswer],
    world_size: int,
    present: PlacedCheck,
    output: str,
    settings: Settings,
    plan: Plan,
    expected: Expectations,
) -> list[Check]:
    """Check the last stage. Checks that need all ranks are made only if all ranks answered."""
    # If a rank never started, the other ranks fail to connect as a consequence.
    reasons = set()
    for rank in facts:
        reasons.update(rank["errors"])
    reasons.discard("group")

    if present.verdict == "fail" and not reasons:
        return [present]
    met = meeting_check(facts, world_size)
    if met.verdict == "fail":
        imports = probe_checks(facts, settings.site, plan, expected.framework)[:3]
        return [*[check for check in imports if check.verdict == "fail"], met]

    if present.verdict == "fail":
        return [present]
    num_hosts = len({rank["host"] for rank in facts})
    checks: list[Check] = [
        present,
        met,
        groups_check(facts, expected),
        bandwidth_check(facts, expected),
        transport_check(output, num_hosts, expected),
    ]
    for check in probe_checks(facts, settings.site, plan, expected.framework):
        # The check above has already measured the bandwidth between all ranks.
        if check.name != "all-reduce":
            checks.append(check)

    return checks


class QueueWatch:
    """A queue job, from its submission to its end.

    The watch reports the job state in the words that the queue uses.
    """

    def __init__(
        self,
        settings: Settings,
        job: JobFolder,
        report: Report,
        wait_seconds: float,
    ) -> None:
        self._settings = settings
        self._scheduler = get_scheduler(settings.site)
        self._job = job
        self._report = report
        self._wait_seconds = wait_seconds
        self._since = time.monotonic()
        self._shown = ""

    def seconds(self) -> float:
        """Return the seconds since the last call."""
        now_seconds = time.monotonic()
        seconds = now_seconds - self._since
        self._since = now_seconds
        return seconds

    @contextmanager
    def submitted(self) -> Iterator[PlacedCheck | None]:
        """Submit the job, wait until it starts, and yield the reason if it did not start.

        The job is cancelled at the end of the block.
        """
        rule = PlacedRule(
            PreflightCheck.QUEUE,
            f"the queue accepts the job and starts it within {show_duration(self._wait_seconds)}",
        )
        try:
            refused = self._submit(rule)
            yield refused or self._wait_for_begin(rule)
        finally:
            # A signal may have interrupted this process between the submission and the queue's
            # reply, so the job is found by its name.
            if self._job.was_submitted() and not self._scheduler.state(self._job).final:
                self._scheduler.cancel(self._job, grace_seconds=8)

    def _submit(self, rule: PlacedRule) -> PlacedCheck | None:
        """Submit the job; return why the queue refused it, or None."""
        try:
            self._scheduler.submit(self._job)
        except (JobError, ProgramError) as error:
            return rule.broken(
                str(error), remedy="Change jobs.environment as the queue's message suggests."
            )

        return None

    def _wait_for_begin(self, rule: PlacedRule) -> PlacedCheck | None:
        deadline = time.monotonic() + self._wait_seconds
        while True:
            status = self._scheduler.state(self._job)
            self._tell(status)
            if status.state is JobState.RUNNING or status.final:
                return None
            if time.monotonic() > deadline:
                value = (
                    f"not started after {show_duration(self._wait_seconds)}; the queue "
                    f"says: {status.reason}"
                )
                completing = self._completing_text()
                if completing:
                    remedy = PhaseMessage.END_COMPLETING.fill()
                    return rule.broken(f"{value}; {completing}", remedy=remedy)
                remedy = (
                    "Request fewer nodes or another partition (jobs.environment), or wait "
                    "longer (--wait)."
                )
                return rule.broken(value, remedy=remedy)

            time.sleep(POLL_SECONDS)

    def _completing_text(self) -> str:
        """Return which nodes still clean up after an ended job, so that no job starts there."""
        queue = get_queue(self._settings.site)
        if not isinstance(queue, Slurm):
            return ""
        texts = []
        with suppress(JobError, ProgramError):
            for job, nodes in queue.completing_jobs(preflight_job(self._settings).partition):
                texts.append(PhaseMessage.NODES_COMPLETING.fill(nodes=nodes, job=job))
        return "; ".join(texts[:SHOWN_NODES])

    def _tell(self, status: JobStatus) -> None:
        text = f"job {status.job_id} is {status.state}"
        if status.state is not JobState.RUNNING:
            text += f": {status.reason}"
        if text != self._shown:
            self._report(text)
            self._shown = text

    def wait_for(self, rung: str) -> tuple[JobAnswers, PlacedCheck | None]:
        """Wait until the nodes have finished a stage.

        Return the answers, and the reason if the job ended too early.
        """
        self._report(f"rung {rung}")
        deadline = time.monotonic() + preflight_job(self._settings).walltime + SILENT_SECONDS
        while True:
            status = self._scheduler.state(self._job)
            answers = parse_job_answers(job_folder.read_text(self._job.out))
            code = answers.exit_code(rung)
            if code == 0:
                return answers, None
            if code is not None or status.final:
                return answers, self._why_broken(rung, status, code)
            # Slurm requeues a job that lost a node, and the job may then wait forever.
            is_put_back = status.state is JobState.PENDING
            if is_put_back or time.monotonic() > deadline:
                return answers, self._why_broken(rung, status, code)
            time.sleep(POLL_SECONDS)

    def why_queue_ended(self, rung: str) -> PlacedCheck | None:
        """Return why the queue says that it ended the job, or None if it did not."""
        end = queue_end(job_folder.read_text(self._job.err))
        if end is None:
            return None
        if end.lost_nodes:
            return self._ending_rule(rung).broken(end.words, end.lost_nodes)
        drained = self._drained_nodes()
        if not drained:
            return self._ending_rule(rung).broken(end.words)
        reasons = "; ".join(map(str, drained))
        value = PhaseMessage.QUEUE_DRAINED_NODES.fill(reasons=reasons, ending=end.words)
        remedy = PhaseMessage.REPAIR_DRAINED_NODES.fill()
        names = [nodes.names for nodes in drained]
        return self._ending_rule(rung).broken(value, names, remedy=remedy)

    def with_routes(self, checks: Sequence[Check], answers: JobAnswers) -> list[Check]:
        """Add which path to a silent node is broken, or the interface of a wrong route.

        The Slurm controller can start a program on a node that the first node in the job does not
        reach.
        """
        reported = list(checks)
        queue = get_queue(self._settings.site)
        failed = next((check for check in reported if check.verdict == "fail"), None)
        if not isinstance(queue, Slurm) or not isinstance(failed, PlacedCheck):
            return reported
        if failed.name != f"{ANSWERED} ({HOSTS})" or len(failed.nodes) == len(answers.nodes):
            return reported
        number = self._scheduler.state(self._job).job_id.rpartition("-")[2]
        for node in failed.nodes[:SHOWN_NODES]:
            text, remedy = self._path_fault(queue, number, node, answers)
            if text:
                value = f"{text}. {failed.value}"
                reported[reported.index(failed)] = replace(failed, value=value, remedy=remedy)
                break

        return reported

    def _path_fault(
        self, queue: Slurm, number: str, node: str, answers: JobAnswers
    ) -> tuple[str, str]:
        """Return why packets to a silent node get lost, with the remedy. Empty if it is unknown."""
        interfaces_of = answers.facts(HOSTS, "interfaces")
        try:
            tables = queue.node_output(number, node, "cat", "/proc/net/route", "/proc/net/arp")
            routes, _, neighbours = tables.partition("IP address")
            text = overlap_text(routes, interfaces_of)
            fixed = neighbour_text(neighbours, interfaces_of)
        except (JobError, ProgramError, ValueError):
            return "", ""

        if text:
            return f"{node}: {text}", ROUTES_REMEDY
        if fixed:
            return f"{node}: {fixed}", PhaseMessage.DELETE_NEIGHBOUR.fill()
        # Slurm has just started a program there, as requested from this machine.
        if node in unreached_nodes(job_folder.read_text(self._job.err)):
            first = answers.nodes[0]
            text = PhaseMessage.PACKETS_LOST_BETWEEN.fill(node=node, first=first)
            return text, PATH_REMEDY
        return self._way_back_fault(queue, number, node, answers), PATH_REMEDY

    def _way_back_fault(self, queue: Slurm, number: str, node: str, answers: JobAnswers) -> str:
        """Return that a node cannot connect to srun on the first node, or an empty string.

        A port on which nothing listens refuses a connection at once. If there is no answer at all,
        a firewall drops the packets.
        """
        first = answers.nodes[0]
        try:
            configured = queue.configuration().get(SRUN_PORTS, "")
            port = re.match(r"\d+", configured)
            if node == first or port is None:
                return ""
            connect = f"timeout {WAY_BACK_SECONDS} bash -c ': </dev/tcp/{first}/{port[0]}'"
            output = queue.node_output(
                number, node, "bash", "-c", f"{connect} 2>/dev/null; echo code $?"
            )
        except (JobError, ProgramError):
            return ""

        if f"code {TIMED_OUT_CODE}" not in output:
            return ""
        return PhaseMessage.LAUNCH_UNANSWERED.fill(
            node=node, first=first, port=port[0], range=f"{SRUN_PORTS}={configured}"
        )

    def rung_after_job(self) -> list[RungResult]:
        """Return a failed check if the queue drained a node after the job had ended.

        Slurm drains a node if the site's epilog fails there, and the next job then waits for the
        node.
        """
        queue = get_queue(self._settings.site)
        if not isinstance(queue, Slurm):
            return []
        number = self._scheduler.state(self._job).job_id.rpartition("-")[2]
        deadline = time.monotonic() + LEAVING_SECONDS
        with suppress(JobError, ProgramError):
            while queue.is_leaving(number) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        drained = self._drained_nodes()
        if not drained:
            return []
        names = [nodes.names for nodes in drained]
        check = DRAINED_RULE.broken("; ".join(map(str, drained)), names)
        return [RungResult(AFTER_JOB, (check,), self.seconds())]

    def _drained_nodes(self) -> list[UnusableNodes]:
        """Return the nodes in the job that Slurm no longer uses, such as after a failed prolog."""
        names = parse_job_answers(job_folder.read_text(self._job.out)).nodes
        queue = get_queue(self._settings.site)
        if not isinstance(queue, Slurm) or not names:
            return []
        drained: list[UnusableNodes] = []
        for name in names:
            with suppress(JobError):
                drained += queue.unusable_nodes("", [name])
        return drained

    def _ending_rule(self, rung: str) -> PlacedRule:
        return PlacedRule(
            f"job ({rung})",
            "the job runs to its end",
            f"See {self._job.err} for the launcher's own messages.",
        )

    def _why_broken(
        self,
        rung: str,
        status: JobStatus,
        code: int | None,
    ) -> PlacedCheck:
        rule = self._ending_rule(rung)
        lines = [line for line in job_folder.log_tail(self._job.err, 6) if line.strip()]
        last_lines = " | ".join(lines[-3:])
        if code is not None:
            ending = shell.how_it_ended(code)
            return rule.broken(f"the launcher of rung {rung} ended with {ending}: {last_lines}")

        value = f"the job is {status.state} ({status.reason}) {last_lines}".strip()
        if status.state is JobState.PENDING:
            value = (
                f"a node was lost, and the queue requeued the job: {status.reason}. {last_lines}"
            ).strip()

        if not self._job.out.exists():
            value += (
                f". It wrote nothing, because the node could not open {self._job.out}, so the "
                "run's folder is missing or read-only there"
            )

        return rule.broken(value)


def write_answers(folder: Path, result: PreflightResult) -> Path:
    """Save the complete result in the run folder, for comparison with the next preflight.

    If the result has a defect, such as a full disk, it is shown even if it cannot be saved.
    """
    path = folder / "environment" / "preflight.json"
    content = result.as_dict() | {"ranks": list(result.ranks)}
    try:
        write_text(path, json.dumps(content, indent=1) + "\n")
    except RecordError:
        if result.defect is None:
            raise
    return path
