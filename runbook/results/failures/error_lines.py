"""Decides whether a line reports an error, or says that the program continues without an error.

Programs also use words like "failed" when they announce that an optional package is not installed,
print a setting, or continue without a file. These words only count in lines reporting an error.
"""

import re

EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*(?:[A-Za-z_]\w*(?:Error|Exception)|Exception)(?=:|$)"
    # A class name of any form after a module name: etcd.EtcdKeyNotFound
    r"|^[a-z_]\w*\.(?:\w+\.)*[A-Z]\w*[a-z]\w*: "
    r"|^C\+\+ exception with description "
)
"""An exception at the start of a line, with or without a message."""
MARKED = re.compile(
    r"\bNCCL WARN\b"
    # A log level, or the word that compilers and launchers put before error messages
    r"|(?:^|[\s\[(|:])(?:ERROR|FATAL|[Ff]atal|error|Error)\s?[:\])|]"
    r"|(?:^|[\s\[(|:])(?:ERROR|FATAL|CRITICAL)(?=\s)"
    r"|\b[Ff]atal error\b"
    # The letter used for errors by the loggers in TensorFlow, Abseil and PyTorch
    r"|\[?[EF]\d* tensorflow/|^\[?[EF]\d{4} |\[[EF]\d* |[\s\]]F\d{4} \d\d:\d\d:\d\d"
)
"""A line marked as an error by a program."""
LAST_WORDS = re.compile(
    # Rust and Go, Fortran run-time systems, C++, and checks in Abseil and glog
    r"\bpanicked at\b|^panic: |^forrtl: severe|^Fortran runtime error|^Error termination\b"
    r"|^\s*what\(\): |\bCheck fail(?:ed|ure stack trace):"
    r"|(?:^|[\s\[(|:])FATAL(?=[\s:\])|])|^\[?F\d{4} \d\d:"
)
"""Last lines from a program in a language other than Python, or a line marked as fatal."""
_RAISED = re.compile(
    r"(?:^|[\s(])(?:\w+\.)*[A-Z]\w*(?:Error|Exception)\b(?!\()|(?:^|[\s(])Exception: "
    # The message from a C++ exception, or a statement at the end of a truncated log
    r"|^\s*what\(\): |^\s*raise [\w.]+\("
)
"""An exception anywhere in a line, since loggers and other ranks print text before it."""
_CONTINUES = re.compile(
    # How a program says that it continues without something
    r"(?i:\bfall(?:s|ing)? back\b|\bproceed(?:s|ing)? without\b|\bcontinu(?:es|ing) without\b"
    r"|\binstead\b|\b(?:is|are|will be) ignored\b|\bignoring\b"
    # When a step is skipped after an overflow, the message contains the loss scale, which may be at
    # its minimum.
    r"|\bskip(?:s|ped|ping)? (?:the|this|that|a|one) (?:batch|sample|example|update|iteration)\b"
    r"|\bskipping\b(?! step[,.] (?:loss scaler|attempted loss scale))"
    r"|\b(?:will|going to) (?:retry|try again|be retried)\b|\bretrying\b"
    r"|\bstart(?:s|ing)? (?:from|at) (?:scratch|random|iteration 0|step 0)\b"
    r"|\b(?:using|used) (?:the )?(?:defaults?|torch|pytorch|native|slow)\b)"
)
"""A line in which a program says how it continues without something that is missing."""
_FULL_DISK = re.compile(r"No space left on device|[Qq]uota exceeded")
"""A full disk. Even if the program can continue after this failed write, the next one will fail
too."""
_ADVISES = re.compile(r"\bNCCL WARN\b")
"""The mark that NCCL puts on warnings.

NCCL uses the same mark for errors and for problems it can survive.
"""
_DENIES = re.compile(
    r"\b(?:[Nn]o|[Ww]ithout(?: any)?|0) (?:\w+ )?(?:errors?|failures?|failed|NaNs?|Infs?|overflows?|timeouts?)\b"
    r"|\b(?:is|are) not an? (?:failure|error|problem)\b"
    r"|\b(?:exceeded|failed|failures|errors?|lost|full|diverged|detected)\b\"?\s?[:=]\s?(?:0|no|none|None|false|False)\b"
)
"""A line reporting that nothing has failed."""

_CONDITION = re.compile(r"^\W*(?:If|When|In case) (?:you|your|the|this|an?|any|it)\b")
"""Start of a sentence explaining when an error appears."""
_POSSIBILITY = re.compile(
    r"\b(?:can|may|might|could|would) (?:yield|cause|lead to|result in|raise|produce|trigger)\b"
)
"""A warning about something that may go wrong later."""
_NAMED_EXCEPTION = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")
_OPTION = re.compile(r"\s--[A-Za-z][\w.-]*")
MIN_OPTIONS = 4
"""A line with at least this many options counts as a command, since error messages quote only one
or two.
"""
_END_OF_COMMAND = re.compile(r"\bline \d+: +\d+ [A-Z]|\bexit|\breturn")
"""A shell or launcher reports that a command ended, and repeats the options in the same line."""


def reports_error(text: str) -> bool:
    """Return whether a line is marked as an error, or names an exception.

    >>> reports_error("ImportError: flash_attn is not installed")
    True
    >>> reports_error("flash_attn is not installed")
    False
    """
    return bool(MARKED.search(text) or _RAISED.search(text))


def continues(text: str) -> bool:
    """Return whether a line says that the program continues, and does not report an error.

    >>> continues("Apex is not installed. Falling back to Torch Norm")
    True
    >>> continues("slurmstepd: error: couldn't chdir to /a: going to /tmp instead")
    False
    """
    if not _CONTINUES.search(text) or _FULL_DISK.search(text):
        return False
    return not reports_error(_ADVISES.sub("", text))


def supposes(text: str) -> bool:
    """Return whether a line says what may go wrong, or what to do in that case.

    >>> supposes("If you get `CUDA error: invalid device function`, rebuild the extension")
    True
    >>> supposes("When the worker started: OSError: [Errno 28] No space left on device")
    False
    """
    if _CONDITION.match(text):
        return not _NAMED_EXCEPTION.search(text)
    return bool(_POSSIBILITY.search(text)) and not reports_error(text)


def echoes_command(text: str) -> bool:
    """Return whether a line repeats a command with options, but not how the command ended.

    >>> echoes_command("deepspeed train.py --zero 2 --no-pipeline-parallel --checkpoint 1 --fp16")
    True
    >>> echoes_command("job.sh: line 9:  4711 Killed  python train.py --a 1 --b 2 --c 3 --d 4")
    False
    """
    if "--" not in text or len(_OPTION.findall(text)) < MIN_OPTIONS:
        return False
    return not reports_error(text) and not _END_OF_COMMAND.search(text)


def denies_failure(text: str) -> bool:
    """Return whether a line says that nothing failed.

    >>> denies_failure("No NaNs detected in the gradients")
    True
    """
    return bool(_DENIES.search(text)) and not reports_error(text)
