"""02-data: from text to verified token files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from runbook import data as tokens
from runbook.data.download import download
from runbook.data.options import Output
from runbook.data.sources import TOKENIZED, dataset_folder, file_fault, token_prefixes
from runbook.display import Progress, show_table, show_text
from runbook.params.dataset import Text
from runbook.phases import campaign as campaigns
from runbook.phases import closing, offload, steps
from runbook.phases.campaign import VERSIONS, Campaign, phase_fingerprint
from runbook.phases.data_looks import pairs, show_documents, show_plan_beside, show_what_it_is
from runbook.phases.ready_tokens import place, ready_pairs
from runbook.phases.text import input_files, token_groups
from runbook.plan import Check
from runbook.render import data_tasks
from runbook.units import show_bytes, show_duration

PHASE = "02-data"
STEP = "02-data--tokenize"

__all__ = [
    "bind",
    "fetch",
    "finish",
    "groups",
    "show_documents",
    "show_plan_beside",
    "show_source",
    "show_what_it_is",
    "tokenize",
    "tokenize_here",
    "verify",
]


def bind(namespace: Mapping[str, Any]) -> Campaign:
    """Check the parameters and open the record."""
    return campaigns.bind(PHASE, namespace)


def show_source(campaign: Campaign) -> None:
    """Where the text comes from, and whether every file is the promised one."""
    texts = campaign.settings.texts
    for text in texts:
        dataset = text.dataset
        rows = [
            ("dataset", f"{text.name}: {dataset.title}"),
            ("licence", dataset.licence),
            ("source", dataset.source),
            ("documents", f"{dataset.documents:,}" if dataset.documents else "not known before they are read"),
            ("tokens", f"{dataset.tokens:,}" if dataset.tokens else "not known before they are counted"),
        ]
        if len(texts) > 1:
            share = text.weight / sum(one.weight for one in texts)
            rows.append(("share of the samples", f"{share:.1%} (weight {text.weight:g} in data.blend)"))
        show_table([{"what": what, "value": value} for what, value in rows], title="The text")
    campaign.check([check for text in texts for check in source_checks(campaign, text)])


def fetch(campaign: Campaign) -> None:
    """Download what is not there, where the catalogue says from where; each file is checked."""
    settings = campaign.settings
    remote = [text.dataset for text in settings.texts if text.dataset.url and not text.folder]
    if not remote:
        show_text("Nothing is fetched: the text is shipped, made up, or lies where the run says.")
    for dataset in remote:
        with campaign.hold("downloading"), Progress("download", unit="bytes") as progress:
            found = download(dataset, project=settings.project, progress=partial(_tell, progress))
        show_text(f"{found.files:,} files, {show_bytes(found.bytes)} in {found.folder}: {found.fetched:,} fetched now")


def tokenize(campaign: Campaign) -> None:
    """Make the token files, or find them done; finished shards are never made again."""
    if campaign.plan.as_dict()["data"]["mock"]:
        show_text("Mock data: token ids are made up while training; there is nothing to tokenize.")
        return
    digest = phase_fingerprint(campaign.settings, campaign.plan, campaign.folder, PHASE)
    if not steps.what_is_missing(campaign.folder, STEP, digest):
        show_text("tokenize: done, verified. Nothing is made again.")
        return
    placed = place(campaign.settings, campaign.plan.as_dict()["data"], campaign.folder)
    if ready := ready_pairs(campaign.settings, campaign.plan.as_dict()["data"], campaign.folder):
        show_text(f"{len(ready)} pairs of token files were made elsewhere; they are read as they are.")
    if not groups(campaign):
        pass
    elif offload.wanted(campaign):
        offload.run_tasks(campaign, data_tasks(campaign.settings, sys.executable))
    else:
        tokenize_here(campaign)
    steps.write_mark(campaign.folder, STEP, VERSIONS[PHASE], digest, [*outputs(campaign), *placed])
    if made := [manifest_row(prefix) for _, prefix in groups(campaign)]:
        show_table(made, title="Token files")


def tokenize_here(campaign: Campaign) -> None:
    """Make the token files in this process and its workers."""
    options = tokens.TokenizeOptions.from_params(campaign.settings.run.data)
    with campaign.hold("tokenizing"), Progress("tokenize", unit="bytes") as progress:
        for inputs, prefix in groups(campaign):
            tokens.prepare(inputs, prefix, options, progress=lambda now: _tell(progress, now))


def _tell(progress: Progress, now: tokens.Progress) -> None:
    """The moment as facts beside the bar: per stage, with files, speed, time left, workers and failures."""
    made = {"documents": now.documents, "tokens": now.tokens} if now.tokens else {}
    shards = {"shards": f"{now.shards} of {now.shards_total}"} if now.shards_total else {}
    progress.update(
        done=now.bytes,
        total=now.bytes_total,
        stage=None if now.stage == "done" else now.stage,
        files=f"{now.files:,} of {now.files_total:,}",
        **shards,
        GB=f"{now.bytes / 1e9:.3f} of {now.bytes_total / 1e9:.3f}",
        **made,
        **{
            "MB/s" if now.stage == "download" else "MB/s of text": round(now.mb_per_second, 1),
            "to go": show_duration(now.eta_seconds) if now.eta_seconds else None,
            "workers": now.workers,
            "failures": now.failures,
        },
    )


def verify(campaign: Campaign) -> None:
    """Hold the token files against their manifests and against themselves."""
    if campaign.plan.as_dict()["data"]["mock"]:
        campaign.check([Check("token files", "unknown", "mock data", "there are no token files")])
        return
    found = pairs(campaign)
    for prefix in found:
        checks = tokens.verify(prefix)
        campaign.check(checks if len(found) == 1 else [_named(check, prefix) for check in checks])
    ready = ready_pairs(campaign.settings, campaign.plan.as_dict()["data"], campaign.folder)
    readers = [tokens.IndexedReader(Output.found(prefix).bin, Output.found(prefix).idx) for prefix in ready]
    manifests = [tokens.read_manifest(prefix) for prefix in found if prefix not in ready]
    sums = {key: sum(getattr(manifest, key) for manifest in manifests) for key in _SUMMED} if manifests else {}
    sums["documents"] = sums.get("documents", 0) + sum(reader.num_documents for reader in readers)
    sums["tokens"] = sums.get("tokens", 0) + sum(reader.num_tokens for reader in readers)
    for key, value in sums.items():
        campaign.session.result(key, value)
    campaign.session.plan["tokens"] = campaign.plan.as_dict()["data"]["estimated_tokens"] or None


def finish(campaign: Campaign) -> None:
    """Write the record and mark the phase done."""
    closing.finish(campaign, [])


def groups(campaign: Campaign) -> list[tuple[list[Path], Path]]:
    """(input files, prefix) of each pair of token files: one for all text, or one a file where files are held out."""
    return token_groups(campaign.settings, campaign.plan.as_dict()["data"], campaign.folder)


def source_checks(campaign: Campaign, text: Text) -> list[Check]:
    """Every file of a text there, with the promised size and checksum where they are promised."""
    settings, dataset = campaign.settings, text.dataset
    if dataset.kind == "mock":
        return [Check("files", "unknown", "mock data", "no text is needed")]
    if dataset.kind == TOKENIZED:
        found = token_prefixes(dataset, project=settings.project, folder=text.folder)
        rule = "each .bin has its .idx"
        return [
            Check(prefix.name, "pass", f"{Output.found(prefix).bin.stat().st_size:,} bytes", rule) for prefix in found
        ]
    if text.folder or not dataset.files:
        rule = "there is text; its checksums are not known beforehand"
        files = input_files(settings, text)
        return [Check(path.name, "pass", f"{path.stat().st_size:,} bytes", rule) for path in files]
    home = dataset_folder(dataset, project=settings.project)
    rule = "the file is there with the promised size and checksum"
    faults = {one: file_fault(home, one) for one in dataset.files}
    return [
        Check(one.path, "fail" if fault else "pass", fault or f"{one.bytes:,} bytes", rule)
        for one, fault in faults.items()
    ]


_SUMMED = ("documents", "tokens", "text_bytes", "skipped_records", "empty")


def outputs(campaign: Campaign) -> list[Path]:
    """The token files and their manifests."""
    files = [Output(prefix) for _, prefix in groups(campaign)]
    return [path for one in files for path in (one.bin, one.idx, one.manifest)]


def manifest_row(prefix: Path) -> dict[str, Any]:
    """What went in and came out of one pair of token files."""
    manifest = tokens.read_manifest(prefix)
    return {
        "files": prefix.name,
        "documents": manifest.documents,
        "text (B)": manifest.text_bytes,
        "tokens": manifest.tokens,
        "left out (records)": manifest.skipped_records,
        "time (s)": round(sum(manifest.seconds.values()), 2),
        "workers": manifest.workers,
    }


def _named(check: Check, prefix: Path) -> Check:
    return Check(f"{prefix.name}: {check.name}", check.verdict, check.value, check.rule)
