"""Digests of every exchange: equal runs are equal, others part somewhere, and a run that goes on has them once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from polycentric import resume, run
from polycentric.errors import UsageError
from polycentric.runs.loop import Callback, Run
from polycentric.runs.record import digest_of, last_used, verify
from support import Make, small

HOW: dict[str, Any] = {"model": small, "rounds": 3, "record": True}


def recorded(blobs: Make, out: Path, method: str = "fedavg", **how: Any) -> Path:
    run(method, blobs((9, 7, 5)), out=out, **{**HOW, "set": {"lr": 0.1}, **how})
    return out


def test_equal_runs_are_equal_whatever_the_block(blobs: Make, tmp_path: Path) -> None:
    """Blocks that add up in the same order: of one client each, by either executor that loops."""
    a = recorded(blobs, tmp_path / "a", executor="looped", block=1)
    b = recorded(blobs, tmp_path / "b", executor="looped", block=1)
    found = verify(a, b)
    assert found.difference is None and found.rounds == 3
    assert found.compared == 3 * (3 + 1)  # what three clients send, and the one center


def test_the_first_difference_is_named(blobs: Make, tmp_path: Path) -> None:
    a, b = (recorded(blobs, tmp_path / name, executor="looped", block=1) for name in "ab")
    lines = [json.loads(line) for line in (b / "exchanges.jsonl").read_text().splitlines()]
    lines[2]["sent"]["1"]["model"] = "0" * 16
    (b / "exchanges.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = verify(a, b).difference
    assert found is not None and (found.round, found.what, found.tensor) == (1, "client 'client 1'", "model")
    del lines[2]["sent"]["1"]
    (b / "exchanges.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = verify(a, b).difference
    assert found is not None and found.digests[1] is None
    other = recorded(blobs, tmp_path / "c", executor="looped", block=1, set={"lr": 0.2})
    first = verify(a, other).difference
    assert first is not None and (first.round, first.tensor) == (0, "model")
    with pytest.raises(UsageError, match="--record"):
        run("fedavg", blobs((9, 7, 5)), out=tmp_path / "d", model=small, rounds=1)
        verify(a, tmp_path / "d")


def test_a_run_that_goes_on_has_every_round_once(blobs: Make, tmp_path: Path) -> None:
    class Stop(Callback):
        def on_round(self, run: Run, trips: Any) -> None:
            if run.state.round == 2:
                raise KeyboardInterrupt

    data = blobs((9, 7, 5))
    plain = recorded(blobs, tmp_path / "plain", executor="looped", block=1, checkpoint_every=1)
    how: dict[str, Any] = {**HOW, "set": {"lr": 0.1}, "executor": "looped", "block": 1, "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        run("fedavg", data, out=tmp_path / "cut", callbacks=[Stop()], **how)
    with (tmp_path / "cut" / "exchanges.jsonl").open("a") as file:
        file.write('{"round": 2, "turn": 0, "sent": {"0": {"mod')  # cut short
    resume(tmp_path / "cut", federation=data, model=small)
    assert (tmp_path / "cut" / "exchanges.jsonl").read_text() == (plain / "exchanges.jsonl").read_text()


def test_a_digest_is_of_bits_shape_and_type() -> None:
    rows = torch.arange(6.0)
    same = digest_of(rows.clone())
    assert digest_of(rows) == same
    others = [rows.view(2, 3), rows.double(), rows + 1e-6 * (torch.arange(6) == 5), -rows.flip(0)]
    assert len({same, *map(digest_of, others)}) == 5
    assert digest_of(torch.tensor([0.0])) != digest_of(torch.tensor([-0.0]))


# -- which replies were used ---------------------------------------------------------------------------------

LINES = [
    {"round": 0, "turn": 0, "sent": {"0": {}, "2": {}}, "left_out": [1], "letters": {"0": "a", "2": "b"}},
    {"round": 0, "after": {}},
    {"round": 1, "turn": 0, "sent": {"0": {}}, "left_out": [], "letters": {"0": "c"}},
    {"round": 1, "turn": 1, "sent": {"1": {}}, "left_out": [], "letters": {"1": "d"}},
    {"round": 1, "after": {}},
]
TEXT = [json.dumps(line) + "\n" for line in LINES]


def test_the_last_reply_of_every_client_is_known(tmp_path: Path) -> None:
    (tmp_path / "exchanges.jsonl").write_text("".join(TEXT))
    assert last_used(tmp_path, 2) == {0: (1, 0, "c"), 1: (1, 1, "d"), 2: (0, 0, "b")}
    assert last_used(tmp_path, 1) == {0: (0, 0, "a"), 2: (0, 0, "b")}
    assert last_used(tmp_path, 0) == {}


DAMAGED = {
    "a line is lost": [TEXT[0], *TEXT[2:]],
    "a line is spoiled": [TEXT[0], TEXT[1][5:], *TEXT[2:]],
    "it is cut off": [*TEXT[:-1], TEXT[-1][:-9]],
    "it is gone": [],
    "no letters": [line.replace('"letters"', '"latters"') for line in TEXT],
    "no client": [line.replace('"2": "b"', '"two": "b"') for line in TEXT],
    "no turn": [line.replace('"turn"', '"torn"') for line in TEXT],
    "letters that are none": [line.replace('{"0": "c"}', "[]") for line in TEXT],
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_record_that_does_not_say_it_is_refused(damage: str, tmp_path: Path) -> None:
    """Clients would go on from something older, and nobody would notice that the bits are others."""
    (tmp_path / "exchanges.jsonl").write_text("".join(DAMAGED[damage]))
    with pytest.raises(UsageError, match="was changed or has lost lines"):
        last_used(tmp_path, 2)
