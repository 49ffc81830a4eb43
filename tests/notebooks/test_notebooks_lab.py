"""Stepping through 03 by hand: the kernel dies but the job does not, and a new kernel finds the
job."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from suite.messages import containing, says
from toy_project import Toy, json_of, lines_of, losses, wait_until

from runbook.display.messages import DisplayMessage
from runbook.phases.messages import PhaseMessage
from runbook.records.manifest import verify_run

pytestmark = [pytest.mark.notebooks, pytest.mark.rotate(3, turn=0)]


class Hand:
    """A person who runs the cells of a notebook one after another and reads the output."""

    def __init__(self, toy: Toy, runs: Path, phase: str) -> None:
        notebook = nbformat.read(toy.root / "notebooks" / f"{phase}.ipynb", as_version=4)
        self.cells = {cell.id: cell.source for cell in notebook.cells if cell.cell_type == "code"}
        self.manager, self.client = start_new_kernel(
            kernel_name="python3",
            cwd=str(toy.root / "notebooks"),
            env=toy.environment(RUNBOOK_RUNS=str(runs)),
        )
        self.said: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    def run(self, *names: str) -> str:
        """Run these cells. Return the output of the last cell."""
        for name in names:
            told: list[str] = []

            def hear(message: dict, told: list[str] = told, name: str = name) -> None:
                content = message["content"]
                if message["msg_type"] == "stream":
                    told.append(content["text"])
                elif message["msg_type"] in (
                    "display_data",
                    "execute_result",
                    "update_display_data",
                ):
                    told.append(content["data"].get("text/plain", ""))
                elif message["msg_type"] == "error":
                    self.failed[name] = f"{content['ename']}: {content['evalue']}"

            self.client.execute_interactive(self.cells[name], timeout=900, output_hook=hear)
            self.said[name] = "\n".join(told)
        return self.said[names[-1]]

    def leave(self) -> None:
        """End the kernel as a crash would."""
        self.manager.shutdown_kernel(now=True)
        self.client.stop_channels()
        self.manager.cleanup_resources()


@pytest.fixture(scope="module")
def by_hand(toy: Toy, campaign, tmp_path_factory) -> SimpleNamespace:
    """Start notebook 03 in one kernel, and finish it in another.

    The run has tokens but no smoke test.
    """
    runs = tmp_path_factory.mktemp("lab")
    folder = runs / "local"
    shutil.copytree(
        campaign.folder,
        folder,
        ignore=shutil.ignore_patterns("03-*", "04-*", "05-*", "smoke", "jobs"),
    )
    for name in (
        "manifest.json",
        "metrics.jsonl",
        "events.jsonl",
        "samples.jsonl",
        "validation.jsonl",
    ):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoints")
    first = Hand(toy, runs, "03-smoke-test")
    try:
        first.run("parameters", "bind", "expect", "launch")
        first.client.execute(first.cells["watch"])
        wait_until(lambda: (folder / "jobs/03-smoke-test/started").exists(), 200, "the job starts")
    finally:
        first.leave()
    ended_before = (folder / "jobs/03-smoke-test/exit_code").exists()
    second = Hand(toy, runs, "03-smoke-test")
    try:
        second.run(*second.cells)
        said = dict(second.said)
        second.run("launch", "watch")
    finally:
        second.leave()
    return SimpleNamespace(
        folder=folder,
        first=first.said,
        said=said,
        again=second.said,
        failed=second.failed,
        ended_before=ended_before,
    )


def test_the_job_outlives_the_kernel_and_is_found_and_not_started_twice(by_hand):
    assert says(
        by_hand.first["launch"],
        PhaseMessage.JOB_SUBMITTED,
        folder_name="03-smoke-test",
        job_id=containing("local-"),
    )
    assert by_hand.failed == {}
    assert not by_hand.ended_before, "the job had ended before the kernel died: nothing was tested"
    assert says(
        by_hand.said["launch"],
        PhaseMessage.JOB_WATCHED,
        job_id=containing("local-"),
        folder_name="03-smoke-test",
        state="running",
    )
    assert [path.name for path in (by_hand.folder / "jobs").iterdir()] == ["03-smoke-test"]
    events = [one["event"] for one in lines_of(by_hand.folder / "events.jsonl")]
    assert (events.count("submitted"), events.count("started"), events.count("finished")) == (
        1,
        1,
        1,
    )


def test_by_hand_gives_the_same_losses_as_headless(by_hand, campaign):
    assert losses(by_hand.folder, "smoke/metrics.jsonl") == losses(
        campaign.folder, "smoke/metrics.jsonl"
    )


def test_the_cells_say_what_the_text_above_them_promises(by_hand):
    said = by_hand.said
    assert PhaseMessage.WHAT_IS_BOUND.fill(phase="03-smoke-test") in said["bind"].splitlines()
    assert "10.82" in said["expect"], "ln 50,257"
    assert all_done(said["watch"])
    assert "first loss" in said["gate"].lower()
    assert said["finish"].strip().splitlines()[-1].startswith("03-smoke-test: ")


def test_a_cell_that_is_run_again_does_nothing_twice(by_hand):
    phase = "03-smoke-test"
    again = by_hand.again
    assert again["launch"] == PhaseMessage.NOTHING_TO_LAUNCH.fill(phase=phase) + "\n"
    first_line, _, rest = again["watch"].partition("\n")
    assert first_line == PhaseMessage.NOTHING_TO_WATCH.fill(phase=phase)
    assert all_done(rest), "the final picture again"


def all_done(text: str) -> bool:
    """Return whether a cell shows that all iterations in the smoke test are done."""
    return says(text, DisplayMessage.AMOUNT_DONE, done=8, total=8, unit=" iterations", percent=100)


def test_the_record_by_hand_agrees_with_the_headless_one(by_hand, campaign):
    other = json_of(campaign.folder / "records/03-smoke-test.json")
    twin = json_of(by_hand.folder / "records/03-smoke-test.json")
    assert (twin["state"], twin["run"], twin["phase"]) == ("done", "local", "03-smoke-test")
    assert twin["parameters"] == other["parameters"]
    assert [check["name"] for check in twin["checks"]] == [
        check["name"] for check in other["checks"]
    ]
    assert twin["cells"] == other["cells"]
    for key in ("parameters", "world_size", "iterations", "first_loss", "last_loss"):
        assert twin["results"][key] == other["results"][key]
    assert verify_run(by_hand.folder) == []
