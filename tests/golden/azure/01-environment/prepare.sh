#!/usr/bin/env bash
# Run azure-175b, site azure: what is set up on a login node before the first job. Running it again changes nothing.
# shellcheck disable=SC1090,SC1091,SC2016 # values in single quotes stay as they are
set -euo pipefail
say() { printf 'runbook: %s\n' "$1"; }

# https://github.com/NVIDIA/Megatron-LM at the commit whose options are rendered.
folder=/GIVE_JOBS_STAGE/Megatron-LM commit=e958b2ca145172d5816a755b02d61a3ae0a8b3e4
if [[ -e $folder/.git ]]; then
  say "the checkout is there: $folder"
else
  mkdir -p -- "$(dirname -- "$folder")"
  rm -rf -- "$folder.part"
  git clone --no-checkout -- https://github.com/NVIDIA/Megatron-LM "$folder.part"
  git -C "$folder.part" checkout --quiet --detach "$commit"
  mv -T -- "$folder.part" "$folder"
fi
if [[ $(git -C "$folder" rev-parse HEAD) != "$commit" ]]; then
  say "$folder is not at $commit: check that commit out, or move the folder away" >&2
  exit 1
fi
# A compilation that was cut off leaves a lock here, at which every later job waits for ever.
rm -f -- "$folder/megatron/fused_kernels/build/lock"

# GPT-2's vocabulary and merges: two files.
tokenizer=/GIVE_JOBS_STAGE/data/gpt2
mkdir -p -- "$tokenizer"
for name in vocab.json merges.txt; do
  cp -- /project/runbook/data/gpt2/"$name" "$tokenizer/$name.part"
  mv -f -- "$tokenizer/$name.part" "$tokenizer/$name"
done
say "the tokenizer is there: $tokenizer"

title='the PyTorch image' creates=/GIVE_JOBS_STAGE/pytorch+25.03+py3.sqsh
if [[ -e $creates ]]; then
  say "$title: there, $creates"
else
  srun --partition=hpc --nodes=1 --ntasks=1 --mem=0 enroot import -o /GIVE_JOBS_STAGE/pytorch+25.03+py3.sqsh docker://nvcr.io#nvidia/pytorch:25.03-py3
  [[ -e $creates ]] || { say "$title: done, but $creates is not there" >&2 && exit 1; }
fi
