"""Edges with overlapping cells, and edges under a cloud: reductions, selection, theory, data, movement."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st

from polycentric import (
    METHODS,
    Active,
    ByCell,
    CellMap,
    CellRegions,
    Everyone,
    InCells,
    Method,
    Overlap,
    Poisson,
    Prox,
    RingCells,
    Stragglers,
    Uniform,
    UsageError,
    fedavg,
    fedmes,
    hierarchical,
    load,
    run,
    run_round,
)
from polycentric.data import label_counts
from polycentric.round import receive
from polycentric.runs.checkpoint import Checkpoint
from polycentric.runs.evaluate import evaluate
from polycentric.runs.folder import Folder
from polycentric.runs.models_apart import average, disagreement, edge_scores
from polycentric.runs.recipes import build_method
from polycentric.runs.start import prepare
from polycentric.stacks.cohort import Cohort
from polycentric.topology import Anchored, AnchoredCells, CellClusters, Cells, TwoLevel
from polycentric.topology.cells.consensus import chain_zeta, edge_facts, stationary
from polycentric.topology.cells.coverage import covered
from polycentric.topology.cells.shapes import Attached
from polycentric.topology.cells.tables import GivenCells
from polycentric.topology.clusters.assignment import agreement
from support import Largest, after, random, ready, recorded, small, went_on

LAW = settings(max_examples=30)
TRAINING = {"lr": 0.05, "epochs": 2, "batch": 5}
SIZES = (23, 7, 12, 4, 30, 9)
SIX = GivenCells.of(torch.tensor([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 0], [1, 0, 0, 0, 1, 1]]))


def models(method, federation, rounds=3):
    """What every client begins the next round from."""
    state = after(method, federation, rounds)
    return receive(method.at(rounds)[-1], state, ready(method, federation).clients.everyone(state.round))["model"]


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def everyone(n, round=0, sizes=None, seed=0):
    sizes = torch.ones(n, dtype=torch.int64) if sizes is None else sizes
    return Cohort(torch.arange(n), sizes, torch.ones(n, dtype=torch.float64), n, seed, round)


def one_cell(n):
    return GivenCells.of(torch.ones(1, n))


# -- what it reduces to --------------------------------------------------------------------------------------


@pytest.mark.parametrize("select", [Everyone(), Uniform(n=3), Poisson(0.5)], ids=repr)
@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_one_edge_is_fedavg(select, ratio, blobs):  # E1
    a = models(fedmes(cells=one_cell(6), alpha_v=ratio, select=select, **TRAINING), blobs(SIZES))
    close(a, models(fedavg(select=select, **TRAINING), blobs(SIZES)))


@pytest.mark.parametrize("alpha_v", [0.1, 1.0, 10.0])
def test_without_overlaps_cells_are_isolated_whatever_a_bridge_counts(alpha_v, blobs):  # E2, E4
    apart = Overlap(2, 0)
    a = after(fedmes(cells=apart, alpha_v=alpha_v, **TRAINING), blobs(SIZES))
    b = after(hierarchical(cells=apart, every=0, **TRAINING), blobs(SIZES))
    close(a.centers["model"], b.centers["model"])
    assert not torch.allclose(a.centers["model"][0], a.centers["model"][1])


def test_isolated_cells_are_fedavgs_of_their_own(blobs):  # E2
    state = after(fedmes(cells=Overlap(2, 0), batch=None, lr=0.05, epochs=2), blobs(SIZES))
    for edge in range(3):
        mine = torch.tensor([2 * edge, 2 * edge + 1])
        sizes = tuple(n if k in mine else 0 for k, n in enumerate(SIZES))
        alone = after(fedavg(batch=None, lr=0.05, epochs=2), blobs(sizes))
        close(state.centers["model"][edge], alone.centers["model"][0])


def test_with_equal_alphas_an_edge_is_a_fedavg_of_its_cell(blobs):  # E3
    federation = blobs(SIZES)
    method = fedmes(cells=SIX, **TRAINING)
    prepared = ready(method, federation)
    state, _ = run_round(method, prepared.state, prepared.clients)
    n = federation.train.sizes.double()
    alone = after(METHODS["nofed"](**TRAINING), federation, rounds=1).centers["model"]  # all began from one model
    for edge, row in enumerate(SIX.coverage.table.toarray()):
        weight = torch.as_tensor(row) * n
        close(state.centers["model"][edge], weight @ alone / weight.sum())


def test_an_edge_counts_bridges_by_alpha(blobs):
    federation = blobs(SIZES)
    state = after(fedmes(cells=SIX, alpha_u=2.0, alpha_v=3.0, **TRAINING), federation, rounds=1)
    alone = after(METHODS["nofed"](**TRAINING), federation, rounds=1).centers["model"]
    bridges = SIX.coverage.covers > 1
    weight = torch.as_tensor(SIX.coverage.table.toarray()) * federation.train.sizes * torch.where(bridges, 3.0, 2.0)
    close(state.centers["model"], weight / weight.sum(1, keepdim=True) @ alone)


@pytest.mark.parametrize("topology", [Cells(Overlap(1, 1, 1), 1.5), CellClusters(Overlap(1, 1, 1), 1.5, 1)])
def test_a_bridge_between_three_edges_counts_alpha_once(topology):
    weight = topology.up(topology.remembers(7), everyone(7), "model").to_dense()
    by_hand = torch.tensor([[2, 0, 0, 3, 0, 3, 3], [0, 2, 0, 3, 3, 0, 3], [0, 0, 2, 0, 3, 3, 3]]).double() / 11
    close(weight / weight.sum(1, keepdim=True), by_hand)


@pytest.mark.parametrize("select", [Everyone(), Uniform(n=3)], ids=repr)
def test_edges_that_all_cover_everybody_are_fedavg(select, blobs):  # E5
    cells = GivenCells.of(torch.ones(3, 6))
    a = after(fedmes(cells=cells, select=select, alpha_v=1.5, **TRAINING), blobs(SIZES))
    b = after(fedavg(select=select, **TRAINING), blobs(SIZES))
    close(a.centers["model"], b.centers["model"].expand(3, -1))


@pytest.mark.parametrize("select", [Everyone(), Uniform(n=4), Poisson(0.5)], ids=repr)
@pytest.mark.parametrize("cells", [SIX, Overlap(1, 1), CellMap(4)], ids=repr)
def test_a_cloud_in_every_round_is_fedavg(select, cells, blobs):  # E6
    a = models(hierarchical(cells=cells, every=1, select=select, **TRAINING), blobs(SIZES))
    close(a, models(fedavg(select=select, **TRAINING), blobs(SIZES)))


@pytest.mark.parametrize(("every", "met"), [(0, []), (1, [0, 1, 2, 3]), (2, [1, 3]), (5, [])])
def test_edges_are_one_after_the_rounds_in_which_they_met(every, met, blobs):
    method = hierarchical(cells=SIX, every=every, **TRAINING)
    topology = method.exchanges[0].topology
    prepared = ready(method, blobs(SIZES))
    state = prepared.state
    for round in range(4):
        state, _ = run_round(method, state, prepared.clients)
        rows = state.centers["model"]
        agree = torch.allclose(rows, rows[:1].expand_as(rows), rtol=1e-12)
        assert agree == (round in met) == topology.wires.meets_cloud(round)
    assert not any(fedmes().exchanges[0].topology.wires.meets_cloud(round) for round in range(9))


@pytest.mark.parametrize("scale", [0.01, 7.0])
def test_only_the_ratio_of_the_alphas_matters(scale, blobs):  # E9
    a = after(fedmes(cells=SIX, alpha_u=1.0, alpha_v=1.3, **TRAINING), blobs(SIZES))
    b = after(fedmes(cells=SIX, alpha_u=scale, alpha_v=1.3 * scale, **TRAINING), blobs(SIZES))
    close(a.centers["model"], b.centers["model"])


def test_devices_that_exchange_with_their_cell_need_no_edges(blobs):  # E11
    """Every device holds a copy of the models of its cells, hears all devices of the cell and averages by itself."""
    federation, method = blobs(SIZES), fedmes(cells=SIX, alpha_v=1.5, **TRAINING)
    prepared = ready(method, federation)
    n, cover = federation.train.sizes.double(), torch.as_tensor(SIX.coverage.table.toarray()) > 0
    start = prepared.state.centers["model"][0]
    held = {(k, i): start for i in range(3) for k in range(6) if cover[i, k]}
    lonely = ready(METHODS["nofed"](**TRAINING), federation)
    amount = torch.zeros(3, dtype=torch.float64)
    state = prepared.state
    for round in range(3):
        state, _ = run_round(method, state, prepared.clients)
        begin = []
        for k in range(6):
            mine = [i for i in range(3) if cover[i, k]]
            weight = amount[mine] / amount[mine].sum() if amount[mine].sum() > 0 else torch.ones(len(mine)) / len(mine)
            begin.append(sum(w * held[k, i] for w, i in zip(weight, mine, strict=True)))
        alone = replace(lonely.state, centers={"model": torch.stack(begin)}, round=round)
        local = run_round(lonely.method, alone, lonely.clients)[0].centers["model"]
        for k, i in held:  # device k has heard every device of cell i
            gamma = n * cover[i] * torch.where(cover.sum(0) > 1, 1.5, 1.0)
            held[k, i] = gamma @ local / gamma.sum()
        amount = cover.double() @ n
        for (_, i), row in held.items():
            close(row, state.centers["model"][i])


# -- theory --------------------------------------------------------------------------------------------------


@LAW
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([0.1, 0.5, 1.0, 1.3, 1.5, 3.0]))
def test_doubly_stochastic_iff_a_bridge_counts_half(u, v, ratio):  # E7
    facts = edge_facts(Cells(Overlap(u, v), ratio), 3 * (u + v))
    assert facts.doubly_stochastic == (ratio == 0.5)
    assert facts.chain.sum(1).tolist() == pytest.approx([1, 1, 1])
    assert facts.columns.sum() == pytest.approx(3 * (u + v))


@pytest.mark.parametrize("u, v", [(20, 10), (0, 30), (30, 0), (3, 5)])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.3, 1.5])
def test_zeta_of_three_equal_cells(u, v, ratio):  # E8
    alpha_u = 1 / (u + 2 * v * ratio)
    facts = edge_facts(Cells(Overlap(u, v), ratio), 3 * (u + v))
    assert facts.zeta == pytest.approx(alpha_u * u + alpha_u * ratio * v / 2, abs=1e-10)


def test_the_numbers_of_the_paper():
    found = {ratio: edge_facts(Cells(Overlap(20, 10), ratio), 90) for ratio in (0.5, 1.0, 1.3, 1.5)}
    assert [round(f.zeta, 3) for f in found.values()] == [0.75, 0.625, 0.576, 0.55]
    for ratio, alone, overlap in ((1.0, 0.75, 1.5), (1.3, 0.6522, 1.6957), (1.5, 0.6, 1.8)):
        columns = found[ratio].columns
        assert columns[:60].tolist() == pytest.approx([alone] * 60, abs=5e-5)
        assert columns[60:].tolist() == pytest.approx([overlap] * 30, abs=5e-5)


def test_zeta_is_the_rate_at_which_edges_agree_when_nobody_learns():
    topology, cohort = Cells(RingCells(4, 3, 2), 1.3), everyone(20)
    facts = edge_facts(topology, 20)
    memory, _ = topology.meet(topology.remembers(20), cohort, {})
    centers = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    spread = []
    for _ in range(60):
        local = topology.down(memory, cohort, "model") @ centers
        centers = topology.up(memory, cohort, "model") @ local
        spread.append(float((centers - centers.mean(0)).norm()))
    assert spread[-1] / spread[-2] == pytest.approx(facts.zeta, rel=1e-6)


@pytest.mark.parametrize("dense", [1, 400])
def test_what_edges_agree_on_counts_clients_by_the_stationary_vector(dense, monkeypatch):
    """Mixed for long, every client's model is the mean weighed by `counts`: edges of unequal cells, a bridge of 1.3."""
    monkeypatch.setattr("polycentric.topology.cells.consensus.DENSE", dense)
    cells = torch.zeros(5, 12, dtype=torch.int64)
    for edge, (first, last) in enumerate(((0, 3), (2, 6), (5, 8), (7, 9), (8, 12))):
        cells[edge, first:last] = 1
    facts = edge_facts(Cells(cells, 1.3), 12)
    long = torch.matrix_power(torch.as_tensor(facts.chain.toarray()), 5000)
    torch.testing.assert_close(torch.as_tensor(stationary(facts.chain)).expand(5, 5), long, rtol=1e-8, atol=1e-9)
    assert float(facts.counts.mean()) == pytest.approx(1)
    assert float(facts.counts.max() - facts.counts.min()) > 0.1
    assert not torch.allclose(facts.counts, facts.columns, atol=1e-3)  # one step is not the long run


def test_clients_count_the_same_where_a_bridge_counts_half():
    counts = edge_facts(Cells(Overlap(2, 1), 0.5), 9).counts
    torch.testing.assert_close(counts, torch.ones(9, dtype=torch.float64))


def test_zeta_of_many_edges_is_found_without_all_the_others(monkeypatch):
    chain = edge_facts(Cells(CellMap(30), 1.3), 400).chain
    dense = chain_zeta(chain)
    monkeypatch.setattr("polycentric.topology.cells.consensus.DENSE", 1)
    assert chain_zeta(chain) == pytest.approx(dense, abs=1e-9) and 0.5 < dense < 1
    assert chain_zeta(edge_facts(Cells(RingCells(10, 3, 0)), 30).chain) == pytest.approx(1, abs=1e-9)  # no overlaps


def test_one_edge_has_nobody_to_disagree_with():
    assert chain_zeta(torch.ones(1, 1)) == 0.0
    with pytest.raises(UsageError, match="Star has no cells"):
        edge_facts(fedavg().exchanges[0].topology, 3)


# -- selection -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "total", "by_region"),
    [
        (Overlap(30, 0), 60, [20, 20, 20]),
        (Overlap(20, 10), 45, [10, 10, 10, 5, 5, 5]),
        (Overlap(0, 30), 30, [10, 10, 10]),
        (CellRegions("0:10 1:20 0+1:10 0+2:30 1+2:20"), 36, [4, 8, 4, 12, 8]),
    ],
)
def test_the_papers_selection(geometry, total, by_region):
    cells, cohort = covered(geometry, 90), ByCell(20, cells=geometry)({}, everyone(90))
    assert len(cohort) == total
    assert torch.bincount(cells.regions.of[cohort.index]).tolist() == by_region
    assert torch.bincount(cells.links(cohort.index)[0]).tolist() == [20, 20, 20]


shapes = st.one_of(
    st.builds(Overlap, st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)),
    st.builds(RingCells, st.integers(1, 6), st.integers(1, 9), st.integers(0, 9)),
)


@LAW
@given(shapes, st.integers(1, 12), st.integers(0, 99))
def test_every_edge_gets_exactly_its_number_where_its_cell_alone_has_some(geometry, n, round):
    many = everyone(geometry.default_n_clients, round)
    cells = covered(geometry, geometry.default_n_clients)
    cohort = ByCell(n, cells=geometry)({}, many)
    got = torch.bincount(cells.links(cohort.index)[0], minlength=geometry.n_edges)
    assert len(torch.unique(cohort.index)) == len(cohort)
    assert torch.equal(cohort.index, cohort.index.sort().values)
    assert bool((got <= n).all())
    u = torch.bincount(cells.edge[cells.covers[cells.client] == 1], minlength=geometry.n_edges)
    reserve = u >= torch.minimum(cells.sizes, torch.tensor(n))  # the cell alone could fill up whatever is missing
    assert bool((got[reserve] == torch.minimum(cells.sizes, torch.tensor(n))[reserve]).all())


SUBSETS = [e for size in (1, 2, 3) for e in itertools.combinations(range(3), size)]


@LAW
@given(st.lists(st.integers(0, 3), min_size=7, max_size=7), st.integers(1, 5), st.integers(0, 99))
def test_no_choice_leaves_edges_with_fewer_clients_missing(sizes, n, round):
    """By trying them all: with three cells, up to three clients in each of the seven regions."""
    assume(any(sizes))
    edges, there = zip(*((e, size) for e, size in zip(SUBSETS, sizes, strict=True) if size), strict=True)
    counts = ByCell(n).counts(edges, torch.tensor(there), (0, round, 0))
    table = torch.tensor([[e in mine for mine in edges] for e in range(3)]).long()
    wanted = (table @ torch.tensor(there)).clamp(max=n)
    every = torch.cartesian_prod(*(torch.arange(size + 1) for size in there)).reshape(-1, len(there)) @ table.T
    least = int((wanted - every)[(every <= wanted).all(1)].sum(1).min())
    got = table @ torch.tensor(counts)
    assert bool((got <= wanted).all()) and int((wanted - got).sum()) == least
    assert all(0 <= count <= size for count, size in zip(counts, there, strict=True))


@pytest.mark.parametrize(
    ("cells", "n", "wanted"), [("0:10 1:100 0+1:50", 20, [20, 20]), ("0:14 1:1 0+1:12", 14, [14, 13])]
)
def test_clients_alone_make_room_for_an_overlap(cells, n, wanted):
    geometry = CellRegions(cells)
    cohort = ByCell(n, cells=geometry)({}, everyone(geometry.default_n_clients))
    assert torch.bincount(covered(geometry, geometry.default_n_clients).links(cohort.index)[0]).tolist() == wanted


def test_a_selection_around_another_hears_of_the_cells(blobs):
    made = fedmes(cells=SIX, select=Stragglers(ByCell(1), 0.5), **TRAINING)
    assert made.exchanges[0].select.of.cells is None
    prepared = ready(made, blobs(SIZES))
    assert prepared.method.exchanges[0].select.of.cells == SIX
    assert len(run_round(prepared.method, prepared.state, prepared.clients)[1][0].arrived) > 0


def test_everybody_has_the_same_chance_in_a_symmetric_geometry():
    count = torch.zeros(18)
    for round in range(600):
        count[ByCell(3, cells=Overlap(4, 2))({}, everyone(18, round)).index] += 1
    assert float(count[:12].std() / count[:12].mean()) < 0.1
    assert float(count[12:].std() / count[12:].mean()) < 0.12


@pytest.mark.parametrize("geometry", [Overlap(0, 1), RingCells(4, 0, 1), RingCells(5, 0, 1)], ids=repr)
def test_where_all_regions_have_equal_rests_the_lot_decides(geometry):
    rounds, many = 120, geometry.default_n_clients
    cohorts = [ByCell(1, cells=geometry)({}, everyone(many, round)).index for round in range(rounds)]
    count = torch.bincount(torch.cat(cohorts), minlength=many)
    share = float(count.sum()) / (rounds * many)
    assert float((count - rounds * share).abs().max()) < 5 * (rounds * share * (1 - share)) ** 0.5


@LAW
@given(
    st.lists(st.integers(0, 60), min_size=4, max_size=4),
    st.lists(st.integers(0, 60), min_size=3, max_size=3),
    st.integers(1, 20),
    st.integers(0, 99),
)
def test_where_cells_alone_have_enough_largest_remainders_fill_all_edges(overlaps, more, n, round):
    """And no search for numbers is needed; it would fill overlaps first, which serve two edges at once."""
    there = torch.tensor([*(n + one for one in more), *overlaps])
    with pytest.MonkeyPatch.context() as closed:
        closed.setattr("polycentric.topology.cells.by_cell.filled_up", None)
        counts = ByCell(n).counts(tuple(SUBSETS), there, (0, round, 0))
    table = torch.tensor([[e in mine for mine in SUBSETS] for e in range(3)]).long()
    assert (table @ torch.tensor(counts)).tolist() == [n] * 3


def test_what_a_large_neighbour_does_not_take_is_shared_by_all_regions_alike():
    """Overlaps with the third cell give the little that it wants of them, so the others give more than their share."""
    counts = ByCell(30).counts(
        ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2)), torch.tensor([30, 30, 1000, 30, 60, 60]), (0, 0, 0)
    )
    alone, other, _, both, *_ = counts
    assert max(alone, other, both) - min(alone, other, both) <= 1
    assert alone + both + counts[4] == other + both + counts[5] == 30


def test_clients_without_data_are_not_picked_and_small_cells_give_all_they_have():
    some = everyone(18)[torch.tensor([0, 1, 5, 12, 13])]
    cohort = ByCell(3, cells=Overlap(4, 2))({}, some)
    # The second cell has three, and all of them come; two of these are in the first as well, which gets one more.
    assert set(cohort.index.tolist()) - {0, 1} == {5, 12, 13} and len(cohort) == 4


def test_active_inside_a_cell_prefers_high_losses_in_every_region():
    select = ByCell(4, of=Active(1, ignore=0.0, sharpness=1e9, explore=0.0), cells=Overlap(4, 2))
    memory = select.remembers(18)
    memory |= {"value": torch.arange(18, dtype=torch.float64), "value_round": torch.zeros(18, dtype=torch.int64)}
    cohort = select(memory, everyone(18))
    assert cohort.index.tolist() == [2, 3, 6, 7, 10, 11, 13, 15, 17]  # the highest of every region
    assert select.tells == ("value",) and select.learn


@pytest.mark.parametrize("of", [Uniform(n=1), Active(1)], ids=repr)
@pytest.mark.parametrize("method", [fedmes, hierarchical])
def test_selection_by_cell_runs(method, of, blobs):
    made = method(cells=SIX, select=ByCell(1, of=of), **TRAINING)
    prepared = ready(made, blobs(SIZES))
    state, (trip,) = run_round(prepared.method, prepared.state, prepared.clients)
    cells = covered(prepared.method.exchanges[0].select.cells, 6)
    assert torch.bincount(cells.links(trip.cohort.index)[0], minlength=3).max() == 1
    assert state.round == 1


def test_what_has_no_meaning_is_refused():
    with pytest.raises(UsageError, match=r"ByCell.n must be at least 1, got 0"):
        ByCell(0)
    with pytest.raises(UsageError, match="of must be Uniform or Active, got Poisson"):
        ByCell(3, of=Poisson(0.5))
    with pytest.raises(UsageError, match="ByCell has no cells: use it as select of fedmes"):
        ByCell(3)({}, everyone(3))
    for alpha in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(UsageError, match="alpha_v must be positive"):
            fedmes(alpha_v=alpha)


def test_cells_that_do_not_fit_the_clients_are_refused_before_anything_is_trained(blobs):
    with pytest.raises(UsageError, match="the cells cover 6 clients, but the federation has 5"):
        ready(fedmes(cells=SIX), blobs())


# -- combinations --------------------------------------------------------------------------------------------


def test_prox_ties_a_client_to_the_mixture_it_received(blobs):
    free = after(fedmes(cells=SIX, **TRAINING), blobs(SIZES), rounds=1)
    tied = after(fedmes(cells=SIX, terms=(Prox(19.0),), **TRAINING), blobs(SIZES), rounds=1)
    begin = ready(fedmes(cells=SIX), blobs(SIZES)).state.centers["model"]
    assert (tied.centers["model"] - begin).norm() < 0.5 * (free.centers["model"] - begin).norm()
    close(
        after(fedmes(cells=SIX, terms=(Prox(0.0),), **TRAINING), blobs(SIZES)).centers["model"],
        after(fedmes(cells=SIX, **TRAINING), blobs(SIZES)).centers["model"],
    )


def test_all_is_reached_from_words():
    words = {
        "cells": "ring(edges=4, u=3, v=2)",
        "alpha_v": "1.3",
        "select": "by-cell(n=5, of=active(n=1))",
        "lr": "0.1",
    }
    made = build_method("fedmes", words | {"terms": "prox(0.1)"})
    same = fedmes(cells=RingCells(4, 3, 2), alpha_v=1.3, select=ByCell(5, of=Active(1)), lr=0.1, terms=(Prox(0.1),))
    assert made == same
    assert build_method("hierarchical", {"cells": "map(edges=4)", "every": 2}) == hierarchical(
        cells=CellMap(4), every=2
    )
    assert build_method("fedmes", {"cells.v": 3}) == fedmes(cells=Overlap(20, 3))


# -- scores --------------------------------------------------------------------------------------------------


def test_the_mean_of_all_edges_is_scored_on_everybodys_examples(blobs):
    federation, method = blobs(SIZES), fedmes(cells=SIX, **TRAINING)
    done = ready(method, federation, rounds=3).go()
    mean = done.state.centers["model"].mean(0, keepdim=True)
    one = replace(ready(fedavg(**TRAINING), federation).state, centers={"model": mean}, round=3)
    scores = evaluate(fedavg(**TRAINING), one, done.clients, federation.test).summary()
    assert done.metrics["average_accuracy"] == pytest.approx(scores["micro_accuracy"], abs=1e-12)
    assert done.metrics["average_loss"] == pytest.approx(scores["micro_loss"], abs=1e-12)
    assert done.history[-1]["average_accuracy"] == done.metrics["average_accuracy"]


def test_an_edge_counts_in_the_mean_once_it_has_learned_though_all_have_left_it(blobs, tmp_path):
    at = [f"0,{k},{0.25 if k < 2 else 0.75},0.5\n" for k in range(4)] + ["3,0,0.75,0.5\n", "3,1,0.75,0.5\n"]
    (tmp_path / "trace.csv").write_text("round,client,x,y\n" + "".join(at))
    cells = CellMap(3, radius=0.3, nearest=True, trace=str(tmp_path / "trace.csv"))  # nobody is ever at edge 2
    run = ready(fedmes(cells=cells, **TRAINING), blobs((8, 7, 6, 5)), rounds=4).go()
    assert covered(cells, 4, 0, 4).sizes.tolist() == [0, 4, 0]
    state, federation = run.state, run.federation
    assert state.memory["learned"].tolist() == [True, True, False]
    two = replace(state, centers={"model": state.centers["model"][:2].mean(0, keepdim=True)}, memory={})
    alone = evaluate(fedavg(**TRAINING), two, run.clients, federation.test).summary()
    assert run.metrics["average_loss"] == pytest.approx(alone["micro_loss"], abs=1e-12)


@pytest.mark.parametrize("recipe", [fedmes, hierarchical])
def test_an_edge_that_covers_nobody_is_not_in_the_mean_of_the_edges(recipe, blobs):
    """As if it were not there, in the numbers of every round."""
    table = torch.zeros(2, 6, dtype=torch.int64)
    table[0, :4], table[1, 3:] = 1, 1
    empty = torch.cat([table, torch.zeros(1, 6, dtype=torch.int64)])
    runs = [
        ready(recipe(cells=GivenCells.of(cells), **TRAINING), blobs(SIZES), rounds=3).go() for cells in (table, empty)
    ]
    names = ("average_accuracy", "average_loss", "disagreement", "micro_accuracy")
    for one, other in zip(runs[0].history, runs[1].history, strict=True):
        assert [one[name] for name in names] == pytest.approx([other[name] for name in names], rel=1e-12)
    assert len(runs[1].state.centers["model"]) == 3


def test_the_disagreement_is_the_spread_of_the_clients_models(blobs):
    federation, method = blobs(SIZES), fedmes(cells=SIX, alpha_v=1.5, select=Uniform(n=5), **TRAINING)
    done = ready(method, federation, rounds=3).go()
    everybody = done.clients.everyone(3)
    rows = receive(method.at(3)[0], done.state, everybody)["model"]
    assert done.metrics["disagreement"] == pytest.approx(float((rows - rows.mean(0)).square().sum(1).mean()), rel=1e-9)
    assert done.history[0]["disagreement"] == 0.0
    met = ready(hierarchical(cells=SIX, every=1, **TRAINING), federation, rounds=2).go()
    assert met.metrics["disagreement"] == pytest.approx(0.0, abs=1e-20)


def test_every_edge_is_scored_everywhere_and_in_its_cell(blobs, tmp_path: Path):
    federation, method = blobs(SIZES), fedmes(cells=SIX, **TRAINING)
    done = run(method, federation, model=small, rounds=2, dtype="float64", out=tmp_path / "run")
    scores = edge_scores(method, done.state, done.clients, federation.test)
    assert scores is not None
    for edge in range(3):
        module = done.model_of(center=edge)
        right = module(federation.test.x).argmax(1) == federation.test.y
        mine = torch.as_tensor(SIX.coverage.table.toarray())[edge][federation.test.owner] > 0
        assert float(scores.everywhere[edge]) == pytest.approx(float(right.double().mean()))
        assert float(scores.at_home[edge]) == pytest.approx(float(right[mine].double().mean()))
    lines = (tmp_path / "run/edges.csv").read_text().splitlines()
    assert lines[0] == "edge,accuracy,accuracy_in_cell" and len(lines) == 4


def test_a_mean_that_means_nothing_is_not_scored(blobs):
    for name in ("fedavg", "nofed", "fesem"):
        prepared = ready(METHODS[name](), blobs())
        assert average(prepared.method, prepared.state, prepared.clients, prepared.federation.test) == {}
    one = ready(fedmes(cells=one_cell(5)), blobs())
    assert average(one.method, one.state, one.clients, one.federation.test) == {}


@pytest.mark.parametrize("few", [0, 1000])
def test_disagreement_of_many_clients_forms_no_client_model(few, blobs, monkeypatch):
    monkeypatch.setattr("polycentric.runs.models_apart.FEW", few)
    cells, n = CellMap(4), 400
    prepared = ready(fedmes(cells=cells), blobs((1,) * n))
    heard, centers = torch.tensor([3.0, 1.0, 2.0, 7.0]).double(), random(0, *prepared.state.centers["model"].shape)
    state = replace(prepared.state, centers={"model": centers}, memory={"heard": heard})
    weight = torch.as_tensor(covered(cells, n).table.toarray()).T * heard
    rows = weight @ centers / weight.sum(1, keepdim=True)
    with Largest() as largest:
        found = disagreement(prepared.method, state, prepared.clients)
    assert found == pytest.approx(float((rows - rows.mean(0)).square().sum(1).mean()), rel=1e-9)
    assert largest.bytes < rows.nbytes / 4


def test_what_a_checkpoint_does_not_remember_yet_is_as_it_begins(blobs, tmp_path):
    method = hierarchical(cells=SIX, every=2, **TRAINING)
    first = recorded(ready(method, blobs(SIZES), rounds=2), tmp_path / "run")
    memory = {"heard": first.state.memory["heard"]}
    whose = first.folder.read_environment()["identity"]
    begun = Checkpoint(replace(first.state, memory=memory), first.tally, ({"round": 0},))
    Folder(tmp_path / "run").save(begun, whose)
    first.folder.release()
    done, problems = went_on(ready(method, blobs(SIZES), rounds=2), Folder(tmp_path / "run"))
    assert not problems and done.state.round == 2 and done.state.memory.keys() == {"heard", "since", "learned"}


# -- clients that move ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [fedmes, hierarchical])
def test_walkers_are_mixed_by_the_cells_of_the_round(method, blobs):
    cells = CellMap(4, speed=0.3)
    made = method(cells=cells, **TRAINING)
    prepared = ready(made, blobs(SIZES), seed=5)
    state, seen = prepared.state, []
    for round in range(4):
        state, (trip,) = run_round(made, state, prepared.clients)
        topology = made.exchanges[0].topology
        assert isinstance(topology, Cells if method is fedmes else TwoLevel)
        table = topology.up(state.memory, trip.arrived, "model").to_dense() > 0
        wanted = covered(cells if method is fedmes else Attached(cells), 6, 5, round).table.toarray() > 0
        assert torch.equal(table, torch.as_tensor(wanted)[:, trip.arrived.index])
        seen.append(table)
    assert any(not torch.equal(a, b) for a, b in pairwise(seen))
    assert torch.equal(state.centers["model"], after(made, blobs(SIZES), 4, seed=5).centers["model"])


def test_walking_moves_data_not_models():
    """A client keeps no model: where cells do not overlap, walkers who learn nothing carry nothing across."""
    topology = fedmes(cells=CellMap(2, radius=0.24, nearest=True, speed=0.1)).exchanges[0].topology
    centers, memory, homes = torch.eye(2, dtype=torch.float64), topology.remembers(30), []
    for round in range(20):
        cohort = everyone(30, round)
        local = topology.down(memory, cohort, "model") @ centers
        centers = topology.up(memory, cohort, "model") @ local
        memory, _ = topology.meet(memory, cohort, {})
        homes.append(covered(topology.geometry, 30, 0, round).edge)
    close(centers, torch.eye(2, dtype=torch.float64))
    assert any(not torch.equal(a, b) for a, b in pairwise(homes))  # and yet every edge has heard others' data


# -- data in cells -------------------------------------------------------------------------------------------


def of_cells(setting, cells=Overlap(20, 10), n=90, **more):
    return load("digits", InCells(n, setting, cells, **more))


def test_setting_a_is_iid():
    counts = label_counts(of_cells("a", n=45))
    assert int(counts.sum(1).max() - counts.sum(1).min()) <= 1
    assert float((counts > 0).sum(1).double().mean()) > 8


def test_setting_b_gives_every_client_two_of_all_classes():
    counts = label_counts(of_cells("b"))
    assert set((counts > 0).sum(1).tolist()) == {2}
    owners = (counts > 0).sum(0)
    assert int(owners.max() - owners.min()) <= 1  # 90 clients, 2 of 10 classes each
    cells = covered(Overlap(20, 10), 90)
    seen = torch.stack([counts[cells.client[cells.edge == e]].sum(0) > 0 for e in range(3)])
    assert bool(seen.all())  # every cell sees every class


@pytest.mark.parametrize("cells", [Overlap(20, 10), Overlap(0, 30), Overlap(30, 0), RingCells(4, 15, 10)], ids=repr)
def test_setting_c_gives_cells_classes_of_their_own(cells):
    federation = of_cells("c", cells, cells.default_n_clients)
    counts, cover = label_counts(federation), covered(cells, cells.default_n_clients)
    assert set((counts > 0).sum(1).tolist()) == {2}
    sizes = [4, 3, 3] if cells.n_edges == 3 else [3, 3, 2, 2]
    group = torch.repeat_interleave(torch.arange(cells.n_edges), torch.tensor(sizes))
    for k in range(cells.default_n_clients):
        mine = cover.edge[cover.client == k]
        assert bool(torch.isin(group[counts[k] > 0], mine).all())
    assert bool((counts.sum(0) > 0).all())
    assert len(federation.train) + len(federation.test) == 1797  # nothing is left out
    assert federation.group is not None and torch.equal(federation.group, cover.regions.of)


@pytest.mark.parametrize("cells", [Overlap(20, 10), Overlap(0, 30), Overlap(30, 0), RingCells(4, 15, 10)], ids=repr)
def test_unmixed_overlaps_have_the_classes_of_one_cell(cells):
    """Every client has the classes of the edge a hierarchy attaches it to: the same data for every geometry."""
    federation = of_cells("c", cells, cells.default_n_clients, mixed=False)
    counts, home = label_counts(federation), covered(cells, cells.default_n_clients).attached()
    sizes = [4, 3, 3] if cells.n_edges == 3 else [3, 3, 2, 2]
    group = torch.repeat_interleave(torch.arange(cells.n_edges), torch.tensor(sizes))
    edge = torch.empty(cells.default_n_clients, dtype=torch.int64).index_copy(0, home.client, home.edge)
    assert all(bool((group[counts[k] > 0] == edge[k]).all()) for k in range(cells.default_n_clients))
    assert set((counts > 0).sum(1).tolist()) == {2}
    per_cell = torch.bincount(edge, minlength=cells.n_edges)
    assert int(per_cell.max() - per_cell.min()) <= 1
    assert federation.group is not None  # known groups are the regions still: who is a bridge is no secret
    assert torch.equal(federation.group, covered(cells, cells.default_n_clients).regions.of)


def test_two_classes_a_cell_leave_the_others_out():
    federation = of_cells("c", Overlap(30, 0), two_per_cell=True)
    counts = label_counts(federation)
    assert (counts.sum(0) > 0).tolist() == [True] * 6 + [False] * 4
    assert int(federation.test.y.max()) == 5
    assert "no cell has class 6, 7, 8, 9: left out" in federation.note
    assert ((counts[:30] > 0).sum(0) > 0).tolist() == [True] * 2 + [False] * 8


def test_the_same_seed_deals_the_same_cards():
    a, b, c = of_cells("c"), of_cells("c"), load("digits", InCells(90), seed=1)
    assert a.fingerprint == b.fingerprint != c.fingerprint


# -- several models at every edge ----------------------------------------------------------------------------


def test_one_model_an_edge_is_fedmes(blobs):
    federation = blobs(SIZES)
    plain = fedmes(cells=SIX, alpha_v=1.5, **TRAINING)
    other = replace(plain.exchanges[0], topology=CellClusters(SIX, 1.5, 1))
    a, b = after(plain, federation), after(Method.of("fedmes", other), federation)
    close(a.centers["model"], b.centers["model"])


def test_one_edge_with_several_models_is_weighted_fesem(blobs):
    federation = blobs((9, 9, 9, 9, 9, 9))
    a = fedmes(cells=one_cell(6), models=2, **TRAINING)
    b = METHODS["fesem"](k=2, weighted=True, warm_up=None, **TRAINING)
    close(models(a, federation, 4), models(b, federation, 4))
    close(after(a, federation, 4).centers["model"], after(b, federation, 4).centers["model"])


def test_groups_find_each_other_through_the_bridges():
    """Digits turned two ways in every cell: with two models an edge, clients of a kind share a model at each edge."""
    cells = Overlap(4, 4)
    federation = load("digits", "rotations=2", clients=24)
    assert federation.group is not None
    method = fedmes(cells=cells, models=2, lr=0.1, epochs=10)
    done = run(method, federation, rounds=3, fine_tune=0)
    choice, cover = done.state.memory["choice"], covered(cells, 24)
    for edge in range(3):
        mine = cover.client[cover.edge == edge]
        slot = torch.tensor([cover.edge[cover.client == k].tolist().index(edge) for k in mine.tolist()])
        kind, found = federation.group[mine], choice[mine, slot]
        assert bool((found == kind).all()) or bool((found == 1 - kind).all())
    one = run(fedmes(cells=cells, lr=0.1, epochs=10), federation, rounds=3, fine_tune=0)
    assert done.metrics["micro_accuracy"] > one.metrics["micro_accuracy"]
    assert "average_accuracy" not in done.metrics


def agreement_at_edges(choice, cover, group):
    """The mean over edges of the agreement of their clients' models with the known groups."""
    found = []
    for edge in range(int(cover.edge.max()) + 1):
        mine = cover.client[cover.edge == edge]
        slot = torch.tensor([cover.edge[cover.client == k].tolist().index(edge) for k in mine.tolist()])
        found.append(agreement(choice[mine, slot].numpy(), group[mine].numpy()))
    return sum(found) / len(found)


def test_edges_mend_a_bad_start_by_updates_from_the_mean_of_their_models():
    """Two groups in every cell, and clients begin at a model of their edges by chance."""
    cells, cover = Overlap(4, 4), covered(Overlap(4, 4), 24)
    federation = load("digits", "rotations=2", clients=24)
    found = {}
    for match, more in (("distance", {}), ("anchor", {"every": 2})):
        made = prepare(
            fedmes(cells=cells, models=2, match=match, lr=0.1, epochs=5, **more), federation, rounds=7, fine_tune=0
        )
        (_, (seed,)), later = made.method.phases
        nobody = replace(seed, topology=CellClusters(cells, k=2, frozen=True))  # in place of the first clustering
        made.method = replace(made.method, phases=((1, (nobody,)), later))
        mixed = (torch.arange(24) // 2 % 2)[:, None].expand_as(made.state.memory["choice"])
        made.state = replace(made.state, memory=made.state.memory | {"choice": mixed.clone()})
        made.go()
        found[match] = agreement_at_edges(made.state.memory["choice"], cover, federation.group)
    assert found["distance"] < 0.5 and found["anchor"] == 1.0


@pytest.mark.parametrize("large", [1.0, 1e200])
def test_grouping_at_one_edge_is_fesems(large):
    """One cell and a common start: the same groups from the same updates, also where one is too large for a square."""
    rows, centers = random(3, 9, 12), {"model": random(4, 2, 12)}
    rows[4] *= large
    edge, center = AnchoredCells(one_cell(9), k=2), Anchored(2)
    memory = edge.remembers(9) | {"assignment": torch.arange(9) % 2, "placed": torch.ones(9).bool()}
    memory |= {name: value for name, value in center.remembers(9).items() if name not in memory}
    mine = edge.place(memory, everyone(9), centers, {"model": rows})["choice"][:, 0]
    assert torch.equal(mine, center.place(memory, everyone(9), centers, {"model": rows})["assignment"])
    close(
        edge.down(memory, everyone(9), "model") @ centers["model"],
        center.down(memory, everyone(9), "model") @ centers["model"],
    )


def test_an_edge_sends_the_mean_of_its_models(blobs):
    """Both ways one model on every link, whatever K: an exchange more in round 1."""
    federation, cells = blobs(SIZES), SIX
    runs = [run(fedmes(cells=cells, models=3, match=match, lr=0.1, **more), federation, rounds=2, fine_tune=0)
            for match, more in (("distance", {}), ("anchor", {"every": 1}))]  # fmt: skip
    for way in ("bytes_up", "bytes_down"):
        plain, anchored = (getattr(done.tally, way) for done in runs)
        assert anchored == plain * 3 // 2


def test_several_models_need_clients_that_stay():
    with pytest.raises(UsageError, match="several models at every edge need clients that stay"):
        fedmes(cells=CellMap(4, speed=0.1), models=2)
    with pytest.raises(UsageError, match="models must be at least 1, got 0"):
        fedmes(models=0)


def test_numbers_of_models_at_different_edges_need_not_agree():
    topology = CellClusters(torch.tensor([[1, 1, 0], [0, 1, 1]]), k=2)
    centers = {"model": torch.tensor([[0.0], [10.0], [10.0], [0.0]])}  # the second edge counts the other way round
    sent, three = {"model": torch.tensor([[9.0], [9.0], [1.0]])}, everyone(3)
    placed = topology.remembers(3) | topology.place(topology.remembers(3), three, centers, sent)
    assert placed["choice"][0, 0] == 1 and placed["choice"][1].tolist() == [1, 0] and placed["choice"][2, 0] == 1
    up = topology.up(placed, three, "model").to_dense()
    assert up.tolist() == [[0, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1]]
    memory, _ = topology.meet(placed, three, centers)
    assert (topology.down(memory, three, "model") @ centers["model"]).flatten().tolist() == [10, 10, 0]
