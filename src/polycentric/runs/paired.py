"""Differences between rows of a comparison that can be trusted: seed by seed, and client by client.

    d_s  =  score of a row in seed s  -  score of the reference in seed s          the same clients, the same examples
    d    =  mean of d_s over n seeds,      se  =  standard deviation of d_s / sqrt(n)

What is hard about a seed is hard for both rows and falls out of d_s, so d varies less than either score. A difference
is a claim only where |d| > t se over three seeds or more, t by Student (4.3 with three seeds, 2.8 with five, 2 with
many); anything less cannot be told from chance, and is said so. Tables of papers are judged by the same rule.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import unknown
from ..tasks.metric import better_of
from .folder import Folder
from .metrics import is_share, lower_is_better
from .settings import Settings

FEWEST = 3  # seeds; a standard error of two is itself a guess
LEADING = ("micro_accuracy", "pooled_map50", "micro_map50", "micro_rmse")  # the first that there is
FACTOR = 1.5  # by which local work may differ before it is said

Row = dict[str, Any]


def leading(metrics: Iterable[str]) -> str:
    """The metric that a comparison goes by unless another is asked for."""
    there = set(metrics)
    return next((name for name in LEADING if name in there), "micro_loss")


def base_of(metric: str) -> str:
    """What a client's part of a metric is called.

    >>> base_of("worst_decile_rmse")
    'rmse'
    """
    return re.sub("^(micro|macro|worst_decile|pooled)_", "", metric)


def with_differences(
    rows: list[Row], cells: Sequence[Settings], against: str | None = None, by: str | None = None
) -> list[Row]:
    """The rows, each with its paired difference to the reference, `against` or the first; None where it is that."""
    reference = rows[reference_of([row["method"] for row in rows], against)]
    metrics = {name for row in rows for name in row["metrics"]}
    if by is not None and metrics and by not in metrics:
        raise unknown("metric to compare by", by, sorted(metrics))
    name = by or leading(metrics)
    less = is_less(name, cells)
    return [row | {"difference": None if row is reference else _difference(row, reference, name, less)} for row in rows]


def reference_of(names: Sequence[str], against: str | None) -> int:
    """Which row the others are compared with: the first, or the one that was asked for."""
    if against is not None and against not in names:
        raise unknown("row to compare against", against, names)
    return 0 if against is None else list(names).index(against)


def is_less(metric: str, cells: Sequence[Settings]) -> bool:
    """Whether less of a metric is better, ours or the user's own."""
    from .start import built_metrics  # it may import code of the user's, which nobody needs for our own metrics

    own = better_of(built_metrics(cells[0]) if cells else [], base_of(metric))
    return lower_is_better(metric) if own is None else own


def _difference(row: Row, reference: Row, metric: str, less: bool) -> Row:
    mine, theirs = (_by_seed(r, metric) for r in (row, reference))
    data = [dict(zip(r["seeds"], r["fingerprints"], strict=True)) for r in (row, reference)]
    seeds = [seed for seed in mine if seed in theirs]
    found: Row = {"to": reference["method"], "metric": metric, "lower_is_better": less}
    other = [seed for seed in seeds if data[0][seed] != data[1][seed]]
    if other:
        told = f"{row['method']} had other examples than {reference['method']}, so they cannot be compared seed by seed"
        return found | {"seeds": [], "each": [], "mean": None, "se": None, "told": told}
    each = [mine[seed] - theirs[seed] for seed in seeds]
    mean, se = mean_and_error(each)
    told = sentence(row["method"], reference["method"], [-d if less else d for d in each], metric)
    found |= {"seeds": seeds, "each": each, "mean": mean, "se": se, "told": told}
    tuned = [dict(zip(r["seeds"], r.get("personalised") or [], strict=False)) for r in (row, reference)]
    if metric != leading(row["metrics"]) or not all(seed in of for of in tuned for seed in seeds):
        return found
    gains = [(tuned[0][seed] - tuned[1][seed]) * (-1 if less else 1) for seed in seeds]
    return found | {"fine_tuned": gains, "told": f"{told}; {_tuned(gains, metric)}" if gains else told}


def _tuned(gains: Sequence[float], metric: str) -> str:
    """What is left of a difference after fine-tuning, more is better.

    >>> _tuned([0.01, -0.01, 0.003], "micro_accuracy")
    'after fine-tuning +0.1 ± 0.6 points, which cannot be told from none'
    """
    mean, se = statistics.fmean(gains), mean_and_error(gains)[1]
    told = f"after fine-tuning {amount(mean, metric, se, sign=True)}"
    return f"{told}, which cannot be told from none" if told_apart(gains) is False and any(gains) else told


def _by_seed(row: Row, metric: str) -> dict[int, float]:
    values = row["metrics"].get(metric, [])
    return {seed: value for seed, value in zip(row["seeds"], values, strict=False) if value is not None}


def mean_and_error(each: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean of some differences, and its standard error where there are two or more."""
    mean = statistics.fmean(each) if each else None
    return mean, statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else None


def sentence(name: str, reference: str, gains: Sequence[float], metric: str) -> str:
    """What can be told of a row from its gains, one for each seed, more is better.

    >>> sentence("fesem", "fedavg", [0.09, 0.1, 0.08], "micro_accuracy")
    'fesem beats fedavg by 9.0 ± 0.6 points over 3 seeds: beyond 4.3 standard errors'
    >>> sentence("fedprox", "fedavg", [0.01, -0.01, 0.003], "micro_accuracy")
    'fedprox cannot be told from fedavg: +0.1 ± 0.6 points over 3 seeds'
    >>> sentence("fesem", "fedavg", [0.09, 0.1], "micro_accuracy")
    'fesem against fedavg: +9.5 points over 2 seeds, too few seeds to tell'
    """
    mean, se = mean_and_error(gains)
    if mean is None:
        return f"{name} and {reference} have no seed in which both came to an end"
    over = f"over {len(gains)} seed{'s' * (len(gains) != 1)}"
    if (sure := told_apart(gains)) is None:
        return f"{name} against {reference}: {amount(mean, metric, sign=True)} {over}, too few seeds to tell"
    if not any(gains):
        return f"{name} is exactly as good as {reference} in all of {len(gains)} seeds"
    if sure:
        does = "beats" if mean > 0 else "loses to"
        beyond = "two" if margin(len(gains)) == 2 else f"{margin(len(gains)):.1f}"
        return f"{name} {does} {reference} by {amount(abs(mean), metric, se)} {over}: beyond {beyond} standard errors"
    return f"{name} cannot be told from {reference}: {amount(mean, metric, se, sign=True)} {over}"


def told_apart(gains: Sequence[float]) -> bool | None:
    """Whether differences, one for each seed, are beyond chance; None: there are too few seeds to tell."""
    mean, se = mean_and_error(gains)
    if mean is None or se is None or len(gains) < FEWEST:
        return None
    return abs(mean) > margin(len(gains)) * se


def margin(seeds: int) -> float:
    """Standard errors beyond which a difference is one: two, or more where seeds are few (Student's t, 95 %)."""
    from scipy.special import stdtrit

    return max(2.0, float(stdtrit(seeds - 1, 0.975)))


def amount(mean: float, metric: str, se: float | None = None, sign: bool = False) -> str:
    """A difference for people: in points where the metric is a share, else in its own unit."""
    share, plus = is_share(metric), "+" if sign else ""
    numbers = [f"{100 * mean:{plus}.1f}" if share else f"{mean:{plus}.3g}"]
    numbers += [] if se is None else [f"{100 * se:.1f}" if share else f"{se:.2g}"]
    return f"{' ± '.join(numbers)} {'points' if share else base_of(metric)}"


# -- clients -------------------------------------------------------------------------------------------------


def clients_of(run_dir: str) -> dict[str, dict[str, str]]:
    """The lines of a run's clients.csv by the client's name, of those that have a score."""
    return {row["client"]: row for row in Folder(Path(run_dir)).read_clients() if row.get("loss_in_use")}


def served(run_dir: str) -> dict[str, float]:
    """How well every client is served at the end of a run, more is better; as `Scores.served`, from its folder."""
    rows = clients_of(run_dir)
    right = all(row.get("accuracy_in_use") for row in rows.values())
    return {n: float(row["accuracy_in_use"]) if right else -float(row["loss_in_use"]) for n, row in rows.items()}


def who(row: Row, reference: Row, metric: str, less: bool) -> Row:
    """Who gains and who loses against the reference: every client, most first, and every known group.

    Clients that are dealt anew with every seed are others in each of them, and are told apart by it; those that the
    data name, or that one `data_seed` deals, are the same, and their differences are averaged over seeds.
    """
    runs = [dict(zip(r["seeds"], r["run_dirs"], strict=True)) for r in (row, reference)]
    column, found, order = f"{base_of(metric)}_in_use", list[Row](), dict[str, int]()
    for seed in (seed for seed in runs[0] if seed in runs[1]):
        mine, theirs = (clients_of(of[seed]) for of in runs)
        at = column if any(line.get(column) for line in mine.values()) else "accuracy_in_use"
        at = at if all(line.get(at) for line in mine.values()) else "loss_in_use"
        sign = -1 if (less if at == column else lower_is_better(at)) else 1
        for name in (n for n in mine if n in theirs and mine[n][at] and theirs[n][at]):
            group = mine[name].get("group_name") or mine[name]["group"]
            order[group] = int(mine[name]["group"] or 0)
            gain = sign * (float(mine[name][at]) - float(theirs[name][at]))
            found.append({"client": name, "group": group, "seed": seed, "gain": gain, "of": at.removesuffix("_in_use")})
    groups = [_group(name, [f for f in found if f["group"] == name]) for name in sorted(order, key=order.__getitem__)]
    same = len(set(row["fingerprints"])) == 1 or not all(f["client"].isdigit() for f in found)
    clients = sorted(_averaged(found) if same else found, key=lambda f: -f["gain"])
    signs = [(f["gain"] > 0) - (f["gain"] < 0) for f in clients]
    counted = {word: signs.count(sign) for word, sign in (("gain", 1), ("lose", -1), ("same", 0))}
    of = found[0]["of"] if found else base_of(metric)
    counted |= {"seeds": len({f["seed"] for f in found})}
    return {"of": of, **counted, "averaged": same, "clients": clients, "groups": [g for g in groups if g["group"]]}


def with_who(rows: list[Row], cells: Sequence[Settings], each: bool = False) -> list[Row]:
    """Rows whose sentences also say how many clients gain and lose; `each`: with the gain of every client."""
    (reference,) = (row for row in rows if row["difference"] is None)
    return [row if row is reference else _with_clients(row, reference, cells, each) for row in rows]


def _with_clients(row: Row, reference: Row, cells: Sequence[Settings], each: bool) -> Row:
    difference = row["difference"]
    found = who(row, reference, difference["metric"], is_less(difference["metric"], cells))
    total = found["gain"] + found["lose"] + found["same"]
    anew = "" if found["averaged"] or found["seeds"] < 2 else f" (about {total // found['seeds']} in each seed)"
    counted = f"of {total} clients{anew} {found['gain']} gain and {found['lose']} lose"
    told = f"{difference['told']}; {counted}" if total else difference["told"]
    return row | {"difference": difference | {"told": told}} | ({"who": found} if each else {})


def _averaged(found: list[Row]) -> list[Row]:
    by: dict[str, list[Row]] = {}
    for one in found:
        by.setdefault(one["client"], []).append(one)
    return [
        {"client": name, "group": each[0]["group"], "seeds": len(each), "of": each[0]["of"]}
        | {"gain": statistics.fmean(f["gain"] for f in each)}
        for name, each in by.items()
    ]


def _group(name: str, found: list[Row]) -> Row:
    """A group's gain, the mean over its clients in every seed, then over seeds; and how many clients it has in one."""
    seeds: dict[int, list[float]] = {}
    for one in found:
        seeds.setdefault(one["seed"], []).append(one["gain"])
    mean, se = mean_and_error([statistics.fmean(gains) for gains in seeds.values()])
    return {"group": name, "clients": round(len(found) / len(seeds)), "gain": mean, "se": se}


# -- rows that are not alike ---------------------------------------------------------------------------------


def unequal(rows: Sequence[Row], cells: Sequence[Settings], work: bool = True) -> list[str]:
    """What else rows differ in beside their method, a line each: then a difference is not the method's alone.

    `cells`: of every row at least the first, in their order. `work`: also say where local work differs by more than
    FACTOR, in steps or in examples.
    """
    said = []
    for key in ("data", "partition", "clients", "rounds", "model", "goal", "loss", "valid", "standardise"):
        each = {row["method"]: getattr(cell, key) for row, cell in zip(rows, cells, strict=False)}
        if len(set(each.values())) > 1:
            said.append(f"rows differ in {key}: {', '.join(f'{name} {value}' for name, value in each.items())}")
    each = {row["method"]: row["work"] for row in rows if work and row["work"]}
    apart = {key: [of[key] for of in each.values()] for key in ("steps", "examples")}
    key = max(apart, key=lambda key: max(apart[key], default=0) / min(apart[key], default=1))
    if each and max(apart[key]) > FACTOR * min(apart[key]):
        most, least = (end(each, key=lambda name: each[name][key]) for end in (max, min))
        done = [f"{each[name]['steps']:.4g} steps over {each[name]['examples']:.4g} examples" for name in (most, least)]
        said.append(
            f"unequal work: a client of {most} takes {done[0]} in a round, one of {least} {done[1]}; make them equal "
            "with --set epochs, steps, batch or warm_up, or say --unequal-work"
        )
    return said
