#!/bin/bash -p
# Python: a training script is only recorded; one-liners and small scripts next to the job are run if Python exists here.
# programs: python python3 python3.6 python3.7 python3.8 python3.9 python3.10 python3.11 python3.12 python3.13 python3.14 ipython
kind=python
. /adopt/stubs/record.sh
real=
for path in /usr/bin/python3 /bin/python3 /usr/local/bin/python3; do
  [ -x "$path" ] && real=$path && break
done
script=
for word in "$@"; do
  case "$word" in
    -c | -m | -) break ;;
    -*) ;;
    *) script=$word && break ;;
  esac
done
case "$*" in *torch.distributed* | *accelerate.commands* | *deepspeed.launcher*) script=launcher ;; esac
case "$script: $* " in
  launcher:*" --no_python "* | launcher:*" --no-python "*) # as in starter.sh, the command that it starts on each rank runs once
    kind=step
    own_words "$@"
    record starter "$own" "$@"
    shift "$own"
    start "$@" ;;
esac
record python "$#" "$@"
trains='(pretrain|train|finetune|pretraining)[A-Za-z0-9_-]*\.py$'
if [ -z "$real" ] || [[ " $* " == *" -m "* ]] || [ "$script" = launcher ]; then
  exit 0
elif [ -z "$script" ] || [[ -f $script && ! $script =~ $trains ]]; then
  export ADOPT_PARENT=$id
  exec "$real" "$@"
fi
exit 0
