#!/bin/bash -p
# Containers: runs the command inside directly, in the same sandbox.
# programs: singularity apptainer docker podman nerdctl nvidia-docker enroot shifter sarus ch-run udocker podman-hpc
kind=container
. /adopt/stubs/record.sh
case "${1-}" in
  pull | push | build | import | create | login | tag | inspect | images | ps | stop | rm | kill | cp | logs | version | --version)
    record quiet "$#" "$@"
    exit 0 ;;
esac
own_words "$@"
record container "$own" "$@"
shift "$own"
start "$@"
