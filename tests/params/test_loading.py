"""Layers take precedence in order, exclusive keys clear each other, and each value keeps its chain
of origins.
"""

from pathlib import Path

import pytest
from suite.messages import has_rule, problem_of, refuses

from runbook.core.errors import ParamsError
from runbook.params import load, project_root, run_names, site_names, variant_names
from runbook.params.messages import ParamsMessage


def origins(settings, key):
    return [(origin.layer, origin.where, origin.value) for origin in settings.origins[key]]


def test_layers_win_in_order(project: Path):
    settings = load(
        "toy",
        project=project,
        overrides={"training": {"precision": "bf16"}},
        set_words=["training.precision=fp16"],
    )
    assert settings.run.training.precision == "fp16"
    assert origins(settings, "training.precision") == [
        ("built-in", "built-in", "bf16"),
        ("site", "params/sites/local.yaml:9", "fp32"),
        ("notebook", "notebook training", "bf16"),
        ("command line", "--set training.precision=fp16", "fp16"),
    ]


def test_site_defaults_lie_below_the_run_file(project: Path, write):
    assert load("toy", project=project).run.training.precision == "fp32"
    name = write("run: mine\nmodel: tiny\ntraining: {iterations: 3, precision: bf16}\n")
    assert load(name, project=project).run.training.precision == "bf16"


def test_numbers_and_times_of_a_file_are_read_by_our_own_rules(project: Path):
    settings = load("toy", project=project)
    assert settings.run.training.learning_rate == 6e-5
    assert settings.run.training.tokens == 1_000_000_000
    assert settings.run.jobs.training.walltime == 43200
    assert settings.parameters()["training.learning_rate"] == {
        "value": 6e-5,
        "origin": "params/toy.yaml:6",
    }


def test_a_higher_layer_changes_the_kind_of_duration(project: Path):
    settings = load("toy", project=project, set_words=["training.iterations=10"])
    training = settings.run.training
    assert (training.iterations, training.samples, training.tokens) == (10, 0, 0)
    assert origins(settings, "training.tokens")[-1] == (
        "command line",
        ParamsMessage.GIVEN_INSTEAD.fill(
            where="--set training.iterations=10", key="training.iterations"
        ),
        0,
    )


def test_warm_up_and_decay_are_exclusive_too(project: Path):
    words = ["training.warmup_fraction=0.1", "training.decay_tokens=2B"]
    training = load("toy", project=project, set_words=words).run.training
    assert (training.warmup_samples, training.warmup_fraction) == (0, 0.1)
    assert (training.decay_tokens, training.decay_iterations) == (2_000_000_000, 0)


def test_a_zero_clears_nothing(project: Path):
    settings = load("toy", project=project, set_words=["training.iterations=0"])
    assert settings.run.training.tokens == 1_000_000_000


def test_two_durations_in_one_layer_are_refused(project: Path, write):
    name = write("run: mine\nmodel: tiny\ntraining:\n  iterations: 3\n  tokens: 5B\n")
    with pytest.raises(ParamsError) as error:
        load(name, project=project)
    problem = problem_of(error.value, "training.iterations and training.tokens")
    assert problem.where == "params/mine.yaml:4, params/mine.yaml:5"
    assert has_rule(problem, ParamsMessage.ONE_OF_A_GROUP, number_of_stated=2)


def test_variant_lies_over_the_run_file_and_names_the_folder(project: Path):
    settings = load("toy:short", project=project)
    assert (settings.name, settings.run.run, settings.variant) == ("toy--short", "toy", "short")
    assert (settings.run.training.iterations, settings.run.training.tokens) == (5, 0)
    assert settings.origins["training.iterations"][-1].where == "params/variants/toy.yaml:4"
    assert variant_names("toy", project) == ["wide", "short"]
    assert variant_names("other", project) == []


def test_phases_under_jobs_go_by_any_of_their_names(project: Path, write):
    for word in ("03-smoke-test", "smoke-test", "smoke", "3", '"03"'):
        name = write(
            f"run: mine\nmodel: tiny\ntraining: {{iterations: 3}}\njobs:\n  {word}: {{nodes: 2}}\n"
        )
        settings = load(name, project=project, set_words=["jobs.4.nodes=5"])
        assert (settings.run.jobs.smoke.nodes, settings.run.jobs.training.nodes) == (2, 5)
        assert settings.origins["jobs.smoke.nodes"][-1].where == "params/mine.yaml:5"


def test_site_of_the_highest_layer_gives_the_defaults(project: Path):
    settings = load("toy", project=project, set_words=["site=big"])
    assert settings.site.site == "big"
    assert settings.run.training.precision == "bf16"  # not the fp32 of `local`
    assert settings.run.jobs.smoke.walltime == 0


def test_an_empty_section_is_no_error(project: Path, write):
    assert load(
        write("run: mine\nmodel: tiny\ndata:\n  # all at default\ntraining: {iterations: 1}\n"),
        project=project,
    )


def test_a_section_can_be_given_in_one_word(project: Path):
    settings = load("toy", project=project, set_words=["training={iterations: 7, seed: 024}"])
    assert (settings.run.training.iterations, settings.run.training.seed) == (7, 24)


def test_text_keys_take_words_as_they_are(project: Path):
    words = [
        "jobs.smoke.account=465000001",
        "jobs.smoke.memory=0",
        "training.sample_prompt=Once: upon",
        "data.split=9,1,0",
    ]
    settings = load("toy", project=project, set_words=words)
    assert settings.run.jobs.smoke.account == "465000001"
    assert settings.run.jobs.smoke.memory == "0"
    assert settings.run.training.sample_prompt == "Once: upon"
    assert (
        load("toy", project=project, set_words=['jobs.smoke.qos="a b"']).run.jobs.smoke.qos == "a b"
    )
    assert load("toy", project=project, set_words=["jobs.smoke.qos="]).run.jobs.smoke.qos == ""


def test_the_last_word_on_a_key_wins(project: Path):
    words = ["training.seed=1", "training.seed=2"]
    assert load("toy", project=project, set_words=words).run.training.seed == 2


def test_smoke_model_is_the_documents_or_the_runs_own_where_smaller(project: Path):
    assert load("other", project=project).smoke_model_name == "375m"
    assert load("toy", project=project).smoke_model_name == "tiny"
    assert (
        load("toy", project=project, set_words=["training.smoke.model=13b"]).smoke_model.layers
        == 40
    )


def test_a_path_names_a_run_too(project: Path, tmp_path: Path, monkeypatch):
    by_name = load("toy", project=project)
    by_path = load(str(project / "params" / "toy.yaml"))
    assert (by_name.run, by_name.parameters()) == (by_path.run, by_path.parameters())
    away = tmp_path / "away.yaml"
    away.write_text("run: away\nmodel: tiny\ntraining: {iterations: 2}\n")
    monkeypatch.chdir(project / "notebooks")
    assert load(str(away)).project == project
    assert load("params/toy.yaml").run == by_name.run


def test_a_files_own_project_wins_over_the_folder_we_stand_in(project: Path):
    assert (
        load(str(project / "params" / "toy.yaml")).project == project
    )  # the test runs in the clone


def test_project_root_is_the_nearest_folder_above(project: Path, tmp_path: Path):
    assert project_root(project / "params" / "sites") == project
    assert run_names(project) == ["other", "toy"]
    assert site_names(project) == ["big", "local"]
    with refuses(ParamsError, ParamsMessage.NOT_IN_A_PROJECT, where=tmp_path):
        project_root(tmp_path)


def test_a_written_run_yaml_reads_back_as_the_same_run(project: Path, tmp_path: Path):
    settings = load(
        "toy:wide",
        project=project,
        set_words=["training.sample_prompt='say \"no\": 12:00:00 \u00e9\n'"],
    )
    folder = tmp_path / "runs" / settings.name
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(settings.as_yaml())
    again = load(str(folder / "run.yaml"), project=project)
    assert again.run == settings.run
    assert again.name == "toy--wide"
    assert again.as_yaml() == settings.as_yaml()
