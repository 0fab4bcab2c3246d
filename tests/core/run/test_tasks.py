"""Training on real tasks, end to end: what toys cannot show."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from robo_rl.algorithms.distill import DistillCfg
from robo_rl.algorithms.ppo import PPOCfg
from robo_rl.checkpoint import CheckpointError, load, load_policy
from robo_rl.run import Run, RunCfg, RunError, train
from robo_rl.tasks.env import TaskCfg
from robo_rl.tasks.locomotion.velocity import go2_velocity
from robo_rl.tasks.terms.observations import BaseAngVel
from robo_rl.tasks.terms.view import View

SHORT = replace(go2_velocity(), episode_length_s=0.4)
PPO = PPOCfg(num_steps=4, num_epochs=1, num_minibatches=1, actor_hidden=(16,), critic_hidden=(16,))


def cfg(task: TaskCfg, learner: PPOCfg | DistillCfg, algorithm: str, iterations: int) -> RunCfg:
    return RunCfg(
        task=task,
        learner=learner,
        algorithm=algorithm,
        num_envs=4,
        iterations=iterations,
        eval_every=100,
    )


@dataclass(frozen=True, kw_only=True)
class BrokenGyro(BaseAngVel):
    """No number in environment 2 from its second step on, in a training of four environments."""

    def __call__(self, view: View) -> Tensor:
        value = super().__call__(view).clone()
        if len(value) == 4 and bool(view.action.any()):
            value[2] = torch.nan
        return value


def test_an_observation_that_is_no_number_is_named_and_stops_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actor = {**SHORT.observations["actor"], "gyro": BrokenGyro()}
    task = replace(SHORT, observations={**SHORT.observations, "actor": actor})
    with pytest.raises(RunError, match="stopped after 5 skipped updates in a row"):
        train(cfg(task, PPO, "ppo", 8), out=tmp_path)
    assert "observation actor/gyro in environments 2" in capsys.readouterr().out
    assert list(tmp_path.glob("*/*/faults/*.safetensors"))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(cfg(SHORT, PPO, "ppo", 1), out=tmp_path_factory.mktemp("teacher"))


def test_a_student_is_distilled_from_a_run_and_taken_up_again(teacher: Run, tmp_path: Path) -> None:
    task = replace(SHORT, history={"actor": 3})
    learner = DistillCfg(
        teacher=str(teacher.path), student_obs=("critic",), num_steps=4, num_minibatches=1
    )
    whole = train(cfg(SHORT, learner, "distill", 4), out=tmp_path / "whole")
    begun = train(cfg(SHORT, learner, "distill", 2), out=tmp_path / "begun")
    again = train("go2-velocity", out=tmp_path / "begun", resume=str(begun.path), iterations=4)
    states = [load(run.checkpoint("latest"))[0]["learner"]["actor"] for run in (whole, again)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert load_policy(whole.path).obs_groups == ("critic",)

    with pytest.raises(CheckpointError, match=r"observation group actor\n.*of 1 steps.*\n.*of 3"):
        train(cfg(task, learner, "distill", 1), out=tmp_path / "misfit")
