#!/usr/bin/env bash
# Pin every package for Python 3.11 and newer, without the CUDA packages that a GPU build of PyTorch installs itself.
# Pinned versions stay the same, unless UPGRADE=1.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo 'torch==2.13.0' >"$work/constraints"
[[ ${UPGRADE:-} == 1 ]] || cp requirements.lock "$work/pins"
uv pip compile pyproject.toml --extra jupyter --extra train --extra data --extra forecast --extra test --extra docs \
  --universal --python-version 3.11 --constraint "$work/constraints" \
  --no-header --no-annotate --quiet --output-file "$work/pins"
{
  echo "# Made by 'make lock'. Installed with --no-deps; PyTorch first, from its CPU index unless a GPU is seen."
  grep -vE '^(#|nvidia|cuda)' "$work/pins" |
    sed -E "s/^(triton==[^ ]+).*/\1 ; python_full_version >= '3.12' and sys_platform == 'linux'/"
} >requirements.part
mv requirements.part requirements.lock
