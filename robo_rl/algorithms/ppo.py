"""Proximal policy optimisation with one critic for each reward group."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from robo_rl import advantages, returns
from robo_rl.algorithms.update import (
    Samples,
    Snapshot,
    check,
    finite,
    not_finite,
    on_device,
    per_head,
    sample_count,
    set_generator,
)
from robo_rl.api import EnvSpec, Metrics, Obs, Step
from robo_rl.nets import gaussian
from robo_rl.nets.actor import Actor, ActorPolicy
from robo_rl.nets.critics import Critics
from robo_rl.nets.mlp import Activation
from robo_rl.nets.obs_input import ObsInput
from robo_rl.nets.optimiser import Optimiser
from robo_rl.nets.symmetry import Reflection, reflection
from robo_rl.rollout import Rollout, minibatches


@dataclass(frozen=True, kw_only=True)
class PPOCfg:
    """Multi-critic PPO. A mapping by head overrides the number for the reward groups it names."""

    num_steps: int = 24
    """Steps of each environment per update, T."""
    num_epochs: int = 5
    """Passes over the rollout per update."""
    num_minibatches: int = 4
    """Steps of the optimisers per pass."""

    combine: advantages.Mode = "normalised_sum"
    """How the groups' advantages become one: see robo_rl.advantages.combine."""
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """Weight of each head's advantage, >= 0; 1 for a head not named."""
    mixing_iterations: int = 1000
    """In mode mixing: updates until a limb counts the others' groups as fully as its own."""
    gamma: float = 0.99
    """Discount per control step, in [0, 1)."""
    gammas: Mapping[str, float] = field(default_factory=dict[str, float])
    """Discount by head."""
    lam: float = 0.95
    """Lambda of the advantage that the actor climbs, in [0, 1]."""
    lams: Mapping[str, float] = field(default_factory=dict[str, float])
    """Lambda of the actor by head."""
    critic_lam: float = 0.95
    """Lambda of the return that the critics learn, in [0, 1]."""
    critic_lams: Mapping[str, float] = field(default_factory=dict[str, float])
    """Lambda of the critics by head."""

    clip: float = 0.2
    """How far the probability ratio of an action may move, > 0."""
    clip_higher: float | None = None
    """How far it may move up, where that differs (DAPO, arXiv:2503.14476, takes 0.28)."""
    value_clip: float | None = None
    """How far a value may move in an update, in standard deviations of the returns, > 0."""
    entropy: float = 0.005
    """Weight of the policy's entropy [1/nat], >= 0."""
    symmetry: Literal["none", "augment", "loss"] = "none"
    """augment: learn from the mirror image of every sample too. loss: pull the mean action in the
    mirror image towards the mirror image of the mean action."""
    symmetry_weight: float = 1.0
    """Weight of that pull, the mean squared difference, >= 0."""
    value_pretraining: int = 0
    """Updates at the start in which only the critics learn."""

    learning_rate: float = 1e-3
    """Of the actor at the start, > 0."""
    desired_kl: float | None = 0.01
    """Divergence of an update [nat]: a minibatch at over twice it divides the actor's rate by 1.5,
    one at under half multiplies it. None: the rate stays."""
    learning_rate_range: tuple[float, float] = (1e-5, 1e-2)
    """Bounds of the actor's rate."""
    critic_learning_rate: float = 1e-3
    """Of the critics, > 0. It stays: one rate for both starves the critics when the KL is large."""
    max_grad_norm: float = 1.0
    """Longest gradient of the actor, and of each critic, > 0."""

    actor_obs: tuple[str, ...] = ("actor",)
    """Observation groups that the actor reads."""
    critic_obs: tuple[str, ...] = ()
    """Observation groups that the critics read; empty: "critic", or where there is none the
    actor's."""
    actor_hidden: tuple[int, ...] = (256, 128)
    """Hidden layers of the actor."""
    critic_hidden: tuple[int, ...] = (256, 128)
    """Hidden layers of each critic."""
    activation: Activation = "elu"
    """Between layers."""
    frame_features: int = 0
    """Numbers that the actor encodes each frame of a stacked group to; 0: frames as they are."""
    gru: int = 0
    """Size of the memory of the actor and of each critic; 0: none."""
    initial_std: float = 0.8
    """Standard deviation of each action at the start, > min_std."""
    min_std: float = 0.05
    """Standard deviation below which no action falls, > 0."""

    def __post_init__(self) -> None:
        for name in ("num_steps", "num_epochs", "num_minibatches", "mixing_iterations"):
            check(name, getattr(self, name), lambda x: x >= 1, "at least 1")
        for name in ("clip", "clip_higher", "value_clip", "learning_rate", "desired_kl"):
            check(name, getattr(self, name), lambda x: x > 0.0, "above 0")
        for name in ("critic_learning_rate", "max_grad_norm", "min_std"):
            check(name, getattr(self, name), lambda x: x > 0.0, "above 0")
        for name in ("entropy", "symmetry_weight", "value_pretraining", "frame_features", "gru"):
            check(name, getattr(self, name), lambda x: x >= 0, "0 or more")
        for name in ("gamma", "gammas"):
            check(name, getattr(self, name), lambda x: 0.0 <= x < 1.0, "in [0, 1)")
        for name in ("lam", "lams", "critic_lam", "critic_lams"):
            check(name, getattr(self, name), lambda x: 0.0 <= x <= 1.0, "in [0, 1]")
        check("weights", self.weights, lambda x: x >= 0.0, "0 or more")
        check("initial_std", self.initial_std, lambda x: x > self.min_std, "above min_std")
        for name in ("actor_hidden", "critic_hidden"):
            check(name, getattr(self, name), lambda x: x >= 1, "sizes of at least 1")
        low, high = self.learning_rate_range
        if not 0.0 < low <= high:
            raise ValueError(f"learning_rate_range is {low}, {high}; it must be 0 < low <= high")
        if not self.actor_obs:
            raise ValueError("actor_obs is empty; name the observation groups that the actor reads")
        if self.gru and self.symmetry != "none":
            raise ValueError(
                "symmetry needs the mirror image of what the policy remembers, which a GRU has "
                "none of; set gru=0 (a stacked observation group remembers too) or symmetry=none"
            )

    def build(self, spec: EnvSpec, *, num_envs: int, device: str, seed: int) -> "PPO":
        return PPO(self, spec, num_envs=num_envs, device=device, seed=seed)


@dataclass(frozen=True)
class _ActorSamples(Samples):
    action: Tensor
    mean: Tensor
    """(..., A), of the policy that acted."""
    log_prob: Tensor
    """(..., L), of each limb's action under it."""
    advantage: Tensor
    """(..., M), what is climbed: see advantages.combine."""
    image: Tensor | None
    """(..., X), the mirror image of x, where the mean action is to be its mirror image too."""


@dataclass(frozen=True)
class _CriticSamples(Samples):
    value: Tensor
    """(..., K), before the update."""
    target: Tensor
    """(..., K), the return to learn."""


class PPO:
    """Learns a policy from what it does, with a value network for each reward group.

    Source: Schulman et al. 2017, arXiv:1707.06347; several critics as Vijayan et al. 2025,
    arXiv:2507.08656. Differs: the divergence of an update moves the actor's learning rate (Rudin
    et al. 2022, arXiv:2109.11978) and no other; each critic's gradient is clipped by itself.
    """

    def __init__(
        self, cfg: PPOCfg, spec: EnvSpec, *, num_envs: int, device: str, seed: int
    ) -> None:
        self.cfg = cfg
        self.spec = spec
        self._num_envs = num_envs
        self._device = device
        self._seed = seed
        self._count = sample_count(cfg.num_steps, num_envs, cfg.num_minibatches, cfg.gru)
        weights = torch.Generator().manual_seed(seed)
        self.actor = Actor(
            spec,
            cfg.actor_obs,
            hidden=cfg.actor_hidden,
            activation=cfg.activation,
            frame_features=cfg.frame_features,
            gru=cfg.gru,
            initial_std=cfg.initial_std,
            min_std=cfg.min_std,
            generator=weights,
        ).to(device)
        self.critics = Critics(
            spec,
            cfg.critic_obs or (("critic",) if "critic" in spec.obs else cfg.actor_obs),
            hidden=cfg.critic_hidden,
            activation=cfg.activation,
            gru=cfg.gru,
            generator=weights,
        ).to(device)
        self._actor_optimiser = Optimiser(
            self.actor.parameters(), rate=cfg.learning_rate, max_norm=cfg.max_grad_norm
        )
        self._critic_optimiser = Optimiser(
            self.critics.parameters(),
            rate=cfg.critic_learning_rate,
            max_norm=cfg.max_grad_norm,
            rows=len(spec.heads),
        )
        self._weights = per_head(1.0, cfg.weights, spec.heads, "weights").to(device)
        self._gamma = per_head(cfg.gamma, cfg.gammas, spec.heads, "gammas").to(device)
        self._lam = per_head(cfg.lam, cfg.lams, spec.heads, "lams").to(device)
        critic_lam = per_head(cfg.critic_lam, cfg.critic_lams, spec.heads, "critic_lams")
        self._critic_lam = critic_lam.to(device)
        if not self._weights.any():
            raise ValueError(f"the weights of {', '.join(spec.heads)} are all 0; one must be above")
        self._limbs = advantages.limbs(spec) if cfg.combine == "mixing" else ("all",)
        self._limb_of = advantages.limb_of_action(spec, self._limbs).to(device)
        self._mirrors = self._needed_mirrors()
        self._explorer = self.policy
        self._explorer.reset(torch.ones(num_envs, dtype=torch.bool, device=device))
        self._generator = self._explorer.generator
        self._memory: Tensor | None = None
        self._critic_memory = self.critics.forgotten(num_envs)
        groups = dict.fromkeys(self.actor.input.groups + self.critics.input.groups)
        self._rollout = Rollout(
            spec,
            cfg.num_steps,
            num_envs,
            groups=tuple(groups),
            final_groups=self.critics.input.groups,
            device=device,
        )
        self._acted_std = self.actor.std().detach()
        self._iteration = 0
        self._fault = ""

    @property
    def policy(self) -> ActorPolicy:
        """Acts as the learner does now, with a memory and random numbers of its own."""
        return ActorPolicy(self.actor, device=self._device, seed=self._seed)

    @property
    def num_steps(self) -> int:
        return self.cfg.num_steps

    def fault(self) -> str:
        return self._fault

    def act(self, obs: Obs) -> Tensor:
        if self._rollout.empty:
            self._memory = self._explorer.memory.get("gru")
        mean = self._explorer.mean(obs)
        action = self._explorer.sample(mean)
        self._rollout.add_action(obs, action, mean)
        return finite(action)

    def observe(self, step: Step) -> None:
        self._rollout.add_step(step)
        self._explorer.reset(step.terminated | step.truncated)

    def update(self) -> Metrics:
        self._fault = self._rollout.fault()
        if self._fault:
            return self._skipped()
        before = Snapshot(self.actor, self.critics, self._actor_optimiser, self._critic_optimiser)
        actor, critics, metrics = self._samples()
        self.critics.returns.merge(critics.target)
        tally: dict[str, list[Tensor]] = defaultdict(list)
        for epoch in range(self.cfg.num_epochs):
            for i, rows in enumerate(
                minibatches(self._count, self.cfg.num_minibatches, self._generator)
            ):
                parts = self._critic_step(critics.take(rows))
                if self._iteration >= self.cfg.value_pretraining:
                    parts |= self._actor_step(actor.take(rows), first=epoch == i == 0)
                for name, value in parts.items():
                    tally[name].append(value)
        means = {name: torch.stack(values).mean(0) for name, values in tally.items()}
        learnt = self._named(means)
        self._fault = not_finite(learnt)
        if self._fault:
            before.restore()
            return self._skipped()
        self.actor.input.merge(self._rollout.obs)
        self.critics.input.merge(self._rollout.obs)
        self._rollout.clear()
        self._iteration += 1
        return self._named(metrics) | learnt | self._settings()

    def _actor_step(self, batch: _ActorSamples, *, first: bool) -> dict[str, Tensor]:
        """One step of the actor's optimiser.

        Args:
            first: nothing has been learnt from this rollout yet, so that the divergence is zero
                and says nothing about the learning rate.
        """
        cfg, std = self.cfg, self.actor.std()
        mean = self.actor.mean(batch.x, batch.memory, batch.starts)
        log_prob = gaussian.log_prob(batch.action, mean, std) @ self._limb_of
        ratio = (log_prob - batch.log_prob).exp()
        clipped = ratio.clamp(1.0 - cfg.clip, 1.0 + (cfg.clip_higher or cfg.clip))
        gains = torch.min(ratio * batch.advantage, clipped * batch.advantage)
        gains = gains.flatten(0, -2).mean(0)
        entropy = gaussian.entropy(std)
        loss = -cfg.entropy * entropy
        if batch.image is not None:
            seen = self.actor.mean(batch.image)
            pull = (seen - self._mirrors["action"](mean).detach()).square().mean()
            loss = loss + cfg.symmetry_weight * pull
        if cfg.combine == "pcgrad":
            self._climb_projected(gains)
        else:
            loss = loss - gains.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            kl = gaussian.kl(batch.mean, self._acted_std, mean, std).mean()
            if not first:
                self._adapt(kl)
            norm = self._actor_optimiser.step()
            return {
                "kl": kl,
                "clip_fraction": (ratio != clipped).float().mean(),
                "surrogate": gains.detach().sum(),
                "entropy": entropy.detach(),
                "actor_grad_norm": norm[0],
            }

    def _critic_step(self, batch: _CriticSamples) -> dict[str, Tensor]:
        """One step of the critics' optimiser; each number (K,), losses in variances of return."""
        scale = self.critics.returns.scale
        value = self.critics(batch.x, batch.memory, batch.starts)
        error = ((value - batch.target) * scale).square()
        if self.cfg.value_clip is not None:
            reach = self.cfg.value_clip / scale
            moved = batch.value + (value - batch.value).clamp(-reach, reach)
            error = torch.max(error, ((moved - batch.target) * scale).square())
        loss = error.flatten(0, -2).mean(0)
        loss.sum().backward()
        return {"value_loss": loss.detach(), "critic_grad_norm": self._critic_optimiser.step()}

    def _adapt(self, kl: Tensor) -> None:
        """Move the actor's rate, and no other, towards the desired divergence."""
        if self.cfg.desired_kl is None:
            return
        ratio = kl / self.cfg.desired_kl
        factor = torch.where(ratio > 2.0, 1.0 / 1.5, torch.where(ratio < 0.5, 1.5, 1.0))
        low, high = self.cfg.learning_rate_range
        self._actor_optimiser.rate.mul_(factor).clamp_(low, high)

    def _climb_projected(self, gains: Tensor) -> None:
        """Set the actor's gradient to that of the groups' gains, (K,), without their conflicts."""
        parameters = self._actor_optimiser.parameters
        groups = [torch.autograd.grad(gain, parameters, retain_graph=True) for gain in gains]
        order = torch.randperm(len(gains), generator=self._generator, device=self._device)
        flat = torch.stack([torch.cat([g.flatten() for g in group]) for group in groups])
        climb = advantages.pcgrad(flat, order)
        parts = torch.split(climb, [p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = -part.view_as(parameter)

    @torch.no_grad()
    def _samples(self) -> tuple[_ActorSamples, _CriticSamples, dict[str, Tensor]]:
        """What the rollout teaches the actor and the critics, and numbers about it, each (K,)."""
        rollout = self._rollout
        starts, ended = rollout.starts, rollout.ended
        x = self.critics.input.of(rollout.obs)
        value, next_value, memory = self.critics.of_rollout(
            x, rollout.final_obs, ended, self._critic_memory, starts
        )

        def advantage(lam: Tensor) -> Tensor:
            return returns.gae(
                rollout.reward,
                value,
                next_value,
                rollout.terminated,
                rollout.truncated,
                gamma=self._gamma,
                lam=lam,
            )

        gained = advantage(self._lam)
        target = value + advantage(self._critic_lam)
        sequences = starts if self.cfg.gru else None
        critics = _CriticSamples(x, self._critic_memory, sequences, value, target)
        self._acted_std = self.actor.std()
        actor = _ActorSamples(
            x=self.actor.input.of(rollout.obs),
            memory=None if self._memory is None else self._memory.unsqueeze(0),
            starts=sequences,
            action=rollout.action,
            mean=rollout.mean,
            log_prob=gaussian.log_prob(rollout.action, rollout.mean, self._acted_std)
            @ self._limb_of,
            advantage=advantages.combine(
                gained, self._weights, self.cfg.combine, mix=self._limb_mix()
            ),
            image=None,
        )
        error = target - value
        unexplained = error.var((0, 1)) / target.var((0, 1)).clamp(min=1e-12)
        metrics = {
            "advantage_std": gained.std((0, 1)),
            "value_target": target.mean((0, 1)),
            "value_error": error.square().mean((0, 1)).sqrt(),
            "explained_variance": 1.0 - unexplained,
        }
        if memory is not None:
            self._critic_memory = torch.where(ended[-1].unsqueeze(-1), 0.0, memory)
        if self.cfg.symmetry == "loss":
            actor = replace(actor, image=self._image(self.actor.input))
        if self.cfg.symmetry == "augment":
            actor, critics = self._with_images(actor, critics)
        return actor.flat(), critics.flat(), metrics

    def _with_images(
        self, actor: _ActorSamples, critics: _CriticSamples
    ) -> tuple[_ActorSamples, _CriticSamples]:
        """Each sample followed by its mirror image, (T, N, 2, ...).

        The image of a sample is what the mirrored policy would have done, and just as likely; its
        mean is that of the policy itself, so that the divergence tells what an update moved.
        """
        image, mirror = self._image(self.actor.input), self._mirrors["action"]
        actor = replace(
            actor.each(lambda x: torch.stack([x, x], 2)),
            x=torch.stack([actor.x, image], 2),
            action=torch.stack([actor.action, mirror(actor.action)], 2),
            mean=torch.stack([actor.mean, self.actor.mean(image)], 2),
        )
        if all(name in self._mirrors for name in self.critics.input.groups):
            critics = replace(
                critics.each(lambda x: torch.stack([x, x], 2)),
                x=torch.stack([critics.x, self._image(self.critics.input)], 2),
            )
        return actor, critics

    def _needed_mirrors(self) -> dict[str, Reflection]:
        """The mirrors that cfg.symmetry uses; critics can do without."""
        if self.cfg.symmetry == "none":
            return {}
        names = ["action", *self.actor.input.groups]
        names += [name for name in self.critics.input.groups if name in self.spec.mirror]
        return {name: reflection(self.spec, name, device=self._device) for name in names}

    def _image(self, network: ObsInput) -> Tensor:
        """The mirror image of what a network reads of the rollout, (T, N, X)."""
        obs = self._rollout.obs
        return network.of({name: self._mirrors[name](obs[name]) for name in network.groups})

    def _named(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A number a head becomes one number each, "name/head"."""
        named: dict[str, Tensor] = {}
        for name, value in values.items():
            if value.dim() == 0:
                named[name] = value
            else:
                heads = zip(self.spec.heads, value.unbind(), strict=True)
                named |= {f"{name}/{head}": x for head, x in heads}
        return named

    def _settings(self) -> dict[str, Tensor]:
        return {
            "std": self.actor.std().detach().mean(),
            "actor_learning_rate": self._actor_optimiser.rate.clone(),
            "skipped": torch.zeros((), device=self._device),
        }

    def _skipped(self) -> Metrics:
        self._rollout.clear()
        self._critic_memory = self.critics.forgotten(self._num_envs)
        self._explorer.forget_not_finite()
        return {"skipped": torch.ones((), device=self._device)}

    def _limb_mix(self) -> Tensor | None:
        if self.cfg.combine != "mixing":
            return None
        others = min(1.0, self._iteration / self.cfg.mixing_iterations)
        return advantages.limb_mix(self._limbs, self.spec.heads, others).to(self._device)

    def state_dict(self) -> dict[str, Any]:
        """Everything between two updates; a rollout under way is left out."""
        memory = {**self._explorer.memory}
        if self._critic_memory is not None:
            memory["critics"] = self._critic_memory
        state: dict[str, Any] = {
            "actor": self.actor.state_dict(),
            "critics": self.critics.state_dict(),
            "actor_optimiser": self._actor_optimiser.state_dict(),
            "critic_optimiser": self._critic_optimiser.state_dict(),
            "memory": memory,
        }
        copies = {k: {name: x.clone() for name, x in part.items()} for k, part in state.items()}
        return copies | {"generator": self._generator.get_state(), "iteration": self._iteration}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.actor.load_state_dict(state["actor"])
        self.critics.load_state_dict(state["critics"])
        self._actor_optimiser.load_state_dict(state["actor_optimiser"])
        self._critic_optimiser.load_state_dict(state["critic_optimiser"])
        memory = on_device(state["memory"], self._device)
        self._critic_memory = memory.pop("critics", None)
        self._explorer.memory = memory
        set_generator(self._generator, state["generator"])
        self._iteration = int(state["iteration"])
        self._rollout.clear()
