"""Settings: words become parts, and whatever is wrong with them is one line and a UsageError."""

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polycentric.data import load
from polycentric.topology.cells.deal import InCells
from polycentric.errors import UsageError
from polycentric.methods import METHODS, fedmes, hierarchical
from polycentric.parts.aggregate import Krum, Mean, Median, TrimmedMean
from polycentric.parts.objective import Prox
from polycentric.parts.optimizer import SGD, Adam, Average, Momentum
from polycentric.parts.select import Everyone, Poisson, Uniform
from polycentric.runs.start import prepare
from polycentric.runs.settings import Settings, pairs, read_toml
from polycentric.runs.words_old import build_method, parameters
from polycentric.stacks.stack import WHOLE, KeepPrivate
from polycentric.topology.cells.map import CellMap
from polycentric.topology.cells.shapes import Attached, Overlap

LAW = settings(max_examples=50)
FUZZ = settings(max_examples=300)


def built(method="fedavg", **settings_):
    """The only exchange of a method built from words; `__` in a key is a dot."""
    method = build_method(method, {key.replace("__", "."): value for key, value in settings_.items()})
    (exchange,) = method.exchanges
    return exchange


def train(**settings_):
    return built(**settings_).learn[0]


def refused(method, settings_, text):
    with pytest.raises(UsageError) as wrong:
        build_method(method, settings_)
    assert str(wrong.value) == text


# -- what words mean -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("everyone", Everyone()),
        ("uniform(n=10)", Uniform(10)),
        ("uniform(10)", Uniform(10)),
        (" Uniform( n = 10 ) ", Uniform(10)),
        ("uniform(share=0.1)", Uniform(share=0.1)),
        ("uniform(n=all, share=0.1)", Uniform(share=0.1)),
        ("poisson(rate=.5)", Poisson(0.5)),
    ],
)
def test_a_selection_is_written_as_it_is_built(words, part):
    assert built(select=words).select == part


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("average", Average()),
        ("sgd(lr=0.5)", SGD(0.5)),
        ("sgd()", SGD()),
        ("momentum(lr=2, beta=0.5)", Momentum(2, 0.5)),
        ("adam(1e-2, eps=1e-3)", Adam(0.01, eps=1e-3)),
    ],
)
def test_a_center_is_written_as_it_is_built(words, part):
    assert built(center=words).optimizer == part


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("mean", Mean()),
        ("median", Median()),
        ("trimmed-mean(0.2)", TrimmedMean(0.2)),
        ("krum(keep=3)", Krum(keep=3)),
    ],
)
def test_an_aggregate_is_written_as_it_is_built(words, part):
    assert built(aggregate=words).aggregate == part


@pytest.mark.parametrize(
    ("words", "cut"),
    [
        ("whole", WHOLE),
        ("private('conv*', head.*)", KeepPrivate("conv*", "head.*")),
        ('private("*")', KeepPrivate("*")),
    ],
)
def test_a_cut_is_written_as_it_is_built(words, cut):
    assert build_method("fedavg", {"cut": words}).cut == cut


@pytest.mark.parametrize(
    ("words", "terms"),
    [
        ("prox(0.1)", (Prox(0.1),)),
        ("prox(mu=0.1, implicit=yes), prox(2)", (Prox(0.1, True), Prox(2.0))),
        (["prox(0.1)", "prox(2)"], (Prox(0.1), Prox(2.0))),
        ("", ()),
        ([], ()),
    ],
)
def test_terms_are_a_list(words, terms):
    assert train(terms=words).terms == terms


def test_a_setting_of_a_part_is_reached_by_a_dot():
    assert built(select="uniform(n=10)", select__n=3).select == Uniform(3)
    assert built(select__n="3", select="uniform(n=10)").select == Uniform(3)  # in whatever order
    assert built(center="momentum", center__beta=0.5).optimizer == Momentum(beta=0.5)
    assert built("feddist", eps="1").optimizer == SGD(1.0)


def test_a_table_with_a_name_is_a_part():
    assert built(center={"name": "momentum", "lr": 2, "beta": 0.5}).optimizer == Momentum(2, 0.5)
    assert built(aggregate={"name": "median"}).aggregate == Median()
    assert built(select={"name": "uniform(n=10)", "n": 4}).select == Uniform(4)


@pytest.mark.parametrize(
    ("table", "part"),
    [({"name": "uniform", "n": 10}, Uniform(10)), ({"name": "poisson", "rate": 0.5}, Poisson(0.5))],
)
def test_a_table_may_give_what_a_part_needs(table, part):
    assert built(select=table).select == part


@pytest.mark.parametrize("word", ["all", "none", "None", " ALL ", None])
def test_all_and_none_are_none_where_none_is_allowed(word):
    assert train(batch=word).batch is None
    assert train(steps=word).steps is None


@pytest.mark.parametrize("word", ["true", "yes", "1", "True", True, 1])
@pytest.mark.parametrize("negated", [False, True])
def test_booleans_are_said_in_words(word, negated):
    opposite = {"true": "false", "yes": "no", "1": "0", "True": "False"}
    no = opposite[word] if isinstance(word, str) else type(word)(0)
    assert built(equal=no if negated else word).topology.equal is not negated


def test_numbers_may_be_words_or_numbers():
    for value in (3, "3", 3.0, " 3 "):
        assert train(epochs=value).epochs == 3
    for value in (1, "1", "1.0", "1e0"):
        lr = train(lr=value).lr
        assert lr == 1
        assert isinstance(lr, float)


def test_a_choice_is_one_of_its_words():
    assert train(optimizer="adam").optimizer == "adam"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_builds_from_nothing_and_from_its_own_defaults(name):
    known = parameters(name)
    assert build_method(name, {}) == METHODS[name]()
    plain = {k: p.default for k, p in known.items() if isinstance(p.default, bool | int | float | str)}
    assert build_method(name, plain) == METHODS[name]()
    assert build_method(name, {k: str(v) for k, v in plain.items()}) == METHODS[name]()


def test_set_takes_key_and_value():
    assert pairs(["lr=0.1", " select = uniform(n=10)", "cut="]) == {"lr": "0.1", "select": "uniform(n=10)", "cut": ""}


# -- what is wrong is named ----------------------------------------------------------------------------------

KNOWN = (
    "aggregate, batch, center, cut, decay, epochs, equal, lr, momentum, optimizer, privacy, select, steps, stragglers, "
    "terms, weight_decay"
)
MISTAKES = [
    ("fedavgg", {}, f"unknown method 'fedavgg': did you mean 'fedavg'? Known: {', '.join(sorted(METHODS))}"),
    ("fedavg", {"epoch": 1}, f"unknown setting of fedavg 'epoch': did you mean 'epochs'? Known: {KNOWN}"),
    ("fedavg", {"trains": 1}, f"unknown setting of fedavg 'trains': did you mean 'terms'? Known: {KNOWN}"),
    ("fedavg", {"lr": "fast"}, "lr must be a number, got 'fast'"),
    ("fedavg", {"lr": True}, "lr must be a number, got 'True'"),
    ("fedavg", {"epochs": 1.5}, "epochs must be a whole number, got '1.5'"),
    ("fedavg", {"epochs": "all"}, "epochs must be a whole number, got 'all'"),
    ("fedavg", {"epochs": 0}, "epochs must be at least 1, got 0; for single steps use steps=1"),
    ("fedavg", {"equal": "maybe"}, "equal must be true or false, got 'maybe'"),
    ("fedavg", {"optimizer": "adan"}, "unknown optimizer 'adan': did you mean 'adam'? Known: adam, sgd"),
    (
        "fedavg",
        {"select": "uniforn(n=1)"},
        "unknown select 'uniforn': did you mean 'uniform'? Known: active, by-cell, churn, everyone, poisson, uniform",
    ),
    ("fedavg", {"select": "uniform(m=1)"}, "unknown setting of uniform 'm': Known: n, share"),
    (
        "fedavg",
        {"select": "uniform(shar=1)"},
        "unknown setting of uniform 'shar': did you mean 'share'? Known: n, share",
    ),
    ("fedavg", {"select": "uniform(n=x)"}, "select.n must be a whole number, got 'x'"),
    ("fedavg", {"select": "uniform"}, "Uniform takes n or share: Uniform(n=10) or Uniform(share=0.1)"),
    ("fedavg", {"select": "poisson"}, "poisson needs rate: write select=poisson(rate=...)"),
    (
        "fedavg",
        {"select": "uniform(n=1"},
        "select must be one of everyone, uniform, poisson, active, churn, by-cell, like everyone, got 'uniform(n=1'",
    ),
    ("fedavg", {"lr.x": 1}, "lr of fedavg has no settings of its own, so 'lr.x' cannot be set"),
    (
        "fedavg",
        {"center": "momentum", "center.bet": 1},
        "unknown setting of momentum 'bet': did you mean 'beta'? Known: beta, lr",
    ),
    ("fedavg", {"cut.patterns": "x"}, "cut.patterns cannot be set from a config; set it in Python"),
    ("feddist", {"eps": 3}, "eps must be in [0, 2], got 3.0; the error is multiplied by 1 - eps every round"),
]


@pytest.mark.parametrize(("method", "settings_", "text"), MISTAKES, ids=[str(m[:2]) for m in MISTAKES])
def test_a_mistake_is_named(method, settings_, text):
    refused(method, settings_, text)


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
            "executor in the command: input should be 'auto', 'looped', 'stacked' or 'compiled', got 'fast'",
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
        UsageError, match=r"^unknown key in a\.toml 'round': did you mean 'rounds'\? Known: attack, block, "
    ):
        Settings.of({"method": "fedavg", "round": 3}, "a.toml")


def test_settings_survive_their_own_json():
    mine = Settings.of({"method": "fedprox", "rounds": 3, "set": {"mu": "0.5", "select": "uniform(n=2)"}})
    assert Settings.of(Settings.model_validate_json(mine.model_dump_json()).model_dump()) == mine


# -- nothing but a UsageError ever escapes ----------------------------------------------------------------------

words = st.text(max_size=12)
FRAGMENTS = "uniform prox momentum private krum ( ) , = n share mu 0.1 1 -1 nan inf 1e999 all ' \" . é true".split()
pieces = st.lists(
    st.sampled_from([*FRAGMENTS, " ", "\n", "\0", "9" * 20]),
    max_size=10,
).map("".join)
scalars = st.one_of(words, pieces, st.integers(), st.floats(), st.booleans(), st.none())
keys = st.one_of(
    words,
    st.sampled_from(sorted({k for m in METHODS for k in parameters(m)})),
    st.sampled_from(["select.n", "center.lr", "terms.mu", "cut.patterns", "lr.x", "select.", ".", "a.b.c", "name"]),
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=5
)


def only_mistakes(call, *arguments):
    """Runs it; whatever is refused is refused by a UsageError that says something."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a method may warn of what it was asked for
        try:
            call(*arguments)
        except UsageError as wrong:
            assert str(wrong)


@FUZZ
@given(st.one_of(st.sampled_from(sorted(METHODS)), words), st.dictionaries(keys, anything, max_size=3))
def test_a_method_is_built_or_refused(name, settings_):
    only_mistakes(build_method, name, settings_)


@pytest.mark.parametrize("value", ["a\nb", "a\x1b[2Jb"])
def test_a_refusal_is_one_printable_line_whatever_the_value(value):
    with pytest.raises(UsageError) as wrong:
        build_method("fedavg", {"lr": value})
    assert str(wrong.value).isprintable()


def test_words_after_keys_are_refused_too():
    only_mistakes(build_method, "fedavg", {"select": "uniform(n=1, n=1, n=1, n=1, 7)"})


def test_deep_tables_are_refused_too():
    deep = 1
    for _ in range(5000):
        deep = {"a": deep}
    only_mistakes(build_method, "fedavg", {"lr": deep})


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
    with pytest.warns(UserWarning, match="dealt for other cells than the method's: 60 of 90 clients are elsewhere"):
        prepared(Settings.of(how | {"partition": "cells=b"}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method in ("fedmes", "hierarchical"):  # every client at one edge: the same cells still
            prepared(Settings.of(how | {"method": method, "partition": "cells(setting=b, u=30, v=0)"}))
        prepared(Settings.of(how | {"partition": "iid"}))


def test_a_map_drawn_by_another_seed_is_another_map():
    data = load("digits", InCells(24, "c", CellMap(4)), seed=0)
    with pytest.warns(UserWarning, match="dealt for other cells than the method's"):
        prepare(fedmes(cells=CellMap(4)), data, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare(fedmes(cells=CellMap(4)), data, seed=0)
        prepare(fedmes(cells=CellMap(4)), replace(data, group_names=("cell phone",) * len(data.group_names)), seed=3)
        prepare(fedmes(cells=CellMap(4)), replace(data, group_names=()), seed=3)
        prepare(hierarchical(cells=Overlap(2, 1)), load("digits", InCells(18, "c", Attached(Overlap(2, 1)))))
