"""Clients that share examples: the same numbers as if every one had a copy, and none of the memory."""

from __future__ import annotations

import pytest
import torch

from polycentric import fedavg, run
from polycentric.data import Federation, Iid, Split, deal, digits
from polycentric.errors import UsageError

PEOPLE, COPIES = 5, 3


def few() -> Federation:
    return deal(digits(), Iid(PEOPLE), 0)


def copied(federation: Federation, n: int) -> Federation:
    """The same clients with examples of their own."""
    parts = [federation.train.of(k % federation.n_clients) for k in range(n)]
    offset = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
    train = Split(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), offset)
    tiled = federation.tiled(n)
    return Federation("copied", train, tiled.test, tiled.valid, federation.classes, tiled.clients)


@pytest.mark.parametrize("executor", ["looped", "stacked"])
def test_shared_examples_train_like_copies(executor: str) -> None:
    n = PEOPLE * COPIES + 2
    runs = [run(fedavg(lr=0.1, batch=10), data, model="logistic", rounds=2, executor=executor, seed=3)
            for data in (few().tiled(n), copied(few(), n))]  # fmt: skip
    assert torch.equal(runs[0].state.centers["model"], runs[1].state.centers["model"])
    assert runs[0].metrics == runs[1].metrics
    assert runs[0].tally.bytes_up == runs[1].tally.bytes_up > 0


def test_no_example_is_copied_and_each_is_scored_once() -> None:
    one = few()
    many = one.tiled(10_000)
    assert many.n_clients == 10_000 and many.train.x.data_ptr() == one.train.x.data_ptr()
    assert many.train.sizes.tolist()[-2:] == [int(one.train.sizes[k % PEOPLE]) for k in (9_998, 9_999)]
    assert torch.equal(many.train.of(7).x, one.train.of(2).x)
    assert int(many.test.sizes.sum()) == len(one.test) and int(many.test.sizes[PEOPLE:].sum()) == 0
    assert many.fingerprint not in (one.fingerprint, one.tiled(9_999).fingerprint)
    assert "shared by 10000" in many.note


def test_tiled_again_is_tiled_once() -> None:
    twice, once = few().tiled(7).tiled(30), few().tiled(7)
    assert twice.train.piece is not None and once.train.piece is not None
    assert twice.train.piece.tolist() == [int(once.train.piece[k % 7]) for k in range(30)]


def test_what_sharing_cannot_do_is_said() -> None:
    many = few().tiled(12)
    with pytest.raises(UsageError, match="no single owner"):
        _ = many.train.owner
    with pytest.raises(UsageError, match="cannot be tiled to fewer: 3"):
        few().tiled(3)
    with pytest.raises(UsageError, match="pieces run from 0 to 5"):
        Split(many.train.x, many.train.y, many.train.offset, torch.tensor([0, 5]))
