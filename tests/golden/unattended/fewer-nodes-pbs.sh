#!/usr/bin/env bash
#PBS -A GIVE_JOBS_ACCOUNT
#PBS -N polaris-25b-04-training
#PBS -W tolerate_node_failures=all
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
# Run polaris-25b, phase 04-training, site polaris: 8 nodes x 4 devices, runbook.
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
# Python writes its output unbuffered, and imports nothing from the run's folder.
export PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1
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
export PYTHONPATH=/project
mkdir -p -- /GIVE_JOBS_STAGE/checkpoints/polaris-25b/checkpoints /GIVE_JOBS_STAGE/tensorboard/polaris-25b/tensorboard /GIVE_JOBS_STAGE/data/polaris-25b/cache

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
  if [[ -s $job/attempts ]]; then attempt=$(<"$job/attempts"); fi
  for name in rank-0 rank-ended rank-signal decision unended; do # files of the previous attempt
    if [[ -e $job/$name ]]; then mv -f "$job/$name" "$job/$name.attempt-$attempt"; fi
  done
  attempt=$((attempt + 1))
  echo "$attempt" >"$job/attempts"
  echo 4 >"$job/ranks_per_node"
  echo "runbook: attempt $attempt of $RUNBOOK_JOB begins"
  echo "runbook: attempt $attempt of $RUNBOOK_JOB begins" >&2
  if [[ -s $events && -n $(tail -c 1 "$events") ]]; then echo >>"$events"; fi # after a kill, the last line may be incomplete
  printf '{"time": %(%s)T, "event": "attempt_began", "phase": "04-training", "job": "%s", "attempt": %d, "id": "%s", "saved": %d}\n' \
    -1 "${job##*/}" "$attempt" "$RUNBOOK_JOB" "$saved" >>"$events"
}

decide() { # set what follows: `action` is "go on", "stop" or "done", `here` is "here" or "elsewhere"
  action=stop here=elsewhere suspects="" why="the program that decides what to do next gave no answer" recovery=0
  case $job_result in 0) action="done" ;; 75) action="go on" ;; esac
  if timeout 300 python3 -m runbook.next_job --run=polaris-25b --phase=04-training --restarts=3 --events=events.jsonl --metrics=metrics.jsonl \
    --job "$job" --code "$job_result" --signal "$job_signal" --reason "$job_reason" --spares "$((${#trusted[@]} - ${#training_nodes[@]}))"; then
    { read -r action && read -r here && read -r suspects && read -r why && read -r recovery; } <"$job/decision"
  else
    printf '%s\n' "$action" "$here" "$suspects" "$why" "$recovery" >"$job/decision"
  fi
  if [[ -s $job/bad_nodes.jsonl ]]; then # keep these nodes for the site: runbook nodes lists them
    mkdir -p ../polaris
    cat "$job/bad_nodes.jsonl" >>../polaris/bad_nodes.jsonl
    cat "$job/bad_nodes.jsonl" >>"$job/bad_nodes.kept"
    rm -f "$job/bad_nodes.jsonl"
  fi
  echo "runbook: $job_reason; then: $action${why:+, because $why}" >&2
}

# 8 of the 8 nodes train, or fewer if too few are healthy. `trusted` holds all nodes that answer, with suspects last.
trusted=("${hosts[@]}")
declare -A is_doubtful=() # nodes that were suspected once in this allocation
left_out=()               # nodes suspected twice: they answer, and train only if too few others do

count_nodes() { # set num_nodes to the largest number that the plan allows and that the trusted nodes can provide
  for num_nodes in 8 6 4 3 2; do
    if ((${#trusted[@]} >= num_nodes)); then break; fi
  done
  export RUNBOOK_NUM_NODES=$num_nodes
  if ((num_nodes < 8)); then
    echo "runbook: only $num_nodes of 8 nodes train, with fewer data-parallel replicas and the same global batch" >&2
  fi
}

choose_nodes() { # choose the first num_nodes trusted nodes, in the queue's order, which is the ranks' order
  local node
  local -A is_chosen=()
  count_nodes
  for node in "${trusted[@]:0:num_nodes}"; do is_chosen[$node]=yes; done
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
  mkdir -p ../polaris
  printf '{"node": "%s", "found_by": "failure", "evidence": "%s", "run": "polaris-25b", "job": "%s", "found": %d, "expires": %d}\n' \
    "$1" "no process started there within 30 s" "${job##*/}" "$moment" "$((moment + 86400))" \
    >>../polaris/bad_nodes.jsonl
}

take_left_out() { # use nodes again that were suspected twice, if they still answer
  local node
  local -A question=()
  for node in "${left_out[@]}"; do
    timeout 30 mpiexec -n 1 --ppn 1 --hosts "$node" true &>/dev/null &
    question[$node]=$!
  done
  for node in "${left_out[@]}"; do
    if wait "${question[$node]}"; then
      note_node "$node" "trains again, because too few others are available"
      trusted+=("$node")
    elif [[ -n $asked ]]; then # a signal interrupted the wait: this node's state is not known
      return 1
    else
      note_node "$node" "does not answer and is left out"
      remember_node "$node"
    fi
  done
  left_out=()
}

replace_nodes() { # leave out nodes on which nothing starts, and put suspects last
  local node good=() doubtful=() silent=()
  local -A question=() is_suspect=()
  for node in $suspects; do is_suspect[$node]=yes; done
  for node in "${trusted[@]}"; do
    timeout 30 mpiexec -n 1 --ppn 1 --hosts "$node" true &>/dev/null &
    question[$node]=$!
  done
  for node in "${trusted[@]}"; do
    if ! wait "${question[$node]}"; then
      if [[ -n $asked ]]; then return 1; fi # a signal interrupted the wait: this node's state is not known
      silent+=("$node")
    elif [[ -n ${is_suspect[$node]:-} && -n ${is_doubtful[$node]:-} ]]; then
      note_node "$node" "is suspected again and is left out while enough others are available"
      left_out+=("$node")
    elif [[ -n ${is_suspect[$node]:-} ]]; then
      note_node "$node" "is under suspicion and becomes a spare"
      doubtful+=("$node")
      is_doubtful[$node]=yes
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
  if ((${#trusted[@]} < 2)); then take_left_out || return 1; fi
  ((${#trusted[@]} >= 2)) || {
    job_reason+="; ${#trusted[@]} nodes are left, and training needs at least 2"
    return 1
  }
}

run_step() {
  read_clock
  export RUNBOOK_SECONDS_LEFT=$((3600 - now + begin))
  mpiexec \
    -n "$((num_nodes * 4))" \
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
exit "$job_result"
