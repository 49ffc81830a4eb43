"""Shared file systems of a site, what a person deploys them with, and what its document measured on them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from runbook.params.kinds import NonNegative, Strict
from runbook.units import parse_bytes

Size = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)]


class Tier(Strict):
    """One kind of a file system that is sold by speed; `write_bandwidth` of the site has its speed by the same name."""

    size: Size
    """The size that the site's speed of this tier belongs to."""

    sku: str
    """Its name in the deployment."""

    stated_minutes: NonNegative = 0.0
    """What the site's document says a 175B checkpoint takes; 0: nothing."""


class Volume(Strict):
    """A shared file system."""

    title: str
    """What it is."""

    path: str
    """Where it is mounted; may hold {stage}."""

    size: Size = 0
    """Its size; 0: that of the tier, or not known."""

    holds: list[str] = []
    """What the run puts there: home, images, data, checkpoints."""

    tiers: dict[str, Tier] = {}
    """Speeds and sizes it is sold in; `jobs.storage` chooses, the first is taken otherwise."""

    deployment: dict[str, Any] = {}
    """The entry that a cluster's configuration has for it, word for word."""


class Timing(Strict):
    """How long something took where the document's authors did it."""

    what: str
    """What was done."""

    seconds: NonNegative
    """How long it took."""

    bytes: Size = 0
    """How much was moved; 0: not said."""

    like: str = ""
    """What of a run compares with it: data (its token files); empty: nothing."""

    machine: str = ""
    """Which machine."""
