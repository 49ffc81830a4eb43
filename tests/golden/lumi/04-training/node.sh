#!/usr/bin/env bash
# Runs once on each node before the training.
set -euo pipefail
rm -rf -- "$MIOPEN_USER_DB_PATH" && mkdir -p -- "$MIOPEN_USER_DB_PATH"
rocm-smi >/dev/null || echo "rocm-smi failed on $(hostname)" >&2
