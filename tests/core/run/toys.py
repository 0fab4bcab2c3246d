"""A task and a learner small enough that a run takes a moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from robo_rl import registry
from robo_rl.api import ActionSpec, EnvSpec, Memory, Metrics, Obs, ObsGroup, ObsTerm, Step

NAN = float("nan")


class PointEnv:
    """A point on a line is to be brought to the origin; it falls where |x| exceeds 2."""

    units: Mapping[str, str] = {"position_error": "m"}

    def __init__(self, cfg: "PointTask", num_envs: int, device: str, seed: int) -> None:
        self.cfg, self.num_envs, self.device = cfg, num_envs, device
        position = ObsTerm(name="position", size=2, unit="m", frame="world")
        self.spec = EnvSpec(
            name=cfg.name,
            obs={"actor": ObsGroup(terms=(position,))},
            action=ActionSpec(
                joints=("slide",), scale=(1.0,), offset=(0.0,), low=(-1.0,), high=(1.0,)
            ),
            joints=(),
            commands=(),
            heads=("reach", "effort"),
            costs=(),
            step_s=0.1,
            max_episode_steps=cfg.episode_steps,
        )
        self._generator = torch.Generator(device).manual_seed(seed)
        self._x = torch.zeros(num_envs, 2)
        self._clock = torch.zeros(num_envs, dtype=torch.int64)
        self._count = 0

    def reset(self, *, seed: int | None = None, stagger: bool = False) -> Obs:
        if seed is not None:
            self._generator.manual_seed(seed)
        self._x = self._draw()
        self._clock = torch.arange(self.num_envs) % self.cfg.episode_steps * stagger
        return {"actor": self._x.clone()}

    def step(self, action: Tensor) -> Step:
        noise = torch.randn(self.num_envs, 1, generator=self._generator)
        moved = self._x[:, :1] + 0.1 * action.clamp(-1, 1) + 0.01 * noise
        final = torch.cat([moved, self._x[:, :1]], -1)
        self._clock += 1
        self._count += 1
        terminated = final[:, 0].abs() > 2
        truncated = (self._clock >= self.cfg.episode_steps) & ~terminated
        error = final[:, 0].abs()
        reach, effort = -error, -0.1 * action[:, 0].square()
        if self.cfg.broken_from is not None and self._count >= self.cfg.broken_from:
            reach = reach + NAN
        ended = (terminated | truncated).unsqueeze(-1)
        self._x = torch.where(ended, self._draw(), final)
        self._clock.masked_fill_(ended[:, 0], 0)
        return Step(
            obs={"actor": self._x.clone()},
            final_obs={"actor": final},
            reward=torch.stack([reach, effort], -1),
            cost=torch.zeros(self.num_envs, 0),
            terminated=terminated,
            truncated=truncated,
            metrics={
                "position_error": error,
                "reward/reach/distance": reach,
                "reward/effort/square": effort,
                "broken": (error > 1.9).float(),
            },
        )

    def _draw(self) -> Tensor:
        return torch.rand(self.num_envs, 2, generator=self._generator) * 2 - 1

    def state_dict(self) -> dict[str, Any]:
        return {
            "x": self._x,
            "clock": self._clock,
            "count": self._count,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._x, self._clock = state["x"].clone(), state["clock"].clone()
        self._count = state["count"]
        self._generator.set_state(state["generator"])

    def set_command(self, name: str, value: Tensor, ids: Tensor | None = None) -> None: ...
    def push(self, velocity: Tensor, ids: Tensor | None = None) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class PointTask:
    name: str = "point"
    score: str = "-position_error"
    episode_steps: int = 20
    broken_from: int | None = None
    """Environment step from which the reward is not a number."""
    pair: tuple[float, float] = (0.0, 1.0)
    train: Mapping[str, Any] = field(
        default_factory=lambda: {"num_envs": 8, "iterations": 6, "eval_every": 2, "save_every": 3},
        metadata={"toml": False},
    )

    def build(self, *, num_envs: int, device: str, seed: int) -> PointEnv:
        return PointEnv(self, num_envs, device, seed)


class LinearPolicy:
    """a = -k x, which remembers how often it acted since a reset."""

    obs_groups = ("actor",)

    def __init__(self, gain: Tensor, generator: torch.Generator) -> None:
        self._gain, self._generator = gain, generator
        self.memory: Memory = {}

    def act(self, obs: Obs, *, explore: bool = False) -> Tensor:
        x = obs["actor"]
        self.memory = {"acted": self.memory.get("acted", torch.zeros(len(x))) + 1}
        action = -self._gain * x[:, :1]
        if explore:
            action = action + 0.5 * torch.randn(action.shape, generator=self._generator)
        return action

    def reset(self, mask: Tensor | None = None) -> None:
        if mask is None:
            self.memory = {}
        else:
            self.memory = {"acted": self.memory["acted"] * ~mask}

    def graph(self) -> nn.Module:
        raise NotImplementedError


class Climber:
    """Keeps a random change of the gain where the reward grew."""

    num_steps = 5

    def __init__(self, cfg: "ClimberCfg", seed: int) -> None:
        self._cfg = cfg
        self._generator = torch.Generator().manual_seed(seed)
        self._gain, self._tried = torch.zeros(1), torch.zeros(1)
        self._reward, self._best = torch.zeros(()), torch.tensor(-torch.inf)
        self._fault = ""
        self.policy = LinearPolicy(self._tried, self._generator)

    def act(self, obs: Obs) -> Tensor:
        return self.policy.act(obs, explore=True)

    def observe(self, step: Step) -> None:
        self._reward = self._reward + step.reward.sum(-1).mean()
        self.policy.reset(step.terminated | step.truncated)

    def update(self) -> Metrics:
        skipped = torch.zeros(())
        if not self._reward.isfinite():
            skipped, self._fault = torch.ones(()), "reward of reach in environments 0, 1"
        elif self._reward > self._best:
            self._gain.copy_(self._tried)
            self._best = self._reward
        step = torch.randn(1, generator=self._generator) * self._cfg.step
        self._tried.copy_(self._gain + step + 0.01 * torch.rand(1))
        self._reward = torch.zeros(())
        return {"skipped": skipped, "kl": step.abs()[0], "explained_variance/reach": self._gain[0],
                "explained_variance/effort": self._gain[0] ** 2}  # fmt: skip

    def fault(self) -> str:
        return self._fault

    def state_dict(self) -> dict[str, Any]:
        return {
            "gain": self._gain,
            "tried": self._tried,
            "reward": self._reward,
            "best": self._best,
            "generator": self._generator.get_state(),
            "memory": dict(self.policy.memory),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._gain.copy_(state["gain"])
        self._tried.copy_(state["tried"])
        self._reward, self._best = state["reward"], state["best"]
        self._generator.set_state(state["generator"])
        self.policy.memory = dict(state["memory"])


@dataclass(frozen=True, kw_only=True)
class ClimberCfg:
    step: float = 0.5
    """Size of a change."""

    def build(self, spec: EnvSpec, *, num_envs: int, device: str, seed: int) -> Climber:
        return Climber(self, seed)


def register() -> None:
    """Make "point" and "climber" known by name; the module must be importable as toys."""
    registry.TASKS["point"] = "toys:PointTask"
    registry.LEARNERS["climber"] = "toys:ClimberCfg"
