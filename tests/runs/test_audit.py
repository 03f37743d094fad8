"""The audit of a finished run: what is memorised is found, what is not trained is not, and halves are halves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

import polycentric as pc
from polycentric import Federation, Gaussian, UsageError, dp_fedavg, fedavg, ifca, nofed
from polycentric.runs.audit import Audit, audit, confidence, half, likelihood_ratios
from polycentric.runs.separation import most_auc
from support import Make, linear, random, ready

KEYS = {"attacks", "promises", "allowed", "canary", "said"}


def memorised(clients: int, made: Make, n: int = 10, width: int = 60, seed: int = 0) -> Federation:
    """Labels by a coin, and more features than examples: a linear model can only learn them by heart."""

    def part(k: int, purpose: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = random(1000 * seed + 10 * k + purpose, n, width)
        return x, (random(1000 * seed + 10 * k + purpose + 5, n) > 0).long()

    return made([part(k, 0) for k in range(clients)], [part(k, 1) for k in range(clients)], classes=2)


def learned(federation: Federation, method: Any = None, **how: Any) -> Any:
    method = method or fedavg(lr=1.0, epochs=20, batch=5)
    return ready(method, federation, **{"model": linear, "rounds": 6, "fine_tune": 0, "evaluate_every": 6} | how).go()


# -- by the loss ---------------------------------------------------------------------------------------------


def test_what_was_learned_by_heart_is_told_from_what_was_not(made: Make) -> None:
    found = audit(learned(memorised(8, made, width=800)))
    (attack,) = found.attacks
    assert attack.name == "loss" and attack.unit == "example" and attack.succeeds
    assert attack.found.auc > 0.95 and attack.found.tpr[0.01] > 0.5
    assert attack.before is not None and abs(attack.before.auc - 0.5) < 4 * attack.before.error
    assert attack.worst is not None and attack.worst["sure"] and attack.worst["auc"] >= attack.found.auc - 0.05
    assert "members are told from others" in found.said[0] and "the run promises nothing" in " ".join(found.said)


def test_what_was_not_trained_is_guessed(made: Make) -> None:
    found = audit(learned(memorised(8, made), fedavg(lr=0.0)))
    (attack,) = found.attacks
    assert attack.gain == (0.0, 0.0) and not attack.succeeds and attack.found.auc == attack.before.auc  # type: ignore[union-attr]
    assert found.said[0].startswith("loss: no better than guessing")


def test_a_difference_that_was_there_before_is_no_success_and_is_said(made: Make) -> None:
    """All training examples are of one class, all test examples of the other, and a model prefers one of the two."""
    found = {}
    for label in (0, 1):
        train, test = (
            [(1 + 0.01 * random(k + far, 10, 6), torch.full((10,), y)) for k in range(8)]
            for far, y in ((0, label), (50, 1 - label))
        )
        told = audit(learned(made(train, test, classes=2), fedavg(lr=1e-6)))
        assert told.attacks[0].before is not None and not told.attacks[0].succeeds
        assert any("training and test examples differ without any training" in line for line in told.said)
        found[told.attacks[0].found.sure] = told.said[0]
    assert found.keys() == {-1, 1}
    assert "not sure, the data themselves may differ as much" in found[1] and "no better than guessing" in found[-1]


def test_only_clients_that_took_part_have_members(made: Make) -> None:
    federation = memorised(10, made)
    run = learned(federation, fedavg(select=pc.Uniform(2), lr=0.1), rounds=2)
    took = int((run.tally.took > 0).sum())
    assert took < 10 and audit(run).attacks[0].found.members == 10 * took
    held = learned(federation, rounds=1, held_out=0.3)
    assert audit(held).attacks[0].found.members == 70


def test_several_centers_are_attacked_together(made: Make) -> None:
    run = learned(memorised(8, made), ifca(k=2, lr=1.0, epochs=20, batch=5))
    one, best = audit(run).attacks
    assert (one.name, best.name) == ("loss", "centers") and best.found.auc > 0.7
    alone = learned(memorised(8, made), nofed(lr=1.0, epochs=5))
    assert [attack.name for attack in audit(alone).attacks] == ["loss"]


def test_phi_is_the_logit_of_the_probability_of_the_right_class() -> None:
    p = torch.tensor([1e-20, 0.1, 0.5, 0.9, 1 - 1e-9], dtype=torch.float64)
    expected = torch.tensor([-20 * math.log(10), math.log(1 / 9), 0.0, math.log(9), math.log(1e9 - 1)])
    torch.testing.assert_close(confidence(-p.log()), expected.double(), rtol=1e-6, atol=1e-9)
    assert bool(confidence(torch.zeros(1).double()).isfinite())
    assert torch.equal(confidence(torch.tensor([-1.0, 2.0])), torch.tensor([1.0, -2.0]))


# -- by clients ----------------------------------------------------------------------------------------------


def test_clients_that_trained_are_told_from_those_held_out(made: Make) -> None:
    found = audit(learned(memorised(16, made, width=200), held_out=0.5), clients=True)
    own, others = found.attacks[1:]
    assert own.unit == others.unit == "client" and (own.found.members, own.found.others) == (8, 8)
    assert own.found.auc > 0.95 and own.succeeds and not others.succeeds  # labels are coins: nothing else is learned
    with pytest.raises(UsageError, match="some must be held out: run it again"):
        audit(learned(memorised(4, made), rounds=1), clients=True)
    with pytest.raises(UsageError, match="in nofed clients have model of their own"), pytest.warns(UserWarning):
        audit(learned(memorised(6, made), nofed(), rounds=1, held_out=0.3), clients=True)


# -- by shadows ----------------------------------------------------------------------------------------------


def test_a_half_is_half_of_every_client_and_a_coin_for_every_example(blobs: Make) -> None:
    train = blobs((13, 7, 1, 20, 2)).train
    drawn = torch.stack([half(train, seed) for seed in range(200)])
    sizes = torch.stack([train.only(mask).sizes for mask in drawn])
    assert bool(((2 * sizes - train.sizes).abs() <= 1).all()) and bool((sizes[:, 3] == 10).all())
    assert float((drawn.double().mean(0) - 0.5).abs().max()) < 4.5 * 0.5 / math.sqrt(200)
    some, rest = train.only(drawn[0]), train.only(~drawn[0])
    assert len(some) + len(rest) == len(train) and torch.equal(some.x, train.x[drawn[0]])
    assert torch.equal(some.owner, train.owner[drawn[0]])


def test_likelihood_ratios_by_hand() -> None:
    """Three shadows of one example: in with 3 and 5, out with 0; the fourth repeat is attacked."""
    phi = torch.tensor([[3.0, 1.0], [5.0, 1.0], [0.0, 2.0], [4.0, 9.0]], dtype=torch.float64)
    inside = torch.tensor([[True, True], [True, True], [False, True], [True, False]])
    ratio = likelihood_ratios(phi, inside)
    assert math.isnan(ratio[3, 1])  # it was in all others
    fits = {"in": (4.0, 2.0 + (1 - 4 / 3) ** 2 * 2 + (2 - 4 / 3) ** 2), "out": (0.0, 0.0)}
    within = fits["in"][1] / (1 + 2)  # degrees of freedom of both examples together
    expected = norm.logpdf(4.0, 4.0, math.sqrt(within * 1.5)) - norm.logpdf(4.0, 0.0, math.sqrt(1e-12 * 2))
    assert float(ratio[3, 0]) == pytest.approx(float(expected), rel=1e-6)


def test_where_members_are_like_others_ratios_guess() -> None:
    """Pure noise: members are no more likely to have high ratios, however few the shadows."""
    generator = torch.Generator().manual_seed(0)
    phi = torch.randn(6, 20_000, generator=generator).double()
    inside = torch.rand(6, 20_000, generator=generator) < 0.5
    ratio = likelihood_ratios(phi, inside)
    known = ~ratio.isnan()
    member, other = ratio[known & inside], ratio[known & ~inside]
    some = torch.randint(0, len(member), (2, 200_000), generator=generator)
    above = (member[some[0] % len(member)] > other[some[1] % len(other)]).double().mean()
    assert float(above) == pytest.approx(0.5, abs=0.006)


def test_shadows_find_what_a_small_model_has_overfitted(made: Make, tmp_path: Path) -> None:
    run = learned(memorised(6, made, width=40), fedavg(lr=0.5, epochs=4, batch=5), rounds=3)
    told: list[int] = []
    found = run.audit(shadows=6, keep=tmp_path, progress=lambda done, of, _: told.append(done))
    ratio, easier = found.attacks[1:]
    assert ratio.name == "shadows" and ratio.before is None and ratio.succeeds and ratio.found.auc > 0.7
    assert easier.succeeds and told == [1, 2, 3, 4, 5, 6]
    files = sorted(tmp_path.iterdir())
    assert len(files) == 6
    files[0].unlink()  # an interruption: the others are not made again
    before = {path: path.stat().st_mtime_ns for path in files[1:]}
    again = run.audit(shadows=6, keep=tmp_path)
    assert again.to_json() == found.to_json()
    assert {path: path.stat().st_mtime_ns for path in files[1:]} == before
    files[1].write_bytes(b"nothing")
    with pytest.raises(UsageError, match="holds no scores of a shadow: remove it"):
        run.audit(shadows=6, keep=tmp_path)


def test_what_cannot_be_audited_is_refused(made: Make) -> None:
    run = learned(memorised(4, made), rounds=1)
    with pytest.raises(UsageError, match="shadows=2 are too few"):
        audit(run, shadows=2)
    with pytest.raises(UsageError, match="keep=there is for the scores of shadows"):
        audit(run, keep="there")
    with pytest.raises(UsageError, match="has no privacy part here, so there is no epsilon to refute"):
        audit(run, canary=100)
    with pytest.raises(UsageError, match="this one has no rounds"):
        audit(ready(fedavg(), memorised(4, made), model=linear))
    with pytest.raises(UsageError, match="share their examples"):
        audit(learned(memorised(4, made).tiled(6), rounds=1))


# -- beside what is promised ---------------------------------------------------------------------------------


def test_beside_a_promise_stands_what_it_allows(made: Make) -> None:
    method = dp_fedavg(select=pc.Uniform(share=0.8), noise=4.0, lr=0.5)
    found = audit(learned(memorised(20, made), method, rounds=2, held_out=0.2, delta=1e-3), clients=True, canary=50)
    promised = found.promises["client"]
    assert promised["neighbours"] == "replace"
    for unit in ("example", "client"):  # replaced clients hide replaced examples as well
        bound = found.bound(unit)  # type: ignore[arg-type]
        assert bound is not None and bound["auc"] == most_auc(promised["epsilon"], 1e-3)
    assert found.canary is not None and not found.canary.caught
    told = found.to_json()
    assert told.keys() == KEYS and set(told["attacks"]) == {"loss", "clients", "clients (test)"}
    assert json.loads(json.dumps(told)) == told
    assert any("whatever anybody tries to find one client" in line for line in found.said)
    missing = Audit(found.attacks, {"client": promised | {"neighbours": "add"}})
    assert missing.allowed("example") == (
        2 * promised["epsilon"],
        pytest.approx(1e-3 * (1 + math.exp(promised["epsilon"]))),
    )
    examples = Audit(found.attacks, {"example": promised})
    assert examples.allowed("client") is None and examples.allowed("example") == (promised["epsilon"], 1e-3)
    both = Audit(found.attacks, {"client": promised, "example": promised | {"epsilon": 0.01}})
    assert both.allowed("example") == (0.01, 1e-3)  # the one that says more


def test_a_promise_is_not_held_against_what_stays_at_home(made: Make) -> None:
    """A client's choice among noised centers is its own, and released to nobody."""
    method = ifca(k=2, lr=0.1, privacy=Gaussian(1.0, 2.0, least=2))
    found = audit(learned(memorised(8, made), method, rounds=1))
    assert found.promises["client"]["epsilon"] > 0 and found.bound("example") is None
    assert "the promise says nothing of these attacks" in found.said[-1]


def test_more_than_is_allowed_is_said_aloud(made: Make) -> None:
    run = learned(memorised(6, made, width=40), fedavg(lr=0.5, epochs=4, batch=5), rounds=3)
    found = run.audit(shadows=4)
    lie = {"example": {"epsilon": 0.01, "delta": 1e-6, "neighbours": "zero"}}
    assert any("MORE than the stated epsilon allows" in line for line in Audit(found.attacks, lie).said)
    assert not any("MORE" in line for line in found.said)


def test_noise_hides_what_was_learned_by_heart(made: Make) -> None:
    federation, training = memorised(8, made, width=120), {"lr": 1.0, "epochs": 20, "batch": 5}
    loud = learned(federation, fedavg(equal=True, privacy=Gaussian(1.0, 30.0), **training))
    assert not audit(loud).attacks[0].succeeds


# -- from the command ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, parent = np.random.default_rng(0), tmp_path_factory.mktemp("audit")
    x, y = source.normal(size=(240, 400)).astype(np.float32), source.integers(0, 2, 240)
    np.savez(parent / "coins.npz", x=x, y=y, client=np.arange(240) % 8)
    how: dict[str, Any] = {"model": "logistic", "rounds": 4, "fine_tune": 0, "evaluate_every": 4}
    pc.run("fedavg", parent / "coins.npz", out=parent / "run", set={"lr": 1.0, "epochs": 10}, **how)
    return parent


def test_the_command_tells_a_table_or_json_and_writes_only_where_it_is_told(
    folder: Path, say: Any, tmp_path: Path
) -> None:
    before = sorted(path.name for path in (folder / "run").rglob("*"))
    words = say("audit", str(folder / "run"))
    assert words.code == 0 and "initial" in words.out and "members are told from others" in words.err
    out = tmp_path / "audit.json"
    told = say("audit", str(folder / "run"), "--shadows", "4", "--json", "--out", str(out))
    found = json.loads(told.out)
    assert found.keys() == KEYS | {"run_dir", "method", "data"} and found == json.loads(out.read_text())
    assert set(found["attacks"]) == {"loss", "shadows", "calibrated"}
    assert {"auc", "auc_error", "tpr_at_fpr", "before", "gain", "worst_client"} <= found["attacks"]["loss"].keys()
    assert found["promises"] is None and found["attacks"]["loss"]["auc"] > 0.8
    assert sorted(path.name for path in (folder / "run").rglob("*")) == before
    again = say("audit", str(folder / "run"), "--out", str(out))
    assert again.code == 2 and "is there already" in again.err
