"""Words that engineers and programs use for the cause of slow steps: one row per cause.

Each row states where its words were seen. Rows are ordered by weight: without step times, the first
rows that match are reported as the first causes.
"""

from dataclasses import dataclass

from runbook.tools.speed.facts import SOCKETS
from runbook.tools.speed.phrases import PLAIN_ATTENTION

_TIME_INCREASES = (
    r"(?:time|(?:step|iteration) times)(?: (?:per|a|of a) (?:step|iteration))?"
    r"(?: (?:also|\w+ly))? increases?"
    r"|increases? (?:in|of) (?:the )?(?:step |iteration )?time"
)
"""Only an increasing time makes a step slower, because throughput is meant to increase."""
_DROPS = r"(?<!time )(?<!times )(?<!loss )(?:drops?|falls?)"
"""Verbs for time and loss, which are meant to drop."""
_SLOWER = rf"(?<!only \d % )(?<!only \d% )(slow(?:er|down)?|longer|{_DROPS}|{_TIME_INCREASES})"
_MANY_NODES = (
    r"(?:multi[- ]?(?:ple )?(?:node|computer|machine)s?"
    r"|(?:two|\d+) (?:gpu |compute )?(?:nodes|machines)|more nodes)"
)
_SPEED = (
    r"\d[\d,.]*k? ?(?:(?:tok\w*|samples?|seq\w*|words|images|steps?) ?(?:/|per) ?s\w*|tflop\w*"
    r"|it/s|wps|tps|% mfu)"
)
_SLOWER_ON_MANY_NODES = (
    rf"\b{_SLOWER}\b[^.]{{0,80}}\b{_MANY_NODES}|{_MANY_NODES}[^.]{{0,100}}\b{_SLOWER}\b"
    rf"|\bonly (?:about |around |~ ?)?{_SPEED}[^.;]{{0,60}}\b{_MANY_NODES}"
    rf"|{_MANY_NODES}[^.;]{{0,60}}\bonly (?:about |around |~ ?)?{_SPEED}"
)
"""Phrases that compare one node with many nodes. The network explains the difference between the
two.
"""
_SWITCHED_OFF = (
    r"[\"']?[ \t]*(?:[:=]|\.{2,}|(?:is|was)\b)?\s*"
    r"(?:(?:\w*[{(][^{}()]{0,200}?|\.)?\bdevice[\"']?\s*[:=]\s*)?"
    r"[\"']?(?:<offloaddeviceenum\.)?(?:none|null|false|no|0|never|unused"
    r"|not (?:used|enabled|on|compatible|supported|installed))\b"
    r"|[ \t]+(?:is |was )?(?:switched |turned )?(?:off|disabled)\b"
    r"|\((?:offload_params ?= ?)?false\b"
    r"|\.(?!device)\w"
)
"""Matches text after a DeepSpeed option that shows that nothing is offloaded.

The text is a value, or the `device` key in a section; other keys (`offload_param.pin_memory`) do
not matter. DeepSpeed prints its complete configuration, where options that nobody set are None.
"""
_CPU_OFFLOAD = (
    r"\bcpu[ _-]?offload(?:ing|ed|s|er|policy)?"
    r"(?:_(?!(?:activations|weights|num_layers|double_buffering|(?:use_)?pin_memory)\b)\w+)?\b"
)
"""Names for offloading to the host, except options that only select what is offloaded."""
_CLAUSE = r"(?:[^.;,]|,(?! and\b))"
"""A character of a clause. A semicolon or ", and" starts a new subject."""

_COLLECTIVES = (
    r"\b(?:collectives?|communication|nccl\w*|all[- ]?reduces?|all[- ]?gathers?"
    r"|reduce[- ]?scatters?)\b"
)
"""Names for the messages between ranks."""
GROWING = "growing steps"
NO_GAIN_FROM_DEVICES = ("DataParallel", "unequal work", "data wait", "stragglers")
"""Causes, other than slow links, that may keep more devices from increasing the speed."""
NO_GAIN_FROM_NODES = ("communication", "unequal work", "data wait")
"""Causes, other than a slow network, that may keep more nodes from increasing the speed."""
_WAITING_DEVICE = ("host", "micro-batch", "saves", "evaluation")
"""Causes other than the data loader that may make a device's load fall to zero."""
_PERIODIC = ("saves", "evaluation", "data wait", "garbage collection")
"""Causes of slow steps that recur."""
SLOWING_DOWN = ("memory", "data wait", "stragglers", "slow steps")
"""Causes other than something that fills up that may make steps longer."""
_SAVING = r"(?:save|saves|saved|saving|checkpoints?)"
_WAITS = r"(?:takes?|took|blocks?|stalls?|pauses?)"


_SLOW = (
    r"(?:bottleneck\w*|slow\w*|inefficien\w*|limit\w*|dips?|stalls?|stuck|fluctuat\w*|lags?"
    r"|spik(?:es?|ed|ing)|(?:cannot|can't|could not) keep up)"
)
_DATA_READING = (
    r"(?:data[- _]?load\w*|data ?pipeline|input pipeline|(?:read|load)\w* (?:\w+ ){0,2}"
    r"(?:data|dataset|corpus|shards?|tokens)\b)"
)
"""Names for work that brings samples to a device."""
_DATA_PREPARATION = (
    r"(?:\baugment\w*|\btokeni[sz](?:e[sd]?|ing|ation)\b|pre-?process\w*|\bdecod(?:e|es|ing)\b"
    r"|generated data)"
)
"""Names for work on samples that can be done before training."""
_EVERY_MICRO_BATCH = (
    r"(?:after|on|at|in|for)? ?(?:each|every|all) "
    r"(?:backward|micro-?batch|micro-?step|accumulation|forward)"
)
_SUMMED = r"(?:reduc(?:e[sd]?|ing|tion)|synchroni[sz]\w+|synced|all-?reduc\w+)"
"""Words for summing gradients over ranks."""
_EVERY_STEP = r"(?:each|every|per) (?:single )?(?:training )?(?:step|iteration|micro\S*)"
_HOST_SYNC = r"(?:\.item\(\)|(?:cuda)?(?:stream|device)?synchroni[sz]e\b)"
"""Calls that make the host wait for the device."""
_PACE = r"(?:usage|utili[sz]ation|speed|throughput)"
_ONE_OF_MANY = (
    r"\b(?:one|1|two|2) (?:out )?of (?:the |our |all )?(?:\d+|\w+) (?:gpus?|cards?|nodes?)"
)
_SEVERAL_DEVICES = (
    r"\b(?:2|two|4|four|8|eight|multi(?:ple)?)[x -]{0,3}(?:gpus?|cards?|[abhvl]\d{2,3}s?)\b"
)
_ANOTHER_DEVICE = (
    r"\b(?:add(?:ing|ed)? (?:(?:a|an|the|one) )?|(?:using|with|on) (?:a|an|the) "
    r"(?=second|third|fourth|other|another))"
    r"(?:more |second |third |fourth |other |another )?(?:gpus?|cards?)\b"
)
"""Phrases that compare a device count with a smaller one."""
_SOFTWARE = (
    r"(?:version|release|container|driver|pytorch|torch|cuda|rocm|nccl|deepspeed|megatron\S*|nemo"
    r"|transformers|transformer engine|apex|v?\d+\.\d+(?:\.\d+)?)\b"
)
_SLOWED = (
    r"(?<!no )(?<!not )(?<!any )(?<!never )(?<!without )(?<!nor )(?<!measurable )(?<!n't )"
    r"\b(?:slow\w*|longer|regress\w+|degrad\w+|halv\w+|drop(?:s|ped)? (?:to|from|by))\b"
)
"""Words for a slow-down that are not negated."""
_UNHARMED = (
    rf"^(?!.*{_SLOWED}).*?(?:(?<!not )(?<!no )(?<!n't )\b(?:(?:any )?faster|works? (?:well|fine)|everything works|sped up)\b"
    r"|\b(?:no|not|never|without|nor|zero)(?: any| a| measurable| visible)?(?: \w+)? "
    r"(?:regress\w*|slow\w*|drops?|dropped|loss|losses|differences?|changes?|changed)\b"
    r"|n't (?:\w+ )?(?:regress|slow down|drop|change)\b"
    r"|\bnothing (?:has )?changed\b|\bunchanged\b|\bas (?:good|fast|high) as\b"
    r"|\b(?:stay(?:s|ed)?|remain(?:s|ed)?|is|are|keeps?|kept) (?:exactly |about )?the same\b)"
)
"""Words in a sentence about a software change which show that it did no harm."""
_IS_ASKED = rf"^\s*\W*(?:question:? )?(?:can|could|may|does|is it possible|how (?:do|can))\b(?!.*{_SLOWED}).*\?"
"""A question whether something can be used, without any word about speed."""
_IS_SMALL = (
    r"\b(?:is|are|was|stays?|remains?) (?:only |very |quite |now )?(?:negligible|small|low|little|fine|hidden|gone)\b"
    r"|\b(?:under|below|less than|only) \d+(?:\.\d+)? ?%"
)
"""Words in a sentence that say that a part of a step takes little time."""
_MENDED = r"\b(?:fix|remov|resolv|solv)(?:es|ed)\b"
OLD_DEVICES = (
    r"\b(?:k[48]0|p40|p[456]000|p100|m60|titan xp?|gtx ?10[5678]0(?: ?ti)?|10[5678]0 ?ti)\b"
)
"""NVIDIA devices before Volta, which have no tensor cores.

A bare 1080 may be a batch or a number of milliseconds.
"""
_UNTIL_NEWER_DEVICE = r"(?:(?!\b(?:gb|[abh])\d00)[^.;])"
"""A character in a clause, unless the name of a device with fast bf16 starts there."""
_FIGURES_ONE_AFTER_ANOTHER = r"(?:\d+ ?%?(?:,|/|,? (?:and|to|or|then))? ?)*"
_NETWORK_OF_TRAINING = (
    r"[^.;\n]{0,20}\b(?:training|compute|nccl|mpi|data|gpus?|jobs?)\b"
    r"(?:(?!\b(?:no|not|instead|without)\b|n't)[^.;\n]){0,30}"
    r"\b(?:infiniband|ib|slingshot|roce|efa)\b"
)
"""Words after a slow network that show that the training run uses a faster one."""


@dataclass(frozen=True)
class CausePattern:
    """Words that name a cause."""

    cause: str
    pattern: str
    """Pattern for a text in lower case.

    A negation must be directly before the pattern's group, or before the whole match if it has no
    group.
    """
    most: float
    """Largest share of a step assumed for the cause if no model predicts it."""
    remedy: str
    source: str = "public threads read before 2026-11-27"
    """Where these words were seen."""
    unless: str = ""
    """Pattern for sentences in which these words name no cause, for example because all is well."""
    same_effect: tuple[str, ...] = ()
    """Other possible causes for the effect that these words describe.

    The words do not show which of these causes applies.
    """


SIGNS = (
    CausePattern(
        "network",
        SOCKETS,
        0.5,
        "use InfiniBand or RoCE; NCCL_DEBUG=INFO shows which network NCCL chose",
    ),
    CausePattern(
        "network",
        _SLOWER_ON_MANY_NODES,
        0.5,
        "measure an all-reduce between the nodes, and check with NCCL_DEBUG=INFO which network it "
        "uses",
        same_effect=NO_GAIN_FROM_NODES,
    ),
    CausePattern(
        "network",
        r"\b(?:ib|infiniband|roce|efa|slingshot|ethernet|nics?|inter-?node (?:network|links?))\b"
        rf"{_CLAUSE}{{0,60}}\b(slow\w*|limit(?:ed|s)|bottleneck\w*|congest\w*)"
        rf"|\b(?:1|10|25|40) ?(?:gbe|gige)\b(?!{_NETWORK_OF_TRAINING})"
        r"|\bgigabit ethernet|\b10{2,4} ?mb(?:it)?(?:ps|/s)\b"
        r"|\b(?:nodes?|machines?)\b[^;]{0,120}\bno linear (?:acceleration|scaling|speed-?up)"
        r"|\bethernet (?:inter-?node|between)|\b(?:only|normal|plain|over|via) ethernet\b"
        r"|\b(?:over|using|uses?|used|via) (?:plain )?tcp(?:/ip)?(?: sockets?)?\b(?! port)"
        r"|\blibibverbs\S*[^.;]{0,12}\b(?:missing|not (?:found|installed))|\bfailed to open libibverbs"
        r"|\bnumber of (?:nodes|machines)\b[^.;]{0,60}\b(?:degrad\w+|(slow\w*|falls?|drops?|decreas\w+))"
        r"|\b(?:multiple|several|many|different) switches\b|\boversubscribed (?:network|fabric|links?|uplinks?)"
        r"|\b(?:across|several|many|different) (?:\w+ )?dragonfly groups\b",
        0.5,
        "measure an all-reduce between these nodes; request nodes under one switch",
        "NCCL issues 883 and 1536, horovod issue 752",
    ),
    CausePattern(
        "communication",
        r"nccl_p2p_disable=1|(?:exposed|non-overlapped|not overlapped)[^.]{0,40}comm"
        r"|(?:all-gathers?|reduce-scatters?|all-reduces?)[^.]{0,40}(exposed|not hidden)"
        rf"|\bwait\w*[^.]{{0,20}} (?:on|for) (?:the )?{_COLLECTIVES}"
        r"|\b(?:is|are) not overlapp\w+ (?:with )?(?:the )?(?:backward|comput\w+)"
        rf"|{_COLLECTIVES}[^.]{{0,60}}\b(?:(?:do|does) not|hardly|barely|only half[^.]{{0,20}}) overlap"
        rf"|{_COLLECTIVES}[^.]{{0,40}}\b(?:takes?|is|are|costs?|accounts? for|dominates?)\b[^.]{{0,20}}"
        r"(?:\b\d{2} ?%|\bmost\b|\bhalf\b|bottleneck|of the (?:step|time))",
        0.4,
        "overlap communication with computation, and let devices of a node reach each other",
    ),
    CausePattern(
        "communication",
        rf"\bgrad(?:ient)?s?\b[^.]{{0,40}}\b{_SUMMED} ?{_EVERY_MICRO_BATCH}"
        rf"|\b{_SUMMED} (?:the )?grad(?:ient)?s? {_EVERY_MICRO_BATCH}",
        0.5,
        "sum gradients once per step: put no_sync() around all micro-batches but the last",
        "torchtune issue 1275",
    ),
    CausePattern(
        "communication",
        r"\bpower\b[^.;]{0,40}\b(?:low|hardly)\b[^.;]{0,60}\buti\w+\b[^.;]{0,20}(?:\b100 ?%|\bfull)"
        r"|\buti\w+\b[^.;]{0,20}(?:\b100 ?%|\bfull)[^.;]{0,60}\b(?:hardly any|low|little) power\b"
        r"|\buti\w+\b[^.;]{0,20}(?:\b100 ?%|\bfull)[^.;]{0,60}\bpower\b[^.;]{0,30}\blow\b",
        0.5,
        "a device that waits in a collective shows full utilization and little power: check which "
        "rank arrives last, and NCCL_DEBUG=INFO",
        "Qwen issue 970, LLaMA-Factory issue 3520",
        same_effect=("stragglers", "network", "micro-batch"),
    ),
    CausePattern(
        "communication",
        r"\bcommunication (?:delay|overhead|latency|time|cost)s?\b[^.]{0,30}"
        r"\b(high|large|long|dominat\w+)"
        r"|\b(?:all|both|they|cards|gpus|[abhv]\d{2,3}s?) (?:are|is) (?:all |only )?pcie\b"
        r"(?![^.;\n]{0,60}\b(?:with|have|has|plus|by|through) nvlink\b)",
        0.5,
        "check the links between devices with nvidia-smi topo -m; transfer less, or less often",
        "sd-scripts issue 1434, DeepSpeed issue 6889",
    ),
    CausePattern(
        "communication",
        rf"{_SEVERAL_DEVICES}[^.]{{0,60}}(?:\bsame speed|\bspeed is (?:the )?same"
        r"|\bno faster|\b(slow(?:er)?) than (?:on )?(?:one|1|a single)\b(?! node))"
        rf"|{_ANOTHER_DEVICE}[^.;]{{0,60}}\b(?:(slow(?:er|down|s)?)\b|(?:no|not|never) (?:any )?faster)",
        0.5,
        "check the links between devices with nvidia-smi topo -m; transfer less, or less often",
        "sd-scripts issue 1434",
        same_effect=NO_GAIN_FROM_DEVICES,
    ),
    CausePattern(
        "data wait",
        r"num[-_]workers(?: is| was| at)?[=: ]+0\b"
        r"|fetch\w* (?:a|one|each|the) (?:next )?batch (?:takes?|needs?)"
        r"|wait\w*[^.]{0,20} (?:on|for) (?:the )?data\b(?![ -]?cent)|starv\w+ for data"
        r"|data[- ]?load\w*[^.]{0,60}(bottleneck|slow|inefficien|limit)"
        r"|(?:bottleneck|slow|inefficient)[^.]{0,30} data[- ]?load",
        0.5,
        "tokenize once before training, use more workers, or put the tokens on a faster disk",
    ),
    CausePattern(
        "data wait",
        rf"{_DATA_READING}{_CLAUSE}{{0,60}}\b({_SLOW})\b"
        rf"|\b({_SLOW}) (?:\w+ )?{_DATA_READING}"
        r"|\bdata\b[^.]{0,20}\b(slow) to (?:load|read|arrive)"
        r"|\w*n(?:um)?_workers?\b[^.\n]{0,30}\bto [01]\b"
        r"|(?:freez\w*|paus\w*|stall\w*|hang\w*|waits?)\b[^.]{0,40}"
        r"\b(?:every|each) (?:num_workers?|\d+ workers)"
        rf"|{_DATA_PREPARATION}[^.]{{0,60}}\.?[^.]{{0,40}}"
        r"\b(?:cpu[- ](?:intensive|bound|heavy)|on[- ]the[- ]fly)"
        rf"|{_DATA_PREPARATION}[^.]{{0,40}}\b(?:in|inside|within|by) (?:the |our |a )?"
        r"(?:collat\w+|data ?loader|__getitem__|training (?:loop|process)|dataset class)"
        r"|\b(?:no|not|without|never)\b[^.;]{0,20}\bpre-?tokeni[sz]\w+"
        r"|\b(?:idle|drops?|stuck|waits?|pauses?)\b[^.]{0,20}\bbetween (?:\w+ )?epochs\b"
        r"|\b(?:workers?|loaders?)\b[^.;]{0,30}\b(?:reset|restart\w*|respawn\w*|re-?creat\w+)\b"
        r"[^.;]{0,30}\b(?:each|every|start of (?:the|an)) epoch\b"
        r"|\bafter (?:each|every) epoch\b[^.]{0,60}\b(?:idle|stuck|waits?|pauses?)\b"
        r"|\b(?:frequent|many|millions of|repeated) (?:file[- ]?)?(?:open|seek|stat|metadata)\w*[^.;]{0,60}"
        r"\b(?:lustre|gpfs|nfs|file ?systems?)\b"
        r"|\b(?:lustre|gpfs|nfs|file ?systems?)\b[^.;]{0,60}\b(?:frequent|many|repeated) "
        r"(?:file[- ]?)?(?:open|seek|stat|metadata)"
        r"|\b(?:data|dataset|corpus|shards|tokens)\b(?:(?!\b(?:nvme|ssd|local|home)\b)[^.;]){0,60}"
        r"\b(?<!from )(?<!off )(?:nfs|hdds?|spinning disks?|mechanical (?:hard )?(?:disk|drive)s?)\b"
        r"|\b(?<!from )(?<!off )nfs\b[^.;]{0,20}\bto (?:share|store|hold|read|serve) (?:the |our )?"
        r"(?:data\w*|corpus|shards|tokens|samples)\b",
        0.5,
        "prepare samples before training, use more workers, or put the data on a faster disk",
        "torchtitan issue 2073, streaming issue 686, open_clip issue 703",
    ),
    CausePattern(
        "data wait",
        r"(?<!swap )(?<!disk )(?<!memory )\b(?:utili[sz]ation|usage|utils?)\b"
        rf"(?:[^.;\d]{{0,60}}{_FIGURES_ONE_AFTER_ANOTHER}\b0 ?%|[^.;]{{0,60}}\b(?<=to )(?:0|zero)\b)",
        0.5,
        "time a run on random tokens, without the loader; use one worker for each core",
        "DeepSeek-MoE issue 5",
        same_effect=_WAITING_DEVICE,
    ),
    CausePattern(
        "host",
        r"\b(?:pinned|bound|restricted|limited|confined) to (?:the same(?: \d+)?|one|a single|1) "
        r"(?:cpu )?(?:cores?|cpus?)\b"
        r"|\bonly (?:has |have |uses? )?(?:one|1|a single)(?: of (?:\w+ ){0,2}\d+)? ?(?:cpu )?cores?\b"
        r"|\b\d+ (?:out )?of (?:the |my |our )?\d+ (?:cpu )?cores (?:are |stay )?idle"
        r"|\bshare (?:the )?(?:cpu )?cores?\b|\bcpus?[-_ ]per[-_ ]task[= ]1\b"
        r"|\bomp_num_threads\b(?: is| was)? (?:not set|unset)|\b(?:not|never) (?:set|export)s? omp_num_threads"
        r"|\b(?:every|each|all) (?:\w+ )?process\w*\b[^.;]{0,60}"
        r"\bthreads? (?:for|per|on) (?:every|each|all) (?:\d+ )?(?:cpu )?cores?\b"
        r"|\boversubscri\w+[^.;]{0,20}\b(?:cpus?|cores?|threads?)\b"
        r"|\b(?:cpus?|cores?|threads?)\b[^.;]{0,20}\b(oversubscri\w+)|\bthread contention\b"
        r"|\b(?:cpu|launch|dispatch|python|framework) overhead\b|\bcpu[- ](?:bottleneck\w*|limited)\b"
        r"|\b(?:gets?|has|have|got|allocated|given|assigned)(?: only)? (?:one|1|a single) cpu(?: core)?\b"
        r"|\bonly \d+ (?:out )?of (?:the |my |our )?\d+ (?:cpu )?cores\b"
        r"|\.item\(\)\W{0,2} (?:\w+ ){0,2}synchroni\w+"
        rf"|{_HOST_SYNC}[^.]{{0,60}}\b{_EVERY_STEP}|\b{_EVERY_STEP}[^.]{{0,60}}{_HOST_SYNC}",
        0.5,
        "give each rank its own cores (cpus-per-task, no inherited affinity); "
        "read a loss from the device only when it is logged",
        "accelerate issue 3911, ultralytics issue 6588, torchtune pull request 522",
        unless=_IS_SMALL,
    ),
    CausePattern(
        "offload",
        rf"offload_(?:optimizer|param)\w*\b(?!{_SWITCHED_OFF})"
        rf"|\b(?:cpu|nvme|zero)[ -]offload(?:ing)?\b(?!{_SWITCHED_OFF})"
        r"|\b(?:optimizer|parameters|params|states|weights|activations)\b[^.\n]{0,30}[ ]"
        r"(offload(?:ed|ing)?\b)(?! off\b)"
        r"|\boffload(?:s|ed|ing)? (?:\w+ ){0,3}(?:to|on) (?:the )?(?:cpu|host|nvme|ram)\b"
        rf"|zero[- ]?(?:3 )?infinity\b(?!{_SWITCHED_OFF})|{_CPU_OFFLOAD}[=: ]+true",
        0.8,
        "keep the states on the devices: use more devices, or ZeRO over more of them",
    ),
    CausePattern(
        "offload",
        rf"{_CPU_OFFLOAD}(?!{_SWITCHED_OFF})"
        rf"|\b(?:deepspeed)?cpu_?adam(?:w|\.step)?\b(?![ .]*\[|\.{{2,}})(?!{_SWITCHED_OFF})"
        rf"|\bzero[- ]?(?:3 )?infinite\b|\bswap(?:ped|s|ping)?\b(?!{_SWITCHED_OFF})[^.;]{{0,40}}"
        r"\b(?:nvme|ssd|host memory)\b",
        0.8,
        "keep the states on the devices: use more devices, or ZeRO over more of them",
        "PyTorch issue 74588, DeepSpeedExamples issue 192",
        unless=_IS_ASKED,
    ),
    CausePattern(
        "communication",
        r"(?:\b(?:no|without|lacks?|missing) )(?:nvlink|nvswitch)\b"
        r"(?! (?:problems?|errors?|issues?|faults?|failures?|warnings?|replays?)\b)"
        r"|\bpcie (?:instead of|rather than) nvlink|\bpcie (?:cards?|only|gpus)\b"
        r"|\b(?:links?|connected|connection)\b[^.]{0,30}\bpcie\b|\b(?:over|via|through) pcie\b"
        r"|\b(?:gpus?|cards?|[abhv]\d{2,3}s?) (?:with|w/) pcie\b(?![^.;\n]{0,60}\bnvlink\b)",
        0.5,
        "keep tensor parallelism within pairs with NVLink, or use pipeline and data parallelism",
    ),
    CausePattern(
        "no device",
        r"\bcompiled without (?:gpu|cuda)\b|\b(?:torch|pytorch) not compiled with cuda\b"
        r"|(?:\bcuda is not available|\b(?:no|zero) (?:cuda )?(?:gpus?|devices) "
        r"(?:are |were )?(?:available|found|detected|visible))\b"
        r"(?! (?:on|in) (?:the |a )?(?:login|head|queue|partition|cluster))"
        r"|\bcuda\.is_available(?:\(\))?\W{1,4}(?:(?:is|returns?|gives?|=+)\W{0,3})?false\b"
        r"|\b(?:run|running) training on (?:a |the )?cpu\b|\btrains? only on (?:a |the )?cpu\b"
        r"|\bcpu_amp\b|\b(?:falls?|falling|fell) back to (?:the )?cpu\b",
        0.9,
        "install PyTorch for the device's driver; see torch.cuda.is_available() on each rank",
        "LLaMA-Factory issue 6773",
    ),
    CausePattern(
        "kernels",
        r"cuda_launch_blocking\b(?![\"']?[=:\s]+[\"']?(?:0|false|no|off)\b)",
        0.5,
        "unset CUDA_LAUNCH_BLOCKING: it makes the host wait for every kernel",
    ),
    CausePattern(
        "compilation",
        r"\brecompil(?:es|ing|ations?)\b|\bgraph breaks?\b"
        r"|\bbreak reason \d+:"
        r"|\bcudagraphs?\b[^.]{0,60}\b(?:distinct|different|each) "
        r"|\bdynamic (?:shapes?|padding)\b[^.]{0,80}\bcompil\w*"
        r"|\bfirst (?:epoch|steps?|batches|iterations?)\b[^.]{0,60}\bslow[^.]{0,60}"
        r"\b(?:torch\.)?compil\w*",
        0.5,
        "use input shapes that do not change, or mark them dynamic; TORCH_LOGS=recompiles lists "
        "the causes",
        "OLMo-core issue 500",
    ),
    CausePattern(
        "memory",
        r"\b(?:cuda|hip)[ _]?malloc\b|\b(?:cuda|hip)free\b|\balloc(?:ation)?[_ ]retries\b"
        r"|\bempty_cache\b[^.;]{0,40}\b(?:increas\w+|slow\w*)\b"
        r"|\ballocator cache flush\w*|\bmemory fragment\w*|\bfragment\w+ (?:of )?memory"
        r"|\bempty_cache\b(?:(?!\b(?:never|not|only)\b|n't\b)[^.]){0,30}\b(?:every|each|between"
        r"|after (?:the |a )?(?:\w+ )?(?:step|batch|iteration|micro-?batch|forward|backward)\w*)\b"
        r"|\b(?:after|between|in) (?:every|each|all) [^.]{0,30}\bempty_cache\b",
        0.3,
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use a smaller micro-batch",
        "DeepSpeed's warning of allocator cache flushes, PyTorch's memory notes",
    ),
    CausePattern(
        "padding",
        r"\b(?:is|are|(?<!instead )of) (?:(?!(?:no|not|without|never)\b)\w+ )?padding\b(?! free)"
        r"|\bpadd(?:ed|ing) (?:(?!to\b|no\b)\w+ )?to (?:the )?(?:max|longest possible)"
        r"|\bwast\w+\b[^.;]{0,60}\bpadd\w+|\bpadd\w+\b[^.;]{0,60}\b(?:wast\w+|useless)"
        r"|\b(?:rows?|samples?|sequences?|examples?|texts?|documents?|inputs?) (?:\w+ ){0,2}"
        r"padded to (?:full|\d)"
        r"|padding=[\"']?max_length|\bpad_to_max_length\b(?![\"']?[=: ]+false)",
        0.6,
        "pack documents into full sequences, or pad to the longest of a batch",
        "transformers' documentation of padding and packing",
    ),
    CausePattern(
        "precision",
        r"\bmixed[- ]precision\b[^.]{0,30}\b(?:false|off|disabled)\b"
        r"|\b(?:fp16|bf16|half|mixed)(?:[- ]precision)?\b[^.;]{0,80}\b(?:(?:not|isn't|no) "
        r"(?:any )?faster(?! than (?:bf16|bfloat16|fp16|float16|fp8)\b)|slower than (?:fp32|float32))"
        rf"|\b(?:bf16|bfloat16)\b{_UNTIL_NEWER_DEVICE}{{0,80}}\b(?:(?:much|dramatically|\w+ times|\dx) "
        r"(?:slower|lower)|(?:1/\d|a (?:half|third|quarter)|half) (?:of )?the speed)[^.;]{0,20} "
        r"(?:fp|float)(?:16|32)\b"
        rf"|\b(?:fp16|bf16|half[- ]precision)\b{_UNTIL_NEWER_DEVICE}{{0,120}}{OLD_DEVICES}"
        rf"|\bbf16\b{_UNTIL_NEWER_DEVICE}{{0,60}}\bv100"
        r"|\bv100[\w-]* (?:does|do) not support (?:bf16|bfloat16)\b"
        rf"|\bv100s?\b{_UNTIL_NEWER_DEVICE}{{0,60}}\bbf16\b(?! on (?:\d+ )?(?:gb|[abh])\d00)",
        0.6,
        "16-bit products are fast on devices with tensor cores: fp16 from V100 on, bf16 from A100 "
        "on",
        "apex issue 153, NVIDIA's mixed-precision guide",
    ),
    CausePattern(
        "kernels",
        r"\bfused?[ _-]?(?:kernels?|layer_?norm|adam\w*|rms_?norm)\b[^.]{0,30}"
        r"\b(?:unavailable|not (?:installed|available|found)|missing)"
        r"|\b(?:flash-linear-attention|causal-conv1d|mamba-ssm|liger[-_]kernel|apex|xformers)\b[^.;]{0,30}"
        r"\b(?:unavailable|not (?:installed|available|found)|missing)"
        r"|\bwithout --cuda_ext\b|\bfalling back to (?:python|eager|pytorch)\b"
        r"|\b(?:suboptimal|sub-optimal|inefficient|unoptimi[sz]ed|unfused|non-fused) "
        r"(?:[\w-]+ ){0,3}kernels?\b",
        0.4,
        "install the fused kernels (Apex, Transformer Engine, flash-attn)",
        "Apex's own warnings",
    ),
    CausePattern(
        "kernels",
        r"\b(?:[48][- ]?bit|int[48]|nf4|quanti[sz]\w+)\b[^.;]{0,80}"
        r"\b(slow\w*|far lower|longer|(?:not|isn't) (?:any )?faster|not accelerat\w+)\b"
        r"|\b(slow) (?:\w+ ){0,2}kernels?\b",
        0.5,
        "low-bit weights are unpacked for every product: use 16-bit weights if they fit",
        "alpaca-lora issue 56, LLaMA-Factory issue 2077",
    ),
    CausePattern(
        "slow steps",
        r"\b(?:some|certain|a few) (?:steps|iterations|epochs|batches)\b[^.;]{0,30}\b(?:very |much )?(slow\w*|longer)\b"
        r"|\b(?:switch\w*|alternat\w*|jumps?|chang\w*) (?:from|between) (?:slow (?:to|and) fast|fast (?:to|and) slow)",
        0.3,
        "look for what these steps had in common: a slow rank, other users, a cold cache",
        "mmdetection issue 6338",
        same_effect=_PERIODIC,
    ),
    CausePattern(
        "slow steps",
        r"\b(?:another|extra|other people's|other users'|foreign|unknown) (?:\w+ )?(?:process\w*|jobs?)\b"
        r"[^.;]{0,60}\b(?:nvidia-smi|same (?:gpu|node|card)s?|on (?:the|our) (?:gpu|node|card)s?)\b",
        0.3,
        "check nvidia-smi for other users' processes; request exclusive devices",
        "returnn issue 1485",
    ),
    CausePattern(
        "pipeline bubble",
        rf"(?<!data )(?<!input )\bpipeline(?:[- ]parallel\w*)?\b{_CLAUSE}{{0,40}}\b(slow\w*)"
        r"|\b(?:large|big|huge) (?:pipeline )?bubbles?\b|\bbubbles? (?:takes?|of|is|are) (?:\w+ )?(?!0 ?%)\d",
        0.5,
        "use more micro-batches per step, interleaved chunks, or fewer stages",
        "gpt-neox issue 903",
    ),
    CausePattern(
        "layout",
        rf"\btensor(?:[- ](?:model[- ])?parallel\w*)\b{_CLAUSE}{{0,40}}\b(slow\w*)",
        0.5,
        "keep tensor parallelism within a node, and no larger than memory requires",
        "Megatron-LM issue 258",
    ),
    CausePattern(
        "token dispatch",
        r"\b(?:moe|mixture of experts|activat(?:ed|ion) param\w*)\b[^;]{0,80}\b(slow\w*)"
        r"|\b(?:dispatch\w*|all[- ]?(?:to|2)[- ]?all\w*|permut(?:e|ation)s?|rout(?:er|ing))\b"
        r"(?:(?!\b(?:only|under|below|just|less than)\b)[^.;]){0,40}"
        r"\b(?:(?:majority|most|half) of (?:the |a )?(?:time|step)|dominat\w+|bottleneck|\d{2} ?%)",
        0.4,
        "use fused experts (grouped matrix products), more ranks, or all-to-all dispatch",
        "DeepSeek-MoE issue 5",
    ),
    CausePattern("flash attention", PLAIN_ATTENTION, 0.4, "fused attention"),
    CausePattern(
        "flash attention",
        r"\bflash[- _]?att\w*[^.;]{0,60}\b(?:only|just) (?:about )?\d[\d.-]* ?% faster"
        r"|\bflash[- _]?att\w*[^.;]{0,60}\b(?:no|not|isn't) (?:any |much )?(?:faster|noticeabl\w+)",
        0.4,
        "check in a profile which attention kernel runs, and whether the framework calls it",
        "Pai-Megatron-Patch issue 323",
    ),
    CausePattern(
        "saves",
        rf"every \d+ (?:steps|iterations)[^.]{{0,60}}\b{_WAITS}\b[^.]{{0,60}}\b{_SAVING}\b"
        rf"|\b{_SAVING}\b[^.]{{0,60}}\b{_WAITS}\b[^.]{{0,20}}(?<!\d)(?!0 ?s)\d+(?:\.\d+)? ?"
        r"(?:s|secs?|seconds|min|minutes)\b",
        0.3,
        "save less often, or in the background",
    ),
    CausePattern(
        "saves",
        rf"\b(slow) (?:\w+ ){{0,2}}?{_SAVING}\b|\b{_SAVING}\b[^.;]{{0,30}}\b{_WAITS} (?:about |around |~ ?)?"
        r"(?!0)\d+(?:\.\d+)? ?(?:h|hours?)\b",
        0.3,
        "save less often, or in the background",
        "verl issue 2860",
    ),
    CausePattern(
        "saves",
        rf"\btime\b[^.]{{0,20}}\bto {_SAVING}\b[^.]{{0,40}}\b(?:long|slow|high)"
        rf"|\b{_SAVING}\b[^.]{{0,40}}\b(?:(?:is|are|very|so|too|quite) )(slow|long)\b",
        0.3,
        "save less often, or in the background",
        "Megatron-LLM issue 69",
    ),
    CausePattern(
        "evaluation",
        r"\b(?:evaluat(?:e|es|ed|ing|ion)|evals?) every (?:\d{1,2}|100) (?:steps|iterations)\b"
        r"|\bspen[dt]\w* [^.;]{0,40}\b(?:on|in|doing|with) (?:the )?(?:evals?\b|evaluat\w+|validation)"
        r"|\b(?:evaluations?|validation)\b[^.]{0,30}\b(?:takes?|took|blocks?)\b[^.]{0,20}"
        r"(?:\d+(?:\.\d+)? ?(?:s|secs?|seconds|min|minutes)\b|\blong)",
        0.3,
        "evaluate less often, or on fewer batches",
        "huggingface/blog issue 1649",
    ),
    CausePattern(
        "garbage collection",
        r"\bgen(?:eration)? ?2: [1-9]\d*(?:\.\d+)? ?ms\b|\bgc\.collect\b[^.;]{0,40}"
        r"\b(?:every|each|per|after every) (?:single )?(?:step|iteration|batch|sample|epoch|micro)"
        r"|\b(?:every|each) (?:single )?(?:step|iteration|batch|sample)\b[^.;]{0,30}\bgc\.collect\b"
        r"|\bgc(?:\.collect\(\)|\(\))?(?: calls?)? [^.;]{0,30}"
        r"\b(?:pauses?|stalls?|spikes?|slow\w*|wasted|overzealous\w*)",
        0.2,
        "collect on all ranks at the same steps (gc.disable, gc.collect every N steps); check "
        "whether saves or evaluations fall on these steps",
        "nanochat pull request 477, Megatron-Energon pull request 66",
    ),
    CausePattern(
        "garbage collection",
        r"\bgarbage collect\w*[^.]{0,40}\b(?:pauses?|stalls?|spikes?|slow\w*|takes?|delays?)\b"
        r"|\b(?:pauses?|stalls?|spikes?|slow\w*|delay\w*)\b[^.]{0,60}\bgarbage collect\w*",
        0.2,
        "collect on all ranks at the same steps (gc.disable, gc.collect every N steps); check "
        "whether saves or evaluations fall on these steps",
        "torchtitan's GarbageCollection, Imbue's 70B report",
    ),
    CausePattern(
        "garbage collection",
        r"\bspikes? in (?:the |our )?(?:training )?(?:step|iteration) (?:duration|time)s?"
        r"|\b(?:periodic(?:ally)?|regular)(?! loss)\b[^.]{0,30}\b(?<!loss )(?:dips|spikes|sags|pauses)",
        0.2,
        "collect on all ranks at the same steps (gc.disable, gc.collect every N steps); check "
        "whether saves or evaluations fall on these steps",
        "equinox issue 1145",
        same_effect=("saves", "evaluation", "data wait"),
    ),
    CausePattern(
        "kernels",
        r"compile[=: ]+false|\bno compile\b|without (?:torch\.)?compil",
        0.4,
        "compile the model, or use fused kernels",
    ),
    CausePattern(
        "stragglers",
        r"\b(?:hw|sw)(?: thermal)? slowdown\s*:? *active|\bsw power cap\s*: *active"
        r"|\boverheat\w*|\b(?:gpus?|cards?|devices?)\b[^.]{0,20}\b(?:heat up|(?:run|are|is|too) hot)"
        rf"|{_ONE_OF_MANY}\b[^.]{{0,40}}\b(?:slow\w*|lower clocks?|hot|hotter)"
        r"|\b(?:normal\w*|fast|fine)\b[^.]{0,30}\b[\d-]+ (?:cards|gpus|nodes)\b[^.]{0,40}"
        r"\b(slow\w*)[^.]{0,30}\b\d+ (?:cards|gpus|nodes)\b"
        r"|\b(?:some|certain|a few) (?:of the )?(?:nodes|gpus|ranks|machines)\b[^.]{0,40}\b(slow\w*)"
        r"|\b(?:a|one|the same) (?:gpu|card|node|rank)\b[^.;]{0,30}\b(slower) than (?:all )?(?:the )?others?\b",
        0.5,
        "look at clocks, temperatures and errors of each device; leave the slow node out",
        "nvidia-smi -q -d PERFORMANCE",
    ),
    CausePattern(
        GROWING,
        r"slower and slower|longer and longer|\bincreasingly (?:slow\w*|long\w*)"
        r"|\bslow(?:s|ed|ing)? down by [^.;]{1,30}\b(?:per|each|every) (?:epoch|step|iteration|batch)\b"
        r"|\b(?:step|iteration|epoch|batch|time|it)\b[^.;]{0,40}(?<!loss )(?<!memory )"
        r"\bgrows (?:almost |nearly )?(?:linearly|steadily)\b"
        r"(?! (?:with|in) (?:the )?(?:num|seq|batch|model|lay|nodes|gpus|context))"
        r"|(?:step|iteration)[- ]times? (?:\w+ly )?(?:keeps? )?increas\w+ "
        r"(?:linearly|steadily|gradually|over time|(?:every|each) (?:step|iteration|epoch))"
        r"(?! (?:with|in) (?:the )?(?:num|seq|batch|model|lay|nodes|gpus|context))"
        r"|(?:step|iteration) times? (?:\w+ly )?(?:keeps? )?(?:grow|creep|climb)\w*"
        r"|gradually[^.]{0,30}(slow)"
        r"|slows? down (?:gradually|over time|during training)"
        r"|(?:\b(?:linearly|steadily) slow(?:s|ing)? down|\bslow(?:s|ing)? down (?:linearly|steadily)"
        r"|\b(?:speed|throughput) (?:falls|drops|decreases) (?:linearly|steadily))\b"
        r"(?! (?:with|in) (?:the )?(?:num|seq|batch|model|lay|nodes|gpus|context))",
        0.3,
        "look for something that fills up: memory, the page cache, a log, a loader that reads "
        "further each time",
        same_effect=SLOWING_DOWN,
    ),
    CausePattern(
        GROWING,
        rf"\b{_PACE}\b[^.]{{0,20}}\b(?:decreas\w+|declin\w+|degrad\w+|falls?|falling|drops?) "
        r"(?:progressively|gradually|steadily|over time|with (?:the )?(?:epochs?|steps?|time)"
        r"|(?:per|every|each|after each) (?:epoch|step)|as (?:the )?training)"
        r"|\bslow(?:s|ing|er)?[- ]?(?:down)? (?:per|with (?:each|every)|every|each) epoch"
        r"|\btimes? (?:per iteration )?suddenly slow\w*"
        r"|\b(?:time|throughput|speed)\b[^.;]{0,20}\bsuddenly (?:became|becomes|rose|rises|fell|falls|dropp\w+|increas\w+)\b"
        r"|\bsuddenly slow(?:s|ed)? down"
        r"|\brestart\w*[^.]{0,60}\b(?:speed|throughput)[^.]{0,20}\brecovers?\b",
        0.3,
        "look for something that fills up: memory, the page cache, a log, a loader that reads "
        "further each time",
        "pytorch-lightning issue 581, gpt-neox issue 1248",
        same_effect=SLOWING_DOWN,
    ),
    CausePattern(
        "FLOPs convention",
        r"\bpeak\b[^.;]{0,40}\bhard-?coded\b|\bhard-?coded\b[^.;]{0,30}\bpeak\b"
        r"|\bmfu\b[^.;]{0,60}\b(?:mislead\w+|too (?:high|low)\b|inflated|overstated|wrong)",
        0.5,
        "divide by the dense 16-bit peak of this device",
        "autoresearch issue 5, OLMo-core pull request 817",
    ),
    CausePattern(
        "software version",
        rf"\b(?:after|since) (?:\w+ ){{0,3}}?(?:upgrad\w+|(?:updat|downgrad|switch)\w+[^.;]{{0,20}}{_SOFTWARE})"
        rf"|\b(?:newer|new|latest) {_SOFTWARE}(?:(?!{_MENDED})[^.;]){{0,60}}\b(slow\w*)"
        r"|\bslow\w*\b[^.;]{0,40}\bthan\b[^.;]{0,30}\b(?:(?:release|version|driver)\b|v\d+\.\d)"
        r"|\b(?:driver|release|version)\b[^.;]{0,40}\bis (slow\w*) than\b"
        r"|\bregress(?:ed|ions?|es)?\b[^.;]{0,60}\b(?:speed|throughput|slow\w*|step time)"
        r"|\b(?:speed|throughput|step time)\b[^.;]{0,20}\bregress",
        0.5,
        "time the same step with the previous version, and report the difference",
        "TheRock issue 7696",
        unless=_UNHARMED,
    ),
    CausePattern(
        "stragglers",
        r"stragglers?|throttl\w+|one (?:node|gpu|rank)[^.]{0,20} (slow)"
        r"|\b(?:gpus?|cards?|devices?|nodes?)\b[^.]{0,20}\bare (?:of )?different (?:models?|types?|kinds?)",
        0.3,
        "look at clocks and errors of the slowest device",
    ),
)
