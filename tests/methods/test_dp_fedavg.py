"""DP-FedAvg and DP-Fed-LS: what they reduce to, what one client can move, and what the noise is."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import polycentric as pc
from polycentric import Gaussian, Method, UsageError, dp_fed_ls, dp_fedavg, fedavg, ifca
from polycentric.parts.accountant import Chance, Release
from polycentric.parts.objective import Ball
from polycentric.runs.guarantee import calibrated, releases, with_noise
from polycentric.runs.recipes import build_method
from polycentric.stacks import Heard
from support import Make, after, assert_same, model, random, ready

TRAINING: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch": 5}
FREE: dict[str, Any] = {"clip": math.inf, "noise": 0.0, "select": pc.Everyone()}
SIZES = (23, 7, 12, 4, 30, 9)


# -- reductions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("select", [pc.Everyone(), pc.Poisson(1.0), pc.Uniform(share=1.0)])
@pytest.mark.parametrize("make", [dp_fedavg, lambda **how: dp_fed_ls(sigma=0.0, project=False, **how)])
def test_S2_without_clip_noise_and_sampling_it_is_fedavg_that_counts_clients(
    make: Any, select: Any, blobs: Make
) -> None:
    assert_same(
        model(make(**FREE | {"select": select}, **TRAINING), blobs(SIZES)),
        model(fedavg(equal=True, **TRAINING), blobs(SIZES)),
    )


def test_S1_without_smoothing_dp_fed_ls_is_dp_fedavg_bit_for_bit(blobs: Make) -> None:
    how: dict[str, Any] = {"select": pc.Poisson(0.7), "clip": 0.3, "noise": 1.0, **TRAINING}
    methods = dp_fedavg(project=True, **how), dp_fed_ls(sigma=0.0, **how), dp_fed_ls(sigma=1.0, **how)
    plain, none, some = (ready(m, blobs(SIZES), rounds=3).go().state.centers["model"] for m in methods)
    assert torch.equal(plain, none) and not torch.allclose(plain, some)


def test_S7_epsilon_does_not_depend_on_smoothing(blobs: Make) -> None:
    runs = [
        ready(dp_fed_ls(sigma=s, select=pc.Poisson(0.5), **TRAINING), blobs(SIZES), rounds=3).go()
        for s in (0.0, 1.0, 3.0)
    ]
    assert len({run.summary()["epsilon"] for run in runs}) == 1


def test_held_out_clients_do_not_count_in_the_denominator(blobs: Make) -> None:
    held: dict[str, Any] = {"rounds": 2, "held_out": 0.34}
    run = ready(dp_fedavg(**FREE, **TRAINING), blobs(SIZES), **held).go()
    plain = ready(fedavg(equal=True, **TRAINING), blobs(SIZES), **held).go()
    assert_same(run.state.centers["model"], plain.state.centers["model"])


# -- what leaves, and what one client moves ------------------------------------------------------------------


def test_S8_projected_steps_and_what_is_sent_stay_within_the_clip(blobs: Make) -> None:
    start, new = random(0, 40), random(1, 40) * 5
    found = Ball(0.7).correct(new, {"start": start}, 0.1)
    assert float((found - start).norm()) == pytest.approx(0.7)
    assert torch.equal(Ball(100.0).correct(new, {"start": start}, 0.1), start + (new - start))
    run = ready(dp_fed_ls(select=pc.Everyone(), clip=0.05, noise=0.0, **TRAINING), blobs(SIZES))
    exchange = run.method.exchanges[0]
    for answer in run.clients.answers(exchange, run.state, run.clients.everyone(0)):
        length = (answer.sent["model"] - run.state.centers["model"]).norm(dim=1)
        assert bool((length <= 0.05 * (1 + 1e-6)).all()) and float(length.max()) > 0.049


@pytest.mark.parametrize("make", [dp_fedavg, dp_fed_ls])
def test_removing_a_client_moves_the_sum_by_at_most_the_clip_and_replacing_it_by_twice(make: Any, blobs: Make) -> None:
    """Over M = q m, whoever else is there: measured before the noise and the smoothing."""
    method = make(
        select=pc.Everyone(), clip=0.05, noise=0.0, **({"sigma": 0.0} if make is dp_fed_ls else {}), **TRAINING
    )
    run = ready(method, blobs(SIZES))
    everyone = run.clients.everyone(0)

    def moved(who: Tensor) -> Tensor:
        object.__setattr__(run.clients, "everyone", lambda round, turn=0: replace(everyone[who], might=len(everyone)))
        return len(everyone) * (pc.run_round(method, run.state, run.clients)[0].centers["model"] - start)[0]

    start = run.state.centers["model"]
    every = torch.arange(6)
    whole = moved(every)
    one = [float((whole - moved(every[every != k])).norm()) for k in range(6)]
    assert max(one) == pytest.approx(0.05, rel=1e-5)
    three, four = (moved(torch.tensor([0, 1, 2, k])) for k in (3, 4))
    assert 0.01 < float((three - four).norm()) <= 0.1 * (1 + 1e-5)


@pytest.mark.parametrize(
    ("select", "expected", "cohort"),
    [(pc.Poisson(1e-9), 6e-9, 0), (pc.Uniform(share=0.5), 3, 3), (pc.Everyone(), 6, 6)],
)
def test_the_noise_has_the_scale_that_is_stated_also_if_nobody_comes(
    select: Any, expected: float, cohort: int, blobs: Make
) -> None:
    how: dict[str, Any] = {"select": select, "clip": 2.0, "epochs": 1, "lr": 1e-12}
    federation = pc.load("digits", clients=6)
    run = ready(dp_fedavg(noise=1.5, **how), federation, model="mlp", dtype="float64")
    state, trips = pc.run_round(run.method, run.state, run.clients)
    assert len(trips[0].arrived) == cohort
    drawn = state.centers["model"] - run.state.centers["model"]
    assert float(drawn.std()) == pytest.approx(1.5 * 2.0 / expected, rel=0.03)


def test_secret_noise_is_another_every_time(blobs: Make) -> None:
    how: dict[str, Any] = {"select": pc.Everyone(), "clip": 1.0, "noise": 1.0, **TRAINING}
    a, b, plain = (model(dp_fedavg(secret=s, **how), blobs(SIZES), rounds=1) for s in (True, True, False))
    still = model(dp_fedavg(**how | {"noise": 0.0}), blobs(SIZES), rounds=1)
    assert not torch.equal(a, b) and not torch.equal(a, plain)
    for noised in (a, b, plain):
        assert float((noised - still).std()) == pytest.approx(1 / 6, rel=0.5)


# -- a clip that adapts --------------------------------------------------------------------------------------


def test_the_clip_finds_the_quantile_of_the_lengths_and_costs_nothing_more(blobs: Make) -> None:
    """Without noise it settles where that share of the updates is shorter, from above and from below."""
    how: dict[str, Any] = {"select": pc.Everyone(), "noise": 0.0, "quantile": 0.5, "pace": 0.5, "lr": 1e-3, "epochs": 1}
    for first in (1e-4, 0.1):
        run = ready(dp_fedavg(clip=first, **how), blobs(SIZES), rounds=25, evaluate_every=25, fine_tune=0).go()
        clip = float(run.state.centers["clip"])
        free = ready(dp_fedavg(**FREE, lr=1e-3, epochs=1), blobs(SIZES))
        sent = next(iter(free.clients.answers(free.method.exchanges[0], run.state, free.clients.everyone(25)))).sent
        lengths = (sent["model"] - run.state.centers["model"]).norm(dim=1).sort().values
        assert 0.8 * float(lengths[1]) < clip < 1.25 * float(lengths[4])
    both = [releases(dp_fedavg(select=pc.Poisson(0.5), quantile=q), 9, 100) for q in (None, 0.5)]
    assert both[0] == both[1] == [Release(1.0, Chance("poisson", 0.5), "add", 9)]


def test_bits_and_counts_take_their_part_of_the_noise() -> None:
    """1 / z'^2 + 1 / (2 s_b)^2 + 1 / s_c^2 = 1 / z^2 for every number of clients."""
    for clients in (3, 50, 4000):
        beside = max(clients / 20, 2 * 1.3)
        for bits, counts in ((0.5, None), (None, 2.0)):
            privacy = Gaussian(1.0, 1.3, quantile=bits, least=counts)
            cost = 1 / (2 * beside) ** 2 if bits else 1 / beside**2
            assert privacy._of_model(beside) ** -2 + cost == pytest.approx(1.3**-2)


# -- several centers -----------------------------------------------------------------------------------------


def test_private_ifca_without_noise_is_ifca(blobs: Make) -> None:
    plain = after(ifca(k=2, **TRAINING), blobs(SIZES))
    hidden = after(ifca(k=2, privacy=Gaussian(1e6, 0.0, least=1), **TRAINING), blobs(SIZES))
    torch.testing.assert_close(hidden.centers["model"], plain.centers["model"], rtol=1e-8, atol=1e-8)
    assert torch.equal(hidden.memory["assignment"], plain.memory["assignment"])


def test_every_center_gets_noise_of_one_scale_whoever_chose_it_and_small_ones_stay() -> None:
    """Also a center that nobody chose: otherwise its rest would tell that."""
    how: dict[str, Any] = {"k": 3, "lr": 1e-12, "epochs": 1}
    run = ready(ifca(privacy=Gaussian(2.0, 0.5, least=1e-6), **how), pc.load("digits", clients=8), dtype="float64")
    exchange, everyone = run.method.exchanges[0], run.clients.everyone(0)
    memory = run.state.memory | {"assignment": torch.zeros(8, dtype=torch.int64)}
    still, all_ = torch.zeros(3, 30_000, dtype=torch.float64), torch.ones(3, dtype=torch.bool)
    share = torch.full((3, 1), 100.0, dtype=torch.float64)  # as if 800 had chosen each: the noise on it is nothing

    def told(least: float) -> Tensor:
        heard = {"model": Heard(still, all_), "count": Heard(share, all_)}
        hides, up = Gaussian(2.0, 0.5, least=least), partial(exchange.up, memory)
        return hides.at_centers(heard, {"model": still}, up, everyone, everyone)["model"].values

    scale = Gaussian(2.0, 0.5, least=1)._of_model(1.0) * 2.0 / 8 / 100
    torch.testing.assert_close(told(1.0).std(1), torch.full((3,), scale, dtype=torch.float64), rtol=0.03, atol=0)
    assert torch.equal(told(1e6), still)  # every count is below a million: all stay


def test_leaving_any_client_out_of_private_ifca_moves_all_centers_together_by_one_clip(blobs: Make) -> None:
    method = ifca(k=2, privacy=Gaussian(0.05, 0.0, least=1), **TRAINING)
    run = ready(method, blobs(SIZES))
    exchange, everyone = run.method.exchanges[0], run.clients.everyone(0)
    answer = next(iter(run.clients.answers(exchange, run.state, everyone)))
    memory = run.state.memory | {"assignment": answer.sent["choice"][:, 0].long()}
    update = answer.sent["model"] - run.state.centers["model"][memory["assignment"]]
    order = torch.argsort(answer.block.index)
    up = exchange.up(memory, everyone, "model").to_dense()
    for k in range(6):
        moved = len(everyone) * up[:, k, None] * update[order[k]]
        assert float(moved.norm()) <= 0.05 * (1 + 1e-5)
        assert int((up[:, k] > 0).sum()) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ifca(privacy=Gaussian(1.0, 1.0)), r"use gaussian\(..., least=2\), which counts"),
        (lambda: ifca(first="clustered", privacy=Gaussian(1.0, 1.0, least=2)), "privacy needs first='random'"),
        (lambda: fedavg(privacy=Gaussian(1.0, 1.0, quantile=0.5)), "a quantile is of clients that count the same"),
        (lambda: fedavg(privacy=Gaussian(1.0, 1.0, least=2)), "least=2 takes the place of a fixed denominator"),
        (lambda: dp_fedavg(project=True, quantile=0.5), "project=True needs a clip that stays"),
        (lambda: dp_fedavg(noise=1.0, epsilon=1.0), "Gaussian takes noise or epsilon"),
        (lambda: dp_fedavg(select=pc.Poisson(0.0)), "rate must be in"),
        (lambda: dp_fedavg(quantile=1.5), "quantile must be in"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


# -- noise for an epsilon ------------------------------------------------------------------------------------


def test_noise_is_found_for_the_rounds_of_a_run(blobs: Make) -> None:
    run = ready(dp_fedavg(select=pc.Poisson(0.5), epsilon=3.0, **TRAINING), blobs(SIZES), rounds=4).go()
    assert 2.98 < run.summary()["epsilon"] <= 3.0
    found = run.method.exchanges[0].privacy
    assert isinstance(found, Gaussian) and found.epsilon is None and found.noise is not None
    assert with_noise(dp_fedavg(select=pc.Poisson(0.5), epsilon=3.0), 2.0).exchanges[0].privacy == Gaussian(1.0, 2.0)
    assert calibrated(fedavg(), 4, 6, 0.1) == fedavg()


def test_by_words() -> None:
    words = build_method(
        "dp-fedavg", {"select": "poisson(rate=0.05)", "denoise": "laplacian=2", "center": "momentum(lr=0.5)"}
    )
    assert words == dp_fedavg(select=pc.Poisson(0.05), denoise=pc.Laplacian(2.0), center=pc.Momentum(lr=0.5))
    assert isinstance(words, Method) and build_method("dp-fed-ls", {"sigma": 2}) == dp_fed_ls(sigma=2.0)
