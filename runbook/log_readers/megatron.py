"""Log reader for Megatron-LM and its descendants: Megatron-DeepSpeed, gpt-neox, Bridge, Primus."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from runbook.log_readers.record import OVERFLOW, Assembly, LineReader, Record, number, whole

_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d) \d\d:\d\d:\d\d(\.\d+)?\]")
_CAUSAL_SINCE = "2025-03-06"
"""When commit 8873b55d6a made Megatron-LM count only the causal half of the attention scores.
"""
_BY_DATE = {False: "megatron-full", True: "megatron-full-or-causal"}
_NUMBERS = {
    name: name
    for name in ("milliseconds", "seconds", "loss", "learning_rate", "loss_scale", "grad_norm")
}
_TOKEN_RATES = {
    "tokens_per_second": "tokens_per_second_per_device",
    "all_tokens_per_second": "tokens_per_second",
}
WHOLE = {
    "loss": re.compile(r"[eE][-+]\d\d$"),
    "learning_rate": re.compile(r"[eE][-+]\d\d$"),
    "grad_norm": re.compile(r"\.\d{3}$"),
    "milliseconds": re.compile(r"\.\d$"),
    "seconds": re.compile(r"\.\d\d$"),
}
"""How a complete value ends, as a pattern by field.

In a line without a final bar, a value that does not end in this way was cut off.
"""


def canonical(key: str) -> str:
    """Return a key in a form that all its spellings share: lower case, without spaces, `_` and `-`.

    >>> canonical(" elapsed_time_per_iteration_ms"), canonical(" lm-loss")
    ('elapsedtimeperiterationms', 'lmloss')
    """
    return re.sub(r"[\s_-]+", "", key).lower()


# MindSpeed prints "gloablbatchsize".
_MEANING = {
    "elapsedtimeperiteration(ms)": "milliseconds",
    "elapsedtimeperiterationms": "milliseconds",
    "elapsedtimeperiteration(s)": "seconds",
    "elapsedtimeperiterations": "seconds",
    "elapsedtimeperiteration": "elapsed",
    "learningrate": "learning_rate",
    "globalbatchsize": "batch",
    "gloablbatchsize": "batch",
    "lmloss": "loss",
    "loss": "loss",
    "lossscale": "loss_scale",
    "gradnorm": "grad_norm",
    "numberofskippediterations": "skipped",
    "numberofnaniterations": "nan",
    "samplespersecond": "samples_per_second",
    "samples/sec": "samples_per_second",
    "consumedsamples": "samples",
    "consumedtokens": "tokens",
    "actualseqlen": "length",
    "[lm]tflops": "tflops_lm",
    "[ds]tflops": "tflops_ds",
    "tflops": "tflops",
    "tflop/s/gpu": "tflops",
    "modeltflop/s/gpu": "tflops",
    "approxflopspergpu": "tflops",
}

FAMILY = {
    "approxflopspergpu": "gpt-neox",
    "samples/sec": "gpt-neox",
    "consumedtokens": "megatron-deepspeed",
    "samplespersecond": "megatron-deepspeed",
    "actualseqlen": "megatron-deepspeed",
    "[lm]tflops": "megatron-deepspeed",
    "tokenspergpu(tokens/s/gpu)": "primus",
    "tokens/s/gpuinst/harmonicmean": "primus",
    "tflops": "megatron-deepspeed",
    "modeltflop/s/gpu": "megatron-bridge",
}
"""Programs derived from Megatron, by a key that only that program prints."""
NVIDIA = "throughputpergpu(tflop/s/gpu)"
"""A key that Megatron-LM itself prints.

A log with this key is not from Megatron-DeepSpeed, even if a fork has added keys.
"""


def meaning(key: str) -> str:
    """Return the name of our field for a printed key, or an empty string if we have none.

    >>> meaning(" throughput per GPU (TFLOP/s/GPU)"), meaning(" num zeros")
    ('tflops', '')
    >>> meaning(" tokens per GPU (tokens/s/GPU)"), meaning(" tokens per gpu per second(tgs)")
    ('tokens_per_second', 'tokens_per_second')
    >>> meaning(" tokens/sec/gpu"), meaning(" tokens/sec")
    ('tokens_per_second', 'all_tokens_per_second')
    """
    plain = canonical(key)
    if plain in _MEANING:
        return _MEANING[plain]
    if plain.endswith("(tflop/s/gpu)"):
        return "tflops"
    if plain.startswith("tokens") and ("persec" in plain or "tokens/s" in plain):
        if "gpu" in plain or "device" in plain:
            return "tokens_per_second"
        return "all_tokens_per_second"

    return ""


def layout_of(
    text: str, meaning_of: Callable[[str], str], *, rate_first: bool
) -> re.Pattern[str] | None:
    """Return a regular expression for records with exactly these keys in this order.

    Each record ends with a bar. The groups in the expression are named after our fields. Return
    None if any key in the record has no value. `rate_first` means that samples/sec comes before the
    iteration, as in gpt-neox.
    """
    pattern = r"(?P<prefix>[^|]*?\s|)iteration\s*=?\s*(?P<iteration>\d+)\s*/\s*\d+\s*\|"
    if rate_first:
        pattern = (
            r"(?P<prefix>[^|]*?)samples/sec:\s*(?P<samples_per_second>[\d.]+)\s*\|"
            r"\s*iteration\s*(?P<iteration>\d+)\s*/\s*\d+\s*\|"
        )

    for piece in text.split("|")[:-1]:
        key, sign, _ = piece.partition(":" if ":" in piece else "=")
        name = meaning_of(key)
        if not sign:
            return None
        value = r"[^|]*\|"
        if name and f"(?P<{name}>" not in pattern:
            unit = "(?:[KMGTP]FLOPS)?" if name == "tflops" else ""
            value = rf"\s*(?P<{name}>[-+.\deE]+{unit}) \|"

        pattern += re.escape(key) + sign + value

    return re.compile(pattern + r"\s*$")


def convention(
    family: str,
    arguments: Mapping[str, str],
    values: Mapping[str, str],
    prefix: str,
) -> str:
    """Return which formula was used for TFLOP/s in a record, by name, if the log reveals it.

    Megatron-LM changed its formula but not the format of its log line. Logs from before the change
    use `megatron-full`. A log with microseconds in its time stamps and the argument list from
    Megatron-LM was written after the change. Any other log may use either formula, because our own
    trainer prints the same line with the full formula. For Megatron-DeepSpeed, the factor follows
    from the arguments.
    """
    if family in ("gpt-neox", "megatron-bridge"):
        return family
    if "tflops_lm" in values:
        return "megatron-full"
    if family == "megatron-deepspeed":
        return _deepspeed_convention(arguments)
    stamp = _STAMP.search(prefix)
    if stamp is not None:
        date = stamp[1]
        microseconds = stamp[2]
        if microseconds and arguments:
            return "megatron-causal"
        return _BY_DATE[date >= _CAUSAL_SINCE]

    old_number = re.fullmatch(r"\s*\d\.\d{3}E[-+]\d+\s*", values.get("learning_rate", ""))
    is_old = old_number is not None and family == "megatron-lm"
    return _BY_DATE[not is_old]


def _deepspeed_convention(arguments: Mapping[str, str]) -> str:
    """Return the formula in Megatron-DeepSpeed: factor 4 with recomputation, 3 without."""
    granularity = arguments.get("recompute_granularity")
    checkpoint = arguments.get("checkpoint_activations")
    if granularity is None and checkpoint is None:
        return "megatron-deepspeed"
    if granularity not in (None, "None") or checkpoint == "True":
        return "megatron-deepspeed-f4"
    return "megatron-deepspeed-f3"


_FLOPS = re.compile(r"\s*([-+\d.eE]+)\s*([KMGTPE])FLOPS", re.IGNORECASE)
_POWERS = {
    "K": -9,
    "M": -6,
    "G": -3,
    "T": 0,
    "P": 3,
    "E": 6,
}


def tera(text: str) -> float | None:
    """Return TFLOP/s, using the unit after the number if there is one (gpt-neox chooses the unit).

    >>> tera(" 941.2GFLOPS "), tera(" 112.9TFLOPS "), tera(" 455.4/456.1 "), tera("1.2PFLOPS")
    (0.9412, 112.9, 455.4, 1200.0)
    """
    match = _FLOPS.match(text)
    if match is None:
        return number(text)
    value = number(match[1])
    if value is None:
        return None
    power = _POWERS[match[2].upper()]
    return round(value * 10.0**power, 12)


_HEADER = re.compile(r"\biteration\s*=?\s*(\d+)\s*/\s*(?:\d+|infinity)\s*\|")
_NEOX = re.compile(r"samples/sec:\s*([\d.]+)\s*\|\s*$")
_EVALUATION = re.compile(
    r"(?:(?P<name>validation|test)(?:-(?P<set>[\w./-]+))?\s+(?:loss|results)"
    r"(?: at iteration (?P<iteration>\d+)| at the end of training(?P<end>[^|]*))?[^|]*)\|"
    r"\s*lm[ _]loss value[:=]\s*(?P<loss>[-+.\w]+?)\s*(?:\||lm)"
    r"(?:.*?(?:PPL|ppl)(?: value)?[:=]\s*(?P<perplexity>[-+.\dEe]+))?"
)
_BRIDGE = re.compile(r"Step Time ?: ([\d.]+)s.*?GPU utilization: ([\d.]+)\s*(?:MODEL_)?TFLOP/s/GPU")
_ARGUMENT = re.compile(r"(?:^|[\s:])([a-z][a-z0-9_]+) (\.{3,})(?: |(?!/))(\S.*?)\s*$")
MIN_ARGUMENT_WIDTH = 25
"""Programs pad argument names with dots to 29 columns or more. A sentence with an ellipsis,
such as `invalid usage ... Last NCCL warning`, is shorter.
"""
_STARTS = (
    "done with setup",
    "[before the start of training step]",
    "setting training iterations to",
)
_REST_OF_NUMBER = re.compile(r"\s*[\d.eE+-]+\s*(?:\||$)")
_same_float = lru_cache(maxsize=1000)(float)
"""Like `float`, except that equal numbers in many records share an object."""


@dataclass
class _Pending:
    """A record that may continue on the next line."""

    text: str
    iteration: int
    prefix: str
    values: dict[str, str]
    open: bool
    """Whether the record lacks the bar after its last counter."""
    line: int
    overflows: int
    rate_first: bool
    """Whether samples/sec comes before the iteration, as in gpt-neox."""


@dataclass
class Megatron(LineReader):
    """Reads lines with `iteration N/ M |` and fields between bars."""

    name: str = "megatron-lm"
    pending: _Pending | None = None
    layout: re.Pattern[str] | None = None
    _keys: dict[str, str] = field(default_factory=dict)
    _overflows: int = 0
    _bridge: tuple[float, float] | None = None
    _printed_norm: str | None = None
    _shared: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    _nvidia: bool = False
    _exponents: bool = False
    """Whether this log writes losses with an exponent."""

    def feed(self, line: str, out: Assembly) -> bool:
        """Read the line if it is in this format, and return whether it is.

        A record is passed on only once the next line has been read, because the record may continue
        there.
        """
        if "iteration" in line:
            starts = [header.start() for header in _HEADER.finditer(line)]
            if starts:
                return self._start_all(line, starts, out)

        if "loss value" in line:
            return self._evaluate(line, out)
        return self._other(line, out)

    def quick(self, line: str, out: Assembly) -> bool:
        """Read a line that is like the last complete record and contains nothing unusual.

        Millions of lines pass through here, so the method uses a single regular expression and
        plain assignments. Rejected lines take the slow path.
        """
        assert self.layout is not None, "called only once a layout is known"
        match = self.layout.match(line)
        if match is None or self._overflows:
            return False
        values = match.groupdict()
        norm = values.get("grad_norm")
        if values["skipped"] != "0" or values["nan"] != "0":
            return False
        if norm is not None and norm == self._printed_norm:
            return False
        record = self._quick_record(values, out.line)
        if record.loss_scale == 0 or record.grad_norm == 0:
            return False
        self._rates(record, values, values["prefix"])
        if record.states:
            record.states = self._shared.setdefault(record.states, record.states)
        if self.pending is not None:
            self.flush(out)
        self._printed_norm = norm
        out.add(record, values["prefix"])
        return True

    @staticmethod
    def _quick_record(values: Mapping[str, str], line: int) -> Record:
        """Return the record for a complete line in which no step was skipped."""
        record = Record(int(values["iteration"]), float(values["loss"]), line=line)
        if "milliseconds" in values:
            # Append an exponent, because a division would not keep the printed digits.
            record.seconds = float(values["milliseconds"] + "e-3")
        else:
            record.seconds = float(values["seconds"])

        if "learning_rate" in values:
            record.learning_rate = _same_float(values["learning_rate"])
        if "loss_scale" in values:
            record.loss_scale = _same_float(values["loss_scale"])
        if "grad_norm" in values:
            record.grad_norm = float(values["grad_norm"])
        record.skipped = 0
        record.nan = 0
        return record

    def extend(self, line: str, out: Assembly) -> bool:
        """Join the line to the pending record if it continues it. Otherwise pass the record on."""
        pending = self.pending
        assert pending is not None, "extend is called only while a record is pending"
        if self._may_be_rest(line, pending) and _HEADER.search(line) is None:
            joined = pending.text + line
            values = self._values(joined)
            has_more_fields = len(values) > len(pending.values)
            if has_more_fields or (pending.open and _REST_OF_NUMBER.match(line)):
                pending.text = joined
                pending.values = values
                pending.open = _is_open(joined, values)
                return True

        self.flush(out)
        return False

    def _may_be_rest(self, line: str, pending: _Pending) -> bool:
        """Return whether the line may belong to a wrapped record."""
        if pending.open:
            return True
        if "iteration" in line or "|" not in line:
            return False
        key = line.partition(":")[0].partition("|")[0]
        return bool(self._meaning_of(key))

    def flush(self, out: Assembly) -> None:
        """Pass on the pending record."""
        pending = self.pending
        self.pending = None
        if pending is None:
            return
        values = pending.values
        record = Record(pending.iteration, line=pending.line)
        if not values:
            out.counts["lines that begin like a record but contain none of its fields"] += 1
            return

        if pending.open:
            cut_field = self._cut_off(pending)
            if cut_field is not None:
                record.mark("cut_line")
                values.pop(cut_field, None)

        self._numbers(record, values)
        self._counters(record, pending, out.previous())
        self._rates(record, values, pending.prefix)
        out.add(record, pending.prefix)
        if self.layout is None and not pending.open and _is_whole(values):
            self.layout = layout_of(pending.text, self._meaning_of, rate_first=pending.rate_first)

    def _start_all(
        self,
        line: str,
        starts: list[int],
        out: Assembly,
    ) -> bool:
        """Start a record, or several records joined into one line."""
        for begin, end in pairwise([0, *starts[1:], len(line)]):
            self.flush(out)
            piece = line[begin:end]
            header = _HEADER.search(piece)
            is_taken = header is not None and self._start(piece, header, out)

        return is_taken

    def _start(
        self,
        line: str,
        header: re.Match[str],
        out: Assembly,
    ) -> bool:
        """Make the record that begins with this header the pending record."""
        before = line[: header.start()]
        if "Training epoch" in before or "Validation epoch" in before:
            return False
        text = line[header.end() :]
        values = self._values(text)
        prefix = before
        rate_first = "samples/sec:" in before
        rate = _NEOX.search(before) if rate_first else None
        if rate is not None:
            self.name = "gpt-neox"
            values["samples_per_second"] = rate[1]
            prefix = before[: rate.start()]

        self.pending = _Pending(
            text=text,
            iteration=int(header[1]),
            prefix=prefix,
            values=values,
            open=_is_open(text, values),
            line=out.line,
            overflows=self._overflows,
            rate_first=rate_first,
        )
        self._overflows = 0
        return True

    def _values(self, text: str) -> dict[str, str]:
        """Return the printed values by field name.

        If a field is printed twice, use its first value.
        """
        values: dict[str, str] = {}
        for piece in text.split("|"):
            key, value = _split_field(piece)
            name = self._meaning_of(key)
            if name and value and not value.isspace() and name not in values:
                values[name] = value

        return values

    def _meaning_of(self, key: str) -> str:
        """Return the name of our field for a printed key, or an empty string.

        If the key is new, also check whether it reveals the program that wrote the log.
        """
        name = self._keys.get(key)
        if name is None:
            name = meaning(key) if len(key) < 80 else ""
            self._keys[key] = name
            self._learn_family(canonical(key) if name else "")

        return name

    def _learn_family(self, key: str) -> None:
        if key == NVIDIA:
            self._nvidia = True
            if self.name == "megatron-deepspeed":
                self.name = "megatron-lm"
            return

        family = FAMILY.get(key)
        if not family or self.name in ("gpt-neox", "primus"):
            return
        if self._nvidia and "deepspeed" in family:
            return
        self.name = family

    def _cut_off(self, pending: _Pending) -> str | None:
        """Return which field, by name, may have been cut off at the end of the line.

        The result is '' if only whole fields are missing, and None if nothing is missing.
        """
        last = pending.text.rpartition("|")[2]
        if not last.strip():
            return None
        if ":" in last:
            key, _, value = last.partition(":")
        else:
            key, _, value = last.partition("=")

        name = self._meaning_of(key)
        if not name:
            return "" if "nan" not in pending.values else None
        whole_end = WHOLE.get(name)
        if whole_end is None or whole_end.search(value.rstrip()):
            return None
        if name in ("loss", "learning_rate") and not self._exponents:
            return None
        return name

    def _numbers(self, record: Record, values: dict[str, str]) -> None:
        if "elapsed" in values and "milliseconds" not in values and "seconds" not in values:
            record.mark("unknown_unit_of_time")
        record.read(values, _NUMBERS)
        self._exponents = self._exponents or "E" in values.get("loss", "")
        if record.loss_scale is not None and record.loss_scale <= 0:
            record.loss_scale = None
            record.mark("no_loss_scale")

        if record.grad_norm == 0:
            record.grad_norm = None
            record.mark("no_grad_norm")

    def _counters(
        self,
        record: Record,
        pending: _Pending,
        before: Record | None,
    ) -> None:
        """Set how many iterations were skipped or NaN, and the fields that depend on this."""
        record.skipped = whole(pending.values.get("skipped"))
        record.nan = whole(pending.values.get("nan"))
        if pending.overflows:
            self._add_overflows(record, pending, before)
        if record.nan:
            record.mark("nan_iterations")
        if record.loss is None and not _tells_lost_loss(record):
            record.mark("missing_loss")
            interval = record.skipped or 0
            if before is not None:
                interval = pending.iteration - before.iteration
            if record.skipped and record.skipped >= interval:
                record.mark("all_skipped")

        self._drop_stale_norm(record, pending, before)

    @staticmethod
    def _add_overflows(record: Record, pending: _Pending, before: Record | None) -> None:
        """Count the steps that DeepSpeed skipped.

        Newer versions print two lines for each overflow.
        """
        record.mark("skipped_by_deepspeed")
        last_iteration = before.iteration if before is not None else 0
        num_steps = max(1, pending.iteration - last_iteration)
        overflows = min(pending.overflows, num_steps)
        record.skipped = max(record.skipped or 0, overflows)

    def _drop_stale_norm(
        self,
        record: Record,
        pending: _Pending,
        before: Record | None,
    ) -> None:
        """Drop a gradient norm that a skipped step repeats from the previous record."""
        norm = pending.values.get("grad_norm")
        printed_before = self._printed_norm
        self._printed_norm = norm
        if before is None or pending.iteration <= before.iteration:
            # This is the first record, or a copy printed by another rank.
            return

        if norm is None or norm != printed_before or record.grad_norm is None:
            return
        scale_fell = (record.loss_scale or 0) < (before.loss_scale or 0)
        if scale_fell or record.skipped:
            record.grad_norm = None
            record.mark("stale_grad_norm")

    def _rates(
        self,
        record: Record,
        values: dict[str, str],
        prefix: str,
    ) -> None:
        """Set throughput and TFLOP/s in the record if the line contains them."""
        record.read(values, _TOKEN_RATES)
        if "tflops" in values:
            record.tflops = tera(values["tflops"])
        elif "tflops_lm" in values:
            record.tflops = tera(values["tflops_lm"])
            record.mark("two_tflops_formulas")

        if record.tflops is not None:
            record.tflops_convention = convention(self.name, self.arguments, values, prefix)
        if "samples_per_second" in values:
            self._samples(record, values)
        if "all_skipped" in record.states:
            record.drop_rates()
        self._use_bridge(record)

    def _samples(self, record: Record, values: dict[str, str]) -> None:
        """Set the samples per second, unless the batch size and step time contradict them."""
        record.samples_per_second = number(values["samples_per_second"])
        batch = number(values.get("batch"))
        if record.samples_per_second is None or not batch or not record.seconds:
            return
        expected = batch / record.seconds
        if abs(record.samples_per_second - expected) > 0.02 * expected + 0.0006:
            record.samples_per_second = None
            record.mark("wrong_samples_per_second")

    def _use_bridge(self, record: Record) -> None:
        """Give a record without TFLOP/s the value that Megatron Bridge printed on a separate line.

        The step time in both lines shows whether they belong together.
        """
        if self._bridge is None or record.tflops is not None:
            return
        seconds, tflops = self._bridge
        if abs((record.seconds or 0.0) - seconds) <= 0.0051:
            record.tflops = tflops
            record.tflops_convention = "megatron-bridge"
            self._bridge = None

    def _evaluate(self, line: str, out: Assembly) -> bool:
        match = _EVALUATION.search(line)
        if match is None:
            return False
        iteration = out.last_iteration()
        if match["iteration"]:
            iteration = int(match["iteration"])
        name = match["name"]
        if match["set"]:
            name = f"{name}-{match['set']}"
        if "test" in (match["end"] or ""):
            name = "test"
        out.evaluate(iteration, number(match["loss"]), number(match["perplexity"]), name)
        return True

    def _other(self, line: str, out: Assembly) -> bool:
        """Read a line between records, such as an argument, a start, an overflow or an end."""
        argument = _ARGUMENT.search(line) if " ..." in line else None
        if argument is not None and len(argument[1] + argument[2]) >= MIN_ARGUMENT_WIDTH:
            self.arguments[argument[1]] = argument[3]
            return True

        if "OVERFLOW!" in line:
            overflow = OVERFLOW.search(line)
            if overflow is not None and overflow[1] == "0":
                self._overflows += 1
            # The DeepSpeed reader needs this line too.
            return False

        bridge = _BRIDGE.search(line) if "Step Time" in line else None
        if bridge is not None:
            self._take_bridge(bridge, out)
            return True

        if any(start in line for start in _STARTS):
            out.restart()
            return True

        ending = _ending(line)
        if ending is None:
            return "time (ms)" in line or "memory (MB)" in line
        out.counts[f"after iteration {out.last_iteration()}: {ending}"] += 1
        return True

    def _take_bridge(self, match: re.Match[str], out: Assembly) -> None:
        """Keep the step time and TFLOP/s in a Bridge line for the previous or the next record."""
        self._bridge = (float(match[1]), float(match[2]))
        self.name = "megatron-bridge"
        before = out.previous()
        if before is not None:
            self._use_bridge(before)


def _is_open(text: str, values: Mapping[str, str]) -> bool:
    """Return whether a record is incomplete because it lacks the NaN counter or its final bar."""
    return "nan" not in values or not text.rstrip().endswith("|")


def _is_whole(values: Mapping[str, str]) -> bool:
    """Return whether a record has every field needed by the fast path."""
    has_time = "milliseconds" in values or "seconds" in values
    return has_time and "skipped" in values and "loss" in values


def _split_field(piece: str) -> tuple[str, str]:
    """Split the text between two bars into key and value."""
    for sign in (":", "="):
        if sign in piece:
            key, _, value = piece.partition(sign)
            return key, value

    # version 1 writes `lm loss 9.4E+00`
    key, _, value = piece.rstrip().rpartition(" ")
    # Some programs write `300.0 MODEL_TFLOP/s/GPU`
    if value.endswith("TFLOP/s/GPU"):
        return value, key
    return key, value


def _tells_lost_loss(record: Record) -> bool:
    """Return whether a state already explains why the record has no loss."""
    return any(state == "cut_line" or state.endswith("_loss") for state in record.states)


RETURN_CODE = "exits with return code"
SIGKILL = "sigkill_handler"
ENDINGS = (RETURN_CODE, SIGKILL)
"""Messages from launchers that name no cause, but may match a failure rule."""


def _ending(line: str) -> str | None:
    """Return what the program says about the end of training, or None if this is another line."""
    if "exiting program" in line:
        return line[line.index("exiting program") :].strip(" ]")[:100]
    if RETURN_CODE in line:
        return f"a process {line[line.index(RETURN_CODE) :].strip()[:40]}"
    if SIGKILL in line:
        return "the launcher killed a process (sigkill_handler)"
    return None
