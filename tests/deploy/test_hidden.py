"""Noise in a real federation is nobody else's, though all know the seed: at the center, and at a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from deploy.test_serve import HOW, Kill, Killed, federation, hand, settings
from polycentric import open as open_run, run as simulate
from polycentric.deploy.joining import one_of
from polycentric.deploy.participant import Participant
from polycentric.deploy.secret import secret_of
from polycentric.deploy.serve import Waiting, serve
from polycentric.deploy.store import Store
from polycentric.errors import UsageError
from polycentric.parts.privacy import Gaussian
from polycentric.runs.loop import Callback, Run
from polycentric.runs.record import read_record
from polycentric.stacks.draw import secret_normal

PRIVATE: dict[str, Any] = {"clip": 1.0, "noise": 1.0, "lr": 0.1, "epochs": 1, "select": "poisson(rate=0.7)"}


def served(folder: Path, name: str = "dp-fedavg", **how: Any) -> Run:
    return serve(settings(name, set=PRIVATE, rounds=3), hand(folder / "n"), folder / "served", Waiting(4), **how)


def test_the_seed_tells_neither_the_noise_nor_who_took_part(tmp_path: Path) -> None:
    """Another server with the same seed ends elsewhere, and so does a simulation; epsilon is the same."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = served(tmp_path / "a"), served(tmp_path / "b")
    plain = simulate("dp-fedavg", federation(), executor="looped", block=1, **HOW | {"set": PRIVATE, "rounds": 3})
    models = [ended.state.centers["model"] for ended in (one, other, plain)]
    assert all(float((a - b).abs().max()) > 1e-3 for a, b in zip(models, models[1:] + models[:1], strict=True))
    assert one.summary()["epsilon"] == plain.summary()["epsilon"] is not None
    took = [ended.tally.took.tolist() for ended in (one, other, plain) if ended.tally.took is not None]
    assert len({tuple(each) for each in took}) > 1
    assert not list((tmp_path / "a" / "served" / "came").iterdir())  # what came without noise is gone at the end


@pytest.mark.parametrize("named", ["before the record", "after the checkpoint"])
def test_a_center_that_was_killed_tells_the_same_sum_with_the_same_noise(named: str, tmp_path: Path) -> None:
    """Never another sum with the same noise, nor the same with other: both would tell more than epsilon says."""

    class Die(Callback):
        def on_evaluation(self, run: Run, row: dict[str, Any]) -> None:
            if run.state.round == 2:  # the new model has left with the letters of the next round
                raise Killed

    asked, how = settings("dp-fedavg", set=PRIVATE, rounds=4), Waiting(4)
    whole = serve(asked, hand(tmp_path / "n"), tmp_path / "whole", how)
    (tmp_path / "cut.secret").write_bytes((tmp_path / "whole.secret").read_bytes())
    (tmp_path / "cut.secret").chmod(0o600)
    die: list[Callback] = [Die() if named == "before the record" else Kill(2)]
    with pytest.raises(Killed):
        serve(asked, hand(tmp_path / "m"), tmp_path / "cut", how, callbacks=die)
    (tmp_path / "cut" / "lock").unlink(missing_ok=True)
    late = hand(tmp_path / "m")
    late.online = {"ward-0", "ward-1", "ward-2", "ward-3"}
    ended = serve(asked, late, tmp_path / "cut", how)
    assert torch.equal(ended.state.centers["model"], whole.state.centers["model"])


@pytest.mark.parametrize("hide", ["", "dp-sgd(clip=1, noise=1)"])
def test_a_finished_run_is_opened_without_its_secret(hide: str, tmp_path: Path) -> None:
    asked = settings("fedavg", set={"lr": 0.1, "hide": hide}, rounds=1) if hide else settings("dp-fedavg", rounds=1)
    ended = serve(asked, hand(tmp_path / "n"), tmp_path / "served", Waiting(4))
    assert torch.equal(
        open_run(tmp_path / "served", examples=False).state.centers["model"], ended.state.centers["model"]
    )


@pytest.mark.parametrize("hide", ["", "dp-sgd(clip=1, noise=1)"])
def test_who_comes_between_two_looks_changes_no_letter(hide: str, tmp_path: Path) -> None:
    """Letters that were sent ahead are those of the round: who hides its examples answers no others for it."""
    carrier = hand(tmp_path / "n")
    carrier.online = {"ward-0", "ward-1", "ward-2"}

    class Late(Callback):
        def on_evaluation(self, run: Run, row: dict[str, Any]) -> None:
            carrier.online = set(carrier.clients)
            run.remote.post.roster._looked = -1e9
            run.remote.post.roster.look()
            run.remote.post.fetch()

    words = {"lr": 0.1, "epochs": 1} | ({"hide": hide} if hide else {})
    asked, how = settings("fedavg", set=words, rounds=3), Waiting(3)
    ended = serve(asked, carrier, tmp_path / "served", how, names=sorted(carrier.clients), callbacks=[Late()])
    assert ended.tally.took is not None and ended.tally.took.tolist() == [3, 3, 3, 2]
    assert ended.tally.late == 0


def test_a_center_that_was_killed_ends_a_round_with_whom_it_had_asked(tmp_path: Path) -> None:
    """Also where somebody who had come late is away now: the sum is that of then, and nobody is called diverged."""
    carrier = hand(tmp_path / "n")
    carrier.online = {"ward-0", "ward-1", "ward-2"}

    class Late(Callback):
        def on_evaluation(self, run: Run, row: dict[str, Any]) -> None:
            if run.state.round == 2:
                raise Killed
            carrier.online = set(carrier.clients)
            run.remote.post.roster._looked = -1e9
            run.remote.post.roster.look()
            run.remote.post.fetch()

    asked = settings("dp-fedavg", set=PRIVATE | {"select": "everyone"}, rounds=3)
    how: dict[str, Any] = {"names": sorted(carrier.clients)}
    with pytest.raises(Killed):
        serve(asked, carrier, tmp_path / "served", Waiting(3), **how, callbacks=[Late()])
    again = hand(tmp_path / "n")
    again.online = {"ward-0", "ward-1", "ward-2"}
    serve(asked, again, tmp_path / "served", Waiting(3, deadline=0.2), **how)
    lines = [line for line in read_record(tmp_path / "served" / "exchanges.jsonl") if "sent" in line]
    assert [sorted(line["sent"]) for line in lines] == [["0", "1", "2"], ["0", "1", "2", "3"], ["0", "1", "2"]]


def test_an_exchange_that_was_begun_is_ended_with_what_had_come(tmp_path: Path) -> None:
    store = Store(tmp_path / "came")
    sent = {3: {"model": torch.arange(4.0)[None]}, 1: {"model": torch.ones(1, 4), "count": torch.ones(1, 1)}}
    store.write((2, 0), sent)
    again = Store(tmp_path / "came").read((2, 0))
    assert again is not None and list(again) == [3, 1]
    assert all(torch.equal(again[k][name], rows) for k, each in sent.items() for name, rows in each.items())
    assert Store(tmp_path / "came").read((3, 0)) is None
    store.forget()
    assert Store(tmp_path / "came").read((2, 0)) is not None  # of few, none is too many
    for round in range(3, 12):
        store.write((round, 0), {})
    store.forget({(2, 0)}, recent=2)
    assert sorted(path.name for path in (tmp_path / "came").glob("*.json")) == [
        f"{round:010d}-0000.json" for round in (2, 10, 11)
    ]


def test_a_client_that_hides_examples_draws_noise_of_its_own(tmp_path: Path) -> None:
    """Two clients with the same data, seed and number send different models; one of them, restarted, the same."""
    asked = settings("fedavg", set={"lr": 0.1, "hide": "dp-sgd(clip=1, noise=1)"}, rounds=2)
    letters: list[Any] = []

    class Looking(Participant):
        def answer(self, parcel: Any) -> list[bytes]:
            letters.append(list(parcel))
            return super().answer(parcel)

    carrier = hand(tmp_path / "n")
    own = one_of(federation(), 0)
    carrier.clients["ward-0"] = Looking(own, tmp_path / "own", name="ward-0")
    serve(asked, carrier, tmp_path / "served", Waiting(4))
    parcel = next(each for each in letters if len(each) > 2)  # terms, scores and the first training
    first = Participant(own, tmp_path / "own", name="ward-0").answer(parcel)
    assert Participant(own, tmp_path / "own", name="ward-0").answer(parcel)[1] == first[1]
    other = Participant(own, tmp_path / "other", name="ward-0").answer(parcel)
    assert other[1] != first[1]
    said: list[str] = []
    changed = Participant(own, tmp_path / "own", name="ward-0", log=said.append)
    letter = bytearray(parcel[2])
    letter[-1] ^= 1  # a number of the model: another letter for the same exchange
    changed.answer([parcel[0], bytes(letter)])
    assert any("more than 1 different letters" in line for line in said)


def test_secret_noise_is_normal_and_follows_from_its_key() -> None:
    drawn = secret_normal(200_000, b"a key")
    assert abs(float(drawn.mean())) < 0.01 and abs(float(drawn.std()) - 1) < 0.01
    assert torch.equal(drawn, secret_normal(200_000, b"a key"))
    assert abs(float(torch.corrcoef(torch.stack([drawn, secret_normal(200_000, b"b key")]))[0, 1])) < 0.01
    hidden = Gaussian(clip=1.0, noise=1.0).secured(b"very secret")
    assert "very" not in repr(hidden) and hidden.secured(b"other") is hidden


def test_a_secret_is_made_once_and_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    found = secret_of(path)
    assert len(found) == 32 and secret_of(path) == found and path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        secret_of(path)
    path.chmod(0o600)
    path.write_bytes(found[:-1])
    with pytest.raises(UsageError, match="was changed"):
        secret_of(path)
