"""Which examples a client sees at which step: every one as often as asked, whoever else takes part."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from polycentric import UsageError
from polycentric.learn import BatchSchedule, Plan
from polycentric.learn.batches import PADDING, plan_of
from polycentric.stacks.draw import bits
from support import batches_of, cohort_of, numbered

bounded = settings(max_examples=60)
sizes_of_clients = st.lists(st.integers(1, 17), min_size=1, max_size=6)


@bounded
@given(sizes_of_clients, st.one_of(st.none(), st.integers(1, 20)), st.integers(1, 4))
def test_every_epoch_shows_every_example_exactly_once(sizes: list[int], batch: int | None, epochs: int) -> None:
    split = numbered(sizes)
    cohort = cohort_of(split)
    for n, steps in zip(sizes, batches_of(split, cohort, plan_of(cohort, epochs, None, batch)), strict=True):
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
    all_batches = batches_of(split, everyone, plan_of(everyone, epochs, None, batch))
    assert batches_of(split, cohort, plan_of(cohort, epochs, None, batch)) == [all_batches[k] for k in some]

    others = numbered([size if k in some else 1 + size % 3 for k, size in enumerate(sizes)])
    cohort = cohort_of(others, some)
    assert batches_of(others, cohort, plan_of(cohort, epochs, None, batch)) == [all_batches[k] for k in some]


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
            found = batches_of(split, cohort, plan)
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


def test_batches_depend_on_seed_and_round_and_not_on_the_turn() -> None:
    split = numbered([16, 16])

    def of(**changes: Any) -> list[list[list[int]]]:
        cohort = cohort_of(split, **changes)
        return batches_of(split, cohort, plan_of(cohort, 2, None, 4))

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
    exactly = batches_of(split, cohort, plan_of(cohort, 1, steps, batch))
    plenty = batches_of(split, cohort, plan_of(cohort, 12, None, batch))
    assert exactly == [client[:steps] for client in plenty]


@bounded
@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 10), st.floats(1e-6, 1.0))
def test_a_straggler_does_its_share_of_the_epochs(size: int, batch: int, epochs: int, effort: float) -> None:
    split = numbered([size, size])
    cohort = cohort_of(split, effort=torch.tensor([effort, 1.0], dtype=torch.float64))
    slow, quick = plan_of(cohort, epochs, None, batch).steps.tolist()
    assert slow == math.ceil(effort * epochs) * math.ceil(size / batch)
    assert quick == epochs * math.ceil(size / batch)
    done = batches_of(split, cohort, plan_of(cohort, epochs, None, batch))[0]
    assert done == batches_of(split, cohort_of(split), plan_of(cohort_of(split), epochs, None, batch))[0][:slow]


@bounded
@given(sizes_of_clients, st.integers(1, 20), st.integers(0, 32))
def test_a_wider_schedule_shows_the_same_examples(sizes: list[int], batch: int, width: int) -> None:
    split = numbered(sizes)
    cohort = cohort_of(split)
    plain, wide = (BatchSchedule(split, cohort, plan_of(cohort, 2, None, batch)) for _ in range(2))
    wide.widen(width)
    n = plain.index.shape[-1]
    assert wide.index.shape == wide.weight.shape == (*plain.index.shape[:-1], max(n, width))
    assert torch.equal(wide.index[..., :n], plain.index) and torch.equal(wide.weight[..., :n], plain.weight)
    assert not wide.weight[..., n:].any() and bool((split.owner[wide.index] == cohort.index[:, None]).all())


def test_a_client_without_examples_cannot_take_a_step() -> None:
    split = numbered([3, 0])
    with pytest.raises(UsageError, match="without examples"):
        BatchSchedule(split, cohort_of(split), Plan(torch.tensor([1, 1]), 2))
