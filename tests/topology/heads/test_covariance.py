"""Covariances of tasks: closed forms, floors, alignment, and the penalty as one matrix. All in float64."""

from __future__ import annotations

import networkx
import pytest
import torch
from scipy.linalg import sqrtm
from torch import Tensor

from polycentric import metropolis
from polycentric.topology.heads import covariance
from polycentric.topology.heads.covariance import TaskSets, cov_and_prec, cov_and_prec_of, floored, steepest


def tasks(n: int, width: int = 7, seed: int = 0) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sets_of(graph: networkx.Graph) -> TaskSets:
    receiver, sender, _ = metropolis(graph, "allow").links
    return TaskSets.closed(receiver, sender, graph.number_of_nodes())


GRAPHS = {
    "ring": networkx.cycle_graph(7),
    "path": networkx.path_graph(6),
    "star": networkx.star_graph(5),
    "random": networkx.gnp_random_graph(9, 0.4, seed=3),
    "isolated": networkx.empty_graph(4),
    "complete": networkx.complete_graph(5),
}
every_graph = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)


def lifted(sets: TaskSets, flat: Tensor, j: int) -> Tensor:
    """E_j Omega_j E_j^T, dense: the slow and plain way."""
    who = sets.members[sets.offset[j] : sets.offset[j + 1]]
    out = torch.zeros(sets.n, sets.n, dtype=torch.float64)
    out[who[:, None], who] = flat[sets.place[j] : sets.place[j + 1]].view(len(who), len(who))
    return out


# -- one matrix ----------------------------------------------------------------------------------------------


def test_it_is_the_root_of_the_gram_matrix_with_trace_one() -> None:
    gram = tasks(5) @ tasks(5).T
    root = torch.from_numpy(sqrtm(gram.numpy()).real)
    found = cov_and_prec(gram, eps=1e-12)
    torch.testing.assert_close(found.cov, root / root.trace(), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.cov @ found.prec, torch.eye(5).double(), rtol=0, atol=1e-8)


def test_at_the_optimum_the_penalty_is_the_squared_nuclear_norm_and_nothing_is_smaller() -> None:
    w = tasks(5)
    found = cov_and_prec(w @ w.T, eps=1e-13)
    best = float((w.T @ found.prec @ w).trace())
    assert best == pytest.approx(float(torch.linalg.matrix_norm(w, "nuc")) ** 2, rel=1e-6)
    for seed in range(20):
        other = tasks(5, seed=seed)
        other = other @ other.T
        prec = torch.linalg.inv(other / other.trace())
        assert float((w.T @ prec @ w).trace()) > best


@pytest.mark.parametrize("eps", [1e-3, 0.5])
@pytest.mark.parametrize("scale", [0.0, 1e-160, 1.0, 1e160])
@pytest.mark.parametrize(("m", "q"), [(6, 3), (9, 2), (40, 1), (8, 7)])
def test_many_tasks_of_few_numbers_are_related_as_their_gram_matrix_says(
    m: int, q: int, scale: float, eps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(covariance, "SMALL", 1)
    w = tasks(m, q)
    w[0] = w[1]
    right, found = cov_and_prec((w @ w.T) * (scale > 0), eps), cov_and_prec_of(w * scale, eps)
    again = floored(found.cov, eps)  # nothing is left to floor
    for other in (right, again):
        torch.testing.assert_close(found.cov, other.cov, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found.prec, other.prec, rtol=1e-9, atol=1e-9)
        assert found.condition == pytest.approx(other.condition, rel=1e-9)
    assert torch.equal(found.cov, found.cov.T) and torch.equal(found.prec, found.prec.T)


@pytest.mark.parametrize("rule", [cov_and_prec, floored])
@pytest.mark.parametrize("scale", [0.0, 1e-160, 1e-8, 1.0, 1e8])
@pytest.mark.parametrize("rank", [1, 3, 6])
def test_whatever_comes_the_trace_is_one_and_the_spectrum_positive(rule: object, scale: float, rank: int) -> None:
    w = tasks(6)[:, :rank] * scale
    found = rule(w @ w.T)  # type: ignore[operator]
    assert float(found.cov.trace()) == pytest.approx(1, abs=1e-12)
    assert torch.equal(found.cov, found.cov.T)
    assert float(torch.linalg.eigvalsh(found.cov)[0]) > 0
    assert found.prec.isfinite().all()
    torch.testing.assert_close(found.cov @ found.prec, torch.eye(6).double(), rtol=0, atol=1e-9)


def test_tasks_of_zero_are_unrelated() -> None:
    torch.testing.assert_close(cov_and_prec(torch.zeros(4, 4)).cov, torch.eye(4).double() / 4)


def test_equal_tasks_have_rank_one_before_the_floor_and_can_be_inverted_after_it() -> None:  # G8
    w = tasks(1).expand(5, -1)
    torch.testing.assert_close(
        cov_and_prec(w @ w.T, eps=1e-30).cov, torch.full((5, 5), 0.2).double(), atol=1e-7, rtol=0
    )
    found = cov_and_prec(w @ w.T, eps=1e-3)
    assert found.condition == pytest.approx(float(torch.linalg.cond(found.cov)), rel=1e-6)
    assert 50 < found.condition < 100


def test_the_floor_of_a_covariance_bounds_its_condition() -> None:
    bad = torch.diag(torch.tensor([1.0, 1e-30, -1e-12]).double())
    found = floored(bad, eps=1e-2)
    assert found.condition <= 3 / 1e-2
    assert float(torch.linalg.eigvalsh(found.cov)[0]) == pytest.approx(1e-2 / 3 / (1 + 2e-2 / 3))


# -- many sets -----------------------------------------------------------------------------------------------


@every_graph
def test_sets_are_the_closed_neighbourhoods(graph: networkx.Graph) -> None:
    sets = sets_of(graph)
    for k in graph:
        assert sets.members[sets.offset[k] : sets.offset[k + 1]].tolist() == sorted({k, *graph[k]})
    assert len(sets.alone()) == int(sets.sizes.square().sum())
    for k in graph:
        assert lifted(sets, sets.alone(), k).nonzero().tolist() == [[k, k]]


@every_graph
def test_all_sets_together_are_what_each_is_by_itself(graph: networkx.Graph) -> None:
    sets, w = sets_of(graph), tasks(graph.number_of_nodes(), 5000)  # wider than one piece
    gram = sets.gram(w)
    both = sets.each(gram, cov_and_prec)
    worst = 0.0
    for k in graph:
        who = sorted({k, *graph[k]})
        one = cov_and_prec(w[who] @ w[who].T)
        worst = max(worst, one.condition)
        for flat, right in ((gram, w[who] @ w[who].T), (both.cov, one.cov), (both.prec, one.prec)):
            torch.testing.assert_close(lifted(sets, flat, k)[who][:, who], right, rtol=1e-9, atol=1e-9)
    assert both.condition == pytest.approx(max(worst, 1.0))


@every_graph
def test_neighbours_covariances_are_lifted_with_zeros_added_and_restricted(graph: networkx.Graph) -> None:
    sets, w, n = sets_of(graph), tasks(graph.number_of_nodes()), graph.number_of_nodes()
    flat = sets.each(sets.gram(w), cov_and_prec).cov
    links = metropolis(graph, "allow").links
    mixed, weights = sets.aligned(flat, *links), metropolis(graph, "allow").to_dense()
    for k in graph:
        who = sorted({k, *graph[k]})
        right = sum(weights[k, i] * lifted(sets, flat, i) for i in range(n))
        assert isinstance(right, Tensor)
        torch.testing.assert_close(lifted(sets, mixed, k)[who][:, who], right[who][:, who], rtol=1e-12, atol=1e-12)


@every_graph
@pytest.mark.parametrize("beta", [0.05, 0.25, 1.0])
def test_a_combination_keeps_trace_one_and_stays_positive(graph: networkx.Graph, beta: float) -> None:  # G6
    sets, n = sets_of(graph), graph.number_of_nodes()
    flat, links = sets.alone(), metropolis(graph, "allow").links
    for step in range(20):
        w = tasks(n, 2, seed=step)  # fewer numbers than tasks: singular Gram matrices
        flat = sets.combined(flat, sets.gram(w), links, torch.full((n,), beta, dtype=torch.float64))
        flat = sets.each(flat, floored).cov
        for k in graph:
            who = sorted({k, *graph[k]})
            one = lifted(sets, flat, k)[who][:, who]
            assert float(one.trace()) == pytest.approx(1, abs=1e-12)
            assert float(torch.linalg.eigvalsh(one)[0]) > 0
            assert torch.equal(one, one.T)


def test_a_combination_by_hand() -> None:
    """Two neighbours, beta = 1/3: A = the mean of [[1, 0], [0, 0]] and [[0, 0], [0, 1]]."""
    sets, links = sets_of(networkx.path_graph(2)), metropolis(networkx.path_graph(2)).links
    w = tasks(2)
    mixed = sets.combined(sets.alone(), sets.gram(w), links, torch.full((2,), 1 / 3, dtype=torch.float64))
    right = 2 / 3 * torch.eye(2).double() / 2 + cov_and_prec(w @ w.T).cov / 3
    torch.testing.assert_close(mixed.view(2, 2, 2), right.expand(2, 2, 2), rtol=1e-12, atol=1e-12)


def test_every_matrix_is_divided_by_its_own_trace() -> None:
    """Two neighbours and one alone: [[2, 1], [1, 6]], nothing at all, and [[3]]."""
    sets = TaskSets(3, torch.tensor([0, 1, 0, 1, 2]), torch.tensor([2, 2, 1]))
    flat = torch.tensor([2.0, 1, 1, 6, 0, 0, 0, 0, 3], dtype=torch.float64)
    assert sets.normalised(flat).tolist() == [0.25, 0.125, 0.125, 0.75, 0.5, 0, 0, 0.5, 1]


def test_sets_within_some_tasks_are_the_sets_of_the_smaller_graph() -> None:
    graph = GRAPHS["random"]
    some = torch.ones(9, dtype=torch.bool)
    some[[2, 5]] = False
    fewer, mask = sets_of(graph).within(some)
    for k in graph:
        members = fewer.members[fewer.offset[k] : fewer.offset[k + 1]].tolist()
        assert members == sorted(({k, *graph[k]}) - {2, 5})
    w = tasks(9)
    torch.testing.assert_close(sets_of(graph).gram(w)[mask], fewer.gram(w))


def test_memory_is_linear_in_the_squares_of_the_neighbourhoods() -> None:
    sets = sets_of(networkx.cycle_graph(10_000))
    assert len(sets.alone()) == 90_000
    assert len(sets_of(networkx.star_graph(300)).alone()) == 301**2 + 300 * 4  # and not 301^3


# -- the penalty ---------------------------------------------------------------------------------------------


def dense(sets: TaskSets, links: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    out = torch.zeros(sets.n, sets.n, dtype=torch.float64)
    out.index_put_(links[:2], links[2], accumulate=True)
    return out


@every_graph
def test_the_gradient_of_the_penalty_is_one_product(graph: networkx.Graph) -> None:  # G9
    sets, n = sets_of(graph), graph.number_of_nodes()
    w, examples = tasks(n).requires_grad_(), torch.arange(1, n + 1).double()
    prec = sets.each(sets.gram(tasks(n, seed=1)), cov_and_prec).prec
    total = torch.zeros((), dtype=torch.float64)
    for k in graph:
        who = sorted({k, *graph[k]})
        one = lifted(sets, prec, k)[who][:, who]
        total = total + (w[who].T @ one @ w[who]).trace() / (2 * examples[k])
    total.backward()  # type: ignore[no-untyped-call]
    q = dense(sets, sets.penalty(prec, 1 / examples))
    torch.testing.assert_close(w.grad, q @ w.detach(), rtol=1e-10, atol=1e-12)
    assert torch.allclose(q, q.T) and float(torch.linalg.eigvalsh(q)[0]) >= -1e-12
    far = torch.tensor([[networkx.has_path(graph, i, j) and networkx.shortest_path_length(graph, i, j) > 2
                         for j in range(n)] for i in range(n)])  # fmt: skip
    assert not q[far].any()


def test_own_terms_are_the_row_of_the_own_precision() -> None:
    sets, n = sets_of(GRAPHS["random"]), 9
    prec = sets.each(sets.gram(tasks(n)), cov_and_prec).prec
    q = dense(sets, sets.penalty(prec, torch.arange(1, n + 1).double(), own=True))
    for k in range(n):
        torch.testing.assert_close(q[k], (k + 1) * lifted(sets, prec, k)[k])


def test_with_one_covariance_for_all_the_gradient_is_the_centralised_one_times_the_sum() -> None:  # G5
    sets, w, examples = sets_of(GRAPHS["complete"]), tasks(5), torch.tensor([3.0, 5, 7, 11, 13]).double()
    shared = cov_and_prec(w @ w.T)
    prec = shared.prec.flatten().repeat(5)
    q = dense(sets, sets.penalty(prec, 1 / examples))
    torch.testing.assert_close(q @ w, (1 / examples).sum() * (shared.prec @ w), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n", [1, 6, 300])
def test_the_steepest_direction(n: int) -> None:
    sets = sets_of(networkx.gnp_random_graph(n, 4 / n, seed=1))
    prec = sets.each(sets.gram(tasks(n)), cov_and_prec).prec
    links = sets.penalty(prec, torch.ones(n).double())
    assert steepest(*links, n) == pytest.approx(float(torch.linalg.eigvalsh(dense(sets, links))[-1]), rel=1e-3)


def test_no_tasks_are_in_perfect_condition() -> None:
    none = cov_and_prec(torch.zeros(0, 0))
    assert none.condition == 1 and none.cov.shape == none.prec.shape == (0, 0)
