"""DPA-SGD and MTL: what they reduce to, what a synchronisation keeps, what travels. All in float64."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import networkx
import pytest
import torch
from torch import Tensor, nn

from polycentric import (
    Everyone,
    Exchange,
    Federation,
    KeepPrivate,
    Method,
    State,
    Train,
    Uniform,
    UsageError,
    dpa_sgd,
    dpsgd,
    fedavg,
    mtl,
    nofed,
    run_round,
)
from polycentric.models import mlp
from polycentric.parts.objective import Ridge
from polycentric.parts.select import Select
from polycentric.round import receive
from polycentric.simulate.clock import Delays
from polycentric.stacks.stack import LastLayer, Layout
from polycentric.topology import Gossip, TaskGraph
from polycentric.topology.graphs.networks import Complete, Network, Ring, network_of
from polycentric.topology.heads.covariance import cov_and_prec
from support import Make, ready, rounds_of

TRAINING: dict[str, Any] = {"lr": 0.05, "steps": 3, "batch": 5}
NOTHING: dict[str, Any] = {"strength": 0.0, "ridge": 0.0, "weight_decay": 0.0}
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-11}


def whole(method: Method, federation: Federation, state: State) -> Tensor:
    """Every client's model in use, all parameters in the module's order."""
    prepared = ready(method, federation)
    task, everyone = prepared.clients.task, prepared.clients.everyone(state.round)
    received = receive(method.at(state.round)[-1], state, everyone)
    rows = {n: received[n] if n in received else state.kept[n][everyone.index] for n in task.names}
    parts = {k: v for name, layout in task.layouts.items() for k, v in layout.views(rows[name]).items()}
    return torch.cat([parts[name].flatten(1) for name in Layout.of(task.module).names], 1)


def curvature(method: Method, state: State) -> Tensor:
    """Q, dense."""
    topology = method.exchanges[0].topology
    row, column, weight = topology.curvature(state.memory)  # type: ignore[attr-defined]
    n = len(state.memory["examples"])
    return torch.zeros(n, n, dtype=torch.float64).index_put_((row, column), weight, accumulate=True)


def covariances(method: Method, state: State) -> list[Tensor]:
    sets = method.exchanges[0].topology.sets(len(state.memory["examples"]))  # type: ignore[attr-defined]
    sizes = sets.sizes.tolist()
    return [m.view(s, s) for m, s in zip(torch.split(state.memory["covariance"], [s * s for s in sizes]), sizes,
                                         strict=True)]  # fmt: skip


def edgeless(n: int) -> Network:
    return network_of(networkx.empty_graph(n))


# -- reductions ----------------------------------------------------------------------------------------------


def test_on_the_complete_graph_without_penalties_it_is_unweighted_fedavg(blobs: Make) -> None:  # G1
    method = dpa_sgd(graph=Complete(), mix_task=True, **NOTHING, **TRAINING)
    other = fedavg(equal=True, **TRAINING)
    for a, b in zip(rounds_of(method, blobs()), rounds_of(other, blobs()), strict=True):
        torch.testing.assert_close(whole(method, blobs(), a), whole(other, blobs(), b), **CLOSE)


@pytest.mark.parametrize("reg_scale", ["per_n", "none"])
def test_without_neighbours_it_is_sgd_with_a_ridge_on_the_task(reg_scale: Any, blobs: Make) -> None:  # G2
    federation, strength, ridge = blobs((8, 9, 10, 11)), 0.7, 0.03
    alone = dpa_sgd(
        graph=edgeless(4), disconnected="allow", reg_scale=reg_scale, strength=strength, ridge=ridge,
        weight_decay=0.0, **TRAINING,
    )  # fmt: skip
    found = rounds_of(alone, federation)
    assert all(torch.equal(one, torch.ones(1, 1).double()) for one in covariances(alone, found[-1]))
    for k, n in enumerate((8, 9, 10, 11)):
        total = strength / (n if reg_scale == "per_n" else 1) + ridge
        sgd = Exchange(
            learn=(Train(terms=(Ridge(total, "task"),), **TRAINING),),
            topology=Gossip(edgeless(4), (), "allow"), receives=("model", "task"), sends=("model", "task"),
        )  # fmt: skip
        plain = Method.of("sgd", sgd, cut=LastLayer())
        right = rounds_of(plain, federation)
        for name in ("model", "task"):
            torch.testing.assert_close(found[-1].centers[name][k], right[-1].centers[name][k], **CLOSE)
    free = rounds_of(dpa_sgd(graph=edgeless(4), disconnected="allow", **NOTHING, **TRAINING), federation)[-1]
    other = rounds_of(nofed(**TRAINING), federation)[-1].centers["model"]
    torch.testing.assert_close(torch.cat([free.centers["model"], free.centers["task"]], 1), other, **CLOSE)


def test_with_one_step_and_no_penalties_it_is_dpsgd(blobs: Make) -> None:  # G3
    one = TRAINING | {"steps": 1}
    method, gossip = dpa_sgd(graph=Ring(), mix_task=True, **NOTHING, **one), dpsgd(graph=Ring(), **one)
    for a, b in zip(rounds_of(method, blobs(), 4), rounds_of(gossip, blobs(), 4), strict=True):
        torch.testing.assert_close(whole(method, blobs(), a), whole(gossip, blobs(), b), **CLOSE)


def test_on_the_complete_graph_with_fresh_covariances_all_are_that_of_all_tasks(blobs: Make) -> None:  # G4
    method, other = dpa_sgd(graph=Complete(), beta=1.0, **TRAINING), mtl(**TRAINING)
    state = rounds_of(method, blobs(), 2)[-1]
    w = state.centers["task"]
    for one in covariances(method, state):
        torch.testing.assert_close(one, cov_and_prec(w @ w.T).cov, **CLOSE)
    after = rounds_of(other, blobs(), 2)[-1]
    w = after.centers["task"]
    torch.testing.assert_close(after.memory["covariance"].view(5, 5), cov_and_prec(w @ w.T).cov, **CLOSE)


def test_mtl_without_penalties_is_fedavg_with_a_private_last_layer(blobs: Make) -> None:
    method, other = mtl(**NOTHING, **TRAINING), fedavg(cut=KeepPrivate("head*"), **TRAINING)
    a, b = rounds_of(method, blobs())[-1], rounds_of(other, blobs())[-1]
    torch.testing.assert_close(a.centers["model"], b.centers["model"], **CLOSE)
    torch.testing.assert_close(a.centers["task"], b.kept["private"], **CLOSE)


def test_mtl_with_one_client_is_sgd_with_a_ridge(blobs: Make) -> None:
    one = blobs((13,))
    state = rounds_of(mtl(strength=0.2, ridge=0.01, weight_decay=0.0, **TRAINING), one)[-1]
    plain = Method.of(
        "sgd",
        Exchange(learn=(Train(terms=(Ridge(0.21, "task"),), **TRAINING),), receives=("model", "task"),
                 sends=("model", "task")),
        cut=LastLayer(),
    )  # fmt: skip
    right = rounds_of(plain, one)[-1]
    for name in ("model", "task"):
        torch.testing.assert_close(state.centers[name], right.centers[name], **CLOSE)


# -- a synchronisation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("select", [Everyone(), Uniform(n=3)], ids=repr)
@pytest.mark.parametrize("graph", [Ring(), Complete(), network_of(networkx.star_graph(5))], ids=str)
def test_covariances_have_trace_one_and_are_positive_at_all_times(select: Select, graph: Network, blobs: Make) -> None:
    method = dpa_sgd(graph=graph, select=select, **TRAINING)  # G6
    for state in rounds_of(method, blobs((6, 7, 8, 9, 5, 4)), 5):
        for one in covariances(method, state):
            assert float(one.trace()) == pytest.approx(1, abs=1e-12)
            assert float(torch.linalg.eigvalsh(one)[0]) >= -1e-15
            assert torch.equal(one, one.T)


@pytest.mark.parametrize("select", [Everyone(), Uniform(n=4)], ids=repr)
def test_mixing_keeps_the_mean_and_leaves_tasks_alone(select: Select, blobs: Make) -> None:  # G7
    federation = blobs((6, 7, 8, 9, 5, 4))
    method = dpa_sgd(graph=network_of(networkx.path_graph(6)), select=select, **NOTHING, **TRAINING)
    apart = replace(method.exchanges[0], topology=Gossip(edgeless(6), (), "allow"), receives=("model", "task"))
    alone = Method.of("alone", replace(apart, learn=(Train(**TRAINING),)), cut=LastLayer())
    prepared, state = ready(method, federation), ready(method, federation).state
    for _ in range(3):
        local, _ = run_round(alone, state, prepared.clients)
        state, _ = run_round(method, state, prepared.clients)
        torch.testing.assert_close(state.centers["model"].mean(0), local.centers["model"].mean(0), **CLOSE)
        torch.testing.assert_close(state.centers["task"], local.centers["task"], **CLOSE)
        assert not torch.allclose(state.centers["model"], local.centers["model"])


@pytest.mark.parametrize("terms", ["all", "own"])
@pytest.mark.parametrize("scale", ["per_n", "none"])
def test_a_client_steps_along_the_gradient_of_the_objective(scale: Any, terms: Any, blobs: Make) -> None:
    """One full-batch step with a frozen model: w_k - lr (gradient of F_k + lambda_1 (Q W)_k + lambda_2 w_k)."""
    sizes, how = (6, 7, 8, 9, 5), {"lr": 0.05, "steps": 1, "batch": None}
    method = dpa_sgd(reg_scale=scale, reg_terms=terms, strength=0.4, ridge=0.1, weight_decay=0.0, **how)
    free = dpa_sgd(reg_scale=scale, reg_terms=terms, **NOTHING, **how)
    federation = blobs(sizes)
    state = rounds_of(method, federation, 3)[-1]
    with_it, _ = run_round(method, state, ready(method, federation).clients)
    without, _ = run_round(free, state, ready(free, federation).clients)
    w, q = state.centers["task"], curvature(method, state)
    right = 0.05 * (0.4 * q @ w + 0.1 * w)
    torch.testing.assert_close(without.centers["task"] - with_it.centers["task"], right, **CLOSE)
    assert (q == q.T).all() == (terms == "all")

    by_hand = torch.zeros(5, 5, dtype=torch.float64)  # from the covariances themselves
    for j, one in enumerate(covariances(method, state)):
        who = torch.tensor(sorted({(j - 1) % 5, j, (j + 1) % 5}))
        part = torch.linalg.inv(one) / (sizes[j] if scale == "per_n" else 1)
        if terms == "own":
            part = part * (who == j)[:, None]
        by_hand[who[:, None], who] += part
    torch.testing.assert_close(q, by_hand, rtol=1e-8, atol=1e-10)


def test_the_pull_is_frozen_while_a_client_trains(blobs: Make) -> None:
    federation, how = blobs((6, 7, 8, 9, 5)), {"lr": 0.05, "batch": None}
    method = dpa_sgd(strength=0.4, ridge=0.0, weight_decay=0.0, steps=2, **how)
    state = rounds_of(method, federation, 2)[-1]
    clients = ready(method, federation).clients
    task = clients.task
    w, model, q = state.centers["task"], state.centers["model"], curvature(method, state)
    pull = q @ w - q.diagonal()[:, None] * w
    for k in range(5):
        x, y = federation.train.of(k).x, federation.train.of(k).y
        mine, shared = w[k].clone(), model[k].clone()
        for _ in range(2):
            mine, shared = mine.detach().requires_grad_(), shared.detach().requires_grad_()
            loss = nn.functional.cross_entropy(task.outputs({"model": shared, "task": mine}, x), y)
            a, b = torch.autograd.grad(loss, (mine, shared))
            mine, shared = mine - 0.05 * (a + 0.4 * (q[k, k] * mine + pull[k])), shared - 0.05 * b
        found, _ = run_round(method, state, clients)
        torch.testing.assert_close(found.centers["task"][k], mine.detach(), **CLOSE)


# -- who is not there ----------------------------------------------------------------------------------------


def test_an_absent_client_keeps_everything_and_its_task_is_taken_as_last_known(blobs: Make) -> None:
    federation = blobs((6, 7, 8, 9, 5, 4))
    method = dpa_sgd(graph=Ring(), select=Uniform(n=3), **TRAINING)
    prepared = ready(method, federation)
    state = prepared.state
    for _ in range(6):
        before = state
        state, trips = run_round(method, state, prepared.clients)
        absent = torch.ones(6, dtype=torch.bool)
        absent[trips[0].arrived.index] = False
        for name in ("model", "task"):
            assert torch.equal(state.centers[name][absent], before.centers[name][absent])
        owner = method.exchanges[0].topology.sets(6).pairs[0]  # type: ignore[attr-defined]
        assert torch.equal(state.memory["covariance"][absent[owner]], before.memory["covariance"][absent[owner]])
        for k in trips[0].arrived.index.tolist():
            assert not torch.equal(state.centers["task"][k], before.centers["task"][k])
    known = torch.tensor([k for k in range(6) if state.memory["examples"][k]])
    fresh = dpa_sgd(graph=Ring(), beta=1.0, select=Uniform(n=3), **TRAINING)
    state, trips = run_round(fresh, state, prepared.clients)
    for k in trips[0].arrived.index.tolist():
        members = sorted({(k - 1) % 6, k, (k + 1) % 6})
        who = torch.tensor([i for i in members if i in known.tolist() or i in trips[0].arrived.index.tolist()])
        w = state.centers["task"][who]
        at = torch.tensor([members.index(int(i)) for i in who])
        torch.testing.assert_close(covariances(fresh, state)[k][at][:, at], cov_and_prec(w @ w.T).cov, **CLOSE)


def test_a_client_without_data_is_nobodys_neighbour(blobs: Make) -> None:
    method = dpa_sgd(graph=network_of(networkx.path_graph(5)), **TRAINING)
    shorter = dpa_sgd(graph=network_of(networkx.path_graph(4)), **TRAINING)
    a, b = rounds_of(method, blobs((6, 7, 8, 9, 0)))[-1], rounds_of(shorter, blobs((6, 7, 8, 9)))[-1]
    for name in ("model", "task"):
        torch.testing.assert_close(a.centers[name][:4], b.centers[name], **CLOSE)
    torch.testing.assert_close(curvature(method, a)[:4, :4], curvature(shorter, b), **CLOSE)
    assert not curvature(method, a)[4].any()


def test_before_the_first_exchange_a_client_knows_only_itself(blobs: Make) -> None:
    method = dpa_sgd(graph=Ring(), reg_scale="per_n", **TRAINING)
    prepared = ready(method, blobs((6, 7, 8, 9)))
    everyone = prepared.clients.everyone(0)
    got = receive(method.exchanges[0], prepared.state, everyone)
    torch.testing.assert_close(got["stiffness"][:, 0], 1 / everyone.sizes.double())
    assert not got["pull"].any()


@pytest.mark.parametrize("name", ["dpa-sgd", "mtl"])
def test_tasks_with_more_clients_than_numbers_and_equal_tasks_stay_finite(name: str, blobs: Make) -> None:
    """Near-singular covariances: everybody has the same data, so all tasks are one."""
    one = blobs((10,))
    twins = replace(
        one,
        train=type(one.train)(one.train.x.repeat(6, 1), one.train.y.repeat(6), 10 * torch.arange(7)),
        test=type(one.test)(one.test.x.repeat(6, 1), one.test.y.repeat(6), 5 * torch.arange(7)),
        valid=type(one.valid)(one.valid.x, one.valid.y, torch.zeros(7, dtype=torch.int64)),
        clients=tuple("abcdef"),
    )
    how: dict[str, Any] = {"lr": 0.05, "batch": None}
    method = mtl(**how) if name == "mtl" else dpa_sgd(beta=1.0, **how)
    done = ready(method, twins, rounds=5).go()
    assert all(rows.isfinite().all() for rows in done.state.centers.values())
    assert 20 < done.metrics["condition"] < 1e4
    assert done.history[-1]["condition"] == done.metrics["condition"]


# -- bytes, warnings, refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [Ring(), Complete(), network_of(networkx.path_graph(6))], ids=str)
def test_bytes_of_an_edge(graph: Network, blobs: Make) -> None:
    federation = blobs((6, 7, 8, 9, 5, 4))
    done = ready(dpa_sgd(graph=graph, **TRAINING), federation, rounds=2).go()
    d, q = done.state.centers["model"].shape[1], done.state.centers["task"].shape[1]
    made = graph.of(6)
    numbers = sum(d + 2 * q + (1 + made.degree(j)) ** 2 for i in made for j in made[i])
    assert (done.tally.bytes_up, done.tally.bytes_down) == (2 * 8 * numbers, 0)


def test_bytes_of_absent_neighbours_are_not_counted(blobs: Make) -> None:
    done = ready(dpa_sgd(select=Uniform(n=1), **TRAINING), blobs(), rounds=2).go()
    assert done.tally.bytes_up == done.tally.bytes_down == 0


def test_bytes_of_mtl_are_those_of_fedavg_and_the_pull(blobs: Make) -> None:
    done = ready(mtl(**TRAINING), blobs(), rounds=2).go()
    d, q = done.state.centers["model"].shape[1], done.state.centers["task"].shape[1]
    assert done.state.centers["model"].shape[0] == 1 and done.state.centers["task"].shape[0] == 5
    assert done.tally.bytes_up == 2 * 5 * 8 * (d + q)
    assert done.tally.bytes_down == 2 * 5 * 8 * (d + 2 * q + 1)


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (dpa_sgd(**TRAINING), dpsgd(**TRAINING)),
        (dpa_sgd(graph=Complete(), **TRAINING), dpsgd(graph=Complete(), **TRAINING)),
        (mtl(**TRAINING), fedavg(**TRAINING)),
    ],
    ids=["ring", "complete", "star"],
)
def test_nobody_waits_for_more_than_those_who_average(mine: Method, other: Method, blobs: Make) -> None:
    """The pull comes from neighbours' neighbours, but through the neighbours: one exchange, one delay."""
    clock, federation = Delays(compute=0.3, link=1.0, jitter=0.7), blobs((6, 7, 8, 9, 5, 4, 3))
    a, b = (ready(m, federation, clock=clock, rounds=4).go() for m in (mine, other))
    assert a.tally.seconds == pytest.approx(b.tally.seconds) and a.tally.seconds > 4


@pytest.mark.parametrize("make", [dpa_sgd, mtl], ids=["dpa-sgd", "mtl"])
def test_steps_that_are_too_long_for_the_penalty_are_told_with_the_bound(make: Any, blobs: Make) -> None:
    federation = blobs((6, 7, 8, 9, 5))
    state = rounds_of(make(**TRAINING), federation, 1)[-1]
    steep = float(torch.linalg.eigvalsh(curvature(make(**TRAINING), state))[-1])

    def said(strength: float) -> list[str]:
        method = make(**TRAINING | {"lr": 1e-9}, strength=strength * 2 / (1e-9 * steep))
        prepared = ready(method, federation)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            method.exchanges[0].topology.check(state.memory)  # type: ignore[attr-defined]
        assert prepared.state.round == 0
        return [str(w.message) for w in found]

    assert said(0.99) == []
    (message,) = said(4.0)
    assert "= 8 is not below 2" in message and "by 4 or more" in message


def test_the_warning_comes_while_it_runs(blobs: Make) -> None:
    with pytest.warns(UserWarning, match="steps on the multi-task penalty diverge"):
        rounds_of(dpa_sgd(strength=100.0, lr=1e-1, steps=1), blobs(), 1)


REFUSED = {
    "strength": ({"strength": -1.0}, "strength must be >= 0, got -1.0"),
    "ridge": ({"ridge": -0.5}, "strength must be >= 0, got -0.5"),
    "weight_decay": ({"weight_decay": -0.1}, "weight_decay must be >= 0, got -0.1"),
    "eps": ({"eps": 0.0}, r"eps must be in \(0, 0.5\], got 0.0"),
    "steps": ({"steps": 0}, "steps must be at least 1, got 0"),
}


@pytest.mark.parametrize("make", [dpa_sgd, mtl], ids=["dpa-sgd", "mtl"])
@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=REFUSED)
def test_bad_settings_are_refused(make: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make(**given)


def test_beta_is_one_over_one_more_than_the_neighbourhood(blobs: Make) -> None:
    """On a ring N(k) is a client and its two neighbours: 1/4; of five on the complete graph 1/6."""
    for graph, beta in ((Ring(), 1 / 4), (Complete(), 1 / 6)):
        state, same, other = (
            rounds_of(dpa_sgd(graph=graph, beta=share, **TRAINING), blobs((6, 7, 8, 9, 5)))[-1]
            for share in (None, beta, 1 / (1 / beta - 1))
        )
        torch.testing.assert_close(state.memory["covariance"], same.memory["covariance"], **CLOSE)
        assert not torch.allclose(state.memory["covariance"], other.memory["covariance"])


@pytest.mark.parametrize("beta", [0.0, -0.1, 1.5, math.nan])
def test_beta_is_a_share(beta: float) -> None:
    with pytest.raises(UsageError, match=r"beta must be in \(0, 1\]"):
        dpa_sgd(beta=beta)


def test_graphs_that_do_not_fit_are_refused(blobs: Make) -> None:
    with pytest.raises(UsageError, match="never hear each other"):
        ready(dpa_sgd(graph=network_of(networkx.empty_graph(5))), blobs())
    with pytest.raises(UsageError):
        ready(dpa_sgd(graph=network_of(networkx.path_graph(4))), blobs())


def test_the_last_layer_is_cut_by_itself() -> None:
    layout = Layout.of(mlp((6,), 3, hidden=(4,)))
    found = LastLayer().layouts(layout)
    assert found["task"].names == ("head.weight", "head.bias")
    assert found["model"].names == ("dense1.weight", "dense1.bias")
    assert LastLayer().layouts(Layout.of(nn.Linear(3, 2)))["model"].width == 0


def test_a_large_ring_takes_a_round(quadratics: Make) -> None:
    """2,000 clients: memory is linear in the edges, and nothing of size clients x clients is made."""
    n = 2000
    topology = TaskGraph(Ring(), ("task",))
    memory = topology.remembers(n)
    assert sum(rows.numel() for rows in memory.values()) < 25 * n
