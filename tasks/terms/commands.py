"""What a robot is told to do: generators whose values every step may change.

A command is advanced before the step's rewards, so that they compare the state with what was asked
for this very moment. Where its time is over it is drawn anew after them, every few steps: to draw
for many environments takes hardly longer than for a few.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any

import torch
from torch import Generator, Tensor

from robo_rl import api
from robo_rl.tasks.terms.rotations import (
    conjugate,
    from_euler,
    from_vector,
    length,
    multiply,
    rotate,
    rotate_inverse,
)
from robo_rl.tasks.terms.view import View, rotation_between

Range = tuple[float, float]


def uniform(generator: Generator, num: int, *ranges: Range) -> Tensor:
    """(num, len(ranges)), each column uniform in its range."""
    low, span = _bounds(ranges)
    return torch.rand(num, len(ranges), generator=generator).mul_(span).add_(low)


@cache
def _bounds(ranges: tuple[Range, ...]) -> tuple[Tensor, Tensor]:
    """Lower ends and widths: to make a tensor of numbers takes longer than to draw a few."""
    low, high = torch.tensor(ranges).unbind(-1)
    return low, high - low


def check_ranges(**ranges: Range) -> None:
    """Raise ValueError where a range, by its name, is upside down or endless."""
    for name, (low, high) in ranges.items():
        if not -inf < low <= high < inf:
            raise ValueError(
                f"{name} is ({low}, {high}); it must be two finite numbers, the lower bound first"
            )


def check_share(**shares: float) -> None:
    """Raise ValueError where a share, by its name, is none."""
    for name, share in shares.items():
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"{name} is {share}; it is a share, in [0, 1]")


class CommandState(ABC):
    """The values of one command in N environments.

    Attributes:
        values: what terms read, by name, each (N, ...), written in place.
        left_s: (N,) [s] until it is drawn anew; infinite where a user holds it.
    """

    def __init__(self, spec: api.Command, num_envs: int, generator: Generator) -> None:
        self.spec = spec
        self.generator = generator
        self.left_s = torch.zeros(num_envs)
        self.values: dict[str, Tensor] = {}

    @abstractmethod
    def draw(self, ids: Tensor, view: View, *, fresh: bool) -> None:
        """New values for rows ids (n,) of a view; fresh: an episode starts there."""

    def advance(self, view: View) -> None:
        """One control step on; the view's state is the new one."""
        self.left_s -= view.layout.step_s

    @abstractmethod
    def hold(self, value: Tensor, ids: Tensor) -> None:
        """Keep rows ids at values (n, fields) until the environment is reset as a whole."""

    def reset(self, ids: Tensor, view: View) -> None:
        """Draw rows whose episode starts, unless a user holds them."""
        free = ids[torch.isfinite(self.left_s[ids])]
        if len(free):
            self.draw(free, view, fresh=True)

    def renew(self, view: View) -> None:
        """Draw rows whose time is over, after the commands that this one looks at."""
        ids = torch.nonzero(self.left_s <= 0.0).flatten()
        if len(ids):
            self.draw(ids, view, fresh=False)
        self.follow(view)

    def follow(self, view: View) -> None:  # noqa: B027 (most look at no other command)
        """Bring values up to date that follow from other commands."""

    def release(self) -> None:
        """Nobody holds it any more."""
        self.left_s.zero_()

    def state_dict(self) -> dict[str, Any]:
        return {"left_s": self.left_s.clone()} | {k: v.clone() for k, v in self.values.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.left_s.copy_(state["left_s"])
        for name, value in self.values.items():
            value.copy_(state[name])


@dataclass(frozen=True, kw_only=True)
class CommandCfg(ABC):
    """The ranges a command is drawn from."""

    @abstractmethod
    def build(self, name: str, num_envs: int, generator: Generator) -> CommandState: ...


@dataclass(frozen=True, kw_only=True)
class BaseTwistCfg(CommandCfg):
    """Velocity of the base along and about its task frame: forward, left, turning."""

    forward: Range = (-1.0, 1.0)
    """[m/s]."""
    left: Range = (-0.6, 0.6)
    """[m/s]."""
    turn: Range = (-1.0, 1.0)
    """[rad/s]."""
    every_s: Range = (4.0, 8.0)
    """Time between two commands [s]."""
    standing: float = 0.1
    """Share of commands that are zero, in [0, 1]."""
    dead_band: float = 0.1
    """Speeds below this are zero [m/s, rad/s]: too slow to be worth a step."""

    def __post_init__(self) -> None:
        check_ranges(forward=self.forward, left=self.left, turn=self.turn, every_s=self.every_s)
        check_share(standing=self.standing)

    def build(self, name: str, num_envs: int, generator: Generator) -> "BaseTwist":
        return BaseTwist(self, name, num_envs, generator)


class BaseTwist(CommandState):
    """Values: base_twist (N, 3) [m/s, m/s, rad/s]."""

    def __init__(self, cfg: BaseTwistCfg, name: str, num_envs: int, generator: Generator) -> None:
        ranges = (cfg.forward, cfg.left, cfg.turn)
        spec = api.Command(
            name=name,
            fields=("forward", "left", "turn"),
            units=("m/s", "m/s", "rad/s"),
            low=tuple(r[0] for r in ranges),
            high=tuple(r[1] for r in ranges),
        )
        super().__init__(spec, num_envs, generator)
        self.cfg = cfg
        self.ranges = ranges
        self.values["base_twist"] = torch.zeros(num_envs, 3)

    def draw(self, ids: Tensor, view: View, *, fresh: bool) -> None:
        drawn = uniform(self.generator, len(ids), *self.ranges, self.cfg.every_s, (0.0, 1.0))
        value, self.left_s[ids], chance = drawn[:, :3], drawn[:, 3], drawn[:, 4:]
        slow = (value.abs() < self.cfg.dead_band) | (chance < self.cfg.standing)
        self.values["base_twist"][ids] = value.masked_fill(slow, 0.0)

    def hold(self, value: Tensor, ids: Tensor) -> None:
        self.values["base_twist"][ids] = value
        self.left_s[ids] = torch.inf


def is_moving(base_twist: Tensor) -> Tensor:
    """Whether a base (N, 3) should move, (N,) bool."""
    return base_twist.abs().amax(-1) > 0.0


GAITS = {
    #        phase offsets FL FR RL RR, share of a stride on the ground, strides per second
    "walk": ((0.0, 0.5, 0.75, 0.25), 0.75, 1.25),
    "trot": ((0.0, 0.5, 0.5, 0.0), 0.55, 2.0),
}
"""Besides standing. Offsets as Hildebrand 1965 (lateral-sequence walk, trot)."""


@dataclass(frozen=True, kw_only=True)
class GaitCfg(CommandCfg):
    """When each foot should stand and how high it should swing, while the base should move."""

    walking: float = 0.25
    """Share of gaits that are a walk, in [0, 1]; the others are a trot."""
    swing_height: Range = (0.05, 0.10)
    """Height of the foot's lowest point in mid-swing [m]."""
    foot_radius: float = 0.022
    """Height of the foot's centre while it stands [m]."""
    every_s: Range = (4.0, 8.0)
    """Time between two gaits [s]."""

    def __post_init__(self) -> None:
        check_ranges(swing_height=self.swing_height, every_s=self.every_s)
        check_share(walking=self.walking)

    def build(self, name: str, num_envs: int, generator: Generator) -> "Gait":
        return Gait(self, name, num_envs, generator)


class Gait(CommandState):
    """A clock per environment. It stops, and all feet should stand, while base_twist is zero.

    Values: foot_phase (N, 4) in [0, 1), foot_stance (N, 4) 1 or 0, foot_height (N, 4) [m] of the
    foot's centre, gait_moves (N,) 1 or 0.
    """

    def __init__(self, cfg: GaitCfg, name: str, num_envs: int, generator: Generator) -> None:
        spec = api.Command(
            name=name,
            fields=("gait", "swing_height"),
            units=("0 walk, 1 trot", "m"),
            low=(0.0, cfg.swing_height[0]),
            high=(1.0, cfg.swing_height[1]),
        )
        super().__init__(spec, num_envs, generator)
        self.cfg = cfg
        offsets, duty, rate = zip(*GAITS.values(), strict=True)
        self._offsets = torch.tensor(offsets)
        self._duty = torch.tensor(duty)[:, None]
        self._rate = torch.tensor(rate)
        self.kind = torch.zeros(num_envs, dtype=torch.long)
        self.swing_height = torch.zeros(num_envs)
        self.clock = torch.zeros(num_envs)
        self.values |= {
            "foot_phase": torch.zeros(num_envs, 4),
            "foot_stance": torch.ones(num_envs, 4),
            "foot_height": torch.full((num_envs, 4), cfg.foot_radius),
            "gait_moves": torch.zeros(num_envs),
        }

    def draw(self, ids: Tensor, view: View, *, fresh: bool) -> None:
        cfg, share = self.cfg, (0.0, 1.0)
        drawn = uniform(self.generator, len(ids), cfg.swing_height, cfg.every_s, share, share)
        self.swing_height[ids], self.left_s[ids], chance, clock = drawn.unbind(-1)
        self.kind[ids] = (chance >= cfg.walking).long()
        if fresh:
            self.clock[ids] = clock
            self._write(view, ids)

    def advance(self, view: View) -> None:
        super().advance(view)
        self.clock += self.values["gait_moves"] * self._rate[self.kind] * view.layout.step_s
        self.clock.frac_()
        self._write(view, slice(None))

    def follow(self, view: View) -> None:
        self._write(view, slice(None))

    def hold(self, value: Tensor, ids: Tensor) -> None:
        self.kind[ids] = value[:, 0].round().long().clamp(0, len(GAITS) - 1)
        self.swing_height[ids] = value[:, 1]
        self.left_s[ids] = torch.inf

    def _write(self, view: View, ids: Tensor | slice) -> None:
        kind = self.kind[ids]
        duty = self._duty[kind]
        moves = is_moving(view.command["base_twist"][ids]).float()[:, None]
        phase = (self.clock[ids, None] + self._offsets[kind]).frac()
        swing = moves * (phase >= duty)
        through = ((phase - duty) / (1.0 - duty)).clamp(min=0.0)
        lift = swing * self.swing_height[ids, None] * torch.sin(torch.pi * through) ** 2
        self.values["foot_phase"][ids] = phase
        self.values["foot_stance"][ids] = 1.0 - swing
        self.values["foot_height"][ids] = self.cfg.foot_radius + lift
        self.values["gait_moves"][ids] = moves[:, 0]

    def state_dict(self) -> dict[str, Any]:
        own = {"kind": self.kind, "swing_height": self.swing_height, "clock": self.clock}
        return super().state_dict() | {name: value.clone() for name, value in own.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.kind.copy_(state["kind"])
        self.swing_height.copy_(state["swing_height"])
        self.clock.copy_(state["clock"])


@dataclass(frozen=True, kw_only=True)
class EePathCfg(CommandCfg):
    """Straight paths of the end-effector: to a pose drawn around the robot, at a speed, then rest.

    Places are drawn on a cylinder about the task frame's vertical axis; orientations about the one
    whose x axis points away from it.
    """

    radius: Range = (0.33, 0.6)
    """Distance from the vertical axis through the base [m]."""
    azimuth: Range = (-1.7, 1.7)
    """Direction from it [rad]; 0 is ahead."""
    height: Range = (0.48, 0.92)
    """Above the ground [m]."""
    roll: Range = (-0.4, 0.4)
    pitch: Range = (-0.3, 0.5)
    yaw: Range = (-0.4, 0.4)
    """[rad]."""
    speed: Range = (0.05, 0.6)
    """Along the path [m/s]."""
    turn_speed: float = 1.5
    """The most that the orientation turns [rad/s]; a path takes longer rather than turn faster."""
    rest_s: Range = (0.3, 1.5)
    """At the end of a path [s]."""
    in_world: float = 0.15
    """Share of paths that are fixed in the world while the base moves on, in [0, 1]."""
    in_world_s: float = 1.5
    """How long such a path is at most followed, so that the base does not walk out of reach [s]."""
    keep_out: tuple[Range, Range, Range] = ((-0.35, 0.29), (-0.2, 0.2), (0.0, 0.42))
    """Box in the task frame, x, y, z [m], that no path enters: trunk, head and legs."""
    candidates: int = 6
    """Goals drawn at a time; the first whose path keeps out of the box is taken."""

    def __post_init__(self) -> None:
        check_ranges(radius=self.radius, azimuth=self.azimuth, height=self.height)
        check_ranges(roll=self.roll, pitch=self.pitch, yaw=self.yaw)
        check_ranges(speed=self.speed, rest_s=self.rest_s)
        check_ranges(
            **dict(zip(("keep_out x", "keep_out y", "keep_out z"), self.keep_out, strict=True))
        )
        check_share(in_world=self.in_world)
        if self.rest_s[0] < 0.0:
            raise ValueError(f"rest_s is {self.rest_s}; a time is not below 0")
        for name, least in (("turn_speed", self.turn_speed), ("in_world_s", self.in_world_s)):
            if least <= 0.0:
                raise ValueError(f"{name} is {least}; it must be above 0")
        if self.candidates < 1:
            raise ValueError(f"candidates is {self.candidates}; at least one goal must be drawn")
        if self.speed[0] <= 0.0:
            raise ValueError(f"speed is {self.speed}; a path needs one above 0 m/s")

    def build(self, name: str, num_envs: int, generator: Generator) -> "EePath":
        return EePath(self, name, num_envs, generator)


def enters(start: Tensor, end: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Whether straight ways (*B, 3) lead into a box (3,): (*B,) bool. One that starts inside and
    leaves it does not."""
    way = end - start
    way = torch.where(way.abs() < 1e-9, 1e-9, way)
    first, second = (low - start) / way, (high - start) / way
    inside_from = torch.minimum(first, second).amax(-1)
    inside_till = torch.maximum(first, second).amin(-1)
    crosses = (inside_from < inside_till) & (inside_from < 1.0) & (inside_till > 0.0)
    leaves = (inside_from < 0.0) & (inside_till < 1.0)
    return crosses & ~leaves


class EePath(CommandState):
    """Values, all in the task frame: ee_pos (N, 3) [m], ee_quat_wxyz (N, 4), ee_twist (N, 6)
    [m/s, rad/s] and ee_left (N, 6), the way [m] and the turn [rad] from here to the path's end.

    A path is kept in the task frame, or, where it is fixed in the world, in the world's axes. An
    episode starts at rest, where the end-effector is; the first path is drawn with the next ones of
    others.
    """

    HELD_AHEAD_S = 0.5
    """How far ahead on its way the end of a held path is taken to be [s]."""
    FIELDS = ("x", "y", "z", "roll", "pitch", "yaw", "vx", "vy", "vz", "wx", "wy", "wz")

    def __init__(self, cfg: EePathCfg, name: str, num_envs: int, generator: Generator) -> None:
        reach = cfg.radius[1]
        turn = cfg.turn_speed
        low = (-reach, -reach, cfg.height[0], cfg.roll[0], cfg.pitch[0], cfg.azimuth[0])
        high = (reach, reach, cfg.height[1], cfg.roll[1], cfg.pitch[1], cfg.azimuth[1])
        fastest = (cfg.speed[1],) * 3 + (turn,) * 3
        spec = api.Command(
            name=name,
            fields=self.FIELDS,
            units=("m",) * 3 + ("rad",) * 3 + ("m/s",) * 3 + ("rad/s",) * 3,
            low=low + tuple(-f for f in fastest),
            high=high + fastest,
        )
        super().__init__(spec, num_envs, generator)
        self.cfg = cfg
        one = torch.tensor([1.0, 0.0, 0.0, 0.0])
        self.values |= {
            "ee_pos": torch.zeros(num_envs, 3),
            "ee_quat_wxyz": one.repeat(num_envs, 1),
            "ee_twist": torch.zeros(num_envs, 6),
            "ee_left": torch.zeros(num_envs, 6),
        }
        self.path = {
            "pos": torch.zeros(num_envs, 3),
            "quat": one.repeat(num_envs, 1),
            "twist": torch.zeros(num_envs, 6),
            "moving_s": torch.zeros(num_envs),
        }
        self.in_world = torch.zeros(num_envs, dtype=torch.bool)

    def draw(self, ids: Tensor, view: View, *, fresh: bool) -> None:
        if fresh:
            self._rest(ids, view)
            return
        cfg, num = self.cfg, len(ids)
        start_pos, start_quat = self.values["ee_pos"][ids], self.values["ee_quat_wxyz"][ids]
        goal_pos, goal_quat = self._goals(start_pos)
        way = goal_pos - start_pos
        turn = rotation_between(start_quat, goal_quat)
        drawn = uniform(self.generator, num, cfg.speed, cfg.rest_s, (0.0, 1.0))
        speed, rest, chance = drawn.unbind(-1)
        takes = torch.maximum(length(way) / speed, length(turn) / cfg.turn_speed)
        takes = takes.clamp(min=view.layout.step_s)
        in_world = is_moving(view.command["base_twist"][ids]) & (chance < cfg.in_world)
        path = self.path
        path["pos"][ids], path["quat"][ids] = start_pos, start_quat
        path["twist"][ids] = torch.cat([way, turn], -1) / takes[:, None]
        path["moving_s"][ids] = takes
        self.in_world[ids] = False
        self.fix_in_world(view, ids[in_world])
        longest = torch.where(in_world, torch.tensor(cfg.in_world_s), torch.inf)
        self.left_s[ids] = torch.minimum(takes + rest, longest)
        self._write(view, ids)

    def _rest(self, ids: Tensor, view: View) -> None:
        path = self.path
        path["pos"][ids], path["quat"][ids] = view.ee_pos_t[ids], view.ee_quat_wxyz_t[ids]
        path["twist"][ids], path["moving_s"][ids] = 0.0, 0.0
        self.in_world[ids], self.left_s[ids] = False, 0.0
        self._write_own(ids)

    def _goals(self, start_pos: Tensor) -> tuple[Tensor, Tensor]:
        """Poses (n, 3), (n, 4) whose straight way from start_pos (n, 3) keeps out of the box; the
        start's own place where no candidate's does."""
        cfg, num = self.cfg, len(start_pos)
        drawn = uniform(self.generator, num * cfg.candidates, cfg.radius, cfg.azimuth, cfg.height)
        radius, azimuth, height = drawn.view(num, cfg.candidates, 3).unbind(-1)
        places = torch.stack([radius * torch.cos(azimuth), radius * torch.sin(azimuth), height], -1)
        low, high = torch.tensor(cfg.keep_out).T
        free = ~enters(start_pos[:, None], places, low, high)
        first = free.float().argmax(1)
        place = places[torch.arange(num), first]
        place = torch.where(free.any(1)[:, None], place, start_pos)
        angles = uniform(self.generator, num, cfg.roll, cfg.pitch, cfg.yaw)
        angles[:, 2] += torch.atan2(place[:, 1], place[:, 0])
        return place, from_euler(angles)

    def advance(self, view: View) -> None:
        super().advance(view)
        path, step = self.path, view.layout.step_s
        now = path["moving_s"].clamp(max=step)[:, None] * path["twist"]
        path["pos"] += now[:, :3]
        turned = multiply(from_vector(now[:, 3:]), path["quat"])
        torch.div(turned, length(turned)[:, None], out=path["quat"])
        path["moving_s"].sub_(step).clamp_(min=0.0)
        path["twist"] *= path["moving_s"][:, None] > 0.0
        self._write(view, slice(None))

    def hold(self, value: Tensor, ids: Tensor) -> None:
        """From this pose on along this twist, for ever; its end is always HELD_AHEAD_S ahead."""
        path = self.path
        path["pos"][ids], path["quat"][ids] = value[:, :3], from_euler(value[:, 3:6])
        path["twist"][ids] = value[:, 6:]
        path["moving_s"][ids] = torch.inf
        self.in_world[ids] = False
        self.left_s[ids] = torch.inf
        self._write_own(ids)

    def fix_in_world(self, view: View, ids: Tensor) -> None:
        """From now on the paths of rows ids of a view stay where they are in the world while the
        base moves."""
        ids = ids[~self.in_world[ids]]
        path, heading = self.path, view.heading_wxyz[ids]
        path["pos"][ids] = view.origin_w[ids] + rotate(heading, path["pos"][ids])
        path["quat"][ids] = multiply(heading, path["quat"][ids])
        twist = path["twist"][ids].view(-1, 2, 3)
        path["twist"][ids] = rotate(heading[:, None], twist).flatten(1)
        self.in_world[ids] = True

    def _write_own(self, ids: Tensor | slice) -> None:
        values, path = self.values, self.path
        values["ee_pos"][ids], values["ee_quat_wxyz"][ids] = path["pos"][ids], path["quat"][ids]
        twist, left_s = path["twist"][ids], path["moving_s"][ids]
        left_s = torch.where(left_s.isinf(), self.HELD_AHEAD_S, left_s)
        values["ee_twist"][ids], values["ee_left"][ids] = twist, left_s[:, None] * twist

    def _write(self, view: View, ids: Tensor | slice) -> None:
        """Values of rows ids of a view."""
        self._write_own(ids)
        in_world = self.in_world if isinstance(ids, slice) else self.in_world[ids]
        rows = torch.nonzero(in_world).flatten()
        if not len(rows):
            return
        rows = rows if isinstance(ids, slice) else ids[rows]
        values, path, heading = self.values, self.path, view.heading_wxyz[rows]
        from_origin = path["pos"][rows] - view.origin_w[rows]
        seen_w = torch.cat([from_origin, values["ee_twist"][rows], values["ee_left"][rows]], -1)
        seen_t = rotate_inverse(heading[:, None], seen_w.view(-1, 5, 3)).view(-1, 15)
        pos, twist, left = seen_t[:, :3], seen_t[:, 3:9], seen_t[:, 9:]
        twist[:, :3] -= view.frame_vel_t(pos, rows)
        twist[:, 5] -= view.heading_rate[rows]
        values["ee_pos"][rows], values["ee_twist"][rows], values["ee_left"][rows] = pos, twist, left
        values["ee_quat_wxyz"][rows] = multiply(conjugate(heading), path["quat"][rows])

    def state_dict(self) -> dict[str, Any]:
        own = {f"path.{name}": value.clone() for name, value in self.path.items()}
        return super().state_dict() | own | {"in_world": self.in_world.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for name, value in self.path.items():
            value.copy_(state[f"path.{name}"])
        self.in_world.copy_(state["in_world"])
