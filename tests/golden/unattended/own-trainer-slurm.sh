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
# Run azure-175b, phase 04-training, site azure: 18 nodes x 8 devices, runbook.
# Submitted from its own folder, by runbook or by hand: cd jobs/04-training && sbatch job.sh
# Ends with 0: finished, 75: saved and stopped (go on with a new job), 2: refused before the first step, 1: failed.
# shellcheck disable=SC1090,SC1091,SC2016,SC2034,SC2317,SC2329 # values in single quotes stay as they are; traps call functions
set -euo pipefail
unset CDPATH

# The queue starts a copy of this script: its folder is the one it was submitted from. Work goes on in the run's folder.
cd -- "${SLURM_SUBMIT_DIR:?is not set: submit this script with sbatch}"
job_number=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}
job=$PWD
cd ../..
user=$(id -un)
set -- "slurm-$job_number"
# Started again by the queue under its old number: what the earlier start said of itself is kept beside.
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
# One of a chain of 3 jobs that the queue starts one after another in this folder, each when the one before has ended,
# however it ended. It leaves at once where the one before said that none should follow, or a person asked for the end.
if [[ -e $job/started ]]; then
  read -r _ previous <"$job/started" || true
  code="" action="go on" # without a code and a decision, that job was killed with its script
  if [[ -s $job/exit_code ]]; then read -r code <"$job/exit_code"; fi
  case $code in '' | 75) ;; 0) action="done" ;; *) action="stop" ;; esac
  if [[ -s $job/decision ]]; then read -r action <"$job/decision"; fi
  if [[ -e $job/cancelled || -e $job/stop_requested ]]; then action="the end that a person asked for"; fi
  if [[ $action != "go on" ]]; then
    echo "runbook: $1 leaves at once. The decision after $previous: $action" >&2
    exit 0
  fi
  for ((tries = 60; tries; tries--)); do # whoever submitted the chain writes down each number that the queue gave
    if grep -sqxF -- "$1" "$job/chain"; then break; fi
    sleep 1
  done
  if ((tries)); then
    if [[ -e $job/decision ]]; then mv -f "$job/decision" "$job/decision.$previous"; fi
    again "$previous"
  fi
fi

# What the job says of itself, beside its script: started (once, never overwritten), heartbeat, and at its end reason,
# signal (where one ended a rank) and exit_code, the latter by rename. The state of the job is read from these, so they are true whoever looks.
export RUNBOOK_JOB=${1:-by-hand-$$-$RANDOM} RUNBOOK_JOB_FOLDER=$job
read -r boot_id </proc/sys/kernel/random/boot_id
readonly job boot_id
read -r host </proc/sys/kernel/hostname
read -r stat <"/proc/$$/stat"
read -ra stat <<<"${stat##*) }"

read_clock() { # seconds since the machine's start: no change of the clock moves them
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
echo "   " >"$job/exit_code.part" # its place on the disk is taken now, in case the disk is full at the end

beat() {
  printf '%(%s)T %s %s\n' -1 "$uptime" "$boot_id" >"$job/heartbeat.part" && mv -f "$job/heartbeat.part" "$job/heartbeat"
}
beat

end_leftovers() { # whatever carries the job's mark, also in another group or session
  local files file process
  mapfile -t files < <(grep -lzxF "RUNBOOK_JOB=$RUNBOOK_JOB" /proc/[0-9]*/environ 2>/dev/null)
  for file in "${files[@]}"; do
    process=${file//[!0-9]/}
    [[ $process == "$$" ]] || kill -KILL "$process" 2>/dev/null || true
  done
}

job_result="" job_reason="the job's script failed before the training was started"
job_signal="" # the number of the signal that ended a rank, where that decided how the job ended
finish() {
  local code=$?
  if [[ -z $job_result && $code == 0 ]]; then code=1; fi # a set-up command that leaves is not a training that ended
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

# Being asked to stop, by the queue before its time limit, by a signal or a cancelled marker.
asked=""
for name in USR1 TERM INT HUP; do
  # shellcheck disable=SC2064 # the name as it is now
  trap "asked=\${asked:-SIG$name}" "$name"
done

# Where the ranks meet: the first host of the queue's own list, at a port made from the job's number.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
((${#hosts[@]} == 18)) || refuse "the queue gave ${#hosts[@]} nodes, the plan is for 18"
printf '%s\n' "${hosts[@]}" >"$job/hostfile"
export MASTER_ADDR=${hosts[0]} MASTER_PORT=$((49152 + job_number % 16384))
# Python shows what it prints at once, and imports nothing from the run's folder.
export PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1
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
export PYTHONPATH=/project
mkdir -p -- /GIVE_JOBS_STAGE/checkpoints/azure-175b/checkpoints /GIVE_JOBS_STAGE/tensorboard/azure-175b/tensorboard /GIVE_JOBS_STAGE/data/azure-175b/cache
case $PWD in *[:,]*) refuse "the run's folder $PWD cannot be mounted: its name holds ':' or ','" ;; esac

if [[ -n $asked || -e $job/cancelled || -e $job/stop ]]; then
  job_result=75 job_reason="stopped before the training was started"
  exit "$job_result"
fi

events=events.jsonl
# Each start of the training is an attempt. A line in both logs and an event say where it begins, so that its end can be
# understood by itself: python -m runbook.next_job writes the decision about what follows.
begin_attempt() {
  local name saved=0
  attempt=0
  failed_at=0 err_read=$(($(stat -c %s "$job/err" 2>/dev/null || echo 0) + 1))
  if [[ -s $job/attempts ]]; then attempt=$(<"$job/attempts"); fi
  for name in rank-0 rank-ended rank-signal decision unended; do # what the attempt before left
    if [[ -e $job/$name ]]; then mv -f "$job/$name" "$job/$name.attempt-$attempt"; fi
  done
  attempt=$((attempt + 1))
  echo "$attempt" >"$job/attempts"
  echo 8 >"$job/ranks_per_node"
  echo "runbook: attempt $attempt of $RUNBOOK_JOB begins"
  echo "runbook: attempt $attempt of $RUNBOOK_JOB begins" >&2
  if [[ -s $events && -n $(tail -c 1 "$events") ]]; then echo >>"$events"; fi # a line that a kill cut off
  printf '{"time": %(%s)T, "event": "attempt_began", "phase": "04-training", "job": "%s", "attempt": %d, "id": "%s", "saved": %d}\n' \
    -1 "${job##*/}" "$attempt" "$RUNBOOK_JOB" "$saved" >>"$events"
}

check_end() { # a failed step cannot end while a process on one of its nodes ignores even KILL; then it is left behind
  local size
  if ((failed_at == 0)); then
    if grep -qE '^srun: .*Terminating (StepId|job step)' <(tail -c "+$err_read" "$job/err"); then failed_at=$now; fi
    size=$(stat -c %s "$job/err" 2>/dev/null || echo 0)
    if ((size - 200 > err_read)); then err_read=$((size - 200)); fi # a line may be half written
  elif ((now - failed_at >= 30)); then
    : >"$job/unended"
    kill -KILL "$step" 2>/dev/null || true
    export SLURM_OVERLAP=1 # Slurm still counts that step: the next one shares its nodes
  fi
}

decide() { # what follows: `action` is "go on", "stop" or "done", `here` is "here" or "elsewhere"
  answered=""
  action=stop here=elsewhere suspects="" why="the program that decides gave no answer" recovery=0
  case $job_result in 0) action="done" ;; 75) action="go on" ;; esac
  if timeout 300 srun --overlap --nodes=1 --ntasks=1 --nodelist="${SLURMD_NODENAME:-$host}" \
  --container-image=/GIVE_JOBS_STAGE/pytorch+25.03+py3.sqsh \
  --container-mounts="$PWD:$PWD",/GIVE_JOBS_STAGE:/GIVE_JOBS_STAGE,/opt/microsoft:/opt/microsoft,/var/tmp:/var/tmp,/project:/project \
  --container-workdir="$PWD" \
  --no-container-mount-home \
  --container-env=PYTHONPATH,PYTHONSAFEPATH,PYTHONUNBUFFERED \
  python3 -m runbook.next_job --run=azure-175b --phase=04-training --restarts=3 --events=events.jsonl --metrics=metrics.jsonl --stages=16 \
    --job "$job" --code "$job_result" --signal "$job_signal" --reason "$job_reason" --spares "$((${#trusted[@]} - ${#training_nodes[@]}))"; then
    { read -r action && read -r here && read -r suspects && read -r why && read -r recovery; } <"$job/decision"
    answered=yes
  else
    printf '%s\n' "$action" "$here" "$suspects" "$why" "$recovery" >"$job/decision"
  fi
  if [[ -s $job/bad_nodes.jsonl ]]; then # remembered for the site: runbook nodes
    mkdir -p ../azure
    cat "$job/bad_nodes.jsonl" >>../azure/bad_nodes.jsonl
    cat "$job/bad_nodes.jsonl" >>"$job/bad_nodes.kept"
    rm -f "$job/bad_nodes.jsonl"
  fi
  echo "runbook: $job_reason; then: $action${why:+, because $why}" >&2
}

find_followers() { # fills `behind` with the jobs of the chain that come after this one
  mapfile -t behind < <(awk -v job="$RUNBOOK_JOB" 'seen; $0 == job {seen = 1}' "$job/chain" 2>/dev/null)
}

wait_for_recovery() { # the next job begins when this one ends, and gets a lost node again as long as the queue has not noticed the loss
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

leave_queue() { # the jobs of the chain that still wait would begin only to leave, so they are taken out where that works
  local behind
  find_followers
  if ((${#behind[@]} == 0)); then return; fi
  scancel "${behind[@]#slurm-}" || true
}

remove_near_copies() { # where the training stops for a person: the nodes' memory belongs to whoever comes next
  local node failures=0
  local -A removal=()
  # A program for each node: one that is lost must not keep the others from removing theirs.
  for node in "${hosts[@]}"; do
    timeout 60 srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" \
      --container-image=/GIVE_JOBS_STAGE/pytorch+25.03+py3.sqsh \
      --container-mounts="$PWD:$PWD",/GIVE_JOBS_STAGE:/GIVE_JOBS_STAGE,/opt/microsoft:/opt/microsoft,/var/tmp:/var/tmp,/project:/project \
      --container-workdir="$PWD" \
      --no-container-mount-home \
      --container-env=PYTHONPATH,PYTHONSAFEPATH,PYTHONUNBUFFERED \
      python3 -m runbook.training.near.removal plan.json --phase 04-training &>/dev/null &
    removal[$node]=$!
  done
  for node in "${hosts[@]}"; do
    wait "${removal[$node]}" || failures=$((failures + 1))
  done
  if ((failures)); then
    echo "runbook: copies in node memory may be left on $failures of ${#hosts[@]} nodes: their removal failed" >&2
  fi
}

# 16 of the 18 nodes train, the others are spare. `trusted` has all nodes that answer, those under suspicion last.
trusted=("${hosts[@]}")

choose_nodes() { # the first 16 trusted ones, in the queue's own order, which is also that of the ranks
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

note_node() { # says in the log and among the run's events what becomes of a node
  echo "runbook: node $1 $2" >&2
  printf '{"time": %(%s)T, "event": "node_replaced", "phase": "04-training", "job": "%s", "node": "%s", "why": "%s"}\n' \
    -1 "${job##*/}" "$1" "$2" >>"$events"
}

remember_node() { # for a day, in which later jobs of this site leave it out: runbook nodes
  local moment
  printf -v moment '%(%s)T' -1
  mkdir -p ../azure
  printf '{"node": "%s", "found_by": "failure", "evidence": "%s", "run": "azure-175b", "job": "%s", "found": %d, "expires": %d}\n' \
    "$1" "no process started there within 30 s" "${job##*/}" "$moment" "$((moment + 86400))" \
    >>../azure/bad_nodes.jsonl
}

replace_nodes() { # leaves out nodes on which nothing starts, and takes those under suspicion last
  local node good=() doubtful=() silent=()
  local -A question=() is_suspect=()
  for node in $suspects; do is_suspect[$node]=yes; done
  for node in "${trusted[@]}"; do
    timeout 30 srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" true &>/dev/null &
    question[$node]=$!
  done
  for node in "${trusted[@]}"; do
    if ! wait "${question[$node]}"; then
      if [[ -n $asked ]]; then return 1; fi # a signal cut the waiting off: nothing is known of this node
      silent+=("$node")
    elif [[ -n ${is_suspect[$node]:-} ]]; then
      note_node "$node" "is under suspicion and becomes a spare"
      doubtful+=("$node")
    else
      good+=("$node")
    fi
  done
  if ((${#silent[@]} == ${#trusted[@]})); then # then it is rather the queue that does not answer
    job_reason+="; no node answered"
    return 1
  fi
  for node in "${silent[@]}"; do
    note_node "$node" "does not answer and is left out"
    remember_node "$node"
  done
  trusted=("${good[@]}" "${doubtful[@]}")
  ((${#trusted[@]} >= 16)) || {
    job_reason+="; ${#trusted[@]} nodes are left, and the training needs 16"
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
    --container-mounts="$PWD:$PWD",/GIVE_JOBS_STAGE:/GIVE_JOBS_STAGE,/opt/microsoft:/opt/microsoft,/var/tmp:/var/tmp,/project:/project \
    --container-workdir="$PWD" \
    --no-container-mount-home \
    --container-env=CUDA_DEVICE_MAX_CONNECTIONS,CUDA_DEVICE_ORDER,LOGLEVEL,MASTER_ADDR,MASTER_PORT,NCCL_IB_PCI_RELAXED_ORDERING,NCCL_IB_QPS_PER_CONNECTION,NCCL_IGNORE_CPU_AFFINITY,NCCL_MIN_NCHANNELS,NCCL_P2P_NET_CHUNKSIZE,NCCL_PXN_DISABLE,NCCL_SOCKET_IFNAME,NCCL_TOPO_FILE,OMPI_MCA_coll_hcoll_enable,OMP_NUM_THREADS,PYTHONPATH,PYTHONUNBUFFERED,RUNBOOK_JOB,RUNBOOK_JOB_FOLDER,RUNBOOK_SECONDS_LEFT,UCX_NET_DEVICES,UCX_TLS \
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
  exec {pause}<> <(:) # nothing ever comes from here: reading it with a time limit waits without starting a process
  while [[ -z $code ]]; do
    read_clock
    if ((now >= next_beat)); then
      beat || true # a full disk must not end the training
      next_beat=$((now + 5))
      check_end
    fi
    if [[ -e $job/cancelled ]]; then asked=${asked:-the request to cancel}; fi
    if [[ -e $job/stop ]]; then asked=${asked:-the request to stop}; fi
    if [[ -n $asked && -z $was_asked ]]; then
      was_asked=yes deadline=$((now + 240))
      : >"$job/stop" # each rank sees it and tells its program
    fi
    if ((deadline && now >= deadline)); then
      kill -TERM "$step" 2>/dev/null || true # the starter ends its ranks, saved or not
      deadline=0
    fi
    if ! kill -0 "$step" 2>/dev/null; then
      code=0
      wait "$step" || code=$?
    else
      read -r -t 1 -u "$pause" || true
    fi
  done

  # Rank 0's own code counts: a starter that was cut off may say 0, and one that ended other ranks something else.
  rank=none
  if [[ -e $job/rank-0 ]]; then rank=$(<"$job/rank-0"); fi
  # A queue sends TERM at the walltime as well as to a job that is deleted: the clock says which of both it was.
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
      # Nobody asked for the end, so the signal came from outside.
      if [[ -z $asked ]] && ((code > 128)); then job_signal=$((code - 128)); fi
      ;;
    *) job_result=1 job_reason="rank 0 ended with exit code $rank$by" ;;
  esac
  if ((code != 0 && job_result == 0)); then job_result=1 job_reason="rank 0 finished, but the starter ended with $code$by"; fi
  if ((job_result == 1)) && [[ $rank != none ]] && ((rank > 128)); then job_signal=$((rank - 128)); fi
  if ((job_result == 1)) && [[ -s $job/rank-signal ]]; then
    # The first rank that a signal ended: what rank 0 says after that is a consequence.
    read -r killed_rank job_signal <"$job/rank-signal"
    job_reason+="; rank $killed_rank was ended by signal $job_signal"
  fi
  if [[ -e $job/unended ]]; then job_reason+="; its step failed but did not end within 30 s, and was left behind"; fi
}

# Again in this allocation, until the training ends well, or the decision is that it cannot go on here.
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
# Only on an answer: without one, nobody knows that the next job does not go on from these copies.
if [[ $action == "stop" && -n $answered ]]; then remove_near_copies; fi
if [[ $action == "go on" ]]; then wait_for_recovery; else leave_queue; fi
exit "$job_result"
