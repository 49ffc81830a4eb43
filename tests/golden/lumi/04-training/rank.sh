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

# Bind each local rank to its cores here: this launcher starts one task per node, so the queue cannot bind the ranks.
cores=(0xfe000000000000 0xfe00000000000000 0xfe0000 0xfe000000 0xfe 0xfe00 0xfe00000000 0xfe0000000000)
if command -v taskset >/dev/null; then
  taskset -p "${cores[LOCAL_RANK]}" $$ >/dev/null ||
    echo "runbook: rank $RANK could not be bound to its cores" >&2
else
  echo "runbook: no taskset here, so rank $RANK is not bound to its cores" >&2
fi

arguments=(
  --num-layers 40
  --hidden-size 5120
  --num-attention-heads 40
  --seq-length 2048
  --max-position-embeddings 2048
  --tensor-model-parallel-size 2
  --pipeline-model-parallel-size 2
  --micro-batch-size 2
  --global-batch-size 1024
  --train-samples 146484224
  --lr 0.0001
  --min-lr 1e-06
  --lr-decay-style cosine
  --adam-beta1 0.9
  --adam-beta2 0.95
  --adam-eps 1e-08
  --weight-decay 0.1
  --clip-grad 1.0
  --fp16
  --initial-loss-scale 2048
  --loss-scale-window 500
  --hysteresis 2
  --init-method-std 0.008
  --hidden-dropout 0.1
  --attention-dropout 0.1
  --seed 1234
  --distributed-timeout-minutes 10
  --train-tokens 300000000000
  --lr-decay-tokens 300000000000
  --lr-warmup-tokens 3000000000
  --use-flash-attn-v1
  --data-path /GIVE_JOBS_STAGE/data/oscar-1GB/oscar-1GB_text_document
  --split 949,50,1
  --tokenizer-type GPT2BPETokenizer
  --vocab-file /GIVE_JOBS_STAGE/data/gpt2/vocab.json
  --merge-file /GIVE_JOBS_STAGE/data/gpt2/merges.txt
  --data-impl mmap
  --data-cache-path /GIVE_JOBS_STAGE/data/lumi-13b/cache
  --log-interval 1
  --eval-interval 100
  --eval-iters 10
  --save-interval 1000
  --save /GIVE_JOBS_STAGE/checkpoints/lumi-13b/checkpoints
  --load /GIVE_JOBS_STAGE/checkpoints/lumi-13b/checkpoints
  --tensorboard-dir /GIVE_JOBS_STAGE/tensorboard/lumi-13b/tensorboard
  --exit-signal-handler
  --exit-duration-in-mins 50
  --override-opt_param-scheduler
  --deepspeed
  --deepspeed_config deepspeed/04-training-zero1-b7061ba288c7.json
  --zero-stage 1
  --checkpoint-activations
  --deepspeed-activation-checkpointing
  --no-gradient-accumulation-fusion
  --no-async-tensor-model-parallel-allreduce
  --num-workers 0
  --tensorboard-queue-size 1
  --log-timers-to-tensorboard
  --log-batch-size-to-tensorboard
  --log-validation-ppl-to-tensorboard
  --log-optimizer-states-to-tensorboard
)

# Launchers return one exit code for all ranks, and end all ranks after the first code that is not 0. So rank 0's own code
# is kept for the job, and a rank that saved and stopped (75) exits with 0. The job asks the ranks to stop with a file,
# because launchers forward signals differently. Only rank 0 checks for the file, because thousands of ranks would load the
# file system; its program passes the request on to the other ranks.
if ((LOCAL_RANK == 0)); then
  echo "runbook: ${HOSTNAME:-a node}: locked memory $(ulimit -l) KiB, open files $(ulimit -n), /dev/shm $(df -k --output=size /dev/shm 2>/dev/null | tail -n 1 || true) KiB" >&2
fi
python3 -u /GIVE_JOBS_STAGE/Megatron-DeepSpeed/pretrain_gpt.py "${arguments[@]}" &
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
