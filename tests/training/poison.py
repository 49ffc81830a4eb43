"""Things put into a forked rank before it trains (see patched.py): a gradient that is no number, fp16 on a CPU."""

import os
import shutil

import torch

from runbook.plan_file import limits
from runbook.training.checkpoints import state as checkpoint_state


def gradient():
    """The gradient of the third step is no number in one weight."""
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


def fused():
    """Bias with activation, and with dropout and sum, are one kernel each, as on a GPU."""
    from torch import _dynamo

    from runbook.training.engines import gpt_model

    chosen = gpt_model._activation

    def compiled(spec):
        found = chosen(spec)
        if shutil.which(
            "g++"
        ):  # torch would go on without compiling, and the test would compare nothing
            _dynamo.config.suppress_errors = False
        return found

    gpt_model.uses_fused_kernels = lambda: True
    gpt_model._activation = compiled


def fp16():
    """fp16 is refused on a CPU because it is slow; small models can be trained in it all the same."""
    check = limits.check
    limits.check = lambda spec, world_size, *, fp16: check(spec, world_size, fp16=True)


class Evil:
    """What a pickle can do to who reads it."""

    def __reduce__(self):
        return os.mkdir, (os.environ["EVIL"],)


def random_state():
    """The random state of every checkpoint makes a folder when it is read."""
    original = checkpoint_state.random_state

    def wrapped():
        state = original()
        if state.data is not None:
            state.data["evil"] = Evil()
        return state

    checkpoint_state.random_state = wrapped


def count_attention():
    """Write how often attention was computed when the rank ends."""
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
    """The attention of the third of four layers is wrong by one bit, the second time that a step begins."""
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
