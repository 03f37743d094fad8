"""Data made by a formula, where the truth is known: no file to find, the same numbers on every machine.

    synthetic(alpha, beta)    classification; alpha sets how unlike the clients' models are, beta their inputs
    teacher(rho)              regression; every client has its own true vector near a common one
    minority(share)           two classes, the rarer one at a few clients only
    mixture(k)                regression; k true vectors, every client has one of them
    domains(clients)          regression; one curved truth, every client sees it from another side

All draw every number by its key, so client k is the same however many clients there are.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..errors import require
from ..language import register
from ..stacks import draw
from .federation import Pool

MOST_CLIENTS = 100_000
LARGEST_CLIENT = 10_000  # the lognormal sizes have a tail that would fill the memory


def synthetic(alpha: float = 0.5, beta: float = 0.5, clients: int = 30, seed: int = 0) -> Pool:
    """Synthetic(alpha, beta): 60 inputs, 10 classes, a different linear model at every client.

        u_k ~ N(0, alpha)    W_k, b_k ~ N(u_k, 1)
        B_k ~ N(0, beta)     v_k ~ N(B_k, 1)     x ~ N(v_k, Sigma),  Sigma_jj = j^-1.2
        y = argmax softmax(W_k x + b_k)          n_k = floor(lognormal(4, 2)) + 50, at most 10,000

    alpha and beta are variances.

    Reference: Li et al., Federated optimization in heterogeneous networks, MLSys 2020, section 5.1.
    """
    _check("synthetic", alpha=alpha, beta=beta, clients=clients, seed=seed)
    n_inputs, n_classes = 60, 10
    k = torch.arange(clients)
    sizes = (4 + 2 * draw.normal(seed, "size", k)).exp().long().add(50).clamp(max=LARGEST_CLIENT)
    model = math.sqrt(alpha) * draw.normal(seed, "u", k)
    inputs = math.sqrt(beta) * draw.normal(seed, "B", k)
    # (clients, classes, inputs), (clients, classes), (clients, inputs)
    weight = model[:, None, None] + draw.normal(seed, "W", k[:, None], _grid(n_classes * n_inputs)).view(
        clients, n_classes, n_inputs
    )
    bias = model[:, None] + draw.normal(seed, "b", k[:, None], _grid(n_classes))
    mean = inputs[:, None] + draw.normal(seed, "v", k[:, None], _grid(n_inputs))
    deviation = (_grid(n_inputs).view(-1) + 1).double() ** -0.6

    xs, ys = [], []
    for client, size in enumerate(sizes.tolist()):
        counter = torch.arange(size * n_inputs).view(size, n_inputs)
        x = mean[client] + deviation * draw.normal(seed, "x", client, counter)
        ys.append((x @ weight[client].T + bias[client]).argmax(1))
        xs.append(x.float())
    owner, names = torch.repeat_interleave(k, sizes), tuple(map(str, range(clients)))
    classes = tuple(map(str, range(n_classes)))
    name = f"synthetic({alpha:g},{beta:g})"
    return Pool(name, torch.cat(xs), torch.cat(ys), classes, client=owner, clients=names)


def teacher(
    clients: int = 10, dimension: int = 20, examples: int = 50, rho: float = 0.7, noise: float = 0.5, seed: int = 0
) -> Pool:
    """Linear regression where client m's true vector is u_m = v + r_m, r_m ~ N(0, rho^2 I), v ~ N(0, I).

    x ~ N(0, I)     y = u_m . x + noise * e,  e ~ N(0, 1)
    """
    _check("teacher", clients=clients, dimension=dimension, examples=examples, seed=seed, rho=rho, noise=noise)
    m = torch.arange(clients)[:, None]
    truth = draw.normal(seed, "v", _grid(dimension)) + rho * draw.normal(seed, "r", m, _grid(dimension))
    x = draw.normal(seed, "x", m, _grid(examples * dimension)).view(clients, examples, dimension)
    y = torch.einsum("mnd,md->mn", x, truth) + noise * draw.normal(seed, "e", m, _grid(examples))
    return _pool("teacher", x, y.float())


def minority(
    clients: int = 400,
    share: float = 0.05,
    dimension: int = 50,
    examples: int = 60,
    distance: float = 2.0,
    spread: float = 2.0,
    seed: int = 0,
) -> Pool:
    """Two classes, of which the rarer one is found at a `share` of the clients only, half of their examples.

        class 0, at everybody:       x ~ N(0, I)
        class 1, at those clients:   x ~ N(distance v + spread r_k, I),   |v| = 1 common, |r_k| = 1 the client's own

    Their own directions differ, so one of them does not teach what another one needs. With share = 0.05 a fortieth of
    all examples are of class 1: always saying 0 is right 97.5 % of the time, so judge by the area under the ROC curve.
    """
    _check(
        "minority", clients=clients, share=share, dimension=dimension, examples=examples, distance=distance,
        spread=spread, seed=seed, fewest=2,
    )  # fmt: skip
    require(share <= 1, f"minority share is a share of the clients, at most 1, got {share}")
    k = torch.arange(clients)
    has = draw.uniform(seed, "has", k).argsort().argsort() < max(1, round(share * clients))
    y = (torch.arange(examples) % 2 == 1) & has[:, None]  # (clients, examples)
    common = draw.normal(seed, "v", _grid(dimension)).view(-1)
    own = draw.normal(seed, "r", k[:, None], _grid(dimension))
    center = distance * common / common.norm() + spread * own / own.norm(dim=1, keepdim=True)
    x = draw.normal(seed, "x", k[:, None], _grid(examples * dimension)).view(clients, examples, dimension)
    x = x + y[:, :, None] * center[:, None]
    name, groups = f"minority({clients},{share:g})", ("common only", "with rare")
    return _pool(name, x, y.long(), ("common", "rare"), group=has.long(), group_names=groups)


def mixture(
    k: int = 2,
    clients: int = 100,
    dimension: int = 20,
    examples: int = 50,
    apart: float = 4.0,
    noise: float = 0.5,
    seed: int = 0,
) -> Pool:
    """Linear regression in k groups: client m has the true vector u_g of its group, g = m mod k.

        u_g ~ N(0, apart^2 / (2 d) I), so |u_g - u_h| is about `apart`
        x ~ N(0, I)     y = u_g . x + noise * e,  e ~ N(0, 1)           to train on
        x = +- sqrt(d) e_j     y = u_g . x                              to test on, j = 1 .. d

    The test examples are probes: over them the mean of half the squared error of a linear model (w, b) is
    (|w - u_g|^2 + b^2) / 2, so the loss of a run tells how far every client's model is from the truth.

    Arguments:
        dimension: d.
        examples: of every client to train on.
    """
    _check(
        "mixture", k=k, clients=clients, dimension=dimension, examples=examples, seed=seed, apart=apart, noise=noise,
        probes=True,
    )  # fmt: skip
    m = torch.arange(clients)[:, None]
    group = m[:, 0] % k
    vectors = draw.normal(seed, "u", torch.arange(k)[:, None], _grid(dimension)) * (apart / math.sqrt(2 * dimension))
    x = draw.normal(seed, "x", m, _grid(examples * dimension)).view(clients, examples, dimension)
    y = torch.einsum("mnd,md->mn", x, vectors[group]) + noise * draw.normal(seed, "e", m, _grid(examples))
    axes = math.sqrt(dimension) * torch.eye(dimension, dtype=torch.float64)
    probes = torch.cat([axes, -axes])
    x, y = torch.cat([x, probes.expand(clients, -1, -1)], 1), torch.cat([y, vectors[group] @ probes.T], 1)
    test = (torch.arange(x.shape[1]) >= examples).repeat(clients)
    note = "test examples are probes without noise: twice the loss is the squared distance to the true parameters"
    names = tuple(map(str, range(k)))
    return _pool(f"mixture({k})", x, y.float(), test=test, note=note, group=group, group_names=names)


def domains(clients: int = 2, examples: int = 200, apart: float = 2.0, noise: float = 0.1, seed: int = 0) -> Pool:
    """Regression of one curved function of two inputs, of which every client sees another part.

        x ~ N(m_k, I),  m_k = apart (cos 2 pi k / m, sin 2 pi k / m)         y = |x|^2 / 4 + noise * e,  e ~ N(0, 1)

    Where client k is, y rises along m_k, and at the client across from it the other way, so that no linear model serves
    both; each has a good one of its own.
    """
    _check("domains", clients=clients, dimension=2, examples=examples, seed=seed, apart=apart, noise=noise)
    k = torch.arange(clients)[:, None]
    angle = 2 * math.pi * k.double() / clients
    mean = apart * torch.cat([angle.cos(), angle.sin()], 1)
    x = mean[:, None] + draw.normal(seed, "x", k, _grid(2 * examples)).view(clients, examples, 2)
    y = x.square().sum(-1) / 4 + noise * draw.normal(seed, "e", k, _grid(examples))
    return _pool(f"domains({clients})", x, y.float())


def _pool(name: str, x: Tensor, y: Tensor, classes: tuple[str, ...] = (), **more: Any) -> Pool:
    """A pool of x (clients, examples, d) and y (clients, examples); a `group` is that of every client."""
    clients, n = y.shape
    if "group" in more:
        more["group"] = more["group"].repeat_interleave(n)
    owner, names = torch.arange(clients).repeat_interleave(n), tuple(map(str, range(clients)))
    return Pool(name, x.flatten(0, 1).float(), y.flatten(), classes, client=owner, clients=names, **more)


def _grid(n: int) -> Tensor:
    return torch.arange(n)[None]


WHOLE = {  # numbers that are counted: the least and the most
    "clients": (1, MOST_CLIENTS), "dimension": (1, 10_000), "examples": (1, 1_000_000), "k": (1, 1000),
    "seed": (0, (1 << 63) - 1),
}  # fmt: skip


def _check(what: str, *, fewest: int = 1, probes: bool = False, **given: float) -> None:
    """Refuse what cannot be made, or would not fit; `fewest` examples; `probes`: 2 d more beside them."""
    for name, value in given.items():
        if name in WHOLE:
            least, most = WHOLE[name]
            least = max(least, fewest) if name == "examples" else least
            good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
            require(good, f"{what} {name} must be a whole number from {least} to {most:,}, got {value!r}")
        else:
            good = isinstance(value, int | float) and math.isfinite(value) and value >= 0
            require(good, f"{what} {name} must be a number of at least 0, got {value!r}; try 0.5")
    if "examples" in given:
        clients, dimension, examples = (given[name] for name in ("clients", "dimension", "examples"))
        require(
            clients * dimension * (examples + 2 * dimension * probes) <= 1 << 31,
            f"{what}: {clients} clients x {examples} examples x {dimension} numbers are too many; ask for fewer",
        )


MADE = "synthetic(alpha,beta): 60 inputs, 10 classes, a linear model of its own at each client"
register(Pool, "synthetic", synthetic, about=MADE)
register(Pool, "minority", minority, about="minority(clients,share): two classes, the rarer one at a few clients only")
register(Pool, "teacher", teacher, about="linear regression, each client's true vector near a common one")
register(Pool, "mixture", mixture, about="mixture(k): linear regression, k true vectors, each client has one of them")
register(
    Pool, "domains", domains, about="domains(clients): regression of a curved truth, seen by each from another side"
)
