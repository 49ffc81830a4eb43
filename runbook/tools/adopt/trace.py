"""What a job did in the sandbox: its variables and the programs it started, with the lines of the script."""

import codecs
import posixpath
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from runbook.core.visible_text import visible
from runbook.jobs.directives import Directive, directives_of, options_of
from runbook.tools.adopt import namespaces
from runbook.tools.adopt.namespaces import SandboxJob, environment, filled_in, num_arguments
from runbook.tools.adopt.script import (
    FOLDER,
    Script,
    Setting,
    StartedProgram,
    Word,
    code_blocks,
    is_prose,
    not_set,
)


class LineNumbers:
    """Lines of all files that were read, numbered through."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.lines: list[str] = []
        self.first: dict[str, int] = {}
        for name, text in given.items():
            self.add(name, text)

    def add(self, name: str, text: str) -> None:
        """Number the lines of a file, once."""
        if name not in self.first:
            self.first[name] = len(self.lines) + 1
            self.lines += text.splitlines() or [""]

    @property
    def places(self) -> dict[int, str]:
        """How each line is called: `line 12`, or `payload.sh:12` where there are several files."""
        places = {0: "line 0"}
        for name, first in self.first.items():  # a later file takes its lines from the one before
            sign = "line " if len(self.first) == 1 else f"{name}:"
            places |= {
                number: f"{sign}{number - first + 1}"
                for number in range(first, len(self.lines) + 1)
            }
        last = places[max(places)]
        return defaultdict(lambda: last, places)  # a line after the last is called as the last

    def of(self, file: str, line: int, files: Mapping[str, str]) -> int:
        """The number of a file's line; 0 for a file that is not the job's."""
        name = re.sub(r"^\.block-\d+/", "", file)
        if name not in self.first:
            if file not in files:
                return 0
            self.add(name, files[file])
        return self.first[name] + line - 1


class WordLines:
    """The line of each word: where its option stands, or where the variable got its value."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.rows = [
            (number, line)
            for number, line in enumerate(lines, 1)
            if not line.lstrip().startswith("#")
        ]

    def command(self, command: StartedProgram) -> StartedProgram:
        """A command whose words know their lines."""
        if command.kind in ("quiet", "answer"):
            return command
        words = [command.words[0]]
        option = command.line
        for word in command.words[1:]:
            name, equals, _ = word.text.partition("=")
            named = (word.text.startswith("-") and len(name) > 2) or (
                equals and re.fullmatch(r"[+~\w.]+", name)
            )
            before = words[-1].text
            if named and (row := self._last(re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])"))):
                option = row[0]
                line = self._line_of_value(option, name) if equals else option
            elif before.startswith("--"):
                line = self._line_of_value(option, before)
            else:
                row = self._last(re.compile(re.escape(word.text))) if len(word.text) > 2 else None
                line = row[0] if row else option
            words.append(Word(word.text, line))
        return replace(command, words=tuple(words))

    def _last(self, pattern: re.Pattern[str]) -> tuple[int, re.Match[str]] | None:
        matches = (
            (number, match) for number, row in reversed(self.rows) if (match := pattern.search(row))
        )
        return next(matches, None)

    def _line_of_value(self, line: int, name: str) -> int:
        """Follow `--name $VARIABLE` to where the variable is set."""
        row = next((text for number, text in self.rows if number == line), "")
        variable = re.search(re.escape(name) + r"[=\s]+\\?[\"']?\$\{?([A-Za-z_]\w*)", row)
        for _ in range(5):
            sets = self._last(re.compile(rf"(?<![\w$]){variable[1]}=(.*)")) if variable else None
            if not (variable and sets):
                break
            line = sets[0]
            value = sets[1][1]
            chained = re.match(r"[\"']?\$\{?([A-Za-z_]\w*)\}?[\"']?\s*(?:[;#].*)?$", value)
            variable = chained if chained and chained[1] != variable[1] else None
        return line


_EVENT = re.compile(
    "\036([^\035]*)\035|^\001+([^\002\n]*)\002(\\d*)\002([^\003\n]*)\003(.*)$", re.MULTILINE
)
_ASSIGNS = re.compile(
    r"(?:(export|declare|typeset|local|readonly)\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)(\[[^]]*\])?(\+?)=(.*)",
    re.DOTALL,
)
_MOST_RUNS = 8
Starts = Callable[[Sequence[StartedProgram]], bool]


@dataclass
class RunTrace:
    """One run of a job."""

    commands: list[StartedProgram] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    """What each variable has now."""
    steps: list[tuple[str, int]] = field(default_factory=list)
    """Each traced command's name and line."""
    called: list[str] = field(default_factory=list)
    """Programs that were called by a full path."""
    exit_code: int | None = None
    """None where the job was stopped at the limit."""


def follow(
    files: Sequence[tuple[str, str]], beside: Mapping[str, str], starts_training: Starts
) -> Script:
    """Run the first of `files` in the sandbox, with the rest at hand, and report what it did.

    A job that ends before it starts a training is run again with what it lacked: programs called by their path,
    arguments of its own, and at last without `exit`. A job that submits another one is followed into that.
    """
    given = {name: text.replace("\r\n", "\n").replace("\0", "") for name, text in files}
    texts = {name: filled_in(name, text) for name, text in {**beside, **given}.items()}
    main = files[0][0]
    page = is_prose(given[main])
    job = SandboxJob(
        main, _page_as_job(main, given[main], texts) if page else texts, _directives(given)
    )
    numbers = LineNumbers(given)
    seen, notes = _until_it_starts(job, starts_training, numbers)
    for _ in range(2):
        if starts_training(seen.commands) or not (nested := _submitted(job, seen, numbers)):
            break
        notes.append(f"{job.main} submits {nested.main}, which was followed")
        job = nested
        earlier = seen
        seen, more = _until_it_starts(job, starts_training, numbers)
        seen = RunTrace(earlier.commands + seen.commands, earlier.settings + seen.settings)
        notes += more
    places = WordLines(numbers.lines)
    return Script(
        text="".join(f"{visible(line)}\n" for line in numbers.lines),
        directives=tuple(job.directives),
        commands=tuple(places.command(command) for command in seen.commands),
        settings=tuple(seen.settings),
        places=numbers.places,
        notes=tuple(dict.fromkeys(notes)),
    )


def _directives(given: Mapping[str, str]) -> list[Directive]:
    """The directives of all files, in the joined text's numbers."""
    directives = []
    offset = 0
    for text in given.values():
        code = text
        if is_prose(text):  # each line is in one block at most
            columns = zip_longest(
                *(block.splitlines() for block in code_blocks(text)), fillvalue=""
            )
            code = "\n".join(map("".join, columns))
        directives += [replace(entry, line=entry.line + offset) for entry in directives_of(code)]
        offset += len(text.splitlines() or [""])
    return directives


def _page_as_job(main: str, page: str, texts: Mapping[str, str]) -> dict[str, str]:
    """A page's blocks as files that one shell reads in turn; a block that bash cannot read leaves the others alone."""
    blocks = code_blocks(page)
    names = [f".block-{number}/{main}" for number in range(len(blocks))]
    return {
        **texts,
        main: "".join(f'builtin source "{FOLDER}/{name}"\n' for name in names),
        **dict(zip(names, (filled_in("", block) for block in blocks), strict=True)),
    }


def _until_it_starts(
    job: SandboxJob, starts_training: Starts, numbers: LineNumbers
) -> tuple[RunTrace, list[str]]:
    missing: list[str] = []
    arguments: list[str] = []
    keep_going = False
    notes: list[str] = []
    for _ in range(_MOST_RUNS):
        command = ["bash", job.main, *arguments]
        variables = environment(job, keep_going)
        seen = _read(
            namespaces.run_job(job.files, command, FOLDER, variables, missing), job, numbers
        )
        recorded = {command.words[0].text for command in seen.commands}
        inside = {f"{FOLDER}/{name}" for name in job.files}
        absent = [
            path
            for path in dict.fromkeys(seen.called)
            if path not in {*recorded, *inside, *missing}
        ]
        wanted = num_arguments(job)
        if absent:
            missing += absent
        elif starts_training(seen.commands):
            break
        elif wanted and not arguments:
            arguments = [not_set(f"argument_{number}") for number in range(1, wanted + 1)]
            notes.append(f"{job.main} takes {wanted} arguments, which were not given")
        elif not keep_going and seen.exit_code != 0:
            keep_going = True
            if seen.exit_code:
                gave_up = f"ended with exit code {seen.exit_code} before a training"
                notes.append(f"{job.main} {gave_up}; its `exit` was ignored")
        else:
            break
    if seen.exit_code is None:
        limits = f"{namespaces.SECONDS} s or {namespaces.MOST_BYTES >> 20} MiB of commands"
        notes.append(f"{job.main} was stopped after {limits}")
    return seen, notes


def _submitted(job: SandboxJob, seen: RunTrace, numbers: LineNumbers) -> SandboxJob | None:
    """The job that this one gives to a queue, with what it exports."""
    for command in reversed(seen.commands):
        text = command.environment.get("ADOPT_SUBMITTED", Word("", 0)).text
        if command.kind != "submit" or not text.strip():
            continue
        words = [word.text for word in command.words[1:]]
        script = next((word for word in words if word.endswith(tuple(job.files))), "submitted.sh")
        main = next(
            (name for name in job.files if script.endswith(name)), script.rpartition("/")[2]
        )
        numbers.add(main, text)
        offset = numbers.first[main] - 1
        asked = [
            replace(directive, line=directive.line + offset) for directive in directives_of(text)
        ]
        asked += options_of("slurm" if command.name == "sbatch" else "pbs", words, command.line)
        hidden = re.compile(r"(ADOPT_|SLURM_|PBS_).*|PATH|BASH_ENV|PWD|OLDPWD|SHLVL|_")
        exports = {
            name: word.text
            for name, word in command.environment.items()
            if not hidden.fullmatch(name)
        }
        return SandboxJob(main, {**job.files, main: text}, asked, exports)
    return None


def _read(raw: str, job: SandboxJob, numbers: LineNumbers) -> RunTrace:
    trace = RunTrace()
    for event in _EVENT.finditer(raw):
        if event[1] is not None:
            _record(event[1], trace)
            continue
        file = event[2]
        line = int(event[3] or 0)
        folder = event[4]
        text = event[5]
        if file.startswith("/adopt/") or text in ("builtin set +eu", ""):
            continue
        inside = posixpath.normpath(posixpath.join("/", folder, file)) if file else ""
        in_folder = inside.startswith(f"{FOLDER}/")
        name = inside.removeprefix(f"{FOLDER}/") if in_folder else file.rpartition("/")[2]
        number = numbers.of(name, line, job.files) if name else 0
        if assignment := _ASSIGNS.fullmatch(text):
            row = numbers.lines[number - 1] if 0 < number <= len(numbers.lines) else ""
            _assign(assignment, number, row, trace)
        else:
            _step(text, number, folder, trace)
    return trace


def _assign(assignment: re.Match[str], number: int, row: str, trace: RunTrace) -> None:
    """A traced assignment of the shell, and how it is written in its row."""
    keyword, name, index, more, value = assignment.groups()
    plain = None if value.startswith("(") or index else _unquoted(value)
    plain = None if plain is None else visible(plain)
    if plain is None or name in ("BASH_ENV", "PATH"):
        return
    trace.values[name] = trace.values.get(name, "") + plain if more else plain
    written = re.search(rf"(?<![\w$]){name}\+?=(\"[^\"]*\"?|'[^']*'?|[^\s;]*)", row)
    raw = written[1].strip("\"'") if written else plain
    default = bool(re.match(r"\$\{" + name + r":?[-=]", raw))
    exported = keyword == "export" or bool(re.search(rf"\bexport\b.*(?<!\w){name}\b", row))
    trace.settings.append(Setting(name, trace.values[name], number, raw, default, exported))


def _step(text: str, number: int, folder: str, trace: RunTrace) -> None:
    """A traced command of the shell: a program, whose record follows, or a builtin."""
    first, *rest = text.split() or [""]
    if first == "unset":
        for name in rest:
            trace.values.pop(name, None)
    word = _unquoted(first) or first
    trace.steps.append((word.rpartition("/")[2], number))
    is_system = word.startswith(("/usr/", "/bin/", "/sbin/", "/adopt/"))
    if "/" in word and not is_system and re.fullmatch(r"[\w./+-]+", word):
        trace.called.append(word if word.startswith("/") else f"{folder}/{word.removeprefix('./')}")


def _record(text: str, trace: RunTrace) -> None:
    """One call of a stub."""
    head, *parts = re.sub("^\001+[^\n]*\n?", "", text, flags=re.MULTILINE).split("\034")
    fields = head.split("\037")
    if fields[0] == "exit":
        code = int(fields[1]) if fields[1:2] and fields[1].isdigit() else None
        trace.exit_code = None if code in (124, 137) else code
        return
    if len(fields) != 6 or len(parts) != 3:
        return
    kind, path, identity, parent, _, own = fields
    words, variables, files = (visible_parts(part) for part in parts)
    words = words[:-1]
    environment = trace.values | dict(item.partition("=")[::2] for item in variables if "=" in item)
    if kind == "unknown" and words:
        path, *words = words
        own = str(len(words))
    line = next(
        (number for name, number in reversed(trace.steps) if name == path.rpartition("/")[2]), 0
    )
    line = line or next(
        (command.line for command in trace.commands if command.identity == parent), 0
    )
    trace.commands.append(
        StartedProgram(
            kind=kind,
            words=tuple(Word(word, line) for word in (path, *words)),
            own=int(own) if own.isdigit() else len(words),
            line=line,
            environment={name: Word(value, line) for name, value in environment.items()},
            identity=identity,
            parent=parent,
            files=dict(zip(files[0:-1:2], files[1::2], strict=False)),
        )
    )
    if kind in ("unknown", "submit", "step", "starter", "python"):
        for setting in trace.settings:  # NAME=value before the command was for this command alone
            if setting.line == line and not setting.exported:
                trace.values.pop(setting.name, None)


def visible_parts(text: str) -> list[str]:
    """The parts of a record, without the control characters that a script may put into its words."""
    return [visible(part) for part in text.split("\037")]


def _unquoted(text: str) -> str | None:
    """A word as bash's trace writes it, without its quotes; None where it is more than one word."""
    if match := re.fullmatch(r"\$'((?:[^'\\]|\\.)*)'", text, re.DOTALL):
        try:
            return codecs.decode(match[1].encode("latin-1", "backslashreplace"), "unicode_escape")
        except ValueError:
            return match[1]
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    if len(words) == 1:
        return words[0]
    if not words:
        return ""
    return None
