"""Safety: JupyterLab keeps its token, a secret never appears in any output or file, and set-up
quotes its values.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from suite.messages import refuses

from runbook.cli.program import cli
from runbook.core.errors import ParamsError
from runbook.jobs.messages import JobMessage
from runbook.jobs.render.preparation import setup_steps, step_script
from runbook.params import load
from runbook.params.schema.site import Preparation
from runbook.phases.p01_environment.doctor import secret_checks

REPOSITORY = Path(__file__).parents[1]
SECRET = "pass-Ab3dAb3dAb3dAb3d"
OPEN_LAB = re.compile(
    r"""(?:NotebookApp|ServerApp|IdentityProvider|PasswordIdentityProvider)\.(?:token|password|hashed_password)\s*=\s*(?:''|""|\s|$)
    |JUPYTER_TOKEN=(?:''|""|\s|$) | disable_check_xsrf\s*=\s*True | allow_unauthenticated_access\s*=\s*True
    |allow_origin\s*=\s*['"]?\* | allow_remote_access\s*=\s*True | --no-(?:auth|token)""",
    re.VERBOSE | re.MULTILINE,
)
PLACES = (
    "Makefile",
    "README.md",
    "CONTRIBUTING.md",
    "environment.yml",
    "docs",
    "runbook",
    "notebooks",
    "masters",
    "params",
    "tools",
    "tests/golden",
    ".ci",
)


def test_nothing_here_tells_jupyterlab_to_drop_its_token():
    told = "jupyter lab --ServerApp.token='' --IdentityProvider.token= \nJUPYTER_TOKEN= jupyter lab --X.allow_origin=*"
    assert len(OPEN_LAB.findall(told)) == 4, "the pattern finds what it looks for"
    found = []
    for place in PLACES:
        root = REPOSITORY / place
        paths = [root] if root.is_file() else root.rglob("*")
        for path in paths:
            if path.is_file() and path.suffix not in (".png", ".pyc", ".bin", ".zst", ".gz"):
                found += [
                    f"{path}: {one[0]}"
                    for one in OPEN_LAB.finditer(path.read_text(errors="replace"))
                ]
    assert found == []


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    """Create a project whose text needs a token and whose site needs a password.

    Each is given by an environment variable.
    """
    root = tmp_path / "project"
    for name in ("params", "notebooks"):
        shutil.copytree(REPOSITORY / name, root / name)
    catalogue = root / "params" / "datasets.yaml"
    catalogue.write_text(
        re.sub(r"(?m)^corpus:\n", "corpus:\n  token: env:TOY_SECRET\n", catalogue.read_text())
    )
    site = root / "params" / "sites" / "local.yaml"
    step = "{title: log in, creates: seen, commands: ['true'], secret: 'env:TOY_SECRET'}"
    site.write_text(f"{site.read_text()}\npreparation: [{step}]\n")
    monkeypatch.setenv("TOY_SECRET", SECRET)
    monkeypatch.chdir(root)
    return root


def test_a_named_secret_is_in_nothing_that_is_planned_shown_rendered_or_written(project, tmp_path):
    commands = [
        ["check", "local"],
        ["plan", "local"],
        ["plan", "local", "--json"],
        ["why", "local", "data.dataset"],
        ["render", "local", "--out", str(tmp_path / "out")],
        ["status"],
    ]
    said = "".join(str(check) for check in secret_checks(load("local", project=project)))
    for words in commands:
        done = CliRunner().invoke(cli, words, standalone_mode=False)
        assert done.exception is None, (words, done.exception, done.output)
        said += done.output
    written = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert "env:TOY_SECRET" in said, "the secret is asked for"
    assert SECRET not in said
    assert not [text for text in written if SECRET in text]


HOSTILE = st.lists(
    st.sampled_from(
        [
            "$(touch made)",
            "`touch made`",
            "'; touch made; '",
            "\ntouch made\n",
            "${HOME}",
            "{{ x }}",
            "{image}",
            "{bucket}",
            "{recipe}",
        ]
    )
    | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4),
    max_size=5,
).map("".join)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(value=HOSTILE)
@example(value="$(touch made)")
@example(value="'; touch made; '")
@example(value="x\ntouch made\n")
def test_set_up_takes_any_folder_image_and_title_for_the_words_they_are(value, tmp_path):
    """Run a set-up step that writes its words to a file. Each value stays a single word in bash."""
    own = load("local", project=REPOSITORY)
    step = Preparation(
        title=f"a {value}",
        creates="there",
        commands=["printf '%s|' {stage} {image} {bucket}", "touch there"],
    )
    jobs = own.run.jobs.model_copy(update={"stage": f"/{value}x", "image": value})
    container = own.site.container.model_copy(update={"image": f"i{value}"})
    site = own.site.model_copy(update={"preparation": [step], "container": container, "paths": {}})
    data = own.run.data.model_copy(update={"bucket": f"b{value}x"})
    own = type(own)(
        **{
            **vars(own),
            "run": own.run.model_copy(update={"jobs": jobs, "data": data}),
            "site": site,
        }
    )
    (one,) = setup_steps(own, REPOSITORY)
    script = tmp_path / "step.sh"
    script.write_text(step_script(own, [one]), encoding="utf-8", newline="")
    done = subprocess.run(["bash", str(script)], cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"/{value}x|i{value}|b{value}x|" in done.stdout.decode()
    assert not (tmp_path / "made").exists()
    (tmp_path / "there").unlink()


@pytest.mark.parametrize("base", ["a b", "x\nRUN touch made", "$(touch made)", "", "a\tb"])
def test_a_base_image_that_a_dockerfile_would_read_as_more_is_refused(base):
    from runbook.jobs.render.quoting import image

    with refuses(ParamsError, JobMessage.NOT_AN_IMAGE_NAME):
        image(base)
