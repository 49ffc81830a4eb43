#!/usr/bin/env bash
# Each process of the job runs this: it gets its rank, is bound to its cores and runs the training program.
# shellcheck disable=SC2016,SC2034,SC2054 # values in single quotes stay as they are
set -euo pipefail
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=16 LOCAL_WORLD_SIZE=8

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
  --config-name=175b.yaml
  --config-path=/opt/bignlp/bignlp-scripts/conf/training/gpt3
  trainer.num_nodes=2
  trainer.devices=8
  trainer.precision=bf16
  trainer.max_steps=12
  trainer.log_every_n_steps=1
  trainer.val_check_interval=12
  trainer.limit_val_batches=1
  trainer.limit_test_batches=1
  trainer.gradient_clip_val=1.0
  trainer.enable_checkpointing=False
  run.results_dir=/fsx/results/aws-pile-175b/smoke-checkpoints
  exp_manager.explicit_log_dir=/fsx/results/aws-pile-175b/smoke-checkpoints
  exp_manager.wandb_logger_kwargs.name=03-smoke-test
  exp_manager.resume_if_exists=False
  exp_manager.create_checkpoint_callback=False
  exp_manager.checkpoint_callback_params.save_top_k=1
  exp_manager.checkpoint_callback_params.model_parallel_size=1
  model.micro_batch_size=1
  model.global_batch_size=64
  model.tensor_model_parallel_size=1
  model.pipeline_model_parallel_size=1
  model.virtual_pipeline_model_parallel_size=null
  model.encoder_seq_length=1024
  model.max_position_embeddings=2048
  model.num_layers=12
  model.hidden_size=512
  model.ffn_hidden_size=2048
  model.num_attention_heads=8
  model.init_method_std=0.006
  model.hidden_dropout=0.1
  model.sequence_parallel=False
  model.activations_checkpoint_granularity=selective
  model.activations_checkpoint_method=block
  model.activations_checkpoint_num_layers=0
  model.tokenizer.vocab_file=/fsx/data/bpe/vocab.json
  model.tokenizer.merge_file=/fsx/data/bpe/merges.txt
  model.native_amp_init_scale=65536
  model.native_amp_growth_interval=1000
  model.hysteresis=2
  model.megatron_amp_O2=True
  model.seed=1234
  model.optim.name=distributed_fused_adam
  model.optim.lr=9e-05
  model.optim.weight_decay=0.1
  'model.optim.betas=[0.9,0.95]'
  model.optim.sched.name=CosineAnnealing
  model.optim.sched.warmup_steps=3
  model.optim.sched.constant_steps=-1188
  model.optim.sched.min_lr=9e-06
  model.num_micro_batches_with_partial_activation_checkpoints=null
  model.activations_checkpoint_layers_per_pipeline=null
  model.data.data_impl=mmap
  'model.data.splits_string='"'"'99990,8,2'"'"''
  model.data.seq_length=1024
  model.data.index_mapping_dir=/fsx/data/aws-pile-175b/smoke-cache
  'model.data.data_prefix=[1.0,/fsx/data/the-pile/my-gpt3_00_text_document,1.0,/fsx/data/the-pile/my-gpt3_01_text_document,1.0,/fsx/data/the-pile/my-gpt3_02_text_document,1.0,/fsx/data/the-pile/my-gpt3_03_text_document,1.0,/fsx/data/the-pile/my-gpt3_04_text_document,1.0,/fsx/data/the-pile/my-gpt3_05_text_document,1.0,/fsx/data/the-pile/my-gpt3_06_text_document,1.0,/fsx/data/the-pile/my-gpt3_07_text_document,1.0,/fsx/data/the-pile/my-gpt3_08_text_document,1.0,/fsx/data/the-pile/my-gpt3_09_text_document,1.0,/fsx/data/the-pile/my-gpt3_10_text_document,1.0,/fsx/data/the-pile/my-gpt3_11_text_document,1.0,/fsx/data/the-pile/my-gpt3_12_text_document,1.0,/fsx/data/the-pile/my-gpt3_13_text_document,1.0,/fsx/data/the-pile/my-gpt3_14_text_document,1.0,/fsx/data/the-pile/my-gpt3_15_text_document,1.0,/fsx/data/the-pile/my-gpt3_16_text_document,1.0,/fsx/data/the-pile/my-gpt3_17_text_document,1.0,/fsx/data/the-pile/my-gpt3_18_text_document,1.0,/fsx/data/the-pile/my-gpt3_19_text_document,1.0,/fsx/data/the-pile/my-gpt3_20_text_document,1.0,/fsx/data/the-pile/my-gpt3_21_text_document,1.0,/fsx/data/the-pile/my-gpt3_22_text_document,1.0,/fsx/data/the-pile/my-gpt3_23_text_document,1.0,/fsx/data/the-pile/my-gpt3_24_text_document,1.0,/fsx/data/the-pile/my-gpt3_25_text_document,1.0,/fsx/data/the-pile/my-gpt3_26_text_document,1.0,/fsx/data/the-pile/my-gpt3_27_text_document,1.0,/fsx/data/the-pile/my-gpt3_28_text_document,1.0,/fsx/data/the-pile/my-gpt3_29_text_document]'
)

# Launchers return one exit code for all ranks, and end all ranks after the first code that is not 0. So rank 0's own code
# is kept for the job, and a rank that saved and stopped (75) exits with 0. The job asks the ranks to stop with a file,
# because launchers forward signals differently. Only rank 0 checks for the file, because thousands of ranks would load the
# file system; its program passes the request on to the other ranks.
if ((LOCAL_RANK == 0)); then
  echo "runbook: ${HOSTNAME:-a node}: locked memory $(ulimit -l) KiB, open files $(ulimit -n), /dev/shm $(df -k --output=size /dev/shm 2>/dev/null | tail -n 1 || true) KiB" >&2
fi
python3 -u /opt/bignlp/NeMo/examples/nlp/language_modeling/megatron_gpt_pretraining.py "${arguments[@]}" &
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
