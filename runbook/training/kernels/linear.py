"""Replaces matmuls in megatron-core layers, and how weight gradients are accumulated.

megatron-core adds the bias in a separate pass after the matmul. In a further pass, it adds the
weight gradient from each micro-batch, computed in 16 bits, to a float32 sum. Here the matmul adds
the bias itself, and the matmul that computes a weight gradient accumulates into the float32 sum.
The gradient is therefore neither copied nor rounded to 16 bits in between. The Apex extension does
the same if it is installed.
"""

import functools
from typing import Any

import torch
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region

from runbook.training import cpu
from runbook.training.kernels.gradient_sums import gradient_after_sum, sums_in_place
from runbook.training.ranks import on_gpu


def use_own_layers(model: Any, *, in_8_bits: bool = False) -> None:
    """Make megatron-core layers use `multiply` for their matmuls.

    On a CPU, layers with sequence parallelism keep their own matmuls. With `in_8_bits`, the matmuls
    in transformer layers use 8-bit factors, but those in the head do not.
    """
    for name, module in model.named_modules():
        if not hasattr(module, "_forward_impl") or (module.sequence_parallel and not on_gpu()):
            continue
        is_in_layer = name.startswith("decoder.")
        module._forward_impl = functools.partial(multiply, in_8_bits=in_8_bits and is_in_layer)
        module.sums_gradients = True
        fuses_bias = on_gpu() or model.config.bias_activation_fusion
        if name.endswith("linear_fc1") and not fuses_bias:
            # The bias is added while the product is still in the cache, not in a separate pass.
            module.skip_bias_add = False


def sum_gradients_in_place(model: Any, *, overlaps: bool) -> None:
    """Make layers add weight gradients to the megatron-core float32 sums.

    With `overlaps`, gradients are reduced while the backward pass continues. A hook starts each
    reduction when autograd produces a gradient for a weight, so every weight must get a gradient
    tensor, whatever its values are.
    """
    on_cpu = not on_gpu()
    if on_cpu and model.config.sequence_parallel:
        return
    if on_cpu and not overlaps:
        for module in model.modules():
            if hasattr(module, "vocab_start_index"):
                module.forward = functools.partial(_embed, module)

    for module in model.modules():
        if not (on_cpu or getattr(module, "sums_gradients", False)):
            continue
        for weight in module.parameters(recurse=False):
            weight.sums_in_place = True
            weight.needs_hook = overlaps

    for weight in _tied_weights(model):
        # The head adds its gradient to the sum, but the embedding passes its gradient on to
        # autograd. Autograd adds both gradients before it calls a hook, so the head must return a
        # real gradient too.
        weight.sums_in_place = not overlaps


def _tied_weights(model: Any) -> list[Any]:
    """Return the weight the embedding and the head share on this rank, if there is one."""
    is_tied = model.share_embeddings_and_output_weights and model.pre_process and model.post_process
    if is_tied:
        return [model.shared_embedding_or_output_weight()]
    return []


def multiply(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    in_8_bits: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Compute the matmul in a layer. This replaces a function in megatron-core."""
    group = options["tp_group"]
    is_cut = bool(options.get("sequence_parallel"))
    messages = group if is_cut or options["allreduce_dgrad"] else None
    # The result is a flat tensor, since a view returned by a Function must not be changed in place.
    rows = input.reshape(-1, input.shape[-1])
    result: torch.Tensor = _Linear.apply(rows, weight, bias, messages, is_cut, in_8_bits)  # type: ignore[no-untyped-call]
    sequence = input.shape[0] * (group.size() if is_cut else 1)
    return result.view(sequence, *input.shape[1:-1], weight.shape[0])


class _Linear(torch.autograd.Function):
    """The product `values @ weight.t() + bias`, with tensor-parallel communication.

    `values` has the shape [tokens, inputs].

    With a group, the gradient of the values is summed over the ranks in it. If the sequence is
    sharded (`is_cut`), the values are gathered before the product, and each rank gets its own part
    of the sum.
    """

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        group: Any,
        is_cut: bool,
        in_8_bits: bool,
    ) -> torch.Tensor:
        ctx.save_for_backward(values, weight, bias)
        ctx.group = group
        ctx.is_cut = is_cut
        ctx.in_8_bits = in_8_bits
        whole = _gathered(values, group) if is_cut else values
        if in_8_bits and _fits_8_bits(whole, weight):
            return _eight_bits().product(whole, weight, bias)  # type: ignore[no-any-return]
        return _product(whole, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, weight, bias = ctx.saved_tensors
        gradient = gradients[0]
        whole = _gathered(values, ctx.group) if ctx.is_cut else values
        if ctx.in_8_bits and _fits_8_bits(whole, weight):
            of_whole = _eight_bits().product_of_gradient(gradient, weight)
        else:
            of_whole = _product(gradient, weight, None)

        # The reduction runs while the weight gradient is computed.
        of_values = of_whole
        message = None
        if ctx.is_cut:
            of_values = torch.empty_like(values)
            message = torch.distributed.reduce_scatter_tensor(
                of_values,
                of_whole,
                group=ctx.group,
                async_op=True,
            )
        elif ctx.group:
            message = torch.distributed.all_reduce(of_whole, group=ctx.group, async_op=True)

        of_weight = _weight_gradient(weight, gradient, whole)
        of_bias = None if bias is None else _bias_gradient(bias, gradient)
        if message is not None:
            message.wait()
        return of_values, of_weight, of_bias, None, None, None


def begin_pass(*, in_8_bits: bool) -> None:
    """Record that weights may have changed since the last pass over the model."""
    if in_8_bits:
        _eight_bits().begin_pass()


def _eight_bits() -> Any:
    """Return the module for 8-bit matmuls.

    It is imported here because it imports Triton, which CPU builds of torch do not include.
    """
    from runbook.training.kernels import eight_bits

    return eight_bits


def _fits_8_bits(rows: torch.Tensor, weight: torch.Tensor) -> bool:
    return bool(_eight_bits().fits(rows.shape[0], *weight.shape))


def _gathered(own_rows: torch.Tensor, group: Any) -> torch.Tensor:
    """Gather the full sequence from the parts on all tensor-parallel ranks."""
    whole = own_rows.new_empty(own_rows.shape[0] * group.size(), *own_rows.shape[1:])
    torch.distributed.all_gather_into_tensor(whole, own_rows.contiguous(), group=group)
    return whole


def _product(input: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if input.device.type == "cpu":
        return cpu.product(input, right, bias)
    # cuBLAS adds the bias as it writes the product.
    if bias is None:
        return input @ right
    return torch.addmm(bias, input, right)


def _weight_gradient(
    weight: Any,
    gradient: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor | None:
    """Add the gradient to the sum for the weight. Return the gradient if autograd needs one."""
    if sums_in_place(weight):
        _add_product(gradient, values, weight.main_grad)
        return gradient_after_sum(weight)

    if gradient.device.type != "cpu":
        return gradient.t() @ values
    total = torch.zeros_like(weight)
    cpu.add_weight_gradient(gradient, values, total)
    return total


def _bias_gradient(bias: Any, gradient: torch.Tensor) -> torch.Tensor | None:
    """Return the bias gradient (a sum over all tokens) in the form that autograd needs."""
    if gradient.device.type == "cpu":
        return gradient.sum(0)
    from runbook.training.kernels.sums import column_sum

    return column_sum(gradient, bias)


def _add_product(gradient: torch.Tensor, values: torch.Tensor, total: torch.Tensor) -> None:
    """Add `gradient.t() @ values` to `total`, which is in float32 or in the type of the factors."""
    if total.device.type == "cpu":
        cpu.add_weight_gradient(gradient, values, total)
    elif total.dtype == values.dtype:
        total.addmm_(gradient.t(), values)
    else:
        torch.ops.aten.addmm.dtype_out(
            total,
            gradient.t(),
            values,
            total.dtype,
            out=total,
        )


def _embed(module: Any, ids: torch.Tensor) -> torch.Tensor:
    """Look up embeddings. This replaces a function in megatron-core.

    Return zeros for tokens that belong to other tensor-parallel ranks.
    """
    elsewhere = (ids < module.vocab_start_index) | (ids >= module.vocab_end_index)
    vectors: Any = _Embedding.apply(  # type: ignore[no-untyped-call]
        (ids - module.vocab_start_index).masked_fill_(elsewhere, 0), module.weight
    )
    vectors = vectors.masked_fill(elsewhere[..., None], 0.0)
    return reduce_from_tensor_model_parallel_region(vectors, group=module.tp_group)  # type: ignore[no-any-return]


class _Embedding(torch.autograd.Function):
    """An embedding that adds only the gradients for tokens in the batch to the sum for the weight.

    The torch function would create a gradient matrix for the whole vocabulary.
    """

    @staticmethod
    def forward(ctx: Any, ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(ids, weight)
        return torch.nn.functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None]:
        ids, weight = ctx.saved_tensors
        weight.main_grad.index_add_(
            0, ids.view(-1), gradients[0].reshape(-1, weight.shape[1]).float()
        )
        return None, None
