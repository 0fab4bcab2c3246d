"""The simulator of tasks against a plain MuJoCo loop, and against MJCF edited by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from robo_rl.tasks.backends.mujoco_batch import MujocoSim
from robo_rl.tasks.robots.robot import Robot

Array = npt.NDArray[np.float64]
STEP_S, PHYSICS_S, SUBSTEPS = 0.02, 0.005, 4


def simulate(robot: Robot, num_envs: int) -> MujocoSim:
    return MujocoSim(robot, num_envs=num_envs, step_s=STEP_S, physics_s=PHYSICS_S, num_threads=2)


def start(sim: MujocoSim, ids: Tensor, seed: int = 0) -> None:
    """Put rows into states of their own, low enough to touch the ground."""
    generator = torch.Generator().manual_seed(seed)
    num, joints = len(ids), len(sim.joints)
    default = torch.tensor([joint.default for joint in sim.joints])
    tilt = 0.1 * torch.randn(num, 4, generator=generator) + torch.tensor([1.0, 0.0, 0.0, 0.0])
    sim.reset(
        ids,
        base_pos_w=torch.tensor([0.3, -0.2, 0.36]) + torch.zeros(num, 3),
        base_quat_wxyz=torch.nn.functional.normalize(tilt, dim=-1),
        base_vel=0.5 * torch.randn(num, 6, generator=generator),
        joint_pos=default + 0.2 * torch.randn(num, joints, generator=generator),
        joint_vel=0.5 * torch.randn(num, joints, generator=generator),
    )


def targets(sim: MujocoSim, steps: int, seed: int = 1) -> Tensor:
    """(steps, N, J), different in every step and environment."""
    generator = torch.Generator().manual_seed(seed)
    default = torch.tensor([joint.default for joint in sim.joints])
    return default + 0.4 * torch.randn(
        steps, sim.num_envs, len(default), generator=generator, dtype=torch.float32
    )


class Plain:
    """One environment in a loop over MjData, read by names."""

    def __init__(self, sim: MujocoSim, robot: Robot, env: int) -> None:
        self.model = sim.batch.get_model(env)
        self.robot = robot
        self.data = sim.batch.get_data(env)
        self.forces: dict[str, Array] = {}

    def step(self, target: Sequence[float]) -> None:
        for joint, value in zip(self.robot.joints, target, strict=True):
            self.data.actuator(joint).ctrl[0] = value
        mujoco.mj_step(self.model, self.data, SUBSTEPS)
        self.forces = {foot: self._force(foot) for foot in self.robot.feet}
        self.torque = [float(self.data.joint(j).qfrc_actuator[0]) for j in self.robot.joints]
        self.touching = [self._contacts_of(body) for body in self.robot.no_touch]
        mujoco.mj_fwdPosition(self.model, self.data)
        mujoco.mj_fwdVelocity(self.model, self.data)

    def _force(self, foot: str) -> Array:
        """The last substep's contact forces on a geom, in world axes, one by one."""
        total, wrench = np.zeros(3), np.zeros(6)
        for i, contact in enumerate(self.data.contact):
            on = [self.model.geom(int(g)).name for g in contact.geom]
            if foot in on:
                mujoco.mj_contactForce(self.model, self.data, i, wrench)
                # MuJoCo gives the force of the first geom on the second, in the contact's axes.
                sign = 1.0 if on[1] == foot else -1.0
                total += sign * contact.frame.reshape(3, 3).T @ wrench[:3]
        return total

    def _contacts_of(self, body: str) -> int:
        number = self.model.body(body).id
        return sum(
            any(self.model.geom_bodyid[g] == number for g in c.geom) for c in self.data.contact
        )

    def velocity(self, kind: mujoco.mjtObj, number: int) -> tuple[Array, Array]:
        """Linear and angular, in world axes."""
        twist = np.zeros(6)
        mujoco.mj_objectVelocity(self.model, self.data, kind, number, twist, 0)
        return twist[3:], twist[:3]


def compare(sim: MujocoSim, plain: Plain, env: int) -> None:
    """All that State says of one environment."""
    robot, data, state = plain.robot, plain.data, sim.state

    def same(name: str, expected: object, tolerance: float = 0.0) -> None:
        got = getattr(state, name)[env].numpy()
        wanted = np.asarray(expected, np.float32)
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=tolerance, err_msg=name)

    same("base_pos_w", data.qpos[:3])
    same("base_quat_wxyz", data.qpos[3:7])
    same("base_lin_vel_w", data.qvel[:3])
    same("base_ang_vel_b", data.qvel[3:6])
    same("joint_pos", [data.joint(j).qpos[0] for j in robot.joints])
    same("joint_vel", [data.joint(j).qvel[0] for j in robot.joints])
    same("joint_torque", plain.torque)
    same("foot_force_w", [plain.forces[f] for f in robot.feet], 1e-4)
    same("foot_pos_w", [data.geom(f).xpos for f in robot.feet])
    geom, site = mujoco.mjtObj.mjOBJ_GEOM, mujoco.mjtObj.mjOBJ_SITE
    feet = [plain.velocity(geom, plain.model.geom(f).id)[0] for f in robot.feet]
    same("foot_vel_w", feet, 1e-6)
    same("undesired_contacts", plain.touching)
    assert robot.ee is not None
    tool, quat = data.site(robot.ee), np.zeros(4)
    mujoco.mju_mat2Quat(quat, tool.xmat)
    same("ee_pos_w", tool.xpos)
    np.testing.assert_allclose(abs(state.ee_quat_wxyz[env].numpy() @ quat), 1.0, rtol=1e-6)
    linear, angular = plain.velocity(site, tool.id)
    same("ee_lin_vel_w", linear, 1e-6)
    same("ee_ang_vel_w", angular, 1e-6)


def test_steps_are_those_of_a_loop_over_mjdata(walker: Robot) -> None:
    sim = simulate(walker, 3)
    start(sim, torch.arange(3))
    plains = [Plain(sim, walker, env) for env in range(3)]
    touched = 0.0
    for target in targets(sim, 20):
        sim.step(target)
        for env, plain in enumerate(plains):
            plain.step(target[env].tolist())
            np.testing.assert_array_equal(sim.batch.qpos[env], plain.data.qpos)
            np.testing.assert_array_equal(sim.batch.qvel[env], plain.data.qvel)
            compare(sim, plain, env)
        touched += float(sim.state.foot_force_w.abs().sum() + sim.state.undesired_contacts.sum())
    assert touched > 100.0  # what was compared was not all zero


def test_feet_are_pushed_upwards_by_the_weight(walker: Robot) -> None:
    box = '<geom name="{0}_foot" type="box" size="0.3 0.05 0.05"'
    mjcf = str(walker.mjcf)
    for side in "LR":  # feet that it can stand on
        mjcf = mjcf.replace(f'<geom name="{side}_foot" type="sphere" size="0.05"', box.format(side))
    sim = simulate(replace(walker, mjcf=mjcf), 1)
    place_at_home(sim)
    force = []
    for _ in range(200):
        sim.step(torch.tensor([sim.home_target]))
        force.append(float(sim.state.foot_force_w[0, :, 2].sum()))
    weight = 9.81 * float(sim.model.body_mass.sum())
    assert sum(force[100:]) / 100 == pytest.approx(weight, rel=0.05)


def place_at_home(sim: MujocoSim) -> None:
    """Every row in the default pose, at rest."""
    num, default = sim.num_envs, [joint.default for joint in sim.joints]
    sim.reset(
        torch.arange(num),
        base_pos_w=torch.tensor([[0.0, 0.0, sim.home_height]]).repeat(num, 1),
        base_quat_wxyz=torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(num, 1),
        base_vel=torch.zeros(num, 6),
        joint_pos=torch.tensor([default]).repeat(num, 1),
        joint_vel=torch.zeros(num, len(default)),
    )


def everything(sim: MujocoSim) -> list[Tensor]:
    """Copies of all that is known of the rows."""
    state = [getattr(sim.state, name).clone() for name in sim.state.__slots__]
    return [*state, torch.from_numpy(sim.batch.state.copy())]


def test_a_reset_puts_rows_where_it_says_and_touches_no_other(walker: Robot) -> None:
    sim, twin = simulate(walker, 4), simulate(walker, 4)
    for one in (sim, twin):
        start(one, torch.arange(4))
        for target in targets(one, 5):
            one.step(target)
    before = everything(sim)
    ids, others = torch.tensor([0, 2]), torch.tensor([1, 3])
    start(sim, ids, seed=7)
    for was, now in zip(before, everything(sim), strict=True):
        assert torch.equal(was[others], now[others])
        assert now.shape[1] == 0 or not torch.equal(was[ids], now[ids]) or not now[ids].any()

    # What was put in is seen, forces included.
    generator = torch.Generator().manual_seed(7)
    torch.randn(2, 4, generator=generator)
    base_vel = 0.5 * torch.randn(2, 6, generator=generator)
    seen = torch.cat([sim.state.base_lin_vel_w, sim.state.base_ang_vel_b], -1)[ids]
    np.testing.assert_allclose(seen.numpy(), base_vel.numpy(), rtol=1e-6)
    for env in (0, 2):
        plain = Plain(sim, walker, env)
        mujoco.mj_forward(plain.model, plain.data)
        force = [plain._force(foot) for foot in walker.feet]
        np.testing.assert_allclose(sim.state.foot_force_w[env].numpy(), force, atol=1e-3)
        tool = plain.data.site("tool").xpos
        np.testing.assert_allclose(sim.state.ee_pos_w[env].numpy(), tool, atol=1e-6)

    # The others go on as if nothing had been reset.
    for target in targets(sim, 5, seed=3):
        sim.step(target)
        twin.step(target)
        for ours, theirs in zip(everything(sim), everything(twin), strict=True):
            assert torch.equal(ours[others], theirs[others])


def test_a_start_is_held_against_gravity_as_the_keyframe_holds_its_pose(walker: Robot) -> None:
    leading = str(walker.mjcf).replace('ctrl="0.5 -0.6', 'ctrl="0.6 -0.8')  # arm and left knee
    sim = simulate(replace(walker, mjcf=leading), 2)
    start(sim, torch.arange(2))
    lead = {"arm": 0.1, "L_knee": -0.2}
    for i, joint in enumerate(walker.joints):
        target = sim.batch.ctrl[:, sim.model.actuator(joint).id]
        expected = sim.state.joint_pos[:, i] + lead.get(joint, 0.0)
        np.testing.assert_allclose(target, expected, atol=1e-6)


def test_what_no_policy_moves_starts_as_in_the_keyframe(walker: Robot) -> None:
    sim = simulate(walker, 2)
    start(sim, torch.arange(2))
    tail = sim.model.joint("tail").qposadr[0]
    np.testing.assert_array_equal(sim.batch.qpos[:, tail], 0.2)


def test_a_push_adds_to_the_velocity_in_world_axes(walker: Robot) -> None:
    sim = simulate(walker, 3)
    start(sim, torch.arange(3))
    before = sim.batch.qvel.copy()
    sim.push(torch.tensor([[1.0, -2.0, 3.0, 0.4, 0.5, -0.6]]), torch.tensor([1]))
    added = sim.batch.qvel - before
    np.testing.assert_array_equal(added[[0, 2]], 0.0)
    np.testing.assert_allclose(added[1, :3], (1.0, -2.0, 3.0))
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, sim.batch.qpos[1, 3:7])
    np.testing.assert_allclose(turn.reshape(3, 3) @ added[1, 3:6], (0.4, 0.5, -0.6), rtol=1e-6)
    np.testing.assert_array_equal(added[1, 6:], 0.0)


HULL = 'pos="0.01 0.02 0.03" mass="4" diaginertia="0.03 0.05 0.06"'
ARM = 'pos="0.1 0 0" mass="0.5" diaginertia="0.001 0.002 0.002"'
FRICTION = 'friction="0.7 0.005 0.0001"'
GAINS = '<position kp="40" kv="1.5" nsample="5" delay="0"/>'


@pytest.mark.parametrize(
    ("field", "value", "old", "new"),
    [
        ("friction", 0.25, FRICTION, 'friction="0.25 0.005 0.0001"'),
        ("base_mass", 2.0, HULL, 'pos="0.01 0.02 0.03" mass="6" diaginertia="0.045 0.075 0.09"'),
        ("base_mass", -1.0, HULL, 'pos="0.01 0.02 0.03" mass="3" diaginertia=".0225 .0375 .045"'),
        ("ee_mass", 0.25, ARM, 'pos="0.1 0 0" mass="0.75" diaginertia="0.0015 0.003 0.003"'),
        (
            "base_com",
            (0.25, 0.0, -0.125),
            HULL,
            'pos="0.26 0.02 -0.095" mass="4" diaginertia="0.03 0.05 0.06"',
        ),
        ("kp", (0.5,) * 5, GAINS, GAINS.replace('kp="40"', 'kp="20"')),
        ("kd", (2.0,) * 5, GAINS, GAINS.replace('kv="1.5"', 'kv="3"')),
        ("delay", 0.015, GAINS, GAINS.replace('delay="0"', 'delay="0.015"')),
    ],
    ids=lambda given: given if str(given).isidentifier() else "",
)
def test_a_randomised_simulation_is_that_of_an_mjcf_edited_by_hand(
    walker: Robot, field: str, value: float | tuple[float, ...], old: str, new: str
) -> None:
    assert str(walker.mjcf).count(old) in (1, 2)
    edited = simulate(replace(walker, mjcf=str(walker.mjcf).replace(old, new)), 1)
    sim = simulate(walker, 2)
    nominal = {"friction": 0.7, "kp": 1.0, "kd": 1.0}.get(field, 0.0)
    own = torch.tensor(value)
    sim.randomise({field: torch.stack([own, torch.full_like(own, nominal)])})
    plain = simulate(walker, 1)
    for one in (sim, edited, plain):
        start(one, torch.arange(1))
    start(sim, torch.tensor([1]))
    for target in targets(plain, 20):
        sim.step(target.expand(2, -1))
        edited.step(target)
        plain.step(target)
    np.testing.assert_allclose(sim.batch.qpos[0], edited.batch.qpos[0], atol=1e-7)
    np.testing.assert_allclose(sim.batch.qpos[1], plain.batch.qpos[0], atol=1e-7)
    assert np.abs(edited.batch.qpos - plain.batch.qpos).max() > 1e-4  # it makes a difference


def test_constants_derived_from_masses_follow_them(walker: Robot) -> None:
    sim = simulate(walker, 1)
    sim.randomise({"base_mass": torch.tensor([2.0]), "base_com": torch.tensor([[0.05, 0.0, 0.0]])})
    hull = 'pos="0.06 0.02 0.03" mass="6" diaginertia="0.045 0.075 0.09"'
    edited = simulate(replace(walker, mjcf=str(walker.mjcf).replace(HULL, hull)), 1).model
    model = sim.batch.get_model(0)
    for name in ("body_subtreemass", "dof_invweight0", "body_invweight0", "actuator_acc0"):
        np.testing.assert_allclose(getattr(model, name), getattr(edited, name), rtol=1e-6)


def test_each_joint_has_its_own_gains(walker: Robot) -> None:
    sim = simulate(walker, 1)
    factors = torch.tensor([[1.1, 1.2, 1.3, 1.4, 1.5]])
    sim.randomise({"kp": factors, "kd": 2.0 * factors})
    model = sim.batch.get_model(0)
    for joint, factor in zip(walker.joints, factors[0].tolist(), strict=True):
        actuator = model.actuator(joint)
        assert actuator.gainprm[0] == -actuator.biasprm[1] == pytest.approx(40 * factor)
        assert actuator.biasprm[2] == pytest.approx(-1.5 * 2 * factor)


def test_a_delay_is_exact_to_the_substep_for_a_long_time(walker: Robot) -> None:
    """Against a loop without delays that is given each target so many substeps later."""
    sim = simulate(walker, 6)
    steps = torch.arange(6)
    place_at_home(sim)
    sim.randomise({"delay": steps * PHYSICS_S})
    start(sim, torch.arange(6))
    plains = [Plain(sim, walker, env) for env in range(6)]
    for plain in plains:
        plain.model.actuator_delay[:] = 0.0
    given = [[plain.data.ctrl.copy()] * 8 for plain in plains]
    for target in targets(sim, 50):
        sim.step(target)
        for env, plain in enumerate(plains):
            for joint, value in zip(walker.joints, target[env].tolist(), strict=True):
                plain.data.actuator(joint).ctrl[0] = value
            given[env] += [plain.data.ctrl.copy()] * SUBSTEPS
            for k in range(-SUBSTEPS, 0):
                plain.data.ctrl[:] = given[env][k - int(steps[env])]
                mujoco.mj_step(plain.model, plain.data)
            np.testing.assert_array_equal(sim.batch.qpos[env], plain.data.qpos)


def test_after_a_reset_a_delay_replays_the_pose_and_not_zero(walker: Robot) -> None:
    sim = simulate(walker, 1)
    sim.randomise({"delay": torch.tensor([5 * PHYSICS_S])})
    place_at_home(sim)
    still = simulate(walker, 1)
    place_at_home(still)
    target = torch.tensor([still.home_target])
    sim.step(target)
    still.step(target)
    np.testing.assert_array_equal(sim.batch.qpos, still.batch.qpos)


def test_a_blown_up_simulation_is_told_apart_and_nothing_else_is_said(
    walker: Robot,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    sim, twin = simulate(walker, 5), simulate(walker, 5)
    start(sim, torch.arange(5))
    start(twin, torch.arange(5))
    sim.batch.qvel[1] = 1e11  # what MuJoCo notices
    sim.batch.qpos[2, 9] = np.nan
    sim.batch.qvel[3, 0] = 2e3  # and what it does not
    target = targets(sim, 1)[0]
    sim.step(target)
    twin.step(target)
    assert sim.broken.tolist() == [False, True, True, True, False]
    for ours, theirs in zip(everything(sim), everything(twin), strict=True):
        assert torch.equal(ours[[0, 4]], theirs[[0, 4]])
    start(sim, torch.arange(1, 4))
    sim.step(target)
    assert not sim.broken.any()
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_randomised_is_refused(walker: Robot) -> None:
    sim = simulate(walker, 2)
    with pytest.raises(ValueError, match=r"no field to randomise frictoin; .* mean 'friction'"):
        sim.randomise({"frictoin": torch.ones(2)})
    with pytest.raises(
        ValueError, match=r"delay of 0\.03 s .* 0\.025 s that actuator .*nsample=\"6\""
    ):
        sim.randomise({"delay": torch.tensor([0.0, 0.03])})
    with pytest.raises(ValueError, match="-5 kg added to the 4 kg of body hull of walker"):
        sim.randomise({"base_mass": torch.tensor([0.0, -5.0])})
    with pytest.raises(ValueError, match="no end-effector to load"):
        simulate(replace(walker, ee=None), 2).randomise({"ee_mass": torch.ones(2)})


def test_a_continued_simulation_is_bit_equal(walker: Robot) -> None:
    sim = simulate(walker, 3)
    sim.randomise(
        {
            "friction": torch.tensor([0.3, 0.5, 0.9]),
            "base_mass": torch.tensor([-1.0, 0.0, 2.0]),
            "base_com": 0.02 * torch.randn(3, 3),
            "kp": 1 + 0.1 * torch.randn(3, 5),
            "delay": torch.tensor([0.0, 0.005, 0.02]),
        }
    )
    start(sim, torch.arange(3))
    all_targets = targets(sim, 20)
    for target in all_targets[:10]:
        sim.step(target)
    state, seen = sim.state_dict(), everything(sim)
    other = simulate(walker, 3)
    other.load_state_dict(state)
    for one, two in zip(everything(other), seen, strict=True):
        assert torch.equal(one, two)
    for target in all_targets[10:]:
        sim.step(target)
        other.step(target)
    for one, two in zip(everything(sim), everything(other), strict=True):
        assert torch.equal(one, two)


HIP = '<joint name="L_hip" axis="0 1 0" range="-1 1" damping="0.5" actuatorfrcrange="-9 9"/>'
HIP_SERVO = '<position name="L_hip" joint="L_hip"/>'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (HIP, HIP.replace("L_hip", "Lhip"), "no joint L_hip; it has .*Lhip.* mean 'Lhip'"),
        (HIP_SERVO, "", "no actuator L_hip; it has arm, L_knee"),
        ('site name="tool"', 'site name="hand"', "no site tool; it has hand"),
        ('geom name="L_foot"', 'geom name="toe"', "no geom L_foot; it has .*toe"),
        ('body name="hull"', 'body name="torso"', "no body hull; it has world, torso"),
        ('key name="home"', 'key name="stand"', "no keyframe home; it has stand"),
        ("<freejoint/>", "", "its first joint must be a free joint of hull"),
        (HIP, HIP.replace(' actuatorfrcrange="-9 9"', ""), "joint L_hip has no torque limit"),
        (HIP, HIP.replace(' range="-1 1"', ""), "joint L_hip has no limits"),
        (HIP, HIP.replace('name="L_hip"', 'name="L_hip" type="ball"'), "cannot be compiled"),
        (
            '<compiler angle="radian"/>',
            "",
            r"joint L_hip at 0.3, outside its range, .*mind that MJCF means degrees",
        ),
        (HIP_SERVO, '<motor name="L_hip" joint="L_hip"/>', "actuator L_hip is no position servo"),
        (HIP_SERVO, HIP_SERVO.replace('joint="L_hip"', 'joint="R_hip"'), "servo of joint L_hip"),
        (HIP_SERVO, HIP_SERVO.replace("/>", ' gear="9"/>'), "no position servo"),
        (HIP_SERVO, HIP_SERVO.replace("/>", ' timeconst="0.1"/>'), "no position servo"),
        (HIP_SERVO, '<velocity name="L_hip" joint="L_hip" kv="1"/>', "no position servo"),
        (
            " 0.5 0.3 -0.6",
            " 0.5 0.3",
            "has a qpos of 12 numbers; it must have 13: the default pose",
        ),
        (
            '\n      ctrl="0.5 -0.6 -0.6 0.3 0.3"',
            "",
            "has a ctrl of 0 numbers; it must have 5: the joint targets",
        ),
        ("<worldbody>", '<worldbody><geom type="plane" size="1 1 1"/>', "a ground of its own"),
        (
            '<geom name="L_foot"',
            '<geom name="L_foot" contype="2" conaffinity="2"',
            "foot L_foot passes through the ground.* are 2 and 2",
        ),
        ("<mujoco", "<urdf", "cannot be read"),
    ],
)
def test_an_mjcf_that_does_not_fit_is_refused(
    walker: Robot, old: str, new: str, message: str
) -> None:
    assert old in str(walker.mjcf)
    with pytest.raises(ValueError, match=message) as refused:
        simulate(replace(walker, mjcf=str(walker.mjcf).replace(old, new, 1)), 1)
    assert "walker" in str(refused.value)


def test_a_path_is_read_and_a_missing_one_refused(walker: Robot, tmp_path: Path) -> None:
    path = tmp_path / "walker.xml"
    path.write_text(str(walker.mjcf))
    assert simulate(replace(walker, mjcf=path), 1).model.nu == 5
    with pytest.raises(ValueError, match=r"cannot be read: .*nowhere"):
        simulate(replace(walker, mjcf=tmp_path / "nowhere.xml"), 1)
    with pytest.raises(ValueError, match=r"a file is given as a pathlib\.Path"):
        simulate(replace(walker, mjcf=str(path)), 1)


def test_joints_are_what_the_mjcf_says(walker: Robot) -> None:
    sim = simulate(walker, 1)
    assert [joint.name for joint in sim.joints] == list(walker.joints)
    hip, knee, *_, arm = sim.joints
    assert (hip.default, arm.default, sim.home_height) == (0.3, 0.5, 0.38)
    assert (hip.kp, hip.kd, hip.position, hip.velocity_limit) == (40.0, 1.5, (-1.0, 1.0), 20.0)
    assert (hip.torque_limit, knee.torque_limit) == (9.0, 7.0)
    assert sim.home_target == (0.3, -0.6, 0.3, -0.6, 0.5)
