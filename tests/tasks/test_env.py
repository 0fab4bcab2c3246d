"""The order of a step, episodes' ends, and what is the same again: of a task made here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from robo_rl import api, registry
from robo_rl.tasks.backends.mujoco_batch import MujocoSim
from robo_rl.tasks.env import NOMINAL, PERIOD, Randomise, SimEnv, TaskCfg
from robo_rl.tasks.robots.robot import Robot
from robo_rl.tasks.terms import metrics as m
from robo_rl.tasks.terms import observations as o
from robo_rl.tasks.terms import rewards as r
from robo_rl.tasks.terms.commands import BaseTwistCfg, CommandCfg, CommandState, EePathCfg
from robo_rl.tasks.terms.term import Observation, Reward, Signs, Term
from robo_rl.tasks.terms.view import View

STEP_S = 0.02


class Clock(CommandState):
    """Counts steps; its time is over after three, and after each step from then on."""

    def __init__(self, name: str, num_envs: int, generator: Generator) -> None:
        spec = api.Command(name=name, fields=("ticks",), units=("1",), low=(0.0,), high=(9.0,))
        super().__init__(spec, num_envs, generator)
        self.values["ticks"] = torch.zeros(num_envs, 1)

    def draw(self, ids: Tensor, view: View, *, fresh: bool) -> None:
        self.values["ticks"][ids] = 0.0
        self.left_s[ids] = 3 * STEP_S - 1e-4

    def advance(self, view: View) -> None:
        super().advance(view)
        self.values["ticks"] += 1.0

    def hold(self, value: Tensor, ids: Tensor) -> None:
        self.values["ticks"][ids] = value
        self.left_s[ids] = torch.inf


@dataclass(frozen=True, kw_only=True)
class ClockCfg(CommandCfg):
    def build(self, name: str, num_envs: int, generator: Generator) -> Clock:
        return Clock(name, num_envs, generator)


@dataclass(frozen=True, kw_only=True)
class Ticks(Reward):
    unit: ClassVar[str] = "1"

    def __call__(self, view: View) -> Tensor:
        return view.command["ticks"][:, 0]


@dataclass(frozen=True, kw_only=True)
class TicksSeen(Observation):
    unit: ClassVar[str] = "1"
    signs: ClassVar[Signs] = (1.0,)

    def __call__(self, view: View) -> Tensor:
        return view.command["ticks"]


@dataclass(frozen=True, kw_only=True)
class HighAction(Term):
    """Ends an episode where the first action is above 5."""

    def __call__(self, view: View) -> Tensor:
        return view.action[:, 0] > 5.0


@dataclass(frozen=True, kw_only=True)
class Misshapen(Reward):
    columns: int = 1

    def __call__(self, view: View) -> Tensor:
        return torch.zeros(len(view.action), self.columns)


OBSERVED: Mapping[str, Observation] = {
    "joint_pos": o.JointPos(noise=0.01),
    "gyro": o.BaseAngVel(noise=0.2, scale=0.5),
    "last_action": o.LastAction(clip=2.0),
    "ee": o.EePosCommand(),
}


@pytest.fixture
def cfg(walker: Robot) -> TaskCfg:
    """Everything randomised; ends where a policy asks for it."""
    return TaskCfg(
        name="test",
        score="-ee_position",
        robot=walker,
        commands={
            "clock": ClockCfg(),
            "base": BaseTwistCfg(every_s=(0.1, 0.3)),
            "ee": EePathCfg(in_world=0.5, rest_s=(0.1, 0.2), height=(0.5, 0.8)),
        },
        observations={
            "actor": {**OBSERVED, "ticks": TicksSeen()},
            "critic": {**o.exact(OBSERVED), "foot_force": o.FootForce()},
        },
        rewards={
            "one": {"ticks": Ticks(weight=2.0), "off": r.Alive(weight=0.0)},
            "two": {
                "alive": r.Alive(weight=-3.0),
                "torque": r.Torque(weight=-0.1),
                "action_rate": r.ActionRate(weight=-1.0),
            },
        },
        terminations={"high": HighAction()},
        metrics={"ee_position": m.EePosError(), "power": m.Power()},
        history={"actor": 3},
        randomise=Randomise(push_every_s=(0.1, 0.2), ee_mass=(0.0, 0.1)),
        episode_length_s=0.4,
        num_threads=2,
    )


def sim_of(env: SimEnv) -> MujocoSim:
    assert isinstance(env.sim, MujocoSim)
    return env.sim


def quiet(cfg: TaskCfg) -> TaskCfg:
    return replace(cfg, randomise=NOMINAL)


def actions(num_envs: int, seed: int = 0) -> Iterator[Tensor]:
    """Small ones, for ever."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield 0.3 * torch.randn(num_envs, 5, generator=generator)


def copied(step: api.Step) -> dict[str, Tensor]:
    """All that a step says, by name."""
    said = {name: getattr(step, name) for name in ("reward", "cost", "terminated", "truncated")}
    for part in ("obs", "final_obs", "metrics"):
        said |= {f"{part}/{name}": value for name, value in getattr(step, part).items()}
    return {name: value.clone() for name, value in said.items()}


def test_rewards_see_the_command_of_the_moment_and_observations_the_next(cfg: TaskCfg) -> None:
    env = quiet(cfg).build(num_envs=2)
    seen, earned = [], []
    for action, _ in zip(actions(2), range(2 * PERIOD + 1), strict=False):
        step = env.step(action)
        seen.append(float(step.obs["actor"][0, -1, -1]))
        earned.append(float(step.metrics["reward/one/ticks"][0]) / (2.0 * STEP_S))
    # Commands whose time is over are drawn anew every fifth step: its tick is rewarded before, and
    # observed after.
    np.testing.assert_allclose(earned, [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1], rtol=1e-6)
    np.testing.assert_allclose(seen, [1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1])


def test_groups_are_sums_of_weighted_terms_per_second_and_zero_weights_are_left_out(
    cfg: TaskCfg,
) -> None:
    env = cfg.build(num_envs=4)
    assert env.spec.heads == ("one", "two")
    given = []
    for action, _ in zip(actions(4), range(5), strict=False):
        step = env.step(action)
        given.append(action)
    earned = {k: v for k, v in step.metrics.items() if k.startswith("reward/")}
    assert set(earned) == {
        "reward/one/ticks",
        *(f"reward/two/{name}" for name in ("alive", "torque", "action_rate")),
    }
    change = (given[-1] - given[-2]).square().sum(-1)
    np.testing.assert_allclose(earned["reward/two/action_rate"], -STEP_S * change, rtol=1e-5)
    np.testing.assert_allclose(earned["reward/two/alive"], -3.0 * STEP_S, rtol=1e-6)
    torque = env.sim.state.joint_torque.square().sum(-1)
    np.testing.assert_allclose(earned["reward/two/torque"], -0.1 * STEP_S * torque, rtol=1e-5)
    np.testing.assert_allclose(step.reward[:, 0], earned["reward/one/ticks"])
    two = sum(value for name, value in earned.items() if "/two/" in name)
    np.testing.assert_allclose(step.reward[:, 1], two, rtol=1e-6)
    assert step.cost.shape == (4, 0)


def test_feet_are_clocked_from_take_off_to_landing(cfg: TaskCfg) -> None:
    hops = replace(
        quiet(cfg),
        rewards={"one": {"air_time": r.AirTime(weight=1.0 / STEP_S, threshold_s=0.0)}},
        episode_length_s=10.0,
    )
    env = hops.build(num_envs=3)
    env.set_command("base", torch.tensor([[0.5, 0.0, 0.0]]).repeat(3, 1))
    contact, air = torch.ones(3, 2, dtype=torch.bool), torch.zeros(3, 2)
    landings = 0
    for k, action in zip(range(60), actions(3), strict=False):
        if k % 20 == 5:
            up = torch.tensor([[0.0, 0.0, 1.5, 0.0, 0.0, 0.0]])
            env.push(up, torch.tensor([k // 20]))
        step = env.step(action)
        now = env.view.state.foot_force_w.norm(dim=-1) > 5.0
        air += STEP_S
        landed = now & ~contact
        np.testing.assert_allclose(step.reward[:, 0], (air * landed).sum(-1), atol=1e-5)
        air[now] = 0.0
        np.testing.assert_allclose(env.view.foot_air_time, air, atol=1e-5)
        assert torch.equal(env.view.foot_contact, now)
        contact = now
        landings += int(landed.sum())
    assert landings >= 6


def test_a_time_limit_truncates_and_an_end_of_the_task_terminates(cfg: TaskCfg) -> None:
    env = cfg.build(num_envs=3)
    assert env.spec.max_episode_steps == 20
    for k, action in zip(range(1, 42), actions(3), strict=False):
        if k == 10:
            action[1, 0] = 9.0
        if k == 20:
            action[2, 0] = 9.0  # in its last step: the task's end is what counts
        step = env.step(action)
        ends = [k == 10, k == 20]
        assert step.terminated.tolist() == [False, ends[0], ends[1]]
        # The second's clock starts again at its end.
        assert step.truncated.tolist() == [k in (20, 40), k == 30, k == 40]


def test_final_observations_are_those_of_a_copy_that_does_not_reset(cfg: TaskCfg) -> None:
    ends, goes_on = cfg.build(num_envs=5), replace(cfg, terminations={}).build(num_envs=5)
    for k, action in zip(range(8), actions(5), strict=False):
        if k == 7:
            action[[1, 4], 0] = 9.0
        step, other = ends.step(action), goes_on.step(action)
        for group in step.obs:
            assert torch.equal(step.final_obs[group], other.obs[group])
    assert step.terminated.tolist() == [False, True, False, False, True]
    for group, obs in step.obs.items():
        same = (obs == step.final_obs[group]).flatten(1).all(-1)
        assert same.tolist() == [True, False, True, True, False]


def test_what_ended_starts_anew(cfg: TaskCfg) -> None:
    env = quiet(cfg).build(num_envs=3)
    for k, action in zip(range(8), actions(3), strict=False):
        action[1, 0] = 9.0 if k == 7 else action[1, 0]
        step = env.step(action)
    view = env.view
    assert not view.action[1].any()
    assert not view.previous_action[1].any()
    assert not view.foot_air_time[1].any()
    default = torch.tensor([joint.default for joint in env.spec.joints])
    np.testing.assert_allclose(view.state.joint_pos[1], default, atol=1e-6)
    assert not view.state.joint_vel[1].any()
    np.testing.assert_allclose(view.state.base_pos_w[1], [0.0, 0.0, 0.38], atol=1e-6)
    np.testing.assert_allclose(view.command["ee_pos"][1], view.ee_pos_t[1], atol=1e-6)
    assert view.action[[0, 2]].any()
    assert torch.equal(step.obs["critic"], env.observe()["critic"])


def test_a_history_is_filled_at_a_start_and_oldest_first(cfg: TaskCfg) -> None:
    env = quiet(cfg).build(num_envs=2)
    first = env.observe()["actor"]
    assert first.shape == (2, 3, 5 + 3 + 5 + 3 + 1)
    assert env.observe()["critic"].shape == (2, 5 + 3 + 5 + 3 + 2)
    last_action = slice(8, 13)
    assert torch.equal(first[:, 0], first[:, 2])
    given = []
    for k, action in zip(range(6), actions(2), strict=False):
        action[0, 0] = 9.0 if k == 3 else action[0, 0]
        obs = env.step(action).obs["actor"]
        given.append(action.clamp(-2.0, 2.0))  # the term's own clip
        if k == 2:
            np.testing.assert_allclose(obs[:, :, last_action], torch.stack(given, 1))
        if k == 3:
            assert torch.equal(obs[0, 0], obs[0, 2])
            assert not obs[0, :, last_action].any()
    np.testing.assert_allclose(obs[0, :, last_action], [[0] * 5, *torch.stack(given)[4:, 0]])
    np.testing.assert_allclose(obs[1, :, last_action], torch.stack(given)[3:, 1])


def test_noise_is_bounded_scaled_and_only_where_asked(cfg: TaskCfg) -> None:
    noisy = replace(cfg, randomise=replace(NOMINAL, noise=2.0)).build(num_envs=500)
    exact = quiet(cfg).build(num_envs=500)
    error = (noisy.observe()["actor"] - exact.observe()["actor"])[:, 0]
    assert torch.equal(noisy.observe()["critic"], exact.observe()["critic"])
    for columns, width in ((slice(0, 5), 2 * 0.01), (slice(5, 8), 2 * 0.5 * 0.2)):
        assert error[:, columns].abs().max() <= width * 1.001
        assert error[:, columns].max() > 0.9 * width
        assert error[:, columns].min() < -0.9 * width
    assert not error[:, 8:].any()


def run(env: SimEnv, steps: int, *, seed: int = 0) -> list[dict[str, Tensor]]:
    """What so many steps say, with an early end now and then."""
    said = []
    for k, action in zip(range(steps), actions(env.num_envs, seed), strict=False):
        action[k % env.num_envs, 0] = 9.0 if k % 7 == 6 else 0.0
        said.append(copied(env.step(action)))
    return said


def same(one: list[dict[str, Tensor]], two: list[dict[str, Tensor]]) -> bool:
    """Whether two runs said the same, bit for bit."""
    return all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(one, two, strict=True)
    )


def test_the_same_seed_is_the_same_run(cfg: TaskCfg) -> None:
    first = run(cfg.build(num_envs=4, seed=3), 30)
    assert same(first, run(cfg.build(num_envs=4, seed=3), 30))
    assert not same(first, run(cfg.build(num_envs=4, seed=4), 30))
    other = cfg.build(num_envs=4, seed=9)
    run(other, 10, seed=1)
    other.reset(seed=3)
    assert same(first, run(other, 30))


def test_a_run_taken_up_again_in_a_new_environment_is_bit_equal(cfg: TaskCfg) -> None:
    env = cfg.build(num_envs=4, seed=0)
    env.set_command("base", torch.tensor([[0.3, 0.0, 0.1]]), torch.tensor([2]))
    run(env, 13)
    state, seen = env.state_dict(), {k: v.clone() for k, v in env.observe().items()}
    expected = run(env, 50, seed=1)
    assert any(step["truncated"].any() for step in expected)
    assert any(step["terminated"].any() for step in expected)

    fresh = cfg.build(num_envs=4, seed=77)
    fresh.load_state_dict(state)
    for group, obs in fresh.observe().items():
        assert torch.equal(obs, seen[group])
    assert same(expected, run(fresh, 50, seed=1))
    env.load_state_dict(state)  # and in the one that went on
    assert same(expected, run(env, 50, seed=1))


def test_a_state_is_made_of_tensors_and_numbers_and_is_not_changed_by_going_on(
    cfg: TaskCfg,
) -> None:
    env = cfg.build(num_envs=2)

    def leaves(tree: Mapping[str, Any]) -> Iterator[Tensor]:
        for value in tree.values():
            if isinstance(value, Mapping):
                yield from leaves(value)
            elif isinstance(value, Tensor):
                yield value
            else:
                assert isinstance(value, int | float | str)

    state = env.state_dict()
    before = [leaf.clone() for leaf in leaves(state)]
    run(env, 10)
    assert all(torch.equal(a, b) for a, b in zip(before, leaves(state), strict=True))
    with pytest.raises(ValueError, match="state of 2 environments; here are 3"):
        cfg.build(num_envs=3).load_state_dict(state)


def test_a_held_command_is_seen_at_once_and_until_the_next_whole_reset(cfg: TaskCfg) -> None:
    env = quiet(cfg).build(num_envs=3)
    run(env, 2)
    before = {name: value.clone() for name, value in env.observe().items()}
    held = torch.tensor([[7.0], [8.0]])
    env.set_command("clock", held, torch.tensor([2, 0]))
    obs = env.observe()["actor"]
    assert obs[:, -1, -1].tolist() == [8.0, before["actor"][1, -1, -1], 7.0]
    assert torch.equal(obs[:, :-1], before["actor"][:, :-1])  # what was seen before stays
    assert torch.equal(obs[..., :-1], before["actor"][..., :-1])
    env.set_command("clock", torch.tensor([[3.0], [4.0], [5.0]]), torch.tensor([2, 1, 0]))
    assert env.observe()["actor"][:, -1, -1].tolist() == [5.0, 4.0, 3.0]
    said = run(env, 30)  # an episode's end does not let go
    assert said[-1]["obs/actor"][:, -1, -1].tolist() == [35.0, 34.0, 33.0]
    assert env.reset()["actor"][:, -1, -1].tolist() == [0.0, 0.0, 0.0]


def test_a_command_that_is_none_is_refused(cfg: TaskCfg) -> None:
    env = cfg.build(num_envs=3)
    with pytest.raises(ValueError, match=r"test has no command bse; it has .*mean 'base'"):
        env.set_command("bse", torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"base is \(3, 2\); it must be \(3, 3\) .*forward, left"):
        env.set_command("base", torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"must be \(1, 3\) and finite"):
        env.set_command("base", torch.full((1, 3), torch.nan), torch.tensor([0]))
    with pytest.raises(ValueError, match=r"int64 from 0 to 2, or a mask of 3"):
        env.set_command("base", torch.zeros(1, 3), torch.tensor([3]))
    with pytest.raises(ValueError, match=r"velocity .* must be \(3, 6\) and finite"):
        env.push(torch.full((3, 6), torch.nan))


def test_rows_are_named_by_number_or_by_mask(cfg: TaskCfg) -> None:
    one, other = (quiet(cfg).build(num_envs=3) for _ in range(2))
    value = torch.ones(2, 3)
    one.set_command("base", value, torch.tensor([0, 2]))
    other.set_command("base", value, torch.tensor([True, False, True]))
    assert same(run(one, 5), run(other, 5))


def test_an_action_with_a_gradient_leaves_no_trace_of_it(cfg: TaskCfg) -> None:
    env, twin = (quiet(cfg).build(num_envs=2) for _ in range(2))
    step = env.step(torch.ones(2, 5, requires_grad=True))
    twin.step(torch.ones(2, 5))
    assert not step.obs["actor"].requires_grad
    assert not step.reward.requires_grad
    assert same(run(env, 5), run(twin, 5))


def test_a_state_of_another_task_is_refused_before_anything_moves(cfg: TaskCfg) -> None:
    env, twin = (cfg.build(num_envs=2) for _ in range(2))
    for other in (replace(cfg, randomise=NOMINAL), replace(cfg, history={"actor": 9})):
        with pytest.raises(ValueError, match="no state of test as it is configured here"):
            env.load_state_dict(other.build(num_envs=2).state_dict())
    assert same(run(env, 5), run(twin, 5))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"noise": -1.0}, "noise is -1.0"), ({"noise": nan}, "noise"), ({"clip": -1.0}, "clip is")],
)
def test_an_observation_that_is_none_is_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        o.BaseAngVel(**wrong)


def test_observations_are_the_environments_own_and_overwritten(cfg: TaskCfg) -> None:
    env = cfg.build(num_envs=2)
    kept = env.observe()
    before = kept["critic"].clone()
    env.step(torch.ones(2, 5))
    assert not torch.equal(kept["critic"], before)
    assert torch.equal(kept["critic"], env.observe()["critic"])


def test_targets_keep_in_the_joints_ranges(cfg: TaskCfg) -> None:
    env = quiet(replace(cfg, terminations={})).build(num_envs=3)
    env.step(torch.tensor([[100.0], [-100.0], [0.0]]).repeat(1, 5))
    order = [sim_of(env).model.actuator(j.name).id for j in env.spec.joints]
    target = sim_of(env).batch.ctrl[:, order]
    high, low = ([j.position[i] for j in env.spec.joints] for i in (1, 0))
    np.testing.assert_allclose(target[0], high, atol=1e-6)
    np.testing.assert_allclose(target[1], low, atol=1e-6)
    np.testing.assert_allclose(target[2], env.spec.action.offset, atol=1e-6)


def test_targets_can_be_relative_to_where_the_joints_are(cfg: TaskCfg) -> None:
    env = quiet(replace(cfg, action_reference="current")).build(num_envs=2)
    assert env.spec.action.reference == "current"
    env.step(torch.ones(2, 5))
    before = env.sim.state.joint_pos.clone()
    env.step(torch.full((2, 5), 0.5))
    order = [sim_of(env).model.actuator(j.name).id for j in env.spec.joints]
    np.testing.assert_allclose(sim_of(env).batch.ctrl[:, order], before + 0.3 * 0.5, atol=1e-6)


def test_an_action_that_is_none_is_refused_before_anything_moves(cfg: TaskCfg) -> None:
    env, twin = (cfg.build(num_envs=3) for _ in range(2))
    with pytest.raises(ValueError, match=r"action is \(3, 4\); it must be \(3, 5\)"):
        env.step(torch.zeros(3, 4))
    bad = torch.zeros(3, 5)
    bad[1, 2], bad[2, 0] = torch.nan, torch.inf
    with pytest.raises(ValueError, match="not finite in 2 of 3 environments: 1, 2; nothing was"):
        env.step(bad)
    assert same(run(env, 5), run(twin, 5))


def test_a_simulation_that_blows_up_is_ended_counted_and_started_anew(cfg: TaskCfg) -> None:
    env, twin = (quiet(cfg).build(num_envs=4) for _ in range(2))
    run(env, 3)
    run(twin, 3)
    sim_of(env).batch.qvel[1] = 1e12  # what MuJoCo notices
    sim_of(env).batch.qvel[3, 0] = 3e3  # and what it does not
    (said,), (other,) = run(env, 1), run(twin, 1)
    assert said["terminated"].tolist() == [False, True, False, True]
    assert not said["truncated"].any()
    assert said["metrics/broken"].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert not said["reward"][[1, 3]].any()
    assert not said["metrics/power"][[1, 3]].any()
    assert all(value.isfinite().all() for value in said.values())
    for group in ("actor", "critic"):  # what is left of it is no observation
        assert torch.equal(said[f"final_obs/{group}"][[1, 3]], said[f"obs/{group}"][[1, 3]])
    for name in ("obs/critic", "final_obs/critic", "reward", "metrics/power"):
        assert torch.equal(said[name][[0, 2]], other[name][[0, 2]])
    after = run(env, 5)
    assert not any(step["metrics/broken"].any() for step in after)


def test_pushes_come_in_their_time_and_size(cfg: TaskCfg) -> None:
    pushing = replace(NOMINAL, push=(0.5, 0.5), push_turn=(0.2, 0.2), push_every_s=(0.29, 0.29))
    env, twin = (replace(cfg, randomise=how).build(num_envs=2) for how in (pushing, NOMINAL))
    zero = torch.zeros(2, 5)
    for k in range(18):
        env.step(zero)
        if k == 15 - PERIOD:  # within a period of its time, as a step begins
            twin.push(torch.tensor([[0.5, 0.5, 0.0, 0.2, 0.2, 0.2]]).repeat(2, 1))
        twin.step(zero)
        np.testing.assert_allclose(sim_of(env).batch.qvel, sim_of(twin).batch.qvel, atol=1e-6)
    with pytest.raises(ValueError, match=r"velocity is \(2, 3\); it must be \(2, 6\)"):
        env.push(torch.zeros(2, 3))


def test_every_environment_has_a_model_of_its_own_within_the_ranges(cfg: TaskCfg) -> None:
    env = cfg.build(num_envs=200, seed=0)
    sim, given = sim_of(env), cfg.randomise
    hull, feet = sim.model.body("hull").id, [sim.model.geom(f).id for f in cfg.robot.feet]
    for value, (low, high) in (
        (sim.batch.expanded("geom_friction")[:, feet, 0], given.friction),
        (sim.batch.expanded("body_mass")[:, hull] - 4.0, given.base_mass),
        (sim.batch.expanded("body_ipos")[:, hull] - [0.01, 0.02, 0.03], given.base_com),
        (sim.batch.expanded("actuator_gainprm")[:, :, 0] / 40.0, given.kp),
        (sim.batch.expanded("actuator_biasprm")[:, :, 2] / -1.5, given.kd),
        (sim.batch.expanded("actuator_delay"), given.delay),
    ):
        assert value.min() >= low - 1e-6
        assert value.max() <= high + 1e-6
        assert value.max() - value.min() > 0.8 * (high - low)
    steps = sim.batch.expanded("actuator_delay") / cfg.physics_s
    np.testing.assert_allclose(steps, steps.round(), atol=1e-4)
    masses = sim.batch.expanded("body_mass").copy()
    env.reset()
    np.testing.assert_array_equal(sim.batch.expanded("body_mass"), masses)  # robots stay
    env.reset(seed=1)
    assert (sim.batch.expanded("body_mass") != masses).any()  # new ones

    nominal = sim_of(quiet(cfg).build(num_envs=2)).batch
    assert all(nominal.expanded(f) is None for f in ("body_mass", "actuator_gainprm"))


def test_starts_are_spread_as_asked(cfg: TaskCfg) -> None:
    env = cfg.build(num_envs=500)
    default = torch.tensor([joint.default for joint in env.spec.joints])
    offset = env.view.state.joint_pos - default
    assert offset.abs().max() <= 0.1 + 1e-6
    assert offset.max() > 0.09
    velocity = torch.cat([env.view.state.base_lin_vel_w, env.view.state.base_ang_vel_b], -1)
    assert velocity.abs().max() <= 0.2 + 1e-6
    assert velocity.std(0).min() > 0.08
    np.testing.assert_allclose(env.view.gravity_b[:, 2], -1.0, atol=1e-5)
    heading = env.view.heading_wxyz[:, 3]
    assert heading.min() < -0.9
    assert heading.max() > 0.9


@pytest.mark.parametrize("name", registry.tasks())
def test_every_task_builds_steps_and_names_what_it_gives(name: str) -> None:
    cfg = registry.task(name)
    env = cfg.build(num_envs=2, device="cpu", seed=0)
    spec, step = env.spec, env.step(torch.zeros(2, len(env.spec.action.joints)))
    assert spec.name == name
    assert cfg.score.lstrip("-") in {"return", *step.metrics}
    assert step.reward.shape == (2, len(spec.heads))
    assert step.cost.shape == (2, len(spec.costs))
    for group, given in spec.obs.items():
        shape = (2, given.size) if given.history == 1 else (2, given.history, given.size)
        assert step.obs[group].shape == step.final_obs[group].shape == shape
    for values in (step.obs, step.final_obs, step.metrics, {"reward": step.reward}):
        assert all(value.isfinite().all() for value in values.values())
    for size in (spec.action.scale, spec.action.offset, spec.action.low, spec.action.high):
        assert len(size) == len(spec.action.joints)
    env.close()


@pytest.mark.parametrize("name", registry.tasks())
def test_an_actor_sees_the_same_in_every_variant_of_a_task(name: str) -> None:
    cfg = registry.task(name)
    assert isinstance(cfg, TaskCfg)
    whole = cfg.build(num_envs=1).spec.obs["actor"].terms
    for variant in (
        replace(cfg, randomise=NOMINAL),
        replace(cfg, history={"actor": 4}),
        replace(
            cfg,
            rewards={"all": {k: v for g in cfg.rewards.values() for k, v in g.items()}},
            head_of_limb={},
        ),
    ):
        assert variant.build(num_envs=1).spec.obs["actor"].terms == whole


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"step_s": 0.021}, "step_s is 0.021 and physics_s 0.005"),
    ({"step_s": inf, "physics_s": inf}, "step_s is inf"),
    ({"physics_s": nan}, "physics_s nan"),
    ({"episode_length_s": 0.001}, "episode_length_s is 0.001"),
    ({"episode_length_s": nan}, "episode_length_s is nan"),
    ({"episode_length_s": inf}, "episode_length_s is inf"),
    ({"history": {"actor": 0}}, "history of actor is 0"),
    ({"history": {"actr": 2}}, r"no observation group actr; it has .*mean 'actor'"),
    ({"head_of_limb": {"legs": "three", "arm": "one"}}, "no reward group three; it has one, two"),
    ({"head_of_limb": {"wing": "one"}}, "walker has no limb wing; it has legs, arm"),
    ({"head_of_limb": {"legs": "one"}}, "head_of_limb of test lacks limb arm"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_a_task_that_is_none_is_refused(cfg: TaskCfg, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(cfg, **fields)


MISFITS: list[tuple[dict[str, Any], str]] = [
    (
        {"rewards": {"one": {"t": r.Torque(weight=1, limb="wing")}}},
        "no limb 'wing', only all, legs",
    ),
    (
        {"rewards": {"one": {"flat": Misshapen(weight=1.0)}}},
        r"reward one\.flat of test, Misshapen, gives \(2, 1\); it must give \(2,\)",
    ),
    (
        {"metrics": {"gait": m.ContactAgreement()}},
        r"metric\.gait .*needs the command value 'foot_stance'.* commands give ticks, base_twist",
    ),
    (
        {"terminations": {"speed": m.Power()}},
        r"termination\.speed .*gives torch\.float32; a termination gives torch\.bool",
    ),
]


@pytest.mark.parametrize(("fields", "message"), MISFITS)
def test_a_term_that_does_not_fit_is_named(
    cfg: TaskCfg, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(cfg, **fields).build(num_envs=2)


def test_a_term_of_a_part_that_the_robot_lacks_is_named(cfg: TaskCfg, walker: Robot) -> None:
    bare = replace(cfg, robot=replace(walker, ee=None), randomise=NOMINAL)
    with pytest.raises(ValueError, match=r"cannot be computed for this robot"):
        bare.build(num_envs=2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kp": (1.1, 0.9)}, r"kp is \(1.1, 0.9\); it must be two finite"),
        ({"kd": (0.0, 1.0)}, "kd is .*must be above 0"),
        ({"friction": (-0.1, 1.0)}, "friction is .*must not be below 0"),
        ({"delay": (-0.01, 0.0)}, "delay is"),
        ({"push_every_s": (0.0, 0.0)}, "push_every_s is"),
        ({"delay": (0.0, inf)}, "delay is .*finite"),
        ({"base_mass": (nan, 0.0)}, "base_mass is .*finite"),
        ({"noise": -1.0}, "noise is -1.0"),
        ({"noise": inf}, "noise is inf"),
    ],
)
def test_randomisation_out_of_range_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Randomise(**fields)


def test_there_is_one_environment_at_least_and_on_the_cpu(cfg: TaskCfg) -> None:
    with pytest.raises(ValueError, match="num_envs is 0"):
        cfg.build(num_envs=0)
    with pytest.raises(ValueError, match="device is 'cuda'; this simulator runs on 'cpu'"):
        cfg.build(num_envs=1, device="cuda")
