module load conda/2023-10-04 ; conda activate base
MODEL_SIZE_KEY="GPT13B" \
    SEQ_LEN=2048 \
    USE_FLASH_ATTN_V2=1 \
    MICRO_BATCH=1 \
    GAS=4 \
    SP_TYPE="megatron" \
    ZERO_STAGE=1 \
    ./ALCF/train-gpt3.sh
