"""Network settings that caused other users' jobs to hang.

Each rule applies to all sites with a certain fabric, and has a source.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from runbook.core.checks import Check, judge
from runbook.params.settings import Settings
from runbook.params.variable_groups import switched_on

NOT_SET = ""


@dataclass(frozen=True)
class NetworkRule:
    """Values for an environment variable with which jobs hung on a certain fabric."""

    variable: str
    fabric: str
    """Name of the libfabric provider for this fabric, as set in a site's hardware.fabric."""
    hangs_with: frozenset[str]
    """Values that caused jobs to hang.

    `NOT_SET` is included if jobs also hang while the variable is unset.
    """
    remedy: str
    source: str
    date: str
    """When the source was published, as YYYY-MM-DD."""
    devices: str = ""
    """The rule applies to accelerators with names that start with one of these prefixes. If empty,
    it applies to all.
    """


RULES = (
    NetworkRule(
        variable="FI_MR_CACHE_MONITOR",
        fabric="cxi",
        # The default in libfabric is memhooks.
        hangs_with=frozenset({NOT_SET, "memhooks"}),
        remedy="Set FI_MR_CACHE_MONITOR to userfaultfd in a group of the site's environment.",
        source="Lumi-supercomputer/LUMI-AI-Guide pull request 118; olcf/olcf-user-docs issue 947",
        date="2026-09-15",
    ),
    NetworkRule(
        variable="NCCL_NET_GDR_LEVEL",
        fabric="cxi",
        # In older NCCL notation, 3 means PHB and 5 means SYS.
        hangs_with=frozenset({"PHB", "SYS", "3", "5"}),
        remedy=(
            "Leave NCCL_NET_GDR_LEVEL out, at least in an image of ROCm 7: RCCL determines the "
            "level itself."
        ),
        source="lumi-ai-factory/laifs-container-recipes issue 30; LUMI-AI-Guide pull request 97",
        date="2026-05-04",
        devices="MI",
    ),
)


def check_network(settings: Settings) -> list[Check]:
    """Compare the environment set for jobs with the rules for the fabric at this site.

    There is no check if the fabric is unknown or has no rule. A setting that caused jobs to hang
    elsewhere only results in a warning, because the effect depends on the libfabric and RCCL
    versions in the image.
    """
    variables: dict[str, str | None] = {}
    for group in switched_on(settings).values():
        variables |= group
    hardware = settings.site.hardware
    checks: list[Check] = []
    for rule in RULES:
        if rule.fabric == hardware.fabric and hardware.device.startswith(rule.devices):
            checks.append(_check(rule, variables))

    return checks


def _check(rule: NetworkRule, variables: Mapping[str, str | None]) -> Check:
    name = f"network: {rule.variable}"
    says = f"a value that is not known to cause hangs ({rule.source}, {rule.date})"
    # A group that unsets NCCL_NET keeps NCCL from using libfabric, so settings for libfabric have
    # no effect.
    if "NCCL_NET" in variables and variables["NCCL_NET"] is None:
        return Check(name, "pass", "NCCL_NET is unset: NCCL does not use libfabric", says)
    value = variables.get(rule.variable) or NOT_SET
    if value:
        setting = f"{rule.variable}={value}"
    else:
        setting = f"{rule.variable} is not set"

    return judge(
        name,
        value not in rule.hangs_with,
        setting,
        says,
        rule.remedy,
        otherwise="warn",
    )
