import subprocess
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from robo_rl.api import Step
from robo_rl.evaluation import evaluate, score


class Scripted:
    """Environment i ends after ends[i] steps, by a fall where i is even; then it begins anew.

    At step t it earns (i, 10 i) and its metric "error" is 100 i + t; all is NaN after the end.
    """

    def __init__(self, toys: ModuleType, ends: list[int]) -> None:
        point = toys.PointTask().build(num_envs=1, device="cpu", seed=0)
        self.spec = replace(point.spec, max_episode_steps=max(ends))
        self.num_envs, self.device = len(ends), "cpu"
        self._ends = torch.tensor(ends)
        self._index = torch.arange(len(ends)).float()

    def reset(self, *, seed: int | None = None, stagger: bool = False) -> dict[str, Tensor]:
        self._t = 0
        return {"actor": torch.zeros(self.num_envs, 2)}

    def step(self, action: Tensor) -> Step:
        self._t += 1
        over = torch.where(self._t > self._ends, float("nan"), 0.0)
        ended = (self._t % self._ends) == 0
        fall = ended & (self._index % 2 == 0)
        obs = {"actor": torch.zeros(self.num_envs, 2)}
        reward = torch.stack([self._index, 10 * self._index], -1) + over.unsqueeze(-1)
        metrics = {
            "error": 100 * self._index + self._t + over,
            "broken": (self._index == 1) * (self._t == 2) + over,
        }
        return Step(obs, obs, reward, torch.zeros(self.num_envs, 0), fall, ended & ~fall, metrics)

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)


def test_scores_are_those_of_every_first_episode_alone(toys: ModuleType) -> None:
    ends = [2, 5, 3]
    policy = toys.LinearPolicy(torch.ones(1), torch.Generator())
    scores = evaluate(policy, Scripted(toys, ends))
    errors = [100 * i + t for i, end in enumerate(ends) for t in range(1, end + 1)]
    assert scores["error"] == pytest.approx(sum(errors) / len(errors))
    assert scores["broken"] == 1
    reach = sum(i * end for i, end in enumerate(ends)) / len(ends)
    assert scores["return/reach"] == pytest.approx(reach)
    assert scores["return/effort"] == pytest.approx(10 * reach)
    assert scores["return"] == pytest.approx(11 * reach)
    assert scores["episode_length"] == pytest.approx(10 / 3)
    assert scores["fall"] == pytest.approx(2 / 3)


def test_steps_bound_an_evaluation(toys: ModuleType) -> None:
    policy = toys.LinearPolicy(torch.ones(1), torch.Generator())
    scores = evaluate(policy, Scripted(toys, [2, 5, 40]), steps=4)
    assert scores["episode_length"] == pytest.approx((2 + 4 + 4) / 3)
    assert scores["fall"] == pytest.approx(1 / 3)


def test_an_evaluation_is_repeatable_and_leaves_no_trace(toys: ModuleType) -> None:
    env = toys.PointTask().build(num_envs=16, device="cpu", seed=0)
    policy = toys.LinearPolicy(torch.full((1,), 0.3), torch.Generator())
    policy.memory = {"acted": torch.full((4,), 9.0)}
    torch_state = torch.get_rng_state()
    first = evaluate(policy, env, seed=5)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert torch.equal(policy.memory["acted"], torch.full((4,), 9.0))
    assert evaluate(policy, env, seed=5) == first
    assert evaluate(policy, env, seed=6) != first


def test_a_score_is_named_and_may_be_negated() -> None:
    scores = {"position_error": 0.25, "return": 3.0}
    assert score("-position_error", scores) == -0.25
    assert score("return", scores) == 3.0
    with pytest.raises(ValueError, match=r"gives only position_error, return; did you mean 'pos"):
        score("-position_eror", scores)


def test_the_function_is_found_by_its_short_name_after_its_module_was_imported() -> None:
    code = "import robo_rl.evaluation, robo_rl; assert callable(robo_rl.evaluate)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_cannot_be_evaluated_is_refused(toys: ModuleType) -> None:
    env = toys.PointTask().build(num_envs=1, device="cpu", seed=0)
    policy = toys.LinearPolicy(torch.zeros(1), torch.Generator())
    for steps in (0, -1):
        with pytest.raises(ValueError, match=f"steps is {steps}; .* at least 1"):
            evaluate(policy, env, steps=steps)
    policy.obs_groups = ("actor", "camera")
    with pytest.raises(ValueError, match="reads camera, but 'point' has only actor"):
        evaluate(policy, env)
