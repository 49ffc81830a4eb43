"""Distinguishes public addresses and hosts from those that identify a private machine."""

import ipaddress
import re

PUBLIC_HOSTS = frozenset(
    {
        "arxiv.org",
        "doi.org",
        "wikipedia.org",
        "en.wikipedia.org",
        "www.w3.org",
        "w3.org",
        "pytorch.org",
        "docs.pytorch.org",
        "download.pytorch.org",
        "python.org",
        "docs.python.org",
        "pypi.org",
        "files.pythonhosted.org",
        "conda.io",
        "docs.conda.io",
        "nvidia.com",
        "www.nvidia.com",
        "docs.nvidia.com",
        "developer.nvidia.com",
        "nvcr.io",
        "ngc.nvidia.com",
        "catalog.ngc.nvidia.com",
        "rocm.docs.amd.com",
        "docker.io",
        "hub.docker.com",
        "mlcommons.org",
        "deepspeed.ai",
        "www.deepspeed.ai",
        "slurm.schedmd.com",
        "openpmix.github.io",
        "docs.alcf.anl.gov",
        "docs.lumi-supercomputer.eu",
        "docs.aws.amazon.com",
        "aws.amazon.com",
        "efa-installer.amazonaws.com",
        "learn.microsoft.com",
        "jupyter.org",
        "mybinder.org",
        "jupyterlab.readthedocs.io",
        "example.org",
        "example.com",
        "example.net",  # RFC 2606 reserves these names, so no machine has them
    }
)
"""Well-known hosts. Their addresses reveal nothing about who wrote a text."""

CODE_HOSTS = frozenset(
    {
        "github.com",
        "www.github.com",
        "raw.githubusercontent.com",
        "api.github.com",
        "gitlab.com",
        "huggingface.co",
        "hf.co",
        "ghcr.io",
        "quay.io",
        "zenodo.org",
    }
)
PUBLIC_OWNERS = frozenset(
    {
        "nvidia",
        "microsoft",
        "deepspeedai",
        "pytorch",
        "huggingface",
        "eleutherai",
        "bigscience-workshop",
        "bigscience",
        "argonne-lcf",
        "saforem2",
        "henkdr",
        "aws",
        "aws-samples",
        "azure",
        "rocm",
        "openai",
        "openai-community",
        "karpathy",
        "kellerjordan",
        "mlcommons",
        "datasets",
        "docs",
        "jupyter",
        "nteract",
        "python",
        "meta-llama",
        "lumi-supercomputer",
        "facebookresearch",
        "triton-lang",
        "togethercomputer",
        "monology",
        "allenai",
        "ai2",
        "roneneldan",
    }
)
"""Owners on public code hosts with code used in our documents, sites and datasets."""

_ADDRESS = re.compile(
    r"(?<![\w+.-])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>//)"
    r"(?P<user>[^\s/@\"'`<>]*@)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s/:?#\"'`<>()\[\]{},;\\]+)"
    r"(?::\d+)?(?P<path>[/?#][^\s\"'`<>\\]*)?"
)
_OWN_SCHEMES = frozenset({"file", "data"})
"""Schemes that the redactor handles itself."""


def redact_addresses(text: str) -> str:
    """Return a text with addresses and hosts redacted, except for public pages.

    The function redacts `scheme://...`, `user@host:path` as in ssh, registries, and hosts with a
    domain.

    >>> redact_addresses("tcp://head:29400, https://arxiv.org/abs/2005.14165, git@git.acme.io:ml/gpt.git")
    '[address], https://arxiv.org/abs/2005.14165, [address]'
    >>> redact_addresses("from registry.acme.com:5000/ml/gpt:1 to gitlab.company.com; model.safetensors stays")
    'from [address] to [host]; model.safetensors stays'
    """
    text = _ADDRESS.sub(_public_or_address, text)
    text = _SSH.sub("[address]", text)
    return _DOMAIN.sub(_domain, text)


def _is_public(host: str, path: str | None) -> bool:
    """Return whether an address reveals nothing.

    A public page, and code from a public owner, reveal nothing.
    """
    if host in PUBLIC_HOSTS:
        return True
    owner = (path or "").strip("/").partition("/")[0].lower()
    return host in CODE_HOSTS and (owner in PUBLIC_OWNERS or not owner)


def _address_as(text: str) -> str:
    """Return `[address]`, followed by the punctuation that ends the sentence after the address."""
    punctuation = text[len(text.rstrip(".,;:!?)")) :]
    return f"[address]{punctuation}"


def _public_or_address(match: re.Match[str]) -> str:
    """Return a public address unchanged, and `[address]` for any other."""
    scheme = match["scheme"].lower()
    if scheme in _OWN_SCHEMES:
        return match[0]
    host = match["host"].lower().rstrip(".")
    is_page = scheme in ("http", "https", "git+https") and not match["user"]
    if is_page and _is_public(host, match["path"]):
        return match[0]
    if not re.search(r"[A-Za-z0-9\[]", host):
        # A placeholder in text about addresses, such as https://... or scheme://HOST
        return match[0]

    return _address_as(match[0])


_SSH = re.compile(r"(?<![\w.@/+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*:[\w~/.][\w.@+%=~/-]*")
_GENERIC_ENDINGS = (
    "com|org|net|edu|gov|mil|io|ai|dev|app|cloud|tech|systems|biz|co|eu|xyz|internal|intern|intranet"
    "|corp|lan|local|localdomain|localnet|cluster|hpc|svc|arpa|priv"
)
_WITH_THREE_PARTS = (
    "int|network|info|science|home|private|test|invalid"
    "|de|fr|uk|ch|at|nl|be|se|no|fi|dk|it|es|pt|pl|cz|gr|ie|lu|hu|ro|bg|hr|si|sk|ee|lv|lt|is|ru|ua|tr"
    "|il|sa|ae|in|jp|cn|kr|tw|hk|sg|my|th|vn|id|ph|au|nz|ca|us|mx|br|ar|cl|za|ng|eg|ma"
)
_DOMAIN = re.compile(
    r"(?<![\w.@/%$\\-])(?P<host>(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)"
    rf"(?:(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)*(?:{_GENERIC_ENDINGS})"
    # Key, module and file names may end in the same way (container.home, x.in), so such
    # domains need three parts.
    rf"|(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+(?:{_WITH_THREE_PARTS})))"
    r"(?![\w-]|\.\w|\()(?P<rest>:\d+)?(?P<path>/[\w.@+%=~:/-]*)?",
    re.IGNORECASE,
)


def _domain(match: re.Match[str]) -> str:
    """Return `[host]` for a host with a domain.

    A host followed by a port or a path is treated as an address, for example of a container image.
    """
    if _is_public(match["host"].lower(), match["path"]):
        return match[0]
    if not match["rest"] and not match["path"]:
        return "[host]"
    return _address_as(match[0])


_IP4 = r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"
_MAC = (
    r"(?<![\w:-])(?:[0-9A-Fa-f]{2}:){5,19}[0-9A-Fa-f]{2}(?![\w:-])"
    r"|(?<![\w:-])(?:[0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2}(?![\w:-])"
    r"|(?<![\w.])(?:[0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4}(?![\w.])"
)
"""MAC addresses of network cards.

InfiniBand addresses have 20 parts, and switches write MAC addresses as 0011.2233.4455.
"""
_GUID = r"\b0x[0-9A-Fa-f]{16}\b|(?<![\w:])(?:[0-9A-Fa-f]{4}:){3}[0-9A-Fa-f]{4}(?![\w:])"
_NUMBERS = re.compile(rf"{_MAC}|{_GUID}|{_IP4}")
_IP6 = re.compile(
    r"(?<![\w:.])(?=[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:)[0-9A-Fa-f:.]{3,45}(?:%\w+)?(?![\w:])"
)
_DEVICE = re.compile(
    r"\b(?:GPU-|MIG-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE
)
"""A UUID, which may identify a GPU, a subscription or a tenant."""
_ARN = re.compile(r"\barn:aws[\w-]*:[\w-]*:[\w-]*:\d*:[\w+=,.@:/*-]+")


def redact_numbers(text: str) -> str:
    """Return a text without numbers that identify machines.

    These are IP, MAC and InfiniBand addresses, UUIDs, and Amazon resource names.

    >>> redact_numbers("10.0.0.7 fe80::1ff:fe23:4567:890a 00:1A:2b:3c:4d:5e at 12:30:59")
    '[address] [address] [address] at 12:30:59'
    """
    text = _DEVICE.sub("[id]", text)
    text = _ARN.sub("[id]", text)
    text = _IP6.sub(_if_ip6, text)
    return _NUMBERS.sub("[address]", text)


def _if_ip6(match: re.Match[str]) -> str:
    """Return `[address]` for an IPv6 address.

    Other text, and addresses that do not belong to a machine, stay unchanged.
    """
    number = match[0].rstrip(".")
    try:
        address = ipaddress.IPv6Address(number.partition("%")[0])
    except ValueError:
        return match[0]

    if address.is_loopback or address.is_unspecified:
        return match[0]
    dots = match[0][len(number) :]
    return f"[address]{dots}"
