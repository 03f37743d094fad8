"""What a node keeps, and what it does not let itself be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.in_process import restarted
from deploy.test_client import code, letter_of, scene
from polycentric.deploy.letters import LastUsed, Letter, digest, mark
from polycentric.deploy.node import DIFFERENT, Keeper
from support import Make


def other(letter: bytes, by: float = 1e-9, **facts: Any) -> bytes:
    """A letter like another one, with other numbers in it."""
    read = Letter.read(letter, 1 << 20)
    received = {name: rows + by for name, rows in read.received.items()}
    return Letter(read.facts.model_copy(update=facts), received).packed()


@pytest.mark.parametrize("asks", ["learn", "score", "tune", "place"])
def test_a_node_answers_few_different_letters_for_one_exchange(asks: str, blobs: Make, tmp_path: Path) -> None:
    """Also after it was restarted, and each kind is counted apart; the same one may come as often as it likes."""
    center, clients = scene(blobs, tmp_path, "fesem" if asks == "place" else "lg-fedavg")
    tune = center.settings.fine_tune * (asks == "tune")
    terms, letter = letter_of(center, asks="score" if tune else asks, tune=tune)
    letters = [other(letter, 1e-9 * k) for k in range(DIFFERENT)]
    replies = [clients[0].answer([terms, each])[0] for each in letters]
    assert [code(reply) for reply in replies] == ["ok"] * DIFFERENT
    node = restarted(clients[0])
    assert code(node.answer([terms, other(letter, 1.0)])[0]) == "refused"
    assert [node.answer([terms, each])[0] for each in letters] == replies
    assert asks == "learn" or code(node.answer(letter_of(center))[0]) == "ok"


def test_letters_are_counted_whatever_the_disk_has_lost(tmp_path: Path) -> None:
    """Half a line hides no other; a letter that could not be counted is not answered."""
    names = [digest(str(k).encode()) for k in range(DIFFERENT + 1)]
    Keeper({}, tmp_path).ask(0, 0, names[0])
    with (tmp_path / "letters").open("a") as file:
        file.write("0 0 3f5")  # the power went
    for name in names[1:DIFFERENT]:
        Keeper({}, tmp_path).ask(0, 0, name)
    with pytest.raises(ValueError, match="different letters"):
        Keeper({}, tmp_path).ask(0, 0, names[DIFFERENT])
    full = Keeper({}, tmp_path / "full")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letters").mkdir()  # nothing can be written there
    for _ in range(2):
        with pytest.raises(OSError):
            full.ask(0, 0, names[0])


def test_an_older_letter_that_comes_late_does_not_change_what_is_gone_on_from(blobs: Make, tmp_path: Path) -> None:
    """A center that was killed asks for a round by another letter; the first one arrives once more, after it.

    What the center used is the reply to the second: a node goes on from what it kept then, in either order.
    """
    center, clients = scene(blobs, tmp_path)
    terms, first = letter_of(center)
    second = other(first, 0.5)
    last = LastUsed(round=0, turn=0, letter=mark(digest(second)))
    third = other(first, 0.0, round=1, last=last)
    found = []
    for number, order in enumerate(([second], [first, second], [second, first], [first, second, first])):
        node = restarted(clients[0], folder=tmp_path / f"order {number}")
        for letter in order:
            node._replied.clear()  # it was remembered, but not for ever
            assert code(node.answer([terms, letter])[0]) == "ok"
        found += restarted(node).answer([terms, third])
    assert code(found[0]) == "ok" and found == [found[0]] * 4


def test_replies_that_nobody_uses_do_not_fill_the_disk(blobs: Make, tmp_path: Path) -> None:
    """A node that is always late keeps a few versions, and still can go on from the beginning."""
    center, clients = scene(blobs, tmp_path, rounds=40)
    terms, letter = letter_of(center)
    for round in range(20):
        assert code(clients[0].answer([terms, other(letter, 0.0, round=round)])[0]) == "ok"
    assert len(list((tmp_path / "0").rglob("kept-*"))) <= 5


@pytest.mark.parametrize("tune", [-1, 2, 1 << 20])
def test_no_more_fine_tuning_than_was_agreed_to(tune: int, blobs: Make) -> None:
    center, clients = scene(blobs, None)
    terms, letter = letter_of(center, asks="score")
    told = Letter.read(letter, 1 << 20)
    asked = Letter(told.facts.model_copy(update={"tune": tune}), told.received).packed()
    assert code(clients[0].answer([terms, asked])[0]) == "refused"


def test_scores_are_of_the_models_in_use(blobs: Make) -> None:
    """feddane's first exchange brings gradients up; no model that is used comes down by it alone."""
    center, clients = scene(blobs, None, "feddane")
    terms, letter = letter_of(center)
    assert center.method.in_use(0) is center.method.at(0)[1]
    read = Letter.read(letter, 1 << 20)
    asked = Letter(read.facts.model_copy(update={"asks": "score"}), read.received).packed()
    assert code(clients[0].answer([terms, asked])[0]) == "refused"
