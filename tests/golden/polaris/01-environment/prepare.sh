#!/usr/bin/env bash
# Run polaris-25b, site polaris: the set-up on a login node before the first job. Running it again changes nothing.
# shellcheck disable=SC1090,SC1091,SC2016,SC2034 # values in single quotes stay as they are
set -euo pipefail
say() { printf 'runbook: %s\n' "$1"; }
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

(
folder=/GIVE_JOBS_STAGE/Megatron-DeepSpeed commit=6bcac4ee574da196d0d7da548693b2e8f62e0146
if [[ -e $folder/.git ]]; then
  say "the checkout exists: $folder"
else
  mkdir -p -- "$(dirname -- "$folder")"
  rm -rf -- "$folder.part"
  git clone --quiet --no-checkout -- https://github.com/argonne-lcf/Megatron-DeepSpeed "$folder.part"
  git -C "$folder.part" checkout --quiet --detach "$commit"
  mv -T -- "$folder.part" "$folder"
fi
if [[ $(git -C "$folder" rev-parse HEAD) != "$commit" ]]; then
  say "$folder is not at $commit: check that commit out, or move the folder away" >&2
  exit 1
fi
changed=$(git --no-optional-locks -C "$folder" status --porcelain --untracked-files=no)
if [[ -n $changed ]]; then
  say "$folder has changes that are not in $commit: commit them elsewhere, or undo them with git checkout -- ." >&2
  say "$changed" >&2
  exit 1
fi
)

(
# An interrupted compilation leaves a lock, for which every later job waits forever ("compiling and loading fused
# kernels"). A running compilation writes files, so a build is removed only if nothing has been written to it for ten
# minutes.
build=/GIVE_JOBS_STAGE/Megatron-DeepSpeed/megatron/fused_kernels/build
if [[ -e $build/lock ]]; then
  if [[ -n $(find "$build" -mmin -10 -print -quit) ]]; then
    say "the fused kernels are being compiled: $build"
  else
    rm -rf -- "$build"
    say "removed a stale build of the fused kernels: $build"
  fi
fi
)

(
tokenizer=/GIVE_JOBS_STAGE/data/gpt2
mkdir -p -- "$tokenizer"
for name in vocab.json merges.txt; do
  cmp -s -- /project/runbook/tokens/gpt2/"$name" "$tokenizer/$name" && continue
  cp -- /project/runbook/tokens/gpt2/"$name" "$tokenizer/$name.part"
  mv -f -- "$tokenizer/$name.part" "$tokenizer/$name"
done
say "the tokenizer already exists: $tokenizer"
)

(
title='the virtual environment over conda'"'"'s base' creates=/GIVE_JOBS_STAGE/Megatron-DeepSpeed/venvs/polaris/2023-10-04/bin/activate
if [[ -e $creates ]]; then
  say "$title: already done, $creates exists"
else
  set +u # module load and conda activate read variables that are not set
  export http_proxy=http://proxy.alcf.anl.gov:3128 https_proxy=http://proxy.alcf.anl.gov:3128
  module load conda/2023-10-04
  conda activate base
  python3 -m venv /GIVE_JOBS_STAGE/Megatron-DeepSpeed/venvs/polaris/2023-10-04 --system-site-packages
  source /GIVE_JOBS_STAGE/Megatron-DeepSpeed/venvs/polaris/2023-10-04/bin/activate
  python3 -m pip install git+https://github.com/saforem2/ezpz@beca4f1860e61ef8050cd12a820a08973892a92f
  make -C /GIVE_JOBS_STAGE/Megatron-DeepSpeed/megatron/data
  set -u
  [[ -e $creates ]] || { say "$title: finished, but $creates does not exist" >&2 && exit 1; }
fi
)
