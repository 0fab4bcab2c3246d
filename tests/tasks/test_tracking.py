"""The tracking suite follows the paths it promises, and falling never pays."""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import pi, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from robo_rl import api
from robo_rl.tasks.env import SimEnv
from robo_rl.tasks.loco_manip import tracking as suite
from robo_rl.tasks.loco_manip.reach import go2_arx5_reach
from robo_rl.tasks.loco_manip.tracking import (
    CENTRE,
    PATHS,
    STANDING,
    WALKING,
    Recording,
    Scenario,
    measure,
    record,
    rows,
    tracking,
)
from robo_rl.tasks.loco_manip.tracking_plots import draw
from robo_rl.tasks.loco_manip.twist import go2_arx5_twist
from robo_rl.tasks.locomotion.velocity import go2_velocity
from robo_rl.tasks.terms.commands import EePathCfg
from robo_rl.tasks.terms.rotations import from_euler, from_vector, multiply, to_euler

STEP_S = 0.02
LEAD = 50
ALL = STANDING + WALKING
FEW = tuple(s for s in ALL if s.name in ("line_z_0.5", "semicircle_0.5", "walk_0.3_0.25"))


class FakePolicy:
    """A constant action in (N, 18), plus noise from its own generator."""

    obs_groups = ("actor",)

    def __init__(self, action: float = 0.0, noise: float = 0.0) -> None:
        self.memory: api.Memory = {}
        self.action, self.noise = action, noise
        self.generator = torch.Generator()
        self.forgotten: list[Tensor | None] = []

    def act(self, obs: api.Obs, *, explore: bool = False) -> Tensor:
        noise = torch.randn(len(obs["actor"]), 18, generator=self.generator)
        return self.action + self.noise * noise

    def reset(self, mask: Tensor | None = None) -> None:
        if mask is None:
            self.generator.manual_seed(0)
        self.forgotten.append(mask)

    def graph(self) -> nn.Module:
        raise NotImplementedError


def recording(error: Tensor, fell_in_step: Sequence[int | None]) -> Recording:
    """Every metric is the error (T, N); environments fall in these steps."""
    steps, num = error.shape
    falls = torch.tensor([steps if fell is None else fell for fell in fell_in_step])
    names = {column.metric for column in suite.COLUMNS}
    return Recording(
        metrics={name: error for name in names},
        fallen=torch.arange(steps)[:, None] >= falls,
        ee_pos_t=torch.zeros(steps, num, 3),
        ee_pos_command_t=torch.zeros(steps, num, 3),
        foot_contact=torch.ones(steps, num, 4, dtype=torch.bool),
        foot_stance=torch.ones(steps, num, 4, dtype=torch.bool),
    )


def without_falls(table: Sequence[suite.Row]) -> list[suite.Row]:
    return [{key: value for key, value in row.items() if key != "falls"} for row in table]


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.name)
def test_a_path_runs_at_its_speed_and_its_twist_leads_to_the_next_pose(scenario: Scenario) -> None:
    commands = scenario.commands(350, STEP_S)
    pose, twist = commands[:, :6], commands[:, 6:]
    torch.testing.assert_close(pose[1:, :3], (pose + STEP_S * twist)[:-1, :3], atol=1e-6, rtol=0)
    quat = from_euler(pose[:, 3:])
    turned = multiply(from_vector(STEP_S * twist[:, 3:]), quat)
    torch.testing.assert_close(quat[1:], turned[:-1], atol=1e-6, rtol=0)
    # A chord is shorter than its arc by a share of (v dt / r)^2 / 24, at most 1e-4 here; the one
    # step in which a path turns back is shorter still.
    off = (twist[:, :3].norm(dim=-1) - scenario.speed).abs() > 2e-4 * scenario.speed
    assert off.sum() <= 350 * STEP_S * scenario.speed / (pi * suite.SEMICIRCLE_M)


@pytest.mark.parametrize("axis", range(3), ids="xyz")
def test_a_line_is_30_cm_about_the_centre_there_and_back(axis: int) -> None:
    pos = PATHS[f"line_{'xyz'[axis]}"](torch.tensor([0.0, 0.1, 0.3, 0.4, 0.6, 0.75]))[:, :3]
    away = pos - torch.tensor(CENTRE)
    expected = torch.zeros(6, 3)
    expected[:, axis] = torch.tensor([-0.15, -0.05, 0.15, 0.05, -0.15, 0.0])
    torch.testing.assert_close(away, expected, atol=1e-6, rtol=0)


def test_a_circle_has_a_radius_of_20_cm_and_closes_after_its_length() -> None:
    pose = PATHS["circle_yz"](torch.linspace(0, 2 * pi * 0.2, 100))
    away = pose[:, :3] - torch.tensor(CENTRE)
    torch.testing.assert_close(away[:, 0], torch.zeros(100), atol=1e-6, rtol=0)
    torch.testing.assert_close(away[:, 1:].norm(dim=-1), torch.full((100,), 0.2))
    torch.testing.assert_close(pose[0], pose[-1], atol=1e-6, rtol=0)
    assert pose[:, 3:].abs().max() == 0.0


def test_a_semicircle_is_45_cm_around_the_robot_and_points_away_from_it() -> None:
    pose = PATHS["semicircle"](torch.linspace(0, 2 * pi * 0.45, 101))
    x, y, z, _, _, yaw = pose.unbind(-1)
    torch.testing.assert_close(torch.hypot(x, y), torch.full((101,), 0.45))
    torch.testing.assert_close(torch.atan2(y, x), yaw, atol=1e-6, rtol=0)
    torch.testing.assert_close(z, torch.full((101,), 0.62))
    quarters = torch.tensor([0.0, pi / 2, 0.0, -pi / 2, 0.0])
    torch.testing.assert_close(yaw[::25], quarters, atol=1e-5, rtol=0)


def test_no_path_enters_the_robot() -> None:
    low, high = torch.tensor(EePathCfg().keep_out).T
    for scenario in ALL:
        pos = scenario.commands(350, STEP_S)[:, :3]
        assert not ((pos > low) & (pos < high)).all(-1).any(), scenario.name


def test_the_base_sways_13_cm_to_either_side_once_the_lead_in_is_over() -> None:
    (hold,) = (s for s in ALL if s.in_world)
    velocity = hold.forward_vel(torch.arange(400, dtype=torch.float64) * STEP_S)
    assert velocity[:LEAD].abs().max() == 0.0
    place = STEP_S * velocity.cumsum(0)
    assert place.max() == pytest.approx(0.2 * 4 / (2 * pi), abs=0.003)
    assert place.min() == pytest.approx(-0.2 * 4 / (2 * pi), abs=0.003)


def test_the_suite_is_what_it_says() -> None:
    assert len(ALL) == len({s.name for s in ALL}) == 22
    members = {g: sum(has(s) for s in ALL) for g, has in suite.GROUPS.items()}
    assert members == {"slow standing lines": 3, "standing": 15, "walking": 7, "all": 22}


def test_to_euler_undoes_from_euler() -> None:
    angles = 1.5 * (2 * torch.rand(100, 3, generator=torch.Generator().manual_seed(0)) - 1)
    torch.testing.assert_close(to_euler(from_euler(angles)), angles, atol=1e-5, rtol=1e-5)


def test_the_command_leads_from_the_end_effector_into_the_path_without_a_jump() -> None:
    env = go2_arx5_twist().build(num_envs=len(FEW), seed=0)
    env.reset(seed=3)
    start = env.view.ee_pos_t.clone()
    got = record(None, env, FEW, seed=3, steps=LEAD + 20).ee_pos_command_t
    paths = torch.stack([s.commands(21, STEP_S)[:, :3] for s in FEW], 1)
    share = torch.arange(1, LEAD + 1)[:, None, None] / LEAD
    torch.testing.assert_close(got[:LEAD], start + share * (paths[0] - start), atol=1e-5, rtol=0)
    torch.testing.assert_close(got[LEAD:], paths[1:], atol=1e-5, rtol=0)


def test_a_held_end_effector_should_stay_in_the_world_while_the_base_moves() -> None:
    env = go2_arx5_twist().build(num_envs=2, seed=0)
    held: list[Tensor] = []
    base: list[Tensor] = []

    class Pusher(FakePolicy):
        def act(self, obs: api.Obs, *, explore: bool = False) -> Tensor:
            held.append(env.view.to_world(env.view.command["ee_pos"]))
            base.append(env.view.state.base_pos_w.clone())
            env.push(torch.tensor([[0.04, 0.02, 0.0, 0.0, 0.0, 0.05]]).repeat(2, 1))
            return super().act(obs)

    hold = [s for s in ALL if s.in_world]
    record(Pusher(), env, hold, seed=0, steps=LEAD + 25)
    assert ((base[-1] - base[LEAD + 1]).norm(dim=-1) > 0.01).all()
    torch.testing.assert_close(held[-1], held[LEAD + 1], atol=1e-5, rtol=0)
    assert (held[LEAD - 10] - held[LEAD + 1]).norm() > 0.01


def test_a_perfect_tracker_scores_zero() -> None:
    perfect = recording(torch.zeros(100, len(ALL)), [None] * len(ALL))
    other = recording(torch.ones(100, len(ALL)), [None] * len(ALL))
    for row in rows(perfect, other, ALL, lead=LEAD):
        assert row.pop("baseline_position_rmse_m") == 1.0
        assert {value for key, value in row.items() if key != "scenario"} == {0.0}


def test_a_fall_is_charged_the_baselines_error_for_the_remaining_time() -> None:
    # Two environments, five steps of which one is lead-in; the second falls in step 3.
    own = recording(
        torch.tensor([[9.0, 9, 9], [1, 1, 1], [1, 2, 2], [1, 0, 5], [1, 0, 5]])[:, :2], [None, 3]
    )
    other = recording(torch.tensor([[7.0, 7], [3, 3], [3, 3], [3, 4], [3, 5]]), [None, None])
    line, _, _, everything = rows(own, other, STANDING[:1], lead=1)
    assert line["position_rmse_m"] == pytest.approx(sqrt((4 * 1 + 1 + 4 + 16 + 25) / 8))
    assert line["power_w"] == pytest.approx((4 * 1 + 1 + 2 + 4 + 5) / 8)
    assert line["falls"] == 0.5
    assert line["baseline_position_rmse_m"] == pytest.approx(sqrt((6 * 9 + 16 + 25) / 8))
    assert {**everything, "scenario": line["scenario"]} == line


def test_a_fall_in_the_lead_in_counts() -> None:
    own = recording(torch.zeros(5, 1), [0])
    line = rows(own, recording(torch.ones(5, 1), [None]), STANDING[:1], lead=2)[0]
    assert (line["falls"], line["position_rmse_m"]) == (1.0, 1.0)


def test_a_zero_policy_equals_the_baseline() -> None:
    own, baseline = measure(FakePolicy(), go2_arx5_twist(), FEW, num_envs=2, seed=1, duration_s=1.3)
    assert rows(own, baseline, FEW, lead=LEAD) == rows(baseline, baseline, FEW, lead=LEAD)


def test_the_same_seed_gives_the_same_numbers() -> None:
    def table(seed: int) -> list[suite.Row]:
        cfg, policy = go2_arx5_twist(), FakePolicy(noise=0.5)
        own, baseline = measure(policy, cfg, FEW[:1], num_envs=1, seed=seed, duration_s=1.1)
        return rows(own, baseline, FEW[:1], lead=LEAD)

    assert table(0) == table(0) != table(1)


def test_who_falls_at_once_scores_as_the_baseline_and_is_forgotten_where_it_fell() -> None:
    policy = FakePolicy(action=9.0)
    own, baseline = measure(policy, go2_arx5_twist(), FEW, num_envs=1, seed=0, duration_s=1.3)
    assert own.fallen[LEAD].all()
    table = rows(own, baseline, FEW, lead=LEAD)
    assert {row["falls"] for row in table} == {1.0}
    assert without_falls(table) == without_falls(rows(baseline, baseline, FEW, lead=LEAD))
    first, *ends = policy.forgotten
    assert first is None
    fell = torch.stack([end for end in ends if end is not None])
    assert torch.equal(fell.cumsum(0) > 0, own.fallen)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces the simulation; holds what it was asked for."""
    seen: dict[str, Any] = {}

    def fake(policy: Any, cfg: Any, scenarios: Sequence[Scenario], **how: Any) -> Any:
        seen.update(how, scenarios=scenarios)
        num = how["num_envs"] * len(scenarios)
        both = [recording(torch.full((60, num), error), [None] * num) for error in (0.1, 0.2)]
        return tuple(both)

    monkeypatch.setattr(suite, "measure", fake)
    return seen


def test_quick_is_a_third(asked: dict[str, Any]) -> None:
    tracking(FakePolicy(), go2_arx5_twist())
    assert asked["num_envs"] == 32
    tracking(FakePolicy(), go2_arx5_twist(), quick=True)
    assert asked["num_envs"] == 10
    assert asked["scenarios"] == ALL


def test_a_task_without_a_gait_is_measured_standing(asked: dict[str, Any]) -> None:
    result = tracking(FakePolicy(), go2_arx5_reach(), num_envs=1)
    assert asked["scenarios"] == STANDING
    assert "Left out: hold_world, walk_0.3_0.1" in result.table()
    assert "walking" not in {row["scenario"] for row in result.rows}


def test_the_table_and_the_json_say_the_same(asked: dict[str, Any]) -> None:
    result = tracking(FakePolicy(), go2_arx5_twist(), num_envs=2, seed=5)
    read = json.loads(json.dumps(result.to_dict()))
    names = [row["scenario"] for row in read["rows"]]
    assert names == [s.name for s in ALL] + list(suite.GROUPS)
    assert [row["scenario"] for row in read["baseline"]] == names
    assert read["settings"]["seed"] == 5
    lines = {line[:20].strip(): line[20:].split() for line in result.table().splitlines()}
    for row in read["rows"]:
        assert float(lines[row["scenario"]][0]) == pytest.approx(100 * row["position_rmse_m"])
        assert float(lines[row["scenario"]][-1]) == pytest.approx(20.0)


def test_a_task_without_an_end_effector_is_refused() -> None:
    with pytest.raises(ValueError, match=r"go2-velocity has no command 'ee'.*go2_arx5-twist"):
        tracking(FakePolicy(), go2_velocity())


def test_a_task_without_the_metrics_is_refused() -> None:
    cfg = go2_arx5_twist()
    cfg = replace(cfg, metrics={k: v for k, v in cfg.metrics.items() if k != "ee_rotation"})
    with pytest.raises(ValueError, match="no metric ee_rotation, only ee_position"):
        tracking(FakePolicy(), cfg)


def test_another_rooms_task_is_refused() -> None:
    class Foreign:
        name, score = "foreign", "return"
        train: Mapping[str, Any] = {}

        def build(self, *, num_envs: int, device: str, seed: int) -> SimEnv:
            raise NotImplementedError

    with pytest.raises(ValueError, match="foreign is no TaskCfg but a Foreign"):
        tracking(FakePolicy(), Foreign())


def test_no_environments_are_refused() -> None:
    with pytest.raises(ValueError, match="num_envs is 0"):
        tracking(FakePolicy(), go2_arx5_twist(), num_envs=0)


@pytest.mark.parametrize(
    ("scenarios", "names"),
    [(ALL, ["paths", "errors", "contacts"]), (STANDING, ["paths", "errors"])],
)
def test_the_plots_are_drawn(
    tmp_path: Path, scenarios: Sequence[Scenario], names: list[str]
) -> None:
    num = 2 * len(scenarios)
    own = recording(torch.rand(100, num), [None, 70] * len(scenarios))
    other = recording(torch.rand(100, num), [None] * num)
    feet = ("FL", "FR", "RL", "RR")
    files = draw(own, other, scenarios, feet=feet, step_s=STEP_S, out=tmp_path / "plots")
    assert [file.stem for file in files] == names
    for file in files:
        assert ElementTree.parse(file).getroot().tag.endswith("svg")
