"""From observation groups to the one vector that a network reads."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robo_rl.api import EnvSpec, Obs, ObsGroup
from robo_rl.config import did_you_mean
from robo_rl.nets.mlp import Activation, activation, linear
from robo_rl.nets.normaliser import Normaliser


class ObsInput(nn.Module):
    """The groups named, each normalised, stacked ones flattened oldest first, side by side.

    Nothing in it is learnt by gradient: what a network reads of a rollout is computed once.
    """

    def __init__(self, spec: EnvSpec, groups: Sequence[str]) -> None:
        super().__init__()
        for name in groups:
            if name not in spec.obs:
                raise ValueError(
                    f"{spec.name} has no observation group {name!r}, only "
                    f"{', '.join(spec.obs)}{did_you_mean(name, spec.obs)}"
                )
        self.groups = tuple(groups)
        self.stacked = tuple(spec.obs[name].history > 1 for name in groups)
        self.size = sum(spec.obs[name].history * spec.obs[name].size for name in groups)
        self.normalisers = nn.ModuleList(Normaliser(spec.obs[name].size) for name in groups)

    def forward(self, *obs: Tensor) -> Tensor:
        """Args:
        obs: in the order of groups, each (..., O) or (..., H, O).
        """
        parts = [normalise(x) for normalise, x in zip(self.normalisers, obs, strict=True)]
        flat = [
            x.flatten(-2) if stacked else x for x, stacked in zip(parts, self.stacked, strict=True)
        ]
        return flat[0] if len(flat) == 1 else torch.cat(flat, -1)

    def of(self, obs: Obs) -> Tensor:
        """The vector of observations by group, (..., X)."""
        return self.forward(*(obs[name] for name in self.groups))

    def merge(self, obs: Obs) -> None:
        """Take a rollout's observations into the statistics; of a stack, the newest frame."""
        for name, stacked, normaliser in zip(
            self.groups, self.stacked, self.normalisers, strict=True
        ):
            assert isinstance(normaliser, Normaliser)
            normaliser.merge(obs[name][..., -1, :] if stacked else obs[name])


class FrameEncoder(nn.Module):
    """Stacked groups with each frame encoded by one layer that all frames of the group share.

    Reads what ObsInput gives, (..., X), and gives (..., size).
    """

    def __init__(
        self,
        groups: Sequence[ObsGroup],
        features: int,
        name: Activation,
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.shapes = tuple((group.history, group.size) for group in groups)
        self.layers = nn.ModuleDict()
        for i, (history, size) in enumerate(self.shapes):
            if history > 1:
                layer = linear(size, features, generator)
                self.layers[str(i)] = nn.Sequential(layer, activation(name))
        self.size = sum(h * (features if h > 1 else size) for h, size in self.shapes)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(x, [h * size for h, size in self.shapes], -1)
        encoded = []
        for i, (part, shape) in enumerate(zip(parts, self.shapes, strict=True)):
            if shape[0] > 1:
                part = self.layers[str(i)](part.view(*part.shape[:-1], *shape)).flatten(-2)
            encoded.append(part)
        return torch.cat(encoded, -1)
