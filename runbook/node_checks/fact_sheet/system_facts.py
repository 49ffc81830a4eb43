"""Facts about kernel, processor and memory on a node, and about process limits."""

import os
import platform
import re
import resource
import time
from pathlib import Path

from runbook.node_checks.answers import Facts

PROC = Path("/proc")
PROCESSORS = Path("/sys/devices/system/cpu")
OF_ONE_MACHINE = (
    "root=",
    "ip=",
    "BOOT_IMAGE=",
    "resume=",
    "nfsroot=",
    "hostname=",
    "BOOTIF=",
    "rd.",
)
"""Prefixes of words in the kernel command line that name a disk or an address on this machine."""
FILES = {
    "clock source": Path("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    "frequency governor": PROCESSORS / "cpu0/cpufreq/scaling_governor",
    "largest frequency": PROCESSORS / "cpu0/cpufreq/cpuinfo_max_freq",
    "boost": PROCESSORS / "cpufreq/boost",
    "hyper-threads": PROCESSORS / "smt/control",
    "huge pages": Path("/sys/kernel/mm/transparent_hugepage/enabled"),
    "huge pages, defragmentation": Path("/sys/kernel/mm/transparent_hugepage/defrag"),
    "NUMA nodes": Path("/sys/devices/system/node/online"),
    "out-of-memory score": PROC / "self/oom_score_adj",
    "security module": Path("/sys/kernel/security/lsm"),
    "SELinux enforces": Path("/sys/fs/selinux/enforce"),
}
LOGIN_SETTINGS = Path("/etc/systemd/logind.conf")
FIELDS_OF_STATUS = ("CapEff", "NoNewPrivs", "Seccomp", "Umask", "Mems_allowed_list")
FIELDS_OF_MEMORY = ("SwapTotal", "HugePages_Total", "Hugepagesize")
FIELDS_OF_PROCESSOR = ("model name", "microcode", "flags", "Features", "CPU part")


def look_at_system() -> Facts:
    """Return the facts about the kernel, the processor and this process."""
    facts: Facts = {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "kernel's command line": command_line(_text(PROC / "cmdline")),
        "C library": " ".join(platform.libc_ver()),
        "distribution": _distribution(),
        "cores": str(os.cpu_count()),
        "usable cores": str(len(os.sched_getaffinity(0))),
        "priority (nice)": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "scheduling policy": str(os.sched_getscheduler(0)),
        "RemoveIPC of logind": _remove_ipc(),
        "time zone": time.strftime("%Z %z"),
        "/proc": "mounted" if (PROC / "self").exists() else "empty",
        "/sys": "mounted" if Path("/sys/class/net").exists() else "empty",
    }
    for name, path in FILES.items():
        facts[name] = _text(path)
    facts |= _fields(_text(PROC / "self/status"), FIELDS_OF_STATUS)
    facts |= _fields(_text(PROC / "meminfo"), FIELDS_OF_MEMORY)
    facts |= _fields(_text(PROC / "cpuinfo").partition("\n\n")[0], FIELDS_OF_PROCESSOR)
    return facts


def command_line(text: str) -> str:
    """Return the words in a kernel command line that do not name a disk or an address.

    >>> command_line("BOOT_IMAGE=/vmlinuz root=UUID=1234 ro mitigations=off")
    'ro mitigations=off'
    """
    return " ".join(word for word in text.split() if not word.startswith(OF_ONE_MACHINE))


def _remove_ipc() -> str:
    """Return RemoveIPC as set in the logind files. Later values replace earlier ones."""
    files = [LOGIN_SETTINGS, *sorted(LOGIN_SETTINGS.with_name("logind.conf.d").glob("*.conf"))]
    text = "\n".join(_text(path) for path in files)
    stated = re.findall(r"^[ \t]*RemoveIPC[ \t]*=[ \t]*(\S+)", text, re.MULTILINE)
    return stated[-1] if stated else "(not set)"


def look_at_all_limits() -> Facts:
    """Return each limit on the process, soft and hard."""
    facts: Facts = {}
    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            soft, hard = resource.getrlimit(getattr(resource, name))
            facts[name] = f"{_limit(soft)}, hard {_limit(hard)}"
    return facts


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _distribution() -> str:
    return _fields(_text(Path("/etc/os-release")).replace("=", ":"), ("PRETTY_NAME",)).get(
        "PRETTY_NAME", ""
    )


def _fields(text: str, names: tuple[str, ...]) -> dict[str, str]:
    """Return the named fields of lines such as `Umask: 0022`."""
    fields = {}
    for name in names:
        match = re.search(rf"^{re.escape(name)}\s*:\s*(.*)$", text, re.MULTILINE)
        if match:
            fields[name] = match[1].strip()
    return fields


def _text(path: Path) -> str:
    """Return the content of a kernel file, or why it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        return f"({error.strerror})"
