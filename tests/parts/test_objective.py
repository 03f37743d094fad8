"""Terms of a client's objective: their gradients and implicit steps, by hand on two numbers."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from polycentric.parts.objective import AdaptiveProx, Ball, Curvature, Dane, MultiTask, Prox, Ridge, Term
from support import assert_same

W, START, A, B = (torch.tensor(pair, dtype=torch.float64) for pair in ([3.0, -1.0], [1.0, 2.0], [0.5, 4.0], [2.0, 7.0]))
ROW = {
    "model": W,
    "task": W,
    "start": START,
    "mu": torch.tensor([0.25, 9.0], dtype=torch.float64),
    "gradient": A,
    "own_gradient": B,
    "stiffness": torch.tensor([5.0, 9.0], dtype=torch.float64),
    "pull": B,
    "own_pull": A,
    "fisher": B,
    "own_fisher": torch.tensor([0.5, 8.0], dtype=torch.float64),
}
U, V = torch.tensor([1.5, 0.0], dtype=torch.float64), B - A  # rounding below zero is cut off


@pytest.mark.parametrize(("term", "name", "gradient"), [
    (Prox(0.3), "model", 0.3 * (W - START)),
    (AdaptiveProx(), "model", 0.25 * (W - START)),
    (Dane(), "model", A - B),
    (Ridge(0.7), "model", 0.7 * W),
    (Ridge(0.7, name="task"), "task", 0.7 * W),
    (MultiTask(0.6), "task", 0.6 * (5 * W + B)),
    (Curvature(0.4), "model", 2 * 0.4 * (U * W - V)),
])  # fmt: skip
def test_the_gradient_of_a_penalty_is_its_formula(term: Term, name: str, gradient: Tensor) -> None:
    at = W.clone().requires_grad_()
    penalty = term.penalty(ROW | {name: at})
    assert isinstance(penalty, Tensor)
    assert_same(torch.autograd.grad(penalty, at)[0], gradient)


@pytest.mark.parametrize(
    "term",
    [Term(), Prox(0.0), Prox(0.3, implicit=True), Ridge(0.0), MultiTask(0.0), Curvature(0.4, implicit=True)],
)
def test_what_has_no_strength_or_is_solved_in_the_step_adds_nothing_to_the_loss(term: Term) -> None:
    assert term.penalty(ROW) == 0.0


@pytest.mark.parametrize(("term", "new"), [
    (Prox(0.3), W),
    (Prox(0.3, implicit=True), (W + 0.2 * 0.3 * START) / (1 + 0.2 * 0.3)),
    (Curvature(0.4), W),
    (Curvature(0.4, implicit=True), (W + 2 * 0.2 * 0.4 * V) / (1 + 2 * 0.2 * 0.4 * U)),
])  # fmt: skip
def test_the_implicit_step_is_its_formula(term: Term, new: Tensor) -> None:
    assert_same(term.correct(W, ROW, 0.2), new)


def test_steps_too_long_for_the_curvature_are_said_with_the_strength_that_is_not() -> None:
    rows = {name: value[None] for name, value in ROW.items()}
    with pytest.warns(UserWarning, match=r"= 2\.4 is not below 2, .* or a strength below 3\.3$"):
        Curvature(4.0).check(rows, 0.2)  # 2 * 0.2 * 4 * 1.5 = 2.4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for term in (Curvature(3.0), Curvature(4.0, implicit=True), Curvature(0.0)):
            term.check(rows, 0.2)


def test_a_ball_brings_back_what_is_outside_and_leaves_the_rest() -> None:
    """W is (2, -3) from the start: of length sqrt(13)."""
    near, far = Ball(0.5), Ball(4.0)
    assert_same(near.correct(W, ROW, 0.1), START + (W - START) * 0.5 / 13**0.5)
    assert_same(far.correct(W, ROW, 0.1), W)
