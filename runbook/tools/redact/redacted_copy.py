"""Writes a redacted copy of a run, which can be shared with others.

Redacted pages are rendered from the redacted records, so a page contains nothing that its record
does not.
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
from runbook.phases.run_report import changed_files, read_front_page
from runbook.records import notebook_file
from runbook.records.pages import page_parts
from runbook.records.pages.front_page import REPORT_NAME, FrontPage, Surroundings, write_front_page
from runbook.records.pages.notebook_page import write_html
from runbook.records.phase_record import phases_with_record
from runbook.records.run_state import write_states_for_copy
from runbook.tools.redact.messages import RedactMessage
from runbook.tools.redact.redaction import WHOLE_PATH, Redactor, keep_pictures

PRIVATE_KEYS = {
    "user": "user",
    "users": "user",
    "username": "user",
    "user_name": "user",
    "owner": "user",
    "login": "user",
    "by": "user",
    "waived_by": "user",
    "rehearsal_waived_by": "user",
    "host": "host",
    "hosts": "host",
    "hostname": "host",
    "node": "host",
    "nodes": "host",
    "nodelist": "host",
    "node_list": "host",
    "master_addr": "host",
    "account": "account",
    "accounts": "account",
    "project": "account",
    "project_id": "account",
    "qos": "account",
    "reservation": "account",
    "allocation": "account",
    "bucket": "bucket",
    "stage": "path",
    "folder": "path",
    "image": "path",
    "cwd": "path",
    "home": "path",
    "path": "path",
    "container": "path",
}
"""Keys in run.yaml, plan.json, job files and events whose values are sensitive words."""
LARGEST_LIST = 4096
"""Largest host range expanded to search for all hosts in it."""
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
    {"local", "checkpoints", "smoke", "data", "tensorboard", "trackers", "records", "jobs"}
)


def write_redacted(folder: Path, out: Path | None = None) -> Path:
    """Write the redacted copy of a run into an empty folder, and return its index.html.

    If `out` is not given, the run folder redacted/ is replaced. Raise `RecordError` if `out`
    contains files.
    """
    if out is None:
        out = folder / "redacted"
        shutil.rmtree(out, ignore_errors=True)

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecordError(RedactMessage.FOLDER_NOT_EMPTY, out=out)

    redactor = Redactor(private_words(folder))
    smoke_files = [f"smoke/{name}" for name in JSON_LINES_FILES]
    for name in ("run.yaml", "plan.json", *JSON_LINES_FILES, *smoke_files):
        if (folder / name).exists():
            write_text(out / name, _redacted_file(redactor, folder / name))

    for phase in phases_with_record(folder):
        _write_record(redactor, folder, out, phase)
    write_states_for_copy(folder, out)
    front_page = read_front_page(folder)._replace(changed=changed_files(folder))
    outcome = FrontPage(*redactor.value([*front_page]))
    write_front_page(
        out,
        outcome,
        shown_as=redactor.text(folder.name),
        surroundings=Surroundings.NONE,
    )
    _write_help(out)
    return out / "index.html"


def copy_redacted(folder: Path, site: Path) -> str:
    """Write the redacted copy of a run into a folder of a site, and return the folder name."""
    name = Redactor(private_words(folder)).text(folder.name)
    write_redacted(folder, site / name)
    return name


def _write_help(out: Path) -> None:
    """Write the page about known failures to the copy, and point links in the copy to it.

    Pages for a run link to a page that all runs share, in the folder above the run. The folder that
    contains the copy has no such page.
    """
    page_parts.write_help(out)
    pages = [out / "index.html", out / REPORT_NAME, *(out / "records").glob("*.html")]
    for page in pages:
        to_top = "" if page.parent == out else "../"
        shared = f'"../{to_top}{page_parts.HELP_NAME}'
        inside = f'"{to_top}{page_parts.HELP_NAME}'
        write_text(page, page.read_text(encoding="utf-8").replace(shared, inside))


def private_words(folder: Path) -> dict[str, str]:
    """Return the words in run files and in this process that identify a person or place.

    Each word has a kind: user, host, account, bucket or path.
    """
    kinds = dict(_of_this_process(folder))
    for path in sorted(folder.rglob("*")):
        top = path.relative_to(folder).parts[0]
        if top in _FOLDERS_WITHOUT_WORDS or not path.is_file():
            continue
        if path.stat().st_size > _MOST_BYTES:
            continue
        if path.name == "hostfile":
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                _note_private(kinds, "host", line.partition(" ")[0])
        elif path.suffix in (".json", ".jsonl", ".yaml", ".ipynb") or path.name == "started":
            for key, value in _keys_and_values(_read_content(path)):
                _note_private(kinds, key, value)

    return kinds


_FOLDERS_WITHOUT_WORDS = ("data", "checkpoints", "tensorboard", "trackers")
_MOST_BYTES = 8 * 2**20


def _of_this_process(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the words that identify the current user and machine, and the run folder."""
    homes = [Path.home()]
    # In some containers, the account has no name. This raises KeyError, or OSError since Python
    # 3.13.
    with contextlib.suppress(KeyError, OSError):
        yield getpass.getuser(), "user"
    for number in {os.getuid(), folder.stat().st_uid}:
        with contextlib.suppress(KeyError):  # The account has no name, as above
            person = pwd.getpwuid(number)
            homes.append(Path(person.pw_dir))
            yield person.pw_name, "user"
            yield person.pw_gecos.partition(",")[0], "user"

    with contextlib.suppress(KeyError):  # The group has no name
        yield folder.group(), "user"
    for home in homes:
        if len(home.parts) > 1:
            yield str(home), "path"
            yield home.name, "user"

    yield str(folder.absolute()), "path"
    yield str(folder.absolute().parent), "path"
    host = socket.gethostname()
    for name in (host, host.partition(".")[0], platform.node()):
        yield name, "host"
    for variable, kind in _ENVIRONMENT.items():
        yield os.environ.get(variable, ""), kind


def _note_private(kinds: dict[str, str], key: str, value: Any) -> None:
    """Add to `kinds` the words that identify a person or place in the value for a key."""
    if not isinstance(value, str) or not value or value in _PUBLIC_WORDS:
        return
    if " " in value and WHOLE_PATH.fullmatch(value):
        _note_spaced_path(kinds, Path(value))
    kind = PRIVATE_KEYS.get(key.rpartition(".")[2].lower(), "")
    is_no_path = kind == "path" and "/" not in value
    if not kind or is_no_path:
        return
    kinds[value] = kind
    if kind == "host":
        for host in hosts_in(value):
            if not host.isdecimal():
                kinds[host] = kind
                kinds[host.partition(".")[0]] = kind

    if kind == "bucket":
        name = re.sub(r"^\w+://", "", value)
        kinds[name] = kind
        kinds[name.partition("/")[0]] = kind


def _note_spaced_path(kinds: dict[str, str], path: Path) -> None:
    """Add a path with spaces, and its parent folders, which plain text may also mention."""
    for folder in (path, *path.parents):
        if " " in str(folder):
            kinds[str(folder)] = "path"


def hosts_in(text: str) -> Iterator[str]:
    """Yield every host in a list, which may have the compact form that queues use.

    >>> list(hosts_in("n[1-2,08-10]-ib, gpu3"))
    ['n1-ib', 'n2-ib', 'n08-ib', 'n09-ib', 'n10-ib', 'gpu3']
    """
    for name in re.findall(r"(?:\[[^\]]*\]|[^\s,\[\]])+", text):
        before, bracket, ranges_and_after = name.partition("[")
        ranges, _, after = ranges_and_after.partition("]")
        if not bracket:
            yield name
        for first, last in re.findall(r"(?<![^,])(\d+)(?:-(\d+))?(?![^,])", ranges):
            start = int(first)
            end = min(int(last or first), start + LARGEST_LIST)
            for number in range(start, end + 1):
                yield f"{before}{number:0{len(first)}}{after}"


def _keys_and_values(content: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its key.

    In a record, {value, origin} belongs to the key above it.
    """
    if isinstance(content, dict):
        for name, item in content.items():
            yield from _keys_and_values(item, key if name == "value" else str(name))
    elif isinstance(content, list):
        for item in content:
            yield from _keys_and_values(item, key)
    else:
        yield key, content


def _read_content(path: Path) -> Any:
    """Read a file as JSON, JSON lines or YAML, or else as lines that each have a key and a value."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        if path.suffix == ".yaml":
            return yaml.safe_load(text)
        return json.loads(text)
    except (ValueError, yaml.YAMLError):
        # A killed process did not finish the line, or the file is plain text
        pairs = [re.split(r"[= ]", line, maxsplit=1) for line in text.splitlines()]
        return [{pair[0]: pair[1]} for pair in pairs if len(pair) == 2]


def _redacted_file(redactor: Redactor, path: Path) -> str:
    """Redact the text in a file."""
    if path.suffix == ".json":
        content = redactor.value(json.loads(path.read_text()))
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    if path.suffix == ".jsonl":
        rows = [redactor.value(row) for row in _read_content(path)]
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    return redactor.text(path.read_text(encoding="utf-8"))


def _write_record(
    redactor: Redactor,
    folder: Path,
    copy: Path,
    phase: str,
) -> None:
    """Write the redacted record for a phase, and the notebook and page if there are any."""
    record = folder / "records" / f"{phase}.json"
    notebook = folder / "records" / f"{phase}.ipynb"
    write_text(copy / "records" / record.name, _redacted_file(redactor, record))
    if notebook.exists():
        content = notebook_file.read_notebook(notebook)
        for number, cell in enumerate(content.cells):
            _redact_cell(redactor, cell, number)
        content.metadata = redactor.value(content.metadata)
        write_text(copy / "records" / notebook.name, notebook_file.notebook_text(content))
        write_html(copy, phase)


def _redact_cell(redactor: Redactor, cell: Any, number: int) -> None:
    """Redact the texts in a cell.

    Only pictures drawn by our own figures are kept, without hidden text.

    Cell attachments are left out, because they may show anything.
    """
    for output in cell.get("outputs", []):
        if "data" in output:
            keep_pictures(output["data"], redactor.value, redactor.markup)
        for key in ("text", "ename", "evalue", "traceback", "metadata"):
            if key in output:
                output[key] = redactor.value(output[key])

    if cell.pop("attachments", None):
        attachment = r"!\[[^\]]*\]\(\s*attachment:[^)]*\)"
        cell.source = re.sub(attachment, RedactMessage.ATTACHMENT_LEFT_OUT.fill(), cell.source)

    cell.source = redactor.text(cell.source)
    if redactor.text(cell.get("id", "")) != cell.get("id", ""):
        cell.id = f"cell-{number}"
    cell.metadata = redactor.value(cell.metadata)
