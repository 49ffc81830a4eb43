"""Facts by which the nodes of a job are compared, and what a difference between nodes means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from suite.messages import says

from runbook.node_checks.answers import HOSTS, MARK
from runbook.node_checks.fact_sheet import environment_facts, program_facts
from runbook.node_checks.fact_sheet.folder_facts import look_at_mounts, look_at_opening_files
from runbook.node_checks.fact_sheet.group_names import FactGroup
from runbook.node_checks.fact_sheet.groups import looks_at
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight.expectations import Expectations
from runbook.phases.p01_environment.preflight.fact_table import FACT_TABLE, Meaning
from runbook.phases.p01_environment.preflight.job_answers import JobAnswers, parse_job_answers
from runbook.phases.p01_environment.preflight.node_differences import (
    DIFFERENCE,
    difference_checks,
    find_differences,
)
from runbook.phases.p01_environment.preflight.placed_check import (
    PlacedCheck,
    PlacedRule,
    PreflightCheck,
)
from runbook.phases.p01_environment.preflight.run_preflight import RungResult, with_likely_cause
from runbook.phases.p01_environment.preflight.set_up_rules import VARIABLES, set_up_checks

EXPECTED = Expectations(
    device="cpu",
    accelerator=None,
    devices_per_node=1,
    cores_per_node=0,
    node_memory=0,
    fabric="",
    network_bytes=0,
    checkpoint_bytes=0,
    walltime=300,
    has_queue=True,
    environment={},
    framework="runbook",
)
SYSTEM = {"priority (nice)": "0", "/proc": "mounted", "/sys": "mounted"}
NETWORK = {
    "address of localhost": "127.0.0.1, ::1",
    "interface eth0": "up",
    "MTU of eth0": "1500",
    "interface ib0": "down",
    "MTU of ib0": "576",
}


def answers_of(part: str, *facts: Mapping[str, object]) -> JobAnswers:
    """Return the answers of nodes n1, n2, ... to one part."""
    nodes = tuple(f"n{number}" for number in range(1, len(facts) + 1))
    lines = []
    for node, of_node in zip(nodes, facts, strict=True):
        answer = {"rung": HOSTS, "node": node, "part": part, "state": "done", "time": 1.0}
        lines.append(MARK + json.dumps({**answer, "facts": of_node, "error": ""}))
    return parse_job_answers("\n".join(lines), nodes)


def compared(group: str, *facts: Mapping[str, object]) -> PlacedCheck:
    (check,) = difference_checks(answers_of(FactGroup(group).part, *facts))
    assert check.name == f"{DIFFERENCE}{group}"
    return check


@pytest.mark.parametrize("group", FactGroup)
def test_a_machine_does_not_differ_from_itself(group, tmp_path):
    look = looks_at([tmp_path])[group]
    facts = [{name: str(value) for name, value in look().items()} for _ in range(2)]
    assert facts[0]
    assert find_differences(group, {"n1": facts[0], "n2": facts[1]}) == []


def test_folders_have_types_options_and_sizes(tmp_path):
    facts = look_at_mounts([tmp_path, tmp_path / "absent"])
    assert {"/dev/shm: type", "packages: options", "shared folder 0: bytes"} <= set(facts)
    assert str(facts["shared folder 1: type"]).startswith("(")
    assert look_at_opening_files()["milliseconds"] > 0


def test_the_node_that_stands_alone_is_named_with_its_value():
    check = compared("kernel settings", *[{"net.ipv4.tcp_sack": value} for value in "101"])
    assert (check.verdict, check.nodes) == ("warn", ("n2",))
    assert check.value == PhaseMessage.DIFFERENT_FACT.fill(
        fact="net.ipv4.tcp_sack", values="0 on n2, 1 on n1 and 1 more"
    )


def test_of_two_nodes_none_is_the_odd_one():
    assert compared("system", {"kernel": "6.1"}, {"kernel": "6.2"}).nodes == ("n1", "n2")


def test_a_fact_that_only_one_node_has_is_a_difference():
    check = compared(
        "packages", {"torch": "2.9"}, {"torch": "2.9", "apex": "0.1"}, {"torch": "2.9"}
    )
    assert check.nodes == ("n2",)


@pytest.mark.parametrize(
    ("group", "fact", "values", "verdict"),
    [
        ("environment", "TORCH_DISTRIBUTED_DEBUG", ("DETAIL", ""), "fail"),
        ("environment", "NCCL_ALGO", ("Ring", "Tree"), "fail"),
        ("environment", "SLURMD_NODENAME", ("n1", "n2"), "pass"),
        ("environment", "RANK", ("0", "1"), "pass"),
        ("environment", "EDITOR", ("vi", "nano"), "warn"),
        ("kernel settings", "fs.file-max", ("1000000", "1000100"), "pass"),
        ("kernel settings", "fs.file-max", ("1000000", "2000000"), "warn"),
        ("kernel settings", "net.core.netdev_rss_key", ("ab:cd", "ef:01"), "pass"),
        ("folders", "/dev/shm: bytes", ("1000000", "1010000"), "pass"),
        ("folders", "/tmp: options", ("rw", "noexec rw"), "warn"),
        ("network", "MTU of eth0", ("1500", "9000"), "warn"),
        ("network", "metrics of routes", ("", "advmss 88"), "warn"),
    ],
)
def test_what_a_difference_means(group, fact, values, verdict):
    assert compared(group, *[{fact: value} for value in values]).verdict == verdict


def test_a_defect_is_shown_first_with_its_source():
    facts = {f"V{number}": "1" for number in range(13)}
    check = compared("environment", {**facts, "NCCL_PROTO": "LL"}, {"NCCL_PROTO": "Simple"})
    row = next(row for row in FACT_TABLE if row.pattern == "NCCL_PROTO")
    assert row.meaning is Meaning.DEFECT
    assert check.value.startswith("NCCL_PROTO: ") and check.value.endswith(row.source)
    assert PhaseMessage.MORE_DIFFERENCES.fill(count=6) in check.value


def test_of_a_long_list_only_the_odd_words_are_shown():
    flags = " ".join(f"flag{number}" for number in range(60))
    check = compared("system", {"flags": f"{flags} avx512f"}, {"flags": flags})
    assert "avx512f" in check.value and "flag7" not in check.value


def test_a_node_without_an_answer_is_named():
    answers = answers_of("facts: system", SYSTEM, SYSTEM)
    alone = {key: answer for key, answer in answers.answers.items() if key[1] == "n1"}
    (check,) = difference_checks(replace(answers, answers=alone))
    assert (check.verdict, check.nodes) == ("warn", ("n2",))


def test_one_node_is_compared_with_nothing():
    assert difference_checks(answers_of("facts: system", SYSTEM)) == []


def test_a_later_failure_shows_how_the_node_differs():
    warned = compared("network", {"MTU of eth0": "1500"}, {"MTU of eth0": "9000"})
    failed = PlacedRule("links between nodes", "").broken("no answer", ["n2"])
    (check,) = with_likely_cause([failed], [RungResult("hosts", (warned,), 1.0)])
    assert says(check.value, PhaseMessage.LIKELY_CAUSE)
    assert check.value.index("MTU of eth0") < check.value.index("no answer")
    elsewhere = PlacedRule("links between nodes", "").broken("no answer", ["n7"])
    assert with_likely_cause([elsewhere], [RungResult("hosts", (warned,), 1.0)]) == [elsewhere]


def test_secrets_are_not_written(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("PLAIN", "value")
    facts = environment_facts.look_at_environment()
    assert facts["PLAIN"] == "value"
    assert "hf_secret" not in json.dumps(facts)
    assert facts["HF_TOKEN"] == environment_facts.checksum("hf_secret")


def test_a_compiler_that_does_not_start_is_described(tmp_path, monkeypatch):
    compiler = tmp_path / "gcc"
    compiler.touch(mode=0o755)
    compiler.write_bytes(b"\0")
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = program_facts.look_at_all_programs()
    assert facts["gcc"] == f"{compiler}, 1 bytes"
    (check,) = faults("facts: programs", facts)
    assert (check.name, check.verdict) == (PreflightCheck.COMPILERS, "warn")
    assert says(check.value, PhaseMessage.PROGRAM_BROKEN)


def test_a_version_that_is_not_utf_8_is_read(tmp_path):
    """A compiler prints its version in the locale's encoding, which may be Latin-1."""
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh\nprintf 'gcc (\\351dition) 13.2\\nx'\n")
    compiler.chmod(0o755)
    assert program_facts.version_line(str(compiler)) == "gcc (\ufffddition) 13.2"


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/opt/gone/lib.so libm.so.6:/opt/$LIB/x.so")
    facts = environment_facts.look_at_named_files()
    (check,) = faults("named files", facts)
    assert check.name == PreflightCheck.NAMED_FILES
    text = PhaseMessage.NAMED_FILE_ABSENT.fill(name="LD_PRELOAD", path="/opt/gone/lib.so")
    assert check.value == f"n1: {text}"


def faults(
    part: str, facts: Mapping[str, object], expected: Expectations = EXPECTED
) -> list[PlacedCheck]:
    """Return the checks that a node with these facts fails."""
    checks = set_up_checks(answers_of(part, facts), expected)
    return [check for check in checks if check.verdict != "pass"]


@pytest.mark.parametrize(
    ("part", "sound", "changes", "name", "verdict"),
    [
        ("facts: network", NETWORK, {"address of localhost": "10.0.0.9"}, "LOCALHOST", "fail"),
        ("facts: network", NETWORK, {"MTU of eth0": "576"}, "PACKET_SIZE", "warn"),
        ("facts: system", SYSTEM, {"priority (nice)": "19"}, "PRIORITY", "warn"),
        ("facts: system", SYSTEM, {"/sys": "empty"}, "SYSTEM_FOLDERS", "warn"),
        ("opening files", {"milliseconds": 0.1}, {"milliseconds": 10.0}, "OPENING_FILES", "warn"),
    ],
)
def test_a_set_up_that_all_nodes_have_is_judged_too(part, sound, changes, name, verdict):
    assert faults(part, sound) == []
    (check,) = faults(part, {**sound, **changes})
    assert (check.name, check.verdict) == (PreflightCheck[name], verdict)


@pytest.mark.parametrize("row", VARIABLES, ids=lambda row: row.name)
def test_a_harmful_variable_is_named_unless_the_site_sets_it(row):
    assert row.source and row.effect
    value = row.value.replace("?*", "1").replace("[1-9]", "3").replace("*", "")
    (check,) = faults("facts: environment", {row.name: value})
    assert check.name == PreflightCheck.VARIABLES
    assert check.value.startswith(f"n1: {row.name}={value}: ")
    of_site = replace(EXPECTED, environment={"rccl": {row.name: value}})
    assert faults("facts: environment", {row.name: value}, of_site) == []


def test_a_variable_of_the_shell_that_steers_torch_is_named_unless_the_site_knows_it():
    of_job = {"TRITON_INTERPRET": "1", "NCCL_DEBUG_FILE": "/image", "PYTHONPATH": "/package"}
    shell = {"TRITON_INTERPRET": "1", "NCCL_DEBUG_FILE": "/mine", "EDITOR": "vi"}
    expected = replace(EXPECTED, shell=shell)
    (check,) = faults(FactGroup.ENVIRONMENT.part, of_job, expected)
    assert (check.name, check.verdict) == (PreflightCheck.SHELL_VARIABLES, "warn")
    assert check.value == "n1: TRITON_INTERPRET=1"
    of_site = replace(expected, environment={"torch": {"TRITON_INTERPRET": "0"}})
    assert faults(FactGroup.ENVIRONMENT.part, of_job, of_site) == []


@pytest.mark.parametrize(
    ("name", "value", "is_shown"),
    [
        ("https_proxy", "http://ann:hunter2@proxy.example.org:3128", False),
        ("https_proxy", "http://proxy.example.org:3128", True),
    ],
)
def test_a_value_that_may_be_secret_is_compared_by_its_checksum(monkeypatch, name, value, is_shown):
    monkeypatch.setenv(name, value)
    fact = environment_facts.look_at_environment()[name]
    assert (fact == value) is is_shown
    assert is_shown or fact == environment_facts.checksum(value)
