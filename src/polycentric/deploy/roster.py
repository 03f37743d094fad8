"""Who takes part: what nodes tell of themselves before a run, and the federation that a center makes of it.

    hello   center -> node     who are you
    here    node -> center     how many examples, of which shape, which classes; what a fixed training comes to

No example travels, and nothing is computed from them but their number. Nodes must have examples of the same shape and
meaning; each may lack some classes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from .. import __version__
from ..data import Federation
from ..data.outline import from_outline, outline
from ..errors import UsageError, require
from .arithmetic import fixed_training
from .letters import FACTS, Spoiled, facts_of, fits, most_bytes, packed, shapes_of, unpacked

MOST_THREADS = 64
_ALIKE = {
    "x": "examples of type and shape",
    "y": "targets of type and shape",
    "symbols": "an alphabet of size",
    "targets": "numbers to predict",
    "columns": "columns",
    "inputs": "inputs",
    "protected": "values of the protected attribute:",
}


class Hello(BaseModel):
    """Asks a node who it is."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["hello"] = "hello"
    version: Literal[1] = 1


class Sizes(BaseModel):
    """Examples of one client."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    train: int = Field(ge=0, lt=1 << 40)
    valid: int = Field(ge=0, lt=1 << 40)
    test: int = Field(ge=0, lt=1 << 40)


class Here(BaseModel):
    """What a node tells of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[1] = 1
    library: str = Field(max_length=64)  # version of this package
    torch: str = Field(max_length=64)
    threads: int = Field(ge=1, le=1 << 16)  # of its mathematics: sums depend on them
    name: str = Field(max_length=200)  # as it calls itself: believed only where nodes have no keys
    seconds: float = Field(ge=0, allow_inf_nan=False)  # its clock
    data: str = Field(max_length=500)
    sizes: Sizes
    x: list[Any] = Field(min_length=2, max_length=2)
    y: list[Any] = Field(min_length=2, max_length=2)
    classes: list[str] = Field(max_length=1 << 16)
    targets: list[str] = Field(max_length=1 << 16)
    columns: list[str] = Field(max_length=1 << 16)
    inputs: list[Any] = Field(max_length=1 << 10)
    symbols: int = Field(ge=0, lt=1 << 31)
    protected: int = Field(ge=0, lt=1 << 31)


@dataclass(frozen=True, eq=False)
class Present:
    """A node that has said who it is."""

    facts: Here
    trained: Tensor  # (1, width) what the fixed training came to there


def digest_of_training(trained: Tensor) -> str:
    """A fixed training in a few letters."""
    return hashlib.sha256(trained.numpy().tobytes()).hexdigest()[:16]


def about(federation: Federation, name: str, seconds: float) -> bytes:
    """What a node with the data of one client tells of itself."""
    told = outline(federation)
    same = {key: told[key] for key in ("x", "y", "classes", "targets", "columns", "inputs", "symbols", "protected")}
    sizes = Sizes(**{part: int(sum(each)) for part, each in told["sizes"].items()})
    here = Here(
        library=str(__version__),
        torch=str(torch.__version__),
        threads=torch.get_num_threads(),
        name=name,
        seconds=seconds,
        data=federation.name,
        sizes=sizes,
        **same,
    )
    return packed(here, {"trained": fixed_training()})


def presented(data: bytes) -> Present:
    """What a node told, checked."""
    mine = {"trained": fixed_training()}
    facts, tensors = unpacked(data, Here, most_bytes(shapes_of(mine)) + FACTS)
    if not fits(tensors, shapes_of(mine)) or not bool(tensors["trained"].isfinite().all()):
        raise Spoiled("another fixed training")
    return Present(facts, tensors["trained"])


def is_here(data: bytes) -> bool:
    """Whether bytes are what a node tells of itself, as far as its facts go."""
    try:
        facts_of(data, Here)
    except Spoiled:
        return False
    return True


def federation_of(nodes: Mapping[str, Present | None]) -> Federation:
    """The federation of named nodes, without its examples; None: one that has not come yet, of which nothing is known.

    Classes are those of all nodes together. What else differs between nodes is refused, and said of whom.
    """
    there = {name: node.facts for name, node in nodes.items() if node is not None}
    require(bool(there), "no node is there: start `polycentric join` at one of them")
    first, leader = next(iter(there.items()))
    for name, facts in there.items():
        for key, what in _ALIKE.items():
            mine, theirs = getattr(leader, key), getattr(facts, key)
            if (_form(mine) != _form(theirs)) if key == "y" else (mine != theirs):
                raise UsageError(
                    f"nodes have different data: {first} has {what} {_short(mine)}, {name} {_short(theirs)}: bring "
                    "them into one form, such as the same columns in the same order"
                )
        require(
            bool(leader.classes) == bool(facts.classes),
            f"nodes have different data: one of {first} and {name} has classes, the other numbers to predict",
        )
    classes = _together([facts.classes for facts in there.values()])
    absent = Sizes(train=0, valid=0, test=0)
    sizes = [there[name].sizes if name in there else absent for name in nodes]
    told: dict[str, Any] = {key: getattr(leader, key) for key in _ALIKE}
    told["y"] = max((facts.y for facts in there.values()), key=lambda y: y[1])  # of the node with most boxes an image
    told |= {
        "name": leader.data if len({facts.data for facts in there.values()}) == 1 else "federation",
        "note": "",
        "recipe": None,  # how tables became numbers tells of the examples, such as their medians
        "classes": classes,
        "clients": list(nodes),
        "group_names": [],
        "scaling": None,
        "group": None,
        "sizes": {part: [getattr(each, part) for each in sizes] for part in ("train", "valid", "test")},
    }
    told["fingerprint"] = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
    return from_outline(told, "what the nodes told")


def distances(nodes: Mapping[str, Present | None]) -> dict[str, float]:
    """How far every node's fixed training ended from ours with as many threads: 0 where bits are the same."""
    found: dict[str, float] = {}
    before = torch.get_num_threads()
    try:
        for name, node in nodes.items():
            if node is not None:
                torch.set_num_threads(min(node.facts.threads, MOST_THREADS))
                found[name] = float((node.trained - fixed_training()).abs().max())
    finally:
        torch.set_num_threads(before)
    return found


def _together(lists: Sequence[Sequence[str]]) -> list[str]:
    """All classes that somebody has: in their order where they are the same, else sorted, numbers by value."""
    if all(list(each) == list(lists[0]) for each in lists):
        return list(lists[0])
    every = {name for each in lists for name in each}
    return sorted(every, key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name))


def _form(y: list[Any]) -> list[Any]:
    """Type and shape of targets; how many boxes an image has at most may differ from node to node."""
    return [y[0], y[1][1:] if len(y[1]) == 2 else y[1], len(y[1])]


def _short(value: Any) -> str:
    text = json.dumps(value) if not isinstance(value, str) else value
    return text if len(text) <= 120 else f"{text[:117]}..."
