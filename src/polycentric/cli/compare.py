"""Tables over many runs: methods over seeds, and grids of settings."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ..errors import UsageError
from ..runs.grid import grouped, run_cells
from ..runs.settings import Settings, changed, read_toml
from .screen import bytes_, counting, spread

SHOWN = {  # metric: title
    "micro_accuracy": "micro",
    "macro_accuracy": "macro",
    "worst_decile_accuracy": "worst tenth",
}


def compare_methods(
    cells: Sequence[Settings], out: Path, jobs: int, quiet: bool, names: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """One row for each name: every metric over seeds, and the share of clients better off alone.

    `names` has one for each cell, where a method stands in several rows; by default it is the method's.
    """
    with counting("compare", len(cells), quiet) as told:
        summaries = run_cells(cells, out, jobs=jobs, told=told)
    alone = {s["seed"]: _accuracies(s) for s in summaries if s["method"] == "nofed" and "metrics" in s}
    named = [s | {"name": n} for s, n in zip(summaries, names or [c.method for c in cells], strict=True)]
    rows = []
    for name, ran in grouped(named, lambda s: s["name"]).items():
        good = [s for s in ran if "metrics" in s]
        row: dict[str, Any] = {"method": name, "runs": len(good), "diverged": len(ran) - len(good)}
        metrics = good[0]["metrics"] if good else {}
        row["metrics"] = {metric: [s["metrics"].get(metric) for s in good] for metric in metrics}
        tuned = [(s.get("personalised") or {}).get("micro_accuracy") for s in good]
        row["personalised"] = [accuracy for accuracy in tuned if accuracy is not None]
        if alone and ran[0]["method"] != "nofed":
            row["share_below_alone"] = [_below(_accuracies(s), alone[s["seed"]]) for s in good if s["seed"] in alone]
        row |= {key: good[0][key] if good else 0 for key in ("bytes_up", "bytes_down")}
        row["seconds"] = sum(s["seconds"] for s in good)
        rows.append(row)
    return rows


def comparison_table(rows: list[dict[str, Any]], seeds: int, settings: Settings) -> Table:
    """The comparison for people: mean ± standard deviation in percent."""
    dealt = f", {settings.partition}" if settings.partition else ""
    title = f"{settings.data}{dealt}, {settings.rounds} rounds, {seeds} seeds: test accuracy in %, mean±std"
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    beside = any("share_below_alone" in row for row in rows)
    for heading in (*SHOWN.values(), "fine-tuned", *(["better alone"] if beside else []), "sent"):
        table.add_column(heading, justify="right")
    for row in rows:
        values = [spread(row["metrics"].get(name, [])) for name in SHOWN]
        values.append(spread(row["personalised"]))
        values += [spread(row.get("share_below_alone", []))] if beside else []
        lost = f" ({row['diverged']} diverged)" if row["diverged"] else ""
        table.add_row(row["method"] + lost, *values, bytes_(row["bytes_up"]))
    if beside:
        table.caption = "better alone: share of clients whose model would have been better trained alone"
    return table


def sweep_grid(
    config: Path, out: Path, device: str | None, jobs: int, quiet: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Every combination of the lists in [grid]."""
    values = read_toml(config)
    grid = values.pop("grid", None)
    if not isinstance(grid, dict) or not grid or not all(isinstance(v, list) and v for v in grid.values()):
        raise UsageError(f'{config} needs a [grid] table of lists, for example "set.lr" = [0.03, 0.1]')
    cells, chosen = [], []
    for combination in itertools.product(*grid.values()):
        point = dict(zip(grid, combination, strict=True))
        cells.append(_at(values, point, config, device))
        chosen.append(point)
    with counting(f"sweep {config.stem}", len(cells), quiet) as told:
        summaries = run_cells(cells, out, jobs=jobs, told=told)
    return [summary | {"grid": point} for point, summary in zip(chosen, summaries, strict=True)], list(grid)


def _at(values: dict[str, Any], point: dict[str, Any], config: Path, device: str | None) -> Settings:
    """The settings at one point of a grid; keys that begin with `set.` are settings of the method."""
    own = {key: value for key, value in point.items() if not key.startswith("set.")}
    inner = {key[4:]: value for key, value in point.items() if key.startswith("set.")}
    if device is not None:
        own["device"] = device
    settings = Settings.of(changed(values | own, inner), str(config))
    settings.build_method()
    return settings


def sweep_table(rows: list[dict[str, Any]], keys: list[str]) -> Table:
    """One line for every point of the grid, over its seeds."""
    axes = [key for key in keys if key != "seed"]
    table = Table(title="test accuracy in %, mean±std over seeds", title_justify="left")
    for key in axes:
        table.add_column(key.removeprefix("set."))
    for heading in (*SHOWN.values(), "validation", "runs"):
        table.add_column(heading, justify="right")
    for point, ran in grouped(rows, lambda r: tuple(str(r["grid"][k]) for k in axes)).items():
        good = [r for r in ran if "metrics" in r]
        shown = [spread([r["metrics"][name] for r in good if name in r["metrics"]]) for name in SHOWN]
        valid = spread([r["best_validation"] for r in good if r.get("best_validation") is not None])
        table.add_row(*point, *shown, valid, str(len(good)) + (f" of {len(ran)}" if len(good) < len(ran) else ""))
    table.caption = "choose by the validation column (set valid = 0.1 in the config), never by the test"
    return table


def _accuracies(summary: dict[str, Any]) -> dict[str, float]:
    path = Path(summary["run_dir"]) / "clients.csv"
    with path.open(newline="", encoding="utf-8") as file:
        return {row["client"]: float(row["accuracy_in_use"]) for row in csv.DictReader(file) if row["accuracy_in_use"]}


def _below(scores: dict[str, float], alone: dict[str, float]) -> float:
    both = scores.keys() & alone.keys()
    return sum(scores[name] < alone[name] for name in both) / len(both) if both else float("nan")
