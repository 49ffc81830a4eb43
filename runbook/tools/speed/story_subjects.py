"""Finds what a text about slow training deals with, such as storage or recurrent layers.

Two people rarely choose the same words for a subject: one writes "hdd", another "mounted drive".
Therefore texts are compared by their subjects, too. A subject is not evidence for a cause. The
public stories tell which causes were accepted for texts with the same subjects.
"""

import re

from runbook.tools.speed.topics import topics_in

_DEVICE = (
    r"\b(?:[abhv]\d{2,3}s?|rtx ?\w+|[1-5]0[5-9]0(?: ?ti)?|titan\w*|t4|k80|p100|p40|quadro\w*"
    r"|gtx ?\w+|mi\d{3}x?|gb200)\b"
)
_HALF = r"\b(?:fp16|float16|half|amp|bf16|mixed[- ]precision|autocast|apex|16[- ]bit|fp8)\b"
_RELEASE = r"\b(?:v|version )?\d+\.\d+\.\d+"
_FRAMEWORK = (
    r"\b(?:pytorch|torch|tensorflow|keras|caffe2?|mxnet|theano|jax|lua|lightning|darknet|detectron2?"
    r"|mmdet\w*|megatron|deepspeed|fairseq|huggingface|paddle\w*|flax|tf)\b"
)
_NO_GAIN = (
    r"(?:slower|longer|same|hardly|barely|not (?:any )?faster"
    r"|no (?:speed|faster|gain|improv)\w*)"
)

_PATTERNS = {
    "storage": (
        r"\b(?:nfs|hdds?|ssds?|lustre|gpfs|s3|efs|hdfs|bucket|usb|disks?|drives?|mount(?:ed)?|storage"
        r"|file ?system)\b"
    ),
    "files": (r"\b(?:files?|folder|lmdb|hdf5|h5|tfrecords?|parquet|csv|pickle|npy|zip|shards?)\b"),
    "decoding": (
        r"\b(?:jpe?gs?|pngs?|resiz\w+|transforms?|augment\w*|crop\w*|pil|opencv|cv2|decod\w+"
        r"|pre-?process\w*|mosaic|spectrogram\w*)\b"
    ),
    "loader": (
        r"\bdata ?-?_?load\w*|\b(?:loader\w*|num_?workers|workers?|(?:fit_)?generator|feed\w*"
        r"|tf\.data|prefetch\w*|iterators?|pin[-_]?mem\w*|queue\w*|data_time|sampler)\b|\b-j ?\d+"
    ),
    "data set": r"\b(?:data ?-?sets?|data|samples?)\b",
    "images": (
        r"\b(?:images?|imgs?|imagenet|coco|voc|cifar\w*|kitti|pictures?|photos?|faces?|videos?"
        r"|frames?|resnet\w*|vgg\w*|yolo\w*|alexnet|unet|detect\w+|segment\w+|nerf)\b"
    ),
    "audio": r"\b(?:audio|speech|voice|waveform\w*|wavs?|tts|vocoder|mel|phonemes?)\b",
    "fluctuation": (
        r"\b(?:fluctuat\w*|jumps?|spik\w+|up and down|now and then|once in a while|at times"
        r"|every (?:few|couple)|periodic\w*|oscillat\w*|unst(?:able|eady)|varies|burst\w*|pauses?"
        r"|stall\w*|intermittent\w*)\b|\b0 ?%? (?:and|to|-|~|or) (?:\d\d|100)\b"
    ),
    "low utilization": (
        r"\b(?:util\w*|usage|load)\b[^.;]{0,60}\b(?:low|[1-5]?\d ?(?:%|percent)|zero|0)\b"
        r"|\b(?:low|[1-5]?\d ?(?:%|percent)|poor|zero|bad)\b[^.;]{0,25}\b(?:util\w*|usage|load)\b"
        r"|\bgpus?\b[^.;]{0,30}\b(?:idle|idling|sleep\w*|waits?)\b|\bunder-?utili[sz]\w*"
    ),
    "full utilization": (
        r"\b(?:util\w*|usage|load|gpus?|cards?)\b[^.;]{0,40}\b(?:9\d|100) ?(?:%|percent)"
        r"|\b(?:9\d|100) ?(?:%|percent)[^.;]{0,20}\b(?:util\w*|usage|load|busy)\b|\bsaturated\b"
    ),
    "busy host": (
        r"\bcpus?\b[^.;]{0,50}\b(?:high|full|busy|[6-9]\d ?%|\d{3,} ?%|max\w*|load)\b"
        r"|\b(?:high|full|100 ?%|heavy) (?:\w+ )?cpu\b|\bcpu (?:usage|load|util\w*)\b"
        r"|\b(?:cores?|threads?|htop)\b"
    ),
    "as on the host": (
        r"\b(?:than|as|like|on|with|to|the|only) (?:on |with |the |my |a )?"
        r"(?:cpu|macbook|laptop|i[3579])\b"
        r"|\bcpu\b[^.;]{0,20}\bfaster\b|\bgpu\b[^.;]{0,30}\b(?:slower|same)\b[^.;]{0,30}\bcpu\b"
        r"|\bdoes(?:n't| not) use (?:the |my |any )?gpu\b|\bcpu (?:version|only|instead)\b"
        r"|\bgpu (?:is |are )?not (?:being )?used\b"
    ),
    "presence of a device": (
        r"\b(?:tensorflow-gpu|is_available|nvidia-smi|device placement|cudatoolkit|drivers?"
        r"|cuda(?:nn)? (?:is |are )?installed|using gpu|on (?:the |my )?gpu)\b"
    ),
    "recurrent layers": r"\b(?:(?:bi)?lstms?|grus?|rnns?|seq2seq|recurrent|crf|ctc)\b",
    "state space": r"\b(?:mamba\w*|rwkv\w*|ssms?|s[46]|linear attention|(?:gated )?delta ?net)\b",
    "small model": (
        r"\b(?:mlp|mnist|logistic|autoencoder|perceptron|toy|tiny|small|simple|shallow|tabular"
        r"|(?:2|two)-layer|[1-9]\d?m param\w*|cartpole)\b"
    ),
    "reinforcement": (
        r"\b(?:episodes?|agents?|env(?:ironment)?s?|gym|atari|ppo|dqn|a3c|sac|rollouts?|grpo|rlhf"
        r"|rewards?|policy|actors?|mujoco|vllm|self-play)\b"
    ),
    "another release": (
        r"\b(?:old(?:er)?|previous|earlier|former) (?:version|release|commit|one)s?\b"
        r"|\b(?:after|since|with) (?:the |an |my |i )?(?:upgrad|updat|switch|mov|install)\w*"
        r"|\b(?:downgrad\w*|regress\w*|master|nightly|revert\w*|used to|latest)\b"
        r"|\bnew(?:er|est)? (?:version|release)\b"
    ),
    "two releases": (
        rf"{_RELEASE}\S*\b[^;]{{0,120}}\b(?:than|to|vs\.?|versus|and|with|on|before|from|in)\b"
        rf"[^;]{{0,30}}{_RELEASE}"
    ),
    "a release": (
        r"\b(?:torch|pytorch|tensorflow|tf|cuda|cudnn|keras|jax|transformers|driver|rocm|paddle\w*"
        r"|mxnet|python)\b[- ]?(?:version )?v?\d+(?:\.\d+)+"
    ),
    "two frameworks": (
        rf"{_FRAMEWORK}(?s:.{{3,200}})\b(?:than|compared|versus|vs|whereas|while|against|original"
        r"|port|counterpart|equivalent|native|vanilla|plain)\b"
    ),
    "two kinds of device": (
        rf"{_DEVICE}(?s:.{{1,200}})\b(?:than|to|as|and|versus|vs\.?|while|whereas|compared|but|not)"
        rf"\b(?s:.{{1,60}}){_DEVICE}"
    ),
    "new device": (
        r"\b(?:rocm|mi[23]\d\d\w?|blackwell|g?b[23]00|[345]0[6-9]0|h[12]00|a100|ampere|mps"
        r"|m[1-4] (?:max|pro|ultra)|radeon|habana|gaudi|npu|ascend|tpu\w*|xpu)\b"
    ),
    "old device": (
        r"\b(?:k[48]0\w?|p100|p40?|10[5-8]0(?: ?ti)?|titan ?\w*|m40|gtx ?\w+|9[78]0\w*|v100"
        r"|20[678]0\w*|t4)\b"
    ),
    "growth": (
        r"\b(?:slower and slower|gradual\w*|over time|increasing\w*|grows?|keeps? (?:on )?"
        r"(?:rising|growing|increasing)|creep\w*|climbs?|progressive\w*|more and more"
        r"|longer and longer|leak\w*|suddenly)\b|\beach (?:\w+ ){0,4}(?:slower|longer)\b"
        r"|\b(?:after|by) (?:\w+ ){0,3}(?:\d+|some|several|a few|a while|many)\b"
        r"|\b(?:first|initially|in the beginning|began|starts?|started)\b[^;]{0,80}"
        r"\b(?:later|then|after\w*|now|eventually|finally|suddenly|second|end)\b"
    ),
    "repetition": (
        r"\b(?:loop|again and again|repeat\w*|repetition\w*|genetic|hyper-?parameter\w*"
        r"|(?:k-?)?folds?|(?:grid|random) search|notebook|many models|generations?|append\w*"
        r"|retain_graph)\b"
    ),
    "varying shapes": (
        r"\b(?:random|varying|variable|different|dynamic|changing|multi-?scale|various) (?:\w+ )?"
        r"(?:sizes?|shapes?|lengths?|resolutions?|dimensions?)\b|\blengths? (?:var\w+|differ\w*)"
        r"|\bbucket\w*|\bcudnn\.benchmark\b|\bbenchmark ?= ?true\b"
    ),
    "compiler": (
        r"\b(?:torch\.compile|jit|xla|inductor|dynamo|compil\w+|trace\w*|tf\.function|retrac\w+"
        r"|jax|graph mode|eager\w*|cuda ?graphs?|autotun\w*)\b"
    ),
    "first steps": (
        r"\bfirst (?:\w+ )?(?:step|iteration|batch|epoch|call|minutes?|run|time)s?\b"
        r"|\b(?:at the (?:start|begin\w*)|warm-?up|start-?up|to start"
        r"|before (?:the )?(?:training|it) (?:starts|begins))\b"
    ),
    "special layers": (
        r"\b(?:depth-?wise|group(?:ed)? conv\w*|groups|3d|conv[13]d|deformable|dilat\w+|transposed"
        r"|sparse|scatter\w*|gather|embedding\w*|grid_sample|roi\w*|nms|cumsum|1d conv\w*"
        r"|separable)\b"
    ),
    "operations": (
        r"\b(?:custom|own|hand-?written|plugin|extension)\b[^.;]{0,30}"
        r"\b(?:op|ops|kernel|layer|loss|cuda|function)s?\b"
        r"|\b(?:for[- ]loops?|loop over|autograd\.function|backward|einsum|fused?|kernels?|triton"
        r"|cudnn|apex)\b"
    ),
    "backward pass": r"\b(?:backward|backprop\w*|optimizer\.step|grad(?:ient)?s?)\b",
    "precision": rf"{_HALF}|\b(?:tf32|tensor ?cores?|precision)\b",
    "no gain from 16 bits": rf"{_HALF}(?s:.{{0,100}})\b(?:{_NO_GAIN}|even)\b",
    "several devices": (
        r"\b(?:[2-9]|\d{2,3}|two|three|four|eight|multi(?:ple)?|several|both|more|all)[- ]?(?:x )?"
        r"(?:\w+ )?(?:gpus?|cards?|devices)\b"
        r"|\b(?:[2-9]|\d{2,3}) ?[x×*]? ?(?:[abhvkpt]\d{1,3}s?|rtx|gtx|titan|[1-5]0[5-9]0)\b"
        r"|\b(?:multi-?gpu|ddp|distributed|horovod|fsdp|zero-?_?[123]?|nccl)\b"
    ),
    "several machines": (
        r"\b(?:nodes?|machines?|servers?|hosts?|cluster|workers?|slurm|mpi\w*|ethernet|infiniband"
        r"|\d+ ?(?:gb|gbit)\w*/?p?s?|lan|roce|rdma|tcp|instances?|vms?|aws|ec2)\b"
    ),
    "no gain from devices": (
        r"\b(?:gpus?|cards?|devices?|nodes?|machines?)\b(?s:.{0,120})"
        rf"\b(?:{_NO_GAIN}|halv\w+|worse|scal\w+|linear\w*|efficien\w+|speed-?up|quicker)\b"
    ),
    "one process": (
        r"(?<!distributed)(?<!distributed )\bdata ?-?parallel\b|\bnn\.parallel\b"
        r"|\b(?:multi_gpu_model|first gpu|gpu ?:?0|one (?:gpu|card) (?:works|is)|kv-?store)\b"
    ),
    "parameter server": (
        r"\b(?:kv-?store|parameter servers?|ps|pserver\w*|byteps|ps-lite|dist_\w+|grpc)\b"
    ),
    "synchronization": (
        r"\bsync(?:hroni[sz]ed)?[-_ ]?(?:bn|batch[-_ ]?norm\w*)\b"
        r"|\b(?:find_unused\w*|all-?reduce|gradient (?:sync|averag)\w*|bucket\w*|broadcast\w*)\b"
    ),
    "links": r"\b(?:pcie?|nvlink|nvswitch|p2p|topo\w*|bandwidth|x[48]|risers?|qpi|numa)\b",
    "published figures": (
        r"\b(?:paper|readme|report\w*|published|official|authors?|yours?|table|blog|claim\w*"
        r"|you (?:say|state|wrote|mention\w*)|leaderboard|docs?|documentation)\b"
    ),
    "duration": (
        r"\bhow (?:long|much time)\b|\bis (?:this|it|that) (?:normal|expected|ok|usual|right)\b"
        r"|\b(?:normal|eta|days|weeks)\b"
    ),
    "batch": r"\bbatch\w*\b|\bbs ?=? ?\d+\b|\b-b \d+",
    "two batch sizes": (
        r"\b(?:larger|bigger|smaller|increas\w+|higher|doubl\w+|raising|reduc\w+) (?:the )?(?:\w+ )?"
        r"batch\w*|\bbatch\w*(?: size)?(?: of)? \d+\b(?s:.{1,120})\bbatch\w*(?: size)?(?: of)? \d+\b"
        r"|\bbatch[- ]?size\b[^.;]{0,40}\b(?:from|to)\b \d+"
    ),
    "accumulation": (
        r"\b(?:grad\w*[-_ ]?acc\w*|accum\w*|update[-_ ]freq|(?:virtual|effective) batch)\b"
    ),
    "adapters": r"\b(?:q?lora|peft|adapters?|dora|freez\w+|frozen|linear prob\w+|trainable)\b",
    "quantization": (
        r"\b(?:q-?lora|[48][- ]?bit|int[48]|nf4|bitsandbytes|bnb|gptq|awq|quanti[sz]\w*)\b"
    ),
    "memory": (
        r"\b(?:oom|out of memory|swap\w*|shared (?:gpu )?memory|v?ram|memory|(?:4|6|8|12) ?gb)\b"
        r"|\b\d+(?:\.\d+)? ?/ ?\d+ ?(?:g|gb|gib)\b"
    ),
    "full memory": (
        r"\b(?:memory|v?ram)\b[^.;]{0,40}\b(?:full|fills?|filled|almost|nearly|all|max\w*|exceed\w*)\b"
        r"|\b(?:oom|out of memory|swap\w*|pag(?:e|ing) file)\b"
    ),
    "free memory": (
        r"\b(?:memory|vram)\b[^.;]{0,50}\b(?:free|left|unused|only|not (?:full|used)|low)\b"
        r"|\bonly (?:us\w+ )?\d+(?:\.\d+)? ?g\w*\b"
    ),
    "sharded states": r"\b(?:offload\w*|zero-?_?(?:stage[- ]?)?3|cpu ?adam|nvme)\b",
    "recomputation": r"\b(?:checkpointing|recomput\w*|remat\w*)\b",
    "language": (
        r"\b(?:llms?|llama\S*|gpt\S*|bert\S*|roberta|t5|qwen\S*|mi[sx]tral\S*|gemma\S*|tokens?"
        r"|wiki\w*|corpus|text|sentences?|translation|nmt|ner|word2vec|tokeni[sz]\w*|transformers?)\b"
    ),
    "sequence lengths": (
        r"\b(?:max_?(?:seq\w*_?)?len\w*|sequence lengths?|seq_?len\w*|cutoff_len|context lengths?"
        r"|long (?:sequences?|documents?|texts?)|model_max_length|padd\w+|packing|longest)\b"
    ),
    "attention": r"\b(?:attention|flash\w*|sdpa|xformers|attn\w*)\b",
    "experts": r"\b(?:moe|experts?|mixtral|a\d+b|rout(?:er|ing))\b",
    "share of the peak": r"\b(?:mfu|hfu|tflops?|flops)\b",
    "throughput": r"\b(?:tok\w*|samples?|images?|imgs?|words) ?(?:/|per|a) ?s\w*",
    "evaluation": r"\b(?:eval\w*|validat\w+|val|metrics?|map|bleu|test set|inference)\b",
    "saving": r"\b(?:checkpoints?|sav(?:e|es|ing|ed)|ckpts?|snapshots?)\b",
    "logging": (
        r"\b(?:logg\w+|logs|tensorboard|wandb|print\w*|\.item|progress bar|tqdm|callbacks?"
        r"|summar(?:y|ies)|metrics?|hooks?)\b"
    ),
    "debugging": (
        r"\b(?:debug\w*|anomal\w*|profil\w*|nan checks?|asserts?|deterministic|launch_blocking"
        r"|fast_dev_run|verbose)\b"
    ),
    "profile": r"\b(?:profil\w+|nsys|nvprof|timeline|trace|flame)\b",
    "edited line": (
        r"\b(?:one|a single|that|two) lines?\b|\bline \d+\b|\bedit\w*|\bremov\w+|\bcomment\w* out\b"
    ),
    "windows": r"\b(?:windows|wsl2?|win1[01])\b",
    "cloud": (
        r"\b(?:colab|kaggle|docker|container|kubernetes|k8s|cloud|aws|gcp|azure|vm|ec2|sagemaker"
        r"|runpod|paperspace|singularity|ngc)\b"
    ),
    "cluster": r"\b(?:slurm|cluster|pbs|lsf|sbatch|srun|hpc)\b",
    "one device of several": (
        r"\bone (?:of the |of my |of our )?(?:gpu|card|node|machine|rank)\b"
        r"|\b(?:throttl\w*|temperature\w*|clocks?|power|\d+ ?w|hot|p-?state|fans?)\b"
    ),
    "equal code": (
        r"\b(?:same|identical|unchanged|equal) (?:code|script|config\w*|model|data\w*|settings?"
        r"|everything|machine|parameters|architecture|number)\b|\beverything else\b"
    ),
    "faster before": (
        r"\b(?:yesterday|last (?:week|month|time)|before|used to|restart\w*|reboot\w*|since"
        r"|recently|(?:some days|weeks|months) ago|until)\b"
    ),
    "data in memory": (
        r"\b(?:synthetic|dummy|random (?:data|tensors?|inputs?)|fake data|in memory|preload\w*"
        r"|cached?|data loading is (?:no|not)|data_?(?:time)?:? ?0\.0\d*)\b"
    ),
}
"""For each subject, a pattern for a text in lower case.

The subjects were chosen from 344 public stories that were not held out (2026-11-29). How much one
says about a cause is not stated here; it follows from the stories.
"""
_SUBJECTS = {subject: re.compile(pattern) for subject, pattern in _PATTERNS.items()}


def subjects_in(text: str) -> tuple[str, ...]:
    """Return the subjects in a lower-case text, and the causes it has as topics, sorted.

    >>> subjects_in("resnet50 reads jpegs from a hdd")
    ('decoding', 'images', 'storage', 'topic data wait')
    """
    subjects = [subject for subject, pattern in _SUBJECTS.items() if pattern.search(text)]
    topics = [f"topic {cause}" for cause in topics_in(text)]
    return tuple(sorted([*subjects, *topics]))
