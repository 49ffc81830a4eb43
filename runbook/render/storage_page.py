"""docs/storage.md: how long a checkpoint takes on each tier of the Azure document's storage, for any model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runbook.params.catalogue import Site
from runbook.params.schema import Precision
from runbook.plan.table import Table
from runbook.plan.volumes import tier_table

_HEAD = """# Storage and the time of a checkpoint

The Azure document gives a table of its managed Lustre: tier, size, bandwidth and "theoretical checkpoint write time" of
the 175B model. Its times come from 2.3 x 1024 = 2,355 "GB", which mixes GB with GiB. Here is the table again with a
checkpoint counted in bytes (14 for each parameter: the weight in 2, its fp32 copy in 4, Adam's two moments in 8) and
1 GB = 10^9 bytes. The last column is the document's own, with its distance from the sum. Against its own 2.3 TiB in one
unit (2.20, 0.66, 0.33 and 0.16 min) it is 7 to 8 % low.

`runbook plan RUN` and notebook 00 show the same for the run's own model, `jobs.storage` chooses a tier, and the plan
warns where data and checkpoints do not fit. `runbook render RUN --out DIR` writes `01-environment/deployment.env`
(GPU_SKU, ANF_SKU, ANF_SIZE, AMLFS_SKU, AMLFS_SIZE) for Azure and `shared-storage.yaml` for AWS.

This page is written from `runbook/render/storage_page.py`; a test compares the two.
"""


def as_markdown(site: Site, models: Mapping[str, int]) -> str:
    """The page for these models, by name with their parameters."""
    parts = [_HEAD]
    for name, parameters in models.items():
        parts.append(f"## {name}: {parameters:,} parameters\n")
        parts.append(_table(tier_table(site, parameters, Precision.FP16)))
    return "\n".join(parts)


def _table(table: Table) -> str:
    heads: Sequence[str] = [head for head in table.rows[0] if any(row[head] for row in table.rows)]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    lines += [f"| {' | '.join(row[head] for head in heads)} |" for row in table.rows]
    return "\n".join([*lines, "", table.note, ""])
