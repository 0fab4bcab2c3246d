"""Commands while a base moves as told: paths, gaits and velocities are what they promise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from robo_rl.tasks.backends.sim import State
from robo_rl.tasks.terms.commands import (
    GAITS,
    BaseTwist,
    BaseTwistCfg,
    CommandState,
    EePath,
    EePathCfg,
    Gait,
    GaitCfg,
    enters,
)
from robo_rl.tasks.terms.rotations import (
    about_z,
    from_euler,
    from_vector,
    length,
    multiply,
    rotate,
)
from robo_rl.tasks.terms.view import Layout, View, rotation_between

STEP_S = 0.02
EE_IN_BASE = torch.tensor([0.45, 0.0, 0.3])
HEIGHT = 0.32


def make_view(num: int, commands: list[CommandState]) -> View:
    """Robots that stand at the origin, level, with the gripper ahead."""
    none, one = torch.zeros(num, 0), torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(num, 1)
    given = dict.fromkeys(State.__slots__, none) | {
        "base_pos_w": torch.tensor([0.0, 0.0, HEIGHT]).repeat(num, 1),
        "base_quat_wxyz": one,
        "base_lin_vel_w": torch.zeros(num, 3),
        "base_ang_vel_b": torch.zeros(num, 3),
        "ee_pos_w": EE_IN_BASE + torch.tensor([0.0, 0.0, HEIGHT]).repeat(num, 1),
        "ee_quat_wxyz": one,
        "ee_lin_vel_w": torch.zeros(num, 3),
        "ee_ang_vel_w": torch.zeros(num, 3),
    }
    layout = Layout(
        default_joint_pos=torch.zeros(0),
        joint_low=torch.zeros(0),
        joint_high=torch.zeros(0),
        limbs={"all": slice(None)},
        no_touch={"all": slice(None)},
        base_height=HEIGHT,
        step_s=STEP_S,
    )
    values = {k: v for command in commands for k, v in command.values.items()}
    return View(
        layout=layout,
        state=State(**given),
        command=values,
        action=none,
        previous_action=none,
        foot_air_time=none,
        foot_contact=none,
        foot_landed=none,
    )


def ride(view: View, base_twist: Tensor) -> View:
    """The view a step later, of bases that move exactly at base_twist (N, 3)."""
    state = view.state
    middle = multiply(about_z(0.5 * STEP_S * base_twist[:, 2]), state.base_quat_wxyz)
    level = torch.cat([base_twist[:, :2], torch.zeros(len(base_twist), 1)], -1)
    quat = multiply(about_z(STEP_S * base_twist[:, 2]), state.base_quat_wxyz)
    pos = state.base_pos_w + STEP_S * rotate(middle, level)
    turning = torch.zeros_like(pos)
    turning[:, 2] = base_twist[:, 2]
    return replace(
        view,
        state=replace(
            state,
            base_pos_w=pos,
            base_quat_wxyz=quat,
            base_lin_vel_w=rotate(quat, level),
            base_ang_vel_b=turning,
            ee_pos_w=pos + rotate(quat, EE_IN_BASE.expand_as(pos)),
            ee_quat_wxyz=quat,
        ),
    )


def path_of(cfg: EePathCfg, num: int, *, moves: bool = False) -> tuple[EePath, View]:
    """The first paths of num robots."""
    generator = torch.Generator().manual_seed(0)
    base = BaseTwistCfg(forward=(0.4, 0.4), left=(0.2, 0.2), turn=(0.5, 0.5), standing=0.0)
    driving = base.build("base", num, generator)
    ee = cfg.build("ee", num, generator)
    view = make_view(num, [driving, ee])
    if moves:
        driving.reset(torch.arange(num), view)
    ee.reset(torch.arange(num), view)
    assert not ee.values["ee_left"].any()  # an episode starts at rest, where the gripper is
    np.testing.assert_allclose(ee.values["ee_pos"], view.ee_pos_t)
    ee.renew(view)
    return ee, view


def goal_of(ee: EePath) -> tuple[Tensor, Tensor]:
    """The end of each path: place and orientation."""
    left = ee.values["ee_left"]
    turned = multiply(from_vector(left[:, 3:]), ee.values["ee_quat_wxyz"])
    return ee.values["ee_pos"] + left[:, :3], turned


def snapshot(command: CommandState) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in command.values.items()}


def test_a_path_keeps_its_speed_ends_at_its_goal_and_rests() -> None:
    cfg = EePathCfg(speed=(0.2, 0.6), rest_s=(0.3, 0.3), in_world=0.0)
    ee, view = path_of(cfg, 200)
    start, whole = snapshot(ee), ee.left_s.clone()
    (goal, goal_quat), twist = goal_of(ee), start["ee_twist"]
    turn = rotation_between(start["ee_quat_wxyz"], goal_quat)
    speed, spin = length(twist[:, :3]), length(twist[:, 3:])
    assert (speed <= cfg.speed[1] + 1e-5).all()
    assert (spin <= cfg.turn_speed + 1e-5).all()
    fast = (speed >= cfg.speed[0] - 1e-5) & (speed <= cfg.speed[1] + 1e-5)
    assert (fast | (spin > cfg.turn_speed - 1e-4)).all()
    np.testing.assert_allclose(length(turn), spin * (whole - 0.3), atol=1e-4)  # the shorter way

    before = start
    for k in range(1, 500):
        ee.advance(view)
        now = snapshot(ee)
        time = torch.full((200, 1), k * STEP_S)
        moving = (time < whole[:, None] - 0.3 - 1e-3)[:, 0]
        arrived = (time > whole[:, None] - 0.3 + STEP_S)[:, 0] & (ee.left_s > 0.0)
        went = torch.cat(
            [
                now["ee_pos"] - before["ee_pos"],
                rotation_between(before["ee_quat_wxyz"], now["ee_quat_wxyz"]),
            ],
            -1,
        )
        np.testing.assert_allclose(went[moving], STEP_S * twist[moving], atol=2e-6)
        np.testing.assert_allclose(now["ee_twist"][moving], twist[moving])
        np.testing.assert_allclose(now["ee_pos"][arrived], goal[arrived], atol=3e-5)
        off = rotation_between(now["ee_quat_wxyz"], goal_quat)
        np.testing.assert_allclose(off[arrived], 0.0, atol=1e-4)
        left = torch.cat([goal - now["ee_pos"], off], -1)
        np.testing.assert_allclose(now["ee_left"], left, atol=1e-4)
        assert not now["ee_twist"][arrived].any()
        before = now
        if not (ee.left_s > 0.0).any():
            break
    else:
        pytest.fail("a path never ended")


def test_a_new_path_starts_where_the_last_one_was() -> None:
    ee, view = path_of(EePathCfg(in_world=0.0), 50)
    for _ in range(300):
        ee.advance(view)
        before, goal = snapshot(ee), goal_of(ee)[0]
        drawn = ee.left_s <= 0.0
        ee.renew(view)
        assert torch.equal(ee.values["ee_pos"], before["ee_pos"])
        assert torch.equal(ee.values["ee_quat_wxyz"], before["ee_quat_wxyz"])
        other = length(goal_of(ee)[0] - goal) > 1e-6
        assert not (other & ~drawn).any()


def test_goals_are_in_their_ranges_and_paths_keep_out_of_the_box() -> None:
    cfg = EePathCfg(in_world=0.0)
    ee, view = path_of(cfg, 2000)
    low, high = torch.tensor(cfg.keep_out).T
    for _ in range(3):
        start, goal = ee.values["ee_pos"].clone(), goal_of(ee)[0]
        moves = length(goal - start) > 1e-6
        assert moves.float().mean() > 0.8
        radius, azimuth = length(goal[moves, :2]), torch.atan2(goal[moves, 1], goal[moves, 0])
        for value, (least, most) in (
            (radius, cfg.radius),
            (azimuth, cfg.azimuth),
            (goal[moves, 2], cfg.height),
        ):
            assert (value >= least - 1e-5).all()
            assert (value <= most + 1e-5).all()
            assert value.max() - value.min() > 0.8 * (most - least)  # and fill them
        for share in torch.linspace(0.0, 1.0, 200):
            point = start + share * (goal - start)
            assert not ((point > low + 1e-5) & (point < high - 1e-5)).all(-1).any()
        ee.left_s.zero_()
        ee.values["ee_pos"].copy_(goal)
        ee.renew(view)


def test_goals_look_away_from_the_robot_within_their_angles() -> None:
    level = EePathCfg(roll=(0.0, 0.0), pitch=(0.0, 0.0), yaw=(0.0, 0.0), in_world=0.0)
    ee, _ = path_of(level, 100)
    goal, quat = goal_of(ee)
    ahead = rotate(quat, torch.tensor([1.0, 0.0, 0.0]).expand(100, 3))
    outwards = torch.nn.functional.normalize(goal[:, :2], dim=-1)
    np.testing.assert_allclose(ahead[:, :2], outwards, atol=1e-5)
    np.testing.assert_allclose(ahead[:, 2], 0.0, atol=1e-5)


def test_ways_into_a_box_are_found_as_by_dense_sampling() -> None:
    generator = torch.Generator().manual_seed(1)
    low, high = torch.tensor([-0.4, -0.2, 0.0]), torch.tensor([0.3, 0.2, 0.4])
    start, end = 2.0 * torch.rand(2, 3000, 3, generator=generator) - 1.0
    end[:100, 1:] = start[:100, 1:]  # along an axis
    share = torch.linspace(0.0, 1.0, 2001)[:, None]
    got = enters(start, end, low, high)
    for s, e, one in zip(start, end, got.tolist(), strict=True):
        points = s + share * (e - s)
        depth = torch.minimum(points - low, high - points).amin(-1)
        inside = depth > 0.0
        goes_in = bool((inside[1:] & ~inside[:-1]).any()) or bool(inside[-1])
        grazes = bool((depth.amax() - 0.0).abs() < 2e-3)
        assert one == goes_in or grazes


def test_a_path_fixed_in_the_world_stays_there_while_the_base_moves() -> None:
    cfg = EePathCfg(in_world=1.0, in_world_s=2.0, rest_s=(0.2, 0.2))
    ee, view = path_of(cfg, 100, moves=True)
    assert ee.in_world.all()
    assert (ee.left_s <= 2.0).all()
    twist, start = ee.values["ee_twist"].clone(), view.to_world(ee.values["ee_pos"])
    # The base still stands, so that the path's own twist is to be seen.
    own_w = rotate(view.heading_wxyz, twist[:, :3] + view.frame_vel_t(ee.values["ee_pos"]))
    moving_s = ee.path["moving_s"].clone()
    values = [snapshot(ee)]
    for k in range(1, 80):
        view = ride(view, view.command["base_twist"])
        ee.advance(view)
        values.append(snapshot(ee))
        way = own_w * torch.clamp(moving_s, max=k * STEP_S)[:, None]
        np.testing.assert_allclose(view.to_world(ee.values["ee_pos"]), start + way, atol=1e-4)
    still = moving_s < 0.5
    assert 0 < int(still.sum()) < 100
    for k in range(2, 79):  # twists are derivatives in the moving frame, of those on their way too
        before, now, after = values[k - 1 : k + 2]
        velocity = (after["ee_pos"] - before["ee_pos"]) / (2 * STEP_S)
        spin = rotation_between(before["ee_quat_wxyz"], after["ee_quat_wxyz"]) / (2 * STEP_S)
        same = (moving_s > (k + 1) * STEP_S) | (moving_s < (k - 1) * STEP_S)
        assert same.float().mean() > 0.8
        np.testing.assert_allclose(now["ee_twist"][same, :3], velocity[same], atol=2e-3)
        np.testing.assert_allclose(now["ee_twist"][same, 3:], spin[same], atol=2e-3)
    assert length(values[70]["ee_twist"][still, :3]).min() > 0.1  # at rest in the world alone


def test_paths_are_fixed_in_the_world_as_often_as_asked_and_only_while_the_base_moves() -> None:
    ee, _ = path_of(EePathCfg(in_world=0.3), 2000, moves=True)
    assert float(ee.in_world.float().mean()) == pytest.approx(0.3, abs=0.04)
    assert not path_of(EePathCfg(in_world=1.0), 100)[0].in_world.any()


def test_a_held_path_goes_on_along_its_twist_for_ever() -> None:
    ee, view = path_of(EePathCfg(in_world=1.0), 3, moves=True)
    generator = torch.Generator().manual_seed(2)
    value = 0.3 * torch.randn(2, 12, generator=generator)
    ids = torch.tensor([2, 0])
    ee.hold(value, ids)
    quat = from_euler(value[:, 3:6])
    np.testing.assert_allclose(ee.values["ee_pos"][ids], value[:, :3])
    for k in range(1, 150):
        view = ride(view, view.command["base_twist"])
        ee.advance(view)
        ee.renew(view)
        if k == 50:
            ee.reset(torch.arange(3), view)  # an episode's end does not let go of it
        time = k * STEP_S
        now = snapshot(ee)
        np.testing.assert_allclose(
            now["ee_pos"][ids], value[:, :3] + time * value[:, 6:9], atol=1e-4
        )
        turned = multiply(from_vector(time * value[:, 9:]), quat)
        np.testing.assert_allclose(
            (turned * now["ee_quat_wxyz"][ids]).sum(-1).abs(), 1.0, atol=1e-5
        )
        np.testing.assert_allclose(now["ee_twist"][ids], value[:, 6:], atol=1e-6)
        # Its end is always half a second ahead.
        np.testing.assert_allclose(now["ee_left"][ids], 0.5 * value[:, 6:], atol=1e-6)
    ee.release()
    ee.reset(torch.arange(3), view)
    assert torch.isfinite(ee.left_s).all()
    np.testing.assert_allclose(ee.values["ee_pos"], view.ee_pos_t)


def gait_of(cfg: GaitCfg, num: int, forward: float) -> tuple[Gait, BaseTwist, View]:
    generator = torch.Generator().manual_seed(0)
    base = BaseTwistCfg().build("base", num, generator)
    gait = cfg.build("gait", num, generator)
    view = make_view(num, [base, gait])
    base.hold(torch.tensor([[forward, 0.0, 0.0]]).repeat(num, 1), torch.arange(num))
    gait.reset(torch.arange(num), view)
    return gait, base, view


@pytest.mark.parametrize(("name", "walking"), [("walk", 1.0), ("trot", 0.0)])
def test_feet_stand_their_share_of_a_stride_and_swing_as_high_as_told(
    name: str, walking: float
) -> None:
    _, duty, rate = GAITS[name]
    gait, _, view = gait_of(GaitCfg(walking=walking, every_s=(60.0, 60.0)), 20, 0.5)
    stance, height, phase = [], [], [gait.values["foot_phase"].clone()]
    for _ in range(round(20.0 / STEP_S)):
        gait.advance(view)
        stance.append(gait.values["foot_stance"].clone())
        height.append(gait.values["foot_height"].clone())
        phase.append(gait.values["foot_phase"].clone())
    stances, heights = torch.stack(stance), torch.stack(height)
    # To one step of a stride: both strides are a whole number of steps.
    np.testing.assert_allclose(stances.mean(0), duty, atol=rate * STEP_S)
    went = (torch.stack(phase[1:]) - torch.stack(phase[:-1])) % 1.0
    np.testing.assert_allclose(went, rate * STEP_S, atol=1e-5)
    lift = heights - gait.cfg.foot_radius
    assert (lift[stances == 1.0] == 0.0).all()
    assert (lift >= 0.0).all()
    peak = lift.amax(0)
    np.testing.assert_allclose(peak, gait.swing_height[:, None].expand(20, 4), rtol=0.05)
    assert gait.swing_height.min() >= gait.cfg.swing_height[0]
    assert gait.swing_height.max() <= gait.cfg.swing_height[1]
    if name == "trot":  # diagonal pairs: FL with RR, FR with RL
        assert torch.equal(stances[..., 0], stances[..., 3])
        assert torch.equal(stances[..., 1], stances[..., 2])
        assert (stances.sum(-1) >= 2.0).all()
    else:  # at least three feet stand, and each foot swings alone
        assert (stances.sum(-1) >= 3.0).all()


def test_all_feet_stand_while_the_base_should_and_start_as_soon_as_it_should_not() -> None:
    gait, base, view = gait_of(GaitCfg(), 10, 0.0)
    phase = gait.values["foot_phase"].clone()
    for _ in range(20):
        gait.advance(view)
        gait.renew(view)
    assert torch.equal(gait.values["foot_phase"], phase)
    assert (gait.values["foot_stance"] == 1.0).all()
    assert (gait.values["foot_height"] == gait.cfg.foot_radius).all()
    assert not gait.values["gait_moves"].any()
    base.hold(torch.tensor([[0.0, 0.0, 0.4]]), torch.tensor([3]))
    gait.renew(view)  # told in the same step, so that an actor sees both or neither
    assert gait.values["gait_moves"].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_gaits_are_mixed_as_asked_and_held_as_told() -> None:
    gait, _, view = gait_of(GaitCfg(walking=0.25), 4000, 0.5)
    assert float((gait.kind == 0).float().mean()) == pytest.approx(0.25, abs=0.03)
    gait.hold(torch.tensor([[0.0, 0.2], [1.0, 0.3]]), torch.tensor([5, 6]))
    gait.reset(torch.arange(4000), view)
    assert gait.kind[[5, 6]].tolist() == [0, 1]
    np.testing.assert_allclose(gait.swing_height[[5, 6]], [0.2, 0.3])


def test_base_velocities_fill_their_ranges_with_a_share_of_standing() -> None:
    cfg = BaseTwistCfg(
        forward=(-0.5, 1.0), left=(-0.3, 0.3), turn=(0.2, 0.8), standing=0.2, dead_band=0.1
    )
    base = cfg.build("base", 5000, torch.Generator().manual_seed(0))
    view = make_view(5000, [base])
    base.reset(torch.arange(5000), view)
    value = base.values["base_twist"]
    stands = (value == 0.0).all(-1)
    assert float(stands.float().mean()) == pytest.approx(0.2, abs=0.02)
    for column, (low, high) in enumerate((cfg.forward, cfg.left, cfg.turn)):
        moving = value[~stands, column]
        assert (moving >= low).all()
        assert (moving <= high).all()
        assert moving.min() < low + 0.05
        assert moving.max() > high - 0.05
        assert not ((moving.abs() > 0.0) & (moving.abs() < 0.1)).any()
    # 0.2 of the forward range of 1.5 is in the dead band.
    idle = float((value[~stands, 0] == 0.0).float().mean())
    assert idle == pytest.approx(0.2 / 1.5, abs=0.02)


def test_commands_are_drawn_anew_when_their_time_is_over_and_not_before() -> None:
    base = BaseTwistCfg(every_s=(0.1, 0.3)).build("base", 100, torch.Generator().manual_seed(0))
    view = make_view(100, [base])
    base.reset(torch.arange(100), view)
    base.hold(torch.zeros(1, 3), torch.tensor([7]))
    lasted = torch.zeros(100)
    for _ in range(100):
        before, left = base.values["base_twist"].clone(), base.left_s.clone()
        base.advance(view)
        base.renew(view)
        lasted += STEP_S
        changed = (base.values["base_twist"] != before).any(-1)
        over = left - STEP_S <= 0.0
        assert not (changed & ~over).any()
        assert (lasted[over] >= 0.1 - 1e-5).all()
        assert (lasted[over] <= 0.3 + STEP_S).all()
        lasted[over] = 0.0
    assert not base.values["base_twist"][7].any()


def test_the_same_seed_draws_the_same_and_a_state_is_taken_up_again() -> None:
    one, view = path_of(EePathCfg(in_world=0.5), 40, moves=True)
    two, _ = path_of(EePathCfg(in_world=0.5), 40, moves=True)
    for name, value in one.values.items():
        assert torch.equal(value, two.values[name])
    third = EePathCfg(in_world=0.5).build("ee", 40, torch.Generator())
    third.load_state_dict(one.state_dict())
    other = replace(view, command={**view.command, **third.values})
    for _ in range(40):
        view, other = (ride(v, v.command["base_twist"]) for v in (view, other))
        one.advance(view)
        third.advance(other)
    for name, value in one.values.items():
        assert torch.equal(value, third.values[name])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BaseTwistCfg(forward=(1.0, -1.0)), r"forward is \(1.0, -1.0\); it must be"),
        (lambda: BaseTwistCfg(standing=1.5), "standing is 1.5; it is a share"),
        (lambda: GaitCfg(walking=-0.1), "walking is -0.1; it is a share"),
        (lambda: GaitCfg(swing_height=(0.2, 0.1)), "swing_height is"),
        (lambda: EePathCfg(speed=(0.0, 0.5)), "a path needs one above 0 m/s"),
        (lambda: EePathCfg(in_world=2.0), "in_world is 2.0; it is a share"),
        (lambda: EePathCfg(radius=(0.6, 0.3)), "radius is"),
        (lambda: EePathCfg(turn_speed=0.0), "turn_speed is 0.0; it must be above 0"),
        (lambda: EePathCfg(candidates=0), "candidates is 0"),
        (
            lambda: EePathCfg(keep_out=((0.0, 1.0), (0.0, -1.0), (0.0, 1.0))),
            r"keep_out y is \(0.0, -1.0\)",
        ),
    ],
)
def test_ranges_that_are_none_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()
