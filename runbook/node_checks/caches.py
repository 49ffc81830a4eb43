"""Finds the caches for compiled kernels and for downloads, and whether files can be written there."""

import contextlib
import itertools
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from runbook.node_checks.answers import Facts
from runbook.node_checks.mounts import mount_of
from runbook.node_checks.written_files import FULL, write_error


@dataclass(frozen=True)
class Cache:
    """A variable that sets the folder for a cache, and the default folder."""

    variable: str
    default: str
    source: str
    holds_libraries: bool = False
    """Whether the program loads compiled libraries from the cache, which `noexec` prevents."""
    waits_for_lock: bool = False
    """Whether a build waits while a lock file exists.

    Triton locks such a file instead, and does not delete it.
    """


CACHES = (
    Cache(
        "TRITON_CACHE_DIR",
        "~/.triton/cache",
        "triton/knobs.py, cache_knobs",
        holds_libraries=True,
    ),
    Cache(
        "TORCHINDUCTOR_CACHE_DIR",
        "{temporary}/torchinductor_{user}",
        "torch/_inductor/runtime/cache_dir_utils.py",
        holds_libraries=True,
    ),
    Cache(
        "TORCH_EXTENSIONS_DIR",
        "~/.cache/torch_extensions",
        "torch/utils/cpp_extension.py",
        holds_libraries=True,
        waits_for_lock=True,
    ),
    Cache("CUDA_CACHE_PATH", "~/.nv/ComputeCache", "CUDA programming guide, environment variables"),
    Cache(
        "MIOPEN_USER_DB_PATH",
        "~/.config/miopen",
        "MIOpen documentation, find and performance database",
    ),
    Cache("MIOPEN_CUSTOM_CACHE_DIR", "~/.cache/miopen", "MIOpen documentation, kernel cache"),
)

STORES = (
    Cache("HF_HOME", "~/.cache/huggingface", "huggingface_hub/constants.py"),
    Cache("HF_HUB_CACHE", "", "huggingface_hub/constants.py"),
    Cache("HF_DATASETS_CACHE", "", "datasets/config.py"),
    Cache("TRANSFORMERS_CACHE", "", "transformers/utils/hub.py"),
    Cache("TORCH_HOME", "", "torch/hub.py"),
    Cache("PYTORCH_KERNEL_CACHE_PATH", "", "aten/src/ATen/native/cuda/jit_utils.cpp"),
    Cache("XDG_CACHE_HOME", "", "XDG Base Directory Specification"),
    Cache("NUMBA_CACHE_DIR", "", "Numba, environment variables"),
    Cache("MPLCONFIGDIR", "", "matplotlib, environment variables"),
    Cache("WANDB_DIR", "", "wandb, environment variables"),
    Cache("WANDB_CACHE_DIR", "", "wandb, environment variables"),
)
"""Folders that programs write to if their variable is set. They may be shared.

The default of one of them matters, because upstream programs use it even if no variable is set.
"""

LOCK_NAME = "lock"
"""Name of the lock file for a build (torch/utils/cpp_extension.py, FileBaton).

Another build waits until the file is removed, with no time limit.
"""
OLD_LOCK_SECONDS = 3600.0
"""If a lock is this many seconds old, the build must have ended. No extension takes longer to
build."""
MAX_EXAMINED = 1000
"""At most this many cache entries are searched for locks. Each build has a folder."""


def look_at_caches() -> Facts:
    """Return the folder and the file system type for each cache.

    Also return whether the folder is shared, whether it rejects files, and any lock a killed build
    left there.
    """
    facts: Facts = {}
    for cache in CACHES:
        folder = Path(os.environ.get(cache.variable) or _default(cache)).expanduser()
        mount = mount_of(_nearest(folder))
        facts[cache.variable] = {
            "folder": str(folder),
            "is_set": bool(os.environ.get(cache.variable)),
            "file_system": mount.kind,
            "is_shared": mount.is_shared,
            "refuses_libraries": cache.holds_libraries and mount.is_without_programs,
            "old_lock": _old_lock(folder) if cache.waits_for_lock else "",
            "error": write_error(_nearest(folder)),
        }

    return facts


def look_at_stores() -> Facts:
    """Return, for each folder of `STORES`, whether its variable is set, and why no file fits there.

    A folder that several variables lead to is tried once.
    """
    facts: Facts = {}
    errors: dict[Path, str] = {}
    for store in STORES:
        value = os.environ.get(store.variable, "")
        if not value and not store.default:
            continue
        folder = Path(value or store.default).expanduser()
        nearest = _nearest(folder)
        if nearest not in errors:
            errors[nearest] = write_error(nearest)
        facts[store.variable] = {
            "folder": str(folder),
            "is_set": bool(value),
            "is_full": errors[nearest].startswith(FULL),
            "error": errors[nearest],
        }

    return facts


def _default(cache: Cache) -> str:
    user = os.environ.get("USER", str(os.getuid()))
    return cache.default.format(temporary=tempfile.gettempdir(), user=user)


def _nearest(folder: Path) -> Path:
    """Return the folder, or the nearest existing parent."""
    absolute = folder.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.is_dir())


def _old_lock(folder: Path) -> str:
    """Return a lock left by a build that must have ended, or an empty string."""
    now = time.time()
    entries = itertools.chain(folder.glob("*"), folder.glob("*/*"), folder.glob("*/*/*"))
    # Another build may delete its lock or its folder at this moment.
    with contextlib.suppress(OSError):
        for entry in itertools.islice(entries, MAX_EXAMINED):
            if entry.name == LOCK_NAME and now - entry.stat().st_mtime > OLD_LOCK_SECONDS:
                return str(entry)

    return ""
