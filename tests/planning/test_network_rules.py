"""Network settings that caused other users' jobs to hang result in a warning at every site with
that fabric.
"""

import pytest

from runbook import params
from runbook.params.settings import with_placeholders
from runbook.planning.network_rules import RULES, check_network


def verdicts(run, *words, environment=None, **hardware):
    """Return the verdict by variable, for a run's site with a different environment or hardware."""
    settings = with_placeholders(params.load(run, set_words=words))
    site = settings.site
    changes = {"hardware": site.hardware.model_copy(update=hardware)}
    if environment is not None:
        changes["environment"] = {"network": environment}
    settings = type(settings)(**{**vars(settings), "site": site.model_copy(update=changes)})
    return {
        check.name.removeprefix("network: "): check.verdict for check in check_network(settings)
    }


def test_lumi_sets_the_cache_monitor_and_leaves_the_level_to_rccl():
    assert verdicts("lumi-13b") == {"FI_MR_CACHE_MONITOR": "pass", "NCCL_NET_GDR_LEVEL": "pass"}
    assert verdicts("lumi-13b", "jobs.switch=+gdr")["NCCL_NET_GDR_LEVEL"] == "warn"


@pytest.mark.parametrize("run", ["azure-175b", "aws-pile-175b", "slurm-oscar", "local"])
def test_a_site_of_another_fabric_has_no_rule(run):
    assert verdicts(run) == {}


@pytest.mark.parametrize("switch", ["", "+plugin -no-plugin"])
def test_polaris_passes_without_the_plugin_and_with_it(switch):
    assert verdicts("polaris-25b", f"jobs.switch={switch}") == {"FI_MR_CACHE_MONITOR": "pass"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {"FI_MR_CACHE_MONITOR": "warn", "NCCL_NET_GDR_LEVEL": "pass"}),
        ({"FI_MR_CACHE_MONITOR": "memhooks"}, {"FI_MR_CACHE_MONITOR": "warn"}),
        ({"FI_MR_CACHE_MONITOR": "kdreg2"}, {"FI_MR_CACHE_MONITOR": "pass"}),
        ({"FI_MR_CACHE_MONITOR": None}, {"FI_MR_CACHE_MONITOR": "warn"}),
        ({"NCCL_NET_GDR_LEVEL": "PHB"}, {"NCCL_NET_GDR_LEVEL": "warn"}),
        ({"NCCL_NET_GDR_LEVEL": "3"}, {"NCCL_NET_GDR_LEVEL": "warn"}),
        ({"NCCL_NET_GDR_LEVEL": "LOC"}, {"NCCL_NET_GDR_LEVEL": "pass"}),
    ],
)
def test_any_site_of_the_fabric_is_judged_by_its_own_environment(environment, expected):
    found = verdicts("slurm-oscar", environment=environment, fabric="cxi", device="MI300X")
    assert expected.items() <= found.items()


def test_an_nvidia_site_may_set_the_level():
    found = verdicts("slurm-oscar", environment={}, fabric="cxi", device="A100-40GB")
    assert list(found) == ["FI_MR_CACHE_MONITOR"]


def test_every_rule_has_a_source_and_a_date():
    for rule in RULES:
        assert rule.source and rule.date.startswith("202") and rule.remedy
