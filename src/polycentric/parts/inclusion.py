"""How likely each of many is among the first n drawn one after another, without replacement.

Drawing with chances proportional to v_k, without replacement, is waiting for the first n of independent arrivals with
rates v_k: client k is drawn when it arrives at a time t at which fewer than n others have arrived,

    pi_k = integral v_k exp(-v_k t)  P(fewer than n of the others before t)  dt,      sum_k pi_k = n

How many of the others there are is a sum of coins, counted client by client from both ends, so that everyone can be
left out once at the price of counting all twice. The integral is a sum over log t, where the integrand is smooth and
vanishes at both ends. A function of rates and n alone; neither (1 - p_k)^n nor any other form with replacement.
"""

import math

import torch
from torch import Tensor

DRAWN = 100  # from so many draws on the n-th arrival is taken to be at one known time
HELD = 20_000_000  # numbers held at once


def arrive_first(log_rate: Tensor, n: int) -> Tensor:
    """pi_k, the chance to be among the first n to arrive; `log_rate` (clients,) float64, any finite numbers.

    >>> arrive_first(torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64).log(), 1)
    tensor([0.2500, 0.2500, 0.5000], dtype=torch.float64)
    """
    many = len(log_rate)
    if not 0 < n < many:
        return torch.full((many,), float(n > 0), dtype=torch.float64)
    log_rate = log_rate - log_rate.sort(descending=True).values[n - 1]  # nothing overflows: the n-th is at 0
    if n >= DRAWN:
        return -torch.expm1(-_shifted(log_rate, n).exp())
    log_rate = _shifted(log_rate, n - 0.5).clamp(max=12)  # who is faster than that is drawn anyhow
    rate, there = log_rate.exp(), -torch.expm1(-log_rate.exp())
    width = float((there * (1 - there)).sum().sqrt() / (rate * (1 - there)).sum())  # of the n-th arrival, in log t
    step = min(0.25, width)
    moments = torch.arange(-24, 5, step, dtype=torch.float64)
    pieces = torch.split(moments, max(1, HELD // (many * n)))
    return step * sum((_summed(log_rate, n, piece) for piece in pieces), start=torch.zeros_like(log_rate))


def _shifted(log_rate: Tensor, expected: float) -> Tensor:
    """The same rates, with time measured so that so many are expected before t = 1."""
    low, high = -math.log(2 * len(log_rate)) - 1, 45.0
    for _ in range(60):
        middle = (low + high) / 2
        early = float(-torch.expm1(-(log_rate + middle).exp()).sum()) < expected
        low, high = (middle, high) if early else (low, middle)
    return log_rate + high


def _summed(log_rate: Tensor, n: int, moments: Tensor) -> Tensor:
    """The integrand of every client, summed over moments log t."""
    rate = (log_rate[:, None] + moments).exp()
    coin, tail = -torch.expm1(-rate)[:, :, None], (-rate).exp()[:, :, None]
    before = torch.zeros(len(rate), len(moments), n, dtype=torch.float64)  # P(so many of those before k)
    before[0, :, 0] = 1
    for k in range(len(rate) - 1):
        before[k + 1] = _counted(before[k], coin[k], tail[k])
    after = before[0].clone()  # P(so many of those behind k)
    out = torch.empty(len(rate), dtype=torch.float64)
    for k in reversed(range(len(rate))):
        fewer = (before[k] * after.cumsum(1).flip(1)).sum(1)
        out[k] = (rate[k] * tail[k, :, 0] * fewer).sum()
        after = _counted(after, coin[k], tail[k])
    return out


def _counted(chances: Tensor, coin: Tensor, tail: Tensor) -> Tensor:
    """Chances of 0, 1, .. n - 1 arrivals (moments, n), with one coin more."""
    out = chances * tail
    out[:, 1:] += chances[:, :-1] * coin
    return out
