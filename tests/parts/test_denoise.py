"""Denoisers against dense algebra: S3 to S6 of Laplacian smoothing, and the two estimators."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from polycentric import JamesStein, Laplacian, SoftThreshold, UsageError
from polycentric.parts.denoise import Denoise
from support import random


def dense(d: int, sigma: float) -> Tensor:
    """I + sigma L, the cycle's Laplacian built by adding, so that two numbers are each other's neighbours twice."""
    laplacian = torch.zeros(d, d, dtype=torch.float64)
    for i in range(d):
        for j in ((i + 1) % d, (i - 1) % d):
            laplacian[i, i] += 1
            laplacian[i, j] -= 1
    return torch.eye(d, dtype=torch.float64) + sigma * laplacian


def of(part: Denoise, g: Tensor, nu: float = 1.0, sizes: list[int] | None = None) -> Tensor:
    return part(g, torch.full((len(g),), nu, dtype=torch.float64), sizes or [g.shape[1]])


@pytest.mark.parametrize("d", [1, 2, 3, 8, 31])
@pytest.mark.parametrize("sigma", [0.0, 0.5, 3.0])
def test_smoothing_solves_the_dense_system(d: int, sigma: float) -> None:
    g = random(d, 2, d)
    found = of(Laplacian(sigma), g)
    torch.testing.assert_close(found, torch.linalg.solve(dense(d, sigma), g.T).T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.mean(1), g.mean(1), rtol=1e-12, atol=1e-12)
    eigen = torch.linalg.eigvalsh(torch.linalg.inv(dense(d, sigma)))
    assert 1 / (1 + 4 * sigma) - 1e-12 <= float(eigen.min()) and float(eigen.max()) == pytest.approx(1)
    assert bool((found.norm(dim=1) <= g.norm(dim=1) + 1e-12).all())


@pytest.mark.parametrize(("sigma", "left"), [(0.5, 0.3849), (1.0, 0.2683), (2.0, 0.1852), (3.0, 0.1493), (10.0, 0.08)])
def test_the_energy_of_noise_shrinks_as_the_formula_says(sigma: float, left: float) -> None:
    g = random(3, 4, 50_000)
    shrunk = float(of(Laplacian(sigma), g).square().sum() / g.square().sum())
    assert (1 + 2 * sigma) / (1 + 4 * sigma) ** 1.5 == pytest.approx(left, abs=5e-5)
    assert shrunk == pytest.approx(left, rel=0.03)


def test_tensor_by_tensor_or_whole_and_in_the_end_their_means() -> None:
    g = random(1, 1, 7)
    apart = of(Laplacian(1.0), g, sizes=[3, 4])
    torch.testing.assert_close(apart[:, :3], of(Laplacian(1.0), g[:, :3]))
    assert not torch.allclose(apart, of(Laplacian(1.0, whole=True), g, sizes=[3, 4]))
    torch.testing.assert_close(of(Laplacian(1e9), g), g.mean(1, keepdim=True).expand(-1, 7), rtol=1e-6, atol=1e-6)
    assert of(Laplacian(1.0), g.float()).dtype == torch.float32


def test_james_stein_and_soft_threshold_are_their_formulas() -> None:
    g = torch.tensor([[3.0, -4.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(of(JamesStein(), g, 2.0), g * (1 - 2 * 4 / 25))
    assert float(of(JamesStein(), g, 10.0).abs().max()) == 0  # never beyond zero
    bound = 1.5 * math.sqrt(2 * math.log(4))
    torch.testing.assert_close(of(SoftThreshold(), g, 1.5), torch.tensor([[3 - bound, bound - 4, 0, 0]]).double())
    for part in (JamesStein(), SoftThreshold()):
        assert torch.equal(of(part, g, 0.0), g)
        noise, signal = random(5, 20, 1000), random(6, 20, 1000) * (torch.arange(1000) < 5)
        assert float((of(part, signal + noise) - signal).norm()) < 0.6 * float(noise.norm())


def test_a_negative_strength_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Laplacian.sigma must be in \[0, inf\), got -1.0; try 1"):
        Laplacian(-1.0)
