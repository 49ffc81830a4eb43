"""Megatron-LM of all generations, and what descends from it: Megatron-DeepSpeed, gpt-neox, Bridge, Primus."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from runbook.analysis.parsers.assembly import Assembly
from runbook.analysis.parsers.megatron_fields import (
    EXPONENT,
    FAMILY,
    NVIDIA,
    WHOLE,
    Layout,
    canonical,
    convention,
    count,
    layout_of,
    meaning,
    tera,
)
from runbook.analysis.parsers.record import Record, finite, milliseconds, number

_HEADER = re.compile(r"\biteration\s*=?\s*(\d+)\s*/\s*(?:\d+|infinity)\s*\|")
_NEOX = re.compile(r"samples/sec:\s*([\d.]+)\s*\|\s*$")
_EVALUATION = re.compile(
    r"(?:(?P<name>validation|test)(?:-(?P<set>[\w./-]+))?\s+(?:loss|results)"
    r"(?: at iteration (?P<iteration>\d+)| at the end of training(?P<end>[^|]*))?[^|]*)\|"
    r"\s*lm[ _]loss value[:=]\s*(?P<loss>[-+.\w]+?)\s*(?:\||lm)"
    r"(?:.*?(?:PPL|ppl)(?: value)?[:=]\s*(?P<perplexity>[-+.\dEe]+))?"
)
_BRIDGE = re.compile(r"Step Time ?: ([\d.]+)s.*?GPU utilization: ([\d.]+)\s*(?:MODEL_)?TFLOP/s/GPU")
_OVERFLOW = re.compile(r"OVERFLOW! Rank (\d+) Skipping step")
_ARGUMENT = re.compile(r"(?:^|[\s:])([a-z][a-z0-9_]+) \.{3,} ?(\S.*?)\s*$")
_STARTS = ("done with setup", "[before the start of training step]", "setting training iterations to")
_REST_OF_NUMBER = re.compile(r"\s*[\d.eE+-]+\s*(?:\||$)")


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
    rate_first: bool = False
    """gpt-neox: samples/sec stood before the iteration."""


@dataclass
class Megatron:
    """Reads lines with `iteration N/ M |` and fields between bars."""

    name: str = "megatron-lm"
    pending: _Pending | None = None
    layout: Layout | None = None
    arguments: dict[str, str] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)
    _overflows: int = 0
    _bridge: tuple[float, float] | None = None
    _printed_norm: str | None = None
    _floats: dict[str, float] = field(default_factory=dict)
    _shared: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    _nvidia: bool = False
    _exponents: bool = False
    """Losses in this log are written with an exponent."""

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours; a record is handed on when the line after it was seen."""
        if "iteration" in line:
            header = _HEADER.search(line)
            if header is not None:
                return self._start_all(line, header, out)
            if "loss value" in line:
                return self._evaluate(line, out)
        elif "loss value" in line:
            return self._evaluate(line, out)
        return self._other(line, out)

    def quick(self, line: str, out: Assembly) -> bool:
        """Take a line laid out like the last whole record and remarkable in nothing; all else goes the long way.

        A million lines pass here, so this is one expression match and plain assignments.
        """
        assert self.layout is not None, "asked only once a layout is known"
        found = self.layout.pattern.match(line)
        if found is None or self._overflows:
            return False
        texts = dict(zip(self.layout.fields, found.groups(), strict=True))
        norm = texts.get("grad_norm")
        if texts["skipped"] != "0" or texts["nan"] != "0" or (norm is not None and norm == self._printed_norm):
            return False
        record = Record(int(texts["iteration"]), float(texts["loss"]), line=out.line)
        record.seconds = float(texts["milliseconds"] + "e-3" if "milliseconds" in texts else texts["seconds"])
        record.learning_rate = self._same_float(texts.get("learning_rate"))
        record.loss_scale = self._same_float(texts.get("loss_scale"))
        if norm is not None:
            record.grad_norm = float(norm)
        if record.loss_scale == 0 or record.grad_norm == 0:
            return False
        record.skipped = record.nan = 0
        states: list[str] = []
        self._rates(record, texts, states)
        if record.tflops is not None:
            record.tflops_convention = convention(self.name, self.arguments, texts, found[1])
        elif self._bridge is not None and self._matches_bridge(record):
            record.tflops, record.tflops_convention, self._bridge = self._bridge[1], "megatron-bridge", None
        if states:
            record.states = self._shared.setdefault(tuple(states), tuple(states))
        if self.pending is not None:
            self.flush(out)
        self._printed_norm = norm
        out.add(record, found[1])
        return True

    def _same_float(self, text: str | None) -> float | None:
        """The number; one that stays the same over many records is kept once."""
        if text is None:
            return None
        known = self._floats.get(text)
        if known is None:
            if len(self._floats) > 1000:
                self._floats.clear()
            known = self._floats[text] = float(text)
        return known

    def extend(self, line: str, out: Assembly) -> bool:
        """Join the line to the pending record where it is its rest; else hand the record on."""
        pending = self.pending
        assert pending is not None, "extend is called only while a record is pending"
        whole = not pending.open and "iteration" in line
        if not whole and ("|" in line or pending.open) and _HEADER.search(line) is None and self._continues(line):
            joined = pending.text + line
            values = self._values(joined)
            if len(values) > len(pending.values) or (pending.open and _REST_OF_NUMBER.match(line)):
                pending.text, pending.values, pending.open = joined, values, _is_open(joined, values)
                return True
        self.flush(out)
        return False

    def _continues(self, line: str) -> bool:
        assert self.pending is not None, "asked only while a record is pending"
        return self.pending.open or bool(self._meaning_of(line.partition(":")[0].partition("|")[0]))

    def flush(self, out: Assembly) -> None:
        """Hand on the pending record."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            self._emit(pending, out)

    def _start_all(self, line: str, header: re.Match[str], out: Assembly) -> bool:
        """One record, or several that were glued into one line."""
        if line.count("iteration", header.end()) == 0 or _HEADER.search(line, header.end()) is None:
            return self._start(line, header, out)
        starts = [one.start() for one in _HEADER.finditer(line)]
        for begin, end in zip([0, *starts[1:]], [*starts[1:], len(line)], strict=True):
            self.flush(out)
            piece = line[begin:end]
            found = _HEADER.search(piece)
            taken = found is not None and self._start(piece, found, out)
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
        pending = _Pending(text, int(header[1]), prefix, values, _is_open(text, values), out.line, self._overflows)
        pending.rate_first = "samples/sec:" in line[: header.start()]
        self._overflows = 0
        self.pending = pending
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
        elif family and self.name not in ("gpt-neox", "primus") and not (self._nvidia and "deepspeed" in family):
            self.name = family

    def _emit(self, pending: _Pending, out: Assembly) -> None:
        states: list[str] = []
        values = pending.values
        if not values:
            out.counts["lines that begin as a record but hold no field of one"] += 1
            return
        if pending.open and (cut := self._cut_off(pending)) is not None:
            states.append("cut_line")
            values.pop(cut, None)
        record = Record(pending.iteration, line=pending.line)
        before = out.previous()
        self._numbers(record, values, states)
        self._counters(record, pending, before, states)
        self._rates(record, values, states)
        if record.tflops is not None:
            record.tflops_convention = convention(self.name, self.arguments, values, pending.prefix)
        if "all_skipped" in states:
            record.samples_per_second = record.tokens_per_second = record.tflops = record.tflops_convention = None
        if self._bridge is not None and record.tflops is None and self._matches_bridge(record):
            record.tflops, record.tflops_convention, self._bridge = self._bridge[1], "megatron-bridge", None
        if states:
            record.states = tuple(states)
        line, out.line = out.line, pending.line
        out.add(record, pending.prefix)
        out.line = line
        timed = "milliseconds" in values or "seconds" in values
        if not pending.open and self.layout is None and timed and "skipped" in values and "loss" in values:
            self.layout = layout_of(pending.text, self._meaning_of, rate_first=pending.rate_first)

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
        return meant if meant not in EXPONENT or self._exponents else None

    def _numbers(self, record: Record, values: dict[str, str], states: list[str]) -> None:
        if "milliseconds" in values:
            record.seconds = milliseconds(values["milliseconds"])
        elif "seconds" in values:
            record.seconds = number(values["seconds"])
        elif "elapsed" in values:
            states.append("unknown_unit_of_time")
        if "loss" in values:
            record.loss = finite(number(values["loss"]), "loss", states)
            self._exponents = self._exponents or "E" in values["loss"]
        if "learning_rate" in values:
            record.learning_rate = number(values["learning_rate"])
        if "loss_scale" in values:
            record.loss_scale = number(values["loss_scale"])
            if record.loss_scale is not None and record.loss_scale <= 0:
                record.loss_scale = None
                states.append("no_loss_scale")
        if "grad_norm" in values:
            record.grad_norm = finite(number(values["grad_norm"]), "grad_norm", states)
            if record.grad_norm == 0:
                record.grad_norm = None
                states.append("no_grad_norm")

    def _counters(self, record: Record, pending: _Pending, before: Record | None, states: list[str]) -> None:
        values = pending.values
        record.skipped, record.nan = count(values.get("skipped")), count(values.get("nan"))
        if pending.overflows:
            states.append("skipped_by_deepspeed")
            steps = pending.iteration - (before.iteration if before is not None else 0)
            told = min(pending.overflows, max(1, steps))  # newer versions tell one overflow by two lines
            record.skipped = max(record.skipped or 0, told)
        if record.nan:
            states.append("nan_iterations")
        if record.loss is None and "cut_line" not in states and not any(one.endswith("_loss") for one in states):
            states.append("missing_loss")
            interval = pending.iteration - before.iteration if before is not None else record.skipped or 0
            if record.skipped and record.skipped >= interval:
                states.append("all_skipped")
        norm, printed = values.get("grad_norm"), self._printed_norm
        self._printed_norm = norm
        later = before is not None and pending.iteration > before.iteration  # not a copy by another rank
        if later and norm is not None and norm == printed and record.grad_norm is not None:
            assert before is not None, "later says so"
            fell = (record.loss_scale or 0) < (before.loss_scale or 0)
            if fell or record.skipped:
                record.grad_norm = None
                states.append("stale_grad_norm")

    def _rates(self, record: Record, values: dict[str, str], states: list[str]) -> None:
        if "tokens_per_second" in values:
            record.tokens_per_second = number(values["tokens_per_second"])
            states.append("tokens_per_second_per_device")
        elif "all_tokens_per_second" in values:
            record.tokens_per_second = number(values["all_tokens_per_second"])
        if "tflops" in values:
            record.tflops = tera(values["tflops"])
        elif "tflops_lm" in values:
            record.tflops = tera(values["tflops_lm"])
            states.append("two_tflops_formulas")
        if "samples_per_second" not in values:
            return
        record.samples_per_second = number(values["samples_per_second"])
        batch = number(values.get("batch", ""))
        if record.samples_per_second is None or not batch or not record.seconds:
            return
        expected = batch / record.seconds
        if abs(record.samples_per_second - expected) > 0.02 * expected + 0.0006:
            record.samples_per_second = None
            states.append("wrong_samples_per_second")

    def _matches_bridge(self, record: Record) -> bool:
        return self._bridge is not None and abs((record.seconds or 0.0) - self._bridge[0]) <= 0.0051

    def _evaluate(self, line: str, out: Assembly) -> bool:
        found = _EVALUATION.search(line)
        if found is None:
            return False
        loss = number(found["loss"])
        if loss is None or loss != loss:
            return True
        perplexity = number(found["perplexity"] or "")
        iteration = int(found["iteration"]) if found["iteration"] else out.last_iteration()
        name = found["name"] + (f"-{found['set']}" if found["set"] else "")
        if "test" in (found["end"] or ""):
            name = "test"
        out.evaluate(iteration, loss, perplexity, name)
        return True

    def _other(self, line: str, out: Assembly) -> bool:
        """Lines beside the records: arguments, starts, overflows, Bridge's step time, ends."""
        if " ..." in line and (argument := _ARGUMENT.search(line)):
            self.arguments[argument[1]] = argument[2]
            return True
        if "OVERFLOW!" in line:
            if (overflow := _OVERFLOW.search(line)) and overflow[1] == "0":
                self._overflows += 1
            return False  # DeepSpeed's reader wants it as well
        if "Step Time" in line and (step := _BRIDGE.search(line)):
            self._bridge, self.name = (float(step[1]), float(step[2])), "megatron-bridge"
            before = out.previous()
            if before is not None and before.tflops is None and self._matches_bridge(before):
                before.tflops, before.tflops_convention, self._bridge = self._bridge[1], "megatron-bridge", None
            return True
        if any(start in line for start in _STARTS):
            out.restart()
            return True
        if "exiting program" in line or "sigkill_handler" in line or "exits with return code" in line:
            _ended(line, out)
            return True
        return "time (ms)" in line or "memory (MB)" in line


def _ended(line: str, out: Assembly) -> None:
    after = f"after iteration {out.last_iteration()}"
    if "exiting program" in line:
        out.counts[f"{after}: {line[line.index('exiting program') :].strip(' ]')[:100]}"] += 1
    elif "exits with return code" in line:
        out.counts[f"{after}: a process {line[line.index('exits with return code') :].strip()[:40]}"] += 1
    else:
        out.counts[f"{after}: the launcher killed a process (sigkill_handler)"] += 1


def _is_open(text: str, values: dict[str, str]) -> bool:
    return "nan" not in values or not text.rstrip().endswith("|")
