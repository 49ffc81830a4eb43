"""Facts about environment variables, as seen by a program in the job."""

import hashlib
import os
import re
from pathlib import Path

from runbook.node_checks.answers import Facts

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CRED|AUTH|COOKIE", re.IGNORECASE)
"""Matches variable names that suggest a secret. Only a checksum of the value is written."""
CREDENTIALS = re.compile(r"://[^/\s@]+@")
"""An address that contains a user or password, such as for a proxy or a database."""
LONGEST_VALUE = 2000


def look_at_environment() -> Facts:
    """Return each variable with its value, or with a checksum of a value that may be secret."""
    facts: Facts = {}
    for name, value in os.environ.items():
        may_be_secret = SECRET.search(name) or CREDENTIALS.search(value)
        facts[name] = checksum(value) if may_be_secret else value[:LONGEST_VALUE]
    return facts


def checksum(value: str) -> str:
    """Return a short checksum, which only shows whether two secrets are equal."""
    return f"(checksum {hashlib.sha256(value.encode()).hexdigest()[:8]})"


def look_at_named_files() -> Facts:
    """Return the variables that name a file or folder which does not exist here."""
    absent = {}
    for name in FILE_VARIABLES:
        # The loader treats spaces in LD_PRELOAD like colons, and expands $LIB itself.
        for path in os.environ.get(name, "").replace(" ", ":").split(":"):
            if path.startswith("/") and "$" not in path and not Path(path).exists():
                absent[name] = path
    return {"absent": absent}


FILE_VARIABLES = (
    "CUDA_HOME",
    "CUDA_PATH",
    "HF_HOME",
    "LD_PRELOAD",
    "MPI_HOME",
    "NCCL_CONF_FILE",
    "NCCL_TOPO_FILE",
    "PYTHONHOME",
    "REQUESTS_CA_BUNDLE",
    "ROCM_HOME",
    "ROCM_PATH",
    "SSL_CERT_FILE",
    "TORCH_HOME",
)
"""Variables that name a file or folder for which programs have no substitute."""
