"""A GPT in plain PyTorch, trained as nanoGPT trains it, for comparison with our trainer.

It uses SDPA, fused AdamW, autocast and torch.compile.

The second program (`even`) uses the same number formats as our trainer: in bf16 its weights are
bf16, not cast again in every micro-batch. Gradients are added up in float32, and the optimizer
updates a float32 copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The model shape that both programs train."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int = 50304


class Block(nn.Module):
    """Attention and MLP, each after its own norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(shape.hidden), nn.LayerNorm(shape.hidden)
        self.qkv, self.projection = (
            nn.Linear(shape.hidden, 3 * shape.hidden),
            nn.Linear(shape.hidden, shape.hidden),
        )
        self.up, self.down = (
            nn.Linear(shape.hidden, 4 * shape.hidden),
            nn.Linear(4 * shape.hidden, shape.hidden),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the residual stream after this block."""
        batch, length, width = x.shape
        query, key, value = self.qkv(self.norm1(x)).split(width, dim=2)
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in (query, key, value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Embeddings, blocks, and the tied output."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Embedding(shape.sequence, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for weight in self.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), labels.view(-1))


class Plain:
    """One complete training step."""

    def __init__(self, shape: Shape, precision: str, *, compiled: bool, even: bool = False) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with self.device:  # on the host, 1e9 random numbers take 9 s
            model = Gpt(shape)
        weights = sorted(model.parameters(), key=lambda weight: weight.ndim)
        half_weights = even and precision == "bf16"
        self.autocast = precision == "bf16" and not even
        if half_weights:
            self.parameters = [nn.Parameter(weight.detach().clone()) for weight in weights]
        else:
            self.parameters = weights
        self.copies = weights if half_weights else []
        if half_weights:
            model.to(torch.bfloat16)
            for weight, main in zip(weights, self.parameters, strict=True):
                main.grad = torch.zeros_like(main)
                weight.register_post_accumulate_grad_hook(_add_to(main.grad))
        decayed = [weight for weight in self.parameters if weight.ndim > 1]
        others = [weight for weight in self.parameters if weight.ndim == 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
        self.model: Any = torch.compile(model) if compiled else model

    def step(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
        """Run forward, backward, clipping and AdamW over some micro-batches, and return the mean loss."""
        # read the loss once, because each read waits for the GPU
        total = torch.zeros((), device=self.device)
        for ids, labels in batches:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
                loss = self.model(ids.to(self.device), labels.to(self.device)) / len(batches)
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(
            set_to_none=not self.copies
        )  # hooks keep the sums of the copies' gradients
        if self.copies:
            with torch.no_grad():
                torch._foreach_copy_(self.copies, self.parameters)
        return float(total)


def _add_to(total: torch.Tensor) -> Callable[[torch.Tensor], None]:
    def add(weight: torch.Tensor) -> None:
        total.add_(weight.grad)
        weight.grad = None

    return add
