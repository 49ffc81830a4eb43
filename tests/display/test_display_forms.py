"""Tables, checks, cards and sparklines in each of their output formats."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser

import pytest

from runbook.core import shell
from runbook.core.checks import Check
from runbook.core.table import show_value, width
from runbook.display import CheckTable, Table, show_checks, show_table, sparkline
from runbook.display.output_place import REMEDY_COLUMN

ROWS = [
    {"phase": "03-smoke-test", "loss (nat)": 9.5, "tokens": 49152, "note": None},
    {"phase": "04 <training> | all", "loss (nat)": 3.61803398, "tokens": 102400, "note": "ends"},
]
CHECKS = [
    Check("first loss", "pass", "10.82", "within 0.3 of ln 50304"),
    Check(
        "throughput",
        "unknown",
        "9000 tokens/s",
        "no peak is known for this CPU",
        "Name it in the site file.",
    ),
    Check("resume", "fail", "2 differ", "losses equal to 5 digits", "Look at <events.jsonl>."),
]


class Cells(HTMLParser):
    """Return the text in each table cell."""

    def __init__(self, text):
        super().__init__()
        self.rows = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self._inside = tag in ("td", "th") or (self._inside and tag == "span")

    def handle_data(self, text):
        if self._inside:
            self.rows[-1][-1] += text


def markdown_cells(line):
    r"""Return the cells in a Markdown row; `\|` is a bar inside a cell."""
    assert line.startswith("| ") and line.endswith(" |"), line
    return re.split(r" \| ", line[2:-2])


def test_table_as_text_aligns_numbers_to_the_right():
    assert Table(ROWS, "Losses", ["Source: metrics.jsonl."]).as_text() == (
        "Losses\n"
        "phase                loss (nat)   tokens  note\n"
        "-------------------  ----------  -------  ----\n"
        "03-smoke-test               9.5   49,152\n"
        "04 <training> | all       3.618  102,400  ends\n"
        "Source: metrics.jsonl."
    )


def test_table_as_html_and_markdown_says_the_same_as_the_text():
    table = Table(ROWS, "Losses")
    cells = Cells(table.as_html()).rows
    assert cells[0] == list(ROWS[1])
    assert cells[2] == [ROWS[1]["phase"], "3.618", "102,400", "ends"]
    assert 'title="3.61803' in table.as_html()  # a tooltip shows every digit
    assert "<training>" not in table.as_html()
    assert table.as_html().count("text-align:right") == 6
    lines = table.as_markdown().splitlines()
    assert markdown_cells(lines[3]) == ["---", "---:", "---:", "---"]
    with_bar = ROWS[1]["phase"].replace("|", r"\|")
    assert markdown_cells(lines[5]) == [with_bar, "3.618", "102,400", "ends"]


def test_long_and_wide_cells_stay_in_their_columns():
    long = "word " * 30
    text = Table([{"a": long.strip(), "b": 1}, {"a": "日本語", "b": 22}]).as_text()
    lines = text.splitlines()
    assert max(width(line) for line in lines) <= 66
    assert lines[-1].startswith("日本語")
    assert width(lines[-1]) == width(lines[2])
    assert Table([]).as_text() == "(no rows)"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (9999, "9999"),
        (10000, "10,000"),
        (1.5e6, "1,500,000"),
        (float("inf"), "inf"),
        (6e-5, "6e-05"),
        (False, "no"),
    ],
)
def test_values_are_shown_so_that_they_can_be_read(value, shown):
    assert show_value(value) == shown


def test_checks_put_those_that_need_a_person_first_and_never_speak_by_colour_alone():
    table = CheckTable(CHECKS)
    lines = table.as_text().splitlines()
    assert lines[0] == f"Checks ({table.summary()})"
    assert re.findall(r"(\d) (\w+)", table.summary()) == [
        ("3", "checks"),
        ("1", "fail"),
        ("1", "unknown"),
        ("1", "pass"),
    ]
    assert [line.split()[0] for line in lines[3:]] == ["resume", "throughput", "first"]
    for word in ("✗ fail", "? unknown", "✓ pass", "Look at <events.jsonl>."):
        assert word in table.as_text()
        assert word in table.as_text(colour=True).replace("\x1b[0m", "")
    assert re.search(r"\x1b\[1;33m✗ fail\x1b\[0m", table.as_text(colour=True))
    rows = Cells(table.as_html()).rows
    failed = next(check for check in CHECKS if check.verdict == "fail")
    assert rows[1] == [failed.name, "✗ fail", failed.value, failed.rule, failed.remedy]
    lines = [line for line in table.as_markdown().splitlines() if line.startswith("| ")]
    verdicts = {name: verdict for name, verdict, *_ in map(markdown_cells, lines[2:])}
    assert verdicts == {"resume": "✗ fail", "throughput": "? unknown", "first loss": "✓ pass"}
    assert list(table.rows[0])[-1] == REMEDY_COLUMN
    assert REMEDY_COLUMN not in CheckTable(CHECKS[:1]).as_text()
    assert CheckTable([]).summary() == "0 checks"


def test_outside_a_notebook_everything_is_plain_text(capsys):
    show_table(ROWS, title="Losses")
    show_checks(CHECKS)
    out = capsys.readouterr().out
    assert "Losses\n" in out
    assert f"Checks ({CheckTable(CHECKS).summary()})" in out
    assert "<div" not in out
    assert "\x1b" not in out


def test_rows_that_carry_title_and_notes_keep_them(capsys):
    show_table(Table([{"a": 1}], "Results", notes=["One run."]))
    assert capsys.readouterr().out.splitlines() == ["Results", "a", "-", "1", "One run."]


def test_a_terminal_that_knows_only_ascii_gets_question_marks():
    words = "from runbook.display import show_text, sparkline; show_text('loss ' + sparkline([3.0, 2.0, 1.0]))"
    said = shell.run(
        [sys.executable, "-c", words], env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    )
    assert said.out == "loss ???\n"


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([1.0, None, float("nan"), 3.0], "▁··█"),
        ([None, None], "··"),
        ([float("inf"), 1.0, 2.0], "·▁█"),
        ([5], "▁"),
    ],
)
def test_sparkline_leaves_gaps_where_nothing_is_known(values, drawn):
    assert sparkline(values) == drawn


def test_sparkline_of_a_long_run_keeps_its_shape():
    drawn = sparkline([1000.0 - n for n in range(1000)], width=8)
    assert drawn == "█▇▆▅▄▃▂▁"


def test_importing_the_display_imports_nothing_heavy():
    heavy = {"pandas", "matplotlib", "IPython", "numpy", "papermill", "nbconvert", "ipywidgets"}
    words = f"import sys, runbook.display; print(sorted({heavy} & set(sys.modules)))"
    assert shell.run([sys.executable, "-c", words]).out.strip() == "[]"


def test_a_number_stays_on_one_line_with_its_unit_and_a_key_with_its_value_is_code():
    row = {"change": "training.recompute=full", "a step": "0.55 s", "memory": "1.75 GiB of 23 GiB"}
    html = Table([row]).as_html()
    assert "<code>training.recompute=full</code>" in html
    assert re.findall(r"white-space:nowrap[^>]*>([^<]*)<", html) == ["0.55 s"]
