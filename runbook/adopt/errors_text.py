"""Errors of the documents that show as words: names, numbers and addresses that are not so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from runbook.adopt.findings import Found
from runbook.adopt.script import Script


@dataclass(frozen=True)
class Sign:
    """A pattern that gives an error away."""

    number: int
    pattern: str
    what: str
    remedy: str
    only_with: str = ""
    """Another pattern that the text must have somewhere."""
    never_with: str = ""
    """A pattern that clears the text."""


_AZURE = r"(?i)slimpajama|STAGE_PATH|azure"
_ALCF = r"(?i)\bALCF\b|argonne|polaris"
SIGNS = (
    Sign(
        3,
        r"\b72\b.*(wc|jsonl|chunk|process|files|sample)|(wc|jsonl|chunks?|files)\b.*\b72\b",
        "72 joined files are expected; 59,166 inputs by 800 make 74",
        "data.dataset: slimpajama names 74 files, and 02-data compares them by name",
        _AZURE,
    ),
    Sign(
        4,
        r"(SAVE_INTERVAL.*\b10000\b|EVAL_INTERVAL.*default.*\b1000\b)",
        "the script's own defaults are 100 and 100, and at its commit the variables did nothing",
        "training.save_interval and training.eval_interval reach the program",
    ),
    Sign(
        5,
        r"download_dataset\.py",
        "there is no download_dataset.py; the file is download_slimpajama.py",
        "runbook data download slimpajama fetches with checksums and goes on where it stopped",
    ),
    Sign(
        5,
        r"download_slimpajama\.py(?!.*--directory)\s+\S",
        "download_slimpajama.py takes no bare path: --directory is required",
        "runbook data download slimpajama fetches with checksums and goes on where it stopped",
    ),
    Sign(
        7,
        r"(?<![\w-])setup_environment\.sh",
        "setup_environment.sh is called 00-setup_environment.sh",
        "01-environment prepares the machine; no file of theirs is needed",
    ),
    Sign(
        9,
        r"^\s*(\d+)\.\s+\[[^\]]*\]\(#(?!\1-)\d+-",
        "the table of contents counts one behind its headings",
        "the notebooks are numbered from 00",
    ),
    Sign(
        10,
        r"CHUNKS.*files used for validation and testing",
        "CHUNKS files validate and as many again test",
        "data.held_out says so, and is refused where no file is left to train on",
    ),
    Sign(
        11,
        r"(?i)nemo[:+]24\.12|NEMO_VERSION=\W*24\.12|^(?!.*LAUNCHER_VERSION)(?!.*--branch).*nemo.*\b24\.12\b",
        "24.12 is the launcher; the NeMo image is 24.05",
        "neither is needed: runbook data tokenize makes the token files",
    ),
    Sign(
        12,
        r"\|\s*(2\.04|0\.61|0\.31|0\.15)\s*\||\b2\.3 ?`? ?TiB|2\.3 \* 1024",
        "a 175B checkpoint has 2.44 TB = 2.22 TiB; the times mix GB and GiB and are 7 to 8 % low",
        "runbook plan shows bytes and write times by tier in one unit: docs/storage.md",
    ),
    Sign(
        13,
        r"NEMO_VLAUNCHER_VERSIONERSION",
        "the variable's name is mistyped, so that no sensible name overrides the version",
        "the commit is pinned in params/sites, under frameworks",
    ),
    Sign(
        17,
        r"(?<![TGMPEk\w])FLOP/s",
        "the column says FLOP/s; the numbers are TFLOP/s",
        "every rate is shown with its unit and convention",
        r"(?i)lumi|GCD|throughput",
    ),
    Sign(19, r"(?i)\(line 34\)|\bline 34\b", "lines 34 and 35 both start the training, and 34 is the author's own",
         "one training step in a job; jobs.stage names your folder"),
    Sign(20, r"REAMDE|\]\s+\(https?://", "a broken link, or a mistyped name", "params/sites names the sources"),
    Sign(20, r"^\|.*\|\s*\?\s*\|", "rows of question marks are no results", "variants for both rows, without a result"),
    Sign(
        21,
        r"ALCF/(train-gpt3|model|args|setup|launch)\.sh",
        "the ALCF scripts left this place on 2024-03-07, and do not run from the new one",
        "commit 6bcac4ee is pinned, and the training script itself is started: runbook render",
        never_with=r"checkout\s+\S*6bcac4e",
    ),
    Sign(
        22,
        r"pretrain_gpt\.py",
        "on Polaris the program is pretrain_gpt_alcf.py",
        "params/sites/polaris.yaml starts pretrain_gpt_alcf.py",
        _ALCF,
    ),
    Sign(
        23,
        r"saforem2/Megatron-DeepSpeed",
        "a second fork beside argonne-lcf/Megatron-DeepSpeed",
        "one fork is pinned, and its sizes are in params/models.yaml",
    ),
    Sign(
        24,
        r"2023-09-29-unstable",
        "ALCF's setup.sh loads this conda module, its page another",
        "params/sites/polaris.yaml loads conda/2023-10-04 and the virtual environment made on it",
    ),
    Sign(
        26,
        r"(^|\s)--vocab(\s|=|$)",
        "today's parser has --vocab-file (and --vocab-size, so that --vocab is ambiguous)",
        "runbook data tokenize makes the token files; rendered options are whole names",
    ),
    Sign(
        27,
        r"(?i)pip3? install\s+(?:-\S+\s+)*deepspeed(?!\s*==)(?=\s|$|\"|&|;)",
        "deepspeed is not pinned: the same recipe gives another image each month",
        "01-environment renders a Dockerfile with deepspeed pinned",
    ),
    Sign(
        28,
        r"nemo4aws/Dockerfile(?!\.)|submit-gpt3-04b8|s3-to-fsx\.png|joblog\.log",
        "this file has another name there, or is not there",
        "no file of theirs is needed: runbook render writes the job",
    ),
    Sign(
        29,
        r"\b850\s*GB|\b702\s*GB|\b702\s*$",
        "30 files of 43 GB are 1.29 TB, and the token files 702 GiB = 753 GB",
        "runbook plan shows bytes with GB or GiB, never mixed",
        r"(?i)pile",
    ),
    Sign(
        30,
        r"(?i)ea-bignlp|bignlp-training|the-eye\.eu",
        "the beta image is superseded by nvcr.io/nvidia/nemo, and The Pile's home is gone",
        "jobs.image takes any image, data.bucket is where your token files lie",
    ),
    Sign(30, r"^# OPT\s*$", "a heading without a text", "nothing was taken over", r"(?i)nemo"),
    Sign(31, r"^\s*date\s*:\s*2020-09-04", "the page was written in 2023", "every fact of a site has its own date"),
)  # fmt: skip


def text_errors(script: Script) -> Iterator[Found]:
    """Each sign at the first line that shows it, and once more for each further line of a page's code."""
    for sign in SIGNS:
        if sign.only_with and not re.search(sign.only_with, script.text):
            continue
        if sign.never_with and re.search(sign.never_with, script.text):
            continue
        for line, _ in script.matching(sign.pattern)[:3]:
            yield Found(sign.number, line, sign.what, sign.remedy)
