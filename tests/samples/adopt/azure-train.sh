#!/bin/bash
#SBATCH --job-name=gpt175b
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --mem=0
set -xe
if [ -z "$STAGE_PATH" ]; then
	echo "give STAGE_PATH"
	exit 1
fi
CHUNKS=${CHUNKS:-15}
GLOBAL_BATCH_SIZE=${GLOBAL_BATCH_SIZE:-512}
NUMBER_OF_ITERATIONS=${NUMBER_OF_ITERATIONS:-1500}
SAVE_INTERVAL=${SAVE_INTERVAL:-100}
NUM_LAYERS=${NUM_LAYERS:-96}
HIDDEN_SIZE=${HIDDEN_SIZE:-12288}
USE_SHARP=${USE_SHARP:-1}
export NCCL_TOPO_FILE=/opt/microsoft/ndv5-topo.xml
export NCCL_IB_QPS_PER_CONNECTION=4 NCCL_P2P_NET_CHUNKSIZE=$((512 * 1024))
SQUASHED_PYTORCH_IMAGE="$STAGE_PATH/pytorch+25.03+py3.sqsh"
DATA_PATH=${DATA_PATH:-$STAGE_PATH/slimpajama/preprocessed}
CHECKPOINT_PATH=${CHECKPOINT_PATH:-$STAGE_PATH/checkpoints}
VOCAB_FILE=${VOCAB_FILE:-$STAGE_PATH/slimpajama/bpe/vocab.json}
MERGE_FILE=${MERGE_FILE:-$STAGE_PATH/slimpajama/bpe/vocab.json}
readarray -t TRAIN < <(find $DATA_PATH -name "*.bin" | sort | head -n 44)
SIZE=(
	--num-layers "$NUM_LAYERS"
	--hidden-size "$HIDDEN_SIZE"   # the width
	--num-attention-heads 96
	--seq-length 2048
	--max-position-embeddings 2048
)
STEPS=(
	--micro-batch-size 1 --global-batch-size "$GLOBAL_BATCH_SIZE"
	--train-iters "$NUMBER_OF_ITERATIONS"
	--lr 6.0e-5 --min-lr 6.0e-6 --lr-decay-style cosine --lr-warmup-fraction .001 --lr-decay-iters 430000
	--init-method-std 0.006 --fp16 --weight-decay 0.1 --adam-beta2 0.95
)
if [ "$USE_SHARP" -eq 1 ]; then
	STEPS+=(--use-sharp)
fi
CUT=(--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --sequence-parallel --use-distributed-optimizer)
REST=(
	--train-data-path $(echo "${TRAIN[@]}")
	--vocab-file "$VOCAB_FILE" --merge-file "$MERGE_FILE"
	--save-interval 100
	--save "$CHECKPOINT_PATH" --load "$CHECKPOINT_PATH"
	--log-interval 10 --eval-interval 100 --eval-iters 10
	--ckpt-format torch_dist --ckpt-fully-parallel-load
)
srun --container-image=$SQUASHED_PYTORCH_IMAGE --container-mounts="$STAGE_PATH:$STAGE_PATH" \
	torchrun --nproc_per_node "$SLURM_GPUS_PER_NODE" --nnodes "$SLURM_NNODES" --rdzv_endpoint "$(hostname)":29500 \
	$STAGE_PATH/Megatron-LM/pretrain_gpt.py "${SIZE[@]}" "${STEPS[@]}" "${CUT[@]}" "${REST[@]}"
