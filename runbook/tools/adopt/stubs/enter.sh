#!/bin/bash -p
# Runs inside new user, mount, process, network and IPC namespaces: builds a root of its own in memory, with the
# machine's programs read-only, drops every capability for good, and runs the job. Arguments: an empty folder, the staged files,
# seconds, the job's folder, the job's command.
set -eu
root=$1 stage=$2 seconds=$3 folder=$4
shift 4
mount -t tmpfs -o size=64m,nr_inodes=20k,mode=755 tmpfs "$root"
builtin cd "$root"
mkdir -p usr etc proc dev tmp person adopt
bind() { mount --bind "$1" "$2" && mount -o remount,bind,ro,nosuid,nodev "$2"; }
bind /usr usr
for path in bin lib lib32 lib64 sbin; do
  if [ -L "/$path" ]; then
    ln -s "$(readlink "/$path")" "$path"
  elif [ -d "/$path" ]; then
    mkdir "$path" && bind "/$path" "$path"
  fi
done
for path in ld.so.cache alternatives; do
  [ ! -f "/etc/$path" ] || cp "/etc/$path" "etc/$path"
  [ ! -d "/etc/$path" ] || { mkdir "etc/$path" && bind "/etc/$path" "etc/$path"; }
done
echo 'user:x:0:0:user:/person:/bin/bash' > etc/passwd
for path in null zero full random urandom; do
  : > "dev/$path"
  mount --bind "/dev/$path" "dev/$path"
done
mount -t proc -o ro,nosuid,nodev,noexec proc proc 2> /dev/null || echo 'no /proc' >&2
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
bind "$stage/adopt" adopt
mkdir -p ".$folder"
cp -r "$stage/above/." ".${folder%/*}/"
cp -r "$stage/job/." ".$folder/"
# If one of the job's files already has the path of a stub, that stub is skipped.
cp -r "$stage/root/." . 2> /dev/null || true
# Launchers that are called by their full paths are replaced by stubs too.
for path in adopt/launchers/*; do
  [ ! -f "usr/bin/${path##*/}" ] || mount --bind "adopt/bin/${path##*/}" "usr/bin/${path##*/}"
done
mkdir old
pivot_root . old
builtin cd /
umount -l /old
rmdir /old
ulimit -c 0 -f 65536 -n 512 -t "$seconds" -v 786432
mkfifo -m 666 /trace
exec 198<> /trace
mkfifo /never
exec 197<> /never
# If a job forks endlessly, no process is left for `sleep`.
wait_without_fork() { read -r -t "$1" -u 197 _ || true; }
cat /trace &
builtin cd "$folder"
ended=
trap 'ended=1' CHLD
setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all --no-new-privs \
  timeout -s KILL "$seconds" "$@" 199>&1 > /dev/null 2>&1 < /dev/null &
job=$!
# A job may stop or trace `timeout`, but nothing in the sandbox can stop this shell, its first process.
last=$((SECONDS + seconds + 2))
while [ -z "$ended" ] && [ "$SECONDS" -lt "$last" ]; do wait_without_fork 0.05; done
code=124
if [ -n "$ended" ]; then wait "$job" && code=0 || code=$?; fi
trap - CHLD
for _ in 1 2 3 4 5 6 7 8 9 10; do  # the job's background processes may still be starting
  others=(/proc/[0-9]*)
  [ "${#others[@]}" -gt 3 ] || break
  wait_without_fork 0.1
done
wait_without_fork 0.05
kill -KILL -1 # every process except this shell, the first one in the sandbox
printf '\036exit\037%s\034\034\034\035\n' "$code"
