"""Fifty public threads about slow training, each with the cause that its thread accepts.

The threads were collected and divided at random before any rule was read. Half A was used to
improve the rules. On the openings of half B, 15 of 25 answers were then right, as before. Later the
misses of half B improved the rules too, so neither half is a blind test any more. The texts state
the facts and figures of each opening in our words (read on 2026-11-28). None is a quotation.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from log_lines import parse_lines

from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.tools.speed.explain import explain
from runbook.tools.speed.facts import read_facts


class Story(NamedTuple):
    """A thread: repository and issue, half, accepted causes, and its opening in our words."""

    thread: str
    half: str
    causes: tuple[str, ...]
    text: str


STORIES = (
    Story(
        "facebookresearch/fairseq#789",
        "A",
        ("network",),
        "We train a translation model on 2 machines with 4 Titan X each. One machine reaches 38K wps, "
        "both together only 10K wps. What can make it faster?",
    ),
    Story(
        "microsoft/unilm#1072",
        "B",
        ("data wait",),
        "VLMo on 8 V100 32GB is extremely slow compared to the paper. What may the problem be?",
    ),
    Story(
        "xiaoachen98/Open-LLaVA-NeXT#11",
        "A",
        ("unequal work",),
        "Fine-tuning on 32 A100 with the dataset you provide: vicuna-7b took me 12 hours, but llama3-8b took 42 hours. "
        "Do you see the same?",
    ),
    Story(
        "Dao-AILab/flash-attention#81",
        "A",
        ("flash attention",),
        "I compared open_clip with and without flash attention. You report a speed-up of 2x to 4x, and "
        "I reach only 1.1x. How can I reproduce yours?",
    ),
    Story(
        "unslothai/unsloth#1631",
        "A",
        ("adapters", "recompute"),
        "For Qwen2.5 1.5B on an A100, GRPO with LoRA takes 4 h an epoch and is slower than TRL with SFT "
        "at 2.5 h. Is it due to merging the LoRA adapter?",
    ),
    Story(
        "huggingface/trl#1303",
        "A",
        ("DataParallel",),
        "I fine-tune Llama 2 7B with QLoRA on 2 GPUs, started by `python train.py`. One GPU has high "
        "utilization, the other almost none. I expected it to be twice as fast as one GPU.",
    ),
    Story(
        "huggingface/sentence-transformers#3237",
        "B",
        ("unequal work", "another model"),
        "After upgrading to 3.4.1 an epoch of snowflake-arctic-embed takes 45 minutes and the dev set "
        "5.5 hours to evaluate. With distilbert and 2.7.0 it was 12 and 80 minutes. One has 109M "
        "parameters, the other 67M, so I did not expect such an increase.",
    ),
    Story(
        "SivilTaram/Persona-Dialogue-Generation#16",
        "B",
        ("evaluation",),
        "The training script arrives at run_eval() and seems stuck there forever, in an endless loop.",
    ),
    Story(
        "airsplay/lxmert#49",
        "A",
        ("memory", "data wait"),
        "The readme says that fine-tuning takes 2 hours per epoch. With one Titan XP I see 300+ "
        "hours/epoch. Is my machine at fault, or the code?",
    ),
    Story(
        "microsoft/foundry-dev-tools#31",
        "B",
        ("memory",),
        "Fine-tuning is very slow on a laptop with an RTX 4060. How do I optimize it?",
    ),
    Story(
        "Raibows/CREAM#4",
        "B",
        ("communication",),
        "DPO with DeepSpeed stage3 takes about 8 hours on 8xA100 with your dataset. That seems very "
        "slow. Is it the same for you?",
    ),
    Story(
        "deepspeedai/DeepSpeed#1776",
        "B",
        ("offload",),
        "On one DGX2 I cannot reproduce the paper: the 10B model has 63 TF/GPU, but 50B and 100B reach "
        "about 35 TF/GPU instead of 40+. Which settings are missing?",
    ),
    Story(
        "modelscope/ms-swift#9797",
        "A",
        ("compilation",),
        "With Megatron and packing, flash-attn 4 makes training more than 10x slower: GPU utilization "
        "is about 0% and all CPU cores are pinned. A step takes 482 s, and 39 s without flash-attn, on "
        "8xB200 with Qwen3.5-35B-A3B.",
    ),
    Story(
        "huggingface/trl#2610",
        "A",
        ("generation",),
        "Should GRPO be slower than PPO? With G=8 it is much slower here, with less memory.",
    ),
    Story(
        "huggingface/trl#1900",
        "A",
        ("generation", "communication"),
        "In PPO, `.generate()` is extremely slow: 3.5 minutes for 64 prompts and a 1.4B policy, while "
        "vllm needs less than 30s. How do I accelerate sampling?",
    ),
    Story(
        "shubham-goel/4D-Humans#139",
        "A",
        ("communication",),
        "Training with DDP is slower than with a single GPU. Why, and how do I fix it?",
    ),
    Story(
        "huggingface/sentence-transformers#70",
        "B",
        ("no device",),
        "Training on NLI would take about 24 days on the CPU. I want a GPU, but the log still says 'use "
        "pytorch device: cpu'. How do I change it?",
    ),
    Story(
        "jerryji1993/DNABERT#95",
        "B",
        ("no device",),
        "I followed the example without apex. There is no GPU utilization on my two V100s, and after a "
        "day it is at 1% of an epoch. Should it be so slow?",
    ),
    Story(
        "google-research/bert#451",
        "B",
        ("data wait",),
        "run_squad.py ignores the GTX1080, which tensorflow sees, and runs on a single core of the CPU. "
        "--train_batch_size=8 --max_seq_length=128 --doc_stride=128",
    ),
    Story(
        "InternLM/InternLM-XComposer#371",
        "A",
        ("unequal work",),
        "Why is fine-tuning so slow? The language model and CLIP are as large as in LLaVA-1.5, but it "
        "is almost 3.5 times slower than LLaVA-1.5.",
    ),
    Story(
        "facebookresearch/dinov2#458",
        "B",
        ("unequal work",),
        "With the same batch size, tuning DINOv2 ViT-B/14 (86M parameters) is 5 to 7 times slower than "
        "CLIP ViT-B/32 (88M). Is it the architecture?",
    ),
    Story(
        "NVlabs/GCVit#14",
        "B",
        ("data wait", "host"),
        "training is slow: the dataloader seems to use one process for images, the GPU is fast and the "
        "CPU is slow. How do I make it faster?",
    ),
    Story(
        "huggingface/transformers#1292",
        "A",
        ("data wait",),
        "run_lm_finetuning.py is stuck at load_and_cache_examples. The file has 1.8M rows: at this rate "
        "it would take days just to tokenize and cache the data.",
    ),
    Story(
        "jeya-maria-jose/Medical-Transformer#52",
        "A",
        ("kernels", "host"),
        "Hello, author. CUDA has been used and the batch size is 4, but training is still very slow. Is "
        "it so for you?",
    ),
    Story(
        "AI-Hypercomputer/maxtext#1256",
        "A",
        ("kernels", "token dispatch"),
        "MFU drops with megablox when there are more experts: Mixtral-8x7B has 50.4% on a v5p-64 with 8 "
        "experts and 2 per token. With 56 experts and 14 per token, each a seventh as wide, it is much "
        "lower at the same number of parameters.",
    ),
    Story(
        "facebookresearch/fairseq#2622",
        "B",
        ("compilation",),
        "BART on a TPU v3-8 compiles with XLA at each update, which makes training very slow. The batch "
        "should have a fixed shape: --tokens-per-sample=64 --max-sentences=16. Why does it compile?",
    ),
    Story(
        "huggingface/finetrainers#111",
        "B",
        ("unequal work",),
        "On 8 A800 with DeepSpeed, batch size 4 is slower than batch size 1: 72.77s/it and 21.49s/it. "
        "Should it not be faster? Maybe the CPU offload is the cause.",
    ),
    Story(
        "huggingface/transformers#10163",
        "B",
        ("gradient accumulation", "unequal work"),
        "With a batch of 32 and no accumulation, distributed XLMR trains at 6 it/s. With 4 or 8 "
        "gradient accumulation steps the speed drops to 1.03 it/s. Is that expected?",
    ),
    Story(
        "huggingface/transformers#31372",
        "B",
        ("memory",),
        "cuda.empty_cache in the trainer slows training down: 8 processes, run_clm.py, Phi-3-mini, "
        "block size 2048, ZeRO 2, batch size 1.",
    ),
    Story(
        "unslothai/unsloth#3957",
        "B",
        ("micro-batch",),
        "GPU utilization is very low while I fine-tune gemma3 4b with unsloth in Colab. Can I use all "
        "of it, perhaps with several processes?",
    ),
    Story(
        "huggingface/transformers#181",
        "A",
        ("micro-batch", "precision"),
        "bert-base-uncased on mrpc with a P4000 8G trains 2 batches a second, which I think is too "
        "slow. Another task with 1300000 examples takes 6 hours per epoch.",
    ),
    Story(
        "modelscope/ms-swift#7358",
        "B",
        ("unequal work",),
        "LoRA of qwen3-vl-2b is too slow on 2 4080 GPUs with our VQA data: --train_type lora "
        "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_length 2560 "
        "--gradient_checkpointing true --dataloader_num_workers 8",
    ),
    Story(
        "huggingface/transformers#48718",
        "B",
        ("kernels",),
        "run_clm.py fine-tunes Qwen3.5-9B on 8 B200 under FSDP2 and takes 1.22 s per step. "
        "flash-linear-attention and causal-conv1d: not installed.",
    ),
    Story(
        "QData/TextAttack#737",
        "B",
        ("padding",),
        "Training is extremely slow: each text is padded to the maximum of the model, not to the "
        "longest text of the batch. A clean epoch of SNLI took 3 hours on a 3090.",
    ),
    Story(
        "pytorch/pytorch#102434",
        "B",
        ("network", "communication"),
        "With FSDP, speed is normal on one node of 8 A100. On 2 or 4 nodes training is very slow.",
    ),
    Story(
        "allenai/OLMo#845",
        "A",
        ("network", "communication"),
        "With FSDP on A100 40G, one node of 4 GPUs has 12000 tokens/sec/device, and 2 nodes only 9000. "
        "Nothing improved the scaling. Is that expected?",
    ),
    Story(
        "Lightning-AI/pytorch-lightning#2493",
        "B",
        ("growing steps",),
        "An epoch has 1.7M steps, and the speed falls linearly, so that the estimated time begins to "
        "increase. It is the same on 1, 2 or 4 GPUs.",
    ),
    Story(
        "huggingface/transformers#30461",
        "A",
        ("software version", "kernels"),
        "PEFT tuning of Mistral slows down since the release of version 4.40.0, which changed the mask "
        "for SDPA: at 8192 tokens, release 4.39.3 has 3083 toks/s and release 4.40.0 has 1918.",
    ),
    Story(
        "facebookresearch/metaseq#327",
        "A",
        ("host", "debug option"),
        "Logging every step of a 175B model costs about 1 second per step: norms of many tensors are "
        "moved to the CPU, and the counters leave it out.",
    ),
    Story(
        "mlfoundations/open_clip#899",
        "A",
        ("data wait",),
        "I have a training bottleneck with my webdataset: GPU utilization is super low on a 2080ti with "
        "32G RAM. --batch-size=256 --workers=8 --model RN18",
    ),
    Story(
        "mlfoundations/open_clip#13",
        "A",
        ("data wait",),
        "The speed of CLIP on one GPU is not good: in a profile it is idle twice as long as active, "
        "because the CPU waits in sem_timedwait.",
    ),
    Story(
        "UCSC-VLAA/CLIPA#10",
        "A",
        ("data wait", "host"),
        "Training is too slow on an A100: one epoch on 8 A100 would take 10 days. I use webdataset "
        "instead of tfrecord. What may cause this?",
    ),
    Story(
        "deepspeedai/DeepSpeed#6889",
        "A",
        ("network", "communication"),
        "zero3 on nodes of 8 A100 40G is slow for a 72B model: the more nodes, the slower. One node "
        "with offload is faster, and communication delay is high.",
    ),
    Story(
        "mush42/optispeech#6",
        "B",
        ("unequal work",),
        "The second epoch takes 38 seconds; after 3 to 5 epochs it slows down to 3:50 minutes.",
    ),
    Story(
        "facebookresearch/fairscale#793",
        "A",
        ("network",),
        "Training on several machines is really slow: communication takes more than 90% of the time. "
        "The network card has 1000 Mbit/s. Do I need a faster one?",
    ),
    Story(
        "NVIDIA-NeMo/Speech#8141",
        "B",
        ("host",),
        "Hybrid conformers ignore OMP_NUM_THREADS and start too many threads on a node of 8 GPUs under "
        "SLURM, and performance drops by 2x.",
    ),
    Story(
        "huggingface/transformers#20581",
        "A",
        ("data wait",),
        "My GPU was vastly underutilized in training on images, and it took much analysis to find the "
        "unset parameter of the Trainer that made it super slow.",
    ),
    Story(
        "TensorAuto/OpenTau#177",
        "B",
        ("host",),
        "The default, DeepSpeed with zero_stage 2, leaves 65% of GPU time unused on 8xA100. Plain DDP "
        "and two small fixes give 2.90x more samples/s.",
    ),
    Story(
        "devjwsong/gpt2-dialogue-generation-pytorch#13",
        "A",
        ("no device",),
        "On Colab with a T4, training seems to take almost a year, more than 200 days. Can I try it at "
        "a small scale, even on a CPU?",
    ),
    Story(
        "huggingface/transformers#11845",
        "B",
        ("software version",),
        "Training speed has a regression between 4.4.0 and 4.6.1: 9.8 and 8.0 samples per second with "
        "batches of 4 on an RTX3090. It is larger for small batches.",
    ),
)
MISSED = {
    "deepspeedai/DeepSpeed#1776",
    "modelscope/ms-swift#9797",
    "google-research/bert#451",
    "jeya-maria-jose/Medical-Transformer#52",
    "TensorAuto/OpenTau#177",
}
"""Threads whose accepted cause is not yet among the first three."""


@pytest.fixture(scope="module")
def models():
    catalogue = read_models(project_root())
    return {name: catalogue.get(name) for name in catalogue.names}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.thread)
def test_the_accepted_cause_is_among_the_first_three_unless_it_is_listed_as_missed(story, models):
    explained = explain(story.text, parse_lines([]), read_facts(story.text, {}), models)
    first = set(explained.as_dict()["first_causes"])
    assert bool(first & set(story.causes)) == (story.thread not in MISSED), first
