"""`runbook doctor`: checks this machine, and the site for a run."""

import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from runbook import params
from runbook.core import shell
from runbook.core.checks import counted, judge
from runbook.core.errors import JobError, ParamsError
from runbook.core.units import show_bytes, show_duration
from runbook.jobs.job_folder import JobFolder, read_started
from runbook.jobs.job_request import (
    JobRequest,
    QueueLimits,
    request_problems,
    whole_number,
)
from runbook.jobs.pbs import Pbs, parse_entries
from runbook.jobs.render.preflight_job import preflight_job
from runbook.jobs.render.preparation import FLEET
from runbook.jobs.render.task_job import asks_for_queue
from runbook.jobs.schedulers import get_queue
from runbook.jobs.slurm import Slurm
from runbook.params import Job, Settings, resolve_secret
from runbook.params.schema.entries import TextShare
from runbook.params.schema.run_file import JOB_SECTIONS
from runbook.params.settings import STAGE, missing_values
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.node_probe import (
    gpus_of,
    probe_alone,
    probe_checks,
    software_check,
)
from runbook.phases.p01_environment.preflight.learned_site import LearnedSite, Request, learn_site
from runbook.phases.p01_environment.preflight.run_preflight import (
    QUEUE_SECONDS,
    PreflightResult,
    Report,
    climb,
    write_answers,
)
from runbook.phases.p01_environment.preflight.scheduler_rules import (
    default_memory_check,
    demand_of,
    epilog_checks,
    reservation_check,
    wait_time_check,
    with_directives_of_site,
)
from runbook.phases.p01_environment.preflight.software_rules import shell_packages_check
from runbook.phases.run_plan import load_plan
from runbook.phases.token_inputs import text_home
from runbook.plan_file.phase_names import ENVIRONMENT, FULL
from runbook.planning import Check, Plan
from runbook.planning.cost.cpu import BF16_UNITS
from runbook.planning.data_plan import fetched_bytes
from runbook.planning.messages import PlanningMessage
from runbook.runs import this_machine
from runbook.runs.consent import command_checks
from runbook.runs.run_folder import hold_run, runs_folder
from runbook.tokens.sources.input_files import says_its_kind

PHASE = ENVIRONMENT
SHOWN_REASONS = 4
STALE_SECONDS = 600
"""Compiling a kernel takes less time than this, so an older lock was left by an interrupted
compilation.
"""
MAGIC = {b"hsqs": "SquashFS", b"!<ar": "archive"}


def all_checks() -> list[Check]:
    """Check Python, software for training, cores, memory, disk, and optional tools."""
    python = Check(
        "python",
        "pass",
        platform.python_version(),
        "3.11, 3.12 or 3.13; the trainer itself also runs on 3.10",
    )
    checks = [python, *software_checks(), *machine_checks(), *place_checks()]
    for program, use in (
        ("git", "the commit in every record"),
        ("shellcheck", "the tests of job scripts"),
    ):
        is_there = shutil.which(program) is not None
        state = "found" if is_there else "not found"
        remedy = f"Install {program}."
        checks.append(
            judge(
                program,
                is_there,
                state,
                f"for {use}",
                remedy,
                otherwise="warn",
            )
        )

    return checks


def run_questions(settings: Settings, plan: Plan, folder: Path) -> list[Check]:
    """Return those checks of the site that need no job."""
    checks: list[Check] = []
    if settings.site.scheduler == "local":
        checks += machine_checks()
    return [
        *checks,
        shell_packages_check(),
        writable_check(_nearest(folder)),
        *site_checks(settings),
        *space_checks(settings, plan, folder),
    ]


def run_checks(run: str, set_words: Sequence[str]) -> list[Check]:
    """Check everything needed by a run from its site.

    On a site without a queue, the ranks run on this machine, in a temporary folder. On a queue, the
    nodes are checked if jobs.environment says how to reach them and the earlier checks found no
    fault.
    """
    settings, plan = load_plan(run, set_words)
    folder = runs_folder(settings.project) / settings.name
    questions = run_questions(settings, plan, folder)
    if settings.site.scheduler == "local":
        return climb_without_run(settings, plan, questions, print_nothing).checks
    has_defect = any(check.verdict == "fail" for check in questions)
    if has_defect or not asks_for_queue(settings, PHASE):
        framework = settings.run.training.framework
        return [*questions, *probe_checks([], settings.site, plan, framework)]

    return climb_with_run(settings, plan, questions, print_nothing).checks


def print_nothing(_: str) -> None:
    """Discard a progress message from the preflight."""


def climb_without_run(
    settings: Settings,
    plan: Plan,
    questions: Sequence[Check],
    report: Report,
) -> PreflightResult:
    """Run the preflight on this machine, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="runbook-doctor-") as temporary:
        return climb(
            settings,
            plan,
            Path(temporary),
            questions,
            report,
        )


def climb_with_run(
    settings: Settings,
    plan: Plan,
    questions: Sequence[Check],
    report: Report,
    wait_seconds: float = QUEUE_SECONDS,
) -> PreflightResult:
    """Run the preflight with a job in the run folder, and store the answers there.

    The folder stays locked until the preflight ends.
    """
    folder = runs_folder(settings.project) / settings.name
    with hold_run(folder, "checking the nodes"):
        result = climb(
            settings,
            plan,
            folder,
            questions,
            report,
            wait_seconds,
        )
        write_answers(folder, result)

    return result


def preflight(
    run: str,
    set_words: Sequence[str],
    report: Report,
    wait_seconds: float = QUEUE_SECONDS,
) -> PreflightResult:
    """Find the first defect in the cluster for a run (`runbook preflight`)."""
    settings, plan = load_plan(run, set_words)
    folder = runs_folder(settings.project) / settings.name
    questions = run_questions(settings, plan, folder)
    if settings.site.scheduler == "local":
        return climb_without_run(settings, plan, questions, report)
    if any(check.verdict == "fail" for check in questions):
        return climb(
            settings,
            plan,
            folder,
            questions,
            report,
        )

    return climb_with_run(
        settings,
        plan,
        questions,
        report,
        wait_seconds,
    )


def learn_about(
    site: str,
    run: str,
    report: Report,
    wait_seconds: float = QUEUE_SECONDS,
) -> tuple[Path, LearnedSite]:
    """Run the preflight for `runbook learn`. Return the path to the site file, and the results."""
    settings, _ = load_plan(run, ())
    if settings.site.site != site:
        raise ParamsError(
            PhaseMessage.RUN_ON_ANOTHER_SITE, run=run, site_of_run=settings.site.site, site=site
        )

    result = preflight(run, (), report, wait_seconds)
    path = settings.project / "params" / "sites" / f"{site}.yaml"
    request = _request(settings) if result.job else Request()
    return path, learn_site(settings.site, result, _measured_by(result), request)


def _request(settings: Settings) -> Request:
    """Return the resources that a preflight job requests on each node."""
    job = preflight_job(settings)
    return Request(job.cpus_per_task * job.tasks_per_node, job.memory)


def _measured_by(result: PreflightResult) -> str:
    """Name the job that took the measurement, by queue number and folder."""
    if not result.job:
        return "runbook learn on this machine"
    folder = Path(result.job)
    started = read_started(JobFolder(folder))
    number = started.job_id if started else "that never started"
    return f"job {number} ({folder.name})"


def software_checks() -> list[Check]:
    """Check which packages this Python can import, and which GPUs its torch sees.

    A probe in a separate process determines this.
    """
    facts = probe_alone()
    num_gpus = sum(len(gpus_of(rank_facts)) for rank_facts in facts)
    rule = PhaseMessage.SITE_HIDES_GPUS.fill()
    return [
        software_check(facts, "runbook"),
        judge(
            "GPUs",
            num_gpus > 0,
            str(num_gpus),
            rule,
            otherwise="warn",
        ),
    ]


def machine_checks() -> list[Check]:
    """Check cores, memory and matrix instructions."""
    cores = Check("cores", "pass", str(this_machine.num_cores()), "each process takes its share")
    memory = psutil.virtual_memory()
    rule = "about 3 GiB for each process of the 12 x 512 smoke test"
    free = f"{show_bytes(memory.available)} of {show_bytes(memory.total)} free"
    remedy = "Stop other programs here, or choose a smaller model (training.smoke.model)."
    enough = judge(
        "memory",
        memory.available > 6 * 2**30,
        free,
        rule,
        remedy,
        otherwise="warn",
    )
    return [cores, enough, matrix_check(this_machine.cpu_flags())]


def matrix_check(flags: Set[str]) -> Check:
    """Check whether a CPU with these instruction sets computes bf16 products directly."""
    fast = [name for unit, name in BF16_UNITS.items() if unit in flags]
    rule = "bf16 on a CPU is fast only with these instructions"
    units = ", ".join(fast) or f"neither {' nor '.join(BF16_UNITS.values())}"
    remedy = "Set training.precision to fp32 here, which is then faster."
    return judge(
        "matrix instructions",
        bool(fast),
        units,
        rule,
        remedy,
        otherwise="warn",
    )


def place_checks() -> list[Check]:
    """Check the project folder and the folder for runs."""
    try:
        near = _nearest(runs_folder(params.project_root()))
    except ParamsError as error:
        rule = f"{sys.argv[0]} is started inside the project's folder"
        return [
            Check(
                "project",
                "fail",
                str(error),
                rule,
                "Change to the clone, or create a project: runbook init DIR.",
            )
        ]

    free = shutil.disk_usage(near).free
    rule = "8 GiB for params/local.yaml"
    disk = judge(
        "disk",
        free > 8 * 2**30,
        f"{show_bytes(free)} free",
        rule,
        "Free space.",
        otherwise="warn",
    )
    return [writable_check(near), disk]


def site_checks(settings: Settings) -> list[Check]:
    """Return one check per question; it is `unknown` if this machine cannot answer it."""
    lacking = missing_values(settings)
    rule = "all values that the site requires are set"
    remedy = "; ".join(f"--set {key}=VALUE ({meaning})" for key, meaning in lacking.items())
    return [
        judge(
            "required values",
            not lacking,
            ", ".join(lacking) or "all given",
            rule,
            remedy,
        ),
        *secret_checks(settings),
        *command_checks(settings),
        modules_check(settings),
        *queue_checks(settings),
        image_check(settings),
        locks_check(settings),
    ]


def secret_checks(settings: Settings) -> list[Check]:
    """Check the secrets needed by the set-up and by the text source.

    The secrets' values are never shown.
    """
    return [_secret_check(reference, use) for reference, use in _secret_uses(settings).items()]


def _secret_uses(settings: Settings) -> dict[str, str]:
    """For each secret that a run needs, map the reference to what the secret is used for."""
    uses = {}
    for step in settings.site.preparation:
        if step.secret:
            uses[step.secret] = step.title

    for text in settings.texts:
        if text.dataset.token:
            uses[text.dataset.token] = f"the text {text.name}"

    webhook = settings.run.training.alarm_webhook
    if webhook:
        uses[webhook] = "alarms"
    return uses


def _secret_check(reference: str, use: str) -> Check:
    """Check that a secret exists and, if it is in a file, cannot be read by other users."""
    name = f"secret {reference}"
    rule = f"for {use}"
    try:
        resolve_secret(reference)
    except ParamsError as error:
        return Check(
            name,
            "warn",
            "not there",
            rule,
            str(error),
        )

    kind, _, path = reference.partition(":")
    if kind != "file":
        return Check(name, "pass", "there", rule)
    rule += PhaseMessage.SECRET_FILE_READABLE.fill()
    mode = Path(path).expanduser().stat().st_mode & 0o777
    if mode & 0o077:
        value = f"it exists, but others can read it (mode {mode:04o})"
        return Check(
            name,
            "warn",
            value,
            rule,
            f"chmod 600 {path}",
        )

    return Check(name, "pass", "there", rule)


def modules_check(settings: Settings) -> Check:
    """Check the environment modules that jobs load."""
    modules = settings.site.modules
    check = partial(Check, "modules", rule="every module that jobs load can be loaded")
    if not modules:
        return check("pass", "none are loaded")
    script = (
        'type module >/dev/null 2>&1 || exit 3; for one in "$@"; do module load "$one" || '
        "exit 1; done"
    )
    ended = shell.run(["bash", "-lc", script, "modules", *modules], check=False, timeout=120)
    if ended.exit_code == 3:
        remedy = (
            f"This is not a login node of {settings.site.site}, or its module system is "
            f"not set up here."
        )
        return check("unknown", "there is no module command here", remedy=remedy)

    if ended.exit_code:
        last_lines = shell.last_lines(ended.err or ended.out, 2)
        value = last_lines.replace("\n", " ") or "a module cannot be loaded"
        remedy = "module avail lists all modules; params/sites lists those that jobs load."
        return check("fail", value, remedy=remedy)

    return check("pass", f"{len(modules)} can be loaded")


def queue_checks(settings: Settings) -> list[Check]:
    """Check that the scheduler answers and knows the partitions requested by jobs in the run."""
    check = partial(Check, "scheduler", rule="the scheduler answers")
    if settings.site.scheduler == "local":
        return [check("pass", "this machine runs the jobs itself")]
    queue = get_queue(settings.site)
    program = queue.limits_question[0]
    try:
        limits = queue.parse_limits(queue.answer(*queue.limits_question))
    except JobError as error:
        verdict = "fail" if shutil.which(program) else "unknown"
        remedy = f"This is not a login node of {settings.site.site}, or its scheduler is down."
        return [check(verdict, str(error).splitlines()[0], remedy=remedy)]

    checks = [check("pass", PhaseMessage.PROGRAM_ANSWERS.fill(program=program))]
    if isinstance(queue, Pbs):
        checks.append(_history_check())
    states = {queue.name: queue.state for queue in limits}
    partitions = {}
    for name in JOB_SECTIONS.values():
        partitions[name] = getattr(settings.run.jobs, name).partition

    for section, partition in partitions.items():
        if partition:
            checks.append(_queue_check(settings, section, partition, states))

    for phase, section in JOB_SECTIONS.items():
        # A queue that does not exist has no limits to check.
        if partitions[section] in ("", *states):
            checks.append(_limits_check(settings, phase, limits, queue.queue_word))

    checks += sharing_checks(settings, limits)
    if isinstance(queue, Slurm):
        checks += slurm_checks(settings, limits, queue)
        checks += array_checks(settings, queue)
        checks.append(nodes_check(preflight_job(settings), limits, queue))
    return checks


def sharing_checks(settings: Settings, limits: Sequence[QueueLimits]) -> list[Check]:
    """Warn if the partition also gives cores used by the training job to other jobs."""
    job = settings.job(FULL)
    partition = _partition_of(job, limits)
    is_alone = "exclusive" in settings.site.directives
    if partition is None or partition.jobs_per_core <= 1 or is_alone:
        return []
    return [
        Check(
            PhaseMessage.SHARING_OF_JOB.fill(section=JOB_SECTIONS[FULL]),
            "warn",
            PhaseMessage.CORES_SHARED.fill(name=partition.name, jobs=partition.jobs_per_core),
            "no other job computes on the training's cores",
            "Choose another partition, or request whole nodes in the site's `directives` "
            "(exclusive).",
        )
    ]


def slurm_checks(settings: Settings, limits: Sequence[QueueLimits], slurm: Slurm) -> list[Check]:
    """Check Slurm settings and reservations for the training job, as far as Slurm shows them."""
    job = with_directives_of_site(settings.job(FULL), settings)
    section = JOB_SECTIONS[FULL]
    partition = _partition_of(job, limits)
    checks = []
    with suppress(JobError):
        configuration = slurm.configuration()
        checks += wait_time_check(configuration, settings)
        checks += epilog_checks(configuration)
        checks += default_memory_check(configuration, partition, job, section)

    if partition is None or not job.walltime:
        return checks
    with suppress(JobError):
        reservations = slurm.reservations()
        nodes = slurm.node_cores(partition.name) if reservations else {}
        demand = demand_of(job, settings, partition)
        if nodes:
            checks.append(reservation_check(reservations, nodes, demand, section, time.time()))

    return checks


def array_checks(settings: Settings, slurm: Slurm) -> list[Check]:
    """Check that Slurm allows array jobs as large as those in the run."""
    sizes = {}
    for phase, section in JOB_SECTIONS.items():
        size = settings.job(phase).array
        if size:
            sizes[section] = size
    if not sizes:
        return []
    try:
        largest = whole_number(slurm.configuration().get("MaxArraySize", ""))
    except JobError:
        return []
    if not largest:
        return []
    checks = []
    for section, size in sizes.items():
        check = judge(
            PhaseMessage.ARRAY_OF_JOB.fill(section=section),
            size <= largest,
            PhaseMessage.ARRAY_SIZES.fill(size=size, largest=largest),
            "Slurm allows an array job of this size (MaxArraySize in slurm.conf)",
            PhaseMessage.CHANGE_ARRAY.fill(section=section),
        )
        checks.append(check)

    return checks


def _partition_of(job: Job, limits: Sequence[QueueLimits]) -> QueueLimits | None:
    """Return the partition named by a job, or else the default partition.

    Return None if the default partition is unknown.
    """
    for queue in limits:
        if queue.name == job.partition or (not job.partition and queue.default):
            return queue

    return None


def nodes_check(job: Job, limits: Sequence[QueueLimits], slurm: Slurm) -> Check:
    """Check that enough nodes in the partition accept jobs for the preflight.

    Drained nodes do not accept jobs.
    """
    check = partial(
        Check,
        "nodes of the queue",
        rule="enough nodes of the partition accept jobs for a preflight",
    )
    partition = _partition_of(job, limits)
    if partition is None or not partition.total_nodes:
        return check("unknown", "the queue does not report its nodes")
    num_cores = job.cpus_per_task * job.tasks_per_node
    try:
        most_cores = slurm.most_cores(partition.name)
        unusable = slurm.unusable_nodes(partition.name)
    except JobError as error:
        return check("unknown", str(error).splitlines()[0])

    if most_cores and num_cores > most_cores:
        value = f"the job requests {num_cores} cores on each node, but the largest has {most_cores}"
        remedy = "Correct hardware.cores_per_node of the site, or jobs.training.cpus_per_task."
        return check("fail", value, remedy=remedy)

    num_usable = partition.total_nodes - sum(nodes.count for nodes in unusable)
    reasons = "; ".join(map(str, unusable[:SHOWN_REASONS]))
    value = f"{num_usable} of {partition.total_nodes}"
    if reasons:
        value += f" ({reasons})"
    if num_usable >= job.nodes:
        return check("pass", value)
    remedy = (
        "Ask the cluster's operators about these nodes (scontrol show node NAME; "
        "scontrol update nodename=NAME state=resume where they are repaired; if a node is not "
        "responding, its slurmd, munge, clock or network failed), "
        "or choose another partition."
    )
    return check("fail", f"{value}, the job needs {job.nodes}", remedy=remedy)


def _limits_check(
    settings: Settings,
    phase: str,
    limits: Sequence[QueueLimits],
    queue_word: str,
) -> Check:
    """Check that queue limits on time, nodes and accounts allow the job for a phase."""
    job = settings.job(phase)
    request = JobRequest(job.partition, job.account, job.nodes, job.walltime)
    # A separate row reports a closed queue.
    open_queues = [replace(queue, state="UP") for queue in limits]
    problems = request_problems(request, open_queues, queue_word)
    section = JOB_SECTIONS[phase]
    time_limit = PlanningMessage.QUEUE_TIME.fill()
    if job.walltime:
        time_limit = show_duration(job.walltime)
    return judge(
        PhaseMessage.LIMITS_OF_JOB.fill(section=section),
        not problems,
        "; ".join(problems)
        or PhaseMessage.LIMITS_ASKED.fill(nodes=counted(job.nodes, "node"), time_limit=time_limit),
        "the queue's limits on time, nodes and accounts allow the job",
        f"Change jobs.{section} (walltime, nodes, account, partition).",
    )


def _queue_check(
    settings: Settings,
    section: str,
    partition: str,
    states: Mapping[str, str],
) -> Check:
    """Check that the queue for a job exists and accepts jobs.

    On a rented cluster, the queue is closed while the machines are stopped.
    """
    check = partial(
        Check,
        PhaseMessage.QUEUE_OF_JOB.fill(section=section),
        rule="the job's queue exists and accepts jobs",
    )
    state = states.get(partition)
    if state is None:
        remedy = f"Set jobs.{section}.partition to one of {', '.join(sorted(states))}."
        return check("fail", partition, remedy=remedy)

    if state == "UP":
        return check("pass", partition)
    remedy = "Its administrator has closed it: choose another, or wait."
    if settings.site.fleet:
        remedy = PhaseMessage.START_MACHINES.fill(fleet=FLEET)

    # A queue that is down still accepts jobs.
    verdict = "warn" if state == "DOWN" else "fail"
    return check(verdict, f"{partition} is {state}", remedy=remedy)


def _history_check() -> Check:
    """Check whether PBS keeps a history of ended jobs."""
    rule = "PBS can report how a job ended if the job could not record it"
    server = shell.run(["qstat", "-B", "-f"], timeout=30, check=False)
    if server.exit_code:
        return Check("job history", "unknown", shell.last_lines(server.err, 1), rule)
    remedy = (
        "No action is needed, but a job that ends without a record is then shown as `lost`. "
        'An administrator can enable it: qmgr -c "set server job_history_enable = True".'
    )
    for _, values in parse_entries(server.out, "Server"):
        if values.get("job_history_enable") == "True":
            return Check("job history", "pass", "kept", rule)

    return Check(
        "job history",
        "warn",
        PhaseMessage.HISTORY_NOT_KEPT.fill(),
        rule,
        remedy,
    )


def image_check(settings: Settings) -> Check:
    """Check the container image: it must exist, be readable, and have a usable format."""
    container = settings.site.container
    check = partial(Check, "image", rule="the image of the jobs can be read")
    if container.kind == "none":
        return check("pass", "the site uses no container")
    image = container.image or os.environ.get(container.variable, "")
    if not image:
        if container.variable:
            remedy = f"Load the site's module that sets {container.variable}."
        else:
            remedy = "Set jobs.image."

        return check("unknown", "no image is set here", remedy=remedy)

    if STAGE in image:
        return check("unknown", image, remedy="Set jobs.stage, the folder that contains it.")
    if not image.startswith("/"):
        return check(
            "unknown",
            f"{image} is in a registry",
            remedy="The first job that starts it will show whether it works.",
        )

    try:
        with Path(image).open("rb") as stream:
            head = stream.read(64)
        size = Path(image).stat().st_size
    except OSError as error:
        remedy = (
            "01-environment creates the image if the site defines how; or set jobs.image to "
            "another image."
        )
        value = PhaseMessage.IMAGE_NOT_READABLE.fill(image=image, reason=error.strerror)
        return check("fail", value, remedy=remedy)

    kind = "SIF" if b"SIF_MAGIC" in head else MAGIC.get(head[:4])
    if kind is None:
        remedy = "Import the image again, with enroot import or singularity pull."
        return check("fail", PhaseMessage.IMAGE_OF_NO_KIND.fill(image=image), remedy=remedy)

    return check("pass", f"{image}: {kind}, {show_bytes(size)}")


def space_checks(settings: Settings, plan: Plan, folder: Path) -> list[Check]:
    """Check the free space on each file system that the plan fills."""
    folder_of_device: dict[int, Path] = {}
    needed_bytes: Counter[int] = Counter()
    for path, num_bytes in _planned_space(settings, plan):
        if STAGE in path:
            # The site names no shared folder.
            continue

        nearest = _nearest(folder / path)
        file_system = nearest.stat().st_dev
        folder_of_device.setdefault(file_system, nearest)
        needed_bytes[file_system] += int(num_bytes)

    rule = "the planned files fit: kept checkpoints and one more, token files, text to download"
    remedy = (
        "Free space, keep fewer checkpoints (training.keep_checkpoints, training.keep_every), "
        "or choose another folder (jobs.stage, --runs)."
    )
    if not folder_of_device:
        return [
            Check(
                "disk",
                "unknown",
                "the shared folder is not set",
                rule,
                "Set jobs.stage.",
            )
        ]

    checks = []
    for file_system, nearest in folder_of_device.items():
        free = shutil.disk_usage(nearest).free
        needed = needed_bytes[file_system]
        value = f"{show_bytes(free)} free at {nearest}, {show_bytes(needed)} needed"
        name = "disk"
        if len(folder_of_device) > 1:
            name = f"disk at {nearest}"
        checks.append(
            judge(
                name,
                free > needed,
                value,
                rule,
                remedy,
            )
        )

    return checks


def _planned_space(settings: Settings, plan: Plan) -> list[tuple[str, float]]:
    """Return the folders to be filled by the run, with the bytes needed in each."""
    space: list[tuple[str, float]] = []
    for phase, phase_plan in plan.phases.items():
        space.append((phase_plan.checkpoint.folder, plan.checkpoint[phase].disk_bytes))
    space.append((settings.site.paths.get("data", "data"), plan.data.estimated_bytes))
    for text in settings.texts:
        if text.dataset.url:
            space.append((str(text_home(settings, text)), _still_to_fetch(settings, text)))

    return space


def _still_to_fetch(settings: Settings, text: TextShare) -> int:
    """Return how many bytes of a text must still be fetched, or 0 if its size is unknown."""
    home = text_home(settings, text)
    whole = fetched_bytes(text.dataset)
    if STAGE in str(home) or not whole or not home.is_dir():
        return whole
    there = sum(
        path.stat().st_size for path in home.rglob("*") if path.is_file() and says_its_kind(path)
    )
    return max(0, whole - there)


def locks_check(settings: Settings) -> Check:
    """Check for locks left behind by interrupted compilations. They block every later job."""
    name = "compilation locks"
    rule = "no compilation of kernels left a lock behind"
    checkout = settings.site.frameworks.get(settings.run.training.framework)
    folders = [
        Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions")
    ]
    if checkout and STAGE not in checkout.folder:
        folders.append(Path(checkout.folder) / "megatron" / "fused_kernels" / "build")
    for folder in folders:
        if not folder.is_dir():
            continue
        for lock in folder.rglob("lock"):
            if time.time() - lock.stat().st_mtime > STALE_SECONDS:
                remedy = f"If no job is compiling now: rm -r {lock.parent}"
                return Check(
                    name,
                    "warn",
                    str(lock),
                    rule,
                    remedy,
                )

    return Check(name, "pass", "none", rule)


def _nearest(path: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def writable_check(folder: Path) -> Check:
    """Check that files can be written to the run folder."""
    probe = folder / f".probe.{os.getpid()}"
    rule = "files can be written to the run's folder"
    try:
        probe.write_text("x")
        probe.unlink()
    except OSError as error:
        return Check(
            "run folder",
            "fail",
            str(error),
            f"{rule}; runbook run --runs DIR chooses another folder",
        )

    return Check("run folder", "pass", "writable", rule)
