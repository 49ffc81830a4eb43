"""Write the docs pages that are generated from code: python tools/write_pages.py.

It also updates the output in docs/explain.md, and the subjects in the table with public stories.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from departures import EVERY_DOCUMENT, read_data_departures, read_departures
from lumi_table import judged_table, lumi_rows
from write_keys import keys_page

from runbook import params
from runbook.core.table import Table
from runbook.params.settings import with_placeholders
from runbook.planning.site_limits import tier_table
from runbook.tools.speed.gap import explain_log
from runbook.tools.speed.public_stories import TABLE, as_table, read_stories
from runbook.tools.speed.story_subjects import subjects_in

PROJECT = Path(__file__).parents[1]
MODELS = {
    "175B": 174_615_846_912,
    "30B": 29_975_683_072,
    "13B": 12_853_626_880,
    '"857M"': 355_919_872,
}
"""Parameter counts for the models in the Azure document, by name."""

QUESTION_COMMAND = "$ cat question.txt\n"
EXPLAIN_COMMAND = "$ runbook explain question.txt\n"
"""The two commands in the example of docs/explain.md."""

STORAGE_HEAD = """# Storage and the time of a checkpoint

The Azure document gives a table of its managed Lustre: tier, size, bandwidth and "theoretical checkpoint write time" of
the 175B model. Its times come from 2.3 x 1024 = 2,355 "GB", which mixes GB with GiB. Here is the table again with a
checkpoint counted in bytes (14 for each parameter: the weight in 2, its fp32 copy in 4, Adam's two moments in 8) and
1 GB = 10^9 bytes. The last column shows the document's times and how much they differ from ours. In
consistent units, writing its 2.3 TiB takes 2.20, 0.66, 0.33 and 0.16 min; the document's times are 7 to 8 % lower.

`runbook plan RUN` and notebook 00 show the same table for the run's own model. `jobs.storage` chooses a tier, and the
plan warns if data and checkpoints do not fit. `runbook render RUN --out DIR` writes `environment/deployment.env`
(GPU_SKU, ANF_SKU, ANF_SIZE, AMLFS_SKU, AMLFS_SIZE) for Azure and `shared-storage.yaml` for AWS.

This page is written by `python tools/write_pages.py`; a test compares the two.
"""

LUMI_HEAD = """# The LUMI document's results, recomputed

The LUMI document has a table of eight runs. The table below shows each row with the TFLOP/s computed from its samples/s,
the TFLOP/s that the document states, and a verdict. Two rows cannot be right as printed, one is printed twice, and two
were never measured. The document's log counts the forward pass twice, because its script recomputes activations. Its
percentages therefore refer to hardware FLOP/s; the MFU is three quarters of that.

Notebook 05 shows the same columns for your own run and its variants.

This page is written by `python tools/write_pages.py`; a test compares the two.
"""

DEPARTURES_HEAD = """# Where the rendered jobs differ from their documents

Each of the five documents has a script. We ran each script with stand-ins for srun, torchrun, mpiexec and the training
program, and compared what it passes to them (directives, options, environment, DeepSpeed's file, NeMo's whole
configuration) with what we render, for every variant in `params/variants`. This page lists every difference with its
reason; a test fails on any other difference. Nothing was run on the documents' machines. `tests/samples/documents`
contains what the scripts pass, but not the scripts.

This page is written from `params/differs` by `python tools/write_pages.py`; a test compares the two.
"""


DATA_HEAD = """## The text

These tables compare what each document's own programs do with the text and what 02-data does: sources, repairs, order,
joining, tokens, places. `tests/samples/documents/data.json` records what their programs do, as read from their code; a
test compares it with each run and fails on any difference that is not listed here. `data.keep_sources`,
`data.drop_sources` and `data.fix_text` change what 02-data does.
"""


def departures_page() -> str:
    """Return docs/departures.md: every departure from a document with its reason, by run."""
    lines = [DEPARTURES_HEAD]
    runs = [name for name in params.run_names(PROJECT) if name != "local"]
    for name in (EVERY_DOCUMENT, *runs):
        lines += [f"## {name}", "", "| What | Why |", "| --- | --- |"]
        for departure in read_departures(name, PROJECT):
            what = "<br>".join([*departure.prose, *(_shown(*item) for item in departure.items())])
            if departure.variants:
                only = f" Variants {', '.join(v or name for v in departure.variants)}."
            else:
                only = ""
            if departure.variants_without:
                but = f" Does not apply to {', '.join(departure.variants_without)}."
            else:
                but = ""
            lines.append(f"| {what} | {departure.why}{only}{but} |")
        lines.append("")
    lines += [DATA_HEAD, "| Run | What | Why |", "| --- | --- | --- |"]
    for name in runs:
        for entry in read_data_departures(name, PROJECT):
            pairs = [_pair(what, pair) for what, pair in entry.what.items()]
            what = "<br>".join([*entry.prose, *pairs])
            lines.append(f"| {name} | {what} | {entry.why} |")
    lines.append("")
    return "\n".join(lines)


def _pair(name: str, pair: tuple[str | None, str | None]) -> str:
    theirs, ours = ("not given" if value is None else f"`{value}`" for value in pair)
    return f"{name}: {theirs} → {ours}"


def _shown(kind: str, name: str, pair: tuple[str | None, str | None] | None) -> str:
    if pair is None:
        return f"`{name}`"
    theirs, ours = (
        "not given" if value is None else f"`{value}`" if value else "given" for value in pair
    )
    return f"`{name}`: {theirs} → {ours}"


def storage_page() -> str:
    """Return docs/storage.md: the time to write a checkpoint on each Azure storage tier.

    The models come from the Azure document.
    """
    site = with_placeholders(params.load("azure-175b", project=PROJECT)).site
    parts = [STORAGE_HEAD]
    for name, parameters in MODELS.items():
        parts.append(f"## {name}: {parameters:,} parameters\n")
        parts.append(_table(tier_table(site, parameters, "fp16")))
    return "\n".join(parts)


def lumi_page() -> str:
    """Return docs/lumi-table.md: the eight rows in the document, checked."""
    return f"{LUMI_HEAD}\n{judged_table(lumi_rows()).as_markdown()}\n"


def explain_page(page: str) -> str:
    """Return docs/explain.md with the current output of its example."""
    head, question, tail = _example_parts(page)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "question.txt"
        path.write_text(question, encoding="utf-8")
        explanation = explain_log(path, None, ())
    lines = [line.rstrip() for line in explanation.as_table().as_text().splitlines()]
    printed = "\n".join(lines)
    return f"{head}{question}{EXPLAIN_COMMAND}{printed}\n{tail}"


def stories_table() -> str:
    """Return the table with public stories, with the subjects that their texts have now."""
    stories = read_stories()
    return as_table(replace(story, subjects=subjects_in(story.text.lower())) for story in stories)


def _example_parts(page: str) -> tuple[str, str, str]:
    """Return the text before the question in the example, the question, and the text after it.

    The old output is left out.
    """
    example = re.search(
        rf"(?P<question>(?<={re.escape(QUESTION_COMMAND)}).*?){re.escape(EXPLAIN_COMMAND)}.*?(?=```)",
        page,
        re.DOTALL,
    )
    assert example is not None, "docs/explain.md has no example"
    return page[: example.start()], example["question"], page[example.end() :]


def _table(table: Table) -> str:
    heads: Sequence[str] = [head for head in table.rows[0] if any(row[head] for row in table.rows)]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    lines += [f"| {' | '.join(row[head] for head in heads)} |" for row in table.rows]
    return "\n".join([*lines, "", "\n".join(table.notes), ""])


if __name__ == "__main__":
    (PROJECT / "docs" / "departures.md").write_text(departures_page(), encoding="utf-8")
    (PROJECT / "docs" / "storage.md").write_text(storage_page(), encoding="utf-8")
    explain = PROJECT / "docs" / "explain.md"
    explain.write_text(explain_page(explain.read_text(encoding="utf-8")), encoding="utf-8")
    (PROJECT / "docs" / "keys.md").write_text(keys_page(), encoding="utf-8")
    (PROJECT / "docs" / "lumi-table.md").write_text(lumi_page(), encoding="utf-8")
    stories = PROJECT / "runbook" / "tools" / "speed" / TABLE
    stories.write_text(stories_table(), encoding="utf-8")
