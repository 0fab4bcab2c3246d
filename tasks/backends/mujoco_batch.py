"""MuJoCo on the CPU: `mujoco.batch.Batch`, many simulations on native threads.

Facts of MuJoCo 4.0.0 that this file stands on, each measured:
- after a step derived fields are one substep old, unless the step ends with `stage=VEL`, which
  renews positions and velocities; contact and actuator forces remain the last substep's;
- a reset with `stage=NONE` leaves derived fields undefined until `forward`;
- a simulation that blows up is silently reset by MuJoCo in mid-call; only `batch.warning` tells;
- an actuator with a delay replays its `history` row, which a reset fills with zeros.
"""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt
import torch
from mujoco.batch import Batch
from torch import Tensor

from robo_rl.api import Joint
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
_EXPANDED = (
    "geom_friction",
    "body_mass",
    "body_inertia",
    "body_ipos",
    "actuator_gainprm",
    "actuator_biasprm",
    "actuator_delay",
)
_NETFORCE = 3  # of a contact sensor: all matching contacts summed into one, in world axes

Float = npt.NDArray[np.float64]


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # type: ignore[untyped-decorator]
def _be_quiet(_message: bytes) -> None:
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
        ValueError: the MJCF lacks a joint, actuator, site, geom or keyframe the robot names.
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
        self.model = _model(robot, physics_s)
        self.joints = _joints(robot, self.model)
        self.home_height = float(self.model.key("home").qpos[2])
        self.home_target = _home_target(robot, self.model)
        self.num_substeps = round(step_s / physics_s)
        _silence()
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
        self.batch.step(nstep=self.num_substeps, stage=_VEL)
        self._refresh(slice(None))
        np.any(self.batch.warning[:, _BLOWN_UP, 1], axis=1, out=self._broken)

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
        self.batch.reset(rows, stage=_NONE)
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
        to_base = _rotation(self._base[rows, 3:7]).transpose(0, 2, 1)
        push = velocity.numpy().astype(np.float64)
        self._qvel[rows, :3] += push[:, :3]
        self._qvel[rows, 3:6] += np.einsum("nij,nj->ni", to_base, push[:, 3:])
        self.batch.forward(rows, _VEL)
        self._refresh(rows)

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
            longest = self.model.actuator_history[:, 0].max() * model.opt.timestep
            if value["delay"].max() > longest + 1e-9:
                raise ValueError(
                    f"delay {value['delay'].max():.4f} s is more than the {longest:.4f} s that "
                    f"nsample of {self._robot.name}'s actuators can hold"
                )
            batch.expand("actuator_delay")[:] = value["delay"][:, None]
        if {"base_mass", "ee_mass", "base_com"} & set(value):
            batch.set_const()
        batch.forward()
        self._refresh(slice(None))

    def snapshot(self, env: int, data: mujoco.MjData) -> None:
        """Fill data with the state of one environment, forwarded, to be drawn."""
        self.batch.get_data(env, data)
        mujoco.mj_forward(self.model, data)

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

    def _add_mass(self, body: int, kg: Float) -> None:
        """Added mass scales the body's inertia with it."""
        mass, inertia = self.batch.expand("body_mass"), self.batch.expand("body_inertia")
        factor = 1.0 + kg / self.model.body_mass[body]
        mass[:, body] = self.model.body_mass[body] * factor
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
        self._base[rows, :7] = self._qpos[rows, :7]
        self._base[rows, 7:] = self._qvel[rows, :6]
        self._joint_pos[rows] = self._qpos[rows][:, self._qpos_at]
        self._joint_vel[rows] = self._qvel[rows][:, self._qvel_at]
        self._sensed[rows] = self._sensors[rows]

    def _views(self) -> State:
        num, robot = self.num_envs, self._robot
        base, sensed = torch.from_numpy(self._base), torch.from_numpy(self._sensed)
        at = {}
        for i in range(self.model.nsensor):
            start = int(self.model.sensor_adr[i])
            at[self.model.sensor(i).name] = slice(start, start + int(self.model.sensor_dim[i]))

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
                [f"touch {b}" for b in robot.undesired_contacts], (len(robot.undesired_contacts),)
            ),
            ee_pos_w=block([f"ee pos {s}" for s in ee], (3 * len(ee),)),
            ee_quat_wxyz=block([f"ee quat {s}" for s in ee], (4 * len(ee),)),
            ee_lin_vel_w=block([f"ee vel {s}" for s in ee], (3 * len(ee),)),
            ee_ang_vel_w=block([f"ee ang vel {s}" for s in ee], (3 * len(ee),)),
        )


def _model(robot: Robot, physics_s: float) -> mujoco.MjModel:
    """The robot on a floor, with the sensors that `State` is read from."""
    if isinstance(robot.mjcf, Path):
        spec = mujoco.MjSpec.from_file(str(robot.mjcf))
    else:
        spec = mujoco.MjSpec.from_string(robot.mjcf)
    _check_names(robot, spec)
    _add_floor(spec)
    spec.option.timestep = physics_s
    kind, obj = mujoco.mjtSensor, mujoco.mjtObj
    for name in robot.joints:
        spec.add_sensor(
            name=f"torque {name}",
            type=kind.mjSENS_JOINTACTFRC,
            objtype=obj.mjOBJ_JOINT,
            objname=name,
        )
    for label, sensor in (("pos", kind.mjSENS_FRAMEPOS), ("vel", kind.mjSENS_FRAMELINVEL)):
        for name in robot.feet:
            spec.add_sensor(
                name=f"{label} {name}", type=sensor, objtype=obj.mjOBJ_GEOM, objname=name
            )
    for name in robot.feet:
        spec.add_sensor(
            name=f"force {name}",
            type=kind.mjSENS_CONTACT,
            reftype=obj.mjOBJ_GEOM,  # as the second of a pair: the force is the one on the foot
            refname=name,
            intprm=[1 << int(mujoco.mjtConDataField.mjCONDATA_FORCE), _NETFORCE, 1],
        )
    for name in robot.undesired_contacts:
        spec.add_sensor(
            name=f"touch {name}",
            type=kind.mjSENS_CONTACT,
            objtype=obj.mjOBJ_BODY,
            objname=name,
            intprm=[1 << int(mujoco.mjtConDataField.mjCONDATA_FOUND), 0, 1],
        )
    if robot.ee is not None:
        for label, sensor in (
            ("pos", kind.mjSENS_FRAMEPOS),
            ("quat", kind.mjSENS_FRAMEQUAT),
            ("vel", kind.mjSENS_FRAMELINVEL),
            ("ang vel", kind.mjSENS_FRAMEANGVEL),
        ):
            spec.add_sensor(
                name=f"ee {label} {robot.ee}",
                type=sensor,
                objtype=obj.mjOBJ_SITE,
                objname=robot.ee,
            )
    return spec.compile()


def _add_floor(spec: mujoco.MjSpec) -> None:
    spec.add_texture(
        name="floor",
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        width=256,
        height=256,
        rgb1=[0.32, 0.36, 0.40],
        rgb2=[0.27, 0.30, 0.34],
    )
    material = spec.add_material(name="floor", texrepeat=[1, 1], texuniform=True)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "floor"
    spec.worldbody.add_light(
        pos=[0, 0, 4], dir=[0, 0, -1], type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
    )
    spec.worldbody.add_geom(
        name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.1], material="floor"
    )


def _check_names(robot: Robot, spec: mujoco.MjSpec) -> None:
    where = f"the MJCF of {robot.name}"
    require([robot.base], [b.name for b in spec.bodies], "body", where)
    require(robot.joints, [j.name for j in spec.joints], "joint", where)
    require(robot.joints, [a.name for a in spec.actuators], "actuator", where)
    require(robot.feet, [g.name for g in spec.geoms], "geom", where)
    require(robot.undesired_contacts, [b.name for b in spec.bodies], "body", where)
    require([] if robot.ee is None else [robot.ee], [s.name for s in spec.sites], "site", where)
    require(["home"], [k.name for k in spec.keys], "keyframe", where)
    missing = [name for name in robot.joints if name not in robot.velocity_limits]
    if missing:
        raise ValueError(f"{robot.name} has no velocity_limits of {', '.join(missing)}")
    first = spec.joints[0]
    if first.type != mujoco.mjtJoint.mjJNT_FREE or first.parent.name != robot.base:
        raise ValueError(f"{where}: its first joint must be a free joint of {robot.base}")


def _joints(robot: Robot, model: mujoco.MjModel) -> tuple[Joint, ...]:
    """The policy's joints, with what the MJCF says of them."""
    home = model.key("home").qpos
    joints = []
    for name in robot.joints:
        joint, actuator = model.joint(name), model.actuator(name)
        low, high = model.jnt_actfrcrange[joint.id]
        if not high > 0.0:
            raise ValueError(
                f"joint {name} of {robot.name} has no torque limit; give its <joint> an "
                f'actuatorfrcrange="-T T"'
            )
        joints.append(
            Joint(
                name=name,
                default=float(home[joint.qposadr[0]]),
                kp=float(actuator.gainprm[0]),
                kd=float(-actuator.biasprm[2]),
                position=(float(joint.range[0]), float(joint.range[1])),
                velocity_limit=float(robot.velocity_limits[name]),
                torque_limit=float(min(-low, high)),
            )
        )
    return tuple(joints)


def _home_target(robot: Robot, model: mujoco.MjModel) -> tuple[float, ...]:
    """The controls of the keyframe "home": targets that hold its pose against gravity."""
    home = model.key("home")
    if not home.ctrl.any() and home.qpos[7:].any():
        raise ValueError(
            f'the keyframe "home" of {robot.name} has no ctrl; give it the joint targets that hold '
            f"its qpos, or the same angles"
        )
    return tuple(float(home.ctrl[model.actuator(name).id]) for name in robot.joints)


def _run(indices: list[int]) -> Any:
    """A slice where the indices follow one another: it copies several times faster."""
    if indices == list(range(indices[0], indices[0] + len(indices))):
        return slice(indices[0], indices[0] + len(indices))
    return np.array(indices)


def _rotation(quat_wxyz: npt.NDArray[np.float32]) -> Float:
    """(n, 3, 3) of unit quaternions (n, 4): base axes to world axes."""
    w, x, y, z = quat_wxyz.astype(np.float64).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.array(rows).transpose(2, 0, 1)


def _silence() -> None:
    """Route MuJoCo's warnings away from the terminal and the working directory."""
    folder = Path(mujoco.__file__).parent
    (library,) = folder.glob("libmujoco.*")
    pointer = ctypes.c_void_p.in_dll(ctypes.CDLL(str(library)), "mju_user_warning")
    pointer.value = ctypes.cast(_be_quiet, ctypes.c_void_p).value
