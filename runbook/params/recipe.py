"""How a site's container image is built: its base and the layers upon it."""

from __future__ import annotations

from runbook.params.kinds import Strict


class Recipe(Strict):
    """What a Dockerfile is written from; an empty version leaves its layer out."""

    base: str
    """Image to start from; `docker build --build-arg BASE=...` takes another."""

    tag: str
    """Name of the image that is built, before it becomes a file."""

    apt: list[str] = []
    """Debian packages."""

    pip: list[str] = []
    """Python packages, each with its version."""

    efa_installer: str = ""
    """Version of AWS's EFA installer, whose libfabric replaces the base's."""

    aws_ofi_nccl: str = ""
    """Version of the NCCL plugin for libfabric, built against it."""

    nsight_systems: str = ""
    """Version of Nsight Systems (nsys)."""

    environment: dict[str, str] = {}
    """Variables of the image."""
