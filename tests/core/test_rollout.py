from types import ModuleType

import pytest
import torch
from torch import Tensor

from robo_rl.api import Step
from robo_rl.rollout import Rollout, minibatches

NAN = float("nan")


def rollout_of(worlds: ModuleType, num_envs: int = 8, num_steps: int = 3) -> Rollout:
    spec = worlds.Points(num_envs).spec
    groups = ("actor", "positions")
    return Rollout(spec, num_steps, num_envs, groups=groups, final_groups=("actor",), device="cpu")


def fill(rollout: Rollout, worlds: ModuleType, num_envs: int = 8) -> list[tuple[Tensor, Step]]:
    env = worlds.Points(num_envs)
    obs, seen = env.reset(), []
    while not rollout.full:
        action = torch.rand(num_envs, 2)
        rollout.add_action(obs, action, 0.5 * action)
        step = env.step(action)
        rollout.add_step(step)
        seen.append((obs["positions"], step))
        obs = step.obs
    return seen


def test_what_came_is_what_is_kept(worlds: ModuleType) -> None:
    rollout = rollout_of(worlds)
    seen = fill(rollout, worlds)
    for t, (positions, step) in enumerate(seen):
        assert torch.equal(rollout.obs["positions"][t], positions)
        assert torch.equal(rollout.final_obs["actor"][t], step.final_obs["actor"])
        assert torch.equal(rollout.reward[t], step.reward)
        assert torch.equal(rollout.truncated[t], step.truncated)
    torch.testing.assert_close(rollout.mean, 0.5 * rollout.action)


def test_an_environment_may_overwrite_its_tensors(worlds: ModuleType) -> None:
    rollout, env = rollout_of(worlds, num_steps=1), worlds.Points(8)
    obs = {name: x.clone() for name, x in env.reset().items()}
    want = obs["actor"].clone()
    rollout.add_action(obs, torch.zeros(8, 2), torch.zeros(8, 2))
    obs["actor"].fill_(9.0)
    assert torch.equal(rollout.obs["actor"][0], want)


def test_an_episode_starts_after_one_ended(worlds: ModuleType) -> None:
    rollout = rollout_of(worlds, num_steps=3)
    rollout.terminated[0, 1] = rollout.truncated[1, 2] = rollout.truncated[2, 3] = True
    assert rollout.starts.nonzero().tolist() == [[1, 1], [2, 2]]


def test_act_and_observe_take_turns(worlds: ModuleType) -> None:
    rollout, env = rollout_of(worlds), worlds.Points(8)
    obs, action = env.reset(), torch.zeros(8, 2)
    with pytest.raises(RuntimeError, match="observe follows act"):
        rollout.add_step(env.step(action))
    rollout.add_action(obs, action, action)
    with pytest.raises(RuntimeError, match="act, observe"):
        rollout.add_action(obs, action, action)
    fresh = rollout_of(worlds)
    fill(fresh, worlds)
    with pytest.raises(RuntimeError, match="of them, update"):
        fresh.add_action(obs, action, action)


def test_a_fault_names_terms_groups_and_environments(worlds: ModuleType) -> None:
    rollout = rollout_of(worlds)
    fill(rollout, worlds)
    assert rollout.fault() == ""
    rollout.obs["actor"][1, 3, 2] = NAN
    rollout.obs["positions"][0, :, 0, 1] = float("inf")
    rollout.final_obs["actor"][2, 0, 0] = NAN
    rollout.reward[0, 5, 1] = -float("inf")
    assert rollout.fault().split("; ") == [
        "observation actor/velocity in environments 3",
        "observation positions/position in environments 0, 1, 2, 3, 4 and 3 more",
        "final observation actor/position in environments 0",
        "reward right in environments 5",
    ]


def test_minibatches_are_a_permutation_and_another_each_time() -> None:
    generator = torch.Generator().manual_seed(0)
    first = list(minibatches(103, 4, generator))
    assert [len(rows) for rows in first] == [26, 26, 26, 25]
    assert torch.cat(first).sort().values.tolist() == list(range(103))
    assert not torch.equal(torch.cat(first), torch.cat(list(minibatches(103, 4, generator))))
