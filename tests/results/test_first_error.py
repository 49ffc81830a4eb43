"""An error that no rule recognizes is shown. It replaces remedies only if it is certain to be the
cause.
"""

from __future__ import annotations

import json
import sys

import pytest
from suite.messages import says

from runbook.cli import main
from runbook.results.failures import kinds
from runbook.results.failures.finder import FailureFinder
from runbook.results.failures.first_error import LINES_TO_EFFECT, SIGNS
from runbook.tools.logs.messages import SummaryMessage

UNKNOWN = "[rank3]: frobnicator: error: the flux is inverted"
CUDNN = "RuntimeError: fused_attn.cu:227 in function operator(): the plan is of another device"
WARN = "gpu04:889:930 [2] init.cc:510 NCCL WARN the plug-in reports a flux"
HINT = "frobnicate: the flux is invalid"
TIMEOUT = (
    "[rank5]:[E602 ProcessGroupNCCL.cpp:632] [Rank 5] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"
)
CLOSED = "[rank6]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]"
DISK = "OSError: [Errno 28] No space left on device: '/scratch/x'"
SIGNALLED = "srun: error: n07: task 3: Aborted (core dumped)"


def finder_of(*lines):
    finder = FailureFinder()
    for number, line in enumerate(lines, start=1):
        finder.look(line, number)
    return finder


@pytest.mark.parametrize("error", [UNKNOWN, CUDNN, WARN, HINT])
@pytest.mark.parametrize("effect", [TIMEOUT, CLOSED, SIGNALLED])
def test_an_unknown_error_stands_beside_its_effects_and_a_certain_one_explains_them(error, effect):
    finder = finder_of("starting", error, effect)
    first_error = finder.first_error()
    assert first_error.line == 2
    assert first_error.followed_by == (finder.cause().name,)
    # A rank waits for minutes before it reports a timeout, and a signal has many reasons, so a mere
    # word of failure shortly before them explains neither.
    is_reason = effect == CLOSED or error != HINT
    assert first_error.explains_effects == is_reason


@pytest.mark.parametrize(
    ("thread", "message", "is_survived"),
    [
        ("gpu04:889:930 [2]", "Bootstrap : Using eth0", True),
        ("gpu04:889:930 [2]", "init.cc:1491 -> 1", False),
        ("gpu04:889:931 [2]", "Bootstrap : Using eth0", False),
    ],
)
def test_a_warning_of_an_nccl_thread_that_went_on_explains_no_lost_peer(
    thread, message, is_survived
):
    finder = finder_of(WARN, f"{thread} NCCL INFO {message}", CLOSED)
    assert (finder.first_error() is None) == is_survived


@pytest.mark.parametrize("error", [UNKNOWN, WARN, HINT])
def test_an_error_long_before_a_lost_peer_does_not_explain_it(error):
    near = finder_of(error, *["step"] * (LINES_TO_EFFECT - 1), CLOSED).first_error()
    far = finder_of(error, *["step"] * LINES_TO_EFFECT, CLOSED).first_error()
    assert (near.explains_effects, far.explains_effects) == (True, False)


def test_an_error_hides_no_other_way_to_end():
    """A line without a mark explains a lost peer, but not that another process was ended."""
    unmarked = finder_of(HINT, CLOSED, SIGNALLED).first_error()
    assert unmarked is not None
    assert not unmarked.explains_effects
    assert finder_of(UNKNOWN, CLOSED, SIGNALLED).first_error().explains_effects


@pytest.mark.parametrize(
    "line",
    [
        "fatal: not a git repository (or any of the parent directories): .git",
        "could not find fused_layer_norm kernels, using the torch ones",
        "modulefile error: Unable to locate a modulefile for 'cuda/12.9'",
        "Lmod has detected the following error: The following module(s) are unknown: cuda",
        "job.sh: line 3: nvidia-smi: command not found",
        "wandb: ERROR Error while calling W&B API: permission denied",
        "tokenizer_config.json not found, using default",
        "bash: warning: setlocale: LC_ALL: cannot change locale (en_US.UTF-8)",
        "perl: warning: Setting locale failed.",
        "/usr/bin/id: cannot find name for group ID 10513",
        "mkdir: cannot create directory '/scratch/ckpt': File exists",
        "ln: failed to create symbolic link '/scratch/latest': File exists",
        "slurm_script: line 5: module: command not found",
        "kill: (4711) - No such process",
        "srun: warning: can't honor --ntasks-per-node set to 8. Ignoring --ntasks-per-node.",
        "[NeMo W 2024-11-02 10:00:00 nemo_logging:349] could not find metric val_loss",
        "ERROR: ld.so: object 'libx.so' from LD_PRELOAD cannot be preloaded (failed): ignored.",
        "ERROR: pip's dependency resolver does not currently take into account all packages.",
        "CondaError: Run 'conda init' before 'conda activate'",
        "A high-performance Open MPI messaging module was unable to find any relevant network interfaces:",
        "could not find arguments in the checkpoint ...",
        "Could not load library libnvToolsExt.so, skipping NVTX ranges",
        "Could not import apex; torch.nn.LayerNorm is used instead",
        "Failed to import transformer_engine; FP8 disabled",
        "max absolute error: 3.1e-05 (fused softmax against torch)",
        "Passed 12 checks, failed: 0",
        "fatal: unsafe repository ('/workspace' is owned by someone else)",
        "bash: ulimit: open files: cannot modify limit: Invalid argument",
        "The cache does not exist or is invalid, rebuilding indices on rank 0",
        "n1:9:9 [0] misc/nvmlwrap.cc:183 NCCL WARN nvmlDeviceSetCpuAffinity() failed: Unknown Error",
        "n1:9:9 [0] plugin/net.cc:88 NCCL WARN NET/Plugin: dlerror=libx.so: cannot open it. No plugin found",
        "the allocator failed to get 0 bytes; this is not a failure, but costs time",
    ],
)
def test_what_a_job_prints_at_its_start_is_no_first_error(line):
    finder = finder_of(line, TIMEOUT)
    assert finder.first_error() is None
    assert finder.cause().name == kinds.TIMEOUT.name


def test_an_exception_counts_before_an_earlier_line_with_the_words_of_an_error():
    assert finder_of(UNKNOWN, CUDNN, TIMEOUT).first_error().line == 2


@pytest.mark.parametrize("text", ["Footnote: Error: none of it", CUDNN, HINT])
def test_a_file_without_records_and_known_failures_is_no_log(tmp_path, monkeypatch, text):
    path = tmp_path / "err"
    path.write_text(f"{text}\n")
    monkeypatch.setattr(sys, "argv", ["runbook", "logs", str(path)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ((TIMEOUT, UNKNOWN), kinds.TIMEOUT.name),
        ((UNKNOWN, DISK, TIMEOUT), kinds.DISK.name),
        (("[rank5]: error: retried", TIMEOUT), kinds.TIMEOUT.name),
        (("[W601 12:00:00] Warning: the flux is invalid", TIMEOUT), kinds.TIMEOUT.name),
        (
            ("NCCL error in: ProcessGroupNCCL.cpp:1269, internal error", CLOSED),
            kinds.PEER_DIED.name,
        ),
    ],
    ids=["later", "with a cause", "same rank went on", "a warning", "about a lost rank"],
)
def test_other_lines_explain_no_effect(lines, name):
    finder = finder_of(*lines)
    assert finder.first_error() is None
    assert finder.cause().name == name


def test_without_a_failure_only_a_certain_error_is_named():
    assert finder_of(CUDNN).first_error().line == 1
    assert finder_of(HINT).first_error() is None


def test_a_library_that_finds_a_fault_in_itself_is_no_lost_connection():
    fault = "RuntimeError: store.size() == 2 INTERNAL ASSERT FAILED at c10d/TCPStore.cpp:9"
    assert finder_of(fault, CLOSED).first_error().line == 1


@pytest.mark.parametrize(
    "line",
    [
        "F0717 16:08:46.411695   76098 array.h:414] Check failed: n < sizes",
        "0%| 0/10 [00:00<?, ?it/s]F0717 16:08:46.411695   76098 array.h:414] Check failed: n < sizes",
    ],
)
def test_the_level_of_a_c_logger_marks_an_error(line):
    assert finder_of(line).first_error().line == 1


def test_a_step_afterwards_shows_that_the_error_was_survived():
    finder = finder_of(UNKNOWN)
    finder.note_progress(1)
    assert finder.first_error() is None


@pytest.mark.parametrize("line", [UNKNOWN, CUDNN, WARN, HINT])
def test_every_line_that_counts_has_a_sign(line):
    assert any(sign in line.lower() for sign in SIGNS)


def test_the_command_points_to_it_beside_the_remedy(tmp_path, monkeypatch, capsys):
    of_rank_3 = f"[rank3]: {HINT}"
    content = f"starting\n{of_rank_3}\n{SIGNALLED}\n"
    text, page = outputs_of(content, tmp_path, monkeypatch, capsys)
    assert says(text, SummaryMessage.FIRST_ERROR, line=2, place=", rank 3", evidence=HINT)
    assert kinds.PROGRAM_ENDED.remedy in text
    assert page["cause"]["name"] == kinds.PROGRAM_ENDED.name
    assert page["first_error"]["followed_by"] == [kinds.PROGRAM_ENDED.name]


def test_the_command_shows_an_exception_instead_of_the_remedy(tmp_path, monkeypatch, capsys):
    text, page = outputs_of(f"{CUDNN}\n{TIMEOUT}\n", tmp_path, monkeypatch, capsys)
    assert says(text, SummaryMessage.FIRST_ERROR, line=1, place="", evidence=CUDNN)
    assert kinds.TIMEOUT.remedy not in text
    assert (page["failures"], page["cause"]) == ([], None)


def test_effects_of_other_ranks_are_listed_below_the_exception(tmp_path, monkeypatch, capsys):
    content = f"{CUDNN}\n{TIMEOUT}\n{TIMEOUT}\n{CLOSED}\n"
    text, page = outputs_of(content, tmp_path, monkeypatch, capsys)
    effects = [(one["name"], one["line"], one["rank"], one["count"]) for one in page["effects"]]
    assert effects == [(kinds.TIMEOUT.name, 2, 5, 2), (kinds.PEER_DIED.name, 4, 6, 1)]
    for name, line, rank, count in effects:
        assert says(
            text,
            SummaryMessage.FAILURE,
            label="EFFECT",
            name=name,
            count=count,
            line=line,
            place=f", rank {rank}",
            evidence=content.splitlines()[line - 1],
        )


OF_RANK_3 = f"[rank3]: {CUDNN}"


@pytest.mark.parametrize("effect", [TIMEOUT, CLOSED])
def test_an_effect_that_stands_above_the_exception_of_another_rank_hides_it_not(
    effect, tmp_path, monkeypatch, capsys
):
    """The outputs of ranks may be concatenated, so their lines are not in chronological order."""
    text, page = outputs_of(f"{effect}\n{OF_RANK_3}\n", tmp_path, monkeypatch, capsys)
    first_error = page["first_error"]
    assert (first_error["line"], first_error["rank"]) == (2, 3)
    assert not first_error["precedes_all"] and first_error["followed_by"] == [page["cause"]["name"]]
    assert says(text, SummaryMessage.FIRST_ERROR, line=2, place=", rank 3", evidence=CUDNN)
    assert finder_of(effect).cause().remedy in text
    assert page["effects"] == []


def test_an_exception_below_an_effect_of_its_own_rank_explains_nothing():
    assert finder_of(TIMEOUT, f"[rank5]: {CUDNN}").first_error() is None
    assert finder_of(TIMEOUT, CUDNN).first_error() is None


def test_an_exception_that_a_rank_survived_hides_not_that_of_another_rank():
    finder = finder_of(f"[rank5]: {CUDNN}", OF_RANK_3, TIMEOUT)
    first_error = finder.first_error()
    assert (first_error.line, first_error.rank, first_error.explains_effects) == (2, 3, True)


def test_a_message_that_a_waiting_rank_survived_explains_no_other_rank():
    lines = [f"[rank{rank}]: frobnicate {rank}: the flux is invalid" for rank in range(8)]
    assert finder_of(*lines, TIMEOUT).first_error() is None
    finder = finder_of(*lines, UNKNOWN, TIMEOUT)
    assert finder.first_error().line == len(lines) + 1


def test_a_bare_exception_explains_its_effects():
    first_error = finder_of("Exception: the flux is inverted", TIMEOUT).first_error()
    assert first_error.is_exception


def test_a_weak_sign_of_another_rank_hides_no_exception():
    signalled = "[rank6]: RuntimeError: ncclInvalidUsage: This usually reflects invalid usage"
    finder = finder_of(OF_RANK_3, signalled)
    assert finder.first_error().line == 1
    assert not finder.first_error().explains_effects
    assert finder.cause().name == kinds.VISIBILITY.name
    assert finder_of(OF_RANK_3, f"[rank6]: {DISK}").first_error() is None


def outputs_of(content, folder, monkeypatch, capsys):
    """Return the summary of a log and its JSON output."""
    log = folder / "err"
    log.write_text(content)
    outputs = []
    for options in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["runbook", "logs", str(log), *options])
        with pytest.raises(SystemExit, match="0"):
            main()
        outputs.append(capsys.readouterr().out)
    return outputs[0], json.loads(outputs[1])
