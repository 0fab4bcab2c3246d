"""Small environments in torch alone, for what learns."""

import sys
from collections.abc import Mapping
from types import ModuleType

import pytest
import torch
from torch import Tensor

from robo_rl.api import (
    ActionSpec,
    EnvSpec,
    Metrics,
    Mirror,
    Obs,
    ObsGroup,
    ObsTerm,
    OnlineLearner,
    Policy,
    Step,
)

# What is learnt here is so small that a second thread costs more than it brings.
torch.set_num_threads(1)


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


def negative(size: int) -> Mirror:
    return Mirror(index=tuple(range(size)), sign=(-1.0,) * size)


def term(name: str, size: int = 1) -> ObsTerm:
    return ObsTerm(name=name, size=size, unit="1", frame="world")


class Toy:
    """What every environment here shares: episodes that only the clock ends, each at its time."""

    def __init__(self, spec: EnvSpec, num_envs: int, seed: int, length: int) -> None:
        self.spec = spec
        self.num_envs = num_envs
        self.device = "cpu"
        self._length = length
        self._generator = torch.Generator().manual_seed(seed)
        self._age = torch.arange(num_envs) % length

    def reset(self, *, seed: int | None = None, stagger: bool = False) -> Obs:
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
    """Two points pushed along lines towards zero, a reward group each, of very different scale.

    "actor" is position and velocity, (N, 4), "positions" the last three positions, (N, 3, 2). The
    mirror image of all is its negative.
    """

    def __init__(
        self, num_envs: int, seed: int = 0, scales: tuple[float, ...] = (1.0, 0.01)
    ) -> None:
        self._scales = torch.tensor(scales)
        self._frames = torch.zeros(num_envs, 3, 2)
        self._velocity = torch.zeros(num_envs, 2)
        heads = ("left", "right")[: len(scales)]
        spec = spec_of(
            {
                "actor": ObsGroup(terms=(term("position", 2), term("velocity", 2))),
                "positions": ObsGroup(terms=(term("position", 2),), history=3),
            },
            heads,
            2,
            owners=heads if len(heads) == 2 else (),
            mirror={
                name: negative(n) for name, n in (("actor", 4), ("positions", 2), ("action", 2))
            },
        )
        super().__init__(spec, num_envs, seed, length=40)

    def _start(self, mask: Tensor) -> None:
        fresh = self._uniform(self.num_envs, 1, 2).expand(-1, 3, -1)
        self._frames = torch.where(mask.view(-1, 1, 1), fresh, self._frames)
        self._velocity = torch.where(mask.unsqueeze(-1), 0.0, self._velocity)

    def _advance(self, action: Tensor) -> Tensor:
        self._velocity = 0.8 * self._velocity + 0.2 * action.clamp(-1.0, 1.0)
        position = (self._frames[:, -1] + 0.2 * self._velocity).clamp(-1.5, 1.5)
        self._frames = torch.cat([self._frames[:, 1:], position.unsqueeze(1)], 1)
        reward = -position.abs()
        return (reward if len(self._scales) == 2 else reward.sum(-1, keepdim=True)) * self._scales

    def _obs(self) -> dict[str, Tensor]:
        seen = torch.cat([self._frames[:, -1], self._velocity], -1)
        return {"actor": seen, "positions": self._frames.clone()}


class Recall(Toy):
    """The action is to be a number, -1 or 1, that is seen in the first of ten steps only."""

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        self._number = torch.zeros(num_envs, 1)
        spec = spec_of({"actor": ObsGroup(terms=(term("number"), term("first")))}, ("match",), 1)
        super().__init__(spec, num_envs, seed, length=10)

    def _start(self, mask: Tensor) -> None:
        fresh = self._uniform(self.num_envs, 1).sign()
        self._number = torch.where(mask.unsqueeze(-1), fresh, self._number)

    def _advance(self, action: Tensor) -> Tensor:
        return -(action - self._number).square()

    def _obs(self) -> dict[str, Tensor]:
        first = (self._age == 0).float().unsqueeze(-1)
        return {"actor": torch.cat([self._number * first, first], -1)}


class Endless(Toy):
    """Reward 1 a step for ever; only the clock ends an episode, after five steps."""

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        group = ObsGroup(terms=(term("nothing"),))
        super().__init__(spec_of({"actor": group}, ("one",), 1), num_envs, seed, length=5)

    def _start(self, mask: Tensor) -> None:
        pass

    def _advance(self, action: Tensor) -> Tensor:
        return torch.ones(self.num_envs, 1)

    def _obs(self) -> dict[str, Tensor]:
        return {"actor": torch.zeros(self.num_envs, 1)}


def collect(learner: OnlineLearner, env: Toy, obs: Obs) -> tuple[Obs, Tensor]:
    """A rollout for the learner: the observation after it and the mean reward of it, (K,)."""
    rewards = []
    for _ in range(learner.num_steps):
        step = env.step(learner.act(obs))
        learner.observe(step)
        rewards.append(step.reward)
        obs = step.obs
    return obs, torch.stack(rewards).mean((0, 1))


def train(learner: OnlineLearner, env: Toy, iterations: int) -> tuple[Metrics, Tensor]:
    """Metrics of the last iteration and its mean reward, (K,)."""
    obs = env.reset()
    for _ in range(iterations):
        obs, reward = collect(learner, env, obs)
        metrics = learner.update()
    return metrics, reward


def score(policy: Policy, env: Toy) -> Tensor:
    """Mean reward of a policy over 50 steps, (K,)."""
    policy.reset()
    obs, total = env.reset(), torch.zeros(len(env.spec.heads))
    for _ in range(50):
        step = env.step(policy.act(obs))
        policy.reset(step.truncated)
        obs, total = step.obs, total + step.reward.mean(0) / 50
    return total


@pytest.fixture(scope="session")
def worlds() -> ModuleType:
    """This module: its environments and what trains in them."""
    return sys.modules[__name__]
