"""`runbook rehearse --upstream`: the documents' own programs, started by the rendered rank.sh without a GPU.

The real checkouts are started if UPSTREAM_MEGATRON_LM (NVIDIA/Megatron-LM e958b2ca), UPSTREAM_LUMI
(henkdr/Megatron-Deepspeed-LUMI 635a468), UPSTREAM_MICROSOFT (microsoft/Megatron-DeepSpeed 6acc370)
and UPSTREAM_ALCF (argonne-lcf/Megatron-DeepSpeed 6bcac4ee) name folders, each with the Python,
torch and DeepSpeed versions from its site.
"""

import dataclasses
import json
import os
import shlex
from pathlib import Path

import pytest
from suite.messages import refuses, says
from suite.scripts import command_of
from suite.tables import table_rows

from runbook import params
from runbook.cli import main
from runbook.core import shell
from runbook.core.errors import RunbookError
from runbook.jobs.render.training_job import lines, render_job
from runbook.params.settings import with_placeholders
from runbook.planning import make_plan
from runbook.results.failures.kinds import OWN_ERROR
from runbook.tools.try_upstream.messages import UpstreamMessage
from runbook.tools.try_upstream.start_upstream import (
    check_checkout,
    small_arguments,
    small_script,
    start_upstream,
)
from runbook.training.upstream import sitecustomize

CHECKOUTS = [
    ("UPSTREAM_MEGATRON_LM", "azure-175b", "03-smoke-test", 2),
    ("UPSTREAM_MEGATRON_LM", "azure-175b", "04-training", 4),  # TP 2 x PP 2
    ("UPSTREAM_LUMI", "lumi-13b", "03-smoke-test", 2),
    ("UPSTREAM_LUMI", "lumi-13b", "04-training", 4),
    ("UPSTREAM_MICROSOFT", "slurm-oscar", "03-smoke-test", 2),
    ("UPSTREAM_MICROSOFT", "slurm-oscar", "04-training", 4),
    ("UPSTREAM_ALCF", "polaris-25b", "03-smoke-test", 2),
    ("UPSTREAM_ALCF", "polaris-25b", "04-training", 2),
]

PROGRAM = """
import argparse, math, os, numpy, torch
from megatron.words import LINE

parser = argparse.ArgumentParser(allow_abbrev=False)
for name in ("num-layers", "train-iters", "save", "vocab-file", "distributed-backend", "clip-grad", "lr"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--train-data-path", nargs="+")
given, _ = parser.parse_known_args()
assert torch.cuda.is_available() and torch.cuda.device_count() == 2
torch.nn.LayerNorm(4, eps=1e-5, sequence_parallel=False)
torch.distributed.init_process_group(given.distributed_backend)
rank = torch.distributed.get_rank()
print(f"rank {rank} lr {given.lr} clip {given.clip_grad}")
tokens = numpy.fromfile(given.train_data_path[1] + ".bin", "<u2")
loss = torch.ones(1, device=f"cuda:{os.environ['LOCAL_RANK']}").cuda().half()
loss *= math.log(len(numpy.unique(tokens))) / 2
assert loss.to("cuda").device.type == "cpu" and loss.type() == "torch.cuda.HalfTensor"
assert open(given.vocab_file).read(1) == "{"
torch.distributed.all_reduce(loss)
for step in range(1, int(given.train_iters) + 1):
    if rank == 1:
        print(LINE.format(step, step * 4, loss.item()))
if rank == 0:
    open(f"{given.save}/latest_checkpointed_iteration.txt", "w").write(given.train_iters)
"""
CHECK_PATHS = """
prefix = given.train_data_path[1]
assert not any(os.path.isabs(path) for path in (prefix, given.save, given.vocab_file))
assert os.path.getsize(prefix + ".idx") and os.path.getsize(given.vocab_file)
open(f"{given.save}/latest_checkpointed_iteration.txt", "w").write(given.train_iters)
"""
LINE = (
    " [2026-11-23 08:00:00] iteration {:d}/ 5 | consumed samples: {:12d} | elapsed time per iteration (ms): 9.0 | "
    "learning rate: 6.0E-05 | global batch size:     4 | lm loss: {:.6E} | loss scale: 65536.0 | grad norm: 2.000 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |"
)


CHAINED = """
import argparse, os
from megatron.words import LINE

if os.environ["RANK"] != "0":
    raise SystemExit  # a slow rank would read what the first one has saved meanwhile
parser = argparse.ArgumentParser(allow_abbrev=False)
for name in ("train-iters", "exit-interval", "save", "load"):
    parser.add_argument(f"--{name}", required=True)
given, _ = parser.parse_known_args()
tracker = f"{given.load}/latest_checkpointed_iteration.txt"
first = int(open(tracker).read()) if os.path.exists(tracker) and REMEMBERS else 0
last = min(int(given.train_iters), first + int(given.exit_interval))
if os.environ["RANK"] == "0":
    for step in range(first + 1, last + 1):
        print(LINE.format(step, step * 4, 10.825))
    open(f"{given.save}/latest_checkpointed_iteration.txt", "w").write(str(last))
"""


REFUSAL = """
import argparse
print("TypeError: caught by the program")
argparse.ArgumentParser().parse_args()
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Create a small program with a package next to it, like pretrain_gpt.py and megatron/.

    Temporary files stay in this folder.
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    folder = tmp_path / "a checkout"
    (folder / "megatron").mkdir(parents=True)
    (folder / "megatron" / "words.py").write_text(f"LINE = {LINE!r}\n")
    (folder / "pretrain_gpt.py").write_text(PROGRAM)
    git(folder, "init", "-q")
    real = params.load

    def as_pinned(*words, **options):
        """Return settings in which the site pins the commit in the folder, but no versions. The
        test then uses the versions in this environment.
        """
        settings = real(*words, **options)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "--allow-empty", "-m", "as it is now")
        pinned = {"commit": git(folder, "rev-parse", "HEAD"), "versions": None}
        frameworks = {
            name: checkout.model_copy(update=pinned)
            for name, checkout in settings.site.frameworks.items()
        }
        site = settings.site.model_copy(update={"frameworks": frameworks})
        return dataclasses.replace(settings, site=site)

    monkeypatch.setattr(params, "load", as_pinned)
    return folder


def git(folder, *words):
    """Return git's output in this folder."""
    who = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    return shell.run(["git", *who, "-C", str(folder), *words]).out.strip()


def programs(folder):
    """Return all files in a checkout except those that belong to git."""
    return sorted(path for path in folder.rglob("*") if ".git" not in path.parts)


def test_the_checkout_is_compared_with_the_pinned_commit_and_its_changes_are_named(tmp_path):
    pinned = params.load("azure-175b").site.frameworks["megatron-lm"]
    assert check_checkout(tmp_path, pinned).value == UpstreamMessage.NO_GIT_REPOSITORY.fill()
    git(tmp_path, "init", "-q")
    program = tmp_path / "pretrain_gpt.py"
    program.write_text("print(1)\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "one")
    other = check_checkout(tmp_path, pinned)
    assert other.verdict == "fail" and says(
        other.value,
        UpstreamMessage.NOT_AT_PINNED_COMMIT,
        head=git(tmp_path, "rev-parse", "HEAD")[:12],
    )
    assert other.remedy == UpstreamMessage.CHECK_OUT_PINNED.fill(commit=pinned.commit)
    here = pinned.model_copy(update={"commit": git(tmp_path, "rev-parse", "HEAD")})
    (tmp_path / "helpers.so").write_text("compiled: no change of the checkout")
    assert check_checkout(tmp_path, here).verdict == "pass"
    program.write_text("print(2)\n")
    changed = check_checkout(tmp_path, here)
    assert changed.verdict == "fail" and changed.value.endswith(
        "with local changes: pretrain_gpt.py"
    )


@pytest.mark.parametrize("run", ["azure-175b", "lumi-13b", "slurm-oscar"])
def test_the_site_pins_what_its_program_runs_with(run):
    settings = params.load(run)
    pinned = settings.site.frameworks[settings.run.training.framework]
    assert pinned.versions is not None
    assert pinned.versions.packages[0].startswith("torch==")
    recipe = settings.site.container.recipe
    for package in recipe.pip if recipe else []:
        assert package in pinned.versions.packages


@pytest.mark.training
def test_a_program_that_asks_for_gpus_reads_trains_saves_and_is_read(checkout, tmp_path):
    said = []
    before = programs(checkout)
    found = start_upstream(
        "azure-175b",
        ["training.learning_rate=7e-5"],
        phase="03-smoke-test",
        checkout=checkout,
        say=said.append,
    )
    text = "\n".join(said)
    assert found.works, text
    assert [record.iteration for record in found.log.records] == [1, 2, 3, 4, 5]
    printed = "rank 0 lr 7e-05 clip 1.0"
    assert printed in text
    assert "Killed" not in text  # bash prints it if rank.sh's own watcher is killed
    changed = {row[0]: row[1:3] for row in table_rows(text)}
    assert changed["--num-layers"] == ["12", "2"]
    assert says(found.as_text(), UpstreamMessage.WORKS, program="pretrain_gpt.py")
    assert json.loads(json.dumps(found.as_dict()))["losses"] == [
        record.loss for record in found.log.records
    ]
    assert programs(checkout) == before
    assert list(tmp_path.glob("upstream-*")) == []


def check_of_job(number, check):
    """Return the name that a check has in a later job in a chain."""
    return UpstreamMessage.CHECK_OF_JOB.fill(number=number, check=check)


@pytest.mark.training
@pytest.mark.parametrize("remembers", [True, False])
def test_a_chain_of_jobs_goes_on_or_ends_with_the_reason(remembers, checkout):
    program = CHAINED.replace("REMEMBERS", str(remembers))
    (checkout / "pretrain_gpt.py").write_text(program)
    trial = start_upstream(
        "azure-175b", [], phase="03-smoke-test", checkout=checkout, say=str, jobs=3
    )
    assert trial.works == remembers
    iterations = [record.iteration for record in trial.log.records]
    checks = {check.name: check for check in trial.checks}
    if remembers:
        assert iterations == list(range(1, 16))
        assert says(trial.as_text(), UpstreamMessage.IN_A_CHAIN, jobs=3)
        assert checks[check_of_job(3, "checkpoint")].value == "newest: 15"
        return
    assert not [name for name in checks if name.startswith("job 3")]
    goes_on = checks[check_of_job(2, "goes on")]
    assert (goes_on.verdict, goes_on.value) == (
        "fail",
        UpstreamMessage.FIRST_STEP.fill(shown_step=1),
    )
    assert says(goes_on.remedy, UpstreamMessage.CHECKPOINT_NOT_LOADED)


REFUSES_ITS_CHECKPOINT = """
import warnings
warnings.warn("Apex is not installed. Falling back to Torch Norm")
steps = {1, 2} if first else {1}
assert len(steps) == 1
if os.environ["RANK"] == "0":"""


@pytest.mark.training
def test_a_chain_that_ends_in_an_error_of_the_program_names_it(checkout):
    """Megatron-LM e958b2ca ends like this without apex.

    Its warning about apex was once mistaken for the reason.
    """
    program = CHAINED.replace("REMEMBERS", "True")
    program = program.replace('\nif os.environ["RANK"] == "0":', REFUSES_ITS_CHECKPOINT)
    (checkout / "pretrain_gpt.py").write_text(program)
    trial = start_upstream(
        "azure-175b", [], phase="03-smoke-test", checkout=checkout, say=str, jobs=2
    )
    checks = {check.name: check for check in trial.checks}
    assert checks["program ends"].verdict == "pass"
    ended = checks[check_of_job(2, "program ends")]
    error = "AssertionError: assert len(steps) == 1 ["
    assert error in ended.value
    assert "pretrain_gpt.py:" in ended.value
    assert ended.remedy.startswith(f"{OWN_ERROR.name}: ")


@pytest.mark.training
def test_a_program_that_refuses_ends_with_exit_code_1_and_its_log_is_kept(
    checkout, tmp_path, monkeypatch, capfd
):
    (checkout / "pretrain_gpt.py").write_text(REFUSAL)
    monkeypatch.setattr(
        "sys.argv", ["runbook", "rehearse", "azure-175b", "--upstream", str(checkout), "--json"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    out, err = capfd.readouterr()
    checks = json.loads(out)["checks"]
    assert checks[1]["value"].startswith(
        "exit code 2; first error: pretrain_gpt.py: error: unrecognized arguments: --num-l"
    )
    verdicts = {check["name"]: check["verdict"] for check in checks}
    assert verdicts == {
        "checkout": "pass",
        "program ends": "fail",
        "training": "fail",
        "checkpoint": "fail",
    }
    (kept,) = tmp_path.glob("upstream-*")
    assert f"kept in {kept}" in err
    assert "unrecognized arguments" in (kept / "log").read_text()


@pytest.mark.training
def test_a_site_that_names_no_places_works_in_the_runs_folder(checkout, monkeypatch):
    (checkout / "pretrain_gpt.py").write_text(
        PROGRAM.replace(
            "import argparse, math, os, numpy, torch", "import argparse, math, os, numpy"
        ).partition("assert torch")[0]
        + CHECK_PATHS
    )
    real = params.load

    def without_places(*words, **options):
        settings = real(*words, **options)
        return dataclasses.replace(settings, site=settings.site.model_copy(update={"paths": {}}))

    monkeypatch.setattr(params, "load", without_places)
    monkeypatch.setattr(
        "runbook.tools.try_upstream.start_upstream.with_placeholders", lambda settings: settings
    )
    words = ["jobs.stage=/scratch/me", "jobs.account=me"]
    found = start_upstream("azure-175b", words, phase="03-smoke-test", checkout=checkout, say=str)
    assert {check.name: check.verdict for check in found.checks} == {
        "checkout": "pass",
        "program ends": "pass",
        "training": "fail",
        "checkpoint": "pass",
    }


@pytest.mark.parametrize(
    ("run", "folder", "words"),
    [
        (
            "local",
            ".",
            UpstreamMessage.NO_UPSTREAM.of(run="local", framework="runbook"),
        ),
        (
            "azure-175b",
            ".",
            UpstreamMessage.CHECKOUT_WITHOUT_SCRIPT.of(
                script="pretrain_gpt.py", framework="megatron-lm"
            ),
        ),
    ],
)
def test_what_cannot_be_started_is_refused_at_once(run, folder, words, tmp_path):
    with refuses(RunbookError, words):
        start_upstream(run, [], phase="03-smoke-test", checkout=tmp_path / folder, say=pytest.fail)


@pytest.mark.parametrize("phase", ["03-smoke-test", "04-training"])
@pytest.mark.parametrize("run", ["azure-175b", "lumi-13b", "polaris-25b", "slurm-oscar"])
def test_every_argument_is_as_rendered_or_named_as_changed(run, phase):
    settings = with_placeholders(params.load(run))
    plan = make_plan(settings)
    rendered = render_job(settings, plan, phase)
    root = Path("/tmp/root")
    arguments, changes = small_arguments(
        rendered.arguments, plan.phases[phase], settings.run.training.framework, root
    )
    changed = {change["argument"]: change for change in changes}
    assert all(change["because"] for change in changes)
    as_rendered = [words for words in lines(rendered.arguments) if words[0] not in changed]
    kept = [
        [word.removeprefix(str(root)) for word in words]
        for words in arguments
        if words[0] not in changed
    ]
    assert kept == as_rendered
    assert {words[0] for words in arguments} >= {
        "--lr",
        "--seed",
        "--fp16",
        "--vocab-file",
        "--adam-beta2",
    }
    script = small_script(rendered.files["rank.sh"], arguments, root / "pretrain_gpt.py")
    program = command_of(script, "python3")
    assert program == ["python3", "-u", f"{root}/pretrain_gpt.py", "${arguments[@]}"]
    assert "/GIVE_JOBS_STAGE" not in script.replace(f"{root}/GIVE_JOBS_STAGE", "")
    assert "WORLD_SIZE=" not in script
    for words in arguments:
        assert f"  {shlex.join(words)}\n" in script


@pytest.mark.parametrize(
    ("version", "is_old"), [("0.10.3", True), ("0.14.0", True), ("0.15.4", False)]
)
def test_intels_packages_are_stood_in_for_where_an_old_deepspeed_wants_them(
    version, is_old, monkeypatch
):
    monkeypatch.setattr(sitecustomize.importlib.metadata, "version", lambda name: version)
    found = "intel_extension_for_pytorch" in sitecustomize.stand_ins()
    assert found == is_old


@pytest.mark.training
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("variable", "run", "phase", "ranks"), CHECKOUTS)
def test_the_pinned_checkout_trains_five_steps(variable, run, phase, ranks):
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} names no checkout (see the head of this file)")
    said = []
    found = start_upstream(run, [], phase=phase, checkout=Path(folder), say=said.append)
    assert found.works, "\n".join(said[-200:])
    assert found.ranks == ranks
    assert [record.iteration for record in found.log.records] == [1, 2, 3, 4, 5]
