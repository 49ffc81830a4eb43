"""Causes that the set-up of a slow training run makes likely, although its text does not name them.

Each suspect has a weight: the share of public threads with these devices that accepted the cause,
times a factor for each sign in the text. A suspect has no estimated time. Suspects are listed only
if the text says that training is slow, and if fewer causes were found than an answer can list.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from runbook.tools.speed.durations import is_out_of_proportion, times_two_models
from runbook.tools.speed.facts import Facts
from runbook.tools.speed.parts import GapPart
from runbook.tools.speed.phrases import is_stated
from runbook.tools.speed.sign_rows import OLD_DEVICES
from runbook.tools.speed.signs import distinct_lines
from runbook.tools.speed.topics import (
    REMEDIES,
    TopicOfComplaint,
    asks_about_speed,
    complains,
    topics_of_complaints,
)
from runbook.tools.speed.usual_causes import (
    LOG_SHARE_OF_OTHERS,
    USUAL_CAUSES,
    TrainingKind,
    log_shares,
    setting_of,
)

LISTED_CAUSES = 3
"""How many causes an answer lists first."""
_WITHOUT_FAST_LINKS = r"\b(?:t4|l4|l40s?|a10g?|a16|a30|a40|a[456]000|rtx|quadro|titan|[1-5]0[6-9]0(?: ?ti)?|p100|pcie)\b"
"""Devices that are usually connected by PCIe alone."""
_SEVERAL_DEVICES = (
    r"\b(?:[2-9]|\d{2,}|two|four|eight|multi(?:ple)?)(?: ?[x×*]| ?-)? ?(?:nvidia |tesla |geforce )?"
    r"(?:gpus?|cards?|t4|[al]\d{1,4}[gs]?|[1-5]0[6-9]0|rtx|quadro|titan|p100)"
    r"|\bnproc[_-]per[_-]node[= ]+(?:[2-9]|\d{2,})|\b(?:ddp|fsdp|zero)\b"
)
_EXPERTS = (
    r"\b(?:d?moe|mixture[- ]of[- ]experts|mixtral|num_experts|expert[- ]parallel\w*"
    r"|deepseek[- ]?v[23]|\d+b-a\d+b|dense (?:models?|baselines?))\b"
)
_LOAD = r"(?<!flops )(?<!flop )(?<!memory )(?<!swap )(?<!disk )\b(?:utili[sz]ation|utils?|usage|load)\b(?! ?\(?mfu)"
_UNSTEADY = r"(?:idle|low|spik\w+|oscillat\w+|fluctuat\w+|unstable|drops?|up and down)"
_IDLE_DEVICE = (
    rf"{_LOAD}[^.;]{{0,60}}\b(?:{_UNSTEADY}\b|[1-6]?\d ?%)"
    rf"|\b(?:gpus?|cards?|devices?)\b[^.;]{{0,30}}\b(?:idle|at (?:only |about )?[1-6]?\d ?%)"
    r"|\bgpus?\b[^.;]{0,40}\b[1-6]?\d ?% (?:usage|utili[sz]ation|load)"
    rf"|\b{_UNSTEADY} (?:gpus?|cards?|devices?|gpu utili[sz]ation)\b"
    r"|\b(?:gpus?|cards?|devices?)\b[^.;]{0,20}\bunder-?utili[sz]ed\b"
)
"""Words about a device that waits. An MFU of 50 % does not count as waiting."""
_LOW_LOAD = (
    rf"{_LOAD}[^.;]{{0,40}}\b(?:is|was|are|very|so|too|quite|really) (?:very |so |too |quite )?low\b"
    r"|\bgpu (?:utili[sz]ation|usage|util)\b[^.;]{0,30}\b(?:low\b|[1-4]?\d(?:-\d+)? ?%)"
    r"|\b(?:gpus?|cards?|devices?)\b[^.;]{0,20}\bunder-?utili[sz]ed\b"
    r"|(?<!\d)\d{1,4} ?(?:mi?b)? ?/ ?\d{5} ?mi?b\b"
)
"""Words about a device whose load stays low, as with small matrices, or whose memory is nearly empty."""
_NO_GAIN = (
    r"(?:\b(?:no|not|without)|n't) (?:any )?(?:\w+ )?"
    r"(?:faster|speed\w*|accelerat\w+|gain|scal\w+|improv\w+)"
    r"|\bsame (?:speed|time)\b|\b(?:slower|longer) (?:with|on) (?:more|two|\d+|multiple) (?:gpus|devices)\b"
)
"""Words that say that more devices do not help."""
_ANOTHER_DEVICE = (
    r"\b(?:gb\d00|[abhv]\d{2,3}s?|rtx \d{4}|[2-5]0[6-9]0(?: ?ti)?|t4|l4|l40s?|mi\d{3}x?)\b"
    r"[^.;]{0,60}\b(?:slow\w*|not (?:any )?faster|no faster|same speed)\b[^.;]{0,20}"
    r"\b(?:gb\d00|[abhv]\d{2,3}s?|rtx \d{4}|[1-5]0[6-9]0(?: ?ti)?|t4|l4|l40s?|p100|mi\d{3}x?)\b"
)
"""Words that compare two device types."""
_SHARDED = r"\b(?:fsdp|full_shard|zero[- ]?(?:stage[- ]?)?3|stage[- ]?3)\b"


_OTHERS_FIGURES = (
    r"\b(?:paper|readme|blog|leaderboard|reported|published|baseline|official|original)\b"
    r"|(?<!hello )(?<!hello, )(?<!dear )(?<!hi )(?<!hi, )\bauthors?\b"
    r"|\b(?:your|their|the) (?:table|results?|numbers?|figures?|repo\w*|speeds?|times?|side|end|logs?|\d+)\b"
    r"|\bcompared (?:to|with)\b|\bcontrast to\b|\bwhereas\b|\bdiscrepan\w+"
    r"|\b(?:took|takes?) (?:you|them|(?:me )?only)\b|\byours\b"
    r"|\bsame (?:config\w*|settings?|parameters|dataset|data|model|code) (?:as|with)\b"
    r"|\b(?:other|another) (?:code ?base|framework|library|repo\w*|implementation|trainer)s?\b"
)
"""Words that compare a training run with other people's."""
_ONE_PROCESS_EACH = (
    r"\b(?:ddp|fsdp|horovod|torchrun|deepspeed|megatron\S*|accelerate|mpirun|srun|zero-?[123]"
    r"|distributed\w*|nproc\w*|world[_ ]size)\b"
)
"""Words for programs that start one process per device."""
_DEVICE_AT_WORK = (
    r"\b(?:utili[sz]ation|utils?|usage|nvidia-smi|vram|gpu memory|mfu|tflops?|power draw)\b"
    r"|\bcuda (?:has been|is|was) (?:used|available|enabled)\b|\bus(?:e|es|ing) cuda\b"
)
"""Words that show that a device is in use."""
_MEDIA = r"\b(?:images?|imgs?|imagenet|coco|videos?|frames|audio|speech|spectrograms?|webdataset)\b"
"""Words for samples that are decoded during training."""
_QUANTIZED = r"\b(?:q-?lora|[48][- ]?bit|int[48]|nf4|bitsandbytes|bnb|load_in_[48]bit)\b"
_CHECKPOINTING = r"\b(?:gradient|activation)[_ -]checkpointing\b|\brecompute\b"
_CHANGED_SOFTWARE = (
    r"\b(?:after|since)\b[^.;]{0,30}\b(?:updat|upgrad|install|switch|releas)\w*"
    r"|\b(?:new|newer|latest|old|older|previous) (?:version|release|container|image|driver|environment)\b"
    r"|\bdifferent (?:version|environment|machine|server)s?\b"
)
_TWO_RELEASES = (
    r"\b(torch|pytorch|cuda|tensorflow|jax|transformers|deepspeed|driver|accelerate|speechbrain|unsloth)`?"
    r"(?: version)?(?: \(gpu\?\))?[ :=<>v]{1,4}(\d+\.\d+)"
    r"(?s:.{0,600})\b\1`?(?: version)?(?: \(gpu\?\))?[ :=<>v]{1,4}(?!\2)\d+\.\d+"
    r"|\b\d+\.\d+(?:\.\d+)? (?:versus|vs\.?) \d+\.\d+(?:\.\d+)?\b"
    r"|\b(?:release|version|v)[ :=]{0,2}(\d+\.\d+\.\d+)\b(?s:.{0,600})"
    r"\b(?:release|version|v)[ :=]{0,2}(?!\3\b)\d+\.\d+\.\d+\b"
)
"""Two releases of the same software."""
_ANOTHER_PROGRAM = (
    r"\bslower than (?!(?:an?|one|single|\d+|the|my|our|with|on|when|before|usual|expected|normal"
    r"|it|in|for)\b)[a-z]"
)
"""Words that compare two programs or models by name."""
_ROLLOUTS = (
    r"\b(?:grpo|ppo|rlhf|rloo|rollouts?|reinforcement)\b|\brl (?:runs?|stage|step|training)\b"
)
_ATTENTION = r"\bflash[- _]?att\w*|\bsdpa\b|\bxformers\b|\battn_impl\w*"
_COMPILED_FOR_DEVICE = r"\b(?:tpus?|xla|jax)\b|\btorch\.compile\b"
_YOUNG_SOFTWARE = r"\b(?:rocm|mi[23]\d\d\w?|blackwell|b[23]00|gb[23]00|rtx ?50\d0|50[6-9]0)\b"
"""Devices that software has supported properly only for a short time."""
_SMALL_MODEL = (
    r"\b(?:tiny|small|nano) (?:\w+ )?(?:model|network|transformer|gpt\w*)\b|\b[1-9]\d?m param\w*"
)
_RECURRENT = r"\b(?:mamba\w*|rwkv\w*|ssms?|state[- ]space|selective scan|linear attention)\b"
"""Models that need special kernels in place of attention."""
_LARGER_BATCH_SLOWER = (
    r"\b(?:larger|bigger|increas\w+|higher) (?:the )?(?:micro[- ]?)?batch[^.;,]{0,40}\bslow\w*"
    r"|\bbatch[- ]?size (?:of )?\d+ (?:and|with)[^.;]{0,60}"
    r"\b(?:throughput|speed) (?:drops|falls|decreases)"
)
"""Words that say that a larger batch lowers the speed."""
_ONE_DEVICE_WORKS = (
    r"\b(?:one|only one|gpu ?:?0|first) (?:gpu|card|device)?[^.;]{0,40}\b(?:high|full|100 ?%|active\w*|busy)"
    r"[^.;]{0,40}\b(?:other|others|rest|one)\b[^.;]{0,30}\b(?:none|idle|0 ?%|nothing|low)"
)
"""Words that say that one device works and the others wait."""
_BUSY_DEVICE = (
    r"\b(?:gpus?|cards?|devices?)\b[^.;%]{0,40}\b(?:always|constantly|steady|steadily|all|at|around|about|is|are|~) ?"
    r"(?:at |around |about |~)?(?:9[5-9]|100) ?%"
    r"|\b(?:full|(?:9[5-9]|100) ?%) (?:gpu )?(?:utili[sz]ation|load)\b"
)
"""Words about a device that never waits for the host."""

_BETTER_DEVICE = (
    r"\b(?:better|newer|faster|stronger|more expensive) (?:gpus?|cards?|devices?|one)\b"
)
_ADAPTERS = r"(?<![a-z])(?:q?lora|peft|adapters?)(?![a-z])"
_TRAINED_WHOLE = (
    r"\bfull(?:[- ]?param\w*)?[- ]?(?:fine-?tun\w*|train\w*|model|sft)\b|\bwhole model\b"
    r"|\bparam\w*\b[^.;]{0,20}\breduced\b"
    r"|\b(?:than|to|and) freez\w+|\btrainable param\w*|\btrains? (?:\w+ )?[\d.]+ ?%"
    r"|(?:q?lora|peft|adapters?)\b[^.;]{0,60}\b(?:slower|longer) than\b(?![^.;]{0,20}lora)"
    r"|\b(?:model|base)\b[^.;]{0,12} (?:and|vs\.?|versus) [^.;]{0,12}\blora\w*"
    r"|(?:\bnot|n't)\b[^.;]{0,20}\b(?:faster|accelerat\w+|improv\w+)"
)
"""Words that compare adapters with training all weights, or that expect adapters to be faster."""
_SMALL_BATCH = (
    r"(?<![a-z])batch[-_ ]?size\w*[ =:]+[\"']?[12]\b(?!\.)|\bmax[-_]sentences[ =:]+[12]\b"
)
_MUCH_ACCUMULATION = r"(?:(?<![a-z])accum\w*|\bupdate[-_ ]freq\w*)[ =:]+[\"']?(?:[89]|\d{2,})\b"
_LAUNCHES = (
    r"\blaunch[- ]?(?:overhead|bound|starv\w*|limited)\b|\bcuda[- ]?graphs?\b[^.;]{0,40}\bsmall\b"
)
_BUSY_HOST = (
    r"\bcpus?\b[^.;]{0,30}\b(?:9\d|100) ?%|\bomp_num_threads(?: ?[=:] ?| to )1\b"
    r"|\b(?:[12]|one|two|single|only \d+) (?:cpu )?cores?\b"
)
"""Words about host cores that are all busy, or few."""
_SMALL_DEVICE = (
    r"\blaptops?\b|(?<!\d)[468] ?gi?b (?:of )?(?:gpu memory|vram)\b|\b(?:mx|gtx) ?\d{3,4}\b"
)
_TINY_SHARE = r"(?<!cpu )(?<!disk )\b(?:utili[sz]ation|mfu)\b[^.\d]{0,20}\b[0-4](?:\.\d+)? ?%"
_TRAINER = r"\btrainer\b|\brun_\w+\.py\b|\b(?:sentence[-_ ]?)?transformers\b"
_FREE_MEMORY = r"\b(?:memory|vram)\b[^.;]{0,20}\bnot (?:\w+ )?(?:full|used|filled)\b"
_FREES = r"\b(?:cuda|hip)[ _]?(?:free|malloc)s?\b(?! (?:memory|vram)\b)"
_FULL_MEMORY = (
    r"\b(?:ram|swap)\b(?:(?!\bnot\b|n't)[^.;]){0,30}\b(?:fill\w*|full\b)"
    r"|\bswap\b[^.;]{0,10}\b[1-9][\d.]* ?/ ?\d|\bswap ?[:=] ?[1-9]|\bdedicated\b[^.;]{0,20}\bshared\b"
)
"""Words about a full memory, whose contents move elsewhere."""
_ANY_REGRESSION = (
    r"\bregress(?:ions?|ed|es)\b|\bnightl(?:y|ies)\b|\b(?:weeks?|months?) (?:back|ago)\b"
    r"|\byesterday\b|\brecent (?:[\w/-]+ )?versions?\b|\bsame (?:exact )?(?:code|config\w*) (?:with|on)\b"
)
_TORCH_WITH_TF32 = r"\b(?:py)?torch\b[^\w\n<>~]{0,4}1\.(?:[7-9]|1[01])\b"
"""Releases of PyTorch that use TF32 for matrix products unless told otherwise."""
_TORCH_WITHOUT_TF32 = (
    r"\b(?:py)?torch\b[^\w\n]{0,4}(?:1\.1[23]|2\.\d)|\b(?:py)?torch\b[^\d\n]{0,5}> ?=? ?1\.11\b"
)
"""Later releases, which do not (transformers issue 16588)."""
_NOT_IN_16_BITS = (
    r"(?s)\A(?!.*(?<!no )(?<!without )\b(?:bf16|bfloat16|fp16|float16)\b"
    r"(?![\"']? ?[:=] ?(?:\{|false|no\b|0)))"
)
"""Matches a text that does not mention training in 16 bits, for which TF32 does not matter."""
_NOT_THE_NETWORK = (
    r"(?:\bnot|n't)\b[^.;,]{0,30}\b(?:related|due|caused by|because)\b[^.;,]{0,20}\bnetwork\b"
    r"|\bnetwork (?:bandwidth |speed )?is (?:fine|ok|fast)\b"
)


@dataclass(frozen=True)
class _Sign:
    """Words about a set-up that make a cause more or less likely."""

    cause: str
    patterns: tuple[str, ...]
    """Patterns for lower-case text. All must match."""
    factor: float
    """How many times likelier these words make the cause. A factor below 1 makes it less likely."""
    evidence: str
    remedy: str = ""


_SIGNS_OF_SET_UP = (
    _Sign(
        "software version",
        (_ANOTHER_DEVICE,),
        6,
        "a newer device is no faster",
        "check whether PyTorch, CUDA and the driver were built for this device",
    ),
    _Sign(
        "software version",
        (_CHANGED_SOFTWARE,),
        4,
        "the software changed",
        "time the same step with the previous version, and report the difference",
    ),
    _Sign(
        "software version",
        (_TWO_RELEASES,),
        4,
        "two releases of the same software are compared",
        "time the same step with both, and report the difference",
    ),
    _Sign(
        "stragglers",
        (_ANOTHER_DEVICE, r"\b(?:gpus|cards|devices|node)\b|\b\d+ ?x? ?[abhv]\d{2,3}"),
        6,
        "a newer device is no faster, and there are several",
        "time each device alone, because a faulty device slows all others",
    ),
    _Sign(
        "data wait",
        (_IDLE_DEVICE,),
        4,
        "devices are idle or their load goes up and down",
        "time a run on random tokens, without the loader; use one worker for each core",
    ),
    _Sign(
        "data wait",
        (_MEDIA,),
        2,
        "samples are decoded while it trains",
        "time a run on random samples, without the loader; use one worker for each core",
    ),
    _Sign(
        "token dispatch",
        (_EXPERTS,),
        8,
        "a mixture of experts",
        "time the dispatch in a profile; use fused experts (grouped matrix products)",
    ),
    _Sign(
        "communication",
        (_WITHOUT_FAST_LINKS, _SEVERAL_DEVICES),
        3,
        "several devices without NVLink",
        "check the links between devices with nvidia-smi topo -m; transfer less, or less often",
    ),
    _Sign(
        "communication",
        (_SHARDED,),
        4,
        "each layer's weights are gathered before it runs",
        "shard within a node only, or keep weights whole (ZeRO 1)",
    ),
    _Sign(
        "unequal work",
        (_NO_GAIN, r"\b(?:gpus|devices|multi[- ]?gpus?)\b", r"\bbatch"),
        3,
        "the batch may be per device: with more devices, a step has more samples",
        "compare samples/s or tokens/s of all devices, not the time of a step",
    ),
    _Sign(
        "unequal work",
        (_NO_GAIN, r"\b(?:gpus|devices|multi[- ]?gpus?)\b"),
        2,
        "more devices do not make it faster; a step may have more samples",
        "compare samples/s or tokens/s of all devices, not the time of a step",
    ),
    _Sign(
        "unequal work",
        (_ANOTHER_PROGRAM,),
        3,
        "two programs or models are compared",
        "compare tokens/s per device, with the same batches, lengths and layers",
    ),
    _Sign(
        "kernels",
        (_ANOTHER_PROGRAM,),
        3,
        "two programs or models are compared",
        "check in a profile of each which kernels run",
    ),
    _Sign(
        "generation",
        (_ROLLOUTS,),
        20,
        "reinforcement learning generates its samples",
        "time the generation alone; give it more devices, a faster engine or shorter samples",
    ),
    _Sign(
        "gradient accumulation",
        (r"\bgrad(?:ient)?[-_ ]?acc\w*|\baccum\w+|\bupdate[-_ ]freq\w*",),
        4,
        "a step has several micro-batches",
        "compare tokens/s per device, not the time of a step",
    ),
    _Sign(
        "unequal work",
        (_OTHERS_FIGURES,),
        2,
        "the text compares it with another training run",
        "compare tokens/s per device: the other run may have different batches, lengths or devices",
    ),
    _Sign(
        "micro-batch",
        (_LOW_LOAD,),
        6,
        "the load of the devices is low",
        "use a larger micro-batch, if it fits",
    ),
    _Sign(
        "host",
        (_IDLE_DEVICE,),
        3,
        "devices are idle or their load goes up and down",
        "check how many cores each rank gets (cpus-per-task, OMP_NUM_THREADS), and profile "
        "the host code",
    ),
    _Sign(
        "precision",
        (OLD_DEVICES,),
        4,
        "devices without tensor cores",
        "compare with the 32-bit peak of this device",
    ),
    _Sign(
        "kernels",
        (_QUANTIZED,),
        3,
        "low-bit weights are unpacked for every product",
        "use 16-bit weights if they fit",
    ),
    _Sign(
        "recompute",
        (_CHECKPOINTING,),
        4,
        "activations are recomputed",
        "keep activations, or recompute selectively",
    ),
    _Sign(
        "FLOPs convention",
        (r"\bmfu\b|\bflops utili[sz]ation",),
        10,
        "a low MFU",
        "check which device's peak the program divides by",
    ),
    _Sign(
        "flash attention",
        (_ATTENTION,),
        3,
        "the text mentions a kind of attention",
        "check in a profile which attention kernel runs",
    ),
    _Sign(
        "compilation",
        (_COMPILED_FOR_DEVICE,),
        4,
        "programs are compiled for each shape",
        "use input shapes that do not change; check how often it compiles",
    ),
    _Sign(
        "software version",
        (_YOUNG_SOFTWARE,),
        3,
        "software for this device was still being fixed recently",
        "time the same step with newer releases of PyTorch, CUDA or ROCm, and the driver",
    ),
    _Sign(
        "kernels",
        (_YOUNG_SOFTWARE,),
        3,
        "few fused kernels exist for this device",
        "check in a profile which kernels run",
    ),
    _Sign(
        "host",
        (_SMALL_MODEL,),
        3,
        "a small model: launches take as long as kernels",
        "use a larger micro-batch, CUDA graphs, or torch.compile",
    ),
    _Sign(
        "micro-batch",
        (_SMALL_MODEL,),
        3,
        "a small model has small matrices",
        "use a larger micro-batch, if it fits",
    ),
    _Sign(
        "kernels",
        (_RECURRENT,),
        8,
        "a model without attention needs special kernels",
        "check in a profile whether the fused scan runs",
    ),
    _Sign(
        "memory",
        (_LARGER_BATCH_SLOWER,),
        30,
        "a larger batch is slower: the memory may be nearly full",
        "look at allocation retries (torch.cuda.memory_stats); use a smaller micro-batch",
    ),
    _Sign(
        "DataParallel",
        (_ONE_DEVICE_WORKS,),
        20,
        "one device works and the others wait",
        "start one process per device: torchrun and DistributedDataParallel",
    ),
    _Sign(
        "software version",
        (_ANY_REGRESSION,),
        6,
        "an earlier version was faster",
        "time the same step with the previous version, and report the difference",
    ),
    _Sign(
        "precision",
        (_TORCH_WITH_TF32, _TORCH_WITHOUT_TF32, _NOT_IN_16_BITS),
        60,
        "since PyTorch 1.12, 32-bit matrix products do not use TF32",
        "call torch.set_float32_matmul_precision('high'), or train in bf16",
    ),
    _Sign(
        "host",
        (_BETTER_DEVICE,),
        5,
        "a better device is no faster",
        "check how many cores each rank gets, and profile the host code",
    ),
    _Sign(
        "host",
        (_ANOTHER_DEVICE,),
        3,
        "a newer device is no faster",
        "check how many cores each rank gets, and profile the host code",
    ),
    _Sign(
        "adapters",
        (_ADAPTERS, _TRAINED_WHOLE),
        30,
        "adapters train few weights, but every layer still computes forward and backward",
        "expect to save memory, not time: use the memory for a larger micro-batch",
    ),
    _Sign(
        "DataParallel",
        (_SEVERAL_DEVICES, rf"{_LOW_LOAD}|{_IDLE_DEVICE}"),
        4,
        "several devices wait, and nothing starts one process per device",
        "start one process per device: torchrun and DistributedDataParallel",
    ),
    _Sign(
        "DataParallel",
        (_TRAINER, _SEVERAL_DEVICES),
        3,
        "transformers' Trainer uses DataParallel if it is started as one process",
        "start one process per device: torchrun and DistributedDataParallel",
    ),
    _Sign(
        "host",
        (_LAUNCHES,),
        8,
        "kernels are launched one by one",
        "use a larger micro-batch, CUDA graphs, or torch.compile",
    ),
    _Sign(
        "host",
        (_BUSY_HOST,),
        5,
        "the cores of the host are few or busy",
        "check how many cores each rank gets (cpus-per-task, OMP_NUM_THREADS), and profile "
        "the host code",
    ),
    _Sign(
        "micro-batch",
        (_TINY_SHARE,),
        5,
        "only a few percent of the peak is used",
        "use a larger micro-batch, if it fits",
    ),
    _Sign(
        "host",
        (_TINY_SHARE,),
        3,
        "only a few percent of the peak is used",
        "use a larger micro-batch, CUDA graphs, or torch.compile",
    ),
    _Sign(
        "micro-batch",
        (_SMALL_BATCH, _MUCH_ACCUMULATION),
        10,
        "small micro-batches are accumulated",
        "use a larger micro-batch and fewer of them, if it fits",
    ),
    _Sign(
        "micro-batch",
        (_FREE_MEMORY,),
        4,
        "memory is left",
        "use a larger micro-batch, if it fits",
    ),
    _Sign(
        "memory",
        (_FREES,),
        20,
        "device memory is freed or allocated while it trains",
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use a smaller micro-batch",
    ),
    _Sign(
        "memory",
        (_FULL_MEMORY,),
        20,
        "a memory is full, and its contents are moved elsewhere",
        "use a smaller micro-batch, or a machine with more memory",
    ),
    _Sign(
        "memory",
        (_SMALL_DEVICE,),
        6,
        "a device with little memory, whose driver may move contents to the host",
        "see nvidia-smi for free memory; use a smaller micro-batch, fewer bits, or a smaller model",
    ),
    _Sign("network", (_NOT_THE_NETWORK,), 0.1, "the network is ruled out"),
    _Sign("data wait", (_BUSY_DEVICE,), 0.3, "the devices are always busy"),
    _Sign("host", (_BUSY_DEVICE,), 0.5, "the devices are always busy"),
    _Sign("DataParallel", (_ONE_PROCESS_EACH,), 0.1, "one process per device"),
    _Sign("no device", (_DEVICE_AT_WORK,), 0.1, "a device is reported to be busy"),
)
"""Signs in a set-up. Their factors come from the threads that `usual_causes` counts, and from experience."""
_SIGNS_OF_ABSURD_TIMES = (
    _Sign(
        "no device",
        (),
        6,
        "a time is out of all proportion",
        "see nvidia-smi while it trains, and torch.cuda.is_available() on each rank",
    ),
    _Sign(
        "memory",
        (),
        8,
        "a time is out of all proportion: a memory may be full, and its contents move elsewhere",
        "look at free memory of host and device (free -g, nvidia-smi), and whether it swaps",
    ),
    _Sign(
        "data wait",
        (),
        2,
        "a time is out of all proportion",
        "time a run on random samples, without the loader; see iostat for the disk",
    ),
)
"""Causes that can make a step 20 times as long. A poor layout or slow kernels cannot."""
_SIGN_OF_TWO_MODELS = _Sign(
    "unequal work",
    (),
    8,
    "the times of two models are compared",
    "compare tokens/s per device, with the same sequence length, batch and trained weights",
)
_FACTOR_OF_DISTANCE = {0: 10.0, 1: 4.0, 2: 2.0}
"""How many times likelier a cause is, by the distance in sentences from its subject to a complaint.
"""
_VAGUE_TOPICS = {
    "growing steps": 0.2,
    "host": 0.5,
    "kernels": 0.5,
    "micro-batch": 0.1,
    "recompute": 0.3,
    "slow steps": 0.3,
    "software version": 0.5,
    "stragglers": 0.3,
}
"""Share of threads that accepted the cause, among those with its subject next to a complaint.

All other causes were accepted in most threads that had their sign.
"""
_FACTOR_OF_SYMPTOM = 40.0
"""How many times likelier the first cause listed for a described effect becomes."""
_LOG_SHARE_OF_DEVICES = math.log(0.2)
"""Smallest share of threads about multiple devices that accepted a cause, as a natural logarithm.

From this share on, using multiple devices counts as a sign that points to the cause.
"""
_AS_PLANNED = 1.25
"""A step that takes less than this many times the planned time is as fast as its set-up allows."""
_FACTOR_OF_PLANNED_SPEED = 5.0
"""How many times likelier it is that the training used for comparison does less work, if a step
takes the planned time.
"""
_FACTOR_OF_SAME_EFFECT = 4.0
"""How many times likelier the other causes listed for a described effect become."""


class Suspect(NamedTuple):
    """A suspected cause, as a part of the gap."""

    part: GapPart
    has_sign: bool
    """Whether the text, or using multiple devices, is a sign that points to the cause.

    Without a sign, the cause is merely common for training runs of this kind.
    """
    share: float
    """Estimated probability, relative to all suspects that the rules found."""


@dataclass
class _Suspicion:
    """The evidence for a cause."""

    weight: float
    """Natural logarithm of the share that the cause has among the threads."""
    factor: float = 1.0
    """Factor for the strongest sign."""
    evidence: str = ""
    remedy: str = ""

    def add(self, factor: float, evidence: str, remedy: str) -> None:
        """Take a sign into account."""
        self.weight += math.log(factor)
        if factor > self.factor:
            self.factor = factor
            self.evidence = evidence
            self.remedy = remedy or self.remedy


@dataclass
class _Suspicions:
    """The suspicions about a text, by cause."""

    setting: TrainingKind
    by_cause: dict[str, _Suspicion] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with the causes that are usual for these devices."""
        shares = log_shares(self.setting)
        for usual in USUAL_CAUSES:
            self.by_cause[usual.cause] = _Suspicion(
                shares[usual.cause],
                evidence=f"usual for {self.setting}; the text has no sign of it",
                remedy=usual.remedy,
            )

    def add(self, cause: str, factor: float, evidence: str, remedy: str) -> None:
        """Take a sign that points to a cause into account."""
        unusual = _Suspicion(LOG_SHARE_OF_OTHERS)
        self.by_cause.setdefault(cause, unusual).add(factor, evidence, remedy)

    def add_named(self, cause: str, factor: float, evidence: str, remedy: str) -> None:
        """Take words about a cause into account.

        The cause becomes at least as likely as a named cause.
        """
        self.add(cause, factor, evidence, remedy)
        suspicion = self.by_cause[cause]
        suspicion.weight = max(suspicion.weight, LOG_SHARE_OF_OTHERS + math.log(factor))


def ranked_suspects(
    text: str,
    facts: Facts,
    symptoms: Sequence[GapPart] = (),
    slowdown: float = math.inf,
) -> list[Suspect]:
    """Return the suspects if a text calls a training run slow, and its symptoms, likeliest first.

    `slowdown` is the step time reached divided by the planned one, or infinite if unknown.

    >>> [suspect.part.name for suspect in ranked_suspects("slow on 4 nodes", {})][:2]
    ['network', 'communication']
    >>> ranked_suspects("fast on 4 nodes", {})
    []
    """
    plain = distinct_lines(text.lower())
    if not symptoms and not (complains(plain) or asks_about_speed(plain)):
        return []
    suspicions = _Suspicions(setting_of(plain, facts))
    for symptom in symptoms:
        suspicions.add_named(symptom.name, _FACTOR_OF_SYMPTOM, symptom.evidence, symptom.remedy)
        for cause in symptom.same_effect:
            evidence = f"usual where {symptom.evidence}"
            suspicions.add(cause, _FACTOR_OF_SAME_EFFECT, evidence, REMEDIES.get(cause, ""))
    for topic in topics_of_complaints(plain):
        certainty = _VAGUE_TOPICS.get(topic.cause, 1.0)
        factor = 1 + certainty * (_FACTOR_OF_DISTANCE[topic.distance] - 1)
        suspicions.add_named(topic.cause, factor, _evidence_of_topic(topic), topic.remedy)
    for sign in _SIGNS_OF_SET_UP:
        if all(is_stated(pattern, plain) for pattern in sign.patterns):
            suspicions.add(sign.cause, sign.factor, sign.evidence, sign.remedy)
    for sign in _signs_of_durations(plain):
        suspicions.add(sign.cause, sign.factor, sign.evidence, sign.remedy)
    if slowdown < _AS_PLANNED:
        suspicions.add(
            "unequal work",
            _FACTOR_OF_PLANNED_SPEED,
            f"a step takes {slowdown:.3g} times the planned time: this set-up is not slow",
            "compare tokens/s per device: the other run may have different batches, lengths or "
            "devices",
        )
    return [*_as_parts(suspicions, symptoms)]


def usual_remedy(cause: str) -> str:
    """Return what to do about a cause if nothing more is known, or '' if there is no such remedy."""
    remedies = {sign.cause: sign.remedy for sign in _SIGNS_OF_SET_UP if sign.remedy}
    remedies |= {usual.cause: usual.remedy for usual in USUAL_CAUSES}
    return REMEDIES.get(cause) or remedies.get(cause, "")


def _signs_of_durations(text: str) -> Iterator[_Sign]:
    """Yield the signs in the times that a text states."""
    if is_out_of_proportion(text):
        yield from _SIGNS_OF_ABSURD_TIMES
    if times_two_models(text):
        yield _SIGN_OF_TWO_MODELS


def _as_parts(suspicions: _Suspicions, symptoms: Sequence[GapPart]) -> Iterator[Suspect]:
    """Yield the suspected causes as parts of the gap, likeliest first.

    The part given for a symptom is not changed.
    """
    parts = {symptom.name: symptom for symptom in symptoms}
    odds = {cause: math.exp(suspicion.weight) for cause, suspicion in suspicions.by_cause.items()}
    total = sum(odds.values())
    by_weight = sorted(suspicions.by_cause.items(), key=lambda item: -item[1].weight)
    for cause, suspicion in by_weight:
        suspected = GapPart(
            cause,
            0.0,
            f"suspected: {suspicion.evidence}",
            suspicion.remedy,
            is_suspected=True,
        )
        is_of_devices = (
            suspicions.setting in (TrainingKind.NODES, TrainingKind.DEVICES)
            and suspicion.weight > _LOG_SHARE_OF_DEVICES
        )
        has_sign = suspicion.factor > 1 or is_of_devices
        yield Suspect(parts.get(cause, suspected), has_sign, odds[cause] / total)


def _evidence_of_topic(topic: TopicOfComplaint) -> str:
    """Return the words about what a complaint refers to, as evidence."""
    quoted = " ".join(topic.words.split())[:60]
    return f'it says "{quoted}" where it calls training slow'
