"""Building the image from a document: the Dockerfile layers, and the steps to build, push and
import it.
"""

import os
import re
from dataclasses import replace

import pytest
from sites import GOLDEN, PROJECT, settings_of

from runbook.core import shell
from runbook.jobs.render.preparation import preparation_files, render_preparation

DOCKERFILES = sorted(GOLDEN.glob("*/01-environment/Dockerfile"))

THEIRS = (
    "dpkg -i libfabric*.deb efa-profile*.deb",
    "--prefix=/opt/amazon/efa --with-libfabric=/opt/amazon/efa --with-cuda=/usr/local/cuda --with-mpi=/usr/local/mpi",
    "/usr/local/lib /opt/amazon/efa/lib >/etc/ld.so.conf.d/runbook.conf && ldconfig",
    "/opt/amazon/efa/bin/fi_info --version",
)
"""What Dockerfile.22.09-py3-bcp-nsys-2022.5.1-v2-efa from AWS contains (aws-hpc-tutorials 1c9f367),
in our words.
"""

DOCKER = """\
#!/bin/sh
{ printf '%s|' docker "$@"; echo; } >>"$LOG"
case $1 in
  manifest) [ -e "$PUSHED" ] ;;
  push) [ -z "$REFUSED" ] && touch "$PUSHED" ;;
esac
"""
ENROOT = """\
#!/bin/sh
{ printf '%s|' enroot "$@"; echo; } >>"$LOG"
touch "$3"
"""


@pytest.mark.parametrize("site", ["aws", "slurm"])
def test_the_dockerfile_is_the_expected_one_word_for_word(site):
    run = {"aws": "aws-pile-175b", "slurm": "slurm-oscar"}[site]
    expected = (GOLDEN / site / "01-environment" / "Dockerfile").read_text(encoding="utf-8")
    assert preparation_files(settings_of(run))["Dockerfile"] == expected


def test_the_image_of_aws_has_the_layers_of_its_document():
    text = preparation_files(settings_of("aws-pile-175b"))["Dockerfile"]
    for words in THEIRS:
        assert words in text
    assert text.index("--with-mpi") < text.index(
        "ld.so.conf.d"
    )  # the plugin exists when its folder is searched
    assert "nsight" not in text and "apt-get" not in text  # their image installs neither


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda path: path.parts[-3])
def test_bash_can_read_each_layer(file, tmp_path):
    script = tmp_path / "layers.sh"
    layers = re.findall(
        r"^RUN (.*(?:\\\n.*)*)", file.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert layers
    script.write_text("\n".join(layers))
    shell.run(["bash", "-n", str(script)])


@pytest.fixture
def build(tmp_path):
    """Return a function that runs the image step on the Slurm site with stand-ins for docker and
    enroot, and returns the calls they got.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("docker", DOCKER), ("enroot", ENROOT)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def run(image, *, refused="", code=0):
        own = settings_of("slurm-oscar", f"jobs.stage={tmp_path}/stage", f"jobs.image={image}")
        own = replace(own, site=own.site.model_copy(update={"frameworks": {}, "paths": {}}))
        script = tmp_path / "prepare.sh"
        log = tmp_path / "log"
        script.write_text(render_preparation(own, PROJECT), encoding="utf-8")
        log.write_text("")
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "LOG": str(log),
            "REFUSED": refused,
        }
        environment["PUSHED"] = str(tmp_path / "pushed")
        said = shell.run(["bash", str(script)], env=environment, check=False)
        assert said.exit_code == code, said.err
        return [line.split("|")[:-1] for line in log.read_text().splitlines()]

    return run


TAG = "pytorch:24.03-py3-deepspeed-0.15.4"


def test_an_image_file_is_built_and_imported_once(build, tmp_path):
    image = tmp_path / "image.sqsh"
    made = [
        ["docker", "build", "--tag", TAG, str(tmp_path)],
        ["enroot", "import", "-o", f"{image}.part", f"dockerd://{TAG}"],
    ]
    assert build(image) == made
    assert image.exists()
    assert build(image) == []


def test_an_image_file_that_is_there_is_left_alone(build, tmp_path):
    (tmp_path / "image.sqsh").write_text("mine")
    assert build(tmp_path / "image.sqsh") == []


def test_an_image_of_a_registry_is_built_and_pushed_where_it_is_missing(build, tmp_path):
    image = "registry.example/team/gpt:1"
    commands = [
        ["docker", "manifest", "inspect", image],
        ["docker", "build", "--tag", TAG, str(tmp_path)],
        ["docker", "tag", TAG, image],
        ["docker", "push", image],
    ]
    assert build("registry.example#team/gpt:1", refused="yes", code=1) == commands
    assert not (tmp_path / "stage" / ".runbook" / "image").exists()
    assert build("docker://registry.example#team/gpt:1") == commands
    assert build("docker://registry.example#team/gpt:1") == []


def test_an_image_that_the_registry_has_is_not_pushed_over(build, tmp_path):
    (tmp_path / "pushed").touch()
    inspected = ["docker", "manifest", "inspect", "nvcr.io/nvidia/pytorch:24.03-py3"]
    assert build("nvcr.io#nvidia/pytorch:24.03-py3") == [inspected]
