"""Log reader for Megatron-LM and its descendants: Megatron-DeepSpeed, gpt-neox, Bridge, Primus."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from runbook.log_readers.record import OVERFLOW, Assembly, LineReader, Record, number, whole

_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d) \d\d:\d\d:\d\d(\.\d+)?\]")
_CAUSAL_SINCE = "2025-03-06"
"""Date of the commit (8873b55d6a) since which Megatron-LM counts only the causal half of the attention scores."""
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
"""How a whole value ends; one that ends otherwise at the end of a line without a bar was cut off."""


def canonical(key: str) -> str:
    """A key without its dress, so that wrapped, underlined and spaced forms are one.

    >>> canonical(" elapsed_time_per_iteration_ms"), canonical(" lm-loss"), canonical(" tokens per gpu per second(tgs)")
    ('elapsedtimeperiterationms', 'lmloss', 'tokenspergpupersecond(tgs)')
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
"""Keys that only one of Megatron's descendants prints."""
NVIDIA = "throughputpergpu(tflop/s/gpu)"
"""A key of Megatron-LM's own; a log with it is no Megatron-DeepSpeed's, whatever a fork added to the line."""


def meaning(key: str) -> str:
    """Which of our fields a key stands for; empty for one that is not ours.

    >>> meaning(" throughput per GPU (TFLOP/s/GPU)"), meaning(" tokens per GPU (tokens/s/GPU)"), meaning(" num zeros")
    ('tflops', 'tokens_per_second', '')
    >>> meaning(" tokens/sec/gpu"), meaning(" tokens/sec"), meaning(" tokens per gpu per second(tgs)")
    ('tokens_per_second', 'all_tokens_per_second', 'tokens_per_second')
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
    """An expression that matches records with exactly these keys in this order, each ended by a bar.

    Its groups are our fields. `rate_first`: gpt-neox's samples/sec stand before the iteration.
    """
    pattern = r"(?P<prefix>[^|]*?\s|)iteration\s*=?\s*(?P<iteration>\d+)\s*/\s*\d+\s*\|"
    if rate_first:
        pattern = (
            r"(?P<prefix>[^|]*?)samples/sec:\s*(?P<samples_per_second>[\d.]+)\s*\|"
            r"\s*iteration\s*(?P<iteration>\d+)\s*/\s*\d+\s*\|"
        )
    for piece in text.split("|")[:-1]:
        key, sign, _ = piece.partition(":" if ":" in piece else "=")
        meant = meaning_of(key)
        if not sign:
            return None
        value = r"[^|]*\|"
        if meant and f"(?P<{meant}>" not in pattern:
            unit = "(?:[KMGTP]FLOPS)?" if meant == "tflops" else ""
            value = rf"\s*(?P<{meant}>[-+.\deE]+{unit}) \|"
        pattern += re.escape(key) + sign + value
    return re.compile(pattern + r"\s*$")


def convention(
    family: str, arguments: Mapping[str, str], values: Mapping[str, str], prefix: str
) -> str:
    """The name of the formula behind a record's TFLOP/s, as far as the log tells.

    Megatron-LM changed its formula without changing its line: a log older than the change is `megatron-full`; one with
    microseconds in its time stamp and Megatron-LM's own list of arguments is newer; any other may be either, as our own
    trainer prints the same line in the full convention. Megatron-DeepSpeed's factor is in its arguments.
    """
    if family in ("gpt-neox", "megatron-bridge"):
        return family
    if "tflops_lm" in values:
        return "megatron-full"
    if family == "megatron-deepspeed":
        recompute = arguments.get("recompute_granularity", "None") != "None"
        checkpoint = arguments.get("checkpoint_activations")
        if checkpoint is None and "recompute_granularity" not in arguments:
            return "megatron-deepspeed"
        if recompute or checkpoint == "True":
            return "megatron-deepspeed-f4"
        return "megatron-deepspeed-f3"
    stamp = _STAMP.search(prefix)
    if stamp is not None:
        return "megatron-causal" if stamp[2] and arguments else _BY_DATE[stamp[1] >= _CAUSAL_SINCE]
    old = re.fullmatch(r"\s*\d\.\d{3}E[-+]\d+\s*", values.get("learning_rate", ""))
    return _BY_DATE[not (old and family == "megatron-lm")]


_FLOPS = re.compile(r"\s*([-+\d.eE]+)\s*([KMGTPE])FLOPS", re.IGNORECASE)
_POWERS = {"K": -9, "M": -6, "G": -3, "T": 0, "P": 3, "E": 6}


def tera(text: str) -> float | None:
    """TFLOP/s, by the unit that stands behind the number where there is one (gpt-neox prints what fits).

    >>> tera(" 941.2GFLOPS "), tera(" 112.9TFLOPS "), tera(" 455.4/456.1 "), tera("1.2PFLOPS")
    (0.9412, 112.9, 455.4, 1200.0)
    """
    found = _FLOPS.match(text)
    if found is None:
        return number(text)
    value = number(found[1])
    return None if value is None else round(value * 10.0 ** _POWERS[found[2].upper()], 12)


_HEADER = re.compile(r"\biteration\s*=?\s*(\d+)\s*/\s*(?:\d+|infinity)\s*\|")
_NEOX = re.compile(r"samples/sec:\s*([\d.]+)\s*\|\s*$")
_EVALUATION = re.compile(
    r"(?:(?P<name>validation|test)(?:-(?P<set>[\w./-]+))?\s+(?:loss|results)"
    r"(?: at iteration (?P<iteration>\d+)| at the end of training(?P<end>[^|]*))?[^|]*)\|"
    r"\s*lm[ _]loss value[:=]\s*(?P<loss>[-+.\w]+?)\s*(?:\||lm)"
    r"(?:.*?(?:PPL|ppl)(?: value)?[:=]\s*(?P<perplexity>[-+.\dEe]+))?"
)
_BRIDGE = re.compile(r"Step Time ?: ([\d.]+)s.*?GPU utilization: ([\d.]+)\s*(?:MODEL_)?TFLOP/s/GPU")
_ARGUMENT = re.compile(r"(?:^|[\s:])([a-z][a-z0-9_]+) \.{3,} ?(\S.*?)\s*$")
_STARTS = (
    "done with setup",
    "[before the start of training step]",
    "setting training iterations to",
)
_REST_OF_NUMBER = re.compile(r"\s*[\d.eE+-]+\s*(?:\||$)")
_same_float = lru_cache(maxsize=1000)(float)
"""A number that stays the same over many records is kept once."""


@dataclass
class _Pending:
    """A record whose end is not certain before the next line was seen."""

    text: str
    iteration: int
    prefix: str
    values: dict[str, str]
    open: bool
    """Not ended by a bar after its last counter."""
    line: int
    overflows: int
    rate_first: bool
    """gpt-neox: samples/sec stood before the iteration."""


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
    """Losses in this log are written with an exponent."""

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours; a record is handed on when the line after it was seen."""
        if "iteration" in line:
            starts = [header.start() for header in _HEADER.finditer(line)]
            if starts:
                return self._start_all(line, starts, out)
        if "loss value" in line:
            return self._evaluate(line, out)
        return self._other(line, out)

    def quick(self, line: str, out: Assembly) -> bool:
        """Take a line laid out like the last whole record and remarkable in nothing; all else goes the long way.

        A million lines pass here, so this is one expression match and plain assignments.
        """
        assert self.layout is not None, "asked only once a layout is known"
        found = self.layout.match(line)
        if found is None or self._overflows:
            return False
        texts = found.groupdict()
        norm = texts.get("grad_norm")
        if (
            texts["skipped"] != "0"
            or texts["nan"] != "0"
            or (norm is not None and norm == self._printed_norm)
        ):
            return False
        record = Record(int(texts["iteration"]), float(texts["loss"]), line=out.line)
        record.seconds = float(
            texts["milliseconds"] + "e-3" if "milliseconds" in texts else texts["seconds"]
        )
        if "learning_rate" in texts:
            record.learning_rate = _same_float(texts["learning_rate"])
        if "loss_scale" in texts:
            record.loss_scale = _same_float(texts["loss_scale"])
        if norm is not None:
            record.grad_norm = float(norm)
        if record.loss_scale == 0 or record.grad_norm == 0:
            return False
        record.skipped = record.nan = 0
        self._rates(record, texts, texts["prefix"])
        if record.states:
            record.states = self._shared.setdefault(record.states, record.states)
        if self.pending is not None:
            self.flush(out)
        self._printed_norm = norm
        out.add(record, texts["prefix"])
        return True

    def extend(self, line: str, out: Assembly) -> bool:
        """Join the line to the pending record where it is its rest; else hand the record on."""
        pending = self.pending
        assert pending is not None, "extend is called only while a record is pending"
        meant = pending.open or (
            "iteration" not in line
            and "|" in line
            and self._meaning_of(line.partition(":")[0].partition("|")[0])
        )
        if meant and _HEADER.search(line) is None:
            joined = pending.text + line
            values = self._values(joined)
            if len(values) > len(pending.values) or (pending.open and _REST_OF_NUMBER.match(line)):
                pending.text, pending.values, pending.open = (
                    joined,
                    values,
                    _is_open(joined, values),
                )
                return True
        self.flush(out)
        return False

    def flush(self, out: Assembly) -> None:
        """Hand on the pending record."""
        pending = self.pending
        self.pending = None
        if pending is None:
            return
        values = pending.values
        record = Record(pending.iteration, line=pending.line)
        if not values:
            out.counts["lines that begin as a record but hold no field of one"] += 1
            return
        if pending.open and (cut := self._cut_off(pending)) is not None:
            record.mark("cut_line")
            values.pop(cut, None)
        self._numbers(record, values)
        self._counters(record, pending, out.previous())
        self._rates(record, values, pending.prefix)
        out.add(record, pending.prefix)
        timed = "milliseconds" in values or "seconds" in values
        if (
            not pending.open
            and self.layout is None
            and timed
            and "skipped" in values
            and "loss" in values
        ):
            self.layout = layout_of(pending.text, self._meaning_of, rate_first=pending.rate_first)

    def _start_all(self, line: str, starts: list[int], out: Assembly) -> bool:
        """One record, or several that were glued into one line."""
        for begin, end in pairwise([0, *starts[1:], len(line)]):
            self.flush(out)
            piece = line[begin:end]
            header = _HEADER.search(piece)
            taken = header is not None and self._start(piece, header, out)
        return taken

    def _start(self, line: str, header: re.Match[str], out: Assembly) -> bool:
        prefix = line[: header.start()]
        if "Training epoch" in prefix or "Validation epoch" in prefix:
            return False
        text = line[header.end() :]
        values = self._values(text)
        if "samples/sec:" in prefix and (rate := _NEOX.search(prefix)):
            self.name = "gpt-neox"
            values["samples_per_second"] = rate[1]
            prefix = prefix[: rate.start()]
        is_open = _is_open(text, values)
        rate_first = "samples/sec:" in line[: header.start()]
        overflows = self._overflows
        self._overflows = 0
        self.pending = _Pending(
            text, int(header[1]), prefix, values, is_open, out.line, overflows, rate_first
        )
        return True

    def _values(self, text: str) -> dict[str, str]:
        values: dict[str, str] = {}
        keys = self._keys
        for piece in text.split("|"):
            key, colon, value = piece.partition(":")
            if not colon:
                key, colon, value = piece.partition("=")
                if not colon:  # version 1: `lm loss 9.4E+00`; some write `300.0 MODEL_TFLOP/s/GPU`
                    key, _, value = piece.rstrip().rpartition(" ")
                    if value.endswith("TFLOP/s/GPU"):
                        key, value = value, key
            meant = keys.get(key)
            if meant is None:
                meant = self._meaning_of(key)
            if meant and value and not value.isspace() and meant not in values:
                values[meant] = value
        return values

    def _meaning_of(self, key: str) -> str:
        meant = self._keys.get(key)
        if meant is None:
            meant = self._keys[key] = meaning(key) if len(key) < 80 else ""
            self._learn_family(canonical(key) if meant else "")
        return meant

    def _learn_family(self, key: str) -> None:
        family = FAMILY.get(key)
        if key == NVIDIA:
            self._nvidia = True
            if self.name == "megatron-deepspeed":
                self.name = "megatron-lm"
        elif (
            family
            and self.name not in ("gpt-neox", "primus")
            and not (self._nvidia and "deepspeed" in family)
        ):
            self.name = family

    def _cut_off(self, pending: _Pending) -> str | None:
        """The field whose value the end of the line may have cut; "" where only the rest is missing; None: whole."""
        last = pending.text.rpartition("|")[2]
        if not last.strip():
            return None
        key, _, value = last.partition(":") if ":" in last else last.partition("=")
        meant = self._meaning_of(key)
        if not meant:
            return "" if "nan" not in pending.values else None
        form = WHOLE.get(meant)
        if form is None or form.search(value.rstrip()):
            return None
        return meant if meant not in ("loss", "learning_rate") or self._exponents else None

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

    def _counters(self, record: Record, pending: _Pending, before: Record | None) -> None:
        values = pending.values
        record.skipped, record.nan = whole(values.get("skipped")), whole(values.get("nan"))
        if pending.overflows:
            record.mark("skipped_by_deepspeed")
            steps = pending.iteration - (before.iteration if before is not None else 0)
            told = min(
                pending.overflows, max(1, steps)
            )  # newer versions tell one overflow by two lines
            record.skipped = max(record.skipped or 0, told)
        if record.nan:
            record.mark("nan_iterations")
        if record.loss is None and not any(
            state == "cut_line" or state.endswith("_loss") for state in record.states
        ):
            record.mark("missing_loss")
            if before is not None:
                interval = pending.iteration - before.iteration
            else:
                interval = record.skipped or 0
            if record.skipped and record.skipped >= interval:
                record.mark("all_skipped")
        norm = values.get("grad_norm")
        printed = self._printed_norm
        self._printed_norm = norm
        if (
            before is None or pending.iteration <= before.iteration
        ):  # the first, or a copy by another rank
            return
        fell = (record.loss_scale or 0) < (before.loss_scale or 0)
        if (
            norm is not None
            and norm == printed
            and record.grad_norm is not None
            and (fell or record.skipped)
        ):
            record.grad_norm = None
            record.mark("stale_grad_norm")

    def _rates(self, record: Record, values: dict[str, str], prefix: str) -> None:
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
            record.samples_per_second = record.tokens_per_second = record.tflops = (
                record.tflops_convention
            ) = None
        self._use_bridge(record)

    def _samples(self, record: Record, values: dict[str, str]) -> None:
        """Samples per second, where batch size and seconds do not contradict them."""
        record.samples_per_second = number(values["samples_per_second"])
        batch = number(values.get("batch"))
        if record.samples_per_second is None or not batch or not record.seconds:
            return
        expected = batch / record.seconds
        if abs(record.samples_per_second - expected) > 0.02 * expected + 0.0006:
            record.samples_per_second = None
            record.mark("wrong_samples_per_second")

    def _use_bridge(self, record: Record) -> None:
        """Give a record without a speed the one that Bridge printed in a line of its own, for a step of that time."""
        if self._bridge is None or record.tflops is not None:
            return
        seconds, tflops = self._bridge
        if abs((record.seconds or 0.0) - seconds) <= 0.0051:
            record.tflops = tflops
            record.tflops_convention = "megatron-bridge"
            self._bridge = None

    def _evaluate(self, line: str, out: Assembly) -> bool:
        found = _EVALUATION.search(line)
        if found is None:
            return False
        iteration = int(found["iteration"]) if found["iteration"] else out.last_iteration()
        name = found["name"] + (f"-{found['set']}" if found["set"] else "")
        name = "test" if "test" in (found["end"] or "") else name
        out.evaluate(iteration, number(found["loss"]), number(found["perplexity"]), name)
        return True

    def _other(self, line: str, out: Assembly) -> bool:
        """Lines beside the records: arguments, starts, overflows, Bridge's step time, ends."""
        if " ..." in line and (argument := _ARGUMENT.search(line)):
            self.arguments[argument[1]] = argument[2]
            return True
        if "OVERFLOW!" in line:
            if (overflow := OVERFLOW.search(line)) and overflow[1] == "0":
                self._overflows += 1
            return False  # DeepSpeed's reader wants it as well
        if "Step Time" in line and (step := _BRIDGE.search(line)):
            self._bridge = (float(step[1]), float(step[2]))
            self.name = "megatron-bridge"
            if (before := out.previous()) is not None:
                self._use_bridge(before)
            return True
        if any(start in line for start in _STARTS):
            out.restart()
            return True
        if "exiting program" in line:
            end = line[line.index("exiting program") :].strip(" ]")[:100]
        elif "exits with return code" in line:
            end = f"a process {line[line.index('exits with return code') :].strip()[:40]}"
        elif "sigkill_handler" in line:
            end = "the launcher killed a process (sigkill_handler)"
        else:
            return "time (ms)" in line or "memory (MB)" in line
        out.counts[f"after iteration {out.last_iteration()}: {end}"] += 1
        return True


def _is_open(text: str, values: dict[str, str]) -> bool:
    return "nan" not in values or not text.rstrip().endswith("|")
