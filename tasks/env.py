"""A task as data, and the environment that a simulator makes of it.

The order of a step, and why:
1. robots are pushed if it is time, the action becomes joint targets, the simulator steps and
   refreshes its state;
2. commands advance, so that rewards compare the new state with what was asked for this moment;
3. rewards, terminations and metrics;
4. commands whose time is over are drawn anew, every PERIOD steps: they belong to the future;
5. observations of all rows: for rows whose episode goes on, these are obs and final_obs alike;
6. rows whose episode ended are reset and observed again: obs differs from final_obs there alone.
   final_obs comes first because a reset overwrites what it is made of.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor

from robo_rl import api
from robo_rl.tasks.backends.sim import Sim, require
from robo_rl.tasks.robots.robot import Robot
from robo_rl.tasks.terms.commands import CommandCfg, Range, check_ranges, uniform
from robo_rl.tasks.terms.rotations import about_z
from robo_rl.tasks.terms.term import Observation, Reward, Signs, Term
from robo_rl.tasks.terms.view import CONTACT_N, Layout, View

_NOT_IN_TOML = {"toml": False}
PERIOD = 5
"""Steps between two looks at who is to be pushed and whose command's time is over: to draw for many
environments takes hardly longer than for a few."""


@dataclass(frozen=True, kw_only=True)
class Randomise:
    """How environments differ from the robot's MJCF and from one another. The range (0, 0) of an
    addition, or (1, 1) of a factor, leaves a field as it is."""

    friction: Range = (0.4, 1.25)
    """Sliding friction of the feet on the ground."""
    base_mass: Range = (-1.0, 2.0)
    """Added to the base [kg]."""
    base_com: Range = (-0.03, 0.03)
    """Added to each coordinate of the base's centre of mass [m]."""
    ee_mass: Range = (0.0, 0.0)
    """Added at the end-effector [kg]."""
    kp: Range = (0.9, 1.1)
    """Factor on each joint's stiffness."""
    kd: Range = (0.9, 1.1)
    """Factor on each joint's damping gain."""
    delay: Range = (0.0, 0.01)
    """Between a target and its effect [s], in whole physics steps."""
    joint_pos: Range = (-0.1, 0.1)
    """Added to each joint's default position at a reset [rad]."""
    base_vel: Range = (-0.2, 0.2)
    """Each component of the base's velocity at a reset [m/s, rad/s]."""
    push: Range = (-0.5, 0.5)
    """Added to each horizontal component of the base's velocity by a push [m/s]."""
    push_turn: Range = (-0.3, 0.3)
    """Added to each component of its angular velocity by a push [rad/s]."""
    push_every_s: Range = (5.0, 10.0)
    """Between two pushes [s]."""
    noise: float = 1.0
    """Factor on the noise of all observations."""

    def __post_init__(self) -> None:
        ranges = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "noise"}
        check_ranges(**ranges)
        for name in ("friction", "delay"):
            if ranges[name][0] < 0.0:
                raise ValueError(f"{name} is {ranges[name]}; it must not be below 0")
        for name in ("kp", "kd", "push_every_s"):
            if ranges[name][0] <= 0.0:
                raise ValueError(f"{name} is {ranges[name]}; it must be above 0")
        if not 0.0 <= self.noise < inf:
            raise ValueError(f"noise is {self.noise}; it is a factor, at least 0")


NOMINAL = Randomise(
    friction=(1.0, 1.0),
    base_mass=(0.0, 0.0),
    base_com=(0.0, 0.0),
    ee_mass=(0.0, 0.0),
    kp=(1.0, 1.0),
    kd=(1.0, 1.0),
    delay=(0.0, 0.0),
    joint_pos=(0.0, 0.0),
    base_vel=(0.0, 0.0),
    push=(0.0, 0.0),
    push_turn=(0.0, 0.0),
    noise=0.0,
)
"""Every environment as the MJCF says but for the friction, without noise or pushes."""


@dataclass(frozen=True, kw_only=True)
class TaskCfg:
    """A task: tables of terms by name. A reward's group is a value head of the critic."""

    name: str = field(metadata=_NOT_IN_TOML)
    """In the registry."""
    score: str
    """What an evaluation gives and the best policy has most of: "return", which counts falls, or a
    metric's name, with a leading minus where less is better: a mean over the steps lived."""
    robot: Robot = field(metadata=_NOT_IN_TOML)
    commands: Mapping[str, CommandCfg]
    """In the order in which they are drawn: a later one may look at an earlier one's values."""
    observations: Mapping[str, Mapping[str, Observation]]
    """By group: actor, and critic for what only a simulator knows."""
    rewards: Mapping[str, Mapping[str, Reward]]
    """By group."""
    terminations: Mapping[str, Term]
    metrics: Mapping[str, Term]
    history: Mapping[str, int] = field(default_factory=dict[str, int])
    """Steps that an observation group stacks, by group; 1 where none is given."""
    randomise: Randomise = Randomise()
    head_of_limb: Mapping[str, str] = field(default_factory=dict[str, str])
    """The reward group that owns a limb's actions, by limb; for per-limb advantages."""
    action_reference: Literal["default", "current"] = "default"
    """What a joint target is relative to: the default position or the position now."""
    episode_length_s: float = 20.0
    step_s: float = 0.02
    """Control period [s]."""
    physics_s: float = 0.005
    """Time step of the simulation [s], a divisor of step_s."""
    num_threads: int = 0
    """Of the simulator; 0 for one per core."""
    train: Mapping[str, Any] = field(default_factory=dict[str, Any], metadata=_NOT_IN_TOML)
    """Settings of a training that differ from the learner's own, as in a configuration file."""

    def __post_init__(self) -> None:
        if not (0.0 < self.physics_s <= self.step_s < inf and _whole(self.step_s / self.physics_s)):
            raise ValueError(
                f"step_s is {self.step_s} and physics_s {self.physics_s}; the first must be a "
                f"whole number of times the second"
            )
        if not self.step_s <= self.episode_length_s < 1e9:
            raise ValueError(
                f"episode_length_s is {self.episode_length_s}; an episode has at least one step "
                f"of {self.step_s} s, and an end"
            )
        for group, steps in self.history.items():
            if steps < 1:
                raise ValueError(f"history of {group} is {steps}; 1 stacks nothing")
        require(list(self.history), list(self.observations), "observation group", self.name)
        require(list(self.head_of_limb.values()), list(self.rewards), "reward group", self.name)
        require(list(self.head_of_limb), list(self.robot.limbs), "limb", self.robot.name)
        unowned = [limb for limb in self.robot.limbs if limb not in self.head_of_limb]
        if self.head_of_limb and unowned:
            raise ValueError(
                f"head_of_limb of {self.name} lacks limb {', '.join(unowned)}; give each limb of "
                f"{self.robot.name} a reward group, or none"
            )

    def build(self, *, num_envs: int, device: str = "cpu", seed: int = 0) -> "SimEnv":
        """Its environments, reset."""
        if device != "cpu":
            raise ValueError(f"device is {device!r}; this simulator runs on 'cpu' only")
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; there must be at least one environment")
        from robo_rl.tasks.backends.mujoco_batch import MujocoSim

        sim = MujocoSim(
            self.robot,
            num_envs=num_envs,
            step_s=self.step_s,
            physics_s=self.physics_s,
            num_threads=self.num_threads,
        )
        return SimEnv(self, sim, seed=seed)


@contextmanager
def _light() -> Iterator[None]:
    """Without gradients, on one thread: terms are many small operations, and waking a second
    thread costs more than it saves, with another process on the machine a hundred times more."""
    num = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(num)


class SimEnv:
    """N environments of a task on a simulator; an `api.Env`.

    Attributes:
        view: what terms last saw.
        command_states: the commands by name.
    """

    def __init__(self, cfg: TaskCfg, sim: Sim, *, seed: int) -> None:
        self.cfg = cfg
        self.sim = sim
        self.num_envs = sim.num_envs
        self.device = sim.device
        num, joints, feet = self.num_envs, sim.joints, len(cfg.robot.feet)
        self._generator = torch.Generator().manual_seed(seed)
        self._max_steps = round(cfg.episode_length_s / cfg.step_s)
        self._layout = _layout(cfg, sim)
        self._all = torch.arange(num)
        self.command_states = {
            name: command.build(name, num, self._generator)
            for name, command in cfg.commands.items()
        }
        action = _action_spec(cfg, sim)
        self._scale = torch.tensor(action.scale)
        self._offset = torch.tensor(action.offset)
        self._low, self._high = torch.tensor(action.low), torch.tensor(action.high)
        values = {k: v for c in self.command_states.values() for k, v in c.values.items()}
        self.view = View(
            layout=self._layout,
            state=sim.state,
            command=values,
            action=torch.zeros(num, len(joints)),
            previous_action=torch.zeros(num, len(joints)),
            foot_air_time=torch.zeros(num, feet),
            foot_contact=torch.ones(num, feet, dtype=torch.bool),
            foot_landed=torch.zeros(num, feet, dtype=torch.bool),
        )
        self._episode_steps = torch.zeros(num, dtype=torch.long)
        self._push_in_s = torch.zeros(num)
        self._num_steps = 0
        self._rewards: list[tuple[str, Callable[[View], Tensor], float]] = []
        self._columns: list[slice] = []
        for group, terms in cfg.rewards.items():
            start = len(self._rewards)
            self._rewards += [
                (f"reward/{group}/{name}", term, term.weight * cfg.step_s)
                for name, term in terms.items()
                if term.weight != 0.0
            ]
            self._columns.append(slice(start, len(self._rewards)))
        self._earned = torch.zeros(len(self._rewards), num)
        self._shares = self._earned.unbind()
        self._quantities: list[Observation] = []
        self._groups = {
            name: _Group(terms, cfg.history.get(name, 1), num, self._quantities)
            for name, terms in cfg.observations.items()
        }
        self.units = {name: term.unit for name, term in cfg.metrics.items()}
        _check_terms(cfg, self.view)
        self._randomise_models()
        self.reset()
        self.spec = api.EnvSpec(
            name=cfg.name,
            obs={name: group.spec for name, group in self._groups.items()},
            action=action,
            joints=joints,
            commands=tuple(command.spec for command in self.command_states.values()),
            heads=tuple(cfg.rewards),
            costs=(),
            step_s=cfg.step_s,
            max_episode_steps=self._max_steps,
            mirror=_mirrors(cfg, self._groups),
        )

    @_light()
    def reset(self, *, seed: int | None = None, stagger: bool = False) -> api.Obs:
        """See `api.Env.reset`; held commands are let go."""
        if seed is not None:
            self._generator.manual_seed(seed)
            self._randomise_models()
            self._num_steps = 0
        for command in self.command_states.values():
            command.release()
        self._restart(self._all)
        if stagger:
            # In groups: to reset many at once takes hardly longer than one.
            groups = -(-self._max_steps // PERIOD)
            self._episode_steps.random_(groups, generator=self._generator).mul_(PERIOD)
        return self._observe()

    @_light()
    def step(self, action: Tensor) -> api.Step:
        """See `api.Env.step`; the order is explained at the top of this file."""
        self._check_action(action)
        if self._num_steps % PERIOD == 0:
            self._push_at_random()
        view = self._act(action)
        for command in self.command_states.values():
            command.advance(view)

        reward = self._reward(view)
        terminated = self.sim.broken.clone()
        for end in self.cfg.terminations.values():
            terminated |= end(view)
        truncated = (self._episode_steps >= self._max_steps) & ~terminated
        # What a simulation that blew up shows is no measurement.
        metrics = {
            name: term(view).masked_fill(self.sim.broken, 0.0)
            for name, term in self.cfg.metrics.items()
        }
        metrics |= dict(zip((name for name, _, _ in self._rewards), self._shares, strict=True))
        metrics["broken"] = self.sim.broken.float()

        view.foot_air_time.masked_fill_(view.foot_contact, 0.0)
        self._num_steps += 1
        if self._num_steps % PERIOD == 0:
            for command in self.command_states.values():
                command.renew(view)
            view = view.recommanded()
        self.view = view
        obs = final_obs = self._observe()
        ended = torch.nonzero(terminated | truncated).flatten()
        if len(ended):
            final_obs = {name: value.clone() for name, value in obs.items()}
            self._restart(ended)
            self._observe(ended)
            # What MuJoCo left of a simulation that blew up says nothing.
            broken = torch.nonzero(self.sim.broken).flatten()
            for name in final_obs:
                final_obs[name][broken] = obs[name][broken]
        return api.Step(
            obs=obs,
            final_obs=final_obs,
            reward=reward,
            cost=torch.zeros(self.num_envs, 0),
            terminated=terminated,
            truncated=truncated,
            metrics=metrics,
        )

    @_light()
    def set_command(self, name: str, value: Tensor, ids: Tensor | None = None) -> None:
        """Hold a command, (n, fields), and renew the observation already given."""
        require([name], list(self.command_states), "command", self.cfg.name)
        held = self.command_states[name]
        rows = self._rows(ids)
        expected = (len(rows), len(held.spec.fields))
        if tuple(value.shape) != expected or not bool(value.isfinite().all()):
            raise ValueError(
                f"{name} is {tuple(value.shape)}; it must be {expected} and finite, with the "
                f"fields {', '.join(held.spec.fields)}"
            )
        held.hold(value.float(), rows)
        for command in self.command_states.values():
            command.follow(self.view)
        self.view = self.view.recommanded()
        self._observe(None if ids is None else rows, again=True)

    def push(self, velocity: Tensor, ids: Tensor | None = None) -> None:
        """Add (n, 6) to the base's velocity in world axes [m/s, rad/s], as the next step begins."""
        rows = self._rows(ids)
        if tuple(velocity.shape) != (len(rows), 6) or not bool(velocity.isfinite().all()):
            raise ValueError(
                f"velocity is {tuple(velocity.shape)}; it must be {(len(rows), 6)} and finite"
            )
        self.sim.push(velocity, rows)

    def state_dict(self) -> dict[str, Any]:
        """See `api.Env.state_dict`."""
        view = self.view
        return {
            "sim": self.sim.state_dict(),
            "generator": self._generator.get_state(),
            "commands": {name: c.state_dict() for name, c in self.command_states.items()},
            "observations": {name: group.stacked.clone() for name, group in self._groups.items()},
            "action": view.action.clone(),
            "previous_action": view.previous_action.clone(),
            "foot_air_time": view.foot_air_time.clone(),
            "foot_contact": view.foot_contact.clone(),
            "episode_steps": self._episode_steps.clone(),
            "push_in_s": self._push_in_s.clone(),
            "num_steps": self._num_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where state_dict was taken; the next step is bit-equal."""
        num = len(state["episode_steps"])
        if num != self.num_envs:
            raise ValueError(f"this is the state of {num} environments; here are {self.num_envs}")
        theirs, ours = _shapes(state), _shapes(self.state_dict())
        if theirs != ours:
            raise ValueError(
                f"this is no state of {self.cfg.name} as it is configured here: it has "
                f"{dict(sorted(theirs - ours))} where this environment has "
                f"{dict(sorted(ours - theirs))}"
            )
        self.sim.load_state_dict(state["sim"])
        self._generator.set_state(state["generator"])
        for name, command in self.command_states.items():
            command.load_state_dict(state["commands"][name])
        for name, group in self._groups.items():
            group.stacked.copy_(state["observations"][name])
        for name in ("action", "previous_action", "foot_air_time", "foot_contact"):
            getattr(self.view, name).copy_(state[name])
        self._episode_steps.copy_(state["episode_steps"])
        self._push_in_s.copy_(state["push_in_s"])
        self._num_steps = state["num_steps"]
        self.view = replace(self.view)

    def observe(self) -> api.Obs:
        """The observation to act on next."""
        return {name: group.value for name, group in self._groups.items()}

    def close(self) -> None:
        """Release the simulator."""
        self.sim.close()

    def _rows(self, ids: Tensor | None) -> Tensor:
        """Row numbers (n,) of ids: numbers, a mask (N,), or None for all."""
        if ids is None:
            return self._all
        if ids.dtype == torch.bool and ids.shape == self._all.shape:
            return torch.nonzero(ids).flatten()
        good = ids.dtype == torch.long and ids.dim() == 1
        if not good or bool(((ids < 0) | (ids >= self.num_envs)).any()):
            raise ValueError(
                f"ids are {ids.dtype} of shape {tuple(ids.shape)}; they must be row numbers, int64 "
                f"from 0 to {self.num_envs - 1}, or a mask of {self.num_envs}"
            )
        return ids

    def _check_action(self, action: Tensor) -> None:
        """Only on the CPU is the content looked at: elsewhere that would wait for the device."""
        expected = tuple(self.view.action.shape)
        if tuple(action.shape) != expected:
            raise ValueError(
                f"action is {tuple(action.shape)}; it must be {expected}: environments, joints"
            )
        if self.device == "cpu" and not bool(action.isfinite().all()):
            rows = torch.nonzero(~action.isfinite().all(-1)).flatten().tolist()
            named = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
            raise ValueError(
                f"action is not finite in {len(rows)} of {self.num_envs} environments: {named}; "
                f"nothing was stepped"
            )

    def _push_at_random(self) -> None:
        cfg = self.cfg.randomise
        if cfg.push == cfg.push_turn == (0.0, 0.0):
            return
        self._push_in_s -= PERIOD * self.cfg.step_s
        ids = torch.nonzero(self._push_in_s <= 0.0).flatten()
        if not len(ids):
            return
        level, turn = (cfg.push, cfg.push, (0.0, 0.0)), (cfg.push_turn,) * 3
        self.sim.push(uniform(self._generator, len(ids), *level, *turn), ids)
        self._push_in_s[ids] = uniform(self._generator, len(ids), cfg.push_every_s)[:, 0]

    def _act(self, action: Tensor) -> View:
        before = self.view
        before.previous_action.copy_(before.action)
        before.action.copy_(action)
        reference = (
            self._offset if self.cfg.action_reference == "default" else before.state.joint_pos
        )
        self.sim.step(reference + self._scale * action.clamp(self._low, self._high))
        self._episode_steps += 1
        view = replace(before)
        touched_before = view.foot_contact.clone()
        torch.gt(view.foot_force, CONTACT_N, out=view.foot_contact)
        torch.logical_and(view.foot_contact, ~touched_before, out=view.foot_landed)
        view.foot_air_time.add_(self.cfg.step_s)
        return view

    def _reward(self, view: View) -> Tensor:
        """(N, K); each term's share is left in self._earned."""
        for (_, term, weight), share in zip(self._rewards, self._shares, strict=True):
            torch.mul(term(view), weight, out=share)
        self._earned.masked_fill_(self.sim.broken, 0.0)
        return torch.stack([self._earned[columns].sum(0) for columns in self._columns], -1)

    def _restart(self, ids: Tensor) -> None:
        """New episodes in rows ids, not yet observed."""
        cfg, num = self.cfg.randomise, len(ids)
        layout = self._layout
        offset = uniform(self._generator, num, *(cfg.joint_pos,) * len(self.sim.joints))
        joint_pos = (layout.default_joint_pos + offset).clamp(layout.joint_low, layout.joint_high)
        yaw = uniform(self._generator, num, (-torch.pi, torch.pi))[:, 0]
        place = torch.zeros(num, 3)
        # A bent leg reaches less far down: start a little higher than the default pose stands.
        place[:, 2] = layout.base_height + 0.2 * cfg.joint_pos[1]
        self.sim.reset(
            ids,
            base_pos_w=place,
            base_quat_wxyz=about_z(yaw),
            base_vel=uniform(self._generator, num, *(cfg.base_vel,) * 6),
            joint_pos=joint_pos,
            joint_vel=torch.zeros_like(joint_pos),
        )
        view = self.view
        for buffer in (view.action, view.previous_action, view.foot_air_time):
            buffer[ids] = 0.0
        view.foot_contact[ids] = True
        view.foot_landed[ids] = False
        self._episode_steps[ids] = 0
        self._push_in_s[ids] = uniform(self._generator, num, cfg.push_every_s)[:, 0]
        self.view = replace(view)
        for command in self.command_states.values():
            command.reset(ids, self.view)
        for group in self._groups.values():
            group.forget(ids)

    def _observe(self, ids: Tensor | None = None, *, again: bool = False) -> api.Obs:
        """Write the observations of rows ids; the tensors are the environment's own."""
        view = self.view if ids is None else self.view.rows(ids)
        values = [quantity(view) for quantity in self._quantities]
        rows = slice(None) if ids is None else ids
        noise = self.cfg.randomise.noise
        for group in self._groups.values():
            group.observe(values, rows, self._generator, noise, again=again)
        return self.observe()

    def _randomise_models(self) -> None:
        cfg, num = self.cfg.randomise, self.num_envs
        joints = len(self.sim.joints)
        wanted = {
            "friction": (1, cfg.friction),
            "base_mass": (1, cfg.base_mass),
            "base_com": (3, cfg.base_com),
            "ee_mass": (1, cfg.ee_mass),
            "kp": (joints, cfg.kp),
            "kd": (joints, cfg.kd),
            "delay": (1, cfg.delay),
        }
        values = {}
        for name, (size, span) in wanted.items():
            if span == getattr(NOMINAL, name) and name != "friction":
                continue
            value = uniform(self._generator, num, *(span,) * size)
            values[name] = value if size > 1 else value[:, 0]
        if "delay" in values:
            step = self.cfg.physics_s
            values["delay"] = (values["delay"] / step).round() * step
        self.sim.randomise(values)


def _meaning(term: Observation) -> str:
    """The first paragraph of a term's documentation, on one line."""
    return " ".join((inspect.getdoc(term) or "").partition("\n\n")[0].split())


def _whole(ratio: float) -> bool:
    return abs(ratio - round(ratio)) < 1e-6


def _shapes(state: Mapping[str, Any], prefix: str = "") -> set[tuple[str, tuple[int, ...]]]:
    """Every tensor of nested tables by its path, with its shape."""
    found = set()
    for name, value in state.items():
        if isinstance(value, Mapping):
            found |= _shapes(value, f"{prefix}{name}.")
        elif isinstance(value, Tensor):
            found.add((f"{prefix}{name}", tuple(value.shape)))
    return found


class _Group:
    """One observation group: where its terms write, and what they wrote before.

    Args:
        quantities: what all groups observe, before scale and noise; this one adds what is not
            there yet.
    """

    def __init__(
        self,
        terms: Mapping[str, Observation],
        history: int,
        num_envs: int,
        quantities: list[Observation],
    ) -> None:
        self.terms = terms
        self.history = history
        self.num_envs = num_envs
        self.spec = api.ObsGroup(terms=())
        self.stacked = torch.zeros(num_envs, history, 0)
        self._fresh = torch.ones(num_envs, dtype=torch.bool)
        self._at = []
        for term in terms.values():
            quantity = replace(term, scale=1.0, noise=0.0, clip=None)
            if quantity not in quantities:
                quantities.append(quantity)
            self._at.append(quantities.index(quantity))

    @property
    def value(self) -> Tensor:
        """(N, O), or (N, H, O), oldest first."""
        return self.stacked if self.history > 1 else self.stacked[:, 0]

    def forget(self, ids: Tensor) -> None:
        """The next observation of these rows fills their whole history."""
        self._fresh[ids] = True

    def observe(
        self,
        values: list[Tensor],
        rows: Tensor | slice,
        generator: torch.Generator,
        noise: float,
        *,
        again: bool,
    ) -> None:
        """Add an observation of rows, or, again, replace the newest; values are the quantities."""
        parts = [values[i] for i in self._at]
        if not self.spec.terms:
            self._lay_out(parts)
        value = torch.cat(parts, -1)
        if noise and self._noise.numel():
            noisy = value[:, self._noisy]
            drawn = torch.empty_like(noisy).uniform_(-noise, noise, generator=generator)
            noisy += drawn.mul_(self._noise)
        if self._scaled:
            value *= self._scale
        if self._clipped:
            value.clamp_(-self._clip, self._clip)
        if self.history > 1 and not again:
            self.stacked[rows, :-1] = self.stacked[rows, 1:].clone()
        self.stacked[rows, -1] = value
        if self.history > 1:
            fresh = torch.nonzero(self._fresh[rows]).flatten()
            self.stacked[fresh if isinstance(rows, slice) else rows[fresh]] = value[fresh, None]
            self._fresh[rows] = False

    def _lay_out(self, parts: list[Tensor]) -> None:
        """Sizes are known once the terms have been called."""
        specs, scale, noise, clip = [], [], [], []
        for (name, term), part in zip(self.terms.items(), parts, strict=True):
            size = part.shape[-1]
            specs.append(
                api.ObsTerm(
                    name=name,
                    size=size,
                    unit=term.unit,
                    frame=term.frame,
                    scale=term.scale,
                    noise=term.noise,
                    clip=term.clip,
                    measured=term.measured,
                    meaning=_meaning(term),
                )
            )
            scale += [term.scale] * size
            noise += [term.noise] * size
            clip += [torch.inf if term.clip is None else term.clip] * size
        self.spec = api.ObsGroup(terms=tuple(specs), history=self.history)
        self._scale, self._clip = torch.tensor(scale), torch.tensor(clip)
        self._scaled = any(factor != 1.0 for factor in scale)
        # From the first to the last column with noise: random numbers are dear.
        at = [i for i, width in enumerate(noise) if width > 0.0] or [0, -1]
        self._noisy = slice(at[0], at[-1] + 1)
        self._noise = torch.tensor(noise[self._noisy])
        self._clipped = bool(torch.isfinite(self._clip).any())
        self.stacked = torch.zeros(self.num_envs, self.history, len(scale))


def _check_terms(cfg: TaskCfg, view: View) -> None:
    """Raise ValueError naming a term that does not give what a term of its kind gives.

    Shapes that PyTorch would broadcast in silence are found here, once.
    """
    num = len(view.action)
    tables: list[tuple[str, Mapping[str, Callable[[View], Tensor]]]] = [
        *((f"observation {group}", terms) for group, terms in cfg.observations.items()),
        *((f"reward {group}", terms) for group, terms in cfg.rewards.items()),
        ("termination", cfg.terminations),
        ("metric", cfg.metrics),
    ]
    for table, terms in tables:
        for name, term in terms.items():
            what = f"{table}.{name} of {cfg.name}, {type(term).__name__},"
            try:
                value = term(view)
            except KeyError as error:
                raise ValueError(
                    f"{what} needs the command value {error}; this task's commands give "
                    f"{', '.join(view.command) or 'none'}"
                ) from error
            except (RuntimeError, IndexError) as error:
                raise ValueError(f"{what} cannot be computed for this robot: {error}") from error
            columns = value.shape[1:]
            if len(value) != num or len(columns) != table.startswith("observation"):
                wanted = f"({num}, size)" if table.startswith("observation") else f"({num},)"
                raise ValueError(f"{what} gives {tuple(value.shape)}; it must give {wanted}")
            if table == "termination" and value.dtype != torch.bool:
                raise ValueError(f"{what} gives {value.dtype}; a termination gives torch.bool")


def _layout(cfg: TaskCfg, sim: Sim) -> Layout:
    robot, joints = cfg.robot, sim.joints
    at = {joint.name: i for i, joint in enumerate(joints)}
    limbs: dict[str, Tensor | slice] = {"all": slice(None)}
    for limb, names in robot.limbs.items():
        columns = [at[name] for name in names]
        whole = columns == list(range(columns[0], columns[-1] + 1))
        limbs[limb] = slice(columns[0], columns[-1] + 1) if whole else torch.tensor(columns)
    no_touch, start = {"all": slice(None)}, 0
    for limb, bodies in robot.undesired_contacts.items():
        no_touch[limb] = slice(start, start + len(bodies))
        start += len(bodies)
    return Layout(
        default_joint_pos=torch.tensor([joint.default for joint in joints]),
        joint_low=torch.tensor([joint.position[0] for joint in joints]),
        joint_high=torch.tensor([joint.position[1] for joint in joints]),
        limbs=limbs,
        no_touch=no_touch,
        base_height=sim.home_height,
        step_s=cfg.step_s,
    )


def _action_spec(cfg: TaskCfg, sim: Sim) -> api.ActionSpec:
    """Bounds keep targets in the joints' ranges."""
    robot, joints = cfg.robot, sim.joints
    scale = [float(robot.action_scale[joint.name]) for joint in joints]
    relative = cfg.action_reference == "current"
    spans = [
        (-5.0, 5.0) if relative else ((j.position[0] - o) / s, (j.position[1] - o) / s)
        for j, o, s in zip(joints, sim.home_target, scale, strict=True)
    ]
    owner = {j: h for limb, h in cfg.head_of_limb.items() for j in robot.limbs[limb]}
    return api.ActionSpec(
        joints=tuple(joint.name for joint in joints),
        scale=tuple(scale),
        offset=sim.home_target,
        low=tuple(span[0] for span in spans),
        high=tuple(span[1] for span in spans),
        reference=cfg.action_reference,
        heads=tuple(owner[joint.name] for joint in joints) if owner else (),
    )


def _mirrors(cfg: TaskCfg, groups: Mapping[str, _Group]) -> dict[str, api.Mirror]:
    """The left-right mirror image of each observation group and of the action."""
    robot = cfg.robot
    if not robot.mirror:
        return {}
    names = list(robot.joints)
    joints = api.Mirror(
        index=tuple(names.index(robot.mirror[name][0]) for name in names),
        sign=tuple(robot.mirror[name][1] for name in names),
    )
    mirrors = {"action": joints}
    for name, group in groups.items():
        index: list[int] = []
        sign: list[float] = []
        for term, spec in zip(group.terms.values(), group.spec.terms, strict=True):
            one = _mirror_of(term.signs, spec.size, joints)
            index += [len(sign) + i for i in one.index]
            sign += one.sign
        mirrors[name] = api.Mirror(index=tuple(index), sign=tuple(sign))
    return mirrors


def _mirror_of(signs: Signs, size: int, joints: api.Mirror) -> api.Mirror:
    if signs == "joints":
        return joints
    if signs == "feet":
        # Feet stand left before right, front before rear: FL FR RL RR, block after block.
        return api.Mirror(index=tuple(i ^ 1 for i in range(size)), sign=(1.0,) * size)
    assert not isinstance(signs, str)
    assert len(signs) == size
    return api.Mirror(index=tuple(range(size)), sign=signs)
