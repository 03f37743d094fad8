"""Client by client: how well everybody is served, before and after fine-tuning; who took part; who has which labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...data.label_skew import by_commonest_label, heterogeneity, label_counts
from ...errors import UsageError
from ...runs.metrics import Reals, lower_is_better, worst_decile
from ...runs.paired import base_of
from ..participation import SHARES, taking_part
from . import parts
from .answer import value_text
from .parts import Part
from .seen import Seeds, Sight

MOST_POINTS = 1200  # clients of a label in a chart
MOST_ROWS = 240  # of a heat map
MOST_CLASSES = 100
TIMES = {"initial": "before training", "in_use": "in use", "personalised": "after fine-tuning"}


def column_of(sight: Sight) -> str:
    """What a client is scored by: a column of clients.csv, without its time."""
    base = base_of(sight.metric)
    every = [row for group in sight.groups for rows in group.clients for row in rows[:1]]
    return base if every and all(f"{base}_in_use" in row for row in every) else "loss"


def scores_of(rows: list[dict[str, str]], column: str, trained: bool = False) -> dict[str, float]:
    """A column of clients.csv by the client's place; who has no score is left out, or who never `trained`."""
    there = [k for k, row in enumerate(rows) if row.get(column) and (row.get("took_part") or not trained)]
    return {str(k): float(rows[k][column]) for k in there}


def name_of(row: dict[str, str]) -> str:
    """A client with its group."""
    group = row.get("group_name") or row.get("group", "")
    return f"{row['client']}, group {group}" if group else row["client"]


def distribution(sight: Sight) -> Part | None:
    """Every client's score, the worst first: before training, in use, after fine-tuning."""
    column, found, times = column_of(sight), dict[str, Part](), list[str]()
    for time, title in TIMES.items():
        every = [line for group in sight.groups if (line := _sorted(group, f"{column}_{time}", column))]
        if every:
            shade = {"from": 0, "to": 10, "words": "worst tenth"}
            x = parts.axis("clients, the worst served first", unit="%")
            found[str(len(times))] = parts.chart(
                x, parts.axis(f"{column} {title}", column), every, shade=shade, legend=True
            )
            times.append(title)
    if not found:
        return None
    first = "in use" if "in use" in times else times[0]
    apart = " Clients that never train are not among them." if any(g.settings.held_out for g in sight.groups) else ""
    return parts.panel(
        "clients",
        "Client by client",
        "Every client's score on its own test examples, the worst served first; a point names its client. The legend "
        f"has the mean of the worst tenth.{apart}",
        parts.switch({"when": times}, found) | {"start": {"when": times.index(first)}},
    )


def _sorted(group: Seeds, column: str, base: str) -> Part | None:
    """One run's clients in the order of their scores, and the band of all seeds at every place."""
    every = [scores_of(rows, column, trained=bool(group.settings.held_out)) for rows in group.clients]
    if not every or not every[0]:
        return None
    sign = -1 if lower_is_better(base) else 1
    rows, mine = group.clients[0], every[0]
    order = sorted(mine, key=lambda k: sign * mine[k])
    at = parts.thinned(len(order), MOST_POINTS)
    x = [100 * (k + 0.5) / len(order) for k in at]
    more: dict[str, Any] = {}
    if len(every) > 1:
        ranks = np.array([100 * (k + 0.5) / len(order) for k in at])
        curves = np.stack([_at_ranks(np.array([*one.values()]) * sign, ranks) * sign for one in every if one])
        more = {"low": curves.min(0), "high": curves.max(0)}
    worst = float(np.mean([sign * worst_decile(sign * np.array([*one.values()])) for one in every if one]))
    text = [name_of(rows[int(order[k])]) for k in at]
    name = f"{group.label} ({value_text(worst, base)})"
    return parts.series(name, group.number, parts.numbers(x), [mine[order[k]] for k in at], text=text, **more)


def _at_ranks(values: Reals, percent: Reals) -> Reals:
    """The sorted values at places from 0 to 100."""
    ranks = 100 * (np.arange(len(values)) + 0.5) / len(values)
    found: Reals = np.interp(percent, ranks, np.sort(values))
    return found


def fine_tuning(sight: Sight) -> Part | None:
    """Before against after fine-tuning; clients with the same two scores are one point."""
    column, found = column_of(sight), dict[str, Part]()
    less = lower_is_better(column)
    for group in sight.groups:
        rows = group.clients[0] if group.clients else []
        before, after = (scores_of(rows, f"{column}_{time}") for time in ("in_use", "personalised"))
        at: dict[tuple[float, float], list[str]] = {}
        for k in (k for k in before if k in after):
            at.setdefault((before[k], after[k]), []).append(name_of(rows[int(k)]))
        if at:
            found[group.label] = _before_after(at, column, less)
    return parts.panel(
        "personalisation",
        "Before and after personalisation",
        "Clients by their score with the model in use, and after fine-tuning it on their own examples; a larger point "
        f"is more clients with the same scores. {'Below' if less else 'Above'} the line fine-tuning helps.",
        parts.by_run(found),
    )


def _before_after(at: dict[tuple[float, float], list[str]], column: str, less: bool) -> Part:
    every = []
    for word, sign, number in (("gain", -1 if less else 1, 2), ("the same", 0, None), ("lose", 1 if less else -1, 1)):
        mine = [(x, y, who) for (x, y), who in at.items() if (y > x) - (y < x) == sign]
        name = f"{word} ({sum(len(who) for *_, who in mine):,})"
        mine = [mine[k] for k in parts.thinned(len(mine), MOST_POINTS)]
        some = [f"{'; '.join(who[:4])}{' ...' * (len(who) > 4)}" for *_, who in mine]
        text = [
            f"{len(who)} clients: {words}" if len(who) > 1 else words
            for words, (*_, who) in zip(some, mine, strict=True)
        ]
        at_x, at_y = parts.numbers(x for x, *_ in mine), [y for _, y, _ in mine]
        sizes = [len(who) for *_, who in mine]
        every.append(parts.series(name, number, at_x, at_y, "points", text=text, sizes=sizes))
    x, y = (parts.axis(f"{column} {TIMES[time]}", column) for time in ("in_use", "personalised"))
    return parts.chart(x, y, every, diagonal=True, equal=True)


def participation(sight: Sight) -> Part | None:
    """How often clients took part, and how unequally."""
    there = {group.label: group.finished for group in sight.groups if group.finished}
    try:
        edges, every = taking_part(there) if there else (np.zeros(0), [])
    except UsageError:  # an earlier version did not count
        return None
    by = {group.label: group.number for group in sight.groups}
    if not every or all(of.unequal == 0 for of in every):
        return None
    middle = parts.numbers((edges[:-1] + edges[1:] - 1) / 2)
    names = {of.label: f"{of.label} (Gini {of.unequal:.2f})" for of in every}
    bars = [parts.series(names[of.label], by[of.label], middle, of.clients, "bars") for of in every]
    lorenz = [parts.series(names[of.label], by[of.label], SHARES.tolist(), of.lorenz) for of in every]
    x, y = (parts.axis(words, unit="%") for words in ("clients, those heard least first", "share of all answers"))
    return parts.panel(
        "participation",
        "Participation",
        "How many clients were heard how often; and the share of all answers that came from those heard least. On the "
        "line everybody is heard equally often.",
        parts.chart(
            parts.axis("rounds a client took part in"), parts.axis("clients", zero=True), bars, half=True, legend=True
        ),
        parts.chart(x, y, lorenz, diagonal=True, half=True, legend=True),
    )


def labels(sight: Sight) -> Part | None:
    """The labels of every client, as a heat map; of many clients, the means of neighbours."""
    if not sight.opened:
        return None
    _, run = sight.opened[0]
    federation = run.federation
    if federation.kind == "numbers" or not federation.classes or federation.absent:
        return None
    counts = label_counts(federation)
    common = counts.sum(0).argsort(descending=True, stable=True)[:MOST_CLASSES].sort().values
    order = by_commonest_label(counts)
    rows = counts[order].double()
    shares = (rows / rows.sum(1, keepdim=True).clamp(min=1))[:, common]
    names = [federation.clients[k] for k in order.tolist()]
    if len(shares) > MOST_ROWS:
        row = torch.arange(len(shares)) * MOST_ROWS // len(shares)
        count = torch.bincount(row, minlength=MOST_ROWS)
        shares = torch.zeros(MOST_ROWS, len(common), dtype=torch.float64).index_add(0, row, shares) / count[:, None]
        names = [f"{n} clients from {names[int((row == k).nonzero()[0])]}" for k, n in enumerate(count.tolist())]
    classes = [federation.classes[c] for c in common.tolist()]
    least, most = int(federation.train.sizes.min()), int(federation.train.sizes.max())
    many = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return parts.panel(
        "labels",
        "Who has which labels",
        "A line is a client, by its commonest label; a column is a class; the colour is the share of the client's "
        f"training examples, of which it has {many}. Heterogeneity {heterogeneity(federation):.2f} (0: all alike, 1: "
        "nothing in common).",
        parts.heat(shares.numpy(), rows=names, columns=classes, share=True, title="share"),
    )
