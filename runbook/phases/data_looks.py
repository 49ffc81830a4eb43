"""What the data is, in words and pictures: tables, plots and documents of the token files, and the plan beside them."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from runbook import data as tokens
from runbook.analysis.data_figures import length_figure, source_figure, speed_figure
from runbook.analysis.drawing import as_svg
from runbook.data.manifest import Manifest
from runbook.data.options import Output
from runbook.display import show_figure, show_html, show_table, show_text
from runbook.errors import DataError
from runbook.phases.campaign import Campaign
from runbook.phases.ready_tokens import ready_pairs
from runbook.phases.text import token_groups
from runbook.plan.data_work import FUSED_BYTES_PER_SECOND, RECORD_SHARE
from runbook.units import show_bytes, show_duration

SHADES = ("rgba(0,114,178,.28)", "rgba(230,159,0,.32)", "rgba(0,158,115,.28)", "rgba(204,121,167,.30)")
"""Backgrounds of tokens in turn; the boundary is also a thin line, and a bar in the text form."""
SHOWN_DOCUMENTS = 2


def pairs(campaign: Campaign) -> list[Path]:
    """The prefixes of all token files of the run: those that are made here, or those that came ready."""
    settings, data = campaign.settings, campaign.plan.as_dict()["data"]
    made = [prefix for _, prefix in token_groups(settings, data, campaign.folder)]
    return made + ready_pairs(settings, data, campaign.folder)


def show_what_it_is(campaign: Campaign) -> None:
    """One table of what came out, and pictures of how long documents are and where they come from."""
    found = manifests(campaign)
    if not found:
        show_text("There is no manifest: no text became tokens in this run.")
        return
    show_table([{"what": what, "value": value} for what, value in facts(found)], title="What the data is")
    sources = by_source(found)
    if sources:
        show_table(source_rows(sources), title="By source")
    lengths = joined([manifest.lengths for manifest in found])
    sequence = int(campaign.plan.as_dict()["model"]["sequence_length"])
    words = ", ".join(
        f"{count:,} of {2**place:,} to {2 ** (place + 1) - 1:,}" for place, count in enumerate(lengths) if count
    )
    show_figure(as_svg(length_figure(lengths, sequence)).text, f"Documents by their number of tokens: {words}.")
    if sources:
        counts = {name: values["tokens"] for name, values in sources.items()}
        show_figure(as_svg(source_figure(counts)).text, "Tokens of each source; the numbers are in the table.")


def show_plan_beside(campaign: Campaign) -> None:
    """The plan's estimates beside what was counted, with the difference; and the speed along the way."""
    found = manifests(campaign)
    if not found:
        show_text("There is nothing to compare: no text became tokens in this run.")
        return
    show_table(beside(campaign, found), title="Planned and found")
    longest = max(found, key=lambda manifest: len(manifest.speed))
    planned = FUSED_BYTES_PER_SECOND / RECORD_SHARE / 1e6 * longest.workers
    rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in longest.rates.items())
    show_figure(
        as_svg(speed_figure(longest.speed, planned)).text, f"MB of text a second: {rates}; plan {planned:,.0f}."
    )


def show_documents(campaign: Campaign) -> None:
    """Documents decoded back, each token in another colour than the next."""
    if campaign.plan.as_dict()["data"]["mock"]:
        show_text("Mock data has no documents.")
        return
    prefix = pairs(campaign)[0]
    if not Output.found(prefix).manifest.exists():
        show_text(f"{prefix.name} has no manifest, which would name the tokenizer that can decode it.")
        return
    for document in tokens.show(prefix, SHOWN_DOCUMENTS, max_tokens=120):
        title = f"Document {document.number}, first {len(document.ids)} of {document.tokens:,} tokens"
        spans = coloured(zip(document.ids, document.pieces, strict=True))
        html = f'<div><b>{title}</b><pre style="white-space:pre-wrap;line-height:1.6">{spans}</pre></div>'
        show_html(html, f"{title}:\n" + "|".join(document.pieces))


def coloured(pieces: Iterable[tuple[int, str]]) -> str:
    """Tokens as HTML that needs no script and no style sheet: the same in a saved notebook, a report, a mail."""
    return "".join(
        f'<span title="{number}" style="background:{SHADES[place % len(SHADES)]};'
        f'border-left:1px solid rgba(128,128,128,.7)">{escape(piece)}</span>'
        for place, (number, piece) in enumerate(pieces)
    )


def manifests(campaign: Campaign) -> list[Manifest]:
    """Of all pairs that were made here."""
    if campaign.plan.as_dict()["data"]["mock"]:
        return []
    found = []
    for prefix in pairs(campaign):
        try:
            found.append(tokens.read_manifest(prefix))
        except DataError:
            continue  # made elsewhere
    return found


def facts(found: list[Manifest]) -> list[tuple[str, str]]:
    """What came out, in words."""
    total = {key: sum(getattr(manifest, key) for manifest in found) for key in _SUMMED}
    files = [file for manifest in found for file in manifest.inputs]
    tokenizer = found[0].tokenizer
    text_tokens = sum(manifest.text_tokens for manifest in found)
    out = {kind: sum(manifest.files[kind]["bytes"] for manifest in found) for kind in ("bin", "idx")}
    return [
        ("input", f"{len(files):,} files, {show_bytes(sum(file['bytes'] for file in files))}"),
        (
            "text",
            f"{total['text_bytes']:,} bytes in {total['documents']:,} documents, {total['empty']:,} of them empty",
        ),
        ("tokens", f"{total['tokens']:,}, {total['tokens'] - text_tokens:,} of them ends of documents"),
        ("bytes of text to a token", f"{total['text_bytes'] / max(1, text_tokens):.2f}"),
        ("mean document", f"{text_tokens / max(1, total['sequences']):,.0f} tokens"),
        ("tokenizer", f"{tokenizer['name']}, {tokenizer['vocabulary']:,} tokens, by {tokenizer['encoder']}"),
        ("compared with", f"{tokenizer['judge']}: {total['judged']:,} sampled texts, none differs"),
        ("token files", f"{show_bytes(out['bin'])} .bin ({found[0].dtype}), {show_bytes(out['idx'])} .idx"),
        ("left out as bad", f"{total['skipped_records']:,} records, {total['skipped_files']:,} files"),
        ("left out by choice", f"{total['dropped']:,} documents"),
    ]


_SUMMED = (
    *("documents", "empty", "sequences", "tokens", "text_bytes", "judged"),
    *("skipped_records", "skipped_files", "dropped"),
)


def beside(campaign: Campaign, found: list[Manifest]) -> list[dict[str, Any]]:
    """Rows of planned and found."""
    plan = campaign.plan.as_dict()
    one_pass: dict[str, Any] = next(iter(plan["data_work"]), {})
    text = sum(manifest.text_bytes for manifest in found)
    stages = ("read", "parse", "encode", "write")
    core_seconds = sum(manifest.seconds.get(stage, 0.0) for manifest in found for stage in stages)
    written = sum(file["bytes"] for manifest in found for file in manifest.files.values())
    hours = one_pass.get("core_hours")
    rows: list[tuple[str, float | None, float, Any]] = [
        ("tokens", plan["data"]["estimated_tokens"] or None, sum(manifest.tokens for manifest in found), _count),
        ("token files", plan["data"]["estimated_bytes"] or None, written, lambda value: show_bytes(int(value))),
        ("text", _catalogued(campaign) or None, text, lambda value: show_bytes(int(value))),
        ("time on one core", None if hours is None else 3600 * hours, core_seconds, show_duration),
    ]
    return [
        {
            "what": what,
            "planned": "not known" if planned is None else show(planned),
            "found": show(actual),
            "difference": "" if not planned else f"{actual / planned - 1:+.1%}",
        }
        for what, planned, actual, show in rows
    ]


def _catalogued(campaign: Campaign) -> int:
    """Bytes of text by the catalogue; 0 where it does not know one of them."""
    sizes = [text.dataset.text_bytes for text in campaign.settings.texts]
    return sum(sizes) if all(sizes) else 0


def _count(value: float) -> str:
    return f"{value:,.0f}"


def by_source(found: list[Manifest]) -> dict[str, dict[str, int]]:
    """Documents, bytes and tokens of each source, over all pairs."""
    sums: dict[str, dict[str, int]] = {}
    for manifest in found:
        for name, values in manifest.sources.items():
            mine = sums.setdefault(name, dict.fromkeys(values, 0))
            for key, value in values.items():
                mine[key] += value
    return sums


def source_rows(sources: dict[str, dict[str, int]]) -> list[dict[str, Any]]:
    """Largest first, with shares."""
    whole = sum(values["tokens"] for values in sources.values()) or 1
    return [
        {
            "source": name,
            "documents": values["documents"],
            "text (B)": values["text_bytes"],
            "tokens": values["tokens"],
            "share": f"{values['tokens'] / whole:.1%}",
            "bytes to a token": round(values["text_bytes"] / max(1, values["tokens"]), 2),
        }
        for name, values in sorted(sources.items(), key=lambda one: -one[1]["tokens"])
    ]


def joined(lists: list[list[int]]) -> list[int]:
    """Sums by place.

    >>> joined([[1, 2], [0, 0, 5]])
    [1, 2, 5]
    """
    return [sum(each[place] for each in lists if place < len(each)) for place in range(max(map(len, lists), default=0))]
