"""Errors of the program that no rule recognizes are reported with their place, after any known
failure, and never in a healthy log.
"""

import time

import pytest
from click.testing import CliRunner
from suite.messages import containing, says

from runbook.cli.logs import logs
from runbook.log_readers.read import LogReader
from runbook.results.failures import kinds
from runbook.results.failures.finder import FailureFinder, find_cause, find_failures
from runbook.results.failures.kinds import OWN_ERROR
from runbook.results.failures.rule import Level, NextStep
from runbook.results.failures.tracebacks import TracebackReader
from runbook.results.messages import ResultMessage
from runbook.tools.logs.messages import SummaryMessage

SITE_PACKAGES = "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"
ERROR_FILE = "/opt/code/pretrain.py"
TYPE_ERROR = [
    "Traceback (most recent call last):",
    f'  File "{ERROR_FILE}", line 88, in forward_step',
    "    loss = model(tokens, positions=positions)",
    f'  File "{SITE_PACKAGES}", line 1501, in _call_impl',
    "    return forward_call(*args, **kwargs)",
    "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
    "TypeError: 'NoneType' object is not callable",
]
DURING = ["", "During handling of the above exception, another exception occurred:", ""]
FOLLOWS = ["", "The above exception was the direct cause of the following exception:", ""]
CLOSED = "RuntimeError: [gloo/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:3421"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def of_rank(rank, lines):
    return [f"[rank{rank}]: {line}" for line in lines]


def traceback(last, file="/opt/code/train.py"):
    frame = f'  File "{file}", line 7, in main'
    return ["Traceback (most recent call last):", frame, "    run()", last]


def names_of(lines):
    return [failure.name for failure in find_failures(lines)]


def test_exception_message_file_line_and_rank_are_named():
    others = of_rank(0, traceback(CLOSED))
    mixed = []
    for of_first, of_second in zip(of_rank(3, TYPE_ERROR), ["step 1"] * 3 + others, strict=True):
        mixed += [of_first, of_second]
    (failure,) = find_failures(mixed)
    assert (failure.name, failure.level, failure.rank) == (OWN_ERROR.name, Level.CAUSE, 3)
    assert failure.line == 13
    place = f"{ERROR_FILE}:88 in forward_step"
    assert failure.evidence == ResultMessage.RAISED_AT.fill(error=TYPE_ERROR[-1], place=place)


@pytest.mark.parametrize(
    ("last", "steps", "decision"),
    [
        ("AttributeError: no such field", 0, NextStep.FIX_FIRST),
        ("AttributeError: no such field", 9, NextStep.UNKNOWN),
        ("RuntimeError: block 17 is bad", 0, NextStep.UNKNOWN),
    ],
)
def test_only_what_comes_again_before_the_first_step_is_to_be_fixed_first(last, steps, decision):
    finder = FailureFinder()
    finder.note_progress(steps)
    for number, line in enumerate(traceback(last), start=1):
        finder.look(line, number)
    assert finder.cause().decision is decision


def test_the_command_calls_it_the_cause_and_says_what_follows(tmp_path):
    path = tmp_path / "err"
    path.write_text("\n".join(of_rank(3, TYPE_ERROR)))
    result = CliRunner().invoke(logs, [str(path)], standalone_mode=False)
    assert says(
        result.output,
        SummaryMessage.FAILURE,
        label="CAUSE",
        name=OWN_ERROR.name,
        count=1,
        line=7,
        place=", rank 3",
        evidence=containing("TypeError"),
    )
    assert says(result.output, SummaryMessage.DECISION, advice=NextStep.FIX_FIRST.advice)


def test_an_assertion_without_words_is_named_by_its_statement():
    lines = [*traceback("AssertionError")]
    lines[2] = "    assert len(steps) == 1"
    (failure,) = find_failures(lines)
    assert failure.evidence.startswith("AssertionError: assert len(steps) == 1 [")


@pytest.mark.parametrize("indent", ["", "    "])
def test_a_traceback_may_be_indented_by_whoever_prints_it(indent):
    (failure,) = find_failures([f"{indent}{line}" for line in TYPE_ERROR])
    assert (failure.name, failure.line) == (OWN_ERROR.name, len(TYPE_ERROR))


def test_marks_that_a_launcher_broke_into_lines_are_passed_over():
    lines = [*TYPE_ERROR[1:5], "^^^", "", "^", "AssertionError: ", "args is not initialized."]
    (failure,) = find_failures([f"0: {line}" for line in lines])
    assert failure.evidence.startswith("AssertionError: args is not initialized. [")


def test_a_traceback_in_a_box_is_read():
    lines = [
        "╭─────────── Traceback (most recent call last) ───────────╮",
        "│ /opt/code/train_controlnet.py:1127 in <module>          │",
        "│                                                         │",
        "│ ❱ 1127 │   main(args)                                   │",
        "╰─────────────────────────────────────────────────────────╯",
        "RuntimeError: The size of tensor a (0) must match the size of tensor b (3)",
    ]
    (failure,) = find_failures(lines)
    assert failure.evidence.endswith("[/opt/code/train_controlnet.py:1127]")


def test_of_an_exception_group_the_first_exception_is_named():
    second_error = "ValueError: a second error"
    lines = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/opt/code/train.py", line 1, in <module>',
        "  |     with TaskGroup() as group:",
        "  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------",
        "    | Traceback (most recent call last):",
        '    |   File "/opt/code/data.py", line 3, in read',
        "    |     return index[key]",
        "    | KeyError: 'text'",
        "    +---------------- 2 ----------------",
        f"    | {second_error}",
        "    +------------------------------------",
    ]
    (failure,) = find_failures(lines)
    place = "/opt/code/data.py:3 in read"
    assert failure.evidence == ResultMessage.RAISED_AT.fill(error="KeyError: 'text'", place=place)
    (failure,) = find_failures([*lines[:5], *lines[10:]])
    assert failure.evidence == second_error
    of_a_thread = ["Exception in thread Thread-1 (watch):", *lines]
    assert names_of(of_a_thread) == []


def test_a_class_that_a_function_defines_is_an_exception():
    (failure,) = find_failures(traceback("main.<locals>.BadShape: no multiple of 8"))
    assert failure.evidence.startswith("main.<locals>.BadShape: no multiple of 8 [")


def test_a_long_line_in_a_box_is_read_in_linear_time():
    line = f"│ train.py:1 in main{' ' * 100_000}x"
    begin = time.process_time()
    TracebackReader().read(line, "")
    assert time.process_time() - begin < 1


def test_words_below_the_exception_are_its_message():
    words = "block 17 is bad"
    (failure,) = find_failures([*traceback("RuntimeError:"), f"  {words}"])
    assert words in failure.evidence


@pytest.mark.parametrize(
    "lines",
    [
        [*traceback(OOM), *traceback("ValueError: bad")],
        [*traceback("ValueError: bad"), OOM],
        [*traceback(OOM), *DURING, *traceback("ValueError: bad")],
        [*traceback("ValueError: bad"), *DURING, *traceback(OOM)],
        [*traceback(OOM), *FOLLOWS, *traceback("ValueError: bad")],
    ],
)
def test_a_cause_that_a_rule_knows_comes_first(lines):
    assert names_of(lines) == [kinds.DEVICE_MEMORY.name]


def test_a_missing_file_in_the_same_chain_is_the_answer():
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/opt/x.sh'"
    for between in (DURING, FOLLOWS):
        lines = [*traceback(missing), *between, *traceback("ValueError: no start")]
        assert names_of(lines) == ["file missing"]


@pytest.mark.parametrize(
    ("between", "exception"), [(DURING, "ValueError"), (FOLLOWS, "KeyError"), ([], "KeyError")]
)
def test_of_exceptions_that_belong_together_the_telling_one_is_named(between, exception):
    lines = [*traceback("KeyError: 'x'"), *between, *traceback("ValueError: no start")]
    (failure,) = find_failures(lines)
    assert failure.evidence.startswith(f"{exception}: ")


def test_a_data_loaders_worker_is_named_and_not_its_parent():
    lines = [
        *traceback("KeyError: Caught KeyError in DataLoader worker process 0."),
        "Original Traceback (most recent call last):",
        '  File "/opt/code/dataset.py", line 31, in __getitem__',
        "    return self.index[key]",
        "KeyError: 'text'",
    ]
    (failure,) = find_failures(lines)
    place = "/opt/code/dataset.py:31 in __getitem__"
    assert failure.evidence == ResultMessage.RAISED_AT.fill(error=lines[-1], place=place)


@pytest.mark.parametrize(
    "lines",
    [
        traceback("KeyboardInterrupt"),
        traceback("subprocess.CalledProcessError: Command '['python']' returned 1."),
        traceback("ConnectionResetError: [Errno 104] by node"),
        ["Exception ignored in: <function Pool.__del__>", *traceback("ValueError: bad")],
        ["--- Logging error ---", *traceback("ValueError: bad")],
        ["Exception in thread Thread-3 (watch):", *traceback("ValueError: bad")],
        [
            "Exception ignored in: <function Pool.__del__>",
            *traceback("KeyError: 'x'"),
            *DURING,
            *traceback("ValueError: bad"),
        ],
        [
            "[rank3]: Exception in thread Thread-1 (watch):",
            "[rank0]: ready",
            *of_rank(3, traceback("ValueError: bad")),
        ],
        ["ValueError: bad", "a program may print such a line"],
        [*TYPE_ERROR[1:3], "V1 graph break: go on without compiling", "ValueError: shown"],
        [*traceback("Epoch 3 begins"), "ValueErrors are counted: 0"],
    ],
)
def test_what_no_program_ends_with_is_no_error_of_its_own(lines):
    assert OWN_ERROR.name not in names_of(lines)


def test_another_ranks_heading_hides_no_error():
    heading = "[rank3]: Exception in thread Thread-1 (watch):"
    (failure,) = find_failures([heading, *of_rank(0, traceback("KeyError: 'text'"))])
    assert (failure.name, failure.rank) == (OWN_ERROR.name, 0)


@pytest.mark.parametrize(
    "last",
    [
        "KeyError: 'nccl_timeout'",
        "KeyError: 'Connection'",
        "NameError: name 'socket' is not defined",
    ],
)
def test_a_networks_word_in_a_message_makes_no_lost_connection(last):
    (failure,) = find_failures(traceback(last))
    assert failure.evidence.startswith(last)
    assert failure.decision is NextStep.FIX_FIRST


LOST_WORKER = "RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly"


def cause_of_lost_worker(*lines):
    """Return the reported cause if these lines come before the report from a data loader's
    parent.
    """
    parent = [*traceback("_queue.Empty"), *FOLLOWS, *traceback(LOST_WORKER)]
    return find_cause(find_failures([*lines, *parent]))


def test_a_lost_worker_alone_is_a_symptom():
    cause = cause_of_lost_worker()
    assert (cause.name, cause.level) == (kinds.HOST_MEMORY.name, Level.SYMPTOM)
    assert (cause.decision, cause.also) == (NextStep.UNKNOWN, kinds.SHARED_MEMORY.name)


def test_why_a_worker_was_lost_comes_before_the_report_of_its_parent():
    cause = cause_of_lost_worker(*traceback("NameError: name 'tokens' is not defined"))
    assert (cause.name, cause.level) == (OWN_ERROR.name, Level.CAUSE)
    assert cause.evidence.startswith("NameError: ")
    signal = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Segmentation fault."
    assert cause_of_lost_worker(signal).name == kinds.PROGRAM_ENDED.name
    signal = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed."
    assert cause_of_lost_worker(signal).level is Level.CAUSE


def test_a_program_that_goes_on_has_survived_its_error():
    lines = traceback("ValueError: bad")
    assert names_of([*lines, *["words"] * 300]) == [OWN_ERROR.name]
    assert names_of([*lines, *["words"] * 301]) == []
    ended = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
    assert OWN_ERROR.name in names_of([*lines, ended, *["words"] * 301])
    finder = FailureFinder()
    for number, line in enumerate(lines, start=1):
        finder.look(line, number)
    finder.note_progress(1)
    assert finder.found() == []


def test_the_rank_that_torchrun_blames_comes_first():
    lines = [
        *of_rank(2, traceback("ValueError: second")),
        *of_rank(5, traceback("ValueError: first")),
        "Root Cause (first observed failure):",
        "  rank      : 5 (local_rank: 1)",
        "  exitcode  : 1 (pid: 4711)",
    ]
    finder = FailureFinder()
    for number, line in enumerate(lines, start=1):
        finder.look(line, number)
    cause = finder.cause()
    assert (cause.name, cause.rank, cause.count) == (OWN_ERROR.name, 5, 2)


@pytest.mark.parametrize(
    ("symptom", "name"),
    [
        ("[rank1]: [E] [Rank 1] Watchdog caught collective operation timeout", OWN_ERROR.name),
        ("srun: error: n1: task 3: Killed", "process killed"),
    ],
)
def test_an_error_after_another_end_is_the_cause_only_of_a_wait(symptom, name):
    lines = [symptom, *of_rank(0, traceback("ValueError: bad"))]
    assert find_cause(find_failures(lines)).name == name


def test_cpps_terminate_is_named_with_its_words():
    words = "tokenizer: no merges"
    lines = [
        "terminate called after throwing an instance of 'std::runtime_error'",
        f"  what():  {words}",
        "Aborted (core dumped)",
    ]
    cause = find_cause(find_failures(lines))
    assert (cause.name, cause.evidence) == (
        OWN_ERROR.name,
        f"std::runtime_error: {words}",
    )
    assert cause.decision is NextStep.UNKNOWN


def test_arguments_that_a_program_refuses_are_its_own_error():
    reason = "pick a colour that we have"
    (failure,) = find_failures(["usage: x.py [-h]", f"x.py: error: {reason}"])
    assert failure.evidence == f"argument error: {reason}"
    assert failure.decision is NextStep.FIX_FIRST


RECORD = (
    " iteration {:8}/ 250000 | consumed samples: 4 | elapsed time per iteration (ms): 4.9 | "
    "learning rate: 2.9E-04 | global batch size: 8 | lm loss: {} | loss scale: 1.0 | "
    "number of skipped iterations: 0 | number of nan iterations:   0 |"
)
CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"


def cause_of_files(*files):
    reader = LogReader()
    for number, lines in enumerate(files):
        reader.next_file(str(number))
        reader.feed(lines)
    return reader.finish().cause


def test_steps_in_the_file_beside_an_error_do_not_overcome_it():
    err = [*traceback("KeyError: 'text'"), CHILD_FAILED]
    out = [RECORD.format(number, "2.1E+00") for number in range(1, 4)]
    for files in ((err, out), (out, err)):
        cause = cause_of_files(*files)
        assert (cause.name, cause.decision) == (OWN_ERROR.name, NextStep.UNKNOWN)


def test_an_error_that_no_launcher_reports_or_that_a_later_job_survived_is_no_cause():
    out = [RECORD.format(number, "2.1E+00") for number in range(1, 4)]
    later = [RECORD.format(number, "2.0E+00") for number in range(4, 6)]
    err = traceback("KeyError: 'text'")
    assert cause_of_files(err, out) is None
    assert cause_of_files([*out, *err], later) is None
    assert cause_of_files([*err, CHILD_FAILED], out, ["words"], later) is None


def test_an_error_stays_the_cause_if_no_later_file_has_steps():
    out = [RECORD.format(number, "2.1E+00") for number in range(1, 4)]
    err = traceback("KeyError: 'text'")
    for files in ((err, ["hello"]), (["hello"], err), ([*out, *err], ["hello"], ["bye"])):
        assert cause_of_files(*files).name == OWN_ERROR.name
    reported = [*traceback("ValueError: reported"), CHILD_FAILED]
    assert cause_of_files(err, reported, out).evidence.startswith("ValueError: reported")


def test_records_that_end_without_numbers_come_before_an_error_of_the_program():
    records = [RECORD.format(number, "nan") for number in range(1, 4)]
    cause = cause_of_files([*records, *traceback("AssertionError: odd")])
    assert cause.name == kinds.NAN.name
