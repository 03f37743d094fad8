"""Tables over many runs in words: Markdown, LaTeX and CSV; a comparison of methods, and who gains by it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..data.table_file import csv_text
from ..runs.metrics import is_share, lower_is_better
from ..runs.paired import amount, base_of, leading
from ..runs.settings import Settings

OURS = ("accuracy", "loss", "f1", "rmse", "mae", "exact", "map50")  # what our own metrics are of
FEW = 3  # clients who gain most, and who lose most, in a table


class TextTable(NamedTuple):
    """A table in words: a title, headings and lines; the first `left` columns are names, the others numbers."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    caption: str = ""
    left: int = 1
    best: frozenset[tuple[int, str]] = frozenset()  # the cells that are best in their column: line, heading

    def only(self, *heads: str) -> TextTable:
        """The names, and some of the columns behind them."""
        kept = [k for k, head in enumerate(self.heads) if k < self.left or head in heads]
        lines = tuple(tuple(line[k] for k in kept) for line in self.lines)
        return self._replace(heads=tuple(self.heads[k] for k in kept), lines=lines)

    def written(self, cell: Callable[[str], str], best: str) -> list[list[str]]:
        """Headings and lines, every cell by `cell`, on one line; the best ones within `best`, such as **{}**."""
        lines = [[cell(" ".join(text.split())) for text in line] for line in (self.heads, *self.lines)]
        for k, head in self.best:
            if head in self.heads:
                lines[1 + k][self.heads.index(head)] = best.format(lines[1 + k][self.heads.index(head)])
        return lines


def markdown(table: TextTable) -> str:
    """As Markdown has tables, the best in bold."""
    rules = [":--" if k < table.left else "--:" for k in range(len(table.heads))]
    heads, *lines = table.written(lambda text: text.replace("|", "\\|"), "**{}**")
    written = [f"| {' | '.join(line)} |" for line in (heads, rules, *lines)]
    return "\n\n".join([table.title, "\n".join(written), *([table.caption] * bool(table.caption))])


def latex(table: TextTable) -> str:
    """As a LaTeX tabular, which needs no package, the best in bold."""
    heads, *lines = [rf"{' & '.join(line)} \\" for line in table.written(_escaped, r"\textbf{{{}}}")]
    columns = "l" * table.left + "r" * (len(table.heads) - table.left)
    said = [f"% {' '.join(text.split())}" for text in (table.title, table.caption) if text]
    return "\n".join(
        [*said, rf"\begin{{tabular}}{{{columns}}}", r"\hline", heads, r"\hline", *lines, r"\hline", r"\end{tabular}"]
    )


_SIGNS: dict[str, str | int | None] = {sign: f"\\{sign}" for sign in "&%$#_{}"}
_SIGNS |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SIGNS |= {"±": r"$\pm$", "°": r"$^\circ$", "<": "$<$", ">": "$>$"}


def _escaped(text: str) -> str:
    return text.translate(str.maketrans(_SIGNS))


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Numbers as they are, a column for every key of any row; what is not there is empty."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    return csv_text([heads, *([row.get(head, "") for head in heads] for row in rows)], end="\n")


def bytes_(n: float) -> str:
    """A number of bytes for people.

    >>> bytes_(15376000)
    '15.4 MB'
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000 or unit == "TB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError


def spread(values: Sequence[float | None], percent: bool = True) -> str:
    """Mean and standard deviation over seeds.

    >>> spread([0.5, 0.6])
    '55.0±7.1'
    """
    known = [value for value in values if value is not None and not math.isnan(value)]
    if not known:
        return "-"
    scale, (first, second) = (100, (".1f", ".1f")) if percent else (1, (".3g", ".2g"))
    mean = scale * statistics.fmean(known)
    return f"{mean:{first}}" if len(known) == 1 else f"{mean:{first}}±{scale * deviation(known):{second}}"


def deviation(values: Sequence[float]) -> float:
    """The standard deviation over seeds; infinite where squares are too large."""
    try:
        return statistics.stdev(values)
    except OverflowError:
        return math.inf


# -- compare -------------------------------------------------------------------------------------------------


def shown_metrics(metrics: Sequence[str]) -> dict[str, str]:
    """The metrics that a table shows, and their titles: of classes, of labels or of numbers; and the user's own."""
    there = set(metrics)
    ours = {"micro_accuracy": "micro", "macro_accuracy": "macro", "worst_decile_accuracy": "worst tenth"}
    ours |= {"micro_exact": "all labels right"}
    if "micro_accuracy" not in there:
        ours = {"micro_rmse": "rmse", "worst_decile_rmse": "worst tenth", "micro_mae": "mae", "r2": "r2"}
        ours |= {"pooled_map50": "mAP", "micro_map50": "mAP by client", "worst_decile_map50": "worst tenth"}
    own = [base_of(name) for name in metrics if name.startswith("micro_") and base_of(name) not in OURS]
    ours |= {
        f"{form}_{name}": title
        for name in own
        for form, title in (("micro", name), ("worst_decile", f"worst tenth {name}"))
    }
    found = {name: title for name, title in ours.items() if name in there}
    return found or {name: base_of(name) for name in metrics if name == "micro_loss"}


COST = ("steps", "examples", "up", "down")


def comparison(rows: list[dict[str, Any]], seeds: int, settings: Settings) -> TextTable:
    """Everything of a comparison: scores as mean ± standard deviation, and what they took."""
    metrics = shown_metrics(list(dict.fromkeys(name for row in rows for name in row["metrics"])))
    dealt = f", {settings.partition}" if settings.partition else ""
    percent = "accuracy in %" if "micro_accuracy" in metrics else "scores"
    title = (
        f"{settings.data}{dealt}, {settings.rounds} rounds, {seeds} seed{'s' * (seeds != 1)}: test {percent}, mean±std"
    )
    beside = any("share_below_alone" in row for row in rows)
    heads = ("method", *metrics.values(), "fine-tuned", *(["better alone"] if beside else []), *COST)
    lines = []
    for row in rows:
        values = [spread(row["metrics"].get(name, []), is_share(name)) for name in metrics]
        values.append(spread(row["personalised"], is_share(leading(row["metrics"]))))
        values += [spread(row.get("share_below_alone", []))] if beside else []
        work = row["work"] or {}
        values += [f"{work[key]:.4g}" if key in work else "-" for key in ("steps", "examples")]
        lost = f" ({row['diverged']} diverged)" if row["diverged"] else ""
        lines.append((row["method"] + lost, *values, bytes_(row["bytes_up"]), bytes_(row["bytes_down"])))
    scored = {title: [row["metrics"].get(name, []) for row in rows] for name, title in metrics.items()}
    scored |= {"fine-tuned": [row["personalised"] for row in rows]}
    less = {title for name, title in metrics.items() if lower_is_better(name)}
    less |= {"fine-tuned"} if lower_is_better(leading(metrics)) else set()
    best = frozenset((k, head) for head, each in scored.items() for k in _best(each, head in less))
    caption = "better alone: share of clients better served by training alone" if beside else ""
    return TextTable(title, heads, tuple(lines), caption, best=best)


def _best(each: Sequence[Sequence[float | None]], less: bool) -> list[int]:
    """Which of several rows have the best mean; none where there is nothing to compare.

    >>> _best([[0.5, 0.7], [0.6], [], [0.1]], less=False)
    [0, 1]
    """
    means = {
        k: statistics.fmean(known) for k, values in enumerate(each) if (known := [v for v in values if v is not None])
    }
    top = (min if less else max)(means.values(), default=0.0)
    return [k for k, mean in means.items() if math.isclose(mean, top)] if len(means) > 1 else []


def comparison_csv(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A comparison for another program: every metric's mean and standard deviation, work, bytes and differences."""
    out = []
    for row in rows:
        line: dict[str, Any] = {"method": row["method"], "runs": row["runs"], "diverged": row["diverged"]}
        every = row["metrics"] | {"personalised": row["personalised"]}
        every |= {"share_below_alone": row["share_below_alone"]} if "share_below_alone" in row else {}
        for name, values in every.items():
            known = [value for value in values if value is not None]
            line |= {name: statistics.fmean(known)} if known else {}
            line |= {f"{name}_std": deviation(known)} if len(known) > 1 else {}
        line |= {key: value for key, value in (row["work"] or {}).items()}
        line |= {key: row[key] for key in ("bytes_up", "bytes_down", "seconds")}
        if difference := row.get("difference"):
            line |= {f"difference_{key}": difference[key] for key in ("to", "metric", "mean", "se", "told")}
        out.append(line)
    return out


# -- who gains -----------------------------------------------------------------------------------------------


def gains(rows: list[dict[str, Any]]) -> TextTable:
    """Who gains and who loses against the reference: all, the groups, and a few clients at either end."""
    lines: list[tuple[str, ...]] = []
    title = ""
    for row in rows:
        if (found := row.get("who")) is None:
            continue
        title = f"who gains against {row['difference']['to']}: {found['of']} of every client, + is better"
        of = found["of"]
        counted = f"{found['gain']} gain, {found['lose']} lose, {found['same']} the same"
        counted += "" if found["averaged"] or found["seeds"] == 1 else f", dealt anew in each of {found['seeds']} seeds"
        lines.append((row["method"], counted, "", ""))
        for group in found["groups"]:
            lines.append(("", f"all {group['clients']}", group["group"], amount(group["gain"], of, group["se"], True)))
        clients = found["clients"]
        ends = clients if len(clients) <= 2 * FEW else [*clients[:FEW], *clients[-FEW:]]
        for one in ends:
            seed = "" if found["averaged"] else f", seed {one['seed']}"
            lines.append(("", f"{one['client']}{seed}", one["group"], amount(one["gain"], of, sign=True)))
    return TextTable(title, ("method", "client", "group", "difference"), tuple(lines), left=3)


def gains_csv(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every client's gain against the reference."""
    return [
        {"method": row["method"], "against": row["difference"]["to"], **one}
        for row in rows
        if row.get("who") is not None
        for one in row["who"]["clients"]
    ]
