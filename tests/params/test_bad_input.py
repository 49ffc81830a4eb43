"""All problems are reported together, each with the key, the value, where it is, the rule, and the
nearest valid name.
"""

from pathlib import Path

import pytest
from suite.messages import (
    assert_about,
    containing,
    has_problem,
    has_rule,
    is_value,
    problem_of,
    refuses,
    says,
)

from runbook.core.errors import ParamsError
from runbook.params import load
from runbook.params.messages import ParamsMessage
from runbook.params.problems import InvalidParams
from runbook.params.project import find_run_file


def refused(project: Path, text_or_name: str, words=(), write=None) -> ParamsError:
    """Load a run that cannot be used, and return the error."""
    name = write(text_or_name) if write else text_or_name
    with pytest.raises(ParamsError) as error:
        load(name, project=project, set_words=list(words))
    assert error.value.exit_code == 2
    return error.value


def told(project: Path, text_or_name: str, words=(), write=None) -> str:
    """Load a run that cannot be used, and return the error text."""
    return str(refused(project, text_or_name, words, write))


def test_all_faults_of_all_layers_come_in_one_list(project: Path, write):
    (project / "params/sites/local.yaml").write_text(
        "site: local\ntitle: x\nscheduler: local\nhardware: {device: cpu, devices_per_node: 2}\n"
        "defaults:\n  traning: {seed: 1}\n"
    )
    text = (
        "run: mine\nmodel: tyni\nparallel:\n  mp_size: 2\n  tenser: 3\n"
        "training:\n  iterations: 3\n  precision: bf17\n  micro_batch: 0\ndata: {dataset: corps}\n"
    )
    error = refused(project, text, ["training.seed=x", "jobs.smoke.nodes=1.5"], write)
    assert isinstance(error, InvalidParams)
    mine = "params/mine.yaml"
    site = "params/sites/local.yaml"
    assert [(problem.key, problem.where, problem.value) for problem in error.problems] == [
        ("traning", f"{site}:6", ...),
        ("parallel.mp_size", f"{mine}:4", 2),
        ("parallel.tenser", f"{mine}:5", 3),
        ("training.precision", f"{mine}:8", "bf17"),
        ("training.micro_batch", f"{mine}:9", 0),
        ("training.seed", "--set training.seed=x", "x"),
        ("jobs.smoke.nodes", "--set jobs.smoke.nodes=1.5", 1.5),
        ("model", f"{mine}:2", "tyni"),
        ("data.dataset", f"{mine}:10", "corps"),
    ]
    rules = (
        ParamsMessage.UNKNOWN_KEY.of(near="training"),
        ParamsMessage.OTHER_NAME_OF_THE_DOCUMENTS.of(word="mp_size", ours="parallel.tensor"),
        ParamsMessage.UNKNOWN_KEY.of(near="parallel.tensor"),
        ParamsMessage.NEARLY_A_WORD.of(text=containing("fp32", "fp16", "bf16"), near="bf16"),
        None,
        ParamsMessage.TEXT_NOT_A_NUMBER.of(value="x", hint=""),
        None,
        ParamsMessage.NO_SUCH_NAME.of(
            where="params/models.yaml", name="tyni", suggestion=containing("tiny?")
        ),
        ParamsMessage.NO_SUCH_NAME.of(
            where="params/datasets.yaml", name="corps", suggestion=containing("corpus?")
        ),
    )
    for problem, rule in zip(error.problems, rules, strict=True):
        # The texts about ranges and types come from pydantic.
        assert rule is None or has_rule(problem, rule.message, **rule.values), problem
    assert is_value(error.problems[4].rule, containing("greater", 0))
    assert is_value(error.problems[6].rule, containing("integer", "fractional"))
    head, *lines = str(error).splitlines()
    assert says(head, ParamsMessage.MANY_THINGS, number=9)
    numbered = [f"  {number}. {problem.text()}" for number, problem in enumerate(error.problems, 1)]
    assert lines == numbered


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        (
            "MPSIZE=2",
            ParamsMessage.OTHER_NAME_OF_THE_DOCUMENTS.fill(word="MPSIZE", ours="parallel.tensor"),
        ),
        ("TENSOR_MODEL_PARALLEL_SIZE=8", "here it is called parallel.tensor."),
        ("--tensor-model-parallel-size=8", "here it is called parallel.tensor."),
        (
            "training.lr=1",
            ParamsMessage.OTHER_NAME_OF_THE_DOCUMENTS.fill(
                word="lr", ours="training.learning_rate"
            ),
        ),
        ("CHUNKS=15", "here it is called data.held_out."),
        ("NNODES=4", "here it is called jobs.<phase>.nodes."),
        ("jobs.smoke.time=4", "here it is called jobs.smoke.walltime."),
        ("Training.seed=1", "Did you mean training.seed?"),
        ("iterations=1", "Did you mean training.iterations or training.smoke.iterations?"),
        ("training.tensor=2", "Did you mean parallel.tensor or training.smoke.tensor?"),
        ("training.learning_rat=1", "Did you mean training.learning_rate?"),
        ("parallell={tensor: 2}", "Did you mean parallel?"),
        (
            "zzzz=1",
            "there is no such key. A run file has the keys run, site, model, data, parallel, "
            "training, jobs.",
        ),
        ("jobs.smok.nodes=1", "'smok' is not a phase; the phases are 00-plan"),
        (
            "jobs.partition=gpu",
            ParamsMessage.KEY_OF_ANOTHER_PHASE.fill(right_key="jobs.training.partition"),
        ),
        (
            "jobs.walltme=1h",
            ParamsMessage.KEY_OF_ANOTHER_PHASE.fill(right_key="jobs.training.walltime"),
        ),
        (
            "jobs.PARTITION=gpu",
            ParamsMessage.KEY_OF_ANOTHER_PHASE.fill(right_key="jobs.training.partition"),
        ),
        ("jobs.stge=/scratch", "there is no such key. Did you mean jobs.stage?"),
        (
            "jobs.plan.nodes=1",
            "00-plan submits no job; jobs has environment, data, smoke, training.",
        ),
        ("nonsense", "nonsense (--set): is not key=value, such as training.iterations=10."),
        (
            "training=fast",
            "training = fast (--set training=fast): is a section: write its keys below it (engine,",
        ),
        ("training={a", "is not YAML"),
        (
            "data.append_eod=yes",
            "data.append_eod = yes (--set data.append_eod=yes): must be true or false.",
        ),
        ("data.split=1", 'must look like "949,50,1".'),
        ("training.learning_rate=0", "must be greater than 0."),
        ("training.learning_rate=.nan", "must be"),
        ("training.warmup_fraction=1.5", "must be less than or equal to 1."),
        (
            "training.warmup_fraction=10%",
            "'10%' is text, not a number: write 0.1 (a fraction of 1).",
        ),
        ("training.dropout=2.5 %", "write 0.025 (a fraction of 1)."),
        ("jobs.smoke.nodes=1,000", "'1,000' is text, not a number; write 1000."),
        ("jobs.smoke.nodes=4x", "'4x' is text, not a number."),
        ("data.dataset=/text/mine.jsonl", "data.folder=/text to train on the files in that"),
        ("data.dataset=my/text/", "data.folder=my/text/ to train on the files in that folder."),
        ("training.adam_beta1=1", "must be less than 1."),
        ("training.dropout=1.0", "must be less than 1."),
        ("training.seed=4294967296", "must be less than or equal to 4294967295."),
        ("parallel.zero_stage=4", "must be less than or equal to 3."),
        ("training.tokens=3X", "'3X' is not a count such as 300B, 1.5M or 12000."),
        ("jobs.smoke.walltime=00:99:00", "'00:99:00' has more than 59 minutes or seconds."),
        ("model=../x", "'../x' is not a name"),
        ("site=params/sites/lumi.yaml", "or digit, at most 80. Write lumi."),
        (
            "training.smoke.model=../x",
            "training.smoke.model = ../x (--set training.smoke.model=../x): is not the name of",
        ),
        ("training.tokens=1e30", "must be less than or equal to 1000000000000000000."),
        (
            "training.epochs=3",
            "training has the keys engine, framework, precision, fp8, iterations, samples, tokens,",
        ),
        ("site=lokal", "params/sites has no lokal. Did you mean local?"),
        ("run=else", ParamsMessage.NAME_OUTSIDE_RUN_FILE.value),
        (
            "training.smoke.model=13",
            'training.smoke.model = "13" (--set training.smoke.model=13): params/models.yaml has no',
        ),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_one(project: Path, word, answer):
    assert answer in told(project, "toy", [word])


HEAD = "run: mine\nmodel: tiny\n"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (
            "model: tiny\nrun: mine\ntraining: {iterations: 3}\n",
            "must be the first key of a run file.",
        ),
        (
            "run: yours\nmodel: tiny\n",
            "run = yours (params/mine.yaml:1): "
            + ParamsMessage.NOT_THE_FILES_NAME.fill(name="mine"),
        ),
        ("model: tiny\ntraining: {iterations: 3}\n", "run (params/mine.yaml): must be mine"),
        ("run: mine\n", "model (params/mine.yaml): " + ParamsMessage.MODEL_MISSING.value),
        (HEAD, "the length of the training run is missing: give one of training.iterations,"),
        (
            HEAD + "training: 3\n",
            "training = 3 (params/mine.yaml:3): is a section: write its keys below it",
        ),
        (
            "run: mine\nmodel: [a]\n",
            "model = [a] (params/mine.yaml:2): " + ParamsMessage.ONE_VALUE.value,
        ),
        (
            HEAD + "training: {seed: ~, tokens: 3B}\n",
            "training.seed (params/mine.yaml:3): has no value.",
        ),
        ("run: mine\nmodel: 12\n", 'must be text. Put it in quotes: "12".'),
        (HEAD + "training: {seed: '12'}\n", "'12' is text, not a number; write it without quotes."),
        (HEAD + "site: 3\n", "site = 3 (params/mine.yaml:3): must be text"),
        (HEAD + "training: {iterations: true}\n", "training.iterations = true"),
        (
            HEAD + "jobs: {smoke: {}, '3': {nodes: 2}}\n",
            "jobs.3 (params/mine.yaml:3): means the same as smoke",
        ),
        (
            HEAD + "training.seed: 3\n",
            ParamsMessage.DOT_IN_KEY.fill(last="seed", section="training"),
        ),
    ],
)
def test_a_wrong_run_file_is_told_by_line(project: Path, write, text, answer):
    assert answer in told(project, text, (), write)


def test_a_wrong_value_is_told_even_where_a_higher_layer_covers_it(project: Path, write):
    text = "run: mine\nmodel: tiny\ntraining: {iterations: 3, seed: -1}\n"
    problem = problem_of(refused(project, text, ["training.seed=3"], write), "training.seed")
    assert (problem.value, problem.where) == (-1, "params/mine.yaml:3")
    assert has_rule(problem, ParamsMessage.BROKEN_RULE, kind="greater_than_equal", ge=0)


def test_wrong_names_of_runs_and_variants_list_the_nearest(project: Path, monkeypatch):
    no_such_run = ParamsMessage.NO_SUCH_RUN
    error = refused(project, "tiy")
    path = "params/tiy.yaml"
    assert_about(error, no_such_run, word="tiy", path=path, hint="Did you mean toy?")
    assert_about(refused(project, "zzz"), no_such_run, hint=containing("other, toy"))
    assert_about(refused(project, ""), ParamsMessage.NO_RUN_NAMED)
    error = refused(project, "toy:wid")
    values = {
        "where": "params/variants/toy.yaml",
        "name": "wid",
        "suggestion": "Did you mean wide?",
    }
    assert has_rule(error.problems[0], ParamsMessage.NO_SUCH_NAME, **values)
    assert says(told(project, "other:wide"), ParamsMessage.RUN_WITHOUT_VARIANTS)
    other_file = "notes.txt"
    (project / other_file).write_text("not a run")
    monkeypatch.chdir(project)
    for word in (other_file, f"./{other_file}"):
        assert_about(refused(project, word), ParamsMessage.NOT_A_RUN_FILE, word=word)
    # `runbook run toy-1.3b >toy-1.3b` creates a file that is named like the run.
    (project / "params/toy-1.3b.yaml").write_text("run: toy")
    (project / "toy-1.3b").touch()
    run_file = find_run_file("toy-1.3b", project)
    assert run_file.path == project / "params/toy-1.3b.yaml"
    (project / "params/toy-1.3b.yaml").unlink()
    assert_about(
        refused(project, str(project / "params/tuy.yaml")),
        ParamsMessage.NO_SUCH_RUN_FILE,
        suggestion=f" Did you mean {project}/params/toy.yaml or {project}/params/other.yaml?",
    )
    for word in ("tuy.yaml", "params/tuy.yaml"):
        assert_about(
            refused(project, word),
            ParamsMessage.NO_SUCH_RUN_FILE,
            suggestion=" Did you mean params/toy.yaml or params/other.yaml?",
        )
    assert_about(refused(project, "models"), no_such_run, word="models")


def test_a_run_file_is_found_by_its_file_name(project: Path):
    assert load("toy.yaml", project=project).name == "toy"
    assert load("toy.yaml:wide", project=project).name == "toy--wide"


def test_a_run_file_that_links_to_itself_is_refused(project: Path):
    link = project / "params" / "loop.yaml"
    link.symlink_to(link.name)
    refused(project, "loop")


def test_variants_keep_the_runs_name_and_must_be_mappings(project: Path):
    (project / "params/variants/toy.yaml").write_text("a: {run: x}\nb: 3\nc:\n")
    assert says(told(project, "toy:a"), ParamsMessage.NAME_OUTSIDE_RUN_FILE)
    problem = problem_of(refused(project, "toy:b"), "variant")
    assert (problem.value, problem.where) == (3, "params/variants/toy.yaml:2")
    assert has_rule(problem, ParamsMessage.NOT_A_MAPPING)
    assert load("toy:c", project=project).name == "toy--c"


def test_a_broken_site_file_is_told_with_its_faults(project: Path):
    site = project / "params/sites/local.yaml"
    site.write_text(
        "site: lokal\ntitle: x\nscheduler: local\nhardware: {device: cpu, devices_per_node: 2}\n"
    )
    problem = problem_of(refused(project, "toy"), "site")
    assert (problem.value, problem.where) == ("lokal", "params/sites/local.yaml:1")
    assert has_rule(problem, ParamsMessage.NOT_THE_FILES_NAME, name="local")
    site.write_text("site: local\ntitle: x\nscheduler: lsf\nhardwear: {}\n")
    error = refused(project, "toy")
    scheduler = problem_of(error, "scheduler")
    assert (scheduler.value, scheduler.where) == ("lsf", "params/sites/local.yaml:3")
    kind = {"kind": "literal_error", "expected": "'local', 'slurm' or 'pbs'"}
    assert has_rule(scheduler, ParamsMessage.BROKEN_RULE, **kind)
    unknown_key = ParamsMessage.UNKNOWN_KEY
    assert has_problem(error, "params/sites/local.yaml:4", "hardwear", unknown_key, near="hardware")
    without_default = ParamsMessage.WITHOUT_DEFAULT
    assert has_problem(error, "params/sites/local.yaml", "hardware", without_default)
    site.write_text(
        "site: local\ntitle: x\nscheduler: local\nhardware: {device: cpu, devices_per_node: 2}\n"
        "defaults: {run: x, model: tiny}\n"
    )
    error = refused(project, "toy")
    not_a_default = ParamsMessage.NOT_A_DEFAULT
    assert has_problem(error, "params/sites/local.yaml:5", "defaults.run", not_a_default)


def test_a_broken_catalogue_entry_is_told_only_when_it_is_used(project: Path):
    with (project / "params/models.yaml").open("a") as models:
        models.write("bad: {label: x, layers: 0, hidden: 8, heads: 2, source: test}\n")
    assert load("toy", project=project)
    problem = problem_of(refused(project, "toy", ["model=bad"]), "bad.layers")
    assert (problem.value, problem.where) == (0, "params/models.yaml:4")
    assert has_rule(problem, ParamsMessage.BROKEN_RULE, kind="greater_than", gt=0)


def test_no_smoke_model_can_be_chosen_from_a_catalogue_without_it(project: Path):
    (project / "params/models.yaml").write_text(
        "tiny: {label: t, layers: 1, hidden: 8, heads: 1, source: test}\n"
    )
    problem = problem_of(refused(project, "toy"), "training.smoke.model")
    assert (problem.value, problem.where) == ("375m", "built-in")
    values = {"where": "params/models.yaml", "name": "375m"}
    assert has_rule(problem, ParamsMessage.NO_SUCH_NAME, **values)


def test_check_refuses_what_papermill_reads_otherwise(project: Path, write):
    assert load("toy", project=project)
    with pytest.raises(ParamsError) as error:
        load("toy", project=project, portable=True)
    assert len(error.value.problems) == 2
    rate = ParamsMessage.READINGS.fill(
        word="6e-5",
        old=ParamsMessage.READ_AS_TEXT.fill(text="6e-5"),
        new=ParamsMessage.READ_AS_NUMBER.fill(value="6.0e-5"),
    )
    walltime = ParamsMessage.READINGS.fill(
        word="12:00:00",
        old=ParamsMessage.READ_AS_NUMBER.fill(value=43200),
        new=ParamsMessage.READ_AS_TEXT.fill(text="12:00:00"),
    )
    differ = ParamsMessage.YAML_VERSIONS_DIFFER
    values = {"readings": rate, "remedy": "6.0e-5"}
    key = "training.learning_rate"
    assert has_problem(error.value, "params/toy.yaml:6", key, differ, **values)
    values = {"readings": walltime, "remedy": '"12:00:00"'}
    key = "jobs.training.walltime"
    assert has_problem(error.value, "params/toy.yaml:13", key, differ, **values)
    name = write(
        "run: mine\nmodel: tiny\ntraining: {iterations: 3, learning_rate: 6.0e-5}\njobs: {4: {walltime: '12:00:00'}}\n"
    )
    assert load(name, project=project, portable=True).run.training.learning_rate == 6e-5


@pytest.mark.parametrize("key", ["site", "model", "data.dataset"])
def test_what_is_no_name_is_told_once_and_never_looked_up(project: Path, key):
    text = told(project, "toy", [f"{key}=../../secret"])
    assert text.startswith(
        f"Parameters of run toy: {key} = ../../secret (--set {key}=../../secret): '../../secret' is "
    )
    assert text.count("(--set") == 1


def test_a_site_file_in_place_of_a_run_file_is_named(project: Path):
    with refuses(ParamsError, ParamsMessage.SITE_FILE_NAMED, where=containing("sites/local.yaml")):
        load(str(project / "params/sites/local.yaml"), project=project)


@pytest.mark.parametrize("written", ["toy", "größe 1"])
def test_a_file_whose_name_cannot_name_a_run_is_told_a_name_that_can(project: Path, written):
    """Before this, one message asked for the name of the file, and the next one refused it."""
    text = (project / "params/toy.yaml").read_text()
    file = project / "params/größe 1.yaml"
    file.write_text(text.replace("run: toy", f"run: {written}"))
    error = refused(project, "größe 1")
    values = {"file": "größe 1.yaml", "suggested": "grosse-1"}
    where = "params/größe 1.yaml:1"
    assert has_problem(error, where, "run", ParamsMessage.NOT_A_FILE_NAME, **values)
    (project / "params/grosse-1.yaml").write_text(text.replace("run: toy", "run: grosse-1"))
    assert load("grosse-1", project=project).name == "grosse-1"
