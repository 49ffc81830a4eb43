"""The documents' knobs, variables that their scripts read, as keys of a run file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from runbook.adopt.findings import Findings, truth, whole
from runbook.adopt.hydra import model_of
from runbook.adopt.marks import Word
from runbook.adopt.surroundings import take_image
from runbook.params.catalogue import Site
from runbook.params.keys import all_keys

Take = Callable[[Word, Findings, Site, Collection[str]], None]
_NOT_HERE = ("jobs.environment.", "jobs.data.", "jobs.smoke.", "training.smoke.")
_HANDLED_ELSEWHERE = {
    "TOPO_FILE": "NCCL_TOPO_FILE of the site's environment",
    "LOGLEVEL": "the site's environment",
    "CHECKPOINT_PATH": "each run has a folder of its own",
    "TENSORBOARD_LOGS_PATH": "written into the run's folder",
    "DATA_CACHE_DIR": "a folder of the run's own",
    "VOCAB_FILE": "GPT-2's vocab.json is shipped",
    "MERGE_FILE": "GPT-2's merges.txt is shipped",
    "WORK_DIR": "the pinned checkout of params/sites",
    "PYTORCH_VERSION": "the image of params/sites, or jobs.image",
    "RUN_SH": "the runbook writes the job itself",
    "JOB_SUFFIX": "the run's name, or --as NAME",
    "CONT_TOKENIZER_DIR": "params/sites: paths.tokenizer",
    "INDEX_MAPPING_DIR": "a folder of the run's own",
    "CONT_RESULT_DIR": "each run has a folder of its own",
    "CONT_DATA_DIR": "params/sites: paths.data",
    "MODEL_NAME": "GPT-3 is the only kind",
    "MODEL": "GPT-3 is the only kind",
}


def take_knobs(
    values: Mapping[str, Word], findings: Findings, site: Site, models: Collection[str], *, over: bool
) -> None:
    """Take every variable that a document's script would read; `over` off where options of the script say more."""
    for name, value in values.items():
        if name in _SPECIAL:
            _SPECIAL[name](value, findings, site, models)
        elif name in _HANDLED_ELSEWHERE:
            findings.does(value.line, f"{name}={value.shown}", _HANDLED_ELSEWHERE[name])
        elif key := key_of(name):
            findings.read(key, value, name, _reader(key), over=over)


def key_of(name: str) -> str:
    """The key that a document's variable means; empty where it means none.

    >>> key_of("TENSOR_MODEL_PARALLEL_SIZE"), key_of("mp_size"), key_of("NNODES"), key_of("PATH")
    ('parallel.tensor', 'parallel.tensor', 'jobs.training.nodes', '')
    """
    for key in all_keys().values():
        if name in key.documents and not key.name.startswith(_NOT_HERE):
            return key.name
    return ""


def knob_names() -> set[str]:
    """Every variable that is understood."""
    documents = {name for key in all_keys().values() for name in key.documents}
    return documents | set(_SPECIAL) | set(_HANDLED_ELSEWHERE)


def _reader(key: str) -> Callable[[str], Any]:
    kind = all_keys()[key].kind
    if kind is bool:
        return truth
    if kind is float:
        return float
    return whole if kind is int else str


def _model(value: Word, findings: Findings, site: Site, models: Collection[str]) -> None:
    """MODEL_SIZE_KEY in capitals, or NeMo's size."""
    by_lower = {name.lower(): name for name in models}
    name = model_of(value.text.lower()) if site.site == "aws" else ""
    name = name or by_lower.get(value.text.lower(), "")
    if re.fullmatch(r"[\d.]+", value.text):  # LUMI's model_size is a number of billions, for a name
        return
    if name and value.known:
        findings.take("model", name, value.line, value.text)
        findings.drop("training.shape.layers", "training.shape.hidden", "training.shape.heads")
    else:
        findings.leave(value.line, f"model size {value.shown}", "params/models.yaml has no such model: write an entry")


def _stage(value: Word, findings: Findings, site: Site, models: Collection[str]) -> None:
    """A folder on the shared file system; of AWS's source:target the target."""
    text = value.text.rpartition(":")[2] if ":" in value.text else value.text
    placeholder = not text.startswith("/") or "username" in text or "your-" in text
    if value.known and not placeholder:
        findings.take("jobs.stage", text.rstrip("/") or "/", value.line, "the shared folder")
    else:
        findings.leave(value.line, f"shared folder {value.shown}", "not a folder yet: set jobs.stage")


def _image(value: Word, findings: Findings, site: Site, models: Collection[str]) -> None:
    take_image(value, findings, site, "image")


def _attention(kernel: str) -> Take:
    def take(value: Word, findings: Findings, site: Site, models: Collection[str]) -> None:
        if value.text not in ("", "0"):
            findings.take("training.attention", kernel, value.line, f"USE_FLASH_ATTN {kernel}")

    return take


def _sequence_type(value: Word, findings: Findings, site: Site, models: Collection[str]) -> None:
    """SP_TYPE: megatron cuts along the tensor ranks, ds exchanges heads for sequence (Ulysses)."""
    if value.text == "megatron":
        findings.take("parallel.sequence", True, value.line, "SP_TYPE=megatron")
    elif value.text == "ds":
        findings.take("parallel.sequence", False, value.line, "SP_TYPE=ds")
        findings.take("parallel.tensor", 1, value.line, "SP_TYPE=ds")
        findings.take("parallel.context", 0, value.line, "SP_TYPE=ds: all devices")
    else:
        findings.leave(
            value.line, f"SP_TYPE={value.shown}", "megatron or ds: set parallel.sequence or parallel.context"
        )


def _accumulation(value: Word, findings: Findings, site: Site, models: Collection[str]) -> None:
    """GAS: micro-batches a step of each copy; the batch follows when all is known."""
    findings.read("gas", value, "GAS", whole)


def _partition(value: Word, findings: Findings, site: Site, models: Collection[str]) -> None:
    findings.read("jobs.data.partition", value, "PARTITION", str)


def _data_nodes(value: Word, findings: Findings, site: Site, models: Collection[str]) -> None:
    findings.read("jobs.training.nodes", value, "NNODES", whole, over=False)


def _sharp(value: Word, findings: Findings, site: Site, models: Collection[str]) -> None:
    if value.text == "1" and "sharp" in site.environment:
        findings.take("jobs.switch", "+sharp", value.line, "USE_SHARP=1")


def _sequence(value: Word, findings: Findings, site: Site, models: Collection[str]) -> None:
    findings.read("parallel.sequence", value, "USE_SEQUENCE_PARALLEL", truth)


def _dataset(value: Word, findings: Findings, site: Site, models: Collection[str]) -> None:
    for word, name in (("slimpajama", "slimpajama"), ("pile", "the-pile"), ("oscar", "oscar-1GB")):
        if word in value.text.lower():
            findings.take("data.dataset", name, value.line, "DATASET_FOLDER_NAME")
            findings.left[:] = [one for one in findings.left if not one.text.startswith("token files")]
            return
    findings.leave(value.line, f"DATASET_FOLDER_NAME={value.shown}", "set data.dataset, or data.folder")


def _data_path(value: Word, findings: Findings, site: Site, models: Collection[str]) -> None:
    if any(word in value.shown.lower() for word in ("slimpajama", "pile", "oscar")):
        _dataset(value, findings, site, models)
    if value.known and value.text.startswith("/"):
        findings.does(value.line, f"DATA_PATH={value.text}", "params/sites: paths.data; another place: data.folder")


def _world(value: Word, findings: Findings, site: Site, models: Collection[str]) -> None:
    """num_gpus is nodes x devices: it is computed, never given."""
    findings.does(value.line, f"number of devices {value.shown}", "computed: nodes x devices on a node")


_SPECIAL: dict[str, Take] = {
    "MODEL_SIZE_KEY": _model,
    "MODEL_SIZE": _model,
    "model_size": _model,
    "STAGE_PATH": _stage,
    "FSX_MOUNT": _stage,
    "SHARED_FS": _stage,
    "home_dir": _stage,
    "WORKSPACE": _stage,
    "IMAGE": _image,
    "CONTAINER_IMAGE": _image,
    "SQUASHED_PYTORCH_IMAGE": _image,
    "USE_FLASH_ATTN1": _attention("flash1"),
    "USE_FLASH_ATTN_V1": _attention("flash1"),
    "USE_FLASH_ATTN2": _attention("flash2"),
    "USE_FLASH_ATTN_V2": _attention("flash2"),
    "USE_FLASH_ATTN_TRITON": _attention("flash-triton"),
    "SP_TYPE": _sequence_type,
    "USE_SEQUENCE_PARALLEL": _sequence,
    "GAS": _accumulation,
    "PARTITION": _partition,
    "NODES": _data_nodes,
    "USE_SHARP": _sharp,
    "DATASET_FOLDER_NAME": _dataset,
    "DATA_PATH": _data_path,
    "BASE_DATA_PATH": _data_path,
    "num_gpus": _world,
}
