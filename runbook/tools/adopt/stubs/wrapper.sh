#!/bin/bash -p
# Programs that run another one under observation, with other rights or on chosen cores.
# programs: numactl nsys ncu nvprof dlprof rocprof rocprofv2 rocprofv3 sudo unbuffer strace perf taskset uv poetry pixi hatch ezpz-launch dumb-init tini catchsegv
kind=wrapper
. /adopt/stubs/record.sh
own_words "$@"
record wrapper "$own" "$@"
shift "$own"
start "$@"
