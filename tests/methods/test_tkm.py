"""TKM: trimmed k-means and trimmed rounds; the laws T1 to T5, and what the clustering stands."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import polycentric as pc
from polycentric.data import Federation, deal, mixture
from polycentric.data.partition import Natural
from polycentric.parts.aggregate import Robust
from polycentric.runs.start import prepare
from polycentric.stacks.draw import uniform
from polycentric.topology import Seeding, TrimmedSeeding
from polycentric.topology.clusters import seeding
from polycentric.topology.clusters.assignment import agreement
from polycentric.topology.clusters.seeding import distances_as_they_are
from support import everyone, random

LAW = settings(max_examples=15)
HOW: dict[str, Any] = {"rounds": 3, "dtype": "float64", "fine_tune": 0}


def placed(topology: Seeding, rows: Tensor) -> Tensor:
    return topology.place({}, everyone(len(rows)), {}, {"model": rows})["assignment"]


def groups(seed: int, k: int, each: int, apart: float = 20.0, width: int = 5) -> tuple[Tensor, Tensor]:
    """Rows in k groups far from each other, and the group of every row."""
    truth = torch.arange(k * each) % k
    return random(seed, k * each, width) + apart * random(seed + 1, k, width)[truth], truth


@pytest.fixture(scope="module")
def rotated() -> Federation:
    return pc.load("digits", partition=pc.Rotations(2), clients=20)


# -- what it reduces to --------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["looped", "stacked"])
def test_one_center_one_step_no_trimming_is_unweighted_fedsgd(rotated: Federation, executor: str) -> None:
    """T1."""
    one_step = {"lr": 0.1, "steps": 1, "batch": None}
    one = pc.run(pc.tkm(k=1, beta=0.0, warm_up=None, **one_step), rotated, **HOW, executor=executor)
    sgd = pc.run(pc.fedavg(equal=True, **one_step), rotated, **HOW, executor=executor)
    torch.testing.assert_close(one.state.centers["model"], sgd.state.centers["model"], rtol=1e-10, atol=1e-10)


def test_rounds_without_trimming_are_fesem_whose_clients_stay(rotated: Federation) -> None:
    """T2: stage 3 at beta = 0, from the same state."""
    tkm, fesem = pc.tkm(k=2, beta=0.0, lr=0.1), pc.fesem(k=2, lr=0.1)
    run = prepare(tkm, rotated, dtype="float64")
    state, _ = pc.run_round(tkm, run.state, run.clients)
    assert torch.unique(state.memory["assignment"]).tolist() == [0, 1]
    a, b = state, state
    for _ in range(3):
        a, _ = pc.run_round(tkm, a, run.clients)
        b, _ = pc.run_round(fesem, b, run.clients)
        assert torch.equal(b.memory["assignment"], state.memory["assignment"])  # FeSEM's stay by themselves here
        torch.testing.assert_close(a.centers["model"], b.centers["model"], rtol=1e-10, atol=1e-10)


def test_a_step_on_trimmed_models_is_a_step_on_trimmed_gradients(rotated: Federation) -> None:
    method = pc.tkm(k=1, beta=0.2, warm_up=None, lr=0.3, steps=1, batch=None)
    run = prepare(method, rotated, dtype="float64")
    gradient = pc.Exchange(learn=(pc.fedsgd().at(0)[0].learn[0],))  # lr = 0.1: w - 0.1 g
    answers = list(run.clients.answers(gradient, run.state, run.clients.everyone(0)))
    w = run.state.centers["model"][0]
    gradients = (w - torch.cat([a.sent["model"] for a in answers])) / 0.1
    after, _ = pc.run_round(method, run.state, run.clients)
    expected = w - 0.3 * pc.TrimmedMean(0.2).of(gradients)
    torch.testing.assert_close(after.centers["model"][0], expected, rtol=1e-9, atol=1e-9)


def test_moving_clients_are_placed_again_and_others_are_not(rotated: Federation) -> None:
    stay, move = pc.tkm(k=2), pc.tkm(k=2, moving=True)
    assert stay.at(1)[0].topology.frozen and not move.at(1)[0].topology.frozen
    run = prepare(move, rotated)
    state, _ = pc.run_round(move, run.state, run.clients)
    swapped = pc.State(state.centers, state.kept, {"assignment": 1 - state.memory["assignment"]}, 1)
    kept, _ = pc.run_round(stay, swapped, run.clients)
    assert torch.equal(kept.memory["assignment"], swapped.memory["assignment"])


# -- trimming ------------------------------------------------------------------------------------------------


@LAW
@given(st.integers(0, 10**6), st.sampled_from([1e6, -1e6, 50.0]), st.integers(0, 2))
def test_centers_stay_in_the_honest_range(seed: int, lie: float, bad: int) -> None:
    """T3, through the clustering: two groups of ten, and at most floor(0.2 * 10) attackers wherever they go."""
    rows, truth = groups(seed, 2, 10, apart=100.0)
    honest = rows.clone()
    rows[(truth == 0).nonzero()[:bad, 0]] += lie
    rule = pc.TrimmedMean(0.2)
    found = placed(TrimmedSeeding(2, rule=rule, outliers=0.2), rows)
    liar = (rows != honest).any(1)
    assert agreement(found[~liar].numpy(), truth[~liar].numpy()) == 1.0
    for g in torch.unique(found).tolist():
        center, mine = rule.of(rows[found == g]), honest[(found == g) & ~liar]
        assert bool((center >= mine.min(0).values - 1e-9).all()) and bool((center <= mine.max(0).values + 1e-9).all())


@pytest.mark.parametrize("outliers", [0.1, 0.2, 0.29])
def test_as_many_rows_as_are_outliers_count_nowhere(outliers: float) -> None:
    """floor(outliers n) of a hundred: the farthest are no seeds, and the distance is that of the others."""
    topology = TrimmedSeeding(2, rule=pc.TrimmedMean(0.2), outliers=outliers)
    distance = torch.arange(100, dtype=torch.float64) + 1
    inner = topology._inner(distance)
    assert int((inner == 0).sum()) == round(100 * outliers)
    assert torch.equal(inner[inner > 0], distance[: 100 - round(100 * outliers)])
    rows = torch.zeros(100, 2, dtype=torch.float64)
    rows[:50, 0] += 10
    rows[-round(100 * outliers) :] += 1e4 * random(0, round(100 * outliers), 2)
    for restart in range(10):
        total, _ = topology.trimmed(rows, everyone(100), restart)
        seeds = topology._seeds(rows, [(restart + 0.5) / 20, 0.999999])  # the second is drawn as late as can be
        assert float(seeds[:, :50].min(0).values.max()) == 0 and total >= 0


@LAW
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.sampled_from([0.0, 0.1, 0.29, 0.49]))
def test_of_equally_far_rows_the_first_are_left_out(distances: list[int], outliers: float) -> None:
    topology, plain = TrimmedSeeding(2, rule=pc.TrimmedMean(0.2), outliers=outliers), [float(d) for d in distances]
    farthest = sorted(range(len(plain)), key=lambda i: (-plain[i], i))[: int(outliers * len(plain) + 1e-9)]
    right = [0.0 if i in farthest else d for i, d in enumerate(plain)]
    assert topology._inner(torch.tensor(plain, dtype=torch.float64)).tolist() == right


def plain_trimmed(topology: TrimmedSeeding, rows: Tensor, seeds: Tensor) -> Tensor:
    """The definition, center by center; all centers and all distances anew."""
    distance, nearest = seeds.clone(), seeds.argmin(0)
    for _ in range(topology.iterations):
        for center in torch.unique(nearest).tolist():
            distance[center] = (rows - topology.rule.of(rows[nearest == center])).square().sum(1)
        last, nearest = nearest, distance.argmin(0)
        if torch.equal(last, nearest):
            break
    return nearest


@LAW
@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from([1, 1 << 22]))
def test_only_centers_whose_rows_changed_are_found_anew_and_none_is_missed(seed: int, k: int, numbers: int) -> None:
    rows, cohort = random(seed, 60, 3), everyone(60)
    topology = TrimmedSeeding(k, rule=pc.TrimmedMean(0.1), outliers=0.1)
    seeds = topology._seeds(rows, uniform(*cohort.key, "seeding", 0, torch.arange(k)).tolist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeding, "NUMBERS", numbers)
        assert torch.equal(topology.trimmed(rows, cohort, 0)[1], plain_trimmed(topology, rows, seeds))


@LAW
@given(st.integers(0, 10**6), st.floats(-1e3, 1e3))
def test_the_partition_does_not_depend_on_where_the_origin_is(seed: int, by: float) -> None:
    """T4."""
    rows, _ = groups(seed, 3, 6)
    topology = TrimmedSeeding(3, rule=pc.TrimmedMean(0.1), outliers=0.1)
    assert torch.equal(placed(topology, rows + by), placed(topology, rows))


@pytest.mark.parametrize("n", range(1, 8))
def test_trimming_more_than_there_is_falls_back_to_the_median(n: int) -> None:
    """T5: beta so near 1/2 that floor(beta n) would leave nothing."""
    rows = random(n, n, 3)
    beta = 0.5 - 1e-12  # of two rows one would be dropped on either side
    torch.testing.assert_close(pc.TrimmedMean(beta).of(rows), pc.Median().of(rows))
    assert bool(pc.TrimmedMean(beta).of(rows).isfinite().all())


@pytest.mark.parametrize("n", [1, 2])
def test_a_cluster_of_one_or_two_is_its_mean(n: int) -> None:
    rows = random(0, n, 3)
    for beta in (0.0, 0.05, 0.2, 0.49):
        torch.testing.assert_close(pc.TrimmedMean(beta).of(rows), rows.mean(0))


def test_three_are_trimmed_from_a_third_up() -> None:
    rows = torch.tensor([[0.0], [1.0], [1e9]])
    assert float(pc.TrimmedMean(0.34).of(rows)) == 1.0
    assert float(pc.TrimmedMean(0.33).of(rows)) > 1e8


# -- the clustering ------------------------------------------------------------------------------------------


@LAW
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from(["kmeans++", "random"]))
def test_groups_far_apart_are_found(seed: int, k: int, seeding: Any) -> None:
    rows, truth = groups(seed, k, 8, apart=100.0)
    found = placed(TrimmedSeeding(k, 20, seeding=seeding, rule=pc.TrimmedMean(0.1), outliers=0.1), rows)
    assert agreement(found.numpy(), truth.numpy()) == 1.0


@pytest.mark.parametrize("rule", [pc.TrimmedMean(0.2), pc.Median(), pc.GeometricMedian()], ids=repr)
@pytest.mark.parametrize("seed", range(5))
def test_groups_are_found_under_far_outliers_which_plain_k_means_does_not(rule: Robust, seed: int) -> None:
    rows, truth = groups(seed, 2, 20, apart=20.0)
    attackers = torch.arange(40) < 4  # at most floor(0.2 n) wherever they go
    rows[attackers] = 1e4 * random(seed + 2, 4, 5)
    honest = ~attackers

    def agrees(topology: Seeding) -> float:
        return agreement(placed(topology, rows)[honest].numpy(), truth[honest].numpy())

    assert agrees(TrimmedSeeding(2, rule=rule, outliers=0.2)) == 1.0
    assert agrees(Seeding(2)) < 0.5
    assert agrees(TrimmedSeeding(2, rule=rule, outliers=0.0)) < 0.5  # it is the trimming that does it


def test_without_trimming_it_is_the_other_clustering() -> None:
    rows, _ = groups(3, 3, 10, apart=5.0)
    trimmed = placed(TrimmedSeeding(3, 20, 100, rule=pc.TrimmedMean(0.0)), rows)
    assert agreement(trimmed.numpy(), placed(Seeding(3), rows).numpy()) == 1.0


def test_fewer_different_rows_than_centers_leave_centers_empty() -> None:
    rows = torch.tensor([[0.0, 0], [0, 0], [9, 9], [9, 9]]).double()
    found = placed(TrimmedSeeding(4, rule=pc.TrimmedMean(0.1)), rows)
    assert len(torch.unique(found)) == 2 and found[0] == found[1] != found[2] == found[3]


def test_all_rows_equal_are_one_cluster() -> None:
    assert placed(TrimmedSeeding(3, rule=pc.Median()), torch.ones(5, 2)).tolist() == [0] * 5


def test_nobody_is_nowhere() -> None:
    assert len(placed(TrimmedSeeding(3, rule=pc.Median()), torch.ones(0, 2))) == 0


def test_a_distance_does_not_cancel_beside_a_row_far_out() -> None:
    rows = torch.tensor([[1.0, 0.0], [1.0, 1e-3], [1e15, 1e15]], dtype=torch.float64).repeat(1, 40_000)
    near = distances_as_they_are(rows, rows[:1])[0]
    assert float(near[1]) == pytest.approx(40_000 * 1e-6, rel=1e-9)
    assert float(near[2]) == pytest.approx(80_000 * 1e30, rel=1e-9)


# -- the method ----------------------------------------------------------------------------------------------


def error(run: pc.Run) -> float:
    """The root of the mean squared distance to the true parameters, over honest clients."""
    return float((2 * run.metrics["macro_loss"]) ** 0.5)


@pytest.mark.parametrize(
    "attack", [pc.SignFlip(0.1, 3.0), pc.LargeNorm(0.1), pc.SameValue(0.1, 50.0), pc.LabelFlip(0.1)]
)
def test_trimming_beats_the_mean_by_half_under_every_attack(attack: Any) -> None:
    federation = deal(mixture(k=2, clients=80), Natural())
    training = {"k": 2, "lr": 0.3, "batch": None, "steps": 1, "warm_up": 40}

    def under(beta: float) -> float:
        return error(
            pc.run(pc.tkm(beta=beta, **training), federation, model="logistic", rounds=10, attack=attack, fine_tune=0)
        )

    assert under(0.2) < 0.5 * under(0.0)


@pytest.mark.parametrize("rule", [pc.Mean(), pc.Median(), pc.GeometricMedian(), pc.Krum(0.1, keep=3)], ids=repr)
def test_another_rule_serves_both_stages(rotated: Federation, rule: Any) -> None:
    method = pc.tkm(k=2, aggregate=rule, lr=0.1)
    assert [e.aggregate for e in method.exchanges] == [rule, rule]
    assert pc.run(method, rotated, rounds=2, fine_tune=0).metrics["ari"] == 1.0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"beta": 0.5}, r"beta must be in \[0, 0.5\), got 0.5"),
        ({"restarts": 0}, r"restarts must be in \[1, 10000\], got 0"),
        ({"iterations": 0}, r"iterations must be in \[1, 10000\], got 0"),
        ({"seeding": "luck"}, "seeding must be kmeans\\+\\+ or random, got 'luck'"),
        ({"warm_up": 0}, "epochs must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused_when_built(given: dict[str, Any], text: str) -> None:
    with pytest.raises(pc.UsageError, match=text):
        pc.tkm(**given)
