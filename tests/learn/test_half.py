"""Two halves of every client's examples: nothing is in both, nothing is lost, and the same in every round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

import polycentric as pc
from polycentric.learn import TrainOnHalf
from polycentric.runs.start import prepare
from support import batches_of, cohort_of, numbered


def halves(sizes: list[int], batch: int | None, round: int = 0) -> list[list[set[int]]]:
    """The examples that every client sees in either half."""
    split = numbered(sizes)
    cohort = replace(cohort_of(split), round=round)
    found = []
    for half in (0, 1):
        plan = TrainOnHalf(pc.Train(epochs=2, batch=batch), half).plan(cohort)
        found.append([{e for step in steps for e in step} for steps in batches_of(split, cohort, plan)])
    return found


@given(st.lists(st.integers(1, 17), min_size=1, max_size=6), st.one_of(st.none(), st.integers(1, 20)))
@settings(max_examples=60)
def test_halves_have_nothing_in_common_and_everything_together(sizes: list[int], batch: int | None) -> None:
    first, second = halves(sizes, batch)
    for n, a, b in zip(sizes, first, second, strict=True):
        assert a | b == set(range(n)) and not a & b and len(a) - len(b) in (0, 1)
    assert halves(sizes, batch, round=3) == [first, second]


def test_halves_are_drawn_and_not_the_first_and_the_last() -> None:
    first = halves([40, 40], 10)[0]
    assert first[0] != set(range(20)) and first[0] != first[1]


@pytest.mark.parametrize("executor", ["looped", "stacked"])
def test_training_on_a_half_is_training_where_only_that_half_is_there(blobs: Any, executor: str) -> None:
    """Full batches, so that order does not matter: the same model as from the half's examples alone."""
    federation = blobs()
    run = prepare(pc.fedavg(), federation, rounds=1, model="logistic", executor=executor, dtype="float64")
    everyone = run.clients.everyone(0)
    train = pc.Train(lr=0.1, epochs=3, batch=None)
    rows = {"model": run.state.centers["model"].expand(len(everyone), -1)}
    rows |= {"start": rows["model"]}
    split, seen = run.clients.federation.train, halves(everyone.sizes.tolist(), None)
    for half in (0, 1):
        found = run.clients.run(TrainOnHalf(train, half), rows, everyone)[f"half{half}"]
        for place, client in enumerate(everyone.index.tolist()):
            mine = int(split.first[client]) + torch.tensor(sorted(seen[half][place]), dtype=torch.int64)
            w = rows["model"][place].clone()
            for _ in range(3 if len(mine) else 0):
                w = w.detach().requires_grad_()
                loss = run.clients.task.losses({"model": w}, _batch(run, split, mine)).mean()
                w = w - 0.1 * torch.autograd.grad(loss, w)[0]
            torch.testing.assert_close(found[place], w.detach(), rtol=0, atol=1e-9)


def _batch(run: Any, split: Any, at: torch.Tensor) -> Any:
    from polycentric.learn.batches import batch_at

    return batch_at(run.clients.task, split, None, at, torch.full((len(at),), 1 / len(at), dtype=torch.float64))


def test_both_halves_cost_as_much_as_one_training() -> None:
    federation = pc.load("digits", clients=8)
    runs = [
        pc.run(method, federation, model="logistic", rounds=2, evaluate_every=2, fine_tune=0)
        for method in (pc.fesem(k="auto", warm_up=None), pc.fedavg(equal=True))
    ]
    examples = [run.tally.work["examples"] for run in runs]  # type: ignore[index]
    assert examples[0] == pytest.approx(1.5 * examples[1])  # two rounds, and one look at the halves
    assert [runs[0].tally.bytes_up, runs[0].tally.bytes_down] == [
        runs[1].tally.bytes_up * 2,
        runs[1].tally.bytes_down * 3 // 2,
    ]
