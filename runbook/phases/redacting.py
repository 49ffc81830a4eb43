"""A run's report for people outside: a copy of its records without users, hosts, accounts, paths and buckets.

    write_redacted(run_folder, out) -> Path      out/index.html, out/report.html, records; no scripts and no logs

The pages are rendered from the redacted records, so that no page can say what its record does not.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from runbook.errors import RecordError
from runbook.params.schema import PHASES
from runbook.phases import report
from runbook.records import ipynb
from runbook.records.files import write_text
from runbook.records.help import NAME as HELP
from runbook.records.help import write_help
from runbook.records.html import write_html
from runbook.records.index import write_campaign
from runbook.records.redacted_pictures import keep_pictures
from runbook.records.redaction import Redactor
from runbook.records.whole import NAME, write_whole

KINDS = {
    **dict.fromkeys(("user", "users", "username", "user_name", "owner", "login"), "user"),
    **dict.fromkeys(
        ("host", "hosts", "hostname", "node", "nodes", "nodelist", "node_list", "machine", "master_addr"), "host"
    ),
    **dict.fromkeys(("account", "accounts", "project", "project_id", "qos", "reservation", "allocation"), "account"),
    **dict.fromkeys(("bucket",), "bucket"),
    **dict.fromkeys(("stage", "folder", "image", "cwd", "home", "path", "container"), "path"),
}
"""Names of keys whose values are such words, in run.yaml, plan.json, job files and events."""
LINES = ("metrics.jsonl", "validation.jsonl", "samples.jsonl", "events.jsonl")
_ENVIRONMENT = {"USER": "user", "LOGNAME": "user", "SLURM_JOB_ACCOUNT": "account", "HOSTNAME": "host", "HOME": "path"}
_OWN_WORDS = frozenset({"local", "checkpoints", "smoke", "data", "tensorboard", "records", "jobs"})


def write_redacted(folder: Path, out: Path | None = None) -> Path:
    """Write the redacted copy into an empty folder, or anew into redacted/ of the run; returns its index.html."""
    if out is None:
        out = folder / "redacted"
        shutil.rmtree(out, ignore_errors=True)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecordError(f"{out} is not an empty folder, and nothing in it is overwritten. Name another: --out DIR.")
    redactor = Redactor(words_of(folder))
    for name in ("run.yaml", "plan.json"):
        if (folder / name).exists():
            write_text(out / name, _file(redactor, folder / name))
    for source in [*(folder / name for name in LINES), *(folder / "smoke" / name for name in LINES)]:
        if source.exists():
            write_text(out / source.relative_to(folder), _file(redactor, source))
    for phase in PHASES:
        _record(redactor, folder, out, phase)
    sample, comparison = report.sample_and_comparison(folder)
    write_campaign(
        out,
        sample=(redactor.text(sample[0]), redactor.text(sample[1])) if sample else None,
        comparison=[redactor.value(row) for row in comparison],
        shown_as=redactor.text(folder.name),
    )
    write_whole(out)
    _keep_help_inside(out)
    return out / "index.html"


def _keep_help_inside(out: Path) -> None:
    """The page of known failures lies beside the runs; a copy that is sent away carries its own."""
    write_help(out)
    for page in (out / "index.html", out / NAME, *(out / "records").glob("*.html")):
        up = "../" if page.parent == out else "../../"
        write_text(page, page.read_text(encoding="utf-8").replace(f'"{up}{HELP}', f'"{up[3:]}{HELP}'))


def words_of(folder: Path) -> dict[str, str]:
    """Every word that tells a person or place, as far as this run's files and this process know."""
    words = dict(_of_this_process(folder))
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts[0]
        if inside in ("data", "checkpoints", "tensorboard") or not path.is_file() or path.stat().st_size > 8 * 2**20:
            continue
        if path.suffix in (".json", ".jsonl", ".yaml") or path.name in ("started", "lock.json"):
            for key, value in _pairs(_content(path)):
                _note(words, key, value)
    return words


def _of_this_process(folder: Path) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(KeyError, OSError):
        yield getpass.getuser(), "user"
    with contextlib.suppress(KeyError, OSError, NotImplementedError):
        yield folder.owner(), "user"
        yield folder.group(), "user"
    yield str(folder.absolute()), "path"
    yield str(folder.absolute().parent), "path"
    yield str(Path.home()), "path"
    for name in (socket.gethostname(), socket.gethostname().partition(".")[0], platform.node()):
        yield name, "host"
    for variable, kind in _ENVIRONMENT.items():
        if os.environ.get(variable):
            yield os.environ[variable], kind


def _note(words: dict[str, str], key: str, value: Any) -> None:
    kind = KINDS.get(key.rpartition(".")[2].lower())
    if (
        not kind
        or not isinstance(value, str)
        or not value
        or value in _OWN_WORDS
        or (kind == "path" and "/" not in value)
    ):
        return
    words[value] = kind
    if kind == "host":
        for host in re.split(r"[\s,]+", value):
            words[host] = words[host.partition(".")[0]] = kind
    if kind == "bucket":
        name = re.sub(r"^\w+://", "", value)
        words[name] = words[name.partition("/")[0]] = kind


def _pairs(content: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its key; a twin's {value, origin} counts under the key above."""
    if isinstance(content, dict):
        for name, item in content.items():
            yield from _pairs(item, key if name == "value" else str(name))
    elif isinstance(content, list):
        for item in content:
            yield from _pairs(item, key)
    else:
        yield key, content


def _content(path: Path) -> Any:
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        return yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except (ValueError, yaml.YAMLError):  # half a line of a killed writer, or a file of plain words
        return [dict([line.partition("=")[::2]]) for line in text.splitlines() if "=" in line]


def _file(redactor: Redactor, path: Path) -> str:
    if path.suffix == ".json":
        return json.dumps(redactor.value(json.loads(path.read_text())), indent=1, ensure_ascii=False) + "\n"
    if path.suffix == ".jsonl":
        rows = _content(path)
        return "".join(json.dumps(redactor.value(row), ensure_ascii=False) + "\n" for row in rows)
    return redactor.text(path.read_text(encoding="utf-8"))


def _record(redactor: Redactor, folder: Path, copy: Path, phase: str) -> None:
    twin = folder / "records" / f"{phase}.json"
    notebook = folder / "records" / f"{phase}.ipynb"
    if not twin.exists():
        return
    write_text(copy / "records" / twin.name, _file(redactor, twin))
    if notebook.exists():
        content = ipynb.read(notebook)
        content.cells = [_cell(redactor, cell) for cell in content.cells]
        content.metadata = redactor.value(content.metadata)
        write_text(copy / "records" / notebook.name, ipynb.text_of(content))
        write_html(copy, phase)


def _cell(redactor: Redactor, cell: Any) -> Any:
    """A cell whose texts are redacted; of pictures only those that our own figures draw are kept, without hidden words.

    What a person attached to a cell may show anything, and is left out.
    """
    for output in cell.get("outputs", []):
        if "data" in output:
            keep_pictures(output["data"], redactor.value)
        for key in ("text", "ename", "evalue", "traceback", "metadata"):
            if key in output:
                output[key] = redactor.value(output[key])
    if cell.pop("attachments", None):
        cell.source = _ATTACHED.sub("[attachment left out]", cell.source)
    cell.source = redactor.text(cell.source)
    cell.metadata = redactor.value(cell.metadata)
    return cell


_ATTACHED = re.compile(r"!\[[^\]]*\]\(\s*attachment:[^)]*\)")
