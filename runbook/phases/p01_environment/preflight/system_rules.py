"""Rules for the operating system on a node: account, devices, kernel, programs."""

from collections.abc import Mapping, Sequence

from runbook.core.units import show_bytes
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight import thresholds
from runbook.phases.p01_environment.preflight.expectations import Expectations
from runbook.phases.p01_environment.preflight.job_answers import NodeFacts

SHOWN_PROGRAMS = 3
SHOWN_COMMAND_LETTERS = 80


def packages_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if libraries in Python packages cannot be loaded."""
    if not facts.get("refuses_libraries"):
        return ""
    return PhaseMessage.PACKAGES_WITHOUT_LIBRARIES.fill(folder=facts["packages_folder"])


def account_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if a node does not know the user that the job runs as."""
    if facts["user"]:
        return ""
    return PhaseMessage.USER_UNKNOWN.fill(user_id=facts["user_id"])


def home_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return why no file can be written to the home folder, or an empty string."""
    if not facts["home_error"]:
        return ""
    return PhaseMessage.HOME_UNWRITABLE.fill(home=facts["home"], error=facts["home_error"])


def devices_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the faults in the device files that every program needs."""
    return "; ".join(f"{path}: {fault}" for path, fault in facts["faults"].items())


def kernel_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return each kernel setting that is below its threshold."""
    faults = []
    for name, threshold in thresholds.KERNEL_SETTINGS.items():
        value = facts.get(name)
        if value is None or value >= threshold.value:
            continue
        minimum = int(threshold.value)
        is_size = threshold.unit.startswith("bytes")
        faults.append(
            PhaseMessage.KERNEL_SETTING_LOW.fill(
                name=name,
                value=show_bytes(value) if is_size else value,
                minimum=show_bytes(minimum) if is_size else minimum,
            )
        )

    return "; ".join(faults)


def foreign_programs_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return busy programs by the same user on a node that no job started."""
    programs = [program for program in facts["busy"] if not program.get("job")]
    return _shown_programs(programs) if expected.has_queue else ""


def other_job_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the busy programs on a node that belong to other jobs by the same user.

    Two jobs may share a node without being bound to cores, so this is not a defect.
    """
    programs = [program for program in facts["busy"] if program.get("job")]
    return _shown_programs(programs) if expected.has_queue else ""


def left_programs_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the programs from ended jobs that still use the run folder."""
    texts = []
    for program in facts.get("in_run", [])[:SHOWN_PROGRAMS]:
        command = str(program["command"])[:SHOWN_COMMAND_LETTERS]
        texts.append(
            PhaseMessage.RUN_FILES_HELD.fill(
                pid=program["pid"], job=program["job"], path=program["path"], command=command
            )
        )

    return "; ".join(texts)


def scheduler_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if slurm.conf on a node differs from the one on the Slurm controller."""
    if facts["comparison"] != "Different":
        return ""
    return PhaseMessage.SCHEDULER_SETTINGS_DIFFER.fill()


def _shown_programs(programs: Sequence[Mapping[str, object]]) -> str:
    texts = []
    for program in programs[:SHOWN_PROGRAMS]:
        command = str(program["command"])[:SHOWN_COMMAND_LETTERS]
        texts.append(PhaseMessage.FOREIGN_PROGRAM.fill(pid=program["pid"], command=command))

    return "; ".join(texts)
