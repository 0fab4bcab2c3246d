import math
from collections.abc import Mapping
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence

from robo_rl.api import Mirror
from robo_rl.nets import gaussian
from robo_rl.nets.actor import Actor, ActorPolicy
from robo_rl.nets.critics import Critics
from robo_rl.nets.mlp import MLP, BatchedMLP
from robo_rl.nets.normaliser import Normaliser
from robo_rl.nets.obs_input import ObsInput
from robo_rl.nets.optimiser import Optimiser
from robo_rl.nets.recurrent import BatchedGRU
from robo_rl.nets.symmetry import Reflection, reflection


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def actor_of(worlds: ModuleType, groups: tuple[str, ...] = ("actor",), **kinds: int) -> Actor:
    return Actor(
        worlds.Points(4).spec,
        groups,
        hidden=(16, 8),
        activation="elu",
        frame_features=kinds.get("frame_features", 0),
        gru=kinds.get("gru", 0),
        initial_std=0.5,
        min_std=0.1,
        generator=seeded(),
    )


def separate(batched: BatchedMLP, k: int, x: Tensor) -> Tensor:
    """Network k by itself."""
    last = len(batched.weights) - 1
    for i, (weight, bias) in enumerate(zip(batched.weights, batched.biases, strict=True)):
        x = F.linear(x, weight[k].T, bias[k, 0])
        x = F.elu(x) if i < last else x
    return x


@pytest.mark.parametrize("product", [None, torch.baddbmm])
def test_batched_networks_are_separate_ones_in_value_and_gradient(product: None) -> None:
    batched = BatchedMLP(3, (5, 16, 8, 1), "elu", generator=seeded())
    x, wanted = torch.randn(2, 40, 5, generator=seeded(1))
    wanted = wanted[:, :3].T.unsqueeze(-1)
    parameters = list(batched.parameters())
    if product is None:
        got = batched(x)
    else:
        weights, biases = list(batched.weights), list(batched.biases)
        got = batched._layers(x.expand(3, -1, -1), weights, biases, product)
    want = torch.stack([separate(batched, k, x) for k in range(3)])
    torch.testing.assert_close(got, want)
    gradients = torch.autograd.grad((got - wanted).square().sum(), parameters)
    wants = torch.autograd.grad((want - wanted).square().sum(), parameters)
    for gradient, expected in zip(gradients, wants, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


def test_first_weights_come_from_the_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = MLP((4, 8, 2), "elu", generator=seeded())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    two = MLP((4, 8, 2), "elu", generator=seeded())
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b) and a.abs().max() <= 1 / math.sqrt(4)


def test_a_batched_gru_is_separate_torch_ones() -> None:
    gru = BatchedGRU(2, 3, 5, generator=seeded())
    x, memory = torch.randn(7, 3, generator=seeded(1)), torch.randn(2, 7, 5, generator=seeded(2))
    got = gru(x, memory)
    for k in range(2):
        cell = nn.GRUCell(3, 5)
        with torch.no_grad():
            cell.weight_ih.copy_(gru.weight_x[k].T)
            cell.bias_ih.copy_(gru.bias_x[k, 0])
            cell.weight_hh.copy_(gru.weight_h[k].T)
            cell.bias_hh.copy_(gru.bias_h[k, 0])
        torch.testing.assert_close(got[k], cell(x, memory[k]))


def test_an_unrolled_gru_forgets_where_an_episode_starts() -> None:
    gru = BatchedGRU(1, 3, 5, generator=seeded())
    x, memory = torch.randn(6, 2, 3, generator=seeded(1)), torch.ones(1, 2, 5)
    starts = torch.zeros(6, 2, dtype=torch.bool)
    starts[3, 1] = True
    got = gru.unroll(x, memory, starts)
    for t in range(6):
        memory = gru(x[t], torch.where(starts[t].unsqueeze(-1), 0.0, memory))
        torch.testing.assert_close(got[t], memory)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_merged_statistics_are_those_of_all_samples(offset: float) -> None:
    x = torch.randn(10, 50, 3, generator=seeded(), dtype=torch.float64) + offset
    normaliser = Normaliser(3)
    assert torch.equal(normaliser(x.float()), x.float())
    for part in x.float():
        normaliser.merge(part)
    flat = x.float().double().flatten(0, 1)
    torch.testing.assert_close(normaliser.mean, flat.mean(0))
    torch.testing.assert_close(normaliser.var, flat.var(0, correction=0), rtol=1e-6, atol=0)
    assert normaliser.count == 500
    got = normaliser(x.float()).flatten(0, 1)
    assert got.mean(0).abs().max() < 1e-2 and (got.std(0) - 1).abs().max() < 1e-2


def test_statistics_still_move_after_a_billion_samples() -> None:
    normaliser = Normaliser(1)
    normaliser.merge(torch.zeros(4, 1))
    normaliser.count.fill_(1e9)
    normaliser.merge(torch.ones(1, 1))
    assert normaliser.count == 1e9 + 1 and normaliser.mean == pytest.approx(1e-9)


def test_a_feature_that_never_varied_is_not_blown_up() -> None:
    normaliser = Normaliser(1)
    normaliser.merge(torch.full((100, 1), 3.0))
    assert normaliser(torch.tensor([3.01])).item() == pytest.approx(1.0, rel=1e-3)


def test_std_never_falls_below_its_floor_and_can_rise_from_it() -> None:
    std = gaussian.StateFreeStd(2, 0.5, 0.1)
    torch.testing.assert_close(std().detach(), torch.full((2,), 0.5))
    optimiser = torch.optim.SGD(std.parameters(), lr=10.0)
    for _ in range(5):
        optimiser.zero_grad()
        std().sum().backward()
        optimiser.step()
    assert (std() >= 0.1).all()
    std.excess.data.fill_(-3.0)
    optimiser.zero_grad()
    (-std().sum()).backward()
    optimiser.step()
    assert (std() > 0.14).all()


def test_densities_are_those_of_torch_distributions() -> None:
    mean, old_mean, action = torch.randn(3, 6, 4, generator=seeded())
    std, old_std = 0.1 + torch.rand(2, 4, generator=seeded())
    now, old = Independent(Normal(mean, std), 1), Independent(Normal(old_mean, old_std), 1)
    density = now.log_prob(action)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(gaussian.log_prob(action, mean, std).sum(-1), density)
    torch.testing.assert_close(gaussian.entropy(std), now.entropy()[0])  # type: ignore[no-untyped-call]
    got = gaussian.kl(old_mean, old_std, mean, std)
    torch.testing.assert_close(got, kl_divergence(old, now))


def test_groups_are_normalised_flattened_and_put_side_by_side(worlds: ModuleType) -> None:
    env = worlds.Points(50)
    both = ObsInput(env.spec, ("positions", "actor"))
    obs = {
        "positions": 5 + torch.randn(50, 3, 2, generator=seeded()),
        "actor": torch.randn(50, 4, generator=seeded()),
    }
    want = torch.cat([obs["positions"].flatten(1), obs["actor"]], 1)
    assert both.size == 10 and torch.equal(both.of(obs), want)
    both.merge(obs)
    newest = obs["positions"][:, -1]
    want = (obs["positions"] - newest.mean(0)) / newest.std(0, correction=0)
    torch.testing.assert_close(both.of(obs)[:, :6], want.flatten(1))


def test_an_unknown_group_is_named_with_the_nearest(worlds: ModuleType) -> None:
    with pytest.raises(ValueError, match="'position', only actor, positions; did you mean"):
        ObsInput(worlds.Points(1).spec, ("position",))


KINDS: list[tuple[tuple[str, ...], Mapping[str, int]]] = [
    (("actor",), {}),
    (("actor",), {"gru": 6}),
    (("positions",), {}),
    (("actor", "positions"), {"frame_features": 5}),
    (("positions",), {"frame_features": 5, "gru": 6}),
]


@pytest.mark.parametrize(("groups", "kinds"), KINDS)
def test_a_policys_graph_does_what_it_does(
    worlds: ModuleType, groups: tuple[str, ...], kinds: Mapping[str, int]
) -> None:
    policy = ActorPolicy(actor_of(worlds, groups, **kinds), device="cpu", seed=0)
    env, graph = worlds.Points(4), policy.graph()
    assert policy.obs_groups == groups
    obs = env.reset()
    memory = [x.expand(4, -1) for x in policy.memory.values()]
    for _ in range(3):
        action = policy.act(obs)
        want, *memory = graph(*(obs[name] for name in groups), *memory)
        assert torch.equal(action, want) and action.shape == (4, 2)
        assert all(torch.equal(a, b) for a, b in zip(policy.memory.values(), memory, strict=True))
        obs = env.step(action).obs


@pytest.mark.parametrize(("groups", "kinds"), KINDS)
def test_a_recorded_sequence_gives_the_means_acted_with(
    worlds: ModuleType, groups: tuple[str, ...], kinds: Mapping[str, int]
) -> None:
    actor = actor_of(worlds, groups, **kinds)
    policy, env = ActorPolicy(actor, device="cpu", seed=0), worlds.Points(4)
    obs, inputs, means, starts = env.reset(), [], [], []
    policy.reset(torch.ones(4, dtype=torch.bool))
    ended = torch.zeros(4, dtype=torch.bool)
    for _ in range(60):  # an episode has 40 steps
        inputs.append(actor.input.of(obs))
        starts.append(ended)
        means.append(policy.act(obs))
        step = env.step(means[-1])
        obs, ended = step.obs, step.truncated
        policy.reset(ended)
    memory = torch.zeros(1, 4, 6) if "gru" in kinds else None
    got = actor.mean(torch.stack(inputs), memory, torch.stack(starts))
    torch.testing.assert_close(got, torch.stack(means))


def test_a_policy_forgets_where_it_is_told_to(worlds: ModuleType) -> None:
    policy, env = ActorPolicy(actor_of(worlds, gru=6), device="cpu", seed=0), worlds.Points(4)
    obs = env.reset()
    first = policy.act(obs)
    assert not torch.allclose(policy.act(obs), first)
    policy.reset(torch.tensor([True, False, True, False]))
    again = policy.act(obs)
    torch.testing.assert_close(again[::2], first[::2])
    assert not torch.allclose(again[1::2], first[1::2])
    with pytest.raises(ValueError, match=r"remembers 4 .* act in 3; call reset"):
        policy.act({"actor": obs["actor"][:3]})
    policy.reset()
    torch.testing.assert_close(policy.act({"actor": obs["actor"][:3]}), first[:3])


def test_exploration_is_around_the_mean_and_the_seeds_own(worlds: ModuleType) -> None:
    actor = actor_of(worlds)
    one, two = (ActorPolicy(actor, device="cpu", seed=3) for _ in range(2))
    obs = {"actor": torch.zeros(20000, 4)}
    action = one.act(obs, explore=True)
    assert torch.equal(action, two.act(obs, explore=True))
    assert not torch.equal(action, two.act(obs, explore=True))
    torch.testing.assert_close(action.mean(0), one.act(obs)[0], atol=0.02, rtol=0)
    torch.testing.assert_close(action.std(0), torch.full((2,), 0.5), atol=0.02, rtol=0)


@pytest.mark.parametrize("gru", [0, 6])
def test_critics_judge_a_rollout_as_they_judge_step_by_step(worlds: ModuleType, gru: int) -> None:
    env = worlds.Points(3)
    critics = Critics(
        env.spec, ("actor",), hidden=(16,), activation="elu", gru=gru, generator=seeded()
    )
    obs, final = torch.randn(2, 5, 3, 4, generator=seeded(1))
    final[:-1] = obs[1:]
    ended = torch.zeros(5, 3, dtype=torch.bool)
    ended[1, 0] = ended[2, 2] = True
    final[1, 0] = final[2, 2] = 4.0  # what followed there is not the next episode's beginning
    starts = torch.cat([torch.zeros(1, 3, dtype=torch.bool), ended[:-1]])
    memory = critics.forgotten(3)
    value, next_value, after = critics.of_rollout(obs, {"actor": final}, ended, memory, starts)
    for t in range(5):
        if gru:
            assert critics.gru is not None and memory is not None
            memory = critics.gru(obs[t], torch.where(starts[t].unsqueeze(-1), 0.0, memory))
            here = critics.mlp(memory).squeeze(-1).T
            follows = critics.mlp(critics.gru(final[t], memory)).squeeze(-1).T
        else:
            here, follows = critics.value({"actor": obs[t]}), critics.value({"actor": final[t]})
        torch.testing.assert_close(value[t], here)
        torch.testing.assert_close(next_value[t], follows)
    if gru:
        assert after is not None and memory is not None
        torch.testing.assert_close(after, memory)
        torch.testing.assert_close(critics.value({"actor": obs[0]}), value[0])


def test_each_networks_gradient_is_clipped_by_itself() -> None:
    parameter = nn.Parameter(torch.zeros(2, 3))
    optimiser = Optimiser([parameter], rate=0.1, max_norm=1.0, rows=2)
    gradient = torch.tensor([[30.0, 40.0, 0.0], [0.0, 0.3, 0.4]])
    parameter.grad = gradient.clone()
    torch.testing.assert_close(optimiser.step(), torch.tensor([50.0, 0.5]))
    first_moment = optimiser.state_dict()["exp_avg/0"]
    want = 0.1 * torch.tensor([[0.6, 0.8, 0.0], [0.0, 0.3, 0.4]])
    torch.testing.assert_close(first_moment, want)


def test_the_optimiser_is_adam_and_its_rate_can_be_moved() -> None:
    mine, theirs = (nn.Parameter(torch.ones(3)) for _ in range(2))
    optimiser = Optimiser([mine], rate=0.1, max_norm=1e9)
    adam = torch.optim.Adam([theirs], lr=0.1)
    for step in range(5):
        mine.grad, theirs.grad = (torch.tensor([1.0, -2.0, float(step)]) for _ in range(2))
        optimiser.step()
        adam.step()
        torch.testing.assert_close(mine, theirs)
        optimiser.rate.mul_(0.5)
        adam.param_groups[0]["lr"] *= 0.5


def test_a_mirror_is_its_own_inverse_and_fits_its_vector(worlds: ModuleType) -> None:
    swap = Reflection(Mirror(index=(1, 0, 2), sign=(1.0, 1.0, -1.0)), 3, name="x", device="cpu")
    assert swap(torch.tensor([1.0, 2.0, 3.0])).tolist() == [2.0, 1.0, -3.0]
    with pytest.raises(ValueError, match=r"3 indices .* has 4 numbers"):
        Reflection(Mirror(index=(1, 0, 2), sign=(1.0, 1.0, -1.0)), 4, name="x", device="cpu")
    with pytest.raises(ValueError, match="applied twice"):
        Reflection(Mirror(index=(1, 2, 0), sign=(1.0,) * 3), 3, name="x", device="cpu")
    with pytest.raises(ValueError, match="no mirror of 'camera'"):
        reflection(worlds.Points(1).spec, "camera", device="cpu")
