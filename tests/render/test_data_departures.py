"""Every difference between the text for a run and the text in its document is in params/differs,
with a reason.
"""

import json

import pytest
from departures import read_data_departures
from document_facts import SAMPLES
from sites import PROJECT, RUNS, settings_of

from runbook.params.schema.entries import TOKENIZED
from runbook.phases.token_inputs import tokenize_options
from runbook.planning.data_plan import plan_data
from runbook.tokens.sources.dataset_files import expected_files

THEIRS = json.loads((SAMPLES / "data.json").read_text(encoding="utf-8"))
SLIMPAJAMA_SOURCES = [
    "RedPajamaArXiv",
    "RedPajamaBook",
    "RedPajamaC4",
    "RedPajamaCommonCrawl",
    "RedPajamaGithub",
    "RedPajamaStackExchange",
    "RedPajamaWikipedia",
]
"""All files, in the order of NeMo launcher 24.12 (slim_pajama_dataprep/extract.py)."""


def ours(run):
    """Return the same facts for our run, by the names in data.json."""
    settings = settings_of(run)
    dataset = settings.dataset
    plan = plan_data(settings)
    facts = {
        "dataset": settings.run.data.dataset,
        "pairs of token files": str(len(plan.train) + len(plan.validation) + len(plan.test)),
        "first pair": plan.train[0].replace(settings.run.jobs.stage, "{stage}")
        if run != "aws-pile-175b"
        else plan.train[0],
    }
    if dataset.kind == TOKENIZED:
        return facts
    options = tokenize_options(settings)
    names = [file.also for file in expected_files(dataset) if file.also]
    shards = [name.removeprefix("example_train_").partition(".")[0] for name in names]
    return facts | {
        "sources": ", ".join(filter(options.chosen_sources.wants, SLIMPAJAMA_SOURCES)),
        "repairs": options.fix_text,
        "order of the files": ", ".join(shards[:4]),
        "files joined": str(dataset.parts_together),
        "tokenizer": {"gpt2": "GPT-2"}[options.tokenizer],
        "end of document": "yes" if options.append_eod else "no",
        "processes on a node": str(options.workers or "one for each core"),
    }


@pytest.mark.parametrize("run", RUNS)
def test_whatever_differs_of_a_documents_text_is_listed_with_its_reason(run):
    own = ours(run)
    differing = {
        name: (value, own[name]) for name, value in THEIRS[run].items() if value != own[name]
    }
    listed = {
        name: pair
        for entry in read_data_departures(run, PROJECT)
        for name, pair in entry.what.items()
    }
    assert listed == differing


def test_slimpajamas_files_are_joined_in_the_order_of_the_documents_shell():
    """In the C locale, bash sorts `example_train_chunk*.jsonl` by bytes."""
    names = [file.also for file in expected_files(settings_of("azure-175b").dataset)]
    assert names == sorted(names)
    assert (len(names), len(set(names))) == (59_166, 59_166)
    assert names[800].startswith("example_train_chunk10_shard")
