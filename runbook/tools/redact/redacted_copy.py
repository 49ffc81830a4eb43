"""The redacted copy of a run, for people outside.

Redacted pages are rendered from the redacted records, so that no page can say what its record does not.
"""

import contextlib
import getpass
import json
import os
import platform
import pwd
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from runbook.core.errors import RecordError
from runbook.core.files import write_text
from runbook.params.schema.run_file import PHASES
from runbook.phases.report import read_front_page
from runbook.records import twin as ipynb
from runbook.records.pages import page_parts, run_pages
from runbook.records.pages.notebook_page import write_html
from runbook.tools.redact.redaction import WHOLE_PATH, Redactor, keep_pictures

PRIVATE_KEYS = {
    **dict.fromkeys(("user", "users", "username", "user_name", "owner", "login", "by"), "user"),
    **dict.fromkeys(("waived_by", "rehearsal_waived_by"), "user"),
    **dict.fromkeys(
        ("host", "hosts", "hostname", "node", "nodes", "nodelist", "node_list", "master_addr"),
        "host",
    ),
    **dict.fromkeys(
        ("account", "accounts", "project", "project_id", "qos", "reservation", "allocation"),
        "account",
    ),
    **dict.fromkeys(("bucket",), "bucket"),
    **dict.fromkeys(("stage", "folder", "image", "cwd", "home", "path", "container"), "path"),
}
"""Names of keys whose values are such words, in run.yaml, plan.json, job files and events."""
LARGEST_LIST = 4096
"""Hosts of one range that are looked for."""
JSON_LINES_FILES = (
    "metrics.jsonl",
    "rank_times.jsonl",
    "validation.jsonl",
    "samples.jsonl",
    "events.jsonl",
)
_ENVIRONMENT = {
    "USER": "user",
    "LOGNAME": "user",
    "SLURM_JOB_ACCOUNT": "account",
    "HOSTNAME": "host",
    "HOME": "path",
}
_PUBLIC_WORDS = frozenset(
    {"local", "checkpoints", "smoke", "data", "tensorboard", "records", "jobs"}
)


def write_redacted(folder: Path, out: Path | None = None) -> Path:
    """Write the redacted copy into an empty folder, or into redacted/ of the run, replaced; returns its index.html."""
    if out is None:
        out = folder / "redacted"
        shutil.rmtree(out, ignore_errors=True)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecordError(
            f"{out} is not an empty folder, and nothing in it is overwritten. Name another: --out DIR."
        )
    redactor = Redactor(private_words(folder))
    for name in (
        "run.yaml",
        "plan.json",
        *JSON_LINES_FILES,
        *(f"smoke/{name}" for name in JSON_LINES_FILES),
    ):
        if (folder / name).exists():
            write_text(out / name, _redacted_file(redactor, folder / name))
    for phase in PHASES:
        _write_record(redactor, folder, out, phase)
    outcome = run_pages.FrontPage(*redactor.value([*read_front_page(folder)]))
    run_pages.write_campaign(out, outcome, shown_as=redactor.text(folder.name))
    run_pages.write_single_file(out)
    # The page of known failures goes into the copy: outside, the shared one next to the runs is missing.
    page_parts.write_help(out)
    for page in (
        out / "index.html",
        out / run_pages.REPORT_NAME,
        *(out / "records").glob("*.html"),
    ):
        here = "" if page.parent == out else "../"
        link = f'"../{here}{page_parts.HELP_NAME}'
        inside = f'"{here}{page_parts.HELP_NAME}'
        write_text(page, page.read_text(encoding="utf-8").replace(link, inside))
    return out / "index.html"


def private_words(folder: Path) -> dict[str, str]:
    """Every word that tells a person or place, as far as this run's files and this process know."""
    words = dict(_of_this_process(folder))
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts[0]
        if (
            inside in ("data", "checkpoints", "tensorboard")
            or not path.is_file()
            or path.stat().st_size > 8 * 2**20
        ):
            continue
        if path.name == "hostfile":
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                _note_private(words, "host", line.partition(" ")[0])
        elif path.suffix in (".json", ".jsonl", ".yaml", ".ipynb") or path.name == "started":
            for key, value in _keys_and_values(_read_content(path)):
                _note_private(words, key, value)
    return words


def _of_this_process(folder: Path) -> Iterator[tuple[str, str]]:
    homes = [Path.home()]
    with contextlib.suppress(
        KeyError, OSError
    ):  # an account without a name, as in some containers; OSError since 3.13
        yield getpass.getuser(), "user"
    for number in {os.getuid(), folder.stat().st_uid}:
        with contextlib.suppress(KeyError):  # as above
            person = pwd.getpwuid(number)
            homes.append(Path(person.pw_dir))
            yield person.pw_name, "user"
            yield person.pw_gecos.partition(",")[0], "user"
    with contextlib.suppress(KeyError):  # a group without a name
        yield folder.group(), "user"
    for home in homes:
        if len(home.parts) > 1:
            yield str(home), "path"
            yield home.name, "user"
    yield str(folder.absolute()), "path"
    yield str(folder.absolute().parent), "path"
    for name in (socket.gethostname(), socket.gethostname().partition(".")[0], platform.node()):
        yield name, "host"
    for variable, kind in _ENVIRONMENT.items():
        yield os.environ.get(variable, ""), kind


def _note_private(words: dict[str, str], key: str, value: Any) -> None:
    if not isinstance(value, str) or not value or value in _PUBLIC_WORDS:
        return
    if " " in value and WHOLE_PATH.fullmatch(
        value
    ):  # its folders are named elsewhere too, in running text
        place = Path(value)
        words.update({str(one): "path" for one in (place, *place.parents) if " " in str(one)})
    kind = PRIVATE_KEYS.get(key.rpartition(".")[2].lower())
    if not kind or (kind == "path" and "/" not in value):
        return
    words[value] = kind
    if kind == "host":
        for host in hosts_in(value):
            if not host.isdecimal():
                words[host] = words[host.partition(".")[0]] = kind
    if kind == "bucket":
        name = re.sub(r"^\w+://", "", value)
        words[name] = words[name.partition("/")[0]] = kind


def hosts_in(text: str) -> Iterator[str]:
    """Every host of a list, also of one written short as queues do.

    >>> list(hosts_in("n[1-2,08-10]-ib, gpu3"))
    ['n1-ib', 'n2-ib', 'n08-ib', 'n09-ib', 'n10-ib', 'gpu3']
    """
    for name in re.findall(r"(?:\[[^\]]*\]|[^\s,\[\]])+", text):
        before, bracket, rest = name.partition("[")
        numbers, _, after = rest.partition("]")
        if not bracket:
            yield name
        for first, last in re.findall(r"(?<![^,])(\d+)(?:-(\d+))?(?![^,])", numbers):
            for number in range(int(first), min(int(last or first), int(first) + LARGEST_LIST) + 1):
                yield f"{before}{number:0{len(first)}}{after}"


def _keys_and_values(content: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its key; a twin's {value, origin} counts under the key above."""
    if isinstance(content, dict):
        for name, item in content.items():
            yield from _keys_and_values(item, key if name == "value" else str(name))
    elif isinstance(content, list):
        for item in content:
            yield from _keys_and_values(item, key)
    else:
        yield key, content


def _read_content(path: Path) -> Any:
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        return yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except (ValueError, yaml.YAMLError):  # half a line of a killed writer, or a file of plain words
        pairs = (re.split(r"[= ]", line, maxsplit=1) for line in text.splitlines())
        return [{pair[0]: pair[1]} for pair in pairs if len(pair) == 2]


def _redacted_file(redactor: Redactor, path: Path) -> str:
    if path.suffix == ".json":
        return (
            json.dumps(redactor.value(json.loads(path.read_text())), indent=1, ensure_ascii=False)
            + "\n"
        )
    if path.suffix == ".jsonl":
        return "".join(
            json.dumps(redactor.value(row), ensure_ascii=False) + "\n"
            for row in _read_content(path)
        )
    return redactor.text(path.read_text(encoding="utf-8"))


def _write_record(redactor: Redactor, folder: Path, copy: Path, phase: str) -> None:
    twin, notebook = (folder / "records" / f"{phase}.{ending}" for ending in ("json", "ipynb"))
    if twin.exists():
        write_text(copy / "records" / twin.name, _redacted_file(redactor, twin))
    if twin.exists() and notebook.exists():
        content = ipynb.read_notebook(notebook)
        for place, cell in enumerate(content.cells):
            _redact_cell(redactor, cell, place)
        content.metadata = redactor.value(content.metadata)
        write_text(copy / "records" / notebook.name, ipynb.notebook_text(content))
        write_html(copy, phase)


def _redact_cell(redactor: Redactor, cell: Any, place: int) -> None:
    """Redact a cell's texts; of pictures only those that our own figures draw are kept, without hidden words.

    What a person attached to a cell may show anything, and is left out.
    """
    for output in cell.get("outputs", []):
        if "data" in output:
            keep_pictures(output["data"], redactor.value, redactor.markup)
        for key in ("text", "ename", "evalue", "traceback", "metadata"):
            if key in output:
                output[key] = redactor.value(output[key])
    if cell.pop("attachments", None):
        cell.source = re.sub(
            r"!\[[^\]]*\]\(\s*attachment:[^)]*\)", "[attachment left out]", cell.source
        )
    cell.source = redactor.text(cell.source)
    if redactor.text(cell.get("id", "")) != cell.get("id", ""):
        cell.id = f"cell-{place}"
    cell.metadata = redactor.value(cell.metadata)
