"""Clustered FL: the laws of the split, of the tree, and of what clients meet in it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import polycentric as pc
from polycentric import Method, State, UsageError
from polycentric.data import Federation
from polycentric.runs.start import prepare
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.stack import Stacks, write
from polycentric.topology import Splitting, bipartition, similarities

LAW = settings(max_examples=60)


def cohort(index: list[int], n: int, round: int = 1) -> Cohort:
    ones = torch.ones(len(index), dtype=torch.int64)
    return Cohort(torch.tensor(index, dtype=torch.int64), ones, ones.double(), n, seed=0, round=round)


def rows_of(seed: int, n: int, width: int = 6) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def exchange(topology: Splitting, memory: Stacks, centers: Stacks, who: Cohort, sent: Tensor) -> tuple[Stacks, Stacks]:
    """What the round does with a topology, for the model alone."""
    placed = write(memory, [(who.index, topology.place(memory, who, centers, {"model": sent}))])
    up = topology.up(placed, who, "model")
    mean = torch.where((up.total > 0)[:, None], up.product(sent) / up.total.clamp(min=1e-9)[:, None], centers["model"])
    return topology.meet(placed, who, {"model": mean})


@pytest.fixture(scope="module")
def rotated() -> Federation:
    return pc.load("digits", partition=pc.Rotations(4), clients=40)


# -- two parts ----------------------------------------------------------------------------------------------


@LAW
@given(st.integers(2, 8), st.integers(0, 10**6))
def test_single_linkage_finds_the_split_of_the_smallest_largest_similarity(n: int, seed: int) -> None:
    """Against all 2^(n-1) - 1 ways to cut n things in two."""
    alike = similarities(rows_of(seed, n, 3))
    best = min(
        float(alike[~part][:, part].max())
        for bits in itertools.product([False, True], repeat=n - 1)
        if any(bits)
        for part in [torch.tensor([False, *bits])]
    )
    found = bipartition(alike)
    assert found.cross == best == float(alike[~found.second][:, found.second].max())
    assert 1 <= int(found.second.sum()) <= n / 2


def test_two_alone_have_nothing_inside() -> None:
    found = bipartition(torch.tensor([[1.0, -0.3], [-0.3, 1.0]]).double())
    assert found.cross == pytest.approx(-0.3) and found.gap == pytest.approx(0.3)


def test_complete_and_average_linkage_do_not_always_find_it() -> None:
    """So the law above can fail."""
    for linkage in ("complete", "average"):
        worse = [
            bipartition(similarities(rows), linkage).cross > bipartition(similarities(rows)).cross
            for rows in (rows_of(seed, 7, 3) for seed in range(40))
        ]
        assert any(worse)


@LAW
@given(st.integers(3, 8), st.integers(0, 10**6), st.sampled_from(["single", "complete", "average"]))
def test_the_order_of_clients_changes_nothing_but_their_order(n: int, seed: int, linkage: str) -> None:
    """L5."""
    alike = similarities(rows_of(seed, n))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    a, b = bipartition(alike, linkage), bipartition(alike[order][:, order], linkage)  # type: ignore[arg-type]
    assert a.cross == b.cross
    assert torch.equal(a.second[order], b.second) or 2 * int(a.second.sum()) == n


@LAW
@given(st.integers(2, 6), st.integers(0, 10**6), st.floats(1e-6, 1e6))
def test_the_size_of_updates_does_not_change_how_alike_they_are(n: int, seed: int, scale: float) -> None:
    """L6, for each client by itself."""
    rows = rows_of(seed, n)
    scales = torch.logspace(0, 2, n, dtype=torch.float64)[:, None]
    torch.testing.assert_close(similarities(scale * scales * rows), similarities(rows), rtol=1e-9, atol=1e-9)


def test_similarities_of_wide_float32_rows_are_summed_in_float64() -> None:
    rows = 1e-3 * rows_of(0, 3, 200_000).float() + 1.0
    exact = torch.nn.functional.normalize(rows.double(), dim=1)
    torch.testing.assert_close(similarities(rows), exact @ exact.T, rtol=1e-12, atol=1e-12)


# -- the split ----------------------------------------------------------------------------------------------

ALWAYS = Splitting(eps1=0.5, eps2=0.1, t_min=0, gap=0.0)


def begun(topology: Splitting, n: int, width: int = 6) -> tuple[Stacks, Stacks]:
    return topology.remembers(n), {"model": torch.full((1, width), 3.0, dtype=torch.float64)}


def test_two_groups_with_opposite_updates_are_split_exactly() -> None:
    """L2: the similarity across is -1, the criterion 1."""
    memory, centers = begun(ALWAYS, 7)
    group = torch.tensor([0, 1, 0, 1, 0, 1, 0])
    step = rows_of(4, 1)
    sent = centers["model"] + torch.tensor([1.0, 1.5, 2.0, 1.0, 1.0, 2.5, 1.0])[:, None] * torch.where(
        group[:, None] == 0, step, -step
    )
    found = bipartition(similarities(sent - centers["model"]))
    assert found.cross == pytest.approx(-1)
    memory, new = exchange(replace(ALWAYS, gamma=0.99), memory, centers, cohort(list(range(7)), 7), sent)
    assert memory["assignment"].tolist() == [1, 2, 1, 2, 1, 2, 1]
    assert memory["parent"].tolist() == [-1, 0, 0]
    for row in new["model"]:  # both children begin from the parent
        torch.testing.assert_close(row, sent.mean(0))


@pytest.mark.parametrize("cross", [-0.5, 0.0, 0.4])
def test_gamma_is_compared_with_the_root(cross: float) -> None:
    """Two pairs whose updates have the cosine `cross`: they part where sqrt((1 - cross) / 2) > gamma, and not above."""
    across = torch.full((4, 4), cross, dtype=torch.float64)
    pair = torch.tensor([0, 0, 1, 1])
    products = torch.where(pair[:, None] == pair, 1.0, across)
    limit = math.sqrt((1 - cross) / 2)
    for gamma, parts in ((limit - 1e-6, True), (limit + 1e-6, False)):
        found = replace(ALWAYS, gamma=gamma).split(products, mean=0.0)
        assert (found is not None) == parts


@pytest.mark.parametrize(
    "setting",
    [{"eps1": 0.0}, {"eps2": 1.1}, {"t_min": 1}, {"gamma": 1.0}, {"gap": 2.0}, {"eps1": 1e-6, "relative": False}],
    ids=str,
)
def test_every_condition_can_forbid_a_split(setting: dict[str, float]) -> None:
    memory, centers = begun(ALWAYS, 4)
    sent = centers["model"] + torch.tensor([1.0, -1.0, 1.0, -0.9])[:, None] * rows_of(1, 1)
    who = cohort(list(range(4)), 4)
    split, _ = exchange(ALWAYS, memory, centers, who, sent)
    whole, _ = exchange(replace(ALWAYS, **setting), memory, centers, who, sent)  # type: ignore[arg-type]
    assert len(split["parent"]) == 3
    assert len(whole["parent"]) == 1


def test_two_members_are_never_parted() -> None:
    memory, centers = begun(ALWAYS, 2)
    sent = centers["model"] + torch.tensor([1.0, -1.0])[:, None] * rows_of(1, 1)
    assert len(exchange(ALWAYS, memory, centers, cohort([0, 1], 2), sent)[0]["parent"]) == 1


def test_thresholds_that_are_shares_do_not_depend_on_the_size_of_updates() -> None:
    step = torch.tensor([1.0, -1.0, 1.0, -0.9])[:, None] * rows_of(1, 1)
    for scale in (1e-4, 1.0, 1e4):
        memory, centers = begun(ALWAYS, 4)
        memory, _ = exchange(ALWAYS, memory, centers, cohort([0, 1, 2, 3], 4), centers["model"] + scale * step)
        assert memory["assignment"].tolist() == [1, 2, 1, 2] or memory["assignment"].tolist() == [2, 1, 2, 1]


@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
def test_thresholds_that_are_not_shares_are_lengths_of_updates(scale: float) -> None:
    step = scale * torch.tensor([1.0, -1.0, 1.0, -0.9])[:, None] * rows_of(1, 1)
    mean, most = float(step.mean(0).norm()), float(step.norm(dim=1).max())
    for eps1, eps2, parts in ((1.01, 0.99, 3), (0.99, 0.99, 1), (1.01, 1.01, 1)):
        topology = replace(ALWAYS, eps1=eps1 * mean, eps2=eps2 * most, relative=False)
        memory, centers = begun(topology, 4)
        memory, _ = exchange(topology, memory, centers, cohort([0, 1, 2, 3], 4), centers["model"] + step)
        assert len(memory["parent"]) == parts


@LAW
@given(st.integers(0, 10**6), st.integers(3, 9))
def test_every_split_is_remembered_with_the_similarities_that_decided_it(seed: int, n: int) -> None:
    """The tree of centers and the parts at every split follow from `splits` and `split_alike` alone."""
    topology = Splitting(eps1=1.0, eps2=0.0, t_min=0, gap=-2.0)
    memory, centers = begun(topology, n)
    draw = torch.Generator().manual_seed(seed)
    for round in range(1, 5):
        who = [0, *((torch.rand(n - 1, generator=draw) < 0.8).nonzero()[:, 0] + 1).tolist()]
        before, update = memory["assignment"].clone(), torch.randn(len(who), 6, generator=draw, dtype=torch.float64)
        leaves = set(range(len(memory["parent"]))) - set(memory["parent"].tolist())
        alike, earlier = similarities(update), len(memory["splits"])
        memory, centers = exchange(
            topology, memory, centers, cohort(who, n, round), centers["model"][before[who]] + update
        )
        assert memory["splits"][:, 1].tolist() == [p for p in memory["parent"].tolist()[1::2]]
        for (when, center), kept in zip(memory["splits"][earlier:], memory["split_alike"][earlier:], strict=True):
            assert int(when) == round and int(center) in leaves
            mine = [k for k, client in enumerate(who) if before[client] == center]
            members = torch.tensor(who)[mine]
            expected = torch.zeros(n, n)
            expected[members[:, None], members] = alike[mine][:, mine].float()
            torch.testing.assert_close(kept, expected)
            parts = memory["assignment"][members] == memory["assignment"][members][0]
            second = bipartition(kept[members][:, members].double()).second
            assert torch.equal(parts, second == second[0])


def test_similarities_of_many_clients_are_not_kept() -> None:
    assert "split_alike" in ALWAYS.remembers(120) and "split_alike" not in ALWAYS.remembers(121)
    memory, centers = begun(ALWAYS, 121)
    sent = centers["model"] + torch.where(torch.arange(121)[:, None] % 2 == 0, 1.0, -1.0) * rows_of(1, 1)
    assert len(exchange(ALWAYS, memory, centers, cohort(list(range(121)), 121), sent)[0]["parent"]) == 3


def test_who_did_not_move_follows_the_larger_part() -> None:
    memory, centers = begun(ALWAYS, 6)
    step = torch.tensor([1.0, 0.0, -1.2, 1.0, 0.0, 0.3])[:, None] * rows_of(2, 1)
    memory, _ = exchange(ALWAYS, memory, centers, cohort(list(range(6)), 6), centers["model"] + step)
    assert memory["assignment"].tolist() == [1, 1, 2, 1, 1, 1]
    assert similarities(step)[1].tolist() == [0, 1, 0, 0, 0, 0]


def test_the_absent_wait_at_the_parent_and_go_the_way_of_their_own_group() -> None:
    memory, centers = begun(ALWAYS, 8)
    way = torch.where(torch.arange(8)[:, None] % 2 == 0, 1.0, -1.0) * rows_of(3, 1)
    memory, centers = exchange(ALWAYS, memory, centers, cohort(list(range(6)), 8), centers["model"] + way[:6])
    assert memory["assignment"].tolist()[6:] == [0, 0]  # the parent's model serves them meanwhile
    first = memory["assignment"].tolist()[0]

    quiet = replace(ALWAYS, eps1=0.0)
    parent = centers["model"][0].clone()
    early, _ = exchange(quiet, memory, centers, cohort([6], 8), parent + way[6:7])
    assert early["assignment"][6] == 0  # the children are still where the parent is: nobody can tell
    at = memory["assignment"][:6]
    memory, centers = exchange(quiet, memory, centers, cohort(list(range(6)), 8), centers["model"][at] + way[:6])
    before = centers["model"].clone()
    memory, centers = exchange(quiet, memory, centers, cohort([6, 7], 8), parent + 0.1 * way[6:])
    assert memory["assignment"].tolist()[6:] == [first, 3 - first]
    assert torch.equal(centers["model"], before)  # from the parent's model nothing is averaged into a child


@LAW
@given(st.integers(0, 10**6), st.integers(3, 12))
def test_clusters_are_a_partition_and_only_refine(seed: int, n: int) -> None:
    """L3 and L4, over many rounds in which anybody may be absent and nothing hinders a split."""
    topology = Splitting(eps1=1.0, eps2=0.0, t_min=0, gap=-2.0)
    memory, centers = begun(topology, n)
    draw = torch.Generator().manual_seed(seed)
    for round in range(1, 7):
        who = (torch.rand(n, generator=draw) < 0.7).nonzero()[:, 0].tolist()
        before = memory["assignment"].clone()
        sent = centers["model"][before[who]] + torch.randn(len(who), 6, generator=draw, dtype=torch.float64)
        memory, centers = exchange(topology, memory, centers, cohort(who, n, round), sent)
        after, parent = memory["assignment"], memory["parent"]
        assert len(parent) == len(centers["model"])
        assert bool(((after >= 0) & (after < len(parent))).all())
        moved = after != before
        assert torch.equal(parent[after[moved]], before[moved])  # only ever to a child of where it was
        assert all(sorted(parent.tolist()).count(p) == 2 for p in set(parent.tolist()) - {-1})


@pytest.mark.parametrize("setting", [{"eps1": -1}, {"eps2": -0.1}, {"gamma": 1.5}, {"t_min": -1}, {"linkage": "ward"}])
def test_bad_settings_are_refused(setting: dict[str, float]) -> None:
    (name, value) = next(iter(setting.items()))
    with pytest.raises(UsageError, match=f"{name} .*{value}"):
        pc.cfl(**setting)  # type: ignore[arg-type]


# -- the method ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_what_never_splits_is_fedavg(rotated: Federation, weighted: bool) -> None:
    """L1."""
    how = {"rounds": 3, "dtype": "float64", "fine_tune": 0}
    one = pc.run(pc.cfl(eps1=0.0, t_min=0, weighted=weighted, lr=0.1), rotated, **how)
    average = pc.run(pc.fedavg(equal=not weighted, lr=0.1), rotated, **how)
    torch.testing.assert_close(one.state.centers["model"], average.state.centers["model"], rtol=1e-10, atol=1e-10)


def split_run(method: Method, federation: Federation, rounds: int) -> tuple[list[State], pc.Run]:
    run = prepare(method, federation)
    states = [run.state]
    for _ in range(rounds):
        states.append(pc.run_round(method, states[-1], run.clients)[0])
    return states, run


def test_a_split_keeps_the_parent_and_every_moment(rotated: Federation) -> None:
    eager = pc.cfl(eps1=1.0, eps2=0.0, gap=0.0, t_min=1, lr=0.1, epochs=2, center=pc.Momentum(0.9, 0.5))
    states, run = split_run(eager, rotated, 4)
    before, after = states[2], states[3]
    assert len(before.centers["model"]) == 1 and len(after.centers["model"]) == 3
    assert all(len(rows) == 3 for rows in after.centers.values())
    assert torch.equal(after.centers["model"][0], after.centers["model"][1])
    later = states[4]
    assert torch.equal(later.centers["model"][0], after.centers["model"][0])  # the fall-back
    assert not torch.equal(later.centers["model"][1], after.centers["model"][1])
    run.state = later
    assert isinstance(run.model_of(center=0), torch.nn.Module)


def found_groups(seed: int, rounds: int = 60) -> float:
    federation = pc.load("digits", partition=pc.Rotations(4), clients=40, seed=seed)
    method = pc.cfl(lr=0.1, epochs=5, t_min=5)
    run = pc.run(method, federation, rounds=rounds, seed=seed, evaluate_every=rounds, fine_tune=0)
    return run.metrics["ari"]


def test_true_groups_are_found() -> None:
    assert found_groups(0, rounds=30) >= 0.95


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 5))
def test_true_groups_are_found_with_other_seeds(seed: int) -> None:
    assert found_groups(seed) >= 0.95
