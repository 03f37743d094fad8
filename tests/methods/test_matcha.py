"""MATCHA: matchings, probabilities, mixing weight (H1 to H9), and the numbers computed for three graphs."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from polycentric import (
    Complete,
    ErdosRenyi,
    Geometric,
    Matchings,
    Ring,
    Torus,
    UsageError,
    dpsgd,
    fedavg,
    matcha,
    nofed,
    run_round,
)
from polycentric.learn import Train
from polycentric.method import Exchange, Method
from polycentric.runs.recipes import build_method
from polycentric.runs.start import prepare
from polycentric.simulate.clock import traffic
from polycentric.topology.graphs.decomposition import (
    coloured,
    laplacian,
    mixing_weight,
    plan_for,
    probabilities,
    spectral,
)
from polycentric.topology.graphs.networks import MATCHA_8, MATCHA_16, Edges
from support import everyone, model, small

ER8, RING, ER16 = MATCHA_8, Ring(), MATCHA_16
TRAINING = {"lr": 0.1, "batch": 5, "steps": 1}


def dense(plan, coins):
    used = [part for part, on in zip(plan.matchings, coins, strict=True) if on]
    return np.eye(plan.n) - plan.alpha * sum((laplacian(part, plan.n) for part in used), np.zeros((plan.n, plan.n)))


# -- the numbers ---------------------------------------------------------------------------------------------

FULL = [  # lambda_2, lambda_m, alpha, rho with every matching in every round
    (ER8, 8, 5, 0.67002, 6.32998, 0.28571, 0.653777),
    (RING, 8, 2, 0.58579, 4.0, 0.43613, 0.554311),
    (ER16, 16, 8, 0.80582, 9.55319, 0.19307, 0.713048),
]
BUDGETS = {  # budget: (lambda_2, alpha, rho, rho of periodic); None where there is no number
    (ER8, 8): {
        1.0: (0.67002, 0.28571, 0.65378, 0.65378),
        0.75: (0.66473, 0.33294, 0.60793, 0.74033),
        0.5: (0.56120, 0.39643, 0.64398, 0.82689),
        0.25: (0.28060, 0.55399, 0.81611, 0.91344),
        0.1: (0.11224, 0.56207, 0.93679, 0.96538),
        0.02: (0.02245, 0.51155, 0.98852, 0.99308),
    },
    (RING, 8): {
        1.0: (None, None, 0.55431, 0.55431),
        0.75: (None, None, 0.66027, 0.66573),
        0.5: (None, None, 0.78391, 0.77716),
        0.25: (None, None, 0.91105, 0.88858),
        0.1: (None, None, 0.96848, 0.95543),
        0.02: (None, None, 0.99406, 0.99109),
    },
    (ER16, 16): {
        1.0: (0.80582, None, 0.71305, 0.71305),
        0.75: (0.79644, None, 0.67986, 0.78479),
        0.5: (0.66779, None, 0.67555, 0.85652),
        0.25: (0.34631, None, 0.79766, 0.92826),
        0.1: (0.13852, None, 0.92238, 0.97130),
        0.02: (0.02770, None, 0.98583, 0.99426),
    },
}
CASES = [(*graph, budget, *row) for graph, rows in BUDGETS.items() for budget, row in rows.items()]


@pytest.mark.parametrize(("network", "n", "m", "second", "largest", "alpha", "rho"), FULL)
def test_all_matchings_in_every_round(network, n, m, second, largest, alpha, rho):
    plan = plan_for(network, n, 1.0)
    values = np.linalg.eigvalsh(sum(laplacian(part, n) for part in plan.matchings))
    assert len(plan.matchings) == m
    assert (values[1], values[-1]) == (pytest.approx(second, abs=5.1e-6), pytest.approx(largest, abs=5.1e-6))
    assert plan.alpha == pytest.approx(2 / (values[1] + values[-1]), abs=1e-8)
    assert (plan.alpha, plan.rho) == (pytest.approx(alpha, abs=5.1e-6), pytest.approx(rho, abs=5.1e-7))


# lambda_2 is unique; p is known only as well as lambda_2 tells, so alpha and rho have a unit in the last place.
@pytest.mark.parametrize(("network", "n", "budget", "second", "alpha", "rho", "periodic"), CASES)
def test_the_plan_of_every_budget(network, n, budget, second, alpha, rho, periodic):
    plan = plan_for(network, n, budget)
    if second is not None:
        assert plan.lambda_2 == pytest.approx(second, abs=5.1e-6)
    if alpha is not None:
        assert plan.alpha == pytest.approx(alpha, abs=1e-5)
    assert plan.rho == pytest.approx(rho, abs=1e-5)
    assert plan_for(network, n, budget, "periodic").rho == pytest.approx(periodic, abs=5.1e-6)
    assert plan.gap < 1e-8


def test_the_best_probabilities_at_half_the_budget():
    assert plan_for(ER8, 8, 0.5).p == pytest.approx([0.984, 0, 0.758, 0.758, 0], abs=1e-3)
    assert plan_for(RING, 8, 0.5).p == pytest.approx([0.5, 0.5], abs=1e-6)


def test_matcha_does_not_always_beat_periodic():
    assert plan_for(RING, 8, 0.5).rho > plan_for(RING, 8, 0.5, "periodic").rho
    assert plan_for(ER8, 8, 0.5).rho < plan_for(ER8, 8, 0.5, "periodic").rho


# -- matchings (H3) ------------------------------------------------------------------------------------------

random_graphs = st.builds(networkx.gnp_random_graph, st.integers(1, 14), st.floats(0, 1), st.integers(0, 10**6))


def assert_coloured(graph):
    parts = coloured(graph)
    found = sorted(tuple(sorted(pair)) for part in parts for pair in part)
    assert found == sorted(tuple(sorted(edge)) for edge in graph.edges)  # every edge once
    for part in parts:
        ends = [i for pair in part for i in pair]
        assert len(set(ends)) == len(ends)  # nobody twice
    degree = max((d for _, d in graph.degree), default=0)
    assert degree <= len(parts) <= degree + 1 if parts else degree == 0
    return parts


@settings(max_examples=100)
@given(random_graphs)
def test_matchings_share_the_edges_and_no_client(graph):
    assert_coloured(graph)


@pytest.mark.parametrize("n", [5, 6, 9, 16, 31])
def test_a_complete_graph_is_coloured_too(n):
    assert_coloured(networkx.complete_graph(n))


@pytest.mark.parametrize("graph", [networkx.cycle_graph(8), networkx.grid_2d_graph(4, 6), networkx.star_graph(7)])
def test_a_graph_with_two_sides_needs_no_colour_more_than_neighbours(graph):
    graph = networkx.convert_node_labels_to_integers(graph)
    assert len(assert_coloured(graph)) == max(d for _, d in graph.degree)


def test_the_laplacian_of_a_matching_is_half_its_square():
    for part in coloured(networkx.petersen_graph()):
        own = laplacian(part, 10)
        assert np.abs(own @ own - 2 * own).max() == 0


# -- probabilities and mixing weight (H4, H6, H7) ------------------------------------------------------------


@settings(max_examples=12)
@given(st.integers(3, 9), st.integers(0, 10**6), st.sampled_from([0.1, 0.3, 0.5, 0.9]))
def test_probabilities_keep_the_budget_and_no_others_are_better(n, seed, budget):
    parts = coloured(ErdosRenyi(0.5, seed).of(n))
    p, value, gap = probabilities(parts, n, budget)
    assert (p >= 0).all() and (p <= 1).all()
    assert p.sum() <= budget * len(parts) + 1e-9
    assert gap <= 1e-6
    generator = np.random.default_rng(seed)
    for _ in range(30):  # any other choice under the budget
        other = generator.random(len(parts)) ** 2
        other *= min(1.0, budget * len(parts) / other.sum())
        mixed = sum(a * laplacian(part, n) for a, part in zip(other, parts, strict=True))
        assert np.linalg.eigvalsh(mixed)[1] <= value + gap + 1e-9


@settings(max_examples=12)
@given(st.integers(3, 8), st.integers(0, 10**6), st.sampled_from([0.1, 0.5, 0.8]), st.booleans())
def test_no_other_mixing_weight_is_better(n, seed, budget, together):
    parts = coloured(ErdosRenyi(0.5, seed).of(n))
    p = np.full(len(parts), budget) if together else probabilities(parts, n, budget)[0]
    alpha, rho = mixing_weight(p, parts, n, together)
    assert rho < 1  # the expected graph is connected
    for other in np.linspace(0, 2.5 * alpha, 41):
        assert spectral(float(other), p, parts, n, together) >= rho - 1e-9


def test_without_consensus_in_expectation_no_weight_helps():
    path = (((0, 1),), ((1, 2),))
    for alpha in (0.1, 0.5, 0.9):
        assert spectral(alpha, np.array([0.9, 0.0]), path, 3) >= 1 - 1e-12
        assert spectral(alpha, np.array([0.9, 0.01]), path, 3) < 1 or alpha > 0.5


@pytest.mark.parametrize("schedule", ["matcha", "periodic"])
def test_the_mean_of_w_squared_is_the_formula(schedule):  # H7
    topology = Matchings(ER8, 0.5, schedule)
    plan, rounds, total = topology.plan(8), 3000, np.zeros((8, 8))
    seen = {}
    for k in range(rounds):
        coins = tuple(topology.active(3, k, 8).tolist())
        seen[coins] = seen.get(coins, 0) + 1
    for coins, times in seen.items():
        w = dense(plan, coins)
        total += times / rounds * w.T @ w
    measured = np.linalg.eigvalsh(total - 1 / 8)[-1]
    assert measured == pytest.approx(plan.rho, abs=0.02)
    assert (len(seen) == 2) == (schedule == "periodic")  # all or none, or every matching by itself


# -- the topology (H5, H8, H9) -------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1.0, 0.5, 0.1, 0.02])
def test_mixing_is_the_matrix_of_the_matchings_in_use_and_keeps_the_mean(budget):
    topology, plan, negative = Matchings(ER8, budget), plan_for(ER8, 8, budget), False
    for k in range(40):
        up = topology.up({}, everyone(8, seed=1, round=k), "model").to_dense()
        coins = topology.active(1, k, 8)
        np.testing.assert_allclose(up.numpy(), dense(plan, coins.tolist()), rtol=0, atol=1e-12)
        torch.testing.assert_close(up.sum(0), torch.ones(8).double(), rtol=0, atol=1e-12)
        assert topology.wires.turns({}, everyone(8, seed=1, round=k)) == int(coins.sum())
        negative |= bool((up < 0).any())
    assert negative or budget < 0.5


def test_weights_may_be_negative_and_still_keep_the_mean_when_clients_are_away():
    topology = Matchings(ER8, 1.0, alpha=0.4)  # 0.4 x 5 neighbours
    there = everyone(8)[torch.tensor([0, 1, 3, 6, 7])]
    block = topology.up({}, there, "model").to_dense()[there.index]
    assert float(topology.up({}, everyone(8), "model").to_dense().min()) < 0
    torch.testing.assert_close(block, block.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(block.sum(0), torch.ones(5).double(), rtol=0, atol=1e-12)


def test_coins_follow_from_seed_and_round_alone():  # H9
    topology = Matchings(ER8, 0.5)
    twice = [torch.stack([topology.active(seed, k, 8) for k in range(50)]) for seed in (0, 0, 1)]
    assert torch.equal(topology.active(1, torch.arange(50), 8), twice[2])  # many rounds at once
    assert torch.equal(twice[0], twice[1]) and not torch.equal(twice[0], twice[2])
    one, some = (topology.mixing({}, everyone(8)[which]).to_dense() for which in (slice(0, 1), slice(3, 8)))
    assert torch.equal(one, some)  # whoever asks


def test_matchings_are_used_as_often_as_planned():
    topology, n = Matchings(ER8, 0.5), 2000
    shares = torch.stack([topology.active(0, k, 8) for k in range(n)]).double().mean(0)
    np.testing.assert_allclose(shares.numpy(), topology.plan(8).p, rtol=0, atol=0.03)
    assert float(shares.sum()) == pytest.approx(0.5 * 5, abs=0.05)


def test_a_budget_of_nothing_is_training_alone(blobs):  # H8
    silent = Method.of("silent", Exchange(learn=(Train(**TRAINING),), topology=Matchings(Ring(), 0.0)))
    torch.testing.assert_close(model(silent, blobs()), model(nofed(**TRAINING), blobs()), rtol=0, atol=1e-12)


# -- the method (G3, H1, H2) ---------------------------------------------------------------------------------


def test_with_every_matching_it_is_gossip_with_i_minus_alpha_l(blobs):  # H1
    assert plan_for(Torus(), 6, 1.0).p.tolist() == [1.0] * len(plan_for(Torus(), 6, 1.0).matchings)
    federation = blobs((9, 8, 12, 7, 10, 11))
    full, periodic = (
        model(matcha(graph=Torus(), budget=1.0, schedule=s, **TRAINING), federation) for s in ("matcha", "periodic")
    )
    torch.testing.assert_close(full, periodic, rtol=0, atol=1e-10)


def test_on_a_ring_with_a_third_it_is_dpsgd(blobs):  # G3
    federation = blobs((9, 8, 12, 7, 10, 11))
    ours = model(matcha(graph=Ring(), budget=1.0, alpha=1 / 3, **TRAINING), federation)
    torch.testing.assert_close(ours, model(dpsgd(graph=Ring(), **TRAINING), federation), rtol=0, atol=1e-12)


def test_on_a_complete_graph_it_is_unweighted_fedavg(blobs):  # H2
    assert plan_for(Complete(), 5, 1.0).alpha == pytest.approx(1 / 5, abs=1e-9)
    assert plan_for(Complete(), 5, 1.0).rho == pytest.approx(0, abs=1e-9)
    ours = model(matcha(graph=Complete(), budget=1.0, **TRAINING), blobs())
    other = model(fedavg(equal=True, **TRAINING), blobs())
    torch.testing.assert_close(ours, other.expand_as(ours), rtol=0, atol=1e-9)


@pytest.mark.parametrize("select", ["everyone", "churn(away=0.3, rounds=3)"])
def test_the_mean_of_all_models_is_kept_every_round(select, blobs):  # H5
    method = build_method("matcha", {"graph": "ring", "budget": 0.4, "lr": 0.0, "select": select})
    prepared = prepare(method, blobs((9, 8, 12, 7, 10, 11)), model=small, dtype="float64")
    rows = torch.randn(prepared.state.centers["model"].shape, generator=torch.Generator().manual_seed(1)).double()
    state = type(prepared.state)({"model": rows}, {}, prepared.state.memory, 0)
    for _ in range(6):
        state, _ = run_round(method, state, prepared.clients)
        torch.testing.assert_close(state.centers["model"].mean(0), rows.mean(0), rtol=0, atol=1e-12)


def test_bytes_are_two_models_for_every_edge_in_use(blobs):
    method = matcha(graph=ER8, budget=0.5, **TRAINING)
    prepared = prepare(method, blobs((5,) * 8), model=small, dtype="float64")
    state, topology = prepared.state, method.at(0)[0].topology
    width = state.centers["model"].shape[1]
    for k in range(5):
        state, trips = run_round(method, state, prepared.clients)
        plan, coins = topology.plan(8), topology.active(0, k, 8).tolist()
        edges = sum(len(part) for part, on in zip(plan.matchings, coins, strict=True) if on)
        assert traffic(trips[0]).up == 2 * edges * width * 8
        assert traffic(trips[0]).down == 0


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: matcha(budget=0.0), "budget must be in (0, 1], got 0.0; try 0.5, or use nofed for no communication"),
        (lambda: matcha(budget=1.2), "budget must be in (0, 1], got 1.2"),
        (lambda: matcha(budget=-0.1), "budget must be in (0, 1], got -0.1"),
        (lambda: matcha(budget=float("nan")), "budget must be in (0, 1], got nan"),
        (lambda: matcha(alpha=0.0), "alpha must be positive, got 0.0; leave it out"),
        (lambda: matcha(schedule="weekly"), "schedule must be matcha or periodic, got 'weekly'"),
        (lambda: matcha(steps=0), "steps must be at least 1, got 0"),
        (lambda: Matchings(Edges(((0, 1), (2, 3)), 4)).n_centers(4), "the graph has 2 parts"),
        (lambda: Matchings(Ring()).n_centers(5000), "at most 2048 clients"),
        (lambda: build_method("matcha", {"schedule": "weekly"}), "schedule"),
    ],
)
def test_it_is_refused_with_a_reason(build, text):
    with pytest.raises(UsageError) as wrong:
        build()
    assert text in str(wrong.value)


def test_a_graph_in_parts_is_planned_within_its_parts():
    two = Edges(((0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)), 6)
    plan = plan_for(two, 6, 1.0, disconnected="allow")
    assert (plan.alpha, plan.rho) == (pytest.approx(1 / 3), pytest.approx(0, abs=1e-9))
    up = Matchings(two, 1.0, disconnected="allow").up({}, everyone(6), "model").to_dense()
    torch.testing.assert_close(up[:3, :3], torch.full((3, 3), 1 / 3).double(), rtol=0, atol=1e-6)


def test_a_hundred_clients_are_planned_in_seconds():
    plan = plan_for(Geometric(0.25), 100, 0.5)
    assert plan.gap < 1e-6 * plan.lambda_2
    assert plan.expected_matchings == pytest.approx(0.5 * len(plan.matchings), abs=1e-6)
    assert plan.rho < plan_for(Geometric(0.25), 100, 0.5, "periodic").rho
