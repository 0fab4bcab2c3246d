import pytest
import torch
from torch import Tensor

from robo_rl.advantages import MODES, STD_FLOOR, Mode, combine, limb_mix, pcgrad


def random(heads: int, seed: int = 0) -> Tensor:
    return torch.randn(24, 200, heads, generator=torch.Generator().manual_seed(seed))


def normalised(x: Tensor) -> Tensor:
    return (x - x.mean()) / x.std()


@pytest.mark.parametrize("mode", MODES)
def test_with_one_group_every_mode_is_the_ordinary_normalised_advantage(mode: Mode) -> None:
    x = 7.0 * random(1) - 3.0
    got = combine(x, torch.tensor([2.0]), mode, mix=limb_mix(["one"], ["one"], 0.3))
    torch.testing.assert_close(got, normalised(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["normalised_sum", "conflict_filter", "pcgrad"])
def test_the_scale_of_a_group_counts_for_nothing(mode: Mode) -> None:
    x, weights = random(3), torch.tensor([1.0, 2.0, 0.5])
    scaled = x * torch.tensor([1000.0, 1.0, 0.1])
    torch.testing.assert_close(
        combine(scaled, weights, mode), combine(x, weights, mode), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("mode", MODES)
def test_the_scale_of_all_weights_counts_for_nothing(mode: Mode) -> None:
    x, weights = random(2), torch.tensor([1.0, 3.0])
    mix = limb_mix(["a", "b"], ["a", "b"], 0.5)
    torch.testing.assert_close(
        combine(x, 10 * weights, mode, mix=mix), combine(x, weights, mode, mix=mix)
    )


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_a_step_is_as_large_with_many_groups_as_with_one(heads: int) -> None:
    got = combine(random(heads), torch.arange(1.0, heads + 1), "normalised_sum")
    assert got.std().item() == pytest.approx(1.0, abs=0.03)


def test_the_weighted_sum_of_normalised_groups() -> None:
    x = random(2) * torch.tensor([1.0, 100.0])
    want = (3 * normalised(x[..., 0]) + 4 * normalised(x[..., 1])) / 5
    got = combine(x, torch.tensor([3.0, 4.0]), "normalised_sum")
    torch.testing.assert_close(got, want.unsqueeze(-1))


def test_the_raw_sum_is_what_one_critic_of_all_rewards_would_give() -> None:
    x = random(2) * torch.tensor([1.0, 100.0])
    got = combine(x, torch.ones(2), "raw_sum")
    torch.testing.assert_close(got, normalised(x.sum(-1, keepdim=True)))


def test_joint_keeps_the_groups_relative_scale() -> None:
    x = random(2) * torch.tensor([1.0, 100.0])
    got = combine(x, torch.ones(2), "joint")[..., 0]
    want = (x - x.mean()).sum(-1) / x.std() / 2**0.5
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_mixing_starts_with_a_limbs_own_groups_and_ends_with_all() -> None:
    x, heads, limbs = random(3), ["leg", "arm", "contact"], ["leg", "arm"]
    joint = normalised(x)
    apart = combine(x, torch.ones(3), "mixing", mix=limb_mix(limbs, heads, 0.0))
    torch.testing.assert_close(apart[..., 0], (joint[..., 0] + joint[..., 2]) / 2**0.5)
    torch.testing.assert_close(apart[..., 1], (joint[..., 1] + joint[..., 2]) / 2**0.5)
    half = combine(x, torch.ones(3), "mixing", mix=limb_mix(limbs, heads, 0.5))
    want = (joint[..., 0] + 0.5 * joint[..., 1] + joint[..., 2]) / 1.5
    torch.testing.assert_close(half[..., 0], want)
    whole = combine(x, torch.ones(3), "mixing", mix=limb_mix(limbs, heads, 1.0))
    torch.testing.assert_close(whole[..., 0], whole[..., 1])


def test_mixing_without_limbs_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs mix"):
        combine(random(2), torch.ones(2), "mixing")


def test_steps_on_which_groups_cancel_count_for_nothing() -> None:
    x = random(2)
    got = combine(x, torch.ones(2), "conflict_filter")[..., 0]
    a, b = normalised(x[..., 0]), normalised(x[..., 1])
    cancel = (a * b < 0) & ((a + b).abs() < 0.8 * (a.abs() + b.abs()))
    assert 0.1 < cancel.float().mean() < 0.5
    assert (got[cancel] == 0).all() and (got[~cancel] != 0).all()
    assert got[~cancel].mean().abs() < 1e-5
    assert got[~cancel].std().item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("mode", [m for m in MODES if m != "mixing"])
def test_rounding_in_a_constant_group_stays_small(mode: Mode) -> None:
    constant = 50.0 + 1e-3 * STD_FLOOR * random(1, seed=1).double()
    got = combine(constant, torch.ones(1, dtype=torch.float64), mode)
    assert got.abs().max() < 1e-2


def test_a_constant_group_leaves_the_others_as_they_are() -> None:
    x = torch.cat([random(1), torch.full((24, 200, 1), 3.0)], -1)
    got = combine(x, torch.ones(2), "normalised_sum")
    torch.testing.assert_close(got, normalised(x[..., :1]) / 2**0.5)


def test_pcgrad_takes_from_each_gradient_what_opposes_the_other() -> None:
    g = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
    # (1,0) loses its part along (-1,1): (1/2,1/2); (-1,1) its part along (1,0): (0,1).
    torch.testing.assert_close(pcgrad(g, torch.tensor([0, 1])), torch.tensor([0.5, 1.5]))


def test_pcgrad_adds_gradients_that_agree() -> None:
    g = torch.rand(4, 50, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(pcgrad(g, torch.tensor([2, 0, 3, 1])), g.sum(0))


def test_pcgrad_of_two_opposes_neither_and_survives_a_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        g = torch.randn(2, 5, generator=generator)
        assert (g @ pcgrad(g, torch.tensor([0, 1])) > -1e-5).all()
    assert pcgrad(torch.zeros(2, 5), torch.tensor([0, 1])).tolist() == [0.0] * 5
