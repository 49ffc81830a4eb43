"""`runbook doctor`: what this machine has and lacks, and what a run finds on its site."""

import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
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
from runbook.jobs.job_request import JobRequest, QueueLimits, request_problems
from runbook.jobs.pbs import Pbs, parse_entries
from runbook.jobs.render.preflight_job import preflight_job
from runbook.jobs.render.preparation import FLEET
from runbook.jobs.render.task_job import asks_for_queue
from runbook.jobs.slurm import Slurm
from runbook.params import Job, Settings, resolve_secret
from runbook.params.schema.entries import TextShare
from runbook.params.schema.run_file import JOB_SECTIONS
from runbook.params.settings import STAGE, missing_values
from runbook.phases.p01_environment.node_probe import (
    gpus_of,
    probe_alone,
    probe_checks,
    software_check,
)
from runbook.phases.p01_environment.preflight.ladder import (
    QUEUE_SECONDS,
    PreflightResult,
    Report,
    climb,
    write_answers,
)
from runbook.phases.p01_environment.preflight.learned_site import LearnedSite, learn_site
from runbook.phases.plan_service import load_plan
from runbook.phases.token_inputs import text_home
from runbook.planning import Check, Plan
from runbook.planning.cost.cpu import BF16_UNITS
from runbook.planning.token_files import fetched_bytes
from runbook.runs import machine
from runbook.runs.consent import command_checks
from runbook.runs.run_folder import hold_run, runs_folder
from runbook.tokens.sources.input_files import says_its_kind

PHASE = "01-environment"
SHOWN_REASONS = 4
MAGIC = {b"hsqs": "SquashFS", b"!<ar": "archive"}


def all_checks() -> list[Check]:
    """Judge Python, the trainer's software, cores, memory, disk, and optional tools."""
    python = Check(
        "python",
        "pass",
        platform.python_version(),
        "3.11, 3.12 or 3.13; the trainer alone runs on 3.10",
    )
    checks = [python, *software_checks(), *machine_checks(), *place_checks()]
    for program, use in (
        ("git", "the commit in every record"),
        ("shellcheck", "the tests of job scripts"),
    ):
        found = shutil.which(program) is not None
        state = "found" if found else "not found"
        remedy = f"Install {program}."
        checks.append(judge(program, found, state, f"for {use}", remedy, otherwise="warn"))
    return checks


def run_questions(settings: Settings, plan: Plan, folder: Path) -> list[Check]:
    """Return what can be asked of a run's site without a job."""
    own = machine_checks() if settings.site.scheduler == "local" else []
    return [
        *own,
        writable_check(_nearest(folder)),
        *site_checks(settings),
        *space_checks(settings, plan, folder),
    ]


def run_checks(run: str, set_words: Sequence[str]) -> list[Check]:
    """Everything that a run needs of its site.

    On this machine the ranks work in a folder that is removed again.

    On a queue the nodes are asked where jobs.environment says how, and where the questions before
    found nothing.
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
    """Leave out what a waiting person is told of the ladder."""


def climb_without_run(
    settings: Settings, plan: Plan, questions: Sequence[Check], report: Report
) -> PreflightResult:
    """Climb the ladder on this machine, in a folder that is removed again."""
    with tempfile.TemporaryDirectory(prefix="runbook-doctor-") as temporary:
        return climb(settings, plan, Path(temporary), questions, report)


def climb_with_run(
    settings: Settings,
    plan: Plan,
    questions: Sequence[Check],
    report: Report,
    wait_seconds: float = QUEUE_SECONDS,
) -> PreflightResult:
    """Climb the ladder by a job in the run's own folder, and keep the answers there.

    The folder is held meanwhile.
    """
    folder = runs_folder(settings.project) / settings.name
    with hold_run(folder, "checking the nodes"):
        result = climb(settings, plan, folder, questions, report, wait_seconds)
        write_answers(folder, result)
    return result


def preflight(
    run: str, set_words: Sequence[str], report: Report, wait_seconds: float = QUEUE_SECONDS
) -> PreflightResult:
    """Find the first thing that is wrong with a run's cluster: `runbook preflight`."""
    settings, plan = load_plan(run, set_words)
    folder = runs_folder(settings.project) / settings.name
    questions = run_questions(settings, plan, folder)
    if settings.site.scheduler == "local":
        return climb_without_run(settings, plan, questions, report)
    if any(check.verdict == "fail" for check in questions):
        return climb(settings, plan, folder, questions, report)
    return climb_with_run(settings, plan, questions, report, wait_seconds)


def learn_about(
    site: str, run: str, report: Report, wait_seconds: float = QUEUE_SECONDS
) -> tuple[Path, LearnedSite]:
    """Climb the ladder on a site, and return its file and what was measured: `runbook learn`."""
    settings, _ = load_plan(run, ())
    if settings.site.site != site:
        raise ParamsError(
            f"Run {run} is on site {settings.site.site}, not on {site}. Name a run of {site} "
            f"by --run."
        )
    result = preflight(run, (), report, wait_seconds)
    path = settings.project / "params" / "sites" / f"{site}.yaml"
    return path, learn_site(settings.site, result, _measured_by(result))


def _measured_by(result: PreflightResult) -> str:
    """Return the job that measured: its folder and its number in the queue."""
    if not result.job:
        return "runbook learn on this machine"
    folder = Path(result.job)
    started = read_started(JobFolder(folder))
    number = started.job_id if started else "that never began"
    return f"job {number} ({folder.name})"


def software_checks() -> list[Check]:
    """What this Python can import, and which GPUs its torch sees.

    Asked of a probe that is alone.
    """
    facts = probe_alone()
    num_gpus = sum(len(gpus_of(one)) for one in facts)
    rule = (
        "site local computes on the CPU and hides them; site local-gpu takes those that "
        "torch sees, one a process"
    )
    return [
        software_check(facts, "runbook"),
        judge("GPUs", num_gpus > 0, str(num_gpus), rule, otherwise="warn"),
    ]


def machine_checks() -> list[Check]:
    """Cores, memory and matrix instructions."""
    cores = Check("cores", "pass", str(machine.num_cores()), "each process takes its share")
    memory = psutil.virtual_memory()
    rule = "about 3 GiB for each process of the 12 x 512 smoke test"
    free = f"{show_bytes(memory.available)} of {show_bytes(memory.total)} free"
    remedy = "End what else runs here, or choose a smaller model (training.smoke.model)."
    enough = judge("memory", memory.available > 6 * 2**30, free, rule, remedy, otherwise="warn")
    return [cores, enough, matrix_check(machine.cpu_flags())]


def matrix_check(flags: Set[str]) -> Check:
    """Whether a CPU with these instruction sets multiplies bf16 directly."""
    fast = [name for unit, name in BF16_UNITS.items() if unit in flags]
    rule = "bf16 on a CPU is fast only with them"
    found = ", ".join(fast) or f"neither {' nor '.join(BF16_UNITS.values())}"
    remedy = "Set training.precision to fp32 here, which is then faster."
    return judge("matrix instructions", bool(fast), found, rule, remedy, otherwise="warn")


def place_checks() -> list[Check]:
    """The project folder, and where runs go."""
    try:
        near = _nearest(runs_folder(params.project_root()))
    except ParamsError as error:
        rule = f"{sys.argv[0]} is started inside the project's folder"
        return [
            Check("project", "fail", str(error), rule, "cd into the clone, or runbook init DIR.")
        ]
    free = shutil.disk_usage(near).free
    rule = "8 GiB for params/local.yaml"
    disk = judge(
        "disk", free > 8 * 2**30, f"{show_bytes(free)} free", rule, "Free space.", otherwise="warn"
    )
    return [writable_check(near), disk]


def site_checks(settings: Settings) -> list[Check]:
    """One row a question; what cannot be known on this machine is unknown."""
    lacking = missing_values(settings)
    rule = "what the site requires is given"
    remedy = "; ".join(f"--set {key}=VALUE ({what})" for key, what in lacking.items())
    return [
        judge("required values", not lacking, ", ".join(lacking) or "all given", rule, remedy),
        *secret_checks(settings),
        *command_checks(settings),
        modules_check(settings),
        *queue_checks(settings),
        image_check(settings),
        locks_check(settings),
    ]


def secret_checks(settings: Settings) -> list[Check]:
    """Passwords that the set-up and the text's source ask for; no value is shown."""
    references = {step.secret: step.title for step in settings.site.preparation if step.secret}
    references |= {
        text.dataset.token: f"the text {text.name}" for text in settings.texts if text.dataset.token
    }
    references |= {webhook: "alarms"} if (webhook := settings.run.training.alarm_webhook) else {}
    checks = []
    for reference, use in references.items():
        kind, _, place = reference.partition(":")
        value = "there"
        rule = f"for {use}"
        remedy = ""
        try:
            resolve_secret(reference)
        except ParamsError as error:
            value = "not there"
            remedy = str(error)
        if kind == "file" and not remedy:
            rule += "; a file is readable by you alone"
            if (mode := Path(place).expanduser().stat().st_mode & 0o777) & 0o077:
                value = f"there, and others can read it (mode {mode:04o})"
                remedy = f"chmod 600 {place}"
        checks.append(
            Check(f"secret {reference}", "warn" if remedy else "pass", value, rule, remedy)
        )
    return checks


def modules_check(settings: Settings) -> Check:
    """The environment modules that jobs load."""
    wanted = settings.site.modules
    check = partial(Check, "modules", rule="every module that jobs load can be loaded")
    if not wanted:
        return check("pass", "none are loaded")
    script = (
        'type module >/dev/null 2>&1 || exit 3; for one in "$@"; do module load "$one" || '
        "exit 1; done"
    )
    said = shell.run(["bash", "-lc", script, "modules", *wanted], check=False, timeout=120)
    if said.exit_code == 3:
        remedy = (
            f"This is not a login node of {settings.site.site}, or its module system is "
            f"not set up here."
        )
        return check("unknown", "there is no module command here", remedy=remedy)
    if said.exit_code:
        words = shell.last_lines(said.err or said.out, 2).replace("\n", " ")
        remedy = "module avail shows what is there; params/sites names what is loaded."
        return check("fail", words or "a module cannot be loaded", remedy=remedy)
    return check("pass", f"{len(wanted)} load")


def queue_checks(settings: Settings) -> list[Check]:
    """Whether the scheduler answers, and knows the partitions that the run's jobs ask for."""
    kind = settings.site.scheduler
    check = partial(Check, "scheduler", rule="the scheduler answers")
    if kind == "local":
        return [check("pass", "this machine runs the jobs itself")]
    queue = Slurm() if kind == "slurm" else Pbs()
    program = queue.limits_question[0]
    try:
        limits = queue.parse_limits(queue.answer(*queue.limits_question))
    except JobError as error:
        verdict = "fail" if shutil.which(program) else "unknown"
        remedy = f"This is not a login node of {settings.site.site}, or its scheduler is down."
        return [check(verdict, str(error).splitlines()[0], remedy=remedy)]
    checks = [check("pass", f"{program} answers"), *([_history_check()] if kind == "pbs" else [])]
    states = {queue.name: queue.state for queue in limits}
    partitions = {
        name: getattr(settings.run.jobs, name).partition for name in JOB_SECTIONS.values()
    }
    checks += [
        _queue_check(settings, name, asked, states) for name, asked in partitions.items() if asked
    ]
    checks += [
        _limits_check(settings, phase, limits, queue.queue_word)
        for phase in JOB_SECTIONS
        if partitions[JOB_SECTIONS[phase]] in ("", *states)
    ]
    if isinstance(queue, Slurm):
        checks.append(nodes_check(preflight_job(settings), limits, queue))
    return checks


def nodes_check(job: Job, limits: Sequence[QueueLimits], slurm: Slurm) -> Check:
    """Judge whether enough nodes of the partition take jobs for the preflight.

    Drained ones do not.
    """
    check = partial(
        Check, "nodes of the queue", rule="enough nodes of the partition take jobs for a preflight"
    )
    partition = next(
        (
            queue
            for queue in limits
            if queue.name == job.partition or (not job.partition and queue.default)
        ),
        None,
    )
    if partition is None or not partition.total_nodes:
        return check("unknown", "the queue does not say how many it has")
    num_cores = job.cpus_per_task * job.tasks_per_node
    try:
        most_cores = slurm.most_cores(partition.name)
        unusable = slurm.unusable_nodes(partition.name)
    except JobError as error:
        return check("unknown", str(error).splitlines()[0])
    if most_cores and num_cores > most_cores:
        value = f"the job asks for {num_cores} cores on each node, the largest has {most_cores}"
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
        "Ask the cluster's operators about these nodes (scontrol show node NAME; scontrol "
        "update nodename=NAME "
        "state=resume where they are repaired), or choose another partition."
    )
    return check("fail", f"{value}, the job needs {job.nodes}", remedy=remedy)


def _limits_check(
    settings: Settings, phase: str, limits: Sequence[QueueLimits], queue_word: str
) -> Check:
    """Whether the queue's limits on time, nodes and accounts admit a phase's job."""
    job = settings.job(phase)
    asked = JobRequest(job.partition, job.account, job.nodes, job.walltime)
    # A queue that is shut has a row of its own.
    open_queues = [replace(queue, state="UP") for queue in limits]
    problems = request_problems(asked, open_queues, queue_word)
    section = JOB_SECTIONS[phase]
    hours = show_duration(job.walltime) if job.walltime else "the queue's own time"
    return judge(
        f"limits of jobs.{section}",
        not problems,
        "; ".join(problems) or f"{counted(job.nodes, 'node')}, {hours}",
        "the queue's limits on time, nodes and accounts admit the job",
        f"Change jobs.{section} (walltime, nodes, account, partition).",
    )


def _queue_check(
    settings: Settings, section: str, partition: str, states: Mapping[str, str]
) -> Check:
    """Whether a job's queue is there and takes jobs.

    A rented cluster's is shut while its machines are stopped.
    """
    check = partial(
        Check,
        f"queue of jobs.{section}",
        rule="the queue that the job asks for is there and takes jobs",
    )
    if (state := states.get(partition)) is None:
        return check(
            "fail",
            partition,
            remedy=f"Set jobs.{section}.partition to one of {', '.join(sorted(states))}.",
        )
    if state == "UP":
        return check("pass", partition)
    remedy = "Its administrator has shut it: choose another, or wait."
    if settings.site.fleet:
        remedy = (
            f"Start the machines where the cluster is managed: bash environment/{FLEET} "
            f"start CLUSTER REGION."
        )
    verdict = "warn" if state == "DOWN" else "fail"  # one that is down still queues jobs
    return check(verdict, f"{partition} is {state}", remedy=remedy)


def _history_check() -> Check:
    """Whether PBS remembers jobs that have ended."""
    rule = "PBS can be asked how a job ended that could not write it down itself"
    said = shell.run(["qstat", "-B", "-f"], timeout=30, check=False)
    if said.exit_code:
        return Check("job history", "unknown", shell.last_lines(said.err, 1), rule)
    remedy = (
        "Nothing must be done: a job that ends without a word is then `lost`, whatever ended "
        "it. An admin switches it "
        'on: qmgr -c "set server job_history_enable = True".'
    )
    kept = any(
        values.get("job_history_enable") == "True"
        for _, values in parse_entries(said.out, "Server")
    )
    value = "kept" if kept else "not kept, which is PBS's default"
    return judge("job history", kept, value, rule, remedy, otherwise="warn")


def image_check(settings: Settings) -> Check:
    """The container image: there, readable, and of a kind that can be started."""
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
        return check("unknown", "no image is named here", remedy=remedy)
    if STAGE in image:
        return check("unknown", image, remedy="Give jobs.stage, the folder that it lies in.")
    if not image.startswith("/"):
        return check(
            "unknown",
            f"{image} lies in a registry",
            remedy="The first job that starts it will tell.",
        )
    try:
        with Path(image).open("rb") as stream:
            head = stream.read(64)
        size = Path(image).stat().st_size
    except OSError as error:
        remedy = "01-environment makes it where the site says how; jobs.image names another."
        return check("fail", f"{image}: {error.strerror}", remedy=remedy)
    kind = "SIF" if b"SIF_MAGIC" in head else MAGIC.get(head[:4])
    if kind is None:
        remedy = "Import it again: enroot import, singularity pull."
        return check("fail", f"{image} is neither SquashFS nor SIF", remedy=remedy)
    return check("pass", f"{image}: {kind}, {show_bytes(size)}")


def space_checks(settings: Settings, plan: Plan, folder: Path) -> list[Check]:
    """Free space on each file system that the plan fills."""
    wanted = [
        (phase_plan.checkpoint.folder, plan.checkpoint[phase].disk_bytes)
        for phase, phase_plan in plan.phases.items()
    ]
    wanted.append((settings.site.paths.get("data", "data"), plan.data.estimated_bytes))
    wanted += [
        (str(text_home(settings, text)), _still_to_fetch(settings, text))
        for text in settings.texts
        if text.dataset.url
    ]
    places: dict[int, Path] = {}
    sizes: Counter[int] = Counter()
    for place, size in (
        (_nearest(folder / where), size) for where, size in wanted if STAGE not in where
    ):
        file_system = place.stat().st_dev
        places.setdefault(file_system, place)
        sizes[file_system] += int(size)
    rule = (
        "what the plan puts there fits: checkpoints kept and one more, token files, text to fetch"
    )
    remedy = (
        "Free space, keep fewer checkpoints (training.keep_checkpoints, training.keep_every), "
        "or name another place "
        "(jobs.stage, --runs)."
    )
    if not places:
        return [
            Check("disk", "unknown", "the shared folder is not named", rule, "Give jobs.stage.")
        ]
    checks = []
    for file_system, place in places.items():
        free = shutil.disk_usage(place).free
        size = sizes[file_system]
        value = f"{show_bytes(free)} free at {place}, {show_bytes(size)} wanted"
        name = "disk" if len(places) == 1 else f"disk at {place}"
        checks.append(judge(name, free > size, value, rule, remedy))
    return checks


def _still_to_fetch(settings: Settings, text: TextShare) -> int:
    """Return the bytes of a text that are not in its folder yet; 0 where its size is not known."""
    home = text_home(settings, text)
    whole = fetched_bytes(text.dataset)
    if STAGE in str(home) or not whole or not home.is_dir():
        return whole
    there = sum(
        path.stat().st_size for path in home.rglob("*") if path.is_file() and says_its_kind(path)
    )
    return max(0, whole - there)


def locks_check(settings: Settings) -> Check:
    """Compilations that were cut off, at whose locks every later job waits."""
    name = "compilation locks"
    rule = "no compilation of kernels left a lock behind"
    checkout = settings.site.frameworks.get(settings.run.training.framework)
    folders = [
        Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions")
    ]
    if checkout and STAGE not in checkout.folder:
        folders.append(Path(checkout.folder) / "megatron" / "fused_kernels" / "build")
    locks = [lock for place in folders if place.is_dir() for lock in place.rglob("lock")]
    if stale := next((lock for lock in locks if time.time() - lock.stat().st_mtime > 600), None):
        return Check(
            name, "warn", str(stale), rule, f"If no job compiles now: rm -r {stale.parent}"
        )
    return Check(name, "pass", "none", rule)


def _nearest(path: Path) -> Path:
    return next(one for one in (path, *path.parents) if one.is_dir())


def writable_check(folder: Path) -> Check:
    """Whether the run's folder takes a file."""
    probe = folder / f".probe.{os.getpid()}"
    rule = "the run's folder can be written"
    try:
        probe.write_text("x")
        probe.unlink()
    except OSError as error:
        return Check(
            "run folder", "fail", str(error), f"{rule}; runbook run --runs DIR names another place"
        )
    return Check("run folder", "pass", "can be written", rule)
