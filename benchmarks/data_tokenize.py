"""Measures how fast the data pipeline is.

The pipeline is compared with the tools in Megatron-LM on the same text, stage by stage, with one
and two workers.

    python -m benchmarks.data_tokenize [--megatron CHECKOUT [--python PYTHON]] [--text FILE.jsonl] [--megabytes 220]
                                       [--rounds 5] [--slow-rounds 1] [--folder DIR] [--json FILE]

CHECKOUT is a clone of NVIDIA/Megatron-LM; PYTHON is an interpreter that can import it (with torch,
transformers, triton, and gigatoken for the fast tool). Without CHECKOUT, the Hugging Face
tokenizers, which the Megatron tool calls, are measured with our own reader. If gigatoken and
awkward are installed here, gigatoken is measured as well. It has a minimal writer around it
(`benchmarks.gigatoken_writer`), and is bound to one core, as our command is. Every measured command
is a separate process, timed from its start to its end with its imports. Commands alternate, so that
other load on the machine slows all of them. The median is reported. Our command with one worker is
bound to one core. The Megatron tools may use all cores. They read whole.jsonl. Our
command reads that file and, in other runs, the same records as sixteen .jsonl.zst. All outputs must
be equal, byte for byte.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import data_corpus
from benchmarks.data_commands import Megatron, Run, measure_command, ours, three_steps


def whole_lines(text: bytes) -> Iterator[bytes]:
    """Yield blocks with whole lines, as large as those in the pipeline."""
    from runbook.tokens.sources.input_files import BLOCK

    start = 0
    while start < len(text):
        end = text.find(b"\n", min(start + BLOCK, len(text) - 1)) + 1 or len(text)
        yield text[start:end]
        start = end


def floors(inputs: list[Path]) -> dict[str, float]:
    """Measure how many seconds each stage takes on its own, on one core."""
    import numpy as np
    from backports import zstd

    from runbook.tokens.pipeline.shard import join_ids
    from runbook.tokens.sources.documents import Parser
    from runbook.tokens.tokenizer import _gpt2, use_one_thread

    use_one_thread()
    # encoders cache words; this encoder starts with an empty cache, as in the pipeline
    _gpt2.cache_clear()
    tokenizer = _gpt2(False, "auto")
    parser = Parser("text", "meta.redpajama_set_name")
    seconds = dict.fromkeys(("decompress", "parse", "encode", "join and write"), 0.0)
    eod = np.array([50256], dtype="<u2")

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        seconds[stage] += time.perf_counter() - began
        return result

    with tempfile.TemporaryFile() as target:
        for path in inputs:
            blocks: list[bytes] = []
            with zstd.ZstdFile(path) as file:
                while block := timed("decompress", lambda file=file: file.read(1 << 20)):
                    blocks.append(block)
            lines = list(whole_lines(b"".join(blocks)))
            batches = timed(
                "parse", lambda lines=lines: [parser.parse(data, 0).texts for data in lines]
            )
            made = timed(
                "encode",
                lambda batches=batches: [
                    tokenizer.encoder.encode_batch(texts) for texts in batches
                ],
            )
            timed(
                "join and write",
                lambda made=made: [
                    target.write(join_ids(ids, offsets, eod.dtype, eod)) for ids, offsets in made
                ],
            )
    return seconds


def has_gigatoken() -> bool:
    """Return whether gigatoken can be measured. Its writer needs awkward as well."""
    return all(map(find_spec, ("gigatoken", "awkward")))


def rows(
    folder: Path, megatron: Megatron | None
) -> dict[str, tuple[list[str], Path, dict[str, Any]]]:
    """Return the commands to run in each round, with their output prefixes."""
    whole = folder / "whole.jsonl"
    packed = data_corpus.parts(folder)
    out = folder.parent / "out"
    out.mkdir(exist_ok=True)
    found: dict[str, tuple[list[str], Path, dict[str, Any]]] = {
        "ours, .jsonl, 1 worker": (ours([whole], out / "a", 1), out / "a", {"core": 0}),
        "ours, .jsonl.zst, 1 worker": (ours(packed, out / "b", 1), out / "b", {"core": 0}),
        "ours, .jsonl.zst, 2 workers": (ours(packed, out / "c", 2), out / "c", {}),
    }
    if has_gigatoken():
        writer = [sys.executable, "-m", "benchmarks.gigatoken_writer"]
        for kind, inputs in ((".jsonl", [whole]), (".jsonl.zst", packed)):
            prefix = out / f"g{kind[-1]}"
            words = [*writer, str(prefix), *map(str, inputs)]
            found[f"gigatoken, {kind}, one core"] = (words, prefix, {"core": 0})
    if megatron is not None:
        found["preprocess_data_fast.py"] = (
            megatron.fast(whole, out / "d"),
            out / "d",
            megatron.surroundings,
        )
    else:
        tenth = packed[: max(1, len(packed) // 10)]
        found["tokenizers in our reader, a tenth"] = (
            ours(tenth, out / "e", 1, "tokenizers"),
            out / "e",
            {"core": 0},
        )
    return found


def slow_rows(
    folder: Path, megatron: Megatron
) -> dict[str, tuple[list[str], Path, dict[str, Any]]]:
    """Return the commands for the slow Megatron tool, which takes minutes."""
    whole = folder / "whole.jsonl"
    out = folder.parent / "out"
    return {
        f"preprocess_data.py --workers {workers}": (
            megatron.slow(whole, out / f"s{workers}", workers),
            out / f"s{workers}",
            megatron.surroundings,
        )
        for workers in (1, 2)
    }


def measure(
    name: str, folder: Path, megatron: Megatron | None, rounds: int, slow_rounds: int
) -> dict[str, Any]:
    """Return all measurements for one corpus."""
    runs: dict[str, list[Run]] = {}
    sums: dict[str, str] = {}
    alone: list[dict[str, float]] = []
    for number in range(rounds):
        todo = rows(folder, megatron)
        if megatron is not None and number < slow_rounds:
            todo |= slow_rows(folder, megatron)
        for key, (words, prefix, how) in todo.items():
            run = measure_command(words, prefix, **how)
            runs.setdefault(key, []).append(run)
            print(
                f"round {number + 1}: {key}: {run.wall:.2f} s, {run.cpu:.2f} s of CPU",
                file=sys.stderr,
                flush=True,
            )
            sums[key] = run.sha256
        if number < 3:
            alone.append(floors(data_corpus.parts(folder)))
    if megatron is not None:
        runs["three steps, 2 workers"] = [three_steps(folder, folder.parent / "out", megatron)]
    different = {key for key, sha256 in sums.items() if sha256 != sums["ours, .jsonl, 1 worker"]}
    if different - {"tokenizers in our reader, a tenth"}:
        raise SystemExit(f"other bytes came from: {', '.join(sorted(different))}")
    first = runs["ours, .jsonl.zst, 1 worker"]
    text = first[0].text
    tokens = first[0].tokens
    floor = {
        stage: min(each[stage] for each in alone) for stage in alone[0]
    }  # the fastest round is the least disturbed one, as below
    fused = min(run.stages for run in first)
    return {
        "corpus": name,
        "text": text,
        "tokens": tokens,
        "rows": {
            key: _summary(results, text if "tenth" not in key else results[0].text)
            for key, results in runs.items()
        },
        "stages": {stage: text / seconds / 1e6 for stage, seconds in floor.items()},
        "fused_stages": min(first, key=lambda run: run.stages).each,
        "fused_share_of_floor": sum(floor.values()) / fused,
    }


def _summary(results: list[Run], text: int) -> dict[str, Any]:
    wall = statistics.median(run.wall for run in results)
    return {
        "runs": len(results),
        "wall": wall,
        "walls": [round(run.wall, 2) for run in results],
        "cpu": statistics.median(run.cpu for run in results),
        "mb_per_second": text / wall / 1e6,
        "rss": max(run.rss for run in results),
        "written": statistics.median(run.written for run in results),
    }


def show(figures: dict[str, Any]) -> None:
    """Print the table for a corpus and the ratios that have a target."""
    print(
        f"\n{figures['corpus']}: {figures['text'] / 1e6:.0f} MB of text, {figures['tokens'] / 1e6:.1f} M tokens"
    )
    heads = ("runs", "wall s", "MB/s", "CPU s", "peak RSS MiB", "written MB")
    print(f"{'':<36}" + "".join(f"{head:>14}" for head in heads))
    for key, each in figures["rows"].items():
        columns = (
            f"{each['runs']}",
            f"{each['wall']:.2f}",
            f"{each['mb_per_second']:.1f}",
            f"{each['cpu']:.2f}",
            f"{each['rss'] / 2**20:.0f}",
            f"{each['written'] / 1e6:.0f}",
        )
        print(f"{key:<36}" + "".join(f"{column:>14}" for column in columns))
    for line in ratios(figures):
        print(line)


def ratios(figures: dict[str, Any]) -> list[str]:
    """Return the lines with the ratios that have a target."""
    found = figures["rows"]
    mine, packed, two = (
        found[f"ours, {kind}"]
        for kind in (".jsonl, 1 worker", ".jsonl.zst, 1 worker", ".jsonl.zst, 2 workers")
    )
    lines = []
    for key, other in found.items():
        if key.startswith(("preprocess", "tokenizers")):
            rate = other["mb_per_second"]
            lines.append(
                f"ours with one worker against {key}: {mine['mb_per_second'] / rate:.1f} x on the same .jsonl, "
                f"{packed['mb_per_second'] / rate:.1f} x from .zst"
            )
        elif key.startswith("gigatoken"):
            same = packed if ".zst" in key else mine
            ratio = other["wall"] / same["wall"]
            lines.append(f"ours with one worker against {key}: {ratio:.2f} x")
        elif key.startswith("three"):
            lines.append(
                f"ours with two workers against the three steps: {other['wall'] / two['wall']:.1f} x"
            )
    rates = ", ".join(f"{stage} {rate:,.0f}" for stage, rate in figures["stages"].items())
    lines.append(f"stages alone, MB/s of text: {rates}")
    inside = ", ".join(
        f"{stage} {figures['text'] / took / 1e6:,.0f}"
        for stage, took in figures["fused_stages"].items()
    )
    lines.append(f"stages in the fused loop, MB/s of text: {inside}")
    lines.append(
        f"the fused loop reaches {figures['fused_share_of_floor']:.0%} of 1 / sum(1 / rate)"
    )
    return lines


def corpora(arguments: argparse.Namespace, home: Path) -> Iterator[tuple[str, Path]]:
    """Return the requested corpora, and generate those that do not exist yet."""
    limit = arguments.megabytes * 10**6
    makers = {"prose": data_corpus.prose, "code": data_corpus.code}
    if arguments.text:
        makers = {arguments.text.stem: lambda limit: data_corpus.own(arguments.text, limit)}
    for name, texts in makers.items():
        if arguments.only and name not in arguments.only:
            continue
        folder = home / f"{name}-{arguments.megabytes}"
        if not folder.exists():
            data_corpus.write_corpus(folder, texts(limit), limit)
        yield name, folder


def main() -> None:
    """Generate the corpora, measure, print, and write the numbers as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--megabytes", type=int, default=220)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slow-rounds", type=int, default=1, help="of preprocess_data.py")
    parser.add_argument("--megatron", type=Path, help="a checkout of NVIDIA/Megatron-LM")
    parser.add_argument(
        "--python", type=Path, help="a python that can import it; default: this one"
    )
    parser.add_argument(
        "--text",
        type=Path,
        help="your own English text, as JSON lines, instead of the generated corpora",
    )
    parser.add_argument("--only", nargs="+", help="prose or code")
    parser.add_argument(
        "--folder", type=Path, help="folder in which the corpora are kept for later calls"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    megatron = None
    if arguments.megatron:
        megatron = Megatron.found(arguments.megatron, arguments.python)
    else:
        print(
            "no --megatron CHECKOUT: Hugging Face tokenizers in our own reader stand for Megatron's slow tool"
        )
    with tempfile.TemporaryDirectory() as temporary:
        figures = []
        for name, folder in corpora(arguments, arguments.folder or Path(temporary)):
            figures.append(measure(name, folder, megatron, arguments.rounds, arguments.slow_rounds))
            show(figures[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
