#!/bin/bash
#SBATCH --nodes=2
A=$(touch touched-by-adopt)
B=`touch touched-by-adopt`
: "${C:=$(touch touched-by-adopt)}"
if touch touched-by-adopt; then D=1; fi
f() { f; f; touch touched-by-adopt; }
f
for i in 1 2 3; do X="$X$X$X$X long"; done
while true; do Y=$((Y ** 9 + 9 * 9)); done
cat <(touch touched-by-adopt)
eval "touch touched-by-adopt"
bash -c 'touch touched-by-adopt; torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --train-iters 10 --lr 1e-4 --bf16 --tensor-model-parallel-size "$(touch touched-by-adopt)"'
echo "an open quote
