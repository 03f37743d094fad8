"""What every method owes: one list of laws. A new method is tried as soon as it has a name."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import networkx
import pytest
import torch
from torch import Tensor, nn

from polycentric import (
    METHODS,
    SGD,
    Adam,
    Average,
    Bucketing,
    CellMap,
    Churn,
    Clipping,
    Diverged,
    ExampleNoise,
    Federation,
    GeometricMedian,
    KeepPrivate,
    Krum,
    Mean,
    Median,
    Method,
    Momentum,
    NearestNeighbours,
    Poisson,
    Quorum,
    State,
    TrimmedMean,
    Uniform,
    UsageError,
    fedavg,
    nofed,
    run,
    run_round,
)
from polycentric.data import Split
from polycentric.learn import Stacked
from polycentric.learn.execute import captured
from polycentric.runs.evaluate import held
from polycentric.runs.folder import Folder
from polycentric.runs.loop import Run
from polycentric.runs.recipes import parameters
from polycentric.runs.start import prepare
from polycentric.simulate.auto_executor import EXECUTORS
from polycentric.stacks.stack import Cut, Layout
from polycentric.topology.cells.coverage import Coverage, Geometry, covered
from polycentric.topology.graphs.networks import Network, graph_of
from support import Make, every_executor, recorded, small, went_on


@dataclass(frozen=True)
class Crowd(Network):
    """Everybody next to everybody, but a fifth client after four is alone: as if it were not there."""

    apart: bool = False

    def of(self, n: int) -> networkx.Graph:
        return graph_of(((i, j) for i in range(n - self.apart) for j in range(i)), n)


# A client more, who takes no part: neighbours on a graph must not have been promised its weight.
APART: dict[str, dict[str, Any]] = {name: {"graph": Crowd(apart=True)} for name in ("dpsgd", "matcha", "dpa-sgd")}

TRAINING: dict[str, Any] = {"lr": 0.05, "epochs": 2, "batch": 5}


@dataclass(frozen=True)
class InTurn(Geometry):
    """Two cells; clients stand in the first, in the second and in both, in turn: the same in any company."""

    order: tuple[int, ...] = ()  # who stands where, if not client k at place k

    @property
    def n_edges(self) -> int:
        return 2

    def cover(self, n_clients: int, seed: int, round: int) -> Coverage:
        place = torch.tensor(self.order or range(n_clients)) % 3
        client = torch.arange(n_clients)
        pairs = [(0, client[place != 1]), (1, client[place != 0])]
        edge = torch.cat([torch.full_like(mine, e) for e, mine in pairs])
        return Coverage.of(edge, torch.cat([mine for _, mine in pairs]), 2, n_clients)


@dataclass(frozen=True)
class Moved(Geometry):
    """Another geometry with client k where its client order[k] is."""

    of: Geometry
    order: tuple[int, ...]

    @property
    def moves(self) -> bool:  # type: ignore[override]
        return self.of.moves

    @property
    def drawn(self) -> bool:  # type: ignore[override]
        return self.of.drawn

    @property
    def n_edges(self) -> int:
        return self.of.n_edges

    def cover(self, n_clients: int, seed: int, round: int) -> Coverage:
        edge, client = self.of.cover(n_clients, seed, round).links(torch.tensor(self.order))
        return Coverage.of(edge, client, self.n_edges, n_clients)


# What a method needs beside the settings of training, in every law.
SETTINGS: dict[str, dict[str, Any]] = {
    "feddane": {"lr": 0.005, "epochs": 1},
    "meta": {"rounds": 2, "steps": 3},
    "fesem": {"every": 2},  # clients are grouped anew in round 2
    # Who is next to whom must not depend on the order of clients, nor the plan on how many there are without data.
    "dpsgd": {"graph": Crowd(), "steps": None, "disconnected": "allow"},
    "matcha": {"graph": Crowd(), "steps": None, "disconnected": "allow", "budget": 1.0},
    "dpa-sgd": {"graph": Crowd(), "steps": None, "disconnected": "allow"},
    "mocha": {"every": 2},
    # With noise nothing is learned from so few clients, and a fixed denominator knows of nobody who is left out: what
    # they do has laws of its own. With nobody away, this is everyone, and a mean over those who came.
    "dp-fedavg": {"select": Churn(0.0), "clip": math.inf, "noise": 0.0},
    "dp-fed-ls": {"select": Churn(0.0), "clip": math.inf, "noise": 0.0, "whole": True},
    "fedmes": {"cells": InTurn()},
    "hierarchical": {"cells": InTurn(), "every": 2},
}
APART["hierarchical"] = {"cells": InTurn((0, 1, 2, 3, 3))}  # where one more leaves the overlap's client at its edge

# Methods in another shape: "method, how", with what is then set.
SHAPES: dict[str, dict[str, Any]] = {
    "fesem, by distance": {"match": "distance"},
    "fesem, by loss": {"match": "loss"},
    "lg-fedavg, warmed up": {"warm_up": 3, "local_lr": 0.04},
    "fedmes, two models": {"models": 2},
    "fedmes, walkers": {"cells": CellMap(4, speed=0.2)},
}

# Dual coordinate ascent takes linear models only. It has no learning rate to be zero or too large, its fixed point is
# not that of cross-entropy, and its duals are clipped to [0, 1], so no finite example gives a number that is not.
MODELS: dict[str, str] = {"mocha": "logistic"}
GRADIENT = [name for name in (*METHODS, *SHAPES) if name != "mocha"]
gradient_methods = pytest.mark.parametrize("name", GRADIENT)
one_loss = pytest.mark.parametrize(  # two models of gate follow a loss each: see its own tests
    "name", [name for name in (*METHODS, *SHAPES) if name not in ("mocha", "gate")]
)

# Matrices with a row and a column for each client, flat or not; of dpa-sgd one for each client.
MATRICES = ("memory/covariance", "memory/precision")
ALIKE = ("memory/alike", "memory/split_alike")  # the last two axes are clients

# Noise is drawn by the number of a client, as shuffles are: there is none where numbers change, or clients are twins.
QUIET: dict[str, dict[str, Any]] = {"gate": {"hide": ExampleNoise(clip=1.0, noise=0.0)}}

# What makes a method plain gradient descent where all clients are alike.
META = {"lr": 0.0, "center": SGD(TRAINING["lr"])}  # no inner steps: the outer one is the gradient's
PLAIN: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.0},
    "feddane": {"mu": 0.0, "lr": TRAINING["lr"]},
    "feddist": {"eps": 1.0},
    "feddws": {"eps": 1.0},
    "fedcurv": {"strength": 0.0},
    "dp-fed-ls": {"sigma": 0.0},
    "reptile": {"steps": 3, "epochs": None},
    "maml": META,
    "fomaml": META,
    "meta": {"first": Average(), "rounds": 10},
    "fesem": {"warm_up": None},
    "fesem, by distance": {"warm_up": None},
    "fesem, by loss": {"warm_up": None},
    "tkm": {"warm_up": None},
    "ifca": {"k": 1},
    "dpa-sgd": {"strength": 0.0, "ridge": 0.0, "weight_decay": 0.0},
    "mtl": {"strength": 0.0, "ridge": 0.0, "weight_decay": 0.0},
    "gate": {"hide": None},
    "lg-fedavg, warmed up": {"local_lr": None},
}

# What makes a method stand still, and what makes it grow beyond all bounds.
STILL: dict[str, dict[str, Any]] = {"maml": {"center": SGD(0.0)}, "fomaml": {"center": SGD(0.0)}, "ifca": {"k": 1}}
STILL["lg-fedavg, warmed up"] = {"local_lr": None}
GROWS: dict[str, dict[str, Any]] = {
    "maml": {"lr": 0.0, "center": SGD(3e38)},
    "fomaml": {"lr": 0.0, "center": SGD(3e38)},
    "reptile": {"steps": 1, "epochs": None},
}

# In so few rounds no center of clustered FL splits, which is said.
pytestmark = pytest.mark.filterwarnings("ignore:cfl. no center can split")

every_method = pytest.mark.parametrize("name", [*METHODS, *SHAPES])
every_recipe = pytest.mark.parametrize("name", METHODS)


def usual(name: str) -> dict[str, Any]:
    """Settings of a method in these laws."""
    return TRAINING | SETTINGS.get(recipe(name), {}) | SHAPES.get(name, {})


def recipe(name: str) -> str:
    """The method itself, whatever its shape."""
    return name.partition(",")[0]


def build(name: str, **given: Any) -> Method:
    """A method; settings that it does not have are left out."""
    settings = usual(name) | given
    settings = {key: value for key, value in settings.items() if key != "epochs" or value is not None}
    return METHODS[recipe(name)](**{key: value for key, value in settings.items() if key in takes(name)})


def takes(name: str) -> dict[str, Any]:
    """The settings that a method has."""
    return parameters(recipe(name))


class Exp(nn.Module):
    """An activation that overflows on large inputs, and has no finite gradient there."""

    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


def steep(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(*shape, 8), Exp(), nn.Linear(8, n_outputs))


def ready(method: Method, federation: Federation, **how: Any) -> Run:
    return prepare(method, federation, **({"model": model_of(method), "dtype": "float64"} | how))


def model_of(method: Method) -> Any:
    return MODELS.get(method.name, small)


def after(method: Method, federation: Federation, rounds: int = 3, **how: Any) -> State:
    """The state after some rounds."""
    return rounds_of(ready(method, federation, **how), rounds)


def rounds_of(prepared: Run, rounds: int) -> State:
    """The state after some rounds of a run, which itself stays where it is."""
    state = prepared.state
    for _ in range(rounds):
        state, _ = run_round(prepared.method, state, prepared.clients)
    return state


@cache  # laws only look at it: a round leaves the state that it was given
def usually(name: str, executor: str, blobs: Make) -> State:
    """The state that a method, as it is in these laws, comes to."""
    return after(build(name), blobs(), executor=executor)


@cache
def done(name: str, blobs: Make) -> Run:
    """A run of some rounds, scored after each."""
    return run(build(name), blobs(), model=model_of(build(name)), rounds=5, dtype="float64")


def in_use(method: Method, federation: Federation, rounds: int = 3) -> Tensor:
    """The model every client would begin the next round from, whatever names its parameters are cut into."""
    prepared = ready(method, federation)
    state, clients = rounds_of(prepared, rounds), prepared.clients
    rows = held(method.in_use(state.round), state, clients, clients.everyone(state.round))
    parts = {k: v for name, layout in clients.task.layouts.items() for k, v in layout.views(rows[name]).items()}
    return torch.cat([parts[name].flatten(1) for name in Layout.of(clients.task.module).names], 1)


def cube(rows: Tensor, n: int) -> Tensor:
    """Numbers for each pair, or triple, of n clients, an axis for each."""
    axes = 1
    while n**axes < rows.numel():
        axes += 1
    return rows.reshape((n,) * axes)


def reordered(rows: Tensor, order: list[int]) -> Tensor:
    for axis in range(rows.dim()):
        rows = rows.index_select(axis, torch.tensor(order))
    return rows


def tensors(state: State) -> dict[str, Tensor]:
    parts = {"centers": state.centers, "kept": state.kept, "memory": state.memory}
    return {f"{part}/{name}": rows for part, stacks in parts.items() for name, rows in stacks.items()}


def same_bits(a: State, b: State) -> bool:
    mine, other = tensors(a), tensors(b)
    return (
        a.round == b.round and mine.keys() == other.keys() and all(torch.equal(mine[key], other[key]) for key in mine)
    )


def assert_close(a: State, b: State) -> None:
    torch.testing.assert_close(tensors(a), tensors(b), rtol=1e-10, atol=1e-10)


def only(federation: Federation, order: list[int]) -> Federation:
    """These clients, in this order."""

    def part(split: Split) -> Split:
        parts = [split.of(k) for k in order]
        sizes = torch.tensor([0, *map(len, parts)])
        return Split(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), sizes.cumsum(0))

    return replace(
        federation,
        train=part(federation.train),
        test=part(federation.test),
        valid=part(federation.valid),
        clients=tuple(federation.clients[k] for k in order),
    )


def without_training(federation: Federation, client: int) -> Federation:
    """The same clients, one of them without training examples."""
    split = federation.train
    keep = split.owner != client
    train = Split.gathered(split.x[keep], split.y[keep], split.owner[keep], federation.n_clients)
    return replace(federation, train=train)


def absurd(federation: Federation, *clients: int) -> Federation:
    """The same federation, some clients' inputs so large that a `steep` model overflows on them."""
    split = federation.train
    bad = torch.isin(split.owner, torch.tensor(clients))
    return replace(federation, train=replace(split, x=torch.where(bad[:, None], 1e6, split.x)))


# -- running -------------------------------------------------------------------------------------------------


@every_method
def test_it_runs_and_learns(name: str, blobs: Make) -> None:
    ended = done(name, blobs)
    assert ended.state.round == 5
    assert all(rows.isfinite().all() for rows in tensors(ended.state).values())
    assert ended.metrics["micro_loss"] < ended.scores["initial"].summary()["micro_loss"]


@every_method
def test_it_tells_how_long_it_would_take_and_what_moved_over_which_links(name: str, blobs: Make) -> None:
    ended = done(name, blobs)
    times = [row["simulated_seconds"] for row in ended.history]
    assert times[0] == 0 and len(times) == 6 and all(a < b < float("inf") for a, b in pairwise(times))
    summary = ended.summary()
    assert summary["simulated_seconds"] == times[-1]
    assert sum(summary["bytes_by_link"].values()) == summary["bytes_up"] + summary["bytes_down"]


@every_method
def test_the_same_seed_gives_the_same_bits(name: str, blobs: Make) -> None:
    method = build(name, select=Uniform(n=3))
    a, b = (run(method, blobs(), model=model_of(method), rounds=3, seed=7) for _ in range(2))
    assert same_bits(a.state, b.state)
    assert a.history == b.history
    assert a.metrics == b.metrics


@every_method
def test_another_seed_gives_another_model(name: str, blobs: Make) -> None:
    a, b = usually(name, "stacked", blobs), after(build(name), blobs(), seed=1, executor="stacked")
    assert not torch.allclose(a.centers["model"], b.centers["model"])


@every_method
def test_a_round_leaves_the_state_it_was_given_as_it_was(name: str, blobs: Make) -> None:
    method = build(name)
    prepared = ready(method, blobs())
    state, _ = run_round(method, prepared.state, prepared.clients)
    before = {key: rows.clone() for key, rows in tensors(state).items()}
    moved, _ = run_round(method, state, prepared.clients)
    assert not same_bits(replace(moved, round=state.round), state)
    assert all(torch.equal(rows, before[key]) for key, rows in tensors(state).items())
    assert state.round == 1


@every_method
def test_resumed_equals_uninterrupted_bit_for_bit(name: str, blobs: Make, tmp_path: Path) -> None:
    method, federation = build(name, select=Uniform(n=3)), blobs()

    def begin(rounds: int) -> Run:
        return ready(method, federation, rounds=rounds, checkpoint_every=1, dtype="float32")

    whole = recorded(begin(5), tmp_path / "whole").go()
    recorded(begin(0), tmp_path / "parts").go()
    for until in (1, 3, 5):  # it was stopped before the first round, after it, and after the third
        resumed, problems = went_on(begin(until), Folder.open(tmp_path / "parts"))
        assert problems == [] and resumed.state.round == until

    assert same_bits(resumed.state, whole.state)
    assert resumed.history == whole.history
    assert resumed.metrics == whole.metrics
    assert (tmp_path / "parts/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


# -- what must not matter ------------------------------------------------------------------------------------


@every_method
@every_executor
def test_the_order_of_clients_does_not_matter(name: str, executor: str, blobs: Make) -> None:
    federation, order = blobs(), [3, 0, 4, 2, 1]
    how = {"batch": None, "shuffle": False} | QUIET.get(name, {})  # a client's shuffles are keyed by its number
    method = build(name, **how)
    cells = InTurn(tuple(order))  # cells stay with the clients that stand in them, and walkers go their own way
    cells = Moved(SHAPES[name]["cells"], tuple(order)) if "walkers" in name else cells
    moved = build(name, **how, cells=cells)
    a = tensors(after(method, federation, executor=executor))
    b = tensors(after(moved, only(federation, order), executor=executor))
    for key, rows in a.items():
        expected = rows[order] if len(rows) == federation.n_clients else rows
        if key in MATRICES:
            expected = reordered(cube(rows, 5), order).reshape(rows.shape)
        if key in ALIKE:
            expected = rows[..., order, :][..., order]
        if key == "memory/choice":  # the first, second, ... edge of a client; whatever stands where it has none
            mine = torch.arange(rows.shape[1]) < covered(cells, len(rows)).covers[:, None]
            expected, b[key] = expected * mine, b[key] * mine
        torch.testing.assert_close(b[key], expected, rtol=1e-10, atol=1e-10)


@every_method
def test_stacked_equals_looped(name: str, blobs: Make) -> None:
    assert_close(usually(name, "stacked", blobs), usually(name, "looped", blobs))


@every_method
def test_steps_as_on_a_gpu_equal_looped(name: str, blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in fixed places, moved there, a few widths for all: a graph is the function that it records."""
    looped = usually(name, "looped", blobs)
    monkeypatch.setitem(
        EXECUTORS, "stacked", lambda task, split: Stacked(task, split, captured.Captured(), in_place=True)
    )
    monkeypatch.setattr(captured, "recorded", lambda function, pool: function)
    assert_close(after(build(name), blobs(), executor="stacked"), looped)


@every_method
def test_on_a_gpu_graphs_equal_looped(name: str, blobs: Make) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    graphs = after(build(name), blobs().to("cuda"), executor="stacked", device="cuda")
    looped = tensors(usually(name, "looped", blobs))
    torch.testing.assert_close({k: v.cpu() for k, v in tensors(graphs).items()}, looped, rtol=1e-8, atol=1e-8)


@every_method
def test_traced_equals_looped(name: str, blobs: Make) -> None:
    assert_close(after(build(name), blobs(), executor="traced"), usually(name, "looped", blobs))


@every_method
@pytest.mark.parametrize(("executor", "block"), [("looped", 3), ("stacked", 1), ("stacked", 3), ("traced", 3)])
def test_the_size_of_a_block_does_not_matter(name: str, executor: str, block: int, blobs: Make) -> None:
    some = after(build(name), blobs(), executor=executor, block=block)
    assert_close(some, usually(name, executor, blobs))


@every_method
@pytest.mark.parametrize(("dtype", "data"), [("float32", torch.float64), ("float64", torch.float32)])
def test_the_type_of_numbers_is_kept(name: str, dtype: str, data: torch.dtype, blobs: Make) -> None:
    state = after(build(name), blobs(dtype=data), rounds=2, dtype=dtype)
    kinds = {rows.dtype for rows in (state.centers | state.kept).values() if rows.is_floating_point()}
    assert kinds == {getattr(torch, dtype)}


@every_method
@every_executor
def test_a_client_without_data_changes_nothing_and_is_still_scored(name: str, executor: str, blobs: Make) -> None:
    sizes = (13, 7, 9, 1)
    method, larger = build(name), build(name, **APART.get(name, {}))
    with_it = ready(larger, blobs((*sizes, 0)), executor=executor, rounds=3).go()
    without = ready(method, blobs(sizes), executor=executor, rounds=3).go()
    for key, rows in tensors(without.state).items():
        found = tensors(with_it.state)[key]
        if key in MATRICES and found.numel() == 25:
            found = found.reshape(5, 5)[:4, :4].reshape(rows.shape)
        found = found[..., :4, :4] if key in ALIKE else found
        torch.testing.assert_close(found[: len(rows)], rows, rtol=1e-10, atol=1e-10)
    for scores in with_it.scores.values():
        assert scores.count[4] == 5
        assert 0 <= scores.accuracy[4] <= 1
    assert with_it.scores["in_use"].accuracy[:4].tolist() == without.scores["in_use"].accuracy.tolist()


@every_method
def test_a_client_without_data_never_takes_part(name: str, blobs: Make) -> None:
    method = build(name, select=Uniform(n=4))
    prepared = ready(method, blobs((9, 0, 8, 0, 7, 6)))
    _, trips = run_round(method, prepared.state, prepared.clients)
    assert all(trip.cohort.index.tolist() == [0, 2, 4, 5] for trip in trips)


# -- what must be so -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:all clients sent the same model")
@one_loss
def test_identical_clients_are_one_machine(name: str, blobs: Make) -> None:
    one = only(blobs((20,)), [0])
    twins = only(one, [0] * 5)
    method = build(name, **{"batch": None, "epochs": 3} | PLAIN.get(name, {}))
    steps = 3 if "epochs" in takes(name) else 1

    prepared = ready(method, twins)
    w = in_use(method, twins, rounds=0)[0].clone()
    layout, x, y = Layout.of(prepared.clients.task.module), one.train.x, one.train.y
    for _ in range(4 * steps):
        w = w.detach().requires_grad_()
        outputs = torch.func.functional_call(prepared.clients.task.module, layout.views(w), (x,))
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(outputs, y), w)
        w = w - TRAINING["lr"] * gradient

    for row in in_use(method, twins, rounds=4):
        torch.testing.assert_close(row, w.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore:all clients sent the same model")
@gradient_methods
def test_a_learning_rate_of_zero_is_a_fixed_point(name: str, blobs: Make) -> None:
    method = build(name, **{"lr": 0.0} | STILL.get(name, {}))
    start = in_use(method, blobs(), rounds=0)
    for row in in_use(method, blobs()):
        torch.testing.assert_close(row, start[0], rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore:.* centers were asked for")
@every_method
@every_executor
def test_a_stack_of_one_client_works(name: str, executor: str, blobs: Make) -> None:
    prepared = ready(build(name), blobs((13,)), executor=executor)
    state = rounds_of(prepared, 3)
    assert state.centers["model"].isfinite().all()
    assert not torch.allclose(state.centers["model"], prepared.state.centers["model"])


# -- what goes wrong -----------------------------------------------------------------------------------------


@gradient_methods
@pytest.mark.parametrize(("executor", "bad"), [("looped", 2), ("stacked", 0), ("stacked", 2)])
def test_a_client_that_is_not_finite_is_left_out_and_the_others_do_not_notice(
    name: str, executor: str, bad: int, blobs: Make
) -> None:
    method, federation = build(name), blobs((7, 12, 5, 14, 9))  # ragged: short batches are padded when stacked
    how = {"executor": executor, "model": steep, "rounds": 2}
    ended = ready(method, absurd(federation, bad), **how).go()
    without = ready(method, without_training(federation, bad), **how).go()
    assert ended.tally.dropped == ended.summary()["dropped"] == 2 * len(method.at(0))
    assert without.tally.dropped == 0
    assert_close(ended.state, without.state)


@gradient_methods
def test_what_was_left_out_is_told_in_the_log(name: str, blobs: Make, tmp_path: Path) -> None:
    run(build(name), absurd(blobs(), 1), model=steep, rounds=2, dtype="float64", out=tmp_path / "run")
    log = (tmp_path / "run/log.txt").read_text()
    lost = len(build(name).at(0))  # one in every exchange
    assert f"round 0: {lost} client updates were NaN or infinite" in log
    assert f"round 1: {lost} client updates were NaN or infinite" in log


@gradient_methods
def test_half_of_the_clients_may_be_lost_but_not_more(name: str, blobs: Make) -> None:
    federation, method = blobs((8, 9, 10, 11)), build(name)
    half = ready(method, absurd(federation, 0, 1), model=steep, rounds=1).go()
    assert half.tally.dropped == 2 * len(method.at(0))
    with pytest.raises(Diverged, match="round 0: 3 of 4 clients"):
        ready(method, absurd(federation, 0, 1, 2), model=steep, rounds=1).go()


@pytest.mark.parametrize("name", [name for name in GRADIENT if not name.startswith("lg-")])  # it cuts no layer in two
def test_divergence_leaves_the_state_before_in_the_last_checkpoint(name: str, quadratics: Make, tmp_path: Path) -> None:
    def linear(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
        return nn.Linear(*shape, n_outputs, bias=False)

    # 3e38 times as large every round
    method = build(name, **{"batch": None, "epochs": 1} | PLAIN.get(name, {}) | {"lr": 3e38} | GROWS.get(name, {}))
    with pytest.raises(Diverged, match="try a smaller learning rate"):
        run(method, quadratics(), model=linear, rounds=50, dtype="float64", out=tmp_path / "run")
    kept, problems = Folder.open(tmp_path / "run").load()
    assert problems == []
    squares = name == "fedcurv"  # its Fisher overflows long before the model does
    assert kept is not None and kept.state.round > (0 if squares else 2)
    assert same_bits(kept.state, after(method, quadratics(), rounds=kept.state.round, model=linear))
    assert all(rows.isfinite().all() for rows in kept.state.centers.values())


BAD = {"lr": -1, "epochs": 0, "batch": 0, "steps": 0, "momentum": 1.5, "decay": 2.0, "weight_decay": -0.1}


@every_recipe
@pytest.mark.parametrize("setting", BAD)
def test_a_bad_setting_fails_when_built_and_says_which_value(name: str, setting: str) -> None:
    if setting in parameters(name):
        with pytest.raises(UsageError, match=rf"{setting}.*{BAD[setting]}"):
            METHODS[name](**SETTINGS.get(name, {}) | {setting: BAD[setting]})
    else:
        with pytest.raises(TypeError, match=setting):
            METHODS[name](**SETTINGS.get(name, {}) | {setting: BAD[setting]})


@every_recipe
def test_an_unknown_setting_fails_when_built(name: str) -> None:
    with pytest.raises((TypeError, UsageError), match="learning_rate"):
        METHODS[name](**SETTINGS.get(name, {}) | {"learning_rate": 0.1})


@pytest.mark.parametrize("name", ["feddist", "feddws"])
@pytest.mark.parametrize("eps", [-0.1, 2.1, float("nan")])
def test_a_bad_step_of_the_center_fails_when_built(name: str, eps: float) -> None:
    with pytest.raises(UsageError, match=rf"eps must be in \[0, 2\], got {eps}"):
        METHODS[name](eps=eps)


# -- looking -------------------------------------------------------------------------------------------------


@every_method
def test_a_method_prints_its_parts(name: str) -> None:
    shown = repr(build(name))
    assert f"name='{recipe(name)}'" in shown
    for exchange in build(name).exchanges:
        parts = (exchange.topology, exchange.select, exchange.aggregate, exchange.optimizer, *exchange.learn)
        assert all(type(part).__name__ in shown for part in parts)
    if "lr" in takes(name):
        assert f"lr={usual(name)['lr']}" in shown


@every_method
def test_methods_built_alike_are_equal_and_others_are_not(name: str) -> None:
    assert build(name) == build(name)
    assert build(name) != build(name, **{"lr" if "lr" in takes(name) else "strength": 0.06})
    assert build(name) != build(name, select=Uniform(n=2))


# -- parts combine -------------------------------------------------------------------------------------------

AGGREGATES = [Mean(), TrimmedMean(0.2), Median(), GeometricMedian(), Krum(0.2), Krum(0.2, keep=2)]
AGGREGATES += [NearestNeighbours(Median()), Bucketing(Median()), Clipping(), Quorum(Mean(), 2)]
CENTERS = [Average(), SGD(0.5), Momentum(0.5, 0.9), Adam(0.01)]
PARTED = [name for name in METHODS if {"aggregate", "center"} <= parameters(name).keys()]
takes_parts = pytest.mark.parametrize("name", PARTED)


def test_fedavg_and_fedprox_take_parts() -> None:
    assert {"fedavg", "fedprox"} <= set(PARTED)


PAIRS = list(zip(AGGREGATES, cycle(CENTERS), strict=False))  # each of both, in every method; of fedavg all, below


@pytest.mark.parametrize("name", [name for name in PARTED if name != "fedavg"])
@pytest.mark.parametrize(("aggregate", "center"), PAIRS, ids=repr)
def test_every_aggregate_and_every_center_goes_with_every_method(
    name: str, aggregate: Any, center: Any, blobs: Make
) -> None:
    combines(build(name, aggregate=aggregate, center=center), blobs)


@pytest.mark.parametrize("center", CENTERS, ids=repr)
@pytest.mark.parametrize("aggregate", AGGREGATES, ids=repr)
def test_every_aggregate_goes_with_every_center(aggregate: Any, center: Any, blobs: Make) -> None:
    combines(build("fedavg", aggregate=aggregate, center=center), blobs)


def combines(method: Method, blobs: Make) -> None:
    """It moves, and to the same place under two executors and in blocks."""
    one, other = (ready(method, blobs(), executor=e, block=n) for e, n in (("stacked", None), ("looped", 2)))
    a, b = (rounds_of(prepared, 2) for prepared in (one, other))
    assert_close(a, b)
    assert not torch.allclose(a.centers["model"], one.state.centers["model"])


@takes_parts
@pytest.mark.parametrize("aggregate", AGGREGATES[1:], ids=repr)
def test_on_identical_clients_every_aggregate_is_the_mean(name: str, aggregate: Any, blobs: Make) -> None:
    assert_close(of_twins(name, aggregate, blobs), of_twins(name, AGGREGATES[0], blobs))


@cache
def of_twins(name: str, aggregate: Any, blobs: Make) -> State:
    return after(build(name, batch=None, aggregate=aggregate, **QUIET.get(name, {})), only(blobs((20,)), [0] * 5))


@takes_parts
@pytest.mark.parametrize("center", CENTERS[2:], ids=repr)
def test_the_moments_of_a_center_live_on_when_resumed(name: str, center: Any, blobs: Make, tmp_path: Path) -> None:
    method, federation = build(name, center=center), blobs()
    run(method, federation, model=small, rounds=2, out=tmp_path / "run")
    fresh = ready(method, federation, rounds=4, dtype="float32")
    resumed, _ = went_on(fresh, Folder.open(tmp_path / "run"))
    assert same_bits(resumed.state, after(method, federation, rounds=4, dtype="float32"))
    assert len(resumed.state.centers) > 1


@takes_parts
@pytest.mark.parametrize("center", CENTERS, ids=repr)
def test_a_center_that_hears_nobody_does_not_move(name: str, center: Any, blobs: Make) -> None:
    under_way = after(build(name, center=center), blobs(), rounds=1)
    quiet = build(name, center=center, select=Poisson(1e-9))
    prepared = ready(quiet, blobs())
    later, trips = run_round(quiet, under_way, prepared.clients)
    assert len(trips[0].cohort) == 0
    assert later.round == 2
    told = tensors(later)
    for key, rows in tensors(under_way).items():
        assert key == "memory/heard" or torch.equal(told[key], rows)  # an edge does remember that it heard nobody


# -- parts of a model that stay at home ----------------------------------------------------------------------


def columns(prepared: Run, pattern: str) -> Tensor:
    """Which places of a whole row hold parameters whose names begin with `pattern`."""
    layout = Layout.of(prepared.clients.task.module)
    return torch.cat(
        [torch.full((size,), name.startswith(pattern)) for name, size in zip(layout.names, layout.sizes, strict=True)]
    )


def test_sharing_everything_is_fedavg(blobs: Make) -> None:
    """Two stacks that both travel are the whole model; where one of them stays at home, they are not."""
    cut = Cut({"body": ("dense*",)})
    (exchange,) = fedavg(**TRAINING).exchanges
    both = Method.of("both", replace(exchange, receives=("model", "body"), sends=("model", "body")), cut=cut)
    prepared, whole = ready(both, blobs()), after(fedavg(**TRAINING), blobs()).centers["model"]
    state = rounds_of(prepared, 3)
    head, body = columns(prepared, "head"), columns(prepared, "dense")
    torch.testing.assert_close(state.centers["model"], whole[:, head], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state.centers["body"], whole[:, body], rtol=1e-10, atol=1e-10)
    shared = after(fedavg(cut=KeepPrivate("dense*"), **TRAINING), blobs()).centers["model"]
    assert not torch.allclose(shared, whole[:, head])


@every_executor
def test_sharing_nothing_is_training_alone(executor: str, blobs: Make) -> None:
    nothing = after(fedavg(cut=KeepPrivate("*"), **TRAINING), blobs(), executor=executor)
    alone = after(nofed(**TRAINING), blobs(), executor=executor)
    assert nothing.centers["model"].shape == (1, 0)
    torch.testing.assert_close(nothing.kept["private"], alone.centers["model"], rtol=1e-10, atol=1e-10)


@every_executor
def test_the_shared_part_is_averaged_and_the_private_part_never_leaves(executor: str, blobs: Make) -> None:
    federation = blobs()
    method = fedavg(cut=KeepPrivate("dense*"), **TRAINING)
    prepared = ready(method, federation, executor=executor)
    head, body = columns(prepared, "head"), columns(prepared, "dense")
    state, n = prepared.state, federation.train.sizes.double()
    for _ in range(2):
        # What every client would learn from here by itself, as whole rows.
        rows = torch.zeros(federation.n_clients, len(head), dtype=torch.float64)
        rows[:, head], rows[:, body] = state.centers["model"].expand(len(rows), -1), state.kept["private"]
        alone = replace(ready(nofed(**TRAINING), federation).state, centers={"model": rows}, round=state.round)
        alone, _ = run_round(nofed(**TRAINING), alone, ready(nofed(**TRAINING), federation).clients)
        learned = alone.centers["model"]

        state, _ = run_round(method, state, prepared.clients)
        assert state.centers.keys() == {"model"}
        torch.testing.assert_close(state.kept["private"], learned[:, body], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(state.centers["model"][0], n @ learned[:, head] / n.sum(), rtol=1e-10, atol=1e-10)


def test_the_private_part_of_an_absent_client_is_not_touched(blobs: Make) -> None:
    method = fedavg(cut=KeepPrivate("dense*"), select=Uniform(n=2), **TRAINING)
    prepared = ready(method, blobs())
    state = prepared.state
    for _ in range(3):
        before = state
        state, trips = run_round(method, state, prepared.clients)
        moved = (state.kept["private"] != before.kept["private"]).any(1).nonzero()[:, 0]
        assert moved.tolist() == sorted(trips[0].arrived.index.tolist())


@pytest.mark.parametrize("private", ["dense*", "head*", "*.bias"])
def test_bytes_are_those_of_the_shared_part(private: str, blobs: Make) -> None:
    whole = ready(fedavg(**TRAINING), blobs(), rounds=2).go()
    part = ready(fedavg(cut=KeepPrivate(private), **TRAINING), blobs(), rounds=2).go()
    shared, d = part.state.centers["model"].shape[1], whole.state.centers["model"].shape[1]
    assert 0 < shared < d
    assert whole.tally.bytes_up == whole.tally.bytes_down == 2 * 5 * d * 8
    assert part.tally.bytes_up * d == whole.tally.bytes_up * shared
    assert part.tally.bytes_down * d == whole.tally.bytes_down * shared


def test_training_alone_moves_no_bytes(blobs: Make) -> None:
    done = ready(nofed(**TRAINING), blobs(), rounds=2).go()
    assert done.tally.bytes_up == done.tally.bytes_down == 0
