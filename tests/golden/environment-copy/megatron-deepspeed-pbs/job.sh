#!/usr/bin/env bash
#PBS -A GIVE_JOBS_ACCOUNT
#PBS -N polaris-25b-04-training
#PBS -e err
#PBS -k doe
#PBS -o out
#PBS -q debug-scaling
#PBS -r y
#PBS -l filesystems=home:eagle
#PBS -l place=scatter
#PBS -l select=8:system=polaris
#PBS -l walltime=01:00:00
#
# Run polaris-25b, phase 04-training, site polaris: 8 nodes x 4 devices, megatron-deepspeed.
# Submit it from its own folder, with runbook or by hand: cd jobs/04-training && qsub job.sh
# Exit codes: 0 finished, 75 saved and stopped (continue with a new job), 2 refused before the first step, 1 failed.
# shellcheck disable=SC1090,SC1091,SC2016,SC2034,SC2317,SC2329 # values in single quotes stay as they are; traps call functions
set -euo pipefail
unset CDPATH

# The queue starts a copy of this script, so its folder is the one from which it was submitted. The job works in the run's folder.
cd -- "${PBS_O_WORKDIR:?is not set: submit this script with qsub}"
job_number=${PBS_JOBID%%[!0-9]*}
job=$PWD
cd ../..
user=$(id -un)
set -- "pbs-$job_number"
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
refuse() {
  job_result=2 job_reason=$1
  exit 2
}

# The job is asked to stop by the queue before its time limit, by a signal, or by a cancelled marker.
asked=""
for name in USR1 TERM INT HUP; do
  # shellcheck disable=SC2064 # expand the name now
  trap "asked=\${asked:-SIG$name}" "$name"
done

# The ranks connect to the first host in the queue's list, at a port computed from the job's number.
mapfile -t hosts < <(awk '!seen[$0]++' "$PBS_NODEFILE")
((${#hosts[@]} == 8)) || refuse "the queue granted ${#hosts[@]} nodes, but the plan is for 8"
printf '%s\n' "${hosts[@]}" >"$job/hostfile"
export MASTER_ADDR=${hosts[0]} MASTER_PORT=$((49152 + job_number % 16384))
export PYTHONUNBUFFERED=1 # Python writes its output unbuffered
unset PYTHONSAFEPATH      # with it, Python 3.11 does not import from the program's own folder
export OMP_NUM_THREADS=8

# The site's modules and set-up commands; many of them read variables that are not set.
set +u
module load conda/2023-10-04
conda activate base
source /GIVE_JOBS_STAGE/Megatron-DeepSpeed/venvs/polaris/2023-10-04/bin/activate
set -u
cd "$job/../.."

# Environment: base
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_DEBUG=warn
export TMPDIR=/tmp
export WANDB_MODE=disabled

# Environment: no-plugin
unset NCCL_NET_GDR_LEVEL
unset NCCL_CROSS_NIC
unset NCCL_COLLNET_ENABLE
unset NCCL_NET
mkdir -p -- /GIVE_JOBS_STAGE/checkpoints/polaris-25b/checkpoints /GIVE_JOBS_STAGE/tensorboard/polaris-25b/tensorboard /GIVE_JOBS_STAGE/data/polaris-25b/cache deepspeed
cp -- "$job"/04-training-zero1-0a64d550112f.json deepspeed/04-training-zero1-0a64d550112f.json.part
mv -f -- deepspeed/04-training-zero1-0a64d550112f.json.part deepspeed/04-training-zero1-0a64d550112f.json

# If the tracker of its checkpoints is missing, this program silently starts from random weights (dlrover issue 1065,
# metaseq issue 602). An interrupted first save leaves no tracker either: its folder is moved away
# if the training began here without checkpoints and no log reports a successful save.
checkpoints=/GIVE_JOBS_STAGE/checkpoints/polaris-25b/checkpoints
has_saved() { grep -qsF "successfully saved checkpoint" jobs/04-training*/out jobs/04-training*/err; }
for kept in "$checkpoints"/iter_* "$checkpoints"/global_step*; do
  if [[ ! -d $kept || -s $checkpoints/latest ]]; then continue; fi
  if [[ -e $checkpoints/began-without-checkpoints ]] && ! has_saved; then
    echo "runbook: the first save was cut off: $kept is moved to $checkpoints/cut-off-$job_number" >&2
    mkdir -p -- "$checkpoints/cut-off-$job_number"
    mv -- "$kept" "$checkpoints/cut-off-$job_number"
    continue
  fi
  refuse "$kept exists but $checkpoints/latest does not: the program would start from random weights. Restore that file, or move $kept away if its save was cut off"
done
if [[ ! -s $checkpoints/latest ]]; then : >"$checkpoints/began-without-checkpoints"; fi

if [[ -n $asked || -e $job/cancelled || -e $job/stop ]]; then
  job_result=75 job_reason="stopped before the training was started"
  exit "$job_result"
fi

# Copy the Python environment to each node's own disk before any rank starts: a thousand nodes that import torch from one
# file system are slow. The job is refused if a node has no copy and the shared environment has changed since it was
# packed, because ranks would run different code.
if [[ -s $job/environment.json ]]; then
  read_clock
  unpacking=$now
  mpiexec \
    -n 8 \
    --ppn 1 \
    --hostfile "$job/hostfile" \
    --envall \
    bash "$RUNBOOK_JOB_FOLDER/python.sh" --unpack >"$job/environment.jsonl" || true
  read_clock
  if grep -q '"state": "refused"' "$job/environment.jsonl"; then
    timeout 60 mpiexec \
      -n 8 \
      --ppn 1 \
      --hostfile "$job/hostfile" \
      --envall \
      bash "$RUNBOOK_JOB_FOLDER/python.sh" --remove || true
    refuse "a node has no copy of the Python environment, and the shared one has changed since it was packed (see err). Submit again"
  fi
  copies=$(grep -cE '"state": "(unpacked|present)"' "$job/environment.jsonl") || true
  echo "runbook: Python runs from /local/scratch on $copies of 8 nodes, after $((now - unpacking)) s" >&2
  printf '{"time": %(%s)T, "event": "environment_copied", "phase": "04-training", "job": "%s", "nodes": 8, "nodes_with_copy": %d, "folder": "/local/scratch", "seconds": %d}\n' \
    -1 "${job##*/}" "$copies" "$((now - unpacking))" >>events.jsonl
else
  echo "runbook: no environment.json in the job's folder: Python runs from the shared environment" >&2
fi

read_clock
export RUNBOOK_SECONDS_LEFT=$((3600 - now + begin))
mpiexec \
  -n 32 \
  --ppn 4 \
  --hostfile "$job/hostfile" \
  --cpu-bind list:24-31:16-23:8-15:0-7 \
  --envall \
  bash \
  "$job/rank.sh" </dev/null &
step=$!

code="" was_asked="" deadline=0 next_beat=0
first_code="" end_signal=TERM
exec {pause}<> <(:) # never has any data: a read with a time limit waits without starting a process
while [[ -z $code ]]; do
  read_clock
  if ((now >= next_beat)); then
    beat || true # a full disk must not end the training
    next_beat=$((now + 5))
  fi
  if [[ -e $job/cancelled ]]; then asked=${asked:-the request to cancel}; fi
  if [[ -e $job/stop ]]; then asked=${asked:-the request to stop}; fi
  if ((now - begin >= 3300)); then asked=${asked:-the end of the walltime, which PBS does not announce}; fi
  if [[ -n $asked && -z $was_asked ]]; then
    was_asked=yes deadline=$((now + 240))
    : >"$job/stop" # rank 0 sees it and tells its program
  fi
  if [[ -z $first_code && -s $job/rank-ended ]]; then # mpiexec would wait forever for the ranks of a lost node
    if ! read -r first_code port <"$job/rank-ended"; then
      first_code="" # another node has not written the whole line yet
    elif [[ $port != "$MASTER_PORT" ]]; then # from an earlier attempt
      rm -f "$job/rank-ended"
      first_code=""
    else
      case $first_code in 0 | 75) others=240 ;; *) others=30 ;; esac
      if ((deadline == 0 || now + others < deadline)); then
        deadline=$((now + others)) end_signal=KILL # after TERM, mpiexec blames the wrong node in the log
      fi
    fi
  fi
  if ((deadline && now >= deadline)); then
    kill "-$end_signal" "$step" 2>/dev/null || true # the launcher ends its ranks, whether they have saved or not
    deadline=0
  fi
  if ! kill -0 "$step" 2>/dev/null; then
    code=0
    wait "$step" || code=$?
  else
    read -r -t 1 -u "$pause" || true
  fi
done

# Rank 0's exit code decides: a killed launcher may return 0, and a launcher that ended the other ranks returns another code.
rank=none
if [[ -e $job/rank-0 ]]; then rank=$(<"$job/rank-0"); fi
if [[ $rank == 0 && -n $asked ]]; then rank=75; fi # when asked to stop, these programs save and exit with 0
# A queue sends TERM both at the walltime and to a deleted job; the elapsed time tells which it was.
read_clock
if [[ $asked == SIGTERM ]] && ((now - begin >= 3570)); then
  asked="the end of the walltime"
  : >"$job/timed_out"
fi
by="${asked:+ at $asked}"
case $rank in
  0) job_result=0 job_reason="finished$by" ;;
  75) job_result=75 job_reason="saved and stopped$by" ;;
  2) job_result=2 job_reason="the training program refused to start (exit code 2)" ;;
  none)
    job_result=1 job_reason="rank 0 was ended without an exit code$by, the starter's was $code"
    # The job was not asked to stop, so the signal came from outside.
    if [[ -z $asked && $end_signal != KILL ]] && ((code > 128)); then job_signal=$((code - 128)); fi
    ;;
  *) job_result=1 job_reason="rank 0 ended with exit code $rank$by" ;;
esac
if ((code != 0 && job_result == 0)); then job_result=1 job_reason="rank 0 finished, but the starter ended with $code$by"; fi
if ((job_result == 1)) && [[ $rank != none ]] && ((rank > 128)); then job_signal=$((rank - 128)); fi
if ((job_result == 1)) && [[ -s $job/rank-signal ]]; then
  # The signal that ended the first rank is the cause; rank 0's own exit code is a consequence.
  read -r killed_rank job_signal <"$job/rank-signal"
  job_reason+="; rank $killed_rank was ended by signal $job_signal"
fi
timeout 60 mpiexec \
  -n 8 \
  --ppn 1 \
  --hostfile "$job/hostfile" \
  --envall \
  bash "$RUNBOOK_JOB_FOLDER/python.sh" --remove || true # a later job of yours on that node removes what remains
exit "$job_result"
