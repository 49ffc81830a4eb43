"""The same values result in the same run, however the parameters cell in a notebook was filled in."""

import json
import shlex
from pathlib import Path

import pytest
import yaml
from suite.messages import assert_about, containing, has_rule, problem_of, refuses

from runbook.core.errors import ParamsError
from runbook.params import PARAMETERS, bind, load
from runbook.params.layers import Origin
from runbook.params.messages import ParamsMessage
from runbook.params.parameters_cell import (
    hand_edits,
    refuse_edits_below_papermill,
    refuse_hand_edits,
)
from runbook.params.problems import PapermillLoader
from runbook.params.secrets import mask


def cell(**given):
    """Return the names in the parameters cell after papermill has injected `given`."""
    return {**PARAMETERS, **given}


def as_papermill_injects(path: Path):
    """Return what `papermill -f` writes into the cell, read without our own code: text keys, YAML
    1.1 values.
    """

    def keys(value):
        if isinstance(value, dict):
            return {str(key): keys(item) for key, item in value.items()}
        return value

    return keys(yaml.load(path.read_text(), Loader=PapermillLoader))


def equal(one, other):
    return (one.run, one.as_yaml(), one.parameters(), one.origins) == (
        other.run,
        other.as_yaml(),
        other.parameters(),
        other.origins,
    )


@pytest.fixture
def samples_of_masters() -> list[Path]:
    """Return the master notebooks in the repository."""
    return sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("name", ["toy", "other"])
def test_three_ways_of_naming_a_run_are_equal(project: Path, name):
    by_command = load(name, project=project)
    by_parameter = bind(cell(run=name), project=project)
    by_file = bind(
        cell(**as_papermill_injects(project / "params" / f"{name}.yaml")), project=project
    )
    assert equal(by_command, by_parameter)
    assert equal(by_command, by_file)


def test_papermill_reads_the_toy_file_otherwise_and_it_does_not_matter(project: Path):
    injected = as_papermill_injects(project / "params/toy.yaml")
    assert injected["jobs"]["training"]["walltime"] == 43200
    assert injected["training"]["learning_rate"] == "6e-5"
    settings = bind(cell(**injected), project=project)
    assert settings.run.training.learning_rate == 6e-5
    assert settings.origins["jobs.training.walltime"][-1].where == "params/toy.yaml:13"


def test_numbered_phases_arrive_as_text_keys_and_are_still_the_files_own(project: Path, write):
    write("run: mine\nmodel: tiny\ntraining: {iterations: 1}\njobs:\n  3: {nodes: 2}\n")
    injected = as_papermill_injects(project / "params/mine.yaml")
    assert injected["jobs"] == {"3": {"nodes": 2}}
    settings = bind(cell(**injected), project=project)
    assert settings.origins["jobs.smoke.nodes"][-1].layer == "run file"


def test_a_section_left_empty_in_the_file_arrives_as_none(project: Path, write):
    write("run: mine\nmodel: tiny\ntraining: {iterations: 1}\ndata:\n")
    assert (
        bind(cell(**as_papermill_injects(project / "params/mine.yaml")), project=project).name
        == "mine"
    )


def test_what_is_given_in_the_notebook_wins_over_the_file(project: Path):
    settings = bind(
        cell(
            run="toy", site="big", model="13b", training={"iterations": 10, "learning_rate": "3e-4"}
        ),
        project=project,
    )
    assert (settings.site.site, settings.model.label) == ("big", "13B")
    assert (settings.run.training.iterations, settings.run.training.tokens) == (10, 0)
    assert settings.run.training.learning_rate == 3e-4  # papermill -y leaves it as text
    origin = Origin("notebook", "notebook model", "13b")
    assert settings.parameters()["model"]["origin"] == str(origin)


def test_overrides_are_the_words_of_set(project: Path):
    words = ["training.iterations=10", "training.sample_prompt=Once upon"]
    in_notebook = bind(
        cell(run="toy", overrides="training.iterations=10 'training.sample_prompt=Once upon'"),
        project=project,
    )
    assert equal(in_notebook, load("toy", project=project, set_words=words))


def test_a_file_with_one_section_replaced_by_hand(project: Path):
    injected = as_papermill_injects(project / "params/other.yaml") | {"training": {"iterations": 7}}
    settings = bind(cell(**injected), project=project)
    assert settings.run.training.iterations == 7
    assert (
        settings.run.training.global_batch == 64
    )  # the value in the file, because the rest of the section is unchanged
    assert settings.origins["parallel.tensor"][-1].layer == "run file"


@pytest.mark.parametrize(
    "text", ['{"iterations": 10, "learning_rate": 3e-4}', "{iterations: 10, learning_rate: 3e-4}"]
)
def test_a_mapping_given_as_text_is_read(project: Path, text):
    """Papermill passes text for a mapping, as in `papermill -p training '{...}'`."""
    as_dict = bind(
        cell(run="toy", training={"iterations": 10, "learning_rate": 3e-4}), project=project
    )
    assert equal(bind(cell(run="toy", training=text), project=project), as_dict)
    assert equal(
        bind(cell(run="toy", training=""), project=project), bind(cell(run="toy"), project=project)
    )


@pytest.mark.parametrize("text", ["10", "[1, 2]", "{iterations", "iterations: 10"])
def test_text_that_is_no_mapping_is_refused_with_an_example(project: Path, text):
    with pytest.raises(ParamsError) as error:
        bind(cell(run="toy", training=text), project=project)
    problem = problem_of(error.value, "training")
    assert has_rule(
        problem, ParamsMessage.NOTEBOOK_TYPE, kind="a dict", example='{"iterations": 10}'
    )


CELL = """\
run: str = "mine"  # any run
site: str = ""
model: str = ""
data: dict = {}
parallel: dict = {}
training: dict = {"iterations": 30, "shape": {"layers": 2}}  # quick
jobs: dict = {}
overrides: str = "training.seed=7 'training.sample_prompt=Once upon'"
"""


def test_values_written_into_the_cell_by_hand_are_named_with_what_to_do():
    training = {"iterations": 30, "shape": {"layers": 2}}
    overrides = "training.seed=7 'training.sample_prompt=Once upon'"
    words = [
        "training.iterations=30",
        "training.shape.layers=2",
        "training.seed=7",
        "training.sample_prompt=Once upon",
    ]
    with refuses(
        ParamsError,
        ParamsMessage.CELL_CHANGED_BY_HAND,
        notebook="notebooks/00-plan.ipynb",
        shown_edits=f"training = {training!r}, overrides = {overrides!r}",
        option_words=" ".join(f"--set {shlex.quote(word)}" for word in words),
    ):
        refuse_hand_edits(CELL, "notebooks/00-plan.ipynb")


def test_a_cell_at_its_defaults_or_below_what_papermill_was_given_is_nobodys_edit(
    samples_of_masters,
):
    refuse_hand_edits(CELL, "x.ipynb", ["training", "overrides"])
    for path in samples_of_masters:
        cells = json.loads(path.read_text())["cells"]
        (source,) = [
            "".join(one["source"])
            for one in cells
            if "parameters" in one["metadata"].get("tags", [])
        ]
        assert hand_edits(source) == {}
    cell = "training: dict = other\nmodel = ''"
    assert hand_edits(cell) == {"training": "other"}


def test_inside_a_kernel_only_papermills_own_cell_shows_that_nobody_sits_there():
    by_papermill = {
        "In": [
            "",
            CELL,
            '# Parameters\nrun = "toy"\n',
            "from runbook.phases.p00_plan import phase as phase",
        ]
    }
    with refuses(
        ParamsError, ParamsMessage.CELL_CHANGED_BY_HAND, notebook="notebooks/04-training.ipynb"
    ):
        refuse_edits_below_papermill(by_papermill, "notebooks/04-training.ipynb")
    refuse_edits_below_papermill(
        {"In": ["", CELL, "from runbook.phases.p00_plan import phase as phase"]}, "x.ipynb"
    )
    given = '# Parameters\ntraining = {"iterations": 4}\noverrides = ""\n'
    refuse_edits_below_papermill({"In": ["", CELL, given]}, "x.ipynb")
    refuse_edits_below_papermill({}, "x.ipynb")


def test_a_variant_is_named_in_the_cell_too(project: Path):
    assert bind(cell(run="toy:wide"), project=project).name == "toy--wide"


def test_two_runs_mixed_are_refused(project: Path):
    injected = as_papermill_injects(project / "params/other.yaml") | {"run": "toy"}
    with refuses(
        ParamsError,
        ParamsMessage.TWO_RUNS_MIXED,
        run="toy",
        stem="toy",
        foreign="site, model, parallel, training, jobs",
        verb=containing("are"),
        where="params/other.yaml",
    ):
        bind(cell(**injected), project=project)


def test_two_runs_mixed_are_seen_behind_one_more_override(project: Path):
    injected = as_papermill_injects(project / "params/other.yaml") | {
        "run": "toy",
        "training": {"iterations": 3},
    }
    with refuses(
        ParamsError,
        ParamsMessage.TWO_RUNS_MIXED,
        run="toy",
        foreign="site, model, parallel, jobs",
        verb=containing("are"),
    ):
        bind(cell(**injected), project=project)


def test_a_choice_that_another_run_happens_to_share_is_no_mixture(project: Path):
    settings = bind(cell(run="toy", model="13b", parallel={"tensor": 4}), project=project)
    assert settings.run.parallel.tensor == 4


def test_a_broken_neighbour_does_not_stop_a_run(project: Path, write):
    write("a: [", "broken")
    write("a: " + "[" * 5000, "deep")
    assert bind(cell(run="toy", model="13b"), project=project).model.label == "13B"


def test_ill_typed_names_are_told_together(project: Path):
    with pytest.raises(ParamsError) as error:
        bind(
            cell(run="toy", site=4, data="corpus", overrides="a 'b", training={"precision": False}),
            project=project,
        )
    given = [(problem.key, problem.value, problem.where) for problem in error.value.problems]
    assert given == [
        ("site", 4, "notebook"),
        ("data", "corpus", "notebook"),
        ("overrides", "a 'b", "notebook"),
        ("training.precision", False, "notebook training"),
    ]
    site, data, overrides, precision = error.value.problems
    notebook_type = ParamsMessage.NOTEBOOK_TYPE
    assert has_rule(site, notebook_type, name="site", kind="text", example='"local"')
    values = {"name": "data", "kind": "a dict", "example": '{"dataset": "corpus"}'}
    assert has_rule(data, notebook_type, **values)
    assert has_rule(overrides, ParamsMessage.NOT_SHELL_WORDS, error="No closing quotation")
    expected = containing("fp32", "fp16", "bf16")
    values = {"kind": "literal_error", "expected": expected}
    assert has_rule(precision, ParamsMessage.BROKEN_RULE, **values)
    assert_about(
        error.value,
        ParamsMessage.INVALID_PARAMS,
        title=containing("toy"),
        head=ParamsMessage.MANY_THINGS.fill(number=4),
    )
    with pytest.raises(ParamsError) as error:
        bind(cell(run=3), project=project)
    problem = problem_of(error.value, "run")
    assert (problem.value, problem.where) == (3, "notebook")
    assert has_rule(problem, ParamsMessage.NOTEBOOK_TYPE, kind="text", example='"local"')


def test_true_is_not_one(project: Path, write):
    write("run: mine\nmodel: tiny\ntraining: {iterations: 1}\nparallel: {sequence: true}\n")
    with pytest.raises(ParamsError) as error:
        bind(cell(run="mine", parallel={"sequence": 1}), project=project)
    problem = problem_of(error.value, "parallel.sequence")
    assert (problem.value, problem.where) == (1, "notebook parallel")
    assert has_rule(problem, ParamsMessage.NOT_A_TRUTH_VALUE)


def test_a_name_that_papermill_only_warns_of_stops_us(project: Path):
    history = [
        "",
        "run: str = 'local'",
        '# Parameters\nrun = "toy"\nmodle = "13b"\nlrr = 3\n',
        "bind(globals())",
    ]
    with pytest.raises(ParamsError) as error:
        bind(cell(run="toy", In=history, modle="13b", lrr=3), project=project)
    assert [problem.key for problem in error.value.problems] == ["modle", "lrr"]
    nearly, unknown = error.value.problems
    assert (nearly.value, nearly.where) == ("13b", "papermill")
    assert has_rule(nearly, ParamsMessage.UNKNOWN_PARAMETER, hint=containing("model?"))
    assert (unknown.value, unknown.where) == (3, "papermill")
    names = "run, site, model, data, parallel, training, jobs, overrides"
    assert has_rule(unknown, ParamsMessage.UNKNOWN_PARAMETER, hint=containing(names))


def test_values_from_before_a_syntax_error_in_the_parameters_cell_are_refused(project: Path):
    good = "run: str = 'toy'\ntraining: dict = {'iterations': 3}"
    broken = "run: str = 'toy'\ntraining: dict = {'iterations': 4,,}"
    variables = cell(run="toy", In=["", good, broken], training={"iterations": 3})
    with pytest.raises(ParamsError) as error:
        bind(variables, project=project)
    problem = problem_of(error.value, "parameters")
    assert has_rule(problem, ParamsMessage.PARAMETERS_CELL_NOT_RUN, line=2)
    variables["In"].append(good)
    assert bind(variables, project=project).run.training.iterations == 3


def test_a_kernel_without_the_parameters_cell_does_not_take_the_default_run(project: Path):
    with pytest.raises(ParamsError) as error:
        bind({"In": ["", "bind(globals())"]}, project=project)
    assert has_rule(problem_of(error.value, "run"), ParamsMessage.PARAMETERS_CELL_SKIPPED)

    broken = "run: str = 'toy'\ntraining: dict = {'iterations': 4,,}"
    with pytest.raises(ParamsError) as error:
        bind({"In": ["", broken, "bind(globals())"]}, project=project)
    problem = problem_of(error.value, "parameters")
    assert has_rule(problem, ParamsMessage.PARAMETERS_CELL_NOT_RUN, line=2)


def test_papermills_own_paths_and_other_variables_are_no_parameters(project: Path):
    history = [
        "# Parameters\nPAPERMILL_INPUT_PATH = 'a'\nPAPERMILL_OUTPUT_PATH = 'b'\n",
        "rows = 3",
        "# Parameters\nx = (",
    ]
    assert bind(cell(run="toy", In=history, rows=3), project=project).name == "toy"


PARAMETERS_CELL = "\n".join(f"{name} = {default!r}" for name, default in PARAMETERS.items())


def test_a_name_in_the_parameters_cell_that_no_notebook_has_is_refused(project: Path):
    history = ["", f"{PARAMETERS_CELL}\ntrainig = {{'iterations': 3}}", "bind(globals())"]
    namespace = cell(run="toy", In=history, trainig={"iterations": 3})
    with pytest.raises(ParamsError) as error:
        bind(namespace, project=project)
    (problem,) = error.value.problems
    assert (problem.key, problem.where) == ("trainig", "notebook")
    assert has_rule(problem, ParamsMessage.UNKNOWN_PARAMETER, hint=containing("training?"))


@pytest.mark.parametrize(
    "history",
    [
        [f"steps = 3\n{PARAMETERS_CELL}\ntraining = {{'iterations': steps}}"],
        [f"{PARAMETERS_CELL}\ntrainig = 3", PARAMETERS_CELL],
        ["run = 'toy'\nsteps = 3"],
        [PARAMETERS_CELL, "steps = 3"],
    ],
    ids=["read in the cell", "mended", "a cell of one's own", "in another cell"],
)
def test_variables_of_the_author_are_no_parameters(project: Path, history):
    assert bind(cell(run="toy", In=history, steps=3), project=project).name == "toy"


def test_a_value_deleted_from_the_parameters_cell_is_not_used_silently(project: Path):
    with_value = "run = 'toy'\ntraining = {'iterations': 3}"
    namespace = cell(run="toy", training={"iterations": 3}, In=[with_value, "run = 'toy'"])
    with pytest.raises(ParamsError) as error:
        bind(namespace, project=project)
    (problem,) = error.value.problems
    assert (problem.key, problem.value) == ("training", {"iterations": 3})
    assert has_rule(problem, ParamsMessage.PARAMETER_DELETED, name="training", default="{}")


@pytest.mark.parametrize(
    "history",
    [
        ["run = 'toy'\ntraining = {'iterations': 3}"],
        ["training = {'iterations': 3}", "run = 'toy'"],
        ["run = 'toy'", "training = {'iterations': 3}"],
        ["run = 'local'", '# Parameters\nrun = "toy"\ntraining = {"iterations": 3}'],
        [],
    ],
    ids=["in the cell", "before it", "after it", "from papermill", "no history"],
)
def test_a_value_that_a_cell_still_sets_is_used(project: Path, history):
    namespace = cell(run="toy", training={"iterations": 3}, In=history)
    assert bind(namespace, project=project).run.training.iterations == 3


def test_secrets_in_a_notebook_are_refused_without_being_shown(project: Path):
    secret = "hf_" + "a1B2" * 8
    with pytest.raises(ParamsError) as error:
        bind(
            cell(run="toy", training={"sample_prompt": secret}, overrides=f"data.folder={secret}"),
            project=project,
        )
    assert secret not in str(error.value)
    prompt = problem_of(error.value, "training.sample_prompt")
    assert prompt.where == "notebook training"
    assert has_rule(prompt, ParamsMessage.LOOKS_LIKE_A_SECRET)
    folder = problem_of(error.value, "data.folder")
    assert mask(folder.where) == "--set data.folder=hf_a..."
    assert mask(folder.where) in folder.text()
    assert has_rule(folder, ParamsMessage.LOOKS_LIKE_A_SECRET)
