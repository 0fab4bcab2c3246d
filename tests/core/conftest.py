"""Small environments in torch alone, for what learns."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from robo_rl.api import ActionSpec, EnvSpec, Mirror, Obs, ObsGroup, ObsTerm, Step


def spec_of(
    obs: Mapping[str, ObsGroup],
    heads: tuple[str, ...],
    num_actions: int,
    *,
    owners: tuple[str, ...] = (),
    mirror: Mapping[str, Mirror] | None = None,
) -> EnvSpec:
    each = (1.0,) * num_actions
    return EnvSpec(
        name="toy",
        obs=obs,
        action=ActionSpec(
            joints=tuple(f"joint{i}" for i in range(num_actions)),
            scale=each,
            offset=(0.0,) * num_actions,
            low=tuple(-x for x in each),
            high=each,
            heads=owners,
        ),
        joints=(),
        commands=(),
        heads=heads,
        costs=(),
        step_s=0.02,
        max_episode_steps=None,
        mirror=mirror or {},
    )


def term(name: str, size: int = 1) -> ObsTerm:
    return ObsTerm(name=name, size=size, unit="1", frame="world")


class Toy:
    """What every environment here shares: episodes that only the clock ends, all at its own time."""

    def __init__(self, spec: EnvSpec, num_envs: int, seed: int, length: int) -> None:
        self.spec = spec
        self.num_envs = num_envs
        self.device = "cpu"
        self._length = length
        self._generator = torch.Generator().manual_seed(seed)
        self._age = torch.arange(num_envs) % length

    def reset(self, *, seed: int | None = None) -> Obs:
        self._start(torch.ones(self.num_envs, dtype=torch.bool))
        return self._obs()

    def step(self, action: Tensor) -> Step:
        reward = self._advance(action)
        final = self._obs()
        self._age += 1
        truncated = self._age >= self._length
        self._age[truncated] = 0
        self._start(truncated)
        return Step(
            obs=self._obs(),
            final_obs=final,
            reward=reward,
            cost=torch.zeros(self.num_envs, 0),
            terminated=torch.zeros_like(truncated),
            truncated=truncated,
            metrics={},
        )

    def _start(self, mask: Tensor) -> None:
        raise NotImplementedError

    def _advance(self, action: Tensor) -> Tensor:
        raise NotImplementedError

    def _obs(self) -> dict[str, Tensor]:
        raise NotImplementedError

    def _uniform(self, *shape: int) -> Tensor:
        return 2.0 * torch.rand(*shape, generator=self._generator) - 1.0


class Points(Toy):
    """Two points pushed along lines towards zero, one reward group each, of very different scale.

    The actor sees position and velocity, (N, 4); both mirror by their sign.
    """

    def __init__(self, num_envs: int, seed: int = 0, scales: tuple[float, ...] = (1.0, 0.01)) -> None:
        mirror = Mirror(index=(0, 1, 2, 3), sign=(-1.0,) * 4)
        group = ObsGroup(terms=(term("position", 2), term("velocity", 2)))
        heads = ("left", "right")[: len(scales)]
        spec = spec_of(
            {"actor": group},
            heads,
            2,
            owners=("left", "right") if len(scales) == 2 else (),
            mirror={"actor": mirror, "action": Mirror(index=(0, 1), sign=(-1.0, -1.0))},
        )
        self._scales = torch.tensor(scales)
        self._position = torch.zeros(num_envs, 2)
        self._velocity = torch.zeros(num_envs, 2)
        super().__init__(spec, num_envs, seed, length=40)

    def _start(self, mask: Tensor) -> None:
        fresh = self._uniform(self.num_envs, 2)
        self._position = torch.where(mask.unsqueeze(-1), fresh, self._position)
        self._velocity = torch.where(mask.unsqueeze(-1), 0.0, self._velocity)

    def _advance(self, action: Tensor) -> Tensor:
        self._velocity = 0.8 * self._velocity + 0.2 * action.clamp(-1.0, 1.0)
        self._position = self._position + 0.2 * self._velocity
        reward = -self._position.abs()
        return (reward if len(self._scales) == 2 else reward.sum(-1, keepdim=True)) * self._scales

    def _obs(self) -> dict[str, Tensor]:
        return {"actor": torch.cat([self._position, self._velocity], -1)}


@pytest.fixture(scope="session")
def points() -> type[Points]:
    return Points
