#!/usr/bin/env bash
# What each process of the job runs: it learns its rank, takes its cores and becomes the training program.
# shellcheck disable=SC2016,SC2034,SC2054 # values in single quotes stay as they are
set -euo pipefail

# Compiled kernels are kept on the node's own disk: on a shared one, ranks of many nodes meet half-written files (triton
# issue 11512, pytorch issue 173679) and the file server meets all of them. What the site or the user set is left alone.
cache=${RUNBOOK_CACHE:-/tmp/runbook-cache-$(id -u)}
(umask 077 && mkdir -p -- "$cache") 2>/dev/null || true
# In /tmp anyone may have made that name first.
if [[ ! -O $cache || ! -w $cache ]]; then cache=$(mktemp -d); fi
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$cache/triton}
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$cache/inductor}
export TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$cache/extensions}
export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-$cache/cuda}
export MIOPEN_USER_DB_PATH=${MIOPEN_USER_DB_PATH:-$cache/miopen}
export MIOPEN_CUSTOM_CACHE_DIR=${MIOPEN_CUSTOM_CACHE_DIR:-$cache/miopen}

arguments=(
  plan.json
  --phase 04-training
)

# Starters make one exit code of many, and end all ranks at the first that is not 0: rank 0's own code is kept for the
# job, and a rank that saved and stopped (75) ends with 0. The job asks by a file, since starters pass no signal on alike;
# rank 0 alone looks for it and tells its program, which shares it with the others: thousands of ranks would not let the
# file system rest.
if ((LOCAL_RANK == 0)); then
  echo "runbook: ${HOSTNAME:-a node}: locked memory $(ulimit -l) KiB, open files $(ulimit -n), /dev/shm $(df -k --output=size /dev/shm 2>/dev/null | tail -n 1 || true) KiB" >&2
fi
bash "$RUNBOOK_JOB_FOLDER/python.sh" -m runbook.training "${arguments[@]}" &
program=$!
watcher=""
if ((RANK == 0)); then
  exec {pause}<> <(:) # nothing ever comes from here: reading it with a time limit waits without starting a process
  while kill -0 "$program" 2>/dev/null; do
    if [[ -e $RUNBOOK_JOB_FOLDER/stop ]]; then
      kill -TERM "$program" 2>/dev/null || true
      break
    fi
    read -r -t 2 -u "$pause" || true
  done &
  watcher=$!
  disown "$watcher" # else bash reports its end below in the log of every rank
fi
trap 'kill -TERM "$program" 2>/dev/null || true' TERM USR1
code=0
wait "$program" || code=$?
while kill -0 "$program" 2>/dev/null; do # a signal ends the waiting, not the program
  code=0
  wait "$program" || code=$?
done
if [[ -n $watcher ]]; then kill -KILL "$watcher" 2>/dev/null || true; fi
if ((RANK == 0)); then echo "$code" >"$RUNBOOK_JOB_FOLDER/rank-0"; fi
case $code in
  # A signal that a program does not send itself when another rank fails (ILL, BUS, FPE, KILL, SEGV): the first rank that
  # one ended is kept for the job, since starters do not say which it was.
  132 | 135 | 136 | 137 | 139)
    (set -o noclobber && echo "$RANK $((code - 128))" >"$RUNBOOK_JOB_FOLDER/rank-signal") 2>/dev/null || true
    ;;
esac
if ((code == 75)); then exit 0; fi
exit "$code"
