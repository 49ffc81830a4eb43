"""The preflight job for runs with additional features: fewer nodes, spare nodes, copies on the
nodes.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from sites import FEWER_NODES, PACKAGE, planned
from suite.programs import shellcheck

from runbook.core import shell
from runbook.jobs.render.preflight_job import PreflightQuestions, render_preflight

QUESTIONS = PreflightQuestions((Path("/shared/answers"),), "0123", ("--seconds=60",))


def preflight_of(run, *words, jobs=None):
    """Return the preflight job for a run. `jobs` are keys for the section jobs in its run file."""
    settings, plan = planned(run, *words, "training.framework=runbook")
    section = settings.run.jobs.model_copy(update=jobs or {})
    settings = replace(settings, run=settings.run.model_copy(update={"jobs": section}))
    return render_preflight(settings, plan.phases["04-training"], PACKAGE, QUESTIONS)


def words_of(job):
    """Return all text in a job except comments."""
    texts = [job.script, *job.files.values()]
    return re.sub(r"(?m)^#(?!SBATCH|PBS).*$", "", "\n".join(texts))


@pytest.mark.parametrize("name", FEWER_NODES)
def test_the_preflight_of_a_training_with_fewer_nodes_has_one_number_of_ranks(name):
    run, *words = FEWER_NODES[name]
    job = preflight_of(run, *words)
    assert "NUM_NODES" not in words_of(job)
    assert "RUNBOOK_NODES *" not in job.files["rank.sh"]
    if "WORLD_SIZE" in job.files["rank.sh"]:
        assert re.search(r"WORLD_SIZE=\d+ ", job.files["rank.sh"])


def test_no_variable_is_handed_to_the_container_twice():
    run, *words = FEWER_NODES["fewer-nodes-slurm"]
    lists = re.findall(r"--container-env=(\S+)", preflight_of(run, *words).script)
    assert lists
    for names in lists:
        assert len(names.split(",")) == len(set(names.split(",")))
        assert "RUNBOOK_NODES" in names.split(",")


def test_the_preflight_of_a_training_with_spare_nodes_takes_all_its_nodes():
    script = preflight_of("azure-175b", "jobs.training.spares=2").script
    assert "step_nodes" not in script
    assert "no-kill" not in script


def test_the_preflight_starts_the_environment_that_all_nodes_share():
    run, *words = FEWER_NODES["fewer-nodes-pbs"]
    for run_words in ((run, *words), ("azure-175b",)):
        text = words_of(preflight_of(*run_words, jobs={"environment_copy": "/local/scratch"}))
        assert "python.sh" not in text
        assert "-m runbook.training.probe" in text


def test_the_preflight_starts_the_image_that_all_nodes_share():
    words = ("jobs.image=/images/train.sqsh", "jobs.image_copy=/local/images")
    script = preflight_of("azure-175b", *words).script
    assert "--container-image=/images/train.sqsh" in script
    assert "/local/images" not in script


def test_what_the_site_does_on_each_node_comes_before_the_first_rung():
    job = preflight_of("lumi-13b", jobs={"image_copy": "/local/images"})
    assert "rocm-smi" in job.files["node.sh"]
    assert "/local/images" not in job.files["node.sh"]
    assert 0 < job.script.index('bash "$job/node.sh"') < job.script.index("# hosts: ")


def test_a_site_that_does_nothing_on_its_nodes_has_no_script_for_it():
    job = preflight_of("azure-175b")
    assert "node.sh" not in {*job.files} | {*job.script.split("/")}


@pytest.mark.parametrize("run", ["fewer-nodes-pbs", "node-setup"])
def test_shellcheck_finds_nothing(run, tmp_path):
    run, *words = FEWER_NODES.get(run, ("lumi-13b",))
    job = preflight_of(run, *words, jobs={"environment_copy": "/local/scratch"})
    for name, text in {"job.sh": job.script, **job.files}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert shell.run([shellcheck(), str(tmp_path / name)]).out == ""


def test_the_checks_of_a_node_start_although_its_temporary_folder_accepts_no_files(tmp_path):
    script = tmp_path / "rung.sh"
    script.write_text(preflight_of("azure-175b").files["rung.sh"])
    for name, text in (("mktemp", "exit 1"), ("python3", 'echo "$TRITON_CACHE_DIR"')):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RUNBOOK_CACHE": "/proc/none"}
    argv = ["bash", str(script), "hosts"]
    ended = shell.run(argv, env=environment | {"TRITON_CACHE_DIR": None, "TMPDIR": None})
    assert ended.out == "/tmp/triton\n"
