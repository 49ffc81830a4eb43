"""Words about how a training run was set up, if that set-up itself makes steps slow.

These causes are options, and habits in measuring. `sign_rows` has the causes that people and
programs describe.
"""

from runbook.tools.speed.sign_rows import (
    GROWING,
    NO_GAIN_FROM_DEVICES,
    SLOWING_DOWN,
    CausePattern,
)

_RATE = r"(?:throughput|speed|(?:samples|tokens|tok|images) ?/ ?s\w*|tflops?)"
_OFF = r"(?![\"'()]*[ \t]*[=:,(]?[ \t]*[\"']?(?:0|false|no|off|none|warn\w*|version|info)\b)"
"""Text after an option which shows that the option is not switched off."""
_LONGER = r"(slow\w*|longer|more time|decrease in speed|increase in time)"
_REPLACED = (
    r"\b(?:instead of|rather than|not|no longer|replac\w+|switch\w* from|moved? from)\b"
    r"[^.;]{0,30}\bdata_?parallel"
)
"""Words in a sentence about a training run that does not use DataParallel."""
_OTHERS = r"\b(?:other|another|more|somebody else's|other people's) (?:\w+ )?"
_OTHER_WORK = r"(?:programs?|jobs?|tasks?|trainings?|users?)\b"

_NO_UNIT = (
    r"(?! ?(?:%|s\b|ms|sec\w*|min\w*|h\b|hours?|it\b|x\b|k?tok\w*|tflop\w*|samples|steps|img))"
)
"""Text after a version number, which has no unit."""

SET_UP_SIGNS = (
    CausePattern(
        "DataParallel",
        r"(?<!distributed)(?<!distributed )(?<!distributed_)(?<!sharded )(?<!sharded)"
        r"\b(?:torch\.)?(?:nn\.)?dataparallel\b"
        r"|\b(?:strategy|distributed_backend|accelerator)[\"']?\W{1,4}dp\b"
        r"|\b(?:only|just|plain) dp\b",
        0.6,
        "start one process per device: torchrun and DistributedDataParallel",
        "PyTorch's documentation of DataParallel, simpletod issue 15",
        unless=_REPLACED,
    ),
    CausePattern(
        "layout",
        r"\bdevice_map\W{1,4}(?:auto|balanced|sequential)\b|\bnaive (?:model|pipeline|layer)[- ]?(?:parallel\w*|split\w*)"
        r"|\bonly one (?:gpu|card|device) (?:works|will be in use|is (?:active|busy|in use)|at a time)\b"
        r"|\bon a single (?:gpu|card|device) only\b",
        0.7,
        "the layers are split and only one device works at a time. If the model fits on one "
        "device, start a process with a whole copy on each device (torchrun)",
        "qlora issues 12, 96 and 177; accelerate's documentation of device_map",
    ),
    CausePattern(
        "debug option",
        rf"\b(?:set_)?detect_anomaly\b{_OFF}"
        r"|\b(?:anomaly|nan) (?:detection|checks?)\b(?! (?:is |was )?(?:off|disabled))"
        rf"|\btorch_distributed_debug[=: ]+detail\b|\bnccl_debug[=: ]+trace\b"
        r"|\b(?:with|enabl\w+|in|turn\w+ on)\b[^.;]{0,40}\bdebug(?: mode| build| option)?\b"
        r"(?=[ \w]{0,20}\b(?:makes?|slow\w*|mode|build)\b)"
        r"|\bprofiler (?:is|was|stays|left) (?:on|enabled|running|active)\b"
        rf"|\buse_deterministic_algorithms\b{_OFF}|\bcudnn\.deterministic[ =]+true\b",
        0.6,
        "switch it off once the fault is found: checks, traces and deterministic kernels cost time",
        "Lightning issues 12344 and 17359, PyTorch issue 163923",
    ),
    CausePattern(
        "unequal work",
        rf"\b(?:increas\w+|larger|bigger|doubl\w+) (?:the |my |our )?(?:\w+ )?batch(?:[- _]?sizes?)?\b"
        rf"[^.;]{{0,60}}\b{_LONGER}\b"
        r"|\b(?:training |speed )?is (slow\w*) (?:when|if|with)\b[^.;]{0,20}\bbatch[- _]?size\b[^.;]{0,12}\b\d+ "
        r"(?:compared|than|instead)"
        r"|\b(?:source|src|input) tok\w*(?: ?/ ?s\w*)?\b[^.]{0,80}\b(?:target|tgt|output) tok\w*"
        r"|\b(?:target|tgt|output) tok\w*(?: ?/ ?s\w*)?\b[^.]{0,80}\b(?:source|src|input) tok\w*"
        r"|\bmis-?leading\b[^.;]{0,30}\b(?:benchmark\w*|compar\w+)",
        0.8,
        "compare tokens/s per device: one step may have more or longer samples than the other",
        "OpenNMT-py issues 877 and 1391, pytorch/examples issue 75",
    ),
    CausePattern(
        "warm-up",
        rf"\b{_RATE}\b[^.;]{{0,40}}\b(?:continu\w+|keeps?|gradually|steadily|slowly)(?: to)? "
        r"(?:increas\w+|ris\w+|improv\w+)"
        r"|\bfirst (?:few |\d+ )?(?:steps?|iterations?|batch(?:es)?)\b[^.;]{0,30}"
        r"\b(slow\w*|long|longer)\b(?! than expected)",
        0.3,
        "leave the first steps out of the measurement: they compile and fill caches",
        "alpa issue 823",
        unless=r"\bcompil",
    ),
    CausePattern(
        "communication",
        r"\b(?:ddp|distributed|multi-?gpu|data[- ]parallel\w*)\b[^.;]{0,80}"
        r"\b(slow\w*) than\b[^.;]{0,30}\b(?:single|one|1)[- ](?:gpu|device|card)",
        0.5,
        "check the links between devices with nvidia-smi topo -m; transfer less, or less often",
        "4D-Humans issue 139",
        same_effect=NO_GAIN_FROM_DEVICES,
    ),
    CausePattern(
        "communication",
        r"\bfind_unused_param\w*[\"'`]?(?: is| was)?(?: explicitly)?(?: set)?(?: to)?[ =:\"'`]+true\b",
        0.2,
        "find_unused_parameters=False, where every parameter has a gradient in every step",
        "PyTorch's own warning of an extra traversal of the autograd graph",
    ),
    CausePattern(
        "communication",
        r"\b(?:each|every) micro-?(?:step|batch)\b[^.;]{0,30}\b(?:runs?|does|triggers?)\b[^.;]{0,20}"
        r"\b(?:reduction|all-?reduce|synchroni[sz]ation)",
        0.5,
        "sum gradients once per step: put no_sync() around all micro-batches but the last",
        "cosmos-framework issue 161",
    ),
    CausePattern(
        "memory",
        r"\b(?:us(?:es?|ed|ing)|spill\w*|overflow\w*|falls? back)\b[^.;]{0,30}\bshared (?:gpu|video) memory\b",
        0.8,
        "a smaller micro-batch: the driver moves memory to the host when the device's memory is "
        "full",
        "kohya_ss issue 961",
    ),
    CausePattern(
        GROWING,
        r"\btimes?\b[^.;]{0,40}\b(?:is|are|keeps?) (?:steadily|continuously|constantly|gradually) "
        r"(?:increasing|growing|rising)\b",
        0.3,
        "look for something that fills up: memory, the page cache, a log, a loader that reads "
        "further each time",
        "verl issue 2504",
        same_effect=SLOWING_DOWN,
    ),
    CausePattern(
        "FLOPs convention",
        r"\b(?:wrong|incorrect|impossible|negative) mfu\b",
        0.5,
        "check which device's peak the program divides by",
        "llm.c issue 796",
    ),
    CausePattern(
        "software version",
        r"\b(?:slow\w*|regress\w*|longer)\b[^;\n]{0,60}\b(?:from|between) (?:\w+ )?v?\d+\.\d+(?:\.\d+)* (?:to|and) "
        rf"(?:\w+ )?v?\d+\.\d+(?:\.\d+)*\b{_NO_UNIT}",
        0.5,
        "time the same step with the previous version, and report the difference",
        "PyTorch issue 50636",
    ),
    CausePattern(
        "host",
        r"\bsuggested max number of worker|\bmore (?:loader )?workers than (?:cpu )?(?:cores|cpus)\b",
        0.5,
        "use as many loader workers as each rank has cores",
        "PyTorch's own warning of a DataLoader with too many workers",
    ),
    CausePattern(
        "no device",
        r"\bgpu available: false\b"
        r"|\bcpu is (?:being )?used\b|\b(?:uses?|using) (?:only )?(?:the )?cpu (?:instead of|rather than|and not)\b"
        r"|\b(?:gpu|cuda)(?: is| are)? (?:not|never) (?:being )?(?:used|utili[sz]ed|detected|recogni[sz]ed)\b"
        r"|\bignor(?:es?|ed|ing) (?:the |my |our )?(?:gpus?|cuda)\b"
        r"|(?:\b(?:no|zero|not)|n't)\b(?:[^.;]{0,30}\bany)? gpu (?:utili[sz]ation|usage|activity)\b"
        r"(?! (?:limit|problem|issue|drop)s?\b)"
        r"|\b(?:gpu|cuda) isn't (?:being )?(?:used|utili[sz]ed|detected|recogni[sz]ed)\b",
        0.9,
        "install PyTorch for the device's driver; see torch.cuda.is_available() on each rank",
        "HKU-DASC7606-A1 issue 9",
    ),
    CausePattern(
        "slow steps",
        rf"{_OTHERS}{_OTHER_WORK}[^.;]{{0,20}}\b(?:(?:is|are) running|running|runs?|us(?:es?|ing)|shar\w+|train\w*)\b"
        r"[^.;]{0,20}\b(?:on|this|the|that|same) (?:\w+ )?(?:gpus?|cards?|nodes?|devices?|machines?)\b",
        0.3,
        "check nvidia-smi for other users' processes; request exclusive devices",
        "EmbedKGQA issue 50",
    ),
)
