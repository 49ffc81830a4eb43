"""Imports torch, megatron-core and DeepSpeed once and forks a rank whenever it is told to; started by group.py.

A forked rank is a process like any other: it has its own exit code, gets its own signals and can be killed.
"""

import contextlib
import importlib
import json
import os
import sys
import warnings
from pathlib import Path

_IMPORTED = (
    "torch", "torch.utils.tensorboard", "torch.distributed.checkpoint", "megatron.core.distributed",
    "megatron.core.models.gpt.gpt_model", "megatron.core.datasets.gpt_dataset", "runbook.training.__main__",
    "runbook.training.session", "runbook.training.loop", "runbook.training.megatron_engine",
)  # fmt: skip

_AFTER_DEEPSPEED = ("runbook.training.deepspeed_engine", "runbook.training.deepspeed_pipeline")


def serve():
    sys.path.insert(0, str(Path(__file__).parent.parent))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _IMPORTED:
            importlib.import_module(name)
        importlib.import_module("runbook.training.deepspeed_start").load()
        for name in _AFTER_DEEPSPEED:
            importlib.import_module(name)
    answer({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        if "wait" in command:
            answer({"code": os.waitstatus_to_exitcode(os.waitpid(command["wait"], 0)[1])})
            continue
        pid = os.fork()
        if pid == 0:
            become_rank(command)
        answer({"pid": pid})


def answer(message):
    os.write(1, (json.dumps(message) + "\n").encode())


def become_rank(command):
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(command[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(command["environment"])
    sys.argv = ["runbook.training", *command["arguments"]]
    from runbook.training.__main__ import _leave, main

    _leave_on_error = contextlib.ExitStack()
    _leave_on_error.callback(_leave, 1)
    with _leave_on_error:
        try:
            code = None
            if command["patch"]:  # something to do in this rank before the trainer, or instead of it
                module, _, name = command["patch"].partition(":")
                code = getattr(importlib.import_module(module), name)()
            code = main() if code is None else code
        except SystemExit as end:
            code = end.code
        except BaseException:
            sys.excepthook(*sys.exc_info())
            raise
        _leave(code)


if __name__ == "__main__":
    serve()
    os._exit(0)  # nothing is left to be done, and unloading all of it takes seconds
