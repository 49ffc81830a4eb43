"""Every difference between our scripts and those in the documents is in params/differs, with a
reason.
"""

import json
import os
import shutil
from pathlib import Path

import pytest
from departures import EVERY_DOCUMENT, read_departures
from document_facts import KINDS, SAMPLES, differences, ours, sample
from pydantic import ValidationError
from record_documents import DOCUMENTS, VARIABLE, recorded
from sites import PROJECT, RUNS
from write_pages import departures_page

from runbook.core.errors import ParamsError
from runbook.params import variant_names

WITHOUT_SCRIPT = {
    ("lumi-13b", "13b-1n-dp8-zero1"): "the plan refuses it: its states do not fit",
    ("polaris-25b", "gpt175b"): "ALCF/model.sh has no such key",
}
VARIANTS = [
    (run, variant)
    for run in RUNS
    for variant in ("", *variant_names(run, PROJECT))
    if (run, variant) not in WITHOUT_SCRIPT
]
COMMON = read_departures(EVERY_DOCUMENT, PROJECT)


def departures(run, variant):
    return [entry for entry in (*read_departures(run, PROJECT), *COMMON) if entry.is_about(variant)]


def listed(run, variant):
    """Return all listed differences by kind and name, each with its pairs of values."""
    found = {}
    for entry in departures(run, variant):
        for kind, name, pair in entry.items():
            found.setdefault((kind, name), []).append(pair)
    return found


@pytest.mark.parametrize(("run", "variant"), VARIANTS)
def test_whatever_differs_from_a_documents_script_is_listed_with_its_reason(run, variant):
    known = listed(run, variant)
    found = differences(sample(run, variant), ours(f"{run}:{variant}" if variant else run))
    unlisted = {
        key: pair
        for key, pair in found.items()
        if pair not in known.get(key, []) and None not in known.get(key, [])
    }
    assert not unlisted


@pytest.mark.parametrize("run", RUNS)
def test_no_list_has_what_does_not_differ(run):
    variants = [variant for name, variant in VARIANTS if name == run]
    found = {v: differences(sample(run, v), ours(f"{run}:{v}" if v else run)) for v in variants}
    for entry in read_departures(run, PROJECT):
        about = [variant for variant in variants if entry.is_about(variant)]
        assert about, entry.why
        assert not (set(entry.variants) | set(entry.variants_without)) - set(variants), entry.why
        for kind, name, pair in entry.items():
            pairs = [found[variant].get((kind, name)) for variant in about]
            assert any(pairs if pair is None else [one == pair for one in pairs]), (
                entry.why,
                name,
                pairs,
            )


def test_what_is_listed_for_every_document_differs_in_one():
    found = [differences(sample(run, ""), ours(run)) for run in RUNS]
    found.append(differences(sample("slurm-oscar", "single-node"), ours("slurm-oscar:single-node")))
    found.append(
        differences(
            sample("aws-pile-175b", "benchmark-torchrun"), ours("aws-pile-175b:benchmark-torchrun")
        )
    )
    for entry in COMMON:
        for kind, name, pair in entry.items():
            pairs = [one[kind, name] for one in found if (kind, name) in one]
            assert pairs and pair in (None, *pairs), (entry.why, name, pairs)


def test_each_document_has_a_sample_of_its_pinned_commit_and_every_variant():
    for run in RUNS:
        facts = json.loads((SAMPLES / f"{run}.json").read_text())
        assert (facts["repository"], facts["commit"]) == (
            DOCUMENTS[run].repository,
            DOCUMENTS[run].commit,
        )
        assert set(facts["variants"]) == {variant for name, variant in VARIANTS if name == run}
        assert set(facts["variants"][""]) == set(KINDS)


def test_the_page_of_departures_is_up_to_date():
    assert (PROJECT / "docs" / "departures.md").read_text() == departures_page()


def test_an_entry_without_a_reason_is_refused(tmp_path):
    folder = tmp_path / "params" / "differs"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("differs:\n  - arguments: [--seed]\n")
    with pytest.raises(ParamsError) as caught:
        read_departures("mine", tmp_path)
    cause = caught.value.__cause__
    assert isinstance(cause, ValidationError)
    (fault,) = cause.errors()
    assert (fault["type"], fault["loc"]) == ("missing", ("differs", 0, "why"))
    assert str(caught.value).startswith(f"params/differs/mine.yaml: differs.0.why: {fault['msg']}")


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no folder of checkouts")
@pytest.mark.skipif(not shutil.which("git"), reason="git reads the checkouts")
@pytest.mark.parametrize("run", RUNS)
def test_the_scripts_still_pass_what_the_samples_say(run):
    assert recorded(run, Path(os.environ[VARIABLE])) == json.loads(
        (SAMPLES / f"{run}.json").read_text()
    )
