"""How much of itself a client should trust: a mixture of its own estimate and the mean of all, where teachers differ.

    u_m  =  v + r_m,    r_m ~ N(0, rho^2 I)      what client m should learn
    l_m  =  u_m + e_m,  e_m ~ N(0, s^2 I)        what it learns alone: noise over its few examples
    g    =  1/M sum_m l_m                        what all learn together

    error of  a l_m + (1 - a) g,  a coordinate:

        (a + (1-a)/M)^2 s^2  +  (1-a)^2 (1 - 1/M)^2 rho^2  +  (1-a)^2 (M-1)/M^2 (rho^2 + s^2)

Alone (a = 1) a client pays the variance of its data, s^2; the mean (a = 0) costs it about that of the devices, rho^2.
The best share is a* = rho^2 / (rho^2 + s^2), whatever the number of devices, and its error is below both:

        s^2 (1 - (1 - 1/M) s^2 / (rho^2 + s^2))

Reference: Liang et al., Think locally, act globally, 2020, https://arxiv.org/abs/2001.01523 (the model); the error is
exact, from the covariances of l_m and g.
"""

from __future__ import annotations

import math

from ..errors import require


def mixture_error(share: float, devices: int, device_variance: float, data_variance: float) -> float:
    """The expected squared error, a coordinate, of `share` times a client's own estimate and the rest the mean.

    >>> round(mixture_error(0.4, 10, 0.5, 0.3), 4)
    0.2352
    """
    _check(devices, device_variance, data_variance)
    rest, other = 1 - share, 1 - 1 / devices
    own = (share + rest / devices) ** 2 * data_variance
    away = (rest * other) ** 2 * device_variance
    others = rest**2 * (devices - 1) / devices**2 * (device_variance + data_variance)
    return own + away + others


def best_share(device_variance: float, data_variance: float) -> float:
    """The share of its own estimate with which a client errs least, the same for every number of devices.

    >>> best_share(0.5, 0.3)
    0.625
    """
    _check(1, device_variance, data_variance)
    both = device_variance + data_variance
    require(both > 0, "where devices are alike and data have no noise, every share is as good: nothing is best")
    return device_variance / both


def least_error(devices: int, device_variance: float, data_variance: float) -> float:
    """The error at the best share.

    >>> round(least_error(10, 0.5, 0.3), 5)
    0.19875
    """
    share = best_share(device_variance, data_variance)
    return data_variance * (1 - (1 - 1 / devices) * (1 - share))


def _check(devices: int, device_variance: float, data_variance: float) -> None:
    require(devices >= 1, f"there must be at least 1 device, got {devices}")
    for what, value in (("device_variance", device_variance), ("data_variance", data_variance)):
        require(0 <= value < math.inf, f"{what} must be >= 0, got {value}")
