"""Steps in C: every call is torch's operator to rounding, and what cannot be listed is taken as before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import polycentric as pc
from polycentric import Federation, Prox, fedavg, nofed
from polycentric.learn.cpu import instructions, library as library_of, steps as steps_in_c
from polycentric.learn.cpu.instructions import KINDS, StepList
from polycentric.learn.cpu.library import library
from polycentric.learn.cpu.steps import StepsInC
from polycentric.learn.execute.replay import Begun, Replay
from polycentric.round import run_round
from polycentric.runs.start import prepare
from support import Make

pytestmark = pytest.mark.skipif(library() is None, reason="nothing was compiled, or this processor has no AVX-512")

CLIENTS, STEPS = 3, 2
Step = Callable[..., Sequence[Tensor]]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def begun(step: Step, carried: Sequence[Tensor], batch: Sequence[Tensor]) -> Begun:
    replay = Replay(step, [value.clone() for value in carried], [], [part[0] for part in batch])
    return replay.begin(*carried)


def taken(step: Step, carried: Sequence[Tensor], batch: Sequence[Tensor]) -> list[list[Tensor]]:
    """What is carried after some steps in C and, operator by operator, without."""
    found = []
    for in_c in (True, False):
        mine = [value.clone() for value in carried]
        with torch.no_grad():
            one = begun(step, mine, batch)
            if in_c:
                assert one.take_all(one.prepare(*batch)), "it was not listed"
            else:
                one._replace(take_all=lambda _: False).along(batch)
        found.append(mine)
    return found


def listed(step: Step, carried: Sequence[Tensor], batch: Sequence[Tensor]) -> bool:
    with torch.no_grad():
        one = begun(step, [value.clone() for value in carried], batch)
        return one.take_all(one.prepare(*batch))


# -- every operator ------------------------------------------------------------------------------------------

EACH: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {  # of what is carried, a batch, and a number a client
    "a sum": lambda w, x, y: w + x,
    "a sum of two, one taken several times": lambda w, x, y: torch.add(w, x, alpha=0.3),
    "a difference": lambda w, x, y: w - x,
    "a product": lambda w, x, y: w * x,
    "a product with a number": lambda w, x, y: w * x * 0.7,
    "a product with a client's number": lambda w, x, y: y * x - w,
    "a product with a number that is seen often": lambda w, x, y: w * y.expand(-1, w.shape[1]) - x,
    "a ratio": lambda w, x, y: torch.div(w, x.unsqueeze(1).squeeze(1)),
    "a sum and a number": lambda w, x, y: (w + 2) * x - 1,
    "a number less it": lambda w, x, y: torch.rsub(w * x, 3),
    "a root": lambda w, x, y: torch.sqrt(w * w) + x,
    "a power": lambda w, x, y: w * torch.pow(0.9, y + 3),
    "a ratio to a number": lambda w, x, y: (w + x) / 3,
    "a negative": lambda w, x, y: -(w * x),
    "a square": lambda w, x, y: (w + x) ** 2,
    "the first power": lambda w, x, y: (w * x) ** 1 * w,
    "a rectifier": lambda w, x, y: torch.relu(w + x) - w,
    "a sum and a product": lambda w, x, y: torch.addcmul(w, w, x, value=-0.2),
    "a sum and a client's number": lambda w, x, y: torch.addcmul(w, x, y, value=-1),
}


@pytest.mark.parametrize("width", [1, 5, 16, 50])
@pytest.mark.parametrize("name", EACH)
def test_what_is_done_number_by_number_is_torchs(name: str, width: int) -> None:
    batch = [random(STEPS, CLIENTS, width), random(STEPS, CLIENTS, 1, seed=1)]
    ours, torchs = taken(lambda w, x, y: [EACH[name](w, x, y)], [random(CLIENTS, width, seed=2)], batch)
    torch.testing.assert_close(ours, torchs, rtol=1e-6, atol=1e-6)


@given(
    m=st.integers(1, 40), n=st.integers(1, 70), k=st.integers(1, 70), form=st.sampled_from(["nn", "nt", "tn", "tt"]),
    start=st.sampled_from(["none", "a row", "all"]),
)  # fmt: skip
def test_products_are_right_in_every_form(m: int, n: int, k: int, form: str, start: str) -> None:
    a = random(STEPS, CLIENTS, m, k) if form[0] == "n" else random(STEPS, CLIENTS, k, m)
    b = random(STEPS, CLIENTS, k, n, seed=1) if form[1] == "n" else random(STEPS, CLIENTS, n, k, seed=1)
    begin = random(STEPS, CLIENTS, 1 if start == "a row" else m, n, seed=2)

    def step(w: Tensor, a: Tensor, b: Tensor, begin: Tensor) -> list[Tensor]:
        a = a.transpose(1, 2) if form[0] == "t" else a
        b = b.transpose(1, 2) if form[1] == "t" else b
        product = torch.bmm(a, b) if start == "none" else torch.baddbmm(begin, a, b)
        return [torch.addcmul(w, product.view(CLIENTS, m * n), w)]

    carried = [random(CLIENTS, m * n, seed=3)]
    hard = form == "tt" and min(m, n, k) > 1  # neither rows side by side nor what is added up
    if hard:
        return None if not listed(step, carried, [a, b, begin]) else pytest.fail("it cannot be right")
    ours, _ = taken(step, carried, [a, b, begin])
    exact = [value.double() for value in carried]
    for one in zip(a.double(), b.double(), begin.double(), strict=True):
        exact = step(*exact, *one)
    torch.testing.assert_close(ours[0].double(), exact[0], rtol=1e-4, atol=1e-4)


def test_rows_end_to_end_and_sums_over_rows_are_torchs() -> None:
    def step(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        return [torch.addcmul(w, torch.cat([x.sum(1), (y * 2).view(CLIENTS, 21), x.sum(-2)], 1), w)]

    batch = [random(STEPS, CLIENTS, 9, 17), random(STEPS, CLIENTS, 3, 7)]
    ours, torchs = taken(step, [random(CLIENTS, 55)], batch)
    torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-5)


def test_kinds_are_those_of_the_source() -> None:
    named = library_of.SOURCE.read_text().split("enum { ")[1].split(" };")[0]
    assert named.split(", ") == KINDS


@pytest.mark.parametrize("classes", [1, 2, 10, 16, 62])
def test_softmax_and_its_gradient_are_torchs(classes: int) -> None:
    def step(w: Tensor, x: Tensor, g: Tensor) -> list[Tensor]:
        y = torch.log_softmax(x + w.view(x.shape), 2)
        back = torch.ops.aten._log_softmax_backward_data(g, y, 2, torch.float32)
        return [torch.addcmul(w, (y * 0.01 + back).view(w.shape), torch.ones_like(w))]

    x, g = 20 * random(STEPS, CLIENTS, 7, classes), random(STEPS, CLIENTS, 7, classes, seed=1)
    ours, torchs = taken(step, [random(CLIENTS, 7 * classes)], [x, g])
    torch.testing.assert_close(ours, torchs, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf"), 1e38, -1e38, 1e-45])
def test_numbers_that_are_no_numbers_stay_so(odd: float) -> None:
    def step(w: Tensor, x: Tensor) -> list[Tensor]:
        y = torch.log_softmax(torch.relu(x) + torch.relu(-x), 2)
        return [torch.addcmul(w, y.view(w.shape), w)]

    x = random(1, CLIENTS, 4, 5)
    x[0, 1, 2, 3] = odd
    ours, torchs = taken(step, [torch.ones(CLIENTS, 20)], [x])
    torch.testing.assert_close(ours, torchs, equal_nan=True, rtol=1e-6, atol=1e-6)


def test_the_exponential_ends_where_a_float_ends() -> None:
    def step(w: Tensor, x: Tensor, g: Tensor) -> list[Tensor]:  # g - exp(x) sum g, where g sums to one
        return [torch.addcmul(w, torch.ops.aten._log_softmax_backward_data(g, x, 2, torch.float32).view(w.shape), w)]

    x = torch.linspace(-110, 0, 4096).view(1, 1, 1, -1)
    g = torch.zeros_like(x)
    g[..., -1] = 1
    ours, _ = taken(step, [torch.ones(1, 4096)], [x, g])
    exact = 1 + g[0, 0, 0].double() - x[0, 0, 0].double().exp()
    assert float((ours[0][0] - exact).abs().max()) < 1.5e-7
    small = x[0, 0, 0, :3000]
    near = taken(step, [torch.full((1, 4096), 1e-30)], [x, g])[0][0][0, :3000] / 1e-30
    torch.testing.assert_close(near.double(), 1 - small.double().exp(), rtol=2e-7, atol=0)


# -- what is not listed --------------------------------------------------------------------------------------


def _moved(w: Tensor, x: Tensor) -> Tensor:
    return torch.addcmul(w, w, x)


NOT: dict[str, tuple[Step, Sequence[Tensor], Sequence[Tensor]]] = {
    "an operator that has no call": (
        lambda w, x: [torch.addcmul(w, w, torch.sin(w) * x)],
        [random(CLIENTS, 4)],
        [random(STEPS, CLIENTS, 4)],
    ),
    "other numbers": (
        lambda w, x: [_moved(w, x)],
        [random(CLIENTS, 4).double()],
        [random(STEPS, CLIENTS, 4).double()],
    ),
    "numbers of no client": (
        lambda w, x: [torch.addcmul(w, w * x, torch.ones(4))],
        [random(CLIENTS, 4)],
        [random(STEPS, CLIENTS, 4)],
    ),
    "as many numbers as there are clients": (
        lambda w, x: [torch.addcmul(w, w * x, torch.ones(CLIENTS))],
        [random(CLIENTS, CLIENTS)],
        [random(STEPS, CLIENTS, CLIENTS)],
    ),
    "other clients' rows": (
        lambda w, x: [torch.addcmul(w, w.transpose(0, 1) * x, w)],
        [random(CLIENTS, CLIENTS)],
        [random(STEPS, CLIENTS, CLIENTS)],
    ),
    "a threshold other than zero": (
        lambda w, x: [torch.addcmul(w, torch.ops.aten.threshold_backward(x, w, 0.5), w)],
        [random(CLIENTS, 4)],
        [random(STEPS, CLIENTS, 4)],
    ),
    "softmax over another axis": (
        lambda w, x: [torch.addcmul(w, torch.log_softmax(x, 1).view(w.shape), w)],
        [random(CLIENTS, 20)],
        [random(STEPS, CLIENTS, 4, 5)],
    ),
    "a number that is seen often, rectified": (
        lambda w, x: [torch.addcmul(w, torch.relu(x.expand(CLIENTS, 40)), w)],
        [random(CLIENTS, 40)],
        [random(STEPS, CLIENTS, 1)],
    ),
    "a number that is seen often, in softmax": (
        lambda w, x: [torch.addcmul(w, torch.log_softmax(x.expand(CLIENTS, 40), 1), w)],
        [random(CLIENTS, 40)],
        [random(STEPS, CLIENTS, 1)],
    ),
    "a copy of what was turned": (
        lambda w, x: [torch.addcmul(w, (x * 2).transpose(1, 2).flatten(1), w)],
        [random(CLIENTS, 20)],
        [random(STEPS, CLIENTS, 4, 5)],
    ),
    "a sum in other numbers": (
        lambda w, x: [torch.addcmul(w, x.sum(1, dtype=torch.float64).float(), w)],
        [random(CLIENTS, 5)],
        [random(STEPS, CLIENTS, 4, 5)],
    ),
    "a ratio to next to nothing": (
        lambda w, x: [torch.addcmul(w, x * 1e-30 / 1e-39, w)],
        [random(CLIENTS, 5)],
        [random(STEPS, CLIENTS, 5)],
    ),
    "less of what a sum begins with": (
        lambda w, x: [torch.addcmul(w, torch.baddbmm(x, x, x, beta=0.5).view(w.shape), w)],
        [random(CLIENTS, 16)],
        [random(STEPS, CLIENTS, 4, 4)],
    ),
}


@pytest.mark.parametrize("name", NOT)
def test_what_has_no_call_is_taken_operator_by_operator(name: str) -> None:
    step, carried, batch = NOT[name]
    assert not listed(step, carried, batch)
    mine = [value.clone() for value in carried]
    with torch.no_grad():
        begun(step, mine, batch).along(batch)
        for one in zip(*batch, strict=True):
            carried = step(*carried, *one)
    torch.testing.assert_close(mine, list(carried))


def test_who_overwrites_what_a_product_reads_is_not_listed_whoever_came_before() -> None:
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(name) for name in ("left", "right", "batch")]
    graph.call_function(torch.Tensor.baddbmm_, (nodes[0], nodes[1], nodes[2]))
    calls, batch = [node for node in graph.nodes if node.op == "call_function"], [random(STEPS, CLIENTS, 4, 4)]
    rows = random(CLIENTS, 32).view(CLIENTS, 2, 4, 4)
    left, right, apart = rows[:, 0], rows[:, 1], random(CLIENTS, 2, 4, 4)[:, 1]
    for others in ((right, apart), (apart, right)):
        steps = StepsInC(nodes[:2], nodes[2:], calls)  # forms are the same: only who shares memory differs
        assert [steps.take((left, other), batch) for other in others] == [other is apart for other in others]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_what_stands_in_between_has_room_whatever_torch_makes_by_default(dtype: torch.dtype) -> None:
    def step(w: Tensor, x: Tensor) -> list[Tensor]:
        return [torch.addcmul(w, torch.relu(torch.bmm(x, x)).view(w.shape), w)]

    carried, batch = [random(CLIENTS, 4096)], [random(STEPS, CLIENTS, 64, 64)]
    torch.set_default_dtype(dtype)
    try:
        ours, torchs = taken(step, carried, batch)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-3)


def test_large_steps_are_torchs_where_it_has_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(w: Tensor, x: Tensor) -> list[Tensor]:
        return [torch.addcmul(w, torch.bmm(x, x).view(w.shape), w)]

    carried, batch = [random(CLIENTS, 100)], [random(STEPS, CLIENTS, 10, 10)]
    monkeypatch.setattr(instructions, "SMALL", 1999)
    assert listed(step, carried, batch)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not listed(step, carried, batch)
    monkeypatch.setattr(instructions, "SMALL", 2000)
    assert listed(step, carried, batch)


# -- whole rounds --------------------------------------------------------------------------------------------

METHODS = {
    "sgd": fedavg(lr=0.05, epochs=2, batch=5),
    "a penalty": fedavg(lr=0.05, batch=5, terms=(Prox(0.3),)),
    "momentum": fedavg(lr=0.05, batch=5, momentum=0.9),
    "adam": fedavg(lr=0.05, batch=5, optimizer="adam"),
    "weight decay": fedavg(lr=0.05, batch=5, weight_decay=0.1),
    "one rate each": fedavg(lr=0.05, batch=5, decay=0.9),
}


def rounds(method: Any, federation: Federation, **how: Any) -> dict[str, Tensor]:
    made = prepare(method, federation, **({"model": "mlp", "dtype": "float32"} | how))
    state = made.state
    for _ in range(2):
        state, _ = run_round(made.method, state, made.clients)
    return state.centers


NEVER = {"dp-fed-ls", "fedsgd", "fomaml", "gate", "maml", "mocha"}  # other operators, or no steps that are repeated


@pytest.mark.parametrize("name", sorted(pc.METHODS))
def test_methods_take_their_steps_in_c_but_for_six(name: str, blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    take = StepList.take
    monkeypatch.setattr(StepList, "take", lambda *given: counted.append(1) or take(*given))
    model = "logistic" if name == "mocha" else "mlp"
    rounds(pc.METHODS[name](), blobs(sizes=(9, 30, 14, 14)), executor="traced", model=model)
    assert bool(counted) == (name not in NEVER)


@pytest.mark.parametrize("name", METHODS)
def test_rounds_are_as_near_to_exact_ones_as_looped_ones(
    name: str, blobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    take = StepList.take
    monkeypatch.setattr(StepList, "take", lambda *given: counted.append(1) or take(*given))
    federation = blobs(sizes=(9, 3, 30, 1, 14, 14, 2, 8, 8, 5, 41, 7))
    exact = rounds(METHODS[name], federation, executor="looped", dtype="float64")["model"]
    ours, plain = (rounds(METHODS[name], federation, executor=way)["model"] for way in ("traced", "looped"))
    assert counted
    off = [float((found.double() - exact).abs().mean()) for found in (ours, plain)]
    assert off[0] <= 1.5 * off[1]  # where Adam divides by next to nothing, both are far from exact


def test_a_single_example_whose_loss_sums_over_answers(blobs: Make) -> None:
    """Its gradient is one number that is seen as many times as there are answers."""
    method, federation = fedavg(lr=0.01, batch=1, steps=12), blobs(sizes=(9, 30, 14))
    both = [
        rounds(method, federation, executor=executor, loss=lambda z, y: -0.1 * torch.log_softmax(z, -1).sum(-1))
        for executor in ("traced", "looped")
    ]
    torch.testing.assert_close(*both, rtol=1e-4, atol=1e-5)


def test_equal_clients_learn_equal_bits_wherever_their_rows_lie(blobs: Make) -> None:
    alike = blobs(sizes=(12,))
    many = Federation.tiled(alike, 7)
    method = fedavg(lr=0.05, batch=None, steps=12)
    assert torch.equal(
        rounds(method, alike, executor="traced")["model"], rounds(method, many, executor="traced", block=1)["model"]
    )


@pytest.mark.parametrize("batch", [1, 5, None])
def test_a_client_learns_the_same_bits_in_any_company(batch: int | None, blobs: Make) -> None:
    federation = blobs(sizes=(9, 30, 14, 14, 8, 41))  # who is alone with a center hears nobody's order of sums
    alone, *others = (
        rounds(nofed(lr=0.05, batch=batch, steps=12), federation, executor="traced", block=block)["model"]
        for block in (1, 2, 6)
    )
    assert all(torch.equal(alone, other) for other in others)


# -- what was compiled ---------------------------------------------------------------------------------------


def test_without_a_library_rounds_are_the_same_to_rounding(blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    federation, method = blobs(sizes=(9, 30, 14)), fedavg(lr=0.05, batch=5)
    ours = rounds(method, federation, executor="traced")
    monkeypatch.setattr(steps_in_c, "library", lambda: None)
    torch.testing.assert_close(ours, rounds(method, federation, executor="traced"), rtol=1e-4, atol=1e-6)
