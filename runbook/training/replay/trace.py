"""Takes fingerprints of the results on a rank.

Fingerprints cover activations, gradients of activations, and gradients of weights.

A fingerprint is the sum of all words in the memory of a tensor. Flipping a bit changes a word by a
power of two, so the sum always changes. Two differences that cancel each other out are not
detected.

The output of a matmul is recorded before the sum over tensor-parallel ranks. After this sum, all
these ranks have a wrong number, and it is unknown where it came from.

If bits are compared and each layer is computed by a single rank, only the ends of its blocks are
watched, which reads a quarter of the bytes. A wrong number within a block reaches the output or a
weight gradient in the block. If it reaches neither, the step is bit-identical to a step without the
error. If norms are compared with a tolerance, a wrong number may become too small to notice, so all
outputs are watched.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from runbook.plan_file.replay_file import BACKWARD, FORWARD, GRADIENT, ComputedPlace
from runbook.training.engines.engine import StepClock
from runbook.training.health import injected_faults

HASHING = "hash_seconds"
"""Name in metrics.jsonl for the part of a step in which fingerprints are computed."""
LAYER_OUTPUT = "output"
"""Name used for the output of a whole layer."""
ALL_OUTPUTS = (
    "embedding",
    "input_layernorm",
    "linear_qkv",
    "core_attention",
    "linear_proj",
    "pre_mlp_layernorm",
    "linear_fc1",
    "linear_fc2",
    LAYER_OUTPUT,
    "final_layernorm",
    "output_layer",
)
"""megatron-core modules with outputs that can be fingerprinted, by the last part of the name."""
ENDS_FORWARD = (
    "embedding",
    "core_attention",
    "linear_proj",
    "linear_fc2",
    LAYER_OUTPUT,
    "final_layernorm",
)
"""Outputs that complete a block, or a kernel other than a matmul."""
ENDS_BACKWARD = ("embedding", "input_layernorm", "linear_proj", LAYER_OUTPUT, "final_layernorm")
"""Outputs with a gradient that completes the backward pass through a block."""
_LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)(?:\.(.*))?")
_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))
_SUMS = {torch.int64: torch.int64, torch.int32: torch.int32}
"""The type used to sum words. int32 is summed in int32, which is seven times as fast as int64 on a
CPU.
"""


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of all words in the memory of a tensor, with overflow discarded.

    The sum stays on the same device as the tensor.
    """
    flat = tensor.detach().reshape(-1)
    num_bytes = flat.numel() * flat.element_size()
    begin = flat.storage_offset() * flat.element_size()
    for size, word in _WORDS:
        if num_bytes % size == 0 and begin % size == 0:
            total: torch.Tensor = flat.view(word).sum(dtype=_SUMS.get(word, torch.int64))
            return total.long()

    raise AssertionError("a tensor always consists of whole bytes")


def norm_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the norm of a tensor. The result stays on the same device."""
    norm: torch.Tensor = torch.linalg.vector_norm(tensor.detach(), dtype=torch.float32)
    return norm.double()


def _flip(tensor: torch.Tensor, element: int, bit: int) -> None:
    """Flip a bit in one element of a tensor in place, to inject a fault."""
    index = []
    for size in reversed(tensor.shape):
        index.append(element % size)
        element //= size

    flipped_index = tuple(reversed(index))
    word = {2: torch.int16, 4: torch.int32}[tensor.element_size()]
    bits = 8 * tensor.element_size()
    bit %= bits
    # In a signed word, a mask with only the highest bit is the smallest number.
    mask = 1 << bit if bit < bits - 1 else -(1 << bit)
    number = tensor[flipped_index].reshape(1).clone()
    tensor[flipped_index] = (number.view(word) ^ mask).view(tensor.dtype)[0]


@dataclass(frozen=True)
class WatchedOutputs:
    """Modules with outputs, or output gradients, that are fingerprinted."""

    forward: tuple[str, ...]
    backward: tuple[str, ...]

    @classmethod
    def of(cls, *, bitwise: bool, ranks_of_a_layer: int) -> "WatchedOutputs":
        """Return the smallest set of outputs needed to find the rank and layer of a wrong number.

        Ranks that compute a layer together (tensor, sequence and context parallelism) exchange
        numbers within blocks. At the end of a block all these ranks would differ, and healthy ranks
        would be blamed. So in that case all outputs are watched.
        """
        if bitwise and ranks_of_a_layer == 1:
            return cls(ENDS_FORWARD, ENDS_BACKWARD)

        return cls(ALL_OUTPUTS, ALL_OUTPUTS)

    def as_record(self) -> dict[str, list[str]]:
        """Return the names, by part of the step, for the header of replay.jsonl."""
        return {FORWARD: list(self.forward), BACKWARD: list(self.backward)}


@dataclass(frozen=True)
class LayerNames:
    """The positions of modules and weights from a chunk in the full model."""

    numbers: dict[int, int]
    """Layer numbers in the full model, starting at 1, by position in the chunk."""
    last: int
    """The layer number for the modules after the last layer."""

    @classmethod
    def of(cls, model: Any, num_layers: int) -> "LayerNames":
        """Return the names for a chunk of a model with this many layers."""
        layers = enumerate(model.decoder.layers)
        return cls({index: layer.layer_number for index, layer in layers}, num_layers + 1)

    def place(
        self,
        part: str,
        name: str,
        number: int = 0,
    ) -> ComputedPlace:
        """Return the place of a module or weight, given the name in the chunk."""
        if match := _LAYER.fullmatch(name):
            inside = match[2] or LAYER_OUTPUT
            return ComputedPlace(part, self.numbers[int(match[1])], inside, number)
        is_first = name.startswith("embedding")
        return ComputedPlace(part, 0 if is_first else self.last, name, number)


class Trace:
    """Fingerprints of the results on a rank, in the order of computation."""

    def __init__(self, fingerprint: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._fingerprint = fingerprint
        self._places: list[ComputedPlace] = []
        self._numbers: list[torch.Tensor] = []
        self._counts: dict[tuple[str, int, str], int] = {}
        self._answer: dict[ComputedPlace, float] = {}

    def add(self, location: ComputedPlace, tensor: torch.Tensor) -> None:
        """Record the fingerprint of a tensor."""
        flip = injected_faults.armed.flipped_bit(location.part, location.layer)
        if flip:
            # autograd refuses a saved tensor if its version has changed. Changes through `data` do
            # not change the version.
            _flip(tensor.data, *flip)
        key = (location.part, location.layer, location.name)
        number = self._counts.get(key, 0)
        self._counts[key] = number + 1
        self._places.append(ComputedPlace(*key, number))
        self._numbers.append(self._fingerprint(tensor))

    def numbers(self) -> dict[ComputedPlace, float]:
        """Wait for the device, and return the fingerprints by place, in order."""
        if self._numbers:
            values = torch.stack(self._numbers).tolist()
            self._answer |= dict(zip(self._places, values, strict=True))
            self._places.clear()
            self._numbers.clear()

        return self._answer


class Tracer:
    """Watches the model chunks on this rank."""

    def __init__(
        self,
        models: list[Any],
        num_layers: int,
        clock: StepClock,
        *,
        bitwise: bool,
        ranks_of_a_layer: int = 1,
    ) -> None:
        self.watched = WatchedOutputs.of(bitwise=bitwise, ranks_of_a_layer=ranks_of_a_layer)
        self._clock = clock
        self._fingerprint = bits_of if bitwise else norm_of
        self._modules: list[tuple[Any, ComputedPlace]] = []
        self._weights: list[tuple[Any, ComputedPlace]] = []
        for model in models:
            self._find_places(model, LayerNames.of(model, num_layers))

    def _find_places(self, model: Any, names: LayerNames) -> None:
        """Find modules and weights in a chunk once, because walking a model takes milliseconds."""
        outputs = {*self.watched.forward, *self.watched.backward}
        for name, module in model.named_modules():
            is_layer = bool(re.fullmatch(r".*layers\.\d+", name))
            output = LAYER_OUTPUT if is_layer else name.rpartition(".")[2]
            if output in outputs:
                self._modules.append((module, names.place(FORWARD, name)))

        for name, weight in model.named_parameters():
            self._weights.append((weight, names.place(GRADIENT, name)))

    @contextlib.contextmanager
    def tracing(self) -> Iterator[Trace]:
        """Take fingerprints of the activations computed in the body, and of their gradients."""
        trace = Trace(self._fingerprint)
        with contextlib.ExitStack() as stack:
            for module, location in self._modules:
                look = functools.partial(self._look, trace, location)
                stack.enter_context(_watching(module, look))

            yield trace

    def add_gradients(self, trace: Trace) -> None:
        """Record fingerprints of the current weight gradients."""
        with self._clock.during(HASHING):
            for weight, location in self._weights:
                gradient = getattr(weight, "main_grad", None)
                if gradient is not None:
                    trace.add(location, gradient)

    def _look(
        self,
        trace: Trace,
        location: ComputedPlace,
        output: torch.Tensor,
    ) -> None:
        name = location.name.rpartition(".")[2]
        if name in self.watched.forward:
            with self._clock.during(HASHING):
                trace.add(location, output)
        if name in self.watched.backward and output.requires_grad:
            back = ComputedPlace(BACKWARD, location.layer, location.name, 0)
            show = functools.partial(self._look_back, trace, back)
            output.register_hook(show)  # type: ignore[no-untyped-call]

    def _look_back(
        self,
        trace: Trace,
        location: ComputedPlace,
        gradient: torch.Tensor,
    ) -> None:
        with self._clock.during(HASHING):
            trace.add(location, gradient)


@contextlib.contextmanager
def _watching(module: Any, look: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Call `look` with each result of a module.

    For a matmul, this is the result before it is summed over ranks.
    """
    if hasattr(module, "_forward_impl"):
        with _watching_product(module, look):
            yield
        return

    def show(_module: Any, _inputs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, torch.Tensor):
            look(first)

    handle = module.register_forward_hook(show)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def _watching_product(module: Any, look: Callable[[torch.Tensor], None]) -> Iterator[None]:
    product = module._forward_impl
    was_set = "_forward_impl" in vars(module)

    @functools.wraps(product)
    def shown(*arguments: Any, **options: Any) -> Any:
        output = product(*arguments, **options)
        look(output)
        return output

    module._forward_impl = shown
    try:
        yield
    finally:
        if was_set:
            module._forward_impl = product
        else:
            del module._forward_impl
