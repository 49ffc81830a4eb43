"""Says why a value is what it is: who set it, what it means, what the documents call it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runbook.errors import ParamsError
from runbook.params.keys import all_keys, job_section, right_name, sections
from runbook.params.layers import Origin
from runbook.params.problems import show
from runbook.params.settings import Settings


@dataclass(frozen=True)
class Explanation:
    """All that is known of one value."""

    key: str
    value: Any
    chain: tuple[Origin, ...]
    """Every layer's word, the winning one last."""

    documents: tuple[str, ...]
    """What the five documents call it."""

    help: str
    source: str = ""
    """Where a site's value comes from."""

    def text(self) -> str:
        """The explanation in lines, for a terminal."""
        lines = [f"{self.key} = {show(self.value)}", f"  {self.help}"]
        for origin in reversed(self.chain):
            mark = "  <- this one" if origin is self.chain[-1] else ""
            lines.append(f"  {origin.layer:12s} {show(origin.value):20s} {origin.where}{mark}")
        if self.source:
            lines.append(f"  source: {self.source}")
        if self.documents:
            lines.append(f"  in the documents: {', '.join(self.documents)}")
        return "\n".join(lines)


def why(settings: Settings, key: str) -> Explanation:
    """Where the value of `key` comes from; a name of the documents is understood when it means one key."""
    name = _full_name(key)
    spec = all_keys()[name]
    fact = settings.site.facts.get(f"defaults.{name}")
    source = f"{fact.source}{f', {fact.date}' if fact.date else ''}" if fact else ""
    return Explanation(name, settings.value(name), tuple(settings.origins[name]), spec.documents, spec.help, source)


def _full_name(key: str) -> str:
    path = key.strip().split(".")
    if path[0] == "jobs" and len(path) > 1:
        try:
            path[1] = job_section(path[1])
        except ValueError as error:
            raise ParamsError(f"{key}: {error}.") from error
    name = ".".join(path)
    if name in all_keys():
        return name
    if name in sections():
        inside = [other for other in all_keys() if other.startswith(f"{name}.")]
        raise ParamsError(f"{name} is a section. Ask for one of its keys: {', '.join(inside)}.")
    ours, near = right_name(tuple(path))
    if ours in all_keys():
        return ours
    meant = f"Did you mean {ours or near}?" if ours or near else f"The sections are {', '.join(sections())}."
    raise ParamsError(f"There is no key {key}. {meant}")
