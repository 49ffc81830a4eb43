"""Patches for a forked rank before it trains (see patched.py): a NaN gradient, fp16 on a CPU, and
others.
"""

import dataclasses
import functools
import os
import shutil

import torch

from runbook.plan_file import trainer_requirements
from runbook.training.checkpoints import state as checkpoint_state

from .inside_flips import InsideFlip


def gradient():
    """Make one weight's gradient NaN in the third step."""
    from runbook.training.engines.megatron_engine import MegatronEngine

    compute = MegatronEngine.compute
    calls = []

    def poisoned(self, batches, num_microbatches):
        loss = compute(self, batches, num_microbatches)
        calls.append(loss)
        if len(calls) == 3:
            next(iter(self.models[0].parameters())).main_grad.view(-1)[7] = float("nan")
        return loss

    MegatronEngine.compute = poisoned


def more_numbers():
    """Let the engine report the gradient norm of its first weight, and a different loss."""
    from runbook.training.engines.megatron_engine import MegatronEngine

    update = MegatronEngine.update

    def with_numbers(self, learning_rate):
        gradient = next(iter(self.models[0].parameters())).main_grad
        numbers = {"gradient_norm_of_first": float(gradient.norm()), "loss": -1.0}
        return dataclasses.replace(update(self, learning_rate), numbers=numbers)

    MegatronEngine.update = with_numbers


def fused():
    """Fuse bias with activation, and bias with dropout and sum, into one kernel each, as on a GPU."""
    from torch import _dynamo

    from runbook.training.engines import gpt_model

    chosen = gpt_model._activation

    def compiled(spec):
        found = chosen(spec)
        if shutil.which(
            "g++"
        ):  # torch would continue without compiling, and the test would be meaningless
            _dynamo.config.suppress_errors = False
        return found

    gpt_model.uses_fused_kernels = lambda: True
    gpt_model._activation = compiled


def fp16():
    """Allow fp16 on a CPU. The trainer refuses it because it is slow, but small models can use it."""
    check = trainer_requirements.check
    trainer_requirements.check = lambda spec, world_size, *, fp16: check(
        spec, world_size, fp16=True
    )


class Evil:
    """A pickle that creates a folder on the machine of whoever reads it."""

    def __reduce__(self):
        return os.mkdir, (os.environ["EVIL"],)


def random_state():
    """Let the random state of every checkpoint create a folder when it is read."""
    original = checkpoint_state.random_state

    def wrapped():
        state = original()
        if state.data is not None:
            state.data["evil"] = Evil()
        return state

    checkpoint_state.random_state = wrapped


def count_attention():
    """When the rank ends, write how often attention was computed."""
    from runbook.training import __main__
    from runbook.training.engines import gpt_model

    forward = gpt_model.CausalAttention.forward
    train = __main__.train_rank
    calls = []

    def counted(self, *arguments, **options):
        calls.append(1)
        return forward(self, *arguments, **options)

    def told(spec, *arguments):
        code = train(spec, *arguments)
        spec.path("attention_calls").write_text(str(len(calls)))
        return code

    gpt_model.CausalAttention.forward, __main__.train_rank = counted, told


def wrong_attention():
    """Make attention wrong by one bit in the third of four layers, the second time a step begins."""
    from runbook.training.engines import gpt_model

    forward = gpt_model.CausalAttention.forward
    calls = []

    def wrong(self, *arguments, **options):
        output = forward(self, *arguments, **options)
        calls.append(1)
        if len(calls) == 4 + 3:
            number = output.data.view(-1)[7:8]
            number.copy_(torch.nextafter(number, torch.tensor(9.0)))
        return output

    gpt_model.CausalAttention.forward = wrong


def inside_flips():
    """Flip one bit inside a block in a layer, when each step is computed for the first time."""
    from runbook.training.replay.replayer import Replayer

    compute = Replayer._pass

    def wrong_pass(self, first, num_microbatches, number):
        rank = torch.distributed.get_rank()
        flip = InsideFlip.of(self._iteration, torch.distributed.get_world_size())
        if number != 0 or rank != flip.rank:
            return compute(self, first, num_microbatches, number)
        (model,) = self._engine.models
        name = f"layers.{flip.layer - 1}."
        (module,) = (
            module
            for path, module in model.named_modules()
            if name in path and path.endswith(f".{flip.module}")
        )
        handle = module.register_forward_hook(functools.partial(flip_output, flip))
        try:
            return compute(self, first, num_microbatches, number)
        finally:
            handle.remove()

    Replayer._pass = wrong_pass


def flip_output(flip, _module, _inputs, output):
    """Flip the bit in the module output, or in its gradient."""
    tensor = output[0] if isinstance(output, tuple) else output
    if flip.part == "forward":
        tensor.data.copy_(flipped(flip, tensor))
    else:
        tensor.register_hook(functools.partial(flipped, flip))


def flipped(flip, tensor):
    """Return the tensor with the bit flipped."""
    wrong = tensor.detach().clone()
    words = wrong.view(-1).view(torch.int32)
    words[flip.element % len(words)] ^= 1 << flip.bit
    return wrong
