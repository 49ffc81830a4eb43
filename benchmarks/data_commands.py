"""The commands that the data benchmark measures.

They are our own, two tools from Megatron-LM, and the three steps in the documents.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
_OVERRIDE = "import typing\nif not hasattr(typing, 'override'):\n    typing.override = lambda function: function\n"


@dataclass(frozen=True)
class Run:
    """Measurements for one process and its children, from start to end."""

    wall: float
    cpu: float
    rss: int
    """Peak resident memory in the largest process, in bytes."""

    written: int
    """Bytes that were written, or will be written, to the disk."""

    sha256: str
    """Checksum of the .bin and the .idx together."""

    text: int = 0
    tokens: int = 0
    stages: float = 0.0
    """Seconds inside the fused loop."""

    each: dict[str, float] = field(default_factory=dict)
    """Seconds inside the fused loop by stage."""


def ours(inputs: list[Path], prefix: Path, workers: int, encoder: str = "auto") -> list[str]:
    """Return the command `runbook data tokenize`.

    It treats a literal end-of-text token as the Megatron tool does.
    """
    words = [
        sys.executable,
        "-c",
        "from runbook.cli import main; main()",
        "data",
        "tokenize",
        *map(str, inputs),
    ]
    return [
        *words,
        "--out",
        str(prefix),
        "--workers",
        str(workers),
        "--encoder",
        encoder,
        "--special-tokens",
    ]


NO_CHECKOUT = "{folder} is not a checkout of Megatron-LM: it has no tools/preprocess_data.py"


@dataclass(frozen=True)
class Megatron:
    """A Megatron-LM checkout, and the settings that let its tools start on a CPU without a network."""

    folder: Path
    python: Path
    vocabulary: Path
    surroundings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def found(cls, folder: Path, python: Path | None) -> Megatron:
        """Prepare the checkout: add a GPT-2 model folder, and define a name that Python 3.11 lacks."""
        if not (folder / "tools" / "preprocess_data.py").is_file():
            raise SystemExit(NO_CHECKOUT.format(folder=folder))
        extra = folder / ".runbook-benchmark"
        vocabulary = extra / "gpt2"
        vocabulary.mkdir(parents=True, exist_ok=True)
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(REPOSITORY / "runbook" / "tokens" / "gpt2" / name, vocabulary)
        settings = {"tokenizer_class": "GPT2Tokenizer", "model_max_length": 10**9}
        (vocabulary / "tokenizer_config.json").write_text(json.dumps(settings))
        (vocabulary / "config.json").write_text('{"model_type": "gpt2"}')
        (extra / "sitecustomize.py").write_text(_OVERRIDE)
        env = {
            "PYTHONPATH": f"{folder}{os.pathsep}{extra}",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        return cls(folder, python or Path(sys.executable), vocabulary, {"env": env, "cwd": folder})

    def slow(self, source: Path, prefix: Path, workers: int) -> list[str]:
        """Return the command for preprocess_data.py, which all five documents use."""
        return [*self._words("preprocess_data.py", source, prefix), "--workers", str(workers)]

    def fast(self, source: Path, prefix: Path) -> list[str]:
        """Return the command for the newest Megatron-LM tool, which uses gigatoken."""
        return [*self._words("preprocess_data_fast.py", source, prefix), "--use-gigatoken"]

    def _words(self, tool: str, source: Path, prefix: Path) -> list[str]:
        words = [
            str(self.python.absolute()),
            f"tools/{tool}",
            "--input",
            str(source),
            "--output-prefix",
            str(prefix),
        ]
        kind = [
            "--tokenizer-type",
            "HuggingFaceTokenizer",
            "--tokenizer-model",
            str(self.vocabulary),
        ]
        return [*words, *kind, "--append-eod"]


def measure_command(
    words: list[str],
    prefix: Path,
    *,
    core: int = -1,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> Run:
    """Remove old output, run the command, and remove its new output.

    Python may store compiled modules, as for an installed package, even if this environment forbids
    it.
    """
    remove(prefix)
    surroundings = {**os.environ, **(env or {})}
    surroundings.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
    pin = {"preexec_fn": lambda: os.sched_setaffinity(0, {core})} if core >= 0 else {}
    with subprocess.Popen(
        words,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=surroundings,
        cwd=cwd,
        **pin,
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{said.decode(errors='replace')[-3000:]}")
    run = Run(
        wall=wall,
        cpu=usage.ru_utime + usage.ru_stime,
        rss=usage.ru_maxrss * 1024,
        written=usage.ru_oublock * 512,
        sha256=token_sum(prefix),
        **_from_manifest(prefix),
    )
    remove(prefix)
    return run


def three_steps(folder: Path, out: Path, megatron: Megatron) -> Run:
    """Measure the documents' steps in their simplest form.

    These decompress each file, join the files, and run preprocess_data.py with two workers.
    """
    from backports import zstd

    from benchmarks.data_corpus import parts

    extracted = out / "extracted"
    joined = out / "train_chunk_0.jsonl"
    prefix = out / "three"
    shutil.rmtree(extracted, ignore_errors=True)
    extracted.mkdir()
    began = time.perf_counter()
    written = 0
    for path in parts(folder):
        with zstd.open(path) as source, (extracted / path.stem).open("wb") as target:
            shutil.copyfileobj(source, target, 4 << 20)
    with joined.open("wb") as target:
        for path in parts(folder):
            with (extracted / path.stem).open("rb") as source:
                shutil.copyfileobj(source, target, 4 << 20)
    before = time.perf_counter() - began
    written = 2 * joined.stat().st_size
    last = measure_command(megatron.slow(joined, prefix, 2), prefix, **megatron.surroundings)
    shutil.rmtree(extracted)
    joined.unlink()
    return Run(before + last.wall, last.cpu + before, last.rss, last.written + written, last.sha256)


def token_sum(prefix: Path) -> str:
    """Return the sha256 of the .bin and the .idx together."""
    whole = hashlib.sha256()
    for ending in ("bin", "idx"):
        with Path(f"{prefix}_text_document.{ending}").open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def _from_manifest(prefix: Path) -> dict[str, Any]:
    path = Path(f"{prefix}.manifest.json")
    if not path.exists():
        return {}
    manifest = json.loads(path.read_text())
    each = {stage: manifest["seconds"][stage] for stage in ("read", "parse", "encode", "write")}
    return {
        "text": manifest["text_bytes"],
        "tokens": manifest["tokens"],
        "stages": sum(each.values()),
        "each": each,
    }


def remove(prefix: Path) -> None:
    """Remove all files with this prefix."""
    for path in prefix.parent.glob(f"{prefix.name}[._]*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
