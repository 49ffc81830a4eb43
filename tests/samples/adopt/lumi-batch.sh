#!/bin/bash -l
#SBATCH --job-name=train_13B
#SBATCH --partition=standard-g
#SBATCH --time=02:00:00
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=56
#SBATCH --mem=480G
#SBATCH --account=project_465000000
#SBATCH --exclusive

module load LUMI/23.03 partition/G
ml PyTorch/2.2.2-rocm-5.6.1-python-3.10-vllm-0.4.0.post1-singularity-20240404
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
export NCCL_MIN_NCHANNELS=16

srun singularity exec $SIF bash -c 'export home_dir=/users/ada; cd $home_dir/train; bash lumi-payload.sh'
srun singularity exec $SIF bash -c 'export home_dir=/users/username; cd $home_dir/train; bash lumi-payload.sh'
