#!/usr/bin/env bash
# Pin every package for Python 3.11 and newer, without the CUDA packages that a GPU build of PyTorch brings by itself.
set -euo pipefail
cd "$(dirname "$0")/.."
echo 'torch==2.13.0' >build-constraints.part
trap 'rm -f build-constraints.part' EXIT
{
  echo "# Made by 'make lock'. Installed with --no-deps; PyTorch first, from its CPU index unless a GPU is seen."
  uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --constraint build-constraints.part \
    --no-header --no-annotate --quiet |
    grep -vE '^(nvidia|cuda)-' |
    sed -E "s/^(triton==[^ ]+).*/\1 ; python_full_version >= '3.12' and sys_platform == 'linux'/"
} >requirements.part
mv requirements.part requirements.lock
