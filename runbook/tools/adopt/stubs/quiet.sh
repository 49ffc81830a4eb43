#!/bin/bash -p
# Programs whose work is not needed in the sandbox. The call is recorded, and it succeeds.
# programs: module ml spack pip pip3 git git-lfs wget curl aws az gcloud gsutil azcopy s5cmd rsync scp huggingface-cli hf apt apt-get yum dnf make cmake ninja nvcc hipcc sleep tail watch clear squeue sinfo sacct sacctmgr scancel qstat qselect qdel sstat sbcast lfs beeond mount umount modprobe wandb tensorboard mlflow nvidia-cuda-mps-control fi_info ibv_devinfo lspci crontab at batch systemctl service mail unknown-program
kind=quiet
. /adopt/stubs/record.sh
if [ "$name" = unknown-program ]; then
  record unknown "$#" "$@"
else
  record quiet "$#" "$@"
fi
exit 0
