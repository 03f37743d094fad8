"""What is known before anything is trained: how fast neighbours agree, and when averaging less often is safe.

    zeta      = max(|lambda_2|, |lambda_K|) of a symmetric doubly stochastic mixing
    penalty   = (1 + zeta^2) / (1 - zeta^2) tau - 1
    bound     = 2 (F(u_1) - F_inf) / (eta T) + eta L sigma^2 / K + eta^2 L^2 sigma^2 penalty,   eta = sqrt(K / T) / L
    T_min     = K^3 penalty^2                   from here on the last term is at most the middle one

Symbols: K clients, tau local steps between averagings, T steps in all, L smoothness, sigma^2 variance of gradients.
The bound is for unbiased gradients of *one* objective: it says nothing about clients whose data are not alike.

Reference: Wang and Joshi, Cooperative SGD, 2018, https://arxiv.org/abs/1808.07576
"""

import math
from dataclasses import dataclass

from ...errors import require
from .decomposition import plan_for
from .gossip import lambda_2, weights_for, zeta
from .networks import Complete, ErdosRenyi, Network, Ring, Torus, graph_for


def penalty(tau: int, zeta: float) -> float:
    """What local steps and slow consensus add to the error: (1 + zeta^2) / (1 - zeta^2) tau - 1."""
    require(tau >= 1, f"tau is a number of local steps and must be at least 1, got {tau}")
    require(0 <= zeta <= 1, f"zeta must be in [0, 1], got {zeta}")
    return math.inf if zeta == 1 else (1 + zeta**2) / (1 - zeta**2) * tau - 1


def minimal_steps(clients: int, tau: int, zeta: float) -> float:
    """T_min = K^3 penalty^2, rounded up: steps from which on the rate is that of full averaging; inf: never."""
    require(clients >= 1, f"there must be at least 1 client, got {clients}")
    wanted = clients**3 * penalty(tau, zeta) ** 2
    return wanted if math.isinf(wanted) else float(math.ceil(wanted * (1 - 1e-12)))


@dataclass(frozen=True)
class Advice:
    """What theory says about a graph, in numbers and in words."""

    clients: int
    edges: int
    density: float
    zeta: float
    lambda_2: float
    tau: int
    steps: float  # T_min at tau
    rows: tuple[tuple[str, int, float, float, float], ...]  # graph, edges, zeta, T_min at 1, T_min at tau
    budgets: tuple[tuple[float, float, float, float], ...]  # budget, rho, rho of periodic, matchings a round
    words: tuple[str, ...]


def advise(network: Network, n: int, tau: int = 1, steps: int | None = None) -> Advice:
    """What to take: local steps, density and budget, for n clients on a graph and T `steps`, if they are known."""
    graph = graph_for(network, n)
    mine, edges = zeta(weights_for(network, n)), graph.number_of_edges()
    density = 2 * edges / (n * (n - 1)) if n > 1 else 1.0
    wanted = minimal_steps(n, tau, mine)
    rows = []
    for name, other in _rivals(network, n):
        z = zeta(weights_for(other, n))
        rows.append((name, graph_for(other, n).number_of_edges(), z, minimal_steps(n, 1, z), minimal_steps(n, tau, z)))
    budgets = []
    for budget in (1.0, 0.5, 0.25, 0.1) if 2 <= n <= 128 else ():
        plan = plan_for(network, n, budget)
        budgets.append((budget, plan.rho, plan_for(network, n, budget, "periodic").rho, plan.expected_matchings))
    words = [*_on_tau(n, tau, mine, wanted, steps), *_on_density(n, mine, density), *_on_budget(budgets)]
    return Advice(n, edges, density, mine, lambda_2(graph), tau, wanted, tuple(rows), tuple(budgets), tuple(words))


def _rivals(network: Network, n: int) -> list[tuple[str, Network]]:
    found: list[tuple[str, Network]] = [("this graph", network), ("ring", Ring())]
    if any(n % r == 0 for r in range(3, int(n**0.5) + 1)):
        found.append(("torus", Torus()))
    dense = ErdosRenyi(p=min(1.0, max(0.3, 2 * math.log(max(n, 2)) / n)))
    if n <= 1024:
        found += [(f"erdos-renyi, p = {dense.p:.2g}", dense), ("complete", Complete())]
    return found


def _on_tau(n: int, tau: int, zeta: float, wanted: float, steps: int | None) -> list[str]:
    often = "every local step" if tau == 1 else f"every {tau} local steps"
    out = [
        f"Averaging after {often} on this graph (zeta = {zeta:.4f}) is as good as full averaging from "
        f"T = {wanted:,.0f} steps on, says the bound."
    ]
    if steps is not None:
        fits = [t for t in (1, 2, 5, 10, 20, 50, 100) if minimal_steps(n, t, zeta) <= steps]
        out.append(
            f"With T = {steps:,} steps take tau up to {fits[-1]}; the bound does not cover more local steps."
            if fits
            else f"With T = {steps:,} steps not even tau = 1 is covered: take tau = 1, a denser graph, or measure."
        )
    if wanted > 1e6:
        out.append(
            "That is more than anybody runs: T grows as clients^3 / (1 - zeta)^2, so the bound is useless beyond a "
            "few dozen clients on a ring. It is sufficient, not necessary: measure before you believe it."
        )
    return out


def _on_density(n: int, zeta: float, density: float) -> list[str]:
    if n < 3:
        return []
    if zeta < 1e-9:
        return [f"At density {density:.2f} one round brings everybody together: edges can go, or tau can grow."]
    rounds = max(1, math.ceil(math.log(10) / -math.log(zeta)))
    agree = f"At density {density:.2f} disagreement shrinks tenfold in {rounds:,} round{'s' * (rounds > 1)}"
    if zeta > 0.9:
        return [f"{agree}: add edges, long ones first (graph=exponential or small-world), or keep tau at 1."]
    if zeta < 0.5 and density > 0.5:
        return [f"{agree}: edges can go, or tau can grow."]
    return [f"{agree}: neither edges nor rounds are wasted."]


def _on_budget(budgets: list[tuple[float, float, float, float]]) -> list[str]:
    if not budgets:
        return []
    full = budgets[0][1]
    least = [row for row in budgets if 1 - row[1] >= 0.98 * (1 - full)][-1]  # as fast, but for a fiftieth
    if least[0] == 1.0:
        return [
            f"MATCHA would pay for less communication with slower consensus here: rho {full:.3f} with all matchings, "
            f"{budgets[1][1]:.3f} with half of them (1 is no consensus)."
        ]
    return [
        f"MATCHA needs no more than a budget of {least[0]:g}: rho is {least[1]:.3f} there, and {full:.3f} with every "
        f"matching in every round; {least[3]:.1f} matchings a round instead of {budgets[0][3]:.0f}."
    ]
