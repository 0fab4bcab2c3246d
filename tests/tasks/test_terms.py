"""Terms on states made by hand, whose values are known in closed form."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from math import cos, exp, pi, sin, sqrt

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from robo_rl import registry
from robo_rl.tasks.backends.sim import State
from robo_rl.tasks.env import TaskCfg
from robo_rl.tasks.terms import metrics as m
from robo_rl.tasks.terms import observations as o
from robo_rl.tasks.terms import rewards as r
from robo_rl.tasks.terms import terminations as t
from robo_rl.tasks.terms.rotations import (
    about_z,
    conjugate,
    from_euler,
    from_vector,
    length,
    multiply,
    rotate,
    rotate_inverse,
    to_euler,
    to_vector,
    two_columns,
    yaw_of,
)
from robo_rl.tasks.terms.term import Observation, Reward, Term
from robo_rl.tasks.terms.view import Layout, View, rotation_between

Array = npt.NDArray[np.float64]
GENERATOR = torch.Generator().manual_seed(0)
ANGLES = (0.0, 1e-9, 1e-4, 0.5, pi / 2, 3.0, pi - 1e-3, pi)


# Rotations


def turned(axis: Array, angle: float) -> Array:
    """Rotation matrix by Rodrigues' formula."""
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    matrix: Array = np.eye(3) + sin(angle) * cross + (1 - cos(angle)) * cross @ cross
    return matrix


def some_rotations() -> tuple[Tensor, list[Array]]:
    """Rotation vectors, (n, 3), and their matrices: each angle about random axes."""
    axes = torch.randn(5, 3, generator=GENERATOR, dtype=torch.float64).numpy()
    both = [(axis / np.linalg.norm(axis) * a, turned(axis, a)) for axis in axes for a in ANGLES]
    vectors, matrices = zip(*both, strict=True)
    return torch.tensor(np.array(vectors), dtype=torch.float32), list(matrices)


def test_quaternions_rotate_as_matrices_do() -> None:
    vectors, matrices = some_rotations()
    points = torch.randn(len(vectors), 3, generator=GENERATOR)
    quats = from_vector(vectors)
    there, back = rotate(quats, points), rotate_inverse(quats, points)
    for i, matrix in enumerate(matrices):
        np.testing.assert_allclose(there[i], matrix @ points[i].double().numpy(), atol=2e-6)
        np.testing.assert_allclose(back[i], matrix.T @ points[i].double().numpy(), atol=2e-6)
        np.testing.assert_allclose(two_columns(quats)[i], matrix[:, :2].T.ravel(), atol=1e-6)
        np.testing.assert_allclose(length(quats)[i], 1.0, atol=1e-6)
        forward = matrix[:2, 0]
        if np.linalg.norm(forward) > 1e-3:
            np.testing.assert_allclose(yaw_of(quats)[i], np.arctan2(*forward[::-1]), atol=1e-3)


def test_products_are_of_matrices_in_the_same_order() -> None:
    vectors, matrices = some_rotations()
    quats, points = from_vector(vectors), torch.randn(len(vectors), 3, generator=GENERATOR)
    after = quats.roll(1, 0)
    got = rotate(multiply(after, quats), points)
    for i, matrix in enumerate(matrices):
        expected = matrices[i - 1] @ matrix @ points[i].double().numpy()
        np.testing.assert_allclose(got[i], expected, atol=3e-6)
    same = multiply(quats, conjugate(quats))
    np.testing.assert_allclose(same, torch.tensor([[1.0, 0, 0, 0]]).expand_as(same), atol=1e-6)


def test_rotation_vectors_are_the_shorter_way_and_come_back() -> None:
    vectors, _ = some_rotations()
    quats = from_vector(vectors)
    for quat in (quats, -quats):  # the same rotation
        back = to_vector(quat)
        assert back.isfinite().all()
        assert (length(back) <= pi + 1e-6).all()
        half_turn = length(vectors) > pi - 1e-6
        np.testing.assert_allclose(back[~half_turn], vectors[~half_turn], atol=3e-4)
        alike = torch.minimum(length(back - vectors), length(back + vectors))
        np.testing.assert_allclose(alike, 0.0, atol=3e-4)  # half a turn has two axes
    long_way = to_vector(from_vector(torch.tensor([[0.0, 0.0, 1.5 * pi]])))
    np.testing.assert_allclose(long_way, [[0.0, 0.0, -0.5 * pi]], atol=1e-6)


def test_euler_angles_are_roll_then_pitch_then_yaw_about_fixed_axes() -> None:
    angles = torch.tensor(
        [[0.3, -0.4, 2.0], [0.0, 0.0, 0.0], [-1.0, 1.5, -3.0], [3.0, -1.5, 0.5], [0.2, 0.0, 3.1]]
    )
    quats, axes = from_euler(angles), np.eye(3)
    for quat, (roll, pitch, yaw) in zip(quats, angles.tolist(), strict=True):
        matrix = turned(axes[2], yaw) @ turned(axes[1], pitch) @ turned(axes[0], roll)
        got = torch.stack([rotate(quat, axis) for axis in torch.eye(3)], -1)
        np.testing.assert_allclose(got, matrix, atol=1e-6)
    back = from_euler(to_euler(quats))
    np.testing.assert_allclose((back * quats).sum(-1).abs(), 1.0, atol=1e-6)
    np.testing.assert_allclose(yaw_of(about_z(angles[:, 2])), angles[:, 2], atol=1e-6)


def test_rotation_between_turns_the_first_into_the_second() -> None:
    start, goal = from_vector(torch.randn(2, 20, 3, generator=GENERATOR))
    got = multiply(from_vector(rotation_between(start, goal)), start)
    np.testing.assert_allclose((got * goal).sum(-1).abs(), 1.0, atol=1e-6)


# A view made by hand: a robot of three joints and two feet in three environments.

LAYOUT = Layout(
    default_joint_pos=torch.tensor([0.1, 0.2, -0.3]),
    joint_low=torch.tensor([-1.0, -2.0, -1.0]),
    joint_high=torch.tensor([1.0, 0.0, 3.0]),
    limbs={"all": slice(None), "legs": slice(0, 2), "arm": torch.tensor([2])},
    no_touch={"all": slice(None), "legs": slice(0, 1), "arm": slice(1, 2)},
    base_height=0.4,
    step_s=0.02,
)
LEVEL, QUARTER_LEFT = (1.0, 0.0, 0.0, 0.0), (sqrt(0.5), 0.0, 0.0, sqrt(0.5))
ROLLED = (cos(0.15), sin(0.15), 0.0, 0.0)
"""By 0.3 rad to the right."""
EE = (sqrt(0.5), 0.0, sqrt(0.5), 0.0)


def state() -> State:
    """Level and heading along x; level and heading along y; rolled to the right."""
    return State(
        base_pos_w=torch.tensor([[0.0, 0.0, 0.4], [1.0, 2.0, 0.5], [0.0, 0.0, 0.1]]),
        base_quat_wxyz=torch.tensor([LEVEL, QUARTER_LEFT, ROLLED]),
        base_lin_vel_w=torch.tensor([[0.5, 0.25, -0.1], [0.5, 0.25, 0.2], [0.0, 0.0, 1.0]]),
        base_ang_vel_b=torch.tensor([[0.1, 0.2, 0.3], [0.0, 0.0, -0.5], [0.0, 1.0, 0.0]]),
        joint_pos=torch.tensor([[0.1, 0.2, -0.3], [0.3, -0.1, 2.9], [0.99, 0.0, 3.0]]),
        joint_vel=torch.tensor([[1.0, -2.0, 3.0], [0.0, 0.0, 0.0], [0.5, 0.5, 0.5]]),
        joint_torque=torch.tensor([[2.0, 3.0, -4.0], [0.0, 1.0, 0.0], [5.0, 0.0, 1.0]]),
        foot_pos_w=torch.tensor(
            [
                [[0.0, 0.1, 0.02], [0.0, -0.1, 0.12]],
                [[0.0, 0.1, 0.02], [0.0, -0.1, 0.02]],
                [[0.0, 0.1, 0.05], [0.0, -0.1, 0.0]],
            ]
        ),
        foot_vel_w=torch.tensor(
            [
                [[0.3, 0.4, 0.0], [0.6, 0.8, -2.0]],
                [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
                [[0.1, 0.0, 0.2], [0.0, 0.0, 0.0]],
            ]
        ),
        foot_force_w=torch.tensor(
            [
                [[3.0, 4.0, 100.0], [0.0, 0.0, 0.0]],
                [[0.0, 0.0, 80.0], [0.0, 30.0, 40.0]],
                [[0.0, 0.0, 4.0], [0.0, 0.0, 6.0]],
            ]
        ),
        undesired_contacts=torch.tensor([[0.0, 0.0], [2.0, 1.0], [0.0, 1.0]]),
        ee_pos_w=torch.tensor([[0.5, 0.1, 0.6], [0.9, 2.5, 0.6], [0.3, 0.0, 0.2]]),
        ee_quat_wxyz=torch.tensor([EE, QUARTER_LEFT, LEVEL]),
        ee_lin_vel_w=torch.tensor([[0.5, 0.25, 0.3], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
        ee_ang_vel_w=torch.tensor([[0.0, 0.0, 0.3], [0.0, 0.7, 0.0], [0.0, 0.0, 0.0]]),
    )


def command() -> dict[str, Tensor]:
    return {
        "base_twist": torch.tensor([[0.5, 0.25, 0.0], [0.5, 0.25, -0.5], [0.0, 0.0, 0.0]]),
        "ee_pos": torch.tensor([[0.5, 0.1, 0.6], [0.5, 0.1, 0.9], [0.3, 0.4, 0.2]]),
        "ee_quat_wxyz": torch.tensor([EE, LEVEL, QUARTER_LEFT]),
        "ee_twist": torch.tensor([[0.0] * 6, [0.1, 0.2, 0.3, 0.0, 0.0, 0.0], [0.0] * 6]),
        "ee_left": torch.tensor([[0.1, 0.0, 0.0] + [0.0] * 3, [0.0] * 5 + [1.5], [0.0] * 6]),
        "foot_phase": torch.tensor([[0.0, 0.25], [0.5, 0.75], [0.1, 0.2]]),
        "foot_stance": torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
        "foot_height": torch.tensor([[0.02, 0.12], [0.12, 0.02], [0.02, 0.02]]),
        "gait_moves": torch.tensor([1.0, 1.0, 0.0]),
    }


def view() -> View:
    return View(
        layout=LAYOUT,
        state=state(),
        command=command(),
        action=torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [0.5, 0.5, 0.5]]),
        previous_action=torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
        foot_air_time=torch.tensor([[0.35, 0.1], [0.15, 0.25], [0.5, 0.5]]),
        foot_contact=torch.tensor([[True, False], [True, True], [False, True]]),
        foot_landed=torch.tensor([[True, False], [True, True], [False, True]]),
    )


def close(got: Tensor, expected: object) -> None:
    wanted = torch.as_tensor(expected, dtype=torch.float32)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


TILT = sin(0.3) ** 2
# In the frame of the second robot, which heads along the world's y axis and turns at -0.5 rad/s,
# the end-effector is half a metre ahead and 0.1 m to the left; the world moves it.
DRIFT = (0.25 - (-0.5) * 0.1, -0.5 + (-0.5) * 0.5)
"""Velocity of the place where its end-effector is, fixed in its task frame, over the ground."""


def test_frames() -> None:
    v = view()
    close(v.gravity_b, [[0, 0, -1], [0, 0, -1], [0, -sin(0.3), -cos(0.3)]])
    close(v.base_lin_vel_b[1], [0.25, -0.5, 0.2])
    close(v.base_lin_vel_b[2], [0, sin(0.3), cos(0.3)])
    close(v.base_lin_vel_t[1:], [[0.25, -0.5, 0.2], [0, 0, 1]])
    close(v.base_twist_t, [[0.5, 0.25, 0.3], [0.25, -0.5, -0.5], [0, 0, sin(0.3)]])
    close(v.origin_w[1], [1, 2, 0])
    close(v.ee_pos_t, [[0.5, 0.1, 0.6], [0.5, 0.1, 0.6], [0.3, 0.0, 0.2]])
    close(v.to_world(v.ee_pos_t), v.state.ee_pos_w)
    close(v.ee_quat_wxyz_t, [EE, LEVEL, LEVEL])
    close(v.frame_vel_t(v.ee_pos_t)[1], [*DRIFT, 0])
    close(v.ee_lin_vel_t[1], [-DRIFT[0], -DRIFT[1], 0])
    close(v.ee_lin_vel_t[0], [0.3 * 0.1, -0.3 * 0.5, 0.3])
    close(v.ee_ang_vel_t[:2], [[0, 0, 0], [0.7, 0, 0.5]])
    close(v.ee_pos_measured_t[1], [0.5, 0.1, 0.1 + 0.4])  # as if the base were 0.4 m high
    close(v.ee_rotation_error_t, [[0, 0, 0], [0, 0, 0], [0, 0, pi / 2]])


def test_twists_are_derivatives_of_poses_while_the_base_tumbles() -> None:
    """Central differences of the task frame's poses, for twists in it of a base that is tilted."""
    num, dt = 20, 1e-5
    drawn = torch.randn(8, num, 3, dtype=torch.float64, generator=GENERATOR)
    base_ang_b, ee_ang_w, base_vel, ee_vel, base_pos, ee_pos, lean, ee_turn = drawn
    base_quat, ee_quat = from_vector(0.4 * lean), from_vector(ee_turn)

    def moved(by_s: float) -> View:
        given = {name: torch.zeros(num, 1, dtype=torch.float64) for name in State.__slots__}
        given |= {
            "base_pos_w": base_pos + by_s * base_vel,
            "base_quat_wxyz": multiply(base_quat, from_vector(by_s * base_ang_b)),
            "base_lin_vel_w": base_vel,
            "base_ang_vel_b": base_ang_b,
            "ee_pos_w": ee_pos + by_s * ee_vel,
            "ee_quat_wxyz": multiply(from_vector(by_s * ee_ang_w), ee_quat),
            "ee_lin_vel_w": ee_vel,
            "ee_ang_vel_w": ee_ang_w,
        }
        return replace(view(), state=State(**given))

    now, before, after = moved(0.0), moved(-dt), moved(dt)
    velocity = (after.ee_pos_t - before.ee_pos_t) / (2 * dt)
    spin = rotation_between(before.ee_quat_wxyz_t, after.ee_quat_wxyz_t) / (2 * dt)
    heading = (yaw_of(after.state.base_quat_wxyz) - yaw_of(before.state.base_quat_wxyz)) / (2 * dt)
    np.testing.assert_allclose(now.ee_lin_vel_t, velocity, atol=1e-5)
    np.testing.assert_allclose(now.ee_ang_vel_t, spin, atol=1e-5)
    np.testing.assert_allclose(now.heading_rate, heading, atol=1e-5)


def test_a_view_of_new_commands_keeps_only_what_the_state_gives() -> None:
    v = view()
    derived = [k for k, w in vars(View).items() if type(w).__name__ == "cached_property"]
    for name in derived:
        getattr(v, name)
    for value in v.command.values():
        value += torch.randn(value.shape, generator=GENERATOR)
    after, fresh = v.recommanded(), replace(v)
    for name in derived:
        assert torch.equal(getattr(after, name), getattr(fresh, name)), name
    assert after.__dict__["gravity_b"] is v.__dict__["gravity_b"]


def test_rows_of_a_view_are_those_rows() -> None:
    v, ids = view(), torch.tensor([2, 0])
    few = v.rows(ids)
    close(few.gravity_b, v.gravity_b[ids])
    close(few.ee_rotation_error_t, v.ee_rotation_error_t[ids])
    close(few.foot_air_time, v.foot_air_time[ids])


REWARDS: list[tuple[Reward, list[float]]] = [
    (
        r.TrackBaseLinVel(weight=1, std=0.5),
        [1.0, exp(-(0.25**2 + 0.75**2) / 0.25), 1.0],
    ),
    (r.TrackYawRate(weight=1, std=0.5), [exp(-0.09 / 0.25), 1.0, exp(-TILT / 0.25)]),
    (r.Tilt(weight=1), [0.0, 0.0, TILT]),
    (r.VerticalVel(weight=1), [0.01, 0.04, 1.0]),
    (r.RollPitchRate(weight=1), [0.05, 0.0, 1.0]),
    (r.BaseHeightError(weight=1), [0.0, 0.01, 0.09]),
    (r.Alive(weight=1), [1.0, 1.0, 1.0]),
    (r.Torque(weight=1), [29.0, 1.0, 26.0]),
    (r.Torque(weight=1, limb="legs"), [13.0, 1.0, 25.0]),
    (r.JointSpeed(weight=1, limb="arm"), [9.0, 0.0, 0.25]),
    (r.ActionRate(weight=1), [5.0, 0.0, 0.75]),
    (r.ActionRate(weight=1, limb="arm"), [4.0, 0.0, 0.25]),
    # Inner halves of the ranges: -0.5 to 0.5, -1.5 to -0.5, 0 to 2.
    (r.JointLimit(weight=1, inner=0.5), [0.7 + 0.3, 0.4 + 0.9, 0.49 + 0.5 + 1.0]),
    (r.Posture(weight=1, limb="legs"), [0.0, 0.04 + 0.09, 0.89**2 + 0.04]),
    (r.Collision(weight=1), [0.0, 2.0, 1.0]),
    (r.Collision(weight=1, limb="legs"), [0.0, 1.0, 0.0]),
    # Landed after 0.35 s; after 0.15 s and 0.25 s; told to stand.
    (r.AirTime(weight=1, threshold_s=0.25), [0.1, -0.1, 0.0]),
    (r.FootSlip(weight=1), [0.25, 0.0, 0.0]),
    (r.StandStill(weight=1), [0.0, 0.0, 1.0]),
    (r.TrackContact(weight=1), [1.0, 0.5, 0.5]),
    (r.SwingForce(weight=1, std=50.0), [0.0, (1 - exp(-(80**2) / 50**2)) / 2, 0.0]),
    (
        r.StanceSpeed(weight=1, std=0.5),
        [(1 - exp(-1.0)) / 2, 0.0, (1 - exp(-0.05 / 0.25)) / 2],
    ),
    (
        r.TrackFootHeight(weight=1, std=0.05),
        [1.0, (exp(-4.0) + 1) / 2, (exp(-0.36) + exp(-0.16)) / 2],
    ),
    (r.TrackEePos(weight=1, std=0.3), [1.0, exp(-1.0), exp(-16 / 9)]),
    (r.EeDistance(weight=1), [0.0, 0.3, 0.4]),
    (r.TrackEeRotation(weight=1, std=pi / 2), [1.0, 1.0, exp(-1.0)]),
    (r.EeAngle(weight=1), [0.0, 0.0, pi / 2]),
    (
        r.TrackEeLinVel(weight=1, std=0.5),
        [
            exp(-4 * (0.03**2 + 0.15**2 + 0.09)),
            exp(-4 * ((0.1 + DRIFT[0]) ** 2 + (0.2 + DRIFT[1]) ** 2 + 0.09)),
            # Its base rises and pitches: the frame below it stays, turning with the shadow.
            exp(-4 * (0.3 * sin(0.3)) ** 2),
        ],
    ),
    (
        r.TrackEeAngVel(weight=1, std=1.0),
        [1.0, exp(-(0.7**2) - 0.25), exp(-TILT)],
    ),
]

METRICS: list[tuple[Term, list[float]]] = [
    (m.BaseVelError(), [0.0, sqrt(0.25**2 + 0.75**2), 0.0]),
    (m.YawRateError(), [0.3, 0.0, sin(0.3)]),
    (m.EePosError(), [0.0, 0.3, 0.4]),
    (m.EeRotationError(), [0.0, 0.0, pi / 2]),
    (
        m.EeLinVelError(),
        [
            sqrt(0.03**2 + 0.15**2 + 0.09),
            sqrt((0.1 + DRIFT[0]) ** 2 + (0.2 + DRIFT[1]) ** 2 + 0.09),
            0.3 * sin(0.3),
        ],
    ),
    (m.EeAngVelError(), [0.0, sqrt(0.7**2 + 0.25), sin(0.3)]),
    (m.ContactAgreement(), [1.0, 0.5, 0.5]),
    (m.Power(), [2.0 + 6.0 + 12.0, 0.0, 3.0]),
]

TERMINATIONS: list[tuple[Term, list[bool]]] = [
    (t.Tilted(sine=0.25), [False, False, True]),
    (t.Tilted(sine=0.3), [False, False, False]),
    (t.Low(share=0.5), [False, False, True]),
    (t.Low(share=1.1), [True, False, True]),
]

OBSERVATIONS: list[tuple[Observation, list[list[float]]]] = [
    (o.BaseAngVel(), [[0.1, 0.2, 0.3], [0.0, 0.0, -0.5], [0.0, 1.0, 0.0]]),
    (o.Gravity(), [[0, 0, -1], [0, 0, -1], [0, -sin(0.3), -cos(0.3)]]),
    (o.JointPos(), [[0.0, 0.0, 0.0], [0.2, -0.3, 3.2], [0.89, -0.2, 3.3]]),
    (o.JointVel(), [[1.0, -2.0, 3.0], [0.0, 0.0, 0.0], [0.5, 0.5, 0.5]]),
    (o.LastAction(), [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [0.5, 0.5, 0.5]]),
    (o.BaseTwistCommand(), [[0.5, 0.25, 0.0], [0.5, 0.25, -0.5], [0.0, 0.0, 0.0]]),
    (o.EePosError(), [[0, 0, 0], [0, 0, 0.9 - 0.5], [0, 0.4, 0.2 - 0.5]]),
    (o.EeRotationError(), [[0, 0, 0], [0, 0, 0], [0, 0, pi / 2]]),
    (o.EePosCommand(), [[0.5, 0.1, 0.6], [0.5, 0.1, 0.9], [0.3, 0.4, 0.2]]),
    (o.EeRotationCommand(), [[0, 0, -1, 0, 1, 0], [1, 0, 0, 0, 1, 0], [0, 1, 0, -1, 0, 0]]),
    (o.EeTwistCommand(), [[0.0] * 6, [0.1, 0.2, 0.3, 0, 0, 0], [0.0] * 6]),
    (o.EeGoal(), [[0.1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1.5], [0] * 6]),
    (o.FootHeightCommand(), [[0.02, 0.12], [0.12, 0.02], [0.02, 0.02]]),
    (o.FootPhase(), [[0, 1, 1, 0], [0, -1, -1, 0], [0, 0, 0, 0]]),
    (o.BaseLinVel(), [[0.5, 0.25, -0.1], [0.25, -0.5, 0.2], [0.0, sin(0.3), cos(0.3)]]),
    (o.BaseHeight(), [[0.0], [0.1], [-0.3]]),
    (
        o.EeTwist(),
        [
            [0.03, -0.15, 0.3, 0, 0, 0],
            [-DRIFT[0], -DRIFT[1], 0, 0.7, 0, 0.5],
            [0.0, -0.3 * sin(0.3), 0, 0, 0, -sin(0.3)],
        ],
    ),
    (o.FootForce(), [[100.0, 0.0], [80.0, 40.0], [4.0, 6.0]]),
    (o.FootHeight(), [[0.02, 0.12], [0.02, 0.02], [0.05, 0.0]]),
    (o.JointTorque(), [[2.0, 3.0, -4.0], [0.0, 1.0, 0.0], [5.0, 0.0, 1.0]]),
]

TABLE: list[tuple[Term | Observation, object]] = [
    *REWARDS,
    *METRICS,
    *TERMINATIONS,
    *OBSERVATIONS,
]


@pytest.mark.parametrize(("term", "expected"), TABLE, ids=lambda given: type(given).__name__)
def test_a_term_is_its_formula(term: Term | Observation, expected: object) -> None:
    v = view()
    close(term(v), expected)
    for name in State.__slots__:  # and leaves what it reads alone
        assert torch.equal(getattr(v.state, name), getattr(state(), name))
    for name, value in command().items():
        assert torch.equal(v.command[name], value)


def test_every_term_there_is_has_its_formula_here() -> None:
    tested = {type(term) for term, _ in TABLE}
    there = {
        one
        for module in (r, m, t, o)
        for _, one in inspect.getmembers(module, inspect.isclass)
        if one.__module__ == module.__name__ and not one.__name__.startswith("_")
    }
    assert there == tested


def test_upside_down_is_tilted() -> None:
    turned_over = replace(state(), base_quat_wxyz=torch.tensor([[0.0, 1.0, 0.0, 0.0]] * 3))
    assert t.Tilted(sine=1.0)(replace(view(), state=turned_over)).all()


def test_a_kernel_needs_a_width_and_a_limb_must_be_one() -> None:
    with pytest.raises(ValueError, match="std is 0; it must be above 0"):
        r.TrackEePos(weight=1, std=0)
    with pytest.raises(ValueError, match="no limb 'wing', only all, legs, arm"):
        r.Torque(weight=1, limb="wing")(view())


@pytest.mark.parametrize("name", [n for n in registry.tasks() if n.startswith("go2")])
def test_terms_of_a_registered_task_are_finite_and_of_the_right_shape(name: str) -> None:
    cfg = registry.task(name)
    assert isinstance(cfg, TaskCfg)
    env = cfg.build(num_envs=3, seed=0)
    env.step(0.5 * torch.randn(3, len(env.spec.joints), generator=GENERATOR))
    tables: Mapping[str, Mapping[str, Term]] = {**cfg.rewards, "ends": cfg.terminations}
    for terms in (*tables.values(), cfg.metrics):
        for what, term in terms.items():
            assert term(env.view).shape == (3,), what
            assert term(env.view).isfinite().all(), what
            assert term.unit or terms is cfg.terminations, what
    for group, observed in cfg.observations.items():
        for spec, one in zip(env.spec.obs[group].terms, observed.values(), strict=True):
            value = one(env.view)
            assert value.shape == (3, spec.size)
            assert value.isfinite().all()
            assert spec.unit


def test_actors_see_what_a_robot_measures_and_critics_the_same_without_noise() -> None:
    for name in registry.tasks():
        cfg = registry.task(name)
        if isinstance(cfg, TaskCfg):
            actor, critic = cfg.observations["actor"], cfg.observations["critic"]
            assert all(term.measured for term in actor.values())
            assert {k: replace(v, noise=0.0) for k, v in actor.items()}.items() <= critic.items()
