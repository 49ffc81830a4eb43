"""The logbook: an entry for everything that happened, in chronological order across all jobs, and
notes from people.
"""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from suite.messages import refuses

from runbook.cli.program import cli
from runbook.core.errors import RecordError
from runbook.records.logbook import add_note, make_entry, write_logbook
from runbook.records.manifest import note_files, verify_run, write_manifest
from runbook.records.messages import RecordMessage
from runbook.records.pages.front_page import FrontPage, write_front_page

EVENTS = [
    (
        {"event": "submitted", "job": "04-training", "id": "17"},
        "Submitted: job 04-training, 17 in the queue",
    ),
    (
        {"event": "started", "world_size": 8, "from_iteration": 0, "segment": 0},
        "Start: 8 processes, after iteration 0",
    ),
    ({"event": "saved", "iteration": 100, "seconds": 3.0}, None),
    (
        {"event": "forecasts_sealed", "checksum": "a745b829877ca7f2", "late": False},
        "Forecasts are sealed in forecasts.json (checksum a745b829), before the first step",
    ),
    (
        {"event": "slower_kernels", "reason": "no Triton kernel compiles here"},
        "Slower kernels are used: no Triton kernel compiles here",
    ),
    (
        {"event": "data_cache_rebuilt", "folder": "data/cache", "files": ["train.npy"]},
        "The order of the text was built again, because it changed in data/cache: train.npy",
    ),
    (
        {
            "event": "alarm",
            "kind": "spike",
            "metric": "loss",
            "iteration": 29070,
            "since": 29050,
            "value": 8.7,
            "usual": 2.8,
            "evidence": "loss 8.7: it jumped; the 40 records before have median 2.8 and spread 0.01",
        },
        "Spike at iteration 29050: loss 8.7: it jumped; the 40 records before have median 2.8 and spread 0.01",
    ),
    (
        {
            "event": "alarm",
            "kind": "disk low",
            "metric": "free_bytes",
            "iteration": 2,
            "since": 2,
            "value": 6e6,
            "usual": 2e6,
            "evidence": "6 MB of 100 MB are free",
        },
        "Disk low at iteration 2: 6 MB of 100 MB are free",
    ),
    (
        {
            "event": "bad_step",
            "iteration": 29070,
            "what": "the loss",
            "value": "nan",
            "first_sample": 10,
            "last_sample": 19,
            "samples": [10, 19],
            "policy": "rollback",
            "action": "rollback",
        },
        "Bad step 29070: the loss is nan, samples 10 to 19. Reaction: rollback",
    ),
    (
        {"event": "rolled_back", "iteration": 29000, "folder": "checkpoints/iter_0029000"},
        "Rolled back to checkpoints/iter_0029000, iteration 29000",
    ),
    (
        {
            "event": "alarm",
            "kind": "slow rank",
            "since": 40,
            "host": "n7",
            "rank": 3,
            "evidence": "rank 3 computes 2 s",
        },
        "Slow rank at iteration 40 on n7: rank 3 computes 2 s",
    ),
    (
        {"event": "checkpoint_broken", "message": "iter_9: a part is missing"},
        "Checkpoint lost: iter_9: a part is missing. It was skipped",
    ),
    (
        {"event": "stopped", "iteration": 29100, "signal": "time_limit"},
        "Stop at iteration 29100: time_limit; saved first",
    ),
    (
        {
            "event": "ended",
            "job": "04-training",
            "state": "FAILED",
            "exit_code": 1,
            "at": None,
            "decision": "go on",
            "why": "it saved",
            "failure": "device out of memory",
            "evidence": "CUDA out of memory",
            "remedy": "Take less",
        },
        "Job 04-training ended: FAILED, exit code 1. Cause: device out of memory (CUDA out of memory). "
        "Then: submitted again, because it saved. Remedy: Take less",
    ),
    (
        {
            "event": "ended",
            "job": "04-training",
            "state": "stopped",
            "exit_code": 75,
            "at": None,
            "decision": "go on",
            "why": "the stop planned by training.rehearse_stop=40",
            "planned": True,
        },
        "Planned stop of job 04-training: stopped, exit code 75. "
        "Then: submitted again, because the stop planned by training.rehearse_stop=40",
    ),
    (
        {
            "event": "resumed",
            "iteration": 29000,
            "folder": "checkpoints/iter_0029000",
            "same_fingerprint": False,
            "lost_iterations": 100,
            "changes": ["rate 1 is now 2"],
        },
        "Resume from checkpoints/iter_0029000, iteration 29000; 100 iterations are lost; "
        "changed values: rate 1 is now 2",
    ),
    ({"event": "unheard_of", "some_key": 2.5}, "unheard of: some key 2.5"),
    ({"event": "hang", "rank": 1}, "hang: rank 1"),
    (
        {"event": "note", "by": "ada", "text": "the loss looks <odd>, isn't it"},
        "Note by ada: the loss looks &lt;odd&gt;, isn&#39;t it",
    ),
]


@pytest.fixture
def run_folder(tmp_path):
    (tmp_path / "run.yaml").write_text("run: x\n")
    events = [
        {"time": 1_700_000_000.0 + n, "phase": "04-training", **event}
        for n, (event, _) in enumerate(EVENTS)
    ]
    shuffled = [*events[5:], *events[:5]]  # two jobs whose lines arrived late
    (tmp_path / "events.jsonl").write_text(
        "".join(json.dumps(event) + "\n" for event in shuffled) + '{"event": "no'
    )
    return tmp_path


def test_each_event_has_its_words_and_they_stand_by_time(run_folder):
    assert [str(entry.text) for entry in write_logbook(run_folder)] == [
        words for _, words in EVENTS if words
    ]
    lines = (run_folder / "logbook.md").read_text().splitlines()
    assert lines[0] == f"# Logbook of {run_folder.name}"
    assert EVENTS[-1][0]["text"] in lines[-1], "Markdown shows the note as it was typed"
    moment, phase, text = re.fullmatch(r"- \*\*(.+) (\S+)\*\*: (.+)", lines[2]).groups()
    written = datetime.strptime(moment, "%Y-%m-%d %H:%M:%S %Z").replace(tzinfo=UTC)
    assert (written.timestamp(), phase) == (1_700_000_000, "04-training")
    assert moment.endswith(" UTC")
    assert text == EVENTS[0][1]


def test_without_events_there_is_no_logbook(tmp_path):
    assert write_logbook(tmp_path) == [] and not (tmp_path / "logbook.md").exists()


def test_a_note_is_an_event_and_lies_in_the_manifest(run_folder):
    write_manifest(run_folder)
    runner = CliRunner()
    said = runner.invoke(cli, ["note", str(run_folder), "node", "n7 was\nreplaced"])
    noted = RecordMessage.NOTED.fill(text="node n7 was replaced", masked="")
    assert said.exit_code == 0 and said.output == f"{noted}\n"
    piped = "from a pipe"
    assert runner.invoke(cli, ["note", str(run_folder), "-"], input=piped).exit_code == 0
    shown = runner.invoke(cli, ["note", str(run_folder)]).output
    assert shown == (run_folder / "logbook.md").read_text() and shown.endswith(f": {piped}\n")
    assert [one for one in verify_run(run_folder) if one.file in ("events.jsonl", "logbook.md")][
        1:
    ] == []
    with refuses(RecordError, RecordMessage.NOTE_LENGTH, longest_note=10000, number_of_text=0):
        add_note(run_folder, "  ")


def test_a_note_blesses_no_edit_of_the_events(run_folder):
    write_manifest(run_folder)
    events = run_folder / "events.jsonl"
    events.write_text(events.read_text().replace("n7", "n8"))
    add_note(run_folder, "later")
    assert "events.jsonl" in [one.file for one in verify_run(run_folder)]


def test_many_write_notes_at_once_and_none_is_lost(run_folder):
    write_manifest(run_folder)
    code = "import sys; from pathlib import Path; from runbook.records.logbook import add_note\n"
    code += "for n in range(3): add_note(Path(sys.argv[1]), f'{sys.argv[2]}-{n}')"
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(run_folder), str(n)]) for n in range(3)
    ]
    assert [writer.wait() for writer in writers] == [0] * 3
    text = (run_folder / "logbook.md").read_text()
    assert all(f": {writer}-{n}\n" in text for writer in range(3) for n in range(3))
    note_files(run_folder, [])
    assert [one for one in verify_run(run_folder) if one.file == "events.jsonl"] == []


def test_a_fast_network_is_said_without_an_exponent():
    event = {
        "time": 0,
        "event": "network",
        "ranks": 2,
        "bytes": 34e6,
        "seconds": 0.03,
        "bytes_per_second": 9.996e8,
    }
    assert str(make_entry(event).text).endswith(", 1000 MB/s")


def test_a_long_save_is_said_without_an_exponent():
    event = {"time": 0, "event": "saved", "iteration": 100, "seconds": 1234.0}
    text = str(make_entry(event).text)
    assert re.findall(r"\d[\d.,e+]*", text) == ["100", "1234"]
    assert text.endswith(" s")


def test_a_secret_in_a_note_is_written_nowhere_and_steering_characters_are_shown(run_folder):
    secrets = [
        "hf_AbCdEfGhIjKlMnOpQrStUv",
        "ghp_" + "aB3d" * 9,
        "AKIAABCDEFGHIJKLMNOP",
        "sig=" + "aB3%2F" * 8,
    ]
    said = add_note(run_folder, f"took {' and '.join(secrets)} \x1b]0;owned\x07 \u202e")
    assert said.startswith("Noted: took hf_A... and ghp_... and AKIA... and sig=...")
    assert said.endswith(r"\u001b]0;owned\u0007 \u202e (what looks like a secret was cut out)")
    write_front_page(run_folder, FrontPage(None, [], []))
    for file in (path for path in run_folder.rglob("*") if path.is_file()):
        text = file.read_text(errors="replace")
        assert [secret for secret in secrets if secret in text] == [], file.name
        assert "\x1b" not in text and "\u202e" not in text, file.name


def test_a_secret_in_the_message_of_a_failure_is_masked_in_the_logbook(run_folder):
    secret = "hf_AbCdEfGhIjKlMnOpQrStUv"
    message = f"401 for {secret}"
    text = str(make_entry({"time": 0, "event": "failed", "message": message}).text)
    assert text.endswith(": " + message.replace(secret, "hf_A..."))
