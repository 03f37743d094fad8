"""The table of attacks: what it counts, and that every cell of it can be run."""

from __future__ import annotations

import math

import pytest

from polycentric.reproduce import hostile
from polycentric.runs.settings import Settings
from polycentric.runs.start import built_attack, built_method


def test_there_are_sixteen_attacks_and_every_cell_is_a_run() -> None:
    assert len(hostile.ATTACKS) == 17  # and none
    built = [Settings.of(row.settings) for row in hostile.HOSTILE.rows]
    attacks = {type(built_attack(asked)).__name__ for asked in built}
    assert len(attacks) == 12 and len({repr(built_attack(asked)) for asked in built}) == 17
    rules = {(repr(built_method(asked).exchanges[0].aggregate), asked.set.get("inertia")) for asked in built}
    assert len(rules) == len(hostile.RULES)


def test_a_rule_holds_where_it_clearly_loses_less_than_three_points() -> None:
    claim = hostile._holds("IID", hostile.BEST)
    names = {attack: hostile._name("IID", hostile.BEST, attack) for attack in hostile.ATTACKS}
    clean = {hostile._name("IID", hostile.MEAN, "no attack"): [97.5, 93.0, 93.0]}
    values = {name: [97.0, 92.4, 92.6] for name in names.values()} | clean
    assert claim.judge(values)[0] is True
    assert claim.judge({name: each[1:] for name, each in values.items()})[0] is None  # two seeds are too few
    values[names["zeros"]] = [94.0, 91.0, 90.5]  # lost: 3.5, 2.0, 2.5
    assert claim.judge(values) == (
        None,
        "16 of 16 on average over seeds, 15, 16, 16 by seed; clearly within 15, clearly beyond 0; "
        "most points are lost under zeros: 2.7",
    )
    assert claim.judge(values | {names["NaN"]: [95.0]})[1].startswith("15 of 16 on average over seeds, 15 by seed")
    values[names["zeros"]] = [90.0, 85.4, 85.6]
    holds, why = claim.judge(values)
    assert holds is False and why.endswith("clearly beyond 1; most points are lost under zeros: 7.5")
    holds, why = claim.judge(values | {names["ones"]: [math.nan] * 3})
    assert holds is False and why.endswith("clearly beyond 2; it diverges under ones")
    assert claim.judge(values | {names["ones"]: []})[0] is None  # not run


def test_held_counts_the_attacks_of_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Settings] = []
    monkeypatch.setattr(hostile, "run_cells", lambda cells, home: ran.extend(cells))
    weak = "zeros(share=0.2)"
    score = lambda cell, home: {"metrics": {"micro_accuracy": 0.5 if cell.attack == weak else 0.93}}  # noqa: E731
    monkeypatch.setattr(hostile, "finished", score)
    assert hostile.held("IID", seed=5) == 15
    assert len(ran) == 17 and {cell.seed for cell in ran} == {5}
