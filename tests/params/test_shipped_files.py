"""The parameter files in the clone: complete, portable, and with the published counts."""

import hashlib
from pathlib import Path

import pytest

from runbook.params import PARAMETERS, bind, load, run_names, site_names
from runbook.params.catalogues import read_datasets, read_models, read_site
from runbook.params.problems import differences, read_as_papermill

CLONE = Path(__file__).parents[2]
MODELS = read_models(CLONE)


def count(name: str, tensor: int = 1) -> int:
    """Count the parameters in a model by hand: blocks, last norm, padded vocabulary, positions."""
    model = MODELS.get(name)
    padded = -(-model.vocabulary // (128 * tensor)) * 128 * tensor
    hidden = model.hidden
    blocks = model.layers * (12 * hidden**2 + 13 * hidden)
    return blocks + 2 * hidden + (padded + (model.positions or model.sequence_length)) * hidden


@pytest.mark.parametrize(
    ("name", "tensor", "parameters"),
    [
        ("375m", 1, 64_633_856),
        ("857m", 1, 355_919_872),
        ("125m", 1, 125_262_336),
        ("350m", 1, 355_919_872),
        ("760m", 1, 760_372_224),
        ("1.3b", 1, 1_315_819_520),
        ("2.7b", 1, 2_651_673_600),
        ("6.7b", 1, 6_658_596_864),
        ("13b", 1, 12_853_626_880),
        ("175b", 1, 174_604_836_864),
        ("175b", 8, 174_615_846_912),
        ("debug-8x512", 4, 51_696_640),
    ],
)
def test_models_have_the_counts_of_the_documents(name, tensor, parameters):
    assert count(name, tensor) == parameters


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("7.5b", 7.46),
        ("18.4b", 18.44),
        ("39.1b", 39.1),
        ("76.1b", 76.0),
        ("145.6b", 145.6),
        ("5b", 5.048),
        ("30b", 29.98),
    ],
)
def test_larger_models_come_near_their_labels(name, billions):
    assert count(name) / 1e9 == pytest.approx(billions, rel=2e-3)


@pytest.mark.parametrize("name", MODELS.names)
def test_every_model_can_be_used_and_names_its_source(name):
    model = MODELS.get(name)
    assert model.source
    assert model.hidden % model.heads == 0


def test_every_dataset_and_site_can_be_used():
    datasets = read_datasets(CLONE)
    assert {datasets.get(name).kind for name in datasets.names} >= {"corpus", "mock"}
    for name in site_names(CLONE):
        assert read_site(name, CLONE)[1].problems == []


def test_the_shipped_corpus_lies_where_its_entry_says():
    entry = read_datasets(CLONE).get("corpus")
    folder = CLONE / "runbook" / entry.folder
    assert sorted(path.name for path in folder.glob(entry.pattern)) == [
        file.path for file in entry.files
    ]
    for file in entry.files:
        content = (folder / file.path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.bytes, file.sha256)


@pytest.mark.parametrize("name", run_names(CLONE))
def test_every_run_file_is_whole_portable_and_equal_in_all_three_ways(name):
    settings = load(name, project=CLONE, portable=True)
    injected = read_as_papermill((CLONE / "params" / f"{name}.yaml").read_text())
    assert set(injected) <= set(PARAMETERS)  # papermill warns about others
    by_file = bind({**PARAMETERS, **injected}, project=CLONE)
    assert (by_file.as_yaml(), by_file.parameters()) == (settings.as_yaml(), settings.parameters())


@pytest.mark.parametrize(
    "path", sorted((CLONE / "params").rglob("*.yaml")), ids=lambda path: path.name
)
def test_no_parameter_file_depends_on_the_yaml_version(path):
    assert differences(path.read_text(), path.name) == []


def test_the_local_run_is_the_documents_smoke_shape_and_fits_its_processes():
    settings = load("local", project=CLONE, portable=True)
    smoke = settings.run.training.smoke
    model = settings.smoke_model
    assert (model.layers, model.hidden, model.heads, model.sequence_length) == (12, 512, 8, 1024)
    assert (smoke.iterations, smoke.global_batch, smoke.warmup_iterations) == (12, 4, 3)
    assert settings.job("03-smoke-test").devices_per_node == 2
    assert 0 < settings.run.training.rehearse_stop < settings.run.training.iterations
    assert settings.run.training.global_batch % (settings.run.training.micro_batch * 2) == 0
