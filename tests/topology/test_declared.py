"""What topologies and selections declare of themselves: flags, memory, and what they show."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import polycentric as pc
from polycentric.methods import METHODS
from polycentric.stacks.cohort import View
from polycentric.topology import CellClusters, Choice, Clusters, Seeding, Splitting, TaskStar, Topology, TwoLevel

ROOT = Path(inspect.getfile(pc)).parent
ROOMS = [*(path for path in (ROOT / "topology").iterdir() if path.is_dir()), ROOT / "parts"]


def topologies(of: type = Topology) -> list[type]:
    """Every class of the package that is a topology."""
    below = [found for sub in of.__subclasses__() for found in (sub, *topologies(sub))]
    return sorted({found for found in below if found.__module__.startswith("polycentric.")}, key=lambda c: c.__name__)


# -- sums ----------------------------------------------------------------------------------------------------


def summed(topology: Topology, **more: object) -> pc.Exchange:
    names = ("model", "fisher")
    return pc.Exchange(learn=(pc.Train(),), topology=topology, receives=names, sends=names, sums=("fisher",), **more)


def test_an_exchange_that_adds_up_has_the_topology_it_was_given() -> None:
    method = pc.Method.of("made", summed(pc.Cells(pc.Overlap(1, 1))))
    assert method.exchanges[0].topology.averages
    several = pc.Method.of("made", summed(Choice(3)))
    assert several.starts(5) == 3  # every center begins from a draw of its own
    assert summed(TaskStar()).topology.n_rows(5, "task") == 5
    view = View(0, TaskStar().remembers(5), {}, None, torch.ones(5).bool(), torch.ones(5).bool(), None)
    assert summed(TaskStar()).topology.shows(view) == {"condition": 1.0}


def test_what_is_added_up_counts_one_for_everybody_who_is_heard() -> None:
    ones = torch.ones(4, dtype=torch.int64)
    cohort = pc.round.Cohort(torch.arange(4), ones * 7, ones.double(), 4, 0, 0)
    exchange = summed(pc.Cells(torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1]]), bridge=3.0))
    memory = exchange.topology.remembers(4)
    up = exchange.up(memory, cohort, "fisher")
    assert up.rest == "none" and up.to_dense().tolist() == [[1, 1, 1, 0], [0, 0, 1, 1]]
    assert torch.equal(
        exchange.up(memory, cohort, "model").to_dense(), exchange.topology.up(memory, cohort, "model").to_dense()
    )


def test_only_what_is_sent_can_be_added_up() -> None:
    with pytest.raises(pc.UsageError, match="fisher cannot be added up: only names that are sent can, model"):
        pc.Exchange(learn=(pc.Train(),), sums=("fisher",))


def test_sums_are_refused_beside_privacy_for_what_is_bare_and_for_nothing_else() -> None:
    with pytest.raises(pc.UsageError, match="Gaussian protects model, but fisher would leave the clients unprotected"):
        summed(pc.Star(), privacy=pc.Gaussian(1.0, 1.0))
    pc.Exchange(learn=(pc.Train(),), sums=("model",), privacy=pc.Gaussian(1.0, 1.0))  # its reach is known: one client


# -- flags ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", topologies(), ids=lambda c: c.__name__)
def test_who_looks_at_what_was_sent_says_so(topology: type) -> None:
    reads = any(
        isinstance(node, ast.Name) and node.id == "sent" and isinstance(node.ctx, ast.Load)
        for cls in topology.__mro__
        if "place" in vars(cls) and cls is not Topology
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(vars(cls)["place"]))))
    )
    assert topology.reads_updates or not reads, f"{topology.__name__}.place looks at `sent`: say reads_updates = True"


def test_no_class_stands_around_a_topology() -> None:
    for topology in topologies():
        for name, kind in getattr(topology, "__annotations__", {}).items():
            assert "Topology" not in str(kind) and str(kind) not in {c.__name__ for c in topologies()}, (topology, name)


@pytest.mark.parametrize("rule", [pc.Mean(), pc.Median(), pc.TrimmedMean(), pc.Krum(), pc.GeometricMedian()], ids=repr)
def test_a_rule_says_whether_it_is_a_sum(rule: object) -> None:
    assert rule.linear == isinstance(rule, pc.Mean)  # type: ignore[attr-defined]


# -- memory --------------------------------------------------------------------------------------------------


def _keys(tree: ast.AST) -> Iterator[str]:
    """Keys by which a memory is read: memory["key"], view.before["key"], memory.get("key"), "key" in memory."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and _is_memory(node.value):
            yield from _texts(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_memory(node.func.value):
            yield from (key for word in node.args[:1] for key in _texts(word))
        elif isinstance(node, ast.Compare) and any(_is_memory(right) for right in node.comparators):
            yield from _texts(node.left)


def _is_memory(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in ("memory", "before")


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _declared(tree: ast.AST) -> Iterator[str]:
    """Every word in a `remembers`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "remembers":
            yield from (n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


@pytest.mark.parametrize("room", ROOMS, ids=lambda path: path.name)
def test_what_is_read_of_the_memory_is_declared_in_the_same_room(room: Path) -> None:
    trees = [ast.parse(path.read_text("utf-8")) for path in sorted(room.glob("*.py"))]
    assert {key for tree in trees for key in _keys(tree)} <= {key for tree in trees for key in _declared(tree)}


def test_only_the_parts_read_the_memory_by_name() -> None:
    inside = {*(ROOT / "topology").rglob("*.py"), *(ROOT / "parts").glob("*.py")}
    apart = {ROOT / "reproduce", ROOT / "report"}  # they read files that finished runs left behind
    for path in sorted(ROOT.rglob("*.py")):
        if path not in inside and not apart & set(path.parents):
            assert not list(_keys(ast.parse(path.read_text("utf-8")))), path


@pytest.mark.parametrize("name", METHODS)
def test_parts_of_a_method_that_remember_one_name_are_of_one_room(name: str) -> None:
    rooms: dict[str, set[str]] = {}
    for exchange in METHODS[name]().exchanges:
        like = torch.zeros(1, 4)
        layout = pc.stacks.stack.Layout(("head.weight",), ((4,),))
        fitted = exchange.fitted(layout, like, 90)
        for part in (fitted.topology, fitted.select):
            for key in part.remembers(90):
                rooms.setdefault(key, set()).add(type(part).__module__.rpartition(".")[0])
    assert all(len(owners) == 1 for owners in rooms.values()), rooms


# -- what is shown -------------------------------------------------------------------------------------------


def view(memory: dict[str, Tensor], before: dict[str, Tensor] | None = None, round: int = 1, **more: object) -> View:
    n = len(memory["assignment"])
    every = torch.ones(n, dtype=torch.bool)
    return View(**{"round": round, "memory": memory, "centers": {}, "before": before, "trains": every, "honest": every,
                   "group": None} | more)  # type: ignore[arg-type]  # fmt: skip


def test_clusters_show_their_sizes_and_who_moved() -> None:
    topology = Clusters(3)
    began = topology.remembers(6) | {"placed": torch.ones(6, dtype=torch.bool)}
    memory = began | {"assignment": torch.tensor([0, 1, 1, 1, 1, 1]), "distance": torch.arange(6).double()}
    assert topology.shows(view(memory, began)) == {
        "clusters": 2.0, "largest_cluster": 5.0, "moves": 0.0, "reassigned": 3.0, "intra_cluster": 2.5,
    }  # fmt: skip
    assert "reassigned" not in topology.shows(view(memory))  # the run is over
    only = topology.shows(view(memory, began, trains=torch.arange(6) < 2))
    assert only["largest_cluster"] == 1 and only["reassigned"] == 0
    assert topology.assignment(memory) is memory["assignment"]


def test_honest_clients_at_a_center_of_attackers_are_counted() -> None:
    memory = Clusters(3).remembers(6) | {"assignment": torch.tensor([0, 0, 0, 1, 1, 2])}
    honest = torch.tensor([True, True, False, True, True, False])
    assert Clusters(3).shows(view(memory, honest=honest))["among_attackers"] == 2
    assert "among_attackers" not in Clusters(3).shows(view(memory))


def test_known_groups_are_compared_with_those_of_the_honest() -> None:
    memory = Splitting().remembers(4) | {"assignment": torch.tensor([1, 1, 2, 1])}
    group, honest = torch.tensor([0, 0, 1, 1]), torch.tensor([True, True, True, False])
    assert Splitting().shows(view(memory, group=group, honest=honest))["ari"] == 1
    assert Splitting().shows(view(memory, group=group))["ari"] < 1
    assert "ari" not in Splitting().shows(view(memory, round=0, group=group))


def test_values_age_until_a_client_comes_again() -> None:
    select = pc.Stragglers(pc.Active(2), 0.5)
    memory = select.remembers(3) | {"assignment": torch.zeros(3)}
    assert select.shows(view(memory)) == {}
    memory["value_round"] = torch.tensor([4, -1, 1])
    assert select.shows(view(memory, round=6)) == {"value_age": 2.5}
    assert pc.Uniform(n=2).shows(view(memory)) == {}


def test_edges_that_heard_nobody_have_not_learned() -> None:
    for topology in (pc.Cells(pc.Overlap(1, 1)), TwoLevel(pc.Overlap(1, 1))):
        assert topology.learned(topology.remembers(6)).tolist() == [False] * 3  # type: ignore[union-attr]
    several = CellClusters(pc.Overlap(1, 1), k=2)
    assert several.learned(several.remembers(6)) is None and pc.Star().learned({}) is None


def test_splits_are_left_behind_where_there_were_any() -> None:
    memory = Splitting().remembers(3)
    assert Splitting().tables(memory) == {} == Seeding(2).tables({})
    memory |= {"splits": torch.tensor([[4, 0]]), "split_alike": torch.zeros(1, 3, 3)}
    kept = Splitting().tables(memory)["splits.safetensors"]
    assert set(kept) == {"splits", "split_alike", "parent", "assignment"}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_in_words_who_averages_with_whom(name: str) -> None:
    for exchange in METHODS[name]().exchanges:
        said = exchange.words(16)
        assert said != type(exchange.topology).__name__ and len(said.split()) > 4
