"""Running mean and standard deviation of observations and returns."""

import torch
from torch import Tensor, nn


class Normaliser(nn.Module):
    """Features shifted and scaled to zero mean and unit variance, (..., O) -> (..., O).

    Statistics are float64: after a billion samples a float32 count no longer moves. Until the
    first merge it changes nothing.
    """

    count: Tensor
    mean: Tensor
    var: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, size: int, *, std_floor: float = 1e-2) -> None:
        """Args:
        std_floor: a feature that has varied less so far is not magnified further.
        """
        super().__init__()
        self._std_floor = std_floor
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift) * self.scale

    def undo(self, x: Tensor) -> Tensor:
        """The features as they were."""
        return x / self.scale + self.shift

    @torch.no_grad()
    def merge(self, x: Tensor) -> None:
        """Take samples (..., O) into the statistics.

        Source: Chan, Golub, LeVeque 1979, Updating formulae and a pairwise algorithm for
        computing sample variances.
        """
        flat = x.reshape(-1, x.shape[-1])
        new = float(len(flat))
        # From the first sample on, so that float32 sums lose nothing to a large mean.
        away = flat - flat[0]
        shift = away.mean(0).double()
        mean = flat[0].double() + shift
        var = (away.square().mean(0).double() - shift.square()).clamp(min=0.0)
        total = self.count + new
        delta = mean - self.mean
        spread = self.var * self.count + var * new + delta.square() * self.count * new / total
        self.mean += delta * (new / total)
        self.var.copy_(spread / total)
        self.count.copy_(total)
        self.shift.copy_(self.mean)
        self.scale.copy_(1.0 / self.var.sqrt().clamp(min=self._std_floor))
