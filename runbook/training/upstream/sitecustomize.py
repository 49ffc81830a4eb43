"""Replaces GPU functions to let a training program from another project run without a GPU.

If the folder with this file is on PYTHONPATH, Python runs the file before the program, and the
files in the program stay unchanged. `runbook rehearse --upstream` puts the folder there. Each
change is made immediately after importing the module it changes.
"""

import atexit
import contextlib
import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import logging
import os
import sys
import types
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from typing import Any


def _answer_for_gpu(torch: Any) -> None:
    """Present one GPU per rank, with tensors, random states and matmuls on the CPU."""
    from torch.utils import cpp_extension

    from runbook.training import cpu

    # Without fp16 kernels, most of the time would be spent on the logits
    cpu.widen_every_half_matmul()
    cpu.name_types_as_on_gpu()
    _tensors_on_cpu(torch).__enter__()
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: int(os.environ["LOCAL_WORLD_SIZE"]),
        "current_device": lambda: 0,
        "is_current_stream_capturing": lambda: False,
        "get_device_capability": lambda *_: (9, 0),
        "_lazy_init": lambda: None,
        "_lazy_call": lambda function, **_: function(),
        "default_generators": [torch.default_generator] * int(os.environ["LOCAL_WORLD_SIZE"]),
    }
    nothing = (
        "synchronize",
        "empty_cache",
        "reset_peak_memory_stats",
        "set_device",
        "current_stream",
    )
    for name, function in answers.items():
        setattr(torch.cuda, name, function)
    for name in nothing:
        setattr(torch.cuda, name, lambda *_, **__: None)
    for module in (torch.cuda, torch.cuda.random):
        module.get_rng_state = lambda *_, **__: torch.default_generator.get_state()
        module.set_rng_state = lambda state, *_, **__: torch.default_generator.set_state(state)
        module.manual_seed = torch.default_generator.manual_seed
        # torch.manual_seed calls this function, and has already seeded the only generator.
        module.manual_seed_all = lambda *_: None

    # Megatron-DeepSpeed passes the arguments for the apex version even if it uses the torch
    # version.
    init_norm = torch.nn.LayerNorm.__init__
    torch.nn.LayerNorm.__init__ = lambda self, *arguments, sequence_parallel=False, **options: (
        init_norm(self, *arguments, **options)
    )
    # A CUDA build of torch would ask the driver for pinned memory.
    init_loader = torch.utils.data.DataLoader.__init__
    torch.utils.data.DataLoader.__init__ = lambda self, *arguments, **options: init_loader(
        self, *arguments, **{**options, "pin_memory": False}
    )
    # Megatron asks nvcc in this folder for its version.
    cpp_extension.CUDA_HOME = os.environ["CUDA_HOME"]
    # If a program leaves gloo threads running until the interpreter ends, these threads
    # occasionally abort the program after it has finished.
    atexit.register(
        lambda: torch.distributed.is_initialized() and torch.distributed.destroy_process_group()
    )
    # Here the GPU random state is the CPU random state, and Megatron would warn about this in every
    # layer.
    logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)


def _tensors_on_cpu(torch: Any) -> Any:
    """Keep tensors on the CPU that would be created on a GPU or moved to a GPU."""

    def is_gpu(device: Any) -> bool:
        return type(device) is int or (
            isinstance(device, str | torch.device) and str(device).startswith("cuda")
        )

    class OnCpu(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self,
            function: Any,
            types: Any,
            arguments: Sequence[Any] = (),
            options: dict[str, Any] | None = None,
        ) -> Any:
            if function in (torch.Tensor.cuda, torch.Tensor.pin_memory):
                return arguments[0]
            options = dict(options or {})
            if is_gpu(options.get("device")):
                options["device"] = "cpu"
            if function is torch.Tensor.to:
                tensor, *targets = arguments
                arguments = [tensor, *("cpu" if is_gpu(target) else target for target in targets)]

            return function(*arguments, **options)

    return OnCpu()


def _answer_without_transformer_engine(module: Any) -> None:
    """Satisfy Megatron-LM e958b2ca, which queries the Transformer Engine version when imported."""
    if importlib.util.find_spec("transformer_engine") is None and hasattr(module, "_te_version"):
        module._te_version = module.PkgVersion("0")


def _allow_no_fp8(module: Any) -> None:
    quantize = module._quantize_param_shard_impl
    module._quantize_param_shard_impl = lambda weights, *others: (
        quantize(weights, *others) if weights else None
    )


def _count_steps_as_fused_adam(module: Any) -> None:
    """Keep the Adam step count in the parameter group, like the apex FusedAdam.

    Without apex and Transformer Engine, Megatron-LM e958b2ca cannot load a checkpoint with the
    distributed optimizer. It reads the steps from a state that the torch AdamW does not have before
    the first step, and fails with `assert len(steps) == 1` (seen 2026-11-27).
    """
    import torch

    with_checkpoints = module.distrib_optimizer
    if getattr(with_checkpoints, "HAVE_APEX_OR_TE", True):
        return

    class AdamW(torch.optim.AdamW):
        """AdamW with only the two moments in the states."""

        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                num_steps = group.get("step", 0)
                group["step"] = num_steps + 1
                for parameter in group["params"]:
                    if self.state[parameter]:
                        self.state[parameter]["step"] = torch.tensor(float(num_steps))

            loss = super().step(closure)
            for state in self.state.values():
                state.pop("step", None)

            return loss

        def __setstate__(self, state: Any) -> None:
            # The original AdamW expects a step count in each state
            with_steps = [values for values in state["state"].values() if values]
            for values in with_steps:
                values["step"] = torch.tensor(0.0)

            super().__setstate__(state)  # type: ignore[no-untyped-call]
            for values in with_steps:
                del values["step"]

    module.Adam = AdamW
    with_checkpoints.HAVE_APEX_OR_TE = True


def _keep_old_call(module: Any) -> None:
    if "serialization_format" in inspect.signature(module._write_item).parameters:
        torch_save = module.SerializationFormat.TORCH_SAVE
        module._write_item = functools.partial(module._write_item, serialization_format=torch_save)


def _run_deepspeed_on_cpu(module: Any) -> None:
    """Allow fp16 on the CPU, and provide streams that do nothing.

    fp16 is allowed only if the processor has fast kernels for it.
    """
    accelerator = module.CPU_Accelerator
    accelerator.is_fp16_supported = lambda _: True
    accelerator.communication_backend_name = lambda _: "gloo"  # Name of oneCCL in older releases
    stream = inspect.getattr_static(accelerator, "Stream", None)
    getter = getattr(stream, "fget", None)
    # Releases before 0.16 have None here, but recomputation needs a function.
    if getter is not None and getter(None) is None:
        accelerator.Stream = property(lambda _: lambda **__: contextlib.nullcontext())


CHANGES: dict[str, Callable[[Any], None]] = {
    "torch": _answer_for_gpu,
    # Megatron writes checkpoints with a private torch function, which has had an additional
    # argument since 2.7.
    "torch.distributed.checkpoint.filesystem": _keep_old_call,
    # numpy 2.0 removed `product`, which Megatron uses when it saves.
    "numpy": lambda module: setattr(module, "product", module.prod),
    # Megatron-LM e958b2ca requires Transformer Engine even if no weight is in fp8.
    "megatron.core.fp8_utils": _allow_no_fp8,
    "megatron.core.utils": _answer_without_transformer_engine,
    "megatron.core.optimizer": _count_steps_as_fused_adam,
    "deepspeed.accelerator.cpu_accelerator": _run_deepspeed_on_cpu,
    # If all ranks are on one machine, DeepSpeed compiles a library for their sums.
    "deepspeed.ops": lambda module: module.__compatible_ops__.update(deepspeed_shm_comm=False),
}
"""The changes, by module. Each change is made immediately after the module is imported."""
UNUSED = ("torchvision", "deepspeed.compression", "wandb", "ezpz")
"""Modules imported by Megatron-DeepSpeed but not used to train a GPT.

If they are not installed, empty modules replace them.
"""


OF_OLD_DEEPSPEED = ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch")
"""Modules needed to start DeepSpeed 0.10.3 and 0.14.0 on a CPU.

Versions 0.15.4 and 0.19.8 do not need them (seen 2026-11-26).
"""


def stand_ins() -> tuple[str, ...]:
    """Return the modules that empty modules may replace, for the installed DeepSpeed version."""
    try:
        numbers = importlib.metadata.version("deepspeed").split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        return UNUSED

    is_old = tuple(map(int, numbers)) < (0, 15)
    return UNUSED + OF_OLD_DEEPSPEED if is_old else UNUSED


class Changer(MetaPathFinder, Loader):
    """An import finder that changes the modules in CHANGES after they are imported.

    It also loads the empty modules.
    """

    def __init__(self) -> None:
        self.may_miss = stand_ins()

    def find_spec(
        self,
        name: str,
        path: Any = None,
        target: Any = None,
    ) -> Any:
        """Return the spec for a module that is changed or may be missing, or else None."""
        may_miss = any(f"{name}.".startswith(f"{word}.") for word in self.may_miss)
        if name in CHANGES or may_miss:
            spec = importlib.machinery.PathFinder.find_spec(name, path)
        else:
            spec = None

        if spec is None:
            if may_miss:
                return importlib.machinery.ModuleSpec(name, self, is_package=True)
            return None

        if name in CHANGES and spec.loader:
            load = spec.loader.exec_module

            def load_and_change(module: types.ModuleType) -> None:
                load(module)
                CHANGES[name](module)

            spec.loader.exec_module = load_and_change  # type: ignore[method-assign]

        return spec

    def exec_module(self, module: Any) -> None:
        """Make every name in an empty module a class that does nothing.

        `wandb.run` is None, as if no run had been started.
        """
        sys.stderr.write(
            f"runbook: {module.__name__} is not installed; an empty stand-in takes its place\n"
        )

        def empty_class(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {"__init__": lambda *_, **__: None})

        module.run = None
        module.__getattr__ = empty_class


if __name__ == "sitecustomize":  # This is skipped when tests import this module
    sys.meta_path.insert(0, Changer())
