"""Settings provide values, jobs and fingerprint inputs; `why` tells where a value came from."""

from pathlib import Path

import pytest
from suite.messages import refuses

from runbook.core.errors import ParamsError
from runbook.params import all_keys, key_meant, load, why
from runbook.params.messages import ParamsMessage
from runbook.params.schema.keys import sections
from runbook.params.schema.run_file import JOB_SECTIONS


def test_parameters_cover_every_key_with_plain_values(project: Path):
    parameters = load("toy", project=project).parameters()
    assert list(parameters) == list(all_keys())
    assert all(type(entry["value"]) in (int, float, bool, str) for entry in parameters.values())
    assert parameters["training.engine"] == {"value": "megatron-core", "origin": "built-in"}
    assert parameters["training.precision"] == {
        "value": "fp32",
        "origin": "params/sites/local.yaml:9 (site)",
    }


def test_subset_is_what_a_step_reads(project: Path):
    settings = load("toy", project=project)
    assert settings.subset(["parallel", "training.seed"]) == {
        "parallel.tensor": 1,
        "parallel.pipeline": 1,
        "parallel.first_stage_layers": 0,
        "parallel.last_stage_layers": 0,
        "parallel.virtual_pipeline": 1,
        "parallel.sequence": False,
        "parallel.context": 1,
        "parallel.zero_stage": 1,
        "training.seed": 1234,
    }
    with pytest.raises(AssertionError) as caught:
        settings.subset(["paralel"])
    assert "paralel" in str(caught.value)


def test_a_job_is_filled_from_the_site(project: Path):
    job = load("toy", project=project).job("03-smoke-test")
    assert (job.nodes, job.devices_per_node, job.tasks_per_node, job.cpus_per_task) == (
        1,
        2,
        1,
        8,
    )  # one task per node, for torchrun
    assert job.walltime == 600  # the site's default
    job = load("toy", project=project, set_words=["site=big"]).job("04-training")
    assert (job.nodes, job.devices_per_node, job.tasks_per_node, job.cpus_per_task) == (
        2,
        4,
        4,
        8,
    )  # one task per device, for srun
    words = ["jobs.4.devices_per_node=1", "jobs.4.cpus_per_task=3", "site=big"]
    job = load("toy", project=project, set_words=words).job("04-training")
    assert (job.devices_per_node, job.tasks_per_node, job.cpus_per_task) == (1, 1, 3)
    with refuses(
        ParamsError,
        ParamsMessage.PHASE_WITHOUT_JOB,
        phase="00-plan",
        job_sections=", ".join(JOB_SECTIONS),
    ):
        load("toy", project=project).job("00-plan")


def test_run_yaml_is_stable_and_in_the_schemas_order(project: Path):
    text = load("toy", project=project).as_yaml()
    assert text == load("toy", project=project).as_yaml()
    lines = text.splitlines()
    assert lines[0] == ParamsMessage.HEAD_OF_RUN_YAML.fill(name="toy", variant="")
    assert lines[2:6] == ["run: toy", "site: local", "model: tiny", "data:"]
    with_comments = [tuple(line.split("  # ")) for line in lines]
    assert ("  tokens: 1000000000", "1.00 B") in with_comments
    assert ("    walltime: 43200", "12 h") in with_comments
    assert "  learning_rate: 6.0e-5" in lines


def test_why_shows_value_chain_names_and_help(project: Path):
    settings = load("toy", project=project, set_words=["training.iterations=10"])
    instead = ParamsMessage.GIVEN_INSTEAD.fill(
        where="--set training.iterations=10", key="training.iterations"
    )
    layers = [
        ("command line", "0", instead + ParamsMessage.THIS_ONE.fill()),
        ("run file", '"1B"', "params/toy.yaml:5"),
        ("built-in", "0", "built-in"),
    ]
    key = "training.tokens"
    assert why(settings, key).splitlines() == [
        f"{key} = 0",
        f"  {all_keys()[key].help}",
        *(f"  {layer:12s} {value:20s} {where}" for layer, value, where in layers),
        ParamsMessage.IN_THE_DOCUMENTS.fill(documents="TRAIN_TOKENS, train_tokens"),
    ]


def test_why_understands_names_of_documents_and_phases(project: Path):
    assert key_meant("mp_size") == "parallel.tensor"
    assert key_meant("jobs.03-smoke-test.walltime") == "jobs.smoke.walltime"
    explanation = why(load("toy", project=project), "training.precision")
    assert explanation.startswith("training.precision = fp32\n")
    source = ParamsMessage.SOURCE_OF_VALUE.fill(source="the manual", date=", 2025-11-21")
    assert source in explanation.splitlines()


def test_why_answers_every_key(project: Path):
    settings = load("toy", project=project)
    assert [key_meant(key) for key in all_keys()] == list(all_keys())
    assert all(why(settings, key).startswith(f"{key} = ") for key in all_keys())


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("training.tokn", "There is no key training.tokn. Did you mean training.tokens?"),
        ("nodes", "There is no key nodes. Did you mean jobs.<phase>.nodes?"),
        (
            "zzz",
            "There is no key zzz. The sections of a run file are data, parallel, training, training.shape, training.smoke,",
        ),
        (
            "parallel",
            "parallel is a section. Ask for one of its keys: parallel.tensor, parallel.pipeline,",
        ),
        ("jobs.plan.nodes", "jobs.plan.nodes: 00-plan submits no job"),
    ],
)
def test_why_answers_a_wrong_key_with_the_right_one(project: Path, key, answer):
    with pytest.raises(ParamsError) as error:
        key_meant(key)
    assert str(error.value).startswith(answer)


def test_every_key_and_section_has_help_of_one_sentence_or_more():
    for key in all_keys().values():
        assert key.help.strip().endswith("."), key.name
    for name, text in sections().items():
        assert text.strip().endswith("."), name


def test_no_name_of_the_documents_means_keys_of_two_sections():
    owners: dict[str, set[str]] = {}
    for key in all_keys().values():
        for name in key.documents:
            section, _, last = key.name.rpartition(".")
            owners.setdefault(name, set()).add(
                f"jobs.{last}" if section.startswith("jobs.") else key.name
            )
    assert {name: keys for name, keys in owners.items() if len(keys) > 1} == {}
