"""The error of a mixture of a client's own estimate and everybody's, against simulation and its own limits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers

from polycentric import UsageError
from polycentric.topology.mixture import best_share, least_error, mixture_error

variances = floats(0.01, 10)


@pytest.mark.parametrize("share", [0.0, 0.4, 0.625, 1.0])
def test_the_formula_is_what_a_simulation_finds(share: float) -> None:
    devices, rho, s = 10, 0.5, 0.3
    draw = torch.Generator().manual_seed(0)
    r = rho**0.5 * torch.randn(40_000, devices, generator=draw, dtype=torch.float64)
    learned = r + s**0.5 * torch.randn(40_000, devices, generator=draw, dtype=torch.float64)
    mixed = share * learned[:, 0] + (1 - share) * learned.mean(1)
    found = float((mixed - r[:, 0]).square().mean())
    assert found == pytest.approx(mixture_error(share, devices, rho, s), rel=0.03)


def test_the_values_of_one_case() -> None:
    assert best_share(0.5, 0.3) == 0.625
    assert least_error(10, 0.5, 0.3) == pytest.approx(0.19875, abs=1e-12)
    assert mixture_error(0.4, 10, 0.5, 0.3) == pytest.approx(0.2352, abs=1e-12)


@given(integers(1, 1000), variances, variances, floats(0, 1))
def test_the_best_share_is_best_and_alone_and_together_cost_what_they_cost(
    devices: int, rho: float, s: float, share: float
) -> None:
    best = mixture_error(best_share(rho, s), devices, rho, s)
    assert best == pytest.approx(least_error(devices, rho, s), rel=1e-9)
    assert best <= mixture_error(share, devices, rho, s) * (1 + 1e-12)
    assert mixture_error(1.0, devices, rho, s) == pytest.approx(s, rel=1e-12)
    assert mixture_error(0.0, 10**7, rho, s) == pytest.approx(rho, rel=1e-3)


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 device, got 0"):
        mixture_error(0.5, 0, 1.0, 1.0)
    with pytest.raises(UsageError, match="data_variance must be >= 0, got -1"):
        best_share(1.0, -1.0)
    with pytest.raises(UsageError, match="every share is as good"):
        best_share(0.0, 0.0)
