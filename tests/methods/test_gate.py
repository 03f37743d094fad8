"""Gate: a shared model that hides examples, a private one, and what divides examples between them.

The names B1, B2, ... are those of the specification of the method.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import polycentric as pc
from polycentric import ExampleNoise, Method, State, UsageError, fedavg, fedsgd, gate, nofed
from polycentric.models import build, gated, mlp
from polycentric.models.around import MadeFor
from polycentric.models.gated import MIXED, Gated, GatedModel, InputGate
from polycentric.parts.accountant import Release
from polycentric.runs.recipes import build_method
from support import Make, after, every_executor, random, ready, rounds_of, small

TRAINING: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch": 5, "momentum": 0.5}
HIDE = ExampleNoise(clip=0.5, noise=1.0)


@dataclass(frozen=True)
class Stuck:
    """A gate that is open or shut, beyond the limit of others."""

    logit: float

    def __call__(self, module: nn.Module, made_for: MadeFor) -> nn.Module:
        made = Gated()(module, made_for)
        assert isinstance(made, GatedModel)
        nn.init.constant_(made.gate.linear.bias, self.logit)
        return made


def stuck(logit: float, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Method:
    monkeypatch.setattr(gated, "LIMIT", abs(logit))
    return replace(gate(**TRAINING | {"gate_decay": 0.0} | how), around=Stuck(logit))


def private_of(state: State) -> Tensor:
    """The private models without the gate's bias, which stands last."""
    return state.kept["private"][:, :-1]


# -- the invariants of the specification ---------------------------------------------------------------------


@every_executor
def test_B1_the_general_model_is_that_of_fedavg_which_hides_examples(executor: str, blobs: Make) -> None:
    found = after(gate(**TRAINING, hide=HIDE), blobs(), executor=executor).centers
    assert found.keys() == {"model"}
    alone = after(fedavg(**TRAINING, hide=HIDE), blobs(), executor=executor).centers
    torch.testing.assert_close(found, alone, rtol=1e-10, atol=1e-10)


def test_B1_where_the_gate_is_open_the_answer_is_the_general_one(blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    method = stuck(40.0, monkeypatch, hide=HIDE)
    done = ready(method, blobs(), rounds=2).go()
    alone = ready(fedavg(**TRAINING, hide=HIDE), blobs(), rounds=2).go()
    np.testing.assert_allclose(done.scores["in_use"].loss, alone.scores["in_use"].loss, rtol=1e-9)
    assert done.metrics["micro_accuracy_general"] == done.metrics["micro_accuracy"]


@every_executor
def test_B2_where_the_gate_is_shut_everybody_trains_alone(
    executor: str, blobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = stuck(-40.0, monkeypatch, hide=HIDE)
    found = private_of(after(method, blobs(), executor=executor))
    alone = after(nofed(**TRAINING), blobs(), executor=executor).centers["model"]
    torch.testing.assert_close(found, alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("hide", [None, ExampleNoise(math.inf, 0.0)])
def test_B3_one_full_step_without_hiding_is_fedsgd(hide: Any, blobs: Make) -> None:
    found = after(gate(lr=0.1, steps=1, batch=None, hide=hide), blobs()).centers
    torch.testing.assert_close(found, after(fedsgd(lr=0.1), blobs()).centers, rtol=1e-10, atol=1e-10)


def test_B4_the_center_never_touches_what_is_private(blobs: Make) -> None:
    """Whatever the center does to the general model, private columns are what their client has learned."""
    states = rounds_of(gate(**TRAINING, hide=HIDE), blobs(), 1)
    others = rounds_of(gate(**TRAINING, hide=HIDE, center=pc.SGD(0.1), equal=True), blobs(), 1)
    assert not torch.equal(states[1].centers["model"], others[1].centers["model"])
    assert all(torch.equal(states[1].kept[name], others[1].kept[name]) for name in ("private", "gate"))
    assert states[1].centers.keys() == {"model"} and states[1].kept.keys() == {"private", "gate"}
    moved = [states[1].kept[name] != states[0].kept[name] for name in ("private", "gate")]
    assert all(bool(rows.any(1).all()) for rows in moved)


def test_B4_absent_clients_keep_theirs(blobs: Make) -> None:
    method = gate(**TRAINING, hide=HIDE, select=pc.Uniform(n=2))
    prepared = ready(method, blobs())
    state, (trip,) = pc.run_round(method, prepared.state, prepared.clients)
    moved = (state.kept["private"] != prepared.state.kept["private"]).any(1).nonzero()[:, 0]
    assert moved.tolist() == sorted(trip.arrived.index.tolist())


@pytest.mark.parametrize("kind", MIXED)
def test_B5_of_two_equal_models_the_gate_does_not_matter(kind: str) -> None:
    g = random(0, 7, 3)
    log = {"classes": g.log_softmax(-1), "labels": g, "numbers": g}[kind]
    for logit in (-10.0, 0.0, 3.0):
        found = MIXED[kind](torch.full((7, 1), logit, dtype=torch.float64), g, g)
        torch.testing.assert_close(found, log, rtol=1e-12, atol=1e-12)


def test_B5_a_private_copy_begins_where_the_general_model_does(blobs: Make) -> None:
    start = ready(gate(), blobs(), rounds=0).go()
    assert torch.equal(private_of(start.state)[0], start.state.centers["model"][0])
    assert torch.equal(start.state.kept["gate"], torch.zeros(5, 6, dtype=torch.float64))
    plain = ready(fedavg(), blobs(), rounds=0).go()
    np.testing.assert_allclose(start.scores["in_use"].loss, plain.scores["in_use"].loss, rtol=1e-12)


def test_B6_noise_leaves_every_other_draw_as_it_was(blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet, loud = (gate(**TRAINING, hide=ExampleNoise(0.5, noise)) for noise in (0.0, 4.0))
    one, other = (rounds_of(method, blobs(), 2) for method in (quiet, loud))
    assert not torch.allclose(one[1].centers["model"], other[1].centers["model"])
    for name in ("private", "gate"):  # after a round: both began at the same general model
        assert torch.equal(one[1].kept[name], other[1].kept[name])
        assert not torch.equal(one[2].kept[name], other[2].kept[name])
    shut = [stuck(-700.0, monkeypatch, hide=ExampleNoise(0.5, noise)) for noise in (0.0, 4.0)]
    assert torch.equal(*(after(method, blobs()).kept["private"] for method in shut))  # where the gate hides the general


# -- the mixture ---------------------------------------------------------------------------------------------


def test_probabilities_are_mixed_and_numbers_are() -> None:
    logit, g, p = random(1, 7, 1), random(2, 7, 3), random(3, 7, 3)
    a = logit.sigmoid()
    classes = MIXED["classes"](logit, g, p)
    torch.testing.assert_close(classes.exp(), a * g.softmax(-1) + (1 - a) * p.softmax(-1))
    torch.testing.assert_close(classes.exp().sum(-1), torch.ones(7, dtype=torch.float64))
    torch.testing.assert_close(MIXED["labels"](logit, g, p).sigmoid(), a * g.sigmoid() + (1 - a) * p.sigmoid())
    torch.testing.assert_close(MIXED["numbers"](logit, g, p), a * g + (1 - a) * p)


@pytest.mark.parametrize("kind", MIXED)
def test_answers_stay_finite_where_models_are_sure(kind: str) -> None:
    sure = torch.tensor([[500.0, -500.0, 0.0]], dtype=torch.float32).requires_grad_()
    found = MIXED[kind](torch.tensor([[10.0]]), sure, -sure)
    (slope,) = torch.autograd.grad(found.sum(), sure)
    assert bool(found.isfinite().all()) and bool(slope.isfinite().all())


def test_the_logit_is_clipped_and_inputs_are_put_on_one_scale() -> None:
    flat, image = InputGate((16,)), InputGate((1, 4, 4))
    for made in (flat, image):
        assert torch.equal(made(torch.rand(3, *((16,) if made is flat else (1, 4, 4)))), torch.full((3, 1), 0.5))
        nn.init.constant_(made.linear.weight, 1e6)
        nn.init.constant_(made.linear.bias, 0.25)
    assert flat.logit(torch.ones(1, 16)).item() == 10.0 and flat.logit(-torch.ones(1, 16)).item() == -10.0
    assert image.logit(torch.full((1, 1, 4, 4), 0.5)).item() == 0.25  # the middle of a pixel's range is 0
    nn.init.constant_(flat.linear.weight, 1.0)
    assert flat.logit(torch.full((1, 16), 0.5)).item() == pytest.approx(0.25 + 16 * 0.5 / 4)


def test_the_private_model_may_be_another(blobs: Make) -> None:
    done = ready(gate(**TRAINING, private="logistic"), blobs(), rounds=1).go()
    module = done.clients.task.module
    assert module.get_submodule("private.model.head") is not None and "general.dense1.weight" in dict(
        module.named_parameters()
    )
    assert done.state.kept["private"].shape == (5, 6 * 3 + 3 + 1)
    with pytest.raises(UsageError, match="unknown model 'logistik'"):
        ready(gate(private="logistik"), blobs())


def test_several_inputs_lie_end_to_end_for_a_gate_and_a_named_model() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(2, 3), nn.Linear(4, 3)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            found: Tensor = self.left(left) + self.right(right)
            return found

    for private in ("same", "logistic"):
        made = Gated(private)(Two(), MadeFor((6,), 3, 0))
        assert made(torch.rand(5, 2), torch.rand(5, 4)).shape == (5, 3)
        assert made.get_submodule("private")(torch.rand(5, 2), torch.rand(5, 4)).shape == (5, 3)


def test_a_text_has_nothing_to_weigh(blobs: Make) -> None:
    with pytest.raises(UsageError, match="symbols of a text are no numbers"):
        ready(gate(), blobs(symbols=9, shape=(12,)), model="char-lstm")


def test_numbers_to_predict(quadratics: Make, made: Make) -> None:
    federation = quadratics((40, 30))
    parts = [(part.x, part.y) for part in (federation.train.of(k) for k in range(2))]
    done = ready(gate(lr=0.05, epochs=5, hide=None), made(parts, parts), rounds=5).go()
    assert {"micro_rmse", "micro_rmse_general", "micro_rmse_private"} <= done.metrics.keys()
    assert done.metrics["micro_loss"] < done.scores["initial"].summary()["micro_loss"]


# -- what a run tells ----------------------------------------------------------------------------------------


def test_general_private_and_mixture_are_scored_side_by_side(blobs: Make, tmp_path: Path) -> None:
    done = pc.run(gate(**TRAINING, hide=HIDE), blobs(test=20), model=small, rounds=2, out=tmp_path / "run")
    rows = list(csv.DictReader((tmp_path / "run/clients.csv").read_text().splitlines()))
    for part in ("general", "private"):
        module = [done.model_of(client=k).get_submodule(part) for k in range(5)]
        for k, row in enumerate(rows):
            mine = done.federation.test.of(k)
            right = (module[k](mine.x.float()).argmax(-1) == mine.y).double().mean()
            assert float(row[f"accuracy_{part}_in_use"]) == pytest.approx(float(right))
    general = {tuple(p.flatten().tolist()) for k in range(5) for p in [done.model_of(client=k).general.head.weight]}
    assert len(general) == 1  # everybody's is the same
    assert "micro_accuracy_private" in done.history[-1]


def test_a_histogram_says_how_examples_are_divided(blobs: Make) -> None:
    done = ready(gate(**TRAINING, hide=HIDE), blobs(test=20), rounds=2).go()
    shares = [done.summary()["metrics"][f"gate_share_{k}"] for k in range(10)]
    assert sum(shares) == pytest.approx(1.0)
    a = torch.cat([done.model_of(client=k).gate(done.federation.test.of(k).x).detach().flatten() for k in range(5)])
    assert shares == pytest.approx((torch.histc(a.double(), 10, 0, 1) / len(a)).tolist())
    assert ready(gate(), blobs(), rounds=0).go().metrics["gate_share_5"] == 1.0  # at a = 1/2


def test_bytes_are_those_of_the_general_model(blobs: Make) -> None:
    both = [ready(method, blobs(), rounds=2).go() for method in (gate(**TRAINING), fedavg(**TRAINING))]
    assert both[0].tally.bytes_up == both[1].tally.bytes_up and both[0].tally.bytes_down == both[1].tally.bytes_down


def test_fine_tuning_trains_what_is_private(blobs: Make) -> None:
    done = ready(gate(**TRAINING, hide=HIDE), blobs(test=20), rounds=1, fine_tune=3).go()
    before, tuned = (done.scores[name].marks for name in ("in_use", "personalised"))
    np.testing.assert_array_equal(before["accuracy_general"].values, tuned["accuracy_general"].values)
    assert not np.array_equal(done.scores["in_use"].loss, done.scores["personalised"].loss)


@pytest.mark.parametrize("private", ["same", "logistic"])
def test_the_lines_that_load_an_exported_model_build_the_whole_of_it(private: str, blobs: Make, tmp_path: Path) -> None:
    done = pc.run(gate(**TRAINING, private=private), blobs(dtype=torch.float32), model="mlp", rounds=1)
    (one,) = done.export(client=1, out=tmp_path / "export")
    space: dict[str, Any] = {"x": done.federation.test.of(1).x}
    exec(one.lines, space)
    assert torch.equal(space["outputs"], done.model_of(client=1)(space["x"]))


# -- what is promised ----------------------------------------------------------------------------------------


def test_only_the_general_model_tells_and_as_often_as_it_trains() -> None:
    (exchange,) = gate(hide=HIDE, epochs=3).exchanges
    assert exchange.example_releases(torch.tensor([40, 90])) == (Release(1.0, times=3),)
    assert gate(hide=None).exchanges[0].example_releases(torch.tensor([40])) is None


def test_a_general_model_that_follows_the_mixture_promises_nothing(blobs: Make) -> None:
    with pytest.warns(UserWarning, match="nothing is promised, and there is no epsilon"):
        joint = gate(**TRAINING, hide=HIDE, joint=True)
    assert joint.exchanges[0].example_releases(torch.tensor([40])) is None
    apart = gate(**TRAINING, hide=HIDE)
    a, b = (after(method, blobs()).centers["model"] for method in (joint, apart))
    assert bool(a.isfinite().all()) and not torch.allclose(a, b)


def test_an_example_moves_what_is_sent_by_its_own_gradient_alone(blobs: Make) -> None:
    """Why the general model follows its own loss: whatever private models have learned, what is sent is the same."""
    federation = blobs()
    prepared = ready(gate(**TRAINING, hide=HIDE), federation)
    other = {name: rows + random(5, *rows.shape) for name, rows in prepared.state.kept.items()}
    sent = [
        pc.run_round(prepared.method, replace(prepared.state, kept=kept), prepared.clients)[0].centers["model"]
        for kept in (prepared.state.kept, other)
    ]
    assert torch.equal(*sent)
    with pytest.warns(UserWarning, match="joint"):
        joint = ready(gate(**TRAINING, hide=HIDE, joint=True), federation)
    sent = [
        pc.run_round(joint.method, replace(joint.state, kept=kept), joint.clients)[0].centers["model"]
        for kept in (joint.state.kept, other)
    ]
    assert not torch.allclose(*sent)


def test_identical_clients_are_one_machine(blobs: Make) -> None:
    """The general model by gradient descent on its own loss, the private one and the gate on that of the mixture."""
    one = blobs((20,)).train
    federation = blobs((20,) * 3)
    twins = replace(federation, train=replace(federation.train, x=one.x.repeat(3, 1), y=one.y.repeat(3)))
    prepared = ready(gate(lr=0.1, steps=2, batch=None, hide=None, gate_decay=0.3), twins)
    net = Gated()(mlp((6,), 3, hidden=(4,)), MadeFor((6,), 3, 0)).double()
    net.load_state_dict(prepared.clients.task.module.state_dict())
    loss = nn.functional.cross_entropy
    for _ in range(3):
        start = {name: p.detach().clone() for name, p in net.named_parameters()}
        for _ in range(2):
            net.zero_grad()
            (loss(net(one.x), one.y) + 0.15 * net.gate.linear.weight.square().sum()).backward()
            with torch.no_grad():
                for name, p in net.named_parameters():
                    p -= 0.1 * p.grad if not name.startswith("general") else 0.0
        general = build(lambda: mlp((6,), 3, hidden=(4,)), (6,), 3).double()
        general.load_state_dict({k.removeprefix("general."): v for k, v in start.items() if k.startswith("general")})
        for _ in range(2):
            general.zero_grad()
            loss(general(one.x), one.y).backward()
            with torch.no_grad():
                for p in general.parameters():
                    p -= 0.1 * p.grad
        net.general.load_state_dict(general.state_dict())
    done = rounds_of(prepared.method, twins, 3)[-1]
    flat = torch.cat([p.detach().flatten() for p in net.general.parameters()])
    torch.testing.assert_close(done.centers["model"][0], flat, rtol=1e-10, atol=1e-10)
    for row in done.kept["gate"]:
        torch.testing.assert_close(row, net.gate.linear.weight.detach()[0], rtol=1e-10, atol=1e-10)


def test_the_words_of_the_command() -> None:
    built = build_method("gate", {"private": "logistic", "hide.noise": 2, "private_lr": 0.3})
    assert built == gate(private="logistic", hide=ExampleNoise(1.0, 2.0), private_lr=0.3)
    own, general = built.exchanges[0].learn
    assert (own.lr, general.lr) == (0.3, 0.1)  # type: ignore[attr-defined]
    assert build_method("gate", {"hide": "none"}) == gate(hide=None)
