"""A robot's MJCF made into the model that MuJoCo simulates, and what the MJCF says of its joints.

MJCF is often written for another purpose: what a task cannot work with is refused here, saying what
there is and what to write.
"""

from pathlib import Path

import mujoco

from robo_rl.api import Joint
from robo_rl.tasks.backends.sim import require
from robo_rl.tasks.robots.robot import Robot

_KIND, _OBJ = mujoco.mjtSensor, mujoco.mjtObj
_NETFORCE = 3  # of a contact sensor: all matching contacts summed into one, in world axes
_FORCE = 1 << int(mujoco.mjtConDataField.mjCONDATA_FORCE)
_FOUND = 1 << int(mujoco.mjtConDataField.mjCONDATA_FOUND)
_GROUND = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
_ONE_AXIS = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))


def load(robot: Robot, physics_s: float) -> mujoco.MjModel:
    """The robot on a floor, with the sensors that `State` is read from.

    Raises:
        ValueError: the MJCF lacks what the robot names, or does not fit.
    """
    where = f"the MJCF of {robot.name}"
    try:
        if isinstance(robot.mjcf, Path):
            spec = mujoco.MjSpec.from_file(str(robot.mjcf))
        else:
            spec = mujoco.MjSpec.from_string(robot.mjcf)
    except ValueError as error:
        hint = "" if "<" in str(robot.mjcf) else "; a file is given as a pathlib.Path"
        raise ValueError(f"{where} cannot be read: {error}{hint}") from error
    _check_names(robot, spec, where)
    _add_floor(spec)
    _add_sensors(robot, spec)
    spec.option.timestep = physics_s
    for foot in robot.feet:
        # Otherwise a contact has the larger friction of foot and floor: a foot could not slip.
        spec.geom(foot).priority = max(1, spec.geom(foot).priority)
    home = next(key for key in spec.keys if key.name == "home")
    given = {"qpos": len(home.qpos), "ctrl": len(home.ctrl)}
    try:
        model = spec.compile()
    except ValueError as error:
        raise ValueError(f"{where} cannot be compiled: {error}") from error
    for what, size, meaning in (
        ("qpos", model.nq, "the default pose"),
        ("ctrl", model.nu, "the joint targets that hold it, or its own angles"),
    ):
        if given[what] != size:  # MuJoCo takes what is missing to be zero
            raise ValueError(
                f'{where}: keyframe "home" has a {what} of {given[what]} numbers; it must have '
                f"{size}: {meaning}"
            )
    for foot in robot.feet:
        _check_foot(model, foot, where)
    for name in robot.joints:
        _check_joint(model, name, where)
        _check_actuator(model, name, where)
    return model


def joints(robot: Robot, model: mujoco.MjModel) -> tuple[Joint, ...]:
    """The policy's joints, with what the MJCF says of them."""
    home = model.key("home").qpos
    found = []
    for name in robot.joints:
        joint, actuator = model.joint(name), model.actuator(name)
        low, high = model.jnt_actfrcrange[joint.id]
        found.append(
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
    return tuple(found)


def home_target(robot: Robot, model: mujoco.MjModel) -> tuple[float, ...]:
    """The controls of the keyframe "home": targets that hold its pose against gravity."""
    ctrl = model.key("home").ctrl
    return tuple(float(ctrl[model.actuator(name).id]) for name in robot.joints)


def sensor_blocks(robot: Robot, model: mujoco.MjModel) -> tuple[slice, slice]:
    """Columns of `sensordata` of forces and of motions."""
    at = sensors(model)
    first, middle = at[f"torque {robot.joints[0]}"].start, at[f"pos {robot.feet[0]}"].start
    return slice(first, middle), slice(middle, model.nsensordata)


def sensors(model: mujoco.MjModel) -> dict[str, slice]:
    """Columns of `sensordata` by sensor."""
    starts = [int(start) for start in model.sensor_adr]
    return {
        model.sensor(i).name: slice(start, start + int(model.sensor_dim[i]))
        for i, start in enumerate(starts)
    }


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
        name="floor",
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=[0, 0, 0.1],
        material="floor",
        contype=1,
        conaffinity=1,
        priority=0,
    )


def _add_sensors(robot: Robot, spec: mujoco.MjSpec) -> None:
    """Those of one kind follow one another, so that they are one block of `sensordata`; first what
    the last substep's forces give, then what positions and velocities do."""
    for name in robot.joints:
        spec.add_sensor(
            name=f"torque {name}",
            type=_KIND.mjSENS_JOINTACTFRC,
            objtype=_OBJ.mjOBJ_JOINT,
            objname=name,
        )
    for name in robot.feet:
        spec.add_sensor(
            name=f"force {name}",
            type=_KIND.mjSENS_CONTACT,
            reftype=_OBJ.mjOBJ_GEOM,  # the second of a pair: the force is the one on the foot
            refname=name,
            intprm=[_FORCE, _NETFORCE, 1],
        )
    for name in robot.no_touch:
        spec.add_sensor(
            name=f"touch {name}",
            type=_KIND.mjSENS_CONTACT,
            objtype=_OBJ.mjOBJ_BODY,
            objname=name,
            intprm=[_FOUND, 0, 1],
        )
    for label, kind in (("pos", _KIND.mjSENS_FRAMEPOS), ("vel", _KIND.mjSENS_FRAMELINVEL)):
        for name in robot.feet:
            spec.add_sensor(
                name=f"{label} {name}", type=kind, objtype=_OBJ.mjOBJ_GEOM, objname=name
            )
    if robot.ee is not None:
        for label, kind in (
            ("pos", _KIND.mjSENS_FRAMEPOS),
            ("quat", _KIND.mjSENS_FRAMEQUAT),
            ("vel", _KIND.mjSENS_FRAMELINVEL),
            ("ang vel", _KIND.mjSENS_FRAMEANGVEL),
        ):
            spec.add_sensor(
                name=f"ee {label} {robot.ee}", type=kind, objtype=_OBJ.mjOBJ_SITE, objname=robot.ee
            )


def _check_names(robot: Robot, spec: mujoco.MjSpec, where: str) -> None:
    hint = "Name one of these in the Robot, or add it to the MJCF"
    for names, there, what in (
        ([robot.base], spec.bodies, "body"),
        (robot.joints, spec.joints, "joint"),
        (robot.joints, spec.actuators, "actuator"),
        (robot.feet, spec.geoms, "geom"),
        (robot.no_touch, spec.bodies, "body"),
        ([] if robot.ee is None else [robot.ee], spec.sites, "site"),
        (["home"], spec.keys, "keyframe"),
    ):
        require(names, [element.name for element in there], what, where, hint)
    first = spec.joints[0]
    if first.type != mujoco.mjtJoint.mjJNT_FREE or first.parent.name != robot.base:
        raise ValueError(f"{where}: its first joint must be a free joint of {robot.base}")
    ground = [geom.name for geom in spec.worldbody.geoms if geom.type in _GROUND]
    if ground:
        raise ValueError(
            f"{where} has a ground of its own, geom {ground[0]!r}; take it out, the task adds one"
        )


def _check_foot(model: mujoco.MjModel, name: str, where: str) -> None:
    foot, floor = model.geom(name), model.geom("floor")
    if not (foot.contype & floor.conaffinity) | (floor.contype & foot.conaffinity):
        raise ValueError(
            f"{where}: foot {name} passes through the ground, whose contype and conaffinity are 1; "
            f"its own are {int(foot.contype[0])} and {int(foot.conaffinity[0])}, set bit 1 of one"
        )


def _check_joint(model: mujoco.MjModel, name: str, where: str) -> None:
    joint = model.joint(name)
    if int(joint.type[0]) not in _ONE_AXIS:
        raise ValueError(f"{where}: joint {name} must be a hinge or a slide to be a policy's joint")
    if not joint.limited[0]:
        raise ValueError(
            f'{where}: joint {name} has no limits; give its <joint> a range="LOW HIGH"'
        )
    if not model.jnt_actfrclimited[joint.id]:
        raise ValueError(
            f"{where}: joint {name} has no torque limit; give its <joint> an "
            f'actuatorfrcrange="-T T"'
        )
    home, (low, high) = float(model.key("home").qpos[joint.qposadr[0]]), joint.range
    if not low <= home <= high:
        raise ValueError(
            f'{where}: keyframe "home" has joint {name} at {home:g}, outside its range, '
            f"{low:g} to {high:g}; mind that MJCF means degrees without "
            f'<compiler angle="radian"/>'
        )


def _check_actuator(model: mujoco.MjModel, name: str, where: str) -> None:
    """A PD servo of its joint: torque = kp (target - position) - kd velocity."""
    actuator = model.actuator(name)
    gain, bias = actuator.gainprm, actuator.biasprm
    if (
        int(actuator.trntype[0]) != int(mujoco.mjtTrn.mjTRN_JOINT)
        or actuator.trnid[0] != model.joint(name).id
        or actuator.gear[0] != 1.0
        or int(actuator.dyntype[0]) != int(mujoco.mjtDyn.mjDYN_NONE)
        or int(actuator.gaintype[0]) != int(mujoco.mjtGain.mjGAIN_FIXED)
        or int(actuator.biastype[0]) != int(mujoco.mjtBias.mjBIAS_AFFINE)
        or not 0.0 < gain[0] == -bias[1]
        or bias[0] != 0.0
    ):
        raise ValueError(
            f"{where}: actuator {name} is no position servo of joint {name}, without gear or "
            f'filter; write <position name="{name}" joint="{name}" kp="..." kv="..."/>'
        )
