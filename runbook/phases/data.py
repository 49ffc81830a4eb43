"""02-data: from text to verified token files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from runbook import data as tokens
from runbook.data.options import Output
from runbook.data.sources import dataset_folder, file_fault
from runbook.display import Progress, show_html, show_table, show_text
from runbook.params import Settings
from runbook.phases import campaign as campaigns
from runbook.phases import closing, offload, steps
from runbook.phases.campaign import VERSIONS, Campaign, phase_fingerprint
from runbook.phases.text import input_files, token_groups
from runbook.plan import Check
from runbook.render import Task

PHASE = "02-data"
STEP = "02-data--tokenize"
SHADES = ("rgba(0,114,178,.22)", "rgba(230,159,0,.26)")
"""Alternating backgrounds of tokens; the boundary is also marked in the text form."""


def bind(namespace: Mapping[str, Any]) -> Campaign:
    """Check the parameters and open the record."""
    return campaigns.bind(PHASE, namespace)


def show_source(campaign: Campaign) -> None:
    """Where the text comes from, and whether every file is the promised one."""
    dataset = campaign.settings.dataset
    rows = [
        ("dataset", f"{campaign.settings.run.data.dataset}: {dataset.title}"),
        ("licence", dataset.licence),
        ("source", dataset.source),
        ("documents", f"{dataset.documents:,}" if dataset.documents else "not known before they are read"),
        ("tokens", f"{dataset.tokens:,}" if dataset.tokens else "not known before they are counted"),
    ]
    show_table([{"what": what, "value": value} for what, value in rows], title="The text")
    campaign.check(source_checks(campaign))


def tokenize(campaign: Campaign) -> None:
    """Make the token files, or find them done; finished shards are never made again."""
    if campaign.plan.as_dict()["data"]["mock"]:
        show_text("Mock data: token ids are made up while training; there is nothing to tokenize.")
        return
    digest = phase_fingerprint(campaign.settings, campaign.plan, campaign.folder, PHASE)
    if not steps.what_is_missing(campaign.folder, STEP, digest):
        show_text("tokenize: done, verified. Nothing is made again.")
        return
    if offload.wanted(campaign):
        offload.run_tasks(campaign, tasks(campaign.settings))
    else:
        tokenize_here(campaign)
    steps.write_mark(campaign.folder, STEP, VERSIONS[PHASE], digest, outputs(campaign))
    show_table([manifest_row(prefix) for _, prefix in groups(campaign)], title="Token files")


def tasks(settings: Settings, python: str = sys.executable) -> list[Task]:
    """The jobs that tokenize where the site asks for them: an array with a share each, then one that joins."""
    argv = (python, "-m", "runbook.phases.share", str(settings.project))
    if settings.job(PHASE).array < 2:
        return [Task("tokenize", argv)]
    return [Task("tokenize a share each", argv, is_array=True), Task("join the shares", (*argv, "--join"), part="join")]


def tokenize_here(campaign: Campaign) -> None:
    """Make the token files in this process and its workers."""
    options = tokens.TokenizeOptions.from_params(campaign.settings.run.data)
    with campaign.hold("tokenizing"), Progress("tokenize", unit="bytes") as progress:
        for inputs, prefix in groups(campaign):

            def tell(now: tokens.Progress) -> None:
                progress.update(
                    done=now.bytes,
                    total=now.bytes_total,
                    documents=now.documents,
                    tokens=now.tokens,
                    **{"MB/s of text": round(now.mb_per_second, 1), "workers": now.workers, "failures": now.failures},
                )

            tokens.prepare(inputs, prefix, options, progress=tell)


def verify(campaign: Campaign) -> None:
    """Hold the token files against their manifests and against themselves."""
    if campaign.plan.as_dict()["data"]["mock"]:
        campaign.check([Check("token files", "unknown", "mock data", "there are no token files")])
        return
    pairs = groups(campaign)
    for _, prefix in pairs:
        checks = tokens.verify(prefix)
        campaign.check(checks if len(pairs) == 1 else [_named(check, prefix) for check in checks])
    manifests = [tokens.read_manifest(prefix) for _, prefix in pairs]
    for key in ("documents", "tokens", "text_bytes", "skipped_records", "empty"):
        campaign.session.result(key, sum(getattr(manifest, key) for manifest in manifests))
    campaign.session.plan["tokens"] = campaign.plan.as_dict()["data"]["estimated_tokens"] or None


def show_documents(campaign: Campaign) -> None:
    """One document decoded back, each token beside the next."""
    if campaign.plan.as_dict()["data"]["mock"]:
        show_text("Mock data has no documents.")
        return
    _, prefix = groups(campaign)[0]
    for document in tokens.show(prefix, 1, max_tokens=120):
        spans = "".join(
            f'<span style="background:{SHADES[place % 2]}">{escape(piece)}</span>'
            for place, piece in enumerate(document.pieces)
        )
        title = f"Document {document.number}, first {len(document.ids)} of {document.tokens:,} tokens"
        show_html(
            f'<div><b>{title}</b><pre style="white-space:pre-wrap">{spans}</pre></div>',
            f"{title}:\n" + "|".join(document.pieces),
        )


def finish(campaign: Campaign) -> None:
    """Write the record and mark the phase done."""
    closing.finish(campaign, [])


def groups(campaign: Campaign) -> list[tuple[list[Path], Path]]:
    """(input files, prefix) of each pair of token files: one for all text, or one a file where files are held out."""
    return token_groups(campaign.settings, campaign.plan.as_dict()["data"], campaign.folder)


def source_checks(campaign: Campaign) -> list[Check]:
    """Every file there, with the promised size and checksum where they are promised."""
    settings = campaign.settings
    if settings.dataset.kind == "mock":
        return [Check("files", "unknown", "mock data", "no text is needed")]
    if settings.run.data.folder or not settings.dataset.files:
        rule = "there is text; its checksums are not known beforehand"
        return [Check(path.name, "pass", f"{path.stat().st_size:,} bytes", rule) for path in input_files(settings)]
    home = dataset_folder(settings.dataset, project=settings.project)
    rule = "the file is there with the promised size and checksum"
    faults = {one: file_fault(home, one) for one in settings.dataset.files}
    return [
        Check(one.path, "fail" if fault else "pass", fault or f"{one.bytes:,} bytes", rule)
        for one, fault in faults.items()
    ]


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
