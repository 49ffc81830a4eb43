#!/bin/bash -p
# Programs that describe the machine. They report the nodes and devices that the job requests.
# programs: scontrol hostname nvidia-smi rocm-smi amd-smi rocminfo nproc getent ifconfig ip ibstat ibdev2netdev xpu-smi npu-smi
kind=answer
. /adopt/stubs/record.sh
record quiet "$#" "$@"
nodes=${ADOPT_NODES:-1}
devices=${ADOPT_DEVICES:-8}
names() { local i; for ((i = 1; i <= nodes; i++)); do echo "node$i"; done; }
case "$name $*" in
  "scontrol show hostname"*) names ;;
  "scontrol show job"*) echo "JobId=4242 JobName=job NumNodes=$nodes NodeList=node[1-$nodes] BatchHost=node1" ;;
  "hostname -i"* | "hostname -I"* | "hostname --ip"* | "hostname --all-ip"*) echo 10.0.0.1 ;;
  hostname*) echo node1 ;;
  "nvidia-smi -L"* | "nvidia-smi --list-gpus"* | "nvidia-smi --query-gpu=name"* | "nvidia-smi --query-gpu=index"* | "nvidia-smi --query-gpu=gpu_name"*)
    for ((i = 0; i < devices; i++)); do case "$*" in *index*) echo "$i" ;; *-L* | *list*) echo "GPU $i: NVIDIA GPU (UUID: GPU-$i)" ;; *) echo "NVIDIA GPU" ;; esac; done ;;
  "nvidia-smi --query-gpu=count"*) echo "$devices" ;;
  "rocm-smi"* | "amd-smi"*) for ((i = 0; i < devices; i++)); do echo "GPU[$i]		: GPU"; done ;;
  nproc*) echo "${SLURM_CPUS_ON_NODE:-64}" ;;
  getent*) echo "10.0.0.1 node1" ;;
  "ip "*) echo "2: eth0    inet 10.0.0.1/24 brd 10.0.0.255 scope global eth0" ;;
  ifconfig*) echo "eth0: inet 10.0.0.1" ;;
esac
exit 0
