#!/usr/bin/env bash
# Site aws: the machines of the rented cluster. Stop them when nothing runs: they cost as long as they are up.
# usage: fleet.sh start|stop|status CLUSTER REGION
# shellcheck disable=SC2034 # not every command needs both
set -euo pipefail
cluster=${2:?the name of the cluster} region=${3:?the region it is in}
case ${1:?one of start, stop, status} in
  start) pcluster update-compute-fleet --cluster-name "$cluster" --region "$region" --status START_REQUESTED ;;
  stop) pcluster update-compute-fleet --cluster-name "$cluster" --region "$region" --status STOP_REQUESTED ;;
  status) pcluster describe-compute-fleet --cluster-name "$cluster" --region "$region" ;;
  *)
    echo "$1 is none of start, stop, status" >&2
    exit 2
    ;;
esac
