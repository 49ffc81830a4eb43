#!/usr/bin/env bash
# Site aws: start and stop the machines of the rented cluster. Stop them when nothing runs: they cost money until they are stopped.
# usage: bash fleet.sh start|stop|status CLUSTER REGION
# Run it on the computer from which the cluster is managed. start and stop wait until the machines have started or stopped.
# shellcheck disable=SC2034 # not every command needs both
set -euo pipefail
asked=${1:?one of start, stop, status} cluster=${2:?the name of the cluster} region=${3:?the region it is in}

say_status() {
  pcluster describe-compute-fleet --cluster-name "$cluster" --region "$region"
}

wait_until() { # wait until the status contains this text
  local said="" until=$((SECONDS + 1800))
  while ((SECONDS < until)); do
    said=$(say_status) || true # ask again if there is no answer
    case $said in
      *"$1"*)
        echo "fleet.sh: $cluster reports $1"
        return
        ;;
    esac
    sleep 15
  done
  echo "fleet.sh: $cluster did not report $1 within 30 minutes; its last answer was: $said" >&2
  exit 1
}

case $asked in
  start)
    pcluster update-compute-fleet --cluster-name "$cluster" --region "$region" --status START_REQUESTED
    wait_until '"RUNNING"'
    ;;
  stop)
    pcluster update-compute-fleet --cluster-name "$cluster" --region "$region" --status STOP_REQUESTED
    wait_until '"STOPPED"'
    ;;
  status) say_status ;;
  *)
    echo "$asked is not one of start, stop, status" >&2
    exit 2
    ;;
esac
