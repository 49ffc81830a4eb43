#!/usr/bin/env bash
# A real Slurm on this machine for the tests: each node has its own network, processes and host name.
#
#   cluster.sh start          make the folder, start everything; returns when all nodes are idle
#   cluster.sh stop           end every process and namespace that start made; logs are kept
#   cluster.sh exec CMD ...   run CMD on the head node, where slurmctld is
#   cluster.sh env            lines to eval: SLURM_CONF, and PATH with clients that work from anywhere here
#   cluster.sh crash NAME     the node loses power: its processes die at once and its peers hear nothing more
#   cluster.sh boot NAME      start a crashed node again
#   cluster.sh slurmd-kill NAME | slurmd-start NAME    the node's daemon dies, and what it started lives on; or it comes back
#   cluster.sh ctld-stop | ctld-start    the controller stops, or comes back with what it had saved
#
# CLUSTER_DIR: where everything lies. CLUSTER_NODES, CLUSTER_CPUS: how many, and what each claims. CLUSTER_CONF: further
# lines of slurm.conf. CLUSTER_PLUGSTACK: lines of plugstack.conf. CLUSTER_OWNER: a process; when it is gone, stop.
# Needs root and Debian's slurmctld slurmd slurm-client munge iproute2. Nothing outside CLUSTER_DIR is written.
set -euo pipefail

DIR=${CLUSTER_DIR:?where the cluster lives}
NODES=${CLUSTER_NODES:-2} CPUS=${CLUSTER_CPUS:-8}
SELF=$(readlink -f "${BASH_SOURCE[0]}")
SUBNET=10.66.0
HEAD=$SUBNET.254
export SLURM_CONF=$DIR/slurm.conf CLUSTER_DIR=$DIR
cmd=${1:-help}
shift || true

die() {
  echo "cluster: $*" >&2
  exit 1
}
pid() { cat "$DIR/run/$1.pid" 2>/dev/null || true; }
start_time() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
# alive NAME: the recorded process runs and is the one that was recorded; numbers are used again, and the dead may linger
alive() {
  local p
  p=$(pid "$1")
  [ -n "$p" ] && [ -r "/proc/$p/stat" ] || return 1
  [ "$(start_time "$p")" = "$(cat "$DIR/run/$1.start" 2>/dev/null)" ] || return 1
  [ "$(sed 's/.*) //' "/proc/$p/stat" | cut -c1)" != Z ]
}
record() {
  echo "$2" >"$DIR/run/$1.pid"
  start_time "$2" >"$DIR/run/$1.start"
}
names() { seq -f 'node%g' "$NODES"; }
# end NAME [SIGNAL]: end a recorded process and wait until it is gone
end() {
  local p i
  p=$(pid "$1")
  if alive "$1"; then
    kill "-${2:-TERM}" "$p" 2>/dev/null || true
    for i in $(seq 200); do
      alive "$1" || break
      [ "$i" != 60 ] || kill -KILL "$p" 2>/dev/null || true
      sleep 0.05
    done
  fi
  rm -f "$DIR/run/$1.pid" "$DIR/run/$1.start"
}
on_head() { # a change of mount namespace would lose the working directory
  if [ "$(readlink /proc/self/ns/net)" = "$(readlink "/proc/$(pid head)/ns/net")" ]; then
    "$@"
  else
    # shellcheck disable=SC2016
    nsenter -t "$(pid head)" -m -u -n -- sh -c 'cd "$1" && shift && exec "$@"' sh "$PWD" "$@"
  fi
}
wait_for() { # WHAT CMD ...: until CMD succeeds
  local what=$1 until=$((SECONDS + 60))
  shift
  while [ $SECONDS -lt $until ]; do
    ! timeout 10 "$@" >/dev/null 2>&1 || return 0
    [ ! -e "$DIR/run/$what.pid" ] || alive "$what" || die "$what died: $(tail -3 "$DIR/log/$what.out")"
    sleep 0.05
  done
  die "$what did not come up in 60 s; logs: $DIR/log"
}

write_config() {
  local i
  {
    cat <<END
ClusterName=tests
SlurmctldHost=head($HEAD)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# cred_expire is also how long a requeued job waits before it starts again, 120 s by default
AuthInfo=socket=$DIR/munge/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool/%n
SlurmctldPidFile=$DIR/run/slurmctld.own
SlurmdPidFile=$DIR/run/slurmd.%n.own
SlurmctldLogFile=$DIR/log/slurmctld.log
SlurmdLogFile=$DIR/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
# nodes may claim more than this machine has
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# a lost node is noticed after SlurmdTimeout; KillWait lies between TERM and KILL
SlurmctldTimeout=10
SlurmdTimeout=10
KillWait=3
BatchStartTimeout=30
MessageTimeout=10
TCPTimeout=2
# tests that close the ports which the kernel chooses leave srun its own
SrunPortRange=60001-63000
InactiveLimit=0
ReturnToService=2
JobRequeue=1
MinJobAge=86400
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,sched_min_interval=0
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
END
    for i in $(seq "$NODES"); do
      echo "NodeName=node$i NodeHostname=node$i NodeAddr=$SUBNET.$i Port=17000 CPUs=$CPUS RealMemory=4000 State=UNKNOWN"
    done
    echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
    printf '%s\n' "${CLUSTER_CONF:-}"
  } >"$SLURM_CONF"
  printf '%s\n' "${CLUSTER_PLUGSTACK:-}" >"$DIR/plugstack.conf"
  {
    printf '127.0.0.1 localhost\n%s head\n' "$HEAD"
    for i in $(seq "$NODES"); do echo "$SUBNET.$i node$i"; done
  } >"$DIR/hosts"
  # shellcheck disable=SC2016
  for i in sbatch srun squeue sinfo scancel scontrol sacct; do
    # on a node a job finds this one too, and runs the real one there
    printf '#!/bin/sh\n[ -n "${SLURMD_NODENAME:-}" ] && exec /usr/bin/%s "$@"\nCLUSTER_DIR=%s exec bash %s exec /usr/bin/%s "$@"\n' \
      "$i" "'$DIR'" "'$SELF'" "$i" >"$DIR/bin/$i"
    chmod 755 "$DIR/bin/$i"
  done
}

start_munge() {
  (umask 077 && dd if=/dev/urandom of="$DIR/munge/munge.key" bs=64 count=1 2>/dev/null)
  setsid munged --foreground --force --key-file="$DIR/munge/munge.key" --socket="$DIR/munge/munge.sock" \
    --pid-file="$DIR/run/munged.own" --log-file="$DIR/log/munged.log" --seed-file="$DIR/munge/seed" \
    </dev/null >"$DIR/log/munged.out" 2>&1 &
  record munged $!
  wait_for munged munge -S "$DIR/munge/munge.sock" -n
}

start_head() {
  # shellcheck disable=SC2016
  setsid unshare --mount --uts --net -- sh -c '
    hostname head && mount --bind "$1/hosts" /etc/hosts && ip link set lo up &&
    ip link add br0 address 02:00:00:00:00:fe type bridge &&
    ip addr add "$2/24" dev br0 && ip link set br0 up && touch "$1/run/head.ok" && exec sleep infinity' \
    sh "$DIR" "$HEAD" </dev/null >"$DIR/log/head.out" 2>&1 &
  record head $!
  wait_for head test -e "$DIR/run/head.ok"
}

start_controller() {
  (exec setsid nsenter -t "$(pid head)" -m -u -n -- slurmctld -D) </dev/null >"$DIR/log/slurmctld.out" 2>&1 &
  record slurmctld $!
  wait_for slurmctld bash "$SELF" exec scontrol ping
}

start_node() { # its first process is bash, which reaps orphans; all of it ends with that process
  local n=$1 p
  ! alive "$n" || return 0
  mkdir -p "$DIR/spool/$n"
  rm -f "$DIR/run/$n.go"
  # shellcheck disable=SC2016
  setsid unshare --mount --uts --pid --fork --kill-child --mount-proc --net -- bash -c '
    hostname "$2"; mount --bind "$1/hosts" /etc/hosts
    until [ -e "$1/run/$2.go" ]; do sleep 0.02; done
    slurmd -D -N "$2" & wait $!; sleep infinity' "$n" "$DIR" "$n" </dev/null >"$DIR/log/$n.out" 2>&1 &
  p=$!
  record "$n" "$p"
  wait_for "$n" bash -c "[ \$(readlink /proc/$p/ns/net) != \$(readlink /proc/self/ns/net) ]"
  # A machine keeps its network card when it boots. With another address, its peers go on to send to the old one for some
  # seconds: srun says "Communication connection failure", or "Job credential expired".
  nsenter -t "$(pid head)" -n -- sh -c "ip link del v$n 2>/dev/null
    ip link add v$n type veth peer name eth0 address 02:00:00:00:00:$(printf %02x "${n#node}") netns $p &&
    ip link set v$n master br0 up"
  nsenter -t "$p" -n -- sh -c "ip link set lo up; ip addr add $SUBNET.${n#node}/24 dev eth0; ip link set eth0 up"
  touch "$DIR/run/$n.go"
}

node_init() { # the first process of a node, as seen from here
  local p
  p=$(pid "$1")
  cat "/proc/$p/task/$p/children"
}
kill_daemon() { # by its namespace: a daemon that was started again is no child of the node's first process
  local first namespace daemon
  first=$(node_init "$1")
  namespace=$(readlink "/proc/${first% }/ns/pid")
  for daemon in $(pgrep -x slurmd); do
    if [ "$(readlink "/proc/$daemon/ns/pid")" = "$namespace" ]; then kill -KILL "$daemon"; fi
  done
}
start_daemon() {
  local first
  first=$(node_init "$1")
  (exec setsid nsenter -t "${first% }" -m -u -p -n -- slurmd -D -N "$1") </dev/null >>"$DIR/log/$1.out" 2>&1 &
}

start_guard() { # whoever started the cluster may be killed without a chance to stop it
  [ -n "${CLUSTER_OWNER:-}" ] || return 0
  # shellcheck disable=SC2016
  setsid bash -c 'began=$(sed "s/.*) //" "/proc/$1/stat" | cut -d" " -f20)
    while [ "$(sed "s/.*) //" "/proc/$1/stat" 2>/dev/null | cut -d" " -f20)" = "$began" ]; do sleep 1; done
    exec bash "$2" stop-all' guard "$CLUSTER_OWNER" "$SELF" </dev/null >"$DIR/log/guard.out" 2>&1 &
  record guard $!
}

stop_all() {
  local n
  for n in $(names); do end "$n" KILL; done
  end slurmctld
  end munged
  end head KILL
  rm -rf "${DIR:?}"/{run,state,spool,munge,bin}
}

case $cmd in
  start)
    [ "$(id -u)" = 0 ] || die "must run as root"
    if [ -d "$DIR/run" ]; then # an earlier one died here
      end guard KILL
      stop_all
    fi
    mkdir -p "$DIR"/{run,log,state,spool,munge,bin}
    chmod 755 "$DIR"
    write_config
    start_munge
    start_head
    start_controller
    for n in $(names); do start_node "$n"; done
    wait_for "all nodes" bash "$SELF" ready
    start_guard
    ;;
  ready) [ "$(on_head sinfo -h -N -o '%N %t' | awk '$2 == "idle"' | sort -u | wc -l)" = "$NODES" ] ;;
  stop)
    [ -d "$DIR/run" ] || exit 0
    end guard KILL
    stop_all
    ;;
  stop-all) stop_all ;;
  exec) on_head "$@" ;;
  env) printf "export SLURM_CONF='%s' PATH='%s/bin':\"\$PATH\"\n" "$SLURM_CONF" "$DIR" ;;
  crash) # the cable first: a machine without power sends its peers no reset
    nsenter -t "$(pid head)" -n ip link set "v$1" down
    end "$1" KILL
    ;;
  boot) start_node "$1" ;;
  slurmd-kill) kill_daemon "$1" ;;
  slurmd-start) start_daemon "$1" ;;
  ctld-stop) end slurmctld ;;
  ctld-start) alive slurmctld || start_controller ;;
  *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$SELF" ;;
esac
