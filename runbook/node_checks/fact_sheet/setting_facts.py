"""Facts about kernel settings (sysctl)."""

from pathlib import Path

from runbook.node_checks.answers import Facts

SETTINGS = Path("/proc/sys")
PATTERNS = (
    "fs/aio-max-nr",
    "fs/file-max",
    "fs/inotify/*",
    "fs/nr_open",
    "fs/pipe-*",
    "kernel/core_pattern",
    "kernel/io_uring_disabled",
    "kernel/msg*",
    "kernel/numa_balancing",
    "kernel/perf_event_paranoid",
    "kernel/pid_max",
    "kernel/sched_*",
    "kernel/sem",
    "kernel/shm*",
    "kernel/threads-max",
    "kernel/yama/ptrace_scope",
    "net/core/*",
    "net/ipv4/conf/all/*",
    "net/ipv4/conf/default/*",
    "net/ipv4/ip_*",
    "net/ipv4/neigh/default/gc_thresh*",
    "net/ipv4/tcp_*",
    "net/ipv6/conf/all/disable_ipv6",
    "user/max_*_namespaces",
    "vm/*",
)
"""Settings on which connections, large programs, containers and file caches depend."""


def look_at_all_settings() -> Facts:
    """Return each setting that can be read, by sysctl name."""
    facts: Facts = {}
    for pattern in PATTERNS:
        for path in sorted(SETTINGS.glob(pattern)):
            name = ".".join(path.relative_to(SETTINGS).parts)
            try:
                facts[name] = " ".join(path.read_text(errors="replace").split())
            except OSError:
                continue
    return facts
