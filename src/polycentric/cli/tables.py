"""Tables over many runs in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from ..report.tables import COST, TextTable, comparison, shown_metrics, spread
from ..runs.grid import grouped
from ..runs.metrics import is_share
from ..runs.settings import Settings
from .screen import titled

FORMATS = ("table", "csv", "markdown", "latex", "json")


def for_people(table: TextTable) -> Table:
    """In a terminal."""
    shown = titled(table.title, *table.heads[: table.left], right=table.heads[table.left :])
    shown.caption = table.caption or None
    for column in shown.columns:
        column.overflow = "fold"  # a narrow terminal loses no letter
    for line in table.lines:
        shown.add_row(*line)
    return shown


def comparison_tables(rows: list[dict[str, Any]], seeds: int, settings: Settings) -> tuple[Table, Table]:
    """A comparison for people: what came out, and what it took."""
    whole = comparison(rows, seeds, settings)
    scores = whole.only(*(head for head in whole.heads if head not in COST))
    took = "what it took: local steps and examples of a client in a round, and bytes of all rounds"
    return for_people(scores), for_people(whole.only(*COST)._replace(title=took, caption=""))


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
