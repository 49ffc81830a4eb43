"""Finds the file system for a path, and whether other nodes share it."""

import os
from dataclasses import dataclass
from pathlib import Path

NETWORK_TYPES = (
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "cifs",
    "smb3",
    "wekafs",
    "panfs",
    "pvfs2",
    "orangefs",
    "afs",
    "9p",
    "dvs",
    "glusterfs",
)
"""File system types in /proc/self/mountinfo that nodes share."""


@dataclass(frozen=True)
class Mount:
    """A line in /proc/self/mountinfo."""

    point: str
    kind: str
    options: str

    @property
    def is_read_only(self) -> bool:
        """Return whether the mount is read-only."""
        return "ro" in self.options.split(",")

    @property
    def is_without_programs(self) -> bool:
        """Return whether the mount prevents programs and libraries from running (noexec)."""
        return "noexec" in self.options.split(",")

    @property
    def is_shared(self) -> bool:
        """Return whether other nodes see the same files."""
        base = self.kind.removeprefix("fuse.")
        return base in NETWORK_TYPES


def mount_of(path: Path) -> Mount:
    """Return the mount containing a path. If the path is a link, its target counts."""
    return parse_mounts(Path("/proc/self/mountinfo").read_text(), os.path.realpath(path))


def parse_mounts(text: str, path: str) -> Mount:
    r"""Return the mount that contains `path`, given the text of mountinfo.

    Of the mount points that contain the path, the longest one is used.

    >>> parse_mounts("1 1 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /data ro,noatime - nfs4 s:/h rw",
    ... "/data/me")
    Mount(point='/data', kind='nfs4', options='ro,noatime')
    """
    best = Mount("", "", "")
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 6 or not after:
            continue
        point = fields[4].replace("\\040", " ")
        holds = path == point or path.startswith(point.rstrip("/") + "/")
        if holds and len(point) >= len(best.point):
            best = Mount(point, after.split()[0], fields[5])

    return best
