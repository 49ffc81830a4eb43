"""`runbook data`: the data phase without a notebook (tokenize, verify, show, download)."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runbook.cli.messages import CliMessage
from runbook.cli.options import AS_JSON, AT_LEAST_1
from runbook.cli.signals import ended_in_order

if TYPE_CHECKING:
    from runbook.tokens.pipeline.tokenize_options import Manifest, TokenizeOptions

_PATH = click.Path(path_type=Path)


@click.group()
def data() -> None:
    """Tokenize, verify and show training data without a notebook."""


def _prefix(_: click.Context, __: click.Parameter, value: str) -> Path:
    """Return the prefix for the output files. Refuse a folder without a file name.

    A full file name (corpus_text_document.bin) means its prefix.
    """
    if value.endswith("/") or Path(value).name in ("", ".."):
        folder = value.rstrip("/") or "."
        raise click.BadParameter(CliMessage.FOLDER_NOT_A_PREFIX.fill(value=value, folder=folder))

    return Path(value.removesuffix(".bin").removesuffix(".idx"))


def _existing_prefix(context: click.Context, parameter: click.Parameter, value: str) -> Path:
    """Return the prefix for token files. For a folder, name the prefixes in it."""
    folder = Path(value)
    # A folder may have the same name as the prefix next to it.
    if not folder.is_dir() or Path(f"{value}_text_document.idx").exists():
        return _prefix(context, parameter, value)
    prefixes = sorted(str(path.with_suffix("")) for path in folder.glob("*.idx"))
    if prefixes:
        text = CliMessage.FOLDER_OF_PREFIXES.fill(folder=value, prefixes=", ".join(prefixes))
    else:
        text = CliMessage.FOLDER_WITHOUT_TOKENS.fill(folder=value)
    raise click.BadParameter(text)


@data.command(short_help="Turn text into .bin and .idx files.")
@click.argument("inputs", nargs=-1, required=True, type=_PATH, metavar="INPUT...")
@click.option(
    "--out",
    "prefix",
    required=True,
    callback=_prefix,
    metavar="PREFIX",
    help="Files are PREFIX_text_document.bin, PREFIX_text_document.idx and PREFIX.manifest.json.",
)
@click.option(
    "--tokenizer",
    default="gpt2",
    show_default=True,
    help="gpt2, a tokenizer.json, or a SentencePiece .model.",
)
@click.option(
    "--workers",
    default=0,
    type=click.IntRange(min=0),
    help="Number of processes; 0 (default): one per core.",
)
@click.option(
    "--append-eod/--no-append-eod",
    default=True,
    help="End each document with the end-of-document token (default), or not.",
)
@click.option(
    "--eod-token", default="", help="Name of the end-of-document token, if it is an unusual one."
)
@click.option(
    "--text-key", default="text", show_default=True, help="Key of the text in each record."
)
@click.option(
    "--bad-records",
    default="stop",
    show_default=True,
    type=click.Choice(["stop", "skip", "quarantine"]),
    help="What to do with a record or file that cannot be read.",
)
@click.option(
    "--max-record-bytes",
    default=256 << 20,
    show_default=True,
    type=click.IntRange(min=1),
    help="A longer record counts as unreadable.",
)
@click.option(
    "--special-tokens",
    is_flag=True,
    help="Encode a literal <|endoftext|> in a text as the special token.",
)
@click.option(
    "--source-key",
    default="auto",
    show_default=True,
    help="Dotted key that names a record's source.",
)
@click.option(
    "--keep-source",
    "keep_sources",
    multiple=True,
    metavar="NAME",
    help="Keep only this source; may be repeated.",
)
@click.option(
    "--drop-source",
    "drop_sources",
    multiple=True,
    metavar="NAME",
    help="Leave this source out; may be repeated.",
)
@click.option(
    "--fix-text",
    default="none",
    show_default=True,
    type=click.Choice(["none", "ftfy"]),
    help="ftfy: repair wrongly decoded characters first, as NeMo does.",
)
@click.option(
    "--encoder",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "tokenizers"]),
    help="auto: the fastest exact encoder that is installed.",
)
@click.option(
    "--check-space/--no-check-space",
    default=True,
    help="Refuse to start if the disk is too small.",
)
@click.option(
    "--share",
    default="",
    metavar="I/N",
    help="Process only the shards for job I (counted from 0) of N jobs.",
)
@ended_in_order
def tokenize(
    inputs: tuple[Path, ...],
    prefix: Path,
    share: str,
    **chosen: object,
) -> None:
    """Turn text into PREFIX_text_document.bin and .idx, byte for byte like Megatron's preprocess_data.py.

    INPUT is a file or a folder: .jsonl, .txt or .parquet, also as .zst, .gz or .xz. If the command
    is interrupted, run it again: it does only the missing work.

    On many nodes, run it with --share I/N in each job of an array (N may differ the next time),
    then once without --share.
    """
    from runbook.display import Progress
    from runbook.tokens.pipeline.large_pages import use_large_pages
    from runbook.tokens.pipeline.tokenize import prepare
    from runbook.tokens.pipeline.tokenize_options import TokenizeOptions
    from runbook.tokens.sources.input_files import unread_text

    use_large_pages()
    options = TokenizeOptions(**chosen)  # type: ignore[arg-type]
    if share:
        _tokenize_share(inputs, prefix, share, options)
        return

    with Progress("tokenize", unit="bytes", stream=sys.stderr) as progress:
        manifest = prepare(
            list(inputs),
            prefix,
            options,
            progress=lambda state: progress.update(**state.as_facts()),
        )

    _report_tokens(manifest)
    _report_left_out(manifest)
    unread = unread_text(inputs)
    if unread:
        click.echo(unread, err=True)


def _tokenize_share(
    inputs: tuple[Path, ...],
    prefix: Path,
    share: str,
    options: TokenizeOptions,
) -> None:
    """Tokenize the shards for job I of N. `share` has the form `I/N`."""
    from runbook.display import Progress
    from runbook.tokens.pipeline.tokenize import prepare_share

    numbers = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", share)
    if numbers is None:
        raise click.BadParameter(CliMessage.NOT_A_SHARE.fill(share=share), param_hint="--share")
    index = int(numbers[1])
    count = int(numbers[2])
    with Progress("tokenize", unit="bytes", stream=sys.stderr) as progress:
        new_shards, total = prepare_share(
            list(inputs),
            prefix,
            (index, count),
            options,
            progress=lambda state: progress.update(**state.as_facts()),
        )

    before = ""
    if new_shards != total:
        before = f", {total - new_shards} were already done"
    text = CliMessage.SHARE_MADE.fill(share=share, made=new_shards, total=total, before=before)
    click.echo(text)


def _report_tokens(manifest: Manifest) -> None:
    """Print what was tokenized, and whether an earlier call had already done so."""
    from runbook.core.units import show_bytes, show_duration

    files = ", ".join(
        f"{file['name']} ({show_bytes(file['bytes'])})" for file in manifest.files.values()
    )
    if manifest.reused:
        done = CliMessage.TOKENIZED_BEFORE.fill()
    else:
        done = CliMessage.TOKENIZED_NOW.fill(duration=show_duration(manifest.seconds["wall"]))

    if manifest.reused_shards and not manifest.reused:
        done += f", {manifest.reused_shards} of {len(manifest.shards)} shards from an earlier run"
    text = CliMessage.TOKENIZED.fill(
        done=done, documents=manifest.documents, tokens=manifest.tokens, files=files
    )
    click.echo(text)


def _report_left_out(manifest: Manifest) -> None:
    """Print to stderr which sources are unknown, and which records and files were skipped."""
    from runbook.tokens.pipeline.tokenize_options import unknown_sources_text

    warning = unknown_sources_text(manifest)
    if warning:
        click.echo(f"warning: {warning}", err=True)
    left_out = manifest.skipped_records + manifest.skipped_files
    if not left_out:
        return
    text = CliMessage.LEFT_OUT.fill(records=manifest.skipped_records, files=manifest.skipped_files)
    click.echo(text, err=True)
    for problem in manifest.problems:
        click.echo(f"  {problem}", err=True)
    if left_out > len(manifest.problems):
        click.echo(f"  ... and {left_out - len(manifest.problems):,} more", err=True)


@data.command(short_help="Check .bin and .idx files.")
@click.argument("prefix", callback=_existing_prefix)
@AS_JSON
def verify(prefix: Path, as_json: bool) -> None:
    """Check every entry, token and checksum in PREFIX_text_document.bin and .idx.

    Exit 1 if a check fails.
    """
    if not as_json:
        _verify([prefix])
        return

    from runbook.tokens.verification import verify as verify_prefix

    checks = verify_prefix(prefix)
    click.echo(json.dumps({"checks": [asdict(check) for check in checks]}, indent=1))
    if any(check.verdict == "fail" for check in checks):
        raise click.exceptions.Exit(1)


def _verify(prefixes: Sequence[Path], *, checksums: bool = True) -> None:
    """Show the checks for pairs of token files.

    The exit code is 1 if a check fails or if there is no such pair.
    """
    from runbook.display import CheckTable
    from runbook.tokens.verification import verify as verify_prefix

    checks = []
    for prefix in prefixes:
        for check in verify_prefix(prefix, checksums=checksums):
            if len(prefixes) > 1:
                check = replace(check, name=f"{prefix.name}: {check.name}")
            checks.append(check)

    click.echo(CheckTable(checks).as_text())
    failed = [check.name for check in checks if check.verdict == "fail"]
    if failed or not checks:
        text = CliMessage.CHECKS_FAILED.fill(
            number_of_failed=len(failed), number=len(checks), names=", ".join(failed)
        )
        click.echo(text, err=True)
        raise click.exceptions.Exit(1)

    click.echo(CliMessage.CHECKS_PASSED.fill(number=len(checks)))


@data.command(short_help="Decode some documents.")
@click.argument("prefix", callback=_existing_prefix)
@click.option(
    "--count",
    default=3,
    show_default=True,
    type=AT_LEAST_1,
    help="Number of documents to show, spread evenly.",
)
@click.option(
    "--document",
    "numbers",
    multiple=True,
    type=click.IntRange(min=0),
    help="Show this document; may be repeated.",
)
@click.option(
    "--tokens",
    "max_tokens",
    default=120,
    show_default=True,
    type=AT_LEAST_1,
    help="Number of tokens to show from each document.",
)
def show(
    prefix: Path,
    count: int,
    numbers: tuple[int, ...],
    max_tokens: int,
) -> None:
    """Decode documents in PREFIX, and show them with a bar between tokens."""
    from runbook.tokens.verification import sample_documents

    for document in sample_documents(
        prefix, count, max_tokens=max_tokens, numbers=list(numbers) or None
    ):
        cut_note = ""
        if len(document.ids) < document.tokens:
            cut_note = f", the first {len(document.ids)}"
        heading = CliMessage.DOCUMENT.fill(
            number=document.number, tokens=document.tokens, cut_note=cut_note
        )
        click.secho(heading, bold=True)
        click.echo("|".join(document.pieces))
        click.echo()


@data.command(short_help="Download a dataset's missing files.")
@click.argument("dataset")
@click.option("--folder", default="", help="Folder for the files (default: the catalogue's).")
@click.option(
    "--url",
    default="",
    help="A mirror or bucket to use instead of the catalogue's: https://, s3:// or hf://.",
)
@click.option(
    "--workers", default=8, show_default=True, type=AT_LEAST_1, help="Files to download at once."
)
@click.option(
    "--check-space/--no-check-space",
    default=True,
    help="Refuse to start if the disk is too small.",
)
def download(
    dataset: str,
    folder: str,
    url: str,
    workers: int,
    check_space: bool,
) -> None:
    """Download the missing files of DATASET, a name in params/datasets.yaml, and check each.

    If the command is interrupted, run it again: it downloads only the missing files. Files that are
    still missing at the end are named, and the exit code is 1. HF_ENDPOINT names a mirror of the
    Hugging Face Hub; the usual proxy variables are used; s3:// needs s5cmd. Token files (.bin and
    .idx) are verified as well.
    """
    from runbook.core.units import show_bytes, show_duration
    from runbook.display import Progress
    from runbook.params import project_root
    from runbook.params.catalogues import read_datasets
    from runbook.tokens.sources.download import download as download_dataset

    project = project_root()
    entry = read_datasets(project).get(dataset)
    if url:
        entry = entry.model_copy(update={"url": url})
    with Progress("download", unit="bytes", stream=sys.stderr) as progress:
        downloaded = download_dataset(
            entry,
            project=project,
            folder=folder,
            workers=workers,
            check_space=check_space,
            progress=lambda state: progress.update(**state.as_facts()),
        )

    if downloaded.fetched:
        fetched = CliMessage.FETCHED.fill(
            number=downloaded.fetched, duration=show_duration(downloaded.seconds)
        )
    else:
        fetched = CliMessage.ALL_WERE_THERE.fill()

    text = CliMessage.DOWNLOADED.fill(
        files=downloaded.files,
        size=show_bytes(downloaded.bytes),
        folder=downloaded.folder,
        fetched=fetched,
    )
    click.echo(text)
    if entry.kind == "tokenized":
        prefixes = [path.with_suffix("") for path in sorted(downloaded.folder.rglob("*.bin"))]
        _verify(prefixes, checksums=False)
