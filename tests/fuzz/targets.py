"""The fuzz targets. Each target reads arbitrary bytes instead of a certain kind of file.

A clear error or a result is acceptable.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from runbook import params
from runbook.core.errors import RunbookError
from runbook.jobs import job_folder
from runbook.jobs.job_folder import JobFolder, JobState, JobStatus
from runbook.log_readers.read import parse_files
from runbook.phases.job_control.ended_jobs import read_attempt
from runbook.plan_file.errors import TrainingError
from runbook.plan_file.schema import read_plan
from runbook.planning import make_plan
from runbook.records.manifest import verify_run
from runbook.tokens.indexed_files import IndexedReader
from runbook.tokens.pipeline.tokenize_options import read_manifest
from runbook.tools.drills.bench import write_project, write_tokens
from runbook.training import token_files
from runbook.training.checkpoints import folders

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "samples"
ERRORS = (RunbookError, TrainingError)


@dataclass
class Target:
    """A kind of file: where it is, the function that reads it, and valid files to start from."""

    name: str
    path: Path
    read: Callable[[], object]
    seeds: list[bytes]
    words: list[bytes] = field(default_factory=list)
    folder: Path = Path()

    def look(self, content: bytes) -> str:
        """Read the file. Return `read`, or the text of an expected error.

        Any other exception is raised unchanged.
        """
        self.path.write_bytes(content)
        before = tree(self.folder)
        said = "read"
        try:
            self.read()
        except ERRORS as error:
            said = str(error)
            assert said.strip() and "Traceback" not in said, f"an error without words: {error!r}"
        assert tree(self.folder) == before, "something was written"
        return said


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Return every file below a folder with its size and modification time."""
    found = {}
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            stat = path.stat()
            found[str(path)] = (stat.st_size, stat.st_mtime_ns)
    return found


def make_targets(folder: Path) -> dict[str, Target]:
    """Return all targets, in a new folder."""
    targets = [make(folder / name) for name, make in MAKERS.items()]
    return {target.name: target for target in targets}


def run_files(folder: Path) -> Target:
    write_project(folder, Path("/usr/bin/python3"))
    path = folder / "params" / "fuzzed.yaml"

    def read() -> object:
        settings = params.load(str(path), project=folder)
        return make_plan(settings, None)

    text = (folder / "params" / "drill.yaml").read_bytes().replace(b"run: drill", b"run: fuzzed")
    shipped = [
        renamed(one.read_bytes(), b"run") for one in sorted((ROOT / "params").glob("*-*.yaml"))
    ]
    seeds = [text, text, *shipped]
    return Target("run", path, read, seeds, YAML_WORDS, folder)


def site_files(folder: Path) -> Target:
    write_project(folder, Path("/usr/bin/python3"))
    path = folder / "params" / "sites" / "fuzzed.yaml"

    def read() -> object:
        return params.load("drill", set_words=["site=fuzzed"], project=folder)

    own = renamed((folder / "params" / "sites" / "local.yaml").read_bytes(), b"site")
    shipped = [
        renamed(one.read_bytes(), b"site")
        for one in sorted((ROOT / "params" / "sites").glob("*.yaml"))
    ]
    return Target("site", path, read, [own, *shipped], YAML_WORDS, folder)


def renamed(content: bytes, key: bytes) -> bytes:
    """Return a shipped file under the fuzzed name, because the file itself requires that name."""
    return re.sub(rb"(?m)^%s: .*$" % key, key + b": fuzzed", content, count=1)


def logs(folder: Path) -> Target:
    folder.mkdir(parents=True)
    path = folder / "job.log"
    names = sorted(path for path in SAMPLES.iterdir() if path.suffix in (".log", ".jsonl"))
    seeds = [one.read_bytes()[:3000] for one in names]
    words = [
        b"iteration",
        b" | ",
        b"nan",
        b"inf",
        b"elapsed time per iteration (ms): ",
        b"lm loss: 1E400",
        b"1e999",
    ]

    def read() -> object:
        parsed = parse_files([path])
        status = JobStatus(JobState.FAILED, "x", 1, "rank 0 failed (exit code 1)")
        job = JobFolder(folder / "jobs" / "04-training")
        return parsed, read_attempt(job, status, path, path), job_folder.log_tail(path)

    return Target("log", path, read, seeds, words, folder)


def indexes(folder: Path) -> Target:
    prefix = folder / "data" / "corpus_text_document"
    write_tokens(prefix, documents=6, length=9)
    path = prefix.with_name(prefix.name + ".idx")

    def read() -> object:
        with contextlib.suppress(*ERRORS):
            token_files.open_pair(prefix)
        reader = IndexedReader(prefix.with_name(prefix.name + ".bin"), path)
        return [reader.document(number).sum() for number in range(min(reader.num_documents, 50))]

    return Target(
        "idx", path, read, [path.read_bytes()], [bytes(8), b"\xff" * 8, b"MMIDIDX"], folder
    )


def manifests(folder: Path) -> Target:
    """Return the JSON files for token files, a run, a checkpoint, the trainer's plan, and a job."""
    folder.mkdir(parents=True)
    prefix = folder / "corpus_text_document"
    path = folder / "one.json"
    places = [
        prefix.with_name(prefix.name + ".manifest.json"),
        folder / "manifest.json",
        folder / "checkpoints" / "iter_0000004" / "metadata.json",
        folder / "jobs" / "04-training" / "job.json",
        folder / "jobs" / "04-training" / "started",
        folder / "jobs" / "04-training" / "heartbeat",
    ]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path)
    job = JobFolder(folder / "jobs" / "04-training")
    readers: list[Callable[[], object]] = [
        lambda: read_manifest(prefix),
        lambda: verify_run(folder),
        lambda: folders.candidates(folder / "checkpoints"),
        lambda: job_folder.read_record(job),
        lambda: job_folder.read_started(job),
        lambda: job_folder.heartbeat_age(job),
        lambda: read_plan(path, "04-training"),
    ]

    def read() -> object:
        said = []
        for one in readers:
            try:
                one()
            except ERRORS as error:
                said.append(str(error))
                assert str(error).strip()
        return said

    return Target("manifest", path, read, manifest_seeds(), JSON_WORDS, folder)


def manifest_seeds() -> list[bytes]:
    """Return valid files of each kind."""
    plan = ROOT / "tests" / "plan" / "local_plan.json"
    records: list[object] = [
        {"schema": 1, "files": {"plan.json": {"sha256": "0" * 64, "bytes": 1, "mtime_ns": 1}}},
        {
            "iteration": 4,
            "seal": "0",
            "files": {"torch_dist/a": "0" * 64},
            "model": {"hidden": 16},
            "common": {},
        },
        {
            "schema": 1,
            "kind": "local",
            "job_id": "local-1",
            "submitted": 1.0,
            "process": {"pid": 1, "start": 2},
        },
        {"phases": {"04-training": {"phase": "04-training", "engine": "megatron-core", "seed": 1}}},
    ]
    started = b"job local-1\npid 7\nstart 8\nboot_id b\nhost h\nnamespace n\ntime 1\n"
    seeds = [json.dumps(one).encode() for one in records] + [started, b"1795294199 100.5 boot"]
    return [*seeds, plan.read_bytes()] if plan.exists() else seeds


YAML_WORDS = [
    b"null",
    b"[]",
    b"{}",
    b"-1",
    b"1e400",
    b".nan",
    b".inf",
    b"0x7fffffffffffffffffff",
    b"&a [*a]",
    b"!!python/object:os.system",
    b"yes",
    b"12:00:00",
    b"~",
    b"'",
    b'"',
    b"\t",
    b"- ",
    b": ",
    b"\xff\xfe",
    b"\xe2\x80\xa8",
    b"{{",
    b"${HOME}",
    b"$(touch x)",
    b"`id`",
    b"9" * 5000,
    b"../../../etc/passwd",
    b"\x00",
    b"99999999999999999999",
    b"*a",
    b"<<: *a",
    b"? ",
    b"|\n",
    b"--- \n",
]
JSON_WORDS = [
    b"null",
    b"[]",
    b"{}",
    b"-1",
    b"1e400",
    b"NaN",
    b"Infinity",
    b'"',
    b"\\ud800",
    b"\\u0000",
    b"true",
    b"[" * 2000,
    b"9" * 5000,
    b'{"a":' * 500,
    b"\xff",
    b"..",
    b"/etc/passwd",
    b"\n",
]
MAKERS: dict[str, Callable[[Path], Target]] = {
    "run": run_files,
    "site": site_files,
    "log": logs,
    "idx": indexes,
    "manifest": manifests,
}


def mutate(content: bytes, words: list[bytes], draw: random.Random) -> bytes:
    """Return a valid file with some bytes, lines or values changed."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 3, 6))):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(8)
        if kind == 0 and data:
            data[at % len(data)] = draw.randrange(256)
        elif kind == 1:
            data[at:at] = draw.choice(words)
        elif kind == 2:
            del data[at : at + draw.choice((1, 2, 8, 64))]
        elif kind == 3:
            length = draw.choice((1, 4, 8))
            data[at : at + length] = draw.getrandbits(8 * length).to_bytes(length, "little")
        elif kind == 4:
            lines = bytes(data).split(b"\n")
            one = draw.randrange(len(lines))
            other = draw.randrange(len(lines))
            lines[one] = lines[other]
            data = bytearray(b"\n".join(lines))
        elif kind == 5:
            lines = bytes(data).split(b"\n")
            place = draw.randrange(len(lines))
            key, colon, _ = lines[place].partition(b": ")
            lines[place] = key + colon + draw.choice(words)
            data = bytearray(b"\n".join(lines))
        elif kind == 6:
            del data[at:]
        else:
            data[at:at] = data[max(0, at - 50) : at]
    return bytes(data)
