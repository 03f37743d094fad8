"""What travels of an answer: the fewer bytes, and the same answer at the other end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polycentric import Krum, fedavg, fesem
from polycentric.round import Answer, Part, mixer
from polycentric.runs.start import prepare
from polycentric.simulate.parcel import packed, smaller, unpacked
from support import Make


def answers(method: Any, federation: Any) -> tuple[Any, Any, list[Answer]]:
    run = prepare(method, federation, model="mlp", block=4, seed=1)
    exchange = method.at(0)[0]
    return run, exchange, list(run.clients.answers(exchange, run.state, run.clients.everyone(0)))


def size(parcel: Any) -> int:
    return sum(rows.nbytes for stacks in parcel.values() for rows in stacks.values())


@pytest.mark.parametrize("method", [fedavg(), fesem(k=2, match="distance")], ids=["one center", "two"])
def test_of_a_block_no_more_travels_than_a_model_for_every_center_that_hears_it(method: Any, blobs: Make) -> None:
    run, exchange, found = answers(method, blobs((9, 8, 7, 6, 5, 4, 3, 2)))
    row = run.state.centers["model"][0].nbytes
    mix = mixer(exchange, run.state)
    for answer in found:
        way = smaller(answer, mix(answer))
        assert isinstance(way, Part)
        heard = sum(len(each.weight) for each in way.sums.values())
        assert heard <= 2 and size(packed(way, answer.block)) <= heard * row + 500


def test_rows_travel_where_they_are_fewer_or_where_a_rule_must_see_them(blobs: Make) -> None:
    run, exchange, found = answers(fedavg(), blobs((9, 8, 7, 6, 5)))
    mix, alone = mixer(exchange, run.state), found[1]
    assert len(alone.block) == 1 and smaller(alone, mix(alone)) is alone  # one row is all there is to send
    run, exchange, found = answers(fedavg(aggregate=Krum()), blobs((9, 8, 7, 6, 5)))
    assert smaller(found[0], mixer(exchange, run.state)(found[0])) is found[0]


def test_what_was_packed_is_unpacked(blobs: Make) -> None:
    run, exchange, found = answers(fedavg(), blobs((9, 8, 7, 6)))
    (answer,), mix = found, mixer(exchange, run.state)
    block = answer.block
    rows = unpacked(packed(answer, block), block)
    assert isinstance(rows, Answer) and torch.equal(rows.sent["model"], answer.sent["model"])
    fewer = Answer(block[1:], {"model": answer.sent["model"][1:]}, {})
    part = mix(fewer)
    back = unpacked(packed(part, block), block)
    assert isinstance(back, Part) and back.block.index.tolist() == block.index[1:].tolist()
    assert torch.equal(back.sums["model"].values, part.sums["model"].values)  # type: ignore[union-attr]
