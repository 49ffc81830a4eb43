"""A rank waits until rank 0 listens on the same machine."""

import socket
import threading
import time

from runbook.training.process_groups import has_listener, wait_for_listener


def test_a_listener_is_seen_until_it_closes():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert not has_listener(port)
        listener.listen()
        assert has_listener(port)
    assert not has_listener(port)


def test_the_wait_ends_when_a_process_listens():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        late = threading.Timer(0.2, listener.listen)
        began = time.monotonic()
        late.start()
        wait_for_listener(port, seconds=600)
        assert has_listener(port)
        assert 0.15 < time.monotonic() - began < 600
        late.join()


def test_the_wait_is_bounded_where_nothing_listens():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        began = time.monotonic()
        wait_for_listener(port, seconds=0.1)
        assert time.monotonic() - began >= 0.1
        assert not has_listener(port)
