"""The 31 errors found in the five documents, each with what we do instead: docs/errors-in-the-documents.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DocumentError:
    """One thing a document says that is not so."""

    number: int
    document: str
    says: str
    so: str
    instead: str
    kind: str
    """right: our output has it right; guard: a check says so before anything runs; text: it concerns the prose only."""


def document_errors() -> tuple[DocumentError, ...]:
    """All of them, in the order in which they were found."""
    return tuple(DocumentError(number, *row) for number, row in enumerate(_ROWS, start=1))


def as_markdown() -> str:
    """The table as a page."""
    rows = [f"| {e.number} | {e.document} | {e.says} | {e.so} | {e.instead} | {e.kind} |" for e in document_errors()]
    return "\n".join([_HEAD, *rows]) + "\n"


_HEAD = """# Errors in the documents, and what the runbook does instead

Five documents describe how to train GPT-3 on five systems; `params/` has a site and a run for each. Reading them beside
their scripts showed 31 places where they are wrong or contradict themselves. *right*: our output has it right. *guard*:
a check says so before anything is submitted. *text*: it concerns the prose only, and nothing of it was taken over.
`runbook adopt SCRIPT` finds them in a script or page of yours, with the line and what to do instead.

This page is written from `runbook/render/documents.py`; a test compares the two.

| # | Document | It says | It is so | We | Kind |
| --- | --- | --- | --- | --- | --- |"""

_ROWS = (
    (
        "Azure",
        'the smoke model has "375M" parameters',
        "12 x 512 has 64.6 M",
        "show the computed count beside the label",
        "guard",
    ),
    ("Azure", 'a larger one "857M"', "24 x 1024 has 356 M", "show the computed count beside the label", "guard"),
    (
        "Azure",
        "72 files after joining",
        "59,166 files by 800 make 74",
        "count the files: 74 in params/datasets.yaml, and 02-data compares names",
        "right",
    ),
    (
        "Azure",
        "SAVE_INTERVAL 10000, EVAL_INTERVAL 1000 by default",
        "100 and 100, and the variables did nothing",
        "write both into the run file; they reach the program",
        "right",
    ),
    (
        "Azure",
        "download_dataset.py with a bare path",
        "download_slimpajama.py with --directory",
        "download with our own, checked program",
        "right",
    ),
    (
        "Azure",
        "set SQUASHED_PYTORCH_IMAGE",
        "the scripts overwrite it",
        "use jobs.image wherever it is set, and its copies on the nodes (jobs.image_copy)",
        "right",
    ),
    ("Azure", "setup_environment.sh", "00-setup_environment.sh", "name no file of theirs", "text"),
    (
        "Azure",
        "partition htc in the list, hpc in the commands",
        "the script's default is gpu",
        "one partition for each phase, in params/sites/azure.yaml",
        "right",
    ),
    ("Azure", "a table of contents", "its numbers run one behind", "number the notebooks from 00", "text"),
    (
        "Azure",
        "CHUNKS files for validation and testing",
        "that many for each",
        "say so at data.held_out, and refuse it where no file is left to train on",
        "guard",
    ),
    (
        "Azure",
        "NeMo image 24.12",
        "the launcher is 24.12, the image 24.05",
        "need neither for the data: our own tokenizer makes the files",
        "right",
    ),
    (
        "Azure",
        "checkpoint times by tier",
        "GB and GiB mixed, 7 to 8 % low",
        "compute sizes in bytes, times in one unit: docs/storage.md, and the plan for any model and tier",
        "right",
    ),
    (
        "Azure",
        "MERGE_FILE is vocab.json; a variable mistyped; DATASET_FOLDER_NAME of two meanings",
        "merges.txt; one name each",
        "always name vocab.json and merges.txt; a check refuses one file for both",
        "guard",
    ),
    (
        "Azure",
        "smoke test, then the full run, in one checkpoint folder",
        "the full run loads the small checkpoint",
        "give each its own folder; a check refuses a shared one",
        "guard",
    ),
    (
        "LUMI",
        "125M on 2 nodes with PP 2, TP 1, DP 4, twice",
        "that is 8 GCDs of 16; its 11.94 TFLOP/s fits TP 2",
        "variant 125m-2n-pp2-tp2; devices that do not divide are refused",
        "guard",
    ),
    (
        "LUMI",
        "13B on 1 node with DP 8 and ZeRO 1",
        "65.8 GiB of state on 64 GiB",
        "refuse it: variant 13b-1n-dp8-zero1 shows the sum",
        "guard",
    ),
    ("LUMI", "FLOP/s", "TFLOP/s", "name the unit and the convention of every rate", "right"),
    ("LUMI", "nodes=4", "the script has 2", "take nodes from the run file alone: 2", "right"),
    (
        "LUMI",
        "edit line 34",
        "lines 34 and 35 both run, and 34 is the author's own",
        "one training step in a script, and no path of anyone's",
        "right",
    ),
    (
        "LUMI",
        'a broken link, "REAMDE", two rows of "?"',
        "no results",
        "have variants for both rows, without a result",
        "text",
    ),
    (
        "Polaris",
        "./ALCF/train-gpt3.sh on main",
        "moved on 2024-03-07, and does not run from there",
        "pin commit 6bcac4ee and start the training script itself",
        "right",
    ),
    ("Polaris", "runs pretrain_gpt.py", "pretrain_gpt_alcf.py", "start pretrain_gpt_alcf.py", "right"),
    ("Polaris", "model.sh at another fork", "two forks mixed", "have all its sizes in params/models.yaml", "right"),
    (
        "Polaris",
        "conda/2023-10-04",
        "setup.sh loads 2023-09-29-unstable",
        "load 2023-10-04 and its virtual environment, both in the site file",
        "right",
    ),
    (
        "Polaris",
        '"launch training" of GPT25B',
        "29.3 B, 10 steps, genomes, tensor parallel over all GPUs, offload",
        "say so in the run file, show 29.3 B, and warn of tensor ranks outside a node",
        "guard",
    ),
    ("Slurm", "--vocab", "--vocab-file today", "write whole option names, held against the pinned parser", "right"),
    (
        "Slurm",
        "save interval without a place, static and dynamic loss scale, no pinned image, no GPU request",
        "nothing is saved",
        "always give --save; one dynamic scale; jobs.image is required and its recipe pinned; devices are asked for",
        "right",
    ),
    (
        "AWS",
        "nemo4aws/Dockerfile, submit-gpt3-04b8, a picture, a log",
        "other names, or not there",
        "name no file of theirs",
        "text",
    ),
    (
        "AWS",
        "The Pile: 850 GB extracted, 702 GB of tokens",
        "1.29 TB by its own script; 702 GiB",
        "show bytes with GB or GiB, never mixed",
        "right",
    ),
    (
        "AWS",
        "an image in beta, an empty heading",
        "superseded by nvcr.io/nvidia/nemo; The Pile's home is gone",
        "take any image by jobs.image, and the text from data.bucket, which is required",
        "right",
    ),
    ("AWS", "dated 2020-09-04", "written in 2023", "date every fact of a site", "right"),
)
