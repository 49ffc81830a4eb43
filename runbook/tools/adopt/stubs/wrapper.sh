#!/bin/bash -p
# Programs that run another program under observation, with other rights, or on chosen cores.
# programs: numactl nsys ncu nvprof dlprof rocprof rocprofv2 rocprofv3 sudo unbuffer strace perf taskset uv poetry pixi hatch ezpz-launch dumb-init tini catchsegv conda mamba micromamba coverage py-spy memray ray
kind=wrapper
. /adopt/stubs/record.sh
case "$name ${1-}" in
  coverage\ run | py-spy\ record | memray\ run) ;;
  ray\ job) [ "${2-}" = submit ] && shift ;;
  conda\ run | mamba\ run | micromamba\ run | uv\ run | poetry\ run | pixi\ run | hatch\ run) ;;
  conda\ * | mamba\ * | micromamba\ * | uv\ * | poetry\ * | pixi\ * | hatch\ * | coverage\ * | py-spy\ * | memray\ * | ray\ *)  # create, activate, install, sync ...
    record quiet "$#" "$@"
    exit 0 ;;
esac
own_words "$@"
record wrapper "$own" "$@"
shift "$own"
start "$@"
