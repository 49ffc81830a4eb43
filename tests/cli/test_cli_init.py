"""`init --site` writes a correct site file if a scheduler answers, if it does not answer, and if
there is none."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from suite.messages import containing, says

from runbook.cli.messages import CliMessage
from runbook.core.messages import CoreMessage
from runbook.jobs.job_request import NodeKind
from runbook.jobs.pbs import Pbs, queues_to_submit_to
from runbook.params.messages import ParamsMessage
from runbook.params.problems import FILL_IN
from runbook.phases.messages import PhaseMessage
from runbook.tools.site_setup.cluster_facts import SINFO, ask_cluster, parse_pbsnodes, parse_sinfo
from runbook.tools.site_setup.messages import SiteSetupMessage

SAMPLES = Path(__file__).parents[1] / "samples" / "queues"
A100 = NodeKind(4, "nvidia_a100-sxm4-40gb", 64, 512_000 * 2**20)
FLAGS = (
    "--scheduler",
    "slurm",
    "--device",
    "A100-40GB",
    "--devices-per-node",
    4,
    "--cores-per-node",
    64,
)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch):
    """Replace PATH with an empty folder, and return a function that adds a stub program to it. A
    stub has a name, its output, the arguments that it must get, and an exit code.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def stub(name: str, text: str = "", words: tuple[str, ...] = (), code: int = 0) -> None:
        (folder / f"{name}.txt").write_text(text)
        told = " ".join(words)
        (folder / name).write_text(
            f'#!/bin/sh\n[ "$*" = \'{told}\' ] || {{ echo "not the words: $*" >&2; exit 64; }}\n'
            f"/bin/cat {folder}/{name}.txt\n[ {code} = 0 ] || echo 'no controller here' >&2\nexit {code}\n"
        )
        (folder / name).chmod(0o755)

    return stub


@pytest.fixture
def slurm(programs):
    """Simulate a login node on a Slurm cluster where most nodes have four A100s with 40 GB."""
    programs("sbatch")
    programs("sinfo", (SAMPLES / "slurm-sinfo.txt").read_text(), SINFO[1:])


@dataclass(frozen=True)
class Sourced:
    """A value in a site or run file, and the source written after it."""

    value: object
    source: str = ""


def sourced_values(path: Path, *starts: str) -> dict[str, Sourced]:
    """Return the values in the lines that begin with these keys."""
    values = {}
    for line in path.read_text().splitlines():
        if line.strip().startswith(starts):
            # YAML 1.1 reads an unquoted 24:00:00 as a number of seconds.
            ((key, value),) = yaml.safe_load(line).items()
            assert key not in values, f"{key} stands twice in {path}"
            values[key] = Sourced(value, line.partition("  # ")[2])
    return values


def test_two_commands_lead_from_nothing_to_a_right_script_on_a_login_node(
    runbook, slurm, tmp_path, monkeypatch
):
    said = runbook("init", tmp_path / "work", "--site", "oak")
    assert (said.code, said.err) == (0, "")
    assert says(said.out, CliMessage.DRAFTED_FROM, source="sinfo")
    monkeypatch.chdir(tmp_path / "work")
    assert runbook("render", "oak", "--out", "scripts").code == 0
    script = Path("scripts/jobs/04-training/job.sh").read_text()
    asked = re.findall(r"^#SBATCH --(\S+)$", script, re.MULTILINE)
    for word in (
        *("nodes=1", "gpus-per-node=4", "ntasks-per-node=1", "cpus-per-task=64", "mem=0"),
        *("partition=gpu", "time=01:00:00"),
    ):
        assert word in asked
    assert runbook("check", "oak").out.endswith(f"oak: {PhaseMessage.EVERYTHING_FITS.fill()}\n")


TO_BE_FILLED_IN = ParamsMessage.TO_BE_FILLED_IN.value.partition("{comment}")[0]


def test_two_commands_lead_there_from_a_laptop_too(runbook, programs, tmp_path, monkeypatch):
    said = runbook("init", tmp_path / "work", "--site", "oak", *FLAGS)
    assert (said.code, said.err) == (0, "")
    assert says(said.out, CliMessage.NO_SCHEDULER_ANSWERED)
    monkeypatch.chdir(tmp_path / "work")
    assert runbook("render", "oak", "--out", "scripts").code == 0
    asked = re.findall(
        r"^#SBATCH --(\S+)$", Path("scripts/jobs/04-training/job.sh").read_text(), re.MULTILINE
    )
    assert {"nodes=1", "gpus-per-node=4", "cpus-per-task=64", "mem=0", "time=01:00:00"} < set(asked)
    assert not [word for word in asked if word.startswith("partition")]
    assert runbook("check", "oak").out.endswith(f"oak: {PhaseMessage.EVERYTHING_FITS.fill()}\n")


def test_a_site_without_gpus_is_drafted_for_its_cpus(runbook, slurm, project):
    flags = ("--device", "cpu", "--devices-per-node", 2)
    said = runbook("init", ".", "--site", "oak", *flags)
    assert (said.code, said.err) == (0, "")
    values = sourced_values(project / "params/sites/oak.yaml", "device", "cores_", "node")
    given = {key: values[key].value for key in ("device", "devices_per_node")}
    asked = {key: values[key].value for key in ("cores_per_node", "nodes")}
    assert given == {"device": "cpu", "devices_per_node": 2}
    assert asked == {"cores_per_node": 128, "nodes": 40}, "the nodes without a GPU"
    assert runbook("render", "oak", "--out", "scripts").code == 0
    script = (project / "scripts/jobs/04-training/job.sh").read_text()
    assert "#SBATCH --partition=cpu\n" in script
    assert "gpus" not in "".join(re.findall(r"^#SBATCH.*$", script, re.MULTILINE))
    assert runbook("check", "oak").code == 0


def test_a_pbs_site_without_gpus_requests_none(runbook, programs, project):
    flags = ("--scheduler", "pbs", "--device", "cpu", "--devices-per-node", 2)
    assert runbook("init", ".", "--site", "oak", *flags, "--cores-per-node", 16).code == 0
    text = (project / "params/sites/oak.yaml").read_text()
    assert "ngpus" not in text and "its torch the GPUs" not in text
    assert runbook("render", "oak", "--out", "scripts").code == 0
    script = (project / "scripts/jobs/04-training/job.sh").read_text()
    assert "#PBS -l select=1:ncpus=16\n" in script


def test_the_processes_of_a_cpu_node_are_left_to_the_person(runbook, slurm, project):
    assert runbook("init", ".", "--site", "oak", "--device", "CPU").code == 0
    values = sourced_values(project / "params/sites/oak.yaml", "device")
    assert values["device"].value == "cpu"
    marked = Sourced(FILL_IN, SiteSetupMessage.PROCESSES_PER_NODE.fill())
    assert values["devices_per_node"] == marked


def test_each_value_of_the_site_says_where_it_came_from(runbook, slurm, project):
    assert runbook("init", ".", "--site", "oak").code == 0
    site = project / "params/sites/oak.yaml"
    device_source = SiteSetupMessage.SCHEDULER_CALLS_IT.fill(
        source="sinfo", device="nvidia_a100-sxm4-40gb"
    )
    peaks = {"fp16": 312, "bf16": 312, "fp32": 19.5}
    assert sourced_values(
        site, "scheduler", "device", "devices_per_node", "device_memory", "cores", "node", "peak"
    ) == {
        "scheduler": Sourced("slurm", SiteSetupMessage.PROGRAM_ON_PATH.fill(program="sbatch")),
        "device": Sourced("A100-SXM4-40GB", device_source),
        "devices_per_node": Sourced(4, "sinfo"),
        "device_memory": Sourced("40GiB", SiteSetupMessage.MEMORY_BY_DATASHEET.fill()),
        "peak_tflops": Sourced(peaks, SiteSetupMessage.PEAKS_BY_DATASHEET.fill()),
        "cores_per_node": Sourced(64, "sinfo"),
        "node_memory": Sourced("500GiB", "sinfo"),
        "nodes": Sourced(12, SiteSetupMessage.NODES_OF_KIND.fill(source="sinfo")),
    }
    nodes = SiteSetupMessage.NODES_OF_DEVICES
    default = SiteSetupMessage.DEFAULT_QUEUE.fill()
    small = nodes.fill(nodes="12 nodes", devices=4, device="nvidia_a100-sxm4-40gb")
    ten_small = nodes.fill(nodes="10 nodes", devices=4, device="nvidia_a100-sxm4-40gb")
    large = nodes.fill(nodes="2 nodes", devices=8, device="nvidia_a100-sxm4-80gb")
    assert sourced_values(
        site, "gpu:", "short:", "long:", "cpu:", "smoke:", "training:", "old:"
    ) == {
        "gpu": Sourced({"max_nodes": 8, "max_walltime": "24:00:00"}, f"{small}; {default}"),
        "short": Sourced({"max_nodes": 2, "max_walltime": "00:30:00"}, small),
        "long": Sourced({}, f"{ten_small} and {large}"),
        "cpu": Sourced({"max_walltime": "48:00:00"}, "40 nodes"),
        "smoke": Sourced({"partition": "gpu", "walltime": "00:30:00"}),
        "training": Sourced({"partition": "gpu", "walltime": "01:00:00"}),
    }
    for line in site.read_text().splitlines():
        assert not re.match(r"\s*[\w-]+: [^{#]+$", line) or line.startswith(("site:", "title:")), (
            line
        )


def test_the_device_that_a_person_names_chooses_the_nodes(runbook, slurm, project):
    assert runbook("init", ".", "--site", "big", "--devices-per-node", 8).code == 0
    site = project / "params/sites/big.yaml"
    source = SiteSetupMessage.SCHEDULER_CALLS_IT.fill(
        source="sinfo", device="nvidia_a100-sxm4-80gb"
    )
    assert sourced_values(site, "device:", "cores_per_node", "training:") == {
        "device": Sourced("A100-SXM4-80GB", source),
        "cores_per_node": Sourced(128, "sinfo"),
        "training": Sourced({"partition": "long", "walltime": "01:00:00"}),
    }


def test_what_nobody_knows_is_marked_and_refused_with_file_and_key(
    runbook, programs, project, everything
):
    said = runbook("init", ".", "--site", "oak")
    assert said.code == 0
    fill_in = CliMessage.FILL_IN_VALUES.fill(marked=4, site="params/sites/oak.yaml")
    assert fill_in in said.out
    before = everything()
    for words in (
        ("check", "oak"),
        ("plan", "oak"),
        ("render", "oak", "--out", "s"),
        ("run", "oak"),
    ):
        refused = runbook(*words)
        assert (refused.code, refused.out) == (2, "")
        for number, key in (
            (5, "scheduler"),
            (10, "hardware.device"),
            (11, "hardware.devices_per_node"),
        ):
            place = f"{key} (params/sites/oak.yaml:{number}): "
            assert refused.err.partition(place)[2].startswith(TO_BE_FILLED_IN)
        assert says(refused.err, SiteSetupMessage.NO_SCHEDULER_ON_PATH)
    assert everything() == before
    site = project / "params/sites/oak.yaml"
    text = site.read_text()
    for key, value in (
        ("scheduler", "slurm"),
        ("device", "NVIDIA A100-SXM4-40GB"),
        ("devices_per_node", "4"),
        ("cores_per_node", "64"),
    ):
        text = re.sub(rf"(?m)^( *{key}): {FILL_IN}", rf"\1: {value}", text)
    site.write_text(text)
    assert runbook("check", "oak").code == 0
    assert runbook("plan", "oak", "--search").code == 0


def test_a_name_without_its_memory_is_left_to_the_person(runbook, programs, project):
    programs("sbatch")
    programs("sinfo", "gpu*|up|1-00:00:00|1-8|12|64|512000|gpu:a100:4(S:0-3)\n", SINFO[1:])
    assert runbook("init", ".", "--site", "oak").code == 0
    names = "A100-SXM4-40GB, A100-SXM4-80GB, A100-PCIe-40GB, A100-PCIe-80GB"
    device = SiteSetupMessage.SCHEDULER_CALLS_IT.fill(source="sinfo", device="a100")
    choices = SiteSetupMessage.ONE_OF_DEVICES.fill(source=device, devices=names)
    assert sourced_values(project / "params/sites/oak.yaml", "device:") == {
        "device": Sourced(FILL_IN, choices)
    }
    place = "hardware.device (params/sites/oak.yaml:10)"
    assert f"{place}: {TO_BE_FILLED_IN}{device}" in runbook("check", "oak").err


@pytest.mark.parametrize(
    ("device", "message", "names"),
    [
        ("A1000-40GB", SiteSetupMessage.NO_SUCH_DEVICE, {"near": "A100-SXM4-40GB, "}),
        (
            "A100",
            SiteSetupMessage.DEVICE_MEMORY_OPEN,
            {"choices": "A100-SXM4-40GB or A100-SXM4-80GB or "},
        ),
    ],
)
def test_a_device_that_is_not_plain_is_answered_with_the_right_names(
    runbook, programs, everything, device, message, names
):
    before = everything()
    said = runbook("init", ".", "--site", "oak", "--device", device)
    assert said.code == 2
    with_names = {name: containing(value) for name, value in names.items()}
    assert says(said.err, message, device=device, **with_names)
    assert everything() == before


def test_a_scheduler_that_does_not_answer_is_quoted_and_the_rest_is_written(
    runbook, programs, project
):
    programs("sbatch")
    programs("sinfo", "", SINFO[1:], code=1)
    said = runbook("init", ".", "--site", "oak", *FLAGS[2:])
    assert said.code == 0
    assert says(
        said.out,
        CoreMessage.PROGRAM_FAILED,
        command=containing("sinfo"),
        exit_code="exit code 1",
        last_words=containing("no controller here"),
    )
    site = project / "params/sites/oak.yaml"
    assert sourced_values(site, "scheduler") == {
        "scheduler": Sourced("slurm", SiteSetupMessage.PROGRAM_ON_PATH.fill(program="sbatch"))
    }
    assert says(
        site.read_text(),
        SiteSetupMessage.SCHEDULER_WAS_ASKED,
        answer=containing("sinfo", "no controller here"),
    )
    assert runbook("check", "oak").code == 0


ROUTED = """Queue: prod
    queue_type = Route
    route_destinations = small,large
    enabled = True
    started = True

Queue: small
    queue_type = Execution
    from_route_only = True
    resources_max.nodect = 24
    resources_max.walltime = 03:00:00
    enabled = True
    started = True

Queue: large
    queue_type = Execution
    from_route_only = True
    resources_max.nodect = 496
    resources_max.walltime = 24:00:00
    enabled = True
    started = True

Queue: anywhere
    queue_type = Route
    route_destinations = debug@server
    enabled = True
    started = True

Queue: debug
    queue_type = Execution
    resources_max.nodect = 2
    enabled = True
    started = True
"""


def test_a_route_queue_counts_where_it_is_the_only_way_to_its_nodes():
    queues = {queue.name: queue for queue in queues_to_submit_to(ROUTED)}
    assert set(queues) == {"prod", "debug"}
    assert (queues["prod"].max_nodes, queues["prod"].max_seconds) == (496, 86_400)


def test_a_pbs_cluster_is_asked_for_its_queues_and_nodes(runbook, programs, project):
    programs("qsub")
    programs("qstat", (SAMPLES / "pbs-qstat-queues.txt").read_text(), Pbs.limits_question[1:])
    programs("pbsnodes", (SAMPLES / "pbsnodes.txt").read_text(), ("-a",))
    said = runbook("init", ".", "--site", "elm", "--device", "A100-40GB")
    assert (said.code, said.err) == (0, "")
    source = "qstat -Q and pbsnodes"
    assert says(said.out, CliMessage.DRAFTED_FROM, source=source)
    site = project / "params/sites/elm.yaml"
    assert sourced_values(
        site, "launcher", "devices_per_node", "debug:", "prod:", "old:", "devices_directive"
    ) == {
        "launcher": Sourced("mpiexec", SiteSetupMessage.MPIEXEC.fill()),
        "devices_per_node": Sourced(4, source),
        "debug": Sourced({"max_nodes": 2, "max_walltime": "01:00:00"}),
        "devices_directive": Sourced("ngpus", SiteSetupMessage.NGPUS.fill()),
    }
    assert (
        runbook("render", "elm", "--out", "scripts", "--set", "jobs.training.partition=debug").code
        == 0
    )
    script = Path("scripts/jobs/04-training/job.sh").read_text()
    assert re.search(r"^#PBS -l select=1:ncpus=64:ngpus=4$", script, re.MULTILINE)
    assert re.findall(r"^#PBS -q (.*)$", script, re.MULTILINE) == ["debug"]


@pytest.mark.parametrize(
    ("device", "number", "precision"),
    [
        ("V100-SXM2-16GB", 6, "fp16"),
        ("H100", 8, "bf16"),
        ("MI250X", 8, "bf16"),
        ("L40S", 1, "bf16"),
        ("A100-80GB", 7, "bf16"),
    ],
)
def test_the_first_run_fits_whatever_the_nodes_have(
    runbook, programs, project, device, number, precision
):
    words = (
        "--scheduler",
        "slurm",
        "--device",
        device,
        "--devices-per-node",
        number,
        "--cores-per-node",
        64,
    )
    assert runbook("init", ".", "--site", "oak", *words).code == 0
    assert sourced_values(project / "params/oak.yaml", "precision") == {
        "precision": Sourced(precision)
    }
    assert runbook("check", "oak").out.endswith(f"oak: {PhaseMessage.EVERYTHING_FITS.fill()}\n")


def test_files_that_are_there_are_kept_and_said_so(runbook, programs, project, everything):
    runbook("init", ".", "--site", "oak", *FLAGS)
    before = everything()
    again = runbook("init", ".", "--site", "oak")
    assert again.code == 0
    assert again.out.count(CliMessage.KEPT.fill()) == 2
    assert everything() == before
    assert "params/sites/lumi.yaml: exists" in runbook("init", ".", "--site", "lumi").out


def test_options_of_a_site_need_its_name_and_a_name_is_one_word(runbook, programs, everything):
    before = everything()
    for words, told in (
        (("--device", "H100"), "with --site"),
        (("--site", "../x"), "--site ../x: a name may have letters"),
    ):
        said = runbook("init", ".", *words)
        assert said.code == 2
        assert told in said.err
    assert everything() == before


def test_partitions_that_are_down_and_slices_of_gpus_are_left_out():
    queues = {
        queue.name: queue
        for queue in parse_sinfo((SAMPLES / "slurm-sinfo.txt").read_text() + "strange line\n")
    }
    assert list(queues) == ["gpu", "short", "long", "cpu", "slices"]
    assert (queues["gpu"].default, queues["gpu"].max_seconds, queues["gpu"].max_nodes) == (
        True,
        86400,
        8,
    )
    assert (queues["long"].max_seconds, queues["long"].max_nodes) == (0, 0)
    assert queues["long"].kinds[0] == (A100, 10)
    assert queues["slices"].kinds[0][0].devices == 0


def test_hosts_of_pbs_are_counted_once():
    kinds = parse_pbsnodes((SAMPLES / "pbsnodes.txt").read_text())
    assert kinds == (
        (NodeKind(4, "", 64, 527953920 * 2**10), 2),
        (NodeKind(0, "", 64, 263976960 * 2**10), 1),
    )


def test_closed_queues_of_pbs_are_left_out(programs):
    programs("qsub")
    programs("qstat", (SAMPLES / "pbs-qstat-queues.txt").read_text(), Pbs.limits_question[1:])
    assert [queue.name for queue in ask_cluster().queues] == ["debug"]


def test_a_clone_takes_the_site_into_its_own_params(runbook, programs, tmp_path, monkeypatch):
    clone = tmp_path / "clone"
    for name in ("params", "notebooks", "docs"):
        shutil.copytree(Path(__file__).parents[2] / name, clone / name)
    monkeypatch.setattr("runbook.phases.notebook_copies.PACKAGE", clone / "runbook")
    monkeypatch.chdir(clone)
    said = runbook("init", os.curdir, "--site", "oak", *FLAGS)
    assert (said.code, said.err) == (0, "")
    assert not re.search(r"^\.: \d+ files", said.out, re.MULTILINE)
    assert "Next: runbook check oak" in said.out
    assert runbook("check", "oak").code == 0
    assert runbook("init", os.curdir).code == 1


def test_init_on_a_full_disk_names_the_new_file_and_leaves_no_half_copy(tmp_path: Path):
    folder = tmp_path / "full"
    command = f"ulimit -f 1; exec {Path(sys.executable).parent / 'runbook'} init {folder}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"Error: {folder}/")
    assert not [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "words",
    [
        (),
        (
            "--site",
            "oak",
            "--scheduler",
            "slurm",
            "--device",
            "A100-40GB",
            "--devices-per-node",
            "4",
            "--cores-per-node",
            "64",
        ),
        ("--model", "125m"),
    ],
)
def test_the_next_step_can_be_pasted_for_a_folder_with_a_space(runbook, tmp_path, words):
    folder = tmp_path / "a new project"
    said = runbook("init", folder, *words)
    assert said.code == 0, said.err
    (next_step,) = re.findall(r"cd (.*?);", said.out)
    assert shlex.split(next_step) == [str(folder)]
