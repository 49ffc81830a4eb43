"""Which training the files in a run's folder come from: whether the next job goes on with it or begins anew."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runbook.params.schema import Framework
from runbook.phases import steps
from runbook.phases.campaign import VERSIONS, Campaign, made
from runbook.plan.schedule import LearningRate
from runbook.plan.spec import fingerprint
from runbook.records.files import write_text

TRAINING = "04-training"
"""The one phase that may be prolonged: a smoke test is judged from its first step on."""
_RATE = ("warmup_samples", "decay_samples")
"""What of the learning rate may follow from the length."""
_CUT = ("tensor", "pipeline", "virtual_pipeline", "data", "zero_stage")


def started_path(folder: Path, phase: str) -> Path:
    """Where the fingerprint of the training whose outputs lie in the folder is kept."""
    return folder / "steps" / f"{phase}--train.started"


def was_started_from(campaign: Campaign, digest: str) -> bool:
    """Whether the outputs in the run's folder come from these inputs."""
    started = started_path(campaign.folder, campaign.phase)
    return started.exists() and started.read_text().partition("\n")[0] == digest


def note(campaign: Campaign, digest: str) -> None:
    """Keep from which inputs the training was started, for the jobs that come later."""
    facts = json.dumps({"training": identity(campaign), "spec": _shown(campaign.spec)})
    write_text(started_path(campaign.folder, campaign.phase), f"{digest}\n{facts}\n")


def identity(campaign: Campaign) -> str:
    """What makes a training the same one, however long it is and however it is cut: weights, data, batch, rate.

    The trainer holds its checkpoint against the plan in the same way, value by value, before its first step.
    """
    spec = copy.deepcopy(campaign.spec)
    spec["duration"]["samples"] = 0
    spec["model"]["padded_vocabulary"] = 0  # padding depends on the cut; the trainer keeps its checkpoint's
    for key in _RATE:
        spec["learning_rate"][key] = 0
    inputs = {"spec": fingerprint(spec), "data": made(campaign.folder, "02-data--tokenize")}
    return steps.fingerprint(VERSIONS[campaign.phase], inputs)


def going_on(campaign: Campaign) -> str:
    """Why the next job goes on with what lies in the folder although inputs changed, and what that means.

    Empty where it is another training, where nothing was saved, or where nothing is left to train: it begins anew.
    """
    if campaign.phase != TRAINING or campaign.settings.run.training.framework is not Framework.RUNBOOK:
        return ""
    started = started_path(campaign.folder, campaign.phase)
    text = started.read_text().partition("\n")[2] if started.exists() else ""
    before = json.loads(text) if text else {}
    spec, now = before.get("spec", {}), _shown(campaign.spec)
    saved = newest_saved(campaign)
    if before.get("training") != identity(campaign) or not 0 < saved < now["iterations"]:
        return ""
    if not _warm_up_follows(spec, now):
        return ""
    changed = [
        f"{name} {spec[key]:,} -> {now[key]:,}" if isinstance(now[key], int) else f"{name} {spec[key]} -> {now[key]}"
        for key, name in _NAMES.items()
        if spec.get(key) != now[key]
    ]
    words = [f"The training goes on from its checkpoint of iteration {saved:,}: {', '.join(changed) or 'replanned'}."]
    words += [text for text in (_rate_words(spec, now, _consumed(campaign, saved)), _engine_words(spec, now)) if text]
    return " ".join([*words, "To begin anew instead: runbook run with --redo training."])


def newest_saved(campaign: Campaign) -> int:
    """Iteration of the newest checkpoint by its folder's name; 0 where there is none."""
    folder = campaign.folder / campaign.spec["checkpoint"]["folder"]
    names = [path.name for path in folder.glob("iter_*") if path.is_dir()]
    return max((int(name[5:]) for name in names if re.fullmatch(r"iter_\d{7,}", name)), default=0)


def _consumed(campaign: Campaign, saved: int) -> int:
    """Samples that the checkpoint has seen."""
    place = campaign.folder / campaign.spec["checkpoint"]["folder"] / f"iter_{saved:07d}" / "metadata.json"
    try:
        return int(json.loads(place.read_text())["consumed_samples"])
    except (OSError, ValueError, KeyError, TypeError):  # the trainer judges it
        return saved * int(campaign.spec["batch"]["global"])


_NAMES = {"iterations": "iterations", "engine": "engine", "micro": "micro-batch"} | {key: key for key in _CUT}


def _shown(spec: Mapping[str, Any]) -> dict[str, Any]:
    cut = {key: spec["parallel"][key] for key in _CUT}
    length = {"iterations": spec["duration"]["iterations"], "samples": spec["duration"]["samples"]}
    own = {"engine": spec["engine"], "micro": spec["batch"]["micro"], "global": spec["batch"]["global"]}
    return {**length, **own, **cut, "rate": spec["learning_rate"]}


def _warm_up_follows(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the warm-up is as long as it was, or the same share of another decay but for rounding."""
    old, new = before["rate"], now["rate"]
    times = new["decay_samples"] / max(1, old["decay_samples"])
    follows = times != 1 and abs(new["warmup_samples"] - old["warmup_samples"] * times) <= 1 + times
    return bool(follows or new["warmup_samples"] == old["warmup_samples"])


def _rate_words(before: Mapping[str, Any], now: Mapping[str, Any], consumed: int) -> str:
    if before["iterations"] == now["iterations"]:
        return ""
    old, new = (LearningRate(**rate).at(consumed + now["global"]) for rate in (before["rate"], now["rate"]))
    if before["rate"] == now["rate"] or before["rate"]["schedule"] == "constant":
        return "The learning rate does not depend on the length: the losses are those of one undisturbed training."
    return (
        f"The learning rate follows the new length from there: {new:.3g} in the next step, where the old plan had "
        f"{old:.3g}. The steps before were made by the old one, so the losses are not those of a training planned for "
        f"{now['iterations']:,} from its start; training.decay_samples={before['rate']['decay_samples']} would keep "
        f"the old rate."
    )


def _engine_words(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if before["engine"] == now["engine"]:
        return ""
    return "Each engine's optimizer state is its own: the weights are taken up, and Adam begins anew."
