"""A run's models on other data: centers chosen by loss, clients known by name, and what cannot be compared refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polycentric as pc
from polycentric.data import Federation
from polycentric.data.from_table import rows_to_inputs, table
from polycentric.data.table_file import read_rows
from polycentric.runs.loop import Run
from polycentric.runs.newcomers import Fits
from support import Make, small

METHODS = {
    "fedavg": pc.fedavg(lr=0.2),
    "private": pc.fedavg(lr=0.2, cut=pc.KeepPrivate("head*")),
    "fesem": pc.fesem(k=2, lr=0.2),
    "ifca": pc.ifca(k=2, lr=0.2),
    "dpsgd": pc.dpsgd(lr=0.2),
    "mtl": pc.mtl(lr=0.05),
    "fedmes": pc.fedmes(cells=pc.RingCells(2), lr=0.2),
}


def ran(name: str, federation: Federation, **how: Any) -> Run:
    return pc.run(METHODS[name], federation, **{"model": small, "rounds": 3, "fine_tune": 0, "dtype": "float64"} | how)


def strangers(federation: Federation) -> Federation:
    return replace(federation, clients=tuple(f"new {k}" for k in range(federation.n_clients)))


def others(blobs: Make) -> Federation:
    """Clients like those of the run, with other examples and names; one has nothing to choose by."""
    return strangers(blobs((14, 9, 0, 11), seed=1))


@pytest.mark.parametrize("name", METHODS)
def test_on_its_own_data_a_run_scores_what_it_scored(name: str, blobs: Make) -> None:
    done = ran(name, blobs())
    found = done.evaluate(done.federation)
    assert bool(found.own.all())
    for what in ("count", "accuracy", "loss", "f1"):
        np.testing.assert_allclose(getattr(found.scores, what), getattr(done.scores["in_use"], what), rtol=1e-9)
    assert found.summary()["metrics"]["micro_accuracy"] == pytest.approx(done.metrics["micro_accuracy"])


@pytest.mark.parametrize("name", ["fesem", "ifca", "fedavg"])
def test_the_center_of_the_lowest_loss(name: str, blobs: Make) -> None:
    done, new = ran(name, blobs()), others(blobs)
    fits = done.assign(new)
    n = len(done.state.centers["model"])
    assert fits.centers == tuple(range(n)) and fits.clients == new.clients
    for k in (0, 1, 3):
        mine = new.train.of(k)
        with torch.no_grad():
            right = [
                float(torch.nn.functional.cross_entropy(done.model_of(center=c)(mine.x), mine.y)) for c in range(n)
            ]
        assert fits.losses[k].tolist() == pytest.approx(right)
        assert fits.best[k] == int(np.argmin(right))
        assert n == 1 or float(fits.margin[k]) == pytest.approx(sorted(right)[1] - min(right))
    assert fits.best[2] is None and bool(fits.margin[2].isnan())
    assert ("one center" in fits.note) == (n == 1)
    assert fits.table().splitlines()[0].startswith("client,center,margin,loss_0")


def test_what_is_not_finite_is_never_chosen() -> None:
    nan = torch.nan
    fits = Fits(("a", "b", "c"), (4, 7), torch.tensor([[nan, 2.0], [3.0, 1.0], [1.0, 1.0]], dtype=torch.float64))
    assert fits.best == [7, 7, 4]
    assert fits.margin.tolist()[1:] == [2.0, 0.0] and bool(fits.margin[0].isnan())


@pytest.mark.parametrize("name", ["fesem", "ifca"])
def test_newcomers_are_scored_by_their_best_center(name: str, blobs: Make) -> None:
    done, new = ran(name, blobs()), others(blobs)
    found, best = done.evaluate(new), done.assign(new).best
    assert found.center == [best[0], best[1], 0, best[3]]  # who has nothing to choose by takes the first
    assert not bool(found.own.any()) and "1 have none to choose by" in found.said[1]
    for k in range(4):
        mine = new.test.of(k)
        predicted = done.model_of(center=best[k] or 0)(mine.x).argmax(1)
        assert found.scores.accuracy[k] == pytest.approx(float((predicted == mine.y).double().mean()))


def test_newcomers_get_the_mean_of_what_others_keep_and_that_is_said(blobs: Make) -> None:
    new = others(blobs)
    done = ran("private", blobs())
    found, mean = done.evaluate(new), done.model_of(client=0)
    with torch.no_grad():
        for name, parameter in mean.named_parameters():
            every = [done.model_of(client=k).state_dict()[name] for k in range(done.federation.n_clients)]
            parameter.copy_(torch.stack(every).mean(0))
    mine = new.test.of(1)
    assert found.scores.accuracy[1] == pytest.approx(float((mean(mine.x).argmax(1) == mine.y).double().mean()))
    assert "with the mean of the private parts of all trained clients" in found.said[-1]
    alone = ran("dpsgd", blobs()).evaluate(new)
    assert "the mean of all trained clients' models, since dpsgd has no center" in alone.said[-1]
    assert alone.center == [0] * 4
    with pytest.raises(pc.UsageError, match="clients of dpsgd have whole models of their own"):
        ran("dpsgd", blobs()).assign(new)


def test_some_known_and_some_new(blobs: Make) -> None:
    done = ran("fesem", blobs())
    new = replace(others(blobs), clients=("client 1", "x", "y", "client 0"))
    found = done.evaluate(new)
    assert found.own.tolist() == [True, False, False, True]
    mine = new.test.of(0)
    predicted = done.model_of(client="client 1")(mine.x).argmax(1)
    assert found.scores.accuracy[0] == pytest.approx(float((predicted == mine.y).double().mean()))
    summary = found.summary()
    both = [summary[part]["macro_accuracy"] for part in ("known", "newcomers")]
    assert summary["metrics"]["macro_accuracy"] == pytest.approx(np.mean(both))
    assert not bool(done.evaluate(new, all_new=True).own.any())


def test_who_never_took_part_has_no_model_to_keep(blobs: Make) -> None:
    with pytest.warns(UserWarning, match="untrained"):
        done = ran("private", blobs(), held_out=0.4)
    found = done.evaluate(done.federation)
    assert torch.equal(~found.own, done.clients.held_out_mask)
    assert "2 more have, but never took part, and count as newcomers" in found.said


def test_examples_that_were_learned_are_told_of(blobs: Make) -> None:
    done = ran("fedavg", blobs())
    leaked = strangers(replace(done.federation, test=done.federation.train))
    n = len(done.federation.train)
    with pytest.warns(UserWarning, match=f"{n} of {n} test examples of 'made' are the same as some"):
        done.evaluate(leaked)


def test_other_data_are_scaled_as_the_runs_were(tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    x = (source.normal(size=(80, 3)) * [1, 100, 5] + 50).astype(np.float32)
    y = source.normal(size=80).astype(np.float32)
    np.savez(tmp_path / "old.npz", x=x, y=y, client=np.arange(80) % 4)
    np.savez(tmp_path / "new.npz", x=x + 1, y=y, client=np.arange(80) % 4 + 2)
    done = pc.run("fedavg", tmp_path / "old.npz", rounds=2, fine_tune=0, standardise="train", model="mlp")
    found = done.evaluate(tmp_path / "new.npz")
    scaling = done.federation.scaling
    assert scaling is not None and found.own.tolist() == [True, True, False, False]
    raw = pc.load(tmp_path / "new.npz").test.of(1)
    with torch.no_grad():
        error = (done.model_of()(scaling(raw.x)).squeeze(-1) - raw.y).square().mean() / 2
    assert found.scores.loss[1] == pytest.approx(float(error), rel=1e-5)
    with pytest.raises(pc.UsageError, match="standardised by themselves"):
        done.evaluate(pc.load(tmp_path / "new.npz", standardise="train"))


def test_data_that_do_not_fit_are_refused_with_what_differs(blobs: Make, quadratics: Make) -> None:
    done = ran("fedavg", blobs())
    for other, said in (
        (blobs(shape=(5,)), r"data 'made': examples have shape \(5,\), and the run's \(6,\)"),
        (quadratics(dimension=6), "has numbers as targets, and the run's data classes"),
        (replace(blobs(), classes=("a", "b", "c")), "has a class 'a', which is none of the run's: 0, 1, 2"),
        (replace(blobs(shape=(6,), symbols=4), symbols=4), "symbols are 4, and the run's 0"),
    ):
        for ask in (done.assign, done.evaluate):
            with pytest.raises(pc.UsageError, match=said):
                ask(strangers(other))


def test_a_table_of_clients_is_read_by_the_recipe_of_the_run(tmp_path: Path) -> None:

    def written(name: str, sites: str, shift: int) -> Path:
        ages = [round((7.31 * i + shift) % 40, 2) for i in range(60)]
        lines = [f"{sites[i % 2]},{age},{'xyz'[i % 3]},{'yes' if i % 5 else 'no'}" for i, age in enumerate(ages)]
        (tmp_path / name).write_text("site,age,kind,sick\n" + "\n".join(lines) + "\n")
        return tmp_path / name

    pool = table(written("old.csv", "ab", 0), client="site", target="sick")
    done = pc.run(pc.fedavg(lr=0.1), pc.load(pool, standardise="train"), model="mlp", rounds=2, fine_tune=0)
    found = done.evaluate(written("new.csv", "bc", 7))
    assert found.federation.clients == ("b", "c") and found.own.tolist() == [True, False]
    recipe, scaling, mine = done.federation.recipe, done.federation.scaling, found.federation.test.of(1)
    assert recipe is not None and scaling is not None
    rows = read_rows(tmp_path / "new.csv")
    every = scaling(rows_to_inputs(recipe, rows)).tolist()
    assert all(x in every for x in mine.x.tolist()) and found.federation.columns == done.federation.columns
    lines = (tmp_path / "new.csv").read_text().splitlines()
    bare = [line.rpartition(",")[0] + "," if at in (3, 4, 9) else line for at, line in enumerate(lines)]
    bare[12] = bare[12][1:]  # nobody's
    (tmp_path / "some.csv").write_text("\n".join(bare) + "\n")
    some = done.evaluate(tmp_path / "some.csv")
    assert "some: rows left out: 4 without target or client, of 60" in some.said
    left = [line for at, line in enumerate(lines) if at not in (3, 4, 9, 12)]
    (tmp_path / "left.csv").write_text("\n".join(left) + "\n")
    assert some.federation.fingerprint == done.evaluate(tmp_path / "left.csv").federation.fingerprint
    (tmp_path / "well.csv").write_text("site,age,kind,sick\n" + "b,30,x,no\nb,31,y,no\n" * 2)
    assert done.evaluate(tmp_path / "well.csv").federation.classes == ("no", "yes")  # nobody is sick, and all is well
    (tmp_path / "bare.csv").write_text("site,age,kind\nb,30,x\n")
    with pytest.raises(pc.UsageError, match="lacks a column of sick"):
        done.evaluate(tmp_path / "bare.csv")


def test_gaps_are_filled_by_the_medians_of_the_run_whoever_dealt_the_table(tmp_path: Path) -> None:
    """A federation of the newcomers' own has their medians in its gaps: the run's stand there when it is scored."""

    def frame(shift: int) -> dict[str, list[Any]]:
        age = ["" if i % 6 == 0 else round((7.31 * i) % 40 + shift, 2) for i in range(60)]
        known = {"site": ["a", "b"] * 30, "age": age, "kind": ["x", "y", "z"] * 20}
        return known | {"sick": ["yes" if i % 5 else "no" for i in range(60)]}

    class Frame(dict[str, list[Any]]):
        columns = property(list)

    pools = [pc.from_frame(Frame(frame(shift)), client="site", target="sick", name="visits") for shift in (0, 1000)]
    done = pc.run(pc.fedavg(lr=0.1), pc.load(pools[0], standardise="train"), model="mlp", rounds=1, fine_tune=0)
    with pytest.warns(UserWarning, match="different units"):
        theirs = pc.load(pools[1])
    fills = [(one.recipe or {})["columns"][0]["fill"] for one in (done.federation, theirs)]
    assert fills[1] > fills[0] + 900
    found, scaling = done.evaluate(theirs).federation, done.federation.scaling
    assert scaling is not None
    for split, own in ((found.train, theirs.train), (found.test, theirs.test)):
        gap = own.x[:, 1] == 1
        raw = split.x.double() * scaling.spread + scaling.mean
        assert bool(gap.any()) and torch.allclose(raw[gap, 0], torch.tensor(fills[0]).double(), atol=1e-3)
        assert torch.allclose(raw[~gap, 0], own.x[~gap, 0].double(), atol=1e-2)
    whole = done.evaluate(Frame(frame(1000)))  # the rows themselves
    assert whole.scores.loss.tolist() == pytest.approx(done.evaluate(theirs).scores.loss.tolist(), rel=1e-5)
    other = pc.load(pc.from_frame(Frame(frame(0) | {"kind": ["x", "y", "q"] * 20}), client="site", target="sick"))
    with pytest.raises(pc.UsageError, match="became numbers in another way than the run's did"):
        done.evaluate(other)
