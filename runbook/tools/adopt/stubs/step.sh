#!/bin/bash -p
# Programs that start one process on each rank: the command runs once, as rank 0.
# programs: srun mpiexec mpirun mpiexec.hydra mpirun_rsh orterun aprun jsrun ibrun prun prterun pdsh clush ssh flux
kind=step
. /adopt/stubs/record.sh
if [[ $name == ssh || $name == pdsh || $name == clush ]]; then
  words=("$@")
  while [[ ${words[0]-} == -* ]]; do
    values_of "${words[0]}" && skip=0 || skip=$?
    words=("${words[@]:$((1 + skip))}")
  done
  [ "$name" = ssh ] && words=("${words[@]:1}")
  record step "$(($# - ${#words[@]}))" "$@"
  start bash -c "${words[*]}"
fi
if [ "$name" = flux ]; then
  case "${1-}" in
    run | submit | alloc | batch | mini) kind=wrapper ;;  # a word before the options, as of `uv run`
    *)
      record quiet "$#" "$@"
      exit 0 ;;
  esac
fi
own_words "$@"
record step "$own" "$@"
case "$*" in *--version* | *--help* | *--mpi=list*) exit 0 ;; esac
shift "$own"
export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 PMI_RANK=0 PALS_RANKID=0 PALS_LOCAL_RANKID=0
export OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0
start "$@"
