"""02-data: tokenizes the text, verifies the token files, and shows what they contain."""

import contextlib
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from runbook.core.checks import counted, judge
from runbook.core.errors import DataError
from runbook.core.table import Row
from runbook.core.units import show_bytes
from runbook.display import (
    CheckTable,
    Formula,
    Progress,
    Table,
    View,
    show_html,
    show_table,
    show_text,
)
from runbook.jobs.render.task_job import asks_for_queue, data_tasks
from runbook.params import Settings
from runbook.params.schema.entries import TOKENIZED, TextShare
from runbook.phases.job_control import task_jobs
from runbook.phases.messages import PhaseMessage
from runbook.phases.open_phase import binder
from runbook.phases.p02_data.share_checks import share_checks
from runbook.phases.phase_end import plain_end
from runbook.phases.phase_steps import TOKENIZING, token_outputs_of
from runbook.phases.recorded_checks import record_checks
from runbook.phases.steps import PhaseStep, run_only, step
from runbook.phases.token_inputs import (
    input_files,
    link_ready_tokens,
    ready_pairs,
    text_home,
    token_groups,
    tokenize_options,
)
from runbook.plan_file.phase_names import DATA, FULL, SMOKE
from runbook.planning import Check
from runbook.planning.data_plan import RECORD_SHARE, PlannedFiles, is_counted
from runbook.planning.data_rules import check_epochs, check_vocabulary
from runbook.planning.token_preparation import FUSED_BYTES_PER_SECOND
from runbook.records.session import Session
from runbook.results.figures import formulas
from runbook.results.figures.plan_figures import length_figure, source_figure
from runbook.results.plan_versus_actual import plan_versus_actual
from runbook.runs.planned_run import PlannedRun
from runbook.runs.step import StepState
from runbook.tokens.indexed_files import IndexedReader
from runbook.tokens.pipeline.amount_done import DataProgress
from runbook.tokens.pipeline.tokenize import prepare
from runbook.tokens.pipeline.tokenize_options import (
    Manifest,
    TokenFiles,
    read_manifest,
    unknown_sources,
    unknown_sources_text,
)
from runbook.tokens.sources.dataset_files import (
    expected_files,
    file_fault,
    has_every_file,
    holds_dataset,
    place_of,
    token_prefixes,
)
from runbook.tokens.sources.download import download
from runbook.tokens.sources.input_files import unread_text
from runbook.tokens.verification import sample_documents
from runbook.tokens.verification import verify as verify_tokens

PHASE = DATA
SHADES = (
    "rgba(0,114,178,.28)",
    "rgba(230,159,0,.32)",
    "rgba(0,158,115,.28)",
    "rgba(204,121,167,.30)",
)
"""Alternating background colours for tokens.

A thin line also marks each boundary; plain text has a bar there.
"""
bind = binder(PHASE)
finish = plain_end(PHASE)

AnyFiles = TypeVar("AnyFiles", bound=PlannedFiles)


SHARE_OF_SAMPLES = "share of the samples"
"""Row title for the share of a text in a blend."""
LEFT_OUT_BY_CHOICE = "left out by choice"
"""Row title for documents excluded because of their source."""


@step(takes=lambda opened: (opened.settings, opened.session))
def show_source(settings: Settings, session: Session) -> CheckTable:
    """Show the text source, and check files against their published sizes and checksums."""
    texts = settings.texts
    for text in texts:
        rows = _text_facts(text)
        if len(texts) > 1:
            share = text.weight / sum(text.weight for text in texts)
            rows.append(
                (
                    SHARE_OF_SAMPLES,
                    PhaseMessage.SHARE_OF_TEXT.fill(share=share, weight=text.weight),
                )
            )

        show_table([{"what": name, "value": value} for name, value in rows], title="The text")
        unread = _unread_files(settings, text)
        if unread:
            show_text(unread)

    checks: list[Check] = []
    for text in texts:
        checks += source_checks(settings, text)
    return record_checks(session, checks)


def _unread_files(settings: Settings, text: TextShare) -> str:
    """Return which files in the folder for a text are not read; the catalogue lists all others."""
    if text.dataset.kind in ("mock", TOKENIZED) or (text.dataset.files and not text.folder):
        return ""
    pattern = "*" if text.dataset.kind == "corpus" else text.dataset.pattern
    return unread_text([text_home(settings, text)], pattern)


def _text_facts(text: TextShare) -> list[tuple[str, str]]:
    """Return facts about a text from the catalogue as (name, value) pairs."""
    dataset = text.dataset
    documents = "not known before they are read"
    if dataset.documents:
        documents = f"{dataset.documents:,}"
    tokens = "not known before they are counted"
    if dataset.tokens:
        tokens = f"{dataset.tokens:,}"
    return [
        ("dataset", f"{text.name}: {dataset.title}"),
        ("licence", dataset.licence),
        ("source", dataset.source),
        ("documents", documents),
        ("tokens", tokens),
    ]


@step(takes=run_only)
def fetch(run: PlannedRun) -> None:
    """Download missing files that have a source in the catalogue, and check each file."""
    remote = [text for text in run.settings.texts if text.dataset.url]
    if not remote:
        show_text("Nothing to download: the text is shipped, synthetic, or in your own folder.")
    for text in remote:
        _fetch_text(run, text)


def _fetch_text(run: PlannedRun, text: TextShare) -> None:
    """Download the missing files for one text.

    A folder set by data.folder is not touched if it is complete or contains a different
    text.
    """
    dataset = text.dataset
    home = text_home(run.settings, text)
    if text.folder and has_every_file(home, dataset):
        show_text(PhaseMessage.HAS_EVERY_FILE.fill(home=home))
        return

    promised = [place_of(home, file) for file in expected_files(dataset)]
    is_begun = any(path.exists() for path in promised)
    if text.folder and holds_dataset(home, dataset) and not is_begun:
        show_text(PhaseMessage.HAS_OTHER_FILES.fill(home=home, name=text.name))
        return

    with run.hold("downloading"), Progress("download", unit="bytes") as progress:
        summary = download(
            dataset,
            project=run.settings.project,
            folder=str(home),
            progress=lambda state: progress.update(**state.as_facts()),
        )

    show_text(
        PhaseMessage.FETCHED_NOW.fill(
            files=counted(summary.files, "file"),
            size=show_bytes(summary.bytes),
            folder=summary.folder,
            fetched=summary.fetched,
        )
    )


@step(takes=run_only, work=TOKENIZING)
def tokenize(run: PlannedRun) -> None:
    """Make the token files unless they are complete. Finished shards are never repeated."""
    settings = run.settings
    plan = run.plan.data
    if plan.mock:
        show_text(
            "This run uses mock data: token ids are generated during training, so there is "
            "nothing to tokenize."
        )
        return

    tokenizing = TOKENIZING.of(run)
    status = tokenizing.status()
    if status.state is StepState.OUTPUT_CHANGED:
        # Complete files with a manifest are not rebuilt, so a changed file would be recorded as the
        # original.
        tokenizing.refuse(status)

    if status.state is StepState.DONE:
        show_text(PhaseMessage.TOKENIZED_ALREADY.fill())
        return

    link_ready_tokens(settings, plan, run.folder)
    ready = ready_pairs(settings, plan, run.folder)
    if ready:
        show_text(PhaseMessage.TOKEN_FILES_MADE_ELSEWHERE.fill(number_of_ready=len(ready)))

    groups = token_groups(settings, plan, run.folder)
    if groups and asks_for_queue(settings, PHASE):
        task_jobs.run_tasks(run, PHASE, data_tasks(settings, sys.executable))
    elif groups:
        _tokenize_here(run, groups)

    # A text file added during the work is not in any group. The next call finds it.
    tokenized = replace(tokenizing, outputs=lambda: token_outputs_of(run, groups))
    tokenized.mark_done()
    if groups:
        tokens = sum(read_manifest(prefix).tokens for _, prefix in groups)
        show_text(
            f"{tokens:,} tokens in {counted(len(groups), 'pair')} of token files; their content is "
            "shown below."
        )


def _tokenize_here(run: PlannedRun, groups: Sequence[tuple[list[Path], Path]]) -> None:
    """Make pairs of token files on this machine, and show progress in a line."""
    options = tokenize_options(run.settings)
    with run.hold("tokenizing"), Progress("tokenize", unit="bytes") as progress:

        def show_state(state: DataProgress) -> None:
            progress.update(**state.as_facts())

        for inputs, prefix in groups:
            prepare(inputs, prefix, options, progress=show_state)


@step(takes=lambda opened: (opened.run, opened.session))
def verify(run: PlannedRun, session: Session) -> CheckTable:
    """Compare the token files with their manifests, and check that they are consistent.

    The counts are stored in the record.
    """
    if run.plan.data.mock:
        return record_checks(
            session, [Check("token files", "unknown", "mock data", "there are no token files")]
        )

    prefixes = token_prefixes_of(run)
    ready = ready_pairs(run.settings, run.plan.data, run.folder)
    manifests = []
    for prefix in prefixes:
        if prefix not in ready:
            manifests.append(read_manifest(prefix))

    results = _counted_results(manifests, ready)
    checks: list[Check] = []
    for prefix in prefixes:
        label = ""
        if len(prefixes) > 1:
            label = f"{prefix.name}: "
        for check in verify_tokens(prefix):
            checks.append(replace(check, name=label + check.name))

    checks += check_sources(manifests)
    checks += vocabulary_checks(run.settings, _read_manifests(run))
    checks += _epoch_checks(run, ready)
    checks += share_checks(run)
    verdicts = record_checks(session, checks)
    session.add_results(results)
    session.plan["tokens"] = run.plan.data.estimated_tokens or None
    return verdicts


def _epoch_checks(run: PlannedRun, ready: Sequence[Path]) -> list[Check]:
    """Apply the rules about epochs that the plan could not apply to a text with uncounted tokens."""
    unknown = {check.name for check in run.plan.checks if check.verdict == "unknown"}
    planned_texts = run.plan.data.parts or (run.plan.data,)
    was_counted = all(text.estimated_tokens for text in planned_texts)

    def with_counted_tokens(files: AnyFiles) -> AnyFiles:
        names = {*files.train, *files.validation, *files.test}
        prefixes = [run.folder / name for name in sorted(names)]
        num_tokens = sum(_num_tokens(prefix, prefix in ready) for prefix in prefixes)
        return replace(files, estimated_tokens=num_tokens)

    parts = tuple(with_counted_tokens(part) for part in run.plan.data.parts)
    data = with_counted_tokens(replace(run.plan.data, parts=parts))
    checks: list[Check] = []
    for phase in (SMOKE, FULL):
        checks += check_epochs(phase, run.plan.phases[phase].duration.tokens, data)
    return [check for check in checks if check.name in unknown or not was_counted]


def _num_tokens(prefix: Path, is_ready_made: bool) -> int:
    """Count the tokens in a pair of files; ready-made files have no manifest."""
    if not is_ready_made:
        return read_manifest(prefix).tokens
    files = TokenFiles.existing(prefix)
    return IndexedReader(files.bin, files.idx).num_tokens


def _counted_results(manifests: Sequence[Manifest], ready: Sequence[Path]) -> dict[str, int]:
    """Return the counts in the manifests plus documents and tokens in ready-made files.

    Ready-made files have no manifest, so a run that has only such files gets only these two counts.
    """
    counts: dict[str, int] = {"documents": 0, "tokens": 0}
    if manifests:
        for key in ("documents", "tokens", "text_bytes", "skipped_records", "empty"):
            counts[key] = sum(getattr(manifest, key) for manifest in manifests)

    for prefix in ready:
        files = TokenFiles.existing(prefix)
        reader = IndexedReader(files.bin, files.idx)
        counts["documents"] += reader.num_documents
        counts["tokens"] += reader.num_tokens

    return counts


def check_sources(manifests: Sequence[Manifest]) -> list[Check]:
    """Warn about chosen or excluded sources that occur in no record.

    Return no check if no source was chosen or excluded.
    """
    if not any(unknown_sources(manifests)):
        return []
    rule = "the text contains every source named in data.keep_sources and data.drop_sources"
    remedy = "Correct the name. Otherwise the run trains on unintended text."
    return [
        Check(
            "sources",
            "warn",
            unknown_sources_text(*manifests),
            rule,
            remedy,
        )
    ]


def vocabulary_checks(settings: Settings, manifests: Sequence[Manifest]) -> list[Check]:
    """Check that ids from each tokenizer in the manifests fit the vocabularies of both models."""
    vocabulary_sizes = {}
    for manifest in manifests:
        name = str(manifest.tokenizer["name"])
        vocabulary_sizes[name] = int(manifest.tokenizer["vocabulary"])

    checks: list[Check] = []
    for name, size in vocabulary_sizes.items():
        checks += check_vocabulary(settings, size, f"the tokenizer {name}")
    return checks


def source_checks(settings: Settings, text: TextShare) -> list[Check]:
    """Check every file for a text against its published size and checksum, if there are any."""
    dataset = text.dataset
    if dataset.kind == "mock":
        return [Check("files", "unknown", "mock data", "no text is needed")]
    if dataset.kind == TOKENIZED:
        return _token_file_checks(settings, text)
    if text.folder or not dataset.files:
        rule = "there is text; its checksums are not known beforehand"
        files = input_files(settings, text)
        return [Check(path.name, "pass", show_bytes(path.stat().st_size), rule) for path in files]

    home = text_home(settings, text)
    rule = "the file exists with the published size and checksum"
    checks = []
    for file in dataset.files:
        fault = file_fault(home, file)
        checks.append(judge(file.path, not fault, fault or show_bytes(file.bytes), rule))

    return checks


def _token_file_checks(settings: Settings, text: TextShare) -> list[Check]:
    """Return a check for each pair of token files created elsewhere."""
    home = text_home(settings, text)
    bin_bytes = {}
    for prefix in token_prefixes(text.dataset, project=settings.project, folder=str(home)):
        bin_bytes[prefix.name] = TokenFiles.existing(prefix).bin.stat().st_size
    rule = "each .bin has its .idx"
    return [Check(name, "pass", show_bytes(size), rule) for name, size in bin_bytes.items()]


def token_prefixes_of(run: PlannedRun) -> list[Path]:
    """Return the prefixes for all token files in the run, whether created here or ready-made."""
    data = run.plan.data
    prefixes = [prefix for _, prefix in token_groups(run.settings, data, run.folder)]
    return prefixes + ready_pairs(run.settings, data, run.folder)


@step(takes=run_only)
def show_what_it_is(run: PlannedRun) -> View:
    """Return a results table, with figures for document lengths and sources."""
    manifests = _read_manifests(run)
    if not manifests:
        return View(["There is no manifest, because this run tokenized no text."])
    facts = [{"what": name, "value": value} for name, value in _manifest_facts(manifests)]
    view = View([Table(facts, "What the data is")])
    sources = _source_rows(manifests)
    if sources:
        view.append(Table(sources, "By source"))
    view.append(_lengths_figure(manifests, run.plan.model.shape.sequence_length))
    if sources:
        figure = source_figure({row["source"]: row["tokens"] for row in sources})
        view.append((figure, "Tokens of each source; the numbers are in the table."))

    num_tokens = sum(manifest.tokens for manifest in manifests)
    view.append(Formula(*formulas.epochs(run.plan, FULL, num_tokens)))
    return view


def _lengths_figure(manifests: Sequence[Manifest], sequence_length: int) -> tuple[Any, str]:
    """Draw the document lengths, and return the figure and its counts as text."""
    histograms = [manifest.lengths for manifest in manifests]
    lengths = [sum(counts) for counts in zip_longest(*histograms, fillvalue=0)]
    # Entry n in a histogram counts documents with 2^n to 2^(n+1) - 1 tokens.
    ranges = []
    for exponent, count in enumerate(lengths):
        if count:
            shortest = 2**exponent
            longest = 2 ** (exponent + 1) - 1
            ranges.append(f"{count:,} of {shortest:,} to {longest:,}")

    text = f"Documents by their number of tokens: {', '.join(ranges)}."
    return length_figure(lengths, sequence_length), text


@step(takes=run_only)
def show_plan_beside(run: PlannedRun) -> View:
    """Return estimates from the plan next to the counts, and the throughput in each stage."""
    manifests = _read_manifests(run)
    if not manifests:
        return View(["There is nothing to compare, because this run tokenized no text."])
    table = plan_versus_actual(_planned_work(run), _counted_work(manifests))
    rows = table.rows
    has_remarks = any(row["remark"] for row in rows)
    if not has_remarks:
        rows = [{name: row[name] for name in row if name != "remark"} for row in rows]

    longest = max(manifests, key=lambda manifest: manifest.seconds["wall"])
    planned_mb_per_second = FUSED_BYTES_PER_SECOND / RECORD_SHARE / 1e6 * longest.workers
    rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in longest.rates.items())
    text = f"MB of text per second: {rates}; plan {planned_mb_per_second:,.0f}."
    return View([replace(table, rows=rows, title=PhaseMessage.PLANNED_AND_FOUND.fill()), text])


def _planned_work(run: PlannedRun) -> dict[str, float | None]:
    """Return the estimates from the plan. A value is None if the plan has no such estimate."""
    plan = run.plan
    planned: dict[str, float | None] = {
        "tokens": plan.data.estimated_tokens or None,
        "token files (MB)": None,
        "text (MB)": None,
        "time on one core (s)": None,
    }
    if plan.data.estimated_bytes:
        planned["token files (MB)"] = plan.data.estimated_bytes / 1e6
    text_sizes = []
    for text in run.settings.texts:
        text_sizes.append(text.dataset.text_bytes if is_counted(text) else 0)

    # If the size of one text is unknown, so is the total.
    if text_sizes and all(text_sizes):
        planned["text (MB)"] = sum(text_sizes) / 1e6
    if plan.data_work and plan.data_work[0].core_hours is not None:
        planned["time on one core (s)"] = 3600 * plan.data_work[0].core_hours
    return planned


def _counted_work(manifests: Sequence[Manifest]) -> dict[str, float]:
    """Return the counts in the manifests, under the same names as the planned estimates."""
    file_bytes = 0
    core_seconds = 0.0
    for manifest in manifests:
        file_bytes += sum(file["bytes"] for file in manifest.files.values())
        for stage in ("read", "parse", "encode", "write"):
            core_seconds += manifest.seconds.get(stage, 0.0)

    return {
        "tokens": sum(manifest.tokens for manifest in manifests),
        "token files (MB)": file_bytes / 1e6,
        "text (MB)": sum(manifest.text_bytes for manifest in manifests) / 1e6,
        "time on one core (s)": core_seconds,
    }


@step(takes=run_only)
def show_documents(run: PlannedRun) -> None:
    """Show decoded documents, with adjacent tokens in different colours."""
    if run.plan.data.mock:
        show_text("Mock data has no documents.")
        return

    prefix = token_prefixes_of(run)[0]
    if not TokenFiles.existing(prefix).manifest.exists():
        show_text(f"{prefix.name} has no manifest, so the tokenizer that can decode it is unknown.")
        return

    for document in sample_documents(prefix, 2, max_tokens=120):
        title = (
            f"Document {document.number}, first {len(document.ids)} of {document.tokens:,} tokens"
        )
        spans = coloured_tokens(zip(document.ids, document.pieces, strict=True))
        html = (
            f"<div><b>{title}</b><pre "
            f'style="white-space:pre-wrap;line-height:1.6">{spans}</pre></div>'
        )
        show_html(html, f"{title}:\n" + "|".join(document.pieces))


def coloured_tokens(pieces: Iterable[tuple[int, str]]) -> str:
    """Return tokens as HTML that needs no script or style sheet.

    The HTML therefore looks the same in a saved notebook, a report and an e-mail.
    """
    spans = []
    for index, (number, piece) in enumerate(pieces):
        shade = SHADES[index % len(SHADES)]
        style = f"background:{shade};border-left:1px solid rgba(128,128,128,.7)"
        spans.append(f'<span title="{number}" style="{style}">{escape(piece)}</span>')

    return "".join(spans)


def _read_manifests(run: PlannedRun) -> list[Manifest]:
    """Read the manifests for all pairs created here."""
    if run.plan.data.mock:
        return []
    manifests = []
    for prefix in token_prefixes_of(run):
        with contextlib.suppress(DataError):  # Token files created elsewhere have no manifest.
            manifests.append(read_manifest(prefix))

    return manifests


def _manifest_facts(manifests: list[Manifest]) -> list[tuple[str, str]]:
    """Return the facts about the token files created here as (name, value) pairs."""

    def total(key: str) -> int:
        return sum(getattr(manifest, key) for manifest in manifests)

    tokenizer = manifests[0].tokenizer
    text_bytes = total("text_bytes")
    text_tokens = total("text_tokens")
    end_tokens = total("tokens") - text_tokens
    bytes_per_token = text_bytes / max(1, text_tokens)
    tokens_per_document = text_tokens / max(1, total("sequences"))
    return [
        ("input", _input_text(manifests)),
        (
            "text",
            PhaseMessage.DOCUMENTS_OF_TEXT.fill(
                size=show_bytes(text_bytes),
                documents=counted(total("documents"), "document"),
                empty=total("empty"),
            ),
        ),
        ("tokens", f"{total('tokens'):,}, {end_tokens:,} of them end-of-document tokens"),
        ("bytes of text per token", f"{bytes_per_token:.2f}"),
        ("mean document", f"{tokens_per_document:,.0f} tokens"),
        (
            "tokenizer",
            f"{tokenizer['name']}, {tokenizer['vocabulary']:,} tokens, by {tokenizer['encoder']}",
        ),
        (
            "compared with",
            PhaseMessage.NO_TEXT_DIFFERS.fill(judge=tokenizer["judge"], judged=total("judged")),
        ),
        ("token files", _token_files_text(manifests)),
        (
            "left out as bad",
            PhaseMessage.BAD_INPUT.fill(
                records=counted(total("skipped_records"), "record"),
                files=counted(total("skipped_files"), "file"),
            ),
        ),
        (LEFT_OUT_BY_CHOICE, _left_out_by_choice(manifests)),
    ]


def _input_text(manifests: Sequence[Manifest]) -> str:
    """Return how many text files were read, and their size."""
    num_files = sum(len(manifest.inputs) for manifest in manifests)
    num_bytes = 0
    for manifest in manifests:
        num_bytes += sum(file["bytes"] for file in manifest.inputs)
    return f"{counted(num_files, 'file')}, {show_bytes(num_bytes)}"


def _token_files_text(manifests: Sequence[Manifest]) -> str:
    """Return the sizes of all .bin and .idx files."""
    bin_bytes = sum(manifest.files["bin"]["bytes"] for manifest in manifests)
    idx_bytes = sum(manifest.files["idx"]["bytes"] for manifest in manifests)
    dtype = manifests[0].dtype
    return f"{show_bytes(bin_bytes)} .bin ({dtype}), {show_bytes(idx_bytes)} .idx"


def _left_out_by_choice(manifests: list[Manifest]) -> str:
    """Return how many documents were excluded, and their sources."""
    sources: Counter[str] = Counter()
    for manifest in manifests:
        sources.update(manifest.dropped_sources)
    whole = sum(manifest.dropped for manifest in manifests)
    named = ", ".join(
        PhaseMessage.DOCUMENTS_OF_SOURCE.fill(documents=count, source=name)
        for name, count in sources.most_common()
    )
    if not named:
        return counted(whole, "document")
    return PhaseMessage.DOCUMENTS_LEFT_OUT.fill(documents=counted(whole, "document"), sources=named)


def _source_rows(manifests: list[Manifest]) -> list[Row]:
    """Return documents, bytes and tokens for each source, summed over all pairs.

    Sources with the most tokens come first.
    """
    sources: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for manifest in manifests:
        for name, counts in manifest.sources.items():
            sources[name].update(counts)

    all_tokens = sum(counts["tokens"] for counts in sources.values()) or 1
    rows: list[Row] = []
    for name, counts in sorted(sources.items(), key=lambda item: -item[1]["tokens"]):
        tokens = counts["tokens"]
        text_bytes = counts["text_bytes"]
        rows.append(
            {
                "source": name,
                "documents": counts["documents"],
                "text (B)": text_bytes,
                "tokens": tokens,
                "share": f"{tokens / all_tokens:.1%}",
                "B per token": round(text_bytes / max(1, tokens), 2),
            }
        )

    return rows


STEPS: tuple[PhaseStep[Any], ...] = (
    fetch,
    show_source,
    tokenize,
    verify,
    show_documents,
    show_what_it_is,
    show_plan_beside,
    finish,
)
