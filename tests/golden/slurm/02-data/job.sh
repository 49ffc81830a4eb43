#!/usr/bin/env bash
#SBATCH --array=0-3
#SBATCH --error=err
#SBATCH --hint=nomultithread
#SBATCH --job-name=slurm-oscar-02-data
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=out
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#SBATCH --time=02:00:00
#
# Run slurm-oscar, phase 02-data, site slurm: 'tokenize a share each', 4 elements of an array.
# Submit it from its own folder, with runbook or by hand: cd jobs/02-data && sbatch job.sh
# Exit codes: 0 finished, 75 stopped (continue with a new job), 2 refused, 1 failed.
# shellcheck disable=SC1090,SC1091,SC2016,SC2034,SC2317,SC2329 # values in single quotes stay as they are; traps call functions
set -euo pipefail
unset CDPATH

# The queue starts a copy of this script, so its folder is the one from which it was submitted. The job works in the run's folder.
cd -- "${SLURM_SUBMIT_DIR:?is not set: submit this script with sbatch}"
job_number=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}
unset SLURM_EXPORT_ENV # set by sbatch --export=NONE: tasks would start without this script's variables
element=${SLURM_ARRAY_TASK_ID:?}
job=$PWD/element-$element
mkdir -p -- "$job"
exec >>"$job/out" 2>>"$job/err"
export RUNBOOK_ELEMENT=$element RUNBOOK_ELEMENTS=4
cd ../..
user=$(id -un)
set -- "slurm-$job_number-$element"
# If the queue restarts this job under the same number, the files of the earlier start are kept with a numbered suffix.
again() {
  local number=1 word="" name
  if [[ ! -e $job/started ]]; then return; fi
  read -r _ word <"$job/started" || true
  if [[ $word != "$1" ]]; then return; fi
  while [[ -e $job/started.$number ]]; do number=$((number + 1)); done
  for name in heartbeat exit_code reason signal rank-0 rank-ended rank-signal stop hostfile timed_out decision started; do
    if [[ -e $job/$name ]]; then mv -f "$job/$name" "$job/$name.$number"; fi
  done
}
again "$1"

# The job records its state in files next to this script: started (never overwritten), heartbeat, and at the end reason,
# signal (if a signal ended a rank) and exit_code, which is renamed into place. Every reader gets the job's state from these files.
export RUNBOOK_JOB=${1:-by-hand-$$-$RANDOM} RUNBOOK_JOB_FOLDER=$job
read -r boot_id </proc/sys/kernel/random/boot_id
readonly job boot_id
read -r host </proc/sys/kernel/hostname
read -r stat <"/proc/$$/stat"
read -ra stat <<<"${stat##*) }"

read_clock() { # seconds since boot, which no change of the clock affects
  read -r uptime _ </proc/uptime
  now=${uptime%.*}
}
read_clock

if ! (set -o noclobber && : >"$job/started") 2>/dev/null; then
  echo "runbook: this job has already run, or its folder cannot be written: $job/started" >&2
  exit 2
fi
printf 'job %s\npid %s\nstart %s\nboot_id %s\nhost %s\nnamespace %s\ntime %(%s)T\n' "$RUNBOOK_JOB" "$$" "${stat[19]}" \
  "$boot_id" "$host" "$(readlink /proc/self/ns/pid)" -1 >"$job/started.part"
mv -f "$job/started.part" "$job/started"
echo "   " >"$job/exit_code.part" # reserves its space, in case the disk is full at the end

beat() {
  printf '%(%s)T %s %s\n' -1 "$uptime" "$boot_id" >"$job/heartbeat.part" && mv -f "$job/heartbeat.part" "$job/heartbeat"
}
beat

# Kill every process with this job's RUNBOOK_JOB and folder, even in another process group or session. Two queues use the same
# numbers, and this node may show the processes of both, such as those of a container.
end_leftovers() {
  local files file process
  mapfile -t files < <(grep -lzxF "RUNBOOK_JOB=$RUNBOOK_JOB" /proc/[0-9]*/environ 2>/dev/null)
  if ((${#files[@]})); then
    mapfile -t files < <(grep -lzxF "RUNBOOK_JOB_FOLDER=$job" "${files[@]}" 2>/dev/null)
  fi
  for file in "${files[@]}"; do
    process=${file//[!0-9]/}
    [[ $process == "$$" ]] || kill -KILL "$process" 2>/dev/null || true
  done
}

job_result="" job_reason="the job's script failed before the training was started"
job_signal="" # the number of the signal that ended a rank, if that is why the job ended
finish() {
  local code=$?
  if [[ -z $job_result && $code == 0 ]]; then code=1; fi # a set-up command that exits with 0 does not mean that the training ended
  trap - EXIT
  trap '' HUP INT TERM
  end_leftovers
  echo "runbook: $job_reason" >&2 || true
  printf '%s\n' "$job_reason" >"$job/reason" || true
  if [[ -n $job_signal ]]; then printf '%s\n' "$job_signal" >"$job/signal" || true; fi
  printf '%-3s\n' "$code" 1<>"$job/exit_code.part" && mv -f "$job/exit_code.part" "$job/exit_code"
}
trap finish EXIT
begin=$now

# The job is asked to stop by the queue before its time limit, by a signal, or by a cancelled marker.
asked=""
for name in USR1 TERM INT HUP; do
  # shellcheck disable=SC2064 # expand the name now
  trap "asked=\${asked:-SIG$name}" "$name"
done
export PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1

# Environment: megatron
export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTHONPATH=/project

python3 -m runbook.phases.p02_data.tokenize_share /project </dev/null &
step=$!
exec {pause}<> <(:) # never has any data: a read with a time limit waits without starting a process
code="" was_asked="" next_beat=0
while [[ -z $code ]]; do
  read_clock
  if ((now >= next_beat)); then
    beat || true # a full disk must not end the work
    next_beat=$((now + 5))
  fi
  if [[ -e $job/../cancelled ]]; then asked=${asked:-the request to cancel}; fi
  if [[ -n $asked && -z $was_asked ]]; then
    was_asked=yes
    kill -TERM "$step" 2>/dev/null || true
  fi
  if ! kill -0 "$step" 2>/dev/null; then
    code=0
    wait "$step" || code=$?
  else
    read -r -t 1 -u "$pause" || true
  fi
done
# A queue sends TERM both at the walltime and to a deleted job; the elapsed time tells which it was.
read_clock
if [[ $asked == SIGTERM ]] && ((now - begin >= 7170)); then
  asked="the end of the walltime"
  : >"$job/timed_out"
fi
by="${asked:+ at $asked}"
case $code in
  0) job_result=0 job_reason="finished$by" ;;
  75 | 143) job_result=75 job_reason="stopped$by" ;;
  2) job_result=2 job_reason="refused to begin (exit code 2)" ;;
  *) job_result=1 job_reason="ended with exit code $code$by" ;;
esac
if ((job_result == 1 && code > 128)); then job_signal=$((code - 128)); fi
exit "$job_result"
