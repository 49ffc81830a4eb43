"""A report for outsiders: no planted user, host, account, path or bucket in any file, but still a
complete report.
"""

from __future__ import annotations

import base64
import json
import random
import re
import struct
import zlib
from pathlib import Path

import nbformat
import pytest
from made_run import RECORD, announced, data, notebook, write_run
from suite.messages import refuses

from runbook.core.errors import RecordError
from runbook.records.pages.front_page import FrontPage
from runbook.records.pages.html_rewriting import Rewriter
from runbook.tools.redact import redacted_copy
from runbook.tools.redact.messages import RedactMessage
from runbook.tools.redact.redacted_copy import private_words, write_redacted
from runbook.tools.redact.redaction import Redactor

USER = "mmustermann"
HOST = "nid004711.cluster.example.org"
ACCOUNT = "project_465000123"
PLACE = "/scratch/project_465000123/mmustermann/runs"
BUCKET = "s3://very-private-bucket/pile"
MAIL = "m.m@example.org"
PLANTED = (
    USER,
    "nid004711",
    ACCOUNT,
    "/scratch",
    "very-private-bucket",
    MAIL,
    "10.11.12.13",
    "secret-stage",
)
TEXT = f"{USER}@{HOST}: job of {ACCOUNT} in {PLACE}/local, from {BUCKET}; ask {MAIL}, 10.11.12.13, at 900 tokens/s"


def png(words: str = "") -> bytes:
    """Return a picture with one pixel, and with its author if one is given."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))]
    parts += [(b"tEXt", b"Author\0" + words.encode())] if words else []
    parts += [(b"IDAT", zlib.compress(b"\0\0")), (b"IEND", b"")]
    made = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def everything_in(path: Path) -> str:
    """Return the text in a file, and everything that is encoded in it."""
    text = path.read_text()
    for found in re.findall(r"[A-Za-z0-9+/]{16,}={0,2}", text):
        try:
            text += "\n" + base64.b64decode(found).decode("utf-8", errors="replace")
        except ValueError:
            continue
    return text


SVG = f"<svg xmlns='http://www.w3.org/2000/svg'><title>{TEXT}</title><metadata>{USER}_x</metadata></svg>"


@pytest.fixture
def run(tmp_path: Path, monkeypatch) -> Path:
    """Write a run in which every kind of file contains the words that must not leak."""
    folder = write_run(tmp_path / "runs")
    (folder / "run.yaml").write_text(
        f"run: toy\ndata:\n  bucket: {BUCKET}\n  folder: {PLACE}\n"
        f"jobs:\n  account: {ACCOUNT}\n  stage: /mnt/secret-stage/x\n"
    )
    (folder / "plan.json").write_text(json.dumps({"note": TEXT, "data": {"folder": PLACE}}))
    job = folder / "jobs" / "04-training"
    job.mkdir(parents=True)
    (job / "job.json").write_text(
        json.dumps({"job_id": "7", "user": USER, "process": {"host": HOST, "pid": 3}})
    )
    (job / "out").write_text(TEXT)
    (folder / "events.jsonl").write_text(
        json.dumps({"event": "started", "node": HOST, "words": TEXT}) + "\n{half"
    )
    (folder / "samples.jsonl").write_text(json.dumps({"prompt": TEXT}) + "\n")
    outputs = [
        announced(folder, RECORD),
        data(
            text_html=f"<b>{TEXT}</b><img alt='{USER}' src='data:image/png;base64,iVBORw0KGgo='>",
            text_plain=TEXT,
        ),
        data(
            text_html=f"<img src='data:image/svg+xml;base64,{base64_of(SVG.encode())}'><a href='file://{PLACE}'>x</a>"
        ),
        data(
            text_html=f"<a href='https://example.org/?at=%2Fscratch%2Fx%2F{USER}&u={USER.upper()}'>y</a>"
        ),
        nbformat.v4.new_output(
            "display_data",
            data={
                "image/svg+xml": SVG,
                "image/png": base64_of(png(TEXT)),
                "application/json": {USER: [TEXT]},
            },
            metadata={"image/svg+xml": {"title": TEXT}},
        ),
        nbformat.v4.new_output("display_data", data={"image/png": base64_of(png(TEXT))}),
        nbformat.v4.new_output(
            "display_data", data={"image/jpeg": base64_of(f"a photograph by {USER}".encode())}
        ),
        nbformat.v4.new_output(
            "stream", name="stderr", text=f"{TEXT}\nCHECKPOINTS={PLACE}/x {USER}_big:{PLACE}/y"
        ),
        nbformat.v4.new_output("error", ename="OSError", evalue=TEXT, traceback=[TEXT]),
    ]
    content = notebook(*outputs, markdown=f"# {TEXT}")
    content.cells[0].attachments = {
        "screen.png": {"image/png": base64_of(png(TEXT))},
        "a.svg": {"image/svg+xml": SVG},
    }
    content.cells[0].source += "\n\n![my screen](attachment:screen.png)"
    content.cells[0].metadata["author"] = USER
    content.metadata["widgets"] = {"state": {"w": {"state": {"value": TEXT}}}}
    content.metadata["papermill"] = {
        "input_path": f"{PLACE}/x.ipynb",
        "parameters": {"jobs": {"account": ACCOUNT}},
    }
    nbformat.write(content, folder / "records" / "04-training.ipynb")
    record = json.loads((folder / "records" / "04-training.json").read_text())
    record["reason"] = TEXT
    record["parameters"]["jobs.account"] = {"value": ACCOUNT, "origin": f"{PLACE}/params.yaml:3"}
    record["results"]["where"] = PLACE
    record["versions"]["system"] = f"Linux {HOST}"
    record["checks"][0]["value"] = TEXT
    (folder / "records" / "04-training.json").write_text(json.dumps(record))
    row = {
        "phase": "04-training",
        "what": TEXT,
        "planned": 1,
        "actual": 2,
        "ratio": 2.0,
        "remark": TEXT,
    }
    outcome = FrontPage((TEXT, "after"), [row], [(TEXT, TEXT, TEXT)])
    monkeypatch.setattr(redacted_copy, "read_front_page", lambda folder: outcome)
    return folder


def test_no_file_of_the_copy_holds_anything_planted(run, tmp_path):
    out = tmp_path / "outside"
    assert write_redacted(run, out) == out / "index.html"
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".html", ".ipynb", ".json", ".jsonl", ".yaml"}
    for path in files:
        text = everything_in(path)
        assert [word for word in PLANTED if word.lower() in text.lower()] == [], path.name
        assert str(tmp_path) not in text, path.name


def test_the_copy_is_still_a_whole_report(run, tmp_path):
    out = tmp_path / "outside"
    write_redacted(run, out)
    page = (out / "records" / "04-training.html").read_text()
    for kept in (
        "[user]",
        "[account]",
        "[path]",
        "[bucket]",
        "900 tokens/s",
        "64633856",
        "base64,iVBORw0KGgo=",
    ):
        assert kept in page or kept in (out / "records" / "04-training.json").read_text(), kept
    assert (
        json.loads((out / "records" / "04-training.json").read_text())["results"]["last_loss"]
        == RECORD.results["last_loss"]
    )
    copied = nbformat.read(out / "records" / "04-training.ipynb", as_version=4)
    nbformat.validate(copied)
    assert RedactMessage.ATTACHMENT_LEFT_OUT.fill() in copied.cells[0].source
    outputs = [one.get("data", {}) for cell in copied.cells for one in cell.get("outputs", [])]
    assert [base64.b64decode(one["image/png"]) for one in outputs if "image/png" in one] == [
        png()
    ], "not that of the SVG"
    assert not [one for one in outputs if "image/jpeg" in one]
    assert not list(out.rglob("job.sh")) + list(out.rglob("out"))
    assert "manifest.json" not in (out / "index.html").read_text()


def test_the_run_itself_is_not_changed_and_another_folder_is_not_overwritten(run, tmp_path):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    write_redacted(run)
    write_redacted(run)
    assert {path: path.read_bytes() for path in before} == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with refuses(RecordError, RedactMessage.FOLDER_NOT_EMPTY, out=tmp_path / "full"):
        write_redacted(run, tmp_path / "full")


def test_words_are_found_in_every_file_and_ordinary_ones_are_left(run, monkeypatch):
    monkeypatch.setattr(redacted_copy.getpass, "getuser", lambda: "jdoe77")
    words = private_words(run)
    assert words[USER] == "user"
    assert words["jdoe77"] == "user"
    assert words["nid004711"] == words[HOST] == "host"
    assert words[ACCOUNT] == "account"
    assert words["very-private-bucket"] == "bucket"
    redactor = Redactor(words | {"root": "user", "ab": "host", "12": "account", "run": "user"})
    text = "the root mean square of {}, 12 tokens/s, abc, 1/2 of the run"
    assert redactor.text(text.format("ab")) == text.format("[host]")
    assert redactor.value({"a": [f"/home/{USER}/x", 3, None]}) == {"a": ["[path]", 3, None]}


@pytest.mark.parametrize(
    "text", ["</div><br/>", "https://example.org/a/b", "records/04-training.html", "a/b/c", "1.2.3"]
)
def test_what_is_no_place_of_a_machine_stays(text):
    assert Redactor({}).text(text) == text


@pytest.mark.parametrize(
    "host", ["nid004711", "ip-10-0-0-17", "x3005c0s7b1n0.hsn.cm.example.gov", "login02.example.edu"]
)
def test_hosts_are_known_by_their_shape_too(host):
    text = "rank 3 on {host} waits"
    assert Redactor({}).text(text.format(host=host)) == text.format(host="[host]")
    numbers = "4 nodes, node 12, gpu 0, 375m, 1.3b"
    assert Redactor({}).text(numbers) == numbers


SPACED = "/scratch/my project/runs of max/local"
SHORT_WORDS = {"jd": "user", "n1": "host", "/home/Max Mustermann": "path"}
"""Two-letter names, and a home folder with a space."""


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("jd@n1 waits for N1 and jd_run", "[user]@[host] waits for [host] and [user]_run"),
        ("n11 and ajd stay, <li>jd</li>", "n11 and ajd stay, <li>[user]</li>"),
        ("in /home/Max Mustermann/runs/x, 3 tokens/s", "in [path], 3 tokens/s"),
        ("cd '/home/Max Mustermann'; ls", "cd '[path]'; ls"),
        (f'open("{SPACED}/a b.txt") failed', 'open("[path]") failed'),
        (f"{SPACED}/x is full, 2 GB/s", "[path] is full, 2 GB/s"),
        ("from /a/my\\ files/x to ~/two words/y.txt", "from [path] to [path]"),
        ("wrote /a/b at 900 tokens/s", "wrote [path] at 900 tokens/s"),
        ("file:///data/some%20where/x", "[path]"),
    ],
)
def test_short_names_and_paths_with_a_space_are_found(text, redacted):
    assert Redactor(SHORT_WORDS).text(text) == redacted


def test_markup_is_read_as_markup_and_keeps_its_drawing():
    redactor = Redactor({**SHORT_WORDS, "li": "user", "m": "host", "mmuster": "user"})
    html = "<ul><li title='n1'>&#109;muster<br/>&#x6A;d</li></ul><mmuster>kept</mmuster><i mmuster='1'>x</i><!-- jd -->"
    assert redactor.markup(html) == '<ul><li title="[host]">[user]<br/>[user]</li></ul>kept<i>x</i>'
    svg = (
        '<?xml version="1.0"?><!DOCTYPE svg><svg xmlns="http://www.w3.org/2000/svg" '
        'viewBox="0 0 1 1"><linearGradient id="a"/><path d="M 0 0 m 1 1"/><text>m &amp; n1</text>'
        "<style>.x{font: y}</style><script>n1</script></svg>"
    )
    assert redactor.markup(svg) == (
        '<?xml version="1.0" encoding="utf-8"?><svg xmlns="http://www.w3.org/2000/svg" '
        'viewBox="0 0 1 1"><linearGradient id="a"/><path d="M 0 0 m 1 1"/><text>[host] &amp; [host]</text>'
        "<style>.x{font: y}</style></svg>"
    )
    assert "muster" not in redactor.markup(
        '<!DOCTYPE svg [<!ENTITY x "mmuster">]><svg><![CDATA[mmuster]]></svg>'
    )


@pytest.mark.parametrize(
    ("html", "redacted"),
    [
        ("<p>a<![CDATAx[ jd ]]></p>", "<p>a</p>"),
        ("<![]jd>b", "b"),
        ("<![ CDATA[jd]]>c", "c"),
        ("<![CDATA[jd]]>d", "d"),
        ("<!--[if IE]>jd<![endif]-->e<![if !IE]>f<![endif]>", "ef"),
        ("<![CDATAx[ jd", "&lt;![CDATAx[ [user]"),
    ],
)
def test_a_section_that_html_does_not_know_ends_as_in_a_browser(html, redacted):
    assert Redactor(SHORT_WORDS).markup(html) == redacted


def test_pieces_of_markup_in_any_order_are_rewritten():
    characters = list("<![]>/='x&#%? -")
    words = ["<![", "CDATA", "endif", "]]>", "<!--", "--"]
    tags = ["<!DOCTYPE", "<a ", "</", "<svg", "<style>", "</style", "<textarea>"]
    pieces = [*characters, *words, *tags]
    choice = random.Random(31)
    for _ in range(2000):
        text = "".join(choice.choices(pieces, k=choice.randint(1, 12)))
        rewritten = Rewriter().rewrite(text)
        assert len(re.findall("<", rewritten)) == len(re.findall(r"</?[A-Za-z]", rewritten)), text


def test_short_names_homes_and_spaced_paths_are_in_no_file_of_the_copy(run, tmp_path, monkeypatch):
    monkeypatch.setattr(redacted_copy.getpass, "getuser", lambda: "jd")
    monkeypatch.setenv("HOME", "/home/Max Mustermann")
    text = f"jd@q7: /home/Max Mustermann/x is full, so is {SPACED}; q8 waits"
    job = run / "jobs" / "04-training"
    (job / "started").write_text("job 7\nhost q7.cluster\n")
    (job / "hostfile").write_text("q8 slots=4\nq9\n")
    (run / "events.jsonl").write_text(
        json.dumps({"event": "x", "nodelist": "w[1-2]", "words": text, "at": SPACED})
    )
    path = run / "records" / "04-training.ipynb"
    content = nbformat.read(path, as_version=4)
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' aria-label='{text}'><text>q9, w2 &#106;d</text></svg>"
    cell = nbformat.v4.new_code_cell(f"open('{SPACED}/x')  # jd", id="jd-1")
    cell.outputs = [
        data(text_html=f"<p title='{text}'>&#106;d</p>{svg}"),
        data(**{"image_svg+xml": svg}),
    ]
    cell.outputs.append(nbformat.v4.new_output("stream", name="stdout", text=text))
    content.cells.append(cell)
    content.metadata["papermill"] = {"output_path": f"{SPACED}/nb.ipynb", "jd": text}
    nbformat.write(content, path)
    out = tmp_path / "outside"
    write_redacted(run, out)
    planted = re.compile(
        r"(?<![^\W_])(?:jd|&#106;d|q7|q8|q9|w1|w2)(?![^\W_])|mustermann|my project|runs of max",
        re.I,
    )
    for file in (file for file in out.rglob("*") if file.is_file()):
        visible = re.sub(r"base64,[A-Za-z0-9+/=]+", "", file.read_text())
        assert planted.findall(visible) == [], file.name
        assert not re.search("mustermann|my project|runs of max", everything_in(file), re.I), (
            file.name
        )
    nbformat.validate(nbformat.read(out / "records" / path.name, as_version=4))
