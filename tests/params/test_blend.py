"""Several texts with weights: what a run file may contain, and what a user reads after a typing
error.
"""

from pathlib import Path

import pytest
from suite.messages import containing, says

from runbook.core.errors import ParamsError
from runbook.params import load
from runbook.params.messages import ParamsMessage, ScaleDownReason
from runbook.params.schema.value_types import parse_blend

MINE = """\
mine: {title: Mine, kind: local, folder: texts, licence: ours, source: test}
far: {title: Far, kind: download, url: "https://example.org", licence: free, source: test}
"""


@pytest.fixture
def blended(project: Path):
    with (project / "params" / "datasets.yaml").open("a") as stream:
        stream.write(MINE)

    def load_with(*words: str):
        return load("toy", project=project, set_words=words)

    return load_with


def test_a_run_has_the_texts_of_its_blend_in_order_with_their_weights(blended):
    settings = blended("data.blend=corpus 0.7, mine 3e-1", "data.folder=/elsewhere")
    assert [
        (text.name, text.weight, text.dataset.title, text.folder) for text in settings.texts
    ] == [
        ("corpus", 0.7, "Corpus", "/elsewhere"),
        ("mine", 0.3, "Mine", ""),
    ]
    assert settings.parameters()["data.blend"]["origin"].startswith("--set data.blend=corpus 0.7")


def test_without_a_blend_the_dataset_is_the_only_text(blended):
    (text,) = blended("data.dataset=mine", "data.folder=here").texts
    assert (text.name, text.weight, text.folder) == ("mine", 1.0, "here")
    assert blended().blend == ()


def test_what_was_asked_is_read_back_from_the_runs_own_record(blended, project, tmp_path):
    settings = blended("data.blend=corpus 2, mine 1")
    record = tmp_path / "runs" / "toy" / "run.yaml"
    record.parent.mkdir(parents=True)
    record.write_text(settings.as_yaml())
    assert load(str(record), project=project).texts == settings.texts


@pytest.mark.parametrize(
    ("blend", "told"),
    [
        (
            "corpus 0.7, mine -0.3",
            "the weight of mine is -0.3: a weight must be above 0; leave out texts without weight",
        ),
        ("corpus 0.7, mine 0", "the weight of mine is 0: a weight must be above 0"),
        ("corpus 0.7, mine nan", "the weight of mine is nan: a weight must be above 0"),
        ("corpus 0.7, mine inf", "the weight of mine is inf"),
        (
            "corpus 0.7, mine most",
            "the weight of mine is 'most', not a number: write it as in corpus 0.7, articles",
        ),
        (
            "corpus 0.7, mine",
            "'mine' is not a name and a weight: write them as in corpus 0.7, articles 0.3",
        ),
        ("0.7 corpus, 0.3 mine", "the weight of 0.7 is 'corpus', not a number"),
        ("corpus 0.7,", "'' is not a name and a weight"),
        (
            "corpus 0.7, corpus 0.3",
            "corpus is in the blend twice: write it once, with the sum of its weights",
        ),
        ("corpus 1", "a blend has two texts or more"),
        ("corpus 0.7, ../mine 0.3", "'../mine' is not the name of a dataset"),
        ("corpus 0.7, mime 0.3", "has no mime. Did you mean mine?"),
        ("corpus 0.7, mock 0.3", ParamsMessage.MADE_UP_IN_BLEND.fill(name="mock")),
        (
            "far 0.7, mine 0.3",
            ParamsMessage.BLEND_WITHOUT_DATASET.fill(main="corpus"),
        ),
    ],
)
def test_a_wrong_blend_is_told_with_its_key_and_rule(blended, blend, told):
    with pytest.raises(ParamsError) as error:
        blended(f"data.blend={blend}")
    assert "data.blend" in str(error.value) and told in str(error.value)
    assert str(error.value).count("data.blend:") <= 1 or "mock" in blend


def test_a_blend_of_texts_that_are_not_here_is_rehearsed_with_the_corpus(project):
    with (project / "params" / "datasets.yaml").open("a") as stream:
        stream.write(MINE)
    site = project / "params" / "sites" / "local.yaml"
    site.write_text(site.read_text() + "rehearses: true\n")
    other = project / "params" / "other.yaml"
    other.write_text(other.read_text() + "data: {dataset: corpus, blend: 'corpus 1, far 1'}\n")
    settings = load("other", project=project, set_words=["site=local", "model=tiny"])
    assert settings.blend == ()
    assert says(
        settings.scaled_down()["data.blend"],
        ParamsMessage.SCALED_DOWN,
        value=containing("corpus 1, far 1"),
        site="local",
        reason=ScaleDownReason.SOME_TEXTS_MISSING.fill(),
    )


def test_blanks_are_no_blend():
    assert parse_blend("  ") == ()
