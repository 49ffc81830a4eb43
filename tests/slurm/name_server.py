"""`python name_server.py NAME ADDRESS`: a name server on the second node that knows one name.

It answers queries for the IPv4 address of this name, and says that no other name exists (RFC 1035).
"""

from __future__ import annotations

import socket
import struct
import sys

SERVER = ("10.66.0.2", 53)
MOST_BYTES = 512
HEADER_BYTES = 12
IPV4_RECORD = 1
INTERNET = 1
IS_ANSWER = 0x8180
NO_SUCH_NAME = 0x8183
POINTER_TO_NAME = 0xC000 | HEADER_BYTES
SECONDS_TO_KEEP = 1


def answer(query: bytes, name: str, address: str) -> bytes:
    """Return the answer to a query."""
    end_of_name = query.index(b"\0", HEADER_BYTES)
    question = query[HEADER_BYTES : end_of_name + 5]
    asked_name = query[HEADER_BYTES + 1 : HEADER_BYTES + 1 + query[HEADER_BYTES]].decode()
    asked_kind = struct.unpack_from("!H", query, end_of_name + 1)[0]
    is_known = asked_name == name
    has_record = is_known and asked_kind == IPV4_RECORD
    flags = IS_ANSWER if is_known else NO_SUCH_NAME
    header = query[:2] + struct.pack("!5H", flags, 1, int(has_record), 0, 0)
    record = b""
    if has_record:
        packed = socket.inet_aton(address)
        record = struct.pack(
            "!3HIH", POINTER_TO_NAME, IPV4_RECORD, INTERNET, SECONDS_TO_KEEP, len(packed)
        )
        record += packed
    return header + question + record


def main() -> None:
    """Answer queries until the node ends."""
    name, address = sys.argv[1:]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(SERVER)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            query, client = server.recvfrom(MOST_BYTES)
            server.sendto(answer(query, name, address), client)


if __name__ == "__main__":
    main()
