"""Defines which function collects each group of facts."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from runbook.node_checks.answers import Facts, Rung
from runbook.node_checks.fact_sheet.environment_facts import look_at_environment
from runbook.node_checks.fact_sheet.folder_facts import look_at_mounts
from runbook.node_checks.fact_sheet.group_names import FactGroup
from runbook.node_checks.fact_sheet.network_facts import look_at_network
from runbook.node_checks.fact_sheet.program_facts import (
    look_at_all_devices,
    look_at_all_programs,
    look_at_packages,
)
from runbook.node_checks.fact_sheet.setting_facts import look_at_all_settings
from runbook.node_checks.fact_sheet.system_facts import look_at_all_limits, look_at_system

GROUP_SECONDS = 15.0


def looks_at(folders: list[Path]) -> dict[FactGroup, Callable[[], Facts]]:
    """Return the function for each group. File systems may hang, so they come last."""
    return {
        FactGroup.SYSTEM: look_at_system,
        FactGroup.LIMITS: look_at_all_limits,
        FactGroup.KERNEL_SETTINGS: look_at_all_settings,
        FactGroup.NETWORK: look_at_network,
        FactGroup.ENVIRONMENT: look_at_environment,
        FactGroup.PROGRAMS: look_at_all_programs,
        FactGroup.PACKAGES: look_at_packages,
        FactGroup.DEVICES: look_at_all_devices,
        FactGroup.FOLDERS: partial(look_at_mounts, folders),
    }


def ask_facts(rung: Rung, folders: list[Path]) -> None:
    """Write the facts in each group."""
    for group, look in looks_at(folders).items():
        rung.ask(group.part, look, GROUP_SECONDS)
