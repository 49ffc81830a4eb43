"""Several token files as one training set: weights by tokens, roles that share no file, one tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from runbook.data.indexed import IndexedReader
from runbook.data.manifest import read_manifest
from runbook.data.options import Output
from runbook.errors import DataError
from runbook.plan.checks import Check, judge


def token_weights(prefixes: Sequence[Path]) -> list[float]:
    """Each file's share of all tokens, so that every token is seen equally often; the documents weigh all files alike.

    The last weight takes up the rounding, so that they add up to 1.
    """
    tokens = []
    for prefix in prefixes:
        output = Output.found(prefix)
        tokens.append(IndexedReader(output.bin, output.idx).num_tokens)
    total = sum(tokens)
    if not total:
        raise DataError(f"no tokens in {', '.join(map(str, prefixes)) or 'no files'}: nothing can be trained on")
    weights = [round(count / total, 9) for count in tokens]
    weights[-1] = round(1 - sum(weights[:-1]), 9)
    return weights


def blend_checks(roles: Mapping[str, Sequence[Path]]) -> list[Check]:
    """Whether train, validation and test files can be used together; `roles` maps each to its prefixes."""
    named = {role: [Output(prefix).base.resolve() for prefix in prefixes] for role, prefixes in roles.items()}
    everywhere = [base for bases in named.values() for base in bases]
    doubled = sorted({base.name for base in everywhere if everywhere.count(base) > 1})
    manifests = {role: [read_manifest(prefix) for prefix in prefixes] for role, prefixes in roles.items()}
    every = [manifest for each in manifests.values() for manifest in each]
    sums = {str(sorted(manifest.tokenizer["sha256"].items())) for manifest in every}
    endings = {manifest.tokenizer["end_of_document"] for manifest in every}
    train = sum(manifest.tokens for manifest in manifests.get("train", []))
    held = sum(manifest.tokens for role, each in manifests.items() if role != "train" for manifest in each)
    return [
        judge(
            "held-out files",
            not doubled,
            ", ".join(doubled) or f"{len(everywhere)} files, each with one role",
            "no file is in two roles",
            "Take these out of training, or out of the held-out list.",
        ),
        judge(
            "training tokens",
            train > 0,
            f"{train:,} to train on, {held:,} held out",
            "there is something to train on",
            "Hold out fewer files (data.held_out): more than twice as many are needed.",
        ),
        judge(
            "one tokenizer",
            len(sums) <= 1 and len(endings) <= 1,
            f"{len(sums)} vocabularies, end-of-document tokens {sorted(map(str, endings))}",
            "all files were made with the same vocabulary and the same end of document",
            "Tokenize the odd ones again with the same options.",
        ),
    ]
