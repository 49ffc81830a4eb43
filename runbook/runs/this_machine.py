"""Describes this machine: its cores, memory, instruction sets, and speeds measured by smoke tests."""

import contextlib
import json
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil

from runbook.core import shell
from runbook.core.checks import Check
from runbook.core.errors import DataError, ProgramError, RecordError
from runbook.core.files import write_text
from runbook.params import Settings
from runbook.params.schema.entries import TOKENIZED
from runbook.params.schema.site import Site
from runbook.plan_file.json_records import as_json
from runbook.plan_file.phase_names import SMOKE
from runbook.planning import Calibration, Calibrations, Machine, Plan, make_plan
from runbook.planning.choice import smoke_choice
from runbook.planning.cost.calibration import calibrate, read_calibration
from runbook.planning.cost.step_time import planned_profile
from runbook.planning.data_plan import TextFiles, is_counted
from runbook.planning.data_rules import VOCABULARY_CHECK, check_vocabulary
from runbook.results.history import History
from runbook.runs.packed_environments import environment_checks
from runbook.runs.run_files import read_plan_file
from runbook.tokens.sources.dataset_files import dataset_files
from runbook.tokens.sources.input_files import text_per_byte
from runbook.tokens.vocabulary_size import read_vocabulary_size

PROBE = "runbook.training.probe"
PROBE_SECONDS = 120.0
"""Time limit for the probe, which imports torch, possibly from a slow file system."""

CALIBRATION_FILE = "smoke/calibration.json"
CPU_FACTS = Path("/proc/cpuinfo")


def measure_machine(site: Site) -> Machine | None:
    """Return the cores, memory and matrix instructions that this machine has.

    Return None if the jobs run on a different machine.

    Free disk space is not part of a plan, because it changes every minute. 01-environment checks
    it.
    """
    if site.scheduler != "local":
        return None
    return Machine(
        cores=num_cores(),
        flags=cpu_flags(),
        memory_bytes=psutil.virtual_memory().total,
    )


def make_plan_here(
    settings: Settings,
    measured: Calibrations | None = None,
    core_flops: float = 0.0,
) -> Plan:
    """Plan a run, using the cores and memory on this machine if its jobs run here.

    `core_flops` comes from `measure_core_flops`. It is used if the plan has no calibration.
    """
    checks = [*tokenizer_checks(settings), *environment_checks(settings)]
    machine = measure_machine(settings.site)
    if machine and core_flops:
        machine = replace(machine, core_flops=core_flops)
    return make_plan(settings, machine, measured, checks, uncounted_texts(settings))


def uncounted_texts(settings: Settings) -> dict[str, TextFiles]:
    """Return the files of each text without a known size, if this machine can read them."""
    files = {}
    for text in settings.texts:
        dataset = text.dataset
        is_readable = dataset.kind == "local" or (text.folder and dataset.kind != TOKENIZED)
        if is_counted(text) or not is_readable:
            continue
        if dataset.kind == "corpus":
            # data.folder replaces the shipped corpus with files of any name.
            dataset = dataset.model_copy(update={"files": [], "pattern": "*"})
        try:
            paths = dataset_files(dataset, project=settings.project, folder=text.folder)
            sizes = [path.stat().st_size for path in paths]
        except (DataError, OSError):
            # The text may be on the cluster only. 02-data reports files that cannot be read.
            continue
        shares = [text_per_byte(path) for path in paths]
        text_bytes = sum(size * share for size, share in zip(sizes, shares, strict=True))
        files[text.name] = TextFiles(sum(sizes), text_bytes)

    return files


def measure_core_flops(settings: Settings) -> float:
    """Measure FLOP/s for one core on this machine in a matrix product at the precision of the run.

    This takes several seconds, mostly to import torch. Return 0 if the run does not compute on the
    CPU of this machine, or if torch cannot be started.
    """
    site = settings.site
    if site.scheduler != "local" or site.hardware.device != "cpu":
        return 0.0
    python = site.python or sys.executable
    precision = settings.run.training.precision
    argv = [python, "-m", PROBE, "--only-torch", "--device", "cpu", "--format", precision]
    try:
        answer = shell.run(argv, timeout=PROBE_SECONDS).out
        return float(json.loads(answer.splitlines()[-1])["core_flops"])
    except (ProgramError, ValueError, LookupError, TypeError):
        return 0.0


def tokenizer_checks(settings: Settings) -> list[Check]:
    """Check that both models have room for the tokens in the tokenizer file.

    There is no check for GPT-2's tokenizer, whose vocabulary the planner knows, or for synthetic
    text. The check for a file that is not available here, for example because it is on the cluster,
    is `unknown`; 02-data repeats it.
    """
    name = settings.run.data.tokenizer
    is_mock = all(text.dataset.kind == "mock" for text in settings.texts)
    if name == "gpt2" or is_mock:
        return []
    rule = "the tokenizer's file can be read, and the model has room for its tokens"
    try:
        size = read_vocabulary_size(settings.tokenizer)
    except DataError as error:
        remedy = "Set data.tokenizer to gpt2, a tokenizer.json or a SentencePiece .model."
        return [
            Check(
                VOCABULARY_CHECK,
                "fail",
                str(error),
                rule,
                remedy,
            )
        ]

    if size is None:
        value = f"data.tokenizer={name} is not on this machine"
        remedy = "02-data compares it with the model on the machine that has the file."
        return [
            Check(
                VOCABULARY_CHECK,
                "unknown",
                value,
                rule,
                remedy,
            )
        ]

    return check_vocabulary(settings, size, f"data.tokenizer={name}")


def machine_identity(site: Site) -> str:
    """Identify the machine that a measured speed applies to.

    The text names the CPU and cores or the GPUs in this machine, or the devices on the site.
    """
    if site.scheduler != "local":
        return f"{site.site}: {site.hardware.device}"
    if site.hardware.device != "cpu":
        return f"{site.hardware.devices_per_node} x {site.hardware.device}"
    return f"{_cpu_fact(CPU_FACTS, 'model name') or platform.machine()}, {num_cores()} cores"


def num_cores() -> int:
    """Count the cores. Hardware threads are excluded if the system reports them."""
    return psutil.cpu_count(logical=False) or psutil.cpu_count() or 1


def cpu_flags(path: Path = CPU_FACTS) -> frozenset[str]:
    """Return the CPU instruction sets, as the kernel lists them. The result is empty on macOS."""
    return frozenset(_cpu_fact(path, "flags").split())


def _cpu_fact(path: Path, name: str) -> str:
    """Return a field listed for the first CPU, or an empty string if it is missing."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""

    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def keep_calibration(
    settings: Settings,
    plan: Plan,
    folder: Path,
    history: History,
    *,
    warned: bool = False,
) -> Calibration | None:
    """Write the step time measured in the smoke test as a ratio to the uncalibrated prediction.

    Return None if too few steps were timed or the plan predicts no step time.

    `warned` means that a check in the smoke test did not pass, so its times do not apply to other
    runs.
    """
    planned = plan.time[SMOKE].seconds_per_iteration
    seconds = [step.seconds for step in history.steps]
    used = plan.calibration[SMOKE]
    flops = plan.flops[SMOKE]
    choice = smoke_choice(settings)
    step = planned_profile(choice)
    plain = (planned or 0.0) / (used.factor_for(step) if used else 1)
    factor = calibrate(seconds, plain)
    if factor is None:
        return None
    calibration = Calibration(
        factor=float(f"{factor:.4g}"),
        measured_seconds=float(f"{factor * plain:.4g}"),
        predicted_seconds=float(f"{plain:.4g}"),
        steps=len(seconds) - 1,
        machine=machine_identity(settings.site),
        engine=choice.program,
        precision=plan.phases[SMOKE].precision.format,
        operations=flops.per_iteration[flops.convention],
        run=settings.name,
        measured=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        warned=warned,
        profile=step,
    )
    write_text(folder / CALIBRATION_FILE, json.dumps(as_json(calibration), indent=1) + "\n")
    return calibration


def known_calibrations(settings: Settings, runs: Path) -> Calibrations:
    """Return the measurements from all smoke tests in a folder.

    Skip unreadable files. A smoke test with a warning is used only for its own run.
    """
    usable = list[Calibration]()
    for path in sorted(runs.glob(f"*/{CALIBRATION_FILE}")):
        with contextlib.suppress(OSError, ValueError):
            calibration = read_calibration(json.loads(path.read_text(encoding="utf-8")))
            if calibration and (not calibration.warned or calibration.run == settings.name):
                usable.append(calibration)

    return Calibrations(machine_identity(settings.site), tuple(usable))


def calibrations_of_run(settings: Settings, folder: Path) -> Calibrations:
    """Return the measurements used in the plan of this run, so that the plan stays the same.

    For a run without a plan, return all measurements.
    """
    try:
        planned = tuple(filter(None, read_plan_file(folder).calibration.values()))
    except RecordError:
        return known_calibrations(settings, folder.parent)

    return Calibrations(machine_identity(settings.site), planned)
