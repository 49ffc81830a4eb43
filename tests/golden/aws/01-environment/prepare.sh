#!/usr/bin/env bash
# Run aws-pile-175b, site aws: what is set up on a login node before the first job. Running it again changes nothing.
# shellcheck disable=SC1090,SC1091,SC2016 # values in single quotes stay as they are
set -euo pipefail
say() { printf 'runbook: %s\n' "$1"; }

# GPT-2's vocabulary and merges: two files.
tokenizer=/fsx/data/bpe
mkdir -p -- "$tokenizer"
for name in vocab.json merges.txt; do
  cp -- /project/runbook/data/gpt2/"$name" "$tokenizer/$name.part"
  mv -f -- "$tokenizer/$name.part" "$tokenizer/$name"
done
say "the tokenizer is there: $tokenizer"

title='The Pile'"'"'s token files, 702 GiB in 19 minutes within a region' creates=/fsx/data/the-pile/.copied
if [[ -e $creates ]]; then
  say "$title: there, $creates"
else
  mkdir -p /fsx/data/the-pile
  s5cmd sync GIVE_DATA_BUCKET/'*.idx' /fsx/data/the-pile/
  s5cmd sync GIVE_DATA_BUCKET/'*.bin' /fsx/data/the-pile/
  touch /fsx/data/the-pile/.copied
  [[ -e $creates ]] || { say "$title: done, but $creates is not there" >&2 && exit 1; }
fi
