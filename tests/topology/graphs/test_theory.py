"""Rings in closed form, the table of minimal steps, and the advice in words."""

from __future__ import annotations

import json
import math

import networkx
import pytest
import torch

from polycentric import Complete, ErdosRenyi, Mixing, PathGraph, Ring, SmallWorld, StarGraph, Torus, UsageError
from polycentric.cli import outcome
from polycentric.topology import metropolis, weights_for
from polycentric.topology.graphs.decomposition import plan_for
from polycentric.topology.graphs.gossip import DENSE, doubly_stochastic, lambda_2, zeta
from polycentric.topology.graphs.networks import MATCHA_8, Edges
from polycentric.topology.graphs.theory import advise, minimal_steps, penalty

RINGS = {  # clients: zeta, minimal steps for tau = 1, 2, 5, 10
    3: (0.0, 0, 27, 432, 2_187),
    4: (0.333333, 4, 144, 1_764, 8_464),
    5: (0.539345, 85, 872, 8_206, 37_000),
    8: (0.804738, 6_917, 35_706, 256_376, 1_071_844),
    16: (0.949253, 1_359_538, 5_740_739, 37_038_905, 149_717_720),
}


@pytest.mark.parametrize("k", RINGS)
def test_rings_and_the_steps_they_need(k):
    found = zeta(weights_for(Ring(), k))
    assert found == pytest.approx(RINGS[k][0], abs=5.1e-7)
    assert [minimal_steps(k, tau, found) for tau in (1, 2, 5, 10)] == list(RINGS[k][1:])


def test_a_ring_of_thirty_two_needs_more_steps_than_anybody_takes():
    found = zeta(weights_for(Ring(), 32))
    steps = [minimal_steps(32, tau, found) for tau in (1, 2, 5, 10)]
    assert found == pytest.approx(0.987190, abs=5.1e-7)
    assert [float(f"{s:.3e}") for s in steps] == [1.921e8, 7.785e8, 4.904e9, 1.967e10]


@pytest.mark.parametrize("k", [4, 5, 7, 12, 100, DENSE + 50])
def test_zeta_of_a_ring_in_closed_form(k):  # G10
    assert zeta(weights_for(Ring(), k)) == pytest.approx((1 + 2 * math.cos(2 * math.pi / k)) / 3, abs=1e-8)


@pytest.mark.parametrize("n", [5, 30, DENSE + 20])
def test_connectivity_in_closed_form(n):
    assert lambda_2(Ring().of(n)) == pytest.approx(2 - 2 * math.cos(2 * math.pi / n), abs=1e-9)
    assert lambda_2(PathGraph().of(n)) == pytest.approx(2 - 2 * math.cos(math.pi / n), abs=1e-9)
    assert lambda_2(StarGraph().of(n)) == pytest.approx(1, abs=1e-8)


def test_the_ends_of_the_scale():
    assert zeta(weights_for(Complete(), 7)) == pytest.approx(0, abs=1e-12)
    assert zeta(weights_for(Ring(), 1)) == 0
    apart = metropolis(networkx.empty_graph(4), "allow")
    assert zeta(apart) == 1 and lambda_2(networkx.empty_graph(4)) == 0
    assert minimal_steps(4, 1, 1.0) == math.inf and penalty(3, 1.0) == math.inf


def test_denser_graphs_agree_faster():
    sizes = [zeta(weights_for(ErdosRenyi(p, seed=1), 40)) for p in (0.15, 0.3, 0.6, 1.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert zeta(weights_for(Torus(), 36)) < zeta(weights_for(Ring(), 36))
    assert zeta(weights_for(SmallWorld(4, 0.3), 60)) < zeta(weights_for(SmallWorld(4, 0.0), 60))


def test_what_is_doubly_stochastic():
    assert doubly_stochastic(Mixing.dense(torch.tensor([[1.5, -0.5], [-0.5, 1.5]]).double(), "keep"))
    assert not doubly_stochastic(Mixing.dense(torch.tensor([[0.5, 0.5], [0.4, 0.6]]).double()))
    assert not doubly_stochastic(Mixing.dense(torch.tensor([[0.5, 0.4], [0.4, 0.5]]).double(), "keep"))
    assert not doubly_stochastic(Mixing.dense(torch.ones(1, 2).double()))
    with pytest.raises(UsageError, match="zeta is of a symmetric mixing"):
        zeta(Mixing.dense(torch.tensor([[0.5, 0.5], [0.4, 0.6]]).double()))


@pytest.mark.parametrize("tau", [1, 2, 5])
def test_from_the_minimal_steps_on_disagreement_costs_no_more_than_noise(tau):
    clients, found = 8, zeta(weights_for(Ring(), 8))
    steps = int(minimal_steps(clients, tau, found))
    for total, holds in ((steps + 1, True), (steps // 2, False)):
        rate = math.sqrt(clients / total)  # eta L
        noise, disagreement = rate / clients, rate**2 * penalty(tau, found)
        assert (disagreement <= noise * (1 + 1e-9)) == holds


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: minimal_steps(8, 0, 0.5), "tau is a number of local steps and must be at least 1, got 0"),
        (lambda: minimal_steps(0, 1, 0.5), "at least 1 client, got 0"),
        (lambda: penalty(1, 1.5), "zeta must be in [0, 1], got 1.5"),
        (lambda: advise(Edges(((0, 1), (2, 3)), 4), 4), "the graph has 2 parts"),
    ],
)
def test_it_is_refused_with_a_reason(call, text):
    with pytest.raises(UsageError) as wrong:
        call()
    assert text in str(wrong.value)


@pytest.mark.parametrize("budget", [1.0, 0.5, 0.1, 0.02])
def test_the_expected_delay_is_the_budgets_share_of_all_matchings(budget):
    graph = MATCHA_8
    for schedule in ("matcha", "periodic"):
        plan = plan_for(graph, 8, budget, schedule)
        assert plan.expected_matchings == pytest.approx(budget * 5, abs=1e-9)


def test_the_curve_of_rho_has_its_ends():
    plans = [plan_for(MATCHA_8, 8, budget) for budget in (0.02, 0.5, 1.0)]
    assert [round(plan.rho, 4) for plan in plans] == [0.9885, 0.6440, 0.6538]


# -- advice --------------------------------------------------------------------------------------------------


def test_advice_warns_of_large_rings_and_says_what_matcha_saves():
    ring, er = " ".join(advise(Ring(), 32, tau=5).words), " ".join(advise(MATCHA_8, 8).words)
    assert "useless beyond a few dozen clients on a ring" in ring
    assert "useless" not in er
    assert "a budget of 0.5" in er and "2.5 matchings a round instead of 5" in er
    assert "pay for less communication" in ring


def test_advice_knows_how_many_local_steps_the_bound_covers():
    assert "tau up to 2;" in " ".join(advise(Ring(), 8, steps=40_000).words)
    assert "not even tau = 1 is covered" in " ".join(advise(Ring(), 8, steps=1_000).words)
    assert "one round brings everybody together" in " ".join(advise(Complete(), 8).words)


def test_the_command_prints_and_draws(capsys, tmp_path):
    assert outcome(["topology", "advise", "matcha-8", "--tau", "2", "--draw", str(tmp_path / "graph.png")]) == 0
    said = capsys.readouterr().out
    assert "0.8614" in said and "MATCHA needs no more than a budget of 0.5" in " ".join(said.split())
    assert (tmp_path / "graph.png").read_bytes()[:4] == b"\x89PNG"
    assert outcome(["topology", "advise", "ring", "--clients", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 6917 and found["zeta"] == pytest.approx(0.804738, abs=5.1e-7)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["rings"], "did you mean 'ring'?"),
        (["matcha-8", "--clients", "9"], "the graph is for 8 clients, but the federation has 9"),
        (["ring", "--tau", "0"], "--tau"),
        (["file(none.txt)"], "the edge file 'none.txt' cannot be read"),
    ],
)
def test_the_command_refuses_in_one_line(words, text, capsys):
    assert outcome(["topology", "advise", *words]) == 2
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1
