"""01-environment: sets up the machine, and checks that it is sufficient for the plan."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runbook.core import shell
from runbook.core.checks import judge
from runbook.core.errors import ParamsError, ProgramError
from runbook.core.files import write_text
from runbook.core.table import Row
from runbook.core.units import show_duration
from runbook.display import CheckTable, Progress, show_table, show_text
from runbook.jobs.render.preparation import (
    FLEET,
    SETUP_FOLDER,
    SetupStep,
    preparation_files,
    setup_steps,
    step_script,
)
from runbook.jobs.render.task_job import asks_for_queue
from runbook.jobs.render.training_job import PACKAGE
from runbook.params import Settings, resolve_secret
from runbook.params.settings import require_values
from runbook.phases.messages import PhaseMessage
from runbook.phases.open_phase import binder
from runbook.phases.p01_environment.doctor import (
    matrix_check,
    site_checks,
    space_checks,
    writable_check,
)
from runbook.phases.p01_environment.node_probe import MEASURED, probe_checks
from runbook.phases.p01_environment.preflight.run_preflight import climb, write_answers
from runbook.phases.phase_end import plain_end
from runbook.phases.recorded_checks import record_checks
from runbook.phases.steps import PhaseStep, step
from runbook.plan_file.phase_names import ENVIRONMENT
from runbook.planning import Check
from runbook.records.session import Session
from runbook.runs.packed_environments import ensure_packed, uses_copy
from runbook.runs.planned_run import PlannedRun
from runbook.runs.step import StepOfRun
from runbook.runs.this_machine import measure_machine

PHASE = ENVIRONMENT
SETUP_VERSION = 1
LONGEST_SECONDS = 8 * 3600.0
"""Timeout for one step. Importing a 23 GiB image or copying 702 GiB of token files is slow."""
bind = binder(PHASE)
finish = plain_end(PHASE)


@step(takes=lambda opened: (opened.run, opened.session))
def prepare(run: PlannedRun, session: Session) -> None:
    """Carry out the set-up steps from the site's document, such as the checkout and the image.

    Nothing that exists is changed.
    """
    with run.hold("setting the machine up"):
        rows = set_up(run.settings, run.folder)
        rows += pack_for_nodes(run.settings)

    if rows:
        show_table(rows, title="What is set up")
    else:
        show_text(f"Site {run.settings.site.site} needs only the package itself.")

    if run.settings.site.fleet:
        show_text(
            f"The machines cost money while they are up. {SETUP_FOLDER}/{FLEET} in the run's "
            "folder starts and stops them; run it on the host that manages the cluster: "
            f"bash {FLEET} start CLUSTER REGION waits until they are up."
        )

    steps = [{key: row[key] for key in ("step", "state", "makes")} for row in rows]
    session.add_results({"set_up": steps})


@step(takes=lambda opened: (opened.settings, opened.session))
def check_site(settings: Settings, session: Session) -> CheckTable:
    """Check the values, secrets, modules, queue, image and locks. These checks need no job."""
    return record_checks(session, site_checks(settings))


@step(takes=lambda opened: (opened.run, opened.session))
def check_nodes(run: PlannedRun, session: Session) -> CheckTable:
    """Run the preflight on the nodes, up to the first defect.

    All answers are kept in the record. On a site with a queue, the nodes are checked only if
    jobs.environment sets a partition, a time limit, or more than one node or task.
    """
    settings = run.settings
    if settings.site.scheduler != "local" and not asks_for_queue(settings, PHASE):
        framework = settings.run.training.framework
        return record_checks(session, probe_checks([], settings.site, run.plan, framework))

    with run.hold("checking the nodes"):
        result = climb(
            settings,
            run.plan,
            run.folder,
            [],
            show_text,
        )
        write_answers(run.folder, result)

    facts = result.ranks
    nodes = {"asked": len(facts), "speed": list(facts), "answers": result.nodes}
    if facts:
        session.add_results({**facts[0]["packages"], "nodes": nodes})
        _show_measured(result.checks)
    else:
        session.add_results({"nodes": nodes})

    # The checks in the record must not change unless the cluster changes, so measurements are
    # recorded under "nodes".
    return record_checks(session, [_for_record(check) for check in result.checks])


def _show_measured(checks: Sequence[Check]) -> None:
    """Show the measured speeds and times, which are not among the checks in the record."""
    rows = []
    for check in checks:
        if check.name in MEASURED:
            rows.append({"what": check.name, "found": check.value})

    if rows:
        show_table(rows, title="Measured now")


def _for_record(check: Check) -> Check:
    """Return a check in the form that the record stores.

    Nodes are removed, and so is the measured value if a check passed.
    """
    value = check.value
    if check.name in MEASURED and check.verdict == "pass":
        value = "as measured"
    return Check(
        check.name,
        check.verdict,
        value,
        check.rule,
        check.remedy,
    )


@step(takes=lambda opened: (opened.run, opened.session))
def check_machine(run: PlannedRun, session: Session) -> CheckTable:
    """Check that disk, cores and matrix instructions are sufficient for the plan."""
    settings = run.settings
    plan = run.plan
    folder = run.folder
    checks = [writable_check(folder), *space_checks(settings, plan, folder)]
    machine = measure_machine(settings.site)
    if machine is not None:
        processes = max(spec.parallel.world_size for spec in plan.phases.values())
        rule = f"one core for each of {processes} processes; fewer cores work, but slowly"
        enough = machine.cores >= processes
        checks.append(
            judge(
                "cores",
                enough,
                f"{machine.cores} cores",
                rule,
                otherwise="warn",
            )
        )
        if settings.run.training.precision == "bf16":
            checks.append(matrix_check(machine.flags))

    return record_checks(session, checks)


def set_up(settings: Settings, folder: Path) -> list[Row]:
    """Run the missing steps in order, and show a row for each.

    If a step fails, raise `ProgramError` with the last output and the path to the log. The done
    marker contains the fingerprint of the script, so a changed script runs again. The script skips
    what already exists.
    """
    require_values(settings)
    todo = setup_steps(settings, PACKAGE)
    if settings.site.scheduler == "local" and not settings.site.preparation:
        # The package ships the tokenizer files.
        todo = [step for step in todo if step.name != "tokenizer"]

    for name, content in preparation_files(settings).items():
        write_text(folder / SETUP_FOLDER / name, content)
    done = []
    with Progress("set-up", total=len(todo) or 1, unit="steps") as progress:
        for number, step in enumerate(todo, 1):
            done.append(_do_step(settings, folder, number, step))
            progress.update(done=number, step=step.title)

    return done


def pack_for_nodes(settings: Settings) -> list[Row]:
    """Pack the jobs' environment if the nodes use a local copy. Return a row about the archive."""
    if not uses_copy(settings):
        return []
    started = time.monotonic()
    manifest, is_new = ensure_packed(settings, show_text)
    row = {
        "step": "the Python environment of the jobs, packed for a copy on each node",
        "state": "done" if is_new else "verified",
        "took": show_duration(time.monotonic() - started if is_new else 0.0),
        "makes": manifest.archive,
    }
    return [row]


def _do_step(
    settings: Settings,
    folder: Path,
    number: int,
    step: SetupStep,
) -> Row:
    row = {
        "step": step.title,
        "state": "verified",
        "took": show_duration(0.0),
        "makes": step.creates,
    }
    text = step_script(settings, [step])
    done_step = StepOfRun(
        run_folder=folder,
        name=f"01-environment--{step.name}",
        version=SETUP_VERSION,
        inputs={"script": text, "creates": step.creates},
    )
    is_there = bool(step.creates) and (folder / step.creates).exists()
    earlier = done_step.marker()
    is_unchanged = earlier is not None and earlier.fingerprint == done_step.fingerprint
    if is_there and is_unchanged and step.name != "checkout":
        return row
    script = folder / SETUP_FOLDER / f"{number}-{step.name}.sh"
    write_text(script, text)
    started = time.monotonic()
    finished = shell.run(
        ["bash", str(script)],
        cwd=folder,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    seconds = time.monotonic() - started
    out = finished.out
    err = finished.err
    if step.secret:
        out = _without_secret(out, step.secret)
        err = _without_secret(err, step.secret)

    log = script.with_suffix(".log")
    write_text(log, out + err)
    # Output from a log-in program is private.
    log.chmod(0o600)
    if finished.exit_code:
        last_lines = shell.last_lines(err or out)
        raise ProgramError(
            PhaseMessage.STEP_FAILED,
            title=step.title,
            exit_code=shell.how_it_ended(finished.exit_code),
            last_lines=last_lines,
            log=log,
            script=script,
        )

    if step.creates:
        done_step.mark_done(creates=step.creates, seconds=round(seconds, 1))

    if is_there:
        row["state"] = "found"
    elif step.creates:
        row["state"] = "done"
    else:
        row["state"] = "looked"

    row["took"] = show_duration(seconds)
    return row


def _without_secret(text: str, reference: str) -> str:
    """Remove the value of a secret from the text, in case a program in the step printed it."""
    try:
        secret = resolve_secret(reference)
    except ParamsError:
        # There is no secret, so no program can have printed it.
        return text

    return text.replace(secret, "[secret]")


STEPS: tuple[PhaseStep[Any], ...] = (prepare, check_site, check_nodes, check_machine, finish)
