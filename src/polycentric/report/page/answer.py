"""The answer first: who serves clients best, by how much, beyond what seeds vary; who gains, who is better alone."""

from __future__ import annotations

import re
import statistics
from typing import Any

from ...runs.metrics import is_share, lower_is_better
from ...runs.paired import amount, base_of, told_apart, with_differences
from ...topology.base import Picture
from ..tables import TextTable, comparison, comparison_csv, deviation, gains_csv
from . import parts
from .parts import Part
from .seen import Seeds, Sight

MOST_POINTS = 1500  # of a line with a point for each client
MOST_COPIED = 5000  # clients in a copy of a table
WORDS = {
    "accuracy": "of test examples right",
    "rmse": "root mean squared error",
    "loss": "loss",
    "map50": "mAP at IoU 0.5",
}


def value_text(value: float, metric: str) -> str:
    """A score for people.

    >>> value_text(0.9417, "micro_accuracy"), value_text(12.345, "micro_rmse")
    ('94.2\xa0%', '12.3')
    """
    return (
        f"{100 * value:{'.1f' if abs(value) < 100 else '.3g'}}\N{NO-BREAK SPACE}%"
        if is_share(metric)
        else f"{value:.3g}"
    )


def words_of_metric(metric: str) -> str:
    """What a score is of.

    >>> words_of_metric("pooled_map50"), words_of_metric("micro_accuracy")
    ('mAP at IoU 0.5', 'accuracy')
    """
    return base_of(metric).replace("map50", "mAP at IoU 0.5")


def answer(sight: Sight) -> Part:
    """The first screen."""
    metric, less = sight.metric, lower_is_better(sight.metric)
    shown = [(group, group.values(metric)) for group in sight.groups]
    ranked = sorted((each for each in shown if each[1]), key=lambda each: statistics.fmean(each[1]), reverse=not less)
    ranked += [each for each in shown if not each[1]]
    alone = {row["method"]: row.get("share_below_alone", []) for row in sight.rows}
    bars = [_bar(group, values, sight, alone.get(group.label, [])) for group, values in ranked]
    bars[0]["best"] = len(ranked) > 1 and bool(ranked[0][1])
    order = [group.label for group, _ in ranked]
    differ = sorted((row for row in sight.rows if row["difference"]), key=lambda row: order.index(row["method"]))
    told = [row["difference"]["told"] for row in differ]
    return {
        "kind": "answer",
        "headline": _headline(sight, [each for each in ranked if each[1]]),
        "lead": what_was_run(sight),
        "bars": bars,
        "metric": f"{words_of_metric(metric)} over all test examples",
        "share": is_share(metric),
        "lower": less,
        "told": told,
        "notes": sight.said,
    }


def _bar(group: Seeds, values: list[float], sight: Sight, alone: list[float]) -> Part:
    worst = group.values(f"worst_decile_{base_of(sight.metric)}")
    below = alone or group.values("share_below_alone")
    mean = statistics.fmean(values) if values else None
    return {
        "label": group.label,
        "n": group.number,
        "words": words_of(group),
        "icon": icon_of(group),
        "mean": parts.number(mean),
        "each": parts.numbers(values),
        "text": spread_text(values, sight.metric),
        "worst": parts.number(statistics.fmean(worst)) if worst else None,
        "below": f"{100 * statistics.fmean(below):.0f} %" if below else "",
        "best": False,
    }


def spread_text(values: list[float], metric: str) -> str:
    """Mean and standard deviation over seeds, with the unit."""
    if not values:
        return "no score yet"
    mean = value_text(statistics.fmean(values), metric)
    if len(values) == 1:
        return mean
    off = deviation(values)
    return f"{mean[:-2]} ± {100 * off:.1f} %" if is_share(metric) else f"{mean} ± {off:.2g}"


def words_of(group: Seeds) -> str:
    """Who averages with whom, of the opened run."""
    run, exchange = group.run, group.exchange
    return exchange.words(run.federation.n_clients) if run is not None and exchange is not None else ""


def named(group: Seeds) -> str:
    """A label, and in a few words what it stands for: 4 centers, one center, no center."""
    words, picture = re.split("[:;,]", words_of(group))[0], picture_of(group)
    heard = 0 if picture is None else len(set(picture.links.receiver.tolist()))
    some = f"{heard} of " if picture is not None and 0 < heard < picture.n_centers else ""
    return f"{group.label} ({some}{words})" if words else group.label


def icon_of(group: Seeds) -> str:
    """The shape of a topology: alone, star, several centers, cells that overlap, peers; empty where it is not known."""
    picture = picture_of(group)
    if picture is None:
        return ""
    if not picture.n_centers:
        return "peers" if len(picture.links.sender) else "alone"
    heard = len(set(picture.links.receiver.tolist()))
    return "cells" if picture.several else "star" if heard <= 1 else "several"


def picture_of(group: Seeds) -> Picture | None:
    """What a drawing of the opened run's topology shows."""
    run, exchange = group.run, group.exchange
    if run is None or exchange is None:
        return None
    return exchange.topology.picture(run.state.memory, run.clients.everyone(run.state.round))


def _headline(sight: Sight, ranked: list[tuple[Seeds, list[float]]]) -> str:
    """What came out, in one sentence."""
    metric = sight.metric
    if not ranked:
        return "Nothing has been scored yet"
    best, values = ranked[0]
    score, what = value_text(statistics.fmean(values), metric), WORDS.get(base_of(metric), base_of(metric))
    if len(ranked) == 1:
        return f"{named(best)}: {score} {what}" if is_share(metric) else f"{named(best)}: {what} {score}"
    other, theirs = ranked[1]
    rows = {row["method"]: row for row in sight.rows if row["runs"]}
    if best.label not in rows or other.label not in rows:
        return f"{named(best)} is ahead so far, with {score}"
    pair = with_differences([rows[other.label], rows[best.label]], [], other.label)
    found = next(row["difference"] for row in pair if row["difference"])
    if found["mean"] is None:
        return f"{named(best)} has the best score, {score}, but on other examples than {other.label}"
    n, second, sure = len(found["each"]), value_text(statistics.fmean(theirs), metric), told_apart(found["each"])
    if sure is None:
        few = "one seed is" if n == 1 else f"{n} seeds are"
        return f"{named(best)} is ahead with {score}; {few} too few to tell it from {named(other)}, {second}"
    if sure:
        ahead = f"{amount(abs(found['mean']), metric)} {'below' if found['lower_is_better'] else 'above'}"
        return f"{named(best)} serves clients best: {score}, {ahead} {named(other)}"
    return f"{named(best)} and {named(other)} cannot be told apart: {score} and {second}"


def what_was_run(sight: Sight) -> str:
    """What was run, in plain words."""
    every = [group.settings for group in sight.groups]
    first = every[0]
    held = sorted({n for group in sight.groups for n in _clients(group)})
    run = sight.groups[0].run
    data = sorted({s.data for s in every})
    dealt = sorted({s.partition or "" for s in every})
    who = f"{held[0]:,} clients" if len(held) == 1 else f"{held[0]:,} to {held[-1]:,} clients" if held else "Clients"
    how = f" ({dealt[0]})" if len(dealt) == 1 and dealt[0] else ""
    known = run.federation.group_names if run is not None and len(dealt) == 1 else ()
    how += f", in {len(known)} groups: {', '.join(known)}" if 1 < len(known) <= 6 else ""
    rounds = sorted({s.rounds for s in every})
    took = f"{rounds[0]:,} rounds" if len(rounds) == 1 else f"{rounds[0]:,} to {rounds[-1]:,} rounds"
    n = sorted({len(group.folders) for group in sight.groups})
    seeds = "one seed" if n == [1] else f"{n[0]} seeds" if len(n) == 1 else f"{n[0]} to {n[-1]} seeds"
    ways = f"{len(every)} ways of learning were run" if len(every) > 1 else "One way of learning was run"
    each = " each" if len(every) > 1 else ""
    said = f"{who} hold examples of {' and '.join(data)}{how}. {ways} for {took} with {seeds}{each}."
    some = [
        (first.held_out, f" {100 * first.held_out:g} % of the clients never train, and are scored apart."),
        (first.attack, f" Some clients attack: {first.attack}."),
    ]
    return said + "".join(words for there, words in some if there)


def _clients(group: Seeds) -> list[int]:
    """How many clients the runs of a label have."""
    found = [s["clients"] for s in group.summaries if s.get("clients")]
    return found or ([group.settings.clients] if group.settings.clients else [])


# -- tables --------------------------------------------------------------------------------------------------


def compared(sight: Sight) -> Part | None:
    """The table of `compare`: every score over the seeds, what it took, and paired differences."""
    rows = [row for row in sight.rows if row["runs"]]
    if not rows:
        return None
    seeds = max(row["runs"] for row in rows)
    scores = comparison(rows, seeds, sight.groups[0].settings)
    over = f", mean ± standard deviation over {seeds} seeds" if seeds > 1 else ""
    what = "accuracy in %" if sight.metric == "micro_accuracy" else "scores"
    best = "The best of every column is in bold. " if len(rows) > 1 else ""
    return parts.panel(
        "scores",
        "All scores",
        f"{best}micro counts every test example the same, macro every client; worst tenth is the mean of the tenth of "
        "the clients that are served worst.",
        parts.table(scores._replace(title=f"test {what}{over}"), comparison_csv(rows)),
        _differences(rows),
    )


def _differences(rows: list[dict[str, Any]]) -> Part | None:
    """Paired differences, and whether they are beyond chance."""
    found = [(row, row["difference"]) for row in rows if row["difference"] and row["difference"]["mean"] is not None]
    if not found:
        return None
    lines = []
    for row, of in found:
        n, se, sign = len(of["each"]), of["se"], -1 if of["lower_is_better"] else 1
        sure = told_apart(of["each"])
        verdict = "too few seeds" if sure is None else "yes" if sure else "cannot be told"
        who = row.get("who") or {}
        counted = [str(who.get(key, "-")) for key in ("gain", "lose")]
        lines.append((row["method"], amount(sign * of["mean"], of["metric"], se, True), str(n), verdict, *counted))
    heads = ("method", "gain", "seeds", "beyond chance", "clients gain", "lose")
    title = f"against {found[0][1]['to']}, by {found[0][1]['metric']}"
    caption = "seed by seed, on the same examples, so that what makes a seed hard cancels"
    return parts.table(TextTable(title, heads, tuple(lines), caption))


def who_gains(sight: Sight) -> Part | None:
    """Every client's gain against the reference, and every known group's."""
    rows = [row for row in sight.rows if row.get("who") and row["who"]["clients"]]
    if not rows:
        return None
    by = {group.label: group.number for group in sight.groups}
    every, of, to = [], rows[0]["who"]["of"], rows[0]["difference"]["to"]
    for row in rows:
        clients = row["who"]["clients"]
        at = parts.thinned(len(clients), MOST_POINTS)
        place = [100 * (k + 0.5) / len(clients) for k in at]
        names = [f"{clients[k]['client']}" + (f", {clients[k]['group']}" if clients[k]["group"] else "") for k in at]
        gain = [clients[k]["gain"] for k in at]
        every.append(parts.series(row["method"], by[row["method"]], parts.numbers(place), gain, text=names))
    return parts.panel(
        "gains",
        f"Who gains against {to}",
        f"Every client's {of} less its {of} under {to}, those who gain most first; + is better. Where a line is below "
        "zero, clients lose.",
        parts.chart(
            parts.axis("clients, those who gain most first", unit="%"),
            parts.axis(f"gain in {of}", of, zero=True),
            every,
        ),
        _by_group(rows),
    )


def _by_group(rows: list[dict[str, Any]]) -> Part | None:
    """Every known group's gain, a column for each label; copied as CSV, every client's."""
    groups = {of["group"]: str(of["clients"]) for row in rows for of in row["who"]["groups"]}
    if not groups:
        return None
    of = rows[0]["who"]["of"]
    gain = {
        (row["method"], one["group"]): amount(one["gain"], of, one["se"], True).removesuffix(" points")
        for row in rows
        for one in row["who"]["groups"]
    }
    names = [row["method"] for row in rows]
    lines = tuple((group, n, *(gain.get((name, group), "-") for name in names)) for group, n in groups.items())
    title = f"gain by group, in {'points' if is_share(of) else of}"
    every = gains_csv(rows)
    return parts.table(
        TextTable(title, ("group", "clients", *names), lines), every if len(every) <= MOST_COPIED else None
    )
