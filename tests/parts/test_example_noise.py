"""DP-SGD's two halves: no example counts for more than C, and the noise is as long as it says."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import kstest

from polycentric import ExampleNoise, UsageError
from polycentric.language import part_of, spell
from polycentric.stacks.draw import bits
from support import random

LAW = settings(max_examples=60)
TYPES = st.sampled_from([torch.float32, torch.float64])


@LAW
@given(st.integers(0, 10**6), st.floats(-3, 3), st.floats(-6, 6), st.integers(1, 400), TYPES)
def test_no_gradient_is_longer_than_the_clip(
    seed: int, clip: float, size: float, width: int, dtype: torch.dtype
) -> None:
    hide, one = ExampleNoise(10**clip, 0.0), torch.ones(1, dtype=dtype)
    each = (10**size * random(seed, 1, width)).to(dtype)
    found = hide.summed(each, one).double()
    assert float(found.norm()) <= hide.clip
    if float(each.double().norm()) < 0.999 * hide.clip:
        assert torch.equal(found, each[0].double())
    else:  # it is only made shorter
        cosine = float(found @ each[0].double() / found.norm() / each.double().norm())
        assert cosine == pytest.approx(1.0, abs=1e-6) and float(found.norm()) > 0.99 * min(hide.clip, 10**size)


@LAW
@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(-2, 2), st.data())
def test_leaving_an_example_out_moves_the_mean_by_at_most_c_over_n(
    seed: int, n: int, size: float, data: st.DataObject
) -> None:
    hide, gone = ExampleNoise(0.7, 1.0), data.draw(st.integers(0, n - 1))
    each, weight = 10**size * random(seed, n + 2, 9), torch.full((n + 2,), 1 / n, dtype=torch.float64)
    weight[n:] = 0.0  # padding
    without = each.clone()
    without[gone] = 0.0
    moved = hide.summed(each, weight) - hide.summed(without, weight)
    assert float(moved.norm()) <= 0.7 / n * (1 + 1e-12)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e300])
def test_a_gradient_that_is_not_finite_counts_as_zero(bad: float) -> None:
    hide, each, weight = ExampleNoise(1.0, 1.0), random(0, 3, 5), torch.full((3,), 1 / 3, dtype=torch.float64)
    zero = each.clone()
    zero[1] = 0.0
    each[1, 2] = bad
    assert torch.equal(hide.summed(each, weight), hide.summed(zero, weight))


def test_noise_is_normal_with_the_stated_scale_and_every_step_has_its_own() -> None:
    hide, like, n = ExampleNoise(0.5, 3.0), torch.zeros(999, dtype=torch.float64), torch.tensor(8.0)
    keys = bits(0, 0, 0, "example noise", torch.arange(20))
    drawn = torch.stack([hide.drawn(key, torch.tensor(step), like, n) for key in keys for step in (0, 1, 2)])
    assert kstest((drawn / (3.0 * 0.5 / 8)).flatten().numpy(), "norm").pvalue > 1e-3
    assert float(torch.corrcoef(drawn).triu(1).abs().max()) < 5 / 999**0.5
    pairs = drawn[:, :499].flatten(), drawn[:, 500:].flatten()  # both numbers of Box and Muller's pair are used
    for one, other in (pairs, (pairs[0].abs(), pairs[1].abs())):
        assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 5 / len(one) ** 0.5
    assert hide.drawn(keys[0], torch.tensor(0), like[:1], n).shape == (1,)


@pytest.mark.parametrize(
    ("clip", "noise", "said"), [(0.0, 1.0, "clip must be positive"), (1.0, -1.0, "noise must be in")]
)
def test_values_that_mean_nothing_are_refused(clip: float, noise: float, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ExampleNoise(clip, noise)


def test_noise_without_a_clip_hides_nothing_and_is_refused() -> None:
    with pytest.raises(UsageError, match="finite clip"):
        ExampleNoise(math.inf, 1.0)


def test_it_has_words() -> None:
    made = part_of("hide", "dp-sgd(clip=2, noise=0.5)", ExampleNoise)
    assert made == ExampleNoise(2.0, 0.5)
    assert part_of("hide", spell(made, ExampleNoise), ExampleNoise) == made


def test_gradients_of_wide_models_are_held_a_few_at_a_time() -> None:
    hide = ExampleNoise(1.0, 1.0)
    assert hide.at_once(1000, 4, 10) == 10
    assert hide.at_once(1 << 20, 4, 64) == 8
    assert hide.at_once(1 << 20, 4, None) == 8
    assert hide.at_once(1 << 30, 4, 64) == 1


def test_noise_from_a_secret_is_as_long_as_it_says_and_different_in_every_step() -> None:
    """N(0, (z C / n)^2), by key, the client's own bits and the step."""
    hidden = ExampleNoise(clip=0.5, noise=3.0).secured(b"a key")
    like, key, n = torch.zeros(20_000, dtype=torch.float64), bits(1, 2), torch.tensor(10.0)
    drawn = [hidden.drawn(key, torch.tensor(step), like, n) for step in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[1], drawn[2])
    assert kstest((drawn[2] / (3.0 * 0.5 / 10)).numpy(), "norm").pvalue > 0.001
    assert (
        "key" not in repr(hidden) and hidden.summed(like[None], torch.ones(1, dtype=torch.float64)).shape == like.shape
    )
