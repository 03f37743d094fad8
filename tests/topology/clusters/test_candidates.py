"""Clients choose among centers: what comes down, and where a choice puts them, by hand."""

from __future__ import annotations

import pytest
import torch

from polycentric.topology.clusters.candidates import Choice, NewcomerAssignment, NoneTwice, candidate
from support import everyone


@pytest.mark.parametrize(("name", "sender"), [("candidate0", 0), ("candidate2", 2), ("candidate5", 2)])
def test_a_candidate_is_one_center_for_everybody(name: str, sender: int) -> None:
    mixing = candidate(name, everyone(4), 3)
    assert mixing.of == "model" and mixing.links.sender.tolist() == [sender] * 4


@pytest.mark.parametrize(("name", "messages"), [("candidate2", 4), ("candidate3", 0), ("model", 4)])
def test_a_candidate_beyond_the_centers_is_not_sent(name: str, messages: int) -> None:
    cohort = everyone(4)
    links = NoneTwice().messages("down", {}, cohort, name, candidate("candidate0", cohort, 3), 5)
    assert len(links.weight) == messages


def test_newcomers_go_where_they_chose_and_without_a_choice_they_stay() -> None:
    sent = {"choice": torch.tensor([[-1.0], [0.0], [2.0]])}
    found = NewcomerAssignment(3).place({"assignment": torch.tensor([1, 1, 1])}, everyone(3), {}, sent)
    assert found["assignment"].tolist() == [1, 0, 2] and found["placed"].tolist() == [False, True, True]


def test_centers_move_by_the_share_of_all_that_chose_them() -> None:
    memory = {"assignment": torch.tensor([0, 2, 2, 2])}
    up = Choice(3, over_all=True).up(memory, everyone(4), "model")
    assert up.rest == "keep" and up.total.tolist() == [0.25, 0.0, 0.75]


def test_with_a_fixed_denominator_everybody_counts_one_of_the_expected_number() -> None:
    """Half of four clients are expected in each center, whoever chose it."""
    memory = {"assignment": torch.tensor([0, 1, 1, 1])}
    up = Choice(2, expected=0.5).up(memory, everyone(4), "model")
    assert up.to_dense().tolist() == [[0.5, 0, 0, 0], [0, 0.5, 0.5, 0.5]]
