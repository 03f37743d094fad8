"""What a record says of the replies that were used, and what it does not say any more once it was damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polycentric.errors import UsageError
from polycentric.runs.record import last_used

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
