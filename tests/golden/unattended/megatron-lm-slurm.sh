#!/usr/bin/env bash
#SBATCH --cpus-per-task=96
#SBATCH --error=err
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --job-name=azure-175b-04-training
#SBATCH --mem=0
#SBATCH --no-kill
#SBATCH --nodes=18
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=out
#SBATCH --partition=gpu
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#SBATCH --time=24:00:00
#
# Run azure-175b, phase 04-training, site azure: 18 nodes x 8 devices, megatron-lm.
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
# This is one of 3 chained jobs in this folder. The queue starts each job when the previous one has ended, however it ended.
# This job exits at once if the previous one decided that none should follow, or if a person asked the chain to stop.
if [[ -e $job/started ]]; then
  read -r _ previous <"$job/started" || true
  code="" action="go on" # without a code and a decision, the previous job was killed with its script
  if [[ -s $job/exit_code ]]; then read -r code <"$job/exit_code"; fi
  case $code in '' | 75) ;; 0) action="done" ;; *) action="stop" ;; esac
  if [[ -s $job/decision ]]; then read -r action <"$job/decision"; fi
  if [[ -e $job/cancelled || -e $job/stop_requested ]]; then action="the end that a person asked for"; fi
  if [[ $action != "go on" ]]; then
    echo "runbook: $1 exits immediately. The decision after $previous: $action" >&2
    exit 0
  fi
  for ((tries = 60; tries; tries--)); do # wait until the submitter has written this job's number to the list
    if grep -sqxF -- "$1" "$job/chain"; then break; fi
    sleep 1
  done
  if ((tries)); then
    if [[ -e $job/decision ]]; then mv -f "$job/decision" "$job/decision.$previous"; fi
    again "$previous"
  fi
fi

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
((${#hosts[@]} == 18)) || refuse "the queue granted ${#hosts[@]} nodes, but the plan is for 18"
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

events=events.jsonl
# Each start of the training is an attempt. A line in both logs and an event mark where it begins, so that only its own
# lines explain how it ended. python -m runbook.next_job writes the decision about what follows.
begin_attempt() {
  local name saved=0
  attempt=0
  resumed=yes
  failed_at=0 err_read=$(($(stat -c %s "$job/err" 2>/dev/null || echo 0) + 1))
  if [[ -s $job/attempts ]]; then attempt=$(<"$job/attempts"); fi
  for name in rank-0 rank-ended rank-signal decision unended; do # files of the previous attempt
    if [[ -e $job/$name ]]; then mv -f "$job/$name" "$job/$name.attempt-$attempt"; fi
  done
  attempt=$((attempt + 1))
  echo "$attempt" >"$job/attempts"
  echo 8 >"$job/ranks_per_node"
  echo "runbook: attempt $attempt of $RUNBOOK_JOB begins"
  echo "runbook: attempt $attempt of $RUNBOOK_JOB begins" >&2
  if [[ -s $checkpoints/latest_checkpointed_iteration.txt ]]; then
    saved=$(tr -dc 0-9 <"$checkpoints/latest_checkpointed_iteration.txt") resumed="not known"
    log_begins=$(stat -c %s "$job/out" 2>/dev/null || echo 0)
  fi
  if [[ -s $events && -n $(tail -c 1 "$events") ]]; then echo >>"$events"; fi # after a kill, the last line may be incomplete
  printf '{"time": %(%s)T, "event": "attempt_began", "phase": "04-training", "job": "%s", "attempt": %d, "id": "%s", "saved": %d}\n' \
    -1 "${job##*/}" "$attempt" "$RUNBOOK_JOB" "$saved" >>"$events"
}

check_end() { # a failed step never ends if a process on one of its nodes cannot be killed; such a step is left behind
  local size
  if ((failed_at == 0)); then
    size=$(stat -c %s "$job/err" 2>/dev/null || echo 0) # taken first: the search may miss lines that are written during it
    if grep -qE '^srun: .*Terminating (StepId|job step)' <(tail -c "+$err_read" "$job/err"); then failed_at=$now; fi
    if ((size - 200 > err_read)); then err_read=$((size - 200)); fi # the last line may be incomplete
  elif ((now - failed_at >= 30)); then
    : >"$job/unended" || true # a full disk must not end the training
    kill -KILL "$step" 2>/dev/null || true
    export SLURM_OVERLAP=1 # Slurm still counts that step as running; the next step shares its nodes
  fi
}

check_resume() { # the program may start over silently, so the log must show that it loaded a checkpoint
  if grep -qF "successfully loaded checkpoint" <(tail -c "+$log_begins" "$job/out" 2>/dev/null); then
    resumed=yes
  elif grep -qE "iteration +[0-9]+/" <(tail -c "+$log_begins" "$job/out" 2>/dev/null); then
    resumed=no
    kill -TERM "$step" 2>/dev/null || true
  fi
}

decide() { # set what follows: `action` is "go on", "stop" or "done", `here` is "here" or "elsewhere"
  action=stop here=elsewhere suspects="" why="the program that decides what to do next gave no answer" recovery=0
  case $job_result in 0) action="done" ;; 75) action="go on" ;; esac
  if timeout 300 env PYTHONPATH=/project python3 -m runbook.next_job --run=azure-175b --phase=04-training --restarts=3 --events=events.jsonl --metrics=metrics.jsonl --stages=16 --tracker=/GIVE_JOBS_STAGE/checkpoints/azure-175b/checkpoints/latest_checkpointed_iteration.txt \
    --job "$job" --code "$job_result" --signal "$job_signal" --reason "$job_reason" --spares "$((${#trusted[@]} - ${#training_nodes[@]}))"; then
    { read -r action && read -r here && read -r suspects && read -r why && read -r recovery; } <"$job/decision"
  else
    printf '%s\n' "$action" "$here" "$suspects" "$why" "$recovery" >"$job/decision"
  fi
  if [[ -s $job/bad_nodes.jsonl ]]; then # keep these nodes for the site: runbook nodes lists them
    mkdir -p ../azure
    cat "$job/bad_nodes.jsonl" >>../azure/bad_nodes.jsonl
    cat "$job/bad_nodes.jsonl" >>"$job/bad_nodes.kept"
    rm -f "$job/bad_nodes.jsonl"
  fi
  echo "runbook: $job_reason; then: $action${why:+, because $why}" >&2
}

find_followers() { # fill `behind` with the later jobs of the chain
  mapfile -t behind < <(awk -v job="$RUNBOOK_JOB" 'seen; $0 == job {seen = 1}' "$job/chain" 2>/dev/null)
}

wait_for_recovery() { # the next job starts when this one ends, and would get the lost node again if the queue had not noticed the loss
  local behind end
  find_followers
  if ((recovery == 0 || ${#behind[@]} == 0)); then return; fi
  echo "runbook: waits $recovery s, in which the queue can take the lost node out of service, before the next job begins" >&2
  read_clock
  end=$((now + recovery))
  while ((now < end)) && [[ -z $asked && ! -e $job/cancelled ]]; do
    beat || true
    read -r -t 1 -u "$pause" || true
    read_clock
  done
}

leave_queue() { # cancel the later jobs of the chain if possible: they would start only to exit
  local behind
  find_followers
  if ((${#behind[@]} == 0)); then return; fi
  scancel "${behind[@]#slurm-}" || true
}

# 16 of the 18 nodes train, the others are spare. `trusted` holds all nodes that answer, with suspects last.
trusted=("${hosts[@]}")

choose_nodes() { # choose the first 16 trusted nodes, in the queue's order, which is the ranks' order
  local node
  local -A is_chosen=()
  for node in "${trusted[@]:0:16}"; do is_chosen[$node]=yes; done
  training_nodes=()
  for node in "${hosts[@]}"; do
    if [[ -n ${is_chosen[$node]:-} ]]; then training_nodes+=("$node"); fi
  done
  printf '%s\n' "${training_nodes[@]}" >"$job/hostfile"
  step_nodes=$(IFS=,; echo "${training_nodes[*]}")
  export MASTER_ADDR=${training_nodes[0]} MASTER_PORT=$((49152 + (job_number + 101 * attempt) % 16384))
  echo "runbook: attempt $attempt trains on $step_nodes" >&2
}

note_node() { # record what happens to a node in the log and in the run's events
  echo "runbook: node $1 $2" >&2
  printf '{"time": %(%s)T, "event": "node_replaced", "phase": "04-training", "job": "%s", "node": "%s", "why": "%s"}\n' \
    -1 "${job##*/}" "$1" "$2" >>"$events"
}

remember_node() { # later jobs of this site leave this node out for a day: runbook nodes lists it
  local moment
  printf -v moment '%(%s)T' -1
  mkdir -p ../azure
  printf '{"node": "%s", "found_by": "failure", "evidence": "%s", "run": "azure-175b", "job": "%s", "found": %d, "expires": %d}\n' \
    "$1" "no process started there within 30 s" "${job##*/}" "$moment" "$((moment + 86400))" \
    >>../azure/bad_nodes.jsonl
}

replace_nodes() { # leave out nodes on which nothing starts, and put suspects last
  local node good=() doubtful=() silent=()
  local -A question=() is_suspect=()
  for node in $suspects; do is_suspect[$node]=yes; done
  for node in "${trusted[@]}"; do
    timeout 30 srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" true &>/dev/null &
    question[$node]=$!
  done
  for node in "${trusted[@]}"; do
    if ! wait "${question[$node]}"; then
      if [[ -n $asked ]]; then return 1; fi # a signal interrupted the wait: this node's state is not known
      silent+=("$node")
    elif [[ -n ${is_suspect[$node]:-} ]]; then
      note_node "$node" "is under suspicion and becomes a spare"
      doubtful+=("$node")
    else
      good+=("$node")
    fi
  done
  if ((${#silent[@]} == ${#trusted[@]})); then # probably the queue does not answer
    job_reason+="; no node answered"
    return 1
  fi
  for node in "${silent[@]}"; do
    note_node "$node" "does not answer and is left out"
    remember_node "$node"
  done
  trusted=("${good[@]}" "${doubtful[@]}")
  ((${#trusted[@]} >= 16)) || {
    job_reason+="; ${#trusted[@]} nodes are left, and training needs 16"
    return 1
  }
}

run_step() {
  read_clock
  export RUNBOOK_SECONDS_LEFT=$((86400 - now + begin))
  srun \
    --nodes=16 \
    --ntasks=16 \
    --ntasks-per-node=1 \
    --kill-on-bad-exit=1 \
    --cpus-per-task=96 \
    --nodelist="$step_nodes" \
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
      if [[ $resumed == "not known" ]]; then check_resume; fi
      check_end
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
  if [[ -e $job/unended ]]; then job_reason+="; its failed step did not end within 30 s and was left behind"; fi
  if [[ $resumed == "not known" ]]; then check_resume; fi
  if [[ $resumed == no ]]; then
    job_result=2 job_reason="the program ran a step without loading the checkpoint that $checkpoints/latest_checkpointed_iteration.txt names"
  fi
}

# Train again in this allocation until the training is done, or until it is decided that it cannot continue here.
while true; do
  job_result="" job_signal=""
  begin_attempt
  choose_nodes
  run_step
  decide
  if [[ $here != here || -n $asked ]]; then break; fi
  replace_nodes || break
  if [[ -n $asked ]]; then break; fi
done
if [[ $action == "go on" ]]; then wait_for_recovery; else leave_queue; fi
exit "$job_result"
