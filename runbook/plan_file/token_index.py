"""Layout of the .idx files for Megatron, which the tokenizer writes and the trainer checks.

MMIDIDX 0 0 | version 1 <Q | dtype code <B | sequences <Q | documents + 1 <Q
lengths int32[sequences] | byte pointers int64[sequences] | document index int64[documents + 1]
"""

import struct

INDEX_MAGIC = b"MMIDIDX\x00\x00"
INDEX_VERSION = 1
INDEX_HEADER = struct.Struct("<9sQBQQ")
DTYPES = {
    1: "<u1",
    2: "<i1",
    3: "<i2",
    4: "<i4",
    5: "<i8",
    6: "<f8",
    7: "<f4",
    8: "<u2",
}
UINT16 = 8
INT32 = 4
"""Type codes used for token ids in Megatron. Ids have two bytes if the vocabulary has fewer than
65,500 tokens, or else four.
"""


def dtype_code(vocabulary: int) -> int:
    """Return the type code for the token ids in a vocabulary.

    >>> dtype_code(50257), dtype_code(65499), dtype_code(65500)
    (8, 8, 4)
    """
    return UINT16 if vocabulary < 65500 else INT32


def token_bytes(vocabulary: int) -> int:
    """Return the bytes per token in a .bin file, for this vocabulary size."""
    return int(DTYPES[dtype_code(vocabulary)][-1])


def index_bytes(sequences: int, entries: int) -> int:
    """Return the bytes in an .idx file with this many sequences and document-index entries.

    >>> index_bytes(0, 1), index_bytes(1000, 1001)
    (42, 20042)
    """
    return INDEX_HEADER.size + 12 * sequences + 8 * entries
