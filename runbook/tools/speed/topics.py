"""Causes whose subject is in the same sentence as a complaint about the speed.

No phrase in these texts names the cause, but people complain about the part of a training run that
they suspect or have measured.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from runbook.tools.speed.phrases import first_stated, sentences_of

_OPTION = re.compile(
    r"--\w|^\W*[\w.\"']+ ?[:=] ?\S+\W*$|^(?:export |#|\||import |from |>>>|\d{4}-\d\d-\d\d|\[)"
)
"""Matches lines with options, code, table rows or log output, which are no complaints."""
_HEADING = re.compile(r"^\s*#+ ")
"""Matches a heading mark at the start of a text. The heading is the title of a question."""
COMPLAINT = (
    r"(?:\b|(?=n't))((?:slow(?:s|er|ly|ness|downs?|ed|ing)?|low(?:er)?"
    r"(?! (?:cpu|precision|rank|loss|variance|latency|learning|lr|memory|resolution|level|bit|cost|temperature))"
    r"|bottleneck\w*|bad (?:scal\w+|speed|throughput|perf\w*|mfu|utili\w+)|(?:so|too|very|really|is) bad(?! at)|poor(?:ly)?"
    r"|idle|drop(?:s|ped)?|degrad\w+|decreas\w+|declin\w+|wors(?:e|t)"
    r"|long(?:er)? than|(?:too|so|very|really|quite) (?:a )?long|(?<!not )forever"
    r"|only (?:about |around |get |reach |~)*\d[\d.]*"
    r"|less than expected|(?:much|far) (?:less than|below|from) \d\w*|\d+ ?% only"
    r"|increas\w+ (?:the |our |my )?(?:training |step |iteration |epoch )?time|(?:training |step )time increas\w+"
    r"|costs? (?:to|of|in) (?:the )?(?:training )?speed|(?:is|was) (?:expected|reasonable)"
    r"|(?:is (?:it|that|this)) (?:normal|expected)"
    r"|gpu\b[^.;]{0,40}\b[1-5]?\d ?% (?:usage|utili[sz]\w+|load)|gpu utili[sz]ation\b[^.;]{0,20}\b[1-5]?\d(?= ?[-%])"
    r"|unexpected (?:results?|slow\w*)|spik(?:y|es)|oscillat\w+|fluctuat\w+|unstable"
    r"|(?:not|n't|no) (?:\w+ )?(?:scal\w+|speed[- ]?up|accelerat\w+|faster|efficient|utili[sz]ed)"
    r"|(?:not|n't) (?:make|made) (?:it|them|training|any) (?:\w+ )?faster|(?:not|n't) us(?:e|es|ing) (?:all|the gpu|gpu)"
    r"|lag(?:s|ging)?|waits?(?! in the queue)|waiting(?! in the queue)|stall\w*|inefficien\w+|underutili[sz]\w+"
    r"|(?:gets?|getting|is|got) stuck|(?<!we )(?<!i )paus(?:e|es|ed|ing)|suspen(?:ds?|sion)|freez\w+|block(?:s|ed|ing)"
    r"|wast(?:e|es|ed|ing)|overhead|capped at|unused|los(?:e|es|ing) (?:about |around )?\d"
    r"|cost(?:s|ing) (?:about |around |roughly )?\d+|delays?|takes? too much"
    r"|(?:gpu|device)[- ]util\w* (?:is|=|:) 0"
    r"|(?:time|speed)\b[^.;,]{0,12} (?:is|are|was|were|stays?) (?:the )?(?:almost |nearly |exactly )?(?:same|identical)"
    r"|(?:did not|didn't|do not|don't|does not|doesn't)(?: \w+){0,2}"
    r" (?:gain|observe|see|notice)\b[^.;]{0,20}\b(?:speed\w*|fast\w*)"
    r"|(?:train|training|step|epoch)\b[^.;]{0,12}\btimes? (?:increases|rises|grows)|takes? longer"
    r"|(?:run)?times? (?:per|of|for|to)\b[^.;]{0,25}\b(?:increases|rises|grows)\b"
    r"|(?:twice|(?:\d+|three|four|five|six|eight|ten|several|many) times) (?:as long|longer|more)"
    r"|no (?:\w+ )?(?:\w+ )?(?:improvements?|increase|gain) (?:in|of|compared|with)"
    r"|no (?:speed|performance) (?:improvement|increase|gain)s?"
    r"|under-?utili[sz]\w+|(?:speed|throughput|performance|mfu)\b[^.;,]{0,12} (?:falls?|fell|sinks?|sank)"
    r"|reduce the training time|(?:speed|accelerate)\w* (?:up )?(?:the |my |our )?training"
    r"|(?:large|high|big|huge|significant|massive) (?:perf\w* )?(?:impact|gap|difference|discrepancy)"
    r"|trouble|useless comput\w+|dominat(?:e|es|ed)|times? went from"
    r"|(?:increase|improve|optimi[sz]e) (?:the |my |our )?(?:\w+ )?(?:speed|throughput|efficiency|utili[sz]ation)"
    r"|loo?s(?:e|es|ing) (?:a )?(?:lots? of )?time|(?:so|too) much time"
    r"|(?:speed|throughput|performance)\b[^.;]{0,20}(?:not|n't) increase"
    r"|no (?:big |significant |real )?difference (?:between|in) (?:the )?(?:times?|speed|throughput)"
    r"|slowest|plummet\w*|regress(?:ions?|ed|es)|explod\w+|negatively"
    r"|(?:takes?|took|taking|needs?|costs?|spends?|spent) (?:\w+ )?(?:a |the )?(?:very |so )?"
    r"(?:long|longer|lots? of|more|most of the|majority of(?: the)?) ?time|took longer|longer (?:train|time)"
    r"|(?:most|majority|[1-9]\d ?%) of (?:the |its |each |every )?(?:\w+ )?time"
    r"|same (?:running|training|step|iteration) time"
    r"|speed\b[^.;,]{0,40} (?:is|are) (?:almost |nearly )?(?:equal|the same)"
    r"|(?:takes?|took|taking|requires?|required|needs?|needed) (?:about |around |almost |nearly |~ ?|over )?"
    r"(?:\d[\d.]*\+? ?(?:min\w*|hours?|hrs?|days?|weeks?|months?|years?)|an? (?:week|month|year)s?\b)"
    r"(?!,? (?:as|which) )"
    r"|(?:is|are|was|being|gets?) ignored|launch[- ]?(?:bound|starv\w*)"
    r"|(?:speed|performance) (?:investigation|comparison|issues?|problems?)"
    r"|make it (?:\w+ )?(?:quick|fast)\w*|jumps? (?:up )?to \d+ ?(?:s|h|hours|days)"
    r"|expected (?:(?:it|this|them|training) to be )?[^.;,]{0,15}(?:fast(?:er)?|quicker|speed-?up)"
    r"|(?:extended|quite some) time|(?:cannot|can't|unable to) (?:reach|reproduce|replicate)))\b"
)
"""Words that people use to describe a slow training run.

The pattern is a capturing group, so that `first_stated` skips matches that are about the loss.
"""


_MENDED = (
    r"\b(?:used to be|no longer|not any ?more|was slow (?:until|before)|has been (?:fixed|solved|mended))\b"
    r"|\bsince then\b|\b(?:runs?|trains?) at full speed\b|\b(?:solved|fixed) (?:it|this|that|the)\b"
)
"""Words in a sentence about a training run that was slow and no longer is."""


_WITHOUT_ANY = (
    r"(?:\b(?:no|not|never|without)|n't)\b[^.;,]{0,60}\bany\b"
    r"|(?:\bnot|n't)\b[^.;,]{0,20}\b(?:related|due|caused by|because)\b"
)
"""Words which show that the training run does not use what the sentence is about, or that it is
not the cause.
"""
_OTHER_SUBJECT = (
    r"\b(?:loss(?:es)?|accuracy|converg\w+|perplexity|nan|inf|errors?|exception|traceback|crash\w*|oom"
    r"|out of memory|learning rate|fault|quality)\b"
)
_SPEED = (
    r"\b(?:slow\w*|speeds?|fast\w*|throughput|times?|utili[sz]\w+|idle|usage|seconds?|minutes?|hours?|long\w*"
    r"|bottleneck\w*|efficien\w+|mfu|tflops?|overhead|wait\w*)\b|\d ?(?:s|ms|min|h)\b|/s\b"
)
"""Words in a sentence about speed, even if it also has words about another subject."""


_QUESTION = re.compile(
    r"[?\N{FULLWIDTH QUESTION MARK}]"
    r"|^\W*(?:why|how (?:long|can|could|do|to|should|much)|is (?:it|this|that)"
    r"|any(?:one| ?body)? (?:idea|know|one|can|help)"
    r"|what (?:is|am|could|can|should)|am i|could (?:this|it)|shouldn't)\b|\bi(?:'m| am| was)? wonder(?:ing)?\b"
)
_ASKED = (
    r"\b(?:slow\w*|fast\w*|speeds?|throughput|utili[sz]\w*|util|mfu|tflops?|accelerat\w+|multi[- ]?gpus?|optimal"
    r"|how long|iteration times?|step times?|train(?:ing)? times?|time (?:cost|needed|per|of)|efficien\w+"
    r"|bottleneck\w*|performance)\b"
)
"""Words in a question about speed."""
_DURATION = (
    r"(?<![\w.])\d[\d.,]*(?:\s?-\s?\d+)? ?(?:h|hrs?|hours?|days?|weeks?|minutes?|mins?|seconds?|secs?|s|ms)\b(?!\w)"
    r"|(?<![\w.])\d[\d.,]*k? ?(?:it|iters?|steps?|samples?|tokens?|tok|img|images)\w* ?(?:/|per|every) ?s\w*"
    r"|\bwhole night\b|\b(?:several|many|few) (?:hours|days|weeks)\b"
)
"""A time or a rate.

A question in the same sentence or in one of the next sentences may be about it.
"""
_REACH_OF_A_QUESTION = 2
"""Maximum distance, in sentences, of a question from the duration that it is about."""
_FUNCTION = re.compile(r"\b\w+_\w+(?=\()")
"""A function name in a call, made of words separated by underscores."""
_SUSPICION = (
    r"\b(?:due to|because of|caused by|blame\w*|culprit"
    r"|i (?:suspect|guess|think|believe|suppose)|(?:maybe|perhaps|could) it'?s?)\b"
)
"""Words in a sentence that names what the writer suspects."""
_TRAINING = (
    r"\b(?:train\w*|fine-?tun\w*|epochs?|iterations?|steps?|gpus?|gradient\w*|pre-?train\w*)\b"
)
"""Words in a text about training."""


@dataclass(frozen=True)
class _Topic:
    """A cause, and words about the part of a training run where it arises."""

    cause: str
    words: str
    """Pattern for a sentence in lower case."""
    remedy: str


_TOPICS = (
    _Topic(
        "saves",
        r"(?<!gradient )(?<!activation )(?<!model )\bcheckpoints?\b|\b(?:sav(?:e|es|ing|er)|saved)\b(?! (?:memory|time))"
        r"|\bevery \d{2,} (?:steps|iterations)\b|\bckpts?\b|\b(?:a?synchronous|distributed|model) checkpointing\b",
        "save less often, or in the background; check which steps are slow",
    ),
    _Topic(
        "evaluation",
        r"\beval(?:s|uat\w+|_\w+)?\b|\bvalidation\b|\bevery \d{2,} (?:steps|iterations)\b"
        r"|\bgenerat\w+ (?:\w+ )?(?:samples?|images?)\b",
        "evaluate less often, or on fewer batches; check which steps are slow",
    ),
    _Topic(
        "padding",
        r"\b(?:padd(?:ed|ing)|packing|(?:variable|different|unequal) (?:seq\w* )?lengths?)\b"
        r"|\b(?:group\w*|sort\w*)[ _](?:\w+ )?by[ _]length\b"
        r"|\b(?:longer|shorter|smaller) (?:samples|examples|sequences)\b",
        "pack documents into full sequences, or pad to the longest of a batch",
    ),
    _Topic(
        "compilation",
        r"\btorch\.compile|\bdynamo\b|torchdynamo|\binductor\b|\bcudagraphs?\b|\bcompil(?:e|es|ed|ing|ation)\b",
        "use input shapes that do not change, or mark them dynamic; TORCH_LOGS=recompiles lists "
        "the causes",
    ),
    _Topic(
        "offload",
        r"\boffload\w*",
        "keep the states on the devices: use more devices, or ZeRO over more of them",
    ),
    _Topic(
        "recompute",
        r"\brecomput\w+|\b(?:gradient|activation|grad)[ _]checkpoint\w*|\bcheckpointing\b",
        "keep activations, or recompute selectively",
    ),
    _Topic(
        "token dispatch",
        r"\bexperts?\b|\bmoe\b|\ball[- ]?(?:to|2)[- ]?all\b|\brout(?:er|ing)\b",
        "time the dispatch in a profile; use fused experts (grouped matrix products)",
    ),
    _Topic(
        "pipeline bubble",
        r"\bpipeline(?:[- ]parallel\w*| stages?)\b|\bbubbles?\b|\bpp\b",
        "use more micro-batches per step, interleaved chunks, or fewer stages",
    ),
    _Topic(
        "flash attention",
        r"\bflash[- _]?att\w*|\bsdpa\b|\bxformers\b|\battention (?:kernel|backend|implementation)"
        r"|\battn_impl\w*|\bflex[-_ ]?attention\b",
        "check in a profile which attention kernel runs",
    ),
    _Topic(
        "network",
        r"(?<!neural )(?<!deep )(?<!whole )(?<!the )(?<!my )(?<!our )\bnetwork\b"
        r"(?! (?:runn\w+|train\w*|inference|architecture))"
        r"|\b(?:node|cluster|shared|compute|storage) network\b"
        r"|\bethernet\b|\binfiniband\b|\brdma\b|\broce\b|\befa\b|\binter-?node\b|\binterconnect\b"
        r"|\bmulti-?node\b|\bnumber of (?:nodes|machines)\b|\bsockets?\b",
        "measure an all-reduce between the nodes, and check with NCCL_DEBUG=INFO which network it "
        "uses",
    ),
    _Topic(
        "communication",
        r"\bcommunicat\w+|\bnccl\b|(?<![a-z])all[- _]?(?:reduce|gather)\w*|\breduce[- _]?scatter\w*|\bnvlink\b|\bpcie?\d*\b"
        r"|\bp2p\b|\bcollectives?\b|\bsynchroni[sz]\w* (?:of )?gradients?|\bhybrid shard\w*"
        r"|\bno_sync\b|\bbucket_cap\w*|\bsync(?:hroni[sz]ed)?[-_ ]?(?:bn|batch[-_ ]?norm\w*)\b|\bmulti-?gpus?\b",
        "check in a profile which collectives ranks wait for; nvidia-smi topo -m shows the links",
    ),
    _Topic(
        "memory",
        r"\bmalloc\b|\bshared (?:gpu |video )?memory\b|\bspill\w*|\bswap(?:s|ped|ping)\b|\bswap ?[:=] ?[1-9]|\bpage cache\b"
        r"|\bfragment\w+|\bcache flush\w*|\bempty_cache\b|\ballocator\b|\bmemory leaks?\b",
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use a smaller micro-batch",
    ),
    _Topic(
        "micro-batch",
        r"\bbatch[- _]?size\b|\bbatch ?= ?\d|\bmicro-?batch\w*|\b(?:memory|vram|ram)\b[^.;]{0,40}\b(?:unused|free|left)\b"
        r"|\b(?:mem\w*|vram)\b[^.;]{0,60}\b(?:only|less than)\b|\bonly us\w+ \d+ ?g",
        "use a larger micro-batch, if it fits",
    ),
    _Topic(
        "data wait",
        r"(?<!same )\bdata[- _]?(?:load\w*|pipeline|set\w*|reading)\b(?! (?:that )?(?:you|they|provided))|\bloaders?\b"
        r"|\b(?:nfs|lustre|gpfs|hdfs|s3|lmdb|hdd|efs)\b"
        r"|\bshuffl\w+|\baugment\w*|\btokeni[sz]\w+|\bpre-?process\w*|\bnum_workers\b|\b(?<!\d )workers?\b|\bshards\b"
        r"|\bfiles?\b|\bdisks?\b|\bepoch\b[^.;]{0,40}\b(?:begin\w*|start|end)\b|\bcpu-intensive\b"
        r"|\bi/o\b|\bstreaming\b|\bwebdataset\b|\bhdf5\b|\bh5py\b|\bparquet\b|\bmem(?:ory)?[-_ ]?map\w*|\bmmap\b|\bssds?\b"
        r"|\bbetween (?:\w+ )?epochs\b|\bevery \d{2,} (?:steps|iterations)\b",
        "time a run on random tokens, without the loader; use one worker for each core",
    ),
    _Topic(
        "host",
        r"\bcpu[- ](?:overhead|bound|bottleneck\w*|side|cores?|time|usage)\b|\bcpu cores?\b|\bcores?\b|\bthreads?\b"
        r"|\blogs?\b[^.;]{0,20}\b(?:every|each) (?:step|batch|iteration)\b"
        r"|\bkernel launch\w*|\blaunch overhead\b|\bpython\b|\bsynchroni[sz]\w+|\.item\b|\blogg(?:ing|er)\b|\bwandb\b"
        r"|\btensorboard\b|\bcpu-(?:intensive|bottlenecked)\b"
        r"|\bcpu[-_ ](?:quota|limits?|shares|affinity|load|utili[sz]ation)\b"
        r"|\bcgroups?\b|\bnuma\b|\bdocker\b|\bkubernetes\b|\bk8s\b|\bpods?\b|\bpin(?:ned)?_memory\b|\bnon_blocking\b"
        r"|\bhost[- ]to[- ]device\b|\bhooks?\b|\bgil\b|\bmemcpy\w*|\.to\(device\)",
        "check how many cores each rank gets (cpus-per-task, OMP_NUM_THREADS), and profile "
        "the host code",
    ),
    _Topic(
        "precision",
        r"\bfp32\b|\bfloat32\b|\btf32\b|\bfp8\b|\bprecision ?= ?\d+"
        r"|\bmixed[-_ ]precision\b|\bautocast\b|\b(?:cuda\.)?amp\b|\b32[- ]bit\b",
        "16-bit products are fast on devices with tensor cores",
    ),
    _Topic(
        "kernels",
        r"\bkernels?\b|\bfused?\b|\btriton\b|\b[48][- ]?bit\b|\bquanti[sz]\w+|\bapex\b|\bforeach\b|\bcudnn\b|\bgemms?\b",
        "check in a profile which kernels run; fused kernels (Apex, Transformer Engine, "
        "flash-attn)",
    ),
    _Topic(
        "stragglers",
        r"\bthrottl\w+|\bclocks?\b|\btemperatures?\b|\bpower (?:draw|cap|limit|consumption)\b|\boverheat\w*"
        r"|(?<!than )(?<!on )(?<!with )(?<!using )(?<!only )\b(?:one|some) (?:of the )?(?:gpus?|nodes?|ranks?|cards?)\b",
        "look at clocks, temperatures and errors of each device",
    ),
    _Topic(
        "slow steps",
        r"\b(?:some|certain|random\w*|occasional\w*|sporadic\w*) (?:of the )?(?:steps?|iterations?|epochs?|batches)\b"
        r"|\b(?:other|another|extra) (?:\w+ )?(?:process\w*|programs?|jobs?|tasks?|users?)\b"
        r"|\bfrom (?:slow to fast|fast to slow)\b|\bsometimes\b",
        "look for what these steps had in common: a slow rank, other users, a cold cache",
    ),
    _Topic(
        "growing steps",
        r"\bover time\b|\b(?:gradual|progressive|increasing)ly\b"
        r"|\bafter (?:a while|some time|\d+ (?:steps|iterations|epochs))\b"
        r"|\bmemory leaks?\b|(?<!s )(?<!h )(?<!min )(?<!hour )\bper epoch\b|\bwith (?:each|every) epoch\b",
        "look for something that fills up: memory, the page cache, a log, a loader that reads "
        "further each time",
    ),
    _Topic(
        "software version",
        r"\b(?:upgrad|updat|downgrad)\w+"
        r"|\b(?:last|latest|recent) (?:\d+ )?(?:commits?|changes)\b|\bmy environment\b|\bnightl(?:y|ies)\b|\bregression\b"
        r"|\b(?:weeks?|months?) (?:back|ago)\b|\brecent (?:[\w/-]+ )?versions?\b"
        r"|\bcompute capability\b|\bsm_\d\d\b"
        r"|\b(?:new|newer|latest|old|previous) (?:version|release|container|driver)\b",
        "time the same step with the previous version, and report the difference",
    ),
    _Topic(
        "FLOPs convention",
        r"\b(?:mfu|hfu|flops)\b[^.;]{0,40}\b(?:calculat\w+|comput(?:ed|ation)|formula|peak|hard-?coded|mislead\w+|wrong)\b",
        "divide by the dense 16-bit peak of this device",
    ),
    _Topic(
        "gradient accumulation",
        r"\bgrad(?:ient)?[-_ ]?accum\w*",
        "a step has several micro-batches: compare tokens/s per device",
    ),
    _Topic(
        "timing",
        r"\btime\.time\b|\bperf_counter\b|\btimeit\b|\bcuda\.event\b|\basynchronous(?:ly)? (?:launch|execut|kernel)\w*",
        "a clock on the host only sees the launches: synchronize the device before reading it",
    ),
    _Topic(
        "no device",
        r"\bcuda\.is_available\b|n't use (?:the |any )?gpu\b|\bon (?:a |the )?cpu\b|\bcpu (?:version|only|training)\b",
        "install PyTorch for the device's driver; see torch.cuda.is_available() on each rank",
    ),
)
"""Topics, starting with those that have few words that are specific to them."""
REMEDIES = {topic.cause: topic.remedy for topic in _TOPICS}
"""The remedy for each cause that is a topic."""
_FARTHEST = 2
"""How many sentences before or after a complaint an explanation may be."""
_MOST_COMPLAINTS = 50
"""Maximum number of complaints to read.

People write few complaints, but a log may repeat one in every line.
"""


@dataclass(frozen=True)
class TopicOfComplaint:
    """A cause whose words are next to a complaint."""

    cause: str
    words: str
    """The words in the text."""
    remedy: str
    distance: int
    """Number of sentences between these words and the complaint."""


def complains(text: str) -> bool:
    """Return whether any sentence in a lower-case text calls a training run slow.

    >>> complains("the step is slow"), complains("it was slow until we packed. the loss drops")
    (True, False)
    """
    return any(_is_complaint(sentence) for sentence in sentences_of(text))


def asks_about_speed(text: str) -> bool:
    """Return whether a lower-case text asks how fast training is, or how long it takes.

    >>> asks_about_speed("why is one t4 faster?"), asks_about_speed("it is faster. ok?")
    (True, False)
    >>> asks_about_speed("9 hours a step. is this normal?"), asks_about_speed("what is a step?")
    (True, False)
    """
    return bool(_places_of_questions(sentences_of(text)))


def _places_of_questions(sentences: list[str]) -> list[int]:
    """Return the indices of sentences that ask about speed or about a duration before them."""
    places = []
    for place, sentence in enumerate(sentences):
        if not _QUESTION.search(sentence) or re.search(_OTHER_SUBJECT, sentence):
            continue
        before = " ".join(sentences[max(0, place - _REACH_OF_A_QUESTION) : place + 1])
        is_of_duration = re.search(_DURATION, before) and re.search(_TRAINING, before)
        if is_of_duration or re.search(_ASKED, sentence):
            places.append(place)
    return places


def _is_complaint(sentence: str) -> bool:
    """Return whether a sentence calls a training run slow now, not only before it was fixed.

    >>> _is_complaint("is it normal that the loss jumps?"), _is_complaint("is it normal? 3 s a step")
    (False, True)
    """
    if re.search(_OTHER_SUBJECT, sentence) and not re.search(_SPEED, sentence):
        return False
    return first_stated(COMPLAINT, sentence, unless=_MENDED) is not None


def topics_of_complaints(text: str) -> list[TopicOfComplaint]:
    """Return the topics that complaints in lower-case text refer to, nearest first.

    >>> [topic.cause for topic in topics_of_complaints("there is a long pause. a checkpoint is written.")]
    ['saves']
    >>> topics_of_complaints("a checkpoint is written. the pace is good.")
    []
    """
    titled = _HEADING.sub("", text)
    sentences = [sentence for sentence in sentences_of(titled) if not _OPTION.search(sentence)]
    complaints = [place for place, sentence in enumerate(sentences) if _is_complaint(sentence)]
    complaints = complaints or _places_of_questions(sentences)
    if complaints:
        complaints = [*dict.fromkeys([*complaints, *_places_of_suspicions(sentences)])]
    topics = [*_topics_near(sentences, complaints[:_MOST_COMPLAINTS])]
    return sorted(topics, key=lambda topic: topic.distance)


def topics_in(clause: str) -> list[str]:
    """Return the causes whose subject a clause in lower case mentions.

    >>> topics_in("the loader is fine")
    ['data wait']
    """
    return [topic.cause for topic in _TOPICS if re.search(topic.words, clause)]


def _places_of_suspicions(sentences: list[str]) -> list[int]:
    """Return the indices of sentences that name a suspected cause.

    >>> _places_of_suspicions(["it is slow.", "i think it is due to the loader.", "thanks"])
    [1]
    """
    return [
        place
        for place, sentence in enumerate(sentences)
        if re.search(_SUSPICION, sentence) and not re.search(_OTHER_SUBJECT, sentence)
    ]


def _topics_near(sentences: list[str], complaints: list[int]) -> Iterator[TopicOfComplaint]:
    """Yield each topic once, with its smallest distance to a complaint."""
    distances = _distances(complaints, len(sentences))
    places = sorted(distances, key=lambda place: (distances[place], place))
    for topic in _TOPICS:
        for place in places:
            match = first_stated(
                topic.words, _with_words_of_names(sentences[place]), unless=_WITHOUT_ANY
            )
            if match:
                yield TopicOfComplaint(topic.cause, match[0], topic.remedy, distances[place])
                break


def _with_words_of_names(sentence: str) -> str:
    """Return a sentence in which each function name in a call is followed by its words.

    >>> _with_words_of_names("it hangs in run_eval(model)")
    'it hangs in run_eval run eval(model)'
    """
    return _FUNCTION.sub(lambda name: f"{name[0]} {name[0].replace('_', ' ')}", sentence)


def _distances(complaints: list[int], sentence_count: int) -> dict[int, int]:
    """Return the distance from each nearby sentence to the nearest complaint.

    >>> _distances([1], 5)
    {1: 0, 0: 1, 2: 1, 3: 2}
    """
    distances = dict.fromkeys(complaints, 0)
    for place in complaints:
        for distance in range(1, _FARTHEST + 1):
            for neighbour in (place - distance, place + distance):
                if 0 <= neighbour < sentence_count:
                    distances[neighbour] = min(distances.get(neighbour, distance), distance)
    return distances
