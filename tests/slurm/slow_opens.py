"""A file system with slow metadata: opening any file on the node's root file system takes longer.

Run inside the node's mount namespace, with the seconds as argument. It ends with the node.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import time
from collections import deque

# linux/fanotify.h
CLASS_CONTENT = 0x04
UNLIMITED_QUEUE = 0x10
MARK_ADD = 0x01
MARK_MOUNT = 0x10
OPEN_PERMISSION = 0x00010000
ALLOW = 1
AT_FDCWD = -100
EVENT = struct.Struct("=IBBHQii")
"""struct fanotify_event_metadata."""
RESPONSE = struct.Struct("=iI")


def watch_root() -> int:
    """Make the kernel ask this process before each open. Return the descriptor to read its
    questions from.
    """
    library = ctypes.CDLL(None, use_errno=True)
    group = library.fanotify_init(CLASS_CONTENT | UNLIMITED_QUEUE, os.O_RDONLY)
    mask = ctypes.c_uint64(OPEN_PERMISSION)
    if group < 0 or library.fanotify_mark(group, MARK_ADD | MARK_MOUNT, mask, AT_FDCWD, b"/"):
        raise OSError(ctypes.get_errno(), "fanotify")
    return int(group)


def answer_late(group: int, seconds: float) -> None:
    """Allow each open this many seconds after it was requested, forever."""
    held: deque[tuple[float, int]] = deque()
    while True:
        wait = max(0.0, held[0][0] - time.monotonic()) if held else None
        if select.select([group], [], [], wait)[0]:
            content = os.read(group, 1 << 16)
            now = time.monotonic()
            for event in EVENT.iter_unpack(content):
                descriptor = event[5]
                held.append((now + seconds, descriptor))

        while held and held[0][0] <= time.monotonic():
            _, descriptor = held.popleft()
            os.write(group, RESPONSE.pack(descriptor, ALLOW))
            os.close(descriptor)


def main() -> None:
    """Hold up opens until the node ends."""
    seconds = float(sys.argv[1])
    group = watch_root()
    # From now on, this process must open no file.
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    answer_late(group, seconds)


if __name__ == "__main__":
    main()
