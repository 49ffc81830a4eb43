#!/usr/bin/env bash
# Each process of the job runs this: it gets its rank, is bound to its cores and runs the training program.
# shellcheck disable=SC2016,SC2034,SC2054 # values in single quotes stay as they are
set -euo pipefail

# Compiled kernels are kept on the node's own disk. On a shared disk, ranks can read half-written files (triton issue
# 11512, pytorch issue 173679), and the file server becomes a bottleneck. Folders that the site or the user has set are kept.
cache=${RUNBOOK_CACHE:-/tmp/runbook-cache-$(id -u)}
(umask 077 && mkdir -p -- "$cache") 2>/dev/null || true
# In /tmp, another user may have created this name first.
if [[ ! -O $cache || ! -w $cache ]]; then cache=$(mktemp -d); fi
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$cache/triton}
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$cache/inductor}
export TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$cache/extensions}
export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-$cache/cuda}
export MIOPEN_USER_DB_PATH=${MIOPEN_USER_DB_PATH:-$cache/miopen}
export MIOPEN_CUSTOM_CACHE_DIR=${MIOPEN_CUSTOM_CACHE_DIR:-$cache/miopen}

arguments=(
  --num-layers 96
  --hidden-size 12288
  --num-attention-heads 96
  --seq-length 2048
  --max-position-embeddings 2048
  --tensor-model-parallel-size 8
  --pipeline-model-parallel-size 16
  --sequence-parallel
  --micro-batch-size 1
  --global-batch-size 512
  --train-iters 1500
  --lr 6e-05
  --min-lr 6e-06
  --lr-decay-style cosine
  --lr-decay-iters 430000
  --lr-warmup-iters 430
  --adam-beta1 0.9
  --adam-beta2 0.95
  --adam-eps 1e-08
  --weight-decay 0.1
  --clip-grad 1.0
  --fp16
  --initial-loss-scale 65536
  --loss-scale-window 1000
  --hysteresis 2
  --init-method-std 0.006
  --hidden-dropout 0.1
  --attention-dropout 0.1
  --seed 1234
  --distributed-timeout-minutes 10
  --use-distributed-optimizer
  --attention-backend auto
  --train-data-path 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_0_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_1_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_2_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_3_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_4_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_5_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_6_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_7_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_8_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_9_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_10_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_11_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_12_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_13_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_14_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_15_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_16_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_17_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_18_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_19_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_20_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_21_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_22_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_23_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_24_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_25_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_26_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_27_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_28_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_29_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_30_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_31_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_32_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_33_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_34_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_35_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_36_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_37_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_38_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_39_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_40_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_41_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_42_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_43_text_document
  --valid-data-path 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_59_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_60_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_61_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_62_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_63_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_64_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_65_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_66_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_67_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_68_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_69_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_70_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_71_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_72_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_73_text_document
  --test-data-path 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_44_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_45_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_46_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_47_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_48_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_49_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_50_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_51_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_52_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_53_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_54_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_55_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_56_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_57_text_document 1.0 /GIVE_JOBS_STAGE/data/slimpajama/train_chunk_58_text_document
  --tokenizer-type GPT2BPETokenizer
  --vocab-file /GIVE_JOBS_STAGE/data/gpt2/vocab.json
  --merge-file /GIVE_JOBS_STAGE/data/gpt2/merges.txt
  --data-cache-path /GIVE_JOBS_STAGE/data/azure-175b/cache
  --log-interval 10
  --eval-interval 100
  --eval-iters 10
  --save-interval 100
  --save /GIVE_JOBS_STAGE/checkpoints/azure-175b/checkpoints
  --load /GIVE_JOBS_STAGE/checkpoints/azure-175b/checkpoints
  --tensorboard-dir /GIVE_JOBS_STAGE/tensorboard/azure-175b/tensorboard
  --exit-signal-handler
  --ckpt-format torch_dist
  --log-throughput
  --ckpt-fully-parallel-load
  --use-persistent-ckpt-worker
  --ckpt-assume-constant-structure
)

# Launchers return one exit code for all ranks, and end all ranks after the first code that is not 0. So rank 0's own code
# is kept for the job, and a rank that saved and stopped (75) exits with 0. The job asks the ranks to stop with a file,
# because launchers forward signals differently. Only rank 0 checks for the file, because thousands of ranks would load the
# file system; its program passes the request on to the other ranks.
if ((LOCAL_RANK == 0)); then
  echo "runbook: ${HOSTNAME:-a node}: locked memory $(ulimit -l) KiB, open files $(ulimit -n), /dev/shm $(df -k --output=size /dev/shm 2>/dev/null | tail -n 1 || true) KiB" >&2
fi
python3 -u /GIVE_JOBS_STAGE/Megatron-LM/pretrain_gpt.py "${arguments[@]}" &
program=$!
watcher=""
if ((RANK == 0)); then
  exec {pause}<> <(:) # never has any data: a read with a time limit waits without starting a process
  while kill -0 "$program" 2>/dev/null; do
    if [[ -e $RUNBOOK_JOB_FOLDER/stop ]]; then
      kill -TERM "$program" 2>/dev/null || true
      break
    fi
    read -r -t 2 -u "$pause" || true
  done &
  watcher=$!
  disown "$watcher" # otherwise bash would report its end in the rank's log
fi
trap 'kill -TERM "$program" 2>/dev/null || true' TERM USR1
code=0
wait "$program" || code=$?
while kill -0 "$program" 2>/dev/null; do # a signal interrupts the wait, not the program
  code=0
  wait "$program" || code=$?
done
if [[ -n $watcher ]]; then kill -KILL "$watcher" 2>/dev/null || true; fi
if ((RANK == 0)); then echo "$code" >"$RUNBOOK_JOB_FOLDER/rank-0"; fi
case $code in
  # Programs do not send themselves these signals when another rank fails (ILL, BUS, FPE, KILL, SEGV). The first rank that
  # one of them ended is recorded for the job, because launchers do not report which rank it was.
  132 | 135 | 136 | 137 | 139)
    (set -o noclobber && echo "$RANK $((code - 128))" >"$RUNBOOK_JOB_FOLDER/rank-signal") 2>/dev/null || true
    ;;
esac
if ((code == 75)); then exit 0; fi
exit "$code"
