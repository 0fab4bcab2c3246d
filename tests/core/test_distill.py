from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from robo_rl.algorithms.distill import Distill, DistillCfg
from robo_rl.api import Memory, Obs, Step

SMALL = DistillCfg(hidden=(32, 32), num_steps=16, num_epochs=8, learning_rate=1e-2)


class Damped:
    """Pushes each point towards zero and brakes: it sees the velocity, which the student does not.

    It also remembers how often it has acted, as a recurrent teacher would.
    """

    obs_groups = ("actor",)

    def __init__(self, num_envs: int) -> None:
        self.memory: Memory = {"count": torch.zeros(num_envs)}

    def act(self, obs: Obs, *, explore: bool = False) -> torch.Tensor:
        self.memory = {"count": self.memory["count"] + 1}
        position, velocity = torch.split(obs["actor"], 2, -1)
        return torch.add(-position, velocity, alpha=-2.0)

    def reset(self, mask: torch.Tensor | None = None) -> None:
        if mask is not None:
            self.memory = {"count": torch.where(mask, 0.0, self.memory["count"])}

    def graph(self) -> torch.nn.Module:
        raise NotImplementedError


def build(cfg: DistillCfg, env: Any, seed: int = 0) -> Distill:
    spec, count = env.spec, env.num_envs
    return Distill(cfg, spec, num_envs=count, device="cpu", seed=seed, teacher=Damped(count))


STACKED = replace(SMALL, student_obs=("positions",))


@pytest.mark.parametrize(
    "cfg", [STACKED, replace(STACKED, frame_features=8), replace(STACKED, gru=16)]
)
def test_a_student_with_history_matches_a_teacher_that_sees_more(
    cfg: DistillCfg, worlds: ModuleType
) -> None:
    env = worlds.Points(64)
    learner = build(cfg, env)
    first, _ = worlds.train(learner, env, 1)
    last, _ = worlds.train(learner, env, 15)
    assert last["action_error"] < 0.25 * first["action_error"]
    teacher = worlds.score(Damped(256), worlds.Points(256, seed=1))
    student = worlds.score(learner.policy, worlds.Points(256, seed=1))
    torch.testing.assert_close(student, teacher, rtol=0.1, atol=0.0)


@pytest.mark.parametrize("gru", [0, 8])
def test_a_loaded_learner_goes_on_as_the_saved_one(gru: int, worlds: ModuleType) -> None:
    learners = []
    for breaks in (False, True):
        env = worlds.Points(16)
        learner, obs = build(replace(STACKED, gru=gru), env), env.reset()
        for _ in range(2):
            obs, _ = worlds.collect(learner, env, obs)
            learner.update()
            if breaks:
                saved = learner.state_dict()
                learner = build(replace(STACKED, gru=gru), env, seed=7)
                learner.load_state_dict(saved)
        learners.append(learner)
    for a, b in zip(learners[0].actor.parameters(), learners[1].actor.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(learners[0].teacher.memory["count"], learners[1].teacher.memory["count"])


def test_what_is_not_finite_is_named_and_teaches_nothing(worlds: ModuleType) -> None:
    env = worlds.Points(16)
    learner, obs = build(STACKED, env), env.reset()
    before = [x.clone() for x in learner.actor.state_dict().values()]
    for _ in range(learner.num_steps):
        learner.act(obs)
        step: Step = env.step(torch.zeros(16, 2))
        step.obs["positions"][3] = float("nan")
        learner.observe(step)
        obs = step.obs
    assert learner.update()["skipped"] == 1
    assert learner.fault() == "observation positions/position in environments 3"
    assert all(
        torch.equal(a, b) for a, b in zip(before, learner.actor.state_dict().values(), strict=True)
    )


def test_a_student_can_be_built_and_act_where_its_teacher_is_not(worlds: ModuleType) -> None:
    env = worlds.Points(4)
    cfg = replace(STACKED, teacher="nowhere")
    learner = cfg.build(env.spec, num_envs=4, device="cpu", seed=0)
    learner.load_state_dict(build(STACKED, env, seed=3).state_dict())
    assert learner.policy.act(env.reset()).shape == (4, 2)
    with pytest.raises(ValueError, match="nowhere"):
        learner.act(env.reset())


def test_a_teacher_must_be_named_and_a_number_in_range(worlds: ModuleType) -> None:
    env = worlds.Points(4)
    learner = STACKED.build(env.spec, num_envs=4, device="cpu", seed=0)
    with pytest.raises(ValueError, match="teacher is empty"):
        learner.act(env.reset())
    with pytest.raises(ValueError, match=r"exploration_std is 0.0; it must be above"):
        DistillCfg(exploration_std=0.0)
