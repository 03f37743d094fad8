"""Tables over many runs, for the terminal, for a page, for a paper, and for another program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Table

from ..data.table_file import csv_text
from ..runs.grid import grouped
from ..runs.metrics import is_share
from ..runs.paired import amount, base_of, leading
from ..runs.settings import Settings
from .screen import bytes_, spread, titled

FORMATS = ("table", "csv", "markdown", "latex", "json")
OURS = ("accuracy", "loss", "f1", "rmse", "mae", "exact")  # what our own metrics are of
FEW = 3  # clients who gain most, and who lose most, in a table


class TextTable(NamedTuple):
    """A table in words: a title, headings and lines; the first `left` columns are names, the others numbers."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    caption: str = ""
    left: int = 1

    def only(self, *heads: str) -> TextTable:
        """The names, and some of the columns behind them."""
        kept = [k for k, head in enumerate(self.heads) if k < self.left or head in heads]
        lines = tuple(tuple(line[k] for k in kept) for line in self.lines)
        return self._replace(heads=tuple(self.heads[k] for k in kept), lines=lines)


def for_people(table: TextTable) -> Table:
    """In a terminal."""
    shown = titled(table.title, *table.heads[: table.left], right=table.heads[table.left :])
    shown.caption = table.caption or None
    for column in shown.columns:
        column.overflow = "fold"  # a narrow terminal loses no letter
    for line in table.lines:
        shown.add_row(*line)
    return shown


def markdown(table: TextTable) -> str:
    """As Markdown has tables."""
    rules = [":--" if k < table.left else "--:" for k in range(len(table.heads))]
    lines = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in (table.heads, rules, *table.lines)]
    return "\n\n".join(
        [table.title, "\n".join(f"| {line} |" for line in lines), *([table.caption] * bool(table.caption))]
    )


def latex(table: TextTable) -> str:
    """As a LaTeX tabular, which needs no package."""
    lines = [" & ".join(map(_escaped, line)) + r" \\" for line in (table.heads, *table.lines)]
    columns = "l" * table.left + "r" * (len(table.heads) - table.left)
    said = [f"% {text}" for text in (table.title, table.caption) if text]
    rows = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}"]
    return "\n".join([*said, *rows])


def _escaped(text: str) -> str:
    for sign in "&%$#_{}":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("±", r"$\pm$").replace("°", r"$^\circ$").replace("~", r"\textasciitilde{}")


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Numbers as they are, a column for every key of any row; what is not there is empty."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    return csv_text([heads, *([row.get(head, "") for head in heads] for row in rows)], end="\n")


# -- compare -------------------------------------------------------------------------------------------------


def shown_metrics(metrics: Sequence[str]) -> dict[str, str]:
    """The metrics that a table shows, and their titles: of classes, of labels or of numbers; and the user's own."""
    there = set(metrics)
    ours = {"micro_accuracy": "micro", "macro_accuracy": "macro", "worst_decile_accuracy": "worst tenth"}
    ours |= {"micro_exact": "all labels right"}
    if "micro_accuracy" not in there:
        ours = {"micro_rmse": "rmse", "worst_decile_rmse": "worst tenth", "micro_mae": "mae", "r2": "r2"}
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
    title = f"{settings.data}{dealt}, {settings.rounds} rounds, {seeds} seeds: test {percent}, mean±std"
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
    caption = "better alone: share of clients better served by training alone" if beside else ""
    return TextTable(title, heads, tuple(lines), caption)


def comparison_tables(rows: list[dict[str, Any]], seeds: int, settings: Settings) -> tuple[Table, Table]:
    """A comparison for people: what came out, and what it took."""
    whole = comparison(rows, seeds, settings)
    scores = whole.only(*(head for head in whole.heads if head not in COST))
    took = "what it took: local steps and examples of a client in a round, and bytes of all rounds"
    return for_people(scores), for_people(whole.only(*COST)._replace(title=took, caption=""))


def comparison_csv(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A comparison for another program: every metric's mean and standard deviation, work, bytes and differences."""
    from statistics import fmean, stdev

    out = []
    for row in rows:
        line: dict[str, Any] = {"method": row["method"], "runs": row["runs"], "diverged": row["diverged"]}
        every = row["metrics"] | {"personalised": row["personalised"]}
        every |= {"share_below_alone": row["share_below_alone"]} if "share_below_alone" in row else {}
        for name, values in every.items():
            known = [value for value in values if value is not None]
            line |= {name: fmean(known)} if known else {}
            line |= {f"{name}_std": stdev(known)} if len(known) > 1 else {}
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


# -- sweep ---------------------------------------------------------------------------------------------------


def sweep_table(rows: list[dict[str, Any]], keys: list[str]) -> Table:
    """One line for every point of the grid, over its seeds."""
    axes = [key for key in keys if key != "seed"]
    metrics = shown_metrics(list(dict.fromkeys(name for row in rows for name in row.get("metrics", {}))))
    lines = []
    for point, ran in grouped(rows, lambda r: tuple(str(r["grid"][k]) for k in axes)).items():
        good = [r for r in ran if "metrics" in r]
        shown = [spread([r["metrics"].get(name) for r in good], is_share(name)) for name in metrics]
        found = [r["validation"] for r in good if r.get("validation")]
        valid = spread([v["value"] for v in found], not found or is_share(found[0]["metric"]))
        lines.append((*point, *shown, valid, str(len(good)) + (f" of {len(ran)}" if len(good) < len(ran) else "")))
    percent = "accuracy in %" if "micro_accuracy" in metrics else "scores"
    caption = "choose by the validation column (set valid = 0.1 in the config), never by the test"
    heads = (*(key.removeprefix("set.") for key in axes), *metrics.values(), "validation", "runs")
    return for_people(TextTable(f"test {percent}, mean±std over seeds", heads, tuple(lines), caption, len(axes)))


def search_result(found: Sequence[Any], how: str) -> TextTable:
    """What a search tried, the best first: validation scores only."""
    axes = list(found[0].point)
    metric = found[0].runs[0]["validation"]["metric"]
    lines = [
        (
            *(str(tried.point[key]) for key in axes),
            str(tried.rounds),
            "diverged" if tried.diverged else spread(tried.scores, is_share(metric)),
        )
        for tried in found
    ]
    heads = (*(key.removeprefix("set.") for key in axes), "rounds", metric)
    title = f"{how} search: validation, mean±std over seeds, the best first"
    return TextTable(title, heads, tuple(lines), left=len(axes))


def k_result(trials: Sequence[Any], by: str) -> TextTable:
    """What every number of centers came to."""
    lines = []
    for trial in trials:
        right = "-" if trial.valid_accuracy is None else f"{trial.valid_accuracy:.2%}"
        loss = "-" if trial.valid_loss is None else f"{trial.valid_loss:.4g}"
        lines.append((str(trial.k), right, loss, f"{trial.intra_cluster:.4g}"))
    table = TextTable(
        f"numbers of centers, chosen by {by}",
        ("k", "validation accuracy", "validation loss", "intra-cluster distance"),
        tuple(lines),
    )
    known = any(trial.intra_cluster == trial.intra_cluster for trial in trials)  # only who is placed by distance has it
    return table if known else table.only(*table.heads[:3])
