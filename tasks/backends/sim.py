"""What a task sees of a simulator: the state of N robots as tensors, and the acts upon it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from robo_rl.api import Joint
from robo_rl.config import did_you_mean


@dataclass(frozen=True, slots=True)
class State:
    """The robots' state: float32, SI units, joints in the robot's order. J joints, F feet.

    `_w` is in world axes, `_b` in the base's. The tensors are the simulator's own and change with
    the next step; what is measured by contact or acceleration is that of the last substep.
    """

    base_pos_w: Tensor
    """(N, 3) [m]."""
    base_quat_wxyz: Tensor
    """(N, 4): rotates the base's axes into the world's."""
    base_lin_vel_w: Tensor
    """(N, 3) [m/s]: of the base body's origin."""
    base_ang_vel_b: Tensor
    """(N, 3) [rad/s]."""
    joint_pos: Tensor
    """(N, J) [rad]."""
    joint_vel: Tensor
    """(N, J) [rad/s]."""
    joint_torque: Tensor
    """(N, J) [Nm]: what the actuators apply, after their limits."""
    foot_pos_w: Tensor
    """(N, F, 3) [m]."""
    foot_vel_w: Tensor
    """(N, F, 3) [m/s]."""
    foot_force_w: Tensor
    """(N, F, 3) [N]: net contact force on the foot."""
    undesired_contacts: Tensor
    """(N, U): the number of contacts of each body that should touch nothing, Robot.no_touch."""
    ee_pos_w: Tensor
    """(N, 3) [m]; without an end-effector, (N, 0), like the three below."""
    ee_quat_wxyz: Tensor
    """(N, 4)."""
    ee_lin_vel_w: Tensor
    """(N, 3) [m/s]."""
    ee_ang_vel_w: Tensor
    """(N, 3) [rad/s]."""

    def rows(self, ids: Tensor) -> "State":
        """The state of some robots, copied."""
        return State(*(getattr(self, name)[ids] for name in self.__slots__))


class Sim(Protocol):
    """N simulations of one robot."""

    num_envs: int
    device: str
    joints: tuple[Joint, ...]
    home_height: float
    """Of the base's origin in the default pose [m]."""
    home_target: tuple[float, ...]
    """Joint targets (J,) [rad] that hold the default pose against gravity."""
    state: State
    broken: Tensor
    """(N,) bool: rows whose simulation blew up in the last step; to be reset."""

    def step(self, target: Tensor) -> None:
        """One control step towards joint targets, (N, J) [rad]; refreshes `state` and `broken`."""
        ...

    def reset(
        self,
        ids: Tensor,
        *,
        base_pos_w: Tensor,
        base_quat_wxyz: Tensor,
        base_vel: Tensor,
        joint_pos: Tensor,
        joint_vel: Tensor,
    ) -> None:
        """Put some rows into a state, at rest towards joint_pos, and refresh them.

        Args:
            ids: (n,) rows, in ascending order.
            base_vel: (n, 6): linear in world axes [m/s], angular in the base's [rad/s].
        """
        ...

    def push(self, velocity: Tensor, ids: Tensor) -> None:
        """Add (n, 6) to the base's velocity, linear and angular, in world axes [m/s, rad/s]; the
        next step starts with it, `state` shows it then."""
        ...

    def randomise(self, fields: Mapping[str, Tensor]) -> None:
        """Give every simulation its own model: see the names in `RANDOMISABLE`."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


RANDOMISABLE: Mapping[str, str] = {
    "friction": "(N,) sliding friction of the feet",
    "base_mass": "(N,) kg added to the base",
    "ee_mass": "(N,) kg added at the end-effector's body",
    "base_com": "(N, 3) m added to the base's centre of mass",
    "kp": "(N, J) factor on each joint's stiffness",
    "kd": "(N, J) factor on each joint's damping gain",
    "delay": "(N,) s between a target and its effect, the same for all joints",
}
"""What `Sim.randomise` can give each environment its own value of."""


def require(
    names: Sequence[str], there: Sequence[str], what: str, where: str, hint: str = ""
) -> None:
    """Raise ValueError naming what is missing, and what there is instead."""
    missing = [name for name in names if name not in there]
    if missing:
        named = ", ".join(name for name in there if name) or "none"
        close = did_you_mean(missing[0], there)
        end = f"{'' if close else '.'} {hint}" if hint else ""
        raise ValueError(f"{where} has no {what} {', '.join(missing)}; it has {named}{close}{end}")
