"""Multilayer perceptrons, and several of one shape computed together.

Weights start uniform in +-1/sqrt(inputs), as torch.nn.Linear's do, but drawn from the generator
given, so that they depend on nothing else that a program draws.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

Activation = Literal["elu", "relu", "silu", "tanh"]


def activation(name: Activation) -> nn.Module:
    """The module of that name, in place where its gradient needs only what it gave."""
    match name:
        case "elu":
            return nn.ELU(inplace=True)
        case "relu":
            return nn.ReLU(inplace=True)
        case "silu":
            return nn.SiLU()
        case "tanh":
            return nn.Tanh()


def uniform(*shape: int, fan_in: int, generator: torch.Generator) -> nn.Parameter:
    """A parameter of the shape given, uniform in +-1/sqrt(fan_in)."""
    unit = torch.rand(*shape, generator=generator)
    return nn.Parameter((2.0 * unit - 1.0) / fan_in**0.5)


def linear(fan_in: int, fan_out: int, generator: torch.Generator) -> nn.Linear:
    layer = nn.Linear(fan_in, fan_out, device="meta")
    layer.weight = uniform(fan_out, fan_in, fan_in=fan_in, generator=generator)
    layer.bias = uniform(fan_out, fan_in=fan_in, generator=generator)
    return layer


class MLP(nn.Sequential):
    """Linear layers with an activation between them, (..., sizes[0]) -> (..., sizes[-1])."""

    def __init__(
        self,
        sizes: Sequence[int],
        name: Activation,
        *,
        generator: torch.Generator,
        last_scale: float = 1.0,
    ) -> None:
        """Args:
        sizes: inputs, hidden layers, outputs.
        last_scale: of the last layer's first weights and biases; small makes first outputs small.
        """
        layers: list[nn.Module] = []
        for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            layer = linear(fan_in, fan_out, generator)
            layers.append(layer)
            if i < len(sizes) - 2:
                layers.append(activation(name))
            elif last_scale != 1.0:
                with torch.no_grad():
                    layer.weight.mul_(last_scale)
                    layer.bias.mul_(last_scale)
        super().__init__(*layers)


class BatchedMLP(nn.Module):
    """K separate MLPs of one shape, computed together, (K, B, I) -> (K, B, O)."""

    def __init__(
        self, count: int, sizes: Sequence[int], name: Activation, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        pairs = list(pairwise(sizes))
        self.weights = nn.ParameterList(
            uniform(count, i, o, fan_in=i, generator=generator) for i, o in pairs
        )
        self.biases = nn.ParameterList(
            uniform(count, 1, o, fan_in=i, generator=generator) for i, o in pairs
        )
        self.activation = activation(name)

    def forward(self, x: Tensor) -> Tensor:
        """Args:
        x: (K, B, I), or (B, I) where all networks read the same.
        """
        weights, biases = list(self.weights), list(self.biases)
        count = len(weights[0])
        if x.device.type != "cpu":
            return self._layers(x.expand(count, -1, -1), weights, biases, torch.baddbmm)
        # On a CPU one network after the other takes a sixth less time than batched products, which
        # hand out whole networks to the threads and leave one waiting where K is odd.
        networks = zip(
            x.expand(count, -1, -1).unbind(),
            zip(*(w.unbind() for w in weights), strict=True),
            zip(*(b.unbind() for b in biases), strict=True),
            strict=True,
        )
        return torch.stack([self._layers(*network, torch.addmm) for network in networks])

    def _layers(
        self,
        h: Tensor,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        product: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        last = len(weights) - 1
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            h = product(bias, h, weight)
            if i < last:
                h = self.activation(h)
        return h
