"""Traces a job in the sandbox.

The trace contains the job variables and the programs that it started, with line numbers in the
script.
"""

import codecs
import posixpath
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest

from runbook.core.errors import ParamsError
from runbook.core.visible_text import visible
from runbook.jobs.script_directives import (
    Directive,
    all_directives,
    directives_of,
    late_directives,
    options_of,
)
from runbook.tools.adopt import sandbox
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.sandbox import (
    FIRST_RUN,
    Retry,
    SandboxJob,
    SandboxRun,
    entered_once,
    environment,
    filled_in,
    first_choice,
    needed_arguments,
)
from runbook.tools.adopt.script import (
    FOLDER,
    Script,
    Setting,
    StartedProgram,
    Word,
    code_blocks,
    is_count,
    is_prose,
    lines_of,
)


class LineNumbers:
    """Lines from all files that were read, numbered consecutively."""

    def __init__(self, scripts: Mapping[str, str]) -> None:
        self.lines: list[str] = []
        self.first: dict[str, int] = {}
        for name, text in scripts.items():
            self.add(name, text)

    def add(self, name: str, text: str) -> None:
        """Number the lines in a file, unless they are already numbered."""
        if name not in self.first:
            self.first[name] = len(self.lines) + 1
            self.lines += lines_of(text)

    def line(self, number: int) -> str:
        """Return a line by its number, or an empty string if there is no such line."""
        if 0 < number <= len(self.lines):
            return self.lines[number - 1]
        return ""

    @property
    def places(self) -> dict[int, str]:
        """Return a name for each line: `line 12`, or `payload.sh:12` if there are multiple files."""
        places = {0: "line 0"}
        last_number = len(self.lines)
        for name, first in self.first.items():  # A file that was read later may replace these lines
            prefix = "line " if len(self.first) == 1 else f"{name}:"
            for number in range(first, last_number + 1):
                places[number] = f"{prefix}{number - first + 1}"
        last = places[max(places)]
        return defaultdict(
            lambda: last, places
        )  # A number beyond the last line gets the name of the last line

    def of(self, file: str, line: int, files: Mapping[str, str]) -> int:
        """Return the number for a line in a file, or 0 if the file is not part of the job."""
        name = re.sub(r"^\.block-\d+/", "", file)
        if name not in self.first:
            if file not in files:
                return 0
            self.add(name, files[file])
        return self.first[name] + line - 1


class WordLines:
    """Finds, for each word in a command, the line that contains its option or sets its variable."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.rows: list[tuple[int, str]] = []
        for number, line in enumerate(lines, 1):
            is_comment = line.lstrip().startswith("#")
            if not is_comment:
                self.rows.append((number, line))

    def command(self, command: StartedProgram) -> StartedProgram:
        """Return a command with the line number for each word."""
        if command.kind in ("quiet", "answer"):
            return command
        located_words = [command.words[0]]
        option_line = command.line
        for word in command.words[1:]:
            before = located_words[-1].text
            named_line = self._line_of_name(word.text)
            option_line = named_line or option_line
            if named_line:
                line = self._line_of_named(word.text, named_line)
            else:
                line = self._line_after(before, word.text, option_line)
            located_words.append(Word(word.text, line))
        return replace(command, words=tuple(located_words))

    def _line_of_name(self, text: str) -> int:
        """Return the line with the name of an option or override.

        Return 0 if the word is not such a name, or if no line contains it.
        """
        if not _is_named(text):
            return 0
        return self._last_line(_whole(text.partition("=")[0]))

    def _line_of_named(self, text: str, named_line: int) -> int:
        """Return the line with an option, or for `name=value` the line that sets the value."""
        name, equals, _ = text.partition("=")
        if equals:
            return self._line_of_value(named_line, name)
        return named_line

    def _line_after(self, before: str, text: str, option_line: int) -> int:
        """Return the line with a word that may be the value for the preceding option."""
        if before.startswith("--"):
            return self._line_of_value(option_line, before)
        if len(text) > _SHORT_WORD:
            return self._last_line(re.escape(text)) or option_line
        return option_line

    def _last(self, pattern: str) -> tuple[int, re.Match[str]] | None:
        """Return the last line that matches the pattern, with its match, or None if none does."""
        compiled = re.compile(pattern)
        for number, row in reversed(self.rows):
            match = compiled.search(row)
            if match:
                return number, match
        return None

    def _last_line(self, pattern: str) -> int:
        """Return the number of the last line that matches the pattern, or 0 if no line does."""
        last = self._last(pattern)
        if last is None:
            return 0
        return last[0]

    def _line_of_value(self, line: int, name: str) -> int:
        """Follow `--name $VARIABLE` to the line where the variable is set."""
        row = next((text for number, text in self.rows if number == line), "")
        variable = _group_of(re.escape(name) + r"[=\s]+\\?[\"']?\$\{?([A-Za-z_]\w*)", row)
        for _ in range(_MOST_CHAINED):
            if not variable:
                break
            assignment = self._last(rf"(?<![\w$]){variable}=(.*)")
            if assignment is None:
                break
            line, match = assignment
            chained = _group_of(_ONLY_A_VARIABLE, match[1])
            if chained == variable:
                break
            variable = chained
        return line


_SHORT_WORD = 2
"""Words of at most this length are not searched for, because other words may contain them."""
_ONLY_A_VARIABLE = r"^[\"']?\$\{?([A-Za-z_]\w*)\}?[\"']?\s*(?:[;#].*)?$"


def _group_of(pattern: str, text: str) -> str:
    """Return the text in the first group, or '' if the pattern does not match."""
    match = re.search(pattern, text)
    if match is None:
        return ""
    return match[1]


_MOST_CHAINED = 5
"""Maximum number of variables to follow in a chain, where each is set from the next."""


def _is_named(text: str) -> bool:
    """Return whether a word is an option or an override, whose name can be searched for."""
    name, equals, _ = text.partition("=")
    is_option = text.startswith("-") and len(name) > 2
    is_override = bool(equals) and re.fullmatch(r"[+~\w.]+", name) is not None
    return is_option or is_override


def _whole(name: str) -> str:
    """Return a pattern to match a whole option name, but not part of a longer name."""
    return rf"(?<![\w-]){re.escape(name)}(?![\w-])"


_EVENT = re.compile(
    "\036([^\035\036]*)\035|^\001++([^\002\n]*)\002([0-9]{0,9})\002([^\003\n]*)\003(.*)$",
    re.MULTILINE,
)
"""Matches a record from a stub, or a traced command.

A script may write into its own trace, so no text is parsed twice.
"""
_ASSIGNS = re.compile(
    r"(?:(export|declare|typeset|local"
    r"|readonly)\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)(\[[^]]*\])?(\+?)=(.*)",
    re.DOTALL,
)
_MOST_RUNS = 8
Starts = Callable[[Sequence[StartedProgram]], bool]


@dataclass
class RunTrace:
    """The trace left when a job ran once."""

    commands: list[StartedProgram] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    """The current value of each variable."""
    steps: list[tuple[str, int]] = field(default_factory=list)
    """Name and line for each traced command."""
    called: list[str] = field(default_factory=list)
    """Programs called by an absolute path."""
    exit_code: int | None = None
    """Exit code from the job, or None if it was stopped at the time limit."""


def follow(
    files: Sequence[tuple[str, str]],
    beside: Mapping[str, str],
    starts_training: Starts,
) -> Script:
    """Run the first of `files` in the sandbox, with the others next to it, and report what it did.

    If the job ends before it starts to train, run it again with what it lacked: programs that it
    calls by path, command-line arguments, or a disabled `exit`. If the job submits another
    job, run that job as well. Raise `ParamsError` if two of `files` have the same name.
    """
    scripts = {}
    for name, text in files:
        if name in scripts:
            raise ParamsError(AdoptMessage.SCRIPTS_OF_ONE_NAME, name=name)
        scripts[name] = text.replace("\r\n", "\n").replace("\0", "")
    job = _first_job(files[0][0], scripts, beside)
    numbers = LineNumbers(scripts)
    trace, notes = _until_it_starts(job, starts_training, numbers)
    notes += _notes_of_late_directives(scripts)
    for _ in range(_MOST_SUBMITTED):
        if starts_training(trace.commands):
            break
        submitted = _submitted(job, trace, numbers)
        if submitted is None:
            break
        notes.append(f"{job.main} submits {submitted.main}, which was run as well")
        num_submitted = len(_submissions(trace))
        if num_submitted > 1:
            note = AdoptMessage.SEVERAL_SUBMITTED.fill(job=job.main, number=num_submitted)
            notes.append(note)
        job = submitted
        earlier = trace
        trace, more_notes = _until_it_starts(job, starts_training, numbers)
        trace = RunTrace(earlier.commands + trace.commands, earlier.settings + trace.settings)
        notes += more_notes
    notes += _notes_of_stray_options(trace, numbers)
    word_lines = WordLines(numbers.lines)
    return Script(
        text="".join(f"{visible(line)}\n" for line in numbers.lines),
        directives=tuple(_visible_directive(entry) for entry in job.directives),
        commands=tuple(word_lines.command(command) for command in trace.commands),
        settings=tuple(trace.settings),
        places=numbers.places,
        notes=tuple(dict.fromkeys(notes)),
    )


_MOST_SUBMITTED = 2
"""Maximum number of jobs to follow in a chain, where each is submitted by the previous one."""


def _first_job(main: str, scripts: Mapping[str, str], beside: Mapping[str, str]) -> SandboxJob:
    """Return the job that the sandbox runs first.

    The code blocks on a page are written to files.
    """
    files = {}
    for name, text in {**beside, **scripts}.items():
        files[name] = filled_in(name, text)
    if is_prose(scripts[main]):
        files = _page_as_job(main, scripts[main], files)
    return SandboxJob(main, files, _directives(scripts))


def _directives(scripts: Mapping[str, str]) -> list[Directive]:
    """Return the directives in all files, with line numbers in the joined text."""
    directives = []
    offset = 0
    for text in scripts.values():
        if is_prose(text):
            read = all_directives(_blocks_in_place(text))
        else:
            read = directives_of(text)
        directives += _moved(read, offset)
        offset += len(lines_of(text))
    return directives


def _visible_directive(directive: Directive) -> Directive:
    """Return a directive without the terminal control characters that a script may contain."""
    return replace(directive, name=visible(directive.name), value=visible(directive.value))


def _notes_of_late_directives(scripts: Mapping[str, str]) -> list[str]:
    """Return a note for each file with directives that the queue does not read."""
    notes = []
    for name, text in scripts.items():
        late = [] if is_prose(text) else late_directives(text)
        if late:
            lines = ", ".join(str(line) for line in dict.fromkeys(entry.line for entry in late))
            notes.append(
                f"the queue does not read the requests of {name} below its first command (line {lines})"
            )
    return notes


def _notes_of_stray_options(trace: RunTrace, numbers: LineNumbers) -> list[str]:
    """Return a note for each option that the shell tries to run as a separate program.

    The line before such an option lacks a backslash at its end, so the option never reaches the
    training.
    """
    notes = []
    for command in trace.commands:
        option = command.words[0]
        if command.kind == "unknown" and option.text.startswith("--"):
            place = numbers.places[command.line]
            notes.append(AdoptMessage.STRAY_OPTION.fill(option=option.shown, place=place))
    return notes


WRITTEN_JOB = "submitted.sh"
"""File name used for a job that a script writes while running."""


def _submitted_file(arguments: Sequence[str], job: SandboxJob) -> str:
    """Return the job script named by a submit command, or a name for a new file."""
    for argument in arguments:
        for name in job.files:
            if argument.endswith(name):
                return name
    return WRITTEN_JOB


def _moved(directives: Sequence[Directive], offset: int) -> list[Directive]:
    """Return directives with an offset added to their line numbers."""
    return [replace(entry, line=entry.line + offset) for entry in directives]


def _blocks_in_place(page: str) -> str:
    """Return the code blocks on a page as a single text, with their line numbers kept."""
    blocks = [lines_of(block) for block in code_blocks(page)]
    rows = zip_longest(*blocks, fillvalue="")
    return "\n".join("".join(row) for row in rows)  # Each line belongs to at most one block


def _page_as_job(main: str, page: str, texts: Mapping[str, str]) -> dict[str, str]:
    """Write the code blocks on a page to files that one shell sources in turn.

    In this way, a block that bash cannot parse does not affect the others.
    """
    files = dict(texts)
    sources = []
    for number, block in enumerate(code_blocks(page)):
        name = f".block-{number}/{main}"
        sources.append(f'builtin source "{FOLDER}/{name}"\n')
        files[name] = filled_in("", block)
    files[main] = "".join(sources)
    return files


@dataclass
class _Attempts:
    """Repeats a job until it starts to train, and collects what the next run needs."""

    job: SandboxJob
    missing: list[str] = field(default_factory=list)
    """Programs that the job calls by an absolute path that does not exist here."""
    arguments: list[str] = field(default_factory=list)
    retry: Retry = FIRST_RUN
    is_redirected: bool = False
    """Whether output from commands in the job is discarded."""
    notes: list[str] = field(default_factory=list)

    def help(self, trace: RunTrace) -> bool:
        """Give the next run what this run lacked. Return whether anything was added."""
        return (
            self._give_arguments()
            or self._choose_argument(trace)
            or self._keep_going(trace)
            or self._redirect(trace)
            or self._be_a_rank()
        )

    def give_programs(self, trace: RunTrace) -> bool:
        """Give the next run a stub for each program that this run called by its path."""
        absent = _absent_programs(trace, self.job, self.missing)
        self.missing += absent
        return bool(absent)

    def _give_arguments(self) -> bool:
        needed = needed_arguments(self.job)
        if not needed or self.arguments:
            return False
        self.arguments = needed
        self.notes.append(
            AdoptMessage.ARGUMENTS_NOT_GIVEN.fill(job=self.job.main, number=len(needed))
        )
        return True

    def _choose_argument(self, trace: RunTrace) -> bool:
        choice = first_choice(self.job)
        if not choice or self.arguments or not _gave_up(trace):
            return False
        self.arguments = choice
        choice_shown = visible(choice[0])
        self.notes.append(AdoptMessage.ARGUMENT_CHOSEN.fill(job=self.job.main, choice=choice_shown))
        return True

    def _keep_going(self, trace: RunTrace) -> bool:
        if self.retry.keep_going or not _gave_up(trace):
            return False
        self.retry = replace(self.retry, keep_going=True)
        if trace.exit_code is not None:
            note = AdoptMessage.GAVE_UP.fill(job=self.job.main, exit_code=trace.exit_code)
            self.notes.append(note)
        return True

    def _redirect(self, trace: RunTrace) -> bool:
        if self.is_redirected or not _has_unstarted_launcher(trace):
            return False
        self.is_redirected = True
        main = self.job.main
        self.job.files = {**self.job.files, main: _without_output_files(self.job.files[main])}
        return True

    def _be_a_rank(self) -> bool:
        if self.retry.as_a_rank:
            return False
        self.retry = replace(self.retry, as_a_rank=True)
        files = {}
        for name, text in self.job.files.items():
            files[name] = entered_once(name, text)
        self.job.files = files
        return True


def _until_it_starts(
    job: SandboxJob,
    starts_training: Starts,
    numbers: LineNumbers,
) -> tuple[RunTrace, list[str]]:
    """Run a job repeatedly until it starts to train, each time with what the previous run lacked.

    Return the last trace and the notes about all runs.
    """
    attempts = _Attempts(job, arguments=list(job.arguments))
    for _ in range(_MOST_RUNS):
        command = ["bash", job.main, *attempts.arguments]
        variables = environment(job, attempts.retry)
        run = sandbox.run_job(job.files, command, FOLDER, variables, attempts.missing)
        trace = _read(run.raw, job, numbers)
        if attempts.give_programs(trace):
            continue
        if starts_training(trace.commands):
            if attempts.retry.as_a_rank:
                attempts.notes.append(_RAN_AS_A_RANK.format(job=job.main))
            trace = _with_arguments(trace, attempts, starts_training, numbers)
            break
        if not attempts.help(trace):
            break
    if trace.exit_code is None:
        attempts.notes.append(_why_stopped(job, trace, run, numbers))
    return trace, attempts.notes


def _with_arguments(
    trace: RunTrace,
    attempts: _Attempts,
    starts_training: Starts,
    numbers: LineNumbers,
) -> RunTrace:
    """Return the trace from a run with a placeholder for each argument that the job did not get.

    Without placeholders, options would lack their values, and paths their folders. Return `trace`
    if the job needs no arguments, or if it does not start training with them either.
    """
    job = attempts.job
    needed = needed_arguments(job)
    if attempts.arguments or not needed:
        return trace
    variables = environment(job, attempts.retry)
    command = ["bash", job.main, *needed]
    run = sandbox.run_job(job.files, command, FOLDER, variables, attempts.missing)
    trace_with_arguments = _read(run.raw, job, numbers)
    if not starts_training(trace_with_arguments.commands):
        return trace
    attempts.notes.append(AdoptMessage.ARGUMENTS_NOT_GIVEN.fill(job=job.main, number=len(needed)))
    return trace_with_arguments


_RAN_AS_A_RANK = (
    "{job} started a training run only as rank 0 of an MPI job, or in a loop whose count is never "
    "set"
)


def _has_unstarted_launcher(trace: RunTrace) -> bool:
    """Return whether bash reached a launcher but could not start it.

    Bash cannot start a launcher if the folder for its output file does not exist.
    """
    programs = sandbox.stub_programs()
    launchers = {*programs["starter"], *programs["step"], *programs["python"]}
    recorded = {command.name for command in trace.commands}
    reached = {name for name, _ in trace.steps}
    return bool((reached & launchers) - recorded)


_OUTPUT_FILE = re.compile(r"(?<![<>&\d])(?:&|[12])?>>?\s*[\"']?[$/][^\s;|&]*")
_WRITES_A_FILE = re.compile(r"<<|\b(?:cat|echo|printf|sed|scontrol|tee|grep|awk)\b")


def _without_output_files(script: str) -> str:
    """Return the script with output files replaced by /dev/null.

    Commands whose purpose is to write a file keep their output files.
    """
    lines = []
    for line in lines_of(script):
        if _WRITES_A_FILE.search(line):
            lines.append(line)
        else:
            lines.append(_OUTPUT_FILE.sub("> /dev/null", line))
    return "\n".join(lines) + "\n"


def _gave_up(trace: RunTrace) -> bool:
    """Return whether a job ended with an error or by calling `exit`.

    Some jobs give up with exit code 0.
    """
    return trace.exit_code != 0 or (bool(trace.steps) and trace.steps[-1][0] == "exit")


def _why_stopped(
    job: SandboxJob,
    trace: RunTrace,
    run: SandboxRun,
    numbers: LineNumbers,
) -> str:
    """Return a note about the limit that a job reached, and what it was doing at the time."""
    num_bytes = len(run.raw.encode(errors="replace"))
    if num_bytes >= sandbox.MOST_BYTES:
        limit = (
            f"{sandbox.MOST_BYTES >> 20} MiB of traced commands: it loops forever, or handles "
            "very long values"
        )
    else:
        limit = f"{run.seconds} s: it waits or computes forever"
    stopped = f"{job.main} was stopped after {limit}"
    if not trace.steps:
        return stopped
    program, line = trace.steps[-1]
    if not line:
        return stopped
    return f"{stopped}; its last command was {program} in {numbers.places[line]}"


def _absent_programs(trace: RunTrace, job: SandboxJob, stubs: Sequence[str]) -> list[str]:
    """Return programs called by an absolute path that is neither a file in the job nor a stub."""
    recorded = {command.words[0].text for command in trace.commands}
    job_files = {f"{FOLDER}/{name}" for name in job.files}
    known_programs = {*recorded, *job_files, *stubs}
    called = dict.fromkeys(trace.called)
    return [path for path in called if path not in known_programs]


def _submitted(job: SandboxJob, trace: RunTrace, numbers: LineNumbers) -> SandboxJob | None:
    """Return the last job submitted by this job, with the exported variables.

    Return None if this job submits no job.
    """
    for command in reversed(_submissions(trace)):
        text = command.environment[_SUBMITTED_TEXT].text
        return _submitted_job(job, command, text, numbers)
    return None


_SUBMITTED_TEXT = "ADOPT_SUBMITTED"
"""The variable in which a stub records the text of a submitted job."""


def _submissions(trace: RunTrace) -> list[StartedProgram]:
    """Return the commands in a run that submit a job whose script is available."""
    submissions = []
    for command in trace.commands:
        text = command.environment.get(_SUBMITTED_TEXT, Word("", 0)).text
        if command.kind == "submit" and text.strip():
            submissions.append(command)
    return submissions


def _submitted_job(
    job: SandboxJob,
    command: StartedProgram,
    text: str,
    numbers: LineNumbers,
) -> SandboxJob:
    """Return the job started by a submit command; `text` is its script."""
    arguments = [word.text for word in command.words[1:]]
    main = _submitted_file(arguments, job)
    numbers.add(main, text)
    offset = numbers.first[main] - 1
    directives = _moved(directives_of(text), offset)
    queue = "pbs"
    if command.name == "sbatch":
        queue = "slurm"
    directives += options_of(queue, arguments, command.line)
    exports = {}
    for name, word in command.environment.items():
        if not _SET_BY_SANDBOX.fullmatch(name):
            exports[name] = word.text
    exports |= exported_by_options(arguments)
    passed = _passed_arguments(arguments, main)
    return SandboxJob(main, {**job.files, main: text}, directives, exports, passed)


def exported_by_options(arguments: Sequence[str]) -> dict[str, str]:
    """Return the variables that options to sbatch or qsub export to the job.

    >>> exported_by_options(["--export=ALL,LR=1e-4", "-v", "A=1,B=2", "train.sh"])
    {'LR': '1e-4', 'A': '1', 'B': '2'}
    """
    lists = []
    for before, argument in pairwise(["", *arguments]):
        if argument.startswith("--export="):
            lists.append(argument.partition("=")[2])
        elif before in ("--export", "-v"):
            lists.append(argument)
    exports = {}
    for item in ",".join(lists).split(","):
        name, equals, value = item.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
            exports[name] = value
    return exports


def _passed_arguments(arguments: Sequence[str], main: str) -> tuple[str, ...]:
    """Return the words after the job script on the line used to submit it."""
    for position, argument in enumerate(arguments):
        if argument.endswith(main):
            return tuple(arguments[position + 1 :])
    return ()


_SET_BY_SANDBOX = re.compile(r"(ADOPT_|SLURM_|PBS_).*|PATH|BASH_ENV|PWD|OLDPWD|SHLVL|_")


def _read(raw: str, job: SandboxJob, numbers: LineNumbers) -> RunTrace:
    """Read the trace written by the sandbox.

    The trace contains calls to stubs, assignments and other shell commands.
    """
    trace = RunTrace()
    for event in _EVENT.finditer(raw):
        stub_call, file, line, folder, text = event.groups()
        if stub_call is not None:
            _record(stub_call, trace)
            continue
        if file.startswith("/adopt/") or text in ("builtin set +eu", ""):
            continue
        name = _name_in_job(file, folder)
        number = 0
        if name:
            number = numbers.of(name, int(line or 0), job.files)
        assignment = _ASSIGNS.fullmatch(text)
        if assignment:
            _assign(assignment, number, numbers.line(number), trace)
        else:
            _step(text, number, folder, trace)
    return trace


def _name_in_job(file: str, folder: str) -> str:
    """Return a file path inside the job folder.

    Return only the name if the file is elsewhere, and an empty string if there is no file.
    """
    if not file:
        return ""
    path = posixpath.normpath(posixpath.join("/", folder, file))
    if path.startswith(f"{FOLDER}/"):
        return path.removeprefix(f"{FOLDER}/")
    return file.rpartition("/")[2]


def _assign(
    assignment: re.Match[str],
    number: int,
    row: str,
    trace: RunTrace,
) -> None:
    """Record a traced assignment, together with its source text. Arrays are left out."""
    keyword, name, index, is_appended, text = assignment.groups()
    is_array = text.startswith("(") or bool(index)
    unquoted = None if is_array else _unquoted(text)
    if unquoted is None or name in ("BASH_ENV", "PATH"):
        return
    value = visible(unquoted)
    if is_appended:
        trace.values[name] = trace.values.get(name, "") + value
    else:
        trace.values[name] = value
    written = re.search(rf"(?<![\w$]){name}\+?=(\"[^\"]*\"?|'[^']*'?|[^\s;]*)", row)
    raw = value
    if written:
        raw = written[1].strip("\"'")
    default = bool(re.match(r"\$\{" + name + r":?[-=]", raw))
    exported = keyword == "export" or bool(re.search(rf"\bexport\b.*(?<!\w){name}\b", row))
    trace.settings.append(Setting(name, trace.values[name], number, raw, default, exported))


def _step(
    text: str,
    number: int,
    folder: str,
    trace: RunTrace,
) -> None:
    """Record a traced shell command: a builtin, or a program whose stub then writes a record."""
    first, *names = text.split() or [""]
    if first == "unset":
        for name in names:
            trace.values.pop(name, None)
    program = _unquoted(first) or first
    trace.steps.append((program.rpartition("/")[2], number))
    is_system = program.startswith(("/usr/", "/bin/", "/sbin/", "/adopt/"))
    if is_system and re.fullmatch(r"/(usr/|usr/local/)?bin/python[\d.]*", program):
        _record_python(text, number, trace)
    is_path = "/" in program and re.fullmatch(r"[\w./+-]+", program)
    if not is_path or is_system:
        return
    if program.startswith("/"):
        trace.called.append(program)
    else:
        trace.called.append(f"{folder}/{program.removeprefix('./')}")


def _record_python(text: str, number: int, trace: RunTrace) -> None:
    """Record a Python interpreter started by absolute path, which no stub can replace."""
    try:
        shell_words = [visible(word) for word in shlex.split(text)]
    except ValueError:
        return
    trace.commands.append(
        StartedProgram(
            kind="python",
            words=tuple(Word(word, number) for word in shell_words),
            own=len(shell_words) - 1,
            line=number,
            environment=_words_of_line(trace.values, number),
            identity=f"python-{len(trace.commands)}",
        )
    )


def _record(text: str, trace: RunTrace) -> None:
    """Record a call to a stub: the replaced program, and its words, variables and files."""
    head, *parts = _TRACED_LINE.sub("", text).split("\034")
    fields = head.split("\037")
    if fields[0] == "exit":
        trace.exit_code = _exit_code(fields[1:])
    elif len(fields) == _NUM_FIELDS and len(parts) == _NUM_PARTS:
        _record_program(fields, parts, trace)


_TRACED_LINE = re.compile("^\001+[^\n]*\n?", re.MULTILINE)
"""Matches a line from the bash trace that interrupts a record."""
_NUM_FIELDS = 6
_NUM_PARTS = 3
"""How many parts a record has, as stubs/record.sh writes it."""


def _record_program(fields: Sequence[str], parts: Sequence[str], trace: RunTrace) -> None:
    """Add the program described by a record, in its fields and the parts after them."""
    kind, path, identity, parent, _, num_own_words = fields
    shell_words, variables, files = (visible_parts(part) for part in parts)
    shell_words = shell_words[:-1]
    if kind == "unknown" and shell_words:
        path, *shell_words = shell_words
        num_own_words = str(len(shell_words))
    num_own = len(shell_words)
    if is_count(num_own_words):
        num_own = int(num_own_words)
    line = _line_of_call(path, parent, trace)
    environment = dict(trace.values)
    for item in variables:
        name, equals, value = item.partition("=")
        if equals:
            environment[name] = value
    program = StartedProgram(
        kind=kind,
        words=tuple(Word(word, line) for word in (path, *shell_words)),
        own=num_own,
        line=line,
        environment=_words_of_line(environment, line),
        identity=identity,
        parent=parent,
        files=dict(zip(files[0:-1:2], files[1::2], strict=False)),
    )
    trace.commands.append(program)
    if kind in ("unknown", "submit", "step", "starter", "python"):
        _forget_prefix_assignments(line, trace)


def _words_of_line(values: Mapping[str, str], line: int) -> dict[str, Word]:
    """Return the variable values in a command as words, all on the same line."""
    return {name: Word(value, line) for name, value in values.items()}


def _exit_code(fields: Sequence[str]) -> int | None:
    """Return the exit code from a job, or None if it reached the time limit or reported none."""
    if not fields or not is_count(fields[0]):
        return None
    code = int(fields[0])
    if code in _STOPPED:
        return None
    return code


_STOPPED = (124, 137)
"""Exit codes from `timeout` after SIGTERM and after SIGKILL."""


def _line_of_call(path: str, parent: str, trace: RunTrace) -> int:
    """Return the line that last started a program, or else the line for its parent program.

    The result is 0 if neither line is known.
    """
    called = path.rpartition("/")[2]
    for name, number in reversed(trace.steps):
        if name == called:
            if number:
                return number
            break
    for command in trace.commands:
        if command.identity == parent:
            return command.line
    return 0


def _forget_prefix_assignments(line: int, trace: RunTrace) -> None:
    """Drop variables set on the same line as a program.

    NAME=value before a command applies only to that command.
    """
    for setting in trace.settings:
        if setting.line == line and not setting.exported:
            trace.values.pop(setting.name, None)


def visible_parts(text: str) -> list[str]:
    """Return the parts in a record without control characters, which could come from a script."""
    return [visible(part) for part in text.split("\037")]


def _unquoted(text: str) -> str | None:
    """Return a word from the bash trace without quotes, or None if there is more than one word."""
    ansi_quoted = re.fullmatch(r"\$'((?:[^'\\]|\\.)*)'", text, re.DOTALL)
    if ansi_quoted:
        escaped = ansi_quoted[1]
        try:
            return codecs.decode(escaped.encode("latin-1", "backslashreplace"), "unicode_escape")
        except ValueError:
            return escaped
    try:
        shell_words = shlex.split(text)
    except ValueError:
        return None
    if len(shell_words) > 1:
        return None
    return "".join(shell_words)
