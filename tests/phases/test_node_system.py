"""A node's report about its account, device files, kernel settings, caches and other programs."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from suite.clock import HandClock

from runbook.core import shell
from runbook.node_checks import (
    caches,
    foreign_programs,
    networks,
    operating_system,
    shared_folder,
    written_files,
)
from runbook.node_checks.fact_sheet import system_facts
from runbook.node_checks.mounts import mount_of
from runbook.node_checks.operating_system import DEVICE_FILES, DeviceFile, device_fault
from runbook.phases.p01_environment.preflight.folder_rules import slow_writers

DAY_SECONDS = 86400


def test_the_account_of_this_user_is_known_and_its_home_accepts_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    facts = operating_system.look_at_account()
    assert facts["user"] == pwd.getpwuid(os.getuid()).pw_name
    assert (facts["home"], facts["home_error"]) == (str(tmp_path), "")
    assert not list(tmp_path.iterdir())


def test_a_user_without_an_account_has_no_name_and_a_missing_home_is_reported(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_007)
    monkeypatch.setenv("HOME", "/nowhere/me")
    facts = operating_system.look_at_account()
    assert facts["user"] == ""
    assert facts["home_error"] == "No such file or directory"


def test_a_folder_that_accepts_only_empty_files_is_reported(tmp_path):
    # Files of this process may have no content, as with a full quota.
    probe = (
        "import pathlib, resource, signal, sys\n"
        "from runbook.node_checks.written_files import write_error\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "sys.stdout.write(write_error(pathlib.Path(sys.argv[1])))\n"
    )
    ended = shell.run([sys.executable, "-c", probe, str(tmp_path)])
    assert ended.out == os.strerror(errno.EFBIG)


@pytest.mark.parametrize(("free_inodes", "is_added"), [(0, True), (100, False)])
def test_the_missing_inodes_of_a_folder_with_free_bytes_are_reported(
    tmp_path, monkeypatch, free_inodes, is_added
):
    def refuse(dir: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(written_files.tempfile, "TemporaryFile", refuse)
    status = SimpleNamespace(f_files=1000, f_favail=free_inodes, f_bavail=1000)
    monkeypatch.setattr(os, "statvfs", lambda path: status)
    error = written_files.write_error(tmp_path)
    assert error.startswith("No space left on device")
    assert (written_files.NO_INODES in error) is is_added


def test_the_kernels_own_devices_have_no_fault():
    assert operating_system.look_at_devices() == {"faults": {}}


def test_a_file_in_place_of_a_device_is_a_fault_and_so_is_another_device(tmp_path):
    path = tmp_path / "null"
    null = DEVICE_FILES[0]
    assert device_fault(DeviceFile(str(path), null.major, null.minor))
    path.write_text("the output of a program\n")
    assert device_fault(DeviceFile(str(path), null.major, null.minor))
    assert device_fault(DeviceFile("/dev/zero", null.major, null.minor))


def test_the_largest_of_three_numbers_counts_and_a_missing_setting_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(operating_system, "SETTINGS_FOLDER", tmp_path)
    folder = tmp_path / "net" / "ipv4"
    folder.mkdir(parents=True)
    (folder / "tcp_rmem").write_text("4096\t131072\t6291456\n")
    settings = operating_system.look_at_kernel_settings()
    assert settings["net.ipv4.tcp_rmem"] == 6291456
    assert settings["net.core.somaxconn"] is None


@pytest.mark.parametrize(("age_seconds", "is_old"), [(3 * DAY_SECONDS, True), (30, False)])
def test_only_the_lock_of_a_build_that_has_ended_is_old(tmp_path, monkeypatch, age_seconds, is_old):
    lock = tmp_path / "py311_cpu" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    made = time.time() - age_seconds
    os.utime(lock, (made, made))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    facts = caches.look_at_caches()["TORCH_EXTENSIONS_DIR"]
    assert facts["old_lock"] == (str(lock) if is_old else "")


def test_a_lock_file_that_triton_left_is_no_old_lock(tmp_path, monkeypatch):
    lock = tmp_path / "kernel" / "lock"
    lock.parent.mkdir()
    lock.touch()
    os.utime(lock, (0, 0))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert caches.look_at_caches()["TRITON_CACHE_DIR"]["old_lock"] == ""


def test_a_folder_that_another_build_deletes_is_no_old_lock(tmp_path, monkeypatch):
    def glob(folder: Path, pattern: str) -> Iterator[Path]:
        yield folder / "build"
        raise FileNotFoundError(pattern)

    monkeypatch.setattr(Path, "glob", glob)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert caches.look_at_caches()["TORCH_EXTENSIONS_DIR"]["old_lock"] == ""


def test_the_mount_of_a_link_is_its_targets(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("/proc/self")
    assert mount_of(link).kind == "proc"


def resolve_in(monkeypatch: pytest.MonkeyPatch, seconds: Iterator[float]) -> None:
    """Let each name look-up take the next of these durations, on a separate clock."""
    clock = HandClock()

    def resolve(name: str) -> list[str]:
        clock.sleep(next(seconds))
        return ["10.0.0.1"]

    monkeypatch.setattr(networks, "time", clock)
    monkeypatch.setattr(networks, "_resolve", resolve)


def test_a_name_whose_packet_was_lost_once_is_not_slow(monkeypatch):
    monkeypatch.setenv("RUNBOOK_NODES", "n1")
    resolve_in(monkeypatch, iter((0.0, 5.0, 0.25)))
    assert networks.look_at_names()["seconds"] == {"n1": 0.25}


def test_a_name_that_takes_long_again_has_these_seconds(monkeypatch):
    monkeypatch.setenv("RUNBOOK_NODES", "n1 n2")
    resolve_in(monkeypatch, itertools.repeat(0.75))
    assert networks.look_at_names()["seconds"] == {"n1": 0.75, "n2": 0.75}
    monkeypatch.setattr(networks, "NAMES_SECONDS", 0.0)
    assert list(networks.look_at_names()["seconds"]) == ["n1"]


def test_the_speed_of_a_folder_without_locks_is_measured(tmp_path, monkeypatch):
    def lockf(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    facts = shared_folder.look_at_folder(tmp_path, "token")
    assert list(facts["errors"]) == ["lock"]
    assert facts["write_seconds"] > 0


BUSY = "print('ready', flush=True)\nwhile True: pass"
IDLE = "import time\nprint('ready', flush=True)\ntime.sleep(60)"


@pytest.mark.parametrize(
    ("job", "program", "is_named"),
    [("6", BUSY, True), ("", BUSY, True), ("7", BUSY, False), ("6", IDLE, False)],
)
def test_only_a_program_that_computes_outside_of_the_job_is_named(
    monkeypatch, job, program, is_named
):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    environment = {**os.environ, "SLURM_JOB_ID": job}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            busy = foreign_programs.look_at_foreign_programs()["busy"]
        finally:
            process.kill()

    assert [entry["job"] for entry in busy if entry["pid"] == process.pid] == [job] * is_named


def test_without_a_job_no_program_is_outside_of_it(monkeypatch):
    for name in foreign_programs.JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert foreign_programs.look_at_foreign_programs() == {"busy": [], "in_run": []}


IN_FOLDER = (
    "import sys, time\nopened = open('log', 'w')\nprint('ready', flush=True)\ntime.sleep(60)"
)


@pytest.mark.parametrize(
    ("daemons", "folder_name", "is_named"),
    [
        (("7",), "run", True),
        (("6", "7"), "run", False),
        ((), "run", False),
        (("7",), "other", False),
    ],
)
def test_a_program_of_an_ended_job_that_uses_the_runs_folder_is_named(
    tmp_path, monkeypatch, daemons, folder_name, is_named
):
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(foreign_programs, "_jobs_with_daemon", lambda: iter(daemons))
    environment = {**os.environ, "SLURM_JOB_ID": "6"}
    with subprocess.Popen(
        [sys.executable, "-c", IN_FOLDER],
        env=environment,
        stdout=subprocess.PIPE,
        cwd=tmp_path / folder_name,
    ) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            in_run = foreign_programs.look_at_foreign_programs(folder)["in_run"]
        finally:
            process.kill()

    named = [(entry["job"], entry["path"]) for entry in in_run if entry["pid"] == process.pid]
    assert named == [("6", str(folder))] * is_named


def test_a_jobs_step_daemon_is_recognized_by_its_command(tmp_path, monkeypatch):
    for pid, command in (("1", b"slurmd\0-D\0"), ("2", b"slurmstepd: [41.batch]\0")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(command)
    monkeypatch.setattr(foreign_programs, "PROCESSES", tmp_path)
    assert list(foreign_programs._jobs_with_daemon()) == ["41"]


def test_a_firewall_that_tracks_no_connection_has_no_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(operating_system, "SETTINGS_FOLDER", tmp_path)
    folder = tmp_path / "net" / "netfilter"
    folder.mkdir(parents=True)
    (folder / "nf_conntrack_tcp_timeout_established").write_text("120\n")
    name = "net.netfilter.nf_conntrack_tcp_timeout_established"
    for count, value in (("0\n", None), ("3\n", 120)):
        (folder / "nf_conntrack_count").write_text(count)
        assert operating_system.look_at_kernel_settings().get(name) == value


def test_each_further_megabyte_is_timed_only_if_the_first_one_is_slow(tmp_path, monkeypatch):
    times = {1: 0.25, shared_folder.STREAM_MEBIBYTES: 1.0}
    monkeypatch.setattr(
        shared_folder,
        "_write_seconds",
        lambda path, mebibytes=1, suspect_seconds=0: times[mebibytes],
    )
    facts = shared_folder.look_at_folder(tmp_path, "token")
    assert facts["stream_seconds"] == pytest.approx(0.25)
    times[1] = 0.003
    assert shared_folder.look_at_folder(tmp_path, "token")["stream_seconds"] == 0.0


def test_a_node_whose_first_megabyte_was_delayed_once_is_not_slow(tmp_path, monkeypatch):
    times = {1: 0.25, shared_folder.STREAM_MEBIBYTES: 0.02}
    monkeypatch.setattr(
        shared_folder,
        "_write_seconds",
        lambda path, mebibytes=1, suspect_seconds=0: times[mebibytes],
    )
    delayed = shared_folder.look_at_folder(tmp_path, "token")
    usual = {**delayed, "write_seconds": 0.01, "stream_seconds": 0.0}
    assert slow_writers({"n1": usual, "n2": delayed}) == {}


@pytest.mark.parametrize(
    ("texts", "value"),
    [
        (("", None), "(not set)"),
        (("[Login]\n#RemoveIPC=yes\n", None), "(not set)"),
        (("[Login]\nRemoveIPC=yes\n", None), "yes"),
        (("[Login]\nRemoveIPC=yes\n", "[Login]\nRemoveIPC=no\n"), "no"),
        (("[Login]\nRemoveIPC=no\nRemoveIPC = T\n", None), "T"),
    ],
)
def test_the_last_file_of_logind_decides(tmp_path, monkeypatch, texts, value):
    settings = tmp_path / "logind.conf"
    settings.write_text(texts[0])
    if texts[1] is not None:
        (tmp_path / "logind.conf.d").mkdir()
        (tmp_path / "logind.conf.d" / "site.conf").write_text(texts[1])
    monkeypatch.setattr(system_facts, "LOGIN_SETTINGS", settings)
    assert system_facts.look_at_system()["RemoveIPC of logind"] == value


def test_a_set_folder_for_downloads_is_tried_and_a_full_one_is_told_from_a_read_only_one(
    tmp_path, monkeypatch
):
    for store in caches.STORES:
        monkeypatch.delenv(store.variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert caches.look_at_stores() == {
        "HF_HOME": {
            "folder": f"{tmp_path}/.cache/huggingface",
            "is_set": False,
            "is_full": False,
            "error": "",
        }
    }
    monkeypatch.setenv("WANDB_DIR", "/sys/kernel")
    monkeypatch.setenv("TORCH_HOME", "relative/folder")
    facts = caches.look_at_stores()
    assert facts["WANDB_DIR"]["error"] and not facts["WANDB_DIR"]["is_full"]
    assert facts["TORCH_HOME"]["error"] == ""
    monkeypatch.setattr(caches, "write_error", lambda folder: os.strerror(errno.EDQUOT))
    assert caches.look_at_stores()["TORCH_HOME"]["is_full"]


def test_a_connection_within_this_machine_works_and_a_refused_one_is_told(monkeypatch):
    assert networks.loopback_error() == ""
    card = Path("/sys/class/net/lo/address").read_text().strip()
    assert networks.hardware_address("lo") == card
    assert networks.hardware_address("gone0") == ""
    monkeypatch.setattr(networks, "LOOPBACK", "192.0.2.1")
    assert networks.loopback_error().startswith(os.strerror(errno.EADDRNOTAVAIL))
