#!/usr/bin/env bash
# The Python of this node: bash python.sh ARGUMENTS. It runs from the copy of the packed environment (environment.json) on
# the node's own disk, which the first process that needs it makes. A node that cannot have one uses the shared environment
# where that has not changed. --unpack and --remove make and remove the copy.
# shellcheck disable=SC2016 # values in single quotes stay as they are
set -euo pipefail
job=${RUNBOOK_JOB_FOLDER:?is set by job.sh} shared=python3
packed() { # a value of the manifest
  sed -n "s/^  \"$1\": \"\([^\"]*\)\".*/\1/p" "$job/environment.json" 2>/dev/null
}
sha256=$(packed sha256) || true
python=$(packed python) || true
name=${sha256:0:16}
folder="${TMPDIR:-}/copies"
root=$folder/runbook-environment-$UID
copy=$root/$name

copies() { # made and removed by plain Python: the standard library alone. A file system that hangs does not keep the job
  PYTHONPATH=/project timeout -k 10 1800 "$shared" -s -S -m runbook.packed_environment "$1" "$job/environment.json" '$TMPDIR/copies'
}

is_timeout() { # EXIT_CODE: how `timeout` ends
  (($1 == 124 || $1 == 137))
}

say_timeout() {
  echo "runbook: ${HOSTNAME:-a node}: no copy of the Python environment within 1800 s: a file system of this node hangs" >&2
}

line_of_timeout() {
  printf '{"node": "%s", "state": "timed out", ' "${SLURMD_NODENAME:-${HOSTNAME:-}}"
}

is_ready() { # whole, of this archive, and in a folder that nobody else made
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
for ((tries = 2; tries; tries--)); do # another job of yours may remove a copy between two starts
  if [[ $where ]]; then break; fi
  if ! is_ready; then
    if grep -qsF "$(line_of_timeout)" "$job/environment.jsonl"; then # the job has waited for this node once
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
  # Whoever holds this lock uses the copy; Python inherits it, and the kernel gives it back.
  exec {lock}<"$copy.lock"
  if flock -s -w 60 "$lock" && is_ready; then
    shared=$copy/$python where="from $copy"
    export PATH=$copy/environment/bin:$PATH
    export PYTHONPATH=$copy/package
    if [[ -d $copy/libpython ]]; then export LD_LIBRARY_PATH=$copy/libpython${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi
    break
  fi
  # Who makes the copy again needs the lock alone
  exec {lock}<&-
done
if [[ ! $where ]]; then # nobody has compared the shared environment with the packed one
  echo "runbook: ${HOSTNAME:-a node}: another job removed $copy twice while Python started. Submit the training again" >&2
  exit 2
fi
if ((${LOCAL_RANK:-0} == 0)); then echo "runbook: ${HOSTNAME:-a node}: Python runs $where" >&2; fi
exec "$shared" "$@"
