"""The language of parts: one meaning everywhere, one style of refusal, and parts that say their own words."""

import dataclasses
import inspect
import subprocess
import sys
import types
import typing
from typing import Any, Literal

import networkx
import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings, strategies as st

import polycentric as pc
from fuzz import FUZZ, only_mistakes, pieces
from polycentric.data import Pool, Sampled, Skewed, Turned, find, parse
from polycentric.data.dealing import Partition
from polycentric.errors import UsageError
from polycentric.language import NoWords, entries, files_of, kinds, part_of, register, spell, value_of
from polycentric.language.registry import _THEN
from polycentric.language.words import DEEPEST, Call, chain, read, split
from polycentric.parts.optimizer import Center
from polycentric.parts.privacy import NoPrivacy
from polycentric.parts.select import Select
from polycentric.simulate.clock import Clock
from polycentric.stacks.stack import WHOLE, Cut
from polycentric.topology.cells.coverage import Geometry
from polycentric.topology.cells.shapes import Attached
from polycentric.topology.cells.tables import geometry
from polycentric.topology.graphs.networks import MATCHA_8, Network

# -- how it is written ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("ring", Call("ring")),
        (" Uniform( n = 10 ) ", Call("uniform", (("n", "10"),))),
        ("by-cell(2, of=active(n=1, weigh=yes))", Call("by-cell", (("", "2"), ("of", "active(n=1, weigh=yes)")))),
        ("matcha-8", Call("matcha-8")),
        ("dirichlet = 0.5", Call("dirichlet", (("", "0.5"),), True)),
        ("table('a, (b).csv')", Call("table", (("", "'a, (b).csv'"),))),
        ("table(o'brien (1).csv)", Call("table", (("", "o'brien (1).csv"),))),
        ("(1e9, 2e9,)", Call("", (("", "1e9"), ("", "2e9")))),
        ("[1, 2]", Call("", (("", "1"), ("", "2")))),
        ("0.5", None),
        ("(1), (2)", None),
        ("a(b)c", None),
        ("", None),
    ],
)
def test_a_text_is_read_as_a_call(text, call):
    assert read("key", text) == call


def test_commas_and_plus_signs_count_at_the_outermost_level():
    assert split("key", "a(1, 2), 'b, c', [3, 4],") == ["a(1, 2)", "'b, c'", "[3, 4]"]
    assert chain("key", "dirichlet=1e+3 + rotations=2+sample=10") == ["dirichlet=1e+3", "rotations=2", "sample=10"]
    assert chain("key", "cells(cells=regions(0:10 0+1:5))+rotations") == [
        "cells(cells=regions(0:10 0+1:5))",
        "rotations",
    ]


# -- what it means, everywhere the same ----------------------------------------------------------------------


@pytest.mark.parametrize("yes", ["yes", "true", "True", "1", "YES"])
def test_what_is_true_of_cells_is_true_of_cells_in_a_partition(yes):
    wanted = pc.CellMap(nearest=True)
    assert geometry(f"map(nearest={yes})") == wanted
    assert value_of("cells", f"map(nearest={yes})", Geometry) == wanted
    assert parse(f"cells(setting=c, cells=map(nearest={yes}))") == pc.InCells(None, "c", wanted)
    assert parse(f"cells(two_per_cell={yes})") == pc.InCells(two_per_cell=True)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("natural", pc.Natural()),
        ("iid", pc.Iid()),
        ("iid(7)", pc.Iid(7)),
        ("dirichlet=0.1", pc.Dirichlet(alpha=0.1)),
        ("dirichlet=1e+3", pc.Dirichlet(alpha=1000.0)),
        ("dirichlet(alpha=0.5)", pc.Dirichlet()),
        ("dirichlet(clients=20, alpha=0.5)", pc.Dirichlet(20, 0.5)),
        ("dirichlet(20, 0.5, at_least=3)", pc.Dirichlet(20, 0.5, 3)),
        ("shards=3", pc.Shards(100, 3)),
        ("classes=3", pc.Classes(100, 3)),
        ("classes(spread=0)", pc.Classes(spread=0.0)),
        ("quantity=1.25", pc.Quantity(skew=1.25)),
        ("skewed=10", Skewed(ratio=10.0)),
        ("rotations=8", pc.Rotations(8, 40)),
        ("rotations(k=4)", pc.Rotations()),
        ("iid+rotations=2+sample=600", Sampled(Turned(pc.Iid(), 2), 600)),
        ("iid(7)+rotations(k=2)+sample(examples=600)", Sampled(Turned(pc.Iid(7), 2), 600)),
        ("dirichlet=1.0+sample=100+rotations", Turned(Sampled(pc.Dirichlet(100, 1.0), 100), 2)),
        ("cells", pc.InCells()),
        ("cells=b", pc.InCells(None, "b")),
        ("cells=B", pc.InCells(None, "b")),
        ("cells(b)", pc.InCells(None, "b")),
        ("cells(setting=c,u=20,v=11)", pc.InCells(None, "c", pc.Overlap(20, 11))),
        ("cells(setting=c, cells=ring(edges=4, u=3, v=2))", pc.InCells(None, "c", pc.RingCells(4, 3, 2))),
        ("cells(setting=c,u=30,v=0,two_per_cell=true)", pc.InCells(None, "c", pc.Overlap(30, 0), two_per_cell=True)),
        ("cells(setting=c,mixed=false)", pc.InCells(None, "c", mixed=False)),
        ("cells(setting=b,per_client=3)", pc.InCells(None, "b", per_client=3)),
        ("cells(cells=regions(0:10 0+1:5))+rotations=2", Turned(pc.InCells(cells=pc.CellRegions("0:10 0+1:5")), 2)),
    ],
)
def test_a_partition_from_words(text, wanted):
    assert parse(text) == wanted
    assert parse(spell(wanted)) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("overlap", pc.Overlap()),
        ("overlap(0, 30)", pc.Overlap(0, 30)),
        ("overlap(u=10, v=10, w=30)", pc.Overlap(10, 10, 30)),
        ("ring(edges=5)", pc.RingCells(5)),
        ("regions(0:10 0+1:5)", pc.CellRegions("0:10 0+1:5")),
        ("regions('0:10 0+1:5')", pc.CellRegions("0:10 0+1:5")),
        ("map(edges=4, radius=0.5, nearest=true)", pc.CellMap(4, 0.5, True)),
        ("map(radius=none, seed=3)", pc.CellMap(seed=3)),
    ],
)
def test_cells_from_words(text, wanted):
    assert geometry(text) == wanted
    assert geometry(spell(wanted)) == wanted


@pytest.mark.parametrize(
    ("text", "metres"),
    [("2e3", 2e3), ("(1e3, 2e3)", (1e3, 2e3)), ("[1e3]", (1e3,)), ("((1, 2), (3, 4))", ((1.0, 2.0), (3.0, 4.0)))],
)
def test_a_clock_takes_one_number_or_many(text, metres):
    assert part_of("clock", f"physical(distance={text}, deadline=3)", Clock).distance == metres


@pytest.mark.parametrize(
    "text",
    ["synthetic(0.5,0.25,clients=3)", "synthetic(0.5, beta=0.25, clients=3)", "synthetic(beta = .25,clients=3 )"],
)
def test_data_from_words(text):
    pool = find(text)
    assert pool.name == "synthetic(0.5,0.25)" and len(pool.clients) == 3


def test_clients_beside_a_partition_count_unless_it_says_them():
    assert parse("dirichlet=0.1", 20) == parse("dirichlet(alpha=0.1)", 20) == pc.Dirichlet(20, 0.1)
    assert parse("dirichlet(clients=20)", 20) == parse("dirichlet(20)") == pc.Dirichlet(20)
    assert parse("iid+rotations=2", 10) == Turned(pc.Iid(10), 2)
    assert parse("cells=c", 10).clients == 10
    assert parse("iid(7)", otherwise=40) == pc.Iid(7) and parse("iid", otherwise=40) == pc.Iid(40)
    with pytest.raises(UsageError, match=r"^partition 'iid\(7\)' is for 7 clients, but clients is 8; leave one of"):
        parse("iid(7)", 8)
    assert pc.load("digits", "iid(7)").n_clients == 7


def test_data_alone_know_the_partition_that_cells_register():
    program = (
        "import sys; import polycentric.data as data; assert not any('topology' in name for name in sys.modules);"
        "data.load('digits', 'iid'); assert not any('topology' in name for name in sys.modules);"
        "print(data.load('digits', 'cells=c', clients=9).n_clients)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.stdout == "9\n", ended.stderr


def test_help_does_not_wait_for_torch():
    program = "import sys, polycentric.cli as c; c.outcome(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120).returncode == 0


# -- what is wrong is said in one style ----------------------------------------------------------------------

SHAPES = "map, overlap, regions, ring, table"
IN_CELLS = "cells, clients, mixed, per_client, setting, two_per_cell, u, v, w"
SELECTS = "active, by-cell, churn, everyone, poisson, uniform"
PARTITIONS = "cells, classes, dirichlet, iid, natural, quantity, rotations, shards, skewed"
MISTAKES = [
    ("partition", "dirichlett=0.5", f"unknown partition 'dirichlett': did you mean 'dirichlet'? Known: {PARTITIONS}"),
    ("partition", "", f"unknown partition '': Known: {PARTITIONS}"),
    ("partition", "3", f"partition must be one of {PARTITIONS}, got '3'"),
    ("partition", "iid+", f"partition must be one of {PARTITIONS}, got 'iid+'"),
    ("partition", "dirichlet=many", "partition.alpha must be a number, got 'many'"),
    ("partition", "dirichlet(alpha=many)", "partition.alpha must be a number, got 'many'"),
    ("partition", "dirichlet=-1", "Dirichlet.alpha must be a number from 1e-06 to 1e+09, got -1.0"),
    (
        "partition",
        "dirichlet(alpah=1)",
        "unknown setting of dirichlet 'alpah': did you mean 'alpha'? Known: alpha, at_least, clients",
    ),
    ("partition", "shards=1.5", "partition.per_client must be a whole number, got '1.5'"),
    ("partition", "shards=0", "Shards.per_client must be a whole number of at least 1, got 0"),
    ("partition", "iid=3", "iid takes no value after =, got '3'; write partition=iid(clients=...)"),
    ("partition", "rotations=41", "Rotations.k must be at most the number of clients (40) and 360, got 41"),
    (
        "partition",
        "iid+rotate=2",
        "unknown addition to partition 'rotate': did you mean 'rotations'? Known: rotations, sample",
    ),
    ("partition", "iid+rotations=x", "partition.k must be a whole number, got 'x'"),
    ("partition", "iid+sample", "sample needs examples: write partition=sample(examples=...)"),
    ("partition", "cells=d", "unknown partition.setting 'd': Known: a, b, c"),
    ("partition", "cells(x=1)", f"unknown setting of cells 'x': Known: {IN_CELLS}"),
    ("partition", "cells(u=1,cells=ring)", "partition cells takes cells=... or u, v, w, not both"),
    ("partition", "cells(cells=rin)", f"unknown partition.cells 'rin': did you mean 'ring'? Known: {SHAPES}"),
    ("partition", "cells(mixed=perhaps)", "partition.mixed must be true or false, got 'perhaps'"),
    ("partition", "cells(per_client=x)", "partition.per_client must be a whole number, got 'x'"),
    ("partition", "cells(setting=c", "partition=cells(setting=c: ) is missing at the end"),
    ("cells", "overlapp", f"unknown cells 'overlapp': did you mean 'overlap'? Known: {SHAPES}"),
    ("cells", "overlap(20, 10, 0, 7)", "overlap takes u, v, w, and '7' is one too many"),
    (
        "cells",
        "regions(0:10, 1:20)",
        "regions takes sizes, and '1:20' is one too many; a text with commas goes between quotation marks",
    ),
    ("cells", "overlap(20, u=3)", "overlap is given u twice in cells"),
    ("cells", "overlap(x=1)", "unknown setting of overlap 'x': Known: u, v, w"),
    ("cells", "overlap(u=a)", "cells.u must be a whole number, got 'a'"),
    ("cells", "overlap(u=99999999999999)", "cells.u must be at most 1,099,511,627,776, got 99999999999999"),
    ("cells", "table", "table needs path: write cells=table(path=...)"),
    ("cells", "map(nearest=perhaps)", "cells.nearest must be true or false, got 'perhaps'"),
    ("cells", "overlap(u=1))", "cells=overlap(u=1)): ')' closes nothing"),
    ("cells", "overlap('u", "cells=overlap('u: ' is missing at the end"),
    ("select", "uniform=3", "uniform takes no value after =, got '3'; write select=uniform(n=...)"),
    ("select", "everyone(3)", "everyone has no settings, got '3'; write select=everyone"),
    ("select", "by-cell(n=1, of=activ)", f"unknown select.of 'activ': did you mean 'active'? Known: {SELECTS}"),
    ("select", "by-cell(n=1, of=active)", "active needs n: write select.of=active(n=...)"),
    ("data", "synthetic(0.5, 0.5, 3, 4, 5)", "synthetic takes alpha, beta, clients, seed, and '5' is one too many"),
    ("data", "synthetic(clients=4.5)", "data.clients must be a whole number, got '4.5'"),
    ("data", "features()", "features needs source: write data=features(source=...)"),
    ("clock", "physical(frequency=(1, x))", "clock.frequency must be a number, got 'x'"),
    ("clock", "physical(distance=((1), (1, 2)))", "clock=physical: expected sequence of length 1 at dim 1 (got 2)"),
    ("clock", "physical(frequency=fast)", "clock.frequency must be a number, got 'fast'"),
]
READERS = {
    "partition": parse,
    "cells": geometry,
    "select": lambda text: value_of("select", text, Select),
    "data": find,
    "clock": lambda text: value_of("clock", text, Clock),
}


@pytest.mark.parametrize(("key", "text", "message"), MISTAKES, ids=[f"{key}={text}" for key, text, _ in MISTAKES])
def test_a_mistake_is_named(key, text, message):
    with pytest.raises(UsageError) as wrong:
        READERS[key](text)
    assert str(wrong.value) == message


@FUZZ
@given(st.sampled_from(sorted(READERS)), st.one_of(st.text(max_size=12), pieces))
@example("select", "by-cell(n=1, of=" * 3000 + "everyone" + ")" * 3000)
@example("clock", "physical(frequency=" + "(" * 5000 + ")" * 5000 + ")")
def test_words_are_built_or_refused(key, text):
    only_mistakes(READERS[key], text)


# -- parts say their own words -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (pc.Uniform(n=10), "uniform(n=10)"),
        (pc.Overlap(20, 12), "overlap(v=12)"),
        (pc.Overlap(), "overlap"),
        (pc.ByCell(2, of=pc.Active(1, weigh=True)), "by-cell(n=2, of=active(n=1, weigh=true))"),
        (pc.KeepPrivate("conv*", "head.*"), "private(conv*, head.*)"),
        (WHOLE, "whole"),
        (NoPrivacy(), "none"),
        (MATCHA_8, "matcha-8"),
        (pc.Dirichlet(alpha=0.1), "dirichlet=0.1"),
        (pc.Dirichlet(20, 0.1), "dirichlet(clients=20, alpha=0.1)"),
        (Sampled(Turned(pc.Iid(10), 4), 600), "iid(clients=10)+rotations=4+sample=600"),
        (pc.Physical(frequency=(1e9, 2e9)), "physical(frequency=(1000000000.0, 2000000000.0))"),
        ((pc.Prox(0.1), pc.Prox(2.0, True)), "(prox(mu=0.1), prox(mu=2.0, implicit=true))"),
        ((), "()"),
        (None, "none"),
        (True, "true"),
        (3, "3"),
        (0.1, "0.1"),
        ("head.*,conv2.*", "head.*,conv2.*"),
    ],
)
def test_a_part_says_its_words(part, words):
    assert spell(part) == words


def drawn(wanted: Any) -> st.SearchStrategy[Any]:
    """Values of a setting's type."""
    options = typing.get_args(wanted) if typing.get_origin(wanted) in (typing.Union, types.UnionType) else (wanted,)
    several = []
    for option in options:
        if option is type(None):
            several.append(st.none())
        elif option is bool:
            several.append(st.booleans())
        elif option is int:
            several.append(st.integers(0, 12))
        elif option is float:
            several.append(st.floats(0.01, 3) | st.sampled_from([0.0, 1.0, 1e-9]))
        elif option is str:
            several.append(st.text("ab.*+:0 ,='\"()none", max_size=6) | st.just("0:3 0+1:2"))
        elif typing.get_origin(option) is Literal:
            several.append(st.sampled_from(typing.get_args(option)))
        elif typing.get_origin(option) is tuple:
            several.append(st.lists(drawn(typing.get_args(option)[0]), min_size=1, max_size=3).map(tuple))
        else:
            several.append(st.deferred(lambda kind=option: parts_of(kind)))
    return st.one_of(several)


def parts_of(kind: object) -> st.SearchStrategy[Any]:
    return st.one_of([part_from(entry) for name, entry in kinds()[kind].items() if name not in ("table", "file")])


def part_from(entry: Any) -> st.SearchStrategy[Any]:
    """Parts with some settings drawn; what the part itself refuses is not drawn."""
    if any(p.kind is p.VAR_POSITIONAL for p in entry.parameters.values()):
        return st.lists(drawn(str), min_size=1, max_size=3).map(lambda texts: entry.build(*texts))

    @st.composite
    def part(draw):
        given = {}
        for name, parameter in entry.parameters.items():
            if name in ("places", "trace", "u", "v", "w") and entry.name in ("map", "cells"):
                continue  # files; and words for other words
            if parameter.default is inspect.Parameter.empty or draw(st.booleans()):
                given[name] = draw(drawn(parameter.annotation))
        try:
            return entry.build(**given)
        except (ValueError, OverflowError):
            assume(False)

    return part()


EVERY = [(kind, name) for kind, table in kinds().items() for name in table if kind is not Pool]


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=[name for _, name in EVERY])
@settings(max_examples=20, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_words_and_parts_are_the_same(kind, name, data, tmp_path_factory):
    if name in ("table", "file"):
        path = tmp_path_factory.mktemp("files") / "some, (1) file.csv"
        path.write_text("0,1\n" if name == "file" else "1,0\n1,1\n")
        part = entries(kind)[name].build(str(path))
    else:
        part = data.draw(part_from(entries(kind)[name]))
    try:
        words = spell(part)
    except NoWords:
        assume(any("'" in text and '"' in text for text in map(str, dataclasses.astuple(part))))
        return
    assume(words.count("(") <= DEEPEST)  # beyond it words are refused, and augments nest without end
    assert value_of("part", words, kind) == part
    assert spell(value_of("part", words, kind)) == words


@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_additions_are_said_after_a_plus(data):
    part = data.draw(parts_of(Partition))
    for _ in range(data.draw(st.integers(0, 2))):
        entry = data.draw(st.sampled_from(sorted(_THEN[Partition].values(), key=lambda entry: entry.name)))
        part = entry.build(part, data.draw(st.integers(1, 300)))
    try:
        words = spell(part)
    except NoWords:
        assume(False)
    assert parse(words) == part


@pytest.mark.parametrize(
    "part",
    [
        Attached(pc.Overlap()),
        pc.Edges(((0, 1),), 2),
        pc.Edges.of_graph(networkx.path_graph(3)),
        geometry(torch.eye(2)),
        pc.Stragglers(pc.Everyone(), 0.5),
        object(),
        Cut({"mine": ("conv*",)}),
        pc.KeepPrivate("'\""),
        pc.Uniform(1 << 50),
        Turned(object(), 2),
    ],
    ids=lambda part: type(part).__name__,
)
def test_what_has_no_words_says_so(part):
    with pytest.raises(NoWords):
        spell(part)


def test_a_part_of_your_own_is_registered_in_one_place():
    @dataclasses.dataclass(frozen=True)
    class Half(pc.SGD):
        lr: float = 0.5

    register(Center, "half", Half)
    assert value_of("center", "half(lr=0.25)", Center) == Half(0.25)
    assert spell(Half(0.25)) == "half(lr=0.25)" and spell(Half()) == "half"
    del kinds()[Center]["half"]


# -- files ---------------------------------------------------------------------------------------------------


def test_parts_and_methods_say_which_files_they_are_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cells.csv").write_text("1,0\n1,1\n0,1\n")
    (tmp_path / "places.csv").write_text("kind,x,y,radius\nedge,0.5,0.5,1\n")
    (tmp_path / "trace.csv").write_text("round,client,x,y\n0,0,0.5,0.5\n")
    (tmp_path / "graph.txt").write_text("0 1\n1 2\n")
    table = geometry("table(cells.csv)")
    assert table.files == ("cells.csv",) and spell(table) == "table(path=cells.csv)"
    assert geometry("map(places=places.csv, trace=trace.csv)").files == ("places.csv", "trace.csv")
    graph = value_of("graph", "file(graph.txt)", Network)
    assert graph.files == ("graph.txt",) and spell(graph) == "file(path=graph.txt)"
    assert graph == pc.Edges(graph.pairs, graph.n) and pc.Edges(graph.pairs, graph.n).files == ()
    assert files_of(pc.fedmes(cells=table)) == files_of(pc.hierarchical(cells=table)) == ("cells.csv",)
    assert files_of(pc.fedmes(cells=table, models=2)) == ("cells.csv",)
    assert files_of(pc.fedmes(select=pc.ByCell(1, cells=table))) == ("cells.csv",)
    for method in (pc.dpsgd, pc.matcha, pc.dpa_sgd):
        assert files_of(method(graph=graph)) == ("graph.txt",)
    assert files_of(parse("cells(cells=table(cells.csv))+sample=10")) == ("cells.csv",)
    assert files_of([pc.fedavg(), pc.Overlap(), None, 3]) == ()
