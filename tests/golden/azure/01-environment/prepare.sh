#!/usr/bin/env bash
# Run azure-175b, site azure: the set-up on a login node before the first job. Running it again changes nothing.
# shellcheck disable=SC1090,SC1091,SC2016,SC2034 # values in single quotes stay as they are
set -euo pipefail
say() { printf 'runbook: %s\n' "$1"; }
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

(
folder=/GIVE_JOBS_STAGE/Megatron-LM commit=e958b2ca145172d5816a755b02d61a3ae0a8b3e4
if [[ -e $folder/.git ]]; then
  say "the checkout exists: $folder"
else
  mkdir -p -- "$(dirname -- "$folder")"
  rm -rf -- "$folder.part"
  git clone --quiet --no-checkout -- https://github.com/NVIDIA/Megatron-LM "$folder.part"
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
build=/GIVE_JOBS_STAGE/Megatron-LM/megatron/fused_kernels/build
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
title='the PyTorch image' creates=/GIVE_JOBS_STAGE/pytorch+25.03+py3.sqsh
if [[ -e $creates ]]; then
  say "$title: already done, $creates exists"
else
  set +u # module load and conda activate read variables that are not set
  mkdir -p -- /GIVE_JOBS_STAGE && rm -f -- /GIVE_JOBS_STAGE/pytorch+25.03+py3.sqsh.new /GIVE_JOBS_STAGE/pytorch+25.03+py3.sqsh.part
  srun --partition=hpc --nodes=1 --ntasks=1 --mem=0 enroot import -o /GIVE_JOBS_STAGE/pytorch+25.03+py3.sqsh.new docker://nvcr.io#nvidia/pytorch:25.03-py3
  lfs setstripe --stripe-size 1M --stripe-count -1 /GIVE_JOBS_STAGE/pytorch+25.03+py3.sqsh.part || say "no stripes over all of Lustre; many nodes will start slowly"
  cp -- /GIVE_JOBS_STAGE/pytorch+25.03+py3.sqsh.new /GIVE_JOBS_STAGE/pytorch+25.03+py3.sqsh.part && rm -f -- /GIVE_JOBS_STAGE/pytorch+25.03+py3.sqsh.new && mv -- /GIVE_JOBS_STAGE/pytorch+25.03+py3.sqsh.part /GIVE_JOBS_STAGE/pytorch+25.03+py3.sqsh
  set -u
  [[ -e $creates ]] || { say "$title: finished, but $creates does not exist" >&2 && exit 1; }
fi
)
