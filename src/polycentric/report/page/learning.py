"""How learning went: curves, the privacy spent, updates that were lost, and what moved over the links."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ...errors import UsageError
from ..curves import AXES, Line, lines_of, unit_of
from ..tables import bytes_
from . import parts
from .parts import Part
from .seen import Sight

MOST_POINTS = 300  # of a curve
MOST_METRICS = 14
OVER: tuple[Literal["rounds", "seconds", "bytes"], ...] = ("rounds", "seconds", "bytes")
LEFT_OUT = {
    "dropped": "updates were not finite",
    "late": "updates missed the deadline",
    "attackers": "clients were simulated attackers",
}
NO_SCORES = ("round", "clients", "dropped", "bytes_up", "bytes_down", "simulated_seconds", "clients_without_examples")


def curves(sight: Sight) -> Part | None:
    """Learning curves of every metric over rounds, simulated seconds and bytes, with bands over seeds."""
    metrics = _metrics(sight)
    if not metrics:
        return None
    found, over = dict[str, Part](), list[str]()
    for what in OVER:
        try:
            for j, chart in enumerate(_charts(sight, metrics, what)):
                found[f"{len(over)}.{j}"] = chart
            over.append(what)
        except UsageError as error:  # seconds of several clocks, or of a version that did not count them
            sight.notes.append(str(error))
    seeds = {len(group.folders) for group in sight.groups}
    band = f" Bands are one standard deviation over {seeds.pop()} seeds." if len(seeds) == 1 and seeds != {1} else ""
    return parts.panel(
        "curves",
        "Learning curves",
        f"Test scores of the models in use, after every evaluation.{band}",
        parts.switch({"over": over, "of": [m.replace("_", " ") for m in metrics]}, found),
    )


def _charts(sight: Sight, metrics: list[str], over: Literal["rounds", "seconds", "bytes"]) -> list[Part]:
    """A chart for every metric."""
    x = parts.axis(unit_of(sight.paths) if over == "seconds" else AXES[over], bytes=over == "bytes")
    numbers, read = {group.label: group.number for group in sight.groups}, sight.groups[0].read
    every = [[_series(line, numbers) for line in lines_of(_that_have(sight, m), m, over, read)] for m in metrics]
    return [parts.chart(x, parts.axis(m.replace("_", " "), m), lines) for m, lines in zip(metrics, every, strict=True)]


def _metrics(sight: Sight) -> list[str]:
    """The metrics that some run has more than one value of, the leading one first."""
    found = dict.fromkeys([sight.metric])
    for rows in sight.histories:
        for name in (name for row in rows[-1:] for name in row if name not in (*NO_SCORES, "epsilon")):
            if sum(row.get(name) is not None for row in rows) > 1:
                found.setdefault(name)
    there = [name for name in found if any(row.get(name) is not None for rows in sight.histories for row in rows)]

    def place(name: str) -> tuple[bool, int]:  # ours of all examples, of clients, of the worst; then the others
        order = ("micro_", "macro_", "worst_decile_", "valid_micro_", "held_out_micro_")
        return name != sight.metric, next((k for k, head in enumerate(order) if name.startswith(head)), len(order))

    return sorted(there, key=place)[:MOST_METRICS]


def _that_have(sight: Sight, metric: str) -> dict[str, list[Any]]:
    """The folders of every label that have been scored by a metric."""
    return {
        group.label: [
            folder
            for folder in group.folders
            if (folder / "metrics.jsonl").is_file()
            and any(row.get(metric) is not None for row in sight.groups[0].read(folder))
        ]
        for group in sight.groups
    }


def _series(line: Line, numbers: dict[str, int]) -> Part:
    """A line and its band; where it does not move along the axis, a level."""
    at = parts.thinned(len(line.x), MOST_POINTS)
    mean, off = line.y.mean(0)[at], line.y.std(0, ddof=1)[at] if len(line.y) > 1 else None
    band = {} if off is None else {"low": mean - off, "high": mean + off}
    more: dict[str, Any] = {"level": True} if line.still else {}
    return parts.series(line.label, numbers[line.label], parts.numbers(line.x[at]), mean, **band, **more)


def privacy(sight: Sight) -> Part | None:
    """Epsilon over the rounds, and what it means."""
    every, said = [], []
    for group in sight.groups:
        rows = [row for row in (group.histories or [[]])[0] if row.get("epsilon") is not None]
        if rows:
            x, y = [row["round"] for row in rows], [row["epsilon"] for row in rows]
            every.append(parts.series(group.label, group.number, x, y))
        for summary in group.summaries[:1]:
            for unit, of in (summary.get("privacy") or {}).items():
                numbers = [of.get(key) for key in ("epsilon", "delta")]
                shown = [f"{value:.3g}" if isinstance(value, float | int) else "?" for value in numbers]
                said.append(
                    f"{group.label}, of a {unit}: epsilon {shown[0]} at delta {shown[1]}; {of.get('meaning', '')}"
                )
    if not every:
        return None
    return parts.panel(
        "privacy",
        "Privacy spent",
        "Of two federations that differ in one client, or in one example, no outcome is more than e to the epsilon "
        "times as likely with one as with the other, but for a chance of delta. Less is more private.",
        parts.chart(parts.axis("rounds"), parts.axis("epsilon", zero=True), every),
        parts.words(*said) if said else None,
    )


def traffic(sight: Sight) -> Part | None:
    """Bytes by link, summed over the rounds; the mean over seeds."""
    links = dict.fromkeys(
        name for group in sight.groups for s in group.summaries for name in s.get("bytes_by_link", {})
    )
    moved = {
        group.label: [float(np.mean([s.get("bytes_by_link", {}).get(name, 0) for s in ended])) for name in links]
        for group in sight.groups
        if (ended := [s for s in group.summaries if "metrics" in s])
    }
    used = [k for k in range(len(links)) if any(each[k] for each in moved.values())]
    if not used:
        return None
    every = []
    for number, k in enumerate(used):
        each, name = [of[k] for of in moved.values()], list(links)[k].replace("_", " ")
        every.append(parts.series(name, number, list(moved), each, "bars", text=[bytes_(n) for n in each]))
    return parts.panel(
        "bytes",
        "Bytes by link",
        "What moved over every kind of link in all rounds, counted by the messages that the topology needs.",
        parts.chart(parts.axis(""), parts.axis("bytes", bytes=True, zero=True), every, stack=True),
    )


def lost(sight: Sight) -> Part | None:
    """Updates that were left out: numbers that are not finite, and answers that came too late."""
    every = []
    for group in sight.groups:
        rows = (group.histories or [[]])[0]
        if any(row.get("dropped") for row in rows):
            x, y = [row["round"] for row in rows], [row.get("dropped", 0) for row in rows]
            every.append(parts.series(group.label, group.number, x, y))
    lines = [
        f"{group.label}: {s[key]:,} {words}"
        for group in sight.groups
        for s in group.summaries[:1]
        for key, words in LEFT_OUT.items()
        if s.get(key)
    ]
    axes = parts.axis("rounds"), parts.axis("updates left out so far", zero=True)
    return parts.panel(
        "left-out",
        "Updates that were left out",
        "Answers that never became part of a model, and clients whose scores count nowhere.",
        parts.chart(*axes, every) if every else None,
        parts.words(*lines) if lines else None,
    )
