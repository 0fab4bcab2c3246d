"""MuJoCo on the CPU: `mujoco.batch.Batch`, many simulations on native threads.

Facts of MuJoCo 4.0.0 that this file stands on, each measured:
- after a step derived fields are one substep old. A `forward` at `stage=VEL` renews positions and
  velocities and leaves junk in what contact and actuator forces are read from. Without contacts it
  costs half of what a step that ends with this stage does: no term needs the contacts that the
  next substep will find anyway;
- a reset with `stage=NONE` leaves derived fields undefined until `forward`;
- a simulation that blows up is silently reset by MuJoCo in mid-call; only `batch.warning` tells;
- an actuator with a delay replays its `history` row, which a reset fills with zeros.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt
import torch
from mujoco.batch import Batch
from torch import Tensor

from robo_rl.tasks.backends import mujoco_model
from robo_rl.tasks.backends.sim import RANDOMISABLE, State, require
from robo_rl.tasks.robots.robot import Robot

_VEL = mujoco.mjtStage.mjSTAGE_VEL.value
_NONE = mujoco.mjtStage.mjSTAGE_NONE.value
_BLOWN_UP = [
    int(w)
    for w in (
        mujoco.mjtWarning.mjWARN_BADQPOS,
        mujoco.mjtWarning.mjWARN_BADQVEL,
        mujoco.mjtWarning.mjWARN_BADQACC,
        mujoco.mjtWarning.mjWARN_BADCTRL,
    )
]
_NO_CONTACTS = int(mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
_EXPANDED = (
    "geom_friction",
    "body_mass",
    "body_inertia",
    "body_ipos",
    "actuator_gainprm",
    "actuator_biasprm",
    "actuator_delay",
)
_FASTEST = 1e3
"""No robot is faster, all its speeds together [m/s, rad/s]; MuJoCo lets each grow to 1e10."""

Float = npt.NDArray[np.float64]


def _be_quiet(_message: str) -> None:
    """MuJoCo's own handler prints and writes MUJOCO_LOG.TXT into the working directory."""


class MujocoSim:
    """N simulations of a robot on flat ground.

    Args:
        robot: the robot; its MJCF is checked against the names it gives.
        num_envs: N.
        step_s: control period [s].
        physics_s: simulation time step [s], a divisor of step_s.
        num_threads: 0 for one per core.

    Raises:
        ValueError: the MJCF lacks what the robot names, or does not fit: see `mujoco_model`.
    """

    device = "cpu"

    def __init__(
        self,
        robot: Robot,
        *,
        num_envs: int,
        step_s: float,
        physics_s: float,
        num_threads: int = 0,
    ) -> None:
        self.num_envs = num_envs
        self.model = mujoco_model.load(robot, physics_s)
        self.joints = mujoco_model.joints(robot, self.model)
        self._home = int(self.model.key("home").id)
        self.home_height = float(self.model.key("home").qpos[2])
        self.home_target = mujoco_model.home_target(robot, self.model)
        self.num_substeps = round(step_s / physics_s)
        mujoco.set_mju_user_warning(_be_quiet)
        self.batch = Batch(self.model, num_envs, num_threads)
        self._robot = robot
        model = self.model
        joint_ids = [model.joint(name).id for name in robot.joints]
        self._qpos_at = _run([int(model.jnt_qposadr[j]) for j in joint_ids])
        self._qvel_at = _run([int(model.jnt_dofadr[j]) for j in joint_ids])
        self._ctrl_at = _run([int(model.actuator(name).id) for name in robot.joints])
        # How far targets must lead the joints to hold them against gravity.
        self._sag = np.array(self.home_target) - np.array([j.default for j in self.joints])
        self._qpos: Float = self.batch.bind("qpos")
        self._qvel: Float = self.batch.bind("qvel")
        self._ctrl: Float = self.batch.bind("ctrl")
        self._sensors: Float = self.batch.bind("sensordata")
        self._history: Float = self.batch.bind("history")
        self._flags: npt.NDArray[np.int32] = self.batch.expand("opt.disableflags")
        self._forces, self._motions = mujoco_model.sensor_blocks(robot, model)
        num_joints = len(robot.joints)
        # float32 copies of what terms read; State's tensors are views of these.
        self._base = np.zeros((num_envs, 13), np.float32)
        self._joint_pos = np.zeros((num_envs, num_joints), np.float32)
        self._joint_vel = np.zeros((num_envs, num_joints), np.float32)
        self._sensed = np.zeros(self._sensors.shape, np.float32)
        self.state = self._views()
        self._broken = np.zeros(num_envs, bool)
        self.broken = torch.from_numpy(self._broken)
        self.batch.forward()
        self._refresh(slice(None))

    def step(self, target: Tensor) -> None:
        """See `Sim.step`."""
        self._ctrl[:, self._ctrl_at] = target.numpy()
        self.batch.step(nstep=self.num_substeps)
        self._sensed[:, self._forces] = self._sensors[:, self._forces]
        np.any(self.batch.warning[:, _BLOWN_UP, 1], axis=1, out=self._broken)
        self._broken |= ~(np.einsum("ni,ni->n", self._qvel, self._qvel) <= _FASTEST**2)
        self._flags |= _NO_CONTACTS
        self.batch.forward(stage=_VEL)
        self._flags[:] = self.model.opt.disableflags
        self._sensed[:, self._motions] = self._sensors[:, self._motions]
        self._read_state(slice(None))

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
        """See `Sim.reset`."""
        rows = ids.numpy()
        self.batch.reset(rows, self._home, stage=_NONE)
        qpos, qvel = self._qpos[rows], self._qvel[rows]
        qpos[:, :3], qpos[:, 3:7] = base_pos_w.numpy(), base_quat_wxyz.numpy()
        qpos[:, self._qpos_at] = joint_pos.numpy()
        qvel[:, :6] = base_vel.numpy()
        qvel[:, self._qvel_at] = joint_vel.numpy()
        self._qpos[rows], self._qvel[rows] = qpos, qvel
        ctrl = self._ctrl[rows]
        ctrl[:, self._ctrl_at] = joint_pos.numpy() + self._sag
        self._ctrl[rows] = ctrl
        self._fill_history(rows)
        self.batch.forward(rows)
        self._refresh(rows)

    def push(self, velocity: Tensor, ids: Tensor) -> None:
        """See `Sim.push`."""
        rows = ids.numpy()
        to_base = _rotation(self._qpos[rows, 3:7]).transpose(0, 2, 1)
        push = velocity.numpy().astype(np.float64)
        self._qvel[rows, :3] += push[:, :3]
        self._qvel[rows, 3:6] += np.einsum("nij,nj->ni", to_base, push[:, 3:])

    def randomise(self, fields: Mapping[str, Tensor]) -> None:
        """See `Sim.randomise`."""
        require(list(fields), list(RANDOMISABLE), "field to randomise", "the simulator")
        model, batch = self.model, self.batch
        base = model.body(self._robot.base).id
        value = {name: tensor.numpy().astype(np.float64) for name, tensor in fields.items()}
        if "friction" in value:
            feet = [model.geom(name).id for name in self._robot.feet]
            batch.expand("geom_friction")[:, feet, 0] = value["friction"][:, None]
        if "base_mass" in value:
            self._add_mass(base, value["base_mass"])
        if "ee_mass" in value:
            if self._robot.ee is None:
                raise ValueError(f"{self._robot.name} has no end-effector to load with ee_mass")
            self._add_mass(int(model.site(self._robot.ee).bodyid[0]), value["ee_mass"])
        if "base_com" in value:
            batch.expand("body_ipos")[:, base] = model.body_ipos[base] + value["base_com"]
        if "kp" in value or "kd" in value:
            gain, bias = batch.expand("actuator_gainprm"), batch.expand("actuator_biasprm")
            kp, kd = (np.array([getattr(j, k) for j in self.joints]) for k in ("kp", "kd"))
            ids = np.arange(model.nu)[self._ctrl_at]
            gain[:, ids, 0] = kp * value.get("kp", 1.0)
            bias[:, ids, 1] = -kp * value.get("kp", 1.0)
            bias[:, ids, 2] = -kd * value.get("kd", 1.0)
        if "delay" in value:
            self._check_delay(float(value["delay"].max()))
            batch.expand("actuator_delay")[:] = value["delay"][:, None]
        if {"base_mass", "ee_mass", "base_com"} & set(value):
            batch.set_const()
        batch.forward()
        self._refresh(slice(None))

    def snapshot(self, env: int, data: mujoco.MjData) -> None:
        """Fill data with the state of one environment, forwarded, to be drawn."""
        self.batch.get_data(env, data)
        mujoco.mj_forward(self.model, data)

    def bare(self) -> Batch:
        """A batch of the same models on as many threads, from which nothing is read: for
        benchmarks."""
        batch = Batch(self.model, self.num_envs, self.batch.nthread)
        for name in _EXPANDED:
            if self.batch.expanded(name) is not None:
                batch.expand(name)[:] = self.batch.expanded(name)
        if self.batch.expanded("body_mass") is not None:
            batch.set_const()
        return batch

    def state_dict(self) -> dict[str, Any]:
        """State rows and every model field that differs between simulations."""
        expanded = {
            f"model.{name}": torch.from_numpy(np.ascontiguousarray(self.batch.expand(name)))
            for name in _EXPANDED
            if self.batch.expanded(name) is not None
        }
        return {
            "rows": torch.from_numpy(self.batch.state.copy()),
            "base": torch.from_numpy(self._base.copy()),
            "joint_pos": torch.from_numpy(self._joint_pos.copy()),
            "joint_vel": torch.from_numpy(self._joint_vel.copy()),
            "sensed": torch.from_numpy(self._sensed.copy()),
            **expanded,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where state_dict was taken; the next step is bit-equal."""
        for name in _EXPANDED:
            if f"model.{name}" in state:
                self.batch.expand(name)[:] = state[f"model.{name}"].numpy()
        if any(f"model.{name}" in state for name in ("body_mass", "body_ipos")):
            self.batch.set_const()
        self.batch.reset(stage=_NONE)
        self.batch.state[:] = state["rows"].numpy()
        self._base[:] = state["base"].numpy()
        self._joint_pos[:] = state["joint_pos"].numpy()
        self._joint_vel[:] = state["joint_vel"].numpy()
        self._sensed[:] = state["sensed"].numpy()

    def close(self) -> None:
        """Nothing to release: threads end with the batch."""

    def _check_delay(self, delay: float) -> None:
        step_s = self.model.opt.timestep
        for name in self._robot.joints:
            samples = int(self.model.actuator_history[self.model.actuator(name).id, 0])
            if delay > samples * step_s + 1e-6:
                raise ValueError(
                    f"a delay of {delay:g} s is more than the {samples * step_s:g} s that actuator "
                    f"{name} of {self._robot.name} remembers; give it "
                    f'nsample="{ceil(delay / step_s - 1e-3)}" in the MJCF, or a shorter delay'
                )

    def _add_mass(self, body: int, kg: Float) -> None:
        """Added mass scales the body's inertia with it."""
        own = float(self.model.body_mass[body])
        if own + kg.min() <= 0.0:
            raise ValueError(
                f"{kg.min():.3g} kg added to the {own:.3g} kg of body "
                f"{self.model.body(body).name} of {self._robot.name} leave none; add more"
            )
        mass, inertia = self.batch.expand("body_mass"), self.batch.expand("body_inertia")
        factor = 1.0 + kg / own
        mass[:, body] = own * factor
        inertia[:, body] = self.model.body_inertia[body] * factor[:, None]

    def _fill_history(self, rows: npt.NDArray[np.int64]) -> None:
        """As if the present control had been given for ever.

        An actuator's row is [user, cursor, nsample times, nsample values].
        """
        for actuator in range(self.model.nu):
            num = int(self.model.actuator_history[actuator, 0])
            start = int(self.model.actuator_historyadr[actuator]) + 2 + num
            if num:
                self._history[rows, start : start + num] = self._ctrl[rows, actuator, None]

    def _refresh(self, rows: Any) -> None:
        """After a forward with contacts."""
        self._sensed[rows] = self._sensors[rows]
        self._read_state(rows)

    def _read_state(self, rows: Any) -> None:
        self._base[rows, :7] = self._qpos[rows, :7]
        self._base[rows, 7:] = self._qvel[rows, :6]
        self._joint_pos[rows] = self._qpos[rows][:, self._qpos_at]
        self._joint_vel[rows] = self._qvel[rows][:, self._qvel_at]

    def _views(self) -> State:
        num, robot = self.num_envs, self._robot
        base, sensed = torch.from_numpy(self._base), torch.from_numpy(self._sensed)
        at = mujoco_model.sensors(self.model)

        def block(names: list[str], shape: tuple[int, ...]) -> Tensor:
            """Sensors that were added one after the other, as one view."""
            if not names:
                return torch.zeros(num, *shape)
            return sensed[:, at[names[0]].start : at[names[-1]].stop].view(num, *shape)

        feet, ee = len(robot.feet), [] if robot.ee is None else [robot.ee]
        return State(
            base_pos_w=base[:, 0:3],
            base_quat_wxyz=base[:, 3:7],
            base_lin_vel_w=base[:, 7:10],
            base_ang_vel_b=base[:, 10:13],
            joint_pos=torch.from_numpy(self._joint_pos),
            joint_vel=torch.from_numpy(self._joint_vel),
            joint_torque=block([f"torque {j}" for j in robot.joints], (len(robot.joints),)),
            foot_pos_w=block([f"pos {f}" for f in robot.feet], (feet, 3)),
            foot_vel_w=block([f"vel {f}" for f in robot.feet], (feet, 3)),
            foot_force_w=block([f"force {f}" for f in robot.feet], (feet, 3)),
            undesired_contacts=block(
                [f"touch {b}" for b in robot.no_touch], (len(robot.no_touch),)
            ),
            ee_pos_w=block([f"ee pos {s}" for s in ee], (3 * len(ee),)),
            ee_quat_wxyz=block([f"ee quat {s}" for s in ee], (4 * len(ee),)),
            ee_lin_vel_w=block([f"ee vel {s}" for s in ee], (3 * len(ee),)),
            ee_ang_vel_w=block([f"ee ang vel {s}" for s in ee], (3 * len(ee),)),
        )


def _run(indices: list[int]) -> Any:
    """A slice where the indices follow one another: it copies several times faster."""
    if indices == list(range(indices[0], indices[0] + len(indices))):
        return slice(indices[0], indices[0] + len(indices))
    return np.array(indices)


def _rotation(quat_wxyz: Float) -> Float:
    """(n, 3, 3) of unit quaternions (n, 4): base axes to world axes."""
    w, x, y, z = quat_wxyz.T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.array(rows).transpose(2, 0, 1)
