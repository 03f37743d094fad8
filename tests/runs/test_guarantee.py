"""What a run promises: a budget that is never exceeded, an epsilon that never falls, and warnings where it is weak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import polycentric as pc
from polycentric import Gaussian, Poisson, Star, UsageError, dp_fedavg, fedavg
from polycentric.data.scaling import standardised
from polycentric.method import Exchange, Method
from polycentric.parts.accountant import Chance, Release, epsilon
from polycentric.runs.guarantee import releases
from polycentric.runs.search import search
from support import Make, ready

TRAINING: dict[str, Any] = {"lr": 0.1, "epochs": 1, "batch": 5}
SIZES = (23, 7, 12, 4, 30, 9)


def test_the_budget_ends_a_run_before_it_is_exceeded(blobs: Make) -> None:
    method = dp_fedavg(select=Poisson(0.5), noise=2.0, **TRAINING)
    free = ready(method, blobs(SIZES), rounds=12, evaluate_every=1).go()
    by_round = {row["round"]: row["epsilon"] for row in free.history[1:]}
    budget = (by_round[5] + by_round[6]) / 2
    run = ready(method, blobs(SIZES), rounds=12, evaluate_every=1, epsilon=budget).go()
    assert run.state.round == 5
    assert run.stopped == f"one more round would cost more than epsilon {budget:g} at delta 0.139"
    assert run.summary()["epsilon"] <= budget
    whole = ready(method, blobs(SIZES), rounds=12, epsilon=2 * by_round[12]).go()
    assert whole.state.round == 12 and not whole.stopped


def test_epsilon_is_the_same_after_a_resume_and_rises_with_the_rounds(tmp_path: Path, blobs: Make) -> None:
    how: dict[str, Any] = {"clients": 12, "model": "logistic"}
    settings = {"select": "poisson(rate=0.5)", "noise": 2.0, "lr": 0.1}
    method: dict[str, Any] = {"method": "dp-fedavg", "federation": "digits", "set": settings}
    straight = pc.run(**method, rounds=6, **how)
    pc.run(**method, rounds=3, out=tmp_path / "run", **how)
    again = pc.resume(tmp_path / "run", rounds=6)
    assert torch.equal(again.state.centers["model"], straight.state.centers["model"])
    assert again.summary()["privacy"] == straight.summary()["privacy"]
    shown = [row["epsilon"] for row in again.history[1:]]
    assert shown == sorted(shown) and shown[-1] >= again.summary()["epsilon"]


def test_phases_are_counted_each_with_its_own_noise() -> None:
    def exchange(noise: float) -> Exchange:
        return Exchange((pc.Train(),), Star(expected=0.2), Poisson(0.2), privacy=Gaussian(1.0, noise))

    method = Method("two", ((3, (exchange(1.0),)), (1, (exchange(2.0), exchange(2.0)))))
    chance = Chance("poisson", 0.2)
    assert releases(method, 2, 10) == [Release(1.0, chance, "add", 2)]
    assert releases(method, 5, 10) == [Release(1.0, chance, "add", 3), Release(2.0, chance, "add", 4)]
    assert releases(fedavg(), 5, 10) is None
    mixed = Method("half", ((3, (exchange(1.0),)), (1, fedavg().exchanges)))
    assert releases(mixed, 3, 10) and releases(mixed, 4, 10) is None  # one bare round, and nothing is promised


def test_delta_is_told_and_one_in_clients_is_warned_of(blobs: Make) -> None:
    method = dp_fedavg(select=Poisson(0.5), noise=2.0, **TRAINING)
    run = ready(method, blobs(SIZES), rounds=2, delta=0.01).go()
    told = run.summary()["privacy"]["client"]
    assert told["delta"] == 0.01 and told["neighbours"] == "add" and "one client is missing" in told["meaning"]
    assert told["epsilon"] == pytest.approx(epsilon([Release(2.0, Chance("poisson", 0.5), "add", 2)], 0.01))
    with pytest.warns(UserWarning, match=r"delta=0.5 is not below one in 6 clients.*use delta=0.14 or less"):
        ready(method, blobs(SIZES), rounds=1, delta=0.5).go()


def test_examples_are_counted_by_their_appearances_and_have_an_epsilon_of_their_own(blobs: Make) -> None:
    hidden = fedavg(lr=0.1, epochs=3, batch=5, hide=pc.ExampleNoise(1.0, 4.0))
    run = ready(hidden, blobs(SIZES), rounds=2).go()
    told = run.summary()
    n = int(run.clients.everyone(0).sizes.sum())
    assert set(told["privacy"]) == {"example"} and told["privacy"]["example"]["delta"] == pytest.approx(n**-1.1)
    assert told["epsilon"] == pytest.approx(epsilon([Release(4.0, times=6)], n**-1.1))
    both = ready(dp_fedavg(select=Poisson(0.5), lr=0.1, hide=pc.ExampleNoise(1.0, 4.0)), blobs(SIZES), rounds=1).go()
    assert set(both.summary()["privacy"]) == {"client", "example"}
    gated = pc.gate(lr=0.1, epochs=1, hide=pc.ExampleNoise(1.0, 2.0))
    assert ready(gated, blobs(SIZES), rounds=1).go().summary()["privacy"]["example"]["epsilon"] > 0
    with pytest.warns(UserWarning, match="nothing is promised, and there is no epsilon"):
        joint = pc.gate(lr=0.1, epochs=1, hide=pc.ExampleNoise(1.0, 2.0), joint=True)
    assert ready(joint, blobs(SIZES), rounds=1).go().summary()["privacy"] is None


def test_examples_as_weights_are_told_to_be_public(blobs: Make) -> None:
    with pytest.warns(UserWarning, match="how many each of them has is taken for public"):
        ready(fedavg(privacy=Gaussian(1.0, 1.0), **TRAINING), blobs(SIZES), rounds=1).go()


PRIVATE = dp_fedavg(select=pc.Poisson(0.5), noise=2.0, **TRAINING)
FIXED = dp_fedavg(select=pc.Uniform(share=0.5), noise=2.0, **TRAINING)


@pytest.mark.parametrize(
    ("method", "how", "message"),
    [
        (PRIVATE, {"patience": 3}, "patience=3 chooses the round by the score of the clients' validation examples"),
        (
            PRIVATE,
            {"patience": 3, "monitor": "macro_f1"},
            "patience=3 chooses the round by the macro_f1 of the clients'",
        ),
        (PRIVATE, {"target": 0.9}, "target=0.9 chooses the round by the score of the clients' test examples"),
        (FIXED, {"clock": "physical(deadline=100)"}, "deadline=100 lets it show who was late"),
    ],
)
def test_what_reads_examples_beside_the_noise_is_warned_of(method: Method, how: Any, message: str, blobs: Make) -> None:
    federation, plain = blobs(SIZES, valid=3), {"rounds": 1, "delta": 0.01}
    with pytest.warns(UserWarning, match=f"{message}.*which no noise hides and epsilon does not count"):
        ready(method, federation, **plain, **how).go()
    ready(fedavg(**TRAINING), federation, rounds=1, **how).go()  # nothing is promised, and nothing is said
    ready(method, federation, **plain).go()


def test_a_deadline_tells_nothing_where_the_denominator_is_fixed(blobs: Make) -> None:
    ready(PRIVATE, blobs(SIZES), rounds=1, delta=0.01, clock="physical(deadline=100)").go()


def test_scaling_by_all_examples_is_warned_of(blobs: Make) -> None:
    how: dict[str, Any] = {"rounds": 1, "delta": 0.01}
    with pytest.warns(UserWarning, match="features are scaled by the means and deviations of all clients'"):
        ready(PRIVATE, standardised(blobs(SIZES)), **how).go()
    ready(PRIVATE, blobs(SIZES), **how).go()


def test_a_choice_between_private_runs_is_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def cells_at(name: str) -> Any:
        return lambda point, rounds: [pc.Settings(method=name, set=dict(point), rounds=rounds)]

    scored = {"validation": {"metric": "valid_x", "value": 0.5, "lower_is_better": False}, "metrics": {}}
    monkeypatch.setattr("polycentric.runs.search.run_cells", lambda cells, parent, **_: [scored for _ in cells])
    points = [{"lr": 0.1}, {"lr": 0.2}]
    with pytest.warns(UserWarning, match="a search chooses between 2 private runs by scores .* their epsilons add up"):
        search(points, cells_at("dp-fedavg"), 3, "random", tmp_path)
    search(points, cells_at("fedavg"), 3, "random", tmp_path)


@pytest.mark.filterwarnings("ignore:delta=")
def test_choosing_k_by_private_runs_is_warned_of() -> None:
    federation, settings = pc.load("digits", clients=12, valid=0.2), {"privacy": Gaussian(1.0, 1.0, least=2)}
    with pytest.warns(UserWarning, match="choose_k chooses between 2 private runs"):
        pc.choose_k(federation, (1, 2), rounds=1, method="ifca", model="logistic", **settings)


@pytest.mark.parametrize(
    ("method", "how", "message"),
    [
        (
            fedavg(),
            {"epsilon": 1.0},
            "epsilon=1.0 is of a privacy part, and fedavg has none here: use dp-fedavg",
        ),
        (fedavg(), {"delta": 0.1}, "delta=0.1 is of a privacy part"),
        (
            fedavg(equal=True, privacy=Gaussian(1.0, 0.1)),
            {"epsilon": 0.1},
            "does not last for one round: use more noise, or let it be found",
        ),
        (dp_fedavg(epsilon=1.0), {"rounds": 0}, "is for the rounds of a run, and there are none"),
    ],
)
def test_promises_that_cannot_be_kept_are_refused(method: Method, how: Any, message: str, blobs: Make) -> None:
    with pytest.raises(UsageError, match=message):
        ready(method, blobs(SIZES), **{"rounds": 1} | how).go()
