"""Requests large memory pages for processes used only to tokenize.

Loading an encoder touches 100 MB of memory for the first time. With 4 KiB pages, this causes 20,000
page faults, and the encoder tables need many entries in the translation buffer (TLB). Large pages
saved a tenth of the CPU time when tokenizing 20 or 160 MB at load 8, and less on an idle machine
(AMD EPYC, virtual machine, 2026-11-28).
"""

import ctypes
import sys

LARGE_PAGE = 2 << 20
HEAP = 256 << 20
"""Address space for the heap in bytes. Only the pages that are touched use memory."""
LARGEST_ON_HEAP = 32 << 20
"""Larger blocks get their own pages, which are returned to the system when the block is freed.

glibc does not accept a higher limit.
"""
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_MADV_HUGEPAGE = 14


def use_large_pages() -> bool:
    """Ask Linux to use 2 MiB pages for the heap. Return whether Linux accepts the request.

    The variable GLIBC_TUNABLES has the same effect, but must be set before the process starts. With
    other systems and C libraries, nothing is changed.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    return hasattr(libc, "gnu_get_libc_version") and _advise(libc)


def _advise(libc: ctypes.CDLL) -> bool:
    """Enlarge the heap, mark it for large pages, and keep its size when memory is freed."""
    libc.sbrk.restype = ctypes.c_void_p
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start: int = libc.sbrk(0)
    libc.mallopt(_M_MMAP_THRESHOLD, LARGEST_ON_HEAP)
    libc.mallopt(_M_TRIM_THRESHOLD, 2 * HEAP)
    libc.mallopt(_M_TOP_PAD, HEAP)
    # No free block is as large as this request, so the heap must grow.
    libc.free(libc.malloc(LARGEST_ON_HEAP // 2))
    end: int = libc.sbrk(0)
    first_page = -(-start // LARGE_PAGE) * LARGE_PAGE
    length = end // LARGE_PAGE * LARGE_PAGE - first_page
    return length > 0 and libc.madvise(first_page, length, _MADV_HUGEPAGE) == 0
