#!/bin/bash -p
# Queues: the submitted script is kept, and the answer is a job number.
# programs: sbatch qsub salloc bsub
kind=submit
. /adopt/stubs/record.sh
nodes_asked() {  # the number after -N or --nodes
  local before='' word
  for word in "$@"; do
    case "$before $word" in
      "-N "* | "--nodes "*) echo "${word%%-*}" ;;
      *" -N"[0-9]*) echo "${word#-N}" ;;
      *" --nodes="*) echo "${word#--nodes=}" ;;
    esac
    before=$word
  done
}
script=
skip=0
for word in "$@"; do
  if [ "$skip" -gt 0 ]; then
    skip=$((skip - 1))
  elif [[ $word == -* ]]; then
    values_of "$word" && skip=0 || skip=$?
    case "$name $word" in qsub\ -[lkjI] | bsub\ -nnodes | bsub\ -[WPqgRJM] | bsub\ -alloc_flags | bsub\ -gpu) skip=1 ;; esac
  else
    script=$word
    break
  fi
done
if [ "$name" = salloc ]; then
  nodes=$(nodes_asked "$@")
  [ -z "$nodes" ] || export ADOPT_NODES=$nodes SLURM_NNODES=$nodes SLURM_JOB_NUM_NODES=$nodes
fi
if [ "$name" = salloc ] && [ -n "$script" ]; then
  own_words "$@"
  record step "$own" "$@"
  shift "$own"
  start "$@"
fi
if [[ -n $script && -f $script ]]; then
  ADOPT_SUBMITTED=$(head -c 262144 -- "$script")
elif [ -z "$script" ] && [ ! -t 0 ]; then
  ADOPT_SUBMITTED=$(head -c 262144)
fi
wraps=
for word in "$@"; do
  [ -z "$wraps" ] || ADOPT_SUBMITTED=$word
  [[ $word == --wrap ]] && wraps=1 || wraps=
  [[ $word != --wrap=* ]] || ADOPT_SUBMITTED=${word#--wrap=}
done
export ADOPT_SUBMITTED=${ADOPT_SUBMITTED-}
record submit "$#" "$@"
case " $* " in *" --parsable "*) echo 4242 ;; *) [ "$name" = sbatch ] && echo "Submitted batch job 4242" || echo 4242.server ;; esac
