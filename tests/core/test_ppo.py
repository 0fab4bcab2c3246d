from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from robo_rl.advantages import MODES, Mode
from robo_rl.algorithms.ppo import PPO, PPOCfg
from robo_rl.api import Obs, Step

SMALL = PPOCfg(actor_hidden=(32, 32), critic_hidden=(32, 32), num_steps=8)
NAN = float("nan")


def build(cfg: PPOCfg, env: Any, seed: int = 0) -> PPO:
    return cfg.build(env.spec, num_envs=env.num_envs, device="cpu", seed=seed)


def tensors(state: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """The leaves of nested dicts by path."""
    leaves: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Mapping):
            leaves |= tensors(value, f"{where}{name}/")
        else:
            leaves[where + name] = value
    return leaves


def same(one: PPO, two: PPO, *, but: tuple[str, ...] = ()) -> bool:
    a, b = tensors(one.state_dict()), tensors(two.state_dict())
    assert a.keys() == b.keys()
    return all(
        torch.equal(x, b[name]) if isinstance(x, Tensor) else x == b[name]
        for name, x in a.items()
        if not name.startswith(but)
    )


def test_two_groups_of_unlike_scale_are_both_learnt(worlds: ModuleType) -> None:
    env = worlds.Points(128)
    ppo = build(replace(SMALL, num_steps=16, entropy=0.0), env)
    before = worlds.score(ppo.policy, worlds.Points(256, seed=1))
    worlds.train(ppo, env, 25)
    after = worlds.score(ppo.policy, worlds.Points(256, seed=1))
    assert (after > 0.25 * before).all(), (before, after)


def test_a_memory_recalls_what_was_seen_once(worlds: ModuleType) -> None:
    env = worlds.Recall(64)
    cfg = replace(SMALL, num_steps=10, gru=16, gamma=0.5, entropy=0.0)
    ppo = build(cfg, env)
    worlds.train(ppo, env, 25)
    assert worlds.score(ppo.policy, worlds.Recall(256, seed=1)).item() > -0.3  # blind: -1


def test_a_time_limit_is_not_an_end(worlds: ModuleType) -> None:
    env = worlds.Endless(32)
    ppo = build(replace(SMALL, gamma=0.9, critic_learning_rate=3e-3), env)
    worlds.train(ppo, env, 40)
    value = ppo.critics.value({"actor": torch.zeros(1, 1)}).item()
    assert value == pytest.approx(1 / (1 - 0.9), rel=0.02)  # ended at five steps: 2.4


def test_training_leaves_its_configuration_as_it_was(worlds: ModuleType) -> None:
    cfg = replace(SMALL, weights={"left": 2.0}, gammas={"right": 0.9})
    copy, env = deepcopy(cfg), worlds.Points(16)
    worlds.train(build(cfg, env), env, 2)
    assert cfg == copy


VARIANTS = [
    SMALL,
    replace(SMALL, gru=8),
    replace(SMALL, combine="pcgrad"),
    replace(SMALL, symmetry="augment", actor_obs=("positions",), frame_features=4),
]


@pytest.mark.parametrize("cfg", VARIANTS)
def test_the_same_seed_gives_the_same_parameters(cfg: PPOCfg, worlds: ModuleType) -> None:
    learners: list[PPO] = []
    for seed in (0, 0, 1):
        env = worlds.Points(16)
        torch.manual_seed(len(learners))  # which must not matter
        learners.append(build(cfg, env, seed))
        worlds.train(learners[-1], env, 2)
    assert same(learners[0], learners[1])
    assert not same(learners[0], learners[2])


@pytest.mark.parametrize("cfg", VARIANTS)
def test_a_loaded_learner_goes_on_as_the_saved_one(cfg: PPOCfg, worlds: ModuleType) -> None:
    env = worlds.Points(16)
    one = build(cfg, env)
    obs = env.reset()
    for _ in range(2):
        obs, _ = worlds.collect(one, env, obs)
        one.update()
    two = build(cfg, env, seed=5)
    two.load_state_dict(one.state_dict())
    assert same(one, two)
    twin = deepcopy(env)
    worlds.collect(one, env, obs), worlds.collect(two, twin, obs)
    one.update(), two.update()
    assert same(one, two)


@pytest.mark.parametrize("mode", MODES)
def test_with_one_group_every_mode_is_ordinary_ppo(mode: Mode, worlds: ModuleType) -> None:
    learners = []
    for combine in ("normalised_sum", mode):
        env = worlds.Points(16, scales=(1.0,))
        learners.append(build(replace(SMALL, combine=combine), env))
        worlds.train(learners[-1], env, 1)
    for a, b in zip(learners[0].actor.parameters(), learners[1].actor.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_one_update_is_that_of_the_paper(worlds: ModuleType) -> None:
    """One epoch of one minibatch against PPO written out with autograd on two plain networks."""
    env = worlds.Points(16)
    cfg = replace(SMALL, num_epochs=1, num_minibatches=1, gamma=0.9, lams={"right": 0.5})
    ppo, obs = build(cfg, env), env.reset()
    actor, critics = deepcopy(ppo.actor), deepcopy(ppo.critics)
    record: list[tuple[Tensor, Tensor, Step]] = []
    for _ in range(cfg.num_steps):
        action = ppo.act(obs)
        step = env.step(action)
        ppo.observe(step)
        record.append((obs["actor"], action, step))
        obs = step.obs
    ppo.update()

    def value(x: Tensor) -> Tensor:
        return critics.value({"actor": x})

    advantage = torch.zeros(cfg.num_steps, 16, 2)
    for n in range(16):
        tail = torch.zeros(2)
        for t in reversed(range(cfg.num_steps)):
            x, _, step = record[t]
            follows = value(step.final_obs["actor"][n])
            delta = step.reward[n] + 0.9 * follows - value(x[n])
            ended = bool(step.truncated[n])
            tail = delta + 0.9 * torch.tensor([0.95, 0.5]) * (0.0 if ended else tail)
            advantage[t, n] = tail
    advantage = advantage.detach().flatten(0, 1)
    x, action = (torch.cat([r[i] for r in record]) for i in (0, 1))  # type: ignore[misc]
    normal = torch.distributions.Normal(actor.mean(x), actor.std())
    log_prob = normal.log_prob(action).sum(-1)  # type: ignore[no-untyped-call]
    climbed = ((advantage - advantage.mean(0)) / advantage.std(0)).sum(-1) / 2**0.5
    surrogate = ((log_prob - log_prob.detach()).exp() * climbed).mean()
    entropy = normal.entropy()[0].sum()  # type: ignore[no-untyped-call]
    loss = -surrogate - cfg.entropy * entropy
    optimiser = torch.optim.Adam(actor.parameters(), lr=cfg.learning_rate)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(actor.parameters(), cfg.max_grad_norm)
    optimiser.step()
    for mine, theirs in zip(ppo.actor.parameters(), actor.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5)


def test_the_divergence_moves_the_actors_rate_alone(worlds: ModuleType) -> None:
    for desired, rises in ((1e3, True), (1e-9, False)):
        env = worlds.Points(16)
        ppo = build(replace(SMALL, desired_kl=desired, num_epochs=1), env)
        metrics, _ = worlds.train(ppo, env, 1)
        # Four minibatches, of which the first says nothing.
        want = 1e-3 * 1.5**3 if rises else 1e-3 / 1.5**3
        assert metrics["actor_learning_rate"].item() == pytest.approx(want)
        assert ppo.state_dict()["critic_optimiser"]["rate"].item() == pytest.approx(1e-3)


def test_the_actors_rate_stays_in_its_range(worlds: ModuleType) -> None:
    env = worlds.Points(16)
    cfg = replace(SMALL, desired_kl=1e-9, learning_rate_range=(5e-4, 1e-2))
    metrics, _ = worlds.train(build(cfg, env), env, 2)
    assert metrics["actor_learning_rate"].item() == pytest.approx(5e-4)


def test_pretraining_teaches_the_critics_only(worlds: ModuleType) -> None:
    env = worlds.Points(16)
    ppo = build(replace(SMALL, value_pretraining=2), env)
    before = deepcopy(ppo.state_dict())
    obs = env.reset()
    for iteration in range(3):
        obs, _ = worlds.collect(ppo, env, obs)
        ppo.update()
        now = ppo.state_dict()
        still = torch.equal(now["actor"]["mlp.0.weight"], before["actor"]["mlp.0.weight"])
        assert still == (iteration < 2)
        assert not torch.equal(now["critics"]["mlp.weights.0"], before["critics"]["mlp.weights.0"])


def test_a_group_of_weight_zero_teaches_the_actor_nothing(worlds: ModuleType) -> None:
    learners = []
    for scales in ((1.0, 1.0), (1.0, -5.0)):
        env = worlds.Points(16, scales=scales)
        learners.append(build(replace(SMALL, weights={"right": 0.0}), env))
        worlds.train(learners[-1], env, 1)
    assert same(learners[0], learners[1], but=("critic",))


def test_each_critic_learns_as_if_it_were_alone(worlds: ModuleType) -> None:
    """The left group's critic ends the same, whatever the right group is paid."""
    ends = []
    for right in (1.0, 100.0):
        env = worlds.Points(16, scales=(1.0, right))
        ppo = build(replace(SMALL, weights={"right": 0.0}), env)
        worlds.train(ppo, env, 3)
        ends.append([weight[0] for weight in ppo.critics.parameters()])
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a, b)


def asymmetry(ppo: PPO, env: Any) -> float:
    """Mean distance of the mirrored state's action from the mirrored action; all mirrors negate."""
    obs = env.reset()["actor"]
    odd = ppo.policy.act({"actor": obs}) + ppo.policy.act({"actor": -obs})
    return odd.abs().mean().item()


def test_augmented_it_learns_the_same_from_the_mirror_image(worlds: ModuleType) -> None:
    cfg = replace(SMALL, symmetry="augment", desired_kl=None, num_epochs=2)
    learners = [build(cfg, worlds.Points(16)) for _ in range(2)]
    for ppo in learners:  # critics that judge a state and its image alike: both zero
        ppo.critics.mlp.weights[-1].data.zero_()
        ppo.critics.mlp.biases[-1].data.zero_()
    for ppo, sign in zip(learners, (1.0, -1.0), strict=True):
        env = worlds.Points(16)
        obs = env.reset()
        for _ in range(cfg.num_steps):
            mean = ppo.policy.mean(obs)
            ppo._rollout.add_action(mirrored(obs, sign), sign * (mean + 0.1), sign * mean)
            step = env.step(mean + 0.1)
            seen = {"obs": mirrored(step.obs, sign), "final_obs": mirrored(step.final_obs, sign)}
            ppo._rollout.add_step(replace(step, **seen))
            obs = step.obs
        ppo.update()
    for module in ("actor", "critics"):
        a, b = (getattr(ppo, module).parameters() for ppo in learners)
        for x, y in zip(a, b, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def mirrored(obs: Obs, sign: float) -> dict[str, Tensor]:
    return {name: sign * x for name, x in obs.items()}


@pytest.mark.parametrize("symmetry", ["augment", "loss"])
def test_symmetry_straightens_a_lopsided_policy(symmetry: Any, worlds: ModuleType) -> None:
    odd = {}
    for choice in ("none", symmetry):
        env = worlds.Points(32)
        ppo = build(replace(SMALL, symmetry=choice, symmetry_weight=5.0), env)
        list(ppo.actor.mlp.parameters())[-1].data += 0.5  # the last layer's bias
        worlds.train(ppo, env, 4)
        odd[choice] = asymmetry(ppo, worlds.Points(200, seed=1))
    assert odd[symmetry] < 0.5 * odd["none"], odd


def poison(ppo: PPO, env: Any, spoil: Callable[[Step, int], Step]) -> None:
    obs = env.reset()
    for t in range(ppo.num_steps):
        step = spoil(env.step(ppo.act(obs)), t)
        ppo.observe(step)
        obs = step.obs


def nan_reward(step: Step, t: int) -> Step:
    if t == 3:
        step.reward[5, 1] = NAN
    return step


def nan_obs(step: Step, t: int) -> Step:
    if t == 2:
        step.obs["actor"][[1, 2, 9], 3] = NAN
    return step


def huge_reward(step: Step, t: int) -> Step:
    return replace(step, reward=step.reward + 1e38)


@pytest.mark.parametrize(
    ("spoil", "names"),
    [
        (nan_reward, "reward right in environments 5"),
        (nan_obs, "observation actor/velocity in environments 1, 2, 9"),
        (huge_reward, "while learning: value_loss/left, value_loss/right"),
    ],
)
@pytest.mark.parametrize("gru", [0, 8])
def test_what_is_not_finite_is_named_and_teaches_nothing(
    spoil: Any, names: str, gru: int, worlds: ModuleType
) -> None:
    env = worlds.Points(16)
    ppo = build(replace(SMALL, gru=gru), env)
    worlds.train(ppo, env, 1)
    before = ppo.state_dict()
    assert ppo.fault() == ""
    poison(ppo, env, spoil)
    metrics = ppo.update()
    assert metrics["skipped"] == 1 and names in ppo.fault(), ppo.fault()
    after = ppo.state_dict()
    for part in ("actor", "critics", "actor_optimiser", "critic_optimiser"):
        for name, x in before[part].items():
            assert torch.equal(x, after[part][name]), f"{part}/{name}"
    metrics, _ = worlds.train(ppo, env, 1)
    assert metrics["skipped"] == 0 and ppo.fault() == ""


def test_metrics_are_finite_scalars_on_the_device_by_head(worlds: ModuleType) -> None:
    env = worlds.Points(16)
    metrics, _ = worlds.train(build(SMALL, env), env, 1)
    for name in ("value_error", "explained_variance", "advantage_std", "value_target"):
        assert f"{name}/left" in metrics and f"{name}/right" in metrics
    alone = {"kl", "clip_fraction", "entropy", "std", "actor_learning_rate", "actor_grad_norm"}
    assert alone <= metrics.keys()
    for value in metrics.values():
        assert isinstance(value, Tensor) and value.dim() == 0 and value.isfinite()
        assert not value.requires_grad


def test_a_checkpoint_of_another_kind_of_device_loads(worlds: ModuleType) -> None:
    env = worlds.Points(16)
    one, two = build(SMALL, env), build(SMALL, env, seed=1)
    of_a_gpu = torch.zeros(16, dtype=torch.uint8)
    two.load_state_dict(one.state_dict() | {"generator": of_a_gpu})
    assert same(one, two, but=("generator",))


def test_metrics_are_finite_where_nothing_varies(worlds: ModuleType) -> None:
    env = worlds.Endless(16)
    metrics, _ = worlds.train(build(replace(SMALL, num_steps=1), env), env, 1)
    assert all(value.isfinite() for value in metrics.values())


def test_evaluating_its_policy_leaves_training_as_it_was(worlds: ModuleType) -> None:
    learners = []
    for evaluates in (False, True):
        env = worlds.Points(16)
        ppo, obs = build(replace(SMALL, gru=8), env), env.reset()
        for _ in range(2):
            obs, _ = worlds.collect(ppo, env, obs)
            if evaluates:
                ppo.policy.act({"actor": torch.randn(3, 4)}, explore=True)
            ppo.update()
        learners.append(ppo)
    assert same(*learners)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"gamma": 1.0}, r"gamma is 1.0; it must be in \[0, 1\)"),
        ({"gammas": {"left": -0.1}}, r"gammas\['left'\] is -0.1"),
        ({"critic_lam": 1.5}, "critic_lam is 1.5"),
        ({"num_minibatches": 0}, "num_minibatches is 0; it must be at least 1"),
        ({"initial_std": 0.05}, "initial_std is 0.05; it must be above min_std"),
        ({"learning_rate_range": (1e-2, 1e-3)}, "low <= high"),
        ({"clip_higher": 0.0}, "clip_higher is 0.0; it must be above 0"),
        ({"actor_obs": ()}, "actor_obs is empty"),
        ({"actor_hidden": (64, 0)}, "actor_hidden"),
        ({"gru": 4, "symmetry": "loss"}, "set gru=0"),
    ],
)
def test_a_number_out_of_range_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PPOCfg(**wrong)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"weights": {"lef": 1.0}}, "weights names 'lef'.* did you mean 'left'"),
        ({"weights": {"left": 0.0, "right": 0.0}}, "all 0"),
        ({"actor_obs": ("camera",)}, "no observation group 'camera'"),
        ({"num_minibatches": 1000}, "128 steps in a rollout cannot fill num_minibatches=1000"),
        ({"gru": 4, "num_minibatches": 20}, "16 environments in a rollout cannot fill"),
    ],
)
def test_what_does_not_fit_the_environment_is_refused(
    wrong: dict[str, Any], says: str, worlds: ModuleType
) -> None:
    with pytest.raises(ValueError, match=says):
        build(replace(SMALL, **wrong), worlds.Points(16))


def test_mixing_needs_to_know_whose_each_action_is(worlds: ModuleType) -> None:
    env = worlds.Points(16)
    env.spec = replace(env.spec, action=replace(env.spec.action, heads=()))
    with pytest.raises(ValueError, match=r"ActionSpec\.heads is empty"):
        build(replace(SMALL, combine="mixing"), env)
