"""What terms read: the robots, their commands and the clocks, at one moment."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from robo_rl.tasks.backends.sim import State
from robo_rl.tasks.terms.rotations import (
    about_z,
    conjugate,
    length,
    multiply,
    rotate,
    rotate_inverse,
    to_vector,
    up_in,
    yaw_of,
)

CONTACT_N = 5.0
"""A foot touches the ground when the force on it is larger [N]."""


class _commanded(cached_property[Tensor]):
    """A value that follows from commands as well as from the state."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What does not change while an environment runs. J joints in the robot's order."""

    default_joint_pos: Tensor
    """(J,) [rad]."""
    joint_low: Tensor
    joint_high: Tensor
    """(J,) [rad]: the joints' ranges."""
    limbs: Mapping[str, Tensor | slice]
    """Columns of the joints by limb; "all" is every joint."""
    no_touch: Mapping[str, slice]
    """Columns of State.undesired_contacts by limb; "all" is every body."""
    base_height: float
    """Of the base's origin in the default pose [m]."""
    step_s: float
    """Control period [s]."""


@dataclass(frozen=True, kw_only=True)
class View:
    """N environments at one moment. F feet, A actions.

    `_t` is the task frame: its origin is below the base on the ground, its x axis along the base's
    heading, its z axis up. It moves and turns with the base and does not tilt with it.
    """

    layout: Layout
    state: State
    command: Mapping[str, Tensor]
    """The commands' values by name, (N, ...)."""
    action: Tensor
    """(N, A): the last action, as the policy gave it."""
    previous_action: Tensor
    """(N, A): the one before."""
    foot_air_time: Tensor
    """(N, F) [s]: how long each foot is, or before it landed in this step was, in the air."""
    foot_contact: Tensor
    """(N, F) bool."""
    foot_landed: Tensor
    """(N, F) bool: it touched down in this step."""

    def rows(self, ids: Tensor) -> "View":
        """Some of the environments, copied."""
        return replace(
            self,
            state=self.state.rows(ids),
            command={name: value[ids] for name, value in self.command.items()},
            action=self.action[ids],
            previous_action=self.previous_action[ids],
            foot_air_time=self.foot_air_time[ids],
            foot_contact=self.foot_contact[ids],
            foot_landed=self.foot_landed[ids],
        )

    def recommanded(self) -> "View":
        """The same moment after commands were drawn anew; what the state alone gives is kept."""
        view = copy(self)
        for name in _OF_COMMANDS:
            view.__dict__.pop(name, None)
        return view

    def limb(self, name: str) -> Tensor | slice:
        """Columns of a limb's joints, to index joint tensors with."""
        if name not in self.layout.limbs:
            raise ValueError(f"no limb {name!r}, only {', '.join(self.layout.limbs)}")
        return self.layout.limbs[name]

    def no_touch(self, limb: str) -> slice:
        """Columns of a limb's bodies, to index State.undesired_contacts with."""
        if limb not in self.layout.no_touch:
            raise ValueError(
                f"no undesired contacts of limb {limb!r}, only of {', '.join(self.layout.no_touch)}"
            )
        return self.layout.no_touch[limb]

    @cached_property
    def gravity_b(self) -> Tensor:
        """(N, 3): the direction of gravity in the base's axes; (0, 0, -1) when level."""
        return -up_in(self.state.base_quat_wxyz)

    @cached_property
    def foot_force(self) -> Tensor:
        """(N, F) [N]: size of the force on each foot."""
        return length(self.state.foot_force_w)

    @cached_property
    def base_lin_vel_b(self) -> Tensor:
        """(N, 3) [m/s]."""
        return rotate_inverse(self.state.base_quat_wxyz, self.state.base_lin_vel_w)

    @cached_property
    def _yaw(self) -> Tensor:
        return yaw_of(self.state.base_quat_wxyz)

    @cached_property
    def heading_wxyz(self) -> Tensor:
        """(N, 4): turns the task frame's axes into the world's."""
        return about_z(self._yaw)

    @cached_property
    def _vectors_t(self) -> Tensor:
        """(N, V, 3): the base's velocity and, of the end-effector, its place seen from the base's
        origin, its velocity and its angular velocity: turned into the task frame together."""
        state, vectors = self.state, [self.state.base_lin_vel_w]
        if state.ee_pos_w.shape[-1]:
            from_base = state.ee_pos_w - state.base_pos_w
            vectors += [from_base, state.ee_lin_vel_w, state.ee_ang_vel_w]
        x, y, z = torch.stack(vectors, 1).unbind(-1)
        cosine, sine = self._yaw.cos()[:, None], self._yaw.sin()[:, None]
        return torch.stack([cosine * x + sine * y, cosine * y - sine * x, z], -1)

    @cached_property
    def origin_w(self) -> Tensor:
        """(N, 3) [m]: the task frame's origin, below the base on the ground."""
        return self.state.base_pos_w * self.state.base_pos_w.new_tensor([1.0, 1.0, 0.0])

    @cached_property
    def yaw_rate(self) -> Tensor:
        """(N,) [rad/s]: about the vertical."""
        return -(self.state.base_ang_vel_b * self.gravity_b).sum(-1)

    @cached_property
    def heading_rate(self) -> Tensor:
        """(N,) [rad/s]: how fast the task frame turns; yaw_rate while the base is level.

        Of a heading atan2(f_y, f_x), f the base's x axis, whose change is the cross product of the
        base's angular velocity and f.
        """
        sine = -self.gravity_b[:, 0]  # of the x axis' slope
        roll_rate = self.state.base_ang_vel_b[:, 0]
        return (self.yaw_rate - sine * roll_rate) / (1.0 - sine.square()).clamp(min=1e-3)

    @cached_property
    def base_lin_vel_t(self) -> Tensor:
        """(N, 3) [m/s]: the base's velocity over the ground, along the task frame's axes."""
        return self._vectors_t[:, 0]

    @cached_property
    def base_twist_t(self) -> Tensor:
        """(N, 3) [m/s, m/s, rad/s]: forward, left, turning; what the base is commanded."""
        return torch.cat([self.base_lin_vel_t[:, :2], self.yaw_rate[:, None]], -1)

    @cached_property
    def ee_pos_t(self) -> Tensor:
        """(N, 3) [m]."""
        return self._raised(self.state.base_pos_w[:, 2])

    @cached_property
    def ee_quat_wxyz_t(self) -> Tensor:
        """(N, 4)."""
        return multiply(conjugate(self.heading_wxyz), self.state.ee_quat_wxyz)

    @cached_property
    def ee_lin_vel_t(self) -> Tensor:
        """(N, 3) [m/s]: as seen by one who stands in the moving task frame."""
        return self._vectors_t[:, 2] - self.frame_vel_t(self.ee_pos_t)

    @cached_property
    def ee_ang_vel_t(self) -> Tensor:
        """(N, 3) [rad/s]: as seen by one who stands in the turning task frame."""
        value = self._vectors_t[:, 3].clone()
        value[:, 2] -= self.heading_rate
        return value

    def frame_vel_t(self, point_t: Tensor, ids: Tensor | slice = slice(None)) -> Tensor:
        """(n, 3) [m/s]: how fast points (n, 3) fixed in the task frames of rows ids move over the
        ground."""
        x, y, _ = point_t.unbind(-1)
        vx, vy, _ = self.base_lin_vel_t[ids].unbind(-1)
        turn = self.heading_rate[ids]
        return torch.stack([vx - turn * y, vy + turn * x, torch.zeros_like(x)], -1)

    @cached_property
    def ee_pos_measured_t(self) -> Tensor:
        """(N, 3) [m]: what ee_pos_t is if the base is at its default height: from joint encoders
        and gravity alone."""
        return self._raised(self.layout.base_height)

    def _raised(self, height: Tensor | float) -> Tensor:
        value = self._vectors_t[:, 1].clone()
        value[:, 2] += height
        return value

    @_commanded
    def ee_pos_error_t(self) -> Tensor:
        """(N, 3) [m]: from the end-effector to the place commanded."""
        return self.command["ee_pos"] - self.ee_pos_t

    @_commanded
    def ee_distance(self) -> Tensor:
        """(N,) [m]: of the end-effector from the place commanded."""
        return length(self.ee_pos_error_t)

    @_commanded
    def contact_agreement(self) -> Tensor:
        """(N,): share of feet that touch the ground, or do not, as scheduled."""
        scheduled = self.command["foot_stance"] > 0.5
        return (self.foot_contact == scheduled).float().mean(-1)

    @_commanded
    def ee_lin_vel_error(self) -> Tensor:
        """(N,) [m/s]: of the end-effector's velocity from the one commanded."""
        return length(self.command["ee_twist"][:, :3] - self.ee_lin_vel_t)

    @_commanded
    def ee_ang_vel_error(self) -> Tensor:
        """(N,) [rad/s]: of its angular velocity from the one commanded."""
        return length(self.command["ee_twist"][:, 3:] - self.ee_ang_vel_t)

    @_commanded
    def base_vel_error(self) -> Tensor:
        """(N,) [m/s]: of the base's horizontal velocity from the one commanded."""
        return length(self.command["base_twist"][:, :2] - self.base_lin_vel_t[:, :2])

    @_commanded
    def ee_rotation_error_t(self) -> Tensor:
        """(N, 3) [rad]: the rotation vector from the end-effector to the orientation commanded."""
        return rotation_between(self.ee_quat_wxyz_t, self.command["ee_quat_wxyz"])

    @_commanded
    def ee_angle(self) -> Tensor:
        """(N,) [rad]: between the end-effector's orientation and the one commanded."""
        return length(self.ee_rotation_error_t)

    def to_world(self, point_t: Tensor) -> Tensor:
        """A point (N, 3) of the task frame, in the world's."""
        return self.origin_w + rotate(self.heading_wxyz, point_t)


_OF_COMMANDS = [name for name, value in vars(View).items() if isinstance(value, _commanded)]


def rotation_between(start_wxyz: Tensor, goal_wxyz: Tensor) -> Tensor:
    """Rotation vector (*B, 3) [rad], in the axes both are given in, that turns start into goal."""
    return to_vector(multiply(goal_wxyz, conjugate(start_wxyz)))
