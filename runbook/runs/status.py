"""Reports the status of runs and jobs, which is always read from files.

The module also shows logs, and cancels and stops jobs.
"""

import dataclasses
import difflib
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runbook import params
from runbook.core.checks import Check, counted
from runbook.core.errors import JobError, ParamsError, RunbookError
from runbook.core.files import read_lines, write_text
from runbook.core.table import Row
from runbook.core.units import show_duration
from runbook.display import Table
from runbook.jobs import job_folder
from runbook.jobs.job_folder import ACTIVE, JobFolder, JobState, JobStatus, Scheduler
from runbook.jobs.job_request import element_folders, read_job_request
from runbook.jobs.queue import QueueScheduler
from runbook.jobs.schedulers import LOCAL, SCHEDULER_NAMES, scheduler_named
from runbook.jobs.watcher_wait import read_wait
from runbook.params.catalogues import read_site
from runbook.params.project import find_run_file, run_names
from runbook.plan_file.errors import RefusedError
from runbook.plan_file.fewer_replicas import newest_change
from runbook.plan_file.phase_names import FULL, PHASES, SMOKE
from runbook.plan_file.schema import read_plan
from runbook.records.manifest import changed_records
from runbook.records.run_state import NOT_RUN, OUTDATED, RunState, read_run, read_runs
from runbook.results.expected_loss import ExpectedLoss, newest_expected_loss
from runbook.results.history import read_events
from runbook.results.near_copy_counts import NearCopyCounts, near_copies
from runbook.runs.bad_nodes import FILE_NAME, bad_node_rows, read_bad_nodes
from runbook.runs.messages import RunMessage
from runbook.runs.run_files import recorded_value
from runbook.runs.run_folder import runs_folder

POLL_SECONDS = 0.5
LIVING = (*ACTIVE, JobState.UNKNOWN)
"""States in which a job may still have to be cancelled."""


def run_folder(name: str, runs: Path | None = None) -> Path:
    """Find the run folder, given a name, `RUN:VARIANT` or a path.

    Raise an error that lists the nearest names if the folder does not exist.
    """
    if (Path(name) / "run.yaml").exists():
        return Path(name).absolute()
    root = runs or runs_folder(_project_of(name))
    stem = name.removesuffix(".yaml").rpartition("/")[2].replace(":", "--")
    if (root / stem / "run.yaml").exists():
        return (root / stem).absolute()
    names = [path.parent.name for path in sorted(root.glob("*/run.yaml"))]
    near = difflib.get_close_matches(stem, names) or names
    if near:
        there = f"; there are {', '.join(near)}"
    else:
        there = "; there are no runs yet"

    if "/" in name and Path(name).is_dir():
        raise ParamsError(RunMessage.FOLDER_OF_NO_RUN, folder=Path(name).absolute(), there=there)
    raise ParamsError(
        RunMessage.NO_SUCH_RUN_FOLDER, root=root / stem, there=there, stem=_how_to_begin(stem, name)
    )


def _how_to_begin(stem: str, name: str) -> str:
    """Return the command to create a run folder, or a note that params/ has no such run."""
    run = stem.partition("--")[0]
    try:
        names = run_names(_project_of(name))
    except ParamsError:
        # --runs may name a folder outside any project
        names = []

    if run in names or not names:
        return f"Create it with runbook run {stem}, or without training: runbook run {stem} --to 00-plan."
    near = difflib.get_close_matches(run, names)
    if near:
        hint = f"Did you mean {' or '.join(near)}?"
    else:
        hint = f"The runs are: {', '.join(names)}."

    return f"params/ has no run file {run}.yaml either. {hint}"


def _project_of(name: str) -> Path:
    """Return the project for a run file if its path is given, or else for the current folder."""
    is_run_file = name.endswith((".yaml", ".yml")) and Path(name).is_file()
    if is_run_file:
        return find_run_file(name).project
    return params.project_root()


def job_folders(folder: Path) -> list[JobFolder]:
    """Return all jobs in a run, by phase and attempt."""
    paths = [path for path in (folder / "jobs").glob("*/") if (path / "job.json").exists()]
    return [JobFolder(path) for path in sorted(paths, key=lambda path: _attempt(path.name))]


def active_jobs(
    folder: Path,
    scheduler: Scheduler,
    states: Collection[JobState] = ACTIVE,
) -> list[tuple[JobFolder, JobStatus]]:
    """Return the jobs that are in one of these states, with their current status.

    By default, these are the jobs that have not ended.
    """
    job_states = [(job, scheduler.state(job)) for job in job_folders(folder)]
    return [(job, status) for job, status in job_states if status.state in states]


def _attempt(name: str) -> tuple[str, int, str]:
    """Return the sort key for a job: phase, attempt, and the part of the work that it does."""
    for phase in PHASES:
        if name == phase or name.startswith(f"{phase}-"):
            suffix = name[len(phase) + 1 :]
            part, _, number = suffix.rpartition("-")
            if number.isdigit():
                return phase, int(number), part
            return phase, 1, f"{part}-{number}"

    return name, 0, ""


def scheduler_of(folder: Path) -> Scheduler:
    """Return the scheduler that the jobs were submitted to, as named in their records.

    The run file is read only if no record names one: a running job can be cancelled even if its
    dataset, model or site has left params/ since.
    """
    jobs = job_folders(folder)
    records = [job_folder.read_record(job) for job in jobs]
    named = [record for record in records if record and record.kind in SCHEDULER_NAMES]
    if named:
        newest = max(named, key=lambda record: record.submitted)
        return scheduler_named(newest.kind)
    if not jobs:
        # There is no job that any scheduler could know.
        return scheduler_named(LOCAL)
    # A crash left the jobs' records empty.
    run_file = find_run_file(str(folder / "run.yaml"))
    site, _ = read_site(str(recorded_value(folder, "site")), run_file.project)
    return scheduler_named(site.scheduler)


def all_runs_folder(runs: Path | None) -> Path:
    """Return the folder that the user named, or else the folder with all runs of this project."""
    return runs or runs_folder(params.project_root())


def status_of_all(runs: Path | None) -> str:
    """Return a table of all runs."""
    states = sorted(read_runs(all_runs_folder(runs)), key=lambda run: run.name)
    if not states:
        return RunMessage.NO_RUNS_YET.fill()
    rows = []
    for run in states:
        age_seconds = max(0.0, time.time() - run.changed.timestamp())
        if run.problem:
            numbers = run.problem.splitlines()[0]
        else:
            numbers = _numbers_in_short(run)

        rows.append(
            {
                "run": run.name,
                "phase": run.phase,
                "state": run.state,
                "verdict": run.verdict,
                "age": show_duration(age_seconds),
                "numbers": numbers,
            }
        )

    return Table(rows).as_text()


def facts_of_all(runs: Path | None) -> list[dict[str, object]]:
    """Return the status of every run as plain data, sorted by name."""
    states = sorted(read_runs(all_runs_folder(runs)), key=lambda run: run.name)
    return [_run_facts(run) for run in states]


def facts_of_one(name: str, runs: Path | None) -> dict[str, object]:
    """Return the status of one run as plain data, with its phases and jobs."""
    run = read_run(run_folder(name, runs))
    phases = []
    for phase in run.phases:
        phases.append(
            {
                "phase": phase.phase,
                "state": str(phase.state),
                "verdict": phase.record.verdict if phase.record else "",
                "started": phase.record.started if phase.record else "",
                "ended": phase.record.ended if phase.record else "",
                "problem": phase.problem,
            }
        )

    jobs: list[Row] = []
    if not run.problem:
        scheduler = scheduler_of(run.folder)
        jobs = [_job_row(job, scheduler.state(job)) for job in job_folders(run.folder)]

    expected = _expected_loss(run.folder)
    loss = None
    if expected is not None:
        loss = {
            "iteration": expected.iteration,
            "loss": expected.loss,
            "low": expected.low,
            "high": expected.high,
            "left_sealed_interval": expected.has_left,
        }

    copies = _near_copies(run.folder)
    return {
        **_run_facts(run),
        "phases": phases,
        "jobs": jobs,
        "expected_loss": loss,
        "near_copies": dataclasses.asdict(copies) if copies is not None else None,
        "fewer_replicas": _fewer_replicas(run.folder),
    }


def _fewer_replicas(folder: Path) -> dict[str, object] | None:
    """Return facts about the iteration where training continued on fewer replicas than planned.

    Return None if all replicas train.
    """
    try:
        plan = read_plan(folder / "plan.json", FULL)
    except RefusedError:
        return None

    events = read_lines(folder / plan.log.events)
    change = newest_change(event for event in events if event.get("phase") == FULL)
    if change is None or change["replicas"] == change["planned_replicas"]:
        return None
    names = ("iteration", "replicas", "planned_replicas", "world_size")
    return {name: change[name] for name in names}


def _expected_loss(folder: Path) -> ExpectedLoss | None:
    """Return the final loss forecast from the loss curve, or None if there is no curve."""
    try:
        plan = read_plan(folder / "plan.json", FULL)
    except RefusedError:
        return None

    return newest_expected_loss(folder, plan)


def _near_copies(folder: Path) -> NearCopyCounts | None:
    """Return a summary of the events about copies in node memory, or None."""
    return near_copies(read_events(folder / "events.jsonl", FULL))


def _run_facts(run: RunState) -> dict[str, object]:
    return {
        "run": run.name,
        "folder": str(run.folder),
        "phase": run.phase,
        "state": str(run.state),
        "verdict": run.verdict,
        "changed": run.changed.isoformat(timespec="seconds"),
        "problem": run.problem,
        "numbers": run.numbers,
    }


def status_of_one(name: str, runs: Path | None) -> str:
    """Return the phases and jobs of a run.

    For active jobs, also return the queue state and the last lines from the logs.
    """
    folder = run_folder(name, runs)
    run = read_run(folder)
    parts = [str(folder), phases_table(run).as_text()]
    parts += [phase.problem for phase in run.phases if phase.problem]
    if run.problem:
        parts.append(f"{run.problem}\nUntil this is fixed, the queue of its jobs is unknown.")
        return "\n\n".join(parts)

    scheduler = scheduler_of(folder)
    jobs = [(job, scheduler.state(job)) for job in job_folders(folder)]
    living = [job for job, status in jobs if status.state in LIVING]
    job_rows = _without_empty_columns([_job_row(job, status) for job, status in jobs])
    queue_rows = _queue_rows(scheduler, living)
    if job_rows:
        parts.append(Table(job_rows).as_text())
    if queue_rows:
        parts.append(Table(queue_rows).as_text())
    parts += _training_texts(folder)
    for job in living:
        parts += _log_tails(job)
    site = str(recorded_value(folder, "site"))
    bad_nodes = read_bad_nodes(folder.parent / site / FILE_NAME, time.time())
    if bad_nodes:
        parts.append(Table(bad_node_rows(bad_nodes), title=f"Bad nodes of {site}").as_text())
    return "\n\n".join(parts)


def _training_texts(folder: Path) -> list[str]:
    """Return what the trainer itself reports: lost replicas, expected loss, copies in memory."""
    texts = []
    fewer = _fewer_replicas(folder)
    if fewer is not None:
        texts.append(
            RunMessage.FEWER_REPLICAS.fill(
                replicas=fewer["replicas"],
                planned_replicas=fewer["planned_replicas"],
                iteration=fewer["iteration"],
            )
        )

    expected = _expected_loss(folder)
    if expected is not None:
        texts.append(f"Expected final loss: {expected.as_text()}")
    copies = _near_copies(folder)
    if copies is not None:
        texts.append(RunMessage.COPIES_IN_MEMORY.fill(copies=copies.as_text()))
    return texts


def _without_empty_columns(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without the columns that are empty in every row."""
    filled_rows: list[Row] = []
    for row in rows:
        filled = {}
        for key, value in row.items():
            if any(any_row[key] for any_row in rows):
                filled[key] = value

        filled_rows.append(filled)

    return filled_rows


def _log_tails(job: JobFolder) -> list[str]:
    """Return the last lines from each log, below the path to it. Empty logs are left out."""
    tails = []
    for log in _logs(job):
        lines = job_folder.log_tail(log, 6)
        if lines:
            tails.append("\n".join([f"==> {log} <==", *lines]))

    return tails


def phases_table(run: RunState) -> Table:
    """Return the state, verdict, end and key results of each phase."""
    rows = []
    for phase in run.phases:
        row = {"phase": phase.phase, "state": phase.state}
        record = phase.record
        if record:
            row["verdict"] = record.verdict
            row["ended"] = _to_the_second(record.ended)
            row["numbers"] = _numbers(record.results)
        else:
            row["verdict"] = ""
            row["ended"] = ""
            row["numbers"] = ""

        rows.append(row)

    return Table(rows)


def state_checks(folders: Sequence[Path], phase: str) -> list[Check]:
    """Return a warning for each run whose results are in doubt, to be shown with them.

    They are if the phase is not done, or if files with numbers were changed after they were
    recorded. A phase that was never executed has no state.
    """
    checks = []
    for folder in dict.fromkeys(folders):
        states = {state.phase: state.state for state in read_run(folder).phases}
        if states[phase] not in ("done", NOT_RUN):
            check = Check(
                f"{folder.name}: {phase}",
                "warn",
                states[phase],
                RunMessage.PHASE_IS_DONE.fill(),
            )
            checks.append(check)

        changed = [f"{finding.kind}: {finding.file}" for finding in changed_records(folder)]
        if changed:
            check = Check(
                f"{folder.name}: files",
                "warn",
                ", ".join(changed),
                RunMessage.FILES_ARE_AS_RECORDED.fill(),
            )
            checks.append(check)

    return checks


def _to_the_second(moment: str) -> str:
    """Return a recorded time without fractions of a second; empty while there is none."""
    if not moment:
        return ""
    return f"{moment[:19].replace('T', ' ')} UTC"


def _job_row(job: JobFolder, status: JobStatus) -> Row:
    """Return name, id, state, time, partition and nodes for a job, and the reason for its state."""
    elapsed = ""
    if status.started is not None:
        ended = status.ended or time.time()
        elapsed = show_duration(ended - status.started)

    return {
        "job": job.path.name,
        "id": status.job_id,
        "state": str(status.state),
        "time": elapsed,
        "partition": read_job_request(job).partition,
        "nodes": _nodes(job),
        "why": status.reason,
    }


def _nodes(job: JobFolder) -> str:
    """Return the hosts recorded by a job, or the hosts it started on if it recorded none.

    Return an empty string if no hosts are known.
    """
    if job.hostfile.exists():
        return ",".join(job.hostfile.read_text(encoding="utf-8").split())
    started = [job_folder.read_started(part) for part in element_folders(job) or [job]]
    hosts = [record.identity.host for record in started if record]
    return ",".join(dict.fromkeys(hosts))


def _numbers(results: Mapping[str, object]) -> str:
    """Return the first and last loss and the throughput.

    Return an empty string if there is no loss.
    """
    if results.get("last_loss") is None:
        return ""
    first = _number(results.get("first_loss"), ".2f")
    last = _number(results["last_loss"], ".2f")
    text = f"loss {first} to {last}"
    if results.get("tokens_per_second"):
        text += f", {_number(results['tokens_per_second'], ',.0f')} tokens/s"
    return text


def _numbers_in_short(run: RunState) -> str:
    """Return the newest loss and throughput of a run.

    A running training has no results yet. Then the numbers are those of the smoke test, and say so.
    """
    text = _numbers(run.numbers)
    if not text:
        return ""
    trained = ""
    for phase in run.phases:
        has_loss = phase.record is not None and "last_loss" in phase.record.results
        if has_loss and phase.state != OUTDATED:
            trained = phase.phase

    if trained == SMOKE and run.phase != SMOKE:
        return f"{SMOKE}: {text}"
    return text


def _number(value: Any, form: str) -> str:
    """Format a number for a table.

    A loss of `nan`, or a value edited in a record, is shown unchanged.
    """
    if isinstance(value, int | float):
        return f"{value:{form}}"
    return str(value)


def _queue_rows(scheduler: Scheduler, jobs: Iterable[JobFolder]) -> Sequence[Row]:
    """Return the state of the partitions that these jobs use.

    Return no rows on a machine without a queue.
    """
    partitions: set[str] = set()
    for job in jobs:
        partitions.update(read_job_request(job).partition.split(","))
    names = sorted(partitions - {""})
    if not names or not isinstance(scheduler, QueueScheduler):
        return []
    try:
        return scheduler.queue.queues(names)
    except RunbookError as error:
        return [{"queue": ", ".join(names), "state": f"not known: {error}"}]


def _logs(job: JobFolder) -> list[Path]:
    """Return every log written by a job, including those of array elements."""
    logs = []
    for part in (*element_folders(job), job):
        for log in (part.out, part.err):
            logs.append(log)

    return logs


def find_job(job_id: str, runs: Path | None) -> str:
    """Return the folder for the job with this id."""
    for path in sorted((runs or runs_folder(params.project_root())).glob("*/run.yaml")):
        for job in job_folders(path.parent):
            if _has_id(job, job_id.strip()):
                return f"{path.parent.name}: {job.path}"

    raise JobError(RunMessage.UNKNOWN_JOB_ID, job_id=job_id)


def _has_id(job: JobFolder, word: str) -> bool:
    """Return whether a job has this id.

    The id may be in our format (slurm-12) or in that of the queue (12, 12.server, 12_3, 12[3]).
    """
    record = job_folder.read_record(job)
    started = job_folder.read_started(job)
    ids: set[str] = set()
    if record:
        ids |= {record.job_id, record.queue_id}
    if started:
        ids.add(started.job_id)
    ids |= {name.partition("-")[2] for name in ids}
    ids |= {name.partition(".")[0].removesuffix("[]") for name in ids}
    array_id = re.split(r"[_.\[]", word, maxsplit=1)[0]
    return bool(word) and (word in ids or array_id in ids)


def refuse_while_a_job_runs(folder: Path, scheduler: Scheduler) -> None:
    """Raise an error if an active job in the run may write to files about to be moved."""
    for job, status in active_jobs(folder, scheduler):
        raise JobError(
            RunMessage.JOB_AT_WORK,
            job=job.path,
            state=status.state,
            reason=status.reason,
            folder_name=folder.name,
        )


def jobs_that_continue(folder: Path, scheduler: Scheduler) -> list[str]:
    """Return a line about each active job, for a command that ends before the jobs do.

    A job counts as active if its state is unknown, for example because the queue does not answer.
    """
    return [
        RunMessage.JOB_CONTINUES.fill(
            job_name=job.path.name,
            state=status.state,
            reason=status.reason,
            folder_name=folder.name,
        )
        for job, status in active_jobs(folder, scheduler, LIVING)
    ]


def cancel_jobs(folder: Path, scheduler: Scheduler) -> str:
    """Cancel every active job in a run."""
    ends = [(job, scheduler.cancel(job)) for job, _ in active_jobs(folder, scheduler, LIVING)]
    lines = []
    for job, status in ends:
        line = RunMessage.JOB_CANCELLED.fill(
            job_name=job.path.name, state=status.state, reason=status.reason
        )
        lines.append(line)

    lines += _end_waits(folder)
    return "\n".join(lines) or RunMessage.NOTHING_CANCELLED.fill()


def stop_jobs(folder: Path, scheduler: Scheduler) -> str:
    """Ask every active job in a run to save and stop, as a queue does before its time limit."""
    lines = [_request_stop(job, scheduler) for job, _ in active_jobs(folder, scheduler)]
    lines += _end_waits(folder)
    return "\n".join(lines) or RunMessage.NOTHING_STOPPED.fill()


def _end_waits(folder: Path) -> list[str]:
    """Ask watchers that wait after a failure not to submit the next job. Return a line for each.

    If a watcher was killed while it waited, only its file is removed.
    """
    lines = []
    for job in job_folders(folder):
        if not job.watcher_waits.exists():
            continue

        if read_wait(job) is None:
            job.watcher_waits.unlink(missing_ok=True)
            continue

        _note_request(job)
        lines.append(RunMessage.NO_JOB_FOLLOWS.fill(job_name=job.path.name))

    return lines


def _note_request(job: JobFolder) -> None:
    write_text(job.stop_requested, time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime()))


def _request_stop(job: JobFolder, scheduler: Scheduler) -> str:
    _note_request(job)
    try:
        scheduler.request_stop(job)
    except JobError:
        if scheduler.state(job).state in ACTIVE:
            job.stop_requested.unlink(missing_ok=True)
            raise

        followers = scheduler.end_followers(job)
        if followers:
            waiting = counted(followers, "waiting job")
            return RunMessage.CHAIN_ENDS.fill(job_name=job.path.name, waiting=waiting)

        return f"{job.path.name}: it had already ended"

    return RunMessage.ASKED_TO_STOP.fill(job_name=job.path.name)


def show_log(
    run: str,
    runs: Path | None,
    *,
    follow: bool,
    say: Callable[[str], None],
) -> None:
    """Print the log files for the newest job.

    `follow` continues until the job has ended.
    """
    folder = run_folder(run, runs)
    jobs = job_folders(folder)
    if not jobs:
        raise JobError(RunMessage.NO_JOB_SUBMITTED_YET, folder_name=folder.name, run=run)
    job = max(jobs, key=lambda candidate: candidate.record.stat().st_mtime)
    scheduler = scheduler_of(folder)
    offsets = dict.fromkeys(_logs(job), 0)
    say(f"==> {job.path} <==")
    while True:
        # Read the state before the logs, so that a job that has ended is shown with its complete
        # logs.
        status = scheduler.state(job)
        is_last = status.final or not follow
        for path in filter(Path.exists, offsets):
            with path.open("rb") as stream:
                stream.seek(offsets[path])
                text = stream.read()

            if not is_last:
                # An incomplete line is shown once it is complete.
                text = text[: text.rfind(b"\n") + 1]

            offsets[path] += len(text)
            for line in text.decode(errors="replace").splitlines():
                say(line)

        if is_last:
            reason = status.reason or "no reason given"
            say(RunMessage.JOB_ENDED_AS.fill(state=status.state, reason=reason))
            return

        time.sleep(POLL_SECONDS)
