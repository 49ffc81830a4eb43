"""The report of a run: end of a phase, pages, card, and the redacted copy for people outside.

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from runbook import params
from runbook.core.errors import JobError, RecordError
from runbook.core.files import write_text
from runbook.core.table import Row
from runbook.display import Table, show_text, sparkline
from runbook.display.output_place import ENGINE_VARIABLE
from runbook.jobs import get_scheduler
from runbook.jobs.render.training_job import TRAINING_PHASES
from runbook.params.schema.run_file import PHASES
from runbook.planning import FULL, SMOKE
from runbook.records import twin as ipynb
from runbook.records.manifest import write_manifest
from runbook.records.pages import page_parts, run_pages
from runbook.records.pages.notebook_page import write_html
from runbook.records.redaction import WHOLE_PATH, Redactor, keep_pictures
from runbook.records.run_state import read_run, run_verdict
from runbook.results import run_tables
from runbook.results.history import PHENOMENON, read_scores
from runbook.results.metrics import history_frame
from runbook.results.scores import as_scores, worse
from runbook.workflow import run_files
from runbook.workflow.open_phase import VERSIONS, OpenPhase
from runbook.workflow.status import active_jobs
from runbook.workflow.trainings import jobs, training_results


def write_report(folder: Path, *, manifest: bool = False) -> Path:
    """Write index.html and report.html of the run and index.html of all runs.

    `manifest` is for the end of a phase: the files that it wrote are recorded too. A report records only its own pages.
    """
    page = run_pages.write_campaign(folder, read_front_page(folder))
    run_pages.write_single_file(folder)
    run_pages.write_runs_index(folder.parent)
    if manifest:
        write_manifest(folder, read_run(folder).phase)
    return page


def file_notebook(notebook: Path, folder: Path) -> str:
    """File a notebook that a person executed among the records of its run; another run's is refused."""
    from runbook.records.engine.execute import adopt_execution

    filed = adopt_execution(notebook, run_folder=folder)
    return f"{notebook} is filed as {filed.notebook.relative_to(folder)}: {filed.state}"


def read_front_page(folder: Path) -> run_pages.FrontPage:
    """What the model wrote before and after, the plan beside what came true, and the numbers a reader wants first."""
    samples, trained, comparison = _outcome(folder)
    texts = [*samples.values()]
    sample = (texts[0], texts[-1]) if len(texts) > 1 else None
    tiles: list[tuple[str, str, str]] = []
    if trained:
        rates = training_results.device_rates(params.load(str(folder / "run.yaml")))
        tiles = training_results.headline(trained[-1], rates)
    return run_pages.FrontPage(sample, comparison, tiles, read_scores(folder))


def _outcome(
    folder: Path,
) -> tuple[dict[int, str], list[training_results.TrainingResults], Sequence[Row]]:
    """What the model wrote after which iteration, the trainings that wrote metrics, the plan beside what came true."""
    plan = run_files.read_plan_file(folder)
    found = training_results.sample_rows(folder, plan.phases[FULL], run_files.tokenizer_of(folder))
    samples = {row["after iteration"]: f"{row['prompt']}{row['continuation']}" for row in found}
    phases = [
        phase for phase in (SMOKE, FULL) if (folder / plan.phases[phase].log.metrics).exists()
    ]
    trained = [training_results.read_results(folder, plan, phase) for phase in phases]
    tables = {one.phase: training_results.plan_versus_actual(one) for one in trained}
    rows = [
        {"phase": phase, **row}
        for phase, table in tables.items()
        for row in table
        if row["planned"] is not None
    ]
    return samples, trained, rows


def card(folder: Path, phases: Sequence[str] = PHASES) -> str:
    """What a person wants to know at the end: verdict, loss, text before and after, plan against actual, the report.

    The verdict is that of the phases that were asked for; what an earlier run left of the others stands in the table.
    """
    run = read_run(folder)
    samples, trained, comparison = _outcome(folder)
    rows = [
        {"phase": one.phase, "state": one.state, "verdict": one.twin.verdict if one.twin else ""}
        for one in run.phases
    ]
    asked = [one for one in run.phases if one.phase in phases]
    verdict = run.verdict
    if len(asked) < len(run.phases):
        verdict = f"{run_verdict(asked)}, {' to '.join(dict.fromkeys((phases[0], phases[-1])))}"
    parts = ["", f"{folder.name}: {verdict}", Table(rows).as_text()]
    for one in trained:
        if losses := [loss for _, loss in one.history.losses]:
            parts.append(
                f"{one.phase}  loss {losses[0]:.2f} {sparkline(losses, 40)} {losses[-1]:.2f}"
            )
    parts += [
        f"after iteration {iteration}: " + " ".join(text.split())
        for iteration, text in samples.items()
    ]
    if scores := [row for row in read_scores(folder) if row["measure"] != PHENOMENON]:
        parts.append(Table(scores, title="Scores before and after").as_text())
        parts += [score.worse_text() for score in worse(as_scores(scores))]
    if comparison:
        parts.append(Table(comparison, title="Plan versus actual").as_text())
    return "\n\n".join([*parts, f"Report: {folder / 'index.html'}"])


def write_tables(folder: Path, out: Path) -> list[Path]:
    """Write a run's results and steps as tables: CSV and Parquet to compute with, Markdown and LaTeX to paste."""
    _, trained, comparison = _outcome(folder)
    if not trained:
        raise RecordError(
            f"{folder.name} has trained nothing yet, so it has no results. runbook run {folder.name} does."
        )
    numbers = {
        one.phase: run_tables.numbers_table(one.summary, history=one.history) for one in trained
    }
    results = [{"phase": phase, **row} for phase, table in numbers.items() for row in table]
    tables = {"results": Table(results), "plan-versus-actual": Table(comparison)}
    frames = {name: table.to_frame() for name, table in tables.items()}
    frames |= {f"steps-{one.phase}": history_frame(one.history).reset_index() for one in trained}
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write_text(out / f"{name}.md", table.as_markdown() + "\n")
        write_text(out / f"{name}.tex", table.as_latex())
    for name, frame in frames.items():
        write_text(out / f"{name}.csv", frame.to_csv(index=False))
        frame.to_parquet(out / f"{name}.parquet", index=False)
    return sorted(path for name in frames for path in out.glob(f"{name}.*"))


def finish(open_phase: OpenPhase, outputs: Sequence[Path] = (), digest: str = "") -> None:
    """Write the record, mark the phase done over its outputs, refresh the report; a failed verdict is an error.

    While a job of the phase runs, or before its training is done, nothing is finished and nothing written.
    """
    phase = open_phase.phase
    for job, status in active_jobs(open_phase.folder, get_scheduler(open_phase.settings.site)):
        if f"{job.path.name}-".startswith(f"{phase}-"):
            raise JobError(
                f"{phase} is not finished: jobs/{job.path.name} is {status.state} ({status.reason}). Run the cell that "
                f"watches it, or end it: runbook cancel {open_phase.settings.name}. Then run this cell again."
            )
    if phase in TRAINING_PHASES and (missing := jobs.what_is_missing(open_phase, by_content=False)):
        raise RecordError(
            f"{phase} is not finished, because its training is not ({missing}). Run the cells that launch and watch "
            "it, then this cell again."
        )
    twin = open_phase.session.finish()
    if twin.verdict == "fail":
        raise RecordError(f"{phase} did not pass; its checks above say why.")
    marked = (open_phase.folder, phase, VERSIONS[phase], digest or open_phase.fingerprint)
    run_files.write_mark(*marked, outputs, verdict=twin.verdict)
    # Our engine still writes this notebook, then the manifest; noted here, a kill in between would look like an edit.
    write_report(open_phase.folder, manifest=ENGINE_VARIABLE not in os.environ)
    open_checks = [
        f"{check.name} ({check.value}; rule: {check.rule})"
        for check in twin.checks
        if check.verdict != "pass"
    ]
    show_text("; ".join([f"{phase}: {twin.verdict}", *open_checks]))


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
