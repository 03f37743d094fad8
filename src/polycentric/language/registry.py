"""What a kind of part may be called, and what builds it. Every room adds its own parts beside their definition:

    register(Select, "uniform", Uniform)                           --set select=uniform(n=10)
    register(Partition, "dirichlet", Dirichlet, short="alpha")     --partition dirichlet=0.5, or dirichlet(alpha=0.5)
    register(Partition, "rotations", Turned, short="k", then="deal")       after a +: iid+rotations=2

The settings of a part are the parameters of what builds it, their types are its annotations.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from ..errors import unknown

# Modules that register parts. They are above this one, so they are imported by name and only when a word is looked up
# that nobody has registered yet: `polycentric.data` alone then knows the partition `cells` too.
ROOMS = """data parts.aggregate parts.attack parts.before_rule parts.denoise parts.example_noise parts.objective
parts.optimizer parts.privacy parts.select simulate.clock stacks.stack topology topology.cells.by_cell
topology.cells.deal topology.cells.map topology.cells.shapes topology.cells.tables topology.graphs.networks""".split()


@dataclass(frozen=True, eq=False)
class Entry:
    """A name, what builds the part, and the settings it takes."""

    name: str  # in lower case
    # A class, or a function that says what it gives back; called with keywords, or with texts by their place where it
    # takes any number of them.
    build: Callable[..., Any]
    short: str = ""  # the setting meant by NAME=value
    then: str = ""  # the setting that what is before a + goes to
    about: str = ""  # what it is, in a line
    undo: Callable[[Any], tuple[str, ...] | None] | None = None  # where `build` takes any number: the texts, or None

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """All that may be set in words."""
        found = inspect.signature(self.build, eval_str=True).parameters
        return {name: parameter for name, parameter in found.items() if name != self.then}

    @cached_property
    def builds(self) -> object:
        """The class of the part."""
        if isinstance(self.build, type):
            return self.build
        return inspect.signature(self.build, eval_str=True).return_annotation


_ENTRIES: dict[object, dict[str, Entry]] = {}
_THEN: dict[object, dict[str, Entry]] = {}


def register(kind: object, name: str, build: Callable[..., Any], **how: Any) -> None:
    """Let `name` stand for a part of this kind; `how` as in `Entry`. The newest of a name counts."""
    entry = Entry(name, build, **how)
    (_THEN if entry.then else _ENTRIES).setdefault(kind, {})[name] = entry


def entries(kind: object) -> Mapping[str, Entry]:
    """What is registered so far of a kind."""
    return _ENTRIES.get(kind, {})


def additions(kind: object) -> Mapping[str, Entry]:
    """What may follow a part of this kind after a +."""
    return _THEN.get(kind, {})


def kinds() -> Mapping[object, Mapping[str, Entry]]:
    """Every part of every kind."""
    open_rooms()
    return _ENTRIES


def is_kind(wanted: object) -> bool:
    """Whether a type is a kind of part."""
    return wanted in _ENTRIES


def look_up(what: str, kind: object, name: str, then: bool = False) -> Entry:
    """The entry of a name, or the nearest known one in a refusal."""
    table = _THEN if then else _ENTRIES
    if name not in table.get(kind, {}):
        open_rooms()
    if name not in table.get(kind, {}):
        raise unknown(f"addition to {what}" if then else what, name, table.get(kind, {}))
    return table[kind][name]


def open_rooms() -> None:
    """Import every module that registers parts."""
    for room in ROOMS:
        import_module(f"{__package__.rpartition('.')[0]}.{room}")
