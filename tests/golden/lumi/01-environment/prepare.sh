#!/usr/bin/env bash
# Run lumi-13b, site lumi: the set-up on a login node before the first job. Running it again changes nothing.
# shellcheck disable=SC1090,SC1091,SC2016,SC2034 # values in single quotes stay as they are
set -euo pipefail
say() { printf 'runbook: %s\n' "$1"; }
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

(
folder=/GIVE_JOBS_STAGE/Megatron-DeepSpeed commit=635a468fadafaa8b87975716b08b1c414ec40f4f
if [[ -e $folder/.git ]]; then
  say "the checkout exists: $folder"
else
  mkdir -p -- "$(dirname -- "$folder")"
  rm -rf -- "$folder.part"
  git clone --quiet --no-checkout -- https://github.com/henkdr/Megatron-Deepspeed-LUMI "$folder.part"
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
title='the PyTorch container'"'"'s module' creates=/GIVE_JOBS_STAGE/.runbook/container
if [[ -e $creates ]]; then
  say "$title: already done, $creates exists"
else
  set +u # module load and conda activate read variables that are not set
  module load LUMI partition/container EasyBuild-user
  eb PyTorch-2.3.0-rocm-6.2.0-python-3.10-singularity-20241007.eb || {
    say "eb did not install it. LUMI archives recipes of containers that no longer work: choose one that is there" >&2
    say "(eb --search PyTorch-.*singularity), and write it into params/sites/lumi.yaml, as module and after eb." >&2
    exit 1
  }
  mkdir -p /GIVE_JOBS_STAGE/.runbook && touch /GIVE_JOBS_STAGE/.runbook/container
  set -u
  [[ -e $creates ]] || { say "$title: finished, but $creates does not exist" >&2 && exit 1; }
fi
)

(
title='the packages that the container lacks, packed into one file' creates=/GIVE_JOBS_STAGE/.runbook/squashed
if [[ -e $creates ]]; then
  say "$title: already done, $creates exists"
else
  set +u # module load and conda activate read variables that are not set
  module load LUMI partition/G PyTorch/2.3.0-rocm-6.2.0-python-3.10-singularity-20241007
  singularity exec "$SIF" python -m pip install pybind11==2.13.6 nltk==3.9.1 transformers==4.39.3
  make-squashfs
  touch /GIVE_JOBS_STAGE/.runbook/squashed
  set -u
  [[ -e $creates ]] || { say "$title: finished, but $creates does not exist" >&2 && exit 1; }
fi
)

(
title='Megatron'"'"'s helper that shuffles documents, compiled once' creates=/GIVE_JOBS_STAGE/.runbook/helpers
if [[ -e $creates ]]; then
  say "$title: already done, $creates exists"
else
  set +u # module load and conda activate read variables that are not set
  module load LUMI partition/G PyTorch/2.3.0-rocm-6.2.0-python-3.10-singularity-20241007
  singularity exec --bind /GIVE_JOBS_STAGE "$SIF" make -C /GIVE_JOBS_STAGE/Megatron-DeepSpeed/megatron/data
  touch /GIVE_JOBS_STAGE/.runbook/helpers
  set -u
  [[ -e $creates ]] || { say "$title: finished, but $creates does not exist" >&2 && exit 1; }
fi
)
