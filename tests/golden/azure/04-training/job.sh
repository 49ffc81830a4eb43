#!/usr/bin/env bash
#SBATCH --cpus-per-task=96
#SBATCH --error=err
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --job-name=azure-175b-04-training
#SBATCH --mem=0
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=out
#SBATCH --partition=gpu
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#SBATCH --time=24:00:00
#
# Run azure-175b, phase 04-training, site azure: 16 nodes x 8 devices, megatron-lm.
# Submit it from its own folder, with runbook or by hand: cd jobs/04-training && sbatch job.sh
# Exit codes: 0 finished, 75 saved and stopped (continue with a new job), 2 refused before the first step, 1 failed.
# shellcheck disable=SC1090,SC1091,SC2016,SC2034,SC2317,SC2329 # values in single quotes stay as they are; traps call functions
set -euo pipefail
unset CDPATH

# The queue starts a copy of this script, so its folder is the one from which it was submitted. The job works in the run's folder.
cd -- "${SLURM_SUBMIT_DIR:?is not set: submit this script with sbatch}"
job_number=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}
unset SLURM_EXPORT_ENV # set by sbatch --export=NONE: tasks would start without this script's variables
job=$PWD
cd ../..
user=$(id -un)
set -- "slurm-$job_number"
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
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
((${#hosts[@]} == 16)) || refuse "the queue granted ${#hosts[@]} nodes, but the plan is for 16"
printf '%s\n' "${hosts[@]}" >"$job/hostfile"
export MASTER_ADDR=${hosts[0]} MASTER_PORT=$((49152 + job_number % 16384))
export PYTHONUNBUFFERED=1 # Python writes its output unbuffered
unset PYTHONSAFEPATH      # with it, Python 3.11 does not import from the program's own folder
export OMP_NUM_THREADS=12

# Environment: megatron
export CUDA_DEVICE_MAX_CONNECTIONS=1
export LOGLEVEL=INFO

# Environment: network
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export NCCL_TOPO_FILE=/opt/microsoft/ndv5-topo.xml
export NCCL_SOCKET_IFNAME=eth0
export NCCL_IB_PCI_RELAXED_ORDERING=1
export NCCL_IB_QPS_PER_CONNECTION=4
export NCCL_IGNORE_CPU_AFFINITY=1
export NCCL_P2P_NET_CHUNKSIZE=524288
export NCCL_PXN_DISABLE=1
export NCCL_MIN_NCHANNELS=32
export UCX_TLS=rc
export UCX_NET_DEVICES=mlx5_ib0:1
export OMPI_MCA_coll_hcoll_enable=0
mkdir -p -- /GIVE_JOBS_STAGE/checkpoints/azure-175b/checkpoints /GIVE_JOBS_STAGE/tensorboard/azure-175b/tensorboard /GIVE_JOBS_STAGE/data/azure-175b/cache

# If the tracker of its checkpoints is missing, this program silently starts from random weights (dlrover issue 1065,
# metaseq issue 602). An interrupted first save leaves no tracker either: its folder is moved away
# if the training began here without checkpoints and no log reports a successful save.
checkpoints=/GIVE_JOBS_STAGE/checkpoints/azure-175b/checkpoints
has_saved() { grep -qsF "successfully saved checkpoint" jobs/04-training*/out jobs/04-training*/err; }
for kept in "$checkpoints"/iter_* "$checkpoints"/global_step*; do
  if [[ ! -d $kept || -s $checkpoints/latest_checkpointed_iteration.txt ]]; then continue; fi
  if [[ -e $checkpoints/began-without-checkpoints ]] && ! has_saved; then
    echo "runbook: the first save was cut off: $kept is moved to $checkpoints/cut-off-$job_number" >&2
    mkdir -p -- "$checkpoints/cut-off-$job_number"
    mv -- "$kept" "$checkpoints/cut-off-$job_number"
    continue
  fi
  refuse "$kept exists but $checkpoints/latest_checkpointed_iteration.txt does not: the program would start from random weights. Restore that file, or move $kept away if its save was cut off"
done
if [[ ! -s $checkpoints/latest_checkpointed_iteration.txt ]]; then : >"$checkpoints/began-without-checkpoints"; fi
case $PWD in *[:,]*) refuse "the run's folder $PWD cannot be mounted: its name holds ':' or ','" ;; esac

if [[ -n $asked || -e $job/cancelled || -e $job/stop ]]; then
  job_result=75 job_reason="stopped before the training was started"
  exit "$job_result"
fi

read_clock
export RUNBOOK_SECONDS_LEFT=$((86400 - now + begin))
srun \
  --nodes=16 \
  --ntasks=16 \
  --ntasks-per-node=1 \
  --kill-on-bad-exit=1 \
  --cpus-per-task=96 \
  --container-image=/GIVE_JOBS_STAGE/pytorch+25.03+py3.sqsh \
  --container-mounts="$PWD:$PWD",/GIVE_JOBS_STAGE:/GIVE_JOBS_STAGE,/opt/microsoft:/opt/microsoft,/var/tmp:/var/tmp \
  --container-workdir="$PWD" \
  --no-container-mount-home \
  --container-env=CUDA_DEVICE_MAX_CONNECTIONS,CUDA_DEVICE_ORDER,LOGLEVEL,MASTER_ADDR,MASTER_PORT,NCCL_IB_PCI_RELAXED_ORDERING,NCCL_IB_QPS_PER_CONNECTION,NCCL_IGNORE_CPU_AFFINITY,NCCL_MIN_NCHANNELS,NCCL_P2P_NET_CHUNKSIZE,NCCL_PXN_DISABLE,NCCL_SOCKET_IFNAME,NCCL_TOPO_FILE,OMPI_MCA_coll_hcoll_enable,OMP_NUM_THREADS,PYTHONUNBUFFERED,RUNBOOK_JOB,RUNBOOK_JOB_FOLDER,RUNBOOK_SECONDS_LEFT,UCX_NET_DEVICES,UCX_TLS \
  python3 -m torch.distributed.run \
  --nnodes=16 \
  --nproc-per-node=8 \
  --rdzv-id="$job_number" \
  --rdzv-backend=c10d \
  --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \
  --no-python bash \
  "$job/rank.sh" </dev/null &
step=$!

code="" was_asked="" deadline=0 next_beat=0
exec {pause}<> <(:) # never has any data: a read with a time limit waits without starting a process
while [[ -z $code ]]; do
  read_clock
  if ((now >= next_beat)); then
    beat || true # a full disk must not end the training
    next_beat=$((now + 5))
  fi
  if [[ -e $job/cancelled ]]; then asked=${asked:-the request to cancel}; fi
  if [[ -e $job/stop ]]; then asked=${asked:-the request to stop}; fi
  if [[ -n $asked && -z $was_asked ]]; then
    was_asked=yes deadline=$((now + 240))
    : >"$job/stop" # rank 0 sees it and tells its program
  fi
  if ((deadline && now >= deadline)); then
    kill -TERM "$step" 2>/dev/null || true # the launcher ends its ranks, whether they have saved or not
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
if [[ $asked == SIGTERM ]] && ((now - begin >= 86370)); then
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
    if [[ -z $asked ]] && ((code > 128)); then job_signal=$((code - 128)); fi
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
exit "$job_result"
