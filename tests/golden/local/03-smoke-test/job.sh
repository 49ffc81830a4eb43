#!/usr/bin/env bash
# Run golden, phase 03-smoke-test, site local: 2 processes on this machine.
# The local scheduler starts it. To start it by hand, from any folder: bash job.sh
# Exit codes: 0 finished, 75 saved and stopped (continue with a new job), 2 refused before the first step, 1 failed.
# shellcheck disable=SC2016,SC2317,SC2329 # values in single quotes stay as they are; traps call functions
set -euo pipefail
unset CDPATH
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)) || [[ ! -r /proc/uptime ]]; then
  echo "runbook: this needs Linux and bash 4.4 or newer, not bash $BASH_VERSION on $OSTYPE" >&2
  exit 2
fi

# This script is in jobs/<phase> of the run's folder, and runs in the run's folder.
case $0 in */*) cd -- "${0%/*}" ;; esac
job=$PWD
cd ../..

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

# If a signal, a cancelled marker or the walltime asks the job to stop, the ranks save and exit with 75.
asked=""
for name in TERM INT HUP; do
  # shellcheck disable=SC2064 # expand the name now
  trap "asked=\${asked:-SIG$name}" "$name"
done

# All ranks are on one machine, so they connect through the loopback interface.
# Rank 0 listens at the port only later. Jobs that start at the same time must not choose the same unused port, so the
# choice begins with the script's process id. Linux gives ports below 32768 only to programs that name them.
port_is_used() { grep -qiE "^ *[0-9]+: [0-9A-F]+:$(printf '%04X' "$1") " /proc/net/tcp /proc/net/tcp6 2>/dev/null; }
MASTER_PORT=$((20000 + $$ % 10000))
while port_is_used "$MASTER_PORT"; do MASTER_PORT=$((20000 + RANDOM % 10000)); done
export MASTER_ADDR=127.0.0.1 MASTER_PORT WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
export GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo
# Python writes its output unbuffered, and imports nothing from the run's folder.
export PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1
# The ranks divide the cores: if each rank started a thread for every core, all would be slow.
export OMP_NUM_THREADS=4

if [[ -n $asked || -e $job/cancelled ]]; then
  job_result=75 job_reason="stopped before the training was started"
  exit "$job_result"
fi

ranks=()
for ((rank = 0; rank < WORLD_SIZE; rank++)); do
  # The shell itself is each rank's parent, with no launcher in between: their exit codes are exact, and a rank that asks
  # the kernel to end it with its parent (PR_SET_PDEATHSIG) does not outlive this script.
  RANK=$rank LOCAL_RANK=$rank \
    '/opt/my python/bin/python' -m runbook.training plan.json --phase 03-smoke-test </dev/null &
  ranks[rank]=$!
done

codes=() deadline=0 was_asked="" was_killed=""
limit_end() { # the remaining ranks must end within this many seconds
  if ((deadline == 0 || now + $1 < deadline)); then deadline=$((now + $1)); fi
}

collect() { # collect the exit codes of ranks that have ended
  local rank code
  for rank in "${!ranks[@]}"; do
    if kill -0 "${ranks[rank]}" 2>/dev/null; then continue; fi
    code=0
    wait "${ranks[rank]}" || code=$?
    unset "ranks[rank]"
    if [[ $code == 137 && -n $was_killed ]]; then continue; fi
    codes[rank]=$code
    case $code in
      0 | 75) if [[ -z $asked ]]; then limit_end 600; fi ;;
      12[89] | 1[3-9][0-9]) limit_end 1 ;;
      *) limit_end 3 ;;
    esac
  done
}

exec {pause}<> <(:) # nothing ever comes from here: reading it with a time limit waits without starting a process
next_beat=0 interval=0.1
while ((${#ranks[@]})); do
  read_clock
  collect
  if ((now >= next_beat)); then
    beat || true # a full disk must not end the training
    next_beat=$((now + 5))
  fi
  if [[ -e $job/cancelled ]]; then asked=${asked:-the request to cancel}; fi
  if [[ -n $asked && -z $was_asked && ${#ranks[@]} -gt 0 ]]; then
    was_asked=yes
    kill -TERM "${ranks[@]}" 2>/dev/null || true
    limit_end 120
  fi
  if ((deadline && now >= deadline && ${#ranks[@]})); then
    was_killed=${was_killed:-${!ranks[*]}}
    kill -KILL "${ranks[@]}" 2>/dev/null || true
  fi
  if ((${#codes[@]})); then interval=0.02; fi # the other ranks end soon, and nothing trains meanwhile
  if ((${#ranks[@]})); then read -r -t "$interval" -u "$pause" || true; fi
done

# The worst exit code counts; if several are equally bad, the lowest rank's. TERM ends a rank only before the rank handles
# it. No training work is lost then, and the other ranks fail as a consequence.
worst=0 culprit=0
for rank in "${!codes[@]}"; do
  case ${codes[rank]} in
    0) weight=0 ;;
    75) weight=1 ;;
    2) weight=5 ;;
    143) weight=3 ;;
    1) weight=2 ;;
    *) weight=4 ;;
  esac
  if ((weight > worst)); then worst=$weight culprit=$rank; fi
done

by="${asked:+ at $asked}"
case $worst in
  0) job_result=0 job_reason="finished" ;;
  1) job_result=75 job_reason="saved and stopped$by" ;;
  3) job_result=75 job_reason="stopped by SIGTERM before the training began$by" ;;
  5) job_result=2 job_reason="rank $culprit refused to start the training (exit code 2)" ;;
  2) job_result=1 job_reason="rank $culprit failed (exit code 1)$by" ;;
  *) job_result=1 job_reason="rank $culprit ended with exit code ${codes[culprit]}$by" ;;
esac
if ((worst == 4 && codes[culprit] > 128)); then
  job_signal=$((codes[culprit] - 128))
  job_reason+=" (signal $job_signal)"
fi
if [[ -n $was_killed ]]; then
  # If TERM ended a rank before it handled the signal, neither it nor the other ranks have trained.
  if ((worst != 3 && (job_result == 0 || job_result == 75))); then job_result=1 job_reason="not all ranks ended$by"; fi
  job_reason+="; killed because they did not end on their own: rank ${was_killed// /, }"
fi
exit "$job_result"
