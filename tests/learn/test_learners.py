"""Local work: every example as often as asked, plain PyTorch's numbers, and executors that agree."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from polycentric import Federation, KeepPrivate, Looped, Prox, Simulation, Stacked, Task, Train, UsageError, fedavg
from polycentric.data import Split
from polycentric.learn import BatchSchedule, Compiled, Plan
from polycentric.learn.batches import PADDING, plan_of
from polycentric.models import CharLSTM, lg_lenet, mlp
from polycentric.round import run_round
from polycentric.runs.start import prepare
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.draw import bits
from polycentric.stacks.stack import Layout, Stacks

Make = Callable[..., Federation]

bounded = settings(max_examples=60)
sizes_of_clients = st.lists(st.integers(1, 17), min_size=1, max_size=6)
both_executors = pytest.mark.parametrize("executor", [Looped, Stacked])


def numbered(sizes: list[int]) -> Split:
    """A split whose examples are their own positions."""
    n = sum(sizes)
    return Split(torch.arange(n)[:, None].double(), torch.zeros(n), torch.tensor([0, *sizes]).cumsum(0))


def cohort_of(split: Split, clients: list[int] | None = None, **changes: Any) -> Cohort:
    index = torch.arange(len(split.sizes)) if clients is None else torch.tensor(clients)
    effort = torch.ones(len(index), dtype=torch.float64)
    return replace(Cohort(index, split.sizes[index], effort, len(split.sizes), seed=0, round=0), **changes)


def batches(split: Split, cohort: Cohort, plan: Plan) -> list[list[list[int]]]:
    """Every client's batches, as positions in its own examples."""
    schedule = BatchSchedule(split, cohort, plan)
    return [
        [
            (schedule.index[s, k, : schedule.counts[s, k]] - split.offset[client]).tolist()
            for s in range(schedule.steps[k])
        ]
        for k, client in enumerate(cohort.index.tolist())
    ]


# -- which examples, when ------------------------------------------------------------------------------------


@bounded
@given(sizes_of_clients, st.one_of(st.none(), st.integers(1, 20)), st.integers(1, 4))
def test_every_epoch_shows_every_example_exactly_once(sizes: list[int], batch: int | None, epochs: int) -> None:
    split = numbered(sizes)
    cohort = cohort_of(split)
    for n, steps in zip(sizes, batches(split, cohort, plan_of(cohort, epochs, None, batch)), strict=True):
        width = n if batch is None else batch
        per_epoch = math.ceil(n / width)
        assert len(steps) == epochs * per_epoch
        for first in range(0, len(steps), per_epoch):
            epoch = steps[first : first + per_epoch]
            assert sorted(example for step in epoch for example in step) == list(range(n))
            assert [len(step) for step in epoch[:-1]] == [width] * (per_epoch - 1)
            assert len(epoch[-1]) == n - width * (per_epoch - 1)


@bounded
@given(sizes_of_clients, st.one_of(st.none(), st.integers(1, 20)), st.integers(1, 3))
def test_a_batch_weighs_its_examples_equally_and_its_padding_nothing(
    sizes: list[int], batch: int | None, epochs: int
) -> None:
    split = numbered(sizes)
    cohort = cohort_of(split)
    schedule = BatchSchedule(split, cohort, plan_of(cohort, epochs, None, batch))
    for k, steps in enumerate(schedule.steps):
        for s in range(steps):
            count = int(schedule.counts[s, k])
            assert schedule.weight[s, k].tolist() == [1 / count] * count + [0] * (schedule.weight.shape[2] - count)
            owners = split.owner[schedule.index[s, k]]
            assert owners.eq(k).all()  # padding too: a zero weight does not hide another client's infinity


@bounded
@given(sizes_of_clients, st.integers(1, 9), st.integers(1, 3), st.data())
def test_a_clients_batches_do_not_depend_on_the_other_clients(
    sizes: list[int], batch: int, epochs: int, data: st.DataObject
) -> None:
    split = numbered(sizes)
    some = data.draw(st.permutations(range(len(sizes))))[: data.draw(st.integers(1, len(sizes)))]
    everyone, cohort = cohort_of(split), cohort_of(split, some)
    all_batches = batches(split, everyone, plan_of(everyone, epochs, None, batch))
    assert batches(split, cohort, plan_of(cohort, epochs, None, batch)) == [all_batches[k] for k in some]

    others = numbered([size if k in some else 1 + size % 3 for k, size in enumerate(sizes)])
    cohort = cohort_of(others, some)
    assert batches(others, cohort, plan_of(cohort, epochs, None, batch)) == [all_batches[k] for k in some]


@bounded
@given(
    st.data(), st.lists(st.integers(0, 90), min_size=1, max_size=6).filter(any), st.integers(1, 40), st.integers(1, 3)
)
def test_batches_are_those_of_whole_shuffles(data: st.DataObject, sizes: list[int], batch: int, epochs: int) -> None:
    """By the plain definition: all of an epoch's keys in order, cut into batches, as many as are taken."""
    split = numbered(sizes)
    clients = data.draw(st.permutations([k for k, size in enumerate(sizes) if size]))
    cohort = cohort_of(split, clients, seed=data.draw(st.integers(0, 9)), round=data.draw(st.integers(0, 9)))
    effort = data.draw(st.lists(st.floats(0.01, 1), min_size=len(clients), max_size=len(clients)))
    cohort = replace(cohort, effort=torch.tensor(effort, dtype=torch.float64))
    steps = data.draw(st.one_of(st.none(), st.integers(1, 12)))
    plan = plan_of(cohort, epochs, steps, batch)
    for padding in (0, 1 << 20):  # clients of all sizes apart, or together
        with pytest.MonkeyPatch.context() as patched:
            patched.setitem(PADDING, "cpu", padding)
            found = batches(split, cohort, plan)
        for client, taken, mine in zip(clients, plan.steps.tolist(), found, strict=True):
            wanted: list[list[int]] = []
            for epoch in range(taken):
                key = bits(cohort.seed, cohort.round, "shuffle", client, epoch)
                order = bits(key, torch.arange(sizes[client])).argsort()
                wanted += [some.tolist() for some in torch.split(order, batch)]
            assert mine == wanted[:taken]


@pytest.mark.parametrize("plan", [Plan(torch.tensor([9, 5, 0, 2]), 4), Plan(torch.tensor([2, 1, 0, 1]), None)])
def test_a_schedule_is_made_on_a_device_without_asking_it_anything(plan: Plan) -> None:
    here = numbered([30, 3, 0, 70])
    there = replace(here, x=here.x.to("meta"))  # a device that has no numbers to tell
    made, asked = (BatchSchedule(split, cohort_of(here), plan) for split in (here, there))
    assert asked.index.is_meta and asked.weight.is_meta
    assert (asked.index.shape, asked.weight.shape) == (made.index.shape, made.weight.shape)
    assert (asked.steps, asked.n_steps) == (made.steps, made.n_steps)


class Asked(TorchDispatchMode):
    """Counts what is asked of a device that has no numbers to tell, and what it is told that one would wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.questions, self.waits = 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            self.questions += 1
            return 1.0
        if function is torch.ops.aten._to_copy.default and str(kwargs.get("device")) == "meta":
            self.waits += not args[0].is_meta and not kwargs.get("non_blocking")
        return function(*args, **kwargs)


@pytest.mark.parametrize("sizes", [[12] * 5, [30, 3, 9]])
def test_a_round_asks_its_device_for_one_number_a_block(sizes: list[int], blobs: Make) -> None:
    method, federation = fedavg(batch=4, epochs=2), blobs(sizes)
    task = Task.of(federation, small)
    clients = Simulation(federation, task, executor="stacked", block=3)
    train = replace(federation.train, x=federation.train.x.to("meta"), y=federation.train.y.to("meta"))
    there = Stacked(replace(task, module=copy.deepcopy(task.module).to("meta")), train)
    for part, value in (("task", there.task), ("run", there)):
        object.__setattr__(clients, part, value)
    state = method.begin(there.task.start(), federation.n_clients)
    with Asked() as asked:
        after, _ = run_round(method, state, clients)
    assert after.centers["model"].is_meta
    assert (asked.questions, asked.waits) == (-(-len(sizes) // 3), 0)


def test_batches_depend_on_seed_and_round_and_not_on_the_turn() -> None:
    split = numbered([16, 16])

    def of(**changes: Any) -> list[list[list[int]]]:
        cohort = cohort_of(split, **changes)
        return batches(split, cohort, plan_of(cohort, 2, None, 4))

    assert of() == of(turn=1)
    assert of() != of(seed=1)
    assert of() != of(round=1)
    first, second = of()
    assert first != second  # clients have shuffles of their own
    assert first[:4] != first[4:]  # and so have epochs


@bounded
@given(sizes_of_clients, st.integers(1, 9), st.integers(1, 12))
def test_steps_are_the_beginning_of_the_epochs(sizes: list[int], batch: int, steps: int) -> None:
    split = numbered(sizes)
    cohort = cohort_of(split)
    exactly = batches(split, cohort, plan_of(cohort, 1, steps, batch))
    plenty = batches(split, cohort, plan_of(cohort, 12, None, batch))
    assert exactly == [client[:steps] for client in plenty]


@bounded
@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 10), st.floats(1e-6, 1.0))
def test_a_straggler_does_its_share_of_the_epochs(size: int, batch: int, epochs: int, effort: float) -> None:
    split = numbered([size, size])
    cohort = cohort_of(split, effort=torch.tensor([effort, 1.0], dtype=torch.float64))
    slow, quick = plan_of(cohort, epochs, None, batch).steps.tolist()
    assert slow == math.ceil(effort * epochs) * math.ceil(size / batch)
    assert quick == epochs * math.ceil(size / batch)
    done = batches(split, cohort, plan_of(cohort, epochs, None, batch))[0]
    assert done == batches(split, cohort_of(split), plan_of(cohort_of(split), epochs, None, batch))[0][:slow]


def test_a_client_without_examples_cannot_take_a_step() -> None:
    split = numbered([3, 0])
    with pytest.raises(UsageError, match="without examples"):
        BatchSchedule(split, cohort_of(split), Plan(torch.tensor([1, 1]), 2))


# -- plain PyTorch -------------------------------------------------------------------------------------------


def small(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    return mlp(shape, n_outputs, hidden=(4,))


def rows_of(task: Task, n: int) -> Stacks:
    start = {name: row.repeat(n, 1) for name, row in task.start().items()}
    return start | {"start": start["model"]}


OPTIMIZERS: list[tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = [
    ({}, torch.optim.SGD),
    ({"weight_decay": 0.1}, torch.optim.SGD),
    ({"momentum": 0.9}, torch.optim.SGD),
    ({"momentum": 0.5, "weight_decay": 0.2}, torch.optim.SGD),
    ({"optimizer": "adam"}, torch.optim.Adam),
    ({"optimizer": "adam", "weight_decay": 0.1}, torch.optim.Adam),
]


@both_executors
@pytest.mark.parametrize(("options", "optimizer"), OPTIMIZERS)
@pytest.mark.parametrize("batch", [4, None])
def test_training_is_a_plain_pytorch_loop(
    executor: Any, options: dict[str, Any], optimizer: Any, batch: int | None, blobs: Make
) -> None:
    federation = blobs((9, 1, 14))
    task, split = Task.of(federation, small, dtype=torch.float64), federation.train
    cohort = cohort_of(split, round=2)
    learned = executor(task, split)(Train(lr=0.05, epochs=3, batch=batch, **options), rows_of(task, 3), cohort)

    plain = {key: value for key, value in options.items() if key != "optimizer"}
    for k, steps in enumerate(batches(split, cohort, plan_of(cohort, 3, None, batch))):
        mine = split.of(k)
        net = small((6,), 3).double()
        net.load_state_dict(task.module.state_dict())
        optimize = optimizer(net.parameters(), lr=0.05, **plain)
        for index in steps:
            optimize.zero_grad()
            nn.functional.cross_entropy(net(mine.x[index]), mine.y[index]).backward()
            optimize.step()
        expected = Layout.of(net).row(dict(net.named_parameters()))
        torch.testing.assert_close(learned["model"][k], expected, rtol=1e-10, atol=1e-10)


@both_executors
def test_a_full_batch_is_one_step_on_all_examples(executor: Any, blobs: Make) -> None:
    federation = blobs((9, 1, 14))
    task, split, cohort = Task.of(federation, small, dtype=torch.float64), federation.train, cohort_of(federation.train)
    learned = executor(task, split)(Train(lr=0.3, batch=None), rows_of(task, 3), cohort)["model"]
    large = executor(task, split)(Train(lr=0.3, batch=1000), rows_of(task, 3), cohort)["model"]
    for k in range(3):
        w, mine = task.start()["model"][0].requires_grad_(), split.of(k)
        outputs = torch.func.functional_call(task.module, Layout.of(task.module).views(w), (mine.x,))
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(outputs, mine.y), w)
        torch.testing.assert_close(learned[k], (w - 0.3 * gradient).detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(large, learned, rtol=1e-10, atol=1e-10)


@both_executors
def test_the_learning_rate_decays_from_round_to_round(executor: Any, blobs: Make) -> None:
    federation = blobs((9, 5))
    task, split = Task.of(federation, small, dtype=torch.float64), federation.train
    for round, lr in enumerate((0.4, 0.2, 0.1)):
        cohort = cohort_of(split, round=round)
        decayed = executor(task, split)(Train(lr=0.4, decay=0.5), rows_of(task, 2), cohort)
        plain = executor(task, split)(Train(lr=lr), rows_of(task, 2), cohort)
        assert torch.equal(decayed["model"], plain["model"])


@both_executors
def test_only_the_names_that_are_trained_change(executor: Any, blobs: Make) -> None:
    federation = blobs((9, 5))
    task = Task.of(federation, small, cut=KeepPrivate("dense*"), dtype=torch.float64)
    run, cohort = executor(task, federation.train), cohort_of(federation.train)
    assert run(Train(trains=("private",)), rows_of(task, 2), cohort).keys() == {"private"}
    assert run(Train(), rows_of(task, 2), cohort).keys() == {"model", "private"}


# -- executors -----------------------------------------------------------------------------------------------


def tiny_conv(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[0], 3, 3, padding=1),
        nn.GroupNorm(1, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3 * (shape[1] // 2) * (shape[2] // 2), n_outputs),
    )


def tiny_lstm(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    return CharLSTM(7, n_outputs, n_embedding=3, n_hidden=4)


MODELS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {
    "mlp": (small, {}),
    "conv": (tiny_conv, {"shape": (2, 6, 5)}),
    "lg-lenet": (lg_lenet, {"shape": (1, 16, 16), "sizes": (7, 2, 5)}),
    "char-lstm": (tiny_lstm, {"shape": (5,), "symbols": 7}),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("options", [options for options, _ in OPTIMIZERS[1::2]] + [{"terms": (Prox(0.5),)}])
def test_stacked_equals_looped_for_ragged_clients(model: str, options: dict[str, Any], blobs: Make) -> None:
    make, data = MODELS[model]
    federation = blobs(**{"sizes": (9, 1, 14, 5)} | data)
    task, split = Task.of(federation, make, dtype=torch.float64), federation.train
    cohort = cohort_of(split, effort=torch.tensor([1.0, 1.0, 0.4, 1.0], dtype=torch.float64)[: len(split.sizes)])
    train = Train(lr=0.05, epochs=3, batch=4, **options)
    a, b = (run(task, split)(train, rows_of(task, len(cohort)), cohort)["model"] for run in (Stacked, Looped))
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(a, task.start()["model"].expand_as(a))


@pytest.mark.parametrize("model", MODELS)
def test_executors_predict_alike(model: str, blobs: Make) -> None:
    make, data = MODELS[model]
    federation = blobs(**{"sizes": (4, 4, 4)} | data | {"sizes": (4, 4, 4)})
    task, split = Task.of(federation, make, dtype=torch.float64), federation.train
    rows = {"model": task.start()["model"] + torch.linspace(-0.1, 0.1, 3, dtype=torch.float64)[:, None]}
    x = task.inputs(split.x.unflatten(0, (3, 4)))
    a, b = (run(task, split).outputs(rows, x) for run in (Stacked, Looped))
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert not a.requires_grad and not b.requires_grad


class Branch(nn.Module):
    """Data decide which way it goes, so it cannot be stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) if x.sum() > 0 else self.head(-x)


def test_a_model_that_cannot_be_stacked_is_looped_with_one_warning(blobs: Make) -> None:
    with pytest.warns(UserWarning, match="Branch cannot be stacked") as said:
        done = prepare(fedavg(), blobs(), model=Branch, dtype="float64").go()
    assert len(said) == 1
    assert done.clients.executor == "looped"
    asked = prepare(fedavg(), blobs(), model=Branch, dtype="float64", executor="looped").go()
    assert torch.equal(done.state.centers["model"], asked.state.centers["model"])


def test_convolutions_are_looped_on_a_cpu_and_dense_layers_stacked(blobs: Make) -> None:
    pictures, numbers = blobs(shape=(2, 6, 5)), blobs()
    assert Simulation(pictures, Task.of(pictures, tiny_conv)).executor == "looped"
    assert Simulation(numbers, Task.of(numbers, small)).executor == "stacked"


class Choosy(nn.Module):
    """Breaks on one example."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x == 20).any()):
            raise ValueError("I do not like 20")
        return self.head(x)


def test_an_error_at_a_client_says_where_it_happened() -> None:
    split = numbered([9, 6, 11, 4])  # example 20 is the sixth of client 2
    cohort = cohort_of(split, round=3)
    step = next(s for s, b in enumerate(batches(split, cohort, plan_of(cohort, 1, None, 2))[2]) if 5 in b)
    task = Task(Choosy().double(), lambda out, y: (out.squeeze(-1) - y).square(), dtype=torch.float64)
    with pytest.raises(ValueError, match="I do not like 20") as caught:
        Looped(task, split)(Train(lr=0.0, batch=2), rows_of(task, 4), cohort)
    assert caught.value.__notes__ == [f"at client 2, step {step} of round 3"]


def dropping(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(*shape, 8), nn.Dropout(0.5), nn.Linear(8, n_outputs))


@both_executors
def test_dropout_draws_the_same_numbers_for_the_same_seed(executor: Any, blobs: Make) -> None:
    federation = blobs()
    task, split = Task.of(federation, dropping), federation.train

    def learned(**changes: Any) -> Tensor:
        torch.rand(3)  # what else is drawn in the program does not matter
        return executor(task, split)(Train(batch=None, steps=2), rows_of(task, 5), cohort_of(split, **changes))["model"]

    state = torch.random.get_rng_state()
    first = learned()
    assert torch.equal(first, learned())
    assert not torch.allclose(first, learned(seed=1))
    assert not torch.allclose(first, learned(round=1))
    torch.random.set_rng_state(state)
    torch.rand(3)
    assert torch.equal(torch.rand(5), _after(state, lambda: (learned(), torch.rand(5))[1]))


def _after(state: Tensor, draw: Callable[[], Tensor]) -> Tensor:
    """What is drawn from a given state of torch's own generator."""
    torch.random.set_rng_state(state)
    return draw()


@both_executors
def test_clients_have_dropout_of_their_own(executor: Any, blobs: Make, made: Make) -> None:
    one = blobs((6,)).train
    federation = made([(one.x, one.y)] * 3, classes=3)
    task = Task.of(federation, dropping)
    learned = executor(task, federation.train)(Train(batch=None), rows_of(task, 3), cohort_of(federation.train))[
        "model"
    ]
    assert not torch.allclose(learned[0], learned[1])
    assert not torch.allclose(learned[1], learned[2])


# -- looped: steps in place ----------------------------------------------------------------------------------


@pytest.mark.parametrize("terms", [(), (Prox(0.3),)], ids=["loss", "penalty"])
@pytest.mark.parametrize("model", ["mlp", "logistic"])
def test_a_step_in_place_is_the_step_along_the_gradient(model: str, terms: tuple[Any, ...], blobs: Make) -> None:
    federation = blobs(sizes=(9, 9))
    task = Task.of(federation, model, dtype=torch.float64)
    clients = Simulation(federation, task, executor="looped")
    rows = {name: row + torch.tensor([[0.0], [0.1]]) for name, row in task.start().items()}
    rows["start"] = task.start()["model"].repeat(2, 1)
    before = {name: value.clone() for name, value in rows.items()}
    learner = Train(lr=0.2, batch=4, terms=terms)
    mine = clients.run(learner, rows, clients.everyone(0))["model"]
    assert all(torch.equal(rows[name], before[name]) for name in rows), "what comes in is not overwritten"
    clients.run.client = replace(clients.run.client, descent=None)  # type: ignore[attr-defined]
    torch.testing.assert_close(mine, clients.run(learner, rows, clients.everyone(0))["model"], rtol=1e-12, atol=1e-13)


# -- compiled ------------------------------------------------------------------------------------------------


def test_compiled_steps_are_the_looped_ones_whoever_is_still_at_work(blobs: Make) -> None:
    federation, method = blobs(sizes=(9, 3, 30, 1, 14)), fedavg(lr=0.05, epochs=2, batch=5)
    models = []
    for executor in ("compiled", "looped"):
        prepared = prepare(method, federation, model="logistic", executor=executor, dtype="float64")
        state, _ = run_round(method, prepared.state, prepared.clients)
        models.append(state.centers["model"])
        if executor == "compiled":
            assert isinstance(prepared.clients.run, Compiled)
            assert prepared.clients.run.works and prepared.clients.run.compile_seconds > 0
    torch.testing.assert_close(*models, rtol=1e-12, atol=1e-12)


def test_without_a_compiler_steps_run_stacked_and_that_is_said_once(
    blobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler")

    federation, method = blobs(), fedavg(lr=0.05, batch=5)
    monkeypatch.setattr("polycentric.learn.execute.compiled._built", refuse)
    monkeypatch.setattr("polycentric.learn.execute.compiled._known", {})  # of earlier runs
    models = []
    for executor in ("compiled", "stacked"):
        prepared = prepare(method, federation, model="logistic", executor=executor, dtype="float64")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(2):
                state, _trips = run_round(method, prepared.state, prepared.clients)
        assert len([w for w in said if "not compiled" in str(w.message)]) == (executor == "compiled")
        models.append(state.centers["model"])
    assert torch.equal(*models)
