"""A project with two runs and one site, small enough to read."""

from pathlib import Path

import pytest

MODELS = """\
tiny: {label: tiny, layers: 4, hidden: 128, heads: 4, sequence_length: 128, source: test}
375m: {label: 375M, layers: 12, hidden: 512, heads: 8, sequence_length: 1024, positions: 2048, source: test}
13b: {label: 13B, layers: 40, hidden: 5120, heads: 40, source: test}
"""
DATASETS = """\
corpus: {title: Corpus, kind: corpus, licence: free, source: test}
mock: {title: Mock, kind: mock, licence: none, source: test}
"""
SITE = """\
site: local
title: A machine
scheduler: local
hardware: {device: cpu, devices_per_node: 2, cores_per_node: 8}
facts:
  defaults.training.precision: {source: the manual, date: "2025-11-21"}
defaults:
  training:
    precision: fp32
  jobs:
    smoke: {walltime: "00:10:00"}
"""
BIG_SITE = """\
site: big
title: A cluster
scheduler: slurm
launcher: srun
hardware: {device: A100-40GB, devices_per_node: 4, cores_per_node: 32}
"""
TOY = """\
run: toy
model: tiny

training:
  tokens: 1B
  learning_rate: 6e-5
  warmup_samples: 100
jobs:
  smoke:
    nodes: 1
  training:
    nodes: 2
    walltime: 12:00:00
"""
OTHER = """\
run: other
site: big
model: 13b
parallel:
  tensor: 4
training:
  iterations: 50
  global_batch: 64
jobs:
  training: {nodes: 8, walltime: 12:00:00}
"""
VARIANTS = """\
wide:
  parallel: {tensor: 2}
short:
  training: {iterations: 5}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for folder in ("params/sites", "params/variants", "notebooks"):
        (root / folder).mkdir(parents=True)
    for name, text in {
        "models.yaml": MODELS,
        "datasets.yaml": DATASETS,
        "sites/local.yaml": SITE,
        "sites/big.yaml": BIG_SITE,
        "toy.yaml": TOY,
        "other.yaml": OTHER,
        "variants/toy.yaml": VARIANTS,
    }.items():
        (root / "params" / name).write_text(text)
    return root


@pytest.fixture
def write(project: Path):
    """Return a function that writes a run file into params/, and returns its name."""

    def write(text: str | bytes, name: str = "mine") -> str:
        path = project / "params" / f"{name}.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    return write
