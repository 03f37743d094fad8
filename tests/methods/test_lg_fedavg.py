"""LG-FedAvg: some layers are every client's own. Laws A1 to A5, the hand-over, rates, adversaries, and bad input."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import polycentric as pc
from polycentric import Federation, KeepPrivate, Train, Uniform, UsageError, fedavg, lg_fedavg, nofed, run_round
from polycentric.models import lg_lenet, mlp
from polycentric.runs.attribute_probe import probed
from polycentric.stacks.stack import Layout, ShareOnly
from support import Make, after, assert_same, every_executor, ready, rounds_of, small

TRAINING: dict[str, Any] = {"lr": 0.05, "epochs": 2, "batch": 5}


def attributed(federation: Federation, seed: int = 0) -> Federation:
    """The same examples, each with an attribute that its first feature tells."""

    def part(split: Any) -> Any:
        return replace(split, protected=(split.x[:, 0] > 0).long())

    return replace(federation, train=part(federation.train), test=part(federation.test), valid=part(federation.valid))


# -- what it reduces to --------------------------------------------------------------------------------------


@every_executor
@pytest.mark.parametrize(
    ("shares", "private"), [("last_layer", "dense*"), ("dense1.*", "head*"), ("*.weight", "*.bias")]
)
def test_it_is_fedavg_with_the_other_parameters_kept_private(
    shares: str, private: str, executor: str, blobs: Make
) -> None:
    mine = after(lg_fedavg(shares=shares, **TRAINING), blobs(), executor=executor)
    other = after(fedavg(cut=KeepPrivate(private), **TRAINING), blobs(), executor=executor)
    assert torch.equal(mine.centers["model"], other.centers["model"])
    assert torch.equal(mine.kept["local"], other.kept["private"])


def test_while_it_warms_up_it_is_fedavg(blobs: Make) -> None:
    """A1: all is shared."""
    mine, other = (after(m, blobs(), 3) for m in (lg_fedavg(warm_up=5, **TRAINING), fedavg(**TRAINING)))
    whole = other.centers["model"]
    assert_same(torch.cat([mine.centers["local"], mine.centers["model"]], 1), whole)


def test_with_a_shared_part_that_nobody_moves_it_is_training_alone(blobs: Make) -> None:
    """A2: nothing is shared; a shared part that stands still says nothing, and neither does the center."""
    mine = after(lg_fedavg(**TRAINING | {"lr": 0.0}, local_lr=0.05), blobs())
    run = ready(nofed(**TRAINING | {"lr": 0.0}), blobs())
    assert_same(mine.centers["model"], run.state.centers["model"][:1, -mine.centers["model"].shape[1] :])
    alone = after(fedavg(cut=KeepPrivate("*"), **TRAINING), blobs())
    assert torch.equal(alone.kept["private"], after(nofed(**TRAINING), blobs()).centers["model"])
    assert not torch.allclose(mine.kept["local"], run.state.centers["model"][:, : mine.kept["local"].shape[1]])


# -- the two parts -------------------------------------------------------------------------------------------


def test_the_server_touches_no_local_part_and_all_have_one_global_part(blobs: Make) -> None:
    """A4."""
    method = lg_fedavg(select=Uniform(n=2), **TRAINING)
    prepared = ready(method, blobs())
    state = prepared.state
    for _ in range(3):
        before = state
        state, (trip,) = run_round(method, state, prepared.clients)
        moved = (state.kept["local"] != before.kept["local"]).any(1).nonzero()[:, 0]
        assert moved.tolist() == sorted(trip.arrived.index.tolist())
        assert state.centers["model"].shape[0] == 1 and state.centers.keys() == {"model"}


@every_executor
def test_each_part_has_its_own_learning_rate(executor: str, blobs: Make) -> None:
    """One step: each part moves along its gradient by its rate, and both gradients are taken where it began."""
    how: dict[str, Any] = {"batch": None, "epochs": 1}

    def moved(**rates: float) -> dict[str, Tensor]:
        first, last = rounds_of(lg_fedavg(**how, **rates), blobs((9,)), 1, executor=executor)
        return {n: s[1][n] - s[0][n] for n, s in _both(first, last).items()}

    alike, other = moved(lr=0.05), moved(lr=0.05, local_lr=0.2)
    assert_same(other["model"], alike["model"])
    assert_same(other["local"], 4 * alike["local"])


def _both(first: pc.State, last: pc.State) -> dict[str, Any]:
    return {"model": (first.centers, last.centers), "local": (first.kept, last.kept)}


@pytest.mark.parametrize("rule", [{}, {"momentum": 0.5}, {"optimizer": "adam"}, {"weight_decay": 0.1, "decay": 0.9}])
def test_equal_rates_are_one_rate(rule: dict[str, Any], blobs: Make) -> None:
    mine, other = (after(lg_fedavg(**TRAINING, **rule, local_lr=r), blobs()) for r in (0.05, None))
    assert_same(mine.kept["local"], other.kept["local"])
    assert_same(mine.centers["model"], other.centers["model"])


def test_after_the_warm_up_everybody_begins_with_the_shared_local_part(blobs: Make) -> None:
    method = lg_fedavg(warm_up=2, select=Uniform(n=2), **TRAINING)
    states = rounds_of(method, blobs(), 4)
    shared = states[2].centers["local"]
    assert not torch.allclose(shared, states[0].centers["local"])
    assert torch.equal(states[2].kept["local"], shared.expand(5, -1))
    assert torch.equal(states[1].kept["local"], states[0].kept["local"])  # until then nothing is anybody's own
    assert torch.equal(states[4].centers["local"], shared)
    assert len({tuple(row.tolist()) for row in states[4].kept["local"]}) > 1


@pytest.mark.parametrize("warm_up", [1, 2])
def test_scores_are_those_of_the_phase(warm_up: int, blobs: Make) -> None:
    """During the warm-up and right after it all clients have FedAvg's model."""
    mine = ready(lg_fedavg(warm_up=warm_up, **TRAINING), blobs(), rounds=warm_up + 1).go()
    other = ready(fedavg(**TRAINING), blobs(), rounds=warm_up + 1).go()
    for row, known in zip(mine.history[: warm_up + 1], other.history, strict=False):
        assert row["micro_loss"] == pytest.approx(known["micro_loss"], rel=1e-9)
    assert mine.history[-1]["micro_loss"] != pytest.approx(other.history[-1]["micro_loss"], rel=1e-3)


# -- bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "shares", "shared", "whole", "percent"),
    [
        (mlp((1, 28, 28), 10, (512, 256, 256, 128)), "dense3.*,dense4.*,head.*", 99_978, 633_226, 15.8),
        (lg_lenet((3, 32, 32), 10), "conv*", 2_872, 64_102, 4.48),
    ],
)
def test_the_papers_splits_share_what_they_share(
    module: nn.Module, shares: str, shared: int, whole: int, percent: float
) -> None:
    parts = ShareOnly(shares=shares).layouts(Layout.of(module))
    assert (parts["model"].width, parts["local"].width) == (shared, whole - shared)
    assert 100 * shared / whole == pytest.approx(percent, abs=0.05)


@pytest.mark.parametrize("shares", ["last_layer", "dense1.*"])
def test_bytes_are_fedavgs_times_the_shared_part(shares: str, blobs: Make) -> None:
    """A5, exactly; with the warm-up and the hand-over."""
    whole = ready(fedavg(**TRAINING), blobs(), rounds=2).go()
    part = ready(lg_fedavg(shares=shares, **TRAINING), blobs(), rounds=2).go()
    warm = ready(lg_fedavg(shares=shares, warm_up=1, **TRAINING), blobs(), rounds=2).go()
    shared, d, up = part.state.centers["model"].shape[1], whole.clients.task.width, whole.tally.bytes_up
    assert part.tally.bytes_up * d == part.tally.bytes_down * d == up * shared
    assert warm.tally.bytes_up == (up + part.tally.bytes_up) // 2
    assert warm.tally.bytes_down == warm.tally.bytes_up + 5 * (d - shared) * 8


# -- an adversary --------------------------------------------------------------------------------------------


@every_executor
@pytest.mark.parametrize("warm_up", [0, 1])
def test_without_strength_an_adversary_changes_nothing(warm_up: int, executor: str, blobs: Make) -> None:
    """A3, bit for bit."""
    federation = attributed(blobs())
    with_it = after(lg_fedavg(adversary=0, warm_up=warm_up, **TRAINING), federation, executor=executor)
    without = after(lg_fedavg(warm_up=warm_up, **TRAINING), federation, executor=executor)
    assert torch.equal(with_it.centers["model"], without.centers["model"])
    assert torch.equal(with_it.kept["local"], without.kept["local"])
    first = ready(lg_fedavg(adversary=0, **TRAINING), federation).state.kept["auxiliary"]
    assert not torch.allclose(with_it.kept["auxiliary"], first)  # it does learn


@every_executor
def test_a_step_against_an_adversary_is_that_of_the_difference(executor: str, blobs: Make) -> None:
    """theta - lr grad (L - lambda L^a) after the adversary's own step a - lr grad L^a, both from scratch."""
    federation, strength, lr = attributed(blobs((9,))), 0.7, 0.05
    prepared = ready(lg_fedavg(adversary=strength, lr=lr, batch=None), federation, executor=executor)
    task, (x, y, z) = prepared.clients.task, (federation.train.x, federation.train.y, federation.train.protected)
    net = copy.deepcopy(task.module)

    def attribute() -> Tensor:
        h = net.model.relu1(net.model.dense1(x))
        return nn.functional.cross_entropy(net.auxiliary(h), z)

    own, others = list(net.auxiliary.parameters()), list(net.model.parameters())
    for weights, objective in (
        (own, attribute),
        (others, lambda: nn.functional.cross_entropy(net(x), y) - strength * attribute()),
    ):
        grads = torch.autograd.grad(objective(), weights)
        with torch.no_grad():
            for weight, g in zip(weights, grads, strict=True):
                weight.sub_(lr * g)
    state, _ = run_round(prepared.method, prepared.state, prepared.clients)
    expected = {n: layout.row(dict(net.named_parameters())) for n, layout in task.layouts.items()}
    assert_same(state.centers["model"][0], expected["model"])
    assert_same(state.kept["local"][0], expected["local"])
    assert_same(state.kept["auxiliary"][0], expected["auxiliary"])


def test_executors_agree_with_an_adversary_and_with_an_auxiliary_model(blobs: Make) -> None:
    for how in ({"adversary": 0.5}, {"auxiliary": 0.5, "momentum": 0.5}):
        a, b = (
            after(lg_fedavg(**how, **TRAINING), attributed(blobs()), 2, executor=e, block=n)
            for e, n in (("looped", None), ("stacked", 2))
        )
        assert_same(a.centers["model"], b.centers["model"])
        assert_same(a.kept["auxiliary"], b.kept["auxiliary"])


def test_an_adversary_never_leaves_and_a_fresh_probe_judges(blobs: Make) -> None:
    federation = attributed(blobs((40, 40, 40), test=30))
    tells = {}
    for strength in (0.0, 1.0):
        method = lg_fedavg(adversary=strength, lr=0.2, epochs=3, batch=10)
        ended = ready(method, federation, rounds=6, evaluate_every=6, fine_tune=0).go()
        assert "auxiliary" not in {n for e in method.exchanges for n in e.receives + e.sends + e.told}
        assert ended.history[-1]["probe_auc"] == ended.metrics["probe_auc"] == ended.summary()["metrics"]["probe_auc"]
        tells[strength] = ended.metrics
    assert tells[1.0]["probe_auc"] < tells[0.0]["probe_auc"]
    assert tells[0.0]["micro_accuracy"] > 0.6


def test_a_probe_finds_what_is_there_and_nothing_where_nothing_is(blobs: Make) -> None:
    federation = attributed(blobs((200, 200), test=200))
    coin = torch.Generator().manual_seed(0)

    def random(split: Any) -> Any:
        return replace(split, protected=torch.randint(2, (len(split),), generator=coin))

    noise = replace(federation, train=random(federation.train), test=random(federation.test))
    for data, low, high in ((federation, 0.8, 1.0), (noise, 0.4, 0.6)):
        made = ready(lg_fedavg(adversary=0, **TRAINING), data)
        found = probed(made.method, made.state, made.clients)
        assert all(low <= value <= high for value in found.values()), found
    plain = ready(lg_fedavg(**TRAINING), federation)
    assert probed(plain.method, plain.state, plain.clients) == {}


def test_where_convolutions_are_shared_the_representation_is_what_the_classifier_reads(blobs: Make) -> None:
    federation = blobs(shape=(3, 14, 14))
    z = (
        replace(federation.train, protected=federation.train.y % 2),
        replace(federation.test, protected=federation.test.y % 2),
    )
    method = lg_fedavg(shares="conv*", adversary=0.1, **TRAINING)
    made = ready(method, replace(federation, train=z[0], test=z[1]), model=_conv)
    assert made.clients.task.module.at == "head"
    assert {n: layout.names for n, layout in made.clients.task.layouts.items()}["model"] == (
        "model.conv1.weight",
        "model.conv1.bias",
    )


def _conv(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    layers = OrderedDict(conv1=nn.Conv2d(3, 2, 3), flatten=nn.Flatten(), head=nn.Linear(2 * 12 * 12, n_outputs))
    return nn.Sequential(layers)


# -- devices that were never seen ----------------------------------------------------------------------------


def test_three_ways_to_serve_a_device_that_was_never_seen(blobs: Make) -> None:
    """Average, ensemble and vote, against each put together by hand."""
    federation = blobs()
    ended = ready(lg_fedavg(**TRAINING), federation, rounds=3, unseen=True).go()
    models = [ended.model_of(client=k) for k in range(5)]
    mean = ended.model_of(client=0)
    with torch.no_grad():
        for name, weight in mean.named_parameters():
            weight.copy_(torch.stack([m.state_dict()[name] for m in models]).mean(0))
        x, y = federation.test.x, federation.test.y
        outputs = torch.stack([m(x) for m in models])
        votes = nn.functional.one_hot(outputs.argmax(-1), 3).sum(0) + outputs.mean(0).softmax(-1) / 2
        right = {"average": mean(x), "ensemble": outputs.mean(0), "vote": votes}
    told = ended.summary()["unseen"]
    for way, found in right.items():
        accuracy = float((found.argmax(1) == y).double().mean())
        assert told[way]["micro_accuracy"] == pytest.approx(accuracy)
        assert ended.history[-1][f"unseen_{way}_accuracy"] == pytest.approx(accuracy)
    loss = float(nn.functional.cross_entropy(right["ensemble"], y))
    assert told["ensemble"]["micro_loss"] == pytest.approx(loss) and "micro_loss" not in told["vote"]
    assert told["note"] is None


def test_where_one_model_is_shared_all_three_ways_are_that_model(blobs: Make) -> None:
    ended = ready(fedavg(**TRAINING), blobs(), rounds=2, unseen=True).go()
    told = ended.summary()["unseen"]
    for way in ("average", "ensemble", "vote"):
        assert told[way]["micro_accuracy"] == pytest.approx(ended.metrics["micro_accuracy"])


@pytest.mark.filterwarnings("ignore:.* those held out have untrained")
@pytest.mark.parametrize(
    "method", [lg_fedavg(**TRAINING), nofed(**TRAINING), fedavg(cut=KeepPrivate("head*"), **TRAINING)]
)
def test_clients_that_are_held_out_are_served_in_three_ways(method: pc.Method, blobs: Make) -> None:
    ended = ready(method, blobs((9, 9, 9, 9, 9, 9)), rounds=3, held_out=0.34).go()
    assert {"average", "ensemble", "vote", "untrained"} <= ended.summary()["held_out"].keys()
    assert 0 <= ended.summary()["held_out"]["ensemble"]["micro_accuracy"] <= 1
    assert "unseen" not in ended.summary()
    shared = ready(fedavg(**TRAINING), blobs((9, 9, 9, 9, 9, 9)), rounds=1, held_out=0.34).go().summary()["held_out"]
    assert "average" not in shared and "untrained" not in shared


def test_of_very_many_clients_some_are_asked_and_that_is_said(blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from polycentric.runs import unseen

    monkeypatch.setattr(unseen, "MODELS", 3)
    monkeypatch.setattr(unseen, "EXAMPLES", 20)
    ended = ready(nofed(**TRAINING), blobs(), rounds=1, unseen=True).go()
    note = ended.summary()["unseen"]["note"]
    assert "3 of 5 clients" in note and "20 of 25 examples" in note


def test_numbers_have_no_vote(quadratics: Make, made: Make) -> None:
    federation = quadratics()
    federation = replace(federation, test=federation.train)
    ended = ready(nofed(lr=0.01, batch=None), federation, rounds=2, unseen=True, model=small).go()
    assert ended.summary()["unseen"].keys() == {"average", "ensemble", "note"}


def test_newcomers_of_other_data_are_served_in_three_ways_too(blobs: Make) -> None:
    ended = ready(lg_fedavg(**TRAINING), blobs(), rounds=2).go()
    found = ended.evaluate(blobs(seed=3), all_new=True)
    told = found.summary()
    assert told["unseen"].keys() == {"average", "ensemble", "vote"}
    assert told["unseen"]["average"]["micro_accuracy"] == pytest.approx(told["metrics"]["micro_accuracy"])


# -- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"shares": "conv*"}, r"no parameter matches shares='conv\*'.*the model has dense1.weight"),
        ({"shares": "*"}, r"shares='\*' takes every parameter.*fedavg: use it"),
        ({"adversary": 1.0}, r"no protected attribute.*array `protected`"),
        ({"auxiliary": 1.0, "hidden": 4}, "no protected attribute"),
    ],
)
def test_what_does_not_fit_the_model_or_the_data_is_refused(how: dict[str, Any], said: str, blobs: Make) -> None:
    with pytest.raises(UsageError, match=said):
        ready(lg_fedavg(**how), blobs())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"adversary": -1.0}, "adversary must be >= 0, got -1.0"),
        ({"auxiliary": -0.5}, "auxiliary must be >= 0, got -0.5"),
        ({"adversary": 1.0, "auxiliary": 1.0}, "choose one of them"),
        ({"adversary": 1.0, "hidden": 0}, "hidden.*0"),
        ({"warm_up": -1}, "warm_up must be 0 rounds or more, got -1"),
        ({"local_lr": -0.1}, "the lr of local must be >= 0, got -0.1"),
    ],
)
def test_bad_settings_are_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        lg_fedavg(**how)


def test_the_model_of_a_client_is_fine_tuned_without_the_adversary(blobs: Make) -> None:
    from polycentric.runs.loop import trainer_of

    train = trainer_of(lg_fedavg(adversary=2.0, **TRAINING))
    assert type(train) is Train and train.trains == ("model", "local")


def test_where_clients_have_one_value_each_an_adversary_learns_nothing_and_that_is_said(blobs: Make) -> None:
    federation = attributed(blobs())
    alone = replace(federation, train=replace(federation.train, protected=federation.train.owner % 2))
    with pytest.warns(UserWarning, match="5 of 5 clients have examples of one value"):
        ready(lg_fedavg(adversary=1.0, **TRAINING), alone, rounds=1).go()


def test_the_attribute_comes_with_the_data_and_stays_with_its_examples() -> None:
    x = np.arange(40.0, dtype=np.float32)[:, None].repeat(2, 1)
    federation = pc.load(
        pc.from_arrays(x, np.arange(40) % 2, protected=np.where(x[:, 0] > 25, "old", "new")), "iid", clients=4
    )
    assert federation.n_protected == 2
    for split in (federation.train, federation.test, federation.train.of(2)):
        assert split.protected is not None and torch.equal(split.protected == 1, split.x[:, 0] > 25)
    tiled = federation.tiled(9).train.protected
    assert tiled is not None and torch.equal(tiled, federation.train.protected)


def test_a_run_that_hides_an_attribute_goes_on_and_its_models_leave_without_the_adversary(
    tmp_path: Path, blobs: Make
) -> None:
    federation = attributed(blobs(dtype=torch.float32))
    method = lg_fedavg(adversary=1.0, warm_up=1, **TRAINING)
    ended = pc.run(method, federation, model="mlp", rounds=2, out=tmp_path / "run")
    assert not [n for n, _ in ended.model_of(client=0).named_parameters() if "auxiliary" in n]
    ended.export(client=0, out=tmp_path / "out")
    opened = pc.open(tmp_path / "run", examples=False)
    found = opened.predict(federation.test.x[:3].numpy(), client=0).outputs
    mine = ended.model_of(client=0)(federation.test.x[:3]).detach()
    torch.testing.assert_close(found, mine.double(), rtol=1e-5, atol=1e-6)
    flipped = replace(federation, train=replace(federation.train, protected=1 - federation.train.protected))
    with pytest.raises(UsageError, match="not the protected attribute that the run was started with"):
        pc.resume(tmp_path / "run", federation=flipped, rounds=3)


def test_the_command_says_how_an_unseen_device_is_served(say: Any, tmp_path: Path) -> None:
    words = [
        "--data",
        "digits",
        "--clients",
        "4",
        "--rounds",
        "1",
        "--set",
        "shares=head.*",
        "--out",
        str(tmp_path / "r"),
    ]
    told = say("run", "lg-fedavg", *words, "--unseen", "--quiet")
    assert told.code == 0 and any("never seen: average " in line and ", vote " in line for line in told.lines)
    wrong = say("run", "lg-fedavg", *words[:-1], str(tmp_path / "s"), "--set", "adversary=1")
    assert wrong.code == 2 and "no protected attribute" in wrong.err
