"""Rules for services around a training: trackers, object stores, Kubernetes, Ray and packages."""

from runbook.results.failures.kinds import (
    ABI,
    CONTAINER,
    HOST_MEMORY,
    HUB,
    MODULE,
    REFUSED_JOB,
    SHARED_MEMORY,
    TIMEOUT,
    TRACKER,
)
from runbook.results.failures.rule import Level, NextStep, Rule

TRACKER_RULES = (
    Rule(
        kind=TRACKER,
        patterns=(
            r"api_key not configured",
            r"wandb(?:\.\w+)*\.(?:Usage|Comm|Authentication|MailboxHandle)\w*Error",
            r"mlflow\.exceptions\.\w+Exception",
            r"comet_ml(?:\.\w+)*\.\w+(?:Error|Exception)",
            r"neptune(?:\.\w+)*\.Neptune\w+",
        ),
        example="wandb: ERROR api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
        counterexample="wandb: Currently logged in as: me. Use `wandb login --relogin` to force relogin",
        source="OptimalScale/LMFlow#65",
    ),
    # The tracker process often continues, and so does training.
    Rule(
        kind=TRACKER,
        error_patterns=(r"wandb.{0,80}(?:error|Network|failed)",),
        example="wandb: ERROR Network error (ConnectTimeout), giving up",
        counterexample="wandb: Network error resolved after 0:00:07, resuming normal operation.",
        source="Weights & Biases, a message of wandb/sdk/lib/retry.py",
        may_go_on=True,
    ),
)
STORE_RULES = (
    Rule(
        kind=HUB,
        patterns=(
            r"\b(?:No|Partial|Default)CredentialsError",
            r"Unable to locate credentials",
            r"\((?:Expired\w*|Invalid(?:AccessKeyId|Token)|SignatureDoesNotMatch)\) when calling",
            r"EndpointConnectionError",
            r"google\.api_core\.exceptions\.(?:Forbidden|Unauth\w+|NotFound)",
            r"azure\.core\.exceptions\.(?:ClientAuthentication|ResourceNotFound|ServiceRequest)Error",
            r"SSLCertVerificationError",
            r"CERTIFICATE_VERIFY_FAILED",
            r"DataFilesNotFoundError",
        ),
        example="botocore.exceptions.NoCredentialsError: Unable to locate credentials",
        counterexample="Found credentials in shared credentials file: ~/.aws/credentials",
        source="mlfoundations/dclm#29",
    ),
    Rule(
        kind=HUB,
        patterns=(
            r"\((?:SlowDown|Throttling\w*|RequestLimitExceeded)\) when calling",
            r"over its data quota",
        ),
        example=(
            "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the "
            "PutObject operation: Please reduce your request rate."
        ),
        counterexample="s3 retries after SlowDown: 3",
        source="Amazon S3, the error code SlowDown",
        decision=NextStep.RETRY_AFTER_WAIT,
    ),
)
POD_RULES = (
    # The kubelet tries a mount again, so the pod may still start.
    Rule(
        kind=CONTAINER,
        patterns=(
            r"MountVolume\.\w+ failed for volume",
            r"Unable to (?:attach or )?mount volumes",
            r"\bFailedMount\b",
            r"[Ff]ailed ?[Cc]reate ?[Pp]od ?[Ss]and[Bb]ox",
        ),
        example='MountVolume.SetUp failed for volume "nfs" : mount failed: exit status 32',
        counterexample='MountVolume.SetUp succeeded for volume "default-token-4vxnn"',
        source="huggingface/dataset-viewer#270",
        may_go_on=True,
        in_warnings=True,
    ),
    Rule(
        kind=CONTAINER,
        patterns=(
            r"\bCreateContainer(?:Config)?Error\b",
            r"\bRunContainerError\b",
            r"\bInvalidImageName\b",
            r"(?:secret|configmap) \"[^\"]+\" not found",
            r"container create failed: ",
        ),
        example='Error: secret "hf-token" not found',
        counterexample='secret "hf-token" created',
        source="Kubernetes, the reasons of a waiting container (pkg/kubelet/images, pkg/kubelet/container)",
        in_warnings=True,
    ),
    Rule(
        kind=REFUSED_JOB,
        patterns=(
            r"nodes are available: .{0,200}(?:untolerated taint|didn't match|had taint|affinity)",
            r"No available node types can fulfill resource request",
            r"\bInsufficientInstanceCapacity\b",
            r"ZONE_RESOURCE_POOL_EXHAUSTED",
            r"CapacityError: Unable to provision",
        ),
        example="0/5 nodes are available: 5 node(s) had untolerated taint {nvidia.com/gpu: present}.",
        counterexample="3 nodes are available, 2 are drained",
        source="Kubernetes, an event of the scheduler",
        level=Level.SYMPTOM,
        decision=NextStep.RETRY_AFTER_WAIT,
        in_warnings=True,
    ),
)
RAY_RULES = (
    # Ray keeps objects in /dev/shm.
    Rule(
        kind=SHARED_MEMORY,
        patterns=(r"ObjectStoreFullError",),
        example="ray.exceptions.ObjectStoreFullError: Failed to put object",
        counterexample="object store: 3 of 10 GB used, spilling to disk",
        source="Ray, python/ray/exceptions.py",
        also=HOST_MEMORY,
        check="`ray memory` lists the objects; `df -h /dev/shm` shows whether the store may grow.",
    ),
    Rule(
        kind=MODULE,
        patterns=(r"RuntimeEnvSetupError",),
        example="ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment.",
        counterexample="(raylet) Runtime environment set up in 3 s",
        source="Ray, python/ray/exceptions.py",
        level=Level.SYMPTOM,
    ),
    Rule(
        kind=TIMEOUT,
        patterns=(r"ray\.exceptions\.GetTimeoutError",),
        example="ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.",
        counterexample="concurrent.futures._base.TimeoutError: Get timed out",
        source="Ray, python/ray/exceptions.py",
    ),
)
PACKAGE_RULES = (
    # A script without `set -e` continues with the packages it has.
    Rule(
        kind=MODULE,
        patterns=(
            r"^ResolvePackageNotFound\b",
            r"\bPackagesNotFoundError\b",
            r"UnsatisfiableError\b",
            r"\bResolutionImpossible\b",
            r"requires a different Python",
            r"Could not solve for environment specs",
            r"No solution found when resolving dependencies",
        ),
        error_patterns=(r"externally-managed-environment",),
        example="ResolvePackageNotFound: ",
        counterexample="Resolved 41 packages in 2 ms",
        source="pydata/xarray#3549",
        may_go_on=True,
    ),
    Rule(
        kind=MODULE,
        patterns=(r"Failed to import \S+ because of the following error",),
        example=(
            "RuntimeError: Failed to import transformers.models.llama.modeling_llama because of "
            "the following error (look up to see its traceback):"
        ),
        counterexample="Failed to import wandb, logging to the console",
        source="transformers, a message of src/transformers/utils/import_utils.py",
        level=Level.SYMPTOM,
    ),
    Rule(
        kind=MODULE,
        patterns=(r"Cannot find a working triton installation",),
        example="RuntimeError: Cannot find a working triton installation.",
        counterexample="triton is not installed, using the eager backend",
        source="PyTorch, a message of torch/_inductor/exc.py",
    ),
    Rule(
        kind=ABI,
        patterns=(r"RuntimeError: Numpy is not available",),
        example="RuntimeError: Numpy is not available",
        counterexample="numpy is not available, using lists",
        source="PyTorch, a message of torch/csrc/utils/tensor_numpy.cpp",
    ),
)

SERVICE_RULES = (
    *TRACKER_RULES,
    *STORE_RULES,
    *POD_RULES,
    *RAY_RULES,
    *PACKAGE_RULES,
)
