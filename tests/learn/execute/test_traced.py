"""Replayed steps: the looped ones to rounding, whoever is still at work, and the same bits whoever was there before."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polycentric import Federation, Prox, Simulation, Task, Train, fedavg
from polycentric.learn import Traced
from polycentric.learn.execute import traced
from polycentric.learn.execute.traced import piece_for, rung
from polycentric.round import run_round
from polycentric.runs.folder import Folder
from polycentric.runs.loop import Callback
from polycentric.runs.settings import Settings
from polycentric.runs.start import attach_folder, prepare, prepared, resumed
from support import Make


def after(method: Any, federation: Federation, rounds: int = 2, **how: Any) -> dict[str, Tensor]:
    prepared = prepare(method, federation, **({"model": "mlp", "dtype": "float64"} | how))
    state = prepared.state
    for _ in range(rounds):
        state, _ = run_round(prepared.method, state, prepared.clients)
    return state.centers | state.kept | state.memory


def programs(clients: Simulation) -> traced.Programs:
    assert isinstance(clients.run, Traced)
    return clients.run.programs


METHODS = {
    "sgd": fedavg(lr=0.05, epochs=2, batch=5),
    "momentum": fedavg(lr=0.05, epochs=2, batch=5, momentum=0.9, weight_decay=0.1),
    "adam": fedavg(lr=0.05, epochs=2, batch=5, optimizer="adam"),
    "all at once": fedavg(lr=0.05, steps=3, batch=None),
    "all at once, often": fedavg(lr=0.05, steps=12, batch=None),
    "wide": fedavg(lr=0.05, batch=20),
    "a penalty": fedavg(lr=0.05, batch=5, terms=(Prox(0.3),)),
}


@pytest.mark.parametrize("piece", [1, 3, 16])
@pytest.mark.parametrize("name", METHODS)
def test_replayed_steps_are_the_looped_ones_whoever_is_still_at_work(
    name: str, piece: int, blobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced, "piece_for", lambda _: piece)
    federation = blobs(sizes=(9, 3, 30, 1, 14, 14, 2, 8, 8, 5, 41, 7))
    both = [after(METHODS[name], federation, executor=executor) for executor in ("traced", "looped")]
    torch.testing.assert_close(*both, rtol=1e-10, atol=1e-12)


class Odd(nn.Module):
    """Everything beside parameters that are trained: a buffer, a frozen layer, a constant, a tensor of its own."""

    def __init__(self, shape: Any, n: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, n)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.tanh(self.frozen(self.first(x))) * self.scale + torch.tensor(0.25, dtype=x.dtype)
        spread = torch.zeros_like(found)
        spread[..., 1:] = found[..., 1:] * 2  # in place, on memory of its own
        return self.last(self.norm(found + spread).relu())


def test_buffers_frozen_layers_and_what_is_written_in_place_are_there(blobs: Make) -> None:
    federation = blobs(sizes=(9, 30, 14))
    both = [after(METHODS["sgd"], federation, executor=executor, model=Odd) for executor in ("traced", "looped")]
    torch.testing.assert_close(*both, rtol=1e-10, atol=1e-12)


def test_modules_that_draw_draw_the_same_for_the_same_block_and_anew_at_every_step(blobs: Make) -> None:
    federation = blobs(sizes=(20, 20))
    dropping = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    how: dict[str, Any] = {"executor": "traced", "model": dropping}
    one, two = (after(fedavg(lr=0.1, batch=5), federation, 1, **how)["model"] for _ in range(2))
    assert torch.equal(one, two)
    still = after(fedavg(lr=0.1, batch=5), federation, 1, **how | {"model": dropping[:2] + dropping[3:]})["model"]
    assert not torch.equal(one, still)


class Looks(nn.Module):
    """Looks at a number of its own, which vmap allows and no recording could follow."""

    def __init__(self, shape: Any, n: int) -> None:
        super().__init__()
        self.head = nn.Linear(6, n)
        self.register_buffer("turns", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * float(self.turns)


class Drawing(nn.Module):
    """Draws from a generator of its own, which no recorded step can know of."""

    def __init__(self, shape: Any, n: int) -> None:
        super().__init__()
        self.head = nn.Linear(6, n)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + torch.rand(6, generator=torch.Generator().manual_seed(3), dtype=x.dtype))


@pytest.mark.parametrize("model", [Looks, Drawing])
def test_steps_that_cannot_be_recorded_run_stacked_and_that_is_said_once(model: Any, blobs: Make) -> None:
    models = []
    for executor in ("traced", "stacked"):
        prepared = prepare(METHODS["sgd"], blobs(), model=model, executor=executor, dtype="float64")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(2):
                state, _trips = run_round(prepared.method, prepared.state, prepared.clients)
        assert len([w for w in said if "cannot be recorded" in str(w.message)]) == (executor == "traced")
        models.append(state.centers["model"])
    assert torch.equal(*models)


def test_a_step_has_the_same_bits_whatever_was_recorded_before(blobs: Make) -> None:
    federation = blobs(sizes=(9, 3, 30, 1, 14))
    made = prepare(METHODS["sgd"], federation, model="mlp", executor="traced")
    first, _ = run_round(made.method, made.state, made.clients)
    n = len(programs(made.clients).known)
    second, _ = run_round(made.method, made.state, made.clients)
    assert n == len(programs(made.clients).known) > 1
    assert torch.equal(first.centers["model"], second.centers["model"])


def test_workers_give_the_bits_of_one(blobs: Make) -> None:
    federation = blobs(sizes=(20, 9, 14, 3, 20, 20, 11, 7))
    how: dict[str, Any] = {"executor": "traced", "block": 2, "dtype": "float32"}
    one, two = (after(METHODS["sgd"], federation, workers=n, **how) for n in (1, 3))
    assert torch.equal(one["model"], two["model"])


def test_a_step_does_not_read_what_it_need_not_and_overwrites_nothing_it_was_given(blobs: Make) -> None:
    federation = blobs(sizes=(10, 10))
    task = Task.of(federation, "logistic", dtype=torch.float64)
    clients = Simulation(federation, task, executor="traced")
    rows = {name: row.repeat(2, 1) for name, row in task.start().items()}
    before = {name: row.clone() for name, row in rows.items()}
    poison = torch.full_like(rows["model"], torch.nan)
    plain = clients.run(Train(batch=5), rows | {"start": poison}, clients.everyone(0))
    assert bool(plain["model"].isfinite().all())
    pulled = clients.run(Train(batch=5, terms=(Prox(0.1),)), rows | {"start": poison}, clients.everyone(0))
    assert not bool(pulled["model"].isfinite().any())
    assert all(torch.equal(rows[name], before[name]) for name in rows)


def test_one_whose_numbers_run_away_harms_nobody(blobs: Make) -> None:
    federation = blobs(sizes=(20, 20, 20))
    task = Task.of(federation, "mlp")
    clients = Simulation(federation, task, executor="traced")
    rows = {name: row.repeat(3, 1) for name, row in task.start().items()}
    alone = clients.run(Train(batch=5), rows, clients.everyone(0))["model"]
    rows["model"][1] = torch.inf
    beside = clients.run(Train(batch=5), rows, clients.everyone(0))["model"]
    assert torch.equal(alone[[0, 2]], beside[[0, 2]]) and not bool(beside[1].isfinite().all())


@pytest.mark.parametrize("row", [100, 130_000, 434_936, 3_000_000, 1 << 40])
def test_pieces_fit_the_cache_and_have_a_program(row: int) -> None:
    piece = piece_for(row)
    assert piece == 1 or piece * row <= 4 << 20
    assert rung(piece) == piece
    assert all(n <= rung(n) < n * 1.5 and rung(rung(n)) == rung(n) for n in range(1, 200))


def test_a_traced_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    asked = Settings.of(
        {"method": "fedavg", "data": "digits", "partition": "iid", "clients": 9, "model": "mlp", "rounds": 4}
        | {"executor": "traced", "device": "cpu", "checkpoint_every": 1, "fine_tune": 0}
        | {"set": {"select": "uniform(n=3)"}}
    )
    whole = attach_folder(prepared(asked), Folder.new(tmp_path / "whole")).go()
    part = attach_folder(prepared(asked), Folder.new(tmp_path / "part"))

    class Stop(Callback):
        def on_round(self, run: Any, trips: Any) -> None:
            if run.state.round == 2:
                raise KeyboardInterrupt

    part.callbacks += (Stop(),)
    with pytest.raises(KeyboardInterrupt):
        part.go()
    went_on = resumed(Folder.open(tmp_path / "part"))[0].go()
    assert torch.equal(went_on.state.centers["model"], whole.state.centers["model"])
    assert (tmp_path / "part/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
