#!/usr/bin/env bash
# Installs Transformer Engine for an NVIDIA GPU, in the version that the installed megatron-core requires. Its PyTorch part comes as
# source and is compiled here. The trainer works without it, so the script reports what is missing and does not fail.
# Usage: transformer_engine.sh PYTHON
set -euo pipefail
python=$1
log=${python%/*}/../transformer-engine.log

without() {
  echo "Transformer Engine is not installed: $1."
  echo "The trainer works without it (docs/trainer.md). To try again: bash tools/transformer_engine.sh $python"
  exit 0
}

if "$python" -c 'import transformer_engine.pytorch' 2>/dev/null; then
  echo "Transformer Engine is installed."
  exit 0
fi
cuda=$("$python" -c 'import torch; print((torch.version.cuda or "").partition(".")[0])')
[[ $cuda ]] || without "torch is not built for CUDA here"
command -v nvcc >/dev/null || without "nvcc is not on PATH, and its PyTorch part is compiled with CUDA $cuda and cuDNN's headers"
wanted=$("$python" -c '
import importlib.metadata
lines = importlib.metadata.requires("megatron-core") or []
found = [line.partition(";")[0].strip() for line in lines if line.startswith("transformer-engine")]
print(found[0] if found else "transformer-engine[core_cu13,pytorch]")')
wanted=${wanted/core_cu13/core_cu$cuda}
echo "Compiling $wanted; this takes minutes"
pip=("$python" -m pip --disable-pip-version-check install)
if ! { "${pip[@]}" pybind11 wheel && "${pip[@]}" --no-build-isolation "$wanted"; } >"$log" 2>&1; then
  tail -n 5 "$log"
  without "pip could not install $wanted; all it said is in $log"
fi
"$python" -c 'import transformer_engine.pytorch' 2>>"$log" || without "it cannot be imported: $(tail -n 1 "$log")"
echo "Transformer Engine is installed."
