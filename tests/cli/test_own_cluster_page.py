"""docs/your-own-cluster.md: every command on the page is executed, or marked as needing the
cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runbook.tools.site_setup.cluster_facts import SINFO

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "your-own-cluster.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines()]


@pytest.fixture
def login_node(tmp_path: Path, monkeypatch) -> None:
    """Leave only sbatch and sinfo on the PATH, as on a cluster with A100 nodes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    sample = TESTS / "samples" / "queues" / "slurm-sinfo.txt"
    (folder / "sbatch").write_text("#!/bin/sh\nexit 1\n")
    words = " ".join(SINFO[1:])
    (folder / "sinfo").write_text(
        f"#!/bin/sh\n[ \"$*\" = '{words}' ] && exec /bin/cat {sample}\nexit 64\n"
    )
    for program in folder.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_every_command_of_the_page_runs(runbook, login_node, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    executed = 0
    for line in LINES:
        command, _, remark = line.partition("#")
        if remark.strip().startswith("not run: "):
            continue
        program, *words = command.split()
        if program == "cd":
            monkeypatch.chdir(words[0])
        elif program == "cat":
            assert "#SBATCH --gpus-per-node=4" in Path(words[0]).read_text()
        else:
            assert program == "runbook"
            said = runbook(*words)
            if words[0] == "rehearse":
                progress = r"(rank \d+ \(stage \d+\): \d+ s, \d of \d\n)+"
            else:
                progress = ""
            assert said.code == 0 and re.fullmatch(progress, said.err), line
            executed += 1
    assert executed == 9


def test_the_keys_and_options_that_the_page_names_are_there(runbook):
    site = (TESTS.parent / "runbook" / "params" / "schema" / "site.py").read_text()
    for key in (
        "devices_directive",
        "directives",
        "modules",
        "setup",
        "container",
        "environment",
        "queues",
        "facts",
    ):
        assert f"`{key}`" in PAGE or f"`{key}:" in PAGE
        assert f"    {key}: " in site
    options = runbook("init", "--help").out
    for option in set(
        re.findall(r"--(?:site|scheduler|device|devices-per-node|cores-per-node)\b", PAGE)
    ):
        assert option in options
