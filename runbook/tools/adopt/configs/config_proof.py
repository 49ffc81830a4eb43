"""Proves that a configuration was adopted: compares each value with the one in the run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from runbook.tools.adopt.configs.adopt_config import our_values
from runbook.tools.adopt.configs.config_file import ConfigValue
from runbook.tools.adopt.configs.program_config import ProgramConfig
from runbook.tools.adopt.configs.rows import (
    FOLDERS,
    LOGGING,
    MODEL_CLASS,
    OWN_CLASS,
    PERFORMANCE,
    PROFILE,
    CarriedKey,
    DroppedKey,
    KeyRow,
)
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.option_importance import Importance
from runbook.tools.adopt.proof import OptionVerdict, ProvenOption, RenderedPhase, same_value

_LOGGING_REASONS = (LOGGING, PROFILE)
_SITE_REASONS = (PERFORMANCE, FOLDERS, OWN_CLASS, MODEL_CLASS)
_SITE_KEYS = ("jobs.", "training.save", "training.keep", "training.async")


@dataclass(frozen=True)
class _KeyVerdict:
    """The result of comparing a key with the run file."""

    verdict: OptionVerdict
    rendered: str = ""
    """The value in the run, formatted for people."""
    why: str = ""
    """Why the values differ."""


def prove_config(
    config: ProgramConfig, findings: Findings, rendered: RenderedPhase | None
) -> list[ProvenOption]:
    """Compare a configuration with the run file, key by key.

    Keys unaccounted for come first.
    """
    last = {value.name: value for value in config.values}
    rows: list[ProvenOption] = []
    for value in config.values:
        row = config.format.row(value.name)
        if last[value.name] is not value:
            key_verdict = _verdict_of_replaced(row)
        elif row is None and _is_empty(value) and config.format.has_section(value.name):
            why = AdoptMessage.SECTION_LEFT_OUT.fill()
            key_verdict = _KeyVerdict(OptionVerdict.CHANGED, why=why)
        else:
            key_verdict = _verdict(value, row, findings, rendered)
        rows.append(_proven(value, row, key_verdict))

    rows += _added(set(last), findings)
    order = list(OptionVerdict)
    return sorted(rows, key=lambda row: (order.index(row.verdict), row.line))


def differences(config: ProgramConfig) -> list[dict[str, object]]:
    """Return a row for each difference that exists because our trainer is a different program."""
    return [
        {"what": item.topic, config.format.program: item.theirs, "here": item.ours}
        for item in config.format.differences
    ]


def _proven(value: ConfigValue, row: KeyRow | None, key_verdict: _KeyVerdict) -> ProvenOption:
    """Return the row for a key in the proof."""
    return ProvenOption(
        option=value.name,
        script=value.shown,
        rendered=key_verdict.rendered,
        verdict=key_verdict.verdict,
        why=key_verdict.why,
        line=value.line,
        known_importance=_importance(row) if row else None,
    )


def _is_empty(value: ConfigValue) -> bool:
    """Return whether a section has no keys: `train: null`, or `[job]` alone."""
    return value.known and value.value in (None, {})


def _verdict_of_replaced(row: KeyRow | None) -> _KeyVerdict:
    """Return the verdict on a key that a later line overrides."""
    if row is None:
        return _KeyVerdict(OptionVerdict.UNACCOUNTED)
    return _KeyVerdict(OptionVerdict.DROPPED, why="set again in a later line, which applies")


def _verdict(
    value: ConfigValue,
    row: KeyRow | None,
    findings: Findings,
    rendered: RenderedPhase | None,
) -> _KeyVerdict:
    """Return the verdict on a key. A key that the table lacks is unaccounted for."""
    if isinstance(row, DroppedKey):
        return _verdict_of_dropped(value, row)
    if isinstance(row, CarriedKey):
        return _verdict_of_carried(value, row, findings, rendered)
    return _KeyVerdict(OptionVerdict.UNACCOUNTED)


def _verdict_of_dropped(value: ConfigValue, row: DroppedKey) -> _KeyVerdict:
    """Return the verdict on a dropped key, which is "same" if the value has no effect."""
    if value.value is None or value.value in row.same_if:
        return _KeyVerdict(OptionVerdict.SAME)
    return _KeyVerdict(OptionVerdict.DROPPED, why=row.why)


def _verdict_of_carried(
    value: ConfigValue, row: CarriedKey, findings: Findings, rendered: RenderedPhase | None
) -> _KeyVerdict:
    """Return the verdict on a key that corresponds to a key in the run file."""
    if row.key == "model":
        return _verdict_of_model(findings)

    actual = {key: _actual(key, findings, rendered) for key in row.keys}
    text = ", ".join(f"{key}: {item}" for key, item in actual.items())
    if not value.known:
        why = f"known only while the program runs: set {' '.join(row.keys)}"
        return _KeyVerdict(OptionVerdict.DROPPED, text, why)

    expected = our_values(row, value)
    if not expected and value.value is None:
        why = f"null lets that program choose; here it is {text}"
        return _KeyVerdict(OptionVerdict.CHANGED, text, why)
    if expected and all(same_value(expected[key], actual[key]) for key in row.keys):
        return _KeyVerdict(OptionVerdict.SAME, text)

    why = _why_changed(value, row, findings, has_value=bool(expected))
    verdict = OptionVerdict.CHANGED if why else OptionVerdict.UNACCOUNTED
    return _KeyVerdict(verdict, text, why)


def _why_changed(
    value: ConfigValue, row: CarriedKey, findings: Findings, *, has_value: bool
) -> str:
    """Return why our value differs or is missing, or an empty string if no reason is known."""
    why = row.why or _why_otherwise(value, row.keys, findings)
    if why or has_value:
        return why
    return f"{value.shown} is not a value of {' '.join(row.keys)}"


def _verdict_of_model(findings: Findings) -> _KeyVerdict:
    """Return the verdict on a model name, which is "changed" if the catalogue lacks the model."""
    text = f"model: {findings.value('model')}"
    question = findings.questions.get("model", "")
    verdict = OptionVerdict.CHANGED if question else OptionVerdict.SAME
    return _KeyVerdict(verdict, text, question)


def _actual(key: str, findings: Findings, rendered: RenderedPhase | None) -> Any:
    """Return the value that the run has for a key."""
    if rendered is None or key == "gas":
        return findings.value(key, "")
    if key == "training.sequence_length":
        return rendered.phase.model.shape.sequence_length
    if key.startswith("training.shape."):
        return getattr(rendered.phase.model.shape, key.removeprefix("training.shape."))
    if key.startswith("model."):
        return getattr(rendered.settings.model, key.removeprefix("model."))
    if key == "jobs.training.devices_per_node":
        return findings.devices_per_node
    return rendered.settings.value(key)


def _why_otherwise(value: ConfigValue, keys: Sequence[str], findings: Findings) -> str:
    """Return why run and file have different values, or '' if no reason is known."""
    for key in keys:
        carried = findings.carried.get(key)
        if carried and carried.source != value.name:
            return carried.source
        if key in findings.questions:
            return findings.questions[key]
        beginnings = (f"the model's {key.removeprefix('model.')}=", value.name)
        for remark in findings.leftovers:
            if remark.text.startswith(beginnings):
                return remark.why
    return ""


def _added(names: set[str], findings: Findings) -> Iterator[ProvenOption]:
    """Yield a row for each run file value that no configuration key sets."""
    for carried in findings.carried.values():
        if carried.source in names or carried.key in ("site", "training.framework"):
            continue
        importance = Importance.SITE if carried.key.startswith("jobs.") else Importance.TRAINING
        yield ProvenOption(
            option=carried.key,
            script="",
            rendered=str(carried.value),
            verdict=OptionVerdict.ADDED,
            why=carried.source,
            line=0,
            known_importance=importance,
        )


def _importance(row: KeyRow) -> Importance:
    """Return how important a key is, based on the reason for dropping it or on our key."""
    if isinstance(row, CarriedKey):
        return _importance_of_carried(row)
    if isinstance(row, DroppedKey) and row.why in _LOGGING_REASONS:
        return Importance.LOGGING
    if isinstance(row, DroppedKey) and row.why in _SITE_REASONS:
        return Importance.SITE
    return Importance.TRAINING


def _importance_of_carried(row: CarriedKey) -> Importance:
    """Return how important a key in the run file is."""
    if row.key == "training.log_interval":
        return Importance.LOGGING
    if row.key.startswith(_SITE_KEYS):
        return Importance.SITE
    return Importance.TRAINING
