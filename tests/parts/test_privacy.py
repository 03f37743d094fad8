"""Client-level privacy: what leaves a client is short, what a center adds is enough, and nothing else leaks by."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import kstest
from torch import Tensor

import polycentric as pc
from polycentric import Gaussian, Method, UsageError
from polycentric.cli import outcome
from polycentric.method import Exchange
from polycentric.methods import METHODS
from polycentric.parts.accountant import Chance, Release, epsilon
from polycentric.parts.denoise import Laplacian
from polycentric.parts.privacy import reach
from polycentric.runs.recipes import build_method
from polycentric.runs.start import prepare
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.mixing import Heard, Mixing
from polycentric.topology import Cells, Star
from polycentric.topology.cells.tables import GivenCells
from support import Make, everyone, random, ready

pytestmark = pytest.mark.filterwarnings("ignore:clients count by their examples")
LAW = settings(max_examples=60)
SIZES = (23, 7, 12, 4, 30, 9)
SIX = GivenCells.of(torch.tensor([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 0], [1, 0, 0, 0, 1, 1]]))
TRAINING: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch": 5}
RECIPES: dict[str, dict[str, Any]] = {
    "fedavg": {}, "fedprox": {"mu": 0.1}, "fedmes": {"cells": SIX, "alpha_v": 1.5}, "hierarchical": {"cells": SIX},
}  # fmt: skip
every_recipe = pytest.mark.parametrize("name", RECIPES)


def built(name: str, privacy: Any, **more: Any) -> Method:
    return METHODS[name](**RECIPES[name] | TRAINING | {"privacy": privacy} | more)


# -- at the clients ------------------------------------------------------------------------------------------


@every_recipe
@pytest.mark.parametrize("executor", ["looped", "stacked"])
def test_without_clip_and_noise_it_is_no_privacy_bit_for_bit(name: str, executor: str, blobs: Make) -> None:
    how = {"executor": executor, "dtype": "float32", "rounds": 3}
    with_it = ready(built(name, Gaussian(math.inf, 0.0)), blobs(SIZES), **how).go()
    without = ready(METHODS[name](**RECIPES[name] | TRAINING), blobs(SIZES), **how).go()
    assert torch.equal(with_it.state.centers["model"], without.state.centers["model"])
    assert with_it.history == without.history and with_it.summary()["epsilon"] is None


@LAW
@given(
    st.integers(0, 10**6), st.floats(-3, 3), st.floats(-3, 4), st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_no_update_is_longer_than_the_clip(seed: int, clip: float, far: float, dtype: torch.dtype) -> None:
    """S8, whatever the model they begin from; short ones are sent as they are, long ones keep their direction."""
    start = (10**far * random(seed, 6, 40)).to(dtype)
    update = torch.logspace(-4, 4, 6, dtype=torch.float64)[:, None] * random(seed + 1, 6, 40)
    model, bound = (start + update).to(dtype), 10**clip
    rows = {"start": start, "model": model, "other": update}
    sent = Gaussian(bound, 1.0).at_clients(rows)
    length = (sent["model"].double() - start.double()).norm(dim=1)
    assert bool((length <= bound * (1 + 1e-6)).all()) and sent["other"] is update
    before = (model.double() - start.double()).norm(dim=1)
    assert torch.equal(sent["model"][before <= bound], model[before <= bound])
    if dtype == torch.float64 and far < 1:
        long = before > bound
        expected = start + update * (bound / before)[:, None]
        torch.testing.assert_close(sent["model"][long], expected[long], rtol=1e-5, atol=1e-6 * bound)


def test_an_update_that_is_not_finite_is_sent_as_none() -> None:
    start, model = random(0, 3, 5), random(1, 3, 5)
    model[0, 2], model[1, 0] = math.nan, math.inf
    sent = Gaussian(1.0, 1.0).at_clients({"start": start, "model": model})["model"]
    assert torch.equal(sent[:2], start[:2]) and sent.isfinite().all()


# -- at the centers ------------------------------------------------------------------------------------------


def added(privacy: Gaussian, up: Mixing, width: int, who: Cohort) -> Tensor:
    heard = {"model": Heard(torch.zeros(up.shape[0], width, dtype=torch.float64), up.total > 0)}
    return privacy.at_centers(heard, {}, lambda cohort, name: up, who, who)["model"].values


@pytest.mark.parametrize("noise", [0.5, 3.0])
def test_noise_is_normal_with_the_variance_that_is_promised(noise: float) -> None:
    """Per center noise * clip * s_i, s_i by the heaviest client; other centers, rounds and seeds draw anew."""
    up = Mixing.sparse(
        torch.tensor([0, 0, 0, 1, 1]), torch.arange(5), torch.tensor([3.0, 1.0, 1.0, 1.0, 1.0]).double(), (2, 5)
    )
    found, width = added(Gaussian(2.0, noise), up, 200_000, everyone(5)), 200_000
    for center, share in enumerate((0.6, 0.5)):
        drawn = found[center] / (noise * 2.0 * share)
        assert float(drawn.var()) == pytest.approx(1, abs=5 / math.sqrt(width)) and abs(float(drawn.mean())) < 0.015
        assert kstest(drawn[:5000].numpy(), "norm").pvalue > 1e-3
    others = [added(Gaussian(2.0, noise), up, 20_000, everyone(5, *key)) for key in ((1, 0), (0, 1))]
    for other in (found[1, :20_000], others[0][0], others[1][0]):
        assert abs(float(torch.corrcoef(torch.stack([found[0, :20_000], other]))[0, 1])) < 0.03
    assert torch.equal(found, added(Gaussian(2.0, noise), up, 200_000, everyone(5)))


@LAW
@given(st.integers(2, 12), st.integers(1, 6), st.integers(0, 10**6), st.sampled_from(["share", "keep", "none"]))
def test_no_client_moves_all_centers_together_by_more_than_one(n: int, k: int, seed: int, rest: Any) -> None:
    """sum_i (a_ik / s_i)^2 <= 1 for every client: the joint norm, also of who is heard in several places."""
    weight = torch.rand(k, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weight[torch.rand(k, n, generator=torch.Generator().manual_seed(seed + 1)) < 0.5] = 0
    up = Mixing.dense(weight, rest)
    scale = reach(up)
    a = weight / weight.sum(1, keepdim=True).clamp(min=1e-300) if rest == "share" else weight
    joint = torch.where(scale[:, None] > 0, a / scale.clamp(min=1e-300)[:, None], 0.0).square().sum(0)
    assert float(joint.max()) <= 1 + 1e-12
    apart = Mixing.scatter(torch.arange(n) % k, k, random(seed, n).abs() + 0.1)  # nobody is heard twice
    receiver, _, own = apart.links
    assert torch.allclose(reach(apart)[receiver], torch.stack([
        (own[receiver == r] / own[receiver == r].sum()).max() for r in receiver.tolist()
    ]))  # fmt: skip


@every_recipe
def test_leaving_out_any_update_moves_the_centers_by_no_more_than_is_hidden(name: str, blobs: Make) -> None:
    """Measured: a round with and without the update of each client, over all centers, in units of the noise."""
    method = built(name, Gaussian(0.05, 0.0), every=0) if name == "hierarchical" else built(name, Gaussian(0.05, 0.0))
    run = ready(method, blobs(SIZES))
    exchange, state = method.exchanges[0], run.state
    start = random(3, *state.centers["model"].shape)
    state = replace(state, centers={"model": start}, memory=state.memory | (
        {"heard": torch.tensor([30.0, 40.0, 50.0], dtype=torch.float64)} if "heard" in state.memory else {}
    ))  # fmt: skip
    scale = 0.05 * reach(exchange.topology.up(state.memory, run.clients.everyone(0), "model"))
    whole = pc.run_round(method, state, run.clients)[0].centers["model"]
    answers = run.clients.answers
    moved = []
    for k in range(6):

        def without(exchange: Exchange, state: Any, cohort: Cohort, k: int = k) -> Any:
            for answer in answers(exchange, state, cohort):
                mine = (answer.block.index == k).nonzero()[:, 0]
                sent = answer.sent["model"].clone()
                sent[mine] = (exchange.topology.down(state.memory, answer.block, "model") @ state.centers["model"])[
                    mine
                ]
                yield replace(answer, sent=answer.sent | {"model": sent})

        object.__setattr__(run.clients, "answers", without)
        other = pc.run_round(method, state, run.clients)[0].centers["model"]
        moved.append(float(((whole - other) / scale[:, None]).norm()))
    assert max(moved) <= 1 + 1e-6 and min(moved) > 0.01
    if name in ("fedavg", "fedprox"):
        assert max(moved) == pytest.approx(1, rel=1e-5)  # the largest client's update is longer than the clip


def test_a_fixed_denominator_counts_everyone_who_might_have_come_and_noise_comes_even_if_nobody_does() -> None:
    exchange = Exchange(
        learn=(pc.Train(**TRAINING),),
        topology=Star(denominator=3.0),
        select=pc.Poisson(1e-9),
        privacy=Gaussian(2.0, 1.5),
    )
    federation = pc.load("digits", clients=6)
    run = prepare(Method.of("private", exchange), federation, model="logistic", dtype="float64")
    state, trips = pc.run_round(run.method, run.state, run.clients)
    assert len(trips[0].arrived) == 0
    drawn = state.centers["model"] - run.state.centers["model"]
    assert float(drawn.std()) == pytest.approx(2.0 * 1.5 / 3, rel=0.1)


@every_recipe
def test_noise_is_the_same_for_every_executor(name: str, blobs: Make) -> None:
    method = built(name, Gaussian(1.0, 0.5), select=pc.Uniform(4))
    a, b = (ready(method, blobs(SIZES), executor=executor, rounds=3).go() for executor in ("looped", "stacked"))
    torch.testing.assert_close(a.state.centers["model"], b.state.centers["model"], rtol=1e-9, atol=1e-9)
    plain = ready(built(name, Gaussian(1.0, 0.0), select=pc.Uniform(4)), blobs(SIZES), rounds=3).go()
    assert not torch.allclose(a.state.centers["model"], plain.state.centers["model"], atol=0.01)


# -- what it is worth ----------------------------------------------------------------------------------------


def test_a_release_says_who_neighbours_are_by_how_clients_are_drawn_and_counted() -> None:
    z, poisson, fixed, everybody = 1.5, Chance("poisson", 0.1), Chance("fixed", 0.1, 10, 100), Chance()
    told = {
        (poisson, "fixed"): Release(z, poisson, "add"),
        (everybody, "fixed"): Release(z, everybody, "add"),
        (fixed, "clients"): Release(z / 2, fixed, "replace"),
        (fixed, "fixed"): Release(z / 2, fixed, "replace"),
        (fixed, "examples"): Release(z),
        (poisson, "examples"): Release(z),
        (poisson, "clients"): Release(z),
        (everybody, "clients"): Release(z),
    }
    for (chance, weighs), expected in told.items():
        assert Gaussian(1.0, z).release(chance, weighs) == expected
        assert Gaussian(1.0, z, neighbours="zero").release(chance, weighs) == Release(z)
    assert Gaussian(1.0, 0.0).release(poisson, "fixed") is None
    with pytest.raises(UsageError, match=r"neighbours=add does not fit how clients are drawn and counted .*: use zero"):
        Gaussian(1.0, z, neighbours="add").release(poisson, "clients")


@every_recipe
def test_the_summary_tells_the_epsilon_of_the_rounds_so_far(name: str, blobs: Make) -> None:
    private = ready(built(name, Gaussian(1.0, 2.0)), blobs(SIZES), rounds=4).go()
    told = private.summary()
    assert told["epsilon"] == pytest.approx(epsilon([Release(2.0, times=4)], 6**-1.1))
    assert told["privacy"]["client"]["neighbours"] == "zero" and told["privacy"]["client"]["accountant"] == "exact"
    shown = [row.get("epsilon") for row in private.history]
    assert shown[0] is None and shown[1:] == sorted(shown[1:]) and shown[-1] == told["epsilon"]


@pytest.mark.parametrize("name", ["fedsgd", "feddist", "feddws", "reptile", "maml", "fomaml", "meta", "lg-fedavg"])
def test_every_weighted_mean_of_models_can_be_hidden(name: str, blobs: Make) -> None:
    """Bit for bit nothing without clip and noise; with them an epsilon, and updates of the center within the clip."""
    settings: dict[str, Any] = {"rounds": 2} if name == "meta" else {}
    plain, free, hidden = (
        ready(METHODS[name](**settings, **part), blobs(SIZES), rounds=3).go()
        for part in ({}, {"privacy": Gaussian(math.inf, 0.0)}, {"privacy": Gaussian(0.01, 2.0)})
    )
    assert torch.equal(plain.state.centers["model"], free.state.centers["model"])
    assert not torch.allclose(plain.state.centers["model"], hidden.state.centers["model"])
    assert hidden.summary()["epsilon"] == pytest.approx(epsilon([Release(2.0, times=3)], 6**-1.1))


def test_from_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "fedavg", "--clients", "6", "--rounds", "2", "--model", "logistic", "--out", str(tmp_path / "run")]
    assert outcome([*words, "--set", "privacy=gaussian(clip=0.5, noise=1)", "--set", "privacy.noise=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == pytest.approx(epsilon([Release(2.0, times=2)], 6**-1.1))
    assert build_method("fedmes", {"privacy": "gaussian(clip=1, noise=0.5)"}) == pc.fedmes(privacy=Gaussian(1.0, 0.5))
    assert build_method("fedavg", {"privacy": "none"}) == pc.fedavg()


# -- where it is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: pc.fedavg(select=pc.Active(5), privacy=p), "Gaussian protects model, but value would leave"),
        (lambda p: pc.fedprox(adaptive=True, privacy=p), "but loss would leave the clients unprotected"),
        (lambda p: pc.fedavg(aggregate=pc.Median(), privacy=p), "Median is not a sum with weights"),
        (lambda p: pc.fedmes(models=2, privacy=p), "where clients belong in CellClusters is found from what they send"),
        (lambda p: replace(pc.fesem().at(1)[-1], privacy=p), "where clients belong in Clusters"),
        (lambda p: replace(pc.cfl().exchanges[0], privacy=p), "where clients belong in Splitting"),
        (lambda p: replace(pc.dpsgd().exchanges[0], privacy=p), "without a center that could add noise"),
        (lambda p: replace(pc.fedcurv().exchanges[0], privacy=p), "would leave the clients unprotected"),
        (lambda p: replace(pc.mtl().exchanges[0], privacy=p), "task would leave the clients unprotected"),
    ],
)  # fmt: skip
def test_what_it_cannot_hide_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(Gaussian(1.0, 1.0))


@pytest.mark.parametrize(
    ("clip", "noise", "message"),
    [
        (0.0, 1.0, "clip must be positive, got 0"),
        (1.0, None, "takes noise or epsilon"),
        (1.0, -1.0, "noise must be in \\[0, inf\\), got -1"),
        (1.0, math.nan, "noise must be in \\[0, inf\\), got nan"),
        (math.inf, 1.0, "needs a finite clip, got clip=inf"),
    ],
)
def test_bad_settings_are_refused(clip: float, noise: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Gaussian(clip, noise)


def test_cells_are_the_ones_that_are_tested() -> None:
    """SIX has clients in one cell and in two, so that the laws above see both."""
    covers = Cells(SIX).cells_at(everyone(6)).covers
    assert sorted(set(covers.tolist())) == [1, 2]


# -- bits, and what is done after the noise --------------------------------------------------------------------


def noised(part: Gaussian, m: int, values: Tensor, centers: dict[str, Tensor]) -> dict[str, Heard]:
    """What one center tells of m clients that count the same over a fixed number, all there."""
    cohort = everyone(m)

    def up(who: Cohort, name: str) -> Mixing:
        return Mixing.dense(torch.full((1, len(who)), 1 / m, dtype=torch.float64), "none")

    mask = torch.ones(1, dtype=torch.bool)
    heard = {"model": Heard(values, mask)}
    heard |= {"below": Heard(torch.zeros(1, 1, dtype=torch.float64), mask)} if part.quantile else {}
    return part.at_centers(heard, centers, up, cohort, cohort)


@pytest.mark.parametrize(("m", "bits"), [(1000, 50.0), (20, 2.0)])
def test_bits_take_a_little_of_the_noise_and_the_model_gets_the_rest(m: int, bits: float) -> None:
    """s_b = m / 20, or 2 z where that is more; 1 / z'^2 = 1 / z^2 - 1 / (2 s_b)^2."""
    start = {"model": torch.zeros(1, 4, dtype=torch.float64), "clip": torch.ones(1, 1, dtype=torch.float64)}
    start |= {"below": torch.zeros(1, 1, dtype=torch.float64)}
    plain, adaptive = Gaussian(clip=1.0, noise=1.0), Gaussian(clip=1.0, noise=1.0, quantile=0.5)
    zeros = torch.zeros(1, 4, dtype=torch.float64)
    ratio = noised(adaptive, m, zeros, start)["model"].values / noised(plain, m, zeros, start)["model"].values
    assert torch.allclose(ratio, torch.full((1, 4), (1 - 1 / (2 * bits) ** 2) ** -0.5, dtype=torch.float64))


def test_what_is_denoised_is_the_update_and_it_is_added_again() -> None:
    values, start = random(0, 1, 8), {"model": random(1, 1, 8)}
    smooth = replace(Gaussian(clip=1.0, noise=0.0, denoise=Laplacian(1.0)), sizes=(8,))
    found = noised(smooth, 5, values, start)["model"].values
    update = Laplacian(1.0)(values - start["model"], torch.zeros(1, dtype=torch.float64), [8])
    assert torch.allclose(found, start["model"] + update)
