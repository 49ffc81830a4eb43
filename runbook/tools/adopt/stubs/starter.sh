#!/bin/bash -p
# Programs that start a training on the devices of a node. The call is only recorded; nothing is started.
# programs: torchrun deepspeed ds accelerate horovodrun colossalai fabric torch_run
kind=starter
. /adopt/stubs/record.sh
case "${1-}" in --version | --help | -h) exit 0 ;; esac
case " $* " in
  *" --no_python "* | *" --no-python "*)
    kind=step
    own_words "$@"
    record starter "$own" "$@"
    shift "$own"
    start "$@" ;;
esac
record starter "$#" "$@"
exit 0
