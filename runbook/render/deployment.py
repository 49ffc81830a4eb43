"""What a person deploys a cluster with: variables of its machines and storage, entries of its shared file systems."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from runbook.params import Settings
from runbook.plan.volumes import TEBIBYTE, chosen_tier
from runbook.render.templating import quote, variable


def deployment_files(settings: Settings) -> Mapping[str, str]:
    """`deployment.env` where the site has variables, `shared-storage.yaml` where its volumes have entries."""
    files = {}
    values = deployment_values(settings)
    if values:
        lines = [f"export {variable(name)}={quote(value)}" for name, value in values.items()]
        files["deployment.env"] = "\n".join([_head(settings, "Source it before the deployment."), *lines]) + "\n"
    entries = [volume.deployment for volume in settings.site.volumes.values() if volume.deployment]
    if entries:
        text = yaml.safe_dump({"SharedStorage": entries}, sort_keys=False)
        files["shared-storage.yaml"] = f"{_head(settings, 'Put it into the configuration of the cluster.')}\n{text}"
    return files


def deployment_values(settings: Settings) -> dict[str, str]:
    """The site's variables, with those of the storage tier that the run chose; sizes in TiB."""
    site = settings.site
    values = dict(site.deployment)
    _, tier = chosen_tier(site, settings.run.jobs.storage)
    if values and tier is not None:
        values |= {"AMLFS_SKU": tier.sku, "AMLFS_SIZE": f"{tier.size / TEBIBYTE:g}"}
    return values


def _head(settings: Settings, what: str) -> str:
    return f"# Site {settings.site.site}, written by runbook from params/sites/{settings.site.site}.yaml. {what}"
