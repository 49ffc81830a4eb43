"""The rules of the preflight: each defect is reported with its check and node, and healthy nodes
break no rule.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from suite.messages import says

from runbook.core import shell
from runbook.core.errors import RecordError
from runbook.core.units import show_duration
from runbook.jobs.job_folder import JobFolder
from runbook.jobs.render.preflight_job import NODE_SETUP
from runbook.node_checks.answers import MARK, PartAnswer, PartState, output_lines
from runbook.node_checks.mounts import parse_mounts
from runbook.node_checks.networks import interfaces_to
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight import software_rules
from runbook.phases.p01_environment.preflight.expectations import Expectations
from runbook.phases.p01_environment.preflight.folder_rules import folder_checks
from runbook.phases.p01_environment.preflight.group_rules import (
    bandwidth_check,
    binding_check,
    cores_of_hosts,
    groups_check,
    meeting_check,
    rank_presence_check,
    transport_check,
)
from runbook.phases.p01_environment.preflight.host_rules import host_checks, temporary_path_fault
from runbook.phases.p01_environment.preflight.interface_rules import neighbour_text, overlap_text
from runbook.phases.p01_environment.preflight.job_answers import (
    END,
    STEP,
    JobAnswers,
    parse_job_answers,
)
from runbook.phases.p01_environment.preflight.launcher_output import first_end, queue_end
from runbook.phases.p01_environment.preflight.link_rules import link_checks
from runbook.phases.p01_environment.preflight.placed_check import PlacedCheck, PreflightCheck
from runbook.phases.p01_environment.preflight.run_preflight import (
    PreflightResult,
    RungResult,
    _outer_checkpoints,
    _with_first_end,
    answers_folder_checks,
    with_early_end,
    write_answers,
)
from runbook.phases.p01_environment.preflight.set_up_rules import (
    opening_check,
    remove_ipc_fault,
    threads_fault,
)
from runbook.phases.p01_environment.preflight.step_rules import step_end_check
from runbook.phases.p01_environment.preflight.torch_rules import compiler_check, torch_checks
from runbook.plan_file import group_limits
from runbook.plan_file.phase_names import FULL

GIB = 1 << 30
EXPECTED = Expectations(
    device="cpu",
    accelerator=None,
    devices_per_node=1,
    cores_per_node=2,
    node_memory=0,
    fabric="",
    network_bytes=0.125e9,
    checkpoint_bytes=100 << 20,
    walltime=300,
    has_queue=True,
    environment={},
    framework="runbook",
)
HOST_FACTS = {
    "software": {"python": "3.11.7", "packages": {"torch": "2.13.0", "numpy": "2.4.6"}},
    "programs": {
        "executable": "/env/bin/python3",
        "prefix": "/env",
        "own_place": 0,
        "programs": {
            "python": {
                "path": "/env/bin/python",
                "place": 0,
                "version": "3.11.7",
                "ended": "well",
                "is_own": True,
            },
            "python3": {
                "path": "/env/bin/python3",
                "place": 0,
                "version": "3.11.7",
                "ended": "well",
                "is_own": True,
            },
        },
    },
    "sources": {
        "gpt3-runbook": {"folder": "/home/me/runbook", "checksum": "00000001"},
        "torch": {"folder": "/env/lib/torch", "checksum": "00000002"},
    },
    "limits": {
        "memlock": None,
        "nofile": 65536,
        "nofile_hard": 65536,
        "nproc": None,
        "tasks": None,
    },
    "memory": {
        "total": 64 * GIB,
        "available": 60 * GIB,
        "limit": None,
        "shm_total": 32 * GIB,
        "shm_free": 32 * GIB,
        "shm_error": "",
    },
    "cores": {
        "cores": 2,
        "quota": None,
        "model": "Xeon",
        "loop_seconds": 0.005,
        "slowest_core": 1,
        "slowest_seconds": 0.006,
    },
    "scratch": {"folder": "/tmp", "asked": "", "free": 10 * GIB, "free_inodes": 10**6},
    "tools": {"nvcc": "", "driver": ""},
    "account": {"user_id": 1000, "user": "me", "home": "/u/me", "home_error": ""},
    "devices": {"faults": {}},
    "kernel": {"net.ipv4.tcp_rmem": 6 << 20, "net.core.somaxconn": 4096, "vm.max_map_count": None},
    "foreign programs": {"busy": [], "in_run": []},
    "scheduler": {"comparison": "Match"},
    "interfaces": {
        "interfaces": {
            "lo": {"address": "127.0.0.1", "is_up": True, "mtu": 65536},
            "eth0": {"address": "10.0.0.1", "is_up": True, "mtu": 1500},
            "ib0": {"address": "", "is_up": False, "mtu": 2044},
        },
        "infiniband": {},
        "addresses": [],
        "chosen": {"NCCL_SOCKET_IFNAME": "", "GLOO_SOCKET_IFNAME": "eth0"},
    },
    "names": {
        "own": "n1",
        "host": "n1",
        "addresses": {"n1": ["127.0.1.1"], "n2": ["10.0.0.2"]},
        "errors": {},
    },
    "caches": {
        "TRITON_CACHE_DIR": {
            "folder": "/tmp/cache/triton",
            "is_set": True,
            "file_system": "ext4",
            "is_shared": False,
            "refuses_libraries": False,
            "error": "",
        }
    },
    "stores": {
        "HF_HOME": {"folder": "/u/me/hf", "is_set": False, "is_full": False, "error": ""},
    },
    "folder 0": {
        "folder": "/run",
        "file_system": "nfs4",
        "mount_point": "/run",
        "read_only": False,
        "free": 10 * GIB,
        "free_inodes": 10**6,
        "token": "same",
        "errors": {},
        "unseen": [],
    },
    "clock": {"ahead": 0.0},
}
"""The answers of a healthy node in the first stage."""


def line(rung: str, node: str, part: str, facts: object, state: str = "done") -> str:
    answer = {"rung": rung, "node": node, "part": part, "state": state, "time": 1.0}
    return f"{MARK}{json.dumps({**answer, 'facts': facts, 'error': ''})}"


def job_of(*lines: str) -> JobAnswers:
    """Return the answers of a job on two nodes."""
    job = line("job", "", "nodes", {"nodes": "n1 n2", "time_left": "4:59", "port": 50000})
    return parse_job_answers("\n".join([job, *lines]))


def hosts(part: str = "", **changes: object) -> JobAnswers:
    """Return answers from two nodes. If a part is named, n2 reports these changes in it."""
    lines = []
    for node in ("n1", "n2"):
        for name, facts in HOST_FACTS.items():
            own = {**facts, "host": node} if name == "names" else facts
            if node == "n2" and name == part:
                own = {**own, **changes}
            lines.append(line("hosts", node, name, own))
    return job_of(*lines)


def broken(checks: list[PlacedCheck]) -> list[PlacedCheck]:
    return [check for check in checks if check.verdict != "pass"]


@pytest.mark.parametrize("setup_code", [None, 0])
def test_the_last_words_of_a_silent_node_are_reported(tmp_path, setup_code):
    answers = hosts()
    of_others = {key: answer for key, answer in answers.answers.items() if key[1] != "n2"}
    if setup_code is not None:
        setup = job_of(line(NODE_SETUP, "", "step", {"code": setup_code}))
        of_others |= setup.answers
    job = JobFolder(tmp_path)
    job.err.write_text(
        "python3: No module named x\nsrun: error: n2: task 1: Exited with exit code 1\n"
    )
    checks = _with_first_end(host_checks(replace(answers, answers=of_others), EXPECTED), job)
    (failed,) = [check for check in checks if check.verdict == "fail"]
    assert failed.value.endswith(
        "task 1 on n2: Exited with exit code 1: python3: No module named x"
    )


def test_the_end_of_the_job_is_reported_if_a_nodes_program_ended_before_it_answered():
    answers = hosts()
    without_limits = {key: answer for key, answer in answers.answers.items() if key[2] != "limits"}
    begun = job_of(*[line("hosts", node, "limits", {}, "begun") for node in ("n1", "n2")])
    early = replace(answers, answers=without_limits | begun.answers)
    ending = PlacedCheck("job (hosts)", "fail", "the launcher ended with exit code 137", "")
    failed = [check for check in host_checks(early, EXPECTED) if check.verdict == "fail"]
    first = with_early_end(failed, early, "hosts", ending)[0]
    assert isinstance(first, PlacedCheck)
    assert (first.name, first.nodes) == ("job (hosts)", ("n1", "n2"))
    assert first.value == f"{ending.value}. {failed[0].name}: {failed[0].value}"

    defect = replace(failed[0], value="n2: 300 open files, below 1024")
    first = with_early_end([defect], early, "hosts", ending)[0]
    assert first == replace(defect, value=f"{defect.value}. {ending.value}")

    ends = job_of(*[line("hosts", node, END, {}) for node in ("n1", "n2")])
    late = replace(early, answers=early.answers | ends.answers)
    assert with_early_end(failed, late, "hosts", ending) == failed
    assert with_early_end([ending], early, "hosts", ending) == [ending]


def test_a_python_that_does_not_start_is_reported_with_the_variable_that_misleads_it():
    errors = (
        "Python path configuration:\n  PYTHONHOME = '/opt/python2'\n  PYTHONPATH = (not set)\n"
        "Fatal Python error: init_fs_encoding: failed to get the Python codec\n"
        "Current thread 0x1 (most recent call first):\n  <no Python frame>\n"
        "srun: error: n2: task 1: Exited with exit code 1\n"
    )
    reason = PhaseMessage.PYTHON_HOME_MISLEADS.fill(
        words="init_fs_encoding: failed to get the Python codec", home="/opt/python2"
    )
    assert first_end(errors) == f"task 1 on n2: Exited with exit code 1: {reason}"
    without_home = errors.replace("PYTHONHOME = '/opt/python2'", "PYTHONHOME = (not set)")
    assert "exit code 1: init_fs_encoding: " in first_end(without_home)


def test_sound_nodes_break_no_rule():
    assert broken(host_checks(hosts(), EXPECTED)) == []


MEMORY = HOST_FACTS["memory"]
INTERFACES = HOST_FACTS["interfaces"]
NAMES_OF_SECOND = {"own": "n2", "addresses": {"n1": ["10.0.0.1"]}}
"""What the second node reports about names, as far as it differs from the first node."""


@pytest.mark.parametrize(
    ("name", "part", "changes", "value"),
    [
        ("locked memory", "limits", {"memlock": 65536}, "n2: 64.0 KiB"),
        ("open files", "limits", {"nofile": 256}, "n2: 256 open files"),
        ("port range", "limits", {"ports": 3}, "n2: the kernel chooses from 3 ports"),
        ("processes", "limits", {"nproc": 100}, "n2: 100 processes"),
        (
            "limits of a process",
            "limits",
            {"cpu_seconds": 600},
            "n2: a process is killed after 10 min",
        ),
        (
            "limits of a process",
            "limits",
            {"file_size": 1 << 21},
            "file size is limited to 2.00 MiB",
        ),
        ("limits of a process", "limits", {"stack": 1 << 17}, "stack is limited to 128 KiB (-s)"),
        ("limits of a process", "limits", {"address_space": 1 << 33}, "limited to 8.00 GiB (-v)"),
        ("processes", "limits", {"tasks": 400}, "400 processes and threads for the control group"),
        ("shared memory", "memory", {"shm_total": 16 << 20}, "n2: /dev/shm has 16.0 MiB"),
        ("shared memory", "memory", {"shm_free": 0}, "0 B free"),
        (
            "shared memory",
            "memory",
            {"shm_error": "Read-only file system"},
            PhaseMessage.SHARED_MEMORY_UNWRITABLE.fill(error="Read-only file system"),
        ),
        ("limits of a process", "limits", {"data": 1 << 29}, "limited to 512 MiB (-d)"),
        ("user account", "account", {"user": ""}, PhaseMessage.USER_UNKNOWN.fill(user_id=1000)),
        (
            "home folder",
            "account",
            {"home_error": "Read-only file system"},
            PhaseMessage.HOME_UNWRITABLE.fill(home="/u/me", error="Read-only file system"),
        ),
        (
            "folder of packages",
            "software",
            {"refuses_libraries": True, "packages_folder": "/env/lib"},
            PhaseMessage.PACKAGES_WITHOUT_LIBRARIES.fill(folder="/env/lib"),
        ),
        ("device files", "devices", {"faults": {"/dev/null": "a file"}}, "n2: /dev/null: a file"),
        (
            "settings of the kernel",
            "kernel",
            {"net.ipv4.tcp_rmem": 4096},
            PhaseMessage.KERNEL_SETTING_LOW.fill(
                name="net.ipv4.tcp_rmem", value="4.00 KiB", minimum="256 KiB"
            ),
        ),
        (
            "settings of the kernel",
            "kernel",
            {"net.core.somaxconn": 1},
            PhaseMessage.KERNEL_SETTING_LOW.fill(name="net.core.somaxconn", value=1, minimum=128),
        ),
        (
            "settings of the kernel",
            "kernel",
            {"net.ipv4.tcp_retries2": 1},
            PhaseMessage.KERNEL_SETTING_LOW.fill(name="net.ipv4.tcp_retries2", value=1, minimum=3),
        ),
        (
            "settings of the kernel",
            "kernel",
            {"net.netfilter.nf_conntrack_tcp_timeout_established": 120},
            PhaseMessage.KERNEL_SETTING_LOW.fill(
                name="net.netfilter.nf_conntrack_tcp_timeout_established", value=120, minimum=7440
            ),
        ),
        (
            "programs of ended jobs",
            "foreign programs",
            {"in_run": [{"pid": 7, "job": "41", "path": "/run/log", "command": "python old.py"}]},
            PhaseMessage.RUN_FILES_HELD.fill(
                pid=7, job=41, path="/run/log", command="python old.py"
            ),
        ),
        (
            "settings of the scheduler",
            "scheduler",
            {"comparison": "Different"},
            f"n2: {PhaseMessage.SCHEDULER_SETTINGS_DIFFER.fill()}",
        ),
        (
            "programs outside of the job",
            "foreign programs",
            {"busy": [{"pid": 7, "command": "python old.py"}]},
            PhaseMessage.FOREIGN_PROGRAM.fill(pid=7, command="python old.py"),
        ),
        (
            "names of the nodes",
            "names",
            {"own": "n2", "addresses": {"n1": ["10.0.0.1"]}, "seconds": {"n1": 5.0}},
            PhaseMessage.NAME_SLOW.fill(name="n1", time="5.00 s"),
        ),
        (
            "routes to the nodes",
            "names",
            {**NAMES_OF_SECOND, "interfaces": {"n1": ["docker0", "eth0"]}},
            PhaseMessage.OVERLAPPING_NETWORKS.fill(name="n1", interface="docker0", other="eth0"),
        ),
        (
            "temporary folder",
            "scratch",
            {"default_error": "Read-only file system", "folder": "/var/tmp"},
            PhaseMessage.TEMPORARY_FOLDER_UNWRITABLE.fill(
                error="Read-only file system", folder="/var/tmp"
            ),
        ),
        ("host memory", "memory", {"limit": 512 << 20}, "the job may use 512 MiB"),
        (
            "host memory",
            "memory",
            {"limit": 2 << 30, "left": 200 << 20},
            PhaseMessage.MEMORY_IN_USE.fill(limit="2.00 GiB", left="200 MiB"),
        ),
        ("cores of a node", "cores", {"cores": 1}, "1 cores, but the site states 2"),
        ("cores of a node", "cores", {"quota": 0.5}, "0.5 cores"),
        ("slow core", "cores", {"slowest_seconds": 0.02}, "n2: core 1 needs 4.0 times"),
        ("temporary folder", "scratch", {"free": 1 << 20}, "/tmp has 1.00 MiB free"),
        (
            "temporary folder",
            "scratch",
            {"asked": "/scratch/me", "asked_error": "No such file or directory"},
            PhaseMessage.TEMPORARY_FOLDER_ASKED.fill(
                tmpdir="/scratch/me", error="No such file or directory", folder="/tmp"
            ),
        ),
        ("host names", "names", {"host": "localhost"}, "n2: its host name is localhost"),
        ("host names", "names", {"host": "n1"}, "2 nodes have the host name n1"),
        (
            "addresses of the nodes",
            "interfaces",
            {"addresses": ["10.0.0.3"]},
            "n2 is 10.0.0.2, which n2 does not have (it has 10.0.0.3)",
        ),
        ("names of the nodes", "names", {"errors": {"n1": "not known"}}, "n2: n1: not known"),
        (
            "names of the nodes",
            "names",
            {"own": "n2", "addresses": {"n1": ["127.0.1.1"]}},
            "n1 is 127.0.1.1, which is this node itself",
        ),
        (
            "versions",
            "software",
            {"packages": {"torch": "2.12.0", "numpy": "2.4.6"}},
            "torch 2.13.0 on n1, 2.12.0 on n2",
        ),
        (
            "versions",
            "software",
            {"packages": {"torch": None, "numpy": "2.4.6"}},
            "torch 2.13.0 on n1, (none) on n2",
        ),
        ("shared folder", "folder 0", {"token": "other"}, "view of it is stale"),
        ("shared folder", "folder 0", {"token": "No such file or directory"}, "No such file"),
        (
            "shared folder",
            "folder 0",
            {"errors": {"write": "Read-only file system"}},
            "write: Read-only",
        ),
        (
            "shared folder",
            "folder 0",
            {"errors": {"write": "No space left on device"}},
            "No space left",
        ),
        ("shared folder", "folder 0", {"free": 1 << 20}, "a checkpoint needs 100 MiB"),
        ("shared folder", "folder 0", {"free_inodes": 3}, "3 inodes free"),
        (
            "shared folder",
            "folder 0",
            {"errors": {"map": "No such device"}},
            "map: No such device",
        ),
        (
            "shared folder",
            "folder 0",
            {"write_seconds": 5.0},
            PhaseMessage.FOLDER_SLOW.fill(folder="/run", mount="nfs4 at /run", time="5.00 s"),
        ),
        ("shared folder", "folder 0", {"unseen": ["n1"]}, "does not show what was written by n1"),
        ("clock of a node", "clock", {"ahead": -90.0}, "1 min 30 s ahead of the file server's"),
        (
            "network interface",
            "interfaces",
            {"chosen": {"GLOO_SOCKET_IFNAME": "eth7"}},
            "n2: GLOO_SOCKET_IFNAME=eth7: there is no such interface",
        ),
        (
            "network interface",
            "interfaces",
            {"chosen": {"GLOO_SOCKET_IFNAME": "eth0,eth7"}},
            "n2: GLOO_SOCKET_IFNAME=eth0,eth7: there is no interface eth7",
        ),
        (
            "network interface",
            "interfaces",
            {"chosen": {"GLOO_SOCKET_IFNAME": "eth"}},
            "n2: GLOO_SOCKET_IFNAME=eth: there is no such interface",
        ),
        (
            "network interface",
            "interfaces",
            {"chosen": {"NCCL_SOCKET_IFNAME": "ib0"}},
            "ib0 is down",
        ),
        (
            "network interface",
            "interfaces",
            {"chosen": {"NCCL_SOCKET_IFNAME": "lo"}},
            "lo reaches no other node",
        ),
        (
            "network interface",
            "interfaces",
            {"interfaces": {**INTERFACES["interfaces"], "lo": {"address": "", "is_up": False}}},
            PhaseMessage.LOOPBACK_UNUSABLE.fill(problem="lo is down"),
        ),
    ],
)
def test_a_defect_of_one_node_is_named_with_that_node(name, part, changes, value):
    (check,) = broken(host_checks(hosts(part, **changes), EXPECTED))
    assert (check.name, check.verdict, value in check.value) == (name, "fail", True), check
    assert "n2" in check.nodes and check.remedy and check.rule


def test_a_shared_or_read_only_cache_is_named():
    cache = HOST_FACTS["caches"]["TRITON_CACHE_DIR"]
    for change, fault in (
        ({"is_shared": True, "file_system": "nfs4"}, PhaseMessage.CACHE_SHARED),
        ({"error": "Read-only file system"}, PhaseMessage.CACHE_UNWRITABLE),
        ({"refuses_libraries": True}, PhaseMessage.CACHE_WITHOUT_LIBRARIES),
        ({"old_lock": "/tmp/cache/triton/lock"}, PhaseMessage.CACHE_LOCKED),
    ):
        changed = {**cache, **change}
        answers = hosts("caches", TRITON_CACHE_DIR=changed)
        (check,) = broken(host_checks(answers, EXPECTED))
        assert check.name == PreflightCheck.KERNEL_CACHES
        text = fault.fill(variable="TRITON_CACHE_DIR", **changed)
        assert check.value == f"n2: {text}"


@pytest.mark.parametrize(
    ("is_set", "is_full", "framework", "is_defect"),
    [
        (True, True, "runbook", True),
        (False, True, "megatron-lm", True),
        # Our own trainer downloads nothing.
        (False, True, "runbook", False),
        # A site may offer models in a folder that is mounted read-only.
        (True, False, "megatron-lm", False),
    ],
)
def test_a_full_folder_is_a_defect_on_all_nodes_if_the_job_writes_there(
    is_set, is_full, framework, is_defect
):
    error = "Disk quota exceeded" if is_full else "Read-only file system"
    store = {"folder": "/u/me/hf", "is_set": is_set, "is_full": is_full, "error": error}
    answers = hosts("stores", HF_HOME=store)
    on_first = job_of(line("hosts", "n1", "stores", {"HF_HOME": store}))
    answers = replace(answers, answers={**answers.answers, **on_first.answers})
    checks = broken(host_checks(answers, replace(EXPECTED, framework=framework)))
    assert [check.name for check in checks] == [PreflightCheck.STORES] * is_defect
    if is_defect:
        (check,) = checks
        assert check.verdict == "fail"
        assert PhaseMessage.CACHE_UNWRITABLE.fill(variable="HF_HOME", **store) in check.value


@pytest.mark.parametrize(
    ("threads", "ranks", "cores", "on_node", "is_fault"),
    [
        ("64", 1, 2, "", True),
        ("64", 1, 0, "8", True),
        ("8", 8, 64, "128", False),
        ("64", 8, 64, "128", True),
        # Two hyper-threads of each core.
        ("16", 8, 64, "", False),
        ("64", 1, 0, "", False),
        ("", 1, 2, "8", False),
        ("4,2", 1, 1, "", True),
    ],
)
def test_more_threads_than_cores_are_a_warning(threads, ranks, cores, on_node, is_fault):
    expected = replace(EXPECTED, cores_per_node=cores, devices_per_node=ranks)
    facts = {"OMP_NUM_THREADS": threads, "SLURM_CPUS_ON_NODE": on_node}
    assert bool(threads_fault(facts, expected)) == is_fault


ARP = """\
IP address       HW type     Flags       HW address            Mask     Device
10.66.0.1        0x1         0x6         02:00:00:00:00:99     *        eth0
10.66.0.254      0x1         0x2         02:00:00:00:00:fe     *        eth0
"""
"""Captured on 2026-11-29 from the tests' cluster, after `ip neigh replace ... nud permanent`."""


def test_a_fixed_neighbour_entry_for_a_card_that_the_node_does_not_have_is_named():
    cards = {"eth0": {"hardware": "02:00:00:00:00:01"}, "lo": {"hardware": "00:00:00:00:00:00"}}
    facts = {"n1": {"addresses": ["127.0.0.1", "10.66.0.1"], "interfaces": cards}}
    text = PhaseMessage.FIXED_NEIGHBOUR.fill(
        name="n1", address="10.66.0.1", card="02:00:00:00:00:99"
    )
    assert neighbour_text(ARP, facts) == text
    # The node may have set a fixed entry for the right card, and routers answer for other nodes.
    assert neighbour_text(ARP.replace(":99", ":01"), facts) == ""
    assert neighbour_text(ARP.replace("0x6", "0x2"), facts) == ""
    assert neighbour_text("", facts) == ""


def test_a_firewall_that_drops_loopback_packets_is_a_defect():
    answers = hosts("interfaces", loopback_error="timed out")
    (check,) = broken(host_checks(answers, EXPECTED))
    assert (check.name, check.verdict) == (PreflightCheck.NETWORK_INTERFACE, "fail")
    assert PhaseMessage.LOOPBACK_BLOCKED.fill(error="timed out") in check.value
    assert check.remedy == PhaseMessage.REPAIR_LOOPBACK.fill()


def test_a_run_folder_that_takes_no_file_is_named_without_a_job(tmp_path):
    assert answers_folder_checks(tmp_path / "run") == []
    (check,) = answers_folder_checks(Path("/sys/kernel/run"))
    assert (check.name, check.verdict) == (PreflightCheck.SHARED_FOLDER, "fail")
    assert "/sys/kernel" in check.value
    rung = RungResult("questions", (check,), 0.0)
    write_answers(Path("/sys/kernel/run"), PreflightResult((rung,)))
    with pytest.raises(RecordError):
        write_answers(Path("/sys/kernel/run"), PreflightResult())


@pytest.mark.parametrize(
    ("value", "is_fault"),
    [
        *[(word, True) for word in ("yes", "Y", "t", "TRUE", "1", "on")],
        *[(word, False) for word in ("no", "f", "0", "(not set)")],
    ],
)
def test_each_word_that_systemd_takes_for_yes_is_known(value, is_fault):
    fault = remove_ipc_fault({"RemoveIPC of logind": value}, EXPECTED)
    assert bool(fault) == is_fault


def test_a_lost_node_in_a_list_is_told_apart_from_the_others():
    end = queue_end("srun: error: Node failure on rack[0-1]n[03,07]\n")
    assert end is not None
    assert end.lost_nodes == ("rack0n03", "rack0n07", "rack1n03", "rack1n07")


def test_a_node_with_less_memory_than_the_others_is_a_warning_and_than_stated_a_defect():
    answers = hosts("memory", total=32 * GIB)
    (check,) = broken(host_checks(answers, EXPECTED))
    assert (check.name, check.verdict, check.nodes) == (
        PreflightCheck.EQUAL_MEMORY,
        "warn",
        ("n2",),
    )
    stated = replace(EXPECTED, node_memory=64 * GIB)
    assert broken(host_checks(hosts(), stated)) == []
    first = broken(host_checks(answers, stated))[0]
    assert (first.name, first.verdict, first.nodes) == (
        PreflightCheck.HOST_MEMORY,
        "fail",
        ("n2",),
    )


def test_a_home_that_is_read_only_on_all_nodes_is_the_sites_choice():
    error = "Read-only file system"
    read_only = {**HOST_FACTS["account"], "home_error": error}
    answers = hosts("account", home_error=error)
    on_first = job_of(line("hosts", "n1", "account", read_only))
    answers = replace(answers, answers={**answers.answers, **on_first.answers})
    (check,) = broken(host_checks(answers, EXPECTED))
    assert (check.name, check.verdict) == (PreflightCheck.HOME_FOLDER, "warn")


def test_a_slurm_conf_that_no_node_has_in_the_controllers_version_is_a_warning():
    answers = hosts("scheduler", comparison="Different")
    on_first = job_of(line("hosts", "n1", "scheduler", {"comparison": "Different"}))
    answers = replace(answers, answers={**answers.answers, **on_first.answers})
    (check,) = broken(host_checks(answers, EXPECTED))
    assert (check.name, check.verdict) == (PreflightCheck.SCHEDULER_SETTINGS, "warn")


FOLDER = HOST_FACTS["folder 0"]


@pytest.mark.parametrize(
    ("seconds", "nodes"),
    [
        ((0.003, 0.25), ("n2",)),
        ((0.2, 0.25), ()),
        ((0.003, 0.06), ()),
    ],
)
def test_only_a_node_that_writes_far_slower_than_another_one_is_named(seconds, nodes):
    lines = []
    for node, stream_seconds in zip(("n1", "n2"), seconds, strict=True):
        facts = {**FOLDER, "write_seconds": 0.3, "stream_seconds": stream_seconds}
        lines.append(line("hosts", node, "folder 0", facts))
    answers = hosts()
    answers = replace(answers, answers={**answers.answers, **job_of(*lines).answers})
    checks = broken(host_checks(answers, EXPECTED))
    assert [check.nodes for check in checks] == [nodes] * bool(nodes)
    if nodes:
        assert checks[0].name == PreflightCheck.SHARED_FOLDER
        text = PhaseMessage.SLOW_WRITER.fill(
            folder=FOLDER["folder"], speed="4.00 MiB", fastest="333 MiB"
        )
        assert checks[0].value == f"n2: {text}"


@pytest.mark.parametrize(("written", "is_named"), [(50.0, True), (98.0, False)])
def test_a_file_that_a_slow_node_wrote_too_late_is_not_reported_as_unseen(written, is_named):
    late = {**FOLDER, "written": written, "looked_until": 100.0}
    waited = {**FOLDER, "written": 49.0, "looked_until": 100.0, "unseen": ["n1"]}
    lines = [line("hosts", "n1", "folder 0", late), line("hosts", "n2", "folder 0", waited)]
    answers = hosts()
    answers = replace(answers, answers={**answers.answers, **job_of(*lines).answers})
    checks = broken(host_checks(answers, EXPECTED))
    assert [check.nodes for check in checks] == [("n2",)] * is_named


def rank_on(host: str, bound: list[int]) -> dict[str, object]:
    """Return what a rank reports about the cores that it runs on after importing torch."""
    return {"host": host, "bound_cores": bound, "binding": {"OMP_PROC_BIND": "close"}}


@pytest.mark.parametrize(
    ("bound", "num_cores", "is_named"),
    [
        (([0], [0]), 2, True),
        (([0, 1], [0, 1]), 2, False),
        (([0], [1]), 2, False),
        (([0], [0]), 1, False),
    ],
)
def test_ranks_that_openmp_binds_to_the_same_core_are_named(bound, num_cores, is_named):
    facts = [*[rank_on("n2.site", cores) for cores in bound], rank_on("n1.site", [0])]
    lines = []
    for node in ("n1", "n2"):
        cores = {**HOST_FACTS["cores"], "cores": num_cores}
        names = {**HOST_FACTS["names"], "host": f"{node}.site"}
        lines += [line("hosts", node, "cores", cores), line("hosts", node, "names", names)]
    check = binding_check(facts, cores_of_hosts(job_of(*lines)))
    assert (check.verdict, check.nodes) == (("fail", ("n2.site",)) if is_named else ("pass", ()))
    if is_named:
        text = PhaseMessage.RANKS_SHARE_CORES.fill(
            ranks=2, cores="0", allowed=2, variables="OMP_PROC_BIND=close"
        )
        assert check.value == f"n2.site: {text}"


def test_two_adapters_in_the_same_network_are_no_fault():
    interfaces = {"n1": ["eth0", "eth1"], "n2": ["docker0", "eth0"]}
    answers = hosts("names", **NAMES_OF_SECOND, interfaces=interfaces)
    assert broken(host_checks(answers, EXPECTED)) == []


ROUTES = """Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 00000000 0100000A 0003 0 0 0 00000000 0 0 0
eth0 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0
docker0 0000000A 00000000 0001 0 0 0 FCFFFFFF 0 0 0
"""
"""/proc/net/route of a node in 10.0.0.0/24 with a bridge for 10.0.0.0/30."""


@pytest.mark.parametrize(
    ("addresses", "is_named"),
    [(["127.0.0.1", "10.0.0.1"], True), (["10.0.0.9"], False), (["fe80::1", "10.9.0.1"], False)],
)
def test_an_address_in_the_networks_of_two_interfaces_is_named(addresses, is_named):
    text = PhaseMessage.OVERLAPPING_NETWORKS.fill(
        name="n1 (10.0.0.1)", interface="docker0", other="eth0"
    )
    assert overlap_text(ROUTES, {"n1": {"addresses": addresses}}) == text * is_named


def test_two_adapters_of_a_silent_node_in_the_same_network_are_not_its_defect():
    """Nodes with several rails have several adapters in the network of the other nodes."""
    routes = ROUTES.replace("docker0", "eth1").replace("FCFFFFFF", "00FFFFFF")
    assert overlap_text(routes, {"n1": {"addresses": ["10.0.0.1"]}}) == ""


def test_of_equal_networks_the_one_with_the_lowest_metric_is_used():
    routes = ROUTES.replace("FCFFFFFF", "00FFFFFF").replace("0001 0 0 0 ", "0001 0 0 100 ", 1)
    assert interfaces_to(routes, "10.0.0.1") == ["docker0", "eth0"]
    routes = routes.replace("docker0", "virbr0")
    assert interfaces_to(routes, "10.0.0.1") == ["virbr0", "eth0"]


def test_a_node_that_has_the_address_of_another_one_is_named_and_a_bridges_address_is_not():
    bridge = "172.17.0.1"
    lines = []
    for node, addresses in (
        ("n1", ["10.0.0.1", bridge]),
        ("n2", ["10.0.0.2", "10.0.0.1", bridge]),
    ):
        interfaces = {**INTERFACES, "addresses": addresses}
        lines.append(line("hosts", node, "interfaces", interfaces))
        names = {"n1": ["10.0.0.1"], "n2": ["10.0.0.2"]}
        own = {**HOST_FACTS["names"], "own": node, "host": node, "addresses": names}
        lines.append(line("hosts", node, "names", own))
    answers = hosts()
    answers = replace(answers, answers={**answers.answers, **job_of(*lines).answers})
    (check,) = broken(host_checks(answers, EXPECTED))
    assert (check.name, check.nodes) == (PreflightCheck.NODE_ADDRESSES, ("n2",))
    text = PhaseMessage.SECOND_OWNER.fill(address="10.0.0.1", name="n1")
    assert check.value == f"n2: {text}"


def test_the_remedy_for_an_interface_lists_that_nodes_own_devices():
    interfaces = {**INTERFACES["interfaces"], "hsn0": {"address": "10.1.0.2", "is_up": True}}
    answers = hosts("interfaces", interfaces=interfaces, chosen={"NCCL_SOCKET_IFNAME": "ens5"})
    (check,) = broken(host_checks(answers, EXPECTED))
    offered = "n2: eth0, hsn0"
    assert check.remedy == PhaseMessage.NAME_OFFERED_INTERFACES.fill(offered=offered)


def test_a_node_without_an_answer_fails_by_name():
    lines = [line("hosts", "n1", name, facts) for name, facts in HOST_FACTS.items()]
    (check,) = host_checks(job_of(*lines), EXPECTED)
    assert (check.name, check.nodes) == ("answers (hosts)", ("n2",))


@pytest.mark.parametrize(("code", "verdict"), [(0, "pass"), (3, "fail")])
def test_the_sites_own_commands_on_each_node_are_judged_first(code, verdict):
    setup = job_of(line("node_setup", "", "step", {"code": code}))
    answers = replace(setup, answers={**hosts().answers, **setup.answers})
    checks = host_checks(answers, EXPECTED)
    assert (checks[0].name, checks[0].verdict) == ("node setup", verdict)
    assert len(checks) == 1 or verdict == "pass", "nodes that were not set up are asked nothing"


def test_a_question_that_hangs_is_named_with_its_node():
    lines = []
    for node in ("n1", "n2"):
        for name, facts in HOST_FACTS.items():
            own = {**facts, "host": node} if name == "names" else facts
            if (node, name) == ("n2", "folder 0"):
                lines.append(line("hosts", node, name, {"seconds": 30.0}, "hung"))
            else:
                lines.append(line("hosts", node, name, own))
    (check,) = broken(host_checks(job_of(*lines), EXPECTED))
    assert check.name == "shared folder" and says(
        check.value, PhaseMessage.NO_ANSWER_HANGS, seconds=30
    )


def test_long_answers_of_several_nodes_may_come_in_mixed_pieces():
    """Slurm forwards at most 1,024 bytes at once, so the long lines of two nodes may be mixed.

    A healthy node then seemed not to have answered.
    """
    written = []
    for node in ("n1", "n2"):
        content = line("hosts", node, "caches", {"folder": "x" * 3000}).removeprefix(MARK)
        written.append(output_lines(content, f"{node}:7:1"))
    assert all(len(text) < 1024 for lines in written for text in lines)
    mixed = [text for pair in zip(*written, strict=True) for text in pair]
    answers = parse_job_answers("\n".join(mixed), ("n1", "n2"))
    assert {
        node: len(facts["folder"]) for node, facts in answers.facts("hosts", "caches").items()
    } == {
        "n1": 3000,
        "n2": 3000,
    }
    half = parse_job_answers("\n".join(mixed[:-1]), ("n1", "n2"))
    assert list(half.facts("hosts", "caches")) == ["n1"]


def test_a_queue_that_grants_less_time_is_named():
    long_job = replace(EXPECTED, walltime=7200)
    (check,) = broken(host_checks(hosts(), long_job))
    times = {"granted": show_duration(299), "asked": show_duration(7200)}
    assert check.name == PreflightCheck.TIME_GRANTED
    assert check.value == PhaseMessage.TIME_GRANTED.fill(**times)


def test_a_laptop_without_a_queue_may_have_little_locked_memory():
    alone = replace(EXPECTED, has_queue=False)
    assert broken(host_checks(hosts("limits", memlock=65536), alone)) == []


SPEED = {"tflops": 0.15, "bytes_per_second": 12e9, "product_is_right": True}
TORCH_FACTS = {
    "ended": "well",
    "version": "2.13.0",
    "cuda": None,
    "devices": [],
    "speeds": [SPEED],
}


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({}, "", ""),
        (
            {"ended": "signal", "signal": "SIGILL", "words": ""},
            "import of torch",
            "ended by SIGILL (an instruction",
        ),
        (
            {"ended": "failed", "exit_code": 1, "words": "x\nlibcudart"},
            "import of torch",
            "exit code 1: libcudart",
        ),
        ({"ended": "hung", "seconds": 90.0}, "import of torch", "no answer within 90 s"),
        ({"speeds": [{**SPEED, "tflops": 0.05}]}, "speed of products", "n2: 0.05 TFLOP/s"),
        ({"speeds": [{**SPEED, "bytes_per_second": 3e9}]}, "speed of memory", "n2: 3 GB/s"),
        ({"speeds": [{**SPEED, "product_is_right": False}]}, "matrix product", "n2 device 0"),
    ],
)
def test_what_torch_says_of_a_node(changes, name, value):
    lines = [
        line("torch", "n1", "torch", TORCH_FACTS),
        line("torch", "n2", "torch", {**TORCH_FACTS, **changes}),
    ]
    found = broken(torch_checks(job_of(*lines), EXPECTED))
    assert [check.name for check in found] == ([name] if name else [])
    assert all(value in check.value and check.nodes == ("n2",) for check in found), found


def test_a_compiler_of_another_cuda_is_a_warning():
    lines = []
    for node, compiler in (("n1", "12.4"), ("n2", "11.8")):
        lines.append(line("hosts", node, "tools", {"nvcc": compiler, "driver": ""}))
        lines.append(line("torch", node, "torch", {**TORCH_FACTS, "cuda": "12.6"}))
    check = compiler_check(job_of(*lines))
    assert (check.verdict, check.nodes) == ("warn", ("n2",))
    other_cuda = PhaseMessage.COMPILER_OF_OTHER_CUDA.fill(compiler="11.8", cuda="12.6")
    assert check.value == f"n2: {other_cuda}"


LINK_FACTS = {
    "port": 50000,
    "stage": "done",
    "error": "",
    "address": "10.0.0.2",
    "data_port": 40001,
    "round_trip": 1e-4,
    "quickest_trip": 5e-5,
    "clock_offset": 1e-5,
    "bytes_per_second": 1e8,
    "small_sent_again": 0,
    "small_segments": 205,
}


def links(**changes: object) -> JobAnswers:
    """Return the answers of two nodes that call each other. `changes` apply to those from n1 to
    n2."""
    listening = {"port": 50000, "address": "10.0.0.1"}
    return job_of(
        line("peers", "n1", "listen", listening),
        line("peers", "n2", "listen", listening),
        line("peers", "n1", "to n2", {**LINK_FACTS, **changes}),
        line("peers", "n2", "to n1", LINK_FACTS),
    )


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({}, "", ""),
        ({"small_sent_again": 1}, "", ""),
        ({"small_sent_again": 9}, "lost packets", "n1 to n2: 4.4% of the segments retransmitted"),
        (
            {"stage": "meeting port", "error": "timed out"},
            "links between nodes",
            "a firewall between the nodes",
        ),
        (
            {"stage": "data port", "error": "timed out"},
            "links between nodes",
            "10.0.0.2:40001: timed out",
        ),
        ({"stage": "large messages", "error": "timed out"}, "links between nodes", "MTU"),
        (
            {"stage": "many connections", "error": "3 of 32 were opened: timed out"},
            "links between nodes",
            "3 of 32",
        ),
        ({"clock_offset": 5.0}, "clocks between nodes", "n2 is 5.00 s ahead of n1"),
        ({"quickest_trip": 0.4}, "latency", "n1 to n2: 0.40 s"),
        ({"bytes_per_second": 1.25e6}, "bandwidth between nodes", "n1 to n2: 0.0013 GB/s"),
    ],
)
def test_what_a_link_says(changes, name, value):
    found = broken(link_checks(links(**changes), EXPECTED))
    assert [check.name for check in found] == ([name] if name else [])
    assert all(value in check.value for check in found), found


def rank(number: int, **changes: object) -> dict[str, object]:
    group = {
        "bytes": 1 << 24,
        "seconds": 0.1,
        "bus_bytes_per_second": 1e8,
        "sum_is_right": True,
        "backend": "gloo",
    }
    sums = [
        {"name": "DATA_PARALLEL_GROUP", "ranks": [0, 1], "first_seconds": 0.1, "sum_is_right": True}
    ]
    facts = {
        "rank": number,
        "host": f"n{number + 1}",
        "time": 100.0 + number,
        "errors": {},
        "error_times": {},
        "current": None,
        "group": group,
        "groups": {"layout": "1x1x1", "num_groups": 28, "sums": sums},
    }
    return {**facts, **changes}


def test_ranks_that_meet_and_use_every_group_pass():
    facts = [rank(0), rank(1)]
    checks = [
        rank_presence_check(facts, 2, ""),
        meeting_check(facts, 2),
        groups_check(facts, EXPECTED),
        bandwidth_check(facts, EXPECTED),
    ]
    assert {check.verdict for check in checks} == {"pass"}
    assert "5 with" not in checks[2].value and "DATA_PARALLEL_GROUP" in checks[2].value


def test_the_nodes_get_the_path_of_the_checkpoints_as_the_plan_has_it(tmp_path):
    run, disk, stage = (tmp_path / name for name in ("run", "disk", "stage"))
    run.mkdir()
    disk.mkdir()
    stage.symlink_to(disk)
    training = SimpleNamespace(checkpoint=SimpleNamespace(folder=str(stage / "checkpoints")))
    plan = SimpleNamespace(phases={FULL: training})
    of_other_run, of_killed_run = disk / ".preflight-tiny-1", disk / ".preflight-tiny-2"
    of_other_run.mkdir()
    of_killed_run.mkdir()
    os.utime(of_killed_run, (0, 0))
    with _outer_checkpoints(SimpleNamespace(name="tiny"), plan, run, "token") as (folder,):
        assert folder.parent == stage
        assert folder.name not in (of_other_run.name, of_killed_run.name)
    assert list(disk.iterdir()) == [of_other_run]


def test_a_program_of_another_job_is_a_warning():
    program = {"pid": 7, "command": "python second.py", "job": "6"}
    (check,) = broken(host_checks(hosts("foreign programs", busy=[program]), EXPECTED))
    assert (check.name, check.verdict) == (PreflightCheck.FOREIGN_PROGRAMS, "warn")


def test_a_home_that_the_container_hides_is_no_fault():
    answers = hosts("account", home_error="No such file or directory")
    assert broken(host_checks(answers, replace(EXPECTED, hides_home=True))) == []


@pytest.mark.parametrize(("part", "is_broken"), [("folder 0", True), ("folder 1", False)])
def test_only_the_runs_folder_needs_locks(part, is_broken):
    answers = {}
    for node in ("n1", "n2"):
        facts = {**HOST_FACTS["folder 0"], "errors": {"lock": "Function not implemented"}}
        answers |= job_of(line("hosts", node, part, facts)).answers
    (check,) = folder_checks(JobAnswers(("n1", "n2"), answers), EXPECTED, [part])
    assert (check.verdict == "fail") == is_broken


def test_the_last_stage_has_time_for_a_slow_import_and_a_group_that_hangs():
    slow_import = group_limits.START_SECONDS + group_limits.IMPORT_SECONDS
    hung_group = group_limits.GROUP_SECONDS + group_limits.GIVE_UP_SECONDS
    assert slow_import + hung_group <= group_limits.STAGE_SECONDS


def test_half_of_the_ranks_missing_is_a_failure():
    reason = "ImportError: libfoo"
    check = rank_presence_check([rank(0)], 2, reason, ["n1", "n2"])
    assert (check.verdict, check.nodes) == ("fail", ("n2",))
    answered = PhaseMessage.RANKS_ANSWERED.fill(present=1, world_size=2, missing=1, where=" on n2")
    assert check.value == f"{answered}. {reason}"


TORCHRUN_REPORT = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-26_21:17:25
  host      : node2
  rank      : 1 (local_rank: 0)
  exitcode  : 137 (pid: 79)
  error_file: <N/A>
srun: error: node2: task 1: Exited with exit code 1
srun: error: node1: task 0: Exited with exit code 1
"""
"""From torch 2.13 under Slurm 22.05, 2026-11-26."""


def test_an_import_that_fails_names_the_python_that_tried():
    facts = {
        "ended": "failed",
        "exit_code": 1,
        "words": "ModuleNotFoundError: No module named 'torch'",
    }
    answers = job_of(
        line("hosts", "n2", "programs", HOST_FACTS["programs"]),
        line("torch", "n1", "torch", TORCH_FACTS),
        line("torch", "n2", "torch", facts),
    )
    (check,) = broken(torch_checks(answers, EXPECTED))
    assert check.nodes == ("n2",)
    assert check.value.endswith("No module named 'torch' (by /env/bin/python3)")


OWN_PYTHON = HOST_FACTS["programs"]["programs"]["python3"]
OTHER_PYTHON = {
    "path": "/usr/bin/python",
    "place": 0,
    "version": "2.7.5",
    "ended": "well",
    "is_own": False,
}


@pytest.mark.parametrize(
    ("own_place", "programs", "verdict"),
    [
        (1, {"python": OTHER_PYTHON, "python3": {**OWN_PYTHON, "place": 1}}, "fail"),
        (0, {"python": {**OTHER_PYTHON, "place": 1}, "python3": OWN_PYTHON}, ""),
        (None, {"python": OTHER_PYTHON, "python3": OTHER_PYTHON}, ""),
        (1, {"python": OTHER_PYTHON, "python3": OTHER_PYTHON}, "warn"),
        (1, {"python": {**OTHER_PYTHON, "is_own": True}, "python3": OWN_PYTHON}, ""),
        (1, {}, ""),
    ],
    ids=["in front", "behind", "not on PATH", "named by its path", "same Python", "none"],
)
def test_only_another_python_in_front_of_the_jobs_own_is_named(own_place, programs, verdict):
    answers = hosts("programs", own_place=own_place, programs=programs)
    checks = broken(host_checks(answers, EXPECTED))
    found = [(check.name, check.verdict) for check in checks]
    assert found == ([(PreflightCheck.PYTHON_ON_PATH, verdict)] if verdict else [])
    if verdict:
        assert checks[0].nodes == ("n2",)
        text = PhaseMessage.PYTHON_IN_FRONT.fill(
            name="python", path="/usr/bin/python", version="2.7.5", executable="/env/bin/python3"
        )
        assert checks[0].value == f"n2: {text}"


@pytest.mark.parametrize(("ended", "is_broken"), [("failed", True), ("hung", False)])
def test_a_python_in_front_that_does_not_start_is_named_and_a_slow_one_is_not(ended, is_broken):
    silent = {**OTHER_PYTHON, "version": "", "ended": ended}
    programs = {"python": silent, "python3": {**OWN_PYTHON, "place": 1}}
    checks = broken(host_checks(hosts("programs", own_place=1, programs=programs), EXPECTED))
    text = PhaseMessage.BROKEN_PYTHON_IN_FRONT.fill(
        name="python", path="/usr/bin/python", executable="/env/bin/python3"
    )
    assert [check.value for check in checks] == ([f"n2: {text}"] if is_broken else [])


def test_other_sources_under_one_version_are_named_with_package_folder_and_node():
    other = {"folder": "/home/me/runbook", "checksum": "000000ff"}
    (check,) = broken(host_checks(hosts("sources", **{"gpt3-runbook": other}), EXPECTED))
    assert (check.name, set(check.nodes)) == (PreflightCheck.PACKAGE_SOURCES, {"n1", "n2"})
    checksums = [
        PhaseMessage.VERSION_ON_NODES.fill(version=checksum, nodes=node)
        for checksum, node in (("00000001", "n1"), ("000000ff", "n2"))
    ]
    differs = {"package": "gpt3-runbook", "versions": ", ".join(checksums)}
    difference = PhaseMessage.DIFFERENT_VERSIONS.fill(**differs)
    sources = {"versions": difference, "folder": "/home/me/runbook"}
    assert check.value == PhaseMessage.DIFFERENT_SOURCES.fill(**sources)


def test_a_library_that_was_cut_short_is_named_with_its_node_before_the_comparison():
    torch = {**HOST_FACTS["sources"]["torch"], "checksum": "00000009"}
    torch["cut_libraries"] = ["lib/libtorch_cpu.so"]
    first = broken(host_checks(hosts("sources", torch=torch), EXPECTED))[0]
    assert (first.name, first.nodes) == (PreflightCheck.CUT_LIBRARIES, ("n2",))
    cut = {"package": "torch", "folder": torch["folder"], "names": "lib/libtorch_cpu.so"}
    assert first.value == f"n2: {PhaseMessage.LIBRARIES_CUT.fill(**cut)}"


def test_a_package_in_front_of_the_environment_is_a_warning_on_the_node_and_in_the_shell(
    monkeypatch,
):
    replaced = {"numpy": "1.26.4 in /old replaces 2.4.6"}
    (check,) = broken(host_checks(hosts("software", replaced=replaced), EXPECTED))
    assert (check.name, check.verdict) == (PreflightCheck.REPLACED_PACKAGES, "warn")
    assert check.value == "n2: numpy 1.26.4 in /old replaces 2.4.6"

    assert software_rules.shell_packages_check().verdict == "pass"
    monkeypatch.setattr(software_rules, "replaced_packages", lambda: replaced)
    assert software_rules.shell_packages_check().verdict == "warn"


@pytest.mark.parametrize(("quickest", "verdict"), [(0.05, "fail"), (3.0, "warn")])
def test_a_node_that_opens_files_much_more_slowly_than_another_one_has_a_defect(quickest, verdict):
    lines = []
    for node, milliseconds in (("n1", quickest), ("n2", 20.3)):
        lines.append(line("hosts", node, "opening files", {"milliseconds": milliseconds}))
    check = opening_check(job_of(*lines), EXPECTED)
    assert (check.name, check.verdict) == (PreflightCheck.OPENING_FILES, verdict)
    assert check.nodes == ("n2",)


def test_two_folders_with_the_same_sources_are_no_defect():
    moved = {"folder": "/tmp/copy/torch", "checksum": "00000002"}
    assert broken(host_checks(hosts("sources", torch=moved), EXPECTED)) == []


def test_a_node_without_time_for_a_package_is_compared_by_the_others():
    other = {"folder": "/home/me/runbook", "checksum": "000000ff"}
    lines = []
    for node in ("n1", "n2"):
        for name, facts in HOST_FACTS.items():
            own = {**facts, "host": node} if name == "names" else facts
            if name == "sources" and node == "n2":
                own = {"gpt3-runbook": other}
            lines.append(line("hosts", node, name, own))
    (check,) = broken(host_checks(job_of(*lines), EXPECTED))
    assert "gpt3-runbook" in check.value and "torch" not in check.value


def sources_of(**facts_by_node: dict[str, object]) -> PlacedCheck:
    """Return the check that compares the sources on these nodes."""
    lines = []
    for node in ("n1", "n2"):
        for name, facts in HOST_FACTS.items():
            own = {**facts, "host": node} if name == "names" else facts
            lines.append(
                line("hosts", node, name, facts_by_node[node] if name == "sources" else own)
            )
    checks = host_checks(job_of(*lines), EXPECTED)
    return next(check for check in checks if check.name == "sources of packages")


def test_the_packages_that_were_compared_are_named():
    sources = HOST_FACTS["sources"]
    check = sources_of(n1=sources, n2=sources)
    assert (check.verdict, check.value) == ("pass", "gpt3-runbook, torch")


OWN_SOURCE = {"gpt3-runbook": HOST_FACTS["sources"]["gpt3-runbook"]}


@pytest.mark.parametrize(
    ("second", "packages"),
    [({}, "gpt3-runbook, torch"), (OWN_SOURCE, "torch")],
    ids=["nothing", "one of two"],
)
def test_a_node_that_read_fewer_packages_than_the_others_is_a_warning(second, packages):
    check = sources_of(n1=HOST_FACTS["sources"], n2=second)
    text = PhaseMessage.SOURCES_NOT_READ.fill(packages=packages)
    assert (check.verdict, check.nodes, check.value) == ("warn", ("n2",), f"n2: {text}")


def test_nodes_that_read_nothing_at_all_are_a_warning():
    check = sources_of(n1={}, n2={})
    assert (check.verdict, check.nodes) == ("warn", ("n1", "n2"))


def change(version: str, other_version: str) -> dict[str, str]:
    """Return the facts about a library that LD_LIBRARY_PATH replaces."""
    return {
        "path": "/opt/foreign/lib.so",
        "version": version,
        "other_path": "/usr/lib/lib.so",
        "other_version": other_version,
    }


@pytest.mark.parametrize(
    ("name", "versions", "verdict"),
    [
        ("libstdc++", ("3.4.28", "3.4.30"), "warn"),
        ("libstdc++", ("3.4.30", "3.4.28"), ""),
        ("libnccl", ("2.9.9", "2.21.5"), "warn"),
        ("libcudart", ("12.4.127", "12.4.127"), ""),
        ("libcudnn", ("9.1.0", "9.1.0.70"), ""),
        ("libcudnn", ("9.1.0.70", "9.1.0"), ""),
        ("libcudnn", ("9.0.0", "9.1.0.70"), "warn"),
        ("libgomp", ("", ""), ""),
        ("libtorch_cpu", ("", ""), "fail"),
        ("libc10", ("", ""), "fail"),
    ],
)
def test_a_library_in_the_place_of_a_newer_one_is_a_warning_and_another_torchs_a_defect(
    name, versions, verdict
):
    changed = change(*versions)
    facts = TORCH_FACTS | {"substituted": {name: changed}}
    answers = job_of(line("torch", "n1", "torch", TORCH_FACTS), line("torch", "n2", "torch", facts))
    checks = broken(torch_checks(answers, EXPECTED))
    named = [(check.name, check.verdict) for check in checks]
    assert named == ([(PreflightCheck.TORCH_LIBRARIES, verdict)] if verdict else [])
    if verdict:
        assert checks[0].nodes == ("n2",)
        text = PhaseMessage.LIBRARY_REPLACED.fill(name=name, **changed)
        assert checks[0].value == f"n2: {text}"


def test_another_torchs_library_is_named_before_an_older_one():
    substituted = {"libstdc++": change("3.4.28", "3.4.30"), "libc10": change("", "")}
    facts = TORCH_FACTS | {"substituted": substituted}
    answers = job_of(line("torch", "n1", "torch", facts), line("torch", "n2", "torch", TORCH_FACTS))
    (check,) = broken(torch_checks(answers, EXPECTED))
    assert (check.verdict, check.nodes) == ("fail", ("n1",))
    assert "libc10" in check.value


def test_libraries_that_the_time_did_not_suffice_for_are_not_called_right():
    facts = TORCH_FACTS | {"libraries_compared": False, "substituted": {}}
    answers = job_of(line("torch", "n1", "torch", TORCH_FACTS), line("torch", "n2", "torch", facts))
    (check,) = broken(torch_checks(answers, EXPECTED))
    assert (check.name, check.verdict) == (PreflightCheck.TORCH_LIBRARIES, "unknown")
    assert check.value == PhaseMessage.LIBRARIES_NOT_COMPARED.fill(nodes="n2")


def test_a_node_on_which_slurm_cannot_start_a_program_is_named_before_the_tasks_it_ends():
    errors = (
        "srun: error: Task launch for StepId=1.0 failed on node node2: Unspecified error\n"
        "srun: error: Application launch failed: Unspecified error\n"
        "srun: error: node1: task 0: Killed\n"
    )
    expected = PhaseMessage.LAUNCH_FAILED.fill(node="node2", text="Unspecified error")
    assert first_end(errors) == expected


def test_a_node_that_the_first_node_does_not_reach_is_told_from_one_that_starts_nothing():
    words = "Communication connection failure"
    errors = f"srun: error: Task launch for StepId=1.0 failed on node node2: {words}\n"
    assert first_end(errors) == PhaseMessage.LAUNCH_UNREACHED.fill(node="node2", text=words)


def test_the_process_that_ended_first_is_named():
    assert first_end(TORCHRUN_REPORT) == (
        PhaseMessage.RANK_ENDED_FIRST.fill(rank=1, host="node2", ending=shell.how_it_ended(137))
    )
    killed = "srun: error: n2: task 1: Killed\nsrun: error: n1: task 0: Killed\n"
    ended = PhaseMessage.TASK_ENDED.fill(task=1, node="n2", text="Killed")
    assert first_end(killed) == ended
    assert first_end("runbook: finished\n") == ""


def test_the_first_error_of_the_rank_that_failed_first_is_told():
    late = {"errors": {"group": "RuntimeError: connection closed"}, "error_times": {"group": 160.0}}
    early = {
        "errors": {"group": "RefusedError: no GPU of its own"},
        "error_times": {"group": 101.0},
    }
    check = meeting_check([rank(0, group=None, **late), rank(1, group=None, **early)], 2)
    assert check.value.startswith("rank 1 on n2: RefusedError: no GPU of its own (1 other ranks")
    assert check.nodes == ("n2",)


def test_a_group_that_hangs_is_told_by_its_name():
    step = {"step": "all-reduce over TENSOR_MODEL_PARALLEL_GROUP", "since": 110.0, "hung": True}
    check = groups_check(
        [rank(0, groups=None, current=step), rank(1, groups=None, current=step)], EXPECTED
    )
    assert check.verdict == "fail"
    assert says(
        check.value,
        PhaseMessage.WAITING_RANKS,
        step="all-reduce over TENSOR_MODEL_PARALLEL_GROUP",
        ranks="0, 1",
        nodes="n1, n2",
    )


def test_a_temporary_folder_with_a_long_path_is_warned_of():
    """Socket paths have at most 107 bytes, and multiprocessing adds 32 bytes to the folder path."""
    assert temporary_path_fault({"folder": "/" + 74 * "x"}, EXPECTED) == ""
    fault = temporary_path_fault({"folder": "/" + 75 * "x"}, EXPECTED)
    assert says(fault, PhaseMessage.TEMPORARY_PATH_TOO_LONG, length=76, most=75)


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(0.5, "pass"), (19, "pass"), (21, "warn"), (61, "fail")]
)
def test_a_step_that_ends_long_after_its_programs_is_told(seconds, verdict):
    """A TaskEpilog that hangs, for example, delays the end of a step."""
    answers = {
        ("hosts", "n1", END): PartAnswer("hosts", "n1", END, PartState.DONE, 100.0, {}),
        ("hosts", "", STEP): PartAnswer(
            "hosts", "", STEP, PartState.DONE, 100.0 + seconds, {"code": 0}
        ),
    }
    (check,) = step_end_check(JobAnswers(("n1", "n2"), answers), "hosts")
    assert check.verdict == verdict
    assert says(check.value, PhaseMessage.STEP_ENDED_LATE, rung="hosts")
    del answers["hosts", "", STEP]
    assert step_end_check(JobAnswers(("n1", "n2"), answers), "hosts") == []


def test_a_rank_that_ends_without_a_word_is_not_said_to_hang():
    step = {"step": "importing megatron-core", "since": 110.0, "hung": False}
    ended = groups_check([rank(0, groups=None, current=step)], EXPECTED)
    hung = groups_check([rank(0, groups=None, current={**step, "hung": True})], EXPECTED)
    assert (ended.verdict, hung.verdict) == ("fail", "fail")
    assert "ended before this step did" in ended.value
    assert "hung" in hung.value
    error = {"groups": "importing megatron-core: DeprecationWarning: x"}
    failed = groups_check([rank(0, groups=None, errors=error)], EXPECTED)
    assert "DeprecationWarning" in failed.value and failed.nodes == ("n1",)


def test_ten_megabits_do_not_pass_next_to_a_stated_gigabit():
    slow = {**rank(0)["group"], "bus_bytes_per_second": 1.25e6}
    assert bandwidth_check([rank(0, group=slow), rank(1, group=slow)], EXPECTED).verdict == "fail"


def test_sockets_fail_where_the_site_names_a_fabric():
    gpus = replace(EXPECTED, device="H100-SXM", fabric="verbs")
    text = "n1:1:2 [0] NCCL INFO Using network {}\n"
    assert transport_check(text.format("Socket"), 2, gpus).verdict == "fail"
    assert transport_check(text.format("IB"), 2, gpus).verdict == "pass"
    assert transport_check("", 2, gpus).verdict == "unknown"


def test_a_mount_is_found_by_the_longest_point_that_holds_the_path():
    text = "1 1 0:1 / / rw - ext4 a rw\n2 1 0:2 / /data rw - lustre b rw\n3 1 0:3 / /data2 ro - nfs c rw\n"
    assert parse_mounts(text, "/data/me").is_shared
    assert not parse_mounts(text, "/var").is_shared
    assert parse_mounts(text, "/data2/x").is_read_only
