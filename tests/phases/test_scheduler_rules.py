"""Rules for Slurm's settings that can be read without a job."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from runbook import params
from runbook.jobs.job_request import NodeCores, QueueLimits, Reservation
from runbook.jobs.slurm import Slurm, parse_reservations
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.doctor import slurm_checks
from runbook.phases.p01_environment.preflight.scheduler_rules import (
    NodeDemand,
    default_memory_check,
    demand_of,
    epilog_checks,
    reservation_check,
    wait_time_check,
)
from runbook.plan_file.phase_names import FULL

PROJECT = Path(__file__).resolve().parents[2]
SAMPLES = PROJECT / "tests" / "samples" / "queues"
SETTINGS = params.load("aws-pile-175b", project=PROJECT)
NOW = 1_800_000_000.0
HOUR = 3600.0


@pytest.mark.parametrize(
    ("value", "verdict"), [("5 sec", "fail"), ("0 sec", "pass"), ("30 sec", "pass")]
)
def test_a_short_wait_for_the_other_tasks_is_named(value, verdict):
    (check,) = wait_time_check({"WaitTime": value}, SETTINGS)
    assert check.verdict == verdict
    if verdict == "fail":
        assert check.value == PhaseMessage.WAIT_TIME.fill(seconds=5)


@pytest.mark.parametrize(
    ("options", "is_checked"),
    [
        (["--wait=0"], False),
        (["--wait", "0"], False),
        (["-W0"], False),
        (["--wait-for-children"], True),
    ],
)
def test_a_site_that_sets_the_wait_itself_is_not_checked(options, is_checked):
    site = SETTINGS.site.model_copy(update={"step_options": options})
    checks = wait_time_check({"WaitTime": "5 sec"}, replace(SETTINGS, site=site))
    assert bool(checks) == is_checked
    assert wait_time_check({}, SETTINGS) == []


ENFORCED = {"JobAcctGatherParams": "OverMemoryKill"}


@pytest.mark.parametrize(
    ("configuration", "partition", "verdicts"),
    [
        ({**ENFORCED, "DefMemPerNode": "300"}, QueueLimits("main"), ["fail"]),
        ({"DefMemPerNode": "300"}, QueueLimits("main"), []),
        ({**ENFORCED, "DefMemPerNode": "UNLIMITED"}, QueueLimits("main"), []),
        (
            {**ENFORCED, "DefMemPerNode": "300"},
            QueueLimits("main", default_core_memory=900),
            ["pass"],
        ),
        (ENFORCED, QueueLimits("main", default_node_memory=1000), ["fail"]),
    ],
)
def test_a_default_memory_that_slurm_enforces_is_named(configuration, partition, verdicts):
    job = SETTINGS.job(FULL).model_copy(
        update={"memory": "", "cpus_per_task": 4, "tasks_per_node": 1, "devices_per_node": 1}
    )
    checks = default_memory_check(configuration, partition, job, "training")
    assert [check.verdict for check in checks] == verdicts
    of_core = QueueLimits("main", default_core_memory=100)
    without_cores = job.model_copy(update={"cpus_per_task": 0})
    assert default_memory_check(ENFORCED, of_core, without_cores, "training") == []
    asking = job.model_copy(update={"memory": "4G"})
    assert default_memory_check(configuration, partition, asking, "training") == []


@pytest.mark.parametrize(
    ("directives", "verdicts"),
    [
        ({}, ["fail", "fail"]),
        ({"mem": "0", "reservation": "maint"}, ["pass"]),
        ({"mem-per-cpu": "4G"}, ["fail"]),
    ],
)
def test_memory_and_reservation_of_the_sites_directives_count_as_requested(directives, verdicts):
    """`runbook init --site` writes `mem: "0"` into the site's directives."""
    site = SETTINGS.site.model_copy(update={"directives": directives})
    settings = replace(SETTINGS, site=site)
    job = settings.job(FULL)
    assert not job.memory
    assert not job.reservation
    now = time.time()
    names = [f"n{number}" for number in range(job.nodes)]
    slurm = SimpleNamespace(
        configuration=lambda: {**ENFORCED, "DefMemPerNode": "300"},
        reservations=lambda: [Reservation("maint", now - HOUR, now + HOUR, tuple(names))],
        node_cores=lambda partition: dict.fromkeys(names, NodeCores(8)),
    )
    checks = slurm_checks(settings, [QueueLimits(job.partition)], slurm)
    assert [check.verdict for check in checks] == verdicts


def test_a_reservation_without_a_known_time_is_left_out():
    text = "ReservationName=a StartTime=Unknown EndTime=Unknown Nodes=n[1-2]\n"
    known = (
        "ReservationName=b StartTime=2026-11-29T12:00:00 EndTime=2026-11-29T13:00:00 Nodes=(null)"
    )
    (reservation,) = parse_reservations(text + known)
    assert (reservation.name, reservation.nodes) == ("b", ())
    assert reservation.end - reservation.start == HOUR


def test_reservations_are_read_whatever_time_format_the_user_has_set(tmp_path, monkeypatch):
    """With the format `relative`, Slurm shows no date, and reservations would be left out."""
    times = "StartTime=2026-11-29T12:00:00 EndTime=2026-11-29T13:00:00"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        f"#!/bin/sh\n[ $SLURM_TIME_FORMAT = standard ] && echo ReservationName=a {times} Nodes=n1\n"
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    (reservation,) = Slurm().reservations()
    assert reservation.nodes == ("n1",)


@pytest.mark.parametrize(
    ("start", "end", "nodes", "verdict"),
    [
        (2 * HOUR, 10 * HOUR, ("n1", "n2"), "fail"),
        (-HOUR, 10 * HOUR, ("n1", "n2"), "fail"),
        (30 * HOUR, 40 * HOUR, ("n1", "n2"), "pass"),
        (2 * HOUR, 10 * HOUR, ("n1",), "pass"),
        (2 * HOUR, 10 * HOUR, ("n7", "n8", "n9"), "pass"),
        (-10 * HOUR, -HOUR, ("n1", "n2"), "pass"),
    ],
)
def test_a_reservation_that_leaves_too_few_nodes_until_the_time_limit_is_named(
    start, end, nodes, verdict
):
    job = SETTINGS.job(FULL).model_copy(
        update={"nodes": 2, "walltime": 24 * 3600, "reservation": ""}
    )
    reservation = Reservation("maint", NOW + start, NOW + end, nodes)
    demand = demand_of(job, SETTINGS, None)
    check = reservation_check([reservation], CORES, demand, "training", NOW)
    assert check.verdict == verdict
    if verdict == "fail":
        begin = time.strftime("%Y-%m-%d %H:%M", time.localtime(NOW + start))
        assert f"maint is reserved from {begin}" in check.value


CORES = dict.fromkeys(["n1", "n2", "n3"], NodeCores(8))
ALL = ("n1", "n2", "n3")
DEMAND = NodeDemand(2, cores=4, seconds=24 * HOUR, reservation="", account="chem", user="me")


def reserved(nodes=ALL, start=-HOUR, **fields):
    """Return a reservation that has begun an hour ago, and ends in ten hours."""
    return Reservation("resv", NOW + start, NOW + 10 * HOUR, nodes, **fields)


@pytest.mark.parametrize(
    ("reservation", "changes", "verdict"),
    [
        (reserved(flags=frozenset({"MAGNETIC"}), users=("me",)), {}, "pass"),
        (reserved(flags=frozenset({"MAGNETIC"}), accounts=("chem",)), {}, "pass"),
        (reserved(flags=frozenset({"MAGNETIC"}), users=("-me",)), {}, "fail"),
        (reserved(flags=frozenset({"MAGNETIC"}), users=("you",)), {}, "fail"),
        (reserved(flags=frozenset({"MAGNETIC"}), users=("me",), accounts=("bio",)), {}, "fail"),
        # The job fits neither into it, nor beside it.
        (
            reserved(("n1", "n2"), flags=frozenset({"MAGNETIC"}), users=("me",)),
            {"nodes": 3},
            "fail",
        ),
        (reserved(flags=frozenset({"MAGNETIC"}), users=("me",), start=HOUR), {}, "fail"),
        (reserved(users=("me",)), {}, "fail"),
        (reserved(flags=frozenset({"MAINT", "FLEX"}), users=("you",)), {}, "fail"),
        (reserved(num_cores=6, cores_of={"n1": 2, "n2": 2, "n3": 2}), {}, "pass"),
        (reserved(num_cores=6, cores_of={"n1": 2, "n2": 2, "n3": 2}), {"cores": 7}, "fail"),
        (reserved(num_cores=6, cores_of={"n1": 2, "n2": 2, "n3": 2}), {"cores": 0}, "fail"),
        (reserved(num_cores=3), {}, "pass"),
        (reserved(num_cores=3, flags=frozenset({"MAINT"})), {}, "fail"),
        (reserved(num_cores=3, flags=frozenset({"ALL_NODES"})), {}, "fail"),
        (reserved(("n7", "n8"), num_cores=16), {}, "pass"),
        (reserved(), {"reservation": "resv"}, "pass"),
        (reserved(("n1",)), {"reservation": "resv"}, "fail"),
        (reserved(("n1",), flags=frozenset({"FLEX"})), {"reservation": "resv"}, "pass"),
    ],
)
def test_only_a_reservation_that_can_block_the_job_is_counted(reservation, changes, verdict):
    demand = replace(DEMAND, **changes)
    assert reservation_check([reservation], CORES, demand, "training", NOW).verdict == verdict


def test_cores_of_several_reservations_add_up():
    rows = [
        replace(reserved(num_cores=6, cores_of=dict.fromkeys(ALL, 2)), name=name) for name in "ab"
    ]
    assert reservation_check(rows[:1], CORES, replace(DEMAND, cores=5), "x", NOW).verdict == "pass"
    assert reservation_check(rows, CORES, replace(DEMAND, cores=5), "x", NOW).verdict == "fail"
    threads = dict.fromkeys(ALL, NodeCores(8, threads=2))
    assert reservation_check(rows, threads, replace(DEMAND, cores=8), "x", NOW).verdict == "pass"


def test_a_job_that_takes_whole_nodes_needs_all_their_cores():
    job = SETTINGS.job(FULL).model_copy(update={"cpus_per_task": 2, "tasks_per_node": 4})
    site = SETTINGS.site.model_copy(update={"directives": {}})
    settings = replace(SETTINGS, site=site)
    assert demand_of(job, settings, QueueLimits("main")).cores == 8
    assert demand_of(job, settings, QueueLimits("main", gives_whole_nodes=True)).cores == 0
    alone = site.model_copy(update={"directives": {"exclusive": ""}})
    assert demand_of(job, replace(SETTINGS, site=alone), QueueLimits("main")).cores == 0


def test_reservations_of_slurm_22_05():
    """Captured on 2026-11-29 from the tests' cluster with `scontrol --oneliner`."""
    text = (SAMPLES / "slurm-22.05-scontrol-reservation.txt").read_text()
    cores, later, magnetic, flexible = parse_reservations(text)
    assert (cores.nodes, cores.num_cores, dict(cores.cores_of)) == (("node1",), 2, {"node1": 2})
    assert cores.users == ("nobody",) and "IGNORE_JOBS" in cores.flags
    assert (later.num_cores, dict(later.cores_of)) == (3, {})
    assert magnetic.attracts("root", "") and not magnetic.attracts("me", "")
    assert flexible.is_flexible and flexible.accounts == ("physics",)


@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        ("for p in /proc/*; do kill -9 ${p#/proc/}; done", "warn"),
        ("# kill nothing\nrm -rf /tmp/$SLURM_JOB_ID", "pass"),
        ("squeue -h -w $HOST -u $SLURM_UID | grep -q . || pkill -KILL -U $SLURM_UID", "pass"),
    ],
)
def test_an_epilog_that_ends_processes_without_asking_slurm_is_a_warning(tmp_path, script, verdict):
    path = tmp_path / "epilog.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    configuration = {"Epilog": str(path), "EpilogMsgTime": "2000 usec", "Prolog": "(null)"}
    (check,) = epilog_checks(configuration)
    assert check.verdict == verdict
    assert epilog_checks({"Epilog": "(null)"}) == []


@pytest.mark.parametrize("pattern", ["{}/*", "{}/*.sh", "{}", "{}/20-clean.sh"])
@pytest.mark.parametrize("option", ["Epilog", "Prolog", "Epilog[1]"])
def test_each_script_that_a_pattern_or_folder_names_is_read(tmp_path, option, pattern):
    (tmp_path / "10-log.sh").write_text("#!/bin/sh\nlogger ended\n")
    (tmp_path / "20-clean.sh").write_text("#!/bin/sh\npkill -9 -U $SLURM_JOB_UID\n")
    configuration = {option: pattern.format(tmp_path)}
    (check,) = epilog_checks(configuration)
    assert check.verdict == "warn"
    assert check.value == PhaseMessage.EPILOG_KILLS.fill(path=tmp_path / "20-clean.sh")
    (tmp_path / "20-clean.sh").write_text("#!/bin/sh\nexit 0\n")
    (check,) = epilog_checks(configuration)
    assert check.verdict == "pass"
