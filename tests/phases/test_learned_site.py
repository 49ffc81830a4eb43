"""What a preflight learns about a site, written into the site file."""

from __future__ import annotations

from pathlib import Path

from suite.messages import refuses, says

from runbook.core.errors import ParamsError
from runbook.params.catalogues import read_site
from runbook.params.messages import ParamsMessage
from runbook.params.site_lines import set_value
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight.learned_site import LearnedSite, Request, learn_site
from runbook.phases.p01_environment.preflight.run_preflight import PreflightResult

PROJECT = Path(__file__).parents[2]
GIB = 1 << 30
GPU = {"name": "NVIDIA H100 80GB HBM3", "total": 79 * GIB + 7, "free": 78 * GIB}


def node(address: str, cores: int, num_gpus: int = 0) -> dict[str, dict[str, object]]:
    """Return the facts of one node, in the form that node_checks writes."""
    interfaces = {"lo": {"address": "127.0.0.1"}, "eth0": {"address": address}}
    return {
        "hosts": {
            "cores": {"cores": cores, "quota": None},
            "memory": {"limit": None, "total": 250 * GIB},
            "interfaces": {"interfaces": interfaces, "chosen": {"GLOO_SOCKET_IFNAME": ""}},
        },
        "torch": {"torch": {"devices": [GPU] * num_gpus}},
        "peers": {
            "listen": {"port": 50000, "address": address},
            "to the other": {"bytes_per_second": 1.234e9 + cores},
        },
    }


def learned(site_name: str, **nodes: dict[str, dict[str, object]]) -> LearnedSite:
    site, _ = read_site(site_name, PROJECT)
    return learn_site(site, PreflightResult(nodes=nodes), "job slurm-7 (01-environment-preflight)")


def test_values_are_the_smallest_of_all_nodes_each_with_its_evidence():
    result = learned("slurm", n1=node("10.0.0.1", 64, 8), n2=node("10.0.0.2", 62, 8))
    values = {lesson.name: lesson.value for lesson in result.lessons}
    assert values["hardware.cores_per_node"] == 62
    assert values["hardware.node_memory"] == "250GiB"
    assert values["hardware.devices_per_node"] == 8
    assert values["hardware.device_memory"] == "79GiB"
    assert all("n1, n2" in lesson.evidence for lesson in result.lessons[:3])


def test_what_could_not_be_learned_is_said_with_the_reason():
    result = learned("slurm", n1=node("10.0.0.1", 64))
    gaps = {gap.name: gap.reason for gap in result.gaps}
    assert gaps["hardware.device"] == PhaseMessage.NO_NODE_CAME.fill()
    assert says(gaps["write_bandwidth"], PhaseMessage.ONE_FILE_OF_EACH_NODE)
    nothing = learned("slurm")
    assert nothing.lessons == ()
    assert {"hardware.cores_per_node", "hardware.node_memory"} <= {gap.name for gap in nothing.gaps}


def test_what_the_job_asked_for_itself_is_no_measure_of_the_node():
    facts = node("10.0.0.1", 8)
    facts["hosts"]["cores"] = {"cores": 8, "online": 64, "quota": None}
    facts["hosts"]["memory"] = {"limit": 16 * GIB, "total": 250 * GIB}
    answers = PreflightResult(nodes={"n1": facts})
    site, _ = read_site("slurm", PROJECT)
    result = learn_site(site, answers, "job slurm-7", Request(cores=8, memory="16G"))
    gaps = {gap.name: gap.reason for gap in result.gaps}
    assert says(
        gaps["hardware.cores_per_node"], PhaseMessage.SAW_REQUESTED_CORES, requested=8, online=64
    )
    assert says(
        gaps["hardware.node_memory"], PhaseMessage.SAW_REQUESTED_MEMORY, requested="16G", total=250
    )
    whole = learn_site(site, answers, "job slurm-7", Request(cores=4, memory="0"))
    values = {lesson.name: lesson.value for lesson in whole.lessons}
    assert values["hardware.cores_per_node"] == 8, "it saw more than it had asked for"
    assert values["hardware.node_memory"] == "16GiB"


def test_an_interface_and_a_network_are_learned_where_the_site_names_none():
    result = learned("local", n1=node("10.0.0.1", 2), n2=node("10.0.0.2", 2))
    values = {lesson.name: lesson.value for lesson in result.lessons}
    assert values["environment.network.GLOO_SOCKET_IFNAME"] == "eth0"
    assert values["hardware.network"] == 1.2


def test_a_value_is_written_once_and_the_other_lines_stay():
    text = "# mine\nhardware:\n  device: cpu  # by hand\n"
    written = set_value(text, ("hardware", "node_memory"), "23GiB", "measured")
    lines = text.splitlines()
    lines.insert(2, "  node_memory: 23GiB  # measured")
    assert written.splitlines() == lines
    assert set_value(written, ("hardware", "node_memory"), "23GiB", "measured") == written
    with refuses(ParamsError, ParamsMessage.KEY_NOT_ON_ITS_OWN_LINE):
        set_value("hardware: {device: cpu}\n", ("hardware", "node_memory"), 1, "measured")
