"""Speed of the data pipeline: against Hugging Face tokenizers in the same reader, stage by stage, one and two workers.

    python -m benchmarks.data_tokenize [--megabytes 200] [--rounds 5] [--workers 1 2] [--folder DIR] [--json FILE]

Two corpora, each of about the given size, as .jsonl.zst files of level 3:
  prose  the shipped corpus, its paragraphs put together anew in a seeded random order: real English, but few different
         words, which suits caches
  code   every .py, .md, .rst, .txt and .h file below the Python environment: many rare words, which suits nobody
Each measured command is a process of its own; commands alternate, so that a noisy neighbour hits all of them; the
median counts. The slow encoder gets a part of each corpus, because the whole would take minutes; rates are per byte
of text.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FILES = 16
SLOW_SHARE = 10
ENDINGS = (".py", ".md", ".rst", ".txt", ".h")


def prose(limit: int) -> Iterator[str]:
    """Documents of four to forty paragraphs of the shipped corpus."""
    from backports import zstd

    corpus = Path(__file__).parents[1] / "runbook" / "data" / "corpus"
    paragraphs: list[str] = []
    for path in sorted(corpus.glob("*.zst")):
        for line in zstd.decompress(path.read_bytes()).splitlines():
            paragraphs += [part for part in json.loads(line)["text"].split("\n") if part]
    chance = random.Random(1)
    made = 0
    while made < limit:
        text = "\n".join(chance.choices(paragraphs, k=chance.randint(4, 40)))
        made += len(text.encode())
        yield text


def code(limit: int) -> Iterator[str]:
    """Text files of the Python environment, in random order, again from the start where they do not suffice."""
    files = sorted(path for path in Path(sys.prefix).rglob("*") if path.suffix in ENDINGS and path.is_file())
    random.Random(1).shuffle(files)
    made = 0
    while made < limit:
        for path in files:
            try:
                text = path.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            made += len(text.encode())
            yield text
            if made >= limit:
                return


def write_corpus(folder: Path, texts: Iterator[str], limit: int) -> None:
    """Sixteen .jsonl.zst files with the keys that SlimPajama has."""
    from backports import zstd

    folder.mkdir(parents=True)
    share, written, number = limit // FILES, 0, 0
    file = zstd.open(folder / "part_0.jsonl.zst", "wb", level=3)
    for text in texts:
        file.write(json.dumps({"text": text, "meta": {"redpajama_set_name": "bench"}}).encode() + b"\n")
        written += len(text.encode())
        if written >= share and number < FILES - 1:
            file.close()
            number, written = number + 1, 0
            file = zstd.open(folder / f"part_{number}.jsonl.zst", "wb", level=3)
    file.close()


def tokenize(inputs: list[Path], out: Path, workers: int, encoder: str) -> dict[str, float]:
    """Whole process: wall time, text, CPU time and the largest memory of its processes."""
    prefix = out / f"{encoder}-{workers}"
    program = "from runbook.cli import main; main()"
    words = [sys.executable, "-c", program, "data", "tokenize", *map(str, inputs), "--out", str(prefix)]
    words += ["--workers", str(workers), "--encoder", encoder]
    began = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{said}")
    manifest = json.loads(Path(f"{prefix}.manifest.json").read_text())
    for path in out.glob(f"{prefix.name}*"):
        path.unlink()
    return {
        "wall": wall,
        "text": manifest["text_bytes"],
        "tokens": manifest["tokens"],
        "cpu": usage.ru_utime + usage.ru_stime,
        "rss": usage.ru_maxrss * 1024,
        "inside": manifest["seconds"]["wall"],
        "stages": sum(manifest["seconds"][stage] for stage in ("read", "parse", "encode", "write")),
    }


def whole_lines(text: bytes) -> Iterator[bytes]:
    """Blocks of whole lines of the size that the pipeline works with."""
    from runbook.data.reading import BLOCK

    start = 0
    while start < len(text):
        end = text.find(b"\n", min(start + BLOCK, len(text) - 1)) + 1 or len(text)
        yield text[start:end]
        start = end


def floors(inputs: list[Path]) -> dict[str, float]:
    """Seconds of each stage alone, with everything else left out, on one core."""
    import numpy as np
    from backports import zstd

    from runbook.data.documents import Parser
    from runbook.data.encoders import use_one_thread
    from runbook.data.shard import join
    from runbook.data.tokenizer import load_tokenizer

    use_one_thread()
    tokenizer = load_tokenizer("gpt2")
    parser = Parser("text", "meta.redpajama_set_name")
    seconds = dict.fromkeys(("decompress", "parse", "encode", "join and write"), 0.0)

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        seconds[stage] += time.perf_counter() - began
        return result

    with tempfile.TemporaryFile() as target:
        for path in inputs:
            blocks: list[bytes] = []
            with zstd.ZstdFile(path) as file:
                while block := timed("decompress", lambda file=file: file.read(4 << 20)):
                    blocks.append(block)
            for data in whole_lines(b"".join(blocks)):
                batch = timed("parse", lambda data=data: next(parser.parse(data, "", 0)))
                ids, offsets = timed("encode", lambda texts=batch.texts: tokenizer.encode_batch(texts))
                eod = np.array([50256], dtype="<u2")
                timed(
                    "join and write",
                    lambda ids=ids, offsets=offsets, eod=eod: target.write(join(ids, offsets, eod.dtype, eod)),
                )
    return seconds


def measure(name: str, folder: Path, workers: list[int], rounds: int) -> dict[str, Any]:
    """All figures of one corpus."""
    files = sorted(folder.glob("*.zst"), key=lambda path: int(path.name.split("_")[1].split(".")[0]))
    slow = files[: max(1, len(files) // SLOW_SHARE)]
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        for number in workers:
            runs.setdefault(f"fastokens, {number}", []).append(tokenize(files, folder.parent, number, "fastokens"))
        runs.setdefault("tokenizers, 1", []).append(tokenize(slow, folder.parent, 1, "tokenizers"))
    alone = [floors(files) for _ in range(min(rounds, 3))]
    figures: dict[str, Any] = {"corpus": name, "rounds": rounds, "commands": {}}
    for key, results in runs.items():
        middle = statistics.median(result["wall"] for result in results)
        typical = min(results, key=lambda result: abs(result["wall"] - middle))
        figures["commands"][key] = typical | {"mb_per_second": typical["text"] / middle / 1e6}
    text = figures["commands"][f"fastokens, {workers[0]}"]["text"]
    floor = {stage: statistics.median(each[stage] for each in alone) for stage in alone[0]}
    fused = statistics.median(result["stages"] for result in runs[f"fastokens, {workers[0]}"])
    figures["stages"] = {stage: text / value / 1e6 for stage, value in floor.items()}
    figures["fused_share_of_floor"] = sum(floor.values()) / fused
    return figures


def show(figures: dict[str, Any]) -> None:
    """Print a corpus's table."""
    print(f"\n{figures['corpus']}: median of {figures['rounds']} alternating runs, whole process with start-up")
    heads = ("encoder, workers", "text MB", "wall s", "MB/s", "CPU s", "Mtok/s", "peak RSS MiB")
    print(f"{heads[0]:<18}" + "".join(f"{head:>14}" for head in heads[1:]))
    for key, each in figures["commands"].items():
        columns = (
            f"{each['text'] / 1e6:.1f}",
            f"{each['wall']:.2f}",
            f"{each['mb_per_second']:.1f}",
            f"{each['cpu']:.2f}",
            f"{each['tokens'] / each['wall'] / 1e6:.2f}",
            f"{each['rss'] / 2**20:.0f}",
        )
        print(f"{key:<18}" + "".join(f"{column:>14}" for column in columns))
    first, slow = figures["commands"]["fastokens, 1"], figures["commands"]["tokenizers, 1"]
    print(f"fastokens against tokenizers, one worker: {first['mb_per_second'] / slow['mb_per_second']:.1f} x")
    print(
        "stages alone, MB/s of text: " + ", ".join(f"{stage} {rate:,.0f}" for stage, rate in figures["stages"].items())
    )
    print(f"the fused loop reaches {figures['fused_share_of_floor']:.0%} of 1 / sum(1 / rate)")


def main() -> None:
    """Make the corpora, measure, print; the numbers also as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--folder", type=Path, help="keep the corpora here, and take them from here when they are there"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = arguments.folder or Path(temporary)
        figures = []
        for name, texts in (("prose", prose), ("code", code)):
            folder = home / f"{name}-{arguments.megabytes}"
            if not folder.exists():
                write_corpus(folder, texts(arguments.megabytes * 10**6), arguments.megabytes * 10**6)
            figures.append(measure(name, folder, arguments.workers, arguments.rounds))
            show(figures[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
