"""Rules for network failures: interfaces, fabric, rendezvous, timeouts and lost peers."""

from runbook.results.failures.kinds import (
    COLLECTIVES_DIFFER,
    FABRIC,
    HUB,
    INTERFACE,
    PEER_DIED,
    PORT,
    RANK_HUNG,
    RENDEZVOUS,
    TIMEOUT,
)
from runbook.results.failures.rule import Level, Rule

_OF_OTHER_TRANSPORTS = (
    r"huggingface|https?://|\bssh\b|NET/IB|ibv|wandb|Rank \d+ Watchdog|[Rr]ecv(?:Value"
    r"|Bytes)?\b.*failed|pypi"
)
"""Words showing that a connection does not lead to a process group store."""
_OF_OTHER_SERVERS = (
    r"psycopg|redis|mongo|[Ss][Qq][Ll]\b|mlflow|kafka|rabbit|[Ee]lasticsearch|urlopen|HTTP"
)
"""Servers in other programs, such as a database or an experiment tracker."""
_TIMED_OUT = r"(?:timed ?out|timeout\b(?!\W{0,3}\d))"
"""An exceeded time limit. If a number follows the word, it is a setting."""

NETWORK_RULES = (
    # Ranks on two nodes exchanged loopback addresses: a host name resolves to 127.0.x.x.
    Rule(
        kind=INTERFACE,
        patterns=(r"connectFullMesh failed.{0,200}remote=\[127\..{0,80}size=",),
        example="RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:152] timed out "
        "connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:36011 (rank=8, size=16, "
        "local=[127.0.0.1])",
        source="aws-samples/aws-do-eks#69",
        also=RENDEZVOUS,
        check="If all ranks are on one node, one of them ended before the others met it.",
    ),
    Rule(
        kind=PORT,
        patterns=(
            r"EADDRINUSE",
            r"[Aa]ddress already in use",
            r"errno: 98\b",
            r"\[Errno 98\]",
            r"server socket has failed to (?:bind|listen)",
            r"[Pp]ort \d+ (?:is )?(?:already )?(?:in use|taken|occupied)",
            r"on port `?\d+`?, but another process",
            r"the last training process is running",
        ),
        example=(
            "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in "
            "use)."
        ),
        source="pytorch/pytorch#126510",
        in_warnings=True,
    ),
    # A program serving metrics about the run uses another port, or continues with none.
    Rule(
        kind=PORT,
        patterns=(r"[Ff]ailed to bind to (?:address|port)\b",),
        unless=r"\b(?:using|trying)\b|[Mm]etrics|[Ee]xporter|[Dd]ashboard",
        example=(
            "RuntimeError: Failed to bind to address [::]:50051; set GRPC_VERBOSITY=debug "
            "environment variable to see detailed error message."
        ),
        counterexample="Failed to bind to port 6006, using 6007",
        source="gRPC, a message of src/python/grpcio/grpc/_common.py",
        in_warnings=True,
    ),
    Rule(
        kind=RANK_HUNG,
        patterns=(r"rank \d+ \(process \d+ on \S+\) hangs at step",),
        example=(
            "rank 1 (process 4711 on n3) hangs at step 9: no sign of life for 7 s (limit 6 s); "
            "it is ended."
        ),
        source="runbook.training, its watchdog",
    ),
    # torchrun prints these lines while it waits for a slower node. They matter only if no other
    # line follows.
    Rule(
        kind=RENDEZVOUS,
        patterns=(
            r"\[W.{0,60}The client socket has failed to connect",
            r"^Waiting in store based barrier",
        ),
        example="[W socket.cpp:601] [c10d] The client socket has failed to connect to [n1]:29500 "
        "(errno: 111 - "
        "Connection refused).",
        source="PyTorch, a message of torch/csrc/distributed/c10d/socket.cpp",
        level=Level.SYMPTOM,
        in_warnings=True,
    ),
    # The words "Connection timed out" refer to a connection between two network cards.
    Rule(
        kind=FABRIC,
        patterns=(
            r"ibv_modify_qp\b.{0,60}(?:fail|error)",
            r"(?:[Ff]ailed|[Uu]nable|[Cc]ould not|[Cc]annot) to (?:modify|transition|move|bring) (?:the )?QP\b",
        ),
        example="NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out",
        counterexample="n1:4711:4712 [0] NCCL INFO NET/IB : ibv_modify_qp is loaded",
        source="NVIDIA/nccl#2013",
    ),
    # NCCL names the address it cannot reach. Older releases print nothing but WARN.
    Rule(
        kind=INTERFACE,
        patterns=(
            (
                r"\[\d+\] \S+\.[a-z]+:\d+ (?:NCCL )?WARN .{0,60}[Cc]onnect.{0,80}"
                r"(?:timed out|No route to host|Network is unreachable)"
            ),
        ),
        example="n1:18553:18611 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out",
        counterexample="[c10d] The client socket has timed out after 60s while trying to connect to (n1, 29500)",
        source="NVIDIA/nccl-tests#15",
    ),
    Rule(
        kind=RENDEZVOUS,
        patterns=(
            r"did not meet the others at \S+",
            r"store.based.barrier.{0,200}worker_count=",
            r"RendezvousTimeoutError",
            r"RendezvousConnectionError",
            r"RendezvousClosedError",
            r"\bRendezvousError\b",
            r"RendezvousGracefulExit",
            r"retrieving ncclUniqueId",
            r"store->get\(",
            r"client socket has timed out after \d+",
            r"Timed out initializing process group",
            r"Timed out .{0,40}waiting for clients",
            r"\d+/\d+ clients joined",
            r"wait timeout after \d+ms, keys:",
            r"DistStoreError",
            r"client socket has failed to connect",
            r"failed to connect to (?:any|all) (?:of the )?addresses",
            r"hostname .{0,60}(?:cannot|can't|could not|not) be? ?resolved",
            r"connect\(\) timed out",
            r"timed out .{0,40}(?:TCPStore|rendezvous|init_process_group)",
            rf"(?:TCPStore|rendezvous).{{0,60}}{_TIMED_OUT}",
            r"world[_ ]size.{0,40}(?:mismatch|does not match|is not the same|inconsistent)",
            r"[Ee]rror initializing torch\.distributed using env:// rendezvous",
            r"environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK) expected",
            r"connectFullMesh failed.{0,100}timed? ?out",
            r"ProcessGroup\w+ .{0,40}rendezvous",
            r"The node has been closed",
            r"Rendezvous .{0,30}failed",
            r"etcd\.(?:\w+\.)*Etcd\w+",
        ),
        unless=_OF_OTHER_TRANSPORTS,
        example=(
            "torch.distributed.DistBackendError: [4] is setting up NCCL communicator and "
            "retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but "
            "store->get('0') got error: Socket Timeout"
        ),
        counterexample="The node attempts to join the next round of the rendezvous 'elastic' with timeout 600.",
        source="hiyouga/LlamaFactory#3698",
        in_warnings=True,
    ),
    Rule(
        kind=RENDEZVOUS,
        patterns=(
            r"(?:more than one|two|multiple|several) (?:node|process|rank|worker)s?(?:es)? .{0,40}same rank",
            r"[Ii]nvalid rank \d+, rank should be",
            r"[Rr]ank \d+ (?:is |was |has )?already (?:registered|joined|taken|in use)",
        ),
        error_patterns=(r"[Dd]uplicated? (?:global )?rank\b",),
        example="RuntimeError: more than one node have assigned same rank at THD/process_group/General.cpp:17",
        counterexample="expert weights are duplicated: rank 0 and rank 4 hold the same shard",
        source="NVIDIA/apex#28",
    ),
    # A rank listens on an address that belongs to another host.
    Rule(
        kind=RENDEZVOUS,
        patterns=(r"\[Errno 99\]", r"[Cc]annot assign requested address"),
        unless=_OF_OTHER_TRANSPORTS,
        example="OSError: [Errno 99] Cannot assign requested address",
        counterexample="https://hub.example: Cannot assign requested address",
        source="gpustack/gpustack#4241",
        level=Level.SYMPTOM,
        also=INTERFACE,
        check="`ip -br addr` on the node of rank 0 must list the address to which MASTER_ADDR resolves.",
    ),
    # The line does not name the other end, which may be another rank or a server outside the job.
    Rule(
        kind=RENDEZVOUS,
        patterns=(
            r"getaddrinfo",
            r"gai error",
            r"Name or service not known",
            r"Temporary failure in name resolution",
            r"Could not resolve host",
            r"^nslookup: can't resolve",
            r"Name does not resolve",
            r"No route to host",
            r"Network is unreachable",
            r"connection to .{0,60}:\d+ .{0,20}(?:refused|timed out)",
            r"Connection refused",
            r"Connection timed out",
            r"ConnectionRefusedError",
        ),
        unless=rf"{_OF_OTHER_TRANSPORTS}|{_OF_OTHER_SERVERS}",
        example="ValueError: host not found: Temporary failure in name resolution",
        counterexample="redis.exceptions.ConnectionError: Error 111 connecting to n1:6379. Connection refused.",
        source="kubeflow/pytorch-operator#125",
        level=Level.SYMPTOM,
        also=HUB,
        check=(
            "The lines above name the address. If it is not a node of the job, the compute node "
            "may have no access to the internet."
        ),
        in_warnings=True,
    ),
    Rule(
        kind=INTERFACE,
        patterns=(
            r"[Bb]ootstrap ?: ?[Nn]o (?:socket|NCCL_SOCKET_IFNAME) interface found",
            r"ncclSocketInit: connecting to address",
            r"socketStartConnect: .{0,80}failed : (?:Software caused|Network is unreachable|No route)",
            r"Socket creation failed ?: Address family not supported",
            r"NET/(?:IB|OFI|Socket) ?: ?[Nn]o (?:usable |)?(?:device|interface|listening)",
            r"[Uu]nable to find (?:address for|interface)",
            r"ifa != nullptr",
            r"Unable to resolve hostname to a \(local\) address",
            r"no socket interface found",
            r"[Nn]o such device.{0,30}(?:interface|ifname)",
            r"find_ofi_provider",
            r"optimal provider",
            r"provider efa output empty",
            r"No eligible providers",
            r"fi_getinfo.{0,60}(?:fail|No data|-61|empty)",
            r"NET/OFI.{0,80}(?:[Nn]o |not found|Unable|couldn't|Couldn't find)",
            r"[Ff]ailed to initialize (?:any )?NET plugin",
            r"Failed to initialize NET plugin",
            r"failed to find an interface",
            r"makeDeviceForInterface",
            r"makeDeviceForHostname",
            r"gloo/transport/tcp/device\.cc",
            r"aws-ofi-nccl.{0,60}(?:not found|fail)",
            r"No network interface",
            r"ifname .{0,60}not found",
            r"invalid interface .{0,40}specified in \w+_if_(?:include|exclude)",
        ),
        error_patterns=(
            r"NCCL_SOCKET_IFNAME .{0,60}(?:not found|no|invalid)",
            r"[Cc]ould not find .{0,30}(?:interface|HCA|NIC)",
            r"NCCL_IB_HCA .{0,40}(?:not|no)",
            r"looking for .{0,30}interface",
            r"interface .{0,40}(?:does not exist|not found|is down)",
            r"unrecognized (?:network|provider)",
            r"FI_PROVIDER.{0,40}(?:not|unknown)",
            r"unknown network (?:name|interface)",
        ),
        example="node1:99:99 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
        source="NVIDIA/nccl#1837",
        in_warnings=True,
    ),
    Rule(
        kind=INTERFACE,
        patterns=(r"connectFullMesh failed.{0,200}(?:no error|remote=\[127\.)",),
        unless=r"[Cc]losed by peer|reset by peer",
        example="RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error",
        source="gpustack/gpustack#2125",
        level=Level.SYMPTOM,
        also=PEER_DIED,
        check="If another rank's log ends earlier or names an error, that rank ended first.",
    ),
    Rule(
        kind=FABRIC,
        patterns=(
            r"Got completion .{0,80}(?:status|error)",
            r"(?:vendor|vend) err(?:or)?",
            r"IBV_WC_\w+ERR",
            r"IBV_EVENT_\w*(?:ERR|FATAL)",
            (
                r"ibv_(?:modify_qp|create_qp|open_device|post_send|poll_cq|get_async_event"
                r"|query_\w+|create_ah|alloc_pd)\w*.{0,60}(?:fail|error)"
            ),
            r"cxip?_?\w*.{0,120}(?:fail|error|rror|<warn>)",
            r"\bcxi\b.{0,100}(?:fail|error|not)",
            r"\bEFA\b.{0,60}(?:fail|error|unresponsive|rror)",
            r"efa_\w+.{0,60}(?:fail|error)",
            r"Unresponsive",
            r"RDMA.{0,60}(?:fail|error)",
            r"[Tt]ransport retry count(?:er)? exceeded",
            r"RNR retry",
            r"Remote (?:I/O|operation|access) error",
            r"Work Request Flushed",
            r"couldn't open .{0,30}(?:fabric|domain|endpoint)",
            r"Couldn't open a fabric",
            r"fi_(?:endpoint|domain|fabric|cq_\w+|send|recv|read|write)\w*.{0,40}(?:fail|error)",
            r"libfabric.{0,80}(?:error|fail|<critical>)",
            r"local (?:QP|catastrophic)",
            r"port (?:error|is not active|down)",
            r"link (?:is )?down",
            r"Link failure",
            r"uct?_\w+.{0,80}ERROR",
            r"UCX\s+ERROR",
            # A line from the UCX log: [host:process:thread:process] file.c:line, then the text
            r"\[\S+:\d+:\d+:\d+\] +\w+\.c:\d+ +(?:Assertion|Fatal)",
            r"\b(?:pml|mtl|btl)_\w+\.c:\d+:?\s+Error",
            r"\buc[pt]_\w+\(.{0,40}\) failed",
            r"Failed to (?:create|resolve) UC[PT]",
            r"UCP? .{0,40}(?:ERROR|error)",
            r"mlx5\w*.{0,80}(?:error|timeout|fail)",
            r"PSM[23]?.{0,60}(?:error|fail|timeout)",
            r"hfi1.{0,60}(?:error|fail)",
            r"rdma_\w+.{0,40}(?:error|fail)",
            r"OFI .{0,60}(?:error|fail)",
            # An event such as "client reregistration" comes from the subnet manager and is not an
            # error.
            r"NET/IB ?: .{0,60}(?:error|fail|fatal)",
            r"rgroup",
            r"RC: -\d+, ERROR",
        ),
        error_patterns=(r"VNI\b.{0,60}(?:fail|not)",),
        unless=r"Memory allocation|Cannot allocate memory|libibverbs: Warning",
        example=(
            "NCCL WARN NET/IB : Got completion from peer 10.216.210.236<54862> with status=12 "
            "opcode=0 len=0 vendor err 129 (Recv)"
        ),
        source="NVIDIA/nccl#1405",
        in_warnings=True,
    ),
    Rule(
        kind=COLLECTIVES_DIFFER,
        patterns=(
            r"[Mm]ismatch between collectives",
            r"[Mm]ismatched collective",
            r"[Cc]ollectives? (?:calls? )?(?:differ|do(?:es)? not match)",
            r"due to shape mismatches\. All shapes across devices",
            r"DDP expects same model across all ranks",
            r"appears not to match (?:sizes|strides) of the same param in process",
        ),
        # A checking program that reports zero mismatches
        unless=(
            r"\b(?:0|[Nn]o) mismatch"
            r"|[Mm]ismatched collectives?(?: (?:count|number|total)\b|:)[:=]? *0\b"
        ),
        example="RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=0, OpType=_ALLGATHER_BASE, TensorShape=[359, 1])",
        counterexample="[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)",
        source="aurekaresearch/OpenDDE#23",
    ),
    Rule(
        kind=TIMEOUT,
        patterns=(
            r"[Ww]atchdog caught collective operation timeout",
            # Horovod
            r"tensors were submitted to be reduced, gathered or broadcasted by subset of ranks",
            r"Timed out waiting \d+ms for (?:recv|send)",
            r"Heartbeat monitor timed out",
            r"no heartbeat of its watchdog",
            r"collective operation timeout",
            r"ran for \d+ milliseconds before timing out",
            r"Some NCCL operations have failed or timed out",
            r"monitoredBarrier",
            r"Rank \d+ (?:successfully reached|failed to pass) monitoredBarrier",
            r"last enqueued (?:NCCL )?work",
            r"(?:failure|timeout\)) detected by watchdog",
            r"gloo.{0,120}\b[Tt]imed? ?out\b",
            r"Application timeout caused pair closure",
            r"DistBackendError.{0,120}[Tt]imeout",
            # HCCL, the communication library for Ascend devices
            r"(?:[Gg]etting socket|[Ww]ait execution of the Notify register) times out",
            r"[Tt]imeout at NCCL work",
        ),
        error_patterns=(
            r"[HNR]CCL.{0,40}timed? ?out",
            r"\[Rank \d+\].{0,80}[Tt]imeout",
            r"Watchdog .{0,80}(?:timeout|timed out)",
            r"collective .{0,60}(?:hang|stuck|timed out)",
            r"barrier .{0,40}timed out",
            r"Timeout\(ms\)=",
            r"timed out after \d+ seconds?.{0,40}(?:collective|barrier|all)",
            r"process group .{0,60}timeout",
        ),
        example=(
            "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
            "OpType=ALLREDUCE)"
        ),
        # A trainer prints its settings.
        counterexample="FaultTolerance(enable=False, process_group='gloo', process_group_timeout_ms=10000)",
        source="meta-pytorch/torchtune#2093",
        in_warnings=True,
    ),
    Rule(
        kind=PEER_DIED,
        patterns=(
            r"Connection (?:closed|reset) by (?:remote )?peer",
            r"ncclRemoteError",
            r"[Bb]roken pipe",
            r"\[Errno (?:32|104)\]",
            r"unexpected (?:socket )?EOF(?!, expected)",
            r"socket EOF",
            r"Socket closed",
            r"remote (?:process|peer) .{0,40}(?:exited|died|closed)",
            r"TCPStore server has shut down",
            r"should dump\"? flag",
            r"recvValue failed",
            r"recvBytes",
            r"sendBytes.{0,60}fail",
            r"Read error \[",
            r"Write error \[",
            r"died from signal",
            r"rank \d+ .{0,60}(?:died|exited|killed)",
            r"Child process .{0,60}exited",
            r"peer .{0,60}(?:disconnected|died|closed)",
            r"_pmi\w*.{0,60}fail",
            r"PMI.{0,40}(?:socket|recv)",
            r"[Ff]ailed to recv, got 0 bytes",
            r"connection lost",
            r"lost connection",
            r"Transport endpoint is not connected",
            (
                r"NCCL WARN .{0,60}(?:[Cc]onnection|remote|peer|socket|recv|send"
                r"|Net).{0,60}(?:closed|fail|lost|reset|error)"
            ),
            r"call to recv failed",
            r"socketProgress",
            r"ncclSocket\w+.{0,80}(?:fail|error)",
            r"gloo.{0,120}(?:[Cc]onnection|no error|pair\.cc)",
            r"connectFullMesh failed",
            r"ranks? .{0,40}(?:has|have) (?:exited|died|left)",
            r"BAD TERMINATION",
            r"EXIT CODE: (?:9|134|139|143)",
            r"KILLED BY SIGNAL: (?:9|15)",
            r"THE EXIT STRING: (?!Killed)",
            r"control_cb .{0,60}assert \(!closed\) failed",
            r"ncclSystemError",
            r"unhandled system error",
            r"ncclInternalError",
            r"A process .{0,60}exited (?:prematurely|unexpectedly)",
            r"one of its peers",
        ),
        # A web server ended a download.
        unless=r"message body|chunked read",
        counterexample="Error occurred: peer closed connection without sending complete message body",
        example=(
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection "
            "closed by peer [172.28.0.12]:43185"
        ),
        source="CGCL-codes/pFedSD#3",
        in_warnings=True,
    ),
)
