"""Random layouts for tiny models: whether the planner accepts each one, and whether its rehearsal
succeeds.

    python tests/fuzz/layouts.py gpu 0 100

prints a JSON line for each of 100 layouts. The arguments are the device kind, the number of the
first layout, and how many to try. DeepSpeed is rehearsed as if on a CPU, so its layouts are drawn
for that kind only. The same number always gives the same layout.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from planning.conftest import build, hardware

from runbook.core.errors import PlanError
from runbook.params.schema.entries import Dataset, Model
from runbook.params.settings import Settings
from runbook.plan_file.schema import PhasePlan
from runbook.planning import make_plan
from runbook.planning.choice import full_choice
from runbook.planning.cost.memory import stage_memory
from runbook.planning.data_plan import plan_data
from runbook.planning.make_plan import phase_plan

NO_TEXT = Dataset(title="Numbers", kind="mock", licence="none", source="random")
SMOKE = "03-smoke-test"


def settings_of(kind: str, number: int) -> Settings:
    """Return the settings of a random layout. About one layout in three has an error."""
    draw = random.Random(f"{kind} {number}")
    wrong = draw.choice(["", "", "", "any"])

    def pick(*good: Any, bad: tuple[Any, ...] = ()) -> Any:
        return draw.choice(bad) if bad and wrong and draw.random() < 0.25 else draw.choice(good)

    deepspeed = kind == "cpu" and draw.random() < 0.6
    tensor = pick(1, 1, 2, 4, bad=(3,))
    data = pick(1, 1, 2, 4)
    pipeline = pick(1, 1, 2, 4, bad=(3,))
    if (pipeline > 1 and not deepspeed) or (wrong and draw.random() < 0.1):
        chunks = pick(1, 2, bad=(3,))
    else:
        chunks = 1
    heads = pick(4, 8)
    length = pick(32, 64, 96, bad=(31, 50))
    sequence = (tensor > 1 and not deepspeed and draw.random() < 0.5) or (
        bool(wrong) and draw.random() < 0.2
    )
    micro = pick(1, 2, 3)
    rounds = pick(1, 2, 5)
    batch = micro * data * rounds * (pipeline if chunks > 1 else 1) + pick(0, bad=(1, micro))
    world = tensor * pipeline * data + pick(0, bad=(1, 2))
    model = Model(
        label="tiny",
        layers=pipeline * chunks * pick(1, 1, 2) + pick(0, bad=(1,)),
        hidden=heads * pick(8, 16, 32, bad=(9, 12)) + pick(0, bad=(4,)),
        heads=heads,
        kv_heads=pick(heads, heads, 4, bad=(1, 3)),
        ffn_hidden=pick(0, 384, bad=(130,)),
        sequence_length=length,
        positions=pick(length, 128, bad=(16,)),
        vocabulary=pick(250, 1000, 5000),
        tied_embeddings=pick(True, False),
        position_embedding=pick("learned", "rope"),
        normalization=pick("layernorm", "rmsnorm"),
        activation=pick("gelu", "swiglu"),
        biases=pick(True, False),
        source="random",
    )
    on_gpu = kind == "gpu" or (deepspeed and draw.random() < 0.5)
    zero = pick(0, 1, 1, bad=(2, 3)) if not deepspeed or pipeline > 1 else pick(0, 1, 2, 3)
    return build(
        {
            "parallel": {
                "tensor": tensor,
                "pipeline": pipeline,
                "virtual_pipeline": chunks,
                "sequence": sequence,
                "context": pick(1, bad=(2,)),
                "zero_stage": zero,
            },
            "training": {
                "engine": "deepspeed" if deepspeed else "megatron-core",
                "precision": pick("fp32", "bf16", "fp16")
                if on_gpu
                else pick("fp32", "bf16", bad=("fp16",)),
                "micro_batch": micro,
                "global_batch": batch,
                "dropout": pick(0.0, 0.1),
                "recompute": pick("none", "selective", "full"),
                "initial_loss_scale": pick(65536.0, bad=(3000.0,)),
                "min_loss_scale": pick(1.0, bad=(0.5,)),
            },
            "data": {"dataset": "mock"},
            "jobs": {"training": {"devices_per_node": world}, "smoke": {"devices_per_node": 1}},
        },
        model=model,
        dataset=NO_TEXT,
        device="H100-SXM" if on_gpu else "cpu",
        site={"hardware": hardware("H100-SXM" if on_gpu else "cpu", devices_per_node=64)},
    )


def planned(settings: Settings) -> list[str]:
    """Return why the plan rejects the run."""
    try:
        make_plan(settings)
    except PlanError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:]]
        return [line for line in lines if line and SMOKE not in line]
    return []


def rehearsed(spec: PhasePlan, rank: int) -> tuple[Any, str]:
    """Rehearse a rank, or return why that fails."""
    from runbook.training.rehearsal.rank import rehearse

    try:
        return rehearse(spec, rank), ""
    except Exception as error:  # noqa: BLE001 - whatever it is, the job would have ended with it
        return None, f"{type(error).__name__}: {error}"


def compare(kind: str, number: int) -> dict[str, Any]:
    """Return both results for one layout."""
    settings = settings_of(kind, number)
    start = time.process_time()
    problems = planned(settings)
    choice = full_choice(settings)
    parallel = choice.layout
    found: dict[str, Any] = {
        "number": number,
        "layout": f"{choice.training.engine} {choice.site.hardware.device} {choice.training.precision} "
        f"TP {parallel.tensor} PP {parallel.pipeline} x {parallel.virtual_pipeline} DP {parallel.data} "
        f"ZeRO {parallel.zero_stage} {'sequence ' if parallel.sequence else ''}recompute {choice.training.recompute}",
        "planned": problems,
    }
    spec = phase_plan(settings, choice, plan_data(settings))
    stage = random.Random(number).randrange(parallel.pipeline)
    rank = stage * spec.parallel.world_size // parallel.pipeline
    counted, found["rehearsed"] = rehearsed(spec, rank)
    if counted and not problems:
        found |= {"stage": counted.stage, "peak_bytes": counted.peak_bytes, "parts": counted.parts}
        found["planned_bytes"] = stage_memory(choice, counted.stage).least
        found["largest"] = [
            f"{tensor.bytes} {tensor.operator} {tensor.shape}" for tensor in counted.largest[:5]
        ]
    found["agree"] = bool(problems) == bool(found["rehearsed"])
    return found | {"seconds": round(time.process_time() - start, 2)}


if __name__ == "__main__":
    kind = sys.argv[1]
    first = int(sys.argv[2])
    count = int(sys.argv[3])
    os.environ |= {"OMP_NUM_THREADS": "1", "DS_BUILD_OPS": "0", "CUDA_VISIBLE_DEVICES": ""}
    output = sys.stdout
    sys.stdout = sys.stderr
    for number in range(first, first + count):
        output.write(json.dumps(compare(kind, number)) + "\n")
        output.flush()
