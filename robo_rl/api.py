"""What the rooms say to one another.

Letters in shapes: N environments, K value heads (reward groups), C costs, A action, E ensemble,
H history, O observation, B leading dimensions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor, nn

Obs = Mapping[str, Tensor]
"""Observation groups by name: (N, O) float32, or (N, H, O) with history, oldest first."""

Memory = Mapping[str, Tensor]
"""What a policy remembers between steps, each (N, ...); empty for most."""

Metrics = Mapping[str, Tensor]
"""Values by name, left on their device until the logger reads them."""


@dataclass(frozen=True, kw_only=True)
class ObsTerm:
    """One named slice of an observation group, enough to rebuild it on a robot.

    The value observed is clip(scale * (quantity + noise)).
    """

    name: str
    size: int
    unit: str
    frame: str
    scale: float = 1.0
    noise: float = 0.0
    """Half-width of the uniform noise added in training, in the term's unit."""
    clip: float | None = None
    measured: bool = True
    """Whether a robot can measure it; a critic's group may hold what none can."""
    meaning: str = ""
    """What it is, in words: signs, order, what it is relative to."""


@dataclass(frozen=True, kw_only=True)
class ObsGroup:
    """The terms of one observation group, in order, and how many steps of them are stacked."""

    terms: tuple[ObsTerm, ...]
    history: int = 1
    """1: the group is (N, O). H > 1: it is (N, H, O), oldest first."""

    @property
    def size(self) -> int:
        """Numbers per step, O."""
        return sum(term.size for term in self.terms)


@dataclass(frozen=True, kw_only=True)
class Joint:
    """An actuated joint: default position [rad], PD gains [Nm/rad, Nm s/rad] and limits."""

    name: str
    default: float
    kp: float
    kd: float
    position: tuple[float, float]
    velocity_limit: float
    torque_limit: float


@dataclass(frozen=True, kw_only=True)
class ActionSpec:
    """target = reference + scale * clip(action, low, high), one per joint named, in this order."""

    joints: tuple[str, ...]
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    """Joint targets that hold the default pose [rad]: the reference where that is "default"."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    reference: Literal["default", "current"] = "default"
    """What a target is relative to: the offset, or the joint's position now."""
    heads: tuple[str, ...] = ()
    """The reward group whose limb each action moves; empty where actions have no owner."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command a user may give: its fields with units and ranges."""

    name: str
    fields: tuple[str, ...]
    units: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """Left-right mirror image of a vector: mirrored[i] = sign[i] * vector[index[i]]."""

    index: tuple[int, ...]
    sign: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """What an environment is, as data: stored in every checkpoint, the source of a contract."""

    name: str
    obs: Mapping[str, ObsGroup]
    action: ActionSpec
    joints: tuple[Joint, ...]
    commands: tuple[Command, ...]
    heads: tuple[str, ...]
    costs: tuple[str, ...]
    step_s: float
    max_episode_steps: int | None
    mirror: Mapping[str, Mirror] = field(default_factory=dict[str, Mirror])
    """By observation group, and of the action under "action"; empty without a symmetry."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one control step of N environments gives.

    The tensors are the environment's own: the next step overwrites them; a buffer copies what it
    keeps.
    """

    obs: Obs
    """The observation to act on next: after the reset where an episode ended."""
    final_obs: Obs
    """What followed the action, before any reset; equal to obs where no episode ended."""
    reward: Tensor
    """(N, K), one column per reward group, in the order of EnvSpec.heads."""
    cost: Tensor
    """(N, C), one column per constraint, >= 0, in the order of EnvSpec.costs."""
    terminated: Tensor
    """(N,) bool: the task ended, nothing follows."""
    truncated: Tensor
    """(N,) bool: only the clock ended, value follows."""
    metrics: Metrics
    """(N,) each: tracking errors and the like, in units; "reward/<group>/<term>" each term's
    weighted reward; "broken" 1 where the simulation blew up and was reset."""


class Env(Protocol):
    """N environments stepped together on one device."""

    @property
    def spec(self) -> EnvSpec: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def units(self) -> Mapping[str, str]:
        """Of the task's own metrics, by name."""
        ...

    def reset(self, *, seed: int | None = None, stagger: bool = False) -> Obs:
        """Start every episode anew; with a seed, the same seed gives the same episodes.

        Stagger draws how much of its time each episode has already had, so that in a training not
        all time limits come at once.
        """
        ...

    def step(self, action: Tensor) -> Step:
        """Act, (N, A), and reset what ended."""
        ...

    def set_command(self, name: str, value: Tensor, ids: Tensor | None = None) -> None:
        """Hold a command at a value, (n, fields): sliders, test trajectories."""
        ...

    def push(self, velocity: Tensor, ids: Tensor | None = None) -> None:
        """Add to the base's world velocity, (n, 6) [m/s, rad/s]."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that a bit-equal continuation needs."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class Policy(Protocol):
    """Observation to action: all that evaluation, recording, export and a robot need."""

    memory: Memory

    @property
    def obs_groups(self) -> tuple[str, ...]: ...
    def act(self, obs: Obs, *, explore: bool = False) -> Tensor:
        """Action, (N, A)."""
        ...

    def reset(self, mask: Tensor | None = None) -> None:
        """Forget, where mask (N,) is true or everywhere."""
        ...

    def graph(self) -> nn.Module:
        """The same as a pure module (*obs groups, *memory) -> (action, *memory), for export.

        Raises NotImplementedError where there is none (a sampling planner).
        """
        ...


class Critic(Protocol):
    """Value heads of states or state-action pairs; heads are reward groups or costs."""

    @property
    def heads(self) -> tuple[str, ...]: ...
    def value(self, obs: Obs, action: Tensor | None = None) -> Tensor:
        """(*B, K), ensembles reduced as the method says (min, mean)."""
        ...

    def ensemble(self, obs: Obs, action: Tensor | None = None) -> Tensor:
        """(E, *B, K), E = 1 without an ensemble."""
        ...


class Learner(Protocol):
    """What every learner has. state_dict is nested dicts of tensors and JSON scalars."""

    @property
    def policy(self) -> Policy: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class OfflineLearner(Learner, Protocol):
    """Learns from batches of a data set."""

    def update(self, batch: Mapping[str, Tensor]) -> Metrics: ...


class OnlineLearner(Learner, Protocol):
    """Learns while it acts; one runner serves PPO, SAC and world-model agents."""

    @property
    def num_steps(self) -> int:
        """Environment steps between updates, T."""
        ...

    def act(self, obs: Obs) -> Tensor:
        """Action to explore with, (N, A); keeps what its update needs."""
        ...

    def observe(self, step: Step) -> None: ...
    def update(self) -> Metrics:
        """Learn from what was observed. The metric "skipped" is 1 where a non-finite number was
        found and nothing was learnt; fault() then says what and where."""
        ...

    def fault(self) -> str:
        """What was not finite in the last update: observation terms, reward groups, loss, and in
        which environments; "" if nothing was."""
        ...


class EnvCfg(Protocol):
    """The configuration of a task: a frozen dataclass that builds its environments."""

    @property
    def name(self) -> str: ...
    @property
    def score(self) -> str:
        """The metric, mean over an evaluation, by which a best policy is chosen; lower is better
        for the errors, so it may be written with a leading minus."""
        ...

    @property
    def train(self) -> Mapping[str, Any]:
        """Settings of a training that differ from the learner's own, as in a configuration file."""
        ...

    def build(self, *, num_envs: int, device: str, seed: int) -> Env: ...


class LearnerCfg(Protocol):
    """The configuration of a learner: a frozen dataclass that builds it for an environment."""

    def build(self, spec: EnvSpec, *, num_envs: int, device: str, seed: int) -> OnlineLearner: ...
