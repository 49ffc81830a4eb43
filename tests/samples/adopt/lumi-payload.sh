#!/bin/bash
dir=`pwd`
seq_len=2048
model_size=13
num_layers=40
hidden_size=5120
heads=40
gbs=1024
tokens_in_billion=300
tokens=$((${tokens_in_billion} * 1000000000))
warmup=$((3000 * 1000000))
mp_size=2
pp_size=2
no_pp="false"
zero_stage=1
num_gpus=16
num_gpus_pernode=8
num_node=2
dp_size=$(( ${num_gpus} / ${pp_size} / ${mp_size} ))
recompute="true"
name="gpt_${model_size}B_gbs${gbs}"
if [[ $zero_stage -gt 0 ]]; then
    name="${name}_z${zero_stage}"
fi

options=" \
    --tensor-model-parallel-size ${mp_size} \
    --micro-batch-size 2 \
    --global-batch-size ${gbs} \
    --num-layers ${num_layers} --hidden-size ${hidden_size} --num-attention-heads ${heads} \
    --seq-length ${seq_len} --max-position-embeddings ${seq_len} \
    --train-tokens ${tokens} \
    --lr-warmup-tokens ${warmup} --lr-decay-tokens ${tokens} \
    --lr 1.0e-4 --min-lr 1.0e-6 --lr-decay-style cosine \
    --adam-beta1 0.9 --adam-beta2 0.95 --weight-decay 0.1 --clip-grad 1.0 \
    --init-method-std 0.008 --fp16 --use-flash-attn --hysteresis 2 \
    --split 949,50,1 --log-interval 1 --eval-interval 100 --eval-iters 10 --save-interval 500 \
    --exit-duration-in-mins 30000000 \
    --save out/${name} --load out/${name} \
    --no-gradient-accumulation-fusion --num-workers 0 --log-world-size-to-tensorboard"
if [ "${recompute}" = "true" ]; then
options="${options} \
    --checkpoint-activations"
fi
ds=" \
    --deepspeed --deepspeed_config ds_${name}.json \
    --zero-stage ${zero_stage} \
    --pipeline-model-parallel-size ${pp_size}"
if [[ "${no_pp}" = "true" ]]; then
ds="${ds} --no-pipeline-parallel"
fi
data=" \
    --vocab-file ${dir}/data/gpt2-vocab.json --merge-file ${dir}/data/gpt2-merges.txt \
    --data-path ${dir}/data/my-gpt2_text_document"

# deepspeed --num_gpus=8 pretrain_gpt.py ${options}
torchrun --nproc_per_node ${num_gpus_pernode} --nnodes ${num_node} --rdzv_id=${SLURM_JOB_ID} --rdzv_backend=c10d \
  --rdzv_endpoint=$(hostname):29500 ${dir}/pretrain_gpt.py ${options} ${data} ${ds} |& tee log
