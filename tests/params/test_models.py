"""Every shape in the catalogue has the parameter count that its source states or its layers imply."""

import shutil
from pathlib import Path

import pytest

from runbook.params.catalogues import read_models
from runbook.planning.sizes import shape_of, whole

CLONE = Path(__file__).parents[2]
MODELS = read_models(CLONE)

EXACT = {  # counted by hand in the fact sheet: vocabulary 50,304, 2,048 positions, tied embeddings
    "125m": 125_262_336,
    "350m": 355_919_872,
    "760m": 760_372_224,
    "1.3b": 1_315_819_520,
    "2.7b": 2_651_673_600,
    "6.7b": 6_658_596_864,
    "13b": 12_853_626_880,
    "175b": 174_604_836_864,
    "375m": 64_633_856,
    "857m": 355_919_872,
}
BILLIONS = {
    "gpt125m": 0.125,
    "bert1.2b": 1.316,
    "gpt1_5b": 1.440,
    "gpt2_7b": 2.652,
    "gpt6_7b": 6.659,
    "gpt13b": 12.854,
    "gpt25b": 29.33,
    "gpt30b": 29.318,
    "gpt33b": 36.567,
    "gpt145b_2l": 4.27,
    "gpt145b_64l": 116.6,
    "gpt145b": 145.611,
    "gpt175b": 174.6,
    "gpt1t_1l": 9.2,
    "gpt1t_128l": 1008,
    "gpt1t_1024l": 8054,
    "126m": 0.125,
    "5b": 5.048,
    "20b": 20.26,
    "40b": 39.10,
    "nemo-175b": 174.6,
    "30b": 29.98,
    "52b": 51.97,
    "7.5b": 7.47,
    "llama_7b": 6.89,  # 6.74 with the LLaMA vocabulary of 32,000 tokens
}


def count(name, tensor=1):
    return whole(shape_of(MODELS.get(name), tensor=tensor)).total


@pytest.mark.parametrize(("name", "parameters"), EXACT.items())
def test_counted_by_hand(name, parameters):
    assert count(name) == parameters


@pytest.mark.parametrize(("name", "billions"), BILLIONS.items())
def test_near_what_the_source_says(name, billions):
    assert count(name) / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize(
    "label", ["1.7B", "7.1B", "16B", "32B", "70B", "119B", "177B", "314B", "462B"]
)
def test_nvidias_table_fits_at_its_own_vocabulary(label):
    assert count(f"nvidia-{label.lower()}") / 1e9 == pytest.approx(float(label[:-1]), rel=0.035)


def test_the_layout_pads_the_vocabulary():
    assert count("175b", tensor=8) == 174_615_846_912
    assert count("debug-8x512", tensor=4) == 51_696_640


@pytest.mark.parametrize("name", MODELS.names)
def test_every_entry_can_be_used_and_says_where_it_is_from(name):
    model = MODELS.get(name)
    assert model.source
    assert model.hidden % model.heads == 0


@pytest.mark.parametrize("name", MODELS.names)
def test_the_count_that_is_written_down_is_that_of_the_shape(name):
    model = MODELS.get(name)
    shape = shape_of(model, tensor=1, sequence_length=model.sequence_length)
    assert model.parameters == whole(shape).total
    assert model.label and model.source


def test_the_example_of_an_own_model_can_be_used_as_it_is(tmp_path: Path) -> None:
    lines = (CLONE / "params" / "models.yaml").read_text(encoding="utf-8").splitlines()
    first = lines.index("#   mine:")
    example = [line.removeprefix("#   ") for line in lines[first : first + 8]]
    shutil.copytree(CLONE / "params", tmp_path / "params")
    with (tmp_path / "params" / "models.yaml").open("a", encoding="utf-8") as file:
        file.write("\n".join(["", *example, ""]))
    model = read_models(tmp_path).get("mine")
    assert (model.layers, model.hidden, model.heads) == (34, 4096, 32)
