"""Reports what the operating system provides to every program on a node.

These are the user account and home folder, device files, and kernel settings.
"""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from runbook.node_checks.answers import Facts
from runbook.node_checks.written_files import write_error

SETTINGS_FOLDER = Path("/proc/sys")
KERNEL_SETTINGS = (
    "net.core.somaxconn",
    "net.ipv4.tcp_retries2",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
    "net.netfilter.nf_conntrack_tcp_timeout_established",
    "kernel.pid_max",
    "vm.max_map_count",
)
"""sysctl settings that connections and large programs depend on."""
FIREWALL_SETTINGS = "net.netfilter."
TRACKED_CONNECTIONS = "net.netfilter.nf_conntrack_count"


@dataclass(frozen=True)
class DeviceFile:
    """A device file, with the numbers the kernel gave to the device."""

    path: str
    major: int
    minor: int


DEVICE_FILES = (
    DeviceFile("/dev/null", 1, 3),
    DeviceFile("/dev/zero", 1, 5),
    DeviceFile("/dev/urandom", 1, 9),
)
"""Device files needed by programs. The numbers are from admin-guide/devices.txt in the kernel."""


def look_at_account() -> Facts:
    """Return the user name in the job, and why no file can be written to the home folder.

    The name is empty if the user database on the node does not have the user.
    """
    user_id = os.getuid()
    try:
        user = pwd.getpwuid(user_id).pw_name
    except KeyError:
        user = ""
    home = Path("~").expanduser()
    return {
        "user_id": user_id,
        "user": user,
        "home": str(home),
        "home_error": write_error(home),
    }


def look_at_devices() -> Facts:
    """Return what is wrong with each device file that is missing or is not the expected device."""
    faults: Facts = {}
    for device in DEVICE_FILES:
        fault = device_fault(device)
        if fault:
            faults[device.path] = fault
    return {"faults": faults}


def device_fault(device: DeviceFile) -> str:
    """Return why a path is not the device, or an empty string."""
    try:
        status = Path(device.path).stat()
    except OSError as error:
        return error.strerror or str(error)

    if not stat.S_ISCHR(status.st_mode):
        return "it is not a device, but a file that a program left in its place"
    if (os.major(status.st_rdev), os.minor(status.st_rdev)) != (device.major, device.minor):
        return "it is a different device"
    if not os.access(device.path, os.R_OK):
        return "it cannot be read"
    return ""


def look_at_kernel_settings() -> Facts:
    """Return the values for KERNEL_SETTINGS, with None for a setting the kernel does not have.

    For a setting with several numbers, return the last one.

    Of the three numbers in tcp_rmem and tcp_wmem, the last one is the largest buffer for a
    connection.

    Firewall settings are left out if the firewall tracks no connection, because they have no effect
    then. If it tracks connections, those in the job are among them.
    """
    is_tracking = bool(kernel_setting(TRACKED_CONNECTIONS))
    settings: Facts = {}
    for name in KERNEL_SETTINGS:
        if is_tracking or not name.startswith(FIREWALL_SETTINGS):
            settings[name] = kernel_setting(name)

    return settings


def kernel_setting(name: str) -> int | None:
    """Return a setting, or None if the kernel does not have it."""
    try:
        numbers = SETTINGS_FOLDER.joinpath(*name.split(".")).read_text().split()
        return int(numbers[-1])
    except (OSError, ValueError, IndexError):
        return None
