"""Clues in a text about slow training that make causes more or less likely.

Each clue is a fact that people state without naming a cause: one device, several nodes, a load of
zero, steps that get slower. Its factors follow from what such a fact means, not from counts: a
single device never waits for a network, and a device that is fully used does not wait for data.
Factors that were fitted to the 461 public stories answered none of them better (2026-11-29).
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

_DEVICES = (
    r"(?:gpus?|cards?|devices?|v100s?|a100s?|h100s?|[1-5]0[5-9]0(?: ?ti)?s?|"
    r"titans?|p100s?|k80s?)"
)
_SEVERAL_DEVICES = (
    r"\b(?:[2-9]|1\d|\d{2,3}|two|three|four|eight|multi(?:ple)?|several|"
    r"both|more|all|many)[- ]?(?:x )?(?:\w+ ){0,2}"
    + _DEVICES
    + r"\b|\b(?:multi-?gpu|ddp|dp|fsdp|horovod|zero-?_?[123]?|nccl|dataparallel|"
    r"data parallel|distributed|\d+ ?[x*] ?(?:v100|a100|h100|[1-5]0[5-9]0))\b"
)
_NODES = (
    r"\b(?:multi-?(?:ple )?(?:nodes?|machines?)|(?:[2-9]|\d{2,}|two|three|four|several|"
    r"more|both|many) (?:\w+ ){0,2}(?:nodes|machines|servers|hosts|pcs|instances|workers)|"
    r"across (?:nodes|machines)|nnodes|inter-?node|infiniband|ethernet|ib|rdma|roce)\b"
)


@dataclass(frozen=True)
class Clue:
    """Words that change how likely causes are."""

    name: str
    """The fact, as evidence in an answer."""
    pattern: str
    """Pattern for a lower-case text without line ends."""
    factors: Mapping[str, float]
    """How many times likelier each cause becomes. A factor below 1 makes it less likely."""
    unless: str = ""
    """The clue does not count if this pattern matches, too."""


CLUES = (
    Clue(
        "a single device",
        (
            r"\b(?:one|single|a|an|my|1) (?:nvidia |tesla |geforce |rtx |gtx )*(?:gpus?|cards?|"
            r"devices?|v100s?|a100s?|h100s?|[1-5]0[5-9]0(?: ?ti)?s?|titans?|p100s?|k80s?|k40|"
            r"quadro|rtx ?\w+|gtx ?\w+|t4|a6000)\b"
        ),
        {
            "network": 0.32,
            "communication": 0.47,
            "DataParallel": 0.32,
            "stragglers": 0.59,
            "token dispatch": 0.8,
        },
        unless=(_SEVERAL_DEVICES + r"|" + _NODES),
    ),
    Clue(
        "several nodes",
        _NODES,
        {"network": 2.5, "DataParallel": 0.47},
    ),
    Clue(
        "more nodes are no faster",
        (
            r"\bnodes?\b.{0,80}\b(?:slower|same|scal\w+|drops?|falls?|longer|less|only)\b|"
            r"\b(?:slower|scal\w+|longer)\b.{0,60}\bnodes\b"
        ),
        {"network": 2.1, "data wait": 0.74, "host": 0.74},
    ),
    Clue(
        "more devices are no faster",
        (
            r"(?:"
            + _SEVERAL_DEVICES
            + r").{0,120}\b(?:slower|same|longer|no (?:speed|gain|faster)\w*|not (?:any )?(?:faster|"
            + r"improve\w*)|scal\w+|hardly|barely|only|speed-?up|halv\w*|more time)\b|\b(?:slower|"
            + r"longer|same|no speed-?up)\b.{0,80}(?:"
            + _SEVERAL_DEVICES
            + r")"
        ),
        {
            "DataParallel": 2.1,
            "communication": 1.8,
            "unequal work": 1.3,
            "micro-batch": 1.2,
            "no device": 0.47,
        },
        unless=_NODES,
    ),
    Clue(
        "the devices are fully used",
        (
            r"\b(?:9[5-9]|100) ?(?:%|percent)|\bfully (?:used|utili[sz]ed)\b|\bgpus? (?:is|"
            r"are) (?:fully )?(?:busy|saturated)\b"
        ),
        {"data wait": 0.51, "no device": 0.41, "host": 0.74, "kernels": 1.3, "unequal work": 1.3},
        unless=(
            r"\bcpu\b.{0,40}\b100 ?%|\b0 ?%? (?:to|and|-|~) ?100|\bone (?:core|gpu|card)|"
            r"1[01]0 ?% (?:of|for)"
        ),
    ),
    Clue(
        "the devices are hardly used",
        (
            r"\b(?:util\w*|usage|gpu|load)\b.{0,40}\b(?:0|zero|nothing|[1-9]|1\d|2\d) ?(?:%|"
            r"percent)|\b(?:idle|starv\w*|underus\w*|under-?util\w*|not (?:fully |"
            r"totally )?(?:used|utili[sz]ed)|low (?:gpu )?(?:util\w*|usage)|(?:util\w*|"
            r"usage) (?:is |are |was )?(?:very |too |so )?low|barely doing)\b"
        ),
        {"data wait": 1.5, "host": 1.3, "unequal work": 0.74, "precision": 0.64},
    ),
    Clue(
        "the devices are not used",
        (
            r"\b(?:util\w*|usage|gpu|load|gpu-util)\b.{0,30}\b(?:0|zero) ?(?:%|percent)?\b(?!\.)|"
            r"\bnot (?:being )?us(?:ed|ing) (?:the |my |any )?gpu|"
            r"\bgpu\b.{0,20}\bnot (?:being )?used\b|\bdoes(?:n't| not) use (?:the |my |"
            r"any )?(?:of the )?(?:\d )?(?:gpu|v100)"
        ),
        {"no device": 2},
        unless=r"\b0 ?%? ?(?:to|and|-|~|or) ?\d\d",
    ),
    Clue(
        "the load of the devices goes up and down",
        (
            r"\b(?:util\w*|usage|gpu|load)\b.{0,60}\b(?:fluctuat\w*|jump\w*|oscillat\w*|sometimes|"
            r"spik\w*|unstable|not stable|from 0|0 ?%? ?(?:to|and|-|~) ?\d\d|up and down|"
            r"drops? to 0)"
        ),
        {"data wait": 2},
    ),
    Clue(
        "the host is compared with the device",
        (
            r"\b(?:than|as|like|on|with|to|the|only|=) ?(?:on |with |the |my |a )?cpu\b|"
            r"\bcpu (?:version|only|instead)\b|\brun_locally=cpu|\bdevice[ =:]+.?cpu"
        ),
        {
            "no device": 1.7,
            "kernels": 1.2,
            "micro-batch": 1.3,
            "host": 1.3,
            "communication": 0.64,
            "network": 0.64,
        },
        unless=r"\bcpu cores?\b",
    ),
    Clue(
        "a step takes far too long",
        (
            r"\b(?:half a minute|minutes?) (?:per|an?|for (?:each|one|every)) (?:image|step|"
            r"iteration|batch)|\b(?:[3-9]\d|\d{3,})(?:\.\d+)? ?(?:s|secs?|seconds) ?(?:/|per|an?|"
            r"for (?:one|each|a)) ?(?:\w+ )?(?:it\b|iter\w*|step|batch|image)|"
            r"\b\d{3,} hours? remain|\beta:? ?\d{3,} ?h|\b\d{3,}:\d\d:\d\d\b|"
            r"\b\d+ minutes? (?:per|for (?:a|one|each)) (?:step|batch|iteration)"
        ),
        {"no device": 2.5, "memory": 2.1, "unequal work": 0.69, "communication": 0.74},
        unless=r"\bgrpo|\bppo\b|rollout|zero|\b\d+b\b|global batch|vllm",
    ),
    Clue(
        "it gets slower over time",
        (
            r"\b(?:slower and slower|more and more slow\w*|gradual\w*|over time|progressive\w*|"
            r"longer and longer|keeps? (?:on )?(?:increasing|growing|rising)|"
            r"constantly increas\w*|creep\w*)|\b(?:each|every) (?:\w+ ){0,3}(?:takes? |is |"
            r"gets? )?(?:much )?(?:slower|longer)\b|\b(?:increas\w+|growing|"
            r"rising) (?:\w+ )?(?:time|batch time|iteration time)|\btime\b.{0,30}\b(?:grows?|"
            r"increas\w+|goes up|rises?)\b|\b(?:becomes?|gets?|getting) (?:more )?(?:slower|"
            r"slow)\b"
        ),
        {
            "growing steps": 3.3,
            "memory": 1.3,
            "unequal work": 0.59,
            "communication": 0.64,
            "no device": 0.47,
            "precision": 0.55,
        },
        unless=r"\bwith (?:more|the number)|\bmore (?:gpus|nodes|experts)|batch size",
    ),
    Clue(
        "models are fitted one after another",
        (
            r"\b(?:fit|train|compile|model|sequential|session)\b.{0,60}\b(?:in (?:a |the )?loop|"
            r"again and again|many times|repeatedly|for each|each time|every time|repetition|"
            r"generation|fold|one after)|\b(?:genetic|k-?fold|grid search|hyper-?param\w*|"
            r"incremental|online learning)\b"
        ),
        {"growing steps": 1.8},
    ),
    Clue(
        "the memory in use grows",
        (
            r"\b(?:memory|ram)\b.{0,30}\b(?:grows?|leaks?|increas\w+|fills?|climb\w*|rises?)|"
            r"\bleak\w*"
        ),
        {"growing steps": 2, "memory": 2},
    ),
    Clue(
        "it pauses at each epoch",
        (
            r"\b(?:paus\w+|stall\w*|wait\w*|hang\w*|stuck|delay\w*|gap)\b.{0,40}\b(?:epochs?|"
            r"every|each)\b|\b(?:between|after (?:each|every)|end of (?:the|each|every|"
            r"an)) epochs?\b"
        ),
        {
            "evaluation": 2.5,
            "data wait": 1.6,
            "saves": 1.7,
            "unequal work": 0.64,
            "precision": 0.47,
        },
        unless=r"hidden state",
    ),
    Clue(
        "it validates",
        r"\b(?:validat\w+|val|eval\w*|test set|metrics? comput\w*)\b",
        {"evaluation": 2.3},
        unless=r"best_val|no validation|without validation",
    ),
    Clue(
        "validation is slow",
        (
            r"\b(?:validat\w+|val|eval\w*)\b.{0,60}\b(?:slow\w*|long\w*|hours?|takes?|took|longer|"
            r"forever)\b"
        ),
        {"evaluation": 2.1},
    ),
    Clue(
        "saves are slow",
        (
            r"\b(?:sav(?:e|es|ing)|checkpoints?|snapshot\w*)\b.{0,50}\b(?:slow\w*|long\w*|"
            r"minutes?|takes?|stuck|paus\w+|hang\w*)"
        ),
        {"saves": 2.5},
        unless=r"checkpointing",
    ),
    Clue(
        "the start is slow",
        (
            r"\b(?:first|initial) (?:few |\w+ )?(?:steps?|iterations?|epoch|batch|minutes|"
            r"call)\b.{0,60}\b(?:slow\w*|long\w*|minutes?|takes?|took)|\b(?:before|"
            r"until) (?:the )?(?:training|it|first epoch|.{0,20}epochs?) (?:starts?|begins?|"
            r"moves)|\b(?:start(?:up|s|ing)?|beginning)\b.{0,40}\b(?:slow\w*|long\w*|minutes)|"
            r"\btime before train\w+"
        ),
        {"compilation": 1.8, "warm-up": 1.8, "data wait": 1.3},
        unless=r"slows down|then (?:it )?(?:gets|becomes)",
    ),
    Clue(
        "it is faster later",
        (
            r"\b(?:speed|wps|it/s|samples)\b.{0,40}\b(?:rises?|rising|increas\w+|keeps? rising)|"
            r"\b(?:later|then|after\w*|suddenly)\b.{0,40}\b(?:fast(?:er)?|quick\w*)\b|"
            r"\blow at first\b"
        ),
        {"warm-up": 2, "compilation": 1.3, "data wait": 1.2},
        unless=r"slower|batch size|gpus",
    ),
    Clue(
        "reinforcement learning",
        (
            r"\b(?:reinforcement|rl|ppo|dqn|ddpg|a3c|sac|grpo|rlhf|episodes?|agents?|gym|mujoco|"
            r"atari|rollouts?|self-?play|actors?|env(?:ironment)?s?\.step|rewards?)\b"
        ),
        {"generation": 2.5, "data wait": 0.64},
    ),
    Clue(
        "recurrent layers",
        r"\b(?:(?:bi)?lstms?|grus?|rnns?|simplernn|seq2seq|recurrent|crf|ctc)\b",
        {"kernels": 1.5, "data wait": 0.86},
    ),
    Clue(
        "16 bits are no faster",
        (
            r"\b(?:fp16|float16|half|amp|bf16|mixed[- ]?precision|apex|16[- ]bit|fp8|"
            r"precision[ =]*16)\b.{0,120}\b(?:slower|same|not (?:\w+ )?faster|no (?:speed|gain|"
            r"faster)\w*|about|against|longer|didn't|doesn't|even|only)\b"
        ),
        {"precision": 2.5, "data wait": 0.69},
        unless=r"lora|adapter",
    ),
    Clue(
        "a number format",
        (
            r"\b(?:fp16|float16|half|amp|bf16|mixed[- ]?precision|apex|fp8|tf32|fp32|float32|"
            r"double)\b"
        ),
        {"precision": 1.3},
    ),
    Clue(
        "a share of the peak",
        r"\b(?:mfu|hfu|tflops?|flops|flop/s)\b",
        {"FLOPs convention": 2, "no device": 0.47, "data wait": 0.59, "unequal work": 0.86},
    ),
    Clue(
        "the computed share of the peak is in doubt",
        (
            r"\b(?:mfu|hfu|tflops?|flops|flop/s)\b.{0,150}\b(?:wrong|right|calculat\w*|comput\w*|"
            r"formula|peak|readme|delta|differ\w*|expected|what score|convention|counted)\b"
        ),
        {"FLOPs convention": 2.1},
    ),
    Clue(
        "a mixture of experts",
        r"\b(?:moe|mixture[- ]of[- ]experts|experts?|mixtral|a\d+(?:\.\d+)?b)\b",
        {"token dispatch": 3.1, "kernels": 1.2},
    ),
    Clue(
        "adapters or frozen weights are no faster",
        (
            r"\b(?:q?lora|peft|adapters?|dora|freez\w+|frozen|trainable)\b.{0,200}\b(?:same|"
            r"not (?:\w+ )?(?:faster|less)|slower|as (?:long|fast|slow)|no (?:speed|gain)|exactly|"
            r"almost|expected|stays|longer|improve\w*)\b"
        ),
        {"adapters": 2.1},
        unless=r"\bs/it\b|shared",
    ),
    Clue(
        "gradients are accumulated",
        r"\b(?:grad\w*[-_ ]?acc\w*|accum\w*|update[-_ ]freq)",
        {"gradient accumulation": 2},
    ),
    Clue(
        "the accumulation was changed",
        (
            r"\b(?:with|without|increas\w+|set|using|use|"
            r"gradient) (?:\w+ )?(?:grad\w*[-_ ]?)?accumulation\b(?! ?steps?[ =:]*\d)"
        ),
        {"gradient accumulation": 1.6},
    ),
    Clue(
        "states or layers are offloaded",
        r"\b(?:offload\w*|cpu_?adam|nvme|block ?swap|blocks_to_swap|device_map|paged)\b",
        {"offload": 3.3},
    ),
    Clue(
        "activations are recomputed",
        r"\b(?:gradient|activation)s?[-_ ]checkpoint\w*|\brecomput\w*|\bremat\w*",
        {"recompute": 1.7},
    ),
    Clue(
        "the software or environment changed",
        (
            r"\b(?:upgrad|updat|downgrad|reinstall)\w*|\bnew(?:er|est)? (?:version|release|commit|"
            r"driver|container)|\b(?:latest|old|previous|earlier) (?:version|release|commit|"
            r"driver)|\bregress\w*|\bgit pull|\bused to\b|\b(?:weeks?|months?) ago\b|\bsince\b|"
            r"\bno longer\b"
        ),
        {"software version": 2.1, "data wait": 0.86},
    ),
    Clue(
        "two releases are compared",
        (
            r"\b(?:v|version )?\d+\.\d+(?:\.\d+)?\S*\b.{0,80}\b(?:than|vs\.?|versus|instead|while|"
            r"to|before|from|and)\b.{0,40}\b\d+\.\d+\.\d+"
        ),
        {"software version": 1.6},
    ),
    Clue(
        "a new device is no faster",
        (
            r"\b(?:rtx ?[345]0\d0|[345]0[6-9]0(?: ?ti)?|[ahb]100|h200|b200|gb200|4090|5090|"
            r"mi\d{3}\w?|rocm)\b.{0,150}\b(?:slower|no faster|not (?:any )?faster|same|worse|"
            r"even)\b"
        ),
        {"software version": 1.7, "host": 1.3},
        unless=r"\bfp16|\bamp\b|nodes|gpus",
    ),
    Clue(
        "other people's figures",
        (
            r"\b(?:paper|readme|reported|report|authors?|official|published|you(?:r)? (?:log|"
            r"training|speed|results?)|others (?:do|claim|need|get)|tutorial|docs?|documentation|"
            r"claims?)\b"
        ),
        {"unequal work": 1.6},
    ),
    Clue(
        "the question whether it is normal",
        (
            r"\bis (?:this|it|that|the \w+) (?:normal|expected|ok|usual|decent|right)|"
            r"\bhow long\b|\bnormal\b|\bexpected\b|\bdays\b|\bwhat (?:speed|training time)\b"
        ),
        {"unequal work": 1.3},
    ),
    Clue(
        "a resolution",
        (
            r"\b(?:resolution|pixels?|px|\d{3,4} ?x ?\d{3,4}|image size|crop|larger images|4k|"
            r"high-res\w*)\b"
        ),
        {"unequal work": 1.3, "data wait": 1.2},
    ),
    Clue(
        "two implementations are compared",
        (
            r"\b(?:pytorch|torch|tensorflow|keras|caffe2?|mxnet|theano|jax|lightning|darknet|"
            r"paddle\w*|tf|original|reference|plain|native|other (?:repo\w*|implementation|"
            r"library|framework))\b.{0,100}\b(?:slower|faster|than|compared|versus|vs|whereas|"
            r"while|against|counterpart)\b.{0,60}\b(?:pytorch|torch|tensorflow|keras|caffe2?|"
            r"mxnet|theano|jax|lightning|darknet|paddle\w*|tf|original|reference|plain|native|"
            r"implementation|library)\b"
        ),
        {"kernels": 1.5, "unequal work": 1.3, "host": 1.3, "no device": 0.8},
    ),
    Clue(
        "little device memory, or a swap",
        (
            r"\b(?:[4-8]|1[0-2]) ?gi?b\b|\bshared (?:gpu )?memory|\bvram\b|\bpage ?file|"
            r"\bswap\w*\b"
        ),
        {"memory": 2, "offload": 1.2},
        unless=r"swap\w* (?:in|out) |model of",
    ),
    Clue(
        "a larger batch is slower",
        (
            r"\b(?:larger|bigger|increas\w+|higher) (?:the )?batch\w*.{0,40}\b(?:slow\w*|longer)|"
            r"\bbatch\w*(?: size)? (?:of )?\d+.{0,60}\bbatch\w*(?: size)? (?:of )?\d+.{0,40}\bslow"
        ),
        {"memory": 1.8, "data wait": 1.3},
    ),
    Clue(
        "device memory is left",
        (
            r"\bonly (?:uses? |using )?\d+(?:\.\d+)? ?(?:g|gb|gib|m|mb|%)|"
            r"\bmemory\b.{0,30}\b(?:free|left|unused|small|little|not full|empty)|\b(?:waste|"
            r"make (?:full|better) use|use (?:it|the \w+) fully|fully utili[sz]e)"
        ),
        {"micro-batch": 2.1},
        unless=r"cpu",
    ),
    Clue(
        "small batches",
        (
            r"\bbatch[-_ ]?size[ =:of]*[12]\b(?!\d|\.)|\b(?:small|tiny) batch\w*|"
            r"\bmicro[- ]?batch\w*"
        ),
        {"micro-batch": 1.6},
    ),
    Clue(
        "the loader or storage",
        (
            r"\b(?:data ?-?_?load\w*|num_?workers?|loader\w*|iteratorgetnext|getitem|__getitem__|"
            r"prefetch\w*|data_time|data time|data: ?\d|hdd|ssd|nfs|lustre|disk|lmdb|tfrecords?|"
            r"h5py?|hdf5|jpe?gs?|augment\w*|decod\w+|mp4|webdataset|shards?|from_generator|"
            r"flow_from_directory|fit_generator|fetch\w*)\b"
        ),
        {"data wait": 1.8, "unequal work": 0.74},
        unless=r"(?:not|n't) (?:due to |because of )?(?:the )?(?:data|load)\w*|random data|synthetic",
    ),
    Clue(
        "the data are ruled out",
        (
            r"\b(?:synthetic|dummy|random (?:data|tensors?|inputs?)|fake data|"
            r"data loading is (?:not|fine|no)|data(?:_time)?:? ?0\.0\d*|"
            r"rule(?:d)? out (?:the )?(?:data|loader))"
        ),
        {"data wait": 0.47},
    ),
    Clue(
        "samples are decoded",
        (
            r"\b(?:images?|imagenet|coco|videos?|frames|audio|wavs?|speech|spectrograms?|kitti|"
            r"voc|faces?|clips?)\b"
        ),
        {"data wait": 1.3},
    ),
    Clue(
        "graphs are sampled",
        (
            r"\b(?:gnn|graph ?sage|gcn|neighbou?r sampl\w*|dgl|pyg|torch-?geometric|"
            r"knowledge graph)\b"
        ),
        {"data wait": 1.3},
    ),
    Clue(
        "a compiler",
        (
            r"\b(?:torch\.compile|xla|jit|tpus?|jax|recompil\w*|compil\w*|tf\.function|retrac\w*|"
            r"inductor|dynamo|triton|autotun\w*|hpu|gaudi)\b"
        ),
        {"compilation": 2},
    ),
    Clue(
        "shapes vary",
        (
            r"\b(?:random|varying|variable|different|dynamic|changing|"
            r"multi-?scale) (?:\w+ )?(?:sizes?|shapes?|lengths?|resolutions?)|\bcudnn\.benchmark|"
            r"\bbenchmark ?= ?true"
        ),
        {"compilation": 2},
    ),
    Clue(
        "special layers",
        (
            r"\b(?:depth-?wise|group(?:ed)? conv\w*|groups|conv3d|3d conv\w*|deformable|dilat\w+|"
            r"transposed|sparse|scatter\w*|grid_sample|roi\w*|cumsum|ssm|mamba\w*|rwkv|"
            r"linear attention|einsum|custom (?:op|kernel|layer|cuda)|jacobian|double backward|"
            r"gradient penalty|svd|topk|unique)\b"
        ),
        {"kernels": 2},
    ),
    Clue(
        "quantized weights",
        r"\b(?:q-?lora|[48][- ]?bit|int[48]|nf4|bitsandbytes|bnb|gptq|load_in_[48]bit)\b",
        {"kernels": 1.7},
        unless=r"8bit[_ ]?adam|adam8bit|adam_8bit",
    ),
    Clue(
        "cores, threads or Python",
        (
            r"\b(?:cores?|threads?|omp_num\w*|top -h|htop|python (?:process|overhead)|gil|numpy|"
            r"for[- ]loops?|single core|\.item\(|cpu (?:usage|util\w*|load|bound)|launch\w*)\b"
        ),
        {"host": 1.7},
    ),
    Clue(
        "weights or gradients are exchanged",
        (
            r"\b(?:fsdp|fully_?sharded|zero[- _]?(?:stage[- _]?)?3|stage[- ]?3|full_shard|"
            r"kv-?store|parameter server|syncbn|sync batch|find_unused\w*|allreduce|all-reduce|"
            r"pcie?|nvlink|p2p)\b"
        ),
        {"communication": 2},
    ),
    Clue(
        "one process drives several devices",
        (
            r"\b(?:nn\.)?dataparallel\b|\bdata parallel\b|\b(?:dp|multi_gpu_model)\b|\bgpu ?:?0\b|"
            r"\bfirst gpu\b|\bcuda_visible_devices=0,1\S* python3? "
        ),
        {"DataParallel": 2.7},
        unless=r"distributed ?data ?parallel|tensor parallel|dp ?= ?\d",
    ),
    Clue(
        "pipeline stages",
        (
            r"\b(?:pipeline|pipe)[-_ ]?(?:parallel\w*|stages?|model)|\bpp ?= ?\d|\bgpipe\b|"
            r"\bmodel parallel\w*"
        ),
        {"pipeline bubble": 3.1, "layout": 1.7},
    ),
    Clue(
        "tensor parallelism",
        r"\btensor[-_ ](?:model[-_ ])?parallel\w*|\btp ?= ?\d",
        {"layout": 1.8, "communication": 1.3},
    ),
    Clue(
        "long or padded sequences",
        (
            r"\b(?:padd\w+|max_?len\w*|max_?length|cutoff_len|sequence lengths?|long(?:er|"
            r"est)? (?:sentences?|documents?|texts?|sequences?|clips?|audio)|packing|bucket\w*|"
            r"group_by_length|variable lengths?)\b"
        ),
        {"padding": 2.1},
    ),
    Clue(
        "a fused attention",
        r"\b(?:flash[-_ ]?att\w*|sdpa|xformers|attn_impl\w*)\b",
        {"flash attention": 2},
    ),
    Clue(
        "a debug option",
        (
            r"\b(?:debug\w*|detect_anomaly|anomaly|launch_blocking|profiler|asserts?|verbose|"
            r"fast_dev_run)\b"
        ),
        {"debug option": 2.5},
    ),
    Clue(
        "a clock on the host",
        (
            r"\b(?:time\.time|perf_counter|timeit|cuda\.event|synchroni[sz]e|asynchronous\w*|"
            r"cumulative|loss\.item|\.cpu\(\))"
        ),
        {"timing": 2.1},
    ),
    Clue(
        "one device is slow",
        (
            r"\b(?:one|some) (?:of the |of my )?(?:gpus?|nodes?|ranks?|cards?|"
            r"machines?)\b.{0,40}\b(?:slow\w*|hot\w*|throttl\w*|lower|less)|\bthrottl\w*|"
            r"\btemperature|\bclocks? (?:drop|speed)|\bfrom run to run\b|\bpower (?:limit|cap|"
            r"draw)"
        ),
        {"stragglers": 2.7},
    ),
    Clue(
        "some steps are slow",
        (
            r"\b(?:random\w*|occasional\w*|sporadic\w*|sometimes|now and then|some (?:steps|"
            r"epochs|iterations|batches)|suddenly|every \d+ (?:steps|iterations|batches))\b"
        ),
        {"slow steps": 2},
    ),
)
"""Clues, by kind: devices, load, time, then set-ups."""


@dataclass(frozen=True)
class CluesOfText:
    """The clues in a text, with their joint factors for causes."""

    factors: Mapping[str, float] = field(default_factory=dict)
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """For each cause, the clues that make it likelier, strongest first."""

    def factor(self, cause: str) -> float:
        """Return how many times likelier all clues together make a cause."""
        return self.factors.get(cause, 1.0)


def clues_in(text: str) -> CluesOfText:
    """Return the clues in a lower-case text.

    >>> clues = clues_in("each epoch is slower than the one before")
    >>> clues.names["growing steps"], clues.factor("growing steps") > 1
    (['it gets slower over time'], True)
    >>> clues_in("a step takes 2 s").factors
    {}
    """
    line = " ".join(text.split())
    logs = dict[str, float]()
    strengths = dict[str, dict[str, float]]()
    for clue in _matching(line):
        for cause, factor in clue.factors.items():
            logs[cause] = logs.get(cause, 0.0) + math.log(factor)
            if factor > 1:
                strengths.setdefault(cause, {})[clue.name] = factor
    factors = {cause: math.exp(log) for cause, log in logs.items()}
    names = {
        cause: sorted(clues, key=lambda name: -clues[name]) for cause, clues in strengths.items()
    }
    return CluesOfText(factors, names)


def _matching(line: str) -> Iterator[Clue]:
    """Yield the clues whose words are in a line."""
    for clue, pattern, unless in _compiled():
        if pattern.search(line) and not (unless and unless.search(line)):
            yield clue


@cache
def _compiled() -> tuple[tuple[Clue, re.Pattern[str], re.Pattern[str] | None], ...]:
    """Return each clue with its compiled patterns."""
    return tuple(
        (clue, re.compile(clue.pattern), re.compile(clue.unless) if clue.unless else None)
        for clue in CLUES
    )
