"""The commands check, plan, why and render describe a run before anything is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from suite.messages import containing, says

from runbook import params
from runbook.core.errors import ParamsError
from runbook.params.messages import ParamsMessage
from runbook.params.schema.keys import all_keys
from runbook.params.unknown_keys import DOCUMENT_NAMES
from runbook.phases.key_explanation import why_text
from runbook.phases.messages import PhaseMessage
from runbook.phases.phase_steps import TOKENIZE
from runbook.phases.run_checks import run_checks
from runbook.planning import make_plan
from runbook.planning.messages import PlanningMessage
from runbook.runs import this_machine
from runbook.runs.run_files import write_plan_file
from runbook.runs.run_folder import runs_folder
from runbook.runs.step import write_mark
from runbook.tools.speed.messages import SpeedMessage

CLONE = Path(__file__).parents[2]
STAGE = ("jobs.stage=/stage", "jobs.account=project")
COMMANDS = {
    "check": ("check", "{run}"),
    "plan": ("plan", "{run}"),
    "why": ("why", "{run}", "training.iterations"),
    "render": ("render", "{run}", "--out", "rendered"),
    "run": ("run", "{run}", "--runs", "runs"),
}
BAD_FILES = {
    "empty": ("", "params/bad.yaml"),
    "only a comment": ("# nothing\n", "params/bad.yaml"),
    "not YAML": ("run: [bad\nmodel: tiny\n", "params/bad.yaml"),
    "a list": ("- run\n- bad\n", "params/bad.yaml"),
    "a word": ("bad\n", "params/bad.yaml"),
    "not text": ("\x00\x01", "params/bad.yaml"),
    "another name": (
        "run: other\nmodel: tiny\ntraining: {iterations: 3}\n",
        ParamsMessage.NOT_THE_FILES_NAME.fill(name="bad"),
    ),
    "an unknown key": (
        "run: bad\nmodel: tiny\ntraining: {iterations: 3, itertions: 4}\n",
        "training.iterations",
    ),
    "a key of the documents": (
        "run: bad\nmodel: tiny\ntraining: {iterations: 3}\nparallel: {mp_size: 2}\n",
        "parallel.tensor",
    ),
    "a wrong type": (
        "run: bad\nmodel: tiny\ntraining: {iterations: many}\n",
        "training.iterations",
    ),
    "an unknown model": ("run: bad\nmodel: tinny\ntraining: {iterations: 3}\n", "tiny"),
    "an unknown site": ("run: bad\nsite: lokal\nmodel: tiny\ntraining: {iterations: 3}\n", "local"),
    "no length": ("run: bad\nmodel: tiny\n", "give one of"),
    "a layout that does not fit": (
        "run: bad\nmodel: tiny\ntraining: {iterations: 3, global_batch: 3}\nparallel: {tensor: 3}\n",
        "parallel.tensor",
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_run_file_is_refused_by_every_command_and_nothing_is_written(
    runbook, project: Path, everything, name, command
):
    text, told = BAD_FILES[name]
    (project / "params" / "bad.yaml").write_text(text)
    before = everything()
    said = runbook(*(word.format(run="bad") for word in COMMANDS[command]))
    assert said.code == 2, said
    assert said.err.startswith("Error: ")
    assert told in said.err
    assert "Traceback" not in said.err
    assert said.out == ""
    assert everything() == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_that_is_not_there_is_answered_with_the_nearest(runbook, everything, command):
    before = everything()
    said = runbook(*(word.format(run="locl") for word in COMMANDS[command]))
    assert (said.code, said.out) == (2, "")
    assert says(
        said.err,
        ParamsMessage.NO_SUCH_RUN,
        word="locl",
        path="params/locl.yaml",
        hint=containing("Did you mean local?"),
    )
    assert everything() == before


def test_several_faults_are_told_at_once(runbook, project: Path):
    (project / "params/bad.yaml").write_text(
        "run: bad\nmodel: tinny\nsite: 3\ntraining: {iterations: x, lr: 1}\n"
    )
    err = runbook("check", "bad").err
    for key in ("model", "site", "training.iterations", "learning_rate"):
        assert key in err, key


def test_check_of_a_good_run_says_so_and_writes_nothing(runbook, everything):
    before = everything()
    said = runbook("check", "local")
    assert (said.code, said.err) == (0, "")
    assert said.out.endswith(f"local: {PhaseMessage.EVERYTHING_FITS.fill()}\n")
    assert "pass" in said.out
    assert everything() == before


@pytest.mark.parametrize(
    "files, verdict, value",
    [
        (None, "fail", ""),
        ({}, "fail", ""),
        ({"a.txt": ""}, "fail", "1 file"),
        ({"a.jsonl": " \n\n\t\r\n", "b.jsonl": ""}, "fail", "2 files"),
        ({"a.txt": "", "b.txt": "\n a text"}, "pass", "2 files"),
    ],
    ids=["no folder", "no file", "an empty file", "blank lines", "a text"],
)
def test_check_reads_the_folder_of_the_text(project: Path, runbook, files, verdict, value):
    folder = project / "texts"
    if files is not None:
        folder.mkdir()
    for name, content in (files or {}).items():
        (folder / name).write_text(content)
    _, checks = run_checks("local", [f"data.folder={folder}"])
    rule = PhaseMessage.FOLDER_IS_READABLE.fill()
    (check,) = [check for check in checks if check.rule == rule]
    assert check.verdict == verdict
    assert str(folder) in check.value and value in check.value
    said = runbook("check", "local", "--set", f"data.folder={folder}")
    assert said.code == (1 if verdict == "fail" else 0)
    broken = PhaseMessage.RULES_BROKEN.fill(number=1)
    assert (broken in said.out) == (verdict == "fail")


def test_a_text_that_was_tokenized_already_may_be_gone(project: Path):
    write_mark(runs_folder(project) / "local", TOKENIZE, 1, "abc", [])
    _, checks = run_checks("local", ["data.folder=/absent"])
    rule = PhaseMessage.FOLDER_IS_READABLE.fill()
    assert [check.verdict for check in checks if check.rule == rule] == ["warn"]


def test_check_reads_the_folder_that_the_catalogue_names(project: Path):
    with (project / "params/datasets.yaml").open("a") as catalogue:
        catalogue.write(
            'letters: {title: Ours, kind: local, folder: letters, pattern: "*.txt", '
            "licence: ours, source: test}\n"
        )
    set_words = ["data.dataset=letters"]
    rule = PhaseMessage.FOLDER_IS_READABLE.fill()

    def verdict_and_value() -> tuple[str, str]:
        _, checks = run_checks("local", set_words)
        (check,) = [check for check in checks if check.rule == rule]
        assert "letters" in check.name
        return check.verdict, check.value

    assert verdict_and_value()[0] == "fail"
    (project / "letters").mkdir()
    (project / "letters/a.txt").write_text("a text")
    verdict, value = verdict_and_value()
    assert verdict == "pass"
    assert "1 file" in value and str(project / "letters") in value


@pytest.fixture
def own_site(project: Path):
    """Return a function that writes params/sites/mine.yaml and params/mine.yaml for a cluster with
    40 GB A100s.
    """

    def write(run: str = "") -> None:
        (project / "params/sites/mine.yaml").write_text(
            "site: mine\ntitle: Ours\nscheduler: slurm\n"
            "hardware: {device: A100-40GB, devices_per_node: 4, cores_per_node: 64}\n"
            "queues: {gpu: {max_walltime: '04:00:00'}}\n"
        )
        training = "training: {iterations: 40, global_batch: 64, learning_rate: 2e-4}\n"
        (project / "params/mine.yaml").write_text(
            f"run: mine\nsite: mine\nmodel: 1.3b\n{training}{run}"
        )

    return write


def test_a_text_on_a_cluster_may_be_out_of_sight_of_this_machine(own_site):
    own_site()
    _, checks = run_checks("mine", ["data.folder=/absent"])
    rule = PhaseMessage.FOLDER_IS_READABLE.fill()
    assert [check.verdict for check in checks if check.rule == rule] == ["warn"]


def test_check_accepts_what_plan_and_render_accept_and_says_what_papermill_would_read(
    runbook, own_site
):
    own_site("jobs: {training: {partition: gpu, walltime: 02:00:00}}\n")
    for words in (("check", "mine"), ("plan", "mine"), ("render", "mine", "--out", "rendered")):
        said = runbook(*words)
        assert (said.code, said.err) == (0, ""), words
    out = " ".join(runbook("check", "mine").out.split())
    _, checks = run_checks("mine", ())
    (differing,) = [
        check for check in checks if check.rule == PhaseMessage.SAME_IN_BOTH_YAML.fill()
    ]
    assert differing.name.endswith("training.learning_rate")
    assert (differing.verdict, differing.value) == ("warn", "params/mine.yaml:4")
    assert f"{differing.name} ! warn {differing.value}" in out
    to_be_looked_at = PhaseMessage.TO_BE_LOOKED_AT.fill(number=2)
    assert f"mine: {PhaseMessage.NO_RULE_BROKEN.fill(open_parts=to_be_looked_at)}" in out


def test_check_warns_of_a_partition_and_fails_over_walltime_and_memory(runbook, own_site):
    own_site()
    wrong = runbook("check", "mine", "--set", "jobs.training.partition=gpus")
    assert wrong.code == 0
    assert says(
        " ".join(wrong.out.split()),
        PlanningMessage.QUEUE_NOT_LISTED,
        queue=containing("gpus"),
        site="mine",
    )
    long = runbook(
        "check",
        "mine",
        "--set",
        "jobs.training.partition=gpu",
        "--set",
        "jobs.training.walltime=04:00:01",
    )
    assert long.code == 2
    assert "Change jobs.training.walltime." in long.err
    large = runbook("check", "mine", "--set", "model=13b")
    assert large.code == 2
    assert PlanningMessage.MEMORY_AVAILABLE.fill(available="40.0 GiB") in large.err


def test_plan_shows_the_sizes_and_says_which_label_is_wrong(runbook):
    said = runbook("plan", "local")
    assert said.code == 0
    assert "64,633,856" in said.out
    assert '"375M"' in said.out or "375M" in said.out


def test_the_printed_plan_is_the_one_a_run_writes(runbook, project: Path):
    words = ("--set", "model=tiny", "--set", "training.iterations=7")
    said = runbook("plan", "local", "--json", *words)
    settings = params.load("local", set_words=words[1::2])
    write_plan_file(
        settings,
        make_plan(settings, this_machine.measure_machine(settings.site)),
        project / "runs" / "local",
    )
    assert said.out == (project / "runs" / "local" / "plan.json").read_text()
    assert json.loads(said.out)["phases"]["04-training"]["duration"]["iterations"] == 7


def test_why_shows_the_chain_of_origins_and_what_follows(runbook):
    said = runbook("why", "local", "training.global_batch", "--set", "training.global_batch=16")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].split(" = ") == ["training.global_batch", "16"]
    chain = [
        line.split()[0:2]
        for line in lines
        if line.endswith("built-in") or "params/local.yaml:" in line
    ]
    assert ["run", "file"] in chain
    assert says(
        next(line for line in lines if "--set training.global_batch=16" in line),
        ParamsMessage.THIS_ONE,
    )
    assert says(said.out, ParamsMessage.IN_THE_DOCUMENTS, documents=containing("GLOBAL_BATCH_SIZE"))
    assert says(
        said.out,
        PhaseMessage.PLAN_MAKES,
        origins=containing("--set training.global_batch=16"),
        derived=containing("1,600 sequences"),
    )


def test_why_answers_a_name_of_the_documents_and_the_nearest_of_ours(runbook):
    assert runbook("why", "local", "mp_size").out.startswith("parallel.tensor = 1\n")
    said = runbook("why", "local", "training.iteration")
    assert said.code == 2
    hint = PlanningMessage.DID_YOU_MEAN.fill(name="training.iterations")
    refusal = ParamsMessage.NO_SUCH_KEY.fill(key="training.iteration", hint=hint)
    assert said.err == f"Error: {refusal}\n"


def values_of(text: str) -> list[list[str]]:
    """Return the keys and values that `why` prints."""
    return [line.split(" = ") for line in text.splitlines()]


def test_why_explains_a_name_that_no_key_has_with_the_same_value():
    said = why_text("polaris-25b", "GAS", STAGE)
    assert said.splitlines()[0] == f"GAS: {DOCUMENT_NAMES['gas'].meaning}"
    assert ["training.global_batch", "1"] in values_of(said)
    assert ["training.micro_batch", "1"] in values_of(said)
    flash = why_text("polaris-25b", "USE_FLASH_ATTN_V2", STAGE)
    assert ["training.attention", "flash2"] in values_of(flash)
    assert ["model", "gpt25b"] in values_of(why_text("polaris-25b", "GPT25B", STAGE))
    nemo = why_text("azure-175b", "SQUASHED_NEMO_IMAGE", STAGE)
    assert nemo.startswith("SQUASHED_NEMO_IMAGE: No NeMo image is used")
    assert "jobs.image =" not in nemo


def test_why_says_the_models_own_number_where_the_shape_is_left_at_0():
    said = why_text("azure-175b", "NUM_LAYERS", STAGE)
    assert said.startswith("training.shape.layers = 0\n")
    assert said.endswith("the plan derives from it: 96, of model 175b")


@pytest.mark.parametrize("name", sorted(DOCUMENT_NAMES))
def test_set_answers_a_documents_name_with_what_to_write(name):
    explained = DOCUMENT_NAMES[name]
    assert set(explained.keys) <= all_keys().keys()
    with pytest.raises(ParamsError) as error:
        params.load("local", set_words=[f"{name.upper()}=1"], project=CLONE)
    assert says(
        str(error.value),
        ParamsMessage.NAME_OF_THE_DOCUMENTS,
        word=containing(name.upper()),
        meaning=containing(explained.meaning),
    )


def test_render_writes_what_would_be_submitted_and_nothing_else(runbook, project: Path, everything):
    before = everything()
    said = runbook("render", "local", "--out", project / "rendered")
    assert said.code == 0
    written = sorted(set(everything()) - set(before))
    assert {"rendered/run.yaml", "rendered/plan.json"} < set(written)
    for phase in ("03-smoke-test", "04-training"):
        assert f"rendered/jobs/{phase}/job.sh" in written
        arguments = json.loads((project / f"rendered/jobs/{phase}/arguments.json").read_text())
        assert "runbook.training" in arguments or any("plan.json" in word for word in arguments)
        assert (project / f"rendered/jobs/{phase}/job.sh").read_text().startswith("#!/")
    assert [str(project / name) for name in written] == said.out.split()
    assert not (project / "runs").exists()
    again = runbook("render", "local", "--out", project / "rendered")
    assert (again.code, again.out) == (0, said.out)


def test_a_bad_set_word_is_told_with_what_it_should_be(runbook, everything):
    before = everything()
    for word, told in {
        "training.iterations": "is not key=value, such as training.iterations=10",
        "training.iteratons=3": "training.iterations",
        "training.iterations=-3": "training.iterations",
        "run=other": ParamsMessage.NAME_OUTSIDE_RUN_FILE.value.partition(".")[0],
    }.items():
        for command in ("plan", "run"):
            said = runbook(command, "local", "--set", word)
            assert (said.code, said.out) == (2, ""), (word, said)
            assert told in said.err
    assert everything() == before


def test_explain_of_a_file_that_explains_nothing_ends_with_one(runbook, project):
    log = project / "empty.log"
    log.write_text("nothing here\n")
    assert runbook("explain", str(log)).code == 1


@pytest.mark.parametrize(
    "content", [b"", b"\n", bytes(range(256))], ids=["empty", "blank", "binary"]
)
def test_explain_refuses_a_file_without_text(runbook, project, content):
    log = project / "log"
    log.write_bytes(content)
    explained = runbook("explain", str(log))
    assert (explained.code, explained.out) == (1, "")
    assert says(explained.err, SpeedMessage.NO_TEXT, reason=containing(str(log)))


def test_explain_reads_a_log_and_takes_the_rest_from_a_run(runbook, project):
    log = project / "some.log"
    line = " iteration {}/ 9 | elapsed time per iteration (ms): 900000.0 | lm loss: 2.0E+00 |\n"
    log.write_text("".join(line.format(n) for n in range(1, 5)))
    explained = json.loads(runbook("explain", str(log), "lumi-13b", "--json").out)
    assert explained["reached"] == 900.0
    assert 0 < explained["expected"] <= explained["planned"] < 900
    assert explained["parts"][-1]["name"] == "unexplained"
    assert sum(part["seconds"] for part in explained["parts"]) == pytest.approx(explained["gap"])
    alone = runbook("explain", str(log)).out
    nothing = SpeedMessage.NOTHING_SAYS.fill()
    not_known = SpeedMessage.NOT_KNOWN.fill()
    assert SpeedMessage.EXPECTED.fill(source=nothing, seconds=not_known) in alone.splitlines()
    assert (
        SpeedMessage.REACHED.fill(seconds=SpeedMessage.SECONDS_A_STEP.fill(seconds=900))
        in alone.splitlines()
    )
    assert says(alone, SpeedMessage.NOT_SAID, words=containing("accelerator=H100-SXM5"))
    wrong = runbook("explain", str(log), "--set", "micro_batches=2")
    assert (wrong.code, "Nearest: micro_batch" in wrong.err) == (2, True)


def test_why_of_a_key_of_the_site_file_says_where_such_keys_are_listed(runbook):
    said = runbook("why", "local", "hardware.device")
    assert said.code == 2
    assert "keys of a site file" in said.err
