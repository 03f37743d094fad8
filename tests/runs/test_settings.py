"""Settings: files and options become runs, and whatever is wrong with them is one line and a UsageError."""

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from fuzz import FUZZ, anything, only_mistakes, words
from polycentric.data import load
from polycentric.errors import UsageError
from polycentric.methods import fedmes, hierarchical
from polycentric.runs.settings import Settings, pairs, read_toml
from polycentric.runs.start import prepare, prepared
from polycentric.topology.cells.deal import InCells
from polycentric.topology.cells.map import CellMap
from polycentric.topology.cells.shapes import Attached, Overlap

LAW = settings(max_examples=50)


def test_set_takes_key_and_value():
    assert pairs(["lr=0.1", " select = uniform(n=10)", "cut="]) == {"lr": "0.1", "select": "uniform(n=10)", "cut": ""}


# -- what is wrong is named ----------------------------------------------------------------------------------


def test_set_without_a_value_is_refused():
    for text in ("lr", "=3", ""):
        with pytest.raises(UsageError) as wrong:
            pairs([text])
        assert str(wrong.value) == f"--set takes key=value, got '{text}'; for example --set lr=0.1"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "method in the command: field required"),
        (
            {"method": "fedavg", "rounds": -1},
            "rounds in the command: input should be greater than or equal to 0, got -1",
        ),
        (
            {"method": "fedavg", "rounds": "many"},
            "rounds in the command: input should be a valid integer, unable to parse string as an integer, got 'many'",
        ),
        ({"method": "fedavg", "valid": 1}, "valid in the command: input should be less than 1, got 1"),
        (
            {"method": "fedavg", "executor": "fast"},
            "executor in the command: input should be 'auto', 'looped', 'stacked', 'traced' or 'compiled', got 'fast'",
        ),
        ({"method": 3}, "method in the command: input should be a valid string, got 3"),
    ],
)
def test_a_mistake_in_the_settings_is_named(values, text):
    with pytest.raises(UsageError) as wrong:
        Settings.of(values)
    assert str(wrong.value) == text


def test_a_key_nobody_knows_is_told_apart_by_its_file():
    with pytest.raises(
        UsageError,
        match=r"^unknown key in a\.toml 'round': did you mean 'rounds'\? Known: alone, attack, augment, ",
    ):
        Settings.of({"method": "fedavg", "round": 3}, "a.toml")


def test_settings_survive_their_own_json():
    mine = Settings.of({"method": "fedprox", "rounds": 3, "set": {"mu": "0.5", "select": "uniform(n=2)"}})
    assert Settings.of(Settings.model_validate_json(mine.model_dump_json()).model_dump()) == mine


# -- nothing but a UsageError ever escapes ----------------------------------------------------------------------


@FUZZ
@given(
    st.dictionaries(
        st.one_of(words, st.integers(), st.sampled_from(sorted(Settings.model_fields))), anything, max_size=4
    ),
    st.booleans(),
)
def test_settings_are_taken_or_refused(values, with_method):
    only_mistakes(Settings.of, values | ({"method": "fedavg"} if with_method else {}))


TOML = "method = 'fedavg' [set] [ ] { } , . lr 0.1 1e400 2021-13-45 ' \" # \\u0000 inf nan 0x _ é".split()
toml = st.lists(
    st.sampled_from([*TOML, " ", "\n", "\r"]),
    max_size=15,
).map(lambda parts: "".join(parts).encode())


@FUZZ
@given(st.one_of(st.binary(max_size=60), toml))
@example(b"a=" + b"[" * 100_000)
@example(b"x" * (1 << 21))
@example(b"\xff\xfe")
def test_a_file_is_read_or_refused(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_bytes(content)
        only_mistakes(read_toml, path)


def test_a_number_of_five_thousand_digits_is_refused_too(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("rounds = " + "9" * 5000)
    only_mistakes(read_toml, path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    for path in (tmp_path / "nothing.toml", tmp_path):
        with pytest.raises(UsageError, match="cannot be read as TOML"):
            read_toml(path)


@LAW
@given(st.text(alphabet="abcdefg()=,. \n", max_size=30))
def test_pairs_are_split_or_refused(text):
    only_mistakes(pairs, [text])


def test_data_dealt_for_other_cells_are_noticed():
    how = {"method": "fedmes", "data": "digits", "clients": 90, "rounds": 1, "set": {"cells": "overlap(u=30, v=0)"}}
    with pytest.warns(
        UserWarning, match="partitioned for other cells than the method's: 60 of 90 clients are in other cells"
    ):
        prepared(Settings.of(how | {"partition": "cells=b"}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method in ("fedmes", "hierarchical"):  # every client at one edge: the same cells still
            prepared(Settings.of(how | {"method": method, "partition": "cells(setting=b, u=30, v=0)"}))
        prepared(Settings.of(how | {"partition": "iid"}))


def test_a_map_drawn_by_another_seed_is_another_map():
    data = load("digits", InCells(24, "c", CellMap(4)), seed=0)
    with pytest.warns(UserWarning, match="partitioned for other cells than the method's"):
        prepare(fedmes(cells=CellMap(4)), data, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare(fedmes(cells=CellMap(4)), data, seed=0)
        prepare(fedmes(cells=CellMap(4)), replace(data, group_names=("cell phone",) * len(data.group_names)), seed=3)
        prepare(fedmes(cells=CellMap(4)), replace(data, group_names=()), seed=3)
        prepare(hierarchical(cells=Overlap(2, 1)), load("digits", InCells(18, "c", Attached(Overlap(2, 1)))))
