"""Nodes of a real federation: who is there, when each answered last, and why replies were left out."""

from __future__ import annotations

from typing import Any

from ...errors import UsageError
from ...runs.folder import Folder
from ..tables import TextTable
from . import parts
from .parts import Part
from .seen import Sight


def online(sight: Sight) -> Part | None:
    """A line for each node, of runs that were served."""
    found: dict[str, Part] = {}
    for group in sight.groups:
        told = _told(Folder(group.shown))
        if told:
            lines = tuple(_line(node) for node in told["nodes"])
            heads = ("node", "there", "last answer used in round", "used", "late", "refused", "spoiled or not finite")
            title = f"after round {told['round']}"
            found[group.label] = parts.table(TextTable(title, heads, lines))
    said = "Who is connected, and what became of what the server asked: late beyond the deadline, refused by the node, "
    return parts.panel("nodes", "Nodes", f"{said}or left out since it was not what it should be.", parts.by_run(found))


def _told(folder: Folder) -> dict[str, Any] | None:
    if not (folder.path / "nodes.json").is_file():
        return None
    try:
        found = folder.read_json("nodes.json")
        whole = isinstance(found["nodes"], list) and all(isinstance(node, dict) for node in found["nodes"])
        return found if whole and isinstance(found["round"], int) else None
    except (UsageError, KeyError):
        return None


def _line(node: dict[str, Any]) -> tuple[str, ...]:
    counts = node.get("counts") if isinstance(node.get("counts"), dict) else {}
    assert isinstance(counts, dict)

    def count(*names: str) -> str:
        return str(sum(n for name in names if isinstance(n := counts.get(name, 0), int)))

    last = node.get("last")
    return (
        str(node.get("name", "")),
        "yes" if node.get("online") else "no",
        "-" if last is None else str(last),
        count("used"),
        count("late"),
        count("refused", "failed"),
        count("spoiled", "not finite", "too long"),
    )
