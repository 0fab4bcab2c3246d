"""A diagonal Gaussian whose standard deviation cannot reach zero."""

import math

import torch
from torch import Tensor, nn


class StateFreeStd(nn.Module):
    """Standard deviation of each action, (A,), the same in every state.

    std = min_std + exp(excess): whatever an optimiser does to excess, std stays at min_std or
    above, and the gradient never vanishes at the floor as a clamp's would.
    """

    def __init__(self, size: int, initial: float, minimum: float) -> None:
        super().__init__()
        self.minimum = minimum
        self.excess = nn.Parameter(torch.full((size,), math.log(initial - minimum)))

    def forward(self) -> Tensor:
        return self.minimum + self.excess.exp()


def log_prob(action: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log-density of each action by itself, (..., A); they add up."""
    return -0.5 * ((action - mean) / std).square() - std.log() - 0.5 * math.log(2.0 * math.pi)


def entropy(std: Tensor) -> Tensor:
    """Entropy of the joint action [nat]."""
    return (std.log() + 0.5 * math.log(2.0 * math.pi * math.e)).sum(-1)


def kl(old_mean: Tensor, old_std: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Divergence of the new Gaussian from the old, KL(old || new) [nat], (...)."""
    spread = (old_std.square() + (old_mean - mean).square()) / (2.0 * std.square())
    return (std.log() - old_std.log() + spread - 0.5).sum(-1)
