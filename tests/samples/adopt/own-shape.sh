#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gres=gpu:a100:4
#SBATCH --time=1-12:00:00
#SBATCH -p big -A lab --constraint=nvlink
ARGS=(--num-layers 30 --hidden-size 3072 --num-attention-heads 24 --ffn-hidden-size 8192 --swiglu)
srun --ntasks-per-node=4 python -m torch.distributed.run --nnodes=4 --nproc-per-node=4 \
  train/pretrain_gpt.py "${ARGS[@]}" --seq-length 4096 --max-position-embeddings 4096 \
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 2 --global-batch-size 64 --train-samples 1e6 --bf16 --lr 3e-4 \
  --lr-warmup-samples 6400 --recompute-granularity selective --num-layers-per-virtual-pipeline-stage 5 \
  --data-path /scratch/lab/web_text_document --load old --save new --use-distributed-optimizer --overlap-grad-reduce
