"""Teacher-student distillation: what a policy does with all it sees, from what a robot can see."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from robo_rl.algorithms.update import (
    Samples,
    Snapshot,
    check,
    finite,
    not_finite,
    on_device,
    sample_count,
    set_generator,
)
from robo_rl.api import EnvSpec, Memory, Metrics, Obs, Policy, Step
from robo_rl.nets.actor import Actor, ActorPolicy
from robo_rl.nets.mlp import Activation
from robo_rl.nets.optimiser import Optimiser
from robo_rl.rollout import Rollout, minibatches


@dataclass(frozen=True, kw_only=True)
class DistillCfg:
    """A student that imitates a teacher in the states that the student itself comes to."""

    teacher: str = ""
    """Run folder or checkpoint of the teacher; needed to train, not to act."""
    num_steps: int = 24
    """Steps of each environment per update, T."""
    num_epochs: int = 2
    """Passes over the rollout per update."""
    num_minibatches: int = 4
    """Steps of the optimiser per pass."""
    learning_rate: float = 1e-3
    """Of the student, > 0."""
    max_grad_norm: float = 1.0
    """Longest gradient, > 0."""
    exploration_std: float = 0.1
    """Standard deviation of the noise on the actions that the student takes while it learns."""

    student_obs: tuple[str, ...] = ("actor",)
    """Observation groups that the student reads."""
    hidden: tuple[int, ...] = (256, 128)
    """Hidden layers."""
    activation: Activation = "elu"
    """Between layers."""
    frame_features: int = 0
    """Numbers that each frame of a stacked group is encoded to; 0: frames as they are."""
    gru: int = 0
    """Size of the student's memory; 0: none."""

    def __post_init__(self) -> None:
        for name in ("num_steps", "num_epochs", "num_minibatches", "hidden"):
            check(name, getattr(self, name), lambda x: x >= 1, "at least 1")
        for name in ("learning_rate", "max_grad_norm"):
            check(name, getattr(self, name), lambda x: x > 0.0, "above 0")
        for name in ("frame_features", "gru"):
            check(name, getattr(self, name), lambda x: x >= 0, "0 or more")
        check("exploration_std", self.exploration_std, lambda x: x > _MIN_STD, f"above {_MIN_STD}")
        if not self.student_obs:
            raise ValueError("student_obs is empty; name the groups that the student reads")

    def build(self, spec: EnvSpec, *, num_envs: int, device: str, seed: int) -> "Distill":
        return Distill(self, spec, num_envs=num_envs, device=device, seed=seed)


_MIN_STD = 1e-3


@dataclass(frozen=True)
class _Samples(Samples):
    target: Tensor
    """(..., A), the teacher's action."""


class Distill:
    """Learns to act as a teacher does, by regression on states that the student visits.

    Source: DAgger, Ross et al. 2011, arXiv:1011.0686. Differs: the student acts from the start,
    and learns from its last rollout only rather than from all of them.
    """

    def __init__(
        self,
        cfg: DistillCfg,
        spec: EnvSpec,
        *,
        num_envs: int,
        device: str,
        seed: int,
        teacher: Policy | None = None,
    ) -> None:
        """Args:
        teacher: by default the one in cfg.teacher, loaded when it is first needed.
        """
        self.cfg = cfg
        self.spec = spec
        self._device = device
        self._seed = seed
        self._count = sample_count(cfg.num_steps, num_envs, cfg.num_minibatches, cfg.gru)
        self.actor = Actor(
            spec,
            cfg.student_obs,
            hidden=cfg.hidden,
            activation=cfg.activation,
            frame_features=cfg.frame_features,
            gru=cfg.gru,
            initial_std=cfg.exploration_std,
            min_std=_MIN_STD,
            generator=torch.Generator().manual_seed(seed),
        ).to(device)
        self._optimiser = Optimiser(
            self.actor.parameters(), rate=cfg.learning_rate, max_norm=cfg.max_grad_norm
        )
        self._explorer = self.policy
        self._explorer.reset(torch.ones(num_envs, dtype=torch.bool, device=device))
        self._generator = self._explorer.generator
        self._memory: Tensor | None = None
        self._rollout = Rollout(
            spec,
            cfg.num_steps,
            num_envs,
            groups=cfg.student_obs,
            final_groups=(),
            device=device,
        )
        self._teacher = teacher
        self._teacher_memory: Memory = {}
        self._fault = ""

    @property
    def policy(self) -> ActorPolicy:
        """Acts as the student does now, with a memory and random numbers of its own."""
        return ActorPolicy(self.actor, device=self._device, seed=self._seed)

    @property
    def num_steps(self) -> int:
        return self.cfg.num_steps

    @property
    def teacher(self) -> Policy:
        """Loaded when first asked for, so that a student can be loaded where its teacher is not."""
        if self._teacher is None:
            if not self.cfg.teacher:
                raise ValueError("teacher is empty; set it to a run folder or checkpoint")
            from robo_rl import checkpoint

            path, spec = checkpoint.find(self.cfg.teacher), self.spec
            teacher = checkpoint.load_policy(path, device=self._device)
            saved = checkpoint.load_spec(path)
            # It may be of another task, if what it reads and moves is the same there.
            reads = teacher.obs_groups
            checkpoint.check_spec(
                replace(
                    saved,
                    obs={name: saved.obs[name] for name in reads},
                    action=replace(saved.action, heads=spec.action.heads),
                    heads=spec.heads,
                    costs=spec.costs,
                ),
                replace(
                    spec,
                    name=saved.name,
                    obs={name: spec.obs[name] for name in reads if name in spec.obs},
                ),
                path,
            )
            self._teacher = teacher
            if self._teacher_memory:
                self._teacher.memory = self._teacher_memory
        return self._teacher

    def fault(self) -> str:
        return self._fault

    def act(self, obs: Obs) -> Tensor:
        if self._rollout.empty:
            self._memory = self._explorer.memory.get("gru")
        mean = self._explorer.mean(obs)
        with torch.no_grad():
            wanted = self.teacher.act(obs)
        self._rollout.add_action(obs, wanted, mean)
        return finite(self._explorer.sample(mean))

    def observe(self, step: Step) -> None:
        self._rollout.add_step(step)
        ended = step.terminated | step.truncated
        self._explorer.reset(ended)
        self.teacher.reset(ended)

    def update(self) -> Metrics:
        rollout, cfg = self._rollout, self.cfg
        self._fault = rollout.fault()
        if self._fault:
            return self._skipped()
        before = Snapshot(self.actor, self._optimiser)
        samples = _Samples(
            x=self.actor.input.of(rollout.obs),
            memory=None if self._memory is None else self._memory.unsqueeze(0),
            starts=rollout.starts if cfg.gru else None,
            target=rollout.action,
        ).flat()
        tally: dict[str, list[Tensor]] = defaultdict(list)
        for _ in range(cfg.num_epochs):
            for rows in minibatches(self._count, cfg.num_minibatches, self._generator):
                batch = samples.take(rows)
                mean = self.actor.mean(batch.x, batch.memory, batch.starts)
                loss = (mean - batch.target).square().mean()
                loss.backward()  # type: ignore[no-untyped-call]
                tally["loss"].append(loss.detach())
                tally["grad_norm"].append(self._optimiser.step()[0])
        metrics = {name: torch.stack(values).mean() for name, values in tally.items()}
        self._fault = not_finite(metrics)
        if self._fault:
            before.restore()
            return self._skipped()
        # Before the update, in the units of an action: how far the student was from its teacher.
        metrics["action_error"] = (rollout.mean - rollout.action).square().mean().sqrt()
        self.actor.input.merge(rollout.obs)
        rollout.clear()
        return metrics | {"skipped": torch.zeros((), device=self._device)}

    def _skipped(self) -> Metrics:
        self._rollout.clear()
        self._explorer.forget_not_finite()
        return {"skipped": torch.ones((), device=self._device)}

    def state_dict(self) -> dict[str, Any]:
        """Everything between two updates; a rollout under way is left out."""
        teacher = {} if self._teacher is None else self._teacher.memory
        state: dict[str, Mapping[str, Tensor]] = {
            "actor": self.actor.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "memory": self._explorer.memory,
            "teacher_memory": teacher,
        }
        copies = {k: {name: x.clone() for name, x in part.items()} for k, part in state.items()}
        return {**copies, "generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.actor.load_state_dict(state["actor"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._explorer.memory = on_device(state["memory"], self._device)
        self._teacher_memory = on_device(state["teacher_memory"], self._device)
        if self._teacher is not None:
            self._teacher.memory = self._teacher_memory
        set_generator(self._generator, state["generator"])
        self._rollout.clear()
