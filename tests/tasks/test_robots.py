"""The robots are those of their sources, stand, are their own mirror image and reach."""

from dataclasses import replace
from math import radians
from pathlib import Path

import mujoco
import numpy as np
import numpy.typing as npt
import pytest
import torch

from robo_rl.tasks.backends.mujoco_batch import MujocoSim
from robo_rl.tasks.robots.go2 import GO2
from robo_rl.tasks.robots.go2_arx5 import GO2_ARX5
from robo_rl.tasks.robots.robot import Robot

Array = npt.NDArray[np.float64]

# Range [rad], torque [Nm], speed [rad/s], kp, kd by the end of the joint's name; the robots' files
# say whence.
SOURCE = {
    "_hip_joint": ((-1.0472, 1.0472), 23.7, 30.1, 40, 1),
    "_thigh_joint": ((-1.5708, 3.4907), 23.7, 30.1, 40, 1),
    "_calf_joint": ((-2.7227, -0.83776), 45.43, 20.07, 40, 1),
    "arm_joint1": ((-2.618, 2.618), 20, 5, 100, 3),
    "arm_joint2": ((0, 3.6652), 20, 5, 100, 3),
    "arm_joint3": ((0, 3.1416), 15, 5.5, 100, 3),
    "arm_joint4": ((-1.5708, 1.5708), 7, 5.5, 20, 2),
    "arm_joint5": ((-1.5708, 1.5708), 5, 5, 20, 1),
    "arm_joint6": ((-1.5708, 1.5708), 5, 5, 5, 0.5),
}
REAR_THIGH = (-0.5236, 4.5379)

both = pytest.mark.parametrize("robot", [GO2, GO2_ARX5], ids=lambda robot: robot.name)


def on_floor(robot: Robot) -> tuple[mujoco.MjModel, mujoco.MjData]:
    """The robot on a plane, at home."""
    spec = mujoco.MjSpec.from_string(str(robot.mjcf))
    spec.worldbody.add_geom(name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.1])
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    data.ctrl = model.key("home").ctrl
    mujoco.mj_forward(model, data)
    return model, data


def touching(model: mujoco.MjModel, data: mujoco.MjData) -> set[tuple[str, str]]:
    """Names of geoms in contact, in alphabetical pairs."""
    pairs = {tuple(sorted(model.geom(int(g)).name for g in c.geom)) for c in data.contact}
    return {(a, b) for a, b in pairs}


def test_masses_are_the_sources() -> None:
    # Menagerie's Go2, and the same with RoboDuet's arm of 3.196 kg.
    assert np.sum(on_floor(GO2)[0].body_mass) == pytest.approx(15.206, abs=1e-3)
    assert np.sum(on_floor(GO2_ARX5)[0].body_mass) == pytest.approx(18.402, abs=1e-3)


@both
def test_joints_are_the_sources(robot: Robot) -> None:
    model, _ = on_floor(robot)
    assert [model.actuator(i).name for i in range(model.nu)] == list(robot.joints)
    assert sorted(name for limb in robot.limbs.values() for name in limb) == sorted(robot.joints)
    for name in robot.joints:
        limits, torque, speed, kp, kd = next(v for k, v in SOURCE.items() if name.endswith(k))
        if name in ("RL_thigh_joint", "RR_thigh_joint"):
            limits = REAR_THIGH
        joint, actuator = model.joint(name), model.actuator(name)
        np.testing.assert_allclose(joint.range, limits)
        np.testing.assert_allclose(model.jnt_actfrcrange[joint.id], (-torque, torque))
        assert (actuator.gainprm[0], actuator.biasprm[1], actuator.biasprm[2]) == (kp, -kp, -kd)
        assert robot.velocity_limits[name] == speed
        assert robot.action_scale[name] > 0


@both
def test_torque_stops_at_the_limit(robot: Robot) -> None:
    model, data = on_floor(robot)
    for sign in (1.0, -1.0):
        data.ctrl[:] = sign * 100.0
        mujoco.mj_forward(model, data)
        joints = [model.joint(name) for name in robot.joints]
        limits = [model.jnt_actfrcrange[joint.id, 1] for joint in joints]
        torque = [data.qfrc_actuator[joint.dofadr[0]] for joint in joints]
        np.testing.assert_allclose(torque, sign * np.array(limits))


@both
def test_home_stands_for_five_seconds_on_its_feet_alone(robot: Robot) -> None:
    model, data = on_floor(robot)
    home = data.qpos.copy()
    for name in robot.feet:
        radius = model.geom(name).size[0]
        assert data.geom(name).xpos[2] == pytest.approx(radius, abs=1e-4)
    for _ in range(1000):
        mujoco.mj_step(model, data)
        assert touching(model, data) <= {tuple(sorted((foot, "floor"))) for foot in robot.feet}
    assert len(data.contact) == 4
    np.testing.assert_allclose(data.qpos[:3], home[:3], atol=2e-3)
    np.testing.assert_allclose(data.qpos[7:], home[7:], atol=0.01)
    assert data.body(robot.base).xmat[8] > np.cos(radians(0.5))
    assert np.abs(data.qvel).max() < 1e-2


def mirrored(robot: Robot, joint_values: Array) -> Array:
    """Values by joint (policy's order) of the robot seen in the mirror."""
    out = np.zeros_like(joint_values)
    for i, name in enumerate(robot.joints):
        image, sign = robot.mirror[name]
        out[robot.joints.index(image)] = sign * joint_values[i]
    return out


@both
def test_mirrored_start_and_targets_give_the_mirrored_motion(robot: Robot) -> None:
    model, left = on_floor(robot)
    model.opt.iterations, model.opt.tolerance = 50, 0.0
    right = mujoco.MjData(model)
    random = np.random.default_rng(0)
    left.qpos[:] += random.normal(0, 0.05, model.nq)
    left.qpos[2] += 0.05
    left.qvel[:] = random.normal(0, 0.3, model.nv)
    flip_pos, flip_vel = np.array([1, -1, 1, 1, -1, 1, -1]), np.array([1, -1, 1, -1, 1, -1])

    def mirror_state(qpos: Array, qvel: Array) -> Array:
        joints = mirrored(robot, qpos[7:]), mirrored(robot, qvel[6:])
        return np.concatenate([qpos[:7] * flip_pos, joints[0], qvel[:6] * flip_vel, joints[1]])

    state = mirror_state(left.qpos, left.qvel)
    right.qpos[:], right.qvel[:] = state[: model.nq], state[model.nq :]
    for step in range(200):
        if step % 4 == 0:
            target = model.key("home").ctrl + random.normal(0, 0.1, model.nu)
            left.ctrl, right.ctrl = target, mirrored(robot, target)
        mujoco.mj_step(model, left)
        mujoco.mj_step(model, right)
    assert left.qpos[7:].std() > 0.1 and len(left.contact)
    expected = mirror_state(left.qpos, left.qvel)[: model.nq]
    np.testing.assert_allclose(right.qpos, expected, atol=1e-6)


@both
def test_the_few_solver_iterations_are_enough(robot: Robot) -> None:
    model, fast = on_floor(robot)
    exact_model, exact = on_floor(robot)
    exact_model.opt.iterations = exact_model.opt.ls_iterations = 50
    exact_model.opt.tolerance = 0.0
    for step in range(200):
        lift = 0.3 * max(0.0, np.sin(step * 0.06))  # of one diagonal pair of legs
        target = model.key("home").ctrl + 0.0
        target[[1, 10]] += lift
        target[[2, 11]] -= 2 * lift
        fast.ctrl, exact.ctrl = target, target
        mujoco.mj_step(model, fast)
        mujoco.mj_step(exact_model, exact)
    assert np.abs(exact.qpos - model.key("home").qpos).max() > 0.05
    np.testing.assert_allclose(fast.qpos[:3], exact.qpos[:3], atol=1e-3)
    np.testing.assert_allclose(fast.qpos[7:], exact.qpos[7:], atol=5e-3)


@pytest.mark.parametrize(
    ("height", "pose", "pair"),
    [
        (1.0, {"arm_joint2": 0.0, "arm_joint3": 0.0, "arm_joint4": -1.5}, ("arm_link6", "trunk")),
        (1.0, {"FL_hip_joint": -0.6, "FR_hip_joint": 0.6}, ("FL_calf", "FR_calf")),
        (0.15, {}, ("FL_calf", "floor")),
        (0.05, {}, ("floor", "trunk")),
        (0.0, {"arm_joint2": 3.4, "arm_joint3": 2.5}, ("arm_link3", "floor")),
    ],
)
def test_parts_that_can_meet_do_not_pass_through_each_other(
    height: float, pose: dict[str, float], pair: tuple[str, str]
) -> None:
    model, data = on_floor(GO2_ARX5)
    data.qpos[2] = height
    for name, angle in pose.items():
        data.joint(name).qpos = angle
    mujoco.mj_forward(model, data)
    assert pair in touching(model, data)


@pytest.mark.parametrize("substeps", [0, 1, 2, 3, 4])
def test_targets_can_be_late_by_up_to_four_substeps(substeps: int) -> None:
    model, data = on_floor(GO2)
    # Half a step early: MuJoCo's clock is not exact, and a delay is rounded up to whole substeps.
    model.actuator_delay[:] = max(0.0, substeps - 0.5) * model.opt.timestep
    data.history.reshape(model.nu, -1)[:, -4:] = data.ctrl[:, None]
    mujoco.mj_forward(model, data)
    before = data.actuator_force[0]
    data.ctrl[0] += 0.1
    acted = []
    for _ in range(6):
        mujoco.mj_step(model, data)
        acted.append(data.actuator_force[0] - before > 1.0)
    assert acted == [step >= substeps for step in range(6)]


def test_arm_reaches_fifteen_centimetres_along_each_axis_without_turning_the_tool() -> None:
    model, data = on_floor(GO2_ARX5)
    ee = model.site("ee").id
    arm = [model.joint(name) for name in GO2_ARX5.limbs["arm"]]
    qpos, dofs = [j.qposadr[0] for j in arm], [j.dofadr[0] for j in arm]
    home, start = data.qpos.copy(), data.site_xpos[ee].copy()
    np.testing.assert_allclose(data.site_xmat[ee], np.eye(3).ravel(), atol=1e-9)
    np.testing.assert_allclose(start, (0.490, 0.0, 0.649), atol=1e-3)
    jac_pos, jac_rot, turn = np.zeros((3, model.nv)), np.zeros((3, model.nv)), np.zeros(3)
    level, quat, difference = np.array([1.0, 0, 0, 0]), np.zeros(4), np.zeros(3)
    for goal in (*(start + 0.15 * np.eye(3)), *(start - 0.15 * np.eye(3))):
        data.qpos[:] = home
        for _ in range(100):
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_jacSite(model, data, jac_pos, jac_rot, ee)
            mujoco.mju_mat2Quat(quat, data.site_xmat[ee])
            mujoco.mju_subQuat(difference, level, quat)
            mujoco.mju_rotVecQuat(turn, difference, quat)
            error = np.concatenate([goal - data.site_xpos[ee], turn])
            jac = np.concatenate([jac_pos, jac_rot])[:, dofs]
            data.qpos[qpos] += 0.5 * np.linalg.solve(jac.T @ jac + 1e-6 * np.eye(6), jac.T @ error)
        assert np.abs(error).max() < 1e-3, goal - start
        assert all(j.range[0] < data.qpos[j.qposadr[0]] < j.range[1] for j in arm), goal - start
        mujoco.mj_forward(model, data)
        assert all("floor" in pair for pair in touching(model, data))


@pytest.fixture(scope="module")
def own() -> Robot:
    """The robot that docs/robots.md shows how to make."""
    page = (Path(__file__).parents[2] / "docs" / "robots.md").read_text()
    made: dict[str, object] = {}
    exec(page.split("```python\n")[1].split("```")[0], made)
    robot = made["TABLE"]
    assert isinstance(robot, Robot)
    return robot


def test_the_robot_of_the_documentation_stands(own: Robot) -> None:
    sim = MujocoSim(own, num_envs=2, step_s=0.02, physics_s=0.005)
    home = torch.tensor([[joint.default for joint in sim.joints]]).repeat(2, 1)
    ids = torch.arange(2)
    sim.reset(
        ids,
        base_pos_w=torch.tensor([[0.0, 0.0, 0.3456]]).repeat(2, 1),
        base_quat_wxyz=torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(2, 1),
        base_vel=torch.zeros(2, 6),
        joint_pos=home,
        joint_vel=torch.zeros_like(home),
    )
    for _ in range(50):
        sim.step(home)
    assert (sim.state.base_pos_w[:, 2] > 0.32).all()
    assert (sim.state.foot_force_w.norm(dim=-1) > 5.0).all()
    assert (sim.state.undesired_contacts == 0).all()


def test_a_name_that_the_mjcf_lacks_is_refused_with_those_it_has(own: Robot) -> None:
    wrong = {
        "joint FL_hip; it has .*FL_hpi": replace(
            own, mjcf=str(own.mjcf).replace('<joint name="FL_hip"', '<joint name="FL_hpi"')
        ),
        "geom foot; it has .*FL": replace(own, feet=("foot", *own.feet[1:])),
        "site tool; it has none": replace(own, ee="tool"),
        "body torso; it has .*trunk": replace(own, base="torso"),
        "actuatorfrcrange": replace(
            own, mjcf=str(own.mjcf).replace(' actuatorfrcrange="-20 20"', "")
        ),
    }
    for message, robot in wrong.items():
        with pytest.raises(ValueError, match=message):
            MujocoSim(robot, num_envs=1, step_s=0.02, physics_s=0.005)
