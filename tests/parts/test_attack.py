"""Attackers do what they say, to whom they say, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import polycentric as pc
from polycentric.data import Federation, deal, mixture, teacher
from polycentric.data.partition import Natural
from polycentric.parts.attack import Attack
from polycentric.runs.folder import Folder
from polycentric.runs.loop import Run
from polycentric.runs.settings import Settings
from polycentric.runs.start import built_attack, prepare, prepared
from polycentric.simulate.clients import Simulation
from polycentric.stacks.cohort import Cohort
from support import Make, random, small, went_on

ATTACKS = [pc.NotANumber(0.4), pc.SignFlip(0.4, 3.0), pc.LargeNorm(0.4), pc.SameValue(0.4, 7.0), pc.LabelFlip(0.4)]
ATTACKS += [pc.Zeros(0.4), pc.Stale(0.4), pc.OneCoordinate(0.4)]
ATTACKS += [pc.LittleIsEnough(0.4), pc.InnerProduct(0.4), pc.Collusion(0.4)]
every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: type(a).__name__)
SIZES = (12, 7, 9, 5, 11)
TRAINING: dict[str, Any] = {"lr": 0.05, "epochs": 2, "batch": 5}


def ready(federation: Federation, attack: Attack | None, method: pc.Method | None = None, **how: Any) -> Run:
    return prepare(
        method or pc.fedavg(**TRAINING), federation, **{"model": small, "dtype": "float64", "attack": attack} | how
    )


def sent(run: Run, round: int = 0, name: str = "model") -> dict[int, Tensor]:
    """What every client sends, by its number; what is not finite is not there."""
    state = run.state
    for _ in range(round):
        state, _ = pc.run_round(run.method, state, run.clients)
    answers = run.clients.answers(run.method.at(round)[0], state, run.clients.everyone(round))
    return {int(k): row for a in answers for k, row in zip(a.block.index, a.sent[name], strict=True)}


def attackers(run: Run) -> list[int]:
    return run.clients.attackers.nonzero()[:, 0].tolist()


@every_attack
def test_honest_clients_send_the_same_bits(attack: Attack, blobs: Make) -> None:
    with_it, without = ready(blobs(SIZES), attack), ready(blobs(SIZES), None)
    a, b = sent(with_it), sent(without)
    honest = set(range(5)) - set(attackers(with_it))
    assert len(honest) == 3
    assert all(torch.equal(a[k], b[k]) for k in honest)
    assert not any(k in a and torch.equal(a[k], b[k]) for k in attackers(with_it))


@every_attack
def test_neither_executor_nor_blocks_change_a_lie(attack: Attack, blobs: Make) -> None:
    ways = [("stacked", None), ("stacked", 2), ("looped", 1), ("looped", None)]
    first, *others = (sent(ready(blobs(SIZES), attack, executor=e, block=n)) for e, n in ways)
    for other in others:
        assert other.keys() == first.keys()
        for k, row in first.items():
            torch.testing.assert_close(other[k], row, rtol=1e-10, atol=1e-10)


def test_a_lie_is_its_formula(blobs: Make) -> None:
    federation = blobs(SIZES)
    honest = sent(ready(federation, None))
    start = ready(federation, None).state.centers["model"][0]

    run = ready(federation, pc.SignFlip(0.4, 3.0))
    for k in attackers(run):
        torch.testing.assert_close(sent(run)[k], start - 3 * (honest[k] - start))
    run = ready(federation, pc.SameValue(0.4, 7.0))
    assert all(bool((sent(run)[k] == 7).all()) for k in attackers(run))
    run = ready(federation, pc.NotANumber(0.4))
    assert sent(run).keys() == set(range(5)) - set(attackers(run))
    run = ready(federation, pc.LargeNorm(0.4, 10.0))
    noise = torch.stack([sent(run)[k] - honest[k] for k in attackers(run)]) / 10
    assert abs(float(noise.mean())) < 0.5 and 0.7 < float(noise.std()) < 1.3
    assert not torch.allclose(noise[0], noise[1])


def test_a_stale_row_one_number_and_zeros_are_what_they_say(blobs: Make) -> None:
    federation = blobs(SIZES)
    honest, first = sent(ready(federation, None), 2), ready(federation, None).state.centers["model"][0]
    run = ready(federation, pc.Stale(0.4))
    assert all(torch.equal(sent(run, 2)[k], first) for k in attackers(run))  # in the third round, too
    run = ready(federation, pc.Zeros(0.4))
    assert not any(bool(sent(run)[k].any()) for k in attackers(run))
    run, honest = ready(federation, pc.OneCoordinate(0.4, 50.0)), sent(ready(federation, None))
    off = torch.stack([sent(run)[k] - honest[k] for k in attackers(run)])
    torch.testing.assert_close(off.sum(1), torch.full((2,), 50.0).double())
    assert ((off.abs() > 1e-9).sum(1) == 1).all() and (off.argmax(1) == off[0].argmax()).all()
    run = ready(federation, pc.Honest(0.4))
    assert all(torch.equal(row, honest[k]) for k, row in sent(run).items()) and len(attackers(run)) == 2


@pytest.mark.parametrize("block", [None, 2])
def test_those_who_know_send_one_update_made_of_the_honest_ones(blobs: Make, block: int | None) -> None:
    federation = blobs(SIZES)
    truth, start = sent(ready(federation, None)), ready(federation, None).state.centers["model"][0]

    def update(attack: Attack) -> Tensor:
        run = ready(federation, attack, block=block)
        first, *others = (sent(run)[k] - start for k in attackers(run))
        assert len(others) == 1 and all(torch.equal(first, other) for other in others)
        return first

    bad = attackers(ready(federation, pc.Honest(0.4)))
    honest = torch.stack([truth[k] - start for k in range(5) if k not in bad])
    mean, std = honest.mean(0), (honest - honest.mean(0)).square().mean(0).sqrt()
    torch.testing.assert_close(update(pc.LittleIsEnough(0.4, 1.5)), mean - 1.5 * std)
    torch.testing.assert_close(update(pc.InnerProduct(0.4, 0.3)), -0.3 * mean)
    # z of five clients, two of them attackers: s = floor(5 / 2 + 1) - 2 = 1, Phi^-1((3 - 1) / 3)
    torch.testing.assert_close(update(pc.LittleIsEnough(0.4)), mean - 0.4307272992954576 * std)
    way = update(pc.Collusion(0.4, 3.0))
    torch.testing.assert_close(way.norm(), 3 * honest.norm(dim=1).mean())


def test_noise_is_new_in_every_round(blobs: Make) -> None:
    run = ready(blobs(SIZES), pc.LargeNorm(0.4, 10.0), pc.nofed(lr=0.0))
    (k, *_), start = attackers(run), run.state.centers["model"][0]
    first, second = sent(run, 0)[k] - start, sent(run, 1)[k] - sent(run, 0)[k]
    assert float(first.std()) > 5 and not torch.allclose(first, second)


def test_flipped_labels_are_honest_work_on_other_data(blobs: Make) -> None:
    federation = blobs(SIZES)
    run = ready(federation, pc.LabelFlip(0.4))
    theirs = run.clients.attackers[federation.train.owner]
    expected = torch.where(theirs, len(federation.classes) - 1 - federation.train.y, federation.train.y)
    assert torch.equal(run.clients.run.split.y, expected)
    assert torch.equal(run.federation.train.y, federation.train.y)  # the federation is what it was
    assert run.federation.fingerprint == federation.fingerprint


def test_a_regression_has_its_targets_turned_round() -> None:
    federation = deal(teacher(clients=5, dimension=3, examples=10), Natural())
    run = prepare(pc.fedavg(), federation, model="logistic", attack=pc.LabelFlip(0.4))
    theirs = run.clients.attackers[federation.train.owner]
    assert torch.equal(run.clients.run.split.y[theirs], -federation.train.y[theirs])
    assert torch.equal(run.clients.run.split.y[~theirs], federation.train.y[~theirs])


# -- who attacks ---------------------------------------------------------------------------------------------


def test_the_share_is_rounded_and_larger_shares_keep_their_attackers() -> None:
    able = torch.ones(40, dtype=torch.bool)
    last = torch.zeros(40, dtype=torch.bool)
    for share in (0.0, 0.05, 0.1, 0.19, 0.2, 0.3):
        now = pc.SignFlip(share).attackers(3, able)
        assert int(now.sum()) == round(40 * share)
        assert bool((last <= now).all())
        last = now
    assert not torch.equal(pc.SignFlip(0.3).attackers(4, able), last)
    assert torch.equal(pc.LabelFlip(0.3).attackers(3, able), last)  # every attack has the same attackers


def test_those_held_out_and_those_without_data_do_not_attack(blobs: Make) -> None:
    clients = ready(blobs((9, 0, 8, 0, 7, 6, 5, 4)), pc.SignFlip(0.5), held_out=0.25).clients
    able = (clients.federation.train.sizes > 0) & ~clients.held_out_mask
    assert int(clients.attackers.sum()) == round(0.5 * int(able.sum())) > 0
    assert not bool((clients.attackers & ~able).any())


def test_what_is_told_is_not_touched(blobs: Make) -> None:
    method = pc.fedavg(select=pc.Active(5), **TRAINING)
    (name, *_) = method.at(0)[0].told
    a, b = (sent(ready(blobs(SIZES), attack, method), name=name) for attack in (pc.SameValue(0.4, 7.0), None))
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_a_gradient_is_turned_round_about_zero(blobs: Make) -> None:
    method = pc.feddane(**TRAINING)
    run = ready(blobs(SIZES), pc.SignFlip(0.4, 2.0), method)
    lies, truth = sent(run, name="gradient"), sent(ready(blobs(SIZES), None, method), name="gradient")
    for k in attackers(run):
        torch.testing.assert_close(lies[k], -2 * truth[k])


# -- what a run says of it -----------------------------------------------------------------------------------


@every_attack
def test_scores_are_those_of_the_honest_clients(attack: Attack, blobs: Make) -> None:
    run = pc.run(pc.nofed(**TRAINING), blobs(SIZES), model=small, rounds=2, attack=attack)
    plain = pc.run(pc.nofed(**TRAINING), blobs(SIZES), model=small, rounds=2)
    honest = [k for k in range(5) if k not in attackers(run)]
    assert run.metrics["macro_accuracy"] == pytest.approx(plain.scores["in_use"].accuracy[honest].mean())
    assert run.summary()["attackers"] == 2 and plain.summary()["attackers"] == 0
    assert type(attack).__name__ in run.summary()["attack"] and plain.summary()["attack"] is None
    assert run.history[-1]["macro_loss"] == run.metrics["macro_loss"]
    assert run.summary()["personalised"]["macro_loss"] == pytest.approx(
        plain.scores["personalised"].loss[honest].mean()
    )


def test_nan_is_dropped_counted_and_never_a_center(blobs: Make) -> None:
    for method in (pc.tkm(k=2, beta=0.4, **TRAINING), pc.fesem(k=2, **TRAINING), pc.fedavg(**TRAINING)):
        run = pc.run(method, blobs(SIZES), model=small, rounds=3, attack=pc.NotANumber(0.4))
        assert run.summary()["dropped"] == 3 * 2
        assert bool(run.state.centers["model"].isfinite().all())


def test_clusters_are_judged_by_honest_clients() -> None:
    federation = deal(mixture(k=2, clients=30), Natural())
    training = {"lr": 0.3, "batch": None, "warm_up": 30, "beta": 0.2}
    run = pc.run(pc.tkm(k=2, **training), federation, model="logistic", rounds=2, attack=pc.LargeNorm(0.1), fine_tune=0)
    assert run.metrics["ari"] == 1.0
    assert int(run.clients.attackers.sum()) == 3


def test_an_attacked_run_resumes_under_the_same_attack_only(blobs: Make, tmp_path: Any) -> None:
    method, attack = pc.fedavg(**TRAINING), pc.LargeNorm(0.4)
    pc.run(method, blobs(SIZES), model=small, rounds=2, attack=attack, out=tmp_path / "run")
    schedule = dict(rounds=4)
    fresh = ready(blobs(SIZES), attack, method, dtype="float32", **schedule)
    resumed, _ = went_on(fresh, Folder.open(tmp_path / "run"))
    whole = pc.run(method, blobs(SIZES), model=small, rounds=4, attack=attack)
    assert torch.equal(resumed.state.centers["model"], whole.state.centers["model"])
    honest = ready(blobs(SIZES), None, method, dtype="float32", **schedule)
    with pytest.raises(pc.UsageError, match="attack"):
        went_on(honest, Folder.open(tmp_path / "run"))


# -- from words ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "attack"),
    [
        ("nan(0.1)", pc.NotANumber(0.1)),
        ("sign-flip(share=0.3, scale=2)", pc.SignFlip(0.3, 2.0)),
        ("large-norm", pc.LargeNorm()),
        ("same-value(value=5)", pc.SameValue(value=5.0)),
        ("label-flip(share=0.05)", pc.LabelFlip(0.05)),
        ("alie(share=0.1, z=1.5)", pc.LittleIsEnough(0.1, 1.5)),
        ("ipm(eps=5)", pc.InnerProduct(eps=5.0)),
        (None, None),
        ("none", None),
    ],
)
def test_an_attack_is_a_setting(words: str | None, attack: Attack | None) -> None:
    asked = Settings(method="fedavg", attack=words)
    assert built_attack(asked) == attack
    clients = prepared(asked.changed(clients=20)).clients
    assert isinstance(clients, Simulation) and clients.attack == attack


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("signflip", "did you mean 'sign-flip'"),
        ("sign-flip(share=1)", r"SignFlip.share is a share of the clients in \[0, 1\), got 1"),
        ("large-norm(scale=inf)", "LargeNorm.scale must be a finite number, got inf"),
        ("label-flip(scale=2)", "scale"),
    ],
)
def test_a_wrong_attack_is_refused_before_anything_is_read(words: str, text: str) -> None:
    with pytest.raises(pc.UsageError, match=text):
        prepared(Settings(method="fedavg", data="nowhere", attack=words))


def test_a_block_without_attackers_is_sent_as_it_is() -> None:
    block = Cohort(torch.arange(2), torch.ones(2).long(), torch.ones(2).double(), 3, 0, 0)
    rows = {"model": torch.ones(2, 4)}
    out = pc.SignFlip().on(rows, {}, torch.tensor([False, False, True]), block)
    assert out is rows


def test_one_number_is_any_of_the_row() -> None:
    """Drawn evenly by the seed: of 400 seeds, the twenty numbers come 20 times each, and 38 times at most by luck."""
    rows = torch.zeros(2, 20)
    cohort = Cohort(torch.arange(2), torch.ones(2).long(), torch.ones(2), 2, 0, 0)
    hit = torch.stack(
        [pc.OneCoordinate(0.5, 7.0).lie("model", rows, rows, replace(cohort, seed=s)) for s in range(400)]
    )
    assert torch.equal(hit[:, 0], hit[:, 1]) and hit.sum(2).unique().tolist() == [7.0]
    count = (hit[:, 0] > 0).sum(0)
    assert 4 < int(count.min()) and int(count.max()) < 38


def test_where_attackers_are_the_majority_they_stay_near_all_the_same() -> None:
    """A majority needs no honest client on its side: Phi^-1(1) is infinite, and 0.999 is taken."""
    honest = random(0, 2, 5)
    update = pc.LittleIsEnough(0.6).update("model", honest, 3, 0)
    torch.testing.assert_close(update, honest.mean(0) - 3.0902 * honest.std(0, correction=0), rtol=1e-4, atol=1e-4)
