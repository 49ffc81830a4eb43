"""01-environment: which software will run, and whether the machine suffices for the plan."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runbook import shell
from runbook.display import show_table, show_text
from runbook.errors import ProgramError
from runbook.params.catalogue import SchedulerKind
from runbook.params.schema import Precision
from runbook.phases import campaign as campaigns
from runbook.phases import closing
from runbook.phases.campaign import Campaign
from runbook.phases.doctor_site import site_checks
from runbook.phases.environment_checks import MEASURED, probe_checks
from runbook.phases.environment_probe import probe
from runbook.phases.environment_setup import set_up_campaign
from runbook.phases.machine import measure
from runbook.plan import Check
from runbook.units import show_bytes, show_duration

PHASE = "01-environment"
ASK = """
import importlib.metadata as m, json, platform
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
import torch
print(json.dumps({"python": platform.python_version(), "torch": torch.__version__,
  "cuda devices": torch.cuda.device_count(),
  "bf16 on this CPU": bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()),
  **{name: version(name) for name in ("megatron-core", "deepspeed", "numpy", "tensorboard")}}))
"""


def bind(namespace: Mapping[str, Any]) -> Campaign:
    """Check the parameters and open the record."""
    return campaigns.bind(PHASE, namespace)


def prepare(campaign: Campaign) -> None:
    """Set up what the site's document sets up: checkout, image, environment; what is there is left alone."""
    rows = [
        {"step": one.title, "state": one.state, "took": show_duration(one.seconds), "makes": one.creates}
        for one in set_up_campaign(campaign)
    ]
    if rows:
        show_table(rows, title="What is set up")
    else:
        show_text(f"Site {campaign.settings.site.site} needs nothing but the package itself.")
    campaign.session.result("set_up", [{key: row[key] for key in ("step", "state", "makes")} for row in rows])


def check_site(campaign: Campaign) -> None:
    """Values, modules, queue, image, space: what can be asked from here."""
    local = campaign.settings.site.scheduler is SchedulerKind.LOCAL
    checks = site_checks(campaign.settings, campaign.plan, campaign.folder)
    campaign.check([one for one in checks if not (local and one.name.startswith("space"))])  # "disk" says it below


def check_nodes(campaign: Campaign) -> None:
    """Ask the nodes themselves, by a probe that is started as the trainer is; all of it is kept in the record."""
    facts = probe(campaign)
    for name, version in (facts[0]["packages"] if facts else {}).items():
        campaign.session.result(name, version)
    campaign.session.result("nodes", {"asked": len(facts), "speed": facts})
    settings = campaign.settings
    checks = probe_checks(facts, settings.site, campaign.plan.as_dict(), settings.run.training.framework)
    figures = [{"what": one.name, "found": one.value} for one in checks if one.name in MEASURED and facts]
    if figures:
        show_table(figures, title="What was measured now")
    # The record's verdicts are to be the same whenever nothing changed: its figures are under "nodes".
    stable = [replace(one, value="as measured") if _is_figure(one) and facts else one for one in checks]
    campaign.check(stable)


def _is_figure(check: Check) -> bool:
    return check.name in MEASURED and check.verdict == "pass"


def check_machine(campaign: Campaign) -> None:
    """Cores, memory, disk and matrix instructions against the plan."""
    campaign.check(machine_checks(campaign))


def finish(campaign: Campaign) -> None:
    """Write the record and mark the phase done."""
    closing.finish(campaign, [])


def ask_software(python: str = sys.executable) -> dict[str, Any]:
    """Versions that the trainer's Python can really import."""
    finished = shell.run([python, "-c", ASK], timeout=120)
    try:
        answer: dict[str, Any] = json.loads(finished.out.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise ProgramError(f"{python} did not say what it can import:\n{finished.out}\n{finished.err}") from error
    return answer


def machine_checks(campaign: Campaign) -> list[Check]:
    """What this machine has, against what the plan needs."""
    site, plan = campaign.settings.site, campaign.plan.as_dict()
    checks = [writable_check(campaign.folder)]
    needed = sum(
        int(spec["model"]["parameters"]) * 14 * (spec["checkpoint"]["keep"] + 1) for spec in plan["phases"].values()
    )
    free = shutil.disk_usage(campaign.folder).free
    checks.append(
        Check(
            "disk",
            "pass" if free > needed else "fail",
            f"{show_bytes(free)} free",
            f"at least {show_bytes(needed)}: checkpoints of both trainings, 14 bytes a parameter, one more than kept",
        )
    )
    machine = measure(site)
    if machine is None:
        return checks
    processes = max(spec["parallel"]["world_size"] for spec in plan["phases"].values())
    checks.append(
        Check(
            "cores",
            "pass" if machine.cores >= processes else "warn",
            f"{machine.cores} cores",
            f"one for each of {processes} processes; fewer work, slowly",
        )
    )
    if campaign.settings.run.training.precision is Precision.BF16:
        fast = any(flag.startswith(("avx512_bf16", "amx_bf16")) for flag in machine.flags)
        checks.append(
            Check(
                "matrix instructions",
                "pass" if fast else "warn",
                "bf16 in hardware" if fast else "no AVX-512 BF16 and no AMX",
                "bf16 is fast only with them; the plan's time reckons with what is there",
            )
        )
    return checks


def writable_check(folder: Path) -> Check:
    """Whether the run's folder takes a file."""
    probe = folder / f".probe.{os.getpid()}"
    try:
        probe.write_text("x")
        probe.unlink()
    except OSError as error:
        return Check(
            "run folder",
            "fail",
            str(error),
            "the run's folder can be written; runbook run --runs DIR names another place",
        )
    return Check("run folder", "pass", "can be written", "the run's folder can be written")
