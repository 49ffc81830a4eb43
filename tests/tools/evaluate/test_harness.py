"""lm-evaluation-harness with our trainer and with the exported folder: the same likelihoods and the
same answers.

The harness is not in the lock: it is installed here into a separate environment on top of the one
that runs the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from suite.messages import containing, says

from runbook.cli.messages import CliMessage
from runbook.planning.messages import PlanningMessage
from runbook.tools.evaluate.messages import EvaluationMessage

REPOSITORY = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
HERE = Path(__file__).parent
pytestmark = [pytest.mark.training, pytest.mark.rotate(3, turn=2)]


def extra(name):
    import tomllib

    (wanted,) = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ][name]
    return wanted


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Create a Python with the extra `evaluation`, on top of the packages in this one."""
    folder = tmp_path_factory.mktemp("harness")
    venv.create(folder, with_pip=True)
    found = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "all.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n{REPOSITORY}\n")
    words = [
        found,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        extra("evaluation"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return found


@pytest.fixture(scope="module")
def runbook(python, tmp_path_factory):
    """Return a function that runs the command line in that environment, and returns the exit code,
    the output and the errors."""
    home = tmp_path_factory.mktemp("home")
    env = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}

    def call(*words, program=("-m", "runbook")):
        argv = [python, *map(str, program), *map(str, words)]
        return subprocess.run(
            argv, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=600
        )

    return call


@pytest.fixture(scope="module")
def weights(runbook, tmp_path_factory):
    """Save a `transformers` model with random weights, shaped like the model in the local run."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    done = runbook("plan", "local", "--json")
    assert done.returncode == 0, done.stderr
    model = json.loads(done.stdout)["phases"]["04-training"]["model"]
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=model["vocabulary"],
        n_positions=model["positions"],
        n_embd=model["hidden"],
        n_layer=model["layers"],
        n_head=model["heads"],
        initializer_range=0.1,
    )
    folder = tmp_path_factory.mktemp("weights")
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def runs(runbook, weights, tmp_path_factory):
    """Return a function that gives, for a layout, the runs folder and the exported weights."""
    done = {}

    def get(cut):
        if cut not in done:
            folder = tmp_path_factory.mktemp(f"runs-{cut}")
            out = tmp_path_factory.mktemp(f"out-{cut}") / "hf"
            steps = [
                ("run", "local", "--runs", folder, "--to", "00-plan", "--set", f"parallel.{cut}=2"),
                ("import", "local", "--runs", folder, "--from", weights),
                ("export", "local", "--runs", folder, "--out", out),
            ]
            for step in steps:
                ended = subprocess.run(
                    [BIN / "runbook", *step], cwd=REPOSITORY, capture_output=True, text=True
                )
                assert ended.returncode == 0, ended.stderr
            done[cut] = folder, out
        return done[cut]

    return get


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Write the three tasks and their data."""
    folder = tmp_path_factory.mktemp("tasks")
    nouns = ["tea", "king", "sea", "old man", "ship", "river", "book", "night"]
    choices = [" the house.", " hot and cold.", " of of of."]
    data = {
        "choice": [
            {"question": f"The {noun} is", "choices": choices, "answer": at % 3}
            for at, noun in enumerate(nouns)
        ],
        "text": [
            {"text": ("The king said that he would go to the sea. " * times).strip()}
            for times in (1, 3, 40)
        ],
        "write": [{"start": f"The {noun} of the", "end": "house"} for noun in nouns[:5]],
    }
    for name, rows in data.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in (HERE / "tasks").glob("*.yaml"):
        (folder / path.name).write_text(path.read_text().replace("FOLDER", str(folder)))
    return folder


@pytest.mark.parametrize("cut", ["tensor", "pipeline"])
def test_every_answer_is_that_of_transformers_for_the_exported_folder(runbook, runs, tasks, cut):
    """Compute our answers in two processes, and those of transformers in one."""
    folder, exported = runs(cut)
    folder /= "local"
    program = (HERE / "ask_harness.py",)
    ours = runbook(folder, tasks, "", program=program)
    theirs = runbook(folder, tasks, exported, program=program)
    assert (ours.returncode, theirs.returncode) == (0, 0), ours.stderr + theirs.stderr
    mine, other = (json.loads(each.stdout.splitlines()[-1]) for each in (ours, theirs))
    assert mine.keys() == other.keys() == {"toy_choice", "toy_text", "toy_write"}
    assert [len(mine[name]) for name in sorted(mine)] == [8, 3, 5]
    assert mine["toy_write"] == other["toy_write"] and len(str(mine["toy_write"])) > 100
    likelihoods = [flat(each["toy_choice"]) + flat(each["toy_text"]) for each in (mine, other)]
    # They sum in float32, which cannot resolve 1e-4 above 1,000: such a text may differ by half a
    # unit in the last place.
    assert likelihoods[0] == pytest.approx(likelihoods[1], abs=1e-4, rel=2**-24)
    assert len(likelihoods[0]) == 8 * 3 * 2 + 3


def flat(answer):
    """Return all numbers of a nested answer, with true and false as 1 and 0."""
    if isinstance(answer, list):
        return [number for one in answer for number in flat(one)]
    return [float(answer)]


def test_scores_are_kept_in_the_run_and_not_made_twice(runbook, runs, tasks):
    folder, _ = runs("tensor")
    words = ("evaluate", "local", "--runs", folder, "--task-folder", tasks, "--limit", "3")
    first = runbook(*words, "--tasks", "toy_choice")
    assert first.returncode == 0, first.stderr
    path = folder / "local" / "evaluation" / "harness.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    scored = [(*row["what"].split(", "), row["measure"], row["samples"]) for row in rows]
    assert scored == [
        ("toy_choice", "0 shots", "acc", 3),
        ("toy_choice", "0 shots", "acc_norm", 3),
    ]
    assert all(
        row["harness"] and row["training"] and row["version"] == 1.0 and row["iteration"] == 0
        for row in rows
    )
    second = runbook(*words, "--tasks", "toy_choice")
    assert second.returncode == 0
    assert says(second.stdout, EvaluationMessage.SCORED_BEFORE, tasks="toy_choice")
    assert rows == [json.loads(line) for line in path.read_text().splitlines()]


def test_what_cannot_be_scored_is_refused_with_a_remedy_and_leaves_nothing(runbook, runs, tasks):
    folder, _ = runs("tensor")
    words = ("evaluate", "local", "--runs", folder)
    known = {path: path.read_bytes() for path in (folder / "local" / "evaluation").glob("*")}
    missing = runbook(*words, "--tasks", "boolq,piqa")
    assert missing.returncode == 1
    boolq = EvaluationMessage.DATA_OF_TASK.of(name="boolq", data="aps/super_glue", part="boolq")
    loads = [
        EvaluationMessage.LOAD_DATASET.fill(arguments=arguments)
        for arguments in ("'aps/super_glue', 'boolq'", "'baber/piqa'")
    ]
    assert says(
        missing.stderr,
        EvaluationMessage.DATA_MISSING,
        tasks=containing(boolq),
        loads="; ".join(loads),
    )
    unknown = runbook(*words, "--tasks", "boolqq")
    assert unknown.returncode == 2
    hint = PlanningMessage.DID_YOU_MEAN.of(name=containing("boolq"))
    assert says(unknown.stderr, EvaluationMessage.NO_SUCH_TASK, name="boolqq", hint=hint)
    stray = runbook(*words, "--limit", "3")
    assert stray.returncode == 2
    assert says(stray.stderr, CliMessage.NEEDS_TASKS, options="--limit")
    assert known == {
        path: path.read_bytes() for path in (folder / "local" / "evaluation").glob("*")
    }


def test_the_tasks_of_the_paper_are_all_in_the_harness(runbook, runs):
    listed = runbook("evaluate", "local", "--runs", runs("tensor")[0], "--list")
    assert listed.returncode == 0, listed.stderr
    assert (
        "hellaswag" in listed.stdout
        and "Rowan/hellaswag" in listed.stdout
        and "arithmetic_2da" in listed.stdout
    )
