"""Train with every engine and layout on the current Python, and write the losses to a file.

Usage: python tests/pythons/train_layouts.py LOSSES.json
"""

import json
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from training import specs  # noqa: E402 - the tests' folder is known only now
from training.group import Zygote  # noqa: E402 - as above

CONTEXT_2 = {"context": 2, "world_size": 2}
CONTEXT_2_DATA_2 = {"context": 2, "data": 2, "world_size": 4}

LAYOUTS = {
    "megatron-core, one process": {},
    "megatron-core, DP 2": {"copies": 2},
    "megatron-core, TP 2": {"tensor": 2},
    "megatron-core, PP 2": {"pipeline": 2},
    "megatron-core, CP 2": {"parallel": CONTEXT_2},
    "megatron-core, CP 2 x DP 2": {"copies": 2, "parallel": CONTEXT_2_DATA_2},
    "deepspeed, one process": {"engine": "deepspeed"},
    "deepspeed, DP 2, ZeRO 1": {"engine": "deepspeed", "copies": 2},
    "deepspeed, DP 2, ZeRO 3": {"engine": "deepspeed", "copies": 2, "zero_stage": 3},
    "deepspeed, TP 2": {"engine": "deepspeed", "tensor": 2},
    "deepspeed, PP 2": {"engine": "deepspeed", "pipeline": 2},
}
"""Changes to the specification of each training run. DeepSpeed has no context parallelism here."""

ITERATIONS = 10


def train_all() -> dict[str, list[float]]:
    """Return the losses of each layout, in fp32."""
    warm_trainer = Zygote()
    try:
        with tempfile.TemporaryDirectory() as folder:
            return {
                name: _train(warm_trainer, Path(folder) / str(number), changes)
                for number, (name, changes) in enumerate(LAYOUTS.items())
            }
    finally:
        warm_trainer.close()


def _train(warm_trainer: Zygote, folder: Path, changes: dict[str, object]) -> list[float]:
    specs.write_corpus(folder / "data" / "corpus_text_document")
    job = warm_trainer.train(folder, specs.spec(iterations=ITERATIONS, **changes))
    return job.losses()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(train_all(), indent=2))
