"""Ways to die in the middle of a save. Each is patched into a forked rank before it trains (see
patched.py).
"""

import os
import resource
import signal
import time

from runbook.training.checkpoints import folders, state, torch_dist

SAVES = {"count": 0}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def _on_second_save(function, *, before=True):
    """Die in this function during the second save. The first save stays complete."""

    def wrapped(*arguments, **options):
        SAVES["count"] += 1
        if SAVES["count"] == 2 and before:
            die()
        result = function(*arguments, **options)
        if SAVES["count"] == 2:
            die()
        return result

    return wrapped


def after_begin():
    folders.begin_checkpoint = _on_second_save(folders.begin_checkpoint, before=False)


def between_shards():
    """Let the first rank die after writing its own shards, and the last rank before it begins."""
    writing = torch_dist.ShardWriter
    writing.write = _on_second_save(writing.write, before=os.environ["RANK"] != "0")


def before_metadata():
    folders.seal_checkpoint = _on_second_save(folders.seal_checkpoint)


def before_rename():
    original = folders.sync_folder

    def wrapped(folder):
        if folder.name.endswith(".part"):
            SAVES["count"] += 1
            if SAVES["count"] == 2:
                die()
        original(folder)

    folders.sync_folder = wrapped


def before_tracker():
    folders.write_tracker = _on_second_save(folders.write_tracker)


def before_pruning():
    folders.write_tracker = _on_second_save(folders.write_tracker, before=False)


def no_room():
    """Act like a disk where no file can grow beyond 300 kB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))


def no_space():
    """Act like a disk that reports that it is full."""
    usage = type("Usage", (), {"free": 1000, "total": 2000})
    state.shutil.disk_usage = lambda path: usage


def little_space():
    """Act like a disk with space for two saves of the tiny model, on which nobody else writes."""
    usage = type("Usage", (), {"free": 6_000_000, "total": 100_000_000})
    state.shutil.disk_usage = lambda path: usage


def without_tensorboard():
    import sys

    sys.modules["torch.utils.tensorboard"] = None


def slow_writer():
    """Delay every file by half a second."""
    writing = torch_dist.ShardWriter
    original = writing.write

    def wrapped(self):
        time.sleep(0.5)
        return original(self)

    writing.write = wrapped
