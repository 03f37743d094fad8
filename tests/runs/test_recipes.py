"""Methods by their words: what they build, what is refused, and the words that a method gives back."""

import inspect
import sys
from pathlib import Path

import networkx
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

import polycentric
import polycentric as pc
from fuzz import FUZZ, anything, keys, only_mistakes, words
from polycentric.errors import UsageError
from polycentric.language import spell
from polycentric.learn import Train
from polycentric.method import Method
from polycentric.methods import METHODS, dpsgd, fedavg, fedmes
from polycentric.parts.aggregate import Krum, Mean, Median, TrimmedMean
from polycentric.parts.objective import Prox
from polycentric.parts.optimizer import SGD, Adam, Average, Momentum
from polycentric.parts.select import Everyone, Poisson, Select, Uniform
from polycentric.runs.grid import run_dir
from polycentric.runs.recipes import build_method, parameters, words_of
from polycentric.runs.settings import Settings
from polycentric.stacks.stack import WHOLE, KeepPrivate


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


def defaults(name):
    """All that may be set at once: epochs only where they, and not steps, are what clients take."""
    found = {key: parameter.default for key, parameter in parameters(name).items()}
    own = inspect.signature(METHODS[name]).parameters
    return {k: v for k, v in found.items() if k != "epochs" or "epochs" in own or found["steps"] is None}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_builds_from_nothing_and_from_its_own_defaults(name):
    assert build_method(name, {}) == METHODS[name]()
    plain = {k: value for k, value in defaults(name).items() if isinstance(value, bool | int | float | str)}
    assert build_method(name, plain) == METHODS[name]()
    assert build_method(name, {k: str(v) for k, v in plain.items()}) == METHODS[name]()


# -- what is wrong is named ----------------------------------------------------------------------------------

KNOWN = (
    "aggregate, batch, center, cut, decay, epochs, equal, hide, inertia, lr, momentum, optimizer, privacy, select, "
    "steps, stragglers, terms, weight_decay"
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
        "select=uniform(n=1: ) is missing at the end",
    ),
    ("fedavg", {"lr.x": 1}, "lr of fedavg has no settings of its own, so 'lr.x' cannot be set"),
    (
        "fedavg",
        {"center": "momentum", "center.bet": 1},
        "unknown setting of momentum 'bet': did you mean 'beta'? Known: beta, lr",
    ),
    ("fedavg", {"cut.patterns": "x"}, "cut.patterns cannot be set from a config; set it in Python"),
    ("feddist", {"eps": 3}, "eps must be in [0, 2], got 3.0: above 2 it diverges; try 0.6"),
]


@pytest.mark.parametrize(("method", "settings_", "text"), MISTAKES, ids=[str(m[:2]) for m in MISTAKES])
def test_a_mistake_is_named(method, settings_, text):
    refused(method, settings_, text)


# -- nothing but a UsageError ever escapes ----------------------------------------------------------------------


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


def test_deep_values_are_refused_too():
    deep = 1
    for _ in range(5000):
        deep = [deep]
    for key in ("lr", "select", "terms", "optimizer", "equal"):
        with pytest.raises(UsageError):
            build_method("fedavg", {key: {"name": deep}})


# -- words that a method gives back ---------------------------------------------------------------------------

OTHER = {  # settings that are not the defaults, where a method has them
    "lr": 0.25,
    "k": 3,
    "steps": 3,
    "select": "uniform(n=7)",
    "center": "momentum(lr=0.5)",
    "first": "sgd(lr=0.5)",
    "aggregate": "trimmed-mean(beta=0.2)",
    "terms": "(prox(mu=0.5), prox(mu=0.25, implicit=true))",
    "cut": "private(conv*, 'a,b')",
    "cells": "overlap(u=3, v=1)",
    "graph": "erdos-renyi(p=0.5, seed=3)",
    "privacy": "gaussian(clip=1.0, noise=0.5)",
    "batch": "none",
    "features": "head.*,conv2.*",
    "shares": "head.*,conv2.*",
    "linkage": "average",
    "equal": True,
}


@pytest.mark.parametrize("name", METHODS)
def test_the_words_of_a_method_build_it_again(name):
    assert words_of(METHODS[name]().recipe) == ({}, [])
    said = {key: value for key, value in OTHER.items() if key in parameters(name)}
    if "first" in said and parameters(name)["first"].annotation is Select:
        said["first"] = "uniform(n=7)"
    elif parameters(name).get("first") and name != "meta":
        said["first"] = "clustered"
    if "privacy" in said and "aggregate" in said:  # noise is for means
        said["aggregate"] = "mean"
    if name == "ifca":  # whose centers are found under noise
        said |= {"first": "random", "privacy": "gaussian(clip=1.0, noise=0.5, least=2.0)"}
    method = build_method(name, said)
    again, silent = words_of(method.recipe)
    assert (again, silent) == (said, [])
    assert build_method(name, again) == method


@pytest.mark.parametrize("name", METHODS)
def test_words_of_every_default_are_those_of_its_type(name):
    plain = defaults(name)
    method = METHODS[name](**plain)
    said, silent = words_of(method.recipe)
    assert silent == [] and set(said) == set(plain)
    assert build_method(name, said) == method == METHODS[name]()


def test_a_method_knows_what_it_was_asked_for_and_equals_one_that_was_not():
    method = fedavg(lr=0.5, select=Uniform(10))
    assert method.recipe.name == "fedavg" and dict(method.recipe.arguments) == {"lr": 0.5, "select": Uniform(10)}
    by_hand = Method(method.name, method.phases, method.cut)
    assert by_hand.recipe is None and by_hand == method and repr(by_hand) == repr(method)


@pytest.mark.parametrize("name", METHODS)
def test_a_recipe_keeps_its_signature(name):
    recipe = METHODS[name]
    known = inspect.signature(recipe).parameters
    assert "select" in known and all(p.kind is not p.VAR_POSITIONAL for p in known.values())
    assert recipe.__doc__ and recipe.__name__ == name.replace("-", "_")
    assert recipe().recipe.name == name
    assert not [key for key in inspect.signature(Train).parameters if key in known and key not in parameters(name)]


def test_what_has_no_words_is_named():
    class Mine(Everyone):
        pass

    assert words_of(fedavg(lr=0.5, select=Mine()).recipe) == ({"lr": 0.5}, ["select"])
    assert words_of(dpsgd(graph=networkx.path_graph(4)).recipe) == ({}, ["graph"])
    assert words_of(fedmes(cells=[[1, 0], [0, 1]]).recipe)[1] == ["cells"]
    assert words_of(fedmes(cells="overlap(u=3)").recipe) == ({"cells": "overlap(u=3)"}, [])
    assert spell(polycentric.Overlap(3)) == "overlap(u=3)"


# -- code of the user's own --------------------------------------------------------------------------------------

MINE = '''
import torch
import polycentric as pc
from polycentric.data import Pool

def ditto(mu=1.0, select=pc.Everyone(), **training):
    """Mine."""
    return pc.Method.of("ditto", pc.Exchange((pc.Train(terms=(pc.Prox(mu),), **training),), pc.Star(), select))

def nothing():
    return None

def data():
    x = torch.arange(120.0).reshape(40, 3) % 7
    return Pool("mine", x, (x[:, 0] > 3).long(), ("n", "y"), client=torch.arange(40) % 4, clients=tuple("abcd"))

def wrong(outputs, targets):
    return outputs.argmax(-1) != targets

def smooth(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)

class Mean(torch.nn.Module):
    def forward(self, outputs, targets):
        return smooth(outputs, targets).mean()
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine_too.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("mine_too", None)


def test_a_method_of_ones_own_is_built_by_its_words(mine: Path) -> None:
    made = build_method("mine_too:ditto", {"mu": "0.5", "lr": "0.2", "select": "uniform(n=2)"})
    assert made == pc.Method.of(
        "ditto", pc.Exchange((pc.Train(lr=0.2, terms=(pc.Prox(0.5),)),), pc.Star(), pc.Uniform(2))
    )
    assert words_of(made.recipe) == ({"mu": 0.5, "lr": 0.2, "select": "uniform(n=2)"}, [])
    with pytest.raises(UsageError, match="did you mean 'mu'"):
        build_method("mine_too:ditto", {"mue": 1})
    with pytest.raises(UsageError, match="NoneType"):
        build_method("mine_too:nothing", {})


def test_own_method_data_and_metric_run_resume_and_need_consent_from_a_stranger(mine: Path) -> None:
    words = {"data": "mine_too:data", "metrics": "mine_too:wrong", "model": "logistic", "fine_tune": 0}
    done = pc.run("mine_too:ditto", words.pop("data"), rounds=1, out=mine / "begun", set={"mu": 0.1}, **words)
    assert done.metrics["micro_wrong"] == pytest.approx(1 - done.metrics["micro_accuracy"])
    further = pc.resume(mine / "begun", rounds=2)  # begun here: consent was given
    assert further.state.round == 2 and "micro_wrong" in further.history[-1]
    (mine / "begun").rename(mine / "received")
    for use in (pc.open, pc.resume):
        with pytest.raises(UsageError, match=r"mine_too:\w+.*--trust"):
            use(mine / "received")
    assert pc.open(mine / "received", trust=True).state.round == 2


def test_a_loss_of_ones_own_is_named_and_is_the_one_given(mine: Path) -> None:
    how = {"model": "logistic", "rounds": 2, "fine_tune": 0, "clients": 4}
    named = pc.run("fedavg", "digits", loss="mine_too:smooth", out=mine / "named", **how)
    given = pc.run("fedavg", "digits", loss=nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1), **how)
    assert torch.equal(named.state.centers["model"], given.state.centers["model"])
    assert named.metrics["micro_loss"] != pc.run("fedavg", "digits", **how).metrics["micro_loss"]
    assert torch.equal(pc.open(mine / "named").state.centers["model"], given.state.centers["model"])
    with pytest.raises(UsageError, match="one number for 2 examples"):
        pc.run("fedavg", "digits", loss="mine_too:Mean", **how)
    (mine / "named").rename(mine / "received")
    with pytest.raises(UsageError, match=r"mine_too:smooth.*--trust"):
        pc.open(mine / "received")


def test_a_table_notices_that_the_code_has_changed(mine: Path) -> None:
    rows = [Settings.of({"method": "mine_too:ditto", "data": "mine_too:data", "rounds": 1})]
    before = run_dir(rows[0], mine)
    assert ":" not in before.name
    (mine / "mine_too.py").write_text(MINE + "\n# another line\n")
    assert run_dir(rows[0], mine) != before


# -- epochs or steps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", sorted(name for name in METHODS if {"epochs", "steps"} <= parameters(name).keys()))
def test_epochs_and_steps_both_act_or_are_refused(method):
    def trains(**settings_):
        made = build_method(method, settings_)
        return [learner for exchange in made.exchanges for learner in exchange.learn if isinstance(learner, Train)]

    if "epochs" in inspect.signature(METHODS[method]).parameters:  # it names both itself, and means two things
        assert {(t.epochs, t.steps) for t in trains(epochs=7, steps=3)} == {(7, None), (1, 3)}
        return
    assert trains(epochs=7)[-1].epochs == 7 and trains(epochs=7)[-1].steps is None
    assert trains(epochs=7, steps="none")[-1] == trains(epochs=7)[-1]
    assert trains(steps=3)[-1].steps == 3
    refused(method, {"epochs": 7, "steps": 3},
            "epochs=7 and steps=3: clients take so many epochs or so many steps, so drop one of them")  # fmt: skip
    again, silent = words_of(build_method(method, {"epochs": 7}).recipe)
    assert (again, silent) == ({"epochs": 7}, [])  # what was asked for, and nothing else, is recorded
    assert build_method(method, again) == build_method(method, {"epochs": 7})


def test_what_nobody_sets_stays_as_the_papers_have_it():
    (exchange,) = build_method("dpsgd", {}).exchanges
    assert exchange.learn[0] == Train(steps=1)
    (exchange,) = build_method("reptile", {}).exchanges
    assert exchange.learn[0] == Train(steps=5)
