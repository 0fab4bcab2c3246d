"""The tracking suite: how well an end-effector follows paths, while the robot stands and walks.

Source of the paths: the hardware tests of Vijayan et al. 2025, arXiv:2507.08656, whose semicircle
has a radius of 60 cm around a larger robot.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from robo_rl import api
from robo_rl.tasks.env import SimEnv, TaskCfg
from robo_rl.tasks.terms.commands import BaseTwistCfg, EePath, EePathCfg, GaitCfg
from robo_rl.tasks.terms.rotations import from_euler, to_euler
from robo_rl.tasks.terms.view import View, rotation_between

SPEEDS = (0.1, 0.25, 0.5)
"""Of the end-effector along its path [m/s]."""
WALKS = (0.3, 0.5)
"""Of the base, forward [m/s]."""
CENTRE = (0.46, 0.0, 0.68)
"""Of lines and circles, in the task frame [m]: in the middle of what the arm reaches level."""
LINE_M = 0.3
CIRCLE_M = 0.2
SEMICIRCLE_M = 0.45
"""Length of the lines, radius of the circle and of the semicircle [m]."""
SEMICIRCLE_HEIGHT_M = 0.62
SWAY = (0.2, 4.0)
"""Of the base under an end-effector held in the world: fastest [m/s], and there and back in [s]."""
LEAD_IN_S = 1.0
"""From where the end-effector is to where its path starts; errors count afterwards [s]."""
DURATION_S = 8.0
"""Of a scenario, lead-in and all [s]."""

Path = Callable[[Tensor], Tensor]
"""From the distance gone (T,) [m] to x, y, z [m], roll, pitch, yaw [rad] in the task frame, (T, 6);
it turns about z only."""

Row = dict[str, str | float]
"""One line of the table in SI units: "scenario", and the key of each column."""


def _there_and_back(distance: Tensor, length: float) -> Tensor:
    return length - (distance % (2.0 * length) - length).abs()


def _pose(x: Tensor, y: Tensor, z: Tensor, yaw: Tensor) -> Tensor:
    flat = torch.zeros_like(yaw)
    return torch.stack([x, y, z, flat, flat, yaw], -1)


def line(distance: Tensor, axis: int) -> Tensor:
    """A straight line through the centre along an axis (0 x, 1 y, 2 z), from its lower end there
    and back."""
    pos = distance.new_tensor(CENTRE).repeat(len(distance), 1)
    pos[:, axis] += _there_and_back(distance, LINE_M) - 0.5 * LINE_M
    x, y, z = pos.unbind(-1)
    return _pose(x, y, z, torch.zeros_like(distance))


def circle_yz(distance: Tensor) -> Tensor:
    """A circle about the centre in the YZ plane, from its top."""
    angle, flat = distance / CIRCLE_M, torch.zeros_like(distance)
    x, y, z = CENTRE
    return _pose(x + flat, y + CIRCLE_M * angle.sin(), z + CIRCLE_M * angle.cos(), flat)


def semicircle(distance: Tensor) -> Tensor:
    """Half a circle about the task frame's vertical axis, pointing away from it: from ahead to the
    robot's left, to its right and back."""
    half = torch.pi * SEMICIRCLE_M
    yaw = _there_and_back(distance + 0.5 * half, half) / SEMICIRCLE_M - 0.5 * torch.pi
    height = torch.full_like(yaw, SEMICIRCLE_HEIGHT_M)
    return _pose(SEMICIRCLE_M * yaw.cos(), SEMICIRCLE_M * yaw.sin(), height, yaw)


def centre(distance: Tensor) -> Tensor:
    """The centre, however far one goes."""
    flat = torch.zeros_like(distance)
    x, y, z = CENTRE
    return _pose(x + flat, y + flat, z + flat, flat)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One path at one speed."""

    name: str
    path: Path
    speed: float = 0.0
    """Along the path [m/s]."""
    forward: float = 0.0
    """Of the base [m/s]."""
    in_world: bool = False
    """Whether the end-effector is held in the world after the lead-in, while the base sways."""

    def commands(self, num: int, step_s: float) -> Tensor:
        """Pose and twist (num, 12) at the start of each step after the lead-in.

        The twist is that to the next pose: a path is a polygon with a side a step, as a path
        generator on a robot would send it.
        """
        time = torch.arange(num + 1, dtype=torch.float64) * step_s
        pose = self.path(self.speed * time)
        return torch.cat([pose[:-1], pose.diff(dim=0) / step_s], -1).float()

    def forward_vel(self, time: Tensor) -> Tensor:
        """Forward velocity of the base (T,) [m/s] at times (T,) [s]."""
        if not self.in_world:
            return torch.full_like(time, self.forward)
        since = time - LEAD_IN_S
        sway = self.forward * torch.cos(2.0 * torch.pi * since / SWAY[1])
        return torch.where(since > -1e-6, sway, 0.0)


PATHS: Mapping[str, Path] = {
    "line_x": partial(line, axis=0),
    "line_y": partial(line, axis=1),
    "line_z": partial(line, axis=2),
    "circle_yz": circle_yz,
    "semicircle": semicircle,
}
STANDING = tuple(
    Scenario(name=f"{name}_{speed}", path=path, speed=speed)
    for name, path in PATHS.items()
    for speed in SPEEDS
)
WALKING = (
    Scenario(name="hold_world", path=centre, forward=SWAY[0], in_world=True),
    *(
        Scenario(name=f"walk_{walk}_{speed}", path=circle_yz, speed=speed, forward=walk)
        for walk in WALKS
        for speed in SPEEDS
    ),
)

GROUPS: Mapping[str, Callable[[Scenario], bool]] = {
    "slow standing lines": lambda s: s.name.startswith("line_") and s.speed == SPEEDS[0],
    "standing": lambda s: s.forward == 0.0,
    "walking": lambda s: s.forward != 0.0,
    "all": lambda s: True,
}
"""Scenarios that are also summed up in a row of their own."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A number per scenario, over all its environments and the time that counts."""

    key: str
    """In a row, with its unit."""
    metric: str
    """The environment's, each step."""
    squared: bool = True
    """Root of the mean square, or else the mean."""
    heading: tuple[str, str]
    """In the table: name and unit."""
    factor: float = 1.0
    """From the key's unit to the heading's."""


COLUMNS = (
    Column(key="position_rmse_m", metric="ee_position", heading=("position", "cm"), factor=100.0),
    Column(
        key="position_mean_m",
        metric="ee_position",
        squared=False,
        heading=("(mean)", "cm"),
        factor=100.0,
    ),
    Column(
        key="rotation_rmse_rad",
        metric="ee_rotation",
        heading=("rotation", "deg"),
        factor=180.0 / torch.pi,
    ),
    Column(key="velocity_rmse_m_s", metric="ee_velocity", heading=("velocity", "m/s")),
    Column(
        key="angular_velocity_rmse_rad_s",
        metric="ee_angular_velocity",
        heading=("angular", "rad/s"),
    ),
    Column(key="base_velocity_rmse_m_s", metric="base_velocity", heading=("base", "m/s")),
    Column(key="yaw_rate_rmse_rad_s", metric="yaw_rate", heading=("turning", "rad/s")),
    Column(
        key="contact_agreement",
        metric="contact_agreement",
        squared=False,
        heading=("contacts", "%"),
        factor=100.0,
    ),
    Column(key="power_w", metric="power", squared=False, heading=("power", "W")),
)
"""A task without a metric has no such column."""
FALLS = Column(key="falls", metric="", heading=("falls", "%"), factor=100.0)
BASELINE = Column(
    key="baseline_position_rmse_m", metric="", heading=("baseline", "cm"), factor=100.0
)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """T steps of N environments, the scenarios' one after another."""

    metrics: Mapping[str, Tensor]
    """(T, N) each, those of `COLUMNS`."""
    fallen: Tensor
    """(T, N) bool: it fell in this step or before."""
    ee_pos_t: Tensor
    ee_pos_command_t: Tensor
    """(T, N, 3) [m]."""
    foot_contact: Tensor
    foot_stance: Tensor
    """(T, N, F) bool: as it is and as it should be."""


@dataclass(frozen=True, kw_only=True)
class TrackingResult:
    """What the suite found: a row for each scenario, then for each group of them."""

    rows: Sequence[Row]
    baseline: Sequence[Row]
    """The same with an action of zero."""
    settings: Mapping[str, Any]
    """What was asked for: task, environments a scenario, seed, times, what was left out."""

    def table(self) -> str:
        """The rows as text."""
        columns = [c for c in (*COLUMNS, FALLS, BASELINE) if c.key in self.rows[0]]
        lines = [["scenario", *(c.heading[0] for c in columns)]]
        lines.append(["", *(c.heading[1] for c in columns)])
        for row in self.rows:
            numbers = (f"{c.factor * float(row[c.key]):.3g}" for c in columns)
            lines.append([str(row["scenario"]), *numbers])
        first, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
        text = [
            line[0].ljust(first)
            + "".join(f"  {cell:>{width}}" for cell, width in zip(line[1:], widths, strict=True))
            for line in lines
        ]
        text.insert(-sum(row["scenario"] in GROUPS for row in self.rows), "")
        s = self.settings
        text += [
            "",
            f"{s['num_envs']} environments a scenario, seed {s['seed']}. Errors are root mean "
            f"squares from {s['lead_in_s']:g} s to {s['duration_s']:g} s; after a fall",
            "the zero-action baseline's count, whose position error is in the last column.",
        ]
        if s["left_out"]:
            text.append(f"Left out: {', '.join(s['left_out'])}: {s['why_left_out']}")
        return "\n".join(text)

    def to_dict(self) -> dict[str, Any]:
        """Rows, settings and baseline, ready for JSON."""
        return {
            "rows": list(self.rows),
            "settings": dict(self.settings),
            "baseline": list(self.baseline),
        }


def tracking(
    policy: api.Policy,
    task_cfg: api.EnvCfg,
    *,
    num_envs: int = 32,
    quick: bool = False,
    seed: int = 0,
    out: pathlib.Path | None = None,
) -> TrackingResult:
    """Errors of a policy on the suite's paths, beside those of doing nothing.

    Every environment differs as in training (mass, friction, gains, delay, noise), but is not
    pushed. What the policy remembers is forgotten.

    Args:
        task_cfg: a task with an end-effector; one without a gait is measured standing only.
        num_envs: of each scenario.
        quick: a third of them.
        out: folder for plots (SVG); none without one.
    """
    cfg = _measurable(task_cfg)
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}; each scenario needs at least one environment")
    num = max(1, num_envs // 3) if quick else num_envs
    walks = isinstance(cfg.commands.get("gait"), GaitCfg)
    scenarios = STANDING + WALKING if walks else STANDING
    own, baseline = measure(policy, cfg, scenarios, num_envs=num, seed=seed)
    lead = round(LEAD_IN_S / cfg.step_s)
    nothing = rows(baseline, baseline, scenarios, lead=lead)
    result = TrackingResult(
        rows=rows(own, baseline, scenarios, lead=lead),
        baseline=nothing,
        settings={
            "task": cfg.name,
            "num_envs": num,
            "quick": quick,
            "seed": seed,
            "lead_in_s": LEAD_IN_S,
            "duration_s": DURATION_S,
            "left_out": [] if walks else [s.name for s in WALKING],
            "why_left_out": "" if walks else f"{cfg.name} has no command 'gait', it cannot walk",
        },
    )
    if out is not None:
        from robo_rl.tasks.loco_manip.tracking_plots import draw

        draw(own, baseline, scenarios, feet=cfg.robot.feet, step_s=cfg.step_s, out=out)
    return result


def measure(
    policy: api.Policy,
    cfg: TaskCfg,
    scenarios: Sequence[Scenario],
    *,
    num_envs: int,
    seed: int,
    duration_s: float = DURATION_S,
) -> tuple[Recording, Recording]:
    """What the policy does, and what an action of zero does from the same starts."""
    calm = replace(
        cfg,
        randomise=replace(cfg.randomise, push=(0.0, 0.0), push_turn=(0.0, 0.0)),
        episode_length_s=duration_s + 1.0,
    )
    env = calm.build(num_envs=num_envs * len(scenarios), seed=seed)
    steps = round(duration_s / cfg.step_s)
    try:
        baseline = record(None, env, scenarios, seed=seed, steps=steps)
        return record(policy, env, scenarios, seed=seed, steps=steps), baseline
    finally:
        env.close()


def charged(own: Tensor, fallen: Tensor, baseline: Tensor) -> Tensor:
    """A metric (T, N) that is the baseline's (T, N) from a fall on, where fallen (T, N) says so:
    falling must not pay."""
    return torch.where(fallen, baseline, own)


def rows(
    own: Recording, baseline: Recording, scenarios: Sequence[Scenario], *, lead: int
) -> list[Row]:
    """A row for each scenario and for each group that has one; the first lead steps only count as
    far as falls go."""
    metrics = {
        name: charged(value, own.fallen, baseline.metrics[name])[lead:]
        for name, value in own.metrics.items()
    }
    base_position = baseline.metrics["ee_position"][lead:]
    num_envs = own.fallen.shape[1] // len(scenarios)
    members = {s.name: [i] for i, s in enumerate(scenarios)}
    members |= {g: [i for i, s in enumerate(scenarios) if has(s)] for g, has in GROUPS.items()}
    found = []
    for name, numbers in members.items():
        if not numbers:
            continue
        ids = envs_of(numbers, num_envs)
        row: Row = {"scenario": name}
        for column in COLUMNS:
            if column.metric in metrics:
                value = metrics[column.metric][:, ids]
                row[column.key] = _rms(value) if column.squared else value.mean().item()
        row[FALLS.key] = own.fallen[-1, ids].float().mean().item()
        row[BASELINE.key] = _rms(base_position[:, ids])
        found.append(row)
    return found


def envs_of(scenarios: Sequence[int], num_envs: int) -> Tensor:
    """The environments (n,) of scenarios by their number."""
    first = torch.tensor(scenarios, dtype=torch.long)[:, None] * num_envs
    return (first + torch.arange(num_envs)).flatten()


def _rms(value: Tensor) -> float:
    return value.square().mean().sqrt().item()


def _measurable(cfg: api.EnvCfg) -> TaskCfg:
    """The configuration, if it is of a task that the suite can command and measure."""
    if not isinstance(cfg, TaskCfg):
        raise ValueError(
            f"{cfg.name} is no TaskCfg but a {type(cfg).__name__}; the tracking suite measures "
            f"tasks of robo_rl.tasks, such as go2_arx5-twist"
        )
    wanted = {"ee": EePathCfg, "base": BaseTwistCfg}
    for name, kind in wanted.items():
        if not isinstance(cfg.commands.get(name), kind):
            raise ValueError(
                f"{cfg.name} has no command {name!r} of type {kind.__name__}, only "
                f"{', '.join(cfg.commands)}; the tracking suite leads an end-effector along "
                f"paths: measure a task such as go2_arx5-twist"
            )
    needed = {c.metric for c in COLUMNS if c.metric.startswith("ee_")}
    if missing := sorted(needed - set(cfg.metrics)):
        raise ValueError(
            f"{cfg.name} has no metric {', '.join(missing)}, only {', '.join(cfg.metrics)}; the "
            f"tracking suite reports them: add them to the task as go2_arx5-twist does"
        )
    return cfg


@torch.no_grad()
def record(
    policy: api.Policy | None,
    env: SimEnv,
    scenarios: Sequence[Scenario],
    *,
    seed: int,
    steps: int,
) -> Recording:
    """All scenarios at once from a reset with this seed; without a policy, an action of zero."""
    num_envs, step_s = env.num_envs // len(scenarios), env.cfg.step_s
    lead = round(LEAD_IN_S / step_s)
    paths = torch.stack([s.commands(steps - lead, step_s) for s in scenarios], 1)
    time = torch.arange(steps, dtype=torch.float64) * step_s
    base = torch.zeros(steps, len(scenarios), 3)
    base[..., 0] = torch.stack([s.forward_vel(time) for s in scenarios], 1)
    world = envs_of([i for i, s in enumerate(scenarios) if s.in_world], num_envs)
    led = envs_of([i for i, s in enumerate(scenarios) if not s.in_world], num_envs)

    if policy is not None:
        policy.reset()
    obs = env.reset(seed=seed)
    _set_gait(env)
    tape = _Tape(env, steps)
    action = torch.zeros(env.num_envs, len(env.spec.action.joints))
    for k in range(steps):
        if k == 0 or not torch.equal(base[k], base[k - 1]):
            env.set_command("base", base[k].repeat_interleave(num_envs, 0))
        if k == 0:
            start = paths[0, :, :6].repeat_interleave(num_envs, 0)
            env.set_command("ee", _lead_in(env.view, start))
        elif k >= lead:
            value = paths[k - lead].repeat_interleave(num_envs, 0)
            if k == lead:
                env.set_command("ee", value)
                _hold_in_world(env, world)
            else:
                env.set_command("ee", value[led], led)
        step = env.step(action if policy is None else policy.act(obs))
        if policy is not None:
            policy.reset(step.terminated | step.truncated)
        obs = step.obs
        tape.add(k, step)
    return tape.recording()


def _set_gait(env: SimEnv) -> None:
    """A trot with the middle swing height, for whoever moves."""
    gait = env.command_states.get("gait")
    if gait is not None:
        height = 0.5 * (gait.spec.low[1] + gait.spec.high[1])
        env.set_command("gait", torch.tensor([[1.0, height]]).repeat(env.num_envs, 1))


def _lead_in(view: View, start: Tensor) -> Tensor:
    """Commands (N, 12) that lead each end-effector from where it is to a pose (N, 6), straight and
    with a constant twist."""
    pos, quat = view.ee_pos_t, view.ee_quat_wxyz_t
    turn = rotation_between(quat, from_euler(start[:, 3:]))
    twist = torch.cat([start[:, :3] - pos, turn], -1) / LEAD_IN_S
    return torch.cat([pos, to_euler(quat), twist], -1)


def _hold_in_world(env: SimEnv, ids: Tensor) -> None:
    ee = env.command_states["ee"]
    assert isinstance(ee, EePath)
    if len(ids):
        ee.fix_in_world(env.view, ids)


class _Tape:
    """Copies what the environment overwrites."""

    def __init__(self, env: SimEnv, steps: int) -> None:
        feet = len(env.cfg.robot.feet)
        names = dict.fromkeys(c.metric for c in COLUMNS if c.metric in env.cfg.metrics)
        self._env = env
        self._metrics = {name: torch.zeros(steps, env.num_envs) for name in names}
        self._fallen = torch.zeros(steps, env.num_envs, dtype=torch.bool)
        self._pos = torch.zeros(2, steps, env.num_envs, 3)
        self._feet = torch.ones(2, steps, env.num_envs, feet, dtype=torch.bool)

    def add(self, k: int, step: api.Step) -> None:
        view = self._env.view
        for name, value in self._metrics.items():
            value[k] = step.metrics[name]
        torch.logical_or(self._fallen[max(k - 1, 0)], step.terminated, out=self._fallen[k])
        self._pos[0, k] = view.ee_pos_t
        self._pos[1, k] = view.command["ee_pos"]
        self._feet[0, k] = view.foot_contact
        if "foot_stance" in view.command:
            self._feet[1, k] = view.command["foot_stance"] > 0.5

    def recording(self) -> Recording:
        return Recording(
            metrics=self._metrics,
            fallen=self._fallen,
            ee_pos_t=self._pos[0],
            ee_pos_command_t=self._pos[1],
            foot_contact=self._feet[0],
            foot_stance=self._feet[1],
        )
