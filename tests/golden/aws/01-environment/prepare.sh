#!/usr/bin/env bash
# Run aws-pile-175b, site aws: the set-up on a login node before the first job. Running it again changes nothing.
# shellcheck disable=SC1090,SC1091,SC2016,SC2034 # values in single quotes stay as they are
set -euo pipefail
say() { printf 'runbook: %s\n' "$1"; }
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

(
tokenizer=/fsx/data/bpe
mkdir -p -- "$tokenizer"
for name in vocab.json merges.txt; do
  cmp -s -- /project/runbook/tokens/gpt2/"$name" "$tokenizer/$name" && continue
  cp -- /project/runbook/tokens/gpt2/"$name" "$tokenizer/$name.part"
  mv -f -- "$tokenizer/$name.part" "$tokenizer/$name"
done
say "the tokenizer already exists: $tokenizer"
)

(
title='the NeMo image with EFA, as a file' creates=/apps/bignlp-training_22.09-py3-bcp-nsys-2022.5.1-v2-efa.sqsh
if [[ -e $creates ]]; then
  say "$title: already done, $creates exists"
else
  secret=${NGC_API_KEY:?is not set: it holds the password for this step}
  set +u # module load and conda activate read variables that are not set
  docker login nvcr.io --username '$oauthtoken' --password-stdin <<<"$secret"
  docker build --tag bignlp-training:22.09-py3-bcp-nsys-2022.5.1-v2-efa "$here"
  rm -f -- /apps/bignlp-training_22.09-py3-bcp-nsys-2022.5.1-v2-efa.sqsh.part && enroot import -o /apps/bignlp-training_22.09-py3-bcp-nsys-2022.5.1-v2-efa.sqsh.part dockerd://bignlp-training:22.09-py3-bcp-nsys-2022.5.1-v2-efa && mv -- /apps/bignlp-training_22.09-py3-bcp-nsys-2022.5.1-v2-efa.sqsh.part /apps/bignlp-training_22.09-py3-bcp-nsys-2022.5.1-v2-efa.sqsh
  set -u
  [[ -e $creates ]] || { say "$title: finished, but $creates does not exist" >&2 && exit 1; }
fi
)

(
title='The Pile'"'"'s token files, 702 GiB in 19 minutes within a region' creates=/fsx/data/the-pile/.copied
if [[ -e $creates ]]; then
  say "$title: already done, $creates exists"
else
  set +u # module load and conda activate read variables that are not set
  mkdir -p /fsx/data/the-pile
  s5cmd sync GIVE_DATA_BUCKET/'*.idx' /fsx/data/the-pile/
  s5cmd sync GIVE_DATA_BUCKET/'*.bin' /fsx/data/the-pile/
  touch /fsx/data/the-pile/.copied
  set -u
  [[ -e $creates ]] || { say "$title: finished, but $creates does not exist" >&2 && exit 1; }
fi
)
