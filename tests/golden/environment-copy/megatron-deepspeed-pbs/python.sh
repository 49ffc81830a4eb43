#!/usr/bin/env bash
# Run this node's Python: bash python.sh ARGUMENTS. It runs from a copy of the packed environment (environment.json) on the
# node's own disk; the first process that needs the copy creates it. A node that cannot have a copy uses the shared
# environment if that has not changed. --unpack and --remove create and remove the copy.
# shellcheck disable=SC2016 # values in single quotes stay as they are
set -euo pipefail
job=${RUNBOOK_JOB_FOLDER:?is set by job.sh} shared=python3
packed() { # print a value of the manifest
  sed -n "s/^  \"$1\": \"\([^\"]*\)\".*/\1/p" "$job/environment.json" 2>/dev/null
}
sha256=$(packed sha256) || true
python=$(packed python) || true
name=${sha256:0:16}
folder=/local/scratch
root=$folder/runbook-environment-$UID
copy=$root/$name

copies() { # create or remove the copy, using only Python's standard library. The time limit is for file systems that hang
  PYTHONPATH=/project timeout -k 10 1800 "$shared" -s -S -m runbook.packed_environment "$1" "$job/environment.json" /local/scratch
}

is_timeout() { # EXIT_CODE: whether `timeout` ended the command
  (($1 == 124 || $1 == 137))
}

say_timeout() {
  echo "runbook: ${HOSTNAME:-a node}: no copy of the Python environment within 1800 s: a file system on this node hangs" >&2
}

line_of_timeout() {
  printf '{"node": "%s", "state": "timed out", ' "${SLURMD_NODENAME:-${HOSTNAME:-}}"
}

is_ready() { # the copy is complete, is of this archive, and is in a folder of this user
  [[ ! -L $root && -O $root && -e $copy/ready && $(cat "$copy/ready" 2>/dev/null) == "$sha256" ]]
}

case ${1:-} in
  --unpack)
    code=0
    copies ensure || code=$?
    if is_timeout "$code"; then
      say_timeout
      printf '%s"folder": "", "seconds": %d}\n' "$(line_of_timeout)" "$SECONDS"
    fi
    exit "$code"
    ;;
  --remove)
    copies remove
    exit
    ;;
esac

where=""
if [[ -z $name ]]; then where="from the shared environment"; fi
for ((tries = 2; tries; tries--)); do # another of your jobs may remove the copy at any time before it is locked
  if [[ $where ]]; then break; fi
  if ! is_ready; then
    if grep -qsF "$(line_of_timeout)" "$job/environment.jsonl"; then # the job has already waited for this node once
      say_timeout
      exit 124
    fi
    code=0
    answer=$(copies ensure) || code=$?
    if is_timeout "$code"; then say_timeout; fi
    if ((code)); then exit "$code"; fi
    if [[ $answer == *'"state": "shared"'* ]]; then
      where="from the shared environment"
      break
    fi
  fi
  if ! is_ready; then continue; fi
  # The lock shows that the copy is in use. Python inherits the lock, and the kernel releases it when Python ends.
  exec {lock}<"$copy.lock"
  if flock -s -w 60 "$lock" && is_ready; then
    shared=$copy/$python where="from $copy"
    export PATH=$copy/environment/bin:$PATH
    if [[ -d $copy/libpython ]]; then export LD_LIBRARY_PATH=$copy/libpython${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi
    break
  fi
  # Creating the copy again needs an exclusive lock
  exec {lock}<&-
done
if [[ ! $where ]]; then # the shared environment was not compared with the packed one
  echo "runbook: ${HOSTNAME:-a node}: another job removed $copy twice while Python started. Submit the training again" >&2
  exit 2
fi
if ((${LOCAL_RANK:-0} == 0)); then echo "runbook: ${HOSTNAME:-a node}: Python runs $where" >&2; fi
exec "$shared" "$@"
