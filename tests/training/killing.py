"""Ways to die in the middle of a save: each is put into a forked rank before it trains (see zygote.py)."""

import os
import resource
import signal
import time

from runbook.training import checkpoints, saving, sharded_files

SAVES = {"count": 0}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def _on_second_save(function, *, before=True):
    """Die at this function of the second save; the first one is left whole."""

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
    checkpoints.begin = _on_second_save(checkpoints.begin, before=False)


def between_shards():
    """The first rank dies when its own shards are written; the last rank before it begins."""
    writing = sharded_files.Writing
    writing.write = _on_second_save(writing.write, before=os.environ["RANK"] != "0")


def before_metadata():
    checkpoints.finish = _on_second_save(checkpoints.finish)


def before_rename():
    original = checkpoints.sync_folder

    def wrapped(folder):
        if folder.name.endswith(".part"):
            SAVES["count"] += 1
            if SAVES["count"] == 2:
                die()
        original(folder)

    checkpoints.sync_folder = wrapped


def before_tracker():
    checkpoints.point_to = _on_second_save(checkpoints.point_to)


def before_pruning():
    checkpoints.point_to = _on_second_save(checkpoints.point_to, before=False)


def no_room():
    """A disk on which no file can grow beyond 300 kB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))


def no_space():
    """A disk that says it is full."""
    usage = type("Usage", (), {"free": 1000})
    saving.shutil.disk_usage = lambda path: usage


def without_tensorboard():
    import sys

    sys.modules["torch.utils.tensorboard"] = None


def slow_writer():
    """Files that take half a second more than they should."""
    writing = sharded_files.Writing
    original = writing.write

    def wrapped(self):
        time.sleep(0.5)
        return original(self)

    writing.write = wrapped
